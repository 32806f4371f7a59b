//! A small store with a volume and two backups, on a simulated disk; what it must say; and what a look at it, damaged,
//! finds.

use crate::merging::merge;
use onefold_catalog::{Catalog, Content, Entry};
use onefold_chunking::Sizes;
use onefold_client::{BackupOptions, Damaged, Tally};
use onefold_engine::{ChunkStoreKind, Descriptor, Engine, EngineError, Mode, Settings};
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround};
use onefold_oplog::{Log, LogOptions, Opening, SegmentLog};
use onefold_storage::Compression;
use onefold_upkeep::{CheckOptions, CheckReport, NoMonitor, ProblemKind, PruneOptions, check, prune};
use onefold_volume::{Volumes, VolumesOptions};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

pub const VOLUME: &str = "disk";
pub const VOLUME_BYTES: u64 = 1 << 20;
pub const BLOCK_BYTES: u32 = 64 << 10;
/// Bytes of a read of the volume: a damage must not spoil more than it has to.
const READ_BYTES: usize = 16 << 10;

/// Paths and contents of a backup.
pub type Tree = BTreeMap<Vec<u8>, Vec<u8>>;

/// What the store says after a flush.
#[derive(Clone)]
pub struct State {
    pub volume: Vec<u8>,
    /// By id.
    pub backups: BTreeMap<String, Tree>,
}

/// The store, stopped without a goodbye, and its states by flush; the last one is what it must say.
pub struct Scene {
    pub ground: SimulatedGround,
    pub states: Vec<State>,
    /// The store as it was some time before.
    pub older: SimulatedGround,
}

/// Bytes that do not compress and do not repeat, the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    bytes.take(length).collect()
}

pub fn settings() -> Settings {
    Settings {
        log_segment_bytes: 64 << 10,
        log_limit_bytes: 1 << 20,
        auxiliary_index_bytes: 64 << 10,
        sampled_index_bytes: 64 << 10,
        levels_ratio: 2,
        levels_tables: 2,
        object_index_cache_bytes: 64 << 10,
        frame_cache_bytes: 1 << 20,
        workers: 1,
        background: false,
        ..Settings::default()
    }
}

pub fn open(ground: &SimulatedGround, mode: Mode) -> Result<Arc<Engine>, EngineError> {
    Engine::open(Arc::new(ground.clone()), settings(), mode, "test")
}

/// A store of the profile with small parts.
fn descriptor() -> Descriptor {
    let small = Descriptor {
        profile: crate::PROFILE,
        chunk_sizes: Sizes { min: 1024, target: 4096, max: 16384 },
        container_bytes: 128 << 10,
        frame_bytes: 16 << 10,
        compression: Compression::Lz4,
        sequential_frame_bytes: 16 << 10,
        sequential_compression: Compression::Lz4,
        index_partitions: 2,
        object_partitions: 1,
        ..Descriptor::new().unwrap()
    };
    match crate::PROFILE.chunk_store() {
        ChunkStoreKind::Containers => small,
        ChunkStoreKind::Arena => small.of_blocks(4096),
        ChunkStoreKind::Levels => Descriptor { container_bytes: 64 << 10, container_partitions: 2, ..small },
    }
}

impl Scene {
    pub fn new() -> Scene {
        Scene::with_merges(false)
    }

    /// The same with merged containers, of which the log knows nothing any more: one merged once, one merged twice.
    pub fn merged() -> Scene {
        Scene::with_merges(true)
    }

