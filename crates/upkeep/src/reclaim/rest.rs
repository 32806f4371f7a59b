//! How long the reclaiming thread rests between its steps (M0.20: limited so that other load is not slowed).
//!
//! A step uses processor and disk for some milliseconds, and readers and writers may have to wait meanwhile. So while
//! there are any, steps take only a 250th of the time. Then fewer than one request in a hundred meets a step, and the
//! 99th percentile does not change. Work that takes too long that way gets a fortieth of the time after a while.
//!
//! While nobody reads or writes, steps follow each other quickly. When the disk gets full, or half of the container
//! data is dead, reclamation takes priority. No rest is longer than half a minute, so steps longer than an eighth of a
//! second take a greater share.

use crate::Clock;
use onefold_engine::Engine;
use onefold_ground::Space;
use std::cell::Cell;
use std::time::Duration;

/// The length of a rest, as a multiple of the step before it, while nobody reads or writes.
const REST_ALONE: u32 = 1;
/// The same while others read or write, and after this has gone on for too long.
const REST_BESIDE_OTHERS: u32 = 249;
const REST_WHEN_BEHIND: u32 = 39;
const BEHIND_AFTER: Duration = Duration::from_secs(300);
/// The same when space is short.
const REST_WHEN_URGENT: u32 = 3;
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(30);
/// Space is short when this share of the disk is used, or of the store unused, in percent.
const URGENT_DISK_PERCENT: u64 = 95;
const URGENT_UNUSED_PERCENT: u64 = 50;
/// A rest is slept in parts, so that a thread that must stop does so soon.
const NAP: Duration = Duration::from_millis(50);

/// What determines the length of a rest.
trait Load {
    /// Returns a number that grows whenever others read or write.
    fn served_bytes(&self) -> u64;
    /// Returns whether space is short.
    fn is_urgent(&self) -> bool;
}

/// The rests of a thread that works beside clients.
pub struct Rests<'a> {
    load: &'a dyn Load,
    clock: &'a dyn Clock,
    stopping: &'a dyn Fn() -> bool,
    begun: Duration,
    worked_since: Cell<Duration>,
    served: Cell<u64>,
}

impl<'a> Rests<'a> {
    /// Call before the first step. `stopping` is called during rests.
    pub fn new(engine: &'a Engine, clock: &'a dyn Clock, stopping: &'a dyn Fn() -> bool) -> Rests<'a> {
        Rests::beside(engine, clock, stopping)
    }

    fn beside(load: &'a dyn Load, clock: &'a dyn Clock, stopping: &'a dyn Fn() -> bool) -> Rests<'a> {
        let now = clock.elapsed();
        Rests { load, clock, stopping, begun: now, worked_since: Cell::new(now), served: Cell::new(load.served_bytes()) }
    }

    /// Rests between two steps. Returns `false` if the thread must stop.
    pub fn rest(&self) -> bool {
        let served = self.load.served_bytes();
        let now = self.clock.elapsed();
        let is_behind = now.saturating_sub(self.begun) >= BEHIND_AFTER;
        let times = if served == self.served.get() {
            REST_ALONE
        } else if self.load.is_urgent() {
            REST_WHEN_URGENT
        } else if is_behind {
            REST_WHEN_BEHIND
        } else {
            REST_BESIDE_OTHERS
        };
        let until = now + (now.saturating_sub(self.worked_since.get()) * times).min(LONGEST);
        loop {
            let left = until.saturating_sub(self.clock.elapsed());
            if left.is_zero() || (self.stopping)() {
                break;
            }
            self.clock.sleep(left.min(NAP));
        }
        // What is served during the next step counts too, not only during this rest.
        self.served.set(served);
        self.worked_since.set(self.clock.elapsed());
        !(self.stopping)()
    }
}

impl Load for Engine {
    fn served_bytes(&self) -> u64 {
        Engine::served_bytes(self)
    }

    fn is_urgent(&self) -> bool {
        // Chunks can be on another disk than the rest. If the fill level of a disk is unknown, it counts as not full.
        let mut spaces = self.space().into_iter().chain(self.ground().space());
        let is_full = |space: Space| {
            percent_of(space.total_bytes - space.free_bytes.min(space.total_bytes), space.total_bytes) >= URGENT_DISK_PERCENT
        };
        spaces.any(is_full) || percent_of(self.dead_bytes(), self.unique_bytes()) >= URGENT_UNUSED_PERCENT
    }
}

fn percent_of(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100) / whole.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::Still;

    #[derive(Default)]
    struct Scene {
        served: Cell<u64>,
        is_urgent: Cell<bool>,
    }

    impl Load for Scene {
        fn served_bytes(&self) -> u64 {
            self.served.get()
        }

        fn is_urgent(&self) -> bool {
            self.is_urgent.get()
        }
    }

    #[test]
    fn m0_20_those_who_read_and_write_come_first_unless_room_is_short() {
        let (scene, clock) = (Scene::default(), Still::default());
        let rests = Rests::beside(&scene, &clock, &|| false);
        // How long it rests after so much work, beside so much load, milliseconds.
        let rest_ms = |worked_ms: u64, served: u64, is_urgent: bool| {
            scene.served.set(scene.served.get() + served);
            scene.is_urgent.set(is_urgent);
            clock.sleep(Duration::from_millis(worked_ms));
            let before = clock.elapsed();
            assert!(rests.rest());
            (clock.elapsed() - before).as_millis()
        };
        assert_eq!([rest_ms(10, 0, false), rest_ms(10, 1, false), rest_ms(10, 0, false)], [10, 2490, 10]);
        assert_eq!([rest_ms(10, 1, true), rest_ms(10, 0, true), rest_ms(5000, 1, false)], [30, 10, 30_000]);
        // What takes so long is behind.
        assert_eq!([rest_ms(270_000, 0, false), rest_ms(10, 1, false)], [30_000, 390]);
        assert_eq!([percent_of(1, 2), percent_of(0, 0), percent_of(3, 2)], [50, 0, 150]);
    }

    #[test]
    fn a_thread_that_is_to_stop_rests_no_longer() {
        let (scene, clock) = (Scene::default(), Still::default());
        let is_over = || clock.elapsed() >= Duration::from_millis(1100);
        let rests = Rests::beside(&scene, &clock, &is_over);
        scene.served.set(1);
        clock.sleep(Duration::from_secs(1));
        assert!(!rests.rest());
        assert_eq!(clock.elapsed(), Duration::from_millis(1100));
    }
}
