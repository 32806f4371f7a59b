//! One test's directory with a store in it, and runs of the program on that store.

use crate::processes::Running;
use crate::{Daemon, binary};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A directory for one test. The store in it is named `store`, unless it was put elsewhere.
#[derive(Debug)]
pub struct Scene {
    directory: TempDir,
    store: PathBuf,
}

/// How a process ended.
#[derive(Debug)]
pub struct Run {
    /// Its command line.
    pub name: String,
    /// Its exit code; -1 after a signal.
    pub code: i32,
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: Vec<u8>,
}

impl Scene {
    /// Makes a store with these options of `init` and these lines of settings.
    pub fn new(options: &[&str], settings: &str) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        Scene { directory, store }.with_store(options, settings)
    }

    /// Makes a store in a directory elsewhere.
    pub fn with_store_in(place: &Path, options: &[&str], settings: &str) -> Scene {
        Scene { directory: tempfile::tempdir().unwrap(), store: place.join("store") }.with_store(options, settings)
    }

    /// Takes the store in a directory elsewhere, which is there.
    pub fn of_store(store: &Path) -> Scene {
        Scene { directory: tempfile::tempdir().unwrap(), store: store.to_owned() }
    }

    fn with_store(self, options: &[&str], settings: &str) -> Scene {
        let mut arguments = vec![OsStr::new("init"), self.store.as_os_str()];
        arguments.extend(options.iter().map(OsStr::new));
        self.run(arguments).succeeds();
        self.set(settings);
        self
    }

    /// Gives the store other settings. Initiators are not warned of little free space, as this machine may have: the
    /// command that is answered with the warning would not be done.
    pub fn set(&self, settings: &str) {
        let no_warning = if settings.contains("[iscsi]") { "" } else { "\n[iscsi]\nlow_space_percent = 0\n" };
        std::fs::write(self.store.join("onefold.toml"), [settings, no_warning].concat()).unwrap();
    }

    /// A place in the test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// Where the store is.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// The program with `ONEFOLD_STORE` set, standing in the test's directory.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env("ONEFOLD_STORE", &self.store).env_remove("ONEFOLD_LOG").env("RUST_BACKTRACE", "0");
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Run {
        Running::start(&mut self.command(arguments)).finish()
    }

    /// Serves all volumes on a Unix socket.
    pub fn serve(&self) -> Daemon {
        self.serve_with(&["--nbd", "none", "--nbd-socket", "nbd.sock"])
    }

    /// Serves with these options.
    pub fn serve_with(&self, options: &[&str]) -> Daemon {
        Daemon::start(self.command(["serve", "--json"].iter().chain(options)), self.path("nbd.sock"))
    }

    /// The same, with its log in a file.
    pub fn serve_with_log(&self, options: &[&str], log: &Path) -> Daemon {
        let mut command = self.command(["serve", "--json"].iter().chain(options));
        command.stderr(std::fs::File::create(log).unwrap());
        Daemon::start(command, self.path("nbd.sock"))
    }

    /// Makes a volume.
    pub fn volume(&self, name: &str, size: &str) {
        self.run(["volume", "create", name, "--size", size]).succeeds();
    }

    /// Verifies the whole store, every byte of it.
    #[track_caller]
    pub fn check(&self) {
        self.run(["check", "--read-data"]).succeeds();
    }

    /// A figure of `stats`.
    #[track_caller]
    pub fn statistic(&self, key: &str) -> u64 {
        self.run(["stats", "--json"]).succeeds().json()[key].as_u64().unwrap()
    }
}

impl Run {
    /// Everything that it printed.
    pub fn text(&self) -> String {
        format!("{}{}", String::from_utf8_lossy(&self.out), String::from_utf8_lossy(&self.err))
    }

    /// It ended with 0, and nothing in its output says otherwise.
    #[track_caller]
    pub fn succeeds(self) -> Run {
        self.ends_with(0)
    }

    /// It ended with this code, and not by a panic.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Run {
        assert!(self.code == code && !self.text().contains("panicked"), "{} ended with {}:\n{}", self.name, self.code, self.text());
        self
    }

    /// Its standard output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}
