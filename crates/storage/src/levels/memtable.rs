//! The memtable (M2.5): new chunks in memory, until there are enough of them for a table.
//!
//! The paper keeps it sorted, in a skip list. Here chunks keep the order of their arrival, which the table keeps too,
//! and a hash map finds them by name. The keys are sorted once, when the table is written.

use crate::levels::records::Named;
use crate::{ChunkKind, Slice};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::Position;
use std::collections::HashMap;

/// About what a key takes in memory, and in the pages of a table.
pub(crate) const KEY_BYTES: u64 = 64;

/// A chunk in memory.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) name: Fingerprint,
    pub(crate) kind: ChunkKind,
    pub(crate) is_sequential: bool,
    pub(crate) bytes: Slice,
    /// Whether it was removed since.
    is_removed: bool,
}

/// What a memtable or a table says of a key.
#[derive(Clone, Debug)]
pub(crate) enum Found<T> {
    /// The chunk.
    Chunk(T),
    /// It was removed. Older tables may still have it.
    Removed,
}

#[derive(Debug)]
pub(crate) struct Memtable {
    pub(crate) id: u64,
    chunks: Vec<Held>,
    /// Which of the chunks a key has. `None`: a tombstone.
    keys: HashMap<Fingerprint, Option<usize>>,
    /// Raw bytes of the chunks that it has.
    raw_bytes: u64,
    /// The log has the bytes of this many chunks, the first ones.
    pub(crate) logged: usize,
    /// The start of the oldest batch whose content is only here.
    pub(crate) needs: Option<Position>,
}

impl Held {
    pub(crate) fn named(&self) -> Named {
        Named { name: self.name, kind: self.kind, is_sequential: self.is_sequential, length_bytes: self.bytes.len() as u32 }
    }
}

impl Memtable {
    pub(crate) fn new(id: u64) -> Memtable {
        Memtable { id, chunks: Vec::new(), keys: HashMap::new(), raw_bytes: 0, logged: 0, needs: None }
    }

    pub(crate) fn put(&mut self, name: Fingerprint, kind: ChunkKind, is_sequential: bool, bytes: Slice) {
        self.raw_bytes += bytes.len() as u64;
        let before = self.keys.insert(name, Some(self.chunks.len()));
        self.forget(before.flatten());
        self.chunks.push(Held { name, kind, is_sequential, bytes, is_removed: false });
    }

    /// Removes a chunk. With `is_below` older tables may have it, and the table gets a tombstone.
    pub(crate) fn remove(&mut self, name: Fingerprint, is_below: bool) {
        let before = match is_below {
            true => self.keys.insert(name, None),
            false => self.keys.remove(&name),
        };
        self.forget(before.flatten());
    }

    fn forget(&mut self, chunk: Option<usize>) {
        if let Some(chunk) = chunk {
            let chunk = &mut self.chunks[chunk];
            self.raw_bytes -= chunk.bytes.len() as u64;
            chunk.is_removed = true;
            chunk.bytes = Slice::from_vec(Vec::new());
        }
    }

    pub(crate) fn find(&self, name: &Fingerprint) -> Option<Found<&Held>> {
        self.keys.get(name).map(|chunk| chunk.map_or(Found::Removed, |chunk| Found::Chunk(&self.chunks[chunk])))
    }

    /// Returns the chunks that it has, in the order of their arrival.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Held> {
        self.chunks.iter().filter(|chunk| !chunk.is_removed)
    }

    /// Returns the chunks that the log does not have, and the number of all, removed or not.
    pub(crate) fn unlogged(&self) -> (impl Iterator<Item = &Held>, usize) {
        (self.chunks[self.logged.min(self.chunks.len())..].iter().filter(|chunk| !chunk.is_removed), self.chunks.len())
    }

    /// Returns all chunks by name, removed or not, in the order of their arrival.
    pub(crate) fn named(&self) -> Vec<Option<Named>> {
        let named = |chunk: &Held| (!chunk.is_removed).then(|| chunk.named());
        self.chunks.iter().map(named).collect()
    }

    /// Takes a tombstone back: in a replay, the chunk was stored again later.
    pub(crate) fn revive(&mut self, name: &Fingerprint) {
        if self.keys.get(name).is_some_and(Option::is_none) {
            self.keys.remove(name);
        }
    }

    /// Notes that the log is needed from this position on.
    pub(crate) fn need(&mut self, from: Position) {
        self.needs = Some(self.needs.map_or(from, |needs| needs.min(from)));
    }

    /// Notes that the log has all of its chunks.
    pub(crate) fn all_logged(&mut self) {
        self.logged = self.chunks.len();
    }

    pub(crate) fn tombstones(&self) -> impl Iterator<Item = Fingerprint> + '_ {
        self.keys.iter().filter(|(_, chunk)| chunk.is_none()).map(|(name, _)| *name)
    }

    /// Returns the keys that a table of it has.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.len() as u64
    }

    pub(crate) fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Returns what it counts for when it is asked whether it is full. Keys count too: a tombstone has no bytes.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.raw_bytes + self.keys() * KEY_BYTES
    }
}
