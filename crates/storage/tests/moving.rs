//! Partitions that move between nodes which have a log each, in a store in a bucket (M4.8, `docs/cluster.md`).

mod common;

use common::whole::{Fault, Objects, WholeGround};
use common::*;
use onefold_fingerprint::Fingerprint;
use onefold_ground::Access;
use onefold_oplog::{Owned, Ownership, Position, Record};
use onefold_storage::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const PARTITIONS: u16 = 3;
/// How often a partition is asked for that is being left. Puts fail only now and then.
const TRIES: usize = 50;

fn small() -> StorageOptions {
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, workers: 1, whole_files: true, ..options() }
}

/// What a log says of a partition, from a position on up to its end.
#[derive(Clone, Copy, Debug)]
struct Part {
    node: usize,
    since: Position,
}

/// A partition as the cluster's table has it.
#[derive(Debug)]
struct Partition {
    epoch: u64,
    lineage: Vec<Part>,
    /// The owner has it, and its lineage is the owner's log.
    is_served: bool,
}

impl Partition {
    fn owner(&self) -> usize {
        self.lineage.last().unwrap().node
    }
}

/// A process that has some partitions.
struct Process {
    ground: WholeGround,
    store: Arc<ContainerStore>,
    writers: Vec<Writer>,
    /// What it has stored, committed or not.
    stored: Chunks,
    /// Its number, different from that of every other process.
    number: usize,
}

impl Process {
    fn die(self) {
        self.ground.kill();
        drop(self.writers);
        drop(self.store);
        self.ground.check();
    }
}

/// A node: its log, and its process. A node without a process is lost, and its log is closed.
#[derive(Default)]
struct Node {
    log: Log,
    process: Option<Process>,
}

/// Where an adopter dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    AfterAdopting,
    /// After so many batches that seal what the owner before has left.
    AfterBatches(usize),
    BeforeServing,
}

struct World {
    objects: Objects,
    options: StorageOptions,
    nodes: Vec<Node>,
    partitions: Vec<Partition>,
    formers: Vec<Process>,
    processes: usize,
    epoch: u64,
    next_name: u64,
    committed: Chunks,
    /// By container: the process that gave out its number.
    givers: BTreeMap<ContainerId, usize>,
}

impl World {
    fn new(options: StorageOptions, nodes: usize) -> World {
        let partition = |number: u16| Partition {
            epoch: 1,
            lineage: vec![Part { node: usize::from(number) % nodes, since: Position(0) }],
            is_served: true,
        };
        let mut world = World {
            objects: Objects::default(),
            options,
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            partitions: (0..PARTITIONS).map(partition).collect(),
            formers: Vec::new(),
            processes: 0,
            epoch: 1,
            next_name: 0,
            committed: Chunks::new(),
            givers: BTreeMap::new(),
        };
        (0..nodes).for_each(|node| world.start(node));
        world
    }

    fn process(&self, node: usize) -> &Process {
        self.nodes[node].process.as_ref().unwrap()
    }

