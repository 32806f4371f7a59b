//! Reading all of a partition: its entries in order, and whether its pages are whole.

use super::IndexEntry;
use super::merge::{Pair, SortedChanges, check_position, merge};
use super::page::{PAGE_BYTES, Page, PageDamage};
use super::pages::PageFile;
use super::partition::{Frozen, Partition, resolve};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use std::sync::Arc;

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

impl Partition {
    /// Visits all entries, ascending.
    pub fn for_each(&self, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> Result<()>) -> Result<()> {
        // No sweep meanwhile: pages stay as they are.
        let _files = self.files.lock();
        let (pages, applied, frozen, active) = {
            let state = self.state.read();
            (state.pages.clone(), state.applied, state.frozen.clone(), state.active.clone())
        };
        let none = Arc::default();
        let (frozen, target) = frozen.map_or((none, 0), |Frozen { changes, target, .. }| (changes, target));
        let (frozen, active) = (SortedChanges::of(&frozen), SortedChanges::of(&active));
        let (mut bytes, mut pair, mut merged, mut entries) = (Vec::new(), Pair::default(), Vec::new(), Vec::new());
        let (mut frozen_at, mut active_at) = (0, 0);
        let step = STEP_PAGES.min(pages.shape.pages() as usize);
        for first in (0..pages.shape.pages()).step_by(step) {
            pages.read_run(first as u32, step, &mut bytes)?;
            for (number, both) in bytes.chunks_exact(2 * PAGE_BYTES).enumerate() {
                let left = first as u32 + 2 * number as u32;
                pair.read(&pages, left, both, applied, target)?;
                let middle = frozen.end_of(&pages.shape, frozen_at, left);
                let end = frozen.end_of(&pages.shape, middle, left + 1);
                let to_left = if pair.is_merged[0] { middle..middle } else { frozen_at..middle };
                let to_right = if pair.is_merged[1] { end..end } else { middle..end };
                frozen_at = end;
                merged.clear();
                merge(&pair.entries, frozen.range(to_left).chain(frozen.range(to_right)), &mut merged);
                let end = active.end_of(&pages.shape, active_at, left + 1);
                entries.clear();
                merge(&merged, active.range(active_at..end), &mut entries);
                active_at = end;
                for entry in &entries {
                    visit(&entry.fingerprint, entry.value)?;
                }
            }
        }
        Ok(())
    }

    /// Appends the chunks with the count 0 that lie in pages, from page `first` on, until there are at least `limit` of them or the pages are at
    /// their end. Returns the page to go on with. Only pages that may have some are read.
    pub fn unused(&self, first: u32, limit: usize, out: &mut Vec<(Fingerprint, u64)>) -> Result<Option<u32>> {
        // No sweep meanwhile: pages stay as they are.
        let _files = self.files.lock();
        let (pages, applied, target) = {
            let state = self.state.read();
            (state.pages.clone(), state.applied, state.frozen.as_ref().map_or(0, |frozen| frozen.target))
        };
        let end = pages.shape.pages() as u32;
        let enough = out.len().saturating_add(limit.max(1));
        let wanted = |left: &u32| pages.filter.may_have_unused(*left) || pages.filter.may_have_unused(*left + 1);
        let mut pairs = (first & !1..end).step_by(2).filter(wanted);
        let (mut bytes, mut pair, mut found) = (Vec::new(), Pair::default(), Vec::new());
        loop {
            let run: Vec<u32> = pairs.by_ref().take(UNUSED_PAIRS).collect();
            run.iter().for_each(|left| pages.read_ahead(*left, 2));
            for left in run.iter().copied() {
                if out.len() >= enough {
                    return Ok(Some(left));
                }
                pages.read_run(left, 2, &mut bytes)?;
                pair.read(&pages, left, &bytes, applied, target)?;
                for (number, page) in (left..).zip(bytes.chunks_exact(PAGE_BYTES)) {
                    pages.filter.learn(number, &pages.decode(number, page)?);
                }
                found.clear();
                let state = self.state.read();
                for entry in &pair.entries {
                    let side = (pages.shape.home(&entry.fingerprint) != left) as usize;
                    let frozen = state.frozen.as_ref().filter(|_| !pair.is_merged[side]);
                    let frozen = frozen.and_then(|frozen| frozen.changes.get(&entry.fingerprint));
                    let now = resolve(Some(entry.value), frozen, state.active.get(&entry.fingerprint));
                    found.extend(now.filter(|now| now.count == 0 && now.address != 0).map(|now| (entry.fingerprint, now.address)));
                }
                out.append(&mut found);
            }
            if run.len() < UNUSED_PAIRS {
                return Ok(None);
            }
        }
    }

    /// Reads all pages and notes those that are damaged.
    pub fn verify(&self, damaged: &mut Vec<DamagedPage>) -> Result<()> {
        let _files = self.files.lock();
        let (pages, applied, target) = {
            let state = self.state.read();
            (state.pages.clone(), state.applied, state.frozen.as_ref().map_or(0, |frozen| frozen.target))
        };
        let step = STEP_PAGES.min(pages.shape.pages() as usize);
        let mut bytes = Vec::new();
        for first in (0..pages.shape.pages() as u32).step_by(step) {
            let is_read = pages.read_run(first, step, &mut bytes).is_ok();
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
                match checked {
                    Ok(()) => {}
                    Err(IndexError::ChunkIndexDamaged { path, what, .. }) => damaged.push(DamagedPage { path, page, why: what }),
                    Err(error) => damaged.push(DamagedPage { path: pages.path().to_string(), page, why: error.to_string() }),
                }
            }
        }
        Ok(())
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
