//! Looks up a batch: its pages form a set, and the reads of the set keep the device busy with many requests in flight.
//!
//! Steps of a round, over all partitions of the batch:
//! 1. *Changes*, partition by partition: take the log's changes of each fingerprint, at one instant ([`Snapshot`]).
//! 2. *Filter*: answer the fingerprints whose page cannot hold them. For the others the filter names one page: the
//!    home, or the neighbour if only that one may hold them.
//! 3. *Pages*: search cached pages in place. Read the others together ([`Readers`]) and search each when it arrives.
//! 4. *Neighbours*: if a full home does not hold an entry, its neighbour may. Do step 3 again for these pages.
//! 5. Fingerprints whose page was ahead of the changes go into the next round.
//!
//! # Locks
//! A lookup holds no lock while it reads the set. It holds a partition's state for reading in steps 1 and 2, its filter
//! in step 2, and its cache in step 3. It takes those of one partition at a time and waits for no device under them. So
//! a sweep or growth never waits for a lookup's reads, except for those of a whole pair (below). Neither deadlocks with
//! a lookup.
//!
//! # Why the answers are right although sweeps write meanwhile
//! * A lookup gets a page, from disk or cache, after it took the changes. The page is intact and has all changes up to
//!   its position. The position tells what to add:
//!   - At the target of the frozen changes, the page has them.
//!   - Below it, the page lacks them.
//!   - Above it, the page is ahead, and the fingerprint goes into the next round.
//! * Growth may have moved pages meanwhile. Then the page's place has either its old content or a page of the next
//!   generation. The lookup does not accept the latter, and the fingerprint also goes into the next round.
//! * Cached pages are as good: the cache forgets a rewritten page before its changes are dropped (`page_cache.rs`).
//! * So are pages that were read before the changes were taken, if none was written in between (`expected.rs`).
//! * Home and neighbour are read at two instants. An entry moves between them only when both are written together, to
//!   one position, because the pair spills (`page.rs`).
//!   - So a home that spills and a neighbour of the same position are of one moment.
//!   - An entry in the neighbour of its home shows that the pair spilled when that page was written. So the neighbour's
//!     position is the home's, too.
//!   - In all other cases, which are few, the lookup reads both under the lock that the sweep holds while it writes.

use super::auxiliary::Change;
use super::page::{PAGE_BYTES, Page, PageDamage};
use super::page_cache::is_quiet;
use super::pages::{PageFile, Shape};
use super::partition::{State, read_pair, resolve};
use super::{ChunkIndex, IndexEntry, order_of, partition_of};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Readers, Reading};
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pages whose memory loads overlap.
const WINDOW: usize = 32;
/// Marks a fingerprint without changes in the log beyond its page.
const UNCHANGED: u32 = u32::MAX;

/// The instant at which a lookup took the changes of a partition.
struct Snapshot {
    partition: u32,
    pages: Arc<PageFile>,
    /// Target of the frozen changes; without them, the position of the pages.
    floor: u64,
    is_frozen: bool,
    /// The page cache's count of writes, before any page was read.
    writes: u64,
}

/// The state of a partition when its changes were taken. Two equal instants mean that no sweep has passed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Instant {
    partition: u32,
    shape: Shape,
    floor: u64,
}

/// A fingerprint under lookup.
struct Wanted<'a> {
    fingerprint: &'a Fingerprint,
    /// Its index in the caller's batch.
    at: u32,
    home: u32,
    /// Its changes in the log: an index in [`Lookup::changes`], or [`UNCHANGED`].
    changes: u32,
    /// The page to search.
    page: Looked,
}

/// Which page of its pair to search for a fingerprint.
#[derive(Clone, Copy)]
enum Looked {
    Home,
    /// Only the neighbour, by the filter's answer.
    Neighbour,
    /// The neighbour, after a home of this position that spills and does not have the entry.
    Behind(u64),
}

/// A page needed by a fingerprint. Sorted order groups those of one page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Needed {
    /// Index of the snapshot, and number of the page.
    place: (u32, u32),
    wanted: u32,
}

