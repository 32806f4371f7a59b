//! What will be read, as far as somebody has said. Only hints: the ground of a store in a bucket then fetches whole
//! containers, each with one request, and many at once (decision 0068).

use crate::containers::file;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Address, ContainerId};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether everything is read, as by a restore.
#[derive(Debug, Default)]
pub(crate) struct Ahead(AtomicBool);

impl ContainerStore {
    /// Says that most of every container that is opened from now on will be read.
    pub fn will_read_all(&self) {
        self.shared.ahead.0.store(true, Relaxed);
    }

    /// Says that these chunks will be read soon, and others of their containers. Does not wait.
    pub fn will_read(&self, addresses: impl Iterator<Item = Address>) {
        let mut before = None;
        for container in addresses.map(|address| address.container()) {
            if before.replace(container) != Some(container) && !self.shared.unsealed.contains(container) {
                let known = self.shared.forwards.get(container).flatten().unwrap_or(container);
                if self.shared.caches.file(known).is_none() {
                    self.shared.say_is_read(known);
                }
            }
        }
    }
}

impl Shared {
    /// Call before a container is opened for reading.
    pub(crate) fn opens(&self, container: ContainerId) {
        if self.ahead.0.load(Relaxed) {
            self.say_is_read(container);
        }
    }

    fn say_is_read(&self, container: ContainerId) {
        self.ground.will_read(&file::path(&self.directory, container));
    }
}
