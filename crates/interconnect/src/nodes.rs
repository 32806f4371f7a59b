//! The other nodes, as the engine of this one needs them: claims and deliveries over connections (M4.4 to M4.7).

use crate::connection;
use crate::messages::{ClaimPart, MOST_COLLECTED, MOST_NAMES, Membership, Message, encode_delivery, kinds};
use crate::peer::{Call, Peer};
use crate::setup::Context;
use crate::{CallError, Refusal};
use onefold_engine::{
    Candidate, Claim, Delivery, EngineError, Everybody, OtherNodes, PruneOptions, PruneReport, RemovalAnswer, RemovalStep, Result, Wanted,
};
use onefold_fingerprint::Fingerprint;
use onefold_index::ChunkIndex;
use onefold_oplog::{Partition, PartitionClass, Position};
use onefold_storage::ContainerId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The first pause before an owner is asked again that cannot answer yet, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// A wait that could not be sent takes at least so long.
const LEAST_WAIT: Duration = Duration::from_millis(10);
/// How much longer than a wait its answer may take.
const WAIT_GRACE: Duration = Duration::from_secs(2);

/// The other nodes.
pub struct Nodes {
    context: Arc<Context>,
    index_partitions: u32,
    runtime: Handle,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    by_node: BTreeMap<u32, Arc<Peer>>,
    is_stopped: bool,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Nodes").field("node", &self.context.setup.node).finish_non_exhaustive()
    }
}

/// Where a partition is: its owner and the epoch.
type Place = (u32, u64);
/// What one owner is asked: by partition and epoch, the places of the chunks among the wanted ones.
type Parts = BTreeMap<(u16, u64), Vec<usize>>;

/// A claim that was queued.
struct Asked {
    peer: Arc<Peer>,
    places: Vec<usize>,
    call: std::result::Result<Call, CallError>,
}

impl Nodes {
    pub(crate) fn new(context: Arc<Context>, index_partitions: u32, runtime: Handle) -> Arc<Nodes> {
        Arc::new(Nodes { context, index_partitions, runtime, peers: Mutex::default() })
    }

    /// Sends a message of the membership. It may be lost, as those who send them expect.
    pub fn tell(&self, node: u32, message: Membership) {
        let message = Message::Membership(message);
        self.peer(node).tell(message.kind(), self.encode(&message));
    }

    /// Asks a node which chunks of a partition it has claimed. This node is the new owner, with this epoch.
    ///
    /// Errors: some may be missing. Ask again, unless the node is no longer in the newest table.
    pub fn collect(&self, node: u32, partition: u16, epoch: u64, limit: Duration) -> std::result::Result<Vec<Fingerprint>, CallError> {
        let until = Instant::now() + limit;
        let peer = self.peer(node);
        let mut names: Vec<Fingerprint> = Vec::new();
        loop {
            let after = names.last().copied();
            let payload = self.encode(&Message::Collect { partition, epoch, after });
            let call = peer.call(kinds::COLLECT, payload, until)?;
            let Message::Collected(more) = peer.answer(&call, until)? else {
                return Err(CallError::Lost("a collect has another answer".to_owned()));
            };
            // Each answer goes on behind the one before: so this ends.
            if more.first().is_some_and(|first| after.is_some_and(|after| *first <= after)) || !more.is_sorted() {
                return Err(CallError::Lost("the answers to a collect do not ascend".to_owned()));
            }
            let is_last = more.len() < MOST_COLLECTED;
            names.extend(more);
            if is_last {
                return Ok(names);
            }
        }
    }

    pub(crate) fn stop(&self) {
        let mut peers = self.peers.lock();
        peers.is_stopped = true;
        peers.by_node.values().for_each(|peer| peer.stop());
    }

