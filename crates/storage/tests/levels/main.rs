//! Levelled stores beside a model, under crashes, failures and full disks.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod moving;
mod shrinking;

use common::Dice;
use common::levels::*;
use onefold_fingerprint::Algorithm;
use onefold_ground::simulation::seeds::Seeds;
use onefold_ground::simulation::trials::*;
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround};
use onefold_oplog::{Position, Pressure, Record};
use onefold_storage::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Everything that a store can do, in any order, until the first error.
fn work(world: &mut LevelsWorld, known: &mut KnownLevels, dice: &mut Dice, steps: u64) -> Result<()> {
    let mut writers: Vec<Box<dyn ChunkWriter>> = (0..2).map(|_| world.store.clone().new_writer()).collect();
    writers[1].be_sequential();
    for _ in 0..steps {
        match dice.below(21) {
            0..=6 => {
                let numbers: Vec<u64> = (known.next..known.next + 1 + dice.below(9)).collect();
                known.next += numbers.len() as u64;
                world.append(&mut *writers[dice.below(2) as usize], &numbers)?;
            }
            // Stored again after its removal.
            7 => {
                let again: Vec<u64> = known
                    .removed
                    .iter()
                    .copied()
                    .filter(|number| !world.pending.contains_key(number))
                    .filter(|_| dice.below(2) == 0)
                    .take(6)
                    .collect();
                world.append(&mut *writers[dice.below(2) as usize], &again)?;
            }
            8 | 9 => world.flush(known)?,
            10 => {
                let prepared = world.store.prepare(Scope::FullFrames)?;
                world.commit(known, prepared);
            }
            11 => {
                let scope = if dice.below(2) == 0 { Scope::Everything } else { Scope::FullFrames };
                let prepared = world.store.prepare(scope)?;
                let numbers: Vec<u64> = (known.next..known.next + 1 + dice.below(9)).collect();
                known.next += numbers.len() as u64;
                let more = world.append(&mut *writers[0], &numbers);
                match dice.below(2) {
                    0 => world.store.abandoned(prepared),
                    _ => world.commit(known, prepared),
                }
                more?;
            }
            12 | 13 => {
                let share = 2 + dice.below(4);
                let dead: Vec<u64> = known.live.keys().copied().filter(|_| dice.below(share) == 0).collect();
                let gives_up = dice.below(4) == 0;
                world.remove(known, &dead, gives_up)?;
            }
            14 if dice.below(2) == 0 => drop(world.store.shrink(&|| true)?),
            14 => drop(world.store.compact(&|| true)?),
            // Writing goes on beside a compaction, which is installed or given up.
            15 => {
                let store = world.store.clone();
                let merged = store.merge(&|| true)?;
                let numbers: Vec<u64> = (known.next..known.next + 1 + dice.below(9)).collect();
                known.next += numbers.len() as u64;
                world.append(&mut *writers[0], &numbers)?;
                if dice.below(2) == 0 {
                    world.flush(known)?;
                }
                if let Some(merged) = merged.filter(|_| dice.below(3) > 0) {
                    merged.install()?;
                }
            }
            16 => drop(world.store.step()?),
            17 => world.trim(known, dice.below(2) == 0)?,
            18 => world.store.leave(),
            19 => drop(world.store.compact(&|| false)?),
            _ => {
                let to = (dice.below(2) == 0).then_some(Path::new("disk"));
                moving::move_all(&world.store, to, &mut || dice.below(4) == 0)?;
            }
        }
    }
    world.flush(known)
}

struct Levels {
    steps: u64,
    partitions: u16,
}

impl Subject for Levels {
    type Part = LevelsWorld;
    type Known = (KnownLevels, u64);

    fn create(&self, seed: u64) -> (SimulatedGround, Self::Known) {
        let ground = SimulatedGround::new(seed);
        LevelsStore::create(&ground, LEVELS, self.partitions, &levels_options()).unwrap();
        (ground, (KnownLevels::default(), 7))
    }

    fn open(&self, ground: &SimulatedGround, known: &mut Self::Known) -> std::result::Result<LevelsWorld, String> {
        LevelsWorld::open(ground, &known.0, self.partitions).map_err(|error| error.to_string())
    }

