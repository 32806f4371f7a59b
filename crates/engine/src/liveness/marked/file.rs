//! Mark files (M3.7, `docs/format.md` section 7.13): for each origin the slots that a group needs.
//!
//! A file is written once, in the order of its origins, and read in that order or at some origins. An origin may be
//! there without slots: a list of origins is a mark file too. Both hold one block
//! in memory. Blocks have one length, so an origin is found by bisection, and no index has to be read. Each block names
//! its group, the position of the marks and its own number: a block of another file or place is damage.
//!
//! Everything here can be made again. So a file that cannot be read, for whatever reason, is *lost*: the caller gets a
//! sentence that says why, and marks the group from nothing.

use crate::liveness::reference::Group;
use crate::liveness::slots::Slots;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use onefold_ground::{Access, File, Ground, GroundError, checksum};
use onefold_oplog::Position;
use onefold_storage::{MAX_SLOTS, Origin};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"1FLDMRK1";
/// Length of all blocks except the last, which may be shorter.
const BLOCK_BYTES: usize = 16 << 10;
const HEADER_BYTES: usize = 32;
const SUM_BYTES: usize = 8;
/// The longest entry: a varint, and a bitmap with its length.
const ENTRY_BYTES: usize = 10 + 3 + MAX_SLOTS.div_ceil(8);
const _: () = assert!(HEADER_BYTES + ENTRY_BYTES + SUM_BYTES <= BLOCK_BYTES);
/// Bytes that are written at once.
const WRITE_BYTES: usize = 64 * BLOCK_BYTES;

/// The marks of one origin.
pub(crate) type Entry = (Origin, Slots);

/// Which marks a file has. With the length, this tells a whole file from any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) group: Group,
    /// The marks are those as of this position of the log.
    pub(crate) position: Position,
}

impl Label {
    pub(crate) fn path(self, directory: &str) -> String {
        format!("{directory}/{:016x}-{:016x}", self.group.bits(), self.position.0)
    }
}

/// Writes a mark file.
pub(crate) struct MarkWriter {
    file: Arc<dyn File>,
    label: Label,
    /// Whole blocks that are not written yet, and where they go.
    ready: Vec<u8>,
    written_bytes: u64,
    blocks: u32,
    entries: Vec<u8>,
    last: Option<Origin>,
}

impl MarkWriter {
    /// Begins a file. One that is there is what a crash left: nothing refers to it.
    pub(crate) fn create(ground: &dyn Ground, path: &str, label: Label) -> Result<MarkWriter, GroundError> {
        if ground.exists(path)? {
            ground.remove(path)?;
        }
        Ok(MarkWriter::of(ground.create(path)?, label))
    }

    fn of(file: Arc<dyn File>, label: Label) -> MarkWriter {
        MarkWriter { file, label, ready: Vec::new(), written_bytes: 0, blocks: 0, entries: Vec::new(), last: None }
    }

