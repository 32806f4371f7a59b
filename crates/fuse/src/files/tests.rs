//! A filesystem through the kernel, on a store in memory. Root only, and only where there is a /dev/fuse.

use super::*;
use crate::{MountOptions, Mounted, mount};
use onefold_blocks::testing::TestStore;
use onefold_blocks::{Owner, SpacesOptions};
use onefold_fs::FsOptions;
use rustix::io::Errno as Code;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const NAME_OF_FILESYSTEM: &str = "files";

/// A store with one filesystem, and a place to mount it.
struct Scene {
    place: TempDir,
    all: Arc<Filesystems>,
    _store: TestStore,
}

impl Scene {
    /// `None`: nothing can be mounted here.
    fn new() -> Option<Scene> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            println!("skipped: only root can mount, where there is a /dev/fuse");
            return None;
        }
        let mut store = TestStore::new();
        let spaces = Arc::new(store.spaces(SpacesOptions::default()));
        let all = Filesystems::of(spaces, FsOptions { commit_interval: Duration::from_secs(3600), ..FsOptions::default() });
        all.create(NAME_OF_FILESYSTEM, None, (0, 0)).unwrap();
        Some(Scene { place: tempfile::tempdir().unwrap(), all, _store: store })
    }

    fn open(&self) -> OpenFilesystem {
        self.all.open(NAME_OF_FILESYSTEM).unwrap()
    }

    fn mount(&self) -> Mounted {
        let options = MountOptions {
            source: NAME_OF_FILESYSTEM.to_owned(),
            kind: "onefold",
            is_read_only: false,
            allows_others: true,
            checks_permissions: true,
            allows_suid: true,
            allows_devices: true,
            notes_reads: true,
            threads: 2,
        };
        mount(FileTree::new(self.open(), Arc::clone(&self.all), true), self.place.path(), &options).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Overwrites the entry of an inode while nobody has the filesystem open.
    fn set_inode(&self, number: u64, value: Option<Vec<u8>>) {
        let space = self.all.spaces().get(Owner::Filesystems, NAME_OF_FILESYSTEM).unwrap();
        space.submit_entries(vec![([&b"i"[..], &number.to_be_bytes()].concat(), value)]).unwrap();
    }
}

const NEW: Create = Create { mode: 0o755, umask: 0, uid: 0, gid: 0 };

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_file_with_a_damaged_inode_stays_in_the_listing_and_is_an_error() {
    let Some(scene) = Scene::new() else { return };
    let expected: BTreeSet<String> = ["sound", "damaged", "missing", "below"].map(str::to_owned).into();
    let numbers: HashMap<String, u64> = {
        let files = scene.open();
        let make = |name: &String| {
            let kind = if name == "below" { Kind::Directory { parent: 0 } } else { Kind::File };
            files.create(ROOT, name.as_bytes(), kind, NEW).unwrap().0
        };
        expected.iter().map(|name| (name.clone(), make(name))).collect()
    };
    scene.set_inode(numbers["damaged"], Some(vec![0xff]));
    scene.set_inode(numbers["below"], Some(vec![0xff]));
    scene.set_inode(numbers["missing"], None);
    let mounted = scene.mount();
    for _ in 0..2 {
        assert_eq!(names(scene.place.path()), expected);
        for name in &expected {
            let found = fs::symlink_metadata(scene.path(name)).map_err(|error| error.raw_os_error());
            assert_eq!(found.is_ok(), name == "sound", "{name}: {found:?}");
            assert!(found.is_ok() || found.unwrap_err() == Some(Code::IO.raw_os_error()), "{name}");
        }
    }
    // What is removed is no damage.
    fs::remove_file(scene.path("sound")).unwrap();
    assert_eq!(names(scene.place.path()).len(), 3);
    drop(mounted);
}

#[test]
fn of_many_snapshots_few_are_open_and_none_that_the_kernel_forgot() {
    let Some(scene) = Scene::new() else { return };
    let count = 3 * snapshots::VIEWS;
    let files = scene.open();
    let (file, _) = files.create(ROOT, b"file", Kind::File, NEW).unwrap();
    for number in 0..count {
        files.write(file, 0, number.to_string().as_bytes(), false).unwrap();
        scene.all.snapshot(NAME_OF_FILESYSTEM, &format!("s{number}")).unwrap();
    }
    let tree = FileTree::new(files, Arc::clone(&scene.all), true);
    let look = |parent: INodeNo, name: &str| {
        let found = tree.found(parent, name.as_bytes()).unwrap().0.ino;
        tree.keep(found).unwrap();
        found
    };
    let content = |file| tree.at(file).and_then(|(files, own, _)| files.read(own, 0, 100));
    let roots: Vec<_> = (0..count).map(|number| look(INodeNo(DIRECTORY), &format!("s{number}"))).collect();
    let below: Vec<_> = roots.iter().map(|root| look(*root, "file")).collect();
    for _ in 0..2 {
        for (number, file) in below.iter().enumerate() {
            assert_eq!(content(*file).unwrap(), number.to_string().as_bytes());
            assert!(tree.snapshots.open() <= snapshots::VIEWS);
        }
    }
    // Numbers stay, whatever was closed meanwhile.
    assert_eq!(look(INodeNo(DIRECTORY), "s0"), roots[0]);
    tree.forgotten(roots[0], 1);
    scene.all.delete("s0").unwrap();
    assert_eq!(content(below[0]).unwrap_err().errno(), Code::STALE);
    assert!(matches!(tree.found(INodeNo(DIRECTORY), b"s0"), Err(FsError::NotFound)));
    for number in roots.iter().chain(&below) {
        tree.forgotten(*number, 1);
    }
    assert_eq!(tree.snapshots.open(), 0);
    tree.snapshots.list();
    assert!(matches!(content(below[0]), Err(FsError::NotFound)), "nothing is known of it any more");
    assert_eq!(content(below[1]).unwrap(), b"1");
}
