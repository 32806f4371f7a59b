//! The clock of modelled devices.

use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{Timespec, clock_gettime};
use std::cell::Cell;
use std::fmt::Debug;
use std::num::NonZeroU64;

const SECOND_NS: u64 = 1_000_000_000;

pub(super) trait Clock: Debug + Send + Sync {
    /// Returns nanoseconds since some moment. Never goes back.
    fn now_ns(&self) -> u64;
    /// Returns when `now_ns` has reached this time.
    fn sleep_until(&self, time_ns: u64);
}

/// The machine's time since boot.
#[derive(Debug)]
pub(super) struct SystemClock(());

impl SystemClock {
    pub(super) fn new() -> SystemClock {
        SystemClock(())
    }
}

thread_local! {
    /// Whether this thread's sleeps end on time.
    static IS_EXACT: Cell<bool> = const { Cell::new(false) };
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        let now = clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * SECOND_NS + now.tv_nsec as u64
    }

    fn sleep_until(&self, time_ns: u64) {
        // By default the system lets a thread sleep up to 50 microseconds longer, to wake several at once. That is a
        // fifth of an SSD read.
        if !IS_EXACT.replace(true) {
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        let until = Timespec { tv_sec: (time_ns / SECOND_NS) as i64, tv_nsec: (time_ns % SECOND_NS) as _ };
        while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(Errno::INTR) {}
    }
}
