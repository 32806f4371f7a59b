//! Tests what the simulated disk keeps and what it loses.

use super::*;
use crate::{Access, Ground, Holder, LocalGround, read_file, replace_file};
use file::EIO;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

fn written(ground: &SimulatedGround, path: &str, content: &[u8]) -> Arc<dyn File> {
    let file = ground.create(path).unwrap();
    file.write_at(0, content).unwrap();
    file
}

fn content(ground: &SimulatedGround, path: &str) -> Option<Vec<u8>> {
    match read_file(ground, path, 1 << 20) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.is_not_found() => None,
        Err(error) => panic!("{error}"),
    }
}

fn policies() -> impl Iterator<Item = CrashPolicy> {
    [CrashPolicy::DropAll, CrashPolicy::KeepAll].into_iter().chain((0..100).map(|seed| CrashPolicy::Random { seed }))
}

#[test]
fn what_was_synced_with_its_name_survives_every_crash() {
    let ground = SimulatedGround::new(1);
    ground.create_directory("a/b").unwrap();
    written(&ground, "a/b/f", b"hello").sync().unwrap();
    ground.sync_directory("a/b").unwrap();
    for policy in policies() {
        assert_eq!(content(&ground.snapshot(policy), "a/b/f").unwrap(), b"hello");
    }
    assert_eq!(content(&ground, "a/b/f").unwrap(), b"hello", "a snapshot leaves the disk as it is");
}

#[test]
fn a_synced_file_whose_directory_was_not_synced_may_have_no_name() {
    let ground = SimulatedGround::new(1);
    written(&ground, "f", b"hello").sync().unwrap();
    assert_eq!(content(&ground.restart(CrashPolicy::DropAll), "f"), None);
    assert_eq!(content(&ground.restart(CrashPolicy::KeepAll), "f").unwrap(), b"hello");
    let found: BTreeSet<_> = policies().map(|policy| content(&ground.restart(policy), "f")).collect();
    assert_eq!(found, BTreeSet::from([None, Some(b"hello".to_vec())]));
}

#[test]
fn a_name_may_survive_without_its_bytes() {
    let ground = SimulatedGround::new(1);
    written(&ground, "f", b"hello");
    ground.sync_directory("").unwrap();
    assert_eq!(content(&ground.restart(CrashPolicy::DropAll), "f").unwrap(), b"");
}

#[test]
fn replacing_by_rename_leaves_the_old_or_the_new_content_at_every_crash() {
    let mut found = BTreeSet::new();
    for operations in 0..10 {
        for policy in policies() {
            let ground = SimulatedGround::new(1);
            replace_file(&ground, "f", b"old").unwrap();
            ground.crash_after_operations(operations);
            let replaced = replace_file(&ground, "f", b"new");
            let left = content(&ground.restart(policy), "f").unwrap();
            assert!(left == b"new" || (left == b"old" && replaced.is_err()), "{left:?}");
            found.insert((left, replaced.is_ok()));
        }
    }
    assert_eq!(found.len(), 3, "new though not acknowledged is among them: {found:?}");
}

#[test]
fn a_directory_keeps_a_prefix_of_its_changes_and_a_rename_is_atomic() {
    let ground = SimulatedGround::new(1);
    ground.create_directory("other").unwrap();
    for name in ["1", "2", "3"] {
        written(&ground, name, name.as_bytes()).sync().unwrap();
    }
    ground.rename("2", "other/2").unwrap();
    for policy in policies() {
        let after = ground.restart(policy);
        let there = |path| after.exists(path).unwrap();
        assert!(there("1") || !there("3"));
        assert!(!there("2") || !there("other/2"));
        assert!(!there("other/2") || there("3"));
    }
    ground.clone().restart(CrashPolicy::KeepAll);
    assert!(ground.sync_directory("other").is_err(), "a disk that was restarted from is gone");
}

