//! Options of a levelled store.

use crate::levels::table::PLACE_BYTES;
use crate::{Compression, Result, StorageError};
use onefold_fingerprint::Algorithm;

/// How tables and levels are, and bounds on memory.
#[derive(Clone, Debug)]
pub struct LevelsOptions {
    /// Raw bytes of chunks in a memtable (`M`, M2.5), 4 KiB to 64 MiB.
    pub memtable_bytes: u32,
    /// By how much the next level is larger (`S`, M2.9), 2 to 100.
    pub ratio: u32,
    /// Tables that a level has before it is compacted (`N`, M2.9), 2 to 1000.
    pub tables: u32,
    /// Raw bytes, with keys, that a table of a compaction has at most, but for one chunk: a larger one is divided. The
    /// larger tables are, the less do they tear streams apart.
    pub table_bytes: u64,
    /// Bytes of decompressed frames that are kept for reading.
    pub frame_cache_bytes: usize,
    /// Threads that make tables of full memtables. 0: whoever fills one does it.
    pub flushers: usize,
    /// A frame is closed when it has this many raw bytes, 512 bytes to 16 MiB.
    pub frame_bytes: u32,
    /// How frames are compressed.
    pub compression: Compression,
    /// The same as `frame_bytes`, for what is read from its beginning to its end.
    pub sequential_frame_bytes: u32,
    /// The same as `compression`, for the same data.
    pub sequential_compression: Compression,
    /// How chunks are named.
    pub fingerprint: Algorithm,
    /// The store's name.
    pub store: [u8; 16],
    /// Bytes of filters in memory. Tables whose filter finds no room are asked by reading a page.
    pub filter_bytes: usize,
}

impl Default for LevelsOptions {
    fn default() -> LevelsOptions {
        LevelsOptions {
            memtable_bytes: 4 << 20,
            ratio: 10,
            tables: 10,
            table_bytes: 1 << 30,
            frame_cache_bytes: 64 << 20,
            flushers: 0,
            frame_bytes: 64 << 10,
            compression: Compression::Zstd(1),
            sequential_frame_bytes: 512 << 10,
            sequential_compression: Compression::Zstd(2),
            fingerprint: Algorithm::Blake3,
            store: [0; 16],
            filter_bytes: 64 << 20,
        }
    }
}

impl LevelsOptions {
    pub(crate) fn digest_bytes(&self) -> usize {
        self.fingerprint.digest_bytes()
    }

    /// Returns the bytes of a key in a table.
    pub(crate) fn key_bytes(&self) -> u64 {
        (self.digest_bytes() + PLACE_BYTES) as u64
    }

    /// Returns the raw bytes that a level has before it is compacted: `S^level N M`.
    pub(crate) fn level_bytes(&self, level: usize) -> u64 {
        self.grown(u64::from(self.memtable_bytes) * u64::from(self.tables), level)
    }

    /// Returns what fits into this many levels: `(S^L - 1) / (S - 1) N M` (M2.9).
    pub fn capacity_bytes(&self, levels: usize) -> u64 {
        (0..levels).map(|level| self.level_bytes(level)).fold(0, u64::saturating_add)
    }

    fn grown(&self, bytes: u64, level: usize) -> u64 {
        (0..level).fold(bytes, |bytes, _| bytes.saturating_mul(u64::from(self.ratio)))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let refused = |option, value: u64, allowed| Err(StorageError::Option { option, value: value.to_string(), allowed });
        if !(4 << 10..=64 << 20).contains(&self.memtable_bytes) {
            return refused("memtable_bytes", self.memtable_bytes.into(), "4 KiB to 64 MiB");
        }
        if !(2..=100).contains(&self.ratio) {
            return refused("ratio", self.ratio.into(), "2 to 100");
        }
        if !(2..=1000).contains(&self.tables) {
            return refused("tables", self.tables.into(), "2 to 1000");
        }
        if self.table_bytes < u64::from(self.memtable_bytes) {
            return refused("table_bytes", self.table_bytes, "at least memtable_bytes");
        }
        for (option, bytes) in [("frame_bytes", self.frame_bytes), ("sequential_frame_bytes", self.sequential_frame_bytes)] {
            if !(512..=16 << 20).contains(&bytes) {
                return refused(option, bytes.into(), "512 bytes to 16 MiB");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m2_9_the_capacity_is_that_of_the_formula() {
        // The paper's example: 10 levels, 500 files, 4 MB, ratio 2 "is almost 2 TB". By its own formula it is 2.15.
        let options = LevelsOptions { ratio: 2, tables: 500, memtable_bytes: 4 << 20, ..LevelsOptions::default() };
        assert_eq!(options.capacity_bytes(10), ((1 << 10) - 1) * 500 * (4 << 20));
        assert_eq!(options.level_bytes(9), 512 * 500 * (4 << 20));
        let options = LevelsOptions::default();
        assert_eq!(options.capacity_bytes(3), 111 * 10 * (4 << 20));
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        LevelsOptions::default().check().unwrap();
        let with = |change: fn(&mut LevelsOptions)| {
            let mut options = LevelsOptions::default();
            change(&mut options);
            options.check().unwrap_err().to_string()
        };
        assert!(with(|options| options.memtable_bytes = 1).starts_with("memtable_bytes is 1; "));
        assert!(with(|options| options.ratio = 1).starts_with("ratio is 1; "));
        assert!(with(|options| options.tables = 1).starts_with("tables is 1; "));
        assert!(with(|options| options.table_bytes = 1).starts_with("table_bytes is 1; "));
        assert!(with(|options| options.frame_bytes = 1).starts_with("frame_bytes is 1; "));
    }
}
