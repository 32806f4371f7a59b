//! Decides which block a chunk gets.
//!
//! A block may be given out if
//! * it lies within the file and its limit,
//! * the block table has no chunk for it,
//! * no pending chunk is in it,
//! * it is not *retired*: its chunk is being removed, and somebody may still read it,
//! * no writer has *reserved* it. A writer reserves a run ahead, so that its chunks lie one behind the other although
//!   others write too.
//!
//! [`Space`] is a part of one lock, and everything that makes a block free or takes it happens under that lock. The one
//! exception is a commit: it moves a block from the pending ones to the table. So whoever looks at both looks at the
//! pending ones first ([`Space::open_window`]).

use crate::arena::block::{UNIT_BLOCKS, first_block, unit_of_block};
use crate::arena::store::ArenaStore;
use crate::arena::window::Window;
use crate::{Result, StorageError};
use std::collections::BTreeMap;
use std::ops::Range;

/// The block table is asked for this many blocks at once.
const PIECE_BLOCKS: usize = 4096;
/// A unit is worth moving to if one of this many of its blocks is free. Otherwise the file grows while it may: a few
/// free blocks here and there would tear the next chunks apart.
const WORTHWHILE_SHARE: u64 = 8;
/// At most this many units are asked for such room each time, so that a choice takes bounded time.
const UNITS_ASKED: u32 = 4096;

/// The name of a writer.
pub(crate) type WriterId = u64;

/// How far the removal of a retired block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The removal may not be durable, and readers may be left.
    Begun,
    /// A thread makes the hole.
    Freeing,
}

/// What is given out, and what may be.
#[derive(Debug)]
pub(crate) struct Space {
    /// Whole blocks of the file, as far as the limit goes.
    pub(crate) blocks: u64,
    window: Option<Window>,
    /// Blocks that are being removed.
    pub(crate) retired: BTreeMap<u64, Removal>,
    /// Runs that writers have taken ahead. None is empty.
    pub(crate) reserved: BTreeMap<WriterId, Range<u64>>,
}

impl Space {
    pub(crate) fn new(blocks: u64) -> Space {
        Space { blocks, window: None, retired: BTreeMap::new(), reserved: BTreeMap::new() }
    }

    /// Returns the units of the file. The last may be a part of one.
    fn units(&self) -> u32 {
        self.blocks.div_ceil(UNIT_BLOCKS) as u32
    }

    /// Returns the blocks of the file in a unit.
    fn range(&self, unit: u32) -> Range<u64> {
        let first = first_block(unit);
        first..(first + UNIT_BLOCKS).min(self.blocks).max(first)
    }

    /// Takes a run of 1 to `most` blocks for a writer, which reserves up to `ahead` blocks with it. The caller puts
    /// chunks into them before it lets go of the lock.
    pub(crate) fn take(&mut self, store: &ArenaStore, writer: WriterId, most: u64, ahead: u64) -> Result<Range<u64>> {
        let mut run = match self.reserved.remove(&writer) {
            Some(run) => run,
            None => loop {
                match self.window.as_mut().and_then(|window| window.take_run(ahead.max(most))) {
                    Some(run) => break run,
                    None => self.move_window(store)?,
                }
            },
        };
        let taken = run.start..run.end.min(run.start + most);
        run.start = taken.end;
        if !run.is_empty() {
            self.reserved.insert(writer, run);
        }
        Ok(taken)
    }

    /// Gives back what a writer has reserved.
    pub(crate) fn release(&mut self, writer: WriterId) {
        if let Some(run) = self.reserved.remove(&writer) {
            run.for_each(|block| self.make_free(block));
        }
    }

    /// Notes that a block may be given out again.
    pub(crate) fn make_free(&mut self, block: u64) {
        if let Some(window) = &mut self.window {
            window.free(block);
        }
    }

