//! Rebuilding the index of a store whose chunks are blocks of an arena.
//!
//! What a block holds is only in the index. But a reference has the name and the address of a chunk, and the bytes of a
//! block tell whether a chunk of that name is there, and how long it is. So a new index gets, in this order:
//! 1. What the readable pages of the old index say of data, as far as the bytes of the blocks confirm it. Nothing else
//!    knows of chunks without references, and a lost metadata chunk may need some of them. Metadata itself is taken
//!    only where a reference leads to it: whoever has metadata in the index has counted what it refers to.
//! 2. What references lead to, each with its count.
//! 3. Chunks that are not where references say: they were lost once, and stored again elsewhere. At first they are
//!    noted as lost. Then all blocks without a chunk are searched for them. What is still lost keeps its count, so that
//!    the next write of the same bytes serves all who refer to it, and stays as long as one of them does. A lost chunk
//!    keeps the block that its reference names, if no other chunk is there: nothing is destroyed that may come back.
//! 4. If metadata is lost, whatever else is in a block, under the name that its bytes have as a whole block of data. It
//!    may be what the metadata needs, and the metadata may come back.
//!
//! # Interruptions
//! The new index is made beside the old one, which stays until then. When the new one is whole, [`MARKER`] keeps the
//! store closed, then [`COMPLETE`] says that its files may take the place of the old ones. A rebuild that finds both
//! moves the rest. Everything in it is tried against the blocks again, so that it does no harm if it is older than they
//! are.

