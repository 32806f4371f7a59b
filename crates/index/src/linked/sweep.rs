//! The sweep: brings the changes of many log batches into the pages, in the order of their fingerprints.
//!
//! # Steps, and why a crash between any two is safe
//! 1. *Freeze.* The active changes, all at log positions in `(applied, target]`, become the frozen ones. Nothing on
//!    disk has changed.
//! 2. *Header: target, progress 0.* After a crash no page has the target yet: the log is replayed for all chunks from
//!    `applied`.
//! 3. For the next changes in order, until they fill a journal: *journal, sync.* It has every page that these changes
//!    touch: homes, strangers, the area, units. It also has the counts and the progress that the header gets. A torn
//!    journal is ignored: the pages in place are intact, since those of the step before were synced before this journal
//!    was begun.
//! 4. *Pages in place, sync.* A crash tears pages at any sector. The journal has them all, and an opening repeats it.
//!    That is harmless, since it holds whole pages.
//! 5. *Header: progress, counts and number of the step, sync.* Now the journal's number is no longer one above the
//!    header's, so nobody repeats it. With the last changes the header says instead: applied = target, no target.
//! 6. The sweep drops the frozen changes from memory.
//!
//! So a step happens as a whole or not at all, whichever pages it touches. It need not touch them in any order. The
//! progress is a fingerprint's first 64 bits, and a step never ends between two changes that share them. Hence at every
//! instant exactly the chunks below the progress are at the target, and the others at `applied`. A replay gives the
//! others their changes, once.
//!
//! # Blocks that change hands
//! The log may free block `b` of chunk `G` and then give it to `F`. If `F` comes before `G` in order, `G` must leave
//! first, or two chunks would have one record of the area. So the same step brings `G` to the target before its turn:
//! * If `G` is then gone, its change finds nothing when its turn comes. It was removed, or lost with no references:
//!   both leave nothing again. So a repeat is harmless, also after a crash.
//! * If `G` has moved to another block, its record is marked *early* there. When its turn comes, the sweep only clears
//!   the mark. Until then lookups do not apply the frozen change to it. After a crash the mark is still there, and the
//!   replayed change meets it in its turn. So the count of `G` changes once.
//!
//! The block of `G` may belong to another chunk on disk in the same way. All of them go in one step, whose journal may
//! become longer than others. The log never gives a block to two chunks at a time: the sweep reports that as damage.
//!
//! # Errors
//! A step that fails after its pages are known stays *pending*: readers see its pages in memory, and the next step
//! first repeats it. An earlier error changes nothing, and the next step makes the same pages again. If a replayed log
//! ends before the target of an interrupted sweep, no sweep runs until the log reaches it.

use super::changes::Memory;
use super::header::{Header, Journal, StepKind};
use super::page::PagedFile;
use super::step::Step;
use super::{Files, LinkedIndex};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Access;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Changed pages that end a step. In tests there are few, so that small tables take many steps.
pub(super) const STEP_PAGES: usize = if cfg!(test) { 3 } else { 1000 };
/// Bytes for each change of a sweep's sorted list.
const SORTED_BYTES: usize = 16;

/// The changes of an unfinished sweep.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    pub memory: Arc<Memory>,
    /// The position up to which they go.
    pub target: u64,
    /// A replay skips chunks whose fingerprints begin below this: pages have their changes, and nobody would ask for
    /// them.
    pub replayed_from: u64,
}

impl Frozen {
    /// Returns the memory of the changes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes() + self.memory.changes.len() * SORTED_BYTES
    }
}

/// The current sweep, in memory.
#[derive(Debug)]
pub(super) struct Work {
    target: u64,
    /// The changes in order.
    order: Vec<u32>,
    /// Chunks that went before their turn.
    gone: HashSet<Fingerprint>,
    /// Changes that give a chunk a block. Most of these chunks are new.
    placed: u64,
    /// All changes are of chunks whose first 64 bits are not below this.
    first: u64,
}

impl Work {
    fn new(frozen: &Frozen) -> Work {
        let changes = &frozen.memory.changes;
        let order = changes.sorted();
        let placed = order.iter().filter(|slot| changes.slot(**slot).1.is_placed()).count() as u64;
        Work { target: frozen.target, order, gone: HashSet::new(), placed, first: frozen.replayed_from }
    }

    /// Returns about how many records the sweep may still bring, behind this progress.
    fn records_left(&self, progress: u64) -> u64 {
        let (left, all) = (u64::MAX - progress.max(self.first), u64::MAX - self.first);
        (u128::from(self.placed) * u128::from(left) / u128::from(all.max(1))) as u64
    }
}

