//! `onefold analyze`: exact figures of trees whose duplicates are known, estimates near them, what it says when
//! something is wrong.

mod support;

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{Run, Scene, noise};

const MIB: u64 = 1 << 20;

/// The result of a chunker and a size.
fn result<'a>(report: &'a Value, chunker: &str, target: u64) -> &'a Value {
    let results = report["results"].as_array().unwrap();
    results.iter().find(|result| result["chunker"] == chunker && result["chunk_target_bytes"] == target).unwrap()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Two paths: equal files within one, an equal file in both, the same bytes shifted, zeros, holes, names of the same
/// file.
fn make_paths(scene: &Scene) {
    for directory in ["one", "two"] {
        fs::create_dir(scene.path(directory)).unwrap();
    }
    fs::write(scene.path("one/a"), noise(1, 1 << 20)).unwrap();
    fs::write(scene.path("one/copy of a"), noise(1, 1 << 20)).unwrap();
    fs::write(scene.path("one/b"), noise(2, 3 << 20)).unwrap();
    fs::write(scene.path("two/b"), noise(2, 3 << 20)).unwrap();
    fs::write(scene.path("two/shifted"), [b"shift".as_slice(), &noise(1, 1 << 20)].concat()).unwrap();
    fs::write(scene.path("one/zeros"), vec![0; 1 << 20]).unwrap();
    File::create(scene.path("one/hole")).unwrap().set_len(8 * MIB).unwrap();
    fs::hard_link(scene.path("one/a"), scene.path("one/name of a")).unwrap();
    fs::hard_link(scene.path("one/a"), scene.path("two/name of a")).unwrap();
    fs::write(scene.path("two/empty"), "").unwrap();
    symlink(scene.path("one/a"), scene.path("two/link")).unwrap();
}

#[test]
fn m0_2_c_3_known_duplicates_give_exact_figures() {
    let scene = Scene::new();
    make_paths(&scene);
    let report = scene.run(["analyze", "--json", "one", "two", "one/../one"]).succeeds().json();
    assert_eq!((&report["files"], &report["hard_links"], &report["directories"]), (&8.into(), &2.into(), &2.into()));
    assert_eq!((&report["errors"], &report["partial"]), (&0.into(), &false.into()));
    assert_eq!(report["paths"].as_array().unwrap().len(), 2, "a path that is named twice is one path");
    let logical = 2 * MIB + 3 * MIB + 3 * MIB + MIB + 5 + MIB + 8 * MIB;
    assert_eq!(number(&report, "logical_bytes"), logical);
    for result in report["results"].as_array().unwrap().iter().chain([&report["whole_files"]]) {
        assert_eq!(number(result, "logical_bytes"), logical);
        assert_eq!(number(result, "zero_bytes"), 9 * MIB, "{result}");
        assert_eq!(number(result, "data_bytes"), logical - 9 * MIB);
        let parts = number(result, "unique_bytes") + number(result, "within_bytes") + number(result, "across_bytes");
        assert_eq!(parts, number(result, "data_bytes"));
        assert_eq!(number(result, "within_bytes"), MIB, "the copy of a: {result}");
        assert_eq!((&result["sampled_one_in"], &result["unique_error"]), (&1.into(), &0.0.into()));
        let ratio = logical as f64 / number(result, "unique_bytes") as f64;
        assert!((result["dedup_ratio"].as_f64().unwrap() - ratio).abs() < 1e-9);
    }
    // Whole files and fixed blocks find b in both paths, but not what is shifted.
    assert_eq!(number(&report["whole_files"], "across_bytes"), 3 * MIB);
    assert_eq!(number(&report["whole_files"], "unique_chunks"), 3);
    let fixed = result(&report, "fixed", 4096);
    assert_eq!((number(fixed, "across_bytes"), number(fixed, "chunks")), (3 * MIB, 9 * 256 + 1));
    assert_eq!((number(fixed, "chunk_p5_bytes"), number(fixed, "chunk_p50_bytes"), number(fixed, "chunk_p95_bytes")), (4096, 4096, 4096));
    assert_eq!((number(fixed, "unique_chunks"), number(fixed, "chunk_mean_bytes")), (5 * 256 + 1, 4094));
    for chunker in ["fastcdc", "rabin"] {
        for target in [4096, 8192, 16384] {
            let across = number(result(&report, chunker, target), "across_bytes");
            assert!((3 * MIB + MIB * 8 / 10..=4 * MIB).contains(&across), "{chunker} {target}: {across}");
        }
    }
    // Noise does not shrink, and all of it was tried.
    assert_eq!(fixed["compressed_bytes"], fixed["unique_bytes"]);
    assert_eq!(fixed["compression_sample_bytes"], fixed["unique_bytes"]);
    let again = scene.run(["analyze", "--json", "one", "two"]).succeeds().json();
    assert_eq!(again["results"][0]["unique_bytes"], report["results"][0]["unique_bytes"]);
}

