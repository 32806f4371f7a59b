//! The claim of coverage against a witness that notes every reading and writing of a file, under stops, restarts,
//! writes and merges; damage is found, named, and forgotten when it is gone.

use super::*;
use crate::NoMonitor;
use crate::{PruneOptions, prune};
use onefold_chunking::{Kind, Sizes};
use onefold_engine::{Address, Descriptor, Group, Hints, Mode, Reference, Settings};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, File, Ground, SimulatedGround};
use onefold_storage::Compression;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// A ground that notes when each container file and forward was written or read last, by a clock that goes on by one
/// whenever it is looked at.
#[derive(Clone, Debug)]
struct Witness {
    ground: SimulatedGround,
    clock: Arc<AtomicI64>,
    seen: Arc<Mutex<BTreeMap<String, i64>>>,
}

impl Witness {
    fn note(&self, path: &str) {
        let now = self.clock.fetch_add(1, Ordering::SeqCst);
        self.seen.lock().unwrap().insert(path.to_owned(), now);
    }
}

impl Clock for Witness {
    fn wall_ns(&self) -> i64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep(&self, _time: Duration) {}
}

impl onefold_ground::DelegatingGround for Witness {
    fn below(&self) -> &dyn Ground {
        &self.ground
    }
    fn create(&self, path: &str) -> onefold_ground::Result<Arc<dyn File>> {
        self.note(path);
        self.ground.create(path)
    }
    fn open(&self, path: &str, access: Access) -> onefold_ground::Result<Arc<dyn File>> {
        if path.ends_with(".forward") {
            self.note(path);
        }
        self.ground.open(path, access)
    }
    fn open_past_cache(&self, path: &str) -> onefold_ground::Result<Arc<dyn File>> {
        self.note(path);
        self.ground.open_past_cache(path)
    }
    fn remove(&self, path: &str) -> onefold_ground::Result<()> {
        self.seen.lock().unwrap().remove(path);
        self.ground.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> onefold_ground::Result<()> {
        let seen = self.seen.lock().unwrap().remove(from);
        seen.map(|time| self.seen.lock().unwrap().insert(to.to_owned(), time));
        self.ground.rename(from, to)
    }
}

fn descriptor() -> Descriptor {
    Descriptor {
        chunker: Kind::FastCdc,
        chunk_sizes: Sizes { min: 256, target: 1024, max: 4096 },
        container_bytes: 64 << 10,
        frame_bytes: 4 << 10,
        compression: Compression::None,
        sequential_frame_bytes: 16 << 10,
        index_partitions: 2,
        container_partitions: 2,
        ..Descriptor::new().unwrap()
    }
}

fn start() -> Witness {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    Engine::create(&shared, &descriptor()).unwrap();
    Witness { ground, clock: Arc::new(AtomicI64::new(1000)), seen: Arc::default() }
}

fn open(witness: &Witness) -> Arc<Engine> {
    let settings = Settings { workers: 1, background: false, ..Settings::default() };
    Engine::open(Arc::new(witness.clone()), settings, Mode::ReadWrite, "test").unwrap()
}

/// Numbers that are the same for the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Writes new data of which about half of the chunks are referred to.
fn write(engine: &Arc<Engine>, random: &mut Random, length: usize) {
    let data: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
    let mut pieces = Vec::new();
    let mut stream = engine.stream();
    let mut at = 0;
    while at < data.len() {
        at += stream.write(&data[at..], true, Hints::default(), &mut pieces).unwrap();
    }
    let references = Reference::of(&pieces, Group::new(b'x', 0), 1).filter(|_| random.below(2) == 0).collect();
    engine.submit(Transaction { changes: Vec::new(), references }).unwrap();
    drop(stream);
    engine.flush().unwrap();
}

/// Every file of a container or forward was read or written since the claim.
fn verify_claim(witness: &Witness, engine: &Engine, seed: u64) -> bool {
    let state = read_state(engine).unwrap();
    let Some(since) = state.covered_since(witness.wall_ns()) else { return false };
    let mut files = Vec::new();
    for partition in witness.ground.list("containers").unwrap() {
        let partition = format!("containers/{}", partition.name);
        for folder in witness.ground.list(&partition).unwrap() {
            let folder = format!("{partition}/{}", folder.name);
            files.extend(witness.ground.list(&folder).unwrap().into_iter().map(|file| format!("{folder}/{}", file.name)));
        }
    }
    let seen = witness.seen.lock().unwrap();
    for file in files {
        assert!(seen[&file] >= since, "seed {seed}: {file} was read or written at {}, claimed is {since}", seen[&file]);
    }
    true
}

#[test]
fn everything_was_read_or_written_since_the_time_that_is_claimed_whatever_stops_the_scrub() {
    let mut claims = 0;
    for seed in 0..12 {
        let witness = start();
        let mut random = Random(seed);
        let mut engine = open(&witness);
        for _ in 0..60 {
            match random.below(10) {
                0..=2 => {
                    let length = 1000 + random.below(60_000) as usize;
                    write(&engine, &mut random, length);
                }
                3 => {
                    prune(&engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
                }
                4 => {
                    engine.close().unwrap();
                    drop(engine);
                    engine = open(&witness);
                }
                _ => {
                    let left = Cell::new(random.below(60));
                    let go_on = || left.replace(left.get().saturating_sub(1)) > 0;
                    let options = ScrubOptions { restart: random.below(12) == 0, ..ScrubOptions::default() };
                    let report = scrub_by(&witness, &engine, options, &NoMonitor, &go_on).unwrap();
                    assert_eq!(report.status.damages, Vec::<String>::new());
                }
            }
            claims += u64::from(verify_claim(&witness, &engine, seed));
        }
    }
    assert!(claims > 200, "only {claims} claims were made");
}

#[test]
fn damage_is_named_until_it_is_gone() {
    let witness = start();
    let engine = open(&witness);
    write(&engine, &mut Random(1), 60_000);
    let scrub = || scrub_by(&witness, &engine, ScrubOptions::default(), &NoMonitor, &|| true).unwrap();
    let whole = scrub();
    assert!(whole.is_complete && whole.status.damages.is_empty() && whole.read_bytes > 60_000);
    assert!(whole.status.covered_since_ns.is_some());
    for offset in [70, 3000] {
        witness.ground.corrupt("containers/0000/00000/00000001", offset, 1).unwrap();
        let damaged = scrub();
        assert!(damaged.is_complete);
        assert_eq!((damaged.status.damages.len(), damaged.status.damage_count), (1, 1), "{:?}", damaged.status.damages);
        assert!(damaged.status.damages[0].contains("container 0-00000001, frame"), "{:?}", damaged.status.damages);
        // It is known of after a restart too, and until it was read again.
        assert_eq!(scrub_status(&engine).unwrap().damages, damaged.status.damages);
        witness.ground.corrupt("containers/0000/00000/00000001", offset, 1).unwrap();
        assert!(scrub().status.damages.is_empty());
    }
}

#[test]
fn a_scrub_keeps_to_its_time_and_goes_on_where_it_was() {
    let witness = start();
    let engine = open(&witness);
    write(&engine, &mut Random(1), 200_000);
    let none = ScrubOptions { limit: Some(Duration::ZERO), ..ScrubOptions::default() };
    let report = scrub(&engine, none, &NoMonitor, &|| true).unwrap();
    assert_eq!((report.units, report.is_complete, report.status.covered_since_ns), (0, false, None));
    let mut read_bytes = 0;
    loop {
        let left = Cell::new(8);
        let report = scrub(&engine, ScrubOptions::default(), &NoMonitor, &|| left.replace(left.get() - 1) > 1).unwrap();
        read_bytes += report.read_bytes;
        if report.is_complete {
            assert_eq!(report.status.last.unwrap().2, read_bytes);
            break;
        }
        assert_eq!(report.status.under_way.unwrap().1, read_bytes);
    }
    assert!(read_bytes > 200_000);
}

#[test]
fn scrubs_that_are_stopped_read_the_parity_of_every_folder_and_rebuild_what_is_lost_in_each() {
    let witness = start();
    let settings = Settings { workers: 1, background: false, parity_group: 4, ..Settings::default() };
    let engine = Engine::open(Arc::new(witness.clone()), settings, Mode::ReadWrite, "test").unwrap();
    let mut random = Random(1);
    for folder in 1..5u32 {
        write(&engine, &mut random, 900_000);
        (0..2).for_each(|partition| engine.containers().unwrap().keep_number(ContainerId::new(partition, (folder << 12) - 1)).unwrap());
    }
    engine.make_parity(true, &|| true).unwrap();
    engine.maintain(true).unwrap();
    let storage = engine.containers().unwrap();
    let mut lost: Vec<ContainerId> = storage.containers().unwrap().iter().filter(|id| storage.is_sealed(*id)).collect();
    lost.dedup_by_key(|id| (id.partition(), id.number() >> 12));
    assert!(lost.len() >= 6, "{lost:?}");
    for id in &lost {
        witness.ground.remove(&format!("containers/{:04x}/{:05x}/{:08x}", id.partition(), id.number() >> 12, id.number())).unwrap();
    }
    let (begun, mut repaired) = (witness.wall_ns(), Vec::new());
    loop {
        let left = Cell::new(12);
        let go_on = || left.replace(left.get() - 1) > 1;
        let report = scrub_by(&witness, &engine, ScrubOptions::default(), &NoMonitor, &go_on).unwrap();
        repaired.extend(report.repaired);
        if report.is_complete {
            assert_eq!(report.status.damages, Vec::<String>::new());
            break;
        }
    }
    assert_eq!(repaired.len(), lost.len(), "{repaired:?}");
    let groups = storage.parity_groups_from(GroupId::FIRST, usize::MAX).unwrap();
    let seen = witness.seen.lock().unwrap();
    let parity = seen.iter().filter(|(path, time)| path.contains("/parity/") && **time >= begun);
    assert_eq!(parity.count(), groups.len());
}

#[test]
fn a_full_disk_keeps_a_scrub_or_check_from_nothing_but_repair() {
    let witness = start();
    let settings = Settings { workers: 1, background: false, parity_group: 4, ..Settings::default() };
    let engine = Engine::open(Arc::new(witness.clone()), settings, Mode::ReadWrite, "test").unwrap();
    write(&engine, &mut Random(1), 600_000);
    assert!(engine.make_parity(true, &|| true).unwrap() > 0);
    engine.maintain(true).unwrap();
    let lost = engine.containers().unwrap().containers().unwrap().iter().nth(1).unwrap();
    let path = format!("containers/{:04x}/00000/{:08x}", lost.partition(), lost.number());
    witness.ground.remove(&path).unwrap();
    let free = witness.ground.used_bytes();
    witness.ground.set_capacity(free);
    let scrub = || scrub_by(&witness, &engine, ScrubOptions::default(), &NoMonitor, &|| true).unwrap();
    let report = scrub();
    assert!(report.is_complete && report.repaired.is_empty());
    assert_eq!(report.status.damage_count, 1);
    assert!(report.status.damages[0].contains("parity cannot rebuild it"), "{:?}", report.status.damages);
    let checked = crate::check(&engine, crate::CheckOptions { read_data: true, ..crate::CheckOptions::default() }, &NoMonitor).unwrap();
    assert!(checked.repaired == 0 && checked.problem_count > 0);
    // Then there is room again.
    witness.ground.set_capacity(u64::MAX);
    let report = scrub();
    assert_eq!((report.repaired.len(), report.status.damage_count), (1, 0), "{:?}", report.status.damages);
}

#[test]
fn scrubs_that_end_early_get_past_a_partition_of_the_index_that_none_of_them_can_read_whole() {
    let witness = start();
    let engine = open(&witness);
    let mut random = Random(1);
    for _ in 0..8 {
        let mut name = || std::array::from_fn::<u8, 32, _>(|_| random.below(256) as u8);
        let (group, address) = (Group::new(b'x', 0), Address::from_bits(0));
        let references = (0..10_000).map(|_| Reference { group, fingerprint: Fingerprint::from_digest(&name()), address, change: 1 });
        engine.submit(Transaction { changes: Vec::new(), references: references.collect() }).unwrap();
        engine.flush().unwrap();
    }
    engine.maintain(true).unwrap();
    assert!(engine.index().unwrap().verify_run(0, 0).next.is_some(), "a partition has one run of pages only");
    let (mut scrubs, mut inside) = (0, 0);
    loop {
        // Each is asked four times at most: a step is begun and one run of pages read.
        let left = Cell::new(4);
        let report = scrub_by(&witness, &engine, ScrubOptions::default(), &NoMonitor, &|| left.replace(left.get() - 1) > 0).unwrap();
        if report.is_complete {
            break;
        }
        let position = read_state(&engine).unwrap().current.unwrap().position;
        inside += u64::from(position.phase == Phase::ChunkIndex && position.unit as u32 != 0);
        scrubs += 1;
        assert!(scrubs < 100, "stuck at {position:?}");
    }
    assert!(inside > 0);
}

#[test]
fn a_second_scrub_goes_on_with_the_list_of_the_first() {
    let witness = start();
    let engine = open(&witness);
    // More files than a step takes.
    write(&engine, &mut Random(1), 16_000_000);
    let some = |asks: i32| {
        let left = Cell::new(asks);
        scrub_by(&witness, &engine, ScrubOptions::default(), &NoMonitor, &|| left.replace(left.get() - 1) > 0).unwrap()
    };
    assert!(some(5).units > 0);
    let made = engine.scrub_turn().unwrap().as_ref().unwrap().made;
    let first = read_state(&engine).unwrap().current.unwrap();
    assert!(first.position.phase == Phase::Containers, "{first:?}");
    // Another one takes its turn, and then the first again.
    some(3);
    some(3);
    assert_eq!(read_state(&engine).unwrap().current.unwrap().position.phase, Phase::Containers);
    assert_eq!(engine.scrub_turn().unwrap().as_ref().unwrap().made, made);
    assert!(some(i32::MAX).is_complete);
    assert!(engine.scrub_turn().unwrap().is_none(), "a list of files that is of no use any more takes memory");
}

#[test]
fn what_was_written_and_is_seen_by_nobody_yet_is_not_claimed() {
    let witness = start();
    let engine = open(&witness);
    write(&engine, &mut Random(1), 100_000);
    // Frames that are in files of containers already, but not in the log: a scrub would not look at them.
    let data: Vec<u8> = (0..40_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut stream = engine.stream();
    stream.write(&data, true, Hints::default(), &mut Vec::new()).unwrap();
    let before = engine.containers().unwrap().committed_slots();
    scrub_by(&witness, &engine, ScrubOptions::default(), &NoMonitor, &|| true).unwrap();
    let after = engine.containers().unwrap().committed_slots();
    let slots = |of: &onefold_storage::CommittedSlots| -> usize {
        engine.containers().unwrap().containers().unwrap().iter().map(|id| of.of(id)).filter(|slots| *slots != usize::MAX).sum()
    };
    assert!(slots(&after) != slots(&before), "the scrub had them written into the log before it looked");
    drop(stream);
}
