//! Crashes and failing operations at every step of apply, sweep and growth, on the simulated disk.

use super::tests::{DIGEST_BYTES, LogBatch, Model, apply, apply_to_model, check, key, log_batch, open};
use super::*;
use onefold_ground::{CrashPolicy, SimulatedGround, checksum};
use std::io::ErrorKind;

pub(super) const PARTITIONS: u32 = 2;

/// Makes a log with many changes of the same chunks, so that a lost or repeated change shows.
pub(super) fn log(batches: u64, new_chunks: u64) -> Vec<LogBatch> {
    let mut model = Model::new();
    let mut log = Vec::new();
    for number in 0..batches {
        let random = |at: u64, below: u64| checksum(&[number, at].map(u64::to_le_bytes).concat()) % below;
        let chunks = (number + 1) * new_chunks;
        let mut inserts: Vec<_> = (number * new_chunks..chunks).map(|chunk| (chunk, chunk + 1)).collect();
        inserts.extend((0..5).map(|at| (random(at, chunks), random(at + 100, 1 << 40) + 1)));
        let deltas: Vec<_> = (0..new_chunks * 2).map(|at| (random(at + 200, chunks), random(at + 300, 5) as i64 - 1)).collect();
        let removals: Vec<_> = (0..new_chunks / 8).map(|at| random(at + 400, chunks)).collect();
        let mut batch = log_batch((number + 1) * 512, &model, &removals, &inserts, &deltas);
        batch.places = (0..new_chunks / 8).map(|at| (key(random(at + 500, chunks)), at % 2 * (random(at + 600, 1 << 40) + 1))).collect();
        apply_to_model(&mut model, &batch);
        log.push(batch);
    }
    log
}

pub(super) fn model_of(log: &[LogBatch]) -> Model {
    let mut model = Model::new();
    log.iter().for_each(|batch| apply_to_model(&mut model, batch));
    model
}

/// Applies the batches from the index's position on and sweeps now and then. Returns how many batches it applied, and
/// the error.
fn run(index: &ChunkIndex, log: &[LogBatch]) -> (usize, Result<()>) {
    let position = index.position();
    for (number, batch) in log.iter().enumerate().filter(|(_, batch)| batch.end > position.0) {
        apply(index, batch);
        let swept = match number % 4 {
            0 => index.step().map(drop),
            1 => index.sweep().map(drop),
            3 => index.sweep_all(),
            _ => Ok(()),
        };
        if let Err(error) = swept {
            return (number + 1, Err(error));
        }
    }
    (log.len(), index.close())
}

pub(super) fn created(seed: u64) -> (SimulatedGround, Arc<dyn Ground>) {
    let disk = SimulatedGround::new(seed);
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    ChunkIndex::create(&ground, "index", PARTITIONS, DIGEST_BYTES).unwrap();
    (disk, ground)
}

/// Counts the operations of a run without a crash.
fn operations_of(log: &[LogBatch]) -> u64 {
    let (disk, ground) = created(0);
    let before = disk.operations();
    let index = open(&ground, PARTITIONS, Access::ReadWrite, 1).unwrap();
    run(&index, log).1.unwrap();
    check(&index, &model_of(log));
    assert!(index.statistics().growths > 0);
    disk.operations() - before
}

/// Checks a restart: replaying the log gives the model, first read-only, then for writing up to the end of the log.
fn check_restart(disk: SimulatedGround, log: &[LogBatch], applied: usize) {
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    let model = model_of(&log[..applied]);
    let operations = disk.operations();
    let index = open(&ground, PARTITIONS, Access::Read, 0).unwrap();
    assert!(index.required_end().0 <= log.get(applied.wrapping_sub(1)).map_or(0, |batch| batch.end));
    let position = index.position();
    log[..applied].iter().filter(|batch| batch.end > position.0).for_each(|batch| apply(&index, batch));
    check(&index, &model);
    assert_eq!(disk.operations(), operations, "reading writes nothing");
    drop(index);

    let index = open(&ground, PARTITIONS, Access::ReadWrite, 2).unwrap();
    assert_eq!(index.verify().unwrap(), []);
    let position = index.position();
    log[..applied].iter().filter(|batch| batch.end > position.0).for_each(|batch| apply(&index, batch));
    check(&index, &model);
    drop(index);

    let index = open(&ground, PARTITIONS, Access::ReadWrite, 3).unwrap();
    run(&index, log).1.unwrap();
    index.sweep_all().unwrap();
    check(&index, &model_of(log));
    assert_eq!(index.verify().unwrap(), []);
    assert_eq!(index.statistics().entries, model_of(log).len() as u64);
}

fn crash_everywhere(log: &[LogBatch]) {
    for crash in 0..operations_of(log) {
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: crash }] {
            let (disk, ground) = created(crash);
            disk.crash_after_operations(crash);
            let applied = match open(&ground, PARTITIONS, Access::ReadWrite, 1) {
                Ok(index) => run(&index, log).0,
                Err(_) => 0,
            };
            assert!(disk.is_crashed());
            check_restart(disk.restart(policy), log, applied);
        }
    }
}

