//! What will be read, as far as somebody has said. Only hints: the ground of a store in a bucket then fetches whole
//! containers, each with one request, and several at once (decision 0068).

use crate::containers::file;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Address, ContainerId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A container is fetched whole if this part of it will be read, before compression.
const WORTH: u64 = 4;
/// Containers that are counted at a time.
const COUNTED: usize = 4096;

/// What will be read.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Whether everything will, as by a restore.
    is_all: AtomicBool,
    /// Bytes of each container.
    wanted_bytes: Mutex<HashMap<ContainerId, u64>>,
}

impl ContainerStore {
    /// Says that most of every container that is opened from now on will be read.
    pub fn will_read_all(&self) {
        self.shared.ahead.is_all.store(true, Relaxed);
    }

    /// Says that chunks of these lengths will be read soon. Does not wait.
    pub fn will_read(&self, chunks: impl Iterator<Item = (Address, u32)>) {
        let (mut order, mut wanted) = (Vec::new(), HashMap::new());
        for (address, length) in chunks {
            *wanted.entry(address.container()).or_insert_with(|| {
                order.push(address.container());
                0
            }) += u64::from(length);
        }
        order.retain(|container| self.shared.ahead.is_worth_it(*container, wanted[container], self.shared.options.container_bytes));
        for container in order.into_iter().filter(|container| !self.shared.unsealed.contains(*container)) {
            let known = self.shared.forwards.get(container).flatten().unwrap_or(container);
            if self.shared.caches.file(known).is_none() {
                self.shared.say_is_read(known);
            }
        }
    }

    /// Returns the number of the first chunk whose container was said to be read, and is on its way.
    pub fn first_coming(&self, chunks: impl Iterator<Item = (usize, Address)>) -> Option<usize> {
        let mut here = None;
        for (number, address) in chunks {
            let container = address.container();
            if here == Some(container) {
                continue;
            }
            if self.shared.is_coming(container) {
                return Some(number);
            }
            here = Some(container);
        }
        None
    }
}

impl Ahead {
    /// Counts bytes that will be read. Returns whether there are enough.
    fn is_worth_it(&self, container: ContainerId, bytes: u64, container_bytes: u32) -> bool {
        if self.is_all.load(Relaxed) {
            return true;
        }
        let mut wanted = self.wanted_bytes.lock();
        if wanted.len() >= COUNTED {
            wanted.clear();
        }
        let sum = wanted.entry(container).or_default();
        *sum += bytes;
        *sum >= u64::from(container_bytes) / WORTH
    }
}

impl Shared {
    /// Call before a container is opened for reading.
    pub(crate) fn opens(&self, container: ContainerId) {
        if self.ahead.is_all.load(Relaxed) {
            self.say_is_read(container);
        }
    }

    fn is_coming(&self, container: ContainerId) -> bool {
        let known = self.forwards.get(container).flatten().unwrap_or(container);
        self.caches.file(known).is_none()
            && !self.unsealed.contains(container)
            && self.ground.is_coming(&file::path(&self.directory, known))
    }

    fn say_is_read(&self, container: ContainerId) {
        self.ground.will_read(&file::path(&self.directory, container));
    }
}
