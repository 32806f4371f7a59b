//! Compares the object index with a `BTreeMap`.

use super::*;
use onefold_ground::LocalGround;
use onefold_oplog::{Owned, Ownership};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const OPTIONS: ObjectIndexOptions = ObjectIndexOptions { cache_bytes: 1 << 20, pending_bytes: 1 << 20 };

fn local() -> (tempfile::TempDir, Arc<dyn Ground>) {
    let directory = tempfile::tempdir().unwrap();
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
    (directory, ground)
}

fn open(ground: &Arc<dyn Ground>, partitions: u16, access: Access, epoch: u64) -> ObjectIndex {
    ObjectIndex::open(ground.clone(), "objects", &Ownership::all(u32::from(partitions), epoch), OPTIONS, access).unwrap()
}

/// An index with its log, used as a store does, and its model.
struct Store {
    ground: Arc<dyn Ground>,
    index: ObjectIndex,
    log: Vec<(Position, Vec<Change>)>,
    staged: Vec<(u64, Vec<Change>)>,
    sequence: u64,
    epoch: u64,
}

type Model = BTreeMap<(u16, Vec<u8>), Vec<u8>>;

impl Store {
    fn create(ground: Arc<dyn Ground>) -> Store {
        ObjectIndex::create(&ground, "objects", 2).unwrap();
        let index = open(&ground, 2, Access::ReadWrite, 1);
        Store { ground, index, log: Vec::new(), staged: Vec::new(), sequence: 0, epoch: 1 }
    }

    fn stage(&mut self, changes: Vec<Change>) {
        self.sequence += 1;
        self.index.stage(self.sequence, &changes).unwrap();
        self.staged.push((self.sequence, changes));
    }

    /// Writes the first `count` staged transactions to the log in one batch.
    fn flush(&mut self, count: usize) {
        let taken: Vec<_> = self.staged.drain(..count.min(self.staged.len())).collect();
        let sequence = taken.last().map_or(0, |(sequence, _)| *sequence);
        let changes: Vec<Change> = taken.into_iter().flat_map(|(_, changes)| changes).collect();
        let end = Position(self.log.last().map_or(0, |(end, _)| end.0) + 512);
        self.index.apply(end, sequence, &changes).unwrap();
        self.log.push((end, changes));
    }

    /// Ends without closing, reopens and replays the whole log.
    fn reopen(&mut self, access: Access) {
        self.epoch += 1;
        self.staged.clear();
        self.index = open(&self.ground, 2, access, self.epoch);
        self.replay();
    }

    fn replay(&self) {
        assert!(self.index.position() <= self.log.last().map_or(Position(0), |(end, _)| *end));
        for (end, changes) in &self.log {
            self.index.apply(*end, 0, changes).unwrap();
        }
    }

    fn model(&self) -> Model {
        let mut model = Model::new();
        let durable = self.log.iter().map(|(_, changes)| changes);
        for (partition, key, value) in durable.chain(self.staged.iter().map(|(_, changes)| changes)).flatten().cloned() {
            match value {
                Some(value) => model.insert((partition, key), value),
                None => model.remove(&(partition, key)),
            };
        }
        model
    }

    fn check(&self) {
        let model = self.model();
        for partition in 0..2 {
            let expected: Vec<_> =
                model.iter().filter(|((of, _), _)| *of == partition).map(|((_, key), value)| (key.clone(), value.clone())).collect();
            assert_eq!(self.index.range(partition, &[], &[255; 9], usize::MAX).unwrap(), expected);
            for key in 0..=KEYS {
                assert_eq!(self.index.get(partition, &[key]).unwrap(), model.get(&(partition, vec![key])).cloned());
            }
            for limit in 1..5 {
                let (from, to) = ([limit as u8], [KEYS - limit as u8]);
                let some: Vec<_> =
                    expected.iter().filter(|(key, _)| key[..] >= from[..] && key[..] < to[..]).take(limit).cloned().collect();
                assert_eq!(self.index.range(partition, &from, &to, limit).unwrap(), some);
            }
        }
    }
}

