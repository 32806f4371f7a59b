//! The engine: chunk, fingerprint, filter chain, place, recipe, log; and the way back.
//!
//! # The three tiers of everything that is written
//! 1. *volatile*: in memory only. Chunks in [`WriteStream`]s behind reservations, objects that were [submitted](Engine::submit).
//! 2. *durable*: in containers and the operations log, applied to the indexes in memory. [`Engine::flush`] moves everything there.
//! 3. *persisted*: merged into the index files in the background, so that the log can be trimmed.
//!
//! This crate must never know what a volume, a backup or a client is: objects are keys and values.

mod recipe;

pub use recipe::{MAX_LEVEL, Piece, Recipe, decode_pieces, encode_pieces};

use onefold_fingerprint::Fingerprint;
pub use onefold_storage::{Address, ContainerId};
use std::sync::Arc;

/// PLACEHOLDER
#[derive(Debug, thiserror::Error)]
#[error("engine")]
pub struct EngineError;
/// A result of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

/// What a writer knows that helps the filter chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// The current pieces of what is being overwritten (block-index filter, M0.7).
    pub overwritten: &'a [Piece],
    /// The filter chain of the volume; `None`: the store's.
    pub chain: Option<&'a str>,
}

/// Changes that become durable together.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// (block-index partition, key, new value or `None` to delete).
    pub changes: Vec<(u16, Vec<u8>, Option<Vec<u8>>)>,
    /// Changes of usage counts that go with them.
    pub deltas: Vec<(Fingerprint, i64)>,
}

/// One store, open.
#[derive(Debug)]
pub struct Engine {}

impl Engine {
    /// A new writing stream; its chunks lie together.
    pub fn stream(self: &Arc<Self>) -> WriteStream {
        panic!("under construction")
    }

    /// Bytes of a digest of this store.
    pub fn digest_bytes(&self) -> usize {
        panic!("under construction")
    }

    /// Block-index partitions of this store.
    pub fn block_partitions(&self) -> u16 {
        panic!("under construction")
    }

    /// The value of an object; what was submitted is seen at once.
    pub fn get(&self, partition: u16, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = (partition, key);
        panic!("under construction")
    }

    /// Up to `limit` objects with `from <= key < to`, sorted.
    pub fn range(&self, partition: u16, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let _ = (partition, from, to, limit);
        panic!("under construction")
    }

    /// Makes a transaction visible at once and durable with the next [`Engine::flush`]. Transactions become durable in the order of their submission.
    /// All chunks that its values refer to must have been written (their pieces returned) before.
    pub fn submit(&self, transaction: Transaction) -> Result<()> {
        let _ = transaction;
        panic!("under construction")
    }

    /// Everything written and submitted before the call is durable when it returns.
    pub fn flush(&self) -> Result<()> {
        panic!("under construction")
    }

    /// Reads bytes `start .. start + out.len()` of the run that level-0 `pieces` spell. Frame checksums are always verified;
    /// with `verify`, fingerprints too. Damage is an error that names container and chunk, never wrong bytes.
    pub fn read(&self, pieces: &[Piece], start: u64, out: &mut [u8], verify: bool) -> Result<()> {
        let _ = (pieces, start, out, verify);
        panic!("under construction")
    }

    /// The level-0 pieces of a recipe, read level by level, passed on in order; `visit` returns false to stop.
    pub fn expand(&self, recipe: &Recipe, visit: &mut dyn FnMut(&Piece) -> bool) -> Result<()> {
        let _ = (recipe, visit);
        panic!("under construction")
    }
}

/// A writing stream: a thread's way into the store.
#[derive(Debug)]
pub struct WriteStream {}

impl WriteStream {
    /// Cuts `data` into chunks, stores the new ones and appends the pieces to `out`. With `last` the end of `data` is the end of a
    /// run and all of it is consumed; without, the tail whose boundary is not known yet is left to the caller, who passes it again at
    /// the front of more data. Returns the number of bytes consumed. Data of at least the chunker's maximum size is never consumed as 0.
    pub fn write(&mut self, data: &[u8], last: bool, hints: Hints<'_>, out: &mut Vec<Piece>) -> Result<usize> {
        let _ = (data, last, hints, out);
        panic!("under construction")
    }

    /// Stores many whole short runs (small files) in one batch; returns the pieces of each.
    pub fn write_runs(&mut self, runs: &[&[u8]], hints: Hints<'_>) -> Result<Vec<Vec<Piece>>> {
        let _ = (runs, hints);
        panic!("under construction")
    }

    /// Stores a metadata chunk that refers to `references` (one each time it names a chunk); they are counted if the chunk is new.
    pub fn write_metadata(&mut self, kind: MetadataKind, content: &[u8], references: &[Fingerprint]) -> Result<Piece> {
        let _ = (kind, content, references);
        panic!("under construction")
    }

    /// Turns level-0 pieces into a recipe, storing them as recipe chunks (level 1 and up) when there are more than 3.
    pub fn recipe(&mut self, pieces: Vec<Piece>) -> Result<Recipe> {
        let _ = pieces;
        panic!("under construction")
    }
}

/// Kinds of metadata chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataKind {
    /// Pieces of a recipe.
    Recipe,
    /// Entries of a directory.
    Directory,
}
