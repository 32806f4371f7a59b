//! What the threads of a node share: the member, the newest table, and who is there.
//!
//! The member has a lock of its own, which is held for moments only: those that answer requests ask it, and the seat of
//! the event loop changes it. The rest is under another one. Where both are needed, the member's is taken first.

use crate::process::Event;
use crate::record::Records;
use onefold_cluster::{Member, NodeNumber, Right, Table, Tables};
use onefold_coordinator::{CoordinatorError, Event as OfCoordinator, Listed, Process};
use onefold_engine::Everybody;
use onefold_ground::time::TimeSource;
use onefold_interconnect::messages::Membership;
use onefold_interconnect::{Directory, Refusal, Rights};
use onefold_oplog::Partition;
use onefold_remote::transport::CertificateFingerprint;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

/// The life of a node that has ended.
pub(crate) const ENDED: u64 = u64::MAX;

pub(crate) struct Shared {
    pub(crate) records: Records,
    pub(crate) time: TimeSource,
    pub(crate) member: Arc<Mutex<Member>>,
    pub(crate) state: Mutex<State>,
    pub(crate) events: Sender<Event>,
    /// Counts how often the log was opened, or tried to be. What came of an earlier opening says nothing.
    life: AtomicU64,
    /// Somebody has spoken of a newer table, and the event loop has not taken that in yet.
    is_told_of_table: AtomicBool,
}

#[derive(Default)]
pub(crate) struct State {
    /// The newest table. It may be newer than the member's, for a moment.
    pub(crate) table: Option<Arc<Table>>,
    /// Those that are alive, by the newest view.
    pub(crate) alive: BTreeMap<NodeNumber, Listed>,
    pub(crate) is_master: bool,
    /// What does not work at the moment.
    pub(crate) trouble: Option<String>,
    /// Why the node has ended by itself.
    pub(crate) failure: Option<CoordinatorError>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("life", &self.life).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(records: Records, time: TimeSource, session_ms: u64, events: Sender<Event>) -> Shared {
        Shared {
            records,
            time,
            member: Arc::new(Mutex::new(Member::new(session_ms))),
            state: Mutex::default(),
            events,
            life: AtomicU64::new(0),
            is_told_of_table: AtomicBool::new(false),
        }
    }

    pub(crate) fn life(&self) -> u64 {
        self.life.load(Ordering::SeqCst)
    }

    /// Begins the next life.
    pub(crate) fn next_life(&self) -> u64 {
        self.life.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Ends the node. What works for it ends by itself.
    pub(crate) fn end(&self) {
        self.life.store(ENDED, Ordering::SeqCst);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.life() == ENDED
    }

    /// Tells the event loop. It may be gone.
    pub(crate) fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Says that the event loop has heard of a newer table.
    pub(crate) fn heard_of_table(&self) {
        self.is_told_of_table.store(false, Ordering::SeqCst);
    }

    /// Returns the newest table.
    pub(crate) fn newest(&self) -> Option<Arc<Table>> {
        self.state.lock().table.clone()
    }

    /// Notes a table. Returns the one before, if this one is newer.
    pub(crate) fn learn(&self, table: &Arc<Table>) -> Option<Option<Arc<Table>>> {
        let mut state = self.state.lock();
        let is_newer = state.table.as_ref().is_none_or(|known| known.number < table.number);
        is_newer.then(|| state.table.replace(table.clone()))
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        let mut state = self.state.lock();
        if let Some(trouble) = &trouble
            && state.trouble.as_ref() != Some(trouble)
        {
            tracing::warn!("{trouble}");
        }
        state.trouble = trouble;
    }

    /// Returns the owner of a partition by the newest table, and the epoch of its ownership.
    fn owner(&self, partition: Partition) -> Option<(u32, u64)> {
        let table = self.newest()?;
        let assigned = table.get(partition)?;
        Some((assigned.owner().0, assigned.epoch))
    }

    /// Returns what may be done with a request for a partition that has come before this call.
    pub(crate) fn right(&self, partition: Partition) -> Right {
        let member = self.member.lock();
        // The clock is read under the lock: whatever the member learns meanwhile comes behind.
        member.may_answer(partition, self.now_ms())
    }
}

impl Process for Shared {
    fn now_ms(&self) -> u64 {
        self.time.read().boot_ns / 1_000_000
    }

    fn tell(&self, event: OfCoordinator) {
        self.send(Event::Coordinator(event));
    }
}

/// What one opening may answer, and whom it asks.
#[derive(Debug)]
pub(crate) struct OfOpening {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tables: Tables,
    pub(crate) life: u64,
}

impl Rights for OfOpening {
    fn is_over(&self) -> bool {
        self.shared.life() != self.life
    }

