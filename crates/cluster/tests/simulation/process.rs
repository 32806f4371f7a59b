//! A process: member and master, its log, its local state, and what executes their effects.

use super::bucket::{Reply, Request};
use super::coordinator::{Answer, Call};
use super::counts::Count;
use super::logs::{self, Opened, SharedLog, Values};
use super::shared::{Client, Io, Place, SESSION_MS, Time, Wire};
use super::work::Job;
use onefold_cluster::{
    Link, Master, MasterEffect, MasterEvent, Member, MemberEffect, MemberEvent, NodeNumber, Order, Outcome, Phase, Present, Right, Search,
    Table, View,
};
use onefold_oplog::{Partition, Position};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A machine, and how often its process was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId {
    pub machine: usize,
    pub life: u64,
}

/// What happens to a process.
pub enum Input {
    Start,
    Tick,
    /// A task may go on.
    Wake {
        task: u64,
    },
    Coordinator {
        asked_ms: u64,
        answer: Answer,
    },
    /// Of an order to a member: the node that is meant.
    Message(Wire),
    Request(Client),
    /// The second half of a request: the node may answer.
    Act(Client),
    /// A pause has ended.
    GoOn,
    Trim,
    Leave,
}

pub enum Effect {
    Member(MemberEffect),
    Master(MasterEffect),
}

/// What came of a task.
pub enum Came {
    Numbered(NodeNumber),
    Opened(Opened),
    Found(Option<Table>),
    Closed(NodeNumber, Option<Position>),
    Put(u64, u64, Outcome),
    Applied {
        partition: Partition,
        epoch: u64,
        values: Values,
    },
    /// Of a log, whether the batch is in it.
    Committed(SharedLog, bool),
    Trimmed,
    Collected {
        partition: Partition,
        epoch: u64,
    },
    Read {
        partition: Partition,
        lineage: Vec<Link>,
        floors: BTreeMap<u8, usize>,
        values: Values,
        newest: Option<Table>,
    },
}

type Task = Pin<Box<dyn Future<Output = Came>>>;

pub struct Process {
    pub id: ProcessId,
    pub is_up: bool,
    pub paused_until: Time,
    /// Local milliseconds in 1000 of true time, and what the clock says at true time 0.
    pub rate: u64,
    pub offset: u64,
    /// What survives a restart.
    pub number: Option<NodeNumber>,
    pub member: Member,
    pub master: Option<Master>,
    /// What the master is told when the member hears again: the newest view, and what does not come again.
    pub unheard_view: Option<View>,
    pub unheard: Vec<MasterEvent>,
    pub session: Option<(u64, Present)>,
    pub version: u64,
    /// The session's last answer, by the local clock.
    pub heard_ms: u64,
    /// It was stopped when it was looked at last.
    pub was_stopped: bool,
    pub log: Option<SharedLog>,
    pub state: BTreeMap<Partition, (u64, Values)>,
    /// What was written since restating of its partition began.
    pub touched: BTreeSet<Place>,
    pub jobs: VecDeque<Job>,
    /// The batch under way: its jobs, and the value that each leaves in a register.
    pub committing: Vec<(Job, Option<(Place, u64)>)>,
    pub tasks: BTreeMap<u64, Task>,
    pub is_trimming: bool,
    pub is_reading: bool,
    /// It closed a log, and no table says so yet.
    pub has_closed: bool,
    pub io: Io,
    /// What came while it paused.
    pub inbox: VecDeque<Input>,
    /// Effects that wait because it paused before executing them.
    pub held_back: Vec<Effect>,
}

