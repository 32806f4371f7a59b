//! Compaction of levels (M2.8), in the background and when somebody asks for it.
//!
//! The long part, reading and writing tables, runs beside everything else. Only the change of the manifest keeps
//! readers of other processes out: they read it, the tables that it names and the log as of one moment.

use crate::lifecycle::layout::INDEX;
use crate::lost::rebuild::mark_index;
use crate::{Engine, Result};
use onefold_oplog::Pressure;
use onefold_storage::LevelsStore;
use std::time::{Duration, Instant};

/// How often a rest looks whether it may end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Engine {
    /// Does a compaction of levels, if one is due. Returns whether it did. It asks `go_on` now and then, and leaves
    /// everything as it was if that ends it.
    pub fn compact(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        self.writable()?;
        let Some(levels) = &self.levels else { return Ok(false) };
        let merged = match levels.merge(go_on) {
            Ok(Some(merged)) => merged,
            Ok(None) if self.is_reserve_in_use() => return self.shrink(levels, go_on),
            Ok(None) => return Ok(false),
            // What is removed has to go first, and that needs less space.
            Err(error) if error.is_full() && self.shrink(levels, go_on)? => return Ok(true),
            // The next one takes other tables. A repair mends what it can.
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "tables that are damaged are not compacted; run `onefold check`");
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        let _held = self.hold_views()?;
        merged.install()?;
        Ok(true)
    }

    /// Does all compactions that are due.
    pub(crate) fn compact_due(&self) -> Result<()> {
        while self.compact(&|| true)? {}
        Ok(())
    }

    /// Frees space without a merge, table by table, for a disk that is full.
    fn shrink(&self, levels: &LevelsStore, go_on: &dyn Fn() -> bool) -> Result<bool> {
        // The reserve has space for one.
        let Some(_one) = self.background.shrinking.try_lock() else { return Ok(false) };
        let shrunk = match levels.shrink(go_on) {
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "tables that are damaged are not compacted; run `onefold check`");
                false
            }
            shrunk => shrunk?,
        };
        if shrunk {
            self.keep_reserve();
        }
        Ok(shrunk)
    }

    /// Writes down which chunks are removed, and does all compactions that are due.
    pub fn compact_all(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        {
            let _held = self.hold_views()?;
            self.checkpoint_before(self.log.end())?;
        }
        while go_on() {
            if !self.compact(go_on)? {
                if self.compaction_pressure() == Pressure::Idle {
                    break;
                }
                // Another thread compacts, or other tables come next.
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Gives up tables that cannot be opened, and writes tables that are known to be damaged again, without the chunks
    /// that cannot be read. For a repair, which has noted all of these chunks as lost. Removed chunks may be back then,
    /// without entries in the chunk index: it has to be rebuilt, and the store opens in no other way.
    pub fn repair_tables(&self) -> Result<()> {
        self.writable()?;
        let Some(levels) = &self.levels else { return Ok(()) };
        mark_index(&self.ground, INDEX)?;
        let _held = self.hold_views()?;
        levels.give_up_lost_tables()?;
        levels.compact_damaged()?;
        Ok(())
    }

    /// Compacts what is due, within its share of the time, as long as the store is open.
    pub(crate) fn compaction_round(&self) -> Result<()> {
        let go_on = || !self.background.is_closed();
        loop {
            let began = Instant::now();
            let compacted = match go_on().then(|| self.compact(&go_on)) {
                // Whoever stores anything hears of a full disk.
                Some(Err(error)) if error.is_full() => false,
                compacted => compacted.transpose()?.unwrap_or(false),
            };
            if !compacted {
                return Ok(());
            }
            // All threads together have the share.
            let threads = self.compaction_threads() as u32;
            let share = self.settings.compaction_percent.clamp(1, 100);
            let until = Instant::now() + began.elapsed() * (threads * 100 - share) / share;
            while go_on() && Instant::now() < until && self.compaction_pressure() < Pressure::Full {
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }

    /// Returns how many threads compact: each of them another partition.
    pub(crate) fn compaction_threads(&self) -> usize {
        self.settings.workers.clamp(1, usize::from(self.descriptor.container_partitions).max(1))
    }

    /// Returns whether compaction is due, or so overdue that writers have to wait for it.
    pub(crate) fn compaction_pressure(&self) -> Pressure {
        self.levels.as_ref().map_or(Pressure::Idle, |levels| levels.compaction_pressure())
    }
}
