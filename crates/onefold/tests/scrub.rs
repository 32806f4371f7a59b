//! `scrub` through the binary: it says truthfully since when everything was read, goes on where it was, and names what
//! is damaged.

mod support;

use std::fs;
use support::{Scene, noise};

fn with_a_backup() -> Scene {
    let scene = Scene::with_store(&["--container-size", "1MiB"]);
    fs::write(scene.path("file"), noise(1, 6 << 20)).unwrap();
    scene.run(["backup", "--name", "a", "file"]).succeeds();
    scene
}

#[test]
fn a_scrub_reads_everything_says_so_and_names_what_is_damaged() {
    let scene = with_a_backup();
    let before = scene.run(["scrub", "--status", "--json"]).succeeds().json();
    assert!(before["covered_since"].is_null() && before["last_finished"].is_null() && before.get("complete").is_none(), "{before}");
    assert!(scene.run(["scrub", "--status"]).succeeds().out.contains("not everything was read"));

    let done = scene.run(["scrub", "--json"]).succeeds().json();
    assert_eq!((&done["complete"], &done["damage_count"]), (&true.into(), &0.into()), "{done}");
    assert!(done["read_bytes"].as_u64().unwrap() > 6 << 20, "{done}");
    assert_eq!((&done["covered_since"], &done["last_read_bytes"]), (&done["last_started"], &done["read_bytes"]));
    let stats = scene.run(["stats", "--json"]).succeeds().json();
    assert_eq!(stats["scrub"]["covered_since"], done["covered_since"]);
    assert!(scene.run(["stats"]).succeeds().out.contains("everything was read from the disk, or written, since"));

    let container = scene.store().join("containers/0000/00000/00000002");
    let mut bytes = fs::read(&container).unwrap();
    bytes[300_000] ^= 1;
    fs::write(&container, &bytes).unwrap();
    let found = scene.run(["scrub"]).ends_with(1);
    assert!(found.out.contains("container 0-00000002, frame") && found.out.contains("1 thing"), "{}", found.out);
    assert!(scene.run(["scrub", "--status"]).ends_with(1).out.contains("container 0-00000002"));
    assert!(scene.run(["stats"]).succeeds().out.contains("1 thing is damaged"));
    bytes[300_000] ^= 1;
    fs::write(&container, &bytes).unwrap();
    assert_eq!(scene.run(["scrub", "--restart", "--json"]).succeeds().json()["damage_count"], 0);
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn a_scrub_beside_a_daemon_is_that_of_the_daemon() {
    let scene = with_a_backup();
    let daemon = scene.serve(&[]);
    let done = scene.run(["scrub", "--rate", "1GiB/s", "--for", "1h", "--json"]).succeeds().json();
    assert_eq!(done["complete"], true, "{done}");
    assert_eq!(scene.run(["scrub", "--status", "--json"]).succeeds().json()["last_started"], done["last_started"]);
    daemon.stop();
    assert_eq!(scene.run(["stats", "--json"]).succeeds().json()["scrub"]["covered_since"], done["covered_since"]);
}

#[test]
fn wrong_rates_and_times_are_refused() {
    let scene = Scene::with_store(&[]);
    scene.run(["scrub", "--rate", "50MiB"]).ends_with(2).says(&["50MiB/s"]);
    scene.run(["scrub", "--for", "5"]).ends_with(2).says(&["30m"]);
    scene.run(["scrub", "--status", "--restart"]).ends_with(2);
}
