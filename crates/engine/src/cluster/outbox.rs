//! What this node has logged for index partitions of others, until their owners have logged it too.
//!
//! A batch has the places of new chunks and the changes of counts, whoever owns their partitions. What is of others'
//! partitions is *undelivered* until the owner says that it has it. The owner keeps a cursor for each sender, and drops
//! what it has already. So each change counts once, however often it is sent. The log is kept from the first batch on
//! that has something undelivered: after a crash, a replay of it fills the outbox again.
//!
//! A chunk's claim stays until its place is delivered: until then no look-up at its owner would find it.

use crate::cluster::Delivery;
use onefold_fingerprint::Fingerprint;
use onefold_oplog::{Effects, Position};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

/// What is undelivered.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// One delivery at a time.
    delivering: Mutex<()>,
    has_delivered_once: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By partition, in the order of the log.
    undelivered: BTreeMap<u32, VecDeque<Part>>,
    /// By partition: up to where its owner has everything, as far as known.
    delivered: BTreeMap<u32, Position>,
}

/// What a batch has for a partition.
#[derive(Debug)]
struct Part {
    start: Position,
    end: Position,
    places: Vec<(Fingerprint, u64)>,
    deltas: Vec<(Fingerprint, i64)>,
}

/// Most changes of a delivery.
const DELIVERY_CHANGES: usize = 64 << 10;

impl Outbox {
    /// Adds what a batch has for partitions of others. `partition` returns that of a chunk, `None` for an own one.
    pub(crate) fn add(&self, end: Position, effects: &Effects<'_>, partition: impl Fn(&Fingerprint) -> Option<u32>) {
        let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
        let new = || Part { start: effects.start, end, places: Vec::new(), deltas: Vec::new() };
        for (name, place) in effects.stored {
            if let Some(partition) = partition(name) {
                parts.entry(partition).or_insert_with(new).places.push((*name, *place));
            }
        }
        for (name, delta) in effects.deltas {
            if let Some(partition) = partition(name) {
                parts.entry(partition).or_insert_with(new).deltas.push((*name, *delta));
            }
        }
        if parts.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for (partition, part) in parts {
            state.undelivered.entry(partition).or_default().push_back(part);
        }
    }

    /// Returns the position from which on the log has something undelivered.
    pub(crate) fn oldest(&self) -> Option<Position> {
        self.state.lock().undelivered.values().filter_map(|parts| Some(parts.front()?.start)).min()
    }

    /// Returns whether nothing is undelivered that an earlier opening has logged. Before that, a look-up may not find
    /// what this node has.
    pub(crate) fn has_delivered_once(&self) -> bool {
        self.has_delivered_once.load(Ordering::Acquire)
    }

    /// Notes that everything was delivered that was there when the delivery began.
    pub(crate) fn delivered_once(&self) {
        self.has_delivered_once.store(true, Ordering::Release);
    }

    /// Takes back what is of a partition that this node has since a position: what it logged from there on counts as
    /// the owner's. Returns the chunks whose places that are.
    pub(crate) fn came(&self, partition: u32, since: Position) -> Vec<Fingerprint> {
        let mut state = self.state.lock();
        // The cursor of this node at the owner before is its own now.
        state.delivered.remove(&partition);
        let Some(parts) = state.undelivered.get_mut(&partition) else { return Vec::new() };
        let before = parts.partition_point(|part| part.start < since);
        let own = parts.drain(before..).flat_map(|part| part.places).map(|(name, _)| name).collect();
        if parts.is_empty() {
            state.undelivered.remove(&partition);
        }
        own
    }

    /// Forgets what the owner of a partition had: the next one is asked first.
    pub(crate) fn moved(&self, partition: u32) {
        self.state.lock().delivered.remove(&partition);
    }

    /// Returns whether something of a partition is undelivered.
    pub(crate) fn has_some_of(&self, partition: u32) -> bool {
        self.state.lock().undelivered.contains_key(&partition)
    }

    /// Returns whether something is undelivered.
    pub(crate) fn has_some(&self) -> bool {
        !self.state.lock().undelivered.is_empty()
    }

    /// Delivers everything that is undelivered at the call, with `send`, which returns up to where the owner has
    /// everything. Calls `delivered` with the chunks that the owners know now. Partitions that fail do not keep the
    /// others from it. Returns the first error.
    pub(crate) fn deliver<E>(
        &self,
        send: impl Fn(u32, &Delivery) -> Result<Position, E>,
        delivered: impl Fn(&[Fingerprint]),
    ) -> Result<(), E> {
        let _one = self.delivering.lock();
        let partitions: Vec<u32> = self.state.lock().undelivered.keys().copied().collect();
        let mut result = Ok(());
        for partition in partitions {
            while let Some(delivery) = self.next(partition) {
                match send(partition, &delivery) {
                    Ok(upto) => delivered(&self.acknowledged(partition, upto)),
                    Err(error) => {
                        result = result.and(Err(error));
                        break;
                    }
                }
            }
        }
        result
    }

    fn next(&self, partition: u32) -> Option<Delivery> {
        let state = self.state.lock();
        let parts = state.undelivered.get(&partition)?;
        let Some(behind) = state.delivered.get(&partition).copied() else { return Some(Delivery::default()) };
        let behind = Some(behind);
        let mut delivery = Delivery { behind, upto: parts.front()?.end, places: Vec::new(), deltas: Vec::new() };
        for part in parts {
            delivery.upto = part.end;
            delivery.places.extend_from_slice(&part.places);
            delivery.deltas.extend_from_slice(&part.deltas);
            if delivery.places.len() + delivery.deltas.len() >= DELIVERY_CHANGES {
                break;
            }
        }
        Some(delivery)
    }

    /// Notes up to where an owner has everything. Returns the chunks that it has got by this.
    fn acknowledged(&self, partition: u32, upto: Position) -> Vec<Fingerprint> {
        let mut state = self.state.lock();
        state.delivered.insert(partition, upto);
        let Some(parts) = state.undelivered.get_mut(&partition) else { return Vec::new() };
        let mut known = Vec::new();
        let is_known = parts.partition_point(|part| part.end <= upto);
        for part in parts.drain(..is_known) {
            known.extend(part.places.into_iter().map(|(name, _)| name));
        }
        if parts.is_empty() {
            state.undelivered.remove(&partition);
        }
        known
    }
}
