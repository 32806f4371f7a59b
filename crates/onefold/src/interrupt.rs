//! ^C and SIGTERM during a command that ends by itself. A signal sets a flag that the work checks, so that it stops at
//! a clean place. A second signal ends the process at once; that cannot lose anything acknowledged either.

use crate::failure::{Exit, Failure, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a sleep looks for a signal.
const SIGNAL_STEP: Duration = Duration::from_millis(50);

/// Records whether a signal came.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    came: Arc<AtomicBool>,
}

impl Interrupt {
    /// Watches for the signals from here on.
    pub fn watch() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset and sets it, the second finds it set and ends the
            // process.
            signal_hook::flag::register_conditional_shutdown(signal, Exit::Interrupted as i32, Arc::clone(&interrupt.came))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupt.came)))
                .map_err(|error| Failure::cannot_run(format!("cannot watch for signals: {error}")))?;
        }
        Ok(interrupt)
    }

    /// Watches for another signal.
    pub fn watch_also(&self, signal: i32) -> Result<()> {
        let watched = signal_hook::flag::register(signal, Arc::clone(&self.came));
        watched.map(drop).map_err(|error| Failure::cannot_run(format!("cannot watch for signals: {error}")))
    }

    /// Returns whether to stop.
    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// Sleeps, and wakes up soon after a signal. Returns whether one came.
    pub fn sleep(&self, span: Duration) -> bool {
        let until = Instant::now() + span;
        while !self.came() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(SIGNAL_STEP));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_at_a_signal() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.sleep(Duration::from_millis(1)));
        let began = Instant::now();
        let signalled = interrupt.clone();
        let signal = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            signalled.came.store(true, Ordering::Relaxed);
        });
        assert!(interrupt.sleep(Duration::from_secs(600)) && began.elapsed() < Duration::from_secs(300));
        signal.join().unwrap();
    }
}
