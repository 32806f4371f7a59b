//! Liveness by usage counts in the chunk index (`docs/format.md` section 8.5). No other part of the engine knows of
//! counts, except checks and repairs.
//!
//! The count of a chunk is the number of its references: those of groups and those of stored metadata chunks. Groups
//! and addresses make no difference. References move between groups without a change, and the index knows one place of
//! a chunk.

use crate::commit::records::encode_deltas;
use crate::liveness::marked::{Reached, Roots};
use crate::liveness::{Candidate, Cursor, Facts, Liveness, Noted, ReferencesOf, Survey};
use crate::write::reservation::FingerprintMap;
use crate::{Address, Engine, EngineError, Moment, Result};
use onefold_fingerprint::Fingerprint;
use onefold_index::{CountedIndex, IndexEntry};
use std::sync::Arc;

/// Chunks are needed while their counts are not 0.
#[derive(Debug)]
pub(crate) struct Counted {
    index: Arc<dyn CountedIndex>,
    digest_bytes: usize,
}

impl Counted {
    pub(crate) fn new(index: Arc<dyn CountedIndex>, digest_bytes: usize) -> Counted {
        Counted { index, digest_bytes }
    }

    /// Looks up `chunks`, which are sorted, as far as their pages can be read.
    fn lookup_readable(
        &self,
        chunks: &[Fingerprint],
        damaged: &mut Vec<String>,
        found: &mut dyn FnMut(&Fingerprint, IndexEntry),
    ) -> Result<()> {
        let mut entries = Vec::with_capacity(chunks.len());
        match self.index.lookup(chunks, &mut entries) {
            Ok(_) => {
                let known = chunks.iter().zip(entries).filter_map(|(chunk, entry)| entry.map(|entry| (chunk, entry)));
                known.for_each(|(chunk, entry)| found(chunk, entry));
                Ok(())
            }
            Err(error) if error.is_damaged_page() => {
                if chunks.len() > 1 {
                    // The chunks of one page are neighbours: a few steps separate them from the others.
                    let (one, other) = chunks.split_at(chunks.len() / 2);
                    self.lookup_readable(one, damaged, found)?;
                    return self.lookup_readable(other, damaged, found);
                }
                let what = error.to_string();
                if damaged.last() != Some(&what) {
                    damaged.push(what);
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns a chunk that is stored and has exactly this many references. An unknown count is more than any number.
fn candidate(fingerprint: &Fingerprint, entry: IndexEntry, references: u32) -> Option<Candidate> {
    let is_one = entry.count == references && entry.count != u32::MAX && entry.address != 0;
    is_one.then(|| Candidate { address: Address::from_bits(entry.address), fingerprint: *fingerprint })
}

impl Liveness for Counted {
    fn note(&self, facts: &Facts<'_>) -> Result<Noted> {
        let mut sums: FingerprintMap<i64> = FingerprintMap::default();
        for reference in facts.references.iter().copied().flatten() {
            *sums.entry(reference.fingerprint).or_default() += reference.change;
        }
        for (chunks, change) in [(facts.stored, 1), (facts.removed, -1)] {
            for fingerprint in chunks.iter().flat_map(|chunk| &chunk.references) {
                *sums.entry(*fingerprint).or_default() += change;
            }
        }
        // A removal takes the count along. In a batch, changes of counts come behind removals.
        for chunk in facts.removed {
            sums.remove(&chunk.fingerprint);
        }
        let mut deltas: Vec<_> = sums.into_iter().filter(|(_, change)| *change != 0).collect();
        deltas.sort_unstable();
        let records = if deltas.is_empty() { Vec::new() } else { vec![encode_deltas(&deltas, self.digest_bytes)] };
        Ok(Noted { records, deltas, ..Noted::default() })
    }

    /// Writes entries that are only in memory into the pages, where the search looks.
    fn survey(&self, engine: &Engine, _: &mut dyn Roots, _: &dyn Fn() -> bool, damaged: &mut Vec<String>) -> Result<Survey> {
        let mut survey = Survey::default();
        match engine.maintain(true) {
            Ok(()) => {}
            // A damaged page prevents the sweep of its partition. Chunks in other pages can still be removed.
            Err(EngineError::Index(error)) if error.is_damaged_page() => damaged.push(error.to_string()),
            // The same holds for a page that has no space to grow on a full disk. Other removals may free that space.
            Err(EngineError::Index(error)) if error.is_full() => survey.is_short_of_room = true,
            Err(error) => return Err(error),
        }
        Ok(survey)
    }

    /// Has nothing to do: every durable reference is counted.
    fn settle(&self, _: &Engine, _: ReferencesOf<'_>, _: &dyn Fn() -> bool) -> Result<()> {
        Ok(())
    }

    /// Returns only chunks that the chunk index has in its pages.
    fn candidates(
        &self,
        _: &Engine,
        from: Cursor,
        max: usize,
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> Result<Option<Cursor>> {
        let (mut found, mut pages) = (Vec::new(), Vec::new());
        let next = self.index.unused(from.into(), max, &mut found, &mut pages)?.map(Cursor::from);
        damaged.extend(pages.into_iter().map(|page| format!("chunk index {} page {} is damaged: {}", page.path, page.page, page.why)));
        out.extend(found.into_iter().map(|(fingerprint, address)| Candidate { address: Address::from_bits(address), fingerprint }));
        Ok(next)
    }

    fn all_candidates(&self, _: &Engine, _: &mut dyn Roots, damaged: &mut Vec<String>) -> Result<Vec<Candidate>> {
        let mut found = Vec::new();
        for partition in self.index.partitions() {
            let read = self.index.for_each(partition, &mut |fingerprint, entry| {
                found.extend(candidate(fingerprint, entry, 0));
                Ok(())
            });
            match read {
                Ok(()) => {}
                Err(error) if error.is_damaged_page() => damaged.push(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    fn unneeded(&self, _: &Engine, candidates: &[Candidate], out: &mut Vec<bool>, damaged: &mut Vec<String>) -> Result<()> {
        let mut names: Vec<Fingerprint> = candidates.iter().map(|candidate| candidate.fingerprint).collect();
        names.sort_unstable();
        names.dedup();
        let mut unneeded: FingerprintMap<Address> = FingerprintMap::default();
        self.lookup_readable(&names, damaged, &mut |fingerprint, entry| {
            unneeded.extend(candidate(fingerprint, entry, 0).map(|found| (found.fingerprint, found.address)));
        })?;
        out.extend(candidates.iter().map(|candidate| unneeded.get(&candidate.fingerprint) == Some(&candidate.address)));
        Ok(())
    }

    fn may_be_added(&self, _: &Engine, places: &[Address]) -> Vec<bool> {
        vec![true; places.len()]
    }

    fn nobody_needs(&self, places: &[Address]) -> Vec<bool> {
        vec![false; places.len()]
    }

    fn reached(&self, _: &Engine, _: &Moment<'_>, _: &mut dyn Roots, _: &dyn Fn() -> bool, _: &mut Vec<String>) -> Result<Option<Reached>> {
        Ok(None)
    }

    fn unneeded_without(&self, lost: &[(Fingerprint, u32)], out: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<()> {
        let mut lost = lost.to_vec();
        lost.sort_unstable();
        let names: Vec<Fingerprint> = lost.iter().map(|(fingerprint, _)| *fingerprint).collect();
        let mut lost = lost.into_iter();
        self.lookup_readable(&names, damaged, &mut |fingerprint, entry| {
            // Found chunks come in the order of their names.
            let references = lost.find(|(of, _)| of == fingerprint).map(|(_, references)| references);
            out.extend(references.and_then(|references| candidate(fingerprint, entry, references)));
        })
    }
}
