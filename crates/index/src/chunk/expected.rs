//! Pages that are read before their lookup: advice, bounded in pages.
//!
//! A stream that waits for the device says which chunks it will look up next ([`ChunkIndex::expect`](super::ChunkIndex::expect)). The reads of
//! their pages begin at once. The lookup takes the pages from here and does not read them itself.
//!
//! # Why an answer from such a page is right
//! * A lookup needs each page as it was when the lookup took the log's changes, or later. An expected page was read
//!   before that moment.
//! * So [`ChunkIndex::expect`](super::ChunkIndex::expect) notes the number of writes before the read begins
//!   ([`PageCache::writes`](super::page_cache::PageCache::writes)).
//! * The lookup accepts the page only if that number is even and has not changed when it takes the changes. Then no page
//!   was written in between.
//! * The generation tells whether growth has put another page in that place.

use super::page_cache::is_quiet;
use onefold_ground::Reading;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// A page that nobody took for so long is dropped: another filter answered for its chunks.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pages of a file that are being read, or have been.
#[derive(Debug)]
pub(super) struct ExpectedPages {
    limit: usize,
    reads: Mutex<Reads>,
}

#[derive(Debug, Default)]
struct Reads {
    by_page: HashMap<u32, Expected>,
    /// Pages in the order in which their reads began, and when. Some may have been taken.
    begun: VecDeque<(Instant, u32)>,
}

#[derive(Debug)]
struct Expected {
    reading: Reading,
    /// The page cache's number of writes before the read began.
    writes: u64,
    generation: u32,
    begun: Instant,
}

impl ExpectedPages {
    /// Creates an empty set with room for `limit` pages.
    pub fn new(limit: usize) -> ExpectedPages {
        ExpectedPages { limit, reads: Mutex::default() }
    }

    /// Begins to read a page, unless it is being read already or there is no room. Returns whether a device reads it now.
    pub fn expect(&self, page: u32, generation: u32, writes: u64, begin: impl FnOnce() -> Option<Reading>) -> bool {
        let mut reads = self.reads.lock();
        if reads.by_page.get(&page).is_some_and(|read| read.writes == writes && read.generation == generation) {
            return false;
        }
        let now = Instant::now();
        while let Some((begun, page)) = reads.begun.front().copied() {
            let is_gone = reads.by_page.get(&page).is_none_or(|read| read.begun != begun);
            if !is_gone && now.duration_since(begun) < PATIENCE {
                break;
            }
            reads.begun.pop_front();
            if !is_gone {
                reads.by_page.remove(&page);
            }
        }
        if reads.by_page.len() >= self.limit || reads.begun.len() >= 2 * self.limit {
            return false;
        }
        let Some(reading) = begin() else { return false };
        let is_from_device = reading.is_from_device();
        reads.by_page.insert(page, Expected { reading, writes, generation, begun: now });
        reads.begun.push_back((now, page));
        is_from_device
    }

    /// Removes a page, and returns it if it is of this generation and no page was written since its read began.
    pub fn take(&self, page: u32, generation: u32, writes: u64) -> Option<Reading> {
        let read = self.reads.lock().by_page.remove(&page)?;
        (is_quiet(writes) && read.writes == writes && read.generation == generation).then_some(read.reading)
    }
}
