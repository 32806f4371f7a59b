//! What changed between two snapshots of a filesystem, found from the layers between them: no time and no number of an
//! inode is trusted for it, and the cost follows the changes.
//!
//! A file counts as changed if its inode or any block of it differs or was written, and a directory if one of its names
//! differs. Times of access do not count, nor what the filesystem notes for itself.

use crate::error::Result;
use crate::filesystem::FILE_BITS;
use crate::inode::Inode;
use crate::keys;
use onefold_blocks::{Space, Spaces};
use std::collections::HashSet;

/// The inodes that changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    numbers: HashSet<u64>,
}

impl Changes {
    /// Returns what changed from one snapshot of a filesystem to another, or `None` if more than `most` inodes did.
    /// Both may be frozen spaces. Errors: a part of what they have is lost.
    pub fn between(spaces: &Spaces, old: &Space, new: &Space, most: usize) -> Result<Option<Changes>> {
        let mut changes = Changes::default();
        for (from, to) in [keys::inodes(), keys::all_names()] {
            let mut from = from;
            loop {
                let (changed, next) = spaces.changed_keys([old, new], &from, &to)?;
                for key in changed {
                    let Some(number) = keys::number(&key).filter(|number| !changes.numbers.contains(number)) else { continue };
                    if !looks_same(&key, old.entry(&key)?, new.entry(&key)?) {
                        changes.numbers.insert(number);
                    }
                }
                if changes.numbers.len() > most {
                    return Ok(None);
                }
                match next {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
        let mut from = Some(0);
        while let Some(first) = from {
            let (blocks, next) = spaces.changed_blocks([old, new], first, u64::MAX)?;
            // The rest of the last file need not be looked at.
            let behind = blocks.last().map(|last| ((last >> FILE_BITS) + 1) << FILE_BITS);
            for number in blocks.iter().map(|block| block >> FILE_BITS) {
                // Blocks of files that are gone are freed after them.
                if !changes.numbers.contains(&number) && new.entry(&keys::inode(number))?.is_some() {
                    changes.numbers.insert(number);
                }
            }
            if changes.numbers.len() > most {
                return Ok(None);
            }
            from = next.map(|next| next.max(behind.unwrap_or(0)));
        }
        Ok(Some(changes))
    }

    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns whether an inode changed: it, its content or, of a directory, its names.
    pub fn has(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }
}

/// Returns whether two values of an entry differ in nothing but the time of the last access.
fn looks_same(key: &[u8], old: Option<Vec<u8>>, new: Option<Vec<u8>>) -> bool {
    match (old, new) {
        (old, new) if old == new => true,
        (Some(old), Some(new)) if keys::is_inode(key) => match (Inode::decode(&old), Inode::decode(&new)) {
            (Ok(old), Ok(new)) => Inode { atime_ns: new.atime_ns, ..old } == new,
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Changed, Create, Filesystem, FsOptions, Kind, ROOT, Rename};
    use onefold_blocks::testing::{TestStore, bytes};
    use onefold_blocks::{MIN_BLOCK_BYTES, NewSpace, Owner, SpaceKind, SpacesOptions};
    use std::time::Duration;

    #[test]
    fn what_was_written_named_or_changed_is_found_and_times_of_access_are_not() {
        let mut store = TestStore::new();
        let spaces = store.spaces(SpacesOptions::default());
        let new = NewSpace { name: "f", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: MIN_BLOCK_BYTES, chain: None };
        let space = spaces.create(new).unwrap();
        Filesystem::format(&space, None, (0, 0)).unwrap();
        let fs = Filesystem::open(space, FsOptions { commit_interval: Duration::from_secs(3600), ..FsOptions::default() }).unwrap();
        let new = Create { mode: 0o755, umask: 0, uid: 0, gid: 0 };
        let make = |directory, name: &[u8], kind| fs.create(directory, name, kind, new).unwrap().0;
        let directory = make(ROOT, b"d", Kind::Directory { parent: 0 });
        let files: Vec<u64> = (0..30u8).map(|name| make(directory, &[b'a' + name], Kind::File)).collect();
        for file in &files {
            fs.write(*file, 0, &bytes(*file, 70_000), false).unwrap();
        }
        let mut count = 0;
        let mut snapshot = || {
            count += 1;
            let name = format!("s{count}");
            fs.at_rest(|| Ok(spaces.snapshot(Owner::Filesystems, "f", &name)?)).unwrap()
        };
        let changes = |old: &Space, new: &Space| Changes::between(&spaces, old, new, 1000).unwrap().unwrap();
        let first = snapshot();
        assert!(changes(&first, &snapshot()).is_empty());
        fs.set(files[0], Changed { atime_ns: Some(5), ctime_ns: Some(fs.inode(files[0]).unwrap().ctime_ns), ..Changed::default() })
            .unwrap();
        let second = snapshot();
        assert!(changes(&first, &second).is_empty(), "an access is no change");
        // As by a program that sets the times back.
        let before = fs.inode(files[1]).unwrap();
        fs.write(files[1], 66_000, b"x", false).unwrap();
        fs.set(files[1], Changed { mtime_ns: Some(before.mtime_ns), ctime_ns: Some(before.ctime_ns), ..Changed::default() }).unwrap();
        fs.set(files[2], Changed { mode: Some(0o600), ..Changed::default() }).unwrap();
        fs.rename((directory, b"z"), (ROOT, b"z"), Rename::Replace).unwrap();
        let gone = make(directory, b"gone", Kind::File);
        fs.write(gone, 0, &bytes(1, 70_000), false).unwrap();
        fs.sync().unwrap();
        fs.unlink(directory, b"gone").unwrap();
        fs.sync().unwrap();
        let third = snapshot();
        let found = changes(&second, &third);
        let mut expected = HashSet::from([ROOT, directory, files[1], files[2], files[25]]);
        assert_eq!(found.numbers, expected);
        assert_eq!(Changes::between(&spaces, &second, &third, 4).unwrap(), None);
        assert_eq!(changes(&third, &second).numbers, expected, "backwards as well");
        fs.write(files[9], 0, b"y", false).unwrap();
        expected.insert(files[9]);
        assert_eq!(changes(&first, &snapshot()).numbers, expected);
    }
}
