//! Reads all of a partition's pages to check whether they are intact.

use super::IndexEntry;
use super::merge::{Pair, check_position};
use super::page::{PAGE_BYTES, Page, PageDamage};
use super::pages::PageFile;
use super::partition::{Partition, resolve};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;

/// Pages per read.
const STEP_PAGES: usize = 256;
/// Pairs of pages per read-ahead in the search for unused chunks.
const UNUSED_PAIRS: usize = 64;

/// A page that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPage {
    /// The file.
    pub path: String,
    /// Its number.
    pub page: u32,
    /// What is wrong.
    pub why: String,
}

/// The result of reading a run of pages. A *place* in a partition is the start of a page's fingerprints, as a 32-bit
/// fraction of the partition. It stays the same when the partition grows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedRun {
    /// Damaged pages and their places.
    pub damaged: Vec<(u32, DamagedPage)>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Where to continue; `None`: these were the last pages.
    pub next: Option<u32>,
}

impl Partition {
    /// Appends unused chunks (count 0) from the pages, from page `first` on, until there are at least `limit` or no
    /// more pages. Returns the page to continue with. Reads only pages that may have some. Skips damaged pages and
    /// records them.
    pub fn unused(
        &self,
        first: u32,
        limit: usize,
        out: &mut Vec<(Fingerprint, u64)>,
        damaged: &mut Vec<DamagedPage>,
    ) -> Result<Option<u32>> {
        let enough = out.len().saturating_add(limit.max(1));
        let mut next = Some(first);
        while let Some(first) = next
            && out.len() < enough
        {
            next = self.unused_of_run(first, out, damaged)?;
        }
        Ok(next)
    }

    /// Reads the next pages that may have some. Sweeps may come between two runs. Growth moves pages to higher numbers,
    /// so it may visit some twice but skips none.
    pub fn unused_of_run(&self, first: u32, out: &mut Vec<(Fingerprint, u64)>, damaged: &mut Vec<DamagedPage>) -> Result<Option<u32>> {
        let wanted = |pages: &PageFile, left: u32| pages.filter.may_have_unused(left) || pages.filter.may_have_unused(left + 1);
        let mut keep = |fingerprint: &Fingerprint, now: IndexEntry| {
            if now.count == 0 && now.address != 0 {
                out.push((*fingerprint, now.address));
            }
        };
        self.visit_run(first, &wanted, &mut keep, damaged)
    }

    /// Appends the chunks in the next pages, from page `first` on, as they are now. Returns the page to continue with.
    /// What is in memory alone is not among them. As with [`Partition::unused_of_run`], some may come twice. Errors: a
    /// page is damaged.
    pub fn entries_of_run(&self, first: u32, out: &mut Vec<(Fingerprint, IndexEntry)>) -> Result<Option<u32>> {
        let mut damaged = Vec::new();
        let next = self.visit_run(first, &|_, _| true, &mut |fingerprint, now| out.push((*fingerprint, now)), &mut damaged)?;
        match damaged.pop() {
            None => Ok(next),
            Some(DamagedPage { path, page, why }) => Err(IndexError::ChunkIndexDamaged { path, what: why, page: Some(page) }),
        }
    }

    /// Visits the chunks in the next wanted pairs of pages.
    fn visit_run(
        &self,
        first: u32,
        wanted: &dyn Fn(&PageFile, u32) -> bool,
        keep: &mut dyn FnMut(&Fingerprint, IndexEntry),
        damaged: &mut Vec<DamagedPage>,
    ) -> Result<Option<u32>> {
        // No sweep runs meanwhile: pages stay unchanged.
        let _files = self.files.lock();
        let (pages, applied, target) = {
            let state = self.state.read();
            (state.pages.clone(), state.applied, state.frozen.as_ref().map_or(0, |frozen| frozen.target))
        };
        let numbers = pages.shape.ranges(u64::from(first & !1), pages.shape.end());
        let mut pairs = numbers.flat_map(|range| (range.start as u32..range.end as u32).step_by(2)).filter(|left| wanted(&pages, *left));
        let run: Vec<u32> = pairs.by_ref().take(UNUSED_PAIRS).collect();
        let next = pairs.next();
        run.iter().for_each(|left| pages.read_ahead(*left, 2));
        let (mut bytes, mut pair) = (Vec::new(), Pair::default());
        for left in run {
            let read = pages.read_run(left, 2, &mut bytes).and_then(|()| pair.read(&pages, left, &bytes, applied, target));
            if let Err(error) = read {
                damaged.push(damaged_page(&pages, left, error));
                continue;
            }
            for (number, page) in (left..).zip(bytes.chunks_exact(PAGE_BYTES)) {
                pages.filter.learn(number, &pages.decode(number, page)?);
            }
            let state = self.state.read();
            for entry in &pair.entries {
                let side = (pages.shape.home(&entry.fingerprint) != left) as usize;
                let frozen = state.frozen.as_ref().filter(|_| !pair.is_merged[side]);
                let frozen = frozen.and_then(|frozen| frozen.changes.get(&entry.fingerprint));
                let now = resolve(Some(entry.value), frozen, state.active.get(&entry.fingerprint));
                if let Some(now) = now {
                    keep(&entry.fingerprint, now);
                }
            }
        }
        Ok(next)
    }

