//! The volumes of a store: creates, finds, resizes and deletes them by name.
//!
//! Invariants:
//! * A volume is open once in a process: all callers get the same [`Volume`], so there is one buffer and one lock for
//!   each block.
//! * Names are unique. Numbers of volumes, layers and maps are never reused.
//! * Every creation or removal of volumes and layers is one transaction, under the lock `structure`. After a crash it
//!   happened or it did not.
//! * A layer is marked as dropped in the transaction that removes its last user. Only then do its mappings go
//!   ([`Volumes::resume_deletions`]).

use crate::error::{Result, VolumeError};
use crate::info::VolumeInfo;
use crate::layer::Layer;
use crate::layers::{Node, for_each_object, missing};
use crate::mapping::mapping_key;
use crate::options::VolumesOptions;
use crate::record::{
    MAX_CHAIN_BYTES, NEXT_NUMBER_KEY, NEXT_NUMBER_PARTITION, Record, VOLUMES_FROM, VOLUMES_TO, VolumeKind, check_block_size, check_name,
    check_size, decode_number, encode_number, volume_key, volume_number,
};
use crate::volume::{Shared, Volume};
use onefold_engine::{Change, Engine, EngineError, Transaction};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The volumes of a store.
#[derive(Debug)]
pub struct Volumes {
    pub(crate) shared: Arc<Shared>,
    /// Held by every change of the list or the layers. Taken before the gates of volumes.
    pub(crate) structure: Mutex<()>,
    /// Held only for one lookup or change.
    list: Mutex<BTreeMap<String, Listed>>,
    /// The layers that readers of frozen volumes use ([`crate::frozen`]), with the number of readers. Held only for one
    /// lookup or change.
    pub(crate) frozen: Mutex<HashMap<u32, usize>>,
    /// What was left out of the list.
    damaged: Vec<String>,
    /// Only one cleaning runs at a time in a process.
    pub(crate) cleaning: Mutex<()>,
    /// The number of callers that wait for it.
    pub(crate) waiting_cleaners: AtomicUsize,
    /// Whether there may be something to clean.
    work: (Mutex<bool>, Condvar),
}

#[derive(Debug)]
struct Listed {
    volume: Arc<Volume>,
    layer: u32,
}

/// A transaction that changes volumes and layers: the changes of the object index, and the changes of memory that
/// follow.
#[derive(Debug, Default)]
pub(crate) struct Restructuring {
    changes: Vec<Change>,
    nodes: Vec<(u32, Option<Arc<Node>>)>,
}

impl Restructuring {
    /// Adds a new layer, or a layer with a new shape.
    pub(crate) fn put(&mut self, node: Node) {
        let mappings = *node.mappings.lock();
        self.changes.push(node.change(mappings));
        self.nodes.push((node.number, Some(Arc::new(node))));
    }

    /// Removes a layer.
    pub(crate) fn remove(&mut self, node: &Node) {
        let (partition, key, _) = node.change(0);
        self.changes.push((partition, key, None));
        self.nodes.push((node.number, None));
    }

    /// Adds any other change.
    pub(crate) fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Submits the transaction, then makes the changes visible.
    pub(crate) fn submit(self, shared: &Shared) -> Result<()> {
        shared.engine.submit(Transaction { changes: self.changes, references: Vec::new() })?;
        shared.layers.replace(&self.nodes);
        Ok(())
    }
}

/// The users of a layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Users {
    /// Volumes on top of it, including frozen ones.
    pub(crate) volumes: usize,
    /// Layers on top of it.
    pub(crate) children: Vec<u32>,
}

/// Reads the record of a volume. `list` has the volumes read before it.
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
        let reason = format!("volume {} has the same name", other.volume.number);
        return Err(VolumeError::Damaged { object: object(), reason });
    }
    let volume = Volume::new(shared.clone(), number, partition, record)?;
    Ok((name.clone(), Listed { volume, layer }))
}

