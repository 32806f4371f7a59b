//! The manifest of a partition: which tables it has, on which levels (`docs/format.md` section 5.13).
//!
//! It is replaced as a whole. So a crash during a compaction leaves the old levels or the new ones. What was logged
//! since comes from the log.
//!
//! There are two of them with the same bytes, so that a damaged one costs nothing. The copy is written first. A crash
//! between the two leaves it one step newer, and both steps have all their files: an opening for writing makes them
//! equal before it removes any.

use crate::levels::options::LevelsOptions;
use crate::{Result, StorageError};
use onefold_ground::wire::{Reader, WireError, put_varint};
use onefold_ground::{Ground, GroundError, checksum, read_file, replace_file};
use onefold_oplog::Position;

const MAGIC: &[u8; 8] = b"1FLDLVL1";
const VERSION: u32 = 1;
/// No partition has so many tables.
const LIMIT_BYTES: u64 = 64 << 20;
/// The most levels: with a ratio of 2, the last one has more than any disk.
pub(crate) const MAX_LEVELS: usize = 40;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The greatest epoch that has opened the partition for writing.
    pub(crate) epoch: u64,
    /// Every memtable up to this number is in a table, or has nothing any more.
    pub(crate) flushed: u64,
    /// Numbers from here on are free, for memtables and tables.
    pub(crate) next: u64,
    /// The end of the last batch that it knows of.
    pub(crate) log_end: Position,
    /// Its tables have all that batches before this position say of the partition. A replay passes over these.
    pub(crate) needed: Position,
    /// Tables of level 0 with smaller numbers are in no order, after a repair: their tombstones do not count.
    pub(crate) unordered: u64,
    /// The numbers of the tables of each level. Those of level 0 begin with the youngest; the others share no keys
    /// and are in any order.
    pub(crate) levels: Vec<Vec<u64>>,
}

pub(crate) fn path(directory: &str) -> String {
    format!("{directory}/manifest")
}

fn copy_path(directory: &str) -> String {
    format!("{directory}/manifest-copy")
}

impl Manifest {
    pub(crate) fn new() -> Manifest {
        Manifest { next: 1, ..Manifest::default() }
    }

