//! Stores of profile `sampled` (M3.*).

mod common;

use common::{DEFAULT_CHAIN, bytes, descriptor, open, read, settings, store, try_open, write};
use onefold_engine::{CachePolicy, Descriptor, Mode, Settings, StoreProfile};

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

#[test]
fn m3_6_every_policy_finds_what_comes_back_in_every_profile_and_stays_within_its_memory() {
    let data = bytes(2, 2 << 20);
    for profile in StoreProfile::ALL.into_iter().filter(|profile| profile.has_containers()) {
        for catalog_cache_policy in CachePolicy::ALL {
            for catalog_cache_bytes in [0, 8 << 10, 64 << 10, 1 << 20] {
                let ground = store(&Descriptor { profile, ..descriptor() });
                let settings = || Settings { catalog_cache_bytes, catalog_cache_policy, ..settings(DEFAULT_CHAIN) };
                let engine = open(&ground, settings());
                let pieces = write(&mut engine.stream(), &data, 16 << 10);
                engine.close().unwrap();
                drop(engine);
                let engine = open(&ground, settings());
                // Hooks of earlier openings.
                engine.maintain(true).unwrap();
                let before = engine.unique_bytes();
                for _ in 0..3 {
                    let again = write(&mut engine.stream(), &data, 16 << 10);
                    assert!(profile == StoreProfile::Sampled || again == pieces);
                    assert!(read(&engine, &again).unwrap() == data);
                    let used_bytes = engine.containers().unwrap().statistics().catalog_cache_bytes;
                    assert!(
                        used_bytes <= catalog_cache_bytes as u64,
                        "{used_bytes} of {catalog_cache_bytes} bytes, {catalog_cache_policy}"
                    );
                }
                engine.flush().unwrap();
                let stored_again = engine.unique_bytes() - before;
                assert_eq!(stored_again, 0, "{profile}, {catalog_cache_policy}, {catalog_cache_bytes} bytes");
            }
        }
    }
}

#[test]
fn m3_6_a_stream_that_runs_on_in_order_finds_what_has_no_hook_in_the_next_container() {
    let data = bytes(3, 2 << 20);
    let ground = store(&Descriptor { profile: StoreProfile::Sampled, ..descriptor() });
    // Little more than a hook for each of 32 containers of 60 chunks.
    let settings = || Settings { sampled_index_bytes: 512, ..settings(DEFAULT_CHAIN) };
    let engine = open(&ground, settings());
    write(&mut engine.stream(), &data, 16 << 10);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&ground, settings());
    engine.maintain(true).unwrap();
    let before = engine.unique_bytes();
    write(&mut engine.stream(), &data, 16 << 10);
    engine.flush().unwrap();
    let stored_again = engine.unique_bytes() - before;
    assert!(stored_again < data.len() as u64 / 50, "{stored_again} bytes are stored again");
    let containers = engine.statistics().unwrap().containers;
    assert!(engine.statistics().unwrap().sampled_hooks < 4 * containers, "most chunks have no hook");
}
