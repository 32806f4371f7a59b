//! One segment file: its name, its header, and a cursor over its batches.

use crate::batch::{ALIGNMENT_BYTES, BatchHeader, HEADER_BYTES, MAGIC, guess_batch};
use crate::{Batch, BatchError, LogError, Position, Record, Result, parse_batch};
use onefold_ground::wire::Reader;
use onefold_ground::{Access, File, Ground, checksum};
use std::sync::Arc;

/// Bytes of a segment before its first batch.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 4096;
const MAGIC_BYTES: &[u8; 8] = b"1FLDLOG1";
const VERSION: u32 = 1;
/// The part of the header that its checksum covers.
const CHECKED_BYTES: usize = 56;
/// Why a segment does not belong here.
const OTHER_STORE: &str = "the segment belongs to another store";
/// Bytes per read.
const WINDOW_BYTES: u64 = 1 << 20;

/// Returns the path of the segment that starts at `start`.
pub(crate) fn segment_path(directory: &str, start: Position) -> String {
    format!("{directory}/{:016x}.log", start.0)
}

/// Returns the path of a spare file, which will become a segment.
pub(crate) fn spare_path(directory: &str, start: Position) -> String {
    format!("{directory}/{:016x}.spare", start.0)
}

/// Returns the start of the segment (extension `log`) or spare (`spare`) with this name; `None` for any other name.
pub(crate) fn parse_name(name: &str, extension: &str) -> Option<Position> {
    let (start, found) = name.split_once('.')?;
    let is_ours = found == extension && start.len() == 16 && start.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_ours { u64::from_str_radix(start, 16).ok().map(Position) } else { None }
}

/// A segment's place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Where its first batch starts.
    pub(crate) start: Position,
    /// Where the last batch before it ends. Less than `start` if the log jumps: there is nothing in between.
    pub(crate) follows: Position,
}

impl Segment {
    /// Returns how many positions before the segment have no batch.
    pub(crate) fn gap_bytes(&self) -> u64 {
        self.start.0 - self.follows.0
    }
}

/// Encodes the header of a segment.
pub(crate) fn encode_header(store: &[u8; 16], epoch: u64, segment: Segment) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES as usize);
    bytes.extend_from_slice(MAGIC_BYTES);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.extend_from_slice(store);
    bytes.extend_from_slice(&epoch.to_le_bytes());
    bytes.extend_from_slice(&segment.start.0.to_le_bytes());
    bytes.extend_from_slice(&segment.follows.0.to_le_bytes());
    bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
    bytes.resize(SEGMENT_HEADER_BYTES as usize, 0);
    bytes
}

/// Checks a header. Returns its owner epoch and its `follows`, or what is wrong.
fn parse_header(bytes: &[u8], store: &[u8; 16], start: Position) -> std::result::Result<(u64, Position), String> {
    let mut reader = Reader::new(bytes);
    let mut fields = || {
        let magic = reader.take(8)?;
        let version = reader.u32()?;
        let _reserved = reader.u32()?;
        let store = reader.take(16)?;
        Ok::<_, onefold_ground::wire::WireError>((magic, version, store, reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?))
    };
    let (magic, version, found_store, epoch, found_start, follows, sum) = fields().map_err(|error| error.to_string())?;
    if magic != MAGIC_BYTES {
        return Err("this is not a segment of the log".to_owned());
    }
    if sum != checksum(&bytes[..CHECKED_BYTES]) {
        return Err("the checksum of the segment's header is wrong".to_owned());
    }
    if version != VERSION {
        return Err(format!("the segment has format version {version}; this program reads version {VERSION}"));
    }
    if found_store != store {
        return Err(OTHER_STORE.to_owned());
    }
    if found_start != start.0 {
        return Err(format!("the segment's header says that it starts at {found_start:016x}"));
    }
    if follows > found_start || !follows.is_multiple_of(ALIGNMENT_BYTES) {
        return Err(format!("the segment's header says that it follows {follows:016x}"));
    }
    Ok((epoch, Position(follows)))
}

/// Reads the batches of a segment in order.
#[derive(Debug)]
pub(crate) struct Cursor {
    file: Arc<dyn File>,
    path: String,
    file_bytes: u64,
    store: [u8; 16],
    start: Position,
    follows: Position,
    /// Where the next batch is expected.
    at: Position,
    /// The epoch of the last batch; before the first, that of the segment. The next batch's epoch is not lower.
    epoch: u64,
    /// Bytes `window_offset ..` of the file.
    window: Vec<u8>,
    window_offset: u64,
    /// Whether to read without read-ahead: set near a sector that the device cannot read.
    is_narrow: bool,
}

/// What is past the last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    /// Only zeros, up to the end of the file.
    Blank,
    /// Bytes that mean nothing.
    Arbitrary,
    /// A batch at this offset of the file. When it was written, the cursor's position was durable.
    Proof(u64),
}

