//! The blocks of an arena on a block device of its own (`docs/format.md` section 5.12).
//!
//! The first MiB of the device is not for blocks. It has two copies of the arena's header. One is at its beginning. The
//! other is at its end, where a partition table that somebody writes by mistake does not reach.
//!
//! # Copies of the store's directory
//! A directory can be copied, and its copy leads to the same device. If both wrote, each would take the blocks of the
//! other for free. So every opening for writing puts its epoch and a random number into the header of the directory
//! first and then into those of the device. A directory takes only a device that has its own pair, or the one that the
//! device had before its last opening: a crash came between the two. Otherwise somebody else has written since, or this
//! is an older copy of the device. Two that are open at once on one machine are impossible, as the system lets only one
//! open the device for writing.
//!
//! A copy that was made while the store was open has the pair of the device. So a [`Mark`] beside each header says how
//! far the log was when the blocks were written. A directory whose log ends before it is refused for writing. What this
//! does not see is in decision 0066, "Limits".

use crate::arena::header::{HEADER_BYTES, Header};
use crate::arena::options::ArenaOptions;
use crate::{Result, StorageError};
use onefold_ground::wire::Reader;
use onefold_ground::{Access, File, Ground, checksum, fill_random};
use onefold_oplog::Position;
use parking_lot::Mutex;
use std::sync::Arc;

/// Where the blocks begin.
const START_BYTES: u64 = 1 << 20;
/// What stays unused behind the blocks: ZFS and old versions of md keep their labels there.
const END_BYTES: u64 = 1 << 20;
/// Where the headers are. Each has 4 KiB for itself, so that a write to one that is cut short spares the other.
const PAGES: [u64; 2] = [0, START_BYTES - PAGE_BYTES as u64];
const PAGE_BYTES: usize = 4 << 10;
/// The least room for blocks.
const LEAST_BYTES: u64 = 16 << 20;

const MARK_MAGIC: &[u8; 8] = b"1FLDMRK1";
/// Header and mark lie within one sector of 512 bytes: a page has both of one moment.
const MARK_BYTES: usize = 32;

/// How far the blocks are. Both numbers only grow, until a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// The end of the log when it was last known before a write. Blocks may be of batches up to it.
    log_end: Position,
    /// The end of the blocks that were given out, bytes behind [`START_BYTES`].
    blocks_end: u64,
}

impl Mark {
    fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(MARK_MAGIC);
        bytes[8..16].copy_from_slice(&self.log_end.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.blocks_end.to_le_bytes());
        let sum = checksum(&bytes[..24]);
        bytes[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a mark; the error is for people.
    fn decode(bytes: &[u8]) -> std::result::Result<Mark, String> {
        let mut reader = Reader::new(bytes);
        let said = |error: onefold_ground::wire::WireError| error.to_string();
        let magic = reader.take(8).map_err(said)?;
        let mark = Mark { log_end: Position(reader.u64().map_err(said)?), blocks_end: reader.u64().map_err(said)? };
        match magic == MARK_MAGIC && reader.u64().map_err(said)? == checksum(&bytes[..24]) {
            true => Ok(mark),
            false => Err("its mark has a wrong checksum".to_owned()),
        }
    }

    fn max(self, other: Mark) -> Mark {
        Mark { log_end: self.log_end.max(other.log_end), blocks_end: self.blocks_end.max(other.blocks_end) }
    }
}

/// What the two pages of a device have, and what they are to have. As a rule they differ in the end of the log: each is
/// written in turn. A sync makes the end of the blocks the same in both, so that one suffices to read all blocks.
#[derive(Debug, Default)]
struct Pages {
    /// `None`: nobody has read it yet.
    header: Option<Header>,
    mark: Mark,
    written: [Option<(Header, Mark)>; 2],
    /// A page that was written since the last sync. Meanwhile the other one is not.
    unsynced: Option<usize>,
    /// How many pages were written.
    writes: u64,
}

impl Pages {
    /// Returns the page that is written next: the one that knows less. A write that is cut short spares the other, as
    /// that one is synced.
    fn next(&self) -> usize {
        if let Some(page) = self.unsynced {
            return page;
        }
        let age = |page: usize| self.written[page].map(|(header, mark)| (header.epoch, mark.log_end, mark.blocks_end));
        usize::from(age(1) < age(0))
    }

    /// Returns a page that does not have the end of the blocks.
    fn shorter(&self) -> Option<usize> {
        self.header?;
        (0..2).find(|page| self.written[*page].is_none_or(|(_, mark)| mark.blocks_end < self.mark.blocks_end))
    }
}

/// A block device, without its first and its last MiB.
///
/// As a file it is as long as the blocks that were given out, so that nobody reads what others left behind them. A sync
/// makes this length durable, as that of a file.
#[derive(Debug)]
pub(crate) struct Device {
    file: Arc<dyn File>,
    /// Its name, for people.
    path: String,
    pages: Mutex<Pages>,
}

impl Device {
    /// Opens the device that a name leads to. `None`: it does not lead to a device.
    pub(crate) fn open(ground: &dyn Ground, path: &str, access: Access) -> Result<Option<Device>> {
        let file = ground.open_device(path, access)?;
        Ok(file.map(|file| Device { file, path: ground.describe(path), pages: Mutex::default() }))
    }

