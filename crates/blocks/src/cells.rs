//! The blocks of a space that are in memory: their locks, their buffers, the cache of their mappings.
//!
//! Invariants:
//! * A block has at most one cell, so all its users share one lock. A cell leaves the map only when nobody uses it and
//!   it has no buffer.
//! * The cached mapping is what the space's layers have for the block. It changes only under the cell's write lock,
//!   and is loaded under either lock.

use crate::buffer::Buffer;
use onefold_engine::Piece;
use onefold_ground::profile::{Component, Profile};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Waiting for locks of blocks.
static LOCK: Component = Component::new("lock");

/// A block's mapping.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mapping {
    /// The level-0 pieces; none for a block of zeros.
    pub(crate) pieces: Arc<Vec<Piece>>,
    /// The layer that has the mapping. 0: none has.
    pub(crate) layer: u32,
}

/// Shards of the map: enough that threads rarely meet.
const SHARDS: usize = 32;
/// Memory of a cell besides mapping and buffer, rounded up.
const CELL_BYTES: usize = 256;

/// One block in memory.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    buffer: RwLock<Option<Buffer>>,
    mapping: Mutex<Option<Mapping>>,
    was_used: AtomicBool,
}

impl Cell {
    /// Waits for shared access to the block.
    pub(crate) fn read<'c>(&'c self, profile: &Profile) -> RwLockReadGuard<'c, Option<Buffer>> {
        self.buffer.try_read().unwrap_or_else(|| {
            let start = Instant::now();
            let guard = self.buffer.read();
            profile.add(&LOCK, start.elapsed().as_nanos() as u64, 0);
            guard
        })
    }

    /// Waits for exclusive access to the block.
    pub(crate) fn write<'c>(&'c self, profile: &Profile) -> RwLockWriteGuard<'c, Option<Buffer>> {
        self.buffer.try_write().unwrap_or_else(|| {
            let start = Instant::now();
            let guard = self.buffer.write();
            profile.add(&LOCK, start.elapsed().as_nanos() as u64, 0);
            guard
        })
    }

    /// Returns the cached mapping. The caller holds one of the block's locks.
    pub(crate) fn mapping(&self) -> Option<Mapping> {
        self.mapping.lock().clone()
    }
}

/// Spreads blocks whose numbers are close together, and those that are far apart by the same power of two.
fn shard_of(block: u64) -> usize {
    // 2^64 divided by the golden ratio.
    (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SHARDS.ilog2())) as usize
}

fn mapping_bytes(mapping: &Mapping) -> usize {
    mapping.pieces.capacity() * size_of::<Piece>()
}

/// The cells of one space.
#[derive(Debug)]
pub(crate) struct Cells {
    shards: Vec<Mutex<HashMap<u64, Arc<Cell>>>>,
    /// Memory of cells and mappings of all spaces together.
    cached_bytes: Arc<AtomicUsize>,
}

impl Cells {
    pub(crate) fn new(cached_bytes: Arc<AtomicUsize>) -> Cells {
        Cells { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), cached_bytes }
    }

    /// Returns the cell of a block.
    pub(crate) fn get(&self, block: u64) -> Arc<Cell> {
        let mut shard = self.shards[shard_of(block)].lock();
        let cell = shard.entry(block).or_insert_with(|| {
            self.cached_bytes.fetch_add(CELL_BYTES, Ordering::Relaxed);
            Arc::default()
        });
        cell.was_used.store(true, Ordering::Relaxed);
        cell.clone()
    }

    /// Remembers the mapping of a cell whose lock the caller holds.
    pub(crate) fn remember(&self, cell: &Cell, mapping: Mapping) {
        let mut place = cell.mapping.lock();
        self.cached_bytes.fetch_add(mapping_bytes(&mapping), Ordering::Relaxed);
        if let Some(old) = place.replace(mapping) {
            self.cached_bytes.fetch_sub(mapping_bytes(&old), Ordering::Relaxed);
        }
    }

    /// Forgets the mapping of a cell whose lock the caller holds, because the object index may have changed.
    pub(crate) fn forget(&self, cell: &Cell) {
        if let Some(old) = cell.mapping.lock().take() {
            self.cached_bytes.fetch_sub(mapping_bytes(&old), Ordering::Relaxed);
        }
    }

    /// Forgets all mappings. The caller keeps everyone else away from the cells.
    pub(crate) fn forget_all(&self) {
        for shard in &self.shards {
            shard.lock().values().for_each(|cell| self.forget(cell));
        }
    }

    /// Evicts cells that are not in use and were not used since the last call, until the memory of all spaces is at
    /// most `limit_bytes`.
    pub(crate) fn shrink(&self, limit_bytes: usize) {
        for shard in &self.shards {
            if self.cached_bytes.load(Ordering::Relaxed) <= limit_bytes {
                return;
            }
            shard.lock().retain(|_, cell| {
                // Nobody else can get the cell while its shard is locked.
                let Some(unused) = Arc::get_mut(cell) else { return true };
                let was_used = std::mem::take(unused.was_used.get_mut());
                if was_used || unused.buffer.get_mut().is_some() {
                    return true;
                }
                let mapping = unused.mapping.get_mut().take();
                self.cached_bytes.fetch_sub(CELL_BYTES + mapping.as_ref().map_or(0, mapping_bytes), Ordering::Relaxed);
                false
            });
        }
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            for cell in shard.get_mut().values() {
                let mapping = cell.mapping();
                self.cached_bytes.fetch_sub(CELL_BYTES + mapping.as_ref().map_or(0, mapping_bytes), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Base;

    #[test]
    fn blocks_that_are_far_apart_have_different_shards_as_those_that_are_close() {
        for stride in [1, 1 << 28] {
            let mut blocks = [0; SHARDS];
            (0..1000u64).for_each(|number| blocks[shard_of(number * stride)] += 1);
            assert!(blocks.iter().all(|blocks| (15..=60).contains(blocks)), "{blocks:?}");
        }
    }

    #[test]
    fn the_cache_stays_within_its_bound_and_keeps_what_is_dirty_or_held() {
        let bytes = Arc::new(AtomicUsize::new(0));
        let cells = Cells::new(bytes.clone());
        let profile = Profile::default();
        *cells.get(1).write(&profile) = Some(Buffer::new(Base::Zeros));
        let held = cells.get(2);
        for block in 3..1000 {
            let cell = cells.get(block);
            let _lock = cell.read(&profile);
            cells.remember(&cell, Mapping { pieces: Arc::new(vec![Piece::Zeros { length: 1 }; 10]), layer: 1 });
        }
        cells.shrink(10_000);
        cells.shrink(10_000);
        assert!(bytes.load(Ordering::Relaxed) <= 10_000 + 40 * CELL_BYTES);
        cells.shrink(0);
        cells.shrink(0);
        assert_eq!(bytes.load(Ordering::Relaxed), 2 * CELL_BYTES);
        assert!(Arc::ptr_eq(&held, &cells.get(2)));
        assert!(cells.get(1).read(&profile).is_some());
        drop(cells);
        assert_eq!(bytes.load(Ordering::Relaxed), 0);
    }
}
