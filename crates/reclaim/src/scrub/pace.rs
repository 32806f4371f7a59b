//! How fast a scrub reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How fast a scrub reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubRate {
    /// As fast as the device gives it.
    Unlimited,
    /// At most so many bytes a second, at least 1.
    BytesPerSecond(u64),
    /// A quarter of the time: where others keep the device busy reading takes longer, and so do the pauses.
    Quarter,
}

/// A longer wait is made in steps, so that a scrub that is to stop does.
const STEP: Duration = Duration::from_millis(50);
/// The longest pause of a scrub that reads a quarter of the time.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// What was not read in time is not made up for, except for so long.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Keeps a scrub to its rate.
pub(super) struct Pace<'a> {
    rate: ScrubRate,
    stop: &'a AtomicBool,
    /// When the next bytes may be read.
    due: Instant,
    /// When the last wait was over.
    worked_since: Instant,
}

impl<'a> Pace<'a> {
    pub(super) fn new(rate: ScrubRate, stop: &'a AtomicBool) -> Pace<'a> {
        let now = Instant::now();
        Pace { rate, stop, due: now, worked_since: now }
    }

    /// Waits until `bytes` may be read; `false`: the scrub is to stop, which `go_on` is asked meanwhile.
    pub(super) fn wait_while(&mut self, bytes: u64, go_on: &dyn Fn() -> bool) -> bool {
        self.wait_until_due(bytes, &|| go_on());
        !self.stop.load(Ordering::Relaxed) && go_on()
    }

    /// Waits until `bytes` may be read; `false`: the scrub is to stop, as another thread says.
    pub(super) fn wait(&mut self, bytes: u64) -> bool {
        self.wait_until_due(bytes, &|| true);
        !self.stop.load(Ordering::Relaxed)
    }

    fn wait_until_due(&mut self, bytes: u64, go_on: &dyn Fn() -> bool) {
        let now = Instant::now();
        match self.rate {
            ScrubRate::Unlimited => {}
            ScrubRate::BytesPerSecond(rate) => {
                let oldest = now.checked_sub(CATCH_UP).unwrap_or(now);
                let start = self.due.max(oldest);
                self.sleep_until(start, go_on);
                self.due = start + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            }
            ScrubRate::Quarter => self.sleep_until(now + (now.duration_since(self.worked_since) * 3).min(LONGEST_REST), go_on),
        }
        self.worked_since = Instant::now();
    }

    fn sleep_until(&self, end: Instant, go_on: &dyn Fn() -> bool) {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.load(Ordering::Relaxed) || !go_on() {
                return;
            }
            std::thread::sleep(left.min(STEP));
        }
    }
}
