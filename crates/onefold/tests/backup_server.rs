//! The backup server with real clients: what they back up comes back, what is not theirs is not there for them, and
//! whatever is killed, the next run completes.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Run, Scene, noise, tree};

/// A running server, and where it is.
struct Server {
    child: Child,
    _out: BufReader<ChildStdout>,
    address: String,
    fingerprint: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

fn serve_at(scene: &Scene, address: &str, options: &[&str]) -> Server {
    let arguments = [&["serve", "--backup", address, "--json"], options].concat();
    let mut child = scene.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    if line.is_empty() {
        panic!("serve did not start: {}", String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr));
    }
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    Server { child, _out: out, address: text(&event["backup_addresses"][0]), fingerprint: text(&event["backup_fingerprint"]) }
}

fn serve(scene: &Scene) -> Server {
    serve_at(scene, "127.0.0.1:0", &[])
}

fn account(scene: &Scene, name: &str, options: &[&str]) {
    let file = format!("{name}.secret");
    scene.run([&["account", "create", name, "--secret-file", &file], options].concat()).succeeds();
}

/// A client with a home of its own, which does not know the server.
fn bare(scene: &Scene, server: &Server, account: &str, arguments: &[&str]) -> Command {
    let mut command = scene.command(arguments);
    let home = scene.path(&format!("home of {account}"));
    std::fs::create_dir_all(&home).unwrap();
    command
        .env_remove("ONEFOLD_STORE")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_CACHE_HOME")
        .env("HOME", home)
        .env("ONEFOLD_REPOSITORY", format!("onefold://{account}@{}", server.address))
        .env("ONEFOLD_SECRET", std::fs::read_to_string(scene.path(&format!("{account}.secret"))).unwrap_or_default());
    command
}

/// The same with the server's fingerprint.
fn client(scene: &Scene, server: &Server, account: &str, arguments: &[&str]) -> Command {
    let mut command = bare(scene, server, account, arguments);
    // Of commands for accounts, some have the server from the file of known ones only.
    if arguments[0] != "account" {
        command.args(["--server-fingerprint", &server.fingerprint]);
    }
    command
}

fn run(scene: &Scene, server: &Server, account: &str, arguments: &[&str]) -> Run {
    Run::from(client(scene, server, account, arguments).output().unwrap())
}

fn ids(run: &Run) -> Vec<String> {
    run.json().as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect()
}

/// A tree with files of many lengths.
fn grow(root: &Path, seed: u64, large_bytes: usize) {
    for directory in 0..3 {
        let directory = root.join(format!("directory {directory}"));
        std::fs::create_dir_all(&directory).unwrap();
        for file in 0..20u64 {
            std::fs::write(directory.join(format!("{file}")), noise(seed + file, (file * file * 40) as usize)).unwrap();
        }
    }
    std::fs::write(root.join("large"), noise(seed, large_bytes)).unwrap();
    // Everybody has the same.
    std::fs::write(root.join("shared"), noise(7, 600_000)).unwrap();
    std::os::unix::fs::symlink("large", root.join("link")).unwrap();
}

