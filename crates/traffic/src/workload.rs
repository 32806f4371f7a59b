//! Which data: the set, and the numbers that it follows from.

use crate::description::Description;
use crate::lengths;
use crate::model::{Model, ModelScript, Variant};
use crate::noise::Key;
use crate::pool::{Pool, Reuse};
use crate::script::{Op, Script};
use crate::sets::{FingerprintScript, IMAGES, ImageScript, PlainScript, SEGMENT_BYTES, image_segments};
use crate::stream::{Fingerprints, Generation, Runs, Stream};

/// Bytes of a fingerprint of [`Set::Fingerprints`].
pub const FINGERPRINT_BYTES: u64 = 32;

/// The last generation there is: each takes the one before to be made.
pub const GENERATIONS_MAX: u32 = 1000;

/// More than any disk has; places in files and sums of sizes stay far from their ends.
const SIZE_MAX_BYTES: u64 = 1 << 60;

/// A kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Backups of a file server, after the model of the dedupv1 papers. All generations have the same size.
    Generations(Model),
    /// Files without any duplicate (E3.1); the generation is the number of the file.
    UniqueFiles,
    /// Fingerprints of 32 bytes, one behind the other, and no data (E2.2). There are ten versions: version v has (v - 1) tenths of the fingerprints of the version
    /// before, in their places, in runs of 512. The tenths are exact where the size is a multiple of 5,120 fingerprints.
    Fingerprints,
    /// Blocks of 4 KiB that are all different (E1.1).
    DisjointBlocks,
    /// Files of 4 MiB, one behind the other, each of one block of 4 KiB 1,024 times (E1.2).
    DuplicateBlocks,
    /// Four images of virtual machines, each made from the one before (E3.4): as many segments of 4 KiB are kept and new as the paper counted. It does not say where
    /// they are: here runs of 256 KiB are spread evenly. The size is that of the first image; the others are larger in proportion.
    VmImages,
}

impl Set {
    /// Size that the papers used, in bytes.
    pub fn default_size_bytes(self) -> u64 {
        match self {
            // A client of the experiments of 2010.
            Set::Generations(_) => 32 << 30,
            Set::UniqueFiles => 3_000_000_000,
            // A tenth of 16.3 TB in chunks of 8 KiB, rounded up so that tenths are exact.
            Set::Fingerprints => 38_863 * 10 * 512 * FINGERPRINT_BYTES,
            // 1024 files of 1024 blocks.
            Set::DisjointBlocks | Set::DuplicateBlocks => 4 << 30,
            Set::VmImages => IMAGES[0].0 * SEGMENT_BYTES,
        }
    }

    /// How many generations, versions or files there are.
    pub fn generations(self) -> u32 {
        match self {
            Set::Fingerprints => 10,
            Set::VmImages => IMAGES.len() as u32,
            _ => GENERATIONS_MAX,
        }
    }

    /// Whether a generation has data of the one before.
    pub fn copies(self) -> bool {
        matches!(self, Set::Generations(_) | Set::Fingerprints | Set::VmImages)
    }

    /// The number that stands for the set where keys are made: never changed.
    fn number(self) -> u64 {
        match self {
            Set::Generations(_) => 1,
            Set::UniqueFiles => 2,
            Set::Fingerprints => 3,
            Set::DisjointBlocks => 4,
            Set::DuplicateBlocks => 5,
            Set::VmImages => 6,
        }
    }
}

/// Everything that a stream follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The kind of data.
    pub set: Set,
    /// Other seeds have other data.
    pub seed: u64,
    /// Other clients have other data.
    pub client: u32,
    /// Generation, version or file, from 1 to [`Set::generations`].
    pub generation: u32,
    /// Size in bytes, 1 to 2^60: of every generation, or of the first image of [`Set::VmImages`], rounded down to segments of 4 KiB.
    pub size_bytes: u64,
}

/// Why a workload cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// No such generation.
    #[error("there is no generation {generation}: this set has 1 to {last}")]
    Generation {
        /// What was asked for.
        generation: u32,
        /// The last one.
        last: u32,
    },
    /// Too small.
    #[error("a size of {size_bytes} bytes is too small for this set: it must be at least {least_bytes}")]
    Small {
        /// What was asked for.
        size_bytes: u64,
        /// The least.
        least_bytes: u64,
    },
    /// Too large.
    #[error("a size of {size_bytes} bytes is too large: it must be at most 1EiB")]
    Large {
        /// What was asked for.
        size_bytes: u64,
    },
    /// Part of a fingerprint.
    #[error("{size_bytes} bytes do not make whole fingerprints: the size must be a multiple of {FINGERPRINT_BYTES}")]
    Fingerprints {
        /// What was asked for.
        size_bytes: u64,
    },
}

/// What keys are made for.
const UNIQUE: u64 = 4;
const POOL: u64 = 5;
const PICKS: u64 = 6;

impl Workload {
    /// The bytes. Errors: such a generation or size is not in the set.
    pub fn stream(&self) -> Result<Stream, TrafficError> {
        self.validate()?;
        Ok(Stream::new(self.cursor()))
    }

    /// The runs that the stream consists of, without its bytes. Errors: as of [`Workload::stream`].
    pub fn runs(&self) -> Result<Runs, TrafficError> {
        self.validate()?;
        Ok(Runs::new(self.script(self.generation)))
    }

    /// The fingerprints of [`Set::Fingerprints`]; of another set, its bytes, 32 by 32. Errors: as of [`Workload::stream`].
    pub fn fingerprints(&self) -> Result<Fingerprints, TrafficError> {
        Ok(Fingerprints::new(self.stream()?))
    }

    /// What the stream consists of. Errors: as of [`Workload::stream`].
    pub fn describe(&self) -> Result<Description, TrafficError> {
        self.validate()?;
        Ok(Description::new(self))
    }

    /// Length of the stream in bytes.
    pub fn length_bytes(&self) -> u64 {
        self.length_of(self.generation)
    }

    /// Whether run lengths of this very generation are drawn from the estimate that stands for the unpublished lists.
    pub fn is_reconstructed(&self) -> bool {
        matches!(self.set, Set::Generations(_)) && self.generation == 1
    }

    pub(crate) fn length_of(&self, generation: u32) -> u64 {
        match self.set {
            Set::VmImages => image_segments(generation, self.size_bytes / SEGMENT_BYTES).0 * SEGMENT_BYTES,
            _ => self.size_bytes,
        }
    }

    fn validate(&self) -> Result<(), TrafficError> {
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
                // The run lengths are there from the first use on, not in the middle of a measurement.
                let _ = (lengths::first(), lengths::second(model.trace));
                Script::Model(ModelScript::new(model, generation, size, |purpose| self.key(generation, purpose)))
            }
            Set::UniqueFiles | Set::DisjointBlocks => Script::Plain(PlainScript::new(Op::Unique(size))),
            Set::DuplicateBlocks => Script::Plain(PlainScript::new(Op::Internal(size))),
            Set::Fingerprints => Script::Fingerprints(FingerprintScript::new(generation, size)),
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

    /// This generation on top of all that it has data of.
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
