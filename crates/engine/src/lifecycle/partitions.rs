//! Moving partitions of levels to other directories or disks, while the store is in use (M2.10).

use crate::{Engine, EngineError, Result};
use onefold_storage::LevelsStore;
use std::path::Path;
use std::sync::Arc;

impl Engine {
    /// Returns the levels, whose partitions can be moved. Errors: the store has none.
    pub fn movable(&self) -> Result<&Arc<LevelsStore>> {
        self.levels.as_ref().ok_or_else(|| EngineError::Invalid {
            what: "partition".into(),
            why: format!("the store has none: its profile is `{}`, not `leveled`", self.descriptor.profile),
        })
    }

    /// Moves all tables of a partition into a directory of its own in `to`, which exists. `None`: into the store's own
    /// directory. Reading and writing go on. Asks `go_on` now and then, and calls `moved` with the bytes of each table
    /// that has moved. Returns false if `go_on` ended it: the next move goes on from there, and everything is found
    /// meanwhile.
    pub fn move_partition(&self, number: u16, to: Option<&Path>, go_on: &dyn Fn() -> bool, moved: &mut dyn FnMut(u64)) -> Result<bool> {
        self.writable()?;
        let levels = self.movable()?;
        let partitions = self.descriptor.container_partitions;
        if number >= partitions {
            let why = format!("there is no partition {number}; the store has 0 to {}", partitions - 1);
            return Err(EngineError::Invalid { what: "partition".into(), why });
        }
        {
            // An opening looks for tables in all homes. It must not look while they change.
            let _held = self.hold_views()?;
            levels.begin_move(number, to)?;
        }
        loop {
            while let Some(copied) = levels.copy_next(number, go_on)? {
                let _held = self.hold_views()?;
                self.check_lock()?;
                moved(copied.install()?);
            }
            if !go_on() {
                return Ok(false);
            }
            // Tables that the log does not name yet were passed over.
            self.flush()?;
            let _held = self.hold_views()?;
            if levels.end_move(number)? {
                return Ok(true);
            }
        }
    }
}
