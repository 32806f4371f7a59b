//! Pages that are read before their lookup: advice, bounded in pages.
//!
//! A stream that waits for the device says which chunks it will look up next
//! ([`ChunkIndex::expect`](super::ChunkIndex::expect)). The reads of their pages begin at once. The lookup takes the
//! pages from here and does not read them itself. What nobody takes goes when others are expected later.
//!
//! # Why an answer from such a page is right
//! * A lookup needs each page as it was when the lookup took the log's changes, or later. An expected page was read
//!   before that moment.
//! * So [`ChunkIndex::expect`](super::ChunkIndex::expect) notes the number of writes before the read begins
//!   ([`PageCache::writes`](super::page_cache::PageCache::writes)).
//! * The lookup accepts the page only if that number is even and has not changed when it takes the changes. Then no
//!   page was written in between.
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

    /// Begins to read a page, unless it is being read already or there is no room. Returns whether a device reads it
    /// now.
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
        if reads.by_page.len() >= self.limit {
            return false;
        }
        if reads.begun.len() >= 2 * self.limit {
            // One page that nobody takes would keep all that were begun behind it in the queue.
            let Reads { by_page, begun } = &mut *reads;
            begun.retain(|(begun, page)| by_page.get(page).is_some_and(|read| read.begun == *begun));
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

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::{Ground, ReadRequest, Readers, SimulatedGround};

    #[test]
    fn a_page_that_nobody_takes_keeps_no_others_from_being_expected() {
        let file = SimulatedGround::new(1).create("pages").unwrap();
        file.write_at(0, &[1; 64]).unwrap();
        let readers = Readers::new(2);
        let begin = || readers.begin(ReadRequest { file: file.clone(), offset: 0, length_bytes: 64 });
        let expected = ExpectedPages::new(4);
        let is_expected = |page: u32| {
            expected.expect(page, 1, 2, begin);
            expected.reads.lock().by_page.contains_key(&page)
        };
        assert!(is_expected(0));
        for page in 1..100 {
            assert!(is_expected(page), "page {page}");
            assert!(expected.take(page, 1, 2).is_some());
            assert!(expected.reads.lock().begun.len() <= 8);
        }
        assert!(expected.take(0, 1, 4).is_none(), "pages were written since");
        // No more than the limit, whoever takes them.
        assert_eq!((100..110).filter(|page| is_expected(*page)).count(), 4);
    }
}
