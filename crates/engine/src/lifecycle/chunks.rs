//! What keeps a store's chunks and what finds them: made, opened, and brought to the end of the log.

use crate::cluster::{Cluster, Outbox};
use crate::lifecycle::descriptor::Descriptor;
use crate::lifecycle::layout::{ARENA, CONTAINERS, INDEX, LEVELS, arena_options, levels_options, storage_options};
use crate::lifecycle::profile::ChunkStoreKind;
use crate::lifecycle::recovery::{Sent, recover};
use crate::lifecycle::settings::Settings;
use crate::lookup::blocks::Blocks;
use crate::lost::rebuild::blocks::{NEW_INDEX, forget_new_index, new_linked_index};
use crate::lost::rebuild::{MARKER, empty_index, mark_index};
use crate::{EngineError, Mode, Result};
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground};
use onefold_index::{ChunkIndex, ChunkIndexOptions, IndexView, LinkedIndex, LinkedOptions, LinkedShape, ObjectIndex};
use onefold_oplog::{Log, PartitionClass, View};
use onefold_storage::{ArenaParts, ArenaStore, ChunkView, ContainerStore, FileHoles, LevelsStore};
use std::sync::Arc;

/// `log2` of the slots of a new linked index. It doubles as the store grows.
const SLOTS_BITS: u32 = 8;

/// A table of levels takes at most one part in so many of the disk, unless a memtable is larger.
const TABLE_OF_DISK: u64 = 128;

/// The chunk store of a store, and the index of all its chunks, if it has one.
pub(crate) struct Chunks {
    pub(crate) storage: ChunkView,
    /// The same, if it is a store of containers.
    pub(crate) containers: Option<Arc<ContainerStore>>,
    /// The same, if it is an arena.
    pub(crate) arena: Option<Arc<ArenaStore>>,
    /// The same, if it has levels.
    pub(crate) levels: Option<Arc<LevelsStore>>,
    pub(crate) index: Option<IndexView>,
}

/// Creates the chunk store and the index, both empty.
pub(crate) fn create(ground: &Arc<dyn Ground>, descriptor: &Descriptor) -> Result<()> {
    if descriptor.profile.is_exact() {
        create_index(ground, descriptor)?;
    }
    let (partitions, settings) = (descriptor.container_partitions, Settings::default());
    if let Some(options) = arena_options(descriptor, &settings) {
        ArenaStore::create(&**ground, ARENA, &options)?;
    } else if let Some(options) = levels_options(descriptor, &settings) {
        LevelsStore::create(&**ground, LEVELS, partitions, &options)?;
    } else {
        ContainerStore::create(&**ground, CONTAINERS, partitions)?;
    }
    Ok(())
}

/// Creates an empty index, in its directory.
pub(crate) fn create_index(ground: &Arc<dyn Ground>, descriptor: &Descriptor) -> Result<()> {
    if !descriptor.profile.has_blocks() {
        return Ok(ChunkIndex::create(ground, INDEX, descriptor.index_partitions, descriptor.fingerprint.digest_bytes())?);
    }
    create_linked_index(ground, descriptor, INDEX)
}

/// Creates an empty index of blocks in a directory.
pub(crate) fn create_linked_index(ground: &Arc<dyn Ground>, descriptor: &Descriptor, directory: &str) -> Result<()> {
    let digest_bytes = descriptor.fingerprint.digest_bytes();
    let shape = LinkedShape { digest_bytes, tag: descriptor.index_tag, dia: descriptor.index_area, slots_bits: SLOTS_BITS };
    Ok(LinkedIndex::create(ground, directory, shape)?)
}

/// Refuses a block device that another copy of the store has written to, or another device in its place.
pub(crate) fn check_owner(ground: &dyn Ground, descriptor: &Descriptor, settings: &Settings) -> Result<()> {
    arena_options(descriptor, settings).map_or(Ok(()), |options| Ok(ArenaStore::owner(ground, ARENA, &options).map(drop)?))
}

/// What an opening needs.
pub(crate) struct Parts<'a> {
    pub(crate) ground: &'a Arc<dyn Ground>,
    pub(crate) descriptor: &'a Descriptor,
    pub(crate) settings: &'a Settings,
    pub(crate) mode: Mode,
    pub(crate) epoch: u64,
    pub(crate) profile: &'a Arc<Profile>,
    pub(crate) objects: &'a Arc<ObjectIndex>,
    pub(crate) log: &'a dyn Log,
    pub(crate) outbox: &'a Outbox,
    pub(crate) cluster: Option<&'a Cluster>,
}

