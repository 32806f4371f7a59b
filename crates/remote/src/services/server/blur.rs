//! Random delays: how long a supply took is hardly seen in the answer behind it.
//!
//! A supply takes longer if its chunks are new to the store, by fractions of a millisecond. An answer that comes a
//! random time later, up to [`MOST`], tells with a probability of that difference divided by [`MOST`], and nothing
//! otherwise, whenever the client sends. Fixed steps in time would hide nothing from a client that sends right before a
//! step. Many supplies one after the other take a time that still tells (`docs/security.md`).

use std::time::{Duration, Instant};

/// The longest delay.
const MOST: Duration = Duration::from_millis(20);

/// Returns a moment that is a random time from now.
pub(super) fn moment() -> Instant {
    let mut random = [0; 8];
    let most_ns = MOST.as_nanos() as u64;
    // Without random numbers nothing else of the server works.
    let delay_ns = onefold_ground::fill_random(&mut random).map_or(most_ns, |()| u64::from_le_bytes(random) % most_ns.max(1));
    Instant::now() + Duration::from_nanos(delay_ns)
}

/// Waits for a random time.
pub(super) fn wait() {
    std::thread::sleep(moment().saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_ahead_spread_and_not_far_away() {
        let begun = Instant::now();
        let delays: Vec<Duration> = (0..1000).map(|_| moment().saturating_duration_since(Instant::now())).collect();
        assert!(delays.iter().all(|delay| *delay <= MOST));
        for quarter in 0..4 {
            let count = delays.iter().filter(|delay| delay.as_nanos() * 4 / MOST.as_nanos() == quarter).count();
            assert!(begun.elapsed() > Duration::from_millis(100) || (150..350).contains(&count), "{count} of 1000 in a quarter");
        }
    }
}
