//! Arenas whose blocks are on a block device: whose device it is, and which copy of a store's directory may use it.

mod common;

use common::arenas::*;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, CrashPolicy, File, Ground, SimulatedGround, read_file, replace_file};
use onefold_oplog::Position;
use onefold_storage::*;
use std::sync::Arc;

const BLOCKS: &str = "arena/blocks";
const HEADER: &str = "arena/header";
/// Where the second header is, and where the blocks begin.
const SECOND: u64 = (1 << 20) - 4096;
const START: u64 = 1 << 20;
/// What stays unused at the end.
const END: u64 = 1 << 20;

fn ground() -> SimulatedGround {
    let ground = SimulatedGround::new(3);
    create_arena_on_device(&ground, &arena_options());
    ground
}

fn open(ground: &SimulatedGround, epoch: u64, access: Access) -> Result<Arc<ArenaStore>> {
    open_at(ground, epoch, access, Position(0))
}

/// Opens it with a log that ends there.
fn open_at(ground: &SimulatedGround, epoch: u64, access: Access, log_end: Position) -> Result<Arc<ArenaStore>> {
    let (table, holes) = (Arc::new(Table::default()), Arc::new(NoHoles));
    let parts = ArenaParts { table, holes, profile: Arc::new(Profile::default()), log_end };
    ArenaStore::open(Arc::new(ground.clone()), ARENA, epoch, arena_options(), parts, access)
}

