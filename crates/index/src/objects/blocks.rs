//! The file below redb: blocks with checksums. redb trusts what it reads, so a damaged byte must give an error before
//! it reaches redb (`docs/format.md` section 7, `docs/decisions/0012-checksums-below-redb.md`).
//!
//! redb sees 4096-byte pages. Page `n > 0` is stored in slot `n + 1` of 4608 bytes: the page and a 512-byte trailer.
//! Its header page alternates between slots 0 and 1. The valid one with the highest sequence counts.
//!
//! Invariants:
//! * At every moment one header slot is durable and untouched. A sync writes the header into the other slot, and it
//!   counts when the sync is done.
//! * Every page that the durable header leads to was synced before it. It is not overwritten before the next header is
//!   durable. This is redb's copy-on-write with two-phase commits. So nobody reads a page that a crash tore.
//! * No page has a sequence above that of the durable header plus one. So pages show when damage took the newest
//!   header. The older header must then not be used, because its pages may have been overwritten.
//! * A page that is not durable yet is read as it was written, or not at all. Linux may fail to write a page back and
//!   evict it. Until a sync reports the failure, Linux returns the page's old content, whose checksum is right. So we
//!   remember the checksums of such pages.

use onefold_ground::{Access, File, GroundError, checksum};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a redb page.
pub(super) const PAGE_BYTES: usize = 4096;
/// A stored page with its trailer: a whole number of sectors, so that no torn sector holds bytes of two pages.
const SLOT_BYTES: usize = PAGE_BYTES + 512;
/// Bytes before the checksum in a slot: page, magic, number, sequence, length.
const CHECKED_BYTES: usize = PAGE_BYTES + 32;
const MAGIC: &[u8; 8] = b"1FLDBLK1";
/// Pages per read or write.
const RUN_PAGES: usize = 64;

/// Bytes of the file that are not as they were written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    /// A page.
    #[error("the checksum of page {0} is wrong")]
    Page(u64),
    /// Both slots of the header.
    #[error("no slot of its header is valid, or the file is shorter than its header says")]
    Header,
    /// The newest header.
    #[error("its newest header is lost: page {page} is of commit {sequence}, but the header is of commit {header}")]
    Outdated {
        /// A page that is newer than the header.
        page: u64,
        /// Its sequence.
        sequence: u64,
        /// That of the header.
        header: u64,
    },
}

impl From<Damage> for io::Error {
    fn from(damage: Damage) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, damage)
    }
}

/// Wraps the ground's error and keeps its kind and text.
pub(super) fn into_io(error: GroundError) -> io::Error {
    io::Error::new(error.kind(), error)
}

/// Returns whether an error made by [`into_io`] remains on a second read.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<GroundError>()).is_some_and(GroundError::is_lasting)
}

/// Splits `offset .. offset + length` by page: page number, first byte within the page, number of bytes.
pub(super) fn by_page(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let count = (PAGE_BYTES - within).min(length - done);
        done += count;
        Some((at / PAGE_BYTES as u64, within, count))
    })
}

/// An open file of blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    file: Arc<dyn File>,
    /// Bytes that redb sees. Kept outside the header, so that no read waits for a sync.
    length: AtomicU64,
    header: Mutex<Header>,
    /// Pages written since the last sync, with their checksums.
    unsynced: RwLock<HashMap<u64, u64>>,
}

#[derive(Debug)]
struct Header {
    page: Box<[u8]>,
    /// Sequence of the newest durable header, and its slot.
    sequence: u64,
    slot: u64,
    is_dirty: bool,
}

