//! Arenas: chunks come back as they were stored, blocks are given out once, and wrong bytes are never returned.

mod common;

use common::arenas::*;
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, CrashPolicy, Ground, ReadBuffer, SimulatedGround};
use onefold_oplog::{Effects, Partition, PartitionClass, Position, Record};
use onefold_storage::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn world(options: &ArenaOptions) -> (SimulatedGround, ArenaWorld, Known) {
    let ground = SimulatedGround::new(1);
    create_arena(&ground, options);
    let known = Known::default();
    let world = ArenaWorld::open(&ground, &known, options).unwrap();
    (ground, world, known)
}

fn one(store: &ArenaStore, block: u64, name: Fingerprint) -> Result<Vec<u8>> {
    let mut slices = Vec::new();
    let loaded = store.load(&[(address_of_block(block), name)], &mut slices);
    assert_eq!(slices.len(), usize::from(loaded.is_ok()));
    loaded.map(|()| slices[0].to_vec())
}

#[test]
fn m1_1_chunks_come_back_whether_they_wait_are_in_the_file_or_are_committed() {
    for block_bytes in [4096, 8192, 65_536] {
        let (ground, mut world, mut known) = world(&ArenaOptions { block_bytes, in_flight_bytes: 512 << 10, ..arena_options() });
        let mut writer = world.store.writer();
        world.append(&mut writer, &mut known, 3).unwrap();
        check_loads(&world.store, world.pending.iter());
        world.append(&mut writer, &mut known, 200).unwrap();
        check_loads(&world.store, world.pending.iter());
        let prepared = world.store.prepare(Scope::FullFrames).unwrap();
        check_loads(&world.store, world.pending.iter());
        assert_eq!((world.store.unsynced_bytes(), prepared.chunks.len()), (0, 203));
        world.commit(&mut known, prepared);
        assert_eq!(world.store.figures().pending, 0);
        check_loads(&world.store, known.committed.iter());
        assert!(world.store.prepare(Scope::Everything).unwrap().is_empty());
        drop(world);
        let ground = ground.restart(CrashPolicy::DropAll);
        let options = ArenaOptions { block_bytes, ..arena_options() };
        ArenaWorld::open(&ground, &known, &ArenaOptions { in_flight_bytes: 512 << 10, ..options }).unwrap().check(&known);
    }
}

#[test]
fn m1_9_a_streams_chunks_lie_one_behind_the_other_although_others_write_too() {
    let (_, mut world, mut known) = world(&arena_options());
    let mut writers = [world.store.writer(), world.store.writer()];
    let mut runs = [Vec::new(), Vec::new()];
    for round in 0..24 {
        let addresses = world.append(&mut writers[round % 2], &mut known, 1 + round as u64 % 3).unwrap();
        runs[round % 2].extend(addresses.iter().map(|address| address.bits()));
    }
    for run in runs {
        let breaks = run.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
        // The buffers of this small arena have four blocks.
        assert!(breaks <= run.len() / 4, "{run:?}");
    }
    drop(writers);
    assert_eq!(world.store.figures().reserved, 0);
    world.flush(&mut known).unwrap();
    world.check(&known);
}

#[test]
fn m1_10_a_freed_block_is_given_out_after_free_and_not_before() {
    let options = ArenaOptions { limit_bytes: 16 * BLOCK, ..arena_options() };
    let (_, mut world, mut known) = world(&options);
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 16).unwrap();
    world.flush(&mut known).unwrap();
    world.remove(&mut known, &[3, 4, 9]).unwrap();
    // The table says that the blocks are free, but readers may be left.
    let full = world.append(&mut writer, &mut known, 1).unwrap_err();
    assert!(full.is_full() && !full.is_damage(), "{full}");
    assert_eq!(full.to_string(), "arena/blocks has no free block left: all 16 blocks are used, and its limit is 16");
    assert!(world.holes.blocks.lock().is_empty());
    world.free(&[9, 4, 3]).unwrap();
    assert_eq!(*world.holes.calls.lock(), [(3, 2), (9, 1)]);
    let addresses = world.append(&mut writer, &mut known, 3).unwrap();
    assert_eq!(addresses, [3, 4, 9].map(address_of_block));
    assert!(world.append(&mut writer, &mut known, 1).unwrap_err().is_full());
    world.flush(&mut known).unwrap();
    world.check(&known);
}

