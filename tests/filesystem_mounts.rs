//! Filesystems of the store, through the kernel: what was synced is there whoever dies, snapshots never change, and
//! what cannot be done is said.

use onefold_tests::{MountPlace, Running, Scene, Served, Tmpfs, assert_same_tree, client, grow, has_fuse, installed, noise};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// A daemon that serves nothing over the network.
const QUIET: [&str; 4] = ["--nbd", "none", "--nbd-socket", "nbd.sock"];

fn mount(scene: &Scene, name: &str, options: &[&str]) -> Served {
    let place = scene.path(name);
    let arguments = [&["mount", "--foreground", "--fs", name, name], options].concat();
    Served::start(&mut scene.command(arguments), &place).unwrap_or_else(|run| panic!("{}", run.text()))
}

fn create(scene: &Scene, name: &str, options: &[&str]) {
    scene.run([&["fs", "create", name], options].concat()).succeeds();
}

/// A store with the filesystem `files`. `None`: nothing can be mounted here.
fn scene_with_files() -> Option<Scene> {
    let scene = has_fuse().then(|| Scene::new(&[], ""))?;
    create(&scene, "files", &[]);
    Some(scene)
}

/// Unmounts it, and waits until its process has ended.
#[track_caller]
fn unmount(mut mounted: Served, place: &Path) {
    client("umount", [place]).succeeds();
    mounted.ends();
}

fn is_mounted(place: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == place.to_str())
}

fn errno(error: &std::io::Error) -> Option<i32> {
    error.raw_os_error()
}

