//! The limit of open files.

use rustix::process::{Resource, getrlimit, setrlimit};

/// This many open files suffice for any tree, and for the tables of any store.
const OPEN_FILES: u64 = 1 << 16;

/// Raises the limit of open files of this process as far as the system allows. With fewer, deep trees and large stores
/// are reported as not openable.
pub fn raise_open_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(wanted);
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
