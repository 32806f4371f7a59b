//! Backups as a directory, through the kernel: what is seen is what was backed up, wherever the store is, and whoever
//! dies, programs get errors and do not hang.

use onefold_tests::{Running, Scene, Served, assert_same_tree, client, grow, has_fuse, installed, noise};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How old what is above the backups may be.
const STALE: Duration = Duration::from_millis(1200);

fn mount(scene: &Scene, options: &[&str]) -> Served {
    let place = scene.path("mounted");
    let arguments = [&["mount", "--foreground", "mounted"], options].concat();
    Served::start(&mut scene.command(arguments), &place).unwrap_or_else(|run| panic!("{}", run.text()))
}

fn backup(scene: &Scene, name: &str, tree: &str) {
    scene.run(["backup", "--quiet", "--name", name, tree]).succeeds();
}

/// The path of a tree of the scene in its newest backup.
fn shown(scene: &Scene, name: &str, tree: &str) -> PathBuf {
    scene.path("mounted").join(name).join("latest").join(scene.path(tree).strip_prefix("/").unwrap())
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs what cannot be done. Returns what it says.
#[track_caller]
fn refused(scene: &Scene, arguments: &[&str], why: &str) -> String {
    let text = scene.run(arguments).ends_with(2).text();
    assert!(text.contains(why), "{text}");
    text
}

#[test]
fn a_mounted_backup_is_the_tree_that_was_backed_up() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    grow(&scene.path("tree"));
    backup(&scene, "home", "tree");
    let mut mounted = mount(&scene, &[]);
    let found = shown(&scene, "home", "tree");
    assert_same_tree(&scene.path("tree"), &found);
    // By its id, too.
    let id = scene.run(["backups", "--json"]).succeeds().json()[0]["id"].as_str().unwrap().to_owned();
    let by_id = scene.path("mounted/ids").join(id).join(scene.path("tree").strip_prefix("/").unwrap());
    assert_eq!(fs::read(by_id.join("directory/39")).unwrap(), noise(39, 39 * 39 * 50));
    assert_eq!(by_id.join("again").metadata().unwrap().ino(), found.join("directory/7").metadata().unwrap().ino());
    assert_eq!(found.join("disk").metadata().unwrap().rdev(), scene.path("tree/disk").metadata().unwrap().rdev());
    // Holes are holes, and copies keep them.
    client("cp", [Path::new("--archive"), &found, &scene.path("copy")]).succeeds();
    assert_same_tree(&scene.path("tree"), &scene.path("copy"));
    assert!(scene.path("copy/sparse").metadata().unwrap().blocks() < 4096);
    // Any part of a file, in any order.
    let (large, expected) = (File::open(found.join("large")).unwrap(), noise(99, 20 << 20));
    for at in [19 << 20, 5, 10 << 20, (20 << 20) - 3, 777_777] {
        let mut bytes = vec![0; (expected.len() - at).min(100_000)];
        large.read_exact_at(&mut bytes, at as u64).unwrap();
        assert!(bytes == expected[at..at + bytes.len()]);
    }
    // Nobody can change it, and devices do not open.
    for changed in [fs::write(found.join("new"), "x"), fs::remove_file(found.join("large")), fs::create_dir(scene.path("mounted/x"))] {
        assert_eq!(changed.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    assert_eq!(File::open(found.join("null")).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    drop(large);
    mounted.process.terminate();
    mounted.ends();
    assert!(!mounted.is_mounted());
    assert!(names(&scene.path("mounted")).is_empty());
}

#[test]
fn backups_appear_and_go_while_it_is_mounted_and_others_write() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    grow(&scene.path("tree"));
    let _mounted = mount(&scene, &[]);
    let top = scene.path("mounted");
    assert_eq!(names(&top), ["ids"]);
    backup(&scene, "home", "tree");
    std::thread::sleep(STALE);
    assert_eq!(names(&top), ["home", "ids"]);
    let first = fs::read_link(top.join("home/latest")).unwrap();
    let open = File::open(shown(&scene, "home", "tree").join("large")).unwrap();
    fs::write(scene.path("tree/directory/0"), "changed").unwrap();
    backup(&scene, "home", "tree");
    std::thread::sleep(STALE);
    assert_ne!(fs::read_link(top.join("home/latest")).unwrap(), first);
    assert_eq!(fs::read(shown(&scene, "home", "tree").join("directory/0")).unwrap(), b"changed");
    assert_eq!(names(&top.join("home")).len(), 3);
    // Whoever has a file open reads it to its end.
    scene.run(["forget", "--name", "home", "--keep-last", "1"]).succeeds();
    scene.run(["prune"]).succeeds();
    std::thread::sleep(STALE);
    assert_eq!(names(&top.join("home")).len(), 2);
    assert!(!top.join("home").join(&first).exists());
    let mut bytes = vec![0; 20 << 20];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == noise(99, 20 << 20));
    drop(open);
    scene.check();
}

#[test]
fn a_mount_beside_a_daemon_outlives_it() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    grow(&scene.path("tree"));
    let daemon = scene.serve();
    backup(&scene, "home", "tree");
    let _mounted = mount(&scene, &[]);
    assert_same_tree(&scene.path("tree"), &shown(&scene, "home", "tree"));
    daemon.kill();
    // Without a daemon it opens the store itself.
    backup(&scene, "other", "tree/directory");
    std::thread::sleep(STALE);
    assert_eq!(names(&shown(&scene, "other", "tree/directory")).len(), 40);
    let daemon = scene.serve();
    backup(&scene, "third", "tree/directory");
    std::thread::sleep(STALE);
    assert_eq!(fs::read(shown(&scene, "third", "tree/directory").join("39")).unwrap(), noise(39, 39 * 39 * 50));
    daemon.stop();
}

