//! Chunks are removed while several nodes have the store open. The owner of a partition of the chunk index removes
//! chunks of that partition (`liveness/removal.rs`); here is how the other nodes take part in it.
//!
//! # Why no chunk is removed that another node needs (unsafe orders 24 to 26, 53 to 56)
//! What a removal does at home to its own streams, it does at all nodes, in the same order:
//! 1. *Watch.* Its own watch has begun when it asks who is there, in the bucket. So a node that comes later has nothing
//!    in memory, and each claim that it makes here meets the watch. Every node that is there begins to watch, too. From
//!    now on whoever asks for a candidate there, or states or takes back a reference to it, takes it off that node's
//!    list.
//! 2. *Wait* until everybody in flight who came before is gone, at each node.
//! 3. *Settle.* Each node commits what was submitted, and delivers it. What nodes have left that are gone is taken from
//!    their closed logs before. So the counts here have all references from before the watch.
//! 4. *Doom* at all nodes what is doomed here, while it is claimed here. From then on nobody there asks a cache for it,
//!    and claiming it here waits.
//! 5. *Look* at the counts, then ask once more who is there. If the table is another one, nothing is removed: an object
//!    may have gone through nodes that were not asked. The batch is logged only if no partition has moved here since.
//!
//! So when the counts are looked at, no object has a chunk that is doomed: a reference from before the watch would be
//! counted, and one from later would have taken it off a list. And nobody has it in hand. If a node does not answer, or
//! has opened its log again, the removal ends without having removed anything.
//!
//! Each node's caches forget what is doomed at once. When it is over, its watch ends. It is told so until it knows. As
//! long as chunks are doomed there, they cost a claim, and append-only mode is not switched on.
//!
//! If nobody knows whether the log has the batch, this node gives no claims any more (`owner.rs`): its index may say
//! what is over. It opens its log again, or another node takes over, and either of them knows.
//!
//! # Slots of containers of other nodes
//! The batch of the removal notes which copies are dead in containers of other nodes, until the owners of these have
//! logged that as dead slots. To be told twice does no harm: an address has one chunk for ever. Until it is told, the
//! catalog there lists a chunk that is not stored. So in a cluster a catalog is believed only for containers that this
//! opening has begun, and not any more when a removal of another node has doomed a chunk in it.
//!
//! # Append-only mode
//! Its state is an object, and the node that has it permits the removal. It keeps the mode from changing while a chunk
//! is doomed.

use crate::cluster::container_of;
use crate::commit::records::encode_objects;
use crate::liveness::dead::DeadChanges;
use crate::write::in_flight::Remover;
use crate::{Candidate, Change, Engine, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_varint};
use onefold_oplog::{Effects, Position};
use onefold_storage::{Address, Origin, Prepared};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Who has the store open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Everybody {
    /// The newest table, as of now or later.
    pub table: u64,
    /// All other nodes that may know a chunk: those of the table, and those that are about to leave.
    pub nodes: Vec<u32>,
    /// All other numbers: they are gone, or have never been in a table.
    pub gone: Vec<u32>,
}

/// What a node that removes chunks asks another one to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    /// Say whether what is stored may be deleted.
    Permit,
    /// Watch these chunks. It ends every earlier removal of the sender.
    Watch {
        /// The number of the removal: that of a later one of the same node is greater.
        removal: u64,
        /// The chunks.
        names: Vec<Fingerprint>,
    },
    /// Say whether everything from before the watch is over and delivered.
    Settle {
        /// The removal.
        removal: u64,
    },
    /// Doom these chunks.
    Doom {
        /// The removal.
        removal: u64,
        /// The chunks, and where they are.
        copies: Vec<Candidate>,
    },
    /// It is over.
    End {
        /// The removal.
        removal: u64,
    },
}

/// The answer to a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalAnswer {
    /// It is done.
    Done,
    /// The same, and the store's append-only mode, which is known here, is off.
    Permitted,
    /// Ask again: somebody is in flight.
    NotYet,
    /// Ask again: something is not delivered yet, and why.
    Undelivered(String),
    /// Nothing is removed because of this reader.
    Kept(String),
    /// Nothing may be removed: why.
    Held(String),
    /// By chunk: whether it is doomed. If not, somebody has asked for it.
    Doomed(Vec<bool>),
}