#[test]
fn syncing_the_target_of_a_rename_keeps_what_came_before_it_in_the_source() {
    let ground = SimulatedGround::new(1);
    ground.create_directory("other").unwrap();
    written(&ground, "f", b"f").sync().unwrap();
    ground.rename("f", "other/f").unwrap();
    ground.sync_directory("other").unwrap();
    let after = ground.restart(CrashPolicy::DropAll);
    assert_eq!((content(&after, "f"), content(&after, "other/f")), (None, Some(b"f".to_vec())));
}

#[test]
fn a_removal_that_was_not_synced_may_be_undone() {
    let ground = SimulatedGround::new(1);
    written(&ground, "f", b"f").sync().unwrap();
    ground.sync_directory("").unwrap();
    ground.remove("f").unwrap();
    assert_eq!(content(&ground, "f"), None);
    assert_eq!(content(&ground.restart(CrashPolicy::DropAll), "f").unwrap(), b"f");
    assert_eq!(content(&ground.restart(CrashPolicy::KeepAll), "f"), None);
}

#[test]
fn the_crash_comes_at_the_counted_operation_and_lasts() {
    let ground = SimulatedGround::new(1);
    ground.crash_after_operations(2);
    let file = written(&ground, "f", b"f");
    assert!(file.sync().is_err() && file.sync().is_err() && ground.exists("f").is_err() && ground.is_crashed());
    assert_eq!((ground.operations(), ground.syncs()), (2, 0));
    let ground = ground.restart(CrashPolicy::KeepAll);
    ground.sync_directory("").unwrap();
    ground.crash_after_syncs(1);
    let file = ground.open("f", Access::ReadWrite).unwrap();
    file.sync().unwrap();
    file.write_at(0, b"g").unwrap();
    assert!(file.sync().is_err());
    assert_eq!(content(&ground.restart(CrashPolicy::DropAll), "f").unwrap(), b"f");
}