#[test]
fn m3_1_ten_clients_at_once_get_back_what_they_backed_up() {
    let scene = Scene::with_store(&[]);
    let names: Vec<String> = (0..10).map(|number| format!("client{number}")).collect();
    for (seed, name) in names.iter().enumerate() {
        account(&scene, name, &[]);
        grow(&scene.path(name), seed as u64 * 100, 1 << 20);
    }
    let server = serve(&scene);
    std::thread::scope(|scope| {
        for name in &names {
            let (scene, server) = (&scene, &server);
            scope.spawn(move || {
                let outcome = run(scene, server, name, &["backup", "--name", name, "--json", name]).succeeds().json();
                assert_eq!((&outcome["files_new"], &outcome["partial"]), (&62.into(), &false.into()));
                std::fs::write(scene.path(name).join("directory 1/5"), "changed").unwrap();
                let again = run(scene, server, name, &["backup", "--name", name, "--json", name]).succeeds().json();
                assert_eq!((&again["files_changed"], &again["files_unmodified"]), (&1.into(), &61.into()));
                let target = format!("{name} again");
                run(scene, server, name, &["restore", "latest", "--target", &target, "--strip-components", "0"]).succeeds();
                let restored = scene.path(&target).join(scene.path(name).strip_prefix("/").unwrap());
                assert!(tree(&scene.path(name)) == tree(&restored), "{name}");
                assert_eq!(ids(&run(scene, server, name, &["backups", "--json"]).succeeds()).len(), 2, "only its own");
            });
        }
    });
    server.stop();
    assert_eq!(scene.run(["check", "--read-data", "--json"]).succeeds().json()["clean"], true);
    let stats = scene.run(["stats", "--json"]).succeeds().json();
    assert!(stats["unique_bytes"].as_u64().unwrap() < 10 * ((1 << 20) + 600_000), "what all have is stored once");
    assert!(std::fs::read_to_string(scene.store().join("logs/access.log")).unwrap().contains(r#""event":"backup-commit""#));
}

#[test]
fn what_is_not_an_accounts_is_not_there_for_it() {
    let scene = Scene::with_store(&[]);
    grow(&scene.path("data"), 1, 100_000);
    account(&scene, "ann", &[]);
    account(&scene, "bob", &[]);
    account(&scene, "team", &["--allow", "team=backup,read,forget", "--allow", "bob=backup"]);
    account(&scene, "root", &["--allow", "*=admin"]);
    let server = serve(&scene);
    let go = |account: &str, arguments: &[&str]| run(&scene, &server, account, arguments);
    go("bob", &["backup", "--name", "bob", "--tag", "weekly", "data"]).succeeds();
    let theirs = ids(&go("bob", &["backups", "--json"]).succeeds()).remove(0);
    let none = "0".repeat(32);

    // Whatever the backup of another is called, it is like one that does not exist.
    for (real, made_up) in
        [(&theirs[..], &none[..]), (&theirs[..6], &none[..6]), ("latest:bob", "latest:nobody"), ("latest#weekly", "latest#yearly")]
    {
        for command in [&["ls"][..], &["dump"], &["restore", "--target", "out"], &["diff", real], &["protect", "--for", "1d"]] {
            let answer = |asked: &str| {
                let mut words: Vec<&str> = command.iter().map(|word| if *word == real { asked } else { word }).collect();
                words.insert(1, asked);
                if command[0] == "dump" {
                    words.push("/data/../data/large");
                }
                let run = go("ann", &words);
                (run.code, run.out.replace(asked, "X"), run.err.replace(asked, "X"))
            };
            assert_eq!(answer(real), answer(made_up), "{command:?}");
            assert_ne!(answer(real).0, 0);
        }
    }
    assert_eq!(go("ann", &["backups", "--json"]).succeeds().json().as_array().unwrap().len(), 0);
    let find = |name: &str| go("ann", &["find", "--name", name, "*"]);
    let (real, made_up) = (find("bob"), find("nix"));
    assert_eq!((real.code, real.err.replace("bob", "nix")), (made_up.code, made_up.err));
    assert_eq!(go("ann", &["find", "large"]).succeeds().out, "");
    for name in ["bob", "bob/x", "other", "ann2", "../bob", "ann/../bob", "/bob"] {
        let refused = go("ann", &["backup", "--name", name, "data"]);
        assert_ne!(refused.code, 0, "{name}");
    }
    go("ann", &["backup", "--name", "bob", "--parent", &theirs, "data"]).ends_with(1);

    // No permission at all: one answer, whatever is asked for.
    let refusals: Vec<(i32, String)> = [
        &["forget", &theirs, "--yes"][..],
        &["forget", &none, "--yes"],
        &["forget", "--keep-last", "1"],
        &["prune"],
        &["check"],
        &["scrub", "--status"],
        &["stats"],
        &["dedup"],
        &["account", "list"],
        &["account", "create", "eve"],
        &["account", "lock", "bob"],
    ]
    .iter()
    .map(|words| {
        remember(&scene, &server, "ann");
        let run = go("ann", words);
        (run.code, run.err)
    })
    .collect();
    assert!(refusals.iter().all(|refusal| *refusal == refusals[0] && refusal.0 == 2), "{refusals:?}");
    assert!(refusals[0].1.contains("does not do this for the account"));

    // With a permission for its own backups only.
    go("team", &["backup", "--name", "team/web", "data"]).succeeds();
    go("team", &["backup", "--name", "team/web", "data"]).succeeds();
    let forgets = |asked: &str| {
        let run = go("team", &["forget", asked, "--yes"]);
        (run.code, run.err.replace(asked, "X"))
    };
    assert_eq!(forgets(&theirs), forgets(&none));
    go("team", &["forget", "--keep-last", "1"]).succeeds();
    assert_eq!(ids(&go("root", &["backups", "--json"]).succeeds()).len(), 2, "the other one is still there");
    // It may protect what it may back up, but not end that.
    go("team", &["protect", "--for", "30d", &theirs]).succeeds();
    go("team", &["protect", "--off", &theirs]).ends_with(1).says(&["may not end the protection"]);
    go("team", &["protect", "--for", "1d", &theirs]).ends_with(1).says(&["may not end the protection"]);
    go("root", &["forget", &theirs, "--yes"]).ends_with(1).says(&["protected until"]);
    go("root", &["protect", "--off", &theirs]).succeeds();
    go("root", &["forget", &theirs, "--yes"]).succeeds();
    for words in [&["prune"][..], &["stats"], &["check"], &["scrub", "--status"]] {
        go("root", words).succeeds();
    }
    for words in [&["volume", "list"][..], &["check", "--repair"], &["append-only", "status"], &["copy", "--to", "other"]] {
        let run = bare(&scene, &server, "root", words).output().unwrap();
        Run::from(run).ends_with(2).says(&["needs the store itself"]);
    }
}

/// Writes the server's certificate into the file of an account's user.
fn remember(scene: &Scene, server: &Server, account: &str) {
    let directory = scene.path(&format!("home of {account}/.config/onefold"));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("known-servers"), format!("{} {}\n", server.address, server.fingerprint)).unwrap();
}

#[test]
fn a_login_that_fails_says_nothing_about_why_and_a_locked_account_is_out_at_once() {
    let scene = Scene::with_store(&[]);
    grow(&scene.path("data"), 1, 40 << 20);
    for name in ["ann", "bob", "eve"] {
        account(&scene, name, &[]);
    }
    scene.run(["account", "lock", "eve"]).succeeds();
    let server = serve(&scene);
    let with_secret = |account: &str, secret: &str| {
        let run = Run::from(client(&scene, &server, account, &["backups"]).env("ONEFOLD_SECRET", secret).output().unwrap());
        (run.code, run.out, run.err)
    };
    let (ann, eve) = (["ann", "eve"].map(|name| std::fs::read_to_string(scene.path(&format!("{name}.secret"))).unwrap())).into();
    let wrong = with_secret("bob", &ann);
    assert!(wrong.0 == 2 && wrong.2.contains("refused the login"), "{wrong:?}");
    assert_eq!(with_secret("nobody", &ann), wrong);
    assert_eq!(with_secret("eve", &eve), wrong);
    assert_eq!(with_secret("bob", "no secret at all"), wrong);
    assert_eq!(with_secret("ann", &ann).0, 0);
    let without = Run::from(client(&scene, &server, "ann", &["backups"]).env_remove("ONEFOLD_SECRET").output().unwrap());
    without.ends_with(2).says(&["no secret", "--secret-file", "secrets"]);

    // Slow enough to be met in the middle.
    scene.run(["account", "set", "ann", "--rate", "1MiB"]).succeeds();
    let running = client(&scene, &server, "ann", &["backup", "--name", "ann", "data"]).stderr(Stdio::piped()).spawn().unwrap();
    until(|| log(&scene).contains("backup-begin"));
    scene.run(["account", "lock", "ann"]).succeeds();
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(scene.run(["backups"]).succeeds().out, "");
    until(|| log(&scene).contains("account-lock") && log(&scene).contains("backup-abort"));
    assert!(!log(&scene).contains(ann.trim()));
}

fn log(scene: &Scene) -> String {
    std::fs::read_to_string(scene.store().join("logs/access.log")).unwrap_or_default()
}

fn until(what: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < until, "it does not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns what the access log has of an event: the backup and the details.
fn logged(scene: &Scene, event: &str) -> Vec<(String, serde_json::Value)> {
    let log = log(scene);
    let entries = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let of_event = entries.filter(|entry| entry["event"] == event);
    of_event.map(|entry| (entry["backup"].as_str().unwrap_or_default().to_owned(), entry["details"].clone())).collect()
}

#[test]
fn the_access_log_has_what_an_account_reads_and_frees() {
    let scene = Scene::with_store(&[]);
    grow(&scene.path("data"), 1, 100_000);
    account(&scene, "root", &["--allow", "*=admin"]);
    let server = serve(&scene);
    let go = |arguments: &[&str]| run(&scene, &server, "root", arguments).succeeds();
    for name in ["a", "b", "b"] {
        go(&["backup", "--name", name, "data"]);
    }
    let large = scene.path("data/large");
    let large = large.to_str().unwrap();
    for words in
        [&["ls", "latest:a"][..], &["dump", "latest:a", large], &["diff", "latest:a", "latest:b"], &["find", "--name", "b", "large"]]
    {
        let before = logged(&scene, "read").len();
        go(words);
        let read = logged(&scene, "read").split_off(before);
        let expected: &[(&str, &str)] = match words[0] {
            "diff" => &[("a", "id"), ("b", "id")],
            "find" => &[("b", "ids")],
            _ => &[("a", "id")],
        };
        let found: Vec<(&str, &str)> =
            read.iter().map(|(backup, details)| (&backup[..], &details.as_object().unwrap().keys().next().unwrap()[..])).collect();
        assert_eq!(found, expected, "{words:?}");
    }
    go(&["prune", "--dry-run"]);
    assert_eq!(logged(&scene, "prune"), []);
    go(&["prune"]);
    assert_eq!(logged(&scene, "prune").len(), 1);
    assert!(logged(&scene, "prune")[0].1["freed_bytes"].is_u64());
}

#[test]
fn an_account_with_many_running_commands_gets_no_more_and_delays_nobody() {
    let scene = Scene::with_store(&[]);
    // More than fits into the windows of a channel, so that a command whose output is not read goes on.
    grow(&scene.path("data"), 1, 80 << 20);
    account(&scene, "ann", &[]);
    account(&scene, "bob", &[]);
    let server = serve(&scene);
    run(&scene, &server, "ann", &["backup", "--name", "ann", "data"]).succeeds();
    let large = scene.path("data/large");
    let dump = || client(&scene, &server, "ann", &["dump", "latest", large.to_str().unwrap()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut running: Vec<Child> = (0..4).map(|_| dump()).collect();
    until(|| logged(&scene, "read").len() == 4);
    run(&scene, &server, "ann", &["backups"]).ends_with(1).says(&["already runs 4 commands of the account", "run the command again"]);
    run(&scene, &server, "bob", &["backups"]).succeeds();
    scene.run(["account", "unlock", "bob"]).succeeds();
    // A session too many is no wrong usage either.
    scene.run(["account", "set", "ann", "--connections", "4"]).succeeds();
    run(&scene, &server, "ann", &["backups"]).ends_with(1).says(&["takes no more clients", "run the command again"]);
    scene.run(["account", "set", "ann", "--connections", "8"]).succeeds();
    // A command that ends makes room for another.
    let output = running.pop().unwrap().wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.len() == 80 << 20);
    until(|| run(&scene, &server, "ann", &["backups"]).code == 0);
    for mut child in running {
        let _ = child.kill();
        child.wait().unwrap();
    }
}

#[test]
fn a_certificate_is_pinned_or_remembered_and_a_changed_one_is_an_alarm() {
    let scene = Scene::with_store(&[]);
    account(&scene, "ann", &[]);
    let server = serve(&scene);
    let plain =
        |server: &Server, options: &[&str]| Run::from(bare(&scene, server, "ann", &[&["backups"], options].concat()).output().unwrap());
    plain(&server, &[]).ends_with(2).says(&["is not known", &server.fingerprint, "--server-fingerprint"]);
    plain(&server, &["--server-fingerprint", &server.fingerprint.replace(':', "").to_uppercase()]).succeeds();
    plain(&server, &["--server-fingerprint", "abc"]).ends_with(2).says(&["64 hexadecimal digits"]);
    plain(&server, &["--server-fingerprint", &"0".repeat(64)]).ends_with(2).says(&["HAS CHANGED", &server.fingerprint]);
    remember(&scene, &server, "ann");
    plain(&server, &[]).succeeds();
    let (address, before) = (server.address.clone(), server.fingerprint.clone());
    server.stop();

    // The same one after a restart, another one when its files are gone.
    let server = serve_at(&scene, &address, &[]);
    assert_eq!(server.fingerprint, before);
    plain(&server, &[]).succeeds();
    server.stop();
    for name in ["backup.pem", "backup.key"] {
        std::fs::remove_file(scene.store().join(name)).unwrap();
    }
    let server = serve_at(&scene, &address, &[]);
    assert_ne!(server.fingerprint, before);
    plain(&server, &[]).ends_with(2).says(&["HAS CHANGED", &before, &server.fingerprint, "remove line 1 of", "known-servers"]);
    server.stop();

    // A pin is exact, so an expired certificate does.
    let Some(()) = expired(&scene) else { return };
    std::fs::write(scene.path("more.toml"), "[backup]\ncertificate = \"expired.pem\"\nkey = \"expired.key\"\n").unwrap();
    let server = serve_at(&scene, &address, &["--config", "more.toml"]);
    plain(&server, &["--server-fingerprint", &server.fingerprint]).succeeds();
    std::fs::remove_dir_all(scene.path("home of ann")).unwrap();
    plain(&server, &[]).ends_with(2).says(&["is not known"]);
}

/// Runs a command on a terminal of its own, types the answer to its question, and returns the code and what was shown.
fn on_a_terminal(command: &Command, answer: &str) -> Option<(Option<i32>, String)> {
    let words: Vec<&str> = [command.get_program()].into_iter().chain(command.get_args()).map(|word| word.to_str().unwrap()).collect();
    let mut script = Command::new("script");
    script.args(["-qec", &words.join(" "), "/dev/null"]).current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let Ok(mut child) = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        println!("skipped: script is not installed");
        return None;
    };
    let (mut typing, mut shown) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut said = Vec::new();
    let mut part = [0; 1024];
    loop {
        let length = shown.read(&mut part).unwrap();
        said.extend_from_slice(&part[..length]);
        if length == 0 || String::from_utf8_lossy(&said).contains("[y/N]") {
            break;
        }
    }
    typing.write_all(answer.as_bytes()).unwrap();
    shown.read_to_end(&mut said).unwrap();
    Some((child.wait().unwrap().code(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn a_person_is_asked_about_an_unknown_certificate_and_ends_that_by_a_signal() {
    let scene = Scene::with_store(&[]);
    grow(&scene.path("data"), 1, 1000);
    account(&scene, "ann", &[]);
    let server = serve(&scene);
    let backup = bare(&scene, &server, "ann", &["backup", "--name", "ann", "data"]);
    let known = scene.path("home of ann/.config/onefold/known-servers");
    let Some((code, said)) = on_a_terminal(&backup, "\x03") else { return };
    assert!(code == Some(130) && said.contains(&server.fingerprint) && said.contains("stopped by a signal"), "{code:?} {said}");
    let (code, said) = on_a_terminal(&backup, "n\n").unwrap();
    assert!(code == Some(2) && said.contains("is not trusted") && !known.exists(), "{code:?} {said}");
    let (code, said) = on_a_terminal(&backup, "y\n").unwrap();
    assert!(code == Some(0) && known.exists(), "{code:?} {said}");
    assert_eq!(ids(&run(&scene, &server, "ann", &["backups", "--json"]).succeeds()).len(), 1);
}

/// Makes a certificate that has expired, if there is a program for it.
fn expired(scene: &Scene) -> Option<()> {
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout expired.key -out expired.pem \
                 -subj /CN=localhost -not_before 20200101000000Z -not_after 20200201000000Z";
    let made = Command::new("openssl").args(words.split_whitespace()).current_dir(scene.path("")).stderr(Stdio::null()).status().ok()?;
    made.success().then_some(())
}

#[test]
fn a_backup_and_a_restore_go_through_the_daemon_as_they_do_without_one() {
    let scene = Scene::with_store(&[]);
    grow(&scene.path("data"), 3, 3 << 20);
    scene.run(["backup", "--name", "n", "data"]).succeeds();
    let dry = scene.run(["backup", "--name", "n", "--dry-run", "--json", "data"]).succeeds().json();
    let served = scene.serve(&[]);
    assert_eq!(scene.run(["backup", "--name", "n", "--dry-run", "--json", "data"]).succeeds().json(), dry);
    std::fs::write(scene.path("data/new"), noise(99, 300_000)).unwrap();
    let outcome = scene.run(["backup", "--name", "n", "--tag", "t", "--json", "--progress", "data"]).succeeds();
    assert!(outcome.err.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{}", outcome.err);
    let outcome = outcome.json();
    assert_eq!((&outcome["files_new"], &outcome["files_unmodified"]), (&1.into(), &62.into()));
    assert!((300_000..400_000).contains(&outcome["added_bytes"].as_u64().unwrap()), "{outcome}");
    let id = outcome["id"].as_str().unwrap();
    let again = scene.run(["backup", "--name", "other", "--parent", &id[..8], "--json", "data"]).succeeds().json();
    assert_eq!((&again["parent"], &again["read_bytes"]), (&id.into(), &0.into()));
    scene
        .run(["backup", "--name", "other", "--parent", "ffffffffff", "data"])
        .ends_with(1)
        .says(&["no backup \"ffffffffff\"", "onefold backups"]);
    scene.run(["backup", "--name", "x", "absent"]).ends_with(2).says(&["nothing to back up"]);

    let mut child =
        scene.command(["backup", "--name", "s", "--stdin", "dump.sql"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&noise(5, 1 << 20)).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(scene.run(["dump", "latest:s", "dump.sql"]).succeeds().bytes, noise(5, 1 << 20));

    scene.run(["restore", "latest:n", "--target", "out"]).succeeds();
    let restored = scene.path("out").join(scene.path("data").strip_prefix("/").unwrap());
    assert!(tree(&scene.path("data")) == tree(&restored));
    let kept = scene.run(["restore", "latest:n", "--target", "out", "--json"]).succeeds().json();
    assert_eq!((&kept["files"], &kept["files_kept"]), (&0.into(), &64.into()));
    assert_eq!(served.stop().0, 0);
    assert_eq!(scene.run(["check", "--read-data", "--json"]).succeeds().json()["clean"], true);
}

#[test]
fn a_client_that_is_killed_leaves_nothing_to_be_seen_and_its_next_run_completes() {
    let scene = Scene::with_store(&[]);
    grow(&scene.path("data"), 1, 24 << 20);
    account(&scene, "ann", &["--rate", "6MiB"]);
    let server = serve(&scene);
    let mut running = client(&scene, &server, "ann", &["backup", "--name", "ann", "data"]).stderr(Stdio::null()).spawn().unwrap();
    until(|| log(&scene).contains("backup-begin"));
    std::thread::sleep(Duration::from_millis(700));
    running.kill().unwrap();
    running.wait().unwrap();
    let list = || ids(&run(&scene, &server, "ann", &["backups", "--json"]).succeeds());
    assert_eq!(list(), Vec::<String>::new());

    // One that is stopped politely says so.
    let mut running = client(&scene, &server, "ann", &["backup", "--name", "ann", "data"]).stderr(Stdio::piped()).spawn().unwrap();
    until(|| log(&scene).matches("backup-begin").count() == 2);
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut said = String::new();
    running.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("no backup was made") && list().is_empty(), "{said}");

    scene.run(["account", "set", "ann", "--rate", "none"]).succeeds();
    run(&scene, &server, "ann", &["backup", "--name", "ann", "data"]).succeeds();
    run(&scene, &server, "ann", &["restore", "latest", "--target", "out"]).succeeds();
    let restored = scene.path("out").join(scene.path("data").strip_prefix("/").unwrap());
    assert!(tree(&scene.path("data")) == tree(&restored));
    server.stop();
    assert_eq!(scene.run(["check", "--read-data", "--json"]).succeeds().json()["clean"], true);
}

#[test]
fn a_backup_completes_although_the_server_is_killed() {
    let scene = Scene::with_store(&[]);
    grow(&scene.path("data"), 1, 16 << 20);
    account(&scene, "ann", &["--rate", "6MiB"]);
    let mut server = serve(&scene);
    let backup = ["backup", "--name", "ann", "--retry", "60s", "data"];
    let running = client(&scene, &server, "ann", &backup).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(|| log(&scene).contains("backup-begin"));
    std::thread::sleep(Duration::from_millis(500));
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let address = server.address.clone();
    // Others cannot wait for it, if they do not want to.
    run(&scene, &server, "ann", &["backups", "--retry", "0"]).ends_with(1).says(&["cannot reach the server"]);
    let server = serve_at(&scene, &address, &[]);
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("beginning again"), "{said}");
    assert_eq!(ids(&run(&scene, &server, "ann", &["backups", "--json"]).succeeds()).len(), 1);
    run(&scene, &server, "ann", &["restore", "latest", "--target", "out"]).succeeds();
    let restored = scene.path("out").join(scene.path("data").strip_prefix("/").unwrap());
    assert!(tree(&scene.path("data")) == tree(&restored));
    server.stop();
}

#[test]
fn many_changed_files_with_the_longest_paths_are_backed_up() {
    let scene = Scene::with_store(&[]);
    account(&scene, "ann", &[]);
    let mut deep = scene.path("tree");
    while deep.as_os_str().len() + 256 < 3900 {
        deep.push("d".repeat(250));
    }
    std::fs::create_dir_all(&deep).unwrap();
    let grow = |seed: u64| (0..600u64).for_each(|file| std::fs::write(deep.join(file.to_string()), noise(seed + file, 900)).unwrap());
    let server = serve(&scene);
    grow(0);
    run(&scene, &server, "ann", &["backup", "--name", "ann", "tree"]).succeeds();
    grow(1000);
    let again = run(&scene, &server, "ann", &["backup", "--name", "ann", "--json", "tree"]).succeeds().json();
    assert_eq!(again["files_changed"], 600);
    server.stop();
}