impl Cursor {
    /// Opens a segment and checks its header.
    pub(crate) fn open(ground: &dyn Ground, directory: &str, start: Position, store: &[u8; 16]) -> Result<Cursor> {
        let path = segment_path(directory, start);
        let file = ground.open(&path, Access::Read)?;
        let file_bytes = file.len()?;
        let path = ground.describe(&path);
        // Positions in the file must not overflow.
        let is_possible = start.0.is_multiple_of(ALIGNMENT_BYTES) && start.0.checked_add(file_bytes + ALIGNMENT_BYTES).is_some();
        if file_bytes < SEGMENT_HEADER_BYTES || !is_possible {
            let why = format!("a segment cannot have {file_bytes} bytes here");
            return Err(LogError::Damaged { path, offset_bytes: 0, why });
        }
        let mut header = vec![0; SEGMENT_HEADER_BYTES as usize];
        file.read_at(0, &mut header)?;
        let (epoch, follows) = match parse_header(&header, store, start) {
            Ok(fields) => fields,
            Err(why) => return Err(LogError::Damaged { path, offset_bytes: 0, why }),
        };
        Ok(Cursor {
            file,
            path,
            file_bytes,
            store: *store,
            start,
            follows,
            at: start,
            epoch,
            window: Vec::new(),
            window_offset: 0,
            is_narrow: false,
        })
    }

