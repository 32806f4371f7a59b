//! Crashes at any operation, a full disk at any write, failed syncs, flipped bytes.

mod common;

use common::*;
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround};
use onefold_storage::*;
use std::io;
use std::sync::Arc;

/// Does some work with flushes, rollovers, checkpoints and a change of writers. Returns what was committed.
fn work(store: &Arc<ContainerStore>, log: &mut Log, next_name: &mut u64, committed: &mut Chunks) -> Result<()> {
    let mut written = Chunks::new();
    let mut writers = [store.writer(), store.writer().sequential()];
    for round in 0..14 {
        append(&mut writers[round % 2], next_name, &[300, 2000, 50 * round, 900], &mut written)?;
        if round == 7 {
            writers[0] = store.writer();
            let mut prepared = store.checkpoint_before(log.end())?;
            let chunks = std::mem::take(&mut prepared.chunks);
            let (start, end) = log.append(std::mem::take(&mut prepared.records));
            store.committed(prepared, start, end);
            committed.extend(chunks.iter().map(|(_, address, _)| (*address, written[address].clone())));
            log.trim(store.oldest_needed());
        }
        let scope = match round % 4 {
            0 => Scope::FullFrames,
            1 | 3 => Scope::Everything,
            _ => continue,
        };
        let chunks = flush(store, log, scope)?;
        committed.extend(chunks.iter().map(|(_, address, _)| (*address, written[address].clone())));
    }
    Ok(())
}

fn small() -> StorageOptions {
    // One worker writes the frames in their order. What other threads do between two of its writes differs from run to
    // run.
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, workers: 1, ..options() }
}

fn start(seed: u64) -> SimulatedGround {
    let ground = SimulatedGround::new(seed);
    ContainerStore::create(&ground, DIRECTORY, 2).unwrap();
    ground
}

/// Crashes after `operations`, restarts, and checks. Then works on, crashes at the end, and checks again.
fn crash_and_go_on(operations: u64, seed: u64, policy: CrashPolicy) {
    let ground = start(seed);
    let (mut log, mut next_name, mut committed) = (Log::default(), 0, Chunks::new());
    let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
    ground.crash_after_operations(operations);
    let _ = work(&store, &mut log, &mut next_name, &mut committed);
    drop(store);
    let ground = ground.restart(policy);
    let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
    check(&store, &committed);
    work(&store, &mut log, &mut next_name, &mut committed).unwrap();
    check(&store, &committed);
    drop(store);
    let ground = ground.restart(CrashPolicy::DropAll);
    let store = open(Arc::new(ground), &log, 2, &small(), Access::ReadWrite).unwrap();
    check(&store, &committed);
}

fn operations_of_a_run() -> u64 {
    let ground = start(1);
    let before = ground.operations();
    let (mut log, mut next_name, mut committed) = (Log::default(), 0, Chunks::new());
    let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
    work(&store, &mut log, &mut next_name, &mut committed).unwrap();
    check_all(&store, &committed);
    ground.operations() - before
}

#[test]
fn m0_12_what_was_committed_survives_a_crash_at_any_operation() {
    for operation in 0..operations_of_a_run() + 2 {
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: operation }] {
            crash_and_go_on(operation, operation, policy);
        }
    }
}

#[test]
fn a_killed_process_leaves_no_container_that_looks_damaged() {
    for operation in 0..operations_of_a_run() + 2 {
        let ground = start(1);
        let (mut log, mut committed) = (Log::default(), Chunks::new());
        let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
        ground.crash_after_operations(operation);
        let _ = work(&store, &mut log, &mut 0, &mut committed);
        drop(store);
        let ground = ground.restart(CrashPolicy::KeepAll);
        let store = open(Arc::new(ground), &log, 2, &small(), Access::ReadWrite).unwrap();
        check_all(&store, &committed);
    }
}

#[test]
fn a_container_that_is_being_sealed_keeps_its_catalog_when_room_is_given_back() {
    let ground = start(1);
    let (mut log, mut next_name, mut chunks) = (Log::default(), 0, Chunks::new());
    let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
    while store.statistics().sealed_containers < 4 {
        append(&mut store.writer(), &mut next_name, &[700, 1900, 2500], &mut chunks).unwrap();
        let mut prepared = store.prepare(Scope::Everything).unwrap();
        store.release_room();
        let (start, end) = log.append(std::mem::take(&mut prepared.records));
        store.committed(prepared, start, end);
    }
    drop(store);
    let store = open(Arc::new(ground), &log, 2, &small(), Access::ReadWrite).unwrap();
    check(&store, &chunks);
    check_all(&store, &chunks);
}

