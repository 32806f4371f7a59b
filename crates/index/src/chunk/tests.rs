//! Compares the chunk index with a map.

use super::*;
use crate::CountedIndex;
use onefold_ground::{LocalGround, SimulatedGround, checksum};
use onefold_oplog::{Owned, Ownership};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

pub(super) const DIGEST_BYTES: usize = 20;

/// Returns a digest that looks random.
pub(super) fn key(number: u64) -> Fingerprint {
    let mut digest = [0; DIGEST_BYTES];
    for (part, bytes) in digest.chunks_mut(8).enumerate() {
        let random = checksum(&[number, part as u64].map(u64::to_le_bytes).concat()).to_le_bytes();
        bytes.copy_from_slice(&random[..bytes.len()]);
    }
    Fingerprint::from_digest(&digest)
}

/// One batch of the log.
#[derive(Clone, Debug, Default)]
pub(super) struct LogBatch {
    pub end: u64,
    pub removals: Vec<Fingerprint>,
    pub places: Vec<(Fingerprint, u64)>,
    pub inserts: Vec<(Fingerprint, u64)>,
    pub deltas: Vec<(Fingerprint, i64)>,
}

pub(super) type Model = BTreeMap<Fingerprint, IndexEntry>;

pub(super) fn apply_to_model(model: &mut Model, batch: &LogBatch) {
    for fingerprint in &batch.removals {
        model.remove(fingerprint);
    }
    for (fingerprint, address) in &batch.places {
        model.entry(*fingerprint).or_default().address = *address;
    }
    for (fingerprint, address) in &batch.inserts {
        model.entry(*fingerprint).or_default().address = *address;
    }
    for (fingerprint, delta) in &batch.deltas {
        let entry = model.entry(*fingerprint).or_default();
        entry.count = (i64::from(entry.count) + delta) as u32;
    }
    model.retain(|_, entry| *entry != IndexEntry::default());
}

/// Makes a log batch from chunk numbers. Drops changes that would bring a count below zero.
pub(super) fn log_batch(end: u64, model: &Model, removals: &[u64], inserts: &[(u64, u64)], deltas: &[(u64, i64)]) -> LogBatch {
    let removals: Vec<_> = removals.iter().map(|chunk| key(*chunk)).collect();
    let inserts = inserts.iter().map(|(chunk, address)| (key(*chunk), *address)).collect();
    let mut counts: HashMap<Fingerprint, i64> = HashMap::new();
    let mut kept = Vec::new();
    for (chunk, delta) in deltas {
        let fingerprint = key(*chunk);
        let before = || model.get(&fingerprint).filter(|_| !removals.contains(&fingerprint)).map_or(0, |entry| i64::from(entry.count));
        let count = counts.entry(fingerprint).or_insert_with(before);
        if *count + delta >= 0 {
            *count += delta;
            kept.push((fingerprint, *delta));
        }
    }
    LogBatch { end, removals, places: Vec::new(), inserts, deltas: kept }
}

/// Test options: the page cache is small, so that many pages evict others.
pub(super) const OPTIONS: ChunkIndexOptions =
    ChunkIndexOptions { auxiliary_bytes: 1 << 16, page_cache_bytes: 1 << 16, filter_bytes: 1 << 20, reads_in_flight: 8 };

pub(super) fn open(ground: &Arc<dyn Ground>, partitions: u32, access: Access, epoch: u64) -> Result<ChunkIndex> {
    open_with(ground, partitions, access, epoch, OPTIONS)
}

pub(super) fn open_with(
    ground: &Arc<dyn Ground>,
    partitions: u32,
    access: Access,
    epoch: u64,
    options: ChunkIndexOptions,
) -> Result<ChunkIndex> {
    ChunkIndex::open(ground, "index", &Ownership::all(partitions, epoch), DIGEST_BYTES, options, access)
}

