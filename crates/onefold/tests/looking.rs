//! Looking into backups and bringing parts of them back, as a person types it: `ls`, `find`, `dump`, `restore`.

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use support::{Scene, noise, tree};

/// Two backups of `source`, between which `notes` changed, `old` went and `d/new` came; returns the source as the
/// backup names it.
fn two_backups(scene: &Scene) -> PathBuf {
    let source = scene.path("source");
    fs::create_dir_all(source.join("d/deep")).unwrap();
    for (name, text) in [("notes", "first"), ("old", "old"), ("d/same", "same"), ("d/deep/er", "deeper")] {
        fs::write(source.join(name), text).unwrap();
    }
    scene.run(["backup", "--name", "home", "source"]).succeeds();
    fs::write(source.join("notes"), "second one").unwrap();
    fs::remove_file(source.join("old")).unwrap();
    fs::write(source.join("d/new"), noise(1, 100_000)).unwrap();
    scene.run(["backup", "--name", "home", "source"]).succeeds();
    fs::canonicalize(source).unwrap()
}

#[test]
fn ls_lists_one_level_and_all_of_them_if_asked() {
    let scene = Scene::with_store(&[]);
    let source = two_backups(&scene);
    let at = |name: &str| format!("{}/{name}", source.display());
    let lines = |arguments: &[&str]| {
        scene.run([&["ls", "latest"], arguments].concat()).succeeds().out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(&[]), [at("d/"), at("notes")], "what is in the directory that was backed up");
    assert_eq!(lines(&[&at("d")]), [at("d/deep/"), at("d/new"), at("d/same")]);
    assert_eq!(lines(&[&at("notes")]), [at("notes")]);
    assert_eq!(lines(&["-R"]), [at("d/"), at("d/deep/"), at("d/deep/er"), at("d/new"), at("d/same"), at("notes")]);
    assert_eq!(lines(&["/"]), [format!("/{}/", source.components().nth(1).unwrap().as_os_str().display())]);
    let long = lines(&["-l"]);
    assert!(
        long[0].starts_with("drwx") && long[1].starts_with("-rw-") && long[1].contains(" 10 ") && long[1].ends_with(&at("notes")),
        "{long:?}"
    );
}

#[test]
fn find_says_which_backups_have_which_version_the_newest_first() {
    let scene = Scene::with_store(&[]);
    let source = two_backups(&scene);
    let ids: Vec<Value> =
        scene.run(["backups", "--json"]).succeeds().json().as_array().unwrap().iter().rev().map(|backup| backup["id"].clone()).collect();
    let find = |arguments: &[&str]| -> Vec<(String, Vec<Value>)> {
        let found = scene.run([&["find", "--json"], arguments].concat()).succeeds().json_lines();
        let name = |item: &Value| item["path"].as_str().unwrap().strip_prefix(source.to_str().unwrap()).unwrap().to_owned();
        let backups = |item: &Value| item["backups"].as_array().unwrap().iter().map(|backup| backup["id"].clone()).collect();
        found.iter().map(|item| (name(item), backups(item))).collect()
    };
    let (new, old) = (ids[0].clone(), ids[1].clone());
    assert_eq!(find(&["same"]), [("/d/same".to_owned(), vec![new.clone(), old.clone()])]);
    assert_eq!(find(&["notes"]), [("/notes".to_owned(), vec![new.clone()]), ("/notes".to_owned(), vec![old.clone()])]);
    assert_eq!(find(&["old", "new"]), [("/d/new".to_owned(), vec![new.clone()]), ("/old".to_owned(), vec![old.clone()])]);
    assert_eq!(find(&["old", "--backup", "latest"]), []);
    assert_eq!(find(&["--min-size", "50KiB"]).len(), 1);
    assert_eq!(find(&["--type", "file", "--max-size", "6", "--newer", "2000-01-01"]).len(), 4);
    assert_eq!(find(&["--type", "file", "--older", "2000-01-01"]), []);
    assert_eq!(find(&[&format!("{}/**/er", source.display())]).len(), 1);
    let text = scene.run(["find", "notes"]).succeeds().out;
    assert_eq!((text.lines().count(), text.contains(&old.as_str().unwrap()[..8])), (3, true), "{text}");
    scene.run(["find", "a["]).ends_with(2).says(&["a["]);
    scene.run(["find", "--name", "nobody"]).ends_with(1).says(&["nobody"]);
}