#[test]
fn m0_2_c_3_every_chunker_and_size_is_there_with_all_keys() {
    let scene = Scene::new();
    fs::write(scene.path("file"), noise(1, 200_000)).unwrap();
    let report = scene.run(["analyze", "--json", "file"]).succeeds().json();
    for key in [
        "paths",
        "files",
        "hard_links",
        "directories",
        "logical_bytes",
        "fingerprint",
        "memory_bytes",
        "seconds",
        "results",
        "whole_files",
        "best",
        "errors",
        "warnings",
        "problems",
        "partial",
    ] {
        assert!(report.get(key).is_some(), "{key}");
    }
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 4 * onefold_chunking::Kind::ALL.len());
    for result in results {
        for key in [
            "chunker",
            "chunk_target_bytes",
            "logical_bytes",
            "zero_bytes",
            "data_bytes",
            "unique_bytes",
            "within_bytes",
            "across_bytes",
            "dedup_ratio",
            "chunks",
            "unique_chunks",
            "chunk_mean_bytes",
            "chunk_p5_bytes",
            "chunk_p50_bytes",
            "chunk_p95_bytes",
            "sampled_one_in",
            "unique_error",
            "fingerprint_bytes_per_second",
            "compressed_bytes",
            "compression_sample_bytes",
            "index_memory_bytes",
            "index_disk_bytes",
            "store_bytes",
            "cut_bytes_per_second",
        ] {
            assert!(result.get(key).is_some(), "{key}");
        }
        assert_eq!(number(result, "unique_bytes"), 200_000);
    }
    for option in [["--chunkers", "fixed,rabin,fixed"], ["--sizes", "1MiB,512"]] {
        let report = scene.run([&["analyze", "--json", "--fingerprint", "sha1"], &option[..], &["file"]].concat()).succeeds().json();
        assert_eq!(report["fingerprint"], "sha1");
        let expected = if option[0] == "--sizes" { 2 * onefold_chunking::Kind::ALL.len() } else { 8 };
        assert_eq!(report["results"].as_array().unwrap().len(), expected, "{option:?}");
    }
}

#[test]
fn the_table_says_what_to_give_init() {
    let scene = Scene::new();
    fs::create_dir(scene.path("a")).unwrap();
    fs::create_dir(scene.path("b")).unwrap();
    // Blocks of a disk, a few of which were overwritten where they are.
    let mut image = noise(1, 4 << 20);
    fs::write(scene.path("a/image"), &image).unwrap();
    for block in (7..1000).step_by(20) {
        image[block * 4096..][..4096].copy_from_slice(&noise(block as u64, 4096));
    }
    fs::write(scene.path("b/image"), &image).unwrap();
    let arguments = ["analyze", "--chunkers", "fixed,rabin", "--sizes", "4KiB,64KiB", "a", "b"];
    let run = scene.run(arguments).succeeds();
    assert_eq!(run.err, "");
    for text in [
        "8MiB of 2 files in 2 directories",
        "whole files",
        "* fixed",
        "zstd:1",
        "across",
        "onefold init STORE --chunker fixed --chunk-size 4KiB",
    ] {
        assert!(run.out.contains(text), "`{text}` is not in:\n{}", run.out);
    }
    assert!(run.out.lines().all(|line| line.chars().count() <= 80), "{}", run.out);
    let quiet = scene.run([&["-q"], &arguments[..]].concat()).succeeds();
    assert!(quiet.out.contains("* fixed") && !quiet.out.contains("onefold init"));
}

