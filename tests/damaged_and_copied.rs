//! A store with a damaged log gives what is sound, and a repair that would lose something asks first (A.8). A copy of a
//! store that was made while somebody had it open is told from the store (A.11).

use onefold_tests::{Scene, noise};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// All files below a directory with what is in them, but the locks and leases.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.ends_with("lock") && !path.ends_with("views") {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// A store with two backups, and the log damaged in the batch that has the record of the first.
fn damaged() -> (Scene, [String; 2]) {
    let scene = Scene::new(&[], "");
    let ids = [("first", 10_000), ("second", 1 << 20)].map(|(name, length)| {
        fs::create_dir(scene.path(name)).unwrap();
        fs::write(scene.path(name).join("file"), noise(length as u64, length)).unwrap();
        scene.run(["backup", "--name", name, "--json", name]).succeeds().json()["id"].as_str().unwrap().to_owned()
    });
    let log = fs::read_dir(scene.store().join("log")).unwrap().map(|entry| entry.unwrap().path());
    let log = log.filter(|path| path.extension().is_some_and(|extension| extension == "log")).min().unwrap();
    let mut bytes = fs::read(&log).unwrap();
    // A letter of the path that the record of the backup says, so that the rest of it can still be understood.
    let path = scene.text("first");
    let at = bytes.windows(path.len()).position(|window| window == path.as_bytes()).expect("the record is in the log");
    bytes[at + path.len() - 1] ^= 1;
    fs::write(&log, bytes).unwrap();
    (scene, ids)
}

#[test]
fn a8_reading_commands_work_from_what_is_sound_of_a_damaged_log_and_say_so() {
    let (scene, [_, second]) = damaged();
    let before = files(scene.store());
    let list = scene.run(["backups", "--json"]).succeeds();
    assert_eq!(list.json().as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap()).collect::<Vec<_>>(), [&second]);
    let said = String::from_utf8(list.err).unwrap();
    assert!(said.contains("the store is damaged") && said.contains("is lost") && said.contains("`onefold check --repair`"), "{said}");
    assert!(scene.run(["ls", &second]).succeeds().text().contains("/file"));
    let restored = scene.run(["restore", &second, "--target", "out"]).succeeds();
    assert!(String::from_utf8(restored.err).unwrap().contains("the store is damaged"));
    let file = scene.path("out").join(scene.path("second").strip_prefix("/").unwrap()).join("file");
    assert!(fs::read(file).unwrap() == noise(1 << 20, 1 << 20));
    assert!(scene.run(["dump", &second, &scene.text("second/file")]).succeeds().out == noise(1 << 20, 1 << 20));
    scene.run(["stats", "--json"]).succeeds();
    assert!(files(scene.store()) == before, "nothing was changed");
    scene.run(["backup", "--name", "third", "second"]).ends_with(2);
}

#[test]
fn a8_a_repair_that_loses_something_says_what_and_needs_force() {
    let (scene, [first, second]) = damaged();
    let before = files(scene.store());
    let refused = scene.run(["check", "--repair"]).ends_with(1);
    let text = refused.text();
    assert!(text.contains(&format!("backup {} of first", &first[..8])) && text.contains("--force"), "{text}");
    assert!(!text.contains(&second[..8]), "{text}");
    let refused = scene.run(["check", "--repair", "--json"]).ends_with(1).json();
    assert_eq!((&refused["refused"], &refused["lost_backups"][0]["id"]), (&true.into(), &first.into()), "{refused}");
    assert!(files(scene.store()) == before, "nothing was changed");
    let dry = scene.run(["check", "--repair", "--dry-run"]).ends_with(1).text();
    assert!(dry.contains("a new operations log replaces the old one"), "{dry}");

    scene.run(["check", "--repair", "--force"]).succeeds();
    let list = scene.run(["backups", "--json"]).succeeds();
    assert_eq!((list.json()[0]["id"].as_str(), list.err.len()), (Some(second.as_str()), 0));
    // All that was changed is there as it was.
    let after = files(scene.store());
    let aside: Vec<&Vec<u8>> =
        after.iter().filter(|(path, _)| path.to_str().unwrap().contains("/log/damaged-")).map(|(_, bytes)| bytes).collect();
    for (path, bytes) in
        before.iter().filter(|(path, _)| path.starts_with(scene.store().join("log")) || path.starts_with(scene.store().join("objects")))
    {
        assert!(aside.contains(&bytes) || after.get(path) == Some(bytes), "{} was not kept", path.display());
    }
    scene.run(["backup", "--name", "first", "first"]).succeeds();
    scene.check();
}

