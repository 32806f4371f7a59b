//! Chunk-index filter (M0.6): the last word. It knows every chunk.

use super::{Filter, Lookup, Request, Verdict};
use crate::Result;
use onefold_ground::profile::Component;
use onefold_index::ChunkIndex;
use onefold_storage::Address;
use std::sync::Arc;

/// Says STRONG-MAYBE of chunks in the chunk index and NON-EXISTING of all others. The update pass is done by the log:
/// the index takes new entries when their record is durable, and until then the reservations answer.
#[derive(Debug)]
pub struct ChunkIndexFilter {
    index: Arc<ChunkIndex>,
}

impl ChunkIndexFilter {
    /// Asks `index`.
    pub fn new(index: Arc<ChunkIndex>) -> ChunkIndexFilter {
        ChunkIndexFilter { index }
    }
}

impl Filter for ChunkIndexFilter {
    fn name(&self) -> &'static str {
        "chunk-index"
    }

    fn max(&self) -> Verdict {
        Verdict::StrongMaybe
    }

    fn component(&self) -> Component {
        Component::FilterChunkIndex
    }

    fn check(&self, _request: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> Result<()> {
        let wanted: Vec<_> = active.iter().map(|at| lookups[*at].fingerprint).collect();
        let mut entries = Vec::with_capacity(wanted.len());
        self.index.lookup(&wanted, &mut entries)?;
        for (at, entry) in active.iter().zip(entries) {
            match entry {
                // An entry without an address is a count whose chunk is not stored (any more): the chunk is new.
                Some(entry) if entry.address != 0 => lookups[*at].found(Verdict::StrongMaybe, Address::from_bits(entry.address)),
                _ => lookups[*at].verdict = Verdict::NonExisting,
            }
        }
        Ok(())
    }
}
