//! Partitions that are opened by a list, their owners, and what an adopter leaves alone.

mod common;

use common::*;
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_oplog::{Owned, Ownership, Position};
use onefold_storage::*;
use std::sync::Arc;

fn small() -> StorageOptions {
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, workers: 1, ..options() }
}

fn create(partitions: u16) -> SimulatedGround {
    let ground = SimulatedGround::new(1);
    ContainerStore::create(&ground, DIRECTORY, partitions).unwrap();
    ground
}

fn own(number: u32, epoch: u64) -> Ownership {
    Ownership::of(3, vec![Owned { number, epoch }]).unwrap()
}

fn opened(ground: &SimulatedGround, log: &Log, ownership: &Ownership) -> Result<Arc<ContainerStore>> {
    open_owned(Arc::new(ground.clone()), log, ownership, &small(), Access::ReadWrite)
}

/// Fills several containers with three streams, like one owner, and makes everything durable.
fn fill(store: &Arc<ContainerStore>, log: &mut Log, next_name: &mut u64, chunks: &mut Chunks) {
    let mut writers = [store.writer(), store.writer(), store.writer()];
    for _ in 0..40 {
        for writer in &mut writers {
            append(writer, next_name, &[900, 500], chunks).unwrap();
        }
        flush(store, log, Scope::Everything).unwrap();
    }
}

/// Returns the chunks of containers that need no log.
fn sealed(store: &ContainerStore, chunks: &Chunks) -> Chunks {
    let mut sealed = chunks.clone();
    sealed.retain(|address, _| store.is_sealed(address.container()));
    assert!(sealed.len() > 50);
    sealed
}