#[test]
fn nothing_to_compare_is_no_failure() {
    let scene = Scene::new();
    fs::create_dir(scene.path("empty")).unwrap();
    assert!(scene.run(["analyze", "empty"]).succeeds().out.starts_with("0B of 0 files in 1 directory"));
    fs::write(scene.path("empty/file"), "").unwrap();
    let report = scene.run(["analyze", "--json", "empty"]).succeeds().json();
    assert_eq!((&report["files"], &report["best"]), (&1.into(), &Value::Null));
    assert_eq!((&report["results"][0]["dedup_ratio"], &report["results"][0]["chunks"]), (&Value::Null, &0.into()));
    fs::write(scene.path("empty/zeros"), [0; 10_000]).unwrap();
    let report = scene.run(["analyze", "--json", "empty"]).succeeds().json();
    assert_eq!((&report["best"], &report["results"][0]["zero_bytes"]), (&Value::Null, &10_000.into()));
    scene.run(["analyze", "empty"]).succeeds();
}

#[test]
fn wrong_usage_is_named() {
    let scene = Scene::new();
    fs::write(scene.path("file"), "data").unwrap();
    scene.run(["analyze"]).ends_with(2).says(&["PATH"]);
    scene.run(["analyze", "absent", "missing"]).ends_with(2).says(&["there is no absent, no missing", "check the spelling"]);
    scene.run(["analyze", "--chunkers", "fastcd", "file"]).ends_with(2).says(&[
        "--chunkers",
        "fastcd",
        "a similar value exists: 'fastcdc'",
        "rabin",
    ]);
    scene.run(["analyze", "--sizes", "3000", "file"]).ends_with(2).says(&["--sizes", "power of two"]);
    scene.run(["analyze", "--sizes", "1GiB", "file"]).ends_with(2).says(&["--sizes", "target"]);
    scene.run(["analyze", "--sizes", "8XiB", "file"]).ends_with(2).says(&["--sizes", "`XiB`"]);
    scene.run(["analyze", "--memory", "1KiB", "file"]).ends_with(2).says(&["--memory", "from 1MiB to 1TiB"]);
    scene.run(["analyze", "--fingerprint", "sha25", "file"]).ends_with(2).says(&["sha256"]);
    scene.run(["analyze", "--exclude", "[", "file"]).ends_with(2).says(&["pattern"]);
    scene.run(["analyze", "/dev/null"]).ends_with(2).says(&["/dev/null: is neither a file nor a directory", "none of the paths"]);
    scene.run(["analyze", "--chunkers", "fixed", "--sizes", "3000", "file"]).succeeds();
}

