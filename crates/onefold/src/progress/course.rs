//! Progress of work on files: counters in, rate and time left out.

use crate::units::{counted, duration, number, rate, size};
use onefold_client::Counter;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The cost of a file apart from its bytes, as bytes that take the same time.
const FILE_BYTES: u64 = 32 << 10;
/// Rates cover this much time.
const WINDOW: Duration = Duration::from_secs(20);
/// How often the counters are recorded.
const STEP: Duration = Duration::from_millis(500);

/// The counters of one operation.
#[derive(Debug)]
pub struct Course {
    began: Instant,
    files: AtomicU64,
    done_bytes: AtomicU64,
    logical_bytes: AtomicU64,
    data_bytes: AtomicU64,
    found_files: AtomicU64,
    found_bytes: AtomicU64,
    errors: AtomicU64,
    warnings: AtomicU64,
    has_totals: AtomicBool,
    /// Time, work done and data moved until then; the newest last.
    notes: Mutex<VecDeque<(Instant, u64, u64)>>,
}

/// The progress at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Time since the beginning.
    pub spent: Duration,
    /// Files done.
    pub files: u64,
    /// Bytes done.
    pub bytes: u64,
    /// Files in total, or found so far.
    pub of_files: u64,
    /// Bytes in total, or found so far.
    pub of_bytes: u64,
    /// Whether the totals are final.
    pub has_totals: bool,
    /// Recent rate of data read or written, bytes per second.
    pub bytes_per_second: u64,
    /// Estimated time left. `None`: unknown yet.
    pub left: Option<Duration>,
    /// Problems so far.
    pub errors: u64,
    /// Problems so far that leave nothing missing.
    pub warnings: u64,
}

impl Default for Course {
    fn default() -> Course {
        let zero = AtomicU64::default;
        let began = Instant::now();
        Course {
            began,
            files: zero(),
            done_bytes: zero(),
            logical_bytes: zero(),
            data_bytes: zero(),
            found_files: zero(),
            found_bytes: zero(),
            errors: zero(),
            warnings: zero(),
            has_totals: AtomicBool::new(false),
            notes: Mutex::new(VecDeque::from([(began, 0, 0)])),
        }
    }
}

impl Course {
    /// Counts what a monitor is told.
    pub fn count(&self, counter: Counter, increment: u64) {
        let counter = match counter {
            Counter::Files | Counter::Others | Counter::KeptFiles | Counter::InTheWay | Counter::DamagedFiles => &self.files,
            Counter::DoneBytes => &self.done_bytes,
            Counter::LogicalBytes => &self.logical_bytes,
            Counter::DataBytes => &self.data_bytes,
            Counter::Found => &self.found_files,
            Counter::FoundBytes => &self.found_bytes,
            Counter::Errors => &self.errors,
            Counter::Warnings => &self.warnings,
            _ => return,
        };
        counter.fetch_add(increment, Ordering::Relaxed);
    }

    /// Declares the totals final.
    pub fn set_totals(&self) {
        self.has_totals.store(true, Ordering::Relaxed);
    }

    /// Returns the progress now.
    pub fn standing(&self) -> Standing {
        self.standing_at(Instant::now())
    }

    fn standing_at(&self, now: Instant) -> Standing {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (files, data_bytes) = (get(&self.files), get(&self.data_bytes));
        // Work that counts only whole files has no other bytes.
        let bytes = get(&self.done_bytes).max(get(&self.logical_bytes));
        // Files may grow while they are read, and new ones may appear.
        let (of_files, of_bytes) = (get(&self.found_files).max(files), get(&self.found_bytes).max(bytes));
        let has_totals = self.has_totals.load(Ordering::Relaxed);
        let done = work(files, bytes);
        let (took, worked, moved) = self.lately(now, done, data_bytes);
        let seconds = took.as_secs_f64().max(1e-3);
        let left = (has_totals && worked > 0).then(|| (work(of_files, of_bytes) - done) as f64 * seconds / worked as f64);
        Standing {
            spent: now - self.began,
            files,
            bytes,
            of_files,
            of_bytes,
            has_totals,
            bytes_per_second: (moved as f64 / seconds) as u64,
            left: left.and_then(|left| Duration::try_from_secs_f64(left).ok()),
            errors: get(&self.errors),
            warnings: get(&self.warnings),
        }
    }

