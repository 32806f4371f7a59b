//! The event loop: it gives events to the [`Seat`] with member and master, and executes what they want.
//!
//! # Invariants
//! * Member and master are told by this thread only. Their effects are executed in order, and before those of the next
//!   event.
//! * It never waits: what takes long runs on threads of its own ([`crate::jobs`]), and comes back as an event.
//! * Each opening has a number, its *life*. What came of an earlier one is dropped. Before the log is opened again,
//!   everything of the opening before has ended: first its right to answer, and its session. So a life has one session
//!   at most, and nothing that came of one master is told to the next.

use crate::Result;
use crate::context::Context;
use crate::identity::OwnIdentity;
use crate::jobs;
use crate::opening::{self, OpenLog, Opened};
use crate::shared::Shared;
use onefold_cluster::{
    Held, Link, MasterEffect, MasterEvent, MemberEffect, MemberEvent, NodeNumber, Order, Outcome, Released, Restated, Right, Table,
};
use onefold_coordinator::{CoordinatorError, Effect, Event as OfCoordinator, Seat, Session};
use onefold_engine::{Adoption, Engine, HeldPartition, LogPart};
use onefold_interconnect::Nodes;
use onefold_interconnect::messages::Membership;
use onefold_oplog::{Partition, PartitionClass, Position};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Ticks in a session.
const TICKS: u64 = 5;
/// The first pause before an opening that follows a short one, and the longest.
const REOPENING: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// An opening that was longer is no reason to pause.
const LONG: Duration = Duration::from_secs(10);

/// What happens to a node.
pub(crate) enum Event {
    /// From its session.
    Coordinator(OfCoordinator),
    /// From another node.
    Message { life: u64, from: NodeNumber, message: Membership },
    /// Somebody speaks of a table.
    Heads(u64),
    /// A job has ended.
    Came { life: u64, came: Came },
    /// The operator wants the node to leave.
    Leave,
    /// The node shall end.
    End,
}

/// What came of a job.
pub(crate) enum Came {
    Numbered(OwnIdentity),
    Opened(Opened),
    Found(Table),
    LogClosed {
        node: NodeNumber,
        end: Option<Position>,
    },
    Put {
        number: u64,
        outcome: Outcome,
    },
    Adopted(Vec<(Partition, u64)>),
    Collected(Vec<(Partition, u64)>),
    Released(Released),
    Jumped {
        table: u64,
        at_least: Position,
        end: Position,
    },
    /// Restating begins.
    Restating(Restated),
    /// It cannot begin now.
    NotRestating,
    Restated(Restated),
    Left,
    /// The opening cannot go on.
    Broken(String),
}

/// What the event loop leaves when it ends.
pub(crate) struct Rest {
    pub(crate) log: Option<OpenLog>,
    pub(crate) session: Option<Box<dyn Session>>,
}

pub(crate) struct Process {
    context: Arc<Context>,
    shared: Arc<Shared>,
    tick: Duration,
    life: u64,
    own: Option<OwnIdentity>,
    log: Option<OpenLog>,
    seat: Seat,
    /// What member and master want done: of each event, in order.
    todo: VecDeque<Vec<Effect>>,
    /// Ownerships that are being taken over.
    adopting: BTreeSet<(Partition, u64)>,
    /// Positions that the log is about to reach, with the table of the order.
    jumping: BTreeSet<(u64, Position)>,
    /// A partition of an index is being restated: one at a time.
    is_restating: bool,
    /// Partitions of containers that are being taken over behind other logs, and since where this one counts.
    restating: BTreeMap<Partition, Position>,
    /// Positions of which the member says that the log is cut there, and it is not: nothing of a partition of
    /// containers is in runs.
    uncut: Vec<Position>,
    /// Whether the log may be trimmed, as the engine knows.
    may_trim: bool,
    /// One take-over at a time.
    moving: Arc<Mutex<()>>,
    opened_at: Instant,
    pause: Duration,
}

impl Process {
    /// Errors: an address cannot be told to the coordinator.
    pub(crate) fn new(context: Arc<Context>) -> Result<Process> {
        let (settings, shared) = (&context.settings, context.shared.clone());
        let (coordinator, address, faces) = (settings.coordinator.clone(), context.address.clone(), settings.faces.clone());
        let tick = Duration::from_millis((coordinator.session_ms() / TICKS).max(1));
        let seat = Seat::new(coordinator, shared.clone(), shared.member.clone(), address, faces)?;
        Ok(Process {
            shared,
            tick,
            context,
            life: 0,
            own: None,
            log: None,
            seat,
            todo: VecDeque::new(),
            adopting: BTreeSet::new(),
            jumping: BTreeSet::new(),
            is_restating: false,
            restating: BTreeMap::new(),
            uncut: Vec::new(),
            may_trim: false,
            moving: Arc::default(),
            opened_at: Instant::now(),
            pause: Duration::ZERO,
        })
    }

