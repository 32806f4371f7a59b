//! Compares the linked index with a map, and with the chunk index.

use super::*;
use crate::{ChunkBatch, ChunkIndex, ChunkIndexOptions};
use onefold_ground::{CrashPolicy, SimulatedGround, checksum};
use onefold_oplog::Ownership;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const DIGEST_BYTES: usize = 20;

pub(super) const SHAPE: LinkedShape = LinkedShape { digest_bytes: DIGEST_BYTES, tag: Tag::Status, dia: Dia::Large, slots_bits: 4 };

pub(super) const OPTIONS: LinkedOptions = LinkedOptions { auxiliary_bytes: 1 << 17 };

pub(super) fn random(numbers: &[u64]) -> u64 {
    checksum(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
}

/// Returns a digest that looks random. Some chunks share the first 64 bits, and so their place in the order of a sweep.
pub(super) fn key(number: u64) -> Fingerprint {
    let prefix = if number % 16 < 4 { number / 4 * 4 } else { number };
    let mut digest = [0; DIGEST_BYTES];
    digest[..8].copy_from_slice(&random(&[prefix]).to_le_bytes());
    digest[8..16].copy_from_slice(&random(&[number, 1]).to_le_bytes());
    digest[16..].copy_from_slice(&(number as u32).to_le_bytes());
    Fingerprint::from_digest(&digest)
}

/// One batch of the log.
#[derive(Clone, Debug, Default)]
pub(super) struct LogBatch {
    pub end: u64,
    pub removals: Vec<Fingerprint>,
    pub places: Vec<(Fingerprint, u64, u32)>,
    pub inserts: Vec<(Fingerprint, u64, u32)>,
    pub deltas: Vec<(Fingerprint, i64)>,
}

/// What the index should say.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub chunks: BTreeMap<Fingerprint, BlockEntry>,
    pub blocks: BTreeMap<u64, Fingerprint>,
}

impl Model {
    fn block_of(&self, fingerprint: &Fingerprint) -> Option<u64> {
        self.blocks.iter().find(|(_, of)| *of == fingerprint).map(|(block, _)| *block)
    }

    pub fn apply(&mut self, batch: &LogBatch) {
        let mut blocks: BTreeMap<Fingerprint, u64> = self.blocks.iter().map(|(block, fingerprint)| (*fingerprint, *block)).collect();
        for fingerprint in &batch.removals {
            self.chunks.remove(fingerprint);
            blocks.remove(fingerprint);
        }
        for (fingerprint, address, note) in batch.places.iter().chain(&batch.inserts) {
            let fingerprint = *fingerprint;
            if *address == 0 {
                if let Some(entry) = self.chunks.get_mut(&fingerprint) {
                    entry.is_lost = true;
                }
                continue;
            }
            let entry = self.chunks.entry(fingerprint).or_insert(BlockEntry { fingerprint, note: 0, count: 0, is_lost: false });
            (entry.note, entry.is_lost) = (*note, false);
            blocks.insert(fingerprint, address - FIRST_ADDRESS);
        }
        for (fingerprint, delta) in &batch.deltas {
            if let Some(entry) = self.chunks.get_mut(fingerprint)
                && entry.count < u32::MAX
            {
                entry.count = (i64::from(entry.count) + delta).clamp(0, u32::MAX.into()) as u32;
            }
        }
        self.chunks.retain(|_, entry| !entry.is_lost || entry.count > 0);
        blocks.retain(|fingerprint, _| self.chunks.contains_key(fingerprint));
        self.blocks = blocks.into_iter().map(|(fingerprint, block)| (block, fingerprint)).collect();
        assert_eq!(self.blocks.len(), self.chunks.len(), "two chunks have one block");
    }
}

/// A change of a batch, by chunk numbers.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Remove(u64),
    /// To a new block.
    Store(u64, u64),
    Lose(u64),
    /// Two chunks or more change places in a circle.
    Rotate(Vec<u64>),
    Count(u64, i64),
}

