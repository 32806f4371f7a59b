//! Salvage of a damaged file: every key reads as it was, or gives an error, or never existed.

use super::*;
use onefold_ground::{CrashPolicy, SimulatedGround};
use onefold_oplog::Ownership;
use std::collections::BTreeMap;

const OPTIONS: ObjectIndexOptions = ObjectIndexOptions { cache_bytes: 64 << 10, pending_bytes: 4 << 20 };
const FILE: &str = "objects/0000.redb";
const SLOT_BYTES: u64 = 4608;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn shared(ground: &SimulatedGround) -> Arc<dyn Ground> {
    Arc::new(ground.clone())
}

fn open(ground: &SimulatedGround) -> Result<ObjectIndex> {
    ObjectIndex::open(shared(ground), "objects", &Ownership::all(1, 9), OPTIONS, Access::ReadWrite)
}

fn mapping(number: u32) -> Vec<u8> {
    [b"m".as_slice(), &number.to_be_bytes()].concat()
}

/// Makes a store with mappings, with gaps, and some of the objects that have a second copy. Also returns its model and
/// the batches since that copy.
fn filled(mappings: u32) -> (SimulatedGround, Model, Vec<(u64, Vec<Change>)>) {
    filled_and_seen(mappings, &mut |_| {})
}

/// Does the same, and shows `see` the store after each commit.
fn filled_and_seen(mappings: u32, see: &mut dyn FnMut(&SimulatedGround)) -> (SimulatedGround, Model, Vec<(u64, Vec<Change>)>) {
    let ground = SimulatedGround::new(1);
    ObjectIndex::create(&shared(&ground), "objects", 1).unwrap();
    let index = open(&ground).unwrap();
    let mut model = Model::new();
    let mut log = Vec::new();
    for commit in 0..4u64 {
        let mut changes: Vec<Change> = (0..mappings)
            .filter(|number| u64::from(*number % 4) == commit && number % 7 != 3)
            .map(|number| (0, mapping(number), Some(vec![commit as u8; 100 + (number % 40) as usize])))
            .collect();
        changes.extend((0..9).map(|number| (0, vec![b'b', number], Some(vec![commit as u8; 30]))));
        changes.push((0, vec![b'v', commit as u8], Some(vec![7; 50])));
        changes.push((0, vec![b'v', (commit as u8).wrapping_sub(1)], None));
        let end = 512 * (commit + 1);
        index.apply(Position(end), 0, &changes).unwrap();
        index.persist().unwrap();
        for (_, key, value) in &changes {
            match value {
                Some(value) => drop(model.insert(key.clone(), value.clone())),
                None => drop(model.remove(key)),
            }
        }
        if commit == 2 {
            index.copy_objects().unwrap();
        }
        if commit > 2 {
            log.push((end, changes));
        }
        see(&ground);
    }
    drop(index);
    (ground.restart(CrashPolicy::KeepAll), model, log)
}

#[test]
fn a_read_that_fails_once_is_no_damage_and_a_file_that_the_device_cannot_read_is() {
    let (ground, ..) = filled(400);
    let before = ground.reads();
    assert_eq!(ObjectIndex::problem_of(&shared(&ground), "objects", 0).unwrap().0, None);
    for read in 0..ground.reads() - before {
        ground.fail_read(read, std::io::ErrorKind::OutOfMemory);
        let problem = ObjectIndex::problem_of(&shared(&ground), "objects", 0);
        assert!(!matches!(problem, Ok((Some(_), _))), "read {read}: {problem:?}");
    }
    ground.make_unreadable(FILE).unwrap();
    assert!(ObjectIndex::problem_of(&shared(&ground), "objects", 0).unwrap().0.is_some());
    let done = salvage(&ground, false).unwrap();
    assert!(done.objects == 0 && !done.lost.is_empty(), "{done:?}");
}

fn salvage(ground: &SimulatedGround, dry_run: bool) -> Result<SalvagedPartition> {
    salvage_to(ground, 512 * 3, dry_run)
}

fn salvage_to(ground: &SimulatedGround, position: u64, dry_run: bool) -> Result<SalvagedPartition> {
    let content = |kind| if b"mb".contains(&kind) { Need::Needed } else { Need::Helpful };
    let ground = shared(ground);
    let how = Salvage {
        ground: &ground,
        directory: "objects",
        epoch: 9,
        position: Position(position),
        has_whole_log: false,
        content: &content,
        aside: "damaged-1",
        dry_run,
    };
    salvage_partition(&how, 0)
}

