//! A node of the cluster, apart from its engine: what it owns, and when it may answer (M4.2, M4.8).
//!
//! | state of a partition | claims and reads | how it ends |
//! |---|---|---|
//! | adopting | wait | what others logged is applied; then PartitionAdopted is durable |
//! | collecting (chunk index) | claims wait, reads are answered | what other nodes have for it is known |
//! | serving | answered | the master asks for it, or the opening is over |
//! | releasing | wait | a table names another ownership |
//!
//! A member does nothing by itself: the process executes its effects, and says what came of them.

use crate::{Assigned, Held, Link, NodeNumber, Opening, Order, Prepared, Present, Released, Report, Restated, Table};
use onefold_oplog::{Partition, PartitionClass, Position};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What happens to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// The process has a number: from its local state, or a new one.
    Numbered(NodeNumber),
    /// The log is open for writing, with a fence.
    Opened(Opening),
    /// The log is closed: nobody opens it any more.
    Closed,
    /// The session of an opening has ended, or its log takes no more batches: it was fenced, or a put failed.
    Over(Opening),
    /// The coordinator has answered a request of this opening's session, which the process sent at `asked_ms` of its
    /// clock.
    Heard {
        /// Whose session it is.
        opening: Opening,
        /// When the request was sent.
        asked_ms: u64,
    },
    /// Somebody speaks of a table: the coordinator, or a message.
    Heads {
        /// Its number.
        number: u64,
    },
    /// A table was read.
    Table(Arc<Table>),
    /// What the lineage says is applied.
    Applied {
        /// The partition.
        partition: Partition,
        /// The ownership.
        epoch: u64,
    },
    /// PartitionAdopted is durable.
    Adopted {
        /// The partition.
        partition: Partition,
        /// The ownership.
        epoch: u64,
    },
    /// What other nodes have for the partition is known.
    Collected {
        /// The partition.
        partition: Partition,
        /// The ownership.
        epoch: u64,
    },
    /// PartitionReleased is durable.
    Released(Released),
    /// Restating begins at this position, which is cut.
    Restating(Restated),
    /// It has ended: the log says everything from there on.
    Restated(Restated),
    /// The master asks for something.
    Order(Order),
    /// The log has reached the position that the master asked for, and is cut at its end.
    Jumped {
        /// The table of the order.
        table: u64,
        /// The end of the log.
        end: Position,
    },
    /// The operator wants the node to leave.
    Leave,
    /// Time has passed. Comes several times in a session.
    Tick,
}

/// What a member wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEffect {
    /// Take a number that nobody had. Ends with [`MemberEvent::Numbered`].
    TakeNumber,
    /// Open the log of this number with a fence. End the session before, if there is one: an opening has one of its
    /// own. Ends with [`MemberEvent::Opened`] or [`MemberEvent::Closed`].
    OpenLog(NodeNumber),
    /// Begin the session of this opening, its only one. When it is known, make the ephemeral node with the opening in
    /// it; if there is one of an earlier session, wait until that has ended. Ends with [`MemberEvent::Over`].
    Join(Present),
    /// Find the newest table, from this number on, however long it takes. Ends with [`MemberEvent::Table`].
    FindTable {
        /// A hint.
        hint: u64,
    },
    /// Say to the log what of it counts, before anything else of the same event.
    Hold(Vec<Held>),
    /// Apply what the lineage says, as far as the local state lacks it: each log up to the end of its link, the own one
    /// up to its end as of now. Ends with [`MemberEvent::Applied`].
    Apply {
        /// The partition.
        partition: Partition,
        /// The ownership.
        epoch: u64,
        /// Whose logs.
        lineage: Vec<Link>,
    },
    /// Log PartitionAdopted. Ends with [`MemberEvent::Adopted`].
    LogAdopted {
        /// The partition.
        partition: Partition,
        /// The ownership.
        epoch: u64,
    },
    /// Ask all nodes what they have for a partition of the chunk index. Ends with [`MemberEvent::Collected`].
    Collect {
        /// The partition.
        partition: Partition,
        /// The ownership.
        epoch: u64,
    },
    /// Flush, then log PartitionReleased behind everything of the partition. Ends with [`MemberEvent::Released`].
    Release {
        /// The partition.
        partition: Partition,
        /// The ownership.
        epoch: u64,
    },
    /// The partition is no longer here: refuse what waits for it.
    Drop {
        /// The partition.
        partition: Partition,
    },
    /// Read along with the owner.
    Follow {
        /// The partition.
        partition: Partition,
    },
    /// Read along no longer.
    Unfollow {
        /// The partition.
        partition: Partition,
    },
    /// A part of a lineage begins at this position by now, or never will: runs may go across it.
    Uncut(Position),
    /// Let the log reach a position, and cut it at its end. Ends with [`MemberEvent::Jumped`].
    Jump {
        /// The table of the order.
        table: u64,
        /// The position.
        at_least: Position,
    },
    /// Tell the master.
    Report(Report),
    /// Tell the master.
    Prepared(Prepared),
    /// Nothing is left here: put the last batch, and end the session.
    Left,
}

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has no open log.
    Out,
    /// No table speaks of its opening yet.
    Joining,
    /// A table speaks of it.
    In,
    /// It wants to leave.
    Stopping,
}

