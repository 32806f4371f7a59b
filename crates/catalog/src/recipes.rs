//! Reads recipes of any length piece by piece, in bounded memory: one chunk of pieces per level (`docs/format.md`
//! section 8.1).

use crate::Result;
use onefold_engine::{Engine, MAX_LEVEL, Piece, Recipe};
use std::sync::Arc;

/// The level-0 pieces of a recipe, one by one. After an error, the iterator goes on after the damaged recipe chunk.
#[derive(Debug)]
pub struct PieceReader {
    engine: Arc<Engine>,
    level: usize,
    /// The rest of each recipe chunk on the way down. The first entry is the rest of the recipe's own pieces.
    stack: Vec<std::vec::IntoIter<Piece>>,
}

impl PieceReader {
    /// Returns a reader at the first piece.
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
