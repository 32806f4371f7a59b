//! The options of `backup` through the binary: where the data comes from, what is left out, what is said.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use support::{Run, Scene};

/// A store, and files below `source` with their names as content.
fn scene(files: &[&str]) -> Scene {
    let scene = Scene::with_store(&[]);
    fs::create_dir(scene.path("source")).unwrap();
    for file in files {
        let path = scene.path("source").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    scene
}

/// Runs with this standard input.
fn fed(scene: &Scene, input: &[u8], arguments: &[&str]) -> Run {
    let mut child = scene.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A run that refuses does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    Run::from(child.wait_with_output().unwrap())
}

/// The files of the newest backup below `source`, sorted.
fn files(scene: &Scene) -> Vec<String> {
    let target = scene.path("listed");
    let _ = fs::remove_dir_all(&target);
    scene.run(["restore".as_ref(), "latest".as_ref(), "--target".as_ref(), target.as_os_str()]).succeeds();
    let root = target.join(fs::canonicalize(scene.path("source")).unwrap().strip_prefix("/").unwrap());
    let mut found = Vec::new();
    let mut todo = vec![root.clone()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn c_15_standard_input_becomes_a_file() {
    let scene = scene(&[]);
    let data: Vec<u8> = (0..3_000_000u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let made = fed(&scene, &data, &["backup", "--name", "db", "--stdin", "dumps/db.sql", "--json"]).succeeds().json();
    assert_eq!((&made["files"], &made["logical_bytes"], &made["read_bytes"]), (&1.into(), &data.len().into(), &data.len().into()));
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json()[0]["paths"], serde_json::json!(["/dumps/db.sql"]));
    assert!(scene.run(["dump", "latest:db", "/dumps/db.sql"]).succeeds().bytes == data);
    let again = fed(&scene, &data, &["backup", "--name", "db", "--stdin", "dumps/db.sql", "--json"]).succeeds().json();
    assert!(again["added_bytes"].as_u64().unwrap() < 5000, "{again}");
    // What failed to come is no backup.
    fed(&scene, b"", &["backup", "--name", "db", "--stdin", "db.sql"]).ends_with(2).says(&["nothing came from standard input"]);
    fed(&scene, b"x", &["backup", "--name", "db", "--stdin", "/"]).ends_with(2).says(&["name of the file is empty"]);
    fed(&scene, b"x", &["backup", "--name", "db", "--stdin", "db.sql", "source"]).ends_with(2).says(&["cannot be used with"]);
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json().as_array().unwrap().len(), 2);
}

#[test]
fn c_15_paths_come_from_a_list() {
    let scene = scene(&["a", "b c", "d/e", "d/f", "g\nh"]);
    fs::write(scene.path("list"), "source/a\nsource/d/e\n").unwrap();
    scene.run(["backup", "--name", "home", "--files-from", "list"]).succeeds();
    assert_eq!(files(&scene), ["a", "d/e"]);
    // The next one finds it: they have the directory in common.
    fs::write(scene.path("list"), "source/a\nsource/d/e\nsource/b c\n").unwrap();
    let made = scene.run(["backup", "--name", "home", "--files-from", "list", "--json"]).succeeds().json();
    assert_eq!((&made["files_unmodified"], &made["files_new"]), (&2.into(), &1.into()));
    let listed = scene.run(["backups", "--json"]).succeeds().json();
    assert_eq!(listed[1]["paths"][0], fs::canonicalize(scene.path("source")).unwrap().to_str().unwrap());
    fed(&scene, b"source/g\nh\0source/d\0", &["backup", "--name", "home", "--files-from", "-", "--null"]).succeeds();
    assert_eq!(files(&scene), ["d/e", "d/f", "g\nh"]);
    scene
        .run(["backup", "--name", "home", "--files-from", "list", "--files-from", "absent"])
        .ends_with(2)
        .says(&["absent", "No such file"]);
    fed(&scene, b"\n", &["backup", "--name", "home", "--files-from", "-"]).ends_with(2).says(&["lists nothing"]);
    fed(&scene, b"no\nnone\n", &["backup", "--name", "home", "--files-from", "-"]).ends_with(2).says(&["there is no no, no none"]);
    scene.run(["backup", "--name", "home", "--null", "source"]).ends_with(2).says(&["--files-from"]);
}

#[test]
fn c_15_patterns_come_from_a_file() {
    let scene = scene(&["a.o", "a.c", "#x", "keep.o"]);
    fs::write(scene.path("patterns"), "# objects\n\n*.o\n!keep.o\n\\#x\n").unwrap();
    scene.run(["backup", "--name", "home", "--exclude-from", "patterns", "source"]).succeeds();
    assert_eq!(files(&scene), ["a.c", "keep.o"]);
    scene
        .run(["backup", "--name", "home", "--exclude-from", "absent", "source"])
        .ends_with(2)
        .says(&["--exclude-from absent", "No such file"]);
    fs::write(scene.path("patterns"), b"\xff").unwrap();
    scene.run(["backup", "--name", "home", "--exclude-from", "patterns", "source"]).ends_with(2).says(&["not UTF-8"]);
}

#[test]
fn c_15_caches_and_marked_directories_stay_empty_but_for_their_mark() {
    let scene = scene(&["a", "cache/b", "cache/CACHEDIR.TAG", "false/CACHEDIR.TAG", "false/c", "marked/.nobackup", "marked/below/d"]);
    fs::write(scene.path("source/cache/CACHEDIR.TAG"), "Signature: 8a477f597d28d172789f06886806bc55\n# a cache\n").unwrap();
    scene.run(["backup", "--name", "home", "--exclude-caches", "--exclude-if-present", ".nobackup", "source"]).succeeds();
    assert_eq!(files(&scene), ["a", "cache/CACHEDIR.TAG", "false/CACHEDIR.TAG", "false/c", "marked/.nobackup"]);
    scene.run(["backup", "--name", "home", "--force-read", "source"]).succeeds();
    assert_eq!(files(&scene).len(), 7);
    scene.run(["backup", "--name", "home", "--exclude-if-present", "a/b", "source"]).ends_with(2).says(&["name of a file"]);
}

#[test]
fn c_15_a_dry_run_says_what_would_be_read_and_changes_nothing() {
    let scene = scene(&["a", "b", "c.o"]);
    let tried = scene.run(["backup", "--name", "home", "--dry-run", "--exclude", "*.o", "--json", "source"]).succeeds().json();
    assert_eq!(
        (&tried["dry_run"], &tried["files_new"], &tried["read_bytes"], &tried["id"]),
        (&true.into(), &2.into(), &2.into(), &serde_json::Value::Null)
    );
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json(), serde_json::json!([]));
    scene.run(["backup", "--name", "home", "source"]).succeeds();
    fs::write(scene.path("source/a"), "longer").unwrap();
    let out = scene.run(["backup", "--name", "home", "--dry-run", "source"]).succeeds().out;
    assert!(out.contains("dry run") && out.contains("0 new, 1 changed, 2 unmodified") && out.contains("6B of "), "{out}");
    scene.run(["backup", "--name", "home", "--dry-run", "--exclude", "*", "source"]).ends_with(2).says(&["everything is excluded"]);
    scene.run(["backup", "--name", "home", "--dry-run", "source", "absent"]).ends_with(3).says(&["absent"]);
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json().as_array().unwrap().len(), 1);
}

