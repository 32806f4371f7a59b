//! The damage matrix: every part of a store, damaged in five ways; what a check says, what a repair gives back, what a
//! check says then. The table in `docs/damage.md` is what this test finds.

use crate::scene::{BLOCK_BYTES, Look, Scene, State, VOLUME, VOLUME_BYTES, look, noise, open, settings, settle};
use onefold_engine::{Mode, SalvageOptions, Transaction};
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround, checksum, read_file};
use onefold_upkeep::{NoMonitor, ProblemKind, PruneOptions, RepairOptions, prune, repair, salvage};
use onefold_volume::{Volumes, VolumesOptions};
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

impl Damage {
    fn name(self) -> &'static str {
        match self {
            Damage::Flipped => "flipped bit",
            Damage::Truncated => "truncated",
            Damage::Zeroed => "zeroed",
            Damage::Deleted => "deleted",
            Damage::Older => "older version",
        }
    }
}

const DAMAGES: [Damage; 5] = [Damage::Flipped, Damage::Truncated, Damage::Zeroed, Damage::Deleted, Damage::Older];

/// A part of a store.
enum Part {
    /// A range of a file.
    Bytes(String, Range<u64>),
    /// An object of the object index, by the first byte of its key: its checksums are right, its content is not.
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
                        let older = if path == "owner" { Ok(no_owner()) } else { read_file(&scene.older, path, 1 << 30) };
                        let older = older.ok().filter(|older| *older != scene.bytes(path))?;
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
                engine.submit(Transaction { changes: vec![(0, key, value)], references: Vec::new() }).unwrap();
                engine.flush().unwrap();
            }
        }
        settle(&ground);
        Some(ground)
    }
}

/// The file of the owner epoch before the first opening.
fn no_owner() -> Vec<u8> {
    let epoch = 0u64.to_le_bytes();
    [epoch, checksum(&epoch).to_le_bytes()].concat()
}

/// The first page of the object index whose damage is felt.
fn used_page(scene: &Scene) -> Range<u64> {
    const SLOT_BYTES: u64 = 4608;
    let is_used = |slot: &u64| {
        let ground = scene.copy();
        ground.corrupt("objects/0000.redb", slot * SLOT_BYTES + 9, 1).unwrap();
        let ground: Arc<dyn Ground> = Arc::new(ground);
        onefold_index::ObjectIndex::problem_of(&ground, "objects", 0).unwrap().0.is_some()
    };
    let slot = (2..scene.length("objects/0000.redb") / SLOT_BYTES).find(is_used).unwrap();
    slot * SLOT_BYTES..(slot + 1) * SLOT_BYTES
}

fn find(scene: &Scene, wanted: impl Fn(&str) -> bool) -> String {
    scene.files().into_iter().find(|path| wanted(path)).unwrap()
}

/// The parts of a store with volumes and backups.
fn parts(scene: &Scene) -> Vec<(&'static str, Part)> {
    let sealed = find(scene, |path| path.starts_with("containers/") && scene.bytes(path).windows(8).any(|bytes| bytes == b"1FLDEND1"));
    let length = scene.length(&sealed);
    let catalog = u64::from(u32::from_le_bytes(scene.bytes(&sealed)[length as usize - 40..][..4].try_into().unwrap()));
    // The log's segments by their starts; up to where the object index has applied it, the chunk index has too.
    let segments: Vec<(u64, String)> = scene.files().into_iter().filter_map(|path| Some((segment_start(&path)?, path))).collect();
    let applied = applied(scene);
    let (start, segment) = segments.iter().rfind(|(start, _)| *start <= applied).unwrap();
    let at = 4096 + applied - start;
    let file = |path: &str| Part::file(scene, path.to_owned());
    let index = match crate::PROFILE.is_exact() {
        true => vec![
            ("chunk index: pages", file(&find(scene, |path| path.contains("/pages-")))),
            ("chunk index: header", file(&find(scene, |path| path.starts_with("index/") && path.ends_with("/header")))),
        ],
        false => Vec::new(),
    };
    let mut others = vec![
        ("container: header", Part::Bytes(sealed.clone(), 0..64)),
        ("container: data", Part::Bytes(sealed.clone(), 64..catalog)),
        ("container: catalog", Part::Bytes(sealed.clone(), catalog..length - 48)),
        ("container: footer", Part::Bytes(sealed, length - 48..length)),
        ("forward of a merged container", file(&find(scene, |path| path.ends_with(".forward")))),
        ("log: header of a segment", Part::Bytes(segment.clone(), 0..64)),
        ("log: a batch that is applied", Part::Bytes(segments[0].1.clone(), 4096..4096 + 512)),
        ("log: a batch that is not applied", Part::Bytes(segment.clone(), at..at + 512)),
        ("log: last segment", file(&segments.last().unwrap().1)),
        ("object index: page", Part::Bytes("objects/0000.redb".into(), used_page(scene))),
        ("object index: file", file("objects/0000.redb")),
        ("object index: second copy", file("objects/0000.copy")),
        ("descriptor", file("descriptor")),
        ("descriptor: second copy", file("descriptor.copy")),
        ("owner", file("owner")),
        ("record of a volume", Part::Object(b'v')),
        ("record of a layer", Part::Object(b'l')),
        ("record of a backup", Part::Object(b'b')),
    ];
    // After those of the containers.
    others.splice(5..5, index);
    others
}

