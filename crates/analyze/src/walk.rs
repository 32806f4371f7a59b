//! The walk: which regular files are under the paths, each once.
//!
//! # Invariants
//! * A path that is named twice is one path. A file belongs to the path that was named nearest above it, so that `/srv`
//!   and `/srv/a` share none.
//! * A file with several names is met once, under the first of them in the order of the walk: paths as they were given,
//!   names sorted.

use crate::scan::Scan;
use onefold_client::Excludes;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Device and inode: which file it is, whatever its name.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// A path that was named and exists.
#[derive(Debug)]
pub struct Root {
    /// As it was given.
    pub given: PathBuf,
    /// Where it is.
    path: PathBuf,
    metadata: Metadata,
}

/// Looks at the paths that were given, behind links too. What cannot be looked at is reported.
pub fn roots(paths: &[PathBuf], scan: &Scan<'_>) -> Vec<Root> {
    let mut known = HashSet::new();
    let mut roots = Vec::new();
    for given in paths {
        let found = absolute(given).and_then(|path| std::fs::metadata(&path).map(|metadata| (path, metadata)));
        match found {
            Ok((_, metadata)) if !metadata.is_dir() && !metadata.is_file() => {
                scan.error(&named(given), "is neither a file nor a directory");
            }
            Ok((path, metadata)) => {
                if known.insert(identity(&metadata)) {
                    roots.push(Root { given: given.clone(), path, metadata });
                }
            }
            Err(error) => scan.error(&named(given), format_args!("cannot look at it: {error}")),
        }
    }
    roots
}

/// A path as problems name it.
fn named(given: &Path) -> PathBuf {
    std::path::absolute(given).unwrap_or_else(|_| given.to_owned())
}

/// A path that patterns of absolute paths can be compared with.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    if path.components().any(|component| component == Component::ParentDir) {
        return std::fs::canonicalize(path);
    }
    std::path::absolute(path)
}

/// What a walk looks for.
pub struct Walk<'a> {
    /// Where to look.
    pub roots: &'a [Root],
    /// What to leave out.
    pub excludes: &'a Excludes,
    /// Keep to the file systems of the roots.
    pub one_file_system: bool,
    /// Takes problems and says when to stop.
    pub scan: &'a Scan<'a>,
}

/// What a walk has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Regular files, each once.
    pub files: u64,
    /// Further names of files that were met already.
    pub hard_links: u64,
    /// Directories.
    pub directories: u64,
}

/// Told of every file: the number of its root, its path, what the system says of it. `Break` ends the walk.
pub type Visit<'a> = dyn FnMut(u32, PathBuf, &Metadata) -> ControlFlow<()> + 'a;

impl Walk<'_> {
    /// Goes through the roots one by one. A `rehearsal` reports no problems: they come again.
    pub fn run(&self, is_rehearsal: bool, visit: &mut Visit<'_>) -> Counts {
        let mut walker = Walker {
            walk: self,
            is_rehearsal,
            named: self.roots.iter().map(|root| identity(&root.metadata)).collect(),
            linked: HashSet::new(),
            counts: Counts::default(),
        };
        for (number, root) in (0u32..).zip(self.roots) {
            if walker.root(number, root, visit).is_break() {
                break;
            }
        }
        walker.counts
    }
}

struct Walker<'a> {
    walk: &'a Walk<'a>,
    is_rehearsal: bool,
    /// The roots.
    named: HashSet<Identity>,
    /// Files with several names that were met.
    linked: HashSet<Identity>,
    counts: Counts,
}

/// A directory that the walk is in: its names that are still to come, in reverse.
struct Level {
    path: PathBuf,
    names: Vec<OsString>,
}

impl Walker<'_> {
    fn root(&mut self, number: u32, root: &Root, visit: &mut Visit<'_>) -> ControlFlow<()> {
        if self.walk.excludes.matches(root.path.as_os_str().as_bytes()) {
            return ControlFlow::Continue(());
        }
        if root.metadata.is_file() {
            return self.file(number, root.path.clone(), &root.metadata, visit);
        }
        let mut levels = Vec::new();
        levels.extend(self.enter(root.path.clone()));
        while let Some(level) = levels.last_mut() {
            if self.walk.scan.should_stop() {
                return ControlFlow::Break(());
            }
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let path = level.path.join(name);
            if self.walk.excludes.matches(path.as_os_str().as_bytes()) {
                continue;
            }
            let metadata = match std::fs::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) => {
                    self.problem(&path, "cannot look at it", &error);
                    continue;
                }
            };
            let is_wanted = metadata.is_file() || metadata.is_dir();
            if !is_wanted || (self.walk.roots.len() > 1 && self.named.contains(&identity(&metadata))) {
                continue;
            }
            if metadata.is_file() {
                self.file(number, path, &metadata, visit)?;
            } else if !self.walk.one_file_system || metadata.dev() == root.metadata.dev() {
                levels.extend(self.enter(path));
            }
        }
        ControlFlow::Continue(())
    }

    fn file(&mut self, number: u32, path: PathBuf, metadata: &Metadata, visit: &mut Visit<'_>) -> ControlFlow<()> {
        if metadata.nlink() > 1 && !self.linked.insert(identity(metadata)) {
            self.counts.hard_links += 1;
            return ControlFlow::Continue(());
        }
        self.counts.files += 1;
        visit(number, path, metadata)
    }

    /// Lists a directory; `None` if that cannot be done, which has been reported.
    fn enter(&mut self, path: PathBuf) -> Option<Level> {
        let names: io::Result<Vec<OsString>> =
            std::fs::read_dir(&path).and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect());
        match names {
            Ok(mut names) => {
                self.counts.directories += 1;
                // The same order, and with it the same figures, in every run.
                names.sort_unstable_by(|a, b| b.cmp(a));
                Some(Level { path, names })
            }
            Err(error) => {
                self.problem(&path, "cannot list it", &error);
                None
            }
        }
    }

    fn problem(&self, path: &Path, what: &str, error: &io::Error) {
        if self.is_rehearsal {
            return;
        }
        match error.kind() {
            ErrorKind::NotFound => self.walk.scan.warn(path, "vanished before it was read"),
            _ => self.walk.scan.error(path, format_args!("{what}: {error}")),
        }
    }
}

/// Returns whether none of the paths exists.
pub fn all_missing(paths: &[PathBuf]) -> bool {
    paths.iter().all(|path| std::fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound))
}
