//! In which order the chunks of some containers are read: first as the newest backup reads them, then as the volumes do. Chunks that are merged
//! into one container are put there in this order.

use crate::Result;
use crate::references::{Kind, mapping, objects};
use onefold_catalog::{Catalog, Content, PieceReader, TreeWalk};
use onefold_engine::{Address, ContainerId, Engine, Piece};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Chunks whose place is remembered: bounds memory to about 100 MB. The others keep the order in which they were written.
const MAX_CHUNKS: usize = 4 << 20;

/// The places of chunks in the order in which they are read.
#[derive(Debug, Default)]
pub(crate) struct ReadingOrder(HashMap<Address, u32>);

impl ReadingOrder {
    /// Of the chunks of these containers. Without containers nothing is read.
    pub(crate) fn of(
        engine: &Arc<Engine>,
        containers: impl Iterator<Item = ContainerId>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<ReadingOrder> {
        let mut order = ReadingOrder::default();
        let mut homes: HashSet<ContainerId> = HashSet::new();
        for container in containers {
            // The order is a help: what cannot be read has none.
            if let Ok(catalog) = engine.storage().catalog(container) {
                homes.extend(catalog.home_containers());
            }
        }
        if homes.is_empty() {
            return Ok(order);
        }
        let _in_flight = engine.in_flight();
        let newest = Catalog::new(engine.clone()).newest(|_| true);
        if let Ok(Some(backup)) = newest {
            for item in TreeWalk::new(engine, b"", &backup.root) {
                if !go_on() {
                    return Ok(order);
                }
                let Ok(entry) = item.entry else { continue };
                if let Content::File { recipe, .. } = &entry.content {
                    PieceReader::new(engine, recipe).map_while(std::result::Result::ok).for_each(|piece| order.note(&piece, &homes));
                }
            }
        }
        let digest_bytes = engine.digest_bytes();
        let visit = &mut |_: &[u8], value: &[u8]| {
            if let Some(recipe) = mapping(value, digest_bytes) {
                recipe.pieces.iter().for_each(|piece| order.note(piece, &homes));
            }
        };
        objects(&engine.moment(None)?, Kind::Mapping, visit, &mut |_| {});
        Ok(order)
    }

    fn note(&mut self, piece: &Piece, homes: &HashSet<ContainerId>) {
        if let Piece::Chunk { address, .. } = piece
            && homes.contains(&address.container())
            && self.0.len() < MAX_CHUNKS
        {
            let next = self.0.len() as u32;
            self.0.entry(*address).or_insert(next);
        }
    }

    /// What to sort by. Chunks that are not read in order (metadata, and what only older backups have) come behind.
    pub(crate) fn rank(&self, address: Address) -> u64 {
        self.0.get(&address).map_or(u64::MAX, |place| u64::from(*place))
    }
}
