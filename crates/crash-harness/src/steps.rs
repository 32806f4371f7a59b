//! The random steps of a run, and what each means for the model.
//!
//! After an error the process may go on (a full disk): then the step finds out by reading whether what it wanted was
//! taken, and the rule is that each block has the old or the new bytes. After a crash nothing can be read, and both are
//! possible.

use crate::model::{BLOCK_BYTES, BackupModel, Model, SLOTS, Tree, VolumeModel, sum_of};
use crate::named::Names;
use crate::witness::file_of;
use crate::world::{Fault, Random, Step, World};
use crate::{files, forget};
use onefold_catalog::{Attributes, Backup, BackupId, Content, DirectoryWriter, Entry, Statistics};
use onefold_engine::{Cursor, Engine, Recipe, Repair};
use onefold_fs_backup::is_of_filesystem;
use onefold_ground::Ground;
use onefold_storage::ContainerId;
use onefold_upkeep::{DedupOptions, NoMonitor, PruneOptions, dedup};
use onefold_volume::{Volume, VolumeError};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Largest volume, blocks.
const MAX_BLOCKS: u64 = 4;

/// All steps, each with how often it is taken compared with the others.
pub(crate) const STEPS: &[(u64, Step)] = &[
    (9, write),
    (1, zero),
    (2, flush_volume),
    (1, flush_all),
    (2, create_or_resize),
    (1, delete_or_drop_layers),
    (1, drop_layers),
    (4, backup),
    (1, |world, model, random, _| forget::by_id(world, model, random)),
    (2, maintain),
    (1, flush_engine),
    (2, remove_unused),
    (2, prune),
    (1, verify_one),
    (4, derive),
    (2, rollback),
    (1, |world, model, random, _| forget::by_policy(world, model, random)),
    (2, forget::protect),
    (2, copy),
    (9, files::change),
    (4, files::sync),
    (1, files::unmount),
    (1, files::look),
    (2, files::derive),
    (1, files::rollback),
    (1, files::delete),
    (1, files::back_up),
];

/// Takes a random step of those that the profile supports.
pub fn step(world: &mut World, model: &mut Model, random: &mut Random) -> Result<(), Fault> {
    let slot = random.below(SLOTS as u64) as usize;
    let steps = world.case.profile.steps;
    let mut chosen = random.below(steps.iter().map(|(times, _)| times).sum());
    let taken = steps.iter().find(|(times, _)| {
        let is_it = chosen < *times;
        chosen = chosen.saturating_sub(*times);
        is_it
    });
    world.doing = "something else";
    taken.expect("a number below the sum chooses one").1(world, model, random, slot)
}

/// Takes random steps until one meets the crash.
pub fn run(world: &mut World, model: &mut Model, random: &mut Random, steps: u64) {
    for _ in 0..steps {
        // The crash may have met something that is tried again later, so that the step succeeded.
        drop(step(world, model, random));
        if world.ground.is_crashed() {
            return;
        }
    }
}

fn flush_all(world: &mut World, model: &mut Model, _: &mut Random, _: usize) -> Result<(), Fault> {
    let result = world.volumes.flush();
    if result.is_ok() {
        model.all_flushed();
    }
    Ok(result?)
}

fn flush_engine(world: &mut World, model: &mut Model, _: &mut Random, _: usize) -> Result<(), Fault> {
    let result = world.engine.flush();
    if result.is_ok() {
        model.objects_flushed();
    }
    Ok(result?)
}

fn maintain(world: &mut World, _: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    Ok(world.engine.maintain(random.one_in(2))?)
}

fn delete_or_drop_layers(world: &mut World, model: &mut Model, random: &mut Random, slot: usize) -> Result<(), Fault> {
    if random.one_in(2) { delete(world, model, slot) } else { drop_layers(world, model, random, slot) }
}

fn drop_layers(world: &mut World, _: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    world.doing = "drop layers";
    let steps = std::cell::Cell::new(random.below(4));
    world.volumes.resume_deletions(&|| {
        steps.set(steps.get().saturating_sub(1));
        steps.get() > 0
    })?;
    Ok(())
}

