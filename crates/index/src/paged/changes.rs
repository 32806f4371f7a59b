//! Changes by fingerprint, in memory (M0.14).
//!
//! Slots lie in blocks that never move, so memory grows block by block instead of doubling. A table of slot numbers
//! finds them, with five bytes per bucket: 6 to 12 bytes for an entry.

use hashbrown::HashTable;
use onefold_fingerprint::Fingerprint;
use std::hash::{BuildHasher, RandomState};

/// Slots per block.
const BLOCK_SLOTS: usize = 256;

/// One change for each of many chunks.
#[derive(Clone, Debug)]
pub(crate) struct Changes<C> {
    blocks: Vec<Vec<(Fingerprint, C)>>,
    table: HashTable<u32>,
    seed: u64,
}

impl<C> Default for Changes<C> {
    fn default() -> Changes<C> {
        // Seeded, so that nobody can choose data whose fingerprints share a bucket.
        Changes { blocks: Vec::new(), table: HashTable::new(), seed: RandomState::new().hash_one(0u8) }
    }
}

impl<C: Copy + Default> Changes<C> {
    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns its memory in bytes.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_SLOTS * size_of::<(Fingerprint, C)>() + self.table.allocation_size()
    }

    /// Returns the change of a chunk.
    pub fn get(&self, fingerprint: &Fingerprint) -> Option<C> {
        let number = self.table.find(hash(self.seed, fingerprint), |number| self.slot(*number).0 == *fingerprint)?;
        Some(self.slot(*number).1)
    }

    /// Returns the slots in the order of their fingerprints.
    pub fn sorted(&self) -> Vec<u32> {
        let slots = self.blocks.iter().flatten().enumerate();
        let mut order: Vec<(u64, u32)> = slots.map(|(number, (fingerprint, _))| (fingerprint.prefix(), number as u32)).collect();
        order.sort_unstable_by(|one, other| one.0.cmp(&other.0).then_with(|| self.slot(one.1).0.cmp(&self.slot(other.1).0)));
        order.into_iter().map(|(_, number)| number).collect()
    }

    /// Returns slot `number` of [`Changes::sorted`].
    pub fn slot(&self, number: u32) -> &(Fingerprint, C) {
        &self.blocks[number as usize / BLOCK_SLOTS][number as usize % BLOCK_SLOTS]
    }

    /// Returns the change of a chunk, which is the default if it had none.
    pub fn entry(&mut self, fingerprint: &Fingerprint) -> &mut C {
        let (seed, blocks) = (self.seed, &mut self.blocks);
        let slot = |number: u32| (number as usize / BLOCK_SLOTS, number as usize % BLOCK_SLOTS);
        let hashed = hash(seed, fingerprint);
        let found = self.table.find(hashed, |number| {
            let (block, at) = slot(*number);
            blocks[block][at].0 == *fingerprint
        });
        let (block, at) = match found {
            Some(number) => slot(*number),
            None => {
                let number = self.table.len() as u32;
                let place = slot(number);
                if place.1 == 0 {
                    blocks.push(Vec::with_capacity(BLOCK_SLOTS));
                }
                blocks[place.0].push((*fingerprint, C::default()));
                self.table.insert_unique(hashed, number, |number| {
                    let (block, at) = slot(*number);
                    hash(seed, &blocks[block][at].0)
                });
                place
            }
        };
        &mut blocks[block][at].1
    }
}

fn hash(seed: u64, fingerprint: &Fingerprint) -> u64 {
    let product = u128::from(fingerprint.hash_bits() ^ seed) * 0x9e37_79b9_7f4a_7c15_u128;
    product as u64 ^ (product >> 64) as u64
}
