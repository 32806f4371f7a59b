//! Compares a store with its model, and checks it.

use crate::model::{Model, SLOTS, Tree};
use crate::world::{Case, Fault, World, must};
use onefold_catalog::{Backup, Content, PieceReader, TreeWalk};
use onefold_engine::Engine;
use onefold_ground::SimulatedGround;
use onefold_upkeep::{CheckOptions, NoMonitor, check};
use onefold_volume::VolumeError;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Model {
    /// Compares the store: it must be in one of the states that the model allows; with `live`, in the latest. Otherwise
    /// what was found is what is known from now on.
    pub fn verify(&mut self, world: &World, live: bool) -> Result<(), String> {
        for slot in 0..SLOTS {
            self.verify_slot(world, slot, live)?;
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
        match found.first_key_value() {
            Some((_, backup)) => Err(format!("backup {} is there, nobody made it", backup.id)),
            None => Ok(()),
        }
    }
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
    let mut tree = Tree::new();
    for item in TreeWalk::new(engine, b"", &backup.root) {
        if let Content::File { size_bytes, recipe } = item.entry?.content {
            let pieces: Vec<_> = PieceReader::new(engine, &recipe).collect::<Result<_, _>>()?;
            let mut bytes = vec![1; size_bytes as usize];
            engine.read(&pieces, 0, &mut bytes, true)?;
            tree.insert(String::from_utf8(item.path)?, Arc::new(bytes));
        }
    }
    Ok(tree)
}

/// Checks the store: every reference resolves, every count is right, every byte is what its fingerprint says.
pub fn check_clean(world: &World) -> Result<(), String> {
    let options = CheckOptions { read_data: true, ..CheckOptions::default() };
    let report = check(&world.engine, options, &NoMonitor).map_err(|error| error.to_string())?;
    if let Some(problem) = report.problems.first() {
        return Err(format!("{} problems, one is: {problem:?}", report.problem_count));
    }
    match world.engine.wrong_files().map_err(|error| error.to_string())? {
        Some(what) => Err(format!("figures of container files: {what}")),
        None => Ok(()),
    }
}
