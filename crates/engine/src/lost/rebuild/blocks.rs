//! Rebuilding the index of a store whose chunks are blocks of an arena.
//!
//! What a block holds is only in the index. But a reference has the name and the address of a chunk, and the bytes of a
//! block tell whether a chunk of that name is there, and how long it is. So a new index gets, in this order:
//! 1. What the readable pages of the old index say, as far as the bytes of the blocks confirm it. Nothing else knows of
//!    chunks without references, and a lost metadata chunk may need some of them.
//! 2. What references lead to, each with its count.
//! 3. Chunks that are not where references say: they were lost once, and stored again elsewhere. All blocks without a
//!    chunk are searched for them.
//! 4. If metadata is lost, whatever else is in a block, under the name that its bytes have as a whole block of data. It
//!    may be what the metadata needs, and the metadata may come back.
//! 5. Chunks that are nowhere. They keep their counts, so that the next write of the same bytes serves all who refer to
//!    them, and stays as long as one of them does. A lost chunk keeps the block that its reference names, if no other
//!    chunk is there: nothing is destroyed that may come back.
//!
//! # Interruptions
//! The new index is made beside the old one, which stays until then. When the new one is whole, [`MARKER`] keeps the
//! store closed, then [`COMPLETE`] says that its files may take the place of the old ones. A rebuild that finds both
//! moves the rest. Everything in it is tried against the blocks again, so that it does no harm if it is older than they
//! are.

