//! What all of a world share: true time, the queue of events, the bucket, the coordinator, the auditor; and what a
//! process sees of it.

use super::auditor::Auditor;
use super::bucket::{Reply, Request, Role, SimulatedBucket};
use super::coordinator::{Answer, Call, Coordinator};
use super::counts::{Count, Counted};
use super::logs::Values;
use super::process::{Input, ProcessId};
use onefold_cluster::{NodeNumber, Order, Prepared, Present, Report, Table};
use onefold_oplog::Partition;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Milliseconds of true time.
pub type Time = u64;
/// A register in a partition.
pub type Place = (Partition, u8);

pub const SESSION_MS: Time = 2000;
pub const REGISTERS: u8 = 2;
/// The coordinator, where machines are meant.
pub const COORDINATOR: usize = 99;

/// Messages between members and their master.
#[derive(Clone, Debug)]
pub enum Wire {
    /// To a node, with the newest table that the sender knows.
    Order(NodeNumber, Order, u64),
    Report(Report),
    Prepared(Prepared),
}

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Client {
    pub client: usize,
    pub operation: u64,
    pub place: Place,
    /// The write's id and value; `None`: it reads.
    pub write: Option<(u64, u64)>,
    pub floor: usize,
}

pub enum Event {
    Effect { who: ProcessId, slot: u64, task: u64, request: Request, sent: Time, answer_after: Option<Time> },
    Wake { who: ProcessId, slot: u64, task: u64, reply: Reply },
    To { who: ProcessId, input: Input },
    Call { who: ProcessId, asked_ms: u64, call: Call },
    Resume { who: ProcessId },
    Expire,
    Client(usize),
    GiveUp { client: usize, operation: u64 },
    Reply { request: Client, value: Option<u64> },
    Fault,
    Restart { machine: usize, life: u64 },
    ComeBack,
    Trims,
    Calm,
    Look,
}

pub struct Core {
    pub now: Time,
    pub sequence: u64,
    pub queue: BTreeMap<(Time, u64), Event>,
    pub dice: u64,
    pub unique: u64,
    pub slots: BTreeMap<u64, Option<Reply>>,
    pub bucket: SimulatedBucket,
    /// When each batch came to be, and the newest table.
    pub batch_times: BTreeMap<(u32, u64), Time>,
    pub newest: Table,
    pub coordinator: Coordinator,
    pub auditor: Auditor,
    pub is_rough: bool,
    pub presents: BTreeMap<usize, Present>,
    pub sessions: BTreeMap<u64, Present>,
    /// Cut from one machine to another. The coordinator is machine 99.
    pub cuts: BTreeSet<(usize, usize)>,
    pub stopped: BTreeSet<usize>,
    pub gone: BTreeSet<usize>,
    pub counted: Counted,
    pub operations: BTreeMap<usize, u64>,
    pub operation: u64,
    pub table_before_outage: Option<u64>,
    pub has_asked_to_leave: bool,
    /// Whether it tells what happens.
    pub tells: bool,
    pub trace: u64,
}

impl Core {
    pub fn below(&mut self, end: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    pub fn at(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.queue.insert((time.max(self.now), self.sequence), event);
    }

    pub fn after(&mut self, time: Time, event: Event) {
        self.at(self.now + time, event);
    }

    pub fn count(&mut self, what: Count) {
        self.counted[what as usize] += 1;
        if self.tells && what != Count::Events {
            eprintln!("{:6} {what:?}", self.now);
        }
    }

    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            eprintln!("{:6} {}", self.now, what());
        }
    }

    /// What a message takes between two machines; `None`: it is lost.
    pub fn transit(&mut self, from: usize, to: usize) -> Option<Time> {
        let is_lost = self.cuts.contains(&(from, to)) || self.is_rough && self.below(100) == 0;
        let time = if self.is_rough && self.below(40) == 0 { self.below(1500) } else { 1 + self.below(8) };
        (!is_lost).then_some(time)
    }

    pub fn views_changed(&mut self) {
        let sessions: Vec<(u64, ProcessId)> =
            self.coordinator.data.sessions.iter().filter_map(|(id, session)| Some((*id, session.who?))).collect();
        for (session, who) in sessions {
            if let Some(time) = self.transit(COORDINATOR, who.machine) {
                let late = if self.is_rough && self.below(10) == 0 { self.below(3000) } else { 0 };
                let answer = self.coordinator.view(session);
                self.after(time + late, Event::To { who, input: Input::Coordinator { asked_ms: 0, answer } });
            }
        }
    }
}

/// What a process has of the world.
#[derive(Clone)]
pub struct Io {
    pub core: Rc<RefCell<Core>>,
    pub who: ProcessId,
    pub task: u64,
}

struct Waiting {
    core: Rc<RefCell<Core>>,
    slot: u64,
}

