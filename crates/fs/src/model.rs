//! Random operations on a filesystem and on a model in memory, with crashes: they agree on every name, attribute and
//! byte.

use crate::{Allocate, Changed, Create, Filesystem, FsError, FsOptions, Kind, ROOT, Rename, SetXattr};
use onefold_blocks::testing::TestStore;
use onefold_blocks::{MIN_BLOCK_BYTES, NewSpace, Owner, SpaceKind, Spaces, SpacesOptions};
use onefold_ground::CrashPolicy;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A file of the model, by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    kind: u8,
    names: u32,
    mode: u16,
    content: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

/// Names by directory, and files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    names: BTreeMap<(u64, Vec<u8>), u64>,
    files: BTreeMap<u64, File>,
    open: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8, u8, u8),
    Link(u8, u8, u8),
    Remove(u8),
    Rename(u8, u8, u8, u8),
    Write(u8, u32, u16, u8),
    Truncate(u8, u32),
    Allocate(u8, u32, u32, u8),
    Copy(u8, u32, u8, u32, u32),
    Mode(u8, u16),
    Xattr(u8, Option<u8>),
    Open(u8),
    Close(u8),
    Sync,
    SyncFile(u8),
    Crash(bool),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    // Around the edges of blocks, which have 64 KiB here.
    let place = || prop_oneof![0u32..200, 65_400u32..65_700, 131_000u32..131_200, 0u32..200_000];
    prop_oneof![
        5 => (any::<u8>(), 0u8..6, 0u8..4).prop_map(|(a, b, c)| Step::Create(a, b, c)),
        2 => (any::<u8>(), any::<u8>(), 0u8..6).prop_map(|(a, b, c)| Step::Link(a, b, c)),
        2 => any::<u8>().prop_map(Step::Remove),
        3 => (any::<u8>(), any::<u8>(), 0u8..6, 0u8..3).prop_map(|(a, b, c, d)| Step::Rename(a, b, c, d)),
        6 => (any::<u8>(), place(), 0u16..9000, any::<u8>()).prop_map(|(a, b, c, d)| Step::Write(a, b, c, d)),
        3 => (any::<u8>(), place()).prop_map(|(a, b)| Step::Truncate(a, b)),
        2 => (any::<u8>(), place(), 1u32..140_000, 0u8..5).prop_map(|(a, b, c, d)| Step::Allocate(a, b, c, d)),
        2 => (any::<u8>(), place(), any::<u8>(), place(), 0u32..140_000).prop_map(|(a, b, c, d, e)| Step::Copy(a, b, c, d, e)),
        1 => (any::<u8>(), 0u16..0o7777).prop_map(|(a, b)| Step::Mode(a, b)),
        1 => (any::<u8>(), proptest::option::of(any::<u8>())).prop_map(|(a, b)| Step::Xattr(a, b)),
        1 => any::<u8>().prop_map(Step::Open),
        1 => any::<u8>().prop_map(Step::Close),
        2 => Just(Step::Sync),
        2 => any::<u8>().prop_map(Step::SyncFile),
        1 => any::<bool>().prop_map(Step::Crash),
        1 => Just(Step::Reopen),
    ]
}

fn options() -> FsOptions {
    FsOptions { commit_interval: Duration::from_secs(3600), ..FsOptions::default() }
}

/// A filesystem with its store.
struct Real {
    store: TestStore,
    spaces: Option<Arc<Spaces>>,
    filesystem: Option<Arc<Filesystem>>,
}

impl Real {
    fn new() -> Real {
        let mut real = Real { store: TestStore::new(), spaces: None, filesystem: None };
        let spaces = real.store.spaces(SpacesOptions::default());
        let space = spaces
            .create(NewSpace { name: "home", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: MIN_BLOCK_BYTES, chain: None })
            .unwrap();
        Filesystem::format(&space, None, (0, 0)).unwrap();
        space.flush().unwrap();
        drop((space, spaces));
        real.open();
        real
    }

