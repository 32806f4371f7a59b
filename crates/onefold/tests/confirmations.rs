//! What destroys data asks before, and scripts have to say that they mean it.

mod support;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use support::{Run, Scene, noise};

const MIB: usize = 1 << 20;

/// A volume of 4 MiB, of which the first and the last are data.
fn with_volume() -> Scene {
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "disk", "--size", "4MiB"]).succeeds();
    let mut image = noise(1, 4 * MIB);
    image[MIB..3 * MIB].fill(0);
    fs::write(scene.path("image"), &image).unwrap();
    scene.run(["volume", "import", "disk", "image"]).succeeds();
    scene
}

fn names(scene: &Scene) -> Vec<String> {
    let list = scene.run(["volume", "list", "--json"]).succeeds().json();
    list.as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap().to_owned()).collect()
}

/// Runs a command on a terminal of its own, types the answer, and returns what was shown.
fn on_a_terminal(scene: &Scene, arguments: &str, answer: &str) -> Option<Run> {
    let mut command = Command::new("script");
    let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_onefold"));
    command.args(["-qec", &line, "/dev/null"]).env("ONEFOLD_STORE", scene.store()).current_dir(scene.path(""));
    let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        println!("skipped: script is not installed");
        return None;
    };
    child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
    Some(Run::from(child.wait_with_output().unwrap()))
}

#[test]
fn without_a_terminal_what_destroys_data_is_refused_and_says_what_would_be_gone() {
    let scene = with_volume();
    scene.run(["volume", "snapshot", "disk", "monday"]).succeeds();
    fs::write(scene.path("other"), noise(2, MIB)).unwrap();
    scene.run(["volume", "import", "disk", "other"]).succeeds();
    scene.run(["backup", "--name", "mine", "image"]).succeeds();
    let refused: [(&[&str], &[&str]); 4] = [
        (&["volume", "delete", "disk"], &["volume disk of 4MiB", "1MiB of data", "1 volume stays"]),
        (&["volume", "rollback", "disk", "monday"], &["written to volume disk since snapshot monday", "1MiB differ"]),
        (&["volume", "resize", "disk", "--size", "3MiB"], &["cut off at 3MiB", "1MiB of data", "snapshot"]),
        (&["forget", "latest:mine"], &["1 backup is forgotten", "mine"]),
    ];
    for (arguments, expected) in refused {
        scene.run(arguments).ends_with(2).says(expected).says(&["no terminal", "--yes"]);
    }
    assert_eq!(names(&scene), ["disk", "monday"]);
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json().as_array().unwrap().len(), 1);
    scene.run(["volume", "export", "disk", "out"]).succeeds();
    assert_eq!(&fs::read(scene.path("out")).unwrap()[..MIB], noise(2, MIB));

    // A daemon asks the one who typed the command.
    let daemon = scene.serve(&[]);
    for (arguments, expected) in refused {
        scene.run(arguments).ends_with(2).says(expected).says(&["no terminal", "--yes"]);
    }
    scene.run(["volume", "rollback", "disk", "monday", "--yes"]).succeeds();
    assert_eq!(daemon.stop().0, 0);
    scene.run(["forget", "latest:mine", "-y"]).succeeds();
    scene.run(["volume", "delete", "disk", "-y"]).succeeds();
    assert_eq!(names(&scene), ["monday"]);
}

#[test]
fn a_terminal_is_asked_and_only_yes_goes_on() {
    let scene = with_volume();
    for answer in ["n\n", "\n", "what?\n"] {
        let Some(run) = on_a_terminal(&scene, "volume delete disk", answer) else { return };
        assert_eq!(run.code, 1, "{}{}", run.out, run.err);
        assert!(
            run.out.contains("volume disk of 4MiB") && run.out.contains("[y/N]") && run.out.contains("nothing was done"),
            "{}",
            run.out
        );
    }
    assert_eq!(names(&scene), ["disk"]);
    let daemon = scene.serve(&[]);
    let run = on_a_terminal(&scene, "volume delete disk", "n\n").unwrap();
    assert!(run.code == 1 && run.out.contains("[y/N]"), "{}", run.out);
    let run = on_a_terminal(&scene, "volume delete disk", "y\n").unwrap();
    assert_eq!(run.code, 0, "{}", run.out);
    assert_eq!(daemon.stop().0, 0);
    assert!(names(&scene).is_empty());
}

#[test]
fn a_volume_that_becomes_smaller_leaves_a_snapshot_unless_told_otherwise() {
    let scene = with_volume();
    let image = fs::read(scene.path("image")).unwrap();
    scene.run(["volume", "resize", "disk", "--size", "3MiB", "--yes"]).succeeds().says(&["before-shrink"]);
    let list = names(&scene);
    assert!(list.len() == 2 && list[1].starts_with("disk.before-shrink-2"), "{list:?}");
    scene.run(["volume", "export", &list[1], "kept"]).succeeds();
    assert!(fs::read(scene.path("kept")).unwrap() == image, "what was cut off is in the snapshot");
    // There is no data behind 1 MiB now: nothing is lost, and nobody is asked.
    scene.run(["volume", "resize", "disk", "--size", "1MiB"]).succeeds();
    scene.run(["volume", "resize", "disk", "--size", "512KiB", "--yes", "--no-snapshot"]).succeeds();
    assert_eq!(names(&scene).len(), 2);
}