#[test]
fn m0_14_m0_15_after_a_crash_at_any_operation_the_replayed_log_is_applied_exactly_once() {
    crash_everywhere(&log(12, 60));
}

#[test]
fn m2_3_after_a_crash_at_any_operation_of_growth_over_many_pages_nothing_is_lost() {
    crash_everywhere(&log(5, 1000));
}

/// `log2` of the number of pages before the sweep that fills a page.
const CROWDED_BITS: u32 = 7;
/// A page whose pair has no room even after it has moved once. It is the first page of that sweep's second batch
/// (`BATCH_PAIRS`). The same step of growth moves it and the last pair of the first batch.
const CROWDED_PAGE: u32 = 86;
/// Evenly spread chunks for this many pages.
const SPREAD_CHUNKS: usize = 8500;

/// Makes a log for the first partition: evenly spread chunks, then a batch that changes all counts, removes some chunks
/// and fills the page.
fn crowded_log() -> Vec<LogBatch> {
    let bits = PARTITIONS.trailing_zeros();
    let shape = pages::Shape::whole(0, bits, CROWDED_BITS, DIGEST_BYTES);
    let own = || (0..).filter(|chunk| partition_of(key(*chunk).prefix(), bits) == 0);
    let spread: Vec<u64> = own().take(SPREAD_CHUNKS).collect();
    let is_crowd = |chunk: &u64| shape.home(&key(*chunk)) == CROWDED_PAGE;
    let crowd = own().skip(SPREAD_CHUNKS).filter(is_crowd).take(2 * page::page_capacity(DIGEST_BYTES) + 20).collect();
    let mut model = Model::new();
    let mut log = Vec::new();
    for (number, new) in [spread.clone(), crowd].into_iter().enumerate() {
        let inserts: Vec<_> = new.iter().map(|chunk| (*chunk, chunk + 1)).collect();
        let deltas: Vec<_> = spread.iter().chain(&new).map(|chunk| (*chunk, 1)).collect();
        let removals: Vec<_> = spread.iter().copied().step_by(50).filter(|_| number > 0).collect();
        let batch = log_batch((number as u64 + 1) * 512, &model, &removals, &inserts, &deltas);
        apply_to_model(&mut model, &batch);
        log.push(batch);
    }
    log
}

/// Opens with the first batch in pages and the second in memory.
fn begin_crowded(ground: &Arc<dyn Ground>, log: &[LogBatch]) -> ChunkIndex {
    let index = open(ground, PARTITIONS, Access::ReadWrite, 1).unwrap();
    apply(&index, &log[0]);
    index.sweep_all().unwrap();
    let shape = index.partitions.get(0).unwrap().state.read().pages.shape;
    assert_eq!((shape.page_bits, shape.is_growing()), (CROWDED_BITS, false), "{shape:?}");
    apply(&index, &log[1]);
    index
}

/// Growth in the middle of a sweep, twice. First it moves pages that the journal of the sweep's last batch names and
/// that the sweep has passed. Then it moves more while the sweep is within the moved pages. The target stays. Counts
/// reveal a change that is applied twice or never.
#[test]
fn m2_3_after_a_crash_at_any_operation_of_growth_in_the_middle_of_a_sweep_changes_are_applied_exactly_once() {
    let log = crowded_log();
    let (disk, ground) = created(0);
    let index = begin_crowded(&ground, &log);
    let before = disk.operations();
    let mut moved = [0; 2];
    while index.step().unwrap() {
        let partition = index.partitions.get(0).unwrap();
        let state = partition.state.read();
        let shape = state.pages.shape;
        if let Some(frozen) = &state.frozen
            && frozen.progress > 0
            && shape.is_growing()
        {
            moved[usize::from(frozen.progress > 2 * shape.moved_from)] += 1;
        }
    }
    let operations = disk.operations() - before;
    check(&index, &model_of(&log));
    assert_eq!(index.verify().unwrap(), []);
    assert!(moved[0] > 5 && moved[1] > 5, "{moved:?}");
    for crash in 0..operations {
        // The number of operations in a growth step is no multiple of three, so each kind of operation meets each
        // policy.
        let policy = [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: crash }][crash as usize % 3];
        let (disk, ground) = created(crash);
        let index = begin_crowded(&ground, &log);
        disk.crash_after_operations(crash);
        while index.step().is_ok_and(|stepped| stepped) {}
        assert!(disk.is_crashed());
        check_restart(disk.restart(policy), &log, log.len());
    }
}