    fn work(&self, world: &mut LevelsWorld, known: &mut Self::Known) -> std::result::Result<(), String> {
        let mut dice = Dice::of(known.1);
        known.1 += 1;
        work(world, &mut known.0, &mut dice, self.steps).map_err(|error| error.to_string())
    }

    fn compare(&self, _: &SimulatedGround, world: &mut LevelsWorld, known: &mut Self::Known) {
        world.check(&known.0);
    }
}

const ONE: Levels = Levels { steps: 60, partitions: 1 };

#[test]
fn m2_7_m2_8_any_history_leaves_just_what_was_put_and_not_deleted() {
    Seeds::of(150).each(|seed| {
        let ground = SimulatedGround::new(seed);
        LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
        let mut known = KnownLevels::default();
        let mut dice = Dice::of(seed);
        for _ in 0..4 {
            let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
            world.check(&known);
            work(&mut world, &mut known, &mut dice, 60).unwrap();
            world.check(&known);
            let reader = LevelsWorld::open_for(&ground, &known, 1, Access::Read).unwrap();
            reader.check(&known);
        }
    });
}

#[test]
fn m2_8_compaction_gives_back_the_space_of_what_was_removed() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    let mut writer = world.store.clone().new_writer();
    for _ in 0..60 {
        let numbers: Vec<u64> = (known.next..known.next + 10).collect();
        known.next += 10;
        world.append(&mut *writer, &numbers).unwrap();
        world.flush(&mut known).unwrap();
        while world.store.compact(&|| true).unwrap() {}
    }
    let levels = world.store.levels();
    assert!(levels.len() >= 4, "{levels:?}");
    for (level, figures) in levels.iter().enumerate().take(levels.len() - 1).skip(1) {
        assert!(figures.raw_bytes <= figures.capacity_bytes, "level {level}: {figures:?}");
    }
    let bytes = |world: &LevelsWorld| world.store.usage(None).unwrap().disk_bytes;
    let full = bytes(&world);
    let dead: Vec<u64> = known.live.keys().copied().filter(|number| number % 10 != 0).collect();
    world.remove(&mut known, &dead, false).unwrap();
    world.trim(&mut known, true).unwrap();
    while world.store.compact(&|| true).unwrap() {}
    world.check(&known);
    let left = bytes(&world);
    assert!(left < full / 4, "{left} of {full}");
    let tables: u64 = world.store.levels().iter().map(|level| level.tables).sum();
    let files = ground.list("levels/0000").unwrap().into_iter().filter(|entry| entry.name.ends_with(".table")).count();
    assert_eq!(files as u64, tables, "no file of a merged table is left");
    let tombstones: u64 = world.store.levels().iter().map(|level| level.tombstones).sum();
    assert!(tombstones * 20 < known.live.len() as u64 + tombstones, "{tombstones}");
}

fn table_files(ground: &SimulatedGround) -> Vec<String> {
    ground.list("levels/0000").unwrap().into_iter().map(|entry| entry.name).filter(|name| name.ends_with(".table")).collect()
}

/// Appends so many chunks and flushes them.
fn fill(world: &mut LevelsWorld, known: &mut KnownLevels, count: u64) {
    let mut writer = world.store.clone().new_writer();
    let numbers: Vec<u64> = (known.next..known.next + count).collect();
    known.next += count;
    world.append(&mut *writer, &numbers).unwrap();
    world.flush(known).unwrap();
}

#[test]
fn m2_8_a_compaction_is_in_use_once_it_is_installed_and_not_before() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    assert_eq!(world.store.compaction_pressure(), Pressure::Idle);
    assert!(world.store.merge(&|| true).unwrap().is_none());
    fill(&mut world, &mut known, 30);
    assert_eq!(world.store.compaction_pressure(), Pressure::Behind);
    let before = table_files(&ground);
    assert!(world.store.merge(&|| false).unwrap().is_none());
    let store = world.store.clone();
    let merged = store.merge(&|| true).unwrap().unwrap();
    assert!(table_files(&ground).len() > before.len());
    assert!(store.merge(&|| true).unwrap().is_none(), "one compaction at a time");
    world.check(&known);
    drop(merged);
    assert_eq!(table_files(&ground), before);
    let merged = store.merge(&|| true).unwrap().unwrap();
    fill(&mut world, &mut known, 1200);
    assert_eq!(store.compaction_pressure(), Pressure::Full);
    merged.install().unwrap();
    assert!(before.iter().all(|name| !table_files(&ground).contains(name)));
    world.check(&known);
    while store.compact(&|| true).unwrap() {}
    assert_eq!(store.compaction_pressure(), Pressure::Idle);
    world.check(&known);
    let work = store.work();
    assert!(work.flushed_bytes > 0 && work.merge_written_bytes > 0 && work.merge_read_bytes > work.flushed_bytes, "{work:?}");
    assert!(work.gets >= 3 * 30 && work.page_reads > 0 && work.frame_reads > 0, "{work:?}");
}

