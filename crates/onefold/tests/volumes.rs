//! Volumes end to end through the binary: make, copy in and out, serve.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use support::{Run, Scene, noise};

const MIB: u64 = 1 << 20;

#[test]
fn volumes_are_made_listed_resized_and_deleted() {
    let scene = Scene::with_store(&[]);
    assert_eq!(scene.run(["volume", "list"]).succeeds().out, "");
    let made = scene.run(["volume", "create", "disk", "--size", "1TiB", "--json"]).succeeds().json();
    assert_eq!((&made["name"], &made["size"], &made["block_size"]), (&"disk".into(), &(1u64 << 40).into(), &(256u64 << 10).into()));
    scene.run(["volume", "create", "disk", "--size", "1GiB"]).ends_with(1).says(&["disk", "onefold volume list"]);
    scene
        .run(["volume", "create", "other", "--size", "1GiB", "--block-size", "64KiB", "--filter-chain", "block-index,chunk-index"])
        .succeeds();
    scene.run(["volume", "create", "bad", "--size", "1GiB", "--block-size", "3KiB"]).ends_with(2).says(&["power of two"]);
    scene.run(["volume", "create", "bad", "--size", "0"]).ends_with(2);
    let list = scene.run(["volume", "list", "--json"]).succeeds().json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["filter_chain"], &list[1]["filter_chain"]), (&serde_json::Value::Null, &"block-index,chunk-index".into()));
    scene.run(["volume", "resize", "disk", "--size", "2TiB"]).succeeds();
    assert!(scene.run(["volume", "list"]).succeeds().out.contains("2TiB"));
    scene.run(["volume", "delete", "disk", "--yes"]).succeeds();
    scene.run(["volume", "delete", "disk", "--yes"]).ends_with(1).says(&["disk"]);
    assert_eq!(scene.run(["volume", "list", "--json"]).succeeds().json().as_array().unwrap().len(), 1);
}

#[test]
fn settings_that_drop_the_bloom_filter_leave_volumes_that_name_it() {
    let scene = Scene::with_store(&[]);
    let settings = scene.store().join("onefold.toml");
    fs::write(&settings, "[filter]\nchain = [\"bloom\", \"chunk-index\"]\n").unwrap();
    scene.run(["volume", "create", "v", "--size", "1MiB", "--filter-chain", "bloom,chunk-index"]).succeeds();
    fs::write(scene.path("image"), noise(5, MIB as usize)).unwrap();
    fs::write(&settings, "").unwrap();
    scene.run(["volume", "import", "v", "image"]).succeeds();
    let list = scene.run(["volume", "list", "--json"]).succeeds().json();
    assert_eq!(list[0]["filter_chain"], "bloom,chunk-index");
}