/// A sweep may ignore a full disk only before anything has moved. In the last step of growth, the journal is the only
/// copy of its pages.
#[test]
fn m2_3_a_full_disk_in_the_middle_of_growth_and_sweep_loses_nothing() {
    let log = crowded_log();
    let (disk, ground) = created(0);
    let index = begin_crowded(&ground, &log);
    let before = disk.operations();
    while index.step().unwrap() {}
    let operations = disk.operations() - before;
    for failing in 0..operations {
        let (disk, ground) = created(failing);
        let index = begin_crowded(&ground, &log);
        disk.fail_operation(failing, ErrorKind::StorageFull);
        let (from, mut failures, mut is_tried) = (disk.operations(), 0, false);
        loop {
            match index.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => failures += 1,
            }
            assert!(failures < 3, "operation {failing}");
            if !is_tried && disk.operations() > from + failing {
                is_tried = true;
                check_restart(disk.snapshot(CrashPolicy::DropAll), &log, log.len());
            }
        }
        check(&index, &model_of(&log));
        assert_eq!(index.verify().unwrap(), [], "operation {failing}");
    }
}

#[test]
fn m0_14_an_operation_that_fails_once_loses_nothing_and_the_sweep_can_be_repeated() {
    let log = log(12, 60);
    let operations = operations_of(&log);
    for failing in 0..operations {
        let (disk, ground) = created(failing);
        disk.fail_operation(failing, if failing % 2 == 0 { ErrorKind::StorageFull } else { ErrorKind::Other });
        let index = match open(&ground, PARTITIONS, Access::ReadWrite, 1) {
            Ok(index) => index,
            Err(_) => open(&ground, PARTITIONS, Access::ReadWrite, 1).unwrap(),
        };
        let applied = run(&index, &log).0;
        check(&index, &model_of(&log[..applied]));
        for batch in &log[applied..] {
            apply(&index, batch);
        }
        check(&index, &model_of(&log));
        // In one of two cases the process goes on; in the other, the machine fails after the error.
        if failing % 3 == 0 {
            check_restart(disk.restart(CrashPolicy::Random { seed: failing }), &log, log.len());
        } else {
            index.sweep_all().unwrap();
            check(&index, &model_of(&log));
            assert_eq!(index.position().0, log.last().unwrap().end);
            assert_eq!(index.verify().unwrap(), []);
        }
    }
}

/// Returns the operations of a run that sync a journal, counted from its opening.
fn syncs_of_journals(log: &[LogBatch]) -> Vec<u64> {
    let is_one = |operation: &u64| {
        let (disk, ground) = created(0);
        disk.crash_after_operations(*operation);
        let index = open(&ground, PARTITIONS, Access::ReadWrite, 1);
        drop(index.and_then(|index| run(&index, log).1));
        disk.crash_site().is_some_and(|site| site.operation == "sync" && site.path.ends_with("/journal"))
    };
    (0..operations_of(log)).filter(is_one).collect()
}

/// After that failure only the system's cache holds the whole journal. Make it durable before its pages are written in
/// place. Otherwise a power cut tears the pages, and the device has nothing to repeat them from.
#[test]
fn a_journal_whose_sync_failed_is_durable_before_its_pages_are_written() {
    let log = log(12, 60);
    let journals = syncs_of_journals(&log);
    assert!(journals.len() >= 3, "few sweeps had a journal: {journals:?}");
    let mut torn = 0;
    for failing in journals {
        // Either the next process repeats the journal, or this one does when it continues its sweep.
        for is_next_process in [true, false] {
            for crash in 0.. {
                let (disk, ground) = created(failing + crash);
                disk.fail_operation(failing, ErrorKind::Other);
                let index = open(&ground, PARTITIONS, Access::ReadWrite, 1).unwrap();
                let (applied, failed) = run(&index, &log);
                assert!(failed.is_err());
                if is_next_process {
                    drop(index);
                    disk.crash_after_operations(crash);
                    drop(open(&ground, PARTITIONS, Access::ReadWrite, 2));
                } else {
                    disk.crash_after_operations(crash);
                    drop(index.sweep_all());
                }
                if !disk.is_crashed() {
                    break;
                }
                torn += u64::from(disk.crash_site().is_some_and(|site| site.operation == "sync" && site.path.contains("/pages-")));
                check_restart(disk.restart(CrashPolicy::Random { seed: failing + crash }), &log, applied);
            }
        }
    }
    assert!(torn >= 6, "pages were torn {torn} times");
}

#[test]
fn a_full_disk_stops_growth_and_loses_nothing() {
    let log = log(20, 200);
    let (disk, ground) = created(7);
    let index = open(&ground, PARTITIONS, Access::ReadWrite, 1).unwrap();
    disk.set_capacity(disk.used_bytes() + 12 * 4096);
    let mut full = 0;
    for batch in &log {
        apply(&index, batch);
        if let Err(error) = index.sweep_all() {
            assert!(error.is_full(), "{error}");
            full += 1;
        }
    }
    assert!(full > 0);
    check(&index, &model_of(&log));
    disk.set_capacity(u64::MAX);
    index.sweep_all().unwrap();
    check(&index, &model_of(&log));
}