#[test]
fn a_mounted_filesystem_is_backed_up_without_reading_it() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    grow(&scene.path("tree"));
    fs::create_dir(scene.path("tree/directory/below")).unwrap();
    create(&scene, "files", &[]);
    let mounted = mount(&scene, "files", &[]);
    let root = scene.path("files");
    client("cp", [Path::new("--archive"), &scene.path("tree/."), &root]).succeeds();
    let back_up = || scene.run(["backup", "--fs", "files", "--json"]).succeeds().json();
    let first = back_up();
    assert_eq!((&first["name"], first["read_bytes"].as_u64(), first["files_new"].as_u64()), (&"files".into(), Some(0), Some(44)));
    let unchanged = back_up();
    assert_eq!((&unchanged["parent"], unchanged["added_bytes"].as_u64()), (&first["id"], Some(0)));
    fs::remove_dir_all(root.join("directory/below")).unwrap();
    fs::write(root.join("directory/3"), "changed").unwrap();
    let changed = back_up();
    assert_eq!((changed["files_changed"].as_u64(), changed["files_unmodified"].as_u64()), (Some(1), Some(43)));
    let restore = |backup: &serde_json::Value, place: &str| {
        let id = backup["id"].as_str().unwrap();
        scene.run(["restore", id, "--target", place]).succeeds();
        scene.path(place).join("files")
    };
    assert_same_tree(&scene.path("tree"), &restore(&first, "first"));
    assert_same_tree(&root, &restore(&changed, "changed"));
    // Users see no snapshot of a backup, and need none.
    assert_eq!(scene.run(["fs", "list", "--json"]).succeeds().json().as_array().unwrap().len(), 1);
    assert_eq!(fs::read_dir(root.join(".snapshots")).unwrap().count(), 0);
    unmount(mounted, &root);
    scene.run(["fs", "delete", "files", "--yes"]).succeeds();
    scene.run(["prune", "--max-unused", "0"]).succeeds();
    assert_same_tree(&scene.path("tree"), &restore(&first, "later"));
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn a_filesystem_keeps_a_tree_and_its_snapshots_never_change() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    grow(&scene.path("tree"));
    create(&scene, "files", &[]);
    let mounted = mount(&scene, "files", &[]);
    let root = scene.path("files");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(mounts.contains(&format!("files {} fuse.onefold rw", root.display())), "{mounts}");
    client("cp", [Path::new("--archive"), &scene.path("tree/."), &root]).succeeds();
    assert_same_tree(&scene.path("tree"), &root);
    assert!(root.join("sparse").metadata().unwrap().blocks() < 4096);
    let said = scene.run(["fs", "snapshot", "files", "monday"]).succeeds().text();
    assert!(said.contains("made snapshot monday of files"), "{said}");
    // A copy shares what is stored, and then each is its own.
    client("cp", [root.join("large"), root.join("copy")]).succeeds();
    File::options().write(true).open(root.join("copy")).unwrap().write_all_at(b"x", 4 << 20).unwrap();
    fs::remove_dir_all(root.join("directory")).unwrap();
    fs::write(root.join("large"), "short").unwrap();
    let snapshot = root.join(".snapshots/monday");
    assert_same_tree(&scene.path("tree"), &snapshot);
    let names: Vec<_> = fs::read_dir(root.join(".snapshots")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["monday"]);
    assert!(fs::read_dir(&root).unwrap().all(|entry| entry.unwrap().file_name() != ".snapshots"), "it is found by its name only");
    assert_eq!(fs::canonicalize(snapshot.join("directory/../../monday")).unwrap(), fs::canonicalize(&snapshot).unwrap());
    // Later ones appear, and those that are deleted go.
    scene.run(["fs", "snapshot", "files", "tuesday"]).succeeds();
    let count = || fs::read_dir(root.join(".snapshots")).unwrap().count();
    assert_eq!(count(), 2);
    scene.run(["fs", "delete", "tuesday", "--yes"]).succeeds();
    assert_eq!(count(), 1);
    for changed in [
        fs::write(snapshot.join("new"), "x"),
        fs::write(snapshot.join("large"), "x"),
        fs::remove_file(snapshot.join("large")),
        fs::create_dir(root.join(".snapshots/x")),
        fs::set_permissions(snapshot.join("large"), fs::Permissions::from_mode(0o777)),
        fs::rename(snapshot.join("large"), root.join("moved")),
    ] {
        let error = changed.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::CrossesDevices), "{error}");
    }
    for made in [fs::create_dir(root.join(".snapshots")), fs::rename(root.join("large"), root.join(".snapshots"))] {
        assert!(made.is_err());
    }
    assert_eq!(scene.statistic("filesystems"), 2);
    assert!(scene.statistic("filesystem_bytes") > 18 << 20 && scene.statistic("filesystem_files") > 50);
    // What may not be done while it is mounted is said with the place.
    for arguments in [&["fs", "rollback", "files", "monday", "--yes"][..], &["fs", "delete", "files", "--yes"]] {
        let said = scene.run(arguments).ends_with(1).text();
        assert!(said.contains("is mounted at") && said.contains("unmount it first"), "{said}");
    }
    let list = scene.run(["fs", "list", "--json"]).succeeds().json();
    assert_eq!(
        (&list[0]["name"], &list[0]["kind"], &list[0]["mounted"][0]),
        (&"files".into(), &"filesystem".into(), &root.to_str().unwrap().into())
    );
    assert_eq!((&list[1]["name"], &list[1]["kind"], &list[1]["origin"]), (&"monday".into(), &"snapshot".into(), &"files".into()));
    unmount(mounted, &root);
    scene.run(["fs", "clone", "monday", "test"]).succeeds();
    scene.run(["fs", "rollback", "files", "monday", "--yes"]).succeeds();
    for name in ["files", "test"] {
        let mounted = mount(&scene, name, &[]);
        assert_same_tree(&scene.path("tree"), &scene.path(name));
        unmount(mounted, &scene.path(name));
    }
    for name in ["files", "monday", "test"] {
        scene.run(["fs", "delete", name, "--yes"]).succeeds();
    }
    assert_eq!(scene.run(["fs", "list", "--json"]).succeeds().json(), serde_json::json!([]));
    scene.check();
    scene.run(["prune"]).succeeds();
    assert_eq!(scene.statistic("unused_bytes"), scene.statistic("unique_bytes"), "nothing needs it any more");
}

