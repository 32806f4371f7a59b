//! `onefold traffic`: the same bytes again, what `describe` promises against what a store finds, and what is refused.

mod support;

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::Scene;

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Options of a stream whose first MiBs have runs of all kinds.
const STREAM: [&str; 4] = ["--seed", "1", "--size", "24MiB"];

fn generate(scene: &Scene, options: &[&str], file: &str) {
    if let Some(parent) = Path::new(file).parent() {
        fs::create_dir_all(scene.path(parent.to_str().unwrap())).unwrap();
    }
    let mut arguments = vec!["traffic", "generate"];
    arguments.extend(options);
    arguments.push(file);
    scene.run(arguments).succeeds().says(&["wrote 24MiB in"]);
}

fn describe(scene: &Scene, options: &[&str]) -> Value {
    let mut arguments = vec!["traffic", "describe", "--json"];
    arguments.extend(options);
    scene.run(arguments).succeeds().json()
}

#[test]
fn the_same_options_write_the_same_bytes() {
    let scene = Scene::new();
    let stream = |more: &[&'static str]| [&STREAM[..], more].concat();
    generate(&scene, &stream(&["--generation", "2"]), "a");
    generate(&scene, &stream(&["--generation", "2"]), "b");
    let first = fs::read(scene.path("a")).unwrap();
    assert_eq!(first.len(), 24 << 20);
    assert!(first == fs::read(scene.path("b")).unwrap());
    let mut arguments = vec!["traffic", "generate", "-q", "--generation=2", "-"];
    arguments.splice(3..3, STREAM);
    let out = scene.command(arguments).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty());
    assert!(first == out.stdout);
    for (other, file) in [(["--generation", "1"], "c"), (["--client", "1"], "d"), (["--placement", "floating"], "e")] {
        generate(&scene, &stream(&other), file);
        assert!(first != fs::read(scene.path(file)).unwrap(), "{other:?}");
    }
}

#[test]
fn c_1_a_store_finds_what_is_promised() {
    let scene = Scene::with_store(&["--chunker", "fixed", "--chunk-size", "4KiB", "--compression", "none"]);
    let mut new = Vec::new();
    for generation in ["1", "2", "3"] {
        let options = [&STREAM[..], &["--generation", generation]].concat();
        generate(&scene, &options, &format!("gen{generation}/data"));
        let description = describe(&scene, &options);
        assert_eq!(number(&description, "length_bytes"), 24 << 20);
        let parts = ["new_bytes", "within_bytes", "earlier_bytes"].map(|part| number(&description, part));
        assert_eq!(parts.iter().sum::<u64>(), 24 << 20);
        assert!(parts[0] > 0 && (generation == "1") == (parts[2] == 0), "{description}");
        new.push(parts[0]);
        // Blocks of 4 KiB find every duplicate; beside the data a backup adds 36 bytes or so for each block of it, and
        // its directories.
        let backup = scene.run(["backup", "--json", "--name", "data", &format!("gen{generation}")]).succeeds().json();
        let added = number(&backup, "added_bytes");
        assert!((parts[0]..parts[0] + (512 << 10)).contains(&added), "generation {generation}: {added}, promised {}", parts[0]);
    }
    let report = scene.run(["analyze", "--json", "--chunkers", "fixed", "--sizes", "4KiB", "gen1", "gen2", "gen3"]).succeeds().json();
    assert_eq!(number(&report["results"][0], "unique_bytes"), new.iter().sum::<u64>());
}

#[test]
fn e2_2_versions_have_their_tenths_as_data_in_a_file() {
    let scene = Scene::with_store(&["--profile", "leveled", "--chunk-size", "8KiB", "--compression", "none"]);
    for (version, tenths) in [("1", 0), ("2", 1), ("3", 2), ("4", 3)] {
        let options = ["--set", "versions", "--size", "20MiB", "--generation", version];
        let file = format!("version{version}/data");
        fs::create_dir(scene.path(&format!("version{version}"))).unwrap();
        scene.run([&["traffic", "generate"], &options[..], &[&file]].concat()).succeeds().says(&["wrote 20MiB in"]);
        assert_eq!(fs::metadata(scene.path(&file)).unwrap().len(), 20 << 20);
        assert_eq!(number(&describe(&scene, &options), "earlier_bytes"), tenths * (2 << 20), "version {version}");
        let new = (10 - tenths) * (2 << 20);
        let backup = scene.run(["backup", "--json", "--name", "data", &format!("version{version}")]).succeeds().json();
        // A run loses a chunk or so at each end.
        let added = number(&backup, "added_bytes");
        assert!((new..new + new / 10).contains(&added), "version {version}: {added} of {new}");
    }
}

