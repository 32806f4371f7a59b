//! Crashes and failing operations at every step of sweep and growth, on the simulated disk.

use super::tests::{Event, LogBatch, Model, SHAPE, apply, check, check_swept, created, log_batch, open, random};
use super::*;
use onefold_ground::{CrashPolicy, SimulatedGround};
use std::io::ErrorKind;

/// Makes a log with many changes of the same chunks and blocks, so that a lost or repeated change shows.
pub(super) fn log(batches: u64, new_chunks: u64) -> Vec<LogBatch> {
    let mut model = Model::default();
    let mut log = Vec::new();
    for number in 0..batches {
        let some = |at: u64, below: u64| random(&[number, at]) % below;
        let chunks = (number + 1) * new_chunks;
        let mut events: Vec<_> = (0..new_chunks / 4).map(|at| Event::Remove(some(at, chunks))).collect();
        events.extend((0..new_chunks / 6).map(|at| Event::Rotate((0..3).map(|of| some(at * 3 + of + 100, chunks)).collect())));
        events.extend((0..new_chunks / 8).map(|at| Event::Lose(some(at + 200, chunks))));
        events.extend(
            (number * new_chunks..chunks).chain((0..4).map(|at| some(at + 300, chunks))).map(|chunk| Event::Store(chunk, chunk + 1)),
        );
        events.extend((0..new_chunks * 2).map(|at| Event::Count(some(at + 400, chunks), some(at + 500, 5) as i64 - 1)));
        let batch = log_batch((number + 1) * 512, &model, &events);
        model.apply(&batch);
        log.push(batch);
    }
    log
}

/// Makes a log in which all chunks change places, twice in one sweep.
fn rotating_log(chunks: u64) -> Vec<LogBatch> {
    let mut model = Model::default();
    let store = (0..chunks).map(|chunk| Event::Store(chunk, 1));
    let count = (0..chunks).map(|chunk| Event::Count(chunk, chunk as i64 % 3));
    let circles = |length: usize| {
        let all: Vec<u64> = (0..chunks).collect();
        all.chunks(length).map(|some| Event::Rotate(some.to_vec())).collect::<Vec<_>>()
    };
    let again = || (0..chunks).map(|chunk| Event::Count(chunk, 1));
    let remove = (0..chunks).step_by(5).map(Event::Remove);
    let replace = (0..chunks / 5).map(|chunk| Event::Store(1000 + chunk, 1));
    let all: [Vec<Event>; 4] = [
        store.chain(count).collect(),
        circles(7).into_iter().chain(again()).collect(),
        circles(3).into_iter().chain(again()).collect(),
        remove.chain(replace).chain(again()).collect(),
    ];
    let batch = |(events, end): (Vec<Event>, u64)| {
        let batch = log_batch(end * 512, &model, &events);
        model.apply(&batch);
        batch
    };
    all.into_iter().zip(1..).map(batch).collect()
}

pub(super) fn model_of(log: &[LogBatch]) -> Model {
    let mut model = Model::default();
    log.iter().for_each(|batch| model.apply(batch));
    model
}

fn slim(shape: LinkedShape) -> LinkedShape {
    LinkedShape { dia: Dia::Slim, ..shape }
}

/// Applies the batches from the index's position on and sweeps now and then. Returns how many batches it applied, and
/// the error.
fn run(index: &LinkedIndex, log: &[LogBatch]) -> (usize, Result<()>) {
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
    (log.len(), index.sweep_all().and_then(|()| index.close()))
}

/// Counts the operations of a run without a crash.
fn operations_of(log: &[LogBatch], shape: LinkedShape) -> u64 {
    let (disk, ground) = created(0, shape);
    let before = disk.operations();
    let index = open(&ground, Access::ReadWrite, 1).unwrap();
    run(&index, log).1.unwrap();
    check_swept(&index, &model_of(log));
    disk.operations() - before
}

/// Checks a restart: replaying the log gives the model, first read-only, then for writing up to the end of the log.
fn check_restart(disk: SimulatedGround, log: &[LogBatch], applied: usize) {
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    let model = model_of(&log[..applied]);
    let operations = disk.operations();
    let index = open(&ground, Access::Read, 0).unwrap();
    assert!(index.required_end().0 <= log.get(applied.wrapping_sub(1)).map_or(0, |batch| batch.end));
    let position = index.position();
    log[..applied].iter().filter(|batch| batch.end > position.0).for_each(|batch| apply(&index, batch));
    check(&index, &model);
    assert_eq!(index.verify_all(), []);
    assert_eq!(disk.operations(), operations, "reading writes nothing");
    drop(index);

    let index = open(&ground, Access::ReadWrite, 2).unwrap();
    assert_eq!(index.verify_all(), []);
    let position = index.position();
    log[..applied].iter().filter(|batch| batch.end > position.0).for_each(|batch| apply(&index, batch));
    check(&index, &model);
    drop(index);

    let index = open(&ground, Access::ReadWrite, 3).unwrap();
    run(&index, log).1.unwrap();
    index.sweep_all().unwrap();
    check_swept(&index, &model_of(log));
    while index.step().unwrap() {}
    let tables = ground.list("index").unwrap().iter().filter(|entry| entry.name.starts_with("slots-")).count();
    assert_eq!(tables, 1, "only the table in use is there");
}

fn crash_everywhere(log: &[LogBatch], shape: LinkedShape) {
    for crash in 0..operations_of(log, shape) {
        // The number of operations of a step is no multiple of three, so each kind of operation meets each policy.
        let policy = [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: crash }][crash as usize % 3];
        let (disk, ground) = created(crash, shape);
        disk.crash_after_operations(crash);
        let applied = match open(&ground, Access::ReadWrite, 1) {
            Ok(index) => run(&index, log).0,
            Err(_) => 0,
        };
        assert!(disk.is_crashed());
        check_restart(disk.restart(policy), log, applied);
    }
}