    fn peer(&self, node: u32) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.by_node.get(&node) {
            return peer.clone();
        }
        let peer = Peer::new(node, self.context.clone());
        if peers.is_stopped {
            peer.stop();
        } else {
            self.runtime.spawn(connection::keep(peer.clone()));
        }
        peers.by_node.insert(node, peer.clone());
        peer
    }

    /// Returns how many requests to a node wait to be sent.
    #[cfg(test)]
    pub(crate) fn queued(&self, node: u32) -> usize {
        self.peer(node).queued()
    }

    /// Returns the most requests of a lane that ever waited to be sent to a node.
    #[cfg(test)]
    pub(crate) fn most_queued(&self, node: u32, lane: crate::lanes::Lane) -> usize {
        self.peer(node).most_queued(lane)
    }

    /// Returns why a node cannot be reached.
    #[cfg(test)]
    pub(crate) fn trouble(&self, node: u32) -> Option<String> {
        self.peer(node).trouble()
    }

    fn encode(&self, message: &Message) -> Vec<u8> {
        message.encode(self.context.setup.directory.table(), self.context.setup.digest_bytes)
    }

    fn partition_of(&self, name: &Fingerprint) -> Partition {
        of_index(ChunkIndex::partition_of(name, self.index_partitions))
    }

    /// Returns the partition of one of these chunks that this node has by now, or takes over.
    fn own_partition(&self, wanted: &[Wanted]) -> Option<u32> {
        let (directory, own) = (&self.context.setup.directory, self.context.setup.node);
        let partitions: BTreeSet<u16> = wanted.iter().map(|wanted| self.partition_of(&wanted.fingerprint).number).collect();
        let is_own = |number: &u16| directory.owner(of_index((*number).into())).is_some_and(|(owner, _)| owner == own);
        partitions.into_iter().find(is_own).map(u32::from)
    }

    fn place(&self, partition: Partition) -> Option<Place> {
        self.context.setup.directory.owner(partition).filter(|(owner, _)| *owner != self.context.setup.node)
    }

    /// Asks the owner of a partition, again while it cannot answer yet.
    fn ask(&self, partition: Partition, limit: Duration, message: &dyn Fn(u64) -> (u8, Vec<u8>)) -> Result<Message> {
        let until = Instant::now() + limit;
        let mut pauses = Pauses::new();
        loop {
            let place = self.place(partition);
            let owner = self.context.setup.directory.owner(partition).map(|(owner, _)| owner);
            if owner == Some(self.context.setup.node) {
                // It has come to this node: the engine has it, or will.
                return Err(EngineError::NotOwned { partition: partition.number.into() });
            }
            let result = match place {
                None => Err(CallError::Refusal(Refusal::NotOwned)),
                Some((node, epoch)) => {
                    let peer = self.peer(node);
                    let (kind, payload) = message(epoch);
                    peer.call(kind, payload, until).and_then(|call| peer.answer(&call, until))
                }
            };
            match result {
                Ok(answer) => return Ok(answer),
                Err(error) if is_passing(&error) && pauses.pause(until) => {}
                Err(error) => return Err(failed(place.map(|(node, _)| node), &error)),
            }
        }
    }

    /// Asks the owners of some of `wanted` at once. Puts answers into `answers`. Returns which were not answered yet,
    /// and the errors that waiting does not mend.
    fn claim_once(
        &self,
        wanted: &[Wanted],
        open: &[usize],
        answers: &mut [Option<Claim>],
        until: Instant,
    ) -> (Vec<usize>, Vec<EngineError>) {
        let mut by_owner: BTreeMap<Option<u32>, Parts> = BTreeMap::new();
        for at in open {
            let partition = self.partition_of(&wanted[*at].fingerprint);
            let place = self.place(partition);
            let parts = by_owner.entry(place.map(|(node, _)| node)).or_default();
            parts.entry((partition.number, place.map_or(0, |(_, epoch)| epoch))).or_default().push(*at);
        }
        let (mut again, mut errors): (Vec<usize>, _) = (Vec::new(), Vec::new());
        let mut asked: Vec<Asked> = Vec::new();
        for (owner, parts) in by_owner {
            let Some(owner) = owner else {
                again.extend(parts.into_values().flatten());
                continue;
            };
            let peer = self.peer(owner);
            for (parts, places) in messages(wanted, parts) {
                let call = peer.claim(parts, until);
                asked.push(Asked { peer: peer.clone(), places, call });
            }
        }
        for Asked { peer, places, call } in asked {
            let answer = call.and_then(|call| peer.answer(&call, until));
            match answer {
                Ok(Message::Claimed(claims)) => places.iter().zip(claims).for_each(|(at, claim)| answers[*at] = Some(claim)),
                Ok(other) => errors.push(odd(peer.node, &other)),
                Err(error) if is_passing(&error) => again.extend(places),
                Err(error) => errors.push(failed(Some(peer.node), &error)),
            }
        }
        (again, errors)
    }
}

