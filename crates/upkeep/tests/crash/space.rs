//! Disk usage: after thousands of steps, crashes among them, a store holds what is needed and no more (M0.19, M0.20).
//!
//! What is needed is found from the top, without what reclamation and `check` use for it: for each volume and
//! filesystem the mapping that shows of each block, for each backup all chunks of its tree. What is stored is found
//! from the bottom: the slots of all containers that are not dead.

use onefold_blocks::Owner;
use onefold_catalog::TreeWalk;
use onefold_crash_harness::{Case, EXACT, Fault, Model, Random, World, check_clean, must, policy, step};
use onefold_engine::{Address, EngineError, Piece, Recipe};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_ground::{Access, Ground};
use onefold_upkeep::{NoMonitor, PruneOptions, prune};
use onefold_volume::{Layer, VolumeInfo};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Steps of a run.
const STEPS: u64 = 4_000;
/// Most steps between an opening and the next crash.
const STEPS_OF_AN_OPENING: u64 = 400;
/// Of a container file: header, footer, and the zeros before it.
const CONTAINER_BYTES: u64 = 64 + 48 + 512;
/// Of a catalog, for each frame and for each slot: docs/format.md 5.2, 5.3 and 5.7.
const FRAME_BYTES: u64 = 48;
const SLOT_BYTES: u64 = 32 + 1 + 5 + 5;
const FORWARD_BYTES: u64 = 512;
const SECRET: &[u8] = b"open sesame";

/// The results of a run, for the output.
#[derive(Debug, Default)]
struct Seen {
    accounts: u64,
    crashes: u64,
    append_only: u64,
    /// Mappings that no volume shows, in layers that several others lie upon.
    hidden_mappings: u64,
    /// Copies of chunks that were stored again.
    superseded: u64,
    gap_bytes: u64,
    pruned_containers: u64,
}

#[test]
fn m0_19_m0_20_after_thousands_of_steps_a_store_holds_what_is_needed_and_no_more() {
    EXACT.each_case(2, |case| {
        let seen = run(case);
        println!("{case}: {seen:?}");
        assert!(seen.accounts >= 5 && seen.crashes >= 2 && seen.pruned_containers > 10, "{case}: little was tried: {seen:?}");
    });
}

fn run(case: Case) -> Seen {
    let seed = case.seed;
    let mut random = Random(seed ^ 0x5bace);
    let mut model = Model::new("m");
    let mut ground = case.create();
    let mut seen = Seen::default();
    let mut steps = 0;
    while steps < STEPS {
        if random.one_in(2) {
            ground.crash_after_operations(random.below(6000));
        }
        if let Ok(mut world) = case.open(&ground) {
            steps += one_opening(&mut world, &mut model, &mut random, &mut seen);
            if !ground.is_crashed() && random.one_in(2) {
                account(&world, &mut model, &mut seen).unwrap_or_else(|why| assert!(ground.is_crashed(), "{case}, step {steps}: {why}"));
            }
        }
        // Whatever came before, this is one.
        seen.crashes += 1;
        ground = ground.restart(policy(seed + steps));
        let world = case.reopen(&ground, &mut model, &format!("after step {steps}"));
        if world.engine.append_only_since().unwrap().is_some() {
            world.engine.switch_append_only_off(SECRET).unwrap();
        }
        account(&world, &mut model, &mut seen).unwrap_or_else(|why| panic!("{case}, after step {steps}: {why}"));
        must(check_clean(&world), case, "after all was reclaimed");
        must(model.verify(&world, true), case, "after all was reclaimed");
        drop(world);
        seen.crashes += 1;
        ground = ground.restart(policy(seed + steps + 1));
    }
    seen
}

