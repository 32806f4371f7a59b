use super::*;
use crate::results::{PartTraffic, Quantity};
use crate::spec::StoreSettings;
use crate::testing::TestSettings;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// At these sizes all data stays in the buffers of the volumes until the flush, so the run says nothing about speed.
const TINY: &str = r#"
id = "T"
title = "Tiny"
paper = "none"
[workload]
size = "8MiB"
clients = 2
generations = 2
[store]
compression = "none"
block = "128KiB"
[settings]
memory.auxiliary_index = "64MiB"
[scaled]
settings = ["memory.auxiliary_index"]
[run]
request = "64KiB"
[devices.quick]
read_us = 1
[parts]
chunk-index = "quick*2"
[[variant]]
name = "one"
[[variant]]
name = "two"
run.face = "nbd"
"#;

/// A program with a single protocol that keeps nothing. It refuses writes after the given number, for the first
/// connection, the second and so on.
struct Failing {
    writes: Arc<Mutex<VecDeque<u64>>>,
}

fn failing(writes: &[u64]) -> Failing {
    Failing { writes: Arc::new(Mutex::new(writes.iter().copied().collect())) }
}

impl SettingsReader for Failing {
    fn check(&self, key: &str, value: &str) -> std::result::Result<(), String> {
        TestSettings.check(key, value)
    }
    fn least_bytes(&self, key: &str) -> Option<u64> {
        TestSettings.least_bytes(key)
    }
    fn read(&self, text: &str) -> std::result::Result<StoreSettings, String> {
        TestSettings.read(text)
    }
}

impl Program for Failing {
    fn version(&self) -> String {
        "test".to_owned()
    }
    fn serve(&self, face: Face, store: &Served<'_>) -> std::result::Result<Box<dyn Service>, String> {
        assert_eq!((face, store.settings, store.depth), (Face::Nbd, "memory.auxiliary_index = 67108864\n", 1));
        assert!(store.directory.is_dir());
        Ok(Box::new(Limited { volumes: store.volumes.clone(), writes: self.writes.clone() }))
    }
}

struct Limited {
    volumes: Arc<Volumes>,
    writes: Arc<Mutex<VecDeque<u64>>>,
}

impl Service for Limited {
    fn connect(&self, volume: &str) -> std::result::Result<Box<dyn Way>, WayError> {
        assert!(self.volumes.get(volume)?.size() >= 4 * MIB);
        Ok(Box::new(Limit { left: self.writes.lock().unwrap().pop_front().unwrap(), answered: VecDeque::new() }))
    }
}

struct Limit {
    left: u64,
    answered: VecDeque<(u64, Vec<u8>)>,
}

impl Way for Limit {
    fn submit(&mut self, tag: u64, _offset: u64, data: Vec<u8>) -> std::result::Result<(), WayError> {
        let why = "no more".to_owned();
        self.left = self.left.checked_sub(1).ok_or(WayError::Refused { volume: "of the test".to_owned(), request: "write", why })?;
        self.answered.push_back((tag, data));
        Ok(())
    }
    fn wait(&mut self) -> std::result::Result<(u64, Vec<u8>), WayError> {
        Ok(self.answered.pop_front().unwrap())
    }
    fn flush(&mut self) -> std::result::Result<(), WayError> {
        Ok(())
    }
}

/// Stops the run after this many bytes, or at a step.
struct Stopping {
    after_bytes: u64,
    at_step: &'static str,
    seen: AtomicU64,
    told: Mutex<Vec<Results>>,
}

impl Stopping {
    fn never() -> Stopping {
        Stopping { after_bytes: u64::MAX, at_step: "never", seen: AtomicU64::new(0), told: Mutex::default() }
    }
}

impl Watcher for Stopping {
    fn step(&self, what: &str, _total_bytes: u64) {
        if what.contains(self.at_step) {
            self.seen.store(u64::MAX / 2, Ordering::SeqCst);
        }
    }
    fn advance(&self, bytes: u64) {
        self.seen.fetch_add(bytes, Ordering::SeqCst);
    }
    fn is_cancelled(&self) -> bool {
        self.seen.load(Ordering::SeqCst) >= self.after_bytes.min(u64::MAX / 2)
    }
    fn measured(&self, results: &Results) {
        self.told.lock().unwrap().push(results.clone());
    }
}

