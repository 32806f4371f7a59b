//! Decides which file counts for a chunk that several files have.
//!
//! A store as it should be has no such chunks. But in stores of earlier versions, files of merged containers came back
//! after power cuts. Old files also stay where the container merged from them was damaged once. Code that adds up what
//! is stored must count each address once.

use crate::containers::store::ContainerStore;
use crate::{Address, ContainerId, ContainerSet, Origin, Result, Slot};
use std::collections::{HashMap, HashSet};

/// Tells which of the listed containers to ask for an address.
#[derive(Debug)]
pub struct Answering<'a> {
    /// `None`: each unit counts for its own chunks.
    store: Option<&'a ContainerStore>,
    listed: &'a ContainerSet,
    /// Listed containers that were merged and still have files, by the container that has their chunks.
    stale: HashMap<ContainerId, ContainerId>,
}

impl ContainerStore {
    /// Finds out which of these [`containers`](Self::containers) count; `forwards` are the [`forwards`](Self::forwards)
    /// read after them. A file is stale if its container has a forward to a sound one of them: that one has all chunks
    /// that anybody needs.
    pub fn answering<'a>(&'a self, containers: &'a ContainerSet, forwards: &ContainerSet) -> Result<Answering<'a>> {
        let mut stale = HashMap::new();
        for id in forwards.iter().filter(|id| containers.contains(*id)) {
            match self.verify_forward(id) {
                Ok(target) => stale.extend((target != id && containers.contains(target)).then_some((id, target))),
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Answering { store: Some(self), listed: containers, stale })
    }
}

impl<'a> Answering<'a> {
    /// Returns the answers where each of these units counts for its own chunks.
    pub(crate) fn without_forwards(units: &'a ContainerSet) -> Answering<'a> {
        Answering { store: None, listed: units, stale: HashMap::new() }
    }
}

impl Answering<'_> {
    /// Returns the origins whose chunks count in `container`, which has these slots. All others count in another file.
    pub fn origins(&self, container: ContainerId, slots: &[(Address, Slot)]) -> Result<HashSet<Origin>> {
        let mut homes: HashSet<Origin> = slots.iter().map(|(address, _)| address.origin()).collect();
        let mut failed = None;
        homes.retain(|home| match self.counts(container, home.container()) {
            Ok(counts) => counts,
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        failed.map_or(Ok(homes), Err)
    }

    fn counts(&self, container: ContainerId, home: ContainerId) -> Result<bool> {
        let Some(store) = self.store else { return Ok(true) };
        if home == container || self.stale.contains_key(&container) {
            return Ok(!self.stale.contains_key(&container));
        }
        let target = match self.stale.get(&home) {
            Some(target) => *target,
            None if self.listed.contains(home) => return Ok(false),
            None => match store.catalog(home) {
                Ok(catalog) => catalog.container,
                // Its address leads nowhere, so every file that has it may help.
                Err(error) if error.is_damage() => return Ok(true),
                Err(error) => return Err(error),
            },
        };
        // A container that was merged again has no forward, as no address is its own.
        Ok(target == container || !self.listed.contains(target))
    }
}
