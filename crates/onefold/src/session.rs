//! The context of a command that needs only an open store.

use crate::cli::{Connection, Wait};
use crate::commands::Request;
use crate::console::Console;
use crate::daemon::Daemon;
use crate::failure::{Exit, Failure, Result};
use crate::network::{Presence, permitted, refused};
use crate::output::Output;
use crate::store::Store;
use onefold_catalog::{Backup, Catalog, Scope};
use onefold_engine::{EngineError, Mode};
use onefold_fs::Filesystems;
use onefold_remote::accounts::{Account, Entry, Event, Peer};
use onefold_remote::services::server::Guest;
use onefold_remote::transport::SessionId;
use onefold_upkeep::Monitor;
use onefold_volume::Volumes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A command that needs only an open store: no file and no environment of its caller. So it does the same in a process
/// of its own and in a daemon that has the store open already.
pub trait StoreCommand {
    /// Returns its name as typed, for others that find the store locked by it.
    fn name(&self) -> &'static str;
    /// Returns the store that it was typed for. In a daemon this means nothing.
    fn directory(&self) -> &Path;
    /// Returns how to connect to a server that has the store. `None`: it works only with the store itself.
    fn connection(&self) -> Option<Connection> {
        None
    }
    /// Returns how it opens the store. With [`Mode::Snapshot`] it declares what it reads
    /// ([`Engine::hold`](onefold_engine::Engine::hold)) as soon as it knows. Its earlier output is shown then, or at
    /// its end.
    fn mode(&self) -> Mode;
    /// Returns how long it waits for another process that has the store.
    fn wait(&self) -> Option<Wait> {
        None
    }
    /// Returns whether a daemon that has the store open runs it, although it could run beside the daemon: only the
    /// daemon has the complete state.
    fn asks_the_daemon(&self) -> bool {
        false
    }
    /// Returns whether it checks [`Session::is_cancelled`] and then ends at a clean place. Otherwise a signal ends it
    /// at once.
    fn ends_early(&self) -> bool {
        false
    }
    /// Returns whether it takes so much memory or disk that a daemon runs one such command at a time.
    fn is_heavy(&self) -> bool {
        false
    }
    /// Returns whether it uses rights of the daemon's user beyond the store. Then only that user and root may have the
    /// daemon run it.
    fn is_for_owner(&self) -> bool {
        false
    }
    /// Runs it.
    fn run(&self, session: &Session<'_>) -> Result<Exit>;
    /// Handles a store that does not open. `None`: there is nothing beyond the error.
    fn without_store(&self, _error: &EngineError, _console: &dyn Console, _quiet: bool) -> Option<Result<Exit>> {
        None
    }
}

/// Implements what commands have alike of [`StoreCommand`]: the name, the store that was typed, and these words.
///
/// | word | the command |
/// |---|---|
/// | `far` | may have a server run it: its options say how to reach one |
/// | `waits` | waits as long as its options say |
/// | `reads`, `writes` | reads the store as of one moment, or changes it |
/// | `asks` | leaves it to a daemon that has the store open |
/// | `ends_early` | ends at a clean place |
/// | `heavy` | takes much memory or disk |
macro_rules! store_command {
    ($name:literal $(, $word:ident)*) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn directory(&self) -> &std::path::Path {
            &self.store.directory
        }

        $($crate::session::store_command!(@ $word);)*
    };
    (@ far) => {
        fn connection(&self) -> Option<$crate::cli::Connection> {
            Some(self.store.connection.clone())
        }
    };
    (@ waits) => {
        fn wait(&self) -> Option<$crate::cli::Wait> {
            self.store.wait
        }
    };
    (@ reads) => {
        fn mode(&self) -> onefold_engine::Mode {
            onefold_engine::Mode::Snapshot
        }
    };
    (@ writes) => {
        fn mode(&self) -> onefold_engine::Mode {
            onefold_engine::Mode::ReadWrite
        }
    };
    (@ asks) => {
        fn asks_the_daemon(&self) -> bool {
            true
        }
    };
    (@ ends_early) => {
        fn ends_early(&self) -> bool {
            true
        }
    };
    (@ heavy) => {
        fn is_heavy(&self) -> bool {
            true
        }
    };
}
pub(crate) use store_command;

/// Most ids in one entry of the access log. The log leaves out long details.
const IDS_OF_ENTRY: usize = 256;

