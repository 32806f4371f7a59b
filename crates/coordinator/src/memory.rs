//! A coordinator in memory, for tests. It has a clock of its own, which goes on when the test says so, and fails on
//! demand: sessions end, requests hang, data are lost or old.

use crate::content::check_joining;
use crate::{Coordinator, CoordinatorError, Event, Joining, Listed, Process, Result, Session};
use onefold_cluster::{NodeNumber, Present, View};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Heartbeats in a session.
const BEATS: u64 = 8;

/// A coordinator in memory. Its clones are one coordinator.
#[derive(Clone)]
pub struct MemoryCoordinator {
    shared: Arc<Shared>,
}

/// What a coordinator knows at one moment. The default: nothing.
#[derive(Clone, Debug, Default)]
pub struct MemoryData {
    /// Sessions, and when each ends.
    sessions: BTreeMap<u64, u64>,
    /// Ephemeral nodes, with the session of each.
    nodes: BTreeMap<NodeNumber, (u64, Listed)>,
    master: Option<u64>,
    table: Option<u64>,
}

struct Shared {
    session_ms: u64,
    /// Apart from the rest: processes that are asked for the time may have it from here.
    now_ms: AtomicU64,
    world: Mutex<World>,
}

struct World {
    /// The next number, of a session or of an end of one.
    next: u64,
    data: MemoryData,
    /// The ends of sessions at their processes.
    ends: BTreeMap<u64, End>,
    /// Nobody is answered.
    is_away: bool,
    /// What processes will be told, in order.
    outbox: VecDeque<(Arc<dyn Process>, Event)>,
    /// Somebody is telling them.
    is_telling: bool,
}

/// What a process has of its session.
struct End {
    joining: Joining,
    process: Arc<dyn Process>,
    session: Option<u64>,
    /// It has made its ephemeral node.
    has_joined: bool,
    is_cut_off: bool,
    announced: Option<u64>,
    told_view: Option<(View, BTreeMap<NodeNumber, Listed>)>,
    told_ahead: Option<(u64, u64)>,
}

impl MemoryCoordinator {
    /// Creates one that knows nothing. Sessions end after `session_ms`.
    pub fn new(session_ms: u64) -> MemoryCoordinator {
        let world = World {
            next: 1,
            data: MemoryData::default(),
            ends: BTreeMap::new(),
            is_away: false,
            outbox: VecDeque::new(),
            is_telling: false,
        };
        MemoryCoordinator { shared: Arc::new(Shared { session_ms, now_ms: AtomicU64::new(1), world: Mutex::new(world) }) }
    }

    /// Returns the time of its clock.
    pub fn now_ms(&self) -> u64 {
        self.shared.now_ms.load(Ordering::SeqCst)
    }

    /// Lets time pass: heartbeats are sent and answered, and sessions end.
    pub fn pass(&self, ms: u64) {
        let mut left_ms = ms;
        while left_ms > 0 {
            let step_ms = left_ms.min((self.shared.session_ms / BEATS).max(1));
            left_ms -= step_ms;
            self.shared.now_ms.fetch_add(step_ms, Ordering::SeqCst);
            self.shared.change(|_| {});
        }
    }

    /// Is away, or comes back. Requests hang meanwhile, and then every session has its whole time again.
    pub fn set_away(&self, is_away: bool) {
        let ends_ms = self.now_ms() + self.shared.session_ms;
        self.shared.change(|world| {
            world.is_away = is_away;
            world.renew(ends_ms);
        });
    }

    /// Cuts an opening off, or connects it again. Its requests hang, and its session goes on to its end.
    pub fn set_cut_off(&self, present: Present, is_cut_off: bool) {
        self.shared.change(|world| {
            let ends = world.ends.values_mut().filter(|end| end.joining.present == present);
            ends.for_each(|end| end.is_cut_off = is_cut_off);
        });
    }

    /// Ends the session of an opening.
    pub fn end_session(&self, present: Present) {
        self.shared.change(|world| {
            let of_it = world.ends.values().filter(|end| end.joining.present == present);
            let sessions: Vec<u64> = of_it.filter_map(|end| end.session).collect();
            sessions.into_iter().for_each(|session| world.end(session));
        });
    }

    /// Removes the ephemeral node of a node, whose session goes on.
    pub fn remove_node(&self, node: NodeNumber) {
        self.shared.change(|world| drop(world.data.nodes.remove(&node)));
    }

    /// Returns what it knows.
    pub fn data(&self) -> MemoryData {
        self.shared.world.lock().data.clone()
    }

    /// Comes back with other data: old ones, or none. No process knows a session in them.
    pub fn restore(&self, data: MemoryData) {
        let ends_ms = self.now_ms() + self.shared.session_ms;
        self.shared.change(|world| {
            let MemoryData { sessions, nodes, master, table } = data;
            let numbers: BTreeMap<u64, u64> = sessions.into_keys().zip(world.next..).collect();
            world.next += numbers.len() as u64;
            let of = |session: u64| numbers.get(&session).copied();
            world.data = MemoryData {
                sessions: numbers.values().map(|session| (*session, 0)).collect(),
                nodes: nodes.into_iter().filter_map(|(node, (session, listed))| Some((node, (of(session)?, listed)))).collect(),
                master: master.and_then(of),
                table,
            };
            world.renew(ends_ms);
        });
    }
}

impl Coordinator for MemoryCoordinator {
    fn session_ms(&self) -> u64 {
        self.shared.session_ms
    }