/// Merges containers, sometimes cut short in the middle. Where chunks may be stored twice, sometimes joins them before.
fn prune(world: &mut World, _: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    world.doing = "prune";
    let max_unused = [0.0, 0.0, 0.2][random.below(3) as usize];
    let looks = std::cell::Cell::new(if random.one_in(3) { random.below(8) } else { 1 << 20 });
    let go_on = || {
        looks.set(looks.get().saturating_sub(1));
        looks.get() > 0
    };
    if world.engine.levels().is_some() && random.one_in(3) {
        world.doing = "move a partition";
        let to = random.one_in(2).then(|| Path::new("disk"));
        world.engine.move_partition(0, to, &go_on, &mut |_| {})?;
        world.doing = "prune";
    }
    let is_alone = Arc::strong_count(&world.volumes) == 1;
    if !world.engine.descriptor().profile.is_exact() && random.one_in(2) {
        world.doing = "dedup";
        let memory_bytes = [1, 1 << 20][random.below(2) as usize];
        let report = dedup(&world.engine, DedupOptions { memory_bytes, dry_run: false }, &NoMonitor, &go_on)?;
        nothing_is_damaged(world, &report.problems)?;
        if is_alone && report.is_complete {
            let left = dedup(&world.engine, DedupOptions { memory_bytes, dry_run: true }, &NoMonitor, &|| true)?;
            assert_eq!(left.duplicate_chunks, 0, "duplicates were left");
        }
        world.doing = "prune";
    }
    let options = PruneOptions { max_unused, ..PruneOptions::default() };
    if is_alone && max_unused == 0.0 {
        let would = onefold_upkeep::prune(&world.engine, PruneOptions { dry_run: true, ..options }, &NoMonitor, &|| true)?;
        assert_eq!(would.requests.is_some(), world.engine.ground().bucket().is_some(), "only a bucket has requests to estimate");
        // What is not durable yet is not in the index that a dry run looks at.
        nothing_is_damaged(world, &would.problems)?;
    }
    let sealed = sealed_containers(&world.engine)?;
    let report = onefold_upkeep::prune(&world.engine, options, &NoMonitor, &go_on)?;
    nothing_is_damaged(world, &report.problems)?;
    if is_alone && report.is_complete && max_unused == 0.0 {
        let mut left = 0;
        world.engine.for_each_dead(&mut |container, dead| {
            // One that was sealed only now may have them.
            left += if sealed.contains(&container) { dead.bytes } else { 0 };
        })?;
        assert_eq!(left, 0, "dead chunks were left in sealed containers");
    }
    // Beside others, a second container of the same group may be lost at the same time, or a merge may give up its
    // parity.
    if is_alone && world.engine.settings().parity_group > 0 { lose_a_container(world, random) } else { Ok(()) }
}

fn sealed_containers(engine: &Engine) -> Result<HashSet<ContainerId>, Fault> {
    let Some(containers) = engine.containers() else { return Ok(HashSet::new()) };
    let all = engine.storage().units()?;
    Ok(all.iter().filter(|container| containers.is_sealed(*container)).collect())
}

/// Makes parity, then takes the file of one container away: it comes back, from parity.
fn lose_a_container(world: &World, random: &mut Random) -> Result<(), Fault> {
    world.engine.make_parity(true, &|| true)?;
    let Some(storage) = world.engine.containers() else { return Ok(()) };
    let containers = storage.containers()?;
    let lost = containers.iter().nth(random.below(containers.len().max(1) as u64) as usize);
    let Some(lost) = lost.filter(|lost| storage.is_sealed(*lost)) else { return Ok(()) };
    if world.engine.repair_container(lost)? != Repair::Whole {
        return Ok(());
    }
    let path = file_of(lost);
    if world.ground.remove(&path).is_err() {
        return Ok(());
    }
    let repaired = world.engine.repair_container(lost)?;
    assert!(repaired == Repair::Repaired, "container {lost} has parity and did not come back");
    Ok(())
}

