//! The declaration of an experiment: a TOML file (`docs/experiments.md`). It says what is written, how the store is
//! made and opened, on which devices its parts are, and what the paper measured. Variants change some of it.
//!
//! Unknown keys are refused with the nearest known key, out-of-range values with the range, both with the line.

mod figures;
mod parse;
mod scale;
mod table;

#[cfg(test)]
mod tests;

pub use scale::Scaled;
pub use table::SpecError;

use crate::results::About;
use onefold_chunking::{Kind, Sizes};
use onefold_engine::{Descriptor, Dia, StoreProfile, Tag};
use onefold_fingerprint::Algorithm;
use onefold_ground::{DeviceModel, ModelledPart};
use onefold_storage::Compression;
use onefold_traffic::{Set, Workload};
use onefold_volume::VolumesOptions;

/// The longest declaration, bytes.
pub const MAX_SPEC_BYTES: u64 = 256 << 10;

/// The largest generation, bytes: the limit of the data sets.
pub const MAX_SIZE_BYTES: u64 = 1 << 60;

/// Parts of a store: their names in declarations and results, and the prefixes of their paths.
pub const PARTS: [(&str, &str); 5] =
    [("chunk-index", "index/"), ("block-index", "objects/"), (CONTAINERS, "containers/"), (LEVELS, "levels/"), ("log", "log/")];

/// The directory of the log in a store.
pub const LOG_DIRECTORY: &str = "log";
/// What a store keeps free for deleting on a full disk, in its directory.
pub const RESERVE_FILE: &str = "reserve";

/// The parts with chunks. Each partition of them has devices of its own, and a directory: its number in hexadecimal.
pub const CONTAINERS: &str = "containers";
/// The same in profile `leveled`.
pub const LEVELS: &str = "levels";

/// An experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its description, with the paper's figures.
    pub about: About,
    /// Bytes of one generation, over all clients, unless a variant differs.
    pub full_size_bytes: u64,
    /// The variants; at least one.
    pub variants: Vec<VariantSpec>,
}

/// A complete variant: what it does not say itself comes from the experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantSpec {
    /// Its name.
    pub name: String,
    /// The data to write.
    pub workload: WorkloadSpec,
    /// What the store is filled with first.
    pub fill: Option<FillSpec>,
    /// How the store is made.
    pub store: StoreSpec,
    /// The settings to open it with.
    pub settings: Vec<Setting>,
    /// The settings whose values scale with the size, such as `memory.auxiliary_index`.
    pub scaled: Vec<String>,
    /// How it is run.
    pub run: RunSpec,
    /// The devices of the parts, in the order of [`PARTS`]. `None`: a real device.
    pub devices: [Option<DeviceModel>; PARTS.len()],
    /// The complete declaration, a line of TOML for each value.
    pub lines: Vec<(String, String)>,
}

/// The data to write.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    /// The kind of data.
    pub set: Set,
    /// Bytes of one generation, over all clients.
    pub size_bytes: u64,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Number of generations, written one after the other.
    pub generations: u32,
    /// The seed that determines all data.
    pub seed: u64,
    /// Whether each generation is the same data as the first.
    pub repeat: bool,
    /// What is done in each generation.
    pub work: Vec<Work>,
}

/// What clients do in a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// They write their streams to volumes.
    Write,
    /// They read what the last [`Work::Write`] wrote, change the first bytes of each request, and write it back (E1.4,
    /// as bonnie++ does).
    Rewrite,
    /// They read what the last [`Work::Write`] wrote.
    Read,
    /// Each stores a backup whose chunks are new, by their names.
    AddData,
    /// Each stores a backup of another name with the chunks of the last [`Work::AddData`].
    AddReferences,
    /// The backups of [`Work::AddReferences`] are deleted.
    DeleteReferences,
    /// The backups of [`Work::AddData`] are deleted.
    DeleteData,
}

