//! Files that a backup takes by their names (M3.3), as the client does it in stores without a chunk index.

use crate::supply::supply;
use crate::world::{Fault, Random, World};
use onefold_catalog::{BackupId, FileName, NamedFile};
use onefold_engine::{Change, Hints, InFlight, Recipe, RecipeWriter};
use std::collections::HashSet;

/// The files that a backup can take, and those that it notes.
pub(crate) struct Names {
    id: BackupId,
    kept: HashSet<BackupId>,
    new: Vec<Change>,
}

impl Names {
    /// Returns the names for a backup under this id. Keep the guard until it is committed.
    pub(crate) fn new(world: &World, id: BackupId, guard: &InFlight) -> Result<Names, Fault> {
        let kept = if world.engine.recalls() { world.catalog.backups_with_named_files(guard)? } else { HashSet::new() };
        Ok(Names { id, kept, new: Vec::new() })
    }

    /// Takes or stores a file. Sometimes stores it whatever is known, as a backup server does, or as others do.
    pub(crate) fn file(&mut self, world: &mut World, bytes: &[u8], random: &mut Random) -> Result<Recipe, Fault> {
        let (mut name, mut taken) = (None, None);
        let (catalog, stream) = (&world.catalog, &mut world.streams[random.below(2) as usize]);
        let mut pieces = Vec::new();
        if random.one_in(3) {
            pieces = supply(&world.engine, &mut world.streams[1], bytes, random)?;
        } else if !world.engine.recalls() || random.one_in(3) {
            stream.write(bytes, true, Hints::default(), &mut pieces)?;
        } else {
            let stored = stream.write_unknown_runs(&[bytes], &mut |files, recall| {
                let of = FileName::of(world.engine.descriptor().fingerprint, files)[0];
                name = Some(of);
                taken = catalog.named_files(&[of]).remove(0).and_then(|found| {
                    let is_kept = found.backup == self.id || self.kept.contains(&found.backup);
                    catalog.take(found, is_kept, &files[0], recall)
                });
                vec![taken.is_some()]
            })?;
            pieces.extend(stored.into_iter().flatten().flatten());
        }
        if let Some(recipe) = taken {
            return Ok(recipe);
        }
        let mut recipe = RecipeWriter::new(&world.engine);
        let stream = &mut world.streams[random.below(2) as usize];
        pieces.into_iter().try_for_each(|piece| recipe.push(stream, piece))?;
        let recipe = recipe.finish(stream)?;
        self.new.extend(name.map(|name| NamedFile { backup: self.id, recipe: recipe.clone() }.change(&world.engine, &name)));
        Ok(recipe)
    }

    /// Notes the new files.
    pub(crate) fn finish(&mut self, world: &World) {
        if !self.new.is_empty() {
            world.engine.submit_advice(std::mem::take(&mut self.new));
        }
    }
}
