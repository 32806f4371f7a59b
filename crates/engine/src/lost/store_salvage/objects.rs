//! A damaged object index: a new one is made from its readable parts, the second copy of the essential objects, and the
//! log.

use super::Work;
use crate::Result;
use crate::lifecycle::layout::{LOG, OBJECTS};
use onefold_ground::Access;
use onefold_index::ObjectIndex;
use onefold_index::objects::{Need, Salvage, SalvagedPartition, salvage_partition};
use onefold_oplog::{Position, first_segment};

impl Work<'_> {
    /// Rebuilds partitions whose files are damaged, or older than the log and their second copy. Also rewrites damaged
    /// second copies.
    pub(super) fn repair_objects(&mut self) -> Result<()> {
        let first = first_segment(&**self.ground, LOG)?;
        for partition in 0..self.descriptor.object_partitions {
            // Without any segment, the second copy is the newest state that is left.
            let copied = || ObjectIndex::copied_position(&**self.ground, OBJECTS, partition);
            let start = first.or_else(copied).unwrap_or_default();
            let (problem, position) = ObjectIndex::problem_of(self.ground, OBJECTS, partition)?;
            let problem = match (problem, position) {
                (Some(problem), _) => problem,
                (None, Some(position)) if position < start && copied().is_some_and(|copied| copied >= start) => {
                    format!("it has applied the log up to {}, but the log starts at {}: it is an older file", position.0, start.0)
                }
                _ => continue,
            };
            self.salvage_partition(partition, start, first, &problem)?;
        }
        self.repair_copies(first.unwrap_or_default())
    }

    /// Rebuilds a partition. `start`: the position up to which the new file is applied. `first`: the start of the log,
    /// if any of it is left.
    fn salvage_partition(&mut self, partition: u16, start: Position, first: Option<Position>, problem: &str) -> Result<()> {
        let aside = self.aside_name();
        let meaning = self.meaning;
        let has_whole_log = first == Some(Position(0)) && self.log.is_ok();
        let how = Salvage {
            ground: self.ground,
            directory: OBJECTS,
            epoch: self.epoch,
            position: start,
            has_whole_log,
            content: &|kind| if meaning.is_needed(kind) { Need::Needed } else { Need::Helpful },
            aside: &aside,
            dry_run: self.dry_run,
        };
        // The counts and removals of the chunk index may be as of another time than the kept objects. Without dead
        // slots, removed chunks would be taken for stored. Mark first: after a cut, nobody knows any more why the file
        // was rebuilt.
        self.done.needs_index = true;
        self.mark_index()?;
        let done = salvage_partition(&how, partition)?;
        self.objects_made = self.objects_made.max(Some(start));
        let path = self.ground.describe(&format!("{OBJECTS}/{partition:04x}.redb"));
        self.say(format!("{path} is rebuilt: {problem}"));
        self.tell_of_partition(&path, &aside, done)
    }

    fn tell_of_partition(&mut self, path: &str, aside: &str, done: SalvagedPartition) -> Result<()> {
        let copied = done.copied.map_or(String::new(), |copied| format!(", {copied} from the second copy"));
        self.say(format!("{} objects are kept{copied}; the old file is {path}.{aside}", done.objects));
        if done.older.is_some() {
            // Objects that belong together may be as of two times.
            self.keep_unused()?;
        }
        if let Some(problem) = done.copy_problem {
            self.say(format!("its second copy is rewritten: {problem}"));
            if done.copied.is_some_and(|copied| copied > 0) {
                self.say(self.meaning.copied());
            }
        }
        if let Some(older) = done.older {
            self.lose(self.meaning.older(older.0));
        }
        let needed = done.lost.iter().filter(|(.., content)| *content == Need::Needed).count();
        if needed > 0 {
            self.lose(self.meaning.lost_ranges(needed));
        }
        Ok(())
    }

    /// Rewrites second copies that are damaged or older than the log's start. The log after the object index's position
    /// exists.
    fn repair_copies(&mut self, log_start: Position) -> Result<()> {
        let Ok(objects) = self.objects(Access::Read) else { return Ok(()) };
        let damaged = objects.damaged_copies(log_start);
        drop(objects);
        if damaged.is_empty() {
            return Ok(());
        }
        for problem in &damaged {
            self.say(format!("a second copy of objects is rewritten: {problem}"));
        }
        if !self.dry_run {
            for partition in 0..self.descriptor.object_partitions {
                self.set_aside(&format!("{OBJECTS}/{partition:04x}.copy"))?;
            }
            self.objects(Access::ReadWrite)?.copy_objects()?;
        }
        Ok(())
    }
}