/// Splits the claims of an owner into messages, with the places of the chunks in the order of their answers.
fn messages(wanted: &[Wanted], parts: Parts) -> Vec<(Vec<ClaimPart>, Vec<usize>)> {
    let mut messages: Vec<(Vec<ClaimPart>, Vec<usize>)> = Vec::new();
    for ((partition, epoch), mut places) in parts {
        while !places.is_empty() {
            if messages.last().is_none_or(|(_, places)| places.len() == MOST_NAMES) {
                messages.push((Vec::new(), Vec::new()));
            }
            let (parts, all) = messages.last_mut().expect("there is one now");
            let rest = places.split_off(places.len().min(MOST_NAMES - all.len()));
            let names = places.iter().map(|at| (wanted[*at].fingerprint, wanted[*at].search)).collect();
            parts.push(ClaimPart { partition, epoch, wanted: names });
            all.extend(places);
            places = rest;
        }
    }
    messages
}

impl OtherNodes for Nodes {
    fn claim(&self, wanted: &[Wanted], out: &mut Vec<Claim>) -> Result<()> {
        let until = Instant::now() + self.context.options().claim;
        let mut answers: Vec<Option<Claim>> = vec![None; wanted.len()];
        let mut open: Vec<usize> = (0..wanted.len()).collect();
        let mut pauses = Pauses::new();
        loop {
            let (again, mut errors) = self.claim_once(wanted, &open, &mut answers, until);
            if !again.is_empty()
                && let Some(partition) = self.own_partition(wanted)
            {
                errors.insert(0, EngineError::NotOwned { partition });
            }
            if errors.is_empty() && !again.is_empty() && !pauses.pause(until) {
                let partition = self.partition_of(&wanted[again[0]].fingerprint);
                let node = self.place(partition).map(|(node, _)| node);
                let why = format!("nobody answers for partition {} of the chunk index yet", partition.number);
                errors.push(failed(node, &CallError::Refusal(Refusal::Later(why))));
            }
            if let Some(error) = errors.into_iter().next() {
                // Of what was answered, and of what will be when nobody waits for it any more.
                let names: Vec<Fingerprint> = wanted.iter().map(|wanted| wanted.fingerprint).collect();
                self.release(&names);
                return Err(error);
            }
            if again.is_empty() {
                break;
            }
            open = again;
        }
        out.extend(answers.into_iter().map(|answer| answer.expect("nothing is open any more")));
        Ok(())
    }

    fn release(&self, names: &[Fingerprint]) {
        let until = Instant::now() + self.context.options().claim;
        let mut by_owner: BTreeMap<u32, Vec<Fingerprint>> = BTreeMap::new();
        for name in names {
            // Without an owner there is nobody who keeps a claim.
            if let Some((owner, _)) = self.place(self.partition_of(name)) {
                by_owner.entry(owner).or_default().push(*name);
            }
        }
        for (owner, names) in by_owner {
            self.peer(owner).release(&names, until);
        }
    }

    fn wait(&self, name: &Fingerprint, until: Instant) {
        let partition = self.partition_of(name);
        let most_ms = until.saturating_duration_since(Instant::now()).as_millis().min(u32::MAX.into()) as u32;
        let result = self.place(partition).ok_or(CallError::Refusal(Refusal::NotOwned)).and_then(|(node, epoch)| {
            let message = Message::Wait { partition: partition.number, epoch, name: *name, most_ms };
            let (peer, until) = (self.peer(node), until + WAIT_GRACE);
            let call = peer.call(kinds::WAIT, self.encode(&message), until)?;
            peer.answer(&call, until)
        });
        if let Err(error) = result {
            tracing::debug!(%error, "an owner was not asked to wait for");
            std::thread::sleep(until.saturating_duration_since(Instant::now()).min(LEAST_WAIT));
        }
    }

    fn hurry(&self, node: u32) {
        self.peer(node).tell(kinds::HURRY, self.encode(&Message::Hurry));
    }