fn refusal(ground: &SimulatedGround, epoch: u64, access: Access) -> String {
    match open(ground, epoch, access) {
        Err(error @ StorageError::Device { is_damage: false, .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn device(ground: &SimulatedGround) -> Arc<dyn File> {
    ground.open(BLOCKS, Access::ReadWrite).unwrap()
}

fn header(ground: &SimulatedGround) -> Vec<u8> {
    read_file(ground, HEADER, 100).unwrap()
}

#[test]
fn m1_1_blocks_lie_behind_the_first_mebibyte_and_the_device_is_used_to_its_end() {
    let ground = ground();
    let mut known = Known::default();
    let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
    let room = DEVICE_BYTES - START - END;
    let blocks = room / BLOCK;
    // What was there before is never read.
    assert_eq!(world.store.figures().blocks, 0);
    let mut writer = world.store.writer();
    for _ in 0..blocks / 64 {
        world.append(&mut writer, &mut known, 64).unwrap();
        world.flush(&mut known).unwrap();
    }
    assert!(matches!(world.append(&mut writer, &mut known, 1), Err(StorageError::ArenaFull { .. })));
    world.check(&known);
    assert_eq!(world.store.figures().blocks, blocks);
    assert_eq!(world.store.device_bytes().unwrap(), Some(room));
    assert_eq!(world.store.usage(None).unwrap().disk_bytes, room);
    let mut last = vec![0; END as usize];
    device(&ground).read_at(DEVICE_BYTES - END, &mut last).unwrap();
    assert!(last.iter().all(|byte| *byte == 0), "metadata of others may be there");
    let (_, _, first) = arena_chunk(known.committed[&0]);
    let mut bytes = vec![0; first.len()];
    device(&ground).read_at(START, &mut bytes).unwrap();
    assert!(bytes == first);
    assert_eq!(device(&ground).len().unwrap(), DEVICE_BYTES);
    let dead: Vec<u64> = (0..64).collect();
    world.remove(&mut known, &dead).unwrap();
    world.free_retired().unwrap();
    world.append(&mut writer, &mut known, 64).unwrap();
    world.flush(&mut known).unwrap();
    world.check(&known);
    // It got larger meanwhile.
    drop(world);
    device(&ground).set_len(DEVICE_BYTES + 100 * BLOCK).unwrap();
    let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
    assert_eq!(world.store.figures().blocks, blocks);
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 100).unwrap();
    world.flush(&mut known).unwrap();
    assert_eq!(world.store.figures().blocks, blocks + 100);
    world.check(&known);
    // It got shorter.
    drop((writer, world));
    device(&ground).set_len(DEVICE_BYTES + 99 * BLOCK).unwrap();
    for access in [Access::Read, Access::ReadWrite] {
        assert!(refusal(&ground, 9, access).contains("it has become shorter"));
    }
}

#[test]
fn a_copy_of_the_directory_that_was_made_while_the_store_was_open_is_refused() {
    let ground = ground();
    let mut known = Known::default();
    let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
    let mut writer = world.store.writer();
    // What a copy of each moment has: the header is the same, but its log is shorter.
    let mut ends = vec![known.log.end()];
    for _ in 0..20 {
        world.append(&mut writer, &mut known, 3).unwrap();
        world.flush(&mut known).unwrap();
        ends.push(known.log.end());
    }
    // A batch without blocks counts too: blocks that it frees may be given out next.
    known.log.append(vec![]);
    world.store.committed(Prepared::default(), *ends.last().unwrap(), known.log.end());
    let last = known.log.end();
    assert!(ends.iter().all(|end| *end < last));
    // Killed, or left.
    for is_left in [false, true] {
        if is_left {
            world.store.leave();
        }
        let policy = if is_left { CrashPolicy::DropAll } else { CrashPolicy::KeepAll };
        for end in &ends {
            let copy = ground.snapshot(policy);
            let refused = open_at(&copy, 2, Access::ReadWrite, *end).unwrap_err().to_string();
            assert!(refused.contains("another copy of arena has written to it since (position "), "{refused}");
            // It can be read, and says no more than what is there.
            open_at(&copy, 2, Access::Read, *end).unwrap();
            drop(open_at(&copy, 2, Access::ReadWrite, last).unwrap());
            // From here on the two differ in their headers.
            assert!(open_at(&copy, 3, Access::ReadWrite, last).is_ok());
        }
    }
    // A power failure may take the last notice away, and no more.
    let world_end = ends[ends.len() - 2];
    let ground = SimulatedGround::new(5);
    create_arena_on_device(&ground, &arena_options());
    let mut known = Known::default();
    let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
    let mut writer = world.store.writer();
    for _ in 0..20 {
        world.append(&mut writer, &mut known, 3).unwrap();
        world.flush(&mut known).unwrap();
    }
    let mut known_to_device = Vec::new();
    for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::LoseSectors { sector_bytes: 512 }] {
        let end = ArenaStore::known_log_end(&ground.snapshot(policy), ARENA, &arena_options()).unwrap();
        assert!(end >= world_end && end <= known.log.end(), "{end:?}");
        known_to_device.push(end);
    }
    assert!(known_to_device.contains(&known.log.end()));
}

#[test]
fn only_an_empty_device_that_is_large_enough_is_taken() {
    let with = |length: u64, at: u64| {
        let ground = SimulatedGround::new(1);
        ground.create_directory(ARENA).unwrap();
        ground.make_device(BLOCKS, length).unwrap();
        device(&ground).write_at(at, &[1]).unwrap();
        (ArenaStore::check_device(&ground, BLOCKS), ArenaStore::create(&ground, ARENA, &arena_options()), ground)
    };
    for (length, at, why) in
        [(DEVICE_BYTES, 511, "its first MiB is not empty"), (DEVICE_BYTES, START - 1, "blkdiscard"), (10 << 20, 5 << 20, "needs at least")]
    {
        let (checked, created, ground) = with(length, at);
        for refused in [checked, created] {
            assert!(refused.unwrap_err().to_string().contains(why), "{why}");
        }
        assert!(!ground.exists(HEADER).unwrap());
    }
    let (checked, created, ground) = with(DEVICE_BYTES, START);
    checked.unwrap();
    created.unwrap();
    // It has a store now.
    let other = ArenaOptions { store: [9; 16], ..arena_options() };
    Ground::remove(&ground, HEADER).unwrap();
    assert!(ArenaStore::create(&ground, ARENA, &other).unwrap_err().to_string().contains("it has the blocks of a store"));
    // The same one may go on where a crash ended it.
    ArenaStore::create(&ground, ARENA, &arena_options()).unwrap();
    assert!(ArenaStore::create(&ground, ARENA, &arena_options()).is_err());
    assert!(ArenaStore::check_device(&ground, HEADER).unwrap_err().to_string().contains("there is no block device"));
}

#[test]
fn of_two_copies_of_a_directory_only_the_one_that_wrote_may_go_on() {
    let ground = ground();
    drop(open(&ground, 5, Access::ReadWrite).unwrap());
    let older = header(&ground);
    for epoch in [6, 9] {
        replace_file(&ground, HEADER, &older).unwrap();
        // The device is as old as the directory.
        let fresh = {
            let copy = ground.snapshot(CrashPolicy::KeepAll);
            drop(open(&copy, epoch, Access::ReadWrite).unwrap());
            (header(&copy), copy)
        };
        let (newer, copy) = fresh;
        replace_file(&copy, HEADER, &older).unwrap();
        for access in [Access::Read, Access::ReadWrite] {
            let why = refusal(&copy, 20, access);
            assert!(why.contains("another copy of arena") && why.contains(&format!("opening {epoch}")), "{why}");
        }
        // Both have counted as far, but only one of them has written.
        let elsewhere = ground.snapshot(CrashPolicy::KeepAll);
        drop(open(&elsewhere, epoch, Access::ReadWrite).unwrap());
        replace_file(&copy, HEADER, &header(&elsewhere)).unwrap();
        assert!(refusal(&copy, 20, Access::ReadWrite).contains("another copy of arena"));
        assert!(ArenaStore::owner(&copy, ARENA, &arena_options()).is_err());
        replace_file(&copy, HEADER, &newer).unwrap();
        assert_eq!(ArenaStore::owner(&copy, ARENA, &arena_options()).unwrap(), epoch);
        drop(open(&copy, 20, Access::ReadWrite).unwrap());
    }
}

#[test]
fn an_opening_that_crashes_anywhere_leaves_a_device_that_its_directory_may_use() {
    for operation in 0.. {
        let ground = ground();
        drop(open(&ground, 4, Access::ReadWrite).unwrap());
        ground.crash_after_operations(operation);
        let is_open = open(&ground, 5, Access::ReadWrite).is_ok();
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::LoseSectors { sector_bytes: 512 }] {
            let ground = ground.restart(policy);
            open(&ground, 0, Access::Read).unwrap();
            drop(open(&ground, 6, Access::ReadWrite).unwrap());
            assert_eq!(ArenaStore::owner(&ground, ARENA, &arena_options()).unwrap(), 6);
        }
        if is_open {
            assert!(operation > 5);
            return;
        }
    }
}

#[test]
fn a_damaged_header_on_the_device_is_written_again_and_another_device_is_never_written() {
    let ground = ground();
    drop(open(&ground, 5, Access::ReadWrite).unwrap());
    // A partition table by mistake.
    device(&ground).write_at(0, &[0x55; 17 << 10]).unwrap();
    open(&ground, 0, Access::Read).unwrap();
    drop(open(&ground, 6, Access::ReadWrite).unwrap());
    ground.corrupt(BLOCKS, SECOND + 20, 1).unwrap();
    drop(open(&ground, 7, Access::ReadWrite).unwrap());
    // Both.
    ground.corrupt(BLOCKS, 33, 1).unwrap();
    ground.corrupt(BLOCKS, SECOND + 33, 1).unwrap();
    let error = open(&ground, 8, Access::ReadWrite).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("its headers are damaged"), "{error}");
    ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), 8).unwrap();
    drop(open(&ground, 9, Access::ReadWrite).unwrap());
    // The directory's own, too; a repair that knows less than the device has is refused.
    ground.corrupt(HEADER, 33, 1).unwrap();
    assert!(open(&ground, 10, Access::ReadWrite).unwrap_err().is_damage());
    assert!(ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), 8).unwrap_err().to_string().contains("another copy"));
    ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), 9).unwrap();
    drop(open(&ground, 10, Access::ReadWrite).unwrap());
    // Another device with that name.
    let mut all = vec![0; START as usize];
    device(&ground).read_at(0, &mut all).unwrap();
    device(&ground).write_at(0, &vec![7; START as usize]).unwrap();
    assert!(refusal(&ground, 11, Access::ReadWrite).contains("it is another device"));
    assert!(ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), 11).is_err());
    let mut now = vec![0; START as usize];
    device(&ground).read_at(0, &mut now).unwrap();
    assert!(now.iter().all(|byte| *byte == 7));
    device(&ground).write_at(0, &all).unwrap();
    drop(open(&ground, 11, Access::ReadWrite).unwrap());
}

