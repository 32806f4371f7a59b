//! One partition: its pages, and the log's changes beyond them.
//!
//! Three sources make up a chunk's entry. They are its page, then the *frozen* changes, which a sweep is merging into
//! the pages, then the *active* ones.
//!
//! A lookup (`lookup.rs`) takes both kinds of changes at one instant and then reads the page. The page says up to which
//! position it is applied, so the lookup knows what it already has. A page at the sweep's target has the frozen
//! changes. If the page is beyond the target, a later sweep has passed, and the lookup takes the changes again.

use super::auxiliary::{Auxiliary, Change, SORTED_BYTES};
use super::filter::{PageRecord, Stamp};
use super::header::{Header, HeaderFile};
use super::journal::Journal;
use super::page::{PAGE_BYTES, Page, encode_page};
use super::pages::{self, Memory, PageFile, Shape};
use super::{Counters, IndexEntry};
use crate::paged::JournalFile;
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The fixed cost of a sweep, in pages.
const SWEEP_PAGES: f64 = 64.0;
/// `log2` of the pages of a new partition.
const FIRST_PAGE_BITS: u32 = 1;

/// A partition of the chunk index.
#[derive(Debug)]
pub(super) struct Partition {
    pub ground: Arc<dyn Ground>,
    pub directory: String,
    pub access: Access,
    pub state: RwLock<State>,
    /// Memory of the changes, as counted in [`Counters::auxiliary_bytes`].
    pub memory_bytes: AtomicUsize,
    /// Held by the sweep.
    pub files: Arc<Mutex<Files>>,
    /// The last sweep failed: other partitions come first.
    pub failed: AtomicBool,
    pub counters: Arc<Counters>,
}

/// How a partition is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub access: Access,
    /// The owner's epoch.
    pub epoch: u64,
    pub memory: Memory,
}

/// The state that lookups see.
#[derive(Debug)]
pub(super) struct State {
    pub pages: Arc<PageFile>,
    pub active: Auxiliary,
    pub frozen: Option<Frozen>,
    /// All pages are applied up to here, durably.
    pub applied: u64,
    /// The end of the last batch applied in memory.
    pub last: u64,
    /// Entries in pages.
    pub entries: u64,
}

/// The changes of an unfinished sweep.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    pub changes: Arc<Auxiliary>,
    /// The position up to which they go.
    pub target: u64,
    /// Pages before this one have them durably.
    pub progress: u32,
}

/// The current sweep, in memory.
#[derive(Debug)]
pub(super) struct Work {
    pub target: u64,
    /// The changes in order.
    pub order: Arc<Vec<u32>>,
    /// Expected entries in pages after the sweep, as far as the filter can tell.
    pub expected_entries: u64,
    /// Pages written.
    pub written: u64,
}

/// Parts that only the sweep touches.
#[derive(Debug)]
pub(super) struct Files {
    pub header: HeaderFile,
    pub journal: JournalFile,
    /// The stamp of the saved filter, if it matches the pages.
    pub saved_filter: Option<Stamp>,
    /// The partition has gone, and its files with it.
    pub is_removed: bool,
    /// A step failed. The next one first finds out what is on the device.
    pub has_failed: bool,
    /// The sweep under way.
    pub work: Option<Work>,
}

impl Files {
    /// Frees the journal's space, unless it is still needed.
    pub fn release_journal(&mut self) {
        if !self.has_failed && !self.header.is_in_doubt() {
            self.journal.release();
        }
    }
}

impl Partition {
    /// Creates an empty partition in an existing directory.
    pub fn create(ground: &dyn Ground, directory: &str, shape: Shape, partition: u32) -> Result<()> {
        let shape = Shape::whole(0, shape.partition_bits, FIRST_PAGE_BITS, shape.digest_bytes);
        let mut bytes = Vec::new();
        for page in 0..shape.pages() as u32 {
            encode_page(&mut bytes, shape.place(page), 0, 0, &[]);
        }
        let file = ground.create(&format!("{directory}/{}", pages::FILE_NAME))?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        JournalFile::create(ground, &format!("{directory}/journal"))?;
        let header = Header {
            digest_bytes: shape.digest_bytes as u8,
            partition,
            partitions: 1 << shape.partition_bits,
            epoch: 0,
            sequence: 1,
            generation: 0,
            page_bits: FIRST_PAGE_BITS,
            moved_from: 1 << FIRST_PAGE_BITS,
            applied: 0,
            entries: 0,
            target: 0,
            progress: 0,
        };
        HeaderFile::create(ground, &format!("{directory}/header"), header)?;
        ground.sync_directory(directory)?;
        Ok(())
    }

