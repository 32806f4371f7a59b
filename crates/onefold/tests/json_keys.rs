//! Every key that a command prints with `--json` stands in `docs/cli.md`, and every key there is printed.

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use support::{Run, Scene, noise};

type Keys = BTreeMap<String, BTreeSet<String>>;

/// Objects whose keys are names, not ours.
const NAMED: [&str; 2] = ["profile", "filters"];
/// Rows that no small store shows: an initiator; experiments, whose crate describes every key; a repair that would lose
/// something.
const ELSEWHERE: [&str; 5] = ["node", "cluster status", "session list", "bench run", "check --repair"];

/// Keys of `scrub` that `scrub --status` has not, nor what repeats it.
const NOT_IN_STATUS: [&str; 3] = ["complete", "read_bytes", "repaired"];

/// The words in backticks of a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The keys of each row of the tables below `## JSON`, by the commands in its first column.
fn documented() -> Keys {
    let document = include_str!("../../../docs/cli.md");
    let section = document.split("\n## ").find(|section| section.starts_with("JSON\n")).unwrap();
    let rows: Vec<(&str, &str)> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
        .filter(|(names, _)| *names != "command")
        .collect();
    let mut keys = Keys::new();
    let is_key = |word: &&str| word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    for (names, text) in &rows {
        let mut own: BTreeSet<String> = quoted(text).filter(is_key).map(str::to_owned).collect();
        // The keys of another row.
        for other in text.split("the keys of `").skip(1) {
            let other = other.split('`').next().unwrap();
            let (_, text) = rows.iter().find(|(names, _)| *names == format!("`{other}`")).unwrap_or_else(|| panic!("no row {other}"));
            own.extend(quoted(text).filter(is_key).map(str::to_owned));
            // The name of the row is no key, but for the one of this name.
            if (*names, other) == ("`stats`", "scrub") {
                NOT_IN_STATUS.iter().for_each(|key| {
                    own.remove(*key);
                });
            } else {
                own.remove(other);
            }
        }
        match names.split('*').nth(1) {
            Some(part) => keys.entry(part.to_owned()).or_default().extend(own),
            None => quoted(names).for_each(|name| keys.entry(name.to_owned()).or_default().extend(own.clone())),
        }
    }
    keys
}

fn collect(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, keys)),
        Value::Object(object) => {
            for (key, value) in object {
                keys.insert(key.clone());
                match value {
                    Value::Object(named) if NAMED.contains(&key.as_str()) => named.values().for_each(|value| collect(value, keys)),
                    // Problems have a row of their own.
                    Value::Array(items) if key == "problems" && items.iter().all(Value::is_object) && !has_kind(items) => {}
                    value => collect(value, keys),
                }
            }
        }
        _ => {}
    }
}

/// The problems of `check` are described in its own row.
fn has_kind(problems: &[Value]) -> bool {
    problems.iter().any(|problem| !problem["kind"].is_null())
}