#[test]
fn c_1_chunks_by_content_lose_only_at_the_ends_of_runs() {
    let scene = Scene::new();
    let (mut new, mut runs) = (0, 0);
    for generation in ["1", "2"] {
        let options = [&STREAM[..], &["--placement", "floating", "--deleted-runs", "--generation", generation]].concat();
        generate(&scene, &options, &format!("gen{generation}/data"));
        let description = describe(&scene, &options);
        new += number(&description, "new_bytes");
        // The pieces of the pool end every 32 KiB, too.
        runs += description["states"].as_array().unwrap().iter().map(|state| number(state, "runs")).sum::<u64>();
        runs += number(&description, "within_bytes") / (32 << 10);
    }
    let report = scene.run(["analyze", "--json", "--chunkers", "fastcdc", "--sizes", "8KiB", "gen1", "gen2"]).succeeds().json();
    let unique = number(&report["results"][0], "unique_bytes");
    assert!(unique >= new && unique < new + runs * (32 << 10), "{unique} of {new} and {runs} runs");
}

#[test]
fn a_file_is_overwritten_only_with_force() {
    let scene = Scene::new();
    fs::write(scene.path("precious"), "mine").unwrap();
    fs::create_dir(scene.path("directory")).unwrap();
    let run = |options: &[&str]| scene.run([&["traffic", "generate", "--size", "100kB"], options].concat());
    run(&["precious"]).ends_with(1).says(&["precious", "it already exists", "--force"]);
    assert_eq!(fs::read(scene.path("precious")).unwrap(), b"mine");
    run(&["directory"]).ends_with(1).says(&["it is a directory"]);
    run(&["--force", "precious"]).succeeds();
    assert_eq!(fs::metadata(scene.path("precious")).unwrap().len(), 100_000);
    run(&["none/file"]).ends_with(1).says(&["cannot create none/file"]);
    // What cannot be written says so; there is nothing to remove.
    run(&["/dev/full"]).ends_with(1).says(&["cannot write /dev/full", "No space"]);
    assert!(Path::new("/dev/full").exists());
    run(&["/dev/null"]).succeeds();
}

/// A block device on a file, for as long as it is held.
struct LoopDevice(String);

