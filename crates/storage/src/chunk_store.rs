//! The seam between the engine and what keeps the bytes of chunks.
//!
//! A chunk store keeps chunks in *units*: a container, a run of blocks. A unit is what it frees space by. Chunks of one
//! unit are near each other. Above this crate an address is opaque.

use crate::containers::ContainerStore;
use crate::{Address, CommittedSlots, CompressedFrame, ContainerId, ContainerSet, NewChunk, Origin, Prepared, Result, Scope, Slice, Slot};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::{Effects, Position, Pressure, View};
use std::fmt::Debug;
use std::sync::Arc;

/// Where the bytes of chunks are.
///
/// A chunk that was appended can be loaded at once. It is durable when the log has the records of a later
/// [`prepare`](ChunkStore::prepare).
pub trait ChunkStore: Debug + Send + Sync {
    /// Returns a new writing stream.
    fn new_writer(self: Arc<Self>) -> Box<dyn ChunkWriter>;

    /// Appends the bytes of the wanted chunks to `out`, in order. On an error nothing is appended.
    ///
    /// [`StorageError::Damaged`](crate::StorageError::Damaged) names what cannot be read; wrong bytes are never
    /// returned. After a failed sync the error is [`StorageError::Poisoned`](crate::StorageError::Poisoned) instead.
    fn load(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()>;

    /// Does the same, and may read less than [`load`](ChunkStore::load) does around the chunks: for random reads.
    fn load_short(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        self.load(wanted, out)
    }

    /// Makes durable what was appended before the call, as far as `scope` says, except for the log. The caller logs the
    /// records next.
    ///
    /// On [`StorageError::CannotWrite`](crate::StorageError::CannotWrite) nothing is lost and the call may be repeated.
    fn prepare(&self, scope: Scope) -> Result<Prepared>;

    /// Call when the batch with these records, from `start` to `end`, is durable in the log and applied to the indexes.
    fn committed(&self, prepared: Prepared, start: Position, end: Position);

    /// Call when the log does not have these records. The next prepare returns them again.
    fn abandoned(&self, prepared: Prepared);

    /// Returns the bytes that no [`prepare`](ChunkStore::prepare) has made durable yet. When there are many, it is time
    /// for one.
    fn unsynced_bytes(&self) -> u64;

    /// Takes the store's own records of a batch in a replay, and what else of it concerns the store.
    fn apply(&self, end: Position, effects: &Effects<'_>) -> Result<()>;

    /// Ends the replay of a log from `log_start` to `log_end`.
    fn recovered(&self, log_start: Position, log_end: Position) -> Result<()>;

    /// Returns the start of the oldest batch that is needed here, or the end of the log.
    fn position(&self) -> Position;

    /// Returns a position after which no batch has left anything durable here.
    fn required_end(&self) -> Position;

    /// Returns how far the store is behind.
    fn pressure(&self) -> Pressure;

    /// Does a bounded piece of background work. Returns whether there was any.
    fn step(&self) -> Result<bool>;

    /// Returns what the log must hold so that the log before `position` is not needed here.
    fn checkpoint_before(&self, position: Position) -> Result<Prepared>;

    /// Returns up to where the log may be trimmed, at most to `target`.
    fn trim_point(&self, target: Position) -> Position;

    /// Gives back space that only an open store needs. A failure harms nothing but the free space.
    fn release_room(&self);

    /// Returns all units. Reads the names of all files, so call it only for work that looks at all of them anyway.
    fn units(&self) -> Result<ContainerSet>;

    /// Returns the unit that has the chunks of an origin now.
    fn unit_of(&self, origin: Origin) -> Result<ContainerId>;

    /// Returns whether there may be chunks of an origin. No: they were all removed, or there never were any, or they are
    /// lost.
    fn has_chunks_of(&self, origin: Origin) -> Result<bool>;

    /// Returns the unit that has the chunks of an origin, and all chunks that it has. For check and removal.
    fn chunks_beside(&self, origin: Origin) -> Result<(ContainerId, Vec<(Address, Slot)>)>;

    /// Returns which chunks are durable now. They are of one moment if no batch is committed during the call.
    fn committed_slots(&self) -> CommittedSlots;

    /// Returns the store of containers, if this is one: for what only containers have (merging, parity, catalogs).
    fn as_containers(self: Arc<Self>) -> Option<Arc<ContainerStore>>;
}

/// A writing stream. Dropping it leaves its place to the next stream.
pub trait ChunkWriter: Debug + Send {
    /// Declares that the data will be read from beginning to end.
    fn be_sequential(&mut self);

    /// Stores chunks one after the other and returns their addresses. Waits while much is on the way.
    ///
    /// On an error some of the chunks may be stored. Nothing refers to them, and they may be stored again.
    fn append(&mut self, chunks: &[NewChunk<'_>]) -> Result<Vec<Address>>;

    /// Does the same with the chunks of a frame that came compressed. The store may keep it as it came, so that nothing
    /// is compressed again.
    fn append_frame(&mut self, chunks: &[NewChunk<'_>], frame: &CompressedFrame<'_>) -> Result<Vec<Address>>;
}

/// A chunk store is the view that the log's records are made from. [`prepare`](ChunkStore::prepare) writes chunks first
/// and says what the log must hold, and [`committed`](ChunkStore::committed) hears of it. So a live batch brings nothing
/// new here; only a replay does.
impl<E: From<crate::StorageError>> View<E> for dyn ChunkStore {
    fn apply(&self, end: Position, effects: &Effects<'_>) -> std::result::Result<(), E> {
        Ok(ChunkStore::apply(self, end, effects)?)
    }

    fn position(&self) -> Position {
        ChunkStore::position(self)
    }

    fn required_end(&self) -> Position {
        ChunkStore::required_end(self)
    }

    fn pressure(&self) -> Pressure {
        ChunkStore::pressure(self)
    }

    fn step(&self) -> std::result::Result<bool, E> {
        Ok(ChunkStore::step(self)?)
    }

    /// Does nothing: steps do everything that can be done here. What the log alone has moves on by
    /// [`ChunkStore::checkpoint_before`].
    fn catch_up(&self, _: &dyn Fn() -> bool) -> std::result::Result<(), E> {
        Ok(())
    }
}
