//! A server that runs beside its clients: time of processors and memory, its children included.
//!
//! sshd starts a process for each client, which starts `borg serve`. Times of children that ended are in those of their
//! parents; memory is sampled, as nothing remembers that of children together.

use crate::process::{peak_bytes, times_s};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SAMPLES_EVERY: Duration = Duration::from_millis(25);
/// A server that listens later than this has failed; so has one that ends later.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server; killed when dropped.
pub struct Watched {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
    memory: Arc<Memory>,
    sampler: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Memory {
    peak_bytes: AtomicU64,
    is_ended: AtomicBool,
}

/// A port of loopback that is free now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Watched {
    /// Starts a server and waits until it listens at `port`. What it writes goes to `log`.
    pub fn start(mut command: Command, port: u16, log: &Path) -> Result<Watched> {
        let output = File::create(log)?;
        let child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn().context("cannot start a shell")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let memory = Arc::<Memory>::default();
        let (of_sampler, pid) = (Arc::clone(&memory), child.id());
        let sampler = thread::spawn(move || {
            while !of_sampler.is_ended.load(Ordering::SeqCst) {
                of_sampler.peak_bytes.fetch_max(memory_bytes(pid), Ordering::SeqCst);
                thread::sleep(SAMPLES_EVERY);
            }
        });
        let mut server = Watched { child, address, log: log.to_owned(), memory, sampler: Some(sampler) };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if server.child.try_wait()?.is_some() || begun.elapsed() > PATIENCE {
                bail!("the server failed: {}", fs::read_to_string(log).unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Time of processors that it and its children took so far, user and system, seconds. Waits for children that serve
    /// a client which is gone.
    pub fn cpu_s(&self) -> Result<f64> {
        let begun = Instant::now();
        let mut tree = tree(self.child.id());
        while tree.len() > 1 && begun.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(10));
            tree = self::tree(self.child.id());
        }
        let mut sum_s = 0.0;
        for pid in tree {
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let (own_s, children_s) = times_s(&stat)?;
            sum_s += own_s + children_s;
        }
        Ok(sum_s)
    }

    /// Greatest memory that it had so far, with its children.
    pub fn peak_bytes(&self) -> u64 {
        self.memory.peak_bytes.fetch_max(memory_bytes(self.child.id()), Ordering::SeqCst);
        self.memory.peak_bytes.load(Ordering::SeqCst)
    }

    /// Lets it end by itself.
    pub fn stop(mut self) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into()?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        let begun = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begun.elapsed() > PATIENCE {
                bail!("the server failed: it does not end: {}", fs::read_to_string(&self.log).unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.memory.is_ended.store(true, Ordering::SeqCst);
        // It has ended, or what it has is thrown away.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.sampler.take().map(JoinHandle::join);
    }
}

/// A process and all below it.
fn tree(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        at += 1;
    }
    found
}

/// The greatest resident memory of each process of a tree so far, together. Pages that they share count for each.
fn memory_bytes(pid: u32) -> u64 {
    tree(pid).into_iter().filter_map(peak_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_count_for_a_server() {
        let port = free_port().unwrap();
        let place = tempfile::tempdir().unwrap();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", "(n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done); exec sleep 60"]);
        let server = Watched::start(command, port, &place.path().join("log")).unwrap();
        let begun = Instant::now();
        while server.cpu_s().unwrap() < 0.1 && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        assert!(server.cpu_s().unwrap() >= 0.1);
        assert!(server.peak_bytes() > 1 << 20);
    }

    #[test]
    fn a_server_that_ends_says_why() {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", "echo no such luck >&2"]);
        let error = Watched::start(command, free_port().unwrap(), &place.path().join("log")).err().unwrap();
        assert!(error.to_string().contains("no such luck"), "{error}");
    }
}