    fn encode(&self, options: &LevelsOptions) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&options.store);
        for number in [self.epoch, self.flushed, self.next, self.log_end.0, self.needed.0, self.unordered] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        put_varint(&mut bytes, self.levels.len() as u64);
        for level in &self.levels {
            put_varint(&mut bytes, level.len() as u64);
            level.iter().for_each(|table| put_varint(&mut bytes, *table));
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a manifest; the error is for people.
    pub(crate) fn decode(bytes: &[u8], options: &LevelsOptions) -> std::result::Result<Manifest, String> {
        let Some((bytes, sum)) = bytes.split_at_checked(bytes.len().saturating_sub(8)).filter(|(bytes, _)| bytes.starts_with(MAGIC)) else {
            return Err("it is no manifest".to_owned());
        };
        if checksum(bytes).to_le_bytes() != sum {
            return Err("its checksum is wrong".to_owned());
        }
        let decode = || -> std::result::Result<(u32, [u8; 16], Manifest), WireError> {
            let mut reader = Reader::new(&bytes[8..]);
            let version = reader.u32()?;
            let mut store = [0; 16];
            store.copy_from_slice(reader.take(16)?);
            let mut manifest = Manifest {
                epoch: reader.u64()?,
                flushed: reader.u64()?,
                next: reader.u64()?,
                log_end: Position(reader.u64()?),
                needed: Position(reader.u64()?),
                unordered: reader.u64()?,
                levels: Vec::new(),
            };
            let levels = reader.count("levels", 1)?.min(MAX_LEVELS);
            for _ in 0..levels {
                let count = reader.count("tables", 1)?;
                manifest.levels.push((0..count).map(|_| reader.varint()).collect::<std::result::Result<_, _>>()?);
            }
            reader.end()?;
            Ok((version, store, manifest))
        };
        let (version, store, manifest) = decode().map_err(|error| error.to_string())?;
        if version != VERSION {
            return Err(format!("it has version {version}; this program reads version {VERSION}"));
        }
        if store != options.store {
            return Err("it belongs to another store".to_owned());
        }
        let mut tables: Vec<u64> = manifest.levels.iter().flatten().copied().collect();
        tables.sort_unstable();
        let is_right = tables.windows(2).all(|pair| pair[0] < pair[1]) && tables.iter().all(|table| (1..manifest.next).contains(table));
        if is_right && manifest.flushed < manifest.next && manifest.needed <= manifest.log_end {
            Ok(manifest)
        } else {
            Err("its numbers contradict each other".to_owned())
        }
    }

    fn read_one(ground: &dyn Ground, path: &str, options: &LevelsOptions) -> Result<Manifest> {
        let damaged = |why: String| StorageError::SortedTable { path: ground.describe(path), why };
        match read_file(ground, path, LIMIT_BYTES) {
            Ok(bytes) => Manifest::decode(&bytes, options).map_err(damaged),
            Err(error) if error.is_not_found() || matches!(error, GroundError::TooLong { .. }) => Err(damaged(error.to_string())),
            // It may be a loose cable. The error says what happened.
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the manifest. If it cannot be read, the copy counts: that is the same, or one step newer.
    pub(crate) fn read(ground: &dyn Ground, directory: &str, options: &LevelsOptions) -> Result<Manifest> {
        let error = match Manifest::read_one(ground, &path(directory), options) {
            Ok(manifest) => return Ok(manifest),
            Err(error) => error,
        };
        match Manifest::read_one(ground, &copy_path(directory), options) {
            Ok(manifest) => {
                tracing::warn!(%error, "the copy of a manifest is read instead of it");
                Ok(manifest)
            }
            Err(of_copy) if of_copy.is_damage() && error.is_damage() => {
                let why = format!("{error}; {of_copy}; both manifests are damaged: run `onefold check --repair`");
                Err(StorageError::SortedTable { path: ground.describe(directory), why })
            }
            Err(of_copy) => Err(if error.is_damage() { of_copy } else { error }),
        }
    }

    /// Returns the greatest epoch that the manifest or its copy has. A damaged one has none.
    pub(crate) fn stored_epoch(ground: &dyn Ground, directory: &str, options: &LevelsOptions) -> Result<u64> {
        let mut epoch = 0;
        for path in [path(directory), copy_path(directory)] {
            match Manifest::read_one(ground, &path, options) {
                Ok(manifest) => epoch = epoch.max(manifest.epoch),
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(epoch)
    }

    /// Writes the copy, then the manifest. Both are durable on return. Until then, no file goes that either may name.
    pub(crate) fn write(&self, ground: &dyn Ground, directory: &str, options: &LevelsOptions) -> Result<()> {
        let bytes = self.encode(options);
        replace_file(ground, &copy_path(directory), &bytes).map_err(StorageError::cannot_write)?;
        replace_file(ground, &path(directory), &bytes).map_err(StorageError::cannot_write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn any_flipped_bit_of_a_manifest_is_found() {
        let options = LevelsOptions { store: [7; 16], ..LevelsOptions::default() };
        let levels = vec![vec![8, 7], vec![], vec![3, 299]];
        let (log_end, needed) = (Position(4096), Position(512));
        let manifest = Manifest { epoch: 3, flushed: 8, next: 300, log_end, needed, unordered: 7, levels };
        let bytes = manifest.encode(&options);
        assert_eq!(Manifest::decode(&bytes, &options), Ok(manifest));
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&wrong, &options).is_err(), "bit {bit}");
        }
        assert!(Manifest::decode(&bytes, &LevelsOptions::default()).unwrap_err().contains("another store"));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Manifest::decode(&bytes, &LevelsOptions::default()).is_err());
        }
    }
}
