//! The coordinator: sessions that end by its own clock, ephemeral nodes, an election, and a number that is a hint.

use super::process::ProcessId;
use super::shared::Time;
use onefold_cluster::{NodeNumber, Opening, Present, View};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

#[derive(Clone)]
pub struct Session {
    /// `None`: it is of data that were restored, and nobody knows it any more.
    pub who: Option<ProcessId>,
    pub present: Present,
    pub ends: Time,
    /// It has asked once: then it has an ephemeral node, and may become master.
    has_joined: bool,
}

#[derive(Clone, Default)]
pub struct Data {
    pub sessions: BTreeMap<u64, Session>,
    /// Ephemeral nodes, with the session of each.
    pub alive: BTreeMap<NodeNumber, (u64, Opening)>,
    pub table: Option<u64>,
}

pub struct Coordinator {
    pub data: Data,
    /// What is restored when it comes back with old data.
    pub old: Data,
    session_ms: Time,
    /// Counts changes: views come in their order.
    pub version: u64,
    next: u64,
    pub away_until: Time,
}

pub enum Call {
    Connect(Present),
    Ask(u64),
    Announce(u64, u64),
    End(u64),
}

pub enum Answer {
    View {
        session: u64,
        version: u64,
        view: View,
    },
    /// The session has ended.
    Expired {
        session: u64,
    },
}

impl Coordinator {
    /// `session_ms` is what a session takes by its own clock.
    pub fn new(session_ms: Time) -> Coordinator {
        let (data, old) = Default::default();
        Coordinator { data, old, session_ms, version: 0, next: 0, away_until: 0 }
    }

    pub fn view(&self, session: u64) -> Answer {
        let alive = self.data.alive.iter().map(|(node, (_, opening))| (*node, *opening)).collect();
        let is_master = self.master() == Some(session);
        Answer::View { session, version: self.version, view: View { alive, is_master, table: self.data.table } }
    }

    /// Returns the session of the master: the first one of those that are there.
    pub fn master(&self) -> Option<u64> {
        self.data.sessions.iter().find(|(_, session)| session.has_joined).map(|(id, _)| *id)
    }

    /// Ends the sessions whose time is over. Returns whether there were some.
    pub fn expire(&mut self, now: Time) -> bool {
        let over: Vec<u64> = self.data.sessions.iter().filter(|(_, session)| session.ends <= now).map(|(id, _)| *id).collect();
        over.iter().for_each(|session| self.end(*session));
        !over.is_empty()
    }

    fn end(&mut self, session: u64) {
        self.data.sessions.remove(&session);
        self.data.alive.retain(|_, (of, _)| *of != session);
        self.version += 1;
    }

    /// Executes a call. The second value: whether views changed.
    pub fn call(&mut self, now: Time, who: ProcessId, call: &Call) -> (Option<Answer>, bool) {
        let ends = now + self.session_ms;
        let before = self.version;
        let answer = match *call {
            Call::Connect(present) => {
                self.next += 1;
                self.data.sessions.insert(self.next, Session { who: Some(who), present, ends, has_joined: false });
                Some(self.view(self.next))
            }
            Call::Ask(session) => Some(match self.data.sessions.get_mut(&session) {
                Some(known) if known.who == Some(who) => {
                    known.ends = ends;
                    if !std::mem::replace(&mut known.has_joined, true) {
                        self.version += 1;
                    }
                    self.make_node(session);
                    self.view(session)
                }
                _ => Answer::Expired { session },
            }),
            Call::Announce(session, table) => {
                if self.data.sessions.contains_key(&session) {
                    self.data.table = Some(table);
                    self.version += 1;
                }
                None
            }
            Call::End(session) => {
                self.end(session);
                None
            }
        };
        (answer, self.version > before)
    }

    /// Makes the ephemeral node, unless another session has it.
    fn make_node(&mut self, session: u64) {
        let present = self.data.sessions[&session].present;
        if let Entry::Vacant(free) = self.data.alive.entry(present.node) {
            free.insert((session, present.opening));
            self.version += 1;
        }
    }

    /// Comes back after it was away: every session has its whole time again.
    pub fn come_back(&mut self, now: Time) {
        let ends = now + self.session_ms;
        self.data.sessions.values_mut().for_each(|session| session.ends = ends);
    }

    /// Comes back with old data, or none. Those that are connected do not know the sessions in it.
    pub fn restore(&mut self, now: Time, data: Data) {
        self.data = data;
        self.data.sessions.values_mut().for_each(|session| session.who = None);
        self.version += 1;
        self.come_back(now);
    }
}