    fn with_merges(merges: bool) -> Scene {
        let ground = SimulatedGround::new(1);
        let descriptor = descriptor();
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        Engine::create(&shared, &descriptor).unwrap();
        let engine = open(&ground, Mode::ReadWrite).unwrap();
        let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
        let volume = volumes.create(VOLUME, VOLUME_BYTES, BLOCK_BYTES, None).unwrap();
        let source = tempfile::tempdir().unwrap();
        let mut state = State { volume: vec![0; VOLUME_BYTES as usize], backups: BTreeMap::new() };
        let mut states = Vec::new();

        // What is in pages, database and sealed containers.
        for part in 0..4 {
            let (offset, data) = (part * 200_000, noise(part as u64 + 1, 150_000));
            volume.write(offset as u64, &data).unwrap();
            state.volume[offset..offset + data.len()].copy_from_slice(&data);
        }
        volume.flush().unwrap();
        states.push(state.clone());
        write_files(source.path(), &[("a/small", noise(11, 700)), ("a/medium", noise(12, 120_000)), ("b/copy", noise(12, 120_000))]);
        // With its name this target needs more than a block of 4 KiB.
        let target: String = (0..4090).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
        std::os::unix::fs::symlink(target, source.path().join("a").join("l".repeat(200))).unwrap();
        backup(&engine, source.path(), &mut state);
        engine.maintain(true).unwrap();
        states.push(state.clone());
        // Which stream fills which container differs from run to run; so many must be full to be merged.
        for part in 0.. {
            let is_enough = match engine.containers() {
                Some(storage) => storage.containers().unwrap().iter().filter(|container| storage.is_sealed(*container)).count() >= 6,
                None => part >= 4,
            };
            if is_enough {
                break;
            }
            let data = noise(part + 101, 150_000);
            volume.write(600_000, &data).unwrap();
            volume.flush().unwrap();
            state.volume[600_000..][..data.len()].copy_from_slice(&data);
            engine.maintain(true).unwrap();
            states.push(state.clone());
        }
        if !(crate::PROFILE.counts() && crate::PROFILE.has_containers()) {
            // Makes marks, or free blocks.
            prune(&engine, PruneOptions::default(), &NoMonitor, &|| true).unwrap();
        }
        let mut older = ground.snapshot(CrashPolicy::KeepAll);
        let (mut volume, mut volumes, mut engine) = (volume, volumes, engine);
        if merges {
            drop((volume, volumes, engine));
            merge(&ground, 0);
            merge(&ground, 0);
            let merged = merge(&ground, 1);
            engine = open(&ground, Mode::ReadWrite).unwrap();
            volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
            volume = volumes.get(VOLUME).unwrap();
            // The log is given back by segments.
            for part in 0.. {
                let log = LogOptions { segment_bytes: settings().log_segment_bytes, limit_bytes: settings().log_limit_bytes };
                let log = SegmentLog::open(Arc::new(ground.clone()), "log", descriptor.store, log, Opening::ReadOnly).unwrap();
                if log.start() >= merged {
                    break;
                }
                let data = noise(part + 31, 9_000);
                volume.write(20_000, &data).unwrap();
                volume.flush().unwrap();
                state.volume[20_000..][..data.len()].copy_from_slice(&data);
                engine.maintain(true).unwrap();
            }
            states.push(state.clone());
            older = ground.snapshot(CrashPolicy::KeepAll);
        }

        // What is in the log and in open containers only.
        write_files(source.path(), &[("b/late", noise(13, 60_000))]);
        backup(&engine, source.path(), &mut state);
        states.push(state.clone());
        for part in 0..3 {
            let (offset, data) = (50_000 + part * 300_000, noise(part as u64 + 21, 9_000));
            volume.write(offset as u64, &data).unwrap();
            volume.flush().unwrap();
            state.volume[offset..offset + data.len()].copy_from_slice(&data);
            states.push(state.clone());
        }
        drop((volume, volumes, engine));
        let ground = ground.restart(CrashPolicy::KeepAll);
        settle(&ground);
        Scene { ground, states, older }
    }

    /// A copy to be damaged.
    pub fn copy(&self) -> SimulatedGround {
        self.ground.snapshot(CrashPolicy::KeepAll)
    }

    /// All files of the store.
    pub fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        walk(&self.ground, "", &mut files);
        files
    }

    pub fn length(&self, path: &str) -> u64 {
        self.ground.open(path, Access::Read).unwrap().len().unwrap()
    }

    pub fn bytes(&self, path: &str) -> Vec<u8> {
        onefold_ground::read_file(&self.ground, path, 1 << 30).unwrap()
    }
}

/// Makes durable all that is there: damage that a power cut would undo is none.
pub fn settle(ground: &SimulatedGround) {
    fn settle_in(ground: &SimulatedGround, directory: &str) {
        for entry in ground.list(directory).unwrap() {
            let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
            if entry.is_directory {
                settle_in(ground, &path);
            } else {
                ground.open(&path, Access::ReadWrite).unwrap().sync().unwrap();
            }
        }
        ground.sync_directory(directory).unwrap();
    }
    settle_in(ground, "");
}

fn walk(ground: &SimulatedGround, directory: &str, files: &mut Vec<String>) {
    for entry in ground.list(directory).unwrap() {
        let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
        if entry.is_directory {
            walk(ground, &path, files);
        } else {
            files.push(path);
        }
    }
}

