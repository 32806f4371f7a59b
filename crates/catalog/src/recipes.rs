//! Recipes of any length in bounded memory: written piece by piece, read piece by piece (`docs/format.md` section 8.1).
//!
//! A file of 1 TiB has more than a hundred million pieces. [`RecipeWriter`] keeps at most one unfinished chunk of pieces
//! per level and cuts where [`WriteStream::recipe`] cuts, so both give the same recipe for the same pieces; [`PieceReader`] keeps one
//! chunk of pieces per level.

use crate::Result;
use onefold_engine::{Engine, MAX_LEVEL, MetadataKind, Piece, Recipe, WriteStream, encode_pieces};
use onefold_fingerprint::Fingerprint;
use std::sync::Arc;

/// A recipe of more pieces is stored at a higher level.
const INLINE_PIECES: usize = 3;
/// Fewest pieces of a recipe chunk that is not the last.
const MIN_PIECES: usize = 32;
/// Most pieces of a recipe chunk.
const MAX_PIECES: usize = 512;
/// A recipe chunk ends after a piece whose fingerprint's last byte is below this.
const CUT_BELOW: u8 = 2;

/// Builds a recipe from level-0 pieces.
#[derive(Debug)]
pub struct RecipeWriter {
    digest_bytes: usize,
    length: u64,
    /// The pieces of each level that are not in a recipe chunk yet.
    levels: Vec<Vec<Piece>>,
}

impl RecipeWriter {
    /// An empty recipe; fingerprints have `digest_bytes` ([`Engine::digest_bytes`]).
    pub fn new(digest_bytes: usize) -> RecipeWriter {
        RecipeWriter { digest_bytes, length: 0, levels: vec![Vec::new()] }
    }

    /// Bytes spelled so far.
    pub fn length_bytes(&self) -> u64 {
        self.length
    }

    /// Appends a piece; neighbouring zeros become one piece.
    pub fn push(&mut self, stream: &mut WriteStream, piece: Piece) -> Result<()> {
        self.length = self.length.saturating_add(piece.length());
        if let (Some(Piece::Zeros { length: before }), Piece::Zeros { length }) = (self.levels[0].last_mut(), piece) {
            *before = before.saturating_add(length);
            return Ok(());
        }
        self.push_at(stream, 0, piece)
    }

    /// The recipe of all pieces pushed.
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
        if pieces.len() >= MAX_PIECES || (pieces.len() >= MIN_PIECES && self.is_cut(&piece)) {
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

/// The level-0 pieces of a recipe, one by one. After an error the iterator goes on behind the recipe chunk that is damaged.
#[derive(Debug)]
pub struct PieceReader {
    engine: Arc<Engine>,
    level: usize,
    /// What is left of each recipe chunk on the way down; the first are the recipe's own pieces.
    stack: Vec<std::vec::IntoIter<Piece>>,
}

impl PieceReader {
    /// Starts at the first piece.
    pub fn new(engine: &Arc<Engine>, recipe: &Recipe) -> PieceReader {
        PieceReader {
            engine: engine.clone(),
            level: usize::from(recipe.level.min(MAX_LEVEL)),
            stack: vec![recipe.pieces.clone().into_iter()],
        }
    }
}

impl Iterator for PieceReader {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        loop {
            let Some(piece) = self.stack.last_mut()?.next() else {
                self.stack.pop();
                continue;
            };
            if self.stack.len() > self.level {
                return Some(Ok(piece));
            }
            match self.engine.recipe_chunk(&piece) {
                Ok(pieces) => self.stack.push(pieces.into_iter()),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}
