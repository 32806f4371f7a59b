//! The entries of a space: its second map, from keys to opaque values. A filesystem keeps names and inodes in it.
//!
//! Entries lie in the maps of layers beside the block mappings, and are seen through layers in the same way: the
//! topmost one counts. An entry that is removed while a layer below has it becomes a *tombstone*, which hides that one.
//!
//! Invariants:
//! * A tombstone stands only where a layer below shows an entry, or the lower map of its own layer has one.
//! * All entries of a parent show through, whatever blocks do.
//! * An entry changes under the lock `entries` of the space that writes to the layer. So nobody moves an entry between
//!   its lookup and the transaction that replaces it.

use crate::entry::{check_entry, decode_entry, encode_entry, entries_end, entry_key, is_tombstone, key_in_map};
use crate::error::Result;
use crate::layers::{Layers, Node, STEP_OBJECTS, path};
use crate::space::Space;
use onefold_engine::Transaction;
use std::collections::BTreeMap;

/// Keys looked up together. Bounds the memory of their values.
const LOOKUP_KEYS: usize = 256;

/// Entries with their keys, sorted.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Encoded entries by key, tombstones included, and the key up to which they are all.
type Page = (BTreeMap<Vec<u8>, Vec<u8>>, Vec<u8>);

/// What a map has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// An encoded value.
    Value(Vec<u8>),
    /// A repair could not find out.
    Lost,
}

impl Layers {
    /// Returns the entry that a space on layer `top` has for a key, encoded.
    fn find_entry(&self, top: u32, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let nodes = self.nodes();
        for node in path(&nodes, top, |_| true) {
            let node = node?;
            for map in node.layer.maps() {
                if let Some(value) = self.engine().get(node.partition, &entry_key(map, key))? {
                    return Ok(Some(value).filter(|value| !is_tombstone(value)));
                }
            }
        }
        Ok(None)
    }

    /// Returns some of the first entries with `from <= key < to` for a space on layer `top`. Reads up to `page` objects
    /// of each map.
    fn first_entries(&self, top: u32, from: &[u8], to: &[u8], page: usize) -> Result<Page> {
        let nodes = self.nodes();
        let (mut found, mut end) = (BTreeMap::new(), to.to_vec());
        for node in path(&nodes, top, |_| true) {
            let node = node?;
            for map in node.layer.maps() {
                let (entries, complete) = self.entries_in(node.partition, &entry_key(map, from), &entry_key(map, &end), page)?;
                end = key_in_map(&complete)?.to_vec();
                for (key, value) in entries {
                    found.entry(key).or_insert(value);
                }
            }
        }
        found.split_off(&end);
        Ok((found, end))
    }

    /// Returns the first entries of a map between two keys of objects, up to `limit`, encoded, and the object key up to
    /// which they are all: at the latest the first one that a repair could not recover. Errors: that key is `from`.
    pub(crate) fn entries_in(&self, partition: u16, from: &[u8], to: &[u8], limit: usize) -> Result<(Entries, Vec<u8>)> {
        let mut to = to.to_vec();
        if let Some((gap, _)) = self.engine().first_lost(partition, from, &to)?
            && gap.as_slice() > from
        {
            to = gap;
        }
        let objects = self.engine().range(partition, from, &to, limit)?;
        if let Some((last, _)) = objects.last().filter(|_| objects.len() == limit) {
            to = [last.as_slice(), &[0]].concat();
        }
        let entries = objects.into_iter().map(|(key, value)| Ok((key_in_map(&key)?.to_vec(), value)));
        Ok((entries.collect::<Result<_>>()?, to))
    }

    /// Returns the next entries of a map of a layer, at or after `from`, for one step of cleaning.
    pub(crate) fn step_of_entries(&self, node: &Node, map: u32, from: &[u8]) -> Result<Entries> {
        let (mut from, to) = (entry_key(map, from), entries_end(map));
        let mut entries = Vec::new();
        // No entries before a lost part does not mean no entries at all: from the lost part on, this is an error.
        while entries.is_empty() && from < to {
            (entries, from) = self.entries_in(node.partition, &from, &to, STEP_OBJECTS)?;
        }
        Ok(entries)
    }

    /// Returns for each key whether the layers below a layer show an entry, or may show one.
    pub(crate) fn entries_below(&self, node: &Node, keys: &[&[u8]]) -> Result<Vec<bool>> {
        let mut shown = vec![false; keys.len()];
        let mut open: Vec<usize> = (0..keys.len()).collect();
        let nodes = self.nodes();
        for below in path(&nodes, node.layer.parent, |_| true) {
            let below = below?;
            for map in below.layer.maps() {
                let wanted: Vec<&[u8]> = open.iter().map(|at| keys[*at]).collect();
                let mut values = self.look_up(below.partition, map, &wanted)?.into_iter();
                open.retain(|at| {
                    let found = values.next().unwrap_or(Found::Nothing);
                    // Unknown, so the layer above must hide it.
                    shown[*at] = found == Found::Lost || matches!(&found, Found::Value(value) if !is_tombstone(value));
                    found == Found::Nothing
                });
            }
        }
        Ok(shown)
    }