/// What a node may do with requests for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Answer claims and reads.
    All,
    /// Answer reads. Claims wait.
    Reads,
    /// Let them wait.
    Wait,
    /// Refuse them: another node has the partition, by the newest table that this one knows.
    Refuse,
    /// Refuse them: it has not heard from the coordinator for too long.
    Stopped,
}

/// The state of a member.
#[derive(Clone, Debug)]
pub struct Member {
    session_ms: u64,
    node: Option<NodeNumber>,
    opening: Option<Opening>,
    /// When the last request was sent that the coordinator answered in the session of this opening.
    asked_ms: Option<u64>,
    is_leaving: bool,
    table: Option<Arc<Table>>,
    heard: Option<u64>,
    is_finding: bool,
    /// A table has spoken of this opening.
    was_in: bool,
    owned: BTreeMap<Partition, Owned>,
    followed: BTreeSet<Partition>,
    /// Tables, and where the log ended when their masters asked. The next table may give this node a partition from
    /// there on. It is cut there until that table is known: a run across it would have what the log said of that
    /// partition at an earlier time (unsafe order 50).
    prepared: Vec<(u64, Position)>,
}

#[derive(Clone, Debug)]
struct Owned {
    epoch: u64,
    state: State,
    /// Restating begins here; whether it has ended.
    restating: Option<(Position, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Adopting,
    Collecting,
    Serving,
    /// Since when the log has nothing of it any more, when that is known.
    Releasing(Option<Position>),
}

impl Member {
    /// Begins without a number. Sessions end after `session_ms`.
    pub fn new(session_ms: u64) -> Member {
        Member {
            session_ms,
            node: None,
            opening: None,
            asked_ms: None,
            is_leaving: false,
            table: None,
            heard: None,
            is_finding: false,
            was_in: false,
            owned: BTreeMap::new(),
            followed: BTreeSet::new(),
            prepared: Vec::new(),
        }
    }

    /// Returns where it is in its life.
    pub fn phase(&self) -> Phase {
        match self.opening {
            None => Phase::Out,
            Some(_) if self.is_leaving => Phase::Stopping,
            Some(_) if self.was_in => Phase::In,
            Some(_) => Phase::Joining,
        }
    }

    /// Returns the number and the opening, while there is one.
    pub fn present(&self) -> Option<Present> {
        Some(Present { node: self.node?, opening: self.opening? })
    }

    /// Returns the newest table that it knows.
    pub fn table(&self) -> Option<&Arc<Table>> {
        self.table.as_ref()
    }

    /// Returns whether it hears the coordinator. It stops at two thirds of a session after it asked, by its own clock:
    /// clocks may run apart by a third (unsafe order 3).
    pub fn hears(&self, now_ms: u64) -> bool {
        self.hears_until_ms().is_some_and(|until_ms| now_ms < until_ms)
    }

    /// Returns when it will stop, if it hears nothing more. `None`: it has heard nothing yet.
    pub fn hears_until_ms(&self) -> Option<u64> {
        let limit_ms = self.session_ms - self.session_ms.div_ceil(3);
        Some(self.asked_ms?.saturating_add(limit_ms))
    }

