//! In which order the chunks of some containers are read: first as the newest backup reads them, then as the volumes do. Chunks that are merged
//! into one container are put there in this order.
//!
//! Finding it out takes a walk through recipes and mappings, which may be many when few chunks move: it ends when it has cost as much as it can be
//! worth. What it did not come to keeps the order in which it was written, which is mostly the order in which it is read.

use crate::Result;
use crate::references::{Kind, mapping, objects_while};
use onefold_catalog::{Catalog, Content, PieceReader, TreeWalk};
use onefold_engine::{Address, ContainerId, Engine, Piece};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Chunks whose place is remembered: bounds memory to about 100 MB. The others keep the order in which they were written.
const MAX_CHUNKS: usize = 4 << 20;
/// Pieces that are looked at for each chunk that may move, and at least.
const PIECES_FOR_A_CHUNK: u64 = 64;
const LEAST_PIECES: u64 = 1 << 16;

/// Mappings that are looked at before it is asked whether to go on.
const OBJECTS_OF_A_STEP: u64 = 4096;
/// Entries of directories, each with the recipe of its file.
const ENTRIES_OF_A_STEP: u64 = 256;

/// The places of chunks in the order in which they are read.
#[derive(Debug, Default)]
pub(crate) struct ReadingOrder {
    places: HashMap<Address, u32>,
    /// Pieces that may still be looked at.
    left: u64,
}

impl ReadingOrder {
    /// Of the chunks of these containers. Without containers nothing is read.
    pub(crate) fn of(
        engine: &Arc<Engine>,
        containers: impl Iterator<Item = ContainerId>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<ReadingOrder> {
        let mut order = ReadingOrder::default();
        let mut homes: HashSet<ContainerId> = HashSet::new();
        let mut chunks = 0;
        for container in containers {
            // The order is a help: what cannot be read has none.
            if let Ok(catalog) = engine.storage().catalog(container) {
                homes.extend(catalog.home_containers());
                chunks += catalog.slots.len() as u64;
            }
        }
        order.left = (chunks * PIECES_FOR_A_CHUNK).max(LEAST_PIECES);
        if homes.is_empty() {
            return Ok(order);
        }
        let _in_flight = engine.in_flight();
        let newest = Catalog::new(engine.clone()).newest(|_| true);
        if let Ok(Some(backup)) = newest {
            for (looked_at, item) in (1u64..).zip(TreeWalk::new(engine, b"", &backup.root)) {
                // One that is no file costs a look too.
                order.left = order.left.saturating_sub(1);
                if order.left == 0 || (looked_at.is_multiple_of(ENTRIES_OF_A_STEP) && !go_on()) {
                    return Ok(order);
                }
                let Ok(entry) = item.entry else { continue };
                if let Content::File { recipe, .. } = &entry.content {
                    let pieces = PieceReader::new(engine, recipe).map_while(std::result::Result::ok);
                    let _ = pieces.map(|piece| order.note(&piece, &homes)).find(|go_on| !go_on);
                }
            }
        }
        let digest_bytes = engine.digest_bytes();
        let mut objects = 0u64;
        let visit = &mut |_: &[u8], value: &[u8]| {
            // One of zeros costs a look too.
            order.left = order.left.saturating_sub(1);
            objects += 1;
            if order.left == 0 || (objects.is_multiple_of(OBJECTS_OF_A_STEP) && !go_on()) {
                return false;
            }
            let pieces = mapping(value, digest_bytes).map_or_else(Vec::new, |recipe| recipe.pieces);
            pieces.iter().all(|piece| order.note(piece, &homes))
        };
        objects_while(&engine.moment(None)?, Kind::Mapping, visit, &mut |_| {});
        Ok(order)
    }

    /// Takes a piece; `false`: no more.
    fn note(&mut self, piece: &Piece, homes: &HashSet<ContainerId>) -> bool {
        if let Piece::Chunk { address, .. } = piece
            && homes.contains(&address.container())
            && self.places.len() < MAX_CHUNKS
        {
            let next = self.places.len() as u32;
            self.places.entry(*address).or_insert(next);
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }

    /// What to sort by. Chunks that are not read in order (metadata, and what only older backups have) come behind.
    pub(crate) fn rank(&self, address: Address) -> u64 {
        self.places.get(&address).map_or(u64::MAX, |place| u64::from(*place))
    }
}
