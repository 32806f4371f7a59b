//! Stores without a chunk index (M3.4 to M3.7): what hooks find, and chunks that are stored more than once.

use onefold_engine::{ContainerId, Cursor, Descriptor, Engine, Mode, Place, Recipe, Settings, StoreProfile, Transaction};
use onefold_ground::wire::Reader;
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_upkeep::{
    CheckOptions, DedupOptions, DedupReport, NoMonitor, ProblemKind, PruneOptions, RepairOptions, RepairReport, StoreRoots, check, dedup,
    prune, rebuild_chunk_index, references_of, repair,
};
use onefold_volume::{Volumes, VolumesOptions};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const VOLUME_BYTES: u64 = 8 << 20;
const BLOCK_BYTES: u32 = 64 << 10;
/// More than hooks in the least memory can find: some is stored twice if it is written twice.
const MUCH: usize = 7 << 20;

/// With so little memory that most containers have no hook, and that no catalog stays.
fn forgetful() -> Settings {
    Settings { sampled_index_bytes: 0, catalog_cache_bytes: 0, ..roomy() }
}

fn roomy() -> Settings {
    Settings { background: false, workers: 1, sampled_index_bytes: 1 << 20, ..Settings::default() }
}

fn store() -> SimulatedGround {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let descriptor = Descriptor {
        profile: StoreProfile::Sampled,
        container_bytes: 128 << 10,
        frame_bytes: 16 << 10,
        sequential_frame_bytes: 16 << 10,
        ..Descriptor::new().unwrap()
    };
    Engine::create(&shared, &descriptor).unwrap();
    ground
}

fn open(ground: &SimulatedGround, settings: Settings) -> (Arc<Engine>, Volumes) {
    let engine = Engine::open(Arc::new(ground.clone()), settings, Mode::ReadWrite, "test").unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    (engine, volumes)
}

/// Does something with an open store, and closes it.
fn with<T>(ground: &SimulatedGround, settings: Settings, act: impl FnOnce(&Arc<Engine>, &Volumes) -> T) -> T {
    let (engine, volumes) = open(ground, settings);
    let done = act(&engine, &volumes);
    drop(volumes);
    engine.close().unwrap();
    done
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in &mut bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    bytes
}

fn write(volumes: &Volumes, name: &str, data: &[u8]) {
    let volume = volumes.get(name).unwrap_or_else(|_| volumes.create(name, VOLUME_BYTES, BLOCK_BYTES, None).unwrap());
    volume.write(0, data).unwrap();
    volume.flush().unwrap();
}

fn has(volumes: &Volumes, name: &str, data: &[u8]) -> bool {
    let mut read = vec![0; data.len()];
    volumes.get(name).unwrap().read(0, &mut read).unwrap();
    read == data
}

fn delete(engine: &Engine, volumes: &Volumes, name: &str) {
    volumes.delete(name).unwrap();
    volumes.resume_deletions(&|| true).unwrap();
    engine.flush().unwrap();
}