fn segment_start(path: &str) -> Option<u64> {
    u64::from_str_radix(path.strip_prefix("log/")?.strip_suffix(".log")?, 16).ok()
}

/// Up to where the object index has applied the log.
fn applied(scene: &Scene) -> u64 {
    let ground: Arc<dyn Ground> = Arc::new(scene.copy());
    onefold_index::ObjectIndex::problem_of(&ground, "objects", 0).unwrap().1.unwrap().0
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

/// Damages a part, looks, repairs, and looks again: a line of the table.
fn line(scene: &Scene, name: &str, part: &Part, damage: Damage) -> Option<String> {
    let what = format!("{name} {damage:?}");
    let ground = part.damage(scene, damage)?;
    let newest = scene.states.last().unwrap();
    let before = look(&ground.snapshot(CrashPolicy::KeepAll), Mode::ReadOnly, newest);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let run = |dry_run| {
        let options = RepairOptions { dry_run, may_lose: true, memory_bytes: 1 << 20 };
        repair(shared.clone(), settings(), options, "test", &NoMonitor).unwrap_or_else(|error| panic!("{what}: {error}"))
    };
    let planned = run(true);
    let done = run(false);
    assert_eq!(planned.actions.is_empty(), done.actions.is_empty(), "{what}: {:?} {:?}", planned.actions, done.actions);
    let again = run(false);
    assert_eq!(again.actions, Vec::<String>::new(), "{what}: nothing is left to repair after {:?}", done.actions);
    let after = look(&ground, Mode::ReadWrite, newest);
    assert!(after.refused.is_none(), "{what}: {:?} after {:?}", after.refused, done.actions);
    let back = readable(&after, &scene.states, &what);
    live_on(&ground, &after, newest, &what);
    Some(format!("| {name} | {} | {} | {back} | {} |", damage.name(), said(&before), said(&after)))
}

/// Uses the store after its repair: removes and merges, overwrites, makes a volume. What could be read can be read as
/// it was.
fn live_on(ground: &SimulatedGround, before: &Look, newest: &State, what: &str) {
    let engine = open(ground, Mode::ReadWrite).unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let made = volumes.create("new", VOLUME_BYTES, BLOCK_BYTES, None).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut bytes = vec![1; VOLUME_BYTES as usize];
    made.read(0, &mut bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(bytes.iter().all(|byte| *byte == 0), "{what}: a new volume shows something");
    let data = noise(99, BLOCK_BYTES as usize);
    made.write(0, &data).unwrap();
    made.flush().unwrap();
    if let Ok(volume) = volumes.get(VOLUME) {
        // All of a block: it can be written, whatever became of it.
        volume.write(0, &data).unwrap_or_else(|error| panic!("{what}: {error}"));
        volume.flush().unwrap();
    }
    volumes.resume_deletions(&|| true).unwrap_or_else(|error| panic!("{what}: {error}"));
    let options = PruneOptions { max_unused: 0.0, ..PruneOptions::default() };
    prune(&engine, options, &NoMonitor, &|| true).unwrap_or_else(|error| panic!("{what}: {error}"));
    engine.maintain(true).unwrap();
    drop((made, volumes, engine));
    let after = look(&ground.restart(CrashPolicy::DropAll), Mode::ReadWrite, newest);
    assert!(after.refused.is_none(), "{what}: {:?}", after.refused);
    for ((offset, before), (_, after)) in before.volume.iter().zip(&after.volume) {
        let (is_overwritten, part) = (*offset < data.len() && before.is_some(), after.as_ref());
        let expected = if is_overwritten { data.get(*offset..) } else { before.as_deref() };
        let is_right = part.zip(expected).map_or(expected.is_none(), |(part, expected)| expected.starts_with(part));
        assert!(is_right || before.is_none(), "{what}: the volume at {offset} is not what it was");
    }
    let files = |look: &Look| look.backups.clone().unwrap_or_default();
    let now = files(&after);
    for (id, tree) in files(before) {
        for (path, bytes) in tree.into_iter().filter(|(_, bytes)| bytes.is_some()) {
            assert!(now.get(&id).and_then(|tree| tree.get(&path)) == Some(&bytes), "{what}: a file of backup {id} is not what it was");
        }
    }
}

#[test]
fn the_table_of_damages_is_what_is_found() {
    let mut lines = Vec::new();
    let scene = Scene::merged();
    for (name, part) in parts(&scene) {
        lines.extend(DAMAGES.iter().filter_map(|damage| line(&scene, name, &part, *damage)));
    }
    let page = include_str!("../../../../docs/damage.md");
    // Those of buckets are in another test.
    let page = page.split("\n## ").next().expect("the first part");
    let documented = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let documented: Vec<String> = match crate::PROFILE.is_exact() {
        true => documented.map(str::to_owned).collect(),
        // The page says what differs without a chunk index.
        false => documented.filter(|line| !line.starts_with("| chunk index")).map(|line| line.replace("wrong_address, ", "")).collect(),
    };
    let found = lines.join("\n");
    let agree = lines.len() == documented.len() && lines.iter().zip(&documented).all(|(line, documented)| is_within(line, documented));
    assert!(agree, "docs/damage.md does not say what is found:\n{found}\n");
}

/// Whether a line is the documented one, or says that less is lost. How much of the log and of the headers of the chunk
/// index is in use when the store stops depends on how threads took turns: a damage there may be felt by nobody. One in
/// the last segment may meet the last batch, which is then as if it had never been written.
fn is_within(line: &str, documented: &str) -> bool {
    let columns = |line: &str| line.trim_matches('|').split(" | ").map(|column| column.trim().to_owned()).collect::<Vec<String>>();
    let (found, documented) = (columns(line), columns(documented));
    let losses = ["older", "what is named"];
    let may_be_unused = found[0].starts_with("log:") || found[0] == "chunk index: header";
    let is_unfelt = may_be_unused && found[2..] == ["clean", "all", "clean"];
    let is_lost_end = found[0] == "log: last segment" && found[2..] == ["clean", "an older state", "clean"];
    found[..2] == documented[..2]
        && (found[2] == documented[2] || is_unfelt || is_lost_end)
        && losses.iter().all(|loss| !found[3].contains(loss) || documented[3].contains(loss))
        && (found[4] == documented[4] || found[4] == "clean")
}

#[test]
fn a_salvage_that_a_crash_cuts_short_is_done_again() {
    let scene = Scene::merged();
    let parts = parts(&scene);
    let mut damaged_markers = 0;
    for (wanted, damage) in [
        ("log: header of a segment", Damage::Deleted),
        ("log: a batch that is not applied", Damage::Truncated),
        ("owner", Damage::Zeroed),
        ("object index: file", Damage::Deleted),
    ] {
        let (_, part) = parts.iter().find(|(name, _)| *name == wanted).unwrap();
        let damaged = part.damage(&scene, damage).unwrap();
        let run = |ground: &SimulatedGround| {
            let shared: Arc<dyn Ground> = Arc::new(ground.clone());
            salvage(&shared, &settings(), SalvageOptions { dry_run: false, may_lose: true }, "test", &NoMonitor)
        };
        let result = |ground: &SimulatedGround| {
            let found = look(ground, Mode::ReadWrite, scene.states.last().unwrap());
            let what = format!("{wanted} {damage:?} {:?}", found.refused);
            let volume: Vec<_> = found.volume.iter().map(|(_, bytes)| bytes.clone()).collect();
            // Whether a container without a footer stays or is set aside depends on whether segments of the log are
            // left; its chunks are lost either way.
            let said = said(&found).replace("container, ", "");
            (readable(&found, &scene.states, &what), said, volume)
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
                if ground.exists("log/replacing").unwrap() {
                    // Damaged on top of it.
                    let marked = ground.snapshot(CrashPolicy::KeepAll);
                    marked.corrupt("log/replacing", 3, 0x40).unwrap();
                    run(&marked).unwrap();
                    let found = result(&marked);
                    assert!(
                        found == expected,
                        "{wanted} {damage:?}, sync {sync} of {syncs}, {policy:?}, marker damaged: {}",
                        differ(&found, &expected)
                    );
                    damaged_markers += 1;
                }
                // What opens before the repair is done again is sound.
                if let Ok(engine) = open(&ground, Mode::ReadOnly) {
                    drop(engine);
                    readable(&look(&ground, Mode::ReadOnly, scene.states.last().unwrap()), &scene.states, wanted);
                }
                run(&ground).unwrap();
                let found = result(&ground);
                assert!(found == expected, "{wanted} {damage:?}, sync {sync} of {syncs}, {policy:?}: {}", differ(&found, &expected));
            }
        }
    }
    assert!(damaged_markers > 3, "{damaged_markers}");
}

/// What was found and expected: what can be read, what a check says, the parts of the volume.
type Found = (String, String, Vec<Option<Vec<u8>>>);

/// Where what was found is not what was expected, for a person.
fn differ(found: &Found, expected: &Found) -> String {
    let parts = found.2.iter().zip(&expected.2).enumerate().filter(|(_, (found, expected))| found != expected);
    let parts: Vec<_> = parts.map(|(part, (found, expected))| (part, found.is_some(), expected.is_some())).collect();
    format!(
        "{:?}, not {:?}; parts of the volume, whether they were and should be read: {parts:?}",
        (&found.0, &found.1),
        (&expected.0, &expected.1)
    )
}

#[test]
fn object_index_and_log_may_be_damaged_at_once_as_long_as_there_is_a_second_copy() {
    let scene = Scene::merged();
    let parts = parts(&scene);
    let part = |wanted| &parts.iter().find(|(name, _)| *name == wanted).unwrap().1;
    let run = |ground: &SimulatedGround, dry_run| {
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        salvage(&shared, &settings(), SalvageOptions { dry_run, may_lose: true }, "test", &NoMonitor).map(|done| done.sentences)
    };
    let remove_log = |ground: &SimulatedGround| {
        for path in scene.files().iter().filter(|path| segment_start(path).is_some()) {
            ground.remove(path).unwrap();
        }
    };
    for (wanted, damage) in [("object index: page", Damage::Zeroed), ("object index: file", Damage::Deleted)] {
        for log in [Some("log: a batch that is applied"), Some("log: last segment"), None] {
            let what = format!("{wanted} and {log:?}");
            let ground = part(wanted).damage(&scene, damage).unwrap();
            match log {
                Some(log) => {
                    let Part::Bytes(path, range) = part(log) else { unreachable!() };
                    ground
                        .open(path, Access::ReadWrite)
                        .unwrap()
                        .write_at(range.start, &vec![0; (range.end - range.start) as usize])
                        .unwrap();
                }
                None => remove_log(&ground),
            }
            // Whether the log was ever trimmed cannot be told from a log that is gone.
            let without_copy = ground.snapshot(CrashPolicy::KeepAll);
            without_copy.remove("objects/0000.copy").unwrap();
            for dry_run in [true, false].into_iter().filter(|_| damage == Damage::Deleted) {
                let error = run(&without_copy, dry_run).unwrap_err().to_string();
                assert!(error.contains("second copy"), "{what}: {error}");
            }
            let planned = run(&ground, true).unwrap_or_else(|error| panic!("{what}: {error}"));
            let done = run(&ground, false).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(planned.len() > 3 && done.len() > 3, "{what}: {planned:?} {done:?}");
            assert_eq!(run(&ground, false).unwrap(), Vec::<String>::new(), "{what}");
            let found = look(&ground, Mode::ReadWrite, scene.states.last().unwrap());
            assert!(
                found.refused.is_none() && found.backups.as_ref().is_some_and(|backups| !backups.is_empty()),
                "{what}: {:?}",
                found.refused
            );
            readable(&found, &scene.states, &what);
        }
    }
}