const KEYS: u8 = 24;

#[derive(Clone, Debug)]
enum Step {
    Stage(Vec<Change>),
    Flush(usize),
    Persist,
    Reopen(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let change = (0u16..2, 0..KEYS, proptest::option::weighted(0.7, proptest::collection::vec(any::<u8>(), 0..40)))
        .prop_map(|(partition, key, value)| (partition, vec![key], value));
    prop_oneof![
        6 => proptest::collection::vec(change, 0..8).prop_map(Step::Stage),
        4 => (0usize..4).prop_map(Step::Flush),
        2 => Just(Step::Persist),
        1 => any::<bool>().prop_map(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn m0_16_a_object_index_is_an_ordered_map_whose_state_is_the_log(steps in proptest::collection::vec(step(), 1..30)) {
        let (_directory, ground) = local();
        let mut store = Store::create(ground);
        for step in steps {
            match step {
                Step::Stage(changes) => store.stage(changes),
                Step::Flush(count) => store.flush(count),
                Step::Persist => {
                    store.index.persist().unwrap();
                    prop_assert_eq!(store.index.pending_bytes(), 0);
                    prop_assert_eq!(store.index.position(), store.log.last().map_or(Position(0), |(end, _)| *end));
                }
                Step::Reopen(to_read) => {
                    if to_read {
                        store.reopen(Access::Read);
                        store.check();
                    }
                    store.reopen(Access::ReadWrite);
                }
            }
            store.check();
        }
    }
}

fn put(key: u8, value: u8) -> Change {
    (0, vec![key], Some(vec![value; 100]))
}

#[test]
fn a_version_staged_later_stays_visible_when_an_older_one_is_applied() {
    let (_directory, ground) = local();
    let mut store = Store::create(ground);
    store.stage(vec![put(1, 1)]);
    store.stage(vec![put(1, 2)]);
    store.flush(1);
    assert_eq!(store.index.get(0, &[1]).unwrap(), Some(vec![2; 100]));
    store.index.persist().unwrap();
    assert_eq!(store.index.get(0, &[1]).unwrap(), Some(vec![2; 100]));
    store.reopen(Access::ReadWrite);
    assert_eq!(store.index.get(0, &[1]).unwrap(), Some(vec![1; 100]), "the newer one was never durable");
}

#[test]
fn memory_of_what_is_pending_is_counted_and_asks_to_be_persisted() {
    let (_directory, ground) = local();
    let mut store = Store::create(ground);
    for key in 0..200u8 {
        store.stage(vec![(1, vec![key], Some(vec![key; 10_000]))]);
        assert!(store.index.volatile_bytes() > 10_000);
        store.flush(1);
        assert_eq!(store.index.volatile_bytes(), 0);
    }
    assert!(store.index.wants_persist() && store.index.is_over_limit());
    assert!(store.index.pending_bytes() > 2_000_000);
    store.index.persist().unwrap();
    assert!(!store.index.wants_persist() && !store.index.is_over_limit());
    assert_eq!(store.index.pending_bytes(), 0);
}

#[test]
fn reading_and_applying_go_on_while_a_persist_runs() {
    let (_directory, ground) = local();
    let mut store = Store::create(ground);
    for key in 0..100 {
        store.stage(vec![put(key, 1)]);
    }
    store.flush(100);
    let index = &store.index;
    std::thread::scope(|scope| {
        let persisting = scope.spawn(|| (0..20).for_each(|_| index.persist().unwrap()));
        let mut end = 512;
        while !persisting.is_finished() {
            end += 512;
            let value = (end / 512) as u8;
            index.stage(end, &[put(7, value), put(8, value)]).unwrap();
            let seen = index.range(0, &[0], &[200], 200).unwrap();
            assert_eq!(seen.len(), 100);
            assert_eq!((&seen[7].1, &seen[8].1), (&vec![value; 100], &vec![value; 100]));
            index.apply(Position(end), end, &[put(7, value), put(8, value)]).unwrap();
            assert_eq!(index.get(0, &[7]).unwrap(), Some(vec![value; 100]));
        }
    });
    index.persist().unwrap();
    assert_eq!(index.pending_bytes(), 0);
    assert_eq!(store.index.verify(), []);
}

#[test]
fn nobody_who_applies_a_batch_waits_for_the_database_that_is_written() {
    let (_directory, ground) = local();
    let mut store = Store::create(ground);
    store.stage(vec![put(1, 1)]);
    store.flush(1);
    let (index, partition) = (&store.index, store.index.partitions.get(0).unwrap());
    std::thread::scope(|scope| {
        let database = partition.file.hold();
        let persisting = scope.spawn(|| index.persist().unwrap());
        // The object is on its way to the database, which is blocked.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !partition.tiers.try_read().is_some_and(|tiers| tiers.is_frozen()) {
            assert!(Instant::now() < deadline, "whoever persists keeps everybody from the objects in memory");
            std::thread::yield_now();
        }
        index.apply(Position(1024), 2, &[put(1, 2)]).unwrap();
        assert_eq!(index.get(0, &[1]).unwrap(), Some(vec![2; 100]));
        drop(database);
        persisting.join().unwrap();
    });
    index.persist().unwrap();
    assert_eq!((index.pending_bytes(), index.get(0, &[1]).unwrap()), (0, Some(vec![2; 100])));
}

#[test]
fn an_owner_whose_partition_was_taken_over_writes_nothing() {
    let (_directory, ground) = local();
    let mut store = Store::create(ground.clone());
    store.stage(vec![put(1, 1)]);
    store.flush(1);
    store.index.persist().unwrap();
    let old = std::mem::replace(&mut store.index, open(&ground, 2, Access::ReadWrite, 7));
    store.index.apply(Position(1024), 0, &[put(1, 2)]).unwrap();
    store.index.persist().unwrap();
    drop((old, store));
    let late = ObjectIndex::open(ground.clone(), "objects", &Ownership::all(2, 6), OPTIONS, Access::ReadWrite);
    assert!(matches!(late, Err(IndexError::Fenced { stored_epoch: 7, epoch: 6, .. })), "{late:?}");
    assert_eq!(open(&ground, 2, Access::Read, 0).get(0, &[1]).unwrap(), Some(vec![2; 100]));
}

#[test]
fn a_reader_writes_nothing() {
    let (directory, ground) = local();
    let mut store = Store::create(ground.clone());
    store.stage(vec![put(1, 1)]);
    store.flush(1);
    store.index.persist().unwrap();
    // The writer still has the file open: it was not closed, as after a crash.
    let path = directory.path().join("objects/0000.redb");
    let before = std::fs::read(&path).unwrap();
    let reader = open(&ground, 2, Access::Read, 0);
    assert_eq!(reader.get(0, &[1]).unwrap(), Some(vec![1; 100]));
    reader.apply(Position(1024), 0, &[put(2, 2)]).unwrap();
    assert!(matches!(reader.persist(), Err(IndexError::ReadOnly { .. })));
    assert!(!reader.wants_persist());
    drop(reader);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_lost_or_foreign_file_is_refused() {
    let (directory, ground) = local();
    let mut store = Store::create(ground.clone());
    store.stage(vec![put(1, 1)]);
    store.flush(1);
    store.index.persist().unwrap();
    drop(store);
    let path = directory.path().join("objects/0000.redb");
    let refused =
        || ObjectIndex::open(ground.clone(), "objects", &Ownership::all(2, 9), OPTIONS, Access::ReadWrite).unwrap_err().to_string();
    for bytes in [vec![], vec![7; 5000]] {
        std::fs::write(&path, bytes).unwrap();
        assert!(refused().contains("0000.redb"), "{}", refused());
    }
    std::fs::remove_file(&path).unwrap();
    assert!(refused().contains("0000.redb"));
    assert!(matches!(open_empty().stage(1, &[(5, vec![1], None)]), Err(IndexError::NoPartition { partition: 5, partitions: 1 })));
}

fn open_empty() -> ObjectIndex {
    let (_directory, ground) = local();
    ObjectIndex::create(&ground, "objects", 1).unwrap();
    open(&ground, 1, Access::ReadWrite, 1)
}

#[test]
fn a_moment_stays_as_it_is_through_staging_batches_and_persisting() {
    let (_directory, ground) = local();
    let index = Store::create(ground).index;
    let change = |key: u8, value: Option<u8>| (0u16, vec![key], value.map(|value| vec![value]));
    let stage = |number: u64, changes: &[Change]| index.stage(number, changes).unwrap();
    let apply = |number: u64, changes: &[Change]| index.apply(Position(number * 512), number, changes).unwrap();
    let all = |moment: &Moment<'_>| moment.range(0, &[0], &[255], 100).unwrap();
    let batches = [
        vec![change(1, Some(1)), change(2, Some(2))],
        vec![change(2, Some(20)), change(3, Some(3))],
        vec![change(1, None), change(4, Some(4))],
        vec![change(3, None)],
    ];
    stage(1, &batches[0]);
    apply(1, &batches[0]);
    index.persist().unwrap();
    stage(2, &batches[1]);
    apply(2, &batches[1]);
    stage(3, &batches[2]);

    let moment = index.moment().unwrap();
    let durable = vec![(vec![1], vec![1]), (vec![2], vec![20]), (vec![3], vec![3])];
    assert_eq!(all(&moment), durable, "what is only staged is not in it");
    apply(3, &batches[2]);
    assert_eq!(all(&moment), durable);
    index.persist().unwrap();
    stage(4, &batches[3]);
    apply(4, &batches[3]);
    index.persist().unwrap();
    assert_eq!(all(&moment), durable);
    assert_eq!(moment.range(0, &[2], &[255], 1).unwrap(), durable[1..2]);
    assert!(!moment.has_moved());
    assert_eq!(all(&index.moment().unwrap()), [(vec![2], vec![20]), (vec![4], vec![4])]);
}

#[test]
fn a_verification_that_is_stopped_says_nothing_of_the_file_and_harms_nothing() {
    let (_directory, ground) = local();
    let store = Store::create(ground);
    store.index.apply(Position(10), 0, &[(0, b"key".to_vec(), Some(b"value".to_vec()))]).unwrap();
    store.index.persist().unwrap();
    let known = Position(0)..=Position(u64::MAX);
    let stop = super::Fault::default();
    stop.set();
    assert!(store.index.partitions.get(0).unwrap().file.verify(known.clone(), stop).is_some(), "nothing can be read any more");
    assert_eq!(store.index.partitions.get(0).unwrap().file.verify(known, super::Fault::default()), None);
    assert_eq!(store.index.verify_partition(0, &|| true), super::Verified::Whole);
    assert_eq!(store.index.get(0, b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn partitions_are_opened_by_a_list_and_changes_of_others_are_passed_over() {
    let (_directory, ground) = local();
    ObjectIndex::create(&ground, "objects", 3).unwrap();
    let some = |number, epoch| {
        let ownership = Ownership::of(3, vec![Owned { number, epoch }]).unwrap();
        ObjectIndex::open(ground.clone(), "objects", &ownership, OPTIONS, Access::ReadWrite)
    };
    let put = |partition: u16| (partition, vec![7], Some(vec![partition as u8]));
    let index = some(2, 5).unwrap();
    index.apply(Position(4096), 0, &[put(0), put(2)]).unwrap();
    index.persist().unwrap();
    index.copy_objects().unwrap();
    assert_eq!((index.get(2, &[7]).unwrap(), index.position()), (Some(vec![2]), Position(4096)));
    assert_eq!(index.moment().unwrap().get(2, &[7]).unwrap(), Some(vec![2]));
    for error in [index.get(0, &[7]).unwrap_err(), index.stage(1, &[put(2), put(0)]).unwrap_err()] {
        assert!(matches!(error, IndexError::NotOpened { partition: 0, .. }), "{error}");
    }
    assert!(matches!(index.apply(Position(8192), 0, &[put(3)]), Err(IndexError::NoPartition { partition: 3, partitions: 3 })));
    drop(index);
    assert!(matches!(some(2, 4), Err(IndexError::Fenced { stored_epoch: 5, epoch: 4, .. })));
    let all = open(&ground, 3, Access::ReadWrite, 6);
    assert_eq!([0, 1, 2].map(|partition| all.get(partition, &[7]).unwrap()), [None, None, Some(vec![2])]);
    assert_eq!(all.position(), Position(0), "the others have not seen the batch");
}

#[test]
fn m4_2_partitions_come_and_go_while_others_are_used() {
    let (_directory, ground) = local();
    ObjectIndex::create(&ground, "objects", 3).unwrap();
    let owned = |number| Owned { number, epoch: 5 };
    let some = Ownership::of(3, vec![owned(1)]).unwrap();
    let index = ObjectIndex::open(ground.clone(), "objects", &some, OPTIONS, Access::ReadWrite).unwrap();
    let put = |partition: u16, key: u8, value: u8| (partition, vec![key], Some(vec![value; 3000]));
    index.apply(Position(4096), 0, &[put(1, 1, 1)]).unwrap();
    let new = index.make_partition(owned(2)).unwrap();
    for turn in 1..200u64 {
        new.apply(&[put(2, turn as u8, 7), put(1, 9, 9), (2, vec![turn as u8 - 1], None)]).unwrap();
    }
    index.apply(Position(8192), 0, &[put(1, 1, 2)]).unwrap();
    assert!(matches!(index.get(2, &[199]), Err(IndexError::NotOpened { partition: 2, .. })));
    let at = Position(300 * 4096);
    index.add_partition(new, at).unwrap();
    // The log before may be trimmed, and says nothing of this partition anyway.
    assert_eq!(index.partitions.get(2).unwrap().tiers.read().persisted(), at);
    let keys = |index: &ObjectIndex| index.range(2, &[0], &[255], 1000).unwrap().into_iter().map(|(key, _)| key[0]).collect::<Vec<_>>();
    assert_eq!((keys(&index), index.get(1, &[9]).unwrap()), (vec![199], None));
    // From here on it takes batches, and what has begun to read it goes on.
    let end = Position(at.0 + 4096);
    index.apply(end, 0, &[put(2, 200, 1), put(1, 1, 3)]).unwrap();
    assert_eq!(keys(&index), [199, 200]);
    for wrong in [1, 2, 3] {
        assert!(matches!(index.make_partition(owned(wrong)), Err(IndexError::NotToBeAdded { .. })));
    }
    index.persist().unwrap();
    let end = Position(end.0 + 4096);
    index.apply(end, 0, &[put(1, 2, 4)]).unwrap();
    let moment = index.moment().unwrap();
    let pending_bytes = index.pending_bytes();
    let removed = index.remove_partition(1).unwrap();
    assert!(matches!(index.remove_partition(1), Err(IndexError::NotOpened { .. })));
    let refused = |index: &ObjectIndex| matches!(index.make_partition(owned(1)), Err(IndexError::NotToBeAdded { .. }));
    assert!(refused(&index), "its files are still there");
    removed.delete().unwrap();
    assert!(refused(&index), "somebody still reads it");
    assert_eq!(moment.get(1, &[1]).unwrap(), Some(vec![3; 3000]));
    drop(moment);
    assert!(index.pending_bytes() < pending_bytes);
    index.persist().unwrap();
    assert_eq!((index.position(), index.pending_bytes()), (end, 0));
    drop(index);
    let later = Ownership::of(3, vec![owned(2)]).unwrap();
    let index = ObjectIndex::open(ground.clone(), "objects", &later, OPTIONS, Access::ReadWrite).unwrap();
    assert_eq!((keys(&index), index.position()), (vec![199, 200], end));
    // It comes back, and has nothing of what it was.
    index.add_partition(index.make_partition(owned(1)).unwrap(), end).unwrap();
    assert_eq!(index.get(1, &[1]).unwrap(), None);
}
