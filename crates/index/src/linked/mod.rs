//! The linked index: fingerprint -> block, note and usage count, with hardly any memory (M1.2 to M1.8, M1.13, M1.14).
//!
//! It is the index of ext4fs+dedup: complete, and on disk only. A *hash table* of linked families leads from a
//! fingerprint to a block. The *deduplication information area* (here: the area) leads from a block to its fingerprint
//! and count. Both are paged. A view of the operations log like the chunk index: changes of the log that are not yet in
//! pages stay in memory, and a sweep brings them there. There is no other cache: the page cache of the system is the
//! cache.
//!
//! Invariants:
//! * A lookup returns the result of all batches applied so far, whichever of them are in pages.
//! * A chunk has one record in the table and one in the area, and each leads to the other. No block has two chunks.
//! * [`LinkedIndex::position`] covers only what is durable in the pages. The log has the rest.
//! * A change of a count takes effect exactly once, however often sweeps are interrupted (`sweep.rs` has the argument).
//! * A step of background work takes as long as some pages take, and no longer. This includes growth.
//! * A damaged page gives an error that names it, never an answer.
//!
//! The files:
//! * `page.rs`, `header.rs`: what is on disk. `pages.rs`: what readers see of it.
//! * `family.rs`: lists of records. `step.rs`: their changes.
//! * `changes.rs`: memory. `lookup.rs`: lookups, and blocks with their chunks.
//! * `sweep.rs`, `grow.rs`: bringing changes into pages. `open.rs`: creating and opening.
//! * `verify.rs`: checks.

mod changes;
mod counted;
mod family;
mod grow;
mod header;
mod held;
mod lookup;
mod open;
mod page;
mod pages;
mod step;
mod sweep;
mod verify;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod family_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trials;

use crate::paged::{HeaderFile, JournalFile};
use crate::{IndexError, Result};
use changes::Memory;
use header::Header;
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground};
use onefold_oplog::Position;
use pages::Shown;
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use step::Figures;
use sweep::{Frozen, Pending, Work};

pub use lookup::BlockEntry;
pub use verify::{LinkedDamage, LinkedPlace, VerifiedPiece};

/// Blocks of a unit: whoever allocates blocks asks how many of them are used.
pub const UNIT_BLOCKS: u64 = 1 << 16;
/// The address of a block is its number and this. So no address of a block is 0, and none is an address in a container.
pub const FIRST_ADDRESS: u64 = 1 << 16;
/// Block numbers are below this.
const MAX_BLOCKS: u64 = 1 << 44;
/// Notes are below this.
const MAX_NOTE: u32 = 1 << 24;

/// Bits of the fingerprint in a record of the hash table. They save reads of the area (M1.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tag {
    /// Four bits, which the status has left.
    #[default]
    Status,
    /// These four and four bytes more.
    Big,
}

/// Where the fingerprint is (M1.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dia {
    /// Fingerprint, count and note are in the area. The paper chose this.
    #[default]
    Large,
    /// They are in the record of the hash table, and the area leads back to that.
    Slim,
}

impl fmt::Display for Tag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Tag::Status => "status",
            Tag::Big => "big",
        })
    }
}

impl FromStr for Tag {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Tag, String> {
        [Tag::Status, Tag::Big].into_iter().find(|tag| tag.to_string() == text).ok_or_else(|| format!("`{text}` is no tag: status or big"))
    }
}

impl fmt::Display for Dia {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Dia::Large => "large",
            Dia::Slim => "slim",
        })
    }
}

impl FromStr for Dia {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Dia, String> {
        [Dia::Large, Dia::Slim].into_iter().find(|dia| dia.to_string() == text).ok_or_else(|| format!("`{text}` is no area: large or slim"))
    }
}

/// What an index looks like on disk. It never changes, but for the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedShape {
    /// Bytes of a digest, 16 to 32.
    pub digest_bytes: usize,
    /// The kind of tag.
    pub tag: Tag,
    /// The kind of area.
    pub dia: Dia,
    /// `log2` of the number of slots at first, 4 to 44.
    pub slots_bits: u32,
}

/// How far an index has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedHeader {
    /// The owner epoch of its writer.
    pub epoch: u64,
    /// All of it has the log up to here.
    pub applied: u64,
    /// Some of it has the log up to here; 0: no more of it.
    pub target: u64,
}

/// How the linked index uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedOptions {
    /// Bound of the changes in memory, bytes. At three quarters of it the index wants a sweep. Above it,
    /// [`LinkedIndex::is_over_limit`] asks writers to wait.
    pub auxiliary_bytes: usize,
}

impl Default for LinkedOptions {
    fn default() -> LinkedOptions {
        LinkedOptions { auxiliary_bytes: 4 << 20 }
    }
}

/// The index's entry for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedEntry {
    /// Its address: the block number and [`FIRST_ADDRESS`]. 0: the chunk is lost.
    pub address: u64,
    /// The caller's 24 bits. They came with the block.
    pub note: u32,
    /// Number of references. `u32::MAX` stays: the true count is no longer known.
    pub count: u32,
}

