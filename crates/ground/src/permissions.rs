//! Who may open the files of a store.
//!
//! A store holds the content of everything ever written to it, so it belongs to its owner alone: directories 0700,
//! files 0600. The mode of its own directory shares it with a group, as `init --group` sets it: setgid, with rights for
//! the group. Then every file below has the same rights for that group.
//!
//! Invariants:
//! * The mode of a new file depends on the store's directory alone, never on the umask of the creating process.
//! * Nobody outside owner and group ever gets any right.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

const SET_GROUP: u32 = 0o2000;
const GROUP: u32 = 0o070;
const OTHERS: u32 = 0o007;

/// Modes of new files and directories in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Mode of files and sockets.
    pub file: u32,
    /// Mode of directories.
    pub directory: u32,
}

impl Permissions {
    /// Access for the owner alone.
    pub const PRIVATE: Permissions = Permissions { file: 0o600, directory: 0o700 };
    /// Full access for the owner and a group.
    pub const SHARED: Permissions = Permissions { file: 0o660, directory: SET_GROUP | 0o770 };

    /// Returns the modes for everything created below a directory.
    pub fn below(directory: &Metadata) -> Permissions {
        let mode = directory.mode();
        if mode & SET_GROUP == 0 {
            return Permissions::PRIVATE;
        }
        let group = mode & GROUP;
        Permissions { file: 0o600 | (group & 0o060), directory: SET_GROUP | 0o700 | group }
    }

    /// Returns whether members of the group may write.
    pub fn let_group_write(&self) -> bool {
        self.file & 0o020 != 0
    }
}

/// Sets a mode regardless of the umask. A file system without modes (FAT, some network shares) is no error: `check`
/// reports what is open.
pub fn set_mode(file: &fs::File, mode: u32) -> io::Result<()> {
    kept(file.set_permissions(fs::Permissions::from_mode(mode)))
}

/// Sets the mode of a path, like [`set_mode`].
pub fn set_mode_of(path: &Path, mode: u32) -> io::Result<()> {
    kept(fs::set_permissions(path, fs::Permissions::from_mode(mode)))
}

fn kept(set: io::Result<()>) -> io::Result<()> {
    match set {
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) => Ok(()),
        set => set,
    }
}

/// A way into a store for a user who is neither its owner nor in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Whether every local user has access, not only the group of the files.
    pub to_everybody: bool,
    /// Whether the store is shared with a group.
    pub is_shared: bool,
    /// What can be opened.
    pub path: String,
    /// Its mode.
    pub mode: u32,
}

/// Returns the widest way in, if there is one. The store's directory lets a user pass, and an entry right below it lets
/// the same user in.
pub(crate) fn exposure(root: &Path) -> io::Result<Option<Exposure>> {
    let found = fs::metadata(root)?;
    let is_shared = found.mode() & SET_GROUP != 0;
    let passes = |class: u32| found.mode() & class & 0o011 != 0;
    for class in [OTHERS, GROUP] {
        if !passes(class) || (class == GROUP && is_shared) {
            continue;
        }
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let found = entry.metadata()?;
            let kind = found.file_type();
            let opens = match () {
                () if kind.is_dir() => 0o055,
                () if kind.is_socket() => 0o022,
                () if kind.is_file() => 0o066,
                () => 0,
            };
            if found.mode() & class & opens != 0 {
                let path = entry.path().display().to_string();
                return Ok(Some(Exposure { to_everybody: class == OTHERS, is_shared, path, mode: found.mode() & 0o7777 }));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(mode: u32) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("log")).unwrap();
        set_mode_of(directory.path(), mode).unwrap();
        directory
    }

    #[test]
    fn only_a_setgid_directory_shares_what_is_made_in_it() {
        for (mode, file, below) in [
            (0o700, 0o600, 0o700),
            (0o755, 0o600, 0o700),
            (0o777, 0o600, 0o700),
            (0o770, 0o600, 0o700),
            (0o2770, 0o660, 0o2770),
            (0o2750, 0o640, 0o2750),
            (0o2777, 0o660, 0o2770),
            (0o2700, 0o600, 0o2700),
        ] {
            let directory = directory(mode);
            let found = Permissions::below(&fs::metadata(directory.path()).unwrap());
            assert_eq!(found, Permissions { file, directory: below }, "{mode:o}");
        }
    }

    #[test]
    fn a_store_is_exposed_when_its_directory_and_something_in_it_are_open_to_the_same_user() {
        for (root, below, expected) in [
            (0o700, 0o755, None),
            (0o711, 0o700, None),
            (0o750, 0o700, None),
            (0o755, 0o755, Some(true)),
            (0o711, 0o705, Some(true)),
            (0o701, 0o750, None),
            (0o750, 0o755, Some(false)),
            (0o2770, 0o2770, None),
            (0o2775, 0o2770, None),
            (0o2775, 0o2775, Some(true)),
        ] {
            let directory = directory(root);
            set_mode_of(&directory.path().join("log"), below).unwrap();
            let found = exposure(directory.path()).unwrap();
            assert_eq!(found.map(|found| found.to_everybody), expected, "{root:o} {below:o}");
        }
    }
}
