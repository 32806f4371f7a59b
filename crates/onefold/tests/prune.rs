//! `prune` through the binary: space comes back, what is left stays whole (M0.19, M0.20).

mod support;

use std::fs;
use support::{Scene, noise};

#[test]
fn m0_19_m0_20_what_is_forgotten_or_deleted_gives_its_space_back() {
    let scene = Scene::with_store(&[]);
    fs::create_dir(scene.path("kept")).unwrap();
    fs::create_dir(scene.path("lost")).unwrap();
    for number in 0..8 {
        fs::write(scene.path("kept").join(format!("{number}")), noise(number, 100_000)).unwrap();
        fs::write(scene.path("lost").join(format!("{number}")), noise(100 + number, 3_000_000)).unwrap();
    }
    fs::write(scene.path("image"), noise(999, 4 << 20)).unwrap();
    scene.run(["backup", "--name", "lost", "kept", "lost"]).succeeds();
    scene.run(["backup", "--name", "kept", "kept"]).succeeds();
    scene.run(["volume", "create", "disk", "--size", "4MiB"]).succeeds();
    scene.run(["volume", "import", "disk", "image"]).succeeds();
    let disk_bytes = || scene.run(["stats", "--json"]).succeeds().json()["disk_bytes"].as_u64().unwrap();
    let full = disk_bytes();
    assert_eq!(scene.run(["prune", "--json"]).succeeds().json()["removed_chunks"], 0);

    scene.run(["forget", "latest:lost", "--yes"]).succeeds();
    scene.run(["volume", "delete", "disk", "--yes"]).succeeds();
    let tried = scene.run(["prune", "--max-unused", "0", "--dry-run", "--json"]).succeeds().json();
    assert_eq!(tried["dry_run"], true);
    assert!(disk_bytes() + (1 << 20) > full, "a dry run changes nothing");
    let done = scene.run(["prune", "--max-unused", "0", "--json"]).succeeds().json();
    assert_eq!((&done["removed_chunks"], &done["complete"]), (&tried["removed_chunks"], &true.into()));
    assert!(done["removed_bytes"].as_u64().unwrap() >= 8 * 3_000_000 + (4 << 20), "{done}");
    // A container that is still being filled keeps its dead chunks, and which streams fill one depends on their turns.
    assert!(disk_bytes() < full - (16 << 20), "{} of {full} bytes are left", disk_bytes());
    scene.run(["check", "--read-data"]).succeeds();
    scene.run(["restore", "latest:kept", "--target", "back"]).succeeds();
    let back = scene.path("back").join(scene.path("kept").strip_prefix("/").unwrap());
    for number in 0..8 {
        assert_eq!(fs::read(back.join(number.to_string())).unwrap(), noise(number, 100_000));
    }
    // What is backed up again is stored again.
    scene.run(["backup", "--name", "lost", "lost"]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
    let text = scene.run(["prune"]).succeeds().out;
    assert!(text.contains("0 chunks that nothing needs"), "{text}");
}

#[test]
fn m0_20_containers_of_which_much_is_needed_are_left_alone_if_that_is_wanted() {
    let scene = Scene::with_store(&["--container-size", "1MiB", "--compression", "none"]);
    fs::create_dir(scene.path("all")).unwrap();
    fs::create_dir(scene.path("most")).unwrap();
    for number in 0..24 {
        let content = noise(number, 250_000);
        fs::write(scene.path("all").join(format!("{number:02}")), &content).unwrap();
        if number % 4 != 0 {
            fs::write(scene.path("most").join(format!("{number:02}")), &content).unwrap();
        }
    }
    scene.run(["backup", "--name", "all", "all"]).succeeds();
    scene.run(["backup", "--name", "most", "most"]).succeeds();
    scene.run(["forget", "latest:all", "--yes"]).succeeds();
    let prune = |fill| scene.run(["prune", "--max-unused", "0", "--max-fill", fill, "--json"]).succeeds().json();
    let done = prune("50%");
    assert!(done["removed_bytes"].as_u64().unwrap() >= 1_400_000, "{done}");
    assert!(done["unused_bytes"].as_u64().unwrap() >= 1_000_000, "three quarters of each container are needed: {done}");
    let rest = prune("100%");
    assert!(rest["containers_before"].as_u64().unwrap() >= 4 && rest["freed_bytes"].as_u64().unwrap() >= 1_000_000, "{rest}");
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn prune_says_what_is_wrong_with_a_share_and_obeys_append_only_mode() {
    let scene = Scene::with_store(&[]);
    for (option, wrong) in [("--max-unused", "7"), ("--max-unused", "101%"), ("--max-unused", "-1%"), ("--max-fill", "lots")] {
        let run = scene.run(["prune", option, wrong]);
        assert!(run.err.contains("0% to 100%") || run.err.contains("unexpected argument"), "{wrong}: {}", run.err);
    }
    scene.run(["prune", "--max-unused", "2.5%", "--max-fill", "50%"]).succeeds();
    let mut on = scene.command(["append-only", "on"]);
    assert!(on.env("ONEFOLD_SECRET", "open sesame").output().unwrap().status.success());
    let refused = scene.run(["prune"]);
    assert!(refused.err.contains("append-only"), "{}", refused.err);
    scene.run(["prune", "--dry-run"]).succeeds();
}
