//! Compares runs that crash with the list of acknowledged batches.

use super::*;
use proptest::prelude::*;

/// What must be there after a crash: every acknowledged batch, then at most one of the last attempts.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    acknowledged: Replayed,
    /// Batches that were tried since and failed.
    doubtful: Vec<Vec<Record>>,
    trimmed: Position,
    /// The target of the last jump.
    jumped: Position,
    /// Jumps that were tried since and failed.
    doubtful_jumps: Vec<Position>,
    next_tag: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Commit {
        records: usize,
        length_bytes: usize,
    },
    Trim {
        batch: usize,
    },
    Jump {
        pages: u64,
    },
    /// Reopens the log without a crash.
    Reopen,
    /// An operation fails soon.
    Fail {
        operation: u64,
        is_full: bool,
    },
    /// Everything fails soon.
    Crash {
        operation: u64,
    },
}

impl Model {
    fn end(&self) -> Position {
        self.acknowledged.last().map_or(Position(0), |(_, end, _)| *end).max(self.jumped)
    }

    /// Returns how many batches were acknowledged.
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    pub(super) fn commit(&mut self, log: &SegmentLog, records: usize, length_bytes: usize) -> Result<()> {
        self.next_tag += 1;
        let records: Vec<Record> = (0..records).map(|part| record(self.next_tag * 100 + part as u64, length_bytes)).collect();
        match log.commit(&records) {
            Ok((start, end)) => {
                assert_eq!(start, self.end());
                self.acknowledged.push((start, end, records));
                self.settle();
                Ok(())
            }
            Err(error) => {
                self.doubtful.push(records);
                Err(error)
            }
        }
    }

    /// Earlier failed attempts are out of the log for good.
    fn settle(&mut self) {
        self.doubtful.clear();
        self.doubtful_jumps.clear();
    }

    pub(super) fn jump(&mut self, log: &SegmentLog, pages: u64) -> Result<()> {
        let target = Position(self.end().0 + pages * ALIGNMENT_BYTES);
        if target == self.end() {
            return log.jump_to(target);
        }
        self.doubtful_jumps.push(target);
        log.jump_to(target)?;
        self.settle();
        self.jumped = target;
        assert_eq!(log.end(), target);
        Ok(())
    }

    pub(super) fn trim(&mut self, log: &SegmentLog, batch: usize) -> Result<()> {
        if let Some((_, end, _)) = self.acknowledged.get(batch % self.acknowledged.len().max(1)) {
            self.trimmed = self.trimmed.max(*end);
            log.trim(*end)?;
        }
        Ok(())
    }

    /// Compares a log that was just opened. Counts a doubtful batch that is there as acknowledged: consumers have seen
    /// it. Errors: a read failed.
    pub(super) fn check(&mut self, log: &SegmentLog) -> Result<()> {
        assert!(log.start() <= self.trimmed, "only what was trimmed may be missing");
        let found = replay(log, log.start())?;
        if log.end() > self.end() {
            match found.last().filter(|(_, end, records)| *end == log.end() && self.doubtful.contains(records)) {
                Some((start, end, records)) => {
                    assert_eq!(*start, self.end());
                    self.acknowledged.push((*start, *end, records.clone()));
                }
                None => {
                    let is_doubtful = self.doubtful_jumps.contains(&log.end());
                    assert!(is_doubtful, "only what was tried last may be there beyond what was acknowledged");
                    self.jumped = log.end();
                }
            }
        }
        assert_eq!(log.end(), self.end());
        let expected: Vec<_> = self.acknowledged.iter().filter(|(start, ..)| *start >= log.start()).cloned().collect();
        assert_eq!(found, expected);
        self.settle();
        Ok(())
    }
}

/// A disk under a log, and the model of the log.
struct Run {
    ground: SimulatedGround,
    log: Option<SegmentLog>,
    model: Model,
    epoch: u64,
    policies: Vec<CrashPolicy>,
}

impl Run {
    fn new(seed: u64, policies: Vec<CrashPolicy>) -> Run {
        let ground = SimulatedGround::new(seed);
        create(&ground);
        Run { ground, log: None, model: Model::default(), epoch: 1, policies }
    }

