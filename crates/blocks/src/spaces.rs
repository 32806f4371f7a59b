//! The spaces of a store, of all kinds: creates, finds, renames and deletes them by name.
//!
//! Invariants:
//! * A space is open once in a process: all callers get the same [`Space`], so there is one buffer and one lock for
//!   each block.
//! * Opening registers every space, whatever its kind. So a layer in use is never taken for unused, whoever opens the
//!   store.
//! * Names are unique among the spaces of an owner. Numbers of spaces, layers and maps are never reused.
//! * Every creation or removal of spaces and layers is one transaction, under the lock `structure`. After a crash it
//!   happened or it did not.
//! * A layer is marked as dropped in the transaction that removes its last user. Only then do its mappings go
//!   ([`Spaces::resume_deletions`]).

use crate::entry::{entries_end, entry_key};
use crate::error::{Result, SpaceError};
use crate::layer::{LAYERS_FROM, Layer};
use crate::layers::{Node, for_each_object, missing};
use crate::mapping::{FAMILIES, keys_under};
use crate::options::SpacesOptions;
use crate::record::{
    MAX_CHAIN_BYTES, NEXT_NUMBER_KEY, NEXT_NUMBER_PARTITION, Owner, Record, SPACES_FROM, SPACES_TO, SpaceKind, check_block_size, check_end,
    check_name, decode_number, encode_number, space_key, space_number,
};
use crate::shared::Shared;
use crate::space::Space;
use onefold_engine::{Change, DeletionPermit, Engine, EngineError, Transaction};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The spaces of a store.
#[derive(Debug)]
pub struct Spaces {
    pub(crate) shared: Arc<Shared>,
    /// Held by every change of the list or the layers. Taken before the gates of spaces.
    pub(crate) structure: Mutex<()>,
    /// Held only for one lookup or change.
    list: Mutex<BTreeMap<(Owner, String), Listed>>,
    /// The layers that readers of frozen spaces use ([`crate::frozen`]), with the number of readers. Held only for one
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

/// A space as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Its number. No other space ever has it, whatever the names.
    pub number: u32,
    /// Its record.
    pub record: Record,
}

/// A space to be created.
#[derive(Clone, Debug)]
pub struct NewSpace<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its kind.
    pub kind: SpaceKind,
    /// The byte at which it ends, if it is to have an end.
    pub end_bytes: Option<u64>,
    /// The size of a block: a power of two from 64 KiB to 1 MiB.
    pub block_bytes: u32,
    /// The filters of its own chain. `None`: the store's.
    pub chain: Option<String>,
}

#[derive(Debug)]
struct Listed {
    space: Arc<Space>,
    layer: u32,
}

/// A transaction that changes spaces and layers: the changes of the object index, and the changes of memory that
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
    /// Spaces on top of it, of any kind, including frozen ones.
    pub(crate) spaces: usize,
    /// Layers on top of it.
    pub(crate) children: Vec<u32>,
}

/// Reads the record of a space. `list` has the spaces read before it.
fn read_space(
    shared: &Arc<Shared>,
    partition: u16,
    key: &[u8],
    value: &[u8],
    list: &BTreeMap<(Owner, String), Listed>,
) -> Result<((Owner, String), Listed)> {
    let number = space_number(key)?;
    let record = Record::decode(number, value)?;
    let name = record.name.clone();
    let (kind, key) = (record.kind, (record.kind.owner(), name.clone()));
    let object = || format!("the record of {} ({name:?})", kind.called(number));
    let layer = record.layer;
    let Some(node) = shared.layers.get(layer).filter(|node| !node.layer.is_dropped) else { return Err(missing(object(), layer)) };
    if node.partition != partition || node.layer.block_bytes != record.block_bytes {
        let reason = format!("its layer {layer} is in partition {} with blocks of {} bytes", node.partition, node.layer.block_bytes);
        return Err(SpaceError::Damaged { object: object(), reason });
    }
    if let Some(other) = list.get(&key) {
        let reason = format!("{} has the same name", other.space.called());
        return Err(SpaceError::Damaged { object: object(), reason });
    }
    let space = Space::new(shared.clone(), number, partition, record)?;
    Ok((key, Listed { space, layer }))
}

