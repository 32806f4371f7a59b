//! Marks one group.

use crate::Engine;
use crate::liveness::marked::file::{Label, MarkFile, MarkWriter, Sorted, Union};
use crate::liveness::marked::objects::{Saved, Trust};
use crate::liveness::marked::origins::{Chunks, Origins};
use crate::liveness::marked::state::MARKS;
use crate::liveness::marked::trace::{Roots, Step, Tracer};
use crate::{EngineError, Moment, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Ground;
use onefold_storage::Address;

/// Chunks that the index is asked for together.
const RESOLVED_TOGETHER: usize = 4096;
/// The most sentences about damage.
const LISTED: usize = 100;
/// Chunks of objects that are followed together.
const FOLLOWED_TOGETHER: usize = 1 << 16;

/// The marks of a group while they are made.
///
/// Those of metadata chunks stay in memory, a bit each: what has one is not followed again. All others go into files
/// when there is no memory for them, and come together when the marks are written.
pub(crate) struct GroupMarks<'a> {
    engine: &'a Engine,
    metadata: Chunks,
    others: Chunks,
    /// Of these: places that no reference names. Chunks are there now.
    moved: Chunks,
    /// Memory for the others.
    limit_bytes: usize,
    /// Marks that there was no memory for, each file in order.
    spilled: Vec<MarkFile>,
    /// Chunks that the index was not asked for yet.
    names: Vec<(Fingerprint, Address)>,
    /// The marks from before.
    old: Option<MarkFile>,
    /// Whether all of these stay.
    keeps_old: bool,
    /// Whether these name the places where chunks are now.
    is_current: bool,
    trust: Trust,
    /// Why something may be missing.
    pub(crate) damaged: Vec<String>,
    /// Why the marks cannot be made.
    failed: Option<EngineError>,
}

/// What a group leads to.
pub(crate) struct Traced {
    /// All of it.
    pub(crate) chunks: Chunks,
    /// Its metadata chunks, and some others.
    pub(crate) metadata: Chunks,
    pub(crate) trust: Trust,
}

impl<'a> GroupMarks<'a> {
    /// Begins with nothing. `old`: marks that had all that the group needed. `is_current`: no chunk got another place
    /// since. `limit_bytes`: memory for marks of data.
    pub(crate) fn new(engine: &'a Engine, old: Option<MarkFile>, is_current: bool, limit_bytes: usize) -> GroupMarks<'a> {
        GroupMarks {
            engine,
            metadata: Chunks::default(),
            others: Chunks::default(),
            moved: Chunks::default(),
            limit_bytes,
            spilled: Vec::new(),
            names: Vec::new(),
            old,
            keeps_old: false,
            is_current,
            trust: Trust::Whole,
            damaged: Vec::new(),
            failed: None,
        }
    }

    /// Takes over the old marks, which are whole. Errors: they cannot be read.
    pub(crate) fn keep_old(&mut self) -> std::result::Result<(), String> {
        self.keeps_old = true;
        // Now, as later it would be too late to begin with nothing.
        self.old.as_mut().map_or(Ok(()), |old| old.for_each(&mut |_, _| {}))
    }

    /// Marks what the objects of the group refer to, and what that refers to. Returns false if it was cut short.
    pub(crate) fn mark(&mut self, label: Label, moment: &Moment<'_>, roots: &dyn Roots, go_on: &dyn Fn() -> bool) -> bool {
        let tracer = Tracer { engine: self.engine, go_on };
        let (mut stack, mut unreadable, mut is_done) = (Vec::new(), Vec::new(), true);
        let mut follow = |stack: &mut Vec<Step>| {
            let below = &mut |step: &Step, stack: &mut Vec<Step>| tracer.below(step, roots, stack);
            is_done = is_done
                && tracer.trace(stack, below, &mut |step| self.enter(label, step), &mut |step, why| {
                    unreadable
                        .push((step.address, format!("metadata chunk {} at {} cannot be read: {why}", step.fingerprint, step.address)));
                });
        };
        let read = roots.of(moment, label.group, &mut |tree| {
            tracer.begin(tree, &mut stack);
            if stack.len() >= FOLLOWED_TOGETHER {
                follow(&mut stack);
            }
        });
        follow(&mut stack);
        if let Err(why) = read {
            self.lacks(why);
        }
        for (address, why) in unreadable {
            let is_covered = match &mut self.old {
                Some(old) if self.is_current => {
                    old.of(address.origin()).is_ok_and(|slots| slots.is_some_and(|slots| slots.contains(address.slot().into())))
                }
                _ => false,
            };
            if is_covered {
                // What it refers to has old marks, which stay.
                self.trust = if self.trust == Trust::Whole { Trust::Enough } else { self.trust };
                self.note(why);
            } else {
                self.lacks(why);
            }
        }
        is_done
    }

    fn lacks(&mut self, why: String) {
        self.trust = Trust::Lacking;
        self.note(why);
    }

    fn note(&mut self, why: String) {
        if self.damaged.len() < LISTED {
            self.damaged.push(why);
        }
    }

    /// Marks a chunk. Returns whether it may have had no mark, so that what it refers to has to be followed.
    fn enter(&mut self, label: Label, step: &Step) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let chunks = if step.is_data() { &mut self.others } else { &mut self.metadata };
        // Neighbours are asked for one after the other, and lie in one block of the old marks.
        let is_new = chunks.insert(step.address) && !self.has_old(step.address);
        if is_new {
            self.names.push((step.fingerprint, step.address));
            if self.names.len() == RESOLVED_TOGETHER {
                self.resolve();
            }
            if self.others.bytes() > self.limit_bytes {
                self.failed = self.spill(label).err();
            }
        }
        is_new
    }

