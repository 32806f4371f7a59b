//! Compares a store with its model, and checks it.

use crate::model::{FILESYSTEMS, FilesystemModel, Model, SLOTS, Tree};
use crate::sight::Sight;
use crate::world::{Case, FS_OPTIONS, Fault, World, must};
use onefold_blocks::{Owner, SpaceError};
use onefold_catalog::{Backup, Content, PieceReader, TreeWalk};
use onefold_engine::Engine;
use onefold_fs::testing::{Left, TreeModel, is_unmade};
use onefold_fs::{Filesystem, FsError};
use onefold_ground::SimulatedGround;
use onefold_upkeep::{CheckOptions, NoMonitor, check};
use onefold_volume::VolumeError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Model {
    /// Compares the store: it must be in one of the states that the model allows; with `live`, in the latest. Otherwise
    /// what was found is what is known from now on.
    pub fn verify(&mut self, world: &World, live: bool) -> Result<(), String> {
        for slot in 0..SLOTS {
            self.verify_slot(world, slot, live)?;
        }
        for slot in 0..FILESYSTEMS {
            self.verify_filesystem(world, slot, live)?;
        }
        self.verify_backups(world, live)
    }

    fn verify_slot(&mut self, world: &World, slot: usize, live: bool) -> Result<(), String> {
        let name = self.name(slot);
        let volume = match world.volumes.get(&name) {
            Ok(volume) => Some(volume),
            Err(VolumeError::NotFound { .. }) => None,
            Err(error) => return Err(format!("volume {name}: {error}")),
        };
        let mut reasons = Vec::new();
        let alternatives = &mut self.slots[slot];
        let first = if live { alternatives.len() - 1 } else { 0 };
        for at in (first..alternatives.len()).rev() {
            let mut state = alternatives[at].clone();
            let matches = match (&mut state, &volume) {
                (None, None) => Ok(()),
                (Some(state), Some(volume)) => state.matches(volume, live),
                (None, Some(_)) => Err("it is there".to_string()),
                (Some(_), None) => Err("it is missing".to_string()),
            };
            match matches {
                Ok(()) if live => return Ok(()),
                Ok(()) => {
                    *alternatives = vec![state];
                    return Ok(());
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Err(format!("volume {name}: {}", reasons.join("; or ")))
    }

    pub(crate) fn verify_filesystem(&mut self, world: &World, slot: usize, live: bool) -> Result<(), String> {
        let name = self.filesystem_name(slot);
        let alternatives = &mut self.filesystems[slot];
        let is_read_only = match world.filesystems.info(&name) {
            Ok(info) => Some(info.is_read_only),
            Err(FsError::Space(SpaceError::NotFound { .. })) => None,
            Err(error) => return Err(format!("filesystem {name}: {error}")),
        };
        let mut reasons = Vec::new();
        let first = if live { alternatives.len() - 1 } else { 0 };
        for at in (first..alternatives.len()).rev() {
            let mut state = alternatives[at].clone();
            let matches = match (&mut state, is_read_only) {
                (None, None) => Ok(Left::default()),
                (Some(state), Some(is_read_only)) if state.is_read_only == is_read_only => state.matches(world, &name, live),
                (Some(_), Some(is_read_only)) => Err(format!("read-only is {is_read_only}")),
                (None, Some(_)) => Err("it is there".to_string()),
                (Some(_), None) => Err("it is missing".to_string()),
            };
            match matches {
                Ok(_) if live => return Ok(()),
                Ok(Left { is_newer, is_shorter, is_mixed }) => {
                    let sights = [(is_newer, Sight::NewerNames), (is_shorter, Sight::ShorterFile), (is_mixed, Sight::OtherBytes)];
                    self.met.extend(sights.into_iter().filter(|(is_met, _)| *is_met).map(|(_, sight)| sight));
                    *alternatives = vec![state];
                    return Ok(());
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Err(format!("filesystem {name}: {}", reasons.join("; or ")))
    }

    fn verify_backups(&mut self, world: &World, live: bool) -> Result<(), String> {
        let found = world.catalog.list().map_err(|error| error.to_string())?;
        let mut found: BTreeMap<[u8; 16], Backup> = found
            .into_iter()
            .filter(|backup| backup.name.starts_with(&self.prefix))
            .map(|backup| (*backup.id.as_bytes(), backup))
            .collect();
        let protected = world.catalog.protected().map_err(|error| error.to_string())?;
        for (id, known) in &mut self.backups {
            let backup = found.remove(id);
            let allowed = if live { &known.visible[known.visible.len() - 1..] } else { &known.visible[..] };
            if !allowed.contains(&backup.is_some()) {
                return Err(format!("backup {}: visible is {}, allowed {allowed:?}", known.backup.id, backup.is_some()));
            }
            if let Some(backup) = &backup {
                let tree = read_tree(&world.engine, backup).map_err(|error| format!("backup {}: {error}", backup.id))?;
                if tree != known.tree {
                    return Err(format!("backup {} has other files", backup.id));
                }
                let is_protected = protected.contains_key(&backup.id);
                let allowed = if live { &known.protected[known.protected.len() - 1..] } else { &known.protected[..] };
                if !allowed.contains(&is_protected) {
                    return Err(format!("backup {}: protected is {is_protected}, allowed {allowed:?}", backup.id));
                }
                if !live {
                    known.protected = vec![is_protected];
                }
            }
            if !live {
                known.visible = vec![backup.is_some()];
            }
        }
        self.backups.retain(|_, backup| backup.visible != [false]);
        // After a crash it is as durable as everything that is there.
        self.adopt(&world.engine, &mut found, if live { &[false, true] } else { &[true] })?;
        if !live {
            self.doubtful.clear();
        }
        match found.first_key_value() {
            Some((_, backup)) => Err(format!("backup {} is there, nobody made it", backup.id)),
            None => Ok(()),
        }
    }
}

impl FilesystemModel {
    /// Compares a filesystem with this state. Unless it is live, what was found is what is known.
    fn matches(&mut self, world: &World, name: &str, live: bool) -> Result<Left, String> {
        let latest = self.history.latest().clone();
        let is_as = |seen: TreeModel, expected: &TreeModel| match &seen == expected {
            true => Ok(Left::default()),
            false => Err(format!("it is not as the process has made it: {}", seen.difference(expected))),
        };
        if let Some(mounted) = world.mounted.get(name) {
            return is_as(TreeModel::of(mounted, &latest.open)?, &latest);
        }
        let seen = look_at(world, name, &if self.is_read_only { latest.open.clone() } else { BTreeSet::new() })?;
        match live || self.is_read_only {
            true if self.is_read_only => is_as(seen, &latest),
            true => is_as(seen, &latest.closed()),
            false => self.history.crashed(seen),
        }
    }
}

/// Returns what a filesystem is that is not mounted, without changing anything.
pub(crate) fn look_at(world: &World, name: &str, open: &BTreeSet<u64>) -> Result<TreeModel, String> {
    let space = world.filesystems.spaces().get(Owner::Filesystems, name).map_err(|error| error.to_string())?;
    if is_unmade(&space) {
        return Ok(TreeModel::new(None));
    }
    TreeModel::of(&*Filesystem::open(space, FS_OPTIONS).map_err(|error| error.to_string())?, open)
}

impl Case {
    /// Opens what a crash left. Panics unless everything is there and a check finds nothing; `what` says in which
    /// trial.
    pub fn reopen(&self, ground: &SimulatedGround, model: &mut Model, what: &str) -> World {
        let world = self.open(ground).unwrap_or_else(|error| panic!("{self}, {what}: {error}"));
        must(model.verify(&world, false), *self, what);
        must(check_clean(&world), *self, what);
        world
    }
}

pub(crate) fn read_tree(engine: &Arc<Engine>, backup: &Backup) -> Result<Tree, Fault> {
    let (mut tree, mut links) = (Tree::new(), Vec::new());
    for item in TreeWalk::new(engine, b"", &backup.root) {
        let path = String::from_utf8(item.path)?;
        match item.entry?.content {
            Content::File { size_bytes, recipe } => {
                let pieces: Vec<_> = PieceReader::new(engine, &recipe).collect::<Result<_, _>>()?;
                let mut bytes = vec![1; size_bytes as usize];
                engine.read(&pieces, 0, &mut bytes, true)?;
                tree.insert(path, Arc::new(bytes));
            }
            Content::HardLink { path: first } => links.push((path, String::from_utf8(first)?)),
            _ => {}
        }
    }
    for (path, first) in links {
        // Otherwise it is a name of a symbolic link or the like.
        if let Some(bytes) = tree.get(&first).cloned() {
            tree.insert(path, bytes);
        }
    }
    Ok(tree)
}

/// Checks the store: every reference resolves, every count is right, every byte is what its fingerprint says. The
/// figures of files are right too.
pub fn check_clean(world: &World) -> Result<(), String> {
    check_data(world)?;
    match world.engine.wrong_files().map_err(|error| error.to_string())? {
        Some(what) => Err(format!("figures of container files: {what}")),
        None => Ok(()),
    }
}

/// Does the same without the figures.
pub(crate) fn check_data(world: &World) -> Result<(), String> {
    let options = CheckOptions { read_data: true, ..CheckOptions::default() };
    let report = check(&world.engine, options, &NoMonitor).map_err(|error| error.to_string())?;
    if let Some(problem) = report.problems.first() {
        return Err(format!("{} problems, one is: {problem:?}", report.problem_count));
    }
    Ok(())
}
