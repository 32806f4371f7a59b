//! The store's clock: the time that the store has seen pass since it was made. The machine's date can be set to
//! anything; this clock cannot.
//!
//! * While the store is open, and between two openings within one boot, time passes as the machine counts it since
//!   boot, including sleep.
//! * Between openings in different boots (or on different machines), the date says how much time has passed. At most
//!   [`UNSEEN_NS`] of it is believed.
//! * The clock never goes back. It lags behind the true time if the machine is off for longer. So a wait by this clock
//!   may be too long, never too short (`docs/decisions/0038-sequence-and-seen-time.md`).
//!
//! The clock is stored in an object of the object index (key `c`). The store notes it with every transaction that
//! relies on it, at a clean close, about once a minute while the store is written to, and otherwise once an hour.

use crate::{Change, Engine, Result, Transaction};
use onefold_ground::time::{Reading, TimeSource};
use onefold_ground::wire::{Reader, WireError, put_signed, put_varint};
use std::time::{Duration, Instant};

/// The key and partition of the note.
const KEY: &[u8] = b"c";
/// Version of the value.
const VERSION: u8 = 1;
/// How often the clock is noted while nothing is written.
const INTERVAL: Duration = Duration::from_secs(3600);
/// The most time between two boots that is believed: a week.
pub(crate) const UNSEEN_NS: u64 = 7 * 24 * HOUR_NS;
/// Dates may differ by this much from the expected date: clocks are adjusted.
const TOLERANCE_NS: u64 = HOUR_NS;
/// A machine that seems to have been off for longer than this more likely has a wrong date.
const LONG_OFF_NS: u64 = 366 * 24 * HOUR_NS;
const HOUR_NS: u64 = 3_600_000_000_000;

/// The seen time at a reading of the machine's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    seen_ns: u64,
    at: Reading,
}

impl Note {
    /// Returns the note at a later reading.
    fn advance(&self, now: Reading) -> Note {
        let passed_ns = if now.boot == self.at.boot {
            now.boot_ns.saturating_sub(self.at.boot_ns)
        } else {
            u64::try_from(now.wall_ns.saturating_sub(self.at.wall_ns)).unwrap_or(0).min(UNSEEN_NS)
        };
        Note { seen_ns: self.seen_ns.saturating_add(passed_ns), at: now }
    }

    /// Returns by how much the date moved differently from the time that passed, if it did.
    fn jump(&self, now: Reading) -> Option<ClockJump> {
        let moved_ns = now.wall_ns.saturating_sub(self.at.wall_ns);
        let (expected_ns, tolerance_ns) = if now.boot == self.at.boot {
            (i64::try_from(now.boot_ns.saturating_sub(self.at.boot_ns)).unwrap_or(i64::MAX), TOLERANCE_NS)
        } else {
            // The machine may have been off for any time: only an implausibly long time is reported.
            (0, if moved_ns > 0 { LONG_OFF_NS } else { TOLERANCE_NS })
        };
        let by_ns = moved_ns.saturating_sub(expected_ns);
        (by_ns.unsigned_abs() > tolerance_ns).then_some(ClockJump { by_ns, last_ns: self.at.wall_ns, now_ns: now.wall_ns })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.seen_ns);
        put_signed(&mut out, self.at.wall_ns);
        out.extend_from_slice(&self.at.boot.to_be_bytes());
        put_varint(&mut out, self.at.boot_ns);
        out
    }

    fn decode(value: &[u8]) -> std::result::Result<Note, WireError> {
        let mut reader = Reader::new(value);
        match reader.u8()? {
            VERSION => {}
            version => return Err(WireError::OutOfRange { what: "version", value: u64::from(version), offset_bytes: 0 }),
        }
        let (seen_ns, wall_ns) = (reader.varint()?, reader.signed()?);
        let boot = u128::from_be_bytes(reader.take(16)?.try_into().expect("sixteen bytes were taken"));
        let at = Reading { wall_ns, boot, boot_ns: reader.varint()? };
        reader.end()?;
        Ok(Note { seen_ns, at })
    }
}

/// The machine's date does not fit the store's last note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    /// How far the date was set forward (below 0: back), nanoseconds.
    pub by_ns: i64,
    /// The date that was noted last, nanoseconds since 1970.
    pub last_ns: i64,
    /// The date now, nanoseconds since 1970.
    pub now_ns: i64,
}

/// The clock of one open store.
#[derive(Debug)]
pub(crate) struct Clock {
    source: TimeSource,
    opened: Note,
    jump: Option<ClockJump>,
    /// When the clock was noted last.
    pub(crate) noted: parking_lot::Mutex<Instant>,
}

impl Clock {
    /// The key of the note.
    pub(crate) const KEY: &[u8] = KEY;

