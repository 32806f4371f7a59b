//! Pages that are being read for look-ups to come: advice, bounded in pages.
//!
//! A stream that waits for the device says which chunks it will ask for next ([`ChunkIndex::expect`]). The reads of
//! their pages begin at once. The look-up takes them from here instead of reading the pages itself.
//!
//! Why an answer from such a page is right: it was read before the look-up took the log's changes, and a look-up needs
//! a page as it was then or later. So the number of writes is noted before the read begins. The look-up takes the page
//! only if that number is still the same when it takes the changes, and even: no page was written in between, or is
//! being written ([`PageCache::writes`](super::page_cache::PageCache::writes)). The generation tells whether the place
//! has another page since.

use super::page_cache::is_quiet;
use super::pages::PageFile;
use super::{ChunkIndex, order_of, partition_of};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Reading;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Whoever expected a page that is not taken after so long does not come for it: another filter knew the chunk.
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
    /// Pages in the order in which their reads began, with the moment; some may be gone.
    begun: VecDeque<(Instant, u32)>,
}

#[derive(Debug)]
struct Expected {
    reading: Reading,
    /// Of the page cache, before the read began.
    writes: u64,
    generation: u32,
    begun: Instant,
}

impl ExpectedPages {
    /// Has room for `limit` pages.
    pub fn new(limit: usize) -> ExpectedPages {
        ExpectedPages { limit, reads: Mutex::default() }
    }

    /// Begins to read a page, unless it is being read already or there is no room. Returns whether a device reads it now.
    fn expect(&self, page: u32, generation: u32, writes: u64, begin: impl FnOnce() -> Option<Reading>) -> bool {
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

    /// Takes a page of this generation out, if it is still what it was when its read began.
    pub fn take(&self, page: u32, generation: u32, writes: u64) -> Option<Reading> {
        let read = self.reads.lock().by_page.remove(&page)?;
        (is_quiet(writes) && read.writes == writes && read.generation == generation).then_some(read.reading)
    }
}

impl ChunkIndex {
    /// These chunks will be looked up soon: begins to read their pages. Returns how many pages a device reads for them now.
    /// Advice: it changes no answer, and does nothing for partitions that are not open, or where there is no room.
    pub fn expect(&self, fingerprints: &[Fingerprint]) -> usize {
        let (bits, mut pages, mut reads) = (self.partition_bits(), Vec::new(), 0);
        for order in order_of(fingerprints.iter()).chunk_by(|one, next| partition_of(one.0, bits) == partition_of(next.0, bits)) {
            let Ok(partition) = self.opened(partition_of(order[0].0, bits)) else { continue };
            let state = partition.state.read();
            let file = state.pages.clone();
            let writes = file.cache.writes();
            if !is_quiet(writes) {
                continue;
            }
            pages.clear();
            let own: Vec<_> = order.iter().map(|(prefix, at)| (file.shape.home_of(*prefix), &fingerprints[*at as usize])).collect();
            file.filter.ask_many(
                &own,
                |(home, fingerprint)| (*home, fingerprint.hash_bits()),
                |at, answer| match (answer.home, answer.neighbour) {
                    (true, _) => pages.push(own[at].0),
                    (false, true) => pages.push(own[at].0 ^ 1),
                    (false, false) => {}
                },
            );
            drop(state);
            pages.dedup();
            let kept = file.cache.pages();
            pages.retain(|page| kept.get(*page, file.shape.place(*page).generation).is_none());
            drop(kept);
            reads += pages.iter().filter(|page| self.expect_page(&file, **page, writes)).count();
        }
        reads
    }

    fn expect_page(&self, file: &PageFile, page: u32, writes: u64) -> bool {
        file.expected.expect(page, file.shape.place(page).generation, writes, || self.readers.begin(file.request(page)))
    }
}
