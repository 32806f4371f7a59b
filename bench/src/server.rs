//! A server of disks that runs beside, and what it takes.

use crate::process::{peak_bytes, times_s};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running server; ended when dropped.
pub struct Server {
    child: Child,
    uri: String,
}

impl Server {
    /// A server that clients find at `uri`.
    pub fn new(child: Child, uri: impl Into<String>) -> Server {
        Server { child, uri: uri.into() }
    }

    /// The same, at `uri`: where it is may be known only when it runs.
    pub fn at(mut self, uri: String) -> Server {
        self.uri = uri;
        self
    }

    /// Where it is.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Time of processors that it took so far, user and system, seconds.
    pub fn cpu_s(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        Ok(times_s(&text)?.0)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Greatest resident memory so far, bytes.
    pub fn peak_bytes(&self) -> Result<u64> {
        peak_bytes(self.child.id()).context("the server has ended")
    }

    /// Lets it end by itself.
    pub fn stop(mut self) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into()?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM would be kinder to the store, which is thrown away.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server of NBD and waits for its socket; `None` if the program is not there.
pub fn serve(program: &str, arguments: &[&str], socket: &Path, export: &str) -> Result<Option<Server>> {
    let log = socket.with_extension("log");
    let child = match Command::new(program).args(arguments).stdout(Stdio::null()).stderr(File::create(&log)?).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot start {program}")),
    };
    let mut server = Server::new(child, format!("nbd+unix:///{export}?socket={}", socket.display()));
    for _ in 0..200 {
        if socket.exists() {
            return Ok(Some(server));
        }
        if server.child.try_wait()?.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(server);
    bail!("{program} does not serve: {}", fs::read_to_string(&log).unwrap_or_default())
}

/// Whether a program is there; if not, that is said.
pub fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_there {
        eprintln!("{program} is not installed: left out");
    }
    is_there
}