/// Returns the pages that a power cut would lose.
fn in_flight(ground: &SimulatedGround) -> Vec<u64> {
    let all = [CrashPolicy::KeepAll, CrashPolicy::DropAll].map(|policy| ground.snapshot(policy));
    let is_in_flight = |at: &u64| {
        let page = |of: &SimulatedGround| {
            let mut bytes = vec![0; 512];
            device(of).read_at(*at, &mut bytes).unwrap();
            bytes
        };
        page(&all[0]) != page(&all[1])
    };
    [0, SECOND].into_iter().filter(is_in_flight).collect()
}

#[test]
fn the_next_process_syncs_the_page_of_a_killed_one_before_it_writes_the_other() {
    let mut left = 0;
    for operation in 0..20 {
        let ground = ground();
        let mut known = Known::default();
        let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
        let mut writer = world.store.writer();
        world.append(&mut writer, &mut known, 3).unwrap();
        world.flush(&mut known).unwrap();
        let (start, end) = known.log.append(vec![]);
        world.store.committed(Prepared::default(), start, end);
        drop((world, writer));
        left += in_flight(&ground).len();
        ground.crash_after_operations(operation);
        drop(open_at(&ground, 9, Access::ReadWrite, end));
        assert!(in_flight(&ground).len() < 2, "crash at operation {operation}");
    }
    assert!(left > 0);
}