#[test]
fn c_15_the_parent_is_chosen() {
    let scene = scene(&["a", "b"]);
    let made = |options: &[&str]| scene.run(["backup", "--name", "home", "--json", "source"].iter().chain(options)).succeeds().json();
    let first = made(&[]);
    fs::write(scene.path("source/b"), "more").unwrap();
    made(&[]);
    let against_first = made(&["--parent", first["id"].as_str().unwrap()]);
    assert_eq!((&against_first["parent"], &against_first["files_changed"]), (&first["id"], &1.into()));
    let alone = made(&["--parent", "none"]);
    assert_eq!((&alone["parent"], &alone["files_new"]), (&serde_json::Value::Null, &2.into()));
    assert_eq!(made(&["--parent", "latest:home"])["files_unmodified"], 2);
    scene.run(["backup", "--name", "home", "--parent", "latest:none", "source"]).ends_with(1).says(&["latest:none"]);
}

#[test]
fn c_15_force_read_reports_as_changed_what_changed() {
    let scene = scene(&["a", "b", "c"]);
    scene.run(["backup", "--name", "home", "source"]).succeeds();
    fs::write(scene.path("source/b"), "more").unwrap();
    let made = scene.run(["backup", "--name", "home", "--force-read", "--json", "source"]).succeeds().json();
    assert_eq!((&made["files_changed"], &made["files_unmodified"], &made["read_bytes"]), (&1.into(), &2.into(), &6.into()));
}

