//! Keeps what is known of forwards without asking the disk, and counts moves of chunks between files: see
//! [`crate::containers::forward`].

use crate::containers::cache::Lru;
use crate::{ContainerId, ContainerSet};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Forwards kept in memory, about 100 bytes each.
const KNOWN_FORWARDS: usize = 16 << 10;

/// Where the chunks of merged containers are, as far as known here. Each method takes the lock last and alone.
#[derive(Debug)]
pub(crate) struct Forwards {
    known: Mutex<Known>,
    generation: AtomicU64,
}

#[derive(Debug)]
struct Known {
    /// What merges in the log say and the disk may not say yet: the container that answers, or that none does.
    logged: HashMap<ContainerId, Option<ContainerId>>,
    /// What the forward files read last said.
    read: Lru<ContainerId, ContainerId>,
}

impl Known {
    fn new() -> Known {
        Known { logged: HashMap::new(), read: Lru::new(KNOWN_FORWARDS) }
    }
}

impl Forwards {
    pub(crate) fn new() -> Forwards {
        Forwards { known: Mutex::new(Known::new()), generation: AtomicU64::new(0) }
    }

    /// Returns how often chunks have moved between files.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// Returns whether no chunk has moved between files since the generation was asked for.
    pub(crate) fn is_unmoved_since(&self, generation: u64) -> bool {
        self.generation() == generation
    }

    /// Counts a move. Call only when the new place can be found, and before the old file goes.
    pub(crate) fn count_move(&self) {
        self.generation.fetch_add(1, SeqCst);
    }

    /// Returns the container that answers to `id`. `Some(None)`: none does any more. `None`: ask the disk.
    pub(crate) fn get(&self, id: ContainerId) -> Option<Option<ContainerId>> {
        let mut known = self.known.lock();
        match known.logged.get(&id) {
            Some(fate) => Some(*fate),
            None => known.read.get(&id).map(Some),
        }
    }

    /// Returns what the log says of `id` and the disk may not say yet; `None`: nothing.
    pub(crate) fn logged(&self, id: ContainerId) -> Option<Option<ContainerId>> {
        self.known.lock().logged.get(&id).copied()
    }

    /// Returns whether the log says something of `id` that the disk may not say yet. Then its file may go at any
    /// moment.
    pub(crate) fn is_logged(&self, id: ContainerId) -> bool {
        self.known.lock().logged.contains_key(&id)
    }

    /// Keeps only ids of which the log says nothing that the disk may not say yet.
    pub(crate) fn retain_unlogged(&self, ids: &mut ContainerSet) {
        for id in self.known.lock().logged.keys() {
            ids.remove(*id);
        }
    }

    /// Turns the ids that have a forward on disk into the ids that are forwarded.
    pub(crate) fn correct(&self, ids: &mut ContainerSet) {
        for (id, fate) in &self.known.lock().logged {
            if fate.is_some() {
                ids.insert(*id);
            } else {
                ids.remove(*id);
            }
        }
    }

    /// Notes what the log says of ids. Readers see all of it or nothing.
    pub(crate) fn set_logged(&self, fates: impl Iterator<Item = (ContainerId, Option<ContainerId>)>) {
        let mut known = self.known.lock();
        for (id, fate) in fates {
            known.read.remove(&id);
            known.logged.insert(id, fate);
        }
    }

    /// Notes that the disk now says so too.
    pub(crate) fn set_done<'a>(&self, ids: impl Iterator<Item = &'a ContainerId>) {
        let mut known = self.known.lock();
        for id in ids {
            if let Some(Some(target)) = known.logged.remove(id) {
                known.read.insert(*id, target, 1);
            }
        }
    }

    /// Notes what a forward file said, unless a chunk has moved since `generation`.
    pub(crate) fn set_read(&self, id: ContainerId, target: ContainerId, generation: u64) {
        let mut known = self.known.lock();
        if self.is_unmoved_since(generation) {
            known.read.insert(id, target, 1);
        }
    }

    /// Forgets these ids: the disk is asked about them again.
    pub(crate) fn forget<'a>(&self, ids: impl Iterator<Item = &'a ContainerId>) {
        let mut known = self.known.lock();
        ids.for_each(|id| known.read.remove(id));
        // Under the lock: a reader that read before this notes nothing after it.
        self.count_move();
    }

    /// Forgets all ids of a partition: the disk is asked about them again, whatever the log says.
    pub(crate) fn forget_partition(&self, partition: u16) {
        let mut known = self.known.lock();
        known.logged.retain(|id, _| id.partition() != partition);
        known.read = Lru::new(KNOWN_FORWARDS);
        self.count_move();
    }
}