#[test]
fn a_mount_of_a_server_has_what_the_account_may_read() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    grow(&scene.path("tree"));
    backup(&scene, "secret", "tree");
    scene.run(["account", "create", "ann", "--secret-file", "ann.secret"]).succeeds();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let daemon = scene.serve_with(&["--nbd", "none", "--nbd-socket", "nbd.sock", "--backup", &free.to_string()]);
    let at_server = |arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.env_remove("ONEFOLD_STORE").env("ONEFOLD_REPOSITORY", format!("onefold://ann@{free}")).env("HOME", scene.path("home"));
        command.args(["--secret-file", "ann.secret", "--server-fingerprint"]).arg(fingerprint(&scene));
        command
    };
    Running::start(&mut at_server(&["backup", "--name", "ann", "tree"])).finish().succeeds();
    let place = scene.path("mounted");
    let _mounted = Served::start(&mut at_server(&["mount", "--foreground", "mounted", "--retry", "1s"]), &place).unwrap();
    assert_eq!(names(&place), ["ann", "ids"]);
    assert_eq!(names(&place.join("ids")).len(), 1);
    assert_same_tree(&scene.path("tree"), &shown(&scene, "ann", "tree"));
    // The server dies: errors, and no program hangs.
    daemon.kill();
    std::thread::sleep(STALE);
    let begun = Instant::now();
    assert!(fs::read_dir(&place).and_then(|mut names| names.next().unwrap()).is_err());
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let daemon = scene.serve_with(&["--nbd", "none", "--nbd-socket", "nbd.sock", "--backup", &free.to_string()]);
    std::thread::sleep(STALE);
    let large = shown(&scene, "ann", "tree").join("large");
    assert!(fs::read(large).unwrap() == noise(99, 20 << 20), "it connects again");
    daemon.stop();
}

/// The fingerprint of the server's certificate.
fn fingerprint(scene: &Scene) -> String {
    let pem = scene.store().join("backup.pem");
    let run = client("openssl", ["x509", "-in", pem.to_str().unwrap(), "-noout", "-fingerprint", "-sha256"]);
    String::from_utf8(run.succeeds().out).unwrap().trim().rsplit('=').next().unwrap().replace(':', "").to_lowercase()
}

#[test]
fn a_mount_whose_process_dies_gives_errors_and_says_how_to_go_on() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    grow(&scene.path("tree"));
    backup(&scene, "home", "tree");
    let mut mounted = mount(&scene, &[]);
    let open = File::open(shown(&scene, "home", "tree").join("large")).unwrap();
    mounted.process.kill();
    assert!(open.read_exact_at(&mut [0; 10], 15 << 20).is_err());
    assert!(fs::read_dir(scene.path("mounted")).is_err());
    drop(open);
    let said = refused(&scene, &["mount", "mounted"], "is a mount whose process has ended");
    assert!(said.contains("fusermount3 -u"), "{said}");
}

