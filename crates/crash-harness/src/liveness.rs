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
//! answered yet, and takes what the objects show after the next opening: nothing, or one of these, and all of it. All
//! crashes and failures come at operations on the log, because there a batch is under way.
//!
//! Some openings follow a repair: of a container whose file was gone for a while, or of the chunk index.

mod sets;

use crate::model::Model;
use crate::steps::step;
use crate::verify::check_clean;
use crate::witness::file_of;
use crate::world::{Case, Fault, Profile, Random, World, must, policy};
use onefold_catalog::Backup;
use onefold_engine::{
    Address, Candidate, Cursor, Engine, Group, Liveness, Marked, Mode, Moment, Piece, Recipe, Reference, Roots, Transaction, Tree,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_ground::{CrashPolicy, Ground, SimulatedGround, checksum};
use onefold_storage::ContainerId;
use onefold_upkeep::{NoMonitor, RepairOptions, StoreRoots, rebuild_chunk_index, references_of};
use sets::{Beside, Groups, Sets, State};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

/// How often each store is opened.
const ROUNDS: u64 = 12;
/// Most steps between an opening and the next crash.
const STEPS: u64 = 120;
/// Most operations on the log between an opening and the next crash.
const LOG_OPERATIONS: u64 = 600;
/// Where the store has its log.
const LOG: &str = "log";

fn open(case: Case, ground: &SimulatedGround, sets: &Arc<Mutex<Sets>>) -> Result<World, Fault> {
    let around = |inner, marks: &dyn Fn() -> Marked| -> Box<dyn Liveness> {
        let marked = Arc::new(marks());
        sets.lock().unwrap().marked = Some(marked.clone());
        Box::new(Beside { inner, marked, sets: sets.clone() })
    };
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
        // One that does not fit any more is not there.
        possible.extend(state.apply(&batch).is_ok().then_some(state));
    }
    let fits = |state: &State| state.groups == found && state.metadata.keys().copied().collect::<BTreeSet<_>>() == metadata;
    let Some(state) = possible.iter().find(|state| fits(state)) else {
        let difference = |state: &State| {
            let known: BTreeSet<_> = state.metadata.keys().copied().collect();
            let (lost, new) = (known.difference(&metadata).count(), metadata.difference(&known).count());
            format!("{}, {lost} metadata chunks lost, {new} new", difference(&state.groups, &found))
        };
        let differences: Vec<_> = possible.iter().map(difference).collect();
        return Err(format!("after a crash the objects fit none of {} states: {differences:?}", possible.len()).into());
    };
    sets.state = state.clone();
    Ok(())
}

/// Takes over what a repair left: the same references. What nobody refers to may be gone.
fn settle_repaired(world: &World, sets: &Mutex<Sets>) -> Result<(), Fault> {
    let state = &mut sets.lock().unwrap().state;
    let (found, metadata) = (of_objects(world)?, stored_metadata(world)?);
    if state.groups != found {
        return Err(format!("a repair changed what objects refer to: {}", difference(&state.groups, &found)).into());
    }
    state.metadata.retain(|chunk, _| metadata.contains(chunk));
    if state.metadata.len() != metadata.len() {
        return Err("a repair found metadata chunks that were removed".into());
    }
    Ok(())
}

/// Repairs a store that nobody has open: rebuilds its chunk index, or takes the file of one of `containers` away,
/// repairs, and brings it back.
fn repair(case: Case, disk: &SimulatedGround, containers: &[ContainerId], random: &mut Random, seen: &mut Seen) -> Result<(), Fault> {
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    let Some(container) = containers.get(random.below(2 * containers.len() as u64) as usize) else {
        seen.rebuilt += 1;
        let problems = rebuild_chunk_index(ground, case.settings(), "test", &NoMonitor)?;
        return if problems.is_empty() { Ok(()) } else { Err(problems.join("; ").into()) };
    };
    let options = RepairOptions { dry_run: false, may_lose: false, memory_bytes: 16 << 20 };
    let repair = || onefold_upkeep::repair(ground.clone(), case.settings(), options, "test", &NoMonitor);
    let path = file_of(*container);
    disk.rename(&path, "hidden")?;
    seen.quarantined += repair()?.quarantined_chunks;
    if disk.exists(&path)? {
        disk.remove("hidden")?; // Parity had it.
    } else {
        disk.rename("hidden", &path)?;
    }
    match repair()?.check.problems.first() {
        Some(problem) => Err(format!("container {container} is there again, but {problem:?}").into()),
        None => Ok(()),
    }
}