fn write_files(source: &std::path::Path, files: &[(&str, Vec<u8>)]) {
    for (name, content) in files {
        let path = source.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// Backs everything below `source` up and notes it.
fn backup(engine: &Arc<Engine>, source: &std::path::Path, state: &mut State) {
    let options = BackupOptions {
        name: "group".into(),
        host: "host".into(),
        user: "user".into(),
        paths: vec![source.to_path_buf()],
        ..BackupOptions::default()
    };
    let outcome = onefold_client::backup(&Catalog::new(engine.clone()), &options, &Tally::default()).unwrap();
    assert!(outcome.is_complete());
    let mut tree = Tree::new();
    for directory in fs::read_dir(source).unwrap() {
        for file in fs::read_dir(directory.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let content = match fs::read_link(&path) {
                Ok(target) => target.into_os_string().into_vec(),
                Err(_) => fs::read(&path).unwrap(),
            };
            tree.insert(path.as_os_str().as_bytes()[1..].to_vec(), content);
        }
    }
    state.backups.insert(outcome.backup.id.to_string(), tree);
}

/// What was read of a tree: the bytes of files, nothing for what could not be read.
pub type FoundTree = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a look at a store found.
#[derive(Default)]
pub struct Look {
    /// Why it could not be opened.
    pub refused: Option<String>,
    /// Parts of the volume that could be read, by offset; `None`: an error.
    pub volume: Vec<(usize, Option<Vec<u8>>)>,
    /// Files that could be read; `None`: an error. Outer `None`: the backups could not be listed.
    pub backups: Option<BTreeMap<String, FoundTree>>,
    pub report: CheckReport,
}

impl Look {
    /// Whether the store was refused or the check found something.
    pub fn is_found(&self) -> bool {
        self.refused.is_some() || !self.report.is_clean()
    }

    /// Whether everything that could be read is what `state` says.
    pub fn agrees(&self, state: &State) -> bool {
        let volume =
            self.volume.iter().all(|(offset, bytes)| bytes.as_ref().is_none_or(|bytes| state.volume[*offset..].starts_with(bytes)));
        let backups = self.backups.as_ref().is_none_or(|backups| {
            backups.keys().eq(state.backups.keys())
                && backups.iter().all(|(id, tree)| {
                    let expected = &state.backups[id];
                    tree.iter().all(|(path, bytes)| bytes.as_ref().is_none_or(|bytes| expected.get(path) == Some(bytes)))
                })
        });
        volume && backups
    }

    fn names(&self, text: &str) -> bool {
        self.report.problems.iter().any(|problem| problem.what.contains(text))
    }

    /// What could not be read must be named by the check.
    pub fn assert_named(&self, what: &str) {
        if self.refused.is_some() {
            return;
        }
        let problems = || self.report.problems.iter().map(|problem| format!("\n  {}", problem.what)).collect::<String>();
        for (offset, bytes) in &self.volume {
            assert!(bytes.is_some() || self.names(VOLUME) || self.names("volume"), "{what}: volume at {offset}:{}", problems());
        }
        match &self.backups {
            None => assert!(self.names("backup"), "{what}:{}", problems()),
            Some(backups) => {
                for (id, tree) in backups {
                    for path in tree.iter().filter(|(_, bytes)| bytes.is_none()).map(|(path, _)| path) {
                        let name = String::from_utf8_lossy(path).into_owned();
                        // The file itself, or a directory above it.
                        let mut parts = name.match_indices('/').map(|(end, _)| &name[..end]).chain([&name[..], ""]);
                        let named = parts.any(|part| self.names(&format!("{part:?}")));
                        assert!(named, "{what}: {name} of {id}:{}", problems());
                    }
                }
            }
        }
    }

    pub fn has(&self, kind: ProblemKind) -> bool {
        self.report.problems.iter().any(|problem| problem.kind == kind)
    }
}

/// Opens a store, checks it, and reads everything in it.
pub fn look(ground: &SimulatedGround, mode: Mode, expected: &State) -> Look {
    let mut look = Look::default();
    let engine = match open(ground, mode) {
        Ok(engine) => engine,
        Err(error) => {
            look.refused = Some(error.to_string());
            return look;
        }
    };
    look.report =
        check(&engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).expect("damage is no error of a check");
    match Volumes::open(engine.clone(), VolumesOptions::default()).and_then(|volumes| volumes.get(VOLUME)) {
        Ok(volume) => {
            for offset in (0..VOLUME_BYTES as usize).step_by(READ_BYTES) {
                let mut bytes = vec![0x5a; READ_BYTES];
                let read = volume.read(offset as u64, &mut bytes);
                look.volume.push((offset, read.is_ok().then_some(bytes)));
            }
        }
        Err(_) => look.volume.push((0, None)),
    }
    let catalog = Catalog::new(engine.clone());
    look.backups = catalog.list().ok().map(|backups| {
        backups
            .iter()
            .map(|backup| {
                let id = backup.id.to_string();
                let paths = expected.backups.get(&id).into_iter().flat_map(Tree::keys);
                let dump = |path: &Vec<u8>| {
                    if let Ok(Some(Entry { content: Content::Symlink { target }, .. })) = catalog.lookup(backup, path) {
                        return (path.clone(), Some(target));
                    }
                    let mut bytes = Vec::new();
                    let dumped = onefold_client::dump(&catalog, backup, path, Damaged::Fail, &Tally::default(), &mut bytes);
                    (path.clone(), dumped.is_ok().then_some(bytes))
                };
                (id, paths.map(dump).collect())
            })
            .collect()
    });
    look
}
