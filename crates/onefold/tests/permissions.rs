//! Nobody but its owner, and a group that it is shared with, can read a store.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::Scene;

/// A user and a group that own nothing on any machine.
const NOBODY: u32 = 65_534;
const GROUP: u32 = 54_321;

/// The program, started by a shell that sets the umask.
fn with_umask(scene: &Scene, umask: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_onefold")]).args(arguments);
    command.env("ONEFOLD_STORE", scene.store()).current_dir(scene.path("")).stdin(Stdio::null());
    command
}

fn runs(scene: &Scene, umask: &str, arguments: &[&str]) {
    let done = with_umask(scene, umask, arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Every file and directory of a tree with its mode.
fn modes(path: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) {
    let found = path.symlink_metadata().unwrap();
    visit(path, &found);
    if found.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| modes(&entry.unwrap().path(), visit));
    }
}

fn all_have(store: &Path, directory: u32, file: u32) {
    let mut files = 0;
    modes(store, &mut |path, found| {
        let expected = if found.is_dir() { directory } else { file };
        assert_eq!(found.mode() & 0o7777, expected, "{}: {:o}", path.display(), found.mode());
        files += 1;
    });
    assert!(files > 10, "a store has files");
}

/// Works with the store in every way that makes files.
fn work(scene: &Scene, umask: &str) {
    fs::write(scene.path("secret"), "root:$6$secret").unwrap();
    runs(scene, umask, &["backup", "--name", "etc", "secret"]);
    runs(scene, umask, &["volume", "create", "disk", "--size", "1MiB"]);
    runs(scene, umask, &["forget", "latest", "--yes"]);
    runs(scene, umask, &["prune"]);
    runs(scene, umask, &["backup", "--name", "etc", "secret"]);
}

/// A daemon that serves; killed when this is dropped.
struct Serving(Child);

impl Serving {
    fn start(mut command: Command) -> Serving {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("serving"), "{line}");
        Serving(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn all_that_is_in_a_store_is_for_its_owner_alone_whatever_the_umask_is() {
    for umask in ["000", "022", "377"] {
        let scene = Scene::new();
        runs(&scene, umask, &["init", "store"]);
        work(&scene, umask);
        all_have(&scene.store(), 0o700, 0o600);

        let _daemon = Serving::start(with_umask(&scene, umask, &["serve", "--json", "--nbd-socket", "nbd.sock"]));
        assert!(scene.store().join("control").exists());
        all_have(&scene.store(), 0o700, 0o600);
        assert_eq!(scene.path("nbd.sock").symlink_metadata().unwrap().mode() & 0o777, 0o600);
    }
}

#[test]
fn an_empty_directory_that_is_given_to_init_is_closed_to_others() {
    let scene = Scene::new();
    fs::create_dir(scene.store()).unwrap();
    fs::set_permissions(scene.store(), fs::Permissions::from_mode(0o777)).unwrap();
    runs(&scene, "022", &["init", "store"]);
    all_have(&scene.store(), 0o700, 0o600);

    let other = scene.path("used");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("mine"), "").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = scene.run(["init", "used"]).ends_with(2);
    refused.says(&["not empty"]);
    assert_eq!(other.metadata().unwrap().mode() & 0o777, 0o755, "what is no new store is left as it is");
}

/// Runs the program as somebody else, who may pass through the scene's directory.
fn as_nobody(scene: &Scene, program: &Path, group: u32, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(program);
    command.args(arguments).uid(NOBODY).gid(group).env("ONEFOLD_STORE", scene.store()).current_dir("/").stdin(Stdio::null());
    command.output().unwrap()
}

/// Where others can start the program.
fn program_for_all(scene: &Scene) -> std::path::PathBuf {
    let program = scene.path("onefold");
    fs::copy(env!("CARGO_BIN_EXE_onefold"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn another_user_neither_reads_a_store_nor_keeps_its_owner_waiting() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let scene = Scene::new();
    runs(&scene, "022", &["init", "store"]);
    work(&scene, "022");
    let program = program_for_all(&scene);
    let secret = scene.path("secret");
    let read = as_nobody(&scene, &program, NOBODY, &["dump", "latest:etc", secret.to_str().unwrap()]);
    assert_eq!(read.status.code(), Some(2), "{}", String::from_utf8_lossy(&read.stderr));
    assert!(read.stdout.is_empty());
    let lock = scene.store().join("lock");
    let held = Command::new("flock").args(["-n", "-s"]).arg(&lock).arg("true").uid(NOBODY).gid(NOBODY).output().unwrap();
    assert!(!held.status.success(), "nobody else takes the lock");
}

#[test]
fn what_root_makes_for_the_backup_server_belongs_to_the_owner_of_the_store() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give files away");
        return;
    }
    let scene = Scene::with_store(&[]);
    modes(&scene.store(), &mut |path, _| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap());
    let (code, _) = scene.serve(&["--backup", "127.0.0.1:0"]).stop();
    assert_eq!(code, 0);
    for name in ["backup.pem", "backup.key", "logs", "logs/access.log"] {
        assert!(scene.store().join(name).exists(), "{name}");
    }
    all_have(&scene.store(), 0o700, 0o600);
    modes(&scene.store(), &mut |path, found| assert_eq!(found.uid(), NOBODY, "{}", path.display()));
}

#[test]
fn members_of_the_group_of_a_shared_store_work_with_it_and_nobody_else_does() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let scene = Scene::new();
    runs(&scene, "022", &["init", "store", "--group", &GROUP.to_string()]);
    work(&scene, "077");
    let program = program_for_all(&scene);
    for arguments in [&["backups"][..], &["volume", "create", "theirs", "--size", "1MiB"], &["check"]] {
        let done = as_nobody(&scene, &program, GROUP, arguments);
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(as_nobody(&scene, &program, NOBODY, arguments).status.code(), Some(2), "{arguments:?}");
    }
    // What a member made is the owner's too.
    runs(&scene, "077", &["volume", "delete", "theirs"]);
    all_have(&scene.store(), 0o2770, 0o660);
    modes(&scene.store(), &mut |path, found| assert_eq!(found.gid(), GROUP, "{}", path.display()));

