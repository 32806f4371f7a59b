//! The master: what the node does that writes the tables (M4.3).
//!
//! Being master is a hint of the coordinator. Whatever it does is right beside any number of other masters: it closes
//! logs of nodes whose session has ended, for good, and puts tables behind the newest one, if nobody comes first.
//!
//! A master lives as long as the session of its process. So it knows what it saw in *this* session. What comes of its
//! effects is told to it, and to no later master of the process: that one may be putting another table with the number.

use crate::assignment::{Homeless, moves, owners_of, set_followers};
use crate::{Link, NodeNumber, Opening, Order, Prepared, Present, Report, Table};
use onefold_oplog::Position;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Short lineages alone are no reason to hurry: a table waits for more of them, this many sessions.
const PATIENCE_SESSIONS: u64 = 3;
/// What is asked is asked again, this often in a session.
const ASKS_IN_A_SESSION: u64 = 4;

/// What the coordinator says, as of one moment of this session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Nodes that have their ephemeral node, and the opening in it.
    pub alive: BTreeMap<NodeNumber, Opening>,
    /// Whether this process is master.
    pub is_master: bool,
    /// "The table is at K".
    pub table: Option<u64>,
}

/// What happens to a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterEvent {
    /// The coordinator says something. Views come in order.
    View(View),
    /// A table was found, or heard of.
    Table(Table),
    /// The log of a node is closed, and ends there.
    Closed {
        /// The node.
        node: NodeNumber,
        /// The end of its log.
        end: Position,
    },
    /// It could not be closed.
    NotClosed {
        /// The node.
        node: NodeNumber,
    },
    /// A put of a table has ended.
    Put {
        /// The table.
        number: u64,
        /// What became of it.
        outcome: Outcome,
    },
    /// A member says how it is.
    Report(Report),
    /// A member can take partitions over.
    Prepared(Prepared),
    /// Time has passed. Comes several times in a session.
    Tick,
}

/// What became of a put of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the bucket.
    Done,
    /// Another one has the number: this one.
    Taken(Table),
    /// Nobody knows. It may arrive, however late.
    Unknown,
}

/// What a master wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterEffect {
    /// Find the newest table, from this number on, however long it takes. Ends with [`MasterEvent::Table`].
    FindTable {
        /// A hint.
        hint: u64,
    },
    /// Close the log of a node. Ends with [`MasterEvent::Closed`] or, after some trying, [`MasterEvent::NotClosed`]:
    /// then it comes again at once.
    Close {
        /// The node.
        node: NodeNumber,
    },
    /// Put a table. Ends with [`MasterEvent::Put`]. If its outcome is unknown after some trying, it comes again at
    /// once.
    Put(Table),
    /// Tell the coordinator that the table is at this number.
    Announce {
        /// The number.
        number: u64,
    },
    /// Tell a member.
    Send {
        /// The member.
        node: NodeNumber,
        /// What it shall do.
        order: Order,
    },
}

/// The state of a master.
#[derive(Clone, Debug)]
pub struct Master {
    session_ms: u64,
    view: View,
    /// When the first view of this session came.
    since_ms: Option<u64>,
    /// Openings that were alive in this session.
    seen: BTreeSet<(NodeNumber, Opening)>,
    /// The newest table that it knows.
    table: Option<Arc<Table>>,
    /// A number of which it has heard.
    heard: Option<u64>,
    is_finding: bool,
    closing: BTreeSet<NodeNumber>,
    closed: BTreeMap<NodeNumber, Position>,
    reports: BTreeMap<NodeNumber, Report>,
    prepared: BTreeMap<NodeNumber, Prepared>,
    /// When each was sent first and last.
    sent: BTreeMap<(NodeNumber, Order), (u64, u64)>,
    putting: Option<Table>,
    /// Since when there are short lineages to write down.
    waits_since_ms: Option<u64>,
}

/// What became of a node of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Here,
    /// Nobody knows yet.
    Missing,
    /// The session of the opening has ended, and the node has opened its log again.
    Reopened(Opening),
    /// The session of the opening has ended.
    Gone,
}

/// The next table, as far as it is known.
struct Plan {
    table: Table,
    /// Positions that members must tell they have reached.
    wanted: BTreeMap<NodeNumber, Position>,
    is_urgent: bool,
}

