//! The engine: chunk, fingerprint, filter chain, claim, place, recipe, log; and the way back.
//!
//! # The three tiers of everything that is written
//! 1. *volatile*: in memory only. Chunks in [`WriteStream`]s behind claims, objects that were [submitted](Engine::submit).
//! 2. *durable*: in containers and the operations log, applied to the indexes in memory. [`Engine::flush`] moves everything there.
//! 3. *persisted*: merged into the index files in the background, so that the log can be trimmed.
//!
//! # Invariants
//! * A record in the log refers only to chunks that are durable in a container or in the log itself, in this batch or before it.
//! * The chunk index and the object index in memory are exactly the log up to its end; on disk they are the log up to their position.
//! * A fingerprint is in [`Claims`] until the chunk index has it, so a chunk is never stored twice for want of timing.
//!
//! # Locks, in the order in which they are taken
//! the turn of scrubs, that of removals, `reclaiming`, `deletions`, `maintaining`, [commits alone](commit), their queue; none but `deletions` is held while a stream waits for
//! a claim.
//!
//! This crate must never know what a volume, a backup or a client is: objects are keys and values, their references facts in numbered groups.

mod commit;
pub mod components;
mod error;
mod lifecycle;
mod liveness;
mod lost;
mod read;
mod statistics;
mod write;

pub use commit::Transaction;
pub use commit::records::{CHUNK_DELTAS, CHUNKS_PLACED, CHUNKS_REMOVED, OBJECTS_WRITTEN, decode_deltas, decode_places, decode_removals};
pub use error::{EngineError, Result};
pub use lifecycle::activity::Activity;
pub use lifecycle::append_only::DeletionPermit;
pub use lifecycle::clock::ClockJump;
pub use lifecycle::descriptor::{DESCRIPTOR, DESCRIPTOR_BEGINNING, DESCRIPTOR_COPY, Descriptor, FORMAT, random_name};
pub use lifecycle::mode::Mode;
pub use lifecycle::settings::Settings;
pub use liveness::dead::DeadSlots;
pub use liveness::reference::{Facts, Group, Reference, Stored};
pub use liveness::removal::{MAX_CANDIDATES, ReferencesOf, Removed};
pub use liveness::{Candidate, Cursor, Liveness, Noted};
pub use lost::quarantine::Quarantined;
pub use lost::rebuild::Rebuild;
pub use lost::scrubbing::ScrubListing;
pub use lost::store_salvage::{Meaning, SalvageOptions, Salvaged, salvage};
pub use lost::{LostChunk, Readable};
pub use onefold_index::Change;
pub use onefold_storage::{Address, ContainerId, MergeStatistics, ParityStatistics, Repair};
pub use read::moment::Moment;
pub use read::recipe::{MAX_LEVEL, Piece, Recipe, decode_pieces, encode_pieces};
pub use read::snapshot::Place;
pub use statistics::Statistics;
pub use write::chain;
pub use write::in_flight::InFlight;
pub use write::recipe_writer::RecipeWriter;
pub use write::stream::{Hints, MetadataKind, WriteStream};

use onefold_chunking::Chunker;
use onefold_ground::profile::Profile;
use onefold_ground::{Ground, Holder, LockGuard, Reserve};
use onefold_index::ChunkIndex;
use onefold_index::ObjectIndex;
use onefold_oplog::{Log, Position};
use onefold_storage::ContainerStore;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use write::chain::Chain;
use write::claims::Claims;

