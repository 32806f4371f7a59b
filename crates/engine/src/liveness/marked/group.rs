//! Marks one group.

use crate::Engine;
use crate::liveness::marked::file::{Label, MarkFile, MarkWriter};
use crate::liveness::marked::objects::{Saved, Trust};
use crate::liveness::marked::origins::{Chunks, Origins};
use crate::liveness::marked::trace::{Roots, Step, Tracer};
use crate::liveness::slots::Slots;
use crate::{Moment, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Ground;
use onefold_storage::{Address, Origin};

/// Chunks that the index is asked for together.
const RESOLVED_TOGETHER: usize = 4096;
/// The most sentences about damage.
const LISTED: usize = 100;
/// Chunks of objects that are followed together.
const FOLLOWED_TOGETHER: usize = 1 << 16;

/// The marks of a group while they are made.
pub(crate) struct GroupMarks<'a> {
    engine: &'a Engine,
    chunks: Chunks,
    /// Chunks that the index was not asked for yet.
    names: Vec<(Fingerprint, Address)>,
    /// The marks from before.
    old: Option<MarkFile>,
    /// Whether these name the places where chunks are now.
    is_current: bool,
    trust: Trust,
    /// Why something may be missing.
    pub(crate) damaged: Vec<String>,
}

impl<'a> GroupMarks<'a> {
    /// Begins with nothing. `old`: marks that had all that the group needed. `is_current`: no chunk got another place
    /// since.
    pub(crate) fn new(engine: &'a Engine, old: Option<MarkFile>, is_current: bool) -> GroupMarks<'a> {
        GroupMarks { engine, chunks: Chunks::default(), names: Vec::new(), old, is_current, trust: Trust::Whole, damaged: Vec::new() }
    }

    /// Takes over the old marks, which are whole. Errors: they cannot be read.
    pub(crate) fn keep_old(&mut self) -> std::result::Result<(), String> {
        let chunks = &mut self.chunks;
        self.old.as_mut().map_or(Ok(()), |old| old.for_each(&mut |origin, slots| chunks.add(origin, slots)))
    }

    /// Marks what the objects of the group refer to, and what that refers to. Returns false if it was cut short.
    pub(crate) fn mark(&mut self, label: Label, moment: &Moment<'_>, roots: &dyn Roots, go_on: &dyn Fn() -> bool) -> bool {
        let tracer = Tracer { engine: self.engine, go_on };
        let (mut stack, mut unreadable, mut is_done) = (Vec::new(), Vec::new(), true);
        let mut follow = |stack: &mut Vec<Step>| {
            let below = &mut |step: &Step, stack: &mut Vec<Step>| tracer.below(step, roots, stack);
            is_done = is_done
                && tracer.trace(stack, below, &mut |step| self.enter(step.address, step.fingerprint), &mut |step, why| {
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

    /// Marks a chunk. Returns whether it had no mark.
    fn enter(&mut self, address: Address, fingerprint: Fingerprint) -> bool {
        let is_new = self.chunks.insert(address);
        if is_new {
            self.names.push((fingerprint, address));
            if self.names.len() == RESOLVED_TOGETHER {
                self.resolve();
            }
        }
        is_new
    }

    /// Marks where the index has the latest chunks: not at the address, if the copy there was found damaged. Marks lost
    /// chunks where they were.
    fn resolve(&mut self) {
        let names = std::mem::take(&mut self.names);
        let asked = self.engine.further_places(&names, &mut |place| {
            self.chunks.insert(place);
        });
        if let Err(error) = asked {
            self.lacks(error.to_string());
        }
    }

    /// Returns the marks without writing them.
    pub(crate) fn finish(mut self) -> (Chunks, Trust) {
        self.resolve();
        (self.chunks, self.trust)
    }

    /// Writes the marks, and adds the origins that lost some to `lost`. Durable on return, but for the name. Errors
    /// inside: the old marks cannot be read.
    pub(crate) fn write(
        mut self,
        ground: &dyn Ground,
        directory: &str,
        label: Label,
        lost: &mut Origins,
    ) -> Result<std::result::Result<Saved, String>> {
        self.resolve();
        let (old, chunks) = (&mut self.old, &mut self.chunks);
        let mut with_old = |visit: &mut dyn FnMut(Origin, &Slots)| old.as_mut().map_or(Ok(()), |old| old.for_each(visit));
        if self.trust != Trust::Whole
            && let Err(why) = with_old(&mut |origin, slots| chunks.add(origin, slots))
        {
            return Ok(Err(why));
        }
        let mut writer = MarkWriter::create(ground, &label.path(directory), label)?;
        for (origin, slots) in chunks.sorted() {
            writer.push(origin, slots)?;
        }
        let length_bytes = writer.finish()?;
        let compared = with_old(&mut |origin, slots| {
            if !chunks.of(origin).is_some_and(|new| slots.is_within(new)) {
                lost.insert(origin);
            }
        });
        if let Err(why) = compared {
            return Ok(Err(why));
        }
        Ok(Ok(Saved { position: label.position, length_bytes, trust: self.trust }))
    }
}
