//! `dedup` through the binary: what a sampled index missed goes later (M3.4, M3.7).

mod support;

use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};
use support::{Scene, noise};

const PIECE_BYTES: usize = 8 << 10;
const PIECES: usize = 4000;

/// A store of which the memory has no room for its hooks and catalogs, with the same data once as a large file and once
/// in pieces.
fn with_duplicates(more: &str) -> (Scene, Vec<u8>) {
    let scene = Scene::with_store(&["--profile", "sampled", "--chunk-size", "1KiB", "--container-size", "1MiB", "--compression", "none"]);
    let settings = format!("[memory]\nsampled_index = \"4KiB\"\ncatalog_cache = \"1MiB\"\n{more}");
    fs::write(scene.store().join("onefold.toml"), settings).unwrap();
    let data = noise(1, PIECES * PIECE_BYTES);
    fs::create_dir(scene.path("large")).unwrap();
    fs::write(scene.path("large/all"), &data).unwrap();
    fs::create_dir(scene.path("pieces")).unwrap();
    for number in 0..PIECES {
        // Neighbours by name come from far apart.
        let at = number * 1009 % PIECES * PIECE_BYTES;
        fs::write(scene.path(&format!("pieces/{number:04}")), &data[at..at + PIECE_BYTES]).unwrap();
    }
    for name in ["large", "pieces"] {
        scene.run(["backup", "--name", name, name]).succeeds();
    }
    (scene, data)
}

fn stats(scene: &Scene) -> Value {
    scene.run(["stats", "--json"]).succeeds().json()
}

fn is_whole(scene: &Scene, data: &[u8]) {
    scene.run(["check", "--read-data"]).succeeds();
    for name in ["large", "pieces"] {
        scene.run(["restore", &format!("latest:{name}"), "--target", "back"]).succeeds();
    }
    let back = |name: &str| scene.path("back").join(scene.path(name).strip_prefix("/").unwrap());
    assert!(fs::read(back("large/all")).unwrap() == data);
    for number in [0, 1, PIECES / 2, PIECES - 1] {
        let at = number * 1009 % PIECES * PIECE_BYTES;
        assert!(fs::read(back(&format!("pieces/{number:04}"))).unwrap() == data[at..at + PIECE_BYTES]);
    }
}

