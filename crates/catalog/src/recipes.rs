//! Reads recipes of any length piece by piece, in bounded memory: one chunk of pieces per level (`docs/format.md`
//! section 8.1).

use crate::Result;
use crate::chunks::{Chunks, Of};
use onefold_engine::{Engine, MAX_LEVEL, Piece, Recipe};
use std::sync::Arc;

/// The level-0 pieces of a recipe, one by one. After an error, the iterator goes on after the damaged recipe chunk.
#[derive(Debug)]
pub struct PieceReader<C: Chunks + ?Sized = Engine> {
    chunks: Arc<C>,
    of: Of,
    level: usize,
    /// The rest of each recipe chunk on the way down. The first entry is the rest of the recipe's own pieces.
    stack: Vec<std::vec::IntoIter<Piece>>,
}

impl<C: Chunks + ?Sized> PieceReader<C> {
    /// Returns a reader at the first piece of a file's recipe.
    pub fn new(chunks: &Arc<C>, recipe: &Recipe) -> PieceReader<C> {
        PieceReader::of(chunks, recipe, Of::File)
    }

    pub(crate) fn of(chunks: &Arc<C>, recipe: &Recipe, of: Of) -> PieceReader<C> {
        PieceReader {
            chunks: chunks.clone(),
            of,
            level: usize::from(recipe.level.min(MAX_LEVEL)),
            stack: vec![recipe.pieces.clone().into_iter()],
        }
    }
}

impl<C: Chunks + ?Sized> Iterator for PieceReader<C> {
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
            let level = (self.level + 1 - self.stack.len()) as u8;
            match self.chunks.recipe_chunk(&piece, level, self.of) {
                Ok(pieces) => self.stack.push(pieces.into_iter()),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
