//! Partitions move between nodes that have a store in a bucket open: by plan, and because nodes are lost
//! (`docs/cluster.md`). What was acknowledged is readable at the owner of its object, and counts are the references.

mod common;
mod nodes;

use nodes::*;
use onefold_bucket::MemoryBucket;
use onefold_engine::{Adoption, Engine, Group, HeldPartition, LogPart, Mode, Piece, Reference, Settings, Share, Transaction};
use onefold_fingerprint::Fingerprint;
use onefold_ground::SimulatedGround;
use onefold_oplog::{Partition, PartitionClass, Position};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A partition as the table has it.
#[derive(Clone, Debug)]
struct Assigned {
    epoch: u64,
    lineage: Vec<LogPart>,
}

impl Assigned {
    fn owner(&self) -> u32 {
        self.lineage.last().unwrap().node
    }
}

struct Node {
    disk: SimulatedGround,
    engine: Arc<Engine>,
}

/// A run of data that was written, and where it is.
struct Run {
    partition: u16,
    pieces: Vec<Piece>,
    data: Vec<u8>,
}

/// Numbers that are the same for the same seed.
struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    fn number(&mut self) -> u64 {
        self.drawn += 1;
        u64::from_le_bytes(bytes(self.seed << 20 | self.drawn, 8).try_into().unwrap())
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }
}

struct World {
    bucket: MemoryBucket,
    wire: Arc<Wire>,
    table: BTreeMap<Partition, Assigned>,
    nodes: BTreeMap<u32, Node>,
    next_node: u32,
    epoch: u64,
    runs: BTreeMap<u64, Run>,
    random: Random,
}

impl World {
    fn new(seed: u64) -> World {
        let bucket = MemoryBucket::new();
        let disk = SimulatedGround::new(seed);
        Engine::create(&ground(&bucket, &disk), &descriptor()).unwrap();
        let all = LogPart { node: 0, since: Position(0), upto: None };
        let mut world = World {
            bucket,
            wire: Wire::new(1),
            table: partitions().map(|partition| (partition, Assigned { epoch: 1, lineage: vec![all] })).collect(),
            nodes: BTreeMap::new(),
            next_node: 1,
            epoch: 1,
            runs: BTreeMap::new(),
            random: Random { seed, drawn: 0 },
        };
        world.open(0, disk);
        world
    }

    fn engine(&self, node: u32) -> Arc<Engine> {
        self.nodes[&node].engine.clone()
    }

    fn owned_by(&self, node: u32) -> Vec<Partition> {
        self.table.iter().filter(|(_, assigned)| assigned.owner() == node).map(|(partition, _)| *partition).collect()
    }

    /// Opens the log of a node, and takes over what it has by the table.
    fn open(&mut self, number: u32, disk: SimulatedGround) {
        let others = Arc::new(Others { node: number, wire: self.wire.clone() });
        let settings = Settings {
            workers: 1,
            background: false,
            commit_interval_ms: 60_000,
            log_segment_bytes: 8 << 10, // trimmed often
            share: Some(Share::of_nothing(number, &descriptor(), others)),
            ..Settings::default()
        };
        let engine = Engine::open(ground(&self.bucket, &disk), settings, Mode::ReadWrite, "test").unwrap();
        self.wire.nodes.write().insert(number, Arc::downgrade(&engine));
        self.nodes.insert(number, Node { disk, engine });
        self.adopt(number, &self.owned_by(number), &[]);
    }

    /// Makes a node the owner of partitions that the table gives to it.
    fn adopt(&mut self, node: u32, these: &[Partition], lost: &[u32]) {
        let engine = self.engine(node);
        engine.allow_trim(false);
        self.hold(node);
        let adoption = |partition: &Partition| {
            let Assigned { epoch, lineage } = self.table[partition].clone();
            Adoption { partition: *partition, epoch, lineage }
        };
        let adoptions: Vec<Adoption> = these.iter().map(adoption).collect();
        engine.adopt(&adoptions).unwrap();
        for partition in these.iter().filter(|partition| partition.class == PartitionClass::ChunkIndex) {
            let number = u32::from(partition.number);
            lost.iter().for_each(|lost| engine.take_rest_of(*lost).unwrap());
            for (other, Node { engine: of_other, .. }) in self.nodes.iter().filter(|(other, _)| **other != node) {
                engine.collected(*other, number, &of_other.claims_of(number)).unwrap();
            }
            engine.serve_chunks(number);
        }
        for partition in these.iter().filter(|partition| partition.class == PartitionClass::Container) {
            // It needs no restating.
            let assigned = self.table.get_mut(partition).unwrap();
            assigned.lineage.drain(..assigned.lineage.len() - 1);
        }
        for node in self.nodes.keys() {
            self.hold(*node);
        }
    }

