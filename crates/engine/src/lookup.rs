//! Where a chunk is, by its name: what stands behind a claim.
//!
//! A chunk index knows every chunk, and which copy of it counts. [Hooks](sampled) know a sample: then a chunk may be
//! stored more than once, and each copy counts for itself. So nothing but a claim may ask by name there. Everything
//! else goes by address.

pub(crate) mod blocks;
pub(crate) mod capacity;
pub(crate) mod figures;
pub(crate) mod redirects;
pub(crate) mod sampled;

use crate::Result;
use onefold_fingerprint::Fingerprint;
use onefold_index::{CountedIndex, IndexEntry, IndexView};
use onefold_storage::Address;
use sampled::Sampled;
use std::sync::Arc;

/// What answers where a chunk is.
#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    /// A chunk index.
    Exact(IndexView),
    /// Hooks and the catalogs that they lead to.
    Sampled(Arc<Sampled>),
}

impl Lookup {
    /// Prepares look-ups of these chunks: begins the reads that they will wait for, or opens the catalogs that hooks
    /// lead to. Returns how many chunks nobody knows, of which a hook of a later chunk may tell where they are.
    pub(crate) fn expect(&self, names: &[Fingerprint]) -> usize {
        match self {
            Lookup::Exact(index) => {
                index.0.expect(names);
                0
            }
            Lookup::Sampled(sampled) => {
                let mut found = Vec::with_capacity(names.len());
                sampled.find(names, &mut found);
                found.iter().filter(|found| found.is_none()).count()
            }
        }
    }

    /// Appends where each chunk is. `None`: nowhere, or nobody knows it. Returns for how many reads it waited. Whoever
    /// relies on the answer holds the claim.
    pub(crate) fn find(&self, names: &[Fingerprint], out: &mut Vec<Option<Address>>) -> Result<usize> {
        match self {
            Lookup::Exact(index) => {
                let mut entries = Vec::with_capacity(names.len());
                let waited = index.0.lookup(names, &mut entries)?;
                // An entry without an address is a count whose chunk is not stored (any more).
                let place = |entry: IndexEntry| (entry.address != 0).then(|| Address::from_bits(entry.address));
                out.extend(entries.into_iter().map(|entry| entry.and_then(place)));
                Ok(waited)
            }
            Lookup::Sampled(sampled) => Ok(sampled.find(names, out)),
        }
    }

    /// Returns the chunk index, if there is one.
    pub(crate) fn index(&self) -> Option<&Arc<dyn CountedIndex>> {
        self.view().map(|view| &view.0)
    }

    /// Returns the same as a view.
    pub(crate) fn view(&self) -> Option<&IndexView> {
        match self {
            Lookup::Exact(index) => Some(index),
            Lookup::Sampled(_) => None,
        }
    }

    /// Returns the hooks, if there are some.
    pub(crate) fn sampled(&self) -> Option<&Arc<Sampled>> {
        match self {
            Lookup::Exact(_) => None,
            Lookup::Sampled(sampled) => Some(sampled),
        }
    }
}
