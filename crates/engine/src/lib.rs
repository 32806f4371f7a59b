//! The engine: chunk, fingerprint, filter chain, claim, place, recipe, log; and the way back.
//!
//! # The three tiers of all written data
//! 1. *volatile*: in memory only. Chunks in [`WriteStream`]s behind claims, and objects that were
//!    [submitted](Engine::submit).
//! 2. *durable*: in containers and the operations log, applied to the indexes in memory. [`Engine::flush`] moves
//!    everything there.
//! 3. *persisted*: merged into the index files in the background, so that the log can be trimmed.
//!
//! # Invariants
//! * A record in the log refers only to chunks that are durable in a container or in the log itself, in this batch or
//!   before it.
//! * The chunk index and the object index in memory are exactly the log up to its end. On disk they are the log up to
//!   their position.
//! * A fingerprint is in [`Claims`] until the chunk index has it, so a race never stores a chunk twice.
//!
//! # Locks, in the order in which they are taken
//! The turn of scrubs, the turn of removals, `reclaiming`, `deletions`, `maintaining`, [commits alone](commit), their
//! queue. Only `deletions` may be held while a stream waits for a claim.
//!
//! This crate must never know what a volume, a backup or a client is: objects are keys and values, their references
//! facts in numbered groups.

mod cluster;
mod commit;
pub mod components;
mod error;
mod lifecycle;
mod liveness;
mod lookup;
mod lost;
mod read;
mod statistics;
mod write;

pub use cluster::{
    Adoption, Delivery, Everybody, HeldPartition, LogPart, OtherNodes, PruneOptions, PruneReport, PruneRequests, RemovalAnswer,
    RemovalStep, Share,
};
pub use commit::Transaction;
pub use commit::records::{CHUNK_DELTAS, CHUNKS_PLACED, CHUNKS_REMOVED, OBJECTS_WRITTEN, decode_deltas, decode_places, decode_removals};
pub use error::{EngineError, Result};
pub use lifecycle::activity::Activity;
pub use lifecycle::append_only::DeletionPermit;
pub use lifecycle::clock::ClockJump;
pub use lifecycle::descriptor::{
    DESCRIPTOR, DESCRIPTOR_BEGINNING, DESCRIPTOR_COPY, Descriptor, FORMAT, FORMAT_WITH_OWN_PARTITION, random_name,
};
pub use lifecycle::mode::Mode;
pub use lifecycle::profile::{ChunkStoreKind, StoreProfile};
pub use lifecycle::settings::Settings;
pub use lifecycle::state::DAMAGED as STATE_DAMAGED;
pub use liveness::dead::DeadSlots;
pub use liveness::joining::{Contents, Copies, Joined};
pub use liveness::marked::{Marked, Marking, Reached, Roots, Tree, decode_marks};
pub use liveness::reference::{Facts, Group, Reference, Stored};
pub use liveness::removal::{MAX_CANDIDATES, Removed};
pub use liveness::{Candidate, Cursor, Liveness, Noted, ReferencesOf, Survey};
pub use lookup::capacity::Coverage;
pub use lost::quarantine::Quarantined;
pub use lost::rebuild::Rebuild;
pub use lost::rebuild::blocks::BlockRebuild;
pub use lost::scrubbing::ScrubListing;
pub use lost::store_salvage::{Meaning, SalvageOptions, Salvaged, salvage};
pub use lost::{LostChunk, Readable};
pub use onefold_index::sampled::HooksStatistics;
pub use onefold_index::{Change, Dia, Tag};
pub use onefold_storage::{
    Address, CachePolicy, CompressedFrame, ContainerId, FrameError, MergeStatistics, Origin, ParityStatistics, Repair,
};
pub use read::moment::Moment;
pub use read::recipe::{MAX_LEVEL, Piece, Recipe, decode_pieces, encode_pieces};
pub use read::snapshot::Place;
pub use statistics::Statistics;
pub use write::chain;
pub use write::claims::{Claim, Search, Wanted};
pub use write::in_flight::InFlight;
pub use write::recipe_writer::RecipeWriter;
pub use write::runs::{AskKnown, Spelled};
pub use write::stream::{Hints, MetadataKind, WriteStream};

use onefold_chunking::Chunker;
use onefold_ground::profile::Profile;
use onefold_ground::{Ground, Holder, LockGuard, Reserve};
use onefold_index::CountedIndex;
use onefold_index::ObjectIndex;
use onefold_oplog::{Log, Position};
use onefold_storage::{ArenaStore, ChunkStore, ChunkView, ContainerStore, LevelsStore};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use write::chain::Chain;
use write::claims::Claims;

