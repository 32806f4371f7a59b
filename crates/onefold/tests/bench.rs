//! `onefold bench`: tiny experiments over every face, whose figures are known; what is refused; ^C.

mod support;

use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{Run, Scene};

const MIB: u64 = 1 << 20;

const TINY: &str = r#"
id = "T"
title = "Every face"
paper = "none"
[workload]
size = "8MiB"
clients = 2
generations = 2
[store]
compression = "none"
[settings]
filter.chain = ["chunk-index"]
memory.auxiliary_index = "16MiB"
log.limit = "32MiB"
[scaled]
settings = ["memory.auxiliary_index"]
[run]
request = "64KiB"
[devices.slow]
read_us = 200
[parts]
chunk-index = "slow*2"
[[figure]]
variant = "in process"
generation = 2
quantity = "throughput"
value = 160.3
plus_minus = 4.3
[[expect]]
quantity = "new-percent"
generation = 1
more = "in process"
less = "nbd"
quick = true
[[variant]]
name = "in process"
[[variant]]
name = "nbd"
run = { face = "nbd", depth = 4 }
[[variant]]
name = "iscsi"
run = { face = "iscsi", depth = 4, request = "256KiB", restart = false }
"#;

fn with_spec(text: &str) -> Scene {
    let scene = Scene::new();
    fs::write(scene.path("tiny.toml"), text).unwrap();
    fs::create_dir(scene.path("stores")).unwrap();
    scene
}

#[track_caller]
fn left_nothing(scene: &Scene) {
    assert_eq!(fs::read_dir(scene.path("stores")).unwrap().count(), 0);
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
}

#[test]
fn every_face_has_the_figures_that_are_known() {
    let scene = with_spec(TINY);
    let run = scene.run(["bench", "run", "tiny.toml", "--directory", "stores", "--out", "results.json", "--json", "--strict"]).succeeds();
    left_nothing(&scene);
    let results = run.json();
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(scene.path("results.json")).unwrap()).unwrap(), results);
    let result = &results[0];
    assert_eq!((number(result, "version"), number(result, "size_bytes"), number(result, "full_size_bytes")), (1, 8 * MIB, 8 * MIB));
    let present = |generation: &str| -> u64 {
        let of = |client: &str| {
            let options = ["traffic", "describe", "--size", "4MiB", "--json", "--client", client, "--generation", generation];
            number(&scene.run(options).succeeds().json(), "new_bytes")
        };
        of("0") + of("1")
    };
    let present = [present("1"), present("2")];
    for (variant, face) in result["variants"].as_array().unwrap().iter().zip(["in-process", "nbd", "iscsi"]) {
        assert_eq!((&variant["face"], &variant["failure"], number(variant, "clients")), (&face.into(), &Value::Null, 2));
        let generations = variant["repetitions"][0].as_array().unwrap();
        assert_eq!(generations.len(), 2);
        for (measured, present) in generations.iter().zip(present) {
            assert_eq!((number(measured, "written_bytes"), number(measured, "present_new_bytes")), (8 * MIB, present), "{face}");
            let stored = number(measured, "stored_new_bytes");
            assert!((present..=8 * MIB).contains(&stored), "{face}: {stored} of {present}");
            assert!(number(measured, "steady_bytes") <= 8 * MIB);
            assert!(number(&measured["parts"]["log"], "syncs") > 0, "{face}: flushed");
            assert!(number(&measured["parts"]["containers"], "written_bytes") > 0);
            assert_eq!(number(&measured["parts"]["chunk-index"], "devices"), 2);
        }
        // Old chunks are looked for in pages, and each look takes the time of the device.
        let index = &generations[1]["parts"]["chunk-index"];
        assert!(number(index, "reads") > 0, "{face}: {index}");
        assert!(index["waited_s"].as_f64().unwrap() >= 0.0002 * number(index, "reads") as f64 / 2.0, "{face}: {index}");
    }
}

#[test]
fn people_get_a_table_with_the_papers_figure_beside() {
    let scene = with_spec(TINY);
    let options =
        ["bench", "run", "tiny.toml", "--directory", "stores", "--variant", "in process", "--scale", "quick", "--repetitions", "2"];
    let run = scene.run(options).succeeds();
    // A 256th would be less than every client needs at the variant with the longest requests.
    assert!(run.out.starts_with("T Every face: 512KiB a generation of 8MiB, "), "{}", run.out);
    assert!(run.out.contains("160.3 +-4.3") && run.out.contains("is open: new data, generation 1"), "{}", run.out);
    left_nothing(&scene);
}

