//! The memory that the sessions of an end may make it hold.
//!
//! A part is guaranteed: each session gets [`GUARANTEE_BYTES`] when it begins, or does not begin. It is enough for
//! [`GUARANTEED_CHANNELS`] channels with windows of [`FIRST_WINDOW_BYTES`] in both directions. The rest is elastic:
//! windows grow into it, but a session never takes more than it leaves free. So a lone session gets half of it, and
//! whoever comes next gets half of what is left.
//!
//! Invariant: `guaranteed <= guaranteed_limit` and `elastic <= total - guaranteed_limit`, so the sum stays within.

use parking_lot::Mutex;
use std::sync::Arc;

/// The window that a channel begins with in each direction.
pub(super) const FIRST_WINDOW_BYTES: u64 = 128 << 10;
/// The largest window: enough for 150 MB/s at a round trip of 50 ms and an acknowledgement every 20 ms.
pub(super) const MOST_WINDOW_BYTES: u64 = 16 << 20;
/// The channels of a session that need nothing of the elastic part.
pub(super) const GUARANTEED_CHANNELS: usize = 4;
/// What a session has for sure: 1 MiB, so 64 sessions have half of the usual budget.
pub(super) const GUARANTEE_BYTES: u64 = 2 * FIRST_WINDOW_BYTES * GUARANTEED_CHANNELS as u64;

/// A bound of memory for all sessions together: windows, and data that was not acknowledged.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    guaranteed_limit: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    guaranteed: u64,
    elastic: u64,
    high_water: u64,
}

impl Budget {
    /// The budget of a server, unless another one is given: 128 MiB.
    pub const USUAL_BYTES: u64 = 128 << 20;

    /// Creates a budget. At most three quarters are guaranteed to sessions, at 1 MiB each.
    pub fn new(total_bytes: u64, sessions: usize) -> Arc<Budget> {
        let guaranteed_limit = (total_bytes / 4 * 3).min(sessions as u64 * GUARANTEE_BYTES);
        Arc::new(Budget { total: total_bytes, guaranteed_limit, used: Mutex::default() })
    }

    /// Returns the bound.
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Returns what windows take now.
    pub fn used_bytes(&self) -> u64 {
        let used = self.used.lock();
        used.guaranteed + used.elastic
    }

    /// Returns the most that windows ever took.
    pub fn high_water_bytes(&self) -> u64 {
        self.used.lock().high_water
    }

    /// Gives a session its guarantee. `None`: there is no room.
    pub(super) fn admit(self: &Arc<Budget>) -> Option<Share> {
        let mut used = self.used.lock();
        if used.guaranteed + GUARANTEE_BYTES > self.guaranteed_limit {
            return None;
        }
        used.guaranteed += GUARANTEE_BYTES;
        used.high_water = used.high_water.max(used.guaranteed + used.elastic);
        drop(used);
        Some(Share { budget: Arc::clone(self), elastic: 0, channels: 0 })
    }
}

/// The part of a session.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    elastic: u64,
    /// Channels that use the guarantee.
    channels: usize,
}

impl Share {
    /// Takes some of the elastic part, or nothing.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        let limit = self.budget.total - self.budget.guaranteed_limit;
        let mut used = self.budget.used.lock();
        let elastic = used.elastic + bytes;
        if bytes == 0 {
            return true;
        }
        if elastic > limit || self.elastic + bytes > limit - elastic {
            return false;
        }
        used.elastic = elastic;
        used.high_water = used.high_water.max(used.guaranteed + elastic);
        self.elastic += bytes;
        true
    }

    /// Gives back some of the elastic part.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.elastic);
        self.elastic -= bytes;
        self.budget.used.lock().elastic -= bytes;
    }

    /// Returns whether the session has more than is free, so that it should give back.
    pub(super) fn is_crowded(&self) -> bool {
        if self.elastic == 0 {
            return false;
        }
        let limit = self.budget.total - self.budget.guaranteed_limit;
        self.elastic > limit - self.budget.used.lock().elastic
    }

    /// Takes the first windows of a channel, of `window` bytes each. Returns how much of them is of the guarantee.
    pub(super) fn open(&mut self, window: u64) -> Option<u64> {
        let guaranteed = if self.channels < GUARANTEED_CHANNELS { 2 * window.min(FIRST_WINDOW_BYTES) } else { 0 };
        if !self.grow(2 * window - guaranteed) {
            return None;
        }
        self.channels += usize::from(guaranteed > 0);
        Some(guaranteed)
    }

    /// Gives back the windows of a channel.
    pub(super) fn close(&mut self, guaranteed: u64, windows: u64) {
        self.channels -= usize::from(guaranteed > 0);
        self.shrink(windows - guaranteed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.budget.used.lock();
        used.guaranteed -= GUARANTEE_BYTES;
        used.elastic -= self.elastic;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sixty_four_sessions_fit_and_a_lone_one_gets_two_of_the_largest_windows() {
        let budget = Budget::new(Budget::USUAL_BYTES, 64);
        let mut shares: Vec<Share> = (0..64).map(|_| budget.admit().unwrap()).collect();
        assert!(budget.admit().is_none());
        assert!(shares[0].grow(2 * MOST_WINDOW_BYTES));
        assert!(!shares[0].grow(1), "half of it is left to others");
        assert!(shares[1].grow(MOST_WINDOW_BYTES));
        assert!(shares[0].is_crowded());
        drop(shares);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_channel_is_charged_for_the_windows_that_it_has() {
        let budget = Budget::new(Budget::USUAL_BYTES, 1);
        let mut share = budget.admit().unwrap();
        let opened: Vec<Option<u64>> = [32 << 10, 1 << 20, 16 << 20, 128 << 10, 128 << 10].map(|window| share.open(window)).into();
        assert_eq!(opened, [Some(64 << 10), Some(256 << 10), Some(256 << 10), Some(256 << 10), Some(0)]);
        assert_eq!(budget.used_bytes(), GUARANTEE_BYTES + (2 << 20) - (256 << 10) + (32 << 20) - (256 << 10) + (256 << 10));
        assert_eq!(share.open(16 << 20), None, "half of it is left to others");
        // The first one grew.
        assert!(share.grow(1 << 20));
        share.close(64 << 10, (64 << 10) + (1 << 20));
        for (guaranteed, window) in [(256 << 10, 1 << 20), (256 << 10, 16 << 20), (256 << 10, 128 << 10), (0, 128 << 10)] {
            share.close(guaranteed, 2 * window);
        }
        assert_eq!(budget.used_bytes(), GUARANTEE_BYTES);
    }

    proptest! {
        #[test]
        fn the_sum_stays_within_the_total(
            total in 1u64 << 20..1 << 28, steps in prop::collection::vec((0usize..8, 0u8..6, 0u64..1 << 25), 0..200),
        ) {
            let budget = Budget::new(total, 64);
            let mut shares: Vec<Option<Share>> = (0..8).map(|_| None).collect();
            for (at, what, bytes) in steps {
                match (&mut shares[at], what) {
                    (slot @ None, _) => *slot = budget.admit(),
                    (slot, 0) => *slot = None,
                    (Some(share), 1) => share.shrink(bytes),
                    (Some(share), 2) => { share.open(bytes % (1 << 24) + 1); }
                    (Some(share), _) => { share.grow(bytes); }
                }
                prop_assert!(budget.high_water_bytes() <= total);
            }
            drop(shares);
            prop_assert_eq!(budget.used_bytes(), 0);
        }
    }
}
