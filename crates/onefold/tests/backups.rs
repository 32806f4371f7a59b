//! Backups end to end through the binary: back up, list, compare, restore; what scripts rely on.

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use support::{Run, Scene, noise, tree};

/// A small tree with everything that goes through the command line in an odd way.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/one"), noise(1, 300_000)).unwrap();
    fs::write(root.join("a/copy of one"), noise(1, 300_000)).unwrap();
    fs::write(root.join("a/b/line\nbreak"), "odd").unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"no \xff text")), "bytes").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    symlink("a/one", root.join("link")).unwrap();
}

fn restored(scene: &Scene, target: &str, source: &Path) -> std::path::PathBuf {
    scene.path(target).join(fs::canonicalize(source).unwrap().strip_prefix("/").unwrap())
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let scene = Scene::with_store(&[]);
    let source = scene.path("source");
    make_tree(&source);
    let first = scene.run(["backup", "--name", "home", "--json", "source"]).succeeds().json();
    for key in [
        "id",
        "name",
        "started",
        "finished",
        "seconds",
        "files",
        "files_new",
        "files_changed",
        "files_unmodified",
        "directories",
        "others",
        "logical_bytes",
        "read_bytes",
        "added_bytes",
        "stored_bytes",
        "problems",
        "partial",
    ] {
        assert!(!first[key].is_null(), "{key} in {first}");
    }
    assert_eq!(first["files_new"], 5);
    let (added, stored) = (first["added_bytes"].as_u64().unwrap(), first["stored_bytes"].as_u64().unwrap());
    assert!(added < 350_000 && (1..=added).contains(&stored), "two equal files are stored once: {first}");
    assert_eq!(scene.run(["backups", "--json"]).succeeds().json()[0]["stored_bytes"], stored);

    fs::write(source.join("a/new"), "new").unwrap();
    fs::remove_file(source.join("empty")).unwrap();
    let second = scene.run(["backup", "--name", "home", "--json", "source"]).succeeds().json();
    assert_eq!((&second["files_new"], &second["files_unmodified"]), (&1.into(), &4.into()));
    assert!((1..4000).contains(&second["added_bytes"].as_u64().unwrap()), "the directories that changed, and three bytes: {second}");

    let list = scene.run(["backups", "--json"]).succeeds().json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["id"], &list[1]["id"]), (&first["id"], &second["id"]));
    assert!(scene.run(["backups"]).succeeds().out.contains("home"));
    assert_eq!(scene.run(["backups", "--name", "other"]).succeeds().out, "");

    let id = |backup: &serde_json::Value| backup["id"].as_str().unwrap().to_owned();
    let diff = scene.run(["diff", &id(&first), "latest:home"]).succeeds();
    assert!(diff.out.lines().any(|line| line.starts_with('+') && line.ends_with("/source/a/new")), "{}", diff.out);
    assert!(diff.out.lines().any(|line| line.starts_with('-') && line.ends_with("/source/empty")), "{}", diff.out);
    let changes = scene.run(["diff", "--json", &id(&first)[..12], &id(&second)]).succeeds().json_lines();
    assert!(changes.iter().any(|change| change["change"] == "changed" && change["what"].as_array().unwrap().contains(&"mtime".into())));

    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    assert_eq!(tree(&restored(&scene, "back", &source)), tree(&source));
    let run = scene.run(["restore", &id(&first)[..10], "--target", "old", "--json"]).succeeds().json();
    assert_eq!(run["partial"], false);
    assert_eq!(fs::read(restored(&scene, "old", &source).join("a/one")).unwrap(), noise(1, 300_000));
    assert!(!restored(&scene, "old", &source).join("a/new").exists());

    scene.run(["check", "--read-data"]).succeeds();
}

#[test]
fn names_are_one_line_for_people_and_exact_in_json() {
    let scene = Scene::with_store(&[]);
    make_tree(&scene.path("source"));
    scene.run(["backup", "--name", "x", "source", "-q"]).succeeds();
    let lines = scene.run(["ls", "-lR", "latest"]).succeeds().out;
    assert!(lines.contains("/a/b/line\\nbreak"), "{lines}");
    assert!(lines.contains("no \\xff text"), "{lines}");
    assert!(lines.contains("/link -> a/one"), "{lines}");
    let items = scene.run(["ls", "--json", "-R", "latest"]).succeeds().json_lines();
    assert!(items.iter().any(|item| item["path"].as_str().unwrap().ends_with("/a/b/line\nbreak") && item["size"] == 3));
    assert!(items.iter().any(|item| item["path_hex"].as_str().is_some_and(|hex| hex.ends_with("ff2074657874"))));
    let source = fs::canonicalize(scene.path("source")).unwrap();
    let part = scene.run(["ls".as_ref(), "latest".as_ref(), source.join("a/b").as_os_str()]).succeeds().out;
    assert_eq!(part.lines().count(), 1, "{part}");
    scene.run(["ls", "latest", "/absent"]).ends_with(1).says(&["absent", "onefold ls"]);
}