#[test]
fn an_order_that_does_not_show_counts_only_when_that_is_wanted() {
    let scene = with_spec(&TINY.replace("quick = true", "factor = 1.5\nquick = true"));
    let options = ["bench", "run", "tiny.toml", "--directory", "stores", "--variant", "in process", "--variant", "nbd"];
    let run = scene.run(options).succeeds();
    assert!(run.out.contains("does NOT hold: new data, generation 1: in process >= nbd x 1.5 (1.00 times)"), "{}", run.out);
    scene.run(options.iter().chain(&["--strict"])).ends_with(1).says(&["--strict"]);
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_is_made() {
    let scene = with_spec(TINY);
    let refused = |options: &[&str], expected: &[&str]| {
        let all = [&["bench", "run", "tiny.toml", "--directory", "stores", "--out", "results.json"], options].concat();
        scene.run(all).ends_with(2).says(expected);
        left_nothing(&scene);
        assert!(!scene.path("results.json").exists());
    };
    refused(&["--size", "64KiB"], &["a size of 64KiB is too small for variant", "it must be at least 512KiB", "--size"]);
    refused(&["--size", "512GiB"], &["the stores of experiment T need about", "are free", "--directory"]);
    refused(&["--variant", "ndb"], &["no experiment has a variant \"ndb\"", "did you mean \"nbd\"?"]);
    scene
        .run(["bench", "run", "tiny.toml", "--out", "gone/results.json"])
        .ends_with(2)
        .says(&["cannot write gone/results.json", "a directory that exists"]);
    refused(&["nothing.toml"], &["cannot use the declaration nothing.toml"]);
    for (from, to, expected) in [
        ("clients", "cleints", "line 7: unknown key `cleints` in [workload]; did you mean `clients`?"),
        (
            "memory.auxiliary_index =",
            "memory.auxilary_index =",
            "line 13: settings: unknown key `auxilary_index` in [memory]; did you mean `auxiliary_index`?",
        ),
        (
            "memory.auxiliary_index = \"16MiB\"",
            "memory.auxiliary_index = \"1KiB\"",
            "line 13: settings: memory.auxiliary_index is \"1KiB\"; it must be a size from 1MiB",
        ),
        ("memory.auxiliary_index", "nbd.max_requests", "line 13: settings: [nbd] means nothing for an experiment"),
        (
            "log.limit = \"32MiB\"",
            "log.limit = \"4MiB\"",
            "do not go together at a size of 8MiB: log.limit is 4MiB; it must be at least twice log.segment",
        ),
        ("slow*2", "slwo*2", "no device `slwo` is declared; did you mean `slow`?"),
    ] {
        fs::write(scene.path("tiny.toml"), TINY.replace(from, to)).unwrap();
        refused(&[], &[expected]);
    }
}

#[test]
fn a_signal_stops_a_run_soon_and_keeps_what_was_measured() {
    // The first variant ends; the second takes minutes.
    let long = TINY.replace("run = { face = \"nbd\", depth = 4 }", "run.repetitions = 1000");
    let scene = with_spec(&long);
    let mut child = scene
        .command(["bench", "run", "tiny.toml", "--directory", "stores", "--out", "results.json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    let measured = || {
        let text = fs::read(scene.path("results.json")).unwrap_or_default();
        serde_json::from_slice::<Value>(&text).map_or(0, |results| results[0]["variants"].as_array().map_or(0, Vec::len))
    };
    while measured() < 2 {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "nothing is measured");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let run = Run::from(child.wait_with_output().unwrap());
    run.ends_with(130).says(&["stopped", "results.json"]);
    left_nothing(&scene);
    let results: Value = serde_json::from_slice(&fs::read(scene.path("results.json")).unwrap()).unwrap();
    let variants = results[0]["variants"].as_array().unwrap();
    assert_eq!((variants.len(), &variants[0]["failure"]), (2, &Value::Null));
    assert_eq!(variants[1]["failure"], "stopped before its end");
    assert!(!variants[1]["repetitions"].as_array().unwrap().is_empty());
}