    fn join(&self, joining: Joining, process: Arc<dyn Process>) -> Result<Box<dyn Session>> {
        check_joining(&joining.address, &joining.faces)?;
        let end = End {
            joining,
            process,
            session: None,
            has_joined: false,
            is_cut_off: false,
            announced: None,
            told_view: None,
            told_ahead: None,
        };
        let mut number = 0;
        self.shared.change(|world| {
            number = world.next;
            world.next += 1;
            world.ends.insert(number, end);
        });
        Ok(Box::new(MemorySession { shared: self.shared.clone(), number }))
    }
}

impl Shared {
    /// Changes something, lets everybody hear of it, and tells the processes without holding the lock: they may call
    /// back.
    fn change(&self, change: impl FnOnce(&mut World)) {
        let mut world = self.world.lock();
        change(&mut world);
        world.go_on(self.now_ms.load(Ordering::SeqCst), self.session_ms);
        if world.is_telling {
            return;
        }
        world.is_telling = true;
        while let Some((process, event)) = world.outbox.pop_front() {
            drop(world);
            process.tell(event);
            world = self.world.lock();
        }
        world.is_telling = false;
    }
}

impl World {
    /// Ends what is over, and answers a heartbeat of everybody, until nothing changes any more.
    fn go_on(&mut self, now_ms: u64, session_ms: u64) {
        if self.is_away {
            return;
        }
        let over: Vec<u64> = self.data.sessions.iter().filter(|(_, ends_ms)| **ends_ms <= now_ms).map(|(over, _)| *over).collect();
        over.into_iter().for_each(|session| self.end(session));
        let mut has_changed = true;
        while std::mem::take(&mut has_changed) {
            let numbers: Vec<u64> = self.ends.keys().copied().collect();
            for number in numbers {
                has_changed |= self.beat(number, now_ms + session_ms);
            }
        }
    }

    /// Answers a heartbeat. Returns whether what others see has changed.
    fn beat(&mut self, number: u64, ends_ms: u64) -> bool {
        let World { next, data, ends, outbox, .. } = self;
        let Some(end) = ends.get_mut(&number).filter(|end| !end.is_cut_off) else { return false };
        let Present { node, opening } = end.joining.present;
        let session = *end.session.get_or_insert_with(|| {
            *next += 1;
            data.sessions.insert(*next - 1, 0);
            *next - 1
        });
        let owner = data.nodes.get(&node).map(|(owner, _)| *owner);
        let error = if !data.sessions.contains_key(&session) {
            Some(CoordinatorError::Ended)
        } else if end.has_joined && owner != Some(session) {
            Some(CoordinatorError::Lost { path: format!("nodes/{node}") })
        } else {
            None
        };
        if let Some(error) = error {
            outbox.push_back((end.process.clone(), Event::Over { opening, error }));
            ends.remove(&number);
            self.end(session);
            return true;
        }
        data.sessions.insert(session, ends_ms);
        let mut has_changed = false;
        let listed = Listed { opening, address: end.joining.address.clone(), faces: end.joining.faces.clone(), table: end.joining.table };
        if owner.is_none_or(|owner| owner == session) {
            end.has_joined = true;
            has_changed = data.nodes.insert(node, (session, listed.clone())) != Some((session, listed));
            if data.master.is_none() {
                data.master = Some(session);
                has_changed = true;
            }
        }
        if let Some(announced) = end.announced.take() {
            if data.table < Some(announced) {
                data.table = Some(announced);
                has_changed = true;
            } else if let Some(found) = data.table.filter(|found| *found > announced)
                && end.told_ahead.replace((announced, found)) != Some((announced, found))
            {
                outbox.push_back((end.process.clone(), Event::Ahead { opening, announced, found }));
            }
        }
        if end.has_joined {
            let alive = data.nodes.iter().map(|(node, (_, listed))| (*node, listed.opening)).collect();
            let view = View { alive, is_master: data.master == Some(session), table: data.table };
            let nodes: BTreeMap<NodeNumber, Listed> = data.nodes.iter().map(|(node, (_, listed))| (*node, listed.clone())).collect();
            let told = Some((view.clone(), nodes.clone()));
            if end.told_view != told {
                end.told_view = told;
                outbox.push_back((end.process.clone(), Event::View { opening, view, nodes }));
            }
        }
        outbox.push_back((end.process.clone(), Event::Heard { opening, asked_ms: end.process.now_ms() }));
        has_changed
    }

    fn end(&mut self, session: u64) {
        self.data.sessions.remove(&session);
        self.data.nodes.retain(|_, (owner, _)| *owner != session);
        self.data.master.take_if(|master| *master == session);
    }

    /// Gives every session its whole time again.
    fn renew(&mut self, ends_ms: u64) {
        self.data.sessions.values_mut().for_each(|ends| *ends = ends_ms);
    }
}

struct MemorySession {
    shared: Arc<Shared>,
    number: u64,
}

impl MemorySession {
    fn change(&self, change: impl FnOnce(&mut End)) {
        self.shared.change(|world| {
            if let Some(end) = world.ends.get_mut(&self.number) {
                change(end);
            }
        });
    }
}

impl Session for MemorySession {
    fn announce(&self, number: u64) {
        self.change(|end| end.announced = Some(number));
    }

    fn knows(&self, table: u64) {
        self.change(|end| end.joining.table = Some(table));
    }

    fn leave(self: Box<Self>) {}
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.shared.change(|world| {
            let Some(End { session: Some(session), is_cut_off, .. }) = world.ends.remove(&self.number) else { return };
            // A request to end it hangs as any other one, and nobody sends it again.
            if !is_cut_off && !world.is_away {
                world.end(session);
            }
        });
    }
}
