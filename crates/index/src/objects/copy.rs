//! The second copy of the few vital objects (`docs/format.md` section 7.7). It leaves out figures and the kinds with
//! one object for each block or container.
//!
//! It is written from the database when the log is about to be trimmed. So the copy and the log after it together
//! always give the state of these objects, whatever happens to the database. Objects deleted since do not come back.
//!
//! It is written and read in parts, so its length does not matter for memory.

use super::database::PartitionFile;
use crate::error::{IndexError, Result};
use onefold_ground::wire::{Reader, WireError, put_bytes};
use onefold_ground::{Access, File, Ground, checksum, parent};
use onefold_oplog::Position;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"1FLDCPY1";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 48;
/// Bytes per read or write.
const PART_BYTES: usize = 1 << 20;
/// First bytes of the keys that are not copied, sorted: entries, block mappings, dead slots, redirects (a repair finds
/// the other copies by their names), figures, how far scrubbing is, and files by their names.
const LEFT_OUT: [u8; 13] = [b'E', b'd', b'f', b'h', b'j', b'm', b'o', b'p', b's', b't', b'u', b'w', b'y'];

/// Takes an object's key and value.
type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Returns the path of a partition's copy.
pub(super) fn file_name(directory: &str, partition: u16) -> String {
    format!("{directory}/{partition:04x}.copy")
}

/// Returns whether a copy has objects with this key.
pub(super) fn has(key: &[u8]) -> bool {
    key.first().is_some_and(|first| !LEFT_OUT.contains(first))
}

/// A new copy while it is written.
struct Output {
    file: Arc<dyn File>,
    part: Vec<u8>,
    end: u64,
    sum: Xxh3,
}

impl Output {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        put_bytes(&mut self.part, key);
        put_bytes(&mut self.part, value);
        if self.part.len() < PART_BYTES { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<()> {
        self.file.write_at(self.end, &self.part)?;
        self.sum.update(&self.part);
        self.end += self.part.len() as u64;
        self.part.clear();
        Ok(())
    }

    /// Writes the header. It is complete only when all objects are there.
    fn finish(mut self, position: Position) -> Result<()> {
        self.write()?;
        let mut header = Vec::with_capacity(HEADER_BYTES as usize);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&0u32.to_le_bytes());
        for field in [position.0, self.end - HEADER_BYTES, self.sum.digest()] {
            header.extend_from_slice(&field.to_le_bytes());
        }
        header.extend_from_slice(&checksum(&header).to_le_bytes());
        self.file.write_at(0, &header)?;
        Ok(self.file.sync()?)
    }
}

/// Writes the copy of a partition from its current database and replaces the old copy. Durable on return. Returns its
/// position.
pub(super) fn write(ground: &dyn Ground, path: &str, file: &PartitionFile) -> Result<Position> {
    let temporary = format!("{path}.new");
    if ground.exists(&temporary)? {
        ground.remove(&temporary)?;
    }
    let position = match write_new(ground, &temporary, file) {
        Ok(position) => position,
        Err(error) => {
            // On a full disk others need the space.
            let _ = ground.remove(&temporary);
            return Err(error);
        }
    };
    ground.rename(&temporary, path)?;
    ground.sync_directory(parent(path))?;
    Ok(position)
}

fn write_new(ground: &dyn Ground, path: &str, file: &PartitionFile) -> Result<Position> {
    let snapshot = file.snapshot()?;
    let position = snapshot.position()?;
    let mut output = Output { file: ground.create(path)?, part: Vec::new(), end: HEADER_BYTES, sum: Xxh3::new() };
    let mut from = Vec::new();
    for left_out in LEFT_OUT.into_iter().map(Some).chain([None]) {
        let to = left_out.unwrap_or(0xff);
        let mut written = Ok(());
        snapshot.range(&from, &[to], &mut |key, value| {
            written = output.add(key, value);
            written.is_ok()
        })?;
        written?;
        from = vec![to + u8::from(to < 0xff)];
    }
    output.finish(position)?;
    Ok(position)
}

/// A copy with a valid checksum.
pub(super) struct Copied {
    /// The log position up to which it is applied.
    pub(super) position: Position,
    file: Arc<dyn File>,
    end: u64,
}

/// Returns the log position up to which a copy is applied. `None`: there is none, or its header is damaged.
pub(super) fn position(ground: &dyn Ground, path: &str) -> Option<Position> {
    let mut header = [0; HEADER_BYTES as usize];
    ground.open(path, Access::Read).and_then(|file| file.read_at(0, &mut header)).ok()?;
    let field = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes of a header"));
    (header.starts_with(MAGIC) && field(40) == checksum(&header[..40])).then(|| Position(field(16)))
}

