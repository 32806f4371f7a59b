//! A node's member and master, tied to their coordinator.

use crate::content::check_joining;
use crate::{Coordinator, CoordinatorError, Event, Faces, Joining, Process, Result, Session};
use onefold_cluster::{Master, MasterEffect, MasterEvent, Member, MemberEffect, MemberEvent, Opening, Present, View};
use parking_lot::Mutex;
use std::sync::Arc;

/// What a process has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Of the member. Never [`MemberEffect::Join`]: that is done.
    Member(MemberEffect),
    /// Of the master. Never [`MasterEffect::Announce`]: that is done.
    Master(MasterEffect),
    /// End the process: its next session would end in the same way. Comes in place of [`MemberEffect::OpenLog`].
    End(CoordinatorError),
}

/// The [`Member`] of a node, the [`Master`] of its session, and the session. It begins and ends sessions, announces
/// tables, and lets the master act only while the member hears (unsafe order 52). One thread uses it.
pub struct Seat {
    coordinator: Arc<dyn Coordinator>,
    process: Arc<dyn Process>,
    address: String,
    faces: Faces,
    member: Arc<Mutex<Member>>,
    /// The opening that has the session, and its master.
    joined: Option<Joined>,
}

struct Joined {
    opening: Opening,
    session: Box<dyn Session>,
    master: Master,
    /// The newest view, if the master does not know it yet.
    view: Option<View>,
    /// What came while the member did not hear, and does not come again: ends of what the master began, and tables.
    held: Vec<MasterEvent>,
}

impl Seat {
    /// Begins with a member that has no number: the first event is [`MemberEvent::Numbered`]. Other threads ask the
    /// member for rights; only the seat changes it. Other nodes reach the node at `address`, `HOST:PORT`, and clients
    /// at `faces`. Events go to `process`, which gives them to [`Seat::told`].
    ///
    /// Errors: [`CoordinatorError::Setting`]: an address cannot be written down.
    pub fn new(
        coordinator: Arc<dyn Coordinator>,
        process: Arc<dyn Process>,
        member: Arc<Mutex<Member>>,
        address: String,
        faces: Faces,
    ) -> Result<Seat> {
        check_joining(&address, &faces)?;
        Ok(Seat { coordinator, process, address, faces, member, joined: None })
    }

    /// Returns the opening that has a session.
    pub fn joined(&self) -> Option<Opening> {
        self.joined.as_ref().map(|joined| joined.opening)
    }

    /// Takes an event of the coordinator. Events of former sessions do nothing.
    pub fn told(&mut self, event: Event) -> Vec<Effect> {
        let Some(joined) = self.joined.as_mut().filter(|joined| joined.opening == event.opening()) else { return Vec::new() };
        let heard = match event {
            Event::Heard { opening, asked_ms } => Some(MemberEvent::Heard { opening, asked_ms }),
            Event::View { view, .. } => {
                let heads = view.table.map(|number| MemberEvent::Heads { number });
                joined.view = Some(view);
                heads
            }
            Event::Ahead { found, .. } => Some(MemberEvent::Heads { number: found }),
            Event::Damaged { .. } => None,
            Event::Over { opening, error } => return self.over(opening, error),
        };
        let mut effects = heard.map_or_else(Vec::new, |event| self.tell_member(event));
        effects.extend(self.go_on());
        effects
    }

    /// Takes an event of the member, other than those of the coordinator.
    pub fn tell_member(&mut self, event: MemberEvent) -> Vec<Effect> {
        let (wanted, before, table) = {
            let mut member = self.member.lock();
            let before = number(&member);
            (member.handle(event), before, number(&member))
        };
        let (mut effects, mut failure) = (Vec::new(), None);
        for effect in wanted {
            match effect {
                MemberEffect::Join(present) => failure = self.join(present, table).err().map(|error| (present.opening, error)),
                MemberEffect::OpenLog(_) | MemberEffect::TakeNumber => {
                    self.joined = None;
                    effects.push(Effect::Member(effect));
                }
                effect => effects.push(Effect::Member(effect)),
            }
        }
        if let (Some(table), Some(joined)) = (table.filter(|_| table != before), &self.joined) {
            joined.session.knows(table);
        }
        if let Some((opening, error)) = failure {
            effects.extend(self.over(opening, error));
        }
        effects
    }

    /// Takes an event of the master: what came of its effects, or what members say to it. What came of those of an
    /// earlier opening must not come here: this master may be putting another table with the number.
    pub fn tell_master(&mut self, event: MasterEvent) -> Vec<Effect> {
        let hears = self.heard_now_ms().is_some();
        let Some(joined) = &mut self.joined else { return Vec::new() };
        // What members say comes again. So however long the member hears nothing, little is held.
        let comes_again = matches!(event, MasterEvent::Report(_) | MasterEvent::Prepared(_) | MasterEvent::Tick);
        if hears || !comes_again {
            joined.held.push(event);
        }
        self.go_on()
    }

    /// Says that time has passed. Comes several times in a session.
    pub fn tick(&mut self) -> Vec<Effect> {
        let mut effects = self.tell_member(MemberEvent::Tick);
        effects.extend(self.tell_master(MasterEvent::Tick));
        effects
    }

    /// Gives the session away, and ends the master: the node ends, or has [left](MemberEffect::Left). The session goes
    /// on until it is dropped. Its events do nothing any more.
    pub fn take_session(&mut self) -> Option<Box<dyn Session>> {
        self.joined.take().map(|joined| joined.session)
    }

    /// Returns the time, if the member hears now.
    fn heard_now_ms(&self) -> Option<u64> {
        let now_ms = self.process.now_ms();
        self.member.lock().hears(now_ms).then_some(now_ms)
    }

    fn join(&mut self, present: Present, table: Option<u64>) -> Result<()> {
        let joining = Joining { present, address: self.address.clone(), faces: self.faces.clone(), table };
        let session = self.coordinator.join(joining, self.process.clone())?;
        let master = Master::new(self.coordinator.session_ms());
        self.joined = Some(Joined { opening: present.opening, session, master, view: None, held: Vec::new() });
        Ok(())
    }

    /// Ends the opening with its session. Its log is opened again, unless the next session would end in the same way.
    fn over(&mut self, opening: Opening, error: CoordinatorError) -> Vec<Effect> {
        self.joined = None;
        let mut effects = self.tell_member(MemberEvent::Over(opening));
        if error.is_final() {
            effects.retain(|effect| !matches!(effect, Effect::Member(MemberEffect::OpenLog(_))));
            effects.push(Effect::End(error));
        }
        effects
    }

    /// Lets the master act, if the member hears: first by the newest view, which is as new as what the member heard.
    fn go_on(&mut self) -> Vec<Effect> {
        let (Some(now_ms), Some(joined)) = (self.heard_now_ms(), &mut self.joined) else { return Vec::new() };
        let events = joined.view.take().map(MasterEvent::View).into_iter().chain(std::mem::take(&mut joined.held));
        let mut effects = Vec::new();
        for effect in events.flat_map(|event| joined.master.handle(now_ms, event)) {
            match effect {
                MasterEffect::Announce { number } => joined.session.announce(number),
                effect => effects.push(Effect::Master(effect)),
            }
        }
        effects
    }
}

/// Returns the number of the newest table that a member knows.
fn number(member: &Member) -> Option<u64> {
    member.table().map(|table| table.number)
}

#[cfg(test)]
mod tests;
