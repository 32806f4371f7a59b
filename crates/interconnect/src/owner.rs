//! What a node answers to others.

use crate::Refusal;
use crate::messages::{ClaimPart, Membership};
use onefold_engine::{Candidate, Claim, Delivery, Engine, PruneOptions, PruneReport, RemovalAnswer, RemovalStep, Wanted};
use onefold_fingerprint::Fingerprint;
use onefold_index::ChunkIndex;
use onefold_oplog::{Partition, PartitionClass, Position};
use onefold_storage::ContainerId;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// What a node answers to others. Claims, releases and beginnings of one node come one after the other, in the order in
/// which it sent them.
pub trait Owner: Debug + Send + Sync {
    /// Appends an answer for each chunk, in their order. Errors: none of them is claimed.
    fn claim(&self, from: u32, parts: &[ClaimPart], out: &mut Vec<Claim>) -> Result<(), Refusal>;

    /// Takes claims of a node back.
    fn release(&self, from: u32, names: &[Fingerprint]);

    /// Waits until a claim may have another answer, or until `until`.
    fn wait(&self, from: u32, partition: u16, epoch: u64, name: &Fingerprint, until: Instant) -> Result<(), Refusal>;

    /// Makes durable soon what others wait for.
    fn hurry(&self);

    /// Takes a delivery. Returns up to where this node has everything of the sender's log, durably.
    fn deliver(&self, from: u32, partition: u16, epoch: u64, delivery: &Delivery) -> Result<Position, Refusal>;

    /// Ends the claims of a node that has opened its log.
    fn begin(&self, from: u32) -> Result<(), Refusal>;

    /// Puts a container into the bucket.
    fn seal(&self, container: ContainerId, epoch: u64) -> Result<(), Refusal>;

    /// Returns the chunks of a partition that this node has claimed, in any order. A node asks that takes the partition
    /// over.
    fn collect(&self, from: u32, partition: u16, epoch: u64) -> Result<Vec<Fingerprint>, Refusal>;

    /// Takes part in a removal of another node.
    fn remove(&self, from: u32, step: &RemovalStep) -> Result<RemovalAnswer, Refusal>;

    /// Notes that chunks in containers of a partition were removed. Durable on return.
    fn dead(&self, partition: u16, epoch: u64, copies: &[Candidate]) -> Result<(), Refusal>;

    /// Frees space. Returns at once: `None` while it is at work, then what came of the request.
    fn reclaim(&self, request: u64, options: PruneOptions) -> Result<Option<PruneReport>, Refusal>;

    /// Takes a message of the membership. Must return at once.
    fn membership(&self, from: u32, message: Membership);
}

/// How a node frees the space that its engine can free. It asks the last argument whether to go on. Errors: why it
/// cannot, for people.
pub type Reclaim = dyn Fn(&Arc<Engine>, PruneOptions, &dyn Fn() -> bool) -> Result<PruneReport, String> + Send + Sync;

/// What a node has by its table now.
pub trait Rights: Debug + Send + Sync {
    /// Returns whether the node may answer for a partition with this epoch now. It is asked when the request has come.
    /// Errors: [`Refusal::NotOwned`] or [`Refusal::Later`].
    fn may_answer(&self, partition: Partition, epoch: u64) -> Result<(), Refusal>;

    /// Returns whether a node may hear what this one has claimed of a partition: by the newest table that is known
    /// here, it is the owner with this epoch. Errors: [`Refusal::NotOwned`], or [`Refusal::Later`] if it is by a table
    /// that is not known here. Until then this node may claim from the owner before.
    fn may_collect(&self, from: u32, partition: Partition, epoch: u64) -> Result<(), Refusal>;

    /// Returns whether the opening has ended: what works for it ends by itself.
    fn is_over(&self) -> bool;

    /// Takes a message of the membership. Must return at once.
    fn membership(&self, from: u32, message: Membership);
}

/// An engine that answers to others.
pub struct EngineOwner {
    engine: Arc<Engine>,
    rights: Arc<dyn Rights>,
    reclaim: Arc<Reclaim>,
    reclaiming: Arc<Mutex<Reclaiming>>,
}

/// Space is being freed, or was.
#[derive(Default)]
struct Reclaiming {
    is_at_work: bool,
    /// What came of the last requests.
    results: VecDeque<(u64, Result<PruneReport, String>)>,
}

/// How many results are kept for those that asked.
const RESULTS: usize = 16;

impl Debug for EngineOwner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EngineOwner").field("rights", &self.rights).finish_non_exhaustive()
    }
}

impl EngineOwner {
    /// Returns an owner that answers with what an engine has.
    pub fn new(engine: Arc<Engine>, rights: Arc<dyn Rights>, reclaim: Arc<Reclaim>) -> EngineOwner {
        EngineOwner { engine, rights, reclaim, reclaiming: Arc::default() }
    }