/// How often a removal looks whether other nodes are ready.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a node may take to deliver what it has to say, before a removal ends.
const DELIVERS_WITHIN: Duration = Duration::from_secs(30);
/// How long dead slots wait for a removal or a merge here. Then they come again.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);
/// How long a switch of append-only mode waits for removals of other nodes.
const SWITCH_WITHIN: Duration = Duration::from_secs(15);
/// First byte of the keys of notes of dead copies.
pub(crate) const TELL_PREFIX: u8 = b'R';
const VERSION: u8 = 1;
/// The most copies of a note.
const COPIES_OF_NOTE: usize = 1000;
/// Notes read at a time.
const PAGE: usize = 16;

/// Removals of other nodes, and what is to be told of own ones.
#[derive(Debug)]
pub(crate) struct Removing {
    /// By node.
    theirs: Mutex<BTreeMap<u32, Theirs>>,
    /// There may be notes of dead copies.
    has_to_tell: AtomicBool,
    /// Own removals that are over, of which nodes do not know that: by node.
    untold: Mutex<BTreeMap<u32, u64>>,
    telling: Mutex<()>,
}

/// A removal of another node.
#[derive(Debug)]
struct Theirs {
    removal: u64,
    /// Guards that are older are waited for.
    moment: u64,
    has_doomed: bool,
}

impl Default for Removing {
    fn default() -> Removing {
        // Of an earlier opening.
        Removing { theirs: Mutex::default(), has_to_tell: AtomicBool::new(true), untold: Mutex::default(), telling: Mutex::default() }
    }
}

impl Removing {
    /// Returns whether a chunk is doomed here by another node.
    fn has_doomed(&self) -> bool {
        self.theirs.lock().values().any(|theirs| theirs.has_doomed)
    }

    /// Returns whether other nodes are to hear something of removals.
    pub(crate) fn has_to_tell(&self) -> bool {
        self.has_to_tell.load(Ordering::SeqCst) || !self.untold.lock().is_empty()
    }

    /// Notes that there are notes of dead copies.
    pub(crate) fn must_tell(&self) {
        self.has_to_tell.store(true, Ordering::SeqCst);
    }
}

/// Copies of removed chunks in containers of other nodes, by the partition of the chunk index that had them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadElsewhere(BTreeMap<u32, Vec<Candidate>>);

impl DeadElsewhere {
    pub(crate) fn add(&mut self, partition: u32, copy: Candidate) {
        self.0.entry(partition).or_default().push(copy);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Returns the notes, for a batch behind `at`.
    pub(crate) fn changes(&self, own: u16, at: Position, digest_bytes: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        for (partition, copies) in &self.0 {
            for (part, copies) in (0u16..).zip(copies.chunks(COPIES_OF_NOTE)) {
                let key = [&[TELL_PREFIX][..], &partition.to_be_bytes(), &at.0.to_be_bytes(), &part.to_be_bytes()].concat();
                changes.push((own, key, Some(encode(copies, digest_bytes))));
            }
        }
        changes
    }
}

fn encode(copies: &[Candidate], digest_bytes: usize) -> Vec<u8> {
    let mut value = vec![VERSION];
    put_varint(&mut value, copies.len() as u64);
    for copy in copies {
        value.extend_from_slice(&copy.address.bits().to_le_bytes());
        value.extend_from_slice(copy.fingerprint.digest(digest_bytes));
    }
    value
}

fn decode(value: &[u8], digest_bytes: usize) -> Result<Vec<Candidate>> {
    let mut reader = Reader::new(value);
    let mut read = || {
        let version = reader.u8()?;
        if version != VERSION {
            return Err(WireError::OutOfRange { what: "version of dead copies", value: version.into(), offset_bytes: 0 });
        }
        let count = reader.count("dead copies", 8 + digest_bytes)?;
        let copy = |reader: &mut Reader<'_>| {
            let address = Address::from_bits(reader.u64()?);
            Ok(Candidate { address, fingerprint: Fingerprint::from_digest(reader.take(digest_bytes)?) })
        };
        let copies = (0..count).map(|_| copy(&mut reader)).collect::<std::result::Result<Vec<_>, WireError>>()?;
        reader.end().map(|()| copies)
    };
    read().map_err(|source| EngineError::Wire { what: "dead copies in containers of other nodes".into(), source })
}

/// A removal of this node, as the others take part in it. Dropping it tells them that it is over.
pub(crate) struct Elsewhere<'a> {
    engine: &'a Engine,
    removal: u64,
    table: u64,
    /// How often partitions had moved here before that table was read.
    moves: u64,
    /// Those that watch.
    nodes: Vec<u32>,
}

