//! What the records of the log mean for a log in a bucket: it keeps their effects in less space (`docs/format.md`
//! section 11.3).
//!
//! A key is a chunk or an object. An effect on a chunk is what the chunk index holds of it between two sweeps: whether
//! it was removed first, where it is since, and by how much its count changed. An effect on an object is its value.
//! Records of containers have no other effect here: the log keeps those that the containers need.

use crate::Change;
use crate::commit::records::{Decoded, encode_deltas, encode_objects, encode_places, encode_removals};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_signed};
use onefold_oplog::{KeyedEffects, Meaning, Partition, PartitionClass, Position, Record};

const CHUNK: u8 = 0;
const OBJECT: u8 = 1;
/// Flags of an effect on a chunk: it was removed first; it has a new place.
const REMOVED: u8 = 1;
const PLACED: u8 = 2;
/// Marks of an effect on an object.
const DELETED: u8 = 0;
const WRITTEN: u8 = 1;

/// What records mean in one store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meanings {
    /// Bytes of a fingerprint.
    pub(crate) digest_bytes: usize,
    /// Whether the store has an index that knows every chunk.
    pub(crate) has_index: bool,
}

/// An effect on a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OnChunk {
    is_removed: bool,
    /// Its place since; 0: nowhere.
    place: Option<u64>,
    delta: i64,
}

impl OnChunk {
    fn encode(self) -> Vec<u8> {
        let mut out = vec![(u8::from(self.is_removed) * REMOVED) | (u8::from(self.place.is_some()) * PLACED)];
        if let Some(place) = self.place {
            out.extend_from_slice(&place.to_le_bytes());
        }
        put_signed(&mut out, self.delta);
        out
    }

    fn decode(bytes: &[u8]) -> Result<OnChunk, String> {
        let decode = || -> Result<OnChunk, WireError> {
            let mut reader = Reader::new(bytes);
            let flags = reader.u8()?;
            if flags & !(REMOVED | PLACED) != 0 {
                return Err(WireError::OutOfRange { what: "effect on a chunk", value: u64::from(flags), offset_bytes: 0 });
            }
            let place = if flags & PLACED != 0 { Some(reader.u64()?) } else { None };
            let delta = reader.signed()?;
            reader.end()?;
            Ok(OnChunk { is_removed: flags & REMOVED != 0, place, delta })
        };
        decode().map_err(|error| error.to_string())
    }

    /// Returns the effect of both, this one first.
    fn then(self, newer: OnChunk) -> OnChunk {
        if newer.is_removed {
            return newer;
        }
        let delta = self.delta.saturating_add(newer.delta);
        OnChunk {
            is_removed: self.is_removed,
            place: newer.place.or(self.place),
            // As in the chunk index: the count of a removed chunk never falls below zero.
            delta: if self.is_removed { delta.max(0) } else { delta },
        }
    }
}

fn chunk_key(fingerprint: &Fingerprint, digest_bytes: usize) -> Vec<u8> {
    let mut key = vec![CHUNK];
    key.extend_from_slice(fingerprint.digest(digest_bytes));
    key
}

fn object_key(partition: u16, key: &[u8]) -> Vec<u8> {
    let mut out = vec![OBJECT];
    out.extend_from_slice(&partition.to_be_bytes());
    out.extend_from_slice(key);
    out
}

/// Returns the keys of a partition: the first one, and the first one behind them. The store has `index_partitions`
/// partitions of the chunk index, a power of 2. A partition of containers has no keys.
pub(crate) fn keys_of(partition: Partition, index_partitions: u32) -> Option<(Vec<u8>, Vec<u8>)> {
    let number = partition.number;
    match partition.class {
        PartitionClass::Container => None,
        PartitionClass::ChunkIndex => {
            let from = |number: u32| match number < index_partitions {
                // The first bits of a fingerprint choose its partition.
                true => {
                    let shift = (64 - index_partitions.trailing_zeros()) % 64;
                    [&[CHUNK], &(u64::from(number) << shift).to_be_bytes()[..]].concat()
                }
                false => vec![CHUNK + 1],
            };
            Some((from(number.into()), from(u32::from(number) + 1)))
        }
        PartitionClass::ObjectIndex => {
            let behind = number.checked_add(1).map_or_else(|| vec![OBJECT + 1], |next| object_key(next, &[]));
            Some((object_key(number, &[]), behind))
        }
    }
}

