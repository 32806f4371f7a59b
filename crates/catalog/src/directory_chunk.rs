//! The content of a directory chunk (`docs/format.md` section 8.2).
//!
//! A chunk store of blocks has no chunks that are longer than a block. An entry that is longer, because of its extended
//! attributes or its target, has a chunk of its own, and this *rest* of it is stored as data.

use crate::entry::{decode_xattrs, encode_xattrs};
use crate::{Attributes, CatalogError, Content, Entry, MAX_ENTRY_BYTES, Result};
use onefold_engine::{Engine, Piece, Recipe, RecipeWriter, WriteStream};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};

/// The smallest encoding of an entry.
const ENTRY_MIN_BYTES: usize = 11;
/// The smallest chunk that a rest is cut into, but for the last one: the smallest block.
const REST_CHUNK_BYTES: usize = 4 << 10;
/// Most pieces of a rest.
const REST_PIECES: usize = MAX_ENTRY_BYTES / REST_CHUNK_BYTES + 1;
/// Room for the recipe of a rest: at most three pieces.
const REST_RECIPE_BYTES: usize = 256;

/// The content of a directory chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryChunk {
    /// Entries, sorted by name. One that has a rest lacks it.
    pub entries: Vec<Entry>,
    /// The rest of the only entry.
    pub rest: Option<Recipe>,
}

/// Encodes the content of a directory chunk of at least one entry, none of which has a rest.
pub fn encode_directory_chunk(entries: &[Entry], digest_bytes: usize) -> Vec<u8> {
    debug_assert!(!entries.is_empty(), "a 0 says that the only entry has a rest");
    let mut out = Vec::new();
    put_varint(&mut out, entries.len() as u64);
    for entry in entries {
        entry.encode(digest_bytes, &mut out);
    }
    out
}

impl DirectoryChunk {
    /// Decodes the content of a directory chunk.
    pub fn decode(content: &[u8], digest_bytes: usize) -> std::result::Result<DirectoryChunk, WireError> {
        let mut reader = Reader::new(content);
        let count = reader.count("entries", ENTRY_MIN_BYTES)?;
        let rest = if count == 0 { Some(Recipe::decode(&mut reader, digest_bytes)?) } else { None };
        let mut entries = Vec::with_capacity(count.clamp(1, 4096));
        for _ in 0..count.max(1) {
            entries.push(Entry::decode(&mut reader, digest_bytes)?);
        }
        reader.end()?;
        Ok(DirectoryChunk { entries, rest })
    }

    /// Returns the recipes in it, and for each whether it is that of a directory.
    pub fn recipes(&self) -> impl Iterator<Item = (&Recipe, bool)> {
        let of_entry = |entry: &'_ Entry| matches!(entry.content, Content::Directory { .. });
        let recipes = self.entries.iter().filter_map(move |entry| Some((entry.content.recipe()?, of_entry(entry))));
        self.rest.iter().map(|rest| (rest, false)).chain(recipes)
    }

    /// Returns the entries, with the rest read from the store. Errors: they say nothing about the chunk.
    pub(crate) fn load(mut self, engine: &Engine) -> Result<Listed> {
        let (Some(rest), Some(entry)) = (self.rest.take(), self.entries.first_mut()) else { return Ok(self.with_all()) };
        let read = read_rest(engine, &rest);
        match read.and_then(|bytes| put_rest(entry, &bytes).map_err(|error| Unread::of(damaged(error)))) {
            Ok(()) => Ok(self.with_all()),
            Err(Unread { error: CatalogError::Engine(error), .. }) if !error.is_damage() => Err(error.into()),
            Err(Unread { error, refers }) => {
                let lost = CatalogError::Rest { name: text_of(&entry.name), why: error.to_string(), refers };
                tracing::warn!(error = %lost, "an entry of a directory is incomplete");
                Ok(self.without_rest(lost))
            }
        }
    }

