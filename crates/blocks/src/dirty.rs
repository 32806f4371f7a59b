//! The blocks of a space that wait to be written out, and their order.
//!
//! Invariants:
//! * A block is listed exactly while its cell has a buffer. Both change under the cell's lock.
//! * A listed block is in one of the two queues, or a thread has picked it and is writing it out.

use std::collections::{BTreeMap, BTreeSet};

/// The list of a space's dirty blocks.
#[derive(Debug, Default)]
pub(crate) struct DirtyList {
    blocks: BTreeMap<u64, Entry>,
    /// (age, block): blocks that are written out without reading what is stored.
    whole: BTreeSet<(u64, u64)>,
    /// (age, block): the others.
    partial: BTreeSet<(u64, u64)>,
    next_age: u64,
    bytes: usize,
    whole_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    age: u64,
    bytes: usize,
    is_whole: bool,
    is_cleared: bool,
    is_picked: bool,
}

impl DirtyList {
    /// Memory of all buffers, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the memory of the buffers of whole blocks that nobody has picked, in bytes.
    pub(crate) fn whole_bytes(&self) -> usize {
        self.whole_bytes
    }

    /// Lists a block whose buffer is new or has changed. Returns the memory it had before.
    pub(crate) fn update(&mut self, block: u64, bytes: usize, is_whole: bool, is_cleared: bool) -> usize {
        let old = self.blocks.get(&block).copied();
        let age = old.map_or_else(
            || {
                self.next_age += 1;
                self.next_age
            },
            |old| old.age,
        );
        self.unqueue(block);
        let entry = Entry { age, bytes, is_whole, is_cleared, is_picked: old.is_some_and(|old| old.is_picked) };
        self.blocks.insert(block, entry);
        let before = old.map_or(0, |old| old.bytes);
        self.bytes = self.bytes + bytes - before;
        self.queue(block);
        before
    }

    fn unqueue(&mut self, block: u64) {
        if let Some(entry) = self.blocks.get(&block)
            && !entry.is_picked
        {
            let queue = if entry.is_whole { &mut self.whole } else { &mut self.partial };
            queue.remove(&(entry.age, block));
            self.whole_bytes -= if entry.is_whole { entry.bytes } else { 0 };
        }
    }

    fn queue(&mut self, block: u64) {
        if let Some(entry) = self.blocks.get(&block)
            && !entry.is_picked
        {
            let queue = if entry.is_whole { &mut self.whole } else { &mut self.partial };
            queue.insert((entry.age, block));
            self.whole_bytes += if entry.is_whole { entry.bytes } else { 0 };
        }
    }

    /// Removes a block that has no buffer any more. Returns the memory it had.
    pub(crate) fn remove(&mut self, block: u64) -> usize {
        self.unqueue(block);
        let bytes = self.blocks.remove(&block).map_or(0, |entry| entry.bytes);
        self.bytes -= bytes;
        bytes
    }

    /// Picks up to `limit` blocks for the caller to write out: the oldest first, whole ones before others. Returns them
    /// sorted by block.
    pub(crate) fn pick(&mut self, limit: usize, only_whole: bool) -> Vec<u64> {
        let queue = if only_whole || !self.whole.is_empty() { &self.whole } else { &self.partial };
        let mut picked: Vec<u64> = queue.iter().take(limit).map(|(_, block)| *block).collect();
        for block in &picked {
            self.unqueue(*block);
            if let Some(entry) = self.blocks.get_mut(block) {
                entry.is_picked = true;
            }
        }
        picked.sort_unstable();
        picked
    }

    /// Returns picked blocks. Blocks that are still dirty wait again.
    pub(crate) fn unpick(&mut self, blocks: &[u64]) {
        for block in blocks {
            self.unqueue(*block);
            if let Some(entry) = self.blocks.get_mut(block) {
                entry.is_picked = false;
            }
            self.queue(*block);
        }
    }

    /// Returns the dirty blocks from `from` up to but not including `to`, sorted, and whether each is all zeros.
    pub(crate) fn range(&self, from: u64, to: u64, limit: usize) -> Vec<(u64, bool)> {
        if from >= to {
            return Vec::new();
        }
        self.blocks.range(from..to).take(limit).map(|(block, entry)| (*block, entry.is_cleared)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_come_first_and_the_oldest_before_the_newer() {
        let mut list = DirtyList::default();
        for (block, is_whole) in [(9, false), (8, true), (7, true), (6, false), (5, true)] {
            assert_eq!(list.update(block, 10, is_whole, false), 0);
        }
        assert_eq!(list.update(8, 30, true, false), 10);
        assert_eq!((list.bytes(), list.whole_bytes()), (70, 50));
        assert_eq!(list.pick(2, false), [7, 8]);
        assert_eq!(list.whole_bytes(), 10);
        assert_eq!(list.pick(2, false), [5]);
        assert!(list.pick(2, true).is_empty());
        assert_eq!(list.pick(1, false), [9]);
        // Written again while it was picked, then put back.
        list.update(9, 20, true, true);
        list.unpick(&[9]);
        assert_eq!(list.pick(5, true), [9]);
        assert_eq!(list.range(0, 9, 9), [(5, false), (6, false), (7, false), (8, false)]);
        assert_eq!(list.range(9, 10, 9), [(9, true)]);
        for block in 5..10 {
            list.remove(block);
        }
        list.unpick(&[9, 5]);
        assert_eq!((list.bytes(), list.whole_bytes()), (0, 0));
        assert!(list.whole.is_empty() && list.partial.is_empty());
    }
}
