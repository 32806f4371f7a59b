//! Parity of containers: made in the background, used when something cannot be read.

use crate::{Engine, EngineError, Mode, Result};
use onefold_storage::components::REPAIR;
use onefold_storage::{Address, ContainerId, Repair, StorageError};
use std::cell::Cell;

/// More groups than new data makes of one round of the thread in the background to the next. A store that had no parity before catches up slowly then.
const GROUPS_OF_A_ROUND: u32 = 4;
/// A second of work or less.
const GROUPS_OF_A_CLOSE: u32 = 4;

impl Engine {
    /// Makes parity for sealed containers that have none, a group at a time, if the settings want parity. With `all` for every one, else only whole
    /// groups. `go_on` is asked between groups. Returns how many groups were made.
    pub fn make_parity(&self, all: bool, go_on: &dyn Fn() -> bool) -> Result<u64> {
        let size = self.settings.parity_group;
        let mut groups = 0;
        if size == 0 {
            return Ok(groups);
        }
        self.writable()?;
        while go_on() {
            self.check_room_beside_reserve(2 * u64::from(self.descriptor.container_bytes))?;
            match self.storage.make_parity(size, all)? {
                None => break,
                // One of them was merged meanwhile; it is not among the next ones.
                Some(0) => {}
                Some(_) => groups += 1,
            }
        }
        Ok(groups)
    }

    /// What the thread in the background does of it each time.
    pub(crate) fn parity_round(&self) -> Result<()> {
        let left = Cell::new(GROUPS_OF_A_ROUND);
        self.make_parity(false, &|| left.replace(left.get().saturating_sub(1)) > 0 && !self.background.is_closed()).map(drop)
    }

    /// What closing does of it.
    pub(crate) fn last_parity(&self) -> Result<()> {
        let left = Cell::new(GROUPS_OF_A_CLOSE);
        self.make_parity(false, &|| left.replace(left.get().saturating_sub(1)) > 0).map(drop)
    }

    /// Whether this opening of the store may change it.
    pub fn is_writable(&self) -> bool {
        self.writable().is_ok()
    }

    /// Makes a container that cannot be read anew from parity, where that is possible; durable on return. A store that is open for reading does it only while its chunk
    /// index is made anew; one that [rehearses](Self::rehearse) reads it from then on as if it had been made.
    pub fn repair_container(&self, container: ContainerId) -> Result<Repair> {
        if matches!(self.mode, Mode::ReadOnly | Mode::Snapshot) && !self.is_rehearsal() {
            return Ok(Repair::Impossible);
        }
        Ok(self.storage.repair(container)?)
    }

    /// Makes the container anew that a read of the chunk at `address` could not read; where nothing may be written, it is read through parity. Whether it is worth reading again.
    pub(crate) fn repair_after(&self, error: &EngineError, address: Address) -> bool {
        let container = match error {
            EngineError::Storage(StorageError::Damaged { container, .. }) => *container,
            // A bad sector, for one: what the device says names no container.
            EngineError::Storage(StorageError::Ground(_)) => match self.storage.current(address.container()) {
                Ok(container) => container,
                Err(_) => return false,
            },
            // For one that the container is sound and the chunk is not there: parity does not help against that.
            _ => return false,
        };
        let repaired = match self.mode {
            Mode::ReadOnly | Mode::Snapshot if !self.is_rehearsal() => {
                self.storage.read_through_parity(container).map_err(EngineError::from)
            }
            Mode::ReadOnly | Mode::Snapshot | Mode::ReadWrite | Mode::Rebuild => {
                self.repair_container(container).map(|repaired| repaired != Repair::Impossible)
            }
        };
        match repaired {
            Ok(repaired) => repaired,
            Err(error) => {
                tracing::warn!(%container, %error, "a damaged container could not be made anew, or read through parity");
                false
            }
        }
    }

    /// Containers that were made anew from parity, since the store was made.
    pub fn repaired_containers(&self) -> u64 {
        self.activity().profile.get(REPAIR.name()).map_or(0, |usage| usage.calls)
    }
}
