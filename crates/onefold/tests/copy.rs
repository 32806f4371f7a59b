//! `onefold copy`: what arrives is what was there, however often it was stopped, and whatever the other store cuts
//! like.

mod support;

use onefold_blocks::{MIN_BLOCK_BYTES, NewSpace, SpaceKind, Spaces, SpacesOptions};
use onefold_catalog::{Attributes, BackupId, Catalog, Content, Entry, encode_directory_chunk};
use onefold_engine::{Engine, MetadataKind, Mode, RecipeWriter, Settings, Transaction};
use onefold_ground::{Ground, LocalGround};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use support::{Scene, noise, tree};

const MIB: usize = 1 << 20;
/// Cuts, names and compresses like no store of its scene.
const OTHER: [&str; 7] = ["--chunker", "fastcdc", "--chunk-size", "16KiB", "--fingerprint", "sha256", "--compression=lz4"];

/// A store with backups that have much in common, and volumes with snapshots and clones.
fn filled() -> Scene {
    let scene = Scene::with_store(&[]);
    let data = scene.path("data");
    fs::create_dir_all(data.join("deep/er")).unwrap();
    fs::write(data.join("large"), noise(1, 3 * MIB)).unwrap();
    fs::write(data.join("empty"), "").unwrap();
    fs::write(data.join("deep/er/small"), "small").unwrap();
    std::os::unix::fs::symlink("deep", data.join("link")).unwrap();
    fs::hard_link(data.join("large"), data.join("deep/again")).unwrap();
    // Holes of every length.
    let mut holes = noise(2, MIB);
    holes.extend(vec![0; 5 * MIB]);
    holes.extend(noise(3, 1000));
    holes.extend(vec![0; 100_000]);
    holes.extend(noise(4, 70_000));
    fs::write(data.join("holes"), &holes).unwrap();
    (0..300).for_each(|number| fs::write(data.join(format!("deep/{number}")), noise(number + 9, 600)).unwrap());
    scene.run(["backup", "--name", "data", "data"]).succeeds();
    fs::write(data.join("deep/er/small"), "changed").unwrap();
    scene.run(["backup", "--name", "data", "data"]).succeeds();
    scene.run(["backup", "--name", "other", "data/deep"]).succeeds();
    scene.run(["protect", "latest:other", "--until", "2200-01-31"]).succeeds();

    scene.run(["volume", "create", "disk", "--size", "8MiB"]).succeeds();
    let import = |volume: &str, seed: u64, length: usize| {
        fs::write(scene.path("image"), noise(seed, length)).unwrap();
        scene.run(["volume", "import", volume, "image"]).succeeds();
    };
    import("disk", 5, 4 * MIB);
    scene.run(["volume", "snapshot", "disk", "monday"]).succeeds();
    import("disk", 6, MIB);
    scene.run(["volume", "clone", "monday", "test"]).succeeds();
    scene.run(["volume", "snapshot", "disk", "tuesday"]).succeeds();
    import("test", 7, MIB + 12_345);
    scene.run(["volume", "resize", "disk", "--size", "10MiB"]).succeeds();
    import("disk", 8, 2 * MIB);
    scene.run(["volume", "clone", "disk", "frozen", "--read-only"]).succeeds();
    import("disk", 9, MIB / 2);
    scene.run(["volume", "snapshot", "test", "of-test"]).succeeds();
    scene.run(["volume", "create", "gone", "--size", "1MiB"]).succeeds();
    import("gone", 10, MIB);
    scene.run(["volume", "snapshot", "gone", "orphan"]).succeeds();
    scene.run(["volume", "delete", "gone", "--yes"]).succeeds();
    scene.run(["volume", "create", "empty", "--size", "1TiB"]).succeeds();
    scene
}

fn in_store<'a>(store: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &["--store", store]].concat()
}