/// One log batch's changes to chunks. They take effect in the order of the fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkedBatch<'a> {
    /// Chunks that are no longer stored: their entries go.
    pub removals: &'a [Fingerprint],
    /// Chunks with a new address and note, or with none (0). Their counts stay. A chunk without an address is lost: it
    /// keeps its block until it gets another, or until nothing refers to it.
    pub places: &'a [(Fingerprint, u64, u32)],
    /// Newly stored chunks, their addresses (never 0) and notes.
    pub inserts: &'a [(Fingerprint, u64, u32)],
    /// Changes of counts. A chunk that is neither known nor inserted before the next sweep has nowhere to keep a count.
    pub deltas: &'a [(Fingerprint, i64)],
}

/// Figures of the index. Counters start at opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkedStatistics {
    /// Chunks in pages.
    pub entries: u64,
    /// Lost ones among them.
    pub lost: u64,
    /// Slots of the hash table, without those of the next generation.
    pub slots: u64,
    /// Blocks that the area has room for.
    pub blocks: u64,
    /// Chunks with changes in memory.
    pub auxiliary_entries: u64,
    /// Memory of these changes.
    pub auxiliary_bytes: u64,
    /// Pages read.
    pub page_reads: u64,
    /// Changes that sweeps brought into pages.
    pub swept_changes: u64,
    /// Pages that sweeps wrote. The more changes per page, the better.
    pub sweep_page_writes: u64,
    /// Pages that growth wrote.
    pub growth_page_writes: u64,
    /// Sweeps.
    pub sweeps: u64,
    /// Doublings of the hash table.
    pub growths: u64,
    /// Counts that would have fallen below zero. Some references are wrong; `check` finds them.
    pub count_underflows: u64,
    /// Changes of counts of chunks that have no block. They are dropped.
    pub orphan_deltas: u64,
    /// Slots read by lookups and sweeps, as the paper counts accesses (M1.6).
    pub slot_reads: u64,
    /// Slots written.
    pub slot_writes: u64,
    /// Records of the area read.
    pub area_reads: u64,
    /// Records of the area written.
    pub area_writes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    /// Memory of all changes.
    auxiliary_bytes: AtomicUsize,
    page_reads: AtomicU64,
    swept_changes: AtomicU64,
    sweep_page_writes: AtomicU64,
    growth_page_writes: AtomicU64,
    sweeps: AtomicU64,
    growths: AtomicU64,
    count_underflows: AtomicU64,
    orphan_deltas: AtomicU64,
    /// Slots read and written, records of the area read and written.
    accesses: [AtomicU64; 4],
}

impl Counters {
    fn add(&self, figures: &Figures) {
        self.page_reads.fetch_add(figures.page_reads, Ordering::Relaxed);
        self.count_underflows.fetch_add(figures.underflows, Ordering::Relaxed);
        self.orphan_deltas.fetch_add(figures.orphans, Ordering::Relaxed);
        for (counter, accesses) in self.accesses.iter().zip(figures.accesses) {
            counter.fetch_add(accesses, Ordering::Relaxed);
        }
    }
}

/// The log's changes beyond the pages.
#[derive(Clone, Debug, Default)]
struct State {
    active: Memory,
    frozen: Option<Frozen>,
    /// All pages are applied up to here, durably.
    applied: u64,
    /// The end of the last batch applied in memory.
    last: u64,
}

/// Parts that only the sweep touches.
#[derive(Debug)]
struct Files {
    header: HeaderFile<Header>,
    journal: JournalFile,
    /// A step that has not ended. It must end before anything else is written.
    pending: Option<Pending>,
    /// The sweep under way.
    work: Option<Work>,
    /// The table of the next generation while it is made.
    made: Option<grow::Made>,
    /// The last step was one of growth: now it is the sweep's turn.
    has_grown: bool,
}

/// The open linked index.
///
/// Locks, in this order: `files` (one step at a time), `shown` (pages stay as they are while somebody walks), `state`.
#[derive(Debug)]
pub struct LinkedIndex {
    ground: Arc<dyn Ground>,
    directory: String,
    access: Access,
    options: LinkedOptions,
    files: Mutex<Files>,
    shown: RwLock<Shown>,
    state: RwLock<State>,
    counters: Counters,
}

