//! The second copy of the few objects that everything hangs on: all but those of which there is one for each block or container (`docs/format.md` section 7.7).
//!
//! It is written when the log is about to be trimmed, from what the database holds then. So the copy and the log behind it together always say what
//! these objects are, whatever becomes of the database: objects that were deleted since do not come back.

use super::database::PartitionFile;
use crate::error::{IndexError, Result};
use onefold_ground::wire::{Reader, put_bytes};
use onefold_ground::{Ground, checksum, read_file, replace_file};
use onefold_oplog::Position;

const MAGIC: &[u8; 8] = b"1FLDCPY1";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;
/// What a copy is read up to, bytes.
const LIMIT_BYTES: u64 = 4 << 30;
/// First bytes of the keys of which there is no copy: block mappings, dead slots, and figures.
const LEFT_OUT: [u8; 4] = [b'd', b'm', b'p', b't'];

/// What a copy says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    /// The log up to which it is applied.
    pub(super) position: Position,
    /// Sorted.
    pub(super) objects: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The name of the copy of a partition.
pub(super) fn file_name(directory: &str, partition: u16) -> String {
    format!("{directory}/{partition:04x}.copy")
}

/// Whether objects with this key are in a copy.
pub(super) fn has(key: &[u8]) -> bool {
    key.first().is_some_and(|first| !LEFT_OUT.contains(first))
}

/// Writes the copy of a partition as its database is now; durable on return.
pub(super) fn write(ground: &dyn Ground, path: &str, file: &PartitionFile) -> Result<()> {
    let snapshot = file.snapshot()?;
    let position = snapshot.position()?;
    let mut objects = Vec::new();
    let mut from = Vec::new();
    for left_out in LEFT_OUT.into_iter().map(Some).chain([None]) {
        let to = left_out.unwrap_or(0xff);
        snapshot.range(&from, &[to], &mut |key, value| {
            put_bytes(&mut objects, key);
            put_bytes(&mut objects, value);
            true
        })?;
        from = vec![to + u8::from(to < 0xff)];
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + objects.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    for field in [position.0, objects.len() as u64, checksum(&objects)] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
    bytes.extend_from_slice(&objects);
    Ok(replace_file(ground, path, &bytes)?)
}

/// Reads a copy; `None`: there is none.
pub(super) fn read(ground: &dyn Ground, path: &str) -> Result<Option<Copied>> {
    let bytes = match read_file(ground, path, LIMIT_BYTES) {
        Err(error) if error.is_not_found() => return Ok(None),
        bytes => bytes?,
    };
    let damaged = |what: &str| IndexError::BlockIndexDamaged { path: ground.describe(path), what: what.into() };
    let (Some(header), Some(objects)) = (bytes.get(..HEADER_BYTES), bytes.get(HEADER_BYTES..)) else {
        return Err(damaged("it is too short"));
    };
    let field = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes of a header"));
    if !header.starts_with(MAGIC) || field(40) != checksum(&header[..40]) {
        return Err(damaged("its header is not whole"));
    }
    if header[8..12] != VERSION.to_le_bytes() {
        return Err(damaged("its format is not known to this program"));
    }
    if field(24) != objects.len() as u64 || field(32) != checksum(objects) {
        return Err(damaged("its objects do not have their checksum"));
    }
    let mut copied = Copied { position: Position(field(16)), objects: Vec::new() };
    let mut reader = Reader::new(objects);
    while reader.position() < objects.len() {
        copied.objects.push((reader.bytes()?.to_vec(), reader.bytes()?.to_vec()));
    }
    Ok(Some(copied))
}
