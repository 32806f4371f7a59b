//! Partitions that come and go, beside a model: while the index is used, and with killed processes and power cuts.

use super::crash_tests::{PARTITIONS, created, log, model_of};
use super::tests::{DIGEST_BYTES, LogBatch, Model, OPTIONS, check};
use super::*;
use onefold_ground::SimulatedGround;
use onefold_ground::simulation::trials::*;

/// Batches that one process applies.
const BATCHES: usize = 8;

fn batch_of(LogBatch { removals, places, inserts, deltas, .. }: &LogBatch) -> ChunkBatch<'_> {
    ChunkBatch { removals, places, inserts, notes: &[], deltas }
}

fn open_without(ground: &SimulatedGround, without: Option<u32>, epoch: u64) -> Result<ChunkIndex> {
    let owned = (0..PARTITIONS).filter(|number| Some(*number) != without).map(|number| Owned { number, epoch });
    let ownership = Ownership::of(PARTITIONS, owned.collect()).unwrap();
    let ground: Arc<dyn Ground> = Arc::new(ground.clone());
    ChunkIndex::open(&ground, "index", &ownership, DIGEST_BYTES, OPTIONS, Access::ReadWrite)
}

/// Makes a partition again from the whole log, and adds it.
fn adopt(index: &ChunkIndex, owned: Owned, log: &[LogBatch]) -> Result<()> {
    let new = index.make_partition(owned)?;
    for batch in log {
        new.apply(batch_of(batch))?;
    }
    let end = log.last().map_or(0, |batch| batch.end);
    index.add_partition(new, Position(end))
}

/// Checks all that is not in a partition against the model, and that nobody finds anything there.
fn check_without(index: &ChunkIndex, without: Option<u32>, mut model: Model) {
    let bits = PARTITIONS.trailing_zeros();
    let is_missing = |name: &Fingerprint| Some(partition_of(name.prefix(), bits)) == without;
    for name in model.keys().filter(|name| is_missing(name)).take(3) {
        assert!(matches!(index.lookup(&[*name], &mut Vec::new()), Err(IndexError::NotOpened { .. })));
    }
    model.retain(|name, _| !is_missing(name));
    match without {
        None => check(index, &model),
        Some(_) => {
            let names: Vec<_> = model.keys().copied().collect();
            let mut found = Vec::new();
            index.lookup(&names, &mut found).unwrap();
            assert!(found.into_iter().eq(model.into_values().map(Some)));
        }
    }
}

/// An index behind a durable log. One partition after the other goes and comes back. What is opened is written down
/// before one goes, and after one has come, as a table of a cluster does.
struct Moves {
    log: Vec<LogBatch>,
}

#[derive(Clone)]
struct Known {
    /// Batches in the log.
    applied: usize,
    epoch: u64,
    without: Option<u32>,
}

impl Subject for Moves {
    type Part = ChunkIndex;
    type Known = Known;

    fn create(&self, seed: u64) -> (SimulatedGround, Known) {
        (created(seed).0, Known { applied: 0, epoch: 0, without: None })
    }

    fn open(&self, ground: &SimulatedGround, known: &mut Known) -> std::result::Result<ChunkIndex, String> {
        known.epoch += 1;
        let index = open_without(ground, known.without, known.epoch).map_err(|error| error.to_string())?;
        let position = index.position();
        for batch in self.log[..known.applied].iter().filter(|batch| batch.end > position.0) {
            index.apply_batch(Position(batch.end), batch_of(batch)).map_err(|error| error.to_string())?;
        }
        Ok(index)
    }

    fn work(&self, index: &mut ChunkIndex, known: &mut Known) -> std::result::Result<(), String> {
        let upto = self.log.len().min(known.applied + BATCHES);
        for number in known.applied..upto {
            known.applied = number + 1;
            index.apply_batch(Position(self.log[number].end), batch_of(&self.log[number])).expect("it only changes memory");
            let partition = (number / BATCHES) as u32 % PARTITIONS;
            let done = match (number % 4, known.without) {
                (0, _) => index.step().map(drop),
                (1, None) => {
                    known.without = Some(partition);
                    index.remove_partition(partition).and_then(RemovedPartition::delete)
                }
                (2, _) => index.sweep().map(drop),
                (3, Some(number)) => adopt(index, Owned { number, epoch: known.epoch }, &self.log[..known.applied]).map(|()| {
                    known.without = None;
                }),
                _ => Ok(()),
            };
            done.map_err(|error| error.to_string())?;
        }
        index.close().map_err(|error| error.to_string())
    }

    fn compare(&self, _: &SimulatedGround, index: &mut ChunkIndex, known: &mut Known) {
        check_without(index, known.without, model_of(&self.log[..known.applied]));
        assert_eq!(index.verify().unwrap(), []);
    }
}

fn moves() -> Moves {
    Moves { log: log(4 * BATCHES as u64, 60) }
}

#[test]
fn m4_2_a_process_killed_while_partitions_move_then_another_then_a_power_cut_lose_nothing() {
    assert!(kills_then_power_cuts(&moves(), 100) > 50);
}

#[test]
fn m4_2_a_failed_operation_while_partitions_move_then_another_process_then_a_power_cut_lose_nothing() {
    assert!(failures_then_power_cuts(&moves(), 100) > 50);
}

#[test]
fn m4_2_a_partition_comes_while_others_are_used_and_memory_is_divided_among_all() {
    let batches = log(40, 300);
    let (ground, _) = created(1);
    let index = open_without(&ground, Some(0), 1).unwrap();
    for batch in &batches[..20] {
        index.apply_batch(Position(batch.end), batch_of(batch)).unwrap();
    }
    let new = index.make_partition(Owned { number: 0, epoch: 1 }).unwrap();
    // What it lacks comes from elsewhere; the others go on meanwhile.
    for (own, other) in batches[..30].iter().zip(batches[..30].iter().map(Some).skip(20).chain(std::iter::repeat(None))) {
        new.apply(batch_of(own)).unwrap();
        if let Some(other) = other {
            index.apply_batch(Position(other.end), batch_of(other)).unwrap();
            index.step().unwrap();
        }
    }
    let end = batches[29].end + 1;
    index.add_partition(new, Position(end)).unwrap();
    // The log before may be trimmed, and says nothing of this partition anyway.
    assert_eq!(index.opened(0).unwrap().state.read().applied, end);
    for batch in &batches[30..] {
        index.apply_batch(Position(batch.end), batch_of(batch)).unwrap();
    }
    check(&index, &model_of(&batches));
    let figures = index.statistics();
    assert!(figures.page_cache_bytes <= OPTIONS.page_cache_bytes as u64 && figures.filter_bytes <= OPTIONS.filter_bytes as u64);
    for wrong in [0, PARTITIONS] {
        let refused = index.make_partition(Owned { number: wrong, epoch: 1 });
        assert!(matches!(refused, Err(IndexError::NotToBeAdded { .. })), "{refused:?}");
    }
    for number in 0..PARTITIONS {
        index.remove_partition(number).unwrap().delete().unwrap();
        assert!(matches!(index.remove_partition(number), Err(IndexError::NotOpened { .. })));
    }
    // Changes in memory go with their partition.
    assert_eq!(index.statistics().auxiliary_bytes, 0);
    let abandoned = index.make_partition(Owned { number: 0, epoch: 1 }).unwrap();
    abandoned.apply(batch_of(&batches[0])).unwrap();
    drop(abandoned);
    assert_eq!(index.statistics().auxiliary_bytes, 0);
}
