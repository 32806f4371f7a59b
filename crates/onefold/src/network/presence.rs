//! A client that came in, and the server that it came to.

use onefold_catalog::Backup;
use onefold_remote::accounts::{AccessLog, Account, Connection, Connections, Entry, Event, Peer};
use onefold_remote::services::server::Observer;
use onefold_remote::transport::{Server, SessionId};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

/// An account that is logged in, for as long as its session.
#[derive(Debug)]
pub struct Presence {
    writer: Writer,
    _connection: Connection,
}

/// Writes entries of one session.
#[derive(Clone, Debug)]
struct Writer {
    account: String,
    peer: Peer,
    /// The name of the session in the log.
    session: String,
    log: Option<Arc<AccessLog>>,
}

impl Writer {
    fn write(&self, event: Event, backup: Option<&str>, details: Value) {
        if let Some(log) = &self.log {
            let (account, peer, session) = (Some(self.account.as_str()), Some(self.peer), Some(self.session.as_str()));
            log.write(&Entry { event, account, peer, session, backup, details });
        }
    }
}

impl Presence {
    /// An account came in.
    pub fn new(account: &Account, peer: Peer, session: String, log: Option<Arc<AccessLog>>, connection: Connection) -> Presence {
        Presence { writer: Writer { account: account.name.clone(), peer, session, log }, _connection: connection }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.writer.account
    }

    /// Returns what hears of its backups.
    pub fn observer(&self) -> Watched {
        Watched(self.writer.clone())
    }

    /// Writes an entry into the access log.
    pub fn write(&self, event: Event, backup: Option<&str>, details: Value) {
        self.writer.write(event, backup, details);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.write(Event::Logout, None, Value::Null);
    }
}

/// Writes what a client does with backups into the access log.
#[derive(Debug)]
pub struct Watched(Writer);

impl Observer for Watched {
    fn began(&self, name: &str) {
        self.0.write(Event::BackupBegin, Some(name), Value::Null);
    }

    fn committed(&self, backup: &Backup) {
        let details = json!({
            "id": backup.id.to_string(),
            "logical_bytes": backup.statistics.logical_bytes,
            "added_bytes": backup.statistics.added_bytes,
            "partial": backup.is_partial(),
        });
        self.0.write(Event::BackupCommit, Some(&backup.name), details);
    }

    fn aborted(&self, name: &str, why: &str) {
        self.0.write(Event::BackupAbort, Some(name), json!({"reason": why}));
    }

    fn reads(&self, backup: &Backup) {
        self.0.write(Event::Read, Some(&backup.name), json!({"id": backup.id.to_string()}));
    }

    fn refused(&self, what: &str, why: &str) {
        self.0.write(Event::Refused, None, json!({"reason": "permission", "what": what, "why": why}));
    }
}

/// The running server, for commands that change accounts.
#[derive(Clone)]
pub struct Network {
    /// It.
    pub server: Server,
    /// The connections of its accounts.
    pub connections: Connections,
    /// The access log.
    pub log: Option<Arc<AccessLog>>,
}

impl fmt::Debug for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Network").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Network {
    /// Ends the sessions of an account, except one.
    pub fn close_sessions(&self, account: &str, except: Option<SessionId>) {
        for info in self.server.sessions() {
            if info.name == account && Some(info.id) != except {
                self.server.close(info.id);
            }
        }
    }
}
