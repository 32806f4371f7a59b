//! Sorted tables: immutable files of chunks (M2.6, `docs/format.md` section 5.13).
//!
//! Metadata comes before data: a header, where each page of keys begins, a filter, the keys in order, and then frames
//! with the chunks in the order of their arrival. So a stream that was written together is read together, and only the
//! keys are sorted.
//!
//! A table that lost a page of keys has lost the chunks of that page. One that lost a frame has lost the chunks of that
//! frame. One that lost its header has lost all.

mod parts;

pub(crate) use parts::{Entry, PAGE_BYTES, PLACE_BYTES, Place};

use crate::containers::compression::decompress;
use crate::levels::cache::Frame;
use crate::levels::filter::{Filter, Room, Taken};
use crate::levels::options::LevelsOptions;
use crate::levels::pages::Pages;
use crate::{ChunkKind, Codec, Compressor, Result, Slice, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, File, Ground, GroundError, ReadRequest, checksum};
use parts::{HEADER_BYTES, Header, PAGE_OVERHEAD, decode_page, encode_page, place_checksum, placed_checksum};
use std::sync::Arc;

const BEYOND: &str = "a chunk goes beyond the end of its frame";
const FRAME_MAGIC: u32 = 0x314d_5246;
pub(crate) const FRAME_HEADER_BYTES: usize = 24;
/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;
/// A memtable of at most so many bytes becomes a table with one write, metadata and all.
const SMALL_BYTES: u64 = 8 << 20;
/// The most raw bytes of a frame: those of the longest chunk.
const MAX_FRAME_BYTES: u32 = 16 << 20;
/// A frame as it is in a file, with a right checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredFrame<'a> {
    codec: Codec,
    chunks: u16,
    raw_bytes: u32,
    /// Names and lengths of its chunks.
    names: &'a [u8],
    stored: &'a [u8],
}

impl StoredFrame<'_> {
    /// Appends the frame, for this place of a table. Returns its length.
    fn put(&self, out: &mut Vec<u8>, table: u64, at: u64) -> u32 {
        let begin = out.len();
        out.extend_from_slice(&FRAME_MAGIC.to_le_bytes());
        out.extend_from_slice(&[self.codec as u8, 0]);
        out.extend_from_slice(&self.chunks.to_le_bytes());
        out.extend_from_slice(&self.raw_bytes.to_le_bytes());
        out.extend_from_slice(&(self.stored.len() as u32).to_le_bytes());
        let sum = frame_checksum(&out[begin..], self.names, self.stored, table, at);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(self.names);
        out.extend_from_slice(self.stored);
        (out.len() - begin) as u32
    }
}

/// An open table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) id: u64,
    /// Whether a compaction made it.
    pub(crate) is_merged: bool,
    pub(crate) path: String,
    name: String,
    file: Arc<dyn File>,
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    pub(crate) raw_bytes: u64,
    pub(crate) length_bytes: u64,
    digest_bytes: usize,
    /// The prefix of the first key of each page.
    fences: Vec<u64>,
    keys_at: u64,
    data_at: u64,
    /// `None`: there was no room, or it is damaged.
    filter: Option<Arc<(Filter, Taken)>>,
    pub(crate) first: Fingerprint,
    pub(crate) last: Fingerprint,
}

fn align(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES as u64)
}

/// Where the parts of a table of this many keys begin.
struct Layout {
    keys_in_page: usize,
    pages: usize,
    filter_at: u64,
    filter_bytes: usize,
    keys_at: u64,
    data_at: u64,
}

impl Layout {
    fn of(entries: u64, digest_bytes: usize) -> Layout {
        let keys_in_page = (PAGE_BYTES - PAGE_OVERHEAD) / (digest_bytes + PLACE_BYTES);
        let pages = entries.div_ceil(keys_in_page as u64) as usize;
        let filter_at = HEADER_BYTES as u64 + 2 * 32 + pages as u64 * 8 + 8;
        let filter_bytes = Filter::bytes_for(entries);
        let keys_at = align(filter_at + filter_bytes as u64 + 8);
        Layout { keys_in_page, pages, filter_at, filter_bytes, keys_at, data_at: keys_at + (pages * PAGE_BYTES) as u64 }
    }
}