    /// Opens a partition. `shape` has the partition bits and digest length that the caller expects.
    pub fn open(
        ground: &Arc<dyn Ground>,
        directory: String,
        shape: Shape,
        partition: u32,
        opening: Opening,
        counters: &Arc<Counters>,
    ) -> Result<Partition> {
        let path = |name: &str| format!("{directory}/{name}");
        let Opening { access, epoch, memory } = opening;
        let mut header_file = HeaderFile::open(ground.as_ref(), &path("header"), access)?;
        let header = header_file.current();
        check_identity(ground.as_ref(), &path("header"), &header, shape, partition)?;
        if access == Access::ReadWrite && header.epoch > epoch {
            return Err(IndexError::Fenced { path: ground.describe(&directory), stored_epoch: header.epoch, epoch });
        }
        let shape = Shape { page_bits: header.page_bits, generation: header.generation, moved_from: header.moved_from as u32, ..shape };
        let pages_path = path(pages::FILE_NAME);
        let file = ground.open(&pages_path, access)?;
        let (found_bytes, wanted_bytes) = (file.len()?, shape.end() * PAGE_BYTES as u64);
        if found_bytes < wanted_bytes {
            let what = format!("it has {found_bytes} bytes, but its header says {wanted_bytes}");
            return Err(IndexError::ChunkIndexDamaged { path: ground.describe(&pages_path), page: None, what });
        }
        let mut pages = PageFile::new(file, ground.describe(&pages_path), shape, memory, counters.clone());
        let journal_file = JournalFile::open(ground.as_ref(), &path("journal"), access)?;
        let mut header = header;
        if let Some(mut journal) = journal_of(&journal_file, &header)? {
            if access == Access::ReadWrite {
                // Write the journal itself first: it may have come from the system's cache. If the power fails while
                // the pages are written, the device must have it.
                journal_file.write(&mut journal)?;
                pages.expect_journal(&journal)?;
                pages.write_in_place(&journal)?;
            } else {
                pages.overlay(&journal);
            }
            advance(&mut header, shape, &journal);
            pages = pages.reshaped(shape_of(&header, shape));
            pages.expect_pages(pages.shape.end());
            pages.filter.set(&records_of(&journal, &pages)?);
        }
        let stamp = stamp(&header);
        let loaded = pages.filter.load(ground.as_ref(), &path("filter"), stamp, header.progress, header.entries)?;
        if access == Access::ReadWrite {
            header_file.write(Header { epoch, ..header })?;
        }
        let frozen =
            (header.target > 0).then(|| Frozen { changes: Arc::default(), target: header.target, progress: header.progress as u32 });
        Ok(Partition {
            ground: ground.clone(),
            directory,
            access,
            state: RwLock::new(State {
                pages: Arc::new(pages),
                active: Auxiliary::default(),
                frozen,
                applied: header.applied,
                last: header.applied,
                entries: header.entries,
            }),
            files: Arc::new(Mutex::new(Files {
                header: header_file,
                journal: journal_file,
                saved_filter: loaded.then_some(stamp),
                is_removed: false,
                has_failed: false,
                work: None,
            })),
            memory_bytes: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            counters: counters.clone(),
        })
    }