/// Steps until a crash, or some hundred. Sometimes in append-only mode: then nothing goes.
fn one_opening(world: &mut World, model: &mut Model, random: &mut Random, seen: &mut Seen) -> u64 {
    let case = world.case;
    let steps = 1 + random.below(STEPS_OF_AN_OPENING);
    let is_append_only = random.one_in(6) && model.verify(world, false).is_ok() && world.engine.switch_append_only_on(SECRET).is_ok();
    let names = |world: &World| -> Result<BTreeSet<String>, Fault> {
        let volumes = world.volumes.list().into_iter().map(|volume| volume.name);
        Ok(volumes.chain(world.catalog.list()?.into_iter().map(|backup| backup.id.to_string())).collect())
    };
    let before = names(world).unwrap_or_default();
    for taken in 0..steps {
        let result = step(world, model, random);
        if world.ground.is_crashed() {
            return taken + 1;
        }
        result.unwrap_or_else(|error| assert!(is_append_only, "{case}, {}: {error}", world.doing));
    }
    if is_append_only {
        seen.append_only += 1;
        let now = names(world).unwrap();
        assert!(before.is_subset(&now), "{case}: gone in append-only mode: {:?}", before.difference(&now));
        assert!(matches!(world.engine.permit_deletion("try"), Err(EngineError::AppendOnly { .. })));
        drop(world.engine.switch_append_only_off(SECRET));
    }
    steps
}

/// Lets reclamation come to its end and compares.
fn account(world: &World, model: &mut Model, seen: &mut Seen) -> Result<(), Fault> {
    world.volumes.flush()?;
    model.all_flushed();
    while !world.volumes.resume_deletions(&|| true)? {}
    let removed = onefold_upkeep::remove_unused(&world.engine, &NoMonitor, &|| true)?;
    if !removed.is_complete {
        return Err(format!("not complete: {removed:?}").into());
    }
    compare(world, seen)?;
    for max_unused in [0.05, 0.0] {
        let options = PruneOptions { max_unused, ..PruneOptions::default() };
        let report = prune(&world.engine, options, &NoMonitor, &|| true)?;
        if !report.is_complete || report.chunks > 0 {
            return Err(format!("after a complete removal: {report:?}").into());
        }
        seen.pruned_containers += report.containers_before;
        let stored = compare(world, seen)?;
        let unused = stored.dead_sealed_bytes + stored.dead_open_bytes;
        let is_within = unused as f64 <= max_unused * (stored.live_bytes + unused) as f64;
        if stored.dead_sealed_bytes > 0 && !is_within {
            return Err(format!("{unused} bytes are unused of {}, wanted at most {max_unused}", stored.live_bytes + unused).into());
        }
        // Nothing compresses better than it is, so that this is all that files may have.
        let limit = stored.live_bytes + unused + stored.overhead_bytes;
        if stored.file_bytes > limit + stored.gap_bytes {
            return Err(format!("{} bytes of files for {limit} bytes and {} of gaps", stored.file_bytes, stored.gap_bytes).into());
        }
        // An open container is continued behind what a crash left; that is bounded by its size, and goes with the next
        // merge.
        if stored.gap_bytes > seen.crashes * u64::from(world.engine.descriptor().container_bytes) {
            return Err(format!("{} bytes of gaps after {} crashes", stored.gap_bytes, seen.crashes).into());
        }
        seen.gap_bytes = stored.gap_bytes;
    }
    seen.accounts += 1;
    Ok(())
}

/// What the containers hold.
#[derive(Debug, Default)]
struct Stored {
    chunks: BTreeMap<Fingerprint, u32>,
    live_bytes: u64,
    dead_sealed_bytes: u64,
    dead_open_bytes: u64,
    /// Headers, catalogs, forwards.
    overhead_bytes: u64,
    /// Places in files that no frame has.
    gap_bytes: u64,
    file_bytes: u64,
    superseded: u64,
}

/// What is stored must be exactly what is needed.
fn compare(world: &World, seen: &mut Seen) -> Result<Stored, Fault> {
    world.engine.flush()?;
    let stored = stored(world)?;
    let needed = needed(world, seen)?;
    let names: BTreeSet<Fingerprint> = stored.chunks.keys().copied().collect();
    if let Some(missing) = needed.keys().find(|chunk| !names.contains(chunk)) {
        return Err(format!("chunk {missing} is needed and not stored").into());
    }
    let unneeded: Vec<_> = names.iter().filter(|chunk| !needed.contains_key(chunk)).collect();
    if !unneeded.is_empty() {
        return Err(format!("{} of {} chunks are stored and not needed: {}", unneeded.len(), names.len(), unneeded[0]).into());
    }
    if let Some((chunk, end)) = needed.iter().find(|(chunk, end)| stored.chunks[chunk] < **end) {
        return Err(format!("chunk {chunk} has {} bytes, {end} are needed", stored.chunks[chunk]).into());
    }
    let statistics = world.engine.statistics()?;
    let counted = statistics.unique_bytes - statistics.dead_bytes;
    if counted != stored.live_bytes || statistics.dead_bytes != stored.dead_sealed_bytes + stored.dead_open_bytes {
        return Err(format!("the statistics have {counted} live and {} dead bytes, not {stored:?}", statistics.dead_bytes).into());
    }
    seen.superseded += stored.superseded;
    Ok(stored)
}

