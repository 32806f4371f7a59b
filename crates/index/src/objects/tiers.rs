//! The in-memory tiers of an object-index partition, above its database.
//!
//! A lookup of a key goes from the newest tier to the oldest:
//! 1. *volatile*: staged, not yet durable in the log;
//! 2. *committed*: durable in the log;
//! 3. *frozen*: committed, being written to the database right now;
//! 4. the database.
//!
//! Invariants:
//! * Tiers 2 and 3 and the database together hold exactly the log's state at `applied`. A crash may lose only tier 1.
//! * A frozen tier stays visible until its transaction is durable. If that fails, it goes back below the committed
//!   tier.

use onefold_oplog::Position;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Keys and their values; `None`: deleted.
pub(super) type Objects = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Memory of an entry beyond its key and value: two `Vec`s and its share of a B-tree node, rounded up.
const ENTRY_BYTES: usize = 80;

fn entry_bytes(key: &[u8], value: &Option<Vec<u8>>) -> usize {
    ENTRY_BYTES + key.len() + value.as_ref().map_or(0, Vec::len)
}

/// The objects being written to the database.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    pub(super) objects: Arc<Objects>,
    /// The log position that `objects` and the database together reach.
    pub(super) position: Position,
    bytes: usize,
}

/// The tiers of one partition.
#[derive(Debug, Default)]
pub(super) struct Tiers {
    volatile: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>,
    volatile_bytes: usize,
    committed: Objects,
    committed_bytes: usize,
    frozen: Option<Frozen>,
    /// The database's position when it was opened. A replay passes earlier batches again.
    opened: Position,
    applied: Position,
    persisted: Position,
}

impl Tiers {
    /// Starts without objects in memory. The database is applied up to `position`.
    pub(super) fn at(position: Position) -> Tiers {
        Tiers { opened: position, applied: position, persisted: position, ..Tiers::default() }
    }

    /// Copies the applied changes that are not persisted, without those that are only staged.
    pub(super) fn applied_only(&self) -> Tiers {
        Tiers {
            committed: self.committed.clone(),
            committed_bytes: self.committed_bytes,
            frozen: self.frozen.clone(),
            opened: self.opened,
            applied: self.applied,
            persisted: self.persisted,
            ..Tiers::default()
        }
    }

    pub(super) fn persisted(&self) -> Position {
        self.persisted
    }

    pub(super) fn applied(&self) -> Position {
        self.applied
    }

    /// Returns the memory of changes applied but not persisted, bytes.
    pub(super) fn pending_bytes(&self) -> usize {
        self.committed_bytes + self.frozen.as_ref().map_or(0, |frozen| frozen.bytes)
    }

    /// Returns the memory of changes staged but not applied, bytes.
    pub(super) fn volatile_bytes(&self) -> usize {
        self.volatile_bytes
    }

    pub(super) fn stage(&mut self, sequence: u64, key: &[u8], value: &Option<Vec<u8>>) {
        self.volatile_bytes += entry_bytes(key, value);
        if let Some((_, old)) = self.volatile.insert(key.to_vec(), (sequence, value.clone())) {
            self.volatile_bytes -= entry_bytes(key, &old);
        }
    }

    /// Returns whether the database had the batch that ends here when it was opened.
    pub(super) fn had(&self, end: Position) -> bool {
        end <= self.opened
    }

    /// Puts a change into the committed tier, unless the database had it when it was opened.
    pub(super) fn apply(&mut self, end: Position, sequence: u64, key: &[u8], value: &Option<Vec<u8>>) {
        if self.volatile.get(key).is_some_and(|(staged, _)| *staged <= sequence)
            && let Some((_, staged)) = self.volatile.remove(key)
        {
            self.volatile_bytes -= entry_bytes(key, &staged);
        }
        if end <= self.opened {
            return;
        }
        self.committed_bytes += entry_bytes(key, value);
        if let Some(old) = self.committed.insert(key.to_vec(), value.clone()) {
            self.committed_bytes -= entry_bytes(key, &old);
        }
    }

    /// Records that all changes of the batch that ends at `end` are applied.
    pub(super) fn advance(&mut self, end: Position) {
        debug_assert!(end > self.applied || end <= self.opened, "a batch is applied once, with all its changes");
        self.applied = self.applied.max(end);
    }

    /// Freezes the committed tier. `None`: the database is already at this position.
    pub(super) fn freeze(&mut self) -> Option<Frozen> {
        debug_assert!(self.frozen.is_none(), "one persist at a time");
        if self.applied == self.persisted {
            return None;
        }
        let objects = Arc::new(std::mem::take(&mut self.committed));
        let frozen = Frozen { objects, position: self.applied, bytes: std::mem::take(&mut self.committed_bytes) };
        self.frozen = Some(frozen.clone());
        Some(frozen)
    }

    /// Returns whether objects are on their way to the database.
    #[cfg(test)]
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Ends a successful write: the database holds the frozen tier durably. Returns the tier, so that the caller frees
    /// it outside of any lock.
    pub(super) fn thaw(&mut self) -> Option<Frozen> {
        let frozen = self.frozen.take();
        if let Some(frozen) = &frozen {
            self.persisted = frozen.position;
        }
        frozen
    }

    /// Ends a failed write: puts the frozen tier back below the committed one.
    pub(super) fn refreeze(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        let newer = std::mem::take(&mut self.committed);
        self.committed = Arc::try_unwrap(frozen.objects).unwrap_or_else(|shared| (*shared).clone());
        self.committed.extend(newer);
        self.committed_bytes = self.committed.iter().map(|(key, value)| entry_bytes(key, value)).sum();
    }

    /// Returns memory's version of a key. `None`: memory has none; `Some(None)`: deleted.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.volatile
            .get(key)
            .map(|(_, value)| value)
            .or_else(|| self.committed.get(key))
            .or_else(|| self.frozen.as_ref().and_then(|frozen| frozen.objects.get(key)))
    }

    /// Returns memory's versions of the keys `from <= key < to`, sorted, up to and including the `limit`-th key that
    /// has a value.
    pub(super) fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        type Layer<'a> = std::iter::Peekable<Box<dyn Iterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)> + 'a>>;
        let bounds = (Bound::Included(from), Bound::Excluded(to));
        let volatile: Layer<'_> = (Box::new(self.volatile.range::<[u8], _>(bounds).map(|(key, (_, value))| (key, value)))
            as Box<dyn Iterator<Item = _>>)
            .peekable();
        let committed: Layer<'_> = (Box::new(self.committed.range::<[u8], _>(bounds)) as Box<dyn Iterator<Item = _>>).peekable();
        let mut layers = vec![volatile, committed];
        if let Some(frozen) = &self.frozen {
            layers.push((Box::new(frozen.objects.range::<[u8], _>(bounds)) as Box<dyn Iterator<Item = _>>).peekable());
        }
        let mut found = Vec::new();
        let mut present = 0;
        while present < limit {
            let Some(key) = layers.iter_mut().filter_map(|layer| layer.peek().map(|(key, _)| *key)).min() else { break };
            let mut newest = None;
            for layer in &mut layers {
                if let Some((_, value)) = layer.next_if(|(of, _)| *of == key) {
                    newest = newest.or(Some(value));
                }
            }
            let value = newest.cloned().flatten();
            present += usize::from(value.is_some());
            found.push((key.clone(), value));
        }
        found
    }
}
