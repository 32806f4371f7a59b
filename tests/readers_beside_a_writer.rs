//! Processes that read beside one that writes: neither waits for the other, and what somebody reads is not removed
//! (B.12).

use onefold_tests::{Run, Running, Scene, noise};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Far more than a pipe holds.
const LARGE_BYTES: usize = 6 << 20;

/// Small containers and a small log, so that a little data has many containers and the log is trimmed.
const SETTINGS: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"4MiB\"\n[memory]\nauxiliary_index = \"1MiB\"\n";

fn scene() -> Scene {
    let scene = Scene::new(&[], SETTINGS);
    write(&scene, 1);
    scene
}

/// The tree as of a generation: everything in it is new.
fn write(scene: &Scene, generation: u64) {
    let tree = scene.path("tree");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("large"), noise(generation * 10, LARGE_BYTES)).unwrap();
    for number in 0..40 {
        fs::write(tree.join(format!("small {number}")), noise(generation * 1000 + number, 3000)).unwrap();
    }
}

fn back_up(scene: &Scene) -> String {
    scene.run(["backup", "--name", "t", "--json", "tree"]).succeeds().json()["id"].as_str().unwrap().to_owned()
}

/// `dump` into a pipe of which the first bytes were read, and then nothing more: as by somebody who has left `less`
/// open.
struct Left {
    child: Child,
    out: BufReader<ChildStdout>,
    first: u8,
}

impl Left {
    fn open(scene: &Scene, backup: &str) -> Left {
        Left::start(scene.command(["dump", backup, &scene.text("tree/large")]))
    }

