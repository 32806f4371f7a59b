//! The volumes of a store: making, finding, resizing and deleting them by name.
//!
//! Invariants:
//! * A volume is open once in a process: everybody who asks gets the same [`Volume`], so there is one buffer and one lock for each block.
//! * Names are unique. Numbers of volumes, layers and maps are never used again.
//! * Whatever makes or removes volumes and layers is one transaction, under the lock `structure`: after a crash it happened or it did not.
//! * A layer is marked as dropped in the transaction that takes its last user; only then do its mappings go ([`Volumes::resume_deletions`]).

use crate::error::{Result, VolumeError};
use crate::layer::Layer;
use crate::layers::{Node, for_each_object, missing};
use crate::mapping::mapping_key;
use crate::record::{
    MAX_CHAIN_BYTES, NEXT_NUMBER_KEY, NEXT_NUMBER_PARTITION, Origin, Record, VOLUMES_FROM, VOLUMES_TO, VolumeKind, check_block_size,
    check_name, check_size, decode_number, encode_number, volume_key, volume_number,
};
use crate::shared::Shared;
use crate::volume::Volume;
use onefold_engine::{Change, Engine, EngineError, Transaction};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Memory and ways of all volumes of a store together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumesOptions {
    /// Bound of the write-back buffers, bytes. Writing out needs up to 2 MiB (or one block) more on each thread that does it.
    pub dirty_bytes: usize,
    /// Bound of the cache of block mappings, bytes.
    pub mapping_cache_bytes: usize,
    /// Writing streams of each volume: threads that write out at once. At least 1.
    pub streams: usize,
    /// Whether reads compare the fingerprints of what they read. Checksums are always verified.
    pub verify: bool,
}

impl Default for VolumesOptions {
    fn default() -> VolumesOptions {
        VolumesOptions { dirty_bytes: 64 << 20, mapping_cache_bytes: 16 << 20, streams: 2, verify: false }
    }
}

/// What is known of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its size, bytes.
    pub size: u64,
    /// Its block size, bytes.
    pub block_size: u32,
    /// Its number: never that of another volume, whatever the names.
    pub number: u32,
    /// The layer that its blocks are looked for in first.
    pub layer: u32,
    /// What kind of volume it is.
    pub kind: VolumeKind,
    /// Whether it never changes.
    pub is_read_only: bool,
    /// What it was made of, if it was not made empty.
    pub origin: Option<Origin>,
    /// When it was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// Its own filter chain; `None`: the store's.
    pub chain: Option<String>,
}

impl VolumeInfo {
    /// Reads the record of volume `number`, as the object index has it.
    pub fn decode(number: u32, value: &[u8]) -> Result<VolumeInfo> {
        Ok(VolumeInfo::of(number, &Record::decode(number, value)?))
    }

    pub(crate) fn of(number: u32, record: &Record) -> VolumeInfo {
        VolumeInfo {
            name: record.name.clone(),
            size: record.size_bytes,
            block_size: record.block_bytes,
            number,
            layer: record.layer,
            kind: record.kind,
            is_read_only: record.is_read_only,
            origin: record.origin.clone(),
            created_ns: record.created_ns,
            chain: (!record.chain.is_empty()).then(|| record.chain.clone()),
        }
    }
}

/// The volumes of a store.
#[derive(Debug)]
pub struct Volumes {
    pub(crate) shared: Arc<Shared>,
    /// Held by whatever changes the list or the layers: before the gates of volumes.
    pub(crate) structure: Mutex<()>,
    /// Held for a look or a change only.
    list: Mutex<BTreeMap<String, Listed>>,
    /// The layers that somebody reads as they were at a moment ([`crate::frozen`]), with how many do. Held for a look or a change only.
    pub(crate) frozen: Mutex<HashMap<u32, usize>>,
    /// What was left out of the list.
    damaged: Vec<String>,
    /// One cleaning at a time goes on in a process.
    pub(crate) cleaning: Mutex<()>,
    /// Those who wait for it.
    pub(crate) waiting_cleaners: AtomicUsize,
    /// Whether there may be something to clean.
    work: (Mutex<bool>, Condvar),
}

#[derive(Debug)]
struct Listed {
    volume: Arc<Volume>,
    layer: u32,
}

