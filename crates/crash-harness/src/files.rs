//! The random steps of filesystems, and what each means for the model.
//!
//! What a program does in a filesystem is taken by its [`History`](onefold_fs::testing::History). Filesystems are
//! mounted when a step needs them, and stay so until one unmounts them.

use crate::forget::settle_visible;
use crate::model::{BackupModel, FILESYSTEMS, FilesystemModel, Model, Tree, sum_of};
use crate::verify::{look_at, read_tree};
use crate::world::{Fault, Random, World};
use onefold_blocks::SpaceError;
use onefold_catalog::Backup;
use onefold_engine::Engine;
use onefold_fs::testing::{FileStep, History, TreeModel};
use onefold_fs::{Filesystem, FsError, ROOT};
use onefold_fs_backup::{Monitor, Options, is_of_filesystem};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The most programs do between two other steps.
const MOST_STEPS: u64 = 8;
/// The name of a file that will take the place of another, as a choice and in the root.
const SAVED: (u8, u8) = (6, b'g');

/// Returns a step of a program, often around the edges of blocks.
fn file_step(random: &mut Random) -> FileStep {
    let mut byte = || random.number() as u8;
    let (one, other) = (byte(), byte());
    let name = byte() % 6;
    let mut place = || match random.below(4) {
        0 => random.below(200) as u32,
        1 => 65_400 + random.below(300) as u32,
        2 => 131_000 + random.below(200) as u32,
        _ => random.below(150_000) as u32,
    };
    let (at, other_at) = (place(), place());
    match random.below(30) {
        0..=5 => FileStep::Create(one, name, [0, 0, 0, 1, 2, 3][random.below(6) as usize]),
        6 => FileStep::Link(one, other, name),
        7 | 8 => FileStep::Remove(one),
        9..=12 => FileStep::Rename(one, other, name, random.below(4) as u8 % 3),
        13..=20 => {
            let most = if random.one_in(8) { 100 << 10 } else { 9 << 10 };
            let seed = if random.one_in(3) { random.below(8) } else { random.number() };
            FileStep::Write(one, at, random.below(most) as u32, seed)
        }
        21 | 22 => FileStep::Truncate(one, at),
        23 => FileStep::Allocate(one, at, 1 + random.below(100 << 10) as u32, random.below(5) as u8),
        24 | 25 => FileStep::Copy(one, at, other, other_at, random.below(100 << 10) as u32),
        26 => FileStep::Mode(one, random.below(0o7777) as u16),
        27 => FileStep::Xattr(one, (!random.one_in(3)).then_some(other)),
        28 => {
            if random.one_in(2) {
                FileStep::Open(one)
            } else {
                FileStep::Close(one)
            }
        }
        _ => FileStep::Quota(random.one_in(3).then(|| random.below(600 << 10) as u32)),
    }
}

fn any_slot(random: &mut Random) -> usize {
    random.below(FILESYSTEMS as u64) as usize
}

/// Mounts the filesystem in a slot, unless it is mounted.
fn mount(world: &mut World, model: &mut Model, slot: usize) -> Result<Arc<Filesystem>, Fault> {
    let name = model.filesystem_name(slot);
    if let Some(mounted) = world.mounted.get(&name) {
        return Ok(Arc::clone(mounted));
    }
    let mounted = world.filesystems.open(&name)?;
    if !mounted.is_read_only() {
        model.history_mut(slot).closed();
    }
    let filesystem = Arc::clone(&mounted);
    world.mounted.insert(name, mounted);
    Ok(filesystem)
}

/// What a commit of all or of one file came to.
fn settle_commit(world: &World, model: &mut Model, slot: usize, file: Option<u64>, result: Result<(), FsError>) -> Result<(), Fault> {
    let history = model.history_mut(slot);
    match (&result, file) {
        (Ok(()), None) => history.synced(),
        (Ok(()), Some(number)) => history.file_synced(number),
        (Err(_), _) if world.ground.is_crashed() => {}
        (Err(_), _) => history.commit_failed(),
    }
    if result.is_ok() {
        model.objects_flushed();
    }
    Ok(result?)
}

