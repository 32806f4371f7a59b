//! The event loop: it gives events to member and master, and executes what they want.
//!
//! # Invariants
//! * Member and master are called by this thread only. Their effects are executed in order, and before those of the
//!   next event.
//! * It never waits: what takes long runs on threads of its own ([`crate::jobs`]), and comes back as an event.
//! * Each opening has a number, its *life*. What came of an earlier one is dropped. Before the log is opened again,
//!   everything of the opening before has ended: first its right to answer, and its session.
//! * A master is told nothing while the member does not hear ([`crate::mastering`]).

use crate::context::Context;
use crate::identity::OwnIdentity;
use crate::jobs;
use crate::mastering::Mastering;
use crate::opening::{self, OpenLog, Opened};
use crate::shared::Shared;
use onefold_cluster::{
    Held, Link, MasterEffect, MasterEvent, MemberEffect, MemberEvent, NodeNumber, Order, Outcome, Present, Released, Restated, Right, Table,
};
use onefold_coordinator::{Event as OfCoordinator, Joining, Process as Told, Session};
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

/// What is to be handled next.
enum Todo {
    Member(MemberEvent),
    Master(MasterEvent),
}

/// What the event loop leaves when it ends.
pub(crate) struct Rest {
    pub(crate) log: Option<OpenLog>,
    pub(crate) session: Option<Box<dyn Session>>,
}

pub(crate) struct Process {
    context: Arc<Context>,
    shared: Arc<Shared>,
    session_ms: u64,
    life: u64,
    own: Option<OwnIdentity>,
    log: Option<OpenLog>,
    session: Option<Box<dyn Session>>,
    mastering: Option<Mastering>,
    todo: VecDeque<Todo>,
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

/// What the coordinator tells.
struct Teller(Arc<Shared>);

impl Told for Teller {
    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    fn tell(&self, event: OfCoordinator) {
        self.0.tell(Event::Coordinator(event));
    }
}

impl Process {
    pub(crate) fn new(context: Arc<Context>) -> Process {
        Process {
            shared: context.shared.clone(),
            session_ms: context.settings.coordinator.session_ms(),
            context,
            life: 0,
            own: None,
            log: None,
            session: None,
            mastering: None,
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
        }
    }

    /// Handles events until the node ends.
    pub(crate) fn run(mut self, events: &Receiver<Event>) -> Rest {
        self.context.spawn(self.life, |context| jobs::take_number(context, None));
        let tick = Duration::from_millis((self.session_ms / TICKS).max(1));
        let mut next_tick = Instant::now() + tick;
        loop {
            match events.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + tick;
                self.tick();
            }
            self.handle_all();
        }
        self.shared.end();
        *self.context.engine.lock() = None;
        Rest { log: self.log.take(), session: self.session.take() }
    }

    fn tick(&mut self) {
        let lost = self.log.as_ref().and_then(|log| log.engine.has_lost_its_log().map(str::to_owned));
        if let Some(why) = lost {
            self.broken(&why);
        }
        self.todo.extend([Todo::Member(MemberEvent::Tick), Todo::Master(MasterEvent::Tick)]);
        self.restate_next();
    }

    /// Begins to restate a partition of an index whose lineage is long, if there is one and no other is under way.
    fn restate_next(&mut self) {
        let is_of_index = |(partition, _): &(Partition, u64)| partition.class != PartitionClass::Container;
        let due = self.shared.state.lock().member.to_restate().find(is_of_index);
        let Some((partition, epoch)) = due.filter(|_| !self.is_restating && self.log.is_some()) else { return };
        self.is_restating = true;
        self.on_engine(move |_, engine| Some(jobs::begin_restating(engine, partition, epoch)));
    }

