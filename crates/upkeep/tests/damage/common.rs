//! Damage of the files that stores of every profile have.

use crate::PROFILE;
use crate::actions::{Action, actions, all_found, all_harmless, files, try_it};
use crate::scene::{Scene, look, settings};
use onefold_engine::Mode;

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