#[test]
fn a_daemon_mounts_several_beside_volumes_and_what_programs_have_open_does_not_stop_it() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    for name in ["one", "two", "three"] {
        create(&scene, name, &[]);
        fs::create_dir(scene.path(name)).unwrap();
    }
    scene.set(&format!("[[filesystem]]\nname = \"one\"\nmount = \"{}\"\n", scene.text("one")));
    let daemon = scene.serve_with(&[&QUIET[..], &["--fs", "two=two"]].concat());
    assert_eq!(daemon.event["mounts"].as_array().unwrap().len(), 2, "{}", daemon.event);
    scene.run(["mount", "--fs", "three", "three"]).succeeds();
    for name in ["one", "two", "three"] {
        fs::write(scene.path(name).join("file"), name).unwrap();
    }
    daemon.connect("disk").write(0, &noise(1, 4096)).unwrap();
    let list = scene.run(["fs", "list", "--json"]).succeeds().json();
    assert_eq!(list.as_array().unwrap().iter().filter(|info| info["mounted"].as_array().unwrap().len() == 1).count(), 3);
    client("umount", [scene.path("three")]).succeeds();
    scene.run(["fs", "delete", "three", "--yes"]).succeeds();
    scene.run(["fs", "resize", "two", "--size", "1MiB"]).succeeds();
    assert_eq!(fs::write(scene.path("two/large"), noise(3, 2 << 20)).unwrap_err().kind(), ErrorKind::StorageFull);
    // It was unmounted under a program, and is mounted again only when that has ended.
    let under = File::create(scene.path("two/under")).unwrap();
    client("umount", [Path::new("--lazy"), &scene.path("two")]).succeeds();
    let text = scene.run(["mount", "--fs", "two", "three"]).ends_with(2).text();
    assert!(text.contains("have files of filesystem two open"), "{text}");
    drop(under);
    scene.run(["mount", "--fs", "two", "two"]).succeeds();
    // A program has a file open while the daemon stops.
    let mut open = File::create(scene.path("one/open")).unwrap();
    open.write_all(b"before").unwrap();
    daemon.stop();
    assert!(open.write_all(b"after").and_then(|()| open.sync_all()).is_err(), "an error and no wait");
    drop(open);
    assert!(!is_mounted(&scene.path("one")) && !is_mounted(&scene.path("two")));
    let daemon = scene.serve_with(&QUIET);
    assert_eq!(fs::read(scene.path("one/file")).unwrap(), b"one");
    assert_eq!(fs::read(scene.path("one/open")).unwrap(), b"before");
    daemon.stop();
    let daemon = scene.serve_with(&[&QUIET[..], &["--read-only", "--fs", "two=two"]].concat());
    assert_eq!(fs::read(scene.path("two/file")).unwrap(), b"two");
    assert_eq!(fs::write(scene.path("two/new"), "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    daemon.stop();
    scene.check();
}

#[test]
fn what_was_synced_survives_a_killed_daemon_and_programs_get_errors_meanwhile() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "[mount]\ncommit_interval_ms = 50\n");
    create(&scene, "files", &[]);
    let root = scene.path("files");
    fs::create_dir(&root).unwrap();
    for round in 0..4u64 {
        let daemon = scene.serve_with(&[&QUIET[..], &["--fs", "files=files"]].concat());
        for earlier in 0..round {
            assert!(fs::read(root.join(format!("synced-{earlier}"))).unwrap() == noise(earlier, 700_001), "round {round}");
            assert_eq!(fs::read(root.join(format!("place-{earlier}"))).unwrap(), b"new");
        }
        let file = File::create(root.join(format!("synced-{round}"))).unwrap();
        file.write_all_at(&noise(round, 700_001), 0).unwrap();
        file.sync_all().unwrap();
        // The usual way to replace a file.
        fs::write(root.join(format!("place-{round}")), "old").unwrap();
        fs::write(root.join("next"), "new").unwrap();
        File::open(root.join("next")).unwrap().sync_all().unwrap();
        fs::rename(root.join("next"), root.join(format!("place-{round}"))).unwrap();
        File::open(&root).unwrap().sync_all().unwrap();
        for number in 0..100 {
            fs::write(root.join(format!("unsynced-{round}-{number}")), noise(number, 3000)).unwrap();
        }
        daemon.kill();
        let begun = Instant::now();
        assert!(fs::read_dir(&root).is_err() && file.write_all_at(b"x", 0).and_then(|()| file.sync_all()).is_err());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    // The mount that nobody serves is taken away by the next one.
    let mounted = mount(&scene, "files", &[]);
    let until = Instant::now() + Duration::from_secs(30);
    let outside = fs::metadata(root.parent().unwrap()).unwrap().dev();
    // For a moment there is no mount at all.
    while fs::metadata(&root).map_or(true, |found| found.dev() == outside) {
        assert!(Instant::now() < until, "{:?}", fs::metadata(&root));
        std::thread::sleep(Duration::from_millis(20));
    }
    for entry in fs::read_dir(&root).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if let Some(number) = name.strip_prefix("unsynced-").and_then(|rest| rest.split_once('-')) {
            let (found, whole) = (fs::read(entry.path()).unwrap(), noise(number.1.parse().unwrap(), 3000));
            assert!(whole.starts_with(&found), "{name} has bytes that nobody wrote");
        }
    }
    unmount(mounted, &root);
    scene.check();
}

