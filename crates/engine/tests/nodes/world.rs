//! A cluster of one process whose partitions move, whose nodes are lost, and whose chunks are removed, in an order that
//! a seed decides.

#![allow(dead_code, reason = "each test uses a part of it")]

use super::{OBJECTS, Others, Wire, bytes, count, descriptor, ground, partitions, write};
use onefold_bucket::MemoryBucket;
use onefold_engine::{
    Address, Adoption, ContainerId, Cursor, Engine, Group, HeldPartition, LogPart, MetadataKind, Mode, Moment, Piece, Reference, Roots,
    Settings, Share, Transaction, Tree,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::SimulatedGround;
use onefold_oplog::{Partition, PartitionClass, Position};
use onefold_storage::ChunkKind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A partition as the table has it.
#[derive(Clone, Debug)]
pub struct Assigned {
    pub epoch: u64,
    pub lineage: Vec<LogPart>,
}

impl Assigned {
    pub fn owner(&self) -> u32 {
        self.lineage.last().unwrap().node
    }
}

pub struct Node {
    pub disk: SimulatedGround,
    pub engine: Arc<Engine>,
}

/// A run of data that was written, and where it is.
#[derive(Clone)]
pub struct Run {
    pub pieces: Vec<Piece>,
    /// The metadata chunk that refers to the pieces. Without one, the object does.
    pub recipe: Option<Piece>,
    pub data: Vec<u8>,
}

/// Returns the partition of the object of a run.
pub fn partition_of(key: u64) -> u16 {
    (key % u64::from(OBJECTS)) as u16
}

impl Run {
    /// What its object refers to.
    fn references(&self, change: i64) -> Vec<Reference> {
        let pieces = self.recipe.as_slice();
        Reference::of(if pieces.is_empty() { &self.pieces } else { pieces }, Group::new(b'x', 0), change).collect()
    }
}

/// Writes a run at the owner of its object. Durable on return. Every second one has a metadata chunk.
pub fn write_run(engine: &Arc<Engine>, key: u64, data: Vec<u8>) -> Run {
    begin_run(engine, key, data)()
}

/// Does the first part of that, in which the chunks are stored. The rest follows by a call of the result.
pub fn begin_run(engine: &Arc<Engine>, key: u64, data: Vec<u8>) -> impl FnOnce() -> Run + Send + use<> {
    let mut stream = engine.stream();
    let pieces = write(&mut stream, &data).unwrap();
    let names: Vec<Fingerprint> = pieces.iter().filter_map(Piece::fingerprint).collect();
    let digest_bytes = engine.digest_bytes();
    let content: Vec<u8> = names.iter().flat_map(|name| name.digest(digest_bytes)).copied().collect();
    let recipe = key.is_multiple_of(2).then(|| stream.write_metadata(MetadataKind::Recipe, &content, &names).unwrap());
    let run = Run { pieces, recipe, data };
    let change = (partition_of(key), key.to_be_bytes().to_vec(), Some(vec![1]));
    let engine = engine.clone();
    move || {
        engine.submit(Transaction { changes: vec![change], references: run.references(1) }).unwrap();
        drop(stream);
        engine.flush().unwrap();
        run
    }
}

/// Deletes a run at the owner of its object. Durable on return.
pub fn delete_run(engine: &Arc<Engine>, key: u64, run: &Run) {
    let change = (partition_of(key), key.to_be_bytes().to_vec(), None);
    engine.submit(Transaction { changes: vec![change], references: run.references(-1) }).unwrap();
    engine.flush().unwrap();
}

/// Returns what a recipe of [`write_run`] refers to.
fn references_of(digest_bytes: usize, kind: ChunkKind, content: &[u8]) -> Result<Vec<Piece>, String> {
    assert_ne!(kind, ChunkKind::Data);
    let piece = |digest: &[u8]| Piece::Chunk {
        fingerprint: Fingerprint::from_digest(digest),
        address: Address::from_bits(0),
        offset: 0,
        length: 0,
    };
    Ok(content.chunks_exact(digest_bytes).map(piece).collect())
}

/// Removes what is unneeded in the partitions of a node. Returns how many chunks, and whether nothing was left because
/// others were busy.
pub fn remove_at(engine: &Arc<Engine>) -> onefold_engine::Result<(u64, bool)> {
    remove_while(engine, &|| false)
}

/// Does the same, and waits for others while `go_on`.
pub fn remove_while(engine: &Arc<Engine>, go_on: &dyn Fn() -> bool) -> onefold_engine::Result<(u64, bool)> {
    let digest_bytes = engine.digest_bytes();
    engine.flush()?;
    let mut damaged = Vec::new();
    let survey = engine.survey(&mut NoRoots, &|| true, &mut damaged)?;
    assert_eq!((survey.held, &damaged), (None, &Vec::new()));
    let (mut chunks, mut cursor) = (0, Some(Cursor::default()));
    while let Some(from) = cursor {
        let (mut candidates, next) = engine.candidates(from, 1000, &mut damaged)?;
        cursor = next;
        while !candidates.is_empty() {
            let removed = engine.remove_unused(&candidates, &|kind, content| references_of(digest_bytes, kind, content), go_on)?;
            assert_eq!((&removed.damaged, &removed.held, &removed.kept_for), (&Vec::new(), &None, &None));
            if removed.was_busy {
                return Ok((chunks, false));
            }
            chunks += removed.chunks;
            candidates = removed.released;
        }
    }
    Ok((chunks, true))
}

/// Merges all containers of a node in which something is dead.
pub fn merge_at(engine: &Arc<Engine>) -> onefold_engine::Result<()> {
    let mut victims: BTreeMap<u16, Vec<ContainerId>> = BTreeMap::new();
    engine.for_each_dead(&mut |container, _| {
        let containers = engine.containers().unwrap();
        if containers.is_sealed(container) {
            victims.entry(container.partition()).or_default().push(container);
        }
    })?;
    for these in victims.values() {
        engine.merge_containers(these, &|address| address.bits())?;
    }
    Ok(())
}

/// Counts say what is needed.
struct NoRoots;

impl Roots for NoRoots {
    fn groups(&mut self, _: &Moment<'_>, _: &mut dyn FnMut(Group)) -> Result<(), String> {
        Ok(())
    }

    fn of(&self, _: &Moment<'_>, _: Group, _: &mut dyn FnMut(Tree<'_>)) -> Result<(), String> {
        Ok(())
    }

    fn directory(&self, _: &[u8], _: &mut dyn FnMut(Tree<'_>)) -> Result<(), String> {
        Ok(())
    }
}

/// Numbers that are the same for the same seed.
pub struct Random {
    pub seed: u64,
    pub drawn: u64,
}

impl Random {
    pub fn number(&mut self) -> u64 {
        self.drawn += 1;
        u64::from_le_bytes(bytes(self.seed << 20 | self.drawn, 8).try_into().unwrap())
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }
}

pub struct World {
    pub bucket: MemoryBucket,
    pub wire: Arc<Wire>,
    pub table: BTreeMap<Partition, Assigned>,
    pub nodes: BTreeMap<u32, Node>,
    pub next_node: u32,
    pub epoch: u64,
    pub runs: BTreeMap<u64, Run>,
    pub random: Random,
    /// Whether others take what a lost node has not delivered.
    pub takes_rests: bool,
}

impl World {
    pub fn new(seed: u64) -> World {
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
            takes_rests: true,
        };
        world.open(0, disk);
        world
    }

    pub fn engine(&self, node: u32) -> Arc<Engine> {
        self.nodes[&node].engine.clone()
    }

    pub fn owned_by(&self, node: u32) -> Vec<Partition> {
        self.table.iter().filter(|(_, assigned)| assigned.owner() == node).map(|(partition, _)| *partition).collect()
    }

    /// Opens the log of a node, and takes over what it has by the table.
    pub fn open(&mut self, number: u32, disk: SimulatedGround) {
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
    pub fn adopt(&mut self, node: u32, these: &[Partition], lost: &[u32]) {
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
            lost.iter().filter(|_| self.takes_rests).for_each(|lost| engine.take_rest_of(*lost).unwrap());
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
    pub fn hold(&self, node: u32) {
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
    pub fn give(&mut self, these: &[Partition], to: u32, upto: Position) {
        self.epoch += 1;
        let since = self.engine(to).jump_and_cut(upto).unwrap();
        for partition in these {
            let assigned = self.table.get_mut(partition).unwrap();
            assigned.epoch = self.epoch;
            assigned.lineage.last_mut().unwrap().upto = Some(upto);
            assigned.lineage.push(LogPart { node: to, since, upto: None });
            self.wire.owners.write().insert(*partition, to);
        }
        self.wire.table.store(self.epoch, Ordering::SeqCst);
        self.hold(to);
        self.engine(to).uncut(since);
    }

    pub fn move_to(&mut self, partition: Partition, to: u32) {
        let from = self.table[&partition].owner();
        if from == to {
            return;
        }
        let upto = self.engine(from).release_partition(partition).unwrap();
        self.give(&[partition], to, upto);
        self.adopt(to, &[partition], &[]);
    }

    pub fn join(&mut self) -> u32 {
        let number = self.next_node;
        self.next_node += 1;
        let disk = SimulatedGround::new(self.random.number());
        self.open(number, disk);
        number
    }

    /// A node dies, and its log is closed. Others get what it had.
    pub fn lose(&mut self, node: u32) {
        self.wire.nodes.write().remove(&node);
        let Node { disk, engine } = self.nodes.remove(&node).unwrap();
        drop(engine);
        let end = Engine::close_log_of(&ground(&self.bucket, &disk), node).unwrap();
        self.wire.gone.write().insert(node);
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
        for Node { engine, .. } in self.nodes.values().filter(|_| self.takes_rests) {
            engine.take_rest_of(node).unwrap();
        }
    }

    /// A node dies, and opens its log again.
    pub fn restart(&mut self, node: u32) {
        self.wire.nodes.write().remove(&node);
        let Node { mut disk, engine } = self.nodes.remove(&node).unwrap();
        drop(engine);
        if self.random.below(3) == 0 {
            disk = SimulatedGround::new(self.random.number());
        }
        self.open(node, disk);
    }

    /// Makes the lineage of a partition short. Runs are written meanwhile.
    pub fn restate(&mut self, partition: Partition, keys: &mut u64) {
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

    pub fn any_node(&mut self) -> u32 {
        let at = self.random.below(self.nodes.len() as u64) as usize;
        *self.nodes.keys().nth(at).unwrap()
    }

    /// Returns the owner of a run's object.
    pub fn home_of(&self, key: u64) -> u32 {
        self.table[&Partition { class: PartitionClass::ObjectIndex, number: partition_of(key) }].owner()
    }

    /// Writes a run at the owner of its object. Durable on return.
    pub fn write(&mut self, key: u64, data: Vec<u8>) {
        let run = write_run(&self.engine(self.home_of(key)), key, data);
        self.runs.insert(key, run);
    }

    /// Deletes a run. Durable on return.
    pub fn delete(&mut self, key: u64) {
        let run = self.runs.remove(&key).unwrap();
        delete_run(&self.engine(self.home_of(key)), key, &run);
    }

    /// Checks that each run is as it was written, read at the owner of its object.
    pub fn check(&self) {
        for (key, Run { pieces, data, .. }) in &self.runs {
            let node = self.home_of(*key);
            let engine = self.engine(node);
            let mut out = vec![0; data.len()];
            engine.read(pieces, 0, &mut out, true).unwrap_or_else(|error| panic!("node {node}, run {key}: {error}"));
            assert!(out == *data, "node {node}, run {key}");
            assert_eq!(engine.get(partition_of(*key), &key.to_be_bytes()).unwrap(), Some(vec![1]), "node {node}, run {key}");
        }
    }

    /// Returns the counts of all chunks, as their owners have them.
    pub fn counts(&self) -> BTreeMap<Fingerprint, u32> {
        for Node { engine, .. } in self.nodes.values() {
            engine.deliver().unwrap();
        }
        let mut found = BTreeMap::new();
        for (number, Node { engine, .. }) in &self.nodes {
            engine.index().unwrap().partitions().into_iter().for_each(|partition| assert_eq!(self.wire.owner_of(partition), *number));
            count(engine, &mut found);
        }
        found
    }

    /// Returns the counts that follow from the runs, if everything else was removed.
    pub fn expected(&self) -> BTreeMap<Fingerprint, u32> {
        let mut expected = BTreeMap::new();
        let mut recipes = BTreeSet::new();
        for run in self.runs.values() {
            if let Some(Piece::Chunk { fingerprint, .. }) = run.recipe {
                *expected.entry(fingerprint).or_default() += 1;
                // A metadata chunk that is stored once has its references once.
                if !recipes.insert(fingerprint) {
                    continue;
                }
            }
            for fingerprint in run.pieces.iter().filter_map(Piece::fingerprint) {
                *expected.entry(fingerprint).or_default() += 1;
            }
        }
        expected
    }

    pub fn stored_chunks(&self) -> u64 {
        self.nodes.values().map(|node| node.engine.chunks()).sum()
    }

    pub fn has_of(&self, node: u32, class: PartitionClass) -> usize {
        self.owned_by(node).iter().filter(|own| own.class == class).count()
    }

    /// Gives each node a partition of containers: without one it cannot store anything.
    pub fn give_containers(&mut self) {
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
    pub fn move_one(&mut self) {
        let all: Vec<Partition> = self.table.keys().copied().collect();
        let partition = all[self.random.below(all.len() as u64) as usize];
        let to = self.any_node();
        self.move_to(partition, to);
        self.give_containers();
    }

    pub fn data(&mut self) -> Vec<u8> {
        let parts: Vec<u64> = (0..4).map(|_| self.random.below(12)).collect();
        parts.into_iter().flat_map(|part| bytes(part, 9_000)).collect()
    }
}
