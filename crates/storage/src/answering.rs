//! Which file counts for a chunk that two files have.
//!
//! That is never so in a store as it should be. But files of merged containers came back in stores of earlier versions after power cuts, and stay where
//! the container that was merged from them was damaged once. Whoever adds up what is stored must count each address once.

use crate::store::ContainerStore;
use crate::{Address, ContainerId, Result};
use std::collections::HashSet;

/// Of a list of containers, which of them to ask for an address.
#[derive(Debug)]
pub struct Answering {
    listed: HashSet<ContainerId>,
    /// Those that were merged, and whose files are there all the same.
    stale: HashSet<ContainerId>,
}

impl ContainerStore {
    /// Finds out which of these [`containers`](Self::containers) count. A file is stale if its container has a forward to a sound one of them: that one
    /// has all chunks that anybody needs.
    pub fn answering(&self, containers: &[ContainerId]) -> Result<Answering> {
        let listed: HashSet<ContainerId> = containers.iter().copied().collect();
        let mut stale = HashSet::new();
        for id in self.forwards()?.into_iter().filter(|id| listed.contains(id)) {
            match self.verify_forward(id) {
                Ok(target) => stale.extend((target != id && listed.contains(&target)).then_some(id)),
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Answering { listed, stale })
    }
}

impl Answering {
    /// Returns whether the copy that `container` has of the chunk with this address counts.
    pub fn counts(&self, container: ContainerId, address: Address) -> bool {
        let home = address.container();
        !self.stale.contains(&container) && (home == container || !self.listed.contains(&home) || self.stale.contains(&home))
    }
}
