//! `check` and `salvage` of entries of filesystems: sound ones are clean, and lost ones are named until they are
//! written again.

use onefold_blocks::{At, NewSpace, Owner, Space, SpaceKind, Spaces, SpacesOptions};
use onefold_engine::{Descriptor, Engine, Mode, SalvageOptions, Settings, Transaction};
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_upkeep::{CheckOptions, NoMonitor, ProblemKind, check, salvage};
use std::sync::Arc;

const OWNER: Owner = Owner::Filesystems;
const BLOCK_BYTES: u32 = 64 << 10;
const ENTRIES: u32 = 3000;

fn settings() -> Settings {
    Settings { log_segment_bytes: 64 << 10, log_limit_bytes: 1 << 20, workers: 1, background: false, ..Settings::default() }
}

fn open(ground: &SimulatedGround) -> Arc<Engine> {
    Engine::open(Arc::new(ground.clone()), settings(), Mode::ReadWrite, "test").unwrap()
}

fn spaces(engine: &Arc<Engine>) -> Spaces {
    Spaces::open(engine.clone(), SpacesOptions::default()).unwrap()
}

fn key(number: u32) -> Vec<u8> {
    format!("inode/{number}").into_bytes()
}

fn value(number: u32) -> Option<Vec<u8>> {
    Some(vec![number as u8 | 1; 60])
}

/// A filesystem with a snapshot, where entries were written again and removed since, and a block.
fn filled() -> (SimulatedGround, Arc<Engine>) {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let descriptor = Descriptor { object_partitions: 1, ..Descriptor::new().unwrap() };
    Engine::create(&shared, &descriptor).unwrap();
    let engine = open(&ground);
    let spaces = spaces(&engine);
    let new = NewSpace { name: "home", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: BLOCK_BYTES, chain: None };
    let home = spaces.create(new).unwrap();
    home.write(At::new(7 << 28, 100), &[9; 5000]).unwrap();
    for first in (0..ENTRIES).step_by(500) {
        home.submit_entries((first..first + 500).map(|number| (key(number), value(number))).collect()).unwrap();
        home.flush().unwrap();
    }
    spaces.snapshot(OWNER, "home", "then").unwrap();
    let changes = (0..ENTRIES).step_by(10).map(|number| (key(number), value(number + 2).filter(|_| number % 20 == 0)));
    home.submit_entries(changes.collect()).unwrap();
    home.flush().unwrap();
    drop((home, spaces));
    (ground, engine)
}

/// What the filesystem has for a key.
fn expected(number: u32) -> Option<Vec<u8>> {
    match number % 20 {
        0 => value(number + 2),
        10 => None,
        _ => value(number),
    }
}

