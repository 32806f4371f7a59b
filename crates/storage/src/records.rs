//! Log records of the container class, whichever chunk store made them.

use crate::arena::{self, BLOCKS_STORED};
use crate::levels::{self, CHUNKS_DROPPED, CHUNKS_HELD, TABLE_WRITTEN};
use crate::{Result, containers};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::Record;

/// Appends the chunks that a record of the container class is the first to place, with their addresses, and the notes
/// of them ([`Effects::notes`](onefold_oplog::Effects::notes)). An index takes these from it.
pub fn stored_chunks(record: &Record, digest_bytes: usize, chunks: &mut Vec<(Fingerprint, u64)>, notes: &mut Vec<u32>) -> Result<()> {
    match record.kind {
        BLOCKS_STORED => arena::stored_blocks(record, digest_bytes, chunks, notes),
        CHUNKS_DROPPED | CHUNKS_HELD | TABLE_WRITTEN => levels::named_chunks(record, digest_bytes, chunks),
        _ => containers::stored_chunks(record, digest_bytes, chunks),
    }
}
