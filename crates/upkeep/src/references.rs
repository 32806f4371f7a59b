//! Everything in a store that refers to chunks, once each (`docs/format.md` section 8.5): block mappings, roots of
//! backups, stored metadata chunks. And entries, which refer to none, but are counted with the mappings of a layer.

use crate::Result;
mod roots;
mod volumes;

use onefold_blocks::{MAX_ENTRY_KEY_BYTES, MAX_ENTRY_VALUE_BYTES};
use onefold_catalog::{Backup, DirectoryChunk};
use onefold_engine::{Engine, Moment, Piece, Recipe, Tree, decode_pieces};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_storage::{Address, ChunkKind, CommittedSlots, ContainerId, Origin, Slot};
pub use roots::StoreRoots;
use std::collections::{HashMap, HashSet};
pub(crate) use volumes::{VolumeList, named, names, volumes};

/// Objects read at a time.
const PAGE: usize = 512;
/// The most damaged places of one partition that are searched for one by one. The rest counts as one.
const GAPS: usize = 1000;

/// The keys of one kind of object: a letter, then a number of fixed length. Keys of entries have any length: their
/// first 16 bytes behind the letter are the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Volume,
    Layer,
    Mapping,
    Entry,
    Backup,
}

impl Kind {
    fn prefix(self) -> u8 {
        match self {
            Kind::Volume => b'v',
            Kind::Layer => b'l',
            Kind::Mapping => b'm',
            Kind::Entry => b'E',
            Kind::Backup => b'b',
        }
    }

    fn bits(self) -> u32 {
        match self {
            Kind::Volume | Kind::Layer => 32,
            Kind::Mapping => 96,
            Kind::Entry | Kind::Backup => 128,
        }
    }

    /// Returns the map in the number of a mapping or an entry.
    fn map(self, number: u128) -> Option<u32> {
        matches!(self, Kind::Mapping | Kind::Entry).then(|| (number >> (self.bits() - 32)) as u32)
    }

    /// The greatest number.
    fn last(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }

    fn key(self, number: u128) -> Vec<u8> {
        let mut key = vec![self.prefix()];
        key.extend_from_slice(&number.to_be_bytes()[16 - self.bits() as usize / 8..]);
        key
    }

    /// Returns the first number whose key is not before `key`.
    fn number(self, key: &[u8]) -> u128 {
        let bytes = self.bits() as usize / 8;
        let digits = key.get(1..).unwrap_or_default();
        let number = (0..bytes).fold(0, |number: u128, at| (number << 8) | u128::from(digits.get(at).copied().unwrap_or(0)));
        number.saturating_add(u128::from(digits.len() > bytes)).min(self.last())
    }
}

/// Objects that cannot be read because their part of the object index is damaged: all of `kind` with numbers from
/// `first` to `last`.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    pub(crate) kind: Kind,
    first: u128,
    last: u128,
    /// Whether the objects are lost for good. Otherwise a later read may succeed.
    is_lost: bool,
    why: String,
}

impl Gap {
    /// Returns whether a known volume or layer may need the unreadable objects.
    fn is_needed(&self, volumes: &VolumeList) -> bool {
        let maps = self.kind.map(self.first).zip(self.kind.map(self.last));
        maps.is_none_or(|(first, last)| volumes.may_have_maps(first, last))
    }

    /// Describes what is lost, with names if `volumes` has them.
    pub(crate) fn describe(&self, volumes: &VolumeList) -> String {
        let why = &self.why;
        match self.kind {
            Kind::Volume => format!("volumes with numbers {} to {} cannot be read: {why}", self.first, self.last),
            Kind::Layer => format!("layers with numbers {} to {} cannot be read: {why}", self.first, self.last),
            Kind::Backup => format!("backups from {} to {} cannot be read: {why}", id(self.first), id(self.last)),
            Kind::Mapping => {
                let parts = |number: u128| ((number >> 64) as u32, number as u64);
                let hit = Gap::lost_ranges(volumes, parts(self.first), parts(self.last));
                format!("block mappings cannot be read ({hit}): {why}")
            }
            Kind::Entry => {
                let map = |number| self.kind.map(number).unwrap_or_default();
                let hit = Gap::of_lost_entries(volumes, map(self.first), map(self.last));
                format!("entries cannot be read ({hit}): {why}")
            }
        }
    }
}

fn id(number: u128) -> String {
    format!("{number:032x}")
}

