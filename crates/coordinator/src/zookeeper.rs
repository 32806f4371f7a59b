//! The coordinator of a cluster at work: an ensemble of ZooKeeper servers (decision 0069).
//!
//! | znode | content | |
//! |---|---|---|
//! | `/onefold/STORE` | how long sessions are | whoever finds none makes it |
//! | `/onefold/STORE/nodes/N` | opening, addresses, and known table of node N | ephemeral |
//! | `/onefold/STORE/master` | the number of the master's node | ephemeral |
//! | `/onefold/STORE/table` | the number of the table | compared and set, never lowered |
//!
//! [`ZooKeeperOptions::root`] may name another place than `/onefold`. A session has a thread of its own: a process that
//! is busy does not lose its session for that.

mod attendance;
mod round;

use crate::content::check_joining;
use crate::{Coordinator, CoordinatorError, Event, Joining, Process, Result, Session};
use attendance::Attendance;
use onefold_cluster::NodeNumber;
use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{oneshot, watch};
use zookeeper_client::Acls;

/// Heartbeats in a session. A session has at least as many ticks of ZooKeeper.
const BEATS: u64 = 8;
/// Shorter sessions end by accident.
const SHORTEST_SESSION_MS: u64 = 500;
const LONGEST_SESSION_MS: u64 = 600_000;
const LONGEST_ROOT_BYTES: usize = 255;

/// How to reach an ensemble of ZooKeeper servers. All nodes of a store must have the same options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperOptions {
    /// The servers: `HOST:PORT,HOST:PORT`.
    pub servers: String,
    /// The znode above all stores. Starts with `/`; the default is `/onefold`. It is made if there is none.
    pub root: String,
    /// How long a session goes on without an answer, in milliseconds: 500 to 600,000. ZooKeeper must allow it (by
    /// default 2 to 20 of its ticks), and one tick must be at most an eighth of it.
    pub session_ms: u64,
    /// Who the node is, for ZooKeeper's scheme `digest`. With credentials, only the same user reads or changes what the
    /// node makes. Without, everybody does. The password crosses the network as it is.
    pub credentials: Option<Credentials>,
}

/// A user of ZooKeeper.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name: not empty, and without a colon.
    pub user: String,
    /// The password: not empty.
    pub password: String,
}

impl ZooKeeperOptions {
    /// Names the servers and the length of sessions. The root is `/onefold`, and there are no credentials.
    pub fn new(servers: impl Into<String>, session_ms: u64) -> ZooKeeperOptions {
        ZooKeeperOptions { servers: servers.into(), root: "/onefold".to_owned(), session_ms, credentials: None }
    }

