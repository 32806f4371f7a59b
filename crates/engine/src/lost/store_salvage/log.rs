//! A damaged operations log: its valid batches are applied, and a new log begins.
//!
//! The order of the steps makes it safe to be cut short. Until the last step, either the old log is there and damaged,
//! or the marker says that the repair goes on: so nothing else opens the store.
//! 1. The object index takes the objects of all valid batches after its own position, and then the position at which
//!    the new log starts: a repetition applies nothing twice. Objects are set by value, so batches after a hole are
//!    right without those in it. In the same step unreadable chunks of unsealed containers become dead.
//! 2. Containers that the log defines are sealed. A container that can be read is left alone, so this can be repeated.
//!    Levels take the chunks that the log has, and do not need it from then on: a repetition finds nothing more.
//!    The findings are written down before: afterwards nobody could distinguish lost parts from parts applied long ago.
//! 3. The chunk index is marked for a rebuild: changes of counts cannot be applied without the lost ones before them.
//! 4. The marker is written, the old segments are moved away, the new log begins, and the marker is removed.

use super::{WholeLog, Work};
use crate::OBJECTS_WRITTEN;
use crate::lifecycle::layout::{
    ARENA, CONTAINERS, LEVELS, LOG, OBJECTS, UNUSED_KEPT, arena_options, levels_options, log_options, storage_options,
};
use crate::lifecycle::profile::ChunkStoreKind;
use crate::liveness::dead::{self, DeadSlots};
use crate::liveness::marked::forget_marks;
use crate::{Change, EngineError, Result};
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground, GroundError, checksum, parent, read_file, replace_file};
use onefold_index::{ObjectIndex, objects};
use onefold_oplog::{
    ALIGNMENT_BYTES, Batch, Effects, Log, LogError, Opening, Ownership, PartitionClass, Position, Record, Remnants, SegmentLog,
    first_segment, guess_records, replace_log, salvage_batches,
};
use onefold_storage::{ArenaStore, ChunkStore, Closed, ContainerStore, LevelsStore, StorageError};
use std::ops::ControlFlow;
use std::sync::Arc;

/// This file is in the directory of the log while a new log replaces a damaged one. It says where the new log starts,
/// and where the old one goes.
pub(crate) const MARKER: &str = "log/replacing";
/// The findings of a repair, until the new log is there. Then the file is kept with the old segments.
const REPORT: &str = "log/replacing.report";
const REPORT_ASIDE: &str = "report";
/// Prefix of the report's sentences about losses.
const LOST: &str = "lost: ";
/// Gap between the furthest known position and the start of a new log, in limits of the log: positions of lost segments
/// are not used again.
const LIMITS_AHEAD: u64 = 4;

