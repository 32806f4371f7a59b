//! Profile `leveled` through the binary (M2.5 to M2.9).

mod support;

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use support::{Scene, noise, tree};

fn scene(more: &[&str]) -> Scene {
    Scene::with_store(&[&["--profile", "leveled", "--container-size", "256KiB"], more].concat())
}

/// Keeps the tables as memtables become them: nothing is compacted because of their number.
fn without_compaction(scene: &Scene) {
    let path = scene.store().join("onefold.toml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("# tables = 10\n"));
    fs::write(&path, text.replace("# tables = 10\n", "tables = 1000\n")).unwrap();
}

fn stats(scene: &Scene) -> Value {
    scene.run(["stats", "--json"]).succeeds().json()
}

/// Files of a partition or of all that end so.
fn files(scene: &Scene, end: &str) -> Vec<PathBuf> {
    let partitions = fs::read_dir(scene.store().join("levels")).unwrap().map(|entry| entry.unwrap().path());
    let files = partitions.flat_map(|partition| fs::read_dir(partition).unwrap().map(|entry| entry.unwrap().path()));
    files.filter(|path| path.to_str().unwrap().ends_with(end)).collect()
}

#[test]
fn m2_7_every_duplicate_is_found_and_everything_comes_back_also_after_compactions() {
    let scene = scene(&["--partitions", "2"]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..40 {
        fs::write(source.join(format!("file{number}")), noise(number, 200_000)).unwrap();
        fs::write(source.join(format!("again{number}")), noise(number, 200_000)).unwrap();
        if number % 10 == 9 {
            scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
        }
    }
    let now = stats(&scene);
    assert_eq!(now["store_profile"], "leveled");
    let unique = now["unique_bytes"].as_u64().unwrap();
    assert!((8_000_000..8_400_000).contains(&unique), "{unique}");
    let levels = now["levels"].as_array().unwrap();
    assert!(!levels.is_empty() && levels.iter().map(|level| level["chunks"].as_u64().unwrap()).sum::<u64>() > 500, "{levels:?}");
    assert_eq!(now["partition_bytes"].as_array().unwrap().len(), 2);
    assert!(scene.run(["stats"]).succeeds().out.contains("levels    0: "));
    scene.run(["check", "--read-data"]).succeeds();
    scene.run(["scrub"]).succeeds();
    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    let back = scene.path("back").join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
    assert!(tree(&back) == tree(&source));
}

#[test]
fn m2_8_space_of_removed_data_comes_back_by_compaction() {
    let scene = scene(&["--partitions", "1"]);
    fs::write(scene.path("image"), noise(2, 8 << 20)).unwrap();
    scene.run(["volume", "create", "disk", "--size", "16MiB"]).succeeds();
    scene.run(["volume", "import", "disk", "image"]).succeeds();
    scene.run(["volume", "export", "disk", "out"]).succeeds();
    assert!(fs::read(scene.path("out")).unwrap()[..8 << 20] == fs::read(scene.path("image")).unwrap());
    let room = || files(&scene, ".table").iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>();
    let full = room();
    assert!(full > 6 << 20, "{full}");
    scene.run(["volume", "delete", "disk", "--yes"]).succeeds();
    let pruned = scene.run(["prune", "--json"]).succeeds().json();
    assert!(pruned["removed_chunks"].as_u64().unwrap() >= 512, "{pruned}");
    assert!(room() < full / 8, "{} of {full} are left; {pruned}", room());
    assert_eq!(stats(&scene)["unique_bytes"], 0);
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn m2_6_a_table_that_is_gone_costs_its_chunks_and_a_repair_says_which_files_need_them() {
    let scene = scene(&["--partitions", "1"]);
    without_compaction(&scene);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..20 {
        fs::write(source.join(format!("file{number}")), noise(number, 200_000)).unwrap();
    }
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
    let tables = files(&scene, ".table");
    assert!(tables.len() > 2, "{tables:?}");
    fs::remove_file(&tables[0]).unwrap();
    let checked = scene.run(["check"]).ends_with(1);
    assert!(checked.out.contains("file") && checked.out.contains(".table"), "{}", checked.out);
    let repaired = scene.run(["check", "--repair"]).ends_with(1);
    assert!(repaired.out.contains("a table was given up"), "{}", repaired.out);
    // The same bytes once more, and all who lost them have them again.
    scene.run(["backup", "--name", "x", "--force-read", source.to_str().unwrap()]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
    scene.run(["restore", "latest", "--target", "again"]).succeeds();
}

#[test]
fn what_only_levels_have_is_refused_elsewhere_and_the_other_way_round() {
    let scene = Scene::new();
    scene.run(["init", "--partitions", "3", "other"]).ends_with(2).says(&["leveled"]);
    scene.run(["init", "--profile", "leveled", "--partitions", "0", "other"]).ends_with(2);
    scene.run(["init", "--profile", "leveled", "--index-tag", "big", "other"]).ends_with(2).says(&["cacheless"]);
    scene.run(["init", "--profile", "leveled", "--container-size", "128MiB", "other"]).ends_with(2).says(&["memtable"]);
}

fn partitions(scene: &Scene) -> Vec<Value> {
    scene.run(["partition", "list", "--json"]).succeeds().json().as_array().unwrap().clone()
}

#[test]
fn m2_10_a_partition_moves_to_another_disk_while_the_store_is_in_use_and_the_store_needs_that_disk_then() {
    let scene = scene(&["--partitions", "2"]);
    without_compaction(&scene);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..40 {
        fs::write(source.join(format!("file{number}")), noise(number, 200_000)).unwrap();
    }
    fs::create_dir(scene.path("disk2")).unwrap();
    let served = scene.serve(&[]);
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
    let before = partitions(&scene);
    assert_eq!(before.len(), 2);
    let full = (0..2).max_by_key(|number| before[*number]["tables"].as_u64()).unwrap().to_string();
    let at: usize = full.parse().unwrap();
    assert!(before[at]["tables"].as_u64().unwrap() > 2, "{before:?}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let more = scene.path("more");
            fs::create_dir(&more).unwrap();
            (100..130).for_each(|number| fs::write(more.join(format!("file{number}")), noise(number, 200_000)).unwrap());
            scene.run(["backup", "--name", "y", more.to_str().unwrap()]).succeeds();
        });
        let moved = scene.run(["partition", "move", &full, "disk2"]).succeeds().out;
        assert!(moved.starts_with("moved ") && moved.contains("/disk2/onefold-"), "{moved}");
    });
    let after = partitions(&scene);
    assert!(after[at]["directory"].as_str().unwrap().contains("/disk2/onefold-"), "{after:?}");
    assert_eq!(after[at]["tables_elsewhere"], 0);
    let link = scene.store().join(format!("levels/000{full}"));
    let own: Vec<_> = fs::read_dir(&link).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(own.iter().all(|name| !name.to_str().unwrap().ends_with(".table")), "{own:?}");
    scene.run(["check", "--read-data"]).succeeds();
    assert!(scene.run(["partition", "list"]).succeeds().out.contains("/disk2/onefold-"));
    assert_eq!(served.stop().0, 0);

    // The disk is not mounted.
    fs::rename(scene.path("disk2"), scene.path("away")).unwrap();
    for command in [&["stats"][..], &["backup", "--name", "x", source.to_str().unwrap()], &["check"]] {
        scene.run(command).ends_with(2).says(&["keeps tables in", "/disk2/onefold-", "mount its disk", "check --repair"]);
    }
    fs::rename(scene.path("away"), scene.path("disk2")).unwrap();
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();

    // A copy of the directory must not use the disk too: it would remove what it does not know.
    let copied = std::process::Command::new("cp").args(["-a"]).arg(scene.store()).arg(scene.path("copy")).status().unwrap();
    assert!(copied.success());
    // Not every file system knows when a directory was made.
    if fs::metadata(&link).unwrap().created().is_ok() {
        let refused = scene.run(["--store", "copy", "backup", "--name", "x", source.to_str().unwrap()]).ends_with(2);
        assert!(refused.err.contains("another copy of the store"), "{}", refused.err);
    }

    scene.run(["partition", "move", &full, "--home", "--json"]).succeeds();
    assert!(fs::read_dir(scene.path("disk2")).unwrap().next().is_none(), "the directory goes with its last table");
    scene.run(["check", "--read-data"]).succeeds();
    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    let back = scene.path("back").join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
    assert!(tree(&back) == tree(&source));
}

#[test]
fn m2_10_a_disk_that_is_lost_costs_its_tables_and_nothing_else() {
    let scene = scene(&["--partitions", "1"]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    (0..10).for_each(|number| fs::write(source.join(format!("file{number}")), noise(number, 200_000)).unwrap());
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
    fs::create_dir(scene.path("disk2")).unwrap();
    scene.run(["partition", "move", "0", "disk2"]).succeeds();
    fs::remove_dir_all(scene.path("disk2")).unwrap();
    scene.run(["check", "--repair"]).ends_with(2).says(&["home-1"]);
    fs::remove_file(scene.store().join("levels/0000/home-1")).unwrap();
    let repaired = scene.run(["check", "--repair"]).ends_with(1);
    assert!(repaired.out.contains("a table was given up"), "{}", repaired.out);
    scene.run(["backup", "--name", "x", "--force-read", source.to_str().unwrap()]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn m2_10_what_cannot_be_the_place_of_a_partition_is_refused() {
    let exact = Scene::with_store(&[]);
    exact.run(["partition", "list"]).ends_with(2).says(&["leveled"]);
    let scene = scene(&["--partitions", "1"]);
    scene.run(["partition", "move", "1", "/tmp"]).ends_with(2).says(&["no partition 1", "0 to 0"]);
    scene.run(["partition", "move", "0", "nowhere"]).ends_with(2).says(&["no directory", "mount"]);
    scene.run(["partition", "move", "0", scene.store().to_str().unwrap()]).ends_with(2).says(&["it is in the store", "--home"]);
    scene.run(["partition", "move", "0"]).ends_with(2);
    scene.run(["partition", "move", "0", "/tmp", "--home"]).ends_with(2);
    // Somebody else's things are there.
    fs::create_dir(scene.path("disk")).unwrap();
    scene.run(["partition", "move", "0", "disk"]).succeeds();
    let place = fs::read_dir(scene.path("disk")).unwrap().next().unwrap().unwrap().path();
    scene.run(["partition", "move", "0", "--home"]).succeeds();
    assert!(!place.exists());
    fs::create_dir(&place).unwrap();
    fs::write(place.join("mine"), "mine").unwrap();
    scene.run(["partition", "move", "0", "disk"]).ends_with(1).says(&["it is not empty: it has mine"]);
    scene.run(["backup", "--name", "x", place.to_str().unwrap()]).succeeds();
    assert_eq!(fs::read(place.join("mine")).unwrap(), b"mine");
    assert!(partitions(&scene)[0]["directory"].as_str().unwrap().ends_with("levels/0000"));
}
