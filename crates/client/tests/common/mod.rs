//! Helpers: a store in a temporary directory, trees with every kind of file, and the visible state of a tree.
#![allow(dead_code, reason = "each test binary uses a part")]

use onefold_catalog::{Backup, Catalog};
use onefold_client::{BackupOptions, BackupOutcome, Monitor, Repository, RestoreOptions, RestoreOutcome, Tally};
use onefold_engine::{Descriptor, Engine, Mode, Settings};
use onefold_ground::{Ground, LocalGround};
use rustix::fs::{AtFlags, CWD, FileType, Mode as FileMode, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod behind;

pub struct Place {
    pub directory: tempfile::TempDir,
    pub catalog: Catalog,
}

/// Returns a new store, and space beside it.
pub fn place() -> Place {
    place_with(&Descriptor::new().unwrap())
}

/// The same, with choices for the store.
pub fn place_with(descriptor: &Descriptor) -> Place {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("store")).unwrap();
    fs::create_dir(directory.path().join("source")).unwrap();
    let ground = ground(&directory.path().join("store"));
    Engine::create(&ground, descriptor).unwrap();
    let catalog = open(&directory.path().join("store"));
    Place { directory, catalog }
}

fn ground(path: &Path) -> Arc<dyn Ground> {
    Arc::new(LocalGround::open(path).unwrap())
}

pub fn open(store: &Path) -> Catalog {
    Catalog::new(Engine::open(ground(store), Settings::default(), Mode::ReadWrite, "test").unwrap())
}

/// Test binaries of this name run the tests of another one on a store behind a connection.
pub const IS_REMOTE: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), [b'r', b'e', b'm', b'o', b't', b'e', ..]);

impl Place {
    /// Returns the store as the client sees it.
    pub fn repository(&self) -> Box<dyn Repository> {
        repository(&self.catalog, self.directory.path())
    }