#[test]
fn a_directory_is_dumped_as_an_archive() {
    let scene = Scene::with_store(&[]);
    let source = two_backups(&scene);
    let path = source.to_str().unwrap();
    scene.run(["dump", "latest", path]).ends_with(1).says(&["directory", "--archive tar"]);
    let archive = scene.run(["dump", "latest", path, "--archive", "tar"]).succeeds();
    fs::write(scene.path("archive.tar"), archive.bytes).unwrap();
    fs::create_dir(scene.path("out")).unwrap();
    let done =
        std::process::Command::new("tar").args(["-xf"]).arg(scene.path("archive.tar")).arg("-C").arg(scene.path("out")).status().unwrap();
    assert!(done.success());
    assert_eq!(tree(&scene.path("out/source")), tree(&source));
}

#[test]
fn a_dry_run_lists_what_would_be_done_and_a_repeated_restore_what_is_equal() {
    let scene = Scene::with_store(&[]);
    let source = two_backups(&scene);
    let depth = (source.components().count() - 1).to_string();
    let restore =
        |options: &[&str]| scene.run([&["restore", "latest", "--target", "back", "--strip-components", &depth], options].concat());
    let dry = restore(&["--dry-run"]).succeeds().out;
    assert!(dry.contains(&format!("new      {}/notes\n", source.display())) && dry.contains("nothing was changed"), "{dry}");
    assert!(!scene.path("back").exists());
    restore(&[]).succeeds();
    assert_eq!(tree(&scene.path("back")), tree(&source));
    let again = restore(&[]).succeeds();
    assert!(
        again.out.contains("0 written") && again.out.contains("4 that were equal already") && again.err.is_empty(),
        "{}{}",
        again.out,
        again.err
    );
    fs::write(scene.path("back/notes"), "mine").unwrap();
    fs::write(scene.path("back/d/mine"), "mine").unwrap();
    let told = restore(&[]).ends_with(3);
    assert!(told.out.contains("1 file that differs is in the way") && told.err.contains("notes"), "{}{}", told.out, told.err);
    let dry = restore(&["--dry-run", "--delete", "--overwrite", "if-changed"]).succeeds().out;
    assert!(dry.contains("replace  ") && dry.contains("delete   ") && dry.contains("/d/mine"), "{dry}");
    let report = restore(&["--delete", "--overwrite", "if-changed", "--json"]).succeeds().json();
    assert_eq!([&report["deleted"], &report["files"], &report["files_kept"]], [&1, &1, &3]);
    assert_eq!(tree(&scene.path("back")), tree(&source));
}

#[test]
fn the_store_is_no_target() {
    let scene = Scene::with_store(&[]);
    two_backups(&scene);
    for target in ["store", "store/log", "store/../store/new"] {
        scene.run(["restore", "latest", "--target", target]).ends_with(2).says(&["store"]);
    }
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn programs_hear_how_far_a_restore_is() {
    let scene = Scene::with_store(&["--compression", "none"]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..3000u64 {
        fs::write(source.join(number.to_string()), number.to_le_bytes()).unwrap();
    }
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let run = scene.run(["restore", "latest", "--target", "back", "--json", "--progress"]).succeeds();
    run.json();
    let said = run.err.lines().last().expect("the last line says that all is done");
    let progress: Value = serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(
        (&progress["event"], &progress["has_totals"], &progress["of_bytes"], &progress["bytes"], &progress["files"]),
        (&"progress".into(), &true.into(), &24_000.into(), &24_000.into(), &3000.into())
    );
    for key in ["of_files", "bytes_per_second", "seconds", "errors", "warnings"] {
        assert!(progress[key].is_number(), "{key} in {progress}");
    }
}

#[test]
fn names_that_turn_the_text_around_are_shown_as_bytes() {
    let scene = Scene::with_store(&[]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a\u{202e}fdp.exe"), "").unwrap();
    fs::write(source.join(std::ffi::OsStr::from_bytes(b"quote\"d")), "").unwrap();
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let lines = scene.run(["ls", "latest"]).succeeds().out;
    assert!(lines.contains("a\\xe2\\x80\\xaefdp.exe") && lines.contains("quote\"d") && !lines.contains('\u{202e}'), "{lines}");
    scene.run(["ls", "latest", "/absent\u{202e}"]).ends_with(1).says(&["absent"]);
}
