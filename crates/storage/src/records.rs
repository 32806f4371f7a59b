//! Log records of the container class, whichever chunk store made them.

use crate::arena::{self, BLOCKS_STORED};
use crate::{Result, containers};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::Record;

/// Appends the chunks that a record of the container class is the first to place, with their addresses. A chunk index
/// takes these from it.
pub fn stored_chunks(record: &Record, digest_bytes: usize, out: &mut Vec<(Fingerprint, u64)>) -> Result<()> {
    if record.kind != BLOCKS_STORED {
        return containers::stored_chunks(record, digest_bytes, out);
    }
    let mut blocks = Vec::new();
    stored_blocks(record, digest_bytes, &mut blocks)?;
    out.extend(blocks.into_iter().map(|(fingerprint, address, _)| (fingerprint, address)));
    Ok(())
}

/// Appends the chunks that a record of an arena places, with their addresses and [notes](crate::decode_note). Errors:
/// it is a record of something else.
pub fn stored_blocks(record: &Record, digest_bytes: usize, out: &mut Vec<(Fingerprint, u64, u32)>) -> Result<()> {
    arena::stored_blocks(record, digest_bytes, out)
}