impl Future for Waiting {
    type Output = Reply;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Reply> {
        let slots = &mut self.core.borrow_mut().slots;
        match slots.get_mut(&self.slot).and_then(Option::take) {
            Some(reply) => {
                slots.remove(&self.slot);
                Poll::Ready(reply)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.core.borrow_mut().slots.remove(&self.slot);
    }
}

impl Io {
    pub fn request(&self, request: Request) -> impl Future<Output = Reply> + use<> {
        let core = &mut *self.core.borrow_mut();
        let slot = core.sequence;
        core.slots.insert(slot, None);
        let is_put = matches!(
            request,
            Request::PutNode { .. }
                | Request::PutBatch { .. }
                | Request::PutManifest { .. }
                | Request::PutPiece { .. }
                | Request::PutTable(_)
        );
        let (mut before, mut after, mut is_lost) = (5 + core.below(25), 2 + core.below(10), false);
        if let Request::Sleep(time) = request {
            (before, after) = (time, 0);
        } else if core.is_rough {
            match core.below(150) {
                0 if is_put => (before, after, is_lost) = (core.below(12_000), 0, true),
                1 if is_put => (after, is_lost) = (2000, true),
                2 | 3 => before += core.below(2500),
                4 | 5 => after += core.below(2500),
                _ => {}
            }
        }
        let sent = core.now;
        let answer_after = (!is_lost).then_some(after);
        let (who, task) = (self.who, self.task);
        if is_lost {
            core.after(2500, Event::Wake { who, slot, task, reply: Reply::Unknown });
        }
        core.after(before, Event::Effect { who, slot, task, request, sent, answer_after });
        Waiting { core: self.core.clone(), slot }
    }

    pub fn for_task(&self, who: ProcessId) -> Io {
        Io { core: self.core.clone(), who, task: self.unique() }
    }

    pub fn now(&self) -> Time {
        self.core.borrow().now
    }

    pub fn below(&self, end: u64) -> u64 {
        self.core.borrow_mut().below(end)
    }

    pub fn is_rough(&self) -> bool {
        self.core.borrow().is_rough
    }

    pub fn unique(&self) -> u64 {
        let core = &mut *self.core.borrow_mut();
        core.unique += 1;
        core.unique
    }

    pub fn count(&self, what: Count) {
        self.core.borrow_mut().count(what);
    }

    pub fn tell(&self, what: impl FnOnce() -> String) {
        self.core.borrow().tell(|| format!("machine {}: {}", self.who.machine, what()));
    }

    pub fn input_after(&self, time: Time, who: ProcessId, input: Input) {
        self.core.borrow_mut().after(time, Event::To { who, input });
    }

    pub fn call(&self, who: ProcessId, asked_ms: u64, call: Call) {
        let core = &mut *self.core.borrow_mut();
        if let Call::Connect(present) = call {
            core.presents.insert(who.machine, present);
        }
        if let Some(time) = core.transit(who.machine, COORDINATOR) {
            core.after(time, Event::Call { who, asked_ms, call });
        }
    }

    /// Whether a session was begun by this opening.
    pub fn is_session_of(&self, session: u64, present: Present) -> bool {
        self.core.borrow().sessions.get(&session) == Some(&present)
    }

    pub fn send_to_master(&self, who: ProcessId, message: Wire) {
        let core = &mut *self.core.borrow_mut();
        let master = core.coordinator.master().and_then(|session| core.coordinator.data.sessions[&session].who);
        let Some(master) = master else { return };
        if let Some(time) = core.transit(who.machine, master.machine) {
            core.after(time, Event::To { who: master, input: Input::Message(message) });
        }
    }

    pub fn send_to_node(&self, who: ProcessId, node: NodeNumber, message: Wire) {
        let core = &mut *self.core.borrow_mut();
        let to = core.coordinator.data.sessions.values().filter(|session| session.present.node == node).find_map(|session| session.who);
        let Some(to) = to else { return };
        if let Some(time) = core.transit(who.machine, to.machine) {
            core.after(time, Event::To { who: to, input: Input::Message(message) });
        }
    }

    pub fn stopped(&self, machine: usize) {
        let core = &mut *self.core.borrow_mut();
        if core.cuts.contains(&(machine, COORDINATOR)) || core.cuts.contains(&(COORDINATOR, machine)) {
            core.count(Count::Order27CutOffStopped);
        }
        if core.now < core.coordinator.away_until {
            core.stopped.insert(machine);
            if core.stopped.len() == core.coordinator.data.alive.len() {
                core.count(Count::Order30AllStopped);
            }
        }
    }

    /// Whether the newest table names another opening as the owner.
    pub fn serves_elsewhere(&self, who: ProcessId, partition: Partition) -> bool {
        let core = self.core.borrow();
        let owner = core.newest.get(partition).map(|assigned| assigned.owner());
        let opening = owner.and_then(|owner| core.newest.opening(owner));
        let named = owner.zip(opening).map(|(node, opening)| Present { node, opening });
        named != core.presents.get(&who.machine).copied()
    }

    pub fn left(&self, who: ProcessId) {
        self.core.borrow_mut().gone.insert(who.machine);
    }

    pub fn floors(&self, partition: Partition) -> BTreeMap<u8, usize> {
        let auditor = &mut self.core.borrow_mut().auditor;
        (0..REGISTERS).map(|register| (register, auditor.begin((partition, register)))).collect()
    }

    pub fn check_reader(&self, partition: Partition, values: &Values, floors: &BTreeMap<u8, usize>) {
        self.core.borrow_mut().auditor.check_reader(partition, values, floors);
    }

    pub fn refuse(&self, request: Client) {
        self.answer(request, None);
    }

    pub fn reply(&self, request: Client, value: u64) {
        self.answer(request, Some(value));
    }

    fn answer(&self, request: Client, value: Option<u64>) {
        let core = &mut *self.core.borrow_mut();
        let time = 1 + core.below(10);
        core.after(time, Event::Reply { request, value });
    }
}

impl Core {
    pub fn execute(&mut self, request: &Request, sent: Time) -> Reply {
        let (reply, is_new) = self.bucket.execute(request);
        match (request, &reply) {
            (Request::PutBatch { node, number, batch }, Reply::Done) if is_new => {
                if *number < self.bucket.newest_manifest(*node).first {
                    // It was trimmed and deleted; this copy of it was late.
                    self.count(Count::LeftoverOfATrim);
                    return reply;
                }
                self.batch_times.insert((*node, *number), self.now);
                batch.records.iter().for_each(|record| self.auditor.became_durable(record));
                if self.below(24) == 0 {
                    let at = self.below(self.newest.partitions.len() as u64) as usize;
                    self.check_replay(at);
                }
            }
            (Request::PutBatch { node, number, batch }, Reply::Taken) if batch.role == Role::Ordinary => {
                let fence = self.batch_times.get(&(*node, *number)).copied();
                if fence.is_some_and(|fence| fence > sent) {
                    self.count(Count::Order2PutArrivedBehindTheFence);
                } else {
                    self.count(Count::Order1OwnerFoundItsLogFenced);
                }
            }
            (Request::PutTable(table), Reply::Done) if is_new => {
                self.tell(|| format!("{table:?}"));
                self.auditor.check_table(Some(&self.newest), table);
                self.newest = (**table).clone();
                self.count(Count::TablesPut);
                if self.now - sent > SESSION_MS {
                    self.count(Count::Order6LateTableIsTheNext);
                }
                self.check_all();
            }
            (Request::PutTable(_), Reply::TableTaken(_)) => {
                self.count(Count::Order5TwoPutOneNumber);
                if self.now - sent > SESSION_MS {
                    self.count(Count::Order6LateTable);
                }
            }
            _ => {}
        }
        reply
    }

    pub fn check_all(&mut self) {
        (0..self.newest.partitions.len()).for_each(|at| self.check_replay(at));
    }

    fn check_replay(&mut self, at: usize) {
        let partition = self.newest.partitions[at].partition;
        self.auditor.check_replay(&self.bucket, &self.newest, partition, REGISTERS);
    }

    pub fn called(&mut self, who: ProcessId, asked_ms: u64, call: &Call) {
        if self.now < self.coordinator.away_until {
            return;
        }
        let expired = self.coordinator.expire(self.now);
        if let Call::Connect(present) = call {
            self.tell(|| format!("machine {} connects as {present:?}", who.machine));
        }
        let (answer, changed) = self.coordinator.call(self.now, who, call);
        if let (Call::Connect(present), Some(Answer::View { session, .. })) = (call, &answer) {
            self.sessions.insert(*session, *present);
        }
        if let (Some(answer), Some(time)) = (answer, self.transit(COORDINATOR, who.machine)) {
            self.after(time, Event::To { who, input: Input::Coordinator { asked_ms, answer } });
        }
        if self.table_before_outage.take().is_some_and(|table| table == self.newest.number) {
            self.count(Count::Order30SameTable);
        }
        if expired || changed {
            self.views_changed();
        }
    }

    pub fn answered(&mut self, request: &Client, value: Option<u64>) {
        if self.operations.get(&request.client) != Some(&request.operation) {
            return;
        }
        match (value, request.write) {
            (Some(_), Some((id, _))) => self.auditor.acknowledge_write(request.place, id, request.floor),
            (Some(value), None) => self.auditor.answer_read(request.place, value, request.floor),
            (None, _) => {}
        }
        self.next_operation(request.client, request.operation);
    }

    pub fn next_operation(&mut self, client: usize, operation: u64) {
        if self.operations.get(&client) == Some(&operation) {
            self.operations.remove(&client);
            let time = 10 + self.below(300);
            self.after(time, Event::Client(client));
        }
    }
}