    /// Continues from the note. If it is absent or cannot be read, the clock restarts at 0: every wait by it gets
    /// longer.
    pub(crate) fn open(source: TimeSource, value: Option<Vec<u8>>) -> Clock {
        let now = source.read();
        let note = value.and_then(|value| {
            Note::decode(&value)
                .inspect_err(|error| {
                    tracing::warn!(%error, "the store's clock cannot be read and restarts at 0: \
                protections and waits last longer")
                })
                .ok()
        });
        let opened = note.map_or(Note { seen_ns: 0, at: now }, |note| note.advance(now));
        Clock { source, opened, jump: note.and_then(|note| note.jump(now)), noted: parking_lot::Mutex::new(Instant::now()) }
    }

    fn now(&self) -> Note {
        self.opened.advance(self.source.read())
    }
}

impl Engine {
    /// Returns how much time the store has seen pass since it was made, nanoseconds. It lags behind the true time if
    /// the machine was off for long.
    pub fn seen_ns(&self) -> u64 {
        self.clock.now().seen_ns
    }

    /// Returns the machine's date, right or wrong, nanoseconds since 1970.
    pub fn date_ns(&self) -> i64 {
        self.clock.source.read().wall_ns
    }

    /// Returns whether the date was set by more than an hour, as far as that can be told: since the store was opened,
    /// or between the last note and the opening.
    pub fn clock_jump(&self) -> Option<ClockJump> {
        self.clock.opened.jump(self.clock.source.read()).or(self.clock.jump)
    }

    /// Returns the change that notes the clock. Add it to a transaction that stores the result of [`Engine::seen_ns`].
    pub fn note_of_clock(&self) -> Change {
        *self.clock.noted.lock() = Instant::now();
        (self.objects.own_partition(), KEY.to_vec(), Some(self.clock.now().encode()))
    }

    /// Submits the clock, if it was not noted for an hour. Returns whether it did.
    pub(crate) fn note_clock(&self) -> Result<bool> {
        if self.clock.noted.lock().elapsed() < INTERVAL {
            return Ok(false);
        }
        self.submit(Transaction { changes: vec![self.note_of_clock()], references: Vec::new() })?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY_NS: i64 = 24 * HOUR_NS as i64;

    fn reading(day: i64, boot: u128, boot_day: i64) -> Reading {
        Reading { wall_ns: day * DAY_NS, boot, boot_ns: (boot_day * DAY_NS) as u64 }
    }

    fn days(note: Note) -> i64 {
        (note.seen_ns / DAY_NS as u64) as i64
    }

    #[test]
    fn a_6_within_a_boot_the_date_makes_no_time_pass() {
        let note = Note { seen_ns: 0, at: reading(100, 1, 5) };
        assert_eq!(days(note.advance(reading(101, 1, 6))), 1);
        assert_eq!(days(note.advance(reading(5000, 1, 6))), 1, "the date was set forward");
        assert_eq!(days(note.advance(reading(3, 1, 6))), 1, "the date was set back");
        let later = note.advance(reading(5000, 1, 6)).advance(reading(102, 1, 7));
        assert_eq!(days(later), 2, "and to what it should be");
    }

    #[test]
    fn a_6_between_boots_the_date_is_believed_up_to_a_week() {
        let note = Note { seen_ns: 0, at: reading(100, 1, 5) };
        assert_eq!(days(note.advance(reading(103, 2, 1))), 3);
        assert_eq!(days(note.advance(reading(5000, 2, 1))), 7);
        assert_eq!(days(note.advance(reading(3, 2, 1))), 0, "it never goes back");
        assert_eq!(days(note.advance(reading(3, 2, 1)).advance(reading(103, 2, 3))), 2);
    }

    #[test]
    fn a_6_a_jump_of_more_than_an_hour_is_told() {
        let note = Note { seen_ns: 0, at: reading(100, 1, 5) };
        let jump = |day, boot, boot_day| note.jump(reading(day, boot, boot_day)).map(|jump| jump.by_ns / DAY_NS);
        assert_eq!((jump(101, 1, 6), jump(5000, 1, 6), jump(3, 1, 6)), (None, Some(4899), Some(-98)));
        assert_eq!((jump(130, 2, 0), jump(5000, 2, 0), jump(3, 2, 0)), (None, Some(4900), Some(-97)));
        let in_half_an_hour = Reading { wall_ns: note.at.wall_ns + HOUR_NS as i64 / 2, ..note.at };
        assert_eq!(note.jump(in_half_an_hour), None);
    }

    proptest! {
        #[test]
        fn a_note_is_read_as_written(seen_ns: u64, wall_ns: i64, boot: u128, boot_ns: u64) {
            let note = Note { seen_ns, at: Reading { wall_ns, boot, boot_ns } };
            prop_assert_eq!(Note::decode(&note.encode()).unwrap(), note);
        }

        #[test]
        fn any_readings_are_taken_and_time_never_goes_back(one: (i64, u8, u64), two: (i64, u8, u64), seen_ns: u64) {
            let reading = |(wall_ns, boot, boot_ns): (i64, u8, u64)| Reading { wall_ns, boot: u128::from(boot % 2), boot_ns };
            let note = Note { seen_ns, at: reading(one) };
            prop_assert!(note.advance(reading(two)).seen_ns >= seen_ns);
            let _ = note.jump(reading(two));
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Note::decode(&bytes);
        }
    }
}