impl Work {
    /// All kinds, with their names.
    pub const ALL: [(&str, Work); 7] = [
        ("write", Work::Write),
        ("rewrite", Work::Rewrite),
        ("read", Work::Read),
        ("add-data", Work::AddData),
        ("add-references", Work::AddReferences),
        ("delete-references", Work::DeleteReferences),
        ("delete-data", Work::DeleteData),
    ];

    /// Returns whether clients do it to their volumes.
    pub fn is_of_volumes(self) -> bool {
        matches!(self, Work::Write | Work::Rewrite | Work::Read)
    }
}

/// What a store is filled with before the first generation: backups whose chunks have names but no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillSpec {
    /// Number of chunks, at the full size of the experiment.
    pub chunks: u64,
    /// Number of backups, each of another name.
    pub groups: u64,
    /// Chunks of a file in them.
    pub chunks_each_file: u64,
}

/// How the store is made.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreSpec {
    /// What the store is composed of.
    pub profile: StoreProfile,
    /// The chunker.
    pub chunker: Kind,
    /// Their sizes.
    pub chunk_sizes: Sizes,
    /// The hash that names them.
    pub fingerprint: Algorithm,
    /// Codec of the frames.
    pub compression: Compression,
    /// Stored bytes of a full container, or raw bytes of a memtable.
    pub container_bytes: u32,
    /// Partitions of containers or levels.
    pub partitions: u16,
    /// Raw bytes that are compressed together.
    pub frame_bytes: u32,
    /// Bytes of a block of a volume.
    pub block_bytes: u32,
    /// The tags of the linked index.
    pub index_tag: Tag,
    /// The area of the linked index.
    pub index_area: Dia,
    /// Whether the bytes of chunks are discarded.
    pub discard_data: bool,
}

/// A line of `[settings]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key with its section, such as `memory.auxiliary_index`.
    pub key: String,
    /// The value in TOML notation.
    pub value: String,
}

/// The way to the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Direct calls.
    InProcess,
    /// NBD over a Unix socket.
    Nbd,
    /// iSCSI over the loopback address.
    Iscsi,
    /// A mounted filesystem of the store. A client's volume is a directory with files.
    Filesystem,
    /// Such directories on the disk itself, without a store: what a filesystem is compared with.
    Disk,
    /// The same through bindfs, a FUSE filesystem that does nothing but pass on.
    Passthrough,
}

impl Face {
    /// All faces, with their names.
    pub const ALL: [(&str, Face); 6] = [
        ("in-process", Face::InProcess),
        ("nbd", Face::Nbd),
        ("iscsi", Face::Iscsi),
        ("filesystem", Face::Filesystem),
        ("disk", Face::Disk),
        ("passthrough", Face::Passthrough),
    ];

    /// Returns the name in declarations and results.
    pub fn name(self) -> &'static str {
        Face::ALL.iter().find(|(_, face)| *face == self).map_or("", |(name, _)| name)
    }

    /// Returns whether a client's volume is a directory with files.
    pub fn has_files(self) -> bool {
        matches!(self, Face::Filesystem | Face::Disk | Face::Passthrough)
    }
}

/// How it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSpec {
    /// The way to the volumes.
    pub face: Face,
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Bytes of a file, for faces that have files.
    pub file_bytes: u64,
    /// Requests in flight per client.
    pub depth: usize,
    /// Bytes a second that all clients together send. 0: as many as are answered.
    pub rate_bytes_per_s: u64,
    /// How often all generations are written, each time into a new store.
    pub repetitions: u32,
    /// Whether the store is closed and reopened between generations.
    pub restart: bool,
    /// Whether the system drops its cache of the store's files between generations.
    pub cold_caches: bool,
    /// Whether a generation overwrites the volumes of the previous one.
    pub clone: bool,
    /// Whether unneeded chunks are looked for and removed all the time while clients write.
    pub prune: bool,
}

/// The settings with which an experiment's store is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// For the engine.
    pub engine: onefold_engine::Settings,
    /// For the volumes.
    pub volumes: VolumesOptions,
}