    fn deliver(&self, partition: u32, delivery: &Delivery) -> Result<Position> {
        let (table, digest_bytes) = (self.context.setup.directory.table(), self.context.setup.digest_bytes);
        let partition = of_index(partition);
        let message = |epoch| (kinds::DELIVER, encode_delivery(table, digest_bytes, partition.number, epoch, delivery));
        match self.ask(partition, self.context.options().deliver, &message)? {
            Message::Delivered(upto) => Ok(upto),
            other => Err(odd(self.place(partition).map_or(0, |(node, _)| node), &other)),
        }
    }

    fn begin(&self) -> Result<()> {
        let until = Instant::now() + self.context.options().claim;
        let payload = self.encode(&Message::Begin);
        let others = self.context.setup.directory.nodes().into_iter().filter(|node| *node != self.context.setup.node);
        let asked: Vec<_> =
            others.map(|node| self.peer(node)).map(|peer| (peer.call(kinds::BEGIN, payload.clone(), until), peer)).collect();
        let mut result = Ok(());
        for (call, peer) in asked {
            let answer = call.and_then(|call| peer.answer(&call, until));
            result = result.and(answer.map(drop).map_err(|error| failed(Some(peer.node), &error)));
        }
        result
    }

    fn may_answer(&self) -> bool {
        self.context.setup.directory.may_answer()
    }

    fn seal(&self, container: ContainerId) -> Result<()> {
        let partition = Partition { class: PartitionClass::Container, number: container.partition() };
        let message = |epoch| (kinds::SEAL, self.encode(&Message::Seal { container, epoch }));
        self.ask(partition, self.context.options().seal, &message).map(drop)
    }

    fn everybody(&self) -> Result<Everybody> {
        let mut everybody = self.context.setup.directory.everybody().map_err(|why| EngineError::OtherNode { why })?;
        everybody.nodes.retain(|node| *node != self.context.setup.node);
        Ok(everybody)
    }

    fn remove(&self, node: u32, step: &RemovalStep) -> Result<RemovalAnswer> {
        let until = Instant::now() + self.context.options().deliver;
        let (peer, payload) = (self.peer(node), self.encode(&Message::Remove(step.clone())));
        match peer.call(kinds::REMOVE, payload, until).and_then(|call| peer.answer(&call, until)) {
            Ok(Message::Removing(answer)) => Ok(answer),
            Ok(other) => Err(odd(node, &other)),
            Err(error) => Err(failed(Some(node), &error)),
        }
    }

    fn dead(&self, partition: u16, copies: &[Candidate]) -> Result<()> {
        let of = Partition { class: PartitionClass::Container, number: partition };
        let message = |epoch| (kinds::DEAD, self.encode(&Message::Dead { partition, epoch, copies: copies.to_vec() }));
        self.ask(of, self.context.options().deliver, &message).map(drop)
    }

    fn reclaim(&self, node: u32, request: u64, options: PruneOptions) -> Result<Option<PruneReport>> {
        let until = Instant::now() + self.context.options().claim;
        let (peer, payload) = (self.peer(node), self.encode(&Message::Reclaim { request, options }));
        match peer.call(kinds::RECLAIM, payload, until).and_then(|call| peer.answer(&call, until)) {
            Ok(Message::Reclaimed(reclaimed)) => Ok(reclaimed),
            Ok(other) => Err(odd(node, &other)),
            Err(error) => Err(failed(Some(node), &error)),
        }
    }
}

fn of_index(number: u32) -> Partition {
    let number = u16::try_from(number).expect("a store has fewer partitions than 65,535");
    Partition { class: PartitionClass::ChunkIndex, number }
}

/// Returns whether the owner may answer later, or another one.
fn is_passing(error: &CallError) -> bool {
    matches!(error, CallError::Refusal(Refusal::NotOwned | Refusal::Later(_)))
}

fn failed(node: Option<u32>, error: &CallError) -> EngineError {
    let why = match node {
        Some(node) => format!("node {node}: {error}"),
        None => "no other node has the partition now".to_owned(),
    };
    EngineError::OtherNode { why }
}

fn odd(node: u32, message: &Message) -> EngineError {
    EngineError::OtherNode { why: format!("node {node}: it answered with a message of kind {:#04x}", message.kind()) }
}

/// Pauses that grow.
struct Pauses(Duration);

impl Pauses {
    fn new() -> Pauses {
        Pauses(PAUSES.0)
    }

    /// Pauses, unless `until` is over.
    fn pause(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(self.0.min(left));
        self.0 = (self.0 * 2).min(PAUSES.1);
        true
    }
}
