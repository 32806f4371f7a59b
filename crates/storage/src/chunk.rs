//! Chunks, wherever they are stored.

use onefold_fingerprint::Fingerprint;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Highest length of a chunk.
pub const MAX_CHUNK_BYTES: usize = 16 << 20;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChunkKind {
    /// User data.
    Data = 0,
    /// Pieces of a recipe.
    Recipe = 1,
    /// Entries of a directory.
    Directory = 2,
}

impl ChunkKind {
    /// Returns the kind with this number.
    pub fn from_number(number: u8) -> Option<ChunkKind> {
        Some(match number {
            0 => ChunkKind::Data,
            1 => ChunkKind::Recipe,
            2 => ChunkKind::Directory,
            _ => return None,
        })
    }
}

/// A chunk to store.
#[derive(Clone, Copy, Debug)]
pub struct NewChunk<'a> {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// What it holds.
    pub kind: ChunkKind,
    /// Its bytes, at most [`MAX_CHUNK_BYTES`].
    pub data: &'a [u8],
}

/// The bytes of a chunk: a part of a decompressed frame that others may share.
#[derive(Clone)]
pub struct Slice {
    frame: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Slice {
    /// Call only when `range` lies within `frame`.
    pub(crate) fn new(frame: Arc<Vec<u8>>, range: Range<usize>) -> Slice {
        debug_assert!(range.start <= range.end && range.end <= frame.len());
        Slice { frame, range }
    }

    pub(crate) fn from_vec(bytes: Vec<u8>) -> Slice {
        let range = 0..bytes.len();
        Slice { frame: Arc::new(bytes), range }
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.frame[self.range.clone()]
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.len())
    }
}
