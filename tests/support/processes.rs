//! Other programs, run with a time limit.

use crate::Run;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The longest that a client or a command of the program may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A process that is killed and reaped when this is dropped. Its output goes to files, so that it never waits for a
/// reader.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    out: File,
    err: File,
}

impl Running {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Running {
        let [out, err] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
        let name = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Running { name, child, out, err }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it as the power switch would (SIGKILL) and waits until it is gone. Nothing happens to one that has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to stop (SIGTERM).
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Waits for its end, at most two minutes, and returns what it printed.
    #[track_caller]
    pub fn finish(self) -> Run {
        self.finish_within(LIMIT)
    }

    /// Waits for its end, at most so long, and returns what it printed.
    #[track_caller]
    pub fn finish_within(mut self, limit: Duration) -> Run {
        let status = self.wait(limit).unwrap_or_else(|| panic!("does not end: {}", self.name));
        let [out, err] = [&mut self.out, &mut self.err].map(|file| {
            let mut bytes = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut bytes).unwrap();
            bytes
        });
        Run { name: self.name.clone(), code: status.code().unwrap_or(-1), out, err }
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs another program to its end.
#[track_caller]
pub fn client<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Run {
    Running::start(Command::new(program).args(arguments).env("PATH", search_path()).stdin(Stdio::null())).finish()
}

/// Whether all these programs are there; says which is not.
pub fn installed(programs: &[&str]) -> bool {
    let path = search_path();
    let missing = programs.iter().find(|program| !std::env::split_paths(&path).any(|directory| directory.join(program).is_file()));
    if let Some(program) = missing {
        println!("skipped: {program} is not installed");
    }
    missing.is_none()
}

/// A number from the environment, such as how long a test tries; `default` where it is not set.
pub fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

/// Where a suite is that `tools/test-packages` builds with cargo, or that is in the path; says when it is nowhere.
pub fn suite(program: &str) -> Option<PathBuf> {
    // TARGET/PROFILE/deps/TEST
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(3).unwrap().join("suites/bin");
    let path = search_path();
    let found =
        [built].into_iter().chain(std::env::split_paths(&path)).map(|directory| directory.join(program)).find(|file| file.is_file());
    if found.is_none() {
        println!("skipped: {program} is not installed");
    }
    found
}

/// Whether the test may mount; says when not.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root can mount");
    }
    is_root
}

/// Administrators' programs are not in everybody's path.
fn search_path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}