    fn refused(&self, why: String) -> StorageError {
        StorageError::Device { path: self.path.clone(), why, is_damage: false }
    }

    /// Returns the room for blocks, bytes.
    pub(crate) fn room_bytes(&self) -> Result<u64> {
        Ok(self.file.len()?.saturating_sub(START_BYTES + END_BYTES))
    }

    /// Makes the random number of an opening.
    pub(crate) fn nonce(&self) -> Result<u32> {
        let mut nonce = [0; 4];
        fill_random(&mut nonce[..3]).map_err(|error| self.refused(format!("the system has no random numbers: {error}")))?;
        Ok(u32::from_le_bytes(nonce).max(1))
    }

    /// Refuses a device that somebody may need, or that is too small.
    pub(crate) fn check_unused(&self) -> Result<()> {
        if self.room_bytes()? < LEAST_BYTES {
            let (length, least) = (self.file.len()?, START_BYTES + LEAST_BYTES + END_BYTES);
            return Err(self.refused(format!("it has {length} bytes; it needs at least {least}")));
        }
        let mut first = vec![0; START_BYTES as usize];
        self.file.read_at(0, &mut first)?;
        if Header::is_one(&first) {
            return Err(self.refused(format!("it has the blocks of a store. If nobody needs them: `blkdiscard -z -l 1MiB {}`", self.path)));
        }
        if first.iter().any(|byte| *byte != 0) {
            return Err(self.refused(format!(
                "its first MiB is not empty: it may have a file system or partitions. If nobody needs them: `blkdiscard -z -l 1MiB {}`",
                self.path
            )));
        }
        Ok(())
    }

