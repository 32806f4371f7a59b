//! Block-index filter (M0.7): compares with the current mapping of the block that is being overwritten. No I/O.

use super::{Filter, Lookup, Request, Verdict};
use crate::lost::quarantine::Quarantine;
use crate::write::reservation::FingerprintMap;
use crate::{Piece, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_storage::Address;
use std::sync::Arc;

static COMPONENT: Component = Component::new("filter_block_index");

/// Says STRONG-MAYBE for chunks of the overwritten block: its mapping keeps them until the new mapping is durable.
#[derive(Debug, Default)]
pub struct BlockIndexFilter {
    /// Chunks in quarantine must be stored again, so the chunk index is asked.
    quarantine: Option<Arc<Quarantine>>,
}

impl BlockIndexFilter {
    pub(crate) fn new(quarantine: Arc<Quarantine>) -> BlockIndexFilter {
        BlockIndexFilter { quarantine: Some(quarantine) }
    }

    fn is_good(&self, chunk: &Fingerprint, address: Address) -> bool {
        self.quarantine.as_ref().is_none_or(|quarantine| matches!(quarantine.get(chunk, address), Ok(None)))
    }
}

impl Filter for BlockIndexFilter {
    fn name(&self) -> &'static str {
        "block-index"
    }

    fn max(&self) -> Verdict {
        Verdict::StrongMaybe
    }

    fn component(&self) -> &'static Component {
        &COMPONENT
    }

    fn check(&self, request: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> Result<()> {
        if request.overwritten.is_empty() {
            return Ok(());
        }
        let present: FingerprintMap<_> = request
            .overwritten
            .iter()
            .filter_map(|piece| match piece {
                Piece::Chunk { fingerprint, address, .. } => Some((*fingerprint, *address)),
                Piece::Zeros { .. } => None,
            })
            .collect();
        for at in active {
            if let Some(address) = present.get(&lookups[*at].fingerprint)
                && self.is_good(&lookups[*at].fingerprint, *address)
            {
                lookups[*at].found(Verdict::StrongMaybe, *address);
            }
        }
        Ok(())
    }
}
