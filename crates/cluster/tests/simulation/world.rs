//! The world: true time, a queue of events, what is shared, clients and faults. One seed decides everything.

use super::auditor::Auditor;
use super::bucket::{Reply, Request, Role, SimulatedBucket};
use super::coordinator::{Answer, Call, Coordinator, Data};
use super::logs::Values;
use super::process::{Input, Process, ProcessId};
use onefold_cluster::{Counts, NodeNumber, Order, Prepared, Present, Report, Table};
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
const ROUGH_MS: Time = 16_000;
/// When faults have ended, everything is served again within this time.
const BOUND_MS: Time = 40_000;
const CLIENTS: usize = 3;
const PATIENCE_MS: Time = 1500;

/// What seeds meet, all together. The names begin with unsafe orders of `docs/cluster.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Order1OwnerFoundItsLogFenced,
    Order2PutArrivedBehindTheFence,
    Order3WokenOwnerStopped,
    Order4AnswerUnderWay,
    Order5TwoPutOneNumber,
    Order6LateTable,
    Order7DiedBetween,
    Order7ClosedByTwo,
    Order8FormerOpening,
    Order8Closed,
    Order9DiedAdopting,
    Order10LongLineage,
    Order11ReaderBeganAgain,
    Order27CutOffStopped,
    Order30AllStopped,
    Order30SameTable,
    Order31Empty,
    Order31OldData,
    Order36CameBack,
    Order37MergeFenced,
    Order42ReaderBeganAgain,
    LeftoverOfATrim,
    Trimmed,
    Restated,
    Left,
    TablesPut,
    Acknowledged,
    Read,
    Events,
}

impl Count {
    pub const ALL: [Count; 29] = [
        Count::Order1OwnerFoundItsLogFenced,
        Count::Order2PutArrivedBehindTheFence,
        Count::Order3WokenOwnerStopped,
        Count::Order4AnswerUnderWay,
        Count::Order5TwoPutOneNumber,
        Count::Order6LateTable,
        Count::Order7DiedBetween,
        Count::Order7ClosedByTwo,
        Count::Order8FormerOpening,
        Count::Order8Closed,
        Count::Order9DiedAdopting,
        Count::Order10LongLineage,
        Count::Order11ReaderBeganAgain,
        Count::Order27CutOffStopped,
        Count::Order30AllStopped,
        Count::Order30SameTable,
        Count::Order31Empty,
        Count::Order31OldData,
        Count::Order36CameBack,
        Count::Order37MergeFenced,
        Count::Order42ReaderBeganAgain,
        Count::LeftoverOfATrim,
        Count::Trimmed,
        Count::Restated,
        Count::Left,
        Count::TablesPut,
        Count::Acknowledged,
        Count::Read,
        Count::Events,
    ];
}

pub type Counted = [u64; Count::ALL.len()];

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

enum Event {
    Effect { who: ProcessId, slot: u64, task: u64, request: Request, sent: Time, answer_after: Option<Time> },
    Wake { who: ProcessId, slot: u64, task: u64, reply: Reply },
    To { who: ProcessId, input: Input },
    Call { who: ProcessId, asked_ms: u64, call: Call },
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

struct Core {
    now: Time,
    sequence: u64,
    queue: BTreeMap<(Time, u64), Event>,
    dice: u64,
    unique: u64,
    slots: BTreeMap<u64, Option<Reply>>,
    bucket: SimulatedBucket,
    /// When each batch came to be, and the newest table.
    batch_times: BTreeMap<(u32, u64), Time>,
    newest: Table,
    coordinator: Coordinator,
    auditor: Auditor,
    is_rough: bool,
    presents: BTreeMap<usize, Present>,
    sessions: BTreeMap<u64, Present>,
    /// Cut from one machine to another. The coordinator is machine 99.
    cuts: BTreeSet<(usize, usize)>,
    stopped: BTreeSet<usize>,
    gone: BTreeSet<usize>,
    counted: Counted,
    operations: BTreeMap<usize, u64>,
    operation: u64,
    table_before_outage: Option<u64>,
    has_asked_to_leave: bool,
    /// Whether it tells what happens.
    tells: bool,
    trace: u64,
}

const COORDINATOR: usize = 99;

impl Core {
    fn below(&mut self, end: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn at(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.queue.insert((time.max(self.now), self.sequence), event);
    }

    fn after(&mut self, time: Time, event: Event) {
        self.at(self.now + time, event);
    }

    fn count(&mut self, what: Count) {
        self.counted[what as usize] += 1;
        if self.tells && what != Count::Events {
            eprintln!("{:6} {what:?}", self.now);
        }
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            eprintln!("{:6} {}", self.now, what());
        }
    }

