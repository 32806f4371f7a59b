//! Targets: names with logical units, and the sessions logged in to them.

use crate::limits::Limits;
use crate::login::{Doors, Visitor};
use crate::negotiation::Parameters;
use crate::scsi::{LogicalUnit, Nexus};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::SystemTime;
use tokio::sync::{mpsc, oneshot, watch};

/// A target.
#[derive(Debug)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// Its units by LUN (below 16,384). They may change during sessions.
    pub units: RwLock<BTreeMap<u16, Arc<LogicalUnit>>>,
    /// The most sessions at a time.
    pub max_sessions: AtomicUsize,
}

impl Target {
    /// Returns a target without units, for any number of sessions.
    pub fn new(name: impl Into<String>) -> Target {
        Target { name: name.into(), units: RwLock::default(), max_sessions: AtomicUsize::new(usize::MAX) }
    }

    /// Returns the unit with this LUN field (SAM-5 section 4.7): peripheral device or flat space addressing, one level.
    pub fn unit(&self, lun: u64) -> Option<(u16, Arc<LogicalUnit>)> {
        let number = lun_number(lun)?;
        self.units.read().get(&number).map(|unit| (number, unit.clone()))
    }

    /// All LUNs, ascending.
    pub fn luns(&self) -> Vec<u16> {
        self.units.read().keys().copied().collect()
    }
}

/// Returns the number of a LUN field, if it has a form that is used here.
pub fn lun_number(lun: u64) -> Option<u16> {
    let first = (lun >> 48) as u16;
    if lun & 0x0000_ffff_ffff_ffff != 0 {
        return None;
    }
    match first >> 14 {
        // Bus 0.
        0 if first < 256 => Some(first),
        1 => Some(first & 0x3fff),
        _ => None,
    }
}

/// All targets.
pub trait Targets: Doors + Send + Sync {
    /// Returns the names of the targets that a visitor may see.
    fn names(&self, visitor: &Visitor) -> Vec<String>;

    /// Returns the target with this name.
    fn target(&self, name: &str) -> Option<Arc<Target>>;

    /// Returns whether this target is still served. Called when a session has entered it, before its first command. It
    /// waits while a change is under way that no session may see. From then on the session is counted
    /// ([`Handle::count_of`](crate::Handle::count_of)).
    fn is_served(&self, target: &Arc<Target>) -> bool {
        self.target(&target.name).is_some_and(|served| Arc::ptr_eq(&served, target))
    }
}

/// A message to a session from outside.
#[derive(Debug)]
pub(crate) enum Control {
    /// End the tasks on a unit, or all tasks, and report when they are over.
    Abort { lun: Option<u16>, done: oneshot::Sender<()> },
    /// Close the connection.
    Close,
    /// Ask the initiator to log out.
    AskToLogOut,
}

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its number. No other session of the server ever has it.
    pub number: u64,
    /// The target. `None` for a discovery session.
    pub target: Option<String>,
    /// The initiator, and where it is.
    pub visitor: Visitor,
    /// The initiator's part of the session's identifier.
    pub isid: [u8; 6],
    /// When it began.
    pub since: SystemTime,
    /// Whether headers have digests.
    pub header_digest: bool,
    /// Whether data has digests.
    pub data_digest: bool,
    /// SCSI commands that were answered.
    pub commands: u64,
    /// Bytes that the initiator has read.
    pub read_bytes: u64,
    /// Bytes that the initiator has sent to write.
    pub written_bytes: u64,
}

/// The counters of a session.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commands: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

/// A session that begins.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) target: Option<Arc<Target>>,
    pub(crate) nexus: Nexus,
    pub(crate) visitor: Visitor,
    pub(crate) isid: [u8; 6],
    pub(crate) parameters: Parameters,
}

#[derive(Debug)]
struct Entry {
    newcomer: Newcomer,
    since: SystemTime,
    counters: Arc<Counters>,
    control: mpsc::UnboundedSender<Control>,
    gone: watch::Receiver<bool>,
}

impl Entry {
    fn is_of(&self, target: &str) -> bool {
        self.newcomer.target.as_ref().is_some_and(|own| own.name == target)
    }
}

/// The sessions that are logged in.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    entries: Mutex<HashMap<u64, Entry>>,
    /// Targets of sessions that are about to enter. A session that reinstates another waits for its end, and its target
    /// is in use meanwhile. Locked after `entries`.
    arriving: Mutex<Vec<String>>,
    next: AtomicU64,
    /// Sessions that are over but whose last answers have not been taken yet.
    flushing: AtomicUsize,
    /// Whether nobody is let in any more. Changed and read with `entries` locked.
    is_closing: AtomicBool,
}

