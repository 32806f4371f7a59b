//! Finds a chunk in its block without asking the block table: by its name.
//!
//! Another process may be writing to the store. Then the table's pages change while this one reads them, and say
//! nothing that it could rely on. A chunk that a reader holds is in its block all the same, as nobody removes it. Only
//! its length is not known: most chunks are as long as a block, and behind the others there are zeros.

use crate::arena::block::block_of_address;
use crate::arena::reader::lasting;
use crate::arena::store::ArenaStore;
use crate::{Address, Result, Slice};
use onefold_fingerprint::Fingerprint;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl ArenaStore {
    /// From now on another process may write to the store. Call only before replay, in a store that is open for
    /// reading.
    pub fn follow_writers(&self) {
        self.follows_writers.store(true, Relaxed);
    }

    /// Loads chunks by their names alone, if this is to be done.
    pub(crate) fn load_by_content(&self, wanted: &[(Address, Fingerprint)]) -> Option<Result<Vec<Slice>>> {
        let follows_writers = self.follows_writers.load(Relaxed);
        follows_writers.then(|| wanted.iter().map(|(address, name)| self.find(*address, name)).collect())
    }

    fn find(&self, address: Address, name: &Fingerprint) -> Result<Slice> {
        let block = block_of_address(address).ok_or_else(|| self.no_block(address))?;
        let start = block * self.block_bytes();
        let bytes = match self.read_bytes(start..start + self.block_bytes()) {
            Ok(bytes) => Arc::new(bytes),
            Err(error) => return Err(self.damaged(block, lasting(error)?)),
        };
        match self.length_of(name, &bytes) {
            Some(length) => Ok(Slice::new(bytes, 0..length)),
            None => Err(self.damaged(block, "it has another chunk, or its bytes have changed".to_owned())),
        }
    }

    /// Returns the length of the chunk of this name at the beginning of a block.
    pub(crate) fn length_of(&self, name: &Fingerprint, block: &[u8]) -> Option<usize> {
        let algorithm = self.options.fingerprint;
        if algorithm.fingerprint(block) == *name {
            return Some(block.len());
        }
        let shortest = block.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
        let is_named = |length: &usize| [algorithm.fingerprint(&block[..*length]), algorithm.metadata(&block[..*length])].contains(name);
        (shortest..=block.len()).find(is_named)
    }
}