/// Reads and verifies all of a copy. `None`: there is none.
pub(super) fn open(ground: &dyn Ground, path: &str) -> Result<Option<Copied>> {
    let file = match ground.open(path, Access::Read) {
        Err(error) if error.is_not_found() => return Ok(None),
        file => file?,
    };
    let damaged = |what: &str| IndexError::ObjectIndexDamaged { path: ground.describe(path), what: what.into() };
    let end = file.len()?;
    if end < HEADER_BYTES {
        return Err(damaged("it is too short"));
    }
    let mut header = [0; HEADER_BYTES as usize];
    file.read_at(0, &mut header)?;
    let field = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes of a header"));
    if !header.starts_with(MAGIC) || field(40) != checksum(&header[..40]) {
        return Err(damaged("its header is damaged"));
    }
    if header[8..12] != VERSION.to_le_bytes() {
        return Err(damaged("this program does not know its format"));
    }
    let copied = Copied { position: Position(field(16)), file, end };
    let (mut sum, mut at) = (Xxh3::new(), HEADER_BYTES);
    let mut part = Vec::new();
    while at < end {
        part.clear();
        at += copied.read_part(at, &mut part)?;
        sum.update(&part);
    }
    if field(24) != end - HEADER_BYTES || field(32) != sum.digest() {
        return Err(damaged("the checksum of its objects is wrong"));
    }
    Ok(Some(copied))
}

impl Copied {
    /// Appends the bytes from `at` on to `out`. Returns how many.
    fn read_part(&self, at: u64, out: &mut Vec<u8>) -> Result<u64> {
        let count = (self.end - at).min(PART_BYTES as u64);
        let start = out.len();
        out.resize(start + count as usize, 0);
        self.file.read_at(at, &mut out[start..])?;
        Ok(count)
    }

    /// Passes all objects to `visit`, sorted.
    pub(super) fn for_each(&self, visit: &mut Visit<'_>) -> Result<()> {
        let (mut bytes, mut start, mut at) = (Vec::new(), 0, HEADER_BYTES);
        loop {
            let mut reader = Reader::new(&bytes[start..]);
            let mut object = || -> std::result::Result<_, WireError> { Ok((reader.bytes()?, reader.bytes()?)) };
            match object() {
                Ok((key, value)) => {
                    visit(key, value)?;
                    start += reader.position();
                }
                // The rest may follow.
                Err(_) if at < self.end => {
                    bytes.drain(..start);
                    start = 0;
                    at += self.read_part(at, &mut bytes)?;
                }
                Err(_) if start == bytes.len() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tiers::Objects;
    use onefold_ground::SimulatedGround;

    fn read(ground: &dyn Ground) -> Result<Option<Objects>> {
        let Some(copied) = open(ground, "copy")? else { return Ok(None) };
        let mut objects = Objects::new();
        copied.for_each(&mut |key, value| {
            objects.insert(key.to_vec(), Some(value.to_vec()));
            Ok(())
        })?;
        Ok(Some(objects))
    }

    #[test]
    fn a_copy_of_many_parts_is_read_as_written_and_what_is_left_out_is_not_in_it() {
        let simulated = SimulatedGround::new(1);
        let ground: Arc<dyn Ground> = Arc::new(simulated.clone());
        PartitionFile::create(&ground, "file").unwrap();
        let (file, _) = PartitionFile::open(&ground, "file".into(), Access::ReadWrite, 1, 1 << 20).unwrap();
        assert!(read(&*ground).unwrap().is_none());
        let mut objects = Objects::new();
        for (round, lengths) in
            [&[][..], &[0, 1, 100], &[PART_BYTES - 3, PART_BYTES, 3 * PART_BYTES + 7, 20, 0], &[300_000; 30]].iter().enumerate()
        {
            for kind in b'a'..=b'z' {
                let of_kind = lengths.iter().enumerate().filter(|_| b"bdstz".contains(&kind));
                objects.extend(of_kind.map(|(at, length)| (vec![kind, round as u8, at as u8], Some(vec![kind ^ at as u8; *length]))));
            }
            let position = Position(512 * round as u64);
            file.write(&objects, position).unwrap();
            assert_eq!(write(&*ground, "copy", &file).unwrap(), position);
            let expected: Objects = objects.clone().into_iter().filter(|(key, _)| b"bz".contains(&key[0])).collect();
            assert!(read(&*ground).unwrap() == Some(expected), "round {round}");
            assert_eq!(open(&*ground, "copy").unwrap().unwrap().position, position);
            assert_eq!(super::position(&*ground, "copy"), Some(position));
        }
        let length = ground.open("copy", Access::Read).unwrap().len().unwrap();
        for at in [0, 9, 17, 30, 40, 47, 48, 49, PART_BYTES as u64 + 48, length / 2, length - 1] {
            simulated.corrupt("copy", at, 4).unwrap();
            assert!(read(&*ground).is_err(), "byte {at}");
            simulated.corrupt("copy", at, 4).unwrap();
        }
        let file = ground.open("copy", Access::ReadWrite).unwrap();
        for length in [length + 1, length - 1, PART_BYTES as u64, 47, 0] {
            file.set_len(length).unwrap();
            assert!(read(&*ground).is_err(), "length {length}");
        }
    }
}
