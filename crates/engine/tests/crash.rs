//! The crash harness of the engine. A simulated disk crashes at every sync and at random operations, and drops or tears
//! unsynced data. The reopened store is compared with a model (design rule 1, M0.18).
//!
//! The model: transactions are numbered, and each writes its number under the key `n`. After a crash, the number found
//! says which prefix of the transactions survived. It must include the last successful flush, and everything in the
//! store must be exactly that prefix.

mod common;

use onefold_chunking::{Kind, Sizes};
use onefold_engine::{
    Address, Descriptor, Engine, EngineError, Group, Hints, Mode, Piece, Recipe, RecipeWriter, Reference, Settings, Transaction,
    WriteStream, decode_pieces,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::simulation::seeds::Seeds;
use onefold_ground::simulation::trials::*;
use onefold_ground::wire::Reader;
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_storage::{ChunkKind, Compression};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const KEYS: u64 = 6;

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Returns bytes with duplicates in them: blocks from a small pool, some fresh ones, some zeros.
fn content(random: &mut Random) -> Vec<u8> {
    let mut data = Vec::new();
    for _ in 0..random.below(12) {
        let source = match random.below(4) {
            0 => random.next(),
            1 => 0,
            _ => 1 + random.below(10),
        };
        let length = 200 + random.below(3000) as usize;
        let mut bytes = Random(source.wrapping_mul(77));
        if source == 0 {
            data.resize(data.len() + length, 0);
        } else {
            data.extend(std::iter::repeat_with(|| bytes.next() as u8).take(length));
        }
    }
    data
}

/// Seeds with this bit have stores that keep no data.
const DISCARDS: u64 = 1 << 40;

fn discards(seed: u64) -> bool {
    seed & DISCARDS != 0
}

fn descriptor(seed: u64) -> Descriptor {
    Descriptor {
        discards_data: discards(seed),
        chunker: [Kind::FastCdc, Kind::Fixed][seed as usize % 2],
        chunk_sizes: Sizes { min: 256, target: 1024, max: 4096 },
        container_bytes: 64 << 10,
        frame_bytes: 4 << 10,
        compression: [Compression::Lz4, Compression::None, Compression::Zstd(1)][seed as usize % 3],
        sequential_frame_bytes: [16 << 10, 4 << 10][(seed / 3) as usize % 2],
        sequential_compression: Compression::Zstd(2),
        index_partitions: 2,
        object_partitions: 2,
        container_partitions: 1 + (seed % 2) as u16,
        ..Descriptor::new().unwrap()
    }
}

fn settings(seed: u64) -> Settings {
    let chain = match seed % 3 {
        0 => "zero-chunk,block-index,container-cache,chunk-index",
        1 => "bloom,zero-chunk,chunk-index,byte-compare",
        _ => "chunk-index",
    };
    Settings {
        log_segment_bytes: 64 << 10,
        log_limit_bytes: 256 << 10,
        // Small enough for a sweep in the middle of a run.
        auxiliary_index_bytes: 8 << 10,
        object_index_pending_bytes: 8 << 10,
        bloom_bytes: 1 << 10,
        chain: chain.split(',').filter(|name| *name != "byte-compare" || !discards(seed)).map(String::from).collect(),
        discards_data: discards(seed),
        workers: 1,
        background: false,
        ..Settings::default()
    }
}

/// The content of the transactions, and how far they were acknowledged.
#[derive(Clone, Default)]
struct Model {
    /// After transaction i: the value of each key.
    states: Vec<BTreeMap<u64, Vec<u8>>>,
    /// Transactions that a successful flush covered.
    durable: usize,
}

fn key(number: u64) -> (u16, Vec<u8>) {
    ((number % 2) as u16, format!("o{number}").into_bytes())
}

fn root(engine: &Engine, number: u64) -> Result<Option<Recipe>, EngineError> {
    let (partition, key) = key(number);
    let Some(value) = engine.get(partition, &key)? else { return Ok(None) };
    let mut reader = Reader::new(&value);
    let recipe = Recipe::decode(&mut reader, engine.digest_bytes()).unwrap();
    reader.end().unwrap();
    Ok(Some(recipe))
}

/// Takes one random step. An error is the crash, or follows from it.
fn step(engine: &Arc<Engine>, streams: &mut [WriteStream], random: &mut Random, model: &mut Model) -> Result<(), EngineError> {
    match random.below(10) {
        0..=5 => {
            let number = random.below(KEYS);
            let data = content(random);
            let stream = &mut streams[random.below(2) as usize];
            let before = root(engine, number)?;
            let overwritten = before.as_ref().map_or(&[][..], |recipe| &recipe.pieces);
            let mut pieces = Vec::new();
            stream.write(&data, true, Hints { overwritten, chain: None }, &mut pieces)?;
            let mut writer = RecipeWriter::new(engine);
            pieces.iter().try_for_each(|piece| writer.push(stream, *piece))?;
            let recipe = writer.finish(stream)?;
            let mut value = Vec::new();
            recipe.encode(engine.digest_bytes(), &mut value);
            let mut state = model.states.last().unwrap().clone();
            state.insert(number, data);
            submit(engine, model, state, number, Some(value), &recipe.pieces, overwritten)
        }
        6 => {
            let number = random.below(KEYS);
            let before = root(engine, number)?;
            let mut state = model.states.last().unwrap().clone();
            state.remove(&number);
            submit(engine, model, state, number, None, &[], before.as_ref().map_or(&[], |recipe| &recipe.pieces))
        }
        7 | 8 => {
            engine.flush()?;
            model.durable = model.states.len() - 1;
            Ok(())
        }
        _ => engine.maintain(random.below(2) == 0),
    }
}

fn submit(
    engine: &Engine,
    model: &mut Model,
    state: BTreeMap<u64, Vec<u8>>,
    number: u64,
    value: Option<Vec<u8>>,
    new: &[Piece],
    old: &[Piece],
) -> Result<(), EngineError> {
    let group = Group::new(b'x', 0);
    let references = Reference::of(new, group, 1).chain(Reference::of(old, group, -1)).collect();
    let (partition, key) = key(number);
    let counter = (model.states.len() as u64).to_le_bytes().to_vec();
    let result =
        engine.submit(Transaction { changes: vec![(partition, key, value), (0, b"n".to_vec(), Some(counter.clone()))], references });
    match &result {
        Ok(()) => model.states.push(state),
        // After a crash nothing can be read.
        Err(_) => assert!(engine.get(0, b"n").map_or(true, |found| found != Some(counter)), "it was taken and answered with an error"),
    }
    result
}

/// Learns which prefix of the transactions a just opened store has. It reaches at least the last flush.
fn reach(engine: &Arc<Engine>, model: &mut Model, seed: u64) -> Result<(), EngineError> {
    let reached = engine.get(0, b"n")?.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()) as usize);
    assert!(reached >= model.durable, "seed {seed}: flushed up to {}, found {reached}", model.durable);
    assert!(reached < model.states.len(), "seed {seed}: {reached} was never submitted");
    model.states.truncate(reached + 1);
    model.durable = reached;
    Ok(())
}

