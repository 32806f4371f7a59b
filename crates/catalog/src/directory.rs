//! Directories: sorted entries in metadata chunks that are cut by content (`docs/format.md` section 8.2).
//!
//! A cut depends only on names (and on the limit: 32 KiB, or a block of the chunk store). So changing one entry changes
//! one chunk, and an unchanged directory has the same chunks as in the previous backup.

use crate::chunks::{Chunks, Of};
use crate::directory_chunk::write_with_rest;
use crate::{CatalogError, Entry, Listed, MAX_ENTRY_BYTES, PieceReader, Result};
use onefold_engine::{Engine, MetadataKind, Piece, Recipe, RecipeWriter, WriteStream};
use onefold_fingerprint::Fingerprint;
use onefold_ground::checksum;
use onefold_ground::wire::put_varint;
use std::sync::Arc;

/// A chunk of this many bytes always ends.
const CHUNK_BYTES: usize = 32 << 10;
/// A chunk ends after a name whose checksum has zeros here, ...
const CUT_MASK: u64 = 0x03;
/// ... if the chunk has at least this many entries: 6 on average. A changed file costs one such chunk, mostly of
/// fingerprints, which do not compress.
const MIN_ENTRIES: u64 = 3;
/// Most bytes of the number of entries.
const COUNT_BYTES: usize = 10;

/// Reads a directory front to back, with one chunk in memory. After an error, the iterator goes on with the next chunk.
/// An entry whose rest is lost is left out, with [`CatalogError::Rest`], unless the reader is
/// [`with_incomplete`](Self::with_incomplete).
#[derive(Debug)]
pub struct DirectoryReader<C: Chunks + ?Sized = Engine> {
    chunks: Arc<C>,
    pieces: PieceReader<C>,
    entries: std::vec::IntoIter<Entry>,
    lost: Option<CatalogError>,
    gives_incomplete: bool,
}

impl<C: Chunks + ?Sized> DirectoryReader<C> {
    /// Returns a reader at the first entry.
    pub fn new(chunks: &Arc<C>, recipe: &Recipe) -> DirectoryReader<C> {
        let pieces = PieceReader::of(chunks, recipe, Of::Directory);
        DirectoryReader { chunks: chunks.clone(), pieces, entries: Vec::new().into_iter(), lost: None, gives_incomplete: false }
    }

    /// Also gives files and directories whose extended attributes are lost, without any. The error follows. This is for
    /// saving what is left. A comparison with an earlier backup would take the loss over as if it were right.
    pub fn with_incomplete(mut self) -> DirectoryReader<C> {
        self.gives_incomplete = true;
        self
    }

    /// Finds the entry called `name` by bisection on each level of the recipe. Reads a logarithmic number of chunks,
    /// however long the directory is or claims to be. Errors: among others, the rest of this entry is lost.
    pub fn find(chunks: &Arc<C>, recipe: &Recipe, name: &[u8]) -> Result<Option<Entry>> {
        match Self::find_incomplete(chunks, recipe, name)? {
            Some((_, Some(lost))) => Err(lost),
            found => Ok(found.map(|(entry, _)| entry)),
        }
    }

    /// Does the same. A file or directory whose rest is lost has no extended attributes, and comes with the error.
    pub(crate) fn find_incomplete(chunks: &Arc<C>, recipe: &Recipe, name: &[u8]) -> Result<Option<(Entry, Option<CatalogError>)>> {
        let mut pieces = recipe.pieces.clone();
        for level in (0..=recipe.level).rev() {
            // Finds the end of the pieces that begin at or before the name. The first piece need not be tested.
            let (mut from, mut to) = (1, pieces.len());
            while from < to {
                let middle = from + (to - from) / 2;
                match first_name(&**chunks, pieces[middle], level)? {
                    Some(first) if &first[..] > name => to = middle,
                    _ => from = middle + 1,
                }
            }
            let Some(piece) = pieces.get(from - 1) else { return Ok(None) };
            if level == 0 {
                let Listed { first_name, entries, lost } = chunks.directory_chunk(piece)?;
                return match (entries.into_iter().find(|entry| entry.name == name), lost) {
                    (None, Some(lost)) if first_name == name => Err(lost),
                    (found, lost) => Ok(found.map(|found| (found, lost))),
                };
            }
            pieces = chunks.recipe_chunk(piece, level, Of::Directory)?;
        }
        Ok(None)
    }
}