#[test]
fn m2_8_partitions_are_compacted_beside_each_other() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 2, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 2).unwrap();
    (0..2).for_each(|_| fill(&mut world, &mut known, 30));
    let store = world.store.clone();
    let (one, other) = (store.merge(&|| true).unwrap().unwrap(), store.merge(&|| true).unwrap().unwrap());
    assert!(store.merge(&|| true).unwrap().is_none());
    other.install().unwrap();
    one.install().unwrap();
    world.check(&known);
}

#[test]
fn m2_7_a_removal_outlives_the_bytes_of_its_chunk_in_the_log() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    fill(&mut world, &mut known, 3);
    // Their memtable is full, and its table is written. The log names it after the removal.
    let mut writer = world.store.clone().new_writer();
    world.append(&mut *writer, &(3..30).collect::<Vec<_>>()).unwrap();
    known.next = 30;
    world.remove(&mut known, &[0, 1, 2], false).unwrap();
    world.flush(&mut known).unwrap();
    world.trim(&mut known, false).unwrap();
    assert!(known.log.start() > Position(0));
    LevelsWorld::open_for(&ground, &known, 1, Access::Read).unwrap().check(&known);
}

#[test]
fn m2_5_the_log_has_the_bytes_of_a_memtable_until_its_table_is_durable() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    fill(&mut world, &mut known, 4);
    assert!(table_files(&ground).is_empty());
    let held = known.log.batches.last().unwrap().1.clone();
    assert!(held.iter().all(|record| record.kind == CHUNKS_HELD) && !held.is_empty());
    LevelsWorld::open(&ground.snapshot(CrashPolicy::DropAll), &known, 1).unwrap().check(&known);
    // Its table has these chunks and more. The log names only the others with it.
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    let before = known.live.len();
    fill(&mut world, &mut known, 10);
    let written: Vec<_> = known.log.batches.last().unwrap().1.iter().filter(|record| record.kind == TABLE_WRITTEN).collect();
    let (mut named, mut notes) = (Vec::new(), Vec::new());
    let digest_bytes = LevelsOptions::default().fingerprint.digest_bytes();
    written.iter().for_each(|record| stored_chunks(record, digest_bytes, &mut named, &mut notes).unwrap());
    assert!(!written.is_empty() && !named.is_empty());
    let old: BTreeSet<_> = (0..before as u64).map(|number| chunk(number).0).collect();
    assert!(named.iter().all(|(name, _)| !old.contains(name)));
    LevelsWorld::open(&ground.restart(CrashPolicy::DropAll), &known, 1).unwrap().check(&known);
}

#[test]
fn m2_7_chunks_are_removed_while_memtables_are_sealed() {
    for seed in 0..20 {
        let ground = SimulatedGround::new(seed);
        LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
        let mut known = KnownLevels::default();
        let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
        fill(&mut world, &mut known, 150);
        let store = world.store.clone();
        let (old, log) = (known.live.clone(), Mutex::new(std::mem::take(&mut known.log)));
        // As an engine does it: one batch at a time, and removals take effect behind their batch, beside all others.
        let commit = |scope: Option<Scope>, records: Vec<Record>| {
            let mut log = log.lock().unwrap();
            let mut prepared = scope.map_or_else(Prepared::default, |scope| store.prepare(scope).unwrap());
            let records = [std::mem::take(&mut prepared.records), records].concat();
            if !records.is_empty() {
                let (start, end) = log.append(records);
                store.committed(prepared, start, end);
            }
        };
        let (mut added, mut removed) = (BTreeMap::new(), BTreeSet::new());
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut writer = store.clone().new_writer();
                for number in 1000..1200 {
                    let (fingerprint, kind, data) = chunk(number);
                    let addresses = writer.append(&[NewChunk { fingerprint, kind, data: &data }]).unwrap();
                    added.insert(number, addresses[0]);
                    if number % 11 == 0 {
                        commit(Some(Scope::Everything), Vec::new());
                    }
                }
            });
            threads.spawn(|| {
                for (number, address) in old.iter().filter(|(number, _)| *number % 3 > 0) {
                    let chunks = [(*address, chunk(*number).0)];
                    commit(None, store.begin_removal(&chunks).unwrap());
                    store.removed(&chunks);
                    removed.insert(*number);
                }
            });
        });
        commit(Some(Scope::Everything), Vec::new());
        known.log = log.into_inner().unwrap();
        known.live.extend(added);
        known.live.retain(|number, _| !removed.contains(number));
        known.removed = removed;
        world.check(&known);
        if seed % 2 == 0 {
            // The manifest has as much as it can have, and the log only the rest.
            store.leave();
            world.trim(&mut known, false).unwrap();
        }
        LevelsWorld::open_for(&ground, &known, 1, Access::Read).unwrap().check(&known);
        let world = LevelsWorld::open(&ground, &known, 1).unwrap();
        while world.store.compact(&|| true).unwrap() {}
        world.check(&known);
    }
}