/// Why a removal ends early.
pub(crate) enum Ended {
    /// Others were busy, or the table has changed: try again.
    Busy,
    /// Nothing is removed because of this reader.
    Kept(String),
    /// Nothing may be removed now.
    Held(String),
}

impl<'a> Elsewhere<'a> {
    /// Has all other nodes watch these chunks. The watch here has begun. `None`: there are no others.
    pub(crate) fn begin(engine: &'a Engine, names: Vec<Fingerprint>) -> Result<std::result::Result<Option<Elsewhere<'a>>, Ended>> {
        let Some(cluster) = &engine.cluster else { return Ok(Ok(None)) };
        // The first delivery of an opening tells all nodes that everything of earlier ones is over.
        engine.deliver_changes()?;
        let moves = cluster.moves();
        let everybody = cluster.others.everybody()?;
        for node in everybody.gone {
            engine.take_rest_of(node)?;
        }
        let removal = cluster.number_of_request(engine.log.epoch());
        let mut elsewhere = Elsewhere { engine, removal, table: everybody.table, moves, nodes: Vec::new() };
        let mut is_permitted = engine.knows_append_only();
        for node in everybody.nodes {
            // It may begin although its answer is lost.
            elsewhere.nodes.push(node);
            match cluster.others.remove(node, &RemovalStep::Watch { removal, names: names.clone() })? {
                RemovalAnswer::Done => {}
                RemovalAnswer::Permitted => is_permitted = true,
                RemovalAnswer::Kept(why) => return Ok(Err(Ended::Kept(why))),
                RemovalAnswer::Held(why) => return Ok(Err(Ended::Held(why))),
                other => return Err(odd(node, &other)),
            }
        }
        // Otherwise the objects are on their way from one node to another.
        Ok(if is_permitted { Ok(Some(elsewhere)) } else { Err(Ended::Busy) })
    }

    /// Waits until everything from before the watch is over and delivered, at all nodes.
    pub(crate) fn settle(&self, go_on: &dyn Fn() -> bool) -> Result<std::result::Result<(), Ended>> {
        for node in &self.nodes {
            let until = Instant::now() + DELIVERS_WITHIN;
            loop {
                match self.ask(*node, &RemovalStep::Settle { removal: self.removal })? {
                    RemovalAnswer::Done => break,
                    RemovalAnswer::Undelivered(why) if Instant::now() > until => {
                        return Ok(Err(Ended::Held(format!("node {node} cannot deliver what it has to say of chunks: {why}"))));
                    }
                    RemovalAnswer::Undelivered(_) if go_on() => std::thread::sleep(LOOK_EVERY),
                    RemovalAnswer::Undelivered(_) => return Ok(Err(Ended::Busy)),
                    RemovalAnswer::NotYet if go_on() => std::thread::sleep(LOOK_EVERY),
                    RemovalAnswer::NotYet => return Ok(Err(Ended::Busy)),
                    RemovalAnswer::Kept(why) => return Ok(Err(Ended::Kept(why))),
                    other => return Err(odd(*node, &other)),
                }
            }
        }
        Ok(Ok(()))
    }

    /// Dooms chunks at all nodes. Returns those that are doomed everywhere.
    pub(crate) fn doom(&self, mut copies: Vec<Candidate>) -> Result<Vec<Candidate>> {
        for node in &self.nodes {
            if copies.is_empty() {
                break;
            }
            match self.ask(*node, &RemovalStep::Doom { removal: self.removal, copies: copies.clone() })? {
                RemovalAnswer::Doomed(doomed) if doomed.len() == copies.len() => {
                    let mut doomed = doomed.into_iter();
                    copies.retain(|_| doomed.next() == Some(true));
                }
                other => return Err(odd(*node, &other)),
            }
        }
        Ok(copies)
    }

    /// Returns whether the table is still the one of the beginning. Call it when the counts were looked at.
    pub(crate) fn is_same_table(&self) -> Result<bool> {
        let Some(cluster) = &self.engine.cluster else { return Ok(true) };
        Ok(cluster.others.everybody()?.table == self.table)
    }

    /// Returns whether a partition may have moved here since the beginning. The caller keeps others from committing.
    /// Then what was seen of the counts holds until the batch is logged.
    pub(crate) fn has_moved(&self) -> bool {
        self.engine.cluster.as_ref().is_some_and(|cluster| cluster.moves() != self.moves)
    }

    fn ask(&self, node: u32, step: &RemovalStep) -> Result<RemovalAnswer> {
        let gone = || EngineError::Inconsistent { why: "it is no node of a cluster".to_owned() };
        self.engine.cluster.as_ref().ok_or_else(gone)?.others.remove(node, step)
    }
}

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        for node in &self.nodes {
            if let Err(error) = self.ask(*node, &RemovalStep::End { removal: self.removal }) {
                tracing::debug!(node, %error, "a node does not know yet that a removal is over; it is told again");
                self.engine.removing.untold.lock().insert(*node, self.removal);
            }
        }
    }
}