/// Does something in a filesystem, or makes it.
pub fn change(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    let slot = any_slot(random);
    match model.filesystem(slot) {
        None => return create(world, model, random, slot),
        Some(known) if known.is_read_only => return Ok(()),
        Some(_) => {}
    }
    world.doing = "change files";
    let filesystem = mount(world, model, slot)?;
    for _ in 0..1 + random.below(MOST_STEPS) {
        if random.one_in(6) {
            save(model.history_mut(slot), random, &filesystem)?;
        } else {
            model.history_mut(slot).take(&file_step(random), &filesystem)?;
        }
    }
    Ok(())
}

/// Writes a new file and renames it to the name of another, as an editor does.
fn save(history: &mut History, random: &mut Random, filesystem: &Filesystem) -> Result<(), FsError> {
    let (choice, letter) = SAVED;
    let name = (ROOT, vec![letter]);
    history.take(&FileStep::Create(0, choice, 0), filesystem)?;
    let number = history.latest().names.get(&name).copied();
    let Some(file) = number.and_then(|number| history.latest().choice_of_regular(number)) else { return Ok(()) };
    history.take(&FileStep::Write(file, 0, 1 + random.below(9 << 10) as u32, random.number()), filesystem)?;
    let Some(named) = history.latest().choice_of_name(&name) else { return Ok(()) };
    history.take(&FileStep::Rename(named, random.below(4) as u8, random.below(6) as u8, 0), filesystem)
}

/// Makes a filesystem durable, or one of its files, and with it all names.
pub fn sync(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    let slot = any_slot(random);
    if model.filesystem(slot).is_none_or(|known| known.is_read_only) {
        return Ok(());
    }
    world.doing = "commit of files";
    let filesystem = mount(world, model, slot)?;
    let file = model.history_mut(slot).latest().regular(random.number() as u8).filter(|_| !random.one_in(3));
    let result = file.map_or_else(|| filesystem.sync(), |number| filesystem.sync_file(number));
    settle_commit(world, model, slot, file, result)
}

pub(crate) fn unmount(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    close(world, model, any_slot(random))
}

/// Unmounts the filesystem in a slot, if it is mounted.
fn close(world: &mut World, model: &mut Model, slot: usize) -> Result<(), Fault> {
    let name = model.filesystem_name(slot);
    let Some(mounted) = world.mounted.remove(&name) else { return Ok(()) };
    if mounted.is_read_only() {
        return Ok(());
    }
    world.doing = "unmount of files";
    let result = mounted.close();
    drop(mounted);
    model.history_mut(slot).closed();
    if result.is_err() && !world.ground.is_crashed() {
        model.history_mut(slot).commit_failed();
        // What could not be stored is given up. The disk shows what is left.
        match look_at(world, &name, &BTreeSet::new()) {
            Ok(seen) => model.history_mut(slot).reopened(seen).unwrap_or_else(|why| panic!("{}, {name}: {why}", world.case)),
            Err(_) if world.has_stopped() => {}
            Err(why) => panic!("{}, {name} cannot be read after an error: {why}", world.case),
        }
    }
    settle_commit(world, model, slot, None, result)
}

/// Compares a filesystem with the model.
pub(crate) fn look(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    let slot = any_slot(random);
    match model.verify_filesystem(world, slot, true) {
        Err(why) if !world.has_stopped() => panic!("{}: {why}", world.case),
        looked => Ok(looked?),
    }
}