    /// Returns what may be done with a request for a partition that arrived before `now_ms` was taken from the clock.
    /// What is true then may be answered, whenever the answer arrives (unsafe order 4).
    pub fn may_answer(&self, partition: Partition, now_ms: u64) -> Right {
        if self.opening.is_none() || !self.hears(now_ms) {
            return Right::Stopped;
        }
        match self.owned.get(&partition).map(|owned| owned.state) {
            Some(State::Serving) => Right::All,
            Some(State::Collecting) => Right::Reads,
            Some(State::Adopting | State::Releasing(_)) => Right::Wait,
            None => Right::Refuse,
        }
    }

    /// Returns whether a batch may have records of a partition. Ask when the batch is made, in the order of the log: so
    /// none comes behind PartitionReleased. The clock does not matter: if the node is gone for others, its log takes
    /// no batch.
    pub fn may_log(&self, partition: Partition) -> bool {
        matches!(self.owned.get(&partition).map(|owned| owned.state), Some(State::Serving | State::Collecting))
    }

    /// Returns whether the log may be trimmed and its runs merged. A table that speaks of this opening must say what
    /// counts: an earlier opening may have restated what no table names yet (unsafe order 47). And the log must not be
    /// twice in a lineage.
    pub fn may_trim(&self) -> bool {
        let Some((present, table)) = self.present().zip(self.table.as_ref()) else { return false };
        table.opening(present.node) == Some(present.opening) && !table.has_twice(present.node)
    }

    /// Returns the ownership of a partition that is served here.
    pub fn served(&self, partition: Partition) -> Option<u64> {
        self.owned.get(&partition).filter(|owned| owned.state == State::Serving).map(|owned| owned.epoch)
    }

    /// Returns the partitions whose lineage should become short: they are served here, and other logs count for them.
    pub fn to_restate(&self) -> impl Iterator<Item = (Partition, u64)> + '_ {
        let is_long =
            |partition| self.table.as_ref().and_then(|table| table.get(partition)).is_some_and(|assigned| assigned.lineage.len() > 1);
        let due = move |(partition, owned): &(&Partition, &Owned)| {
            owned.state == State::Serving && owned.restating.is_none() && is_long(**partition)
        };
        self.owned.iter().filter(due).map(|(partition, owned)| (*partition, owned.epoch))
    }

    /// Takes an event. Execute the effects in order, and before those of the next event.
    pub fn handle(&mut self, event: MemberEvent) -> Vec<MemberEffect> {
        let mut effects = Vec::new();
        match event {
            MemberEvent::Numbered(node) => {
                self.node = Some(node);
                effects.push(MemberEffect::OpenLog(node));
            }
            MemberEvent::Opened(opening) => self.opened(opening, &mut effects),
            MemberEvent::Closed => {
                self.end_opening(&mut effects);
                self.node = None;
                effects.push(if self.is_leaving { MemberEffect::Left } else { MemberEffect::TakeNumber });
            }
            MemberEvent::Over(opening) => self.over(opening, &mut effects),
            MemberEvent::Heard { opening, asked_ms } => {
                // A session of a former opening says nothing.
                if self.opening == Some(opening) {
                    self.asked_ms = self.asked_ms.max(Some(asked_ms));
                }
            }
            MemberEvent::Heads { number } => self.heard = self.heard.max(Some(number)),
            MemberEvent::Table(table) => {
                // A number of nothing is forgotten; of a newer table somebody will speak again.
                (self.is_finding, self.heard) = (false, None);
                self.learn(table, &mut effects);
            }
            MemberEvent::Applied { partition, epoch } => {
                if self.in_state(partition, epoch, State::Adopting).is_some() {
                    effects.push(MemberEffect::LogAdopted { partition, epoch });
                }
            }
            MemberEvent::Adopted { partition, epoch } => self.adopted(partition, epoch, &mut effects),
            MemberEvent::Collected { partition, epoch } => {
                if let Some(owned) = self.in_state(partition, epoch, State::Collecting) {
                    owned.state = State::Serving;
                }
            }
            MemberEvent::Released(released) => {
                if let Some(owned) = self.in_state(released.partition, released.epoch, State::Releasing(None)) {
                    owned.state = State::Releasing(Some(released.upto));
                    self.report(&mut effects);
                }
            }
            MemberEvent::Restating(restated) => self.restating(restated, &mut effects),
            MemberEvent::Restated(Restated { partition, epoch, since }) => {
                let owned = self.owned.get_mut(&partition).filter(|owned| owned.epoch == epoch);
                if let Some(owned) = owned.filter(|owned| owned.restating == Some((since, false))) {
                    owned.restating = Some((since, true));
                    self.report(&mut effects);
                }
            }
            MemberEvent::Order(order) => self.ordered(order, &mut effects),
            MemberEvent::Jumped { table, end } => {
                self.prepared.push((table, end));
                self.tell_end(table, end, &mut effects);
                self.forget_prepared(&mut effects);
            }
            MemberEvent::Leave => {
                self.is_leaving = true;
                match self.table.clone() {
                    Some(table) if !self.was_in => self.take_up(&table, &mut effects),
                    _ => self.report(&mut effects),
                }
            }
            MemberEvent::Tick => self.report(&mut effects),
        }
        self.find_table(&mut effects);
        effects
    }

