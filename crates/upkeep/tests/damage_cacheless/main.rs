//! Damage, as in `damage`, of stores whose chunks are blocks: the arena, and the index on disk that alone knows what
//! the blocks hold (M1.1 to M1.10).
//!
//! What the check need not find, because nothing is lost with it: bytes of free blocks and behind the end of a chunk, a
//! journal whose pages are in place, one of two slots of a header.

#[path = "../damage/actions.rs"]
mod actions;
#[path = "../damage/common.rs"]
mod common;
mod interrupted;
#[path = "../damage/merging.rs"]
mod merging;
#[allow(dead_code, reason = "older versions and merged containers are for other profiles")]
#[path = "../damage/scene.rs"]
mod scene;
mod stale;
mod writing_on;

use actions::{Action, actions, all_found, all_harmless, files, try_change, try_it};
use onefold_engine::{Mode, StoreProfile};
use onefold_ground::{Access, Ground};
use onefold_storage::block_of_address;
use onefold_upkeep::{NoMonitor, ProblemKind, RepairOptions, ScrubOptions};
use scene::Scene;
use std::collections::BTreeMap;
use std::sync::Arc;
use writing_on::write_on;

const PROFILE: StoreProfile = StoreProfile::Cacheless;

const BLOCKS: &str = "arena/blocks";
const BLOCK_BYTES: u64 = 4096;
const PAGE_BYTES: u64 = 4096;

/// The blocks that have a chunk, and how many bytes of each are of the chunk.
fn used_blocks(scene: &Scene) -> BTreeMap<u64, u64> {
    let engine = scene::open(&scene.copy(), Mode::ReadOnly).unwrap();
    let storage = engine.storage();
    let chunks = storage.units().unwrap().iter().flat_map(|unit| storage.chunks_of(unit).unwrap()).collect::<Vec<_>>();
    chunks.iter().map(|(address, slot)| (block_of_address(*address).unwrap(), u64::from(slot.length_bytes))).collect()
}

/// Damages a copy, looks at it, and writes on in another copy.
fn try_and_write_on(scene: &Scene, path: &str, action: Action) {
    try_it(scene, path, action);
    write_on(scene, path, action);
}

#[test]
fn m1_1_damage_of_a_used_block_is_found_and_costs_only_its_chunk() {
    let scene = Scene::new();
    let used = used_blocks(&scene);
    assert!(used.len() > 150, "{}", used.len());
    for (turn, (block, length)) in used.iter().enumerate().step_by(3) {
        let at = block * BLOCK_BYTES + turn as u64 * 1009 % length;
        let action = if turn % 2 == 0 { Action::Flip(at) } else { Action::Zero(block * BLOCK_BYTES, BLOCK_BYTES) };
        let found = try_it(&scene, BLOCKS, action);
        let damaged: Vec<_> = found
            .report
            .problems
            .iter()
            .filter(|problem| problem.kind == ProblemKind::Container && problem.what.contains(BLOCKS))
            .collect();
        assert!(damaged.len() == 1 && damaged[0].what.contains(&format!("block {block}")), "{action:?}: {:?}", found.report.problems);
        let others = |kind| !matches!(kind, ProblemKind::Container | ProblemKind::Affected | ProblemKind::WrongCount);
        assert!(!found.report.problems.iter().any(|problem| others(problem.kind)), "{action:?}: {:?}", found.report.problems);
        if turn % 5 == 0 {
            write_on(&scene, BLOCKS, action);
        }
    }
}

#[test]
fn m1_10_bytes_that_no_chunk_has_may_be_damaged() {
    let scene = Scene::new();
    let used = used_blocks(&scene);
    let (last, last_length) = used.last_key_value().unwrap();
    let free = (0..last + 2).filter(|block| !used.contains_key(block)).step_by(4);
    all_harmless(&scene, BLOCKS, free.map(|block| Action::Flip(block * BLOCK_BYTES + block * 97 % BLOCK_BYTES)));
    let short = used.iter().filter(|(_, length)| **length < BLOCK_BYTES).step_by(4);
    all_harmless(&scene, BLOCKS, short.map(|(block, length)| Action::Flip(block * BLOCK_BYTES + length)));
    let end = last * BLOCK_BYTES + last_length;
    for action in [Action::Cut(end), Action::Cut(end.next_multiple_of(BLOCK_BYTES)), Action::Cut(end.next_multiple_of(BLOCK_BYTES) + 1)] {
        all_harmless(&scene, BLOCKS, [action]);
        write_on(&scene, BLOCKS, action);
    }
}

#[test]
fn m1_10_a_file_of_blocks_that_ends_early_is_damaged_there_and_used_blocks_are_not_given_out() {
    let scene = Scene::new();
    let used: Vec<(u64, u64)> = used_blocks(&scene).into_iter().collect();
    let (last, last_length) = used[used.len() - 1];
    let (middle, _) = used[used.len() / 2];
    let cuts =
        [0, 1, BLOCK_BYTES - 1, middle * BLOCK_BYTES, middle * BLOCK_BYTES + 77, last * BLOCK_BYTES, last * BLOCK_BYTES + last_length - 1];
    let actions = cuts.iter().map(|length| Action::Cut(*length)).chain([Action::Zero(0, (last + 1) * BLOCK_BYTES), Action::Delete]);
    for action in actions {
        all_found(&scene, BLOCKS, [action]);
        write_on(&scene, BLOCKS, action);
    }
}