    /// Returns what a map has for each key.
    fn look_up(&self, partition: u16, map: u32, keys: &[&[u8]]) -> Result<Vec<Found>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| entry_key(map, key)).collect();
        let found = |value: Option<Vec<u8>>| value.map_or(Found::Nothing, Found::Value);
        match self.engine().get_many(partition, &keys) {
            Ok(values) => Ok(values.into_iter().map(found).collect()),
            Err(error) if error.is_lost() => keys
                .iter()
                .map(|key| match self.engine().get(partition, key) {
                    Err(error) if error.is_lost() => Ok(Found::Lost),
                    value => Ok(found(value?)),
                })
                .collect(),
            Err(error) => Err(error.into()),
        }
    }
}

impl Space {
    /// Returns the value of an entry.
    pub fn entry(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let gate = self.gate.read();
        gate.check_live()?;
        let found = self.shared.layers.find_entry(gate.record.layer, key)?;
        found.map(|value| decode_entry(key, value)).transpose()
    }

    /// Returns the first entries with `from <= key < to`, sorted, up to `limit`, and the key at which to go on if there
    /// may be more. There may be more even if these are few, or none. If entries change meanwhile, each is as of a
    /// moment of its own.
    pub fn entries(&self, from: &[u8], to: &[u8], limit: usize) -> Result<(Entries, Option<Vec<u8>>)> {
        let gate = self.gate.read();
        gate.check_live()?;
        if from >= to {
            return Ok((Vec::new(), None));
        }
        let (found, end) = self.shared.layers.first_entries(gate.record.layer, from, to, limit.clamp(1, STEP_OBJECTS))?;
        let mut entries = Vec::new();
        for (key, value) in found.into_iter().filter(|(_, value)| !is_tombstone(value)) {
            if entries.len() >= limit {
                return Ok((entries, Some(key)));
            }
            let value = decode_entry(&key, value)?;
            entries.push((key, value));
        }
        Ok((entries, (end.as_slice() < to).then_some(end)))
    }

    /// Gives keys new values, or removes them (`None`): all or, after an error, none. Visible at once, durable with the
    /// next flush of the engine. If a key is there twice, the last change counts.
    ///
    /// Keys have up to [`crate::MAX_ENTRY_KEY_BYTES`], values from 1 to [`crate::MAX_ENTRY_VALUE_BYTES`]. While a
    /// snapshot is taken, the caller submits nothing: this has no part in the moment of the snapshot.
    pub fn submit_entries(&self, changes: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> Result<()> {
        self.check_writable()?;
        changes.iter().try_for_each(|(key, value)| check_entry(key, value.as_deref()))?;
        let latest: BTreeMap<Vec<u8>, Option<Vec<u8>>> = changes.into_iter().collect();
        let latest: Vec<_> = latest.into_iter().collect();
        let gate = self.gate.read();
        gate.check_live()?;
        let top = &*self.top(&gate)?;
        let _alone = self.entries.lock();
        let mut transaction = Transaction::default();
        let mut more_keys = 0;
        for changes in latest.chunks(LOOKUP_KEYS) {
            more_keys += self.add_entries(top, changes, &mut transaction)?;
        }
        if transaction.changes.is_empty() { Ok(()) } else { self.submit_mappings(top, transaction, more_keys) }
    }

    /// Adds changes of entries to a transaction. Returns how many more keys the maps of the layer then have. The caller
    /// holds the gate and `entries`.
    fn add_entries(&self, top: &Node, changes: &[(Vec<u8>, Option<Vec<u8>>)], transaction: &mut Transaction) -> Result<i64> {
        let layers = &self.shared.layers;
        let keys: Vec<&[u8]> = changes.iter().map(|(key, _)| key.as_slice()).collect();
        let own = layers.look_up(self.partition, top.layer.map, &keys)?;
        let other_map = top.layer.merging.map(|other| other.map);
        let other = match other_map {
            Some(map) => layers.look_up(self.partition, map, &keys)?,
            None => vec![Found::Nothing; keys.len()],
        };
        let removed: Vec<&[u8]> = changes.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key.as_slice()).collect();
        let mut below = layers.entries_below(top, &removed)?.into_iter();
        let mut more_keys = 0;
        for (((key, value), own), other) in changes.iter().zip(own).zip(other) {
            let new = match value {
                Some(value) => Some(encode_entry(Some(value))),
                None => below.next().unwrap_or_default().then(|| encode_entry(None)),
            };
            let after = new.clone().map_or(Found::Nothing, Found::Value);
            if after == own && other == Found::Nothing {
                continue;
            }
            let before = [&own, &other].into_iter().filter(|found| matches!(found, Found::Value(_))).count();
            more_keys += i64::from(new.is_some()) - before as i64;
            transaction.changes.push((self.partition, entry_key(top.layer.map, key), new));
            if let Some(map) = other_map.filter(|_| other != Found::Nothing) {
                transaction.changes.push((self.partition, entry_key(map, key), None));
            }
        }
        Ok(more_keys)
    }
}