    fn opened(&mut self, opening: Opening, effects: &mut Vec<MemberEffect>) {
        let Some(node) = self.node else { return };
        self.end_opening(effects);
        self.opening = Some(opening);
        effects.push(MemberEffect::Join(Present { node, opening }));
        // What the table says of this log counts, whoever the table speaks of.
        if let Some(table) = self.table.clone() {
            self.take_up(&table, effects);
        }
    }

    /// Ends what an opening had. Its session ends with it: the master may have seen the end of it, and be writing a
    /// table (unsafe order 44).
    fn over(&mut self, opening: Opening, effects: &mut Vec<MemberEffect>) {
        if self.opening != Some(opening) {
            return;
        }
        self.end_opening(effects);
        effects.extend(self.node.map(MemberEffect::OpenLog));
    }

    fn end_opening(&mut self, effects: &mut Vec<MemberEffect>) {
        self.opening = None;
        self.asked_ms = None;
        self.was_in = false;
        self.prepared.clear();
        let gone = std::mem::take(&mut self.owned);
        effects.extend(gone.into_keys().map(|partition| MemberEffect::Drop { partition }));
        let followed = std::mem::take(&mut self.followed);
        effects.extend(followed.into_iter().map(|partition| MemberEffect::Unfollow { partition }));
    }

    fn find_table(&mut self, effects: &mut Vec<MemberEffect>) {
        let known = self.table.as_ref().map(|table| table.number);
        let lacks_one = self.opening.is_some() && known.is_none() || self.heard > known;
        if lacks_one && !self.is_finding {
            self.is_finding = true;
            effects.push(MemberEffect::FindTable { hint: self.heard.or(known).unwrap_or(0) });
        }
    }

    fn learn(&mut self, table: Arc<Table>, effects: &mut Vec<MemberEffect>) {
        if self.table.as_ref().is_some_and(|known| known.number >= table.number) {
            return;
        }
        self.table = Some(table.clone());
        self.take_up(&table, effects);
        self.forget_prepared(effects);
    }

    fn take_up(&mut self, table: &Arc<Table>, effects: &mut Vec<MemberEffect>) {
        let Some(present) = self.present() else { return };
        let named = table.opening(present.node);
        // A table that does not name this node leaves it nothing, also if others before it were never read here.
        if self.is_leaving && named.is_none() {
            self.end_opening(effects);
            effects.push(MemberEffect::Left);
            return;
        }
        if self.was_in && named != Some(present.opening) {
            // Others think that this opening is gone.
            self.over(present.opening, effects);
            return;
        }
        effects.push(MemberEffect::Hold(table.held_by(present.node).collect()));
        if named != Some(present.opening) {
            // Nothing in it is this opening's (unsafe order 8).
            return;
        }
        self.was_in = true;
        let now: BTreeMap<Partition, &Assigned> = table.owned_by(present).map(|assigned| (assigned.partition, assigned)).collect();
        let is_gone = |partition: &Partition, owned: &Owned| now.get(partition).is_none_or(|assigned| assigned.epoch != owned.epoch);
        let gone: Vec<Partition> =
            self.owned.iter().filter(|(partition, owned)| is_gone(partition, owned)).map(|(gone, _)| *gone).collect();
        for partition in gone {
            let owned = self.owned.remove(&partition);
            effects.extend(owned.and_then(|owned| owned.restating).map(|(since, _)| MemberEffect::Uncut(since)));
            effects.push(MemberEffect::Drop { partition });
        }
        for (partition, assigned) in now {
            match self.owned.get_mut(&partition) {
                None => self.adopt(assigned, effects),
                Some(owned) => {
                    if let (Some((since, _)), [Link { since: counts_since, .. }]) = (owned.restating, &assigned.lineage[..])
                        && since == *counts_since
                    {
                        owned.restating = None;
                        effects.push(MemberEffect::Uncut(since));
                    }
                }
            }
        }
        let follows = |assigned: &&Assigned| assigned.follower == Some(present.node);
        let followed: BTreeSet<Partition> = table.partitions.iter().filter(follows).map(|assigned| assigned.partition).collect();
        effects.extend(self.followed.difference(&followed).map(|partition| MemberEffect::Unfollow { partition: *partition }));
        effects.extend(followed.difference(&self.followed).map(|partition| MemberEffect::Follow { partition: *partition }));
        self.followed = followed;
    }

