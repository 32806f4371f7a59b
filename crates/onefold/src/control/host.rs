//! What the clients of a daemon share: its store, the list of what runs, and the order in which all of that ends.

use super::{ACCOUNT_COMMANDS, MAX_COMMANDS};
use crate::daemon::Daemon;
use crate::failure::{Failure, Result};
use crate::store::Store;
use onefold_catalog::Catalog;
use onefold_remote::services::server::Guest;
use onefold_remote::transport::{Channel, SessionId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long commands may take to end when the daemon ends. Then their channels are cut.
const STOP_TIME: Duration = Duration::from_secs(1);

/// A client that was let in.
#[derive(Debug)]
pub struct Caller {
    /// What it may do with backups.
    pub guest: Guest,
    /// Who it is.
    pub identity: Identity,
}

/// Who a client is.
#[derive(Debug)]
pub enum Identity {
    /// A process of this machine.
    Local {
        /// Its user.
        user: u32,
        /// Whether it is root or the daemon's user.
        is_owner: bool,
    },
    /// An account, over the network.
    Account(crate::network::Presence),
}

impl Identity {
    /// Returns whether it may use the rights of the daemon's user beyond the store.
    pub fn is_owner(&self) -> bool {
        matches!(self, Identity::Local { is_owner: true, .. })
    }

    /// Returns the account.
    fn account(&self) -> Option<&str> {
        match self {
            Identity::Local { .. } => None,
            Identity::Account(presence) => Some(presence.name()),
        }
    }

    /// Returns what the client calls this process.
    pub fn host_word(&self) -> &'static str {
        match self {
            Identity::Local { .. } => "daemon",
            Identity::Account(_) => "server",
        }
    }
}

/// What all clients share.
pub struct Host {
    /// The store.
    pub store: Store,
    /// The faces of the daemon.
    pub daemon: Daemon,
    stopping: AtomicBool,
    running: Mutex<Running>,
    ended: Condvar,
    /// The name of the heavy command that runs now. They run one at a time.
    heavy: Mutex<Option<&'static str>>,
}

#[derive(Default)]
struct Running {
    numbers: u64,
    /// Channels that are served.
    channels: usize,
    commands: HashMap<u64, Arc<Live>>,
}

/// A command that runs.
pub(super) struct Live {
    /// Its channel.
    pub channel: Channel,
    /// The session that it belongs to.
    pub session: SessionId,
    /// The account that has it run. `None`: a user of this machine.
    account: Option<String>,
    /// Whether it is to stop early.
    pub cancelled: AtomicBool,
}

impl Live {
    /// Ends the conversation: nothing waits for its client any more.
    pub fn cut(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.channel.cancel();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is complete whenever its lock is free. A command that panicked has reported that.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Returns what clients of this store share.
    pub fn new(store: Store, daemon: Daemon) -> Arc<Host> {
        Arc::new(Host {
            store,
            daemon,
            stopping: AtomicBool::new(false),
            running: Mutex::default(),
            ended: Condvar::new(),
            heavy: Mutex::new(None),
        })
    }

    /// Returns all backups.
    pub fn catalog(&self) -> Catalog {
        Catalog::new(self.store.engine.clone())
    }

    /// Counts a channel until the place is dropped. `None`: the daemon stops.
    pub(super) fn enter(&self) -> Option<Place<'_>> {
        let mut running = lock(&self.running);
        if self.stopping.load(Ordering::Relaxed) {
            return None;
        }
        running.channels += 1;
        Some(Place(self))
    }

    /// Counts a command. Errors: there are too many.
    pub(super) fn begin(&self, channel: &Channel, session: SessionId, identity: &Identity) -> std::result::Result<Turn<'_>, String> {
        let mut running = lock(&self.running);
        let account = identity.account();
        let count =
            |counts: &dyn Fn(Option<&str>) -> bool| running.commands.values().filter(|live| counts(live.account.as_deref())).count();
        if account.is_some() && count(&|other| other == account) >= ACCOUNT_COMMANDS {
            return Err(format!("the server already runs {ACCOUNT_COMMANDS} commands of the account, its limit"));
        }
        if count(&|other| other.is_some() == account.is_some()) >= MAX_COMMANDS {
            return Err(format!("the {} already runs {MAX_COMMANDS} commands, its limit", identity.host_word()));
        }
        running.numbers += 1;
        let number = running.numbers;
        let cancelled = AtomicBool::new(self.stopping.load(Ordering::Relaxed));
        let live = Arc::new(Live { channel: channel.clone(), session, account: account.map(str::to_owned), cancelled });
        running.commands.insert(number, Arc::clone(&live));
        Ok(Turn { host: self, number, live })
    }

    /// Takes the permission to run a heavy command.
    pub(super) fn heavy(&self, name: &'static str, identity: &Identity) -> Result<Heavy<'_>> {
        let mut heavy = lock(&self.heavy);
        if let Some(other) = *heavy {
            let why = format!("the {} is running `{other}`, and runs one such command at a time", identity.host_word());
            return Err(Failure::cannot_run(why).advise("run the command again when that has ended"));
        }
        *heavy = Some(name);
        Ok(Heavy(self))
    }

    /// Asks all commands to end, and waits a moment for them. No channel is served from here on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let mut running = lock(&self.running);
        running.commands.values().for_each(|live| live.cancelled.store(true, Ordering::Relaxed));
        let until = Instant::now() + STOP_TIME;
        while !running.commands.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            running = self.ended.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        running.commands.values().for_each(|live| live.cut());
    }

    /// Waits until no channel is served any more. Call after the servers ended.
    pub fn wait(&self) {
        let mut running = lock(&self.running);
        while running.channels > 0 {
            running = self.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A channel that is served.
pub(super) struct Place<'a>(&'a Host);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.0.running).channels -= 1;
        self.0.ended.notify_all();
    }
}

/// The place of a command in the list.
pub(super) struct Turn<'a> {
    host: &'a Host,
    number: u64,
    pub live: Arc<Live>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.host.running).commands.remove(&self.number);
        self.host.ended.notify_all();
    }
}

/// The permission to run a heavy command.
pub(super) struct Heavy<'a>(&'a Host);

impl Drop for Heavy<'_> {
    fn drop(&mut self) {
        *lock(&self.0.heavy) = None;
    }
}