/// A transaction that changes volumes and layers: what the object index is told, and what memory takes over then.
#[derive(Debug, Default)]
pub(crate) struct Restructuring {
    changes: Vec<Change>,
    nodes: Vec<(u32, Option<Arc<Node>>)>,
}

impl Restructuring {
    /// A layer is new, or has another shape.
    pub(crate) fn put(&mut self, node: Node) {
        let mappings = *node.mappings.lock();
        self.changes.push(node.change(mappings));
        self.nodes.push((node.number, Some(Arc::new(node))));
    }

    /// A layer is gone.
    pub(crate) fn remove(&mut self, node: &Node) {
        let (partition, key, _) = node.change(0);
        self.changes.push((partition, key, None));
        self.nodes.push((node.number, None));
    }

    /// Anything else.
    pub(crate) fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Makes it visible to everybody.
    pub(crate) fn submit(self, shared: &Shared) -> Result<()> {
        shared.engine.submit(Transaction { changes: self.changes, references: Vec::new() })?;
        shared.layers.replace(&self.nodes);
        Ok(())
    }
}

/// Who needs a layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Users {
    /// Volumes that stand on it, those that are frozen at a moment included.
    pub(crate) volumes: usize,
    /// Layers that lie upon it.
    pub(crate) children: Vec<u32>,
}

/// Reads the record of a volume; `list` has those before it.
fn read_volume(
    shared: &Arc<Shared>,
    partition: u16,
    key: &[u8],
    value: &[u8],
    list: &BTreeMap<String, Listed>,
) -> Result<(String, Listed)> {
    let number = volume_number(key)?;
    let record = Record::decode(number, value)?;
    let name = record.name.clone();
    let object = || format!("the record of volume {number} ({name:?})");
    let layer = record.layer;
    let Some(node) = shared.layers.get(layer).filter(|node| !node.layer.is_dropped) else { return Err(missing(object(), layer)) };
    if node.partition != partition || node.layer.block_bytes != record.block_bytes {
        let reason = format!("its layer {layer} is in partition {} with blocks of {} bytes", node.partition, node.layer.block_bytes);
        return Err(VolumeError::Damaged { object: object(), reason });
    }
    if let Some(other) = list.get(&name) {
        let reason = format!("volume {} has its name", other.volume.number);
        return Err(VolumeError::Damaged { object: object(), reason });
    }
    let volume = Volume::new(shared.clone(), number, partition, record)?;
    Ok((name.clone(), Listed { volume, layer }))
}

