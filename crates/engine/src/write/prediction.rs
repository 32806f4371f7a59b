//! Prediction of duplicates: the chunks after the last duplicate in its container are expected to come next.
//!
//! Chunks that were written together come back together (M0.10). So the lengths of the next chunks are known before
//! anything is scanned. If the run has boundaries there, the expected chunks are hashed at once. An equal name proves
//! the chunk, and nothing was scanned for it.
//!
//! The result is the same as without prediction. Bytes that are equal to a chunk of this chunker have no earlier
//! boundary. Whether they have one at their end is checked ([`Chunker::confirms`]), since the chunk may once have been
//! the end of a run. At the end of a run no boundary is needed.

use crate::write::chain::Chain;
use onefold_chunking::Chunker;
use onefold_fingerprint::{Algorithm, Fingerprint};
use onefold_storage::{Address, Catalog, ChunkKind, ContainerStore};
use std::sync::Arc;

/// Most chunks that are hashed ahead: enough to fill the machine's lanes, few enough to stay in its cache.
const MOST_CHUNKS: usize = 32;

/// What one writing stream expects.
#[derive(Debug, Default)]
pub(crate) struct Prediction {
    /// The container of the last duplicate, and the slot after it.
    expected: Option<(Arc<Catalog>, usize)>,
}

impl Prediction {
    /// Takes the expected chunks at the front of `data`, which begins at a boundary: appends them and their names.
    /// Returns how many bytes they have. With `last`, the end of `data` is the end of the run.
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
            // Before hashing: other data seldom has a boundary exactly there.
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

    /// Notes that a chunk was found or put at `address`. `None`: it was zeros, which have no place among other chunks.
    pub(crate) fn learn(&mut self, address: Option<Address>, containers: Option<&ContainerStore>) {
        let Some(address) = address else { return };
        if self.expected.as_ref().is_some_and(|(catalog, expected)| catalog.position(address).is_some_and(|slot| slot + 1 == *expected)) {
            return;
        }
        self.expected = None;
        // A container that is still being filled has nothing after its last chunk, and its catalog must not be held. A
        // damaged container does not help either.
        if let Some(containers) = containers
            && let Ok(Some(catalog)) = containers.sealed_catalog_of(address)
            && let Some(slot) = catalog.position(address)
        {
            self.expected = Some((catalog, slot + 1));
        }
    }

    /// Returns whether prediction fits a chain: only one that loads the catalogs of containers anyway.
    pub(crate) fn suits(chain: &Chain) -> bool {
        chain.has("container-cache")
    }
}