fn not_watched(node: u32) -> EngineError {
    let why = format!("node {node} has begun another one, or this node has opened its log since");
    EngineError::Invalid { what: "a removal".into(), why }
}

fn odd(node: u32, answer: &RemovalAnswer) -> EngineError {
    EngineError::OtherNode { why: format!("node {node}: it answered {answer:?} to a step of a removal") }
}

impl Engine {
    /// Takes part in a removal of another node. Errors: the removal must end without having removed anything.
    pub fn remove_for(&self, node: u32, step: &RemovalStep) -> Result<RemovalAnswer> {
        self.writable()?;
        match step {
            RemovalStep::Permit => self.permission(),
            RemovalStep::Watch { removal, names } => self.watch_for(node, *removal, names),
            RemovalStep::Settle { removal } => self.settle_for(node, *removal),
            RemovalStep::Doom { removal, copies } => self.doom_for(node, *removal, copies),
            RemovalStep::End { removal } => {
                let mut theirs = self.removing.theirs.lock();
                if theirs.get(&node).is_some_and(|theirs| theirs.removal == *removal) {
                    self.end(&mut theirs, node);
                }
                Ok(RemovalAnswer::Done)
            }
        }
    }

    fn permission(&self) -> Result<RemovalAnswer> {
        if !self.knows_append_only() {
            return Ok(RemovalAnswer::Done);
        }
        drop(self.permit_deletion("remove unused chunks")?);
        Ok(RemovalAnswer::Permitted)
    }

    fn watch_for(&self, node: u32, removal: u64, names: &[Fingerprint]) -> Result<RemovalAnswer> {
        let permission = self.permission()?;
        if let Some(why) = self.why_nothing_is_removed()? {
            return Ok(RemovalAnswer::Held(why));
        }
        let mut theirs = self.removing.theirs.lock();
        // A request may be late. It must not end what a later one has doomed.
        if theirs.get(&node).is_some_and(|theirs| theirs.removal > removal) {
            return Err(not_watched(node));
        }
        // What an earlier one has doomed, and perhaps removed.
        self.end(&mut theirs, node);
        self.reclaiming.watch().begin(Remover::Node(node), names.iter().copied());
        theirs.insert(node, Theirs { removal, moment: self.reclaiming.moment(), has_doomed: false });
        Ok(permission)
    }

    /// Returns from where on guards are waited for. Errors: this opening does not watch for that removal.
    fn moment_of(&self, node: u32, removal: u64) -> Result<u64> {
        let theirs = self.removing.theirs.lock();
        let theirs = theirs.get(&node).filter(|theirs| theirs.removal == removal);
        theirs.map(|theirs| theirs.moment).ok_or_else(|| not_watched(node))
    }

    fn settle_for(&self, node: u32, removal: u64) -> Result<RemovalAnswer> {
        if !self.reclaiming.are_gone_before(self.moment_of(node, removal)?) {
            return Ok(RemovalAnswer::NotYet);
        }
        self.flush()?;
        if let Err(error) = self.deliver_changes() {
            return Ok(RemovalAnswer::Undelivered(error.to_string()));
        }
        Ok(match self.readers(&|| false)? {
            Err(()) => RemovalAnswer::NotYet,
            Ok(readers) => readers.kept_for.map_or(RemovalAnswer::Done, RemovalAnswer::Kept),
        })
    }

