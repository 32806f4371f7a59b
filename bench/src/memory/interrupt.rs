//! What ^C and SIGTERM do: the daemon ends, requests to it fail, and what was made is removed on the way out.

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);
static DAEMON: Mutex<Option<Pid>> = Mutex::new(None);

/// Begins to catch the signals.
pub fn catch() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("signals cannot be caught")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            IS_INTERRUPTED.store(true, Ordering::SeqCst);
            end_daemon();
        }
    });
    Ok(())
}

/// Errors: a signal came.
pub fn check() -> Result<()> {
    if IS_INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// Has signals end this process, until the result is dropped. Drop it as soon as the process was waited for: later,
/// another one may have its number.
pub fn ends(pid: u32) -> Ends {
    *lock() = pid.try_into().ok().map(Pid::from_raw);
    if IS_INTERRUPTED.load(Ordering::SeqCst) {
        end_daemon();
    }
    Ends(())
}

/// See [`ends`].
pub struct Ends(());

impl Drop for Ends {
    fn drop(&mut self) {
        *lock() = None;
    }
}

fn end_daemon() {
    if let Some(pid) = *lock() {
        // The store is thrown away. A daemon that lacks memory may be slow to end by itself.
        let _ = kill(pid, Signal::SIGKILL);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Pid>> {
    DAEMON.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
