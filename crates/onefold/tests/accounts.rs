//! Accounts of clients over the network: `account`.

mod support;

use onefold_engine::{Engine, EngineError, Mode, Settings, Transaction};
use onefold_ground::LocalGround;
use onefold_remote::accounts::{Accounts, Refusal, Verdict};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::Scene;

/// Opens the store as a server would. A process that another test is just starting, or a thread of an engine that was
/// dropped, may hold the lock of the last opening a little longer.
fn engine(scene: &Scene) -> Arc<Engine> {
    let ground = Arc::new(LocalGround::open(scene.store()).unwrap());
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match Engine::open(ground.clone(), Settings::default(), Mode::ReadWrite, "test") {
            Err(EngineError::Lock(_)) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.unwrap(),
        }
    }
}

/// What a server says to a name and a secret.
fn verdict(scene: &Scene, name: &str, secret: &str) -> Verdict {
    let engine = engine(scene);
    let verdict = Accounts::new(engine.clone()).unwrap().verify(name, secret, None).unwrap();
    engine.close().unwrap();
    verdict
}

fn is_accepted(scene: &Scene, name: &str, secret: &str) -> bool {
    matches!(verdict(scene, name, secret), Verdict::Accepted(_))
}

#[test]
fn a_secret_is_printed_once_and_an_account_may_write_and_read_its_own_backups() {
    let scene = Scene::with_store(&[]);
    let made = scene.run(["account", "create", "ann"]).succeeds().says(&["created account ann", "not shown again"]);
    let secret = made.out.trim_end();
    assert!(secret.starts_with("1fs-") && secret.len() == 43 && made.out.lines().count() == 1, "{}", made.out);
    assert!(!made.err.contains(secret));
    assert!(is_accepted(&scene, "ann", secret));
    let shown = scene.run(["account", "show", "ann", "--json"]).succeeds();
    let value = shown.json();
    assert_eq!(value["grants"], serde_json::json!([{"namespace": "ann", "permissions": ["backup", "read"]}]));
    assert_eq!((&value["connections"], &value["quota_bytes"], &value["locked"]), (&8.into(), &serde_json::Value::Null, &false.into()));
    let listed = scene.run(["account", "list"]).succeeds();
    assert!(listed.out.contains("ann=backup,read"), "{}", listed.out);
    for text in [shown.out, listed.out, scene.run(["account", "show", "ann"]).succeeds().out] {
        assert!(!text.contains(secret) && !text.contains("1fs-"));
    }
    let quiet = scene.run(["-q", "account", "create", "bob"]).succeeds();
    assert!(quiet.out.starts_with("1fs-") && quiet.err.is_empty(), "{}", quiet.err);
    scene.run(["account", "create", "ann"]).ends_with(1).says(&["already exists", "account list"]);
    scene.run(["account", "show", "nobody"]).ends_with(1).says(&["no account nobody"]);
}

#[test]
fn a_secret_file_is_new_and_private_and_goes_where_nothing_was_created() {
    let scene = Scene::with_store(&[]);
    let made = scene.run(["account", "create", "ann", "--secret-file", "secret", "--json"]).succeeds();
    assert!(made.json()["secret"].is_null());
    let path = scene.path("secret");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let secret = fs::read_to_string(&path).unwrap();
    assert!(is_accepted(&scene, "ann", secret.trim_end()));
    scene.run(["account", "rotate", "ann", "--secret-file", "secret"]).ends_with(2).says(&["secret", "does not exist yet"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), secret);
    for (arguments, code) in [(["create", "ann"], 1), (["create", "NOT A NAME"], 2), (["rotate", "nobody"], 1)] {
        scene.run([&["account"], &arguments[..], &["--secret-file", "other"]].concat()).ends_with(code);
        assert!(!scene.path("other").exists(), "{arguments:?}");
    }
    scene.run(["account", "rotate", "ann", "--secret-file", "new"]).succeeds();
    assert!(!is_accepted(&scene, "ann", secret.trim_end()));
    assert!(is_accepted(&scene, "ann", fs::read_to_string(scene.path("new")).unwrap().trim_end()));
}

