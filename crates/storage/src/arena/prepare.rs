//! Makes chunks durable, and says what the log must hold of them.
//!
//! Every [`Prepared`] has all chunks that the log is not known to hold, never only those that another one does not
//! have. So an abandoned one needs no undoing. Two at the same time only say some things twice.

use crate::arena::block::address_of_block;
use crate::arena::records::{Stored, blocks_stored};
use crate::arena::store::ArenaStore;
use crate::{Prepared, Result};
use onefold_oplog::Position;

impl ArenaStore {
    pub(crate) fn prepare_all(&self) -> Result<Prepared> {
        self.check_writable()?;
        let (end, _settling) = self.pending.settle(self)?;
        let before = self.pending.before(end);
        let stored: Vec<Stored> = before.iter().map(|(stored, _)| *stored).collect();
        let bytes: u64 = stored.iter().map(|stored| u64::from(stored.length_bytes)).sum();
        Ok(Prepared {
            records: blocks_stored(&stored, self.options.fingerprint.digest_bytes()),
            chunks: stored.iter().map(|stored| (stored.fingerprint, address_of_block(stored.block), stored.kind)).collect(),
            notes: stored.iter().map(Stored::note).collect(),
            raw_bytes: bytes,
            stored_bytes: bytes,
            blocks: before.iter().map(|(stored, serial)| (stored.block, *serial)).collect(),
            ..Prepared::default()
        })
    }

    pub(crate) fn note_committed(&self, prepared: &Prepared, end: Position) {
        self.note_log_end(end);
        self.pending.committed(&prepared.blocks);
    }
}
