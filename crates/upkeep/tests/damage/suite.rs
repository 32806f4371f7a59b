use onefold_engine::{Hints, Mode};
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_storage::Frame;
use onefold_upkeep::{NoMonitor, ProblemKind};
use scene::{Look, Scene, look, settings};
use std::sync::Arc;

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Action {
    Flip(u64),
    Zero(u64, u64),
    Cut(u64),
    Delete,
}

impl Action {
    fn apply(self, ground: &SimulatedGround, path: &str) {
        match self {
            Action::Flip(at) => ground.corrupt(path, at, 0x20).unwrap(),
            Action::Zero(at, length) => {
                ground.open(path, Access::ReadWrite).unwrap().write_at(at, &vec![0; length as usize]).unwrap();
            }
            Action::Cut(length) => ground.open(path, Access::ReadWrite).unwrap().set_len(length).unwrap(),
            Action::Delete => ground.remove(path).unwrap(),
        }
    }
}

/// The usual changes of a file of `length` bytes: flips and zeros at `places`, all cuts, nothing left.
fn actions(length: u64, places: &[u64]) -> Vec<Action> {
    let mut actions: Vec<Action> = places.iter().filter(|at| **at < length).map(|at| Action::Flip(*at)).collect();
    actions.extend(places.iter().filter(|at| *at + 64 <= length).map(|at| Action::Zero(*at, 64)));
    actions.extend([
        Action::Cut(0),
        Action::Cut(length / 2),
        Action::Cut(length.saturating_sub(1)),
        Action::Zero(0, length),
        Action::Delete,
    ]);
    actions
}

/// Damages a copy, looks at it for reading and for writing, and holds what must always hold. Returns the look for
/// reading.
fn try_it(scene: &Scene, path: &str, action: Action) -> Look {
    let what = format!("{path} {action:?}");
    let expected = scene.states.last().unwrap();
    let mut first = None;
    for mode in [Mode::ReadOnly, Mode::ReadWrite] {
        let ground = scene.copy();
        action.apply(&ground, path);
        let found = look(&ground, mode, expected);
        let state = scene.states.iter().rposition(|state| found.agrees(state));
        // Only the log may lose its end, and then the store is what it was before.
        let allowed = if path.starts_with("log/") { 0 } else { scene.states.len() - 1 };
        assert!(state.is_some_and(|state| state >= allowed), "{what} {mode:?}: wrong content, state {state:?}");
        if let Some(error) = &found.refused {
            let part = path.split('/').next().unwrap();
            assert!(error.contains(path) || error.contains(part), "{what} {mode:?}: the error does not say where: {error}");
        }
        found.assert_named(&what);
        first.get_or_insert(found);
    }
    first.unwrap()
}

/// Tries all actions that change something and requires that each is found.
fn all_found(scene: &Scene, path: &str, actions: impl IntoIterator<Item = Action>) {
    let bytes = scene.bytes(path);
    let changes = |action: &Action| match *action {
        Action::Zero(at, length) => bytes[at as usize..][..length as usize].iter().any(|byte| *byte != 0),
        Action::Cut(length) => length < bytes.len() as u64,
        Action::Flip(_) | Action::Delete => true,
    };
    for action in actions.into_iter().filter(changes) {
        assert!(try_it(scene, path, action).is_found(), "{path} {action:?}: not found");
    }
}

/// Tries all actions and requires that none of them is felt.
fn all_harmless(scene: &Scene, path: &str, actions: impl IntoIterator<Item = Action>) {
    for action in actions {
        let found = try_it(scene, path, action);
        let problems: Vec<_> = found.report.problems.iter().map(|problem| &problem.what).collect();
        assert!(!found.is_found(), "{path} {action:?}: {:?} {problems:?}", found.refused);
        assert!(found.agrees(scene.states.last().unwrap()), "{path} {action:?}");
    }
}

fn files(scene: &Scene, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let files: Vec<String> = scene.files().into_iter().filter(|path| wanted(path)).collect();
    assert!(!files.is_empty());
    files
}

#[test]
fn a_store_without_damage_is_clean_in_both_modes() {
    let scene = Scene::new();
    for mode in [Mode::ReadOnly, Mode::ReadWrite] {
        let found = look(&scene.copy(), mode, scene.states.last().unwrap());
        assert!(!found.is_found(), "{:?} {:?}", found.refused, found.report.problems);
        assert!(found.agrees(scene.states.last().unwrap()));
        assert!(found.volume.iter().all(|(_, bytes)| bytes.is_some()));
        assert!(found.backups.unwrap().values().flatten().all(|(_, bytes)| bytes.is_some()));
    }
}

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

#[test]
fn what_only_helps_may_be_damaged() {
    let scene = Scene::new();
    if !PROFILE.is_exact() {
        return;
    }
    for path in files(&scene, |path| path.ends_with("/journal") || path.ends_with("/filter") || path.ends_with(".spare") || path == "lock")
    {
        let length = scene.length(&path);
        if length > 0 {
            all_harmless(&scene, &path, [Action::Flip(0), Action::Flip(length / 2), Action::Zero(0, length)]);
        }
        all_harmless(&scene, &path, [Action::Cut(0)]);
        if !path.ends_with("/journal") {
            all_harmless(&scene, &path, [Action::Delete]);
        } else {
            try_it(&scene, &path, Action::Delete);
        }
    }
}

#[test]
fn damage_in_the_log_is_found_and_a_lost_end_leaves_an_older_state() {
    let scene = Scene::new();
    for path in files(&scene, |path| path.ends_with(".log")) {
        let length = scene.length(&path);
        for action in [Action::Cut(0), Action::Cut(100), Action::Cut(4096), Action::Zero(0, length), Action::Delete] {
            try_it(&scene, &path, action);
        }
        all_found(&scene, &path, [Action::Flip(3), Action::Flip(30), Action::Zero(0, 64)]);
        // The first segment is that of the settings of `init`, and has room that was never written to.
        for at in (4096..length.min(settings().log_segment_bytes)).step_by(3000) {
            try_it(&scene, &path, Action::Flip(at));
            try_it(&scene, &path, Action::Zero(at / 512 * 512, 512));
        }
    }
    // The first batch of the first segment has durable ones behind it.
    all_found(&scene, &files(&scene, |path| path.ends_with(".log"))[0], [Action::Flip(4096 + 70), Action::Zero(4096, 512)]);
}

#[test]
fn damage_of_the_object_index_is_found_or_in_pages_that_nothing_uses() {
    let scene = Scene::new();
    let path = &files(&scene, |path| path.ends_with(".redb"))[0];
    let length = scene.length(path);
    all_found(&scene, path, [Action::Cut(0), Action::Cut(length / 2), Action::Cut(length - 1), Action::Zero(0, length), Action::Delete]);
    let mut found = 0;
    for slot in 0..(length / 4608).min(120) {
        let at = slot * 4608;
        found += usize::from(try_it(&scene, path, Action::Flip(at + 700)).is_found());
        if slot % 7 == 0 {
            try_it(&scene, path, Action::Zero(at, 4608));
        }
    }
    assert!(found >= 3, "{found}");
}

#[test]
fn damage_of_descriptor_and_owner_is_refused() {
    let scene = Scene::new();
    let length = scene.length("descriptor");
    all_found(&scene, "descriptor", actions(length, &[0, 9, length / 2, length - 30, length - 3]));
    all_found(&scene, "owner", actions(scene.length("owner"), &[0, 7, 8, 15]));
}
