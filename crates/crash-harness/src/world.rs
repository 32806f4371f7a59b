//! The stores that the harness runs: what is written to them, how they are made, opened and crashed.
//!
//! A profile lists steps, a step changes a world, a world knows its case, and a case its profile: so these four types
//! are in one file.

use crate::model::Model;
use crate::sight::Sight;
use onefold_blocks::Spaces;
use onefold_catalog::Catalog;
use onefold_engine::{Descriptor, Engine, EngineError, Liveness, Marked, Mode, Settings, WriteStream};
use onefold_fs::{Filesystems, FsOptions, OpenFilesystem};
use onefold_ground::simulation::seeds::Seeds;
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_volume::{Volumes, VolumesOptions};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a line of text, and of a chunk that a client cut.
pub(crate) const LINE_BYTES: usize = 700;
/// Filesystems commit only when a step says so: when that happens follows from the seed.
pub(crate) const FS_OPTIONS: FsOptions = FsOptions { commit_interval: Duration::from_secs(86_400), inode_cache_bytes: 8 << 10 };

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit.max(1)
    }

    /// Returns true once in so many times.
    pub fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }

    /// Returns bytes that nobody else has and that do not compress.
    pub fn fresh(&mut self, length: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.number().to_le_bytes()).flatten().take(length).collect()
    }

    /// Returns the bytes of one of a few files, which come again and again.
    pub fn file(&mut self) -> Vec<u8> {
        let mut of = Random(1000 + self.below(8));
        let length = of.below(12 << 10) as usize;
        of.fresh(length)
    }

    /// Returns text of so many lines, some of which come again and again.
    pub fn text(&mut self, lines: u64) -> Vec<u8> {
        let line = |seed| Random(seed).fresh(LINE_BYTES).into_iter().map(|byte| b'a' + byte % 8).collect::<Vec<_>>();
        (0..lines).flat_map(|_| line(if self.one_in(20) { self.below(8) } else { self.number() })).collect()
    }

    /// Returns bytes with duplicates in them: runs from a small pool, fresh ones, zeros.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut data = Vec::with_capacity(length);
        while data.len() < length {
            let run = (512 + self.below(16 << 10) as usize).min(length - data.len());
            let source = match self.below(5) {
                0 => 0,
                1 | 2 => self.number(),
                _ => 1 + self.below(6),
            };
            if source == 0 {
                data.resize(data.len() + run, 0);
            } else {
                let mut bytes = Random(source.wrapping_mul(77));
                let end = data.len() + run;
                while data.len() < end {
                    data.extend_from_slice(&bytes.number().to_le_bytes());
                }
                data.truncate(end);
            }
        }
        data
    }
}

/// Returns what a crash leaves: nothing that was not synced, all of it, or anything between.
pub fn policy(seed: u64) -> CrashPolicy {
    match seed % 5 {
        0 => CrashPolicy::DropAll,
        1 => CrashPolicy::KeepAll,
        _ => CrashPolicy::Random { seed },
    }
}

/// What a step or an opening fails with.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// One composition, with the sizes of its stores. Shapes and settings may differ by seed.
#[derive(Debug)]
pub struct Profile {
    /// Names the profile in messages.
    pub name: &'static str,
    /// How a store of this seed is made.
    pub descriptor: fn(u64) -> Descriptor,
    /// How a store of this seed is opened.
    pub settings: fn(u64) -> Settings,
    /// How the volumes and filesystems of a store of this seed are opened.
    pub volumes: fn(u64) -> VolumesOptions,
    /// What stands around the liveness of every store that is opened for writing.
    pub liveness: fn(Box<dyn Liveness>) -> Box<dyn Liveness>,
    /// The steps that a store of this profile supports, each with how often it is taken compared with the others.
    pub steps: &'static [(u64, Step)],
    /// What random crashes must meet: a harness that never sweeps proves nothing about sweeps.
    pub meets: &'static [Sight],
}

/// A step, at random where it leaves a choice. The last argument is the slot of the volume that it is about, if it is
/// about one. An error is what the disk did; a wrong answer of the store is a panic.
pub type Step = fn(&mut World, &mut Model, &mut Random, usize) -> Result<(), Fault>;

/// One store of a profile. Its shape, its steps and the moments of crashes follow from the seed.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What is tried.
    pub profile: &'static Profile,
    /// Of its shape, its steps and its crashes.
    pub seed: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}", self.profile.name, self.seed)
    }
}