/// A step that has not ended.
#[derive(Debug)]
pub(super) struct Pending {
    pub journal: Journal,
    /// The journal is durable.
    pub is_journalled: bool,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stepped {
    /// There was nothing to do.
    Nothing,
    /// The sweep has not ended.
    UnderWay,
    /// The sweep has ended.
    Ended,
}

enum Task {
    Nothing,
    /// No changes: only the position moves.
    Advance(u64),
    Merge(Frozen),
}

impl LinkedIndex {
    /// Does a bounded piece of a sweep or of growth: writes about 1,000 pages, with three to seven syncs, and holds
    /// about 12 MiB meanwhile. Lookups and batches go on. Returns whether there was work. After an error nothing is
    /// lost: the next call tries again.
    pub fn step(&self) -> Result<bool> {
        Ok(self.step_of_sweep()? != Stepped::Nothing)
    }

    /// [Steps](LinkedIndex::step) until a sweep ends. Returns whether there was one.
    pub fn sweep(&self) -> Result<bool> {
        loop {
            match self.step_of_sweep()? {
                Stepped::Nothing => return Ok(false),
                Stepped::UnderWay => {}
                Stepped::Ended => return Ok(true),
            }
        }
    }

    /// Brings all changes applied before the call into the pages, so that [`LinkedIndex::position`] reaches them.
    pub fn sweep_all(&self) -> Result<()> {
        self.catch_up(&|| true)
    }

    /// Does the same as long as `go_on`, which is asked before each bounded piece.
    pub fn catch_up(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let goal = self.state.read().last;
        while self.state.read().applied < goal && go_on() {
            if self.step_of_sweep()? == Stepped::Nothing {
                break;
            }
        }
        Ok(())
    }

    fn step_of_sweep(&self) -> Result<Stepped> {
        if self.access == Access::Read {
            return Err(IndexError::ReadOnly { path: self.path() });
        }
        let mut files = self.files.lock();
        if let Some(pending) = &files.pending {
            let kind = pending.journal.head.kind;
            self.finish(&mut files)?;
            return Ok(if kind == StepKind::SweepEnd { Stepped::Ended } else { Stepped::UnderWay });
        }
        files.header.settle()?;
        match self.freeze() {
            Task::Nothing if files.header.current().grown > 0 => {
                self.grow(&mut files)?;
                Ok(Stepped::UnderWay)
            }
            Task::Nothing => Ok(Stepped::Nothing),
            Task::Advance(position) => {
                let header = files.header.current();
                files.header.write(Header { applied: position, ..header })?;
                self.shown.write().header.applied = position;
                self.state.write().applied = position;
                Ok(Stepped::Ended)
            }
            Task::Merge(frozen) => self.merge_step(&mut files, &frozen),
        }
    }

    fn freeze(&self) -> Task {
        let mut state = self.state.write();
        if state.frozen.is_none() {
            if state.active.changes.is_empty() {
                return if state.last > state.applied { Task::Advance(state.last) } else { Task::Nothing };
            }
            let memory = Arc::new(std::mem::take(&mut state.active));
            state.frozen = Some(Frozen { memory, target: state.last, replayed_from: 0 });
            self.count_memory(&state);
        }
        match &state.frozen {
            Some(frozen) if state.last >= frozen.target => Task::Merge(frozen.clone()),
            _ => Task::Nothing,
        }
    }

    /// Moves some families, makes room in the area, or brings some changes into pages.
    fn merge_step(&self, files: &mut Files, frozen: &Frozen) -> Result<Stepped> {
        let mut work = match files.work.take() {
            Some(work) if work.target == frozen.target => work,
            _ => Work::new(frozen),
        };
        let stepped = self.merge_some(files, &mut work, frozen);
        // After an error the set of chunks that are gone may name some that are not.
        if matches!(stepped, Ok(Stepped::UnderWay)) {
            files.work = Some(work);
        }
        stepped
    }

    fn merge_some(&self, files: &mut Files, work: &mut Work, frozen: &Frozen) -> Result<Stepped> {
        let header = files.header.current();
        let mut limit = header.most_entries();
        let more = work.records_left(if header.target == frozen.target { header.progress } else { 0 });
        if self.wants_growth(files, more) {
            let is_crowded = header.entries + more >= limit;
            files.has_grown = is_crowded || !files.has_grown;
            if files.has_grown {
                match self.grow(files) {
                    // There may be room all the same.
                    Err(error) if error.is_full() && self.has_last_slots(files) => limit = files.header.current().last_entries(),
                    grown => return grown.map(|()| Stepped::UnderWay),
                }
            }
        }
        let header = files.header.current();
        if frozen.memory.end() > header.blocks {
            self.extend(files, frozen.memory.end())?;
            return Ok(Stepped::UnderWay);
        }
        if header.target != frozen.target {
            files.header.write(Header { target: frozen.target, progress: 0, ..header })?;
        }
        self.sweep_step(files, work, frozen, limit)
    }

