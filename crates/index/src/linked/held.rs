//! Reads entries as of one moment while batches are applied, in the order of their fingerprints.
//!
//! As with the chunk index: [`LinkedIndex::hold`] keeps sweeps out, and [`HeldBlocks::take`] copies the changes that
//! are in no page. Only sweeps write pages, so pages and copies together are the entries as of the copy.

use super::changes::{Change, Entry, resolve};
use super::family::{found, named, walk};
use super::header::Table;
use super::pages::{Shown, Walker};
use super::{Files, LinkedEntry, LinkedIndex, State};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Homes that are read at once.
const ROUND_HOMES: u64 = 1024;

/// Entries with some prefixes that no sweep changes.
#[derive(Debug)]
pub struct HeldBlocks<'a> {
    index: &'a LinkedIndex,
    prefixes: RangeInclusive<u64>,
    _files: MutexGuard<'a, Files>,
    state: Option<State>,
}

/// A chunk of a round: what pages have of it, if they have not more than the changes know.
#[derive(Clone, Copy, Debug, Default)]
struct OnDisk {
    entry: Option<Entry>,
    is_early: bool,
}

impl LinkedIndex {
    /// Keeps sweeps from the entries with these prefixes, until they are read or the result is dropped.
    pub fn hold(&self, prefixes: RangeInclusive<u64>) -> HeldBlocks<'_> {
        HeldBlocks { index: self, prefixes, _files: self.files.lock(), state: None }
    }
}

impl HeldBlocks<'_> {
    /// Makes this the moment of which the entries are read.
    pub fn take(&mut self) {
        self.state = Some(self.index.state.read().clone());
    }

    /// Visits the entries, ascending by fingerprint, until `visit` returns false.
    pub fn visit(mut self, visit: &mut dyn FnMut(&Fingerprint, LinkedEntry) -> Result<bool>) -> Result<()> {
        if self.state.is_none() {
            self.take();
        }
        let Some(state) = self.state.take() else { return Ok(()) };
        let shown = self.index.shown.read();
        let table = shown.header.table();
        let (first, last) = (self.prefixes.start() >> (64 - table.bits), self.prefixes.end() >> (64 - table.bits));
        let mut changed: Vec<Fingerprint> = Vec::new();
        let memories = [Some(&state.active), state.frozen.as_ref().map(|frozen| &*frozen.memory)];
        for memory in memories.into_iter().flatten() {
            let order = memory.changes.sorted();
            changed.extend(
                order.into_iter().map(|number| memory.changes.slot(number).0).filter(|name| self.prefixes.contains(&name.prefix())),
            );
        }
        changed.sort_unstable();
        changed.dedup();
        let mut changed = changed.into_iter().peekable();
        let mut from = first;
        while from <= last {
            let to = last.min(from + ROUND_HOMES - 1);
            let mut round = round_of(&shown, table, from..=to)?;
            while let Some(name) = changed.next_if(|name| table.home(name) <= to) {
                round.entry(name).or_default();
            }
            for (name, on_disk) in round.iter().filter(|(name, _)| self.prefixes.contains(&name.prefix())) {
                let entry = entry_of(&shown, &state, name, on_disk);
                if let Some(entry) = entry
                    && !visit(name, entry.linked())?
                {
                    return Ok(());
                }
            }
            if to == last {
                break;
            }
            from = to + 1;
        }
        Ok(())
    }
}

impl crate::HeldEntries for HeldBlocks<'_> {
    fn take(&mut self) {
        HeldBlocks::take(self);
    }

    fn for_each(self: Box<Self>, visit: &mut dyn FnMut(&Fingerprint, crate::IndexEntry), failed: &mut dyn FnMut(IndexError)) {
        let each = &mut |name: &Fingerprint, entry: LinkedEntry| {
            visit(name, entry.into());
            Ok(true)
        };
        if let Err(error) = self.visit(each) {
            failed(error);
        }
    }
}

/// Returns the chunks in pages whose homes in the table of this generation are these.
fn round_of(shown: &Shown, table: Table, homes: RangeInclusive<u64>) -> Result<BTreeMap<Fingerprint, OnDisk>> {
    let mut walker = Walker::new(shown);
    let mut round = BTreeMap::new();
    for home in homes {
        // Homes below this live in the next generation, as two.
        let families = if home < shown.header.grown {
            [Some((shown.header.next_table(), 2 * home)), Some((shown.header.next_table(), 2 * home + 1))]
        } else {
            [Some((table, home)), None]
        };
        for (table, home) in families.into_iter().flatten() {
            walk(&mut walker, table, home, |walker, member| {
                let named = named(walker, member)?;
                let on_disk = OnDisk { entry: Some(found(member, &named).entry), is_early: member.slot.is_early };
                round.insert(named.fingerprint, on_disk);
                Ok(None::<()>)
            })?;
        }
    }
    Ok(round)
}

/// Combines pages and changes.
fn entry_of(shown: &Shown, state: &State, name: &Fingerprint, on_disk: &OnDisk) -> Option<Entry> {
    let is_open = |target: u64| !on_disk.is_early && !shown.header.has(name, target);
    let frozen = state.frozen.as_ref().filter(|frozen| is_open(frozen.target));
    let frozen: Option<Change> = frozen.and_then(|frozen| frozen.memory.changes.get(name));
    resolve(on_disk.entry, frozen, state.active.changes.get(name))
}
