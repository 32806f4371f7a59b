//! Lists the containers that the log does not know as sealed.
//!
//! Locks: the list comes before the state of a container. A callback of [`Unsealed::with_all`] never asks the list
//! again: behind a writer that waits for the list, a second look would wait forever.

use crate::ContainerId;
use crate::containers::open::OpenContainer;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Values;
use std::sync::Arc;

/// The open containers of a store.
#[derive(Debug, Default)]
pub(crate) struct Unsealed {
    list: RwLock<BTreeMap<ContainerId, Arc<OpenContainer>>>,
}

impl Unsealed {
    pub(crate) fn contains(&self, container: ContainerId) -> bool {
        self.list.read().contains_key(&container)
    }

    pub(crate) fn get(&self, container: ContainerId) -> Option<Arc<OpenContainer>> {
        self.list.read().get(&container).cloned()
    }

    /// Returns all of them, ascending.
    pub(crate) fn all(&self) -> Vec<Arc<OpenContainer>> {
        self.list.read().values().cloned().collect()
    }

    /// Works with all of them, ascending. Meanwhile no container comes or goes.
    pub(crate) fn with_all<T>(&self, work: impl FnOnce(Values<'_, ContainerId, Arc<OpenContainer>>) -> T) -> T {
        work(self.list.read().values())
    }

    pub(crate) fn insert(&self, container: Arc<OpenContainer>) {
        self.list.write().insert(container.id, container);
    }

    /// Returns a container. Creates it if there is none.
    pub(crate) fn get_or_insert(&self, container: ContainerId, new: impl FnOnce() -> OpenContainer) -> Arc<OpenContainer> {
        self.list.write().entry(container).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Takes a container off the list. Returns whether it was there.
    pub(crate) fn remove(&self, container: ContainerId) -> bool {
        self.list.write().remove(&container).is_some()
    }

    /// Returns whether a thread reads or changes the list.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.list.is_locked()
    }
}