#[test]
fn the_pages_of_a_device_are_never_both_in_flight() {
    let ground = ground();
    let mut known = Known::default();
    let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
    let mut writer = world.store.writer();
    for round in 0..6 {
        world.append(&mut writer, &mut known, 3).unwrap();
        world.flush(&mut known).unwrap();
        // Batches without blocks: nothing is synced behind them.
        for _ in 0..round {
            let (start, end) = known.log.append(vec![]);
            world.store.committed(Prepared::default(), start, end);
        }
        // What was not synced is torn, whatever it is.
        let copy = ground.snapshot(CrashPolicy::KeepAll);
        let in_flight = in_flight(&ground);
        assert!(in_flight.len() < 2, "round {round}");
        for at in in_flight {
            copy.corrupt(BLOCKS, at + 40, 100).unwrap();
        }
        ArenaWorld::open(&copy, &known, &arena_options()).unwrap().check(&known);
    }
}

#[test]
fn an_older_copy_of_the_device_and_a_file_in_its_place_are_refused() {
    let ground = ground();
    drop(open(&ground, 3, Access::ReadWrite).unwrap());
    let mut older = vec![0; START as usize];
    device(&ground).read_at(0, &mut older).unwrap();
    for epoch in [4, 5] {
        drop(open(&ground, epoch, Access::ReadWrite).unwrap());
    }
    device(&ground).write_at(0, &older).unwrap();
    for access in [Access::Read, Access::ReadWrite] {
        assert!(refusal(&ground, 9, access).contains("it is an older copy of the device"));
    }
    // A file with the same bytes: its blocks would begin elsewhere.
    let ground = SimulatedGround::new(4);
    create_arena_on_device(&ground, &arena_options());
    drop(open(&ground, 3, Access::ReadWrite).unwrap());
    Ground::rename(&ground, BLOCKS, "away").unwrap();
    for access in [Access::Read, Access::ReadWrite] {
        assert!(matches!(open(&ground, 9, access), Err(StorageError::ArenaMissing { .. })));
    }
    let file = Ground::create(&ground, BLOCKS).unwrap();
    file.set_len(DEVICE_BYTES).unwrap();
    for access in [Access::Read, Access::ReadWrite] {
        assert!(refusal(&ground, 9, access).contains("this is none"));
    }
    assert!(ArenaStore::owner(&ground, ARENA, &arena_options()).is_err());
    // It is given up on purpose.
    Ground::remove(&ground, HEADER).unwrap();
    ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), 9).unwrap();
    drop(open(&ground, 10, Access::ReadWrite).unwrap());
}

#[test]
fn a_repair_of_the_header_that_crashes_anywhere_can_be_repeated() {
    for damages_device in [false, true] {
        for operation in 0.. {
            let ground = ground();
            drop(open(&ground, 4, Access::ReadWrite).unwrap());
            ground.corrupt(HEADER, 33, 1).unwrap();
            if damages_device {
                ground.corrupt(BLOCKS, 33, 1).unwrap();
                ground.corrupt(BLOCKS, SECOND + 33, 1).unwrap();
                device(&ground).sync().unwrap();
            }
            ground.open(HEADER, Access::ReadWrite).unwrap().sync().unwrap();
            // The owner's epoch is that of the device, or a greater one.
            let epoch = 4 + operation % 2;
            ground.crash_after_operations(operation);
            let is_done = ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), epoch).is_ok();
            for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll] {
                let ground = ground.restart(policy);
                if open(&ground, 0, Access::Read).is_err() {
                    ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), epoch).unwrap();
                }
                drop(open(&ground, 6, Access::ReadWrite).unwrap());
            }
            if is_done {
                break;
            }
        }
    }
}

#[test]
fn a_device_that_cannot_be_read_for_a_moment_is_not_repaired() {
    let ground = ground();
    drop(open(&ground, 4, Access::ReadWrite).unwrap());
    let before = header(&ground);
    ground.make_unreadable(BLOCKS).unwrap();
    assert!(!open(&ground, 5, Access::ReadWrite).unwrap_err().is_damage());
    assert!(ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), 5).is_err());
    assert_eq!(header(&ground), before);
    ground.make_readable(BLOCKS).unwrap();
    drop(open(&ground, 6, Access::ReadWrite).unwrap());
}
