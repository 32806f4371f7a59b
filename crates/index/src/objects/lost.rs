//! Lost ranges: a salvage could not read these keys of the partition's file, so nobody knows whether they have objects.
//!
//! They are objects themselves, `x` + the first key -> the end. So they are durable and replayed like all others.
//!
//! Reading a key in a lost range that has no value is an error, so it never looks absent. A key that is written or
//! deleted is known again. It leaves its range, which shrinks or splits in two. The batch and the earlier ranges
//! determine the result, so a replay gets the same ranges.
//!
//! The log never contains the ranges themselves, because a later salvage may change them. To give up lost keys, the log
//! names those keys: the object `x` + the first one, with a value that says so. That object cuts them out of whatever
//! ranges there are, and is never stored.

use crate::error::{IndexError, Result};
use onefold_ground::wire::{Reader, put_bytes};
use std::collections::BTreeMap;

/// First byte of the keys of lost ranges.
pub(super) const PREFIX: u8 = b'x';
/// First byte of the keys of entries, which have any length. All other keys that start with one letter have one length.
pub(super) const ANY_LENGTH: u8 = b'E';
const VERSION: u8 = 1;
/// Value of a lost range: its keys are unknown.
const LOST: u8 = 0;
/// Value for given-up keys: those without a value have none. Only in the log.
const GIVEN_UP: u8 = 1;

/// The lost ranges of a partition: first key -> end. They do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct LostRanges(BTreeMap<Vec<u8>, Vec<u8>>);

fn object(what: u8, from: &[u8], to: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut value = vec![VERSION, what];
    put_bytes(&mut value, to);
    ([&[PREFIX], from].concat(), value)
}

/// Encodes the object of a lost range.
pub(super) fn encode(from: &[u8], to: &[u8]) -> (Vec<u8>, Vec<u8>) {
    object(LOST, from, to)
}

/// Encodes the log's object for giving up keys with `from <= key < to`.
pub(super) fn give_up(from: &[u8], to: &[u8]) -> (Vec<u8>, Vec<u8>) {
    object(GIVEN_UP, from, to)
}

/// Returns the end of the keys that a change in the log gives up. `None`: it gives up none.
pub(super) fn given_up(value: Option<&[u8]>) -> Option<Vec<u8>> {
    decode(GIVEN_UP, value?)
}

fn decode(what: u8, value: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(value);
    if reader.u8().ok()? != VERSION || reader.u8().ok()? != what {
        return None;
    }
    let to = reader.bytes().ok()?.to_vec();
    reader.end().ok().map(|()| to)
}

fn has_any_length(key: &[u8]) -> bool {
    key.first() == Some(&ANY_LENGTH)
}

/// Returns the next key. Where all keys have one length it has the same length.
pub(super) fn successor(key: &[u8]) -> Vec<u8> {
    if has_any_length(key) {
        return [key, &[0]].concat();
    }
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return next;
        }
    }
    [key, &[0]].concat()
}

/// Returns the first key of this length that is not before `bound`.
fn of_length(bound: &[u8], length: usize) -> Vec<u8> {
    match bound.get(..length) {
        Some(key) if key.len() < bound.len() => successor(key),
        Some(key) => key.to_vec(),
        None => {
            let mut key = bound.to_vec();
            key.resize(length, 0);
            key
        }
    }
}

