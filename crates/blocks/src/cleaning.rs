//! Removes unneeded mappings, entries and layers, in the background and in steps: those of dropped layers, and layers
//! with a single child.
//!
//! A layer without a space and with a single layer above it is superfluous: the upper one *takes it in*. The upper
//! layer gets both maps, and the smaller map is emptied into the larger. So the cost follows the smaller map, and a
//! chain is only as long as the number of snapshots. (When a daily snapshot is deleted, the full map below takes in a
//! day's changes; the day does not take in the full map.)
//!
//! What is said here of mappings holds for every family under a map ([`crate::mapping::FAMILIES`]). Only the end does
//! not concern entries. Mappings go first, then entries.
//!
//! Each step is one transaction of at most 256 mappings or entries. It holds [`Spaces::structure`], so nobody adds or
//! removes layers meanwhile. After a crash the records of the layers say what is left to do; nothing else is
//! remembered. If a space writes to the layer, a step also locks the cells of its blocks, or its entries. A step never
//! waits for readers, except when a layer's record changes (`layers.rs`).

use crate::entry::{entries_end, entry_key, is_tombstone};
use crate::error::{Result, SpaceError};
use crate::layer::{Layer, Merging};
use crate::layers::Node;
use crate::mapping::{decode_mapping, encode_zeros, group, mapping_key, mappings_end};
use crate::space::Space;
use crate::spaces::{Restructuring, Spaces};
use onefold_engine::{Reference, Transaction};
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Steps between two flushes.
const STEPS_PER_FLUSH: usize = 64;

/// How far a map is emptied. The keys before that place are gone, but a scan would have to step over them.
#[derive(Debug, Default)]
struct Progress {
    map: u32,
    /// The next block with a mapping.
    block: u64,
    /// The key of the next entry.
    entry: Vec<u8>,
}

impl Progress {
    /// Returns where to go on in a map, at or after `first`.
    fn of(&self, map: u32, first: u64) -> u64 {
        if self.map == map { self.block.max(first) } else { first }
    }

    /// Returns the key of the entry where to go on in a map.
    fn entry_of(&self, map: u32) -> &[u8] {
        if self.map == map { &self.entry } else { &[] }
    }

    fn note(&mut self, map: u32, blocks: &BTreeMap<u64, Vec<u8>>) {
        if let Some(last) = blocks.keys().next_back() {
            self.turn_to(map).block = last.saturating_add(1);
        }
    }

    fn note_entries(&mut self, map: u32, entries: &[(Vec<u8>, Vec<u8>)]) {
        if let Some((last, _)) = entries.last() {
            self.turn_to(map).entry = [last, &[0][..]].concat();
        }
    }

    fn turn_to(&mut self, map: u32) -> &mut Progress {
        if self.map != map {
            *self = Progress { map, ..Progress::default() };
        }
        self
    }
}

/// The next thing to do.
enum Work {
    /// A layer was dropped.
    Drop(Arc<Node>),
    /// A layer has two maps.
    Merge(Arc<Node>, Merging),
    /// The first layer is superfluous below the second.
    TakeIn(Arc<Node>, Arc<Node>),
    /// Nobody needs the layer. This was unknown when its last user went.
    Abandon(Arc<Node>),
}

impl Spaces {
    /// Drops the mappings that only deleted spaces held, and shortens chains of layers, including leftovers of earlier
    /// runs, until `go_on` returns false. Returns whether nothing is left to do. Anything else may be called meanwhile,
    /// and nobody waits while `go_on` takes its time between two steps.
    pub fn resume_deletions(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        self.waiting_cleaners.fetch_add(1, Ordering::Relaxed);
        let _one_at_a_time = self.cleaning.lock();
        self.waiting_cleaners.fetch_sub(1, Ordering::Relaxed);
        self.take_work();
        let mut progress = Progress::default();
        let (mut steps, mut is_asked) = (0, false);
        let done = loop {
            if steps > 0 && !go_on() {
                break false;
            }
            let structure = self.structure.lock();
            let Some(work) = self.work() else {
                drop(structure);
                break self.drop_behind_ends(&mut steps, go_on)?;
            };
            if !is_asked {
                drop(structure);
                is_asked = true;
                if !go_on() {
                    break false;
                }
                continue;
            }
            self.step(&work, &mut progress)?;
            // Callers that wait for the structure take priority.
            MutexGuard::unlock_fair(structure);
            steps += 1;
            if steps % STEPS_PER_FLUSH == 0 {
                self.shared.engine.flush()?;
            }
        };
        if steps > 0 {
            self.shared.engine.flush()?;
        }
        Ok(done)
    }

