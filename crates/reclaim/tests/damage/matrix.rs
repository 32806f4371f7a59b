//! The damage matrix: every part of a store, damaged in five ways; what a check says, what a repair gives back, what is lost.

use crate::scene::{Look, Scene, State, look, open, settings};
use onefold_engine::{Mode, Transaction};
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround, read_file};
use onefold_reclaim::{NoMonitor, ProblemKind, salvage};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// What is done to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Flipped,
    Truncated,
    Zeroed,
    Deleted,
    Older,
}

const DAMAGES: [Damage; 5] = [Damage::Flipped, Damage::Truncated, Damage::Zeroed, Damage::Deleted, Damage::Older];

/// A part of a store.
enum Part {
    /// A range of a file.
    Bytes(String, Range<u64>),
    /// An object of the block index, by the first byte of its key: its checksums are right, its content is not.
    Object(u8),
}

impl Part {
    fn file(scene: &Scene, path: String) -> Part {
        let length = scene.length(&path);
        Part::Bytes(path, 0..length)
    }

    /// Damages the part in a copy of the store; `None`: the part cannot be damaged like this.
    fn damage(&self, scene: &Scene, damage: Damage) -> Option<SimulatedGround> {
        let ground = scene.copy();
        match self {
            Part::Bytes(path, range) => {
                let file = ground.open(path, Access::ReadWrite).unwrap();
                match damage {
                    Damage::Flipped => ground.corrupt(path, range.start + (range.end - range.start) / 2, 0x20).unwrap(),
                    Damage::Truncated => file.set_len(range.start + (range.end - range.start) / 2).unwrap(),
                    Damage::Zeroed => file.write_at(range.start, &vec![0; (range.end - range.start) as usize]).unwrap(),
                    Damage::Deleted => ground.remove(path).unwrap(),
                    Damage::Older => {
                        let older = read_file(&scene.older, path, 1 << 30).ok().filter(|older| *older != scene.bytes(path))?;
                        file.set_len(0).unwrap();
                        file.write_at(0, &older).unwrap();
                    }
                }
            }
            Part::Object(prefix) => {
                let engine = open(&ground, Mode::ReadWrite).unwrap();
                let (key, value) = engine.range(0, &[*prefix], &[*prefix + 1], 1).unwrap().remove(0);
                let value = match damage {
                    Damage::Flipped => Some(value.iter().enumerate().map(|(at, byte)| if at == 1 { byte ^ 0x80 } else { *byte }).collect()),
                    Damage::Truncated => Some(value[..value.len() / 2].to_vec()),
                    Damage::Zeroed => Some(vec![0; value.len()]),
                    // A record that is gone, or was another one, is what any command could have made of it.
                    Damage::Deleted | Damage::Older => return None,
                };
                engine.submit(Transaction { changes: vec![(0, key, value)], deltas: Vec::new() }).unwrap();
                engine.flush().unwrap();
            }
        }
        Some(ground)
    }
}

fn find(scene: &Scene, wanted: impl Fn(&str) -> bool) -> String {
    scene.files().into_iter().find(|path| wanted(path)).unwrap()
}

/// The parts of a store with volumes and backups.
fn parts(scene: &Scene) -> Vec<(&'static str, Part)> {
    let sealed = find(scene, |path| path.starts_with("containers/") && scene.bytes(path).windows(8).any(|bytes| bytes == b"1FLDEND1"));
    let length = scene.length(&sealed);
    let catalog = u64::from(u32::from_le_bytes(scene.bytes(&sealed)[length as usize - 40..][..4].try_into().unwrap()));
    let pages = find(scene, |path| path.contains("/pages-"));
    let header = find(scene, |path| path.starts_with("index/") && path.ends_with("/header"));
    let mut segments: Vec<String> = scene.files().into_iter().filter(|path| path.ends_with(".log")).collect();
    let last = segments.pop().unwrap();
    let first = segments.first().cloned().unwrap_or(last.clone());
    let file = |path: &str| Part::file(scene, path.to_owned());
    vec![
        ("container header", Part::Bytes(sealed.clone(), 0..64)),
        ("container data", Part::Bytes(sealed.clone(), 64..catalog)),
        ("container catalog", Part::Bytes(sealed.clone(), catalog..length - 48)),
        ("container footer", Part::Bytes(sealed, length - 48..length)),
        ("index pages", file(&pages)),
        ("index header", file(&header)),
        ("log: first segment's header", Part::Bytes(first.clone(), 0..4096)),
        ("log: first batch", Part::Bytes(first, 4096..4096 + 512)),
        ("log: last segment", file(&last)),
        ("block-index file", file("blocks/0000.redb")),
        ("descriptor", file("descriptor")),
        ("descriptor, second copy", file("descriptor.copy")),
        ("owner", file("owner")),
        ("record of a volume", Part::Object(b'v')),
        ("record of a layer", Part::Object(b'l')),
        ("record of a backup", Part::Object(b'b')),
    ]
}