/// Makes a log batch. Leaves out what the log would never say. Blocks become free within the batch, and others get them
/// at once.
pub(super) fn log_batch(end: u64, model: &Model, events: &[Event]) -> LogBatch {
    let mut batch = LogBatch { end, ..LogBatch::default() };
    let mut named = BTreeSet::new();
    for event in events {
        if let Event::Remove(chunk) = event
            && named.insert(*chunk)
        {
            batch.removals.push(key(*chunk));
        }
    }
    let mut now = model.clone();
    now.apply(&batch);
    for event in events {
        match event {
            Event::Rotate(chunks) => {
                let known = chunks.iter().filter(|chunk| named.insert(**chunk)).map(|chunk| key(*chunk));
                let known: Vec<_> = known.filter_map(|name| Some((name, now.block_of(&name)?))).collect();
                for (at, (name, _)) in known.iter().enumerate() {
                    batch.places.push((*name, known[(at + 1) % known.len()].1 + FIRST_ADDRESS, at as u32));
                }
            }
            Event::Lose(chunk) if now.chunks.contains_key(&key(*chunk)) && named.insert(*chunk) => {
                batch.places.push((key(*chunk), 0, 0));
            }
            _ => {}
        }
    }
    // Whoever moves away within this batch frees the block for another chunk of it.
    let stored = events.iter().filter_map(|event| if let Event::Store(chunk, seed) = event { Some((*chunk, *seed)) } else { None });
    let stored: Vec<_> = stored.filter(|(chunk, _)| named.insert(*chunk)).collect();
    now.apply(&LogBatch { places: batch.places.clone(), ..LogBatch::default() });
    let leaving: BTreeSet<_> = stored.iter().map(|(chunk, _)| key(*chunk)).collect();
    let mut used: BTreeSet<u64> = now.blocks.iter().filter(|(_, of)| !leaving.contains(of)).map(|(block, _)| *block).collect();
    // A chunk that is lost here and has no references leaves its block only with the batch.
    used.extend(model.blocks.iter().filter(|(_, of)| batch.places.iter().any(|(name, ..)| name == *of)).map(|(block, _)| *block));
    for (chunk, seed) in stored {
        let first = if seed % 4 == 0 { random(&[seed]) % 700 } else { 0 };
        let block = (first..).find(|block| !used.contains(block)).unwrap();
        used.insert(block);
        batch.inserts.push((key(chunk), block + FIRST_ADDRESS, (seed % u64::from(MAX_NOTE)) as u32));
    }
    let mut now = model.clone();
    now.apply(&LogBatch { deltas: Vec::new(), ..batch.clone() });
    let mut counts: BTreeMap<Fingerprint, i64> = now.chunks.iter().map(|(name, entry)| (*name, entry.count.into())).collect();
    for event in events {
        if let Event::Count(chunk, delta) = event
            && let Some(count) = counts.get_mut(&key(*chunk))
            && *count + delta >= 0
        {
            *count += delta;
            batch.deltas.push((key(*chunk), *delta));
        }
    }
    batch
}

pub(super) fn open(ground: &Arc<dyn Ground>, access: Access, epoch: u64) -> Result<LinkedIndex> {
    LinkedIndex::open(ground, "index", epoch, DIGEST_BYTES, OPTIONS, access)
}

pub(super) fn apply(index: &LinkedIndex, batch: &LogBatch) {
    let LogBatch { end, removals, places, inserts, deltas } = batch;
    index.apply_batch(Position(*end), LinkedBatch { removals, places, inserts, deltas }).unwrap();
}

/// Checks lookups of all chunks and of absent ones, the blocks, and the visit, against the model.
pub(super) fn check(index: &LinkedIndex, model: &Model) {
    let mut wanted: Vec<Fingerprint> = model.chunks.keys().copied().collect();
    wanted.extend((0..100).map(|stranger| key(1 << 40 | stranger)));
    let mut out = Vec::new();
    index.lookup(&wanted, &mut out).unwrap();
    let by_chunk: BTreeMap<Fingerprint, u64> = model.blocks.iter().map(|(block, of)| (*of, *block)).collect();
    let expected = |fingerprint: &Fingerprint| {
        let entry = model.chunks.get(fingerprint)?;
        let address = if entry.is_lost { 0 } else { by_chunk[fingerprint] + FIRST_ADDRESS };
        Some(LinkedEntry { address, note: entry.note, count: entry.count })
    };
    for (fingerprint, found) in wanted.iter().zip(&out) {
        assert_eq!(*found, expected(fingerprint), "{fingerprint}");
    }
    let end = index.end_of_blocks();
    let mut blocks = Vec::new();
    index.blocks(0, end as usize + 10, &mut blocks).unwrap();
    for (block, found) in (0..).zip(&blocks) {
        let expected = model.blocks.get(&block).map(|fingerprint| model.chunks[fingerprint]);
        assert_eq!(*found, expected, "block {block}");
    }
    assert!(model.blocks.last_key_value().is_none_or(|(block, _)| *block < end));
    let mut visited = Vec::new();
    index
        .for_each(&mut |fingerprint, entry| {
            visited.push((*fingerprint, entry));
            Ok(())
        })
        .unwrap();
    let in_order: Vec<_> = model.blocks.values().map(|of| (*of, expected(of).unwrap())).collect();
    assert_eq!(visited, in_order);
    let used: u32 = (0..index.units()).map(|unit| index.used_in_unit(unit).unwrap()).sum();
    assert!(used as usize >= model.blocks.len());
}