#[test]
fn m2_5_two_owners_never_write_under_one_number() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut stalled = LevelsWorld::open(&ground, &known, 1).unwrap();
    fill(&mut stalled, &mut known, 33);
    let before: BTreeSet<String> = table_files(&ground).into_iter().collect();
    // The log has the bytes of an open memtable. The next owner goes on with it.
    assert!(known.log.batches.last().unwrap().1.iter().any(|record| record.kind == CHUNKS_HELD));
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    fill(&mut world, &mut known, 30);
    let new: Vec<String> = table_files(&ground).into_iter().filter(|name| !before.contains(name)).collect();
    assert!(!new.is_empty() && new.iter().all(|name| name.starts_with("00000002")), "{new:?}");
    // The first owner wakes up. Nothing that it does is logged, and nothing of it counts.
    let merged = stalled.store.clone();
    let merged = merged.merge(&|| true).unwrap().unwrap();
    let mut writer = stalled.store.clone().new_writer();
    // The next owner has removed the file that was to become its table.
    assert!(stalled.append(&mut *writer, &(1000..1030).collect::<Vec<_>>()).is_err());
    stalled.append(&mut *writer, &(1030..1060).collect::<Vec<_>>()).unwrap();
    fill(&mut world, &mut known, 30);
    assert!(matches!(merged.install(), Err(StorageError::Fenced { .. })));
    let epochs: BTreeSet<u64> = table_files(&ground).iter().map(|name| u64::from_str_radix(&name[..8], 16).unwrap()).collect();
    assert_eq!(epochs, BTreeSet::from([1, 2]));
    world.check(&known);
    let reader = LevelsWorld::open_for(&ground, &known, 1, Access::Read).unwrap();
    reader.check(&known);
    LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
}

/// Runs a process that dies at some operation. Returns what it left, and what must be there.
fn killed(operation: u64) -> (SimulatedGround, KnownLevels) {
    let (ground, mut known) = ONE.create(operation);
    ground.crash_after_operations(operation);
    if let Ok(mut world) = ONE.open(&ground, &mut known) {
        let _ = ONE.work(&mut world, &mut known);
    }
    (ground.restart(CrashPolicy::KeepAll), known.0)
}

#[test]
fn m2_7_a_replay_passes_over_what_the_manifest_has() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    fill(&mut world, &mut known, 40);
    let dead: Vec<u64> = known.live.keys().copied().collect();
    world.remove(&mut known, &dead, false).unwrap();
    assert!(world.store.checkpoint_before(known.log.end()).unwrap().is_empty());
    let prepared = world.store.prepare(Scope::FullFrames).unwrap();
    world.commit(&mut known, prepared);
    world.store.leave();
    while world.store.compact(&|| true).unwrap() {}
    drop(world);
    // The log still has the removals. They leave nothing behind.
    let world = LevelsWorld::open(&ground, &known, 1).unwrap();
    assert_eq!(world.store.position(), known.log.end());
    world.check(&known);
}