    /// Opens a segment by its name, whatever its header says. Also returns what is wrong with the header. Refuses a
    /// segment of another store.
    pub(crate) fn open_damaged(
        ground: &dyn Ground,
        directory: &str,
        start: Position,
        store: &[u8; 16],
    ) -> Result<(Cursor, Option<String>)> {
        match Cursor::open(ground, directory, start, store) {
            Ok(cursor) => return Ok((cursor, None)),
            Err(LogError::Damaged { .. }) => {}
            Err(LogError::Ground(error)) if error.is_lasting() => {}
            Err(error) => return Err(error),
        }
        let path = segment_path(directory, start);
        let file = ground.open(&path, Access::Read)?;
        let file_bytes = file.len()?;
        let mut header = vec![0; SEGMENT_HEADER_BYTES.min(file_bytes) as usize];
        let why = match file.read_at(0, &mut header) {
            Ok(()) => parse_header(&header, store, start).err().unwrap_or_else(|| format!("the segment has only {file_bytes} bytes")),
            Err(error) if error.is_lasting() => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        let path = ground.describe(&path);
        if why == OTHER_STORE {
            return Err(LogError::Damaged { path, offset_bytes: 0, why });
        }
        let cursor = Cursor {
            file,
            path,
            file_bytes,
            store: *store,
            start,
            // Nobody can tell whether the log jumps here.
            follows: start,
            at: start,
            epoch: 0,
            window: Vec::new(),
            window_offset: 0,
            is_narrow: false,
        };
        Ok((cursor, Some(why)))
    }

    /// Switches read-ahead off, so that an unreadable sector costs nothing but itself.
    pub(crate) fn read_narrowly(&mut self) {
        self.is_narrow = true;
    }

    /// Returns the length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns the segment's place from its header.
    pub(crate) fn segment(&self) -> Segment {
        Segment { start: self.start, follows: self.follows }
    }

    /// Returns where the next batch is expected.
    pub(crate) fn at(&self) -> Position {
        self.at
    }

    /// Returns the epoch of the last batch read.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Moves to a position in the segment. Returns false if it is outside.
    pub(crate) fn seek(&mut self, to: Position) -> bool {
        let is_inside = to >= self.start && to.0 - self.start.0 <= self.file_bytes.saturating_sub(SEGMENT_HEADER_BYTES);
        if is_inside {
            self.at = to;
        }
        is_inside
    }

    /// Moves back to an earlier position, with the epoch it had there.
    pub(crate) fn rewind(&mut self, to: Position, epoch: u64) {
        (self.at, self.epoch) = (to, epoch);
    }

    /// Returns the file offset where the next batch is expected.
    pub(crate) fn offset(&self) -> u64 {
        SEGMENT_HEADER_BYTES + (self.at.0 - self.start.0)
    }

    /// Makes an error about the place where the next batch is expected.
    pub(crate) fn damaged(&self, why: impl ToString) -> LogError {
        LogError::Damaged { path: self.path.clone(), offset_bytes: self.offset(), why: why.to_string() }
    }

    /// Reads the next batch, or returns why there is none. Errors: the batch is intact but cannot be decoded.
    pub(crate) fn next(&mut self) -> Result<std::result::Result<Batch, BatchError>> {
        let header = match self.header(self.offset())? {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        let offset = self.offset();
        match parse_batch(self.window(offset, header.unpadded_bytes())?) {
            Ok(batch) => {
                self.at.0 += batch.length_bytes;
                self.epoch = batch.epoch;
                Ok(Ok(batch))
            }
            Err(BatchError::Checksum) => Ok(Err(BatchError::Checksum)),
            Err(error) => Err(self.damaged(error)),
        }
    }

    /// Decodes as many records as possible from a batch that is not intact. Also returns where it ends. `None`: nobody
    /// can tell what was here.
    pub(crate) fn guess(&mut self) -> Result<Option<(Vec<Record>, Position)>> {
        let Ok(header) = self.header(self.offset())? else { return Ok(None) };
        let end = Position(self.at.0 + header.length_bytes());
        let records = guess_batch(self.window(self.offset(), header.unpadded_bytes())?);
        Ok(Some((records, end)))
    }

    /// Examines everything from the cursor on, after no batch was found there.
    pub(crate) fn remains(&mut self) -> Result<Remains> {
        let hole = self.at;
        let mut is_blank = true;
        let mut offset = self.offset();
        while offset < self.file_bytes {
            let length = WINDOW_BYTES.min(self.file_bytes - offset);
            let window = self.window(offset, length)?;
            is_blank = is_blank && window.iter().fold(0, |sum, byte| sum | byte) == 0;
            let starts: Vec<u64> = window
                .chunks(ALIGNMENT_BYTES as usize)
                .zip((offset..).step_by(ALIGNMENT_BYTES as usize))
                .filter(|(sector, _)| sector.starts_with(&MAGIC.to_le_bytes()))
                .map(|(_, start)| start)
                .collect();
            for start in starts {
                if let Ok(header) = self.header(start)?
                    && header.durable > hole
                    && header.check(self.window(start, header.unpadded_bytes())?).is_ok()
                {
                    return Ok(Remains::Proof(start));
                }
            }
            offset += length;
        }
        Ok(if is_blank { Remains::Blank } else { Remains::Arbitrary })
    }

    /// Returns the header at an offset of the file, if one belongs there.
    fn header(&mut self, offset: u64) -> Result<std::result::Result<BatchHeader, BatchError>> {
        let position = Position(self.start.0 + (offset - SEGMENT_HEADER_BYTES));
        let left_bytes = self.file_bytes.saturating_sub(offset);
        if left_bytes < HEADER_BYTES as u64 {
            return Ok(Err(BatchError::NoHeader));
        }
        let header = match BatchHeader::parse(self.window(offset, HEADER_BYTES as u64)?) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        let wrong = |what, value| Ok(Err(BatchError::Header { what, value }));
        if header.position != position {
            return wrong("position", header.position.0);
        }
        if header.store != self.store {
            return wrong("store", u64::from_le_bytes(header.store[..8].try_into().expect("8 of 16 bytes")));
        }
        if header.epoch < self.epoch {
            return wrong("owner epoch", header.epoch);
        }
        if header.unpadded_bytes() > left_bytes {
            return Ok(Err(BatchError::Truncated { wanted_bytes: header.unpadded_bytes(), left_bytes }));
        }
        Ok(Ok(header))
    }

    /// Returns bytes of the file. The caller checked that they are inside.
    fn window(&mut self, offset: u64, length: u64) -> Result<&[u8]> {
        let window_end = self.window_offset + self.window.len() as u64;
        if offset < self.window_offset || offset + length > window_end {
            let ahead = if self.is_narrow { length } else { length.max(WINDOW_BYTES) };
            let wanted = ahead.min(self.file_bytes - offset);
            // The window stays empty until the read succeeds, so a failure leaves no bytes of another place.
            let mut window = std::mem::take(&mut self.window);
            window.resize(wanted as usize, 0);
            self.file.read_at(offset, &mut window)?;
            self.window = window;
            self.window_offset = offset;
        }
        let from = (offset - self.window_offset) as usize;
        Ok(&self.window[from..from + length as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_starts_and_other_names_to_none() {
        assert_eq!(parse_name("0000000000001a00.log", "log"), Some(Position(0x1a00)));
        assert_eq!(segment_path("log", Position(0x1a00)), "log/0000000000001a00.log");
        assert_eq!(parse_name("ffffffffffffffff.spare", "spare"), Some(Position(u64::MAX)));
        for name in
            ["", "log", "1a00.log", "0000000000001A00.log", "0000000000001a00.log.new", "+000000000001a00.log", "0000000000001a00.spare"]
        {
            assert_eq!(parse_name(name, "log"), None, "{name}");
        }
    }

    #[test]
    fn a_header_is_read_as_written_and_any_change_is_named() {
        let start = Position(2 * ALIGNMENT_BYTES);
        for follows in [Position(0), Position(ALIGNMENT_BYTES), start] {
            let header = encode_header(&[7; 16], 3, Segment { start, follows });
            assert_eq!(header.len() as u64, SEGMENT_HEADER_BYTES);
            assert_eq!(parse_header(&header, &[7; 16], start), Ok((3, follows)));
            assert!(parse_header(&header, &[8; 16], start).unwrap_err().contains("another store"));
            assert!(parse_header(&header, &[7; 16], Position(ALIGNMENT_BYTES)).unwrap_err().contains("starts at 0000000000002000"));
            for at in 0..CHECKED_BYTES + 8 {
                let mut changed = header.clone();
                changed[at] ^= 1;
                assert!(parse_header(&changed, &[7; 16], start).is_err());
            }
            for length in 0..CHECKED_BYTES + 8 {
                assert!(parse_header(&header[..length], &[7; 16], start).is_err());
            }
        }
        for follows in [Position(3 * ALIGNMENT_BYTES), Position(1)] {
            assert!(parse_header(&encode_header(&[7; 16], 3, Segment { start, follows }), &[7; 16], start).is_err());
        }
    }
}
