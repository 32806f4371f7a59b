//! The tree of a backup, from the leaves up: directories of which nothing changed are taken from the earlier backup.

use super::Making;
use crate::{Attributes, Content, DirectoryWriter, Entry, Result};
use onefold_engine::Recipe;
use std::sync::Arc;

/// Entries held back while a directory is unchanged, so that it need not be encoded again.
const HELD_ENTRIES: usize = 4096;
/// Most bytes of them that attributes and targets take: an entry may have a megabyte.
const HELD_BYTES: usize = 1 << 20;

/// Builds the directories of a backup. Entries of a directory come sorted by name; the content of a directory comes
/// between its [`enter`](TreeWriter::enter) and its [`leave`](TreeWriter::leave).
#[derive(Debug)]
pub struct TreeWriter {
    making: Arc<Making>,
    /// The root, and the directories on the way to the current one.
    levels: Vec<Level>,
}

/// A directory under construction.
#[derive(Debug)]
struct Level {
    name: Vec<u8>,
    attributes: Attributes,
    earlier: Option<Entry>,
    writer: DirectoryWriter,
    /// While all entries equal the earlier ones, they wait here.
    held: Vec<Entry>,
    held_bytes: usize,
    is_same: bool,
}

impl Making {
    /// Returns a writer in the root.
    pub fn tree(self: &Arc<Making>) -> TreeWriter {
        let mut tree = TreeWriter { making: self.clone(), levels: Vec::new() };
        tree.enter(Vec::new(), Attributes::default(), None);
        tree
    }
}

impl TreeWriter {
    /// Begins a directory. `earlier`: its entry in the earlier backup.
    pub fn enter(&mut self, name: Vec<u8>, attributes: Attributes, earlier: Option<Entry>) {
        let (writer, is_same) = (DirectoryWriter::new(self.making.engine()), earlier.is_some());
        self.levels.push(Level { name, attributes, earlier, writer, held: Vec::new(), held_bytes: 0, is_same });
    }

    /// Appends an entry to the current directory. `is_same`: the earlier directory has it exactly so.
    ///
    /// Errors: the entry is too long. The tree is without it, and can go on.
    pub fn push(&mut self, entry: Entry, is_same: bool) -> Result<()> {
        let level = self.level();
        level.is_same &= is_same;
        if level.is_same && level.held.len() < HELD_ENTRIES && level.held_bytes < HELD_BYTES {
            level.held_bytes += entry.long_bytes();
            level.held.push(entry);
            return Ok(());
        }
        self.write_held()?;
        let making = self.making.clone();
        self.level().writer.push(&mut making.metadata(), &entry)
    }

    /// Says that the current directory will lack an entry that could not be stored.
    pub fn skip(&mut self) {
        self.level().is_same = false;
    }

    /// Ends the current directory, and appends it to the one above. `has_all`: nothing of the earlier directory is
    /// missing. Returns whether it is the earlier directory, with everything in it. Call only below the root.
    pub fn leave(&mut self, has_all: bool) -> Result<bool> {
        let (name, attributes, earlier) = {
            let level = self.level();
            (std::mem::take(&mut level.name), std::mem::take(&mut level.attributes), level.earlier.take())
        };
        let reused = match &earlier {
            Some(Entry { content: Content::Directory { recipe }, .. }) if self.level().is_same && has_all => Some(recipe.clone()),
            _ => None,
        };
        let (recipe, is_reused) = match reused {
            Some(recipe) => {
                self.levels.pop();
                (recipe, true)
            }
            None => (self.close()?, false),
        };
        let entry = Entry { name, attributes, content: Content::Directory { recipe } };
        let is_same = earlier.as_ref() == Some(&entry);
        self.push(entry, is_same)?;
        Ok(is_reused)
    }

    /// Ends the root. Call only there.
    pub fn finish(mut self) -> Result<Recipe> {
        self.close()
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the root is left last")
    }

    fn close(&mut self) -> Result<Recipe> {
        self.write_held()?;
        let level = self.levels.pop().expect("the root is left last");
        level.writer.finish(&mut self.making.metadata())
    }

    /// Encodes the entries that were held back. Once some entries of a directory are encoded, the rest is too.
    fn write_held(&mut self) -> Result<()> {
        let making = self.making.clone();
        let mut metadata = making.metadata();
        let level = self.level();
        level.held.drain(..).try_for_each(|entry| level.writer.push(&mut metadata, &entry))?;
        level.is_same = false;
        Ok(())
    }
}