/// Passes all objects of a kind to `visit`, and unreadable parts of the object index to `damaged`. Reading goes on
/// after such a part.
pub(crate) fn objects(moment: &Moment<'_>, kind: Kind, visit: &mut dyn FnMut(&[u8], &[u8]), damaged: &mut dyn FnMut(Gap)) {
    let visit = &mut |key: &[u8], value: &[u8]| {
        visit(key, value);
        true
    };
    objects_while(moment, kind, visit, damaged);
}

/// Does the same until `visit` returns `false`.
pub(crate) fn objects_while(moment: &Moment<'_>, kind: Kind, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool, damaged: &mut dyn FnMut(Gap)) {
    for partition in 0..moment.object_partitions() {
        let end = [kind.prefix() + 1];
        let mut from = vec![kind.prefix()];
        let (mut limit, mut gaps) = (PAGE, 0);
        loop {
            match moment.range(partition, &from, &end, limit) {
                Ok(page) => {
                    if !page.iter().all(|(key, value)| visit(key, value)) {
                        return;
                    }
                    match page.last() {
                        Some((last, _)) if page.len() == limit => {
                            from.clone_from(last);
                            from.push(0);
                        }
                        _ => break,
                    }
                    limit = (limit * 2).min(PAGE);
                }
                // Approaches the damage step by step.
                Err(_) if limit > 1 => limit /= 2,
                Err(error) => {
                    gaps += 1;
                    let first = kind.number(&from);
                    let next = if gaps < GAPS { behind(moment, partition, kind, first) } else { None };
                    let last = next.map_or(kind.last(), |next| next - 1);
                    damaged(Gap { kind, first, last, is_lost: error.is_lost(), why: error.to_string() });
                    match next {
                        Some(next) => from = kind.key(next),
                        None => break,
                    }
                }
            }
        }
    }
}

/// Finds a number after `first` from which objects can be read again: in steps that double, then by bisection between
/// the last failure and the first success.
fn behind(moment: &Moment<'_>, partition: u16, kind: Kind, first: u128) -> Option<u128> {
    let can_read = |number: u128| moment.range(partition, &kind.key(number), &[kind.prefix() + 1], 1).is_ok();
    let mut failed = first;
    let mut step = 1u128;
    let mut readable = loop {
        let next = first.checked_add(step).filter(|next| *next <= kind.last());
        match next {
            Some(next) if can_read(next) => break next,
            Some(next) => failed = next,
            None if can_read(kind.last()) && failed < kind.last() => break kind.last(),
            None => return None,
        }
        step = step.checked_mul(2)?;
    };
    while readable - failed > 1 {
        let middle = failed + (readable - failed) / 2;
        if can_read(middle) {
            readable = middle;
        } else {
            failed = middle;
        }
    }
    Some(readable)
}

/// Returns the map and the block from the key of a mapping.
pub(crate) fn mapping_key(key: &[u8]) -> Option<(u32, u64)> {
    let map = key.get(1..5)?.try_into().ok()?;
    let block = key.get(5..13)?.try_into().ok()?;
    (key.len() == 13).then(|| (u32::from_be_bytes(map), u64::from_be_bytes(block)))
}

/// Returns the map of an entry that has the format of one.
fn map_of_entry(key: &[u8], value: &[u8]) -> Option<u32> {
    let map = key.get(1..5)?.try_into().ok()?;
    let fits = key.len() <= 5 + MAX_ENTRY_KEY_BYTES && value.len() <= 1 + MAX_ENTRY_VALUE_BYTES && value.first() == Some(&1);
    fits.then(|| u32::from_be_bytes(map))
}

/// Returns the recipe of a mapping.
pub(crate) fn mapping(value: &[u8], digest_bytes: usize) -> Option<Recipe> {
    let mut reader = Reader::new(value);
    if reader.u8().ok()? != 1 {
        return None;
    }
    let recipe = Recipe::decode(&mut reader, digest_bytes).ok()?;
    (reader.end().is_ok() && recipe.level == 0).then_some(recipe)
}