/// The metadata chunks that are stored.
fn stored_metadata(world: &World) -> Result<BTreeSet<Fingerprint>, Fault> {
    let storage = world.engine.storage();
    let mut found = BTreeSet::new();
    for container in storage.units()?.iter() {
        let metadata = storage.chunks_of(container)?.into_iter().filter(|(_, slot)| slot.kind != onefold_storage::ChunkKind::Data);
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

/// What a run came to, for the readers of the output.
#[derive(Debug, Default)]
struct Seen {
    comparisons: u64,
    groups: usize,
    unneeded: usize,
    /// Unneeded chunks that only hung on other unneeded ones.
    hanging: usize,
    moved: u64,
    /// Ends of a round at a write to the log, by a crash or a failure.
    ends: u64,
    /// Batches that failed, and the store went on.
    failed: u64,
    rebuilt: u64,
    quarantined: u64,
    /// Groups that were marked, and groups whose marks were reused.
    marked: u64,
    reused: u64,
    /// Chunks that marks called unneeded.
    unmarked: usize,
    /// Runs of marking with steps in between, or with damage.
    interrupted: u64,
    /// Unneeded metadata chunks that were wanted again during a run.
    wanted_again: u64,
    /// Runs that found damage because of which nothing may be removed.
    held: u64,
}

impl Seen {
    /// Returns whether everything was tried that the trial is there for.
    fn is_much(&self) -> bool {
        let is_much = self.comparisons > 100 && self.groups > 3 && self.unneeded > 100 && self.hanging > 10 && self.moved > 0;
        let is_cut = self.ends > 20 && self.failed > 20 && self.rebuilt > 3 && self.quarantined > 20;
        let is_marked = self.marked > 100 && self.reused > 100 && self.unmarked > 100 && self.interrupted > 10;
        is_much && is_cut && is_marked && self.held > 0 && self.wanted_again > 3
    }
}

/// Returns all chunks that are stored.
fn stored(engine: &Engine) -> Result<Vec<Candidate>, Fault> {
    let (index, mut stored) = (engine.index().ok_or("the trial needs a chunk index")?, Vec::new());
    for partition in index.partitions() {
        index.for_each(partition, &mut |fingerprint, entry| {
            let chunk = Candidate { address: Address::from_bits(entry.address), fingerprint: *fingerprint };
            stored.extend((entry.address != 0).then_some(chunk));
            Ok(())
        })?;
    }
    Ok(stored)
}

/// Compares everything. The store was flushed.
fn compare(world: &World, sets: &Mutex<Sets>, seen: &mut Seen) -> Result<(), Fault> {
    let sets = sets.lock().unwrap();
    if let Some(wrong) = &sets.wrong {
        return Err(wrong.clone().into());
    }
    let state = &sets.state;
    let found = of_objects(world)?;
    if state.groups != found {
        return Err(format!("the objects refer to something else than was stated: {}", difference(&state.groups, &found)).into());
    }
    let stored = stored(&world.engine)?;
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
    let mut level = world.engine.all_candidates(&mut StoreRoots::new(world.engine.digest_bytes()), &mut damaged)?;
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

/// Asks marks what is unneeded, after a run in which `act` is called between any two groups. Errors: they call
/// something unneeded that can be reached; or, if nothing was done in between, they do not call everything else
/// unneeded.
fn compare_marks(engine: &Engine, sets: &Mutex<Sets>, seen: &mut Seen, act: Option<&mut dyn FnMut()>) -> Result<(), Fault> {
    let marked = sets.lock().unwrap().marked.clone().expect("it is open");
    let is_quiet = act.is_none();
    let mut roots = Interrupted { inner: StoreRoots::new(engine.digest_bytes()), act: RefCell::new(act) };
    let marking = marked.run(engine, &mut roots, &|| true)?;
    if let Some(why) = marking.held {
        return Err(format!("marks tell nothing: {why}").into());
    }
    engine.flush()?;
    marked.settle(engine, &references_of(engine.digest_bytes()), &|| true)?;
    let (mut found, mut damaged, mut from) = (Vec::new(), Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = from {
        from = marked.candidates(engine, cursor, 16, &mut found, &mut damaged)?;
    }
    let called: BTreeSet<_> = found.iter().map(|chunk| chunk.fingerprint).collect();
    let reachable = sets.lock().unwrap().state.reachable();
    if let Some(chunk) = called.intersection(&reachable).next() {
        let place = found.iter().find(|one| one.fingerprint == *chunk).map(|one| one.address);
        let state = &sets.lock().unwrap().state;
        let named: Vec<_> =
            state.groups.keys().filter(|(_, name, _)| name == chunk).map(|(group, _, at)| (group, at.to_string())).collect();
        return Err(format!("marks call chunk {chunk} at {place:?} unneeded, which can be reached; {named:?}, {marking:?}").into());
    }
    let stored: BTreeSet<_> = stored(engine)?.iter().map(|chunk| chunk.fingerprint).collect();
    let left: BTreeSet<_> = stored.difference(&reachable).copied().collect();
    if is_quiet && (called != left || !damaged.is_empty()) {
        return Err(format!("marks call {} chunks unneeded, {} are out of reach; {damaged:?}", called.len(), left.len()).into());
    }
    seen.marked += marking.marked;
    seen.reused += marking.reused;
    seen.unmarked += called.len();
    seen.interrupted += u64::from(!is_quiet);
    Ok(())
}

/// While marks are made, somebody refers to an unneeded metadata chunk: what it leads to is needed again.
fn refer_to_what_is_unneeded(world: &World, sets: &Mutex<Sets>, seen: &mut Seen) -> Result<(), Fault> {
    let found = {
        let state = &sets.lock().unwrap().state;
        let reachable = state.reachable();
        let unneeded = state.metadata.iter().filter(|(chunk, below)| !reachable.contains(chunk) && !below.is_empty());
        unneeded.map(|(chunk, _)| *chunk).next()
    };
    let Some(fingerprint) = found else { return Ok(()) };
    let address = world.engine.locate(&fingerprint)?.ok_or("a stored metadata chunk is nowhere")?;
    let refer = |change| {
        let references = vec![Reference { group: Group::new(b'b', 1), fingerprint, address, change }];
        world.engine.submit(Transaction { changes: Vec::new(), references }).unwrap();
        world.engine.flush().unwrap();
    };
    let mut is_referred = false;
    let mut once = || {
        if !std::mem::replace(&mut is_referred, true) {
            refer(1);
        }
    };
    compare_marks(&world.engine, sets, seen, Some(&mut once))?;
    refer(-1);
    seen.wanted_again += 1;
    Ok(())
}

/// Puts the containers first that have metadata chunks which can be reached. Returns how many these are.
fn needed_metadata_first(world: &World, sets: &Mutex<Sets>, containers: &mut [ContainerId]) -> usize {
    let reachable = sets.lock().unwrap().state.reachable();
    let has_none = |container: &ContainerId| {
        let chunks = world.engine.storage().chunks_of(*container).unwrap_or_default();
        !chunks.iter().any(|(_, slot)| slot.kind != onefold_storage::ChunkKind::Data && reachable.contains(&slot.fingerprint))
    };
    containers.sort_by_key(has_none);
    containers.partition_point(|container| !has_none(container))
}

/// Marks while the file of a container is gone. Marks may call fewer chunks unneeded then, or none, and never one that
/// can be reached.
fn mark_with_damage(
    case: Case,
    disk: &SimulatedGround,
    sets: &Arc<Mutex<Sets>>,
    (containers, needed): (&[ContainerId], usize),
    random: &mut Random,
    seen: &mut Seen,
) -> Result<(), Fault> {
    let among = if needed > 0 && random.one_in(2) { needed } else { containers.len().max(1) };
    let Some(container) = containers.get(random.below(among as u64) as usize) else { return Ok(()) };
    let path = file_of(*container);
    disk.rename(&path, "hidden")?;
    if random.one_in(2) {
        // Then no old marks stand in for what cannot be read.
        lose_marks(disk)?;
    }
    {
        let world = open(case, disk, sets)?;
        let groups: BTreeMap<_, _> = sets.lock().unwrap().state.groups.keys().map(|(group, name, at)| (*group, (*name, *at))).collect();
        // A reference comes and goes: each group is marked from nothing.
        let references = groups
            .into_iter()
            .flat_map(|(group, (fingerprint, address))| [1, -1].map(|change| Reference { group, fingerprint, address, change }));
        world.engine.submit(Transaction { changes: Vec::new(), references: references.collect() })?;
        // Twice: what the first run cannot look at is not over with the second.
        for _ in 0..2 {
            let mut nothing = || {};
            match compare_marks(&world.engine, sets, seen, Some(&mut nothing)) {
                Err(fault) if fault.to_string().contains("marks tell nothing") => seen.held += 1,
                compared => compared?,
            }
        }
    }
    if disk.exists(&path)? {
        disk.remove("hidden")?; // Parity had it.
    } else {
        disk.rename("hidden", &path)?;
    }
    Ok(())
}

fn lose_marks(disk: &SimulatedGround) -> Result<(), Fault> {
    for file in disk.list("marks")? {
        disk.remove(&format!("marks/{}", file.name))?;
    }
    Ok(())
}

/// The objects of a store, while something happens to them.
struct Interrupted<'a> {
    inner: StoreRoots,
    act: RefCell<Option<&'a mut dyn FnMut()>>,
}

impl Roots for Interrupted<'_> {
    fn groups(&mut self, moment: &Moment<'_>, visit: &mut dyn FnMut(Group)) -> Result<(), String> {
        self.act.get_mut().iter_mut().for_each(|act| act());
        self.inner.groups(moment, visit)
    }

    fn of(&self, moment: &Moment<'_>, group: Group, visit: &mut dyn FnMut(Tree<'_>)) -> Result<(), String> {
        self.act.borrow_mut().iter_mut().for_each(|act| act());
        self.inner.of(moment, group, visit)
    }

    fn directory(&self, content: &[u8], visit: &mut dyn FnMut(Tree<'_>)) -> Result<(), String> {
        self.inner.directory(content, visit)
    }
}

/// Takes random steps and compares after each, until a crash or a failed sync ends it. Panics if anything else does.
fn run(world: &mut World, model: &mut Model, random: &mut Random, sets: &Mutex<Sets>, seen: &mut Seen) {
    let ground = world.ground.clone();
    let mut is_failing = false;
    ground.crash_after_operations_in(LOG, random.below(LOG_OPERATIONS));
    for _ in 0..STEPS {
        if random.one_in(20) {
            let kind = if random.one_in(2) { ErrorKind::Other } else { ErrorKind::StorageFull };
            ground.fail_operation_in(LOG, random.below(8), kind);
            is_failing = true;
        }
        let mut taken = step(world, model, random);
        if random.one_in(3) {
            // Layers that take in others move mappings.
            taken = taken.and(world.volumes.resume_deletions(&|| true).map(drop).map_err(Fault::from));
        }
        let may_fail = is_failing || ground.is_crashed();
        assert!(taken.is_ok() || may_fail, "{}: {taken:?}", world.case);
        // A write that failed is repeated.
        let flushed = world.engine.flush();
        if flushed.is_err() && world.has_stopped() {
            assert!(is_failing || ground.is_crashed(), "{}: it stopped", world.case);
            seen.ends += 1;
            return;
        }
        seen.failed += u64::from(taken.is_err() || flushed.is_err());
        let compared = compare(world, sets, seen);
        assert!(compared.is_ok() || ground.is_crashed(), "{}, {}: {compared:?}", world.case, world.doing);
        if random.one_in(6) {
            let engine = world.engine.clone();
            let mut act = || {
                let _ = step(world, model, random).and_then(|_| Ok(engine.flush()?));
            };
            let marked = compare_marks(&engine, sets, seen, Some(&mut act));
            let may_fail = is_failing || ground.is_crashed();
            assert!(marked.is_ok() || may_fail, "{}, {}: {marked:?}", world.case, world.doing);
        } else if random.one_in(3) {
            let marked = compare_marks(&world.engine, sets, seen, None);
            let may_fail = is_failing || ground.is_crashed();
            assert!(marked.is_ok() || may_fail, "{}, {}: {marked:?}", world.case, world.doing);
        }
        if world.has_stopped() {
            assert!(is_failing || ground.is_crashed(), "{}: it stopped", world.case);
            seen.ends += 1;
            return;
        }
    }
}

/// Runs random steps with crashes, failures and repairs among them, and compares after every step.
pub fn agree_with_sets(profile: &'static Profile, usual_seeds: u64) {
    let mut seen = Seen::default();
    let seeds = profile.each_case(usual_seeds, |case| agree_in(case, &mut seen));
    if !seeds.are_enough() {
        return println!("{seen:?}");
    }
    // What happens depends on how threads take turns: what the seeds did not meet, a few more do.
    seeds.further(6).each(|seed| {
        if !seen.is_much() {
            agree_in(Case { profile, seed }, &mut seen);
        }
    });
    println!("{seen:?}");
    assert!(seen.is_much(), "little was tried: {seen:?}");
}

fn agree_in(case: Case, seen: &mut Seen) {
    let seed = case.seed;
    let (mut random, sets) = (Random(seed ^ 0x11fe), Arc::<Mutex<Sets>>::default());
    let mut model = Model::new("m");
    let mut ground = case.create();
    for round in 0..ROUNDS {
        let must = |result: Result<(), Fault>, what: &str| must(result.map_err(|error| error.to_string()), case, what);
        let mut world = open(case, &ground, &sets).unwrap();
        must(settle(&world, &sets), "when opened");
        run(&mut world, &mut model, &mut random, &sets, seen);
        assert_eq!(sets.lock().unwrap().wrong, None, "{case}, round {round}");
        world.die();
        ground = ground.restart(policy(seed + round));
        let world = open(case, &ground, &sets).unwrap();
        must(settle(&world, &sets), "after a crash");
        must(compare(&world, &sets, seen), "after a crash");
        must(compare_marks(&world.engine, &sets, seen, None), "after a crash");
        must(refer_to_what_is_unneeded(&world, &sets, seen), "when something unneeded is wanted again");
        must(model.verify(&world, false).map_err(Fault::from), "after a crash");
        must(check_clean(&world).map_err(Fault::from), "after a crash");
        let storage = world.engine.containers().unwrap();
        let mut containers: Vec<ContainerId> = storage.containers().unwrap().iter().filter(|id| storage.is_sealed(*id)).collect();
        let needed = needed_metadata_first(&world, &sets, &mut containers);
        drop(world);
        ground = ground.restart(policy(seed + round + 1));
        if round % 3 == 1 {
            must(mark_with_damage(case, &ground, &sets, (&containers, needed), &mut random, seen), "beside damage");
            ground = ground.restart(CrashPolicy::KeepAll);
        }
        if round % 3 == 2 {
            must(repair(case, &ground, &containers, &mut random, seen), "in a repair");
            // Repairs open the store with counts alone, which do not tell marks that chunks are somewhere else now.
            must(lose_marks(&ground), "in a repair");
            let world = open(case, &ground, &sets).unwrap();
            must(settle_repaired(&world, &sets), "after a repair");
            must(compare(&world, &sets, seen), "after a repair");
            must(compare_marks(&world.engine, &sets, seen, None), "after a repair");
            must(model.verify(&world, false).map_err(Fault::from), "after a repair");
            must(check_clean(&world).map_err(Fault::from), "after a repair");
            drop(world);
            ground = ground.restart(CrashPolicy::KeepAll);
        }
    }
    seen.moved += sets.lock().unwrap().moved;
}