    fn doom_for(&self, node: u32, removal: u64, copies: &[Candidate]) -> Result<RemovalAnswer> {
        let _permit = match self.knows_append_only() {
            true => Some(self.permit_deletion("remove unused chunks")?),
            false => None,
        };
        // Under this lock no other removal of that node begins, and this one does not end.
        let mut theirs = self.removing.theirs.lock();
        let Some(theirs) = theirs.get_mut(&node).filter(|theirs| theirs.removal == removal) else {
            return Err(not_watched(node));
        };
        theirs.has_doomed = true;
        let doomed: Vec<bool> = copies.iter().map(|copy| self.reclaiming.watch().doom(Remover::Node(node), &copy.fingerprint)).collect();
        let these = || copies.iter().zip(&doomed).filter(|(_, doomed)| **doomed).map(|(copy, _)| copy);
        // Catalogs that are open have them until then, and nobody asks any more.
        self.filters.removed(&these().map(|copy| copy.fingerprint).collect::<Vec<_>>());
        let is_believed =
            |copy: &&Candidate| self.containers.as_ref().is_some_and(|containers| containers.is_of_this_opening(copy.address.origin()));
        let origins: BTreeSet<Origin> = these().filter(is_believed).map(|copy| copy.address.origin()).collect();
        self.filters.doubt(&origins.into_iter().collect::<Vec<_>>());
        Ok(RemovalAnswer::Doomed(doomed))
    }

    /// Ends what removals of a node have begun here. Chunks that they have doomed may be removed by now: no cache has
    /// them.
    pub(crate) fn end_removals_of(&self, node: u32) {
        self.end(&mut self.removing.theirs.lock(), node);
    }

    fn end(&self, theirs: &mut BTreeMap<u32, Theirs>, node: u32) {
        if theirs.remove(&node).is_some() {
            self.reclaiming.watch().end(Remover::Node(node));
        }
    }

    /// Returns whether this node knows if the store is in append-only mode.
    pub(crate) fn knows_append_only(&self) -> bool {
        self.cluster.is_none() || self.objects.has_partition(0)
    }