    fn adopt(&mut self, assigned: &Assigned, effects: &mut Vec<MemberEffect>) {
        let Assigned { partition, epoch, ref lineage, .. } = *assigned;
        self.owned.insert(partition, Owned { epoch, state: State::Adopting, restating: None });
        effects.push(MemberEffect::Apply { partition, epoch, lineage: lineage.clone() });
    }

    fn in_state(&mut self, partition: Partition, epoch: u64, state: State) -> Option<&mut Owned> {
        self.owned.get_mut(&partition).filter(|owned| owned.epoch == epoch && owned.state == state)
    }

    fn adopted(&mut self, partition: Partition, epoch: u64, effects: &mut Vec<MemberEffect>) {
        let Some(owned) = self.in_state(partition, epoch, State::Adopting) else { return };
        if partition.class == PartitionClass::ChunkIndex {
            owned.state = State::Collecting;
            effects.push(MemberEffect::Collect { partition, epoch });
        } else {
            owned.state = State::Serving;
        }
    }

    fn restating(&mut self, restated: Restated, effects: &mut Vec<MemberEffect>) {
        let Restated { partition, epoch, since } = restated;
        match self.in_state(partition, epoch, State::Serving).filter(|owned| owned.restating.is_none()) {
            Some(owned) => owned.restating = Some((since, false)),
            None => effects.push(MemberEffect::Uncut(since)),
        }
    }

    fn ordered(&mut self, order: Order, effects: &mut Vec<MemberEffect>) {
        match order {
            Order::Prepare { table, at_least } => {
                let told = self.prepared.iter().find(|(of, end)| *of == table && *end >= at_least).copied();
                match told {
                    Some((_, end)) => self.tell_end(table, end, effects),
                    None if self.opening.is_some() => effects.push(MemberEffect::Jump { table, at_least }),
                    None => {}
                }
            }
            Order::OpenAgain { opening } => self.over(opening, effects),
            Order::Release { partition, epoch } => {
                if let Some(owned) = self.in_state(partition, epoch, State::Serving) {
                    owned.state = State::Releasing(None);
                    effects.push(MemberEffect::Release { partition, epoch });
                }
            }
        }
    }

    fn tell_end(&self, table: u64, end: Position, effects: &mut Vec<MemberEffect>) {
        let answer = |Present { node, opening }| MemberEffect::Prepared(Prepared { node, opening, table, end });
        effects.extend(self.present().map(answer));
    }

    /// Ends the cuts for tables that others have followed by now. What the log holds is said before.
    fn forget_prepared(&mut self, effects: &mut Vec<MemberEffect>) {
        let known = self.table.as_ref().map(|table| table.number);
        effects.extend(self.prepared.extract_if(.., |(table, _)| Some(*table) < known).map(|(_, end)| MemberEffect::Uncut(end)));
    }

    fn report(&mut self, effects: &mut Vec<MemberEffect>) {
        let Some(Present { node, opening }) = self.present() else { return };
        let mut report = Report {
            node,
            opening,
            table: self.table.as_ref().map(|table| table.number),
            is_leaving: self.is_leaving,
            released: Vec::new(),
            restated: Vec::new(),
        };
        for (&partition, &Owned { epoch, state, restating }) in &self.owned {
            if let State::Releasing(Some(upto)) = state {
                report.released.push(Released { partition, epoch, upto });
            }
            if let Some((since, true)) = restating {
                report.restated.push(Restated { partition, epoch, since });
            }
        }
        effects.push(MemberEffect::Report(report));
    }
}

#[cfg(test)]
mod tests;