/// Checks that the store is exactly one prefix of the transactions.
fn verify(engine: &Arc<Engine>, model: &mut Model, seed: u64) {
    reach(engine, model, seed).unwrap();
    let state = model.states.last().unwrap();
    let mut references: HashMap<Fingerprint, u32> = HashMap::new();
    for number in 0..KEYS {
        let recipe = root(engine, number).unwrap();
        assert_eq!(recipe.is_some(), state.contains_key(&number), "seed {seed}: key {number}");
        let (Some(recipe), Some(expected)) = (recipe, state.get(&number)) else { continue };
        let mut pieces = Vec::new();
        engine
            .expand(&recipe, &mut |piece| {
                pieces.push(*piece);
                true
            })
            .unwrap();
        let mut data = vec![1; expected.len()];
        match engine.read(&pieces, 0, &mut data, true) {
            Ok(()) => assert!(data == *expected, "seed {seed}: key {number} has wrong bytes"),
            Err(error) => assert!(discards(seed) && error.is_damage(), "seed {seed}: key {number}: {error}"),
        }
        recipe.pieces.iter().filter_map(Piece::fingerprint).for_each(|name| *references.entry(name).or_default() += 1);
    }
    verify_counts(engine, references, seed);
}

/// Checks that every count is the number of references, and that every entry names a place where the chunk is.
fn verify_counts(engine: &Arc<Engine>, mut references: HashMap<Fingerprint, u32>, seed: u64) {
    let storage = engine.containers().unwrap();
    let mut places = HashMap::new();
    for container in storage.containers().unwrap().iter() {
        for (address, slot) in storage.slots(container).unwrap() {
            places.insert(address.bits(), slot);
        }
    }
    let mut entries = HashMap::new();
    for partition in 0..engine.descriptor().index_partitions {
        engine
            .index()
            .unwrap()
            .for_each(partition, &mut |fingerprint, entry| {
                entries.insert(*fingerprint, entry);
                Ok(())
            })
            .unwrap();
    }
    for (address, slot) in &places {
        if slot.kind != ChunkKind::Data && entries.get(&slot.fingerprint).is_some_and(|entry| entry.address == *address) {
            let piece =
                Piece::Chunk { fingerprint: slot.fingerprint, address: Address::from_bits(*address), offset: 0, length: slot.length_bytes };
            let content = engine.read_metadata(&piece).unwrap();
            let pieces = decode_pieces(&mut Reader::new(&content), engine.digest_bytes()).unwrap();
            pieces.iter().filter_map(Piece::fingerprint).for_each(|name| *references.entry(name).or_default() += 1);
        }
    }
    for (fingerprint, entry) in &entries {
        let expected = references.remove(fingerprint).unwrap_or(0);
        assert_eq!(entry.count, expected, "seed {seed}: count of {fingerprint}");
        if entry.address != 0 {
            assert_eq!(
                places.get(&entry.address).map(|slot| slot.fingerprint),
                Some(*fingerprint),
                "seed {seed}: address of {fingerprint}"
            );
        } else {
            assert_eq!(expected, 0, "seed {seed}: {fingerprint} is referred to but nowhere");
        }
    }
    assert!(references.is_empty(), "seed {seed}: {} chunks are referred to but not in the index", references.len());
}