    pub fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    pub fn source(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    pub fn target(&self) -> PathBuf {
        self.directory.path().join("target")
    }

    pub fn options(&self) -> BackupOptions {
        BackupOptions {
            name: "group".into(),
            host: "host".into(),
            user: "user".into(),
            paths: vec![self.source()],
            ..BackupOptions::default()
        }
    }

    pub fn backup(&self) -> (BackupOutcome, Tally) {
        let tally = Tally::default();
        let outcome = self.backup_with(&tally);
        (outcome, tally)
    }

    pub fn backup_with(&self, monitor: &dyn Monitor) -> BackupOutcome {
        let outcome = onefold_client::backup(&*self.repository(), &self.options(), monitor).unwrap();
        // Over a connection the record has no root.
        let backup = self.catalog.find(&outcome.backup.id.to_string()).unwrap();
        assert_eq!(Backup { root: outcome.backup.root.clone(), ..backup.clone() }, outcome.backup);
        BackupOutcome { backup, ..outcome }
    }

    /// Returns the source's place in a backup.
    pub fn root(&self) -> Vec<u8> {
        self.source().as_os_str().as_bytes()[1..].to_vec()
    }

    /// Restores the content of the source to the target. Paths are relative to the source.
    pub fn restore(&self, backup: &Backup) -> (RestoreOutcome, Tally) {
        self.restore_with(backup, RestoreOptions::default())
    }

    pub fn restore_with(&self, backup: &Backup, options: RestoreOptions) -> (RestoreOutcome, Tally) {
        let tally = Tally::default();
        let below = |path: &Vec<u8>| [&self.root()[..], b"/", path].concat();
        let options = RestoreOptions {
            target: self.target(),
            strip_components: self.root().split(|byte| *byte == b'/').count(),
            paths: options.paths.iter().map(below).collect(),
            ..options
        };
        let outcome = onefold_client::restore(&*self.repository(), backup, &options, &tally).unwrap();
        (outcome, tally)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.source().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }
}

/// Returns a store as the client sees it. `directory`: for the socket and the cache, if it is behind a connection.
pub fn repository(catalog: &Catalog, directory: &Path) -> Box<dyn Repository> {
    if IS_REMOTE { Box::new(behind::Behind::new(catalog, directory)) } else { Box::new(catalog.clone()) }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns bytes that do not compress and do not repeat, the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Fills a directory with every kind of file that this process may make.
pub fn every_kind(root: &Path) {
    fs::create_dir_all(root.join("a/deep/er")).unwrap();
    fs::create_dir(root.join("empty directory")).unwrap();
    fs::create_dir(root.join("z")).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("a/small"), b"small").unwrap();
    fs::write(root.join("a/copy of small"), b"small").unwrap();
    fs::write(root.join("a/deep/er/medium"), noise(1, 300_000)).unwrap();
    fs::write(root.join("large"), noise(2, 9_500_000)).unwrap();
    fs::write(root.join("zeros"), vec![0; 2_000_000]).unwrap();
    for name in [&b"not utf-8 \xff\xfe"[..], b"new\nline", b" ", b"-rf", b"\\", b"*", b"a/.hidden", &[b'x'; 255]] {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    sparse.write_all_at(&noise(3, 100_000), 10 << 20).unwrap();
    sparse.write_all_at(b"end", 40 << 20).unwrap();
    fs::File::create(root.join("only a hole")).unwrap().set_len(3 << 20).unwrap();
    fs::write(root.join("a/first name"), b"one file, three names").unwrap();
    fs::hard_link(root.join("a/first name"), root.join("a/deep/second name")).unwrap();
    fs::hard_link(root.join("a/first name"), root.join("z/third name")).unwrap();
    symlink("a/small", root.join("link")).unwrap();
    symlink("/nowhere/\n", root.join("dangling")).unwrap();
    for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
        rustix::fs::mknodat(CWD, root.join(name), kind, FileMode::from_raw_mode(0o640), 0).unwrap();
    }
    if is_root() {
        for (name, kind) in [("null", FileType::CharacterDevice), ("disk", FileType::BlockDevice)] {
            rustix::fs::mknodat(CWD, root.join(name), kind, FileMode::from_raw_mode(0o600), rustix::fs::makedev(1, 300)).unwrap();
        }
        std::os::unix::fs::chown(root.join("a/small"), Some(1234), Some(4321)).unwrap();
        std::os::unix::fs::lchown(root.join("link"), Some(1234), Some(4321)).unwrap();
        std::os::unix::fs::chown(root.join("z"), Some(7), Some(8)).unwrap();
    }
    for (name, mode) in [("a/small", 0o4755), ("a/copy of small", 0o400), ("z", 0o1777), ("empty directory", 0o500), ("fifo", 0o666)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, value) in [("user.one", &b"first"[..]), ("user.two", b"\0\xff"), ("user.none", b"")] {
        let _ = rustix::fs::setxattr(root.join("large"), name, value, XattrFlags::empty());
        let _ = rustix::fs::setxattr(root.join("a"), name, value, XattrFlags::empty());
    }
    // u::rw- u:77:r-- g::r-- m::r-- o::---, in the kernel's form.
    let acl = [
        2u32.to_le_bytes().to_vec(),
        acl_entry(1, 6, u32::MAX),
        acl_entry(2, 4, 77),
        acl_entry(4, 4, u32::MAX),
        acl_entry(0x10, 4, u32::MAX),
        acl_entry(0x20, 0, u32::MAX),
    ]
    .concat();
    let _ = rustix::fs::setxattr(root.join("empty"), "system.posix_acl_access", &acl, XattrFlags::empty());
    let _ = rustix::fs::setxattr(root.join("z"), "system.posix_acl_default", &acl, XattrFlags::empty());
    // Times last, the deepest first.
    let mut paths: Vec<PathBuf> = look(root).into_keys().map(|path| root.join(OsStr::from_bytes(&path))).collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for (number, path) in paths.iter().enumerate() {
        let time = Timespec { tv_sec: 1_000_000_000 - number as i64 * 100_000_000, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn acl_entry(tag: u16, permissions: u16, id: u32) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
}

/// Everything about a name that a restore has to bring back.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    pub kind: u32,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub links: u64,
    pub device: u64,
    pub content: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Returns all names below a directory. The directory itself has the empty name.
pub fn look(root: &Path) -> BTreeMap<Vec<u8>, Look> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        let content = if kind.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if kind.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        if kind.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let look = Look {
            kind: metadata.mode() & 0o170_000,
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            links: if kind.is_dir() { 0 } else { metadata.nlink() },
            device: metadata.rdev(),
            content,
            xattrs: xattrs(&path),
        };
        found.insert(path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec(), look);
    }
    found
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut xattrs = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        xattrs.insert(name.to_vec(), value[..length].to_vec());
    }
    xattrs
}

/// Compares two trees name by name, so that a failure names the file and does not print all contents.
pub fn assert_same(expected: &Path, found: &Path) {
    let (expected, found) = (look(expected), look(found));
    let names = |looks: &BTreeMap<Vec<u8>, Look>| looks.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&found));
    // The attributes of the target itself belong to its owner.
    for (name, expected) in expected.iter().filter(|(name, _)| !name.is_empty()) {
        let found = &found[name];
        let shown = String::from_utf8_lossy(name);
        assert!(expected.content == found.content, "content of {shown:?}");
        let short = |look: &Look| format!("{:?}", (look.kind, look.mode, look.owner, look.mtime, look.links, look.device, &look.xattrs));
        assert_eq!(short(expected), short(found), "{shown:?}");
    }
}

/// Runs `work` as a user who is not root: the modes of directories do not bind root.
pub fn without_root<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let as_somebody = || {
        if is_root() {
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65_534)).unwrap();
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(as_somebody).join().unwrap())
}
