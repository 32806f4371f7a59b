use actions::{Action, actions, all_found, all_harmless, files, try_it};
use onefold_engine::{Hints, Mode};
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_storage::Frame;
use onefold_upkeep::{NoMonitor, ProblemKind};
use scene::{Scene, look};
use std::sync::Arc;

/// Returns where the first frame of a container begins that has a needed chunk. Damage of other frames costs nothing,
/// and a check does not report it.
fn first_needed_frame(scene: &Scene, path: &str) -> u64 {
    let engine = scene::open(&scene.copy(), Mode::ReadOnly).unwrap();
    let storage = engine.containers().unwrap();
    let mut containers = storage.containers().unwrap().iter().collect::<Vec<_>>().into_iter();
    let container = containers.find(|container| path.ends_with(&format!("{:08x}", container.number()))).unwrap();
    let (catalog, dead) = (storage.catalog(container).unwrap(), engine.dead_slots(container).unwrap());
    let is_needed = |frame: &&Frame| (frame.first_slot..frame.first_slot + frame.slots).any(|slot| !dead.contains(slot as usize));
    catalog.frames.iter().find(is_needed).unwrap().offset_bytes.into()
}

#[test]
fn damage_of_a_sealed_container_is_found_wherever_it_is() {
    let scene = Scene::new();
    let sealed: Vec<String> =
        files(&scene, |path| path.starts_with("containers/") && scene.bytes(path).windows(8).any(|bytes| bytes == b"1FLDEND1"));
    let path = &sealed[0];
    let length = scene.length(path);
    let catalog = u64::from(u32::from_le_bytes(scene.bytes(path)[length as usize - 32..][..4].try_into().unwrap()));
    let places = [0, 17, 64, 64 + 5000, catalog - 1, catalog, catalog + 100, length - 40, length - 20, length - 1];
    all_found(&scene, path, actions(length, &places));
    // All others at fewer places.
    for path in &sealed[1..] {
        let needed = first_needed_frame(&scene, path);
        all_found(&scene, path, [Action::Flip(needed + 36), Action::Cut(scene.length(path) / 3), Action::Delete]);
    }
}

#[test]
fn m0_20_damage_of_merged_containers_and_their_forwards_is_found() {
    let scene = Scene::merged();
    for mode in [Mode::ReadOnly, Mode::ReadWrite] {
        let found = look(&scene.copy(), mode, scene.states.last().unwrap());
        assert!(!found.is_found(), "{:?} {:?}", found.refused, found.report.problems);
        assert!(found.agrees(scene.states.last().unwrap()));
        assert!(found.volume.iter().all(|(_, bytes)| bytes.is_some()));
    }
    let forwards = files(&scene, |path| path.ends_with(".forward"));
    assert!(forwards.len() >= 4, "{forwards:?}");
    for path in &forwards {
        all_found(&scene, path, actions(512, &[0, 17, 25, 50, 300, 511]));
    }
    // One that leads to another merged container.
    let other = forwards.iter().map(|path| scene.bytes(path)).find(|bytes| bytes[24..32] != scene.bytes(&forwards[0])[24..32]).unwrap();
    let ground = scene.copy();
    let mut bytes = scene.bytes(&forwards[0]);
    bytes[24..32].copy_from_slice(&other[24..32]);
    let sum = onefold_ground::checksum(&bytes[..48]);
    bytes[48..56].copy_from_slice(&sum.to_le_bytes());
    ground.open(&forwards[0], Access::ReadWrite).unwrap().write_at(0, &bytes).unwrap();
    let found = look(&ground, Mode::ReadOnly, scene.states.last().unwrap());
    assert!(found.has(ProblemKind::Container) && found.agrees(scene.states.last().unwrap()), "{:?}", found.report.problems);
    found.assert_named("another container");
    let merged = files(&scene, |path| path.starts_with("containers/") && !path.ends_with(".forward") && scene.bytes(path)[13] == 1);
    assert_eq!(merged.len(), 2);
    for path in &merged {
        let length = scene.length(path);
        all_found(&scene, path, actions(length, &[0, 13, 64, 64 + 5000, length - 200, length - 1]));
    }
}

#[test]
fn m0_20_the_chunk_index_is_made_anew_from_merged_containers() {
    let scene = Scene::merged();
    let ground = scene.copy();
    let problems = onefold_upkeep::rebuild_chunk_index(Arc::new(ground.clone()), scene::settings(), "test", &NoMonitor).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    let found = look(&ground, Mode::ReadWrite, scene.states.last().unwrap());
    assert!(!found.is_found() && found.agrees(scene.states.last().unwrap()), "{:?}", found.report.problems);
}

