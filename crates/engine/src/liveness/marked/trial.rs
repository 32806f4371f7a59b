//! What a run would come to, without writing anything: for dry runs, and for checks of the marks that are there.

use crate::liveness::Candidate;
use crate::liveness::marked::file::Label;
use crate::liveness::marked::group::{GroupMarks, Traced};
use crate::liveness::marked::objects::{Changed, Saved, Trust};
use crate::liveness::marked::origins::Chunks;
use crate::liveness::marked::state::{ALL, Marked};
use crate::liveness::marked::sweep::dead_beside;
use crate::liveness::marked::trace::Roots;
use crate::liveness::reference::Group;
use crate::liveness::slots::Slots;
use crate::{Address, Engine, Moment, Result};
use onefold_oplog::Position;
use onefold_storage::Origin;
use std::collections::{BTreeMap, BTreeSet};

impl Marked {
    /// Returns all chunks that a run would find to be unneeded. Holds a bit for each stored chunk.
    pub(super) fn would_sweep(&self, engine: &Engine, roots: &mut dyn Roots, damaged: &mut Vec<String>) -> Result<Vec<Candidate>> {
        let moment = engine.moment(None)?;
        let mut groups = BTreeSet::new();
        if let Err(why) = roots.groups(&moment, &mut |group| {
            groups.insert(group);
        }) {
            damaged.push(why);
            return Ok(Vec::new());
        }
        let saved = Saved::read_all(&self.objects).unwrap_or_default();
        let all = Changed::read(&self.objects, ALL)?.unwrap_or_default();
        let mut needed = Chunks::default();
        for group in groups {
            if let Some(of_group) = self.unchanged(group, saved.get(&group).copied(), all)
                && let Ok(mut file) = self.open(group, of_group)
                && file.for_each(&mut |origin, slots| needed.add(origin, slots)).is_ok()
            {
                continue;
            }
            let Traced { chunks, trust, .. } = trace(engine, &moment, roots, group, &|| true, damaged);
            if trust != Trust::Whole {
                return Ok(Vec::new());
            }
            chunks.sorted().into_iter().for_each(|(origin, slots)| needed.add(origin, slots));
        }
        if moment.has_moved() {
            damaged.push("objects could not be read as of one moment; try again".to_owned());
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        // So that no file of a merge is half made.
        let _nothing_moves = engine.reclaiming.alone();
        for container in engine.storage().units()?.iter() {
            let durable = moment.containers().of(container);
            let slots = match engine.storage().chunks_of(container) {
                Ok(slots) => slots,
                Err(error) if error.is_damage() => {
                    damaged.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let origins: BTreeSet<Origin> = slots.iter().map(|(address, _)| address.origin()).collect();
            let mut unmarked: Vec<Candidate> = Vec::new();
            for origin in origins {
                let Some(dead) = dead_beside(engine, origin) else { continue };
                let of_origin = slots.iter().take(durable).filter(|(address, _)| address.origin() == origin);
                let is_open = |slot: usize| !dead.contains(slot) && needed.of(origin).is_none_or(|marks| !marks.contains(slot));
                let of_origin: Vec<Candidate> =
                    of_origin.map(|(address, slot)| Candidate { address: *address, fingerprint: slot.fingerprint }).collect();
                let superfluous = engine.are_superfluous(&of_origin)?;
                let copies = of_origin.iter().zip(superfluous);
                let open = copies.filter(|(copy, is_superfluous)| {
                    is_open(copy.address.slot().into()) || (*is_superfluous && !dead.contains(copy.address.slot().into()))
                });
                unmarked.extend(open.map(|(copy, _)| *copy));
            }
            match engine.are_current(&unmarked) {
                Ok(current) => {
                    found.extend(unmarked.into_iter().zip(current).filter(|(_, is_current)| *is_current).map(|(chunk, _)| chunk));
                }
                Err(why) => damaged.push(why),
            }
        }
        Ok(found)
    }

    /// Returns everything that can be reached, and compares it with the marks of all groups that did not change since.
    pub(super) fn verify(
        &self,
        engine: &Engine,
        moment: &Moment<'_>,
        roots: &mut dyn Roots,
        go_on: &dyn Fn() -> bool,
        wrong: &mut Vec<String>,
    ) -> Result<Reached> {
        let _one = self.running.lock();
        let (mut groups, mut reached) = (BTreeSet::new(), Reached::default());
        // The caller looks at all objects too, and reports those that cannot be read.
        let _ = roots.groups(moment, &mut |group| {
            groups.insert(group);
        });
        let saved = match Saved::read_all(&self.objects) {
            Ok(saved) => saved,
            Err(error) => {
                wrong.push(error.to_string());
                BTreeMap::new()
            }
        };
        let all = Changed::read(&self.objects, ALL)?.unwrap_or_default();
        for group in groups {
            if !go_on() {
                break;
            }
            let Traced { mut chunks, metadata, .. } = trace(engine, moment, roots, group, go_on, &mut Vec::new());
            let unchanged = self.unchanged(group, saved.get(&group).copied(), all).filter(|_| !moment.has_moved());
            // Marks that were made since the moment may rightly lack what was dropped in between.
            let unchanged = unchanged.filter(|saved| saved.position <= moment.position());
            // A file that was removed is made again: repairs remove all of them.
            if let Some(saved) = unchanged.filter(|saved| self.ground.exists(&self.path(group, *saved)).unwrap_or(true)) {
                wrong.extend(self.compare(group, saved, &mut chunks).err());
            }
            metadata.sorted().into_iter().for_each(|(origin, slots)| reached.0.add(origin, slots));
        }
        Ok(reached)
    }

    /// Compares what a group leads to with its marks. Errors: they lack some.
    fn compare(&self, group: Group, saved: Saved, chunks: &mut Chunks) -> std::result::Result<(), String> {
        let mut marks = Chunks::default();
        self.open(group, saved)?.for_each(&mut |origin, slots| marks.add(origin, slots))?;
        let is_marked = |(origin, slots): &(Origin, &Slots)| marks.of(*origin).is_some_and(|marks| slots.is_within(marks));
        match chunks.sorted().iter().find(|one| !is_marked(one)) {
            None => Ok(()),
            Some((origin, _)) => Err(format!("the marks of {} lack chunks of container {origin} that it needs", name(group))),
        }
    }

    /// Returns the marks of a group if they are whole and as of its last change.
    fn unchanged(&self, group: Group, saved: Option<Saved>, all: Changed) -> Option<Saved> {
        let saved = saved.filter(|saved| saved.trust == Trust::Whole)?;
        let changed = Changed::read(&self.objects, group).ok().flatten()?;
        let is_before = |position: Position| position < saved.position;
        (is_before(all.dropped) && is_before(changed.grown) && is_before(changed.dropped)).then_some(saved)
    }
}

/// The metadata chunks that can be reached from all groups. Takes a bit for each.
#[derive(Debug, Default)]
pub struct Reached(Chunks);

impl Reached {
    /// Returns whether a metadata chunk can be reached.
    pub fn contains(&self, address: Address) -> bool {
        self.0.contains(address)
    }
}

/// Names a group for people.
fn name(group: Group) -> String {
    match group.kind() {
        b'm' => format!("map {} of a volume", group.number()),
        _ => format!("a series of backups (group {:016x})", group.bits()),
    }
}

/// Returns what the objects of a group lead to.
fn trace(
    engine: &Engine,
    moment: &Moment<'_>,
    roots: &mut dyn Roots,
    group: Group,
    go_on: &dyn Fn() -> bool,
    damaged: &mut Vec<String>,
) -> Traced {
    let mut marks = GroupMarks::new(engine, None, false, usize::MAX);
    marks.mark(Label { group, position: Position(0) }, moment, roots, go_on);
    damaged.append(&mut marks.damaged);
    marks.finish()
}
