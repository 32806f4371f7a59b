//! The tray of a removable medium: whether the medium is in it, and who prevents that it moves.

use super::reservation::Nexus;
use super::sense::{Code, Key, Sense};
use std::collections::BTreeSet;

/// Where the medium is.
#[derive(Debug, Default)]
pub(super) struct Tray {
    pub(super) is_out: bool,
    pub(super) prevented_by: BTreeSet<Nexus>,
}

impl Tray {
    /// Checks whether a command may use the medium. Errors: the sense data to return.
    pub(super) fn check(&self) -> Result<(), Sense> {
        if self.is_out { Err(Sense::new(Key::NotReady, Code::MEDIUM_NOT_PRESENT)) } else { Ok(()) }
    }

    /// Removes the prevention of a nexus that is gone, or that was preempted.
    pub(super) fn lose_nexus(&mut self, nexus: &Nexus) {
        self.prevented_by.remove(nexus);
    }

    /// Resets the unit.
    pub(super) fn reset(&mut self) {
        self.prevented_by.clear();
    }
}
