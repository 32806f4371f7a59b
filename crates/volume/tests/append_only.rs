//! What append-only mode lets nobody do with volumes, and what goes on.

use onefold_engine::{Descriptor, Engine, EngineError, Mode, Settings};
use onefold_ground::{Ground, SimulatedGround};
use onefold_volume::{VolumeError, Volumes, VolumesOptions};
use std::sync::Arc;

const BLOCK_BYTES: u32 = 64 << 10;

fn is_append_only(result: Result<(), VolumeError>) -> bool {
    matches!(result, Err(VolumeError::Engine(EngineError::AppendOnly { .. })))
}

#[test]
fn volumes_are_made_written_and_grown_but_neither_deleted_nor_made_smaller() {
    let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
    let engine = Engine::open(ground, Settings { background: false, ..Settings::default() }, Mode::ReadWrite, "test").unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let volume = volumes.create("old", 1 << 20, BLOCK_BYTES, None).unwrap();
    volume.write(1_000_000, b"tail").unwrap();
    engine.switch_append_only_on(b"open sesame").unwrap();

    assert!(is_append_only(volumes.delete("old")));
    assert!(is_append_only(volumes.resize("old", 1000)));
    volumes.snapshot("old", "moment").unwrap();
    assert!(is_append_only(volumes.rollback("old", "moment")));
    assert!(is_append_only(volumes.delete("moment")));
    assert_eq!(volume.size(), 1 << 20);
    volumes.resize("old", 1 << 20).unwrap();
    volumes.resize("old", 2 << 20).unwrap();
    volume.write(0, b"head").unwrap();
    volumes.create("new", 1 << 20, BLOCK_BYTES, None).unwrap().write(0, b"new").unwrap();
    volumes.flush().unwrap();
    let mut found = [0; 4];
    volume.read(1_000_000, &mut found).unwrap();
    assert_eq!(&found, b"tail");

    engine.switch_append_only_off(b"open sesame").unwrap();
    volumes.resize("old", 1000).unwrap();
    volumes.delete("new").unwrap();
}