#[test]
fn settings_of_an_account_are_set_replaced_and_taken_away() {
    let scene = Scene::with_store(&[]);
    let certificate = "AB:".repeat(31) + "AB";
    let options =
        ["--allow", "team/web=backup,read", "--allow", "*=read", "--quota", "500GiB", "--quota-a-day", "50GiB", "--rate", "50MiB"];
    let more = ["--connections", "2", "--certificate", &certificate, "--certificate-required", "--json"];
    let made = scene.run([&["account", "create", "web"], &options[..], &more[..]].concat()).succeeds().json();
    assert!(made["secret"].as_str().unwrap().starts_with("1fs-") && made["generation"] == 1);
    let shown = scene.run(["account", "show", "web", "--json"]).succeeds().json();
    assert_eq!(shown["grants"][0], serde_json::json!({"namespace": "*", "permissions": ["read"]}));
    assert_eq!(shown["grants"][1]["namespace"], "team/web");
    assert_eq!((&shown["quota_bytes"], &shown["quota_bytes_a_day"]), (&(500u64 << 30).into(), &(50u64 << 30).into()));
    assert_eq!((&shown["bytes_per_second"], &shown["connections"]), (&(50 << 20).into(), &2.into()));
    assert_eq!((&shown["certificates"][0], &shown["certificate_required"]), (&"ab".repeat(32).into(), &true.into()));
    let text = scene.run(["account", "show", "web"]).succeeds().out;
    for part in ["*=read", "team/web=backup,read", "0B of 500GiB", "50MiB/s", "(required)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let set = ["--deny", "*", "--allow", "team/web=forget", "--quota", "none", "--rate", "none", "--certificate", "none", "--json"];
    let set = scene.run([&["account", "set", "web"], &set[..]].concat()).succeeds().says(&["nobody can log in"]).json();
    assert_eq!(set["grants"], serde_json::json!([{"namespace": "team/web", "permissions": ["forget"]}]));
    assert!(set["quota_bytes"].is_null() && set["bytes_per_second"].is_null() && set["quota_bytes_a_day"] == 50u64 << 30);
    assert_eq!(scene.run(["account", "list", "--json"]).succeeds().json()[0], set);
}

#[test]
fn a_locked_account_and_a_replaced_secret_let_nobody_in() {
    let scene = Scene::with_store(&[]);
    let first = scene.run(["account", "create", "ann"]).succeeds().out.trim_end().to_owned();
    assert_eq!(scene.run(["account", "lock", "ann", "--json"]).succeeds().json()["locked"], true);
    assert_eq!(verdict(&scene, "ann", &first), Verdict::Refused(Refusal::Locked));
    scene.run(["account", "unlock", "ann"]).succeeds().says(&["unlocked account ann"]);
    let rotated = scene.run(["account", "rotate", "ann", "--grace", "1h", "--json"]).succeeds().json();
    assert!(rotated["former_secret_until"].is_string() && rotated["generation"] == 2);
    let second = rotated["secret"].as_str().unwrap();
    assert!(is_accepted(&scene, "ann", &first) && is_accepted(&scene, "ann", second));
    let third = scene.run(["account", "rotate", "ann"]).succeeds().out;
    assert!(!is_accepted(&scene, "ann", &first) && !is_accepted(&scene, "ann", second) && is_accepted(&scene, "ann", third.trim_end()));
}

#[test]
fn an_account_with_backups_stays_unless_they_are_to_be_kept() {
    let scene = Scene::with_store(&[]);
    fs::write(scene.path("file"), "content").unwrap();
    scene.run(["backup", "--name", "ann/laptop", "file"]).succeeds();
    scene.run(["account", "create", "ann"]).succeeds().says(&["1 backup exists already in the namespaces of account ann"]);
    let shown = scene.run(["account", "show", "ann", "--json"]).succeeds().json();
    assert_eq!((&shown["backups"], &shown["logical_bytes"], &shown["new_bytes_today"]), (&1.into(), &7.into(), &0.into()));
    scene.run(["account", "delete", "ann"]).ends_with(2).says(&["backups stay", "--yes"]);
    scene.run(["account", "delete", "ann", "--yes"]).ends_with(1).says(&["has backups: 1", "--keep-backups"]);
    assert_eq!(scene.run(["account", "delete", "ann", "--yes", "--keep-backups", "--json"]).succeeds().json()["name"], "ann");
    scene.run(["account", "delete", "ann", "--yes"]).ends_with(1).says(&["no account ann"]);
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json().as_array().unwrap().len(), 1);
    assert_eq!(scene.run(["account", "list"]).succeeds().out, "");
}

