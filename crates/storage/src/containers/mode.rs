//! Says what this opening of a store may do.

use onefold_ground::Access;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// What may be written, and whether others may write.
#[derive(Debug)]
pub(crate) struct Mode {
    access: Access,
    /// Set when replay is over and the store is open for writing.
    is_writable: AtomicBool,
    /// Set if another process may write meanwhile.
    follows_writers: AtomicBool,
    /// Set if containers may be rebuilt though nothing else may be written.
    allows_repairs: AtomicBool,
}

impl Mode {
    pub(crate) fn new(access: Access) -> Mode {
        Mode {
            access,
            is_writable: AtomicBool::new(false),
            follows_writers: AtomicBool::new(false),
            allows_repairs: AtomicBool::new(false),
        }
    }

    /// Returns whether the store was opened for reading only.
    pub(crate) fn is_for_reading(&self) -> bool {
        self.access == Access::Read
    }

    /// Returns whether anything may be written now. Before replay is over, nothing may.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable.load(Relaxed)
    }

    /// Allows writing. Call when replay is over, in a store that was opened for writing.
    pub(crate) fn begin_writing(&self) {
        self.is_writable.store(true, Relaxed);
    }

    /// Returns whether another process may write meanwhile (`forward.rs`).
    pub(crate) fn follows_writers(&self) -> bool {
        self.follows_writers.load(Relaxed)
    }

    /// Lets another process write from now on, unless this one does.
    pub(crate) fn follow_writers(&self) {
        self.follows_writers.store(self.is_for_reading(), Relaxed);
    }

    /// Returns whether containers may be rebuilt though nothing else may be written.
    pub(crate) fn allows_repairs(&self) -> bool {
        self.allows_repairs.load(Relaxed)
    }

    pub(crate) fn allow_repairs(&self) {
        self.allows_repairs.store(true, Relaxed);
    }
}
