//! The object index as a [`View`] of the log.

use crate::{IndexError, ObjectIndex};
use onefold_oplog::{Effects, Position, Pressure, View};

pub(crate) fn pressure(is_full: bool, wants_step: impl Fn() -> bool) -> Pressure {
    match is_full {
        true => Pressure::Full,
        false if wants_step() => Pressure::Behind,
        false => Pressure::Idle,
    }
}

impl<E: From<IndexError>> View<E> for ObjectIndex {
    fn apply(&self, end: Position, effects: &Effects<'_>) -> Result<(), E> {
        Ok(ObjectIndex::apply(self, end, effects.sequence, effects.changes)?)
    }

    fn position(&self) -> Position {
        ObjectIndex::position(self)
    }

    fn required_end(&self) -> Position {
        self.furthest_position()
    }

    fn pressure(&self) -> Pressure {
        pressure(self.is_over_limit(), || self.wants_persist())
    }

    /// Persists everything applied. Its memory bound limits the work.
    fn step(&self) -> Result<bool, E> {
        self.persist()?;
        Ok(true)
    }

    /// There is one piece, bounded by the changes that are kept in memory.
    fn catch_up(&self, go_on: &dyn Fn() -> bool) -> Result<(), E> {
        if go_on() { Ok(self.persist()?) } else { Ok(()) }
    }
}
