//! Merging containers of a whole store (M0.20). Slots that are not dead stay readable by their address, whatever the
//! index names. A merge for which the disk has no space leaves nothing behind.

mod common;

use common::{DEFAULT_CHAIN, bytes, descriptor, open, read, refer, settings, store, unused, write};
use onefold_engine::{ContainerId, Engine, Piece, Settings, Transaction};
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_storage::{ChunkKind, NewChunk};
use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::sync::Arc;

const SLICE: usize = 16 << 10;

/// Runs of bytes, and where they are.
type Kept = Vec<(Vec<u8>, Vec<Piece>)>;

/// A log so small that segments end all the time.
fn tight() -> Settings {
    Settings { log_segment_bytes: 64 << 10, log_limit_bytes: 1 << 20, ..settings(DEFAULT_CHAIN) }
}

/// Removes everything that nothing refers to.
fn remove(engine: &Engine) -> u64 {
    engine.flush().unwrap();
    engine.remove_unused(&unused(engine), &|_, _| Ok(Vec::new()), &|| false).unwrap().chunks
}

/// Returns the sealed containers with dead slots.
fn victims(engine: &Engine) -> Vec<ContainerId> {
    let mut found = Vec::new();
    engine.for_each_dead(&mut |container, _| found.push(container)).unwrap();
    found.retain(|container| engine.containers().unwrap().is_sealed(*container));
    found
}

fn merge(engine: &Engine) -> onefold_engine::Result<bool> {
    Ok(engine.merge_containers(&victims(engine), &|address| address.bits())?.is_some())
}

/// An object that refers to nothing.
fn submit(engine: &Engine, value: Vec<u8>) {
    engine.submit(Transaction { changes: vec![(0, b"z".to_vec(), Some(value))], references: Vec::new() }).unwrap();
}

/// Writes runs in turn; every second one stays.
fn written_by_turns(engine: &Arc<Engine>) -> Kept {
    let mut stream = engine.stream();
    let runs: Vec<_> = (0..20).map(|seed| bytes(seed, 30_000)).map(|data| (write(&mut stream, &data, SLICE), data)).collect();
    drop(stream);
    let kept = runs.into_iter().step_by(2).map(|(pieces, data)| (data, pieces));
    let kept: Vec<_> = kept.collect();
    kept.iter().enumerate().for_each(|(key, (_, pieces))| refer(engine, key as u8, pieces, 1));
    assert!(remove(engine) > 0);
    kept
}

/// Returns the names of the container files in the folder.
fn container_files(ground: &SimulatedGround) -> BTreeSet<String> {
    let files = ground.list("containers/0000/00000").unwrap().into_iter();
    files.map(|entry| entry.name).collect()
}

/// Reopens the store as the next process would, and merges it.
fn opened_again(engine: Arc<Engine>, ground: &SimulatedGround) -> Arc<Engine> {
    drop(engine);
    let engine = open(&ground.snapshot(CrashPolicy::KeepAll), tight());
    merge(&engine).unwrap();
    engine
}

/// Panics if a slot counts as stored that the index does not name: writers would refer to it.
fn assert_slots_are_named(engine: &Engine, what: &str) {
    for container in engine.containers().unwrap().containers().unwrap().iter() {
        let dead = engine.dead_slots(container).unwrap();
        for (number, (address, slot)) in engine.containers().unwrap().slots(container).unwrap().iter().enumerate() {
            let is_named = engine.locate(&slot.fingerprint).unwrap() == Some(*address);
            assert!(dead.contains(number) || is_named, "{what}: {address} is nowhere");
        }
    }
}

/// A store in which the record of a merge needs a new segment of the log, and what was written to it.
fn before_a_segment_ends() -> (SimulatedGround, Kept) {
    let ground = store(&descriptor());
    let engine = open(&ground, tight());
    let kept = written_by_turns(&engine);
    drop(engine);
    // A moment at which the record of the merge needs a new segment of the log.
    let segments = |ground: &SimulatedGround| ground.list("log").unwrap().iter().filter(|entry| entry.name.ends_with(".log")).count();
    let mut base = ground.restart(CrashPolicy::KeepAll);
    for round in 0..200u8 {
        let engine = open(&base, tight());
        engine
            .submit(Transaction { changes: vec![(0, vec![b'y', round], Some(bytes(round.into(), 700)))], references: Vec::new() })
            .unwrap();
        engine.flush().unwrap();
        drop(engine);
        base = base.restart(CrashPolicy::KeepAll);
        let tried = base.snapshot(CrashPolicy::KeepAll);
        let engine = open(&tried, tight());
        let before = segments(&tried);
        assert!(merge(&engine).unwrap());
        if segments(&tried) > before {
            return (base, kept);
        }
    }
    panic!("no merge opened a segment");
}