    /// Begins a file that has no name and goes when it is closed. `path` is free again on return. In a bucket this
    /// takes no request: such a file is never put.
    pub(crate) fn create_nameless(ground: &dyn Ground, path: &str, label: Label) -> Result<MarkWriter, GroundError> {
        let file = match ground.create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                ground.remove(path)?;
                ground.create(path)?
            }
            created => created?,
        };
        ground.remove(path)?;
        Ok(MarkWriter::of(file, label))
    }

    /// Adds the marks of the next origin. Origins come in rising order.
    pub(crate) fn push(&mut self, origin: Origin, slots: &Slots) -> Result<(), GroundError> {
        debug_assert!(self.last < Some(origin));
        let mut entry = Vec::with_capacity(16 + slots.bits().len());
        let before = if self.entries.is_empty() { 0 } else { self.last.map_or(0, Origin::bits) };
        put_varint(&mut entry, origin.bits() - before);
        put_bytes(&mut entry, slots.bits());
        if HEADER_BYTES + self.entries.len() + entry.len() + SUM_BYTES > BLOCK_BYTES {
            self.end_block(BLOCK_BYTES)?;
            entry.clear();
            put_varint(&mut entry, origin.bits());
            put_bytes(&mut entry, slots.bits());
        }
        self.entries.extend_from_slice(&entry);
        self.last = Some(origin);
        Ok(())
    }

    /// Ends the file. Its content is durable on return; its name when the directory is synced. Returns its length.
    pub(crate) fn finish(mut self) -> Result<u64, GroundError> {
        self.end()?;
        self.file.sync()?;
        Ok(self.written_bytes)
    }

    /// Ends the file and returns it for reading. Nothing is durable.
    pub(crate) fn into_reader(mut self) -> Result<MarkFile, GroundError> {
        self.end()?;
        let name = format!("unfinished marks of group {:016x}", self.label.group.bits());
        Ok(MarkFile { file: self.file, name, label: self.label, length_bytes: self.written_bytes, block: None, gap: 0..0 })
    }

    fn end(&mut self) -> Result<(), GroundError> {
        if !self.entries.is_empty() {
            self.end_block(HEADER_BYTES + self.entries.len() + SUM_BYTES)?;
        }
        self.write()
    }

    fn end_block(&mut self, length: usize) -> Result<(), GroundError> {
        let start = self.ready.len();
        self.ready.extend_from_slice(MAGIC);
        self.ready.extend_from_slice(&self.label.group.bits().to_le_bytes());
        self.ready.extend_from_slice(&self.label.position.0.to_le_bytes());
        self.ready.extend_from_slice(&self.blocks.to_le_bytes());
        self.ready.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        self.ready.append(&mut self.entries);
        self.ready.resize(start + length - SUM_BYTES, 0);
        let sum = checksum(&self.ready[start..]);
        self.ready.extend_from_slice(&sum.to_le_bytes());
        self.blocks += 1;
        if self.ready.len() >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), GroundError> {
        if !self.ready.is_empty() {
            self.file.write_at(self.written_bytes, &self.ready)?;
            self.written_bytes += self.ready.len() as u64;
            self.ready.clear();
        }
        Ok(())
    }
}

/// Reads a mark file.
#[derive(Debug)]
pub(crate) struct MarkFile {
    file: Arc<dyn File>,
    /// For messages.
    name: String,
    label: Label,
    length_bytes: u64,
    /// The block that was read last.
    block: Option<(u64, Vec<Entry>)>,
    /// Numbers of origins without marks, before or behind a block, as found last.
    gap: Range<u64>,
}