/// An open store, and the other end of a command.
pub struct Session<'a> {
    /// The store.
    pub store: &'a Store,
    /// Whether to print only errors and requested results.
    pub quiet: bool,
    console: &'a dyn Console,
    volumes: OnceLock<Arc<Volumes>>,
    filesystems: OnceLock<Arc<Filesystems>>,
    daemon: Option<&'a Daemon>,
    said: Mutex<Vec<Said>>,
    /// Who has a daemon run this.
    client: Option<SessionClient<'a>>,
}

/// Who has a daemon run a command.
#[derive(Clone)]
enum SessionClient<'a> {
    /// A user of this machine.
    User(u32),
    /// An account, over the network.
    Account {
        presence: &'a Presence,
        /// As it was when the command began.
        account: Box<Account>,
        /// The backups that the command may know of. `None`: all.
        scope: Option<Scope>,
        session: SessionId,
    },
}

/// Output of a command while writers may have to wait for it: it is kept back, so that a slow reader does not delay
/// them.
#[derive(Debug)]
pub enum Said {
    /// For standard output.
    Output(Vec<u8>),
    /// For standard error, beside the result.
    Note(String),
}

impl Said {
    /// Shows it.
    pub fn show(self, console: &dyn Console) -> std::io::Result<()> {
        match self {
            Said::Output(bytes) => console.out().write_all(&bytes),
            Said::Note(text) => {
                console.note(&text);
                Ok(())
            }
        }
    }
}

