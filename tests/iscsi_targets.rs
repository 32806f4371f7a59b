//! Targets: which volumes initiators see, who may use them, what a restart leaves as it was.

use onefold_tests::iscsi::Initiator;
use onefold_tests::{Daemon, RequestError, Scene, client, installed};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;

const ISCSI: [&str; 4] = ["--nbd", "none", "--iscsi", "127.0.0.1:0"];
const ONE: &str = "iqn.2026-01.com.example:one";

fn log_in(daemon: &Daemon, target: &str, name: &str, lun: u8) -> io::Result<Initiator> {
    Initiator::log_in(daemon.portal(), target, name, 1, lun)
}

/// The status with which a login is refused.
fn refused(daemon: &Daemon, target: &str, name: &str) -> String {
    let error = log_in(daemon, target, name, 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    error.to_string()
}

#[test]
fn targets_are_made_and_changed_beside_the_daemon_and_are_there_after_its_restart() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    scene.volume("logs", "8MiB");
    let daemon = scene.serve_with(&ISCSI);
    let all = daemon.unit("disk").0.to_owned();
    scene.run(["target", "create", ONE, "--max-sessions", "2"]).succeeds();
    scene.run(["target", "attach", ONE, "logs", "--lun", "5", "--block-size", "4KiB"]).succeeds();
    scene.run(["target", "attach", ONE, "disk"]).succeeds();
    assert_eq!(refused(&daemon, &all, "iqn.x"), "0203", "the target with all volumes is there only while nobody has made one");
    let mut initiator = log_in(&daemon, ONE, "iqn.x", 5).unwrap();
    let capacity = initiator.command(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8).unwrap();
    assert_eq!(capacity, [2047u32.to_be_bytes(), 4096u32.to_be_bytes()].concat());
    let text = scene.run(["target", "attach", ONE, "disk"]).ends_with(1).text();
    assert!(text.contains("already LUN 0 of target iqn.2026-01.com.example:one") && text.contains("target detach"), "{text}");
    let text = scene.run(["target", "create", ONE]).ends_with(1).text();
    assert!(text.contains("already exists") && text.contains("target list"), "{text}");
    let text = scene.run(["target", "attach", ONE, "dsk"]).ends_with(1).text();
    assert!(text.contains("did you mean disk?"), "{text}");
    let text = scene.run(["target", "attach", "iqn.2026-01.com.example:on", "disk"]).ends_with(1).text();
    assert!(text.contains("did you mean iqn.2026-01.com.example:one?"), "{text}");
    for command in [&["volume", "delete", "disk", "--yes"][..], &["target", "detach", ONE, "disk"], &["target", "delete", ONE, "--yes"]] {
        scene.run(command).ends_with(1);
    }
    scene.run(["target", "create", "two"]).succeeds();
    scene.run(["target", "create", "a b"]).ends_with(2);
    let list = scene.run(["target", "list", "--json"]).succeeds().json();
    assert_eq!((&list[0]["name"], &list[0]["sessions"], &list[0]["max_sessions"]), (&ONE.into(), &1.into(), &2.into()));
    assert_eq!((&list[0]["luns"][1]["lun"], &list[0]["luns"][1]["volume"]), (&5.into(), &"logs".into()));
    assert_eq!(list[1]["name"], "iqn.2026-01.io.github.onefold:two");
    drop(initiator);
    daemon.stop();
    scene.run(["target", "set", ONE, "--read-only"]).succeeds();
    scene.run(["target", "delete", "two", "--yes"]).succeeds();
    let daemon = scene.serve_with(&ISCSI);
    assert_eq!((daemon.unit("disk"), daemon.unit("logs")), ((ONE, 0), (ONE, 5)));
    let mut initiator = log_in(&daemon, ONE, "iqn.x", 0).unwrap();
    assert!(matches!(initiator.write(0, &[1; 512]), Err(RequestError::Refused(0x07_2700))), "write protected");
    scene.run(["target", "set", ONE, "--read-only", "false"]).succeeds();
    initiator.write(0, &[1; 512]).unwrap();
    let _second = Initiator::log_in(daemon.portal(), ONE, "iqn.x", 2, 0).unwrap();
    assert_eq!(refused(&daemon, ONE, "iqn.y"), "0302", "two sessions are the most");
    scene.run(["target", "delete", ONE, "--force", "--yes"]).succeeds();
    assert!(matches!(initiator.read(0, 512), Err(RequestError::Lost(_))), "its sessions are closed");
    let text = scene.run(["target", "list"]).succeeds().text();
    assert!(text.contains(&all) && text.contains("all volumes"), "{text}");
    daemon.stop();
    scene.check();
}