    /// Takes an event in.
    fn take(&mut self, event: Event) {
        match event {
            Event::Coordinator(event) => self.hear(&event),
            Event::Message { life, from, message } if life == self.life => self.receive(from, message),
            Event::Came { life, came } => self.came(life, came),
            Event::Heads(number) => {
                self.shared.heard_of_table();
                self.todo.push_back(Todo::Member(MemberEvent::Heads { number }));
            }
            Event::Leave => self.todo.push_back(Todo::Member(MemberEvent::Leave)),
            Event::Message { .. } | Event::End => {}
        }
    }

    fn present(&self) -> Option<Present> {
        self.shared.state.lock().member.present()
    }

    fn hear(&mut self, event: &OfCoordinator) {
        let present = self.present();
        let is_of = |opening| self.session.is_some() && present.is_some_and(|present| present.opening == opening);
        match event {
            OfCoordinator::View { opening, view, nodes } if is_of(*opening) => {
                let mut state = self.shared.state.lock();
                state.alive.clone_from(nodes);
                state.is_master = view.is_master;
            }
            // The next session would end in the same way. Each opening of the log puts a fence into the bucket.
            OfCoordinator::Over { opening, error } if is_of(*opening) && error.is_final() => {
                self.shared.set_trouble(Some(error.to_string()));
                self.shared.state.lock().refusal = Some(error.clone());
                return;
            }
            OfCoordinator::Over { opening, error } if is_of(*opening) => {
                self.shared.set_trouble(Some(format!("the session of opening {} is over: {error}", opening.0)));
            }
            OfCoordinator::Damaged { opening, error } if is_of(*opening) => self.shared.set_trouble(Some(error.to_string())),
            OfCoordinator::Ahead { opening, announced, found } if is_of(*opening) => {
                tracing::warn!(announced, found, "the coordinator speaks of a newer table than that of this node");
                self.todo.push_back(Todo::Member(MemberEvent::Heads { number: *found }));
            }
            OfCoordinator::Heard { opening, .. } if is_of(*opening) => {}
            // Of an opening that is over.
            _ => return,
        }
        self.todo.extend(event.for_master().map(Todo::Master));
        self.todo.extend(event.for_member().map(Todo::Member));
    }

    fn receive(&mut self, from: NodeNumber, message: Membership) {
        match message {
            Membership::Report(report) => self.todo.push_back(Todo::Master(MasterEvent::Report(report))),
            Membership::Prepared(prepared) => self.todo.push_back(Todo::Master(MasterEvent::Prepared(prepared))),
            Membership::Order(order) => {
                tracing::debug!(%from, ?order, "an order of a master");
                self.todo.push_back(Todo::Member(MemberEvent::Order(order)));
            }
        }
    }