/// An operation that wants a slot to be in one of these states; without a crash, in the last one.
fn restructure(
    world: &World,
    model: &mut Model,
    slot: usize,
    new: Vec<Option<FilesystemModel>>,
    result: Result<(), FsError>,
) -> Result<(), Fault> {
    let name = model.filesystem_name(slot);
    let before = model.filesystem(slot).cloned();
    let is_wanted = new.last().is_some_and(Option::is_some);
    model.filesystems[slot].extend(new);
    if result.is_ok() {
        model.objects_flushed();
    } else if !world.ground.is_crashed() && world.filesystems.info(&name).is_ok() != is_wanted {
        // What was taken back may come again after a crash.
        model.filesystems[slot].push(before);
    }
    Ok(result?)
}

fn create(world: &World, model: &mut Model, random: &mut Random, slot: usize) -> Result<(), Fault> {
    let name = model.filesystem_name(slot);
    let quota_bytes = random.one_in(4).then(|| (100 << 10) + random.below(500 << 10));
    let result = world.filesystems.create_with_small_blocks(&name, quota_bytes, (0, 0));
    let new = |quota_bytes| Some(FilesystemModel::new(TreeModel::new(quota_bytes), false));
    // Between its two parts a crash leaves a space. The first who mounts it makes a filesystem without a quota.
    let mut states = vec![new(None), new(quota_bytes)];
    let seen = if result.is_err() { look_at(world, &name, &BTreeSet::new()).ok() } else { None };
    if seen.is_some_and(|seen| seen.quota_bytes.is_none()) {
        states.swap(0, 1);
    }
    restructure(world, model, slot, states, result)
}

/// Makes a snapshot or a clone of a filesystem, in a slot that is empty.
pub fn derive(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    let slot = any_slot(random);
    let Some(is_source_read_only) = model.filesystem(slot).map(|known| known.is_read_only) else { return Ok(()) };
    let Some(target) = (0..FILESYSTEMS).find(|target| model.filesystem(*target).is_none()) else { return Ok(()) };
    let is_snapshot = !is_source_read_only && !random.one_in(3);
    let is_read_only = is_snapshot || random.one_in(4);
    if !is_source_read_only {
        // Removed files that a crash left are counted until somebody mounts it.
        mount(world, model, slot)?;
    }
    world.doing = if is_snapshot { "snapshot of files" } else { "clone of files" };
    let (source, name) = (model.filesystem_name(slot), model.filesystem_name(target));
    let result =
        if is_snapshot { world.filesystems.snapshot(&source, &name) } else { world.filesystems.make_clone(&source, &name, is_read_only) };
    let latest = model.history_mut(slot).latest().clone();
    let tree = if is_read_only { latest.as_snapshot() } else { latest.closed() };
    let is_durable = result.is_ok();
    if is_durable {
        model.history_mut(slot).synced();
    } else if !world.ground.is_crashed() {
        model.history_mut(slot).commit_failed();
    }
    restructure(world, model, target, vec![Some(FilesystemModel::new(tree, is_read_only))], result)
}

/// Rolls a filesystem back to a snapshot, if it has one.
pub fn rollback(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    let slot = any_slot(random);
    if model.filesystem(slot).is_none_or(|known| known.is_read_only) {
        return Ok(());
    }
    let first = any_slot(random);
    for target in (0..FILESYSTEMS).map(|target| (first + target) % FILESYSTEMS) {
        let Some(known) = model.filesystem(target).filter(|known| known.is_read_only) else { continue };
        let tree = known.history.latest().closed();
        close(world, model, slot)?;
        world.doing = "rollback of files";
        let name = model.filesystem_name(slot);
        let result = world.filesystems.rollback(&name, &model.filesystem_name(target));
        if matches!(result, Err(FsError::Space(SpaceError::Unrelated { .. }))) {
            continue;
        }
        let before = model.filesystem(slot).cloned();
        model.filesystems[slot].push(Some(FilesystemModel::new(tree, false)));
        if result.is_ok() {
            model.objects_flushed();
        } else if !world.ground.is_crashed() && model.verify_filesystem(world, slot, true).is_err() {
            model.filesystems[slot].push(before);
        }
        return Ok(result?);
    }
    Ok(())
}

