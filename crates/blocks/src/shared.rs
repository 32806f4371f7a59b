//! What the open spaces of a store share: the engine, the limits of memory, the layers, the list of all of them.

use crate::error::Result;
use crate::layers::Layers;
use crate::options::SpacesOptions;
use crate::space::Space;
use onefold_engine::Engine;
use onefold_ground::profile::Profile;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest time that a writer waits for others to write out. Usually it is woken earlier.
const WAIT: Duration = Duration::from_millis(50);

/// The common state of all spaces. A space that needs room writes out another one.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) options: SpacesOptions,
    pub(crate) layers: Layers,
    /// Memory of the write-back buffers of all spaces, bytes.
    dirty_bytes: AtomicUsize,
    /// Memory of the cells of all spaces, bytes.
    pub(crate) cached_bytes: Arc<AtomicUsize>,
    /// The open spaces by number.
    open: Mutex<BTreeMap<u32, Weak<Space>>>,
    written_out: (Mutex<()>, Condvar),
}

impl Shared {
    pub(crate) fn open(engine: Arc<Engine>, options: SpacesOptions, problems: &mut Vec<String>) -> Result<Shared> {
        Ok(Shared {
            layers: Layers::open(&engine, problems)?,
            engine,
            options,
            dirty_bytes: AtomicUsize::new(0),
            cached_bytes: Arc::default(),
            open: Mutex::default(),
            written_out: (Mutex::new(()), Condvar::new()),
        })
    }

    pub(crate) fn profile(&self) -> &Profile {
        self.engine.profile()
    }

    pub(crate) fn register(&self, number: u32, space: &Arc<Space>) {
        self.open.lock().insert(number, Arc::downgrade(space));
    }

    pub(crate) fn unregister(&self, number: u32) {
        self.open.lock().remove(&number);
    }

    fn registered(&self) -> Vec<Arc<Space>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Counts a change of a buffer's memory.
    pub(crate) fn count_dirty(&self, before: usize, after: usize) {
        self.dirty_bytes.fetch_add(after, Ordering::Relaxed);
        self.dirty_bytes.fetch_sub(before, Ordering::Relaxed);
    }

    /// Wakes the threads that wait for memory.
    pub(crate) fn notify_written_out(&self) {
        let _lock = self.written_out.0.lock();
        self.written_out.1.notify_all();
    }

    /// Waits until another thread has written something out.
    pub(crate) fn wait_for_others(&self) {
        let mut lock = self.written_out.0.lock();
        self.written_out.1.wait_for(&mut lock, WAIT);
    }

    /// Returns the space with the largest buffers.
    pub(crate) fn dirtiest(&self) -> Option<Arc<Space>> {
        self.registered().into_iter().max_by_key(|space| space.dirty_bytes())
    }

    /// Keeps the cache of mappings within its limit. The caller holds no cell.
    pub(crate) fn tidy(&self, first: &Space) {
        let limit = self.options.mapping_cache_bytes;
        if self.cached_bytes.load(Ordering::Relaxed) <= limit {
            return;
        }
        // A little lower, so that not every request has to do this.
        let target = limit - limit / 8;
        first.shrink_cache(target);
        if self.cached_bytes.load(Ordering::Relaxed) > limit {
            self.registered().iter().for_each(|space| space.shrink_cache(target));
        }
    }
}