impl Process {
    pub fn new(io: Io, machine: usize, rate: u64, offset: u64) -> Process {
        Process {
            id: ProcessId { machine, life: 0 },
            is_up: false,
            paused_until: 0,
            rate,
            offset,
            number: None,
            member: Member::new(SESSION_MS),
            master: None,
            unheard_view: None,
            unheard: Vec::new(),
            session: None,
            version: 0,
            heard_ms: 0,
            was_stopped: false,
            log: None,
            state: BTreeMap::new(),
            touched: BTreeSet::new(),
            jobs: VecDeque::new(),
            committing: Vec::new(),
            tasks: BTreeMap::new(),
            is_trimming: false,
            is_reading: false,
            has_closed: false,
            io,
            inbox: VecDeque::new(),
            held_back: Vec::new(),
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let Process { id, is_up, session, member, master, tasks, jobs, .. } = self;
        format!("{id:?} {is_up} {session:?} {} tasks, {} jobs: {member:?} {master:?}", tasks.len(), jobs.len())
    }

    pub fn now_ms(&self) -> u64 {
        self.offset + self.io.now() * self.rate / 1000
    }

    /// Ends, with everything in memory.
    pub fn crash(&mut self, keeps_state: bool) {
        if self.member.table().zip(self.member.present()).is_some_and(|(table, present)| {
            table.owned_by(present).any(|assigned| self.member.may_answer(assigned.partition, self.now_ms()) == Right::Wait)
        }) {
            self.io.count(Count::Order9DiedAdopting);
        }
        let restates = |job: &Job| matches!(job, Job::Restate { .. });
        if self.jobs.iter().chain(self.committing.iter().map(|(job, _)| job)).any(restates) {
            self.io.count(Count::Order41DiedRestating);
        }
        if self.has_closed {
            self.io.count(Count::Order7DiedBetween);
        }
        let (io, rate, offset, number) = (self.io.clone(), self.rate, self.offset, self.number.filter(|_| keeps_state));
        let id = ProcessId { life: self.id.life + 1, ..self.id };
        *self = Process { id, number, ..Process::new(io, id.machine, rate, offset) };
    }

    /// Whether it would answer now if it were asked.
    pub fn answers(&self, partition: Partition) -> bool {
        self.is_up && matches!(self.member.may_answer(partition, self.now_ms()), Right::All | Right::Reads)
    }

    pub fn handle(&mut self, input: Input) {
        // Effects are executed in order, whatever pauses.
        std::mem::take(&mut self.held_back).into_iter().for_each(|effect| self.execute(effect));
        match input {
            Input::Start => {
                self.is_up = true;
                match self.number {
                    Some(number) => self.member(MemberEvent::Numbered(number)),
                    None => self.execute(Effect::Member(MemberEffect::TakeNumber)),
                }
                self.io.input_after(1, self.id, Input::Tick);
            }
            Input::Tick => {
                self.tick();
                let served: Vec<_> = self.served();
                self.io.tell(|| format!("at {}: {:?} answers for {served:?}", self.now_ms(), self.member.phase()));
            }
            Input::Wake { task } => self.poll(task),
            Input::Coordinator { asked_ms, answer } => self.hear(asked_ms, answer),
            Input::Message(message) => self.receive(message),
            Input::Request(client) => self.check(client),
            Input::Act(client) => self.act(client),
            Input::GoOn => {}
            Input::Trim => self.trim(),
            Input::Leave => self.member(MemberEvent::Leave),
        }
    }

    /// For people.
    fn served(&self) -> Vec<(u8, u16)> {
        let partitions = self.member.table().map(|table| table.partitions.iter().map(|assigned| assigned.partition).collect::<Vec<_>>());
        let answered = partitions.into_iter().flatten().filter(|partition| self.answers(*partition));
        answered.map(|partition| (partition.class as u8, partition.number)).collect()
    }

    fn tick(&mut self) {
        let now_ms = self.now_ms();
        self.io.input_after(SESSION_MS / 5, self.id, Input::Tick);
        if let Some(present) = self.member.present() {
            let is_lost = self.session.is_some() && now_ms > self.heard_ms + SESSION_MS * 3 / 2;
            if is_lost {
                self.over();
            } else {
                let call = match self.session {
                    Some((session, _)) => Call::Ask(session),
                    None => Call::Connect(present),
                };
                self.io.call(self.id, now_ms, call);
            }
        }
        let stopped = self.member.phase() == Phase::In && !self.member.hears(now_ms);
        if stopped && !self.was_stopped {
            self.io.stopped(self.id.machine);
        }
        self.was_stopped = stopped;
        self.member(MemberEvent::Tick);
        self.master(MasterEvent::Tick);
        self.restate();
        self.read_elsewhere();
    }

    /// The opening and its session are over.
    pub fn over(&mut self) {
        self.io.tell(|| "its opening is over".to_owned());
        if let Some(present) = self.member.present() {
            self.member(MemberEvent::Over(present.opening));
        }
    }

    fn hear(&mut self, asked_ms: u64, answer: Answer) {
        match answer {
            Answer::Expired { session } => {
                if self.session.is_some_and(|(own, _)| own == session) {
                    self.session = None;
                    if self.member.phase() == Phase::In {
                        self.io.count(Count::Order44SessionLostWhileIn);
                    }
                    self.over();
                }
            }
            Answer::View { session, version, view } => {
                let Some(present) = self.member.present() else { return };
                if self.session.is_none() && self.io.is_session_of(session, present) {
                    self.session = Some((session, present));
                    self.io.tell(|| format!("has session {session} as {present:?} at {}", self.now_ms()));
                    self.master = Some(Master::new(SESSION_MS));
                    (self.unheard_view, self.unheard) = (None, Vec::new());
                    self.version = 0;
                }
                if self.session.is_none_or(|(own, _)| own != session) {
                    return;
                }
                // A watch says nothing of when this was asked.
                if asked_ms > 0 {
                    self.heard_ms = self.heard_ms.max(asked_ms);
                    self.member(MemberEvent::Heard { opening: present.opening, asked_ms });
                }
                if version >= self.version {
                    self.version = version;
                    if let Some(number) = view.table {
                        self.member(MemberEvent::Heads { number });
                    }
                    self.master(MasterEvent::View(view));
                }
            }
        }
    }

    fn receive(&mut self, message: Wire) {
        match message {
            Wire::Order(node, order, table) => {
                if self.member.present().is_some_and(|present| present.node == node) {
                    self.member(MemberEvent::Heads { number: table });
                    self.member(MemberEvent::Order(order));
                }
            }
            Wire::Report(report) => self.master(MasterEvent::Report(report)),
            Wire::Prepared(prepared) => self.master(MasterEvent::Prepared(prepared)),
        }
    }

    pub fn member(&mut self, event: MemberEvent) {
        if let MemberEvent::Table(table) = &event
            && let Some(present) = self.member.present()
            && table.opening(present.node).is_some_and(|opening| opening < present.opening)
            && table.partitions.iter().any(|assigned| assigned.owner() == present.node)
        {
            self.io.count(Count::Order8FormerOpening);
        }
        let effects = self.member.handle(event);
        self.execute_all(effects.into_iter().map(Effect::Member).collect());
    }

    /// Tells the master, if the member hears (unsafe order 52). Otherwise what does not come again is kept.
    fn master(&mut self, event: MasterEvent) {
        let now_ms = self.now_ms();
        let Some(master) = &mut self.master else { return };
        match event {
            MasterEvent::View(view) => self.unheard_view = Some(view),
            event => self.unheard.push(event),
        }
        if !self.member.hears(now_ms) {
            self.unheard.retain(|event| !matches!(event, MasterEvent::Report(_) | MasterEvent::Prepared(_) | MasterEvent::Tick));
            return;
        }
        let view = self.unheard_view.take().map(MasterEvent::View);
        let events = view.into_iter().chain(std::mem::take(&mut self.unheard));
        let effects: Vec<MasterEffect> = events.flat_map(|event| master.handle(now_ms, event)).collect();
        self.execute_all(effects.into_iter().map(Effect::Master).collect());
    }

    /// Executes effects; sometimes the process pauses before.
    fn execute_all(&mut self, effects: Vec<Effect>) {
        if effects.is_empty() {
            return;
        }
        if !self.held_back.is_empty() {
            self.held_back.extend(effects);
        } else if self.io.is_rough() && self.io.below(400) == 0 {
            self.pause();
            self.held_back = effects;
        } else {
            effects.into_iter().for_each(|effect| self.execute(effect));
        }
    }

    pub fn pause(&mut self) {
        let long = self.io.below(4) == 0;
        let pause = if long { self.io.below(SESSION_MS * 4) } else { self.io.below(SESSION_MS) };
        self.paused_until = self.paused_until.max(self.io.now() + pause);
        self.io.tell(|| format!("pauses in the middle for {pause}"));
    }

    pub fn spawn(&mut self, make: impl FnOnce(Io) -> Task) {
        let io = self.io.for_task(self.id);
        let task = io.task;
        self.tasks.insert(task, make(io));
        self.poll(task);
    }

    fn poll(&mut self, task: u64) {
        let Some(future) = self.tasks.get_mut(&task) else { return };
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            self.tasks.remove(&task);
            self.done(outcome);
        }
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Member(effect) => self.execute_member(effect),
            Effect::Master(effect) => self.execute_master(effect),
        }
    }

    fn execute_member(&mut self, effect: MemberEffect) {
        match effect {
            MemberEffect::TakeNumber => {
                self.number = None;
                let hint = self.member.table().map_or(0, |table| table.nodes.len() as u32);
                self.spawn(|io| Box::pin(take_number(io, hint)));
            }
            MemberEffect::OpenLog(node) => {
                self.number = Some(node);
                self.end_session();
                self.log = None;
                self.jobs.clear();
                self.spawn(|io| {
                    Box::pin(async move {
                        io.request(Request::Sleep(20)).await;
                        Came::Opened(logs::open(io.clone(), node.0).await)
                    })
                });
            }
            MemberEffect::Join(present) => {
                self.end_session();
                self.heard_ms = self.now_ms();
                self.io.call(self.id, self.now_ms(), Call::Connect(present));
            }
            MemberEffect::FindTable { hint } => self.spawn(|io| Box::pin(find(io, hint))),
            MemberEffect::Hold(held) => {
                if let Some(log) = &self.log {
                    log.borrow_mut().held = held;
                }
            }
            MemberEffect::Apply { partition, epoch, lineage } => self.spawn(|io| {
                Box::pin(async move {
                    let values = logs::replay(&io, partition, &lineage).await;
                    Came::Applied { partition, epoch, values }
                })
            }),
            MemberEffect::LogAdopted { partition, epoch } => self.push(Job::Adopted { partition, epoch }),
            MemberEffect::Collect { partition, epoch } => self.spawn(|io| {
                Box::pin(async move {
                    io.request(Request::Sleep(1 + io.below(40))).await;
                    Came::Collected { partition, epoch }
                })
            }),
            MemberEffect::Release { partition, epoch } => self.push(Job::Release { partition, epoch }),
            MemberEffect::Drop { partition } => drop(self.state.remove(&partition)),
            MemberEffect::Follow { .. } | MemberEffect::Unfollow { .. } => {}
            MemberEffect::Uncut(position) => {
                if let Some(log) = &self.log {
                    let cuts = &mut log.borrow_mut().cuts;
                    if let Some(at) = cuts.iter().position(|cut| *cut == position) {
                        cuts.swap_remove(at);
                    }
                }
            }
            MemberEffect::Jump { table, at_least } => self.push(Job::Jump { table, at_least }),
            MemberEffect::Report(report) => self.io.send_to_master(self.id, Wire::Report(report)),
            MemberEffect::Prepared(prepared) => self.io.send_to_master(self.id, Wire::Prepared(prepared)),
            MemberEffect::Left => {
                self.io.count(Count::Left);
                self.end_session();
                self.number = None;
                self.io.left(self.id);
            }
        }
    }

    fn execute_master(&mut self, effect: MasterEffect) {
        match effect {
            MasterEffect::FindTable { hint } => self.spawn(|io| Box::pin(find(io, hint))),
            MasterEffect::Close { node } => {
                self.spawn(|io| Box::pin(async move { Came::Closed(node, logs::close(io, node.0).await) }));
            }
            MasterEffect::Put(table) => {
                let session = self.session.map_or(0, |(session, _)| session);
                self.spawn(|io| Box::pin(put_table(io, session, table)));
            }
            MasterEffect::Announce { number } => {
                if let Some((session, _)) = self.session {
                    self.io.call(self.id, 0, Call::Announce(session, number));
                }
            }
            MasterEffect::Send { node, order } => {
                if matches!(order, Order::OpenAgain { .. }) {
                    self.io.count(Count::Order49ToldToOpenAgain);
                }
                let table = self.master.as_ref().and_then(Master::table).map_or(0, |table| table.number);
                self.io.send_to_node(self.id, node, Wire::Order(node, order, table));
            }
        }
    }

    fn end_session(&mut self) {
        if let Some((session, _)) = self.session.take() {
            self.io.call(self.id, 0, Call::End(session));
        }
        self.master = None;
    }

    fn done(&mut self, outcome: Came) {
        match outcome {
            Came::Numbered(number) => {
                self.number = Some(number);
                self.member(MemberEvent::Numbered(number));
            }
            Came::Opened(Opened::Log(log)) => {
                let opening = onefold_cluster::Opening(log.borrow().epoch);
                self.log = Some(log);
                self.committing.clear();
                self.member(MemberEvent::Opened(opening));
            }
            Came::Opened(Opened::Closed) => {
                self.io.count(Count::Order8Closed);
                self.member(MemberEvent::Closed);
            }
            Came::Opened(Opened::Failed) => {
                if let Some(number) = self.number {
                    self.execute(Effect::Member(MemberEffect::OpenLog(number)));
                }
            }
            Came::Found(table) => {
                let Some(table) = table else { return };
                self.member(MemberEvent::Table(Arc::new(table.clone())));
                self.master(MasterEvent::Table(table));
            }
            Came::Closed(node, Some(end)) => {
                self.has_closed = true;
                self.master(MasterEvent::Closed { node, end });
            }
            Came::Closed(node, None) => self.master(MasterEvent::NotClosed { node }),
            Came::Put(session, number, outcome) => {
                self.has_closed &= outcome == Outcome::Unknown;
                if self.session.is_some_and(|(own, _)| own == session) {
                    self.master(MasterEvent::Put { number, outcome });
                }
            }
            Came::Applied { partition, epoch, values } => {
                let is_adopting = self.member.table().and_then(|table| table.get(partition)).is_some_and(|now| now.epoch == epoch);
                if is_adopting && self.member.may_answer(partition, self.now_ms()) != Right::Refuse {
                    self.state.insert(partition, (epoch, values));
                }
                self.member(MemberEvent::Applied { partition, epoch });
            }
            Came::Committed(log, is_done) => {
                if self.log.as_ref().is_some_and(|now| Rc::ptr_eq(now, &log)) {
                    self.committed(is_done);
                }
            }
            Came::Trimmed => self.is_trimming = false,
            Came::Collected { partition, epoch } => self.member(MemberEvent::Collected { partition, epoch }),
            Came::Read { partition, lineage, floors, values, newest } => {
                self.is_reading = false;
                let now = newest.as_ref().and_then(|table| table.get(partition)).map(|assigned| &assigned.lineage);
                // What was read under a lineage that is no longer the one says nothing.
                match now == Some(&lineage) {
                    true => self.io.check_reader(partition, &values, &floors),
                    false => self.io.count(Count::Order42ReaderBeganAgain),
                }
            }
        }
    }
}

async fn take_number(io: Io, hint: u32) -> Came {
    let owner = io.unique();
    let mut number = hint;
    loop {
        match io.request(Request::PutNode { number, owner }).await {
            Reply::Done => return Came::Numbered(NodeNumber(number)),
            Reply::Taken => number += 1,
            _ => {}
        }
    }
}

pub async fn find(io: Io, hint: u64) -> Came {
    let mut search = Search::new(hint);
    while let Some(number) = search.next() {
        match io.request(Request::GetTable(number)).await {
            Reply::Table(table) => search.answer(table),
            reply => panic!("{reply:?}"),
        }
    }
    Came::Found(search.found())
}

async fn put_table(io: Io, session: u64, table: Table) -> Came {
    let number = table.number;
    let outcome = match io.request(Request::PutTable(Rc::new(table))).await {
        Reply::Done => Outcome::Done,
        Reply::TableTaken(winner) => Outcome::Taken(winner),
        _ => Outcome::Unknown,
    };
    Came::Put(session, number, outcome)
}