    /// Checks that what is stored may be deleted, if only another node knows that.
    pub(crate) fn ask_for_permission(&self) -> Result<()> {
        let Some(cluster) = self.cluster.as_ref().filter(|_| !self.knows_append_only()) else { return Ok(()) };
        let mut failed = None;
        for node in cluster.others.everybody()?.nodes {
            match cluster.others.remove(node, &RemovalStep::Permit) {
                Ok(RemovalAnswer::Permitted) => return Ok(()),
                Ok(_) => {}
                // Another one may know.
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)?;
        Err(EngineError::OtherNode { why: "objects go from one node to another at the moment; try again".to_owned() })
    }

    /// Waits until no chunk is doomed here by another node, and nobody deletes here. Errors: that takes too long.
    pub(crate) fn nobody_deletes(&self) -> Result<parking_lot::RwLockWriteGuard<'_, ()>> {
        let until = Instant::now() + SWITCH_WITHIN;
        loop {
            let guard = self.deletions.write();
            if !self.removing.has_doomed() {
                return Ok(guard);
            }
            drop(guard);
            if Instant::now() >= until {
                let why = "another node is removing chunks; try again when it has ended".to_owned();
                return Err(EngineError::OtherNode { why });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Marks slots of this node's containers as dead: their chunks were removed by the owners of their index
    /// partitions. Durable on return. May be repeated. Errors: another node has one of the partitions of containers.
    pub fn take_dead(&self, copies: &[Candidate]) -> Result<()> {
        self.writable()?;
        let containers = self.need_containers()?;
        let check_here = || match copies.iter().find(|copy| !containers.has_partition_of(copy.address)) {
            None => Ok(()),
            Some(copy) => Err(EngineError::OtherNode {
                why: format!("another node has partition {} of the containers", container_of(copy.address).partition()),
            }),
        };
        check_here()?;
        // No merge moves them meanwhile.
        let Some(_one) = self.reclaiming.alone_within(TAKEN_WITHIN) else {
            return Err(EngineError::OtherNode { why: "it is removing chunks or merging containers".to_owned() });
        };
        let mut dead = DeadChanges::default();
        let mut by_address: Vec<Candidate> = copies.to_vec();
        by_address.sort_unstable();
        for run in by_address.chunk_by(|one, next| one.address.origin() == next.address.origin()) {
            let origin = run[0].address.origin();
            let (file, slots) = match self.storage.chunks_beside(origin) {
                Ok(found) => found,
                Err(_) if !self.storage.has_chunks_of(origin)? => continue,
                Err(error) if error.is_damage() => {
                    tracing::warn!(%error, "chunks in a damaged container were removed; they stay counted as live");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
            let wanted: BTreeSet<Candidate> = run.iter().copied().collect();
            for (number, (address, slot)) in slots.iter().enumerate() {
                if wanted.contains(&Candidate { address: *address, fingerprint: slot.fingerprint }) {
                    dead.set(file, of_bytes, number, slot.length_bytes, true);
                }
            }
        }
        self.make_room_in_log();
        self.with_room_in_the_log(|write| {
            let _guard = self.commits.alone();
            self.writable()?;
            // What is noted behind the end of an ownership, the next owner does not read.
            check_here()?;
            let (mut changes, dead_bytes, dead_slots) = dead.changes(&self.objects)?;
            if changes.is_empty() {
                return Ok(());
            }
            let mut totals = *self.totals.lock();
            totals.chunks = totals.chunks.saturating_add_signed(-dead_slots);
            totals.dead_bytes = totals.dead_bytes.saturating_add_signed(dead_bytes);
            changes.push(totals.change(&self.objects));
            let records: Vec<_> = encode_objects(&changes).collect();
            let effects = Effects { changes: &changes, ..Effects::default() };
            self.log_and_apply(write, Prepared::default(), &records, effects)?;
            *self.totals.lock() = totals;
            Ok(())
        })
    }

    /// Tells other nodes that removals are over, and the owners of containers which of their chunks were removed here.
    /// Errors: some were not told yet.
    pub(crate) fn tell_of_removals(&self) -> Result<()> {
        let Some(cluster) = self.cluster.as_ref().filter(|_| self.removing.has_to_tell()) else { return Ok(()) };
        let _one = self.removing.telling.lock();
        let mut result = Ok(());
        let untold = self.removing.untold.lock().clone();
        for (node, removal) in untold {
            match cluster.others.remove(node, &RemovalStep::End { removal }) {
                Ok(_) => self.told_end(node, removal),
                // One that is gone has nothing doomed.
                Err(_) if !cluster.others.everybody()?.nodes.contains(&node) => self.told_end(node, removal),
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.removing.has_to_tell.store(false, Ordering::SeqCst);
        let own = self.objects.own_partition();
        let mut from = vec![TELL_PREFIX];
        loop {
            let page = match self.objects.range(own, &from, &[TELL_PREFIX + 1], PAGE) {
                Ok(page) => page,
                Err(error) => {
                    result = result.and(Err(error.into()));
                    break;
                }
            };
            let Some((last, _)) = page.last() else { break };
            from = [&last[..], &[0]].concat();
            // One that cannot be told does not keep the others from it.
            let mut told: Vec<Change> = Vec::new();
            for (key, value) in page {
                match self.tell_of_dead(&value) {
                    Ok(()) => told.push((own, key, None)),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            let _committing = self.commits.alone();
            if let Err(error) = self.writable().and_then(|()| self.log_changes(&told)) {
                result = result.and(Err(error));
                break;
            }
        }
        result.inspect_err(|_| self.removing.must_tell())
    }

    fn told_end(&self, node: u32, removal: u64) {
        let mut untold = self.removing.untold.lock();
        if untold.get(&node) == Some(&removal) {
            untold.remove(&node);
        }
    }

    /// Tells the owners of containers what a note has.
    fn tell_of_dead(&self, note: &[u8]) -> Result<()> {
        let mut by_partition: BTreeMap<u16, Vec<Candidate>> = BTreeMap::new();
        for copy in decode(note, self.digest_bytes())? {
            by_partition.entry(container_of(copy.address).partition()).or_default().push(copy);
        }
        by_partition.into_iter().try_for_each(|(partition, copies)| match (self.has_containers_of(partition), &self.cluster) {
            (false, Some(cluster)) => cluster.others.dead(partition, &copies),
            _ => self.take_dead(&copies),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_storage::ContainerId;

    #[test]
    fn dead_copies_are_read_as_written_and_garbage_is_refused() {
        let copy = |slot| Candidate {
            address: Address::new(ContainerId::new(3, 7), slot),
            fingerprint: Fingerprint::from_digest(&[slot as u8; 20]),
        };
        let copies: Vec<Candidate> = (0..3).map(copy).collect();
        let value = encode(&copies, 20);
        assert_eq!(decode(&value, 20).unwrap(), copies);
        assert!((0..value.len()).all(|length| decode(&value[..length], 20).is_err()));
        assert!(decode(&[&value[..], &[0]].concat(), 20).is_err() && decode(&[&[9][..], &value[1..]].concat(), 20).is_err());
        let mut dead = DeadElsewhere::default();
        (0..2500u32).for_each(|_| dead.add(5, copies[0]));
        let changes = dead.changes(9, Position(64), 20);
        assert_eq!((dead.count(), changes.len()), (2500, 3));
        assert!(changes.windows(2).all(|pair| pair[0].1 < pair[1].1), "each has a key of its own");
    }
}