    fn check(&self, class: PartitionClass, number: u16, epoch: u64) -> Result<(), Refusal> {
        self.rights.may_answer(Partition { class, number }, epoch)
    }

    /// Checks that chunks are of the partition that the sender says: its epoch was compared.
    fn check_names<'a>(&self, partition: u16, mut names: impl Iterator<Item = &'a Fingerprint>) -> Result<(), Refusal> {
        let total = self.engine.descriptor().index_partitions;
        if names.any(|name| ChunkIndex::partition_of(name, total) != u32::from(partition)) {
            return Err(Refusal::Refused(format!("a chunk is not of partition {partition}, as it says")));
        }
        Ok(())
    }
}

impl Owner for EngineOwner {
    fn claim(&self, from: u32, parts: &[ClaimPart], out: &mut Vec<Claim>) -> Result<(), Refusal> {
        let mut wanted = Vec::with_capacity(parts.iter().map(|part| part.wanted.len()).sum());
        for ClaimPart { partition, epoch, wanted: chunks } in parts {
            self.check(PartitionClass::ChunkIndex, *partition, *epoch)?;
            self.check_names(*partition, chunks.iter().map(|(name, _)| name))?;
            wanted.extend(chunks.iter().map(|(fingerprint, search)| Wanted { fingerprint: *fingerprint, search: *search }));
        }
        Ok(self.engine.claim_for(from, &wanted, out)?)
    }

    fn release(&self, from: u32, names: &[Fingerprint]) {
        self.engine.release_for(from, names);
    }

    fn wait(&self, _from: u32, partition: u16, epoch: u64, name: &Fingerprint, until: Instant) -> Result<(), Refusal> {
        self.check(PartitionClass::ChunkIndex, partition, epoch)?;
        self.engine.wait_for_claim(name, until);
        Ok(())
    }

    fn hurry(&self) {
        self.engine.hurry();
    }

    fn deliver(&self, from: u32, partition: u16, epoch: u64, delivery: &Delivery) -> Result<Position, Refusal> {
        self.check(PartitionClass::ChunkIndex, partition, epoch)?;
        Ok(self.engine.take_delivery(from, partition.into(), delivery)?)
    }

    fn begin(&self, from: u32) -> Result<(), Refusal> {
        self.engine.end_claims_of(from);
        Ok(())
    }

    fn seal(&self, container: ContainerId, epoch: u64) -> Result<(), Refusal> {
        self.check(PartitionClass::Container, container.partition(), epoch)?;
        Ok(self.engine.seal_container(container)?)
    }

    fn collect(&self, from: u32, partition: u16, epoch: u64) -> Result<Vec<Fingerprint>, Refusal> {
        self.rights.may_collect(from, Partition { class: PartitionClass::ChunkIndex, number: partition }, epoch)?;
        Ok(self.engine.claims_of(partition.into()))
    }

    fn remove(&self, from: u32, step: &RemovalStep) -> Result<RemovalAnswer, Refusal> {
        Ok(self.engine.remove_for(from, step)?)
    }

    fn dead(&self, partition: u16, epoch: u64, copies: &[Candidate]) -> Result<(), Refusal> {
        self.check(PartitionClass::Container, partition, epoch)?;
        Ok(self.engine.take_dead(copies)?)
    }

    fn reclaim(&self, request: u64, options: PruneOptions) -> Result<Option<PruneReport>, Refusal> {
        let mut reclaiming = self.reclaiming.lock();
        if let Some((_, result)) = reclaiming.results.iter().find(|(of, _)| *of == request) {
            return result.clone().map(Some).map_err(Refusal::Refused);
        }
        // For this request, or for another one: one after the other.
        if reclaiming.is_at_work {
            return Ok(None);
        }
        let (engine, rights, reclaim, state) = (self.engine.clone(), self.rights.clone(), self.reclaim.clone(), self.reclaiming.clone());
        let run = move || {
            let work = || reclaim(&engine, options, &|| !rights.is_over());
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("freeing space has panicked".to_owned()));
            drop(engine);
            let mut state = state.lock();
            state.is_at_work = false;
            state.results.push_back((request, result));
            if state.results.len() > RESULTS {
                state.results.pop_front();
            }
        };
        std::thread::Builder::new()
            .name("node-reclaim".to_owned())
            .spawn(run)
            .map_err(|error| Refusal::Refused(format!("it cannot start a thread: {error}")))?;
        reclaiming.is_at_work = true;
        Ok(None)
    }

    fn membership(&self, from: u32, message: Membership) {
        self.rights.membership(from, message);
    }
}