impl<'a> Session<'a> {
    /// Returns the session of a command in its own process.
    pub fn new(store: &'a Store, console: &'a dyn Console, quiet: bool) -> Session<'a> {
        Session {
            store,
            quiet,
            console,
            volumes: OnceLock::new(),
            filesystems: OnceLock::new(),
            daemon: None,
            said: Mutex::default(),
            client: None,
        }
    }

    /// Returns the session of a command in the daemon, beside the clients of its volumes.
    pub fn beside(store: &'a Store, daemon: &'a Daemon, console: &'a dyn Console, quiet: bool) -> Session<'a> {
        let volumes = OnceLock::from(daemon.volumes().clone());
        let filesystems = OnceLock::from(Arc::clone(daemon.mounts.filesystems()));
        Session { store, quiet, console, volumes, filesystems, daemon: Some(daemon), said: Mutex::default(), client: None }
    }

    /// Returns the same for a user of this machine.
    pub fn of_user(self, user: u32) -> Session<'a> {
        Session { client: Some(SessionClient::User(user)), ..self }
    }

    /// Returns the same for an account. Errors: it may not run this command.
    pub fn of_account(self, presence: &'a Presence, guest: &Guest, request: &Request, session: SessionId) -> Result<Session<'a>> {
        let refuse = |why: &str| {
            let details = json!({"reason": "permission", "what": request.command().name(), "why": why});
            presence.write(Event::Refused, None, details);
        };
        let account = match guest.now() {
            Ok(Some(account)) => account,
            Ok(None) => return Err(refused()),
            Err(why) => {
                refuse(&why);
                return Err(refused());
            }
        };
        let scope = permitted(request, &account).inspect_err(|_| refuse("it is not permitted"))?;
        Ok(Session { client: Some(SessionClient::Account { presence, account: Box::new(account), scope, session }), ..self })
    }

    /// Returns the backups that the command may know of.
    pub fn catalog(&self) -> Catalog {
        let catalog = Catalog::new(self.store.engine.clone());
        match &self.client {
            Some(SessionClient::Account { scope: Some(scope), .. }) => catalog.scoped(scope.clone()),
            _ => catalog,
        }
    }

    /// Returns the account that has this run over the network.
    pub fn account(&self) -> Option<&Account> {
        match &self.client {
            Some(SessionClient::Account { account, .. }) => Some(account),
            _ => None,
        }
    }

    /// Writes into the access log of the daemon, if it has one.
    pub fn audit(&self, event: Event, backup: Option<&str>, details: Value) {
        match &self.client {
            Some(SessionClient::Account { presence, .. }) => presence.write(event, backup, details),
            Some(SessionClient::User(user)) => {
                if let Some(log) = self.daemon.and_then(Daemon::network).and_then(|network| network.log) {
                    log.write(&Entry { peer: Some(Peer::User(*user)), backup, details, ..Entry::of(event) });
                }
            }
            None => {}
        }
    }

    /// Writes into the access log that backups are read, with one entry for those of one name.
    pub fn audit_reads<'b>(&self, backups: impl IntoIterator<Item = &'b Backup>) {
        let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for backup in backups {
            by_name.entry(&backup.name).or_default().push(backup.id.to_string());
        }
        for (name, ids) in &by_name {
            for ids in ids.chunks(IDS_OF_ENTRY) {
                let details = if let [id] = ids { json!({"id": id}) } else { json!({"ids": ids}) };
                self.audit(Event::Read, Some(name), details);
            }
        }
    }

    /// Ends the sessions of an account, except the one that has this run.
    pub fn close_sessions(&self, account: &str) {
        let own = match &self.client {
            Some(SessionClient::Account { session, .. }) => Some(*session),
            _ => None,
        };
        if let Some(network) = self.daemon.and_then(Daemon::network) {
            network.close_sessions(account, own);
        }
    }

    /// Returns the volumes of the store. In a daemon these are the daemon's, so that its clients see every change at
    /// once.
    pub fn volumes(&self) -> Result<&Volumes> {
        if let Some(volumes) = self.volumes.get() {
            return Ok(volumes);
        }
        let opened = Arc::new(Volumes::open(self.store.engine.clone(), self.store.volumes_options())?);
        opened.damaged().iter().for_each(|problem| self.note(format!("left out: {problem}")));
        Ok(self.volumes.get_or_init(|| opened))
    }

    /// Returns the filesystems of the store. In a daemon these are the daemon's.
    pub fn filesystems(&self) -> Result<&Arc<Filesystems>> {
        if let Some(filesystems) = self.filesystems.get() {
            return Ok(filesystems);
        }
        let all = Filesystems::of(Arc::clone(self.volumes()?.spaces()), self.store.filesystem_options());
        Ok(self.filesystems.get_or_init(|| all))
    }

    /// Returns whether a daemon runs this beside its clients. A daemon also frees unneeded data in the background.
    pub fn is_in_daemon(&self) -> bool {
        self.daemon.is_some()
    }

    /// Returns the daemon that runs this.
    pub fn daemon(&self) -> Option<&Daemon> {
        self.daemon
    }

    /// Does something that a client of the volume would not survive. It is refused while a client is connected, and
    /// none connects meanwhile.
    pub fn on_unused_volume<T>(&self, name: &str, work: impl FnOnce(&Volumes) -> Result<T>) -> Result<T> {
        let volumes = self.volumes()?;
        match self.daemon {
            Some(daemon) => daemon.on_unused(name, || work(volumes)),
            None => work(volumes),
        }
    }

    /// Asks whether to continue with something that destroys data. `losses` says what will be lost. `is_confirmed`:
    /// `--yes` was given.
    pub fn confirm(&self, is_confirmed: bool, losses: impl Display) -> Result<()> {
        if is_confirmed {
            return Ok(());
        }
        match self.console.ask(&format!("{losses}. Continue?"))? {
            Some(true) => Ok(()),
            Some(false) => Err(Failure::failed("nothing was done")),
            None => Err(Failure::cannot_run(format!("{losses}; there is no terminal to ask on, so nothing was done"))
                .advise("give --yes to do it without a question")),
        }
    }

    /// Returns the other end.
    pub fn console(&self) -> &dyn Console {
        self.console
    }

    /// Returns standard output, for results.
    pub fn output(&self) -> Output<'_> {
        Output::to(Box::new(Later(self)))
    }

    /// Writes a remark beside the result.
    pub fn note(&self, text: impl Display) {
        let said = Said::Note(text.to_string());
        // A remark that cannot be shown is lost.
        let _ = self.say(said);
    }

    /// Shows this, after everything that was kept back.
    fn say(&self, what: Said) -> std::io::Result<()> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.push(what);
        if self.store.engine.is_looking() { Ok(()) } else { said.drain(..).try_for_each(|said| said.show(self.console)) }
    }

    /// Returns the output that was kept back, to be shown when the store is closed.
    pub fn take_said(&self) -> Vec<Said> {
        std::mem::take(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes advice, unless the user asked for silence.
    pub fn advise(&self, text: impl Display) {
        if !self.quiet {
            self.note(text);
        }
    }

    /// Removes the progress display: the long work is over.
    pub fn end_progress(&self) {
        self.console.end_progress();
    }
}

impl Monitor for Session<'_> {
    fn step(&self, what: &str, total: u64) {
        self.console.step(what, total);
    }

    fn advance(&self, units: u64) {
        self.console.advance(units);
    }

    fn is_cancelled(&self) -> bool {
        self.console.is_cancelled()
    }
}

/// Standard output of a session.
struct Later<'a>(&'a Session<'a>);

impl Write for Later<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.store.engine.is_looking() {
            return self.0.say(Said::Output(bytes.to_vec())).map(|()| bytes.len());
        }
        self.0.take_said().into_iter().try_for_each(|said| said.show(self.0.console))?;
        self.0.console.out().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.0.store.engine.is_looking() { Ok(()) } else { self.0.console.out().flush() }
    }
}