/// Salvages and checks all keys. Returns how many are lost.
fn salvaged(ground: &SimulatedGround, model: &Model, log: &[(u64, Vec<Change>)], mappings: u32) -> usize {
    let had_file = ground.exists(FILE).unwrap();
    let planned = salvage(ground, true).unwrap();
    assert_eq!(salvage(ground, false).unwrap(), planned);
    let ground = ground.restart(CrashPolicy::DropAll);
    assert_eq!(ground.exists("objects/0000.redb.damaged-1").unwrap(), had_file);
    let index = open(&ground).unwrap();
    assert_eq!(index.position(), Position(512 * 3));
    log.iter().for_each(|(end, changes)| index.apply(Position(*end), 0, changes).unwrap());
    let mut lost = 0;
    for key in (0..mappings).map(mapping) {
        match index.get(0, &key) {
            Ok(found) => assert_eq!(found.as_ref(), model.get(&key), "{key:?}"),
            Err(IndexError::Lost { .. }) => lost += 1,
            Err(error) => panic!("{error}"),
        }
        let behind = [&key[..], &[0]].concat();
        assert_eq!(
            index.range(0, &key, &behind, 9).is_err(),
            index.get(0, &key).is_err() || !index.lost_within(0, &key, &behind).unwrap().is_empty()
        );
    }
    // Nothing that has a second copy is lost, and nothing deleted is back.
    for kind in [b"b", b"v"] {
        let found = index.range(0, kind, &[kind[0] + 1], 99).unwrap();
        assert!(found.iter().map(|(key, value)| (key, value)).eq(model.range(kind.to_vec()..vec![kind[0] + 1])), "{found:?}");
    }
    assert_eq!(index.range(0, b"m", b"n", usize::MAX).is_err(), lost > 0 || !index.lost_within(0, b"m", b"n").unwrap().is_empty());
    assert_eq!(index.moment().unwrap().range(0, b"m", b"n", usize::MAX).is_err(), index.range(0, b"m", b"n", usize::MAX).is_err());
    // Once rewritten or deleted again, every key is known, also after a persist.
    let changes: Vec<Change> = (0..mappings).map(|number| (0, mapping(number), (number % 2 == 0).then(|| vec![1]))).collect();
    index.apply(Position(512 * 9), 0, &changes[..changes.len() / 2]).unwrap();
    index.persist().unwrap();
    index.apply(Position(512 * 10), 0, &changes[changes.len() / 2..]).unwrap();
    let check = |index: &ObjectIndex| {
        assert!(changes.iter().all(|(_, key, value)| index.get(0, key).unwrap() == *value));
        let given_up: Vec<Change> = index.give_up_lost(0, &mapping(mappings), b"n").unwrap().into_iter().collect();
        index.apply(Position(512 * 11), 0, &given_up).unwrap();
        assert!(given_up.iter().all(|(_, key, _)| index.get(0, key).unwrap().is_none()));
        assert_eq!(index.range(0, b"m", b"n", usize::MAX).unwrap().len(), mappings.div_ceil(2) as usize);
    };
    check(&index);
    index.persist().unwrap();
    drop(index);
    let index = open(&ground).unwrap();
    check(&index);
    assert_eq!(index.verify(), []);
    lost
}

#[test]
fn of_a_file_without_damage_nothing_is_lost() {
    let (ground, model, log) = filled(3000);
    assert_eq!(salvaged(&ground, &model, &log, 3000), 0);
}

#[test]
fn damaged_pages_lose_their_keys_and_no_others() {
    let (ground, model, log) = filled(3000);
    let length = ground.open(FILE, Access::Read).unwrap().len().unwrap();
    let mut some = 0;
    for slot in (0..length / SLOT_BYTES).step_by(3) {
        let damaged = ground.snapshot(CrashPolicy::KeepAll);
        damaged.corrupt(FILE, slot * SLOT_BYTES + 77, 1).unwrap();
        let lost = salvaged(&damaged, &model, &log, 3000);
        some += usize::from(lost > 0 && lost < 300);
    }
    assert!(some > 5, "{some}");
}

