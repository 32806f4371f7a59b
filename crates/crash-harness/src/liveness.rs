//! Liveness against a model: references as sets in memory, by group, fed by the same facts as the liveness of the
//! store, through a wrapper around it. After every step of random histories both must call the same chunks unneeded,
//! and the facts must be what the objects say.
//!
//! Why each comparison:
//! * *Facts and objects.* What was stated for a group is exactly what its objects refer to. A reference in a wrong
//!   group would make no difference to counts; marks of the one group would miss it, and a live chunk would go.
//! * *Unneeded now.* Chunk by chunk, and as a list: no group and no stored metadata chunk refers to it.
//! * *Unneeded in the end.* What would go, level by level, is what cannot be reached from any group: so counting from
//!   below and marking from above come to the same.
//!
//! A crash may take the batch that was under way, or leave it. So the model keeps the facts of batches that were not
//! answered yet, and takes what the objects show after the next opening: nothing, or one of these, and all of it.

use crate::model::{Model, check_clean};
use crate::profile::Profile;
use crate::steps::step;
use crate::world::{Case, Fault, Random, World, must, policy};
use onefold_catalog::Backup;
use onefold_engine::{Address, Candidate, Cursor, Facts, Group, Liveness, Mode, Noted, Piece, Recipe, Reference, Stored};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_ground::{SimulatedGround, checksum};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

/// Most steps between an opening and the next crash.
const STEPS: u64 = 400;

/// References of groups, by group, name and address.
type Groups = BTreeMap<(Group, Fingerprint, Address), i64>;

#[derive(Clone, Debug, Default)]
struct State {
    groups: Groups,
    /// What each stored metadata chunk refers to.
    metadata: BTreeMap<Fingerprint, Vec<Fingerprint>>,
}

/// The facts of one batch.
#[derive(Clone, Debug, Default)]
struct Batch {
    references: Vec<Reference>,
    stored: Vec<Stored>,
    removed: Vec<Stored>,
}

impl State {
    fn apply(&mut self, batch: &Batch) -> Result<(), String> {
        for Reference { group, fingerprint, address, change } in &batch.references {
            *self.groups.entry((*group, *fingerprint, *address)).or_default() += change;
        }
        self.groups.retain(|_, references| *references != 0);
        if let Some((place, references)) = self.groups.iter().find(|(_, references)| **references < 0) {
            return Err(format!("{place:?} has {references} references"));
        }
        for chunk in &batch.removed {
            if self.metadata.remove(&chunk.fingerprint).unwrap_or_default() != chunk.references {
                return Err(format!("chunk {} is removed with other references than it was stored with", chunk.fingerprint));
            }
        }
        for chunk in &batch.stored {
            if self.metadata.insert(chunk.fingerprint, chunk.references.clone()).is_some() {
                return Err(format!("metadata chunk {} becomes known twice", chunk.fingerprint));
            }
        }
        Ok(())
    }

    /// The chunks that something refers to.
    fn referred(&self) -> BTreeSet<Fingerprint> {
        let roots = self.groups.keys().map(|(_, fingerprint, _)| *fingerprint);
        roots.chain(self.metadata.values().flatten().copied()).collect()
    }

    /// The chunks that can be reached from a group.
    fn reachable(&self) -> BTreeSet<Fingerprint> {
        let mut left: Vec<Fingerprint> = self.groups.keys().map(|(_, fingerprint, _)| *fingerprint).collect();
        let mut reached = BTreeSet::new();
        while let Some(chunk) = left.pop() {
            if reached.insert(chunk) {
                left.extend(self.metadata.get(&chunk).into_iter().flatten());
            }
        }
        reached
    }
}

/// The model, over all openings of a store.
#[derive(Debug, Default)]
struct Sets {
    state: State,
    /// Batches that were noted and not answered, since the last that was.
    open: Vec<Batch>,
    /// What is wrong with what was stated.
    wrong: Option<String>,
    /// References that went from one group to another.
    moved: u64,
}

/// Passes what it is told to the model, and everything on to the store's own liveness.
struct Beside {
    inner: Box<dyn Liveness>,
    sets: Arc<Mutex<Sets>>,
}

impl Liveness for Beside {
    fn note(&self, facts: &Facts<'_>) -> onefold_engine::Result<Noted> {
        let references = facts.references.iter().copied().flatten().copied().collect();
        let batch = Batch { references, stored: facts.stored.to_vec(), removed: facts.removed.to_vec() };
        self.sets.lock().unwrap().open.push(batch);
        self.inner.note(facts)
    }

    fn committed(&self) {
        let mut sets = self.sets.lock().unwrap();
        let batch = sets.open.pop().expect("it was noted before");
        sets.open.clear();
        let applied = sets.state.apply(&batch);
        let added: BTreeMap<_, _> =
            batch.references.iter().filter(|one| one.change > 0).map(|one| ((one.fingerprint, one.address), one.group)).collect();
        let dropped = batch.references.iter().filter(|one| one.change < 0);
        sets.moved +=
            dropped.filter(|one| added.get(&(one.fingerprint, one.address)).is_some_and(|group| *group != one.group)).count() as u64;
        sets.wrong = sets.wrong.take().or(applied.err());
        self.inner.committed();
    }