    /// Applies the changes of one log batch that ends at `end`, in the order of the log. Skips what the pages already
    /// have.
    pub fn apply(
        &self,
        end: u64,
        removals: impl Iterator<Item = Fingerprint>,
        places: impl Iterator<Item = (Fingerprint, u64)>,
        inserts: impl Iterator<Item = (Fingerprint, u64)>,
        deltas: impl Iterator<Item = (Fingerprint, i64)>,
    ) {
        let mut state = self.state.write();
        let state = &mut *state;
        if end <= state.last {
            return;
        }
        state.last = end;
        let shape = state.pages.shape;
        // After an interrupted sweep the log is replayed. Up to the sweep's target, only pages that it did not reach
        // take changes.
        let (into, first_page) = match &mut state.frozen {
            Some(frozen) if end <= frozen.target => (Arc::make_mut(&mut frozen.changes), frozen.progress),
            _ => (&mut state.active, 0),
        };
        for fingerprint in removals {
            if first_page == 0 || shape.home(&fingerprint) >= first_page {
                into.remove(&fingerprint);
            }
        }
        for (fingerprint, address) in places {
            if first_page == 0 || shape.home(&fingerprint) >= first_page {
                into.place(&fingerprint, address);
            }
        }
        for (fingerprint, address) in inserts {
            if first_page == 0 || shape.home(&fingerprint) >= first_page {
                into.insert(&fingerprint, address);
            }
        }
        for (fingerprint, delta) in deltas {
            if first_page == 0 || shape.home(&fingerprint) >= first_page {
                let falls_below = into.add(&fingerprint, delta);
                self.counters.count_underflows.fetch_add(u64::from(falls_below), Ordering::Relaxed);
            }
        }
        self.count_memory(state);
    }

    /// Counts the changes' current memory.
    pub fn count_memory(&self, state: &State) {
        let bytes = state.memory_bytes();
        let before = self.memory_bytes.swap(bytes, Ordering::Relaxed);
        // Wraps if the memory has shrunk.
        self.counters.auxiliary_bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Saves the filter for the next opening, unless the saved one is as good.
    pub fn save_filter(&self, files: &mut Files) -> Result<()> {
        let header = files.header.current();
        let stamp = stamp(&header);
        if files.saved_filter != Some(stamp) {
            let pages = self.state.read().pages.clone();
            pages.filter.save(self.ground.as_ref(), &format!("{}/filter", self.directory), stamp)?;
            files.saved_filter = Some(stamp);
        }
        Ok(())
    }

    /// Returns the benefit of a sweep for its cost: changes per page written. `None`: no sweep is possible.
    pub fn yield_of_sweep(&self) -> Option<f64> {
        let state = self.state.read();
        let (changes, can_sweep) = match &state.frozen {
            Some(frozen) => (frozen.changes.len(), state.last >= frozen.target),
            None => (state.active.len(), !state.active.is_empty()),
        };
        let (changes, pages) = (changes as f64, state.pages.shape.pages() as f64);
        // Fingerprints are uniform: this many pages have at least one change.
        let written = pages * (1.0 - (-changes / pages).exp());
        (can_sweep && self.access == Access::ReadWrite).then(|| changes / (written + SWEEP_PAGES))
    }
}

impl State {
    /// Returns the memory of the changes.
    pub fn memory_bytes(&self) -> usize {
        let frozen = self.frozen.as_ref().map(|frozen| frozen.changes.bytes() + frozen.changes.len() * SORTED_BYTES);
        self.active.bytes() + frozen.unwrap_or(0)
    }

    /// Returns the position up to which pages may be applied. All active changes are after it.
    pub fn floor(&self) -> u64 {
        self.frozen.as_ref().map_or(self.applied, |frozen| frozen.target)
    }
}

/// Combines page and log into the entry.
pub(super) fn resolve(page: Option<IndexEntry>, frozen: Option<Change>, active: Option<Change>) -> Option<IndexEntry> {
    [frozen, active].into_iter().flatten().fold(page, |entry, change| change.apply(entry).0)
}

/// Reads both pages of a pair as of one time.
pub(super) fn read_pair<'a>(pages: &PageFile, left: u32, buffer: &'a mut Vec<u8>) -> Result<(Page<'a>, Page<'a>)> {
    pages.read_run(left, 2, buffer)?;
    Ok((pages.decode(left, &buffer[..PAGE_BYTES])?, pages.decode(left + 1, &buffer[PAGE_BYTES..])?))
}