#[test]
fn m1_11_a_block_cannot_be_freed_twice_nor_while_it_is_used() {
    let (_, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 8).unwrap();
    let refused = |error: Result<()>| match error {
        Err(StorageError::BlockState { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let at = |block: u64| [address_of_block(block)];
    assert_eq!(refused(world.store.retire(&at(0))), "its chunk is not committed yet");
    world.flush(&mut known).unwrap();
    assert_eq!(refused(world.store.free(&at(0))), "the index still has its chunk");
    assert_eq!(refused(world.store.retire(&at(8))), "it has no chunk");
    assert_eq!(refused(world.store.free(&at(8))), "it is not retired");
    world.store.retire(&at(0)).unwrap();
    assert_eq!(refused(world.store.free(&at(0))), "the index still has its chunk");
    world.store.keep(&at(0)).unwrap();
    world.remove(&mut known, &[1, 2]).unwrap();
    assert_eq!(refused(world.store.keep(&at(1))), "it has lost its chunk");
    // One that cannot be freed keeps the others from it.
    assert_eq!(refused(world.free(&[1, 2, 5])), "the index still has its chunk");
    assert!(world.holes.blocks.lock().is_empty());
    world.free(&[1, 2, 1]).unwrap();
    assert_eq!(refused(world.free(&[1])), "it is not retired");
    assert!(world.store.free(&[Address::from_bits(5)]).unwrap_err().is_damage());
    world.check(&known);
    assert_eq!(world.store.figures().retired, 0);
}

#[test]
fn m1_11_a_block_that_a_thread_frees_cannot_be_freed_by_another() {
    let (_, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 4).unwrap();
    world.flush(&mut known).unwrap();
    world.remove(&mut known, &[1]).unwrap();
    let (store, refused) = (world.store.clone(), Arc::new(Mutex::new(None)));
    let other = refused.clone();
    world.holes.before_hole.set(move || *other.lock() = store.free(&[address_of_block(1)]).err());
    world.free(&[1]).unwrap();
    // If it could, its hole might come when the block has its next chunk.
    assert!(matches!(*refused.lock(), Some(StorageError::BlockState { why: "another thread frees it", .. })));
    assert_eq!(*world.holes.calls.lock(), [(1, 1)]);
}

#[test]
fn m1_8_a_late_commit_does_not_take_the_next_chunk_of_a_block_for_logged() {
    let (_, mut world, mut known) = world(&ArenaOptions { limit_bytes: 4 * BLOCK, ..arena_options() });
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 4).unwrap();
    let late = world.store.prepare(Scope::Everything).unwrap();
    world.flush(&mut known).unwrap();
    world.remove(&mut known, &[2]).unwrap();
    world.free(&[2]).unwrap();
    world.append(&mut writer, &mut known, 1).unwrap();
    world.store.committed(late, Position(9000), Position(9512));
    assert_eq!(world.store.figures().pending, 1);
    world.flush(&mut known).unwrap();
    world.check(&known);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn m1_1_any_chunks_in_any_order_and_number_are_loaded_with_one_read_for_neighbours(
        batches in proptest::collection::vec(1..90u64, 1..6),
        dead in proptest::collection::btree_set(0..200u64, 0..120),
        wanted in proptest::collection::vec(0..400usize, 1..300),
        is_short: bool,
    ) {
        let (ground, mut world, mut known) = world(&ArenaOptions { in_flight_bytes: 1 << 20, ..arena_options() });
        let mut writer = world.store.writer();
        for count in &batches {
            world.append(&mut writer, &mut known, *count).unwrap();
            if count % 3 > 0 {
                world.flush(&mut known).unwrap();
            }
        }
        let dead: Vec<u64> = dead.into_iter().filter(|block| known.committed.contains_key(block)).collect();
        world.remove(&mut known, &dead).unwrap();
        world.free_retired().unwrap();
        let chunks: BTreeMap<u64, u64> = known.committed.iter().chain(&world.pending).map(|(block, number)| (*block, *number)).collect();
        if chunks.is_empty() {
            return Ok(());
        }
        let all: Vec<_> = chunks.iter().map(|(block, number)| (address_of_block(*block), arena_chunk(*number))).collect();
        let wanted: Vec<_> = wanted.into_iter().map(|at| &all[at % all.len()]).collect();
        let asked: Vec<_> = wanted.iter().map(|(address, (name, ..))| (*address, *name)).collect();
        let (mut slices, before) = (Vec::new(), ground.reads());
        if is_short {
            world.store.load_short(&asked, &mut slices).unwrap();
        } else {
            world.store.load(&asked, &mut slices).unwrap();
        }
        prop_assert_eq!(slices.len(), wanted.len());
        for (slice, (address, (_, _, data))) in slices.iter().zip(&wanted) {
            prop_assert!(slice[..] == data[..], "{}", address);
        }
        // Two blocks that are not read together have a gap of more than 32 KiB, or a megabyte between them.
        let blocks: BTreeSet<u64> = asked.iter().map(|(address, _)| block_of_address(*address).unwrap()).collect();
        let gap = if is_short { 0 } else { 8 };
        let runs = 1 + blocks.iter().zip(blocks.iter().skip(1)).filter(|(left, right)| *right - *left - 1 > gap).count();
        prop_assert!(ground.reads() - before <= 2 * runs as u64 + 2, "{} reads for {} runs", ground.reads() - before, runs);
    }
}

/// Applies a batch and tells the store, at the moment when somebody has just looked at the table.
fn commit_after_look(world: &ArenaWorld, mut prepared: Prepared) {
    let (store, table) = (world.store.clone(), world.table.clone());
    let records = std::mem::take(&mut prepared.records);
    world.table.after_look.set(move || {
        records.iter().for_each(|record| table.apply(record));
        store.committed(prepared, Position(0), Position(512));
    });
}

#[test]
fn m1_9_a_commit_while_a_window_is_opened_hides_no_block() {
    let (_, mut world, mut known) = world(&ArenaOptions { limit_bytes: 8 * BLOCK, ..arena_options() });
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 4).unwrap();
    world.flush(&mut known).unwrap();
    world.append(&mut writer, &mut known, 4).unwrap();
    let prepared = world.store.prepare(Scope::Everything).unwrap();
    world.remove(&mut known, &[1]).unwrap();
    world.free(&[1]).unwrap();
    // The window is used up and is opened again for the freed block.
    commit_after_look(&world, prepared);
    assert_eq!(world.append(&mut writer, &mut known, 1).unwrap(), [address_of_block(1)]);
    assert!(!world.table.after_look.is_set());
    assert!(world.append(&mut writer, &mut known, 1).unwrap_err().is_full());
}

#[test]
fn m1_1_a_commit_while_chunks_are_loaded_hides_none() {
    let (_, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 4).unwrap();
    world.flush(&mut known).unwrap();
    world.append(&mut writer, &mut known, 4).unwrap();
    commit_after_look(&world, world.store.prepare(Scope::Everything).unwrap());
    check_loads(&world.store, known.committed.iter().chain(&world.pending));
    assert!(!world.table.after_look.is_set());
    check_loads(&world.store, known.committed.iter().chain(&world.pending));
}

#[test]
fn m1_10_a_chunk_that_is_removed_while_it_is_read_is_not_called_damaged() {
    let (_, mut world, mut known) = world(&ArenaOptions { limit_bytes: 4 * BLOCK, ..arena_options() });
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 4).unwrap();
    world.flush(&mut known).unwrap();
    let (store, table) = (world.store.clone(), world.table.clone());
    let remove = move || {
        store.retire(&[address_of_block(2)]).unwrap();
        table.set(2, None);
        store.free(&[address_of_block(2)]).unwrap();
    };
    world.table.after_look.set(remove.clone());
    assert!(matches!(one(&world.store, 2, arena_chunk(2).0), Err(StorageError::NotThere { .. })));
    let (name, kind, data) = arena_chunk(2);
    let block = writer.append(&[NewChunk { fingerprint: name, kind, data: &data }]).unwrap()[0];
    assert_eq!(block, address_of_block(2));
    known.committed.remove(&2);
    world.flush(&mut known).unwrap();
    world.table.after_look.set(remove);
    let mut seen = Vec::new();
    world.store.verify_blocks(0, 4, &mut |block, _, bytes| seen.push((block, bytes.is_ok()))).unwrap();
    assert_eq!(seen, [(0, true), (1, true), (3, true)]);
}

