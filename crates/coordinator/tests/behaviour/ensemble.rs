//! Three ZooKeeper servers of Debian's package on loopback, with free ports, in a temporary directory. Each one is
//! killed by its process id when the ensemble is dropped.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const JAR: &str = "/usr/share/java/zookeeper.jar";
const SERVERS: usize = 3;
/// A session has eight of them at least.
const TICK_MS: u64 = 500;
/// A follower waits this many ticks for its leader.
const SYNC_LIMIT: u64 = 20;
/// As long as a leader is silent for less than this, its followers wait for it.
pub const LEADER_WAIT: Duration = Duration::from_millis(TICK_MS * SYNC_LIMIT * 8 / 10);
/// Longest wait for anything. A machine that runs many tests at once is slow.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Ensemble {
    servers: Vec<Server>,
    directory: TempDir,
}

/// A server that is stopped. It goes on when this is dropped.
pub struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

struct Server {
    directory: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Ensemble {
    /// Starts one, and waits until it has a leader. `None`: it cannot run here, and the reason is printed.
    pub fn start() -> Option<Ensemble> {
        if !Path::new(JAR).exists() {
            eprintln!("SKIPPED: {JAR} is missing (package zookeeper)");
            return None;
        }
        if !Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: java is missing");
            return None;
        }
        // Somebody else may take a port between the choice and the start.
        for _ in 0..3 {
            let mut ensemble = Ensemble::prepare();
            ensemble.start_all();
            if ensemble.wait_for_leader() {
                return Some(ensemble);
            }
        }
        panic!("no ensemble of ZooKeeper servers got ready");
    }

    fn prepare() -> Ensemble {
        let directory = tempfile::tempdir().unwrap();
        // All at once: else one port could come twice.
        let listeners: Vec<TcpListener> = (0..3 * SERVERS).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let (clients, among) = ports.split_at(SERVERS);
        let members: String =
            among.chunks(2).enumerate().map(|(at, ports)| format!("server.{}=127.0.0.1:{}:{}\n", at + 1, ports[0], ports[1])).collect();
        let server = |(at, port): (usize, &u16)| {
            let directory = directory.path().join(format!("server-{}", at + 1));
            std::fs::create_dir_all(directory.join("data")).unwrap();
            std::fs::write(directory.join("data/myid"), format!("{}\n", at + 1)).unwrap();
            let data = directory.join("data");
            let settings = format!(
                "tickTime={TICK_MS}\ninitLimit=60\nsyncLimit={SYNC_LIMIT}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
                 admin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n{members}",
                data.display()
            );
            std::fs::write(directory.join("zoo.cfg"), settings).unwrap();
            Server { directory, port: *port, child: None }
        };
        let servers = clients.iter().enumerate().map(server).collect();
        Ensemble { servers, directory }
    }

    /// Returns the list of servers for a client.
    pub fn servers(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        servers.join(",")
    }

    /// Starts the servers that are not running.
    pub fn start_all(&mut self) {
        self.servers.iter_mut().filter(|server| server.child.is_none()).for_each(Server::start);
    }

    /// Kills all servers.
    pub fn kill_all(&mut self) {
        self.servers.iter_mut().for_each(Server::kill);
    }

    /// Kills the leader.
    pub fn kill_leader(&mut self) {
        let leader = self.find("leader");
        self.servers[leader].kill();
    }

    /// Stops the leader, as a machine that hangs, until the return is dropped.
    pub fn stop_leader(&self) -> Stopped {
        let child = self.servers[self.find("leader")].child.as_ref().expect("a leader is running");
        let process = Pid::from_child(child);
        kill_process(process, Signal::STOP).unwrap();
        Stopped(process)
    }

    /// Returns the port of a follower.
    pub fn follower_port(&self) -> u16 {
        self.servers[self.find("follower")].port
    }

    fn find(&self, mode: &str) -> usize {
        let found = self.servers.iter().position(|server| server.mode().as_deref() == Some(mode));
        found.expect("an ensemble that is ready has a leader and followers")
    }

    /// Removes what the servers have stored. None of them may be running.
    pub fn empty(&self) {
        for server in &self.servers {
            assert!(server.child.is_none());
            std::fs::remove_dir_all(server.directory.join("data/version-2")).unwrap();
        }
    }

    /// Waits until all running servers serve, one of them as leader. Returns whether they do.
    pub fn wait_for_leader(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let running = self.servers.iter().filter(|server| server.child.is_some());
            let modes: Vec<Option<String>> = running.map(Server::mode).collect();
            if modes.iter().all(Option::is_some) && modes.iter().flatten().any(|mode| mode == "leader") {
                return true;
            }
            if self.servers.iter_mut().any(Server::has_ended) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("no leader: {}", self.directory.path().display());
        false
    }
}

impl Server {
    fn start(&mut self) {
        let output = std::fs::File::create(self.directory.join("output")).unwrap();
        let mut command = Command::new("java");
        // Nobody needs these data when the machine loses power.
        command.args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]);
        command.args(["-Dzookeeper.jmx.log4j.disable=true", "-cp", JAR]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(self.directory.join("zoo.cfg"));
        command.current_dir(&self.directory).stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        self.child = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some())
    }

    /// Asks a server what it is: `leader` or `follower`. `None`: it does not serve.
    fn mode(&self) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(b"srvr").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
