//! Copies that a write found damaged. The chunk is stored again. The batch that has the new copy marks the slot of the
//! old one as dead, so that nobody counts it as stored and merging leaves it behind.
//!
//! Only a bad copy dies. Bytes that differ but have the same fingerprint are another chunk: a collision that
//! `byte-compare` detected. Some recipes mean that chunk by its address.

use crate::Engine;
use crate::liveness::dead::DeadChanges;
use crate::lookup::redirects::RedirectChanges;
use onefold_fingerprint::Fingerprint;
use onefold_storage::{Address, ChunkKind, Prepared, Slice, StorageError};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};

/// Chunks that are stored again because a copy of them looked bad, until the new copy is durable, and where that copy
/// is.
#[derive(Debug, Default)]
pub(crate) struct Superseded(Mutex<HashMap<Fingerprint, BTreeSet<Address>>>);

/// The effects of a commit on older copies.
#[derive(Debug, Default)]
pub(crate) struct Superseding {
    /// The slots that die.
    pub(crate) dead: DeadChanges,
    /// The chunks that were stored although they seemed to be stored: they have another place now. No later commit
    /// needs to check them.
    pub(crate) noted: Vec<Fingerprint>,
    /// Of these, the chunks that were stored before with a bad copy.
    pub(crate) chunks: Vec<Fingerprint>,
    /// The places that these copies leave free, in a store without containers, and how many bytes they have.
    pub(crate) freed: Vec<(Address, Fingerprint)>,
    pub(crate) freed_bytes: u64,
    /// Where each copy counts for itself: where the bad copies were stored again.
    pub(crate) redirects: RedirectChanges,
}

impl Superseded {
    /// Notes that a chunk is about to be stored although it seemed to be stored. Call it before the chunk is stored.
    pub(crate) fn note(&self, chunk: Fingerprint, bad: Address) {
        self.0.lock().entry(chunk).or_default().insert(bad);
    }

    /// Forgets these chunks: a commit with their new copies is durable.
    pub(crate) fn settled(&self, superseding: &Superseding) {
        if !superseding.noted.is_empty() {
            let mut chunks = self.0.lock();
            for chunk in &superseding.noted {
                chunks.remove(chunk);
            }
        }
    }

    /// Returns the chunks of a commit that are stored again: where, and the copies that looked bad.
    fn of(&self, prepared: &Prepared) -> Vec<(Fingerprint, Address, BTreeSet<Address>)> {
        let chunks = self.0.lock();
        if chunks.is_empty() {
            return Vec::new();
        }
        let of_data = prepared.chunks.iter().filter(|(_, _, kind)| *kind == ChunkKind::Data);
        of_data.filter_map(|(chunk, address, _)| Some((*chunk, *address, chunks.get(chunk)?.clone()))).collect()
    }
}

impl Engine {
    /// Returns which older copies die with a commit. The caller holds the commit lock, so the index names the copies
    /// that the new ones replace, and no merge moves them. A copy whose state cannot be determined only costs space.
    pub(crate) fn superseded_by(&self, prepared: &Prepared) -> Superseding {
        let again = self.superseded.of(prepared);
        let names: Vec<Fingerprint> = again.iter().map(|(chunk, _, _)| *chunk).collect();
        let mut found = Superseding { noted: names, ..Superseding::default() };
        if found.noted.is_empty() {
            return found;
        }
        let places: Vec<(Fingerprint, Address, BTreeSet<Address>)> = match self.places(&found.noted) {
            Ok(Some(places)) => again.iter().zip(places).map(|((chunk, new, _), old)| (*chunk, *new, old.into_iter().collect())).collect(),
            Ok(None) => again,
            Err(error) => {
                tracing::warn!(%error, "cannot look up older copies of chunks that were stored again; these copies stay counted as live");
                return found;
            }
        };
        for (chunk, new, old) in places {
            for old in old.into_iter().filter(|old| *old != new) {
                if self.is_no_good(&chunk, old, new) && self.says_where(&chunk, old, new, &mut found.redirects) {
                    found.chunks.push(chunk);
                    self.mark_dead(&chunk, old, &mut found);
                }
            }
        }
        found
    }

    /// Adds what tells readers of the old copy where the new one is, if the chunk index does not. Returns false if the
    /// old copy is to stay: it is lost or redirected already, or that cannot be told.
    fn says_where(&self, chunk: &Fingerprint, old: Address, new: Address, redirects: &mut RedirectChanges) -> bool {
        if self.descriptor.profile.is_exact() {
            return true;
        }
        if !matches!((self.quarantine.get(chunk, old), self.redirects.of(old)), (Ok(None), Ok(None))) {
            return false;
        }
        redirects.set(old, Some(new));
        true
    }

    /// Returns whether nobody needs the copy at `old` once there is one at `new`.
    fn is_no_good(&self, chunk: &Fingerprint, old: Address, new: Address) -> bool {
        let load = |address| -> Result<Slice, StorageError> {
            let mut slices = Vec::new();
            self.storage.load(&[(address, *chunk)], &mut slices)?;
            Ok(slices.pop().expect("one for each that is wanted"))
        };
        match load(old) {
            Ok(bytes) => self.descriptor.fingerprint.fingerprint(&bytes) != *chunk || load(new).is_ok_and(|new| new[..] == bytes[..]),
            Err(error) => error.is_damage(),
        }
    }

    /// Marks the copy of a chunk at an address as dead.
    pub(crate) fn mark_dead(&self, chunk: &Fingerprint, address: Address, found: &mut Superseding) {
        // If the catalog of a file cannot be read, there is nothing to mark.
        let Ok((file, slots)) = self.storage.chunks_beside(address.origin()) else { return };
        let of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
        if let Some(number) = slots.iter().position(|(at, slot)| *at == address && slot.fingerprint == *chunk) {
            let length_bytes = slots[number].1.length_bytes;
            match self.containers {
                Some(_) => found.dead.set(file, of_bytes, number, length_bytes, true),
                None => {
                    found.freed.push((address, *chunk));
                    found.freed_bytes += u64::from(length_bytes);
                }
            }
        }
    }
}