#[test]
fn who_is_not_on_the_lists_is_refused_from_then_on() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    let daemon = scene.serve_with(&ISCSI);
    scene.run(["target", "create", ONE]).succeeds();
    scene.run(["target", "attach", ONE, "disk"]).succeeds();
    scene.run(["target", "allow", ONE, "--initiator", "iqn.2001-04.com.example:host-?", "--network", "127.0.0.0/8"]).succeeds();
    assert_eq!(refused(&daemon, ONE, "iqn.2001-04.com.example:other"), "0202");
    let open = log_in(&daemon, ONE, "iqn.2001-04.com.example:host-1", 0).unwrap();
    let text = scene.run(["target", "allow", ONE, "--network", "10.0.0.0/8"]).succeeds().text();
    assert!(text.contains("session drop"), "{text}");
    scene.run(["target", "deny", ONE, "--network", "127.0.0.0/8"]).succeeds();
    drop(open);
    assert_eq!(refused(&daemon, ONE, "iqn.2001-04.com.example:host-1"), "0202");
    scene.run(["target", "deny", ONE, "--network", "127.0.0.0/8"]).ends_with(1);
    scene.run(["target", "allow", ONE, "--network", "10.0.0.1/8"]).ends_with(2);
    let text = scene.run(["target", "deny", ONE, "--network", "10.0.0.0/8", "--initiator", "iqn.2001-04.com.example:host-?"]).succeeds();
    assert!(text.text().contains("everybody who can reach it"), "{}", text.text());
    log_in(&daemon, ONE, "iqn.2001-04.com.example:other", 0).unwrap();
    let text = scene.run(["target", "detach", ONE, "--lun", "7"]).ends_with(1).text();
    assert!(text.contains("LUN 7 is not in target"), "{text}");
    scene.run(["target", "detach", ONE, "disk", "--lun", "0"]).ends_with(2);
    scene.run(["target", "detach", ONE, "--lun", "0", "--force"]).succeeds();
    scene.run(["volume", "delete", "disk", "--yes"]).succeeds();
    daemon.stop();
}