fn spec(text: &str) -> Spec {
    Spec::parse(text, &TestSettings).unwrap()
}

fn plan(directory: &Path, variants: &[&str]) -> Plan {
    let variants = variants.iter().map(|name| (*name).to_owned()).collect();
    Plan { size: Size::Full, repetitions: None, variants, directory: directory.to_owned() }
}

#[track_caller]
fn is_empty(directory: &Path) {
    let left: Vec<_> = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_tiny_run_has_the_figures_that_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let watcher = Stopping::never();
    let plan = Plan { repetitions: Some(2), ..plan(directory.path(), &["one"]) };
    let spec = spec(TINY);
    let outcome = run(&spec, &plan, &failing(&[]), &watcher).unwrap();
    is_empty(directory.path());
    assert!(!outcome.is_cancelled);
    let results = outcome.results;
    assert_eq!((results.size_bytes, results.full_size_bytes, results.variants.len()), (8 * MIB, 8 * MIB, 1));
    let variant = &results.variants[0];
    assert_eq!((variant.repetitions.len(), variant.failure.as_deref(), variant.face.as_str(), variant.clients), (2, None, "in-process", 2));
    assert!(variant.modelled["chunk-index"].starts_with("2 x quick: 1 us a read"), "{:?}", variant.modelled);
    assert_eq!(watcher.told.lock().unwrap().len(), 2, "told after each repetition");
    assert_eq!(watcher.seen.load(Ordering::SeqCst), 4 * 8 * MIB);
    for measured in variant.repetitions.iter().flatten() {
        let present: u64 =
            (0..2).map(|client| spec.variants[0].stream_of(client, measured.generation, 8 * MIB).describe().unwrap().new_bytes).sum();
        assert_eq!((measured.written_bytes, measured.present_new_bytes), (8 * MIB, present));
        let stored = measured.stored_new_bytes;
        assert!((present..=8 * MIB).contains(&stored), "{stored} of {present}");
        assert!(measured.steady_bytes <= measured.written_bytes && measured.steady_s <= measured.wall_s);
        assert!(measured.wall_s > 0.0 && measured.cpu_s > measured.source_cpu_s && measured.source_cpu_s > 0.0, "{measured:?}");
        assert!(measured.peak_memory_bytes > MIB && measured.settle_s > 0.0);
        assert!(measured.components_s["fingerprint"] > 0.0 && measured.components_s["log"] > 0.0, "{:?}", measured.components_s);
        let latency = measured.latency_ms;
        assert!(0.0 < latency.p50 && latency.p50 <= latency.p99 && latency.p99 <= latency.greatest, "{latency:?}");
        let course: f64 = measured.course_mb_s.iter().sum::<f64>() * measured.span_s;
        assert!(!measured.course_mb_s.is_empty() && course > 0.0);
        let [index, containers, log] = ["chunk-index", "containers", "log"].map(|part| measured.parts[part]);
        assert!(containers.written_bytes + log.written_bytes >= stored, "new data is in containers or the log");
        assert!(log.syncs > 0 && index.devices == 2 && measured.parts.len() == 5);
        assert!(index.written_bytes > 0, "settled: {index:?}");
    }
    let [first, second] = &variant.repetitions[0][..] else { panic!("{variant:?}") };
    assert!(first.stored_new_bytes > 4 * MIB && first.disk_bytes > 4 * MIB);
    assert!(second.stored_new_bytes < first.stored_new_bytes);
    assert!(second.parts["chunk-index"].reads > 0, "old chunks are looked up: {:?}", second.parts);
    assert_ne!(second.parts["chunk-index"], PartTraffic::default());
    assert_eq!(variant.repetitions[1][0].stored_new_bytes, first.stored_new_bytes, "each repetition has a new store");
    let text = serde_json::to_string(&results).unwrap();
    assert_eq!(serde_json::from_str::<Results>(&text).unwrap().variants[0].settings, variant.settings);
}

#[test]
fn a_generation_can_overwrite_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    let spec = spec(&TINY.replace("request = \"64KiB\"", "request = \"64KiB\"\nclone = true\nrestart = false\ncold_caches = false"));
    let outcome = run(&spec, &plan(directory.path(), &["one"]), &failing(&[]), &Stopping::never()).unwrap();
    assert_eq!(outcome.results.variants[0].repetitions[0].len(), 2, "{:?}", outcome.results.variants[0].failure);
}