fn create(seed: u64) -> SimulatedGround {
    create_on(SimulatedGround::new(seed), seed)
}

fn create_on(ground: SimulatedGround, seed: u64) -> SimulatedGround {
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    Engine::create(&shared, &descriptor(seed)).unwrap();
    ground
}

/// Takes `steps` random steps, or stops at a failure. Returns whether all steps were taken.
fn run(engine: &Arc<Engine>, random: &mut Random, model: &mut Model, steps: u64) -> bool {
    let mut streams = [engine.stream(), engine.stream()];
    (0..steps).all(|_| step(engine, &mut streams, random, model).is_ok())
}

fn open(ground: &SimulatedGround, seed: u64) -> Result<Arc<Engine>, EngineError> {
    Engine::open(Arc::new(ground.clone()), settings(seed), Mode::ReadWrite, "test")
}

fn policy(seed: u64) -> CrashPolicy {
    match seed % 4 {
        0 => CrashPolicy::DropAll,
        1 => CrashPolicy::KeepAll,
        _ => CrashPolicy::Random { seed },
    }
}

/// One run: `rounds` times some steps, a crash, an opening (which may crash too), a comparison.
fn crash_run(seed: u64, rounds: u64, crash: impl Fn(&SimulatedGround, &mut Random)) {
    let mut random = Random(seed);
    let mut model = Model { states: vec![BTreeMap::new()], durable: 0 };
    let mut ground = create(seed);
    for round in 0..rounds {
        crash(&ground, &mut random);
        // If the crash hits an operation whose failure does no harm, the opening succeeds, but nothing can be read any
        // more.
        if let Ok(engine) = open(&ground, seed).and_then(|engine| if ground.is_crashed() { Err(EngineError::ReadOnly) } else { Ok(engine) })
        {
            verify(&engine, &mut model, seed);
            run(&engine, &mut random, &mut model, 25);
        }
        ground = ground.restart(policy(seed + round));
    }
    let engine = open(&ground, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    verify(&engine, &mut model, seed);
    // Opening for reading changes nothing and finds the same.
    drop(engine);
    let before = ground.operations();
    let engine = Engine::open(Arc::new(ground.clone()), settings(seed), Mode::ReadOnly, "test").unwrap();
    verify(&engine, &mut model, seed);
    assert_eq!(ground.operations(), before, "seed {seed}: opening for reading wrote");
}

#[test]
fn m0_18_a_crash_at_every_sync_loses_nothing_that_was_flushed() {
    Seeds::of(3).each(|seed| {
        let ground = create(seed);
        let start = ground.syncs();
        let engine = open(&ground, seed).unwrap();
        let mut model = Model { states: vec![BTreeMap::new()], durable: 0 };
        let mut random = Random(seed);
        assert!(run(&engine, &mut random, &mut model, 40));
        drop(engine);
        let syncs = ground.syncs() - start;
        assert!(syncs > 20, "a run of {syncs} syncs shows little");
        for crash in 0..syncs {
            for policy in [CrashPolicy::DropAll, CrashPolicy::Random { seed: crash }] {
                let ground = create(seed);
                ground.crash_after_syncs(crash);
                let mut model = Model { states: vec![BTreeMap::new()], durable: 0 };
                if let Ok(engine) = open(&ground, seed) {
                    run(&engine, &mut Random(seed), &mut model, 40);
                }
                let ground = ground.restart(policy);
                let engine = open(&ground, seed).unwrap_or_else(|error| panic!("seed {seed}, sync {crash}, {policy:?}: {error}"));
                verify(&engine, &mut model, seed);
            }
        }
    });
}

#[test]
fn m0_18_many_random_crashes_lose_nothing_that_was_flushed() {
    Seeds::of(400).each(|seed| crash_run(seed, 4, |ground, random| ground.crash_after_operations(random.below(400))));
}

/// Before each opening the log jumps, as after a take-over. Nothing is taken for lost or full, and the positions of the
/// views stay comparable.
#[test]
fn a_log_that_jumps_between_crashes_loses_nothing_that_was_flushed() {
    Seeds::of(100).each(|seed| {
        crash_run(seed, 6, |ground, random| {
            common::jump(ground, random.below(1 << 30));
            ground.crash_after_operations(random.below(400));
        });
    });
}

/// Everything except the bytes of user data: recipes, metadata chunks, the content lists of containers, counts.
#[test]
fn a_store_that_keeps_no_data_loses_nothing_else_in_crashes() {
    Seeds::of(100).each(|seed| crash_run(seed | DISCARDS, 4, |ground, random| ground.crash_after_operations(random.below(400))));
}

#[test]
fn a_full_disk_at_any_write_is_an_error_and_nothing_is_lost() {
    let mut went_on = 0;
    let seeds = Seeds::of(100);
    seeds.each(|seed| {
        let mut random = Random(seed);
        let mut model = Model { states: vec![BTreeMap::new()], durable: 0 };
        let ground = create(seed);
        let engine = open(&ground, seed).unwrap();
        let mut failed = 0;
        for _ in 0..6 {
            ground.fail_operation(random.below(60), std::io::ErrorKind::StorageFull);
            failed += u64::from(!run(&engine, &mut random, &mut model, 10));
        }
        // There is space again: the same process continues, and everything submitted is there. Only after a failed sync
        // must the store be reopened. The last failure may still be waiting. It counts too: it may be the only one that
        // no write from the reserve has made up for.
        let flushed = engine.flush().or_else(|_| {
            failed += 1;
            engine.flush()
        });
        match flushed {
            Ok(()) => {
                model.durable = model.states.len() - 1;
                verify(&engine, &mut model, seed);
                went_on += 1;
            }
            Err(error) => {
                assert!(failed > 0 && !error.is_full(), "seed {seed}: after {failed} failures: {error}");
            }
        }
        drop(engine);
        let engine = open(&ground.restart(CrashPolicy::DropAll), seed).unwrap();
        verify(&engine, &mut model, seed);
    });
    let runs = seeds.count();
    assert!(went_on * 2 > runs || !seeds.are_enough(), "only {went_on} of {runs} runs went on after a full disk");
}

/// A store of some shape with random transactions, for the tests that all writing code must pass.
struct Store {
    seed: u64,
}

#[derive(Clone)]
struct Known {
    model: Model,
    random: Random,
}

impl Subject for Store {
    type Part = Arc<Engine>;
    type Known = Known;

    fn create(&self, seed: u64) -> (SimulatedGround, Known) {
        let model = Model { states: vec![BTreeMap::new()], durable: 0 };
        (create_on(SimulatedGround::new(seed), self.seed), Known { model, random: Random(self.seed) })
    }

    fn open(&self, ground: &SimulatedGround, _: &mut Known) -> Result<Arc<Engine>, String> {
        open(ground, self.seed).map_err(|error| error.to_string())
    }

    fn learn(&self, engine: &mut Arc<Engine>, known: &mut Known) -> Result<(), String> {
        reach(engine, &mut known.model, self.seed).map_err(|error| error.to_string())
    }

    fn work(&self, engine: &mut Arc<Engine>, known: &mut Known) -> Result<(), String> {
        if run(engine, &mut known.random, &mut known.model, 40) { Ok(()) } else { Err("a step failed".into()) }
    }

    fn compare(&self, _: &SimulatedGround, engine: &mut Arc<Engine>, known: &mut Known) {
        verify(engine, &mut known.model, self.seed);
    }
}

#[test]
fn m0_18_a_killed_process_then_another_then_a_power_cut_lose_nothing_that_was_flushed() {
    Seeds::of(3).each(|seed| assert!(kills_then_power_cuts(&Store { seed }, 25) > 20));
}

#[test]
fn m0_18_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing_that_was_flushed() {
    Seeds::of(3).each(|seed| assert!(failures_then_power_cuts(&Store { seed }, 25) > 20));
}

#[test]
fn m0_18_a_query_that_fails_while_opening_or_writing_loses_nothing_that_was_flushed() {
    Seeds::of(3).each(|seed| {
        assert!(failed_queries_of_openings(&Store { seed }, 4, 30) > 40);
        assert!(failed_queries_of_work(&Store { seed }, false, 30) > 5);
    });
}
