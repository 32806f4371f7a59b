//! A store in object storage, and machines that use it.

use crate::processes::Running;
use crate::{Daemon, Run, assert_same_tree, binary};
use onefold_bucket::gateway::Gateway;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Object storage with stores in it, one below each prefix, and the files that all machines have in common.
#[derive(Debug)]
pub struct ObjectStorage {
    gateway: Option<Gateway>,
    directory: TempDir,
}

/// A machine that uses a store in object storage. It has a directory of its own for the state of the store.
#[derive(Debug)]
pub struct Machine {
    directory: TempDir,
    store: String,
    variables: Vec<(&'static str, String)>,
    place: PathBuf,
}

impl ObjectStorage {
    /// Starts a service that speaks S3. `None`: there is none here; the reason is on standard error.
    pub fn on_gateway() -> Option<ObjectStorage> {
        Some(ObjectStorage { gateway: Some(Gateway::start()?), directory: tempfile::tempdir().unwrap() })
    }

    /// Takes a directory.
    pub fn on_disk() -> ObjectStorage {
        ObjectStorage { gateway: None, directory: tempfile::tempdir().unwrap() }
    }

    /// The URL of the store below a prefix.
    pub fn url(&self, prefix: &str) -> String {
        match &self.gateway {
            Some(gateway) => format!("{}/{prefix}?endpoint={}", gateway.url(), gateway.endpoint()),
            None => format!("file://{}", self.objects(prefix).display()),
        }
    }

    /// The directory that has the objects of a store as files.
    pub fn objects(&self, prefix: &str) -> PathBuf {
        self.gateway.as_ref().map_or_else(|| self.path("objects"), Gateway::objects).join(prefix)
    }

    /// A machine that has never seen the store.
    pub fn machine(&self, prefix: &str) -> Machine {
        let mut variables = self.gateway.as_ref().map(Gateway::environment).unwrap_or_default();
        // The URL has it.
        variables.retain(|(name, _)| *name != "AWS_ENDPOINT_URL");
        Machine { directory: tempfile::tempdir().unwrap(), store: self.url(prefix), variables, place: self.directory.path().to_owned() }
    }

    /// A file that all machines have.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Machine {
    /// The program with `ONEFOLD_STORE` set, standing where all machines have the same files.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env("ONEFOLD_STORE", &self.store).env("ONEFOLD_CACHE", self.directory.path().join("cache"));
        command.env_remove("ONEFOLD_LOG").env("RUST_BACKTRACE", "0");
        // Nothing of whoever runs the test, who may use a service too.
        let foreign = std::env::vars_os().map(|(name, _)| name).filter(|name| name.as_encoded_bytes().starts_with(b"AWS_"));
        for name in foreign {
            command.env_remove(name);
        }
        command.env("HOME", self.directory.path()).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.place).stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Run {
        Running::start(&mut self.command(arguments)).finish()
    }

    /// Makes the store, and gives it settings on this machine.
    #[track_caller]
    pub fn init(&self, options: &[&str], settings: &str) {
        self.run(["init"].iter().chain(options)).succeeds();
        fs::write(self.state().join("onefold.toml"), settings).unwrap();
    }

    /// The directory with the state of the store. There must be one.
    pub fn state(&self) -> PathBuf {
        let mut states = fs::read_dir(self.directory.path().join("cache/stores")).unwrap().map(|entry| entry.unwrap().path());
        let state = states.next().expect("it has used the store");
        assert!(states.next().is_none(), "it has a second state");
        state
    }

    /// Loses the state, settings too.
    pub fn lose_state(&self) {
        fs::remove_dir_all(self.directory.path().join("cache")).unwrap();
    }

    /// A file of this machine alone.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Serves all volumes on a Unix socket. What the daemon logs is appended to the file `daemon.log`.
    #[track_caller]
    pub fn serve(&self) -> Daemon {
        let socket = self.path("nbd.sock");
        let mut command = self.command(["serve", "--json", "--nbd", "none", "--nbd-socket"]);
        let log = fs::File::options().create(true).append(true).open(self.path("daemon.log")).unwrap();
        command.arg(&socket).stderr(log);
        Daemon::start(command, socket)
    }

    /// What daemons logged.
    pub fn daemon_log(&self) -> String {
        fs::read_to_string(self.path("daemon.log")).unwrap()
    }

    /// Backs up a directory. Returns what it says.
    #[track_caller]
    pub fn back_up(&self, source: &Path) -> serde_json::Value {
        let name = source.file_name().unwrap();
        self.run([OsStr::new("backup"), OsStr::new("--name"), name, OsStr::new("--json"), source.as_os_str()]).succeeds().json()
    }

    /// The ids of all backups, oldest first.
    #[track_caller]
    pub fn backups(&self) -> Vec<String> {
        let list = self.run(["backups", "--json"]).succeeds().json();
        list.as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Restores a backup of the directory `source`. Returns how that ended, and the directory with what it made, which
    /// is new each time and may be removed.
    pub fn restore(&self, backup: &str, source: &Path) -> (Run, TempDir, PathBuf) {
        let target = tempfile::tempdir_in(self.directory.path()).unwrap();
        let run = self.run([OsStr::new("restore"), OsStr::new(backup), OsStr::new("--target"), target.path().as_os_str()]);
        let restored = target.path().join(source.strip_prefix("/").unwrap());
        (run, target, restored)
    }

    /// Restores a backup of the directory `source` and compares it with the tree that it must be.
    #[track_caller]
    pub fn restores(&self, backup: &str, source: &Path, expected: &Path) {
        let (run, _target, restored) = self.restore(backup, source);
        run.succeeds();
        assert_same_tree(expected, &restored);
    }
}