fn files(ground: &SimulatedGround, partition: u16) -> Vec<String> {
    let folder = format!("{DIRECTORY}/{partition:04x}/00000");
    ground.list(&folder).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn only_partitions_that_are_opened_take_chunks_and_records_and_sealed_containers_of_others_can_be_read() {
    let ground = create(3);
    let (mut log, mut chunks, mut next_name) = (Log::default(), Chunks::new(), 0);
    let store = opened(&ground, &log, &Ownership::all(3, 1)).unwrap();
    fill(&store, &mut log, &mut next_name, &mut chunks);
    let before = sealed(&store, &chunks);
    assert!((0..3).all(|partition| before.keys().any(|address| address.container().partition() == partition)));
    drop(store);
    let others = [files(&ground, 0), files(&ground, 2)];
    // The log has records of all three.
    let store = opened(&ground, &log, &own(1, 2)).unwrap();
    check(&store, &before);
    let mut more = Chunks::new();
    fill(&store, &mut log, &mut next_name, &mut more);
    assert!(more.keys().all(|address| address.container().partition() == 1));
    assert!(store.containers().unwrap().iter().all(|container| container.partition() == 1));
    check(&store, &more);
    drop(store);
    assert_eq!([files(&ground, 0), files(&ground, 2)], others);
    let store = opened(&ground, &log, &Ownership::all(3, 3)).unwrap();
    check(&store, &chunks);
    check(&store, &more);
}

#[test]
fn a_record_of_a_partition_that_no_owner_can_have_is_refused() {
    let ground = create(3);
    let store = open_owned(Arc::new(ground.clone()), &Log::default(), &own(1, 1), &small(), Access::Read);
    drop(store.unwrap());
    let store = ContainerStore::open(Arc::new(ground), DIRECTORY, &own(1, 1), small(), Access::Read, Arc::default()).unwrap();
    let sealed = |partition| ContainerRecord::ContainerSealed { container: ContainerId::new(partition, 1) }.encode(32);
    store.replay(Position(0), &sealed(2)).unwrap();
    assert!(matches!(store.replay(Position(0), &sealed(3)), Err(StorageError::Record { .. })));
}

#[test]
fn a_partition_that_a_later_owner_has_opened_is_refused() {
    let ground = create(3);
    let mixed = |epoch| Ownership::of(3, vec![Owned { number: 0, epoch: 9 }, Owned { number: 2, epoch }]).unwrap();
    drop(opened(&ground, &Log::default(), &mixed(5)).unwrap());
    for epoch in [0, 4] {
        let refused = opened(&ground, &Log::default(), &mixed(epoch)).unwrap_err();
        assert!(matches!(refused, StorageError::Fenced { stored_epoch: 5, epoch: given, .. } if given == epoch), "{refused}");
        assert!(refused.to_string().contains("containers/0002 belongs to owner epoch 5"), "{refused}");
    }
    // Readers take nothing from anybody, and one owner may open again.
    open_owned(Arc::new(ground.clone()), &Log::default(), &mixed(4), &small(), Access::Read).unwrap();
    for epoch in [5, 7] {
        drop(opened(&ground, &Log::default(), &mixed(epoch)).unwrap());
    }
    assert!(matches!(ContainerStore::adopt(&ground, DIRECTORY, Owned { number: 2, epoch: 7 }), Err(StorageError::Fenced { .. })));
}

#[test]
fn an_adopter_leaves_what_the_owner_before_made_and_removes_its_own_leftovers() {
    let ground = create(3);
    let (mut log, mut chunks, mut next_name) = (Log::default(), Chunks::new(), 0);
    let store = opened(&ground, &log, &own(1, 4)).unwrap();
    fill(&store, &mut log, &mut next_name, &mut chunks);
    let kept = sealed(&store, &chunks);
    drop(store);
    let before = files(&ground, 1);
    ContainerStore::adopt(&ground, DIRECTORY, Owned { number: 1, epoch: 5 }).unwrap();
    assert!(matches!(opened(&ground, &log, &own(1, 4)), Err(StorageError::Fenced { .. })));
    // Its own log starts before every position in the headers of the earlier owner's containers, and names none of
    // them.
    let mut log = Log::default();
    let store = opened(&ground, &log, &own(1, 5)).unwrap();
    assert_eq!(files(&ground, 1), before);
    check(&store, &kept);
    let mut own_chunks = Chunks::new();
    fill(&store, &mut log, &mut next_name, &mut own_chunks);
    let last_of_other = chunks.keys().map(|address| address.container()).max().unwrap();
    assert!(own_chunks.keys().all(|address| address.container() > last_of_other), "no number is given out again");
    let committed = files(&ground, 1);
    // Containers that the adopter begins, and that get into no log.
    let mut writers: Vec<_> = (0..6).map(|_| store.writer()).collect();
    writers.iter_mut().for_each(|writer| append(writer, &mut next_name, &[900; 4], &mut Chunks::new()).unwrap());
    assert!(files(&ground, 1).len() > committed.len());
    drop((writers, store));
    let store = opened(&ground, &log, &own(1, 6)).unwrap();
    assert_eq!(files(&ground, 1), committed, "the leftovers are gone, and nothing else");
    check(&store, &kept);
    check(&store, &own_chunks);
}

#[test]
fn where_nobody_knows_whose_containers_are_nothing_is_removed_and_the_next_owner_is_known_again() {
    for damage in [Some(3), Some(8), Some(20), None] {
        let ground = create(3);
        let (mut log, mut chunks, mut next_name) = (Log::default(), Chunks::new(), 0);
        let store = opened(&ground, &log, &own(1, 4)).unwrap();
        fill(&store, &mut log, &mut next_name, &mut chunks);
        let mut writers: Vec<_> = (0..6).map(|_| store.writer()).collect();
        writers.iter_mut().for_each(|writer| append(writer, &mut next_name, &[900; 4], &mut Chunks::new()).unwrap());
        drop((writers, store));
        let before = files(&ground, 1);
        let owner = "owners/0001";
        match damage {
            Some(at) => ground.corrupt(owner, at, 1).unwrap(),
            None => ground.remove(owner).unwrap(),
        }
        let reader = open_owned(Arc::new(ground.clone()), &log, &own(1, 0), &small(), Access::Read).unwrap();
        assert!(reader.damaged_owners().unwrap()[0].contains(owner));
        check(&reader, &chunks);
        drop(reader);
        let store = opened(&ground, &log, &own(1, 5)).unwrap();
        assert_eq!((files(&ground, 1), store.damaged_owners().unwrap()), (before, vec![]));
        check(&store, &chunks);
        drop(store);
        assert!(matches!(opened(&ground, &log, &own(1, 4)), Err(StorageError::Fenced { stored_epoch: 5, .. })));
    }
}

#[test]
fn a_log_that_lost_its_end_is_refused_also_where_nobody_knows_whose_containers_are() {
    let ground = create(3);
    let (mut log, mut chunks, mut next_name) = (Log::default(), Chunks::new(), 0);
    let store = opened(&ground, &log, &own(1, 4)).unwrap();
    fill(&store, &mut log, &mut next_name, &mut chunks);
    let older = log.clone();
    fill(&store, &mut log, &mut next_name, &mut chunks);
    drop(store);
    ground.remove("owners/0001").unwrap();
    // Twice: the first opening must not make the second one believe it.
    for _ in 0..2 {
        assert!(matches!(opened(&ground, &older, &own(1, 5)), Err(StorageError::Log { .. })));
    }
    check(&opened(&ground, &log, &own(1, 5)).unwrap(), &chunks);
}
