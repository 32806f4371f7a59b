//! The snapshots that backups leave: the newest backup of a name and a filesystem has one, and it goes with its backup.

use crate::Result;
use onefold_blocks::{Frozen, Owner, SpaceError, SpaceInfo, SpaceKind, Spaces};
use onefold_catalog::{Backup, BackupId, Catalog, CatalogError};
use onefold_engine::EngineError;
use onefold_fs::{backup_of_snapshot, snapshot_of_backup};
use std::collections::HashMap;

/// What is refused in append-only mode.
const DELETION: &str = "delete snapshots of backups";

/// A snapshot that a backup left.
pub(crate) struct Left {
    pub(crate) backup: BackupId,
    /// The number of its filesystem.
    pub(crate) filesystem: u32,
    /// Its own number.
    pub(crate) number: u32,
}

/// Returns the snapshots that backups left, of all filesystems.
pub(crate) fn left(spaces: &Spaces) -> Vec<Left> {
    let left = |info: SpaceInfo| {
        let id = backup_of_snapshot(&info.record.name).filter(|_| info.record.kind == SpaceKind::FilesystemSnapshot)?;
        let filesystem = info.record.origin?.number;
        Some(Left { backup: BackupId::from_bytes(id), filesystem, number: info.number })
    };
    spaces.list().into_iter().filter_map(left).collect()
}

/// Returns the name of the snapshot of a backup.
pub(crate) fn name_of(backup: BackupId) -> String {
    snapshot_of_backup(backup.as_bytes())
}

/// Deletes the snapshots of backups that were forgotten, and of filesystems that are gone. Returns how many. Call where
/// backups were forgotten, a filesystem was deleted, or space is to be freed. In append-only mode they stay.
pub fn tidy(spaces: &Spaces) -> Result<usize> {
    let has_filesystem = |left: &Left| spaces.list().iter().any(|info| info.number == left.filesystem);
    delete(spaces, |left, backup| backup.is_some() && has_filesystem(left))
}

/// Leaves a snapshot of the frozen filesystem for a new backup that is durable, in the place of older ones of its name.
/// `inherited`: that of this backup shows the same.
///
/// A crash in between leaves an older one, or two: the next backup is compared with the newest that is there.
pub(crate) fn leave(spaces: &Spaces, frozen: Frozen<'_>, filesystem: u32, new: &Backup, inherited: Option<BackupId>) -> Result<()> {
    let is_inherited = match inherited {
        Some(backup) => match spaces.rename(Owner::Filesystems, &name_of(backup), &name_of(new.id)) {
            Err(SpaceError::NotFound { .. }) => false,
            renamed => renamed.map(|()| true)?,
        },
        None => false,
    };
    let others = || left(spaces).iter().any(|left| left.filesystem == filesystem && left.backup != new.id);
    if !is_inherited {
        if others() && spaces.engine().permit_deletion(DELETION).is_err() {
            // They would become more and more. The next backup is compared with the one that is there.
            return Ok(());
        }
        spaces.keep(&frozen, filesystem, &name_of(new.id))?;
    }
    // A layer that has another user when its snapshot is deleted is not marked as dropped.
    drop(frozen);
    if others() {
        let is_of_others = |name: Option<&String>| name.is_some_and(|name| *name != new.name);
        delete(spaces, |left, name| left.filesystem != filesystem || left.backup == new.id || is_of_others(name))?;
    }
    Ok(())
}

/// Deletes those that `stays` does not want. It gets the name of the backup, if there is that backup.
fn delete(spaces: &Spaces, stays: impl Fn(&Left, Option<&String>) -> bool) -> Result<usize> {
    // Before the backups are looked at: a snapshot comes after its backup.
    let left = left(spaces);
    if left.is_empty() {
        return Ok(0);
    }
    let mut names: HashMap<BackupId, String> = HashMap::new();
    // All backups, whatever the caller may see.
    let visited = Catalog::new(spaces.engine().clone()).visit(&mut |backup| {
        if left.iter().any(|left| left.backup == backup.id) {
            names.insert(backup.id, backup.name);
        }
    });
    match visited {
        // The damaged record may be that of one of these.
        Err(CatalogError::Damaged { .. }) => return Ok(0),
        visited => visited?,
    }
    let mut deleted = 0;
    for left in left.iter().filter(|left| !stays(left, names.get(&left.backup))) {
        match delete_one(spaces, left) {
            Ok(()) => deleted += 1,
            // Somebody else deleted it, or nobody may. Whoever tidies next retries.
            Err(SpaceError::NotFound { .. } | SpaceError::Engine(EngineError::AppendOnly { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(deleted)
}

fn delete_one(spaces: &Spaces, left: &Left) -> Result<(), SpaceError> {
    let permit = spaces.engine().permit_deletion(DELETION)?;
    spaces.delete(Owner::Filesystems, &name_of(left.backup), permit)
}