    /// Returns whether a chunk has an old mark that stays.
    fn has_old(&mut self, address: Address) -> bool {
        let Some(old) = self.old.as_mut().filter(|_| self.keeps_old) else { return false };
        old.of(address.origin()).is_ok_and(|slots| slots.is_some_and(|slots| slots.contains(address.slot().into())))
    }

    fn spill(&mut self, label: Label) -> Result<()> {
        let chunks = std::mem::take(&mut self.others);
        let mut writer = MarkWriter::create_nameless(&**self.engine.ground(), &label.path(MARKS), label)?;
        for (origin, slots) in chunks.sorted() {
            writer.push(origin, slots)?;
        }
        self.spilled.push(writer.into_reader()?);
        Ok(())
    }

    /// Marks where the index has the latest chunks: not at the address, if the copy there was found damaged. Marks lost
    /// chunks where they were.
    fn resolve(&mut self) {
        let names = std::mem::take(&mut self.names);
        let asked = self.engine.further_places(&names, &mut |place| {
            if !self.metadata.contains(place) && self.others.insert(place) {
                self.moved.insert(place);
            }
        });
        if let Err(error) = asked {
            self.lacks(error.to_string());
        }
    }

    /// Returns the marks without writing them. Call only if there was no limit of memory.
    pub(crate) fn finish(mut self) -> Traced {
        self.resolve();
        self.metadata.sorted().into_iter().for_each(|(origin, slots)| self.others.add(origin, slots));
        self.moved.sorted().into_iter().for_each(|(origin, slots)| self.metadata.add(origin, slots));
        Traced { chunks: self.others, metadata: self.metadata, trust: self.trust }
    }

    /// Writes the marks, and adds the origins that lost some to `lost`. Durable on return, but for the name. Errors
    /// inside: the old marks, or those that were put aside, cannot be read.
    pub(crate) fn write(mut self, ground: &dyn Ground, label: Label, lost: &mut Origins) -> Result<std::result::Result<Saved, String>> {
        self.resolve();
        if let Some(error) = self.failed {
            return Err(error);
        }
        // If something could not be read, what it refers to keeps its marks.
        let keeps_old = self.keeps_old || self.trust != Trust::Whole;
        let in_memory = [&self.metadata, &self.others]
            .map(|chunks| Box::new(chunks.sorted().into_iter().map(|(origin, slots)| Ok((origin, slots.clone())))) as Sorted<'_>);
        let mut sources: Vec<Sorted<'_>> = in_memory.into_iter().collect();
        let files = self.spilled.iter_mut().chain(self.old.as_mut().filter(|_| keeps_old));
        sources.extend(files.map(|file| Box::new(file.entries()) as Sorted<'_>));
        let mut writer = MarkWriter::create(ground, &label.path(MARKS), label)?;
        for entry in Union::of(sources) {
            match entry {
                Ok((origin, slots)) => writer.push(origin, &slots)?,
                Err(why) => return Ok(Err(why)),
            }
        }
        let saved = Saved { position: label.position, length_bytes: writer.finish()?, trust: self.trust };
        if let Some(old) = self.old.as_mut().filter(|_| !keeps_old) {
            let mut new = match MarkFile::open(ground, &label.path(MARKS), label, saved.length_bytes) {
                Ok(new) => new,
                Err(why) => return Ok(Err(why)),
            };
            let compared = old.for_each(&mut |origin, slots| {
                // If that cannot be told, it is swept.
                if !new.of(origin).is_ok_and(|new| new.is_some_and(|new| slots.is_within(new))) {
                    lost.insert(origin);
                }
            });
            if let Err(why) = compared {
                return Ok(Err(why));
            }
        }
        Ok(Ok(saved))
    }
}