/// Returns where the pages lie, according to the header.
pub(super) fn shape_of(header: &Header, shape: Shape) -> Shape {
    Shape { generation: header.generation, page_bits: header.page_bits, moved_from: header.moved_from as u32, ..shape }
}

/// Returns the header after the pages from `to` on have moved. `shape` is the current one.
pub(super) fn moved(header: &Header, shape: Shape, to: u32) -> Header {
    let next = shape.moved(to);
    let progress = shape.moved_progress(header.progress, to);
    Header { generation: next.generation, page_bits: next.page_bits, moved_from: u64::from(next.moved_from), progress, ..*header }
}

/// Returns the stamp for saving a filter of these pages.
fn stamp(header: &Header) -> Stamp {
    Stamp { generation: header.generation, moved_from: header.moved_from as u32, applied: header.applied }
}

/// Returns the journal if it belongs to the work under way according to the header. That is the sweep, or the last step
/// of growth, which nothing else announces.
fn journal_of(file: &JournalFile, header: &Header) -> Result<Option<Journal>> {
    let journal: Option<Journal> = file.read()?;
    Ok(journal.filter(|journal| {
        let head = journal.head;
        let is_of_sweep = header.target != 0
            && head.target == header.target
            && head.progress <= header.end()
            && head.progress % 2 == 0
            && journal.pages().all(|(page, _)| u64::from(page) < head.progress);
        let is_of_growth = head.is_growth && journal.len() as u64 == 2 * header.moved_from;
        head.generation == header.generation
            && u64::from(head.moved_from) == header.moved_from
            && (is_of_growth || !head.is_growth && is_of_sweep)
    }))
}

/// Makes the filter's records for a journal's pages, which are in place in `pages`.
pub(super) fn records_of(journal: &Journal, pages: &PageFile) -> Result<Vec<(u32, PageRecord)>> {
    journal.pages().map(|(number, bytes)| Ok((number, PageRecord::of(&pages.decode(number, bytes)?)))).collect()
}

/// Advances the header past an applied journal.
fn advance(header: &mut Header, shape: Shape, journal: &Journal) {
    if journal.head.is_growth {
        *header = moved(header, shape, 0);
    } else if journal.head.progress > header.progress {
        header.progress = journal.head.progress;
        header.entries = header.entries.saturating_add_signed(i64::from(journal.head.added_entries));
    }
}

impl Partition {
    /// Finds out what is on the device after a failed step: repeats a journal whose pages may be half in place.
    pub fn recover(&self, files: &mut Files) -> Result<()> {
        files.header.settle()?;
        let mut header = files.header.current();
        let pages = self.state.read().pages.clone();
        let Some(mut journal) = journal_of(&files.journal, &header)? else {
            // Pages of the next generation are in place, and after a crash only the journal could say so.
            let is_ahead = pages.shape != shape_of(&header, pages.shape);
            return if is_ahead { Err(pages.lost_journal(0)) } else { pages.nothing_in_memory() };
        };
        files.journal.write(&mut journal)?;
        let shape = shape_of(&header, pages.shape);
        advance(&mut header, shape, &journal);
        if journal.head.is_growth {
            return self.finish_growth(files, header, &journal);
        }
        pages.write_in_place(&journal)?;
        pages.filter.set(&records_of(&journal, &pages)?);
        files.header.write(header)?;
        let mut state = self.state.write();
        state.entries = header.entries;
        if let Some(frozen) = &mut state.frozen {
            frozen.progress = header.progress as u32;
        }
        Ok(())
    }
}

fn check_identity(ground: &dyn Ground, path: &str, header: &Header, shape: Shape, partition: u32) -> Result<()> {
    let expected = [
        ("bytes of a digest", u64::from(header.digest_bytes), shape.digest_bytes as u64),
        ("number of partitions", u64::from(header.partitions), 1 << shape.partition_bits),
        ("partition number", u64::from(header.partition), u64::from(partition)),
    ];
    match expected.into_iter().find(|(_, found, expected)| found != expected) {
        Some((what, found, expected)) => Err(IndexError::Mismatch { path: ground.describe(path), what, found, expected }),
        None => Ok(()),
    }
}
