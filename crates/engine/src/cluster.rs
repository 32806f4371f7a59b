//! A store that several nodes have open: each owns some partitions, and reaches those of the others by messages
//! (`docs/cluster.md`; "Design of an Exact Data Deduplication Cluster", 2012).
//!
//! * [`Share`]: what this opening owns.
//! * [`OtherNodes`]: how it reaches what it does not own.
//! * `rights.rs`: what it has of the chunk index now.
//! * `owner.rs`: what it answers to others.
//! * `outbox.rs`: what it has logged for others and not delivered yet.
//! * `adopting.rs`, `containers.rs`, `releasing.rs`: partitions come and go. `notes.rs`: what goes with them.
//!   `other_logs.rs`: reading the logs of other nodes. `restating.rs`: one log says everything again.
//! * `collecting.rs`: claims that another owner gave, and what lost nodes have left.
//! * `removing.rs`: how nodes take part in the removal of chunks. `reclaiming.rs`: all of them free space.
//!
//! # Why every duplicate is found
//! 1. A node that stores a chunk has claimed it at the owner of its index partition. The owner gives a claim to one
//!    node at a time.
//! 2. A claim ends when the chunk is in the owner's index. Until then nobody else gets it.
//!
//! An owner that comes, or opens again, asks all nodes for the claims that they hold ([`Engine::claims_of`]) before it
//! gives one itself ([`Engine::serve_chunks`]).
//!
//! # Why nobody refers to a chunk that gets lost
//! A node refers only to chunks that are its own, or that the owner of their index partition has in its index. They are
//! there when the batch of the node that stores them is durable. So no commit waits for another node.
//!
//! # Why nobody waits in a circle
//! A stream waits for another node only while it holds no claim, as it does for another stream. What it waits for is a
//! commit, or a stream of the other node. A commit waits for nobody. A delivery makes the owner commit; no lock is held
//! meanwhile.

mod adopting;
mod collecting;
mod containers;
mod notes;
mod other_logs;
mod outbox;
mod owner;
mod reclaiming;
mod releasing;
mod removing;
mod restating;
mod rights;

pub use adopting::Adoption;
pub use other_logs::{HeldPartition, LogPart};
pub(crate) use outbox::Outbox;
pub use owner::Delivery;
pub(crate) use owner::{Guests, HURRIES};
pub use reclaiming::{PruneOptions, PruneReport, PruneRequests};
pub(crate) use removing::{DeadElsewhere, Elsewhere, Ended, Removing};
pub use removing::{Everybody, RemovalAnswer, RemovalStep};
pub(crate) use restating::Touched;
pub(crate) use rights::{Cluster, LOOKED_AT_EVERY, MOVES_WITHIN};

use crate::lifecycle::descriptor::Descriptor;
use crate::lifecycle::settings::Settings;
use crate::lifecycle::state;
use crate::write::claims::{Claim, Wanted};
use crate::{Candidate, Engine, EngineError, Mode, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Bucket, BucketPart};
use onefold_index::ChunkIndex;
use onefold_oplog::{LogError, ObjectLog, Ownership, PartitionClass, Position};
use onefold_storage::{Address, ContainerId};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

/// What an opening owns of a store in a bucket at its beginning. [`Engine::adopt`] and [`Engine::release_partition`]
/// change it.
#[derive(Clone, Debug)]
pub struct Share {
    /// The number of this node. Each node has a log of its own.
    pub node: u32,
    /// Its partitions of the chunk index.
    pub chunk_index: Ownership,
    /// Its partitions of objects.
    pub objects: Ownership,
    /// Its partitions of containers.
    pub containers: Ownership,
    /// The others.
    pub others: Arc<dyn OtherNodes>,
}

impl PartialEq for Share {
    fn eq(&self, other: &Share) -> bool {
        let owned = (self.node, &self.chunk_index, &self.objects, &self.containers);
        owned == (other.node, &other.chunk_index, &other.objects, &other.containers) && Arc::ptr_eq(&self.others, &other.others)
    }
}

impl Eq for Share {}

impl Share {
    /// Returns the share of an opening that has adopted nothing yet.
    pub fn of_nothing(node: u32, descriptor: &Descriptor, others: Arc<dyn OtherNodes>) -> Share {
        let none_of = |total| Ownership::of(total, Vec::new()).expect("nothing ascends");
        Share {
            node,
            chunk_index: none_of(descriptor.index_partitions),
            objects: none_of(descriptor.object_partitions.into()),
            containers: none_of(descriptor.container_partitions.into()),
            others,
        }
    }

