//! A filesystem through the kernel, on a store in memory. Root only, and only where there is a /dev/fuse.

use super::*;
use crate::{MountOptions, Mounted, mount};
use onefold_blocks::testing::TestStore;
use onefold_blocks::{Owner, SpacesOptions};
use onefold_fs::FsOptions;
use rustix::io::Errno as Code;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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

/// Runs a program of Python as a user, in the directory of a file: the user may not be able to enter those above.
/// `None`: there is no Python.
fn run_as(user: u32, group: u32, groups: &[u32], program: &str, path: &Path) -> Option<()> {
    let program = format!("import os, sys\nos.setgroups({groups:?})\nos.setgid({group})\nos.setuid({user})\n{program}");
    let mut command = std::process::Command::new("python3");
    command.arg("-c").arg(program).arg(path.file_name().unwrap()).current_dir(path.parent().unwrap());
    match command.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            println!("skipped: python3 is not installed");
            return None;
        }
    }
    Some(())
}

#[test]
fn an_acl_takes_set_group_id_away_unless_its_setter_is_root_or_in_the_group() {
    let Some(scene) = Scene::new() else { return };
    let _mounted = scene.mount();
    let acl = r#"
acl = b"\2\0\0\0" + b"".join(bytes([tag, 0, mode, 0]) + id for tag, mode, id in [
    (1, 7, b"\377" * 4), (2, 5, b"\5\0\0\0"), (4, 5, b"\377" * 4), (16, 5, b"\377" * 4), (32, 5, b"\377" * 4)])
"#;
    let set = format!("{acl}os.setxattr(sys.argv[1], 'system.posix_acl_access', acl)");
    let remove = "os.removexattr(sys.argv[1], 'system.posix_acl_access')";
    for (number, (user, group, groups, keeps)) in
        [(1001, 1001, &[][..], false), (1001, 1001, &[5, 2000], true), (1001, 2000, &[], true), (0, 0, &[], true)].into_iter().enumerate()
    {
        for is_directory in [false, true] {
            let path = scene.path(&format!("{number}-{is_directory}"));
            if is_directory { fs::create_dir(&path) } else { fs::write(&path, "x") }.unwrap();
            std::os::unix::fs::chown(&path, Some(1001), Some(2000)).unwrap();
            let give = || fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
            let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            give();
            if run_as(user, group, groups, &set, &path).is_none() {
                return;
            }
            assert_eq!(mode(), if keeps { 0o2755 } else { 0o755 }, "{path:?}");
            give();
            run_as(user, group, groups, remove, &path);
            assert_eq!(mode(), 0o2755, "{path:?} without an ACL");
        }
    }
}

#[test]
fn a_change_of_the_content_takes_set_user_id_away_at_once_and_set_group_id_from_who_is_not_in_the_group() {
    let Some(scene) = Scene::new() else { return };
    let _mounted = scene.mount();
    let path = scene.path("file");
    let changes = [
        "os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'y', 1)",
        "os.truncate(sys.argv[1], 1)",
        "os.close(os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC))",
        "os.posix_fallocate(os.open(sys.argv[1], os.O_WRONLY), 0, 9)",
        "file = os.open(sys.argv[1], os.O_RDWR); os.copy_file_range(file, file, 1, 0, 1)",
    ];
    for change in changes {
        for (groups, mode, expected) in
            [(&[][..], 0o6777, 0o777), (&[], 0o6766, 0o766), (&[2000], 0o6766, 0o2766), (&[2000], 0o6777, 0o777)]
        {
            fs::write(&path, "xx").unwrap();
            std::os::unix::fs::chown(&path, Some(0), Some(2000)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            if run_as(1001, 1001, groups, change, &path).is_none() {
                return;
            }
            // Whoever asks for the mode alone gets what `exec` goes by.
            let found = rustix::fs::statx(rustix::fs::CWD, &path, rustix::fs::AtFlags::empty(), rustix::fs::StatxFlags::MODE).unwrap();
            assert_eq!(found.stx_mode & 0o7777, expected, "{mode:o}, groups {groups:?}, {change}");
        }
    }
}

#[test]
fn a_change_of_flags_shows_in_the_time_of_the_file() {
    let Some(scene) = Scene::new() else { return };
    let _mounted = scene.mount();
    let path = scene.path("file");
    fs::write(&path, "x").unwrap();
    let times = || fs::metadata(&path).map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
    let before = times();
    let file = fs::File::open(&path).unwrap();
    for flags in [rustix::fs::IFlags::NODUMP, rustix::fs::IFlags::empty()] {
        rustix::fs::ioctl_setflags(&file, flags).unwrap();
        assert_eq!(rustix::fs::ioctl_getflags(&file).unwrap(), flags);
        assert!(times() > before);
    }
    assert_eq!(fs::read(&path).unwrap(), b"x");
}