#[test]
fn an_older_version_of_a_page_is_lost_like_a_damaged_one() {
    let mut versions = Vec::new();
    let read = |ground: &SimulatedGround| onefold_ground::read_file(ground, FILE, 1 << 30).unwrap();
    let (ground, model, log) = filled_and_seen(1000, &mut |ground| versions.push(read(ground)));
    let now = read(&ground);
    let is_page = |slot: &[u8]| slot[4096..4104] == *b"1FLDBLK1";
    let (mut tried, mut some) = (0, 0);
    for version in versions {
        for (at, (old, new)) in version.chunks_exact(SLOT_BYTES as usize).zip(now.chunks_exact(SLOT_BYTES as usize)).enumerate().skip(2) {
            if old == new || !is_page(old) || !is_page(new) {
                continue;
            }
            let damaged = ground.snapshot(CrashPolicy::KeepAll);
            damaged.open(FILE, Access::ReadWrite).unwrap().write_at(at as u64 * SLOT_BYTES, old).unwrap();
            let lost = salvaged(&damaged, &model, &log, 1000);
            tried += 1;
            some += usize::from(lost > 0 && lost < 300);
        }
    }
    assert!(some > 3, "{some} of {tried}");
}

#[test]
fn without_the_file_the_second_copy_and_the_log_have_what_everything_hangs_on() {
    let (ground, model, log) = filled(200);
    for action in 0..3 {
        let damaged = ground.snapshot(CrashPolicy::KeepAll);
        match action {
            0 => damaged.remove(FILE).unwrap(),
            1 => damaged.open(FILE, Access::ReadWrite).unwrap().set_len(0).unwrap(),
            _ => damaged.open(FILE, Access::ReadWrite).unwrap().write_at(0, &[0; 2 * SLOT_BYTES as usize]).unwrap(),
        }
        // The log has the last batch's writes.
        assert!((100..200).contains(&salvaged(&damaged, &model, &log, 200)));
    }
    ground.remove(FILE).unwrap();
    ground.corrupt("objects/0000.copy", 60, 1).unwrap();
    assert!(salvage(&ground, true).unwrap_err().to_string().contains("second copy"));
}

#[test]
fn a_copy_from_before_the_start_of_the_log_brings_back_nothing_that_matters_and_is_written_anew() {
    let (ground, ..) = filled(400);
    let copied = |ground: &SimulatedGround| ObjectIndex::copied_position(ground, "objects", 0).unwrap();
    assert_eq!(copied(&ground), Position(512 * 3));
    // Nothing in it is lost.
    let sound = ground.snapshot(CrashPolicy::KeepAll);
    let done = salvage_to(&sound, 512 * 4, false).unwrap();
    assert!(done.copied == Some(0) && done.copy_problem.is_some() && done.lost.is_empty(), "{done:?}");
    assert_eq!(copied(&sound), Position(512 * 4));
    assert_eq!(open(&sound).unwrap().damaged_copies(Position(512 * 4)), [] as [String; 0]);
    // Objects of kind b are lost.
    let lost = ground.snapshot(CrashPolicy::KeepAll);
    lost.remove(FILE).unwrap();
    let error = salvage_to(&lost, 512 * 4, false).unwrap_err().to_string();
    assert!(error.contains("'b'") && error.contains("starts at 2048"), "{error}");
    assert_eq!(copied(&lost), Position(512 * 3));
    // If the copy is older than the log's start, a file older than that copy does not help.
    let older = ground.snapshot(CrashPolicy::KeepAll);
    let index = open(&older).unwrap();
    index.apply(Position(512 * 5), 0, &[(0, vec![b'b', 0], None)]).unwrap();
    index.persist().unwrap();
    index.copy_objects().unwrap();
    drop(index);
    let old_file = onefold_ground::read_file(&ground, FILE, 1 << 30).unwrap();
    let file = older.open(FILE, Access::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(0, &old_file).unwrap();
    let done = salvage_to(&older.snapshot(CrashPolicy::KeepAll), 512 * 6, false).unwrap();
    assert_eq!((done.copied, done.older), (Some(0), Some(Position(512 * 4))));
    let done = salvage_to(&older, 512 * 5, false).unwrap();
    assert!(done.copied > Some(8) && done.older == Some(Position(512 * 4)), "{done:?}");
    assert_eq!(open(&older).unwrap().get(0, &[b'b', 0]).unwrap(), None);
}

#[test]
fn a_salvage_cut_short_at_any_sync_is_done_again() {
    let (ground, model, log) = filled(300);
    ground.corrupt(FILE, 5 * SLOT_BYTES + 9, 1).unwrap();
    ground.corrupt(FILE, 9 * SLOT_BYTES + 9, 1).unwrap();
    let expected = salvaged(&ground.snapshot(CrashPolicy::KeepAll), &model, &log, 300);
    for sync in 0.. {
        let damaged = ground.snapshot(CrashPolicy::KeepAll);
        damaged.crash_after_syncs(sync);
        if salvage(&damaged, false).is_ok() {
            assert!(sync > 4);
            break;
        }
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: sync }] {
            let damaged = damaged.restart(policy);
            if damaged.exists("objects/0000.redb.salvaged").unwrap() || !damaged.exists("objects/0000.redb.damaged-1").unwrap() {
                salvage(&damaged, false).unwrap();
            }
            assert!(damaged.exists(FILE).unwrap());
            let index = open(&damaged).unwrap();
            log.iter().for_each(|(end, changes)| index.apply(Position(*end), 0, changes).unwrap());
            let lost = (0..300).filter(|number| index.get(0, &mapping(*number)).is_err()).count();
            assert_eq!(lost, expected, "sync {sync} {policy:?}");
        }
    }
}

