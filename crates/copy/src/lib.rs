//! Copies backups and volumes from one store into another, which may cut, name and compress otherwise.
//!
//! Invariants:
//! * A backup appears in the destination when all of it is there, durably: its record is committed last. A volume gets its name last.
//! * Every chunk is compared with its fingerprint when it is read, and named again when it is stored.
//! * What cannot be read from the source is named, and what needs it is not copied; everything else is.
//! * Nothing that the destination has is changed. Repeating a copy finds what is there.
//!
//! This crate knows two open stores. It must never know files, commands or networks.

mod backups;
mod error;
mod recipes;
mod volumes;

pub use backups::{BackupOutcome, Backups};
pub use error::{CopyError, Result};
pub use recipes::Moved;
pub use volumes::{VolumesOutcome, copy_volumes};

/// Follows a copy.
pub trait Monitor {
    /// Bytes that are copied, or found.
    fn advance(&self, bytes: u64);
    /// Returns whether to stop.
    fn is_cancelled(&self) -> bool;
}

/// Something that cannot be read from the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A path in a backup, or the name of a volume.
    pub what: Vec<u8>,
    /// Why.
    pub reason: String,
}
