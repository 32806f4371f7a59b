//! The backup client: Linux file trees into backups and back.
//!
//! * [`backup()`]: reads a tree into the store, only what changed since the backup before; [`backup_stream`]: one file from a pipe; [`rehearse`]: what it
//!   would do.
//! * [`restore()`], [`dump`] and [`archive()`]: write a tree, parts of it, or one file, verified.
//! * [`Monitor`]: watches both; [`Excludes`]: what a backup leaves out.
//!
//! Problems with one path ([`Problem`]) are told to the monitor and counted in the outcome; only what concerns everything is
//! a [`ClientError`].
//!
//! This crate must never know how the store keeps what it is given.

mod archive;
mod assemble;
mod backup;
mod damage;
mod dump;
mod error;
mod glob;
mod job;
mod marker;
mod monitor;
mod options;
mod read;
mod restore;
mod select;
mod source;
mod state;
mod target;
mod walk;
mod write;

pub use archive::archive;
pub use backup::{backup, backup_stream, rehearse};
pub use damage::{DAMAGED_SUFFIX, Damaged};
pub use dump::dump;
pub use error::{ClientError, Result};
pub use glob::{Excludes, Pattern};
pub use monitor::{Counter, Monitor, Plan, Problem, Severity, Tally};
pub use options::{BackupOptions, BackupOutcome, Parent, Rehearsal};
pub use restore::options::{Overwrite, RestoreOptions};
pub use restore::{RestoreOutcome, restore};

use rustix::process::{Resource, getrlimit, setrlimit};

/// Open files that are enough for any tree.
const OPEN_FILES: u64 = 1 << 16;

/// Directories are held open while they are walked: takes as many open files as the system lets this process have.
fn raise_open_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(wanted);
        // With fewer, very deep trees report that they cannot be opened.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

fn random_bytes(bytes: &mut [u8]) -> Result<()> {
    onefold_ground::fill_random(bytes).map_err(|error| ClientError::io("get", "random bytes", error))
}