    fn open(&mut self) {
        let spaces = Arc::new(self.store.spaces(SpacesOptions::default()));
        let space = spaces.get(Owner::Filesystems, "home").unwrap();
        self.filesystem = Some(Filesystem::open(space, options()).unwrap());
        self.spaces = Some(spaces);
    }

    fn fs(&self) -> &Arc<Filesystem> {
        self.filesystem.as_ref().unwrap()
    }

    fn crash(&mut self, policy: CrashPolicy) {
        (self.filesystem, self.spaces) = (None, None);
        self.store.crash(policy);
        self.open();
    }

    /// Everything that can be seen.
    fn seen(&self, open: &BTreeSet<u64>) -> Model {
        let mut model = Model { open: open.clone(), ..Model::default() };
        let mut left = vec![ROOT];
        model.files.insert(ROOT, self.file(ROOT));
        while let Some(directory) = left.pop() {
            let mut from = Some(0);
            while let Some(begin) = from {
                let (names, next) = self.fs().names(directory, begin).unwrap();
                for name in names {
                    let file = self.file(name.number);
                    assert_eq!((file.kind, self.fs().lookup(directory, &name.name).unwrap().0), (name.kind, name.number));
                    if file.kind == 1 {
                        left.push(name.number);
                    }
                    model.files.insert(name.number, file);
                    model.names.insert((directory, name.name), name.number);
                }
                from = next;
            }
        }
        for number in open {
            model.files.insert(*number, self.file(*number));
        }
        model
    }

    fn file(&self, number: u64) -> File {
        let inode = self.fs().inode(number).unwrap();
        let content = match &inode.kind {
            Kind::File => {
                let content = self.fs().read(number, 0, 1 << 20).unwrap();
                assert_eq!(content.len() as u64, inode.size);
                content
            }
            Kind::Symlink { target } => target.clone(),
            _ => Vec::new(),
        };
        let (kind, names) = (inode.kind.number(), if inode.is_directory() { inode.links - 2 } else { inode.links });
        File { kind, names, mode: inode.mode, content, xattr: inode.xattr(b"user.x").map(<[u8]>::to_vec) }
    }
}

impl Model {
    fn new() -> Model {
        let root = File { kind: 1, names: 0, mode: 0o755, content: Vec::new(), xattr: None };
        Model { files: BTreeMap::from([(ROOT, root)]), ..Model::default() }
    }

    fn directories(&self) -> Vec<u64> {
        self.files.iter().filter(|(number, file)| file.kind == 1 && self.has_name(**number)).map(|(number, _)| *number).collect()
    }

    fn has_name(&self, number: u64) -> bool {
        number == ROOT || self.names.values().any(|named| *named == number)
    }

    fn pick<T: Clone>(from: &[T], which: u8) -> Option<T> {
        (!from.is_empty()).then(|| from[usize::from(which) % from.len()].clone())
    }

    fn regular(&self, which: u8) -> Option<u64> {
        let files: Vec<u64> = self.files.iter().filter(|(_, file)| file.kind == 0).map(|(number, _)| *number).collect();
        Model::pick(&files, which)
    }

    fn name(&self, which: u8) -> Option<((u64, Vec<u8>), u64)> {
        let names: Vec<_> = self.names.iter().map(|(name, number)| (name.clone(), *number)).collect();
        Model::pick(&names, which)
    }

    fn is_empty(&self, directory: u64) -> bool {
        !self.names.keys().any(|(of, _)| *of == directory)
    }

    fn directory_of(&self, number: u64) -> Option<u64> {
        self.names.iter().find(|(_, named)| **named == number).map(|((directory, _), _)| *directory)
    }

    fn is_below(&self, number: u64, above: u64) -> bool {
        let mut at = Some(number);
        while let Some(number) = at {
            if number == above {
                return true;
            }
            at = if number == ROOT { None } else { self.directory_of(number) };
        }
        false
    }