impl Master {
    /// Begins with a session of its process. Sessions end after `session_ms`.
    pub fn new(session_ms: u64) -> Master {
        Master {
            session_ms,
            view: View::default(),
            since_ms: None,
            seen: BTreeSet::new(),
            table: None,
            heard: None,
            is_finding: false,
            closing: BTreeSet::new(),
            closed: BTreeMap::new(),
            reports: BTreeMap::new(),
            prepared: BTreeMap::new(),
            sent: BTreeMap::new(),
            putting: None,
            waits_since_ms: None,
        }
    }

    /// Returns the newest table that it knows.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_deref()
    }

    /// Takes an event at a time of the node's own clock. Execute the effects in order, and before those of the next
    /// event.
    pub fn handle(&mut self, now_ms: u64, event: MasterEvent) -> Vec<MasterEffect> {
        let mut effects = Vec::new();
        match event {
            MasterEvent::View(view) => {
                self.since_ms.get_or_insert(now_ms);
                self.seen.extend(view.alive.iter().map(|(node, opening)| (*node, *opening)));
                self.heard = self.heard.max(view.table);
                self.view = view;
            }
            MasterEvent::Table(table) => {
                // A number of nothing is forgotten; of a newer table somebody will speak again.
                (self.is_finding, self.heard) = (false, None);
                self.learn(table);
            }
            MasterEvent::Closed { node, end } => {
                self.closing.remove(&node);
                self.closed.insert(node, end);
            }
            MasterEvent::NotClosed { node } => drop(self.closing.remove(&node)),
            MasterEvent::Put { number, outcome } => self.put_has_ended(number, outcome, &mut effects),
            MasterEvent::Report(report) => {
                self.heard = self.heard.max(report.table);
                self.reports.insert(report.node, report);
            }
            MasterEvent::Prepared(prepared) => drop(self.prepared.insert(prepared.node, prepared)),
            MasterEvent::Tick => {
                let known = self.table.as_ref().map(|table| table.number);
                if self.view.is_master && known.is_some() && self.view.table != known {
                    // It did not arrive, or the coordinator has other data by now.
                    effects.extend(known.map(|number| MasterEffect::Announce { number }));
                }
            }
        }
        self.go_on(now_ms, &mut effects);
        effects
    }

    fn learn(&mut self, table: Table) {
        if self.table.as_ref().is_none_or(|known| known.number < table.number) {
            // What was told for another table is asked again: partitions may have moved in between.
            self.prepared.clear();
            self.sent.clear();
            self.waits_since_ms = None;
            self.table = Some(Arc::new(table));
        }
    }

    fn put_has_ended(&mut self, number: u64, outcome: Outcome, effects: &mut Vec<MasterEffect>) {
        let Some(put) = self.putting.take_if(|put| put.number == number) else { return };
        match outcome {
            Outcome::Done => {
                self.learn(put);
                effects.push(MasterEffect::Announce { number });
            }
            // Unsafe orders 5 and 6: what the other master wrote counts.
            Outcome::Taken(winner) => self.learn(winner),
            // The same again. If another one came first, that will be told.
            Outcome::Unknown => {
                effects.push(MasterEffect::Put(put.clone()));
                self.putting = Some(put);
            }
        }
    }

    /// Does what is to be done next.
    fn go_on(&mut self, now_ms: u64, effects: &mut Vec<MasterEffect>) {
        let known = self.table.as_ref().map(|table| table.number);
        if (known.is_none() || known < self.heard) && !self.is_finding {
            self.is_finding = true;
            effects.push(MasterEffect::FindTable { hint: self.heard.or(known).unwrap_or(0) });
        }
        if !self.view.is_master || self.putting.is_some() {
            return;
        }
        let Some(table) = self.table.clone() else { return };
        for present in &table.nodes {
            let node = present.node;
            if self.fate(present, now_ms) == Fate::Gone && !self.closed.contains_key(&node) && self.closing.insert(node) {
                effects.push(MasterEffect::Close { node });
            }
        }
        // Whoever was silent is asked again after some time.
        let forgotten_ms = self.session_ms * PATIENCE_SESSIONS;
        self.sent.retain(|_, (first_ms, _)| now_ms < first_ms.saturating_add(forgotten_ms));
        let nodes = self.takers(&table, now_ms);
        let plan = self.plan(&table, &nodes, now_ms);
        let is_closed = |(node, _): &(&NodeNumber, &Opening)| self.closed.contains_key(node);
        let open_again = |(node, opening): (&NodeNumber, &Opening)| (*node, Order::OpenAgain { opening: *opening });
        let mut orders: Vec<(NodeNumber, Order)> = self.view.alive.iter().filter(is_closed).map(open_again).collect();
        if !plan.wanted.is_empty() {
            let order = |(node, at_least): (&NodeNumber, &Position)| (*node, Order::Prepare { table: table.number, at_least: *at_least });
            orders.extend(plan.wanted.iter().map(order));
        } else if plan.table.nodes != table.nodes || plan.table.partitions != table.partitions {
            let since_ms = *self.waits_since_ms.get_or_insert(now_ms);
            if plan.is_urgent || now_ms >= since_ms.saturating_add(self.session_ms * PATIENCE_SESSIONS) {
                effects.push(MasterEffect::Put(plan.table.clone()));
                self.putting = Some(plan.table);
            }
        } else {
            self.waits_since_ms = None;
        }
        if self.putting.is_none() && plan.wanted.is_empty() && !self.is_in_trouble(&table, now_ms) {
            let release = |(partition, epoch, node)| (node, Order::Release { partition, epoch });
            let leaving = self.leaving(&table).difference(&nodes).copied().collect();
            orders.extend(moves(&table.partitions, &nodes, &leaving).into_iter().map(release));
        }
        for (node, order) in orders {
            let (_, last_ms) = self.sent.entry((node, order)).or_insert((now_ms, 0));
            if *last_ms == 0 || now_ms >= last_ms.saturating_add(self.session_ms / ASKS_IN_A_SESSION) {
                *last_ms = now_ms.max(1);
                effects.push(MasterEffect::Send { node, order });
            }
        }
    }

    /// Returns whether the session of an opening has ended. Being absent is not enough: the coordinator may have lost
    /// its data. Either this saw it alive in this session, or has waited for as long as a session may go on.
    fn has_ended(&self, present: &Present, now_ms: u64) -> bool {
        let Some(since_ms) = self.since_ms else { return false };
        let was_seen = self.seen.contains(&(present.node, present.opening));
        self.view.alive.get(&present.node) != Some(&present.opening) && (was_seen || now_ms >= since_ms.saturating_add(self.session_ms))
    }

    fn fate(&self, present: &Present, now_ms: u64) -> Fate {
        let is_closed = self.closed.contains_key(&present.node);
        match self.view.alive.get(&present.node) {
            // Even if its log is closed: until its session ends it may answer reads (unsafe order 46).
            Some(opening) if *opening == present.opening => Fate::Here,
            _ if !self.has_ended(present, now_ms) => Fate::Missing,
            Some(opening) if *opening > present.opening && !is_closed => Fate::Reopened(*opening),
            _ => Fate::Gone,
        }
    }

    /// Returns whether something must be done before partitions are moved by plan.
    fn is_in_trouble(&self, table: &Table, now_ms: u64) -> bool {
        table.nodes.iter().any(|present| self.fate(present, now_ms) != Fate::Here)
    }

    fn leaving(&self, table: &Table) -> BTreeSet<NodeNumber> {
        let leaves = |present: &&Present| {
            self.reports.get(&present.node).is_some_and(|report| report.is_leaving && report.opening == present.opening)
        };
        table.nodes.iter().filter(leaves).map(|present| present.node).collect()
    }

    /// Returns the openings that come in with the next table: they are alive, and have told so themselves.
    fn newcomers<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = Present> + 'a {
        let has_told = |node: &NodeNumber, opening: &Opening| {
            self.reports.get(node).is_some_and(|report| report.opening == *opening && !report.is_leaving)
        };
        let is_new = move |node: &NodeNumber| table.opening(*node).is_none() && !self.closed.contains_key(node);
        let alive = self.view.alive.iter().filter(move |(node, opening)| is_new(node) && has_told(node, opening));
        alive.map(|(node, opening)| Present { node: *node, opening: *opening })
    }

    /// Returns the nodes that can take partitions: those that are here, stay, and answer.
    fn takers(&self, table: &Table, now_ms: u64) -> BTreeSet<NodeNumber> {
        let leaving = self.leaving(table);
        let is_silent = |node: NodeNumber| {
            let first_ms = |((asked, order), (first_ms, _)): (&(NodeNumber, Order), &(u64, u64))| {
                (*asked == node && matches!(order, Order::Prepare { .. })).then_some(*first_ms)
            };
            let asked_ms = self.sent.iter().filter_map(first_ms).min();
            !self.prepared.contains_key(&node) && asked_ms.is_some_and(|asked_ms| now_ms > asked_ms.saturating_add(self.session_ms))
        };
        let is_here = |present: &&Present| {
            let is_closed = self.closed.contains_key(&present.node);
            !is_closed && matches!(self.fate(present, now_ms), Fate::Here | Fate::Reopened(_)) && !is_silent(present.node)
        };
        let here = table.nodes.iter().filter(is_here).copied().chain(self.newcomers(table)).map(|present| present.node);
        // If all want to leave, somebody has to stay.
        let (leave, stay): (BTreeSet<_>, BTreeSet<_>) = here.partition(|node| leaving.contains(node));
        if stay.is_empty() { leave } else { stay }
    }

    fn plan(&self, table: &Table, takers: &BTreeSet<NodeNumber>, now_ms: u64) -> Plan {
        let mut next = table.clone();
        next.number += 1;
        let mut plan_is_urgent = false;
        let mut wanted: BTreeMap<NodeNumber, Position> = BTreeMap::new();
        let leaving = self.leaving(table);
        let mut ends: BTreeMap<usize, Position> = BTreeMap::new();
        let mut homeless = Vec::new();
        for (at, assigned) in next.partitions.iter_mut().enumerate() {
            let owner = assigned.owner();
            let Some(opening) = table.opening(owner) else { continue };
            let present = Present { node: owner, opening };
            match self.fate(&present, now_ms) {
                Fate::Gone => {
                    if let Some(end) = self.closed.get(&owner) {
                        ends.insert(at, *end);
                        homeless.push(Homeless { at, is_lost: true });
                    }
                }
                // Unsafe order 8: its partitions are its own again, by another ownership.
                Fate::Reopened(_) => assigned.epoch += 1,
                Fate::Missing => {}
                Fate::Here => {
                    let Some(report) = self.reports.get(&owner).filter(|report| report.opening == opening) else { continue };
                    let is_this = |partition, epoch| partition == assigned.partition && epoch == assigned.epoch;
                    if let Some(restated) = report.restated.iter().find(|restated| is_this(restated.partition, restated.epoch)) {
                        assigned.lineage = vec![Link { node: owner, since: restated.since, upto: None }];
                    }
                    if let Some(released) = report.released.iter().find(|released| is_this(released.partition, released.epoch)) {
                        ends.insert(at, released.upto);
                        homeless.push(Homeless { at, is_lost: false });
                    }
                }
            }
        }
        for (at, node) in owners_of(&next.partitions, &homeless, takers) {
            let (assigned, end) = (&mut next.partitions[at], ends[&at]);
            plan_is_urgent = true;
            assigned.epoch += 1;
            if assigned.owner() == node {
                // It is released, and stays where it is.
                continue;
            }
            assigned.lineage.last_mut().expect("a lineage is never empty").upto = Some(end);
            let opening = self.view.alive.get(&node);
            let answer = self.prepared.get(&node);
            let is_of_it = |answer: &&Prepared| Some(&answer.opening) == opening && answer.table == table.number && answer.end >= end;
            let since = answer.filter(is_of_it).map(|answer| answer.end);
            if since.is_none() {
                let at_least = wanted.entry(node).or_default();
                *at_least = end.max(*at_least);
            }
            assigned.lineage.push(Link { node, since: since.unwrap_or(end), upto: None });
        }
        let owners: BTreeSet<NodeNumber> = next.partitions.iter().map(|assigned| assigned.owner()).collect();
        let present_as = |present: &Present| match self.fate(present, now_ms) {
            Fate::Gone if !owners.contains(&present.node) && self.closed.contains_key(&present.node) => None,
            Fate::Here if leaving.contains(&present.node) && !takers.contains(&present.node) && !owners.contains(&present.node) => None,
            Fate::Reopened(opening) => Some(Present { opening, ..*present }),
            Fate::Here | Fate::Missing | Fate::Gone => Some(*present),
        };
        next.nodes = table.nodes.iter().filter_map(present_as).chain(self.newcomers(table)).collect();
        next.nodes.sort_by_key(|present| present.node);
        plan_is_urgent |= next.nodes != table.nodes;
        let can_follow = next.nodes.iter().map(|present| present.node).filter(|node| takers.contains(node));
        set_followers(&mut next.partitions, &can_follow.collect());
        Plan { table: next, wanted, is_urgent: plan_is_urgent }
    }
}

#[cfg(test)]
mod tests;
