//! The page cache: pages in memory, as advice, bounded in bytes.
//!
//! A page has one place where it can lie: its number modulo the number of places. Fingerprints are uniform, so lookups
//! ask for all pages equally often. No other rule would keep better pages. Bytes lie in blocks, made when the first
//! page comes into them.
//!
//! Invariants:
//! * Every page in the cache was found intact when it was read from the file.
//! * When a page is rewritten, the cache forgets it before its merged changes are dropped from memory. So take the
//!   changes first, then ask the cache: the page lacks at most changes that the lookup already has.
//! * A page that was read before or during the writing of others may be old. The cache does not keep it
//!   ([`PageCache::insert`] compares the number of writes).

use super::page::{PAGE_BYTES, Page};
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Pages per block: 1 MiB.
const BLOCK_PAGES: usize = 256;
/// Memory of a cached page.
const PLACE_BYTES: usize = PAGE_BYTES + size_of::<u32>();
/// No page has this number.
const NONE: u32 = u32::MAX;

/// A page, aligned for the processor.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Frame([u8; PAGE_BYTES]);

/// Pages in memory.
#[derive(Debug)]
pub(super) struct PageCache {
    kept: RwLock<Kept>,
    /// Counts starts and ends of writes. Even: no write is in progress.
    writes: AtomicU64,
    limit_bytes: AtomicUsize,
    digest_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    /// The page at each place.
    numbers: Vec<u32>,
    /// Their bytes. A block without pages is empty.
    blocks: Vec<Vec<Frame>>,
}

/// A view of the cache, unchanged while it is held. Do not wait for anything meanwhile.
pub(super) struct KeptPages<'a> {
    kept: RwLockReadGuard<'a, Kept>,
    digest_bytes: usize,
}

impl PageCache {
    /// Creates a cache for `pages` pages in at most `limit_bytes`.
    pub fn new(limit_bytes: usize, pages: u64, digest_bytes: usize) -> PageCache {
        let kept = RwLock::new(Kept::new(limit_bytes, pages));
        PageCache { kept, writes: AtomicU64::new(0), limit_bytes: AtomicUsize::new(limit_bytes), digest_bytes }
    }

    /// Makes places for this many pages, as far as the bound allows. If the places change, drops all cached pages.
    pub fn extend(&self, pages: u64) {
        let mut kept = self.kept.write();
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        if places(limit_bytes, pages) != kept.numbers.len() {
            // Free the old pages first.
            *kept = Kept::new(0, 0);
            *kept = Kept::new(limit_bytes, pages);
        }
    }

    /// Changes the bound of its memory.
    pub fn bound(&self, limit_bytes: usize, pages: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        self.extend(pages);
    }

    /// Returns its memory in bytes.
    pub fn bytes(&self) -> usize {
        let kept = self.kept.read();
        kept.numbers.len() * size_of::<u32>() + kept.blocks.iter().map(|block| block.len() * PAGE_BYTES).sum::<usize>()
    }

    /// Returns the pages cached now.
    pub fn pages(&self) -> KeptPages<'_> {
        KeptPages { kept: self.kept.read(), digest_bytes: self.digest_bytes }
    }

    /// Returns the count of writes. Ask before reading a page to cache.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// Caches a verified page, unless a write was under way when `writes` was asked, or began since.
    pub fn insert(&self, page: u32, bytes: &[u8; PAGE_BYTES], writes: u64) {
        let mut kept = self.kept.write();
        // Checked under the lock: a writer counts first and later forgets its pages under the lock.
        if !is_quiet(writes) || self.writes.load(Ordering::Acquire) != writes || kept.numbers.is_empty() {
            return;
        }
        let places = kept.numbers.len();
        let place = page as usize % places;
        let (block, within) = (place / BLOCK_PAGES, place % BLOCK_PAGES);
        if kept.blocks[block].is_empty() {
            kept.blocks[block] = vec![Frame([0; PAGE_BYTES]); BLOCK_PAGES.min(places - block * BLOCK_PAGES)];
        }
        kept.blocks[block][within].0 = *bytes;
        kept.numbers[place] = page;
    }

    /// Call before writing pages. [`PageCache::end_write`] must follow in any case.
    pub fn begin_write(&self) {
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets pages that were or may have been written.
    pub fn end_write(&self, pages: impl Iterator<Item = u32>) {
        self.writes.fetch_add(1, Ordering::AcqRel);
        let mut kept = self.kept.write();
        if kept.numbers.is_empty() {
            return;
        }
        for page in pages {
            let place = page as usize % kept.numbers.len();
            if kept.numbers[place] == page {
                kept.numbers[place] = NONE;
            }
        }
    }
}