/// What a look found, in a word or two.
fn said(found: &Look) -> String {
    if found.refused.is_some() {
        return "refused".into();
    }
    let kinds: BTreeSet<ProblemKind> = found.report.problems.iter().map(|problem| problem.kind).collect();
    if kinds.is_empty() { "clean".into() } else { kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ") }
}

/// What can be read, in a word or two. Nothing that can be read is anything but what was written at some time.
fn readable(found: &Look, states: &[State], what: &str) -> String {
    if found.refused.is_some() {
        return "nothing".into();
    }
    let newest = states.last().unwrap();
    let was_written = |offset: usize, bytes: &[u8]| states.iter().any(|state| state.volume[offset..].starts_with(bytes));
    for (offset, bytes) in &found.volume {
        assert!(bytes.as_ref().is_none_or(|bytes| was_written(*offset, bytes)), "{what}: wrong bytes of the volume at {offset}");
    }
    let backups = found.backups.iter().flatten();
    for (id, tree) in backups.clone() {
        let expected = states.iter().find_map(|state| state.backups.get(id)).unwrap_or_else(|| panic!("{what}: an unknown backup {id}"));
        for (path, bytes) in tree {
            assert!(bytes.as_ref().is_none_or(|bytes| expected.get(path) == Some(bytes)), "{what}: wrong bytes of a file");
        }
    }
    found.assert_named(what);
    let has_errors = found.volume.iter().any(|(_, bytes)| bytes.is_none())
        || found.backups.is_none()
        || backups.clone().flat_map(|(_, tree)| tree.values()).any(Option::is_none);
    let is_older = !found.agrees(newest);
    match (has_errors, is_older) {
        (false, false) => "all",
        (true, false) => "all but what is named",
        (false, true) => "an older state",
        (true, true) => "an older state but what is named",
    }
    .into()
}

#[test]
fn the_table_of_damages_is_what_is_found() {
    let scene = Scene::new();
    let mut table = String::new();
    for (name, part) in parts(&scene) {
        for damage in DAMAGES {
            let what = format!("{name} {damage:?}");
            let Some(ground) = part.damage(&scene, damage) else { continue };
            let before = look(&ground.snapshot(CrashPolicy::KeepAll), Mode::ReadOnly, scene.states.last().unwrap());
            let shared: Arc<dyn Ground> = Arc::new(ground.clone());
            let planned = salvage(&shared, &settings(), true, "test", &NoMonitor);
            let repaired = salvage(&shared, &settings(), false, "test", &NoMonitor);
            // Nothing is left to repair then.
            assert!(planned.is_ok() == repaired.is_ok(), "{what}: {planned:?} {repaired:?}");
            if repaired.is_ok() {
                assert_eq!(salvage(&shared, &settings(), true, "test", &NoMonitor).unwrap(), Vec::<String>::new(), "{what}: {repaired:?}");
            }
            let after = look(&ground, Mode::ReadWrite, scene.states.last().unwrap());
            table +=
                &format!("| {name} | {damage:?} | {} | {} | {} |\n", said(&before), readable(&after, &scene.states, &what), said(&after));
            assert!(after.refused.is_none() || name == "block-index file", "{what}: {:?} {repaired:?}", after.refused);
        }
    }
    println!("{table}");
}

#[test]
fn a_salvage_that_a_crash_cuts_short_is_done_again() {
    let scene = Scene::new();
    let parts = parts(&scene);
    for (wanted, damage) in
        [("log: first segment's header", Damage::Deleted), ("log: first batch", Damage::Truncated), ("owner", Damage::Zeroed)]
    {
        let (_, part) = parts.iter().find(|(name, _)| *name == wanted).unwrap();
        let damaged = part.damage(&scene, damage).unwrap();
        let run = |ground: &SimulatedGround| {
            let shared: Arc<dyn Ground> = Arc::new(ground.clone());
            salvage(&shared, &settings(), false, "test", &NoMonitor)
        };
        let result = |ground: &SimulatedGround| {
            let found = look(ground, Mode::ReadWrite, scene.states.last().unwrap());
            let what = format!("{wanted} {damage:?} {:?}", found.refused);
            let volume: Vec<_> = found.volume.iter().map(|(_, bytes)| bytes.clone()).collect();
            (readable(&found, &scene.states, &what), said(&found), volume)
        };
        let whole = damaged.snapshot(CrashPolicy::KeepAll);
        let before = whole.syncs();
        run(&whole).unwrap();
        let syncs = whole.syncs() - before;
        let expected = result(&whole);
        for sync in (0..syncs).step_by(3) {
            for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: sync }] {
                let ground = damaged.snapshot(CrashPolicy::KeepAll);
                ground.crash_after_syncs(sync);
                assert!(run(&ground).is_err(), "{wanted} {sync}");
                let ground = ground.restart(policy);
                // What opens before the repair is done again is sound.
                if let Ok(engine) = open(&ground, Mode::ReadOnly) {
                    drop(engine);
                    readable(&look(&ground, Mode::ReadOnly, scene.states.last().unwrap()), &scene.states, wanted);
                }
                run(&ground).unwrap();
                assert!(result(&ground) == expected, "{wanted} {damage:?}, sync {sync} of {syncs}, {policy:?}");
            }
        }
    }
}
