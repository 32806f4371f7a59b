//! Stores of profile `sampled` (M3.*).

mod common;

use common::{DEFAULT_CHAIN, bytes, descriptor, open, settings, store, try_open, write};
use onefold_engine::{Descriptor, Mode, Settings, StoreProfile};

#[test]
fn m3_5_a_store_with_more_containers_than_hooks_opens_for_writing_with_more_memory() {
    let ground = store(&Descriptor { profile: StoreProfile::Sampled, capacity_bytes: Some(1 << 20), ..descriptor() });
    let with =
        |sampled_index_bytes, hooks_each_container| Settings { sampled_index_bytes, hooks_each_container, ..settings(DEFAULT_CHAIN) };
    let engine = open(&ground, with(128, true));
    assert_eq!(engine.exceeded_capacity(), None);
    let mut stream = engine.stream();
    write(&mut stream, &bytes(1, 2 << 20), 64 << 10);
    drop(stream);
    engine.flush().unwrap();
    assert_eq!(engine.exceeded_capacity(), Some(1 << 20));
    engine.close().unwrap();
    drop(engine);
    // Thirty containers: 18 have room in the two smallest buckets.
    let error = try_open(&ground, with(128, true), Mode::ReadWrite).unwrap_err().to_string();
    assert!(error.contains("memory.sampled_index: 128B is too small") && error.ends_with("at least 64KiB"), "{error}");
    try_open(&ground, with(128, true), Mode::ReadOnly).unwrap();
    open(&ground, with(64 << 10, true));
    open(&ground, with(128, false));
}