    fn check(&self) -> Result<()> {
        let unusable = |what, why: String| Err(CoordinatorError::Setting { what, why });
        if let Some(wrong) = self.servers.split(',').find(|server| !is_server(server)) {
            return unusable("the list of ZooKeeper servers", format!("{wrong:?} is not HOST:PORT"));
        }
        if !is_root(&self.root) {
            return unusable("the root in ZooKeeper", format!("{:?} is not a path like /onefold", self.root));
        }
        if !(SHORTEST_SESSION_MS..=LONGEST_SESSION_MS).contains(&self.session_ms) {
            return unusable("the length of a session", format!("{} ms", self.session_ms));
        }
        match &self.credentials {
            Some(Credentials { user, password }) if user.is_empty() || user.contains(':') || password.is_empty() => {
                unusable("the user of ZooKeeper", "name or password is empty, or the name has a colon".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Credentials {
    /// Does not say the password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// An ensemble of ZooKeeper servers.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    settings: Arc<Settings>,
}

#[derive(Debug)]
struct Settings {
    servers: String,
    session_ms: u64,
    credentials: Option<Credentials>,
    paths: Paths,
}

/// Where things are.
#[derive(Debug)]
struct Paths {
    root: String,
    store: String,
    nodes: String,
    master: String,
    table: String,
}

impl Paths {
    fn new(root: &str, store: [u8; 16]) -> Paths {
        let store = format!("{root}/{:032x}", u128::from_be_bytes(store));
        let below = |name: &str| format!("{store}/{name}");
        let (nodes, master, table) = (below("nodes"), below("master"), below("table"));
        Paths { root: root.to_owned(), store, nodes, master, table }
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
    /// Takes the options and the identity of the store. Connects to nothing yet.
    ///
    /// Errors: [`CoordinatorError::Setting`] names the option that is not usable.
    pub fn new(options: ZooKeeperOptions, store: [u8; 16]) -> Result<ZooKeeper> {
        options.check()?;
        let ZooKeeperOptions { servers, root, session_ms, credentials } = options;
        let settings = Settings { servers, session_ms, credentials, paths: Paths::new(&root, store) };
        Ok(ZooKeeper { settings: Arc::new(settings) })
    }
}

impl Settings {
    /// Returns who may do what with znodes that the node makes.
    fn acls(&self) -> Acls<'static> {
        match self.credentials {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        }
    }
}

/// Returns whether this is a path below which stores may be.
fn is_root(text: &str) -> bool {
    let Some(names) = text.strip_prefix('/') else { return false };
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && name.chars().all(|character| character.is_ascii_graphic());
    text.len() <= LONGEST_ROOT_BYTES && names != "zookeeper" && !names.starts_with("zookeeper/") && names.split('/').all(is_name)
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
        check_joining(&joining.address, &joining.faces)?;
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

    fn options() -> ZooKeeperOptions {
        ZooKeeperOptions::new("one:2181", 6000)
    }

    #[test]
    fn m4_3_settings_that_mean_something_else_are_refused() {
        let is_usable = |options: ZooKeeperOptions| match ZooKeeper::new(options, [1; 16]) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error, CoordinatorError::Setting { .. }) && error.is_final(), "{error}");
                false
            }
        };
        for servers in ["one:2181", "one.example:2181,10.0.0.2:2182,[::1]:1"] {
            assert!(is_usable(ZooKeeperOptions::new(servers, 6000)), "{servers}");
        }
        for servers in ["", "one", "one:", ":2181", "one:0", "one:65536", "one:2181,", "one:2181/dir", "tcp+tls://one:2181", "a b:1"] {
            assert!(!is_usable(ZooKeeperOptions::new(servers, 6000)), "{servers:?}");
        }
        for session_ms in [0, SHORTEST_SESSION_MS - 1, LONGEST_SESSION_MS + 1, u64::MAX] {
            assert!(!is_usable(ZooKeeperOptions::new("one:1", session_ms)));
        }
        for (root, expected) in [
            ("/onefold", true),
            ("/prod/one.fold", true),
            ("", false),
            ("/", false),
            ("onefold", false),
            ("/onefold/", false),
            ("//onefold", false),
            ("/a/../b", false),
            ("/a b", false),
            ("/zookeeper", false),
            ("/zookeeper/config", false),
        ] {
            assert_eq!(is_usable(ZooKeeperOptions { root: root.to_owned(), ..options() }), expected, "{root:?}");
        }
        for (user, password, expected) in [("a", "b:c", true), ("", "b", false), ("a:b", "c", false), ("a", "", false)] {
            let credentials = Some(Credentials { user: user.to_owned(), password: password.to_owned() });
            assert_eq!(is_usable(ZooKeeperOptions { credentials, ..options() }), expected, "{user:?} {password:?}");
        }
    }

    #[test]
    fn m4_3_no_debug_output_has_the_password() {
        let credentials = Some(Credentials { user: "alice".to_owned(), password: "secret".to_owned() });
        let options = ZooKeeperOptions { credentials, ..options() };
        let text = format!("{options:?} {:?}", ZooKeeper::new(options.clone(), [1; 16]).unwrap());
        assert!(text.contains("alice") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn m4_3_paths_have_the_whole_identity_of_the_store() {
        let mut store = [0; 16];
        (store[0], store[15]) = (0x0a, 0xff);
        let paths = Paths::new("/onefold", store);
        assert_eq!(paths.node(NodeNumber(7)), "/onefold/0a0000000000000000000000000000ff/nodes/7");
        assert_eq!(paths.table, "/onefold/0a0000000000000000000000000000ff/table");
    }
}
