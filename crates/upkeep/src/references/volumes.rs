//! The volumes and layers of a store as `check` sees them: which volumes show which layers, and which layers cannot be
//! shown (M0.21).

use super::{Gap, Kind, objects};
use onefold_engine::Moment;
use onefold_volume::{Layer, VolumeInfo};
use std::collections::{BTreeSet, HashMap};

/// The volumes and the layers of a store, including layers that are being dropped.
#[derive(Debug, Default)]
pub(crate) struct VolumeList {
    pub(crate) by_number: HashMap<u32, VolumeInfo>,
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
        Some(number) => match VolumeInfo::decode(number, value) {
            Ok(info) => drop(list.by_number.insert(number, info)),
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

impl VolumeList {
    /// Adds inconsistencies to `problems`.
    fn misfits(&self, problems: &mut Vec<String>) {
        let mut users: HashMap<u32, usize> = HashMap::new();
        for info in self.by_number.values() {
            *users.entry(info.layer).or_default() += 1;
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
            if let Some(why) = unfit(info.layer, info.block_size) {
                problems
                    .push(format!("volume {:?} with blocks of {} bytes stands on layer {}, {why}", info.name, info.block_size, info.layer));
            }
            if !info.is_read_only && users[&info.layer] > 1 {
                problems.push(format!("volume {:?} writes to layer {}, which other volumes also use", info.name, info.layer));
            }
        }
        for (number, layer) in &self.layers {
            if layer.parent != 0
                && let Some(why) = unfit(layer.parent, layer.block_bytes)
            {
                let names = self.names(&self.shown_by(*number));
                problems.push(format!("layer {number} ({names}) lies upon layer {}, {why}", layer.parent));
            }
            if !layer.is_dropped && self.is_complete && !users.contains_key(number) {
                problems.push(format!("layer {number} with {} block mappings is used by no volume", layer.mappings));
            }
        }
    }

    /// Returns the layers of a volume, from the top down.
    fn path(&self, volume: &VolumeInfo) -> impl Iterator<Item = (u32, &Layer)> {
        // Records whose parent number is not below their own are not read, so this ends.
        let get = |number: u32| self.layers.get(&number).map(|layer| (number, layer));
        std::iter::successors(get(volume.layer), move |(_, layer)| get(layer.parent))
    }

    /// Returns the volumes on top of a layer, by number.
    fn shown_by(&self, layer: u32) -> Vec<&VolumeInfo> {
        let mut found: Vec<_> = self.by_number.values().filter(|info| self.path(info).any(|(number, _)| number == layer)).collect();
        found.sort_by_key(|info| info.number);
        found
    }

    fn names(&self, volumes: &[&VolumeInfo]) -> String {
        let names: Vec<String> = volumes.iter().map(|info| format!("{:?}", info.name)).collect();
        if names.is_empty() { "below no known volume".to_owned() } else { format!("below {}", names.join(", ")) }
    }

    /// Returns the layer that has a map, with its number.
    pub(crate) fn owner(&self, map: u32) -> Option<(u32, &Layer)> {
        let number = self.owners.get(&map)?;
        self.layers.get(number).map(|layer| (*number, layer))
    }

    /// Returns the volumes that get this block from this map, by number.
    pub(crate) fn showing(&self, moment: &Moment<'_>, map: u32, block: u64) -> Vec<&VolumeInfo> {
        let Some((owner, _)) = self.owner(map) else { return Vec::new() };
        let mut found = self.shown_by(owner);
        found.retain(|info| {
            let end = info.size.div_ceil(u64::from(info.block_size.max(1)));
            block < end && self.source(moment, info, block) == Some(map)
        });
        found
    }

    /// Returns the map from which a volume gets a block.
    fn source(&self, moment: &Moment<'_>, volume: &VolumeInfo, block: u64) -> Option<u32> {
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
    pub(crate) fn with_maps(&self, first: u32, last: u32) -> Vec<(u32, &VolumeInfo)> {
        let owners = self.owners.iter().filter(|(map, _)| (first..=last).contains(*map));
        owners.flat_map(|(map, layer)| self.shown_by(*layer).into_iter().map(|info| (*map, info))).collect()
    }

    /// Returns whether a layer may have a map from `first` to `last`.
    pub(crate) fn may_have_maps(&self, first: u32, last: u32) -> bool {
        !self.is_complete || self.owners.keys().any(|map| (first..=last).contains(map))
    }

    /// Describes what is wrong with a mapping of a map that no layer has.
    pub(crate) fn orphan(&self, map: u32, block: u64) -> Option<String> {
        let is_orphan = self.is_complete && self.owner(map).is_none();
        is_orphan.then(|| format!("the mapping of block {block} belongs to map {map}, which no layer has"))
    }

    /// Compares the number of mappings of each layer with its record.
    pub(crate) fn compare_mappings(&self, counted: &HashMap<u32, u64>, problem: &mut dyn FnMut(String)) {
        let mut wrong: Vec<(u32, u64, u64)> = Vec::new();
        for (number, layer) in &self.layers {
            let found: u64 = maps(layer).map(|map| counted.get(&map).copied().unwrap_or(0)).sum();
            wrong.extend((found != layer.mappings).then_some((*number, found, layer.mappings)));
        }
        wrong.sort_unstable();
        for (number, found, said) in wrong {
            problem(format!("layer {number} has {found} block mappings, but its record says {said}"));
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
            let block = u64::from(info.block_size);
            let start = if map == first { from.saturating_mul(block) } else { 0 };
            let end = if map == last { to.saturating_add(1).saturating_mul(block).min(info.size) } else { info.size };
            if start < end {
                hit.insert(format!("volume {:?} bytes {start} to {end}", info.name));
            }
        }
        if hit.is_empty() { "no known volume".to_owned() } else { hit.into_iter().collect::<Vec<_>>().join(", ") }
    }
}