#[test]
fn a_store_that_discards_data_finds_the_same_duplicates_and_takes_little_room() {
    let directory = tempfile::tempdir().unwrap();
    let measured = |text: &str| {
        let outcome = run(&spec(text), &plan(directory.path(), &["one"]), &failing(&[]), &Stopping::never()).unwrap();
        assert_eq!(outcome.results.variants[0].failure, None);
        outcome.results.variants[0].clone()
    };
    let large = TINY.replace("8MiB", "32MiB");
    let kept = measured(&large);
    let discarded = measured(&large.replace("[store]", "[store]\ndiscard_data = true"));
    assert_eq!((kept.discards_data, discarded.discards_data), (false, true));
    for (kept, discarded) in kept.repetitions[0].iter().zip(&discarded.repetitions[0]) {
        assert_eq!(kept.stored_new_bytes, discarded.stored_new_bytes, "generation {}", kept.generation);
    }
    let [kept, discarded] = [kept, discarded].map(|variant| variant.repetitions[0][0].disk_bytes);
    assert!(kept > 24 * MIB && discarded < kept / 2, "{kept} {discarded}");
}

/// A program whose first write takes some time.
struct Late {
    first: Duration,
}

impl SettingsReader for Late {
    fn check(&self, key: &str, value: &str) -> std::result::Result<(), String> {
        TestSettings.check(key, value)
    }
    fn least_bytes(&self, key: &str) -> Option<u64> {
        TestSettings.least_bytes(key)
    }
    fn read(&self, text: &str) -> std::result::Result<StoreSettings, String> {
        TestSettings.read(text)
    }
}

impl Program for Late {
    fn version(&self) -> String {
        "test".to_owned()
    }
    fn serve(&self, _face: Face, _store: &Served<'_>) -> std::result::Result<Box<dyn Service>, String> {
        Ok(Box::new(LateService(self.first)))
    }
}

struct LateService(Duration);

impl Service for LateService {
    fn connect(&self, _volume: &str) -> std::result::Result<Box<dyn Way>, WayError> {
        Ok(Box::new(LateWay { first: self.0, answered: VecDeque::new() }))
    }
}

struct LateWay {
    first: Duration,
    answered: VecDeque<(u64, Vec<u8>)>,
}

impl Way for LateWay {
    fn submit(&mut self, tag: u64, _offset: u64, data: Vec<u8>) -> std::result::Result<(), WayError> {
        std::thread::sleep(std::mem::take(&mut self.first));
        self.answered.push_back((tag, data));
        Ok(())
    }
    fn wait(&mut self) -> std::result::Result<(u64, Vec<u8>), WayError> {
        Ok(self.answered.pop_front().unwrap())
    }
    fn flush(&mut self) -> std::result::Result<(), WayError> {
        Ok(())
    }
}

#[test]
fn a_rate_bounds_throughput_and_a_delay_counts_for_all_requests_that_it_holds_up() {
    let directory = tempfile::tempdir().unwrap();
    // 32 requests of each of two clients within a second.
    let text = TINY.replace("size = \"8MiB\"", "size = \"4MiB\"").replace("generations = 2", "generations = 1");
    let text = text.replace("request = \"64KiB\"", "request = \"64KiB\"\nrate = \"4MiB\"");
    let measured = |first| {
        let outcome = run(&spec(&text), &plan(directory.path(), &["two"]), &Late { first }, &Stopping::never()).unwrap();
        assert_eq!(outcome.results.variants[0].failure, None);
        outcome.results.variants[0].repetitions[0][0].clone()
    };
    let prompt = measured(Duration::ZERO);
    assert!(prompt.wall_s > 0.9 && prompt.throughput_mb_s() < 5.0, "{prompt:?}");
    // Half of the requests were due meanwhile. Those of the first half waited for the most part of it.
    let late = measured(Duration::from_millis(500));
    assert!(late.latency_ms.p90 > 250.0 && late.latency_ms.greatest >= 499.0, "{late:?}");
    assert!(prompt.latency_ms.p50 < 100.0, "{prompt:?}");
}

