//! A damaged operations log: what its valid batches say is applied, and a new log begins.
//!
//! The order of the steps is what makes it safe to be cut short. Until the last one the old log is there and damaged, or the marker says that the
//! repair goes on, so that nothing else opens the store.
//! 1. The block index takes the objects of all valid batches behind its own position, and then the position at which the new log starts: whoever
//!    repeats this applies nothing twice. Objects are set by value, so batches behind a hole are right without those in it. In the same step
//!    chunks of unsealed containers that cannot be read get dead.
//! 2. Containers that the log spells are sealed. One that can be read is left alone, so this can be repeated.
//! 3. The chunk index is marked as to be made anew: changes of counts cannot be applied without the lost ones before them.
//! 4. The marker is written; the old segments are moved away; the new log begins; the marker goes.

use super::{Work, is_lost};
use crate::OBJECTS_WRITTEN;
use crate::dead::{self, DeadSlots, PARTITION as DEAD_PARTITION};
use crate::open::{CONTAINERS, LOG, log_options, storage_options};
use crate::{EngineError, Result};
use onefold_ground::profile::Profile;
use onefold_ground::{Access, checksum, parent, read_file, replace_file};
use onefold_index::block;
use onefold_oplog::{Batch, Log, LogError, Opening, PartitionClass, Position, Remnants, first_segment, replace_log, salvage_batches};
use onefold_storage::{Closed, ContainerStore, StorageError};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Stands in the directory of the log while a new log takes the place of a damaged one: where it starts, and where the old one goes.
pub(crate) const MARKER: &str = "log/replacing";
/// Room between the furthest position that is known and the start of a new log, in limits of the log: positions of lost segments are not used again.
const LIMITS_AHEAD: u64 = 4;
/// Batches start at multiples of this.
const SECTOR_BYTES: u64 = 512;

