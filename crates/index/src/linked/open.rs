//! Creating and opening a linked index.

use super::grow::{pages_of, unit_pages, write_empty};
use super::header::{Header, Journal, MAX_SLOTS_BITS, MIN_SLOTS_BITS, StepKind, Table};
use super::page::{Layout, PagedFile};
use super::pages::Shown;
use super::sweep::{Frozen, Pending};
use super::{Counters, Files, LinkedHeader, LinkedIndex, LinkedOptions, LinkedShape, State};
use crate::paged::{HeaderContent, HeaderFile, JournalFile, Overlay, PAGE_BYTES};
use crate::{IndexError, Result};
use onefold_ground::{Access, File, Ground};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

impl LinkedIndex {
    /// Creates an empty index, durable on return.
    pub fn create(ground: &Arc<dyn Ground>, directory: &str, shape: LinkedShape) -> Result<()> {
        let LinkedShape { digest_bytes, slots_bits: bits, .. } = shape;
        let mismatch = |what, found, expected| Err(IndexError::Mismatch { path: ground.describe(directory), what, found, expected });
        if !(16..=32).contains(&digest_bytes) {
            return mismatch("bytes of a digest", digest_bytes as u64, 32);
        }
        if !(MIN_SLOTS_BITS..=MAX_SLOTS_BITS).contains(&bits) {
            return mismatch("log2 of the number of slots", bits.into(), MAX_SLOTS_BITS.into());
        }
        ground.create_directory(directory)?;
        let layout = Layout::of(&shape);
        let table = Table { generation: 0, bits };
        for (file, pages) in [(PagedFile::Slots(0), pages_of(&layout, table)), (PagedFile::Blocks, 0), (PagedFile::Units, 0)] {
            let created = ground.create(&format!("{directory}/{file}"))?;
            if pages > 0 {
                write_empty(created.as_ref(), file, 0..pages)?;
            }
        }
        JournalFile::create(ground.as_ref(), &format!("{directory}/journal"))?;
        let header = Header {
            layout,
            epoch: 0,
            sequence: 1,
            step: 0,
            generation: 0,
            bits,
            grown: 0,
            entries: 0,
            lost: 0,
            early: 0,
            blocks: 0,
            applied: 0,
            target: 0,
            progress: 0,
        };
        HeaderFile::create(ground.as_ref(), &format!("{directory}/header"), header)?;
        Ok(ground.sync_directory(directory)?)
    }

    /// Returns the valid headers among the bytes of a header file.
    pub fn read_headers(bytes: &[u8]) -> Vec<LinkedHeader> {
        let valid = bytes.chunks(PAGE_BYTES).filter_map(|slot| Header::decode(slot).ok());
        valid.map(|header| LinkedHeader { epoch: header.epoch, applied: header.applied, target: header.target }).collect()
    }

