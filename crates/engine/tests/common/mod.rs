//! Helpers of the engine's tests: random bytes, small stores on a simulated disk, writing and reading runs.
#![allow(dead_code, reason = "each test program uses a part of it")]

use onefold_chunking::{Kind, Sizes};
use onefold_engine::{
    Candidate, Cursor, Descriptor, Engine, EngineError, Group, Hints, Mode, Piece, Reference, Settings, Transaction, WriteStream,
};
use onefold_ground::{Access, Ground, SimulatedGround, read_file};
use onefold_oplog::{ALIGNMENT_BYTES, Log, LogOptions, Opening, Position, SegmentLog};
use onefold_storage::Compression;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns incompressible bytes, the same for the same seed (SplitMix64).
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x5851_f42d_4c95_7f2d);
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

/// Small chunks, frames and containers, so that little data has many of each.
pub fn descriptor() -> Descriptor {
    Descriptor {
        chunker: Kind::FastCdc,
        chunk_sizes: Sizes { min: 256, target: 1024, max: 4096 },
        container_bytes: 64 << 10,
        frame_bytes: 4 << 10,
        compression: Compression::None,
        sequential_frame_bytes: 16 << 10,
        sequential_compression: Compression::Lz4,
        index_partitions: 2,
        ..Descriptor::new().unwrap()
    }
}

/// Settings without threads, with this filter chain.
pub fn settings(chain: &str) -> Settings {
    Settings { chain: chain.split(',').map(String::from).collect(), workers: 1, background: false, ..Settings::default() }
}

pub const DEFAULT_CHAIN: &str = "zero-chunk,block-index,container-cache,chunk-index";

/// An empty store.
pub fn store(descriptor: &Descriptor) -> SimulatedGround {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    Engine::create(&shared, descriptor).unwrap();
    ground
}

pub fn open(ground: &SimulatedGround, settings: Settings) -> Arc<Engine> {
    try_open(ground, settings, Mode::ReadWrite).unwrap()
}

pub fn try_open(ground: &SimulatedGround, settings: Settings, mode: Mode) -> Result<Arc<Engine>, EngineError> {
    Engine::open(Arc::new(ground.clone()), settings, mode, "test")
}

/// Writes a whole run in slices of at most `slice_bytes`. Returns its pieces.
pub fn write(stream: &mut WriteStream, data: &[u8], slice_bytes: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let end = data.len().min(start + slice_bytes);
        let consumed = stream.write(&data[start..end], end == data.len(), Hints::default(), &mut pieces).unwrap();
        assert!(consumed > 0, "a slice of the greatest chunk's size is never too short");
        start += consumed;
    }
    pieces
}

/// Reads a whole run and verifies it.
pub fn read(engine: &Engine, pieces: &[Piece]) -> Result<Vec<u8>, EngineError> {
    let mut out = vec![0x5a; pieces.iter().map(Piece::length).sum::<u64>() as usize];
    engine.read(pieces, 0, &mut out, true)?;
    Ok(out)
}

/// Returns the references that objects of the tests' group gain (1) or lose (-1).
pub fn references(pieces: &[Piece], change: i64) -> Vec<Reference> {
    Reference::of(pieces, Group::new(b'x', 0), change).collect()
}

/// Makes an object that refers to `pieces`, or (-1) removes it.
pub fn refer(engine: &Engine, key: u8, pieces: &[Piece], change: i64) {
    let references = references(pieces, change);
    engine.submit(Transaction { changes: vec![(0, vec![b'w', key], (change > 0).then(|| vec![key]))], references }).unwrap();
    engine.flush().unwrap();
}

/// Returns the chunks that nothing refers to.
pub fn unused(engine: &Engine) -> Vec<Candidate> {
    engine.maintain(true).unwrap();
    let (mut found, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        let (some, next) = engine.candidates(from, 100, &mut Vec::new()).unwrap();
        found.extend(some);
        cursor = next;
    }
    found
}

/// Verdicts of one filter: (NON-EXISTING, WEAK-MAYBE, STRONG-MAYBE, EXISTING).
pub fn verdicts(engine: &Engine, filter: &str) -> (u64, u64, u64, u64) {
    let names = if filter == "chunk-index" { filter.to_owned() } else { format!("{filter},chunk-index") };
    let statistics = engine.chain(&names).unwrap().statistics();
    let found = &statistics[0];
    (found.non_existing, found.weak_maybe, found.strong_maybe, found.existing)
}

/// Makes the log of a closed store continue `pages` of 4 KiB after its end, like the log of an owner that takes over
/// from another one.
pub fn jump(ground: &SimulatedGround, pages: u64) {
    let segment = ground.list("log").unwrap().into_iter().find(|entry| entry.name.ends_with(".log")).unwrap().name;
    let mut store = [0; 16];
    ground.open(&format!("log/{segment}"), Access::Read).unwrap().read_at(16, &mut store).unwrap();
    let options = LogOptions { segment_bytes: 16 << 10, limit_bytes: 1 << 20 };
    let open = |opening| SegmentLog::open(Arc::new(ground.clone()), "log", store, options, opening).unwrap();
    let epoch = open(Opening::ReadOnly).epoch();
    let log = open(Opening::ReadWrite { epoch });
    log.jump_to(Position(log.end().0 + pages * ALIGNMENT_BYTES)).unwrap();
}

/// Returns all files below a directory and their content.
pub fn files(ground: &dyn Ground, directory: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in ground.list(directory).unwrap() {
        let path = format!("{directory}/{}", entry.name);
        if entry.is_directory {
            found.extend(files(ground, &path));
        } else {
            let length = ground.open(&path, Access::Read).unwrap().len().unwrap();
            found.insert(path.clone(), read_file(ground, &path, length).unwrap());
        }
    }
    found
}

/// Objects that mean nothing to anybody.
pub struct Meaningless;

impl onefold_engine::Meaning for Meaningless {
    fn is_needed(&self, _kind: u8) -> bool {
        false
    }

    fn copied(&self) -> String {
        "objects are from a second copy".to_owned()
    }

    fn older(&self, position: u64) -> String {
        format!("objects are of position {position}")
    }

    fn lost_ranges(&self, ranges: usize) -> String {
        format!("{ranges} key ranges are lost")
    }

    fn applied(&self, lost: &str) -> String {
        format!("{lost}: it was applied before")
    }

    fn lost_changes(&self, kept: &str) -> Vec<String> {
        vec![format!("changes of objects are lost; while {kept} is there, unused ones stay")]
    }

    fn kept_text(&self) -> &'static str {
        "a part of the log was lost\n"
    }
}