#[test]
fn m3_4_what_was_missed_is_joined_later_and_its_space_is_free() {
    let (scene, data) = with_duplicates("");
    let before = stats(&scene);
    assert!(before["missed_duplicates_estimate"].as_u64().unwrap() > 1 << 20, "{before}");
    let would = scene.run(["dedup", "--dry-run", "--json"]).succeeds().json();
    assert!(would["duplicate_bytes"].as_u64().unwrap() > 4 << 20, "{would}");
    assert_eq!((&would["chunks"], &would["dry_run"], &would["freed_bytes"]), (&before["chunks"], &true.into(), &0.into()));
    let done = scene.run(["dedup", "--max-unused", "0", "--json"]).succeeds().json();
    for key in ["chunks", "duplicate_chunks", "duplicate_bytes", "complete"] {
        assert_eq!(done[key], would[key], "{key}: {done}");
    }
    assert_eq!(done["removed_chunks"], would["duplicate_chunks"]);
    let after = stats(&scene);
    let freed = before["disk_bytes"].as_u64().unwrap() - after["disk_bytes"].as_u64().unwrap();
    assert!(freed > would["duplicate_bytes"].as_u64().unwrap() / 2, "{before} {after}");
    assert_eq!(after["missed_duplicates_estimate"], 0);
    is_whole(&scene, &data);
    let text = scene.run(["dedup"]).succeeds().out;
    assert!(text.contains("joined       0 chunks that were stored already, 0B before compression"), "{text}");
    scene.run(["forget", "latest:large", "--yes"]).succeeds();
    scene.run(["prune", "--max-unused", "0"]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn m3_4_the_daemon_joins_what_was_missed_by_itself() {
    let (scene, data) = with_duplicates("[reclamation]\ninterval_seconds = 1\nmax_unused_percent = 0\nmax_fill_percent = 100\n");
    let before = stats(&scene);
    let would = scene.run(["dedup", "--dry-run", "--json"]).succeeds().json();
    let served = scene.serve(&[]);
    let begun = Instant::now();
    let wanted = before["chunks"].as_u64().unwrap() - would["duplicate_chunks"].as_u64().unwrap();
    while stats(&scene)["chunks"].as_u64().unwrap() > wanted {
        assert!(begun.elapsed() < Duration::from_secs(120), "the daemon joined nothing");
        std::thread::sleep(Duration::from_millis(200));
    }
    let beside = scene.run(["dedup", "--json"]).succeeds().json();
    assert_eq!(beside["duplicate_chunks"], 0);
    assert_eq!(served.stop().0, 0);
    is_whole(&scene, &data);
}

#[test]
fn m3_6_changed_files_find_what_the_previous_backup_had() {
    const FILE_BYTES: usize = 12 << 10;
    let scene = Scene::with_store(&["--profile", "sampled", "--chunk-size", "1KiB", "--container-size", "1MiB", "--compression", "none"]);
    fs::write(scene.store().join("onefold.toml"), "[memory]\nsampled_index = \"4KiB\"\ncatalog_cache = \"1MiB\"\n").unwrap();
    let data = noise(1, 4000 * FILE_BYTES);
    fs::create_dir(scene.path("tree")).unwrap();
    for (number, bytes) in data.chunks(FILE_BYTES).enumerate() {
        fs::write(scene.path(&format!("tree/{number:04}")), bytes).unwrap();
    }
    fs::write(scene.path("tree/large"), noise(2, 8 << 20)).unwrap();
    let backup = || scene.run(["backup", "--name", "tree", "tree", "--json"]).succeeds().json()["added_bytes"].as_u64().unwrap();
    backup();
    // One in ten changes in one place. Their neighbours are not read at all.
    let mut changed_bytes = 0;
    for (number, bytes) in data.chunks(FILE_BYTES).enumerate().step_by(10) {
        let mut bytes = bytes.to_vec();
        bytes[number % FILE_BYTES] ^= 1;
        fs::write(scene.path(&format!("tree/{number:04}")), &bytes).unwrap();
        changed_bytes += FILE_BYTES as u64;
    }
    let mut large = noise(2, 8 << 20);
    (0..large.len()).step_by(1 << 20).for_each(|at| large[at] ^= 1);
    fs::write(scene.path("tree/large"), &large).unwrap();
    let added = backup();
    assert!(added < changed_bytes / 3, "{added} of {changed_bytes} bytes in files that changed a little were stored again");
    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    let back = scene.path("back").join(scene.path("tree/large").strip_prefix("/").unwrap());
    assert!(fs::read(back).unwrap() == large);
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn a_store_that_finds_every_duplicate_has_nothing_to_join() {
    for profile in ["exact", "marked"] {
        let scene = Scene::with_store(&["--profile", profile]);
        fs::write(scene.path("file"), noise(1, 100_000)).unwrap();
        scene.run(["backup", "--name", "file", "file"]).succeeds();
        let run = scene.run(["dedup"]).succeeds();
        assert!(run.out.contains("nothing to do"), "{}", run.out);
        let done = scene.run(["dedup", "--json"]).succeeds().json();
        assert_eq!((&done["duplicate_chunks"], &done["complete"]), (&0.into(), &true.into()));
    }
    // In append-only mode nothing may go.
    let scene = Scene::with_store(&["--profile", "sampled"]);
    fs::write(scene.path("secret"), "a secret that is long enough").unwrap();
    scene.run(["append-only", "on", "--secret-file", "secret"]).succeeds();
    let refused = scene.run(["dedup"]);
    assert!(refused.code != 0 && refused.err.contains("append-only"), "{}", refused.err);
}