    /// Says to a node what counts of its log, and whether it may be trimmed.
    fn hold(&self, node: u32) {
        let held = self.table.iter().filter_map(|(partition, assigned)| {
            let at = assigned.lineage.iter().position(|part| part.node == node)?;
            let LogPart { since, upto, .. } = assigned.lineage[at];
            Some(HeldPartition { partition: *partition, since, upto, is_first: at == 0 })
        });
        let engine = self.engine(node);
        engine.hold_in_log(&held.collect::<Vec<_>>()).unwrap();
        let is_twice = |assigned: &Assigned| assigned.lineage.iter().filter(|part| part.node == node).count() > 1;
        engine.allow_trim(!self.table.values().any(is_twice));
    }

    /// Puts a table with new owners of partitions whose former owners have logged nothing behind `upto`.
    fn give(&mut self, these: &[Partition], to: u32, upto: Position) {
        self.epoch += 1;
        let since = self.engine(to).jump_and_cut(upto).unwrap();
        for partition in these {
            let assigned = self.table.get_mut(partition).unwrap();
            assigned.epoch = self.epoch;
            assigned.lineage.last_mut().unwrap().upto = Some(upto);
            assigned.lineage.push(LogPart { node: to, since, upto: None });
            self.wire.owners.write().insert(*partition, to);
        }
        self.hold(to);
        self.engine(to).uncut(since);
    }

    fn move_to(&mut self, partition: Partition, to: u32) {
        let from = self.table[&partition].owner();
        if from == to {
            return;
        }
        let upto = self.engine(from).release_partition(partition).unwrap();
        self.give(&[partition], to, upto);
        self.adopt(to, &[partition], &[]);
    }

    fn join(&mut self) -> u32 {
        let number = self.next_node;
        self.next_node += 1;
        let disk = SimulatedGround::new(self.random.number());
        self.open(number, disk);
        number
    }

    /// A node dies, and its log is closed. Others get what it had.
    fn lose(&mut self, node: u32) {
        self.wire.nodes.write().remove(&node);
        let Node { disk, engine } = self.nodes.remove(&node).unwrap();
        drop(engine);
        let end = Engine::close_log_of(&ground(&self.bucket, &disk), node).unwrap();
        let had = self.owned_by(node);
        let mut gets: BTreeMap<u32, Vec<Partition>> = BTreeMap::new();
        for partition in had {
            gets.entry(self.any_node()).or_default().push(partition);
        }
        for (to, these) in &gets {
            self.give(these, *to, end);
        }
        for (to, these) in &gets {
            self.adopt(*to, these, &[node]);
        }
        for Node { engine, .. } in self.nodes.values() {
            engine.take_rest_of(node).unwrap();
        }
    }

    /// A node dies, and opens its log again.
    fn restart(&mut self, node: u32) {
        self.wire.nodes.write().remove(&node);
        let Node { mut disk, engine } = self.nodes.remove(&node).unwrap();
        drop(engine);
        if self.random.below(3) == 0 {
            disk = SimulatedGround::new(self.random.number());
        }
        self.open(node, disk);
    }

    /// Makes the lineage of a partition short. Runs are written meanwhile.
    fn restate(&mut self, partition: Partition, keys: &mut u64) {
        let node = self.table[&partition].owner();
        let engine = self.engine(node);
        let since = engine.begin_restating(partition).unwrap();
        for _ in 0..self.random.below(3) {
            let data = self.data();
            self.write(*keys, data);
            *keys += 1;
        }
        assert!(engine.restate(partition, since, &|| true).unwrap());
        self.table.get_mut(&partition).unwrap().lineage = vec![LogPart { node, since, upto: None }];
        self.nodes.keys().for_each(|node| self.hold(*node));
        engine.uncut(since);
    }

    fn any_node(&mut self) -> u32 {
        let at = self.random.below(self.nodes.len() as u64) as usize;
        *self.nodes.keys().nth(at).unwrap()
    }

    /// Writes a run at the owner of its object. Durable on return.
    fn write(&mut self, key: u64, data: Vec<u8>) {
        let partition = (key % u64::from(OBJECTS)) as u16;
        let node = self.table[&Partition { class: PartitionClass::ObjectIndex, number: partition }].owner();
        let engine = self.engine(node);
        let pieces = write(&mut engine.stream(), &data).unwrap();
        let references = Reference::of(&pieces, Group::new(b'x', 0), 1).collect();
        let change = (partition, key.to_be_bytes().to_vec(), Some(vec![1]));
        engine.submit(Transaction { changes: vec![change], references }).unwrap();
        engine.flush().unwrap();
        self.runs.insert(key, Run { partition, pieces, data });
    }

    /// Checks that each run is as it was written, read at the owner of its object.
    fn check(&self) {
        for (key, Run { partition, pieces, data }) in &self.runs {
            let node = self.table[&Partition { class: PartitionClass::ObjectIndex, number: *partition }].owner();
            let engine = self.engine(node);
            let mut out = vec![0; data.len()];
            engine.read(pieces, 0, &mut out, true).unwrap_or_else(|error| panic!("node {node}, run {key}: {error}"));
            assert!(out == *data, "node {node}, run {key}");
            assert_eq!(engine.get(*partition, &key.to_be_bytes()).unwrap(), Some(vec![1]), "node {node}, run {key}");
        }
    }