#[test]
fn m1_1_a_chunk_that_is_appended_while_others_are_made_durable_is_not_named_with_them() {
    let mut met = 0;
    for seed in 0..20 {
        let ground = SimulatedGround::new(seed);
        create_arena(&ground, &arena_options());
        let mut known = Known::default();
        let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
        let mut writer = world.store.writer();
        let early = world.append(&mut writer, &mut known, 2).unwrap();
        let (store, late) = (world.store.clone(), Arc::new(Mutex::new(Vec::new())));
        let appended = late.clone();
        ground.during_writes(move |_| {
            let (fingerprint, kind, data) = arena_chunk(50);
            let chunk = NewChunk { fingerprint, kind, data: &data };
            appended.lock().extend(store.writer().append(&[chunk]).unwrap());
        });
        let prepared = world.store.prepare(Scope::Everything).unwrap();
        ground.during_writes(|_| {});
        assert_eq!(prepared.chunks.iter().map(|(_, address, _)| *address).collect::<Vec<_>>(), early);
        world.commit(&mut known, prepared);
        for address in std::mem::take(&mut *late.lock()) {
            world.pending.insert(block_of_address(address).unwrap(), 50);
            met += 1;
        }
        world.check(&known);
        world.flush(&mut known).unwrap();
        world.check(&known);
    }
    assert!(met > 5, "{met}");
}

