//! Damage, as in `damage`, of stores whose chunks are in levels of sorted tables (M2.6).
//!
//! What the check need not find, because nothing is lost with it: filters, bytes between parts, chunks that were
//! removed and are not compacted yet.

#[path = "../damage/actions.rs"]
mod actions;
#[path = "../damage/common.rs"]
mod common;
#[path = "../damage/merging.rs"]
mod merging;
#[allow(dead_code, reason = "older versions and merged containers are for other profiles")]
#[path = "../damage/scene.rs"]
mod scene;
#[path = "../damage_cacheless/writing_on.rs"]
mod writing_on;

use actions::{Action, all_found, all_harmless, files, try_it};
use onefold_engine::StoreProfile;
use onefold_upkeep::ProblemKind;
use scene::Scene;
use writing_on::write_on;

const PROFILE: StoreProfile = StoreProfile::Leveled;

const PAGE_BYTES: u64 = 4096;

fn tables(scene: &Scene) -> Vec<String> {
    let tables = files(scene, |path| path.ends_with(".table"));
    assert!(tables.len() >= 2, "{tables:?}");
    tables
}

#[test]
fn m2_6_damage_of_any_part_of_a_table_is_named_or_costs_nothing() {
    let scene = Scene::new();
    let (mut found, mut tried) = (0, 0);
    for (number, path) in tables(&scene).iter().enumerate() {
        let length = scene.length(path);
        for at in (0..length).step_by(1511 + 97 * number) {
            let action = if at % 3 == 0 { Action::Zero(at, 64.min(length - at)) } else { Action::Flip(at) };
            let looked = try_it(&scene, path, action);
            tried += 1;
            found += usize::from(looked.is_found());
            let others = |kind| {
                !matches!(
                    kind,
                    ProblemKind::Container
                        | ProblemKind::Affected
                        | ProblemKind::WrongCount
                        | ProblemKind::MissingChunk
                        | ProblemKind::WrongAddress
                )
            };
            assert!(!looked.report.problems.iter().any(|problem| others(problem.kind)), "{action:?}: {:?}", looked.report.problems);
        }
    }
    assert!(found * 2 > tried, "{found} of {tried}");
}

#[test]
fn m2_6_a_table_that_is_gone_or_cut_or_has_no_header_is_found_and_costs_only_its_chunks() {
    let scene = Scene::new();
    for path in tables(&scene) {
        let length = scene.length(&path);
        let cuts = [0, 50, PAGE_BYTES, length / 2, length - 1].map(Action::Cut);
        for action in cuts.into_iter().chain([Action::Delete, Action::Flip(20), Action::Zero(0, length)]) {
            all_found(&scene, &path, [action]);
            write_on(&scene, &path, action);
        }
    }
}

#[test]
fn m2_6_writing_on_beside_damage_makes_it_no_greater() {
    let scene = Scene::new();
    for (number, path) in tables(&scene).iter().enumerate() {
        let length = scene.length(path);
        for at in (0..length).step_by((length as usize / 7).max(1)) {
            let action = if (at as usize + number).is_multiple_of(2) { Action::Flip(at) } else { Action::Zero(at, 512.min(length - at)) };
            write_on(&scene, path, action);
        }
    }
}

#[test]
fn m2_8_one_manifest_of_a_partition_may_go_and_without_both_the_store_is_refused() {
    let scene = Scene::new();
    for path in files(&scene, |path| path.ends_with("/manifest") || path.ends_with("/manifest-copy")) {
        let length = scene.length(&path);
        for action in [Action::Flip(0), Action::Flip(30), Action::Flip(length - 1), Action::Cut(0), Action::Cut(length / 2), Action::Delete]
        {
            all_harmless(&scene, &path, [action]);
            write_on(&scene, &path, action);
        }
    }
}
