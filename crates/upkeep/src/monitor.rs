//! Reports the progress of long work.

/// Receives the progress of long work.
pub trait Monitor {
    /// Begins a new step with `total` units.
    fn step(&self, what: &str, total: u64);
    /// Reports that this many more units of the step are done.
    fn advance(&self, units: u64);
    /// Returns whether to stop early.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug)]
pub struct NoMonitor;

impl Monitor for NoMonitor {
    fn step(&self, _what: &str, _total: u64) {}
    fn advance(&self, _units: u64) {}
}