use crate::lifecycle::chunks::create_linked_index;
use crate::lifecycle::layout::{ARENA, INDEX, arena_options};
use crate::lifecycle::recovery::recover;
use crate::liveness::marked::{Step, Tracer};
use crate::liveness::recount::Recounted;
use crate::lookup::blocks::Blocks;
use crate::lost::rebuild::{MARKER, end_rebuild, mark_index};
use crate::{Descriptor, Engine, EngineError, Mode, Result, Roots, Settings, Tree};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground, parent, replace_file};
use onefold_index::{ChunkBatch, CountedIndex, IndexEntry, IndexError, IndexView, LinkedIndex, LinkedOptions};
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
/// The most lost metadata chunks that are searched for in other blocks.
const MOST_METADATA: usize = 1 << 20;
/// Problems that are said one by one.
const LISTED: usize = 1000;
/// Bits of the filter of names that may be lost.
const FILTER_BITS: u64 = 1 << 26;

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
    /// Chunks that are noted as lost.
    lost: u64,
    /// A bit for each name that was noted as lost. Most other names have none.
    lost_filter: Vec<u64>,
    /// The metadata among them.
    lost_metadata: HashMap<Fingerprint, Step>,
    /// Whether metadata is lost that is not among these.
    has_more_lost_metadata: bool,
    /// Metadata chunks whose references cannot be read.
    unreadable: Vec<Fingerprint>,
    /// Where the next lost chunk goes that cannot have its own block.
    spare: u64,
    problems: Vec<String>,
    more_problems: u64,
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
            lost: 0,
            lost_filter: vec![0; (FILTER_BITS / 64) as usize],
            lost_metadata: HashMap::new(),
            has_more_lost_metadata: false,
            unreadable: Vec::new(),
            spare,
            problems: Vec::new(),
            more_problems: 0,
        };
        if let Some(old) = rebuild.old_arena()? {
            rebuild.import(&old)?;
        }
        Ok(rebuild)
    }

    /// Returns the store, for reading what refers to chunks.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the arena with the old index as its table, at the end of the log if possible. `None`: the index cannot
    /// be opened. Errors: they say nothing about the index.
    fn old_arena(&self) -> Result<Option<Arc<ArenaStore>>> {
        let Engine { ground, settings, descriptor, log, profile, .. } = &*self.engine;
        let options = LinkedOptions { auxiliary_bytes: settings.auxiliary_index_bytes };
        let old = match LinkedIndex::open(ground, INDEX, 0, descriptor.fingerprint.digest_bytes(), options, Access::Read) {
            Ok(old) => Arc::new(old),
            Err(error) if error.is_lasting() || matches!(error, IndexError::Mismatch { .. } | IndexError::Fenced { .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let Some(options) = arena_options(descriptor, settings) else { return Ok(None) };
        let table = Arc::new(Blocks::new(old.clone()));
        let parts = ArenaParts { table, holes: Arc::new(NoHoles), profile: profile.clone(), log_end: log.end() };
        let arena = ArenaStore::open(ground.clone(), ARENA, 0, options, parts, Access::Read)?;
        let (storage, old) = (ChunkView(arena.clone()), IndexView(old));
        let view: &dyn View<EngineError> = &old;
        match recover(&storage, &[view], &**log, Mode::Rebuild, descriptor.fingerprint.digest_bytes(), None) {
            // If the log does not fit, what the pages say is tried all the same.
            Err(error) if !error.is_damage() && !matches!(error, EngineError::Inconsistent { .. }) => Err(error),
            _ => Ok(Some(arena)),
        }
    }

    /// Takes over what the table of an arena says and its blocks confirm.
    fn import(&mut self, old: &ArenaStore) -> Result<()> {
        let blocks = old.blocks();
        for first in (0..blocks).step_by(IMPORTED_TOGETHER as usize) {
            let count = IMPORTED_TOGETHER.min(blocks - first);
            let mut chunks = Vec::new();
            // Where the table is damaged, its blocks are found by their names.
            old.verify_blocks(first, count, &mut |block, held, bytes| {
                if bytes.is_ok() && held.kind == ChunkKind::Data {
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
        while !stack.is_empty() {
            let (mut failed, mut unread) = (None, Vec::new());
            let mut enter = |step: &Step| {
                failed.is_none()
                    && self.count(step).unwrap_or_else(|error| {
                        failed = Some(error);
                        false
                    })
            };
            let below = &mut |step: &Step, stack: &mut Vec<Step>| {
                let mut found = Vec::new();
                tracer.below(step, roots, &mut found)?;
                stack.append(&mut found);
                Ok(())
            };
            tracer.trace(&mut stack, below, &mut enter, &mut |step, _| unread.push(*step));
            if let Some(error) = failed {
                return Err(error);
            }
            for step in unread {
                stack.extend(self.below(&step, roots)?);
            }
        }
        Ok(())
    }

    /// Returns what a metadata chunk refers to. Errors: they say nothing about the chunk.
    fn below(&mut self, step: &Step, roots: &dyn Roots) -> Result<Vec<Step>> {
        let mut stack = Vec::new();
        if let Err(why) = (Tracer { engine: &self.engine, go_on: &|| true }).below(step, roots, &mut stack) {
            match self.engine.read_metadata(&step.piece()) {
                Err(error) if !error.is_damage() => return Err(error),
                _ => {}
            }
            self.problem(format!("metadata chunk {} cannot be read: {why}", step.fingerprint));
            self.unreadable.push(step.fingerprint);
            stack.clear();
        }
        Ok(stack)
    }

    /// Counts a reference. Returns whether it is the first one to a metadata chunk that is there.
    fn count(&mut self, step: &Step) -> Result<bool> {
        let name = step.fingerprint;
        if let Some(count) = self.counts.get_mut(&name) {
            *count += 1;
            return Ok(false);
        }
        let kind = step.kind().unwrap_or(ChunkKind::Data);
        let known = self.entry(&name)?;
        let is_new = match known {
            Some(entry) if entry.address != 0 => entry.count == 0,
            _ => match self.length_at(step, kind)? {
                Some(length_bytes) => {
                    let block = block_of_address(step.address).expect("a chunk was found there");
                    self.place(&name, known, (block, kind, length_bytes))?;
                    true
                }
                None => {
                    match known {
                        Some(_) => self.apply(ChunkBatch { deltas: &[(name, 1)], ..ChunkBatch::default() })?,
                        None => self.lose(step, kind)?,
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
        Ok(self.clear(block)?.then_some(length_bytes))
    }

    /// Makes a block free for the chunk that its bytes are. Returns false if another chunk is there that has references
    /// or may get some.
    fn clear(&mut self, block: u64) -> Result<bool> {
        let Some(held) = self.arena.held_in(block)? else { return Ok(true) };
        let name = held.fingerprint;
        match self.entry(&name)? {
            // A lost chunk does not need just this block.
            Some(entry) if entry.address == 0 => {
                self.apply(ChunkBatch { removals: &[name], ..ChunkBatch::default() })?;
                let spare = self.spare_block()?;
                self.note_lost(&name, spare, encode_note(held.kind, held.length_bytes), entry.count.into())?;
                Ok(true)
            }
            // An earlier rebuild kept the bytes under another name (`keep_unknown`).
            Some(entry) if entry.count == 0 && !self.counts.contains_key(&name) => {
                self.apply(ChunkBatch { removals: &[name], ..ChunkBatch::default() })?;
                self.found.chunks -= 1;
                self.found.raw_bytes -= u64::from(held.length_bytes);
                self.found.stored_bytes -= u64::from(held.length_bytes);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Puts a chunk into the block where it was found. `known`: it was noted as lost.
    fn place(&mut self, name: &Fingerprint, known: Option<IndexEntry>, at: (u64, ChunkKind, u32)) -> Result<()> {
        let (block, kind, length_bytes) = at;
        if known.is_some() {
            self.apply(ChunkBatch { removals: &[*name], ..ChunkBatch::default() })?;
            self.lost -= 1;
            self.lost_metadata.remove(name);
        }
        self.insert(&[(*name, block, kind, length_bytes)])?;
        match known {
            Some(entry) => self.apply(ChunkBatch { deltas: &[(*name, entry.count.into())], ..ChunkBatch::default() }),
            None => Ok(()),
        }
    }

    /// Keeps what is in blocks without a chunk if lost metadata may need it. Call when all chunks were searched for.
    fn keep_unknown(&mut self) -> Result<()> {
        if self.lost_metadata.is_empty() && !self.has_more_lost_metadata && self.unreadable.is_empty() {
            return Ok(());
        }
        let (arena, mut kept, mut failed) = (self.arena.clone(), 0, None);
        arena.each_without_chunk(&mut |address, held, bytes| {
            if held.is_none() {
                match self.keep_block(address, bytes) {
                    Ok(is_kept) => kept += u64::from(is_kept),
                    Err(error) => failed = Some(error),
                }
            }
            failed.is_none()
        })?;
        if kept > 0 {
            self.problem(format!("{kept} blocks that nothing refers to are kept: lost metadata may need them"));
        }
        failed.map_or(Ok(()), Err)
    }

    fn keep_block(&mut self, address: Address, bytes: &[u8]) -> Result<bool> {
        let Some(block) = block_of_address(address) else { return Ok(false) };
        // Another block may have the same bytes, and yet not the same chunk: the shorter one has another name.
        for possible in self.arena.possible_names(bytes).filter(|possible| !possible.is_metadata).take(2) {
            if self.entry(&possible.name)?.is_none() {
                self.insert(&[(possible.name, block, ChunkKind::Data, possible.length_bytes)])?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Searches all blocks without a chunk for chunks that were not where references say. Call when everything was
    /// followed.
    pub fn find_lost(&mut self, roots: &dyn Roots) -> Result<()> {
        self.hand_over()?;
        while self.lost > 0 {
            let (arena, mut metadata, mut failed) = (self.arena.clone(), Vec::new(), None);
            arena.each_without_chunk(&mut |address, _, bytes| {
                match self.find_in(address, bytes) {
                    Ok(step) => metadata.extend(step),
                    Err(error) => failed = Some(error),
                }
                failed.is_none() && self.lost > 0
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            // What it refers to may be lost in the same way.
            if metadata.is_empty() {
                break;
            }
            for step in metadata {
                let below = self.below(&step, roots)?;
                self.trace(below, roots)?;
            }
            self.hand_over()?;
        }
        Ok(())
    }

    /// Places a lost chunk if it is in this block. Returns it if it refers to others.
    fn find_in(&mut self, address: Address, bytes: &[u8]) -> Result<Option<Step>> {
        let Some(block) = block_of_address(address) else { return Ok(None) };
        for possible in self.arena.possible_names(bytes) {
            if !self.may_be_lost(&possible.name) {
                continue;
            }
            let known = self.entry(&possible.name)?.filter(|entry| entry.address == 0);
            let step = self.lost_metadata.get(&possible.name).copied();
            // Metadata beyond the limit is not searched for.
            if known.is_none() || step.is_some() != possible.is_metadata || !self.clear(block)? {
                continue;
            }
            // Clearing may have moved the chunk itself.
            let known = self.entry(&possible.name)?;
            let kind = step.and_then(|step| step.kind()).unwrap_or(ChunkKind::Data);
            self.place(&possible.name, known, (block, kind, possible.length_bytes))?;
            return Ok(step.map(|step| step.at(address)));
        }
        Ok(None)
    }

    fn may_be_lost(&self, name: &Fingerprint) -> bool {
        let bit = name.hash_bits() % FILTER_BITS;
        self.lost_filter[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// Puts the new index in the place of the old one. Returns what is lost.
    pub fn finish(mut self) -> Result<Vec<String>> {
        self.hand_over()?;
        if self.lost > 0 {
            self.problem(format!("{} chunks that are needed are in no block", self.lost));
        }
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
        if self.more_problems > 0 {
            self.problems.push(format!("and {} more", self.more_problems));
        }
        Ok(self.problems)
    }

    /// Notes a chunk that is not where its first reference says.
    fn lose(&mut self, step: &Step, kind: ChunkKind) -> Result<()> {
        let name = step.fingerprint;
        if kind != ChunkKind::Data {
            if self.lost_metadata.len() < MOST_METADATA {
                self.lost_metadata.insert(name, *step);
            } else {
                self.has_more_lost_metadata = true;
            }
        }
        let bit = name.hash_bits() % FILTER_BITS;
        self.lost_filter[(bit / 64) as usize] |= 1 << (bit % 64);
        self.lost += 1;
        let own = block_of_address(step.address);
        let block = match own {
            Some(block) if self.arena.held_in(block)?.is_none() => block,
            _ => self.spare_block()?,
        };
        self.note_lost(&name, block, encode_note(kind, 1), 1)
    }

    /// A lost chunk has references, so the index keeps it.
    fn note_lost(&mut self, name: &Fingerprint, block: u64, note: u32, count: i64) -> Result<()> {
        let inserts = [(*name, address_of_block(block).bits())];
        self.apply(ChunkBatch { inserts: &inserts, notes: &[note], deltas: &[(*name, count)], ..ChunkBatch::default() })?;
        self.apply(ChunkBatch { places: &[(*name, 0)], ..ChunkBatch::default() })
    }

    fn problem(&mut self, problem: String) {
        if self.problems.len() < LISTED {
            self.problems.push(problem);
        } else {
            self.more_problems += 1;
        }
    }

    /// Returns a block behind the end of the file that no chunk has.
    fn spare_block(&mut self) -> Result<u64> {
        while self.arena.held_in(self.spare)?.is_some() {
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

/// Removes what a rebuild left that was cut short before the new index was whole. Call only in a store that no rebuild
/// keeps closed.
pub(crate) fn forget_new_index(ground: &dyn Ground) -> Result<()> {
    if ground.exists(NEW_INDEX)? {
        for file in ground.list(NEW_INDEX)? {
            ground.remove(&format!("{NEW_INDEX}/{}", file.name))?;
        }
    }
    Ok(())
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
