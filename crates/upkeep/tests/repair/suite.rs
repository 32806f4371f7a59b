// The tests of `repair` and of `repair_marked`: the same on stores of two profiles.

#[path = "../repair/cases.rs"]
mod cases;
#[path = "../repair/common.rs"]
mod common;
#[path = "../damage/merging.rs"]
mod merging;
#[allow(dead_code, reason = "shared with the tests of damage")]
#[path = "../damage/scene.rs"]
mod scene;

use common::{Damage, content, crash_at_any_sync, files, is_known_lost, list, meet_errors_and_full_disks, must_be_sound, repaired, run, sorted, write_volume_again};
use onefold_engine::Mode;
use onefold_ground::{Access, Ground};
use onefold_upkeep::{CheckOptions, NoMonitor, ProblemKind, check};
use scene::{Scene, open};

/// The files in which the index has chunks.
fn of_index(scene: &Scene) -> Vec<String> {
    files(scene, |path| if PROFILE.is_exact() { path.contains("/pages-") } else { path.starts_with("hooks/") })
}

fn is_sealed(scene: &Scene, path: &str) -> bool {
    scene.bytes(path).windows(8).any(|bytes| bytes == b"1FLDEND1")
}

#[test]
fn a_store_without_damage_is_left_as_it_is() {
    let found = repaired(&Scene::new(), &[]);
    assert!(found.report.is_clean());
}

#[test]
fn damaged_containers_cost_what_cannot_be_read_and_nothing_else() {
    let (mut tried, mut felt) = (0, 0);
    for scene in [Scene::new(), Scene::merged()] {
        let containers = files(&scene, |path| path.starts_with("containers/") && !path.ends_with(".forward") && is_sealed(&scene, path));
        for (number, path) in containers.iter().enumerate() {
            let length = scene.length(path);
            let catalog = u64::from(u32::from_le_bytes(scene.bytes(path)[length as usize - 40..][..4].try_into().unwrap()));
            let all = [
                Damage::Flip(64 + 100),
                Damage::Flip(catalog + 20),
                Damage::Flip(length - 3),
                Damage::Zero(5000, 9000),
                Damage::Cut(length / 2),
                Damage::Delete,
                Damage::Zero(0, 200),
            ];
            for damage in [all[number % all.len()], all[(number + 3) % all.len()]] {
                let problems = repaired(&scene, &[(path, damage)]).report.problems;
                // Some containers only have what was overwritten since.
                felt += usize::from(problems.iter().any(|problem| problem.kind == ProblemKind::Quarantined));
                tried += 1;
            }
        }
    }
    assert!(felt * 2 > tried, "{felt} of {tried}");
}

#[test]
fn a_damaged_header_of_a_container_is_written_anew_and_nothing_is_lost() {
    for scene in [Scene::new(), Scene::merged()] {
        let has_frames = |path: &str| scene.bytes(path).get(64..4096).is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0));
        for path in files(&scene, |path| path.starts_with("containers/") && !path.ends_with(".forward")) {
            if has_frames(&path) {
                for damage in [Damage::Flip(9), Damage::Flip(40)] {
                    assert!(repaired(&scene, &[(&path, damage)]).report.is_clean(), "{path} {damage:?}");
                }
            }
        }
    }
}

#[test]
fn a_damaged_open_container_costs_what_cannot_be_read() {
    let scene = Scene::new();
    let has_frames = |bytes: &[u8]| bytes.len() > 4096 && bytes[64..4096].iter().any(|byte| *byte != 0);
    let open = scene.files().into_iter().filter(|path| path.starts_with("containers/") && has_frames(&scene.bytes(path)));
    for path in open.filter(|path| !is_sealed(&scene, path)) {
        for damage in [Damage::Flip(100), Damage::Zero(64, 4000), Damage::Cut(64), Damage::Delete] {
            repaired(&scene, &[(&path, damage)]);
        }
    }
}

#[test]
fn m0_20_forwards_are_written_anew_and_nothing_is_lost() {
    let scene = Scene::merged();
    let forwards = files(&scene, |path| path.ends_with(".forward"));
    for (number, path) in forwards.iter().enumerate() {
        let damage = [Damage::Flip(25), Damage::Delete, Damage::Cut(10), Damage::Zero(0, 512)][number % 4];
        assert!(repaired(&scene, &[(path, damage)]).report.is_clean(), "{path} {damage:?}");
    }
    let all: Vec<(&str, Damage)> = forwards.iter().map(|path| (path.as_str(), Damage::Delete)).collect();
    assert!(repaired(&scene, &all).report.is_clean());
}

#[test]
fn a_damaged_chunk_index_is_made_anew_and_nothing_is_lost() {
    let scene = Scene::new();
    let pages = of_index(&scene);
    if !PROFILE.is_exact() {
        // The next opening makes new hooks, and nothing has to be repaired.
        for damage in [Damage::Flip(50), Damage::Flip(66_000), Damage::Zero(0, 8192), Damage::Delete] {
            let ground = scene.copy();
            damage.apply(&ground, &pages[0]);
            assert!(must_be_sound(&ground, &scene, "hooks").report.is_clean(), "{damage:?}");
        }
        return;
    }
    let headers = files(&scene, |path| path.starts_with("index/") && path.ends_with("/header"));
    for damage in [
        vec![(pages[0].as_str(), Damage::Flip(50))],
        vec![(pages[0].as_str(), Damage::Delete)],
        vec![(headers[1].as_str(), Damage::Zero(0, 8192))],
        headers.iter().chain(&pages).map(|path| (path.as_str(), Damage::Delete)).collect(),
    ] {
        assert!(repaired(&scene, &damage).report.is_clean(), "{damage:?}");
    }
}

