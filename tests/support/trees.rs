//! Makes file trees, and compares them, in everything that a backup keeps.

use crate::{Random, client, noise};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// What there is to know about one name. Two trees are equal when their maps from names to these are.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    xattrs: BTreeMap<OsString, Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    File {
        size: u64,
        hash: u128,
    },
    /// Another name of a file of this tree that came before.
    HardLink(PathBuf),
    Directory,
    Symlink(PathBuf),
    Device {
        is_block: bool,
        number: u64,
    },
    Fifo,
    Socket,
}

/// Fails with the first names that differ.
#[track_caller]
pub fn assert_same_tree(expected: &Path, found: &Path) {
    let differences = differences(expected, found);
    assert!(differences.is_empty(), "trees differ:\n{}", differences.join("\n"));
}

/// Returns the first names that differ, and how.
#[track_caller]
pub fn differences(expected: &Path, found: &Path) -> Vec<String> {
    let [expected, found] = [expected, found].map(read_tree);
    assert!(expected.len() > 1, "an empty tree proves nothing");
    let names: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let different = names.iter().filter(|name| expected.get(**name) != found.get(**name));
    different.take(5).map(|name| format!("{name:?}: {:?} / {:?}", expected.get(*name), found.get(*name))).collect()
}

/// Every name below `root`, and `root` itself as "".
fn read_tree(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut entries = BTreeMap::new();
    let mut first_names = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(name) = waiting.pop() {
        let path = root.join(&name);
        let metadata = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let kind = metadata.file_type();
        let kind = if kind.is_dir() {
            let mut children: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| name.join(entry.unwrap().file_name())).collect();
            // The order of the walk decides which name of a file is the first: it must be the same for both trees.
            children.sort_by(|left, right| right.cmp(left));
            waiting.append(&mut children);
            Kind::Directory
        } else if kind.is_symlink() {
            Kind::Symlink(fs::read_link(&path).unwrap())
        } else if kind.is_fifo() {
            Kind::Fifo
        } else if kind.is_socket() {
            Kind::Socket
        } else if kind.is_file() {
            match first_names.get(&(metadata.dev(), metadata.ino())) {
                Some(first) => Kind::HardLink(PathBuf::clone(first)),
                None => {
                    first_names.insert((metadata.dev(), metadata.ino()), name.clone());
                    Kind::File { size: metadata.len(), hash: hash(&path) }
                }
            }
        } else {
            Kind::Device { is_block: kind.is_block_device(), number: metadata.rdev() }
        };
        let entry = Entry {
            kind,
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            xattrs: xattrs(&path),
        };
        entries.insert(name, entry);
    }
    entries
}

fn hash(path: &Path) -> u128 {
    let mut file = File::open(path).unwrap();
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return hasher.digest128(),
            length => hasher.update(&buffer[..length]),
        }
    }
}

/// All that can be listed; none where the file system has none.
fn xattrs(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let name: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name);
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        (name.to_owned(), value)
    };
    names.map(value).collect()
}

/// What a directory with all below it takes on disk.
pub fn disk_bytes(path: &Path) -> u64 {
    // Files come and go while a daemon or a backup works: what is gone counts nothing.
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    let below: u64 = match fs::read_dir(path) {
        Ok(entries) if metadata.is_dir() => entries.filter_map(|entry| Some(disk_bytes(&entry.ok()?.path()))).sum(),
        _ => 0,
    };
    metadata.blocks() * 512 + below
}

/// Makes a tree with everything that a tree can have. Needs root.
pub fn grow(root: &Path) {
    fs::create_dir_all(root.join("directory")).unwrap();
    for number in 0..40u64 {
        fs::write(root.join("directory").join(number.to_string()), noise(number, (number * number * 50) as usize)).unwrap();
    }
    fs::write(root.join("large"), noise(99, 20 << 20)).unwrap();
    let sparse = File::create_new(root.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 30 << 20).unwrap();
    fs::hard_link(root.join("directory/7"), root.join("again")).unwrap();
    std::os::unix::fs::symlink("directory/7", root.join("link")).unwrap();
    fs::set_permissions(root.join("large"), fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(root.join("directory"), Some(1234), Some(567)).unwrap();
    client("mkfifo", [root.join("pipe")]).succeeds();
    client("mknod", [root.join("null").to_str().unwrap(), "c", "1", "3"]).succeeds();
    client("mknod", [root.join("disk").to_str().unwrap(), "b", "250", "70000"]).succeeds();
    rustix::fs::setxattr(root.join("large"), "user.colour", b"green", rustix::fs::XattrFlags::empty()).unwrap();
    fs::write(root.join("n".repeat(255)), "long").unwrap();
}

/// Plants a tree of about so many bytes that neither repeat nor compress: small and large files, copies, links. Anybody
/// can.
pub fn plant(root: &Path, seed: u64, bytes: u64) {
    let (mut random, mut planted) = (Random::new(seed), 0);
    for number in 0.. {
        let directory = root.join(format!("d{}", number % 7));
        fs::create_dir_all(&directory).unwrap();
        let length = if number % 20 == 0 { bytes / 8 } else { random.below(60_000) };
        let file = directory.join(format!("f{number}"));
        fs::write(&file, noise(random.next_u64(), length as usize)).unwrap();
        match number % 10 {
            1 => std::os::unix::fs::symlink(&file, directory.join(format!("link {number}"))).unwrap(),
            2 => drop(fs::copy(&file, directory.join(format!("copy {number}"))).unwrap()),
            3 => fs::hard_link(&file, directory.join(format!("again {number}"))).unwrap(),
            _ => {}
        }
        planted += length;
        if planted >= bytes {
            return;
        }
    }
}
