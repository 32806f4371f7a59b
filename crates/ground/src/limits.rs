//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// This many open files suffice for any tree, and for the tables of any store.
const OPEN_FILES: u64 = 1 << 16;

/// Raises the limit of open files of this process as far as the system allows. With fewer, deep trees and large stores
/// are reported as not openable. Returns the limit.
pub fn raise_open_file_limit() -> u64 {
    let before = getrlimit(Resource::Nofile);
    let wanted = before.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if before.current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..before });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
