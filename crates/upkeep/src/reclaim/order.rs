//! The order in which chunks are read: first as the newest backup reads them, then as the volumes do. Chunks that are
//! merged into one container are written in this order.
//!
//! Finding the order takes a walk through recipes and mappings, and there may be many of them when few chunks move. So
//! the walk ends when it has cost as much as it can be worth. The remaining chunks keep the order in which they were
//! written, which is usually the reading order anyway.

use crate::Result;
use crate::references::{Kind, mapping, objects_while};
use onefold_catalog::{Catalog, Content, PieceReader, TreeWalk};
use onefold_engine::{Address, ContainerId, Engine, Piece};
use onefold_storage::Origin;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Chunks whose place is remembered: limits memory to about 100 MB. Further chunks keep the order in which they were
/// written.
const MAX_CHUNKS: usize = 4 << 20;
/// Pieces visited per chunk that may move, and the minimum in total.
const PIECES_FOR_A_CHUNK: u64 = 64;
const LEAST_PIECES: u64 = 1 << 16;

/// Mappings visited between two calls of `go_on`.
const OBJECTS_OF_A_STEP: u64 = 4096;
/// Directory entries visited between two calls of `go_on`, each with the recipe of its file.
const ENTRIES_OF_A_STEP: u64 = 256;

/// The places of chunks in the order in which they are read.
#[derive(Debug, Default)]
pub(crate) struct ReadingOrder {
    places: HashMap<Address, u32>,
    /// Pieces that may still be visited.
    left: u64,
}

impl ReadingOrder {
    /// Returns the order of the chunks of these containers. Without containers, reads nothing.
    pub(crate) fn of(
        engine: &Arc<Engine>,
        containers: impl Iterator<Item = ContainerId>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<ReadingOrder> {
        let mut order = ReadingOrder::default();
        let mut origins: HashSet<Origin> = HashSet::new();
        let mut chunks = 0;
        for container in containers {
            // The order is only a help, so containers that cannot be read are skipped.
            if let Ok(found) = engine.storage().chunks_of(container) {
                origins.extend(found.iter().map(|(address, _)| address.origin()));
                chunks += found.len() as u64;
            }
        }
        order.left = (chunks * PIECES_FOR_A_CHUNK).max(LEAST_PIECES);
        // A node that does not have the objects leaves the chunks as they were written.
        if origins.is_empty() || !engine.has_all_objects() {
            return Ok(order);
        }
        let _in_flight = engine.in_flight();
        let newest = Catalog::new(engine.clone()).newest(|_| true);
        if let Ok(Some(backup)) = newest {
            for (looked_at, item) in (1u64..).zip(TreeWalk::new(engine, b"", &backup.root)) {
                // Entries that are not files cost one visit too.
                order.left = order.left.saturating_sub(1);
                if order.left == 0 || (looked_at.is_multiple_of(ENTRIES_OF_A_STEP) && !go_on()) {
                    return Ok(order);
                }
                let Ok(entry) = item.entry else { continue };
                if let Content::File { recipe, .. } = &entry.content {
                    let pieces = PieceReader::new(engine, recipe).map_while(std::result::Result::ok);
                    let _ = pieces.map(|piece| order.note(&piece, &origins)).find(|go_on| !go_on);
                }
            }
        }
        let digest_bytes = engine.digest_bytes();
        let mut objects = 0u64;
        let visit = &mut |_: &[u8], value: &[u8]| {
            // Mappings of zeros cost one visit too.
            order.left = order.left.saturating_sub(1);
            objects += 1;
            if order.left == 0 || (objects.is_multiple_of(OBJECTS_OF_A_STEP) && !go_on()) {
                return false;
            }
            let pieces = mapping(value, digest_bytes).map_or_else(Vec::new, |recipe| recipe.pieces);
            pieces.iter().all(|piece| order.note(piece, &origins))
        };
        objects_while(&engine.moment(None)?, Kind::Mapping, visit, &mut |_| {});
        Ok(order)
    }

    /// Visits a piece. Returns false when no more may be visited.
    fn note(&mut self, piece: &Piece, origins: &HashSet<Origin>) -> bool {
        if let Piece::Chunk { address, .. } = piece
            && origins.contains(&address.origin())
            && self.places.len() < MAX_CHUNKS
        {
            let next = self.places.len() as u32;
            self.places.entry(*address).or_insert(next);
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }

    /// Returns the sort key of a chunk. Chunks without a place in the order (metadata, and chunks of older backups
    /// only) come last.
    pub(crate) fn rank(&self, address: Address) -> u64 {
        self.places.get(&address).map_or(u64::MAX, |place| u64::from(*place))
    }
}