/// Checks what holds when everything is in pages.
pub(super) fn check_swept(index: &LinkedIndex, model: &Model) {
    check(index, model);
    assert_eq!(index.verify_all(), []);
    let statistics = index.statistics();
    let lost = model.chunks.values().filter(|entry| entry.is_lost).count() as u64;
    assert_eq!((statistics.entries, statistics.lost, statistics.auxiliary_entries), (model.chunks.len() as u64, lost, 0));
    assert_eq!(index.shown.read().header.early, 0, "every early record had its turn");
    for unit in 0..index.units() {
        let blocks = unit * UNIT_BLOCKS..(unit + 1) * UNIT_BLOCKS;
        assert_eq!(index.used_in_unit(unit).unwrap() as usize, model.blocks.range(blocks).count());
    }
    let (mut found, mut damaged, mut cursor) = (Vec::new(), Vec::new(), Some(0));
    while let Some(from) = cursor {
        cursor = index.unused(from, 7, &mut found, &mut damaged).unwrap();
    }
    assert_eq!(damaged, []);
    let unused = model.blocks.iter().filter(|(_, of)| model.chunks[of].count == 0 && !model.chunks[of].is_lost);
    assert_eq!(found, unused.map(|(block, of)| (*of, block + FIRST_ADDRESS)).collect::<Vec<_>>());
}

pub(super) fn created(seed: u64, shape: LinkedShape) -> (SimulatedGround, Arc<dyn Ground>) {
    let disk = SimulatedGround::new(seed);
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    LinkedIndex::create(&ground, "index", shape).unwrap();
    (disk, ground)
}

#[derive(Clone, Debug)]
enum Step {
    Batch(Vec<Event>),
    Bounded,
    Sweep,
    SweepAll,
    Close,
    Reopen,
    Crash { operations: u64, seed: u64 },
    Lookup,
}

