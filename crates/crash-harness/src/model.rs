//! What must be in a store: bytes in memory, and how far they were acknowledged.
//!
//! A block of a volume has versions: the first is what the last flush covered, the last is what a reader of the living
//! process sees. After a crash any one of them may be there. What exists at all (volumes, their sizes, backups) has
//! alternatives in the same way. [`Model::verify`] compares, and from then on what was found is what is known.

use crate::sight::Sight;
use onefold_catalog::Backup;
use onefold_fs::testing::{History, TreeModel};
use onefold_ground::checksum;
use onefold_volume::Volume;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a volume's block.
pub const BLOCK_BYTES: u64 = 64 << 10;
/// Volumes that a model has at most.
pub const SLOTS: usize = 5;
/// Filesystems that a model has at most.
pub const FILESYSTEMS: usize = 4;

type Bytes = Arc<Vec<u8>>;

/// A tree of files: path to bytes.
pub type Tree = BTreeMap<String, Bytes>;

/// What a backup with this tree has as its options.
pub(crate) fn sum_of(tree: &Tree) -> String {
    let mut all = Vec::new();
    for (path, bytes) in tree {
        all.extend_from_slice(path.as_bytes());
        all.extend_from_slice(&checksum(bytes).to_le_bytes());
    }
    format!("{:016x}", checksum(&all))
}

/// Returns what a backup says of its tree. That of a filesystem has it as a tag.
pub(crate) fn sum_in(backup: &Backup) -> &str {
    backup.tags.first().unwrap_or(&backup.options)
}

/// What a volume must be.
#[derive(Clone, Debug)]
pub struct VolumeModel {
    /// Bytes.
    pub size: u64,
    /// A snapshot, or a clone that was made so.
    pub is_read_only: bool,
    /// Of each block, its versions.
    pub blocks: Vec<Vec<Bytes>>,
}

/// What a filesystem must be.
#[derive(Clone, Debug)]
pub struct FilesystemModel {
    /// A snapshot, or a clone that was made so.
    pub is_read_only: bool,
    /// What it was since it was last durable.
    pub history: History,
}

/// What a backup must be.
#[derive(Clone, Debug)]
pub struct BackupModel {
    /// As it was committed.
    pub backup: Backup,
    /// Its files.
    pub tree: Tree,
    /// Whether it is visible: what may be, the last is what the process sees.
    pub visible: Vec<bool>,
    /// Whether it is protected, likewise.
    pub protected: Vec<bool>,
}

/// What must be in a store, as far as one writer knows.
#[derive(Clone, Debug)]
pub struct Model {
    /// Begins all names of this model.
    pub prefix: String,
    /// By slot: the states that a volume may be in, the last is what the process sees.
    pub slots: Vec<Vec<Option<VolumeModel>>>,
    /// By slot: the states that a filesystem may be in, likewise.
    pub filesystems: Vec<Vec<Option<FilesystemModel>>>,
    /// By id.
    pub backups: BTreeMap<[u8; 16], BackupModel>,
    /// Backups of filesystems that may be visible though nobody was told their ids, by the sum of their trees.
    pub(crate) doubtful: BTreeMap<String, Tree>,
    /// What crashes left of filesystems.
    pub(crate) met: Vec<Sight>,
    /// Numbers the backups.
    pub(crate) next_backup: u64,
}

impl VolumeModel {
    /// Returns a new volume: zeros.
    pub fn new(size: u64) -> VolumeModel {
        let mut volume = VolumeModel { size: 0, is_read_only: false, blocks: Vec::new() };
        volume.resize(size);
        volume
    }

    /// Changes the size: what is cut off is gone, what is added is zeros.
    pub fn resize(&mut self, size: u64) {
        let zeros = Arc::new(vec![0; BLOCK_BYTES as usize]);
        self.blocks.resize(size.div_ceil(BLOCK_BYTES) as usize, vec![zeros]);
        let tail = (size % BLOCK_BYTES) as usize;
        if size < self.size && tail > 0 {
            for version in self.blocks.last_mut().into_iter().flatten() {
                Arc::make_mut(version)[tail..].fill(0);
            }
        }
        self.size = size;
    }

    /// Returns what the process sees, as another volume.
    pub fn copy(&self, is_read_only: bool) -> VolumeModel {
        let blocks = (0..self.blocks.len()).map(|block| vec![self.latest(block).clone()]).collect();
        VolumeModel { size: self.size, is_read_only, blocks }
    }

