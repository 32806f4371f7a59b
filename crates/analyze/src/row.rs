//! What follows from the figures of one way to cut: the size of a store, and which store is the smallest.

use crate::Analysis;
use crate::lane::{Cut, Effort, Figures};
use onefold_chunking::{Kind, Sizes};
use onefold_fingerprint::Algorithm;

/// Memory of the filter before the chunk index, tenths of a byte for each chunk (`docs/configuration.md`).
const INDEX_MEMORY_TENTHS: u64 = 13;
/// Bytes of a chunk's entry in the index and in a recipe, beside its digest (`docs/format.md` sections 6 and 8.1).
const ENTRY_BYTES: u64 = 12;
/// Bytes of a chunk's entry in the catalog of its container, beside its digest (section 5.3).
const SLOT_BYTES: u64 = 3;
/// Stores are alike if their sizes differ by less than this share of the smallest: compression is an estimate, and
/// tomorrow's data is not known.
pub const ALIKE: f64 = 0.05;
/// No row is the best while the error of an estimate exceeds this.
const MOST_ERROR: f64 = ALIKE / 2.0;

/// The figures of one way to cut, with what follows from them.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub figures: Figures,
    /// Bytes that are no zeros.
    pub data_bytes: u64,
    /// Bytes of the different chunks (or files).
    pub unique_bytes: u64,
    /// Bytes that were in the same path before.
    pub within_bytes: u64,
    /// Bytes that were in another path only.
    pub across_bytes: u64,
    /// Unique bytes, compressed. `None` for whole files.
    pub compressed_bytes: Option<u64>,
    /// Memory of the chunk index.
    pub index_memory_bytes: u64,
    /// The chunk index on disk.
    pub index_disk_bytes: u64,
    /// A store: compressed chunks with index, recipes and catalogs. `None` for whole files.
    pub store_bytes: Option<u64>,
}

impl Row {
    pub(crate) fn new(figures: Figures, algorithm: Algorithm) -> Row {
        let data_bytes = figures.lengths.bytes();
        // Estimates can be a little beyond what is possible.
        let unique_bytes = figures.unique.bytes.min(data_bytes);
        let path_bytes = figures.unique.path_bytes.clamp(unique_bytes, data_bytes);
        let chunks = figures.unique.chunks;
        let digest_bytes = algorithm.digest_bytes() as u64;
        let compressed_bytes = figures.compression.map(|estimate| (unique_bytes as f64 * estimate.ratio) as u64);
        // The index doubles when it is full, so that on the whole its pages are half full.
        let index_disk_bytes = chunks * 2 * (digest_bytes + ENTRY_BYTES);
        let known_bytes = chunks * (digest_bytes + SLOT_BYTES) + chunks * (digest_bytes + ENTRY_BYTES);
        Row {
            figures,
            data_bytes,
            unique_bytes,
            within_bytes: data_bytes - path_bytes,
            across_bytes: path_bytes - unique_bytes,
            compressed_bytes,
            index_memory_bytes: chunks * INDEX_MEMORY_TENTHS / 10,
            index_disk_bytes,
            store_bytes: compressed_bytes.map(|bytes| bytes + index_disk_bytes + known_bytes),
        }
    }

    /// Returns whether all fingerprints were kept, so that nothing is estimated from a sample.
    pub fn is_exact(&self) -> bool {
        self.figures.unique.one_in == 1
    }

    /// Returns whether the sample says too little about the store's size. Never true of whole files: there may be few
    /// of them, and they have no store.
    pub fn is_vague(&self) -> bool {
        self.store_bytes.is_some() && self.figures.unique.error > MOST_ERROR
    }

    /// Returns how often the unique bytes go into all bytes; `None` if there are none.
    pub fn dedup_ratio(&self) -> Option<f64> {
        (self.unique_bytes > 0).then(|| self.figures.logical_bytes as f64 / self.unique_bytes as f64)
    }

    /// Returns the bytes cut in a second of processor time; `None` where nothing is searched for.
    pub fn cut_speed(&self) -> Option<u64> {
        match self.figures.cut {
            Cut::WholeFiles | Cut::Chunks { kind: Kind::Fixed, .. } => None,
            Cut::Chunks { .. } => speed(self.figures.cutting),
        }
    }

    /// Returns the bytes named in a second of processor time; `None` if there was nothing to name.
    pub fn fingerprint_speed(&self) -> Option<u64> {
        speed(self.figures.fingerprinting)
    }
}

fn speed(effort: Effort) -> Option<u64> {
    (effort.bytes > 0 && !effort.time.is_zero()).then(|| (effort.bytes as f64 / effort.time.as_secs_f64()) as u64)
}

impl Analysis {
    /// Returns the bytes of all files, holes included.
    pub fn logical_bytes(&self) -> u64 {
        self.rows.first().map_or(0, |row| row.figures.logical_bytes)
    }

    /// Returns the row with the smallest store. `None` if there is nothing to store, or if an estimate is too vague.
    pub fn best(&self) -> Option<&Row> {
        if self.rows.iter().any(Row::is_vague) {
            return None;
        }
        let stores = self.rows.iter().filter(|row| row.unique_bytes > 0).filter_map(|row| Some((row.store_bytes?, row)));
        stores.min_by_key(|(bytes, _)| *bytes).map(|(_, row)| row)
    }

    /// Returns the row with the defaults of a new store, if its store is [alike](ALIKE) to the best: then there is no
    /// reason to leave the defaults.
    pub fn default_that_suffices(&self) -> Option<&Row> {
        let best_bytes = self.best()?.store_bytes?;
        let usual = Cut::Chunks { kind: Kind::default(), target: Sizes::default().target };
        let row = self.rows.iter().find(|row| row.figures.cut == usual)?;
        (row.store_bytes? as f64 <= best_bytes as f64 * (1.0 + ALIKE)).then_some(row)
    }
}
