//! One backup: what it is compared with, the walk, the record, the snapshot for the next one.

use crate::snapshots::{self, Left};
use crate::walk::Walk;
use crate::{FsBackupError, Monitor, Result};
use onefold_blocks::{Space, Spaces};
use onefold_catalog::{Backup, BackupId, Catalog, CatalogError, Comparison, Details, Growth, Making, Statistics, is_valid_name};
use onefold_engine::Recipe;
use onefold_fs::{Changes, Filesystem, FsOptions};
use std::sync::Arc;
use std::time::Duration;

/// If more inodes changed, all files are looked at: so many numbers take some 10 MB.
const MOST_CHANGES: usize = 1 << 19;

/// What the record of the backup says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The backup group.
    pub name: String,
    /// The machine's name.
    pub host: String,
    /// The user's name.
    pub user: String,
    /// Tags, sorted, each once.
    pub tags: Vec<String>,
}

/// A backup that was made.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its record.
    pub backup: Backup,
    /// The backup that it was compared with.
    pub parent: Option<BackupId>,
}

/// What to compare with: an earlier backup, and what changed since.
struct Earlier {
    backup: Backup,
    changes: Changes,
    /// Nothing was stored since, not even a time of access.
    is_untouched: bool,
}

/// Backs up a filesystem that is open, as of one moment during the call: everything that was changed before is in it.
/// Durable on return. The backup has one directory, which has the name of the filesystem, its names and its attributes.
///
/// Errors: nothing of the backup is seen. A single file that cannot be backed up is reported and makes it partial.
pub fn backup(spaces: &Spaces, filesystem: &Filesystem, options: &Options, monitor: &dyn Monitor) -> Result<Outcome> {
    let (number, name) = (filesystem.space().number(), filesystem.space().name());
    if !is_valid_name(name.as_bytes()) {
        return Err(FsBackupError::Name { name });
    }
    let catalog = Catalog::new(spaces.engine().clone());
    let left: Vec<Left> = snapshots::left(spaces).into_iter().filter(|left| left.filesystem == number).collect();
    // The guard comes first: chunks that a mapping names must not go any more.
    let is_earlier = |backup: &Backup| backup.name == options.name && left.iter().any(|left| left.backup == backup.id);
    let comparison = Arc::new(Comparison::find(&catalog, is_earlier)?);
    let making = Arc::new(Making::begin(&catalog, &comparison)?);
    let before = comparison.earlier.as_ref().and_then(|earlier| left.iter().find(|left| left.backup == earlier.id));
    let before = before.map(|left| left.number);
    // Both have a user from now on: a snapshot may be deleted while this backup is compared with it.
    let frozen = filesystem.at_rest(|| Ok(spaces.frozen(&|info| info.number == number || Some(info.number) == before)?))?;
    let Some(now) = frozen.get(number).cloned() else { return Err(FsBackupError::Deleted { name }) };
    let earlier = match (&comparison.earlier, before.and_then(|before| frozen.get(before))) {
        (Some(backup), Some(before)) => compare(spaces, backup, before, &now)?,
        _ => None,
    };
    let unchanged = earlier.as_ref().filter(|earlier| earlier.is_same(name.as_bytes(), &making));
    let (root, statistics) = match unchanged {
        Some(earlier) => (earlier.backup.root.clone(), earlier.statistics()),
        None => walk(&making, &name, &now, earlier.as_ref(), monitor)?,
    };
    let details = Details {
        name: options.name.clone(),
        host: options.host.clone(),
        user: options.user.clone(),
        tags: options.tags.clone(),
        paths: vec![[b"/", name.as_bytes()].concat()],
        options: serde_json::json!({ "filesystem": name }).to_string(),
        statistics,
    };
    let backup = making.commit(root, details, Growth::Measured)?;
    let inherited = earlier.as_ref().filter(|earlier| earlier.is_untouched).map(|earlier| earlier.backup.id);
    if let Err(error) = snapshots::leave(spaces, frozen, number, &backup, inherited) {
        // The backup is durable, and as good without.
        tracing::warn!(%error, "the next backup of the filesystem looks at more files than it must");
    }
    Ok(Outcome { parent: earlier.map(|earlier| earlier.backup.id), backup })
}

/// Returns whether a backup was made of a filesystem of its store.
pub fn is_of_filesystem(backup: &Backup) -> bool {
    serde_json::from_str(&backup.options).is_ok_and(|options: serde_json::Value| options.get("filesystem").is_some())
}

/// Finds out what changed since an earlier backup. `None`: too much, or a part of it cannot be read.
fn compare(spaces: &Spaces, backup: &Backup, before: &Space, now: &Space) -> Result<Option<Earlier>> {
    match Changes::between(spaces, before, now, MOST_CHANGES) {
        Ok(changes) => Ok(changes.map(|changes| Earlier { backup: backup.clone(), changes, is_untouched: before.shares_layer(now) })),
        Err(error) if error.is_lost() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Earlier {
    /// Returns whether its root has everything that is to be backed up, under this name.
    fn is_same(&self, name: &[u8], making: &Making) -> bool {
        let has_name = || onefold_catalog::lookup(making.engine(), &self.backup.root, name).is_ok_and(|entry| entry.is_some());
        // What is lost of the earlier backup, the filesystem may have.
        let may_be_lost = making.engine().has_quarantined();
        self.changes.is_empty() && !self.backup.is_partial() && !may_be_lost && has_name()
    }

    /// Returns what a backup counts that has the same root.
    fn statistics(&self) -> Statistics {
        let Statistics { files, directories, others, logical_bytes, .. } = self.backup.statistics;
        Statistics { files, directories, others, logical_bytes, unmodified_files: files, ..Statistics::default() }
    }
}

fn walk(
    making: &Arc<Making>,
    name: &str,
    now: &Arc<Space>,
    earlier: Option<&Earlier>,
    monitor: &dyn Monitor,
) -> Result<(Recipe, Statistics)> {
    // It is read-only, so nothing is ever committed.
    let filesystem = Filesystem::open(now.clone(), FsOptions { commit_interval: Duration::MAX, ..FsOptions::default() })?;
    let compared = match earlier {
        Some(earlier) => match onefold_catalog::lookup(making.engine(), &earlier.backup.root, name.as_bytes()) {
            Ok(entry) => entry.map(|entry| (entry, &earlier.changes)),
            // The filesystem had another name.
            Err(CatalogError::PathNotFound { .. }) => None,
            // The earlier backup is damaged. The filesystem has everything.
            Err(CatalogError::Damaged { .. }) => None,
            Err(CatalogError::Engine(error)) if error.is_damage() => None,
            Err(error) => return Err(error.into()),
        },
        None => None,
    };
    Walk::new(making, &filesystem, compared, monitor)?.run(name.as_bytes())
}