/// One store, open.
pub struct Engine {
    ground: Arc<dyn Ground>,
    /// Room for freeing room, which the writes to `ground` may use.
    reserve: Option<Arc<Reserve>>,
    descriptor: Descriptor,
    settings: Settings,
    mode: Mode,
    /// How others know this opening.
    holder: Holder,
    /// What a reader beside a writer holds.
    reading: read::snapshot::Reading,
    chunker: Arc<dyn Chunker>,
    storage: Arc<ContainerStore>,
    index: Arc<ChunkIndex>,
    objects: Arc<ObjectIndex>,
    log: Log,
    claims: Arc<dyn Claims>,
    /// What is stored anew because it was found damaged.
    superseded: commit::superseded::Superseded,
    /// What cannot be read.
    quarantine: Arc<lost::quarantine::Quarantine>,
    filters: write::filters::Filters,
    liveness: Box<dyn Liveness>,
    reclaiming: liveness::Reclaiming,
    commits: commit::Commits,
    background: lifecycle::background::Background,
    scrubs: lost::scrubbing::Scrubs,
    rehearsal: lost::rehearsal::Rehearsal,
    /// Held by those who delete; alone by who switches append-only mode.
    deletions: RwLock<()>,
    keeps_unused: bool,
    /// What was read and written on behalf of others, bytes: whoever works beside them looks at it.
    served_bytes: AtomicU64,
    totals: Mutex<statistics::Totals>,
    earlier: Mutex<lifecycle::activity::Earlier>,
    clock: lifecycle::clock::Clock,
    /// End of the log when the store was opened.
    opened_at: Position,
    profile: Arc<Profile>,
    /// The store's lock; a reader beside a writer has none. Last, so that it is released after everything else is gone.
    lock: Option<LockGuard>,
    /// That of the views, where this opening needs it all the time.
    _views: Option<LockGuard>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("place", &self.ground.describe("")).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Engine {
    /// Whether objects that nobody uses are to be kept: a repair found that a part of the log was lost, and nobody has looked at them since.
    pub fn keeps_unused(&self) -> bool {
        self.keeps_unused
    }

    /// A new writing stream; its chunks lie together.
    pub fn stream(self: &Arc<Self>) -> WriteStream {
        WriteStream::new(self.clone())
    }

    /// To be held by whoever uses what the store has, from before the first look until after the submission of what refers to it: until then no
    /// chunk is removed that it could have seen. A [`WriteStream`] holds one for itself.
    pub fn in_flight(&self) -> InFlight {
        self.reclaiming.enter()
    }

    /// What was chosen when the store was created.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// What was chosen when the store was opened.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Bytes of a digest of this store.
    pub fn digest_bytes(&self) -> usize {
        self.descriptor.fingerprint.digest_bytes()
    }

    /// Object-index partitions of this store.
    pub fn object_partitions(&self) -> u16 {
        self.descriptor.object_partitions
    }

    /// Time and bytes by component.
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// The chunk index, for check and statistics.
    pub fn index(&self) -> &Arc<ChunkIndex> {
        &self.index
    }

    /// The object index, for check.
    pub fn object_index(&self) -> &ObjectIndex {
        &self.objects
    }

    /// The containers, for check and statistics.
    pub fn storage(&self) -> &Arc<ContainerStore> {
        &self.storage
    }

    /// The files below the store.
    pub fn ground(&self) -> &Arc<dyn Ground> {
        &self.ground
    }

    /// A filter chain from names separated by commas, for a volume of its own ways. The Bloom filter is left out of it when the settings
    /// give this opening none: it only saves look-ups, and a change of settings must not lock volumes away.
    pub fn chain(&self, names: &str) -> Result<Chain> {
        self.filters.select(names)
    }

    /// The value of an object; what was submitted is seen at once.
    pub fn get(&self, partition: u16, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_looking()?;
        Ok(self.objects.get(partition, key)?)
    }

    /// Up to `limit` objects with `from <= key < to`, sorted.
    pub fn range(&self, partition: u16, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.check_looking()?;
        Ok(self.objects.range(partition, from, to, limit)?)
    }

    /// Whether there are keys of which a repair could not find out what the object index said.
    pub fn has_lost(&self) -> bool {
        self.objects.has_lost()
    }

    /// The ranges of keys with `from <= key < to` of which a repair could not find out what the object index said. Reading in them is an error until
    /// something is written there.
    pub fn lost_within(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.objects.lost_within(partition, from, to)?)
    }

    /// The first of them.
    pub fn first_lost(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        Ok(self.objects.first_lost(partition, from, to)?)
    }

    /// The change that takes lost keys with `from <= key < to` for keys without objects, from the commit of its transaction on; `None`: none of them is lost. For who
    /// knows that nobody needs them any more.
    pub fn give_up_lost(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Option<Change>> {
        Ok(self.objects.give_up_lost(partition, from, to)?)
    }

    /// Passes every object whose key begins with `prefix` to `visit`, partition by partition, sorted within each; some at a time, so memory is bounded.
    pub fn for_each_object(&self, prefix: u8, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        const PAGE: usize = 256;
        for partition in 0..self.object_partitions() {
            let mut from = vec![prefix];
            loop {
                let page = self.range(partition, &from, &[prefix + 1], PAGE)?;
                page.iter().for_each(|(key, value)| visit(key, value));
                match page.last() {
                    Some((last, _)) if page.len() == PAGE => {
                        from.clone_from(last);
                        from.push(0);
                    }
                    _ => break,
                }
            }
        }
        Ok(())
    }
}