/// A round of a lookup.
struct Lookup<'a> {
    index: &'a ChunkIndex,
    out: &'a mut [Option<IndexEntry>],
    snapshots: &'a [Snapshot],
    wanted: Vec<Wanted<'a>>,
    changes: Vec<(Option<Change>, Option<Change>)>,
    /// Neighbours needed.
    neighbours: Vec<Needed>,
    /// Left pages of pairs that must be read as of one moment.
    pairs: Vec<Needed>,
    /// Indexes in the batch of fingerprints whose page was ahead.
    left: Vec<u32>,
    /// One of these pages: snapshot, number and position.
    ahead: Option<(u32, u32, u64)>,
}

impl ChunkIndex {
    /// Looks up many chunks: `out` gets one answer for each of `fingerprints`. A hit that is not cached reads one page;
    /// the reads of many pages run at the same time. Once the filter knows the pages, a miss hardly ever reads one. Any
    /// number of threads may call it at once. Returns for how many pages it waited for the device. With one read in
    /// flight it does not know, and returns 0.
    pub fn lookup(&self, fingerprints: &[Fingerprint], out: &mut Vec<Option<IndexEntry>>) -> Result<usize> {
        let mut waited = 0;
        out.clear();
        out.resize(fingerprints.len(), None);
        let mut order = order_of(fingerprints.iter());
        let mut last_tries: Vec<Instant> = Vec::new();
        while !order.is_empty() {
            let (left, tries) = self.lookup_round(fingerprints, &order, &last_tries, out, &mut waited)?;
            order = left.into_iter().map(|at| (fingerprints[at as usize].prefix(), at)).collect();
            order.sort_unstable();
            last_tries = tries;
        }
        Ok(waited)
    }

    /// Answers as much of `order` as possible. Returns the indexes of the others, whose pages were ahead, and the
    /// instants of this round.
    fn lookup_round(
        &self,
        fingerprints: &[Fingerprint],
        order: &[(u64, u32)],
        last_tries: &[Instant],
        out: &mut [Option<IndexEntry>],
        waited: &mut usize,
    ) -> Result<(Vec<u32>, Vec<Instant>)> {
        let bits = self.partition_bits();
        let (mut wanted, mut changes, mut needed) = (Vec::with_capacity(order.len()), Vec::new(), Vec::with_capacity(order.len()));
        let (mut snapshots, mut own) = (Vec::new(), Vec::new());
        let partitions = self.partitions.now();
        for order in order.chunk_by(|one, next| partition_of(one.0, bits) == partition_of(next.0, bits)) {
            let number = partition_of(order[0].0, bits);
            own.clear();
            // Held until the filter has answered: the filter knows the pages where they are now.
            let partition = partitions.get(number).ok_or_else(|| self.not_opened(number))?;
            let state = partition.state.read();
            let snapshot = take_changes(&state, number, fingerprints, order, &mut own, &mut changes);
            let number = snapshots.len() as u32;
            let mut answered = 0;
            snapshot.pages.filter.ask_many(
                &own,
                |one| (one.home, one.fingerprint.hash_bits()),
                |at, answer| {
                    let Wanted { fingerprint, at, home, changes: own_changes, .. } = own[at];
                    let (page, looked) = match (answer.home, answer.neighbour) {
                        (true, _) => (home, Looked::Home),
                        (false, true) => (home ^ 1, Looked::Neighbour),
                        (false, false) => {
                            answered += 1;
                            if let Some((frozen, active)) = changes.get(own_changes as usize) {
                                out[at as usize] = resolve(None, *frozen, *active);
                            }
                            return;
                        }
                    };
                    needed.push(Needed { place: (number, page), wanted: wanted.len() as u32 });
                    wanted.push(Wanted { fingerprint, at, home, changes: own_changes, page: looked });
                },
            );
            drop(state);
            self.counters.filter_negatives.fetch_add(answered, Ordering::Relaxed);
            snapshots.push(snapshot);
        }

        let mut lookup = Lookup {
            index: self,
            out,
            snapshots: &snapshots,
            wanted,
            changes,
            neighbours: Vec::new(),
            pairs: Vec::new(),
            left: Vec::new(),
            ahead: None,
        };
        while !needed.is_empty() {
            if !needed.is_sorted() {
                needed.sort_unstable();
            }
            *waited += lookup.read(&self.readers, &needed)?;
            needed = std::mem::take(&mut lookup.neighbours);
        }
        lookup.read_pairs()?;
        let Lookup { left, ahead, .. } = lookup;
        if let Some((snapshot, page, position)) = ahead {
            let snapshot = &snapshots[snapshot as usize];
            if last_tries.contains(&snapshot.instant()) {
                // Nothing has changed since the last try: no sweep has passed, so the header is older than the pages.
                return Err(snapshot.pages.damaged(page, &PageDamage::Ahead { position, limit: snapshot.floor }));
            }
        }
        let tries = if left.is_empty() { Vec::new() } else { snapshots.iter().map(Snapshot::instant).collect() };
        Ok((left, tries))
    }
}

