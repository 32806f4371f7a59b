//! Backups from which something is missing, and those in which there would be nothing.

mod support;

use std::fs;
use support::Scene;

/// A store with a complete backup, then a partial one; their ids.
fn complete_then_partial() -> (Scene, String, String) {
    let scene = Scene::with_store(&[]);
    fs::create_dir(scene.path("source")).unwrap();
    fs::write(scene.path("source/file"), "first").unwrap();
    let complete = scene.run(["backup", "--name", "home", "--json", "source"]).succeeds().json();
    fs::write(scene.path("source/file"), "second").unwrap();
    let partial = scene.run(["backup", "--name", "home", "--json", "source", "absent"]).ends_with(3).json();
    let id = |made: &serde_json::Value| made["id"].as_str().unwrap().to_owned();
    (scene, id(&complete), id(&partial))
}

#[test]
fn a_4_a_partial_backup_is_marked_wherever_it_is_named() {
    let (scene, complete, partial) = complete_then_partial();
    let list = scene.run(["backups", "--json"]).succeeds().json();
    assert_eq!((&list[0]["partial"], &list[1]["partial"], &list[1]["errors"]), (&false.into(), &true.into(), &1.into()));
    let out = scene.run(["backups"]).succeeds().out;
    assert!(out.lines().nth(1).unwrap().contains("complete") && out.lines().nth(2).unwrap().contains("PARTIAL"), "{out}");
    for command in [&["ls", &partial][..], &["restore", &partial, "--target", "back"], &["diff", &complete, &partial]] {
        scene.run(command).succeeds().says(&["warning", &partial[..8], "is partial: 1 file or directory is missing"]);
    }
    let restored = scene.run(["restore", &partial, "--target", "again", "--json"]).succeeds().json();
    assert_eq!(restored["backup_errors"], 1);
    assert_eq!(scene.run(["ls", "-q", &partial]).succeeds().err, "");
}

#[test]
fn a_4_latest_is_the_newest_complete_backup() {
    let (scene, complete, partial) = complete_then_partial();
    for latest in ["latest", "latest:home"] {
        let run = scene.run(["restore", latest, "--target", &format!("{latest}-back"), "--json"]).succeeds();
        assert_eq!(run.json()["backup"], complete.as_str());
        run.says(&["newest complete backup", &partial[..8], "is partial", "latest-any"]);
    }
    let run = scene.run(["restore", "latest-any:home", "--target", "any", "--json"]).succeeds();
    assert_eq!(run.json()["backup"], partial.as_str());
}

#[test]
fn a_4_forget_keeps_no_partial_backup_in_the_place_of_a_complete_one() {
    let (scene, complete, partial) = complete_then_partial();
    let ids = |group: &serde_json::Value| {
        group.as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for rule in ["--keep-last", "--keep-daily", "--keep-yearly"] {
        let done = scene.run(["forget", rule, "1", "--json"]).succeeds().json();
        assert_eq!(ids(&done["groups"][0]["keep"]), [complete.clone(), partial.clone()], "{rule}");
    }
    let newer = scene.run(["backup", "--name", "home", "--json", "source"]).succeeds().json();
    let done = scene.run(["forget", "--keep-last", "1", "--json"]).succeeds().json();
    assert_eq!(ids(&done["groups"][0]["keep"]), [newer["id"].as_str().unwrap()]);
    assert_eq!(ids(&done["groups"][0]["remove"]), [complete, partial]);
}

#[test]
fn a_4_a_backup_of_which_everything_is_excluded_is_refused() {
    let scene = Scene::with_store(&[]);
    fs::create_dir_all(scene.path("source/below")).unwrap();
    fs::write(scene.path("source/below/file"), "first").unwrap();
    for pattern in ["*", "file", "below", "source", "/**"] {
        scene
            .run(["backup", "--name", "home", "--exclude", pattern, "source"])
            .ends_with(2)
            .says(&["nothing to back up", "everything is excluded"]);
    }
    // The store is never part of a backup.
    let store = scene.store();
    scene.run(["backup".as_ref(), "--name".as_ref(), "home".as_ref(), store.as_os_str()]).ends_with(2).says(&["everything is excluded"]);
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json(), serde_json::json!([]));
    fs::remove_file(scene.path("source/below/file")).unwrap();
    scene.run(["backup", "--name", "empty", "source"]).succeeds();
}

#[test]
fn c_15_backups_are_found_by_their_tags() {
    let scene = Scene::with_store(&[]);
    fs::create_dir(scene.path("source")).unwrap();
    fs::write(scene.path("source/file"), "x").unwrap();
    let backup = |tags: &[&str]| {
        let options = tags.iter().flat_map(|tag| ["--tag", tag]);
        let made = scene.run(["backup", "--name", "home", "--json", "source"].into_iter().chain(options)).succeeds().json();
        assert_eq!(made["tags"].as_array().unwrap().len(), tags.len());
        made["id"].as_str().unwrap().to_owned()
    };
    let ids = [backup(&["b", "a"]), backup(&["b"]), backup(&[])];
    let listed = |options: &[&str]| {
        let list = scene.run(["backups", "--json"].iter().chain(options)).succeeds().json();
        list.as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((listed(&["--tag", "a"]), listed(&["--tag", "b"])), (ids[..1].to_vec(), ids[..2].to_vec()));
    assert_eq!(listed(&["--tag", "a", "--tag", "c"]), ids[..1]);
    assert!(scene.run(["backups"]).succeeds().out.contains("a,b"));
    for (asked, expected) in [("latest#a", &ids[0]), ("latest:home#b", &ids[1]), ("latest", &ids[2])] {
        let target = format!("back-{}", &expected[..8]);
        assert_eq!(scene.run(["restore", asked, "--target", &target, "--json"]).succeeds().json()["backup"], expected.as_str());
    }
    scene.run(["restore", "latest#c", "--target", "none"]).ends_with(1).says(&["latest#c"]);
    scene.run(["backup", "--name", "home", "--tag", "a b", "source"]).ends_with(2).says(&["a b", "a tag is a word"]);
    scene.run(["forget", "--tag", "bb", "--keep-last", "1"]).ends_with(1).says(&["the tag `bb`", "did you mean `b`?"]);
    scene.run(["forget", "--tag", "b", "--keep-last", "1"]).succeeds();
    assert_eq!(listed(&[]), ids[1..]);
}