impl Work<'_> {
    /// Looks whether the log is sound and fits the indexes; if not, replaces it.
    pub(super) fn repair_log(&mut self) -> Result<()> {
        if let Some((start, aside)) = self.read_marker()? {
            self.say("the operations log is replaced by a new one: that was begun before");
            self.done.needs_index = true;
            return if self.dry_run { Ok(()) } else { self.replace_log(start, &aside) };
        }
        let Some(why) = self.problem_of_log()? else { return Ok(()) };
        self.say(format!("a new operations log takes the place of the old one: {why}"));
        let start = self.start_of_new_log()?;
        self.keep_remnants(start)?;
        self.done.needs_index = true;
        self.mark_index()?;
        if self.dry_run {
            return Ok(());
        }
        let aside = self.aside();
        self.say(format!("the damaged segments are kept in {}", self.ground.describe(&aside)));
        let text = format!("{:016x} {aside}\n", start.0);
        replace_file(&**self.ground, MARKER, format!("{text}{:016x}\n", checksum(text.as_bytes())).as_bytes())?;
        self.replace_log(start, &aside)
    }

    fn replace_log(&self, start: Position, aside: &str) -> Result<()> {
        replace_log(self.ground, LOG, aside, self.descriptor.store, log_options(self.settings), self.epoch, start)?;
        self.mark_index()?;
        self.ground.remove(MARKER)?;
        Ok(self.ground.sync_directory(parent(MARKER))?)
    }

    /// What the marker of an earlier run says. It is written whole, so one that cannot be read is damage on top, and the repair begins anew.
    fn read_marker(&self) -> Result<Option<(Position, String)>> {
        let bytes = match read_file(&**self.ground, MARKER, 4096) {
            Err(error) if error.is_not_found() => return Ok(None),
            bytes => bytes?,
        };
        let parse = || {
            let text = std::str::from_utf8(&bytes).ok()?;
            let (line, sum) = text.split_once('\n')?;
            let is_whole = sum == format!("{:016x}\n", checksum(format!("{line}\n").as_bytes()));
            let (start, aside) = line.split_once(' ')?;
            is_whole.then_some((Position(u64::from_str_radix(start, 16).ok()?), aside.to_owned()))
        };
        Ok(parse())
    }

    /// Why the store does not open with its log; `None`: it does.
    fn problem_of_log(&self) -> Result<Option<String>> {
        let whole = self.read_log();
        let (start, end) = match whole {
            Ok(range) => range,
            Err(error) if error.is_damage() => return Ok(Some(error.to_string())),
            Err(error) => return Err(error),
        };
        let mut consumers = Vec::new();
        if let Ok(blocks) = self.blocks(Access::Read) {
            consumers.push(("the block index", blocks.position(), blocks.furthest_position()));
        }
        if !self.done.needs_index
            && let Ok(index) = self.index()
        {
            consumers.push(("the chunk index", index.position(), index.required_end()));
        }
        consumers.push(("a file of a container", end, self.containers(Access::Read)?.furthest()?.1));
        let lost = |(name, applied, furthest): &(&str, Position, Position)| {
            if *furthest > end {
                Some(format!("it ends at {}, but {name} knows it up to {}: its end is lost", end.0, furthest.0))
            } else if *applied < start {
                Some(format!("it starts at {}, but {name} knows it only up to {}: its start is lost", start.0, applied.0))
            } else {
                None
            }
        };
        Ok(consumers.iter().find_map(lost))
    }

    /// Reads all of the log as opening does; returns its start and end.
    pub(super) fn read_log(&self) -> Result<(Position, Position)> {
        let log = Log::open(self.ground.clone(), LOG, self.descriptor.store, log_options(self.settings), Opening::ReadOnly)
            .map_err(lost_files)?;
        let storage = self.containers(Access::Read)?;
        let mut failed = None;
        log.replay(log.start(), &mut |start, _, records| {
            for record in records.iter().filter(|record| record.partition.class == PartitionClass::Container) {
                if let Err(error) = storage.replay(start, record) {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        failed.map_or(Ok(()), Err)?;
        storage.check_spelled()?;
        Ok((log.start(), log.end()))
    }

    /// A position behind all that any part of the store has seen.
    fn start_of_new_log(&self) -> Result<Position> {
        let mut seen = salvage_batches(&**self.ground, LOG, &self.descriptor.store, &mut |_, _, _| {})?.reach;
        seen = seen.max(self.containers(Access::Read)?.furthest()?.1);
        for header in self.index_headers()? {
            seen = seen.max(Position(header.applied)).max(Position(header.target));
        }
        if let Ok(blocks) = self.blocks(Access::Read) {
            seen = seen.max(blocks.furthest_position());
        }
        let ahead = self.settings.log_limit_bytes.saturating_mul(LIMITS_AHEAD);
        seen.0
            .checked_add(ahead)
            .and_then(|start| start.checked_next_multiple_of(SECTOR_BYTES))
            .map(Position)
            .ok_or_else(|| EngineError::Inconsistent { why: format!("a part of it names position {} of the log, which cannot be", seen.0) })
    }

    /// Brings the block index to what all valid batches say, and seals containers.
    fn keep_remnants(&mut self, start: Position) -> Result<()> {
        let storage = self.containers(Access::Read)?;
        let blocks = if self.dry_run { self.blocks(Access::Read) } else { self.blocks(Access::ReadWrite) }?;
        let before = blocks.position();
        let furthest = self.furthest_applied(blocks.furthest_position())?;
        let mut unknown = 0u64;
        let mut failed = None;
        let remnants = salvage_batches(&**self.ground, LOG, &self.descriptor.store, &mut |position, end, batch| {
            if failed.is_none() {
                failed = take_batch(&storage, (!self.dry_run).then_some(&blocks), position, end, batch, &mut unknown).err();
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        let (aside, log_start) = (self.aside(), first_segment(&**self.ground, LOG)?);
        let closed = storage.close_damaged(self.epoch, log_start, &aside, true)?;
        if !self.dry_run {
            // Before there are catalogs that have these chunks: an index made from them would take the chunks for stored.
            blocks.apply(start, 0, &dead(&blocks, &closed)?)?;
            blocks.persist()?;
            storage.close_damaged(self.epoch, log_start, &aside, false)?;
        }
        drop(blocks);
        self.tell(&remnants, &closed, before, furthest, unknown);
        Ok(())
    }

    /// How far the log went, as far as its consumers know.
    fn furthest_applied(&self, blocks: Position) -> Result<Position> {
        let headers = self.index_headers()?;
        Ok(headers.iter().map(|header| Position(header.applied)).fold(blocks, Position::max))
    }

    /// `before`: up to where the block index had the log; `furthest`: up to where it went at least.
    fn tell(&mut self, remnants: &Remnants, closed: &Closed, before: Position, furthest: Position, unknown: u64) {
        self.say(format!("{} batches of the log are whole and kept", remnants.batches));
        let mut holes = remnants.holes.clone();
        if remnants.batches == 0 && furthest > before {
            holes.push((before, furthest));
        } else if remnants.batches > 0 {
            // What was trimmed before the log's start was applied; what is missing there was not.
            let start = remnants.holes.first().map_or(remnants.start, |(from, _)| remnants.start.min(*from));
            holes.extend((before < start).then_some((before, start)));
            holes.extend((remnants.end < furthest).then_some((remnants.end, furthest)));
        }
        for (from, to) in &holes {
            let lost = format!("the log from {} to {} is lost ({} bytes)", from.0, to.0, to.0 - from.0);
            self.say(if *to <= before {
                format!("{lost}: what it said of volumes and backups was applied before")
            } else {
                format!("{lost}: backups that ended then are lost, and blocks of volumes that were written then show what they had before")
            });
        }
        if unknown > 0 {
            self.say(format!("{unknown} records of the log are whole, but of a kind that this onefold does not know; they are left out"));
        }
        for (container, why) in &closed.cut {
            self.say(format!("container {container} is kept as far as the log spells it: {why}"));
        }
        for lost in &closed.unreadable {
            let (container, chunks) = (lost.container, lost.slots.len());
            self.say(format!(
                "{chunks} chunks of container {container} cannot be read and are lost: parts of its file are damaged or missing"
            ));
        }
        for (container, chunks) in &closed.gone {
            self.say(format!("nothing of container {container} can be read: {chunks} chunks that the log names are lost"));
        }
        for container in &closed.unknown {
            self.say(format!(
                "the file of container {container}, which was not sealed, is set aside: what it holds was in the lost part of the log"
            ));
        }
    }

    pub(super) fn containers(&self, access: Access) -> Result<Arc<ContainerStore>> {
        Ok(ContainerStore::open(
            self.ground.clone(),
            CONTAINERS,
            self.descriptor.container_partitions,
            storage_options(&self.descriptor, self.settings),
            access,
            self.epoch,
            Arc::new(Profile::default()),
        )?)
    }
}

/// The changes of dead slots that say that unreadable chunks are not stored.
fn dead(blocks: &block::BlockIndex, closed: &Closed) -> Result<Vec<block::Change>> {
    let mut changes = Vec::new();
    for lost in &closed.unreadable {
        let mut dead = DeadSlots::read(blocks, lost.container)?;
        dead.of_bytes = lost.of_bytes;
        lost.slots.iter().for_each(|(slot, length_bytes)| dead.insert(*slot, *length_bytes));
        changes.push((DEAD_PARTITION, dead::key(lost.container), Some(dead.encode())));
    }
    Ok(changes)
}

/// Takes over what one batch says of containers and of objects.
fn take_batch(
    storage: &ContainerStore,
    blocks: Option<&block::BlockIndex>,
    position: Position,
    end: Position,
    batch: &Batch,
    unknown: &mut u64,
) -> Result<()> {
    let mut changes = Vec::new();
    for record in &batch.records {
        match record.partition.class {
            PartitionClass::Container => match storage.replay(position, record) {
                Ok(()) => {}
                Err(StorageError::Record { .. }) => *unknown += 1,
                Err(error) => return Err(error.into()),
            },
            PartitionClass::BlockIndex => match block::decode_changes(record.partition.number, &record.payload) {
                Ok(of_record) if record.kind == OBJECTS_WRITTEN => changes.extend(of_record),
                _ => *unknown += 1,
            },
            // Made anew from containers and objects.
            PartitionClass::ChunkIndex => {}
        }
    }
    if let Some(blocks) = blocks {
        blocks.apply(end, 0, &changes)?;
        if blocks.wants_persist() {
            blocks.persist()?;
        }
    }
    Ok(())
}

/// A log whose directory or file is gone is damaged.
fn lost_files(error: LogError) -> EngineError {
    match error {
        LogError::Ground(error) if is_lost(&error) => EngineError::Inconsistent { why: error.to_string() },
        error => error.into(),
    }
}