use crate::lifecycle::chunks::create_linked_index;
use crate::lifecycle::layout::{ARENA, INDEX, arena_options};
use crate::liveness::marked::{Step, Tracer};
use crate::liveness::recount::Recounted;
use crate::lookup::blocks::Blocks;
use crate::lost::rebuild::{MARKER, end_rebuild, mark_index};
use crate::{Descriptor, Engine, EngineError, Mode, Result, Roots, Settings, Tree};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground, parent, replace_file};
use onefold_index::{ChunkBatch, CountedIndex, IndexEntry, IndexView, LinkedIndex, LinkedOptions};
use onefold_oplog::{Position, Pressure, View};
use onefold_storage::{
    Address, ArenaParts, ArenaStore, ChunkKind, ChunkView, MAX_BLOCKS, NoHoles, address_of_block, block_of_address, encode_note,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Where the new index is made.
pub(crate) const NEW_INDEX: &str = "index/new";
/// This file says that the new index is whole. It counts only beside [`MARKER`].
const COMPLETE: &str = "index/new/complete";
/// Blocks of the old index that are looked at together.
const IMPORTED_TOGETHER: u64 = 1024;
/// Chunks whose counts wait for the index.
const COUNTED_TOGETHER: usize = 1 << 15;
/// The most lost chunks that are searched for in other blocks, and whose own blocks are kept.
const MOST_LOST: usize = 1 << 16;

/// A store of blocks whose index is rebuilt.
#[derive(Debug)]
pub struct BlockRebuild {
    engine: Arc<Engine>,
    arena: Arc<ArenaStore>,
    index: Arc<dyn CountedIndex>,
    /// Counts up. To the index each step looks like a batch of the log.
    step: u64,
    /// What the blocks hold.
    found: Recounted,
    /// References that the index does not have yet.
    counts: HashMap<Fingerprint, i64>,
    /// Chunks that are not at the address of the first reference to them, and their counts.
    lost: HashMap<Fingerprint, (Step, i64)>,
    /// Whether one of those that are nowhere is metadata.
    has_lost_metadata: bool,
    /// Metadata chunks whose references cannot be read.
    unreadable: Vec<Fingerprint>,
    /// Where the next lost chunk goes that cannot have its own block.
    spare: u64,
    problems: Vec<String>,
}

impl BlockRebuild {
    /// Begins a new index with what the old one says and the blocks confirm.
    pub fn start(ground: Arc<dyn Ground>, settings: Settings, command: &str) -> Result<BlockRebuild> {
        let engine = Engine::open(ground, settings, Mode::Rebuild, command)?;
        let (Some(arena), Some(index)) = (engine.arena.clone(), engine.lookup.index().cloned()) else {
            return Err(EngineError::Inconsistent { why: format!("a store of profile `{}` has no blocks", engine.descriptor.profile) });
        };
        let spare = arena.blocks();
        let mut rebuild = BlockRebuild {
            engine,
            arena,
            index,
            step: 0,
            found: Recounted::default(),
            counts: HashMap::new(),
            lost: HashMap::new(),
            has_lost_metadata: false,
            unreadable: Vec::new(),
            spare,
            problems: Vec::new(),
        };
        if let Some(old) = rebuild.old_arena() {
            rebuild.import(&old)?;
        }
        Ok(rebuild)
    }

    /// Returns the store, for reading what refers to chunks.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the arena with the old index as its table, at the end of the log if possible. `None`: the index cannot
    /// be opened.
    fn old_arena(&self) -> Option<Arc<ArenaStore>> {
        let Engine { ground, settings, descriptor, log, profile, .. } = &*self.engine;
        let options = LinkedOptions { auxiliary_bytes: settings.auxiliary_index_bytes };
        let old = LinkedIndex::open(ground, INDEX, 0, descriptor.fingerprint.digest_bytes(), options, Access::Read).ok()?;
        let old = Arc::new(old);
        let parts = ArenaParts { table: Arc::new(Blocks::new(old.clone())), holes: Arc::new(NoHoles), profile: profile.clone() };
        let arena = ArenaStore::open(ground.clone(), ARENA, 0, arena_options(descriptor, settings)?, parts, Access::Read).ok()?;
        // If the log does not fit, what the pages say is tried all the same.
        let (storage, old) = (ChunkView(arena.clone()), IndexView(old));
        let view: &dyn View<EngineError> = &old;
        let _ = crate::lifecycle::open::recover(&storage, &[view], log, Mode::Rebuild, descriptor.fingerprint.digest_bytes());
        Some(arena)
    }

    /// Takes over what the table of an arena says and its blocks confirm.
    fn import(&mut self, old: &ArenaStore) -> Result<()> {
        let blocks = old.blocks();
        for first in (0..blocks).step_by(IMPORTED_TOGETHER as usize) {
            let count = IMPORTED_TOGETHER.min(blocks - first);
            let mut chunks = Vec::new();
            // Where the table is damaged, its blocks are found by their names.
            old.verify_blocks(first, count, &mut |block, held, bytes| {
                if bytes.is_ok() {
                    chunks.push((held.fingerprint, block, held.kind, held.length_bytes));
                }
            })?;
            self.insert(&chunks)?;
        }
        Ok(())
    }

    /// Counts everything that a tree refers to, and finds what the index does not have yet.
    pub fn follow(&mut self, tree: Tree<'_>, roots: &dyn Roots) -> Result<()> {
        let mut stack = Vec::new();
        let engine = self.engine.clone();
        Tracer { engine: &engine, go_on: &|| true }.begin(tree, &mut stack);
        self.trace(stack, roots)
    }

    fn trace(&mut self, mut stack: Vec<Step>, roots: &dyn Roots) -> Result<()> {
        let engine = self.engine.clone();
        let tracer = Tracer { engine: &engine, go_on: &|| true };
        let (mut failed, mut unreadable) = (None, Vec::new());
        let mut enter = |step: &Step| {
            failed.is_none()
                && self.count(step).unwrap_or_else(|error| {
                    failed = Some(error);
                    false
                })
        };
        let below = &mut |step: &Step, stack: &mut Vec<Step>| tracer.below(step, roots, stack);
        tracer.trace(&mut stack, below, &mut enter, &mut |step, why| unreadable.push((step.fingerprint, why)));
        for (name, why) in unreadable {
            self.problems.push(format!("metadata chunk {name} cannot be read: {why}"));
            self.unreadable.push(name);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Counts a reference. Returns whether it is the first one to a metadata chunk that is there.
    fn count(&mut self, step: &Step) -> Result<bool> {
        let name = step.fingerprint;
        if let Some(count) = self.counts.get_mut(&name) {
            *count += 1;
            return Ok(false);
        }
        if let Some((_, count)) = self.lost.get_mut(&name) {
            *count += 1;
            return Ok(false);
        }
        let kind = step.kind().unwrap_or(ChunkKind::Data);
        let is_new = match self.entry(&name)? {
            Some(entry) => entry.count == 0,
            None => match self.length_at(step, kind)? {
                Some(length_bytes) => {
                    let block = block_of_address(step.address).expect("a chunk was found there");
                    self.insert(&[(name, block, kind, length_bytes)])?;
                    true
                }
                None => {
                    self.lost.insert(name, (*step, 1));
                    if self.lost.len() > MOST_LOST {
                        let lost = std::mem::take(&mut self.lost);
                        lost.into_values().try_for_each(|(step, count)| self.lose(&step, count))?;
                    }
                    return Ok(false);
                }
            },
        };
        self.counts.insert(name, 1);
        if self.counts.len() >= COUNTED_TOGETHER {
            self.hand_over()?;
        }
        Ok(is_new && kind != ChunkKind::Data)
    }

    /// Returns the length of a chunk if it is where a reference says, and no other chunk with references is there.
    fn length_at(&mut self, step: &Step, kind: ChunkKind) -> Result<Option<u32>> {
        let found = self.arena.length_at(step.address, &step.fingerprint, kind)?;
        let (Some(length_bytes), Some(block)) = (found, block_of_address(step.address)) else { return Ok(None) };
        if let Some(other) = self.arena.name_in(block)? {
            // An earlier rebuild kept the bytes under another name (`keep_unknown`).
            if self.counts.contains_key(&other) || self.entry(&other)?.is_none_or(|entry| entry.count > 0) {
                return Ok(None);
            }
            self.apply(ChunkBatch { removals: &[other], ..ChunkBatch::default() })?;
        }
        Ok(Some(length_bytes))
    }

    /// Keeps what is in blocks without a chunk if lost metadata may need it. Call when all chunks were searched for.
    fn keep_unknown(&mut self) -> Result<()> {
        if !self.has_lost_metadata && self.unreadable.is_empty() {
            return Ok(());
        }
        let (arena, mut kept, mut failed) = (self.arena.clone(), 0, None);
        arena.each_nameless(&mut |address, bytes| {
            let is_kept = self.keep_block(address, bytes);
            match is_kept {
                Ok(is_kept) => kept += u64::from(is_kept),
                Err(error) => failed = Some(error),
            }
            failed.is_none()
        })?;
        if kept > 0 {
            self.problems.push(format!("{kept} blocks that nothing refers to are kept: lost metadata may need them"));
        }
        failed.map_or(Ok(()), Err)
    }

    fn keep_block(&mut self, address: Address, bytes: &[u8]) -> Result<bool> {
        let Some(block) = block_of_address(address) else { return Ok(false) };
        let Some(whole) = self.arena.possible_names(bytes).next() else { return Ok(false) };
        // Another block has the same bytes.
        if self.entry(&whole.name)?.is_some() {
            return Ok(false);
        }
        self.insert(&[(whole.name, block, ChunkKind::Data, whole.length_bytes)])?;
        Ok(true)
    }

    /// Searches all blocks without a chunk for chunks that were not where references say. Call when everything was
    /// followed.
    pub fn find_lost(&mut self, roots: &dyn Roots) -> Result<()> {
        while !self.lost.is_empty() {
            let mut found: HashMap<Fingerprint, (Address, u32)> = HashMap::new();
            let (arena, lost) = (self.arena.clone(), &self.lost);
            arena.each_nameless(&mut |address, bytes| {
                let is_wanted = |name: &Fingerprint, is_metadata: bool| {
                    lost.get(name).is_some_and(|(step, _)| (step.kind() != Some(ChunkKind::Data)) == is_metadata)
                };
                let possible = arena.possible_names(bytes).find(|possible| is_wanted(&possible.name, possible.is_metadata));
                if let Some(possible) = possible {
                    found.entry(possible.name).or_insert((address, possible.length_bytes));
                }
                true
            })?;
            if found.is_empty() {
                break;
            }
            let mut stack = Vec::new();
            for (name, (address, length_bytes)) in found {
                let Some((step, count)) = self.lost.remove(&name) else { continue };
                let block = block_of_address(address).expect("the arena gave it");
                let kind = step.kind().unwrap_or(ChunkKind::Data);
                self.insert(&[(name, block, kind, length_bytes)])?;
                self.apply(ChunkBatch { deltas: &[(name, count)], ..ChunkBatch::default() })?;
                if kind != ChunkKind::Data {
                    stack.extend(self.below(&step.at(address), roots));
                }
            }
            self.trace(stack, roots)?;
        }
        Ok(())
    }

    /// Returns what a metadata chunk refers to.
    fn below(&mut self, step: &Step, roots: &dyn Roots) -> Vec<Step> {
        let mut stack = Vec::new();
        if let Err(why) = (Tracer { engine: &self.engine, go_on: &|| true }).below(step, roots, &mut stack) {
            self.problems.push(format!("metadata chunk {} cannot be read: {why}", step.fingerprint));
            self.unreadable.push(step.fingerprint);
            stack.clear();
        }
        stack
    }

    /// Puts the new index in the place of the old one. Returns what is lost.
    pub fn finish(mut self) -> Result<Vec<String>> {
        self.hand_over()?;
        let lost = std::mem::take(&mut self.lost);
        lost.into_values().try_for_each(|(step, count)| self.lose(&step, count))?;
        self.keep_unknown()?;
        let nowhere: Vec<_> = self.unreadable.iter().map(|name| (*name, 0)).collect();
        self.apply(ChunkBatch { places: &nowhere, ..ChunkBatch::default() })?;
        let engine = &self.engine;
        if self.step >= engine.log.end().0 {
            return Err(EngineError::Inconsistent {
                why: "the log is too short for the stored data; the chunk index was not rebuilt".into(),
            });
        }
        self.index.apply_batch(engine.log.end(), ChunkBatch::default())?;
        self.index.catch_up(&|| true)?;
        self.index.close()?;
        mark_index(&engine.ground, INDEX)?;
        replace_file(&*engine.ground, COMPLETE, b"the new index is whole\n")?;
        move_new_index(&*engine.ground)?;
        end_rebuild(engine, self.found)?;
        Ok(self.problems)
    }

    /// Notes a chunk that is nowhere. It has references, so the index keeps it.
    fn lose(&mut self, step: &Step, count: i64) -> Result<()> {
        let name = step.fingerprint;
        self.has_lost_metadata |= step.kind() != Some(ChunkKind::Data);
        self.problems.push(format!("chunk {name} is not at {}, and in no other block", step.address));
        let mut block = block_of_address(step.address);
        if block.map(|block| self.arena.name_in(block)).transpose()?.flatten().is_some() {
            block = None;
        }
        let block = match block {
            Some(block) => block,
            None => self.spare_block()?,
        };
        let notes = [encode_note(step.kind().unwrap_or(ChunkKind::Data), 1)];
        let inserts = [(name, address_of_block(block).bits())];
        self.apply(ChunkBatch { inserts: &inserts, notes: &notes, deltas: &[(name, count)], ..ChunkBatch::default() })?;
        self.apply(ChunkBatch { places: &[(name, 0)], ..ChunkBatch::default() })
    }

    /// Returns a block behind the end of the file that no chunk has.
    fn spare_block(&mut self) -> Result<u64> {
        while self.arena.name_in(self.spare)?.is_some() {
            self.spare += 1;
        }
        if self.spare >= MAX_BLOCKS {
            return Err(EngineError::Inconsistent { why: "there are more lost chunks than a store can have".into() });
        }
        Ok(self.spare)
    }

    fn insert(&mut self, chunks: &[(Fingerprint, u64, ChunkKind, u32)]) -> Result<()> {
        let inserts: Vec<_> = chunks.iter().map(|(name, block, ..)| (*name, address_of_block(*block).bits())).collect();
        let notes: Vec<u32> = chunks.iter().map(|(.., kind, length_bytes)| encode_note(*kind, *length_bytes)).collect();
        let bytes: u64 = chunks.iter().map(|(.., length_bytes)| u64::from(*length_bytes)).sum();
        self.found.raw_bytes += bytes;
        self.found.stored_bytes += bytes;
        self.found.chunks += chunks.len() as u64;
        self.apply(ChunkBatch { inserts: &inserts, notes: &notes, ..ChunkBatch::default() })
    }

    fn hand_over(&mut self) -> Result<()> {
        let deltas: Vec<_> = self.counts.drain().collect();
        self.apply(ChunkBatch { deltas: &deltas, ..ChunkBatch::default() })
    }

    fn entry(&self, name: &Fingerprint) -> Result<Option<IndexEntry>> {
        let mut found = Vec::with_capacity(1);
        self.index.lookup(&[*name], &mut found)?;
        Ok(found.pop().flatten())
    }

    fn apply(&mut self, batch: ChunkBatch<'_>) -> Result<()> {
        self.step += 1;
        self.index.apply_batch(Position(self.step), batch)?;
        while self.index.pressure() >= Pressure::Behind && self.index.step()? {}
        Ok(())
    }
}

/// Makes an empty index beside the old one. If a rebuild was cut short while its index took the place of the old one,
/// this ends first.
pub(crate) fn new_linked_index(ground: &Arc<dyn Ground>, descriptor: &Descriptor) -> Result<()> {
    ground.create_directory(INDEX)?;
    ground.create_directory(NEW_INDEX)?;
    if ground.exists(MARKER)? && ground.exists(COMPLETE)? {
        move_new_index(&**ground)?;
    }
    for file in ground.list(NEW_INDEX)? {
        ground.remove(&format!("{NEW_INDEX}/{}", file.name))?;
    }
    create_linked_index(ground, descriptor, NEW_INDEX)
}

/// Moves the files of a whole new index to the place of the old one. Files of the old one that have no successor are
/// removed when the index is opened.
fn move_new_index(ground: &dyn Ground) -> Result<()> {
    for file in ground.list(NEW_INDEX)? {
        let from = format!("{NEW_INDEX}/{}", file.name);
        if from != COMPLETE {
            ground.rename(&from, &format!("{INDEX}/{}", file.name))?;
        }
    }
    ground.sync_directory(INDEX)?;
    ground.sync_directory(NEW_INDEX)?;
    ground.remove(COMPLETE)?;
    Ok(ground.sync_directory(parent(COMPLETE))?)
}