/// Appends a page and its trailer. Returns the checksum.
fn seal(page: &[u8], number: u64, sequence: u64, length: u64, out: &mut Vec<u8>) -> u64 {
    let start = out.len();
    out.extend_from_slice(page);
    out.extend_from_slice(MAGIC);
    for field in [number, sequence, length] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    let sum = checksum(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
    out.resize(start + SLOT_BYTES, 0);
    sum
}

/// Returns the checksum in a slot.
fn checksum_of(slot: &[u8]) -> Option<u64> {
    slot.get(CHECKED_BYTES..CHECKED_BYTES + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
}

/// Returns (sequence, length) of a slot that holds page `number` intact.
fn unseal(slot: &[u8], number: u64) -> Option<(u64, u64)> {
    let field = |index: usize| {
        let start = PAGE_BYTES + 8 * index;
        slot.get(start..start + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    };
    let is_whole = slot.get(PAGE_BYTES..PAGE_BYTES + 8) == Some(MAGIC)
        && field(1) == Some(number)
        && field(4) == Some(checksum(slot.get(..CHECKED_BYTES)?));
    is_whole.then_some((field(2)?, field(3)?))
}

fn slot_offset(slot: u64) -> u64 {
    slot * SLOT_BYTES as u64
}

/// Returns the file bytes for `length` bytes of redb.
fn stored_length(length: u64) -> u64 {
    if length == 0 { 0 } else { slot_offset(length.div_ceil(PAGE_BYTES as u64) + 1) }
}

impl Blocks {
    fn with(file: Arc<dyn File>, length: u64, header: Header) -> Blocks {
        Blocks { file, length: AtomicU64::new(length), header: Mutex::new(header), unsynced: RwLock::default() }
    }

    /// Creates an empty file.
    pub(super) fn create(file: Arc<dyn File>) -> Blocks {
        let header = Header { page: vec![0; PAGE_BYTES].into(), sequence: 0, slot: 1, is_dirty: false };
        Blocks::with(file, 0, header)
    }

    /// Opens a file that has a header. For writing, it first makes the current header durable: after a failed sync it
    /// may be only in the system's cache.
    pub(super) fn open(file: Arc<dyn File>, access: Access) -> io::Result<Blocks> {
        let present = file.len().map_err(into_io)?;
        let mut newest: Option<(Header, u64)> = None;
        let mut valid = 0;
        for slot in 0..2 {
            let mut bytes = vec![0; SLOT_BYTES];
            if slot_offset(slot + 1) > present {
                continue;
            }
            file.read_at(slot_offset(slot), &mut bytes).map_err(into_io)?;
            // If a header survived a crash but the growth before it did not, the header was never durable.
            let Some((sequence, length)) = unseal(&bytes, 0).filter(|(_, length)| is_within(*length, present)) else { continue };
            valid += 1;
            if newest.as_ref().is_none_or(|(header, _)| header.sequence < sequence) {
                bytes.truncate(PAGE_BYTES);
                newest = Some((Header { page: bytes.into(), sequence, slot, is_dirty: false }, length));
            }
        }
        let (header, length) = newest.ok_or(Damage::Header)?;
        if valid == 1 {
            prove_newest(&*file, present, header.sequence)?;
        }
        if access == Access::ReadWrite {
            write_header(&*file, &header.page, header.slot, header.sequence, length)?;
            file.sync().map_err(into_io)?;
        }
        Ok(Blocks::with(file, length, header))
    }

    /// Opens the remains of a damaged file for reading, with the newest valid header. `None`: there is none.
    pub(super) fn open_damaged(file: Arc<dyn File>) -> io::Result<Option<Blocks>> {
        let present = file.len().map_err(into_io)?;
        let mut newest: Option<(Header, u64)> = None;
        for slot in (0..2).filter(|slot| slot_offset(slot + 1) <= present) {
            let mut bytes = vec![0; SLOT_BYTES];
            match file.read_at(slot_offset(slot), &mut bytes) {
                Ok(()) => {}
                Err(error) if error.is_lasting() => continue,
                Err(error) => return Err(into_io(error)),
            }
            let Some((sequence, length)) = unseal(&bytes, 0) else { continue };
            if newest.as_ref().is_none_or(|(header, _)| header.sequence < sequence) {
                bytes.truncate(PAGE_BYTES);
                newest = Some((Header { page: bytes.into(), sequence, slot, is_dirty: false }, length));
            }
        }
        Ok(newest.map(|(header, length)| Blocks::with(file, length, header)))
    }

    /// Reads like [`Blocks::read`], but treats a page newer than the header as damaged: it belongs to a lost header.
    /// Not for the header page.
    pub(super) fn read_known(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let known = self.header.lock().sequence;
        for (page, within, count) in by_page(offset, out.len()) {
            let mut slot = vec![0; SLOT_BYTES];
            self.file.read_at(slot_offset(page + 1), &mut slot).map_err(into_io)?;
            unseal(&slot, page).filter(|(sequence, _)| *sequence <= known).ok_or(Damage::Page(page))?;
            let start = (page * PAGE_BYTES as u64 + within as u64 - offset) as usize;
            out[start..start + count].copy_from_slice(&slot[within..within + count]);
        }
        Ok(())
    }

    /// Returns the bytes that redb sees.
    pub(super) fn len(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// Fills `out` with the bytes from `offset` on and verifies every page.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.len());
        if end.is_none() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "read past the end of the object index"));
        }
        let mut out = out;
        let mut offset = offset;
        while !out.is_empty() {
            let within = (offset % PAGE_BYTES as u64) as usize;
            let page = offset / PAGE_BYTES as u64;
            if page == 0 {
                let count = out.len().min(PAGE_BYTES - within);
                let (part, rest) = out.split_at_mut(count);
                part.copy_from_slice(&self.header.lock().page[within..within + count]);
                (out, offset) = (rest, offset + count as u64);
                continue;
            }
            let count = out.len().min(RUN_PAGES * PAGE_BYTES - within);
            let (part, rest) = out.split_at_mut(count);
            self.read_run(page, within, part)?;
            (out, offset) = (rest, offset + count as u64);
        }
        Ok(())
    }

    fn read_run(&self, first: u64, within: usize, out: &mut [u8]) -> io::Result<()> {
        let mut slots = vec![0; (within + out.len()).div_ceil(PAGE_BYTES) * SLOT_BYTES];
        self.file.read_at(slot_offset(first + 1), &mut slots).map_err(into_io)?;
        let unsynced = self.unsynced.read();
        let mut done = 0;
        for (page, within, count) in by_page(first * PAGE_BYTES as u64 + within as u64, out.len()) {
            let slot = &slots[(page - first) as usize * SLOT_BYTES..][..SLOT_BYTES];
            let is_whole = unseal(slot, page).is_some();
            match unsynced.get(&page) {
                // This is no damage: the durable content is sound, and the next sync will report the failed write.
                Some(written) if !is_whole || checksum_of(slot) != Some(*written) => {
                    return Err(io::Error::other(format!("the system could not write page {page} of the object index")));
                }
                None if !is_whole => return Err(Damage::Page(page).into()),
                _ => {}
            }
            out[done..done + count].copy_from_slice(&slot[within..within + count]);
            done += count;
        }
        Ok(())
    }

    /// Writes whole pages, or a part of the header page. The header page reaches the file with the next sync.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut header = self.header.lock();
        let first = offset / PAGE_BYTES as u64;
        if first == 0 && offset as usize + data.len() <= PAGE_BYTES {
            header.page[offset as usize..offset as usize + data.len()].copy_from_slice(data);
            header.is_dirty = true;
            self.length.fetch_max(offset + data.len() as u64, Ordering::AcqRel);
            return Ok(());
        }
        if first == 0 || !offset.is_multiple_of(PAGE_BYTES as u64) || !data.len().is_multiple_of(PAGE_BYTES) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} bytes at offset {offset} are not whole pages", data.len()),
            ));
        }
        self.length.fetch_max(offset + data.len() as u64, Ordering::AcqRel);
        let sequence = header.sequence + 1;
        drop(header);
        let mut page = first;
        for run in data.chunks(RUN_PAGES * PAGE_BYTES) {
            let start = page;
            let mut slots = Vec::with_capacity(run.len() / PAGE_BYTES * SLOT_BYTES);
            for bytes in run.chunks_exact(PAGE_BYTES) {
                let sum = seal(bytes, page, sequence, 0, &mut slots);
                self.unsynced.write().insert(page, sum);
                page += 1;
            }
            self.file.write_at(slot_offset(start + 1), &slots).map_err(into_io)?;
        }
        Ok(())
    }

    /// Changes the length that redb sees. The file itself shrinks once a header with the new length is durable.
    ///
    /// redb doubles the file and then writes only the part it needs. On a full disk the rest stays a hole. So a small
    /// change may fit where the doubled file does not.
    pub(super) fn set_len(&self, length: u64) -> io::Result<()> {
        let (present, wanted) = (self.file.len().map_err(into_io)?, stored_length(length));
        if wanted > present {
            match self.file.allocate(present, wanted - present) {
                Err(error) if error.is_full() => {
                    // Free the allocated space: the pages need it.
                    self.file.set_len(present).map_err(into_io)?;
                    self.file.set_len(wanted).map_err(into_io)?;
                }
                allocated => allocated.map_err(into_io)?,
            }
        }
        self.length.store(length, Ordering::Release);
        Ok(())
    }

    /// Makes everything written durable. The header changes from old to new in one step.
    pub(super) fn sync(&self) -> io::Result<()> {
        let mut header = self.header.lock();
        if !header.is_dirty {
            self.file.sync().map_err(into_io)?;
            self.unsynced.write().clear();
            return Ok(());
        }
        let (slot, sequence) = (header.slot ^ 1, header.sequence + 1);
        let length = self.len();
        write_header(&*self.file, &header.page, slot, sequence, length)?;
        self.file.sync().map_err(into_io)?;
        self.unsynced.write().clear();
        (header.slot, header.sequence, header.is_dirty) = (slot, sequence, false);
        let wanted = stored_length(length);
        if self.file.len().map_err(into_io)? > wanted {
            self.shrink(&header, wanted)?;
        }
        Ok(())
    }

    /// Frees everything past `wanted` bytes, if the older header does not need it either.
    fn shrink(&self, header: &Header, wanted: u64) -> io::Result<()> {
        let mut other = vec![0; SLOT_BYTES];
        self.file.read_at(slot_offset(header.slot ^ 1), &mut other).map_err(into_io)?;
        if unseal(&other, 0).is_some_and(|(_, length)| stored_length(length) > wanted) {
            return Ok(());
        }
        self.file.set_len(wanted).map_err(into_io)
    }
}

