//! Random histories of a filesystem with its backups, snapshots and crashes.

use super::*;
use onefold_fs::{Allocate, Changed, Rename, SetXattr};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Create(u8, u8, u8),
    Link(u8, u8, u8),
    Remove(u8),
    Rename(u8, u8, u8, bool),
    Write(u8, u32, u32, u8),
    Truncate(u8, u32),
    Punch(u8, u32, u32),
    Copy(u8, u32, u8, u32, u32),
    Attributes(u8, u16),
    Access(u8),
    Xattr(u8, u8),
    Snapshot,
    RollBack,
    Sync,
    Backup(bool),
    Forget(u8),
    Prune,
    Crash,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || prop_oneof![0u32..200, 262_000u32..262_300, 0u32..600_000];
    prop_oneof![
        6 => (any::<u8>(), 0u8..8, 0u8..9).prop_map(|(a, b, c)| Step::Create(a, b, c)),
        2 => (any::<u8>(), any::<u8>(), 0u8..8).prop_map(|(a, b, c)| Step::Link(a, b, c)),
        2 => any::<u8>().prop_map(Step::Remove),
        3 => (any::<u8>(), any::<u8>(), 0u8..8, any::<bool>()).prop_map(|(a, b, c, d)| Step::Rename(a, b, c, d)),
        6 => (any::<u8>(), place(), 1u32..90_000, any::<u8>()).prop_map(|(a, b, c, d)| Step::Write(a, b, c, d)),
        2 => (any::<u8>(), place()).prop_map(|(a, b)| Step::Truncate(a, b)),
        2 => (any::<u8>(), place(), 1u32..300_000).prop_map(|(a, b, c)| Step::Punch(a, b, c)),
        2 => (any::<u8>(), place(), any::<u8>(), place(), 0u32..300_000).prop_map(|(a, b, c, d, e)| Step::Copy(a, b, c, d, e)),
        1 => (any::<u8>(), 0u16..0o7777).prop_map(|(a, b)| Step::Attributes(a, b)),
        1 => any::<u8>().prop_map(Step::Access),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Step::Xattr(a, b)),
        1 => Just(Step::Snapshot),
        1 => Just(Step::RollBack),
        1 => Just(Step::Sync),
        5 => any::<bool>().prop_map(Step::Backup),
        1 => any::<u8>().prop_map(Step::Forget),
        1 => Just(Step::Prune),
        1 => Just(Step::Crash),
        1 => Just(Step::Reopen),
    ]
}

/// A store with the backups that were made, and what the filesystem was then.
struct History {
    store: Store,
    made: Vec<(Backup, Tree)>,
    snapshots: u32,
}

impl History {
    /// All paths with their directory, name and number.
    fn names(&self) -> Vec<(u64, Vec<u8>, u64, u8)> {
        let (mut found, mut left) = (Vec::new(), vec![ROOT]);
        while let Some(directory) = left.pop() {
            let mut from = Some(0);
            while let Some(hash) = from {
                let (names, next) = self.store.fs().names(directory, hash).unwrap();
                for name in names {
                    left.extend((name.kind == 1).then_some(name.number));
                    found.push((directory, name.name, name.number, name.kind));
                }
                from = next;
            }
        }
        found
    }

    fn any(&self, which: u8, wanted: impl Fn(u8) -> bool) -> Option<(u64, Vec<u8>, u64, u8)> {
        let names: Vec<_> = self.names().into_iter().filter(|name| wanted(name.3)).collect();
        (!names.is_empty()).then(|| names[usize::from(which) % names.len()].clone())
    }

    fn directory(&self, which: u8) -> u64 {
        if which.is_multiple_of(3) { ROOT } else { self.any(which, |kind| kind == 1).map_or(ROOT, |name| name.2) }
    }

    fn file(&self, which: u8) -> Option<u64> {
        self.any(which, |kind| kind == 0).map(|name| name.2)
    }