#[test]
fn an_abandoned_prepare_says_everything_again_the_next_time() {
    let (_, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 9).unwrap();
    let first = world.store.prepare(Scope::Everything).unwrap();
    let (records, chunks) = (first.records.clone(), first.chunks.clone());
    world.store.abandoned(first);
    let second = world.store.prepare(Scope::Everything).unwrap();
    assert_eq!((&second.records, &second.chunks), (&records, &chunks));
    drop(second);
    world.append(&mut writer, &mut known, 2).unwrap();
    world.flush(&mut known).unwrap();
    assert_eq!(known.committed.len(), 11);
    world.check(&known);
}

#[test]
fn m1_8_a_wrong_answer_of_the_table_never_gives_bytes() {
    let (_, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 12).unwrap();
    let name = |number: u64| arena_chunk(number).0;
    assert!(matches!(one(&world.store, 3, name(4)), Err(StorageError::NotThere { .. })), "a pending chunk of another name");
    world.flush(&mut known).unwrap();
    let right = world.table.get(3).unwrap();
    assert!(matches!(one(&world.store, 3, name(4)), Err(StorageError::NotThere { .. })), "another name");
    assert!(matches!(one(&world.store, 12, name(4)), Err(StorageError::NotThere { .. })), "a free block");
    for bits in [0, UNIT_BLOCKS - 1, MAX_BLOCKS + UNIT_BLOCKS, u64::MAX] {
        let loaded = world.store.load(&[(Address::from_bits(bits), name(4))], &mut Vec::new());
        assert!(matches!(loaded, Err(StorageError::NotThere { .. })), "no block");
    }
    for (wrong, why) in [
        (Block { fingerprint: name(4), ..right }, "the name of another chunk"),
        (Block { kind: ChunkKind::Recipe, ..right }, "another kind"),
        (Block { length_bytes: right.length_bytes + 1, ..right }, "another length"),
        (Block { length_bytes: 0, ..right }, "no length"),
        (Block { length_bytes: 4097, ..right }, "more than a block"),
        (Block { length_bytes: u32::MAX, ..right }, "much more than a block"),
    ] {
        world.table.set(3, Some(wrong));
        let error = one(&world.store, 3, wrong.fingerprint).unwrap_err();
        assert!(matches!(error, StorageError::BlockDamaged { block: 3, .. }) && error.is_damage(), "{why}: {error}");
        let mut verdicts = Vec::new();
        world.store.verify_blocks(3, 1, &mut |block, _, bytes| verdicts.push((block, bytes.is_ok()))).unwrap();
        assert_eq!(verdicts, [(3, false)], "{why}");
    }
    // What is known to be lost is given all the same if its bytes are right: then it came back.
    world.table.set(3, Some(Block { is_lost: true, ..right }));
    assert!(one(&world.store, 3, right.fingerprint).is_ok());
    world.table.set(3, Some(right));
    world.check(&known);
}