#[test]
fn a_dead_mount_is_taken_away_although_the_kernel_still_knows_its_root() {
    let Some(scene) = scene_with_files() else { return };
    let root = scene.path("files");
    fs::create_dir(&root).unwrap();
    let _place = MountPlace::new(&root);
    let serve = || scene.serve_with(&[&QUIET[..], &["--fs", "files=files"]].concat());
    let daemon = serve();
    fs::metadata(&root).unwrap();
    daemon.kill();
    assert!(fs::metadata(&root).is_ok(), "the kernel answers without the daemon");
    let daemon = serve();
    fs::write(root.join("file"), "x").unwrap();
    daemon.stop();
    scene.check();
}

#[test]
fn a_full_store_refuses_writes_and_keeps_what_is_there() {
    if !has_fuse() {
        return;
    }
    let Some(disk) = Tmpfs::new("160m") else { return };
    let scene = Scene::with_store_in(disk.place(), &["--container-size", "1MiB"], "[log]\nsegment = \"1MiB\"\n");
    create(&scene, "files", &[]);
    let mounted = mount(&scene, "files", &[]);
    let root = scene.path("files");
    fs::write(root.join("kept"), noise(1, 5 << 20)).unwrap();
    File::open(root.join("kept")).unwrap().sync_all().unwrap();
    let mut full = None;
    for number in 0..400u64 {
        let path = root.join(number.to_string());
        let done = File::create(&path).and_then(|mut file| file.write_all(&noise(number + 5, 1 << 20)).and_then(|()| file.sync_all()));
        if let Err(error) = done {
            full = Some((number, error));
            break;
        }
    }
    let (written, error) = full.expect("the disk is full");
    assert_eq!(errno(&error), Some(rustix::io::Errno::NOSPC.raw_os_error()), "{error}");
    for number in 0..written {
        assert!(fs::read(root.join(number.to_string())).unwrap() == noise(number + 5, 1 << 20), "{number}");
    }
    assert!(fs::read(root.join("kept")).unwrap() == noise(1, 5 << 20));
    // Deleting works, and makes room.
    for number in 0..=written {
        fs::remove_file(root.join(number.to_string())).unwrap();
    }
    File::open(&root).unwrap().sync_all().unwrap();
    scene.run(["prune"]).succeeds();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let mut file = File::create(root.join("again")).unwrap();
        match file.write_all(&noise(2, 1 << 20)).and_then(|()| file.sync_all()) {
            Ok(()) => break,
            Err(error) => assert!(Instant::now() < until, "there is no room: {error}"),
        }
        scene.run(["prune"]).succeeds();
    }
    unmount(mounted, &root);
    scene.check();
}

