//! Whether a restored tree is the one that was backed up: names, kinds, contents, modes, times, links.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What differs: how many entries in which respect, and one of them.
#[derive(Debug, Default)]
pub struct Differences(BTreeMap<&'static str, (u64, String)>);

impl Differences {
    /// `identical`, or a phrase like `differs: mode of 2 (a/b)`.
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return "identical".into();
        }
        let parts: Vec<_> = self.0.iter().map(|(what, (count, path))| format!("{what} of {count} ({path})")).collect();
        format!("differs: {}", parts.join(", "))
    }

    fn add(&mut self, what: &'static str, path: &Path) {
        self.0.entry(what).or_insert_with(|| (0, path.display().to_string())).0 += 1;
    }
}

/// Compares all below two directories. Mode and times of these two themselves are left out: some programs restore into
/// a directory that the caller makes.
pub fn trees(original: &Path, restored: &Path) -> Result<Differences> {
    let mut found = Differences::default();
    directories(original, restored, Path::new(""), &mut found)?;
    Ok(found)
}

fn directories(original: &Path, restored: &Path, path: &Path, found: &mut Differences) -> Result<()> {
    let names = |root: &Path| -> Result<BTreeSet<_>> {
        let directory = root.join(path);
        let entries = fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?;
        Ok(entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?)
    };
    let (ours, theirs) = (names(original)?, names(restored)?);
    for name in theirs.difference(&ours) {
        found.add("addition", &path.join(name));
    }
    for name in &ours {
        let path = path.join(name);
        if !theirs.contains(name) {
            found.add("absence", &path);
            continue;
        }
        let (one, other) = (original.join(&path), restored.join(&path));
        let (before, after) = (fs::symlink_metadata(&one)?, fs::symlink_metadata(&other)?);
        if before.file_type() != after.file_type() {
            found.add("kind", &path);
            continue;
        }
        attributes(&before, &after, &path, found);
        if before.is_dir() {
            directories(original, restored, &path, found)?;
        } else if before.is_symlink() {
            if fs::read_link(&one)? != fs::read_link(&other)? {
                found.add("link target", &path);
            }
        } else if before.is_file() && (before.len() != after.len() || !same_content(&one, &other)?) {
            found.add("content", &path);
        }
    }
    Ok(())
}

fn attributes(before: &Metadata, after: &Metadata, path: &Path, found: &mut Differences) {
    if before.mode() != after.mode() {
        found.add("mode", path);
    }
    if before.mtime() != after.mtime() {
        found.add("time", path);
    } else if before.mtime_nsec() != after.mtime_nsec() {
        found.add("fraction of a second of the time", path);
    }
    if before.is_file() && before.nlink() != after.nlink() {
        found.add("hard links", path);
    }
}

fn same_content(one: &Path, other: &Path) -> Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let (mut ours, mut theirs) = (vec![0; 1 << 18], vec![0; 1 << 18]);
    loop {
        let length = one.read(&mut ours)?;
        if length == 0 {
            return Ok(other.read(&mut theirs[..1])? == 0);
        }
        match other.read_exact(&mut theirs[..length]) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if ours[..length] != theirs[..length] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};

    /// Two equal trees.
    fn pair() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let trees = ["a", "b"].map(|name| place.path().join(name));
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        for tree in &trees {
            fs::create_dir_all(tree.join("d")).unwrap();
            fs::write(tree.join("d/file"), "content").unwrap();
            fs::hard_link(tree.join("d/file"), tree.join("d/same")).unwrap();
            symlink("file", tree.join("d/link")).unwrap();
            nix::sys::stat::utimensat(
                nix::fcntl::AT_FDCWD,
                &tree.join("d/link"),
                &nix::sys::time::TimeSpec::new(1, 2),
                &nix::sys::time::TimeSpec::new(1, 2),
                nix::sys::stat::UtimensatFlags::NoFollowSymlink,
            )
            .unwrap();
            for path in ["d/file", "d"] {
                File::open(tree.join(path)).unwrap().set_modified(time).unwrap();
            }
        }
        let [a, b] = trees;
        (place, a, b)
    }

    #[test]
    fn equal_trees_are_identical() {
        let (_place, a, b) = pair();
        assert_eq!(trees(&a, &b).unwrap().text(), "identical");
    }

    #[test]
    fn each_kind_of_difference_is_found() {
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        // What is done to the second tree, and what is to be said of it; times are put back, so that nothing else
        // differs.
        type Change = fn(&Path);
        let changes: [(Change, &str); 6] = [
            (|tree| fs::write(tree.join("d/file"), "contenu").unwrap(), "differs: content of 2 (d/file)"),
            (|tree| fs::set_permissions(tree.join("d"), fs::Permissions::from_mode(0o700)).unwrap(), "differs: mode of 1 (d)"),
            (|tree| fs::write(tree.join("e"), "").unwrap(), "differs: addition of 1 (e)"),
            (|tree| fs::remove_dir_all(tree.join("d")).unwrap(), "differs: absence of 1 (d)"),
            (|tree| fs::write(tree.join("d/file"), "content and more").unwrap(), "differs: content of 2 (d/file)"),
            (
                |tree| {
                    fs::remove_file(tree.join("d/same")).unwrap();
                    fs::copy(tree.join("d/file"), tree.join("d/same")).unwrap();
                },
                "differs: hard links of 2 (d/file)",
            ),
        ];
        for (change, said) in changes {
            let (_place, a, b) = pair();
            let before = time(&b.join("d/file"));
            change(&b);
            for path in ["d/same", "d/file", "d"] {
                if let Ok(file) = File::open(b.join(path)) {
                    file.set_modified(before).unwrap();
                }
            }
            assert_eq!(trees(&a, &b).unwrap().text(), said);
        }
    }

    #[test]
    fn times_are_compared_to_the_nanosecond() {
        let (_place, a, b) = pair();
        let file = File::open(b.join("d/file")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 0)).unwrap();
        assert_eq!(trees(&a, &b).unwrap().text(), "differs: fraction of a second of the time of 2 (d/file)");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(1_000_000_001, 0)).unwrap();
        assert_eq!(trees(&a, &b).unwrap().text(), "differs: time of 2 (d/file)");
    }
}
