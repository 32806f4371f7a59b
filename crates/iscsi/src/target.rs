//! Targets: names with logical units; and who is logged in.

use crate::login::Doors;
use crate::scsi::{LogicalUnit, Nexus};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot};

/// A target.
#[derive(Debug, Default)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// Its units by LUN (below 16,384).
    pub units: RwLock<BTreeMap<u16, Arc<LogicalUnit>>>,
}

impl Target {
    /// The unit with this LUN field (SAM-5 section 4.7): peripheral device or flat space addressing, one level.
    pub fn unit(&self, lun: u64) -> Option<(u16, Arc<LogicalUnit>)> {
        let number = lun_number(lun)?;
        self.units.read().get(&number).map(|unit| (number, unit.clone()))
    }

    /// All LUNs, ascending.
    pub fn luns(&self) -> Vec<u16> {
        self.units.read().keys().copied().collect()
    }
}

/// The number of a LUN field, if it is of a form that is used here.
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
    /// Names of those that an initiator may see.
    fn names(&self, initiator: &str) -> Vec<String>;

    /// A target by its name.
    fn target(&self, name: &str) -> Option<Arc<Target>>;
}

/// What a session is told from outside.
#[derive(Debug)]
pub(crate) enum Control {
    /// End the tasks on a unit, or all; say so when they are over.
    Abort { lun: Option<u16>, done: oneshot::Sender<()> },
    /// Close the connection.
    Close,
    /// Ask the initiator to log out.
    AskToLogOut,
}

#[derive(Debug)]
struct Entry {
    target: Option<String>,
    nexus: Nexus,
    control: mpsc::UnboundedSender<Control>,
    gone: tokio::sync::watch::Receiver<bool>,
}

/// Who is logged in.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    entries: Mutex<HashMap<u64, Entry>>,
    next: AtomicU64,
}

/// A place in the list of sessions.
#[derive(Debug)]
pub(crate) struct Place {
    sessions: Arc<Sessions>,
    pub(crate) number: u64,
    gone: tokio::sync::watch::Sender<bool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.entries.lock().remove(&self.number);
        self.gone.send_replace(true);
    }
}

impl Sessions {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.entries.lock().len()
    }

    /// Enters a session. One of the same nexus to the same target is closed first, and waited for: it is reinstated (RFC 7143 section 6.3.5).
    pub(crate) async fn enter(
        self: &Arc<Sessions>,
        target: Option<String>,
        nexus: Nexus,
        control: mpsc::UnboundedSender<Control>,
    ) -> Place {
        loop {
            let old = {
                let mut entries = self.entries.lock();
                let same = |entry: &&Entry| target.is_some() && entry.target == target && entry.nexus == nexus;
                match entries.values().find(same) {
                    Some(old) => {
                        let _ = old.control.send(Control::Close);
                        old.gone.clone()
                    }
                    None => {
                        let number = self.next.fetch_add(1, Ordering::Relaxed);
                        let (gone, receiver) = tokio::sync::watch::channel(false);
                        entries.insert(number, Entry { target, nexus, control, gone: receiver });
                        return Place { sessions: self.clone(), number, gone };
                    }
                }
            };
            let mut old = old;
            let _ = old.wait_for(|gone| *gone).await;
        }
    }

    /// Ends tasks of all sessions of a target.
    pub(crate) async fn abort(&self, target: &str, lun: Option<u16>, except: Option<u64>) {
        let mut waiting = Vec::new();
        for (number, entry) in &*self.entries.lock() {
            if entry.target.as_deref() == Some(target) && Some(*number) != except {
                let (done, receiver) = oneshot::channel();
                let _ = entry.control.send(Control::Abort { lun, done });
                waiting.push(receiver);
            }
        }
        for receiver in waiting {
            // One that is gone has no tasks.
            let _ = receiver.await;
        }
    }

    /// The targets that an initiator has sessions with.
    pub(crate) fn targets_of(&self, initiator: &str) -> Vec<String> {
        let is_own = |entry: &&Entry| entry.nexus.initiator.strip_prefix(initiator).is_some_and(|rest| rest.starts_with(",i,0x"));
        self.entries.lock().values().filter(is_own).filter_map(|entry| entry.target.clone()).collect()
    }

    /// Closes all sessions of a target.
    pub(crate) fn close(&self, target: &str) {
        for entry in self.entries.lock().values().filter(|entry| entry.target.as_deref() == Some(target)) {
            let _ = entry.control.send(Control::Close);
        }
    }

    /// Asks all to log out.
    pub(crate) fn ask_to_log_out(&self) {
        for entry in self.entries.lock().values() {
            let _ = entry.control.send(Control::AskToLogOut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn luns_of_both_forms() {
        assert_eq!(lun_number(5 << 48), Some(5));
        assert_eq!(lun_number(0x4105 << 48), Some(0x105));
        assert_eq!(lun_number(0x0105 << 48), None);
        assert_eq!(lun_number(0x8000 << 48), None);
        assert_eq!(lun_number(1), None);
    }
}