    /// Returns the entries of a chunk that a server sent. It puts rests into their entries. If one is lost, it sends an
    /// empty recipe. Errors: another recipe.
    pub fn sent(self) -> std::result::Result<Listed, WireError> {
        match (&self.rest, self.entries.first()) {
            (Some(rest), Some(entry)) if rest.pieces.is_empty() && rest.length == 0 => {
                let why = "the server cannot read them; its log says more".to_owned();
                let lost = CatalogError::Rest { name: text_of(&entry.name), why, refers: false };
                Ok(self.without_rest(lost))
            }
            (Some(_), _) => Err(WireError::OutOfRange { what: "entries", value: 0, offset_bytes: 0 }),
            (None, _) => Ok(self.with_all()),
        }
    }

    fn with_all(self) -> Listed {
        Listed { first_name: self.first_name(), entries: self.entries, lost: None }
    }

    fn without_rest(mut self, lost: CatalogError) -> Listed {
        let first_name = self.first_name();
        // A link is nothing without its target.
        self.entries.retain_mut(|entry| entry.content.target_mut().is_none());
        Listed { first_name, entries: self.entries, lost: Some(lost) }
    }

    fn first_name(&self) -> Vec<u8> {
        self.entries.first().map(|entry| entry.name.clone()).unwrap_or_default()
    }
}

/// What a reader gets of a directory chunk.
#[derive(Debug)]
pub struct Listed {
    /// The name of the first entry, also if the entry is lost.
    pub first_name: Vec<u8>,
    /// The entries. With `lost`, the only file or directory has no extended attributes, and a link is left out.
    pub entries: Vec<Entry>,
    /// Why the rest of the only entry cannot be read.
    pub lost: Option<CatalogError>,
}

impl Listed {
    /// Encodes it for [`DirectoryChunk::sent`].
    pub fn encode(&self, digest_bytes: usize) -> Vec<u8> {
        if self.lost.is_none() {
            return encode_directory_chunk(&self.entries, digest_bytes);
        }
        let mut out = Vec::new();
        put_varint(&mut out, 0);
        Recipe::default().encode(digest_bytes, &mut out);
        let link = || {
            let content = Content::Symlink { target: Vec::new() };
            Entry { name: self.first_name.clone(), attributes: Attributes::default(), content }
        };
        self.entries.first().cloned().unwrap_or_else(link).encode(digest_bytes, &mut out);
        out
    }
}