    fn start(mut command: Command) -> Left {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::with_capacity(1, child.stdout.take().unwrap());
        let mut first = [0];
        out.read_exact(&mut first).unwrap();
        Left { child, out, first: first[0] }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the rest; all that was written.
    fn finish(mut self) -> Vec<u8> {
        let mut bytes = vec![self.first];
        self.out.get_mut().read_to_end(&mut bytes).unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        bytes
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn leases(scene: &Scene) -> usize {
    fs::read_dir(scene.store().join("leases")).unwrap().count()
}

fn container_bytes(scene: &Scene) -> u64 {
    fn of(directory: &Path) -> u64 {
        let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
        entries.map(|entry| if entry.path().is_dir() { of(&entry.path()) } else { entry.metadata().unwrap().len() }).sum()
    }
    of(&scene.store().join("containers"))
}

#[test]
fn b12_a_dump_that_nobody_reads_does_not_stop_backup_forget_and_prune() {
    let scene = scene();
    let first = back_up(&scene);
    let left = Left::open(&scene, &first);
    write(&scene, 2);
    let second = back_up(&scene);
    write(&scene, 3);
    let third = back_up(&scene);

    // What nobody sees goes at once, beside the reader.
    let before = container_bytes(&scene);
    scene.run(["forget", &second, "--yes"]).succeeds();
    let pruned = scene.run(["prune", "--json", "--max-unused", "0%"]).succeeds().json();
    assert_eq!((&pruned["complete"], &pruned["kept_for"]), (&true.into(), &serde_json::Value::Null), "{pruned}");
    assert!(container_bytes(&scene) + (LARGE_BYTES as u64) / 2 < before, "{pruned}");

    // What it reads stays, though it is forgotten, until it has ended.
    scene.run(["forget", &first, "--yes"]).succeeds();
    let pruned = scene.run(["prune", "--json", "--max-unused", "0%"]).succeeds().json();
    assert_eq!((&pruned["complete"], &pruned["removed_chunks"]), (&false.into(), &0.into()), "{pruned}");
    let kept = pruned["kept_for"].as_str().unwrap();
    assert!(kept.contains("`dump`") && kept.contains(&left.pid().to_string()), "{kept}");
    let told = scene.run(["prune"]).succeeds().text();
    assert!(told.contains("kept") && told.contains("`dump`"), "{told}");
    assert!(left.finish() == noise(10, LARGE_BYTES));
    assert_eq!(leases(&scene), 0);

    let pruned = scene.run(["prune", "--json", "--max-unused", "0%"]).succeeds().json();
    assert!(pruned["complete"] == true && pruned["removed_chunks"].as_u64() > Some(100), "{pruned}");
    scene.check();
    assert!(scene.run(["dump", &third, &scene.text("tree/large")]).succeeds().out == noise(30, LARGE_BYTES));
}

#[test]
fn b12_a_killed_reader_holds_nothing_up() {
    let scene = scene();
    let first = back_up(&scene);
    let mut left = Left::open(&scene, &first);
    write(&scene, 2);
    back_up(&scene);
    scene.run(["forget", &first, "--yes"]).succeeds();
    assert_eq!(scene.run(["prune", "--json"]).succeeds().json()["complete"], false);
    left.child.kill().unwrap();
    left.child.wait().unwrap();
    assert_eq!(leases(&scene), 1, "it could not take its lease with it");
    let pruned = scene.run(["prune", "--json", "--max-unused", "0%"]).succeeds().json();
    assert!(pruned["complete"] == true && pruned["removed_chunks"].as_u64() > Some(100), "{pruned}");
    assert_eq!(leases(&scene), 0);
    scene.check();
}

#[test]
fn b12_a_backup_under_way_does_not_stop_those_who_read() {
    let scene = scene();
    let first = back_up(&scene);
    let big = scene.path("big");
    fs::create_dir_all(&big).unwrap();
    for number in 0..60 {
        fs::write(big.join(format!("{number}")), noise(7000 + number, 4 << 20)).unwrap();
    }
    let mut backup = Running::start(&mut scene.command(["backup", "--name", "big", "big"]));
    let large = scene.text("tree/large");
    let mut rounds = 0;
    while !backup.has_ended() {
        assert!(scene.run(["dump", &first, &large]).succeeds().out == noise(10, LARGE_BYTES));
        assert!(scene.run(["ls", "latest:t"]).succeeds().text().contains("small 39"));
        assert!(scene.run(["backups", "--json"]).succeeds().json()[0]["id"] == first.as_str());
        scene.run(["stats", "--json"]).succeeds();
        scene.run(["diff", &first, &first]).succeeds();
        scene.run(["restore", &first, "--target", &format!("restored{rounds}")]).succeeds();
        rounds += 1;
    }
    backup.finish().succeeds();
    assert!(rounds > 0, "the backup was over before anybody read");
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json().as_array().unwrap().len(), 2);
    scene.check();
}

#[test]
fn b12_restore_works_beside_a_daemon_and_is_not_harmed_by_its_reclamation() {
    let scene = scene();
    let first = back_up(&scene);
    scene.volume("disk", "64MiB");
    let left = Left::open(&scene, &first);
    let daemon = scene.serve();
    let mut client = daemon.connect("disk");
    client.write(0, &noise(9, 1 << 20)).unwrap();
    scene.run(["restore", &first, "--target", "out"]).succeeds();
    let restored = scene.path("out").join(scene.path("tree").strip_prefix("/").unwrap());
    assert!(fs::read(restored.join("large")).unwrap() == noise(10, LARGE_BYTES));
    scene.run(["forget", &first, "--yes"]).succeeds();
    let pruned = scene.run(["prune", "--json"]).succeeds().json();
    assert!(pruned["complete"] == false && pruned["kept_for"].as_str().unwrap().contains("`dump`"), "{pruned}");
    assert!(left.finish() == noise(10, LARGE_BYTES));
    assert_eq!(scene.run(["prune", "--json", "--max-unused", "0%"]).succeeds().json()["complete"], true);
    drop(client);
    daemon.stop();
    scene.check();
}

#[test]
fn b12_a_repair_needs_the_store_alone_and_says_who_reads() {
    let scene = scene();
    let first = back_up(&scene);
    let left = Left::open(&scene, &first);
    for option in ["--repair", "--rebuild-index"] {
        let refused = scene.run(["check", option]).ends_with(2);
        assert!(refused.text().contains("`dump`") && refused.text().contains(&left.pid().to_string()), "{}", refused.text());
    }
    let mut waiting = Running::start(&mut scene.command(["check", "--repair", "--wait"]));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!waiting.has_ended());
    drop(left);
    let repaired = waiting.finish().succeeds();
    assert!(repaired.text().contains("waiting for `dump`"), "{}", repaired.text());
}

#[test]
fn b12_a_second_writer_waits_or_is_told_who_has_the_store() {
    let scene = scene();
    back_up(&scene);
    scene.volume("disk", "64MiB");
    let daemon = scene.serve();
    let pid = daemon.pid().to_string();
    let refused = scene.run(["volume", "import", "disk", "tree/large"]).ends_with(2);
    assert!(refused.text().contains("`serve`") && refused.text().contains(&pid), "{}", refused.text());
    let began = Instant::now();
    let refused = scene.run(["volume", "import", "disk", "--wait=1s", "tree/large"]).ends_with(2);
    assert!(refused.text().contains("waiting for `serve`") && began.elapsed() >= Duration::from_secs(1), "{}", refused.text());
    let mut waiting = Running::start(&mut scene.command(["volume", "import", "disk", "--wait", "tree/large"]));
    std::thread::sleep(Duration::from_millis(400));
    assert!(!waiting.has_ended());
    daemon.stop();
    let made = waiting.finish().succeeds();
    assert!(made.text().contains(&pid), "{}", made.text());
    let wrong: Run = scene.run(["backup", "--name", "t", "--wait=soon", "tree"]).ends_with(2);
    assert!(wrong.text().contains("30m"), "{}", wrong.text());
}

#[test]
fn b12_lists_that_nobody_reads_hold_nobody_up() {
    let scene = scene();
    for number in 0..300 {
        fs::write(scene.path("tree").join(format!("{number} {}", "long name ".repeat(20))), "x").unwrap();
    }
    let first = back_up(&scene);
    // More than a pipe holds.
    let mut ls = scene.command(["ls", &first]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::with_capacity(1, ls.stdout.take().unwrap());
    let began = Instant::now();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    write(&scene, 2);
    back_up(&scene);
    scene.run(["prune"]).succeeds();
    assert!(began.elapsed() < LIMIT);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(ls.wait().unwrap().success() && rest.contains("299 long name"));
}