    /// Returns what the process sees of a block.
    pub fn latest(&self, block: usize) -> &Bytes {
        self.blocks[block].last().expect("a block has a version")
    }

    /// Bytes of a block that are within the size.
    fn visible(&self, block: usize) -> usize {
        (self.size - block as u64 * BLOCK_BYTES).min(BLOCK_BYTES) as usize
    }

    fn flushed(&mut self) {
        for versions in &mut self.blocks {
            versions.drain(..versions.len() - 1);
        }
    }

    /// Compares a volume with this state; if it is equal, what was found is what is known. `live`: only the latest
    /// version of a block counts.
    pub fn matches(&mut self, volume: &Volume, live: bool) -> Result<(), String> {
        if volume.is_read_only() != self.is_read_only {
            return Err(format!("read-only is {}", volume.is_read_only()));
        }
        if volume.size() != self.size {
            return Err(format!("size {} instead of {}", volume.size(), self.size));
        }
        for block in 0..self.blocks.len() {
            let mut found = vec![1; self.visible(block)];
            volume.read(block as u64 * BLOCK_BYTES, &mut found).map_err(|error| format!("block {block}: {error}"))?;
            let versions = &self.blocks[block];
            let last = versions.len() - 1;
            match versions.iter().rposition(|version| version[..found.len()] == found[..]) {
                Some(at) if at == last || !live => self.blocks[block] = vec![versions[at].clone()],
                at => {
                    let wrong = versions[last].iter().zip(&found).position(|(a, b)| a != b);
                    return Err(format!("block {block} is version {at:?} of {last}; it differs from byte {wrong:?}"));
                }
            }
        }
        Ok(())
    }
}

impl FilesystemModel {
    /// Returns a filesystem that is durable as it is.
    pub fn new(tree: TreeModel, is_read_only: bool) -> FilesystemModel {
        FilesystemModel { is_read_only, history: History::new(tree) }
    }
}

impl Model {
    /// Returns the model of an empty store. All names that it gives begin with `prefix`.
    pub fn new(prefix: &str) -> Model {
        Model {
            prefix: prefix.into(),
            slots: vec![vec![None]; SLOTS],
            filesystems: vec![vec![None]; FILESYSTEMS],
            backups: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            met: Vec::new(),
            next_backup: 0,
        }
    }

    /// Returns the name of the volume in a slot.
    pub fn name(&self, slot: usize) -> String {
        format!("{}v{slot}", self.prefix)
    }

    /// Returns the volume in a slot, as the process sees it.
    pub fn volume(&self, slot: usize) -> Option<&VolumeModel> {
        self.slots[slot].last().and_then(Option::as_ref)
    }

    /// Returns the same, to change it.
    pub fn volume_mut(&mut self, slot: usize) -> Option<&mut VolumeModel> {
        self.slots[slot].last_mut().and_then(Option::as_mut)
    }

    /// Returns the name of the filesystem in a slot.
    pub fn filesystem_name(&self, slot: usize) -> String {
        format!("{}f{slot}", self.prefix)
    }

    /// Returns the filesystem in a slot, as the process sees it.
    pub fn filesystem(&self, slot: usize) -> Option<&FilesystemModel> {
        self.filesystems[slot].last().and_then(Option::as_ref)
    }

    /// Returns the history of the filesystem in a slot, to go on with it.
    pub(crate) fn history_mut(&mut self, slot: usize) -> &mut History {
        let known = self.filesystems[slot].last_mut().and_then(Option::as_mut);
        &mut known.expect("the filesystem was there").history
    }

    /// The engine has flushed: all objects that the process sees are durable.
    pub fn objects_flushed(&mut self) {
        for alternatives in &mut self.slots {
            alternatives.drain(..alternatives.len() - 1);
        }
        for alternatives in &mut self.filesystems {
            alternatives.drain(..alternatives.len() - 1);
        }
        for backup in self.backups.values_mut() {
            backup.visible.drain(..backup.visible.len() - 1);
            backup.protected.drain(..backup.protected.len() - 1);
        }
        self.backups.retain(|_, backup| backup.visible != [false]);
    }

    /// The volume in a slot was flushed, and with it all objects.
    pub fn slot_flushed(&mut self, slot: usize) {
        self.objects_flushed();
        self.volume_mut(slot).into_iter().for_each(VolumeModel::flushed);
    }

    /// All volumes were flushed, and with them all objects.
    pub fn all_flushed(&mut self) {
        (0..SLOTS).for_each(|slot| self.slot_flushed(slot));
    }
}
