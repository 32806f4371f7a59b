//! A store in object storage does what one in a directory does. Any machine finds it as the last one left it, and a
//! mistake in its name or in the credentials is told in one clear line.

use onefold_tests::{Machine, ObjectStorage, Run, Running, client, installed, noise, plant};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const STORE: &str = "a/store";
/// Everything small, so that a little data has many containers and batches, and the log is trimmed.
const SETTINGS: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"2MiB\"\ncommit = \"1MiB\"\ncommit_interval_ms = 20\n\
                        [memory]\nauxiliary_index = \"1MiB\"\n";
/// What `stats` says of the content, whoever asks.
const CONTENT: [&str; 7] = ["logical_bytes", "unique_bytes", "stored_bytes", "unused_bytes", "chunks", "containers", "backups"];

/// Runs a command on the machine that writes and on one that has never seen the store: they must say the same.
#[track_caller]
fn everywhere(storage: &ObjectStorage, home: &Machine, arguments: &[&str]) -> Run {
    let [here, there] = [home.run(arguments), storage.machine(STORE).run(arguments)].map(Run::succeeds);
    assert_eq!(String::from_utf8_lossy(&here.out), String::from_utf8_lossy(&there.out), "{arguments:?}");
    here
}

/// Looks at the store in every way, on the machine that writes and on others.
#[track_caller]
fn look(storage: &ObjectStorage, home: &Machine, backups: &[(&str, &Path)]) {
    let source = storage.path("tree");
    everywhere(storage, home, &["backups", "--json"]);
    everywhere(storage, home, &["find", "--json", "f2*"]);
    everywhere(storage, home, &["check", "--read-data"]);
    for (backup, expected) in backups {
        everywhere(storage, home, &["ls", "-R", "--json", backup]);
        home.restores(backup, &source, expected);
        storage.machine(STORE).restores(backup, &source, expected);
    }
    let [here, there] = [home, &storage.machine(STORE)].map(|machine| machine.run(["stats", "--json"]).succeeds().json());
    for key in CONTENT {
        assert_eq!(here[key], there[key], "{key}");
    }
}

fn id(backup: &serde_json::Value) -> &str {
    backup["id"].as_str().unwrap()
}

/// A store from its beginning to a prune, made with these options of `init`.
fn live(storage: &ObjectStorage, options: &[&str]) {
    let home = storage.machine(STORE);
    home.init(&[&["--container-size", "256KiB"], options].concat(), SETTINGS);
    everywhere(storage, &home, &["backups", "--json"]);
    let tree = storage.path("tree");
    plant(&tree, 1, 2 * MIB);
    let first = home.back_up(&tree);
    let before = storage.path("before");
    client("cp", [Path::new("--archive"), &tree, &before]).succeeds();
    look(storage, &home, &[(id(&first), &before)]);

    fs::remove_dir_all(tree.join("d3")).unwrap();
    fs::write(tree.join("d1/f1"), noise(7, 100_000)).unwrap();
    plant(&tree.join("new"), 2, 3 * MIB);
    // Somebody else may make it.
    let second = storage.machine(STORE).back_up(&tree);
    look(storage, &home, &[(id(&first), &before), (id(&second), &tree)]);
    let again = home.back_up(&tree);
    let added = again["added_bytes"].as_u64().unwrap();
    assert!(added < 200_000, "it has what another machine stored: {added}");

    let mut more = Vec::new();
    while !storage.objects(STORE).join("history").is_dir() {
        assert!(more.len() < 40, "the log is never trimmed");
        more.push(id(&home.back_up(&tree.join("d2"))).to_owned());
    }

    let forgotten = [id(&first), id(&again)].into_iter().chain(more.iter().map(String::as_str));
    home.run(["forget", "--yes"].into_iter().chain(forgotten)).succeeds();
    everywhere(storage, &home, &["backups", "--json"]);
    let stored = home.run(["stats", "--json"]).succeeds().json()["stored_bytes"].as_u64().unwrap();
    let pruned = home.run(["prune", "--json", "--max-unused", "0%"]).succeeds().json();
    assert_eq!(pruned["complete"], true, "{pruned}");
    let left = home.run(["stats", "--json"]).succeeds().json()["stored_bytes"].as_u64().unwrap();
    assert!(left < stored, "{left} of {stored} bytes are left");
    look(storage, &home, &[(id(&second), &tree)]);
    let repeated = storage.machine(STORE).run(["backup", "--name", "tree", "--json", "--force-read", "tree"]).succeeds().json();
    let added = repeated["added_bytes"].as_u64().unwrap();
    assert!(added < 200_000, "nothing was removed that is needed: {added}");
    look(storage, &home, &[(id(&second), &tree), (id(&repeated), &tree)]);
}