/// Deletes a filesystem, a snapshot or a clone.
pub fn delete(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    let slot = any_slot(random);
    if model.filesystem(slot).is_none() {
        return Ok(());
    }
    close(world, model, slot)?;
    world.doing = "delete files";
    let result = world.filesystems.delete(&model.filesystem_name(slot));
    restructure(world, model, slot, vec![None], result)
}

/// What a backup of a filesystem could not read.
#[derive(Default)]
struct Problems(Mutex<Vec<String>>);

impl Monitor for Problems {
    fn problem(&self, path: &[u8], reason: &str) {
        self.0.lock().expect("nobody panics with it").push(format!("{}: {reason}", String::from_utf8_lossy(path)));
    }

    fn visited(&self) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Backs a filesystem up.
pub fn back_up(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    let slot = any_slot(random);
    if model.filesystem(slot).is_none() {
        return Ok(());
    }
    let filesystem = mount(world, model, slot)?;
    world.doing = "backup of files";
    let name = model.filesystem_name(slot);
    let paths = model.history_mut(slot).latest().paths();
    let path = |path: Vec<u8>| format!("{name}/{}", String::from_utf8(path).expect("names are letters"));
    let tree: Tree = paths.into_iter().map(|(below, bytes)| (path(below), bytes)).collect();
    let sum = sum_of(&tree);
    model.doubtful.insert(sum.clone(), tree);
    let options =
        Options { name: format!("{}{}", model.prefix, random.below(3)), host: "h".into(), user: "u".into(), tags: vec![sum.clone()] };
    let problems = Problems::default();
    let spaces = world.filesystems.spaces().clone();
    let result = onefold_fs_backup::backup(&spaces, &filesystem, &options, &problems);
    let problems = problems.0.into_inner().expect("nobody panicked with it");
    assert!(problems.is_empty() || world.has_stopped(), "{}: {problems:?}", world.case);
    match result {
        Ok(outcome) => {
            let tree = model.doubtful.remove(&sum).expect("it was put there");
            let id = *outcome.backup.id.as_bytes();
            model.backups.insert(id, BackupModel { backup: outcome.backup, tree, visible: vec![false], protected: vec![false] });
            if !filesystem.is_read_only() {
                model.history_mut(slot).synced();
            }
            settle_visible(world, model, &[id], true, Ok(()))?;
        }
        Err(error) => {
            if !world.ground.is_crashed() {
                model.history_mut(slot).commit_failed();
                let mut found = world.catalog.list()?.into_iter().map(|backup| (*backup.id.as_bytes(), backup)).collect();
                model.adopt(&world.engine, &mut found, &[false, true])?;
            }
            return Err(error.into());
        }
    }
    if random.one_in(2) {
        onefold_fs_backup::tidy(&spaces)?;
    }
    Ok(())
}

impl Model {
    /// Takes over backups of filesystems that are visible though nobody was told so: the call that made them failed, or
    /// a crash ended it. `visible`: what they may be from now on.
    pub(crate) fn adopt(&mut self, engine: &Arc<Engine>, found: &mut BTreeMap<[u8; 16], Backup>, visible: &[bool]) -> Result<(), String> {
        let is_new = |id: &[u8; 16], backup: &Backup| is_of_filesystem(backup) && !self.backups.contains_key(id);
        let new: Vec<[u8; 16]> = found.iter().filter(|(id, backup)| is_new(id, backup)).map(|(id, _)| *id).collect();
        for id in new {
            let Some(tree) = found[&id].tags.first().and_then(|sum| self.doubtful.get(sum)).cloned() else { continue };
            let backup = found.remove(&id).expect("it is one of them");
            let read = read_tree(engine, &backup).map_err(|error| format!("backup {}: {error}", backup.id))?;
            if read != tree {
                return Err(format!("backup {} has other files", backup.id));
            }
            self.backups.insert(id, BackupModel { backup, tree, visible: visible.to_vec(), protected: vec![false] });
        }
        Ok(())
    }
}