#[test]
fn c_15_the_content_of_fifos_and_devices_is_read_where_they_are_named() {
    let scene = scene(&["a"]);
    let fifo = scene.path("source/pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
    // One that is only met on the way stays a FIFO.
    scene.run(["backup", "--name", "home", "--read-special", "source"]).succeeds();
    std::os::unix::fs::symlink("pipe", scene.path("source/link")).unwrap();
    let writer = std::thread::spawn(move || fs::write(fifo, "through the pipe").unwrap());
    scene.run(["backup", "--name", "pipe", "--read-special", "source/link"]).succeeds();
    writer.join().unwrap();
    let link = fs::canonicalize(scene.path("source")).unwrap().join("link");
    assert_eq!(scene.run(["dump".as_ref(), "latest:pipe".as_ref(), link.as_os_str()]).succeeds().bytes, b"through the pipe");
    let Some(device) = Loop::over(&scene.path("image"), &vec![0x5a; 5 << 20]) else {
        eprintln!("SKIPPED: no loop devices here");
        return;
    };
    let made = scene.run([
        "backup".as_ref(),
        "--name".as_ref(),
        "disk".as_ref(),
        "--read-special".as_ref(),
        "--json".as_ref(),
        device.0.as_os_str(),
    ]);
    assert_eq!(made.succeeds().json()["logical_bytes"], 5 << 20);
    let dumped = scene.run(["dump".as_ref(), "latest:disk".as_ref(), device.0.as_os_str()]).succeeds();
    assert!(dumped.bytes == vec![0x5a; 5 << 20]);
}

/// A loop device, for as long as it is needed.
struct Loop(PathBuf);

impl Loop {
    fn over(image: &Path, content: &[u8]) -> Option<Loop> {
        fs::write(image, content).unwrap();
        if !is_root() {
            return None;
        }
        let made = std::process::Command::new("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
        let name = String::from_utf8(made.stdout).ok()?.trim().to_owned();
        (made.status.success() && !name.is_empty()).then(|| Loop(PathBuf::from(name)))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn c_14_progress_ends_where_the_scan_said_it_would() {
    let scene = scene(&["a", "b", "d/e"]);
    fs::write(scene.path("source/large"), vec![7; 9 << 20]).unwrap();
    fs::hard_link(scene.path("source/large"), scene.path("source/same")).unwrap();
    for round in ["first", "unmodified"] {
        // A backup that is faster than its scan ends without totals.
        let ends_with_totals = || {
            let run = scene.run(["backup", "--name", round, "--progress", "--json", "--exclude", "b", "source"]).succeeds();
            assert_eq!(run.json()["files"], 4);
            let last: serde_json::Value = serde_json::from_str(run.err.lines().last().unwrap()).unwrap();
            assert_eq!(last["event"], "progress", "{round}: {}", run.err);
            (last["has_totals"] == true).then_some(last)
        };
        let last = (0..50).find_map(|_| ends_with_totals()).expect("the scan is faster once");
        let figures = ["files", "of_files", "bytes", "of_bytes"].map(|key| last[key].as_u64().unwrap());
        assert_eq!(figures, [4, 4, (9 << 20) + 4, (9 << 20) + 4], "{round}");
    }
    let run = scene.run(["backup", "--name", "home", "--progress", "source"]).succeeds();
    assert!(run.err.contains("5 of 5 files") || run.err.contains("5 files"), "{}", run.err);
    assert_eq!(scene.run(["backup", "--name", "home", "source"]).succeeds().err, "");
}

#[test]
fn c_15_names_that_are_no_text_come_from_a_list() {
    let scene = scene(&[]);
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    fs::write(scene.path("source").join(name), "x").unwrap();
    let made = fed(&scene, b"source/\xff\xfe\n", &["backup", "--name", "home", "--files-from", "-", "--json"]).succeeds().json();
    assert_eq!(made["files"], 1);
}