#[test]
fn an_operation_fails_once_with_the_given_kind() {
    let ground = SimulatedGround::new(1);
    ground.fail_operation(1, io::ErrorKind::StorageFull);
    let file = ground.create("f").unwrap();
    assert!(file.write_at(0, b"hello").unwrap_err().is_full());
    file.write_at(0, b"hello").unwrap();
    ground.fail_read(0, io::ErrorKind::Other);
    let mut buffer = [0; 5];
    assert_eq!(file.read_at(0, &mut buffer).unwrap_err().kind(), io::ErrorKind::Other);
    file.read_at(0, &mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
}

#[test]
fn operations_in_a_directory_are_counted_on_their_own() {
    let ground = SimulatedGround::new(1);
    ground.create_directory("a").unwrap();
    ground.create_directory("ab").unwrap();
    let (inside, beside) = (written(&ground, "a/f", b"1"), written(&ground, "ab/f", b"1"));
    ground.fail_operation_in("a", 1, io::ErrorKind::StorageFull);
    ground.crash_after_operations_in("a", 3);
    for _ in 0..4 {
        beside.sync().unwrap();
    }
    inside.sync().unwrap();
    assert!(inside.write_at(0, b"2").unwrap_err().is_full());
    inside.write_at(0, b"3").unwrap();
    beside.sync().unwrap();
    ground.sync_directory("a").unwrap_err();
    assert!(ground.is_crashed());
    assert_eq!(ground.crash_site().unwrap().path, "a");
}

#[test]
fn a_full_disk_takes_a_part_and_has_room_again_after_a_removal() {
    let ground = SimulatedGround::new(1);
    ground.set_capacity(10 * 4096);
    let reserved = ground.create("reserved").unwrap();
    reserved.allocate(0, 6 * 4096).unwrap();
    let file = ground.create("f").unwrap();
    assert!(file.write_at(0, &[1; 5 * 4096]).unwrap_err().is_full());
    assert_eq!(file.len().unwrap(), 4 * 4096);
    reserved.write_at(0, &[1; 6 * 4096]).unwrap();
    assert_eq!(ground.space().unwrap().free_bytes, 0);
    ground.remove("reserved").unwrap();
    file.write_at(0, &[1; 5 * 4096]).unwrap();
    assert_eq!(ground.used_bytes(), 5 * 4096);
    assert_eq!(ground.restart(CrashPolicy::KeepAll).used_bytes(), 5 * 4096);
}

#[test]
fn a_hole_reads_as_zeros_takes_no_space_and_may_go_with_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, local) = (SimulatedGround::new(1), LocalGround::open(directory.path()).unwrap());
    for ground in [&disk as &dyn Ground, &local] {
        let file = ground.create("file").unwrap();
        file.write_at(0, &[7; 5 * 4096 + 10]).unwrap();
        file.sync().unwrap();
        ground.sync_directory("").unwrap();
        let before = file.allocated_bytes().unwrap();
        file.punch_hole(4096, 2 * 4096).unwrap();
        file.punch_hole(4 * 4096, 4 * 4096).unwrap();
        assert_eq!(file.len().unwrap(), 5 * 4096 + 10);
        let mut bytes = vec![1; 5 * 4096 + 10];
        file.read_at(0, &mut bytes).unwrap();
        let expected = [7, 0, 0, 7, 0].into_iter().flat_map(|byte| [byte; 4096]).chain([0; 10]);
        assert!(bytes.into_iter().eq(expected), "{}", ground.describe(""));
        assert!(file.allocated_bytes().unwrap() + 2 * 4096 <= before, "{}", ground.describe(""));
        file.write_at(4096, &[9; 4096]).unwrap();
        file.read_at(4096, &mut [0; 4096]).unwrap();
    }
    for policy in policies() {
        let after = content(&disk.snapshot(policy), "file").unwrap();
        let pages: Vec<u8> = after.chunks(4096).map(|page| page[0]).collect();
        let is_possible = |page: usize, allowed: &[u8]| after.chunks(4096).nth(page).unwrap().iter().all(|byte| allowed.contains(byte));
        assert!(
            pages[0] == 7 && pages[3] == 7 && is_possible(1, &[7, 0, 9]) && is_possible(2, &[7, 0]) && is_possible(4, &[7, 0]),
            "{pages:?}"
        );
    }
    disk.open("file", Access::ReadWrite).unwrap().sync().unwrap();
    let after = content(&disk.snapshot(CrashPolicy::DropAll), "file").unwrap();
    assert_eq!(after.chunks(4096).map(|page| page[0]).collect::<Vec<_>>(), [7, 9, 0, 7, 0, 0]);
}

#[test]
fn a_corrupted_byte_stays_so() {
    let ground = SimulatedGround::new(1);
    written(&ground, "f", b"abc").sync().unwrap();
    ground.sync_directory("").unwrap();
    ground.corrupt("f", 1, 0x20).unwrap();
    assert!(ground.corrupt("f", 3, 1).is_err() && ground.corrupt("g", 0, 1).is_err());
    assert_eq!(content(&ground, "f").unwrap(), b"aBc");
    assert_eq!(content(&ground.restart(CrashPolicy::DropAll), "f").unwrap(), b"aBc");
}

#[test]
fn locks_exclude_each_other_and_end_with_the_crash() {
    let ground = SimulatedGround::new(1);
    let holder = |command| Holder { pid: 1, host: "h".into(), command, since: String::new() };
    let shared = ground.lock("lock", false, &holder("ls".into())).unwrap();
    let refused = ground.lock("lock", true, &holder("serve".into())).unwrap_err();
    assert!(refused.to_string().contains("`ls`, process 1 on h"), "{refused}");
    drop(shared);
    let _guard = ground.lock("lock", true, &holder("serve".into())).unwrap();
    assert!(ground.lock("lock", false, &holder("ls".into())).is_err());
    ground.restart(CrashPolicy::DropAll).lock("lock", true, &holder("serve".into())).unwrap();
}

