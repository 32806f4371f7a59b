//! The manifest (`docs/format.md` section 11.2): where the log begins, and which object says what has the effects of
//! everything before.
//!
//! Manifests are numbered without holes, and stay for ever: they are small. So the newest one is found by asking for
//! numbers, without a list. And a former owner that puts its next one finds the number taken, however late it is.

use super::history::{Part, Piece, Run};
use crate::Position;
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use std::ops::RangeInclusive;

const MAGIC: &[u8; 8] = b"1FLDMAN1";
const RUNS_MAGIC: &[u8; 8] = b"1FLDRUN1";
const VERSION: u32 = 1;
/// The version of a manifest of a shared log. So earlier programs refuse it.
const SHARED_VERSION: u32 = 2;
/// Version 1 of the runs had no keys.
const RUNS_VERSION: u32 = 2;
/// A manifest is never longer.
pub(super) const LIMIT_BYTES: u64 = 4096;
/// Least bytes of a piece, of one with its first key, and of a run.
const PIECE_BYTES: usize = 19;
const PART_BYTES: usize = 20;
const RUN_BYTES: usize = 17;

/// A manifest. Each change of it gets the next number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) number: u64,
    /// The opening that put it.
    pub(super) epoch: u64,
    /// The number of the first batch that the log still has, or will have.
    pub(super) first: u64,
    /// Where that batch starts.
    pub(super) start: Position,
    /// The checksum of the object before it.
    pub(super) follows: u64,
    /// The object with the [`Runs`]. `None`: `start` is 0.
    pub(super) runs: Option<Piece>,
    /// The log is that of one of several nodes: other logs say what is true of some keys.
    pub(super) is_shared: bool,
}

/// What has the effects of everything before the start of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs {
    /// Oldest first.
    pub(super) runs: Vec<Run>,
    /// Objects that these runs make useless. They are deleted when the manifest is in the bucket, and the next runs no
    /// longer name them. So nobody has to list them.
    pub(super) useless: Useless,
}

/// Objects that are of no use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Useless {
    /// Batches, by number.
    pub(super) batches: Vec<u64>,
    /// Pieces of runs that were merged, and earlier lists of runs.
    pub(super) pieces: Vec<Piece>,
}

/// Returns the name of a manifest.
pub(super) fn name(number: u64) -> String {
    format!("manifests/{number:016x}")
}

/// Returns the number in a name; `None`: no manifest.
pub(super) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("manifests/")?;
    if digits.len() == 16 { u64::from_str_radix(digits, 16).ok() } else { None }
}

impl Manifest {
    pub(super) fn encode(&self, store: &[u8; 16]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&if self.is_shared { SHARED_VERSION } else { VERSION }.to_le_bytes());
        out.extend_from_slice(store);
        for value in [self.number, self.epoch, self.first, self.start.0, self.follows] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        put_pieces(&mut out, self.runs.as_slice());
        out.extend_from_slice(&checksum(&out).to_le_bytes());
        out
    }

    /// Reads a manifest; the error is for people.
    pub(super) fn decode(bytes: &[u8], store: &[u8; 16], number: u64) -> Result<Manifest, String> {
        let manifest = Manifest::decode_copy(bytes, store)?;
        if manifest.number != number {
            return Err(format!("the manifest says that it is number {}", manifest.number));
        }
        Ok(manifest)
    }

    /// Does the same, whatever its number is.
    pub(super) fn decode_copy(bytes: &[u8], store: &[u8; 16]) -> Result<Manifest, String> {
        let (version, mut reader) = begin(bytes, MAGIC, VERSION..=SHARED_VERSION, store)?;
        let is_shared = version == SHARED_VERSION;
        let mut fields = || {
            let (number, epoch, first) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let (start, follows) = (Position(reader.u64()?), reader.u64()?);
            let runs = read_pieces(&mut reader)?;
            reader.end()?;
            Ok::<_, WireError>((Manifest { number, epoch, first, start, follows, runs: runs.first().copied(), is_shared }, runs.len()))
        };
        let (manifest, runs) = fields().map_err(|error| error.to_string())?;
        if runs > 1 || manifest.runs.is_some() != (manifest.start > Position(0)) {
            return Err(format!("the manifest has {runs} lists of runs, and the log begins at {}", manifest.start.0));
        }
        Ok(manifest)
    }
}