/// Restores all backups and exports all volumes of both stores, and compares them with all that lists tell.
fn are_equal(scene: &Scene, one: &str, other: &str) {
    let json = |store: &str, arguments: &[&str]| scene.run(in_store(store, &[arguments, &["--json"]].concat())).succeeds().json();
    let backups = json(one, &["backups"]);
    assert_eq!(backups, json(other, &["backups"]));
    for (at, backup) in backups.as_array().unwrap().iter().enumerate() {
        let id = backup["id"].as_str().unwrap();
        let trees = [one, other].map(|store| {
            let target = scene.path(&format!("restored-{at}-{}", store.len()));
            scene.run(in_store(store, &["restore", id, "--target", target.to_str().unwrap()])).succeeds();
            let found = tree(&target);
            fs::remove_dir_all(target).unwrap();
            found
        });
        assert!(trees[0] == trees[1] && !trees[0].is_empty(), "backup {id}");
        let listed = [one, other].map(|store| scene.run(in_store(store, &["ls", id, "--json"])).succeeds().out);
        assert_eq!(listed[0], listed[1]);
    }
    let facts = |store: &str| -> Vec<[serde_json::Value; 5]> {
        let list = json(store, &["volume", "list"]);
        let fact = |volume: &serde_json::Value| ["name", "size", "read_only", "block_size", "filter_chain"].map(|key| volume[key].clone());
        list.as_array().unwrap().iter().map(fact).collect()
    };
    assert_eq!(facts(one), facts(other));
    for name in facts(one).iter().map(|facts| facts[0].as_str().unwrap()).filter(|name| *name != "empty") {
        let images = [one, other].map(|store| {
            let image = scene.path("exported");
            scene.run(in_store(store, &["volume", "export", name, image.to_str().unwrap(), "--force"])).succeeds();
            fs::read(image).unwrap()
        });
        assert!(images[0] == images[1], "volume {name}");
    }
    scene.run(in_store(other, &["check", "--read-data"])).succeeds();
}

#[test]
fn a_copy_has_all_backups_and_volumes_and_data_that_is_there_is_not_read_again() {
    let scene = filled();
    scene.run(["copy", "--to", "other"]).ends_with(2).says(&["no store at other", "--init"]);
    let done = scene.run(["copy", "--to", "other", "--init", "--json"]).succeeds().json();
    assert_eq!((done["copied"].as_array().unwrap().len(), &done["there"], &done["partial"]), (3, &0.into(), &false.into()));
    are_equal(&scene, "store", "other");

    let again = scene.run(["copy", "--to", "other", "--json"]).succeeds().json();
    assert_eq!((again["copied"].as_array().unwrap().len(), &again["there"], &again["read_bytes"]), (0, &3.into(), &0.into()));
    assert_eq!(again["volumes_there"].as_array().unwrap().len(), 8);
    // What was forgotten there comes back without a byte being read.
    scene.run(["forget", "latest:data", "--store", "other", "--yes"]).succeeds();
    let back = scene.run(["copy", "--to", "other", "latest:data", "--json"]).succeeds().json();
    assert_eq!((back["copied"].as_array().unwrap().len(), &back["read_bytes"]), (1, &0.into()));
    assert!(back["known_bytes"].as_u64().unwrap() > 4 << 20, "{back}");
    are_equal(&scene, "store", "other");
    // Its counts are right: all goes when all is forgotten.
    scene.run(["copy", "--to", "store"]).ends_with(2);
}

#[test]
fn a_copy_goes_into_a_store_that_cuts_names_and_compresses_otherwise_and_back() {
    let scene = filled();
    scene.run([&["init", "other"][..], &OTHER].concat()).succeeds();
    scene.run(["copy", "--to", "other"]).succeeds();
    are_equal(&scene, "store", "other");
    scene.run(["init", "third"]).succeeds();
    scene.run(["copy", "--store", "other", "--to", "third"]).succeeds();
    are_equal(&scene, "store", "third");
}