    /// Chooses where blocks are given out next: a unit with much room, or else new blocks at the end of the file, or
    /// else whatever is left.
    fn move_window(&mut self, store: &ArenaStore) -> Result<()> {
        if self.enter_unit(store, UNITS_ASKED, |space, unit| space.is_worthwhile(store, unit))? {
            return Ok(());
        }
        let limit_blocks = store.options.limit_blocks();
        let grown = if self.blocks < limit_blocks { self.grow(store, limit_blocks).map(|()| true) } else { Ok(false) };
        if let Ok(true) = grown {
            return Ok(());
        }
        let has_unused = |space: &Space, unit: u32| {
            let range = space.range(unit);
            Ok(u64::from(store.table.used(unit)?) < range.end - range.start)
        };
        if self.enter_unit(store, u32::MAX, has_unused)? {
            return Ok(());
        }
        if !self.reserved.is_empty() {
            // What others took ahead is all that is left.
            let writers: Vec<WriterId> = self.reserved.keys().copied().collect();
            writers.into_iter().for_each(|writer| self.release(writer));
            if self.enter_unit(store, u32::MAX, has_unused)? {
                return Ok(());
            }
        }
        grown?;
        Err(StorageError::ArenaFull { path: store.describe(), blocks: self.blocks, limit_blocks })
    }

    /// Extends the file, and gives out its new blocks next. The new length takes no room on the device: each block
    /// takes its own when it is written. That is enough, because nothing was promised to chunks that are not written:
    /// on a full disk they wait in memory. A reservation would not last anyway, as holes give it back.
    fn grow(&mut self, store: &ArenaStore, limit_blocks: u64) -> Result<()> {
        let block_bytes = store.block_bytes();
        let before = self.blocks;
        let blocks = (before + store.options.grow_bytes / block_bytes).min(limit_blocks);
        store.file.set_len(blocks * block_bytes).map_err(StorageError::cannot_write)?;
        self.blocks = blocks;
        let window = self.open_window(store, unit_of_block(before), before..blocks)?;
        self.window = Some(window);
        Ok(())
    }

    /// Moves to the next unit that fits and has a free block, of at most so many. Returns whether there is one.
    fn enter_unit(&mut self, store: &ArenaStore, most: u32, fits: impl Fn(&Space, u32) -> Result<bool>) -> Result<bool> {
        let total = self.units();
        let first = self.window.as_ref().map_or(0, |window| u64::from(window.unit()) + 1);
        for step in 0..total.min(most) {
            let unit = ((first + u64::from(step)) % u64::from(total)) as u32;
            if fits(self, unit)? {
                // Counters may be of different moments. The window tells.
                let window = self.open_window(store, unit, self.range(unit))?;
                if window.has_free() {
                    self.window = Some(window);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns whether a unit has much room, by counters. Never too much is counted: a block that is in two of them
    /// counts twice.
    fn is_worthwhile(&self, store: &ArenaStore, unit: u32) -> Result<bool> {
        let range = self.range(unit);
        let pending = store.pending.count(range.clone());
        let retired = self.retired.range(range.clone()).count() as u64;
        let is_here = |run: &&Range<u64>| unit_of_block(run.start) == unit;
        let reserved: u64 = self.reserved.values().filter(is_here).map(|run| run.end - run.start).sum();
        let used = u64::from(store.table.used(unit)?);
        let blocks = range.end - range.start;
        Ok(blocks.saturating_sub(used + pending + retired + reserved) >= (blocks / WORTHWHILE_SHARE).max(1))
    }

    /// Returns the free blocks of a unit within a range of blocks of the file.
    pub(crate) fn open_window(&self, store: &ArenaStore, unit: u32, range: Range<u64>) -> Result<Window> {
        let in_unit = self.range(unit);
        let range = range.start.max(in_unit.start)..range.end.min(in_unit.end);
        let mut window = Window::new(unit, range.clone());
        // A commit puts a block into the table before it takes it from the pending ones. So in this order no block is
        // missed.
        store.pending.each_in(range.clone(), |block| window.take(block));
        let (mut at, mut held) = (range.start, Vec::new());
        while at < range.end {
            let count = PIECE_BLOCKS.min((range.end - at) as usize);
            held.clear();
            store.table.run(at, count, &mut held)?;
            for block in (at..).zip(&held).filter(|(_, held)| held.is_some()).map(|(block, _)| block) {
                window.take(block);
            }
            at += count as u64;
        }
        self.retired.range(range).for_each(|(block, _)| window.take(*block));
        for run in self.reserved.values().filter(|run| unit_of_block(run.start) == unit) {
            run.clone().for_each(|block| window.take(block));
        }
        Ok(window)
    }
}