    /// Handles events until the node ends.
    pub(crate) fn run(mut self, events: &Receiver<Event>) -> Rest {
        self.context.spawn(self.life, |context| jobs::take_number(context, None));
        let mut next_tick = Instant::now() + self.tick;
        let failure = loop {
            match events.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break None,
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + self.tick;
                self.pass();
            }
            let failure = self.execute_all();
            if failure.is_some() {
                break failure;
            }
        };
        self.shared.end();
        *self.context.engine.lock() = None;
        if let Some(error) = &failure {
            self.shared.set_trouble(Some(format!("the node has ended: {error}")));
            self.shared.state.lock().failure = failure;
        }
        Rest { log: self.log.take(), session: self.seat.take_session() }
    }

    /// Time has passed.
    fn pass(&mut self) {
        let lost = self.log.as_ref().and_then(|log| log.engine.has_lost_its_log().map(str::to_owned));
        if let Some(why) = lost {
            self.broken(&why);
        }
        let effects = self.seat.tick();
        self.execute_later(effects);
        self.restate_next();
    }

    fn tell(&mut self, event: MemberEvent) {
        let effects = self.seat.tell_member(event);
        self.execute_later(effects);
    }

    fn tell_master(&mut self, event: MasterEvent) {
        let effects = self.seat.tell_master(event);
        self.execute_later(effects);
    }

    fn execute_later(&mut self, effects: Vec<Effect>) {
        // A log that must not be trimmed is not, from now on.
        if !self.shared.member.lock().may_trim() {
            self.allow_trim(false);
        }
        self.todo.push_back(effects);
    }

    /// Begins to restate a partition of an index whose lineage is long, if there is one and no other is under way.
    fn restate_next(&mut self) {
        let is_of_index = |(partition, _): &(Partition, u64)| partition.class != PartitionClass::Container;
        let due = self.shared.member.lock().to_restate().find(is_of_index);
        let Some((partition, epoch)) = due.filter(|_| !self.is_restating && self.log.is_some()) else { return };
        self.is_restating = true;
        self.on_engine(move |_, engine| Some(jobs::begin_restating(engine, partition, epoch)));
    }

    /// Takes an event in.
    fn take(&mut self, event: Event) {
        match event {
            Event::Coordinator(event) => self.hear(event),
            Event::Message { life, from, message } if life == self.life => self.receive(from, message),
            Event::Came { life, came } => self.came(life, came),
            Event::Heads(number) => {
                self.shared.heard_of_table();
                self.tell(MemberEvent::Heads { number });
            }
            Event::Leave => self.tell(MemberEvent::Leave),
            Event::Message { .. } | Event::End => {}
        }
    }

    fn hear(&mut self, event: OfCoordinator) {
        if self.seat.joined() != Some(event.opening()) {
            return;
        }
        match &event {
            OfCoordinator::View { view, nodes, .. } => {
                let mut state = self.shared.state.lock();
                state.alive.clone_from(nodes);
                state.is_master = view.is_master;
            }
            OfCoordinator::Over { opening, error } => {
                self.shared.set_trouble(Some(format!("the session of opening {} is over: {error}", opening.0)));
            }
            OfCoordinator::Damaged { error, .. } => self.shared.set_trouble(Some(error.to_string())),
            OfCoordinator::Ahead { announced, found, .. } => {
                tracing::warn!(announced, found, "the coordinator speaks of a newer table than that of this node");
            }
            OfCoordinator::Heard { .. } => {}
        }
        let effects = self.seat.told(event);
        self.execute_later(effects);
    }

    fn receive(&mut self, from: NodeNumber, message: Membership) {
        match message {
            Membership::Report(report) => self.tell_master(MasterEvent::Report(report)),
            Membership::Prepared(prepared) => self.tell_master(MasterEvent::Prepared(prepared)),
            Membership::Order(order) => {
                tracing::debug!(%from, ?order, "an order of a master");
                self.tell(MemberEvent::Order(order));
            }
        }
    }

    fn came(&mut self, life: u64, came: Came) {
        match came {
            Came::Numbered(own) => {
                let node = own.node;
                self.own = Some(own);
                self.tell(MemberEvent::Numbered(node));
            }
            Came::Found(table) => self.found(&Arc::new(table)),
            Came::Opened(opened) if life == self.life => self.opened(opened),
            // Nobody uses it.
            Came::Opened(Opened::Log(log, _)) => self.end_log(log),
            // What an opening has begun that is over.
            _ if life != self.life => {}
            Came::Opened(Opened::Closed) => {}
            Came::LogClosed { node, end: Some(end) } => self.tell_master(MasterEvent::Closed { node, end }),
            Came::LogClosed { node, end: None } => self.tell_master(MasterEvent::NotClosed { node }),
            Came::Put { number, outcome } => self.put(number, outcome),
            Came::Adopted(adopted) => {
                for (partition, epoch) in adopted {
                    self.adopting.remove(&(partition, epoch));
                    // The engine has logged it, too: [`MemberEffect::LogAdopted`] is done at once.
                    self.tell(MemberEvent::Applied { partition, epoch });
                }
            }
            Came::Collected(collected) => {
                for (partition, epoch) in collected {
                    self.tell(MemberEvent::Collected { partition, epoch });
                    self.serve_chunks(partition, epoch);
                }
            }
            Came::Released(released) => self.tell(MemberEvent::Released(released)),
            Came::Jumped { table, at_least, end } => {
                self.jumping.remove(&(table, at_least));
                self.tell(MemberEvent::Jumped { table, end });
            }
            Came::Restating(restated) => {
                self.tell(MemberEvent::Restating(restated));
                self.on_engine(move |context, engine| jobs::restate(context, life, engine, restated));
            }
            Came::NotRestating => self.is_restating = false,
            Came::Restated(restated) => {
                self.is_restating = false;
                self.tell(MemberEvent::Restated(restated));
                self.restate_next();
            }
            Came::Left => {
                *self.context.has_left.lock() = true;
                self.context.left.notify_all();
            }
            Came::Broken(why) => self.broken(&why),
        }
    }

    /// The opening cannot go on.
    fn broken(&mut self, why: &str) {
        self.shared.set_trouble(Some(why.to_owned()));
        let present = self.shared.member.lock().present();
        match (present, &self.own) {
            (Some(present), _) => self.tell(MemberEvent::Over(present.opening)),
            // It broke before it was open.
            (None, Some(own)) if self.log.is_none() => self.open_log(own.node),
            _ => {}
        }
    }

    fn opened(&mut self, opened: Opened) {
        match opened {
            Opened::Log(log, table) => {
                let opening = log.opening();
                tracing::info!(node = ?self.own.as_ref().map(|own| own.node.0), opening = opening.0, "the log of the node is open");
                (self.opened_at, self.may_trim) = (Instant::now(), false);
                *self.context.engine.lock() = Some(log.engine.clone());
                self.log = Some(log);
                if let Some(table) = table {
                    self.found(&table);
                }
                self.tell(MemberEvent::Opened(opening));
            }
            Opened::Closed => {
                tracing::warn!("others have closed the log of this node: it takes a new number");
                self.tell(MemberEvent::Closed);
            }
        }
    }

    fn found(&mut self, table: &Arc<Table>) {
        self.context.note_named(table);
        self.shared.learn(table);
        let before = self.shared.member.lock().table().map(|table| table.number);
        if let Some(since) = before.filter(|before| *before < table.number)
            && let (Some(log), Some(own)) = (&self.log, &self.own)
        {
            let (engine, table, own, life) = (log.engine.clone(), table.clone(), own.node, self.life);
            self.context.spawn(life, move |context| jobs::take_rests(context, life, &engine, &table, since, own));
        }
        self.tell(MemberEvent::Table(table.clone()));
        self.tell_master(MasterEvent::Table((**table).clone()));
    }

    fn put(&mut self, number: u64, outcome: Outcome) {
        if outcome == Outcome::Done {
            tracing::info!(number, "this node has put a table");
        }
        self.tell_master(MasterEvent::Put { number, outcome });
        // The member does not wait for the coordinator to speak of it.
        self.tell(MemberEvent::Heads { number });
    }

    /// Executes what is to be done, until nothing is. Returns why the node has to end, if it has to.
    fn execute_all(&mut self) -> Option<CoordinatorError> {
        while let Some(effects) = self.todo.pop_front() {
            // Partitions that come with one table are read in one pass.
            let mut adoptions = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Member(MemberEffect::Apply { partition, epoch, lineage }) => {
                        adoptions.push(Adoption { partition, epoch, lineage: lineage.iter().map(part).collect() });
                    }
                    Effect::Member(effect) => self.execute_member(effect),
                    Effect::Master(effect) => self.execute_master(effect),
                    Effect::End(error) => return Some(error),
                }
            }
            if !adoptions.is_empty() {
                self.adopt(adoptions);
            }
        }
        let may_trim = self.adopting.is_empty() && self.shared.member.lock().may_trim();
        self.allow_trim(may_trim);
        None
    }

    /// Gives claims for a partition of the chunk index, if the member serves it with this epoch.
    fn serve_chunks(&self, partition: Partition, epoch: u64) {
        let is_served = self.shared.member.lock().served(partition) == Some(epoch);
        if let Some(log) = self.log.as_ref().filter(|_| is_served) {
            log.engine.serve_chunks(partition.number.into());
        }
    }

    fn adopt(&mut self, adoptions: Vec<Adoption>) {
        self.adopting.extend(adoptions.iter().map(|adoption| (adoption.partition, adoption.epoch)));
        let is_long = |adoption: &&Adoption| adoption.partition.class == PartitionClass::Container && adoption.lineage.len() > 1;
        for adoption in adoptions.iter().filter(is_long) {
            self.restating.extend(adoption.lineage.last().map(|own| (adoption.partition, own.since)));
        }
        self.allow_trim(false);
        let moving = self.moving.clone();
        self.on_engine(move |_, engine| {
            let _one = moving.lock();
            Some(jobs::adopt(engine, &adoptions))
        });
    }

    fn collect(&self, partition: Partition, epoch: u64) {
        let (Some(log), Some(own)) = (&self.log, &self.own) else { return };
        let (nodes, own, life): (Arc<Nodes>, NodeNumber, u64) = (log.nodes(), own.node, self.life);
        self.on_engine(move |context, engine| jobs::collect(context, life, engine, &nodes, own, vec![(partition, epoch)]));
    }

    /// Does something with the engine on a thread of its own.
    fn on_engine(&self, work: impl FnOnce(&Arc<Context>, &Arc<Engine>) -> Option<Came> + Send + 'static) {
        let Some(log) = &self.log else { return };
        let engine = log.engine.clone();
        self.context.spawn(self.life, move |context| work(context, &engine));
    }

    fn allow_trim(&mut self, may_trim: bool) {
        if self.may_trim != may_trim
            && let Some(log) = &self.log
        {
            log.engine.allow_trim(may_trim);
            self.may_trim = may_trim;
        }
    }

    fn execute_member(&mut self, effect: MemberEffect) {
        match effect {
            MemberEffect::TakeNumber => {
                if let Some(log) = self.end_opening() {
                    self.end_log(log);
                }
                let above = self.own.take().map(|own| own.node);
                self.context.spawn(self.life, move |context| jobs::take_number(context, above));
            }
            MemberEffect::OpenLog(node) => self.open_log(node),
            MemberEffect::FindTable { hint } => self.context.spawn(self.life, move |context| jobs::find_table(context, hint)),
            MemberEffect::Hold(held) => {
                let held: Vec<HeldPartition> = held
                    .into_iter()
                    .map(|Held { partition, since, upto, is_first }| HeldPartition { partition, since, upto, is_first })
                    .collect();
                let result = self.log.as_ref().map_or(Ok(()), |log| log.engine.hold_in_log(&held));
                if let Err(error) = result {
                    self.broken(&format!("the log cannot hold what the table says: {error}"));
                }
            }
            MemberEffect::LogAdopted { partition, epoch } => {
                self.tell(MemberEvent::Adopted { partition, epoch });
                // This log says everything of containers from the adoption on.
                if let Some(since) = self.restating.remove(&partition) {
                    self.uncut.push(since);
                    let restated = Restated { partition, epoch, since };
                    self.tell(MemberEvent::Restating(restated));
                    self.tell(MemberEvent::Restated(restated));
                }
            }
            MemberEffect::Release { partition, epoch } => {
                self.on_engine(move |_, engine| Some(jobs::release(engine, partition, epoch)));
            }
            MemberEffect::Uncut(position) => {
                if let Some(at) = self.uncut.iter().position(|other| *other == position) {
                    self.uncut.swap_remove(at);
                } else if let Some(log) = &self.log {
                    log.engine.uncut(position);
                }
            }
            MemberEffect::Jump { table, at_least } => {
                // The master asks again and again.
                if self.jumping.insert((table, at_least)) {
                    self.on_engine(move |_, engine| Some(jobs::jump(engine, table, at_least)));
                }
            }
            MemberEffect::Report(report) => {
                self.tell_all(&Membership::Report(report.clone()));
                self.tell_master(MasterEvent::Report(report));
            }
            MemberEffect::Prepared(prepared) => {
                self.tell_all(&Membership::Prepared(prepared));
                self.tell_master(MasterEvent::Prepared(prepared));
            }
            MemberEffect::Collect { partition, epoch } => self.collect(partition, epoch),
            MemberEffect::Left => self.leave(),
            // What waits for a partition looks at the member's right again. The engine has released it already.
            MemberEffect::Drop { .. } => {}
            // No node reads along yet: a new owner reads the logs from the bucket.
            MemberEffect::Follow { .. } | MemberEffect::Unfollow { .. } => {}
            MemberEffect::Apply { .. } => unreachable!("they are gathered"),
            MemberEffect::Join(_) => unreachable!("the seat does it"),
        }
    }

    fn execute_master(&mut self, effect: MasterEffect) {
        match effect {
            MasterEffect::FindTable { hint } => self.context.spawn(self.life, move |context| jobs::find_table(context, hint)),
            MasterEffect::Close { node } => {
                tracing::warn!(%node, "a node is gone: its log is closed");
                self.on_engine(move |context, engine| Some(jobs::close_log(context, engine, node)));
            }
            MasterEffect::Put(table) => self.context.spawn(self.life, move |context| Some(jobs::put_table(context, &table))),
            MasterEffect::Send { node, order } => self.send(node, order),
            MasterEffect::Announce { .. } => unreachable!("the seat does it"),
        }
    }

    fn send(&mut self, node: NodeNumber, order: Order) {
        if self.own.as_ref().is_some_and(|own| own.node == node) {
            self.tell(MemberEvent::Order(order));
        } else if let Some(log) = &self.log {
            log.nodes().tell(node.0, Membership::Order(order));
        }
    }

    /// Tells all other nodes that are there. One of them is the master, and another one may be the next.
    fn tell_all(&self, message: &Membership) {
        let (Some(log), Some(own)) = (&self.log, &self.own) else { return };
        let others: Vec<NodeNumber> = self.shared.state.lock().alive.keys().copied().filter(|node| *node != own.node).collect();
        let nodes = log.nodes();
        others.into_iter().for_each(|node| nodes.tell(node.0, message.clone()));
    }

    /// Opens the log, when everything of the opening before has ended.
    fn open_log(&mut self, node: NodeNumber) {
        let former = self.end_opening();
        self.pause = match self.opened_at.elapsed() < LONG && former.is_some() {
            true => (self.pause * 2).clamp(REOPENING.0, REOPENING.1),
            false => Duration::ZERO,
        };
        let Some(own) = self.own.clone().filter(|own| own.node == node) else { return };
        let (life, pause) = (self.life, self.pause);
        self.context.spawn(life, move |context| {
            if let Some(former) = former {
                former.end();
            }
            std::thread::sleep(pause);
            opening::open(context, life, &own).map(Came::Opened)
        });
    }

    /// Ends what an opening has here. Its right to answer, its session and its master have ended. Returns the rest.
    fn end_opening(&mut self) -> Option<OpenLog> {
        self.life = self.shared.next_life();
        *self.context.engine.lock() = None;
        self.adopting.clear();
        self.jumping.clear();
        self.is_restating = false;
        self.restating.clear();
        self.uncut.clear();
        self.moving = Arc::default();
        let mut state = self.shared.state.lock();
        state.alive.clear();
        state.is_master = false;
        drop(state);
        self.log.take()
    }

    fn end_log(&self, log: OpenLog) {
        self.context.spawn(self.life, move |_| {
            log.end();
            None
        });
    }

    fn leave(&mut self) {
        let session = self.seat.take_session();
        let alive = self.shared.state.lock().alive.clone();
        let log = self.end_opening();
        // What is delivered at the end goes to them.
        self.shared.state.lock().alive = alive;
        let life = self.life;
        self.context.spawn(life, move |context| Some(jobs::leave(context, life, log, session)));
    }
}

fn part(link: &Link) -> LogPart {
    LogPart { node: link.node.0, since: link.since, upto: link.upto }
}

/// Returns whether requests are answered.
pub(crate) fn answers(right: Right) -> bool {
    matches!(right, Right::All | Right::Reads)
}