impl Work<'_> {
    /// Checks that the log is sound and fits the indexes; if not, replaces it.
    pub(super) fn repair_log(&mut self) -> Result<()> {
        if let Some((start, aside)) = self.read_marker()? {
            self.say("an interrupted repair continues: a new operations log replaces the old one");
            self.tell_again(&[REPORT.to_owned(), format!("{aside}/{REPORT_ASIDE}")])?;
            self.done.needs_index = true;
            return if self.dry_run { Ok(()) } else { self.replace_log(start, &aside) };
        }
        let Some(why) = self.problem_of_log()? else { return self.clear_remains() };
        self.say(format!("a new operations log replaces the old one: {why}"));
        self.tell_of_other_copies()?;
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

    /// Says what a repair costs if the blocks are on a device that another copy of this directory has used since.
    fn tell_of_other_copies(&mut self) -> Result<()> {
        let (left, known) = (self.remnants()?.end, self.furthest()?.1);
        if self.descriptor.profile.has_blocks() && known > left {
            self.lose(format!(
                "the block device was written up to position {} of the log, which ends at {}: if another copy of this directory exists, use \
                 that one, as this repair overwrites what it stored since",
                known.0, left.0
            ));
        }
        Ok(())
    }

    /// Removes what an earlier repair left beside a sound log.
    fn clear_remains(&mut self) -> Result<()> {
        if !self.ground.exists(MARKER)? {
            return if self.dry_run { Ok(()) } else { forget_report(&**self.ground) };
        }
        // The marker is damaged, or it would have said how to continue. The new log is in place, but whether the chunk
        // index fits is unknown.
        self.say(format!("{} cannot be read and is removed; the operations log is sound", self.ground.describe(MARKER)));
        self.tell_again(&[REPORT.to_owned()])?;
        self.done.needs_index = true;
        self.mark_index()?;
        if self.dry_run {
            return Ok(());
        }
        let aside = self.aside();
        self.end_replacement(&aside)
    }

    fn replace_log(&self, start: Position, aside: &str) -> Result<()> {
        replace_log(self.ground, LOG, aside, self.descriptor.store, log_options(self.settings), self.epoch, start)?;
        self.mark_index()?;
        self.end_replacement(aside)
    }

    /// Moves the report to the set-aside files, then removes the marker. The new log is there.
    fn end_replacement(&self, aside: &str) -> Result<()> {
        if self.ground.exists(REPORT)? {
            self.ground.create_directory(aside)?;
            self.ground.rename(REPORT, &format!("{aside}/{REPORT_ASIDE}"))?;
            self.ground.sync_directory(aside)?;
        }
        self.ground.remove(MARKER)?;
        Ok(self.ground.sync_directory(parent(MARKER))?)
    }

    /// Repeats the findings of an earlier run that was cut short, if there was one: what it applied cannot be
    /// distinguished from what was there before.
    fn tell_again(&mut self, paths: &[String]) -> Result<bool> {
        for path in paths {
            let bytes = match read_file(&**self.ground, path, 64 << 20) {
                Err(error) if error.is_lasting() || matches!(error, GroundError::TooLong { .. }) => continue,
                bytes => bytes?,
            };
            self.say("an earlier repair, which was interrupted, found:");
            for line in String::from_utf8_lossy(&bytes).lines() {
                match line.strip_prefix(LOST) {
                    Some(lost) => self.lose(lost.to_owned()),
                    None => self.say(line),
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes down the findings before anything that they come from is changed.
    fn keep_report(&self) -> Result<()> {
        let line = |sentence: &String| {
            let prefix = if self.done.losses.contains(sentence) { LOST } else { "" };
            format!("{prefix}{}\n", sentence.replace('\n', " "))
        };
        let lines: String = self.done.sentences.iter().map(line).collect();
        Ok(replace_file(&**self.ground, REPORT, lines.as_bytes())?)
    }

    /// Returns what the marker of an earlier run says. The marker is written atomically, so an unreadable one is
    /// additional damage, and the repair starts over. It also starts over if an earlier build wrote a start at which no
    /// log can begin.
    fn read_marker(&self) -> Result<Option<(Position, String)>> {
        let bytes = match read_file(&**self.ground, MARKER, 4096) {
            Err(error) if error.is_lasting() || matches!(error, GroundError::TooLong { .. }) => return Ok(None),
            bytes => bytes?,
        };
        let parse = || {
            let text = std::str::from_utf8(&bytes).ok()?;
            let (line, sum) = text.split_once('\n')?;
            let is_whole = sum == format!("{:016x}\n", checksum(format!("{line}\n").as_bytes()));
            let (start, aside) = line.split_once(' ')?;
            let start = Position(u64::from_str_radix(start, 16).ok()?);
            (is_whole && start.0.is_multiple_of(ALIGNMENT_BYTES)).then_some((start, aside.to_owned()))
        };
        Ok(parse())
    }

    /// Returns why the store does not open with its log. `None`: it does.
    fn problem_of_log(&mut self) -> Result<Option<String>> {
        let WholeLog { start, end, .. } = match &self.log {
            Ok(whole) => *whole,
            Err(why) => return Ok(Some(why.clone())),
        };
        let mut consumers = Vec::new();
        if let Ok(objects) = self.objects(Access::Read) {
            consumers.push(("the object index", objects.position(), objects.furthest_position()));
        }
        if !self.done.needs_index
            && self.descriptor.profile.is_exact()
            && let Ok(index) = self.index()
        {
            consumers.push(("the chunk index", index.position(), index.required_end()));
        }
        let chunks = match self.descriptor.profile.chunk_store() {
            ChunkStoreKind::Containers => "a container",
            ChunkStoreKind::Arena => "the block device",
            ChunkStoreKind::Levels => "a manifest of levels",
        };
        consumers.push((chunks, end, self.furthest()?.1));
        let lost = |(name, applied, furthest): &(&str, Position, Position)| {
            if *furthest > end {
                Some(format!("it ends at {}, but {name} has seen it up to {}: its end is lost", end.0, furthest.0))
            } else if *applied < start {
                Some(format!("it starts at {}, but {name} has seen it only up to {}: its start is lost", start.0, applied.0))
            } else {
                None
            }
        };
        Ok(consumers.iter().find_map(lost))
    }

    /// Checks whether the log can be read. Errors: those that are not of the log.
    pub(super) fn look_at_log(&mut self) -> Result<()> {
        self.log = match self.read_log() {
            Err(error) if !error.is_damage() => return Err(error),
            read => read.map_err(|error| error.to_string()),
        };
        Ok(())
    }

    /// Returns what is left of the log.
    pub(super) fn remnants(&mut self) -> Result<&Remnants> {
        if self.remnants.is_none() {
            self.remnants = Some(salvage_batches(&**self.ground, LOG, &self.descriptor.store, &mut |_, _, _| {})?);
        }
        Ok(self.remnants.get_or_insert_default())
    }

    /// Returns the greatest epoch and position in the headers of the chunk store.
    pub(super) fn furthest(&mut self) -> Result<(u64, Position)> {
        if self.furthest.is_none() {
            let (ground, partitions) = (&**self.ground, self.descriptor.container_partitions);
            self.furthest = Some(match (self.containers(Access::Read)?, arena_options(&self.descriptor, self.settings)) {
                (Some(containers), _) => containers.furthest()?,
                (None, Some(options)) => match ArenaStore::owner(&**self.ground, ARENA, &options) {
                    // It is written again.
                    Err(error) if error.is_damage() => Default::default(),
                    owner => (owner?, ArenaStore::known_log_end(&**self.ground, ARENA, &options)?),
                },
                (None, None) => match levels_options(&self.descriptor, self.settings) {
                    Some(options) => {
                        let (epoch, end, _) = LevelsStore::manifests(ground, LEVELS, partitions, &options)?;
                        (epoch, end)
                    }
                    None => Default::default(),
                },
            });
        }
        Ok(self.furthest.unwrap_or_default())
    }

    /// Reads the whole log as an opening does.
    fn read_log(&self) -> Result<WholeLog> {
        let log = SegmentLog::open(self.ground.clone(), LOG, self.descriptor.store, log_options(self.settings), Opening::ReadOnly)
            .map_err(lost_files)?;
        // An arena has no part of its own in the log.
        let (storage, levels) = (self.containers(Access::Read)?, self.levels(Access::Read)?);
        let mut failed = None;
        log.replay(log.start(), &mut |start, end, records| {
            let mut of_containers = records.iter().filter(|record| record.partition.class == PartitionClass::Container);
            let replayed = match (&storage, &levels) {
                (Some(storage), _) => of_containers.try_for_each(|record| storage.replay(start, record)),
                (None, Some(levels)) => levels.apply(end, &Effects { start, replayed: records, ..Effects::default() }),
                (None, None) => Ok(()),
            };
            match replayed {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        storage.map_or(Ok(()), |storage| storage.check_spelled())?;
        Ok(WholeLog { start: log.start(), end: log.end(), epoch: log.epoch() })
    }

    /// Returns a position beyond everything that any part of the store has seen.
    fn start_of_new_log(&mut self) -> Result<Position> {
        let mut seen = self.remnants()?.reach;
        seen = seen.max(self.furthest()?.1);
        for header in self.index_headers()? {
            seen = seen.max(header.position);
        }
        if let Ok(objects) = self.objects(Access::Read) {
            seen = seen.max(objects.furthest_position());
        }
        let ahead = self.settings.log_limit_bytes.saturating_mul(LIMITS_AHEAD);
        seen.0
            .checked_add(ahead)
            .and_then(|start| start.checked_next_multiple_of(ALIGNMENT_BYTES))
            .map(Position)
            .ok_or_else(|| EngineError::Inconsistent { why: format!("a part of it names the impossible log position {}", seen.0) })
    }

    /// Applies all valid batches to the object index, and seals containers. What blocks hold is found again by the
    /// rebuild of the index.
    fn keep_remnants(&mut self, start: Position) -> Result<()> {
        let storage = self.containers(Access::Read)?;
        // Before it is opened for writing, which may write to it.
        for partition in 0..self.descriptor.object_partitions {
            self.set_aside(&format!("{OBJECTS}/{partition:04x}.redb"))?;
            self.set_aside(&format!("{OBJECTS}/{partition:04x}.copy"))?;
        }
        let objects = match self.objects_made {
            // A real repair would have made these files.
            Some(_) if self.dry_run => None,
            _ => Some(self.objects(if self.dry_run { Access::Read } else { Access::ReadWrite })?),
        };
        let made = self.objects_made.unwrap_or_default();
        let before = objects.as_ref().map_or(made, ObjectIndex::position);
        let furthest = self.furthest_applied(objects.as_ref().map_or(made, ObjectIndex::furthest_position))?;
        let mut unknown = 0u64;
        let remnants = self.take_batches(&mut |position, _, batch| take_containers(storage.as_deref(), position, batch, &mut unknown))?;
        let (aside, log_start) = (self.aside(), first_segment(&**self.ground, LOG)?.unwrap_or_default());
        let epoch = self.epoch;
        let close = |is_trial| storage.as_ref().map(|storage| storage.close_damaged(epoch, log_start, &aside, is_trial)).transpose();
        let closed = close(true)?.unwrap_or_default();
        let is_repeated = self.tell_again(&[REPORT.to_owned()])?;
        self.tell(&remnants, &closed, before, furthest, unknown, is_repeated)?;
        if !self.dry_run {
            self.keep_report()?;
        }
        let Some(objects) = objects.filter(|_| !self.dry_run) else { return Ok(()) };
        self.take_batches(&mut |_, end, batch| take_objects(&objects, end, batch))?;
        // Before any catalog has these chunks: an index rebuilt from such catalogs would take the chunks for stored.
        objects.apply(start, 0, &dead(&objects, &closed)?)?;
        objects.persist()?;
        // The new log starts here: an older copy would bring back what was deleted since.
        objects.copy_objects()?;
        close(false)?;
        self.keep_chunks_of_levels(start)
    }

    /// Keeps the chunks of levels that the log has, or should name. What they refer to, and what refers to them, is
    /// counted again.
    fn keep_chunks_of_levels(&mut self, start: Position) -> Result<()> {
        let Some(levels) = self.levels(Access::ReadWrite)? else { return Ok(()) };
        let mut unknown = 0;
        self.take_batches(&mut |position, _, batch| {
            unknown += levels.salvage(position, &batch.records)?;
            Ok(())
        })?;
        if unknown > 0 {
            self.say(format!("{unknown} intact records of levels cannot be understood; they are left out"));
        }
        let taken = levels.leave_log(start)?;
        if taken > 0 {
            self.say(format!("{taken} tables of levels are kept that lost parts of the log may have named"));
        }
        Ok(())
    }

    /// Passes all valid batches with their places to `take`.
    fn take_batches(&self, take: &mut dyn FnMut(Position, Position, &Batch) -> Result<()>) -> Result<Remnants> {
        let mut result = Ok(());
        let remnants = salvage_batches(&**self.ground, LOG, &self.descriptor.store, &mut |position, end, batch| {
            if result.is_ok() {
                result = take(position, end, batch);
            }
        })?;
        result.map(|()| remnants)
    }

    /// Returns how far the log went, as far as its consumers know.
    fn furthest_applied(&mut self, objects: Position) -> Result<Position> {
        // What containers know of a batch is from before it is durable.
        let chunks = if self.descriptor.profile.has_containers() { Position(0) } else { self.furthest()?.1 };
        let headers = self.index_headers()?;
        Ok(headers.iter().map(|header| header.applied).fold(objects.max(chunks), Position::max))
    }

    /// Reports what was found. `before`: how far the object index had applied the log. `furthest`: how far the log went
    /// at least. `is_repeated`: an earlier run was cut short, and may have brought the object index up to the start of
    /// its new log.
    fn tell(
        &mut self,
        remnants: &Remnants,
        closed: &Closed,
        before: Position,
        furthest: Position,
        unknown: u64,
        is_repeated: bool,
    ) -> Result<()> {
        self.say(format!("{} intact batches of the log are kept", remnants.batches));
        let lost = |(from, to): &(Position, Position)| format!("the log from {} to {} is lost ({} bytes)", from.0, to.0, to.0 - from.0);
        let mut ends = Vec::new();
        if remnants.batches == 0 && furthest > before {
            ends.push((before, furthest));
        } else if remnants.batches > 0 {
            // Parts trimmed before the log's start were applied; parts missing there were not.
            let start = remnants.holes.first().map_or(remnants.start, |(from, _)| remnants.start.min(*from));
            ends.extend((before < start).then_some((before, start)));
            ends.extend((remnants.end < furthest).then_some((remnants.end, furthest)));
        }
        ends.retain(|hole| !is_repeated || self.done.losses.contains(&lost(hole)));
        let holes: Vec<(Position, Position)> = remnants.holes.iter().copied().chain(ends).collect();
        for hole in &holes {
            let (lost, (from, to)) = (lost(hole), *hole);
            if to <= before && !self.done.losses.contains(&lost) {
                self.lose(self.meaning.applied(&lost));
            } else {
                self.lose(lost);
                self.guess_objects(from, to)?;
            }
        }
        if holes.iter().any(|(_, to)| *to > before) {
            self.tell_of_holes()?;
        }
        if unknown > 0 {
            self.say(format!("{unknown} intact records of the log have a kind that this version does not know; they are left out"));
        }
        for (container, why) in &closed.cut {
            self.say(format!("container {container} is kept up to where the log describes it: {why}"));
        }
        for lost in &closed.unreadable {
            let (container, chunks) = (lost.container, lost.slots.len());
            self.lose(format!(
                "{chunks} chunks of container {container} cannot be read and are lost: parts of its file are damaged or missing"
            ));
        }
        for (container, chunks) in &closed.gone {
            self.lose(format!("container {container} cannot be read at all: its {chunks} chunks are lost"));
        }
        for container in &closed.unknown {
            self.say(format!("the file of unsealed container {container} is set aside: the lost part of the log described its content"));
        }
        Ok(())
    }

    /// Finds out which objects lost batches may have written.
    fn guess_objects(&mut self, from: Position, to: Position) -> Result<()> {
        let records = guess_records(&**self.ground, LOG, &self.descriptor.store, from, to)?;
        let of_objects = records.iter().filter(|record| record.partition.class == PartitionClass::ObjectIndex);
        self.done.lost_objects.extend(of_objects.filter_map(objects_of).flatten());
        Ok(())
    }

    /// Explains what the lost changes of objects mean, and makes sure that nothing is destroyed because of them.
    fn tell_of_holes(&mut self) -> Result<()> {
        let path = self.ground.describe(UNUSED_KEPT);
        self.meaning.lost_changes(&path).into_iter().for_each(|sentence| self.say(sentence));
        self.keep_unused()
    }

    /// From here on objects stay even if nobody uses them.
    pub(super) fn keep_unused(&self) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        // Batches that said what groups changed may be lost too.
        forget_marks(&**self.ground)?;
        Ok(replace_file(&**self.ground, UNUSED_KEPT, self.meaning.kept_text().as_bytes())?)
    }

    /// Returns the levels, if the store has some whose manifests can be read.
    fn levels(&self, access: Access) -> Result<Option<Arc<LevelsStore>>> {
        let Some(options) = levels_options(&self.descriptor, self.settings) else { return Ok(None) };
        let (ground, partitions) = (self.ground.clone(), self.descriptor.container_partitions);
        match LevelsStore::open(ground, LEVELS, partitions, self.epoch, options, Arc::new(Profile::default()), access) {
            Err(error) if error.is_damage() && access == Access::Read => Ok(None),
            levels => Ok(Some(levels?)),
        }
    }

    /// Returns the containers, if the store has any.
    pub(super) fn containers(&self, access: Access) -> Result<Option<Arc<ContainerStore>>> {
        if !self.descriptor.profile.has_containers() {
            return Ok(None);
        }
        Ok(Some(ContainerStore::open(
            self.ground.clone(),
            CONTAINERS,
            &Ownership::all(u32::from(self.descriptor.container_partitions), self.epoch),
            storage_options(&**self.ground, &self.descriptor, self.settings),
            access,
            Arc::new(Profile::default()),
        )?))
    }
}

/// Removes the findings of a repair that was given up because the log was put back.
pub(super) fn forget_report(ground: &dyn Ground) -> Result<()> {
    if ground.exists(REPORT)? {
        ground.remove(REPORT)?;
    }
    Ok(())
}

/// Returns the changes that mark unreadable chunks as dead slots.
fn dead(objects: &ObjectIndex, closed: &Closed) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for lost in &closed.unreadable {
        let mut dead = DeadSlots::read(objects, lost.container)?;
        dead.of_bytes = lost.of_bytes;
        lost.slots.iter().for_each(|(slot, length_bytes)| dead.insert(*slot, *length_bytes));
        changes.push((objects.own_partition(), dead::key(lost.container), Some(dead.encode())));
    }
    Ok(changes)
}

/// Applies the container records of one batch. Counts the records of unknown kinds.
fn take_containers(storage: Option<&ContainerStore>, position: Position, batch: &Batch, unknown: &mut u64) -> Result<()> {
    for record in &batch.records {
        match record.partition.class {
            PartitionClass::Container => match storage.map(|storage| storage.replay(position, record)) {
                Some(Err(StorageError::Record { .. })) => *unknown += 1,
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(())) | None => {}
            },
            PartitionClass::ObjectIndex => *unknown += u64::from(objects_of(record).is_none()),
            // Rebuilt from containers and objects.
            PartitionClass::ChunkIndex => {}
        }
    }
    Ok(())
}

/// Applies the object records of one batch.
fn take_objects(objects: &ObjectIndex, end: Position, batch: &Batch) -> Result<()> {
    let of_objects = batch.records.iter().filter(|record| record.partition.class == PartitionClass::ObjectIndex);
    let changes: Vec<Change> = of_objects.filter_map(objects_of).flatten().collect();
    objects.apply(end, 0, &changes)?;
    if objects.wants_persist() {
        objects.persist()?;
    }
    Ok(())
}

/// Returns the changes in a record of the object index. `None`: it cannot be understood.
fn objects_of(record: &Record) -> Option<Vec<Change>> {
    let changes = objects::decode_changes(record.partition.number, &record.payload).ok();
    changes.filter(|_| record.kind == OBJECTS_WRITTEN)
}

/// Turns a missing directory or file of the log into damage.
fn lost_files(error: LogError) -> EngineError {
    match error {
        LogError::Ground(error) if error.is_lasting() => EngineError::Inconsistent { why: error.to_string() },
        error => error.into(),
    }
}