impl ChunkIndex {
    /// Begins to read the pages of chunks that will be looked up soon. Returns how many pages a device reads for them.
    /// Advice: it changes no answer. It does nothing for partitions that are not open, or that have no room.
    pub fn expect(&self, fingerprints: &[Fingerprint]) -> usize {
        let (bits, mut pages, mut reads) = (self.partition_bits(), Vec::new(), 0);
        let partitions = self.partitions.now();
        for order in order_of(fingerprints.iter()).chunk_by(|one, next| partition_of(one.0, bits) == partition_of(next.0, bits)) {
            let Some(partition) = partitions.get(partition_of(order[0].0, bits)) else { continue };
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

impl Snapshot {
    /// Returns a page if it is cached.
    fn kept<'a>(&self, kept: &'a super::page_cache::KeptPages<'_>, page: u32) -> Option<Page<'a>> {
        kept.get(page, self.pages.shape.place(page).generation)
    }

    /// A page that is read already, and is still what it was then.
    fn expected(&self, page: u32) -> Option<Reading> {
        self.pages.expected.take(page, self.pages.shape.place(page).generation, self.writes)
    }

    fn instant(&self) -> Instant {
        Instant { partition: self.partition, shape: self.pages.shape, floor: self.floor }
    }
}

/// Takes the log's changes of the fingerprints of `order` at one instant.
fn take_changes<'a>(
    state: &State,
    partition: u32,
    fingerprints: &'a [Fingerprint],
    order: &[(u64, u32)],
    wanted: &mut Vec<Wanted<'a>>,
    changes: &mut Vec<(Option<Change>, Option<Change>)>,
) -> Snapshot {
    let pages = state.pages.clone();
    let frozen = state.frozen.as_ref().map(|frozen| &frozen.changes).filter(|changes| !changes.is_empty());
    let active = Some(&state.active).filter(|changes| !changes.is_empty());
    for (prefix, at) in order {
        let fingerprint = &fingerprints[*at as usize];
        let of = |auxiliary: Option<&super::auxiliary::Auxiliary>| auxiliary.and_then(|auxiliary| auxiliary.get(fingerprint));
        let own = (of(frozen.map(|frozen| &**frozen)), of(active));
        let number = if own == (None, None) {
            UNCHANGED
        } else {
            changes.push(own);
            changes.len() as u32 - 1
        };
        wanted.push(Wanted { fingerprint, at: *at, home: pages.shape.home_of(*prefix), changes: number, page: Looked::Home });
    }
    let writes = pages.cache.writes();
    Snapshot { partition, floor: state.floor(), is_frozen: state.frozen.is_some(), pages, writes }
}

impl Lookup<'_> {
    /// Searches the pages of `needed`, which is sorted: first the cached ones, then the others as they arrive. Returns
    /// for how many it waited for the device.
    fn read(&mut self, readers: &Readers, needed: &[Needed]) -> Result<usize> {
        let mut unread: Vec<Range<usize>> = Vec::new();
        let snapshots = self.snapshots;
        let (mut at, mut hits) = (0, 0);
        for own in needed.chunk_by(|one, next| one.place.0 == next.place.0) {
            let kept = snapshots[own[0].place.0 as usize].pages.cache.pages();
            for window in own.chunks(WINDOW) {
                self.touch(&kept, window);
                for group in window.chunk_by(|one, next| one.place == next.place) {
                    let (start, end) = (at, at + group.len());
                    at = end;
                    match snapshots[group[0].place.0 as usize].kept(&kept, group[0].place.1) {
                        Some(page) => {
                            hits += 1;
                            self.search(group, &page);
                        }
                        None => match unread.last_mut() {
                            Some(last) if last.end == start && needed[last.start].place == group[0].place => last.end = end,
                            _ => unread.push(start..end),
                        },
                    }
                }
            }
        }
        self.index.counters.page_cache_hits.fetch_add(hits, Ordering::Relaxed);
        self.index.counters.page_cache_misses.fetch_add(unread.len() as u64, Ordering::Relaxed);
        if unread.is_empty() {
            return Ok(0);
        }
        let mut expected: Vec<(usize, Reading)> = Vec::new();
        let mut unexpected: Vec<usize> = Vec::with_capacity(unread.len());
        for (number, range) in unread.iter().enumerate() {
            let (snapshot, page) = needed[range.start].place;
            match snapshots[snapshot as usize].expected(page) {
                Some(reading) => expected.push((number, reading)),
                None => unexpected.push(number),
            }
        }
        let mut requests = unexpected.iter().map(|number| {
            let (snapshot, page) = needed[unread[*number].start].place;
            snapshots[snapshot as usize].pages.request(page)
        });
        let mut alone = [0; PAGE_BYTES];
        let mut failed: Option<(usize, IndexError)> = None;
        let mut moved: Vec<usize> = Vec::new();
        let mut arrived = |number: usize, bytes: &[u8], read: onefold_ground::Result<()>| {
            let group = &needed[unread[number].clone()];
            let (snapshot, page) = group[0].place;
            let snapshot = &snapshots[snapshot as usize];
            match snapshot.pages.take(page, bytes, read, snapshot.writes, &mut alone) {
                Ok(page) => self.search(group, &page),
                // The page moved, and another one is in its place.
                Err(_) if self.has_moved(snapshot) => moved.push(number),
                // Report the first error of the set, in whatever order they come.
                Err(error) if failed.as_ref().is_none_or(|(first, _)| number < *first) => failed = Some((number, error)),
                Err(_) => {}
            }
        };
        let mut waited = readers.read_each(&mut requests, &mut |number, bytes, read| arrived(unexpected[number], bytes, read));
        for (number, reading) in expected {
            waited += usize::from(reading.is_from_device());
            reading.wait(|bytes, read| arrived(number, bytes, read));
        }
        for needed in moved.into_iter().flat_map(|number| &needed[unread[number].clone()]) {
            self.left.push(self.wanted[needed.wanted as usize].at);
        }
        failed.map_or(Ok(waited), |(_, error)| Err(error))
    }

    /// Returns whether pages have moved since the changes were taken, or their partition has gone.
    fn has_moved(&self, snapshot: &Snapshot) -> bool {
        self.index.opened(snapshot.partition).map_or(true, |partition| partition.state.read().pages.shape != snapshot.pages.shape)
    }

    /// Makes the processor load the parts of cached pages that the search needs.
    fn touch(&self, kept: &super::page_cache::KeptPages<'_>, window: &[Needed]) {
        let mut pages = [None; WINDOW];
        for (page, needed) in pages.iter_mut().zip(window) {
            *page = self.snapshots[needed.place.0 as usize].kept(kept, needed.place.1);
        }
        let mut touched = 0;
        for (page, needed) in pages.iter().zip(window) {
            let Some(page) = page else { continue };
            touched ^= page.touch(self.fraction(needed));
        }
        black_box(touched);
    }

    /// Returns how far into the page's entries the fingerprint should be.
    fn fraction(&self, needed: &Needed) -> u64 {
        let one = &self.wanted[needed.wanted as usize];
        let shape = &self.snapshots[needed.place.0 as usize].pages.shape;
        match one.page {
            Looked::Home => shape.fraction(one.fingerprint),
            // The largest entries of the left page come first in the right one, and the other way round.
            Looked::Neighbour | Looked::Behind(_) if one.home.is_multiple_of(2) => 0,
            Looked::Neighbour | Looked::Behind(_) => u64::MAX,
        }
    }

    /// Searches a page for all fingerprints that need it.
    fn search(&mut self, group: &[Needed], page: &Page<'_>) {
        let (position, spills) = (page.position(), page.spills());
        for needed in group {
            let number = needed.wanted as usize;
            let one = &self.wanted[number];
            // Search it whatever the filter said: the page may have been rewritten since.
            let found = page.find(one.fingerprint, self.fraction(needed));
            let (snapshot, read) = needed.place;
            match one.page {
                _ if position > self.snapshots[snapshot as usize].floor => {
                    self.ahead = Some((snapshot, read, position));
                    self.left.push(one.at);
                }
                Looked::Home if found.is_none() && spills => {
                    self.wanted[number].page = Looked::Behind(position);
                    self.neighbours.push(Needed { place: (snapshot, read ^ 1), ..*needed });
                }
                Looked::Behind(home_position) if position != home_position => {
                    self.pairs.push(Needed { place: (snapshot, read & !1), ..*needed })
                }
                Looked::Neighbour if found.is_none() => self.pairs.push(Needed { place: (snapshot, read & !1), ..*needed }),
                _ => self.settle(snapshot, number, found, position),
            }
        }
    }

    /// Reads both pages of a pair as of one moment, for the fingerprints that need it.
    fn read_pairs(&mut self) -> Result<()> {
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.sort_unstable();
        let mut bytes = Vec::new();
        for group in pairs.chunk_by(|one, next| one.place == next.place) {
            let (number, pair) = group[0].place;
            let snapshot = &self.snapshots[number as usize];
            let (left, right) = match read_pair(&snapshot.pages, pair, &mut bytes) {
                Err(_) if self.has_moved(snapshot) => {
                    self.left.extend(group.iter().map(|needed| self.wanted[needed.wanted as usize].at));
                    continue;
                }
                read => read?,
            };
            for Needed { wanted, .. } in group {
                let one = &self.wanted[*wanted as usize];
                let (own, other) = if one.home == pair { (left, right) } else { (right, left) };
                let (home, at) = (one.home, one.at);
                let to_other = if one.home == pair { 0 } else { u64::MAX };
                let found = own
                    .find(one.fingerprint, snapshot.pages.shape.fraction(one.fingerprint))
                    .or_else(|| other.find(one.fingerprint, to_other));
                if own.position() > snapshot.floor {
                    self.ahead = Some((number, home, own.position()));
                    self.left.push(at);
                } else {
                    self.settle(number, *wanted as usize, found, own.position());
                }
            }
        }
        Ok(())
    }

    /// Combines page and log into an answer.
    fn settle(&mut self, snapshot: u32, wanted: usize, found: Option<IndexEntry>, position: u64) {
        if found.is_none() {
            self.index.counters.filter_false_positives.fetch_add(1, Ordering::Relaxed);
        }
        let one = &self.wanted[wanted];
        self.out[one.at as usize] = match self.changes.get(one.changes as usize) {
            Some((frozen, active)) => {
                let snapshot = &self.snapshots[snapshot as usize];
                let is_merged = snapshot.is_frozen && position == snapshot.floor;
                resolve(found, if is_merged { None } else { *frozen }, *active)
            }
            None => found,
        };
    }
}