#[test]
fn a8_a_damaged_page_of_the_object_index_costs_nothing_while_the_log_has_it_all() {
    let scene = Scene::new(&[], "");
    fs::write(scene.path("file"), noise(1, 100_000)).unwrap();
    scene.run(["backup", "--name", "t", "file"]).succeeds();
    // Brings the record into the file of the object index.
    scene.run(["prune"]).succeeds();
    let path = scene.store().join("objects/0000.redb");
    let mut bytes = fs::read(&path).unwrap();
    let name = scene.text("file");
    let places: Vec<usize> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name.as_bytes())).collect();
    assert!(!places.is_empty(), "the record is in the file");
    places.into_iter().for_each(|at| bytes[at] ^= 1);
    fs::write(&path, bytes).unwrap();
    let list = scene.run(["backups", "--json"]).succeeds();
    assert_eq!(list.json()[0]["name"], "t");
    assert!(String::from_utf8(list.err).unwrap().contains("the store is damaged"));
    assert!(scene.run(["dump", "latest", &name]).succeeds().out == noise(1, 100_000));
    scene.run(["check", "--repair"]).succeeds();
    assert_eq!(scene.run(["backups"]).succeeds().err.len(), 0);
    scene.check();
}

#[test]
fn a8_a_repair_that_loses_nothing_needs_no_force() {
    let scene = Scene::new(&[], "");
    fs::write(scene.path("file"), noise(1, 100_000)).unwrap();
    scene.run(["backup", "--name", "t", "file"]).succeeds();
    fs::write(scene.store().join("owner"), [0; 16]).unwrap();
    scene.run(["check", "--repair"]).succeeds();
    scene.check();
}

#[test]
fn a11_a_copy_of_a_store_in_use_is_refused_and_a_killed_one_is_not() {
    let scene = Scene::new(&[], "");
    if fs::metadata(scene.store().join("descriptor")).unwrap().created().is_err() {
        return println!("skipped: this file system does not say when a file was made");
    }
    fs::write(scene.path("file"), noise(1, 100_000)).unwrap();
    scene.run(["backup", "--name", "t", "file"]).succeeds();
    let copy = |name: &str| {
        let status = Command::new("cp").arg("-a").arg(scene.store()).arg(scene.path(name)).status().unwrap();
        assert!(status.success());
        scene.text(name)
    };
    let closed = copy("closed");
    scene.run(["backups", "--store", &closed]).succeeds();
    scene.run(["backup", "--store", &closed, "--name", "t", "file"]).succeeds();

    scene.volume("disk", "64MiB");
    let daemon = scene.serve();
    let open = copy("open");
    daemon.kill();
    for command in [&["backups", "--store", &open][..], &["check", "--store", &open], &["backup", "--store", &open, "--name", "t", "file"]]
    {
        let refused = scene.run(command).ends_with(2).text();
        assert!(refused.contains("copied") && refused.contains("check --repair"), "{refused}");
    }
    // On the same machine a killed process leaves no copy.
    scene.run(["backups"]).succeeds();
    scene.run(["backup", "--name", "t", "file"]).succeeds();
    let of_closed = copy("closed again");
    scene.run(["backups", "--store", &of_closed]).succeeds();
    // It may be taken as it is.
    let taken = scene.run(["check", "--repair", "--store", &open]).succeeds().text();
    assert!(taken.contains("takes it as it is"), "{taken}");
    assert_eq!(scene.run(["backups", "--store", &open, "--json"]).succeeds().json().as_array().unwrap().len(), 1);
    scene.run(["backup", "--store", &open, "--name", "t", "file"]).succeeds();
}

#[test]
fn a11_beside_clients_that_write_volumes_are_copied_as_they_are_at_one_moment() {
    const BLOCKS: u64 = 16;
    let scene = Scene::new(&[], "");
    ["first", "second"].iter().for_each(|name| scene.volume(name, "16MiB"));
    let daemon = scene.serve();
    let stopping = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut clients = ["first", "second"].map(|name| daemon.connect(name));
            for round in 1u64.. {
                for (block, client) in (0..BLOCKS).flat_map(|block| [(block, 0), (block, 1)]) {
                    clients[client].write(block << 20, &round.to_le_bytes()).unwrap();
                    if stopping.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
        });
        for copy in ["one", "two", "three"] {
            scene.run(["copy", "--to", copy, "--init", "--json"]).succeeds();
            let images = ["first", "second"].map(|name| {
                scene.run(["volume", "export", name, "image", "--force", "--store", copy]).succeeds();
                fs::read(scene.path("image")).unwrap()
            });
            // In the order of the writes the rounds never grow, and only at one place they shrink, by one.
            let round = |image: &[u8], block: u64| u64::from_le_bytes(image[(block as usize) << 20..][..8].try_into().unwrap());
            let rounds: Vec<u64> = (0..BLOCKS).flat_map(|block| images.iter().map(move |image| round(image, block))).collect();
            assert!(rounds.windows(2).all(|pair| pair[0] >= pair[1]) && rounds[0] <= rounds[rounds.len() - 1] + 1, "{rounds:?}");
        }
        stopping.store(true, Ordering::Relaxed);
    });
    daemon.stop();
    scene.run(["check", "--read-data"]).succeeds();
}