fn problems(engine: &Arc<Engine>) -> Vec<(ProblemKind, String)> {
    let report = check(engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap();
    report.problems.into_iter().map(|problem| (problem.kind, problem.what)).collect()
}

fn delete(spaces: &Spaces, name: &str) {
    spaces.delete(OWNER, name, spaces.engine().permit_deletion("delete").unwrap()).unwrap();
}

#[test]
fn a_filesystem_with_a_snapshot_is_clean_and_leaves_nothing_behind() {
    let (_ground, engine) = filled();
    assert_eq!(problems(&engine), []);
    let spaces = spaces(&engine);
    delete(&spaces, "then");
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(problems(&engine), []);
    delete(&spaces, "home");
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(problems(&engine), []);
    assert_eq!(engine.range(0, b"E", b"F", 9).unwrap(), []);
}

#[test]
fn an_entry_that_no_layer_has_or_that_cannot_be_read_is_found() {
    let (_ground, engine) = filled();
    let (stored, sound) = engine.range(0, b"E", b"F", 1).unwrap().remove(0);
    let put = |key: &[u8], value: Option<&[u8]>| {
        let changes = vec![(0, key.to_vec(), value.map(<[u8]>::to_vec))];
        engine.submit(Transaction { changes, references: Vec::new() }).unwrap();
        engine.flush().unwrap();
    };
    let finds = |texts: &[&str]| {
        let found = problems(&engine);
        for text in texts {
            assert!(found.iter().any(|(kind, what)| *kind == ProblemKind::Object && what.contains(text)), "{text}: {found:?}");
        }
    };
    put(b"E\x00\x00\x70\x00name", Some(&sound));
    finds(&["belongs to map 28672, which no layer has"]);
    put(b"E\x00\x00\x70\x00name", None);
    put(&stored, None);
    finds(&["block mappings and entries, but its record says"]);
    put(&stored, Some(&[9]));
    finds(&["cannot be read (filesystem \"home\", filesystem \"then\")"]);
    put(&stored, Some(&sound));
    assert_eq!(problems(&engine), []);
}

#[test]
fn lost_entries_are_named_and_are_errors_until_they_are_written_again() {
    let (ground, engine) = filled();
    engine.maintain(true).unwrap();
    // What is written last is in the log.
    let last = spaces(&engine).get(OWNER, "home").unwrap();
    last.submit_entries(vec![(key(5), value(77))]).unwrap();
    last.flush().unwrap();
    drop((last, engine));
    let ground = ground.restart(CrashPolicy::DropAll);
    ground.remove("objects/0000.redb").unwrap();
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let done = salvage(&shared, &settings(), SalvageOptions { dry_run: false, may_lose: true }, "test", &NoMonitor).unwrap();
    assert!(done.sentences.iter().any(|what| what.contains("entries of filesystems")), "{:?}", done.sentences);

    let engine = open(&ground);
    let found = problems(&engine);
    let names = |name: &str| found.iter().any(|(_, what)| what.contains("entries cannot be read") && what.contains(name));
    assert!(names("filesystem \"home\"") && names("filesystem \"then\""), "{found:?}");
    let spaces = spaces(&engine);
    let home = spaces.get(OWNER, "home").unwrap();
    let is_lost = |space: &Space, number| space.entry(&key(number)).is_err_and(|error| error.is_lost());
    assert_eq!(home.entry(&key(5)).unwrap(), value(77));
    assert!(is_lost(&home, 6) && is_lost(&spaces.get(OWNER, "then").unwrap(), 5));
    assert!(home.entries(b"inode/6", b"inode/7", 9).is_err());
    // A new filesystem has lost nothing.
    let new = NewSpace { name: "new", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: BLOCK_BYTES, chain: None };
    let new = spaces.create(new).unwrap();
    assert_eq!((new.entry(&key(6)).unwrap(), new.entries(b"", b"z", 9).unwrap()), (None, (Vec::new(), None)));
    // Written or removed again, an entry is known, and its neighbours are still lost.
    home.submit_entries(vec![(key(6), value(6)), (key(7), None)]).unwrap();
    home.flush().unwrap();
    let check_again = |home: &Space| {
        assert_eq!((home.entry(&key(6)).unwrap(), home.entry(&key(7)).unwrap()), (value(6), None));
        assert!(is_lost(home, 8) && is_lost(home, 60) && is_lost(home, 70));
    };
    check_again(&home);
    engine.maintain(true).unwrap();
    check_again(&home);
    drop((home, new, spaces, engine));
    let ground = ground.restart(CrashPolicy::DropAll);
    let engine = open(&ground);
    let spaces = self::spaces(&engine);
    check_again(&spaces.get(OWNER, "home").unwrap());
    // Nothing of it is moved or given up while one of the spaces may need it.
    delete(&spaces, "then");
    spaces.resume_deletions(&|| true).unwrap();
    check_again(&spaces.get(OWNER, "home").unwrap());
    ["home", "new"].iter().for_each(|name| delete(&spaces, name));
    assert!(spaces.resume_deletions(&|| true).unwrap());
    engine.flush().unwrap();
    assert_eq!(problems(&engine), []);
}

#[test]
fn entries_survive_a_damaged_page_or_are_named() {
    let (ground, engine) = filled();
    engine.maintain(true).unwrap();
    drop(engine);
    let ground = ground.restart(CrashPolicy::DropAll);
    let length = ground.open("objects/0000.redb", onefold_ground::Access::Read).unwrap().len().unwrap();
    let (mut some, mut pages) = (0, 0);
    for slot in (3..length / 4608).step_by(9) {
        let ground = ground.snapshot(CrashPolicy::KeepAll);
        ground.corrupt("objects/0000.redb", slot * 4608 + 70, 1).unwrap();
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        salvage(&shared, &settings(), SalvageOptions { dry_run: false, may_lose: true }, "test", &NoMonitor).unwrap();
        let engine = open(&ground);
        let spaces = spaces(&engine);
        let home = spaces.get(OWNER, "home").unwrap();
        let mut lost = 0;
        for number in 0..ENTRIES {
            match home.entry(&key(number)) {
                Ok(found) => assert_eq!(found, expected(number), "{number} of slot {slot}"),
                Err(error) => lost += u32::from(error.is_lost()),
            }
        }
        let found = problems(&engine);
        assert_eq!(lost > 0, found.iter().any(|(_, what)| what.contains("entries cannot be read (filesystem")), "slot {slot}: {found:?}");
        some += u32::from(lost > 0 && lost < ENTRIES / 2);
        pages += 1;
    }
    assert!(some > 3, "{some} of {pages}");
}
