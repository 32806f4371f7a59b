//! How long the thread that gives space back rests between its steps (M0.20: limited against the load of others).
//!
//! A step takes processor and disk for some milliseconds, in which whoever reads or writes may have to wait. So while somebody does, the steps are
//! a 250th of the time: then fewer than one request in a hundred meets one, and the 99th percentile stays what it was. Work that does not come to its
//! end like that takes a fortieth after a while. Where nobody reads or writes, steps follow each other quickly. Where the disk gets full, or half of what containers have is of chunks that are removed already, giving back is what everybody waits for. No rest is longer
//! than half a minute, so a step of more than an eighth of a second takes a greater share.

use crate::Clock;
use onefold_engine::Engine;
use std::cell::Cell;
use std::time::Duration;

/// Rests by the length of the step before, while nobody reads or writes.
const REST_ALONE: u32 = 1;
/// The same while somebody does, and when that was not enough for so long.
const REST_BESIDE_OTHERS: u32 = 249;
const REST_WHEN_BEHIND: u32 = 39;
const BEHIND_AFTER: Duration = Duration::from_secs(300);
/// The same when room is short.
const REST_WHEN_URGENT: u32 = 3;
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(30);
/// Room is short when so much of the disk is used, or of the store unused, in percent.
const URGENT_DISK_PERCENT: u64 = 95;
const URGENT_UNUSED_PERCENT: u64 = 50;
/// A rest is slept in parts, so that whoever is to stop does.
const NAP: Duration = Duration::from_millis(50);

/// What the length of a rest depends on.
trait Load {
    /// Grows whenever somebody reads or writes.
    fn served_bytes(&self) -> u64;
    /// Whether room is short.
    fn is_urgent(&self) -> bool;
}

/// The rests of a thread that works beside those who are served.
pub struct Rests<'a> {
    load: &'a dyn Load,
    clock: &'a dyn Clock,
    stopping: &'a dyn Fn() -> bool,
    begun: Duration,
    worked_since: Cell<Duration>,
    served: Cell<u64>,
}

impl<'a> Rests<'a> {
    /// Before the first step. `stopping` is asked while it rests.
    pub fn new(engine: &'a Engine, clock: &'a dyn Clock, stopping: &'a dyn Fn() -> bool) -> Rests<'a> {
        Rests::beside(engine, clock, stopping)
    }

    fn beside(load: &'a dyn Load, clock: &'a dyn Clock, stopping: &'a dyn Fn() -> bool) -> Rests<'a> {
        let now = clock.elapsed();
        Rests { load, clock, stopping, begun: now, worked_since: Cell::new(now), served: Cell::new(load.served_bytes()) }
    }

    /// Between two steps: rests; `false` if the thread is to stop.
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
        // What is served during the next step counts, and during this rest.
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
        // Where nobody can tell how full the disk is, it is not taken for full.
        let is_full = self.space().is_ok_and(|space| {
            percent_of(space.total_bytes - space.free_bytes.min(space.total_bytes), space.total_bytes) >= URGENT_DISK_PERCENT
        });
        is_full || percent_of(self.dead_bytes(), self.unique_bytes()) >= URGENT_UNUSED_PERCENT
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