/// Removes what is not needed, and merges. Returns the removed chunks.
fn pruned(engine: &Arc<Engine>) -> u64 {
    let report = prune(engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
    assert!(report.is_complete && report.problems.is_empty(), "{report:?}");
    report.chunks
}

fn must_be_clean(engine: &Arc<Engine>) {
    let report = check(engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

fn repaired(ground: &SimulatedGround, settings: Settings) -> RepairReport {
    let options = RepairOptions { dry_run: false, may_lose: true, memory_bytes: 16 << 20 };
    repair(Arc::new(ground.clone()), settings, options, "test", &NoMonitor).unwrap()
}

fn is_free_of_redirects(engine: &Engine) -> bool {
    [b"o", b"q"].iter().all(|from| engine.range(0, &from[..], &[from[0] + 1], 10).unwrap().is_empty())
}

#[test]
fn m3_8_a_check_takes_one_pass_and_little_memory_and_finds_what_is_missing() {
    let ground = store();
    let data = noise(1, 1 << 20);
    with(&ground, roomy(), |_, volumes| write(volumes, "one", &data));
    let little = CheckOptions { memory_bytes: 1, ..CheckOptions::default() };
    let (files, references) = with(&ground, roomy(), |engine, _| {
        let report = check(engine, little, &NoMonitor).unwrap();
        assert!(report.is_clean() && report.passes == 1 && report.references >= report.chunks, "{report:?}");
        let storage = engine.containers().unwrap();
        let sealed: Vec<_> = storage.containers().unwrap().iter().filter(|container| storage.is_sealed(*container)).collect();
        (sealed, report.references)
    });
    assert!(files.len() > 3);
    ground.remove(&file(files[1])).unwrap();
    with(&ground, roomy(), |engine, _| {
        let report = check(engine, little, &NoMonitor).unwrap();
        assert_eq!((report.passes, report.references), (1, references));
        let missing = report.problems.iter().filter(|problem| problem.kind == ProblemKind::MissingChunk).count();
        assert!(missing > 10 && missing < references as usize / 2, "{missing} of {references}");
    });
}

#[test]
fn m3_8_a_check_divides_its_pass_when_more_is_missing_than_it_has_memory_for() {
    let ground = store();
    let data = noise(1, VOLUME_BYTES as usize);
    with(&ground, roomy(), |_, volumes| write(volumes, "one", &data));
    let sealed = with(&ground, roomy(), |engine, _| {
        let storage = engine.containers().unwrap();
        storage.containers().unwrap().iter().filter(|container| storage.is_sealed(*container)).collect::<Vec<_>>()
    });
    sealed.iter().for_each(|container| ground.remove(&file(*container)).unwrap());
    let counts = [1, 256 << 20].map(|memory_bytes| {
        with(&ground, roomy(), |engine, _| {
            let report = check(engine, CheckOptions { memory_bytes, ..CheckOptions::default() }, &NoMonitor).unwrap();
            (report.passes, report.references, report.problem_count)
        })
    });
    let [little, much] = counts;
    assert!(little.0 > 1 && much.0 == 1, "{counts:?}");
    assert_eq!(little.1, much.1);
    assert!(little.2 > 500 && much.2 > 500, "{counts:?}");
}

/// Joins all copies.
fn joined(engine: &Arc<Engine>) -> DedupReport {
    // Several parts in files, read in several passes.
    let options = DedupOptions { memory_bytes: 1, dry_run: false };
    let would = dedup(engine, DedupOptions { dry_run: true, ..options }, &NoMonitor, &|| true).unwrap();
    let report = dedup(engine, options, &NoMonitor, &|| true).unwrap();
    assert!(report.is_complete && report.problems.is_empty(), "{report:?}");
    assert_eq!(would, report);
    report
}

#[test]
fn m3_7_copies_that_are_joined_while_groups_are_marked_end_that_survey() {
    let ground = store();
    let data = twice(&ground);
    with(&ground, roomy(), |engine, volumes| {
        let survey = |go_on: &dyn Fn() -> bool| engine.survey(&mut StoreRoots::new(engine.digest_bytes()), go_on, &mut Vec::new()).unwrap();
        assert_eq!(survey(&|| true).held, None);
        // Something to mark.
        write(volumes, "three", &noise(7, BLOCK_BYTES as usize));
        let is_joined = Cell::new(false);
        survey(&|| {
            if !is_joined.replace(true) {
                let report = dedup(engine, DedupOptions { memory_bytes: 1, dry_run: false }, &NoMonitor, &|| true).unwrap();
                assert!(report.duplicate_chunks > 0, "{report:?}");
            }
            true
        });
        assert!(is_joined.get());
        // The groups that were not marked again have no marks of the copies that stay.
        assert!(!engine.is_surveyed(), "others judge by marks from before the copies were joined");
        let (found, next) = engine.candidates(Cursor::default(), 1000, &mut Vec::new()).unwrap();
        assert!(found.is_empty() && next.is_none(), "{} chunks are called unneeded", found.len());
        pruned(engine);
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
    });
}

/// The live copies of each chunk: where they are.
fn copies(engine: &Engine) -> BTreeMap<Vec<u8>, BTreeSet<ContainerId>> {
    let mut found: BTreeMap<Vec<u8>, BTreeSet<ContainerId>> = BTreeMap::new();
    for container in engine.containers().unwrap().containers().unwrap().iter() {
        let dead = engine.dead_slots(container).unwrap();
        for (number, (_, slot)) in engine.containers().unwrap().slots(container).unwrap().iter().enumerate() {
            if !dead.contains(number) {
                found.entry(slot.fingerprint.as_bytes().to_vec()).or_default().insert(container);
            }
        }
    }
    found
}

/// The containers whose chunks are all stored twice, and have their first copies there.
fn first_of_twice(engine: &Engine) -> BTreeSet<ContainerId> {
    let copies: Vec<_> = copies(engine).into_values().collect();
    let mut first: BTreeSet<ContainerId> = copies.iter().filter_map(|copies| copies.first().copied()).collect();
    for others in copies {
        let is_twice = others.len() > 1;
        for (_, other) in others.into_iter().enumerate().filter(|(number, _)| *number > 0 || !is_twice) {
            first.remove(&other);
        }
    }
    first
}

fn file(container: ContainerId) -> String {
    format!("containers/{:04x}/{:05x}/{:08x}", container.partition(), container.number() >> 12, container.number())
}

/// Writes the same data to two volumes, and has some of it stored twice.
fn twice(ground: &SimulatedGround) -> Vec<u8> {
    let data = noise(1, MUCH);
    with(ground, forgetful(), |_, volumes| write(volumes, "one", &data));
    with(ground, forgetful(), |engine, volumes| {
        write(volumes, "two", &data);
        assert!(first_of_twice(engine).len() > 5);
        must_be_clean(engine);
    });
    data
}

#[test]
fn m3_4_with_enough_memory_every_duplicate_is_found_after_any_end_of_the_last_opening() {
    let data = noise(1, MUCH);
    let no_cache = Settings { catalog_cache_bytes: 0, ..roomy() };
    for (settings, has_snapshot) in [(no_cache.clone(), true), (Settings { sampled_index_bytes: 16 << 20, ..no_cache }, false)] {
        let ground = store();
        with(&ground, settings.clone(), |_, volumes| write(volumes, "one", &data));
        assert_eq!(ground.exists("hooks").unwrap() && !ground.list("hooks").unwrap().is_empty(), has_snapshot);
        let after_a_crash = {
            let (engine, volumes) = open(&ground, settings.clone());
            write(&volumes, "two", &data);
            assert!(copies(&engine).values().all(|copies| copies.len() == 1));
            engine.flush().unwrap();
            ground.snapshot(CrashPolicy::DropAll)
        };
        with(&after_a_crash, settings, |engine, volumes| {
            write(volumes, "three", &data);
            assert!(copies(engine).values().all(|copies| copies.len() == 1));
            let statistics = engine.statistics().unwrap();
            assert_eq!((statistics.sampled_rate, statistics.missed_duplicates_estimate), (1, 0));
            assert!(statistics.sampled_hooks > statistics.chunks * 9 / 10, "all but those of open containers: {statistics:?}");
        });
    }
}

#[test]
fn m3_5_what_is_missed_is_estimated() {
    let (ground, data) = (store(), noise(1, MUCH));
    // Room for every fourth chunk. Blocks are written in another order, so that catalogs help little.
    let some = || Settings { sampled_index_bytes: 1024, catalog_cache_bytes: 0, ..roomy() };
    with(&ground, some(), |_, volumes| write(volumes, "one", &data));
    with(&ground, some(), |engine, volumes| {
        let volume = volumes.create("two", VOLUME_BYTES, BLOCK_BYTES, None).unwrap();
        for block in 0..MUCH / BLOCK_BYTES as usize {
            let at = block * 37 % (MUCH / BLOCK_BYTES as usize) * BLOCK_BYTES as usize;
            volume.write(at as u64, &data[at..at + BLOCK_BYTES as usize]).unwrap();
            volume.flush().unwrap();
        }
        let statistics = engine.statistics().unwrap();
        let missed = statistics.unique_bytes - data.len() as u64;
        let estimate = statistics.missed_duplicates_estimate;
        println!("missed {missed}, estimated {estimate}: {statistics:?}");
        assert!(
            missed > 500_000 && estimate > missed / 5 && estimate < missed * 3,
            "missed {missed}, estimated {estimate}: {statistics:?}"
        );
    });
    // Readers see what was noted last.
    let engine = Engine::open(Arc::new(ground), some(), Mode::ReadOnly, "test").unwrap();
    let statistics = engine.statistics().unwrap();
    assert!(statistics.missed_duplicates_estimate > 0 && statistics.sampled_rate > 1 && statistics.sampled_hooks > 100, "{statistics:?}");
}

#[test]
fn m3_7_of_two_copies_the_one_goes_that_nobody_needs() {
    let ground = store();
    let data = twice(&ground);
    with(&ground, forgetful(), |engine, volumes| {
        assert_eq!(pruned(engine), 0);
        let before = engine.statistics().unwrap().chunks;
        delete(engine, volumes, "one");
        let gone = pruned(engine);
        assert!(gone > 100, "{gone}");
        assert_eq!(engine.statistics().unwrap().chunks, before - gone);
        assert!(has(volumes, "two", &data) && copies(engine).values().all(|copies| copies.len() == 1));
        must_be_clean(engine);
    });
    with(&ground, forgetful(), |engine, volumes| {
        assert!(has(volumes, "two", &data));
        delete(engine, volumes, "two");
        pruned(engine);
        assert!(copies(engine).is_empty());
        must_be_clean(engine);
    });
}

#[test]
fn m3_7_a_lost_copy_is_read_from_another_one_which_stays_for_it() {
    let ground = store();
    let data = twice(&ground);
    let lost = with(&ground, forgetful(), |engine, _| *first_of_twice(engine).iter().nth(3).unwrap());
    ground.remove(&file(lost)).unwrap();
    let report = repaired(&ground, forgetful());
    assert!(report.quarantined_chunks > 0 && report.restored_chunks == report.quarantined_chunks, "{:?}", report.actions);
    assert!(report.check.is_clean(), "{:?} {:?}", report.actions, report.check.problems);
    assert_eq!(repaired(&ground, forgetful()).actions, Vec::<String>::new());
    with(&ground, forgetful(), |engine, volumes| {
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        delete(engine, volumes, "two");
        pruned(engine);
        assert!(has(volumes, "one", &data), "copies went that were needed for lost ones");
        must_be_clean(engine);
    });
    with(&ground, forgetful(), |engine, volumes| {
        assert!(has(volumes, "one", &data));
        delete(engine, volumes, "one");
        let survey = engine.survey(&mut StoreRoots::new(engine.digest_bytes()), &|| true, &mut Vec::new()).unwrap();
        assert_eq!(survey.held, None);
        let is_known = || !engine.range(0, b"o", b"p", 10).unwrap().is_empty();
        // Somebody may have the address of the lost copy, and not have submitted it.
        let in_flight = engine.in_flight();
        engine.settle_quarantine().unwrap();
        assert!(is_known());
        drop(in_flight);
        engine.settle_quarantine().unwrap();
        assert!(!is_known(), "where it was stored again is forgotten");
        pruned(engine);
        assert!(copies(engine).is_empty(), "nobody needs a lost copy any more");
        must_be_clean(engine);
    });
}

#[test]
fn m3_7_copies_that_are_lost_one_after_the_other_lead_to_the_last() {
    let ground = store();
    let data = noise(1, 1 << 20);
    with(&ground, roomy(), |_, volumes| write(volumes, "one", &data));
    for name in ["two", "three", "four"] {
        // All of it is lost, and written again.
        let files = with(&ground, roomy(), |engine, _| engine.containers().unwrap().containers().unwrap());
        for container in files.iter().filter(|container| ground.exists(&file(*container)).unwrap()) {
            ground.remove(&file(container)).unwrap();
        }
        let report = repaired(&ground, roomy());
        assert!(report.quarantined_chunks > 100, "{name}: {:?}", report.actions);
        with(&ground, roomy(), |engine, volumes| {
            write(volumes, name, &data);
            engine.settle_quarantine().unwrap();
            must_be_clean(engine);
            pruned(engine);
            assert!(has(volumes, "one", &data) && has(volumes, name, &data), "{name}");
            must_be_clean(engine);
        });
    }
    with(&ground, roomy(), |engine, volumes| {
        for name in ["two", "three", "four"] {
            delete(engine, volumes, name);
        }
        pruned(engine);
        assert!(has(volumes, "one", &data));
        must_be_clean(engine);
        delete(engine, volumes, "one");
        pruned(engine);
        must_be_clean(engine);
        assert!(copies(engine).is_empty() && is_free_of_redirects(engine));
    });
}

#[test]
fn m0_20_a_copy_that_a_write_found_damaged_is_left_behind_and_its_readers_find_the_new_one() {
    let ground = store();
    let data = noise(1, 1 << 20);
    let compare = || Settings { chain: ["chunk-index", "byte-compare"].map(String::from).to_vec(), ..roomy() };
    with(&ground, compare(), |_, volumes| write(volumes, "one", &data));
    let damaged = with(&ground, compare(), |engine, _| {
        engine
            .containers()
            .unwrap()
            .containers()
            .unwrap()
            .iter()
            .find(|container| engine.containers().unwrap().is_sealed(*container))
            .unwrap()
    });
    ground.corrupt(&file(damaged), 40_000, 1).unwrap();
    with(&ground, compare(), |engine, volumes| {
        write(volumes, "two", &data);
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        // The damaged copies are dead: the container is merged without them.
        pruned(engine);
        must_be_clean(engine);
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        delete(engine, volumes, "two");
        pruned(engine);
        assert!(has(volumes, "one", &data), "what a write stored again is needed by all who needed the damaged copy");
        must_be_clean(engine);
    });
    with(&ground, roomy(), |engine, volumes| {
        assert!(has(volumes, "one", &data));
        delete(engine, volumes, "one");
        pruned(engine);
        assert!(copies(engine).is_empty() && is_free_of_redirects(engine));
        must_be_clean(engine);
    });
}

#[test]
fn m3_5_a_rebuild_makes_hooks_and_figures_again() {
    let ground = store();
    let data = twice(&ground);
    let before = with(&ground, roomy(), |engine, volumes| {
        delete(engine, volumes, "one");
        pruned(engine);
        let key = (0, b"h".to_vec(), Some(b"no figures".to_vec()));
        engine.submit(Transaction { changes: vec![key], references: Vec::new() }).unwrap();
        engine.flush().unwrap();
        engine.statistics().unwrap()
    });
    ground.list("hooks").unwrap().iter().for_each(|entry| ground.corrupt(&format!("hooks/{}", entry.name), 100, 1).unwrap());
    let problems = rebuild_chunk_index(Arc::new(ground.clone()), roomy(), "test", &NoMonitor).unwrap();
    assert_eq!(problems, Vec::<String>::new());
    assert!(ground.list("hooks").unwrap().is_empty());
    with(&ground, Settings { catalog_cache_bytes: 0, ..roomy() }, |engine, volumes| {
        let now = engine.statistics().unwrap();
        assert_eq!((now.chunks, now.unique_bytes, now.dead_bytes), (before.chunks, before.unique_bytes, before.dead_bytes));
        must_be_clean(engine);
        write(volumes, "three", &data);
        assert!(has(volumes, "two", &data) && copies(engine).values().all(|copies| copies.len() == 1));
    });
}

#[test]
fn m3_4_after_dedup_the_store_is_as_small_as_an_exact_one() {
    let (ground, exact) = (store(), SimulatedGround::new(1));
    let shared: Arc<dyn Ground> = Arc::new(exact.clone());
    let descriptor = Engine::open(Arc::new(ground.clone()), roomy(), Mode::ReadOnly, "test").unwrap().descriptor().clone();
    Engine::create(&shared, &Descriptor { profile: StoreProfile::Exact, ..descriptor }).unwrap();
    let data = twice(&ground);
    for name in ["one", "two"] {
        with(&exact, roomy(), |_, volumes| write(volumes, name, &data));
    }
    let wanted = with(&exact, roomy(), |engine, _| engine.statistics().unwrap());
    with(&ground, forgetful(), |engine, volumes| {
        let before = engine.statistics().unwrap();
        assert!(before.unique_bytes > wanted.unique_bytes * 5 / 4, "{before:?}");
        let report = joined(engine);
        assert_eq!(report.chunks, before.chunks);
        assert_eq!(report.duplicate_chunks, before.chunks - wanted.chunks, "not even metadata is there twice: {report:?}");
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        must_be_clean(engine);
        assert_eq!(pruned(engine), report.duplicate_chunks);
        let after = engine.statistics().unwrap();
        assert_eq!((after.chunks, after.unique_bytes - after.dead_bytes), (wanted.chunks, wanted.unique_bytes));
        assert!(after.dead_bytes < 4 * u64::from(engine.descriptor().container_bytes), "what is in open containers: {after:?}");
        assert_eq!(joined(engine).duplicate_chunks, 0);
    });
    // Nothing but the redirects tells where the copies are.
    with(&ground, forgetful(), |engine, volumes| {
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        assert!(!is_free_of_redirects(engine));
        must_be_clean(engine);
        delete(engine, volumes, "one");
        pruned(engine);
        assert!(has(volumes, "two", &data));
        must_be_clean(engine);
        delete(engine, volumes, "two");
        pruned(engine);
        assert!(copies(engine).is_empty() && is_free_of_redirects(engine), "nobody needs the redirects any more");
        must_be_clean(engine);
    });
}

#[test]
fn m3_4_dedup_ends_a_survey_that_would_take_the_copy_that_stays() {
    let ground = store();
    let data = twice(&ground);
    with(&ground, forgetful(), |engine, volumes| {
        // Nobody needs the older copies, which stay when copies are joined.
        delete(engine, volumes, "one");
        let mut damaged = Vec::new();
        let survey = engine.survey(&mut StoreRoots::new(engine.digest_bytes()), &|| true, &mut damaged).unwrap();
        assert!(survey.held.is_none() && damaged.is_empty());
        let (unneeded, _) = engine.candidates(Cursor::default(), usize::MAX, &mut damaged).unwrap();
        assert!(unneeded.len() > 100);
        let report = joined(engine);
        assert!(report.duplicate_chunks > 100);
        let references = references_of(engine.digest_bytes());
        let removed = engine.remove_unused(&unneeded, &references, &|| true).unwrap();
        assert_eq!(removed.chunks, 0, "they are needed for the others now: {removed:?}");
        pruned(engine);
        assert!(has(volumes, "two", &data) && copies(engine).values().all(|copies| copies.len() == 1));
        must_be_clean(engine);
    });
}

#[test]
fn m3_4_dedup_keeps_the_copy_that_can_be_read() {
    let ground = store();
    let data = twice(&ground);
    let damaged = with(&ground, forgetful(), |engine, _| *first_of_twice(engine).iter().nth(2).unwrap());
    ground.corrupt(&file(damaged), 40_000, 1).unwrap();
    with(&ground, forgetful(), |engine, volumes| {
        let options = DedupOptions::default();
        let report = dedup(engine, options, &NoMonitor, &|| true).unwrap();
        assert!(!report.problems.is_empty() && !report.is_complete && report.duplicate_chunks > 100, "{report:?}");
        pruned(engine);
        assert!(has(volumes, "two", &data), "the sound copies of what is damaged were kept");
    });
    let report = repaired(&ground, forgetful());
    assert!(report.check.is_clean(), "{:?} {:?}", report.actions, report.check.problems);
    with(&ground, forgetful(), |engine, volumes| {
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        joined(engine);
        pruned(engine);
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        assert!(copies(engine).values().all(|copies| copies.len() == 1));
        must_be_clean(engine);
    });
}

#[test]
fn m3_4_a_copy_that_waits_for_its_removal_serves_again_when_the_other_is_lost() {
    let ground = store();
    let data = twice(&ground);
    let lost = with(&ground, forgetful(), |engine, _| {
        joined(engine);
        *first_of_twice(engine).iter().nth(2).unwrap()
    });
    ground.remove(&file(lost)).unwrap();
    with(&ground, forgetful(), |engine, _| {
        // The container is not known to be lost. What redirects lead to it stays nevertheless.
        let report = prune(engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
        assert!(report.chunks > 0, "{report:?}");
    });
    let report = repaired(&ground, forgetful());
    assert!(report.check.is_clean(), "{:?} {:?}", report.actions, report.check.problems);
    with(&ground, forgetful(), |engine, volumes| {
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        pruned(engine);
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
        must_be_clean(engine);
    });
}

#[test]
fn the_number_of_chunks_is_right_after_a_container_was_lost_and_came_back() {
    let ground = store();
    let data = twice(&ground);
    let lost = with(&ground, forgetful(), |engine, _| *first_of_twice(engine).iter().nth(3).unwrap());
    // What nobody needs is in the other containers, too.
    with(&ground, forgetful(), |engine, volumes| {
        volumes.get("one").unwrap().write(0, &noise(7, 1 << 20)).unwrap();
        engine.flush().unwrap();
    });
    let is_right = |when: &str| {
        with(&ground, forgetful(), |engine, _| {
            let there: usize = copies(engine).values().map(BTreeSet::len).sum();
            assert_eq!(engine.statistics().unwrap().chunks, there as u64, "{when}");
        });
    };
    is_right("before");
    ground.rename(&file(lost), "aside").unwrap();
    assert!(repaired(&ground, forgetful()).check.is_clean());
    is_right("while it is away");
    ground.rename("aside", &file(lost)).unwrap();
    assert!(repaired(&ground, forgetful()).check.is_clean());
    is_right("when it is back");
    with(&ground, forgetful(), |engine, volumes| {
        pruned(engine);
        assert!(has(volumes, "two", &data));
    });
    is_right("after a prune");
}

#[test]
fn m3_4_while_somebody_reads_what_was_joined_stays() {
    let ground = store();
    let data = twice(&ground);
    with(&ground, forgetful(), |engine, volumes| {
        let reader = Engine::open(Arc::new(ground.clone()), forgetful(), Mode::Snapshot, "reader").unwrap();
        let partitions = 0..reader.descriptor().object_partitions;
        let mappings: Vec<(Place, Vec<u8>)> = partitions
            .flat_map(|partition| {
                let found = reader.range(partition, b"m", b"n", usize::MAX).unwrap();
                found.into_iter().map(move |(key, value)| ((partition, key), value))
            })
            .collect();
        assert_eq!(mappings.len(), 2 * MUCH / BLOCK_BYTES as usize);
        reader.hold(&mappings.iter().map(|(place, _)| place.clone()).collect::<Vec<_>>()).unwrap();
        let report = joined(engine);
        let options = PruneOptions { max_unused: 0.0, ..PruneOptions::default() };
        assert_eq!(prune(engine, options, &NoMonitor, &|| true).unwrap().chunks, 0);
        for (_, mapping) in &mappings {
            let recipe = Recipe::decode(&mut Reader::new(&mapping[1..]), reader.digest_bytes()).unwrap();
            reader.read(&recipe.pieces, 0, &mut vec![0; BLOCK_BYTES as usize], true).unwrap();
        }
        drop(reader);
        assert_eq!(pruned(engine), report.duplicate_chunks);
        assert!(has(volumes, "one", &data) && has(volumes, "two", &data));
    });
}

#[test]
fn m3_5_what_a_damaged_snapshot_lacks_is_read_from_catalogs() {
    let data = noise(1, MUCH);
    let settings = Settings { catalog_cache_bytes: 0, ..roomy() };
    for damaged in [20, 70_000, 140_000, 700_000] {
        let ground = store();
        with(&ground, settings.clone(), |_, volumes| write(volumes, "one", &data));
        for entry in ground.list("hooks").unwrap() {
            ground.corrupt(&format!("hooks/{}", entry.name), damaged, 1).unwrap();
        }
        with(&ground, settings.clone(), |engine, volumes| {
            write(volumes, "two", &data);
            assert!(copies(engine).values().all(|copies| copies.len() == 1), "damaged at {damaged}");
        });
    }
}

#[test]
fn a_bloom_filter_is_refused_as_nothing_could_fill_it() {
    let ground = store();
    let settings = Settings { chain: ["bloom", "chunk-index"].map(String::from).to_vec(), ..roomy() };
    let error = Engine::open(Arc::new(ground), settings, Mode::ReadWrite, "test").unwrap_err();
    assert!(error.to_string().contains("`bloom`"), "{error}");
}
