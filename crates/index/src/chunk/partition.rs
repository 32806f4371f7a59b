//! One partition: its pages, and what the log says beyond them.
//!
//! A chunk's entry is its page, then the *frozen* changes (those a sweep is merging into the pages), then the *active* ones. A lookup (`lookup.rs`) takes
//! both kinds of changes at one instant and reads the page after it. The page says up to which position it is applied, so the lookup
//! knows what the page already has: at the sweep's target, it has the frozen changes; beyond it, a later sweep has passed and
//! the lookup takes the changes again.

use super::auxiliary::{Auxiliary, Change, SORTED_BYTES};
use super::filter::{PageRecord, Stamp};
use super::header::{Header, HeaderFile};
use super::journal::{Journal, JournalFile};
use super::page::{PAGE_BYTES, Page, encode_page};
use super::pages::{self, Memory, PageFile, Shape};
use super::{Counters, IndexEntry};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Pages of a new partition, `log2`.
const FIRST_PAGE_BITS: u32 = 1;

/// A partition of the chunk index.
#[derive(Debug)]
pub(super) struct Partition {
    pub ground: Arc<dyn Ground>,
    pub directory: String,
    pub access: Access,
    pub memory: Memory,
    pub state: RwLock<State>,
    /// Held by the sweep.
    pub files: Mutex<Files>,
    /// The last sweep failed: others come first.
    pub failed: AtomicBool,
    /// What [`Partition::load`] says, as of the last change of `state`.
    load: AtomicUsize,
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
}

impl Partition {
    /// Creates an empty partition in a directory that exists.
    pub fn create(ground: &dyn Ground, directory: &str, shape: Shape, partition: u32) -> Result<()> {
        let shape = Shape { page_bits: FIRST_PAGE_BITS, generation: 0, ..shape };
        let mut bytes = Vec::new();
        for page in 0..shape.pages() as u32 {
            encode_page(&mut bytes, shape.place(page), 0, 0, &[]);
        }
        let file = ground.create(&format!("{directory}/{}", pages::file_name(0)))?;
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
        let shape = Shape { page_bits: header.page_bits, generation: header.generation, ..shape };
        let pages_path = path(&pages::file_name(header.generation));
        let file = ground.open(&pages_path, access)?;
        let (found_bytes, wanted_bytes) = (file.len()?, shape.pages() * PAGE_BYTES as u64);
        if found_bytes < wanted_bytes {
            let what = format!("it has {found_bytes} bytes, its header says {wanted_bytes}");
            return Err(IndexError::ChunkIndexDamaged { path: ground.describe(&pages_path), page: None, what });
        }
        let pages = PageFile::new(file, ground.describe(&pages_path), shape, memory, counters.clone());
        let journal_file = JournalFile::open(ground.as_ref(), &path("journal"), access)?;
        let mut header = header;
        if let Some(mut journal) = journal_of_sweep(&journal_file, &header)? {
            if access == Access::ReadWrite {
                repeat_journal(&journal_file, &mut journal, &pages, &mut header)?;
            } else {
                pages.overlay(&journal);
                advance(&mut header, &journal);
            }
        }
        let stamp = Stamp { generation: header.generation, applied: header.applied };
        let loaded = pages.filter.load(ground.as_ref(), &path("filter"), stamp, header.progress, header.entries)?;
        if access == Access::ReadWrite {
            header_file.write(Header { epoch, ..header })?;
            pages::remove_others(ground.as_ref(), &directory, header.generation)?;
        }
        let frozen =
            (header.target > 0).then(|| Frozen { changes: Arc::default(), target: header.target, progress: header.progress as u32 });
        Ok(Partition {
            ground: ground.clone(),
            directory,
            access,
            memory,
            state: RwLock::new(State {
                pages: Arc::new(pages),
                active: Auxiliary::default(),
                frozen,
                applied: header.applied,
                last: header.applied,
                entries: header.entries,
            }),
            files: Mutex::new(Files { header: header_file, journal: journal_file, saved_filter: loaded.then_some(stamp) }),
            failed: AtomicBool::new(false),
            load: AtomicUsize::new(0),
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
        self.note_load(state);
    }

    /// Saves the filter for the next opening, unless what is saved is as good.
    pub fn save_filter(&self, files: &mut Files) -> Result<()> {
        let header = files.header.current();
        let stamp = Stamp { generation: header.generation, applied: header.applied };
        if files.saved_filter != Some(stamp) {
            let pages = self.state.read().pages.clone();
            pages.filter.save(self.ground.as_ref(), &format!("{}/filter", self.directory), stamp)?;
            files.saved_filter = Some(stamp);
        }
        Ok(())
    }

    /// Bytes of the auxiliary index, and whether a sweep can be made. Takes no lock.
    pub fn load(&self) -> (usize, bool) {
        let load = self.load.load(Ordering::Relaxed);
        (load / 2, load % 2 == 1)
    }

    /// For whoever has changed the active or frozen changes, before others see the state.
    pub fn note_load(&self, state: &State) {
        let frozen = state.frozen.as_ref();
        let frozen_bytes = frozen.map_or(0, |frozen| frozen.changes.bytes() + frozen.changes.len() * SORTED_BYTES);
        let can_sweep = match frozen {
            Some(frozen) => state.last >= frozen.target,
            None => !state.active.is_empty(),
        };
        let can_sweep = can_sweep && self.access == Access::ReadWrite;
        self.load.store((state.active.bytes() + frozen_bytes) * 2 + usize::from(can_sweep), Ordering::Relaxed);
    }
}

impl State {
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

/// The journal, if it is of the sweep that the header says is under way.
fn journal_of_sweep(file: &JournalFile, header: &Header) -> Result<Option<Journal>> {
    if header.target == 0 {
        return Ok(None);
    }
    let journal = file.read()?;
    Ok(journal.filter(|journal| {
        let head = journal.head;
        head.generation == header.generation
            && head.target == header.target
            && head.progress <= header.pages()
            && head.progress % 2 == 0
            && journal.pages().all(|(page, _)| u64::from(page) < head.progress)
    }))
}

/// Writes the journal's pages in place once more. The journal itself first: it may have been read from the system's cache, and a power
/// failure while the pages are written must find it on the device.
fn repeat_journal(file: &JournalFile, journal: &mut Journal, pages: &PageFile, header: &mut Header) -> Result<()> {
    file.write(journal)?;
    pages.write_in_place(journal)?;
    let mut records = Vec::with_capacity(journal.len());
    for (number, bytes) in journal.pages() {
        records.push((number, PageRecord::of(&pages.decode(number, bytes)?)));
    }
    pages.filter.set(&records);
    advance(header, journal);
    Ok(())
}

/// What the header says once the journal is applied.
fn advance(header: &mut Header, journal: &Journal) {
    if journal.head.progress > header.progress {
        header.progress = journal.head.progress;
        header.entries = header.entries.saturating_add_signed(i64::from(journal.head.added_entries));
    }
}

/// Repeats a sweep's batch that may be half in place, when a sweep goes on after an error.
pub(super) fn recover(files: &mut Files, pages: &PageFile) -> Result<()> {
    let mut header = files.header.current();
    match journal_of_sweep(&files.journal, &header)? {
        Some(mut journal) => {
            repeat_journal(&files.journal, &mut journal, pages, &mut header)?;
            files.header.write(header)
        }
        None => pages.nothing_in_memory(),
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