    fn may_answer(&self, partition: Partition, epoch: u64) -> Result<(), Refusal> {
        let member = self.shared.member.lock();
        // A request that has waited in an earlier opening is not this one's to answer.
        if self.shared.life() != self.life {
            return Err(Refusal::NotOwned);
        }
        let right = member.may_answer(partition, self.shared.now_ms());
        match right {
            Right::All if member.served(partition) == Some(epoch) => Ok(()),
            Right::Reads | Right::Wait => Err(Refusal::Later("the partition comes or goes".to_owned())),
            Right::All | Right::Refuse | Right::Stopped => Err(Refusal::NotOwned),
        }
    }

    fn may_collect(&self, from: u32, partition: Partition, epoch: u64) -> Result<(), Refusal> {
        if self.shared.life() != self.life {
            return Err(Refusal::NotOwned);
        }
        // By this table the node sends its claims.
        let known = self.shared.owner(partition);
        match known {
            Some(owner) if owner == (from, epoch) => Ok(()),
            Some((_, known)) if known >= epoch => Err(Refusal::NotOwned),
            _ => Err(Refusal::Later("the table is not known here yet".to_owned())),
        }
    }

    fn membership(&self, from: u32, message: Membership) {
        self.shared.send(Event::Message { life: self.life, from: NodeNumber(from), message });
    }
}

impl Directory for OfOpening {
    fn fingerprint(&self, node: u32) -> Option<CertificateFingerprint> {
        match self.shared.records.get(NodeNumber(node)) {
            Ok(record) => record.map(|record| record.fingerprint),
            Err(error) => {
                tracing::warn!(node, %error, "the certificate of a node cannot be looked up");
                None
            }
        }
    }

    fn address(&self, node: u32) -> Option<String> {
        self.shared.state.lock().alive.get(&NodeNumber(node)).map(|listed| listed.address.clone())
    }

    fn nodes(&self) -> Vec<u32> {
        self.shared.newest().iter().flat_map(|table| &table.nodes).map(|present| present.node.0).collect()
    }

    fn table(&self) -> u64 {
        self.shared.newest().map_or(0, |table| table.number)
    }

    fn owner(&self, partition: Partition) -> Option<(u32, u64)> {
        self.shared.owner(partition)
    }

    fn everybody(&self) -> Result<Everybody, String> {
        let known = self.shared.newest().map_or(0, |table| table.number);
        let newest = self.tables.newest(known).map_err(|error| format!("the newest table cannot be found: {error}"))?;
        let table = newest.ok_or("there is no table")?;
        let alive: Vec<u32> = self.shared.state.lock().alive.keys().map(|node| node.0).collect();
        let nodes: BTreeSet<u32> = table.nodes.iter().map(|present| present.node.0).chain(alive).collect();
        let mut end = nodes.last().map_or(0, |last| last + 1);
        let records = &self.shared.records;
        while records.get(NodeNumber(end)).map_err(|error| format!("the numbers of nodes cannot be read: {error}"))?.is_some() {
            end += 1;
        }
        let gone = (0..end).filter(|number| !nodes.contains(number)).collect();
        Ok(Everybody { table: table.number, nodes: nodes.into_iter().collect(), gone })
    }

    fn may_answer(&self) -> bool {
        let member = self.shared.member.lock();
        self.shared.life() == self.life && member.hears(self.shared.now_ms())
    }

