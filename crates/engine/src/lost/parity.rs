//! Parity of containers: made in the background, used when something cannot be read.

use crate::{Engine, EngineError, Mode, Result};
use onefold_storage::components::REPAIR;
use onefold_storage::{Address, ContainerId, Repair, StorageError};
use std::cell::Cell;

/// Groups that the background thread makes in one round. New data makes fewer than this from one round to the next. So
/// a store without parity catches up slowly, and after an opening all folders are looked at once, some in each round.
const GROUPS_OF_A_ROUND: u32 = 4;
/// Groups that a close makes: a second of work or less.
const GROUPS_OF_A_CLOSE: u32 = 4;

impl Engine {
    /// Makes parity for sealed containers that have none, a group at a time, if the settings want parity. With `all`
    /// for every container, otherwise only for whole groups. It asks `go_on` between groups. Returns how many groups it
    /// made.
    pub fn make_parity(&self, all: bool, go_on: &dyn Fn() -> bool) -> Result<u64> {
        let size = self.settings.parity_group;
        let mut groups = 0;
        if size == 0 {
            return Ok(groups);
        }
        let Some(containers) = &self.containers else { return Ok(groups) };
        self.writable()?;
        while go_on() {
            self.check_room_beside_reserve(2 * u64::from(self.descriptor.container_bytes))?;
            match containers.make_parity(size, all)? {
                None => break,
                // One of them was merged meanwhile and is not among the next ones, or more folders are to be looked at.
                Some(0) => {}
                Some(_) => groups += 1,
            }
        }
        Ok(groups)
    }

    /// Does the background thread's share of the work, once per round.
    pub(crate) fn parity_round(&self) -> Result<()> {
        let left = Cell::new(GROUPS_OF_A_ROUND);
        self.make_parity(false, &|| left.replace(left.get().saturating_sub(1)) > 0 && !self.background.is_closed()).map(drop)
    }

    /// Does a close's share of the work.
    pub(crate) fn last_parity(&self) -> Result<()> {
        let left = Cell::new(GROUPS_OF_A_CLOSE);
        self.make_parity(false, &|| left.replace(left.get().saturating_sub(1)) > 0).map(drop)
    }

    /// Returns whether this opening may change the store.
    pub fn is_writable(&self) -> bool {
        self.writable().is_ok()
    }

    /// Rebuilds an unreadable container from parity, if possible. Durable on return. An opening for reading does this
    /// only while its chunk index is rebuilt. An opening that [rehearses](Self::rehearse) reads the container from then
    /// on as if it had been rebuilt.
    pub fn repair_container(&self, container: ContainerId) -> Result<Repair> {
        if matches!(self.mode, Mode::ReadOnly | Mode::Snapshot) && !self.is_rehearsal() {
            return Ok(Repair::Impossible);
        }
        Ok(self.containers.as_ref().map_or(Ok(Repair::Impossible), |containers| containers.repair(container))?)
    }

    /// Rebuilds the container after a failed read of the chunk at `address`. If nothing may be written, reads go
    /// through parity. Returns whether to retry.
    pub(crate) fn repair_after(&self, error: &EngineError, address: Address) -> bool {
        let Some(containers) = &self.containers else { return false };
        let container = match error {
            EngineError::Storage(StorageError::Damaged { container, .. }) => *container,
            // A bad sector, for example: the device's error names no container.
            EngineError::Storage(StorageError::Ground(_)) => match containers.container_of(address) {
                Ok(container) => container,
                Err(_) => return false,
            },
            // For example, the container is sound and does not have the chunk: parity does not help against that.
            _ => return false,
        };
        let repaired = match self.mode {
            Mode::ReadOnly | Mode::Snapshot if !self.is_rehearsal() => containers.read_through_parity(container).map_err(EngineError::from),
            Mode::ReadOnly | Mode::Snapshot | Mode::ReadWrite | Mode::Rebuild => {
                self.repair_container(container).map(|repaired| repaired != Repair::Impossible)
            }
        };
        match repaired {
            Ok(repaired) => repaired,
            Err(error) => {
                tracing::warn!(%container, %error, "a damaged container could be neither rebuilt nor read through parity");
                false
            }
        }
    }

    /// Returns how many containers were rebuilt from parity since the store was made.
    pub fn repaired_containers(&self) -> u64 {
        self.activity().profile.get(REPAIR.name()).map_or(0, |usage| usage.calls)
    }
}
