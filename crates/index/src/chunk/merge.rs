//! Merges sorted changes into sorted entries: the common part of sweep, growth and visits.

use super::auxiliary::{Auxiliary, Change};
use super::page::{Entry, Page, PageDamage};
use super::pages::{PageFile, Shape};
use crate::Result;
use onefold_fingerprint::Fingerprint;
use std::sync::Arc;

/// What a merge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// Entries that were not there before.
    pub added: u32,
    /// Entries that are no longer there.
    pub removed: u32,
    /// Counts that would have fallen below zero.
    pub underflows: u32,
}

impl Merged {
    /// Returns the growth in entries.
    pub fn balance(&self) -> i32 {
        self.added as i32 - self.removed as i32
    }

    /// Adds the result of another merge.
    pub fn add(&mut self, other: Merged) {
        self.added += other.added;
        self.removed += other.removed;
        self.underflows += other.underflows;
    }
}

/// Appends to `out` the entries of `old` with `changes` applied; both ascend.
pub(super) fn merge<'a>(old: &[Entry], changes: impl Iterator<Item = &'a (Fingerprint, Change)>, out: &mut Vec<Entry>) -> Merged {
    let mut merged = Merged::default();
    let mut at = 0;
    for (fingerprint, change) in changes {
        while at < old.len() && old[at].fingerprint < *fingerprint {
            out.push(old[at]);
            at += 1;
        }
        let before = old.get(at).filter(|entry| entry.fingerprint == *fingerprint).map(|entry| entry.value);
        let (value, underflow) = change.apply(before);
        merged.underflows += u32::from(underflow);
        at += usize::from(before.is_some());
        merged.added += u32::from(before.is_none() && value.is_some());
        merged.removed += u32::from(before.is_some() && value.is_none());
        out.extend(value.map(|value| Entry { fingerprint: *fingerprint, value }));
    }
    out.extend_from_slice(&old[at..]);
    merged
}

/// Sorted changes, some of which wait for their page.
#[derive(Clone, Debug)]
pub(super) struct SortedChanges<'a> {
    changes: &'a Auxiliary,
    order: Arc<Vec<u32>>,
}

impl<'a> SortedChanges<'a> {
    /// Sorts the changes.
    pub fn of(changes: &'a Auxiliary) -> SortedChanges<'a> {
        SortedChanges { changes, order: Arc::new(changes.sorted()) }
    }

    /// Takes changes with a known order.
    pub fn ordered(changes: &'a Auxiliary, order: Arc<Vec<u32>>) -> SortedChanges<'a> {
        SortedChanges { changes, order }
    }

    /// Returns their order.
    pub fn order(&self) -> Arc<Vec<u32>> {
        self.order.clone()
    }

    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns change `at`, in the order of fingerprints.
    pub fn get(&self, at: usize) -> &'a (Fingerprint, Change) {
        self.changes.slot(self.order[at])
    }

    /// Returns the index of the first change whose home is `page` or later.
    pub fn first_at(&self, shape: &Shape, page: u64) -> usize {
        self.order.partition_point(|slot| u64::from(shape.home(&self.changes.slot(*slot).0)) < page)
    }

    /// Returns where the changes from `start` on with home `page` or earlier end.
    pub fn end_of(&self, shape: &Shape, start: usize, page: u32) -> usize {
        let mut end = start;
        while end < self.len() && shape.home(&self.get(end).0) <= page {
            end += 1;
        }
        end
    }

    /// Returns the changes of a range.
    pub fn range(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = &'a (Fingerprint, Change)> {
        self.order[range].iter().map(|slot| self.changes.slot(*slot))
    }
}

/// The entries of a pair of pages as on disk.
#[derive(Debug, Default)]
pub(super) struct Pair {
    /// Entries of both pages, ascending.
    pub entries: Vec<Entry>,
    /// Whether the left and the right page already have the sweep's changes up to its target.
    pub is_merged: [bool; 2],
    /// Whether one of them spills.
    pub spills: bool,
}

impl Pair {
    /// Reads a pair from `bytes`. `applied` and `target` are the positions that its pages may have (0: no target).
    pub fn read(&mut self, pages: &PageFile, left: u32, bytes: &[u8], applied: u64, target: u64) -> Result<()> {
        let (one, other) = bytes.split_at(bytes.len() / 2);
        let both = [pages.decode(left, one)?, pages.decode(left + 1, other)?];
        self.entries.clear();
        for (number, page) in (left..).zip(both) {
            check_position(&page, applied, target).map_err(|damage| pages.damaged(number, &damage))?;
            self.entries.extend(page.entries());
        }
        self.is_merged = both.map(|page| target > 0 && page.position() == target);
        self.spills = both.iter().any(Page::spills);
        Ok(())
    }
}

/// Checks that a page is applied up to at most the header's position or, in a sweep, exactly to its target.
pub(super) fn check_position(page: &Page<'_>, applied: u64, target: u64) -> std::result::Result<(), PageDamage> {
    let position = page.position();
    if position <= applied || (target > 0 && position == target) {
        Ok(())
    } else {
        Err(PageDamage::Ahead { position, limit: target.max(applied) })
    }
}