/// A store of this profile that is filled with a few thousand chunks, then written to, referred to and deleted from.
fn filled(profile: &str) -> String {
    let work = "work = [\"write\", \"add-data\", \"add-references\", \"delete-references\", \"delete-data\"]";
    let text = TINY.replace("generations = 2", work).replace("[run]", "[fill]\nchunks = 5000\ngroups = 3\nchunks_each_file = 700\n[run]");
    text.replace(
        "[store]",
        &format!("[store]\ndiscard_data = true\nprofile = \"{profile}\"\nchunk_size = \"4KiB\"\ncontainer = \"256KiB\""),
    )
}

#[test]
fn e3_2_a_store_is_filled_and_e3_3_references_are_added_and_deleted() {
    for profile in ["exact", "marked", "sampled"] {
        let directory = tempfile::tempdir().unwrap();
        let outcome = run(&spec(&filled(profile)), &plan(directory.path(), &["one"]), &failing(&[]), &Stopping::never()).unwrap();
        is_empty(directory.path());
        let variant = &outcome.results.variants[0];
        assert_eq!(variant.failure, None, "{profile}");
        let [filled] = &variant.fills[..] else { panic!("{variant:?}") };
        assert_eq!((filled.chunks, filled.logical_bytes), (5000, 5000 * 4096));
        // Each chunk has a name of 32 bytes in its catalog and one in its recipe.
        assert!(filled.metadata_bytes > 32 * 5000 && filled.directories["containers"].bytes > 64 * 5000, "{filled:?}");
        assert!(filled.directories["containers"].files >= 5000 / 64, "{filled:?}");
        assert_eq!(filled.directories.contains_key("marks"), profile != "exact", "{filled:?}");
        assert_eq!((filled.hooks > 0, filled.sampled_rate), (profile == "sampled", u64::from(profile == "sampled")));
        assert!(filled.steps.iter().any(|(name, seconds)| name == "fill" && *seconds > 0.0), "{filled:?}");
        let [written, data, references, unreferenced, undone] = &variant.repetitions[0][..] else { panic!("{variant:?}") };
        assert!(written.stored_new_bytes > 0 && written.open_s > 0.0 && written.steps.is_empty());
        for measured in [data, references, unreferenced, undone] {
            assert_eq!((measured.written_bytes, measured.steps.len()), (8 * MIB, 2), "{profile}");
            assert!(measured.wall_s > 0.0 && measured.open_s > 0.0);
        }
        assert!(data.stored_new_bytes >= 8 * MIB && data.present_new_bytes == 8 * MIB);
        // Only metadata is new.
        assert!(references.stored_new_bytes < MIB && references.present_new_bytes == 0, "{references:?}");
        assert_eq!((unreferenced.stored_new_bytes, undone.stored_new_bytes), (0, 0));
    }
}

#[test]
fn e3_2_a_fill_that_is_stopped_leaves_no_files() {
    for (after_bytes, at_step) in [(MIB, "never"), (u64::MAX, "marks what is needed"), (u64::MAX, "deletes backups")] {
        let directory = tempfile::tempdir().unwrap();
        let watcher = Stopping { after_bytes, at_step, ..Stopping::never() };
        let outcome = run(&spec(&filled("sampled")), &plan(directory.path(), &["one"]), &failing(&[]), &watcher).unwrap();
        is_empty(directory.path());
        assert!(outcome.is_cancelled, "{at_step}");
    }
}

#[test]
fn e3_2_a_fill_without_room_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let spec = spec(&filled("sampled").replace("chunks = 5000", "chunks = 900_000_000_000"));
    let error = run(&spec, &plan(directory.path(), &["one"]), &failing(&[]), &Stopping::never()).unwrap_err().to_string();
    assert!(error.starts_with("the stores of experiment T need about "), "{error}");
}

#[test]
fn e3_1_unneeded_chunks_are_removed_beside_the_clients() {
    let directory = tempfile::tempdir().unwrap();
    let text = TINY.replace("8MiB", "64MiB").replace("[store]", "[store]\ndiscard_data = true\nprofile = \"marked\"");
    // Each generation overwrites the one before; without a restart the volumes are the same.
    let text = text.replace("request = \"64KiB\"", "request = \"64KiB\"\nprune = true\nclone = true\nrestart = false");
    let text = text.replace("set = \"generations\"", "").replace("size = \"64MiB\"", "set = \"unique-files\"\nsize = \"64MiB\"");
    let outcome = run(&spec(&text), &plan(directory.path(), &["one"]), &failing(&[]), &Stopping::never()).unwrap();
    let variant = &outcome.results.variants[0];
    assert_eq!(variant.failure, None);
    assert!(variant.repetitions[0].iter().any(|measured| measured.searches > 0), "{:?}", variant.repetitions[0]);
}