impl LinkedIndex {
    /// Applies one batch of the log that ends at `end`. Batches must come in the order of the log, from one thread, and
    /// only once they are durable there. Skips what the pages already have, so a replay may start at or before
    /// [`LinkedIndex::position`].
    ///
    /// No two chunks may have the same block after a batch. A new address of a known chunk replaces the old one and
    /// keeps the count. Errors: an address or a note is out of range. Then nothing was applied.
    pub fn apply_batch(&self, end: Position, batch: LinkedBatch<'_>) -> Result<()> {
        for (_, address, note) in batch.places.iter().chain(batch.inserts) {
            self.check_place(*address, *note)?;
        }
        let mut guard = self.state.write();
        let state = &mut *guard;
        if end.0 <= state.last {
            return Ok(());
        }
        state.last = end.0;
        // After an interrupted sweep the log is replayed. Up to the sweep's target, only chunks that it did not reach
        // take changes.
        let (into, from) = match &mut state.frozen {
            Some(frozen) if end.0 <= frozen.target => (Arc::make_mut(&mut frozen.memory), frozen.replayed_from),
            _ => (&mut state.active, 0),
        };
        let is_wanted = |fingerprint: &Fingerprint| fingerprint.prefix() >= from;
        batch.removals.iter().filter(|fingerprint| is_wanted(fingerprint)).for_each(|fingerprint| into.remove(fingerprint));
        for (fingerprint, address, note) in batch.places.iter().chain(batch.inserts).filter(|(fingerprint, ..)| is_wanted(fingerprint)) {
            into.place(fingerprint, address.checked_sub(FIRST_ADDRESS).map(|block| (block, *note)));
        }
        for (fingerprint, delta) in batch.deltas.iter().filter(|(fingerprint, _)| is_wanted(fingerprint)) {
            let falls_below = into.add(fingerprint, *delta);
            self.counters.count_underflows.fetch_add(u64::from(falls_below), Ordering::Relaxed);
        }
        self.count_memory(state);
        Ok(())
    }

    fn check_place(&self, address: u64, note: u32) -> Result<()> {
        let mismatch = |what, found, expected| Err(IndexError::Mismatch { path: self.path(), what, found, expected });
        if address != 0 && !(FIRST_ADDRESS..FIRST_ADDRESS + MAX_BLOCKS).contains(&address) {
            return mismatch("address of a block", address, FIRST_ADDRESS);
        }
        if note >= MAX_NOTE { mismatch("note of a block", note.into(), (MAX_NOTE - 1).into()) } else { Ok(()) }
    }

    /// Returns the position before which everything is durable in pages. The log may be trimmed up to here, and a
    /// replay starts here.
    pub fn position(&self) -> Position {
        Position(self.state.read().applied)
    }

    /// Returns the position that the log must reach: some pages are applied up to it. A log that ends before it has
    /// lost its tail.
    pub fn required_end(&self) -> Position {
        let state = self.state.read();
        Position(state.frozen.as_ref().map_or(state.applied, |frozen| frozen.target))
    }

    /// Returns whether to call [`LinkedIndex::step`].
    pub fn wants_sweep(&self) -> bool {
        self.access == Access::ReadWrite && self.memory_bytes() > self.options.auxiliary_bytes / 4 * 3 && self.can_sweep()
    }

    fn can_sweep(&self) -> bool {
        let state = self.state.read();
        state.frozen.as_ref().is_none_or(|frozen| state.last >= frozen.target)
    }

    /// Returns whether the changes are over their bound, so that writers should wait for a sweep. Takes no lock.
    pub fn is_over_limit(&self) -> bool {
        self.memory_bytes() > self.options.auxiliary_bytes
    }

    fn memory_bytes(&self) -> usize {
        self.counters.auxiliary_bytes.load(Ordering::Relaxed)
    }

    /// Counts the changes' current memory.
    fn count_memory(&self, state: &State) {
        let bytes = state.active.bytes() + state.frozen.as_ref().map_or(0, Frozen::bytes);
        self.counters.auxiliary_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Frees the journal's space. Call it last, before dropping the index.
    pub fn close(&self) -> Result<()> {
        let files = self.files.lock();
        if self.access == Access::ReadWrite && files.pending.is_none() && !files.header.is_in_doubt() {
            files.journal.release();
        }
        Ok(())
    }

    /// Returns the figures.
    pub fn statistics(&self) -> LinkedStatistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let Header { entries, lost, bits, blocks, .. } = self.shown.read().header;
        let auxiliary_entries = {
            let state = self.state.read();
            (state.active.changes.len() + state.frozen.as_ref().map_or(0, |frozen| frozen.memory.changes.len())) as u64
        };
        let [slot_reads, slot_writes, area_reads, area_writes] = std::array::from_fn(|kind| get(&counters.accesses[kind]));
        LinkedStatistics {
            entries,
            lost,
            slots: 1 << bits,
            blocks,
            auxiliary_entries,
            auxiliary_bytes: self.memory_bytes() as u64,
            page_reads: get(&counters.page_reads),
            swept_changes: get(&counters.swept_changes),
            sweep_page_writes: get(&counters.sweep_page_writes),
            growth_page_writes: get(&counters.growth_page_writes),
            sweeps: get(&counters.sweeps),
            growths: get(&counters.growths),
            count_underflows: get(&counters.count_underflows),
            orphan_deltas: get(&counters.orphan_deltas),
            slot_reads,
            slot_writes,
            area_reads,
            area_writes,
        }
    }

    fn path(&self) -> String {
        self.ground.describe(&self.directory)
    }
}