#[test]
fn what_one_salvage_lost_stays_lost_in_the_next_one() {
    for is_copied in [true, false] {
        lost_twice(is_copied);
    }
}

/// Salvages twice, with a new second copy in between, or with only the one that the first salvage writes.
fn lost_twice(is_copied: bool) {
    let (ground, model, log) = filled(3000);
    let position = Position(if is_copied { 512 * 5 } else { 512 * 3 });
    let length = ground.open(FILE, Access::Read).unwrap().len().unwrap();
    let mut twice = 0;
    for slot in (3..length / SLOT_BYTES).step_by(if is_copied { 5 } else { 11 }) {
        let damaged = ground.snapshot(CrashPolicy::KeepAll);
        damaged.corrupt(FILE, slot * SLOT_BYTES + 77, 1).unwrap();
        salvage(&damaged, false).unwrap();
        let index = open(&damaged).unwrap();
        log.iter().for_each(|(end, changes)| index.apply(Position(*end), 0, changes).unwrap());
        // Rewrites some of the lost keys. The second copy knows the rest.
        let lost: Vec<u32> = (0..3000).filter(|number| index.get(0, &mapping(*number)).is_err()).collect();
        let again: Vec<u32> = lost.iter().copied().filter(|number| number % 3 == 0).collect();
        let changes: Vec<Change> = again.iter().map(|number| (0, mapping(*number), Some(vec![5]))).collect();
        index.apply(Position(512 * 5), 0, &changes).unwrap();
        index.persist().unwrap();
        if is_copied {
            index.copy_objects().unwrap();
        }
        drop(index);
        let length = damaged.open(FILE, Access::Read).unwrap().len().unwrap();
        for second in (0..9).map(|part| 2 + part * (length / SLOT_BYTES - 2) / 9).map(Some).chain([None]) {
            let damaged = damaged.snapshot(CrashPolicy::KeepAll);
            match second {
                Some(slot) => damaged.corrupt(FILE, slot * SLOT_BYTES + 99, 1).unwrap(),
                None => damaged.remove(FILE).unwrap(),
            }
            let shared = shared(&damaged);
            let how = Salvage {
                ground: &shared,
                directory: "objects",
                epoch: 9,
                position,
                has_whole_log: false,
                content: &|_| Need::Needed,
                aside: "damaged-2",
                dry_run: false,
            };
            salvage_partition(&how, 0).unwrap();
            let index = open(&damaged).unwrap();
            log.iter().for_each(|(end, changes)| index.apply(Position(*end), 0, changes).unwrap());
            index.apply(Position(512 * 5), 0, &changes).unwrap();
            let mut lost_now = 0;
            for number in 0..3000 {
                let key = mapping(number);
                match index.get(0, &key) {
                    Ok(found) if again.contains(&number) => assert_eq!(found, Some(vec![5])),
                    Ok(found) => {
                        assert!(found.as_ref() == model.get(&key) && !lost.contains(&number), "{number} of slots {slot}, {second:?}")
                    }
                    Err(_) => lost_now += 1,
                }
            }
            twice += usize::from(lost_now > lost.len() && !lost.is_empty());
            let ranges = index.lost_within(0, b"m", b"n").unwrap();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        }
    }
    assert!(twice > 5, "{twice}");
}