pub(super) fn apply(index: &ChunkIndex, batch: &LogBatch) {
    let LogBatch { end, removals, places, inserts, deltas } = batch;
    index.apply_batch(Position(*end), ChunkBatch { removals, places, inserts, notes: &[], deltas }).unwrap();
}

/// Checks lookups of all chunks and of absent ones, and the visit, against the model.
pub(super) fn check(index: &ChunkIndex, model: &Model) {
    let mut wanted: Vec<Fingerprint> = model.keys().copied().collect();
    wanted.extend((0..500).map(|stranger| key(1 << 40 | stranger)));
    let mut out = Vec::new();
    index.lookup(&wanted, &mut out).unwrap();
    for (fingerprint, found) in wanted.iter().zip(&out) {
        assert_eq!(*found, model.get(fingerprint).copied(), "{fingerprint}");
    }
    let mut visited = Vec::new();
    for partition in index.partitions() {
        index
            .for_each(partition, &mut |fingerprint, entry| {
                visited.push((*fingerprint, entry));
                Ok(())
            })
            .unwrap();
    }
    let expected: Vec<_> = model.iter().map(|(fingerprint, entry)| (*fingerprint, *entry)).collect();
    assert!(visited == expected, "{} visited, {} expected", visited.len(), expected.len());
}

/// Checks the search for unused chunks against the model. Everything must be in pages.
pub(super) fn check_unused(index: &ChunkIndex, model: &Model) {
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    let mut cursor = Some(UnusedCursor::default());
    while let Some(from) = cursor {
        let before = found.len();
        cursor = index.unused(from, 7, &mut found, &mut damaged).unwrap();
        assert!(found.len() <= before + 6 + 128 * page::page_capacity(DIGEST_BYTES));
    }
    assert_eq!(damaged, []);
    found.sort_unstable();
    let unused = model.iter().filter(|(_, entry)| entry.count == 0 && entry.address != 0);
    assert_eq!(found, unused.map(|(fingerprint, entry)| (*fingerprint, entry.address)).collect::<Vec<_>>());
}

#[test]
fn m0_19_the_search_for_unused_chunks_reads_only_pages_that_have_some() {
    let (disk, ground) = created(2);
    let index = open(&ground, 2, Access::ReadWrite, 1).unwrap();
    let chunks = 20_000;
    let inserts: Vec<_> = (0..chunks).map(|chunk| (chunk, chunk + 1)).collect();
    let deltas: Vec<_> = (0..chunks).map(|chunk| (chunk, 1)).collect();
    let mut model = Model::new();
    let run = |index: &ChunkIndex, model: &mut Model, end, removals: &[u64], inserts: &[(u64, u64)], deltas: &[(u64, i64)]| {
        let batch = log_batch(end, model, removals, inserts, deltas);
        apply_to_model(model, &batch);
        apply(index, &batch);
        index.sweep_all().unwrap();
    };
    run(&index, &mut model, 512, &[], &inserts, &deltas);
    let reads = |index: &ChunkIndex, model: &Model| {
        let before = disk.reads();
        check_unused(index, model);
        disk.reads() - before
    };
    assert_eq!(reads(&index, &model), 0, "every chunk is used");
    run(&index, &mut model, 1024, &[], &[], &[(7, -1), (8, -1), (9, -1)]);
    assert!((1..=3).contains(&reads(&index, &model)));
    index.close().unwrap();
    drop(index);
    let index = open(&ground, 2, Access::ReadWrite, 2).unwrap();
    assert!((1..=3).contains(&reads(&index, &model)), "the saved filter knows");
    run(&index, &mut model, 1536, &[7, 8, 9], &[], &[]);
    assert_eq!(reads(&index, &model), 0);
    check(&index, &model);
    assert_eq!(index.statistics().entries, chunks - 3);
}

fn simulated() -> (SimulatedGround, Arc<dyn Ground>) {
    let disk = SimulatedGround::new(1);
    (disk.clone(), Arc::new(disk))
}

