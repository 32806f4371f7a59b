//! The choice of data: the set, and the numbers that determine its bytes.

use crate::lengths;
use crate::model::{Model, ModelScript, Variant};
use crate::noise::Key;
use crate::op::Op;
use crate::pool::{Pool, Reuse};
use crate::script::Script;
use crate::sets::{
    DATA_RUN_BYTES, FINGERPRINT_BYTES, FINGERPRINTS_RUN_BYTES, IMAGES, ImageScript, PlainScript, SEGMENT_BYTES, VersionScript,
    image_segments,
};
use crate::stream::{Fingerprints, Generation, Runs, Stream};

/// The last generation. Generating one takes all the generations before it.
pub const GENERATIONS_MAX: u32 = 1000;

/// More than any disk has. Sums of sizes and file offsets cannot overflow.
const SIZE_MAX_BYTES: u64 = 1 << 60;

/// A kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Backups of a file server, as modelled in the dedupv1 papers. All generations have the same size.
    Generations(Model),
    /// Files without duplicates (E3.1). The generation is the number of the file.
    UniqueFiles,
    /// Fingerprints of 32 bytes, one after the other, without data (E2.2). There are ten versions. Version v has
    /// (v - 1) tenths of the fingerprints of the previous version, in the same places, in runs of 512. The tenths are
    /// exact if the size is a multiple of 5,120 fingerprints.
    Fingerprints,
    /// The same ten versions as data (E2.2), in runs of 1 MiB. The tenths are exact if the size is a multiple of
    /// 10 MiB.
    Versions,
    /// Blocks of 4 KiB, all of them different (E1.1).
    DisjointBlocks,
    /// Files of 4 MiB, one after the other. Each repeats one 4 KiB block 1,024 times (E1.2).
    DuplicateBlocks,
    /// Four virtual machine images, each derived from the previous one (E3.4). The numbers of kept and new 4 KiB
    /// segments are the paper's. The paper does not say where they are, so runs of 256 KiB are spread evenly. The size
    /// is the size of the first image. The others are larger in proportion.
    VmImages,
}

impl Set {
    /// Returns the size that the papers used, in bytes.
    pub fn default_size_bytes(self) -> u64 {
        match self {
            // One client in the experiments of 2010.
            Set::Generations(_) => 32 << 30,
            Set::UniqueFiles => 3_000_000_000,
            // A tenth of 16.3 TB in chunks of 8 KiB, rounded up to make the tenths exact.
            Set::Fingerprints => 38_863 * 10 * FINGERPRINTS_RUN_BYTES,
            // The same number of bytes as these chunks have, to the next multiple of ten runs.
            Set::Versions => 155_452 * 10 * DATA_RUN_BYTES,
            // 1024 files of 1024 blocks.
            Set::DisjointBlocks | Set::DuplicateBlocks => 4 << 30,
            Set::VmImages => IMAGES[0].0 * SEGMENT_BYTES,
        }
    }

    /// Returns the number of generations, versions or files.
    pub fn generations(self) -> u32 {
        match self {
            Set::Fingerprints | Set::Versions => 10,
            Set::VmImages => IMAGES.len() as u32,
            _ => GENERATIONS_MAX,
        }
    }

    /// Returns whether a generation has data of the previous one.
    pub fn copies(self) -> bool {
        matches!(self, Set::Generations(_) | Set::Fingerprints | Set::Versions | Set::VmImages)
    }

    /// Returns the number of the set in keys. It must never change.
    fn number(self) -> u64 {
        match self {
            Set::Generations(_) => 1,
            Set::UniqueFiles => 2,
            Set::Fingerprints => 3,
            Set::DisjointBlocks => 4,
            Set::DuplicateBlocks => 5,
            Set::VmImages => 6,
            Set::Versions => 7,
        }
    }
}

/// Everything that determines a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The kind of data.
    pub set: Set,
    /// Different seeds give different data.
    pub seed: u64,
    /// Different clients have different data.
    pub client: u32,
    /// Generation, version or file, from 1 to [`Set::generations`].
    pub generation: u32,
    /// Size in bytes, 1 to 2^60: of every generation, or of the first image of [`Set::VmImages`], where it is rounded
    /// down to segments of 4 KiB.
    pub size_bytes: u64,
}

/// The reason why a workload is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// The set has no such generation.
    #[error("there is no generation {generation}: this set has 1 to {last}")]
    Generation {
        /// The generation asked for.
        generation: u32,
        /// The last generation.
        last: u32,
    },
    /// The size is too small.
    #[error("a size of {size_bytes} bytes is too small for this set: it must be at least {least_bytes}")]
    Small {
        /// The size asked for.
        size_bytes: u64,
        /// The smallest allowed size.
        least_bytes: u64,
    },
    /// The size is too large.
    #[error("a size of {size_bytes} bytes is too large: it must be at most 1EiB")]
    Large {
        /// The size asked for.
        size_bytes: u64,
    },
    /// The size ends within a fingerprint.
    #[error("{size_bytes} bytes do not make whole fingerprints: the size must be a multiple of {FINGERPRINT_BYTES}")]
    Fingerprints {
        /// The size asked for.
        size_bytes: u64,
    },
}