#[test]
fn a_store_in_a_bucket_is_the_same_on_every_machine() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    live(&storage, &[]);
}

#[test]
fn a_sampled_store_in_a_bucket_is_the_same_on_every_machine() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    live(&storage, &["--profile", "sampled", "--capacity", "1TiB"]);
}

#[test]
fn a_store_in_a_directory_of_objects_is_the_same_on_every_machine() {
    let storage = ObjectStorage::on_disk();
    live(&storage, &[]);
}

#[test]
fn a_volume_in_a_bucket_is_copied_in_on_one_machine_and_out_on_another() {
    if !installed(&["nbdcopy"]) {
        return;
    }
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let [home, other] = [(); 2].map(|()| storage.machine(STORE));
    home.init(&[], SETTINGS);
    home.run(["volume", "create", "disk", "--size", "32MiB"]).succeeds();
    let image = storage.path("image");
    let content = [noise(1, 9 << 20), vec![0; 15 << 20], noise(2, 1 << 20), vec![0; 7 << 20]].concat();
    fs::write(&image, &content).unwrap();
    let daemon = home.serve();
    client("nbdcopy", ["--flush", image.to_str().unwrap(), &daemon.uri("disk")]).succeeds();
    home.run(["volume", "snapshot", "disk", "kept"]).succeeds();
    daemon.stop();
    let daemon = other.serve();
    for volume in ["disk", "kept"] {
        let out = storage.path(volume);
        client("nbdcopy", [&daemon.uri(volume), out.to_str().unwrap()]).succeeds();
        assert!(fs::read(out).unwrap() == content, "{volume}");
    }
    daemon.stop();
    assert_eq!(home.run(["volume", "list", "--json"]).succeeds().json().as_array().unwrap().len(), 2);
    home.run(["check", "--read-data"]).succeeds();
}

#[test]
fn a_store_is_copied_into_a_bucket_and_out_of_it() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let [tree, directory] = ["tree", "directory"].map(|name| storage.path(name));
    plant(&tree, 1, 2 * MIB);
    let [first, second] = ["first", "second"].map(|prefix| storage.machine(prefix));
    first.init(&[], "");
    let backup = first.back_up(&tree)["id"].as_str().unwrap().to_owned();
    let directory = directory.to_str().unwrap();
    first.run(["copy", "--init", "--to", directory]).succeeds();
    // Out of a directory, by a machine that has never seen the bucket, and again.
    for options in [&["--init"][..], &[]] {
        let command = ["copy", "--to", &storage.url("second")];
        let mut copy = second.command(command.iter().chain(options));
        let copied = Running::start(copy.env("ONEFOLD_STORE", directory)).finish().succeeds();
        assert!(!copied.text().contains("cache/stores"), "it names the state: {}", copied.text());
    }
    // From bucket to bucket.
    storage.machine("third").init(&[], "");
    second.run(["copy", "--to", &storage.url("third")]).succeeds();
    for machine in [second, storage.machine("second"), storage.machine("third")] {
        assert_eq!(machine.backups(), [backup.as_str()]);
        machine.restores(&backup, &tree, &tree);
        machine.run(["check", "--read-data"]).succeeds();
    }
}

/// Runs a command on a store of this name.
fn on(machine: &Machine, store: &str, command: &str, variables: &[(&str, Option<&str>)]) -> Run {
    let mut process = machine.command(command.split(' '));
    process.env("ONEFOLD_STORE", store);
    for (name, value) in variables {
        match value {
            Some(value) => process.env(name, value),
            None => process.env_remove(name),
        };
    }
    Running::start(&mut process).finish()
}

/// What a command is told about the store's name or the credentials: exit code 2, all of `words`, and none of what
/// misleads.
#[track_caller]
fn tells(run: Run, words: &[&str]) {
    let text = run.ends_with(2).text();
    println!("{text}");
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    let misleading = ["<?xml", "Generic", "descriptor", "directory that does not exist", "the user who owns"];
    let misleading: Vec<_> = misleading.into_iter().filter(|word| text.contains(word)).collect();
    assert!(missing.is_empty() && misleading.is_empty(), "lacks {missing:?}, has {misleading:?}:\n{text}");
    assert!(text.lines().all(|line| line.len() < 400), "a line is too long:\n{text}");
}

