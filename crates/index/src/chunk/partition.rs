//! One partition: its pages, and what the log says beyond them.
//!
//! A chunk's entry is its page, then the *frozen* changes (those a sweep is merging into the pages), then the *active* ones. A lookup (`lookup.rs`) takes
//! both kinds of changes at one instant and reads the page after it. The page says up to which position it is applied, so the lookup
//! knows what the page already has: at the sweep's target, it has the frozen changes; beyond it, a later sweep has passed and
//! the lookup takes the changes again.

use super::auxiliary::{Auxiliary, Change, SORTED_BYTES};
use super::filter::{PageRecord, Stamp};
use super::grow;
use super::header::{Header, HeaderFile};
use super::journal::{Journal, JournalFile};
use super::page::{PAGE_BYTES, Page, encode_page};
use super::pages::{self, Memory, PageFile, Shape};
use super::sweep::Work;
use super::{Counters, IndexEntry};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What a sweep costs beside its pages, in pages.
const SWEEP_PAGES: f64 = 64.0;
/// Pages of a new partition, `log2`.
const FIRST_PAGE_BITS: u32 = 1;

/// A partition of the chunk index.
#[derive(Debug)]
pub(super) struct Partition {
    pub ground: Arc<dyn Ground>,
    pub directory: String,
    pub access: Access,
    pub state: RwLock<State>,
    /// Of the changes, as [`Counters::auxiliary_bytes`] counts it.
    memory_bytes: AtomicUsize,
    /// Held by the sweep.
    pub files: Mutex<Files>,
    /// The last sweep failed: others come first.
    pub failed: AtomicBool,
    pub counters: Arc<Counters>,
}

/// How a partition is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub access: Access,
    /// The owner's.
    pub epoch: u64,
    pub memory: Memory,
}

/// What lookups see.
#[derive(Debug)]
pub(super) struct State {
    pub pages: Arc<PageFile>,
    pub active: Auxiliary,
    pub frozen: Option<Frozen>,
    /// All pages are applied up to here, durably.
    pub applied: u64,
    /// The end of the last batch that was applied in memory.
    pub last: u64,
    /// Entries in pages.
    pub entries: u64,
}

/// The changes of a sweep that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    pub changes: Arc<Auxiliary>,
    /// The position up to which they are.
    pub target: u64,
    /// Pages before it have them durably.
    pub progress: u32,
}

/// What only the sweep touches.
#[derive(Debug)]
pub(super) struct Files {
    pub header: HeaderFile,
    pub journal: JournalFile,
    /// Where the saved filter belongs, if it is that of the pages.
    pub saved_filter: Option<Stamp>,
    /// A step failed: the next one finds out first what is on the device.
    pub has_failed: bool,
    /// The sweep under way.
    pub work: Option<Work>,
}

impl Files {
    /// Gives the journal's room back, unless it is still needed.
    pub fn release_journal(&mut self) {
        if !self.has_failed && !self.header.is_in_doubt() {
            self.journal.release();
        }
    }
}

impl Partition {
    /// Creates an empty partition in a directory that exists.
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