/// Returns the first name below a piece of a recipe of this level.
fn first_name<C: Chunks + ?Sized>(chunks: &C, mut piece: Piece, level: u8) -> Result<Option<Vec<u8>>> {
    for level in (1..=level).rev() {
        match chunks.recipe_chunk(&piece, level, Of::Directory)?.first() {
            Some(first) => piece = *first,
            None => return Ok(None),
        }
    }
    Ok(Some(chunks.directory_chunk(&piece)?.first_name))
}

impl<C: Chunks + ?Sized> Iterator for DirectoryReader<C> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(Ok(entry));
            }
            if let Some(lost) = self.lost.take() {
                return Some(Err(lost));
            }
            match self.pieces.next()?.and_then(|piece| self.chunks.directory_chunk(&piece)) {
                Ok(Listed { lost: Some(lost), .. }) if !self.gives_incomplete => return Some(Err(lost)),
                Ok(listed) => (self.entries, self.lost) = (listed.entries.into_iter(), listed.lost),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Builds a directory from entries that are pushed in the order of their names.
#[derive(Debug)]
pub struct DirectoryWriter {
    digest_bytes: usize,
    /// Most bytes of the entries of a chunk.
    most_bytes: usize,
    recipe: RecipeWriter,
    /// Encoded entries of the current chunk.
    encoded: Vec<u8>,
    entries: u64,
    references: Vec<Fingerprint>,
    last_name: Option<Vec<u8>>,
}

impl DirectoryWriter {
    /// Returns a writer of an empty directory of this store.
    pub fn new(engine: &Engine) -> DirectoryWriter {
        DirectoryWriter {
            digest_bytes: engine.digest_bytes(),
            most_bytes: engine.most_metadata_bytes() - COUNT_BYTES,
            recipe: RecipeWriter::new(engine),
            encoded: Vec::new(),
            entries: 0,
            references: Vec::new(),
            last_name: None,
        }
    }

    /// Appends an entry, whose name must be greater than the previous one. Errors: the entry is longer than
    /// [`MAX_ENTRY_BYTES`], its name is longer than a chunk of the store, or it is out of order. The writer can go on
    /// after these errors.
    pub fn push(&mut self, stream: &mut WriteStream, entry: &Entry) -> Result<()> {
        if self.last_name.as_ref().is_some_and(|last| *last >= entry.name) {
            return Err(CatalogError::Disordered { name: String::from_utf8_lossy(&entry.name).into_owned() });
        }
        let before = self.encoded.len();
        entry.encode(self.digest_bytes, &mut self.encoded);
        let length = self.encoded.len() - before;
        if length > MAX_ENTRY_BYTES {
            self.encoded.truncate(before);
            return Err(CatalogError::TooLong {
                what: "directory entry",
                length_bytes: length as u64,
                limit_bytes: MAX_ENTRY_BYTES as u64,
            });
        }
        if length > self.most_bytes {
            self.encoded.truncate(before);
            return self.push_long(stream, entry);
        }
        if self.encoded.len() > self.most_bytes {
            let next = self.encoded.split_off(before);
            self.cut(stream)?;
            self.encoded = next;
        }
        self.entries += 1;
        self.references.extend(entry.references());
        self.last_name = Some(entry.name.clone());
        if self.encoded.len() >= CHUNK_BYTES.min(self.most_bytes) || (self.entries >= MIN_ENTRIES && checksum(&entry.name) & CUT_MASK == 0)
        {
            self.cut(stream)?;
        }
        Ok(())
    }

    /// Returns the directory of all entries pushed.
    pub fn finish(mut self, stream: &mut WriteStream) -> Result<Recipe> {
        self.cut(stream)?;
        Ok(self.recipe.finish(stream)?)
    }

    /// Appends an entry that does not fit into a chunk.
    fn push_long(&mut self, stream: &mut WriteStream, entry: &Entry) -> Result<()> {
        let (content, references) = write_with_rest(stream, entry, self.most_bytes)?;
        self.cut(stream)?;
        let piece = stream.write_metadata(MetadataKind::Directory, &content, &references)?;
        self.last_name = Some(entry.name.clone());
        Ok(self.recipe.push(stream, piece)?)
    }

    /// Stores the entries of the current chunk, if there are any.
    fn cut(&mut self, stream: &mut WriteStream) -> Result<()> {
        if self.entries == 0 {
            return Ok(());
        }
        let mut content = Vec::with_capacity(self.encoded.len() + COUNT_BYTES);
        put_varint(&mut content, self.entries);
        content.append(&mut self.encoded);
        let piece = stream.write_metadata(MetadataKind::Directory, &content, &self.references)?;
        self.references.clear();
        self.entries = 0;
        Ok(self.recipe.push(stream, piece)?)
    }
}
