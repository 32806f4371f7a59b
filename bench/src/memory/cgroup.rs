//! A control group of Linux that limits the memory of a process, its page cache included. Version 1 and version 2.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";
/// How often the memory is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What the group used. Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processes that were ended for lack of memory.
    pub kills: u64,
    /// The highest sum of everything, as the kernel counts it. It reaches the limit as soon as the page cache fills it.
    pub peak: u64,
    /// The highest memory of the processes themselves, which cannot be dropped.
    pub anonymous: u64,
    /// The highest page cache.
    pub file: u64,
}

/// The group, which is removed when dropped. Its processes must be gone by then.
#[derive(Debug)]
pub struct ControlGroup {
    directory: PathBuf,
    is_first_version: bool,
    watcher: Option<(Arc<AtomicBool>, JoinHandle<Usage>)>,
}

impl ControlGroup {
    /// Creates a group with this limit. Errors: not root, or a system without such groups.
    pub fn create(limit_bytes: u64) -> Result<ControlGroup> {
        if !nix::unistd::geteuid().is_root() {
            bail!("a limit of the memory needs a control group, which only root can make: run it as root");
        }
        let is_first_version = Path::new(VERSION_1).join("memory.limit_in_bytes").exists();
        if !is_first_version {
            let controllers = fs::read_to_string(format!("{VERSION_2}/cgroup.controllers")).unwrap_or_default();
            if !controllers.split_whitespace().any(|name| name == "memory") {
                bail!("the system has no control groups of memory at {VERSION_1} or {VERSION_2}");
            }
            fs::write(format!("{VERSION_2}/cgroup.subtree_control"), "+memory").context("the controller of memory cannot be enabled")?;
        }
        let parent = if is_first_version { VERSION_1 } else { VERSION_2 };
        let directory = Path::new(parent).join(format!("onefold-bench-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("cannot make the control group {}", directory.display()))?;
        let group = ControlGroup { directory, is_first_version, watcher: None };
        let (limit, swap) =
            if is_first_version { ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") } else { ("memory.max", "memory.swap.max") };
        fs::write(group.directory.join(limit), limit_bytes.to_string()).context("the limit cannot be set")?;
        // Without swap in the kernel there is no such file, and nothing to limit.
        let _ = fs::write(group.directory.join(swap), if is_first_version { limit_bytes.to_string() } else { "0".to_owned() });
        Ok(group)
    }

    /// Returns the file that takes the processes of the group.
    pub fn processes(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Begins to look at the memory again and again.
    pub fn watch(&mut self) {
        let ends = Arc::new(AtomicBool::new(false));
        let (directory, is_first_version, told) = (self.directory.clone(), self.is_first_version, Arc::clone(&ends));
        let watch = move || {
            let mut most = Usage::default();
            while !told.load(Ordering::Relaxed) {
                let text = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
                let (anonymous, file) = parts(&text, is_first_version);
                (most.anonymous, most.file) = (most.anonymous.max(anonymous), most.file.max(file));
                std::thread::sleep(LOOK_INTERVAL);
            }
            most
        };
        self.watcher = Some((ends, std::thread::spawn(watch)));
    }

    /// Returns what it used since [`ControlGroup::watch`].
    pub fn usage(&mut self) -> Result<Usage> {
        let Some((ends, watcher)) = self.watcher.take() else { bail!("nobody looked at the memory") };
        ends.store(true, Ordering::Relaxed);
        let most = watcher.join().ok().context("the thread that looks at the memory failed")?;
        let read = |name: &str| fs::read_to_string(self.directory.join(name)).with_context(|| format!("no {name} in the control group"));
        let (events, peak) = if self.is_first_version {
            (read("memory.oom_control")?, read("memory.max_usage_in_bytes")?)
        } else {
            // Kernels before 5.19 do not have the highest sum.
            (read("memory.events")?, read("memory.peak").unwrap_or_default())
        };
        let kills = field(&events, "oom_kill").context("the system does not say whether memory ran out")?;
        Ok(Usage { kills, peak: peak.trim().parse().unwrap_or(0), ..most })
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if let Some((ends, watcher)) = self.watcher.take() {
            ends.store(true, Ordering::Relaxed);
            let _ = watcher.join();
        }
        // The last process may still be on its way out.
        for _ in 0..100 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("the control group {} could not be removed", self.directory.display());
    }
}

/// Returns the anonymous memory and the page cache of a `memory.stat`.
fn parts(text: &str, is_first_version: bool) -> (u64, u64) {
    let (anonymous, file) = if is_first_version { ("rss", "cache") } else { ("anon", "file") };
    (field(text, anonymous).unwrap_or(0), field(text, file).unwrap_or(0))
}

/// Returns the number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().filter_map(|line| line.split_once(' ')).find(|(found, _)| *found == name).and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let first = "cache 4096\nrss 8192\nrss_huge 7\ntotal_rss 9\n";
        assert_eq!(parts(first, true), (8192, 4096));
        let second = "anon 1\nfile 2\nkernel 3\nanon_thp 4\n";
        assert_eq!(parts(second, false), (1, 2));
        assert_eq!(field("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"), Some(3));
        assert_eq!(field("oom 1\n", "oom_kill"), None);
    }
}
