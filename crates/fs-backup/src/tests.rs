//! Backups of filesystems against what reading the filesystem says, through changes, crashes and removal.

mod history;

use crate::{FsBackupError, Monitor, Options, Outcome, backup, is_of_filesystem, tidy};
use onefold_blocks::testing::{TestStore, bytes};
use onefold_blocks::{Owner, Spaces, SpacesOptions};
use onefold_catalog::{Attributes, Backup, Catalog, Content, FileReader, TreeWalk};
use onefold_engine::{Engine, LostChunk, Piece};
use onefold_fs::{Changed, Create, Filesystem, Filesystems, FsOptions, Inode, Kind, OpenFilesystem, ROOT};
use onefold_fs::{backup_of_snapshot, snapshot_of_backup};
use onefold_ground::CrashPolicy;
use onefold_upkeep::{CheckOptions, NoMonitor, PruneOptions, check, prune};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const NEW: Create = Create { mode: 0o644, umask: 0, uid: 1, gid: 2 };

#[derive(Default)]
struct Quiet {
    visited: Cell<u64>,
    most: Option<u64>,
    problems: RefCell<Vec<String>>,
}

impl Monitor for Quiet {
    fn problem(&self, path: &[u8], reason: &str) {
        self.problems.borrow_mut().push(format!("{}: {reason}", String::from_utf8_lossy(path)));
    }

    fn visited(&self) {
        self.visited.set(self.visited.get() + 1);
    }

    fn is_cancelled(&self) -> bool {
        self.most.is_some_and(|most| self.visited.get() >= most)
    }
}

/// What a path is: attributes, kind with target or device, content. The first name of a file may be any.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    attributes: Attributes,
    what: String,
    content: Vec<u8>,
}

type Tree = BTreeMap<Vec<u8>, Seen>;

struct Store {
    test: TestStore,
    open: Option<(Arc<Filesystems>, OpenFilesystem)>,
}

impl Store {
    fn new() -> Store {
        let mut store = Store { test: TestStore::new(), open: None };
        let spaces = Arc::new(store.test.spaces(SpacesOptions::default()));
        Filesystems::of(spaces, options()).create("home", None, (1, 2)).unwrap();
        store.open();
        store
    }

    fn open(&mut self) {
        let spaces = Arc::new(self.test.spaces(SpacesOptions::default()));
        let filesystems = Filesystems::of(spaces, options());
        let filesystem = filesystems.open("home").unwrap();
        self.open = Some((filesystems, filesystem));
    }

    fn close(&mut self) {
        self.open = None;
    }

    fn crash(&mut self, policy: CrashPolicy) {
        self.close();
        self.test.crash(policy);
        self.open();
    }

    fn fs(&self) -> &Arc<Filesystem> {
        &self.open.as_ref().unwrap().1
    }

    fn spaces(&self) -> &Arc<Spaces> {
        self.open.as_ref().unwrap().0.spaces()
    }

    fn engine(&self) -> &Arc<Engine> {
        self.spaces().engine()
    }

    fn backup_as(&self, name: &str) -> Result<Outcome, FsBackupError> {
        let options = Options { name: name.to_owned(), host: "here".to_owned(), ..Options::default() };
        backup(self.spaces(), self.fs(), &options, &Quiet::default())
    }

    fn backup(&self) -> Outcome {
        let made = self.backup_as("home").unwrap();
        assert!(!made.backup.is_partial());
        made
    }

    fn file(&self, directory: u64, name: &str, seed: u64, length: usize) -> u64 {
        let (number, _) = self.fs().create(directory, name.as_bytes(), Kind::File, NEW).unwrap();
        self.fs().write(number, 0, &bytes(seed, length), false).unwrap();
        number
    }