    /// Opens a partition; `shape` says what the caller expects of partition bits and digest.
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
            let what = format!("it has {found_bytes} bytes, its header says {wanted_bytes}");
            return Err(IndexError::ChunkIndexDamaged { path: ground.describe(&pages_path), page: None, what });
        }
        let mut pages = PageFile::new(file, ground.describe(&pages_path), shape, memory, counters.clone());
        let journal_file = JournalFile::open(ground.as_ref(), &path("journal"), access)?;
        let mut header = header;
        if let Some(mut journal) = journal_of(&journal_file, &header)? {
            if access == Access::ReadWrite {
                // The journal itself first: it may have been read from the system's cache, and a power failure while the pages are written must
                // find it on the device.
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
            files: Mutex::new(Files {
                header: header_file,
                journal: journal_file,
                saved_filter: loaded.then_some(stamp),
                has_failed: false,
                work: None,
            }),
            memory_bytes: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            counters: counters.clone(),
        })
    }

    /// Takes the changes of one log batch that ends at `end`; in the order of the log. What the pages already have is passed over.
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
        // After an interrupted sweep the log is replayed: up to the sweep's target only for the pages that it did not reach.
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

    /// Notes what memory the changes have now.
    pub fn count_memory(&self, state: &State) {
        let bytes = state.memory_bytes();
        let before = self.memory_bytes.swap(bytes, Ordering::Relaxed);
        // Wraps where it has become less.
        self.counters.auxiliary_bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Saves the filter for the next opening, unless what is saved is as good.
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

    /// How much a sweep would give for what it costs: changes for each page that it would write. `None`: no sweep can be made.
    pub fn yield_of_sweep(&self) -> Option<f64> {
        let state = self.state.read();
        let (changes, can_sweep) = match &state.frozen {
            Some(frozen) => (frozen.changes.len(), state.last >= frozen.target),
            None => (state.active.len(), !state.active.is_empty()),
        };
        let (changes, pages) = (changes as f64, state.pages.shape.pages() as f64);
        // Fingerprints are uniform: so many pages have at least one.
        let written = pages * (1.0 - (-changes / pages).exp());
        (can_sweep && self.access == Access::ReadWrite).then(|| changes / (written + SWEEP_PAGES))
    }
}

impl State {
    /// Memory of the changes.
    pub fn memory_bytes(&self) -> usize {
        let frozen = self.frozen.as_ref().map(|frozen| frozen.changes.bytes() + frozen.changes.len() * SORTED_BYTES);
        self.active.bytes() + frozen.unwrap_or(0)
    }

    /// Pages may be applied up to here, and active changes are all after it.
    pub fn floor(&self) -> u64 {
        self.frozen.as_ref().map_or(self.applied, |frozen| frozen.target)
    }
}

/// The entry that page and log spell.
pub(super) fn resolve(page: Option<IndexEntry>, frozen: Option<Change>, active: Option<Change>) -> Option<IndexEntry> {
    [frozen, active].into_iter().flatten().fold(page, |entry, change| change.apply(entry).0)
}

/// Reads both pages of a pair as they are together at one time.
pub(super) fn read_pair<'a>(pages: &PageFile, left: u32, buffer: &'a mut Vec<u8>) -> Result<(Page<'a>, Page<'a>)> {
    pages.read_run(left, 2, buffer)?;
    Ok((pages.decode(left, &buffer[..PAGE_BYTES])?, pages.decode(left + 1, &buffer[PAGE_BYTES..])?))
}

/// Where the pages are, as the header says.
pub(super) fn shape_of(header: &Header, shape: Shape) -> Shape {
    Shape { generation: header.generation, page_bits: header.page_bits, moved_from: header.moved_from as u32, ..shape }
}

/// What a filter of these pages is saved as.
fn stamp(header: &Header) -> Stamp {
    Stamp { generation: header.generation, moved_from: header.moved_from as u32, applied: header.applied }
}

/// The journal, if it is of what the header says is under way: the sweep, or the last step of growth, which nothing else announces.
fn journal_of(file: &JournalFile, header: &Header) -> Result<Option<Journal>> {
    let journal = file.read()?;
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

/// What the filter knows of a journal's pages, which are in place in `pages`.
pub(super) fn records_of(journal: &Journal, pages: &PageFile) -> Result<Vec<(u32, PageRecord)>> {
    journal.pages().map(|(number, bytes)| Ok((number, PageRecord::of(&pages.decode(number, bytes)?)))).collect()
}

/// What the header says once the journal is applied.
fn advance(header: &mut Header, shape: Shape, journal: &Journal) {
    if journal.head.is_growth {
        *header = grow::moved(header, shape, 0);
    } else if journal.head.progress > header.progress {
        header.progress = journal.head.progress;
        header.entries = header.entries.saturating_add_signed(i64::from(journal.head.added_entries));
    }
}

impl Partition {
    /// Finds out, after a step that failed, what is on the device: repeats a journal whose pages may be half in place.
    pub fn recover(&self, files: &mut Files) -> Result<()> {
        files.header.settle()?;
        let mut header = files.header.current();
        let pages = self.state.read().pages.clone();
        let Some(mut journal) = journal_of(&files.journal, &header)? else {
            // Pages of the next generation are in place, and nobody but the journal could say so after a crash.
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