impl Volumes {
    /// Reads the list of volumes. Volumes with damaged records or layers are left out; [`Volumes::damaged`] reports
    /// them.
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
            tracing::error!("{problem}; the other volumes are usable");
        }
        Ok(volumes)
    }

    /// Returns the damage of volumes and layers that cannot be used. As long as there is any, no layer is given up,
    /// because one of them may need it.
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// A layer with a writer must have no other user.
    fn leave_out_shared_layers(&mut self) {
        let mut users = self.users();
        if self.damaged.is_empty() && !self.shared.engine.keeps_unused() {
            // Layers without a user go. They belong to a snapshot or a clone of which a repair found nothing else, and
            // a user gave it up.
            let is_used: HashSet<u32> = users.keys().copied().collect();
            users.values_mut().for_each(|users| users.children.retain(|child| is_used.contains(child)));
        }
        let damaged = &mut self.damaged;
        self.list.get_mut().retain(|name, listed| {
            let users = users.get(&listed.layer).cloned().unwrap_or_default();
            let is_sound = listed.volume.is_read_only() || (users.volumes == 1 && users.children.is_empty());
            if !is_sound {
                let object = format!("the record of volume {} ({name:?})", listed.volume.number);
                let reason = format!("other volumes also use its layer {}", listed.layer);
                damaged.push(VolumeError::Damaged { object, reason }.to_string());
            }
            is_sound
        });
    }

    /// Creates a volume of zeros. Durable on return. `block_size` is a power of two from 64 KiB to 1 MiB
    /// ([`crate::DEFAULT_BLOCK_BYTES`] is the usual choice). `chain` names the filters of its own chain.
    pub fn create(&self, name: &str, size: u64, block_size: u32, chain: Option<String>) -> Result<Arc<Volume>> {
        check_name(name)?;
        check_size(size)?;
        check_block_size(block_size)?;
        self.shared.engine.check_room()?;
        let chain = chain.unwrap_or_default();
        if chain.len() > MAX_CHAIN_BYTES {
            let why = format!("it has {} bytes; the limit is {MAX_CHAIN_BYTES} bytes", chain.len());
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
        // The record has the origin's name at that time. If the origin still exists, show its current name.
        let names: HashMap<u32, String> = infos.iter().map(|info| (info.number, info.name.clone())).collect();
        for origin in infos.iter_mut().filter_map(|info| info.origin.as_mut()) {
            names.get(&origin.number).into_iter().for_each(|now| origin.name.clone_from(now));
        }
        infos
    }

    /// Returns the volume with this name.
    pub fn get(&self, name: &str) -> Result<Arc<Volume>> {
        let list = self.list.lock();
        list.get(name).map(|listed| listed.volume.clone()).ok_or_else(|| VolumeError::NotFound { name: name.to_owned() })
    }

    /// Changes the size of a volume; see [`Volume::resize`].
    pub fn resize(&self, name: &str, size: u64) -> Result<()> {
        self.get(name)?.resize(size)
    }

    /// Renames a volume. Durable on return. Its snapshots and clones still know it by its number.
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

    /// Writes out everything written to all volumes and makes it durable.
    pub fn flush(&self) -> Result<()> {
        let volumes: Vec<_> = self.list.lock().values().map(|listed| listed.volume.clone()).collect();
        let mut result = Ok(());
        for volume in volumes {
            let flushed = volume.write_out_all();
            result = result.and(flushed);
        }
        result.and(Ok(self.shared.engine.flush()?))
    }

    /// Deletes a volume. On return it is gone for all clients, durably. [`Volumes::resume_deletions`] frees the data
    /// that only this volume held. Its snapshots and clones stay. Errors: append-only mode refuses it. After
    /// [`VolumeError::NotDurable`] it is gone, but may reappear after a crash.
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

    /// Waits, for at most `timeout`, until something was deleted or rolled back since [`Volumes::resume_deletions`]
    /// last looked. Returns whether something was.
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

    /// Adds a volume to the list, or records that it has another layer.
    pub(crate) fn insert(&self, volume: Arc<Volume>, record: &Record) {
        self.list.lock().insert(record.name.clone(), Listed { volume, layer: record.layer });
    }

    /// Returns the first of `count` unused numbers, and the changes that take them.
    ///
    /// After a repair, the next number in the object index may be too small. Then the objects tell which numbers are
    /// taken. Lost parts of maps with the new numbers are given up, because nobody can have them any more.
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

    /// Returns the partition of the object index for a layer without a parent.
    fn partition_of(&self, layer: u32) -> u16 {
        (layer % u32::from(self.shared.engine.object_partitions().max(1))) as u16
    }

    /// Returns the volume that writes to a layer.
    pub(crate) fn writer_of(&self, layer: u32) -> Option<Arc<Volume>> {
        let list = self.list.lock();
        list.values().find(|listed| listed.layer == layer && !listed.volume.is_read_only()).map(|listed| listed.volume.clone())
    }

    /// Returns the users of each layer, including readers of frozen volumes.
    pub(crate) fn users(&self) -> HashMap<u32, Users> {
        let mut users = self.lasting_users();
        for (layer, count) in &*self.frozen.lock() {
            users.entry(*layer).or_default().volumes += count;
        }
        users
    }

    /// Returns the users of each layer that outlive this process.
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

    /// Removes a volume's use of a layer: marks the layer as dropped if nobody else needs it, and so on down. While
    /// something is damaged, its users are unknown. Then the layer stays, and is found to be unused later.
    pub(crate) fn release(&self, layer: u32, change: &mut Restructuring) {
        if !self.damaged.is_empty() {
            return;
        }
        for node in self.of_one_user(layer, &self.users()) {
            change.put(node.with(Layer { parent: 0, overlap_blocks: 0, is_dropped: true, ..node.layer.clone() }));
        }
    }

    /// Returns the layers that only the user of this layer needs, from this one on down.
    fn of_one_user(&self, layer: u32, users: &HashMap<u32, Users>) -> Vec<Arc<Node>> {
        let has_one = |node: &Arc<Node>| users.get(&node.number).map_or(0, |users| users.volumes + users.children.len()) <= 1;
        let one = |layer| self.shared.layers.get(layer).filter(has_one);
        std::iter::successors(one(layer), |node| one(node.layer.parent)).collect()
    }

    /// Returns the bytes of the blocks that no other volume needs. Deleting this volume frees them.
    pub fn held_alone(&self, volume: &Volume) -> u64 {
        let layer = volume.gate.read().record.layer;
        let blocks: u64 = self.of_one_user(layer, &self.lasting_users()).iter().map(|node| *node.mappings.lock()).sum();
        blocks.saturating_mul(volume.block_bytes() as u64)
    }
}

/// First bytes of keys that continue with the number of a volume, a layer or a map.
const NUMBERED: [u8; 3] = [b'v', b'l', b'm'];

/// Returns the number in the first key that begins with `kind` and has at least the number `from`, as far as keys are
/// known.
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

/// Returns a layer without mappings on top of `parent`, of which this many blocks show through.
pub(crate) fn new_layer(number: u32, partition: u16, parent: u32, overlap_blocks: u64, block_bytes: u32) -> Node {
    let layer = Layer { parent, overlap_blocks, block_bytes, is_dropped: false, mappings: 0, map: number, merging: None };
    Node::new(number, partition, layer)
}

pub(crate) fn now_ns() -> i64 {
    // A clock before 1970 or after 2262 is wrong, but must not prevent creating a volume.
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}
