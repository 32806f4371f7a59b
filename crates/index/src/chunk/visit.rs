//! Reading all of a partition's pages: whether they are whole.

use super::merge::{Pair, check_position};
use super::page::{PAGE_BYTES, Page, PageDamage};
use super::pages::PageFile;
use super::partition::{Partition, resolve};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;

/// Pages read at once.
const STEP_PAGES: usize = 256;
/// Pairs of pages asked for ahead in the search for unused chunks.
const UNUSED_PAIRS: usize = 64;

/// A page that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPage {
    /// The file.
    pub path: String,
    /// Its number.
    pub page: u32,
    /// What is wrong.
    pub why: String,
}

/// What reading a run of pages found. A *place* in a partition is the beginning of the fingerprints that a page is for, as a 32-bit fraction of all in the partition:
/// it stays what it is when the partition grows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedRun {
    /// Pages that are damaged, and their places.
    pub damaged: Vec<(u32, DamagedPage)>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Where to go on; `None`: these were the last pages.
    pub next: Option<u32>,
}

impl Partition {
    /// Appends the chunks with the count 0 that lie in pages, from page `first` on, until there are at least `limit` of them or the pages are at
    /// their end. Returns the page to go on with. Only pages that may have some are read; those that are damaged are passed over and noted.
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

    /// The next pages that have some. Sweeps may come between two runs; when the partition grows, pages move to higher numbers, so some are looked
    /// at twice and none is passed over.
    pub fn unused_of_run(&self, first: u32, out: &mut Vec<(Fingerprint, u64)>, damaged: &mut Vec<DamagedPage>) -> Result<Option<u32>> {
        // No sweep meanwhile: pages stay as they are.
        let _files = self.files.lock();
        let (pages, applied, target) = {
            let state = self.state.read();
            (state.pages.clone(), state.applied, state.frozen.as_ref().map_or(0, |frozen| frozen.target))
        };
        let wanted = |left: &u32| pages.filter.may_have_unused(*left) || pages.filter.may_have_unused(*left + 1);
        let numbers = pages.shape.ranges(u64::from(first & !1), pages.shape.end());
        let mut pairs = numbers.flat_map(|range| (range.start as u32..range.end as u32).step_by(2)).filter(wanted);
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
                out.extend(now.filter(|now| now.count == 0 && now.address != 0).map(|now| (entry.fingerprint, now.address)));
            }
        }
        Ok(next)
    }

    /// Reads all pages, as long as `go_on` says true, and returns those that are damaged.
    pub fn verify(&self, go_on: &mut dyn FnMut() -> bool) -> Vec<DamagedPage> {
        let (mut damaged, mut next) = (Vec::new(), Some(0));
        while let Some(place) = next.filter(|_| go_on()) {
            let run = self.verify_run(place, false);
            damaged.extend(run.damaged.into_iter().map(|(_, page)| page));
            next = run.next;
        }
        damaged
    }

    /// Reads the pages that come next from `place` on, at most so many that sweeps, which wait meanwhile, hardly notice. With `from_device` what the system keeps of
    /// them in memory is forgotten first.
    pub fn verify_run(&self, place: u32, from_device: bool) -> VerifiedRun {
        let _files = self.files.lock();
        let (pages, applied, target) = {
            let state = self.state.read();
            (state.pages.clone(), state.applied, state.frozen.as_ref().map_or(0, |frozen| frozen.target))
        };
        // A place in the middle of a page is there where the partition had more pages once.
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
                // Where the device cannot read a run, it may be for one page of it.
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