    fn unlink(&mut self, name: &(u64, Vec<u8>)) {
        let Some(number) = self.names.remove(name) else { return };
        let file = self.files.get_mut(&number).unwrap();
        if file.kind == 1 {
            self.files.remove(&number);
            self.files.get_mut(&name.0).unwrap().names -= 1;
            return;
        }
        file.names -= 1;
        if file.names == 0 && !self.open.contains(&number) {
            self.files.remove(&number);
        }
    }

    /// Without files that nothing but an open handle had.
    fn closed(&self) -> Model {
        let mut model = self.clone();
        model.open.clear();
        model.files.retain(|number, file| *number == ROOT || file.kind == 1 || file.names > 0);
        model
    }
}

fn resize(content: &mut Vec<u8>, size: usize) {
    content.resize(size, 0);
}

fn new_file(kind: u8) -> Kind {
    match kind {
        0 => Kind::File,
        1 => Kind::Directory { parent: 0 },
        2 => Kind::Symlink { target: b"somewhere".to_vec() },
        _ => Kind::Fifo,
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut real = Real::new();
    let mut model = Model::new();
    // As of the last commit of everything; and the file that was synced since, if any.
    let (mut durable, mut is_partly) = (model.clone(), false);
    for step in steps {
        match step.clone() {
            Step::Create(which, name, kind) => {
                let Some(directory) = Model::pick(&model.directories(), which) else { continue };
                let name = vec![b'a' + name];
                let new = Create { mode: 0o640, umask: 0, uid: 1, gid: 2 };
                let made = real.fs().create(directory, &name, new_file(kind), new);
                if model.names.contains_key(&(directory, name.clone())) {
                    prop_assert!(matches!(made, Err(FsError::Exists)));
                    continue;
                }
                let (number, inode) = made.unwrap();
                let content = if kind == 2 { b"somewhere".to_vec() } else { Vec::new() };
                let inherited = if kind == 1 { model.files[&directory].mode & 0o2000 } else { 0 };
                let mode = 0o640 | inherited;
                let file = File { kind: inode.kind.number(), names: u32::from(kind != 1), mode, content, xattr: None };
                if kind == 1 {
                    model.files.get_mut(&directory).unwrap().names += 1;
                }
                model.files.insert(number, file);
                model.names.insert((directory, name), number);
            }
            Step::Link(which, to, name) => {
                let (Some((_, number)), Some(directory)) = (model.name(which), Model::pick(&model.directories(), to)) else { continue };
                let name = vec![b'a' + name];
                let linked = real.fs().link(number, directory, &name);
                if model.files[&number].kind == 1 {
                    prop_assert!(matches!(linked, Err(FsError::NotPermitted)));
                } else if model.names.contains_key(&(directory, name.clone())) {
                    prop_assert!(matches!(linked, Err(FsError::Exists)));
                } else {
                    linked.unwrap();
                    model.files.get_mut(&number).unwrap().names += 1;
                    model.names.insert((directory, name), number);
                }
            }
            Step::Remove(which) => {
                let Some((name, number)) = model.name(which) else { continue };
                if model.files[&number].kind != 1 {
                    prop_assert!(matches!(real.fs().remove_directory(name.0, &name.1), Err(FsError::NotADirectory)));
                    real.fs().unlink(name.0, &name.1).unwrap();
                    model.unlink(&name);
                } else if model.is_empty(number) {
                    prop_assert!(matches!(real.fs().unlink(name.0, &name.1), Err(FsError::IsADirectory)));
                    real.fs().remove_directory(name.0, &name.1).unwrap();
                    model.unlink(&name);
                } else {
                    prop_assert!(matches!(real.fs().remove_directory(name.0, &name.1), Err(FsError::NotEmpty)));
                }
            }
            Step::Rename(which, to, new, how) => {
                let (Some((name, number)), Some(directory)) = (model.name(which), Model::pick(&model.directories(), to)) else { continue };
                let target = (directory, vec![b'a' + new]);
                let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][usize::from(how)];
                let done = real.fs().rename((name.0, &name.1), (target.0, &target.1), how);
                let there = model.names.get(&target).copied();
                let kind = model.files[&number].kind;
                if kind == 1 && model.is_below(directory, number) {
                    prop_assert!(matches!(done, Err(FsError::Cycle)), "{done:?}");
                    continue;
                }
                match (how, there) {
                    (Rename::NoReplace, Some(_)) => prop_assert!(matches!(done, Err(FsError::Exists))),
                    (Rename::Exchange, None) => prop_assert!(matches!(done, Err(FsError::NotFound))),
                    (_, Some(other)) if other == number => done.unwrap(),
                    (Rename::Exchange, Some(other)) => {
                        if model.files[&other].kind == 1 && model.is_below(name.0, other) {
                            prop_assert!(matches!(done, Err(FsError::Cycle)));
                            continue;
                        }
                        done.unwrap();
                        for (moved, from, to) in [(number, name.0, target.0), (other, target.0, name.0)] {
                            if model.files[&moved].kind == 1 {
                                model.files.get_mut(&from).unwrap().names -= 1;
                                model.files.get_mut(&to).unwrap().names += 1;
                            }
                        }
                        model.names.insert(name, other);
                        model.names.insert(target, number);
                    }
                    (_, there) => {
                        let other = there.map(|other| (model.files[&other].kind, model.is_empty(other)));
                        match other {
                            Some((1, _)) if kind != 1 => prop_assert!(matches!(done, Err(FsError::IsADirectory))),
                            Some((other, _)) if other != 1 && kind == 1 => prop_assert!(matches!(done, Err(FsError::NotADirectory))),
                            Some((1, false)) => prop_assert!(matches!(done, Err(FsError::NotEmpty))),
                            _ => {
                                done.unwrap();
                                model.unlink(&target);
                                model.names.remove(&name);
                                model.names.insert(target.clone(), number);
                                if kind == 1 {
                                    model.files.get_mut(&name.0).unwrap().names -= 1;
                                    model.files.get_mut(&target.0).unwrap().names += 1;
                                }
                            }
                        }
                    }
                }
            }
            Step::Write(which, at, length, value) => {
                let Some(number) = model.regular(which) else { continue };
                let data: Vec<u8> = (0..length).map(|byte| value ^ (byte >> 3) as u8).collect();
                let appends = value % 5 == 0;
                let content = &mut model.files.get_mut(&number).unwrap().content;
                let at = if appends { content.len() } else { at as usize };
                if !data.is_empty() {
                    resize(content, content.len().max(at + data.len()));
                    content[at..at + data.len()].copy_from_slice(&data);
                }
                let end = real.fs().write(number, at as u64, &data, appends).unwrap();
                prop_assert_eq!(end, content.len() as u64);
            }
            Step::Truncate(which, size) => {
                let Some(number) = model.regular(which) else { continue };
                resize(&mut model.files.get_mut(&number).unwrap().content, size as usize);
                real.fs().truncate(number, u64::from(size)).unwrap();
            }
            Step::Allocate(which, at, length, how) => {
                let Some(number) = model.regular(which) else { continue };
                let how = [
                    Allocate::Extend,
                    Allocate::Keep,
                    Allocate::Punch,
                    Allocate::Zero { keeps_size: true },
                    Allocate::Zero { keeps_size: false },
                ][usize::from(how)];
                real.fs().allocate(number, u64::from(at), u64::from(length), how).unwrap();
                let content = &mut model.files.get_mut(&number).unwrap().content;
                let (at, end) = (at as usize, (at + length) as usize);
                if matches!(how, Allocate::Extend | Allocate::Zero { keeps_size: false }) {
                    resize(content, content.len().max(end));
                }
                if !matches!(how, Allocate::Extend | Allocate::Keep) {
                    let size = content.len();
                    content[at.min(size)..end.min(size)].fill(0);
                }
            }
            Step::Copy(from, from_at, to, to_at, length) => {
                let (Some(from), Some(to)) = (model.regular(from), model.regular(to)) else { continue };
                let source = model.files[&from].content.clone();
                let length = source.len().saturating_sub(from_at as usize).min(length as usize);
                let copied = real.fs().copy((from, from_at.into()), (to, to_at.into()), length as u64);
                if from == to && (from_at.abs_diff(to_at) as usize) < length {
                    prop_assert!(matches!(copied, Err(FsError::Invalid)));
                    continue;
                }
                prop_assert_eq!(copied.unwrap(), length as u64);
                if length > 0 {
                    let content = &mut model.files.get_mut(&to).unwrap().content;
                    let to_at = to_at as usize;
                    resize(content, content.len().max(to_at + length));
                    content[to_at..to_at + length].copy_from_slice(&source[from_at as usize..from_at as usize + length]);
                }
            }
            Step::Mode(which, mode) => {
                let Some((_, number)) = model.name(which) else { continue };
                real.fs().set(number, Changed { mode: Some(mode), ..Changed::default() }).unwrap();
                model.files.get_mut(&number).unwrap().mode = mode;
            }
            Step::Xattr(which, value) => {
                let Some((_, number)) = model.name(which) else { continue };
                let value = value.map(|value| vec![value; 9]);
                let set = real.fs().set_xattr(number, b"user.x", value.as_deref(), SetXattr::Any);
                let file = model.files.get_mut(&number).unwrap();
                match (&value, &file.xattr) {
                    (None, None) => prop_assert!(matches!(set, Err(FsError::NoAttribute))),
                    _ => {
                        set.unwrap();
                        file.xattr = value;
                    }
                }
            }
            Step::Open(which) => {
                let Some(number) = model.regular(which) else { continue };
                if model.open.insert(number) {
                    real.fs().opened(number).unwrap();
                }
            }
            Step::Close(which) => {
                let Some(number) = Model::pick(&model.open.iter().copied().collect::<Vec<_>>(), which) else { continue };
                model.open.remove(&number);
                real.fs().closed(number).unwrap();
                if model.files[&number].names == 0 {
                    model.files.remove(&number);
                }
            }
            Step::Sync => {
                real.fs().sync().unwrap();
                (durable, is_partly) = (model.clone(), false);
            }
            Step::SyncFile(which) => {
                let Some(number) = model.regular(which) else { continue };
                real.fs().sync_file(number).unwrap();
                // All names and attributes, and this file's content, are as they are now.
                let mut expected = model.clone();
                for (other, file) in &mut expected.files {
                    let was = durable.files.get(other);
                    if file.kind == 0 && *other != number && was.is_none_or(|was| was.content != file.content) {
                        // Not synced: anything from what was there.
                        file.content = b"unknown".to_vec();
                    }
                }
                (durable, is_partly) = (expected, true);
            }
            Step::Crash(keeps) => {
                real.crash(if keeps { CrashPolicy::KeepAll } else { CrashPolicy::DropAll });
                let seen = real.seen(&BTreeSet::new());
                if keeps {
                    // The disk kept what nobody flushed: any whole number of commits may be there.
                    model = seen;
                } else {
                    let mut expected = durable.closed();
                    for (number, file) in &mut expected.files {
                        if is_partly && file.kind == 0 && file.content == b"unknown" {
                            file.content.clone_from(&seen.files[number].content);
                        }
                    }
                    prop_assert_eq!(&seen, &expected);
                    model = seen;
                }
                real.fs().sync().unwrap();
                (durable, is_partly) = (model.clone(), false);
            }
            Step::Reopen => {
                real.fs().close().unwrap();
                real.crash(CrashPolicy::DropAll);
                model = model.closed();
                (durable, is_partly) = (model.clone(), false);
            }
        }
        prop_assert_eq!(real.seen(&model.open), model.clone(), "after {:?}", step);
        let content = model.files.values().filter(|file| file.kind == 0).map(|file| file.content.len() as u64).sum();
        let used = real.fs().usage();
        prop_assert_eq!((used.inodes, used.used_bytes), (model.files.len() as u64, content), "after {:?}", step);
    }
    // Everything that is removed gives its chunks back.
    real.fs().close().unwrap();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 2000, ..ProptestConfig::default() })]
    #[test]
    fn a_filesystem_is_what_the_model_is_whatever_is_done_and_whenever_it_crashes(steps in proptest::collection::vec(step(), 1..60)) {
        run(steps)?;
    }
}