#[test]
fn an_import_whose_input_ends_by_the_same_ctrl_c_is_not_taken_for_done() {
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "v", "--size", "1MiB"]).succeeds();
    let mut command = scene.command(["volume", "import", "v", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // It watches for signals before it takes the lock.
    while !fs::read(scene.store().join("lock")).is_ok_and(|line| String::from_utf8_lossy(&line).contains("volume import")) {
        assert!(child.try_wait().unwrap().is_none(), "the import ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    drop(child.stdin.take());
    Run::from(child.wait_with_output().unwrap()).ends_with(130).says(&["not complete"]);
}

#[test]
fn an_image_goes_in_and_comes_out_with_its_holes() {
    let scene = Scene::with_store(&[]);
    let image = fs::File::create_new(scene.path("image")).unwrap();
    image.set_len(64 * MIB + 12345).unwrap();
    image.write_all_at(&noise(3, MIB as usize), 0).unwrap();
    image.write_all_at(&noise(4, MIB as usize), 40 * MIB + 4096).unwrap();
    image.write_all_at(b"the end", 64 * MIB + 12345 - 7).unwrap();
    scene.run(["volume", "create", "v", "--size", "67121209"]).succeeds();
    scene.run(["volume", "import", "v", "image"]).succeeds();
    scene.run(["volume", "export", "v", "out"]).succeeds();
    assert!(fs::read(scene.path("image")).unwrap() == fs::read(scene.path("out")).unwrap());
    assert!(fs::metadata(scene.path("out")).unwrap().blocks() * 512 < 8 * MIB, "holes stay holes");
    scene.run(["volume", "export", "v", "out"]).ends_with(2).says(&["already exists"]);
    let stats = scene.run(["stats", "--json"]).succeeds().json();
    assert!(stats["unique_bytes"].as_u64().unwrap() < 3 * MIB, "{stats}");
    assert!(scene.run(["volume", "export", "v", "-"]).succeeds().bytes == fs::read(scene.path("image")).unwrap());

    fs::File::create_new(scene.path("large")).unwrap().set_len(65 * MIB).unwrap();
    scene.run(["volume", "import", "v", "large"]).ends_with(1).says(&["65MiB", "onefold volume resize"]);
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn an_image_comes_through_standard_input() {
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "v", "--size", "4MiB"]).succeeds();
    let mut child = scene.command(["volume", "import", "v", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&noise(5, 3_000_001)).unwrap();
    Run::from(child.wait_with_output().unwrap()).succeeds();
    let out = scene.run(["volume", "export", "v", "-"]).succeeds().bytes;
    assert!(out[..3_000_001] == noise(5, 3_000_001) && out[3_000_001..].iter().all(|byte| *byte == 0) && out.len() as u64 == 4 * MIB);
}

#[test]
fn serve_says_what_it_serves_and_stops_cleanly() {
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "my disk", "--size", "16MiB"]).succeeds();
    let served = scene.serve(&[]);
    assert_eq!((&served.event["event"], &served.event["volumes"][0]["name"]), (&"serving".into(), &"my disk".into()));
    let address = served.event["addresses"][0].as_str().unwrap().to_owned();
    assert!(address.starts_with("nbd://127.0.0.1:"), "{address}");
    let port = address.trim_end_matches('/').rsplit(':').next().unwrap();
    std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let (code, said) = served.stop();
    assert_eq!(code, 0);
    assert!(said.contains("\"event\":\"stopped\""), "{said}");
    scene.run(["check"]).succeeds();
}

#[test]
fn what_a_client_writes_is_there_after_a_restart() {
    if Command::new("qemu-io").arg("--version").output().is_err() {
        println!("skipped: qemu-io is not installed (apt-get install qemu-utils)");
        return;
    }
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "disk", "--size", "16MiB"]).succeeds();
    let io = |served: &support::Served, mode: &[&str], commands: &[&str]| {
        let address = format!("{}disk", served.event["addresses"][0].as_str().unwrap());
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw"]).args(mode);
        commands.iter().for_each(|command| {
            qemu.args(["-c", command]);
        });
        let run = Run::from(qemu.arg(address).output().unwrap()).succeeds();
        assert!(!run.out.contains("failed"), "{}", run.out);
    };
    let served = scene.serve(&[]);
    io(&served, &[], &["write -P 0x5a 0 1M", "write -P 0x33 5000000 4096", "flush"]);
    assert_eq!(served.stop().0, 0);
    let served = scene.serve(&["--read-only"]);
    // Others may read the store meanwhile, none may write.
    scene.run(["check"]).succeeds();
    scene.run(["volume", "create", "other", "--size", "1MiB"]).ends_with(2).says(&["serve"]);
    io(&served, &["-r"], &["read -P 0x5a 0 1M", "read -P 0x33 5000000 4096", "read -P 0 1M 1M"]);
    assert_eq!(served.stop().0, 0);
    scene.run(["check", "--read-data"]).succeeds();
}

/// Bytes of a volume by its name.
fn content(scene: &Scene, name: &str) -> Vec<u8> {
    scene.run(["volume", "export", name, "-"]).succeeds().bytes
}

#[test]
fn m0_21_snapshots_and_clones_are_made_listed_compared_rolled_back_to_and_deleted() {
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "disk", "--size", "4MiB"]).succeeds();
    fs::write(scene.path("old"), noise(5, 3 * MIB as usize)).unwrap();
    scene.run(["volume", "import", "disk", "old"]).succeeds();
    let before = content(&scene, "disk");
    let run = scene.run(["volume", "snapshot", "disk", "monday"]).succeeds();
    assert_eq!(run.out, "made snapshot monday of disk, 4MiB\n");
    fs::write(scene.path("new"), noise(6, MIB as usize / 2)).unwrap();
    scene.run(["volume", "import", "disk", "new"]).succeeds();
    let after = content(&scene, "disk");
    assert!(content(&scene, "monday") == before && after != before);

    let run = scene.run(["volume", "diff", "monday", "disk"]).succeeds();
    assert_eq!(run.out, "0..524288  512KiB\n");
    assert_eq!(
        scene.run(["volume", "diff", "monday", "disk", "--json"]).succeeds().json_lines(),
        [serde_json::json!({"offset": 0, "length": 524288})]
    );
    assert_eq!(scene.run(["volume", "diff", "disk", "disk"]).succeeds().out, "");

    let made = scene.run(["volume", "clone", "monday", "test", "--json"]).succeeds().json();
    assert_eq!(made, serde_json::json!({"name": "test", "kind": "clone", "origin": "monday", "read_only": false, "size": 4 * MIB}));
    scene.run(["volume", "import", "test", "new"]).succeeds();
    assert!(content(&scene, "test") == after && content(&scene, "monday") == before);
    scene.run(["volume", "clone", "disk", "frozen", "--read-only"]).succeeds();
    let list = scene.run(["volume", "list", "--json"]).succeeds().json();
    let facts: Vec<_> =
        list.as_array().unwrap().iter().map(|item| [&item["name"], &item["kind"], &item["read_only"], &item["origin"]]).collect();
    assert_eq!(
        serde_json::json!(facts),
        serde_json::json!([
            ["disk", "volume", false, null],
            ["frozen", "clone", true, "disk"],
            ["monday", "snapshot", true, "disk"],
            ["test", "clone", false, "monday"]
        ])
    );
    let table = scene.run(["volume", "list"]).succeeds().out;
    assert!(table.contains("clone, read-only") && table.contains("snapshot"), "{table}");

    scene.run(["volume", "rollback", "disk", "monday", "--yes"]).succeeds().says(&["disk is now as snapshot monday is"]);
    assert!(content(&scene, "disk") == before);
    scene.run(["volume", "delete", "monday", "--yes"]).succeeds();
    assert!(content(&scene, "disk") == before && content(&scene, "test") == after && content(&scene, "frozen") == after);
    assert!(scene.run(["volume", "list"]).succeeds().out.contains("monday (deleted)"));
    scene.run(["check", "--read-data"]).succeeds();
    for name in ["disk", "test", "frozen"] {
        scene.run(["volume", "delete", name, "--yes"]).succeeds();
    }
    scene.run(["check"]).succeeds();
}