/// Removes what nothing refers to; sometimes with a stream in the way.
fn remove_unused(world: &mut World, _: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    world.doing = "remove";
    let is_alone = Arc::strong_count(&world.volumes) == 1;
    let in_the_way = random.one_in(8).then(|| world.engine.in_flight());
    let looks = std::cell::Cell::new(if random.one_in(4) { random.below(6) } else { 1 << 20 });
    let report = onefold_upkeep::remove_unused(&world.engine, &onefold_upkeep::NoMonitor, &|| {
        looks.set(looks.get().saturating_sub(1));
        looks.get() > 0 && in_the_way.is_none()
    })?;
    nothing_is_damaged(world, &report.damaged)?;
    if report.is_complete && is_alone {
        world.engine.maintain(true)?;
        let (left, _) = world.engine.candidates(Cursor::default(), 1, &mut Vec::new())?;
        assert_eq!(left, [], "unused chunks were left");
    }
    Ok(())
}

/// What could not be read may only be what the crash took, or what a request to a bucket failed to get.
fn nothing_is_damaged(world: &World, problems: &[String]) -> Result<(), Fault> {
    let is_in_bucket = world.engine.ground().bucket().is_some();
    let has_failed = |problem: &String| is_in_bucket && (problem.ends_with("timed out") || problem.ends_with("the process is dead"));
    if !problems.is_empty() && (problems.iter().all(has_failed) || world.has_stopped()) {
        return Err(problems.join("; ").into());
    }
    assert_eq!(problems, [""; 0], "nothing is damaged here");
    Ok(())
}

/// What a change of blocks came to.
fn settle(
    world: &World,
    model: &mut Model,
    slot: usize,
    volume: &Volume,
    changed: BTreeMap<usize, Vec<u8>>,
    result: Result<(), onefold_volume::VolumeError>,
) -> Result<(), Fault> {
    let known = model.volume_mut(slot).expect("the volume was there");
    for (block, new) in changed {
        if let (Err(_), false) = (&result, world.ground.is_crashed()) {
            let mut found = vec![1; (known.size - block as u64 * BLOCK_BYTES).min(BLOCK_BYTES) as usize];
            match volume.read(block as u64 * BLOCK_BYTES, &mut found) {
                Ok(()) if known.latest(block)[..found.len()] == found[..] => continue,
                Ok(()) if new[..found.len()] == found[..] => {}
                Ok(()) => panic!("block {block} has neither the old nor the new bytes after an error"),
                Err(_) if world.has_stopped() => {}
                Err(error) => panic!("block {block} cannot be read after an error: {error}"),
            }
        }
        known.blocks[block].push(Arc::new(new));
    }
    Ok(result?)
}

/// The blocks of a range, as they are with `data` at `offset`.
fn changed(known: &VolumeModel, offset: u64, data: &[u8]) -> BTreeMap<usize, Vec<u8>> {
    let mut blocks = BTreeMap::new();
    let mut at = offset;
    while at < offset + data.len() as u64 {
        let (block, start) = ((at / BLOCK_BYTES) as usize, (at % BLOCK_BYTES) as usize);
        let length = (BLOCK_BYTES as usize - start).min((offset + data.len() as u64 - at) as usize);
        let mut bytes = known.latest(block).to_vec();
        bytes[start..start + length].copy_from_slice(&data[(at - offset) as usize..][..length]);
        blocks.insert(block, bytes);
        at += length as u64;
    }
    blocks
}

/// A range of a volume, often of whole blocks.
fn range(random: &mut Random, size: u64) -> (u64, u64) {
    let offset = if random.one_in(2) { random.below(size) / BLOCK_BYTES * BLOCK_BYTES } else { random.below(size) };
    let length = match random.below(4) {
        0 => BLOCK_BYTES,
        1 => random.below(BLOCK_BYTES * 3 / 2),
        _ => random.below(12 << 10),
    };
    (offset, length.min(size - offset))
}

