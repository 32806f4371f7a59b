//! The papers' experiments as they are declared in `bench/papers`: all can be run, what modelled devices decide comes
//! out, and a report is made of it.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use support::Scene;

/// The declarations, in the order of their numbers.
fn declarations() -> Vec<PathBuf> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../bench/papers");
    (1..=10).map(|number| directory.join(format!("e0-{number}.toml"))).collect()
}

fn parsed() -> Vec<toml::Table> {
    declarations().iter().map(|path| fs::read_to_string(path).unwrap().parse().unwrap()).collect()
}

fn texts<'a>(table: &'a toml::Table, list: &str, key: &str) -> BTreeSet<&'a str> {
    let items = table.get(list).and_then(toml::Value::as_array);
    items.into_iter().flatten().filter_map(|item| item.get(key)?.as_str()).collect()
}

/// E0.1 to E0.10, as small as they go: only orders are asserted that devices decide by far, or that follow from the
/// data.
#[test]
fn e0_1_to_e0_10_run_and_are_reported() {
    let scene = Scene::new();
    let mut arguments: Vec<_> = ["bench", "run"].map(PathBuf::from).into();
    arguments.extend(declarations());
    let options = ["--size", "16MiB", "--repetitions", "1", "--strict", "--out", "results.json"];
    arguments.extend(options.map(PathBuf::from));
    scene.run(arguments).succeeds();
    scene.run(["bench", "report", "results.json", "--out", "report.html"]).succeeds().says(&["wrote report.html: 10 experiments"]);
    let page = fs::read_to_string(scene.path("report.html")).unwrap();
    for number in 1..=10 {
        assert!(page.contains(&format!("E0.{number}: ")), "E0.{number}");
    }
    for said in ["Devices are modelled.", "Bytes of chunks were thrown away", "Generation 1 is reconstructed.", "167.2 ± 3.4", "Venti"] {
        assert!(page.contains(said), "{said}");
    }
    assert!(!page.contains("ended early"));
}

/// There is no way for a declaration to take in another one: what must be the same in all of them is.
#[test]
fn declarations_have_the_same_base_and_the_same_devices() {
    let all = parsed();
    for (at, one) in all.iter().enumerate() {
        assert_eq!(one["id"].as_str(), Some(format!("E0.{}", at + 1).as_str()));
        for table in ["workload", "store", "settings", "scaled", "run", "parts"] {
            assert_eq!(one[table], all[0][table], "[{table}] of {}", one["id"]);
        }
        for (name, device) in one["devices"].as_table().unwrap() {
            assert_eq!(*device, all[0]["devices"][name.as_str()], "{name} of {}", one["id"]);
        }
        for key in ["title", "paper", "text", "differs"] {
            assert!(!one[key].as_str().unwrap().trim().is_empty(), "{key} of {}", one["id"]);
        }
    }
}

/// A figure of the paper under a name that none of ours has is one of another system, which only E0.10 has.
#[test]
fn figures_of_the_paper_stand_beside_variants() {
    for one in parsed().iter().filter(|one| one["id"].as_str() != Some("E0.10")) {
        let (ours, papers) = (texts(one, "variant", "name"), texts(one, "figure", "variant"));
        assert!(papers.is_subset(&ours), "{}: {papers:?} and {ours:?}", one["id"]);
    }
}

/// E2.1 to E2.5 on levels and on containers, with ours beside them, as small as they go.
#[test]
fn e2_1_to_e2_5_run_and_are_reported() {
    let scene = Scene::new();
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../bench/papers");
    let mut arguments: Vec<_> = ["bench", "run"].map(PathBuf::from).into();
    let names = ["e2-1", "e2-1-restore", "e2-2", "e2-3", "e2-4", "e2-4-pauses", "e2-5"];
    arguments.extend(names.map(|name| directory.join(format!("{name}.toml"))));
    let options = ["--size", "8MiB", "--repetitions", "1", "--strict", "--out", "results.json"];
    arguments.extend(options.map(PathBuf::from));
    scene.run(arguments).succeeds();
    let results: serde_json::Value = serde_json::from_slice(&fs::read(scene.path("results.json")).unwrap()).unwrap();
    for (run, generations) in results.as_array().unwrap().iter().zip([10, 11, 10, 20, 24, 1, 1]) {
        for variant in run["variants"].as_array().unwrap() {
            let name = format!("{} {}", run["about"]["id"], variant["name"]);
            let measured = variant["repetitions"][0].as_array().unwrap();
            assert_eq!((measured.len(), &variant["failure"]), (generations, &serde_json::Value::Null), "{name}");
            let has_levels = measured.iter().all(|one| one["levels"]["levels"].is_array());
            assert_eq!(has_levels, variant["settings"].as_str().unwrap().contains("store.profile = \"leveled\""), "{name}");
        }
    }
    scene.run(["bench", "report", "results.json", "--out", "report.html"]).succeeds().says(&["wrote report.html: 7 experiments"]);
    let page = fs::read_to_string(scene.path("report.html")).unwrap();
    for said in
        ["E2.5: ", "E2.1-restore: ", "E2.4-pauses: ", "Levels of leveled", "by the formula at most", "for each of 12 partitions disk"]
    {
        assert!(page.contains(said), "{said}");
    }
    assert!(!page.contains("ended early"));
}

/// E1.1 to E1.5 on a mounted filesystem and on the disk, as small as they go.
#[test]
fn e1_1_to_e1_5_run_on_a_mounted_filesystem() {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !std::path::Path::new("/dev/fuse").exists() {
        println!("skipped: it mounts, which needs root and /dev/fuse");
        return;
    }
    let scene = Scene::new();
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../bench/papers");
    let mut arguments: Vec<_> = ["bench", "run"].map(PathBuf::from).into();
    arguments.extend((1..=5).map(|number| directory.join(format!("e1-{number}.toml"))));
    let variants = ["ours", "ours, blocks of 4 KiB", "cacheless", "the disk", "status tags", "big tags", "slim area"];
    let variants: Vec<_> = variants.iter().flat_map(|name| ["--variant", name]).collect();
    let options = ["--size", "16MiB", "--repetitions", "1", "--strict", "--directory", ".", "--out", "results.json"];
    arguments.extend(variants.iter().chain(&options).map(PathBuf::from));
    scene.run(arguments).succeeds();
    let results: serde_json::Value = serde_json::from_slice(&fs::read(scene.path("results.json")).unwrap()).unwrap();
    let variants = |id: &str| {
        let of = results.as_array().unwrap().iter().find(|one| one["about"]["id"] == id).unwrap();
        of["variants"].as_array().unwrap().clone()
    };
    for (id, generations) in [("E1.1", 3), ("E1.2", 1), ("E1.3", 1), ("E1.4", 3), ("E1.5", 3)] {
        for variant in variants(id) {
            let measured = variant["repetitions"][0].as_array().unwrap();
            assert_eq!(measured.len(), generations, "{id} {}", variant["name"]);
            assert!(measured.iter().all(|one| one["written_bytes"] == 16 << 20), "{id} {}", variant["name"]);
        }
    }
    // The disk's own keeps each copy, the store one.
    let disk_bytes =
        |variant: usize, generation: usize| variants("E1.1")[variant]["repetitions"][0][generation]["disk_bytes"].as_u64().unwrap();
    assert!(disk_bytes(0, 2) < 4 << 20 && disk_bytes(3, 2) >= 16 << 20);
}