#[test]
fn a_file_that_took_the_place_of_another_is_whole_whenever_others_commit() {
    let mut real = Real::new();
    let new = Create { mode: 0o644, umask: 0, uid: 0, gid: 0 };
    let (other, _) = real.fs().create(ROOT, b"other", Kind::File, new).unwrap();
    // A new name of nobody promises nothing.
    let (first, _) = real.fs().create(ROOT, b"place", Kind::File, new).unwrap();
    real.fs().write(first, 0, &[0; 2800], false).unwrap();
    real.fs().sync().unwrap();
    for round in 0u32..150 {
        let fs = real.fs().clone();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    fs.sync_file(other).unwrap();
                }
            });
            for turn in 0..8u32 {
                let (number, _) = fs.create(ROOT, b"next", Kind::File, new).unwrap();
                fs.write(number, 0, &(round * 8 + turn).to_le_bytes().repeat(700), false).unwrap();
                fs.rename((ROOT, b"next"), (ROOT, b"place"), Rename::Replace).unwrap();
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        drop(fs);
        real.crash(CrashPolicy::DropAll);
        // It may be an older one, but never one without its content.
        if let Ok((number, _)) = real.fs().lookup(ROOT, b"place") {
            let found = real.fs().read(number, 0, 9000).unwrap();
            assert_eq!(found.len(), 2800, "round {round}");
            assert!(found.chunks(4).all(|part| part == &found[..4]), "round {round}");
        }
        let _ = real.fs().unlink(ROOT, b"next");
    }
}