/// Returns whether no page was being written at this number of [writes](PageCache::writes).
pub(super) fn is_quiet(writes: u64) -> bool {
    writes.is_multiple_of(2)
}

/// Returns the number of places for pages.
fn places(limit_bytes: usize, pages: u64) -> usize {
    let places = ((limit_bytes / PLACE_BYTES) as u64).min(pages) as usize;
    // Use whole blocks if there is more than one, so that the bound holds.
    if places > BLOCK_PAGES && (places as u64) < pages { places - places % BLOCK_PAGES } else { places }
}

impl Kept {
    fn new(limit_bytes: usize, pages: u64) -> Kept {
        let places = places(limit_bytes, pages);
        Kept { numbers: vec![NONE; places], blocks: vec![Vec::new(); places.div_ceil(BLOCK_PAGES)] }
    }
}

impl KeptPages<'_> {
    /// Returns a page, if it is cached and of this generation.
    pub fn get(&self, page: u32, generation: u32) -> Option<Page<'_>> {
        if self.kept.numbers.is_empty() {
            return None;
        }
        let place = page as usize % self.kept.numbers.len();
        let is_here = self.kept.numbers[place] == page;
        let kept = is_here.then(|| Page::of_verified(&self.kept.blocks[place / BLOCK_PAGES][place % BLOCK_PAGES].0, self.digest_bytes));
        kept.filter(|page| page.generation() == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::page::{Place, encode_page};

    fn bytes(page: u32, position: u64) -> [u8; PAGE_BYTES] {
        let mut bytes = Vec::new();
        encode_page(&mut bytes, Place { page, generation: 0, digest_bytes: 20 }, position, 0, &[]);
        bytes.try_into().unwrap()
    }

    fn position(cache: &PageCache, page: u32) -> Option<u64> {
        cache.pages().get(page, 0).map(|page| page.position())
    }

    #[test]
    fn pages_are_kept_within_the_bound_and_the_newest_takes_the_place() {
        for (limit_bytes, pages) in [(0, 64), (4095, 64), (40_000, 64), (3 << 20, 10_000), (1 << 40, 1000)] {
            let cache = PageCache::new(limit_bytes, pages, 20);
            for page in 0..pages as u32 {
                cache.insert(page, &bytes(page, u64::from(page) + 1), cache.writes());
                assert!(cache.bytes() <= limit_bytes, "{limit_bytes}: {}", cache.bytes());
                assert!(position(&cache, page) == Some(u64::from(page) + 1) || limit_bytes < 2 * PAGE_BYTES);
            }
            let kept = (0..pages as u32).filter(|page| position(&cache, *page).is_some()).count();
            assert!(kept as u64 == pages || kept * PAGE_BYTES + (1 << 20) > limit_bytes - limit_bytes % PLACE_BYTES, "{kept}");
        }
    }

    #[test]
    fn a_page_that_was_read_before_or_while_pages_were_written_is_not_kept() {
        let cache = PageCache::new(1 << 20, 8, 20);
        let before = cache.writes();
        cache.insert(3, &bytes(3, 1), before);
        cache.insert(4, &bytes(4, 1), before);
        cache.begin_write();
        cache.insert(5, &bytes(5, 1), before);
        cache.insert(5, &bytes(5, 1), cache.writes());
        assert_eq!((position(&cache, 3), position(&cache, 5)), (Some(1), None));
        let meanwhile = cache.writes();
        cache.end_write([3, 5].into_iter());
        cache.insert(5, &bytes(5, 1), before);
        cache.insert(5, &bytes(5, 1), meanwhile);
        assert_eq!((position(&cache, 3), position(&cache, 4), position(&cache, 5)), (None, Some(1), None));
        cache.insert(5, &bytes(5, 2), cache.writes());
        assert_eq!(position(&cache, 5), Some(2));
    }
}
