//! A *view* lives off the log: the chunk index, the object index and the container store are views.
//!
//! Their owner knows them by one trait. It applies every batch to all of them, always in the same order of views, both
//! live and in a replay. It trims the log up to the lowest of their positions, and has them catch up in the background.
//!
//! Every view relies on or keeps these rules:
//! * Batches come in the order of the log, each once per opening, and only when they are durable.
//! * A view that is ahead of a batch skips it: a replay may start at or before its [`View::position`].
//! * Everything before [`View::position`] survives any crash without its batches.

use crate::{Position, Record};
use onefold_fingerprint::Fingerprint;

/// A changed object: its partition, its key, and its value (`None`: deleted).
pub type Change = (u16, Vec<u8>, Option<Vec<u8>>);

/// The effects of one batch on the views. Removals take effect first, then places, then stored chunks, then count
/// changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effects<'a> {
    /// Where the batch starts.
    pub start: Position,
    /// In a replay, the batch's records: the container store takes its own from them. Empty in a live commit: the store
    /// made them itself.
    pub replayed: &'a [Record],
    /// Chunks that are no longer stored. Their entries go, with their counts.
    pub removals: &'a [Fingerprint],
    /// Chunks with a new address, or with none (0). Their counts stay.
    pub places: &'a [(Fingerprint, u64)],
    /// Chunks that the batch stores, and their addresses (never 0).
    pub stored: &'a [(Fingerprint, u64)],
    /// What the chunk store wants to have kept with each of these, 24 bits. Empty: it wants nothing.
    pub notes: &'a [u32],
    /// Changes of usage counts.
    pub deltas: &'a [(Fingerprint, i64)],
    /// Changes of objects, in the order of the batch.
    pub changes: &'a [Change],
    /// The batch makes staged object changes up to this number durable; 0 in a replay.
    pub sequence: u64,
}

/// How far a view is behind the batches that it has applied in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Nothing to do yet.
    Idle,
    /// Time for a [`View::step`].
    Behind,
    /// Memory is used up: writers wait for steps.
    Full,
}

/// A view of the log. `E` is the owner's error type; the views' own errors convert into it.
pub trait View<E> {
    /// Applies the batch that ends at `end` in memory. After an error memory and log disagree: only a reopen repairs
    /// that.
    fn apply(&self, end: Position, effects: &Effects<'_>) -> Result<(), E>;

    /// Returns the position before which everything is durable in this view. The log before it is not needed, and a
    /// replay starts here. A view that has no partition says [`Position::MAX`].
    fn position(&self) -> Position;

    /// Returns a position after which no batch has left anything durable in this view. A log that ends before it has
    /// lost its end.
    fn required_end(&self) -> Position;

    /// Returns how far the view is behind. The owner asks before every batch of a writer. It waits for no step, and
    /// reads only counters while there is little to do.
    fn pressure(&self) -> Pressure;

    /// Does a bounded piece of background work. Reads and batches go on meanwhile. Returns whether there was any work.
    /// After an error nothing is lost, and a later step continues.
    fn step(&self) -> Result<bool, E>;

    /// Brings [`View::position`] to everything applied before the call, in bounded pieces. Asks `go_on` before each, so
    /// that the owner can let others in, and ends when it returns false. If a part of the view fails, the others still
    /// proceed. Returns the first error.
    fn catch_up(&self, go_on: &dyn Fn() -> bool) -> Result<(), E>;
}