/// A session about to enter a target.
struct Arriving<'a> {
    sessions: &'a Sessions,
    target: Option<String>,
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        let mut arriving = self.sessions.arriving.lock();
        if let Some(at) = arriving.iter().position(|target| Some(target) == self.target.as_ref()) {
            arriving.swap_remove(at);
        }
    }
}

/// A session whose last answers are on their way.
#[derive(Debug)]
pub(crate) struct Flushing(Arc<Sessions>);

impl Drop for Flushing {
    fn drop(&mut self) {
        self.0.flushing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place in the list of sessions.
#[derive(Debug)]
pub(crate) struct Place {
    sessions: Arc<Sessions>,
    pub(crate) number: u64,
    pub(crate) counters: Arc<Counters>,
    gone: watch::Sender<bool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.entries.lock().remove(&self.number);
        self.gone.send_replace(true);
    }
}

/// The reason why a session gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The limit is reached.
    Full,
    /// The server is stopping.
    Closing,
}

impl Sessions {
    /// Returns the number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.entries.lock().len()
    }

    /// Returns the number of sessions, including those whose last answers are on their way.
    pub(crate) fn count_with_flushing(&self) -> usize {
        // The order matters: a session that leaves the first count is already in the second.
        self.count() + self.flushing.load(Ordering::Relaxed)
    }

    pub(crate) fn flush(self: &Arc<Sessions>) -> Flushing {
        self.flushing.fetch_add(1, Ordering::Relaxed);
        Flushing(self.clone())
    }

    /// Returns the number of sessions ever begun.
    pub(crate) fn begun(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the number of sessions of a target, including those about to enter it.
    pub(crate) fn count_of(&self, target: &str) -> usize {
        let entries = self.entries.lock();
        let arriving = self.arriving.lock().iter().filter(|name| *name == target).count();
        entries.values().filter(|entry| entry.is_of(target)).count() + arriving
    }

    fn arrive(&self, target: Option<String>) -> Arriving<'_> {
        self.arriving.lock().extend(target.clone());
        Arriving { sessions: self, target }
    }

    /// Returns all sessions, by their numbers.
    pub(crate) fn list(&self) -> Vec<SessionInfo> {
        let info = |(number, entry): (&u64, &Entry)| SessionInfo {
            number: *number,
            target: entry.newcomer.target.as_ref().map(|target| target.name.clone()),
            visitor: entry.newcomer.visitor.clone(),
            isid: entry.newcomer.isid,
            since: entry.since,
            header_digest: entry.newcomer.parameters.header_digest,
            data_digest: entry.newcomer.parameters.data_digest,
            commands: entry.counters.commands.load(Ordering::Relaxed),
            read_bytes: entry.counters.read_bytes.load(Ordering::Relaxed),
            written_bytes: entry.counters.written_bytes.load(Ordering::Relaxed),
        };
        let mut list: Vec<SessionInfo> = self.entries.lock().iter().map(info).collect();
        list.sort_unstable_by_key(|info| info.number);
        list
    }

    /// Enters a session. Errors: the limit of sessions, or of its target's sessions, is reached. Discovery sessions, in
    /// which nobody proves anything, are counted separately, also by address. A session of the same nexus to the same
    /// target is closed first and waited for: it is reinstated (RFC 7143 section 6.3.5).
    pub(crate) async fn enter(
        self: &Arc<Sessions>,
        newcomer: Newcomer,
        limits: &Limits,
        control: mpsc::UnboundedSender<Control>,
    ) -> Result<Place, NoPlace> {
        let _arriving = self.arrive(newcomer.target.as_ref().map(|target| target.name.clone()));
        loop {
            let mut old = {
                let mut entries = self.entries.lock();
                if self.is_closing.load(Ordering::Relaxed) {
                    return Err(NoPlace::Closing);
                }
                let target = newcomer.target.as_ref().map(|target| target.name.as_str());
                let same = |entry: &&Entry| target.is_some_and(|target| entry.is_of(target)) && entry.newcomer.nexus == newcomer.nexus;
                match entries.values().find(same) {
                    Some(old) => {
                        let _ = old.control.send(Control::Close);
                        old.gone.clone()
                    }
                    None => {
                        let count = |which: &dyn Fn(&Newcomer) -> bool| entries.values().filter(|entry| which(&entry.newcomer)).count();
                        let is_full = match &newcomer.target {
                            None => {
                                let address = newcomer.visitor.address;
                                count(&|other| other.target.is_none()) >= limits.discoveries
                                    || count(&|other| other.target.is_none() && other.visitor.address == address)
                                        >= limits.discoveries_of_address
                            }
                            Some(target) => {
                                let is_same = |other: &Newcomer| other.target.as_ref().is_some_and(|other| other.name == target.name);
                                count(&|other| other.target.is_some()) >= limits.sessions
                                    || count(&is_same) >= target.max_sessions.load(Ordering::Relaxed)
                            }
                        };
                        if is_full {
                            return Err(NoPlace::Full);
                        }
                        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
                        let (gone, receiver) = watch::channel(false);
                        let counters = Arc::new(Counters::default());
                        let entry = Entry { newcomer, since: SystemTime::now(), counters: counters.clone(), control, gone: receiver };
                        entries.insert(number, entry);
                        return Ok(Place { sessions: self.clone(), number, counters, gone });
                    }
                }
            };
            let _ = old.wait_for(|gone| *gone).await;
        }
    }

    /// Ends tasks of all sessions of a target.
    pub(crate) async fn abort(&self, target: &str, lun: Option<u16>, except: Option<u64>) {
        let mut waiting = Vec::new();
        for (number, entry) in &*self.entries.lock() {
            if entry.is_of(target) && Some(*number) != except {
                let (done, receiver) = oneshot::channel();
                let _ = entry.control.send(Control::Abort { lun, done });
                waiting.push(receiver);
            }
        }
        for receiver in waiting {
            // A session that is gone has no tasks.
            let _ = receiver.await;
        }
    }

    /// Ends the tasks of these nexuses' sessions on the unit with this number.
    pub(crate) async fn abort_of(&self, nexuses: &[Nexus], number: u64) {
        let mut waiting = Vec::new();
        for entry in self.entries.lock().values().filter(|entry| nexuses.contains(&entry.newcomer.nexus)) {
            let units = entry.newcomer.target.iter().flat_map(|target| target.units.read().clone());
            for (lun, _) in units.filter(|(_, unit)| unit.number() == number) {
                let (done, receiver) = oneshot::channel();
                let _ = entry.control.send(Control::Abort { lun: Some(lun), done });
                waiting.push(receiver);
            }
        }
        for receiver in waiting {
            // A session that is gone has no tasks.
            let _ = receiver.await;
        }
    }

    /// Closes all sessions of a target.
    pub(crate) fn close(&self, target: &str) {
        for entry in self.entries.lock().values().filter(|entry| entry.is_of(target)) {
            let _ = entry.control.send(Control::Close);
        }
    }

    /// Closes a session. Returns whether the number existed.
    pub(crate) fn close_one(&self, number: u64) -> bool {
        self.entries.lock().get(&number).is_some_and(|entry| entry.control.send(Control::Close).is_ok())
    }

    /// Closes all sessions.
    pub(crate) fn close_all(&self) {
        for entry in self.entries.lock().values() {
            let _ = entry.control.send(Control::Close);
        }
    }

    /// Asks all initiators to log out, and lets nobody in from now on, not even a session that waits for its
    /// predecessor to end.
    pub(crate) fn ask_to_log_out(&self) {
        let entries = self.entries.lock();
        self.is_closing.store(true, Ordering::Relaxed);
        for entry in entries.values() {
            let _ = entry.control.send(Control::AskToLogOut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_in_use_while_somebody_is_about_to_enter_it() {
        let sessions = Sessions::default();
        let arriving = [sessions.arrive(Some("a".into())), sessions.arrive(Some("a".into())), sessions.arrive(None)];
        assert_eq!((sessions.count_of("a"), sessions.count_of("b")), (2, 0));
        drop(arriving);
        assert_eq!(sessions.count_of("a"), 0);
    }

    #[test]
    fn luns_of_both_forms() {
        assert_eq!(lun_number(5 << 48), Some(5));
        assert_eq!(lun_number(0x4105 << 48), Some(0x105));
        assert_eq!(lun_number(0x0105 << 48), None);
        assert_eq!(lun_number(0x8000 << 48), None);
        assert_eq!(lun_number(1), None);
    }
}