#[test]
fn every_key_of_json_is_documented_and_every_documented_key_is_printed() {
    let scene = Scene::new();
    let source = scene.path("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("file"), noise(1, 600_000)).unwrap();
    fs::hard_link(source.join("file"), source.join("z")).unwrap();
    symlink("file", source.join("link")).unwrap();
    fs::write(source.join(std::ffi::OsStr::from_bytes(b"d/no \xff text")), "bytes").unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(rustix::fs::CWD, source.join("null"), rustix::fs::FileType::CharacterDevice, 0o600.into(), null).unwrap();
    }
    let mut seen = Keys::new();
    let mut add = |name: &str, values: Vec<Value>| values.iter().for_each(|value| collect(value, seen.entry(name.to_owned()).or_default()));
    let store = scene.store().display().to_string();
    add("init", vec![scene.run(["init", &store, "--compression", "none", "--json"]).succeeds().json()]);
    let odd = scene.path("").join(std::ffi::OsStr::from_bytes(b"odd \xff"));
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("x"), "x").unwrap();
    let arguments = ["backup", "--name", "odd", "--json"].map(std::ffi::OsStr::new);
    add("backup", vec![scene.run([&arguments[..], &[odd.as_os_str()]].concat()).succeeds().json()]);
    fs::write(scene.path("secret"), "a secret of 14").unwrap();
    fs::set_permissions(scene.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let target = "iqn.2026-11.test:one";
    let runs: [(&str, &[&str]); 41] = [
        ("backup", &["--name", "x", "source", "--json", "--progress"]),
        ("backup", &["--name", "x", "d-is-absent", "source", "--json"]),
        ("backups", &["--json"]),
        ("protect", &["latest", "--for", "1d", "--json"]),
        ("protect", &["latest", "--off", "--json"]),
        ("ls", &["-R", "latest", "--json"]),
        ("find", &["--json"]),
        ("restore", &["latest", "--target", "back", "--json"]),
        ("volume create", &["disk", "--size", "1MiB", "--json"]),
        ("volume create", &["other", "--size", "1MiB", "--json"]),
        ("volume snapshot", &["disk", "snapshot", "--json"]),
        ("volume clone", &["snapshot", "clone", "--json"]),
        ("volume list", &["--json"]),
        ("fs create", &["files", "--size", "1GiB", "--json"]),
        ("fs snapshot", &["files", "monday", "--json"]),
        ("fs clone", &["monday", "copy", "--json"]),
        ("fs list", &["--json"]),
        ("target create", &[target, "--json"]),
        ("target attach", &[target, "disk"]),
        ("target chap", &[target, "--user", "ann", "--secret-file", "secret"]),
        ("target list", &["--json"]),
        ("account create", &["ann", "--certificate", &"ab".repeat(32), "--json"]),
        ("account rotate", &["ann", "--json"]),
        ("account set", &["ann", "--connections", "9", "--json"]),
        ("account lock", &["ann", "--json"]),
        ("account unlock", &["ann", "--json"]),
        ("account list", &["--json"]),
        ("account show", &["ann", "--json"]),
        ("account create", &["bob", "--json"]),
        ("account delete", &["bob", "--yes", "--json"]),
        ("session list", &["--json"]),
        ("stats", &["--json"]),
        ("check", &["--json"]),
        ("scrub", &["--json"]),
        ("append-only status", &["--json"]),
        ("analyze", &["source", "--json"]),
        ("traffic describe", &["--size", "1MiB", "--json"]),
        ("traffic describe", &["--size", "64MiB", "--generation", "3", "--json"]),
        ("forget", &["--keep-last", "1", "--dry-run", "--json"]),
        ("prune", &["--json"]),
        ("dedup", &["--json"]),
    ];
    for (name, options) in runs {
        let run = scene.run(name.split(' ').chain(options.iter().copied()));
        assert!([0, 1, 3].contains(&run.code), "{name}: {}", run.err);
        add(name, run.json_lines_or_none());
        for line in run.err.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            add("progress", vec![line]);
        }
    }
    // Differences, bytes in a volume, a server, damage.
    fs::write(source.join("d/new"), "new").unwrap();
    fs::write(source.join("file"), noise(2, 1000)).unwrap();
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let ids: Vec<String> = scene
        .run(["backups", "--json"])
        .succeeds()
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|backup| backup["id"].as_str().unwrap().to_owned())
        .collect();
    add("diff", scene.run(["diff", &ids[1], &ids[ids.len() - 1], "--json"]).succeeds().json_lines());
    fs::write(scene.path("image"), noise(3, 300_000)).unwrap();
    scene.run(["volume", "import", "disk", "image"]).succeeds();
    add("volume diff", scene.run(["volume", "diff", "snapshot", "disk", "--json"]).succeeds().json_lines());
    let has_fuse = is_root && std::path::Path::new("/dev/fuse").exists();
    fs::create_dir(scene.path("mounted")).unwrap();
    let mounts: &[&str] = if has_fuse { &["--fs", "files=mounted"] } else { &[] };
    let served = scene.serve(&[&["--iscsi", "127.0.0.1:0"][..], mounts].concat());
    add("serve", vec![served.event.clone()]);
    add("stats", vec![scene.run(["stats", "--json"]).succeeds().json()]);
    add("serve", served.stop().1.lines().map(|line| serde_json::from_str(line).unwrap()).collect());
    let container = scene.store().join("containers/0000/00000/00000001");
    let mut bytes = fs::read(&container).unwrap();
    bytes[200_000] ^= 1;
    fs::write(&container, bytes).unwrap();
    let damaged = scene.run(["restore", &ids[1], "--target", "damaged", "--json"]).ends_with(3).json();
    let mut problem = BTreeSet::new();
    collect(&Value::from(damaged["problems"].as_array().unwrap().clone()), &mut problem);
    add("scrub", vec![scene.run(["scrub", "--json"]).ends_with(1).json()]);
    add("check", vec![scene.run(["check", "--repair", "--json"]).ends_with(1).json()]);
    add("volume info", vec![scene.run(["volume", "info", "disk", "--json"]).succeeds().json()]);
    let copied = scene.run(["copy", "--to", "other", "--init", "--json"]).ends_with(3).json();
    add("copy", copied["problems"].as_array().unwrap().clone());
    add("copy", vec![copied]);
    let levels = Scene::with_store(&["--profile", "leveled", "--container-size", "64KiB", "--partitions", "1"]);
    fs::write(levels.path("file"), noise(4, 300_000)).unwrap();
    levels.run(["backup", "--name", "x", levels.path("file").to_str().unwrap()]).succeeds();
    add("stats", vec![levels.run(["stats", "--json"]).succeeds().json()]);
    add("partition list", vec![levels.run(["partition", "list", "--json"]).succeeds().json()]);
    add("partition move", vec![levels.run(["partition", "move", "0", "--home", "--json"]).succeeds().json()]);
    let bucket = Scene::new();
    fs::create_dir(bucket.path("bucket")).unwrap();
    let in_bucket = |arguments: &[&str]| {
        let mut command = bucket.command(arguments);
        command.env("ONEFOLD_STORE", format!("file://{}", bucket.path("bucket").display())).env("ONEFOLD_CACHE", bucket.path("cache"));
        Run::from(command.output().unwrap()).succeeds().json()
    };
    in_bucket(&["init", "--json"]);
    add("prune", vec![in_bucket(&["prune", "--dry-run", "--json"])]);
    seen.insert("problem".to_owned(), problem);

    let documented = documented();
    let mut wrong = Vec::new();
    for (name, seen) in &seen {
        let Some(known) = documented.get(name) else {
            if !seen.is_empty() {
                wrong.push(format!("`{name}` has no row"));
            }
            continue;
        };
        let is_known = |key: &&String| known.contains(*key) || key.strip_suffix("_hex").is_some_and(|key| known.contains(key));
        wrong.extend(seen.iter().filter(|key| !is_known(key)).map(|key| format!("`{key}` of `{name}` is not documented")));
    }
    for (name, known) in documented.iter().filter(|(name, _)| !ELSEWHERE.contains(&name.as_str())) {
        let Some(seen) = seen.get(name) else {
            wrong.push(format!("the row `{name}` is of no command that is run here"));
            continue;
        };
        let is_rare = |key: &str| {
            let needs_root = !is_root && ["major", "minor"].contains(&key);
            let needs_fuse = !has_fuse && name == "serve" && ["filesystem", "mounted"].contains(&key);
            needs_root || needs_fuse || key.ends_with("_hex")
        };
        wrong.extend(
            known.iter().filter(|key| !seen.contains(*key) && !is_rare(key)).map(|key| format!("`{key}` of `{name}` is not printed")),
        );
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
