//! The coordinator of a cluster at work: an ensemble of ZooKeeper servers (decision 0069).
//!
//! | znode | content | |
//! |---|---|---|
//! | `/onefold/STORE` | how long sessions are | whoever finds none makes it |
//! | `/onefold/STORE/nodes/N` | opening, address, and known table of node N | ephemeral |
//! | `/onefold/STORE/master` | the number of the master's node | ephemeral |
//! | `/onefold/STORE/table` | the number of the table | compared and set, never lowered |
//!
//! A session has a thread of its own: a process that is busy does not lose its session for that.

mod attendance;
mod round;

use crate::content::check_address;
use crate::{Coordinator, CoordinatorError, Event, Joining, Process, Result, Session};
use attendance::Attendance;
use onefold_cluster::NodeNumber;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{oneshot, watch};

/// Heartbeats in a session. A session has at least as many ticks of ZooKeeper.
const BEATS: u64 = 8;
/// Shorter sessions end by accident.
const SHORTEST_SESSION_MS: u64 = 500;
const LONGEST_SESSION_MS: u64 = 600_000;

/// An ensemble of ZooKeeper servers.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    settings: Arc<Settings>,
}

#[derive(Debug)]
struct Settings {
    servers: String,
    session_ms: u64,
    paths: Paths,
}

/// Where things are.
#[derive(Debug)]
struct Paths {
    store: String,
    nodes: String,
    master: String,
    table: String,
}

/// The znode above all stores.
const TOP: &str = "/onefold";

impl Paths {
    fn new(store: [u8; 16]) -> Paths {
        let store = format!("{TOP}/{:032x}", u128::from_be_bytes(store));
        let below = |name: &str| format!("{store}/{name}");
        let (nodes, master, table) = (below("nodes"), below("master"), below("table"));
        Paths { store, nodes, master, table }
    }

    fn node(&self, node: NodeNumber) -> String {
        format!("{}/{node}", self.nodes)
    }
}

/// What a process wants of its session.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// The table that the node knows.
    knows: Option<u64>,
    /// The number of the table that it announces, and how often it did that.
    announces: Option<u64>,
    announcements: u64,
}

impl ZooKeeper {
    /// Names the servers, as `HOST:PORT,HOST:PORT`, the store, and how long sessions are. Connects to nothing yet.
    ///
    /// Errors: a setting is not usable.
    pub fn new(servers: &str, store: [u8; 16], session_ms: u64) -> Result<ZooKeeper> {
        let unusable = |what, why: String| Err(CoordinatorError::Setting { what, why });
        if let Some(wrong) = servers.split(',').find(|server| !is_server(server)) {
            return unusable("the list of ZooKeeper servers", format!("{wrong:?} is not HOST:PORT"));
        }
        if !(SHORTEST_SESSION_MS..=LONGEST_SESSION_MS).contains(&session_ms) {
            return unusable("the length of a session", format!("{session_ms} ms"));
        }
        let settings = Settings { servers: servers.to_owned(), session_ms, paths: Paths::new(store) };
        Ok(ZooKeeper { settings: Arc::new(settings) })
    }
}

/// Returns whether this is a host and a port. Neither a directory nor a protocol may be there.
fn is_server(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_host = !host.is_empty() && !host.contains(['/', ',', '@']) && host.chars().all(|character| character.is_ascii_graphic());
    is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}

impl Coordinator for ZooKeeper {
    fn session_ms(&self) -> u64 {
        self.settings.session_ms
    }

    fn join(&self, joining: Joining, process: Arc<dyn Process>) -> Result<Box<dyn Session>> {
        check_address(&joining.address).map_err(|why| CoordinatorError::Setting { what: "the address", why: why.to_owned() })?;
        let cannot = |error: std::io::Error| CoordinatorError::Thread { why: error.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(cannot)?;
        let (wanted, is_wanted) = watch::channel(Wanted { knows: joining.table, ..Wanted::default() });
        let (ends, leaving) = oneshot::channel();
        let (opening, told) = (joining.present.opening, process.clone());
        let attendance = Attendance::new(self.settings.clone(), joining, process);
        let attend = move || {
            // A defect of the library must not leave the process with a session that nobody keeps up.
            let attended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(attendance.run(is_wanted, leaving))));
            if attended.is_err() {
                tracing::error!("the thread of a session with ZooKeeper has panicked");
                told.tell(Event::Over { opening, error: CoordinatorError::Ended });
            }
        };
        let thread = std::thread::Builder::new().name("coordinator".to_owned()).spawn(attend).map_err(cannot)?;
        Ok(Box::new(ZooKeeperSession { wanted, ends, thread }))
    }
}

/// The end of a session at its process. The thread hears when it is dropped.
struct ZooKeeperSession {
    wanted: watch::Sender<Wanted>,
    ends: oneshot::Sender<Infallible>,
    thread: JoinHandle<()>,
}

impl Session for ZooKeeperSession {
    fn announce(&self, number: u64) {
        self.wanted.send_modify(|wanted| {
            wanted.announces = Some(number);
            wanted.announcements += 1;
        });
    }

    fn knows(&self, table: u64) {
        self.wanted.send_if_modified(|wanted| wanted.knows.replace(table) != Some(table));
    }

    fn leave(self: Box<Self>) {
        let ZooKeeperSession { wanted, ends, thread } = *self;
        drop((wanted, ends));
        if thread.join().is_err() {
            tracing::error!("a process has panicked when it was told of its session");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_3_settings_that_mean_something_else_are_refused() {
        for servers in ["one:2181", "one.example:2181,10.0.0.2:2182,[::1]:1"] {
            assert!(ZooKeeper::new(servers, [1; 16], 6000).is_ok(), "{servers}");
        }
        for servers in ["", "one", "one:", ":2181", "one:0", "one:65536", "one:2181,", "one:2181/dir", "tcp+tls://one:2181", "a b:1"] {
            let error = ZooKeeper::new(servers, [1; 16], 6000).unwrap_err();
            assert!(matches!(error, CoordinatorError::Setting { .. }) && error.is_final(), "{servers:?}");
        }
        for session_ms in [0, SHORTEST_SESSION_MS - 1, LONGEST_SESSION_MS + 1, u64::MAX] {
            assert!(ZooKeeper::new("one:1", [1; 16], session_ms).is_err());
        }
    }

    #[test]
    fn m4_3_paths_have_the_whole_identity_of_the_store() {
        let mut store = [0; 16];
        (store[0], store[15]) = (0x0a, 0xff);
        let paths = Paths::new(store);
        assert_eq!(paths.node(NodeNumber(7)), "/onefold/0a0000000000000000000000000000ff/nodes/7");
        assert_eq!(paths.table, "/onefold/0a0000000000000000000000000000ff/table");
    }
}
