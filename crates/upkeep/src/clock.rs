//! Time. Tests have a clock of their own.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clock of long-running work.
pub trait Clock: Debug + Send + Sync {
    /// Returns nanoseconds since 1970 by the machine's clock, which may be set back.
    fn wall_ns(&self) -> i64;
    /// Returns the time since a fixed moment. It never goes back.
    fn elapsed(&self) -> Duration;
    /// Waits for this long.
    fn sleep(&self, time: Duration);
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// Returns a clock that starts at zero.
    pub fn start() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn wall_ns(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A clock that only moves when someone sleeps.
    #[derive(Debug, Default)]
    pub(crate) struct Still(Mutex<Duration>);

    impl Clock for Still {
        fn wall_ns(&self) -> i64 {
            1_000_000_000 + self.elapsed().as_nanos() as i64
        }

        fn elapsed(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn sleep(&self, time: Duration) {
            *self.0.lock().unwrap() += time;
        }
    }
}