/// The settings of a store, as defined by the reader of `onefold.toml`.
pub trait SettingsReader {
    /// Checks that `section.key = value` is valid. The error names the key, and says what is wrong and what is allowed.
    fn check(&self, key: &str, value: &str) -> std::result::Result<(), String>;
    /// Returns the least value of a size setting, bytes. `None`: it is not a size.
    fn least_bytes(&self, key: &str) -> Option<u64>;
    /// Reads settings, one per line, as `section.key = value`. The error says what contradicts what.
    fn read(&self, text: &str) -> std::result::Result<StoreSettings, String>;
}

impl Spec {
    /// Parses a declaration. `settings` checks its settings.
    pub fn parse(text: &str, settings: &dyn SettingsReader) -> Result<Spec, SpecError> {
        parse::parse(text, settings)
    }

    /// Returns the variant with a name.
    pub fn variant(&self, name: &str) -> Option<&VariantSpec> {
        self.variants.iter().find(|variant| variant.name == name)
    }
}

impl VariantSpec {
    /// Returns the data of a client in a generation, if a generation of all clients has `size_bytes`.
    pub fn stream_of(&self, client: u32, generation: u32, size_bytes: u64) -> Workload {
        let WorkloadSpec { set, seed, clients, .. } = self.workload;
        let generation = self.workload.version(generation);
        Workload { set, seed, client, generation, size_bytes: size_bytes / u64::from(clients) / GRAIN_BYTES * GRAIN_BYTES }
    }

    /// Returns the parts of the store, those on modelled devices with their model. Partitions are parts of one name.
    pub fn modelled_parts(&self) -> Vec<ModelledPart> {
        let part =
            |name: &str, prefix: String, model: &Option<DeviceModel>| ModelledPart { name: name.to_owned(), prefix, model: model.clone() };
        let parts = |((name, prefix), model): (&(&str, &str), &Option<DeviceModel>)| -> Vec<ModelledPart> {
            match self.partitions_of(name) {
                1 => vec![part(name, (*prefix).to_owned(), model)],
                partitions => (0..partitions).map(|number| part(name, format!("{prefix}{number:04x}/"), model)).collect(),
            }
        };
        PARTS.iter().zip(&self.devices).flat_map(parts).collect()
    }

    /// Returns into how many partitions a part is divided, each of which has devices of its own.
    pub fn partitions_of(&self, part: &str) -> u16 {
        if [CONTAINERS, LEVELS].contains(&part) { self.store.partitions } else { 1 }
    }
}

impl WorkloadSpec {
    /// Returns which generation of the set a generation of the experiment is about: the first one that is written, the
    /// second one and so on.
    pub fn version(&self, generation: u32) -> u32 {
        let writes = self.work.iter().take(generation as usize).filter(|work| **work == Work::Write).count();
        if self.repeat { 1 } else { writes.max(1) as u32 }
    }
}

/// Streams, and so requests, consist of whole pieces of this many bytes: blocks of any disk.
pub const GRAIN_BYTES: u64 = 4096;

impl StoreSpec {
    /// Returns the descriptor of a new store of this kind.
    pub fn descriptor(&self) -> onefold_engine::Result<Descriptor> {
        // The chunks of a store without containers are in one file, and its index in one table.
        let is_whole = self.profile.has_blocks();
        let new = Descriptor::new()?;
        Ok(Descriptor {
            index_partitions: if is_whole { 1 } else { new.index_partitions },
            profile: self.profile,
            fingerprint: self.fingerprint,
            chunker: self.chunker,
            chunk_sizes: self.chunk_sizes,
            container_bytes: self.container_bytes,
            container_partitions: self.partitions,
            frame_bytes: self.frame_bytes,
            compression: self.compression,
            sequential_frame_bytes: self.frame_bytes,
            sequential_compression: self.compression,
            index_tag: self.index_tag,
            index_area: self.index_area,
            discards_data: self.discard_data,
            ..new
        })
    }
}