#[test]
fn reading_past_the_end_and_misused_names_are_errors() {
    let ground = SimulatedGround::new(1);
    let file = written(&ground, "f", b"abc");
    assert_eq!(file.read_at(1, &mut [0; 3]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(ground.open("f", Access::Read).unwrap().write_at(0, b"x").is_err());
    assert!(file.set_len(u64::MAX).is_err());
    assert_eq!(ground.create("f").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert!(ground.create("no/f").unwrap_err().is_not_found());
    assert!(ground.list("no").unwrap_err().is_not_found());
    ground.create_directory("d/e").unwrap();
    let names: Vec<_> = ground.list("").unwrap().into_iter().map(|entry| (entry.name, entry.is_directory)).collect();
    assert_eq!(names, [("d".to_owned(), true), ("f".to_owned(), false)]);
}

#[test]
fn the_operation_that_met_the_crash_is_known() {
    let ground = SimulatedGround::new(1);
    let file = written(&ground, "f", b"hello");
    ground.crash_after_operations(1);
    file.sync().unwrap();
    assert_eq!(ground.crash_site(), None);
    assert!(ground.rename("f", "g").is_err() && file.sync().is_err());
    assert_eq!(ground.crash_site(), Some(CrashSite { operation: "rename", path: "f".into() }));
}

#[test]
fn a_killed_process_leaves_everything_to_the_next_one_and_makes_nothing_of_it_durable() {
    let ground = SimulatedGround::new(1);
    written(&ground, "kept", b"old").sync().unwrap();
    ground.sync_directory("").unwrap();
    ground.open("kept", Access::ReadWrite).unwrap().write_at(0, b"new").unwrap();
    written(&ground, "name", b"synced").sync().unwrap();
    let next = ground.restart(CrashPolicy::KeepAll);
    assert_eq!((content(&next, "kept").unwrap(), content(&next, "name").unwrap()), (b"new".to_vec(), b"synced".to_vec()));
    let after = next.snapshot(CrashPolicy::DropAll);
    assert_eq!((content(&after, "kept").unwrap(), content(&after, "name")), (b"old".to_vec(), None));
    next.open("kept", Access::ReadWrite).unwrap().sync().unwrap();
    next.sync_directory("").unwrap();
    let after = next.restart(CrashPolicy::DropAll);
    assert_eq!((content(&after, "kept").unwrap(), content(&after, "name").unwrap()), (b"new".to_vec(), b"synced".to_vec()));
    assert_eq!(content(&ground.restart(CrashPolicy::DropAll), "kept").unwrap(), b"old", "the processes do not share their disks");
}

#[test]
fn a_created_directory_is_durable_also_where_a_killed_process_left_it_behind() {
    for operations in 0..4 {
        let ground = SimulatedGround::new(1);
        ground.crash_after_operations(operations);
        assert!(ground.create_directory("a/b").is_err());
        let ground = ground.restart(CrashPolicy::KeepAll);
        ground.create_directory("a/b").unwrap();
        assert!(ground.restart(CrashPolicy::DropAll).exists("a/b").unwrap(), "after {operations} operations");
    }
}

#[test]
fn a_directory_that_is_lost_takes_with_it_what_was_synced_in_it() {
    let ground = SimulatedGround::new(1);
    ground.crash_after_operations(1);
    assert!(ground.create_directory("a").is_err());
    let ground = ground.restart(CrashPolicy::KeepAll);
    written(&ground, "a/f", b"f").sync().unwrap();
    ground.sync_directory("a").unwrap();
    let after = ground.snapshot(CrashPolicy::DropAll);
    assert_eq!((after.exists("a").unwrap(), content(&after, "a/f")), (false, None));
    ground.sync_directory("").unwrap();
    assert_eq!(content(&ground.restart(CrashPolicy::DropAll), "a/f").unwrap(), b"f");
}

#[test]
fn an_unreadable_sector_fails_until_it_is_overwritten_whole_also_after_a_crash() {
    let ground = SimulatedGround::new(1);
    let file = written(&ground, "f", &[1; 2048]);
    file.sync().unwrap();
    ground.sync_directory("").unwrap();
    ground.make_range_unreadable("f", 600..700).unwrap();
    let read = |file: &Arc<dyn File>, offset| file.read_at(offset, &mut [0; 512]);
    let is_lasting = |result: Result<()>| result.is_err_and(|error| error.is_lasting());
    assert!(is_lasting(read(&file, 512)) && is_lasting(read(&file, 300)) && is_lasting(file.write_at(500, &[2; 100])));
    read(&file, 0).and_then(|()| read(&file, 1024)).unwrap();
    let next = ground.restart(CrashPolicy::KeepAll);
    let file = next.open("f", Access::ReadWrite).unwrap();
    assert!(is_lasting(read(&file, 512)));
    file.write_at(512, &[2; 512]).unwrap();
    read(&file, 300).unwrap();
    let lost = next.snapshot(CrashPolicy::DropAll).open("f", Access::Read).unwrap();
    assert!(is_lasting(read(&lost, 512)), "what overwrote it was not synced");
    file.sync().unwrap();
    assert_eq!(content(&next.restart(CrashPolicy::DropAll), "f").unwrap()[512..1024], [2; 512]);
    ground.make_readable("f").unwrap();
    assert_eq!(content(&ground.restart(CrashPolicy::DropAll), "f").unwrap(), [1; 2048]);
}

#[test]
fn every_kind_of_query_fails_once_where_it_is_told_to() {
    let ground = SimulatedGround::new(1);
    ground.create_directory("d").unwrap();
    let file = written(&ground, "d/f", b"f");
    let queries: [&dyn Fn() -> Result<()>; 6] = [
        &|| file.read_at(0, &mut [0]),
        &|| file.len().map(drop),
        &|| ground.open("d/f", Access::Read).map(drop),
        &|| ground.list("d").map(drop),
        &|| ground.exists("d").map(drop),
        &|| ground.space().map(drop),
    ];
    let before = ground.queries();
    for query in queries {
        query().unwrap();
        ground.fail_query(0, EIO);
        assert!(query().unwrap_err().is_lasting());
    }
    assert_eq!((ground.queries() - before, ground.reads()), (12, 2));
}

#[test]
fn writing_back_that_fails_is_reported_by_the_next_sync_and_loses_changes() {
    let mut found = BTreeSet::new();
    for seed in 0..100 {
        let ground = SimulatedGround::new(seed);
        let file = written(&ground, "f", &[1; 512]);
        file.sync().unwrap();
        ground.sync_directory("").unwrap();
        ground.fail_writeback(0);
        file.write_at(0, &[2; 512]).unwrap();
        let seen = content(&ground, "f").unwrap()[0];
        // The next process gets the report as well.
        let ground = ground.restart(CrashPolicy::KeepAll);
        let file = ground.open("f", Access::ReadWrite).unwrap();
        assert!(file.sync().unwrap_err().is_lasting());
        file.sync().unwrap();
        found.insert((seen, content(&ground.restart(CrashPolicy::DropAll), "f").unwrap()[0]));
    }
    assert_eq!(found, BTreeSet::from([(1, 1), (2, 1), (2, 2)]));
}

#[test]
fn a_reader_beside_a_write_sees_one_part_of_it_without_the_other() {
    let ground = SimulatedGround::new(1);
    let file = written(&ground, "f", &[1; 4096]);
    let firsts = Arc::new(AtomicU64::new(0));
    let (disk, seen) = (ground.clone(), Arc::clone(&firsts));
    ground.during_writes(move |path| {
        let found = content(&disk, path).unwrap();
        assert!(found.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])), "sectors are whole");
        assert_ne!(found[0], found[4095]);
        seen.fetch_or(1 << (found[0] % 2), Ordering::Relaxed);
    });
    for turn in 2..22 {
        file.write_at(0, &[turn; 4096]).unwrap();
        file.write_at(100, &[turn; 200]).unwrap();
    }
    assert_eq!(firsts.load(Ordering::Relaxed), 0b11, "the first part comes first, or the second one");
}
