//! What lives off the log: the chunk index, the object index and the container store are *views* of it.
//!
//! Their owner knows them by one trait. It applies every batch to all of them, live and in a replay, and in the same order of views. It trims the
//! log up to the least of their positions, and has them catch up in the background.
//!
//! What every view keeps:
//! * Batches come in the order of the log, each once in the life of an opening, and only when they are durable.
//! * A view that is ahead of a batch passes it over: a replay may start at or before its [`View::position`].
//! * What [`View::position`] covers needs no batch before it, whatever crash follows.

use crate::{Position, Record};
use onefold_fingerprint::Fingerprint;

/// A changed object: its partition, its key, and its value (`None`: it is deleted).
pub type Change = (u16, Vec<u8>, Option<Vec<u8>>);

/// What one batch of the log does to the views. Removals take effect first, then places, then what is stored, then changes of counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effects<'a> {
    /// Where the batch starts.
    pub start: Position,
    /// In a replay the records of the batch, from which the container store takes its own. In a live commit none: it made them itself.
    pub replayed: &'a [Record],
    /// Chunks that are not stored any more: their entries go, with their counts.
    pub removals: &'a [Fingerprint],
    /// Chunks that have another address now, or none (0). Their counts stay.
    pub places: &'a [(Fingerprint, u64)],
    /// Chunks that the batch stores, and their addresses (not 0).
    pub stored: &'a [(Fingerprint, u64)],
    /// Changes of usage counts.
    pub deltas: &'a [(Fingerprint, i64)],
    /// Changes of objects, in the order of the batch.
    pub changes: &'a [Change],
    /// Staged changes of objects up to this number are durable with the batch; 0 in a replay.
    pub sequence: u64,
}

/// How far a view is behind what it has applied in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// There is nothing to do yet.
    Idle,
    /// It is time for a [`View::step`].
    Behind,
    /// Its memory is used up: writers wait for steps.
    Full,
}

/// Lives off the log. `E` is the error of the owner, which the views' own errors become.
pub trait View<E> {
    /// Takes the batch that ends at `end` into memory. An error leaves memory and log in disagreement: only another opening mends that.
    fn apply(&self, end: Position, effects: &Effects<'_>) -> Result<(), E>;

    /// Everything before it is durable here: the log is not needed up to here, and a replay starts here.
    fn position(&self) -> Position;

    /// Nothing that is durable here is of a batch behind it. A log that ends before it has lost its end.
    fn required_end(&self) -> Position;

    /// How far it is behind. Asked before every batch of a writer: it waits for no step, and looks at counters only as long as there is little to do.
    fn pressure(&self) -> Pressure;

    /// Does a bounded piece of work of the background; reads and batches go on meanwhile. Returns whether there was any. After an error nothing is lost, and
    /// a later step goes on.
    fn step(&self) -> Result<bool, E>;

    /// Brings [`View::position`] to what was applied before the call. Where a part of the view fails the others get on, and the first error is returned.
    fn catch_up(&self) -> Result<(), E>;
}
