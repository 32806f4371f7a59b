//! Containers that keep places and checksums of user data, but no bytes.

mod common;

use common::{DIRECTORY, Log, content, fingerprint, flush, open, options};
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_storage::{Address, ChunkKind, Compression, ContainerStore, NewChunk, Scope, StorageError, StorageOptions};
use std::sync::Arc;

fn discarding(compression: Compression) -> StorageOptions {
    StorageOptions { compression, workers: 1, discards_data: true, frame_cache_bytes: 0, ..options() }
}

/// Appends chunks of 700 bytes with these names. Every twentieth is metadata if `metadata` is set. Returns the chunks
/// with their addresses.
fn append(store: &Arc<ContainerStore>, names: std::ops::Range<u64>, metadata: bool) -> Vec<(Address, u64, ChunkKind)> {
    let mut writer = store.writer();
    let append_one = |name: u64| {
        let kind = if metadata && name.is_multiple_of(20) { ChunkKind::Recipe } else { ChunkKind::Data };
        let address = writer.append(&[NewChunk { fingerprint: fingerprint(name), kind, data: &content(name, 700) }]).unwrap()[0];
        (address, name, kind)
    };
    names.map(append_one).collect()
}

#[test]
fn frames_with_metadata_are_kept_others_are_damage_and_never_wrong_bytes() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1)] {
        let ground = SimulatedGround::new(1);
        ContainerStore::create(&ground, DIRECTORY, 1).unwrap();
        let ground: Arc<dyn Ground> = Arc::new(ground);
        let mut log = Log::default();
        let store = open(ground.clone(), &log, 1, &discarding(compression), Access::ReadWrite).unwrap();
        let chunks = append(&store, 1..400, true);
        flush(&store, &mut log, Scope::Everything).unwrap();
        let (mut kept, mut lost) = (0, 0);
        for (address, name, kind) in &chunks {
            let mut slices = Vec::new();
            match store.load(&[(*address, fingerprint(*name))], &mut slices) {
                Ok(()) => {
                    assert_eq!(&slices[0][..], content(*name, 700));
                    kept += 1;
                }
                Err(error) => {
                    assert!(matches!(error, StorageError::Damaged { frame: Some(_), .. }) && *kind == ChunkKind::Data, "{error}");
                    lost += 1;
                }
            }
        }
        assert!(kept > 19 && lost > 200, "{compression}: {kept} chunks are there, {lost} are not");
        // Header, catalog and footer are sound; each frame without data is reported.
        for container in store.containers().unwrap().iter() {
            assert_eq!(store.verify_container(container, false, None).unwrap().damage.len(), 0);
            let report = store.verify_container(container, true, None).unwrap();
            assert!(report.damage.len() as u64 <= report.frames && report.damage.iter().all(StorageError::is_damage));
        }
    }
}

/// An unsealed container is continued behind what the log names, although there may be no byte at its end.
#[test]
fn containers_are_continued_and_sealed_after_restarts() {
    let ground = SimulatedGround::new(1);
    ContainerStore::create(&ground, DIRECTORY, 1).unwrap();
    let ground: Arc<dyn Ground> = Arc::new(ground);
    let mut log = Log::default();
    let mut chunks = Vec::new();
    for round in 0..30 {
        let store = open(ground.clone(), &log, 1, &discarding(Compression::None), Access::ReadWrite).unwrap();
        chunks.extend(append(&store, 10 * round + 1..10 * round + 11, false));
        let scope = if round % 3 == 0 { Scope::FullFrames } else { Scope::Everything };
        flush(&store, &mut log, scope).unwrap();
        if round % 3 == 0 {
            // The content of the open frame is lost with the process.
            let committed = store.committed_slots();
            chunks.retain(|(address, ..)| committed.includes(*address));
        }
    }
    let store = open(ground, &log, 1, &discarding(Compression::None), Access::ReadWrite).unwrap();
    assert!(store.containers().unwrap().len() > 4);
    for (address, name, _) in &chunks {
        let slots = store.slots_beside(*address).unwrap().1;
        let found = slots.iter().find(|(found, _)| found == address).unwrap();
        assert_eq!(found.1.fingerprint, fingerprint(*name));
    }
    for container in store.containers().unwrap().iter() {
        assert_eq!(store.verify_container(container, false, None).unwrap().damage.len(), 0);
    }
}
