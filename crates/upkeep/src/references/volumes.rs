//! The volumes, filesystems and layers of a store as `check` sees them: which of them show which layers, and which
//! layers cannot be shown (M0.21). What is said of volumes here holds for filesystems too.

use super::{Gap, Kind, objects};
use onefold_blocks::{Layer, Owner, Record, SpaceInfo};
use onefold_engine::Moment;
use std::collections::{BTreeSet, HashMap};

/// The volumes and the layers of a store, including layers that are being dropped.
#[derive(Debug, Default)]
pub(crate) struct VolumeList {
    by_number: HashMap<u32, SpaceInfo>,
    layers: HashMap<u32, Layer>,
    /// Map -> the layer that has it.
    owners: HashMap<u32, u32>,
    /// Whether all records could be read.
    is_complete: bool,
}

/// Reads volumes and layers. Passes unreadable and inconsistent records to `problem`.
pub(crate) fn volumes(moment: &Moment<'_>, problem: &mut dyn FnMut(String)) -> VolumeList {
    let mut list = VolumeList::default();
    let (mut problems, mut gaps) = (Vec::new(), Vec::new());
    let number = |key: &[u8]| key.get(1..).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    let mut layer = |key: &[u8], value: &[u8]| match number(key) {
        Some(number) => match Layer::decode(number, value) {
            Ok(layer) => drop(list.layers.insert(number, layer)),
            Err(error) => problems.push(format!("the record of layer {number} cannot be read: {error}")),
        },
        None => problems.push("the object index has a layer with an unreadable key".into()),
    };
    objects(moment, Kind::Layer, &mut layer, &mut |gap| gaps.push(gap));
    let mut volume = |key: &[u8], value: &[u8]| match number(key) {
        Some(number) => match Record::decode(number, value) {
            Ok(record) => drop(list.by_number.insert(number, SpaceInfo { number, record })),
            Err(error) => problems.push(format!("the record of volume number {number} cannot be read: {error}")),
        },
        None => problems.push("the object index has a volume with an unreadable key".into()),
    };
    objects(moment, Kind::Volume, &mut volume, &mut |gap| gaps.push(gap));
    list.is_complete = problems.is_empty() && gaps.is_empty();
    for (number, layer) in &list.layers {
        for map in maps(layer) {
            if let Some(other) = list.owners.insert(map, *number) {
                problems.push(format!("layers {} and {} both have map {map}", other.min(*number), other.max(*number)));
            }
        }
    }
    problems.extend(gaps.iter().map(|gap| gap.describe(&list)));
    list.misfits(&mut problems);
    problems.sort();
    problems.into_iter().for_each(problem);
    list
}

/// The maps of a layer.
fn maps(layer: &Layer) -> impl Iterator<Item = u32> {
    std::iter::once(layer.map).chain(layer.merging.map(|other| other.map))
}

/// Returns what messages call a volume or a filesystem.
pub(crate) fn named(info: &SpaceInfo) -> String {
    format!("{} {:?}", info.record.kind.owner().noun(), info.record.name)
}