#[test]
fn a_write_that_fails_once_loses_nothing_and_a_failed_sync_ends_writing() {
    let (mut poisoned, mut refused) = (0, 0);
    for operation in 0..operations_of_a_run() {
        let ground = start(1);
        let (mut log, mut committed, mut all) = (Log::default(), Chunks::new(), Chunks::new());
        let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
        ground.fail_operation(operation, io::ErrorKind::StorageFull);
        let (mut writer, mut next_name, mut is_poisoned) = (store.writer(), 0, false);
        for round in 0..40 {
            match append(&mut writer, &mut next_name, &[300, 2000, 50 * round, 900], &mut all) {
                Ok(()) => {}
                Err(StorageError::Poisoned { .. }) => is_poisoned = true,
                Err(error) => {
                    assert!(error.is_full(), "{error}");
                    refused += 1;
                }
            }
            // After a failed sync the system may have given up frames, even frames whose chunks only the log has
            // durably.
            if !is_poisoned {
                check(&store, &all);
            }
            if round % 3 == 0 {
                match flush(&store, &mut log, Scope::Everything) {
                    Ok(chunks) => committed.extend(chunks.iter().filter_map(|(_, address, _)| Some((*address, all.get(address)?.clone())))),
                    Err(StorageError::Poisoned { .. }) => is_poisoned = true,
                    Err(error) => {
                        assert!(error.is_full(), "{error}");
                        refused += 1;
                    }
                }
            }
        }
        match flush(&store, &mut log, Scope::Everything).or_else(|_| flush(&store, &mut log, Scope::Everything)) {
            Ok(_) => committed = all,
            Err(StorageError::Poisoned { .. }) => poisoned += 1,
            Err(error) => panic!("{error}"),
        }
        drop((writer, store));
        let ground = ground.restart(CrashPolicy::DropAll);
        let store = open(Arc::new(ground), &log, 2, &small(), Access::ReadWrite).unwrap();
        check(&store, &committed);
    }
    assert!(poisoned > 0 && refused > 0, "poisoned {poisoned}, refused {refused}");
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let ground = start(1);
    let (mut log, mut all, mut next_name) = (Log::default(), Chunks::new(), 0);
    let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
    ground.set_capacity(ground.used_bytes() + (40 << 10));
    let mut writer = store.writer();
    let mut refusals = 0;
    for _ in 0..100 {
        if let Err(error) = append(&mut writer, &mut next_name, &[3000, 30], &mut all) {
            assert!(error.is_full(), "{error}");
            refusals += 1;
        }
    }
    assert!(refusals > 50);
    check(&store, &all);
    ground.set_capacity(u64::MAX);
    let _ = flush(&store, &mut log, Scope::Everything);
    append(&mut writer, &mut next_name, &[3000, 30], &mut all).unwrap();
    flush(&store, &mut log, Scope::Everything).unwrap();
    drop((writer, store));
    let store = open(Arc::new(ground.restart(CrashPolicy::DropAll)), &log, 2, &small(), Access::ReadWrite).unwrap();
    check(&store, &all);
    check_all(&store, &all);
}

#[test]
fn m0_12_a_flipped_byte_anywhere_in_a_container_is_found() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1)] {
        let options = StorageOptions { compression, frame_cache_bytes: 0, catalog_cache_bytes: 0, ..small() };
        let ground = start(1);
        let (mut log, mut all, mut next_name) = (Log::default(), Chunks::new(), 0);
        let store = open(Arc::new(ground.clone()), &log, 2, &options, Access::ReadWrite).unwrap();
        append(&mut store.writer(), &mut next_name, &[900; 20], &mut all).unwrap();
        flush(&store, &mut log, Scope::Everything).unwrap();
        log.trim(store.oldest_needed());
        drop(store);
        let store = open(Arc::new(ground.clone()), &log, 2, &options, Access::Read).unwrap();
        check(&store, &all);
        let container = store.containers().unwrap().iter().next().unwrap();
        let path = format!("{DIRECTORY}/{:04x}/00000/{:08x}", container.partition(), container.number());
        let length = ground.open(&path, Access::Read).unwrap().len().unwrap();
        assert!(store.verify_container(container, true, None).unwrap().sealed);
        for offset in 0..length {
            ground.corrupt(&path, offset, 1 << (offset % 8)).unwrap();
            let report = store.verify_container(container, true, None).unwrap();
            assert!(!report.damage.is_empty() && report.damage.iter().all(StorageError::is_damage), "byte {offset} of {length}");
            if offset % 11 == 0 {
                for (address, (fingerprint, bytes)) in all.iter().filter(|(address, _)| address.container() == container) {
                    let mut slices = Vec::new();
                    match store.load(&[(*address, *fingerprint)], &mut slices) {
                        Ok(()) => assert_eq!(&slices[0][..], &bytes[..]),
                        Err(error) => assert!(error.is_damage() && slices.is_empty(), "{error}"),
                    }
                }
            }
            ground.corrupt(&path, offset, 1 << (offset % 8)).unwrap();
        }
        check(&store, &all);
    }
}

