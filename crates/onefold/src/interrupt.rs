//! ^C and SIGTERM during a command that ends by itself. A signal sets a flag that the work checks, so that it stops at
//! a clean place. A second signal ends the process at once; that cannot lose anything acknowledged either.

use crate::failure::{Exit, Failure, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

    /// Returns whether to stop.
    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }
}