#[test]
fn a_place_where_nothing_can_be_mounted_is_refused_with_advice() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    fs::write(scene.path("file"), "x").unwrap();
    refused(&scene, &["mount", "nowhere"], "No such file or directory");
    refused(&scene, &["mount", "file"], "is no directory");
    let _mounted = mount(&scene, &[]);
    refused(&scene, &["mount", "mounted"], "something is mounted at");
    let text = scene.run(["--store", "nothing", "mount", "mounted"]).text();
    assert!(text.contains("nothing"), "{text}");
}

#[test]
fn a_mount_in_the_background_is_there_when_the_command_ends() {
    if !has_fuse() || !installed(&["fusermount3"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    grow(&scene.path("tree"));
    backup(&scene, "home", "tree");
    fs::create_dir(scene.path("mounted")).unwrap();
    let said = scene.run(["mount", "mounted"]).succeeds();
    assert!(said.text().contains("unmount them with `fusermount3 -u"), "{}", said.text());
    assert_eq!(fs::read(shown(&scene, "home", "tree").join("directory/9")).unwrap(), noise(9, 81 * 50));
    client("fusermount3", [Path::new("-u"), &scene.path("mounted")]).succeeds();
    assert!(names(&scene.path("mounted")).is_empty());
}

#[test]
fn an_ordinary_user_mounts_too() {
    if !has_fuse() || !installed(&["fusermount3"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(scene.path("own")).unwrap();
    std::os::unix::fs::chown(scene.path("own"), Some(12345), Some(12345)).unwrap();
    let as_user = |arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.uid(12345).gid(12345).env("ONEFOLD_STORE", scene.path("own/store")).env("HOME", scene.path("own"));
        command
    };
    let run = |arguments: &[&str]| Running::start(&mut as_user(arguments)).finish();
    let init = run(&["init", "own/store"]);
    if init.text().contains("ermission denied") && init.code != 0 {
        return println!("skipped: another user cannot run the program here: {}", init.text());
    }
    init.succeeds();
    fs::create_dir(scene.path("tree")).unwrap();
    fs::write(scene.path("tree/file"), noise(1, 100_000)).unwrap();
    run(&["backup", "--name", "home", "tree"]).succeeds();
    fs::create_dir(scene.path("own/place")).unwrap();
    std::os::unix::fs::chown(scene.path("own/place"), Some(12345), Some(12345)).unwrap();
    let place = scene.path("own/place");
    let mut mounted = match Served::start(&mut as_user(&["mount", "--foreground", "own/place"]), &place) {
        Ok(mounted) => mounted,
        Err(run) => return println!("skipped: users cannot mount here: {}", run.text()),
    };
    let file = place.join("home/latest").join(scene.path("tree/file").strip_prefix("/").unwrap());
    let mut read = std::process::Command::new("cat");
    assert!(Running::start(read.arg(&file).uid(12345).gid(12345)).finish().succeeds().out == noise(1, 100_000));
    assert!(fs::read(&file).is_err(), "it is the user's alone");
    mounted.process.terminate();
    mounted.ends();
    assert!(!mounted.is_mounted());
}

#[test]
fn a_damaged_file_is_an_error_and_the_others_are_there() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(&[], "");
    fs::create_dir(scene.path("tree")).unwrap();
    for number in 0..8u64 {
        fs::write(scene.path("tree").join(number.to_string()), noise(number, 3 << 20)).unwrap();
    }
    backup(&scene, "home", "tree");
    // Bytes in the middle of the largest containers.
    let mut containers: Vec<PathBuf> = Vec::new();
    let mut left = vec![scene.store().to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false if entry.metadata().unwrap().len() > 3 << 20 => containers.push(entry.path()),
                false => {}
            }
        }
    }
    containers.sort();
    let container = File::options().write(true).open(&containers[0]).unwrap();
    container.write_all_at(&[0x55; 600_000], 1 << 20).unwrap();
    let _mounted = mount(&scene, &[]);
    let tree = shown(&scene, "home", "tree");
    let mut damaged = 0;
    for number in 0..8u64 {
        match fs::read(tree.join(number.to_string())) {
            Ok(bytes) => assert!(bytes == noise(number, 3 << 20)),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
                damaged += 1;
            }
        }
    }
    assert!((1..5).contains(&damaged), "{damaged} of 8 files are damaged");
}
