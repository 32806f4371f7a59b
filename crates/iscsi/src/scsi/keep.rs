//! Storing reservations over restarts.

use super::reservation::Reservations;

/// Stores reservations over restarts. Called with each change, before it is answered.
pub type Keep = Box<dyn Fn(&Reservations) -> Result<(), NotKept> + Send + Sync>;

/// Something could not be stored over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKept {
    /// The previous state is stored, and nothing else.
    Unchanged,
    /// The change could not be undone either: it may be there after a restart.
    Uncertain,
}

/// Serialises changes of reservations: one is made at a time. Locked before the state of the unit.
#[derive(Debug, Default)]
pub(super) struct Changing {
    /// Whether a restart may bring back something else than the current state. Then the next change is stored, whatever
    /// it is.
    pub(super) is_uncertain: bool,
}