    /// Returns whether it owns nothing.
    pub(crate) fn is_of_nothing(&self) -> bool {
        [&self.chunk_index, &self.objects, &self.containers].iter().all(|owned| owned.owned().is_empty())
    }

    /// Checks that the store can be shared, and makes this node's log if there is none.
    pub(crate) fn check(&self, bucket: Option<&Arc<dyn Bucket>>, mode: Mode, settings: &Settings) -> Result<()> {
        let refused = |why: &str| Err(EngineError::Invalid { what: "share of a store".into(), why: why.into() });
        let Some(bucket) = bucket else { return refused("several nodes can have a store open only if it is in a bucket") };
        let descriptor = state::read_store(&**bucket)?;
        check_store(&descriptor)?;
        if mode != Mode::ReadWrite {
            return refused("a node opens a store for writing");
        }
        if settings.chain.iter().any(|name| name == "bloom") {
            return refused("`bloom` knows only chunks of this node's partitions; leave it out of the filter chain");
        }
        if settings.chain.iter().any(|name| name == "byte-compare") {
            return refused(
                "`byte-compare` reads containers that other nodes have not put into the bucket yet; leave it out of the filter chain",
            );
        }
        let totals = [
            (&self.chunk_index, descriptor.index_partitions),
            (&self.objects, descriptor.object_partitions.into()),
            (&self.containers, descriptor.container_partitions.into()),
        ];
        if totals.iter().any(|(owned, total)| owned.total() != *total) {
            return refused("the store has another number of partitions");
        }
        if self.node > 0 {
            match ObjectLog::create(&*self.own_part(bucket.clone()), descriptor.store) {
                Ok(()) | Err(LogError::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the part of the bucket that only this node writes to: its log is there.
    pub(crate) fn own_part(&self, bucket: Arc<dyn Bucket>) -> Arc<dyn Bucket> {
        part_of_node(bucket, self.node)
    }

    /// Returns what it owns of a class.
    pub(crate) fn of_class(&self, class: PartitionClass) -> &Ownership {
        match class {
            PartitionClass::ChunkIndex => &self.chunk_index,
            PartitionClass::ObjectIndex => &self.objects,
            PartitionClass::Container => &self.containers,
        }
    }
}

/// Returns the container that an address names.
pub(crate) fn container_of(address: Address) -> ContainerId {
    ContainerId::from_bits(address.origin().bits())
}

/// Checks that several nodes can have a store open.
pub(crate) fn check_store(descriptor: &Descriptor) -> Result<()> {
    let why = if !descriptor.profile.counts() || !descriptor.profile.is_exact() {
        "several nodes can have a store open only if its profile is `exact`"
    } else if !descriptor.has_own_partition {
        "it was made by an earlier version; copy it into a new store with `onefold copy`"
    } else {
        return Ok(());
    };
    Err(EngineError::Invalid { what: "share of a store".into(), why: why.into() })
}

/// Returns the part of a bucket that only one node writes to.
pub(crate) fn part_of_node(bucket: Arc<dyn Bucket>, node: u32) -> Arc<dyn Bucket> {
    match node {
        0 => bucket,
        node => Arc::new(BucketPart::new(bucket, format!("nodes/{node}/"))),
    }
}

/// The other nodes, as an engine needs them. Each call may take as long as a message, and the other node's work, takes.
/// Nobody who answers a call needs a lock that is held meanwhile.
pub trait OtherNodes: Debug + Send + Sync {
    /// Claims chunks at the owners of their partitions (M4.4, M4.5): one message for each owner. Appends an answer for
    /// each: [`Claim::Known`], [`Claim::Mine`] or [`Claim::Theirs`]. A chunk that this node has claimed already is
    /// [`Claim::Mine`] again. Errors: some may be claimed. The caller [gives them back](OtherNodes::release). This node
    /// has one of the partitions by now, or takes it over: [`EngineError::NotOwned`], at once.
    fn claim(&self, wanted: &[Wanted], out: &mut Vec<Claim>) -> Result<()>;

    /// Gives claims back. It may fail: the owner then gives them to others when it hears of it.
    fn release(&self, names: &[Fingerprint]);

    /// Waits until a chunk that was [`Claim::Theirs`] may have another answer, or until `until`:
    /// [`Engine::wait_for_claim`] at its owner.
    fn wait(&self, name: &Fingerprint, until: Instant);

    /// Tells a node that somebody waits for what it stores: [`Engine::hurry`] there. May fail.
    fn hurry(&self, node: u32);

    /// Delivers to the owner of a partition what this node has logged for it. Returns up to which position of this
    /// node's log the owner has everything, durably. Errors: as far as known, it has nothing of it.
    fn deliver(&self, partition: u32, delivery: &Delivery) -> Result<Position>;

    /// Tells all owners that this node has just opened its log and holds no claims: [`Engine::end_claims_of`] there.
    /// Errors: some were not told.
    fn begin(&self) -> Result<()>;

    /// Returns whether this node may answer reads now: it has heard from the coordinator lately. If not, another node
    /// may have what it had. Must return at once.
    fn may_answer(&self) -> bool;

    /// Has the owner of a container's partition put the container into the bucket.
    fn seal(&self, container: ContainerId) -> Result<()>;

    /// Returns who has the store open: by the newest table, which is looked for in the bucket now.
    fn everybody(&self) -> Result<Everybody>;

    /// Has a node take part in a removal of this one: [`Engine::remove_for`] there.
    fn remove(&self, node: u32, step: &RemovalStep) -> Result<RemovalAnswer>;

    /// Tells the owner of a partition of containers that chunks in them were removed: [`Engine::take_dead`] there.
    fn dead(&self, partition: u16, copies: &[Candidate]) -> Result<()>;

    /// Has a node free space. `None`: it is at work; ask with the same number of the request again.
    fn reclaim(&self, node: u32, request: u64, options: PruneOptions) -> Result<Option<PruneReport>>;
}

impl Engine {
    /// Returns the partition of the chunk index that has a chunk, if another node has it.
    pub(crate) fn foreign_partition(&self, name: &Fingerprint) -> Option<u32> {
        self.cluster.as_ref()?.foreign_partition(name)
    }

    /// Errors: this node may not answer reads now, as another one may have what it had. Whoever answers from memory of
    /// its own asks here when the request has come.
    pub fn check_may_answer(&self) -> Result<()> {
        match &self.cluster {
            Some(cluster) if !cluster.others.may_answer() => {
                Err(EngineError::OtherNode { why: "this node has not heard from the coordinator of the cluster for too long".to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Returns the partition of the chunk index that has a chunk.
    pub(crate) fn partition_of(&self, name: &Fingerprint) -> u32 {
        ChunkIndex::partition_of(name, self.descriptor.index_partitions)
    }

    /// Returns whether other nodes are to hear something.
    pub(crate) fn has_to_deliver(&self) -> bool {
        self.cluster.is_some() && (self.outbox.has_some() || self.removing.has_to_tell())
    }

    /// Delivers to other nodes what this one has logged for them so far, and tells them of removals. Errors: some of it
    /// is not delivered. It is sent again later.
    pub fn deliver(&self) -> Result<()> {
        // An owner that cannot be reached does not keep the others from hearing of dead copies.
        let delivered = self.deliver_changes();
        delivered.and(self.tell_of_removals())
    }

    /// Delivers the changes of chunks.
    pub(crate) fn deliver_changes(&self) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let result = self.outbox.deliver(
            |partition, delivery| {
                // It may have come to this node since.
                let upto = match cluster.has(partition) {
                    true => self.take_delivery(cluster.node, partition, delivery)?,
                    false => cluster.others.deliver(partition, delivery)?,
                };
                // Each answer brings it further, and nobody has more than this node has logged.
                if upto > self.log.end() || delivery.behind.is_some_and(|behind| upto <= behind) {
                    let (behind, upto, end) = (delivery.behind.unwrap_or_default().0, upto.0, self.log.end().0);
                    return Err(EngineError::Inconsistent {
                        why: format!(
                            "the owner of partition {partition} says that it has everything up to {upto} of this node's log, \
                            which ends at {end}, and it had everything up to {behind}"
                        ),
                    });
                }
                Ok(upto)
            },
            |delivered| self.claims.durable(delivered),
        );
        if result.is_ok() && !self.outbox.has_delivered_once() {
            // Of an earlier opening's claims, those whose chunks are durable have ended by the delivery.
            cluster.others.begin()?;
            self.outbox.delivered_once();
        }
        result
    }
}
