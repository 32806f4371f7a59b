//! `forget`, `protect` and `append-only` through the binary: what goes, what stays, and what bad input is told.

mod support;

use onefold_catalog::Catalog;
use onefold_engine::{Engine, Mode, Settings, Transaction};
use onefold_ground::LocalGround;
use onefold_ground::wire::{put_signed, put_varint};
use std::fs;
use std::sync::Arc;
use support::{Run, Scene};

const SECRET: &str = "open sesame";

/// A store with so many backups of each name, the oldest first; their ids.
fn with_backups(names: &[(&str, usize)]) -> (Scene, Vec<Vec<String>>) {
    let scene = Scene::with_store(&[]);
    fs::create_dir(scene.path("source")).unwrap();
    let backup = |name: &str, number: usize| {
        fs::write(scene.path("source").join("file"), format!("{name} {number}")).unwrap();
        let made = scene.run(["backup", "--name", name, "--json", "source"]).succeeds().json();
        made["id"].as_str().unwrap().to_owned()
    };
    let ids = names.iter().map(|(name, count)| (0..*count).map(|number| backup(name, number)).collect()).collect();
    (scene, ids)
}

/// The ids of the backups that there are.
fn listed(scene: &Scene) -> Vec<String> {
    let list = scene.run(["backups", "--json"]).succeeds().json();
    list.as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect()
}

fn with_secret(scene: &Scene, secret: &str, arguments: &[&str]) -> Run {
    Run::from(scene.command(arguments).env("ONEFOLD_SECRET", secret).output().unwrap())
}

#[test]
fn a_policy_is_applied_to_each_name_and_a_dry_run_changes_nothing() {
    let (scene, ids) = with_backups(&[("home", 4), ("mail", 2)]);
    let all = listed(&scene);
    let tried = scene.run(["forget", "--keep-last", "1", "--dry-run", "--json"]).succeeds().json();
    assert_eq!((&tried["dry_run"], &tried["kept"], &tried["removed"]), (&true.into(), &2.into(), &4.into()));
    let text = scene.run(["forget", "--keep-last", "2", "--dry-run"]).succeeds().out;
    for expected in
        ["policy: keep last 2", "home: keep 2 backups", "home: remove 2 backups", "mail: keep 2 backups", "2 of 6 backups would be"]
    {
        assert!(text.contains(expected), "{expected} in:\n{text}");
    }
    assert_eq!(listed(&scene), all);

    let done = scene.run(["forget", "--name", "home", "--keep-last", "2", "--json"]).succeeds().json();
    let group = &done["groups"][0];
    assert_eq!((done["groups"].as_array().unwrap().len(), &group["name"]), (1, &"home".into()));
    assert_eq!((&group["remove"][0]["id"], &group["remove"][1]["id"]), (&ids[0][0].as_str().into(), &ids[0][1].as_str().into()));
    assert_eq!((&group["keep"][1]["id"], &group["keep"][1]["reasons"]), (&ids[0][3].as_str().into(), &serde_json::json!(["last"])));
    assert_eq!(listed(&scene), all[2..]);
    // Once more, nothing goes.
    assert!(scene.run(["forget", "--name", "home", "--keep-last", "2"]).succeeds().out.ends_with("nothing to forget\n"));
    let host = scene.run(["backups", "--json"]).succeeds().json()[0]["host"].as_str().unwrap().to_owned();
    assert_eq!(scene.run(["forget", "--host", &host, "--keep-within", "1h", "--json"]).succeeds().json()["removed"], 0);
    assert_eq!(scene.run(["forget", "-q", "--keep-last", "1"]).succeeds().out, "");
    assert_eq!(listed(&scene), [ids[0][3].as_str(), &ids[1][1]]);
    scene.run(["check", "--read-data"]).succeeds();
    scene.run(["restore", "latest:home", "--target", "back"]).succeeds();
}