fn change(key: &[u8], effect: &[u8]) -> Result<Change, String> {
    let (partition, key) = key.split_first_chunk::<2>().ok_or("the key of an object is too short")?;
    let value = match effect.split_first() {
        Some((&DELETED, [])) => None,
        Some((&WRITTEN, value)) => Some(value.to_vec()),
        _ => return Err("the effect on an object is unknown".to_owned()),
    };
    Ok((u16::from_be_bytes(*partition), key.to_vec(), value))
}

impl Meaning for Meanings {
    fn effects(&self, records: &[Record], out: &mut KeyedEffects) -> Result<(), String> {
        let decoded = Decoded::read(records, self.digest_bytes).map_err(|error| error.to_string())?;
        let effects = decoded.effects(Position(0), records);
        if self.has_index {
            let mut add =
                |fingerprint: &Fingerprint, effect: OnChunk| out.push(&chunk_key(fingerprint, self.digest_bytes), &effect.encode());
            // In the order in which a batch takes effect.
            effects.removals.iter().for_each(|chunk| add(chunk, OnChunk { is_removed: true, ..OnChunk::default() }));
            for (chunk, place) in effects.places.iter().chain(effects.stored) {
                add(chunk, OnChunk { place: Some(*place), ..OnChunk::default() });
            }
            effects.deltas.iter().for_each(|(chunk, delta)| add(chunk, OnChunk { delta: *delta, ..OnChunk::default() }));
        }
        for (partition, key, value) in effects.changes {
            let effect = match value {
                None => vec![DELETED],
                Some(value) => [&[WRITTEN], &value[..]].concat(),
            };
            out.push(&object_key(*partition, key), &effect);
        }
        Ok(())
    }

