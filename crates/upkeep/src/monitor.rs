//! Whom long work tells how far it is.

/// Is told how far long work is.
pub trait Monitor {
    /// A new step with `total` units begins.
    fn step(&self, what: &str, total: u64);
    /// So many units of the step are done.
    fn advance(&self, units: u64);
    /// Whether to stop early.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody is told.
#[derive(Clone, Copy, Debug)]
pub struct NoMonitor;

impl Monitor for NoMonitor {
    fn step(&self, _what: &str, _total: u64) {}
    fn advance(&self, _units: u64) {}
}
