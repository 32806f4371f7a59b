//! The rate at which a scrub reads.

use crate::clock::Clock;
use std::time::Duration;

/// How fast a scrub reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubRate {
    /// As fast as the device can.
    Unlimited,
    /// At most this many bytes a second, at least 1.
    BytesPerSecond(u64),
    /// A quarter of the time. If others keep the device busy, reading takes longer, and so do the pauses.
    Quarter,
}

/// A longer wait is split into steps, so that a scrub that must stop does so soon.
const STEP: Duration = Duration::from_millis(50);
/// The longest pause of a scrub that reads a quarter of the time.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// Reading that fell behind is caught up for at most this long.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Keeps a scrub to its rate. Times are by the clock.
#[derive(Debug)]
pub(super) struct Pace<'a> {
    rate: ScrubRate,
    clock: &'a dyn Clock,
    /// When the next bytes may be read.
    due: Duration,
    /// When the last wait ended.
    worked_since: Duration,
}

impl<'a> Pace<'a> {
    pub(super) fn new(rate: ScrubRate, clock: &'a dyn Clock) -> Pace<'a> {
        let now = clock.elapsed();
        Pace { rate, clock, due: now, worked_since: now }
    }

    /// Returns how many files may be read without a wait in between.
    pub(super) fn files_at_once(&self) -> usize {
        if self.rate == ScrubRate::Unlimited { usize::MAX } else { 1 }
    }

    /// Waits until the next bytes may be read. Calls `go_on` meanwhile. Returns `false` if the scrub must stop.
    pub(super) fn wait(&mut self, go_on: &dyn Fn() -> bool) -> bool {
        let now = self.clock.elapsed();
        match self.rate {
            ScrubRate::Unlimited => {}
            ScrubRate::BytesPerSecond(_) => {
                self.due = self.due.max(now.saturating_sub(CATCH_UP));
                self.sleep_until(self.due, go_on);
            }
            ScrubRate::Quarter => self.sleep_until(now + (now.saturating_sub(self.worked_since) * 3).min(LONGEST_REST), go_on),
        }
        self.worked_since = self.clock.elapsed();
        go_on()
    }

    /// Charges bytes read since the last wait. The next bytes are due when these have taken their time.
    pub(super) fn charge(&mut self, bytes: u64) {
        if let ScrubRate::BytesPerSecond(rate) = self.rate {
            self.due += Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        }
    }

    fn sleep_until(&self, end: Duration, go_on: &dyn Fn() -> bool) {
        loop {
            let left = end.saturating_sub(self.clock.elapsed());
            if left.is_zero() || !go_on() {
                return;
            }
            self.clock.sleep(left.min(STEP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::Still;
    use std::cell::Cell;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn bytes_take_as_long_as_the_rate_says_and_little_is_made_up_for() {
        let clock = Still::default();
        let mut pace = Pace::new(ScrubRate::BytesPerSecond(1000), &clock);
        let mut read = |bytes: u64| {
            let go_on = pace.wait(&|| true);
            pace.charge(bytes);
            assert!(go_on);
            clock.elapsed()
        };
        assert_eq!(read(500), seconds(0.0), "the first bytes are due at once");
        assert_eq!(read(2000), seconds(0.5));
        assert_eq!(read(100), seconds(2.5));
        // After an hour, it catches up for one second only.
        clock.sleep(seconds(3600.0));
        assert_eq!(read(1500), seconds(3602.5));
        assert_eq!(read(0), seconds(3603.0));
    }

    #[test]
    fn a_quarter_of_the_time_is_worked_and_no_pause_is_longer_than_ten_seconds() {
        let clock = Still::default();
        let mut pace = Pace::new(ScrubRate::Quarter, &clock);
        let mut worked = Duration::ZERO;
        for work_ms in [10, 500, 3, 1700] {
            let work = Duration::from_millis(work_ms);
            clock.sleep(work);
            pace.charge(1 << 40);
            worked += work;
            assert!(pace.wait(&|| true) && clock.elapsed() == worked * 4, "{work_ms}");
        }
        let before = clock.elapsed();
        clock.sleep(seconds(60.0));
        assert!(pace.wait(&|| true) && clock.elapsed() == before + seconds(70.0));
    }

    #[test]
    fn an_unlimited_scrub_waits_for_nothing() {
        let clock = Still::default();
        let mut pace = Pace::new(ScrubRate::Unlimited, &clock);
        pace.charge(u64::MAX);
        assert!(pace.wait(&|| true) && pace.files_at_once() > 1 && clock.elapsed() == Duration::ZERO);
    }

    #[test]
    fn a_wait_ends_when_the_scrub_is_to_stop() {
        let clock = Still::default();
        let mut pace = Pace::new(ScrubRate::BytesPerSecond(1), &clock);
        pace.charge(3600);
        let asked = Cell::new(0);
        assert!(!pace.wait(&|| asked.replace(asked.get() + 1) < 3));
        assert!(clock.elapsed() <= STEP * 3, "{:?}", clock.elapsed());
    }
}