pub(super) fn created(partitions: u32) -> (SimulatedGround, Arc<dyn Ground>) {
    let (disk, ground) = simulated();
    ChunkIndex::create(&ground, "index", partitions, DIGEST_BYTES).unwrap();
    (disk, ground)
}

/// Makes a log of `batches` batches with `chunks` new chunks each, and its model.
pub(super) fn filled(batches: u64, chunks: u64) -> (Vec<LogBatch>, Model) {
    let mut model = Model::new();
    let mut log = Vec::new();
    for number in 0..batches {
        let inserts: Vec<_> = (0..chunks).map(|chunk| (number * chunks + chunk, number * chunks + chunk + 1)).collect();
        let deltas: Vec<_> = (0..chunks).map(|chunk| (number * chunks / 2 + chunk, 1)).collect();
        let batch = log_batch((number + 1) * 512, &model, &[], &inserts, &deltas);
        apply_to_model(&mut model, &batch);
        log.push(batch);
    }
    (log, model)
}

#[derive(Clone, Debug)]
enum Step {
    Batch { removals: Vec<u64>, inserts: Vec<(u64, u64)>, deltas: Vec<(u64, i64)> },
    Bounded,
    Sweep,
    SweepAll,
    Close,
    Reopen,
    Lookup,
}

fn step() -> impl Strategy<Value = Step> {
    let chunk = 0..3000u64;
    let batch = (
        proptest::collection::vec(chunk.clone(), 0..40),
        proptest::collection::vec((chunk.clone(), 1..1u64 << 63), 0..300),
        proptest::collection::vec((chunk, -3..4i64), 0..300),
    )
        .prop_map(|(removals, inserts, deltas)| Step::Batch { removals, inserts, deltas });
    prop_oneof![
        8 => batch,
        3 => Just(Step::Bounded),
        3 => Just(Step::Sweep),
        1 => Just(Step::SweepAll),
        1 => Just(Step::Close),
        1 => Just(Step::Reopen),
        1 => Just(Step::Lookup),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn m0_13_m0_14_m0_19_the_index_is_a_map_through_sweeps_growth_reopening_and_replay(
        steps in proptest::collection::vec(step(), 1..40), partition_bits in 0..3u32,
        page_cache_bytes in prop_oneof![Just(0), Just(1 << 15), Just(1 << 30)],
        filter_bytes in prop_oneof![Just(0), 0..8000usize, Just(1 << 30)], has_device: bool
    ) {
        let partitions = 1 << partition_bits;
        let (_, ground) = created(partitions);
        let ground = if has_device { super::lookup_tests::on_a_device(ground) } else { ground };
        let options = ChunkIndexOptions { page_cache_bytes, filter_bytes, ..OPTIONS };
        let mut index = open_with(&ground, partitions, Access::ReadWrite, 1, options).unwrap();
        let mut model = Model::new();
        let mut log: Vec<LogBatch> = Vec::new();
        let mut epoch = 1;
        for step in steps {
            match step {
                Step::Batch { removals, inserts, deltas } => {
                    let batch = log_batch(log.len() as u64 * 512 + 512, &model, &removals, &inserts, &deltas);
                    apply_to_model(&mut model, &batch);
                    apply(&index, &batch);
                    log.push(batch);
                }
                Step::Bounded => { index.step().unwrap(); }
                Step::Sweep => { index.sweep().unwrap(); }
                Step::SweepAll => {
                    index.sweep_all().unwrap();
                    prop_assert_eq!(index.position().0, log.last().map_or(0, |batch| batch.end));
                }
                Step::Close => index.close().unwrap(),
                Step::Reopen => {
                    epoch += 1;
                    drop(index);
                    index = open_with(&ground, partitions, Access::ReadWrite, epoch, options).unwrap();
                    let position = index.position().0;
                    for batch in log.iter().filter(|batch| batch.end > position) {
                        apply(&index, batch);
                    }
                }
                Step::Lookup => check(&index, &model),
            }
            prop_assert!(index.statistics().filter_bytes <= filter_bytes as u64);
        }
        check(&index, &model);
        index.sweep_all().unwrap();
        check(&index, &model);
        prop_assert_eq!(index.statistics().entries, model.len() as u64);
        check_unused(&index, &model);
        prop_assert_eq!(index.verify().unwrap(), []);
    }
}

#[test]
fn m0_13_a_full_page_puts_entries_into_its_neighbour_and_they_are_found_there() {
    for (left, right) in [(170, 20), (20, 170), (127, 60), (180, 40)] {
        let (disk, ground) = created(1);
        let index = open(&ground, 1, Access::ReadWrite, 1).unwrap();
        let sided = |side: u8| (0..).map(key).filter(move |fingerprint| fingerprint.as_bytes()[0] >> 7 == side);
        let chunks: Vec<_> = sided(0).take(left).chain(sided(1).take(right)).collect();
        let mut model = Model::new();
        // In two halves, so that pages start to spill that did not before.
        for (number, half) in [0, 1].into_iter().enumerate() {
            let inserts: Vec<_> = chunks.iter().skip(half).step_by(2).map(|fingerprint| (*fingerprint, 9)).collect();
            let deltas = inserts.iter().map(|(fingerprint, _)| (*fingerprint, 2)).collect();
            let batch = LogBatch { end: 512 * (number as u64 + 1), inserts, deltas, ..LogBatch::default() };
            apply_to_model(&mut model, &batch);
            apply(&index, &batch);
            assert!(index.sweep().unwrap());
            check(&index, &model);
        }
        assert_eq!(index.statistics().growths, 0);
        // Only one side changes: the other side's entries are still found.
        let deltas: Vec<_> = sided(1).take(right).map(|fingerprint| (fingerprint, 1)).collect();
        let batch = LogBatch { end: 2048, deltas, ..LogBatch::default() };
        apply_to_model(&mut model, &batch);
        apply(&index, &batch);
        index.sweep_all().unwrap();
        check(&index, &model);
        let before = disk.reads();
        let mut out = Vec::new();
        for stranger in 0..1000 {
            index.lookup(&[key(1 << 40 | stranger)], &mut out).unwrap();
        }
        assert!(disk.reads() - before < 40, "{}", disk.reads() - before);
        drop(index);
        // The same without a filter.
        ground.remove("index/0000/filter").unwrap();
        check(&open(&ground, 1, Access::ReadWrite, 2).unwrap(), &model);
    }
}

#[test]
fn m0_15_applying_a_batch_writes_nothing() {
    let (disk, ground) = created(4);
    let index = open(&ground, 4, Access::ReadWrite, 1).unwrap();
    let before = disk.operations();
    let (log, model) = filled(10, 100);
    log.iter().for_each(|batch| apply(&index, batch));
    check(&index, &model);
    assert_eq!(disk.operations(), before);
}

#[test]
fn m0_13_a_hit_costs_one_read_and_a_miss_hardly_any() {
    let (disk, ground) = created(4);
    let index = open(&ground, 4, Access::ReadWrite, 1).unwrap();
    let (log, model) = filled(20, 1000);
    log.iter().for_each(|batch| apply(&index, batch));
    index.sweep_all().unwrap();
    let mut out = Vec::new();
    let before = disk.reads();
    for fingerprint in model.keys().take(2000) {
        index.lookup(&[*fingerprint], &mut out).unwrap();
        assert_eq!(out[0], model.get(fingerprint).copied());
    }
    assert!(disk.reads() - before <= 2040, "{}", disk.reads() - before);
    let before = disk.reads();
    for stranger in 0..10_000 {
        index.lookup(&[key(1 << 40 | stranger)], &mut out).unwrap();
        assert_eq!(out[0], None);
    }
    assert!(disk.reads() - before < 75, "{}", disk.reads() - before);
    // In a batch, chunks of one page share its read.
    let before = disk.reads();
    let all: Vec<_> = model.keys().copied().collect();
    index.lookup(&all, &mut out).unwrap();
    assert!(disk.reads() - before <= index.statistics().page_bytes / page::PAGE_BYTES as u64 + 40);
}

#[test]
fn the_filter_is_known_after_a_clean_close_and_after_a_crash_behind_a_sweep() {
    let (disk, ground) = created(4);
    let index = open(&ground, 4, Access::ReadWrite, 1).unwrap();
    let (log, model) = filled(20, 1000);
    log.iter().for_each(|batch| apply(&index, batch));
    index.sweep_all().unwrap();
    drop(index);
    for epoch in 2..4 {
        let index = open(&ground, 4, Access::ReadWrite, epoch).unwrap();
        let before = disk.reads();
        let mut out = Vec::new();
        for stranger in 0..1000 {
            index.lookup(&[key(1 << 40 | stranger)], &mut out).unwrap();
        }
        assert!(disk.reads() - before < 20, "{}", disk.reads() - before);
        check(&index, &model);
        index.close().unwrap();
    }
}

#[test]
fn m0_14_lookups_from_many_threads_see_every_chunk_while_sweeps_and_growth_go_on() {
    for (page_cache_bytes, has_device) in [(0, false), (1 << 15, true), (1 << 30, false)] {
        lookups_beside_sweeps(page_cache_bytes, has_device);
    }
}

fn lookups_beside_sweeps(page_cache_bytes: usize, has_device: bool) {
    let directory = tempfile::tempdir().unwrap();
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
    ChunkIndex::create(&ground, "index", 2, DIGEST_BYTES).unwrap();
    let ground = if has_device { super::lookup_tests::on_a_device(ground) } else { ground };
    let index = open_with(&ground, 2, Access::ReadWrite, 1, ChunkIndexOptions { page_cache_bytes, ..OPTIONS }).unwrap();
    let applied = AtomicU64::new(0);
    const BATCHES: u64 = 40;
    const CHUNKS: u64 = 400;
    std::thread::scope(|scope| {
        let (index, applied) = (&index, &applied);
        for thread in 0..3u64 {
            scope.spawn(move || {
                let mut out = Vec::new();
                let mut round = thread;
                loop {
                    let known = applied.load(Ordering::Acquire) * CHUNKS;
                    round += 1;
                    let wanted: Vec<u64> = (0..200).map(|at| checksum(&(round * 1000 + at).to_le_bytes()) % known.max(1)).collect();
                    index.lookup(&wanted.iter().map(|chunk| key(*chunk)).collect::<Vec<_>>(), &mut out).unwrap();
                    for (chunk, found) in wanted.iter().zip(&out).filter(|_| known > 0) {
                        // Every chunk is inserted once, with one reference. A count of two would be a change applied
                        // twice.
                        assert_eq!(*found, Some(IndexEntry { address: chunk + 1, count: 1 }), "chunk {chunk}");
                    }
                    if known == BATCHES * CHUNKS {
                        break;
                    }
                }
            });
        }
        let batches = scope.spawn(move || {
            for number in 0..BATCHES {
                let chunks = number * CHUNKS..(number + 1) * CHUNKS;
                let inserts: Vec<_> = chunks.clone().map(|chunk| (key(chunk), chunk + 1)).collect();
                let deltas: Vec<_> = chunks.map(|chunk| (key(chunk), 1)).collect();
                index.apply(Position((number + 1) * 512), &inserts, &deltas).unwrap();
                applied.store(number + 1, Ordering::Release);
                while index.is_over_limit() {
                    index.sweep().unwrap();
                }
            }
        });
        // In parallel, so that sweeps also pass batches.
        while !batches.is_finished() {
            index.sweep().unwrap();
        }
        // If the batches failed, the lookups end too.
        applied.store(BATCHES, Ordering::Release);
    });
    assert!(index.statistics().growths > 0);
}

#[test]
fn a_count_may_come_before_its_chunk_and_a_new_address_keeps_the_count() {
    let (_, ground) = created(1);
    let index = open(&ground, 1, Access::ReadWrite, 1).unwrap();
    let mut out = Vec::new();
    let mut expect = |index: &ChunkIndex, address, count| {
        index.lookup(&[key(1)], &mut out).unwrap();
        assert_eq!(out, [Some(IndexEntry { address, count })]);
    };
    index.apply(Position(512), &[], &[(key(1), 2)]).unwrap();
    expect(&index, 0, 2);
    index.sweep_all().unwrap();
    expect(&index, 0, 2);
    index.apply(Position(1024), &[(key(1), 5), (key(1), 6)], &[(key(1), 1)]).unwrap();
    expect(&index, 6, 3);
    index.sweep_all().unwrap();
    index.apply(Position(1536), &[(key(1), 7)], &[]).unwrap();
    expect(&index, 7, 3);
    index.apply(Position(2048), &[], &[(key(1), -5)]).unwrap();
    expect(&index, 7, 0);
    index.sweep_all().unwrap();
    expect(&index, 7, 0);
    assert_eq!(index.statistics().count_underflows, 1);
}

#[test]
fn m0_14_the_auxiliary_index_says_when_it_is_full_and_a_sweep_empties_it() {
    let (_, ground) = created(4);
    let index = open(&ground, 4, Access::ReadWrite, 1).unwrap();
    assert!(!index.wants_sweep() && !index.is_over_limit() && !index.sweep().unwrap());
    let (log, model) = filled(4, 1000);
    log.iter().for_each(|batch| apply(&index, batch));
    assert!(index.wants_sweep() && index.is_over_limit());
    check(&index, &model);
    while index.wants_sweep() {
        assert!(index.sweep().unwrap());
    }
    assert!(!index.is_over_limit());
    check(&index, &model);
}

#[test]
fn a_damaged_page_is_found_and_never_returned_as_data() {
    let (disk, ground) = created(1);
    let index = open(&ground, 1, Access::ReadWrite, 1).unwrap();
    let (log, model) = filled(4, 500);
    log.iter().for_each(|batch| apply(&index, batch));
    index.sweep_all().unwrap();
    let generation = ground.list("index/0000").unwrap().into_iter().find(|entry| entry.name.starts_with("pages-")).unwrap().name;
    let index: Box<dyn CountedIndex> = Box::new(index);
    assert!(index.verify_while(&mut || true).is_empty() && !index.has_met_damage());
    disk.corrupt(&format!("index/0000/{generation}"), 3 * 4096 + 100, 0x10).unwrap();
    assert!(!index.verify_while(&mut || true).is_empty() && index.has_met_damage());
    drop(index);
    let index = open(&ground, 1, Access::ReadWrite, 2).unwrap();
    for (fingerprint, entry) in &model {
        let mut out = Vec::new();
        assert!(!CountedIndex::has_met_damage(&index), "noted, but nobody saw it");
        match CountedIndex::lookup(&index, &[*fingerprint], &mut out) {
            Ok(_) => assert_eq!(out, [Some(*entry)]),
            Err(_) => break,
        }
    }
    assert!(CountedIndex::has_met_damage(&index));
    let damaged = index.verify().unwrap();
    assert_eq!(damaged.iter().map(|page| page.page).collect::<Vec<_>>(), [3]);
    assert!(damaged[0].path.contains("pages-"));
    let mut out = Vec::new();
    let mut errors = 0;
    for (fingerprint, entry) in &model {
        match index.lookup(&[*fingerprint], &mut out) {
            Ok(_) => assert_eq!(out, [Some(*entry)]),
            Err(IndexError::ChunkIndexDamaged { page: Some(3), .. }) => errors += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(errors > 50, "{errors}");
    // The search for unused chunks names the page and finds the chunks of the others.
    let (mut unused, mut damaged) = (Vec::new(), Vec::new());
    assert_eq!(index.unused(UnusedCursor::default(), usize::MAX, &mut unused, &mut damaged).unwrap(), None);
    assert_eq!(damaged.iter().map(|page| page.page).collect::<Vec<_>>(), [3]);
    let expected = model.iter().filter(|(_, entry)| entry.count == 0 && entry.address != 0).count();
    assert!(unused.len() < expected && unused.len() + errors >= expected, "{} of {expected}", unused.len());
    // A sweep that hits it fails and keeps its changes.
    let deltas: Vec<_> = model.keys().map(|fingerprint| (*fingerprint, 1)).collect();
    index.apply(Position(1 << 20), &[], &deltas).unwrap();
    assert!(index.sweep_all().unwrap_err().is_damage());
    assert_eq!(index.position().0, log.last().unwrap().end);
    assert_eq!(index.statistics().auxiliary_entries, model.len() as u64);
}

#[test]
fn another_digest_number_of_partitions_or_later_owner_is_refused() {
    let (_, ground) = created(2);
    drop(open(&ground, 2, Access::ReadWrite, 5).unwrap());
    assert!(matches!(open(&ground, 2, Access::ReadWrite, 4), Err(IndexError::Fenced { stored_epoch: 5, epoch: 4, .. })));
    assert!(open(&ground, 2, Access::Read, 0).is_ok());
    assert!(matches!(open(&ground, 1, Access::Read, 5), Err(IndexError::Mismatch { .. })));
    let options = ChunkIndexOptions::default();
    assert!(matches!(
        ChunkIndex::open(&ground, "index", &Ownership::all(2, 5), 32, options, Access::Read),
        Err(IndexError::Mismatch { .. })
    ));
    assert!(matches!(ChunkIndex::create(&ground, "other", 3, 32), Err(IndexError::Mismatch { .. })));
    assert!(matches!(ChunkIndex::create(&ground, "other", 2, 8), Err(IndexError::Mismatch { .. })));
}

#[test]
fn keys_that_are_no_digests_are_an_error_and_not_an_endless_doubling() {
    let (_, ground) = created(1);
    let index = open(&ground, 1, Access::ReadWrite, 1).unwrap();
    let inserts: Vec<_> = (0..300u64)
        .map(|number| {
            let mut digest = [0; DIGEST_BYTES];
            digest[12..].copy_from_slice(&number.to_be_bytes());
            (Fingerprint::from_digest(&digest), 1)
        })
        .collect();
    index.apply(Position(512), &inserts, &[]).unwrap();
    assert!(matches!(index.sweep_all(), Err(IndexError::Skewed { .. })));
    let mut out = Vec::new();
    index.lookup(&[inserts[7].0], &mut out).unwrap();
    assert_eq!(out, [Some(IndexEntry { address: 1, count: 0 })]);
}

#[test]
fn held_entries_are_those_of_one_moment_in_any_range() {
    for partitions in [1, 2, 4] {
        let (_simulated, ground) = created(partitions);
        let index = open(&ground, partitions, Access::ReadWrite, 1).unwrap();
        let mut model = Model::new();
        let batch = |number: u64, model: &mut Model| {
            let inserts: Vec<_> = (number * 700..(number + 1) * 700).map(|chunk| (chunk, chunk + 1)).collect();
            let batch = log_batch(number * 512 + 512, model, &[], &inserts, &[(number * 350, 3)]);
            apply_to_model(model, &batch);
            apply(&index, &batch);
        };
        // Some in pages, some not.
        (0..4).for_each(|number| batch(number, &mut model));
        index.sweep_all().unwrap();
        batch(4, &mut model);
        let edge = u64::MAX / 7 * 3;
        for prefixes in [0..=u64::MAX, 0..=edge, edge + 1..=u64::MAX, edge..=edge + (1 << 60), 5 << 60..=(5 << 60) + (1 << 52)] {
            let wanted = prefixes.clone();
            let expected: Vec<_> =
                model.iter().filter(|(key, _)| wanted.contains(&key.prefix())).map(|(key, entry)| (*key, *entry)).collect();
            let mut held = index.hold(prefixes);
            held.take();
            // The next batch changes held entries.
            let changed: Vec<_> = model.keys().step_by(3).map(|key| (*key, 1)).collect();
            let end = 10_000 + index.statistics().auxiliary_entries * 512 + model.len() as u64 * 512;
            index.apply(Position(end), &[], &changed).unwrap();
            let mut found = Vec::new();
            held.for_each(&mut |key, entry| found.push((*key, entry)), &mut |error| panic!("{error}"));
            assert_eq!(found, expected);
            let back: Vec<_> = changed.iter().map(|(key, _)| (*key, -1)).collect();
            index.apply(Position(end + 512), &[], &back).unwrap();
        }
    }
}

#[test]
fn partitions_are_opened_by_a_list_and_others_are_neither_changed_nor_asked() {
    let (_, ground) = created(4);
    let inserts: Vec<_> = (0..400).map(|number| (key(number), number + 1)).collect();
    let names: Vec<Fingerprint> = inserts.iter().map(|(name, _)| *name).collect();
    let home = |name: &Fingerprint| (name.prefix() >> 62) as u32;
    let all = open(&ground, 4, Access::ReadWrite, 1).unwrap();
    all.apply(Position(4096), &inserts, &[]).unwrap();
    all.sweep_all().unwrap();
    drop(all);
    let some = |epoch| {
        let owned = [1, 3].map(|number| Owned { number, epoch: epoch + u64::from(number) });
        let ownership = Ownership::of(4, owned.to_vec()).unwrap();
        ChunkIndex::open(&ground, "index", &ownership, DIGEST_BYTES, OPTIONS, Access::ReadWrite)
    };
    let index = some(5).unwrap();
    assert_eq!(index.partitions(), [1, 3]);
    let deltas: Vec<_> = names.iter().map(|name| (*name, 2)).collect();
    index.apply(Position(8192), &[], &deltas).unwrap();
    index.sweep_all().unwrap();
    let (own, foreign): (Vec<_>, Vec<_>) = names.iter().partition(|name| home(name) % 2 == 1);
    let mut found = Vec::new();
    index.lookup(&own, &mut found).unwrap();
    assert!(found.iter().all(|entry| entry.is_some_and(|entry| entry.count == 2)));
    for name in foreign.iter().take(3) {
        let error = index.lookup(&[own[0], *name], &mut Vec::new()).unwrap_err();
        assert!(matches!(error, IndexError::NotOpened { partition, .. } if partition == home(name)), "{error}");
    }
    assert!(matches!(index.for_each(2, &mut |_, _| Ok(())), Err(IndexError::NotOpened { partition: 2, .. })));
    assert_eq!(index.position(), Position(8192));
    drop(index);
    // Each partition has its own owner's epoch.
    let fenced = some(4).unwrap_err();
    assert!(matches!(fenced, IndexError::Fenced { stored_epoch: 6, epoch: 5, .. }), "{fenced}");
    let all = open(&ground, 4, Access::ReadWrite, 9).unwrap();
    assert_eq!(all.position(), Position(4096), "the others have not seen the second batch");
    let mut found = Vec::new();
    all.lookup(&names, &mut found).unwrap();
    let count = |name: &Fingerprint| if home(name) % 2 == 1 { 2 } else { 0 };
    assert!(names.iter().zip(found).all(|(name, entry)| entry.is_some_and(|entry| entry.count == count(name))));
}