#[test]
fn m1_1_damage_of_any_byte_is_found_and_nothing_else_is_called_damaged() {
    let (ground, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 20).unwrap();
    world.flush(&mut known).unwrap();
    for (block, number) in known.committed.clone() {
        let (name, _, data) = arena_chunk(number);
        for at in [0, data.len() / 2, data.len() - 1] {
            let offset = block * BLOCK + at as u64;
            ground.corrupt("arena/blocks", offset, 0x10).unwrap();
            let error = one(&world.store, block, name).unwrap_err();
            assert_eq!(error.to_string(), format!("arena/blocks: block {block} is damaged: its bytes have changed"));
            let mut damaged = Vec::new();
            world.store.verify_blocks(0, 40, &mut |block, _, bytes| damaged.extend(bytes.is_err().then_some(block))).unwrap();
            assert_eq!(damaged, [block]);
            ground.corrupt("arena/blocks", offset, 0x10).unwrap();
        }
    }
    ground.make_range_unreadable("arena/blocks", 5 * BLOCK..6 * BLOCK).unwrap();
    let mut damaged = Vec::new();
    world.store.verify_blocks(0, 40, &mut |block, _, bytes| damaged.extend(bytes.is_err().then_some(block))).unwrap();
    assert_eq!(damaged, [5]);
    let others = known.committed.iter().filter(|(block, _)| **block != 5);
    check_loads(&world.store, others);
    ground.make_readable("arena/blocks").unwrap();
    world.check(&known);
}

#[test]
fn blocks_tell_which_chunks_they_may_have() {
    let (ground, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 50).unwrap();
    world.flush(&mut known).unwrap();
    let mut tried = 0;
    for (block, number) in known.committed.clone() {
        let (name, kind, data) = arena_chunk(number);
        let address = address_of_block(block);
        let length_at = |address| world.store.length_at(address, &name, kind).unwrap();
        let held = world.table.get(block);
        assert_eq!(
            (length_at(address), world.store.held_in(block).unwrap().map(|held| held.fingerprint)),
            (Some(data.len() as u32), Some(name))
        );
        assert_eq!(length_at(address_of_block(block + 1)), None, "another chunk");
        assert_eq!(length_at(address_of_block(1 << 30)), None, "behind the end");
        // The table has lost it.
        world.table.set(block, None);
        assert_eq!(length_at(address), Some(data.len() as u32));
        let mut found = Vec::new();
        let mut visit = |address, _: Option<Block>, bytes: &[u8]| {
            let is_it = |possible: &PossibleName| possible.name == name && possible.is_metadata == (kind != ChunkKind::Data);
            found.extend(world.store.possible_names(bytes).find(is_it).map(|possible| (address, possible.length_bytes)));
            true
        };
        world.store.each_without_chunk(&mut visit).unwrap();
        assert_eq!(found, [(address, data.len() as u32)]);
        // The bytes count, whatever the table has there.
        world.table.set(block, held.map(|held| Block { fingerprint: arena_chunk(number + 1).0, ..held }));
        assert_eq!(length_at(address), Some(data.len() as u32));
        world.table.set(block, held);
        tried += 1;
    }
    assert!(tried == 50);
    let (block, number) = known.committed.iter().next().map(|(block, number)| (*block, *number)).unwrap();
    ground.corrupt("arena/blocks", block * BLOCK, 1).unwrap();
    let (name, kind, _) = arena_chunk(number);
    assert_eq!(world.store.length_at(address_of_block(block), &name, kind).unwrap(), None);
}

