//! The objects as of one moment between two batches of the log, while changes go on. It shows durable objects and
//! nothing that is only staged.
//!
//! It reads the database through a snapshot and copies what the database does not have yet. While a moment lives, the
//! database frees no page that the snapshot needs. So its file may grow by the changes made meanwhile.

use super::database::Snapshot;
use super::lost::LostRanges;
use super::tiers::Tiers;
use super::{ObjectIndex, Partition, check_range, laid_over};
use crate::error::{IndexError, Result};
use onefold_oplog::Partitions;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The objects as of one moment.
pub struct Moment<'a> {
    index: &'a ObjectIndex,
    /// The partitions that were opened then, and the state of each.
    opened: Arc<Partitions<Partition>>,
    states: Vec<Mutex<State>>,
    has_moved: AtomicBool,
}

/// One partition: its applied changes that are not persisted, and a snapshot of the rest.
struct State {
    tiers: Tiers,
    snapshot: Snapshot,
    lost: Option<Arc<LostRanges>>,
}

impl State {
    fn of(partition: &Partition) -> Result<State> {
        let tiers = partition.tiers.read();
        Ok(State { tiers: tiers.applied_only(), snapshot: partition.file.snapshot()?, lost: partition.lost_now() })
    }
}

impl ObjectIndex {
    /// Returns the objects as of now. All partitions are of the same moment if nothing is applied during the call.
    pub fn moment(&self) -> Result<Moment<'_>> {
        let opened = self.partitions.now();
        let states = opened.iter().map(|partition| Ok(Mutex::new(State::of(partition)?))).collect::<Result<Vec<_>>>()?;
        Ok(Moment { index: self, opened, states, has_moved: AtomicBool::new(false) })
    }
}

impl Moment<'_> {
    /// Returns up to `limit` objects with `from <= key < to`, sorted by key.
    pub fn range(&self, partition: u16, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.index.check_number(partition)?;
        let number = u32::from(partition);
        let found = self.opened.get(number).zip(self.opened.ownership().place(number));
        let Some((current, place)) = found else { return Err(self.index.not_opened(partition)) };
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let mut state = self.states[place].lock();
        let read = |state: &State| {
            let found = laid_over(state.tiers.range(from, to, limit), &state.snapshot, from, to, limit)?;
            check_range(state.lost.as_deref(), || current.file.describe(), &found, from, to, limit)?;
            Ok(found)
        };
        match read(&state) {
            // The snapshot ends with its database, which was reopened or must be.
            Err(IndexError::Database { .. }) if state.snapshot.has_failed() => {
                let newer = State::of(current)?;
                if newer.tiers.applied() != state.tiers.applied() {
                    self.has_moved.store(true, Ordering::Relaxed);
                }
                *state = newer;
                read(&state)
            }
            result => result,
        }
    }

    /// Returns the value of an object.
    pub fn get(&self, partition: u16, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let behind = [key, &[0]].concat();
        Ok(self.range(partition, key, &behind, 1)?.pop().map(|(_, value)| value))
    }

    /// Returns whether a partition had to be read as of a later moment: its database failed (a full disk) and was
    /// reopened.
    pub fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }
}
