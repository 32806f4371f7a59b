//! The content of files, from bytes to recipes.

use super::Making;
use super::recall::Recalled;
use crate::Result;
use onefold_engine::{Hints, Piece, Recipe, RecipeWriter, WriteStream};
use std::sync::Arc;

/// The stream is told what a small file had up to here.
const RECALLED_BYTES: u64 = 1 << 20;

/// Stores the content of files. Its new chunks lie together.
#[derive(Debug)]
pub struct ContentWriter {
    making: Arc<Making>,
    data: WriteStream,
    recipe: RecipeWriter,
    recalled: Option<Recalled>,
    /// Bytes of the current file that were passed to the stream.
    taken: u64,
    pieces: Vec<Piece>,
}

/// A small file that was stored.
#[derive(Clone, Debug)]
pub struct SmallFile {
    /// Its recipe.
    pub recipe: Recipe,
    /// It was taken from a backup by the name of its content.
    pub was_taken: bool,
}

impl Making {
    /// Returns a new writer of contents.
    pub fn contents(self: &Arc<Making>) -> ContentWriter {
        let engine = self.engine();
        let (data, recipe) = (engine.stream().sequential(), RecipeWriter::new(engine));
        ContentWriter { making: self.clone(), data, recipe, recalled: None, taken: 0, pieces: Vec::new() }
    }
}

impl ContentWriter {
    /// Returns the bytes of the data chunks that were new.
    pub fn added_bytes(&self) -> u64 {
        self.data.added_bytes()
    }

    /// Stores whole small files. `earlier`: what some of them had in the earlier backup.
    pub fn small(&mut self, files: &[&[u8]], earlier: &[&Recipe]) -> Result<Vec<SmallFile>> {
        let making = self.making.clone();
        let recalls = making.engine().recalls();
        earlier.iter().filter(|_| recalls).for_each(|recipe| Recalled::new(making.engine(), recipe).tell(&self.data, RECALLED_BYTES));
        let mut asked = Vec::new();
        let stored = match &making.named {
            Some(named) => self.data.write_unknown_runs(files, &mut |files, recall| named.ask(files, recall, &mut asked))?,
            None => self.data.write_runs(files, Hints::default())?.into_iter().map(Some).collect(),
        };
        let mut asked = asked.into_iter();
        let mut out = Vec::with_capacity(files.len());
        for pieces in stored {
            let (name, taken) = asked.next().map_or((None, None), |(name, taken)| (Some(name), taken));
            let (recipe, was_taken) = match (taken, pieces) {
                (Some(recipe), None) => (recipe, true),
                (_, pieces) => {
                    let mut recipe = RecipeWriter::new(making.engine());
                    let mut metadata = making.metadata();
                    for piece in pieces.into_iter().flatten() {
                        recipe.push(&mut metadata, piece)?;
                    }
                    let recipe = recipe.finish(&mut metadata)?;
                    drop(metadata);
                    making.named.iter().zip(name).for_each(|(named, name)| named.note(name, &recipe));
                    (recipe, false)
                }
            };
            out.push(SmallFile { recipe, was_taken });
        }
        Ok(out)
    }

    /// Begins a file, which comes in parts. `earlier`: what it had in the earlier backup.
    pub fn begin(&mut self, earlier: Option<&Recipe>) {
        let engine = self.making.engine();
        self.recipe = RecipeWriter::new(engine);
        self.recalled = earlier.filter(|_| engine.recalls()).map(|recipe| Recalled::new(engine, recipe));
        self.taken = 0;
    }

    /// Stores the next bytes of the file. With `last` the end of `data` is the end of a run of data. Without, the tail
    /// whose boundary is not known yet is left: pass it again, with more behind it. Returns the number of bytes stored.
    pub fn write(&mut self, data: &[u8], last: bool) -> Result<usize> {
        if let Some(recalled) = &mut self.recalled {
            recalled.tell(&self.data, self.taken + data.len() as u64);
        }
        let consumed = self.data.write(data, last, Hints::default(), &mut self.pieces)?;
        self.taken += consumed as u64;
        let mut metadata = self.making.metadata();
        for piece in self.pieces.drain(..) {
            self.recipe.push(&mut metadata, piece)?;
        }
        Ok(consumed)
    }

    /// Appends a hole to the file.
    pub fn zeros(&mut self, length: u64) -> Result<()> {
        self.taken += length;
        Ok(self.recipe.push(&mut self.making.metadata(), Piece::Zeros { length })?)
    }

    /// Appends pieces of the file that the store has already: nothing is read or stored of them. The caller keeps their
    /// chunks until the backup is committed.
    pub fn known(&mut self, pieces: &[Piece]) -> Result<()> {
        let mut metadata = self.making.metadata();
        for piece in pieces {
            self.taken += piece.length();
            self.recipe.push(&mut metadata, *piece)?;
        }
        Ok(())
    }

    /// Ends the file. Returns its recipe, which has its length.
    pub fn finish(&mut self) -> Result<Recipe> {
        let recipe = std::mem::replace(&mut self.recipe, RecipeWriter::new(self.making.engine()));
        self.recalled = None;
        Ok(recipe.finish(&mut self.making.metadata())?)
    }
}