#[test]
fn a_file_that_was_cut_is_damage_and_the_cut_blocks_are_not_given_out() {
    let (ground, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 40).unwrap();
    world.flush(&mut known).unwrap();
    drop((writer, world));
    Ground::open(&ground, "arena/blocks", Access::ReadWrite).unwrap().set_len(10 * BLOCK + 100).unwrap();
    let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
    let mut damaged = Vec::new();
    world.store.verify_blocks(0, 99, &mut |block, _, bytes| damaged.extend(bytes.is_err().then_some(block))).unwrap();
    // A chunk of one byte is left of block 10 or not; every later block is gone.
    assert!(damaged.ends_with(&(11..40).collect::<Vec<_>>()) && damaged[0] >= 10, "{damaged:?}");
    let before = known.committed.clone();
    let mut writer = world.store.writer();
    let addresses = world.append(&mut writer, &mut known, 30).unwrap();
    assert!(addresses.iter().all(|address| !before.contains_key(&block_of_address(*address).unwrap())));
    let left: Vec<_> = before.iter().filter(|(block, _)| **block < 10).collect();
    check_loads(&world.store, left.into_iter().chain(&world.pending));
}

#[test]
fn chunks_that_do_not_fit_into_a_block_are_refused_and_nothing_is_stored() {
    let (_, mut world, _) = world(&arena_options());
    let mut writer = world.store.writer();
    let name = arena_chunk(1).0;
    let chunk = |data| NewChunk { fingerprint: name, kind: ChunkKind::Data, data };
    let long = writer.append(&[chunk(&[1]), chunk(&[1; 4097])]).unwrap_err();
    assert_eq!(long.to_string(), "a chunk has 4097 bytes; the limit is 4096 bytes");
    assert!(matches!(writer.append(&[chunk(&[1]), chunk(&[])]), Err(StorageError::ChunkEmpty)));
    assert_eq!((world.store.figures().pending, writer.append(&[]).unwrap().len()), (0, 0));
    let mut known = Known::default();
    world.flush(&mut known).unwrap();
    assert_eq!(known.committed.len(), 0);
}

#[test]
fn an_arena_of_other_blocks_or_another_store_is_not_opened_and_a_reader_writes_nothing() {
    let (ground, world, known) = world(&arena_options());
    let others = [ArenaOptions { block_bytes: 8192, ..arena_options() }, ArenaOptions { store: [8; 16], ..arena_options() }];
    for options in others {
        let error = ArenaWorld::open(&ground, &known, &options).err().unwrap();
        assert!(matches!(error, StorageError::ArenaHeader { .. }), "{error}");
    }
    let open = |epoch, access| {
        let parts = ArenaParts {
            table: world.table.clone(),
            holes: Arc::new(NoHoles),
            profile: Arc::new(Profile::default()),
            log_end: Position(0),
        };
        ArenaStore::open(Arc::new(ground.clone()), ARENA, epoch, arena_options(), parts, access)
    };
    let before = ground.operations();
    let reader = open(0, Access::Read).unwrap();
    ChunkStore::recovered(&*reader, Position(0), Position(0)).unwrap();
    let refused = [
        reader.writer().append(&[]).map(drop),
        reader.prepare(Scope::Everything).map(drop),
        reader.retire(&[]),
        reader.free(&[]),
        reader.give_back(0),
    ];
    assert!(refused.iter().all(|refused| matches!(refused, Err(StorageError::ReadOnly))));
    assert_eq!(ground.operations(), before);
    open(5, Access::ReadWrite).unwrap();
    assert!(matches!(open(4, Access::ReadWrite), Err(StorageError::Fenced { stored_epoch: 5, epoch: 4, .. })));
    // Before the end of the replay nothing is written.
    let early = open(6, Access::ReadWrite).unwrap();
    assert!(matches!(early.writer().append(&[]), Err(StorageError::ReadOnly)));
    ground.corrupt("arena/header", 20, 1).unwrap();
    assert!(matches!(open(7, Access::ReadWrite), Err(StorageError::ArenaHeader { .. })));
    ArenaStore::rebuild_header(&ground, ARENA, &arena_options(), 6).unwrap();
    open(7, Access::ReadWrite).unwrap();
}

