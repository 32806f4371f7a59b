//! Forgets files that are noted by their names and of no use any more (`docs/decisions/0057-file-fingerprints.md`):
//! their backup is gone, and so is their first chunk.
//!
//! A prune looks at some of them, from a place that chance chooses: four for each chunk that it removed, and
//! [`LEAST`]. A file has a chunk at least. So where files go as fast as they come, at most about a quarter of what is
//! noted is of no use, and the work of a prune follows what it removes, not the size of the store.

use crate::Result;
use onefold_catalog::{Catalog, NamedFile};
use onefold_engine::{Engine, Piece, random_name};
use std::sync::Arc;

/// Looked at for each removed chunk.
const FOR_EACH_CHUNK: u64 = 4;
/// Looked at by each prune, if there are as many.
const LEAST: u64 = 4096;

/// Forgets some useless files after `removed` chunks were removed.
pub(super) fn forget_useless(engine: &Arc<Engine>, removed: u64, go_on: &dyn Fn() -> bool) -> Result<()> {
    if !engine.recalls() || engine.has_lost() {
        return Ok(());
    }
    let catalog = Catalog::new(engine.clone());
    let kept = catalog.backups_with_named_files(&engine.in_flight())?;
    let mut is_useless = |file: &NamedFile| {
        let first = file.recipe.pieces.iter().find_map(|piece| match piece {
            Piece::Chunk { fingerprint, address, .. } => Some((fingerprint, *address)),
            Piece::Zeros { .. } => None,
        });
        // What cannot be read is left to others.
        let is_stored = |(fingerprint, address)| engine.is_stored(fingerprint, address).unwrap_or(true);
        !kept.contains(&file.backup) && !first.is_some_and(is_stored)
    };
    let from = random_name()?;
    let from = u64::from_le_bytes(from[..8].try_into().expect("eight of 16 bytes"));
    catalog.forget_named_files(from, LEAST.max(removed.saturating_mul(FOR_EACH_CHUNK)), &mut is_useless, go_on)?;
    Ok(())
}
