//! Runs the built binary as a person would.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A directory for one test, with a place for a store in it.
pub struct Scene {
    directory: TempDir,
}

/// How a run ended.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
    pub bytes: Vec<u8>,
}

impl Scene {
    pub fn new() -> Scene {
        Scene { directory: tempfile::tempdir().unwrap() }
    }

    /// With a store that was made with these options.
    pub fn with_store(options: &[&str]) -> Scene {
        let scene = Scene::new();
        let store = scene.store();
        let mut arguments = vec![OsStr::new("init"), store.as_os_str()];
        arguments.extend(options.iter().map(OsStr::new));
        scene.run(arguments).succeeds();
        scene
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// The binary with `ONEFOLD_STORE` set, standing in the scene's directory.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onefold"));
        command
            .args(arguments)
            .env("ONEFOLD_STORE", self.store())
            .env_remove("ONEFOLD_LOG")
            .env("RUST_BACKTRACE", "0")
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Run {
        Run::from(self.command(arguments).output().unwrap())
    }

    /// Starts `serve` on a free port and waits until it serves; returns it with the address.
    pub fn serve(&self, options: &[&str]) -> Served {
        self.serve_with([&["serve", "--nbd", "127.0.0.1:0", "--json"], options].concat())
    }

    /// The same for another store.
    pub fn serve_another(&self, store: &str) -> Served {
        self.serve_with(vec!["serve", "--store", store, "--nbd", "127.0.0.1:0", "--json"])
    }

    fn serve_with(&self, arguments: Vec<&str>) -> Served {
        let mut child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        if line.is_empty() {
            let output = child.wait_with_output().unwrap();
            panic!("serve did not start: {}", String::from_utf8_lossy(&output.stderr));
        }
        let event = serde_json::from_str(&line).unwrap();
        Served { child, event, out }
    }
}

/// A running `serve`.
pub struct Served {
    child: Child,
    /// What it said when it began.
    pub event: serde_json::Value,
    out: std::io::BufReader<std::process::ChildStdout>,
}

impl Served {
    /// Sends SIGTERM and waits; returns the code and what it said after the beginning.
    pub fn stop(mut self) -> (i32, String) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "serve does not stop");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.out, &mut said).unwrap();
        (status.code().unwrap_or(-1), said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        Run {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }
}

impl Run {
    pub fn succeeds(self) -> Run {
        self.ends_with(0)
    }

    pub fn ends_with(self, code: i32) -> Run {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        for text in ["panicked", "RUST_BACKTRACE", "Err(", "Error {", "Os {"] {
            assert!(!self.err.contains(text), "not for people: {}", self.err);
        }
        self
    }

    /// Everything that is expected stands in the error.
    pub fn says(self, expected: &[&str]) -> Run {
        for text in expected {
            assert!(self.err.contains(text), "`{text}` is not in:\n{}", self.err);
        }
        self
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// The lines that are JSON, or the one value that is.
    pub fn json_lines_or_none(&self) -> Vec<serde_json::Value> {
        self.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The names of everything under a directory with the bytes of files and the targets of links, sorted.
pub fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
            let content = if kind.is_dir() {
                directories.push(path.clone());
                b"directory".to_vec()
            } else if kind.is_symlink() {
                std::os::unix::ffi::OsStringExt::into_vec(std::fs::read_link(&path).unwrap().into_os_string())
            } else {
                std::fs::read(&path).unwrap()
            };
            found.push((path.strip_prefix(root).unwrap().to_owned(), content));
        }
    }
    found.sort();
    found
}

/// Bytes that neither repeat nor compress.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    out.truncate(length);
    out
}