    fn compose(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Result<Vec<u8>, String> {
        match key.first() {
            Some(&CHUNK) => Ok(OnChunk::decode(older)?.then(OnChunk::decode(newer)?).encode()),
            Some(&OBJECT) => Ok(newer.to_vec()),
            _ => Err("a key of the history is neither a chunk nor an object".to_owned()),
        }
    }

    fn is_nothing(&self, key: &[u8], effect: &[u8]) -> bool {
        match key.first() {
            Some(&CHUNK) => OnChunk::decode(effect).is_ok_and(|effect| effect.place.unwrap_or(0) == 0 && effect.delta == 0),
            _ => effect == [DELETED],
        }
    }

    fn records(&self, effects: &KeyedEffects) -> Result<Vec<Record>, String> {
        let (mut removals, mut places, mut deltas, mut changes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (key, effect) in effects.iter() {
            match key.split_first() {
                Some((&CHUNK, digest)) if digest.len() == self.digest_bytes => {
                    let (chunk, effect) = (Fingerprint::from_digest(digest), OnChunk::decode(effect)?);
                    removals.extend(effect.is_removed.then_some(chunk));
                    places.extend(effect.place.map(|place| (chunk, place)));
                    deltas.extend((effect.delta != 0).then_some((chunk, effect.delta)));
                }
                Some((&OBJECT, key)) => changes.push(change(key, effect)?),
                _ => return Err("a key of the history is neither a chunk nor an object".to_owned()),
            }
        }
        let mut records = Vec::new();
        if !removals.is_empty() {
            records.push(encode_removals(&removals, self.digest_bytes));
        }
        if !places.is_empty() {
            records.push(encode_places(&places, self.digest_bytes));
        }
        if !deltas.is_empty() {
            records.push(encode_deltas(&deltas, self.digest_bytes));
        }
        records.extend(encode_objects(&changes));
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// What one view would hold: chunks with their places and counts, and objects.
    #[derive(Debug, Default, PartialEq)]
    struct Model {
        chunks: BTreeMap<Fingerprint, (u64, i64)>,
        objects: BTreeMap<(u16, Vec<u8>), Vec<u8>>,
    }

    impl Model {
        fn apply(&mut self, records: &[Record]) {
            let decoded = Decoded::read(records, 20).unwrap();
            let effects = decoded.effects(Position(0), records);
            self.chunks.retain(|chunk, _| !effects.removals.contains(chunk));
            for (chunk, place) in effects.places {
                self.chunks.entry(*chunk).or_default().0 = *place;
            }
            for (chunk, delta) in effects.deltas {
                self.chunks.entry(*chunk).or_default().1 += delta;
            }
            self.chunks.retain(|_, entry| *entry != (0, 0));
            for (partition, key, value) in effects.changes {
                match value {
                    Some(value) => drop(self.objects.insert((*partition, key.clone()), value.clone())),
                    None => drop(self.objects.remove(&(*partition, key.clone()))),
                }
            }
        }
    }

    fn chunk(number: u8) -> Fingerprint {
        Fingerprint::from_digest(&[number; 20])
    }

    fn batch() -> impl Strategy<Value = Vec<Record>> {
        let step = (0..5u8, 0..6u8, 0..4u64);
        proptest::collection::vec(step, 0..8).prop_map(|steps| {
            let mut records = Vec::new();
            for (kind, number, value) in steps {
                records.push(match kind {
                    0 => encode_removals(&[chunk(number)], 20),
                    1 => encode_places(&[(chunk(number), value)], 20),
                    2 => encode_deltas(&[(chunk(number), value as i64)], 20),
                    _ => {
                        let value = (value > 0).then(|| vec![value as u8; 3]);
                        let changes = [(u16::from(number % 2), vec![b'k', number], value)];
                        encode_objects(&changes).next().unwrap()
                    }
                });
            }
            records
        })
    }

    proptest! {
        #[test]
        fn composed_effects_do_what_the_batches_did(batches in proptest::collection::vec(batch(), 1..12), cut: prop::sample::Index) {
            let meaning = Meanings { digest_bytes: 20, has_index: true };
            let mut expected = Model::default();
            batches.iter().for_each(|batch| expected.apply(batch));
            let settle = |batches: &[Vec<Record>]| {
                let mut settled: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
                for batch in batches {
                    let mut effects = KeyedEffects::default();
                    meaning.effects(batch, &mut effects).unwrap();
                    for (key, effect) in effects.iter() {
                        let composed = settled.get(key).map(|older| meaning.compose(key, older, effect).unwrap());
                        settled.insert(key.to_vec(), composed.unwrap_or_else(|| effect.to_vec()));
                    }
                }
                settled
            };
            let apply = |found: &mut Model, settled: &BTreeMap<Vec<u8>, Vec<u8>>| {
                let mut effects = KeyedEffects::default();
                settled.iter().for_each(|(key, effect)| effects.push(key, effect));
                found.apply(&meaning.records(&effects).unwrap());
            };
            // As one run, and as two that are applied one after the other.
            let mut as_one = settle(&batches);
            as_one.retain(|key, effect| !meaning.is_nothing(key, effect));
            let mut found = Model::default();
            apply(&mut found, &as_one);
            prop_assert_eq!(&found, &expected);
            let (older, newer) = batches.split_at(cut.index(batches.len()));
            let mut found = Model::default();
            apply(&mut found, &settle(older));
            apply(&mut found, &settle(newer));
            prop_assert_eq!(&found, &expected);
        }
    }

    #[test]
    fn unknown_effects_are_refused() {
        let meaning = Meanings { digest_bytes: 20, has_index: true };
        for (key, effect) in [(vec![7], vec![]), (vec![CHUNK, 1], vec![0, 0]), (vec![OBJECT, 0, 0, 1], vec![9]), (vec![OBJECT, 0], vec![0])]
        {
            let mut effects = KeyedEffects::default();
            effects.push(&key, &effect);
            assert!(meaning.records(&effects).is_err());
        }
        assert!(OnChunk::decode(&[8, 0]).is_err() && OnChunk::decode(&[PLACED, 1]).is_err());
    }
}
