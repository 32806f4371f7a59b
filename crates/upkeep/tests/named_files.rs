//! Small files that are taken by the names of their content (M3.3), in stores without a chunk index. There is so little
//! memory that hooks lead nowhere: whatever is found is found by its name.

use onefold_catalog::{Backup, Catalog};
use onefold_client::{BackupOptions, Counter, Monitor, Parent, Problem, RestoreOptions, Tally};
use onefold_engine::{Descriptor, Engine, Mode, Settings, StoreProfile, Transaction};
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_storage::ChunkKind;
use onefold_upkeep::{CheckOptions, NoMonitor, PruneOptions, RepairOptions, check, prune, repair};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files in a tree. Their sizes stand for one chunk, a few, and so many that the recipe has another level.
const FILES: u64 = 300;
const SIZES: [usize; 4] = [3_000, 9_000, 20_000, 70_000];

/// A store on a simulated disk, and a tree of files beside it.
struct Place {
    ground: SimulatedGround,
    directory: tempfile::TempDir,
}

/// The objects of named files, and of the roots of their backups.
type Noted = Vec<(u16, Vec<u8>, Vec<u8>)>;

fn place() -> Place {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let descriptor = Descriptor {
        profile: StoreProfile::Sampled,
        container_bytes: 128 << 10,
        frame_bytes: 16 << 10,
        sequential_frame_bytes: 16 << 10,
        object_partitions: 2,
        ..Descriptor::new().unwrap()
    };
    Engine::create(&shared, &descriptor).unwrap();
    let place = Place { ground, directory: tempfile::tempdir().unwrap() };
    place.fill("tree", 0);
    place
}

fn forgetful() -> Settings {
    Settings { background: false, workers: 1, sampled_index_bytes: 0, catalog_cache_bytes: 0, ..Settings::default() }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

impl Place {
    fn source(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    fn file(&self, tree: &str, number: u64) -> PathBuf {
        self.source().join(tree).join(format!("{number:04}"))
    }

    /// Writes a tree whose files are all different.
    fn fill(&self, tree: &str, seed: u64) {
        fs::create_dir_all(self.source().join(tree)).unwrap();
        for number in 0..FILES {
            fs::write(self.file(tree, number), noise(1 + seed + number, SIZES[number as usize % SIZES.len()])).unwrap();
        }
    }

    /// Copies every seventh file. Returns how many.
    fn copy_some(&self, tree: &str) -> u64 {
        fs::create_dir_all(self.source().join(tree)).unwrap();
        let some = (0..FILES).step_by(7);
        for number in some.clone() {
            fs::copy(self.file("tree", number), self.file(tree, number)).unwrap();
        }
        some.count() as u64
    }

    /// Does something with an open store, and closes it.
    fn with<T>(&self, act: impl FnOnce(&Catalog) -> T) -> T {
        self.with_settings(forgetful(), act)
    }

    fn with_settings<T>(&self, settings: Settings, act: impl FnOnce(&Catalog) -> T) -> T {
        let engine = Engine::open(Arc::new(self.ground.clone()), settings, Mode::ReadWrite, "test").unwrap();
        let done = act(&Catalog::new(engine.clone()));
        engine.close().unwrap();
        done
    }

    fn options(&self) -> BackupOptions {
        let paths = vec![self.source()];
        BackupOptions { name: "group".into(), host: "host".into(), user: "user".into(), paths, ..BackupOptions::default() }
    }

    fn backup(&self, catalog: &Catalog) -> (Backup, Tally) {
        let tally = Tally::default();
        let backup = onefold_client::backup(catalog, &self.options(), &tally).unwrap().backup;
        (backup, tally)
    }

    /// Restores a backup of what is in the source now, and compares.
    fn must_restore(&self, catalog: &Catalog, backup: &Backup) {
        let target = self.directory.path().join("target");
        let strip_components = self.source().as_os_str().as_bytes()[1..].split(|byte| *byte == b'/').count();
        let options = RestoreOptions { target: target.clone(), strip_components, ..RestoreOptions::default() };
        let tally = Tally::default();
        onefold_client::restore(catalog, backup, &options, &tally).unwrap();
        assert_eq!(tally.get(Counter::Errors), 0, "{:?}", tally.problems());
        let (expected, found) = (contents(&self.source()), contents(&target));
        assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
        expected.iter().for_each(|(path, content)| assert!(found[path] == *content, "{path:?}"));
        fs::remove_dir_all(target).unwrap();
    }
}

fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(directory) = todo.pop() {
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                todo.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_path_buf(), fs::read(path).unwrap());
            }
        }
    }
    found
}

