//! Nodes of one store as processes on this machine: the bucket is a directory, each node has its own state and ports.
//!
//! A node is killed by its process id when it is dropped, whatever state it is in. If the test has failed, what the
//! node said is printed first.

use super::zookeeper::ZooKeeper;
use crate::support::{Run, Scene};
use onefold_tests::{Client, RequestError, installed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Sessions, seconds. Nodes of a debug build beside other tests must not lose theirs by accident.
pub const SESSION_S: u64 = 3;
/// Nothing takes longer, also where other programs use the processors.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Clients are served again within this time after a node has died.
pub const INTERRUPTION: Duration = Duration::from_secs(30);
/// The volume that clients have.
pub const VOLUME: &str = "disk";
pub const MIB: usize = 1 << 20;

/// Returns a port that nobody uses. Nodes bind theirs again and again, so it is not one that the system gives to
/// connections.
pub fn free_port() -> u16 {
    const PORTS: u16 = 20_000;
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 199) as u16 * 100;
    loop {
        let port = 10_000 + (first + TRIED.fetch_add(1, Ordering::Relaxed)) % PORTS;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < limit, "not within {} s: {what}", limit.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{what}: {} ms", begin.elapsed().as_millis());
}

/// A machine with a node, or where one was.
struct Machine {
    name: String,
    state: PathBuf,
    node_port: u16,
    nbd_port: u16,
    /// What its nodes said, one after the other.
    events: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl Machine {
    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("the node is running");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// Returns what the present node said.
    fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.events).unwrap_or_default();
        // The last line may not be complete yet.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
            println!("--- {} said:\n{}{}", self.name, read(&self.events), read(&self.log));
        }
    }
}

/// A store in a directory as a bucket, ZooKeeper, and machines.
pub struct Cluster {
    machines: Vec<Machine>,
    pub zookeeper: ZooKeeper,
    pub scene: Scene,
}

impl Cluster {
    /// Makes a store, and no nodes yet. `None`: something is missing here, and it is printed what.
    pub fn new() -> Option<Cluster> {
        if !installed(&["nbdcopy"]) {
            return None;
        }
        let zookeeper = ZooKeeper::start()?;
        let cluster = Cluster { machines: Vec::new(), zookeeper, scene: Scene::new() };
        cluster.run(&["init", &cluster.bucket(), "--profile", "exact"]).succeeds();
        Some(cluster)
    }

    /// Starts nodes one after the other. Returns when all of them pass clients on or serve them.
    pub fn with_nodes(count: usize) -> Option<Cluster> {
        let mut cluster = Cluster::new()?;
        for at in 0..count {
            cluster.add();
            cluster.wait_until_it_takes_part(at);
        }
        Some(cluster)
    }

    pub fn bucket(&self) -> String {
        format!("file://{}", self.scene.path("bucket").display())
    }

    /// Runs a command with a cache of its own, and without a store.
    pub fn run(&self, arguments: &[&str]) -> Run {
        let mut command = self.scene.command(arguments);
        command.env_remove("ONEFOLD_STORE").env("ONEFOLD_CACHE", self.scene.path("cache"));
        Run::from(command.output().unwrap())
    }

    /// Runs a command on the machine of a node.
    pub fn run_at(&self, at: usize, arguments: &[&str]) -> Run {
        self.run(&[arguments, &["--store", self.machines[at].state.to_str().unwrap()]].concat())
    }

    /// Adds a machine, and starts its node.
    pub fn add(&mut self) {
        let name = format!("machine-{}", self.machines.len());
        let directory = self.scene.path(&name);
        std::fs::create_dir(&directory).unwrap();
        self.machines.push(Machine {
            state: directory.join("state"),
            node_port: free_port(),
            nbd_port: free_port(),
            events: directory.join("events"),
            log: directory.join("log"),
            name,
            child: None,
        });
        self.start(self.machines.len() - 1);
    }

    /// Returns the command line of a node.
    pub fn command_line(&self, at: usize) -> Vec<String> {
        let Machine { name, state, node_port, nbd_port, .. } = &self.machines[at];
        let line = format!(
            "node --cluster {} --zookeeper {} --session {SESSION_S}s --listen 127.0.0.1:{node_port} --nbd 127.0.0.1:{nbd_port} --name {name} \
             --json --state",
            self.bucket(),
            self.zookeeper.address()
        );
        line.split_whitespace().chain([state.to_str().unwrap()]).map(str::to_owned).collect()
    }

    /// Starts the node of a machine.
    pub fn start(&mut self, at: usize) {
        let machine = &self.machines[at];
        let [events, log] = [&machine.events, &machine.log].map(|path| File::create(path).unwrap());
        let mut command = self.scene.command(self.command_line(at));
        command.env_remove("ONEFOLD_STORE").env("ONEFOLD_LOG", "info").stdin(Stdio::null()).stdout(events).stderr(log);
        self.machines[at].child = Some(command.spawn().unwrap());
    }

