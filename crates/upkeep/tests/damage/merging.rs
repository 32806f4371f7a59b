//! Merging the containers of a store that nobody has open, as an engine would.

use crate::scene::{open, settings};
use onefold_engine::{Descriptor, Mode};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_oplog::{Log, LogOptions, Opening, Ownership, PartitionClass, Position, SegmentLog};
use onefold_storage::{Address, ContainerId, ContainerStore, StorageOptions};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Merges two sealed containers into one: the newest ones but `skip`. Returns the end of the log.
pub fn merge(ground: &SimulatedGround, skip: usize) -> Position {
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let descriptor = Descriptor::read(&*shared).unwrap();
    // All chunks that the index has stay: what is stored twice goes. Without an index, all that are alive stay.
    let mut indexed: HashMap<Fingerprint, u64> = HashMap::new();
    let mut alive: HashSet<Address> = HashSet::new();
    let engine = open(ground, Mode::ReadOnly).unwrap();
    for container in engine.containers().unwrap().containers().unwrap().iter() {
        let (Ok(slots), dead) = (engine.containers().unwrap().slots(container), engine.dead_slots(container).unwrap()) else { continue };
        alive.extend(slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number)).map(|(_, (address, _))| *address));
    }
    for partition in 0..engine.index_partitions() as u32 {
        let visit = &mut |fingerprint: &Fingerprint, entry: onefold_index::IndexEntry| {
            indexed.insert(*fingerprint, entry.address);
            Ok(())
        };
        engine.index().unwrap().for_each(partition, visit).unwrap();
    }
    drop(engine);
    let owner = onefold_ground::read_file(ground, "owner", 16).unwrap();
    let epoch = u64::from_le_bytes(owner[..8].try_into().unwrap());
    let options = LogOptions { segment_bytes: settings().log_segment_bytes, limit_bytes: settings().log_limit_bytes };
    let log = SegmentLog::open(shared.clone(), "log", descriptor.store, options, Opening::ReadWrite { epoch }).unwrap();
    let options = StorageOptions {
        container_bytes: descriptor.container_bytes,
        frame_bytes: descriptor.frame_bytes,
        compression: descriptor.compression,
        sequential_frame_bytes: descriptor.sequential_frame_bytes,
        sequential_compression: descriptor.sequential_compression,
        store: descriptor.store,
        ..StorageOptions::default()
    };
    let profile = Arc::new(Profile::default());
    let store = ContainerStore::open(shared, "containers", &Ownership::all(1, epoch), options, Access::ReadWrite, profile).unwrap();
    log.replay(log.start(), &mut |start, _, records| {
        for record in records.iter().filter(|record| record.partition.class == PartitionClass::Container) {
            store.replay(start, record).unwrap();
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    store.recovered(log.start(), log.end()).unwrap();
    let sealed: Vec<ContainerId> = store.containers().unwrap().iter().filter(|id| store.is_sealed(*id)).collect();
    let victims: Vec<ContainerId> = sealed.into_iter().rev().skip(skip).take(2).collect();
    assert_eq!(victims.len(), 2);
    let slots = victims.iter().flat_map(|victim| store.slots(*victim).unwrap());
    let live: Vec<(Address, Fingerprint)> = slots
        .filter(|(address, slot)| match descriptor.profile.is_exact() {
            true => indexed.get(&slot.fingerprint) == Some(&address.bits()),
            false => alive.contains(address),
        })
        .map(|(address, slot)| (address, slot.fingerprint))
        .collect();
    let merge = store.merge(&victims, &live).unwrap();
    let (start, end) = log.commit(&[merge.record()]).unwrap();
    store.merged(merge, start, end);
    assert!(!store.has_pending_merges());
    end
}