#[test]
fn a_rebuild_that_a_read_fails_under_ends_and_counts_nothing_too_low() {
    let scene = Scene::merged();
    let rebuild =
        |ground: &SimulatedGround| onefold_upkeep::rebuild_chunk_index(Arc::new(ground.clone()), scene::settings(), "test", &NoMonitor);
    let whole = scene.copy();
    let before = whole.reads();
    assert_eq!(rebuild(&whole).unwrap(), [] as [String; 0]);
    let reads = whole.reads() - before;
    let mut ended = 0;
    for read in (0..reads).step_by(1 + reads as usize / 150) {
        let ground = scene.copy();
        ground.fail_read(read, std::io::ErrorKind::Other);
        if rebuild(&ground).is_err() {
            ended += 1;
            continue;
        }
        let found = look(&ground, Mode::ReadOnly, scene.states.last().unwrap());
        let problems: Vec<_> = found.report.problems.iter().map(|problem| &problem.what).collect();
        assert!(!found.is_found(), "read {read} of {reads}: {:?} {problems:?}", found.refused);
    }
    assert!(ended > 10, "{ended} of {reads}");
}

#[test]
fn m0_20_data_that_is_in_merged_containers_is_found_there_and_not_stored_again() {
    let scene = Scene::merged();
    let engine = scene::open(&scene.copy(), Mode::ReadWrite).unwrap();
    let expected = &scene.states.last().unwrap().volume;
    let (mut stream, mut pieces) = (engine.stream(), Vec::new());
    for block in expected.chunks(scene::BLOCK_BYTES as usize) {
        stream.write(block, true, Hints::default(), &mut pieces).unwrap();
    }
    assert_eq!(stream.added_bytes(), 0);
    let mut read = vec![0; expected.len()];
    engine.read(&pieces, 0, &mut read, true).unwrap();
    assert!(read == *expected);
    // Most of them by what lies beside them in their container, merged or not.
    let found = engine.chain("container-cache,chunk-index").unwrap().statistics()[0].strong_maybe;
    assert!(found * 2 > pieces.len() as u64, "{found} of {} pieces", pieces.len());
}

#[test]
fn damage_of_an_open_container_is_found() {
    let scene = Scene::new();
    // One without frames has all its chunks in the log: its file may as well not be there.
    let has_frames = |bytes: &[u8]| bytes.len() > 4096 && bytes[64..4096].iter().any(|byte| *byte != 0);
    let open = scene.files().into_iter().filter(|path| {
        let is_sealed = || scene.bytes(path).windows(8).any(|bytes| bytes == b"1FLDEND1");
        path.starts_with("containers/") && has_frames(&scene.bytes(path)) && !is_sealed()
    });
    for path in open {
        all_found(&scene, &path, [Action::Flip(3), Action::Flip(100), Action::Cut(64), Action::Zero(64, 4000), Action::Delete]);
    }
}

#[test]
fn damage_of_index_pages_is_found_and_containers_are_still_checked() {
    let scene = Scene::new();
    if !PROFILE.is_exact() {
        // Hooks are advice.
        for path in files(&scene, |path| path.starts_with("hooks/")) {
            let length = scene.length(&path);
            all_harmless(&scene, &path, actions(length, &[0, 9, 20, 40, 65_536, 70_000, length - 100]));
        }
        return;
    }
    for path in files(&scene, |path| path.contains("/pages-")) {
        let length = scene.length(&path);
        all_found(&scene, &path, actions(length, &[0, 20, 40, 4096, length - 4096, length - 100]));
    }
    let path = &files(&scene, |path| path.contains("/pages-"))[0];
    let container = &files(&scene, |path| path.starts_with("containers/"))[0];
    let ground = scene.copy();
    Action::Flip(50).apply(&ground, path);
    Action::Flip(200).apply(&ground, container);
    let found = look(&ground, Mode::ReadOnly, scene.states.last().unwrap());
    assert!(found.has(ProblemKind::IndexPage) && found.has(ProblemKind::Container), "{:?}", found.report.problems);
    found.assert_named("page and container");
}

#[test]
fn one_slot_of_an_index_header_may_go_and_without_both_the_store_is_refused() {
    let scene = Scene::new();
    if !PROFILE.is_exact() {
        return;
    }
    for path in files(&scene, |path| path.starts_with("index/") && path.ends_with("/header")) {
        for action in [Action::Flip(10), Action::Flip(4096 + 10), Action::Zero(0, 4096), Action::Zero(4096, 4096)] {
            try_it(&scene, &path, action);
        }
        all_found(&scene, &path, [Action::Zero(0, 8192), Action::Cut(0), Action::Cut(100), Action::Delete]);
    }
}
