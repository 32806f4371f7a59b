//! Byte-compare filter (M0.8): loads the chunk that the fingerprint names and compares all bytes.

use super::{Filter, Lookup, Request, Verdict};
use crate::Result;
use onefold_ground::profile::Component;
use onefold_storage::ChunkStore;
use std::sync::Arc;

static COMPONENT: Component = Component::new("filter_byte_compare");

/// Chunks compared per load. Bounds the frames in memory.
const BATCH: usize = 64;

/// Turns STRONG-MAYBE into EXISTING if the stored bytes are equal. If they differ or cannot be read, the chunk is
/// NON-EXISTING and is stored again: neither a collision nor damage ever makes a wrong duplicate.
#[derive(Debug)]
pub struct ByteCompareFilter {
    storage: Arc<dyn ChunkStore>,
}

impl ByteCompareFilter {
    /// Returns a filter that loads from `storage`.
    pub fn new(storage: Arc<dyn ChunkStore>) -> ByteCompareFilter {
        ByteCompareFilter { storage }
    }
}

impl Filter for ByteCompareFilter {
    fn name(&self) -> &'static str {
        "byte-compare"
    }

    fn max(&self) -> Verdict {
        Verdict::Existing
    }

    fn component(&self) -> &'static Component {
        &COMPONENT
    }

    fn check(&self, _request: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> Result<()> {
        let located: Vec<usize> = active.iter().copied().filter(|at| lookups[*at].address.is_some()).collect();
        for batch in located.chunks(BATCH) {
            let wanted: Vec<_> =
                batch.iter().filter_map(|at| lookups[*at].address.map(|address| (address, lookups[*at].fingerprint))).collect();
            let mut slices = Vec::with_capacity(wanted.len());
            let loaded = self.storage.load(&wanted, &mut slices);
            for (place, at) in batch.iter().enumerate() {
                let equal = match &loaded {
                    Ok(()) => slices[place][..] == *lookups[*at].data,
                    // A chunk of the batch is damaged: check each by itself.
                    Err(_) => {
                        let mut one = Vec::new();
                        self.storage.load(&wanted[place..=place], &mut one).is_ok() && one[0][..] == *lookups[*at].data
                    }
                };
                if equal {
                    lookups[*at].verdict = Verdict::Existing;
                } else {
                    tracing::warn!(fingerprint = %lookups[*at].fingerprint, "a stored chunk differs or is damaged: storing the chunk again");
                    lookups[*at].verdict = Verdict::NonExisting;
                    lookups[*at].bad = lookups[*at].address.take();
                }
            }
        }
        Ok(())
    }
}