    fn sweep_step(&self, files: &mut Files, work: &mut Work, frozen: &Frozen, most_entries: u64) -> Result<Stepped> {
        let header = files.header.current();
        let changes = &frozen.memory.changes;
        let first = work.order.partition_point(|slot| changes.slot(*slot).0.prefix() < header.progress);
        let rest = &work.order[first..];
        self.read_ahead(rest.iter().map(|slot| &changes.slot(*slot).0));
        let mut step = Step::new(&self.shown, header);
        let mut before = None;
        let mut progress = None;
        let mut swept = 0;
        for slot in rest {
            let (fingerprint, change) = changes.slot(*slot);
            let prefix = fingerprint.prefix();
            let is_enough = step.is_full(STEP_PAGES) || step.header.entries >= most_entries;
            if is_enough && before.is_some_and(|before| before != prefix) {
                progress = Some(prefix);
                break;
            }
            step.bring(fingerprint, *change, &frozen.memory, &mut work.gone)?;
            before = Some(prefix);
            swept += 1;
        }
        let kind = if progress.is_some() { StepKind::Sweep } else { StepKind::SweepEnd };
        let figures = step.figures;
        let journal = step.into_journal(kind, progress.unwrap_or(0), header.grown);
        self.counters.add(&figures);
        self.counters.swept_changes.fetch_add(swept, Ordering::Relaxed);
        self.counters.sweep_page_writes.fetch_add(journal.len() as u64, Ordering::Relaxed);
        self.commit(files, journal)?;
        Ok(if kind == StepKind::SweepEnd { Stepped::Ended } else { Stepped::UnderWay })
    }

    /// Announces that the homes of some chunks will be read.
    pub(super) fn read_ahead<'a>(&self, fingerprints: impl Iterator<Item = &'a Fingerprint>) {
        let shown = self.shown.read();
        let home = |fingerprint: &Fingerprint| {
            let table = shown.header.table_of(fingerprint);
            shown.header.layout.slot_place(table.generation, table.home(fingerprint)).0
        };
        let mut last = None;
        for id in fingerprints.map(home).take(STEP_PAGES) {
            if last != Some(id)
                && let Ok(file) = shown.file(id.file)
            {
                file.read_ahead(id.offset(), crate::paged::PAGE_BYTES as u64);
                last = Some(id);
            }
        }
    }

    /// Makes a step durable.
    pub(super) fn commit(&self, files: &mut Files, journal: Journal) -> Result<()> {
        files.pending = Some(Pending { journal, is_journalled: false });
        self.finish(files)
    }

    /// Ends a pending step, or begins it again where it failed.
    pub(super) fn finish(&self, files: &mut Files) -> Result<()> {
        let Some(pending) = &mut files.pending else { return Ok(()) };
        if !pending.is_journalled {
            files.journal.write(&mut pending.journal)?;
            pending.is_journalled = true;
        }
        let (journal, before) = (&pending.journal, files.header.current());
        let next = before.after(&journal.head);
        let touched = {
            let mut shown = self.shown.write();
            if shown.header.step != next.step {
                shown.show(next, journal);
            }
            let mut touched = Vec::new();
            for (id, _) in journal.runs() {
                if touched.last().is_none_or(|(file, _): &(PagedFile, _)| *file != id.file) {
                    touched.push((id.file, shown.file(id.file)?.clone()));
                }
            }
            touched
        };
        for (file, handle) in &touched {
            journal.runs().filter(|(id, _)| id.file == *file).try_for_each(|(id, bytes)| handle.write_at(id.offset(), bytes))?;
            handle.sync()?;
        }
        files.header.write(next)?;
        self.shown.write().overlay.uncover(journal);
        match journal.head.kind {
            StepKind::SweepEnd => {
                let merged = {
                    let mut state = self.state.write();
                    state.applied = next.applied;
                    let merged = state.frozen.take();
                    self.count_memory(&state);
                    merged
                };
                // It may be large. Free it when nobody waits for it.
                drop(merged);
                files.work = None;
                self.counters.sweeps.fetch_add(1, Ordering::Relaxed);
            }
            StepKind::GrowthEnd => {
                self.remove_table(before.generation);
                self.counters.growths.fetch_add(1, Ordering::Relaxed);
            }
            StepKind::Sweep | StepKind::Growth => {}
        }
        files.pending = None;
        Ok(())
    }
}