/// The purposes of keys.
const UNIQUE: u64 = 4;
const POOL: u64 = 5;
const PICKS: u64 = 6;

impl Workload {
    /// Returns the bytes. Errors: the set has no such generation or size.
    pub fn stream(&self) -> Result<Stream, TrafficError> {
        self.validate()?;
        Ok(Stream::new(self.cursor()))
    }

    /// Returns the runs of the stream, without its bytes. Errors: as for [`Workload::stream`].
    pub fn runs(&self) -> Result<Runs, TrafficError> {
        self.validate()?;
        Ok(Runs::new(self.script(self.generation)))
    }

    /// Returns the fingerprints of [`Set::Fingerprints`]. For another set, returns its bytes in pieces of 32. Errors:
    /// as for [`Workload::stream`].
    pub fn fingerprints(&self) -> Result<Fingerprints, TrafficError> {
        Ok(Fingerprints::new(self.stream()?))
    }

    /// Returns the length of the stream in bytes.
    pub fn length_bytes(&self) -> u64 {
        self.length_of(self.generation)
    }

    /// Returns whether the run lengths of this generation come from the estimate that replaces the unpublished lists.
    pub fn is_reconstructed(&self) -> bool {
        matches!(self.set, Set::Generations(_)) && self.generation == 1
    }

    pub(crate) fn length_of(&self, generation: u32) -> u64 {
        match self.set {
            Set::VmImages => image_segments(generation, self.size_bytes / SEGMENT_BYTES).0 * SEGMENT_BYTES,
            _ => self.size_bytes,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), TrafficError> {
        let last = self.set.generations();
        if !(1..=last).contains(&self.generation) {
            return Err(TrafficError::Generation { generation: self.generation, last });
        }
        let size_bytes = self.size_bytes;
        let least_bytes = match self.set {
            Set::Fingerprints => FINGERPRINT_BYTES,
            Set::VmImages => SEGMENT_BYTES,
            _ => 1,
        };
        if size_bytes < least_bytes {
            return Err(TrafficError::Small { size_bytes, least_bytes });
        }
        if size_bytes > SIZE_MAX_BYTES {
            return Err(TrafficError::Large { size_bytes });
        }
        if self.set == Set::Fingerprints && !size_bytes.is_multiple_of(FINGERPRINT_BYTES) {
            return Err(TrafficError::Fingerprints { size_bytes });
        }
        Ok(())
    }

    fn key(&self, generation: u32, purpose: u64) -> Key {
        Key::derive(&[self.seed, self.set.number(), u64::from(self.client), u64::from(generation), purpose])
    }

    pub(crate) fn script(&self, generation: u32) -> Script {
        let size = self.size_bytes;
        match self.set {
            Set::Generations(model) => {
                // Loads the run lengths now, so that the first use does not fall into a measurement.
                let _ = (lengths::first(), lengths::second(model.trace));
                Script::Model(ModelScript::new(model, generation, size, |purpose| self.key(generation, purpose)))
            }
            Set::UniqueFiles | Set::DisjointBlocks => Script::Plain(PlainScript::new(Op::Unique(size))),
            Set::DuplicateBlocks => Script::Plain(PlainScript::new(Op::Internal(size))),
            Set::Fingerprints => Script::Versions(VersionScript::new(generation, size, FINGERPRINTS_RUN_BYTES)),
            Set::Versions => Script::Versions(VersionScript::new(generation, size, DATA_RUN_BYTES)),
            Set::VmImages => Script::Images(ImageScript::new(generation, size / SEGMENT_BYTES)),
        }
    }

    pub(crate) fn pool(&self, generation: u32) -> Pool {
        let reuse = match self.set {
            Set::Generations(Model { variant: Variant::Python2009, .. }) => Reuse::Pattern,
            Set::DuplicateBlocks => Reuse::BlockOfFile,
            _ => Reuse::Exponential,
        };
        Pool::new(reuse, self.key(generation, PICKS))
    }

    /// Returns the start of this generation, on top of all the generations whose data it has.
    fn cursor(&self) -> Generation {
        let one = |generation, source| {
            let (unique, pooled) = (self.key(generation, UNIQUE), self.key(generation, POOL));
            Generation::new(self.script(generation), self.pool(generation), unique, pooled, source)
        };
        let mut source = None;
        if self.set.copies() {
            for generation in 1..self.generation {
                source = Some(Box::new(one(generation, source)));
            }
        }
        one(self.generation, source)
    }
}