/// Writes a range of a volume, or makes the volume.
pub fn write(world: &mut World, model: &mut Model, random: &mut Random, slot: usize) -> Result<(), Fault> {
    let Some(known) = model.volume(slot).filter(|known| !known.is_read_only) else { return create_or_resize(world, model, random, slot) };
    let (offset, length) = range(random, known.size);
    let data = random.bytes(length as usize);
    let changed = changed(known, offset, &data);
    let blocks: Vec<usize> = changed.keys().copied().collect();
    let volume = world.volumes.get(&model.name(slot))?;
    if !random.one_in(6) {
        let result = volume.write(offset, &data);
        return settle(world, model, slot, &volume, changed, result);
    }
    let result = volume.write_durable(offset, &data);
    let is_durable = result.is_ok();
    settle(world, model, slot, &volume, changed, result)?;
    if is_durable {
        model.objects_flushed();
        let known = model.volume_mut(slot).expect("the volume was there");
        for block in blocks {
            let versions = &mut known.blocks[block];
            versions.drain(..versions.len() - 1);
        }
    }
    Ok(())
}

fn zero(world: &mut World, model: &mut Model, random: &mut Random, slot: usize) -> Result<(), Fault> {
    let Some(known) = model.volume(slot).filter(|known| !known.is_read_only) else { return Ok(()) };
    // On a full disk, a discard may leave the rest of a block as it is.
    let block = random.below(known.blocks.len() as u64) * BLOCK_BYTES;
    let is_discard = random.one_in(4) && block + BLOCK_BYTES <= known.size;
    let (offset, length) = if is_discard { (block, BLOCK_BYTES) } else { range(random, known.size) };
    let changed = changed(known, offset, &vec![0; length as usize]);
    let volume = world.volumes.get(&model.name(slot))?;
    let result = if is_discard { volume.discard(offset, length) } else { volume.write_zeroes(offset, length) };
    settle(world, model, slot, &volume, changed, result)
}

/// Copies mappings within a volume or from another one.
fn copy(world: &mut World, model: &mut Model, random: &mut Random, slot: usize) -> Result<(), Fault> {
    let from = random.below(SLOTS as u64) as usize;
    let (Some(known), Some(source)) = (model.volume(slot).filter(|known| !known.is_read_only), model.volume(from)) else { return Ok(()) };
    world.doing = "copy mappings";
    let (offset, length) = range(random, known.size);
    let (source_offset, source_length) = range(random, source.size);
    let length = length.min(source_length);
    let mut data = Vec::with_capacity(length as usize);
    for at in source_offset..source_offset + length {
        data.push(source.latest((at / BLOCK_BYTES) as usize)[(at % BLOCK_BYTES) as usize]);
    }
    let changed = changed(known, offset, &data);
    let (volume, source) = (world.volumes.get(&model.name(slot))?, world.volumes.get(&model.name(from))?);
    let result = volume.copy_from(offset, &source, source_offset, length);
    settle(world, model, slot, &volume, changed, result)
}

fn flush_volume(world: &mut World, model: &mut Model, _: &mut Random, slot: usize) -> Result<(), Fault> {
    if model.volume(slot).is_some() {
        world.volumes.get(&model.name(slot))?.flush()?;
        model.slot_flushed(slot);
    }
    Ok(())
}

/// An operation that wants a slot to be in state `new`.
fn restructure(
    world: &World,
    model: &mut Model,
    slot: usize,
    new: Option<VolumeModel>,
    result: Result<(), onefold_volume::VolumeError>,
) -> Result<(), Fault> {
    let wanted = new.as_ref().map(|volume| volume.size);
    model.slots[slot].push(new);
    if let Err(error) = result {
        let found = world.volumes.get(&model.name(slot)).ok().map(|volume| volume.size());
        if !world.ground.is_crashed() && found != wanted {
            model.slots[slot].pop();
        }
        return Err(error.into());
    }
    model.objects_flushed();
    Ok(())
}

