//! Where a reader of backups gets chunks from.

use crate::{CatalogError, DirectoryChunk, Listed, Result};
use onefold_engine::{Engine, Piece};

/// What a recipe describes. The pieces of a file's recipe are data; those of a directory's recipe are directory chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The bytes of a file.
    File,
    /// The entries of a directory.
    Directory,
}

/// Reads chunks: an open store, or one behind a connection.
pub trait Chunks: std::fmt::Debug + Send + Sync {
    /// Returns the pieces in a recipe chunk: a piece of a recipe of this level, which is above 0.
    fn recipe_chunk(&self, piece: &Piece, level: u8, of: Of) -> Result<Vec<Piece>>;
    /// Returns the entries in a directory chunk: a piece of level 0 of a directory's recipe.
    fn directory_chunk(&self, piece: &Piece) -> Result<Listed>;
    /// Fills `out` with the bytes of these pieces of data. Each chunk was verified against its fingerprint where the
    /// store is: behind a connection, the server is trusted with that.
    fn data(&self, pieces: &[Piece], out: &mut [u8]) -> Result<()>;
    /// Returns how many readers of data are worth while: they wait for answers beside each other.
    fn readers(&self) -> usize {
        2
    }
    /// Says that everything will be read, in the order of the tree.
    fn reads_all(&self) {}
    /// Says that these pieces of data will be read soon. Does not wait.
    fn will_read(&self, _pieces: &[Piece]) {}
    /// Returns how many of these pieces of data, from the first one on, need not wait for what [`will_read`] fetches.
    ///
    /// [`will_read`]: Chunks::will_read
    fn here(&self, pieces: &[Piece]) -> usize {
        pieces.len()
    }
    /// Returns why nothing can be read any more. `None`: an error concerns only the chunk that was asked for.
    fn broken(&self) -> Option<CatalogError> {
        None
    }
}

impl Chunks for Engine {
    fn recipe_chunk(&self, piece: &Piece, _level: u8, _of: Of) -> Result<Vec<Piece>> {
        Ok(Engine::recipe_chunk(self, piece)?)
    }

    fn directory_chunk(&self, piece: &Piece) -> Result<Listed> {
        let content = self.read_metadata(piece)?;
        let chunk = DirectoryChunk::decode(&content, self.digest_bytes());
        chunk.map_err(|source| CatalogError::Damaged { what: "directory chunk", source })?.load(self)
    }

    fn data(&self, pieces: &[Piece], out: &mut [u8]) -> Result<()> {
        Ok(self.read(pieces, 0, out, true)?)
    }

    fn reads_all(&self) {
        self.will_read_all();
    }

    fn will_read(&self, pieces: &[Piece]) {
        Engine::will_read(self, pieces);
    }

    fn here(&self, pieces: &[Piece]) -> usize {
        Engine::here(self, pieces)
    }
}