/// Stored chunks of data.
fn data_chunks(catalog: &Catalog) -> usize {
    let engine = catalog.engine();
    let mut count = 0;
    for container in engine.containers().unwrap().containers().unwrap().iter() {
        let dead = engine.dead_slots(container).unwrap();
        let slots = engine.containers().unwrap().slots(container).unwrap();
        count += slots.iter().enumerate().filter(|(number, (_, slot))| slot.kind == ChunkKind::Data && !dead.contains(*number)).count();
    }
    count
}

fn noted(catalog: &Catalog, prefix: u8) -> Noted {
    let engine = catalog.engine();
    let of = |partition| {
        engine.range(partition, &[prefix], &[prefix + 1], usize::MAX).unwrap().into_iter().map(move |(key, value)| (partition, key, value))
    };
    (0..engine.object_partitions()).flat_map(of).collect()
}

fn put(catalog: &Catalog, noted: Noted) {
    let changes = noted.into_iter().map(|(partition, key, value)| (partition, key, Some(value))).collect();
    catalog.engine().submit(Transaction { changes, references: Vec::new() }).unwrap();
}

fn pruned(catalog: &Catalog) -> u64 {
    let report = prune(catalog.engine(), PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
    assert!(report.is_complete && report.problems.is_empty(), "{report:?}");
    report.chunks
}

fn must_be_clean(catalog: &Catalog) {
    let report = check(catalog.engine(), CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn m3_3_a_moved_and_a_copied_small_file_add_no_chunk_although_no_hook_leads_to_them() {
    let place = place();
    let (chunks, names) = place.with(|catalog| {
        let (_, tally) = place.backup(catalog);
        assert_eq!(tally.get(Counter::TakenFiles), 0);
        (data_chunks(catalog), noted(catalog, b'j'))
    });
    assert_eq!(names.len() as u64, FILES);
    fs::rename(place.file("tree", 8), place.file("tree", 9_000)).unwrap();
    fs::rename(place.file("tree", 11), place.file("tree", 9_001)).unwrap();
    let copied = place.copy_some("other");
    place.with(|catalog| {
        let (backup, tally) = place.backup(catalog);
        assert_eq!(tally.get(Counter::TakenFiles), copied + 2);
        assert_eq!(data_chunks(catalog), chunks);
        place.must_restore(catalog, &backup);
        must_be_clean(catalog);
    });
    // Hooks alone would not do: without the names, most of it is stored again.
    place.with(|catalog| {
        let gone = noted(catalog, b'j').into_iter().map(|(partition, key, _)| (partition, key, None)).collect();
        catalog.engine().submit(Transaction { changes: gone, references: Vec::new() }).unwrap();
        place.copy_some("third");
        let (backup, tally) = place.backup(catalog);
        assert_eq!(tally.get(Counter::TakenFiles), 0);
        assert!(data_chunks(catalog) > chunks + copied as usize / 2, "{} {chunks}", data_chunks(catalog));
        place.must_restore(catalog, &backup);
    });
    // What is asked to be compared byte by byte is not taken by its name.
    let compare = Settings { chain: ["chunk-index", "byte-compare"].map(String::from).to_vec(), ..forgetful() };
    place.with_settings(compare, |catalog| {
        place.copy_some("fourth");
        assert_eq!(place.backup(catalog).1.get(Counter::TakenFiles), 0);
    });
}

#[test]
fn m3_3_files_that_are_twice_in_one_backup_are_stored_once() {
    let place = place();
    // Behind the tree: it is read later.
    let copied = place.copy_some("tree-2");
    place.with(|catalog| {
        let (backup, tally) = place.backup(catalog);
        let taken = tally.get(Counter::TakenFiles);
        assert!(taken > 0 && taken <= copied, "{taken}");
        place.must_restore(catalog, &backup);
        must_be_clean(catalog);
    });
}

#[test]
fn m3_3_a_file_of_a_forgotten_backup_is_not_taken() {
    let place = place();
    let names = place.with(|catalog| {
        let (backup, _) = place.backup(catalog);
        let names = noted(catalog, b'j');
        catalog.remove_backups(&[backup]).unwrap();
        assert_eq!(noted(catalog, b'y'), []);
        assert!(pruned(catalog) > FILES);
        assert_eq!(noted(catalog, b'j'), [], "a prune forgets what is of no use");
        names
    });
    let engine = Engine::open(Arc::new(place.ground.clone()), forgetful(), Mode::ReadWrite, "test").unwrap();
    let catalog = Catalog::new(engine.clone());
    put(&catalog, names.clone());
    let (_, tally) = place.backup(&catalog);
    assert_eq!(tally.get(Counter::TakenFiles), 0);
    let again = noted(&catalog, b'j');
    assert!(again.len() == names.len() && again.iter().zip(&names).all(|(one, other)| one.1 == other.1 && one.2 != other.2));
    // Killed.
    let place = Place { ground: place.ground.snapshot(CrashPolicy::DropAll), directory: place.directory };
    place.with(|catalog| {
        let backup = catalog.find("latest").unwrap();
        place.must_restore(catalog, &backup);
        must_be_clean(catalog);
        let copied = place.copy_some("other");
        let (backup, tally) = place.backup(catalog);
        assert_eq!(tally.get(Counter::TakenFiles), copied, "the names are those of the backup that exists");
        place.must_restore(catalog, &backup);
    });
}

#[test]
fn m3_3_a_backup_that_comes_back_from_another_store_has_no_named_files() {
    let place = place();
    place.with(|catalog| {
        let (gone, _) = place.backup(catalog);
        let (names, roots) = (noted(catalog, b'j'), noted(catalog, b'y'));
        catalog.remove_backups(std::slice::from_ref(&gone)).unwrap();
        pruned(catalog);
        // A copy of it has its id, and other addresses.
        fs::rename(place.source().join("tree"), place.directory.path().join("aside")).unwrap();
        place.fill("other", 10_000);
        let (other, _) = place.backup(catalog);
        catalog.commit_copy(&mut Backup { root: other.root.clone(), ..gone }).unwrap();
        fs::rename(place.directory.path().join("aside"), place.source().join("tree")).unwrap();
        // Even if a repair had left its root there.
        put(catalog, [names, roots].concat());
        let (backup, tally) = place.backup(catalog);
        assert_eq!(tally.get(Counter::TakenFiles), 0);
        place.must_restore(catalog, &backup);
        must_be_clean(catalog);
    });
}

#[test]
fn m3_3_a_name_whose_backup_is_gone_still_leads_to_the_chunks() {
    let place = place();
    let chunks = place.with(|catalog| {
        let (first, _) = place.backup(catalog);
        // Keeps the chunks.
        place.backup(catalog);
        catalog.remove_backups(&[first]).unwrap();
        data_chunks(catalog)
    });
    let copied = place.copy_some("other");
    place.with_settings(Settings { catalog_cache_bytes: 1 << 20, ..forgetful() }, |catalog| {
        let (_, tally) = place.backup(catalog);
        assert_eq!((tally.get(Counter::TakenFiles), data_chunks(catalog)), (0, chunks));
        // From now on they are files of a backup that exists.
        assert_eq!(place.copy_some("third"), copied);
        let (backup, tally) = place.backup(catalog);
        assert_eq!((tally.get(Counter::TakenFiles), data_chunks(catalog)), (copied, chunks));
        place.must_restore(catalog, &backup);
    });
}

#[test]
fn m3_3_a_file_with_a_lost_chunk_is_stored_again() {
    let place = place();
    let lost = place.with(|catalog| {
        place.backup(catalog);
        let engine = catalog.engine();
        let has_only_data = |container: &onefold_engine::ContainerId| {
            engine.containers().unwrap().slots(*container).unwrap().iter().all(|(_, slot)| slot.kind == ChunkKind::Data)
        };
        engine.containers().unwrap().containers().unwrap().iter().filter(has_only_data).nth(3).unwrap()
    });
    place.ground.remove(&format!("containers/{:04x}/{:05x}/{:08x}", lost.partition(), lost.number() >> 12, lost.number())).unwrap();
    let options = RepairOptions { dry_run: false, may_lose: true, memory_bytes: 16 << 20 };
    let report = repair(Arc::new(place.ground.clone()), forgetful(), options, "test", &NoMonitor).unwrap();
    assert!(report.quarantined_chunks > 0, "{:?}", report.actions);
    fs::create_dir_all(place.source().join("other")).unwrap();
    for number in 0..FILES {
        fs::copy(place.file("tree", number), place.file("other", number)).unwrap();
    }
    place.with(|catalog| {
        let first = catalog.find("latest").unwrap();
        // Unchanged files are read again too where their chunks are lost.
        let (second, tally) = place.backup(catalog);
        assert!(tally.get(Counter::TakenFiles) > FILES / 2 && tally.get(Counter::ChangedFiles) > 0);
        must_be_clean(catalog);
        place.must_restore(catalog, &second);
        // The older backup is whole again.
        fs::remove_dir_all(place.source().join("other")).unwrap();
        place.must_restore(catalog, &first);
    });
}

#[test]
fn m3_3_what_is_noted_wrongly_is_found_out_and_written_again() {
    let place = place();
    place.with(|catalog| drop(place.backup(catalog)));
    let right = place.with(|catalog| noted(catalog, b'j'));
    // Each name gets the file of the next one; or something that is no file.
    let swapped: Noted = right.iter().zip(right.iter().cycle().skip(1)).map(|(one, next)| (one.0, one.1.clone(), next.2.clone())).collect();
    let garbage: Noted = right.iter().map(|one| (one.0, one.1.clone(), one.2[..one.2.len() - 1].to_vec())).collect();
    for (number, wrong) in [swapped, garbage].into_iter().enumerate() {
        place.with(|catalog| {
            put(catalog, wrong);
            let copied = place.copy_some(&format!("other {number}"));
            let (backup, tally) = place.backup(catalog);
            assert_eq!(tally.get(Counter::TakenFiles), 0);
            place.must_restore(catalog, &backup);
            place.copy_some(&format!("third {number}"));
            let (backup, tally) = place.backup(catalog);
            assert_eq!(tally.get(Counter::TakenFiles), copied);
            place.must_restore(catalog, &backup);
            must_be_clean(catalog);
        });
    }
}

/// Does something once, when a path is worked on that contains this.
struct Disturb<'a> {
    tally: Tally,
    path: &'static str,
    act: Box<dyn Fn(&Tally) + Send + Sync + 'a>,
    is_done: AtomicBool,
}

impl Monitor for Disturb<'_> {
    fn count(&self, counter: Counter, increment: u64) {
        self.tally.count(counter, increment);
    }

    fn current(&self, path: &[u8]) {
        if String::from_utf8_lossy(path).contains(self.path) && !self.is_done.swap(true, Ordering::SeqCst) {
            (self.act)(&self.tally);
        }
    }

    fn problem(&self, problem: &Problem) {
        self.tally.problem(problem);
    }

    fn cancelled(&self) -> bool {
        self.tally.cancelled()
    }
}

#[test]
fn m3_3_a_file_of_an_interrupted_backup_is_not_taken() {
    let place = place();
    place.fill("last", 10_000);
    fs::rename(place.source().join("tree"), place.source().join("first")).unwrap();
    place.with(|catalog| {
        // By then one of the two readers has stored more files than are noted together.
        let cancel = Disturb { tally: Tally::default(), path: "last/0290", act: Box::new(Tally::cancel), is_done: AtomicBool::default() };
        onefold_client::backup(catalog, &place.options(), &cancel).unwrap_err();
        catalog.engine().flush().unwrap();
        let names = noted(catalog, b'j');
        pruned(catalog);
        assert!(!names.is_empty() && noted(catalog, b'j').is_empty());
        put(catalog, names);
    });
    place.with(|catalog| {
        let (backup, tally) = place.backup(catalog);
        assert_eq!(tally.get(Counter::TakenFiles), 0);
        place.must_restore(catalog, &backup);
        must_be_clean(catalog);
    });
}

#[test]
fn m3_3_a_file_of_a_backup_that_is_forgotten_meanwhile_stays() {
    let place = place();
    place.with(|catalog| {
        let (first, _) = place.backup(catalog);
        fs::rename(place.source().join("tree"), place.source().join("moved")).unwrap();
        let forget = |_: &Tally| {
            catalog.remove_backups(std::slice::from_ref(&first)).unwrap();
            let steps = std::cell::Cell::new(0);
            let go_on = || {
                steps.set(steps.get() + 1);
                steps.get() < 50
            };
            let report = prune(catalog.engine(), PruneOptions::default(), &NoMonitor, &go_on).unwrap();
            assert_eq!(report.chunks, 0, "what the backup sees is kept while it runs");
        };
        let disturb = Disturb { tally: Tally::default(), path: "moved/", act: Box::new(forget), is_done: AtomicBool::default() };
        let options = BackupOptions { parent: Parent::None, ..place.options() };
        let second = onefold_client::backup(catalog, &options, &disturb).unwrap().backup;
        assert_eq!(disturb.tally.get(Counter::TakenFiles), FILES);
        pruned(catalog);
        place.must_restore(catalog, &second);
        must_be_clean(catalog);
    });
}

#[test]
fn m3_3_a_restore_asks_no_index() {
    let place = place();
    let backup = place.with_settings(Settings { sampled_index_bytes: 1 << 20, ..forgetful() }, |catalog| place.backup(catalog).0);
    place.with(|catalog| {
        let gone = [noted(catalog, b'j'), noted(catalog, b'y')].concat().into_iter().map(|(partition, key, _)| (partition, key, None));
        catalog.engine().submit(Transaction { changes: gone.collect(), references: Vec::new() }).unwrap();
    });
    for entry in place.ground.list("hooks").unwrap() {
        place.ground.remove(&format!("hooks/{}", entry.name)).unwrap();
    }
    // Readers make no hooks.
    let engine = Engine::open(Arc::new(place.ground.clone()), forgetful(), Mode::ReadOnly, "test").unwrap();
    place.must_restore(&Catalog::new(engine), &backup);
}