    fn step(&mut self, step: Step) {
        let fs = self.store.fs().clone();
        let name = |number: u8| vec![b'a' + number];
        match step {
            Step::Create(directory, new, kind) => {
                let kind = match kind {
                    0 | 1 => Kind::Directory { parent: 0 },
                    2 => Kind::Symlink { target: b"some/where".to_vec() },
                    3 => Kind::CharacterDevice { device: 0x1234_5678 },
                    4 => Kind::Fifo,
                    _ => Kind::File,
                };
                let _ = fs.create(self.directory(directory), &name(new), kind, NEW);
            }
            Step::Link(which, directory, new) => {
                if let Some((.., number, _)) = self.any(which, |kind| kind != 1) {
                    let _ = fs.link(number, self.directory(directory), &name(new));
                }
            }
            Step::Remove(which) => {
                if let Some((directory, name, _, kind)) = self.any(which, |_| true) {
                    let _ = if kind == 1 { fs.remove_directory(directory, &name) } else { fs.unlink(directory, &name) };
                }
            }
            Step::Rename(which, to, new, swaps) => {
                if let Some((directory, old, ..)) = self.any(which, |_| true) {
                    let how = if swaps { Rename::Exchange } else { Rename::Replace };
                    let _ = fs.rename((directory, &old), (self.directory(to), &name(new)), how);
                }
            }
            Step::Write(which, offset, length, seed) => {
                if let Some(number) = self.file(which) {
                    fs.write(number, offset.into(), &bytes(seed.into(), length as usize), false).unwrap();
                }
            }
            Step::Truncate(which, size) => {
                if let Some(number) = self.file(which) {
                    fs.truncate(number, size.into()).unwrap();
                }
            }
            Step::Punch(which, offset, length) => {
                if let Some(number) = self.file(which) {
                    fs.allocate(number, offset.into(), length.into(), Allocate::Punch).unwrap();
                }
            }
            Step::Copy(one, from, other, to, length) => {
                if let (Some(one), Some(other)) = (self.file(one), self.file(other)) {
                    let _ = fs.copy((one, from.into()), (other, to.into()), length.into());
                }
            }
            Step::Attributes(which, mode) => {
                let number = self.any(which, |_| true).map_or(ROOT, |name| name.2);
                let changed = Changed { mode: Some(mode), uid: Some(mode.into()), mtime_ns: Some(-5), ..Changed::default() };
                fs.set(number, changed).unwrap();
            }
            Step::Access(which) => {
                let number = self.any(which, |_| true).map_or(ROOT, |name| name.2);
                let ctime_ns = Some(fs.inode(number).unwrap().ctime_ns);
                fs.set(number, Changed { atime_ns: Some(which.into()), ctime_ns, ..Changed::default() }).unwrap();
            }
            Step::Xattr(which, value) => {
                let number = self.any(which, |_| true).map_or(ROOT, |name| name.2);
                fs.set_xattr(number, b"user.x", Some(&[value; 40]), SetXattr::Any).unwrap();
            }
            Step::Snapshot => {
                self.snapshots += 1;
                let name = format!("s{}", self.snapshots);
                self.store.open.as_ref().unwrap().0.snapshot("home", &name).unwrap();
            }
            Step::RollBack => {
                if self.snapshots > 0 {
                    drop(fs);
                    let spaces = self.store.spaces().clone();
                    self.store.close();
                    let permit = spaces.engine().permit_deletion("roll back").unwrap();
                    spaces.rollback(Owner::Filesystems, "home", &format!("s{}", self.snapshots), permit).unwrap();
                    drop(spaces);
                    self.store.open();
                }
            }
            Step::Sync => fs.sync().unwrap(),
            Step::Backup(other) => {
                let made = self.store.backup_as(if other { "other" } else { "home" }).unwrap();
                assert!(!made.backup.is_partial());
                let now = seen(&fs);
                assert_same(&now, &restored(self.store.engine(), &made.backup));
                let statistics = made.backup.statistics;
                let count = |what: &str| now.values().filter(|seen| seen.what == what).count() as u64;
                let files = now.values().filter(|seen| seen.what == "file" && seen.attributes.links == 1).count() as u64;
                assert_eq!(statistics.directories, count("directory"));
                assert!(statistics.files >= files);
                assert_eq!(statistics.files, statistics.new_files + statistics.changed_files + statistics.unmodified_files);
                assert_eq!((statistics.read_bytes, statistics.errors), (0, 0));
                assert!(self.store.snapshots().contains(&snapshot_of_backup(made.backup.id.as_bytes())));
                self.made.push((made.backup, now));
            }
            Step::Forget(which) => {
                if !self.made.is_empty() {
                    let (backup, _) = self.made.remove(usize::from(which) % self.made.len());
                    Catalog::new(self.store.engine().clone()).remove_backups(&[backup]).unwrap();
                }
            }
            Step::Prune => {
                self.store.prune();
                self.compare();
            }
            Step::Crash => {
                drop(fs);
                self.store.crash(CrashPolicy::DropAll);
            }
            Step::Reopen => {
                drop(fs);
                self.store.close();
                self.store.open();
            }
        }
    }

    fn compare(&self) {
        for (backup, tree) in &self.made {
            assert_same(tree, &restored(self.store.engine(), backup));
        }
        assert!(self.store.snapshots().len() <= 3, "{:?}", self.store.snapshots());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_backup_is_what_the_filesystem_was_whatever_happens_before_and_after(
        steps in proptest::collection::vec(step(), 1..90),
    ) {
        let mut history = History { store: Store::new(), made: Vec::new(), snapshots: 0 };
        for step in steps {
            history.step(step);
        }
        history.compare();
        history.store.check();
        // Without the filesystem and its snapshots, the backups are the same.
        let filesystems = history.store.open.take().map(|(filesystems, _)| filesystems).unwrap();
        filesystems.delete("home").unwrap();
        for snapshot in filesystems.list() {
            filesystems.delete(&snapshot.name).unwrap();
        }
        prop_assert!(filesystems.spaces().list().is_empty());
        let engine = filesystems.spaces().engine().clone();
        prop_assert!(filesystems.spaces().resume_deletions(&|| true).unwrap());
        prune(&engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
        for (backup, tree) in &history.made {
            assert_same(tree, &restored(&engine, backup));
        }
    }
}
