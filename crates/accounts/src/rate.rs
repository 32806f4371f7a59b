//! A limit of bytes a second: a token bucket.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How much may come at once after a pause: this much time's worth.
const BURST: Duration = Duration::from_millis(250);

/// A limit of bytes a second, shared by all connections of an account. Takers may go into debt, and the next ones wait
/// until it is paid. So pieces may be larger than the bucket, and everybody waits in turn.
#[derive(Debug)]
pub struct Rate(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    bytes_per_second: Option<u64>,
    /// When the bucket is empty of debt. Before now: there is room.
    free_at: Instant,
}

impl Rate {
    /// Returns a limit. `None`: none.
    pub fn new(bytes_per_second: Option<u64>) -> Rate {
        Rate(Mutex::new(Bucket { bytes_per_second, free_at: Instant::now() }))
    }

    /// Changes the limit. Whoever waits already goes on waiting.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        self.0.lock().bytes_per_second = bytes_per_second;
    }

    /// Takes bytes, and returns how long the caller has to wait until they may pass.
    pub fn delay(&self, bytes: u64, now: Instant) -> Duration {
        let mut bucket = self.0.lock();
        let Some(rate) = bucket.bytes_per_second.filter(|rate| *rate > 0) else { return Duration::ZERO };
        let full_at = now.checked_sub(BURST).unwrap_or(now);
        let cost_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let cost = Duration::from_nanos(u64::try_from(cost_ns).unwrap_or(u64::MAX));
        let free_at = bucket.free_at.max(full_at).checked_add(cost);
        // No clock goes that far: wait for a day.
        bucket.free_at = free_at.unwrap_or(now + Duration::from_secs(86_400));
        bucket.free_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_pass_at_the_rate_after_a_small_burst() {
        let rate = Rate::new(Some(1000));
        let start = Instant::now() + Duration::from_secs(10);
        assert_eq!(rate.delay(250, start), Duration::ZERO, "a quarter of a second at once");
        assert_eq!(rate.delay(500, start), Duration::from_millis(500));
        assert_eq!(rate.delay(500, start), Duration::from_secs(1), "the next one waits behind");
        assert_eq!(rate.delay(0, start + Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(rate.delay(1250, start + Duration::from_secs(60)), Duration::from_secs(1), "a pause saves up no more than a burst");
    }

    #[test]
    fn without_a_limit_nobody_waits_and_a_limit_can_be_set_later() {
        let rate = Rate::new(None);
        let now = Instant::now() + Duration::from_secs(10);
        assert_eq!(rate.delay(u64::MAX, now), Duration::ZERO);
        rate.set(Some(1 << 20));
        assert!(rate.delay(2 << 20, now) > Duration::from_secs(1));
        assert!(rate.delay(u64::MAX, now) > Duration::from_secs(1) && rate.delay(u64::MAX, now) > Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn in_any_time_no_more_passes_than_the_rate_and_a_burst(takes in proptest::collection::vec((1u64..10_000, 0u64..3000), 1..40)) {
            const RATE: u64 = 1000;
            let rate = Rate::new(Some(RATE));
            let start = Instant::now() + Duration::from_secs(10);
            let (mut now, mut passed) = (start, 0);
            for (bytes, pause_ms) in takes {
                now += Duration::from_millis(pause_ms);
                now += rate.delay(bytes, now);
                passed += bytes;
                let most = (now - start + BURST).as_secs_f64() * RATE as f64;
                prop_assert!(passed as f64 <= most + 1.0, "{} of {}", passed, most);
            }
        }
    }
}