fn text_of(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Why a rest cannot be read.
struct Unread {
    error: CatalogError,
    /// Whether what cannot be read would say which chunks there are.
    refers: bool,
}

impl Unread {
    fn of(error: impl Into<CatalogError>) -> Unread {
        Unread { error: error.into(), refers: false }
    }
}

/// Stores the rest of an entry, and returns the content of its chunk and the fingerprints that this refers to.
///
/// Errors: the entry is longer than `most_bytes` without its rest as well.
pub(crate) fn write_with_rest(stream: &mut WriteStream, entry: &Entry, most_bytes: usize) -> Result<(Vec<u8>, Vec<Fingerprint>)> {
    let engine = stream.engine().clone();
    let digest_bytes = engine.digest_bytes();
    let mut entry = entry.clone();
    let rest = take_rest(&mut entry);
    let mut short = Vec::new();
    entry.encode(digest_bytes, &mut short);
    let limit = most_bytes.saturating_sub(REST_RECIPE_BYTES);
    if short.len() > limit {
        return Err(CatalogError::TooLong { what: "directory entry", length_bytes: short.len() as u64, limit_bytes: limit as u64 });
    }
    let mut recipe = RecipeWriter::new(&engine);
    let parts: Vec<&[u8]> = rest.chunks(engine.most_metadata_bytes()).collect();
    for piece in stream.write_chunks(&parts)? {
        recipe.push(stream, piece)?;
    }
    let recipe = recipe.finish(stream)?;
    let mut content = Vec::with_capacity(most_bytes);
    put_varint(&mut content, 0);
    recipe.encode(digest_bytes, &mut content);
    content.append(&mut short);
    let references = recipe.pieces.iter().filter_map(Piece::fingerprint).chain(entry.references()).collect();
    Ok((content, references))
}

/// Takes from an entry what can be long, and encodes it.
fn take_rest(entry: &mut Entry) -> Vec<u8> {
    let mut rest = Vec::new();
    encode_xattrs(&std::mem::take(&mut entry.attributes.xattrs), &mut rest);
    put_bytes(&mut rest, &entry.content.target_mut().map(std::mem::take).unwrap_or_default());
    rest
}

/// Puts the stored rest of an entry into it.
pub fn put_rest(entry: &mut Entry, rest: &[u8]) -> std::result::Result<(), WireError> {
    let mut reader = Reader::new(rest);
    entry.attributes.xattrs = decode_xattrs(&mut reader)?;
    let target = reader.bytes()?.to_vec();
    reader.end()?;
    if let Some(place) = entry.content.target_mut() {
        *place = target;
    }
    Ok(())
}

fn damaged(source: WireError) -> CatalogError {
    CatalogError::Damaged { what: "rest of a directory entry", source }
}

/// Reads a rest. Its recipe may claim anything.
fn read_rest(engine: &Engine, recipe: &Recipe) -> std::result::Result<Vec<u8>, Unread> {
    let wrong = |what, value| Unread::of(damaged(WireError::OutOfRange { what, value, offset_bytes: 0 }));
    let mut pieces = recipe.pieces.clone();
    for _ in 0..recipe.level {
        let mut below = Vec::new();
        for piece in &pieces {
            below.extend(engine.recipe_chunk(piece).map_err(|error| Unread { error: error.into(), refers: true })?);
            if below.len() > REST_PIECES {
                return Err(wrong("pieces", below.len() as u64));
            }
        }
        pieces = below;
    }
    let length = pieces.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.length()));
    if length != recipe.length || length > MAX_ENTRY_BYTES as u64 {
        return Err(wrong("length", length));
    }
    let mut bytes = vec![0; length as usize];
    engine.read(&pieces, 0, &mut bytes, true).map_err(Unread::of)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, recipe};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_directory_chunk_is_read_as_written(entries in proptest::collection::vec(entry(), 1..10)) {
            let content = encode_directory_chunk(&entries, 32);
            let chunk = DirectoryChunk::decode(&content, 32).unwrap();
            prop_assert_eq!(chunk.recipes().count(), entries.iter().filter(|entry| entry.content.recipe().is_some()).count());
            let listed = chunk.sent().unwrap();
            prop_assert_eq!((&listed.first_name, listed.lost.is_none()), (&entries[0].name, true));
            prop_assert_eq!(listed.encode(32), content);
            prop_assert_eq!(listed.entries, entries);
        }

        #[test]
        fn an_entry_is_the_same_without_its_rest_and_with_it_again(before in entry(), rest in recipe()) {
            let mut entry = before.clone();
            let taken = take_rest(&mut entry);
            let mut content = vec![0];
            rest.encode(32, &mut content);
            entry.encode(32, &mut content);
            let mut chunk = DirectoryChunk::decode(&content, 32).unwrap();
            prop_assert_eq!(chunk.recipes().next(), Some((&rest, false)));
            put_rest(&mut chunk.entries[0], &taken).unwrap();
            prop_assert_eq!(&chunk.entries[..], &[before][..]);
            prop_assert!(chunk.sent().is_err() || rest == Recipe::default());
            for length in 0..taken.len() {
                prop_assert!(put_rest(&mut entry, &taken[..length]).is_err());
            }
        }

        #[test]
        fn a_lost_rest_costs_attributes_and_a_link_and_no_more_also_over_a_connection(before in entry()) {
            let mut entry = before.clone();
            take_rest(&mut entry);
            let lost = CatalogError::Rest { name: text_of(&entry.name), why: "x".to_owned(), refers: true };
            let chunk = DirectoryChunk { entries: vec![entry.clone()], rest: None };
            let here = chunk.without_rest(lost);
            let there = DirectoryChunk::decode(&here.encode(32), 32).unwrap().sent().unwrap();
            let left = if entry.content.target().is_some() { vec![] } else { vec![entry] };
            for listed in [here, there] {
                prop_assert_eq!(&listed.first_name, &before.name);
                prop_assert_eq!(&listed.entries, &left);
                let is_told = matches!(listed.lost, Some(CatalogError::Rest { .. }));
                prop_assert!(is_told);
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = DirectoryChunk::decode(&bytes, 20);
            let _ = DirectoryChunk::decode(&[&[0], &bytes[..]].concat(), 20);
        }
    }
}
