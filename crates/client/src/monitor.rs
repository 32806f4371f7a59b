//! What a long operation tells while it runs: counters, the current path, problems. The terminal shows them, tests assert them.

use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Names found by whoever looks ahead: the scan where the monitor wants one, else the walk.
    Found,
    /// Bytes of the files found.
    FoundBytes,
    /// Names that were left out on request, with everything below them.
    Excluded,
    /// Regular files done, further names of hard links included.
    Files,
    /// Files that the backup before did not have.
    NewFiles,
    /// Files that were different in the backup before.
    ChangedFiles,
    /// Files taken over from the backup before without reading them.
    UnmodifiedFiles,
    /// Directories done.
    Directories,
    /// Directories taken over from the backup before with everything in them.
    UnmodifiedDirectories,
    /// Symlinks, devices, fifos and sockets done.
    Others,
    /// Bytes of the files done, as they are seen; holes included.
    LogicalBytes,
    /// Bytes read from files, or written to them.
    DataBytes,
    /// Bytes of files gone through, read or taken over: what is done of the bytes found.
    DoneBytes,
    /// Bytes of chunks that were new to the store.
    AddedBytes,
    /// Existing files of any kind that a restore left as they were because they were equal.
    KeptFiles,
    /// Existing files of any kind that a restore left as they were though they differ; each is an error too.
    InTheWay,
    /// Files restored with zeros in place of lost bytes; each is an error too.
    DamagedFiles,
    /// Files and directories that a restore deleted because the backup has them not.
    Deleted,
    /// Things that were skipped and are missing from the result.
    Errors,
    /// Things worth knowing; nothing is missing.
    Warnings,
}

impl Counter {
    /// All of them.
    pub const ALL: [Counter; 20] = [
        Counter::Found,
        Counter::FoundBytes,
        Counter::Excluded,
        Counter::Files,
        Counter::NewFiles,
        Counter::ChangedFiles,
        Counter::UnmodifiedFiles,
        Counter::Directories,
        Counter::UnmodifiedDirectories,
        Counter::Others,
        Counter::LogicalBytes,
        Counter::DataBytes,
        Counter::DoneBytes,
        Counter::AddedBytes,
        Counter::KeptFiles,
        Counter::InTheWay,
        Counter::DamagedFiles,
        Counter::Deleted,
        Counter::Errors,
        Counter::Warnings,
    ];
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Worth knowing; what could be had is there.
    Warning,
    /// Something is missing from the result.
    Error,
}

/// Something that went wrong with one path while the rest went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The path: absolute for a backup, relative to the backup's root for a restore.
    pub path: Vec<u8>,
    /// What happened.
    pub reason: String,
    /// How bad it is.
    pub severity: Severity,
    /// The bytes of the file that are lost, if only a part of it is.
    pub lost: Vec<Range<u64>>,
}

impl Problem {
    /// A problem of a path as a whole.
    pub fn new(path: &[u8], reason: impl fmt::Display, severity: Severity) -> Problem {
        Problem { path: path.to_vec(), reason: reason.to_string(), severity, lost: Vec::new() }
    }
}

/// What a dry run of a restore would do with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing is there.
    Create,
    /// Something else is there.
    Replace,
    /// The backup has it not.
    Delete,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", String::from_utf8_lossy(&self.path), self.reason)
    }
}

/// Watches an operation. Called from several threads, often: be quick.
pub trait Monitor: Send + Sync {
    /// Adds to a counter.
    fn count(&self, counter: Counter, increment: u64);
    /// Something is being worked on.
    fn current(&self, path: &[u8]) {
        let _ = path;
    }
    /// A dry run would do this.
    fn planned(&self, plan: Plan, path: &[u8]) {
        let _ = (plan, path);
    }
    /// Something went wrong; the operation goes on.
    fn problem(&self, problem: &Problem);
    /// Whether somebody looks on, so that it is worth finding out first how much there is to do.
    fn wants_totals(&self) -> bool {
        false
    }
    /// What was [found](Counter::Found) so far is all there is.
    fn has_totals(&self) {}
    /// Whether the operation should stop; asked often.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Most problems that a [`Tally`] keeps the text of.
const KEPT_PROBLEMS: usize = 1000;

/// A monitor that adds up.
#[derive(Debug, Default)]
pub struct Tally {
    counters: [AtomicU64; Counter::ALL.len()],
    problems: Mutex<Vec<Problem>>,
    cancelled: AtomicBool,
}

impl Tally {
    /// The sum so far.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// The first thousand problems.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().clone()
    }

    /// Asks the operation to stop.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Monitor for Tally {
    fn count(&self, counter: Counter, increment: u64) {
        self.counters[counter as usize].fetch_add(increment, Ordering::Relaxed);
    }

    fn problem(&self, problem: &Problem) {
        let mut problems = self.problems.lock();
        if problems.len() < KEPT_PROBLEMS {
            problems.push(problem.clone());
        }
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// What the parts of an operation share: the user's monitor, the sums for the outcome, the sign to stop.
pub(crate) struct Watch<'a> {
    monitor: &'a dyn Monitor,
    tally: Tally,
    stopped: AtomicBool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(monitor: &'a dyn Monitor) -> Watch<'a> {
        Watch { monitor, tally: Tally::default(), stopped: AtomicBool::new(false) }
    }

    pub(crate) fn count(&self, counter: Counter, increment: u64) {
        self.tally.count(counter, increment);
        self.monitor.count(counter, increment);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.tally.get(counter)
    }

    pub(crate) fn monitor(&self) -> &'a dyn Monitor {
        self.monitor
    }

    pub(crate) fn current(&self, path: &[u8]) {
        self.monitor.current(path);
    }

    pub(crate) fn warn(&self, path: &[u8], reason: impl fmt::Display) {
        self.count(Counter::Warnings, 1);
        self.monitor.problem(&Problem::new(path, reason, Severity::Warning));
    }

    pub(crate) fn error(&self, path: &[u8], reason: impl fmt::Display) {
        self.count(Counter::Errors, 1);
        self.monitor.problem(&Problem::new(path, reason, Severity::Error));
    }

    /// An error of a part of a file.
    pub(crate) fn lost(&self, path: &[u8], reason: impl fmt::Display, lost: Vec<Range<u64>>) {
        self.count(Counter::Errors, 1);
        self.monitor.problem(&Problem { lost, ..Problem::new(path, reason, Severity::Error) });
    }

    /// All there is to do has been found.
    pub(crate) fn has_totals(&self) {
        self.monitor.has_totals();
    }

    pub(crate) fn planned(&self, plan: Plan, path: &[u8]) {
        self.monitor.planned(plan, path);
    }

    /// One part has failed: the others need not go on.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn should_stop(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.monitor.cancelled()
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.monitor.cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_stands_at_its_own_place() {
        for (place, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, place);
        }
    }
}