    /// Returns whether another caller waits for [`Spaces::resume_deletions`] to finish.
    pub fn is_cleaning_wanted(&self) -> bool {
        self.waiting_cleaners.load(Ordering::Relaxed) > 0
    }

    /// Drops the mappings after the end of a space that is the only user of its layer. They are leftovers of a move of
    /// the end that a crash interrupted, and blocks that only removed spaces showed. Returns whether none is left.
    fn drop_behind_ends(&self, steps: &mut usize, go_on: &dyn Fn() -> bool) -> Result<bool> {
        if !self.damaged().is_empty() {
            // A space that cannot be read may use the layer too, and may be larger.
            return Ok(true);
        }
        for space in self.all() {
            let mut progress = Progress::default();
            loop {
                let structure = self.structure.lock();
                // The end stays. Nothing is written after the end, and growing looks for leftovers.
                let gate = space.gate.read();
                if gate.is_deleted || gate.record.end_bytes.is_none() {
                    break;
                }
                let is_alone = self.users().get(&gate.record.layer).is_some_and(|users| users.spaces == 1 && users.children.is_empty());
                let node = self
                    .shared
                    .layers
                    .get(gate.record.layer)
                    .filter(|node| is_alone && node.layer.merging.is_none() && !self.shared.layers.has_lost(node));
                let Some(node) = node else { break };
                if !self.drop_mappings(&node, node.layer.map, gate.record.end_block(), &mut progress)? {
                    break;
                }
                *steps += 1;
                drop((gate, structure));
                if !go_on() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn work(&self) -> Option<Work> {
        let nodes = self.shared.layers.all();
        if let Some(node) = nodes.iter().find(|node| node.layer.is_dropped) {
            return Some(Work::Drop(node.clone()));
        }
        if !self.damaged().is_empty() {
            return None;
        }
        let is_whole = |node: &&Arc<Node>| !self.shared.layers.has_lost(node);
        let merging = |node: &Arc<Node>| Some((node.clone(), node.layer.merging?));
        if let Some((node, merging)) = nodes.iter().filter(is_whole).find_map(merging) {
            return Some(Work::Merge(node, merging));
        }
        let users = self.users();
        let is_unused = |node: &&Arc<Node>| !users.contains_key(&node.number) && !self.shared.engine.keeps_unused();
        if let Some(node) = nodes.iter().find(is_unused) {
            return Some(Work::Abandon(node.clone()));
        }
        nodes.iter().filter(is_whole).find_map(|node| {
            let users = users.get(&node.number)?;
            match users.children.as_slice() {
                [child] if users.spaces == 0 => {
                    let child = self.shared.layers.get(*child).filter(|child| is_whole(&child))?;
                    Some(Work::TakeIn(node.clone(), child))
                }
                _ => None,
            }
        })
    }

    /// Runs one step. The caller holds the structure.
    fn step(&self, work: &Work, progress: &mut Progress) -> Result<()> {
        match work {
            Work::Drop(node) => self.drop_step(node, progress),
            Work::Merge(node, merging) => self.merge_step(node.number, *merging, progress),
            Work::TakeIn(parent, child) => self.take_in_step(parent, child, progress),
            Work::Abandon(node) => self.reshape(node.number, |node| {
                let mut change = Restructuring::default();
                change.put(node.with(Layer { parent: 0, overlap_blocks: 0, is_dropped: true, ..node.layer.clone() }));
                Ok(Some(change))
            }),
        }
    }

    /// Drops mappings of a layer that nobody needs, and finally the layer.
    fn drop_step(&self, node: &Node, progress: &mut Progress) -> Result<()> {
        let map = node.layer.merging.map_or(node.layer.map, |other| other.map);
        if self.drop_mappings(node, map, 0, progress)? || self.drop_entries(node, map, progress)? {
            return Ok(());
        }
        let mut change = Restructuring::default();
        match node.layer.merging {
            Some(_) => change.put(node.with(Layer { merging: None, ..node.layer.clone() })),
            None => change.remove(node),
        }
        change.submit(&self.shared)
    }

    /// Drops some mappings of one map of a layer from `first` on, with their references. Returns whether there were
    /// any.
    fn drop_mappings(&self, node: &Node, map: u32, first: u64, progress: &mut Progress) -> Result<bool> {
        let first = progress.of(map, first);
        self.give_up_lost(node, &mapping_key(map, first), &mappings_end(map))?;
        let blocks = self.mapped_in(node, map, first)?;
        let mut references = Vec::new();
        let mut changes = Vec::with_capacity(blocks.len() + 1);
        for (block, value) in &blocks {
            references.extend(self.references(node, map, *block, value, -1)?);
            changes.push((node.partition, mapping_key(map, *block), None));
        }
        self.submit_step(node, changes, references, -(blocks.len() as i64))?;
        progress.note(map, &blocks);
        Ok(!blocks.is_empty())
    }

    /// Drops some entries of one map of a layer. Returns whether there were any.
    fn drop_entries(&self, node: &Node, map: u32, progress: &mut Progress) -> Result<bool> {
        let from = progress.entry_of(map);
        self.give_up_lost(node, &entry_key(map, from), &entries_end(map))?;
        let entries = self.shared.layers.step_of_entries(node, map, from)?;
        let changes = entries.iter().map(|(key, _)| (node.partition, entry_key(map, key), None)).collect();
        self.submit_step(node, changes, Vec::new(), -(entries.len() as i64))?;
        progress.note_entries(map, &entries);
        Ok(!entries.is_empty())
    }

    /// Gives up what a repair could not recover of a layer that nobody needs.
    fn give_up_lost(&self, node: &Node, from: &[u8], to: &[u8]) -> Result<()> {
        if let Some(change) = self.shared.engine.give_up_lost(node.partition, from, to)? {
            self.shared.engine.submit(Transaction { changes: vec![change], references: Vec::new() })?;
            self.shared.engine.flush()?;
        }
        Ok(())
    }

    /// Moves mappings or entries from one map of a layer to the other. In the end the layer has one map.
    fn merge_step(&self, layer: u32, merging: Merging, progress: &mut Progress) -> Result<()> {
        let writer = self.writer_of(layer);
        // Before the layer is read, because a space that shrinks changes its record.
        let gate = writer.as_ref().map(|space| space.gate.read());
        let Some(node) = self.shared.layers.get(layer) else { return Ok(()) };
        let blocks = self.mapped_in(&node, merging.map, progress.of(merging.map, 0))?;
        if blocks.is_empty() {
            if self.move_entries(writer.as_deref(), &node, merging, progress)? {
                return Ok(());
            }
            drop(gate);
            return self.reshape(layer, |node| {
                let mut change = Restructuring::default();
                change.put(node.with(Layer { merging: None, ..node.layer.clone() }));
                Ok(Some(change))
            });
        }
        match &writer {
            None => self.move_mappings(&node, merging, &blocks)?,
            Some(space) => {
                self.move_written(space, &node, merging, &blocks)?;
                drop(gate);
                self.shared.tidy(space);
            }
        }
        progress.note(merging.map, &blocks);
        Ok(())
    }

    /// Moves mappings of these blocks of a layer that a space writes to. The caller holds the space's gate.
    fn move_written(&self, space: &Space, node: &Node, merging: Merging, blocks: &BTreeMap<u64, Vec<u8>>) -> Result<()> {
        let cells: Vec<_> = blocks.keys().map(|block| space.cells.get(*block)).collect();
        let _locked: Vec<_> = cells.iter().map(|cell| cell.write(self.shared.profile())).collect();
        // Some may have been written since they were read, and need not be moved any more.
        let mut still = BTreeMap::new();
        for block in blocks.keys() {
            let value = self.shared.engine.get(node.partition, &mapping_key(merging.map, *block))?;
            still.extend(value.map(|value| (*block, value)));
        }
        let moved = self.move_mappings(node, merging, &still);
        // The blocks are unchanged, but another map may have them, or none if they are zeros.
        cells.iter().for_each(|cell| space.cells.forget(cell));
        moved
    }

    /// Moves these mappings of the map `merging` to the other map of the layer. If both maps have a block, the upper
    /// mapping stays.
    fn move_mappings(&self, node: &Node, merging: Merging, blocks: &BTreeMap<u64, Vec<u8>>) -> Result<()> {
        let zeros = encode_zeros(node.layer.block_bytes, self.shared.engine.digest_bytes());
        let mut references = Vec::new();
        let (mut put, mut removed) = (Vec::new(), Vec::new());
        let mut more_mappings = 0;
        for (block, value) in blocks {
            let key = mapping_key(node.layer.map, *block);
            let there = self.shared.engine.get(node.partition, &key)?;
            more_mappings -= 1 + i64::from(there.is_some());
            let stays = there.as_ref().filter(|_| !merging.is_upper).unwrap_or(value);
            // Zeros that no longer hide anything need no mapping.
            let stays = if *stays == zeros && !self.shared.layers.shows_through(node.number, *block)? { None } else { Some(stays) };
            more_mappings += i64::from(stays.is_some());
            if stays != there.as_ref() {
                for (value, change) in [(&there, -1), (&stays.cloned(), 1)] {
                    let value = value.iter().map(|value| self.references(node, node.layer.map, *block, value, change));
                    references.extend(value.collect::<Result<Vec<_>>>()?.into_iter().flatten());
                }
                put.push((node.partition, key, stays.cloned()));
            }
            references.extend(self.references(node, merging.map, *block, value, -1)?);
            removed.push((node.partition, mapping_key(merging.map, *block), None));
        }
        put.extend(removed);
        self.submit_step(node, put, references, more_mappings)
    }

    /// Moves some entries of the map `merging` to the other map of the layer. If both maps have a key, the upper entry
    /// stays. Returns whether there were any. The caller holds the gate of the space that writes to the layer.
    fn move_entries(&self, writer: Option<&Space>, node: &Node, merging: Merging, progress: &mut Progress) -> Result<bool> {
        let _alone = writer.map(|space| space.entries.lock());
        let layers = &self.shared.layers;
        let entries = layers.step_of_entries(node, merging.map, progress.entry_of(merging.map))?;
        let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| key.as_slice()).collect();
        let own: Vec<Vec<u8>> = keys.iter().map(|key| entry_key(node.layer.map, key)).collect();
        let there = self.shared.engine.get_many(node.partition, &own)?;
        let upper = |at: usize| there[at].as_ref().filter(|_| !merging.is_upper).unwrap_or(&entries[at].1);
        let hidden: Vec<&[u8]> = keys.iter().enumerate().filter(|(at, _)| is_tombstone(upper(*at))).map(|(_, key)| *key).collect();
        let mut below = layers.entries_below(node, &hidden)?.into_iter();
        let (mut put, mut removed) = (Vec::new(), Vec::new());
        let mut more_entries = 0;
        for (at, (key, own)) in keys.iter().zip(own).enumerate() {
            let (there, stays) = (&there[at], upper(at));
            // A tombstone that no longer hides anything goes.
            let is_useless = is_tombstone(stays) && !below.next().unwrap_or_default();
            let stays = if is_useless { None } else { Some(stays.clone()) };
            more_entries += i64::from(stays.is_some()) - i64::from(there.is_some()) - 1;
            if stays != *there {
                put.push((node.partition, own, stays));
            }
            removed.push((node.partition, entry_key(merging.map, key), None));
        }
        put.extend(removed);
        self.submit_step(node, put, Vec::new(), more_entries)?;
        progress.note_entries(merging.map, &entries);
        Ok(!entries.is_empty())
    }

    /// Does one step towards taking in `parent`, which only `child` needs.
    fn take_in_step(&self, parent: &Node, child: &Node, progress: &mut Progress) -> Result<()> {
        // Blocks that do not show through must not reappear.
        let hidden = child.layer.overlap_blocks;
        if self.drop_mappings(parent, parent.layer.map, hidden, progress)? {
            return Ok(());
        }
        *progress = Progress::default();
        self.reshape(child.number, |child| {
            if child.layer.overlap_blocks < hidden {
                // It has shrunk meanwhile. Retry.
                return Ok(None);
            }
            let (upper, lower) = (*child.mappings.lock(), *parent.mappings.lock());
            let (map, other) = match (upper, lower) {
                (0, _) => (parent.layer.map, None),
                (_, 0) => (child.layer.map, None),
                _ if upper > lower => (child.layer.map, Some(Merging { map: parent.layer.map, is_upper: false })),
                _ => (parent.layer.map, Some(Merging { map: child.layer.map, is_upper: true })),
            };
            let layer = Layer {
                parent: parent.layer.parent,
                overlap_blocks: parent.layer.overlap_blocks.min(hidden),
                mappings: upper + lower,
                map,
                merging: other,
                ..child.layer.clone()
            };
            let mut change = Restructuring::default();
            change.put(Node::new(child.number, child.partition, layer));
            change.remove(parent);
            Ok(Some(change))
        })
    }

    /// Changes the record of a layer while nobody writes to it. `change` receives the current layer and returns `None`
    /// to leave it.
    fn reshape(&self, layer: u32, change: impl FnOnce(&Node) -> Result<Option<Restructuring>>) -> Result<()> {
        let writer = self.writer_of(layer);
        let gate = writer.as_ref().map(|space| space.gate.write());
        let Some(node) = self.shared.layers.get(layer) else { return Ok(()) };
        if let Some(change) = change(&node)? {
            change.submit(&self.shared)?;
            // The set of mappings that are the space's own has changed.
            writer.iter().for_each(|space| space.cells.forget_all());
        }
        drop(gate);
        Ok(())
    }

    fn mapped_in(&self, node: &Node, map: u32, first: u64) -> Result<BTreeMap<u64, Vec<u8>>> {
        let mut blocks = BTreeMap::new();
        let mut next = first;
        // No mappings before a lost part does not mean no mappings at all: from the lost part on, this is an error.
        while blocks.is_empty() && next < u64::MAX {
            next = self.shared.layers.mapped_in(node.partition, map, next, u64::MAX, &mut blocks)?;
        }
        Ok(blocks)
    }

    /// Returns the references of a mapping that a map of a layer gets (1) or loses (-1).
    fn references(&self, node: &Node, map: u32, block: u64, value: &[u8], change: i64) -> Result<Vec<Reference>> {
        let pieces = decode_mapping(value, self.shared.engine.digest_bytes(), node.layer.block_bytes)
            .map_err(|reason| SpaceError::Damaged { object: format!("the mapping of block {block} in layer {}", node.number), reason })?;
        Ok(Reference::of(&pieces, group(map), change).collect())
    }

    /// Submits a step, with the layer's new number of mappings.
    fn submit_step(
        &self,
        node: &Node,
        mut changes: Vec<onefold_engine::Change>,
        mut references: Vec<Reference>,
        more_mappings: i64,
    ) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut mappings = node.mappings.lock();
        let after = mappings.saturating_add_signed(more_mappings);
        changes.insert(0, node.change(after));
        Reference::merge(&mut references);
        self.shared.engine.submit(Transaction { changes, references })?;
        *mappings = after;
        Ok(())
    }
}
