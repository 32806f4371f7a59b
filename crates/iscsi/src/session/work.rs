//! Hands commands to the threads that execute them, with everything they need there.

use super::task::Ending;
use super::{Begun, Event, Session};
use crate::chap::Account;
use crate::login::Visitor;
use crate::memory::Room;
use crate::scsi::{Caller, LogicalUnit, MAX_TRANSFER_BYTES, Nexus, Patience, Peers, Port};
use crate::shared::Shared;
use crate::target::Target;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How often a command that waits for the end of others checks whether its own answer is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// After this many commands that came one at a time, the session's own task executes short reads. Nothing is delayed
/// that could run in parallel. It saves handing the command to a thread and back, each of which takes as long as the
/// read.
const LONE_COMMANDS: u32 = 8;
/// The longest read executed this way, in bytes.
const AT_ONCE_BYTES: usize = 64 << 10;

/// The resources of a command under way.
#[derive(Debug)]
struct Waiting {
    /// Places among the workers, of its session and of all sessions; or a place among the waiters.
    places: Mutex<Vec<OwnedSemaphorePermit>>,
    waiters: Arc<Semaphore>,
    ended: Arc<Ending>,
}

/// The sender of a session's commands, and its access to other units.
pub(super) struct Sender {
    shared: Arc<Shared>,
    nexus: Nexus,
    port: Port,
    visitor: Visitor,
    target: Option<Arc<Target>>,
    proved: Option<Account>,
    runtime: tokio::runtime::Handle,
}

impl Sender {
    pub(super) fn new(shared: &Arc<Shared>, begun: &Begun) -> Sender {
        Sender {
            shared: shared.clone(),
            nexus: begun.nexus.clone(),
            port: begun.port.clone(),
            visitor: begun.visitor.clone(),
            target: begun.target.clone(),
            proved: begun.proved.clone(),
            runtime: tokio::runtime::Handle::current(),
        }
    }

    /// Returns whether the initiator could log in to a target with the proof it has already given. Only claiming the
    /// name of an initiator that is logged in there proves nothing.
    fn may_use(&self, target: &str) -> bool {
        let Ok(terms) = self.shared.targets.admit(Some(target), &self.visitor) else { return false };
        let accounts = &terms.credentials.initiators;
        accounts.is_empty() || self.proved.as_ref().is_some_and(|proved| accounts.contains(proved))
    }
}

impl Peers for Sender {
    fn unit(&self, number: u64) -> Option<Arc<LogicalUnit>> {
        let find = |target: &Target| target.units.read().values().find(|unit| unit.number() == number).cloned();
        self.target.as_deref().and_then(find).or_else(|| {
            let names = self.shared.targets.names(&self.visitor);
            let mut others = names.iter().filter(|name| self.may_use(name)).filter_map(|name| self.shared.targets.target(name));
            others.find_map(|target| find(&target))
        })
    }

    fn abort(&self, number: u64, nexuses: &[Nexus], is_over: &dyn Fn() -> bool) {
        // This thread may wait. A command that was ended itself does not wait: the command it waits for may be the one
        // that ended it.
        self.runtime.block_on(async {
            let mut aborted = pin!(self.shared.sessions.abort_of(nexuses, number));
            while tokio::time::timeout(LOOK, &mut aborted).await.is_err() && !is_over() {}
        });
    }
}

impl Patience for Waiting {
    fn begin_to_wait(&self) {
        // There are threads for all workers besides the waiters. With too many waiters, it keeps its place.
        if let Ok(waiter) = self.waiters.clone().try_acquire_owned() {
            *self.places.lock() = vec![waiter];
        }
    }

    fn is_over(&self) -> bool {
        self.ended.is_over()
    }
}

