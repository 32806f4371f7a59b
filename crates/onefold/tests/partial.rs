//! Work that is done except for some files: they are listed, and the exit code says so (3).

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use support::{Scene, noise};

#[test]
fn a_backup_without_a_path_that_is_missing_is_partial() {
    let scene = Scene::with_store(&[]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), noise(1, 50_000)).unwrap();
    let absent = scene.path("absent");
    let run =
        scene.run([&["backup", "--json", "--name", "x"].map(std::ffi::OsStr::new)[..], &[source.as_os_str(), absent.as_os_str()]].concat());
    let run = run.ends_with(3).says(&["absent"]);
    let report = run.json();
    assert_eq!((&report["partial"], &report["errors"]), (&true.into(), &1.into()));
    assert_eq!(report["problems"][0]["path"], absent.to_str().unwrap());
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json()[0]["errors"], 1);
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn a_restore_names_what_a_damaged_container_took_and_brings_back_the_rest() {
    let scene = Scene::with_store(&["--compression", "none", "--frame-size", "64KiB"]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..24u64 {
        fs::write(source.join(format!("file {number:02}")), noise(number, 250_000)).unwrap();
    }
    scene.run(["backup", "--name", "x", source.to_str().unwrap()]).succeeds();
    // A byte in the middle of the first container.
    let container = scene.store().join("containers/0000/00000/00000001");
    let mut bytes = fs::read(&container).unwrap();
    bytes[1_000_000] ^= 1;
    fs::write(&container, bytes).unwrap();

    let target = scene.path("target");
    let run = scene.run(["restore", "--json", "latest", "--target", target.to_str().unwrap()]).ends_with(3);
    let problems = run.json()["problems"].as_array().unwrap().clone();
    assert!((1..=2).contains(&problems.len()), "{problems:?}");
    let restored = target.join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
    let mut whole = 0;
    for entry in fs::read_dir(&source).unwrap() {
        let name = entry.unwrap().file_name();
        let is_named = problems.iter().any(|problem| problem["path"].as_str().unwrap().as_bytes().ends_with(name.as_bytes()));
        match fs::read(restored.join(&name)) {
            Ok(found) => {
                assert!(!is_named && found == fs::read(source.join(&name)).unwrap(), "{name:?} came back wrong");
                whole += 1;
            }
            Err(_) => assert!(is_named, "{name:?} is missing without a word"),
        }
    }
    assert_eq!(whole, 24 - problems.len());
}

#[test]
fn what_is_sound_of_a_damaged_file_comes_back_under_a_name_that_says_so() {
    let scene = Scene::with_store(&["--compression", "none", "--frame-size", "64KiB"]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    let bytes = noise(1, 3_000_000);
    fs::write(source.join("file"), &bytes).unwrap();
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let container = scene.store().join("containers/0000/00000/00000001");
    let mut damaged = fs::read(&container).unwrap();
    damaged[1_000_000] ^= 1;
    fs::write(&container, damaged).unwrap();

    let place = fs::canonicalize(&source).unwrap();
    let run = scene.run(["restore", "--json", "latest", "--target", "target"]).ends_with(3).says(&["file.onefold-damaged", "bytes "]);
    let report = run.json();
    assert_eq!((&report["files_damaged"], &report["files"]), (&1.into(), &0.into()));
    let lost = &report["problems"][0]["lost"][0];
    let (start, length) = (lost["offset"].as_u64().unwrap() as usize, lost["length"].as_u64().unwrap() as usize);
    assert!((1..=200_000).contains(&length), "{report}");
    let expected = [&bytes[..start], &vec![0; length], &bytes[start + length..]].concat();
    let restored = scene.path("target").join(place.strip_prefix("/").unwrap());
    assert!(fs::read(restored.join("file.onefold-damaged")).unwrap() == expected && !restored.join("file").exists());

    scene.run(["restore", "latest", "--target", "whole", "--damaged", "fail"]).ends_with(1).says(&["bytes ", "--damaged zero"]);
    scene.run(["restore", "latest", "--target", "less", "--damaged", "skip"]).ends_with(3).says(&["left out"]);
    assert_eq!(fs::read_dir(scene.path("less").join(place.strip_prefix("/").unwrap())).unwrap().count(), 0);

    let file = place.join("file");
    let dumped = scene.run(["dump", "latest", file.to_str().unwrap()]).ends_with(1).says(&[&format!("bytes {start}.."), "--damaged zero"]);
    assert!(dumped.bytes == bytes[..start], "what is before the damage is written");
    let dumped = scene.run(["dump", "latest", file.to_str().unwrap(), "--damaged", "zero"]).ends_with(3).says(&["zeros"]);
    assert!(dumped.bytes == expected);
}