#[test]
fn what_cannot_be_mounted_is_refused_with_advice() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    create(&scene, "files", &["--size", "10MiB"]);
    fs::write(scene.path("file"), "x").unwrap();
    fs::create_dir(scene.path("place")).unwrap();
    for (arguments, code, expected) in [
        (&["mount", "--fs", "files", "nowhere"][..], 2, "No such file or directory"),
        (&["mount", "--fs", "files", "file"], 2, "is no directory"),
        (&["mount", "--fs", "filse", "place"], 1, "filse"),
        (&["fs", "create", "files"], 1, "already exists"),
        (&["fs", "create", "a/b"], 2, "cannot be the name of a filesystem"),
        (&["fs", "create", "x", "--size", "much"], 2, "much"),
        (&["fs", "snapshot", "filse", "x"], 1, "did you mean files?"),
        (&["fs", "delete", "nothing", "--yes"], 1, "there is no filesystem nothing"),
        (&["fs", "rollback", "files", "files", "--yes"], 1, "is not a snapshot"),
        (&["--store", "onefold://a@127.0.0.1", "mount", "--fs", "files", "place"], 2, "needs the store itself"),
    ] {
        let text = scene.run(arguments).ends_with(code).text();
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    let text = scene.run([OsStr::new("mount"), OsStr::new("--fs"), OsStr::new("files"), scene.store().as_os_str()]).ends_with(2).text();
    assert!(text.contains("has the store in it"), "{text}");
    let _mounted = mount(&scene, "files", &[]);
    let text = scene.run(["mount", "--fs", "files", "place"]).ends_with(2).text();
    assert!(text.contains("is mounted at") && text.contains("mount --bind"), "{text}");
    let text = scene.run(["mount", "--fs", "files", "files"]).ends_with(2).text();
    assert!(text.contains("something is mounted at"), "{text}");
}

