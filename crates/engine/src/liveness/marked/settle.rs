//! Follows what was added since the floor: a removal needs that before it decides.

use crate::liveness::ReferencesOf;
use crate::liveness::marked::state::Marked;
use crate::liveness::marked::trace::{Kinds, Step, Tracer};
use crate::liveness::slots::Slots;
use crate::{Address, Engine, Result};
use onefold_storage::{ChunkKind, Origin};
use std::collections::HashMap;

/// Chunks that the index is asked for together.
const RESOLVED_TOGETHER: usize = 4096;

impl Marked {
    /// Follows what was added since the floor, down through metadata chunks that no group may have marked.
    pub(super) fn follow_added(&self, engine: &Engine, references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> Result<()> {
        loop {
            if let Err(error) = self.resolve_added(engine) {
                self.state.lock().run.iter_mut().for_each(|run| run.ended = Some(error.to_string()));
                return Ok(());
            }
            let open: Vec<(Origin, Slots)> = {
                let state = self.state.lock();
                let Some(run) = state.run.as_ref().filter(|run| run.ended.is_none()) else { return Ok(()) };
                let added = run.added.sorted().into_iter();
                let open = added.map(|(origin, slots)| (origin, run.followed.of(origin).map_or(slots.clone(), |done| slots.without(done))));
                open.filter(|(_, slots)| !slots.is_empty()).collect()
            };
            if open.is_empty() {
                return Ok(());
            }
            let mut stack = Vec::new();
            let mut why_not = None;
            for (origin, slots) in &open {
                if let Err(error) = self.begin_following(engine, *origin, slots, &mut stack) {
                    why_not = Some(error);
                }
            }
            let tracer = Tracer { engine, go_on };
            let mut kinds = Kinds::default();
            let below = &mut |step: &Step, stack: &mut Vec<Step>| tracer.below_any(step, &mut kinds, references, stack);
            let is_done = tracer.trace(&mut stack, below, &mut |step| self.follow(step), &mut |step, why| {
                why_not = Some(format!("metadata chunk {} at {} cannot be read: {why}", step.fingerprint, step.address));
            });
            let mut state = self.state.lock();
            let Some(run) = &mut state.run else { return Ok(()) };
            if !is_done {
                why_not = Some("it was cut short".to_owned());
            }
            if let Some(why) = why_not {
                run.ended = Some(why);
                return Ok(());
            }
            for (origin, slots) in open {
                run.followed.add(origin, &slots);
            }
        }
    }

    /// Pushes those of the slots that are metadata chunks and may lead to chunks without marks.
    fn begin_following(&self, engine: &Engine, origin: Origin, slots: &Slots, stack: &mut Vec<Step>) -> std::result::Result<(), String> {
        let is_settled = |slot: u16| {
            let state = self.state.lock();
            state.run.as_ref().is_none_or(|run| run.is_marked_if_old(origin.address(slot)))
        };
        let mut open = (0..slots.bits().len() * 8).filter(|slot| slots.contains(*slot)).map(|slot| slot as u16);
        // Nearly always this decides for the whole origin.
        if !open.clone().any(|slot| !is_settled(slot)) {
            return Ok(());
        }
        let all = match engine.storage().chunks_beside(origin) {
            Ok((_, all)) => all,
            // Nothing is there any more. The place that the index names is among what was added, too.
            Err(error) if error.is_damage() && engine.storage().has_chunks_of(origin).is_ok_and(|has_file| !has_file) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let metadata: HashMap<Address, _> = all.into_iter().filter(|(_, slot)| slot.kind != ChunkKind::Data).collect();
        stack.extend(open.by_ref().filter_map(|slot| {
            let address = origin.address(slot);
            metadata.get(&address).map(|slot| Step::unknown(address, slot.fingerprint))
        }));
        Ok(())
    }

    /// Notes a chunk that something added leads to. Returns whether what it refers to has to be followed too.
    fn follow(&self, step: &Step) -> bool {
        let mut state = self.state.lock();
        let Some(run) = &mut state.run else { return false };
        let is_settled = run.is_marked_if_old(step.address);
        run.add(step.address, step.fingerprint);
        run.end_if_too_much();
        run.followed.insert(step.address) && !is_settled
    }

    /// Returns for each place whether something leads to it that was added since the floor. If that cannot be told:
    /// true.
    pub(super) fn added_since(&self, engine: &Engine, places: &[Address]) -> Vec<bool> {
        let resolved = self.resolve_added(engine);
        let state = self.state.lock();
        match state.run.as_ref().filter(|run| resolved.is_ok() && run.ended.is_none()) {
            Some(run) => places.iter().map(|place| run.added.contains(*place)).collect(),
            None => vec![true; places.len()],
        }
    }

    /// Adds the places where the index has what was added. After an error the run must end.
    fn resolve_added(&self, engine: &Engine) -> Result<()> {
        let names = self.state.lock().run.as_mut().map(|run| std::mem::take(&mut run.names)).unwrap_or_default();
        for names in names.chunks(RESOLVED_TOGETHER) {
            let mut places = Vec::with_capacity(names.len());
            engine.further_places(names, &mut |place| places.push(place))?;
            if let Some(run) = &mut self.state.lock().run {
                places.into_iter().for_each(|place| {
                    run.added.insert(place);
                });
            }
        }
        Ok(())
    }
}