fn create_or_resize(world: &mut World, model: &mut Model, random: &mut Random, slot: usize) -> Result<(), Fault> {
    let size = if random.one_in(3) { 512 * (1 + random.below(MAX_BLOCKS * 128)) } else { BLOCK_BYTES * (1 + random.below(MAX_BLOCKS)) };
    let name = model.name(slot);
    match model.volume(slot).cloned() {
        None => {
            let chain = random.one_in(4).then(|| "chunk-index".to_string());
            let result = world.volumes.create(&name, size, BLOCK_BYTES as u32, chain).map(drop);
            restructure(world, model, slot, Some(VolumeModel::new(size)), result)
        }
        Some(known) if known.is_read_only => Ok(()),
        Some(mut known) => {
            let result = world.volumes.resize(&name, size);
            known.resize(size);
            restructure(world, model, slot, Some(known), result)
        }
    }
}

/// Makes a snapshot or a clone of a volume, in a slot that is empty.
pub fn derive(world: &mut World, model: &mut Model, random: &mut Random, slot: usize) -> Result<(), Fault> {
    let Some(known) = model.volume(slot) else { return Ok(()) };
    let Some(target) = (0..SLOTS).find(|target| model.volume(*target).is_none()) else { return Ok(()) };
    let is_snapshot = !known.is_read_only && random.one_in(2);
    let is_read_only = is_snapshot || random.one_in(5);
    world.doing = if is_snapshot { "snapshot" } else { "clone" };
    let copy = known.copy(is_read_only);
    let (source, name) = (model.name(slot), model.name(target));
    let result = if is_snapshot { world.volumes.snapshot(&source, &name) } else { world.volumes.make_clone(&source, &name, is_read_only) };
    let is_durable = result.is_ok();
    restructure(world, model, target, Some(copy), result.map(drop))?;
    if is_durable {
        model.slot_flushed(slot);
    }
    Ok(())
}

/// Rolls a volume back to a snapshot, if it has one.
pub fn rollback(world: &mut World, model: &mut Model, random: &mut Random, slot: usize) -> Result<(), Fault> {
    if model.volume(slot).is_none_or(|known| known.is_read_only) {
        return Ok(());
    }
    let first = random.below(SLOTS as u64) as usize;
    for target in (0..SLOTS).map(|target| (first + target) % SLOTS) {
        let Some(known) = model.volume(target).filter(|known| known.is_read_only) else { continue };
        let mut copy = known.copy(false);
        world.doing = "rollback";
        let result = world.volumes.rollback(&model.name(slot), &model.name(target));
        match &result {
            Err(VolumeError::Unrelated { .. }) => continue,
            Err(_) if !world.ground.is_crashed() => {
                // Whether it happened shows in the bytes.
                let volume = world.volumes.get(&model.name(slot))?;
                if copy.matches(&volume, true).is_ok() {
                    model.slots[slot].push(Some(copy));
                }
            }
            _ => model.slots[slot].push(Some(copy)),
        }
        result?;
        model.objects_flushed();
        return Ok(());
    }
    Ok(())
}

/// Deletes the volume in a slot, if there is one.
pub fn delete(world: &mut World, model: &mut Model, slot: usize) -> Result<(), Fault> {
    if model.volume(slot).is_none() {
        return Ok(());
    }
    world.doing = "delete volume";
    let result = world.volumes.delete(&model.name(slot));
    restructure(world, model, slot, None, result)
}

fn verify_one(world: &mut World, model: &mut Model, _: &mut Random, slot: usize) -> Result<(), Fault> {
    let Some(known) = model.volume(slot) else { return Ok(()) };
    let volume = world.volumes.get(&model.name(slot))?;
    let mut found = vec![1; known.size as usize];
    volume.read(0, &mut found)?;
    for (block, bytes) in found.chunks(BLOCK_BYTES as usize).enumerate() {
        assert!(known.latest(block)[..bytes.len()] == *bytes, "block {block} of volume {} reads wrong", model.name(slot));
    }
    Ok(())
}