#[test]
fn m2_5_removals_alone_fill_a_memtable() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    (0..20).for_each(|_| fill(&mut world, &mut known, 20));
    world.trim(&mut known, true).unwrap();
    let before = world.store.levels().iter().map(|level| level.tombstones).sum::<u64>();
    let dead: Vec<u64> = known.live.keys().copied().collect();
    dead.chunks(50).for_each(|dead| world.remove(&mut known, dead, false).unwrap());
    let tombstones = world.store.levels().iter().map(|level| level.tombstones).sum::<u64>() - before;
    assert!(tombstones >= 256, "{tombstones}");
    world.flush(&mut known).unwrap();
    while world.store.compact(&|| true).unwrap() {}
    world.check(&known);
}

#[test]
fn m2_8_a_killed_process_then_another_then_a_power_cut_lose_no_committed_chunk() {
    assert!(kills_then_power_cuts(&ONE, 150) > 40);
    assert!(kills_then_power_cuts(&Levels { partitions: 3, ..ONE }, 40) > 10);
}

#[test]
fn m2_8_a_failed_operation_then_another_process_then_a_power_cut_lose_no_committed_chunk() {
    assert!(failures_then_power_cuts(&ONE, 150) > 40);
}

#[test]
fn m2_7_a_query_that_fails_loses_no_committed_chunk() {
    assert!(failed_queries_of_openings(&ONE, 20, 20) > 20);
    assert!(failed_queries_of_work(&ONE, true, 100) > 20);
}

#[test]
fn m2_7_a_load_of_many_chunks_in_frames_of_their_own_ends() {
    let ground = SimulatedGround::new(1);
    let options = LevelsOptions { frame_bytes: 512, ..levels_options() };
    LevelsStore::create(&ground, LEVELS, 1, &options).unwrap();
    let store = LevelsStore::open(Arc::new(ground), LEVELS, 1, 1, options, Default::default(), Access::ReadWrite).unwrap();
    store.recovered(Position(0), Position(0)).unwrap();
    let mut writer = store.clone().new_writer();
    let name = |number: u32| Algorithm::Blake3.fingerprint(&number.to_le_bytes());
    let chunks: Vec<_> = (0..3000).map(|number| (name(number), number.to_le_bytes().repeat(200))).collect();
    let mut wanted = Vec::new();
    for (fingerprint, data) in &chunks {
        let new = NewChunk { fingerprint: *fingerprint, kind: ChunkKind::Data, data };
        wanted.extend(writer.append(&[new]).unwrap().into_iter().map(|address| (address, *fingerprint)));
    }
    let mut prepared = store.prepare(Scope::Everything).unwrap();
    let (start, end) = common::Log::default().append(std::mem::take(&mut prepared.records));
    store.committed(prepared, start, end);
    while store.compact(&|| true).unwrap() {}
    let mut slices = Vec::new();
    store.load(&wanted, &mut slices).unwrap();
    assert!(slices.iter().zip(&chunks).all(|(slice, (_, data))| slice[..] == data[..]));
    // Each needs a page and a frame. Frames that lie beside each other are read together.
    let work = store.work();
    assert!((3000..3500).contains(&work.page_reads) && work.frame_reads <= 3000, "{work:?}");
}

#[test]
fn m2_7_a_chunk_that_was_stored_again_is_not_hidden_by_its_old_copy() {
    let ground = SimulatedGround::new(1);
    let options = LevelsOptions { frame_cache_bytes: 1 << 20, ..levels_options() };
    LevelsStore::create(&ground, LEVELS, 1, &options).unwrap();
    let store = LevelsStore::open(Arc::new(ground), LEVELS, 1, 1, options, Default::default(), Access::ReadWrite).unwrap();
    store.recovered(Position(0), Position(0)).unwrap();
    let mut writer = store.clone().new_writer();
    let mut log = common::Log::default();
    // Makes a table of the open memtable: the log is not needed then.
    let mut flush = || {
        for _ in 0..2 {
            let mut prepared = store.prepare(Scope::Everything).unwrap();
            let (start, end) = log.append(std::mem::take(&mut prepared.records));
            store.committed(prepared, start, end);
            drop(store.checkpoint_before(end).unwrap());
        }
    };
    let names: Vec<_> = (0..6u8).map(|number| Algorithm::Blake3.fingerprint(&[number])).collect();
    let mut append = |number: usize, data: &[u8]| {
        let addresses = writer.append(&[NewChunk { fingerprint: names[number], kind: ChunkKind::Data, data }]).unwrap();
        (addresses[0], names[number])
    };
    let load = |wanted| {
        let mut slices = Vec::new();
        store.load(&[wanted], &mut slices).unwrap();
        slices[0].to_vec()
    };
    // The frame has the right checksum, and wrong bytes of some chunks.
    let wanted: Vec<_> = (0..6).map(|number| append(number, b"bad")).collect();
    flush();
    assert_eq!(store.levels()[0].tables, 1);
    append(0, b"good");
    flush();
    append(1, b"good");
    // Both are beside this one. The second one is in the open memtable yet.
    assert_eq!(load(wanted[5]), b"bad");
    flush();
    assert_eq!([0, 1, 2].map(|number| load(wanted[number])), [&b"good"[..], b"good", b"bad"]);
}