#[test]
fn wrong_names_permissions_and_limits_are_refused_and_change_nothing() {
    let scene = Scene::with_store(&[]);
    for (options, expected) in [
        (&["create", "Ann"][..], "not a valid account name"),
        (&["create", "ann", "--allow", "team=write"], "there are backup, read, forget, prune, admin"),
        (&["create", "ann", "--allow", "team"], "team/host=backup,read"),
        (&["create", "ann", "--allow", "../x=read"], ". or .."),
        (&["create", "ann", "--connections", "0"], "1..=4096"),
        (&["create", "ann", "--certificate", "ab"], "64 hexadecimal digits"),
        (&["create", "ann", "--quota", "much"], "much"),
        (&["set", "ann"], "nothing to set"),
    ] {
        scene.run([&["account"], options].concat()).ends_with(2).says(&[expected]);
    }
    assert_eq!(scene.run(["account", "list", "--json"]).succeeds().json(), serde_json::json!([]));
}

#[test]
fn accounts_are_changed_beside_a_daemon_and_the_secret_comes_to_who_asked() {
    let scene = Scene::with_store(&[]);
    let served = scene.serve(&[]);
    let secret = scene.run(["account", "create", "ann"]).succeeds().says(&["not shown again"]).out;
    scene.run(["account", "create", "bob", "--secret-file", "bob"]).succeeds();
    scene.run(["account", "set", "ann", "--quota", "1GiB"]).succeeds();
    scene.run(["account", "create", "ann"]).ends_with(1).says(&["already exists"]);
    assert_eq!(scene.run(["account", "list", "--json"]).succeeds().json().as_array().unwrap().len(), 2);
    assert_eq!(scene.run(["account", "show", "ann", "--json"]).succeeds().json()["quota_bytes"], 1 << 30);
    assert_eq!(served.stop().0, 0);
    assert!(is_accepted(&scene, "ann", secret.trim_end()));
    assert!(is_accepted(&scene, "bob", fs::read_to_string(scene.path("bob")).unwrap().trim_end()));
}

#[test]
fn a_damaged_account_is_found_by_check_stops_no_other_and_can_be_deleted() {
    let scene = Scene::with_store(&[]);
    let secret = scene.run(["account", "create", "ann"]).succeeds().out;
    scene.run(["account", "create", "bob"]).succeeds();
    scene.run(["check"]).succeeds();
    let engine = engine(&scene);
    let mut key = b"zabob".to_vec();
    key.resize(66, 0);
    let changes = vec![(0, key, Some(vec![1, 2, 3]))];
    engine.submit(Transaction { changes, references: Vec::new() }).unwrap();
    engine.close().unwrap();
    drop(engine);
    let report = scene.run(["check", "--json"]).ends_with(1).json();
    assert_eq!((&report["problems"][0]["kind"], &report["problem_count"]), (&"object".into(), &1.into()), "{report}");
    assert!(report["problems"][0]["what"].as_str().unwrap().contains("account bob"), "{report}");
    let listed = scene.run(["account", "list", "--json"]).succeeds().says(&["left out", "account bob is damaged"]).json();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &"ann".into()));
    assert!(is_accepted(&scene, "ann", secret.trim_end()));
    assert_eq!(verdict(&scene, "bob", secret.trim_end()), Verdict::Refused(Refusal::Damaged));
    scene.run(["account", "show", "bob"]).ends_with(1).says(&["damaged", "account delete bob"]);
    scene.run(["account", "delete", "bob", "--yes"]).succeeds();
    scene.run(["check"]).succeeds();
    scene.run(["account", "create", "bob"]).succeeds();
}

#[test]
fn a_repair_keeps_accounts_and_a_copy_has_none() {
    let scene = Scene::with_store(&[]);
    let secret = scene.run(["account", "create", "ann"]).succeeds().out;
    scene.run(["check", "--repair"]).succeeds();
    scene.run(["check", "--rebuild-index"]).succeeds();
    assert!(is_accepted(&scene, "ann", secret.trim_end()));
    scene.run(["copy", "--to", "other", "--init"]).succeeds();
    assert_eq!(scene.run(["account", "list", "--store", "other"]).succeeds().out, "");
}
