//! Profile `cacheless` through the binary (M1.1, M1.10).

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use support::{Scene, noise, tree};

const BLOCK: usize = 4096;

fn scene(more: &[&str]) -> Scene {
    Scene::with_store(&[&["--profile", "cacheless"], more].concat())
}

fn stats(scene: &Scene) -> Value {
    scene.run(["stats", "--json"]).succeeds().json()
}

/// Bytes that the file of blocks takes on the device.
fn room(scene: &Scene) -> u64 {
    fs::metadata(scene.store().join("arena/blocks")).unwrap().blocks() * 512
}

#[test]
fn m1_1_every_duplicate_block_is_found_and_everything_comes_back() {
    let scene = scene(&[]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    let data = noise(1, 600 * BLOCK + 17);
    fs::write(source.join("one"), &data).unwrap();
    // The same blocks in another order, and blocks of zeros.
    let mut other: Vec<u8> = data.chunks_exact(BLOCK).rev().flatten().copied().collect();
    other.extend(vec![0; 50 * BLOCK]);
    fs::write(source.join("other"), &other).unwrap();
    fs::write(source.join("small"), b"a few bytes").unwrap();
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
    let first = stats(&scene);
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
    assert_eq!(first["store_profile"], "cacheless");
    // 601 blocks of `one`, one of `small`, and those of recipes (24 pieces each, and some more) and of the directory.
    let chunks = first["chunks"].as_u64().unwrap();
    assert!((602..602 + 80).contains(&chunks), "{chunks}");
    // The directories above may have changed.
    assert!(stats(&scene)["chunks"].as_u64().unwrap() <= chunks + 4, "a second backup stores nothing");
    scene.run(["check", "--read-data"]).succeeds();
    scene.run(["scrub"]).succeeds();
    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    let back = scene.path("back").join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
    assert!(tree(&back) == tree(&source));
}

#[test]
fn m1_10_space_goes_back_to_the_device_and_is_used_again() {
    let scene = scene(&["--chunk-size", "16KiB"]);
    fs::write(scene.path("image"), noise(2, 8 << 20)).unwrap();
    scene.run(["volume", "create", "disk", "--size", "16MiB"]).succeeds();
    scene.run(["volume", "import", "disk", "image"]).succeeds();
    scene.run(["volume", "snapshot", "disk", "before"]).succeeds();
    let full = room(&scene);
    assert!(full >= 8 << 20, "{full}");
    scene.run(["volume", "delete", "before", "--yes"]).succeeds();
    scene.run(["volume", "delete", "disk", "--yes"]).succeeds();
    let removed = scene.run(["prune", "--json"]).succeeds().json();
    assert!(removed["removed_chunks"].as_u64().unwrap() >= 512, "{removed}");
    assert!(room(&scene) < full - (7 << 20), "{} of {full} are left", room(&scene));
    assert_eq!(stats(&scene)["unique_bytes"], 0);
    scene.run(["check", "--read-data"]).succeeds();
    let length = fs::metadata(scene.store().join("arena/blocks")).unwrap().len();
    scene.run(["volume", "create", "disk", "--size", "16MiB"]).succeeds();
    scene.run(["volume", "import", "disk", "image"]).succeeds();
    scene.run(["volume", "export", "disk", "out"]).succeeds();
    assert!(fs::read(scene.path("out")).unwrap()[..8 << 20] == fs::read(scene.path("image")).unwrap());
    assert_eq!(fs::metadata(scene.store().join("arena/blocks")).unwrap().len(), length, "free blocks were not used again");
}

#[test]
fn a_damaged_block_is_named_and_the_rest_comes_back() {
    let scene = scene(&[]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..4 {
        fs::write(source.join(format!("file {number}")), noise(number, 40 * BLOCK)).unwrap();
    }
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
    let wanted = &noise(2, 40 * BLOCK)[7 * BLOCK..8 * BLOCK];
    let blocks = fs::File::options().read(true).write(true).open(scene.store().join("arena/blocks")).unwrap();
    let mut block = vec![0; BLOCK];
    let at = (0..).map(|number| number * BLOCK as u64).find(|at| {
        blocks.read_exact_at(&mut block, *at).unwrap();
        block == wanted
    });
    blocks.write_all_at(&[!wanted[100]], at.unwrap() + 100).unwrap();
    let checked = scene.run(["check", "--read-data"]).ends_with(1);
    assert!(checked.out.contains("file 2") && checked.out.contains("its bytes have changed"), "{}", checked.out);
    let restored = scene.run(["restore", "latest", "--target", "back"]).ends_with(3);
    assert!(restored.err.contains("file 2"), "{}", restored.err);
    let back = scene.path("back").join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
    for number in [0, 1, 3] {
        assert!(fs::read(back.join(format!("file {number}"))).unwrap() == noise(number, 40 * BLOCK));
    }
    let would = scene.run(["check", "--repair", "--dry-run"]).ends_with(1);
    assert!(would.out.contains("1 chunk would be put in quarantine"), "{}", would.out);
    let repaired = scene.run(["check", "--repair"]).ends_with(1);
    assert!(repaired.out.contains("1 chunk was put in quarantine") && repaired.out.contains("file 2"), "{}", repaired.out);
    // The same bytes once more, and all who lost them have them again.
    scene.run(["backup", "--name", "x", "--force-read", source.to_str().unwrap()]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
    scene.run(["restore", "latest", "--target", "again"]).succeeds();
}

#[test]
fn m1_5_the_index_is_made_anew_from_the_blocks() {
    for layout in [&[][..], &["--index-tag", "big", "--index-area", "slim"]] {
        rebuilds(&scene(layout));
    }
}

fn rebuilds(scene: &Scene) {
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..4 {
        fs::write(source.join(format!("file {number}")), noise(number, 40 * BLOCK)).unwrap();
    }
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
    scene.run(["check", "--rebuild-index"]).succeeds();
    for part in ["blocks", "header"] {
        fs::remove_file(scene.store().join("index").join(part)).unwrap();
        scene.run(["check"]).ends_with(1).says(&["onefold check --repair"]);
        let repaired = scene.run(["check", "--repair"]).succeeds();
        assert!(repaired.out.contains("the chunk index is rebuilt"), "{}", repaired.out);
        scene.run(["check", "--read-data"]).succeeds();
    }
    let (blocks, away) = (scene.store().join("arena/blocks"), scene.path("away"));
    fs::rename(&blocks, &away).unwrap();
    for command in [&["check"][..], &["check", "--repair"], &["backups"]] {
        scene.run(command).ends_with(2).says(&["arena/blocks", "is missing", "mount its disk"]);
    }
    fs::rename(&away, &blocks).unwrap();
    // Rebuilding needs room for a second index, and takes it for a moment only.
    assert!(!scene.store().join("index/new").join("header").exists());
    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    let back = scene.path("back").join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
    for number in 0..4 {
        assert!(fs::read(back.join(format!("file {number}"))).unwrap() == noise(number, 40 * BLOCK));
    }
}

/// Metadata without references is not in a new index: what it refers to is not counted.
#[test]
fn m1_8_what_forgotten_backups_share_with_others_survives_a_rebuild_and_a_prune() {
    for is_stored_again in [false, true] {
        let scene = scene(&[]);
        let source = scene.path("source");
        fs::create_dir_all(source.join("below")).unwrap();
        for number in 0..4 {
            fs::write(source.join(format!("below/file {number}")), noise(number, 60 * BLOCK + 5)).unwrap();
        }
        let source = source.to_str().unwrap();
        scene.run(["backup", "--name", "a", source]).succeeds();
        if !is_stored_again {
            scene.run(["backup", "--name", "b", source]).succeeds();
        }
        let listed = scene.run(["backups", "--name", "a", "--json"]).succeeds().json();
        let id = listed.as_array().map_or(&listed, |all| &all[0])["id"].as_str().unwrap().to_owned();
        scene.run(["forget", &id, "--yes"]).succeeds();
        scene.run(["check", "--rebuild-index"]).succeeds();
        if is_stored_again {
            scene.run(["backup", "--name", "b", source]).succeeds();
        }
        scene.run(["prune"]).succeeds();
        scene.run(["check", "--read-data"]).succeeds();
        scene.run(["restore", "latest", "--target", "back"]).succeeds();
        let back = scene.path("back").join(fs::canonicalize(source).unwrap().strip_prefix("/").unwrap());
        assert!(tree(&back) == tree(std::path::Path::new(source)));
    }
}

#[test]
fn choices_that_blocks_cannot_have_are_refused() {
    let scene = Scene::new();
    for (options, what) in [
        (&["--compression", "lz4"][..], "does not compress"),
        (&["--chunker", "galois"], "fixed size"),
        (&["--chunk-min", "1KiB"], "one size"),
        (&["--container-size", "1MiB"], "no containers"),
        (&["--frame-size", "64KiB"], "no frames"),
        (&["--chunk-size", "5000"], "a power of two from 4KiB to 64KiB"),
        (&["--chunk-size", "128KiB"], "a power of two from 4KiB to 64KiB"),
        (&["--capacity", "1TiB"], "capacity"),
        (&["--index-area", "small"], "possible values: large, slim"),
    ] {
        let run = scene.run([&["init", "refused", "--profile", "cacheless"], options].concat());
        run.ends_with(2).says(&[what]);
        assert!(!scene.path("refused").exists());
    }
    for (option, value) in [("--index-tag", "big"), ("--index-area", "slim")] {
        scene.run(["init", "refused", option, value]).ends_with(2).says(&[option, "only profile `cacheless`"]);
    }
}

#[test]
fn links_that_are_longer_than_a_block_come_back() {
    let scene = scene(&[]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    // With a name of 200 bytes, an entry with such a target needs more than a block of 4 KiB.
    let link = |directory: &str, number: usize| {
        let target = format!("{number}/").repeat(4090).chars().take(4090).collect::<String>();
        fs::create_dir_all(source.join(directory)).unwrap();
        std::os::unix::fs::symlink(target, source.join(directory).join(format!("{number:0200}"))).unwrap();
    };
    (0..20).for_each(|number| link("kept", number));
    let backup = |name: &str| scene.run(["backup", "--name", name, source.to_str().unwrap()]).succeeds();
    backup("kept");
    (20..40).for_each(|number| link("more", number));
    backup("more");
    let chunks = |scene: &Scene| stats(scene)["chunks"].as_u64().unwrap();
    let both = chunks(&scene);
    backup("more");
    assert!(chunks(&scene) <= both + 4, "an unchanged tree stores nothing");
    let comes_back = |scene: &Scene, to: &str| {
        scene.run(["restore", "latest", "--target", to]).succeeds();
        let back = scene.path(to).join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
        assert!(tree(&back) == tree(&source));
    };
    comes_back(&scene, "back");
    let served = scene.serve(&[]);
    comes_back(&scene, "served");
    backup("more");
    assert_eq!(served.stop().0, 0);
    scene.run(["prune"]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
    scene.run(["check", "--rebuild-index"]).succeeds();
    for name in ["more", "kept"] {
        scene.run(["check", "--read-data"]).succeeds();
        let backups = scene.run(["backups", "--json"]).succeeds().json();
        for backup in backups.as_array().unwrap().iter().filter(|backup| backup["name"] == name) {
            scene.run(["forget", backup["id"].as_str().unwrap(), "--yes"]).succeeds();
        }
        scene.run(["prune"]).succeeds();
        scene.run(["check", "--read-data"]).succeeds();
        if name == "more" {
            assert!(chunks(&scene) < both - 20);
            fs::remove_dir_all(source.join("more")).unwrap();
            scene.run(["restore", "latest", "--target", "again"]).succeeds();
            let back = scene.path("again").join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
            assert!(tree(&back) == tree(&source));
        }
    }
    assert_eq!(stats(&scene)["unique_bytes"], 0);
}