    /// Returns how much was done lately, and in what time.
    fn lately(&self, now: Instant, done: u64, data_bytes: u64) -> (Duration, u64, u64) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.back().is_none_or(|(at, ..)| now.saturating_duration_since(*at) >= STEP) {
            notes.push_back((now, done, data_bytes));
        }
        // One note may be older: the window begins there.
        while notes.get(1).is_some_and(|(at, ..)| now.saturating_duration_since(*at) >= WINDOW) {
            notes.pop_front();
        }
        let (at, done_then, data_then) = notes.front().copied().unwrap_or((now, done, data_bytes));
        (now.saturating_duration_since(at), done.saturating_sub(done_then), data_bytes.saturating_sub(data_then))
    }
}

fn work(files: u64, bytes: u64) -> u64 {
    bytes.saturating_add(files.saturating_mul(FILE_BYTES))
}

impl Standing {
    /// Returns done and total work, for a bar; (0, 1) while the total is unknown.
    pub fn share(&self) -> (u64, u64) {
        if self.has_totals { (work(self.files, self.bytes), work(self.of_files, self.of_bytes).max(1)) } else { (0, 1) }
    }

    /// Formats the progress for people.
    pub fn line(&self) -> String {
        let rate = rate(self.bytes_per_second, Duration::from_secs(1));
        let so_far = format!("{}, {}", size(self.bytes), counted(self.files, "file", "files"));
        if !self.has_totals {
            return format!("{so_far}, {rate}, found {} in {} so far", size(self.of_bytes), counted(self.of_files, "file", "files"));
        }
        let left = self.left.filter(|left| !left.is_zero());
        let left = left.map_or_else(String::new, |left| format!(", {} left", duration(Duration::from_secs(left.as_secs().max(1)))));
        let of_files = counted(self.of_files, "file", "files");
        format!("{} of {}, {} of {of_files}, {rate}{left}", size(self.bytes), size(self.of_bytes), number(self.files))
    }

    /// Formats the progress for programs: an event on its own line.
    pub fn to_json(self) -> Value {
        json!({
            "event": "progress",
            "seconds": self.spent.as_secs_f64(),
            "files": self.files,
            "bytes": self.bytes,
            "of_files": self.of_files,
            "of_bytes": self.of_bytes,
            "has_totals": self.has_totals,
            "bytes_per_second": self.bytes_per_second,
            "seconds_left": self.left.map(|left| left.as_secs_f64().ceil()),
            "errors": self.errors,
            "warnings": self.warnings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_14_time_left_is_told_from_what_there_is_to_do_and_what_was_done_lately() {
        let course = Course::default();
        let at = |seconds| course.began + Duration::from_secs(seconds);
        course.count(Counter::Found, 100);
        course.count(Counter::FoundBytes, 1000 << 20);
        course.count(Counter::DataBytes, 100 << 20);
        course.count(Counter::DoneBytes, 100 << 20);
        course.count(Counter::Files, 10);
        let early = course.standing_at(at(10));
        assert_eq!((early.left, early.share(), early.bytes_per_second), (None, (0, 1), 10 << 20));
        assert_eq!(early.line(), "100MiB, 10 files, 10MiB/s, found 1000MiB in 100 files so far");
        course.set_totals();
        let known = course.standing_at(at(10));
        assert_eq!(known.left.map(|left| left.as_secs()), Some(90));
        assert_eq!(known.line(), "100MiB of 1000MiB, 10 of 100 files, 10MiB/s, 1m 30s left");
        // The rest is faster, and what was long ago does not count any more.
        course.count(Counter::DoneBytes, 800 << 20);
        course.count(Counter::Files, 80);
        course.standing_at(at(20));
        course.count(Counter::DoneBytes, 50 << 20);
        course.count(Counter::Files, 5);
        let late = course.standing_at(at(40));
        assert_eq!(late.left.map(|left| left.as_secs()), Some(20));
        assert_eq!(late.to_json()["seconds_left"], 20.0);
    }
}