    /// Reads all pages as long as `go_on` returns true. Returns the damaged ones.
    pub fn verify(&self, go_on: &mut dyn FnMut() -> bool) -> Vec<DamagedPage> {
        let (mut damaged, mut next) = (Vec::new(), Some(0));
        while let Some(place) = next.filter(|_| go_on()) {
            let run = self.verify_run(place, false);
            damaged.extend(run.damaged.into_iter().map(|(_, page)| page));
            next = run.next;
        }
        damaged
    }

    /// Reads the next pages from `place` on, few enough that waiting sweeps hardly notice. With `from_device`, first
    /// drops these pages from the system's cache.
    pub fn verify_run(&self, place: u32, from_device: bool) -> VerifiedRun {
        let _files = self.files.lock();
        let (pages, applied, target) = {
            let state = self.state.read();
            (state.pages.clone(), state.applied, state.frozen.as_ref().map_or(0, |frozen| frozen.target))
        };
        // A place in the middle of a page comes from a time when the partition had more pages.
        let first = pages.shape.page_at(place);
        let mut ranges = pages.shape.ranges(u64::from(first), pages.shape.end());
        let range = ranges.next().unwrap_or_default();
        let step = STEP_PAGES.min((range.end - range.start) as usize);
        if from_device {
            pages.drop_cached(first, step);
        }
        let mut bytes = Vec::new();
        let is_read = pages.read_run(first, step, &mut bytes).is_ok();
        let mut damaged = Vec::new();
        for number in 0..step {
            let page = first + number as u32;
            let mut alone = [0; PAGE_BYTES];
            let found = if is_read {
                pages.decode(page, &bytes[number * PAGE_BYTES..(number + 1) * PAGE_BYTES])
            } else {
                // The device cannot read the run, perhaps because of one page.
                pages.read(page, &mut alone)
            };
            let checked =
                found.and_then(|found| check(&pages, page, &found, applied, target).map_err(|damage| pages.damaged(page, &damage)));
            if let Err(error) = checked {
                damaged.push((pages.shape.fraction_of_page(page), damaged_page(&pages, page, error)));
            }
        }
        let next = u64::from(first) + step as u64;
        let next = if next < range.end { Some(next) } else { ranges.next().map(|range| range.start) };
        let next = next.map(|page| pages.shape.fraction_of_page(page as u32));
        VerifiedRun { damaged, read_bytes: (step * PAGE_BYTES) as u64, next }
    }
}

fn damaged_page(pages: &PageFile, page: u32, error: IndexError) -> DamagedPage {
    match error {
        IndexError::ChunkIndexDamaged { path, what, page: named } => DamagedPage { path, page: named.unwrap_or(page), why: what },
        error => DamagedPage { path: pages.path().to_string(), page, why: error.to_string() },
    }
}

fn check(pages: &PageFile, number: u32, page: &Page<'_>, applied: u64, target: u64) -> std::result::Result<(), PageDamage> {
    page.check_order()?;
    check_position(page, applied, target)?;
    for (entry, found) in page.entries().enumerate() {
        let home = pages.shape.home(&found.fingerprint);
        if home | 1 != number | 1 {
            return Err(PageDamage::Foreign { entry, home });
        }
    }
    Ok(())
}