/// Writes a table. The number of keys is known before: so metadata has its place before the data.
pub(crate) struct TableWriter<'a> {
    options: &'a LevelsOptions,
    file: Arc<dyn File>,
    path: String,
    name: String,
    id: u64,
    is_merged: bool,
    expected: u64,
    layout: Layout,
    entries: Vec<Entry>,
    /// The open frame, of random and of sequential data.
    frames: [OpenFrame; 2],
    compressors: [Compressor; 2],
    /// Compressed frames that wait to be written, and where they go.
    out: Vec<u8>,
    out_at: u64,
    /// When there are so many, they are written.
    write_bytes: usize,
    raw_bytes: u64,
    /// How long the file is at least, with what was allocated. 0: nothing was.
    allocated_bytes: u64,
    /// Whether more may come from the reserve.
    takes_reserve: bool,
}

#[derive(Default)]
struct OpenFrame {
    raw: Vec<u8>,
    /// The keys whose chunks are in it.
    keys: Vec<usize>,
}

impl<'a> TableWriter<'a> {
    /// Begins a table of `expected` keys. Errors: there is a file of this name. It is not ours.
    pub(crate) fn new(ground: &dyn Ground, path: &str, id: u64, expected: u64, options: &'a LevelsOptions) -> Result<TableWriter<'a>> {
        let file = ground.create(path).map_err(StorageError::cannot_write)?;
        Ok(TableWriter::into_file(ground, file, path, id, expected, options))
    }

    /// Begins a table in a file that is there.
    pub(crate) fn into_file(
        ground: &dyn Ground,
        file: Arc<dyn File>,
        path: &str,
        id: u64,
        expected: u64,
        options: &'a LevelsOptions,
    ) -> TableWriter<'a> {
        let layout = Layout::of(expected, options.digest_bytes());
        TableWriter {
            file,
            path: path.to_owned(),
            name: ground.describe(path),
            id,
            is_merged: false,
            expected,
            entries: Vec::with_capacity(expected as usize),
            frames: Default::default(),
            compressors: [Compressor::new(options.compression), Compressor::new(options.sequential_compression)],
            out: Vec::new(),
            out_at: layout.data_at,
            write_bytes: WRITE_BYTES,
            layout,
            raw_bytes: 0,
            allocated_bytes: 0,
            takes_reserve: false,
            options,
        }
    }

    /// Notes that the table is that of a memtable of this weight, and that the file has space for so many bytes.
    pub(crate) fn of_memtable(self, weight_bytes: u64, allocated_bytes: u64) -> TableWriter<'a> {
        let write_bytes = if weight_bytes <= SMALL_BYTES { usize::MAX } else { WRITE_BYTES };
        TableWriter { write_bytes, allocated_bytes, takes_reserve: true, ..self }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Gets the space for the metadata and for frames of so many bytes.
    pub(crate) fn allocate(&mut self, frame_bytes: u64) -> Result<()> {
        self.reach(self.layout.data_at + frame_bytes)
    }

    /// Does the same for what frees more space than it takes: it may use the reserve.
    pub(crate) fn allocate_from_reserve(&mut self, frame_bytes: u64) -> Result<()> {
        self.takes_reserve = true;
        self.reach(self.layout.data_at + frame_bytes)
    }

    /// Gets the space up to this length.
    fn reach(&mut self, length_bytes: u64) -> Result<()> {
        let (from, more) = (self.allocated_bytes, length_bytes.saturating_sub(self.allocated_bytes));
        if more == 0 {
            return Ok(());
        }
        let allocated = if self.takes_reserve { self.file.allocate_from_reserve(from, more) } else { self.file.allocate(from, more) };
        allocated.map_err(StorageError::cannot_write)?;
        self.allocated_bytes = length_bytes;
        Ok(())
    }

    /// Does that if space was asked for before: a write that finds none would take the reserve.
    fn reach_again(&mut self, length_bytes: u64) -> Result<()> {
        if self.allocated_bytes == 0 { Ok(()) } else { self.reach(length_bytes) }
    }