/// Versions in a store of levels with small memtables and two partitions, each on a device of its own.
fn leveled() -> String {
    let work = "work = [\"write\", \"read\", \"write\", \"read\"]";
    let text = TINY.split("[[variant]]\nname = \"two\"").next().unwrap();
    let text = text.replace("generations = 2", work).replace("[workload]", "[workload]\nset = \"versions\"");
    let text = text.replace("size = \"8MiB\"", "size = \"40MiB\"").replace("[parts]", "[parts]\nlevels = \"quick\"");
    text.replace("[store]", "[store]\nprofile = \"leveled\"\npartitions = 2\nchunk_size = \"8KiB\"\ncontainer = \"128KiB\"")
}

#[test]
fn e2_m2_9_levels_are_written_read_and_measured_by_version() {
    let directory = tempfile::tempdir().unwrap();
    let outcome = run(&spec(&leveled()), &plan(directory.path(), &["one"]), &failing(&[]), &Stopping::never()).unwrap();
    is_empty(directory.path());
    let variant = &outcome.results.variants[0];
    assert_eq!(variant.failure, None);
    assert!(variant.modelled["levels"].starts_with("for each of 2 partitions quick: 1 us"), "{:?}", variant.modelled);
    let [first, restored, second, again] = &variant.repetitions[0][..] else { panic!("{variant:?}") };
    for read in [restored, again] {
        assert_eq!((read.written_bytes, read.stored_new_bytes, read.present_new_bytes), (40 * MIB, 0, 0));
        assert!(read.parts["levels"].read_bytes > 30 * MIB && read.parts["levels"].devices == 2, "{:?}", read.parts);
    }
    // A tenth of the second version is known, less what chunks lose at the ends of runs.
    let found = second.figure(Quantity::FoundPercent, None).unwrap();
    assert!(second.present_new_bytes == 36 * MIB && (80.0..=100.0).contains(&found), "{found}");
    assert!((1.05..1.12).contains(&second.figure(Quantity::VersionRatio, None).unwrap()), "{second:?}");
    assert_eq!([first, restored, second, again].map(|one| one.total.written_bytes / MIB), [40, 40, 80, 80]);
    let ratio = again.figure(Quantity::Ratio, None).unwrap();
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
    // Each byte is written once for its table, and at least once for the level below.
    let (written, space) = (again.figure(Quantity::WriteAmplification, None), again.figure(Quantity::SpaceAmplification, None));
    assert!((2.0..20.0).contains(&written.unwrap()) && (1.0..1.2).contains(&space.unwrap()), "{written:?} {space:?}");
    assert!(second.figure(Quantity::Sustained, None) < Some(second.written_bytes as f64 / 1e6 / second.wall_s));
    let levels = again.levels.as_ref().unwrap();
    assert!(levels.ratio == 10 && levels.levels.len() > 1, "{levels:?}");
    let chunks: u64 = levels.levels.iter().map(|level| level.raw_bytes).sum();
    assert!((70 * MIB..80 * MIB).contains(&chunks), "{chunks}");
    // The store was closed and opened three times, and each opening counts from zero.
    let works = [first, restored, second, again].map(|one| one.levels.as_ref().unwrap().work);
    assert_eq!(works.into_iter().reduce(|sum, one| sum + one), Some(levels.total_work), "m2_9");
    assert!(levels.total_work.flushed_bytes > chunks && works[2].flushed_bytes > 36 * MIB, "{works:?}");
    // Nothing was removed. Tables that a compaction wrote have less beside their chunks than those of small memtables.
    let (written, space) = (levels.write_amplification().unwrap(), levels.space_amplification().unwrap());
    assert!((2.0..20.0).contains(&written) && (0.9..1.1).contains(&space), "M2.9: {written} {space}");
    // A frame has eight chunks or so, and what is read from its beginning to its end asks for few pages.
    let (asked, reads) = (works[3].gets, again.figure(Quantity::ReadsPerGet, None).unwrap());
    assert!(asked > 4000 && (0.0..2.0).contains(&reads), "{asked} {reads}");
    // No compaction is due: level 0 has fewer tables than one takes, the others have room.
    assert!(levels.levels[0].tables < 20 && levels.levels[1..].iter().all(|level| level.raw_bytes <= level.capacity_bytes), "{levels:?}");
}