    fn came(&mut self, life: u64, came: Came) {
        match came {
            Came::Numbered(own) => {
                let node = own.node;
                self.own = Some(own);
                self.todo.push_back(Todo::Member(MemberEvent::Numbered(node)));
            }
            Came::Found(table) => self.found(&Arc::new(table)),
            Came::Opened(opened) if life == self.life => self.opened(opened),
            // Nobody uses it.
            Came::Opened(Opened::Log(log, _)) => self.end_log(log),
            // What an opening has begun that is over.
            _ if life != self.life => {}
            Came::Opened(Opened::Closed) => {}
            Came::LogClosed { node, end: Some(end) } => self.todo.push_back(Todo::Master(MasterEvent::Closed { node, end })),
            Came::LogClosed { node, end: None } => self.todo.push_back(Todo::Master(MasterEvent::NotClosed { node })),
            Came::Put { number, outcome } => self.put(number, outcome),
            Came::Adopted(adopted) => {
                for (partition, epoch) in adopted {
                    self.adopting.remove(&(partition, epoch));
                    // The engine has logged it, too: [`MemberEffect::LogAdopted`] is done at once.
                    self.todo.push_back(Todo::Member(MemberEvent::Applied { partition, epoch }));
                }
            }
            Came::Collected(collected) => {
                self.todo.extend(collected.into_iter().map(|(partition, epoch)| Todo::Member(MemberEvent::Collected { partition, epoch })))
            }
            Came::Released(released) => self.todo.push_back(Todo::Member(MemberEvent::Released(released))),
            Came::Jumped { table, at_least, end } => {
                self.jumping.remove(&(table, at_least));
                self.todo.push_back(Todo::Member(MemberEvent::Jumped { table, end }));
            }
            Came::Restating(restated) => {
                self.todo.push_back(Todo::Member(MemberEvent::Restating(restated)));
                self.on_engine(move |context, engine| jobs::restate(context, life, engine, restated));
            }
            Came::NotRestating => self.is_restating = false,
            Came::Restated(restated) => {
                self.is_restating = false;
                self.todo.push_back(Todo::Member(MemberEvent::Restated(restated)));
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
        match self.present() {
            Some(present) => self.todo.push_back(Todo::Member(MemberEvent::Over(present.opening))),
            // It broke before it was open.
            None => {
                if let Some(own) = &self.own {
                    let node = own.node;
                    self.open_log(node);
                }
            }
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
                self.todo.push_back(Todo::Member(MemberEvent::Opened(opening)));
            }
            Opened::Closed => {
                tracing::warn!("others have closed the log of this node: it takes a new number");
                self.todo.push_back(Todo::Member(MemberEvent::Closed));
            }
        }
    }

    fn found(&mut self, table: &Arc<Table>) {
        self.context.note_named(table);
        self.shared.learn(table);
        let before = self.shared.state.lock().member.table().map(|table| table.number);
        if let Some(since) = before.filter(|before| *before < table.number)
            && let (Some(log), Some(own)) = (&self.log, &self.own)
        {
            let (engine, table, own, life) = (log.engine.clone(), table.clone(), own.node, self.life);
            self.context.spawn(life, move |context| jobs::take_rests(context, life, &engine, &table, since, own));
        }
        if let Some(session) = &self.session {
            session.knows(table.number);
        }
        self.todo.push_back(Todo::Member(MemberEvent::Table(table.clone())));
        self.todo.push_back(Todo::Master(MasterEvent::Table((**table).clone())));
    }

    fn put(&mut self, number: u64, outcome: Outcome) {
        if outcome == Outcome::Done {
            tracing::info!(number, "this node has put a table");
        }
        self.todo.push_back(Todo::Master(MasterEvent::Put { number, outcome }));
        // The member does not wait for the coordinator to speak of it.
        self.todo.push_back(Todo::Member(MemberEvent::Heads { number }));
    }

    /// Handles what is to be done, until nothing is.
    fn handle_all(&mut self) {
        loop {
            match self.todo.pop_front() {
                Some(Todo::Member(event)) => self.handle_member(event),
                Some(Todo::Master(event)) => {
                    if let Some(mastering) = &mut self.mastering {
                        mastering.tell(event);
                    }
                }
                None => break,
            }
            if self.todo.is_empty() {
                self.handle_master();
            }
        }
        let may_trim = self.adopting.is_empty() && self.shared.state.lock().member.may_trim();
        self.allow_trim(may_trim);
    }

    fn handle_master(&mut self) {
        while let Some(mastering) = &mut self.mastering {
            let now_ms = self.shared.now_ms();
            if !self.shared.state.lock().member.hears(now_ms) {
                return;
            }
            let Some(effects) = mastering.next(now_ms) else { return };
            effects.into_iter().for_each(|effect| self.execute_master(effect));
        }
    }

    fn handle_member(&mut self, event: MemberEvent) {
        let collected = if let MemberEvent::Collected { partition, epoch } = event { Some((partition, epoch)) } else { None };
        let (effects, may_trim) = {
            let mut state = self.shared.state.lock();
            let effects = state.member.handle(event);
            (effects, state.member.may_trim())
        };
        if !may_trim {
            self.allow_trim(false);
        }
        if let Some((partition, epoch)) = collected {
            self.serve_chunks(partition, epoch);
        }
        // Partitions that come with one table are read in one pass.
        let (mut adoptions, mut collects) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                MemberEffect::Apply { partition, epoch, lineage } => {
                    adoptions.push(Adoption { partition, epoch, lineage: lineage.iter().map(part).collect() });
                }
                MemberEffect::Collect { partition, epoch } => collects.push((partition, epoch)),
                effect => self.execute_member(effect),
            }
        }
        if !adoptions.is_empty() {
            self.adopt(adoptions);
        }
        if !collects.is_empty() {
            self.collect(collects);
        }
    }

    /// Gives claims for a partition of the chunk index, if the member serves it with this epoch.
    fn serve_chunks(&self, partition: Partition, epoch: u64) {
        let is_served = self.shared.state.lock().member.served(partition) == Some(epoch);
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

    fn collect(&self, wanted: Vec<(Partition, u64)>) {
        let (Some(log), Some(own)) = (&self.log, &self.own) else { return };
        let (nodes, own, life): (Arc<Nodes>, NodeNumber, u64) = (log.nodes(), own.node, self.life);
        self.on_engine(move |context, engine| jobs::collect(context, life, engine, &nodes, own, wanted));
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
            MemberEffect::Join(present) => self.join(present),
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
                self.todo.push_back(Todo::Member(MemberEvent::Adopted { partition, epoch }));
                // This log says everything of containers from the adoption on.
                if let Some(since) = self.restating.remove(&partition) {
                    self.uncut.push(since);
                    let restated = Restated { partition, epoch, since };
                    self.todo.push_back(Todo::Member(MemberEvent::Restating(restated)));
                    self.todo.push_back(Todo::Member(MemberEvent::Restated(restated)));
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
                self.todo.push_back(Todo::Master(MasterEvent::Report(report)));
            }
            MemberEffect::Prepared(prepared) => {
                self.tell_all(&Membership::Prepared(prepared));
                self.todo.push_back(Todo::Master(MasterEvent::Prepared(prepared)));
            }
            MemberEffect::Left => self.leave(),
            // What waits for a partition looks at the member's right again. The engine has released it already.
            MemberEffect::Drop { .. } => {}
            // No node reads along yet: a new owner reads the logs from the bucket.
            MemberEffect::Follow { .. } | MemberEffect::Unfollow { .. } => {}
            MemberEffect::Apply { .. } | MemberEffect::Collect { .. } => unreachable!("they are gathered"),
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
            MasterEffect::Announce { number } => {
                if let Some(session) = &self.session {
                    session.announce(number);
                }
            }
            MasterEffect::Send { node, order } => self.send(node, order),
        }
    }

    fn send(&mut self, node: NodeNumber, order: Order) {
        if self.own.as_ref().is_some_and(|own| own.node == node) {
            let number = self.mastering.as_ref().and_then(Mastering::table).map(|table| table.number);
            self.todo.extend(number.map(|number| Todo::Member(MemberEvent::Heads { number })));
            self.todo.push_back(Todo::Member(MemberEvent::Order(order)));
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

    /// Ends what an opening has here: at once its right to answer, its session and its master. Returns the rest.
    fn end_opening(&mut self) -> Option<OpenLog> {
        self.life = self.shared.next_life();
        *self.context.engine.lock() = None;
        self.session = None;
        self.mastering = None;
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

    fn join(&mut self, present: Present) {
        let table = self.shared.newest().map(|table| table.number);
        let settings = &self.context.settings;
        let joining = Joining { present, address: self.context.address.clone(), faces: settings.faces.clone(), table };
        match settings.coordinator.join(joining, Arc::new(Teller(self.shared.clone()))) {
            Ok(session) => {
                self.session = Some(session);
                self.mastering = Some(Mastering::new(self.session_ms));
            }
            Err(error) => self.broken(&format!("the session with the coordinator cannot begin: {error}")),
        }
    }

    fn leave(&mut self) {
        let session = self.session.take();
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