#[test]
fn any_damage_of_the_header_of_the_arena_is_refused() {
    let scene = Scene::new();
    let path = "arena/header";
    let length = scene.length(path);
    let places: Vec<u64> = (0..length).collect();
    for action in actions(length, &places) {
        let found = try_it(&scene, path, action);
        assert!(found.refused.as_ref().is_some_and(|error| error.contains(path)), "{action:?}: {:?}", found.refused);
    }
}

#[test]
fn m1_2_m1_5_damage_of_any_page_of_the_index_is_found() {
    let scene = Scene::new();
    let paths = files(&scene, |path| path.starts_with("index/slots-") || path == "index/blocks" || path == "index/units");
    assert_eq!(paths.len(), 3);
    for path in &paths {
        let length = scene.length(path);
        assert!(length >= PAGE_BYTES && length.is_multiple_of(PAGE_BYTES), "{path} {length}");
        // Checksum, place, records, and zeros behind them.
        let places: Vec<u64> =
            (0..length).step_by(PAGE_BYTES as usize).flat_map(|page| [0, 8, 15, 16, 1500, 4095].map(|at| page + at)).collect();
        all_found(&scene, path, actions(length, &places));
        let pages = (0..length).step_by(PAGE_BYTES as usize).map(|page| Action::Zero(page, PAGE_BYTES));
        for action in pages.chain([Action::Flip(40), Action::Cut(length / 2), Action::Cut(0), Action::Zero(0, length), Action::Delete]) {
            all_found(&scene, path, [action]);
            write_on(&scene, path, action);
        }
    }
}

#[test]
fn m1_5_a_damaged_page_of_the_area_ends_neither_a_scrub_nor_a_rehearsed_repair_and_other_damage_is_found_too() {
    let scene = Scene::new();
    let ground = scene.copy();
    let path = "index/blocks";
    assert!(scene.length(path) > 2 * PAGE_BYTES);
    let block = *used_blocks(&scene).last_key_value().unwrap().0;
    Action::Flip(50).apply(&ground, path);
    Action::Flip(block * BLOCK_BYTES).apply(&ground, BLOCKS);
    let names = |found: &[String]| {
        [format!("{path} page 0"), format!("{BLOCKS}: block {block} ")].map(|name| found.iter().any(|what| what.contains(&name)))
    };
    let options = RepairOptions { dry_run: true, may_lose: false, memory_bytes: 16 << 20 };
    let repair = onefold_upkeep::repair(Arc::new(ground.clone()), scene::settings(), options, "test", &NoMonitor).unwrap();
    assert!(!repair.actions.is_empty());
    let found: Vec<String> = repair.check.problems.iter().map(|problem| problem.what.replace(": page 0", " page 0")).collect();
    assert_eq!(names(&found), [true, true], "{found:?}");
    let engine = scene::open(&ground, Mode::ReadWrite).unwrap();
    let scrubbed = onefold_upkeep::scrub(&engine, ScrubOptions::default(), &NoMonitor, &|| true).unwrap();
    assert!(scrubbed.is_complete);
    assert_eq!(names(&scrubbed.status.damages), [true, true], "{:?}", scrubbed.status.damages);
}

#[test]
fn m1_2_a_page_in_the_place_of_another_one_is_found() {
    let scene = Scene::new();
    for path in files(&scene, |path| path.starts_with("index/slots-") || path == "index/blocks") {
        let pages: Vec<u64> = (0..scene.length(&path)).step_by(PAGE_BYTES as usize).collect();
        for (from, to) in pages.iter().zip(&pages[1..]) {
            for (from, to) in [(*from, *to), (*to, *from)] {
                let found = try_change(&scene, &path, &format!("{from} copied to {to}"), &|ground| {
                    let file = ground.open(&path, Access::ReadWrite).unwrap();
                    let mut bytes = [0; PAGE_BYTES as usize];
                    file.read_at(from, &mut bytes).unwrap();
                    file.write_at(to, &bytes).unwrap();
                });
                assert!(found.is_found(), "{path}: {from} copied to {to} is not found");
            }
        }
    }
}

#[test]
fn one_slot_of_the_header_of_the_index_may_go_and_without_both_the_store_is_refused() {
    let scene = Scene::new();
    let path = "index/header";
    for slot in [0, PAGE_BYTES] {
        for action in [Action::Flip(slot + 10), Action::Flip(slot + 45), Action::Zero(slot, PAGE_BYTES)] {
            try_and_write_on(&scene, path, action);
        }
    }
    all_found(&scene, path, [Action::Zero(0, 2 * PAGE_BYTES), Action::Cut(0), Action::Cut(100), Action::Cut(PAGE_BYTES), Action::Delete]);
}

#[test]
fn a_journal_whose_pages_are_in_place_may_be_damaged() {
    let scene = Scene::new();
    let path = "index/journal";
    let length = scene.length(path);
    assert!(length > 2 * PAGE_BYTES);
    let places = [0, 8, 12, 16, 24, 40, 48, PAGE_BYTES, 2 * PAGE_BYTES, length - 1];
    all_harmless(&scene, path, actions(length, &places).into_iter().filter(|action| !matches!(action, Action::Delete)));
    try_and_write_on(&scene, path, Action::Flip(48));
    try_it(&scene, path, Action::Delete);
}