    let daemon = scene.serve(&[]);
    assert_eq!(scene.store().join("control").symlink_metadata().unwrap().mode() & 0o777, 0o660);
    let done = as_nobody(&scene, &program, GROUP, &["volume", "list"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(!as_nobody(&scene, &program, NOBODY, &["volume", "list"]).status.success());
    // The daemon writes into no other store for them: it may have rights that they have not.
    let other = scene.path("other");
    fs::create_dir(&other).unwrap();
    std::os::unix::fs::chown(&other, Some(NOBODY), Some(GROUP)).unwrap();
    let copy = ["copy", "--to", other.to_str().unwrap(), "--init", "--volume", "disk"];
    let refused = as_nobody(&scene, &program, GROUP, &copy);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && said.contains("only the user with number 0"), "{said}");
    assert!(as_nobody(&scene, &program, GROUP, &["volume", "list", "--store", copy[2]]).stdout.is_empty());
    // Members who may only read are not stopped by a socket that a killed daemon has left.
    drop(daemon);
    assert!(Command::new("chmod").args(["-R", "g-w"]).arg(scene.store()).status().unwrap().success());
    let done = as_nobody(&scene, &program, GROUP, &["volume", "list"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn only_an_option_shares_a_store_not_a_group_that_its_directory_inherited() {
    let scene = Scene::new();
    fs::create_dir(scene.store()).unwrap();
    fs::set_permissions(scene.store(), fs::Permissions::from_mode(0o2775)).unwrap();
    runs(&scene, "002", &["init", "store"]);
    work(&scene, "002");
    all_have(&scene.store(), 0o700, 0o600);
}

#[test]
fn an_unknown_group_is_refused_before_anything_is_made() {
    let scene = Scene::new();
    scene.run(["init", "store", "--group", "no-such-group-here"]).ends_with(2).says(&["no-such-group-here"]);
    assert!(!scene.store().exists());
}

#[test]
fn check_names_a_store_that_others_can_read_and_how_to_close_it() {
    let scene = Scene::with_store(&[]);
    let exposed = || scene.run(["check", "--json"]).succeeds().json()["exposed_to"].clone();
    assert!(exposed().is_null());
    // As older versions made it.
    modes(&scene.store(), &mut |path, found| {
        let mode = if found.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    });
    assert_eq!(exposed(), "everybody");
    let found = scene.run(["check"]).succeeds();
    assert!(found.out.contains("every user of this machine") && found.out.contains("chmod -R go= STORE"), "{}", found.out);
    assert!(Command::new("chmod").args(["-R", "go="]).arg(scene.store()).status().unwrap().success());
    assert!(exposed().is_null());

    // Open to the group, which it is not shared with.
    modes(&scene.store(), &mut |path, found| {
        let mode = if found.is_dir() { 0o750 } else { 0o640 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    });
    assert_eq!(exposed(), "group");
}