impl Profile {
    /// Runs a trial with `usual` seeds, or those that the environment asks for. Returns how many there were.
    pub fn each_case(&'static self, usual: u64, mut trial: impl FnMut(Case)) -> Seeds {
        let seeds = Seeds::of(usual);
        seeds.each(|seed| trial(Case { profile: self, seed }));
        seeds
    }
}

impl Case {
    /// Returns the settings that the store is opened with.
    pub fn settings(&self) -> Settings {
        (self.profile.settings)(self.seed)
    }

    /// Makes the store, on a disk of its own.
    pub fn create(&self) -> SimulatedGround {
        let ground = SimulatedGround::new(self.seed);
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        Engine::create(&shared, &(self.profile.descriptor)(self.seed)).unwrap_or_else(|error| panic!("{self}: {error}"));
        ground
    }

    /// Opens the store for writing.
    pub fn open(&self, ground: &SimulatedGround) -> Result<World, Fault> {
        self.open_with(ground, self.settings(), Mode::ReadWrite)
    }

    /// Opens the store in any mode, with other settings than its own.
    pub fn open_with(&self, ground: &SimulatedGround, settings: Settings, mode: Mode) -> Result<World, Fault> {
        self.open_on(Arc::new(ground.clone()), ground, settings, mode, |liveness, _| liveness)
    }

    /// Opens the store through another ground, which stands on `disk`, and with `around` around its liveness.
    pub fn open_on(
        &self,
        ground: Arc<dyn Ground>,
        disk: &SimulatedGround,
        settings: Settings,
        mode: Mode,
        around: impl FnOnce(Box<dyn Liveness>, &dyn Fn() -> Marked) -> Box<dyn Liveness>,
    ) -> Result<World, Fault> {
        let engine = Engine::open_with(ground, settings, mode, "test", |inner, marked| around((self.profile.liveness)(inner), marked))?;
        let spaces = Arc::new(Spaces::open(engine.clone(), (self.profile.volumes)(self.seed))?);
        let volumes = Arc::new(Volumes::of(spaces.clone()));
        // A crash in an operation whose failure does no harm lets the opening succeed, but nothing can be read any
        // more.
        if disk.is_crashed() {
            return Err(EngineError::ReadOnly.into());
        }
        let (streams, catalog) = (resting_streams(&engine), Catalog::new(engine.clone()));
        Ok(World {
            case: *self,
            catalog,
            streams,
            volumes,
            filesystems: Filesystems::of(spaces, FS_OPTIONS),
            mounted: BTreeMap::new(),
            engine,
            ground: disk.clone(),
            doing: "open",
        })
    }
}

/// Panics if something is wrong, and says where.
pub fn must(result: Result<(), String>, case: Case, what: &str) {
    result.unwrap_or_else(|why| panic!("{case}, {what}: {why}"));
}

/// A store, open, with everything that stands on it.
pub struct World {
    /// Which store this is.
    pub case: Case,
    /// The engine.
    pub engine: Arc<Engine>,
    /// Its volumes.
    pub volumes: Arc<Volumes>,
    /// Its filesystems.
    pub filesystems: Arc<Filesystems>,
    /// Those of them that a step has mounted, by name. They are closed with the world.
    pub mounted: BTreeMap<String, OpenFilesystem>,
    /// Its backups.
    pub catalog: Catalog,
    /// Of the backups; two, so that duplicates meet in flight. The second is sequential.
    pub streams: [WriteStream; 2],
    /// Its disk.
    pub ground: SimulatedGround,
    /// What the last step does, for tests that name the window of a crash.
    pub doing: &'static str,
}

impl World {
    /// Returns whether nothing more is written: after a crash, or after a sync that failed. Then what is not durable
    /// may be gone from memory, too.
    pub fn has_stopped(&self) -> bool {
        self.ground.is_crashed() || self.engine.flush().is_err()
    }

    /// Ends the process: what is mounted is not closed first.
    pub fn die(self) {
        self.ground.crash_after_operations(0);
    }

    /// Returns the same store for another thread, with streams of its own.
    pub fn another(&self) -> World {
        World {
            case: self.case,
            engine: self.engine.clone(),
            volumes: self.volumes.clone(),
            filesystems: self.filesystems.clone(),
            mounted: BTreeMap::new(),
            catalog: self.catalog.clone(),
            streams: resting_streams(&self.engine),
            ground: self.ground.clone(),
            doing: "open",
        }
    }
}

/// Streams that are in nobody's way before they are used.
fn resting_streams(engine: &Arc<Engine>) -> [WriteStream; 2] {
    let mut streams = [engine.stream(), engine.stream().sequential()];
    streams.iter_mut().for_each(WriteStream::rest);
    streams
}