#[test]
fn backups_that_are_named_go_all_or_none() {
    let (scene, ids) = with_backups(&[("home", 3), ("mail", 1)]);
    scene.run(["forget", &ids[0][0], "ffffffffffff", "--yes"]).ends_with(1).says(&["ffffffffffff", "onefold backups"]);
    scene.run(["forget", "latest:none", "--yes"]).ends_with(1).says(&["latest:none"]);
    assert_eq!(listed(&scene).len(), 4);
    // The same one by three names goes once.
    let out = scene.run(["forget", &ids[0][2], &ids[0][2][..20], "latest:home", "latest:mail", "--yes"]).succeeds().out;
    assert!(out.contains("home: remove 1 backup\n") && out.contains("forgot 2 backups; `onefold prune`"), "{out}");
    assert_eq!(listed(&scene), ids[0][..2]);
    scene.run(["forget", &ids[0][2], "--yes"]).ends_with(1).says(&[&ids[0][2]]);
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn an_id_that_is_not_unique_is_refused() {
    let (scene, ids) = with_backups(&[("x", 17)]);
    // Of seventeen ids two begin with the same digit.
    let digit = |id: &String| id[..1].to_owned();
    let twice = ids[0].iter().map(digit).find(|first| ids[0].iter().filter(|id| id.starts_with(first)).count() > 1).unwrap();
    scene.run(["forget", &twice, "--yes"]).ends_with(1).says(&["several backups begin with"]);
    scene.run(["protect", &twice, "--for", "1d"]).ends_with(1).says(&["several backups begin with"]);
    assert_eq!(listed(&scene).len(), 17);
}

#[test]
fn what_would_forget_by_mistake_is_refused() {
    let (scene, ids) = with_backups(&[("home", 2), ("mail", 1)]);
    scene.run(["forget"]).ends_with(2).says(&["nothing to forget", "--keep-daily"]);
    scene.run(["forget", "--name", "home"]).ends_with(2).says(&["nothing to forget"]);
    scene.run(["forget", "--keep-last", "0"]).ends_with(2).says(&["keeps no backup at all", "--name NAME --keep-last 0"]);
    scene.run(["forget", "--name", "home", "--keep-daily", "0"]).ends_with(2).says(&["keeps no backup at all"]);
    scene.run(["forget", "--name", "hoem", "--keep-last", "1"]).ends_with(1).says(&["`hoem`", "did you mean `home`?"]);
    scene.run(["forget", "--host", "nowhere", "--keep-last", "1"]).ends_with(1).says(&["machine `nowhere`"]);
    scene.run(["forget", "latest", "--keep-last", "1"]).ends_with(2).says(&["--keep-last", "cannot be used with"]);
    scene.run(["forget", "latest", "--name", "home"]).ends_with(2).says(&["--name", "cannot be used with"]);
    scene.run(["forget", "--keep-dialy", "1"]).ends_with(2).says(&["--keep-dialy", "--keep-daily"]);
    scene.run(["forget", "--keep-daily", "many"]).ends_with(2).says(&["`many`", "unlimited"]);
    scene.run(["forget", "--keep-daily=-1"]).ends_with(2).says(&["`-1`"]);
    for (period, expected) in
        [("3w", "`w` in `3w` is not a unit"), ("30", "is not a period"), ("0d", "is too short"), ("9999999999d", "too long")]
    {
        scene.run(["forget", "--keep-within", period]).ends_with(2).says(&["--keep-within", expected]);
    }
    assert_eq!(listed(&scene).len(), 3);
    // What is said in so many words is done.
    scene.run(["forget", "--name", "home", "--keep-last", "0"]).succeeds();
    assert_eq!(listed(&scene), ids[1]);
    assert_eq!(scene.run(["forget", "--keep-yearly", "unlimited", "--json"]).succeeds().json()["removed"], 0);
}

#[test]
fn a_protected_backup_stays_and_says_why() {
    let (scene, ids) = with_backups(&[("home", 3)]);
    let [old, middle, _] = [&ids[0][0], &ids[0][1], &ids[0][2]];
    let made = scene.run(["protect", old, "--until", "2200-01-31T12:00:00Z", "--json"]).succeeds().json();
    assert_eq!((&made[0]["id"], &made[0]["protected_until"]), (&old.as_str().into(), &"2200-01-31T12:00:00Z".into()));
    let list = scene.run(["backups", "--json"]).succeeds().json();
    assert_eq!((&list[0]["protected_until"], &list[1]["protected_until"]), (&"2200-01-31T12:00:00Z".into(), &serde_json::Value::Null));
    assert!(scene.run(["backups"]).succeeds().out.lines().nth(1).unwrap().contains("2200-01-31"));
    scene.run(["forget", middle, old, "--yes"]).ends_with(1).says(&["protected", "until 2200-01-31"]);
    scene.run(["forget", old, "--dry-run"]).ends_with(1).says(&["protected"]);
    assert_eq!(listed(&scene).len(), 3);
    let done = scene.run(["forget", "--keep-last", "1", "--json"]).succeeds().json();
    assert_eq!(done["groups"][0]["keep"][0]["reasons"], serde_json::json!(["protected"]));
    assert!(scene.run(["forget", "--keep-last", "1"]).succeeds().out.contains("protected until 2200-01-31"));
    assert_eq!(listed(&scene), [old.as_str(), &ids[0][2]]);

    let said = scene.run(["protect", &old[..16], "--for", "1y6m"]).succeeds().out;
    assert!(said.contains("is protected until") && said.contains("(before: until 2200-01-31"), "{said}");
    assert!(scene.run(["protect", old, "--off"]).succeeds().out.contains("no longer protected"));
    scene.run(["forget", old, "--yes"]).succeeds();
    assert_eq!(listed(&scene), ids[0][2..]);
    scene.run(["check"]).succeeds();
}

#[test]
fn a_6_protect_says_when_the_protection_ends_and_not_what_was_asked() {
    let (scene, ids) = with_backups(&[("home", 1)]);
    let id = ids[0][0].as_str();
    scene.run(["protect", id, "--until", "2200-01-31"]).succeeds();
    // Its date is past, but the store was not open for long enough to have seen as many days pass.
    let ground = Arc::new(LocalGround::open(scene.store()).unwrap());
    let engine = Engine::open(ground, Settings::default(), Mode::ReadWrite, "test").unwrap();
    let key = Catalog::new(engine.clone()).find(id).map(|backup| [b"k", &backup.id.as_bytes()[..]].concat()).unwrap();
    let mut value = engine.get(0, &key).unwrap().unwrap();
    value.truncate(1);
    put_signed(&mut value, engine.date_ns() - 1);
    put_varint(&mut value, engine.seen_ns() + 100 * 86_400_000_000_000);
    engine.submit(Transaction { changes: vec![(0, key, Some(value))], references: Vec::new() }).unwrap();
    engine.close().unwrap();
    drop(engine);
    let listed = || scene.run(["backups", "--json"]).succeeds().json()[0]["protected_until"].as_str().map(|until| until[..10].to_owned());
    let ends = listed();
    assert!(ends.is_some());
    let run = scene.run(["protect", id, "--for", "10d", "--json"]).succeeds();
    assert_eq!(run.json()[0]["protected_until"].as_str().map(|until| until[..10].to_owned()), ends);
    assert!(run.err.contains("longer than you asked") && run.err.contains("protect --off"), "{}", run.err);
    assert_eq!(listed(), ends);
    let run = scene.run(["protect", id, "--for", "200d"]).succeeds();
    assert!(!run.err.contains("longer"), "{}", run.err);
}

#[test]
fn dates_that_protect_nothing_are_refused() {
    let (scene, _) = with_backups(&[("home", 1)]);
    scene.run(["protect", "latest"]).ends_with(2).says(&["--until", "--for", "--off"]);
    scene.run(["protect", "--for", "1d"]).ends_with(2).says(&["ID"]);
    scene.run(["protect", "latest", "--for", "1d", "--off"]).ends_with(2).says(&["cannot be used with"]);
    scene.run(["protect", "latest", "--until", "tomorrow"]).ends_with(2).says(&["`tomorrow` is not a date", "2027-01-31"]);
    scene.run(["protect", "latest", "--until", "2021-02-29"]).ends_with(2).says(&["`2021-02-29` is not a date"]);
    scene.run(["protect", "latest", "--until", "2020-01-31"]).ends_with(2).says(&["2020-01-31", "is in the past", "--off"]);
    scene.run(["protect", "latest", "--for", "900y"]).ends_with(2).says(&["900y", "2261"]);
    scene.run(["protect", "latest", "--for", "1w"]).ends_with(2).says(&["`w` in `1w`"]);
    scene.run(["protect", "latest:none", "--for", "1d"]).ends_with(1).says(&["latest:none"]);
    assert!(scene.run(["backups", "--json"]).succeeds().json()[0]["protected_until"].is_null());
}

#[test]
fn append_only_mode_refuses_every_deletion_and_lets_the_rest_go_on() {
    let (scene, ids) = with_backups(&[("home", 2)]);
    scene.run(["volume", "create", "disk", "--size", "8MiB"]).succeeds();
    scene.run(["protect", &ids[0][0], "--for", "30d"]).succeeds();
    assert_eq!(scene.run(["append-only", "status"]).succeeds().out, "append-only mode is off\n");
    with_secret(&scene, SECRET, &["append-only", "on"]).succeeds();
    let status = scene.run(["append-only", "status", "--json"]).succeeds().json();
    assert!(status["append_only"] == true && status["since"].is_string(), "{status}");

    for refused in [
        &["forget", &ids[0][1], "--yes"][..],
        &["forget", "--keep-last", "1"],
        &["forget", "--keep-last", "9"],
        &["protect", &ids[0][0], "--off"],
        &["protect", &ids[0][0], "--for", "29d"],
        &["volume", "delete", "disk", "--yes"],
        &["volume", "resize", "disk", "--size", "4MiB", "--yes"],
    ] {
        scene.run(refused).ends_with(1).says(&["append-only mode", "onefold append-only off"]);
    }
    for allowed in [
        &["forget", "--keep-last", "1", "--dry-run"][..],
        &["protect", &ids[0][0], "--for", "31d"],
        &["protect", &ids[0][1], "--for", "1d"],
        &["backup", "--name", "home", "source"],
        &["volume", "resize", "disk", "--size", "16MiB"],
        &["volume", "create", "other", "--size", "1MiB"],
        &["volume", "import", "other", "source/file"],
        &["restore", "latest", "--target", "back"],
    ] {
        scene.run(allowed).succeeds();
    }
    assert_eq!(listed(&scene).len(), 3);

    with_secret(&scene, "open sesame?", &["append-only", "off"]).ends_with(1).says(&["the secret is wrong", "stays on"]);
    with_secret(&scene, "another one", &["append-only", "on"]).ends_with(2).says(&["already on"]);
    scene.run(["append-only", "off"]).ends_with(2).says(&["no secret was given", "--secret-file", "ONEFOLD_SECRET"]);
    scene.run(["volume", "delete", "disk", "--yes"]).ends_with(1);
    fs::write(scene.path("secret"), format!("{SECRET}\n")).unwrap();
    scene.run(["append-only", "off", "--secret-file", "secret"]).succeeds();
    scene.run(["append-only", "off", "--secret-file", "secret"]).ends_with(2).says(&["it is not on"]);
    scene.run(["volume", "delete", "disk", "--yes"]).succeeds();
    scene.run(["protect", &ids[0][0], &ids[0][1], "--off"]).succeeds();
    scene.run(["forget", "--keep-last", "1"]).succeeds();
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn beside_a_daemon_the_same_is_done_and_refused() {
    let (scene, ids) = with_backups(&[("home", 4)]);
    scene.run(["volume", "create", "disk", "--size", "8MiB"]).succeeds();
    let served = scene.serve(&[]);
    scene.run(["protect", &ids[0][0], "--for", "1d"]).succeeds();
    let tried = scene.run(["forget", "--keep-last", "1", "--keep-within", "0y1h", "--dry-run", "--json"]).succeeds().json();
    assert_eq!((&tried["dry_run"], &tried["removed"]), (&true.into(), &0.into()));
    assert_eq!(scene.run(["forget", "--keep-last", "2", "--json"]).succeeds().json()["removed"], 1);
    with_secret(&scene, SECRET, &["append-only", "on"]).succeeds();
    scene.run(["forget", "latest", "--yes"]).ends_with(1).says(&["append-only mode", "onefold append-only off"]);
    scene.run(["volume", "delete", "disk", "--yes"]).ends_with(1).says(&["append-only mode"]);
    with_secret(&scene, "a wrong one", &["append-only", "off"]).ends_with(1).says(&["the secret is wrong"]);
    assert_eq!(served.stop().0, 0);
    assert!(scene.run(["append-only", "status"]).succeeds().out.starts_with("append-only mode is on since 2"));
    let served = scene.serve(&[]);
    with_secret(&scene, SECRET, &["append-only", "off"]).succeeds();
    scene.run(["forget", "latest", "--yes"]).succeeds();
    assert_eq!(listed(&scene), [ids[0][0].as_str(), &ids[0][2]]);
    assert_eq!(served.stop().0, 0);
    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn secrets_that_are_none_are_refused() {
    let scene = Scene::with_store(&[]);
    with_secret(&scene, "short", &["append-only", "on"]).ends_with(2).says(&["5 bytes", "from 8 to 1024"]);
    with_secret(&scene, "", &["append-only", "on"]).ends_with(2).says(&["the secret is empty"]);
    with_secret(&scene, &"x".repeat(1025), &["append-only", "on"]).ends_with(2).says(&["more than 1024 bytes"]);
    scene.run(["append-only", "on", "--secret-file", "absent"]).ends_with(2).says(&["absent", "No such file"]);
    scene.run(["append-only", "on", "--secret-file", "."]).ends_with(2).says(&["secret"]);
    scene.run(["append-only", "on", "--secret-file", "-"]).ends_with(2).says(&["the secret is empty"]);
    scene.run(["append-only"]).ends_with(2);
    assert_eq!(scene.run(["append-only", "status"]).succeeds().out, "append-only mode is off\n");
}
