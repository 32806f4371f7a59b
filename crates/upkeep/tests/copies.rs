//! What was captured of a volume stays as long as somebody holds it, whatever becomes of the volume and however much is
//! removed and merged.

use onefold_engine::{Descriptor, Engine, Mode, Settings};
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_upkeep::{CheckOptions, NoMonitor, PruneOptions, check, prune, remove_unused};
use onefold_volume::{Volumes, VolumesOptions};
use std::cell::Cell;
use std::sync::Arc;

const BLOCK: u32 = 64 << 10;
const BLOCKS: u64 = 12;

fn open(ground: &SimulatedGround) -> (Arc<Engine>, Volumes) {
    let settings = Settings { background: false, ..Settings::default() };
    let engine = Engine::open(Arc::new(ground.clone()), settings, Mode::ReadWrite, "test").unwrap();
    (engine.clone(), Volumes::open(engine, VolumesOptions::default()).unwrap())
}

fn noise(mut seed: u64, length: usize) -> Vec<u8> {
    let next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

#[test]
fn m0_19_what_is_captured_outlives_its_volume_and_keeps_removal_waiting() {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    Engine::create(&shared, &Descriptor { container_bytes: 1 << 20, ..Descriptor::new().unwrap() }).unwrap();
    let (engine, volumes) = open(&ground);
    let size = BLOCKS * u64::from(BLOCK);
    let data = noise(7, size as usize);
    let source = volumes.create("source", size, BLOCK, None).unwrap();
    source.write(0, &data).unwrap();
    volumes.flush().unwrap();
    let content = source.capture(0, size).unwrap();
    volumes.delete("source").unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    // Everything is unused now, and nothing of it goes.
    let looks = Cell::new(5);
    let go_on = || {
        looks.set(looks.get() - 1);
        looks.get() > 0
    };
    let removed = remove_unused(&engine, &NoMonitor, &go_on).unwrap();
    assert!(!removed.is_complete);
    let target = volumes.create("target", size, BLOCK, None).unwrap();
    // The first half where its blocks were, the rest between blocks.
    let half = size / 2;
    target.place(0, &content, 0, half).unwrap();
    target.place(half, &content, half + 1000, half - 1000).unwrap();
    drop(content);
    let options = PruneOptions { max_unused: 0.0, ..PruneOptions::default() };
    let report = prune(&engine, options, &NoMonitor, &|| true).unwrap();
    assert!(report.is_complete && report.problems.is_empty(), "{:?}", report.problems);
    volumes.flush().unwrap();
    drop((target, volumes));
    assert!(check(&engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap().is_clean());
    drop(engine);
    // And all of it is durable.
    let (engine, volumes) = open(&ground.restart(CrashPolicy::DropAll));
    let mut found = vec![0; size as usize];
    volumes.get("target").unwrap().read(0, &mut found).unwrap();
    let half = half as usize;
    assert!(found[..half] == data[..half] && found[half..size as usize - 1000] == data[half + 1000..]);
    assert!(found[size as usize - 1000..].iter().all(|byte| *byte == 0));
    assert!(check(&engine, CheckOptions::default(), &NoMonitor).unwrap().is_clean());
}
