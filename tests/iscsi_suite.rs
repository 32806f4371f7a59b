//! The conformance tests of libiscsi (`iscsi-test-cu`, 1.19) against the daemon, each in a process of its own with a
//! time limit.
//!
//! The tool counts a test that skips itself as passed, and one test that hangs or ends the process hides all behind it.
//! So outcomes are counted here: a test *passes* when the tool says that it ran and did not fail, *skips* when it says
//! so itself, *fails*, or is *lost* when it does not come to its end. All of them must pass, but for those in
//! [`SKIPS`], each with the reason.

use onefold_tests::{Scene, installed};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The longest that one test may take.
const LIMIT: Duration = Duration::from_secs(90);
/// Tests at a time, each with a target and a volume of its own: resets of a target reach all its sessions.
const LANES: usize = 4;

/// Tests that skip themselves, and why that is right.
const SKIPS: &[(&str, &str)] = &[
    ("Sanitize.CryptoErase", NOT_ENCRYPTED),
    ("Sanitize.Readonly", NOT_ENCRYPTED),
    ("Sanitize.Reservations", NOT_ENCRYPTED),
    ("WriteSame10.ZeroBlocks", MUST_COUNT),
    ("WriteSame16.ZeroBlocks", MUST_COUNT),
];
const NOT_ENCRYPTED: &str = "only with cryptographic erase, and nothing is encrypted";
/// Where 0 blocks mean all to the end these pass, but then WriteSame10.UnmapUntilEnd asks for an unmapping with bytes
/// of 0xff and expects zeros, which SBC-3 forbids where unmapped blocks read as zeros.
const MUST_COUNT: &str =
    "a WRITE SAME must say how many blocks (WSNZ): one that does not is rather a mistake than the wish to overwrite all up to the end";

/// Tests that are not run, and why.
const NOT_RUN: &[(&str, &str)] = &[(
    "Sanitize.Reset",
    "it looks after three seconds whether an overwriting with zeros goes on, which is over at once where zeros are not stored; that a reset does not end an erasure is \
     tested in crates/iscsi/src/scsi/sanitize.rs",
)];

/// What a test needs of its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    /// A disk.
    Disk,
    /// One that is write-protected.
    Protected,
    /// One whose medium can be taken out.
    Removable,
    /// One with logical blocks of 4 KiB.
    LargeBlocks,
    /// One that is erased.
    Erasure,
    /// One that was never written to.
    Fresh,
}