#[test]
fn inodes_in_memory_stay_within_their_limit_whatever_they_have() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let new = NewSpace { name: "f", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: MIN_BLOCK_BYTES, chain: None };
    let space = spaces.create(new).unwrap();
    Filesystem::format(&space, None, (0, 0)).unwrap();
    let limit_bytes = 256 << 10;
    let fs = Filesystem::open(space, FsOptions { inode_cache_bytes: limit_bytes, ..options() }).unwrap();
    let new = Create { mode: 0o755, umask: 0, uid: 0, gid: 0 };
    let value = |number: u64| vec![number as u8; if number.is_multiple_of(7) { 20_000 } else { 100 }];
    let numbers: Vec<u64> = (0..400u64)
        .map(|name| {
            let number = fs.create(ROOT, name.to_string().as_bytes(), Kind::File, new).unwrap().0;
            fs.set_xattr(number, b"user.x", Some(&value(number)), SetXattr::Any).unwrap();
            number
        })
        .collect();
    assert!(fs.state.lock().tree.cached_bytes() > limit_bytes, "what is not stored stays");
    fs.sync().unwrap();
    for number in numbers.iter().chain(numbers.iter().rev()) {
        assert_eq!(fs.inode(*number).unwrap().xattr(b"user.x"), Some(&value(*number)[..]));
    }
    assert!(fs.state.lock().tree.cached_bytes() <= limit_bytes);
    fs.unlink(ROOT, b"3").unwrap();
    assert!(fs.state.lock().tree.cached_bytes() <= limit_bytes);
}