    fn living(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].process.is_some()).collect()
    }

    fn served_by(&self, node: usize) -> Vec<u16> {
        let is_there =
            |number: &u16| self.partitions[usize::from(*number)].owner() == node && self.partitions[usize::from(*number)].is_served;
        (0..PARTITIONS).filter(is_there).collect()
    }

    /// Opens a node's log again, with the partitions that it serves by the table.
    fn start(&mut self, node: usize) {
        let served = self.served_by(node);
        let owned = served.iter().map(|number| Owned { number: (*number).into(), epoch: self.partitions[usize::from(*number)].epoch });
        let ownership = Ownership::of(PARTITIONS.into(), owned.collect()).unwrap();
        self.nodes[node].log.append(served.iter().map(|number| numbers_reserved(*number)).collect());
        let ground = WholeGround::new(&self.objects, true);
        let log = &self.nodes[node].log;
        let store = self.open(&ground, &ownership);
        for (start, records) in &log.batches {
            let counts = |record: &&Record| {
                let number = record.partition.number;
                served.contains(&number) && *start >= self.partitions[usize::from(number)].lineage[0].since
            };
            records.iter().filter(counts).for_each(|record| store.replay(*start, record).unwrap());
        }
        store.recovered(log.start(), log.end()).unwrap();
        self.processes += 1;
        let writers = vec![store.writer(), store.writer(), store.writer().sequential()];
        let number = self.processes;
        self.nodes[node].process = Some(Process { ground, store, writers, stored: Chunks::new(), number });
        for partition in 0..PARTITIONS {
            let of_table = &self.partitions[usize::from(partition)];
            if of_table.owner() == node && !of_table.is_served {
                assert!(self.adopt(partition, None));
            }
        }
    }

    fn open(&self, ground: &WholeGround, ownership: &Ownership) -> Arc<ContainerStore> {
        ContainerStore::open(Arc::new(ground.clone()), DIRECTORY, ownership, self.options.clone(), Access::ReadWrite, Arc::default())
            .unwrap()
    }

    /// Writes a batch to a node's log. `stored` are the chunks that it may name.
    fn commit(&mut self, node: usize, store: &ContainerStore, mut prepared: Prepared) {
        if prepared.records.is_empty() {
            return store.abandoned(prepared);
        }
        for record in &prepared.records {
            assert_eq!(self.partitions[usize::from(record.partition.number)].owner(), node, "{record:?}");
        }
        for (_, address, _) in &prepared.surplus {
            assert!(!self.committed.contains_key(address), "a chunk that somebody has is called dead");
        }
        for (name, address, _) in std::mem::take(&mut prepared.chunks) {
            let chunk = self.process(node).stored[&address].clone();
            assert_eq!(chunk.0, name);
            assert!(self.committed.insert(address, chunk).is_none(), "{address} is new twice");
        }
        let (start, end) = self.nodes[node].log.append(std::mem::take(&mut prepared.records));
        store.committed(prepared, start, end);
    }

    fn flush(&mut self, node: usize, scope: Scope) -> bool {
        let store = self.process(node).store.clone();
        match store.prepare(scope) {
            Ok(prepared) => {
                self.commit(node, &store, prepared);
                true
            }
            Err(error) => {
                assert!(matches!(error, StorageError::CannotWrite { .. }), "{error}");
                false
            }
        }
    }

    fn append(&mut self, node: usize, writer: usize, lengths: &[usize]) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let mut chunks = Chunks::new();
        let appended = append(&mut process.writers[writer], &mut self.next_name, lengths, &mut chunks);
        let number = process.number;
        process.stored.extend(chunks.clone());
        for address in chunks.keys() {
            let giver = *self.givers.entry(address.container()).or_insert(number);
            assert_eq!(giver, number, "two owners gave out {address}");
        }
        match appended {
            Ok(()) => assert!(!self.served_by(node).is_empty()),
            Err(StorageError::NoPartition) => assert!(self.served_by(node).is_empty()),
            // Each start leaves out a thousand numbers.
            Err(error) => panic!("{error}"),
        }
    }

    fn merge(&mut self, node: usize, first: usize, count: usize, end: u8) {
        let Some(number) = self.served_by(node).into_iter().next() else { return };
        let store = self.process(node).store.clone();
        let containers = store.containers().unwrap();
        let sealed = containers.iter().filter(|id| id.partition() == number && store.is_sealed(*id));
        let victims: Vec<_> = sealed.skip(first).take(count).collect();
        if victims.is_empty() {
            return;
        }
        let live: Vec<(Address, Fingerprint)> = self
            .committed
            .iter()
            .filter(|(address, _)| address.container().partition() == number && victims.contains(&store.container_of(**address).unwrap()))
            .map(|(address, (name, _))| (*address, *name))
            .collect();
        let merge = match store.merge(&victims, &live) {
            Ok(merge) => merge,
            Err(error) => return assert!(matches!(error, StorageError::Merge { .. } | StorageError::CannotWrite { .. }), "{error}"),
        };
        if end == 0 {
            return store.abandon_merge(merge);
        }
        let (start, after) = self.nodes[node].log.append(vec![merge.record()]);
        if end == 1 { store.merge_logged(merge, start, after) } else { store.merged(merge, start, after) }
    }

    /// Trims a node's log, as far as its store, the table, and the store with a partition that it adopts let it.
    fn trim(&mut self, node: usize, adopts: Option<(u16, &ContainerStore)>) {
        let is_needed = |(number, partition): (u16, &Partition)| {
            let is_adopted_here = adopts.is_some_and(|(adopted, _)| adopted == number);
            !is_adopted_here && partition.lineage.len() > 1 && partition.lineage.iter().any(|part| part.node == node)
        };
        if (0..).zip(&self.partitions).any(is_needed) {
            return;
        }
        let point = self.process(node).store.trim_point(self.nodes[node].log.end());
        let point = adopts.map_or(point, |(_, second)| second.trim_point(point));
        self.nodes[node].log.trim(Some(point));
    }

    /// Commits what a store has until it has left a partition. Returns `None` if it dies before.
    fn leave(&mut self, node: usize, store: &ContainerStore, number: u16, dies_after: Option<usize>) -> Option<LeftPartition> {
        store.leave_partition(number).unwrap();
        for batches in 0..TRIES {
            if dies_after.is_some_and(|after| batches >= after) {
                return None;
            }
            if let Some(left) = store.remove_partition(number).unwrap() {
                return Some(left);
            }
            if let Ok(prepared) = store.prepare(Scope::Everything) {
                self.commit(node, store, prepared);
            }
            let _ = store.finish_merges();
        }
        panic!("partition {number} is never left")
    }

    /// Makes the owner by the table serve a partition. Returns false if it died.
    fn adopt(&mut self, number: u16, death: Option<Death>) -> bool {
        let partition = &self.partitions[usize::from(number)];
        let (node, epoch) = (partition.owner(), partition.epoch);
        let lineage = partition.lineage.clone();
        for part in &lineage {
            let end = self.nodes[part.node].log.end();
            self.nodes[node].log.jump_to(end);
        }
        self.nodes[node].log.append(vec![numbers_reserved(number)]);
        if death == Some(Death::AfterAdopting) {
            return self.lose_process(node);
        }
        let ground = WholeGround::new(&self.objects, true);
        let ownership = Ownership::of(PARTITIONS.into(), vec![Owned { number: number.into(), epoch }]).unwrap();
        let second = self.open(&ground, &ownership);
        for (at, part) in lineage.iter().enumerate() {
            let behind = lineage.get(at + 1).map_or(Position(u64::MAX), |next| next.since);
            let batches = self.nodes[part.node].log.batches.iter();
            for (start, records) in batches.filter(|(start, _)| (part.since..behind).contains(start)) {
                let counts = |record: &&Record| record.partition.number == number;
                records.iter().filter(counts).for_each(|record| second.replay(*start, record).unwrap());
            }
        }
        // The logs behind the first one are not trimmed before this is over.
        let start = self.nodes[lineage[0].node].log.start();
        second.recovered(start, self.nodes[node].log.end()).unwrap();
        let dies_after = match death {
            Some(Death::AfterBatches(batches)) => Some(batches),
            _ => None,
        };
        let left = self.leave(node, &second, number, dies_after);
        // Others commit and trim meanwhile.
        self.flush(node, Scope::Everything);
        self.trim(node, Some((number, &second)));
        let Some(left) = left.filter(|_| death != Some(Death::BeforeServing)) else {
            ground.kill();
            return self.lose_process(node);
        };
        ground.check();
        self.process(node).store.add_partition(Owned { number: number.into(), epoch }, left).unwrap();
        let partition = &mut self.partitions[usize::from(number)];
        partition.is_served = true;
        partition.lineage = vec![*lineage.last().unwrap()];
        drop(second);
        true
    }

    fn lose_process(&mut self, node: usize) -> bool {
        self.nodes[node].process.take().unwrap().die();
        false
    }

    /// Puts a table with a new owner. What its log has of the partition so far is of an earlier time.
    fn give(&mut self, number: u16, to: usize) {
        self.epoch += 1;
        let partition = &mut self.partitions[usize::from(number)];
        let end = partition.lineage.iter().map(|part| self.nodes[part.node].log.end()).max().unwrap();
        self.nodes[to].log.jump_to(end);
        partition.epoch = self.epoch;
        partition.is_served = false;
        partition.lineage.push(Part { node: to, since: self.nodes[to].log.end() });
    }

    /// Moves a partition by plan.
    fn move_to(&mut self, number: u16, to: usize, death: Option<Death>) {
        let from = self.partitions[usize::from(number)].owner();
        if from == to {
            return;
        }
        let store = self.process(from).store.clone();
        assert!(self.leave(from, &store, number, None).is_some());
        drop(store);
        self.give(number, to);
        if !self.adopt(number, death) {
            if self.epoch.is_multiple_of(2) { self.start(to) } else { self.take_over(to) }
        }
    }

    /// Gives the partitions of a lost node to others.
    fn take_over(&mut self, lost: usize) {
        if self.living().is_empty() {
            self.nodes.push(Node::default());
            let node = self.nodes.len() - 1;
            self.start(node);
        }
        for number in 0..PARTITIONS {
            if self.partitions[usize::from(number)].owner() == lost {
                let living = self.living();
                self.give(number, living[usize::from(number) % living.len()]);
                assert!(self.adopt(number, None));
            }
        }
    }

    /// Checks what each node can read: what it has, and what the others have put into the bucket.
    fn check(&self) {
        for node in self.living() {
            let process = self.process(node);
            let is_there = |address: &Address| {
                let container = address.container();
                let owner = self.partitions[usize::from(container.partition())].owner();
                owner == node || self.process(owner).store.is_sealed(container)
            };
            let mut readable: Chunks =
                self.committed.iter().filter(|(address, _)| is_there(address)).map(|(at, chunk)| (*at, chunk.clone())).collect();
            readable.extend(process.stored.iter().filter(|(address, _)| is_there(address)).map(|(at, chunk)| (*at, chunk.clone())));
            check(&process.store, &readable);
            let served: BTreeSet<u16> = self.served_by(node).into_iter().collect();
            assert!(process.store.containers().unwrap().iter().all(|container| served.contains(&container.partition())));
            check_all(&process.store, &self.committed);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append {
        node: usize,
        writer: usize,
        lengths: Vec<usize>,
    },
    Flush(usize),
    FullFrames(usize),
    /// Seals what is old, and trims the log.
    Checkpoint(usize),
    Fail(usize, Vec<Fault>),
    Deliver,
    Check,
    Merge {
        node: usize,
        first: usize,
        count: usize,
        end: u8,
    },
    /// By plan, to a node that may die in the middle.
    Move {
        number: u16,
        to: usize,
        death: Option<Death>,
    },
    /// The node is lost, but its process is still there and does not know.
    Lose(usize),
    /// A former owner goes on.
    Former,
    FormersDie,
    /// A crash, and the node comes back before anybody takes over.
    Restart(usize),
    Join,
}

fn step() -> impl Strategy<Value = Step> {
    let length = || prop_oneof![5 => 0..3000usize, 1 => 3000..20_000usize, 1 => Just(0)];
    let fault = prop_oneof![Just(Fault::Before), Just(Fault::After), Just(Fault::Late)];
    let death = prop_oneof![Just(Death::AfterAdopting), (0..4usize).prop_map(Death::AfterBatches), Just(Death::BeforeServing),];
    let node = || 0..8usize;
    prop_oneof![
        12 => (node(), 0..3usize, proptest::collection::vec(length(), 1..12))
            .prop_map(|(node, writer, lengths)| Step::Append { node, writer, lengths }),
        4 => node().prop_map(Step::Flush),
        3 => node().prop_map(Step::FullFrames),
        2 => node().prop_map(Step::Checkpoint),
        2 => (node(), proptest::collection::vec(fault, 1..4)).prop_map(|(node, faults)| Step::Fail(node, faults)),
        1 => Just(Step::Deliver),
        2 => Just(Step::Check),
        4 => (node(), 0..9usize, 1..4usize, 0..3u8).prop_map(|(node, first, count, end)| Step::Merge { node, first, count, end }),
        5 => (0..PARTITIONS, node(), proptest::option::weighted(0.3, death)).prop_map(|(number, to, death)| Step::Move { number, to, death }),
        1 => node().prop_map(Step::Lose),
        2 => Just(Step::Former),
        1 => Just(Step::FormersDie),
        2 => node().prop_map(Step::Restart),
        1 => Just(Step::Join),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn m4_8_what_was_committed_can_be_read_however_partitions_move_and_whoever_is_lost(
        steps in proptest::collection::vec(step(), 1..60),
        nodes in 1..4usize,
        container_bytes in 4096..30_000u32,
    ) {
        let mut world = World::new(StorageOptions { container_bytes, ..small() }, nodes);
        for step in steps {
            let living = world.living();
            let pick = |node: usize| living[node % living.len()];
            match step {
                Step::Append { node, writer, lengths } => world.append(pick(node), writer, &lengths),
                Step::Flush(node) => drop(world.flush(pick(node), Scope::Everything)),
                Step::FullFrames(node) => drop(world.flush(pick(node), Scope::FullFrames)),
                Step::Checkpoint(node) => {
                    let node = pick(node);
                    let end = world.nodes[node].log.end();
                    prop_assert!(world.process(node).store.checkpoint_before(end).unwrap().is_empty());
                    world.flush(node, Scope::FullFrames);
                    world.trim(node, None);
                }
                Step::Fail(node, faults) => world.process(pick(node)).ground.fail_puts(faults),
                Step::Deliver => world.objects.deliver_late(),
                Step::Check => world.check(),
                Step::Merge { node, first, count, end } => world.merge(pick(node), first, count, end),
                Step::Move { number, to, death } => world.move_to(number, pick(to), death),
                Step::Lose(node) => {
                    let node = pick(node);
                    let former = world.nodes[node].process.take().unwrap();
                    world.formers.push(former);
                    world.take_over(node);
                }
                Step::Former => {
                    for former in &mut world.formers {
                        let mut chunks = Chunks::new();
                        if let Err(error) = append(&mut former.writers[0], &mut world.next_name, &[700, 9000], &mut chunks) {
                            prop_assert!(matches!(error, StorageError::Poisoned { .. } | StorageError::NoPartition), "{}", error);
                        }
                        // Its batch is refused.
                        let _ = former.store.prepare(Scope::Everything).map(|prepared| former.store.abandoned(prepared));
                        let _ = former.store.finish_merges();
                    }
                }
                Step::FormersDie => world.formers.drain(..).for_each(Process::die),
                Step::Restart(node) => {
                    let node = pick(node);
                    world.lose_process(node);
                    world.start(node);
                }
                Step::Join => {
                    world.nodes.push(Node::default());
                    let node = world.nodes.len() - 1;
                    world.start(node);
                }
            }
        }
        world.check();
        world.formers.drain(..).for_each(Process::die);
        world.objects.deliver_late();
        let last = world.living()[0];
        for number in 0..PARTITIONS {
            world.move_to(number, last, None);
        }
        world.flush(last, Scope::Everything);
        world.check();
        world.lose_process(last);
        world.start(last);
        world.check();
    }
}

#[test]
fn m4_8_a_node_changes_nothing_in_partitions_of_others() {
    let mut world = World::new(small(), 2);
    world.append(0, 0, &[900; 60]);
    world.flush(0, Scope::Everything);
    let store = world.process(0).store.clone();
    assert!(matches!(store.remove_partition(0), Err(StorageError::NotOpened { partition: 0 })), "it was not left");
    assert!(matches!(store.leave_partition(1), Err(StorageError::NotOpened { partition: 1 })));
    world.move_to(0, 1, None);
    let containers: Vec<_> = world.process(1).store.containers().unwrap().iter().filter(|id| id.partition() == 0).collect();
    assert!(!containers.is_empty());
    for live in [Vec::new(), vec![(Address::new(containers[0], 0), world.committed[&Address::new(containers[0], 0)].0)]] {
        let refused = store.merge(&containers[..1], &live).unwrap_err();
        assert!(matches!(&refused, StorageError::Merge { why } if why.contains("another owner")), "{refused}");
    }
    assert!(matches!(store.leave_partition(0), Err(StorageError::NotOpened { partition: 0 })));
    // What it still has of them are readers.
    check(&store, &world.committed);
    let left = world.leave(1, &world.process(1).store.clone(), 0, None).unwrap();
    assert_eq!(left.number(), 0);
    assert!(left.void().iter().all(|void| void.first.partition() == 0));
    let owned = |number| Owned { number, epoch: 9 };
    for wrong in [owned(1), owned(2), owned(9)] {
        assert!(matches!(store.add_partition(wrong, left.clone()), Err(StorageError::Option { option: "add_partition", .. })));
    }
    store.add_partition(owned(0), left.clone()).unwrap();
    assert!(store.add_partition(owned(0), left).is_err(), "it is there");
    drop(store);
    // All of a node's partitions may go.
    let store = world.process(1).store.clone();
    world.leave(1, &store, 1, None).unwrap();
    let mut chunks = Chunks::new();
    let refused = append(&mut store.writer(), &mut world.next_name, &[1], &mut chunks).unwrap_err();
    assert!(refused.to_string().contains("no container partition any more"), "{refused}");
    // In a directory nobody else takes over.
    let ground = Arc::new(onefold_ground::SimulatedGround::new(1));
    ContainerStore::create(&*ground, DIRECTORY, 1).unwrap();
    let store = common::open(ground, &Log::default(), 1, &options(), Access::ReadWrite).unwrap();
    assert!(matches!(store.leave_partition(0), Err(StorageError::Option { option: "leave_partition", .. })));
}

#[test]
fn m4_8_a_partition_stays_until_a_merge_that_has_begun_in_it_is_over() {
    for is_logged in [true, false] {
        let mut world = World::new(small(), 2);
        world.append(0, 0, &[900; 60]);
        world.flush(0, Scope::Everything);
        let store = world.process(0).store.clone();
        let victims: Vec<_> = store.containers().unwrap().iter().filter(|id| id.partition() == 0 && store.is_sealed(*id)).take(2).collect();
        let live: Vec<_> =
            world.committed.iter().filter(|(at, _)| victims.contains(&at.container())).map(|(at, (name, _))| (*at, *name)).collect();
        let merge = store.merge(&victims, &live).unwrap();
        store.leave_partition(0).unwrap();
        for _ in 0..3 {
            world.flush(0, Scope::Everything);
            store.finish_merges().unwrap();
            assert_eq!(store.remove_partition(0).unwrap(), None, "its record would come behind the end");
        }
        if is_logged {
            let (start, end) = world.nodes[0].log.append(vec![merge.record()]);
            store.merged(merge, start, end);
        } else {
            store.abandon_merge(merge);
        }
        drop(store);
        world.move_to(0, 1, None);
        world.check();
    }
}