    fn candidates(
        &self,
        from: Cursor,
        max: usize,
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> onefold_engine::Result<Option<Cursor>> {
        self.inner.candidates(from, max, out, damaged)
    }

    fn all_candidates(&self, damaged: &mut Vec<String>) -> onefold_engine::Result<Vec<Candidate>> {
        self.inner.all_candidates(damaged)
    }

    fn unneeded(&self, candidates: &[Candidate], out: &mut Vec<bool>, damaged: &mut Vec<String>) -> onefold_engine::Result<()> {
        self.inner.unneeded(candidates, out, damaged)
    }

    fn unneeded_without(
        &self,
        lost: &[(Fingerprint, u32)],
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> onefold_engine::Result<()> {
        self.inner.unneeded_without(lost, out, damaged)
    }
}

fn open(case: Case, ground: &SimulatedGround, sets: &Arc<Mutex<Sets>>) -> Result<World, Fault> {
    let around = |inner| -> Box<dyn Liveness> { Box::new(Beside { inner, sets: sets.clone() }) };
    case.open_on(Arc::new(ground.clone()), ground, case.settings(), Mode::ReadWrite, around)
}

/// What the objects of all groups refer to.
fn of_objects(world: &World) -> Result<Groups, Fault> {
    let digest_bytes = world.engine.digest_bytes();
    let (mut found, mut failed) = (Groups::new(), None::<Fault>);
    let mut add = |group: Group, pieces: &[Piece]| {
        Reference::of(pieces, group, 1).for_each(|one| *found.entry((group, one.fingerprint, one.address)).or_default() += 1);
    };
    world.engine.for_each_object(b'm', &mut |key, value| {
        let map = u32::from_be_bytes(key[1..5].try_into().expect("a key has a map"));
        match Recipe::decode(&mut Reader::new(&value[1..]), digest_bytes) {
            Ok(recipe) => add(Group::new(b'm', map.into()), &recipe.pieces),
            Err(error) => failed = Some(error.into()),
        }
    })?;
    world.engine.for_each_object(b'b', &mut |key, value| match Backup::decode_object(key, value, digest_bytes) {
        Ok(backup) => add(Group::new(b'b', checksum(backup.name.as_bytes())), &backup.root.pieces),
        Err(error) => failed = Some(error.into()),
    })?;
    failed.map_or(Ok(found), Err)
}

/// Finds out which of the batches that were not answered before a crash are there.
fn settle(world: &World, sets: &Mutex<Sets>) -> Result<(), Fault> {
    let sets = &mut *sets.lock().unwrap();
    let (found, metadata) = (of_objects(world)?, stored_metadata(world)?);
    let mut possible = vec![sets.state.clone()];
    for batch in sets.open.drain(..) {
        let mut state = sets.state.clone();
        state.apply(&batch)?;
        possible.push(state);
    }
    let fits = |state: &State| state.groups == found && state.metadata.keys().copied().collect::<BTreeSet<_>>() == metadata;
    let Some(state) = possible.iter().find(|state| fits(state)) else {
        let differences: Vec<_> = possible.iter().map(|state| difference(&state.groups, &found)).collect();
        return Err(format!("after a crash the objects fit none of {} states: {differences:?}", possible.len()).into());
    };
    sets.state = state.clone();
    Ok(())
}

/// The metadata chunks that are stored.
fn stored_metadata(world: &World) -> Result<BTreeSet<Fingerprint>, Fault> {
    let storage = world.engine.storage();
    let mut found = BTreeSet::new();
    for container in storage.containers()? {
        let metadata = storage.slots(container)?.into_iter().filter(|(_, slot)| slot.kind != onefold_storage::ChunkKind::Data);
        for (address, slot) in metadata {
            if world.engine.locate(&slot.fingerprint)? == Some(address) {
                found.insert(slot.fingerprint);
            }
        }
    }
    Ok(found)
}

fn difference(stated: &Groups, found: &Groups) -> String {
    let all: BTreeSet<_> = stated.keys().chain(found.keys()).collect();
    let wrong: Vec<_> = all.into_iter().filter(|place| stated.get(place) != found.get(place)).collect();
    let first = wrong.first().map(|place| format!("{place:?}: {:?} stated, {:?} there", stated.get(place), found.get(place)));
    format!("{} of {} differ, {}", wrong.len(), found.len(), first.unwrap_or_default())
}

/// What a run came to, for who reads the output.
#[derive(Debug, Default)]
struct Seen {
    comparisons: u64,
    groups: usize,
    unneeded: usize,
    /// Unneeded chunks that only hung on other unneeded ones.
    hanging: usize,
    moved: u64,
}

/// Compares everything.
fn compare(world: &World, sets: &Mutex<Sets>, seen: &mut Seen) -> Result<(), Fault> {
    world.engine.flush()?;
    let sets = sets.lock().unwrap();
    if let Some(wrong) = &sets.wrong {
        return Err(wrong.clone().into());
    }
    let state = &sets.state;
    let found = of_objects(world)?;
    if state.groups != found {
        return Err(format!("the objects refer to something else than was stated: {}", difference(&state.groups, &found)).into());
    }
    let mut stored: Vec<Candidate> = Vec::new();
    let index = world.engine.index();
    for partition in index.partitions() {
        index.for_each(partition, &mut |fingerprint, entry| {
            let chunk = Candidate { address: Address::from_bits(entry.address), fingerprint: *fingerprint };
            stored.extend((entry.address != 0).then_some(chunk));
            Ok(())
        })?;
    }
    let referred = state.referred();
    if let Some(missing) = referred.iter().find(|chunk| !stored.iter().any(|stored| stored.fingerprint == **chunk)) {
        return Err(format!("chunk {missing} is referred to and not stored").into());
    }
    let mut damaged = Vec::new();
    let answers = world.engine.unneeded(&stored, &mut damaged)?;
    for (chunk, is_unneeded) in stored.iter().zip(answers) {
        if is_unneeded == referred.contains(&chunk.fingerprint) {
            let says = if is_unneeded { "not needed" } else { "needed" };
            return Err(format!("chunk {} is called {says}, the model has {}", chunk.fingerprint, !is_unneeded).into());
        }
    }
    let mut level = world.engine.all_candidates(&mut damaged)?;
    let names = |chunks: &[Candidate]| chunks.iter().map(|chunk| chunk.fingerprint).collect::<BTreeSet<_>>();
    let unneeded: BTreeSet<_> = names(&stored).difference(&referred).copied().collect();
    if names(&level) != unneeded {
        return Err(format!("{} chunks are listed as unneeded, {} are", level.len(), unneeded.len()).into());
    }
    // In the end.
    let (mut gone, mut lost) = (BTreeSet::new(), HashMap::<Fingerprint, u32>::new());
    while !level.is_empty() {
        let mut touched = BTreeSet::new();
        for chunk in &level {
            gone.insert(chunk.fingerprint);
            for reference in state.metadata.get(&chunk.fingerprint).into_iter().flatten() {
                *lost.entry(*reference).or_default() += 1;
                touched.insert(*reference);
            }
        }
        let touched: Vec<_> = touched.into_iter().map(|chunk| (chunk, lost[&chunk])).collect();
        level = world.engine.unneeded_without(&touched, &mut damaged)?;
    }
    let reachable = state.reachable();
    let in_the_end: BTreeSet<_> = names(&stored).difference(&reachable).copied().collect();
    if gone != in_the_end {
        return Err(format!("{} chunks would go in the end, {} are out of reach", gone.len(), in_the_end.len()).into());
    }
    if !damaged.is_empty() {
        return Err(damaged.join("; ").into());
    }
    seen.comparisons += 1;
    seen.groups = seen.groups.max(state.groups.keys().map(|(group, ..)| group).collect::<BTreeSet<_>>().len());
    seen.unneeded += unneeded.len();
    seen.hanging += gone.len() - unneeded.len();
    Ok(())
}

/// Runs random steps with crashes among them, and compares after every step.
pub fn agree_with_sets(profile: &'static Profile, usual_seeds: u64) {
    let mut seen = Seen::default();
    let seeds = profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let (mut random, sets) = (Random(seed ^ 0x11fe), Arc::<Mutex<Sets>>::default());
        let mut model = Model::new("m");
        let mut ground = case.create();
        for round in 0..4u64 {
            ground.crash_after_operations(400 + random.below(20_000));
            let mut run = || -> Result<(), Fault> {
                let mut world = open(case, &ground, &sets)?;
                settle(&world, &sets)?;
                for _ in 0..STEPS {
                    step(&mut world, &mut model, &mut random)?;
                    compare(&world, &sets, &mut seen)?;
                    if random.one_in(8) {
                        // Layers that take in others move mappings.
                        world.volumes.resume_deletions(&|| true)?;
                        compare(&world, &sets, &mut seen)?;
                    }
                }
                Ok(())
            };
            // The crash ends it, nothing else may.
            let result = run();
            assert!(result.is_ok() || ground.is_crashed(), "{case}, round {round}: {}", result.unwrap_err());
            assert_eq!(sets.lock().unwrap().wrong, None, "{case}, round {round}");
            ground = ground.restart(policy(seed + round));
            let world = open(case, &ground, &sets).unwrap();
            must(settle(&world, &sets).map_err(|error| error.to_string()), case, "after a crash");
            must(compare(&world, &sets, &mut seen).map_err(|error| error.to_string()), case, "after a crash");
            must(model.verify(&world, false), case, "after a crash");
            must(check_clean(&world), case, "after a crash");
            drop(world);
            ground = ground.restart(policy(seed + round + 1));
        }
        seen.moved += sets.lock().unwrap().moved;
    });
    println!("{seen:?}");
    let is_much = seen.comparisons > 100 && seen.groups > 3 && seen.unneeded > 100 && seen.hanging > 10 && seen.moved > 0;
    assert!(is_much || !seeds.are_enough(), "little was tried: {seen:?}");
}
