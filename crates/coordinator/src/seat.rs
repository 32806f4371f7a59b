//! A node's member and master, tied to their coordinator.

use crate::content::check_joining;
use crate::{Coordinator, Event, Faces, Joining, Process, Result, Session};
use onefold_cluster::{Master, MasterEffect, MasterEvent, Member, MemberEffect, MemberEvent, Opening, Present, View};
use onefold_ground::time::Reading;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// What a process has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Of the member. Never [`MemberEffect::Join`]: that is done.
    Member(MemberEffect),
    /// Of the master. Never [`MasterEffect::Announce`]: that is done.
    Master {
        /// Which master: the one of this opening. Goes back with what comes of it.
        opening: Opening,
        /// What it wants.
        effect: MasterEffect,
    },
}

/// The [`Member`] of a node, the [`Master`] of its session, and the session. It begins and ends sessions, announces
/// tables, and lets the master act only while the member hears (unsafe order 52). One thread uses it, or a lock is
/// around it.
pub struct Seat {
    coordinator: Arc<dyn Coordinator>,
    process: Arc<dyn Process>,
    address: String,
    faces: Faces,
    member: Member,
    /// The opening that has the session, and its master.
    joined: Option<Joined>,
}

struct Joined {
    opening: Opening,
    session: Box<dyn Session>,
    master: Master,
    /// The newest view, if the master does not know it yet.
    view: Option<View>,
    /// What came while the member did not hear, and does not come again.
    held: Vec<MasterEvent>,
}

impl Seat {
    /// Begins without a number: the first event is [`MemberEvent::Numbered`]. Other nodes reach the node at `address`,
    /// `HOST:PORT`, and clients at `faces`. Events go to `process`, which gives them to [`Seat::told`].
    ///
    /// Errors: [`CoordinatorError::Setting`]: an address cannot be written down.
    pub fn new(coordinator: Arc<dyn Coordinator>, process: Arc<dyn Process>, address: String, faces: Faces) -> Result<Seat> {
        check_joining(&address, &faces)?;
        let member = Member::new(coordinator.session_ms());
        Ok(Seat { coordinator, process, address, faces, member, joined: None })
    }

    /// Returns the member, which knows what may be answered.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Takes an event of the coordinator. Events of former sessions do nothing. If [`Event::Over`] has an error that
    /// [is final](CoordinatorError::is_final), the process should end instead: it would open its log again and again.
    pub fn told(&mut self, event: Event) -> Vec<Effect> {
        let Some(joined) = self.joined.as_mut().filter(|joined| joined.opening == event.opening()) else { return Vec::new() };
        if let Event::Over { .. } = event {
            self.joined = None;
        } else if let Some(MasterEvent::View(view)) = event.for_master() {
            joined.view = Some(view);
        }
        let mut effects = event.for_member().map_or_else(Vec::new, |event| self.tell_member(event));
        effects.extend(self.go_on());
        effects
    }

    /// Takes an event of the member, other than those of the coordinator.
    pub fn tell_member(&mut self, event: MemberEvent) -> Vec<Effect> {
        let known = self.member.table().map(|table| table.number);
        let mut effects = Vec::new();
        for effect in self.member.handle(event) {
            match effect {
                MemberEffect::Join(present) => effects.extend(self.join(present)),
                MemberEffect::OpenLog(_) => {
                    self.joined = None;
                    effects.push(Effect::Member(effect));
                }
                effect => effects.push(Effect::Member(effect)),
            }
        }
        let knows = self.member.table().map(|table| table.number).filter(|number| Some(*number) != known);
        if let (Some(table), Some(joined)) = (knows, &self.joined) {
            joined.session.knows(table);
        }
        effects
    }

    /// Takes an event of the master of an opening: what came of its effects, or what members say to it. There may be
    /// another master by now, or none; then it does nothing.
    pub fn tell_master(&mut self, opening: Opening, event: MasterEvent) -> Vec<Effect> {
        let hears = self.member.hears(self.process.now_ms());
        let Some(joined) = self.joined.as_mut().filter(|joined| joined.opening == opening) else { return Vec::new() };
        // What members say comes again.
        let comes_again = matches!(event, MasterEvent::Report(_) | MasterEvent::Prepared(_) | MasterEvent::Tick);
        if hears || !comes_again {
            joined.held.push(event);
        }
        self.go_on()
    }

    /// Says that time has passed. Comes several times in a session.
    pub fn tick(&mut self) -> Vec<Effect> {
        let mut effects = self.tell_member(MemberEvent::Tick);
        if let Some(opening) = self.joined.as_ref().map(|joined| joined.opening) {
            effects.extend(self.tell_master(opening, MasterEvent::Tick));
        }
        effects
    }

    /// Ends the session, and waits until the coordinator knows, for as long as a session at most. Comes behind
    /// [`MemberEffect::Left`], when the last batch is put.
    pub fn leave(self) {
        if let Some(joined) = self.joined {
            joined.session.leave();
        }
    }

    fn join(&mut self, present: Present) -> Vec<Effect> {
        let table = self.member.table().map(|table| table.number);
        let joining = Joining { present, address: self.address.clone(), faces: self.faces.clone(), table };
        match self.coordinator.join(joining, self.process.clone()) {
            Ok(session) => {
                let master = Master::new(self.coordinator.session_ms());
                self.joined = Some(Joined { opening: present.opening, session, master, view: None, held: Vec::new() });
                Vec::new()
            }
            Err(error) => {
                tracing::error!(%error, "a session cannot begin");
                self.tell_member(MemberEvent::Over(present.opening))
            }
        }
    }

    /// Lets the master act, if the member hears: first by the newest view, which is as new as what the member heard.
    fn go_on(&mut self) -> Vec<Effect> {
        let now_ms = self.process.now_ms();
        let Some(joined) = self.joined.as_mut().filter(|_| self.member.hears(now_ms)) else { return Vec::new() };
        let events = joined.view.take().map(MasterEvent::View).into_iter().chain(std::mem::take(&mut joined.held));
        let mut effects = Vec::new();
        for effect in events.flat_map(|event| joined.master.handle(now_ms, event)) {
            match effect {
                MasterEffect::Announce { number } => joined.session.announce(number),
                effect => effects.push(Effect::Master { opening: joined.opening, effect }),
            }
        }
        effects
    }
}

/// A [`Process`] that sends its events through a channel, with the clock of the system since its start.
pub struct Inbox<T> {
    sender: Sender<T>,
}

impl<T: From<Event> + Send + 'static> Inbox<T> {
    /// Sends events to the receiver of this channel. If that is gone, they are dropped.
    pub fn new(sender: Sender<T>) -> Arc<Inbox<T>> {
        Arc::new(Inbox { sender })
    }
}

impl<T: From<Event> + Send + 'static> Process for Inbox<T> {
    fn now_ms(&self) -> u64 {
        Reading::now().boot_ns / 1_000_000
    }

    fn tell(&self, event: Event) {
        let _ = self.sender.send(T::from(event));
    }
}

#[cfg(test)]
mod tests;