#[test]
fn a_part_is_copied_by_names_and_ids() {
    let scene = filled();
    scene.run(["copy", "--to", "other", "--init", "latest:data", "--volume", "test"]).succeeds();
    let list = |arguments: &[&str]| {
        let list = scene.run(in_store("other", arguments)).succeeds().json();
        list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((list(&["backups", "--json"]), list(&["volume", "list", "--json"])), (vec!["data".to_owned()], vec!["test".to_owned()]));
    scene.run(["copy", "--to", "other", "--name", "data"]).succeeds();
    assert_eq!(list(&["backups", "--json"]), ["data", "data"]);
    scene.run(["copy", "--to", "other", "--name", "dota"]).ends_with(1).says(&["did you mean `data`?"]);
    scene.run(["copy", "--to", "other", "--volume", "tast"]).ends_with(1).says(&["did you mean test?"]);
    scene.run(["check", "--store", "other", "--read-data"]).succeeds();
}

#[test]
fn a_backup_is_newer_than_forgotten_ones_wherever_it_is_copied() {
    let scene = Scene::with_store(&[]);
    fs::write(scene.path("data"), "data").unwrap();
    let backup = || scene.run(["backup", "--name", "data", "data", "--json"]).succeeds().json()["id"].as_str().unwrap().to_owned();
    backup();
    let bad = backup();
    assert!(!scene.run(["copy", "--to", "other", "--init"]).succeeds().err.contains("newer backup"));
    scene.run(["forget", &bad, "--yes"]).succeeds();
    scene.run(["copy", "--to", "other"]).succeeds().says(&["warning", "newer backup of `data`", &bad[..8]]);
    let good = backup();
    assert!(!scene.run(["copy", "--to", "other"]).succeeds().err.contains("newer backup"));
    scene.run(["forget", "--store", "other", "--keep-last", "1"]).succeeds();
    let left = scene.run(["backups", "--store", "other", "--json"]).succeeds().json();
    assert_eq!((left.as_array().unwrap().len(), &left[0]["id"]), (1, &good.as_str().into()));
}

#[test]
fn beside_a_daemon_backups_and_volumes_are_copied() {
    let scene = filled();
    let daemon = scene.serve(&[]);
    let done = scene.run(["copy", "--to", "other", "--init", "--json"]).succeeds().json();
    assert_eq!((done["copied"].as_array().unwrap().len(), &done["partial"]), (3, &false.into()), "{done}");
    assert_eq!((&done["problems"], done["volumes_copied"].as_array().unwrap().len()), (&serde_json::json!([]), 8));
    // The daemon goes on, and shows nothing of it.
    scene.run(["volume", "create", "more", "--size", "1MiB"]).succeeds();
    assert_eq!(scene.run(["volume", "list", "--json"]).succeeds().json().as_array().unwrap().len(), 9);
    scene.run(["copy", "--to", "other", "--volume", "more"]).succeeds();
    let again = scene.run(["copy", "--to", "other", "--json"]).succeeds().json();
    assert_eq!((&again["read_bytes"], again["volumes_there"].as_array().unwrap().len()), (&0.into(), 9));
    assert_eq!(daemon.stop().0, 0);
    are_equal(&scene, "store", "other");
}

#[test]
fn volumes_are_copied_only_into_a_store_that_nobody_else_has_open() {
    let scene = filled();
    scene.run(["init", "other"]).succeeds();
    let daemon = scene.serve(&[]);
    let holder = scene.serve_another("other");
    scene.run(["copy", "--to", "other", "--volume", "disk"]).ends_with(2).says(&["serve"]);
    assert_eq!(holder.stop().0, 0);
    scene.run(["copy", "--to", "other", "--volume", "disk"]).succeeds();
    // Killed in the middle of it, command or daemon leave nothing behind that shows.
    scene.run(["init", "third"]).succeeds();
    for (round, milliseconds) in [50, 150, 300, 500].into_iter().enumerate() {
        let mut copy = scene.command(["-q", "copy", "--to", "third"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        if round == 3 {
            drop(daemon);
            copy.wait().unwrap();
            break;
        }
        let _ = copy.kill();
        copy.wait().unwrap();
    }
    scene.run(["check", "--read-data"]).succeeds();
    assert_eq!(scene.run(["volume", "list", "--json"]).succeeds().json().as_array().unwrap().len(), 8);
    // A backup takes no commands.
    let mut backup = scene.command(["backup", "--wait", "--name", "x", "--stdin", "x"]).stdin(Stdio::piped()).spawn().unwrap();
    while !scene.run(["volume", "delete", "x", "--yes"]).err.contains("`backup`") {
        std::thread::sleep(Duration::from_millis(5));
    }
    scene.run(["copy", "--to", "third"]).ends_with(3).says(&["no process writes", "--wait"]);
    backup.kill().unwrap();
    backup.wait().unwrap();
    scene.run(["copy", "--to", "third"]).succeeds();
    are_equal(&scene, "store", "third");
}

#[test]
fn volumes_are_copied_into_a_store_that_deletes_nothing() {
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "disk", "--size", "1MiB"]).succeeds();
    scene.run(["volume", "snapshot", "disk", "monday"]).succeeds();
    scene.run(["volume", "clone", "disk", "frozen", "--read-only"]).succeeds();
    scene.run(["init", "other"]).succeeds();
    fs::write(scene.path("secret"), "a secret that is long enough").unwrap();
    scene.run(in_store("other", &["append-only", "on", "--secret-file", "secret"])).succeeds();
    for copied in [3, 0] {
        let done = scene.run(["copy", "--to", "other", "--json"]).succeeds().json();
        assert_eq!(done["volumes_copied"].as_array().unwrap().len(), copied, "{done}");
    }
}

#[test]
fn what_a_copy_that_was_killed_left_of_a_volume_goes_and_nothing_else_does() {
    let scene = filled();
    let in_other = |arguments: &[&str]| scene.run(in_store("other", arguments)).succeeds();
    scene.run(["init", "other"]).succeeds();
    // As between the making of a clone and the end of the working copy that it was made of.
    in_other(&["volume", "create", "frozen.copying-12", "--size", "10MiB"]);
    in_other(&["volume", "clone", "frozen.copying-12", "frozen", "--read-only"]);
    // These have such names, and nothing was made of them.
    in_other(&["volume", "create", "monday.copying-3", "--size", "1MiB"]);
    in_other(&["volume", "create", "monday", "--size", "1MiB"]);
    let done = scene.run(["copy", "--to", "other", "--json"]).succeeds().json();
    assert_eq!(done["volumes_there"], serde_json::json!(["monday", "frozen"]), "{done}");
    let list = in_other(&["volume", "list", "--json"]).json();
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"monday.copying-3") && !names.contains(&"frozen.copying-12"), "{names:?}");
    assert_eq!(names.len(), 9);
}

