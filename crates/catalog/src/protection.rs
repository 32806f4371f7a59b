//! The protection of a backup: until a given moment, nobody can remove the backup.
//!
//! A protection is an object of its own under the key `k` + id. It is removed with the backup. It can always be
//! prolonged; in append-only mode, shortening it counts as a deletion. An unreadable protection lasts for ever, until
//! it is set again.
//!
//! A protection ends when its date is past *and* the store has seen as much time pass as was left when it was set. So
//! setting the machine's date forward ends no protection (`docs/decisions/0038-sequence-and-seen-time.md`).

use onefold_ground::wire::{Reader, WireError, put_signed, put_varint};

/// The version at the start of values in the object index.
const VERSION: u8 = 1;
/// Users see the date they asked for if the protection ends at most this much later.
const SAID_AS_ASKED_NS: i64 = 24 * 3_600_000_000_000;

/// The time of both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The date of the machine, nanoseconds since 1970.
    pub date_ns: i64,
    /// The time of the store's clock ([`onefold_engine::Engine::seen_ns`]).
    pub seen_ns: u64,
}

/// The end of a backup's protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    /// The date that the user asked for, nanoseconds since 1970.
    pub(crate) until_ns: i64,
    /// The time that the store's clock must reach.
    until_seen_ns: u64,
}

impl Protection {
    /// The protection assumed if the object cannot be read.
    pub(crate) const FOR_EVER: Protection = Protection { until_ns: i64::MAX, until_seen_ns: u64::MAX };

    /// Reads a protection from the value of its object.
    pub(crate) fn of(value: &[u8]) -> Protection {
        decode(value).unwrap_or(Protection::FOR_EVER)
    }

    pub(crate) fn new(until_ns: i64, now: Now) -> Protection {
        let left_ns = u64::try_from(until_ns.saturating_sub(now.date_ns)).unwrap_or(0);
        Protection { until_ns, until_seen_ns: now.seen_ns.saturating_add(left_ns) }
    }

    /// Returns when the protection will probably end, nanoseconds since 1970. Returns `None` if it is over.
    pub(crate) fn end(self, now: Now) -> Option<i64> {
        if self.until_ns <= now.date_ns && self.until_seen_ns <= now.seen_ns {
            return None;
        }
        let left_ns = i64::try_from(self.until_seen_ns.saturating_sub(now.seen_ns)).unwrap_or(i64::MAX);
        let end_ns = now.date_ns.saturating_add(left_ns);
        let is_as_asked = self.until_ns > now.date_ns && end_ns.saturating_sub(self.until_ns) <= SAID_AS_ASKED_NS;
        Some(if is_as_asked { self.until_ns } else { end_ns.max(self.until_ns) })
    }

    /// Returns the same protection, prolonged so that by the store's clock it does not end before `earlier`.
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
