//! How long the thread that gives space back rests between its steps (M0.20: limited against the load of others).
//!
//! A step takes processor and disk for some milliseconds, in which whoever reads or writes may have to wait. So while somebody does, the steps are
//! a fortieth of the time: few requests meet one, and their 99th percentile stays what it was. Where nobody does, steps follow each other
//! quickly. Where the disk gets full, or half of the store is unused, giving back is what everybody waits for.

use onefold_engine::Engine;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Rests by the length of the step before, while nobody reads or writes.
const REST_ALONE: u32 = 1;
/// The same while somebody does.
const REST_BESIDE_OTHERS: u32 = 39;
/// The same when room is short.
const REST_WHEN_URGENT: u32 = 3;
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(30);
/// Room is short when so much of the disk is used, or of the store unused, in percent.
const URGENT_DISK_PERCENT: u64 = 95;
const URGENT_UNUSED_PERCENT: u64 = 50;
/// A rest is slept in parts, so that whoever is to stop does.
const NAP: Duration = Duration::from_millis(50);

/// The rests of a thread that works beside those who are served.
pub struct Rests<'a> {
    engine: &'a Engine,
    stopping: &'a dyn Fn() -> bool,
    worked_since: Cell<Instant>,
    served: Cell<u64>,
}

impl<'a> Rests<'a> {
    /// Before the first step. `stopping` is asked while it rests.
    pub fn new(engine: &'a Engine, stopping: &'a dyn Fn() -> bool) -> Rests<'a> {
        Rests { engine, stopping, worked_since: Cell::new(Instant::now()), served: Cell::new(engine.served_bytes()) }
    }

    /// Between two steps: rests; `false` if the thread is to stop.
    pub fn rest(&self) -> bool {
        let served = self.engine.served_bytes();
        let times = times(served != self.served.get(), self.is_urgent());
        let until = Instant::now() + (self.worked_since.get().elapsed() * times).min(LONGEST);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || (self.stopping)() {
                break;
            }
            std::thread::sleep(left.min(NAP));
        }
        // What is served during the next step counts, and during this rest.
        self.served.set(served);
        self.worked_since.set(Instant::now());
        !(self.stopping)()
    }

    fn is_urgent(&self) -> bool {
        // Where nobody can tell how full the disk is, it is not taken for full.
        let is_full = self.engine.space().is_ok_and(|space| {
            percent_of(space.total_bytes - space.free_bytes.min(space.total_bytes), space.total_bytes) >= URGENT_DISK_PERCENT
        });
        is_full || percent_of(self.engine.dead_bytes(), self.engine.unique_bytes()) >= URGENT_UNUSED_PERCENT
    }
}

fn percent_of(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100) / whole.max(1)
}

fn times(is_beside_others: bool, is_urgent: bool) -> u32 {
    match (is_beside_others, is_urgent) {
        (false, _) => REST_ALONE,
        (true, false) => REST_BESIDE_OTHERS,
        (true, true) => REST_WHEN_URGENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m0_20_those_who_read_and_write_come_first_unless_room_is_short() {
        assert_eq!([times(false, false), times(true, false), times(true, true), times(false, true)], [1, 39, 3, 1]);
        assert_eq!([percent_of(1, 2), percent_of(0, 0), percent_of(3, 2)], [50, 0, 150]);
    }
}