fn stored(world: &World) -> Result<Stored, Fault> {
    let storage = world.engine.containers().unwrap();
    let mut stored = Stored::default();
    let digest_bytes = world.engine.digest_bytes();
    let container_bytes = u64::from(world.engine.descriptor().container_bytes);
    for container in storage.containers()?.iter() {
        let dead = world.engine.dead_slots(container)?;
        let slots = storage.slots(container)?;
        let mut entries = Vec::new();
        let names: Vec<Fingerprint> = slots.iter().map(|(_, slot)| slot.fingerprint).collect();
        match world.engine.index() {
            Some(index) => drop(index.lookup(&names, &mut entries)?),
            None => entries.resize(names.len(), None),
        }
        let is_sealed = storage.is_sealed(container);
        for (number, ((address, slot), entry)) in slots.iter().zip(entries).enumerate() {
            let length = u64::from(slot.length_bytes);
            let is_indexed = entry.is_some_and(|entry| Address::from_bits(entry.address) == *address);
            if dead.contains(number) {
                *(if is_sealed { &mut stored.dead_sealed_bytes } else { &mut stored.dead_open_bytes }) += length;
                if is_indexed {
                    return Err(format!("slot {number} of {container} is dead, and the index names it").into());
                }
                continue;
            }
            stored.live_bytes += length;
            if !is_indexed {
                stored.superseded += 1;
            } else if stored.chunks.insert(slot.fingerprint, slot.length_bytes).is_some() {
                return Err(format!("chunk {} is stored twice", slot.fingerprint).into());
            }
        }
        let catalog = storage.catalog(container)?;
        let frames: u64 = catalog.frames.iter().map(|frame| u64::from(frame.stored_bytes)).sum();
        let own = CONTAINER_BYTES + FRAME_BYTES * catalog.frames.len() as u64 + (SLOT_BYTES + digest_bytes as u64) * slots.len() as u64;
        // Room for an open container is allocated beforehand.
        stored.overhead_bytes += if is_sealed { own } else { own + container_bytes };
        let path = format!("containers/{:04x}/{:05x}/{:08x}", container.partition(), container.number() >> 12, container.number());
        // One that has no frame in its file may have no file yet.
        let length = world.ground.open(&path, Access::Read).and_then(|file| file.len()).unwrap_or(0);
        stored.gap_bytes += if is_sealed { length.saturating_sub(frames + own) } else { 0 };
    }
    stored.overhead_bytes += FORWARD_BYTES * storage.forwards()?.len() as u64;
    let mut parity_files = 0;
    stored.file_bytes = file_bytes(world, "containers", &mut parity_files)?;
    // A parity file is as long as the longest container that its group ever had; there are as many as groups.
    stored.overhead_bytes += parity_files * 2 * container_bytes;
    let groups = world.engine.statistics()?.parity_groups;
    if parity_files != groups {
        return Err(format!("{parity_files} parity files of {groups} groups").into());
    }
    Ok(stored)
}

fn file_bytes(world: &World, directory: &str, parity_files: &mut u64) -> Result<u64, Fault> {
    let mut sum = 0;
    for entry in world.ground.list(directory)? {
        let path = format!("{directory}/{}", entry.name);
        if entry.is_directory {
            sum += file_bytes(world, &path, parity_files)?;
            continue;
        }
        *parity_files += u64::from(path.contains("/parity/"));
        sum += world.ground.open(&path, Access::Read)?.len()?;
    }
    Ok(sum)
}

