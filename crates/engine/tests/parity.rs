//! Unreadable data is rebuilt from parity, or read through it where nothing may be written.

mod common;

use common::{DEFAULT_CHAIN, bytes, descriptor, files, open, read, settings, store, try_open, write};
use onefold_engine::{ContainerId, Mode, Piece, Rebuild, Settings};
use onefold_ground::{Ground, SimulatedGround};
use std::sync::Arc;

fn with_parity() -> Settings {
    Settings { parity_group: 4, ..settings(DEFAULT_CHAIN) }
}

/// Returns a closed store with a mebibyte, all of whose sealed containers have parity.
fn filled() -> (SimulatedGround, Vec<u8>, Vec<Piece>) {
    let ground = store(&descriptor());
    let engine = open(&ground, with_parity());
    let data = bytes(1, 1 << 20);
    let mut stream = engine.stream();
    let pieces = write(&mut stream, &data, 1 << 16);
    drop(stream);
    engine.flush().unwrap();
    assert!(engine.make_parity(true, &|| true).unwrap() > 0);
    engine.close().unwrap();
    (ground, data, pieces)
}

/// Returns the container of a chunk that was never merged.
fn container(pieces: &[Piece], at: usize) -> ContainerId {
    let Piece::Chunk { address, .. } = pieces[at] else { panic!("these are no zeros") };
    ContainerId::from_bits(address.bits() >> 16)
}

fn path(container: ContainerId) -> String {
    format!("containers/{:04x}/{:05x}/{:08x}", container.partition(), container.number() >> 12, container.number())
}

#[test]
fn a_read_that_the_device_refuses_is_answered_from_parity() {
    let (ground, data, pieces) = filled();
    let engine = open(&ground, with_parity());
    ground.make_unreadable(&path(container(&pieces, 0))).unwrap();
    assert!(read(&engine, &pieces).unwrap() == data);
    assert_eq!(engine.repaired_containers(), 1);
}

#[test]
fn a_short_read_of_a_damaged_chunk_repairs_it_and_damage_beside_it_does_not_disturb() {
    let (ground, data, pieces) = filled();
    let at = pieces.len() / 2;
    let start = pieces[..at].iter().map(Piece::length).sum::<u64>() as usize;
    let Piece::Chunk { address, .. } = pieces[at] else { panic!("these are no zeros") };
    let engine = open(&ground, with_parity());
    let catalog = engine.containers().unwrap().catalog(container(&pieces, at)).unwrap();
    let slot = catalog.slots[usize::from(address.bits() as u16)];
    let frame = &catalog.frames[usize::from(slot.frame)];
    let offset = u64::from(frame.offset_bytes + slot.offset_bytes);
    // Another chunk of the same frame.
    let beside = (0..pieces.len()).find(|other| {
        let Piece::Chunk { address: other, .. } = pieces[*other] else { return false };
        let first = u64::from(frame.first_slot);
        other != address
            && other.bits() >> 16 == address.bits() >> 16
            && (first..first + u64::from(frame.slots)).contains(&(other.bits() & 0xffff))
    });
    let beside = beside.expect("a frame has several chunks");
    drop(engine);
    ground.corrupt(&path(container(&pieces, at)), offset, 1).unwrap();
    let piece = |engine: &onefold_engine::Engine, at: usize| {
        let mut out = vec![0; pieces[at].length() as usize];
        engine.read(&pieces[at..=at], 0, &mut out, false).map(|()| out)
    };
    let beside_start = pieces[..beside].iter().map(Piece::length).sum::<u64>() as usize;
    let engine = open(&ground, with_parity());
    assert!(piece(&engine, beside).unwrap() == data[beside_start..][..pieces[beside].length() as usize]);
    assert_eq!(engine.repaired_containers(), 0);
    drop(engine);
    let engine = open(&ground, with_parity());
    assert!(piece(&engine, at).unwrap() == data[start..][..pieces[at].length() as usize]);
    assert_eq!(engine.repaired_containers(), 1);
    assert!(read(&engine, &pieces).unwrap() == data);
}

#[test]
fn who_only_reads_has_what_is_damaged_or_lost_through_parity_and_changes_nothing() {
    let (ground, data, pieces) = filled();
    let (rotten, lost) = (container(&pieces, 0), container(&pieces, pieces.len() / 2));
    assert_ne!(rotten, lost);
    // The header, the middle, the catalog.
    let length = ground.open(&path(rotten), onefold_ground::Access::Read).unwrap().len().unwrap();
    for offset in [3, length / 2, length - 200] {
        ground.corrupt(&path(rotten), offset, 0x40).unwrap();
    }
    let engine = try_open(&ground, with_parity(), Mode::ReadOnly).unwrap();
    assert!(engine.containers().unwrap().is_repairable(rotten).unwrap());
    assert!(read(&engine, &pieces).unwrap() == data);
    drop(engine);
    ground.remove(&path(lost)).unwrap();
    let before = files(&ground, "containers");
    let engine = try_open(&ground, with_parity(), Mode::ReadOnly).unwrap();
    // They are in two groups: in a single group, parity would restore only one of them.
    assert!(read(&engine, &pieces).unwrap() == data);
    assert!(files(&ground, "containers") == before);
}

#[test]
fn m0_13_an_index_that_is_made_anew_has_the_chunks_of_containers_that_parity_gives_back() {
    let (ground, data, pieces) = filled();
    let (rotten, lost) = (container(&pieces, 0), container(&pieces, pieces.len() - 200));
    assert_ne!(rotten, lost);
    let length = ground.open(&path(rotten), onefold_ground::Access::Read).unwrap().len().unwrap();
    let whole = files(&ground, "containers");
    for damage in [true, false] {
        if damage {
            ground.corrupt(&path(rotten), length - 200, 0x40).unwrap();
        } else {
            ground.remove(&path(lost)).unwrap();
        }
        let mut damaged = Vec::new();
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        let rebuild = Rebuild::start(shared, with_parity(), "test", &mut |what| damaged.push(what)).unwrap();
        assert_eq!(damaged, Vec::<String>::new());
        rebuild.finish().unwrap();
        assert!(files(&ground, "containers") == whole, "they are what they were");
        let engine = open(&ground, with_parity());
        for piece in &pieces {
            let Piece::Chunk { fingerprint, address, .. } = piece else { continue };
            assert_eq!(engine.locate(fingerprint).unwrap(), Some(*address));
        }
        assert!(read(&engine, &pieces).unwrap() == data);
        engine.close().unwrap();
    }
}