#[test]
fn a_wrong_name_of_a_store_is_told() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let (home, query) = (storage.machine(STORE), "?endpoint=http://127.0.0.1:1");
    let wrong = |store: &str, command: &str, words: &[&str]| tells(on(&home, store, command, &[]), words);
    wrong("s3://", "init", &["`s3://`", "no bucket"]);
    wrong("s3:///prefix", "backups", &["`s3:///prefix`", "no bucket"]);
    wrong(&format!("s3://bucket/p{query}&colour=red"), "init", &["no option `colour`", "endpoint, region and path-style"]);
    wrong(&format!("s3://bucket/p{query}&path-style=maybe"), "init", &["path-style", "`maybe`", "yes or no"]);
    wrong("s3://bucket/p?endpoint=127.0.0.1:9000", "init", &["`127.0.0.1:9000`", "http://"]);
    wrong("s3://bucket/a//b", "init", &["`s3://bucket/a//b`", "no part of the path may be empty"]);
    wrong("file://here", "init", &["`file://here`", "absolute"]);
    wrong("file:///tmp/x?region=eu", "init", &["file:///tmp/x", "region", "s3://"]);
    for scheme in ["s4", "S3"] {
        wrong(&format!("{scheme}://bucket/p"), "init", &[scheme, "s3://"]);
        assert!(!storage.path(&format!("{scheme}:")).exists(), "a typing error is no directory");
    }
}

#[test]
fn a_wrong_place_of_a_store_is_told() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let home = storage.machine(STORE);
    home.init(&[], "");
    let wrong = |store: &str, command: &str, words: &[&str]| tells(on(&home, store, command, &[]), words);
    let bucket = storage.url(STORE).replace("s3://", "s3://not-");
    fs::write(storage.path("file"), "text").unwrap();
    for command in ["init", "backups", "backup --name f file", "check"] {
        wrong(&bucket, command, &["s3://not-", "the bucket does not exist"]);
    }
    for command in ["backups", "backup --name f file", "check", "serve --nbd-socket socket"] {
        wrong(&storage.url("none"), command, &["/none", "onefold store", "`onefold init`"]);
    }
    wrong(&storage.url(STORE), "init", &[STORE, "there are objects"]);
    fs::create_dir_all(storage.objects("others")).unwrap();
    fs::write(storage.objects("others/object"), "theirs").unwrap();
    wrong(&storage.url("others"), "init", &["/others", "there are objects"]);
    assert_eq!(fs::read_dir(storage.objects("others")).unwrap().count(), 1, "nothing was put beside it");
    wrong(&storage.url("new"), "init --profile cacheless", &["/new", "`exact`", "not `cacheless`"]);
    // Nothing is left of the mistakes on this machine.
    home.state();
    home.run(["check"]).succeeds();
}

#[test]
fn wrong_credentials_are_told() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let home = storage.machine(STORE);
    home.init(&[], "");
    let store = storage.url(STORE);
    fs::write(storage.path("file"), "text").unwrap();
    for (store, command) in [(&store, "backups"), (&store, "backup --name f file"), (&storage.url("new"), "init")] {
        for machine in [&home, &storage.machine(STORE)] {
            let wrong = |variables: &[(&str, Option<&str>)]| tells(on(machine, store, command, variables), &["credentials"]);
            wrong(&[("AWS_SECRET_ACCESS_KEY", Some("wrong"))]);
            wrong(&[("AWS_ACCESS_KEY_ID", Some("nobody"))]);
            wrong(&[("AWS_ACCESS_KEY_ID", None)]);
            wrong(&[("AWS_SECRET_ACCESS_KEY", None)]);
        }
    }
    tells(on(&home, &store, "backups", &[("AWS_ACCESS_KEY_ID", None), ("AWS_SECRET_ACCESS_KEY", None)]), &["AWS_ACCESS_KEY_ID"]);
    home.run(["check"]).succeeds();
}

/// It may wait for a service that is away, but not in silence.
#[test]
fn a_service_that_is_not_there_is_told_before_long() {
    // The port is free again, and refuses connections.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let storage = ObjectStorage::on_disk();
    let home = storage.machine(STORE);
    let mut command = home.command(["backups"]);
    command.env("ONEFOLD_STORE", format!("s3://bucket/store?endpoint=http://{address}"));
    let mut running = Running::start(command.env("AWS_ACCESS_KEY_ID", "k").env("AWS_SECRET_ACCESS_KEY", "s"));
    let until = Instant::now() + Duration::from_secs(15);
    while !running.has_ended() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    running.terminate();
    let text = running.finish_within(Duration::from_secs(5)).text();
    assert!(text.contains(&address.to_string()), "it said nothing within 15 s: {text:?}");
}