#[test]
fn m1_5_where_the_block_table_is_damaged_a_check_goes_on_with_the_other_blocks() {
    let (ground, mut world, mut known) = world(&arena_options());
    let mut writer = world.store.writer();
    world.append(&mut writer, &mut known, 20).unwrap();
    world.flush(&mut known).unwrap();
    let unit = world.store.units().unwrap().iter().next().unwrap();
    let all = world.store.chunks_of(unit).unwrap();
    // Two pages of the table, and a block of a sound one.
    world.table.damaged.lock().extend([3, 4, 5, 12]);
    ground.corrupt("arena/blocks", 9 * BLOCK, 0x10).unwrap();
    assert_eq!(world.store.units().unwrap().iter().collect::<Vec<_>>(), [unit], "it may have chunks");
    assert!(world.store.chunks_of(unit).unwrap_err().is_damage());
    let mut damaged = Vec::new();
    let chunks = world.store.known_chunks_of(unit, &mut damaged).unwrap();
    assert_eq!(
        chunks,
        all.iter().filter(|(address, _)| ![3, 4, 5, 12].contains(&(address.bits() - UNIT_BLOCKS))).copied().collect::<Vec<_>>()
    );
    let texts = |damage: &[StorageError]| damage.iter().map(StorageError::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&damaged), ["page 0", "page 1"]);
    let mut seen = 0;
    let report = world.store.verify(unit, true, &mut ReadBuffer::default(), &mut |chunks| seen += chunks.len()).unwrap();
    assert_eq!(texts(&report.damage), ["arena/blocks: block 9 is damaged: its bytes have changed", "page 0", "page 1"]);
    assert_eq!((seen, report.chunks), (15, 16));
    let report = world.store.verify(unit, false, &mut ReadBuffer::default(), &mut |_| {}).unwrap();
    assert_eq!(texts(&report.damage), ["page 0"]);
}

#[test]
fn units_and_their_chunks_are_those_of_the_table_and_the_pending_ones() {
    let options = ArenaOptions { grow_bytes: 64 << 10, ..arena_options() };
    let ground = SimulatedGround::new(1);
    create_arena(&ground, &options);
    Ground::open(&ground, "arena/blocks", Access::ReadWrite).unwrap().set_len(UNIT_BLOCKS * BLOCK).unwrap();
    let mut known = Known::default();
    let table = Arc::new(Table { full_units: 1, ..Table::default() });
    let mut world = ArenaWorld::open_with(&ground, table, &known, &options).unwrap();
    let mut writer = world.store.writer();
    let addresses = world.append(&mut writer, &mut known, 5).unwrap();
    assert_eq!(addresses[0], address_of_block(UNIT_BLOCKS), "the first unit is full");
    let origin = addresses[0].origin();
    let look = |world: &ArenaWorld| {
        assert!(world.store.has_chunks_of(origin).unwrap());
        let units: Vec<_> = world.store.units().unwrap().iter().collect();
        assert_eq!(units, [ContainerId::new(0, 1), ContainerId::new(0, 2)]);
        let (unit, slots) = world.store.chunks_beside(origin).unwrap();
        assert_eq!((unit, world.store.unit_of(origin).unwrap()), (ContainerId::new(0, 2), unit));
        let expected: Vec<_> = (0..5).map(|number| arena_chunk(number).0).collect();
        assert_eq!(slots.iter().map(|(_, slot)| slot.fingerprint).collect::<Vec<_>>(), expected);
        assert_eq!(slots.iter().map(|(address, _)| *address).collect::<Vec<_>>(), addresses);
    };
    look(&world);
    world.flush(&mut known).unwrap();
    look(&world);
    let later = Origin::from_bits(origin.bits() + 1);
    assert!(!world.store.has_chunks_of(later).unwrap() && !world.store.has_chunks_of(Origin::from_bits(0)).unwrap());
    assert!(world.store.unit_of(Origin::from_bits(0)).is_err());
    // Metadata that is committed later was not durable at the moment.
    let moment = world.store.committed_slots();
    let later = world.append(&mut writer, &mut known, 6).unwrap();
    world.flush(&mut known).unwrap();
    let of_data = (5..11).map(|number| arena_chunk(number).1 == ChunkKind::Data);
    assert!(later.iter().zip(of_data).all(|(address, is_data)| moment.includes(*address) == is_data));
    assert!(addresses.iter().all(|address| moment.includes(*address)));
    assert!(later.iter().all(|address| world.store.committed_slots().includes(*address)));
    assert_eq!(ChunkStore::position(&*world.store), known.log.end());
}

