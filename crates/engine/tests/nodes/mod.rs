//! Several nodes of one process have a store in a bucket open: how they reach each other.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod world;

use crate::common;
pub use crate::common::bytes;
use onefold_bucket::{BucketGround, MemoryBucket};
use onefold_engine::{
    Candidate, Claim, Delivery, Descriptor, Engine, EngineError, Everybody, Hints, OtherNodes, Piece, PruneOptions, PruneReport,
    RemovalAnswer, RemovalStep, Result, Wanted, WriteStream,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, SimulatedGround};
use onefold_index::ChunkIndex;
use onefold_oplog::{Owned, Ownership, Partition, PartitionClass, Position};
use onefold_storage::ContainerId;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

pub const INDEX: u32 = 8;
pub const OBJECTS: u16 = 8;
pub const CONTAINERS: u16 = 8;

pub fn descriptor() -> Descriptor {
    Descriptor { index_partitions: INDEX, object_partitions: OBJECTS, container_partitions: CONTAINERS, ..common::descriptor() }
}

/// How the nodes of one process reach each other: by calls.
#[derive(Debug, Default)]
pub struct Wire {
    pub nodes: RwLock<BTreeMap<u32, Weak<Engine>>>,
    /// By partition.
    pub owners: RwLock<BTreeMap<Partition, u32>>,
    /// Nobody reaches anybody.
    pub is_cut: AtomicBool,
    /// Nobody hears from the coordinator.
    pub is_silent: AtomicBool,
    /// No delivery arrives.
    pub loses_deliveries: AtomicBool,
    /// Nobody hears of dead copies.
    pub loses_dead: AtomicBool,
    /// Every second delivery arrives, but its answer does not.
    pub loses_answers: AtomicBool,
    pub deliveries: AtomicU64,
    pub claims: AtomicU64,
    pub seals: AtomicU64,
    /// The number of the newest table.
    pub table: AtomicU64,
    /// Nodes whose logs are closed.
    pub gone: RwLock<BTreeSet<u32>>,
    /// Called before a step of a removal is taken to a node.
    pub before_step: Mutex<Option<BeforeStep>>,
}

/// What happens before a step of a removal is taken to a node. It returns whether the node is reached.
#[derive(Clone)]
pub struct BeforeStep(pub Arc<dyn Fn(&RemovalStep) -> bool + Send + Sync>);

impl std::fmt::Debug for BeforeStep {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("BeforeStep")
    }
}

/// All partitions of the store.
pub fn partitions() -> impl Iterator<Item = Partition> {
    let of = |class, total: u32| (0..total as u16).map(move |number| Partition { class, number });
    let indexes = of(PartitionClass::ChunkIndex, INDEX).chain(of(PartitionClass::ObjectIndex, OBJECTS.into()));
    indexes.chain(of(PartitionClass::Container, CONTAINERS.into()))
}

impl Wire {
    /// Nodes with as many partitions each.
    pub fn new(count: u32) -> Arc<Wire> {
        let wire = Wire::default();
        *wire.owners.write() = partitions().map(|partition| (partition, u32::from(partition.number) % count)).collect();
        Arc::new(wire)
    }

    /// Returns the owner of a partition of the chunk index.
    pub fn owner_of(&self, partition: u32) -> u32 {
        self.owner(PartitionClass::ChunkIndex, partition)
    }

    fn owner(&self, class: PartitionClass, number: u32) -> u32 {
        self.owners.read()[&Partition { class, number: number as u16 }]
    }

    pub fn node(&self, number: u32) -> Result<Arc<Engine>> {
        let gone = || EngineError::OtherNode { why: format!("node {number} is not there") };
        if self.is_cut.load(Ordering::SeqCst) {
            return Err(gone());
        }
        self.nodes.read().get(&number).and_then(Weak::upgrade).ok_or_else(gone)
    }

    /// Returns what a node has of a class.
    pub fn owned(&self, node: u32, class: PartitionClass, total: u32) -> Ownership {
        let owned = (0..total).filter(|number| self.owner(class, *number) == node).map(|number| Owned { number, epoch: 1 });
        Ownership::of(total, owned.collect()).unwrap()
    }
}

/// The others, as one node sees them.
#[derive(Debug)]
pub struct Others {
    pub node: u32,
    pub wire: Arc<Wire>,
}

impl Others {
    fn owner(&self, name: &Fingerprint) -> u32 {
        self.wire.owner_of(ChunkIndex::partition_of(name, INDEX))
    }
}

impl OtherNodes for Others {
    fn claim(&self, wanted: &[Wanted], out: &mut Vec<Claim>) -> Result<()> {
        let mut answers: BTreeMap<Fingerprint, Claim> = BTreeMap::new();
        let owners: BTreeSet<u32> = wanted.iter().map(|wanted| self.owner(&wanted.fingerprint)).collect();
        if owners.contains(&self.node) {
            return Err(EngineError::NotOwned { partition: 0 });
        }
        for owner in owners {
            let of_owner: Vec<Wanted> = wanted.iter().filter(|wanted| self.owner(&wanted.fingerprint) == owner).copied().collect();
            self.wire.claims.fetch_add(1, Ordering::SeqCst);
            let mut claims = Vec::new();
            self.wire.node(owner)?.claim_for(self.node, &of_owner, &mut claims)?;
            answers.extend(of_owner.iter().map(|wanted| wanted.fingerprint).zip(claims));
        }
        out.extend(wanted.iter().map(|wanted| answers[&wanted.fingerprint]));
        Ok(())
    }

