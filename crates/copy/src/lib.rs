//! Copies backups and volumes from one store into another. The destination may chunk, fingerprint and compress
//! differently.
//!
//! Invariants:
//! * A backup appears in the destination only when all of it is there, durably: its record is committed last. A volume
//!   gets its name last.
//! * Every chunk is compared with its fingerprint when it is read, and fingerprinted again when it is stored.
//! * Unreadable parts of the source are reported, and whatever needs them is not copied. Everything else is.
//! * Nothing in the destination is changed. A repeated copy finds what is already there.
//! * Filesystems are not copied.
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

/// Observes a copy.
pub trait Monitor {
    /// Counts bytes that were copied or found in the destination.
    fn advance(&self, bytes: u64);
    /// Returns whether to stop.
    fn is_cancelled(&self) -> bool;
}

/// A part of the source that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A path in a backup, or the name of a volume.
    pub what: Vec<u8>,
    /// The reason.
    pub reason: String,
}