    fn heads(&self, table: u64) {
        // Once is enough: of a newer table, somebody speaks again.
        if !self.shared.is_told_of_table.swap(true, Ordering::SeqCst) {
            self.shared.send(Event::Heads(table));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_bucket::MemoryBucket;
    use onefold_cluster::{Counts, MemberEvent, Opening, Present};
    use onefold_ground::time::Reading;
    use onefold_oplog::PartitionClass;
    use std::sync::mpsc::channel;

    const SESSION_MS: u64 = 3000;

    fn partition(number: u16) -> Partition {
        Partition { class: PartitionClass::ChunkIndex, number }
    }

    /// A node 0 that has an opening by table 1, and serves nothing yet.
    fn shared(clock_ms: &Arc<AtomicU64>) -> (Arc<Shared>, OfOpening, std::sync::mpsc::Receiver<Event>) {
        let (events, queue) = channel();
        let clock_ms = clock_ms.clone();
        let read = move || Reading { wall_ns: 0, boot: 1, boot_ns: clock_ms.load(Ordering::SeqCst) * 1_000_000 };
        let records = Records::new(Arc::new(MemoryBucket::new()), [1; 16]);
        let shared = Arc::new(Shared::new(records, TimeSource::of(read), SESSION_MS, events));
        let life = shared.next_life();
        let first = Table::first(Counts { chunk_index: 2, objects: 1, containers: 1 }, NodeNumber(0), 5);
        let mut second = Table { number: 1, ..first };
        second.nodes[0].opening = Opening(7);
        second.partitions.iter_mut().for_each(|assigned| assigned.epoch = 6);
        let table = Arc::new(second);
        shared.learn(&table);
        let mut member = shared.member.lock();
        for event in [MemberEvent::Numbered(NodeNumber(0)), MemberEvent::Opened(Opening(7)), MemberEvent::Table(table)] {
            member.handle(event);
        }
        member.handle(MemberEvent::Heard { opening: Opening(7), asked_ms: 1 });
        drop(member);
        (shared.clone(), OfOpening { shared, tables: Tables::new(Arc::new(MemoryBucket::new()), [1; 16]), life }, queue)
    }

    #[test]
    fn m4_8_requests_wait_for_a_partition_that_comes_and_are_refused_after_two_thirds_of_a_session() {
        let clock_ms = Arc::new(AtomicU64::new(1));
        let (shared, rights, _queue) = shared(&clock_ms);
        assert!(matches!(Rights::may_answer(&rights, partition(0), 6), Err(Refusal::Later(_))));
        let steps = [
            MemberEvent::Applied { partition: partition(0), epoch: 6 },
            MemberEvent::Adopted { partition: partition(0), epoch: 6 },
            MemberEvent::Collected { partition: partition(0), epoch: 6 },
        ];
        for event in steps {
            assert!(matches!(Rights::may_answer(&rights, partition(0), 6), Err(Refusal::Later(_))), "{event:?}");
            shared.member.lock().handle(event);
        }
        assert_eq!(Rights::may_answer(&rights, partition(0), 6), Ok(()));
        assert_eq!(Rights::may_answer(&rights, partition(0), 5), Err(Refusal::NotOwned), "another ownership");
        assert_eq!(Rights::may_answer(&rights, partition(9), 6), Err(Refusal::NotOwned));
        clock_ms.store(1 + SESSION_MS * 2 / 3, Ordering::SeqCst);
        assert_eq!(Rights::may_answer(&rights, partition(0), 6), Err(Refusal::NotOwned), "it has not heard for too long");
        assert!(!Directory::may_answer(&rights));
        shared.member.lock().handle(MemberEvent::Heard { opening: Opening(7), asked_ms: 2000 });
        assert_eq!(Rights::may_answer(&rights, partition(0), 6), Ok(()));
        assert!(Directory::may_answer(&rights));
        // What is left of an earlier opening answers nothing.
        shared.next_life();
        assert!(!Directory::may_answer(&rights));
        assert_eq!(Rights::may_answer(&rights, partition(0), 6), Err(Refusal::NotOwned));
    }

    #[test]
    fn claims_are_told_to_the_owner_of_the_newest_table_only() {
        let (shared, rights, _queue) = shared(&Arc::new(AtomicU64::new(1)));
        assert_eq!(rights.may_collect(0, partition(1), 6), Ok(()));
        for (from, epoch) in [(1, 6), (0, 5), (1, 5)] {
            assert_eq!(rights.may_collect(from, partition(1), epoch), Err(Refusal::NotOwned));
        }
        assert!(matches!(rights.may_collect(1, partition(1), 7), Err(Refusal::Later(_))), "by a table that is not known here");
        assert_eq!(rights.nodes(), [0]);
        assert_eq!((shared.owner(partition(1)), shared.owner(partition(2))), (Some((0, 6)), None));
    }

    #[test]
    fn a_newer_table_is_spoken_of_once_until_the_loop_has_heard() {
        let (shared, directory, queue) = shared(&Arc::new(AtomicU64::new(1)));
        (5..9).for_each(|table| directory.heads(table));
        assert!(matches!(queue.try_recv(), Ok(Event::Heads(5))) && queue.try_recv().is_err());
        shared.heard_of_table();
        directory.heads(9);
        assert!(matches!(queue.try_recv(), Ok(Event::Heads(9))));
        let older = Arc::new(Table::first(Counts { chunk_index: 2, objects: 1, containers: 1 }, NodeNumber(0), 5));
        assert!(shared.learn(&older).is_none());
        let unused = Present { node: NodeNumber(0), opening: Opening(7) };
        assert_eq!(shared.member.lock().present(), Some(unused));
    }
}
