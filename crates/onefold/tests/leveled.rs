//! Profile `leveled` through the binary (M2.5 to M2.9).

mod support;

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use support::{Scene, noise, tree};

fn scene(more: &[&str]) -> Scene {
    Scene::with_store(&[&["--profile", "leveled", "--container-size", "256KiB"], more].concat())
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
