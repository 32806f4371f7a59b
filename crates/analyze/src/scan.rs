//! What all parts of an analysis share: where problems go, and the sign to stop.

use onefold_client::{Monitor, Problem, Severity};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The caller's monitor, and the sums for the result.
pub(crate) struct Scan<'a> {
    pub(crate) monitor: &'a dyn Monitor,
    errors: AtomicU64,
    warnings: AtomicU64,
}

impl<'a> Scan<'a> {
    /// Begins at zero.
    pub(crate) fn new(monitor: &'a dyn Monitor) -> Scan<'a> {
        Scan { monitor, errors: AtomicU64::new(0), warnings: AtomicU64::new(0) }
    }

    /// A file or directory is missing from the figures.
    pub(crate) fn error(&self, path: &Path, reason: impl Display) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.problem(path, reason, Severity::Error);
    }

    /// Worth knowing; nothing is missing that is there.
    pub(crate) fn warn(&self, path: &Path, reason: impl Display) {
        self.warnings.fetch_add(1, Ordering::Relaxed);
        self.problem(path, reason, Severity::Warning);
    }

    fn problem(&self, path: &Path, reason: impl Display, severity: Severity) {
        self.monitor.problem(&Problem::new(path.as_os_str().as_bytes(), reason, severity));
    }

    /// This file is being read.
    pub(crate) fn current(&self, path: &Path) {
        self.monitor.current(path.as_os_str().as_bytes());
    }

    /// Whether the monitor asks to stop.
    pub(crate) fn should_stop(&self) -> bool {
        self.monitor.cancelled()
    }

    /// Files and directories that are missing so far.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Warnings so far.
    pub(crate) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::Relaxed)
    }
}