    /// Returns the counts of all chunks, as their owners have them.
    fn counts(&self) -> BTreeMap<Fingerprint, u32> {
        for Node { engine, .. } in self.nodes.values() {
            engine.deliver().unwrap();
        }
        let mut found = BTreeMap::new();
        for (number, Node { engine, .. }) in &self.nodes {
            let index = engine.index().unwrap();
            for partition in index.partitions() {
                assert_eq!(self.wire.owner_of(partition), *number);
                index
                    .for_each(partition, &mut |name, entry| {
                        assert!(entry.address != 0, "a count of a chunk that nobody stores");
                        assert!(found.insert(*name, entry.count).is_none(), "two owners have a chunk");
                        Ok(())
                    })
                    .unwrap();
            }
        }
        found
    }

    fn expected(&self) -> BTreeMap<Fingerprint, u32> {
        let mut expected = BTreeMap::new();
        for run in self.runs.values() {
            for reference in Reference::of(&run.pieces, Group::new(b'x', 0), 1) {
                *expected.entry(reference.fingerprint).or_default() += reference.change as u32;
            }
        }
        expected
    }

    fn stored_chunks(&self) -> u64 {
        self.nodes.values().map(|node| node.engine.chunks()).sum()
    }

    fn has_of(&self, node: u32, class: PartitionClass) -> usize {
        self.owned_by(node).iter().filter(|own| own.class == class).count()
    }

    /// Gives each node a partition of containers: without one it cannot store anything.
    fn give_containers(&mut self) {
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            if self.has_of(node, PartitionClass::Container) == 0 {
                let is_spare = |(partition, assigned): &(&Partition, &Assigned)| {
                    partition.class == PartitionClass::Container && self.has_of(assigned.owner(), PartitionClass::Container) > 1
                };
                let spare = self.table.iter().find(is_spare).map(|(partition, _)| *partition);
                self.move_to(spare.unwrap(), node);
            }
        }
    }

    /// Moves any partition to any node.
    fn move_one(&mut self) {
        let all: Vec<Partition> = self.table.keys().copied().collect();
        let partition = all[self.random.below(all.len() as u64) as usize];
        let to = self.any_node();
        self.move_to(partition, to);
        self.give_containers();
    }

    fn data(&mut self) -> Vec<u8> {
        let parts: Vec<u64> = (0..4).map(|_| self.random.below(12)).collect();
        parts.into_iter().flat_map(|part| bytes(part, 9_000)).collect()
    }
}

#[test]
fn m4_2_partitions_that_move_by_plan_keep_what_they_have_and_chunks_are_stored_once() {
    let mut world = World::new(1);
    for _ in 0..2 {
        world.join();
    }
    world.give_containers();
    for key in 0..30 {
        let data = world.data();
        world.write(key, data);
        (0..3).for_each(|_| world.move_one());
        if key % 5 == 4 {
            world.nodes.values().for_each(|node| node.engine.maintain(true).unwrap());
            world.check();
        }
    }
    world.check();
    assert_eq!(world.counts(), world.expected());
    assert_eq!(world.stored_chunks(), world.expected().len() as u64);
    assert!(world.table.values().map(Assigned::owner).collect::<std::collections::BTreeSet<_>>().len() == 3);
}

#[test]
fn m4_8_nodes_are_lost_and_open_again_and_everything_acknowledged_is_there() {
    let seeds = match std::env::var("ONEFOLD_CRASH_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..12).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        eprintln!("seed {seed}");
        let mut world = World::new(seed + 100);
        for _ in 0..2 {
            world.join();
        }
        // Everything is spread first.
        for (at, partition) in partitions().enumerate() {
            world.move_to(partition, (at % 3) as u32);
        }
        let mut key = 0;
        while key < 30 {
            let data = world.data();
            world.write(key, data);
            key += 1;
            match world.random.below(14) {
                0 if world.nodes.len() > 1 => {
                    let node = world.any_node();
                    world.lose(node);
                }
                1 | 2 => {
                    let node = world.any_node();
                    world.restart(node);
                }
                3 if world.nodes.len() < 4 => {
                    world.join();
                }
                4 => world.nodes.values().for_each(|node| node.engine.maintain(true).unwrap()),
                5 => world.nodes.values().for_each(|node| node.engine.deliver().unwrap()),
                6 | 7 => {
                    let long: Vec<Partition> =
                        world.table.iter().filter(|(_, assigned)| assigned.lineage.len() > 1).map(|(partition, _)| *partition).collect();
                    long.into_iter().take(4).for_each(|partition| world.restate(partition, &mut key));
                }
                _ => world.move_one(),
            }
            world.give_containers();
            world.check();
        }
        assert_eq!(world.counts(), world.expected(), "seed {seed}");
    }
}
