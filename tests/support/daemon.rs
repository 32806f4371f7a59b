//! `onefold serve` as a process that can be stopped and killed.

use crate::{Client, Initiator};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The longest that a start, with whatever there is to recover, or a clean stop may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A running daemon. Killed and reaped when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    /// What it said when it began to serve.
    pub event: serde_json::Value,
    out: Option<BufReader<ChildStdout>>,
}

impl Daemon {
    /// Starts the daemon and waits until it serves.
    #[track_caller]
    pub(crate) fn start(mut command: Command, socket: PathBuf) -> Daemon {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut daemon = Daemon { child, socket, event: serde_json::Value::Null, out: None };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = out.read_line(&mut line);
            let _ = sender.send((line, out));
        });
        let (line, out) = receiver.recv_timeout(LIMIT).expect("the daemon says that it serves");
        daemon.event = serde_json::from_str(&line).unwrap_or_else(|error| panic!("the daemon did not start: {error}: {line}"));
        daemon.out = Some(out);
        daemon
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its Unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The URI of a volume on the Unix socket.
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket.display())
    }

    /// The port of its first TCP address.
    pub fn port(&self) -> u16 {
        let address = self.event["addresses"][0].as_str().unwrap();
        address.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Its first iSCSI portal, address and port.
    pub fn portal(&self) -> &str {
        self.event["iscsi_portals"][0].as_str().expect("it serves iSCSI")
    }

    /// The target that shows a volume, and its LUN there.
    #[track_caller]
    pub fn unit(&self, volume: &str) -> (&str, u8) {
        let targets = self.event["targets"].as_array().unwrap();
        let found = targets.iter().find_map(|target| {
            let lun = target["luns"].as_array().unwrap().iter().find(|unit| unit["volume"] == volume)?;
            Some((target["name"].as_str().unwrap(), lun["lun"].as_u64().unwrap() as u8))
        });
        found.unwrap_or_else(|| panic!("no target shows {volume}: {}", self.event))
    }

    /// The URL of a volume for libiscsi.
    pub fn iscsi_url(&self, volume: &str) -> String {
        let (target, lun) = self.unit(volume);
        format!("iscsi://{}/{target}/{lun}", self.portal())
    }

    /// A session with a volume, over iSCSI; each number is another initiator port.
    pub fn initiator(&self, volume: &str, number: u32) -> Initiator {
        let (target, lun) = self.unit(volume);
        Initiator::log_in(self.portal(), target, "iqn.2026-01.com.example:test", number, lun).unwrap()
    }

    /// A connection to a volume.
    pub fn connect(&self, volume: &str) -> Client {
        Client::connect(&self.socket, volume).unwrap()
    }

    /// Lets it do nothing until [`resume`](Daemon::resume).
    pub fn pause(&self) {
        self.send(rustix::process::Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.send(rustix::process::Signal::CONT);
    }

    fn send(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself. Returns its exit code.
    #[track_caller]
    pub fn wait(mut self) -> Option<i32> {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops it with SIGTERM; it must end with 0. Returns what it said at its end.
    #[track_caller]
    pub fn stop(mut self) -> serde_json::Value {
        self.send(rustix::process::Signal::TERM);
        let until = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "the daemon does not stop");
            std::thread::sleep(Duration::from_millis(3));
        };
        let mut said = String::new();
        self.out.as_mut().unwrap().read_to_string(&mut said).unwrap();
        assert!(status.success(), "the daemon ended with {status}: {said}");
        serde_json::from_str(&said).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