    /// Opens an index and ends an interrupted step. The caller must then [apply](LinkedIndex::apply_batch) the log from
    /// [`LinkedIndex::position`] on. With [`Access::Read`] it never writes, and the epoch does not matter. Otherwise it
    /// refuses an index that a later owner has opened.
    pub fn open(
        ground: &Arc<dyn Ground>,
        directory: &str,
        epoch: u64,
        digest_bytes: usize,
        options: LinkedOptions,
        access: Access,
    ) -> Result<LinkedIndex> {
        let path = |name: &str| format!("{directory}/{name}");
        let header_file = HeaderFile::<Header>::open(ground.as_ref(), &path("header"), access)?;
        let header = header_file.current();
        if header.layout.digest_bytes != digest_bytes {
            let (found, expected) = (header.layout.digest_bytes as u64, digest_bytes as u64);
            return Err(IndexError::Mismatch { path: ground.describe(&path("header")), what: "bytes of a digest", found, expected });
        }
        if access == Access::ReadWrite && header.epoch > epoch {
            return Err(IndexError::Fenced { path: ground.describe(directory), stored_epoch: header.epoch, epoch });
        }
        let journal_file = JournalFile::open(ground.as_ref(), &path("journal"), access)?;
        let journal = journal_of(&journal_file, &header)?;
        let is_growing = header.grown > 0 || journal.as_ref().is_some_and(|journal| is_of_growth(journal.head.kind));
        let open = |file: PagedFile, pages: u64| open_file(ground.as_ref(), directory, file, pages, access);
        let table = |table: Table| open(PagedFile::Slots(table.generation), pages_of(&header.layout, table));
        let shown = Shown {
            header,
            blocks: open(PagedFile::Blocks, header.blocks / header.layout.blocks_per_page())?,
            units: open(PagedFile::Units, unit_pages(header.blocks))?,
            slots: table(header.table())?,
            next: if is_growing { Some(table(header.next_table())?) } else { None },
            overlay: Overlay::default(),
            path: ground.describe(directory),
        };
        let files = Files { header: header_file, journal: journal_file, pending: None, work: None, made: None, has_grown: false };
        let mut index = LinkedIndex {
            ground: ground.clone(),
            directory: directory.to_owned(),
            access,
            options,
            files: Mutex::new(files),
            shown: RwLock::new(shown),
            state: RwLock::default(),
            counters: Counters::default(),
        };
        let header = index.repeat(journal)?;
        let frozen = Frozen { memory: Arc::default(), target: header.target, replayed_from: header.progress };
        *index.state.get_mut() =
            State { frozen: (header.target > 0).then_some(frozen), applied: header.applied, last: header.applied, ..State::default() };
        if access == Access::ReadWrite {
            index.files.get_mut().header.write(Header { epoch, ..header })?;
            index.shown.get_mut().header.epoch = epoch;
            index.remove_other_tables(&header)?;
        }
        Ok(index)
    }

    /// Ends the step of a journal. Returns the header after it.
    fn repeat(&mut self, journal: Option<Journal>) -> Result<Header> {
        let files = self.files.get_mut();
        let Some(journal) = journal else { return Ok(files.header.current()) };
        if self.access == Access::Read {
            let next = files.header.current().after(&journal.head);
            self.shown.get_mut().show(next, &journal);
            return Ok(next);
        }
        // Write the journal itself first: it may have come from the system's cache. If the power fails while the pages
        // are written, the device must have it.
        files.pending = Some(Pending { journal, is_journalled: false });
        let mut files = self.files.lock();
        self.finish(&mut files)?;
        Ok(files.header.current())
    }

    /// Removes tables that the header does not name: an old one, or one that was being made.
    fn remove_other_tables(&self, header: &Header) -> Result<()> {
        let mut named = vec![PagedFile::Slots(header.generation).to_string()];
        if header.grown > 0 {
            named.push(PagedFile::Slots(header.generation + 1).to_string());
        }
        for entry in self.ground.list(&self.directory)? {
            if entry.name.starts_with("slots-") && !named.contains(&entry.name) {
                self.ground.remove(&format!("{}/{}", self.directory, entry.name))?;
                self.ground.sync_directory(&self.directory)?;
            }
        }
        Ok(())
    }
}

fn is_of_growth(kind: StepKind) -> bool {
    matches!(kind, StepKind::Growth | StepKind::GrowthEnd)
}

/// Returns the journal if it is of the step after the header's.
fn journal_of(file: &JournalFile, header: &Header) -> Result<Option<Journal>> {
    let journal: Option<Journal> = file.read()?;
    Ok(journal.filter(|journal| {
        let head = journal.head;
        let is_of_sweep = header.target != 0 && head.target == header.target;
        head.step == header.step + 1 && head.generation == u32::from(header.generation) && (is_of_growth(head.kind) || is_of_sweep)
    }))
}

fn open_file(ground: &dyn Ground, directory: &str, file: PagedFile, pages: u64, access: Access) -> Result<Arc<dyn File>> {
    let path = format!("{directory}/{file}");
    let opened = ground.open(&path, access)?;
    let (found_bytes, wanted_bytes) = (opened.len()?, pages * PAGE_BYTES as u64);
    if found_bytes < wanted_bytes {
        let what = format!("it has {found_bytes} bytes, but its header says {wanted_bytes}");
        return Err(IndexError::LinkedIndexDamaged { path: ground.describe(&path), page: None, what });
    }
    Ok(opened)
}