/// Returns the names of volumes, in a message that says that they are volumes. Filesystems are called so.
pub(crate) fn names(volumes: &[&SpaceInfo]) -> String {
    let name = |info: &&SpaceInfo| match info.record.kind.owner() {
        Owner::Volumes => format!("{:?}", info.record.name),
        Owner::Filesystems => named(info),
    };
    volumes.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl VolumeList {
    /// Adds inconsistencies to `problems`.
    fn misfits(&self, problems: &mut Vec<String>) {
        let mut users: HashMap<u32, usize> = HashMap::new();
        for info in self.by_number.values() {
            *users.entry(info.record.layer).or_default() += 1;
        }
        for layer in self.layers.values().filter(|layer| layer.parent != 0) {
            *users.entry(layer.parent).or_default() += 1;
        }
        let unfit = |number: u32, block_bytes: u32| match self.layers.get(&number) {
            None if self.is_complete => Some("which does not exist".to_owned()),
            None => Some("which cannot be read".to_owned()),
            Some(layer) if layer.is_dropped => Some("which is being dropped".to_owned()),
            Some(layer) if layer.block_bytes != block_bytes => Some(format!("which has blocks of {} bytes", layer.block_bytes)),
            Some(_) => None,
        };
        for info in self.by_number.values() {
            let (name, layer, block_bytes) = (named(info), info.record.layer, info.record.block_bytes);
            if let Some(why) = unfit(layer, block_bytes) {
                problems.push(format!("{name} with blocks of {block_bytes} bytes stands on layer {layer}, {why}"));
            }
            if !info.record.is_read_only && users[&layer] > 1 {
                problems.push(format!("{name} writes to layer {layer}, which other volumes also use"));
            }
        }
        for (number, layer) in &self.layers {
            if layer.parent != 0
                && let Some(why) = unfit(layer.parent, layer.block_bytes)
            {
                let names = VolumeList::below(&self.shown_by(*number));
                problems.push(format!("layer {number} ({names}) lies upon layer {}, {why}", layer.parent));
            }
            if !layer.is_dropped && self.is_complete && !users.contains_key(number) {
                problems.push(format!("layer {number} with {} block mappings and entries is used by no volume", layer.mappings));
            }
        }
    }

    /// Returns the layers of a volume, from the top down.
    fn path(&self, volume: &SpaceInfo) -> impl Iterator<Item = (u32, &Layer)> {
        // Records whose parent number is not below their own are not read, so this ends.
        let get = |number: u32| self.layers.get(&number).map(|layer| (number, layer));
        std::iter::successors(get(volume.record.layer), move |(_, layer)| get(layer.parent))
    }

    /// Returns the volumes on top of a layer, by number.
    fn shown_by(&self, layer: u32) -> Vec<&SpaceInfo> {
        let mut found: Vec<_> = self.by_number.values().filter(|info| self.path(info).any(|(number, _)| number == layer)).collect();
        found.sort_by_key(|info| info.number);
        found
    }

    fn below(volumes: &[&SpaceInfo]) -> String {
        if volumes.is_empty() { "below no known volume".to_owned() } else { format!("below {}", names(volumes)) }
    }

    /// Returns the layer that has a map, with its number.
    pub(crate) fn owner(&self, map: u32) -> Option<(u32, &Layer)> {
        let number = self.owners.get(&map)?;
        self.layers.get(number).map(|layer| (*number, layer))
    }

    /// Returns the volumes that get this block from this map, by number.
    pub(crate) fn showing(&self, moment: &Moment<'_>, map: u32, block: u64) -> Vec<&SpaceInfo> {
        let Some((owner, _)) = self.owner(map) else { return Vec::new() };
        let mut found = self.shown_by(owner);
        found.retain(|info| {
            let end = info.record.end_bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(u64::from(info.record.block_bytes)));
            block < end && self.source(moment, info, block) == Some(map)
        });
        found
    }

    /// Returns the map from which a volume gets a block.
    fn source(&self, moment: &Moment<'_>, volume: &SpaceInfo, block: u64) -> Option<u32> {
        let mut is_hidden = false;
        for (_, layer) in self.path(volume) {
            if is_hidden {
                return None;
            }
            let mut in_order: Vec<u32> = maps(layer).collect();
            if layer.merging.is_some_and(|other| other.is_upper) {
                in_order.reverse();
            }
            let found = in_order.into_iter().find(|map| value(moment, &mapping_key_of(*map, block)).is_some());
            if found.is_some() {
                return found;
            }
            is_hidden = block >= layer.overlap_blocks;
        }
        None
    }

    /// Returns volumes that may get mappings from maps `first` to `last`, with the map.
    pub(crate) fn with_maps(&self, first: u32, last: u32) -> Vec<(u32, &SpaceInfo)> {
        let owners = self.owners.iter().filter(|(map, _)| (first..=last).contains(*map));
        owners.flat_map(|(map, layer)| self.shown_by(*layer).into_iter().map(|info| (*map, info))).collect()
    }

    /// Returns whether a layer may have a map from `first` to `last`.
    pub(crate) fn may_have_maps(&self, first: u32, last: u32) -> bool {
        !self.is_complete || self.owners.keys().any(|map| (first..=last).contains(map))
    }

    /// Describes what is wrong with a mapping or an entry of a map that no layer has.
    pub(crate) fn orphan(&self, map: u32, object: impl FnOnce() -> String) -> Option<String> {
        let is_orphan = self.is_complete && self.owner(map).is_none();
        is_orphan.then(|| format!("{} belongs to map {map}, which no layer has", object()))
    }

    /// Compares the number of mappings and entries of each layer with its record.
    pub(crate) fn compare_mappings(&self, counted: &HashMap<u32, u64>, problem: &mut dyn FnMut(String)) {
        let mut wrong: Vec<(u32, u64, u64)> = Vec::new();
        for (number, layer) in &self.layers {
            let found: u64 = maps(layer).map(|map| counted.get(&map).copied().unwrap_or(0)).sum();
            wrong.extend((found != layer.mappings).then_some((*number, found, layer.mappings)));
        }
        wrong.sort_unstable();
        for (number, found, said) in wrong {
            problem(format!("layer {number} has {found} block mappings and entries, but its record says {said}"));
        }
    }
}

fn mapping_key_of(map: u32, block: u64) -> Vec<u8> {
    [b"m".as_slice(), &map.to_be_bytes(), &block.to_be_bytes()].concat()
}

/// Returns an object, from whichever partition has it.
fn value(moment: &Moment<'_>, key: &[u8]) -> Option<(u16, Vec<u8>)> {
    (0..moment.object_partitions()).find_map(|partition| Some((partition, moment.get(partition, key).ok()??)))
}

impl Gap {
    /// Describes the ranges of volumes that are lost where mappings cannot be read: `(map, block)` from `first` to
    /// `last`.
    pub(crate) fn lost_ranges(volumes: &VolumeList, (first, from): (u32, u64), (last, to): (u32, u64)) -> String {
        let mut hit = BTreeSet::new();
        for (map, info) in volumes.with_maps(first, last) {
            let from = if map == first { from } else { 0 };
            let to = if map == last { to } else { u64::MAX };
            let Some(size) = info.record.end_bytes else {
                hit.insert(format!("{} blocks {from} to {to}", named(info)));
                continue;
            };
            let block = u64::from(info.record.block_bytes);
            let (start, end) = (from.saturating_mul(block), to.saturating_add(1).saturating_mul(block).min(size));
            if start < end {
                hit.insert(format!("{} bytes {start} to {end}", named(info)));
            }
        }
        if hit.is_empty() { "no known volume".to_owned() } else { hit.into_iter().collect::<Vec<_>>().join(", ") }
    }

    /// Names what may have lost entries where those of maps `first` to `last` cannot be read.
    pub(crate) fn of_lost_entries(volumes: &VolumeList, first: u32, last: u32) -> String {
        let hit: BTreeSet<String> = volumes.with_maps(first, last).into_iter().map(|(_, info)| named(info)).collect();
        if hit.is_empty() { "no known filesystem".to_owned() } else { hit.into_iter().collect::<Vec<_>>().join(", ") }
    }
}