impl Session {
    /// Lets a command begin whose data is complete, as soon as there is room for what it reads and a worker.
    pub(super) fn start(&mut self, tag: u32) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        task.is_running = true;
        let (unit, cdb, data, serial) = (task.unit.clone(), task.cdb.clone(), std::mem::take(&mut task.data), task.serial);
        // A write of fewer bytes than came would be answered as if it were complete.
        let is_whole = data.len() == task.wanted_bytes as usize;
        debug_assert!(is_whole, "{} of {} bytes", data.len(), task.wanted_bytes);
        self.begun.place.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        let announced = if task.is_write { task.expected_bytes } else { 0 };
        // Everything the unit reads counts, even if the initiator wants less.
        let expected = if task.is_read { task.expected_bytes } else { 0 };
        let bytes = expected.max(unit.as_ref().map_or(0, |unit| unit.data_in_bytes(&cdb)) as u32).min(MAX_TRANSFER_BYTES);
        let (room, ended) = (task.room.take(), task.ended.clone());
        let is_alone = self.lone_commands >= LONE_COMMANDS && self.tasks.len() == 1;
        let is_at_once = is_alone && unit.as_ref().is_some_and(|unit| unit.is_short_read(&cdb, AT_ONCE_BYTES));
        let (sender, events, own_ended) = (self.sender.clone(), self.events.clone(), ended.clone());
        let work = move |room: Option<Room>, places: [OwnedSemaphorePermit; 2]| {
            let waiters = sender.shared.waiters.clone();
            let waiting = Waiting { places: Mutex::new(places.into()), waiters, ended: own_ended };
            let luns = sender.target.as_ref().map_or_else(Vec::new, |target| target.luns());
            let caller = Caller {
                nexus: &sender.nexus,
                port: &sender.port,
                luns: &luns,
                patience: &waiting,
                peers: &*sender,
                tokens: &sender.shared.tokens,
                buffers: &sender.shared.buffers,
            };
            let execute = || match unit {
                // It was ended while it waited for its turn, so it must not begin.
                _ if waiting.is_over() || !is_whole => crate::scsi::failed(),
                Some(unit) => unit.execute(caller, &cdb, &data, announced),
                None => crate::scsi::without_unit(caller, &cdb),
            };
            let reply = catch_unwind(AssertUnwindSafe(execute)).unwrap_or_else(|_| crate::scsi::failed());
            sender.shared.buffers.give_back(data);
            // When the session learns that it is done, its place is free and no thread holds the unit.
            drop((waiting, sender));
            // No receiver: the session is over.
            let _ = events.send(Event::Done { tag, serial, reply, room });
        };
        let (memory, own, all) = (self.memory.clone(), self.workers.clone(), self.shared.workers.clone());
        let needed = if room.is_none() { bytes } else { 0 };
        // Usually there is room at once.
        let room = if needed > 0 { memory.try_take(needed).map(Some).ok_or(()) } else { Ok(room) };
        // The session's own place first, so that nobody holds a general place while waiting for one.
        let places = own.clone().try_acquire_owned().and_then(|own| Ok([own, all.clone().try_acquire_owned()?]));
        match (room, places) {
            // It may wait for its data while other threads serve other sessions.
            (Ok(room), Ok(places)) if is_at_once => tokio::task::block_in_place(|| work(room, places)),
            (Ok(room), Ok(places)) => self.shared.pool.run(move || work(room, places)),
            (room, places) => {
                drop(places);
                let (shared, events) = (self.shared.clone(), self.events.clone());
                tokio::spawn(async move {
                    let ready = async {
                        let room = match room {
                            Ok(room) => room,
                            Err(()) => Some(memory.take(needed).await),
                        };
                        let own = own.acquire_owned().await.expect("nobody closes it");
                        (room, [own, all.acquire_owned().await.expect("nobody closes it")])
                    };
                    tokio::select! {
                        biased;
                        () = ended.wait() => {
                            // It has not begun, so nobody has to wait for it.
                            drop(work);
                            let _ = events.send(Event::Done { tag, serial, reply: crate::scsi::failed(), room: None });
                        }
                        (room, places) = ready => shared.pool.run(move || work(room, places)),
                    }
                });
            }
        }
    }
}
