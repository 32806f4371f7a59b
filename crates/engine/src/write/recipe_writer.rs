//! Recipes of any length, written piece by piece in bounded memory: at most one unfinished chunk of pieces per level
//! (`docs/format.md` 8.1).
//!
//! A file of 1 TiB has more than a hundred million pieces. Fingerprints decide where chunks of pieces are cut, so a
//! change in the middle of a file leaves most of them as they are.

use crate::{Engine, EngineError, MAX_LEVEL, MetadataKind, Piece, Recipe, Result, WriteStream, encode_pieces};
use onefold_fingerprint::Fingerprint;

/// A recipe of more pieces than this is stored at a higher level.
const INLINE_PIECES: usize = 3;
/// Fewest pieces of a recipe chunk that is not the last. [`crate::MAX_LEVEL`] levels of so few still spell a file of 32
/// TiB in chunks of 8 KiB.
const MIN_PIECES: usize = 16;
/// Most pieces of a recipe chunk, if the chunk store takes chunks of that length.
const MAX_PIECES: usize = 256;
/// Most bytes of a piece without its fingerprint: tag, address, offset and length, each of these at most 2^24.
const PIECE_BYTES: usize = 1 + 8 + 4 + 4;
/// Most bytes of the number of pieces.
const COUNT_BYTES: usize = 5;
/// A recipe chunk ends after a piece whose fingerprint's last byte is below this: after 24 pieces on average. An edit
/// of a large file costs one such chunk on each level, about 1 KiB. The chunks themselves cost one entry of the index
/// for every 24 pieces.
const CUT_BELOW: u8 = 32;

/// Builds a recipe from level-0 pieces.
#[derive(Debug)]
pub struct RecipeWriter {
    digest_bytes: usize,
    /// Most pieces of a recipe chunk.
    most_pieces: usize,
    length: u64,
    /// The pieces of each level that are not in a recipe chunk yet.
    levels: Vec<Vec<Piece>>,
}

impl RecipeWriter {
    /// Returns an empty recipe of this store.
    pub fn new(engine: &Engine) -> RecipeWriter {
        let digest_bytes = engine.digest_bytes();
        let most_pieces = engine.most_metadata_bytes().saturating_sub(COUNT_BYTES) / (PIECE_BYTES + digest_bytes);
        RecipeWriter { digest_bytes, most_pieces: most_pieces.min(MAX_PIECES), length: 0, levels: vec![Vec::new()] }
    }

    /// Returns the bytes spelled so far.
    pub fn length_bytes(&self) -> u64 {
        self.length
    }

    /// Appends a piece. Neighbouring zeros become one piece.
    pub fn push(&mut self, stream: &mut WriteStream, piece: Piece) -> Result<()> {
        self.length = self.length.saturating_add(piece.length());
        if let (Some(Piece::Zeros { length: before }), Piece::Zeros { length }) = (self.levels[0].last_mut(), piece) {
            *before = before.saturating_add(length);
            return Ok(());
        }
        self.push_at(stream, 0, piece)
    }

    /// Returns the recipe of all pushed pieces.
    pub fn finish(mut self, stream: &mut WriteStream) -> Result<Recipe> {
        let mut level = 0;
        while level + 1 < self.levels.len() || self.levels[level].len() > INLINE_PIECES {
            if !self.levels[level].is_empty() {
                self.store(stream, level)?;
            }
            level += 1;
        }
        Ok(Recipe { level: level as u8, length: self.length, pieces: std::mem::take(&mut self.levels[level]) })
    }

    fn push_at(&mut self, stream: &mut WriteStream, level: usize, piece: Piece) -> Result<()> {
        let pieces = &mut self.levels[level];
        pieces.push(piece);
        if pieces.len() >= self.most_pieces || (pieces.len() >= MIN_PIECES && self.is_cut(&piece)) {
            self.store(stream, level)?;
        }
        Ok(())
    }

    fn is_cut(&self, piece: &Piece) -> bool {
        piece.fingerprint().is_some_and(|fingerprint| fingerprint.digest(self.digest_bytes).last().is_some_and(|last| *last < CUT_BELOW))
    }

    /// Moves the pieces of a level into a recipe chunk, which becomes a piece of the level above.
    fn store(&mut self, stream: &mut WriteStream, level: usize) -> Result<()> {
        if level + 1 == self.levels.len() {
            if level == usize::from(MAX_LEVEL) {
                // Never write a recipe that no reader accepts.
                let why = format!("its recipe needs more than {MAX_LEVEL} levels");
                return Err(EngineError::Invalid { what: format!("the run has more than {} bytes", self.length), why });
            }
            self.levels.push(Vec::new());
        }
        let pieces = std::mem::take(&mut self.levels[level]);
        let mut content = Vec::with_capacity(pieces.len() * (self.digest_bytes + 16));
        encode_pieces(&pieces, self.digest_bytes, &mut content);
        let references: Vec<Fingerprint> = pieces.iter().filter_map(Piece::fingerprint).collect();
        let piece = stream.write_metadata(MetadataKind::Recipe, &content, &references)?;
        self.push_at(stream, level + 1, piece)
    }
}