    /// Opens the log, through any number of crashes.
    fn reopen(&mut self) {
        while self.log.is_none() {
            self.epoch += 1;
            if self.ground.is_crashed() {
                self.ground = self.ground.restart(self.policies[self.epoch as usize % self.policies.len()]);
            }
            match open(&self.ground, self.epoch) {
                Ok(log) => match self.model.check(&log) {
                    Ok(()) => self.log = Some(log),
                    // Opening goes on if a short segment finds no space, also if that is a crash.
                    Err(LogError::Ground(_)) if self.ground.is_crashed() => {}
                    Err(error) => panic!("{error}"),
                },
                Err(LogError::Ground(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn step(&mut self, step: &Step) {
        self.reopen();
        let log = self.log.as_ref().expect("it was opened");
        let done = match *step {
            Step::Commit { records, length_bytes } => self.model.commit(log, records, length_bytes),
            Step::Trim { batch } => self.model.trim(log, batch),
            Step::Jump { pages } => self.model.jump(log, pages),
            Step::Reopen => return self.log = None,
            Step::Fail { operation, is_full } => {
                let kind = if is_full { std::io::ErrorKind::StorageFull } else { std::io::ErrorKind::Other };
                return self.ground.fail_operation(operation, kind);
            }
            Step::Crash { operation } => return self.ground.crash_after_operations(operation),
        };
        match done {
            // A log that is not poisoned continues at once after a failure.
            Ok(()) | Err(LogError::Full { .. }) => {}
            Err(LogError::Ground(_)) if !self.ground.is_crashed() => {}
            Err(LogError::Ground(_) | LogError::NotSynced(_) | LogError::Poisoned) => self.log = None,
            Err(error) => panic!("{error}"),
        }
    }

    fn tour(mut self) {
        tour().iter().for_each(|step| self.step(step));
        self.end();
    }

    fn end(mut self) {
        for policy in [CrashPolicy::KeepAll, CrashPolicy::DropAll] {
            self.log = None;
            self.ground = self.ground.restart(policy);
            self.reopen();
        }
    }
}

/// A run through everything that a log does: segments, trims, recycled segments, a large batch, reopens.
fn tour() -> Vec<Step> {
    let mut steps = Vec::new();
    for turn in 0..4 {
        steps.extend((0..8).map(|batch| Step::Commit { records: 1 + batch % 2, length_bytes: 700 + batch * 150 }));
        steps.push(Step::Trim { batch: 9 * turn + 7 });
        steps.push(Step::Commit { records: 1, length_bytes: 20_000 });
        if turn % 2 == 1 {
            steps.push(Step::Jump { pages: 1 << (9 * turn) });
        }
        steps.push(Step::Reopen);
    }
    steps
}

/// Counts the operations and syncs of the tour.
fn tour_costs() -> (u64, u64) {
    let mut run = Run::new(0, vec![CrashPolicy::DropAll]);
    let before = (run.ground.operations(), run.ground.syncs());
    tour().iter().for_each(|step| run.step(step));
    let costs = (run.ground.operations() - before.0, run.ground.syncs() - before.1);
    assert!(costs.0 > 100 && costs.1 > 40, "{costs:?}");
    costs
}

fn policies(seed: u64) -> Vec<CrashPolicy> {
    let mut policies = vec![CrashPolicy::DropAll, CrashPolicy::KeepAll];
    policies.extend((0..5).map(|turn| CrashPolicy::Random { seed: seed.wrapping_add(turn) }));
    policies.rotate_left((seed % 7) as usize);
    policies
}

#[test]
fn m0_17_a_crash_at_every_operation_loses_nothing_that_was_acknowledged() {
    for operation in 0..tour_costs().0 {
        for seed in 0..7 {
            let run = Run::new(seed, policies(seed));
            run.ground.crash_after_operations(operation);
            run.tour();
        }
    }
}

#[test]
fn m0_17_a_crash_at_every_sync_and_another_while_opening_loses_nothing_that_was_acknowledged() {
    for sync in 0..tour_costs().1 {
        for again in 0..5 {
            let seed = sync * 5 + again;
            let mut run = Run::new(seed, policies(seed));
            run.ground.crash_after_syncs(sync);
            let mut has_crashed = false;
            for step in tour() {
                run.step(&step);
                if run.ground.is_crashed() && !has_crashed {
                    has_crashed = true;
                    run.log = None;
                    run.ground = run.ground.restart(CrashPolicy::Random { seed });
                    run.ground.crash_after_operations(again);
                }
            }
            run.end();
        }
    }
}

#[test]
fn m0_17_a_drive_that_loses_the_sectors_it_was_writing_loses_no_acknowledged_batch() {
    for operation in 0..tour_costs().0 {
        let run = Run::new(operation, vec![CrashPolicy::LoseSectors { sector_bytes: 4096 }]);
        run.ground.crash_after_operations(operation);
        run.tour();
    }
}

#[test]
fn m0_17_an_operation_that_fails_at_any_moment_loses_nothing_that_was_acknowledged() {
    for operation in 0..tour_costs().0 {
        for is_full in [true, false] {
            let mut run = Run::new(operation, policies(operation));
            run.step(&Step::Fail { operation, is_full });
            run.tour();
        }
    }
}

#[test]
fn a_crash_while_the_log_is_created_leaves_none_or_an_empty_one() {
    for operation in 0..10 {
        for policy in policies(operation) {
            let ground = SimulatedGround::new(operation);
            ground.crash_after_operations(operation);
            let created = SegmentLog::create(&share(&ground), DIRECTORY, STORE, SMALL);
            let ground = ground.restart(policy);
            match SegmentLog::create(&share(&ground), DIRECTORY, STORE, SMALL) {
                Ok(()) => assert!(created.is_err()),
                Err(LogError::Exists { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            assert_eq!(replay(&open(&ground, 1).unwrap(), Position(0)).unwrap(), []);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![8 => 0..3_000usize, 1 => 10_000..30_000usize, 1 => Just(430usize)];
    let step = prop_oneof![
        10 => (1..4usize, length).prop_map(|(records, length_bytes)| Step::Commit { records, length_bytes }),
        2 => any::<usize>().prop_map(|batch| Step::Trim { batch }),
        1 => prop_oneof![0..8u64, any::<u32>().prop_map(u64::from)].prop_map(|pages| Step::Jump { pages }),
        1 => Just(Step::Reopen),
        1 => (0..12u64, any::<bool>()).prop_map(|(operation, is_full)| Step::Fail { operation, is_full }),
        2 => (0..12u64).prop_map(|operation| Step::Crash { operation }),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn m0_17_every_acknowledged_batch_survives_any_run_of_crashes_failures_and_trims(steps in steps(), seed: u64) {
        let mut run = Run::new(seed, policies(seed));
        for step in &steps {
            run.step(step);
        }
        run.end();
    }
}