/// Many things at once: an index page, a container's data, another's catalog, a forward.
fn much_damage(scene: &Scene) -> Vec<(String, Damage)> {
    let page = of_index(scene).swap_remove(0);
    let forward = files(scene, |path| path.ends_with(".forward")).swap_remove(1);
    let containers = files(scene, |path| path.starts_with("containers/") && !path.ends_with(".forward") && is_sealed(scene, path));
    let end = scene.length(&containers[1]);
    vec![
        (page, Damage::Flip(60)),
        (containers[0].clone(), Damage::Flip(300)),
        (containers[1].clone(), Damage::Flip(end - 60)),
        (forward, Damage::Delete),
    ]
}

#[test]
fn a_repair_that_crashes_at_any_sync_is_ended_by_the_next() {
    let scene = Scene::merged();
    let all = much_damage(&scene);
    for with_index in [false, true] {
        let damaged = || {
            let ground = scene.copy();
            all.iter().skip(usize::from(!with_index)).for_each(|(path, damage)| damage.apply(&ground, path));
            ground
        };
        crash_at_any_sync(&scene, &damaged, &format!("index damaged too: {with_index}"));
    }
}

#[test]
fn a_repair_that_meets_errors_or_a_full_disk_is_ended_by_the_next() {
    let scene = Scene::merged();
    let all = much_damage(&scene);
    let damaged = || {
        let ground = scene.copy();
        all.iter().for_each(|(path, damage)| damage.apply(&ground, path));
        ground
    };
    meet_errors_and_full_disks(&scene, &damaged, 40);
}

#[test]
fn what_can_be_read_again_is_restored() {
    let scene = Scene::merged();
    let containers = files(&scene, |path| path.starts_with("containers/") && !path.ends_with(".forward"));
    for path in containers {
        let ground = scene.copy();
        let whole = onefold_ground::read_file(&ground, &path, 1 << 30).unwrap();
        ground.remove(&path).unwrap();
        run(&ground, false).unwrap();
        must_be_sound(&ground, &scene, &path);
        let file = ground.create(&path).unwrap();
        file.write_at(0, &whole).unwrap();
        file.sync().unwrap();
        ground.sync_directory(onefold_ground::parent(&path)).unwrap();
        let did = run(&ground, false).unwrap();
        assert!(did.check.is_clean(), "{path}: {:?}{}", did.actions, list(&did.check.problems));
        let found = must_be_sound(&ground, &scene, &path);
        assert!(found.report.is_clean());
        let engine = open(&ground, Mode::ReadOnly).unwrap();
        assert!(check(&engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap().is_clean());
        // Writers take a slot that is not dead for a stored chunk.
        for container in engine.containers().unwrap().containers().unwrap().iter() {
            let dead = engine.dead_slots(container).unwrap();
            for (number, (address, slot)) in engine.containers().unwrap().slots(container).unwrap().iter().enumerate() {
                // Hooks are advice, and readers have none.
                let is_known = !PROFILE.is_exact() || engine.locate(&slot.fingerprint).unwrap().is_some();
                assert!(dead.contains(number) || is_known, "{path}: {address} is nowhere");
            }
        }
    }
}

#[test]
fn m0_19_what_is_not_needed_goes_beside_lost_chunks_and_nothing_that_is_needed() {
    let scene = Scene::merged();
    let all = much_damage(&scene);
    for with_index in [false, true] {
        let ground = scene.copy();
        all.iter().skip(usize::from(!with_index)).for_each(|(path, damage)| damage.apply(&ground, path));
        run(&ground, false).unwrap();
        {
            let engine = open(&ground, Mode::ReadWrite).unwrap();
            let report = onefold_upkeep::prune(&engine, Default::default(), &NoMonitor, &|| true).unwrap();
            assert_eq!(report.is_complete, report.problems.is_empty(), "{:?}", report.problems);
            engine.close().unwrap();
        }
        must_be_sound(&ground, &scene, "after pruning");
        // All that was damaged comes back as it was: everything can be read again, so nothing that it needs has gone.
        for (path, _) in &all {
            if path.starts_with("containers/") && !path.ends_with(".forward") && ground.exists(path).unwrap() {
                let file = ground.open(path, Access::ReadWrite).unwrap();
                let whole = scene.bytes(path);
                file.set_len(whole.len() as u64).unwrap();
                file.write_at(0, &whole).unwrap();
                file.sync().unwrap();
            }
        }
        let did = run(&ground, false).unwrap();
        assert!(did.check.is_clean(), "index damaged: {with_index}: {:?}{}", did.actions, list(&did.check.problems));
        assert!(must_be_sound(&ground, &scene, "restored").report.is_clean());
    }
}