/// The chunks that volumes, filesystems and backups need, and the furthest byte that is needed of each.
fn needed(world: &World, seen: &mut Seen) -> Result<BTreeMap<Fingerprint, u32>, Fault> {
    let mut needed = BTreeMap::new();
    volumes(world, &mut needed, seen)?;
    for backup in world.catalog.list()? {
        add(world, &backup.root, &mut needed)?;
        for item in TreeWalk::new(&world.engine, b"", &backup.root) {
            if let Some(recipe) = item.entry?.content.recipe() {
                add(world, recipe, &mut needed)?;
            }
        }
    }
    Ok(needed)
}

/// Adds all chunks of a recipe: data, and the recipe's own.
fn add(world: &World, recipe: &Recipe, needed: &mut BTreeMap<Fingerprint, u32>) -> Result<(), Fault> {
    let mut level = recipe.pieces.clone();
    for number in (0..=recipe.level).rev() {
        let mut below = Vec::new();
        for piece in &level {
            let Piece::Chunk { fingerprint, offset, length, .. } = piece else { continue };
            let end = needed.entry(*fingerprint).or_default();
            *end = (*end).max(offset + length);
            if number > 0 {
                below.extend(world.engine.recipe_chunk(piece)?);
            }
        }
        level = below;
    }
    Ok(())
}

fn volumes(world: &World, needed: &mut BTreeMap<Fingerprint, u32>, seen: &mut Seen) -> Result<(), Fault> {
    let number = |key: &[u8]| u32::from_be_bytes(key[1..5].try_into().expect("a key has a number"));
    let (mut records, mut layers, mut mappings) = (Vec::new(), HashMap::new(), HashMap::new());
    world.engine.for_each_object(b'v', &mut |key, value| records.push(VolumeInfo::decode(number(key), value)))?;
    world.engine.for_each_object(b'l', &mut |key, value| drop(layers.insert(number(key), Layer::decode(number(key), value))))?;
    let digest_bytes = world.engine.digest_bytes();
    world.engine.for_each_object(b'm', &mut |key, value| {
        let block = u64::from_be_bytes(key[5..13].try_into().expect("a key has a block"));
        let recipe = Recipe::decode(&mut Reader::new(&value[1..]), digest_bytes);
        mappings.insert((number(key), block), recipe);
    })?;
    let layers: HashMap<u32, Layer> = layers.into_iter().map(|(number, layer)| Ok((number, layer?))).collect::<Result<_, Fault>>()?;
    let mut users: HashMap<u32, u32> = HashMap::new();
    for layer in layers.values() {
        *users.entry(layer.parent).or_default() += 1;
        assert!(!layer.is_dropped && layer.merging.is_none(), "all work on layers was done");
    }
    let mut showing = BTreeSet::new();
    let records = records.into_iter().collect::<Result<Vec<VolumeInfo>, _>>()?;
    let all_blocks: BTreeSet<u64> = mappings.keys().map(|(_, block)| *block).collect();
    for record in &records {
        *users.entry(record.layer).or_default() += 1;
        // The blocks of a filesystem are those of its files, anywhere.
        let is_of_files = record.kind.owner() == Owner::Filesystems;
        let end = if is_of_files { u64::MAX } else { record.size.div_ceil(u64::from(record.block_size)) };
        for block in all_blocks.range(..end).copied() {
            let mut at = record.layer;
            while at != 0 {
                let layer = &layers[&at];
                if mappings.contains_key(&(layer.map, block)) {
                    showing.insert((layer.map, block));
                    break;
                }
                at = if block < layer.overlap_blocks { layer.parent } else { 0 };
            }
        }
    }
    let described = format!("{records:?}, {layers:?}, {users:?}");
    let layer_of: HashMap<u32, u32> = layers.iter().map(|(number, layer)| (layer.map, *number)).collect();
    for ((map, block), recipe) in mappings {
        add(world, &recipe.map_err(|error| error.to_string())?, needed)?;
        if !showing.contains(&(map, block)) {
            // The price of sharing: it goes when one of the layers upon it does.
            assert!(users[&layer_of[&map]] >= 2, "block {block} of map {map} shows in no volume and no filesystem: {described}");
            seen.hidden_mappings += 1;
        }
    }
    Ok(())
}