#[test]
fn a_mount_in_the_background_ends_when_it_is_unmounted() {
    if !has_fuse() || !installed(&["fusermount3"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    create(&scene, "files", &[]);
    fs::create_dir(scene.path("place")).unwrap();
    let said = scene.run(["mount", "--fs", "files", "place"]).succeeds().text();
    assert!(said.contains("is mounted at") && said.contains("fusermount3 -u"), "{said}");
    fs::write(scene.path("place/file"), "x").unwrap();
    // Commands go through it.
    scene.run(["fs", "snapshot", "files", "monday"]).succeeds();
    scene.run(["backup", "--quiet", "--name", "place", "place"]).succeeds();
    client("fusermount3", [Path::new("-u"), &scene.path("place")]).succeeds();
    // Its process is about to end now. No command fails because of that, whenever it comes.
    let commands: [&[&str]; 5] = [
        &["check", "--read-data"],
        &["fs", "snapshot", "files", "tuesday"],
        &["mount", "--fs", "files", "place"],
        &["backup", "--quiet", "--name", "tree", "place"],
        &["stats"],
    ];
    for (turn, command) in commands.iter().chain(&commands[2..]).enumerate() {
        scene.run(*command).succeeds();
        if !is_mounted(&scene.path("place")) {
            scene.run(["mount", "--fs", "files", "place"]).succeeds();
        }
        client("umount", [scene.path("place")]).succeeds();
        std::thread::sleep(Duration::from_millis(40 * turn as u64));
    }
    let mounted = mount(&scene, "files", &["--read-only"]);
    assert_eq!(fs::read(scene.path("files/file")).unwrap(), b"x");
    assert_eq!(fs::write(scene.path("files/new"), "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    unmount(mounted, &scene.path("files"));
}

#[test]
fn locks_direct_io_and_maps_work_between_processes() {
    if !has_fuse() || !installed(&["flock", "python3"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    create(&scene, "files", &[]);
    let mounted = mount(&scene, "files", &[]);
    let root = scene.path("files");
    fs::write(root.join("file"), noise(1, 1 << 20)).unwrap();
    let mut holder = Running::start(std::process::Command::new("flock").arg("--no-fork").arg(root.join("file")).args(["sleep", "60"]));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let free = client("flock", [Path::new("--nonblock"), &root.join("file"), Path::new("true")]);
        if free.code != 0 {
            break;
        }
        assert!(Instant::now() < until, "a lock keeps nobody out");
    }
    holder.kill();
    let script = r#"
import fcntl, mmap, os, sys
root = sys.argv[1]
with open(root + "/mapped", "w+b") as file:
    file.truncate(1 << 20)
    with mmap.mmap(file.fileno(), 1 << 20) as shared:
        shared[500000:500005] = b"hello"
        shared.flush()
    assert os.pread(file.fileno(), 5, 500000) == b"hello"
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
    if os.fork() == 0:
        other = open(root + "/mapped", "r+b")
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100)
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
            os._exit(1)
        except OSError:
            os._exit(0)
    assert os.wait()[1] == 0
direct = os.open(root + "/direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
page = mmap.mmap(-1, 8192)
page[:] = b"d" * 8192
assert os.pwrite(direct, page, 4096) == 8192
back = mmap.mmap(-1, 8192)
assert os.preadv(direct, [back], 4096) == 8192 and back[:] == page[:]
unlinked = os.open(root + "/unlinked", os.O_RDWR | os.O_CREAT)
os.unlink(root + "/unlinked")
os.write(unlinked, b"still there")
assert os.pread(unlinked, 20, 0) == b"still there" and os.fstat(unlinked).st_nlink == 0
"#;
    fs::write(scene.path("script.py"), script).unwrap();
    client("python3", [scene.path("script.py"), root.clone()]).succeeds();
    unmount(mounted, &root);
    scene.check();
}

#[test]
fn a_signal_right_after_the_mount_leaves_no_dead_mount() {
    let Some(scene) = scene_with_files() else { return };
    let root = scene.path("files");
    fs::create_dir(&root).unwrap();
    let daemon = [&["serve"][..], &QUIET, &["--fs", "files=files"]].concat();
    for command in [&["mount", "--foreground", "--fs", "files", "files"][..], &daemon].into_iter().cycle().take(8) {
        let mut process = Running::start(&mut scene.command(command));
        let until = Instant::now() + Duration::from_secs(60);
        while !is_mounted(&root) {
            assert!(!process.has_ended(), "{}", process.finish().text());
            assert!(Instant::now() < until, "it does not get mounted");
            std::thread::sleep(Duration::from_millis(1));
        }
        process.terminate();
        process.finish().succeeds();
        assert!(!is_mounted(&root), "{command:?}");
    }
}

#[test]
fn filesystems_that_are_mounted_at_once_share_one_daemon() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    let names = ["one", "two", "three", "four", "five"];
    for name in names {
        create(&scene, name, &[]);
        fs::create_dir(scene.path(name)).unwrap();
    }
    for round in 0..3 {
        let commands = names.map(|name| Running::start(&mut scene.command(["mount", "--fs", name, name])));
        for (name, command) in names.into_iter().zip(commands) {
            let said = command.finish().succeeds().text();
            assert!(said.contains(&format!("filesystem {name} is mounted at")), "{said}");
        }
        for name in names {
            assert!(is_mounted(&scene.path(name)), "round {round}: {name}");
            client("umount", [scene.path(name)]).succeeds();
        }
    }
    scene.check();
}

#[test]
fn a_mount_that_a_daemon_makes_in_a_namespace_of_its_own_is_undone_and_reported() {
    if !has_fuse() || !installed(&["unshare"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    create(&scene, "files", &[]);
    fs::create_dir(scene.path("files")).unwrap();
    let serve = scene.command([&["serve"][..], &QUIET].concat());
    let mut apart = std::process::Command::new("unshare");
    apart.args(["--mount", "--propagation", "private", "--"]).arg(serve.get_program()).args(serve.get_args());
    apart.current_dir(serve.get_current_dir().unwrap());
    for (key, value) in serve.get_envs() {
        apart.env(key, value.unwrap_or_default());
    }
    let daemon = Running::start(&mut apart);
    let until = Instant::now() + Duration::from_secs(30);
    while std::os::unix::net::UnixStream::connect(scene.store().join("control")).is_err() {
        assert!(Instant::now() < until, "the daemon takes no commands");
        std::thread::sleep(Duration::from_millis(20));
    }
    for options in [&[][..], &["--foreground"]] {
        let text = scene.run([&["mount", "--fs", "files", "files"][..], options].concat()).ends_with(1).text();
        assert!(text.contains("namespace") && text.contains("it is unmounted again") && !text.contains("fusermount3"), "{text}");
        assert_eq!(scene.run(["fs", "list", "--json"]).succeeds().json()[0]["mounted"], serde_json::json!([]));
    }
    daemon.terminate();
    daemon.finish().succeeds();
    scene.check();
}