    /// What a message takes between two machines; `None`: it is lost.
    fn transit(&mut self, from: usize, to: usize) -> Option<Time> {
        let is_lost = self.cuts.contains(&(from, to)) || self.is_rough && self.below(100) == 0;
        let time = if self.is_rough && self.below(40) == 0 { self.below(1500) } else { 1 + self.below(8) };
        (!is_lost).then_some(time)
    }

    fn views_changed(&mut self) {
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
    core: Rc<RefCell<Core>>,
    who: ProcessId,
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

    pub fn input_at(&self, time: Time, who: ProcessId, input: Input) {
        self.core.borrow_mut().at(time, Event::To { who, input });
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

pub struct World {
    core: Rc<RefCell<Core>>,
    processes: Vec<Process>,
    calm_at: Time,
    is_over: bool,
    served_at: Option<Time>,
    crashing: Option<(usize, bool)>,
}

/// Runs a seed. Returns what it met, and a hash of all that happened. Panics when something is wrong.
pub fn run(seed: u64, tells: bool) -> (Counted, u64) {
    let mut world = World::new(seed, tells);
    while !world.is_over {
        world.step();
    }
    let core = world.core.borrow();
    let mut counted = core.counted;
    counted[Count::Acknowledged as usize] = core.auditor.acknowledged;
    counted[Count::Read as usize] = core.auditor.read;
    drop(core);
    let trace = world.core.borrow().trace;
    (counted, trace)
}

impl World {
    fn new(seed: u64, tells: bool) -> World {
        let counts = Counts { chunk_index: 2, objects: 2, containers: 1 };
        let first = Table::first(counts, NodeNumber(0), 1);
        let bucket = SimulatedBucket::new();
        bucket.tables.put(&first).expect("the first table is right");
        let mut core = Core {
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            dice: seed,
            unique: 0,
            slots: BTreeMap::new(),
            bucket,
            batch_times: BTreeMap::new(),
            newest: first,
            coordinator: Coordinator::new(0),
            auditor: Auditor::default(),
            is_rough: true,
            presents: BTreeMap::new(),
            sessions: BTreeMap::new(),
            cuts: BTreeSet::new(),
            stopped: BTreeSet::new(),
            gone: BTreeSet::new(),
            counted: [0; Count::ALL.len()],
            operations: BTreeMap::new(),
            operation: 0,
            table_before_outage: None,
            has_asked_to_leave: false,
            tells,
            trace: 0,
        };
        // Clocks run apart by a third at most: 1.2 / 0.82 is less than 1.5.
        let rate = |core: &mut Core| 820 + core.below(380);
        let coordinator_rate = rate(&mut core);
        core.coordinator = Coordinator::new(SESSION_MS * 1000 / coordinator_rate);
        let machines = 2 + core.below(3) as usize;
        let clocks: Vec<(u64, u64)> = (0..machines).map(|_| (rate(&mut core), core.below(1 << 30))).collect();
        core.bucket.execute(&Request::PutNode { number: 0, owner: 0 });
        core.at(ROUGH_MS, Event::Calm);
        core.after(1500, Event::Fault);
        core.after(700, Event::Trims);
        core.after(SESSION_MS / 4, Event::Expire);
        (0..CLIENTS).for_each(|client| core.after(400, Event::Client(client)));
        let core = Rc::new(RefCell::new(core));
        let mut processes = Vec::new();
        for (machine, (rate, offset)) in clocks.into_iter().enumerate() {
            let id = ProcessId { machine, life: 0 };
            let io = Io { core: core.clone(), who: id, task: 0 };
            let mut process = Process::new(io, machine, rate, offset + 1);
            process.number = (machine == 0).then_some(NodeNumber(0));
            core.borrow_mut().after(machine as u64 * 300, Event::To { who: id, input: Input::Start });
            processes.push(process);
        }
        World { core, processes, calm_at: ROUGH_MS, is_over: false, served_at: None, crashing: None }
    }

    fn step(&mut self) {
        let event = {
            let core = &mut *self.core.borrow_mut();
            let ((time, sequence), event) = core.queue.pop_first().expect("processes tick for ever");
            core.now = time;
            core.count(Count::Events);
            core.trace = (core.trace ^ time ^ sequence.rotate_left(32) ^ core.dice).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            event
        };
        match event {
            Event::To { who, input } => self.deliver(who, input),
            Event::Wake { who, slot, task, reply } => self.wake(who, slot, task, reply),
            Event::Effect { who, slot, task, request, sent, answer_after } => {
                let core = &mut *self.core.borrow_mut();
                let reply = core.execute(&request, sent);
                if let Some(time) = answer_after {
                    core.after(time, Event::Wake { who, slot, task, reply });
                }
            }
            Event::Call { who, asked_ms, call } => self.core.borrow_mut().called(who, asked_ms, &call),
            Event::Expire => {
                let core = &mut *self.core.borrow_mut();
                core.after(50, Event::Expire);
                let before: Vec<u64> = core.coordinator.data.sessions.keys().copied().collect();
                if core.now >= core.coordinator.away_until && core.coordinator.expire(core.now) {
                    core.tell(|| format!("of sessions {before:?} there are {:?}", core.coordinator.data.sessions.keys()));
                    core.views_changed();
                }
            }
            Event::Client(client) => self.begin(client),
            Event::GiveUp { client, operation } => self.core.borrow_mut().next_operation(client, operation),
            Event::Reply { request, value } => self.core.borrow_mut().answered(&request, value),
            Event::Fault => {
                self.fault();
                // Not while the fault holds what is shared.
                if let Some((machine, keeps_state)) = self.crashing.take() {
                    self.processes[machine].crash(keeps_state);
                }
            }
            Event::Restart { machine, life } => {
                let process = &mut self.processes[machine];
                if process.id.life == life && !process.is_up {
                    process.handle(Input::Start);
                }
            }
            Event::ComeBack => {
                let core = &mut *self.core.borrow_mut();
                let now = core.now;
                if now >= core.coordinator.away_until {
                    core.coordinator.come_back(now);
                    core.stopped.clear();
                }
            }
            Event::Trims => {
                let core = &mut *self.core.borrow_mut();
                let time = 200 + core.below(600);
                core.after(time, Event::Trims);
                let machine = core.below(self.processes.len() as u64) as usize;
                core.after(0, Event::To { who: self.processes[machine].id, input: Input::Trim });
            }
            Event::Calm => self.calm(),
            Event::Look => self.look(),
        }
    }

    fn deliver(&mut self, who: ProcessId, input: Input) {
        let process = &mut self.processes[who.machine];
        if process.id != who || !process.is_up && !matches!(input, Input::Start) {
            return;
        }
        if process.paused_until > self.core.borrow().now {
            let until = process.paused_until;
            self.core.borrow_mut().at(until, Event::To { who, input });
            return;
        }
        process.handle(input);
        self.check_owners(who.machine);
    }

    fn wake(&mut self, who: ProcessId, slot: u64, task: u64, reply: Reply) {
        let process = &mut self.processes[who.machine];
        if process.id != who {
            return;
        }
        let core = &mut *self.core.borrow_mut();
        if process.paused_until > core.now {
            core.at(process.paused_until, Event::Wake { who, slot, task, reply });
            return;
        }
        let Some(waiting) = core.slots.get_mut(&slot) else { return };
        waiting.get_or_insert(reply);
        core.after(0, Event::To { who, input: Input::Wake { task } });
    }

    /// One process at most answers for a partition.
    fn check_owners(&self, machine: usize) {
        let newest: Vec<Partition> = self.core.borrow().newest.partitions.iter().map(|assigned| assigned.partition).collect();
        for partition in newest {
            if self.processes[machine].answers(partition) {
                let other = self.processes.iter().find(|process| process.id.machine != machine && process.answers(partition));
                if let Some(other) = other {
                    panic!("{partition:?} is answered for by machines {machine} and {}", other.id.machine);
                }
            }
        }
    }

    fn begin(&mut self, client: usize) {
        let core = &mut *self.core.borrow_mut();
        core.operation += 1;
        let operation = core.operation;
        core.operations.insert(client, operation);
        let at = core.below(core.newest.partitions.len() as u64) as usize;
        let (partition, owner) = (core.newest.partitions[at].partition, core.newest.partitions[at].owner());
        let place = (partition, core.below(REGISTERS.into()) as u8);
        let is_write = core.below(2) == 0;
        let value = if core.below(6) == 0 { 0 } else { operation };
        let request = Client { client, operation, place, write: is_write.then_some((operation, value)), floor: core.auditor.begin(place) };
        if is_write {
            core.auditor.begin_write(operation, value);
        }
        let is_owner = |process: &&Process| process.member.present().is_some_and(|present| present.node == owner);
        let to_owner = core.below(4) > 0;
        let machine = core.below(self.processes.len() as u64) as usize;
        let to = self.processes.iter().find(is_owner).filter(|_| to_owner).unwrap_or(&self.processes[machine]).id;
        let time = 1 + core.below(10);
        core.after(time, Event::To { who: to, input: Input::Request(request) });
        core.after(PATIENCE_MS, Event::GiveUp { client, operation });
    }

    fn fault(&mut self) {
        let core = &mut *self.core.borrow_mut();
        if !core.is_rough {
            return;
        }
        let time = 200 + core.below(2200);
        core.after(time, Event::Fault);
        let now = core.now;
        let count = self.processes.len() as u64;
        let machine = core.below(count) as usize;
        match core.below(20) {
            0..6 => {
                let long = core.below(3) == 0;
                let pause = if long { core.below(SESSION_MS * 4) } else { core.below(SESSION_MS * 3 / 2) };
                let process = &mut self.processes[machine];
                process.paused_until = process.paused_until.max(now + pause);
                core.tell(|| format!("machine {machine} pauses for {pause}"));
            }
            6..10 => {
                let keeps_state = core.below(4) > 0;
                let time = if core.below(3) == 0 { core.below(4000) } else { core.below(400) };
                let life = self.processes[machine].id.life + 1;
                core.after(time, Event::Restart { machine, life });
                core.tell(|| format!("machine {machine} crashes, for {time}"));
                self.crashing = Some((machine, keeps_state));
            }
            10 | 11 => {
                let time = 300 + core.below(5000);
                core.coordinator.away_until = now + time;
                core.tell(|| format!("the coordinator is away for {time}"));
                core.table_before_outage = Some(core.newest.number);
                core.after(time, Event::ComeBack);
            }
            12 => {
                core.count(Count::Order31Empty);
                core.coordinator.restore(now, Data::default());
            }
            13 => {
                core.count(Count::Order31OldData);
                let old = core.coordinator.old.clone();
                core.coordinator.restore(now, old);
            }
            14 | 15 => {
                let pair = if core.below(2) == 0 { (machine, COORDINATOR) } else { (COORDINATOR, machine) };
                core.cuts.insert(pair);
            }
            16 => {
                let other = core.below(count) as usize;
                core.cuts.insert((machine, other));
            }
            17 | 18 => core.cuts.clear(),
            _ => {
                if count > 2 && !std::mem::replace(&mut core.has_asked_to_leave, true) {
                    core.after(0, Event::To { who: self.processes[machine].id, input: Input::Leave });
                }
                core.coordinator.old = core.coordinator.data.clone();
            }
        }
    }

    /// Faults end. What was sent before may still arrive late.
    fn calm(&mut self) {
        for process in &mut self.processes {
            process.paused_until = 0;
        }
        let core = &mut *self.core.borrow_mut();
        core.is_rough = false;
        core.cuts.clear();
        core.coordinator.away_until = core.coordinator.away_until.min(core.now);
        core.coordinator.come_back(core.now);
        for process in self.processes.iter().filter(|process| !process.is_up) {
            let event = Event::Restart { machine: process.id.machine, life: process.id.life };
            core.after(1, event);
        }
        core.after(500, Event::Look);
    }

    fn look(&mut self) {
        let partitions: Vec<Partition> = self.core.borrow().newest.partitions.iter().map(|assigned| assigned.partition).collect();
        let all = partitions.into_iter().all(|partition| self.processes.iter().any(|process| process.answers(partition)));
        let processes: Vec<String> = self.processes.iter().map(Process::describe).collect();
        let core = &mut *self.core.borrow_mut();
        assert!(
            all || self.served_at.is_some() || core.now < self.calm_at + BOUND_MS,
            "not everything is served {BOUND_MS} ms after the last fault: {:?}, {:?}\n{}",
            core.newest,
            core.coordinator.data.alive,
            processes.join("\n")
        );
        if all {
            self.served_at.get_or_insert(core.now);
        }
        if self.served_at.is_some_and(|served_at| core.now >= served_at + 2500) {
            core.check_all();
            self.is_over = true;
        }
        core.after(500, Event::Look);
    }
}

impl Core {
    fn execute(&mut self, request: &Request, sent: Time) -> Reply {
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

    fn check_all(&mut self) {
        (0..self.newest.partitions.len()).for_each(|at| self.check_replay(at));
    }

    fn check_replay(&mut self, at: usize) {
        let partition = self.newest.partitions[at].partition;
        self.auditor.check_replay(&self.bucket, &self.newest, partition, REGISTERS);
    }

    fn called(&mut self, who: ProcessId, asked_ms: u64, call: &Call) {
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

    fn answered(&mut self, request: &Client, value: Option<u64>) {
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

    fn next_operation(&mut self, client: usize, operation: u64) {
        if self.operations.get(&client) == Some(&operation) {
            self.operations.remove(&client);
            let time = 10 + self.below(300);
            self.after(time, Event::Client(client));
        }
    }
}