impl Runs {
    pub(super) fn encode(&self, store: &[u8; 16]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(RUNS_MAGIC);
        out.extend_from_slice(&RUNS_VERSION.to_le_bytes());
        out.extend_from_slice(store);
        put_varint(&mut out, self.runs.len() as u64);
        for run in &self.runs {
            out.extend_from_slice(&run.from.0.to_le_bytes());
            out.extend_from_slice(&run.to.0.to_le_bytes());
            put_varint(&mut out, run.parts.len() as u64);
            for Part { piece, first } in &run.parts {
                put_piece(&mut out, piece);
                put_bytes(&mut out, first);
            }
        }
        put_varint(&mut out, self.useless.batches.len() as u64);
        self.useless.batches.iter().for_each(|number| put_varint(&mut out, *number));
        put_pieces(&mut out, &self.useless.pieces);
        out.extend_from_slice(&checksum(&out).to_le_bytes());
        out
    }

    /// Reads the runs before the start of the log; the error is for people.
    pub(super) fn decode(bytes: &[u8], store: &[u8; 16], start: Position) -> Result<Runs, String> {
        let (_, mut reader) = begin(bytes, RUNS_MAGIC, RUNS_VERSION..=RUNS_VERSION, store)?;
        let mut fields = || {
            let mut runs = Vec::new();
            for _ in 0..reader.count("runs", RUN_BYTES)? {
                let (from, to) = (Position(reader.u64()?), Position(reader.u64()?));
                let count = reader.count("pieces", PART_BYTES)?;
                let parts = (0..count).map(|_| Ok(Part { piece: read_piece(&mut reader)?, first: reader.bytes()?.to_vec() }));
                runs.push(Run { from, to, parts: parts.collect::<Result<_, WireError>>()? });
            }
            let count = reader.count("batches", 1)?;
            let batches = (0..count).map(|_| reader.varint()).collect::<Result<_, _>>()?;
            let useless = Useless { batches, pieces: read_pieces(&mut reader)? };
            reader.end()?;
            Ok::<_, WireError>(Runs { runs, useless })
        };
        let found = fields().map_err(|error| error.to_string())?;
        let mut end = Position(0);
        for run in &found.runs {
            if run.from != end || run.to <= run.from {
                return Err(format!("a part of the history goes from {} to {}, and {} was expected", run.from.0, run.to.0, end.0));
            }
            if run.parts.windows(2).any(|pair| pair[0].first >= pair[1].first) {
                return Err("the first keys of the pieces of a run do not ascend".to_owned());
            }
            end = run.to;
        }
        if end != start {
            return Err(format!("the history ends at {}, and the log begins at {}", end.0, start.0));
        }
        Ok(found)
    }
}

/// Checks what both kinds of objects begin and end with. Returns the version.
fn begin<'a>(bytes: &'a [u8], magic: &[u8; 8], versions: RangeInclusive<u32>, store: &[u8; 16]) -> Result<(u32, Reader<'a>), String> {
    let Some((content, sum)) = bytes.split_last_chunk::<8>() else { return Err("the object is too short".to_owned()) };
    if checksum(content) != u64::from_le_bytes(*sum) {
        return Err("its checksum is wrong".to_owned());
    }
    let mut reader = Reader::new(content);
    let mut fields = || Ok::<_, WireError>((reader.take(8)?, reader.u32()?, reader.take(16)?));
    let (found_magic, found_version, found_store) = fields().map_err(|error| error.to_string())?;
    if found_magic != magic {
        return Err("this is another kind of object".to_owned());
    }
    if !versions.contains(&found_version) {
        return Err(format!("it has format version {found_version}; this program reads versions up to {}", versions.end()));
    }
    if found_store != store {
        return Err("it belongs to another store".to_owned());
    }
    Ok((found_version, reader))
}