fn is_within(length: u64, present: u64) -> bool {
    // A length that fits into the file cannot overflow the arithmetic after this comparison.
    length <= present && length > 0 && stored_length(length) <= present
}

fn write_header(file: &dyn File, page: &[u8], slot: u64, sequence: u64, length: u64) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(SLOT_BYTES);
    seal(page, 0, sequence, length, &mut bytes);
    file.write_at(slot_offset(slot), &bytes).map_err(into_io)
}

/// Checks the file when one header slot is invalid. If a crash tore it, it was never durable, and no page is newer than
/// the next commit. Otherwise it was the newest header, and damage took it.
fn prove_newest(file: &dyn File, present: u64, header: u64) -> io::Result<()> {
    let pages = (present / SLOT_BYTES as u64).saturating_sub(2);
    let mut slots = vec![0; RUN_PAGES * SLOT_BYTES];
    for first in (1..=pages).step_by(RUN_PAGES) {
        let count = (pages - first + 1).min(RUN_PAGES as u64) as usize;
        let run = &mut slots[..count * SLOT_BYTES];
        file.read_at(slot_offset(first + 1), run).map_err(into_io)?;
        for (page, slot) in (first..).zip(run.chunks_exact(SLOT_BYTES)) {
            if let Some((sequence, _)) = unseal(slot, page).filter(|(sequence, _)| *sequence > header + 1) {
                return Err(Damage::Outdated { page, sequence, header }.into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::{CrashPolicy, Ground, SimulatedGround};

    fn page(value: u8) -> Vec<u8> {
        vec![value; PAGE_BYTES]
    }

    /// Writes a header page and three pages, and syncs twice as a commit does.
    fn written(ground: &SimulatedGround) -> Blocks {
        let blocks = Blocks::create(ground.create("file").unwrap());
        ground.sync_directory("").unwrap();
        blocks.set_len(4 * PAGE_BYTES as u64).unwrap();
        blocks.write(PAGE_BYTES as u64, &[page(1), page(2), page(3)].concat()).unwrap();
        for step in 0..2 {
            blocks.write(0, &[step; 320]).unwrap();
            blocks.sync().unwrap();
        }
        blocks
    }

    fn open(ground: &SimulatedGround) -> io::Result<Blocks> {
        Blocks::open(ground.open("file", Access::ReadWrite).unwrap(), Access::ReadWrite)
    }

    #[test]
    fn pages_are_read_as_written_from_any_offset() {
        let ground = SimulatedGround::new(1);
        drop(written(&ground));
        let blocks = open(&ground).unwrap();
        let mut all = [page(0), page(1), page(2), page(3)].concat();
        all[..320].fill(1);
        for (offset, length) in [(0, 4 * PAGE_BYTES), (0, 9), (4000, 200), (5000, 8000), (PAGE_BYTES, PAGE_BYTES), (16_383, 1)] {
            let mut out = vec![9; length];
            blocks.read(offset as u64, &mut out).unwrap();
            assert!(out == all[offset..offset + length], "{offset} {length}");
        }
        assert_eq!(blocks.read(16_383, &mut [0; 2]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(blocks.read(u64::MAX, &mut [0; 2]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(blocks.write(5000, &page(1)).is_err());
    }

    #[test]
    fn a_flipped_byte_of_a_page_is_an_error_of_that_page_only() {
        for at in [0, 100, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 8, PAGE_BYTES + 16, PAGE_BYTES + 39] {
            let ground = SimulatedGround::new(1);
            drop(written(&ground));
            ground.corrupt("file", slot_offset(3) + at as u64, 1).unwrap();
            let blocks = open(&ground).unwrap();
            let error = blocks.read(2 * PAGE_BYTES as u64, &mut page(0)).unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::InvalidData, Damage::Page(2).to_string()));
            blocks.read(3 * PAGE_BYTES as u64, &mut page(0)).unwrap();
        }
    }

    #[test]
    fn a_page_that_the_system_lost_before_its_sync_is_an_error_and_never_the_page_before_it() {
        let mut lost = 0;
        for seed in 0..2000 {
            let ground = SimulatedGround::new(seed);
            let blocks = written(&ground);
            ground.fail_writeback(0);
            blocks.write(PAGE_BYTES as u64, &page(7)).unwrap();
            let mut found = page(0);
            match blocks.read(PAGE_BYTES as u64, &mut found) {
                Ok(()) => assert!(found == page(7)),
                Err(_) => lost += 1,
            }
            assert!(blocks.sync().is_err(), "the sync says it, too");
        }
        assert!((200..2000).contains(&lost), "{lost} of 2000 were lost");
    }

    #[test]
    fn a_header_is_replaced_whole_or_not_at_all() {
        for seed in 0..200 {
            let ground = SimulatedGround::new(seed);
            let blocks = written(&ground);
            blocks.set_len(6 * PAGE_BYTES as u64).unwrap();
            blocks.write(5 * PAGE_BYTES as u64, &page(5)).unwrap();
            blocks.write(0, &[7; 320]).unwrap();
            ground.crash_after_syncs(0);
            assert!(blocks.sync().is_err());
            let ground = ground.restart(CrashPolicy::Random { seed });
            let blocks = open(&ground).unwrap();
            let mut header = [0; 320];
            blocks.read(0, &mut header).unwrap();
            let pages = blocks.len() / PAGE_BYTES as u64;
            assert!((header == [1; 320] && pages == 4) || (header == [7; 320] && pages == 6), "{pages}");
        }
    }

    /// After a failed sync the system's cache may have a header that the device lacks. The next commit overwrites pages
    /// that the previous header leads to. So an opening makes the header durable first.
    #[test]
    fn a_header_that_an_opening_has_seen_is_there_after_a_power_failure() {
        let mut lost = 0;
        for seed in 0..20 {
            let ground = SimulatedGround::new(seed);
            let blocks = written(&ground);
            blocks.write(0, &[7; 320]).unwrap();
            // The header's write succeeds; its sync fails.
            ground.fail_operation(1, io::ErrorKind::Other);
            assert!(blocks.sync().is_err());
            drop(blocks);
            let header = |blocks: &Blocks| {
                let mut header = [0; 320];
                blocks.read(0, &mut header).unwrap();
                header
            };
            lost += u32::from(header(&open(&ground.snapshot(CrashPolicy::DropAll)).unwrap()) != [7; 320]);
            let seen = header(&open(&ground).unwrap());
            assert!(seen == header(&open(&ground.restart(CrashPolicy::DropAll)).unwrap()), "seed {seed}");
        }
        assert!(lost > 3, "the failed sync lost the header {lost} times");
    }

    #[test]
    fn a_lost_newest_header_is_told_from_a_torn_one() {
        let ground = SimulatedGround::new(1);
        let blocks = written(&ground);
        blocks.write(PAGE_BYTES as u64, &page(9)).unwrap();
        blocks.write(0, &[2; 320]).unwrap();
        blocks.sync().unwrap();
        drop(blocks);
        // The newest header is gone. The older one may not know page 1, so this may be a torn commit.
        let torn = ground.snapshot(CrashPolicy::KeepAll);
        torn.corrupt("file", 5, 1).unwrap();
        let blocks = open(&torn).unwrap();
        let mut header = [0; 320];
        blocks.read(0, &mut header).unwrap();
        assert_eq!(header, [1; 320]);
        // A page of the next commit proves that it was durable.
        let blocks = open(&ground).unwrap();
        blocks.write(2 * PAGE_BYTES as u64, &page(9)).unwrap();
        blocks.sync().unwrap();
        drop(blocks);
        ground.corrupt("file", 5, 1).unwrap();
        let error = open(&ground).unwrap_err().to_string();
        assert!(error.contains("newest header"), "{error}");
        ground.corrupt("file", SLOT_BYTES as u64 + 5, 1).unwrap();
        assert!(open(&ground).unwrap_err().to_string().contains("no slot"));
    }

    #[test]
    fn a_shorter_file_is_refused_and_room_is_given_back() {
        let ground = SimulatedGround::new(1);
        let blocks = written(&ground);
        blocks.set_len(2 * PAGE_BYTES as u64).unwrap();
        let length = || ground.open("file", Access::Read).unwrap().len().unwrap();
        assert_eq!(length(), stored_length(4 * PAGE_BYTES as u64));
        for step in 0..2 {
            blocks.write(0, &[step; 320]).unwrap();
            blocks.sync().unwrap();
        }
        assert_eq!(length(), stored_length(2 * PAGE_BYTES as u64));
        drop(blocks);
        let blocks = open(&ground).unwrap();
        assert_eq!(blocks.len(), 2 * PAGE_BYTES as u64);
        drop(blocks);
        for cut in [1, SLOT_BYTES as u64, 2 * SLOT_BYTES as u64] {
            let shorter = ground.snapshot(CrashPolicy::KeepAll);
            shorter.open("file", Access::ReadWrite).unwrap().set_len(length() - cut).unwrap();
            assert!(open(&shorter).is_err());
        }
    }
}
