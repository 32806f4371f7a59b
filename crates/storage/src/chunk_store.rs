//! The seam between the engine and what keeps the bytes of chunks.
//!
//! A chunk store keeps chunks in *units*: a container, a run of blocks. A unit is what it frees space by. Chunks of one
//! unit are near each other. Above this crate an address is opaque.

use crate::containers::ContainerStore;
use crate::{
    Address, Answering, CommittedSlots, CompressedFrame, ContainerId, ContainerReport, ContainerSet, FileFigures, FrameVisitor, NewChunk,
    Origin, Prepared, Result, Scope, ScrubThreads, Scrubbed, Slice, Slot, StorageError,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::ReadBuffer;
use onefold_oplog::{Effects, Position, Pressure, Record, View};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Where the bytes of chunks are.
///
/// A chunk that was appended can be loaded at once. It is durable when the log has the records of a later
/// [`prepare`](ChunkStore::prepare).
pub trait ChunkStore: Debug + Send + Sync {
    /// Returns a new writing stream.
    fn new_writer(self: Arc<Self>) -> Box<dyn ChunkWriter>;

    /// Returns the length of the longest chunk that the store takes, bytes.
    fn longest_chunk_bytes(&self) -> usize;

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

    /// Call before the batch that removes these chunks is logged. Nothing of them changes yet. Returns what that batch
    /// must have for the store.
    fn begin_removal(&self, _chunks: &[(Address, Fingerprint)]) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }

    /// Call when the log does not have the removal.
    fn abandon_removal(&self, _chunks: &[(Address, Fingerprint)]) {}

    /// Call when the removal is durable and applied to the indexes, and nobody is left who found the chunks before. The
    /// store may free their space.
    fn removed(&self, _chunks: &[(Address, Fingerprint)]) {}

    /// Frees the space that removals left which a crash cut short, as long as `go_on`. Call it after an opening that
    /// followed no clean close.
    fn free_again(&self, _go_on: &dyn Fn() -> bool) -> Result<()> {
        Ok(())
    }

    /// Returns the bytes that no [`prepare`](ChunkStore::prepare) has made durable yet. When there are many, it is time
    /// for one.
    fn unsynced_bytes(&self) -> u64;

    /// Returns the bytes of chunks that no [`Prepared::raw_bytes`] has counted yet, because more go with them.
    fn open_bytes(&self) -> u64;

    /// Returns what the store takes. `counted` is what earlier batches counted of sealed containers, if they did.
    fn usage(&self, counted: Option<FileFigures>) -> Result<Usage>;

    /// Returns what is wrong with the notes of who owns the partitions, a sentence each.
    fn damaged_owners(&self) -> Result<Vec<String>>;

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

    /// Returns what the log must hold so that the log before `position` is not needed here. What it brings a later
    /// [`prepare`](ChunkStore::prepare) of full frames has to be logged too.
    fn checkpoint_before(&self, position: Position) -> Result<Prepared>;

    /// Returns up to where the log may be trimmed, at most to `target`.
    fn trim_point(&self, target: Position) -> Position;

    /// Call at a clean close, when everything is durable. Gives up space that only an open store needs. A failure harms
    /// nothing.
    fn leave(&self);

    /// Returns all units. Reads the names of all files, so call it only for work that looks at all of them anyway.
    fn units(&self) -> Result<ContainerSet>;

    /// Returns the origins whose chunks are in other units now.
    fn forwards(&self) -> Result<ContainerSet> {
        Ok(ContainerSet::default())
    }

    /// Finds out which of these [`units`](ChunkStore::units) count for a chunk that several have; `forwards` are the
    /// [`forwards`](ChunkStore::forwards) read after them.
    fn answering<'a>(&'a self, units: &'a ContainerSet, forwards: &ContainerSet) -> Result<Answering<'a>>;

    /// Checks a unit. With `read_data` it reads all of its chunks past all caches, into `buffer` if that suffices, and
    /// passes them to `visit`, so that the caller can compare names.
    ///
    /// Damage is in the report; an error is what prevented the check. Chunks may be passed on twice.
    fn verify(&self, unit: ContainerId, read_data: bool, buffer: &mut ReadBuffer, visit: &mut FrameVisitor<'_>) -> Result<ContainerReport>;

    /// Reads all of these units from the device and passes on the findings, in order. A unit that is gone meanwhile has
    /// no findings. When `stop` is set, no other one is begun. Meanwhile it calls `waiting` several times a second.
    /// Returns how many units were scrubbed.
    fn scrub(
        &self,
        units: &[ContainerId],
        threads: &ScrubThreads,
        stop: &AtomicBool,
        found: &mut dyn FnMut(ContainerId, Scrubbed),
        waiting: &mut dyn FnMut(),
    ) -> usize;

    /// Returns the unit that has the chunks of an origin now.
    fn unit_of(&self, origin: Origin) -> Result<ContainerId>;

    /// Returns whether there may be chunks of an origin. No: they were all removed, or there never were any, or they
    /// are lost.
    fn has_chunks_of(&self, origin: Origin) -> Result<bool>;

    /// Returns those of these origins, ascending, that can have chunks, in fewer requests than a question for each
    /// would take. Leave alone what is missing here: it can have chunks all the same.
    fn listed(&self, origins: Vec<Origin>) -> Result<Vec<Origin>> {
        Ok(origins)
    }

    /// Returns the numbers of units that no batch names, nor ever will: they never have chunks that count.
    fn void(&self) -> ContainerSet {
        ContainerSet::default()
    }

    /// Returns whether an origin has a place among these [`units`](ChunkStore::units) and
    /// [`forwards`](ChunkStore::forwards).
    fn is_present(&self, origin: Origin, units: &ContainerSet, forwards: &ContainerSet) -> bool {
        [units, forwards].iter().any(|set| set.contains(origin.container()))
    }

    /// Returns the unit that has the chunks of an origin, and all chunks that it has. For check and removal.
    fn chunks_beside(&self, origin: Origin) -> Result<(ContainerId, Vec<(Address, Slot)>)>;

    /// Returns all chunks of a unit, with their addresses.
    fn chunks_of(&self, unit: ContainerId) -> Result<Vec<(Address, Slot)>> {
        Ok(self.chunks_beside(unit.into())?.1)
    }

    /// Does the same for a check, which reports damage and goes on. If what a unit has is only known in part, appends
    /// why to `damaged`, and returns the chunks that are known.
    fn known_chunks_of(&self, unit: ContainerId, _damaged: &mut Vec<StorageError>) -> Result<Vec<(Address, Slot)>> {
        self.chunks_of(unit)
    }

    /// Returns which chunks are durable now. They are of one moment if no batch is committed during the call.
    fn committed_slots(&self) -> CommittedSlots;

    /// Returns the store of containers, if this is one: for the work of containers alone (merging, parity, catalogs).
    fn as_containers(self: Arc<Self>) -> Option<Arc<ContainerStore>>;
}

/// What a chunk store takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Units that have chunks.
    pub units: u64,
    /// Disk space, bytes.
    pub disk_bytes: u64,
}