impl Spaces {
    /// Reads the list of spaces. Spaces with damaged records or layers are left out; [`Spaces::damaged`] reports
    /// them.
    pub fn open(engine: Arc<Engine>, options: SpacesOptions) -> Result<Spaces> {
        let mut damaged = Vec::new();
        let shared = Arc::new(Shared::open(engine, options, &mut damaged)?);
        let mut list: BTreeMap<(Owner, String), Listed> = BTreeMap::new();
        for_each_object(&shared.engine, SPACES_FROM, SPACES_TO, |partition, key, value| {
            match read_space(&shared, partition, key, value, &list) {
                Ok((key, listed)) => drop(list.insert(key, listed)),
                Err(error @ SpaceError::Damaged { .. }) => damaged.push(error.to_string()),
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        let mut spaces = Spaces {
            shared,
            structure: Mutex::new(()),
            list: Mutex::new(list),
            frozen: Mutex::default(),
            damaged,
            cleaning: Mutex::new(()),
            waiting_cleaners: AtomicUsize::new(0),
            work: (Mutex::new(true), Condvar::new()),
        };
        spaces.leave_out_shared_layers();
        spaces.give_up_entries_of_nobody()?;
        for problem in &spaces.damaged {
            tracing::error!("{problem}; the other volumes are usable");
        }
        Ok(spaces)
    }

    /// After a repair, keys of entries may count as lost although nobody has had any: volumes have none. Their layers
    /// would count as incomplete for ever.
    fn give_up_entries_of_nobody(&self) -> Result<()> {
        let engine = &self.shared.engine;
        let has_filesystem = || self.list.lock().keys().any(|(owner, _)| *owner == Owner::Filesystems);
        if !engine.is_writable() || !engine.has_lost() || engine.keeps_unused() || !self.damaged.is_empty() || has_filesystem() {
            return Ok(());
        }
        let (from, to) = (entry_key(0, &[]), entries_end(u32::MAX));
        for partition in 0..engine.object_partitions() {
            if let Some(change) = engine.give_up_lost(partition, &from, &to)? {
                engine.submit(Transaction { changes: vec![change], references: Vec::new() })?;
            }
        }
        Ok(())
    }

    /// Returns the damage of spaces and layers that cannot be used. As long as there is any, no layer is given up,
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
        self.list.get_mut().retain(|(_, name), listed| {
            let users = users.get(&listed.layer).cloned().unwrap_or_default();
            let is_sound = listed.space.is_read_only() || (users.spaces == 1 && users.children.is_empty());
            if !is_sound {
                let object = format!("the record of {} ({name:?})", listed.space.called());
                let reason = format!("other volumes also use its layer {}", listed.layer);
                damaged.push(SpaceError::Damaged { object, reason }.to_string());
            }
            is_sound
        });
    }

    /// Returns the engine of the store.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    /// Creates a space of zeros. Durable on return.
    pub fn create(&self, new: NewSpace<'_>) -> Result<Arc<Space>> {
        let NewSpace { name, kind, end_bytes, block_bytes, chain } = new;
        check_name(name)?;
        check_end(kind, end_bytes)?;
        check_block_size(block_bytes)?;
        self.shared.engine.check_room()?;
        let chain = chain.unwrap_or_default();
        if chain.len() > MAX_CHAIN_BYTES {
            let why = format!("it has {} bytes; the limit is {MAX_CHAIN_BYTES} bytes", chain.len());
            return Err(EngineError::Invalid { what: "filter chain".into(), why }.into());
        }
        let structure = self.structure.lock();
        self.check_free(kind.owner(), name)?;
        let (number, next) = self.numbers(2)?;
        let node = new_layer(number + 1, self.partition_of(number + 1), 0, 0, block_bytes);
        let record = Record {
            name: name.to_owned(),
            end_bytes,
            block_bytes,
            layer: node.number,
            kind,
            is_read_only: false,
            origin: None,
            created_ns: now_ns(),
            chain,
        };
        let space = Space::new(self.shared.clone(), number, node.partition, record.clone())?;
        let mut change = Restructuring::default();
        next.into_iter().for_each(|next| change.change(next));
        change.put(node);
        change.change(space.change(&record));
        change.submit(&self.shared)?;
        self.insert(space.clone(), &record);
        drop(structure);
        self.shared.engine.flush()?;
        Ok(space)
    }

    /// All spaces, sorted by owner and name.
    pub fn list(&self) -> Vec<SpaceInfo> {
        self.listed().into_iter().map(|(_, info)| info).collect()
    }

    /// Like [`Spaces::list`], with the spaces.
    pub(crate) fn listed(&self) -> Vec<(Arc<Space>, SpaceInfo)> {
        let spaces = self.all();
        let mut listed: Vec<_> = spaces.into_iter().map(|space| (space.clone(), space.info())).collect();
        // The record has the origin's name at that time. If the origin still exists, show its current name.
        let names: HashMap<u32, String> = listed.iter().map(|(_, info)| (info.number, info.record.name.clone())).collect();
        for origin in listed.iter_mut().filter_map(|(_, info)| info.record.origin.as_mut()) {
            names.get(&origin.number).into_iter().for_each(|now| origin.name.clone_from(now));
        }
        listed
    }

    pub(crate) fn all(&self) -> Vec<Arc<Space>> {
        self.list.lock().values().map(|listed| listed.space.clone()).collect()
    }

    /// Returns the space of an owner with this name.
    pub fn get(&self, owner: Owner, name: &str) -> Result<Arc<Space>> {
        let list = self.list.lock();
        let found = list.get(&(owner, name.to_owned())).map(|listed| listed.space.clone());
        found.ok_or_else(|| SpaceError::NotFound { name: name.to_owned() })
    }

    /// Renames a space. Durable on return. Its snapshots and clones still know it by its number.
    pub fn rename(&self, owner: Owner, name: &str, new: &str) -> Result<()> {
        check_name(new)?;
        let structure = self.structure.lock();
        self.check_free(owner, new)?;
        let space = self.get(owner, name)?;
        let mut gate = space.gate.write();
        let record = Record { name: new.to_owned(), ..gate.record.clone() };
        let mut change = Restructuring::default();
        change.change(space.change(&record));
        change.submit(&self.shared)?;
        self.remove(owner, name);
        self.insert(space.clone(), &record);
        gate.record = record;
        drop(gate);
        drop(structure);
        let flushed = self.shared.engine.flush();
        flushed.map_err(|error| SpaceError::NotDurable { name: new.to_owned(), what: "is renamed", error: error.into() })
    }

    /// Writes out everything written to all spaces and makes it durable.
    pub fn flush(&self) -> Result<()> {
        let mut result = Ok(());
        for space in self.all() {
            let flushed = space.write_out_all();
            result = result.and(flushed);
        }
        result.and(Ok(self.shared.engine.flush()?))
    }

    /// Deletes a space. On return it is gone for all users, durably. [`Spaces::resume_deletions`] frees the data that
    /// only this space held. Its snapshots and clones stay. Errors: after [`SpaceError::NotDurable`] it is gone, but
    /// may reappear after a crash.
    pub fn delete(&self, owner: Owner, name: &str, _permit: DeletionPermit<'_>) -> Result<()> {
        let structure = self.structure.lock();
        let space = self.get(owner, name)?;
        let mut gate = space.gate.write();
        let mut change = Restructuring::default();
        self.release(gate.record.layer, &mut change);
        change.change((space.partition, space_key(space.number), None));
        change.submit(&self.shared)?;
        space.close(&mut gate);
        self.remove(owner, name);
        drop(gate);
        drop(structure);
        self.notify_work();
        let flushed = self.shared.engine.flush();
        flushed.map_err(|error| SpaceError::NotDurable { name: name.to_owned(), what: "is deleted", error: error.into() })
    }

    /// Waits, for at most `timeout`, until something was deleted or rolled back since [`Spaces::resume_deletions`]
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

    pub(crate) fn check_free(&self, owner: Owner, name: &str) -> Result<()> {
        match self.get(owner, name) {
            Ok(_) => Err(SpaceError::Exists { name: name.to_owned() }),
            Err(_) => Ok(()),
        }
    }

    /// Adds a space to the list, or records that it has another layer.
    pub(crate) fn insert(&self, space: Arc<Space>, record: &Record) {
        let key = (record.kind.owner(), record.name.clone());
        self.list.lock().insert(key, Listed { space, layer: record.layer });
    }

    fn remove(&self, owner: Owner, name: &str) {
        self.list.lock().remove(&(owner, name.to_owned()));
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
        let mut first = said.map_or(Ok(1), |value| decode_number(&value))?.max(used.checked_add(1).ok_or(SpaceError::NoNumberLeft)?);
        let mut is_free = false;
        while !is_free {
            is_free = true;
            for (partition, kind) in (0..engine.object_partitions())
                .flat_map(|partition| NUMBERED.into_iter().chain(FAMILIES).map(move |kind| (partition, kind)))
            {
                while let Some(taken) = first_number(engine, partition, kind, first)? {
                    is_free = false;
                    first = taken.checked_add(1).ok_or(SpaceError::NoNumberLeft)?;
                }
            }
        }
        let next = first.checked_add(count).ok_or(SpaceError::NoNumberLeft)?;
        let mut changes = vec![(NEXT_NUMBER_PARTITION, NEXT_NUMBER_KEY.to_vec(), Some(encode_number(next)))];
        for partition in 0..engine.object_partitions() {
            for ((from, _), (to, _)) in keys_under(first).iter().zip(&keys_under(next)) {
                changes.extend(engine.give_up_lost(partition, from, to)?);
            }
        }
        Ok((first, changes))
    }

    /// Returns the partition of the object index for a layer without a parent.
    fn partition_of(&self, layer: u32) -> u16 {
        (layer % u32::from(self.shared.engine.object_partitions().max(1))) as u16
    }

    /// Returns the space that writes to a layer.
    pub(crate) fn writer_of(&self, layer: u32) -> Option<Arc<Space>> {
        let list = self.list.lock();
        list.values().find(|listed| listed.layer == layer && !listed.space.is_read_only()).map(|listed| listed.space.clone())
    }

    /// Returns the users of each layer, including readers of frozen spaces.
    pub(crate) fn users(&self) -> HashMap<u32, Users> {
        let mut users = self.lasting_users();
        for (layer, count) in &*self.frozen.lock() {
            users.entry(*layer).or_default().spaces += count;
        }
        users
    }

    /// Returns the users of each layer that outlive this process.
    fn lasting_users(&self) -> HashMap<u32, Users> {
        let mut users: HashMap<u32, Users> = HashMap::new();
        for listed in self.list.lock().values() {
            users.entry(listed.layer).or_default().spaces += 1;
        }
        for node in self.shared.layers.all().into_iter().filter(|node| node.layer.parent != 0) {
            users.entry(node.layer.parent).or_default().children.push(node.number);
        }
        users
    }

    /// Removes a space's use of a layer: marks the layer as dropped if nobody else needs it, and so on down. While
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
        let has_one = |node: &Arc<Node>| users.get(&node.number).map_or(0, |users| users.spaces + users.children.len()) <= 1;
        let one = |layer| self.shared.layers.get(layer).filter(has_one);
        std::iter::successors(one(layer), |node| one(node.layer.parent)).collect()
    }

    /// Returns the bytes of the blocks that no other space needs. Deleting this space frees them. Each entry counts as
    /// a block, so this says little of a filesystem.
    pub fn held_alone(&self, space: &Space) -> u64 {
        let layer = space.gate.read().record.layer;
        let blocks: u64 = self.of_one_user(layer, &self.lasting_users()).iter().map(|node| *node.mappings.lock()).sum();
        blocks.saturating_mul(space.block_bytes() as u64)
    }
}

/// First bytes of keys that continue with the number of a space or a layer. Those of [`FAMILIES`] continue with the
/// number of a map.
const NUMBERED: [u8; 2] = [SPACES_FROM[0], LAYERS_FROM[0]];

/// Returns the number in the first key that begins with `kind` and has at least the number `from`, as far as keys are
/// known.
fn first_number(engine: &Engine, partition: u16, kind: u8, from: u32) -> Result<Option<u32>> {
    let (mut from, end) = ([&[kind], from.to_be_bytes().as_slice()].concat(), [kind + 1]);
    loop {
        let lost = engine.first_lost(partition, &from, &end)?;
        let to = lost.as_ref().map_or(end.as_slice(), |(gap, _)| gap);
        if let Some((key, _)) = engine.range(partition, &from, to, 1)?.pop() {
            let number = key.get(1..5).and_then(|number| number.try_into().ok()).map(u32::from_be_bytes);
            let too_short = || SpaceError::Damaged { object: format!("the key {key:02x?}"), reason: "it has no number".into() };
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
    // A clock before 1970 or after 2262 is wrong, but must not prevent creating a space.
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}