#[test]
fn m2_7_who_reads_a_stream_asks_for_few_keys_also_behind_a_full_compaction() {
    let options = LevelsOptions { frame_cache_bytes: 256 << 10, ..levels_options() };
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &options).unwrap();
    let open =
        || LevelsStore::open(Arc::new(ground.clone()), LEVELS, 1, 1, options.clone(), Default::default(), Access::ReadWrite).unwrap();
    let store = open();
    store.recovered(Position(0), Position(0)).unwrap();
    let mut writer = store.clone().new_writer();
    writer.be_sequential();
    let chunks: Vec<_> = (0..300).map(|number| chunk(5 * number + 3)).collect();
    let mut wanted = Vec::new();
    for (fingerprint, kind, data) in &chunks {
        let new = NewChunk { fingerprint: *fingerprint, kind: *kind, data };
        wanted.extend(writer.append(&[new]).unwrap().into_iter().map(|address| (address, *fingerprint)));
    }
    let mut log = common::Log::default();
    let mut prepared = store.prepare(Scope::Everything).unwrap();
    let (start, end) = log.append(std::mem::take(&mut prepared.records));
    store.committed(prepared, start, end);
    let reads = |store: &LevelsStore, together: usize| {
        let before = store.work();
        for (wanted, chunks) in wanted.chunks(together).zip(chunks.chunks(together)) {
            let mut slices = Vec::new();
            store.load(wanted, &mut slices).unwrap();
            assert!(slices.iter().zip(chunks).all(|(slice, (_, _, data))| slice[..] == data[..]));
        }
        let after = store.work();
        (after.page_reads - before.page_reads, after.frame_reads - before.frame_reads)
    };
    for together in [1, 30] {
        let (pages, frames) = reads(&store, together);
        assert!(pages < 300 / 4 && frames < 300 / 4, "{together}: {pages} {frames}");
    }
    while store.compact(&|| true).unwrap() {}
    assert!(store.levels().len() > 2, "{:?}", store.levels());
    for together in [1, 30] {
        let (pages, frames) = reads(&store, together);
        assert!(pages < 300 / 3 && frames < 300 / 3, "{together}: {pages} {frames}");
    }
}

#[test]
fn m2_10_a_stream_goes_to_the_partition_with_the_fewest_streams_and_the_least_in_it() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 3, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 3).unwrap();
    let mut next = 0..;
    let mut append = |world: &mut LevelsWorld, writer: &mut dyn ChunkWriter, count: usize| {
        let numbers: Vec<u64> = next.by_ref().take(count).collect();
        known.next = numbers[count - 1] + 1;
        world.append(writer, &numbers).unwrap();
        world.pending[&numbers[0]].bits() >> 48
    };
    let writer = |world: &LevelsWorld| world.store.clone().new_writer();
    let mut writers: Vec<_> = (0..3).map(|_| writer(&world)).collect();
    let first: BTreeSet<u64> = (0..3).map(|at| append(&mut world, &mut *writers[at], 10 - 3 * at)).collect();
    assert_eq!(first, [0, 1, 2].into(), "one stream each");
    drop(writers);
    let mut one = writer(&world);
    assert_eq!(append(&mut world, &mut *one, 1), 2, "the emptiest");
    let mut other = writer(&world);
    assert_eq!(append(&mut world, &mut *other, 1), 1, "that one has a stream");
    drop((one, other));
    let bytes = world.store.partition_bytes();
    assert!(bytes[0] > bytes[1] && bytes[1] > bytes[2], "{bytes:?}");
}
