//! Writing out: what it leaves when the store refuses a transaction, and what is durable then.

use crate::disks::{BLOCK, create, options, read};
use crate::testing::TestStore;
use crate::testing::bytes;
use crate::{At, Space, SpaceError};
use onefold_engine::Transaction;

/// Fills the queue of transactions, so that the next one makes its submitter flush.
fn fill_queue(store: &mut TestStore) {
    let limit_bytes = (16 << 20) / 4;
    let (key, overhead_bytes) = (b"zz".to_vec(), 64 + 2);
    let change = (0, key, Some(vec![1; limit_bytes - overhead_bytes + 1]));
    store.engine().unwrap().submit(Transaction { changes: vec![change], references: Vec::new() }).unwrap();
}

fn is_full(error: &SpaceError) -> bool {
    matches!(error, SpaceError::Engine(error) if error.is_full())
}

/// Writes `data` to a block while the disk is full and the queue too, then has it written out again when there is room.
fn write_out_twice(store: &mut TestStore, space: &Space, data: &[u8]) {
    fill_queue(store);
    space.write(At::byte(0), data).unwrap();
    store.ground.set_capacity(store.ground.used_bytes());
    let error = space.write_out(&[0]).unwrap_err();
    assert!(is_full(&error), "{error}");
    store.ground.set_capacity(1 << 40);
    space.flush().unwrap();
    assert!(read(space, 0, BLOCK as usize) == data);
}

#[test]
fn a_mapping_whose_submission_failed_is_counted_once_when_it_is_written_out_again() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let space = create(&spaces, "disk", 4 * u64::from(BLOCK), BLOCK).unwrap();
    // A mapping where there was none, then one in place of another.
    for seed in [1, 2] {
        write_out_twice(&mut store, &space, &bytes(seed, BLOCK as usize));
        store.check_counts(&[&space]);
    }
}