#[test]
fn m0_21_what_cannot_be_done_with_snapshots_says_why_and_what_to_do() {
    let scene = Scene::with_store(&[]);
    for (name, block) in [("disk", "64KiB"), ("other", "256KiB")] {
        scene.run(["volume", "create", name, "--size", "1MiB", "--block-size", block]).succeeds();
    }
    scene.run(["volume", "snapshot", "disk", "monday"]).succeeds();
    scene.run(["volume", "snapshot", "other", "tuesday"]).succeeds();
    scene.run(["volume", "snapshot", "disc", "x"]).ends_with(1).says(&["no volume \"disc\"", "did you mean disk?"]);
    scene.run(["volume", "snapshot", "disk", "monday"]).ends_with(1).says(&["monday", "already"]);
    scene.run(["volume", "snapshot", "disk", "a/b"]).ends_with(2).says(&["it has a /"]);
    scene.run(["volume", "snapshot", "monday", "x"]).ends_with(1).says(&["read-only", "onefold volume clone monday"]);
    scene.run(["volume", "resize", "monday", "--size", "2MiB"]).ends_with(1).says(&["read-only"]);
    fs::write(scene.path("image"), b"x").unwrap();
    scene.run(["volume", "import", "monday", "image"]).ends_with(1).says(&["read-only", "onefold volume clone monday"]);
    scene.run(["volume", "rollback", "monday", "monday", "--yes"]).ends_with(1).says(&["read-only"]);
    scene.run(["volume", "rollback", "disk", "other", "--yes"]).ends_with(1).says(&["is not a snapshot", "volume list"]);
    scene
        .run(["volume", "rollback", "disk", "tuesday", "--yes"])
        .ends_with(1)
        .says(&["is not a snapshot of volume", "onefold volume clone tuesday"]);
    scene.run(["volume", "diff", "disk", "other"]).ends_with(1).says(&["65536", "262144"]);
    scene.run(["volume", "clone", "monday"]).ends_with(2);
}

#[test]
fn m0_21_snapshots_are_made_and_served_beside_the_clients_of_a_daemon() {
    if Command::new("qemu-io").arg("--version").output().is_err() {
        println!("skipped: qemu-io is not installed (apt-get install qemu-utils)");
        return;
    }
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "disk", "--size", "16MiB"]).succeeds();
    let served = scene.serve(&[]);
    let io = |name: &str, mode: &[&str], commands: &[&str]| {
        let address = format!("{}{name}", served.event["addresses"][0].as_str().unwrap());
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw"]).args(mode);
        commands.iter().for_each(|command| {
            qemu.args(["-c", command]);
        });
        Run::from(qemu.arg(address).output().unwrap())
    };
    let reads = |name: &str, command: &str| {
        let run = io(name, &["-r"], &[command]).succeeds();
        assert!(!run.out.contains("failed"), "{name}: {}", run.out);
    };
    // Not flushed: what a client wrote before the command is in the snapshot all the same.
    io("disk", &[], &["write -P 0x5a 0 8M"]).succeeds();
    scene.run(["volume", "snapshot", "disk", "monday"]).succeeds();
    // The default export is still the only volume.
    io("", &[], &["write -P 0x33 1M 4M", "flush"]).succeeds();
    reads("monday", "read -P 0x5a 0 8M");
    reads("disk", "read -P 0x33 1M 4M");
    assert_ne!(io("monday", &[], &["write 0 4k"]).code, 0, "a snapshot is exported read-only");
    scene.run(["volume", "clone", "monday", "test"]).succeeds();
    io("test", &[], &["write -P 0x77 0 1M", "flush"]).succeeds();
    reads("test", "read -P 0x5a 1M 7M");
    reads("monday", "read -P 0x5a 0 8M");
    assert_eq!(scene.run(["volume", "diff", "monday", "disk"]).succeeds().out, "1048576..5242880  4MiB\n");
    scene.run(["volume", "rollback", "disk", "monday", "--yes"]).succeeds();
    reads("disk", "read -P 0x5a 0 8M");
    scene.run(["volume", "delete", "monday", "--yes"]).succeeds();
    reads("test", "read -P 0x77 0 1M");
    assert_eq!(served.stop().0, 0);
    scene.run(["check", "--read-data"]).succeeds();
}
