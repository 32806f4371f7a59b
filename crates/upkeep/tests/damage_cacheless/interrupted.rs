//! Stores whose last process ended in the middle of bringing changes into the pages of the index, or while its table
//! grew: the journal counts, pages in place are torn, and there may be two tables. Then something is damaged as well.

use crate::actions::{actions, files, try_it};
use crate::scene::{BLOCK_BYTES, Scene, State, VOLUME, look, noise, open, settle};
use onefold_engine::{Engine, Mode};
use onefold_ground::CrashPolicy;
use onefold_volume::{Volumes, VolumesOptions};
use std::sync::Arc;

/// Kinds of journals.
const SWEEP_END: u32 = 1;
const GROWTH_END: u32 = 3;
/// So many interrupted stores of a kind are damaged: one for each policy of a crash.
const ENOUGH: usize = 3;

/// Returns the kind of the journal, if an opening will bring its pages in place.
fn journal_that_counts(scene: &Scene) -> Option<u32> {
    let (header, journal) = (scene.bytes("index/header"), scene.bytes("index/journal"));
    let u64_at = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // The slot with the greater sequence.
    let slot = header.chunks(4096).max_by_key(|slot| u64_at(slot, 32)).unwrap();
    let (step, journalled) = (u64_at(slot, 40), journal.get(..56).map(|head| u64_at(head, 48))?);
    (journalled == step + 1).then(|| u32::from_le_bytes(journal[16..20].try_into().unwrap()))
}

/// Writes to the volume of a scene, and returns the new state.
fn write(engine: &Arc<Engine>, state: &State, length: usize) -> State {
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let (volume, data) = (volumes.get(VOLUME).unwrap(), noise(78, length));
    volume.write(BLOCK_BYTES.into(), &data).unwrap();
    volume.flush().unwrap();
    let mut state = state.clone();
    state.volume[BLOCK_BYTES as usize..][..length].copy_from_slice(&data);
    state
}

/// Stops a store at this sync of its maintenance, with something to do. `None`: there are fewer.
fn stopped_at(scene: &Scene, length: usize, sync: u64) -> Option<Scene> {
    let ground = scene.copy();
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let state = write(&engine, scene.states.last().unwrap(), length);
    ground.crash_after_syncs(sync);
    if engine.maintain(true).is_ok() {
        return None;
    }
    drop(engine);
    let ground = ground.restart(match sync % 3 {
        0 => CrashPolicy::Random { seed: sync },
        1 => CrashPolicy::DropAll,
        _ => CrashPolicy::KeepAll,
    });
    settle(&ground);
    Some(Scene { ground, states: vec![state], older: scene.copy() })
}

/// Gives a store so much more, in each of these amounts, stops it wherever that leaves a journal of this kind whose
/// pages an opening brings in place, and damages it then.
fn damage_beside_journals(scene: &Scene, lengths: &[usize], wanted: u32) {
    let mut damaged = 0;
    let stopped = lengths.iter().flat_map(|length| (0..).map_while(|sync| stopped_at(scene, *length, sync)));
    for scene in stopped {
        let found = look(&scene.copy(), Mode::ReadOnly, scene.states.last().unwrap());
        assert!(!found.is_found() && found.agrees(scene.states.last().unwrap()), "{:?} {:?}", found.refused, found.report.problems);
        if journal_that_counts(&scene) != Some(wanted) || damaged == ENOUGH {
            continue;
        }
        damaged += 1;
        for path in files(&scene, |path| path.starts_with("index/")) {
            for action in actions(scene.length(&path), &[20, 50, 4096 + 20, 8192 + 100]) {
                try_it(&scene, &path, action);
            }
        }
    }
    assert!(damaged >= 2, "{damaged}");
}

#[test]
fn damage_in_the_middle_of_a_sweep_spoils_nothing() {
    damage_beside_journals(&Scene::new(), &[300_000], SWEEP_END);
}

#[test]
fn m1_13_damage_in_the_middle_of_growth_spoils_nothing() {
    damage_beside_journals(&Scene::new(), &[400_000, 430_000], GROWTH_END);
}