/// An open store.
pub struct Engine {
    ground: Arc<dyn Ground>,
    /// The space reserved for freeing space. Writes to `ground` may use it.
    reserve: Option<Arc<Reserve>>,
    descriptor: Descriptor,
    settings: Settings,
    mode: Mode,
    /// How this opening identifies itself to others.
    holder: Holder,
    /// What this opening holds if it reads beside a writer.
    reading: read::snapshot::Reading,
    chunker: Arc<dyn Chunker>,
    storage: Arc<dyn ChunkStore>,
    /// The same as a view.
    storage_view: ChunkView,
    /// The same, if it is a store of containers.
    containers: Option<Arc<ContainerStore>>,
    /// The same, if it is an arena.
    arena: Option<Arc<ArenaStore>>,
    /// The same, if it has levels.
    levels: Option<Arc<LevelsStore>>,
    lookup: lookup::Lookup,
    objects: Arc<ObjectIndex>,
    log: Box<dyn Log>,
    claims: Arc<dyn Claims>,
    /// This node among others, if several have the store open.
    cluster: Option<Arc<cluster::Cluster>>,
    /// How many are taking partitions over.
    adopting: AtomicUsize,
    /// Whether the log may be trimmed.
    may_trim: AtomicBool,
    /// Partitions of containers of which the log says something, and since when. If they are not opened, others may
    /// read it.
    kept_containers: Mutex<BTreeMap<u16, Position>>,
    /// Where the log is cut, as partitions were released there.
    cuts: Mutex<BTreeMap<onefold_oplog::Partition, Position>>,
    /// What batches touch of the partition that is restated.
    touched: Mutex<Option<cluster::Touched>>,
    /// What was logged for partitions of other nodes.
    outbox: cluster::Outbox,
    /// Claims that other nodes hold here.
    guests: Arc<cluster::Guests>,
    /// Removals of other nodes, and what they are to hear of own ones.
    removing: cluster::Removing,
    /// Chunks that are stored again because a copy was damaged.
    superseded: commit::superseded::Superseded,
    /// Chunks that cannot be read.
    quarantine: Arc<lost::quarantine::Quarantine>,
    /// Copies that are elsewhere now.
    redirects: lookup::redirects::Redirects,
    filters: write::filters::Filters,
    liveness: Box<dyn Liveness>,
    reclaiming: liveness::Reclaiming,
    commits: commit::Commits,
    background: lifecycle::background::Background,
    scrubs: lost::scrubbing::Scrubs,
    rehearsal: lost::rehearsal::Rehearsal,
    /// Shared by deleters; exclusive while switching append-only mode.
    deletions: RwLock<()>,
    keeps_unused: bool,
    /// Whether an opening for writing has noted all that it found.
    has_begun: AtomicBool,
    /// Bytes read and written on behalf of others. Background work watches it to stay out of their way.
    served_bytes: AtomicU64,
    totals: Mutex<statistics::Totals>,
    earlier: Mutex<lifecycle::activity::Earlier>,
    clock: lifecycle::clock::Clock,
    /// End of the log when the store was opened.
    opened_at: Position,
    profile: Arc<Profile>,
    /// The store's lock. A reader beside a writer has none. Last, so that it is released after everything else is gone.
    lock: Option<LockGuard>,
    /// For other machines, if the store is in a bucket.
    _presence: Option<lifecycle::presence::Presence>,
    /// The lock of the views, if this opening needs it all the time.
    _views: Option<LockGuard>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("place", &self.ground.describe("")).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Engine {
    /// Returns whether objects that nobody uses must be kept: a repair found that a part of the log was lost, and
    /// nobody has looked at these objects since.
    pub fn keeps_unused(&self) -> bool {
        self.keeps_unused
    }

    /// Returns a new writing stream. Its chunks lie together.
    pub fn stream(self: &Arc<Self>) -> WriteStream {
        WriteStream::new(self.clone())
    }

    /// Keeps chunks from being removed under a caller that uses them. Take this guard before the first look at what the
    /// store has. Hold it until everything that refers to a chunk seen meanwhile is submitted: until then no such chunk
    /// is removed. A [`WriteStream`] holds a guard of its own.
    pub fn in_flight(&self) -> InFlight {
        self.reclaiming.enter()
    }

    /// Returns the choices made when the store was created.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Returns the settings of this opening.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the length of this store's digests, bytes.
    pub fn digest_bytes(&self) -> usize {
        self.descriptor.fingerprint.digest_bytes()
    }

    /// Returns the most bytes that a metadata chunk can have in this store.
    pub fn most_metadata_bytes(&self) -> usize {
        self.storage.longest_chunk_bytes()
    }

    /// Returns the bounds of the chunks that this store cuts.
    pub fn chunk_limits(&self) -> onefold_chunking::Limits {
        self.chunker.limits()
    }

    /// Returns the number of object-index partitions.
    pub fn object_partitions(&self) -> u16 {
        self.descriptor.object_partitions
    }

    /// Returns the number of partitions of the object index, with that of the engine's notes if it has one.
    pub fn all_object_partitions(&self) -> u16 {
        self.descriptor.all_object_partitions()
    }

    /// Returns time and bytes by component.
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// Returns the chunk index, for check and statistics. `None`: there is none, and each copy of a chunk counts for
    /// itself.
    pub fn index(&self) -> Option<&Arc<dyn CountedIndex>> {
        self.lookup.index()
    }

    /// Returns the number of partitions of the chunk index. 0: there is none.
    pub fn index_partitions(&self) -> u64 {
        self.index().map_or(0, |index| index.partitions().len() as u64)
    }

    /// Returns the object index, for check.
    pub fn object_index(&self) -> &ObjectIndex {
        &self.objects
    }

    /// Returns the chunk store, for check and statistics.
    pub fn storage(&self) -> &Arc<dyn ChunkStore> {
        &self.storage
    }

    /// Returns the containers, if the chunk store keeps chunks in containers: for the work of containers alone.
    pub fn containers(&self) -> Option<&Arc<ContainerStore>> {
        self.containers.as_ref()
    }

    /// Returns the levels, if the chunk store keeps chunks in them.
    pub fn levels(&self) -> Option<&Arc<LevelsStore>> {
        self.levels.as_ref()
    }

    /// Returns the containers. Errors: the store has none, and so nothing that is made of containers.
    pub(crate) fn need_containers(&self) -> Result<&Arc<ContainerStore>> {
        let none = || EngineError::Invalid {
            what: "containers".into(),
            why: format!("a store of profile `{}` has none", self.descriptor.profile),
        };
        self.containers.as_ref().ok_or_else(none)
    }

    /// Returns the ground: the files below the store.
    pub fn ground(&self) -> &Arc<dyn Ground> {
        &self.ground
    }

    /// Returns a filter chain from names separated by commas, for a volume with a chain of its own. The Bloom filter is
    /// left out if the settings give this opening none. It only saves look-ups, and a change of settings must not lock
    /// volumes out.
    pub fn chain(&self, names: &str) -> Result<Chain> {
        self.filters.select(names)
    }

    /// Returns the value of an object. Submitted changes are visible at once.
    pub fn get(&self, partition: u16, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_looking()?;
        Ok(self.objects.get(partition, key)?)
    }

    /// Returns the values of several objects of a partition, as of one moment.
    pub fn get_many(&self, partition: u16, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        self.check_looking()?;
        Ok(self.objects.get_many(partition, keys)?)
    }

    /// Returns up to `limit` objects with `from <= key < to`, sorted.
    pub fn range(&self, partition: u16, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.check_looking()?;
        Ok(self.objects.range(partition, from, to, limit)?)
    }

    /// Returns whether there are lost keys: a repair could not find out what the object index said of them.
    pub fn has_lost(&self) -> bool {
        self.objects.has_lost()
    }

    /// Returns the ranges of lost keys with `from <= key < to`. Reading a lost key is an error until something is
    /// written there.
    pub fn lost_within(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.objects.lost_within(partition, from, to)?)
    }