impl Parts<'_> {
    /// Opens everything, and replays the log. The objects are brought to its end too.
    pub(crate) fn open(&self) -> Result<Chunks> {
        if self.mode != Mode::Rebuild && self.ground.exists(MARKER)? {
            return Err(EngineError::Inconsistent { why: "the rebuild of its chunk index was interrupted and must run again".into() });
        }
        match self.descriptor.profile.chunk_store() {
            ChunkStoreKind::Containers => self.open_containers(),
            ChunkStoreKind::Levels => self.open_levels(),
            ChunkStoreKind::Arena => {
                if self.mode == Mode::ReadWrite {
                    forget_new_index(&**self.ground)?;
                }
                self.open_blocks()
            }
        }
    }

    fn access(&self) -> Access {
        if self.mode == Mode::ReadWrite { Access::ReadWrite } else { Access::Read }
    }

    /// A rebuild writes the index, and nothing else.
    fn index_access(&self) -> Access {
        if self.mode == Mode::Rebuild { Access::ReadWrite } else { self.access() }
    }

    fn open_containers(&self) -> Result<Chunks> {
        let containers = ContainerStore::open(
            self.ground.clone(),
            CONTAINERS,
            &self.settings.ownership(PartitionClass::Container, self.descriptor.container_partitions.into(), self.epoch),
            storage_options(&**self.ground, self.descriptor, self.settings),
            self.access(),
            self.profile.clone(),
        )?;
        if self.mode == Mode::Snapshot {
            containers.follow_writers();
        }
        if self.mode == Mode::ReadWrite && self.log.was_ended() {
            containers.expect_no_leftovers();
        }
        let storage = ChunkView(containers.clone());
        let index = self.replay(&storage, || containers.allow_repairs())?;
        Ok(Chunks { storage, containers: Some(containers), arena: None, levels: None, index })
    }

    fn open_levels(&self) -> Result<Chunks> {
        let mut options = levels_options(self.descriptor, self.settings)
            .ok_or_else(|| EngineError::Inconsistent { why: format!("a store of profile `{}` has no levels", self.descriptor.profile) })?;
        // A compaction needs space for some ten tables.
        let share = self.ground.space()?.total_bytes / TABLE_OF_DISK;
        options.table_bytes = options.table_bytes.min(share.max(u64::from(options.memtable_bytes)));
        let partitions = self.descriptor.container_partitions;
        // Each table is open.
        onefold_ground::raise_open_file_limit();
        let (ground, profile) = (self.ground.clone(), self.profile.clone());
        let levels = LevelsStore::open(ground, LEVELS, partitions, self.epoch, options, profile, self.access())?;
        let storage = ChunkView(levels.clone());
        let index = self.replay(&storage, || {})?;
        Ok(Chunks { storage, containers: None, arena: None, levels: Some(levels), index })
    }

    /// Replays the log, and opens the chunk index, which a rebuild replaces by an empty one.
    fn replay(&self, storage: &ChunkView, allow_repairs: impl FnOnce()) -> Result<Option<IndexView>> {
        if self.mode == Mode::Rebuild {
            // Everything that goes into the new index is read first: if that fails, the store keeps its old index.
            self.recover(storage, None)?;
            allow_repairs();
            self.new_index()?;
            return self.chunk_index();
        }
        let index = self.chunk_index()?;
        self.recover(storage, index.as_ref())?;
        Ok(index)
    }

    fn open_blocks(&self) -> Result<Chunks> {
        let options = arena_options(self.descriptor, self.settings)
            .ok_or_else(|| EngineError::Inconsistent { why: format!("a store of profile `{}` has no blocks", self.descriptor.profile) })?;
        let is_rebuild = self.mode == Mode::Rebuild;
        if is_rebuild {
            // The old index stays until the new one is whole.
            new_linked_index(self.ground, self.descriptor)?;
        }
        let digest_bytes = self.descriptor.fingerprint.digest_bytes();
        let index_options = LinkedOptions { auxiliary_bytes: self.settings.auxiliary_index_bytes };
        let directory = if is_rebuild { NEW_INDEX } else { INDEX };
        let linked = LinkedIndex::open(self.ground, directory, self.epoch, digest_bytes, index_options, self.index_access())?;
        let linked = Arc::new(linked);
        let table = Arc::new(Blocks::new(linked.clone()));
        let parts = ArenaParts { table, holes: Arc::new(FileHoles), profile: self.profile.clone(), log_end: self.log.end() };
        let arena = ArenaStore::open(self.ground.clone(), ARENA, self.epoch, options, parts, self.access())?;
        if is_rebuild || self.mode == Mode::Snapshot {
            arena.load_by_names();
        }
        let (storage, index) = (ChunkView(arena.clone()), IndexView(linked));
        // A rebuild fills the index by itself.
        self.recover(&storage, (!is_rebuild).then_some(&index))?;
        Ok(Chunks { storage, containers: None, arena: Some(arena), levels: None, index: Some(index) })
    }

    fn recover(&self, storage: &ChunkView, index: Option<&IndexView>) -> Result<()> {
        let chunks = index.map(|index| index as &dyn View<EngineError>);
        let views: Vec<_> = chunks.into_iter().chain([&**self.objects as &dyn View<EngineError>]).collect();
        let sent = self.settings.share.as_ref().zip(self.cluster).map(|(share, cluster)| Sent { share, cluster, outbox: self.outbox });
        recover(storage, &views, self.log, self.mode, self.descriptor.fingerprint.digest_bytes(), sent)
    }

    /// Replaces the index by an empty one.
    fn new_index(&self) -> Result<()> {
        match self.descriptor.profile.is_exact() {
            true => empty_index(self.ground, self.descriptor),
            false => mark_index(self.ground, INDEX),
        }
    }

    fn chunk_index(&self) -> Result<Option<IndexView>> {
        open_index(self.ground, self.descriptor, self.settings, self.epoch, self.index_access())
    }
}

/// Opens the chunk index of a store that has one.
pub(crate) fn open_index(
    ground: &Arc<dyn Ground>,
    descriptor: &Descriptor,
    settings: &Settings,
    epoch: u64,
    access: Access,
) -> Result<Option<IndexView>> {
    if !descriptor.profile.is_exact() {
        return Ok(None);
    }
    let options = ChunkIndexOptions {
        auxiliary_bytes: settings.auxiliary_index_bytes,
        page_cache_bytes: settings.chunk_index_cache_bytes,
        filter_bytes: settings.chunk_index_filter_bytes,
        reads_in_flight: settings.chunk_index_reads,
    };
    let ownership = settings.ownership(PartitionClass::ChunkIndex, descriptor.index_partitions, epoch);
    let index = ChunkIndex::open(ground, INDEX, &ownership, descriptor.fingerprint.digest_bytes(), options, access)?;
    Ok(Some(IndexView(Arc::new(index))))
}