#[test]
fn m1_8_after_a_crash_at_any_operation_the_replayed_log_is_applied_exactly_once() {
    crash_everywhere(&log(6, 24), LinkedShape { slots_bits: 9, ..SHAPE });
    crash_everywhere(&log(4, 24), slim(LinkedShape { slots_bits: 9, ..SHAPE }));
}

#[test]
fn m1_13_after_a_crash_at_any_operation_of_growth_nothing_is_lost() {
    crash_everywhere(&log(3, 48), SHAPE);
    crash_everywhere(&log(2, 48), slim(SHAPE));
}

/// Opens with the first batch in pages and the others in memory.
fn begin_rotating(ground: &Arc<dyn Ground>, log: &[LogBatch]) -> LinkedIndex {
    let index = open(ground, Access::ReadWrite, 1).unwrap();
    apply(&index, &log[0]);
    index.sweep_all().unwrap();
    while index.step().unwrap() {}
    log[1..].iter().for_each(|batch| apply(&index, batch));
    index
}

/// The sweep brings chunks to the target before their turn, because others get their blocks. A crash comes in between.
#[test]
fn m1_8_after_a_crash_at_any_operation_blocks_that_changed_hands_in_one_sweep_have_the_right_chunks_and_counts() {
    let log = rotating_log(60);
    for shape in [SHAPE, slim(SHAPE), LinkedShape { slots_bits: 6, ..SHAPE }] {
        let (disk, ground) = created(0, shape);
        let index = begin_rotating(&ground, &log);
        let before = disk.operations();
        let mut early = 0;
        while index.step().unwrap() {
            early += u32::from(index.shown.read().header.early > 0);
            check(&index, &model_of(&log));
            assert_eq!(index.verify_all(), []);
        }
        let operations = disk.operations() - before;
        check_swept(&index, &model_of(&log));
        assert_eq!(index.statistics().count_underflows, 0);
        assert!(early > 5, "{early}");
        for crash in 0..operations {
            let policy = [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: crash }][crash as usize % 3];
            let (disk, ground) = created(crash, shape);
            let index = begin_rotating(&ground, &log);
            disk.crash_after_operations(crash);
            while index.step().is_ok_and(|stepped| stepped) {}
            assert!(disk.is_crashed());
            check_restart(disk.restart(policy), &log, log.len());
        }
    }
}

#[test]
fn m1_13_an_operation_that_fails_once_loses_nothing_and_the_step_is_repeated() {
    let log = log(5, 40);
    for failing in 0..operations_of(&log, SHAPE) {
        let (disk, ground) = created(failing, SHAPE);
        disk.fail_operation(failing, if failing % 2 == 0 { ErrorKind::StorageFull } else { ErrorKind::Other });
        let index = match open(&ground, Access::ReadWrite, 1) {
            Ok(index) => index,
            Err(_) => open(&ground, Access::ReadWrite, 1).unwrap(),
        };
        let applied = run(&index, &log).0;
        check(&index, &model_of(&log[..applied]));
        assert_eq!(index.verify_all(), []);
        log[applied..].iter().for_each(|batch| apply(&index, batch));
        check(&index, &model_of(&log));
        // In one of two cases the process goes on; in the other, the machine fails after the error.
        if failing % 3 == 0 {
            check_restart(disk.restart(CrashPolicy::Random { seed: failing }), &log, log.len());
        } else {
            index.sweep_all().unwrap();
            check_swept(&index, &model_of(&log));
        }
    }
}

/// Only the system's cache holds the whole journal then. Make it durable before its pages are written in place.
#[test]
fn a_journal_whose_sync_failed_is_durable_before_its_pages_are_written() {
    let log = log(3, 30);
    let syncs = |operation: &u64| {
        let (disk, ground) = created(0, SHAPE);
        disk.crash_after_operations(*operation);
        drop(open(&ground, Access::ReadWrite, 1).and_then(|index| run(&index, &log).1));
        disk.crash_site().is_some_and(|site| site.operation == "sync" && site.path.ends_with("/journal"))
    };
    let journals: Vec<u64> = (0..operations_of(&log, SHAPE)).filter(syncs).collect();
    assert!(journals.len() >= 3, "{journals:?}");
    let mut torn = 0;
    for failing in journals.into_iter().step_by(4) {
        // Either the next process repeats the journal, or this one does when it continues its sweep.
        for is_next_process in [true, false] {
            for crash in 0..12 {
                let (disk, ground) = created(failing + crash, SHAPE);
                disk.fail_operation(failing, ErrorKind::Other);
                let index = open(&ground, Access::ReadWrite, 1).unwrap();
                let (applied, failed) = run(&index, &log);
                assert!(failed.is_err());
                disk.crash_after_operations(crash);
                if is_next_process {
                    drop(index);
                    drop(open(&ground, Access::ReadWrite, 2));
                } else {
                    drop(index.sweep_all());
                }
                if !disk.is_crashed() {
                    break;
                }
                torn += u64::from(disk.crash_site().is_some_and(|site| site.operation == "sync" && site.path.contains("/slots-")));
                check_restart(disk.restart(CrashPolicy::Random { seed: failing + crash }), &log, applied);
            }
        }
    }
    assert!(torn >= 3, "pages were torn {torn} times");
}

#[test]
fn m1_13_a_full_disk_stops_growth_and_loses_nothing() {
    let log = log(12, 100);
    let (disk, ground) = created(7, SHAPE);
    let index = open(&ground, Access::ReadWrite, 1).unwrap();
    disk.set_capacity(disk.used_bytes() + 20 * 4096);
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
    check_swept(&index, &model_of(&log));
}