    /// Reads both pages, and returns the header: the newer one of those that can be read. Errors: the device became
    /// shorter.
    pub(crate) fn header(&self, options: &ArenaOptions) -> Result<Header> {
        let (mut pages, mut has_damaged, mut unreadable) = (Pages::default(), None, None);
        for (page, at) in PAGES.into_iter().enumerate() {
            let mut bytes = [0; HEADER_BYTES + MARK_BYTES];
            match self.file.read_at(at, &mut bytes) {
                Ok(()) => {}
                Err(error) if error.is_lasting() => {
                    unreadable = Some(error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let (header, mark) = bytes.split_at(HEADER_BYTES);
            match Header::decode(header).and_then(|header| Ok((header, Mark::decode(mark)?))) {
                Ok((header, mark)) => {
                    pages.written[page] = Some((header, mark));
                    pages.mark = pages.mark.max(mark);
                    if pages.header.is_none_or(|newest| newest.epoch <= header.epoch) {
                        pages.header = Some(header);
                    }
                }
                Err(why) if Header::is_one(&bytes) => has_damaged = Some(why),
                Err(_) => {}
            }
        }
        let header = pages.header.ok_or_else(|| match (unreadable, has_damaged) {
            // It may be a loose cable. A repair must not write something else meanwhile.
            (Some(error), _) => error.into(),
            (None, Some(why)) => {
                StorageError::Device { path: self.path.clone(), why: format!("its headers are damaged: {why}"), is_damage: true }
            }
            (None, None) => self.refused("it is another device: it has no blocks of a store".to_owned()),
        })?;
        header.check(options).map_err(|why| self.refused(why))?;
        let (room_bytes, blocks_end) = (self.room_bytes()?, pages.mark.blocks_end);
        if room_bytes < blocks_end {
            return Err(self.refused(format!(
                "it has become shorter: it has room for {room_bytes} bytes of blocks, and its blocks take {blocks_end}. Make it as long as it was"
            )));
        }
        *self.pages.lock() = pages;
        Ok(header)
    }

    /// Refuses a directory of the store that is older than what is on the device, and the other way round.
    pub(crate) fn check_age(&self, on_device: &Header, in_directory: &Header, directory: &str) -> Result<()> {
        let is_own = (on_device.epoch, on_device.nonce) == (in_directory.epoch, in_directory.nonce);
        if is_own || (on_device.epoch < in_directory.epoch && on_device.nonce == in_directory.previous) {
            return Ok(());
        }
        Err(self.refused(match on_device.epoch < in_directory.epoch {
            true => format!(
                "it is an older copy of the device (opening {}; {directory} knows {}). Let the name lead to the newer one",
                on_device.epoch, in_directory.epoch
            ),
            false => format!(
                "another copy of {directory} has written to it since (opening {}; this directory knows {}). Use that copy, and only that one",
                on_device.epoch, in_directory.epoch
            ),
        }))
    }

    /// Refuses a directory whose log ends before the blocks were written: what its index takes for free is used. Call
    /// when the header was read.
    pub(crate) fn check_log_end(&self, log_end: Position, directory: &str) -> Result<()> {
        let known = self.log_end();
        if known <= log_end {
            return Ok(());
        }
        Err(self.refused(format!(
            "another copy of {directory} has written to it since (position {} of the log; the log of this directory ends at {}). Use that \
             copy, and only that one. If there is none, the end of the log is lost here: copy what can be read to a new store (`onefold \
             copy`), or run `onefold check --repair`",
            known.0, log_end.0
        )))
    }

    /// Returns the end of the log that the mark knows.
    pub(crate) fn log_end(&self) -> Position {
        self.pages.lock().mark.log_end
    }

    /// Writes the header to the pages that do not have it already. They are durable on return.
    pub(crate) fn write_header(&self, header: &Header) -> Result<()> {
        let mut pages = self.pages.lock();
        pages.header = Some(*header);
        // An earlier process may have left a page that is not synced.
        self.sync_page(&mut pages).map_err(StorageError::cannot_write)?;
        for page in [pages.next(), 1 - pages.next()] {
            if pages.written[page].is_some_and(|(written, _)| written == *header) {
                continue;
            }
            // One after the other: a crash leaves one that is whole.
            self.write_page(&mut pages, page).map_err(StorageError::cannot_write)?;
            self.sync_page(&mut pages).map_err(StorageError::cannot_write)?;
        }
        Ok(())
    }

    /// Forgets the mark, for repair: any block may be used, and any log may be the right one.
    pub(crate) fn forget_mark(&self) -> Result<()> {
        *self.pages.lock() = Pages { mark: Mark { log_end: Position(0), blocks_end: self.room_bytes()? }, ..Pages::default() };
        Ok(())
    }

    /// Notes the end of the log behind a batch that is durable. The mark is written, and durable with the next sync at
    /// the latest.
    pub(crate) fn reached(&self, log_end: Position) {
        let mut pages = self.pages.lock();
        pages.mark.log_end = pages.mark.log_end.max(log_end);
        if let Err(error) = self.write_mark(&mut pages) {
            tracing::debug!(%error, "the mark of the device could not be written; the next sync tries again");
        }
    }

    /// Writes the mark to one page, unless it is there already.
    fn write_mark(&self, pages: &mut Pages) -> onefold_ground::Result<()> {
        match pages.header {
            Some(header) if !pages.written.contains(&Some((header, pages.mark))) => self.write_page(pages, pages.next()),
            _ => Ok(()),
        }
    }

    /// Makes a page durable, and keeps others from writing one meanwhile.
    fn sync_page(&self, pages: &mut Pages) -> onefold_ground::Result<()> {
        self.file.sync()?;
        pages.unsynced = None;
        Ok(())
    }

    fn write_page(&self, pages: &mut Pages, page: usize) -> onefold_ground::Result<()> {
        let (Some(header), mark) = (pages.header, pages.mark) else { return Ok(()) };
        let mut bytes = [0; PAGE_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        bytes[HEADER_BYTES..][..MARK_BYTES].copy_from_slice(&mark.encode());
        // Until it is there, nobody knows what is.
        pages.written[page] = None;
        pages.unsynced = Some(page);
        pages.writes += 1;
        self.file.write_at(PAGES[page], &bytes)?;
        pages.written[page] = Some((header, mark));
        Ok(())
    }
}

impl onefold_ground::DelegatingFile for Device {
    fn below(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> onefold_ground::Result<()> {
        self.file.read_at(START_BYTES + offset, buffer)
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> onefold_ground::Result<bool> {
        self.file.try_read_at(START_BYTES + offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> onefold_ground::Result<()> {
        self.file.write_at(START_BYTES + offset, data)
    }

    fn len(&self) -> onefold_ground::Result<u64> {
        Ok(self.pages.lock().mark.blocks_end)
    }

    /// The caller stays within [`Device::room_bytes`]. Never makes it shorter.
    fn set_len(&self, length: u64) -> onefold_ground::Result<()> {
        let mut pages = self.pages.lock();
        pages.mark.blocks_end = pages.mark.blocks_end.max(length);
        Ok(())
    }

    fn sync(&self) -> onefold_ground::Result<()> {
        let mut pages = self.pages.lock();
        self.write_mark(&mut pages)?;
        while let Some(page) = pages.shorter() {
            // Any one page tells the length. One after the other: a crash leaves one that is whole.
            self.sync_page(&mut pages)?;
            self.write_page(&mut pages, page)?;
        }
        let writes = pages.writes;
        drop(pages);
        self.file.sync()?;
        let mut pages = self.pages.lock();
        if pages.writes == writes {
            pages.unsynced = None;
        }
        Ok(())
    }

    fn punch_hole(&self, offset: u64, length: u64) -> onefold_ground::Result<()> {
        self.file.punch_hole(START_BYTES + offset, length)
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        self.file.start_writeback(START_BYTES + offset, length);
    }

    fn read_ahead(&self, offset: u64, length: u64) {
        self.file.read_ahead(START_BYTES + offset, length);
    }

    fn drop_cached(&self, offset: u64, length: u64) {
        self.file.drop_cached(START_BYTES + offset, length);
    }
}