#[test]
fn a_copy_that_is_killed_again_and_again_is_whole_when_it_is_repeated() {
    let scene = filled();
    scene.run(["init", "other"]).succeeds();
    for round in 0..12 {
        let mut child = scene.command(["-q", "copy", "--to", "other"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(15 + 25 * round));
        let _ = child.kill();
        child.wait().unwrap();
        // What shows is whole.
        scene.run(["check", "--store", "other"]).succeeds();
    }
    scene.run(["copy", "--to", "other"]).succeeds();
    are_equal(&scene, "store", "other");
}

#[test]
fn what_cannot_be_read_is_named_and_everything_else_is_copied() {
    let scene = Scene::with_store(&["--compression", "none", "--container-size", "1MiB"]);
    for name in ["good", "bad"] {
        fs::create_dir(scene.path(name)).unwrap();
        fs::write(scene.path(name).join("file"), noise(name.len() as u64, 6 * MIB)).unwrap();
        fs::write(scene.path(name).join("small"), name).unwrap();
        scene.run(["backup", "--name", name, name]).succeeds();
    }
    scene.run(["volume", "create", "disk", "--size", "1MiB"]).succeeds();
    fs::write(scene.path("image"), noise(77, MIB)).unwrap();
    scene.run(["volume", "import", "disk", "image"]).succeeds();
    // A byte in the middle of the file of the second backup.
    let wanted = noise("bad".len() as u64, 6 * MIB)[3 * MIB + 5000..3 * MIB + 5064].to_vec();
    let mut flipped = 0;
    for (name, _) in tree(&scene.store().join("containers")) {
        let path = scene.store().join("containers").join(name);
        let Ok(mut bytes) = fs::read(&path) else { continue };
        if let Some(at) = bytes.windows(64).position(|window| window == wanted) {
            bytes[at] ^= 1;
            fs::write(path, bytes).unwrap();
            flipped += 1;
        }
    }
    assert_eq!(flipped, 1);
    let done = scene.run(["copy", "--to", "other", "--init", "--json"]).ends_with(3).says(&["bad/file"]).json();
    assert_eq!(
        (&done["partial"], &done["copied"][0]["name"], &done["not_copied"][0]["name"]),
        (&true.into(), &"good".into(), &"bad".into())
    );
    assert!(done["problems"][0]["path"].as_str().unwrap().ends_with("bad/file"), "{done}");
    let there = scene.run(["backups", "--store", "other", "--json"]).succeeds().json();
    assert_eq!((there.as_array().unwrap().len(), &there[0]["name"]), (1, &"good".into()));
    scene.run(["volume", "export", "disk", "out", "--store", "other"]).succeeds();
    assert!(fs::read(scene.path("out")).unwrap() == noise(77, MIB));
    scene.run(["check", "--store", "other", "--read-data"]).succeeds();
}

/// Does something with the closed store of a scene.
fn with_engine(scene: &Scene, work: impl FnOnce(&Arc<Engine>)) {
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(scene.store()).unwrap());
    let engine = Engine::open(ground, Settings::default(), Mode::ReadWrite, "test").unwrap();
    work(&engine);
    engine.close().unwrap();
}

