//! The declaration of an experiment: a file of TOML (`docs/experiments.md`). It says what is written, how the store is made and opened, on which devices its parts are,
//! and what the paper measured; variants change some of it.
//!
//! Keys that are not known are refused with the nearest one, values out of their range with the range, both with the line.

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
use onefold_engine::Descriptor;
use onefold_fingerprint::Algorithm;
use onefold_ground::{DeviceModel, ModelledPart};
use onefold_storage::Compression;
use onefold_traffic::{Set, Workload};
use onefold_volume::VolumesOptions;

/// No declaration is longer, bytes.
pub const MAX_SPEC_BYTES: u64 = 256 << 10;

/// No generation is larger, bytes: as the sets of data have it.
pub const MAX_SIZE_BYTES: u64 = 1 << 60;

/// Parts of a store: their names in declarations and results, and how their paths begin.
pub const PARTS: [(&str, &str); 4] =
    [("chunk-index", "index/"), ("block-index", "objects/"), ("containers", "containers/"), ("log", "log/")];

/// An experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// What it is, and what is known of it.
    pub about: About,
    /// Bytes of one generation, all clients together, where a variant says nothing else.
    pub full_size_bytes: u64,
    /// At least one.
    pub variants: Vec<VariantSpec>,
}

/// A variant, whole: what it does not say itself is that of the experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantSpec {
    /// Its name.
    pub name: String,
    /// What is written.
    pub workload: WorkloadSpec,
    /// How the store is made.
    pub store: StoreSpec,
    /// With what it is opened.
    pub settings: Vec<Setting>,
    /// The settings whose values follow the size, as `memory.auxiliary_index`.
    pub scaled: Vec<String>,
    /// How it is run.
    pub run: RunSpec,
    /// The devices of the parts, in the order of [`PARTS`]; `None`: on what is there.
    pub devices: [Option<DeviceModel>; PARTS.len()],
    /// Everything that was said, a line of TOML for each value.
    pub lines: Vec<(String, String)>,
}

/// What is written.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    /// The kind of data.
    pub set: Set,
    /// Bytes of one generation, all clients together.
    pub size_bytes: u64,
    /// Clients that write at the same time.
    pub clients: u32,
    /// Generations, one after the other.
    pub generations: u32,
    /// What all data follows from.
    pub seed: u64,
}

/// How the store is made.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreSpec {
    /// Who cuts the chunks.
    pub chunker: Kind,
    /// Their sizes.
    pub chunk_sizes: Sizes,
    /// The hash that names them.
    pub fingerprint: Algorithm,
    /// Codec of the frames.
    pub compression: Compression,
    /// Stored bytes of a full container.
    pub container_bytes: u32,
    /// Raw bytes that are compressed together.
    pub frame_bytes: u32,
    /// Bytes of a block of a volume.
    pub block_bytes: u32,
    /// Whether the bytes of chunks are thrown away.
    pub discard_data: bool,
}

/// A line of `[settings]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key with its section, as `memory.auxiliary_index`.
    pub key: String,
    /// The value as TOML has it.
    pub value: String,
}

/// The way to the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Calls.
    InProcess,
    /// NBD over a Unix socket.
    Nbd,
    /// iSCSI over the loopback address.
    Iscsi,
}

impl Face {
    /// All of them, with their names.
    pub const ALL: [(&str, Face); 3] = [("in-process", Face::InProcess), ("nbd", Face::Nbd), ("iscsi", Face::Iscsi)];

    /// The name in declarations and results.
    pub fn name(self) -> &'static str {
        match self {
            Face::InProcess => "in-process",
            Face::Nbd => "nbd",
            Face::Iscsi => "iscsi",
        }
    }
}

/// How it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSpec {
    /// The way to the volumes.
    pub face: Face,
    /// Bytes of a write request.
    pub request_bytes: usize,
    /// Requests of a client in flight.
    pub depth: usize,
    /// How often all generations are written, each time into a new store.
    pub repetitions: u32,
    /// Whether the store is closed and opened again between generations.
    pub restart: bool,
    /// Whether the system forgets what it keeps of the store's files in memory between generations.
    pub cold_caches: bool,
    /// Whether a generation overwrites the volumes of the one before.
    pub clone: bool,
}

/// What a store of an experiment is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// For the engine.
    pub engine: onefold_engine::Settings,
    /// For the volumes.
    pub volumes: VolumesOptions,
}

/// The settings of a store, as those know them who read `onefold.toml`.
pub trait SettingsReader {
    /// Whether `section.key = value` may stand in settings. The error says what is wrong and what would be right; it names the key.
    fn check(&self, key: &str, value: &str) -> std::result::Result<(), String>;
    /// The least value of a setting that is a size, bytes; `None`: it is none.
    fn least_bytes(&self, key: &str) -> Option<u64>;
    /// Reads settings, each on a line of its own as `section.key = value`. The error says what contradicts what.
    fn read(&self, text: &str) -> std::result::Result<StoreSettings, String>;
}

impl Spec {
    /// Reads a declaration. `settings` judges its settings.
    pub fn parse(text: &str, settings: &dyn SettingsReader) -> Result<Spec, SpecError> {
        parse::parse(text, settings)
    }

    /// The variant with a name.
    pub fn variant(&self, name: &str) -> Option<&VariantSpec> {
        self.variants.iter().find(|variant| variant.name == name)
    }
}

impl VariantSpec {
    /// The data of a client in a generation, when a generation of all clients has `size_bytes`.
    pub fn stream_of(&self, client: u32, generation: u32, size_bytes: u64) -> Workload {
        let WorkloadSpec { set, seed, clients, .. } = self.workload;
        Workload { set, seed, client, generation, size_bytes: size_bytes / u64::from(clients) / GRAIN_BYTES * GRAIN_BYTES }
    }

    /// The parts of the store with their devices.
    pub fn modelled_parts(&self) -> Vec<ModelledPart> {
        let part = |((name, prefix), model): (&(&str, &str), &Option<DeviceModel>)| ModelledPart {
            name: (*name).to_owned(),
            prefix: (*prefix).to_owned(),
            model: model.clone(),
        };
        PARTS.iter().zip(&self.devices).map(part).collect()
    }
}

/// Streams, and so requests, consist of whole pieces of so many bytes: blocks of any disk.
pub const GRAIN_BYTES: u64 = 4096;

impl StoreSpec {
    /// A new store of this kind.
    pub fn descriptor(&self) -> onefold_engine::Result<Descriptor> {
        Ok(Descriptor {
            fingerprint: self.fingerprint,
            chunker: self.chunker,
            chunk_sizes: self.chunk_sizes,
            container_bytes: self.container_bytes,
            frame_bytes: self.frame_bytes,
            compression: self.compression,
            sequential_frame_bytes: self.frame_bytes,
            sequential_compression: self.compression,
            discards_data: self.discard_data,
            ..Descriptor::new()?
        })
    }
}
