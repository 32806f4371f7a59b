//! The protection of a backup: until a moment that was set, nobody can remove it.
//!
//! A protection is an object beside the backup's record, under the key `k` + id; it goes with the record. It can always be prolonged;
//! shortening it is a deletion in the eyes of append-only mode. One that cannot be read protects for ever, until it is set anew.
//!
//! A protection is over when its date is past *and* the store has seen as much time pass as lay before that date when it was set: so a date of the machine
//! that was set forward ends none (`docs/decisions/0038-sequence-and-seen-time.md`).

use onefold_ground::wire::{Reader, WireError, put_signed, put_varint};

/// The version that values of the object index begin with.
const VERSION: u8 = 1;
/// A date is said as it was asked for, if the protection ends no later than this behind it.
const SAID_AS_ASKED_NS: i64 = 24 * 3_600_000_000_000;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The date of the machine, nanoseconds since 1970.
    pub date_ns: i64,
    /// What the store's clock shows ([`onefold_engine::Engine::seen_ns`]).
    pub seen_ns: u64,
}

/// Until when a backup is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    /// The date that was asked for, nanoseconds since 1970.
    pub(crate) until_ns: i64,
    /// What the store's clock has to show.
    until_seen_ns: u64,
}

impl Protection {
    /// Of one that cannot be read.
    pub(crate) const FOR_EVER: Protection = Protection { until_ns: i64::MAX, until_seen_ns: u64::MAX };

    /// As an object says.
    pub(crate) fn of(value: &[u8]) -> Protection {
        decode(value).unwrap_or(Protection::FOR_EVER)
    }

    pub(crate) fn new(until_ns: i64, now: Now) -> Protection {
        let left_ns = u64::try_from(until_ns.saturating_sub(now.date_ns)).unwrap_or(0);
        Protection { until_ns, until_seen_ns: now.seen_ns.saturating_add(left_ns) }
    }

    /// When it will be over, as far as can be told now, nanoseconds since 1970; `None`: it is.
    pub(crate) fn end(self, now: Now) -> Option<i64> {
        if self.until_ns <= now.date_ns && self.until_seen_ns <= now.seen_ns {
            return None;
        }
        let left_ns = i64::try_from(self.until_seen_ns.saturating_sub(now.seen_ns)).unwrap_or(i64::MAX);
        let end_ns = now.date_ns.saturating_add(left_ns);
        let is_as_asked = self.until_ns > now.date_ns && end_ns.saturating_sub(self.until_ns) <= SAID_AS_ASKED_NS;
        Some(if is_as_asked { self.until_ns } else { end_ns.max(self.until_ns) })
    }

    /// The same, not ending before this one does by either clock.
    pub(crate) fn not_before(self, earlier: Protection) -> Protection {
        Protection { until_seen_ns: self.until_seen_ns.max(earlier.until_seen_ns), ..self }
    }
}

pub(crate) fn encode(protection: Protection) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_signed(&mut out, protection.until_ns);
    put_varint(&mut out, protection.until_seen_ns);
    out
}

pub(crate) fn decode(value: &[u8]) -> std::result::Result<Protection, WireError> {
    let mut reader = Reader::new(value);
    match reader.u8()? {
        VERSION => {}
        version => return Err(WireError::OutOfRange { what: "version", value: u64::from(version), offset_bytes: 0 }),
    }
    let (until_ns, until_seen_ns) = (reader.signed()?, reader.varint()?);
    reader.end()?;
    Ok(Protection { until_ns, until_seen_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY_NS: i64 = SAID_AS_ASKED_NS;

    fn now(date: i64, seen: i64) -> Now {
        Now { date_ns: date * DAY_NS, seen_ns: (seen * DAY_NS) as u64 }
    }

    #[test]
    fn a_6_a_protection_ends_when_date_and_seen_time_agree() {
        let protection = Protection::new(130 * DAY_NS, now(100, 5));
        let end = |date, seen| protection.end(now(date, seen)).map(|end_ns| end_ns / DAY_NS);
        assert_eq!((end(100, 5), end(129, 34), end(130, 35)), (Some(130), Some(130), None));
        assert_eq!(end(5000, 6), Some(5029), "the date was set forward: the other days are still to pass");
        assert_eq!(end(120, 10), Some(145), "the machine was off: the store has not seen all days");
        assert_eq!(end(3, 40), Some(130), "the date was set back");
    }

    proptest! {
        #[test]
        fn a_protection_is_read_as_written(until_ns: i64, until_seen_ns: u64) {
            let protection = Protection { until_ns, until_seen_ns };
            prop_assert_eq!(decode(&encode(protection)).unwrap(), protection);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }

        #[test]
        fn any_times_are_taken(until_ns: i64, then: (i64, u64), later: (i64, u64)) {
            let now = |(date_ns, seen_ns)| Now { date_ns, seen_ns };
            let _ = Protection::new(until_ns, now(then)).end(now(later));
        }
    }
}