    fn release(&self, names: &[Fingerprint]) {
        for name in names {
            if let Ok(owner) = self.wire.node(self.owner(name)) {
                owner.release_for(self.node, &[*name]);
            }
        }
    }

    fn wait(&self, name: &Fingerprint, until: Instant) {
        if let Ok(owner) = self.wire.node(self.owner(name)) {
            owner.wait_for_claim(name, until);
        }
    }

    fn hurry(&self, node: u32) {
        if let Ok(node) = self.wire.node(node) {
            node.hurry();
        }
    }

    fn deliver(&self, partition: u32, delivery: &Delivery) -> Result<Position> {
        if self.wire.loses_deliveries.load(Ordering::SeqCst) {
            return Err(EngineError::OtherNode { why: "the delivery is lost".to_owned() });
        }
        let upto = self.wire.node(self.wire.owner_of(partition))?.take_delivery(self.node, partition, delivery)?;
        let number = self.wire.deliveries.fetch_add(1, Ordering::SeqCst);
        if self.wire.loses_answers.load(Ordering::SeqCst) && number.is_multiple_of(2) {
            return Err(EngineError::OtherNode { why: "the answer is lost".to_owned() });
        }
        Ok(upto)
    }

    fn begin(&self) -> Result<()> {
        let owners: BTreeSet<u32> = self.wire.owners.read().values().copied().collect();
        for owner in owners.into_iter().filter(|owner| *owner != self.node) {
            // Who is not there has no claims.
            match self.wire.node(owner) {
                Ok(owner) => owner.end_claims_of(self.node),
                Err(error) if self.wire.is_cut.load(Ordering::SeqCst) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn may_answer(&self) -> bool {
        !self.wire.is_silent.load(Ordering::SeqCst)
    }

    fn seal(&self, container: ContainerId) -> Result<()> {
        self.wire.seals.fetch_add(1, Ordering::SeqCst);
        self.wire.node(self.wire.owner(PartitionClass::Container, container.partition().into()))?.seal_container(container)
    }

    fn everybody(&self) -> Result<Everybody> {
        let nodes = self.wire.nodes.read().keys().copied().filter(|node| *node != self.node).collect();
        let gone = self.wire.gone.read().iter().copied().collect();
        Ok(Everybody { table: self.wire.table.load(Ordering::SeqCst), nodes, gone })
    }

    fn remove(&self, node: u32, step: &RemovalStep) -> Result<RemovalAnswer> {
        let before = self.wire.before_step.lock().clone();
        if before.is_some_and(|BeforeStep(before)| !before(step)) {
            return Err(EngineError::OtherNode { why: format!("node {node} is not reached") });
        }
        self.wire.node(node)?.remove_for(self.node, step)
    }

    fn dead(&self, partition: u16, copies: &[Candidate]) -> Result<()> {
        if self.wire.loses_dead.load(Ordering::SeqCst) {
            return Err(EngineError::OtherNode { why: "nobody hears of dead copies".to_owned() });
        }
        self.wire.node(self.wire.owner(PartitionClass::Container, partition.into()))?.take_dead(copies)
    }

    fn reclaim(&self, node: u32, _: u64, _: PruneOptions) -> Result<Option<PruneReport>> {
        Err(EngineError::OtherNode { why: format!("node {node} frees no space here") })
    }
}

pub fn ground(bucket: &MemoryBucket, disk: &SimulatedGround) -> Arc<dyn Ground> {
    Arc::new(BucketGround::with_kept_bytes(Arc::new(disk.clone()), Arc::new(bucket.clone()), 64 << 10))
}

pub fn write(stream: &mut WriteStream, data: &[u8]) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < data.len() {
        start += stream.write(&data[start..], true, Hints::default(), &mut pieces)?;
    }
    Ok(pieces)
}

/// Data of which much is in others, too.
pub fn runs(count: u64) -> Vec<Vec<u8>> {
    let part = |seed: u64| bytes(seed, 20_000);
    (0..count).map(|run| (0..4).flat_map(|at| part(run / 3 + at * 7 % 5 + at)).collect()).collect()
}

/// Adds the counts of the chunks of an engine's partitions.
pub fn count(engine: &Engine, found: &mut BTreeMap<Fingerprint, u32>) {
    let index = engine.index().unwrap();
    for partition in index.partitions() {
        index
            .for_each(partition, &mut |name, entry| {
                assert!(entry.address != 0, "a count of a chunk that nobody stores");
                assert!(found.insert(*name, entry.count).is_none(), "two owners have a chunk");
                Ok(())
            })
            .unwrap();
    }
}