impl MarkFile {
    /// Opens the file of a label, which has this length.
    pub(crate) fn open(ground: &dyn Ground, path: &str, label: Label, length_bytes: u64) -> Result<MarkFile, String> {
        let file = ground.open(path, Access::Read).map_err(|error| error.to_string())?;
        let name = ground.describe(path);
        match file.len() {
            Ok(length) if length == length_bytes => Ok(MarkFile { file, name, label, length_bytes, block: None, gap: 0..0 }),
            Ok(length) => Err(format!("{name}: it has {length} bytes instead of {length_bytes}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn blocks(&self) -> u64 {
        self.length_bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// Makes a block the one that was read last.
    fn read(&mut self, number: u64) -> Result<&[Entry], String> {
        if self.block.as_ref().is_none_or(|(read, _)| *read != number) {
            let start = number * BLOCK_BYTES as u64;
            let mut bytes = vec![0; (self.length_bytes - start).min(BLOCK_BYTES as u64) as usize];
            self.file.read_at(start, &mut bytes).map_err(|error| error.to_string())?;
            let entries = decode_block(&bytes, self.label, number).map_err(|why| format!("{}: block {number}: {why}", self.name))?;
            self.block = Some((number, entries));
        }
        Ok(self.block.as_ref().map_or(&[], |(_, entries)| entries))
    }

    /// Reads all entries, from the first on.
    pub(crate) fn for_each(&mut self, visit: &mut dyn FnMut(Origin, &Slots)) -> Result<(), String> {
        for number in 0..self.blocks() {
            self.read(number)?.iter().for_each(|(origin, slots)| visit(*origin, slots));
        }
        Ok(())
    }

    /// Returns all entries, from the first on.
    pub(crate) fn entries(&mut self) -> impl Iterator<Item = Result<Entry, String>> + '_ {
        let (mut number, mut at) = (0, 0);
        std::iter::from_fn(move || {
            while number < self.blocks() {
                match self.read(number) {
                    Ok(entries) if at < entries.len() => {
                        at += 1;
                        return Some(Ok(entries[at - 1].clone()));
                    }
                    Ok(_) => (number, at) = (number + 1, 0),
                    Err(why) => {
                        number = u64::MAX;
                        return Some(Err(why));
                    }
                }
            }
            None
        })
    }

    /// Returns the marks of an origin, if it has any. Cheap if the origin asked for before was near, or in the same
    /// place between two blocks: most groups have no marks for most origins.
    pub(crate) fn of(&mut self, origin: Origin) -> Result<Option<&Slots>, String> {
        if self.gap.contains(&origin.bits()) {
            return Ok(None);
        }
        let reaches = |entries: &[Entry]| {
            let (first, last) = (entries.first()?.0, entries.last()?.0);
            Some((first..=last).contains(&origin))
        };
        let is_read = self.block.as_ref().is_some_and(|(_, entries)| reaches(entries) == Some(true));
        if !is_read {
            // The last block that does not begin behind it.
            let (mut low, mut high, mut next) = (0, self.blocks(), u64::MAX);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match self.read(middle)?.first() {
                    Some((first, _)) if *first <= origin => low = middle,
                    first => (high, next) = (middle, first.map_or(next, |(first, _)| first.bits())),
                }
            }
            if high == 0 {
                return Ok(None);
            }
            let entries = self.read(low)?;
            self.gap = match (entries.first(), entries.last()) {
                (Some((first, _)), _) if origin < *first => 0..first.bits(),
                (_, Some((last, _))) if *last < origin => last.bits() + 1..next,
                _ => 0..0,
            };
        }
        let Some((_, entries)) = &self.block else { return Ok(None) };
        Ok(entries.binary_search_by_key(&origin, |entry| entry.0).ok().map(|at| &entries[at].1))
    }
}

/// Entries in rising order.
pub(crate) type Sorted<'a> = Box<dyn Iterator<Item = Result<Entry, String>> + 'a>;

/// The union of entries from several sources, in rising order. Holds one entry of each.
pub(crate) struct Union<'a> {
    sources: Vec<Sorted<'a>>,
    /// The next entry of each source that has one.
    heads: BTreeMap<(Origin, usize), Slots>,
    /// Sources whose next entry was not read yet.
    unread: Vec<usize>,
    last: Option<Origin>,
}

impl<'a> Union<'a> {
    pub(crate) fn of(sources: Vec<Sorted<'a>>) -> Union<'a> {
        let unread = (0..sources.len()).collect();
        Union { sources, heads: BTreeMap::new(), unread, last: None }
    }
}

impl Iterator for Union<'_> {
    type Item = Result<Entry, String>;