    fn prune(&self) {
        tidy(self.spaces()).unwrap();
        assert!(self.spaces().resume_deletions(&|| true).unwrap());
        prune(self.engine(), PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
    }

    fn check(&self) {
        self.engine().flush().unwrap();
        let report = check(self.engine(), CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }

    fn snapshots(&self) -> Vec<String> {
        let names = self.spaces().list().into_iter().map(|info| info.record.name);
        names.filter(|name| backup_of_snapshot(name).is_some()).collect()
    }
}

fn options() -> FsOptions {
    FsOptions { commit_interval: Duration::from_secs(3600), ..FsOptions::default() }
}

/// Chunks that are stored, needed or not.
fn chunks(engine: &Arc<Engine>) -> u64 {
    let mut chunks = 0;
    for partition in 0..engine.descriptor().index_partitions {
        let mut count = |_: &_, _| {
            chunks += 1;
            Ok(())
        };
        engine.index().unwrap().for_each(partition, &mut count).unwrap();
    }
    chunks
}

fn what(kind: &Kind) -> String {
    match kind {
        Kind::File => "file".to_owned(),
        Kind::Directory { .. } => "directory".to_owned(),
        Kind::Symlink { target } => format!("link to {}", String::from_utf8_lossy(target)),
        Kind::CharacterDevice { device } => format!("c {device}"),
        Kind::BlockDevice { device } => format!("b {device}"),
        Kind::Fifo => "fifo".to_owned(),
        Kind::Socket => "socket".to_owned(),
    }
}

/// Everything of a filesystem, read.
fn seen(fs: &Filesystem) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![(b"home".to_vec(), ROOT)];
    while let Some((path, number)) = left.pop() {
        let inode = fs.inode(number).unwrap();
        let Inode { mode, uid, gid, mtime_ns, ctime_ns, links, .. } = inode;
        let (inode_number, xattrs) = (number, inode.xattrs.clone());
        let attributes =
            Attributes { mode, uid, gid, mtime_ns, ctime_ns, inode: inode_number, links: links.into(), xattrs, ..Attributes::default() };
        let content = if inode.kind == Kind::File { fs.read(number, 0, inode.size as usize).unwrap() } else { Vec::new() };
        if inode.is_directory() {
            let mut from = Some(0);
            while let Some(hash) = from {
                let (names, next) = fs.names(number, hash).unwrap();
                left.extend(names.into_iter().map(|name| ([&path[..], b"/", &name.name].concat(), name.number)));
                from = next;
            }
        }
        tree.insert(path, Seen { attributes, what: what(&inode.kind), content });
    }
    tree
}

/// Everything of a backup, read.
fn restored(engine: &Arc<Engine>, backup: &Backup) -> Tree {
    let mut tree = Tree::new();
    for item in TreeWalk::new(engine, b"", &backup.root) {
        let entry = item.entry.unwrap();
        let mut content = Vec::new();
        let what = match entry.content {
            Content::File { size_bytes, recipe } => {
                assert_eq!(recipe.length, size_bytes);
                content = vec![0; size_bytes as usize];
                FileReader::new(engine, &recipe).read(0, &mut content).unwrap();
                "file".to_owned()
            }
            Content::Directory { .. } => "directory".to_owned(),
            Content::Symlink { target } => format!("link to {}", String::from_utf8_lossy(&target)),
            Content::CharacterDevice { major, minor } => format!("c {}", (minor & 0xff) | major << 8 | (minor & !0xff) << 12),
            Content::BlockDevice { major, minor } => format!("b {}", (minor & 0xff) | major << 8 | (minor & !0xff) << 12),
            Content::Fifo => "fifo".to_owned(),
            Content::Socket => "socket".to_owned(),
            // Names are sorted, so the first one comes first.
            Content::HardLink { path } => {
                let first: &Seen = &tree[&path];
                assert_eq!(first.attributes, entry.attributes);
                content.clone_from(&first.content);
                first.what.clone()
            }
        };
        tree.insert(item.path, Seen { attributes: entry.attributes, what, content });
    }
    tree
}

fn assert_same(one: &Tree, other: &Tree) {
    let names = |tree: &Tree| tree.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect::<Vec<_>>();
    assert_eq!(names(one), names(other));
    for (path, seen) in one {
        let other = &other[path];
        assert!(seen == other, "{}: {:?} {:?}", String::from_utf8_lossy(path), seen.attributes, other.attributes);
    }
}

/// A filesystem with so many files in directories of 50.
fn filled(files: u64) -> Store {
    let store = Store::new();
    let mut directory = ROOT;
    for number in 0..files {
        if number % 50 == 0 {
            let name = format!("directory {number}");
            directory = store.fs().create(ROOT, name.as_bytes(), Kind::Directory { parent: 0 }, NEW).unwrap().0;
        }
        store.file(directory, &format!("file {number}"), number, 3000);
    }
    store
}

#[test]
fn an_unchanged_backup_costs_the_same_whatever_the_size_and_reads_and_stores_no_data() {
    let cost = |files: u64| {
        let mut store = filled(files);
        let first = store.backup();
        assert_eq!((first.backup.statistics.new_files, first.backup.statistics.read_bytes), (files, 0));
        store.close();
        store.test.reopen();
        store.open();
        let ground = store.test.ground.clone();
        let (operations, reads) = (ground.operations(), ground.reads());
        let watch = Quiet::default();
        let options = Options { name: "home".to_owned(), ..Options::default() };
        let second = backup(store.spaces(), store.fs(), &options, &watch).unwrap();
        let statistics = second.backup.statistics;
        assert_eq!((second.backup.root, second.parent), (first.backup.root, Some(first.backup.id)));
        assert_eq!((statistics.files, statistics.unmodified_files, statistics.added_bytes), (files, files, 0));
        assert_eq!(watch.visited.get(), 0, "no file is looked at");
        assert_eq!(store.snapshots(), [snapshot_of_backup(second.backup.id.as_bytes())]);
        (ground.operations() - operations, ground.reads() - reads)
    };
    let (small, large) = (cost(10), cost(1500));
    assert!(large.0 <= small.0 + 2 && large.1 <= small.1 + 4, "operations and reads: {small:?}, {large:?}");
}

#[test]
fn a_backup_of_new_data_adds_no_data_to_the_store() {
    let store = Store::new();
    let data = bytes(1, 3 << 20);
    let number = store.file(ROOT, "large", 1, data.len());
    store.fs().truncate(number, 2_000_001).unwrap();
    store.fs().sync().unwrap();
    // The block of the new end, as the first one cut it.
    store.fs().sync().unwrap();
    let before = store.engine().statistics().unwrap().unique_bytes;
    let made = store.backup();
    store.engine().flush().unwrap();
    let metadata = made.backup.statistics.added_bytes;
    assert!(metadata < 40_000, "{metadata}");
    assert_eq!(store.engine().statistics().unwrap().unique_bytes - before, metadata, "only recipes and directories");
    let tree = restored(store.engine(), &made.backup);
    assert!(tree[&b"home/large"[..]].content == data[..2_000_001]);
}

#[test]
fn a_change_costs_its_directory_and_not_the_others() {
    let store = filled(1000);
    let first = store.backup();
    let directory = store.fs().lookup(ROOT, b"directory 500").unwrap().0;
    let file = store.fs().lookup(directory, b"file 517").unwrap().0;
    store.fs().write(file, 0, b"new", false).unwrap();
    let second = store.backup();
    let statistics = second.backup.statistics;
    assert_eq!((statistics.changed_files, statistics.unmodified_files, statistics.new_files), (1, 999, 0));
    assert!(statistics.added_bytes * 10 < first.backup.statistics.added_bytes, "{} bytes", statistics.added_bytes);
    assert_same(&seen(store.fs()), &restored(store.engine(), &second.backup));
    // An access changes nothing, and the next backup need not look at it again.
    for _ in 0..2 {
        let ctime_ns = Some(store.fs().inode(file).unwrap().ctime_ns);
        store.fs().set(file, Changed { atime_ns: Some(1), ctime_ns, ..Changed::default() }).unwrap();
        assert_eq!(store.backup().backup.root, second.backup.root);
        assert_eq!(store.snapshots().len(), 1);
    }
}

#[test]
fn times_that_a_program_sets_back_hide_no_change() {
    let store = filled(3);
    store.backup();
    let file = store.fs().lookup(store.fs().lookup(ROOT, b"directory 0").unwrap().0, b"file 1").unwrap();
    store.fs().write(file.0, 100, b"hidden", false).unwrap();
    let Inode { mtime_ns, ctime_ns, .. } = file.1;
    store.fs().set(file.0, Changed { mtime_ns: Some(mtime_ns), ctime_ns: Some(ctime_ns), ..Changed::default() }).unwrap();
    let made = store.backup();
    assert_same(&seen(store.fs()), &restored(store.engine(), &made.backup));
}

#[test]
fn a_backup_that_is_stopped_leaves_nothing() {
    let store = filled(100);
    let options = Options { name: "home".to_owned(), ..Options::default() };
    let stopped = backup(store.spaces(), store.fs(), &options, &Quiet { most: Some(20), ..Quiet::default() });
    assert!(matches!(stopped, Err(FsBackupError::Cancelled)));
    assert!(Catalog::new(store.engine().clone()).list().unwrap().is_empty());
    assert!(store.snapshots().is_empty());
    store.prune();
    store.check();
    assert_same(&seen(store.fs()), &restored(store.engine(), &store.backup().backup));
}

/// Deletes everything that the backup needs, as soon as it has begun to look at files.
struct Hostile<'a> {
    store: &'a Store,
    older: &'a str,
    is_done: Cell<bool>,
}