impl Volumes {
    /// Reads the list of volumes. Volumes whose records, or layers, are damaged are left out: [`Volumes::damaged`] tells of them.
    pub fn open(engine: Arc<Engine>, options: VolumesOptions) -> Result<Volumes> {
        let mut damaged = Vec::new();
        let shared = Arc::new(Shared::open(engine, options, &mut damaged)?);
        let mut list: BTreeMap<String, Listed> = BTreeMap::new();
        for_each_object(&shared.engine, VOLUMES_FROM, VOLUMES_TO, |partition, key, value| {
            match read_volume(&shared, partition, key, value, &list) {
                Ok((name, listed)) => drop(list.insert(name, listed)),
                Err(error @ VolumeError::Damaged { .. }) => damaged.push(error.to_string()),
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        let mut volumes = Volumes {
            shared,
            structure: Mutex::new(()),
            list: Mutex::new(list),
            frozen: Mutex::default(),
            damaged,
            cleaning: Mutex::new(()),
            waiting_cleaners: AtomicUsize::new(0),
            work: (Mutex::new(true), Condvar::new()),
        };
        volumes.leave_out_shared_layers();
        for problem in &volumes.damaged {
            tracing::error!("{problem}; the other volumes can be used");
        }
        Ok(volumes)
    }

    /// What is damaged of volumes and layers: these cannot be used. While there is something, no layer is given up, as it may be needed by one of them.
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// What somebody writes to must not be anybody else's.
    fn leave_out_shared_layers(&mut self) {
        let mut users = self.users();
        if self.damaged.is_empty() && !self.shared.engine.keeps_unused_layers() {
            // Layers that nobody stands on go. They are those of a snapshot or a clone of which a repair found nothing else, and a person let them go.
            let is_used: HashSet<u32> = users.keys().copied().collect();
            users.values_mut().for_each(|users| users.children.retain(|child| is_used.contains(child)));
        }
        let damaged = &mut self.damaged;
        self.list.get_mut().retain(|name, listed| {
            let users = users.get(&listed.layer).cloned().unwrap_or_default();
            let is_sound = listed.volume.is_read_only() || (users.volumes == 1 && users.children.is_empty());
            if !is_sound {
                let object = format!("the record of volume {} ({name:?})", listed.volume.number);
                let reason = format!("others use its layer {} too", listed.layer);
                damaged.push(VolumeError::Damaged { object, reason }.to_string());
            }
            is_sound
        });
    }

    /// Makes a volume of zeros; durable on return. `block_size` is a power of two from 64 KiB to 1 MiB
    /// ([`crate::DEFAULT_BLOCK_BYTES`] when nothing speaks for another); `chain` names the filters of its own chain.
    pub fn create(&self, name: &str, size: u64, block_size: u32, chain: Option<String>) -> Result<Arc<Volume>> {
        check_name(name)?;
        check_size(size)?;
        check_block_size(block_size)?;
        self.shared.engine.check_room()?;
        let chain = chain.unwrap_or_default();
        if chain.len() > MAX_CHAIN_BYTES {
            let why = format!("it has {} bytes, at most {MAX_CHAIN_BYTES} are possible", chain.len());
            return Err(EngineError::Invalid { what: "filter chain".into(), why }.into());
        }
        let structure = self.structure.lock();
        self.check_free(name)?;
        let (number, next) = self.numbers(2)?;
        let node = new_layer(number + 1, self.partition_of(number + 1), 0, 0, block_size);
        let record = Record {
            name: name.to_owned(),
            size_bytes: size,
            block_bytes: block_size,
            layer: node.number,
            kind: VolumeKind::Volume,
            is_read_only: false,
            origin: None,
            created_ns: now_ns(),
            chain,
        };
        let volume = Volume::new(self.shared.clone(), number, node.partition, record.clone())?;
        let mut change = Restructuring::default();
        next.into_iter().for_each(|next| change.change(next));
        change.put(node);
        change.change(volume.change(&record));
        change.submit(&self.shared)?;
        self.insert(volume.clone(), &record);
        drop(structure);
        self.shared.engine.flush()?;
        Ok(volume)
    }

    /// All volumes, sorted by name.
    pub fn list(&self) -> Vec<VolumeInfo> {
        let volumes: Vec<_> = self.list.lock().values().map(|listed| listed.volume.clone()).collect();
        let mut infos: Vec<VolumeInfo> = volumes.iter().map(|volume| volume.info()).collect();
        // The record has the name that the origin had then; one that is there goes by the name that it has now.
        let names: HashMap<u32, String> = infos.iter().map(|info| (info.number, info.name.clone())).collect();
        for origin in infos.iter_mut().filter_map(|info| info.origin.as_mut()) {
            names.get(&origin.number).into_iter().for_each(|now| origin.name.clone_from(now));
        }
        infos
    }

    /// The volume of a name.
    pub fn get(&self, name: &str) -> Result<Arc<Volume>> {
        let list = self.list.lock();
        list.get(name).map(|listed| listed.volume.clone()).ok_or_else(|| VolumeError::NotFound { name: name.to_owned() })
    }

    /// Changes the size of a volume: [`Volume::resize`].
    pub fn resize(&self, name: &str, size: u64) -> Result<()> {
        self.get(name)?.resize(size)
    }

    /// Gives a volume another name; durable on return. What was made of it keeps knowing it by its number.
    pub fn rename(&self, name: &str, new: &str) -> Result<()> {
        check_name(new)?;
        let structure = self.structure.lock();
        self.check_free(new)?;
        let volume = self.get(name)?;
        let mut gate = volume.gate.write();
        let record = Record { name: new.to_owned(), ..gate.record.clone() };
        let mut change = Restructuring::default();
        change.change(volume.change(&record));
        change.submit(&self.shared)?;
        self.list.lock().remove(name);
        self.insert(volume.clone(), &record);
        gate.record = record;
        drop(gate);
        drop(structure);
        let flushed = self.shared.engine.flush();
        flushed.map_err(|error| VolumeError::NotDurable { name: new.to_owned(), what: "is renamed", error: error.into() })
    }

    /// Writes out and makes durable what was written to all volumes.
    pub fn flush(&self) -> Result<()> {
        let volumes: Vec<_> = self.list.lock().values().map(|listed| listed.volume.clone()).collect();
        let mut result = Ok(());
        for volume in volumes {
            let flushed = volume.write_out_all();
            result = result.and(flushed);
        }
        result.and(Ok(self.shared.engine.flush()?))
    }

    /// Deletes a volume: on return it is gone for everybody, durably. What it alone held is given back by [`Volumes::resume_deletions`];
    /// snapshots and clones of it stay as they are. Refused in append-only mode. With [`VolumeError::NotDurable`] it is gone, but may be back after a crash.
    pub fn delete(&self, name: &str) -> Result<()> {
        let _permit = self.shared.engine.permit_deletion("delete volumes")?;
        let structure = self.structure.lock();
        let volume = self.get(name)?;
        let mut gate = volume.gate.write();
        let mut change = Restructuring::default();
        self.release(gate.record.layer, &mut change);
        change.change((volume.partition, volume_key(volume.number), None));
        change.submit(&self.shared)?;
        volume.close(&mut gate);
        self.list.lock().remove(name);
        drop(gate);
        drop(structure);
        self.notify_work();
        let flushed = self.shared.engine.flush();
        flushed.map_err(|error| VolumeError::NotDurable { name: name.to_owned(), what: "is deleted", error: error.into() })
    }

    /// Waits until something was deleted or rolled back since [`Volumes::resume_deletions`] began to look last, at most `timeout`. Returns whether
    /// something was.
    pub fn wait_for_work(&self, timeout: Duration) -> bool {
        let mut work = self.work.0.lock();
        if !*work {
            self.work.1.wait_for(&mut work, timeout);
        }
        *work
    }

    pub(crate) fn notify_work(&self) {
        *self.work.0.lock() = true;
        self.work.1.notify_all();
    }

    pub(crate) fn take_work(&self) {
        *self.work.0.lock() = false;
    }

    pub(crate) fn check_free(&self, name: &str) -> Result<()> {
        if self.list.lock().contains_key(name) { Err(VolumeError::Exists { name: name.to_owned() }) } else { Ok(()) }
    }

    /// Lists a volume, or that it stands on another layer.
    pub(crate) fn insert(&self, volume: Arc<Volume>, record: &Record) {
        self.list.lock().insert(record.name.clone(), Listed { volume, layer: record.layer });
    }

    /// The first of `count` numbers that nothing has, and the changes that use them.
    ///
    /// The number that the object index says is next may be too small after a repair: then objects tell which numbers are taken. What was lost of maps with the new
    /// numbers is given up, as nobody can have it any more.
    pub(crate) fn numbers(&self, count: u32) -> Result<(u32, Vec<Change>)> {
        let engine = &self.shared.engine;
        let said = engine.get(NEXT_NUMBER_PARTITION, NEXT_NUMBER_KEY)?;
        let nodes = self.shared.layers.all();
        let used = nodes.iter().flat_map(|node| node.layer.maps().chain([node.number])).max().unwrap_or(0);
        let mut first = said.map_or(Ok(1), |value| decode_number(&value))?.max(used.checked_add(1).ok_or(VolumeError::NoNumberLeft)?);
        let mut is_free = false;
        while !is_free {
            is_free = true;
            for (partition, kind) in (0..engine.object_partitions()).flat_map(|partition| NUMBERED.map(|kind| (partition, kind))) {
                while let Some(taken) = first_number(engine, partition, kind, first)? {
                    is_free = false;
                    first = taken.checked_add(1).ok_or(VolumeError::NoNumberLeft)?;
                }
            }
        }
        let next = first.checked_add(count).ok_or(VolumeError::NoNumberLeft)?;
        let mut changes = vec![(NEXT_NUMBER_PARTITION, NEXT_NUMBER_KEY.to_vec(), Some(encode_number(next)))];
        for partition in 0..engine.object_partitions() {
            changes.extend(engine.give_up_lost(partition, &mapping_key(first, 0), &mapping_key(next, 0))?);
        }
        Ok((first, changes))
    }

    /// The partition of the object index for a layer that lies upon no other.
    fn partition_of(&self, layer: u32) -> u16 {
        (layer % u32::from(self.shared.engine.object_partitions().max(1))) as u16
    }

    /// The volume that writes to a layer.
    pub(crate) fn writer_of(&self, layer: u32) -> Option<Arc<Volume>> {
        let list = self.list.lock();
        list.values().find(|listed| listed.layer == layer && !listed.volume.is_read_only()).map(|listed| listed.volume.clone())
    }

    /// Who needs which layer, those included who read it as it was at a moment.
    pub(crate) fn users(&self) -> HashMap<u32, Users> {
        let mut users = self.lasting_users();
        for (layer, count) in &*self.frozen.lock() {
            users.entry(*layer).or_default().volumes += count;
        }
        users
    }

    /// Who needs which layer for longer than this process lives.
    fn lasting_users(&self) -> HashMap<u32, Users> {
        let mut users: HashMap<u32, Users> = HashMap::new();
        for listed in self.list.lock().values() {
            users.entry(listed.layer).or_default().volumes += 1;
        }
        for node in self.shared.layers.all().into_iter().filter(|node| node.layer.parent != 0) {
            users.entry(node.layer.parent).or_default().children.push(node.number);
        }
        users
    }

    /// A volume leaves a layer: marks it as dropped if nobody else needs it, and so on down.
    /// While something is damaged nobody knows who needs it: then it stays, and is found later to be needed by nobody.
    pub(crate) fn release(&self, layer: u32, change: &mut Restructuring) {
        if !self.damaged.is_empty() {
            return;
        }
        for node in self.of_one_user(layer, &self.users()) {
            change.put(node.with(Layer { parent: 0, overlap_blocks: 0, is_dropped: true, ..node.layer.clone() }));
        }
    }

    /// The layers that nobody needs but whoever uses this one, from it on down.
    fn of_one_user(&self, layer: u32, users: &HashMap<u32, Users>) -> Vec<Arc<Node>> {
        let has_one = |node: &Arc<Node>| users.get(&node.number).map_or(0, |users| users.volumes + users.children.len()) <= 1;
        let one = |layer| self.shared.layers.get(layer).filter(has_one);
        std::iter::successors(one(layer), |node| one(node.layer.parent)).collect()
    }

    /// Bytes of the blocks that no other volume needs: what goes when this one is deleted.
    pub fn held_alone(&self, volume: &Volume) -> u64 {
        let layer = volume.gate.read().record.layer;
        let blocks: u64 = self.of_one_user(layer, &self.lasting_users()).iter().map(|node| *node.mappings.lock()).sum();
        blocks.saturating_mul(volume.block_bytes() as u64)
    }
}

/// First bytes of keys that go on with the number of a volume, a layer or a map.
const NUMBERED: [u8; 3] = [b'v', b'l', b'm'];

/// The number in the first key that begins with `kind` and has at least the number `from`, as far as keys can be known.
fn first_number(engine: &Engine, partition: u16, kind: u8, from: u32) -> Result<Option<u32>> {
    let (mut from, end) = ([&[kind], from.to_be_bytes().as_slice()].concat(), [kind + 1]);
    loop {
        let lost = engine.first_lost(partition, &from, &end)?;
        let to = lost.as_ref().map_or(end.as_slice(), |(gap, _)| gap);
        if let Some((key, _)) = engine.range(partition, &from, to, 1)?.pop() {
            let number = key.get(1..5).and_then(|number| number.try_into().ok()).map(u32::from_be_bytes);
            let too_short = || VolumeError::Damaged { object: format!("the key {key:02x?}"), reason: "it has no number".into() };
            return Ok(Some(number.ok_or_else(too_short)?));
        }
        match lost {
            Some((_, behind)) => from = behind,
            None => return Ok(None),
        }
    }
}

/// A layer without mappings upon `parent`, of which so many blocks show through.
pub(crate) fn new_layer(number: u32, partition: u16, parent: u32, overlap_blocks: u64, block_bytes: u32) -> Node {
    let layer = Layer { parent, overlap_blocks, block_bytes, is_dropped: false, mappings: 0, map: number, merging: None };
    Node::new(number, partition, layer)
}

pub(crate) fn now_ns() -> i64 {
    // A clock before 1970 or after 2262 is wrong anyway; a volume can be made all the same.
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}