    fn next(&mut self) -> Option<Result<Entry, String>> {
        while let Some(number) = self.unread.pop() {
            match self.sources[number].next() {
                Some(Ok((origin, slots))) => drop(self.heads.insert((origin, number), slots)),
                Some(Err(why)) => return Some(Err(why)),
                None => {}
            }
        }
        let ((origin, number), mut slots) = self.heads.pop_first()?;
        if self.last.replace(origin) >= Some(origin) {
            return Some(Err(format!("marks of container {origin} are not in their order")));
        }
        self.unread.push(number);
        while let Some(other) = self.heads.first_entry().filter(|head| head.key().0 == origin) {
            self.unread.push(other.key().1);
            slots.add(&other.remove());
        }
        Some(Ok((origin, slots)))
    }
}

/// Reads a block of the mark file of a group: its origins, with the numbers of the slots that have marks. For tools
/// that look at files. Errors: it is damaged, or another block.
pub fn decode_marks(bytes: &[u8], group: Group, position: Position, number: u64) -> Result<Vec<(Origin, Vec<u16>)>, String> {
    let entries = decode_block(bytes, Label { group, position }, number)?;
    let numbers = |slots: &Slots| (0..=u16::MAX).filter(|slot| slots.contains((*slot).into())).collect();
    Ok(entries.iter().map(|(origin, slots)| (*origin, numbers(slots))).collect())
}

/// Reads a block of a mark file.
pub(crate) fn decode_block(bytes: &[u8], label: Label, number: u64) -> Result<Vec<Entry>, String> {
    let (content, sum) = bytes.split_at_checked(bytes.len().saturating_sub(SUM_BYTES)).ok_or("it is too short")?;
    if content.len() < HEADER_BYTES || checksum(content).to_le_bytes() != *sum {
        return Err("its checksum is wrong".to_owned());
    }
    decode_content(content, label, number).map_err(|error| error.to_string())
}

fn decode_content(content: &[u8], label: Label, number: u64) -> Result<Vec<Entry>, WireError> {
    let mut reader = Reader::new(content);
    let out_of_range = |what, value, offset_bytes| Err(WireError::OutOfRange { what, value, offset_bytes });
    if reader.take(MAGIC.len())? != MAGIC {
        return out_of_range("magic of a mark file", u64::from(content[0]), 0);
    }
    for (what, expected) in [("group of a mark file", label.group.bits()), ("position of a mark file", label.position.0)] {
        let offset_bytes = reader.position();
        let value = reader.u64()?;
        if value != expected {
            return out_of_range(what, value, offset_bytes);
        }
    }
    let found = reader.u32()?;
    if u64::from(found) != number {
        return out_of_range("number of a block of marks", found.into(), 24);
    }
    let length = reader.u32()? as usize;
    let mut reader = Reader::new(reader.take(length)?);
    let (mut entries, mut last) = (Vec::new(), 0);
    while reader.left() > 0 {
        let offset_bytes = HEADER_BYTES + reader.position();
        let step = reader.varint()?;
        let bits = reader.bytes()?;
        let origin = last + step.min(u64::MAX >> 16);
        if step == 0 || origin > u64::MAX >> 16 {
            return out_of_range("origin of marks", origin, offset_bytes);
        }
        if bits.len() > MAX_SLOTS.div_ceil(8) || bits.last() == Some(&0) {
            return out_of_range("length of marks", bits.len() as u64, offset_bytes);
        }
        entries.push((Origin::from_bits(origin), Slots::from_bits(bits.to_vec())));
        last = origin;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::SimulatedGround;
    use proptest::prelude::*;

    const PATH: &str = "marks";

    fn label() -> Label {
        Label { group: Group::new(b'b', 77), position: Position(4096) }
    }

    fn origin(number: u64) -> Origin {
        Origin::from_bits(number)
    }

    fn write(ground: &SimulatedGround, marks: &BTreeMap<u64, Vec<u16>>) -> (u64, Vec<Entry>) {
        let mut writer = MarkWriter::create(ground, PATH, label()).unwrap();
        let mut entries = Vec::new();
        for (number, of) in marks {
            let mut slots = Slots::default();
            for slot in of {
                slots.insert(usize::from(*slot));
            }
            writer.push(origin(*number), &slots).unwrap();
            entries.push((origin(*number), slots));
        }
        (writer.finish().unwrap(), entries)
    }

    fn many() -> BTreeMap<u64, Vec<u16>> {
        (0..3000u64).map(|number| (1 + number * number, vec![number as u16, (number % 700) as u16, 0])).collect()
    }

    fn read(ground: &SimulatedGround, length_bytes: u64) -> Result<Vec<Entry>, String> {
        let mut entries = Vec::new();
        let mut file = MarkFile::open(ground, PATH, label(), length_bytes)?;
        file.for_each(&mut |origin, slots| entries.push((origin, slots.clone())))?;
        Ok(entries)
    }

    proptest! {
        #[test]
        fn m3_7_marks_are_read_as_written(
            marks in prop::collection::btree_map(1u64..1 << 48, prop::collection::vec(any::<u16>(), 1..4), 0..40),
        ) {
            let ground = SimulatedGround::new(1);
            let (length, entries) = write(&ground, &marks);
            prop_assert_eq!(read(&ground, length), Ok(entries));
        }

        #[test]
        fn m3_7_the_union_of_files_has_all_their_marks(
            all in prop::collection::vec(prop::collection::btree_map(1u64..60, prop::collection::vec(any::<u16>(), 1..4), 0..40), 0..5),
        ) {
            let ground = SimulatedGround::new(1);
            let mut model: BTreeMap<Origin, Slots> = BTreeMap::new();
            let mut files = Vec::new();
            for marks in &all {
                let mut writer = MarkWriter::create_nameless(&ground, PATH, label()).unwrap();
                for (number, of) in marks {
                    let mut slots = Slots::default();
                    for slot in of {
                        slots.insert((*slot).into());
                    }
                    writer.push(origin(*number), &slots).unwrap();
                    model.entry(origin(*number)).or_default().add(&slots);
                }
                prop_assert!(!ground.exists(PATH).unwrap());
                files.push(writer.into_reader().unwrap());
            }
            let sources: Vec<Sorted<'_>> = files.iter_mut().map(|file| Box::new(file.entries()) as Sorted<'_>).collect();
            let found: Result<BTreeMap<Origin, Slots>, String> = Union::of(sources).collect();
            prop_assert_eq!(found, Ok(model));
        }

        #[test]
        fn m3_7_no_bytes_are_read_as_marks_by_chance(bytes: Vec<u8>) {
            let mut block = bytes;
            let sum = checksum(&block);
            block.extend_from_slice(&sum.to_le_bytes());
            let _ = decode_block(&block, label(), 0);
        }
    }

    #[test]
    fn m3_7_the_marks_of_some_origins_are_read_in_any_order() {
        let ground = SimulatedGround::new(1);
        let (length, entries) = write(&ground, &many());
        assert!(length > 4 * BLOCK_BYTES as u64);
        let mut file = MarkFile::open(&ground, PATH, label(), length).unwrap();
        for (at, (of, slots)) in entries.iter().enumerate() {
            assert_eq!(file.of(*of).unwrap(), Some(slots));
            let other = &entries[at * 7919 % entries.len()];
            assert_eq!(file.of(other.0).unwrap(), Some(&other.1));
        }
        for number in [0, 3, 7, 2999 * 2999 + 2, (1 << 48) - 1] {
            assert_eq!(file.of(origin(number)).unwrap(), None, "{number}");
        }
        // Many origins without marks, one after the other, then one that has some.
        for (of, slots) in &entries {
            let beside = [of.bits().saturating_sub(1), of.bits() + 1].map(origin);
            assert!(
                beside
                    .iter()
                    .filter(|one| entries.binary_search_by_key(*one, |entry| entry.0).is_err())
                    .all(|one| file.of(*one) == Ok(None))
            );
            assert_eq!(file.of(*of).unwrap(), Some(slots));
        }
        assert_eq!(MarkWriter::create(&ground, PATH, label()).unwrap().finish().unwrap(), 0);
        assert_eq!(MarkFile::open(&ground, PATH, label(), 0).unwrap().of(origin(1)).unwrap(), None);
    }

    #[test]
    fn m3_7_damage_of_any_byte_and_any_length_is_found() {
        let ground = SimulatedGround::new(1);
        let (length, entries) = write(&ground, &many());
        let file = ground.open(PATH, Access::ReadWrite).unwrap();
        for at in (0..length).step_by(97).chain([0, 8, 16, 24, 28, 32, length - 1]) {
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 4]).unwrap();
            assert!(read(&ground, length).is_err(), "byte {at}");
            file.write_at(at, &byte).unwrap();
        }
        assert_eq!(read(&ground, length), Ok(entries));
        for cut in [0, 1, BLOCK_BYTES as u64, length - 1] {
            assert!(MarkFile::open(&ground, PATH, label(), cut).is_err());
            file.set_len(cut).unwrap();
            assert!(
                MarkFile::open(&ground, PATH, label(), length).is_err()
                    && (cut == 0 || read(&ground, cut).is_err() || cut == BLOCK_BYTES as u64)
            );
        }
    }

    #[test]
    fn m3_7_blocks_of_other_files_and_places_are_damage() {
        let ground = SimulatedGround::new(1);
        let (length, _) = write(&ground, &many());
        let file = ground.open(PATH, Access::ReadWrite).unwrap();
        let mut block = vec![0; BLOCK_BYTES];
        file.read_at(0, &mut block).unwrap();
        assert!(decode_block(&block, label(), 0).is_ok() && decode_block(&block, label(), 1).is_err());
        let other = Label { group: Group::new(b'b', 78), ..label() };
        assert!(decode_block(&block, other, 0).is_err());
        let other = Label { position: Position(8192), ..label() };
        assert!(decode_block(&block, other, 0).is_err());
        file.write_at(BLOCK_BYTES as u64, &block).unwrap();
        assert!(read(&ground, length).is_err());
    }
}