impl Monitor for Hostile<'_> {
    fn problem(&self, path: &[u8], reason: &str) {
        panic!("{}: {reason}", String::from_utf8_lossy(path));
    }

    fn visited(&self) {
        if self.is_done.replace(true) {
            return;
        }
        let Store { open: Some((_, fs)), .. } = self.store else { unreachable!() };
        for directory in fs.names(ROOT, 0).unwrap().0.into_iter().filter(|name| name.kind == 1) {
            for name in fs.names(directory.number, 0).unwrap().0 {
                fs.unlink(directory.number, &name.name).unwrap();
            }
        }
        fs.sync().unwrap();
        fs.sync().unwrap();
        let permit = self.store.engine().permit_deletion("delete").unwrap();
        self.store.spaces().delete(Owner::Filesystems, self.older, permit).unwrap();
        self.store.prune();
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

#[test]
fn what_is_deleted_and_reclaimed_while_a_backup_looks_at_it_is_in_the_backup() {
    let store = filled(120);
    let first = store.backup();
    store.file(ROOT, "new", 77, 400_000);
    let directory = store.fs().lookup(ROOT, b"directory 50").unwrap().0;
    store.file(directory, "newer", 78, 400_000);
    let then = seen(store.fs());
    let older = snapshot_of_backup(first.backup.id.as_bytes());
    let hostile = Hostile { store: &store, older: &older, is_done: Cell::new(false) };
    let options = Options { name: "home".to_owned(), ..Options::default() };
    let made = backup(store.spaces(), store.fs(), &options, &hostile).unwrap();
    assert!(hostile.is_done.get() && made.parent == Some(first.backup.id));
    assert_same(&then, &restored(store.engine(), &made.backup));
    store.prune();
    assert_same(&then, &restored(store.engine(), &made.backup));
    store.check();
    assert_eq!(store.backup().backup.statistics.files, 1);
}

#[test]
fn what_a_backup_needs_stays_when_the_files_go_and_is_freed_when_it_is_forgotten() {
    let store = filled(60);
    let first = store.backup();
    assert!(is_of_filesystem(&first.backup) && !is_of_filesystem(&Backup { options: "{}".to_owned(), ..first.backup.clone() }));
    let then = seen(store.fs());
    for number in 0..2 {
        let name = format!("directory {}", 50 * number);
        let directory = store.fs().lookup(ROOT, name.as_bytes()).unwrap().0;
        for name in store.fs().names(directory, 0).unwrap().0 {
            store.fs().unlink(directory, &name.name).unwrap();
        }
    }
    store.fs().sync().unwrap();
    store.fs().sync().unwrap();
    let second = store.backup();
    store.prune();
    assert_same(&then, &restored(store.engine(), &first.backup));
    assert_eq!(store.snapshots().len(), 1);
    Catalog::new(store.engine().clone()).remove_backups(&[first.backup, second.backup]).unwrap();
    store.prune();
    assert!(store.snapshots().is_empty());
    store.fs().sync().unwrap();
    store.engine().flush().unwrap();
    assert_eq!(chunks(store.engine()), 0, "nothing is left of what nobody has");
    store.check();
}

#[test]
fn each_name_has_one_snapshot_and_a_clone_and_another_filesystem_have_their_own() {
    let store = filled(5);
    let (filesystems, _) = store.open.as_ref().unwrap();
    for _ in 0..3 {
        store.backup();
        store.backup_as("other").unwrap();
        store.fs().set(ROOT, Changed::default()).unwrap();
    }
    assert_eq!(store.snapshots().len(), 2);
    assert_eq!(filesystems.list().len(), 1, "users see none of them");
    filesystems.make_clone("home", "clone", false).unwrap();
    let clone = filesystems.open("clone").unwrap();
    let options = Options { name: "home".to_owned(), ..Options::default() };
    let made = backup(store.spaces(), &clone, &options, &Quiet::default()).unwrap();
    assert_eq!((made.parent, store.snapshots().len()), (None, 3));
    // Of a filesystem with another name, everything is looked at once.
    filesystems.rename("home", "house").unwrap();
    let renamed = backup(store.spaces(), store.fs(), &options, &Quiet::default()).unwrap();
    assert_eq!(renamed.backup.statistics.new_files, 5);
    assert_eq!(backup(store.spaces(), store.fs(), &options, &Quiet::default()).unwrap().backup.statistics.new_files, 0);
    let internal = store.snapshots().remove(0);
    assert!(filesystems.open(&internal).is_err() && filesystems.delete(&internal).is_err());
    assert!(filesystems.snapshot("house", &snapshot_of_backup(&[7; 16])).is_err());
}

#[test]
fn in_append_only_mode_the_snapshots_do_not_become_more() {
    let store = filled(5);
    store.engine().switch_append_only_on(b"a long secret").unwrap();
    let first = store.backup();
    for round in 0..3 {
        store.file(ROOT, &format!("new {round}"), round, 100);
        let made = store.backup();
        assert_eq!((made.parent, made.backup.statistics.unmodified_files), (Some(first.backup.id), 5));
        assert_same(&seen(store.fs()), &restored(store.engine(), &made.backup));
        assert_eq!(store.snapshots().len(), 1);
    }
    store.engine().switch_append_only_off(b"a long secret").unwrap();
    let last = store.backup();
    assert_eq!(store.snapshots(), [snapshot_of_backup(last.backup.id.as_bytes())]);
}

#[test]
fn a_crash_during_a_backup_leaves_all_of_it_or_nothing_and_nothing_leaks() {
    let mut trials = 0;
    for seed in 0..4 {
        let policy = match seed {
            0 => CrashPolicy::DropAll,
            1 => CrashPolicy::KeepAll,
            seed => CrashPolicy::Random { seed },
        };
        for crash_at in 1.. {
            if !crash_in_a_backup(crash_at, policy) {
                break;
            }
            trials += 1;
        }
    }
    assert!(trials >= 24, "{trials}");
}

/// Returns whether the crash came before the end.
fn crash_in_a_backup(crash_at: u64, policy: CrashPolicy) -> bool {
    let mut store = filled(20);
    store.backup();
    store.file(ROOT, "new", 99, 300_000);
    store.fs().sync().unwrap();
    let then = seen(store.fs());
    store.test.ground.crash_after_operations(crash_at);
    let made = store.backup_as("home");
    if !store.test.ground.is_crashed() {
        made.unwrap();
        return false;
    }
    store.crash(policy);
    let backups = Catalog::new(store.engine().clone()).list().unwrap();
    assert!((1..=2).contains(&backups.len()));
    assert!(made.is_err() || backups.len() == 2, "what was reported is there");
    if let Some(second) = backups.get(1) {
        assert_same(&then, &restored(store.engine(), second));
    }
    store.check();
    let next = store.backup();
    assert_same(&then, &restored(store.engine(), &next.backup));
    assert_eq!(store.snapshots(), [snapshot_of_backup(next.backup.id.as_bytes())]);
    let mut all = backups;
    all.push(next.backup);
    Catalog::new(store.engine().clone()).remove_backups(&all).unwrap();
    let filesystems = store.open.take().unwrap().0;
    filesystems.delete("home").unwrap();
    assert!(filesystems.spaces().resume_deletions(&|| true).unwrap());
    let engine = filesystems.spaces().engine().clone();
    prune(&engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
    engine.flush().unwrap();
    assert_eq!(chunks(&engine), 0, "crash {crash_at}");
    true
}

/// Puts a chunk of a backed-up file in quarantine.
fn lose(engine: &Arc<Engine>, backup: &Backup, path: &[u8]) {
    let entry = onefold_catalog::lookup(engine, &backup.root, path).unwrap().unwrap();
    let piece = entry.content.recipe().unwrap().pieces[0];
    let Piece::Chunk { fingerprint, address, .. } = piece else { panic!("{piece:?}") };
    engine.flush().unwrap();
    assert_eq!(engine.quarantine(&[LostChunk { fingerprint, address, slot: None, is_needed: true }]).unwrap().len(), 1);
}

#[test]
fn a_file_that_lost_data_is_reported_and_backed_up_when_the_same_was_written_again() {
    let store = Store::new();
    store.file(ROOT, "lost", 1, 3000);
    store.file(ROOT, "sound", 2, 3000);
    let first = store.backup();
    lose(store.engine(), &first.backup, b"home/lost");
    let watch = Quiet::default();
    let options = Options { name: "home".to_owned(), ..Options::default() };
    let second = backup(store.spaces(), store.fs(), &options, &watch).unwrap();
    let problems = watch.problems.take();
    assert!(problems.len() == 1 && problems[0].starts_with("home/lost: a part of its data is lost"), "{problems:?}");
    assert_eq!((second.backup.statistics.files, second.backup.statistics.errors), (1, 1));
    let names: Vec<_> = restored(store.engine(), &second.backup).into_keys().collect();
    assert_eq!(names, [&b"home"[..], b"home/sound"]);
    store.file(ROOT, "again", 1, 3000);
    store.fs().sync().unwrap();
    let third = store.backup();
    assert_same(&restored(store.engine(), &third.backup), &seen(store.fs()));
}