fn put(engine: &Engine, key: &[u8], value: Vec<u8>) {
    engine.submit(Transaction { changes: vec![(0, key.to_vec(), Some(value))], references: vec![] }).unwrap();
    engine.flush().unwrap();
}

#[test]
fn no_damaged_backup_or_record_keeps_the_others_from_being_copied_and_searched() {
    let scene = Scene::with_store(&[]);
    fs::write(scene.path("file"), "content").unwrap();
    scene.run(["backup", "--name", "old", "file"]).succeeds();
    with_engine(&scene, |engine| {
        let catalog = Catalog::new(engine.clone());
        let mut backup = catalog.list().unwrap().remove(0);
        let mut stream = engine.stream();
        let mut writer = RecipeWriter::new(engine);
        let entry = |name: &str| Entry { name: name.into(), attributes: Attributes::default(), content: Content::Fifo };
        let disordered = encode_directory_chunk(&[entry("b"), entry("a")], engine.digest_bytes());
        let piece = stream.write_metadata(MetadataKind::Directory, &disordered, &[]).unwrap();
        writer.push(&mut stream, piece).unwrap();
        (backup.id, backup.name, backup.root) = (BackupId::from_bytes([7; 16]), "bad".into(), writer.finish(&mut stream).unwrap());
        catalog.commit_backup(&mut backup).unwrap();
    });
    scene.run(["backup", "--name", "new", "file"]).succeeds();
    let names = |list: &serde_json::Value| {
        list.as_array().unwrap().iter().map(|backup| backup["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let done = scene.run(["copy", "--to", "other", "--init", "--json"]).ends_with(3).json();
    assert_eq!((names(&done["copied"]), names(&done["not_copied"])), (vec!["old".to_owned(), "new".to_owned()], vec!["bad".to_owned()]));

    // A record that cannot be understood, of a backup and of a volume.
    scene.run(["volume", "create", "disk", "--size", "1MiB"]).succeeds();
    with_engine(&scene, |engine| {
        put(engine, &[&b"b"[..], &[9; 16]].concat(), vec![0; 9]);
        let (key, _) = engine.range(0, b"v", b"w", 9).unwrap().into_iter().next().unwrap();
        put(engine, &key, vec![0; 9]);
    });
    scene.run(["forget", "latest:new", "--store", "other", "--yes"]).succeeds();
    let done = scene.run(["copy", "--to", "other", "--json"]).ends_with(3).says(&["record of a backup", "record of volume"]).json();
    assert_eq!((names(&done["copied"]), &done["there"], &done["partial"]), (vec!["new".to_owned()], &1.into(), &true.into()));
    let reasons: Vec<_> = done["problems"].as_array().unwrap().iter().map(|problem| problem["reason"].as_str().unwrap()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("record of a backup")), "{done}");
    assert!(reasons.iter().any(|reason| reason.contains("record of volume")), "{done}");
    let text = scene.run(["copy", "--to", "other"]).ends_with(3).out;
    assert!(text.contains("PARTIAL"), "{text}");
    // What was asked for is there.
    let id = id_of(&scene, "old");
    scene.run(["copy", "--to", "other", &id]).succeeds();
    let found = scene.run(["find", "file", "--json"]).ends_with(3).says(&["record of a backup"]);
    assert_eq!(found.json_lines()[0]["backups"].as_array().unwrap().len(), 2, "{}", found.out);
}

#[test]
fn filesystems_are_left_out_and_the_copy_says_so() {
    let scene = Scene::with_store(&[]);
    scene.run(["volume", "create", "disk", "--size", "1MiB"]).succeeds();
    with_engine(&scene, |engine| {
        let spaces = Spaces::open(engine.clone(), SpacesOptions::default()).unwrap();
        let new = NewSpace { name: "home", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: MIN_BLOCK_BYTES, chain: None };
        spaces.create(new).unwrap().submit_entries(vec![(b"key".to_vec(), Some(b"value".to_vec()))]).unwrap();
        spaces.flush().unwrap();
    });
    let volumes = scene.run(["volume", "list", "--json"]).succeeds().json();
    assert_eq!(volumes.as_array().unwrap().len(), 1, "{volumes}");
    let done = scene.run(["copy", "--to", "other", "--init", "--json"]).ends_with(3).says(&["filesystem home", "not copied"]).json();
    assert_eq!((&done["volumes_copied"], &done["partial"]), (&serde_json::json!(["disk"]), &true.into()));
    scene.run(["copy", "--to", "other", "--volume", "disk"]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
}

/// The id of a backup in the other store, where all records are sound.
fn id_of(scene: &Scene, name: &str) -> String {
    let list = scene.run(["backups", "--store", "other", "--json"]).succeeds().json();
    list.as_array().unwrap().iter().find(|backup| backup["name"] == name).unwrap()["id"].as_str().unwrap().to_owned()
}

#[test]
fn two_stores_that_are_copied_into_each_other_do_not_wait_for_each_other() {
    let scene = Scene::with_store(&[]);
    scene.run(["init", "other"]).succeeds();
    for (store, seed) in [("store", 1), ("other", 2)] {
        fs::write(scene.path("image"), noise(seed, 8 * MIB)).unwrap();
        scene.run(["backup", "--store", store, "--name", store, "image"]).succeeds();
        scene.run(["volume", "create", store, "--size", "8MiB", "--store", store]).succeeds();
        scene.run(["volume", "import", store, "image", "--store", store]).succeeds();
    }
    let copy = |from: &str, to: &str| {
        let mut command = scene.command(["copy", "--store", from, "--to", to, "--wait=40s"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = [copy("store", "other"), copy("other", "store")];
    for copy in both {
        support::Run::from(copy.wait_with_output().unwrap()).succeeds();
    }
    for store in ["store", "other"] {
        scene.run(["volume", "export", "store", "out", "--store", store, "--force"]).succeeds();
        assert!(fs::read(scene.path("out")).unwrap() == noise(1, 8 * MIB));
    }
}

#[test]
fn a_copy_that_waits_says_which_volumes_have_gone_and_can_be_stopped() {
    let scene = Scene::with_store(&[]);
    for name in ["stays", "goes"] {
        scene.run(["volume", "create", name, "--size", "1MiB"]).succeeds();
    }
    scene.run(["init", "other"]).succeeds();
    let waiting = || {
        let mut command = scene.command(["copy", "--to", "other", "--wait", "--json"]);
        let mut copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut reader = BufReader::new(copy.stderr.take().unwrap());
        while !said.contains("waiting for") {
            assert!(reader.read_line(&mut said).unwrap() > 0, "{said}");
        }
        (copy, reader)
    };
    let _daemon = scene.serve(&[]);
    let holder = scene.serve_another("other");
    let (stopped, _stderr) = waiting();
    rustix::process::kill_process(rustix::process::Pid::from_child(&stopped), rustix::process::Signal::INT).unwrap();
    assert_eq!(stopped.wait_with_output().unwrap().status.code(), Some(130));

    let (copy, mut stderr) = waiting();
    scene.run(["volume", "delete", "goes", "--yes"]).succeeds();
    assert_eq!(holder.stop().0, 0);
    let run = support::Run::from(copy.wait_with_output().unwrap()).ends_with(3);
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("volume goes: error"), "{said}");
    let done = run.json();
    assert_eq!((&done["volumes_copied"], &done["problems"][0]["volume"]), (&serde_json::json!(["stays"]), &"goes".into()), "{done}");
}