#[test]
fn a_unit_with_room_is_filled_before_the_file_grows_and_one_with_crumbs_after() {
    let options = arena_options();
    let ground = SimulatedGround::new(1);
    create_arena(&ground, &options);
    Ground::open(&ground, "arena/blocks", Access::ReadWrite).unwrap().set_len(2 * UNIT_BLOCKS * BLOCK).unwrap();
    let mut known = Known::default();
    let table = Table::default();
    let other = Block { fingerprint: arena_chunk(99).0, kind: ChunkKind::Data, length_bytes: 1, is_lost: false };
    // Unit 0 has a few free blocks; unit 1 an eighth and a little more.
    (0..UNIT_BLOCKS).filter(|block| block % 1000 != 500).for_each(|block| table.set(block, Some(other)));
    (UNIT_BLOCKS..2 * UNIT_BLOCKS - UNIT_BLOCKS / 8 - 4).for_each(|block| table.set(block, Some(other)));
    let mut world = ArenaWorld::open_with(&ground, Arc::new(table), &known, &options).unwrap();
    let mut writer = world.store.writer();
    let first = world.append(&mut writer, &mut known, 1).unwrap()[0];
    assert_eq!(first, address_of_block(2 * UNIT_BLOCKS - UNIT_BLOCKS / 8 - 4));
    world.append(&mut writer, &mut known, UNIT_BLOCKS / 8 + 3).unwrap();
    assert_eq!(world.store.figures().blocks, 2 * UNIT_BLOCKS);
    let grown = world.append(&mut writer, &mut known, 1).unwrap()[0];
    assert_eq!(grown, address_of_block(2 * UNIT_BLOCKS));
    drop((writer, world));
    // With a limit, the crumbs are what is left.
    let options = ArenaOptions { limit_bytes: 2 * UNIT_BLOCKS * BLOCK, ..options };
    let mut known = Known::default();
    let table = Table { full_units: 2, ..Table::default() };
    let mut world = ArenaWorld::open_with(&ground, Arc::new(table), &known, &options).unwrap();
    assert!(world.append(&mut world.store.clone().writer(), &mut known, 1).unwrap_err().is_full());
    let table = Table::default();
    (0..2 * UNIT_BLOCKS).filter(|block| block % 1000 != 500).for_each(|block| table.set(block, Some(other)));
    let mut world = ArenaWorld::open_with(&ground, Arc::new(table), &known, &options).unwrap();
    let mut writers = [world.store.writer(), world.store.writer()];
    let mut given = BTreeSet::new();
    let full = loop {
        let count = given.len() as u64;
        match world.append(&mut writers[count as usize % 2], &mut known, 1) {
            Ok(addresses) => given.extend(addresses),
            Err(error) => break error,
        }
    };
    assert!(full.is_full());
    assert_eq!(given.len() as u64, (2 * UNIT_BLOCKS - 500).div_ceil(1000), "one writer gets what the other took ahead");
}

#[test]
fn records_of_containers_are_not_for_an_arena() {
    let (_, world, _) = world(&arena_options());
    let record = |kind| Record { kind, partition: Partition { class: PartitionClass::Container, number: 0 }, payload: Vec::new() };
    let apply = |kind| {
        let replayed = [record(kind)];
        ChunkStore::apply(&*world.store, Position(512), &Effects { replayed: &replayed, ..Effects::default() })
    };
    apply(BLOCKS_STORED).unwrap();
    assert!(matches!(apply(FRAME_COMMITTED), Err(StorageError::Record { kind: FRAME_COMMITTED, .. })));
}
