//! Backups are killed with SIGKILL at random moments. Earlier backups stay what they were, a killed one is never seen,
//! the store is clean, and what was stored already makes the repeated backup cheap.

use onefold_tests::{Random, Running, Scene, assert_same_tree, disk_bytes, noise};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MIB: u64 = 1 << 20;
/// Backups that are killed before they are made.
const KILLS: u32 = 10;

/// What was stored becomes durable often enough that a backup of a few seconds has something to lose and something to
/// keep.
const SETTINGS: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"4MiB\"\ncommit = \"4MiB\"\ncommit_interval_ms = 100\n\
                        [memory]\nauxiliary_index = \"1MiB\"\n";

/// Large and small files, some of them twice, in some directories.
fn make_tree(root: &Path, seed: u64, bytes: u64) {
    let (mut random, mut made, mut number) = (Random::new(seed), 0, 0);
    while made < bytes {
        let directory = root.join(format!("d{}", number % 17));
        fs::create_dir_all(&directory).unwrap();
        let length = if number % 20 == 0 { 4 * MIB } else { random.below(60_000) };
        let file = directory.join(format!("f{number}"));
        fs::write(&file, noise(random.next_u64(), length as usize)).unwrap();
        match number % 30 {
            0 => fs::hard_link(&file, directory.join("hard")).map_err(drop).unwrap_or(()),
            1 => symlink(&file, directory.join(format!("link {number}"))).unwrap(),
            2 => drop(fs::copy(&file, directory.join(format!("copy {number}"))).unwrap()),
            _ => {}
        }
        made += length;
        number += 1;
    }
}

fn restored(scene: &Scene, target: &str, source: &Path) -> PathBuf {
    scene.path(target).join(fs::canonicalize(source).unwrap().strip_prefix("/").unwrap())
}

fn ids(scene: &Scene) -> Vec<String> {
    let list = scene.run(["backups", "--json"]).succeeds().json();
    list.as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect()
}

fn start_backup(scene: &Scene) -> Running {
    Running::start(&mut scene.command(["backup", "--name", "second", "--json", "second"]))
}

#[test]
fn a_killed_backup_harms_nothing_and_its_repetition_is_cheap() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let scene = Scene::new(&[], SETTINGS);
    let [first, second] = ["first", "second"].map(|name| scene.path(name));
    make_tree(&first, 1, 24 * MIB);
    let began = Instant::now();
    scene.run(["backup", "--name", "first", "first"]).succeeds();
    let mut longest_ms = 1 + u64::try_from(began.elapsed().as_millis()).unwrap();
    let mut known = ids(&scene);
    assert_eq!(known.len(), 1);

    let mut interrupted = 0;
    for round in 0.. {
        assert!(round < 40, "only {interrupted} backups were killed before they were made");
        // There is always something that no backup has seen.
        make_tree(&second.join(format!("round {round}")), 100 + round, 6 * MIB);
        let mut backup = start_backup(&scene);
        std::thread::sleep(Duration::from_millis(random.below(longest_ms)));
        backup.kill();
        let run = backup.finish();
        let now = ids(&scene);
        // It may have been quicker than the kill, and have become visible even if it could not say so any more.
        assert!(now.starts_with(&known) && now.len() <= known.len() + 1, "{known:?} {now:?}");
        if now.len() == known.len() {
            assert_ne!(run.code, 0, "a backup that said that it was made is there");
            interrupted += 1;
            // The next one is let come further.
            longest_ms += longest_ms / 3;
        } else {
            let target = format!("at round {round}");
            scene.run(["restore", now.last().unwrap(), "--target", &target]).succeeds();
            assert_same_tree(&second, &restored(&scene, &target, &second));
            fs::remove_dir_all(scene.path(&target)).unwrap();
            longest_ms = (longest_ms * 2 / 3).max(20);
        }
        known = now;
        if round % 3 == 0 {
            scene.run(["check"]).succeeds();
        }
        if interrupted == KILLS {
            break;
        }
    }
    scene.check();
    scene.run(["restore", &known[0], "--target", "back"]).succeeds();
    assert_same_tree(&first, &restored(&scene, "back", &first));

    let last = scene.run(["backup", "--name", "second", "--json", "second"]).succeeds().json();
    let repeated = scene.run(["backup", "--name", "second", "--json", "--force-read", "second"]).succeeds().json();
    println!("added by the first that was not killed: {}, by its repetition: {}", last["added_bytes"], repeated["added_bytes"]);
    assert!(repeated["added_bytes"].as_u64().unwrap() < 64 << 10, "{repeated}");
    scene.run(["restore", "latest:second", "--target", "again"]).succeeds();
    assert_same_tree(&second, &restored(&scene, "again", &second));
    scene.check();
}

#[test]
fn what_a_killed_backup_had_stored_is_found_again() {
    let scene = Scene::new(&["--compression", "none"], SETTINGS);
    make_tree(&scene.path("second"), 3, 96 * MIB);
    let containers = scene.store().join("containers");
    let mut backup = start_backup(&scene);
    let until = Instant::now() + Duration::from_secs(60);
    while disk_bytes(&containers) < 64 * MIB {
        assert!(!backup.has_ended() && Instant::now() < until, "the backup is not killed in its middle");
        std::thread::sleep(Duration::from_millis(2));
    }
    backup.kill();
    assert_eq!(ids(&scene).len(), 0, "it was not finished");
    let repeated = scene.run(["backup", "--name", "second", "--json", "second"]).succeeds().json();
    let added = repeated["added_bytes"].as_u64().unwrap();
    // What was committed last may be a while ago where the disk is busy.
    assert!(added < 80 * MIB, "of 96 MiB, of which 64 MiB were stored, {added} bytes were stored again");
    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    assert_same_tree(&scene.path("second"), &restored(&scene, "back", &scene.path("second")));
    scene.check();
}