impl LostRanges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an object `x` of a database. An undecodable one counts as a range up to the end of its kind of keys.
    pub(super) fn note(&mut self, key: &[u8], value: &[u8]) {
        let Some(from) = key.get(1..) else { return };
        let to = decode(LOST, value).unwrap_or_else(|| vec![from.first().copied().unwrap_or(0).saturating_add(1)]);
        self.add(from.to_vec(), to);
    }

    /// Marks keys with `from <= key < to` as lost. Merges overlapping ranges.
    pub(super) fn add(&mut self, mut from: Vec<u8>, mut to: Vec<u8>) {
        if from >= to {
            return;
        }
        while let Some((first, end)) = self.within(&from, &to).map(|(first, end)| (first.to_vec(), end.to_vec())) {
            self.0.remove(&first);
            from = from.min(first);
            to = to.max(end);
        }
        self.0.insert(from, to);
    }

    /// Returns the first lost range that has keys with `from <= key < to`.
    pub(super) fn within(&self, from: &[u8], to: &[u8]) -> Option<(&[u8], &[u8])> {
        if from >= to {
            return None;
        }
        let before = self.0.range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Excluded(from))).next_back();
        let behind = self.0.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to))).next();
        let hit = before.filter(|(_, end)| end.as_slice() > from).or(behind)?;
        Some((hit.0, hit.1))
    }

    /// Marks keys with `from <= key < to` as known. Returns the object changes that record it.
    pub(super) fn cut(&mut self, from: &[u8], to: &[u8]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut changes = Vec::new();
        while let Some((first, end)) = self.within(from, to).map(|(first, end)| (first.to_vec(), end.to_vec())) {
            self.0.remove(&first);
            changes.push(([&[PREFIX], first.as_slice()].concat(), None));
            // Bounds keep their length. A longer one might pass the end of its kind of keys, and keys of another length
            // would cut it off.
            let has_keys = |part: &(Vec<u8>, Vec<u8>)| match has_any_length(from) {
                true => part.0 < part.1,
                false => of_length(&part.0, from.len()) < of_length(&part.1, from.len()),
            };
            for (first, end) in [(first, from.to_vec()), (to.to_vec(), end)].into_iter().filter(has_keys) {
                let (key, value) = encode(&first, &end);
                changes.push((key, Some(value)));
                self.0.insert(first, end);
            }
        }
        changes
    }

    /// Fails if a key with `from <= key < to` is lost.
    pub(super) fn check(&self, path: &str, from: &[u8], to: &[u8]) -> Result<()> {
        match self.within(from, to) {
            None => Ok(()),
            Some((first, end)) => Err(IndexError::Lost { path: path.to_owned(), from: first.to_vec(), to: end.to_vec() }),
        }
    }

    /// Returns all lost ranges.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(from, to)| (from.as_slice(), to.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_known_again_leaves_its_range_and_nothing_else_does(ranges in proptest::collection::vec((0u8..60, 1u8..9), 0..6), cuts in proptest::collection::vec(0u8..70, 0..40)) {
            let mut lost = LostRanges::default();
            let mut model = std::collections::BTreeSet::new();
            let mut at = 0u8;
            for (gap, length) in ranges {
                let first = at.saturating_add(gap % 10 + 1);
                at = first.saturating_add(length);
                let (key, value) = encode(&[b'm', first], &[b'm', at]);
                lost.note(&key, &value);
                model.extend(first..at);
            }
            let mut replica = lost.clone();
            for cut in cuts {
                let key = [b'm', cut];
                for (key, value) in lost.cut(&key, &successor(&key)) {
                    match value {
                        Some(value) => replica.note(&key, &value),
                        None => drop(replica.0.remove(&key[1..])),
                    }
                }
                model.remove(&cut);
                prop_assert_eq!(&replica.0, &lost.0);
                for of in 0..=255u8 {
                    let key = [b'm', of];
                    prop_assert_eq!(lost.within(&key, &[&key[..], &[0]].concat()).is_some(), model.contains(&of));
                }
            }
            prop_assert_eq!(lost.is_empty(), model.is_empty());
        }
    }

    proptest! {
        #[test]
        fn ranges_that_overlap_are_one_and_no_key_of_theirs_is_known(ranges in proptest::collection::vec((0u8..60, 0u8..30), 0..9)) {
            let mut lost = LostRanges::default();
            let mut model = std::collections::BTreeSet::new();
            for (first, length) in ranges {
                lost.add(vec![b'm', first], vec![b'm', first + length]);
                model.extend(first..first + length);
                for of in 0..=100u8 {
                    prop_assert_eq!(lost.within(&[b'm', of], &[b'm', of, 0]).is_some(), model.contains(&of));
                }
            }
            prop_assert!(lost.0.iter().zip(lost.0.keys().skip(1)).all(|((_, end), next)| end <= next));
        }
    }

    #[test]
    fn keys_of_any_length_are_known_one_by_one() {
        let mut lost = LostRanges::default();
        lost.add(b"Eb".to_vec(), b"Ec".to_vec());
        for known in [&b"Eb"[..], b"Ebb", b"Ebbb", b"Eb\xff"] {
            lost.cut(known, &successor(known));
        }
        let is_lost = |key: &[u8]| lost.within(key, &successor(key)).is_some();
        assert!([&b"Eb"[..], b"Ebb", b"Ebbb", b"Eb\xff", b"Ec", b"Ea"].into_iter().all(|key| !is_lost(key)));
        assert!([&b"Eb\0"[..], b"Eba", b"Ebb\0", b"Ebba", b"Ebbb\0", b"Ebc", b"Eb\xff\xff"].into_iter().all(is_lost));
        lost.cut(b"Eb", b"Ec");
        assert!(lost.is_empty());
    }

    #[test]
    fn ranges_that_begin_and_end_between_keys_go_when_all_their_keys_are_known() {
        let mut lost = LostRanges::default();
        let (key, value) = encode(&[b'm', 3, 0], &[b'm', 6, 0]);
        lost.note(&key, &value);
        assert!(lost.check("file", &[b'm', 3], &[b'm', 3, 0]).is_ok());
        for of in [5, 4, 6] {
            assert!(lost.check("file", &[b'm', of], &[b'm', of, 0]).is_err());
            lost.cut(&[b'm', of], &[b'm', of + 1]);
        }
        assert!(lost.is_empty());
    }
}