#[test]
fn m0_20_a_merge_without_room_for_its_record_is_given_up_and_done_when_there_is_room() {
    let (base, kept) = before_a_segment_ends();
    let mut refused = 0;
    for operation in 0.. {
        let ground = base.snapshot(CrashPolicy::KeepAll);
        let engine = open(&ground, tight());
        let before = container_files(&ground);
        ground.fail_operation(operation, ErrorKind::StorageFull);
        let begun = ground.operations();
        let merged = merge(&engine);
        let is_over = ground.operations() - begun <= operation;
        let engine = match merged {
            Ok(_) => engine,
            Err(error) if error.is_full() => {
                refused += 1;
                let after = container_files(&ground);
                assert!(before.is_subset(&after), "operation {operation}: {:?} went", before.difference(&after).collect::<Vec<_>>());
                // The file that was begun may wait for its removal.
                let is_log_whole = engine.maintain(true).is_ok();
                if is_log_whole {
                    assert_eq!(container_files(&ground), before, "operation {operation}");
                    assert!(merge(&engine).unwrap(), "operation {operation}: there is room again");
                }
                if is_log_whole { engine } else { opened_again(engine, &ground) }
            }
            // After a failed sync the state of the disk is unknown.
            Err(_) => opened_again(engine, &ground),
        };
        assert!(victims(&engine).is_empty(), "operation {operation}");
        for (data, pieces) in &kept {
            assert!(read(&engine, pieces).unwrap() == *data, "operation {operation}");
        }
        drop(engine);
        let engine = open(&ground.snapshot(CrashPolicy::DropAll), tight());
        for (data, pieces) in &kept {
            assert!(read(&engine, pieces).unwrap() == *data, "operation {operation}, opened again");
        }
        if is_over {
            break;
        }
    }
    assert!(refused > 8, "the disk was full {refused} times: creating and writing the container, the new segment");
}

#[test]
fn m0_20_a_merge_whose_record_could_not_be_written_holds_neither_its_containers_nor_the_log() {
    let (base, kept) = before_a_segment_ends();
    let mut went_on = 0;
    for operation in 0.. {
        let ground = base.snapshot(CrashPolicy::KeepAll);
        let engine = open(&ground, tight());
        ground.fail_operation(operation, ErrorKind::Other);
        let begun = ground.operations();
        let failed = merge(&engine);
        if ground.operations() - begun <= operation {
            break;
        }
        let Err(failed) = failed else { continue };
        let again = merge(&engine);
        if again.is_err() {
            // After a sync that failed nobody knows what is on the disk.
            submit(&engine, vec![1]);
            assert!(engine.flush().is_err(), "operation {operation}: {failed}, then {again:?}");
            drop(engine);
            for policy in [CrashPolicy::KeepAll, CrashPolicy::DropAll] {
                let engine = open(&ground.snapshot(policy), tight());
                assert_slots_are_named(&engine, &format!("operation {operation}: {failed}, opened again"));
                for (data, pieces) in &kept {
                    assert!(read(&engine, pieces).unwrap() == *data, "operation {operation}: {failed}, opened again");
                }
            }
            continue;
        }
        assert!(again.unwrap(), "operation {operation}: {failed}");
        went_on += 1;
        assert!(victims(&engine).is_empty(), "operation {operation}");
        // More than the log may have goes through it.
        for round in 0..40 {
            submit(&engine, bytes(round, 40_000));
            engine.flush().unwrap_or_else(|error| panic!("operation {operation}: {failed}, then {error}"));
        }
        let log_bytes = engine.statistics().unwrap().log_bytes;
        assert!(log_bytes <= tight().log_limit_bytes, "operation {operation}: {failed}, then a log of {log_bytes} bytes");
        for (data, pieces) in &kept {
            assert!(read(&engine, pieces).unwrap() == *data, "operation {operation}");
        }
        drop(engine);
        let engine = open(&ground.snapshot(CrashPolicy::DropAll), tight());
        assert!(victims(&engine).is_empty(), "operation {operation}, opened again");
        for (data, pieces) in &kept {
            assert!(read(&engine, pieces).unwrap() == *data, "operation {operation}, opened again");
        }
    }
    println!("{went_on} merges were done later");
    assert!(went_on > 5, "the same process went on {went_on} times");
}

#[test]
fn m0_20_a_merge_whose_record_was_not_synced_for_want_of_space_is_neither_given_up_nor_lost() {
    let (base, kept) = before_a_segment_ends();
    let (mut stopped, mut found) = (0, 0);
    let operations = {
        let ground = base.snapshot(CrashPolicy::KeepAll);
        let engine = open(&ground, tight());
        let begun = ground.operations();
        assert!(merge(&engine).unwrap());
        ground.operations() - begun
    };
    // The disk is full twice, as a commit is repeated once: at the header of the new segment or the batch, then at a
    // sync.
    for (in_log, operation) in [3, 7].into_iter().flat_map(|in_log| (operations / 2..operations + 20).map(move |at| (in_log, at))) {
        let ground = base.snapshot(CrashPolicy::Random { seed: operation });
        let engine = open(&ground, tight());
        ground.fail_operation_in("log", in_log, ErrorKind::StorageFull);
        ground.fail_operation(operation, ErrorKind::StorageFull);
        if merge(&engine).is_ok() {
            continue;
        }
        submit(&engine, vec![1]);
        if engine.flush().is_ok() {
            continue;
        }
        stopped += 1;
        drop(engine);
        for policy in [CrashPolicy::KeepAll, CrashPolicy::DropAll] {
            let what = format!("operations {in_log} and {operation}, {policy:?}");
            let engine = open(&ground.snapshot(policy), tight());
            found += u64::from(victims(&engine).is_empty());
            assert_slots_are_named(&engine, &what);
            for (data, pieces) in &kept {
                assert!(read(&engine, pieces).unwrap() == *data, "{what}");
            }
        }
    }
    println!("{stopped} logs stopped, {found} openings found the merge");
    assert!(stopped > 5 && found > 2, "{stopped} logs stopped, {found} openings found the merge");
}

