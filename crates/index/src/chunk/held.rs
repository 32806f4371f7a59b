//! Reads entries as of one moment while batches are applied.
//!
//! It takes two steps. A caller that wants one moment across several things must block others, but only for the second,
//! short step. [`ChunkIndex::hold`] waits until no sweep runs in the wanted partitions and keeps sweeps out.
//! [`Held::take`] copies the changes that are not in pages. Only sweeps write pages, so pages and copies together are
//! the entries as of the copy, however long the read takes.

use super::auxiliary::Auxiliary;
use super::merge::{Pair, SortedChanges, merge};
use super::page::PAGE_BYTES;
use super::pages::PageFile;
use super::partition::{Files, Frozen, Partition};
use super::{ChunkIndex, IndexEntry, partition_of};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use parking_lot::{ArcMutexGuard, RawMutex};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Pages per read.
const STEP_PAGES: u64 = 256;

/// Unswept partitions and their changes as of one moment. If the auxiliary index fills up meanwhile, writers wait: do
/// not hold it for long.
pub struct Held {
    partitions: Vec<HeldPartition>,
}

struct HeldPartition {
    partition: Arc<Partition>,
    /// The prefixes wanted from this partition; `None`: all.
    prefixes: Option<RangeInclusive<u64>>,
    /// Blocks sweeps while it is held: pages stay unchanged.
    _files: ArcMutexGuard<RawMutex, Files>,
    entries: Option<Entries>,
}

/// The sources of a partition's entries.
#[derive(Debug)]
struct Entries {
    pages: Arc<PageFile>,
    applied: u64,
    frozen: Option<Frozen>,
    active: Auxiliary,
}

impl ChunkIndex {
    /// Blocks sweeps of the opened partitions that hold fingerprints with these prefixes ([`Fingerprint::prefix`]).
    pub fn hold(&self, prefixes: RangeInclusive<u64>) -> Held {
        let bits = self.partition_bits();
        let numbers = partition_of(*prefixes.start(), bits)..=partition_of(*prefixes.end(), bits);
        // Ascending order, like every other holder of several partitions.
        let partitions = self.partitions.now();
        let opened = partitions.numbered().filter(|(number, _)| numbers.contains(number));
        let held = opened.map(|(number, partition)| {
            let own = self.prefixes_of(number);
            let wanted = *prefixes.start().max(own.start())..=*prefixes.end().min(own.end());
            HeldPartition::of(partition.clone(), Some(wanted))
        });
        Held { partitions: held.collect() }
    }
}

impl ChunkIndex {
    /// Returns the prefixes of a partition's fingerprints.
    fn prefixes_of(&self, partition: u32) -> RangeInclusive<u64> {
        let bits = self.partition_bits();
        let first = u64::from(partition).checked_shl(64 - bits).unwrap_or(0);
        first..=first | u64::MAX.checked_shr(bits).unwrap_or(0)
    }

    /// Visits entries of a partition like [`for_each`](Self::for_each), from a [prefix](Fingerprint::prefix) on, until
    /// `visit` returns false.
    pub fn for_each_from(&self, partition: u32, prefix: u64, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> bool) -> Result<()> {
        let found = self.opened(partition)?;
        let own = self.prefixes_of(partition);
        if prefix > *own.end() {
            return Ok(());
        }
        found.for_each_of(prefix.max(*own.start())..=*own.end(), visit)
    }
}

impl Held {
    /// Fixes the moment: [`Held::for_each`] will visit the entries as of now.
    pub fn take(&mut self) {
        self.partitions.iter_mut().for_each(HeldPartition::take);
    }

    /// Visits the entries with these prefixes, ascending, as of [`Held::take`]; without it, as of now. Releases each
    /// partition after reading it. A partition that cannot be read goes to `failed`, and the next one follows.
    pub fn for_each(self, visit: &mut dyn FnMut(&Fingerprint, IndexEntry), failed: &mut dyn FnMut(IndexError)) {
        for mut partition in self.partitions {
            let read = partition.for_each(&mut |fingerprint, entry| {
                visit(fingerprint, entry);
                Ok(true)
            });
            if let Err(error) = read {
                failed(error);
            }
        }
    }
}

