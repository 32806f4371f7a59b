//! `check --repair` through the binary: a rotten container is named, repaired, and whole again after the next backup.

mod support;

use std::fs;
use std::path::PathBuf;
use support::{Scene, noise};

/// The container files of a store.
fn containers(scene: &Scene) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in fs::read_dir(scene.store().join("containers/0000")).unwrap() {
        found.extend(fs::read_dir(folder.unwrap().path()).unwrap().map(|file| file.unwrap().path()));
    }
    found.sort();
    found
}

/// Flips bytes of a file in its middle.
fn rot(path: &PathBuf) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 200].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_rotten_container_is_repaired_and_the_next_backup_makes_everything_whole() {
    let scene = Scene::with_store(&[]);
    fs::create_dir(scene.path("files")).unwrap();
    for number in 0..4 {
        fs::write(scene.path("files").join(format!("file-{number}")), noise(number, 3_000_000)).unwrap();
    }
    scene.run(["backup", "--name", "files", "files"]).succeeds();
    scene.run(["volume", "create", "disk", "--size", "2MiB"]).succeeds();
    fs::write(scene.path("image"), noise(99, 2 << 20)).unwrap();
    scene.run(["volume", "import", "disk", "image"]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
    let whole = scene.run(["check", "--repair"]).succeeds();
    assert!(whole.out.is_empty() && whole.err.contains("nothing had to be repaired"), "{}{}", whole.out, whole.err);

    let rotten = &containers(&scene)[0];
    let before = fs::read(rotten).unwrap();
    rot(rotten);
    scene.run(["check", "--read-data"]).ends_with(1);
    let tried = scene.run(["check", "--repair", "--dry-run", "--json"]).ends_with(1).json();
    let count = tried["newly_quarantined_chunks"].as_u64().unwrap();
    assert!(count > 0, "{tried}");
    assert_eq!(scene.run(["stats", "--json"]).succeeds().json()["quarantined_chunks"], 0);
    let done = scene.run(["check", "--repair", "--json"]).ends_with(1).json();
    assert_eq!(done["newly_quarantined_chunks"], count);
    assert_eq!(done["quarantined_chunks"], count);
    let listed = done["problems"].to_string();
    assert!(listed.contains("files/file-"), "{listed}");
    assert_eq!(scene.run(["stats", "--json"]).succeeds().json()["quarantined_chunks"], count);

    // Known, and nothing else; a second repair has nothing to do.
    let known = scene.run(["check", "--read-data", "--json"]).ends_with(1).json();
    for problem in known["problems"].as_array().unwrap() {
        assert!(problem["kind"] == "quarantined" || problem["kind"] == "affected", "{problem}");
    }
    assert_eq!(scene.run(["check", "--repair", "--json"]).ends_with(1).json()["actions"].as_array().unwrap().len(), 0);
    let failed = scene.run(["restore", "latest:files", "--target", "broken"]);
    assert!(failed.code != 0 && (failed.err.contains("file-") || failed.out.contains("file-")), "{}{}", failed.out, failed.err);

    // Files that look unchanged are read again where they need it.
    scene.run(["backup", "--name", "files", "files"]).succeeds();
    scene.run(["volume", "import", "disk", "image"]);
    scene.run(["check", "--read-data"]).succeeds();
    assert_eq!(scene.run(["stats", "--json"]).succeeds().json()["quarantined_chunks"], 0);
    let backups = scene.run(["backups", "--json"]).succeeds().json();
    assert_eq!(backups.as_array().map_or(2, Vec::len), 2);
    scene.run(["restore", "latest:files", "--target", "back"]).succeeds();
    let back = scene.path("back").join(scene.path("files").strip_prefix("/").unwrap());
    for number in 0..4 {
        assert_eq!(fs::read(back.join(format!("file-{number}"))).unwrap(), noise(number, 3_000_000));
    }
    scene.run(["prune", "--max-unused", "0"]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
    drop(before);
}

#[test]
fn a_lost_container_that_is_put_back_is_restored_and_repair_needs_the_store_for_itself() {
    let scene = Scene::with_store(&[]);
    fs::create_dir(scene.path("files")).unwrap();
    fs::write(scene.path("files/a"), noise(1, 6_000_000)).unwrap();
    scene.run(["backup", "--name", "files", "files"]).succeeds();
    for container in containers(&scene) {
        let aside = scene.path("aside");
        fs::rename(&container, &aside).unwrap();
        scene.run(["check", "--repair"]);
        fs::rename(&aside, &container).unwrap();
        scene.run(["check", "--repair"]).succeeds();
        scene.run(["check", "--read-data"]).succeeds();
    }
    let served = scene.serve(&[]);
    scene.run(["check", "--repair"]).ends_with(2).says(&["stop the daemon"]);
    assert_eq!(served.stop().0, 0);
    scene.run(["check", "--dry-run"]).ends_with(2);
}

#[test]
fn when_a_container_that_was_being_filled_is_gone_the_next_backup_makes_everything_whole() {
    let scene = Scene::with_store(&[]);
    fs::create_dir(scene.path("files")).unwrap();
    let file = scene.path("files").join("file");
    fs::write(&file, noise(1, 6_000_000)).unwrap();
    let back_up = || scene.run(["backup", "--name", "files", "--force-read", "files"]).succeeds();
    back_up();
    // Sealed ones have a footer; one that has nothing but a header holds nothing.
    let is_filled = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        bytes.len() > 4096 && !bytes[bytes.len() - 48..].starts_with(b"1FLDEND1")
    };
    let open: Vec<_> = containers(&scene).into_iter().filter(is_filled).collect();
    assert!(!open.is_empty());
    open.iter().for_each(|path| fs::remove_file(path).unwrap());
    scene.run(["check", "--repair"]).ends_with(1);
    back_up();
    // The log alone has part of them. Everybody reads that from there, also beside a writer.
    let found = scene.run(["check", "--read-data", "--json"]).succeeds().json();
    assert!(found["chunks"].as_u64() >= found["index_entries"].as_u64(), "{found}");
    let list = scene.run(["backups", "--json"]).succeeds().json();
    for backup in list.as_array().unwrap() {
        let dumped = scene.run(["dump", backup["id"].as_str().unwrap(), file.to_str().unwrap()]).succeeds();
        assert!(dumped.bytes == fs::read(&file).unwrap());
    }
}