#[test]
fn what_cannot_be_read_is_listed_and_the_rest_is_counted() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("tree/closed")).unwrap();
    fs::write(scene.path("tree/file"), noise(1, 100_000)).unwrap();
    fs::write(scene.path("tree").join(std::ffi::OsStr::from_bytes(b"odd \xff\n")), noise(2, 100_000)).unwrap();
    fs::write(scene.path("tree/unreadable"), noise(3, 100_000)).unwrap();
    fs::set_permissions(scene.path("tree/unreadable"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(scene.path("tree/closed"), fs::Permissions::from_mode(0o000)).unwrap();
    let is_root = File::open(scene.path("tree/unreadable")).is_ok();
    let run = scene.run(["analyze", "--json", "tree", "absent"]).ends_with(3).says(&["absent: cannot look at it"]);
    let report = run.json();
    // Root reads everything: then only the missing path is a problem.
    let (errors, logical) = if is_root { (1, 300_000) } else { (3, 200_000) };
    assert_eq!((number(&report, "errors"), number(&report, "logical_bytes")), (errors, logical), "{report}");
    assert_eq!((&report["partial"], &report["problems"][0]["severity"]), (&true.into(), &"error".into()));
    assert!(report["problems"][0]["path"].as_str().unwrap().starts_with('/'));
    assert!(scene.run(["analyze", "tree", "absent"]).ends_with(3).out.contains("PARTIAL"));
    fs::set_permissions(scene.path("tree/closed"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn patterns_and_nested_paths_decide_what_is_read() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("tree/below/cache")).unwrap();
    for (seed, name) in ["tree/file", "tree/below/file", "tree/below/cache/file", "tree/below/object.o"].into_iter().enumerate() {
        fs::write(scene.path(name), noise(seed as u64, 50_000)).unwrap();
    }
    let files = |arguments: &[&str]| number(&scene.run([&["analyze", "--json"], arguments].concat()).succeeds().json(), "files");
    assert_eq!(files(&["tree"]), 4);
    assert_eq!(files(&["--one-file-system", "tree"]), 4);
    assert_eq!(files(&["--exclude", "*.o", "--exclude", "cache", "tree"]), 2);
    // Each file is read once, though two paths lead to it.
    assert_eq!(files(&["tree", "tree/below", "tree/below/file"]), 4);
    // A link that is named is followed.
    symlink("tree", scene.path("link")).unwrap();
    assert_eq!(files(&["link"]), 4);
}

/// Many small chunks, a third of them twice, in less memory than their fingerprints need.
#[test]
fn c_3_a_sample_estimates_what_does_not_fit_into_memory() {
    let scene = Scene::new();
    let file = File::create(scene.path("large")).unwrap();
    let unique = 96 * MIB;
    for step in 0..unique / (8 * MIB) {
        file.write_all_at(&noise(step + 1, 8 << 20), step * 8 * MIB).unwrap();
    }
    for step in 0..4 {
        file.write_all_at(&noise(step + 1, 8 << 20), unique + step * 8 * MIB).unwrap();
    }
    let arguments = ["analyze", "--chunkers", "fixed", "--sizes", "256", "--memory", "1MiB", "large"];
    let report = scene.run([&arguments[..], &["--json"]].concat()).succeeds().json();
    let fixed = result(&report, "fixed", 256);
    assert!(number(fixed, "sampled_one_in") >= 4, "{fixed}");
    assert_eq!((number(fixed, "chunks"), number(fixed, "data_bytes")), (128 * MIB / 256, 128 * MIB));
    let off = (number(fixed, "unique_bytes") as f64 / unique as f64 - 1.0).abs();
    let error = fixed["unique_error"].as_f64().unwrap();
    assert!(error > 0.0 && error < 0.02 && off < 0.02, "off by {off}: {fixed}");
    let run = scene.run(arguments).succeeds();
    assert!(
        run.out.contains("  ~9") && run.out.contains("--memory 1MiB does not hold them all") && run.out.contains("* fixed"),
        "{}",
        run.out
    );
}

#[test]
fn a_large_file_is_cut_as_a_backup_cuts_it() {
    let scene = Scene::with_store(&["--chunker", "fastcdc"]);
    // More than one batch, longer than all buffers together, with a hole in the middle.
    fs::create_dir(scene.path("source")).unwrap();
    let file = File::create(scene.path("source/image")).unwrap();
    file.write_all_at(&noise(1, 11_000_001), 0).unwrap();
    file.write_all_at(&noise(2, 7_000_003), 64 * MIB).unwrap();
    drop(file);
    let report = scene.run(["analyze", "--json", "--chunkers", "fastcdc", "--sizes", "8KiB", "source"]).succeeds().json();
    let found = result(&report, "fastcdc", 8192);
    scene.run(["backup", "--name", "x", "source"]).succeeds();
    let stats = scene.run(["stats", "--json"]).succeeds().json();
    // The store has some chunks of metadata beside: recipes and directories.
    let (analyzed, stored) = (number(found, "unique_bytes"), number(&stats, "unique_bytes"));
    assert!(analyzed <= stored && stored - analyzed < stored / 50, "{analyzed} analyzed, {stored} stored");
    assert_eq!(number(found, "logical_bytes"), 64 * MIB + 7_000_003);
}

#[test]
fn a_signal_ends_it_without_figures() {
    let scene = Scene::new();
    // Enough work for some seconds.
    let file = File::create(scene.path("large")).unwrap();
    for step in 0..256 {
        file.write_all_at(&noise(step, 1 << 20), step * MIB).unwrap();
    }
    let child = scene
        .command(["analyze", "--sizes", "1KiB,2KiB,4KiB,8KiB,16KiB,32KiB,64KiB,128KiB", "large"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_signal_handler(child.id());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let run = Run::from(child.wait_with_output().unwrap()).ends_with(130).says(&["stopped by a signal", "nothing was changed"]);
    assert_eq!(run.out, "");
}

/// Waits until the process catches SIGINT.
fn wait_for_signal_handler(pid: u32) {
    let until = Instant::now() + Duration::from_secs(20);
    let caught = || {
        let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim).unwrap_or("0").to_owned();
        u64::from_str_radix(&mask, 16).unwrap_or(0) & 2 != 0
    };
    while !caught() {
        assert!(Instant::now() < until, "it never watches for signals");
        std::thread::sleep(Duration::from_millis(1));
    }
}
