//! The backup client: Linux file trees into backups and back.
//!
//! * [`backup()`]: reads a tree into the store, only what changed since the previous backup; [`backup_stream`]: one
//!   file from a pipe; [`rehearse`]: what a backup would do.
//! * [`restore()`], [`dump`] and [`archive()`]: write a tree, parts of it, or one file, verified.
//! * [`Monitor`]: watches an operation; [`Excludes`]: what a backup leaves out.
//!
//! A problem with one path ([`Problem`]) is reported to the monitor and counted in the outcome. Only a failure of the
//! whole operation is a [`ClientError`].
//!
//! This crate must never know how the store keeps its data.

mod archive;
mod assemble;
mod backup;
mod batches;
mod damage;
mod dump;
mod error;
mod glob;
mod job;
mod marker;
mod monitor;
mod options;
mod read;
pub mod repository;
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
pub use repository::{Reading, Repository};
pub use restore::options::{Overwrite, RestoreOptions};
pub use restore::{RestoreOutcome, restore};

fn random_bytes(bytes: &mut [u8]) -> Result<()> {
    onefold_ground::fill_random(bytes).map_err(|error| ClientError::io("get", "random bytes", error))
}
