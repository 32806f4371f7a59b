//! Large real loads in a mounted filesystem: a checkout of this project that is built, the Rust toolchain there and
//! back, and a million files. They take minutes each: `make simulate` runs them, `make test` does not.

use onefold_tests::{Run, Running, Scene, Served, assert_same_tree, client, has_fuse, installed};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(3600);
/// Files of the large tree, and how many of them are in one directory.
const FILES: u64 = 1_000_000;
const FILES_OF_DIRECTORY: u64 = 1000;

/// A filesystem, and the process that serves it.
struct Mount {
    scene: Scene,
    served: Option<Served>,
}

impl Mount {
    fn new() -> Mount {
        let scene = Scene::new(&[], "");
        scene.run(["fs", "create", "files"]).succeeds();
        let mut mount = Mount { scene, served: None };
        mount.mount();
        mount
    }

    fn place(&self) -> PathBuf {
        self.scene.path("files")
    }

    fn mount(&mut self) {
        let served = Served::start(&mut self.scene.command(["mount", "--foreground", "--fs", "files", "files"]), &self.place());
        self.served = Some(served.unwrap_or_else(|run| panic!("{}", run.text())));
    }

    fn unmount(&mut self) {
        let mut served = self.served.take().unwrap();
        let begun = Instant::now();
        client("umount", [self.place()]).succeeds();
        served.ends();
        println!("unmounted in {:?}", begun.elapsed());
    }

    /// Nothing is in any cache of the filesystem any more.
    fn remount(&mut self) {
        self.unmount();
        self.mount();
    }
}

/// Runs a program to its end, and says how long it took.
#[track_caller]
fn run<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Run {
    let begun = Instant::now();
    let run = Running::start(Command::new(program).args(arguments).stdin(Stdio::null())).finish_within(LIMIT).succeeds();
    println!("{:?}: {}", begun.elapsed(), run.name);
    run
}

#[test]
#[ignore = "minutes; make simulate"]
fn a_clone_of_this_project_is_built_in_a_filesystem() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    if !has_fuse() || !installed(&["git", "cargo"]) {
        return;
    }
    if !source.join(".git").exists() {
        println!("skipped: this is no checkout");
        return;
    }
    let mut mount = Mount::new();
    let clone = mount.place().join("clone");
    run("git", [OsStr::new("clone"), OsStr::new("--quiet"), source.as_os_str(), clone.as_os_str()]);
    let in_clone = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&clone).env_remove("CARGO_TARGET_DIR").stdin(Stdio::null());
        let begun = Instant::now();
        let run = Running::start(&mut command).finish_within(LIMIT).succeeds();
        println!("{:?}: {program} {}", begun.elapsed(), arguments.join(" "));
        run.text()
    };
    let build = ["build", "--offline", "--locked", "--verbose", "-p", "onefold-storage"];
    assert!(in_clone("cargo", &build).contains("Running `"));
    mount.remount();
    let again = in_clone("cargo", &build);
    assert!(again.contains("Fresh") && !again.contains("Running `"), "times are what they were: {again}");
    in_clone("git", &["fsck", "--full", "--strict"]);
    fs::remove_dir_all(clone.join("docs")).unwrap();
    in_clone("git", &["checkout", "--quiet", "--", "docs"]);
    in_clone("git", &["gc", "--quiet"]);
    assert_eq!(in_clone("git", &["status", "--porcelain"]), "");
    mount.unmount();
    mount.scene.check();
}

#[test]
#[ignore = "minutes; make simulate"]
fn rsync_brings_the_rust_toolchain_there_and_back() {
    if !has_fuse() || !installed(&["rsync", "rustc"]) {
        return;
    }
    let root = client("rustc", ["--print", "sysroot"]).succeeds().text();
    let root = PathBuf::from(root.trim());
    let mut mount = Mount::new();
    let (there, back) = (mount.place().join("toolchain"), mount.scene.path("back"));
    let sync = |options: &str, from: &Path, to: &Path| {
        run("rsync", [OsStr::new(options), OsStr::new("--delete"), from.join("").as_os_str(), to.as_os_str()]).text()
    };
    sync("-aHAX", &root, &there);
    assert_same_tree(&root, &there);
    mount.remount();
    sync("-aHAX", &there, &back);
    assert_same_tree(&root, &back);
    assert_eq!(sync("-aHAXin", &root, &there), "", "nothing is to be copied");
    assert_eq!(sync("-aHAXinc", &back, &there), "", "nothing is to be copied");
    mount.unmount();
    mount.scene.check();
}

#[test]
#[ignore = "minutes; make simulate"]
fn a_million_files_are_made_found_and_removed() {
    if !has_fuse() {
        return;
    }
    let mut mount = Mount::new();
    let tree = mount.place().join("tree");
    fs::create_dir(&tree).unwrap();
    let begun = Instant::now();
    for number in 0..FILES {
        let directory = tree.join((number / FILES_OF_DIRECTORY).to_string());
        if number % FILES_OF_DIRECTORY == 0 {
            fs::create_dir(&directory).unwrap();
        }
        fs::write(directory.join(number.to_string()), number.to_string()).unwrap();
    }
    File::open(&tree).unwrap().sync_all().unwrap();
    println!("{:?}: making {FILES} files", begun.elapsed());
    let count = |what: &str| {
        let found = run("find", [tree.as_os_str(), OsStr::new("-type"), OsStr::new(what), OsStr::new("-printf"), OsStr::new("x")]);
        found.out.len() as u64
    };
    assert_eq!((count("f"), count("d")), (FILES, FILES / FILES_OF_DIRECTORY + 1));
    mount.remount();
    assert_eq!((count("f"), count("d")), (FILES, FILES / FILES_OF_DIRECTORY + 1));
    for number in (0..FILES).step_by(997) {
        let path = tree.join((number / FILES_OF_DIRECTORY).to_string()).join(number.to_string());
        assert_eq!(fs::read_to_string(path).unwrap(), number.to_string());
    }
    run("rm", [OsStr::new("-r"), tree.as_os_str()]);
    assert_eq!(fs::read_dir(mount.place()).unwrap().count(), 0);
    mount.unmount();
    mount.scene.check();
    mount.scene.run(["prune", "--max-unused", "0"]).succeeds();
    mount.scene.check();
}
