//! The chunks that a check found to be lost.

use onefold_engine::Piece;
use onefold_fingerprint::Fingerprint;
use onefold_storage::ChunkKind;
use std::collections::HashMap;

/// Chunks that cannot be read, up to a limit of memory.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// With an address that something names, if that is known.
    chunks: HashMap<Fingerprint, u64>,
    limit: usize,
    pub(super) left_out: u64,
}

impl Lost {
    /// Memory of one chunk in a hash set that has just grown.
    const CHUNK_BYTES: usize = 96;

    pub(super) fn within(memory_bytes: usize) -> Lost {
        Lost { limit: (memory_bytes / Lost::CHUNK_BYTES).max(1), ..Lost::default() }
    }

    pub(crate) fn insert(&mut self, fingerprint: Fingerprint) {
        self.insert_at(fingerprint, 0);
    }

    /// Does the same with an address that something names; 0: unknown.
    pub(crate) fn insert_at(&mut self, fingerprint: Fingerprint, address: u64) {
        if self.chunks.len() < self.limit {
            self.chunks.insert(fingerprint, address);
        } else if !self.chunks.contains_key(&fingerprint) {
            self.left_out += 1;
        }
    }

    pub(crate) fn contains(&self, fingerprint: &Fingerprint) -> bool {
        self.chunks.contains_key(fingerprint)
    }

    /// Returns the chunks, and the addresses that came with them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Fingerprint, u64)> + '_ {
        self.chunks.iter().map(|(fingerprint, address)| (*fingerprint, *address))
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.left_out == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

/// Lost chunks of unknown kind. Whatever needs a chunk reveals its kind.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    chunks: HashMap<Fingerprint, Option<ChunkKind>>,
    limit: usize,
}

impl Kinds {
    pub(super) fn within(memory_bytes: usize) -> Kinds {
        Kinds { limit: (memory_bytes / Lost::CHUNK_BYTES).max(1), ..Kinds::default() }
    }

    /// Asks for the kind of a chunk. If there is no memory for it, a later check may find it out.
    pub(crate) fn want(&mut self, chunk: Fingerprint) {
        if self.chunks.len() < self.limit {
            self.chunks.entry(chunk).or_default();
        }
    }

    /// Notes that a piece is needed as a chunk of this kind.
    pub(crate) fn learn(&mut self, piece: &Piece, kind: ChunkKind) {
        if let Some(fingerprint) = piece.fingerprint()
            && let Some(known) = self.chunks.get_mut(&fingerprint)
        {
            *known = Some(kind);
        }
    }

    /// Returns the kind learned for a chunk.
    pub(crate) fn of(&self, chunk: &Fingerprint) -> Option<ChunkKind> {
        self.chunks.get(chunk).copied().flatten()
    }
}
