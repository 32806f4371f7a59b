//! Pages whose last write the device lost: each is whole, and older than the others. So are blocks.

use crate::actions::{files, try_change};
use crate::scene::{BLOCK_BYTES, Scene, VOLUME, VOLUME_BYTES, look, noise, open, settle};
use crate::{BLOCKS, PAGE_BYTES};
use onefold_engine::Mode;
use onefold_ground::{Access, CrashPolicy, Ground};
use onefold_upkeep::{NoMonitor, PruneOptions, prune};
use onefold_volume::{Volumes, VolumesOptions};

/// Returns the store after more writes and removals, all of them in pages.
fn written_on(scene: &Scene) -> Scene {
    let ground = scene.copy();
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let mut state = scene.states.last().unwrap().clone();
    // Freed blocks are given to others.
    for seed in [88, 89] {
        let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
        let (volume, data) = (volumes.get(VOLUME).unwrap(), noise(seed, VOLUME_BYTES as usize / 2));
        volume.write(BLOCK_BYTES.into(), &data).unwrap();
        volume.flush().unwrap();
        state.volume[BLOCK_BYTES as usize..][..data.len()].copy_from_slice(&data);
        prune(&engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
        engine.maintain(true).unwrap();
    }
    drop(engine);
    let ground = ground.restart(CrashPolicy::KeepAll);
    settle(&ground);
    Scene { ground, states: [scene.states.clone(), vec![state]].concat(), older: scene.copy() }
}

#[test]
fn m1_2_m1_5_a_page_or_a_block_whose_last_write_was_lost_is_found() {
    let scene = written_on(&Scene::new());
    let clean = look(&scene.copy(), Mode::ReadOnly, scene.states.last().unwrap());
    assert!(!clean.is_found() && clean.agrees(scene.states.last().unwrap()), "{:?}", clean.report.problems);
    let is_of_pages = |path: &str| path.starts_with("index/slots-") || path == "index/blocks" || path == "index/units";
    for path in files(&scene, |path| is_of_pages(path) || path == "index/header" || path == BLOCKS) {
        if !scene.older.exists(&path).unwrap() {
            continue;
        }
        let (old, new) = (onefold_ground::read_file(&scene.older, &path, 1 << 30).unwrap(), scene.bytes(&path));
        let mut stale = 0;
        for (page, (old, new)) in old.chunks_exact(PAGE_BYTES as usize).zip(new.chunks_exact(PAGE_BYTES as usize)).enumerate() {
            // A block of zeros was never written.
            if old == new || new.iter().all(|byte| *byte == 0) {
                continue;
            }
            stale += 1;
            if path == BLOCKS && stale % 3 != 0 {
                continue;
            }
            let found = try_change(&scene, &path, &format!("page {page} is stale"), &|ground| {
                ground.open(&path, Access::ReadWrite).unwrap().write_at(page as u64 * PAGE_BYTES, old).unwrap();
            });
            // Without the newer one, the older slot of a header counts.
            assert!(found.is_found() || path == "index/header", "{path}: stale page {page} is not found");
        }
        assert!(stale > 0, "{path}");
    }
}