#[test]
fn a_run_that_is_stopped_leaves_no_files_and_keeps_what_was_measured() {
    for (after_bytes, at_step, generations) in
        [(MIB, "never", 0), (u64::MAX, "generation 1: waits", 0), (u64::MAX, "generation 2: writes", 1)]
    {
        let directory = tempfile::tempdir().unwrap();
        let watcher = Stopping { after_bytes, at_step, ..Stopping::never() };
        let large = TINY.replace("8MiB", "64MiB").replace("memory.auxiliary_index = \"64MiB\"", "memory.auxiliary_index = \"1MiB\"");
        // Slow enough for a check for cancellation before it ends.
        let slow = large.replace("read_us = 1", "write_us = 20_000");
        let outcome = run(&spec(&slow), &plan(directory.path(), &[]), &failing(&[]), &watcher).unwrap();
        is_empty(directory.path());
        assert!(outcome.is_cancelled, "{at_step}");
        let variant = &outcome.results.variants[0];
        assert_eq!((outcome.results.variants.len(), variant.failure.as_deref()), (1, Some("stopped before its end")), "{at_step}");
        assert_eq!(variant.repetitions.iter().map(Vec::len).sum::<usize>(), generations, "{at_step}");
        assert_eq!(watcher.told.lock().unwrap().last(), Some(&outcome.results));
    }
}

#[test]
fn a_failure_in_the_middle_leaves_no_files_and_is_told() {
    let directory = tempfile::tempdir().unwrap();
    // Each of two clients has 64 requests per generation.
    for (writes, generations) in [(&[64, 10][..], 0), (&[64, 64, 64, 10], 1)] {
        let mut spec = spec(TINY);
        spec.variants.reverse();
        let outcome = run(&spec, &plan(directory.path(), &[]), &failing(writes), &Stopping::never()).unwrap();
        is_empty(directory.path());
        let [failed, good] = &outcome.results.variants[..] else { panic!("{outcome:?}") };
        assert_eq!(failed.failure.as_deref(), Some("a write of volume \"of the test\" was refused: no more"));
        assert_eq!(failed.repetitions.iter().map(Vec::len).sum::<usize>(), generations);
        assert_eq!((good.failure.as_deref(), good.repetitions[0].len()), (None, 2), "the next one goes on");
    }
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let spec = spec(TINY);
    let refused = |plan: &Plan| run(&spec, plan, &failing(&[]), &Stopping::never()).unwrap_err().to_string();
    assert_eq!(refused(&plan(directory.path(), &["ones"])), "experiment T has no variant \"ones\"; did you mean \"one\"?");
    let too_large = Plan { size: Size::Bytes(1 << 50), ..plan(directory.path(), &[]) };
    let error = refused(&too_large);
    assert!(error.starts_with("the stores of experiment T need about ") && error.contains(" are free"), "{error}");
    let too_small = Plan { size: Size::Bytes(4096), ..plan(directory.path(), &[]) };
    assert!(refused(&too_small).contains("a size of 4KiB is too small for variant "), "{}", refused(&too_small));
    let gone = refused(&plan(&directory.path().join("gone"), &[]));
    assert!(gone.starts_with("cannot use "), "{gone}");
    is_empty(directory.path());
    let candidates = [directory.path().join("gone"), directory.path().to_owned(), std::env::temp_dir()];
    assert_eq!(choose_directory(&candidates, &[(spec, Vec::new())], Size::Full, &failing(&[])), candidates[1]);
}

#[test]
fn quick_is_a_256th_but_enough_for_all() {
    assert_eq!(spec(TINY).size_bytes(Size::Quick), 128 << 10);
    assert_eq!(spec(&TINY.replace("8MiB", "8GiB")).size_bytes(Size::Quick), 32 * MIB);
}