#[test]
fn m0_20_copies_that_the_index_does_not_name_any_more_are_taken_along() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings("chunk-index,byte-compare"));
    let data = bytes(1, 20_000);
    let mut stream = engine.stream();
    let old = write(&mut stream, &data, data.len());
    write(&mut stream, &bytes(2, 200_000), SLICE);
    drop(stream);
    refer(&engine, 1, &old, 1);
    drop(engine);
    let ground = ground.restart(CrashPolicy::KeepAll);
    let address = |piece: &Piece| match piece {
        Piece::Chunk { address, .. } => *address,
        Piece::Zeros { .. } => panic!("the data has no zeros"),
    };
    let engine = open(&ground, settings("chunk-index,byte-compare"));
    // As byte-compare would do for other bytes with the same fingerprints.
    let (mut new, mut at) = (Vec::new(), 0);
    let mut writer = engine.containers().unwrap().writer();
    for piece in &old {
        let Piece::Chunk { fingerprint, length, .. } = *piece else { panic!("the data has no zeros") };
        let chunk = NewChunk { fingerprint, kind: ChunkKind::Data, data: &data[at..][..length as usize] };
        let address = writer.append(&[chunk]).unwrap()[0];
        new.push(Piece::Chunk { fingerprint, address, offset: 0, length });
        at += length as usize;
    }
    drop(writer);
    engine.flush().unwrap();
    assert_ne!(address(&new[0]), address(&old[0]));
    refer(&engine, 2, &new, 1);
    assert!(remove(&engine) > 0);
    let victims = victims(&engine);
    assert!(
        victims.contains(&engine.containers().unwrap().container_of(address(&old[0])).unwrap()),
        "the first copies are in none of {victims:?}"
    );
    assert!(merge(&engine).unwrap());
    for pieces in [&old, &new] {
        assert_eq!(read(&engine, pieces).unwrap(), data);
        // By their own addresses, not through the index.
        for piece in pieces {
            let mut slices = Vec::new();
            engine.containers().unwrap().load(&[(address(piece), piece.fingerprint().unwrap())], &mut slices).unwrap();
        }
    }
}

/// Returns the bytes of all dead chunks, according to the containers.
fn dead_bytes(engine: &Engine) -> u64 {
    let mut sum = 0;
    engine.for_each_dead(&mut |_, dead| sum += dead.bytes).unwrap();
    sum
}

#[test]
fn m0_20_a_copy_that_died_while_its_container_was_copied_is_left_behind_and_counted() {
    let ground = store(&descriptor());
    let uncached = || Settings { frame_cache_bytes: 0, ..settings("chunk-index,byte-compare") };
    let engine = open(&ground, uncached());
    let (kept, lost) = (bytes(1, 30_000), bytes(2, 30_000));
    let mut stream = engine.stream();
    let pieces = write(&mut stream, &kept, SLICE);
    write(&mut stream, &lost, SLICE);
    write(&mut stream, &bytes(3, 60_000), SLICE);
    drop(stream);
    refer(&engine, 1, &pieces, 1);
    assert!(remove(&engine) > 0);
    let victims = victims(&engine);
    assert_eq!(victims.len(), 1, "what is kept and what is not share a container, which is full");
    let path = format!("containers/{:04x}/{:05x}/{:08x}", victims[0].partition(), 0, victims[0].number());
    // The merge has checked which chunks are dead, and asks for their order. Now a write meets a bad cable: it stores
    // the chunks that it cannot read again.
    let has_met = Cell::new(false);
    let rank = |address: onefold_engine::Address| {
        if !has_met.replace(true) {
            ground.corrupt(&path, 64 + 1000, 1).unwrap();
            let mut stream = engine.stream();
            write(&mut stream, &kept, SLICE);
            assert!(stream.added_bytes() > 0, "nothing was stored anew");
            ground.corrupt(&path, 64 + 1000, 1).unwrap();
            engine.flush().unwrap();
        }
        address.bits()
    };
    assert!(engine.merge_containers(&victims, &rank).unwrap().is_some());
    assert_eq!(engine.statistics().unwrap().dead_bytes, dead_bytes(&engine), "the sum of dead bytes is that of the containers");
    let mut stored = HashSet::new();
    for container in engine.containers().unwrap().containers().unwrap().iter() {
        for (address, slot) in engine.containers().unwrap().slots(container).unwrap() {
            assert!(stored.insert(slot.fingerprint), "a second copy of {} was kept at {address}", slot.fingerprint);
        }
    }
    assert_eq!(read(&engine, &pieces).unwrap(), kept);
}