fn event() -> impl Strategy<Value = Event> {
    let chunk = 0..800u64;
    prop_oneof![
        2 => chunk.clone().prop_map(Event::Remove),
        6 => (chunk.clone(), any::<u64>()).prop_map(|(chunk, seed)| Event::Store(chunk, seed)),
        1 => chunk.clone().prop_map(Event::Lose),
        1 => proptest::collection::vec(chunk.clone(), 2..5).prop_map(Event::Rotate),
        6 => (chunk, -2..4i64).prop_map(|(chunk, delta)| Event::Count(chunk, delta)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => proptest::collection::vec(event(), 0..150).prop_map(Step::Batch),
        6 => Just(Step::Bounded),
        2 => Just(Step::Sweep),
        1 => Just(Step::SweepAll),
        1 => Just(Step::Close),
        1 => Just(Step::Reopen),
        2 => (0..40u64, any::<u64>()).prop_map(|(operations, seed)| Step::Crash { operations, seed }),
        1 => Just(Step::Lookup),
    ]
}

pub(super) fn shapes() -> impl Strategy<Value = LinkedShape> {
    (4..10u32, any::<bool>(), any::<bool>()).prop_map(|(slots_bits, is_big, is_slim)| LinkedShape {
        digest_bytes: DIGEST_BYTES,
        tag: if is_big { Tag::Big } else { Tag::Status },
        dia: if is_slim { Dia::Slim } else { Dia::Large },
        slots_bits,
    })
}

/// The linked index and the chunk index behind the same log.
struct Both {
    disks: [SimulatedGround; 2],
    linked: LinkedIndex,
    chunks: ChunkIndex,
    epoch: u64,
    log: Vec<LogBatch>,
}

impl Both {
    fn new(shape: LinkedShape) -> Both {
        let (disk, ground) = created(1, shape);
        let other = SimulatedGround::new(2);
        let other_ground: Arc<dyn Ground> = Arc::new(other.clone());
        ChunkIndex::create(&other_ground, "index", 1, DIGEST_BYTES).unwrap();
        let (linked, chunks) = (open(&ground, Access::ReadWrite, 1).unwrap(), Both::open_chunks(&other, 1));
        Both { disks: [disk, other], linked, chunks, epoch: 1, log: Vec::new() }
    }

    fn open_chunks(disk: &SimulatedGround, epoch: u64) -> ChunkIndex {
        let ground: Arc<dyn Ground> = Arc::new(disk.clone());
        let options = ChunkIndexOptions { auxiliary_bytes: 1 << 17, page_cache_bytes: 1 << 15, filter_bytes: 1 << 16, reads_in_flight: 4 };
        ChunkIndex::open(&ground, "index", &Ownership::all(1, epoch), DIGEST_BYTES, options, Access::ReadWrite).unwrap()
    }

    fn apply_to_chunks(&self, batch: &LogBatch) {
        let plain = |places: &[(Fingerprint, u64, u32)]| places.iter().map(|(name, address, _)| (*name, *address)).collect::<Vec<_>>();
        let (places, inserts) = (plain(&batch.places), plain(&batch.inserts));
        let batch_of_chunks =
            ChunkBatch { removals: &batch.removals, places: &places, inserts: &inserts, notes: &[], deltas: &batch.deltas };
        self.chunks.apply_batch(Position(batch.end), batch_of_chunks).unwrap();
    }

    fn apply(&mut self, batch: LogBatch) {
        apply(&self.linked, &batch);
        self.apply_to_chunks(&batch);
        self.log.push(batch);
    }

    fn reopen(&mut self) {
        self.epoch += 1;
        self.disks.iter().for_each(SimulatedGround::calm);
        let ground: Arc<dyn Ground> = Arc::new(self.disks[0].clone());
        self.linked = open(&ground, Access::ReadWrite, self.epoch).unwrap();
        self.chunks = Both::open_chunks(&self.disks[1], self.epoch);
        let (position, other) = (self.linked.position().0, self.chunks.position().0);
        assert!(self.linked.required_end().0 <= self.log.last().map_or(0, |batch| batch.end));
        for batch in &self.log {
            if batch.end > position {
                apply(&self.linked, batch);
            }
            if batch.end > other {
                self.apply_to_chunks(batch);
            }
        }
    }

    fn compare(&self) {
        let wanted: Vec<_> = (0..800).map(key).collect();
        let (mut linked, mut chunks) = (Vec::new(), Vec::new());
        self.linked.lookup(&wanted, &mut linked).unwrap();
        self.chunks.lookup(&wanted, &mut chunks).unwrap();
        for (name, (linked, chunk)) in wanted.iter().zip(linked.iter().zip(&chunks)) {
            assert_eq!(linked.map(|entry| (entry.address, entry.count)), chunk.map(|entry| (entry.address, entry.count)), "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn m1_2_m1_4_m1_8_the_index_is_a_map_and_equals_the_chunk_index_through_sweeps_growth_crashes_and_replay(
        steps in proptest::collection::vec(step(), 1..40), shape in shapes(),
    ) {
        let mut both = Both::new(shape);
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Batch(events) => {
                    let batch = log_batch(both.log.len() as u64 * 512 + 512, &model, &events);
                    model.apply(&batch);
                    both.apply(batch);
                }
                Step::Bounded => {
                    both.linked.step().unwrap();
                    both.chunks.step().unwrap();
                }
                Step::Sweep => {
                    both.linked.sweep().unwrap();
                    both.chunks.sweep().unwrap();
                }
                Step::SweepAll => {
                    both.linked.sweep_all().unwrap();
                    both.chunks.sweep_all().unwrap();
                    prop_assert_eq!(both.linked.position().0, both.log.last().map_or(0, |batch| batch.end));
                }
                Step::Close => both.linked.close().unwrap(),
                Step::Reopen => both.reopen(),
                Step::Crash { operations, seed } => {
                    both.disks.iter().for_each(|disk| disk.crash_after_operations(operations));
                    while both.linked.step().is_ok_and(|stepped| stepped) {}
                    while both.chunks.step().is_ok_and(|stepped| stepped) {}
                    both.disks = both.disks.map(|disk| disk.restart(CrashPolicy::Random { seed }));
                    both.reopen();
                }
                Step::Lookup => check(&both.linked, &model),
            }
        }
        check(&both.linked, &model);
        both.compare();
        prop_assert_eq!(both.linked.verify_all(), []);
        both.linked.sweep_all().unwrap();
        both.chunks.sweep_all().unwrap();
        check_swept(&both.linked, &model);
        both.compare();
        let statistics = both.linked.statistics();
        prop_assert_eq!((statistics.count_underflows, statistics.orphan_deltas), (0, 0));
    }
}