#[test]
fn a_missing_or_short_file_and_a_wrong_name_are_damage() {
    let ground = start(1);
    let (mut log, mut all, mut next_name) = (Log::default(), Chunks::new(), 0);
    let options = StorageOptions { frame_cache_bytes: 0, catalog_cache_bytes: 0, ..small() };
    let store = open(Arc::new(ground.clone()), &log, 2, &options, Access::ReadWrite).unwrap();
    append(&mut store.writer(), &mut next_name, &[900; 40], &mut all).unwrap();
    flush(&store, &mut log, Scope::Everything).unwrap();
    let sealed: Vec<ContainerId> = store.containers().unwrap().iter().collect();
    let wanted = |at: usize| {
        let (address, (fingerprint, _)) = all.iter().find(|(address, _)| address.container() == sealed[at]).unwrap();
        (*address, *fingerprint)
    };
    let is_damage = |wanted| store.load(&[wanted], &mut Vec::new()).is_err_and(|error| error.is_damage());
    assert!(!is_damage(wanted(0)));
    assert!(is_damage((wanted(0).0, fingerprint(u64::MAX))), "another chunk's name");
    assert!(is_damage((Address::new(sealed[0], 9999), wanted(0).1)), "no such slot");
    assert!(is_damage((Address::new(ContainerId::new(1, 77), 0), wanted(0).1)), "no such container");
    let path = |id: ContainerId| format!("{DIRECTORY}/{:04x}/00000/{:08x}", id.partition(), id.number());
    ground.open(&path(sealed[0]), Access::ReadWrite).unwrap().set_len(3000).unwrap();
    assert!(is_damage(wanted(0)), "cut");
}

#[test]
fn what_only_the_log_has_of_a_container_is_read_and_verified_without_its_file() {
    let ground = start(1);
    let (mut log, mut all, mut next_name) = (Log::default(), Chunks::new(), 0);
    let options = StorageOptions { container_bytes: 1 << 20, frame_bytes: 16 << 10, ..small() };
    let store = open(Arc::new(ground.clone()), &log, 1, &options, Access::ReadWrite).unwrap();
    append(&mut store.writer(), &mut next_name, &[900; 40], &mut all).unwrap();
    flush(&store, &mut log, Scope::Everything).unwrap();
    let [container] = store.containers().unwrap().iter().collect::<Vec<_>>()[..] else { panic!("one container") };
    let in_file = store.catalog(container).unwrap().slots.len();
    assert!(in_file > 0 && in_file < all.len());
    drop(store);
    ground.remove(&format!("{DIRECTORY}/0000/00000/{:08x}", container.number())).unwrap();
    // Twice: what the first look did not find must not be forgotten.
    for beside_a_writer in [false, true, true] {
        let reader = open(Arc::new(ground.clone()), &log, 1, &options, Access::Read).unwrap();
        if beside_a_writer {
            reader.follow_writers();
        }
        let (mut seen, mut readable) = (0, 0);
        for _ in 0..2 {
            readable = all.iter().filter(|(address, (name, _))| reader.load(&[(**address, *name)], &mut Vec::new()).is_ok()).count();
        }
        let report = reader
            .verify_container(
                container,
                true,
                Some(&mut |address, name, _, bytes| {
                    assert_eq!(all[&address], (name, bytes.to_vec()));
                    seen += 1;
                }),
            )
            .unwrap();
        assert_eq!((readable, seen, report.chunks), (all.len() - in_file, all.len() - in_file, all.len() as u64), "{beside_a_writer}");
        assert!(!report.damage.is_empty());
    }
}

#[test]
fn a_damaged_container_does_not_keep_the_others_from_being_written() {
    let ground = start(1);
    let (mut log, mut all, mut next_name) = (Log::default(), Chunks::new(), 0);
    let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
    append(&mut store.writer(), &mut next_name, &[900; 3], &mut all).unwrap();
    flush(&store, &mut log, Scope::Everything).unwrap();
    let lost = store.containers().unwrap().iter().next().unwrap();
    drop(store);
    ground.remove(&format!("{DIRECTORY}/{:04x}/00000/{:08x}", lost.partition(), lost.number())).unwrap();
    let store = open(Arc::new(ground.clone()), &log, 2, &small(), Access::ReadWrite).unwrap();
    let mut new = Chunks::new();
    append(&mut store.writer(), &mut next_name, &[900; 30], &mut new).unwrap();
    flush(&store, &mut log, Scope::Everything).unwrap();
    check(&store, &new);
    let (address, (fingerprint, _)) = all.first_key_value().unwrap();
    assert!(store.load(&[(*address, *fingerprint)], &mut Vec::new()).is_err_and(|error| error.is_damage()));
}