    /// Kills the node of a machine, as a power failure would.
    pub fn kill(&mut self, at: usize) {
        let mut child = self.machines[at].child.take().expect("the node is running");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends SIGTERM. Returns the exit code.
    pub fn terminate(&mut self, at: usize) -> Option<i32> {
        self.machines[at].signal(Signal::TERM);
        let child = self.machines[at].child.as_mut().unwrap();
        let mut status = None;
        until("a node that is told to end has ended", PATIENCE, || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        self.machines[at].child = None;
        status.and_then(|status| status.code())
    }

    /// Stops the process of a node, as if its machine hung.
    pub fn freeze(&self, at: usize) {
        self.machines[at].signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self, at: usize) {
        self.machines[at].signal(Signal::CONT);
    }

    /// Returns the machines whose nodes are running.
    pub fn running(&self) -> Vec<usize> {
        (0..self.machines.len()).filter(|at| self.machines[*at].child.is_some()).collect()
    }

    /// Returns the machine whose node serves clients, as the nodes said last, apart from some.
    pub fn home_but_for(&self, without: &[usize]) -> Option<usize> {
        let serves = |at: &usize| self.machines[*at].events().last().is_some_and(|event| event["event"] == "serving");
        self.running().into_iter().filter(|at| !without.contains(at)).find(serves)
    }

    pub fn home(&self) -> usize {
        self.home_but_for(&[]).expect("a node serves clients")
    }

    /// Returns a machine whose node is running and passes clients on.
    pub fn other(&self) -> usize {
        let home = self.home();
        self.running().into_iter().find(|at| *at != home).expect("there is another node")
    }

    /// Returns the number that a node said last.
    pub fn number(&self, at: usize) -> Option<u64> {
        self.machines[at].events().iter().rev().find_map(|event| event["node"].as_u64())
    }

    /// Waits until the node of a machine serves clients or passes them on.
    pub fn wait_until_it_takes_part(&self, at: usize) {
        let takes_part = || {
            let last = self.machines[at].events().pop();
            last.is_some_and(|event| event["event"] == "serving" || event["home"].is_u64() && event["node"].is_u64())
        };
        until(&format!("node of machine {at} takes part"), PATIENCE, takes_part);
    }

    /// Returns what the present node of a machine has logged.
    pub fn log(&self, at: usize) -> String {
        std::fs::read_to_string(&self.machines[at].log).unwrap()
    }

    /// Returns where a node listens for others, and for clients.
    pub fn addresses(&self, at: usize) -> [String; 2] {
        [self.machines[at].node_port, self.machines[at].nbd_port].map(|port| format!("127.0.0.1:{port}"))
    }

    pub fn nbd(&self, at: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.machines[at].nbd_port))
    }

    pub fn uri(&self, at: usize) -> String {
        format!("nbd://{}/{VOLUME}", self.nbd(at))
    }

    /// Connects to the volume at a node, as soon as it lets clients in.
    pub fn client(&self, at: usize) -> Client {
        let mut client = None;
        until(&format!("machine {at} lets a client in"), PATIENCE, || {
            client = Client::connect_to(self.nbd(at), VOLUME).ok();
            client.is_some()
        });
        client.unwrap()
    }

    /// Writes durably, as a client does that connects again until it succeeds.
    pub fn write(&self, at: usize, offset: u64, bytes: &[u8]) {
        until(&format!("a write through machine {at} is acknowledged"), INTERRUPTION, || self.try_write(at, offset, bytes).is_ok());
    }

    fn try_write(&self, at: usize, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        let mut client = Client::connect_to(self.nbd(at), VOLUME)?;
        for (number, piece) in bytes.chunks(MIB).enumerate() {
            client.write(offset + (number * MIB) as u64, piece)?;
        }
        client.flush()
    }

    /// Reads the whole volume through a node with a real client. `None`: it gets no answer.
    pub fn try_read(&self, at: usize) -> Option<Vec<u8>> {
        let image = self.scene.path(&format!("image-{at}"));
        let run = onefold_tests::client("nbdcopy", [self.uri(at), image.display().to_string()]);
        (run.code == 0).then(|| std::fs::read(&image).unwrap())
    }

    /// Every running node gives these bytes, each within some time. An answer with others is an error at once.
    #[track_caller]
    pub fn all_read(&self, expected: &[u8]) {
        for at in self.running() {
            until(&format!("machine {at} answers reads"), INTERRUPTION, || match self.try_read(at) {
                Some(bytes) => {
                    assert!(bytes == expected, "machine {at} answers with other bytes");
                    true
                }
                None => false,
            });
        }
    }
}