#[test]
fn a_single_file_goes_to_standard_output() {
    let scene = Scene::with_store(&[]);
    make_tree(&scene.path("source"));
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let file = fs::canonicalize(scene.path("source")).unwrap().join("a/one");
    assert_eq!(scene.run(["dump".as_ref(), "latest".as_ref(), file.as_os_str()]).succeeds().bytes, noise(1, 300_000));
    let directory = file.parent().unwrap();
    scene.run(["dump".as_ref(), "latest".as_ref(), directory.as_os_str()]).ends_with(1).says(&["directory"]);

    let (read, write) = std::io::pipe().unwrap();
    let child = scene.command(["dump".as_ref(), "latest".as_ref(), file.as_os_str()]).stdout(write).stderr(Stdio::piped()).spawn().unwrap();
    drop(read);
    assert_eq!(Run::from(child.wait_with_output().unwrap()).ends_with(141).err, "");
}

#[test]
fn existing_files_are_left_alone_unless_told_otherwise() {
    let scene = Scene::with_store(&[]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "backed up").unwrap();
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let there = restored(&scene, "back", &source);
    fs::create_dir_all(&there).unwrap();
    fs::write(there.join("f"), "mine").unwrap();
    let run = scene.run(["restore", "latest", "--target", "back", "--json"]).ends_with(3);
    assert_eq!(run.json()["partial"], true);
    assert_eq!(fs::read(there.join("f")).unwrap(), b"mine");
    scene.run(["restore", "latest", "--target", "back", "--overwrite", "if-changed"]).succeeds();
    assert_eq!(fs::read(there.join("f")).unwrap(), b"backed up");
}

#[test]
fn excluded_files_stay_out() {
    let scene = Scene::with_store(&[]);
    make_tree(&scene.path("source"));
    scene.run(["backup", "--name", "x", "--exclude", "b", "--exclude", "*one", "source"]).succeeds();
    let lines = scene.run(["ls", "-R", "latest"]).succeeds().out;
    assert!(!lines.contains("source/a/one") && !lines.contains("a/b") && lines.contains("empty"), "{lines}");
    scene.run(["backup", "--name", "x", "--exclude", "a[", "source"]).ends_with(2).says(&["a["]);
}

#[test]
fn every_choice_of_init_makes_a_store_that_works() {
    for options in [
        &["--chunker", "rabin", "--fingerprint", "sha256", "--compression", "lz4"][..],
        &["--chunker", "fixed", "--chunk-size", "4KiB", "--fingerprint", "sha1", "--compression", "none"],
        &["--compression", "zlib:6", "--chunk-size", "16K", "--frame-size", "128KiB"],
        &["--compression", "bzip2:1", "--container-size", "1MiB", "--chunk-min", "4KiB", "--chunk-max", "64KiB"],
    ] {
        let scene = Scene::with_store(options);
        make_tree(&scene.path("source"));
        scene.run(["backup", "--name", "x", "source"]).succeeds();
        scene.run(["restore", "latest", "--target", "back"]).succeeds();
        assert_eq!(tree(&restored(&scene, "back", &scene.path("source"))), tree(&scene.path("source")), "{options:?}");
    }
    let made = Scene::new();
    let made = made.run(["init", "store", "--json", "--chunk-size", "16KiB"]).succeeds().json();
    assert_eq!((&made["chunk_target_bytes"], &made["compression"]), (&16384.into(), &"zstd:2".into()));
    assert_eq!((&made["frame_bytes"], &made["volume_frame_bytes"]), (&(512 << 10).into(), &(64 << 10).into()));
    let frames = |options: &[&str]| {
        let scene = Scene::new();
        let made = scene.run([&["init", "store", "--json"], options].concat()).succeeds().json();
        ["compression", "frame_bytes", "volume_compression", "volume_frame_bytes"].map(|key| made[key].to_string().replace('"', ""))
    };
    // What is said of all holds for volumes, unless something else is said of theirs.
    assert_eq!(frames(&["--compression", "lz4", "--frame-size", "16KiB"]), ["lz4", "16384", "lz4", "16384"]);
    assert_eq!(
        frames(&["--compression", "lz4", "--volume-compression", "none", "--volume-frame-size", "8KiB"]),
        ["lz4", "524288", "none", "8192"]
    );
    assert_eq!(frames(&["--container-size", "128KiB"]), ["zstd:2", "65536", "zstd:1", "65536"]);
}