/// Passes every block mapping, and the root of every backup, to `visit`. Passes whatever cannot be read, except what
/// `volumes` covers, to `problem`. `volumes` is of the same moment. Returns why pieces may be missing that are not lost
/// for good. Reads entries too.
pub(crate) fn of_objects(
    moment: &Moment<'_>,
    volumes: &VolumeList,
    visit: &mut dyn FnMut(Tree<'_>),
    problem: &mut dyn FnMut(String),
) -> Option<String> {
    let mut mappings: HashMap<u32, u64> = HashMap::new();
    let mut gaps = Vec::new();
    let mut mapping = |key: &[u8], found: Option<Recipe>| match (mapping_key(key), found) {
        (Some((map, block)), Some(recipe)) => {
            visit(Tree { recipe: &recipe, is_directory: false });
            *mappings.entry(map).or_default() += 1;
            match volumes.owner(map) {
                Some((layer, of)) if recipe.length != u64::from(of.block_bytes) => problem(format!(
                    "the mapping of block {block} in layer {layer} has {} bytes; a block has {}",
                    recipe.length, of.block_bytes
                )),
                Some(_) => {}
                None => volumes.orphan(map, || format!("the mapping of block {block}")).into_iter().for_each(&mut *problem),
            }
        }
        (Some((map, block)), None) => {
            *mappings.entry(map).or_default() += 1;
            let names = names(&volumes.showing(moment, map, block));
            problem(format!("the mapping of block {block} in map {map} cannot be read; volumes that need it: {names}"))
        }
        (None, _) => problem("the object index has a mapping with an unreadable key".into()),
    };
    mappings_of(moment, &mut mapping, &mut |gap| gaps.push(gap));
    let mut entry = |key: &[u8], value: &[u8]| match map_of_entry(key, value) {
        Some(map) => {
            *mappings.entry(map).or_default() += 1;
            volumes.orphan(map, || format!("the entry {key:02x?}")).into_iter().for_each(&mut *problem);
        }
        None => {
            let map = key.get(1..5).and_then(|map| map.try_into().ok()).map(u32::from_be_bytes);
            map.into_iter().for_each(|map| *mappings.entry(map).or_default() += 1);
            let of = map.map_or_else(|| "no filesystem".to_owned(), |map| Gap::of_lost_entries(volumes, map, map));
            problem(format!("the entry {key:02x?} cannot be read ({of})"));
        }
    };
    objects(moment, Kind::Entry, &mut entry, &mut |gap| gaps.push(gap));
    gaps.retain(|gap| gap.is_needed(volumes));
    let is_whole = gaps.is_empty();
    roots_of(moment, visit, problem, &mut |gap| gaps.push(gap));
    gaps.iter().for_each(|gap| problem(gap.describe(volumes)));
    if is_whole {
        volumes.compare_mappings(&mappings, problem);
    }
    // Entries have no pieces.
    gaps.iter().find(|gap| !gap.is_lost && gap.kind != Kind::Entry).map(|gap| gap.describe(volumes))
}

/// Passes the same pieces to `visit`, and skips damaged objects.
pub(crate) fn pieces_of_objects(moment: &Moment<'_>, visit: &mut dyn FnMut(&Piece)) {
    let mut mapping = |key: &[u8], found: Option<Recipe>| {
        if let (Some(_), Some(recipe)) = (mapping_key(key), found) {
            recipe.pieces.iter().for_each(&mut *visit);
        }
    };
    mappings_of(moment, &mut mapping, &mut |_| {});
    roots_of(moment, &mut |tree| tree.recipe.pieces.iter().for_each(&mut *visit), &mut |_| {}, &mut |_| {});
}

fn mappings_of(moment: &Moment<'_>, visit: &mut dyn FnMut(&[u8], Option<Recipe>), damaged: &mut dyn FnMut(Gap)) {
    let digest_bytes = moment.digest_bytes();
    objects(moment, Kind::Mapping, &mut |key, value| visit(key, mapping(value, digest_bytes)), damaged);
}

fn roots_of(moment: &Moment<'_>, visit: &mut dyn FnMut(Tree<'_>), problem: &mut dyn FnMut(String), damaged: &mut dyn FnMut(Gap)) {
    let digest_bytes = moment.digest_bytes();
    let mut backup = |key: &[u8], value: &[u8]| match Backup::decode_object(key, value, digest_bytes) {
        Ok(backup) => visit(Tree { recipe: &backup.root, is_directory: true }),
        Err(error) => problem(format!("the record of a backup cannot be read: {error}")),
    };
    objects(moment, Kind::Backup, &mut backup, damaged);
}

