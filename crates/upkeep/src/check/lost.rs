//! The chunks that a check found to be lost.

use onefold_engine::{Address, Engine, Piece, Quarantined};
use onefold_fingerprint::Fingerprint;
use onefold_storage::ChunkKind;
use std::collections::HashMap;

/// A chunk as something needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Needed {
    pub(crate) fingerprint: Fingerprint,
    /// Which copy: where it is. 0: the one that the chunk index names.
    pub(crate) copy: Address,
}

impl Needed {
    /// Returns what a reference to this address needs.
    pub(crate) fn by(engine: &Engine, fingerprint: &Fingerprint, address: Address) -> Needed {
        Needed { fingerprint: *fingerprint, copy: engine.copy_of(address) }
    }

    /// Returns what a piece needs.
    pub(crate) fn by_piece(engine: &Engine, piece: &Piece) -> Option<Needed> {
        match piece {
            Piece::Chunk { fingerprint, address, .. } => Some(Needed::by(engine, fingerprint, *address)),
            Piece::Zeros { .. } => None,
        }
    }

    /// Returns the chunk that is stored at an address.
    pub(crate) fn stored(engine: &Engine, fingerprint: &Fingerprint, address: Address) -> Needed {
        let is_exact = engine.descriptor().profile.is_exact();
        Needed { fingerprint: *fingerprint, copy: if is_exact { Address::from_bits(0) } else { address } }
    }

    /// Returns the lost chunk that an entry of the quarantine stands for.
    pub(crate) fn lost(engine: &Engine, chunk: &Quarantined) -> Needed {
        Needed::stored(engine, &chunk.fingerprint, chunk.address)
    }
}

/// Chunks that cannot be read, up to a limit of memory.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// With an address that something names, if that is known.
    chunks: HashMap<Needed, u64>,
    limit: usize,
    pub(super) left_out: u64,
}

impl Lost {
    /// Memory of one chunk in a hash set that has just grown.
    const CHUNK_BYTES: usize = 112;

    pub(super) fn within(memory_bytes: usize) -> Lost {
        Lost { limit: (memory_bytes / Lost::CHUNK_BYTES).max(1), ..Lost::default() }
    }

    pub(crate) fn insert(&mut self, chunk: Needed) {
        self.insert_at(chunk, 0);
    }

    /// Does the same with an address that something names; 0: unknown.
    pub(crate) fn insert_at(&mut self, chunk: Needed, address: u64) {
        if self.chunks.len() < self.limit {
            self.chunks.insert(chunk, address);
        } else if !self.chunks.contains_key(&chunk) {
            self.left_out += 1;
        }
    }

    pub(crate) fn contains(&self, chunk: &Needed) -> bool {
        self.chunks.contains_key(chunk)
    }

    /// Returns the chunks, and the addresses that came with them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Needed, u64)> + '_ {
        self.chunks.iter().map(|(chunk, address)| (*chunk, *address))
    }

    /// Returns how many chunks there was no memory for.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
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
    chunks: HashMap<Needed, Option<ChunkKind>>,
    limit: usize,
}

impl Kinds {
    pub(super) fn within(memory_bytes: usize) -> Kinds {
        Kinds { limit: (memory_bytes / Lost::CHUNK_BYTES).max(1), ..Kinds::default() }
    }

    /// Asks for the kind of a chunk. If there is no memory for it, a later check may find it out.
    pub(crate) fn want(&mut self, chunk: Needed) {
        if self.chunks.len() < self.limit {
            self.chunks.entry(chunk).or_default();
        }
    }

    /// Notes that a chunk is needed as one of this kind.
    pub(crate) fn learn(&mut self, chunk: &Needed, kind: ChunkKind) {
        if let Some(known) = self.chunks.get_mut(chunk) {
            *known = Some(kind);
        }
    }

    /// Returns the kind learned for a chunk.
    pub(crate) fn of(&self, chunk: &Needed) -> Option<ChunkKind> {
        self.chunks.get(chunk).copied().flatten()
    }
}