#[test]
fn an_export_overwrites_files_only_with_force_and_nothing_in_the_store() {
    let scene = with_volume();
    let image = fs::read(scene.path("image")).unwrap();
    fs::write(scene.path("precious"), "mine").unwrap();
    scene.run(["volume", "export", "disk", "precious"]).ends_with(2).says(&["precious already exists", "--force"]);
    assert_eq!(fs::read(scene.path("precious")).unwrap(), b"mine");
    scene.run(["volume", "export", "disk", "precious", "--force"]).succeeds();
    assert!(fs::read(scene.path("precious")).unwrap() == image);
    for place in ["store/onefold.toml", "store/new", "store/log/new", "store/../store/new"] {
        scene.run(["volume", "export", "disk", place, "--force"]).ends_with(2).says(&["in the store itself"]);
        scene.run(["volume", "import", "disk", place]).ends_with(2).says(&["in the store itself"]);
    }
    scene.run(["check"]).succeeds();
}

/// A loop device on a file; detached when this is dropped.
struct Loop(String);

impl Loop {
    fn on(file: &std::path::Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        (made.status.success() && !name.is_empty()).then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A mounted file system; unmounted when this is dropped.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn an_export_never_overwrites_a_device_that_is_mounted_too_small_or_not_meant() {
    let scene = with_volume();
    let file = scene.path("device");
    fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
    let has_mkfs = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&file).status().is_ok_and(|status| status.success());
    let Some(device) = Loop::on(&file).filter(|_| has_mkfs) else {
        println!("skipped: no loop device or no mkfs.ext4 here");
        return;
    };
    let before = fs::read(&file).unwrap();
    let point = scene.path("point");
    fs::create_dir(&point).unwrap();
    assert!(Command::new("mount").arg(&device.0).arg(&point).status().unwrap().success());
    let mounted = Mounted(point);
    scene.run(["volume", "export", "disk", &device.0]).ends_with(2).says(&["block device", "--force"]);
    scene.run(["volume", "export", "disk", &device.0, "--force"]).ends_with(1).says(&["in use", "mounted"]);
    drop(mounted);
    scene.run(["volume", "create", "large", "--size", "32MiB"]).succeeds();
    scene.run(["volume", "export", "large", &device.0, "--force"]).ends_with(1).says(&["too small", "16MiB", "32MiB"]);
    // The super block is where it was; mounting has changed no more than times and counts in it.
    let kept = fs::read(&file).unwrap();
    assert!(kept[1080..1082] == [0x53, 0xef] && kept[2 << 20..] == before[2 << 20..], "the file system is as it was");

    scene.run(["volume", "export", "disk", &device.0, "--force"]).succeeds();
    drop(device);
    assert!(fs::read(&file).unwrap()[..4 * MIB] == fs::read(scene.path("image")).unwrap());
}

#[test]
fn a_volume_gets_another_name_and_tells_what_is_known_of_it() {
    let scene = with_volume();
    scene.run(["volume", "snapshot", "disk", "monday"]).succeeds();
    scene.run(["volume", "rename", "disk", "monday"]).ends_with(1).says(&["monday"]);
    scene.run(["volume", "rename", "dusk", "x"]).ends_with(1).says(&["did you mean disk"]);
    scene.run(["volume", "rename", "disk", "a/b"]).ends_with(2);
    scene.run(["volume", "rename", "disk", "root"]).succeeds();
    assert_eq!(names(&scene), ["monday", "root"]);
    let daemon = scene.serve(&[]);
    scene.run(["volume", "rename", "root", "system"]).succeeds();
    let info = scene.run(["volume", "info", "system", "--json"]).succeeds().json();
    assert_eq!((&info["size"], &info["data_bytes"], &info["kind"]), (&(4 << 20).into(), &(2 << 20).into(), &"volume".into()));
    assert_eq!(info["derived"][0]["name"], "monday");
    assert_eq!(daemon.stop().0, 0);
    let said = scene.run(["volume", "info", "monday"]).succeeds().out;
    assert!(said.contains("snapshot monday, read-only") && said.contains("2MiB"), "{said}");
    scene.run(["volume", "export", "system", "out"]).succeeds();
    assert!(fs::read(scene.path("out")).unwrap() == fs::read(scene.path("image")).unwrap());
    scene.run(["check"]).succeeds();
}

#[test]
fn a_missing_store_names_the_variable_and_both_variables_name_a_store() {
    let scene = Scene::with_store(&[]);
    let without = |arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.env_remove("ONEFOLD_STORE").env_remove("ONEFOLD_REPOSITORY");
        command
    };
    Run::from(without(&["backups"]).output().unwrap()).ends_with(2).says(&["--store", "ONEFOLD_STORE"]);
    for arguments in [&["--store", "store", "backups"][..], &["backups", "--repository", "store"], &["volume", "--store=store", "list"]] {
        Run::from(without(arguments).output().unwrap()).succeeds();
    }
    Run::from(without(&["backups"]).env("ONEFOLD_REPOSITORY", scene.store()).output().unwrap()).succeeds();
}