    /// Returns the first range of lost keys with `from <= key < to`.
    pub fn first_lost(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        Ok(self.objects.first_lost(partition, from, to)?)
    }

    /// Returns the change that declares lost keys with `from <= key < to` to have no objects, once its transaction is
    /// committed. `None`: none of them is lost. Call only when the keys are unreferenced.
    pub fn give_up_lost(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Option<Change>> {
        Ok(self.objects.give_up_lost(partition, from, to)?)
    }

    /// Passes every object whose key begins with `prefix` to `visit`, partition by partition, sorted within each. Reads
    /// a few at a time, so memory is bounded.
    pub fn for_each_object(&self, prefix: u8, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        (0..self.all_object_partitions()).try_for_each(|partition| self.for_each_object_of(partition, prefix, visit))
    }

    /// Does the same in one partition.
    pub(crate) fn for_each_object_of(&self, partition: u16, prefix: u8, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        const PAGE: usize = 256;
        let mut from = vec![prefix];
        loop {
            let page = self.range(partition, &from, &[prefix + 1], PAGE)?;
            page.iter().for_each(|(key, value)| visit(key, value));
            match page.last() {
                Some((last, _)) if page.len() == PAGE => {
                    from.clone_from(last);
                    from.push(0);
                }
                _ => return Ok(()),
            }
        }
    }
}