    /// Notes that a compaction makes the table.
    pub(crate) fn of_merge(self) -> TableWriter<'a> {
        TableWriter { is_merged: true, ..self }
    }

    /// Notes that the table goes in the place of this one.
    pub(crate) fn in_place_of(self, table: &Table) -> TableWriter<'a> {
        TableWriter { is_merged: table.is_merged, ..self }
    }

    /// Appends a chunk. Chunks come in the order in which they arrived.
    pub(crate) fn push(&mut self, name: Fingerprint, kind: ChunkKind, is_sequential: bool, data: &[u8]) -> Result<()> {
        let which = usize::from(is_sequential);
        let limit = [self.options.frame_bytes, self.options.sequential_frame_bytes][which] as usize;
        let frame = &self.frames[which];
        if frame.keys.len() == usize::from(u16::MAX) || (!frame.raw.is_empty() && frame.raw.len() + data.len() > limit) {
            self.close_frame(which)?;
        }
        let frame = &mut self.frames[which];
        frame.keys.push(self.entries.len());
        let place =
            Place { kind, is_sequential, length_bytes: data.len() as u32, frame: 0, frame_bytes: 0, offset_bytes: frame.raw.len() as u32 };
        frame.raw.extend_from_slice(data);
        self.entries.push((name, Some(place)));
        self.raw_bytes += data.len() as u64;
        Ok(())
    }

    /// Appends a frame of another table as it is, if these chunks are all that it has, and it is not much too small.
    /// Returns whether it did.
    pub(crate) fn push_frame<'e>(
        &mut self,
        frame: StoredFrame<'_>,
        length_bytes: u64,
        chunks: impl Iterator<Item = &'e Entry> + Clone,
    ) -> Result<bool> {
        let is_sequential = chunks.clone().any(|(_, place)| place.is_some_and(|place| place.is_sequential));
        let which = usize::from(is_sequential);
        let limit_bytes = [self.options.frame_bytes, self.options.sequential_frame_bytes][which];
        if length_bytes != u64::from(frame.raw_bytes) || frame.raw_bytes < limit_bytes / 4 {
            return Ok(false);
        }
        // In the order of their arrival.
        self.close_frame(which)?;
        let at = self.out_at + self.out.len() as u64;
        let frame_bytes = frame.put(&mut self.out, self.id, at);
        let moved = |(name, place): &Entry| (*name, place.map(|place| Place { frame: at, frame_bytes, ..place }));
        self.entries.extend(chunks.map(moved));
        self.raw_bytes += length_bytes;
        if self.out.len() >= self.write_bytes {
            self.write_out()?;
        }
        Ok(true)
    }

    /// Appends a tombstone.
    pub(crate) fn push_tombstone(&mut self, name: Fingerprint) {
        self.entries.push((name, None));
    }

    fn close_frame(&mut self, which: usize) -> Result<()> {
        let mut frame = std::mem::take(&mut self.frames[which]);
        if frame.keys.is_empty() {
            return Ok(());
        }
        let at = self.out_at + self.out.len() as u64;
        let digest_bytes = self.options.digest_bytes();
        let mut names = Vec::with_capacity(frame.keys.len() * (digest_bytes + 4));
        for (name, place) in frame.keys.iter().map(|key| &self.entries[*key]) {
            names.extend_from_slice(name.digest(digest_bytes));
            names.extend_from_slice(&place.map_or(0, |place| place.length_bytes).to_le_bytes());
        }
        let (codec, stored) = self.compressors[which].compress(&frame.raw);
        let whole = StoredFrame { codec, chunks: frame.keys.len() as u16, raw_bytes: frame.raw.len() as u32, names: &names, stored };
        let frame_bytes = whole.put(&mut self.out, self.id, at);
        for key in &frame.keys {
            if let Some(place) = &mut self.entries[*key].1 {
                (place.frame, place.frame_bytes) = (at, frame_bytes);
            }
        }
        // Its memory serves the next frame.
        frame.raw.clear();
        frame.keys.clear();
        self.frames[which] = frame;
        if self.out.len() >= self.write_bytes { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        self.reach_again(self.out_at + self.out.len() as u64)?;
        self.file.write_at(self.out_at, &self.out).map_err(StorageError::cannot_write)?;
        self.file.start_writeback(self.out_at, self.out.len() as u64);
        self.out_at += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// Writes what is left, and the metadata. The table is not durable yet.
    pub(crate) fn finish(mut self, room: &Room) -> Result<Table> {
        (0..2).try_for_each(|which| self.close_frame(which))?;
        let is_small = self.out_at == self.layout.data_at;
        if !is_small {
            self.write_out()?;
        }
        assert_eq!(self.entries.len() as u64, self.expected, "the caller counted the keys");
        self.entries.sort_unstable_by_key(|(name, _)| *name);
        let length_bytes = self.out_at + self.out.len() as u64;
        self.reach_again(length_bytes)?;
        let digest_bytes = self.options.digest_bytes();
        let layout = &self.layout;
        let mut metadata = vec![0; layout.data_at as usize];
        let (head, keys) = metadata.split_at_mut(layout.keys_at as usize);
        let mut fences = Vec::with_capacity(layout.pages);
        let mut filter = Filter::new(self.expected);
        for (number, (page, part)) in keys.chunks_mut(PAGE_BYTES).zip(self.entries.chunks(layout.keys_in_page)).enumerate() {
            fences.push(part[0].0.prefix());
            encode_page(page, part, digest_bytes, self.id, layout.keys_at + (number * PAGE_BYTES) as u64);
            part.iter().for_each(|(name, _)| filter.insert(name));
        }
        let tombstones = self.entries.iter().filter(|(_, place)| place.is_none()).count() as u64;
        let zero = Fingerprint::from_digest(&[0; 32]);
        let (first, last) = (self.entries.first().map_or(zero, |entry| entry.0), self.entries.last().map_or(zero, |entry| entry.0));
        let mut at = HEADER_BYTES;
        for key in [first, last] {
            head[at..at + 32].copy_from_slice(key.as_bytes());
            at += 32;
        }
        for fence in &fences {
            head[at..at + 8].copy_from_slice(&fence.to_le_bytes());
            at += 8;
        }
        let sum = placed_checksum(&head[HEADER_BYTES..at], self.id, HEADER_BYTES as u64);
        head[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        let filter_at = layout.filter_at as usize;
        head[filter_at..filter_at + layout.filter_bytes].copy_from_slice(&filter.to_bytes());
        let sum = placed_checksum(&head[filter_at..filter_at + layout.filter_bytes], self.id, layout.filter_at);
        head[filter_at + layout.filter_bytes..][..8].copy_from_slice(&sum.to_le_bytes());
        let header = Header {
            digest_bytes: digest_bytes as u8,
            store: self.options.store,
            is_merged: self.is_merged,
            id: self.id,
            entries: self.expected,
            tombstones,
            raw_bytes: self.raw_bytes,
            length_bytes,
        };
        head[..HEADER_BYTES].copy_from_slice(&header.encode());
        if is_small {
            metadata.append(&mut self.out);
        }
        self.file.write_at(0, &metadata).map_err(StorageError::cannot_write)?;
        self.file.start_writeback(0, metadata.len() as u64);
        if self.allocated_bytes > length_bytes {
            self.file.set_len(length_bytes).map_err(StorageError::cannot_write)?;
        }
        Ok(Table {
            id: self.id,
            is_merged: self.is_merged,
            path: self.path,
            name: self.name,
            file: self.file,
            entries: self.expected,
            tombstones,
            raw_bytes: self.raw_bytes,
            length_bytes,
            digest_bytes,
            fences,
            keys_at: layout.keys_at,
            data_at: layout.data_at,
            filter: room.take(layout.filter_bytes).map(|taken| Arc::new((filter, taken))),
            first,
            last,
        })
    }
}

fn frame_checksum(header: &[u8], names: &[u8], stored: &[u8], table: u64, at: u64) -> u64 {
    checksum(header) ^ checksum(names).rotate_left(1) ^ checksum(stored) ^ place_checksum(table, at)
}

impl Table {
    /// Opens a table, with its filter if there is room for it.
    pub(crate) fn open(ground: &dyn Ground, path: &str, id: u64, options: &LevelsOptions, room: &Room) -> Result<Table> {
        let name = ground.describe(path);
        let damaged = |why: String| StorageError::SortedTable { path: name.clone(), why };
        let lasting = |error: GroundError| match error.is_lasting() {
            true => damaged(error.to_string()),
            false => error.into(),
        };
        let file = ground.open(path, Access::Read).map_err(lasting)?;
        let mut bytes = [0; HEADER_BYTES];
        file.read_at(0, &mut bytes).map_err(lasting)?;
        let header = Header::decode(&bytes).map_err(damaged)?;
        let digest_bytes = options.digest_bytes();
        if header.store != options.store || header.id != id || usize::from(header.digest_bytes) != digest_bytes {
            return Err(damaged("it is another table".to_owned()));
        }
        let length = file.len().map_err(lasting)?;
        if length < header.length_bytes {
            return Err(damaged(format!("it has {length} bytes instead of {}", header.length_bytes)));
        }
        // Before anything is computed from it.
        if header.entries > header.length_bytes / (digest_bytes + PLACE_BYTES) as u64 {
            return Err(damaged(format!("it says that it has {} keys", header.entries)));
        }
        let layout = Layout::of(header.entries, digest_bytes);
        if header.length_bytes < layout.data_at {
            return Err(damaged("its keys take more than all of it".to_owned()));
        }
        let mut part = vec![0; (layout.filter_at as usize) - HEADER_BYTES];
        file.read_at(HEADER_BYTES as u64, &mut part).map_err(lasting)?;
        let (part, sum) = part.split_at(part.len() - 8);
        if placed_checksum(part, id, HEADER_BYTES as u64).to_le_bytes() != sum {
            return Err(damaged("its list of pages has a wrong checksum".to_owned()));
        }
        let fences = part[64..].chunks(8).map(|fence| u64::from_le_bytes(fence.try_into().expect("chunks of 8"))).collect();
        let filter = match room.take(layout.filter_bytes) {
            Some(taken) => {
                let mut bits = vec![0; layout.filter_bytes + 8];
                file.read_at(layout.filter_at, &mut bits).map_err(lasting)?;
                let (bits, sum) = bits.split_at(layout.filter_bytes);
                // Without a filter each search reads a page: slower, and right.
                (placed_checksum(bits, id, layout.filter_at).to_le_bytes() == sum).then(|| Arc::new((Filter::from_bytes(bits), taken)))
            }
            None => None,
        };
        Ok(Table {
            id,
            is_merged: header.is_merged,
            path: path.to_owned(),
            file,
            entries: header.entries,
            tombstones: header.tombstones,
            raw_bytes: header.raw_bytes,
            length_bytes: header.length_bytes,
            digest_bytes,
            fences,
            keys_at: layout.keys_at,
            data_at: layout.data_at,
            filter,
            first: Fingerprint::from_digest(&part[..32]),
            last: Fingerprint::from_digest(&part[32..64]),
            name,
        })
    }

    pub(crate) fn damaged(&self, why: impl Into<String>) -> StorageError {
        StorageError::SortedTable { path: self.name.clone(), why: why.into() }
    }

    /// Returns an error of the device that stays as damage.
    pub(crate) fn lasting(&self, error: GroundError) -> StorageError {
        match error.is_lasting() {
            true => self.damaged(error.to_string()),
            false => error.into(),
        }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        Ok(self.file.sync()?)
    }

    /// Returns whether a key may be in it, from memory alone.
    pub(crate) fn may_have(&self, name: &Fingerprint) -> bool {
        self.entries > 0 && (self.first..=self.last).contains(name) && self.filter.as_ref().is_none_or(|filter| filter.0.may_have(name))
    }

    /// Returns whether its range has a key in common with another.
    pub(crate) fn overlaps(&self, first: &Fingerprint, last: &Fingerprint) -> bool {
        self.entries > 0 && self.first <= *last && *first <= self.last
    }

    /// Returns the table from a copy of its file.
    pub(crate) fn copied_to(&self, ground: &dyn Ground, path: &str) -> Result<Table> {
        Ok(Table { file: ground.open(path, Access::Read)?, path: path.to_owned(), name: ground.describe(path), ..self.clone() })
    }

    /// Gives its file another name.
    pub(crate) fn rename(&mut self, ground: &dyn Ground, path: &str) -> Result<()> {
        ground.rename(&self.path, path).map_err(StorageError::cannot_write)?;
        (self.path, self.name) = (path.to_owned(), ground.describe(path));
        Ok(())
    }

    /// Returns the first page that may have a key.
    pub(crate) fn page_of(&self, name: &Fingerprint) -> usize {
        let prefix = name.prefix();
        self.fences.partition_point(|fence| *fence < prefix).saturating_sub(1)
    }

    /// Looks for a key. Reads a page, seldom two.
    pub(crate) fn find(&self, name: &Fingerprint, pages: &mut Pages) -> Result<Option<Option<Place>>> {
        if !self.may_have(name) {
            return Ok(None);
        }
        let prefix = name.prefix();
        let first = self.page_of(name);
        for page in (first..self.fences.len()).take_while(|page| *page == first || self.fences[*page] <= prefix) {
            let entries = pages.get(self, page)?;
            if let Ok(at) = entries.binary_search_by_key(name, |(name, _)| *name) {
                return Ok(Some(entries[at].1));
            }
        }
        Ok(None)
    }

    /// Returns the keys of a page.
    pub(crate) fn page(&self, page: usize) -> Result<Vec<Entry>> {
        let mut bytes = [0; PAGE_BYTES];
        self.file.read_at(self.page_at(page), &mut bytes).map_err(|error| self.lasting(error))?;
        self.decode_page(page, &bytes)
    }

    /// Returns where a page begins.
    pub(crate) fn page_at(&self, page: usize) -> u64 {
        self.keys_at + (page * PAGE_BYTES) as u64
    }

    /// Returns a place of the file to read.
    pub(crate) fn request(&self, offset: u64, length_bytes: usize) -> ReadRequest {
        ReadRequest { file: self.file.clone(), offset, length_bytes }
    }

    /// Returns the keys of a page that was read.
    pub(crate) fn decode_page(&self, page: usize, bytes: &[u8]) -> Result<Vec<Entry>> {
        let entries = decode_page(bytes, self.digest_bytes, self.id, self.page_at(page)).map_err(|why| self.damaged(why))?;
        let is_sound = |place: &Place| {
            let end = place.frame.checked_add(u64::from(place.frame_bytes));
            place.frame >= self.data_at && end.is_some_and(|end| end <= self.length_bytes)
        };
        if !entries.iter().all(|(_, place)| place.as_ref().is_none_or(is_sound)) {
            return Err(self.damaged("a key leads to a place that the table does not have"));
        }
        Ok(entries)
    }

    /// Passes the keys with these prefixes to `visit`, in order. Pages that cannot be read are passed to `damaged`.
    pub(crate) fn range(
        &self,
        prefixes: std::ops::RangeInclusive<u64>,
        damaged: &mut dyn FnMut(StorageError) -> Result<()>,
        visit: &mut dyn FnMut(Fingerprint, Option<Place>),
    ) -> Result<()> {
        let first = self.fences.partition_point(|fence| *fence < *prefixes.start()).saturating_sub(1);
        for page in (first..self.fences.len()).take_while(|page| self.fences[*page] <= *prefixes.end()) {
            match self.page(page) {
                Ok(entries) => {
                    entries.into_iter().filter(|(name, _)| prefixes.contains(&name.prefix())).for_each(|(name, place)| visit(name, place))
                }
                Err(error) if error.is_damage() => damaged(error)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the bytes of all frames.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.length_bytes.saturating_sub(self.data_at)
    }

    pub(crate) fn pages(&self) -> usize {
        self.fences.len()
    }

    /// Verifies the checksums of all pages and frames. Returns false if `go_on` ended it.
    pub(crate) fn verify(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut frames = std::collections::BTreeMap::new();
        for page in 0..self.pages() {
            if !go_on() {
                return Ok(false);
            }
            frames.extend(self.page(page)?.into_iter().filter_map(|(_, place)| place).map(|place| (place.frame, place.frame_bytes)));
        }
        let mut bytes = Vec::new();
        for (at, length) in frames {
            if !go_on() {
                return Ok(false);
            }
            bytes.resize(length as usize, 0);
            self.frames(at, &mut bytes)?;
            self.stored_frame(&bytes, at)?;
        }
        Ok(true)
    }

    /// Reads a frame and decompresses it.
    pub(crate) fn frame(&self, place: &Place) -> Result<Arc<Vec<u8>>> {
        let mut bytes = vec![0; place.frame_bytes as usize];
        self.file.read_at(place.frame, &mut bytes).map_err(|error| self.lasting(error))?;
        self.decode_frame(&bytes, place.frame)
    }

    /// Reads several frames that lie one behind the other, at `at`, with one read.
    pub(crate) fn frames(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_at(at, bytes).map_err(|error| self.lasting(error))
    }

    /// Decompresses the frame that begins at `at` in the file.
    pub(crate) fn decode_frame(&self, bytes: &[u8], at: u64) -> Result<Arc<Vec<u8>>> {
        let StoredFrame { codec, raw_bytes, stored, .. } = self.stored_frame(bytes, at)?;
        decompress(codec, stored, raw_bytes as usize).map(Arc::new).map_err(|why| self.damaged(why))
    }

    /// Does the same with all that a reader wants of it, of `bytes` that may go on behind the frame. Returns its length
    /// too. `None`: the frame goes on behind `bytes`.
    pub(crate) fn read_frame(&self, bytes: &[u8], at: u64) -> Result<Option<(Frame, usize)>> {
        let Some(length) = self.frame_length(bytes)?.filter(|length| *length <= bytes.len()) else { return Ok(None) };
        let stored = self.stored_frame(&bytes[..length], at)?;
        let raw = decompress(stored.codec, stored.stored, stored.raw_bytes as usize).map_err(|why| self.damaged(why))?;
        let mut chunks = Vec::with_capacity(usize::from(stored.chunks));
        let mut offset = 0u32;
        for chunk in stored.names.chunks(self.digest_bytes + 4) {
            let (name, length) = chunk.split_at(self.digest_bytes);
            let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
            chunks.push((Fingerprint::from_digest(name), offset, length));
            offset = offset.checked_add(length).filter(|end| *end <= stored.raw_bytes).ok_or_else(|| self.damaged(BEYOND))?;
        }
        Ok(Some((Frame { bytes: Arc::new(raw), chunks }, length)))
    }

    /// Returns the length of a frame, from its header. `None`: that is not all there.
    fn frame_length(&self, bytes: &[u8]) -> Result<Option<usize>> {
        let Some(header) = bytes.get(..FRAME_HEADER_BYTES) else { return Ok(None) };
        if header[..4] != FRAME_MAGIC.to_le_bytes() {
            return Err(self.damaged("a frame has a wrong checksum"));
        }
        let chunks = usize::from(u16::from_le_bytes([header[6], header[7]]));
        let stored = u32::from_le_bytes(header[12..16].try_into().expect("four bytes"));
        Ok(Some(FRAME_HEADER_BYTES + chunks * (self.digest_bytes + 4) + stored as usize))
    }

    /// Looks whether that frame is whole.
    pub(crate) fn stored_frame<'a>(&self, bytes: &'a [u8], at: u64) -> Result<StoredFrame<'a>> {
        let Some((header, body)) = bytes.split_at_checked(FRAME_HEADER_BYTES) else {
            return Err(self.damaged("a frame is too short"));
        };
        let chunks = u16::from_le_bytes([header[6], header[7]]);
        let raw_bytes = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        let sum = u64::from_le_bytes(header[16..24].try_into().expect("eight bytes"));
        let is_whole = self.frame_length(bytes)? == Some(bytes.len());
        let parts = body.split_at_checked(usize::from(chunks) * (self.digest_bytes + 4)).filter(|_| is_whole);
        let parts = parts.filter(|(names, stored)| sum == frame_checksum(&header[..16], names, stored, self.id, at));
        let (names, stored) = parts.ok_or_else(|| self.damaged("a frame has a wrong checksum"))?;
        let codec = Codec::from_number(header[4]).filter(|_| raw_bytes <= MAX_FRAME_BYTES);
        let codec = codec.ok_or_else(|| self.damaged("a frame is of an unknown kind"))?;
        Ok(StoredFrame { codec, chunks, raw_bytes, names, stored })
    }

    /// Returns a chunk of a frame.
    pub(crate) fn slice(&self, frame: &Arc<Vec<u8>>, place: &Place) -> Result<Slice> {
        let start = place.offset_bytes as usize;
        let end = start + place.length_bytes as usize;
        match end <= frame.len() {
            true => Ok(Slice::new(frame.clone(), start..end)),
            false => Err(self.damaged(BEYOND)),
        }
    }
}