fn put_pieces(out: &mut Vec<u8>, pieces: &[Piece]) {
    put_varint(out, pieces.len() as u64);
    pieces.iter().for_each(|piece| put_piece(out, piece));
}

fn put_piece(out: &mut Vec<u8>, piece: &Piece) {
    out.extend_from_slice(&piece.epoch.to_le_bytes());
    put_varint(out, piece.count);
    put_varint(out, piece.length_bytes);
    put_varint(out, piece.effects);
    out.extend_from_slice(&piece.checksum.to_le_bytes());
}

fn read_pieces(reader: &mut Reader<'_>) -> Result<Vec<Piece>, WireError> {
    let count = reader.count("pieces", PIECE_BYTES)?;
    (0..count).map(|_| read_piece(reader)).collect()
}

fn read_piece(reader: &mut Reader<'_>) -> Result<Piece, WireError> {
    let epoch = reader.u64()?;
    let (count, length_bytes, effects) = (reader.varint()?, reader.varint()?, reader.varint()?);
    Ok(Piece { epoch, count, length_bytes, effects, checksum: reader.u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(count: u64) -> Piece {
        Piece { epoch: 3, count, length_bytes: 1 << 21, effects: 70_000, checksum: 9 << 50 }
    }

    fn refuses_flipped_bits(mut bytes: Vec<u8>, is_refused: impl Fn(&[u8]) -> bool) {
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(is_refused(&bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_manifest_is_read_as_written_and_every_flipped_bit_is_found() {
        for (runs, is_shared) in [(Some(piece(9)), false), (Some(piece(9)), true), (None, false), (None, true)] {
            let start = Position(if runs.is_some() { 4096 } else { 0 });
            let manifest = Manifest { number: 4, epoch: 3, first: 17, start, follows: 1 << 60, runs, is_shared };
            let bytes = manifest.encode(&[5; 16]);
            assert_eq!(Manifest::decode(&bytes, &[5; 16], 4), Ok(manifest));
            assert!(Manifest::decode(&bytes, &[5; 16], 5).is_err() && Manifest::decode(&bytes, &[6; 16], 4).is_err());
            refuses_flipped_bits(bytes, |bytes| Manifest::decode(bytes, &[5; 16], 4).is_err());
        }
    }

    #[test]
    fn runs_are_read_as_written_and_every_flipped_bit_is_found() {
        let part = |number: u64| Part { piece: piece(number), first: vec![number as u8; 3] };
        let run = |from, to, parts| Run { from: Position(from), to: Position(to), parts };
        let runs = vec![run(0, 8192, vec![part(1), part(2)]), run(8192, 12288, vec![])];
        let found = Runs { runs, useless: Useless { batches: vec![3, 1 << 40], pieces: vec![piece(7)] } };
        let bytes = found.encode(&[5; 16]);
        assert_eq!(Runs::decode(&bytes, &[5; 16], Position(12288)), Ok(found));
        assert!(Runs::decode(&bytes, &[5; 16], Position(8192)).unwrap_err().contains("the history ends at 12288"));
        refuses_flipped_bits(bytes, |bytes| Runs::decode(bytes, &[5; 16], Position(12288)).is_err());
        let mixed = Runs { runs: vec![run(0, 8192, vec![part(2), part(1)])], ..Runs::default() };
        assert!(Runs::decode(&mixed.encode(&[5; 16]), &[5; 16], Position(8192)).unwrap_err().contains("do not ascend"));
        let hole = Runs { runs: vec![run(4096, 8192, vec![])], ..Runs::default() };
        assert!(Runs::decode(&hole.encode(&[5; 16]), &[5; 16], Position(8192)).unwrap_err().contains("0 was expected"));
    }
}