impl LoopDevice {
    /// `None` without the rights or the tool for it.
    fn new(file: &Path) -> Option<LoopDevice> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        made.status.success().then(|| LoopDevice(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_overwritten_only_with_force_and_only_if_it_has_room() {
    let scene = Scene::new();
    fs::write(scene.path("image"), vec![7; 4 << 20]).unwrap();
    let Some(device) = LoopDevice::new(&scene.path("image")) else {
        eprintln!("skipped: losetup is missing or may not be used");
        return;
    };
    let run = |options: &[&str]| scene.run([&["traffic", "generate"], options, &[device.0.as_str()]].concat());
    run(&["--size", "1MiB"]).ends_with(1).says(&["it is a block device", "--force"]);
    run(&["--size", "5MiB", "--force"]).ends_with(1).says(&["the stream has 5MiB, the device 4MiB"]);
    assert!(fs::read(&device.0).unwrap().iter().all(|byte| *byte == 7));
    run(&["--size", "1MiB", "--force"]).succeeds();
    scene.run(["traffic", "generate", "--size", "1MiB", "stream"]).succeeds();
    let written = fs::read(&device.0).unwrap();
    assert!(written[..1 << 20] == fs::read(scene.path("stream")).unwrap() && written[1 << 20..].iter().all(|byte| *byte == 7));
}

#[test]
fn an_interrupted_stream_leaves_no_file() {
    let scene = Scene::new();
    let child = scene.command(["traffic", "generate", "--size", "8GiB", "large"]).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while fs::metadata(scene.path("large")).map_or(0, |found| found.len()) == 0 {
        assert!(Instant::now() < until, "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(130) && said.contains("the stream is not complete"), "{said}");
    assert!(!scene.path("large").exists());
}

#[test]
fn a_reader_that_goes_ends_the_stream_quietly() {
    let scene = Scene::new();
    let mut child = scene.command(["traffic", "generate", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut begin = [0; 1000];
    child.stdout.take().unwrap().read_exact(&mut begin).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8(out.stderr).unwrap()), (Some(141), String::new()));
}

#[test]
fn what_a_set_does_not_have_is_refused_before_anything_is_written() {
    let scene = Scene::new();
    for (options, says) in [
        (&["--generation", "0"][..], "1 to 1000"),
        (&["--set", "fingerprints", "--generation", "11"], "1 to 10"),
        (&["--set", "versions", "--generation", "11"], "1 to 10"),
        (&["--set", "versions", "--trace", "upb-6"], "--trace means nothing"),
        (&["--set", "vm-images", "--generation", "5"], "1 to 4"),
        (&["--size", "0"], "at least 1"),
        (&["--size", "2048PiB"], "at most 1EiB"),
        (&["--set", "fingerprints", "--size", "1kB"], "multiple of 32"),
        (&["--set", "unique-files", "--variant", "online-2011"], "--variant means nothing for this set"),
        (&["--set", "vm-images", "--deleted-runs"], "--deleted-runs means nothing"),
        (&["--set", "disjoint-blocks", "--placement", "block"], "--placement means nothing"),
        (&["--set", "duplicate-blocks", "--trace", "upb-6"], "--trace means nothing"),
        (&["--set", "generation"], "generations"),
        (&["--size", "many"], "not a size"),
    ] {
        scene.run([&["traffic", "generate"], options, &["file"]].concat()).ends_with(2).says(&[says]);
        scene.run([&["traffic", "describe"], options].concat()).ends_with(2).says(&[says]);
    }
    assert!(!scene.path("file").exists());
}

#[test]
fn a_description_says_what_is_reconstructed() {
    let scene = Scene::new();
    let first = scene.run(["traffic", "describe"]).succeeds();
    for text in [
        "generations: generation 1 of client 0, seed 0: 32GiB",
        "block, upb-6, documented",
        "These run lengths are reconstructed",
        "U unique",
    ] {
        assert!(first.out.contains(text), "{text}: {}", first.out);
    }
    let second = scene.run(["traffic", "describe", "--generation=2", "--placement=floating", "--deleted-runs"]).succeeds();
    for text in
        ["floating, upb-21-s, documented, with deleted runs", "goes back to generation 1, whose run lengths are reconstructed", "left out"]
    {
        assert!(second.out.contains(text), "{text}: {}", second.out);
    }
    assert_eq!(describe(&scene, &["--generation", "1"])["run_lengths"], "reconstructed");
    let later = describe(&scene, &["--generation", "9", "--variant", "halved-runs"]);
    assert_eq!((&later["run_lengths"], &later["variant"]), (&"measured".into(), &"halved-runs".into()));
}

#[test]
fn the_other_sets_have_the_papers_sizes() {
    let scene = Scene::new();
    for (set, generation, length, new) in [
        ("unique-files", "3", 3_000_000_000, 3_000_000_000),
        ("disjoint-blocks", "1", 4 << 30, 4 << 30),
        ("duplicate-blocks", "1", 4 << 30, 4 << 20),
        ("vm-images", "1", 518_326 * 4096, 518_326 * 4096),
        ("vm-images", "4", 1_145_029 * 4096, 427_355 * 4096),
    ] {
        let description = describe(&scene, &["--set", set, "--generation", generation]);
        assert_eq!((number(&description, "length_bytes"), number(&description, "new_bytes")), (length, new), "{set}");
        assert_eq!(description["run_lengths"], Value::Null);
    }
    // E2.2: tenths.
    for set in ["fingerprints", "versions"] {
        let versions = describe(&scene, &["--set", set, "--generation", "10"]);
        assert_eq!(number(&versions, "earlier_bytes") * 10, number(&versions, "length_bytes") * 9, "{set}");
    }
    let data = describe(&scene, &["--set", "versions"]);
    assert_eq!(number(&data, "length_bytes"), 155_452 * (10 << 20));
    let human = scene.run(["traffic", "describe", "--set", "fingerprints", "--size", "32MB"]).succeeds();
    assert!(human.out.contains("1,000,000 fingerprints"), "{}", human.out);
}