impl HeldPartition {
    fn of(partition: Arc<Partition>, prefixes: Option<RangeInclusive<u64>>) -> HeldPartition {
        HeldPartition { prefixes, _files: partition.files.lock_arc(), partition, entries: None }
    }

    fn take(&mut self) {
        let state = self.partition.state.read();
        let (pages, frozen, active) = (state.pages.clone(), state.frozen.clone(), state.active.clone());
        self.entries = Some(Entries { pages, applied: state.applied, frozen, active });
    }

    /// Visits the wanted entries, ascending, until `visit` returns false.
    fn for_each(&mut self, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> Result<bool>) -> Result<()> {
        if self.entries.is_none() {
            self.take();
        }
        let Some(Entries { pages, applied, frozen, active }) = self.entries.take() else { return Ok(()) };
        let none = Arc::default();
        let (frozen, target) = frozen.map_or((none, 0), |Frozen { changes, target, .. }| (changes, target));
        let (frozen, active) = (SortedChanges::of(&frozen), SortedChanges::of(&active));
        let prefixes = self.prefixes.as_ref();
        let is_wanted = |fingerprint: &Fingerprint| prefixes.is_none_or(|prefixes| prefixes.contains(&fingerprint.prefix()));
        // Read both pages of a pair together: an entry may be in the neighbour of its home.
        let shape = &pages.shape;
        let first = prefixes.map_or(0, |prefixes| u64::from(shape.home_of(*prefixes.start()) & !1));
        let end = prefixes.map_or(shape.end(), |prefixes| u64::from(shape.home_of(*prefixes.end()) | 1) + 1);
        let (mut frozen_at, mut active_at) = (frozen.first_at(shape, first), active.first_at(shape, first));
        let (mut bytes, mut pair, mut merged, mut entries) = (Vec::new(), Pair::default(), Vec::new(), Vec::new());
        let steps = shape.ranges(first, end).flat_map(|range| {
            let end = range.end;
            range.step_by(STEP_PAGES as usize).map(move |from| (from, STEP_PAGES.min(end - from)))
        });
        for (from, step) in steps {
            pages.read_run(from as u32, step as usize, &mut bytes)?;
            for (number, both) in bytes.chunks_exact(2 * PAGE_BYTES).enumerate() {
                let left = from as u32 + 2 * number as u32;
                pair.read(&pages, left, both, applied, target)?;
                let middle = frozen.end_of(shape, frozen_at, left);
                let end = frozen.end_of(shape, middle, left + 1);
                let to_left = if pair.is_merged[0] { middle..middle } else { frozen_at..middle };
                let to_right = if pair.is_merged[1] { end..end } else { middle..end };
                frozen_at = end;
                merged.clear();
                merge(&pair.entries, frozen.range(to_left).chain(frozen.range(to_right)), &mut merged);
                let end = active.end_of(shape, active_at, left + 1);
                entries.clear();
                merge(&merged, active.range(active_at..end), &mut entries);
                active_at = end;
                for entry in entries.iter().filter(|entry| is_wanted(&entry.fingerprint)) {
                    if !visit(&entry.fingerprint, entry.value)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

impl Partition {
    /// Visits all entries, ascending.
    pub fn for_each(self: &Arc<Self>, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> Result<()>) -> Result<()> {
        HeldPartition::of(self.clone(), None).for_each(&mut |fingerprint, entry| visit(fingerprint, entry).map(|()| true))
    }

    /// Visits the entries with these prefixes, ascending, until `visit` returns false.
    pub fn for_each_of(
        self: &Arc<Self>,
        prefixes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> bool,
    ) -> Result<()> {
        HeldPartition::of(self.clone(), Some(prefixes)).for_each(&mut |fingerprint, entry| Ok(visit(fingerprint, entry)))
    }
}
