//! Looks for unneeded chunks in the origins that have to be swept.

use crate::liveness::Candidate;
use crate::liveness::dead::DeadSlots;
use crate::liveness::marked::objects::Saved;
use crate::liveness::marked::state::{ALL, Marked, Run};
use crate::liveness::reference::Group;
use crate::liveness::slots::Slots;
use crate::{Address, Engine, Result};
use onefold_storage::Origin;
use std::collections::{BTreeMap, BTreeSet};

/// Origins that are swept together.
const SWEPT_TOGETHER: usize = 1024;

impl Marked {
    /// Appends unneeded chunks of the origins from `from` on: `max` or a few more. Returns where to continue. Before a
    /// [run](Self::run) has made marks, there are none.
    pub(super) fn sweep(
        &self,
        engine: &Engine,
        from: Origin,
        max: usize,
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> Result<Option<Origin>> {
        let mut next = Some(from);
        let found = out.len();
        while let Some(from) = next.filter(|_| out.len() - found < max) {
            let mut origins: Vec<Origin> = {
                let state = self.state.lock();
                let Some(run) = state.run.as_ref().filter(|run| run.ended.is_none()) else { return Ok(None) };
                run.sweep.from(from).take(SWEPT_TOGETHER + 1).collect()
            };
            next = origins.get(SWEPT_TOGETHER).copied();
            origins.truncate(SWEPT_TOGETHER);
            // What is left out stays on the list of the sweep. So its chunks keep counting as chunks that may have no
            // marks, and the next run looks at it again.
            let origins = engine.storage().listed(origins)?;
            if let Err(why) = self.need(&origins) {
                damaged.push(why);
                return Ok(None);
            }
            // So that no file of a merge is half made.
            let _nothing_moves = engine.reclaiming.alone();
            for origin in origins {
                self.candidates_of(engine, origin, out, damaged)?;
            }
        }
        Ok(next)
    }

    fn candidates_of(&self, engine: &Engine, origin: Origin, out: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<()> {
        let has_some = |run: &Run| run.committed.includes(origin.address(0));
        if !self.state.lock().run.as_ref().is_some_and(has_some) {
            // It was being made at the floor: a later run looks at it.
            return Ok(());
        }
        let slots = match engine.storage().chunks_beside(origin) {
            Ok((_, slots)) => slots,
            Err(error) if error.is_damage() => {
                // A file that is missing may come back: then its chunks are looked at. If it is lost and needed,
                // `check` says so.
                if engine.storage().has_chunks_of(origin)? {
                    damaged.push(error.to_string());
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let Some(dead) = dead_beside(engine, origin) else {
            damaged.push(format!("the dead slots of container {origin} cannot be read"));
            return Ok(());
        };
        let of_origin = slots.iter().filter(|(address, _)| address.origin() == origin);
        let alive = of_origin.filter(|(address, _)| !dead.contains(address.slot().into()));
        let alive: Vec<Candidate> = alive.map(|(address, slot)| Candidate { address: *address, fingerprint: slot.fingerprint }).collect();
        let superfluous = match engine.are_superfluous(&alive) {
            Ok(superfluous) => superfluous,
            Err(error) => {
                damaged.push(error.to_string());
                return Ok(());
            }
        };
        let unmarked: Vec<Candidate> = {
            let mut state = self.state.lock();
            let Some(run) = &mut state.run else { return Ok(()) };
            let open = alive.iter().zip(superfluous).filter(|(copy, is_superfluous)| *is_superfluous || !run.is_marked(copy.address));
            let unmarked: Vec<_> = open.map(|(copy, _)| *copy).collect();
            // What somebody has added a reference to since the floor has no mark yet, and is looked at again.
            if unmarked.is_empty() {
                run.done_with(origin);
            }
            unmarked
        };
        let mut unneeded = Vec::with_capacity(unmarked.len());
        self.judge(engine, &unmarked, &mut unneeded, damaged)?;
        out.extend(unmarked.iter().zip(unneeded).filter(|(_, is_unneeded)| *is_unneeded).map(|(candidate, _)| *candidate));
        Ok(())
    }

    /// Appends for each candidate whether it is unneeded and still at the same place.
    pub(super) fn judge(&self, engine: &Engine, candidates: &[Candidate], out: &mut Vec<bool>, damaged: &mut Vec<String>) -> Result<()> {
        let origins: BTreeSet<Origin> = candidates.iter().map(|candidate| candidate.address.origin()).collect();
        if let Err(why) = self.need(&origins.into_iter().collect::<Vec<_>>()) {
            damaged.push(why);
            out.extend(candidates.iter().map(|_| false));
            return Ok(());
        }
        let are_current = engine.are_current(candidates).unwrap_or_else(|why| {
            damaged.push(why);
            vec![false; candidates.len()]
        });
        let superfluous = engine.are_superfluous(candidates).unwrap_or_else(|error| {
            damaged.push(error.to_string());
            vec![false; candidates.len()]
        });
        let state = self.state.lock();
        let run = state.run.as_ref().filter(|run| run.ended.is_none());
        let is_unneeded = |copy: &Candidate, is_superfluous| {
            run.is_some_and(|run| run.is_unneeded(copy.address) || (is_superfluous && run.committed.includes(copy.address)))
        };
        let judged = candidates.iter().zip(are_current).zip(superfluous);
        out.extend(judged.map(|((copy, is_current), is_superfluous)| is_current && is_unneeded(copy, is_superfluous)));
        Ok(())
    }

    /// Makes sure that the marks of these origins are in memory, as far as they are swept. Errors: a mark file is lost.
    /// Then nothing more is removed in this run.
    fn need(&self, origins: &[Origin]) -> std::result::Result<(), String> {
        loop {
            let (missing, saved) = match self.missing(origins) {
                (missing, _) if missing.is_empty() => return Ok(()),
                missing => missing,
            };
            match self.marks_of(&missing, &saved) {
                Ok(needed) => {
                    let mut state = self.state.lock();
                    let is_same = state.saved == saved;
                    if let Some(run) = state.run.as_mut().filter(|run| is_same && run.is_planned) {
                        run.needed.extend(needed);
                        return Ok(());
                    }
                }
                Err((group, why)) => {
                    let mut state = self.state.lock();
                    if state.saved == saved {
                        state.lost.insert(group);
                        state.run.iter_mut().for_each(|run| run.ended = Some(why.clone()));
                        return Err(why);
                    }
                }
            }
            // Another run has replaced the marks meanwhile.
        }
    }

    /// Returns those of these origins whose marks are not in memory, as far as they are swept, and where they are.
    fn missing(&self, origins: &[Origin]) -> (Vec<Origin>, BTreeMap<Group, Saved>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(run) = state.run.as_mut().filter(|run| run.is_planned && run.ended.is_none()) else { return <_>::default() };
        let swept = || origins.iter().copied().filter(|origin| run.sweep.contains(*origin));
        let mut missing: Vec<Origin> = swept().filter(|origin| !run.needed.contains_key(origin)).collect();
        if run.needed.len() + missing.len() > 16 * SWEPT_TOGETHER {
            missing = swept().collect();
            run.needed.clear();
        }
        (missing, state.saved.clone())
    }

    /// Reads the marks that all groups have for these origins. Errors: the mark file of this group is lost.
    fn marks_of(
        &self,
        origins: &[Origin],
        saved: &BTreeMap<Group, Saved>,
    ) -> std::result::Result<BTreeMap<Origin, Slots>, (Group, String)> {
        let mut needed: BTreeMap<Origin, Slots> = origins.iter().map(|origin| (*origin, Slots::default())).collect();
        for (group, saved) in saved.iter().filter(|(group, _)| **group != ALL) {
            let read = self.open(*group, *saved).and_then(|mut file| {
                for (origin, slots) in &mut needed {
                    if let Some(of_group) = file.of(*origin)? {
                        slots.add(of_group);
                    }
                }
                Ok(())
            });
            read.map_err(|why| (*group, why))?;
        }
        Ok(needed)
    }

    /// Returns for each place whether the last run found that no group needs what was there, and nobody has added a
    /// reference to it since.
    pub(super) fn unmarked(&self, places: &[Address]) -> Vec<bool> {
        let nobody_knows = vec![false; places.len()];
        let saved = {
            let state = self.state.lock();
            let is_sure = state.run.as_ref().is_some_and(|run| run.is_planned && run.ended.is_none());
            if !is_sure {
                return nobody_knows;
            }
            state.saved.clone()
        };
        let origins: BTreeSet<Origin> = places.iter().map(|place| place.origin()).collect();
        let Ok(marks) = self.marks_of(&origins.into_iter().collect::<Vec<_>>(), &saved) else { return nobody_knows };
        let state = self.state.lock();
        let is_same = state.saved == saved;
        let Some(run) = state.run.as_ref().filter(|run| is_same && run.is_planned && run.ended.is_none()) else { return nobody_knows };
        let is_free = |place: &Address| {
            let is_marked = marks.get(&place.origin()).is_none_or(|marks| marks.contains(place.slot().into()));
            run.committed.includes(*place) && !is_marked && !run.added.contains(*place)
        };
        places.iter().map(is_free).collect()
    }
}

/// Returns which slots of an origin are dead. `None`: that cannot be told.
pub(super) fn dead_beside(engine: &Engine, origin: Origin) -> Option<Slots> {
    let container = engine.storage().unit_of(origin).ok()?;
    let dead = DeadSlots::read(&engine.objects, container).ok()?;
    if dead.count() == 0 {
        return Some(Slots::default());
    }
    let (container_now, slots) = engine.storage().chunks_beside(origin).ok()?;
    let dead = if container_now == container { dead } else { DeadSlots::read(&engine.objects, container_now).ok()? };
    let mut found = Slots::default();
    for (number, (address, _)) in slots.iter().enumerate() {
        if address.origin() == origin && dead.contains(number) {
            found.insert(address.slot().into());
        }
    }
    Some(found)
}
