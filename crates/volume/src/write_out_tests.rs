//! Writing out: what it leaves when the store refuses a transaction, and what is durable then.

use crate::testing::TestStore;
use crate::tests::{BLOCK, bytes, options, read};
use crate::{Volume, VolumeError};
use onefold_engine::Transaction;

/// Fills the queue of transactions, so that the next one makes its submitter flush.
fn fill_queue(store: &mut TestStore) {
    let limit_bytes = (16 << 20) / 4;
    let (key, overhead_bytes) = (b"zz".to_vec(), 64 + 2);
    let change = (0, key, Some(vec![1; limit_bytes - overhead_bytes + 1]));
    store.engine().unwrap().submit(Transaction { changes: vec![change], references: Vec::new() }).unwrap();
}

fn is_full(error: &VolumeError) -> bool {
    matches!(error, VolumeError::Engine(error) if error.is_full())
}

/// Writes `data` to a block while the disk is full and the queue too, then has it written out again when there is room.
fn write_out_twice(store: &mut TestStore, volume: &Volume, data: &[u8]) {
    fill_queue(store);
    volume.write(0, data).unwrap();
    store.ground.set_capacity(store.ground.used_bytes());
    let error = volume.write_out(&[0]).unwrap_err();
    assert!(is_full(&error), "{error}");
    store.ground.set_capacity(1 << 40);
    volume.flush().unwrap();
    assert!(read(volume, 0, BLOCK as usize) == data);
}

#[test]
fn a_mapping_whose_submission_failed_is_counted_once_when_it_is_written_out_again() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", 4 * u64::from(BLOCK), BLOCK, None).unwrap();
    // A mapping where there was none, then one in place of another.
    for seed in [1, 2] {
        write_out_twice(&mut store, &volume, &bytes(seed, BLOCK as usize));
        store.check_counts(&[("disk", &volume)]);
    }
}

#[test]
fn a_durable_write_survives_a_power_failure_and_no_flush_is_needed() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", 4 * u64::from(BLOCK), BLOCK, None).unwrap();
    let data = bytes(1, 9000);
    volume.write_durable(1234, &data).unwrap();
    drop((volume, volumes));
    store.reopen();
    let volume = store.volumes(options()).get("disk").unwrap();
    assert!(read(&volume, 1234, data.len()) == data);
}