/// Returns the pieces that a stored metadata chunk refers to, or `None` if its content cannot be read.
pub(crate) fn of_chunk(content: &[u8], kind: ChunkKind, digest_bytes: usize) -> Option<Vec<Piece>> {
    match kind {
        ChunkKind::Data => Some(Vec::new()),
        ChunkKind::Recipe => {
            let mut reader = Reader::new(content);
            let pieces = decode_pieces(&mut reader, digest_bytes).ok()?;
            reader.end().ok().map(|()| pieces)
        }
        ChunkKind::Directory => {
            let chunk = DirectoryChunk::decode(content, digest_bytes).ok()?;
            Some(chunk.recipes().flat_map(|(recipe, _)| recipe.pieces.iter().copied()).collect())
        }
    }
}

/// Returns a function that says what a metadata chunk refers to, for removals.
pub fn references_of(digest_bytes: usize) -> impl Fn(ChunkKind, &[u8]) -> std::result::Result<Vec<Piece>, String> {
    move |kind, content| of_chunk(content, kind, digest_bytes).ok_or_else(|| "its content does not have the format of its kind".to_owned())
}

/// A stored metadata chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataChunk {
    pub(crate) address: Address,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) kind: ChunkKind,
}

impl MetadataChunk {
    /// Returns what it refers to, or `None` if it cannot be read or decoded.
    pub(crate) fn references(&self, engine: &Engine) -> Option<Vec<Piece>> {
        self.read_references(engine).ok().flatten()
    }

    /// Returns the same. Errors: those that say nothing about the stored data.
    pub(crate) fn read_references(&self, engine: &Engine) -> Result<Option<Vec<Piece>>> {
        let mut slices = Vec::new();
        match engine.storage().load(&[(self.address, self.fingerprint)], &mut slices) {
            Ok(()) => Ok(slices.first().and_then(|content| of_chunk(content, self.kind, engine.digest_bytes()))),
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether the references of a metadata chunk count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// It is the copy that the index names.
    Yes,
    /// The index names a copy that was stored after the moment. Which copy it named before, if any, is unknown.
    Perhaps,
}

/// Passes the metadata chunks of a container whose references count as of a moment. Of several copies of a chunk, only
/// the one that the index names counts, or each that is alive if there is no index. If the index cannot be read, every
/// copy counts. If several files have a chunk under the same address, it counts in the file for which its origin is
/// `counting`.
///
/// The index is asked later than the moment. But addresses are never reused, and nothing is removed while the moment is
/// kept. So if the index names
/// * this copy: the copy was durable at the moment, and the index has named it since before;
/// * another copy that was durable at the moment: the index named that one at the moment too;
/// * no copy: it named none at the moment;
/// * a newer copy: only then is its answer for the moment lost. That is rare: a chunk is stored again only if it was
///   removed before or damaged.
pub(crate) fn metadata_of(
    engine: &Engine,
    committed: &CommittedSlots,
    counting: &HashSet<Origin>,
    container: ContainerId,
    slots: &[(Address, Slot)],
) -> Vec<(MetadataChunk, Counts)> {
    let mut chunks: Vec<(MetadataChunk, Counts)> = slots
        .iter()
        .take(committed.of(container))
        .filter(|(address, slot)| slot.kind != ChunkKind::Data && counting.contains(&address.origin()))
        .map(|(address, slot)| (MetadataChunk { address: *address, fingerprint: slot.fingerprint, kind: slot.kind }, Counts::Yes))
        .collect();
    let names: Vec<_> = chunks.iter().map(|(chunk, _)| chunk.fingerprint).collect();
    let places = engine.places(&names);
    if let Ok(None) = &places {
        let dead = engine.dead_slots(container).unwrap_or_default();
        let alive: HashSet<Address> =
            slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number)).map(|(_, (address, _))| *address).collect();
        chunks.retain(|(chunk, _)| alive.contains(&chunk.address));
    }
    if let Ok(Some(places)) = places {
        let mut places = places.into_iter();
        chunks.retain_mut(|(chunk, counts)| {
            let Some(address) = places.next().flatten() else { return false };
            if address != chunk.address && !committed.includes(address) {
                *counts = Counts::Perhaps;
                return true;
            }
            address == chunk.address
        });
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_keys_of_objects_agree() {
        for kind in [Kind::Volume, Kind::Layer, Kind::Mapping, Kind::Entry, Kind::Backup] {
            for number in [0, 1, 77 << 20, kind.last()] {
                assert_eq!(kind.number(&kind.key(number)), number);
                let mut behind = kind.key(number);
                behind.push(0);
                assert_eq!(kind.number(&behind), number.saturating_add(1).min(kind.last()));
            }
            assert_eq!(kind.number(&[kind.prefix()]), 0);
        }
    }
}
