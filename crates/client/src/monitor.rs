//! What a long operation reports while it runs: counters, the current path, problems. The terminal shows them, tests
//! assert them.

use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Names found by the walk that is ahead: the scan if the monitor wants one, otherwise the walk.
    Found,
    /// Bytes of the files found.
    FoundBytes,
    /// Names left out on request, with everything below them.
    Excluded,
    /// Regular files done, including further names of hard links.
    Files,
    /// Files that the previous backup did not have.
    NewFiles,
    /// Files that were different in the previous backup.
    ChangedFiles,
    /// Files reused from the previous backup without reading them.
    UnmodifiedFiles,
    /// Small files that were read and then taken from a backup by the name of their content.
    TakenFiles,
    /// Directories done.
    Directories,
    /// Directories reused from the previous backup with everything in them.
    UnmodifiedDirectories,
    /// Symlinks, devices, fifos and sockets done.
    Others,
    /// Apparent bytes of the files done, including holes.
    LogicalBytes,
    /// Bytes read from files, or written to them.
    DataBytes,
    /// Bytes of files read or reused: the finished part of the bytes found.
    DoneBytes,
    /// Bytes of chunks that were new to the store.
    AddedBytes,
    /// Existing files of any kind that a restore left alone because they were equal.
    KeptFiles,
    /// Existing files of any kind that a restore left alone although they differ. Each is also an error.
    InTheWay,
    /// Files restored with zeros in place of lost bytes. Each is also an error.
    DamagedFiles,
    /// Files and directories that a restore deleted because the backup does not have them.
    Deleted,
    /// Skipped things that are missing from the result.
    Errors,
    /// Things worth knowing; nothing is missing.
    Warnings,
}

impl Counter {
    /// All counters.
    pub const ALL: [Counter; 21] = [
        Counter::Found,
        Counter::FoundBytes,
        Counter::Excluded,
        Counter::Files,
        Counter::NewFiles,
        Counter::ChangedFiles,
        Counter::UnmodifiedFiles,
        Counter::TakenFiles,
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
    /// Worth knowing; nothing obtainable is missing.
    Warning,
    /// Something is missing from the result.
    Error,
}

/// A failure with one path; everything else continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The path: absolute for a backup, relative to the backup's root for a restore.
    pub path: Vec<u8>,
    /// What happened.
    pub reason: String,
    /// How bad it is.
    pub severity: Severity,
    /// The lost bytes of the file, if only a part of it is lost.
    pub lost: Vec<Range<u64>>,
}

impl Problem {
    /// Returns a problem of a whole path.
    pub fn new(path: &[u8], reason: impl fmt::Display, severity: Severity) -> Problem {
        Problem { path: path.to_vec(), reason: reason.to_string(), severity, lost: Vec::new() }
    }
}

/// What a dry run of a restore would do to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing exists there.
    Create,
    /// Something else exists there.
    Replace,
    /// The backup does not have it.
    Delete,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", String::from_utf8_lossy(&self.path), self.reason)
    }
}

/// Watches an operation. Several threads call it often: be quick.
pub trait Monitor: Send + Sync {
    /// Adds to a counter.
    fn count(&self, counter: Counter, increment: u64);
    /// Reports the path in progress.
    fn current(&self, path: &[u8]) {
        let _ = path;
    }
    /// Reports what a dry run would do.
    fn planned(&self, plan: Plan, path: &[u8]) {
        let _ = (plan, path);
    }
    /// Reports a problem. The operation continues.
    fn problem(&self, problem: &Problem);
    /// Returns whether somebody watches the progress, so that counting the work first is worthwhile.
    fn wants_totals(&self) -> bool {
        false
    }
    /// Reports that everything has been [found](Counter::Found).
    fn has_totals(&self) {}
    /// Returns whether the operation should stop. Called often.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Most problems whose text a [`Tally`] keeps.
const KEPT_PROBLEMS: usize = 1000;

/// A monitor that adds everything up.
#[derive(Debug, Default)]
pub struct Tally {
    counters: [AtomicU64; Counter::ALL.len()],
    problems: Mutex<Vec<Problem>>,
    cancelled: AtomicBool,
}

impl Tally {
    /// Returns the sum so far.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Returns the first thousand problems.
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

/// State shared by the parts of an operation: the user's monitor, the sums for the outcome, the stop signal.
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

    /// Reports a lost part of a file as an error.
    pub(crate) fn lost(&self, path: &[u8], reason: impl fmt::Display, lost: Vec<Range<u64>>) {
        self.count(Counter::Errors, 1);
        self.monitor.problem(&Problem { lost, ..Problem::new(path, reason, Severity::Error) });
    }

    /// Reports that all the work has been found.
    pub(crate) fn has_totals(&self) {
        self.monitor.has_totals();
    }

    pub(crate) fn planned(&self, plan: Plan, path: &[u8]) {
        self.monitor.planned(plan, path);
    }

    /// Tells all parts to stop, because one has failed.
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