#[test]
fn m0_1_chap_lets_in_who_knows_the_secret_and_proves_the_target() {
    if !installed(&["iscsi-inq"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    let secret = |name: &str, content: &str, mode: u32| {
        let path = scene.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    secret("host", "secret of host\n", 0o600);
    secret("own", "secret of target", 0o600);
    secret("short", "too short", 0o600);
    secret("open", "secret of host", 0o644);
    let daemon = scene.serve_with(&ISCSI);
    scene.run(["target", "create", ONE]).succeeds();
    scene.run(["target", "attach", ONE, "disk"]).succeeds();
    let chap = |user: &str, file: &str, mutual: &[&str]| {
        scene.run([&["target", "chap", ONE, "--user", user, "--secret-file", file][..], mutual].concat())
    };
    assert!(chap("host", "short", &[]).ends_with(2).text().contains("12 to 16 bytes suit"));
    assert!(chap("host", "open", &[]).ends_with(2).text().contains("chmod 600"));
    chap("host", "host", &[]).succeeds();
    chap("onefold", "own", &["--mutual"]).succeeds();
    let inquire = |login: &str| client("iscsi-inq", [format!("iscsi://{login}{}/{ONE}/0", daemon.portal())]).code == 0;
    let both = |secret: &str| {
        let url = format!("iscsi://host%secret of host@{}/{ONE}/0?target_user=onefold&target_password={secret}", daemon.portal());
        client("iscsi-inq", [url]).code == 0
    };
    assert_eq!(refused(&daemon, ONE, "iqn.x"), "0201");
    assert!(inquire("host%secret of host@") && !inquire("host%secret of hosT@") && !inquire("hos%secret of host@") && !inquire(""));
    assert!(both("secret of target") && !both("secret of Target"));
    secret("host", "another secret", 0o600);
    assert!(inquire("host%another secret@") && !inquire("host%secret of host@"), "a new secret counts at once");
    secret("host", "another secret", 0o604);
    assert!(!inquire("host%another secret@"), "a secret that all may read is none");
    let list = scene.run(["target", "list", "--json"]).succeeds().json();
    assert_eq!((&list[0]["chap"][0]["user"], &list[0]["chap_mutual"]["user"]), (&"host".into(), &"onefold".into()));
    assert!(!list.to_string().contains("secret of"), "{list}");
    scene.run(["target", "chap", ONE, "--off"]).succeeds();
    assert!(inquire(""));
    daemon.stop();
    scene.check();
}

#[test]
fn a_wrong_chap_secret_is_in_the_log_with_address_and_name_but_not_the_secret() {
    if !installed(&["iscsi-inq"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    fs::write(scene.path("host"), "secret of host").unwrap();
    fs::set_permissions(scene.path("host"), fs::Permissions::from_mode(0o600)).unwrap();
    let log = scene.path("log");
    let daemon = scene.serve_with_log(&["--iscsi", "127.0.0.1:0"], &log);
    assert!(daemon.event["addresses"].as_array().unwrap().is_empty(), "iSCSI alone was asked for: {}", daemon.event);
    scene.run(["target", "create", ONE]).succeeds();
    scene.run(["target", "attach", ONE, "disk"]).succeeds();
    scene.run(["target", "chap", ONE, "--user", "host", "--secret-file", "host"]).succeeds();
    let log_in = |user: &str| client("iscsi-inq", [format!("iscsi://{user}@{}/{ONE}/0", daemon.portal())]).code == 0;
    assert!(log_in("host%secret of host") && fs::read_to_string(&log).unwrap().is_empty());
    for _ in 0..5 {
        assert!(!log_in("intruder%my wrong guess"));
    }
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("a login failed").count(), 1, "an address is named once in a while: {said}");
    assert!(said.contains("WARN") && said.contains("intruder") && said.contains("127.0.0.1") && said.contains(ONE), "{said}");
    assert!(!said.contains("guess") && !said.contains("secret of"), "{said}");
    daemon.stop();
}

/// PERSISTENT RESERVE OUT.
fn reserve_out(initiator: &mut Initiator, action: u8, kind: u8, key: u64, new_key: u64, keep: bool) -> Result<Vec<u8>, RequestError> {
    let mut list = [key.to_be_bytes(), new_key.to_be_bytes(), [0; 8]].concat();
    list[20] = u8::from(keep);
    initiator.command(&[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list, 0)
}

#[test]
fn m0_1_persistent_reservations_outlive_a_crash_if_they_are_to() {
    let scene = Scene::new(&[], "");
    scene.volume("kept", "4MiB");
    scene.volume("forgotten", "4MiB");
    let daemon = scene.serve_with(&ISCSI);
    for (volume, is_kept) in [("kept", true), ("forgotten", false)] {
        let mut holder = daemon.initiator(volume, 1);
        reserve_out(&mut holder, 0, 0, 0, 7, is_kept).unwrap();
        reserve_out(&mut holder, 1, 3, 7, 0, false).unwrap();
        assert!(matches!(daemon.initiator(volume, 2).read(0, 512), Err(RequestError::Refused(0x1800_0000))), "exclusive access");
    }
    daemon.kill();
    let daemon = scene.serve_with(&ISCSI);
    assert!(matches!(daemon.initiator("kept", 2).read(0, 512), Err(RequestError::Refused(0x1800_0000))));
    daemon.initiator("forgotten", 2).read(0, 512).unwrap();
    let mut holder = daemon.initiator("kept", 1);
    holder.write(0, &[3; 512]).unwrap();
    reserve_out(&mut holder, 3, 0, 7, 0, false).unwrap();
    drop(holder);
    daemon.kill();
    let daemon = scene.serve_with(&ISCSI);
    daemon.initiator("kept", 2).write(0, &[4; 512]).unwrap();
    daemon.stop();
    scene.check();
}

#[test]
fn a_removable_medium_is_taken_out_and_put_back() {
    const NO_MEDIUM: u32 = 0x02_3a00;
    let scene = Scene::new(&[], "");
    scene.volume("stick", "4MiB");
    scene.run(["target", "create", ONE]).succeeds();
    scene.run(["target", "attach", ONE, "stick", "--removable"]).succeeds();
    let text = scene.run(["target", "list"]).succeeds().text();
    assert!(text.contains("LUN 0  stick  4MiB  removable"), "{text}");
    assert_eq!(scene.run(["target", "list", "--json"]).succeeds().json()[0]["luns"][0]["removable"], true);
    let daemon = scene.serve_with(&ISCSI);
    let mut one = daemon.initiator("stick", 1);
    let mut other = daemon.initiator("stick", 2);
    assert_eq!(one.command(&[0x12, 0, 0, 0, 96, 0], &[], 96).unwrap()[1], 0x80);
    one.write(0, &[7; 4096]).unwrap();
    one.command(&[0x1e, 0, 0, 0, 1, 0], &[], 0).unwrap();
    let eject = [0x1b, 0, 0, 0, 2, 0];
    assert!(matches!(other.command(&eject, &[], 0), Err(RequestError::Refused(0x05_5302))), "removal is prevented");
    drop(one);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while other.command(&eject, &[], 0).is_err() {
        assert!(std::time::Instant::now() < until, "the end of the session ends it");
    }
    assert!(matches!(other.read(0, 512), Err(RequestError::Refused(NO_MEDIUM))));
    let mut third = daemon.initiator("stick", 3);
    assert!(matches!(third.write(0, &[1; 512]), Err(RequestError::Refused(NO_MEDIUM))));
    third.command(&[0x1b, 0, 0, 0, 3, 0], &[], 0).unwrap();
    assert!(third.read(0, 4096).unwrap() == [7; 4096]);
    assert!(matches!(other.read(0, 512), Err(RequestError::Refused(0x06_2800))), "the medium may have changed");
    other.command(&eject, &[], 0).unwrap();
    daemon.kill();
    let daemon = scene.serve_with(&ISCSI);
    assert!(
        daemon.initiator("stick", 1).read(0, 4096).unwrap() == [7; 4096],
        "it is in after a restart, and was durable before it was out"
    );
    daemon.stop();
    scene.check();
}

/// Targets that stand in the file of settings.
const FILE: &str = r#"
[iscsi]
listen = ["127.0.0.1:0"]
low_space_percent = 0

[[target]]
name = "iqn.2026-01.com.example:one"
luns = { 0 = "disk", 7 = { volume = "logs", removable = true } }
initiators = ["iqn.2026-01.com.example:*"]
read_only = true
"#;

#[test]
fn targets_of_the_file_of_settings_are_served_beside_those_of_the_store() {
    let scene = Scene::new(&[], FILE);
    scene.volume("disk", "4MiB");
    let text = scene.run(["serve", "--nbd", "none"]).ends_with(2).text();
    assert!(text.contains("there is no volume logs") && text.contains("onefold volume create"), "{text}");
    scene.volume("logs", "4MiB");
    scene.volume("other", "4MiB");
    scene.run(["target", "create", "two"]).succeeds();
    scene.run(["target", "attach", "two", "other"]).succeeds();
    let daemon = scene.serve_with(&["--nbd", "none"]);
    assert_eq!((daemon.unit("disk"), daemon.unit("logs")), ((ONE, 0), (ONE, 7)));
    assert_eq!(daemon.unit("other").0, "iqn.2026-01.io.github.onefold:two");
    assert_eq!(refused(&daemon, ONE, "iqn.x"), "0202");
    let mut initiator = daemon.initiator("logs", 1);
    assert!(matches!(initiator.write(0, &[1; 512]), Err(RequestError::Refused(0x07_2700))));
    for command in [
        &["target", "create", ONE][..],
        &["target", "delete", ONE, "--yes"],
        &["target", "allow", ONE, "--initiator", "iqn.x"],
        &["target", "attach", "two", "disk"],
        &["volume", "delete", "disk", "--yes"],
    ] {
        let text = scene.run(command).ends_with(1).text();
        assert!(text.contains("onefold.toml") || text.contains("--config"), "{text}");
    }
    let list = scene.run(["target", "list", "--json"]).succeeds().json();
    assert_eq!((&list[1]["name"], &list[1]["is_of_settings"]), (&ONE.into(), &true.into()));
    assert_eq!([&list[1]["luns"][0]["removable"], &list[1]["luns"][1]["removable"]], [false, true]);
    drop(initiator);
    daemon.stop();
    for (change, expected) in [
        (FILE.replace("example:one", "example:one\"\n[[target]]\nname = \"iqn.2026-01.com.example:one"), "two targets have the name"),
        (FILE.replace("example:one", "EXAMPLE:one\"\nnme = \"x"), "unknown key `nme` in [[target]]; did you mean `name`?"),
        (FILE.replace("\"logs\"", "\"disk\""), "is already LUN 0 of target"),
        (FILE.replace("\"logs\"", "\"other\""), "is already LUN 0 of target"),
        (FILE.replace("7 = ", "70000 = "), "from 0 to 16383"),
        (FILE.replace("read_only", "chap_user"), "a text"),
        (FILE.replace("read_only = true", "chap_user = \"host\""), "chap_secret_file"),
        (FILE.replace("iqn.2026-01.com.example:one", "two"), "two targets have the name"),
    ] {
        fs::write(scene.store().join("onefold.toml"), &change).unwrap();
        let text = scene.run(["serve", "--nbd", "none"]).ends_with(2).text();
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn sessions_are_listed_counted_and_dropped() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    scene.run(["session", "list"]).ends_with(1);
    let daemon = scene.serve_with(&ISCSI);
    let mut first = daemon.initiator("disk", 1);
    first.write(0, &[5; 4096]).unwrap();
    first.read(0, 1024).unwrap();
    let mut second = daemon.initiator("disk", 2);
    let list = scene.run(["session", "list", "--json"]).succeeds().json();
    let of_first = &list[0];
    assert_eq!((&of_first["initiator"], &of_first["target"]), (&"iqn.2026-01.com.example:test".into(), &daemon.unit("disk").0.into()));
    assert_eq!((&of_first["written_bytes"], &of_first["read_bytes"]), (&4096.into(), &1024.into()));
    assert_eq!((&of_first["portal_group"], &of_first["isid"]), (&1.into(), &"800000000100".into()));
    assert_eq!(scene.statistic("iscsi_sessions"), 2);
    let number = of_first["number"].to_string();
    scene.run(["session", "drop", &number]).succeeds();
    assert!(matches!(first.read(0, 512), Err(RequestError::Lost(_))));
    second.read(0, 512).unwrap();
    scene.run(["session", "drop", "999"]).ends_with(1);
    let all = scene.run(["session", "drop", "--target", daemon.unit("disk").0]).succeeds().text();
    assert!(all.contains("closed 1 session"), "{all}");
    assert!(matches!(second.read(0, 512), Err(RequestError::Lost(_))));
    daemon.stop();
}

#[test]
fn initiators_are_warned_once_of_little_free_space_unless_nobody_wants_that() {
    for (percent, is_warned) in [(100, true), (0, false)] {
        let scene = Scene::new(&[], &format!("[iscsi]\nlow_space_percent = {percent}\n"));
        scene.volume("disk", "4MiB");
        let daemon = scene.serve_with(&ISCSI);
        let mut initiator = daemon.initiator("disk", 1);
        initiator.write(0, &[5; 4096]).unwrap();
        let next = initiator.read(0, 4096);
        assert_eq!(matches!(next, Err(RequestError::Refused(0x06_3807))), is_warned, "{next:?}");
        assert_eq!(next.is_err(), is_warned, "{next:?}");
        initiator.read(0, 4096).unwrap();
        initiator.write(4096, &[5; 4096]).unwrap();
        daemon.stop();
    }
}
