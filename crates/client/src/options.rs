//! Options of a backup, and its outcome.

use crate::{ClientError, Result};
use onefold_catalog::{Backup, BackupId, Statistics, components};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What to back up and how.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// The backup group.
    pub name: String,
    /// The machine's name to show.
    pub host: String,
    /// The user's name to show.
    pub user: String,
    /// Files and directories. Relative ones are made absolute.
    pub paths: Vec<PathBuf>,
    /// Tags to find it by ([`onefold_catalog::is_valid_tag`]), sorted, each once.
    pub tags: Vec<String>,
    /// Paths from a list that is too long for the record. They are backed up like the others. The record names their
    /// common directory.
    pub listed_paths: Vec<PathBuf>,
    /// Patterns of names to leave out ([`Excludes`]).
    pub excludes: Vec<String>,
    /// Leave cache directories empty except for their CACHEDIR.TAG.
    pub exclude_caches: bool,
    /// Leave directories with a file of one of these names empty, except for that file.
    pub exclude_if_present: Vec<Vec<u8>>,
    /// Read the content of block devices and FIFOs among the paths, and store it as files.
    pub read_special: bool,
    /// Stay on the file system of each path. Mount points of other file systems are stored empty.
    pub one_file_system: bool,
    /// Read every file, even if it looks unchanged.
    pub force_read: bool,
    /// The backup to compare with.
    pub parent: Parent,
    /// The store's directory, which is never backed up into itself.
    pub store_directory: Option<PathBuf>,
}

/// The backup to compare a new one with.
#[derive(Clone, Debug, Default)]
pub enum Parent {
    /// The newest with the same name, host and paths.
    #[default]
    Newest,
    /// This one.
    This(BackupId),
    /// None: every file is new, and read.
    None,
}

/// The outcome of a backup.
#[derive(Clone, Debug)]
pub struct BackupOutcome {
    /// The committed backup.
    pub backup: Backup,
    /// The backup it was compared with.
    pub parent: Option<BackupId>,
    /// Files and directories that are missing because they could not be read.
    pub errors: u64,
    /// Files that changed or vanished during the backup.
    pub warnings: u64,
}

impl BackupOutcome {
    /// Returns whether everything requested is in the backup.
    pub fn is_complete(&self) -> bool {
        self.errors == 0
    }
}

/// What a backup would do.
#[derive(Clone, Copy, Debug)]
pub struct Rehearsal {
    /// The backup it would be compared with.
    pub parent: Option<BackupId>,
    /// What it would count. The bytes to read are those of new and changed files at their current size. The added bytes
    /// are unknown.
    pub statistics: Statistics,
    /// Things worth knowing.
    pub warnings: u64,
}

impl BackupOptions {
    /// Returns the options as the backup's record stores them.
    pub(crate) fn to_json(&self) -> String {
        serde_json::json!({
            "excludes": self.excludes,
            "one_file_system": self.one_file_system,
            "force_read": self.force_read,
            "exclude_caches": self.exclude_caches,
            "exclude_if_present": self.exclude_if_present.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>(),
            "read_special": self.read_special,
            "listed": !self.listed_paths.is_empty(),
        })
        .to_string()
    }
}

/// Returns absolute paths without `.` and `..`.
pub(crate) fn cleaned(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let clean = |path: &PathBuf| {
        if path.as_os_str().is_empty() {
            return Err(ClientError::NothingToBackUp { reason: "a path is empty".to_owned() });
        }
        let path = std::path::absolute(path).map_err(|error| ClientError::io("find", path.as_os_str().as_bytes(), error))?;
        Ok(clean(&path))
    };
    paths.iter().map(clean).collect()
}

/// Returns the common directory of these paths. `None`: there are no paths.
pub(crate) fn common_directory(paths: &[Vec<u8>]) -> Option<Vec<u8>> {
    let above = |path: &[u8]| components(path).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let mut common = above(paths.first()?);
    common.pop();
    for path in &paths[1..] {
        let path = above(path);
        let length = common.iter().zip(&path).take_while(|(a, b)| a == b).count();
        common.truncate(length);
    }
    Some([b"/".as_slice(), &common.join(&b'/')].concat())
}

/// Removes each `..` together with the component before it, as a person reads it.
pub(crate) fn clean(path: &Path) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for component in components(path.as_os_str().as_bytes()) {
        match component {
            b".." => {
                kept.pop();
            }
            _ => kept.push(component),
        }
    }
    let mut clean = vec![b'/'];
    clean.extend_from_slice(&kept.join(&b'/'));
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute_and_clean() {
        let paths = ["/a/../b/./c/", "//b//c", "/..", "/x"].map(PathBuf::from);
        assert_eq!(cleaned(&paths).unwrap(), [&b"/b/c"[..], b"/b/c", b"/", b"/x"]);
        let relative = cleaned(&[PathBuf::from("x")]).unwrap();
        assert!(relative[0].starts_with(b"/") && relative[0].ends_with(b"/x"));
        assert!(cleaned(&[PathBuf::new()]).is_err());
    }

    #[test]
    fn listed_paths_have_a_directory_in_common() {
        let common = |paths: &[&str]| {
            let paths: Vec<Vec<u8>> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            common_directory(&paths).map(|path| String::from_utf8(path).unwrap())
        };
        assert_eq!(common(&["/a/b/c", "/a/b/d/e", "/a/b/d"]).as_deref(), Some("/a/b"));
        assert_eq!((common(&["/a/b"]).as_deref(), common(&["/a", "/b"]).as_deref(), common(&[])), (Some("/a"), Some("/"), None));
    }
}
