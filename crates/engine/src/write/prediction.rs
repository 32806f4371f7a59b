//! Prediction of duplicates: what lies behind the last duplicate in its container is expected to come next.
//!
//! Chunks that were written together come back together (M0.10). So the lengths of the next chunks are known before anything is scanned: if the
//! run has boundaries there, the expected chunks are hashed at once, and a name that is equal proves the chunk. Then nothing was scanned for it.
//!
//! The result is the same as without prediction: bytes that are equal to a chunk that this chunker cut have no earlier boundary, and that they
//! have one at their end is asked ([`Chunker::confirms`]), since the chunk may once have been the end of a run. At the end of a run no boundary is needed.

use crate::write::chain::Chain;
use onefold_chunking::Chunker;
use onefold_fingerprint::{Algorithm, Fingerprint};
use onefold_storage::{Address, Catalog, ChunkKind, ContainerStore};
use std::sync::Arc;

/// Most chunks that are hashed ahead: enough to fill the lanes of the machine, few enough to stay in its cache.
const MOST_CHUNKS: usize = 32;

/// What one writing stream expects.
#[derive(Debug, Default)]
pub(crate) struct Prediction {
    /// The container of the last duplicate, and the slot behind it.
    expected: Option<(Arc<Catalog>, usize)>,
}

impl Prediction {
    /// Takes from the front of `data`, which begins at a boundary, those expected chunks that are there: appends them and their names, and returns
    /// how many bytes they have. With `last` the end of `data` is the end of the run.
    pub(crate) fn take<'a>(
        &mut self,
        data: &'a [u8],
        last: bool,
        chunker: &dyn Chunker,
        algorithm: Algorithm,
        chunks: &mut Vec<&'a [u8]>,
        fingerprints: &mut Vec<Fingerprint>,
    ) -> usize {
        let Some((catalog, next)) = self.expected.take() else { return 0 };
        let slots = catalog.slots.get(next..).unwrap_or_default();
        let mut expected = Vec::with_capacity(MOST_CHUNKS);
        let mut at = 0;
        let mut is_right = true;
        for slot in slots.iter().take(MOST_CHUNKS).take_while(|slot| slot.kind == ChunkKind::Data) {
            let (rest, length) = (&data[at..], slot.length_bytes as usize);
            if length == 0 || length > rest.len() {
                break;
            }
            // Before anything is hashed: other data seldom has a boundary just there.
            is_right = (last && length == rest.len()) || chunker.confirms(rest, length);
            if !is_right {
                break;
            }
            expected.push(&rest[..length]);
            at += length;
        }
        let mut names = Vec::with_capacity(expected.len());
        algorithm.fingerprint_many(&expected, &mut names);
        let right = names.iter().zip(slots).take_while(|(name, slot)| **name == slot.fingerprint).count();
        chunks.extend_from_slice(&expected[..right]);
        fingerprints.extend_from_slice(&names[..right]);
        if is_right && right == expected.len() {
            self.expected = Some((catalog, next + right));
        }
        expected[..right].iter().map(|chunk| chunk.len()).sum()
    }

    /// A chunk was found or put at `address`; `None`: it was zeros, which take no place among others.
    pub(crate) fn learn(&mut self, address: Option<Address>, storage: &ContainerStore) {
        let Some(address) = address else { return };
        if self.expected.as_ref().is_some_and(|(catalog, expected)| catalog.position(address).is_some_and(|slot| slot + 1 == *expected)) {
            return;
        }
        self.expected = None;
        // What is still being filled has nothing behind its last chunk, and its catalog is not to be held. Nor is a damaged one of use.
        if let Ok(Some(catalog)) = storage.sealed_catalog_of(address)
            && let Some(slot) = catalog.position(address)
        {
            self.expected = Some((catalog, slot + 1));
        }
    }

    /// Whether a chain may be predicted for: one that loads the catalogs of containers anyway.
    pub(crate) fn suits(chain: &Chain) -> bool {
        chain.has("container-cache")
    }
}