impl Needs {
    fn of(test: &str) -> Needs {
        match test {
            "ReadOnly.ReadOnlySBC" => Needs::Protected,
            // It asks for the status of block i + 1 and expects the answer for the next physical block, which is right
            // only where both have the same size.
            "GetLBAStatus.UnmapSingle" => Needs::LargeBlocks,
            // It makes zeros of 256 blocks and then expects zeros in 257.
            "MultipathIO.CompareAndWrite" => Needs::Fresh,
            _ if test.starts_with("Sanitize.") => Needs::Erasure,
            _ if test.starts_with("PreventAllow.") || test.starts_with("StartStopUnit.") => Needs::Removable,
            _ => Needs::Disk,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
    Lost,
}

/// The outcome by what the tool printed for one test.
fn outcome(text: &str) -> Outcome {
    // "tests 1 1 1 0 0": all, run, passed, failed, inactive.
    let counts = text.lines().find_map(|line| line.trim().strip_prefix("tests ")).map(|line| {
        let counts: Vec<u32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        counts
    });
    let said = |mark: &str| text.lines().find(|line| line.contains(mark)).map_or_else(String::new, |line| line.trim().to_owned());
    match counts.as_deref() {
        Some([_, _, _, failed, ..]) if *failed > 0 => Outcome::Failed(said("  1. ")),
        Some([_, run, passed, 0, ..]) if *run == 0 || passed != run => Outcome::Lost,
        Some([_, _, _, 0, ..]) if text.contains("[SKIPPED]") => Outcome::Skipped(said("[SKIPPED]")),
        Some([_, _, _, 0, ..]) => Outcome::Passed,
        _ => Outcome::Lost,
    }
}

/// Runs one test, by its name in the list.
fn run(test: &str, url: &str) -> (Outcome, String) {
    // That one looks at a variable which only the one before it sets, so both are run for it.
    let name = if test == "iSCSITMF.LUNResetSimpleAsync" { "iSCSITMF" } else { test };
    let mut command = Command::new("iscsi-test-cu");
    command.args(["-d", "-n", "-t", &format!("ALL.{name}")]);
    if test.starts_with("Sanitize.") {
        command.arg("-S");
    }
    // A second path; others do not look at it.
    command.args([url, url]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = out.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let until = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    let text = reader.join().unwrap();
    (outcome(&text), text)
}

#[test]
fn outcomes_are_told_apart() {
    let summary = |counts: &str| format!("Suite: A\n  Test: B ...\n    1. c.c:1  - CU_FAIL(\"no\")\n\nRun Summary:\n  tests  {counts}\n");
    assert_eq!(outcome(&summary("1 1 1 0 0")), Outcome::Passed);
    assert_eq!(outcome(&summary("1 1 0 1 0")), Outcome::Failed("1. c.c:1  - CU_FAIL(\"no\")".into()));
    assert_eq!(outcome(&format!("    [SKIPPED] why\n{}", summary("1 1 1 0 0"))), Outcome::Skipped("[SKIPPED] why".into()));
    assert_eq!(outcome(&summary("1 0 0 0 0")), Outcome::Lost);
    assert_eq!(outcome("  Test: B ..."), Outcome::Lost);
}

#[test]
fn m0_1_the_conformance_tests_of_libiscsi_pass() {
    if !installed(&["iscsi-test-cu"]) {
        return;
    }
    let list = Command::new("iscsi-test-cu").arg("-l").output().unwrap();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let is_test = |name: &&str| name.split('.').count() == 2;
    let mut tests: Vec<&str> = list.lines().filter_map(|line| line.trim().strip_prefix("ALL.")).filter(is_test).collect();
    tests.sort_by_key(|test| std::cmp::Reverse(Needs::of(test)));
    assert!(tests.len() >= 230, "the tool lists {} tests", tests.len());
    tests.retain(|test| NOT_RUN.iter().all(|(name, _)| name != test));

    let scene = Scene::new(&[], "");
    let mut lanes: Vec<(Needs, String)> = (0..LANES).map(|lane| (Needs::Disk, format!("lane{lane}"))).collect();
    let special = [
        (Needs::Protected, "protected"),
        (Needs::Removable, "removable"),
        (Needs::LargeBlocks, "large"),
        (Needs::Erasure, "erasure"),
        (Needs::Fresh, "fresh"),
    ];
    lanes.extend(special.map(|(needs, name)| (needs, name.to_owned())));
    for (needs, name) in &lanes {
        scene.volume(name, "100MiB");
        let options: &[&str] = match needs {
            Needs::Protected => &["--read-only"],
            Needs::Removable => &["--removable"],
            Needs::LargeBlocks => &["--block-size", "4KiB"],
            _ => &[],
        };
        scene.run(["target", "create", name]).succeeds();
        scene.run([&["target", "attach", name, name][..], options].concat()).succeeds();
    }
    let daemon = scene.serve_with(&["--nbd", "none", "--iscsi", "127.0.0.1:0"]);
    let waiting = Mutex::new(tests);
    let results: Mutex<BTreeMap<String, (Outcome, String)>> = Mutex::default();
    std::thread::scope(|scope| {
        for (needs, name) in &lanes {
            let (daemon, waiting, results) = (&daemon, &waiting, &results);
            scope.spawn(move || {
                let url = daemon.iscsi_url(name);
                loop {
                    let mut tests = waiting.lock().unwrap();
                    let Some(at) = tests.iter().position(|test| Needs::of(test) == *needs) else { return };
                    let test = tests.remove(at);
                    drop(tests);
                    let result = run(test, &url);
                    results.lock().unwrap().insert(test.to_owned(), result);
                }
            });
        }
    });
    daemon.stop();

    let results = results.into_inner().unwrap();
    let mut report = String::new();
    let mut counts = [0; 4];
    for (test, (outcome, text)) in &results {
        let expected = SKIPS.iter().find(|(name, _)| name == test);
        let number = match outcome {
            Outcome::Passed => 0,
            Outcome::Failed(_) => 1,
            Outcome::Skipped(_) => 2,
            Outcome::Lost => 3,
        };
        counts[number] += 1;
        let is_expected = match outcome {
            Outcome::Passed => expected.is_none(),
            Outcome::Skipped(_) => expected.is_some(),
            _ => false,
        };
        if !is_expected {
            let _ = writeln!(report, "{test}: {outcome:?}, expected: {:?}\n{text}", expected.map_or("to pass", |(_, why)| why));
        }
    }
    let [passed, failed, skipped, lost] = counts;
    println!("iscsi-test-cu: {passed} passed, {failed} failed, {skipped} skipped, {lost} lost, {} not run", NOT_RUN.len());
    assert!(report.is_empty(), "{passed} passed, {failed} failed, {skipped} skipped, {lost} lost; not as expected:\n{report}");
    scene.check();
}