/// A writing stream. Dropping it leaves its place to the next stream.
pub trait ChunkWriter: Debug + Send + Sync {
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

/// A chunk store as a [`View`]: the one that the log's records are made from. [`prepare`](ChunkStore::prepare) writes
/// chunks first and says what the log must hold, and [`committed`](ChunkStore::committed) hears of it. So a live batch
/// brings nothing new here; only a replay does.
#[derive(Clone, Debug)]
pub struct ChunkView(pub Arc<dyn ChunkStore>);

impl<E: From<crate::StorageError>> View<E> for ChunkView {
    fn apply(&self, end: Position, effects: &Effects<'_>) -> std::result::Result<(), E> {
        Ok(self.0.apply(end, effects)?)
    }

    fn position(&self) -> Position {
        self.0.position()
    }

    fn required_end(&self) -> Position {
        self.0.required_end()
    }

    fn pressure(&self) -> Pressure {
        self.0.pressure()
    }

    fn step(&self) -> std::result::Result<bool, E> {
        Ok(self.0.step()?)
    }

    /// Does nothing: steps do everything that can be done here. What the log alone has moves on by
    /// [`ChunkStore::checkpoint_before`].
    fn catch_up(&self, _: &dyn Fn() -> bool) -> std::result::Result<(), E> {
        Ok(())
    }
}
