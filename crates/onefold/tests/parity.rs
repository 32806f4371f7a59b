//! Parity through the binary: a container that is lost or rotten comes back by itself when it is read, checked beside a
//! daemon, or scrubbed.

mod support;

use std::fs;
use std::path::PathBuf;
use support::{Scene, noise};

fn with_parity() -> Scene {
    let scene = Scene::with_store(&["--container-size", "1MiB"]);
    fs::write(scene.store().join("onefold.toml"), "[parity]\ngroup = 4\n").unwrap();
    fs::write(scene.path("file"), noise(1, 12 << 20)).unwrap();
    scene.run(["backup", "--name", "a", "file"]).succeeds();
    scene
}

fn container(scene: &Scene, number: u32) -> PathBuf {
    scene.store().join(format!("containers/0000/00000/{number:08x}"))
}

#[test]
fn a_lost_or_rotten_container_comes_back_when_it_is_read_checked_or_scrubbed() {
    let scene = with_parity();
    let stats = scene.run(["stats", "--json"]).succeeds().json();
    assert!(stats["parity_groups"].as_u64().unwrap() >= 2, "{stats}");
    let whole = fs::read(container(&scene, 3)).unwrap();

    // Scrubbed.
    fs::remove_file(container(&scene, 3)).unwrap();
    let done = scene.run(["scrub", "--json"]).succeeds().json();
    assert_eq!(done["repaired"].as_array().unwrap().len(), 1, "{done}");
    assert!(fs::read(container(&scene, 3)).unwrap() == whole);
    let mut rotten = whole.clone();
    rotten[500_000..500_100].fill(0);
    fs::write(container(&scene, 3), &rotten).unwrap();
    scene.run(["scrub"]).succeeds().says(&["container 0-00000003 was damaged and is rebuilt from parity"]);
    assert!(fs::read(container(&scene, 3)).unwrap() == whole);
    // After a scrub all sealed containers have parity, whatever the size of the last group.
    let stats = scene.run(["stats", "--json"]).succeeds().json();
    assert_eq!(stats["repaired_containers"], 2, "{stats}");
    assert!(stats["parity_containers"].as_u64().unwrap() + 2 >= stats["containers"].as_u64().unwrap(), "{stats}");

    // Checked and read by a daemon, which may write.
    let daemon = scene.serve(&[]);
    fs::write(container(&scene, 3), &rotten[..600_000]).unwrap();
    scene.run(["check", "--read-data"]).succeeds().says(&["1 container was damaged or lost and rebuilt from parity"]);
    assert!(fs::read(container(&scene, 3)).unwrap() == whole);
    daemon.stop();
    let daemon = scene.serve(&[]);
    fs::write(container(&scene, 3), &rotten).unwrap();
    let path = scene.path("file").display().to_string();
    // A command that reads beside the daemon gets it through parity; the daemon rebuilds it.
    assert!(scene.run(["dump", "latest", &path]).succeeds().bytes == noise(1, 12 << 20));
    scene.run(["check", "--read-data"]).succeeds();
    assert!(fs::read(container(&scene, 3)).unwrap() == whole);
    daemon.stop();
    scene.run(["check", "--read-data"]).succeeds();
    assert!(scene.run(["stats"]).succeeds().out.contains("4 containers were rebuilt"));
}

#[test]
fn who_only_reads_has_it_through_parity_and_is_told_who_makes_it_anew() {
    let scene = with_parity();
    let whole = fs::read(container(&scene, 3)).unwrap();
    let mut rotten = whole.clone();
    rotten[500_000..500_100].fill(0);
    fs::write(container(&scene, 3), &rotten).unwrap();
    let path = scene.path("file").display().to_string();
    assert!(scene.run(["dump", "latest", &path]).succeeds().bytes == noise(1, 12 << 20));
    let found = scene.run(["check", "--read-data", "--json"]).ends_with(1).json();
    assert_eq!(found["problem_count"], 1, "{found}");
    assert!(found["problems"][0]["what"].as_str().unwrap().contains("a scrub can rebuild the container from parity"), "{found}");
    assert!(fs::read(container(&scene, 3)).unwrap() == rotten, "nothing is written");
    scene.run(["scrub"]).succeeds();
    assert!(fs::read(container(&scene, 3)).unwrap() == whole);
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn two_lost_containers_of_a_group_are_named_and_nothing_is_made_up() {
    let scene = with_parity();
    for number in [2, 3] {
        fs::remove_file(container(&scene, number)).unwrap();
    }
    let found = scene.run(["scrub", "--json"]).ends_with(1).json();
    assert_eq!((&found["damage_count"], found["repaired"].as_array().unwrap().len()), (&2.into(), 0), "{found}");
    assert!(!container(&scene, 2).exists() && !container(&scene, 3).exists());
    scene.run(["check"]).ends_with(1);
}

#[test]
fn a_group_of_one_is_refused() {
    let scene = Scene::with_store(&[]);
    fs::write(scene.store().join("onefold.toml"), "[parity]\ngroup = 1\n").unwrap();
    scene.run(["stats"]).ends_with(2).says(&["parity.group is 1", "from 2 to 16"]);
}