#[test]
fn stats_has_its_keys() {
    let scene = Scene::with_store(&[]);
    let empty = scene.run(["stats", "--json"]).succeeds().json();
    assert_eq!((&empty["logical_bytes"], &empty["dedup_ratio"]), (&0.into(), &serde_json::Value::Null));
    make_tree(&scene.path("source"));
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let stats = scene.run(["stats", "--json"]).succeeds().json();
    for key in [
        "logical_bytes",
        "unique_bytes",
        "stored_bytes",
        "disk_bytes",
        "chunks",
        "containers",
        "dedup_ratio",
        "compression_ratio",
        "index_memory_bytes",
        "index_filter_bytes",
        "index_filter_limit_bytes",
        "index_filter_false_maybes",
        "index_entries",
        "index_cache_bytes",
        "index_cache_limit_bytes",
        "index_cache_hits",
        "index_cache_misses",
        "backups",
        "volumes",
        "filesystems",
        "filesystem_files",
        "filesystem_bytes",
        "log_bytes",
        "profile",
    ] {
        assert!(!stats[key].is_null(), "{key} in {stats}");
    }
    assert_eq!(stats["backups"], 1);
    assert!(stats["dedup_ratio"].as_f64().unwrap() > 1.5, "{stats}");
    assert!(scene.run(["stats"]).succeeds().out.contains("logical"));
    assert_eq!(stats["index_cache_limit_bytes"], 16 << 20);
    assert!(scene.run(["stats"]).succeeds().out.contains("of 16MiB for its pages"));
}

#[test]
fn check_finds_a_flipped_byte() {
    let scene = Scene::with_store(&[]);
    make_tree(&scene.path("source"));
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let clean = scene.run(["check", "--read-data", "--json"]).succeeds().json();
    assert_eq!((&clean["clean"], &clean["problem_count"]), (&true.into(), &0.into()));
    let container = tree(&scene.store().join("containers")).into_iter().find(|(_, content)| content.len() > 100_000).unwrap().0;
    let container = scene.store().join("containers").join(container);
    let mut bytes = fs::read(&container).unwrap();
    let middle = 50_000;
    bytes[middle] ^= 1;
    fs::write(&container, bytes).unwrap();
    let found = scene.run(["check", "--read-data", "--json"]).ends_with(1).json();
    assert_eq!(found["clean"], false);
    assert!(found["problems"].as_array().unwrap().iter().any(|problem| problem["kind"] == "container"), "{found}");
    let run = scene.run(["restore", "latest", "--target", "back"]).ends_with(3);
    assert!(run.err.contains("one"), "the damaged file is named: {}", run.err);
}

#[test]
fn m0_13_the_chunk_index_is_made_anew_from_the_containers() {
    let scene = Scene::with_store(&[]);
    let source = scene.path("source");
    make_tree(&source);
    // Long enough for recipe chunks, and twice, so that counts differ.
    fs::write(source.join("long"), noise(7, 3 << 20)).unwrap();
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    fs::write(source.join("more"), noise(8, 100_000)).unwrap();
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    scene.run(["volume", "create", "disk", "--size", "8MiB"]).succeeds();
    let image = source.join("long").display().to_string();
    scene.run(["volume", "import", "disk", &image]).succeeds();
    let index = scene.store().join("index");
    for partition in fs::read_dir(&index).unwrap() {
        let partition = partition.unwrap().path();
        for file in fs::read_dir(&partition).unwrap().map(|file| file.unwrap().path()) {
            // Some files are gone, some hold rubbish.
            if file.ends_with("header") { fs::remove_file(file).unwrap() } else { fs::write(file, b"rubbish").unwrap() }
        }
    }
    assert!(scene.run(["check"]).ends_with(1).says(&["index", "--rebuild-index"]).out.contains("index"));
    // Cut short, it must be done again: nothing else writes to the store; what reads says so.
    fs::write(index.join("rebuilding"), b"").unwrap();
    assert!(scene.run(["backup", "--name", "x", "source"]).ends_with(2).err.contains("--rebuild-index"));
    assert!(scene.run(["backups"]).succeeds().err.contains("--rebuild-index"));
    let rebuilt = scene.run(["check", "--rebuild-index", "--read-data", "--json"]).succeeds().json();
    assert_eq!(rebuilt["clean"], true, "{rebuilt}");
    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    // Everything is known again: the same tree adds nothing but the directory above it, which has changed.
    let again = scene.run(["backup", "--name", "x", "--force-read", "--json", "source"]).succeeds().json();
    assert!(again["added_bytes"].as_u64().unwrap() < 1000, "{again}");
    assert_eq!(scene.run(["check", "--json"]).succeeds().json()["clean"], true);
}

#[test]
fn an_interrupted_backup_leaves_nothing_visible() {
    let scene = Scene::with_store(&["--compression", "zstd:19"]);
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..12 {
        // Compressible, and slow at this level, so that the signal finds it at work.
        let text: Vec<u8> = noise(number, 8 << 20).iter().map(|byte| b"abcdefgh"[usize::from(*byte) % 8]).collect();
        fs::write(source.join(number.to_string()), text).unwrap();
    }
    let child = scene.command(["backup", "--name", "x", "source"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(400));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let run = Run::from(child.wait_with_output().unwrap()).ends_with(130);
    assert!(run.err.contains("no backup"), "{}", run.err);
    assert_eq!(scene.run(["backups"]).succeeds().out, "");
    scene.run(["check"]).succeeds();
}