/// Changes the tree of the newest backup a little.
fn next_tree(model: &Model, random: &mut Random) -> Tree {
    let made = model.backups.values().rfind(|known| !is_of_filesystem(&known.backup));
    let mut tree = made.map(|known| known.tree.clone()).unwrap_or_default();
    for _ in 0..1 + random.below(4) {
        let path = match random.below(4) {
            0 => format!("f{}", random.below(4)),
            group => format!("d{group}/f{}", random.below(6)),
        };
        if random.one_in(4) {
            tree.remove(&path);
        } else if random.one_in(3) {
            tree.insert(path, Arc::new(random.file()));
        } else if random.one_in(3) {
            let lines = random.below(24);
            tree.insert(path, Arc::new(random.text(lines)));
        } else {
            let limit = if random.one_in(4) { 24 << 10 } else { 5 << 10 };
            let length = random.below(limit) as usize;
            tree.insert(path, Arc::new(random.bytes(length)));
        }
    }
    if random.one_in(6) {
        // Many names: a directory of several chunks.
        let empty = Arc::new(Vec::new());
        (0..150).for_each(|number| drop(tree.insert(format!("many/{number:03}"), empty.clone())));
    }
    tree
}

fn backup(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    let result = backup_in_flight(world, model, random);
    world.streams.iter_mut().for_each(onefold_engine::WriteStream::rest);
    result
}

fn backup_in_flight(world: &mut World, model: &mut Model, random: &mut Random) -> Result<(), Fault> {
    let tree = next_tree(model, random);
    model.next_backup += 1;
    let mut id = [0; 16];
    id[..8].copy_from_slice(&model.next_backup.to_be_bytes());
    id[8..].copy_from_slice(&onefold_ground::checksum(model.prefix.as_bytes()).to_be_bytes());
    let in_flight = world.engine.in_flight();
    let mut names = Names::new(world, BackupId::from_bytes(id), &in_flight)?;
    let root = store(world, &tree, &mut names, random)?;
    names.finish(world);
    if random.one_in(5) {
        return Ok(()); // cancelled: what was stored stays without references
    }
    // Three an hour.
    let number = model.next_backup as i64 * 1_200_000_000_000;
    let mut backup = Backup {
        id: BackupId::from_bytes(id),
        sequence: 0,
        seen_ns: 0,
        name: format!("{}{}", model.prefix, random.below(3)),
        host: "h".into(),
        user: "u".into(),
        started_ns: number,
        finished_ns: number,
        tags: vec![],
        paths: vec![],
        options: sum_of(&tree),
        root,
        statistics: Statistics::default(),
    };
    model.backups.insert(id, BackupModel { backup: backup.clone(), tree, visible: vec![false], protected: vec![false] });
    let mut result = world.catalog.commit_backup(&mut backup);
    if result.is_err() && random.one_in(2) {
        // Whoever is told of a full disk tries again.
        result = world.catalog.commit_backup(&mut backup);
    }
    model.backups.get_mut(&id).expect("it was put there").backup = backup;
    forget::settle_visible(world, model, &[id], true, result)
}

/// Stores a tree through both streams in turn; the root.
fn store(world: &mut World, tree: &Tree, names: &mut Names, random: &mut Random) -> Result<Recipe, Fault> {
    let engine = world.engine.clone();
    let mut directories: BTreeMap<&str, Vec<Entry>> = BTreeMap::new();
    let mut root = BTreeMap::new();
    for (path, bytes) in tree {
        let content = Content::File { size_bytes: bytes.len() as u64, recipe: names.file(world, bytes, random)? };
        match path.split_once('/') {
            Some((directory, name)) => directories.entry(directory).or_default().push(entry(name, content)),
            None => drop(root.insert(path.as_str(), entry(path, content))),
        }
    }
    let stream = &mut world.streams[random.below(2) as usize];
    for (name, entries) in directories {
        let recipe = directory(&engine, stream, &entries)?;
        root.insert(name, entry(name, Content::Directory { recipe }));
    }
    let entries: Vec<Entry> = root.into_values().collect();
    directory(&engine, stream, &entries)
}

fn directory(engine: &Engine, stream: &mut onefold_engine::WriteStream, entries: &[Entry]) -> Result<Recipe, Fault> {
    let mut writer = DirectoryWriter::new(engine);
    entries.iter().try_for_each(|entry| writer.push(stream, entry))?;
    Ok(writer.finish(stream)?)
}

fn entry(name: &str, content: Content) -> Entry {
    Entry { name: name.as_bytes().to_vec(), attributes: Attributes { mode: 0o644, ..Attributes::default() }, content }
}
