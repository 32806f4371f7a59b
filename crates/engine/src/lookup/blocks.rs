//! The linked index as the arena's table of blocks: the deduplication information area has both (M1.5).

use onefold_index::{BlockEntry, LinkedIndex};
use onefold_storage::{Block, BlockTable, StorageError, decode_note};
use std::sync::Arc;

/// What blocks hold, as the index has it.
#[derive(Debug)]
pub(crate) struct Blocks(Arc<LinkedIndex>);

impl Blocks {
    pub(crate) fn new(index: Arc<LinkedIndex>) -> Blocks {
        Blocks(index)
    }
}

/// Returns what a block holds. A note that says nothing means a length that no chunk has, which readers report.
fn block(entry: BlockEntry) -> Block {
    let (kind, length_bytes) = decode_note(entry.note).unwrap_or((onefold_storage::ChunkKind::Data, 0));
    Block { fingerprint: entry.fingerprint, kind, length_bytes, is_lost: entry.is_lost }
}

impl BlockTable for Blocks {
    fn blocks(&self, wanted: &[u64], out: &mut Vec<Option<Block>>) -> onefold_storage::Result<()> {
        let mut found = Vec::new();
        let mut rest = wanted;
        while let Some(first) = rest.first() {
            let run = rest.iter().zip(*first..).take_while(|(block, at)| *block == at).count();
            self.0.blocks(*first, run, &mut found).map_err(table)?;
            out.extend(found.drain(..).map(|entry| entry.map(block)));
            rest = &rest[run..];
        }
        Ok(())
    }

    fn run(&self, first: u64, count: usize, out: &mut Vec<Option<Block>>) -> onefold_storage::Result<()> {
        let mut found = Vec::new();
        self.0.blocks(first, count, &mut found).map_err(table)?;
        out.extend(found.into_iter().map(|entry| entry.map(block)));
        Ok(())
    }

    fn used(&self, unit: u32) -> onefold_storage::Result<u32> {
        self.0.used_in_unit(unit.into()).map_err(table)
    }

    fn units(&self) -> onefold_storage::Result<u32> {
        Ok(u32::try_from(self.0.units()).unwrap_or(u32::MAX))
    }
}

fn table(error: onefold_index::IndexError) -> StorageError {
    StorageError::Table { is_damage: error.is_damage() || error.is_lasting(), is_full: error.is_full(), why: error.to_string() }
}
