//! Damaged manifests and tables of a levelled store.

use super::*;
use onefold_fingerprint::Fingerprint;

/// Returns which of the chunks are damaged. The others are there, byte for byte.
fn damaged(world: &LevelsWorld, known: &KnownLevels) -> BTreeSet<u64> {
    let mut damaged = BTreeSet::new();
    for (number, address) in &known.live {
        let (name, _, data) = chunk(*number);
        let mut slices = Vec::new();
        match world.store.load(&[(*address, name)], &mut slices) {
            Ok(()) => assert!(slices[0][..] == data[..], "chunk {number}"),
            Err(error) => {
                assert!(error.is_damage() && !matches!(error, StorageError::NotThere { .. }), "chunk {number}: {error}");
                damaged.insert(*number);
            }
        }
    }
    damaged
}

/// Takes chunks out of what must be there.
fn forget(known: &mut KnownLevels, gone: &BTreeSet<u64>) {
    known.live.retain(|number, _| !gone.contains(number));
}

/// Returns how much damage a check finds.
fn verified(world: &LevelsWorld) -> usize {
    let verify = |unit| world.store.verify(unit, true, &mut Default::default(), &mut |_| {}).unwrap().damage.len();
    world.store.units().unwrap().iter().map(verify).sum()
}

/// Makes a store with several levels. Its log names tables that the manifest does not list.
fn history(seed: u64) -> (SimulatedGround, KnownLevels) {
    let ground = SimulatedGround::new(seed);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    work(&mut world, &mut known, &mut Dice::of(seed), 100).unwrap();
    fill(&mut world, &mut known, 60);
    while world.store.compact(&|| true).unwrap() {}
    fill(&mut world, &mut known, 15);
    fill(&mut world, &mut known, 15);
    let levels = world.store.levels();
    assert!(levels.iter().filter(|level| level.tables > 0).count() >= 3, "{levels:?}");
    drop(world);
    (ground, known)
}

#[test]
fn m2_8_a_damaged_manifest_is_harmless_at_any_moment() {
    for operation in 0..150 {
        let (left, known) = killed(operation);
        for name in ["manifest", "manifest-copy"] {
            let path = format!("levels/0000/{name}");
            let ground = left.snapshot(CrashPolicy::KeepAll);
            match operation % 3 {
                0 => ground.remove(&path).unwrap(),
                _ => ground.corrupt(&path, operation % 40, 1).unwrap(),
            }
            LevelsWorld::open_for(&ground, &known, 1, Access::Read).unwrap().check(&known);
            LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
            // The next opening reads the one that was not damaged before: both were written.
            for other in ["manifest", "manifest-copy"] {
                let ground = ground.snapshot(CrashPolicy::DropAll);
                ground.corrupt(&format!("levels/0000/{other}"), operation % 40, 1).unwrap();
                LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
            }
        }
    }
}

#[test]
fn m2_8_two_damaged_manifests_are_a_clear_error() {
    let (ground, known) = killed(100);
    ground.corrupt("levels/0000/manifest", 30, 1).unwrap();
    ground.remove("levels/0000/manifest-copy").unwrap();
    for access in [Access::Read, Access::ReadWrite] {
        let error = LevelsWorld::open_for(&ground, &known, 1, access).err().unwrap();
        assert!(error.is_damage() && error.to_string().contains("onefold check --repair"), "{error}");
    }
}

#[test]
fn m2_6_damage_costs_the_chunks_that_it_meets_and_nothing_else() {
    let ground = SimulatedGround::new(3);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    work(&mut world, &mut known, &mut Dice::of(5), 120).unwrap();
    world.trim(&mut known, true).unwrap();
    drop(world);
    let tables: Vec<String> =
        ground.list("levels/0000").unwrap().into_iter().map(|entry| entry.name).filter(|name| name.ends_with(".table")).collect();
    assert!(tables.len() > 2);
    let mut seen = BTreeSet::new();
    for name in tables {
        let path = format!("levels/0000/{name}");
        let length = ground.open(&path, Access::Read).unwrap().len().unwrap();
        for (number, at) in (0..length).step_by(199).enumerate() {
            let ground = ground.snapshot(CrashPolicy::KeepAll);
            match number % 2 {
                0 => ground.corrupt(&path, at, 1).unwrap(),
                _ => ground.make_range_unreadable(&path, at..length.min(at + 100)).unwrap(),
            }
            let world = LevelsWorld::open(&ground, &known, 1).unwrap();
            if !world.store.lost_tables().is_empty() {
                seen.insert("table");
            }
            let load = |numbers: &[u64]| -> bool {
                let chunks: Vec<_> = numbers.iter().map(|number| chunk(*number)).collect();
                let wanted: Vec<_> = numbers.iter().zip(&chunks).map(|(number, chunk)| (known.live[number], chunk.0)).collect();
                let mut slices = Vec::new();
                match world.store.load(&wanted, &mut slices) {
                    Ok(()) => assert!(slices.iter().zip(&chunks).all(|(slice, (_, _, data))| slice[..] == data[..])),
                    Err(error) => {
                        assert!(error.is_damage() && !matches!(error, StorageError::NotThere { .. }), "{error}");
                        return false;
                    }
                }
                true
            };
            let numbers: Vec<u64> = known.live.keys().copied().collect();
            let lost = numbers.iter().filter(|number| !load(&[**number])).count();
            // Damage in what lies between the frames of a load is no matter of it.
            for together in numbers.chunks(25) {
                assert!(load(together) || together.iter().any(|number| !load(&[*number])), "{path} at {at}");
            }
            let reported: usize = world
                .store
                .units()
                .unwrap()
                .iter()
                .map(|unit| world.store.verify(unit, true, &mut Default::default(), &mut |_| {}).unwrap().damage.len())
                .sum();
            assert!(reported > 0 || lost == 0, "{path} at {at}: {lost} chunks");
            seen.insert(if lost == 0 { "nothing" } else { "some" });
        }
    }
    assert_eq!(seen, BTreeSet::from(["nothing", "some", "table"]));
}

#[test]
fn m2_6_a_table_that_cannot_be_opened_costs_its_chunks_and_nothing_else() {
    let (whole, before) = history(4);
    let mut lost_some = 0;
    for (at, name) in table_files(&whole).into_iter().enumerate() {
        for action in 0..4 {
            let (ground, mut known) = (whole.snapshot(CrashPolicy::KeepAll), before.clone());
            let path = format!("levels/0000/{name}");
            match action {
                0 => ground.rename(&path, "levels/0000/away").unwrap(),
                1 => ground.open(&path, Access::ReadWrite).unwrap().set_len(5000).unwrap(),
                2 => ground.corrupt(&path, 40, 1).unwrap(),
                _ => ground.corrupt(&path, 100, 1).unwrap(),
            }
            let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
            let lost = damaged(&world, &known);
            lost_some += lost.len();
            // The file of a table that nobody needs may have been left by a compaction. Such a one is removed.
            if world.store.lost_tables().is_empty() {
                assert!(lost.is_empty());
                continue;
            }
            assert!(verified(&world) > 0);
            // Writing goes on, and opening again. Levels are not compacted.
            for _ in 0..2 {
                fill(&mut world, &mut known, 40);
                assert!(!world.store.compact(&|| true).unwrap());
                assert_eq!(world.store.compaction_pressure(), Pressure::Idle);
                world.trim(&mut known, at % 2 == 0).unwrap();
                assert_eq!(damaged(&world, &known), lost);
                LevelsWorld::open_for(&ground, &known, 1, Access::Read).unwrap();
                world = LevelsWorld::open(&ground, &known, 1).unwrap();
                assert_eq!(damaged(&world, &known), lost);
                assert_eq!(world.store.lost_tables().len(), 1);
            }
            if action == 0 {
                // A loose cable: the file is there again.
                let ground = ground.snapshot(CrashPolicy::KeepAll);
                ground.rename("levels/0000/away", &path).unwrap();
                let world = LevelsWorld::open(&ground, &known, 1).unwrap();
                world.check(&known);
                while world.store.compact(&|| true).unwrap() {}
                world.check(&known);
            }
            assert_eq!(world.store.give_up_lost_tables().unwrap(), 1);
            assert_eq!(ground.exists(&format!("levels/0000/given-up/{name}")).unwrap(), action > 0);
            forget(&mut known, &lost);
            // What was removed may be back with its tombstone: it is garbage.
            known.removed.clear();
            let mut compactions = 0;
            while world.store.compact(&|| true).unwrap() {
                compactions += 1;
            }
            assert!(compactions > 0);
            assert_eq!((damaged(&world, &known).len(), verified(&world)), (0, 0));
            let world = LevelsWorld::open(&ground.restart(CrashPolicy::DropAll), &known, 1).unwrap();
            assert!(world.store.lost_tables().is_empty() && damaged(&world, &known).is_empty());
        }
    }
    assert!(lost_some > 0);
}

#[test]
fn m2_8_manifests_are_restored_from_the_tables() {
    for seed in 0..40 {
        let (ground, mut known) = if seed % 2 == 0 { killed(seed * 4) } else { history(4 + seed % 3) };
        ["manifest", "manifest-copy"].iter().for_each(|name| ground.corrupt(&format!("levels/0000/{name}"), 30, 1).unwrap());
        let epoch = known.epoch.get() + 1;
        let restore = || LevelsStore::restore_manifests(&ground, LEVELS, 1, &levels_options(), epoch).unwrap();
        assert_eq!((restore().len(), restore().len()), (1, 0));
        let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
        // Removed chunks may be back.
        let removed = std::mem::take(&mut known.removed);
        // A table that a crash left half written counts as lost: a repair cannot tell.
        world.store.give_up_lost_tables().unwrap();
        assert!(damaged(&world, &known).is_empty());
        fill(&mut world, &mut known, 30);
        let again: Vec<u64> = known.live.keys().copied().filter(|number| number % 3 == 0).collect();
        world.remove(&mut known, &again, false).unwrap();
        for round in 0..3 {
            assert_eq!((damaged(&world, &known).len(), verified(&world)), (0, 0), "seed {seed}, round {round}");
            while world.store.compact(&|| true).unwrap() {}
            assert_eq!((damaged(&world, &known).len(), verified(&world)), (0, 0), "seed {seed}, round {round}");
            fill(&mut world, &mut known, 40);
            world.trim(&mut known, round % 2 == 0).unwrap();
            world = LevelsWorld::open(&ground, &known, 1).unwrap();
        }
        // What is removed from now on stays away.
        for number in again.iter().filter(|number| !removed.contains(number)) {
            let (name, ..) = chunk(*number);
            let address = Address::from_bits(name.prefix() >> 17 | 1 << 47);
            let gone = world.store.load(&[(address, name)], &mut Vec::new());
            assert!(matches!(gone, Err(StorageError::NotThere { .. })), "seed {seed}: chunk {number}");
        }
    }
}

fn read(ground: &SimulatedGround, path: &str) -> Vec<u8> {
    let file = ground.open(path, Access::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn m2_6_a_part_of_a_table_in_a_wrong_place_is_damage() {
    // Frames of one size, and one page of keys in each table.
    let options = LevelsOptions { compression: Compression::None, frame_bytes: 1 << 10, memtable_bytes: 12 << 10, ..levels_options() };
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &options).unwrap();
    let open = |ground: &SimulatedGround, epoch| {
        let profile = std::sync::Arc::new(onefold_ground::profile::Profile::default());
        LevelsStore::open(std::sync::Arc::new(ground.clone()), LEVELS, 1, epoch, options.clone(), profile, Access::ReadWrite).unwrap()
    };
    let store = open(&ground, 1);
    store.recovered(Position(0), Position(0)).unwrap();
    let mut writer = store.clone().new_writer();
    let data: Vec<Vec<u8>> = (0..60).map(|number| vec![number; 700]).collect();
    let named: Vec<Fingerprint> = data.iter().map(|data| options.fingerprint.fingerprint(data)).collect();
    let new = |at: usize| NewChunk { fingerprint: named[at], kind: ChunkKind::Data, data: &data[at] };
    let addresses = writer.append(&(0..60).map(new).collect::<Vec<_>>()).unwrap();
    let prepared = store.prepare(Scope::Everything).unwrap();
    let records = prepared.records.clone();
    store.committed(prepared, Position(0), Position(512));
    store.leave();
    drop((writer, store));
    let paths: Vec<String> = table_files(&ground).iter().map(|name| format!("levels/0000/{name}")).collect();
    let (one, other) = (read(&ground, &paths[0]), read(&ground, &paths[1]));
    // Few keys: one page of them, then the frames.
    let (page, frames, frame_bytes) = (4096, 8192, 24 + 36 + 700);
    assert!([&one, &other].iter().all(|table| table[frames..].starts_with(b"FRM1") && table[frames + frame_bytes..].starts_with(b"FRM1")));
    let (second, of_other) = (&one[frames + frame_bytes..][..frame_bytes], &other[frames..frames + frame_bytes]);
    for (bytes, at) in [(of_other, frames), (second, frames), (&other[page..2 * page], page)] {
        let ground = ground.snapshot(CrashPolicy::KeepAll);
        ground.open(&paths[0], Access::ReadWrite).unwrap().write_at(at as u64, bytes).unwrap();
        let store = open(&ground, 2);
        let effects = onefold_oplog::Effects { start: Position(0), replayed: &records, ..Default::default() };
        store.apply(Position(512), &effects).unwrap();
        store.recovered(Position(0), Position(512)).unwrap();
        let mut damaged = 0;
        for at in 0..60 {
            let mut slices = Vec::new();
            match store.load(&[(addresses[at], named[at])], &mut slices) {
                Ok(()) => assert!(slices[0][..] == data[at][..], "wrong bytes"),
                Err(error) => {
                    assert!(matches!(error, StorageError::SortedTable { .. }), "{error}");
                    damaged += 1;
                }
            }
        }
        assert!(damaged > 0, "{at}");
    }
}

/// Returns where the frames of a table begin, and its length.
fn frames_of(ground: &SimulatedGround, path: &str) -> (u64, u64) {
    let bytes = read(ground, path);
    let first = bytes.windows(4).position(|four| four == b"FRM1").expect("a table with chunks");
    (first as u64, bytes.len() as u64)
}

#[test]
fn m2_8_compaction_goes_on_beside_damaged_tables_and_drops_nothing() {
    let (whole, before) = history(4);
    let mut rewritten = 0;
    for (at, name) in table_files(&whole).into_iter().enumerate() {
        for part in ["page", "frame"] {
            let (ground, mut known) = (whole.snapshot(CrashPolicy::KeepAll), before.clone());
            let path = format!("levels/0000/{name}");
            let (start, length) = frames_of(&ground, &path);
            let place = if part == "page" { start - 4096 + 20 } else { start + (length - start) / 2 };
            ground.corrupt(&path, place, 1).unwrap();
            let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
            let lost = damaged(&world, &known);
            let mut compactions = 0;
            for _ in 0..6 {
                fill(&mut world, &mut known, 40);
                // A few attempts may meet the damage. Then the table is left alone.
                let mut failures = 0;
                loop {
                    match world.store.compact(&|| true) {
                        Ok(true) => compactions += 1,
                        Ok(false) => break,
                        Err(error) => {
                            assert!(error.is_damage() && failures < 3, "{error}");
                            failures += 1;
                        }
                    }
                }
                assert_eq!(damaged(&world, &known), lost, "{name} {part}");
            }
            // A repair looks at everything first.
            verified(&world);
            rewritten += world.store.compact_damaged().unwrap();
            forget(&mut known, &lost);
            if part == "page" {
                // Tombstones were in it too.
                known.removed.clear();
            }
            assert_eq!((damaged(&world, &known).len(), verified(&world)), (0, 0), "{name} {part}");
            assert_eq!(world.store.compact_damaged().unwrap(), 0);
            while world.store.compact(&|| true).unwrap() {
                compactions += 1;
            }
            assert!(compactions > 0, "{at} {name} {part}");
            for (number, address) in before.live.iter().filter(|(number, _)| lost.contains(number)) {
                let gone = world.store.load(&[(*address, chunk(*number).0)], &mut Vec::new());
                assert!(matches!(gone, Err(StorageError::NotThere { .. }) | Ok(())), "{gone:?}");
            }
            let world = LevelsWorld::open(&ground.restart(CrashPolicy::DropAll), &known, 1).unwrap();
            assert!(damaged(&world, &known).is_empty());
        }
    }
    assert!(rewritten > 5, "{rewritten}");
}

/// Returns which memtable a record is of.
fn memtable_of(record: &Record) -> u64 {
    onefold_ground::wire::Reader::new(&record.payload).varint().unwrap()
}

#[test]
fn m2_5_a_hole_in_the_log_costs_only_bytes_that_are_in_no_table() {
    let (mut taken, mut lost, mut holes) = (0, 0, 0);
    for seed in 0..6 {
        let (whole, known) = history(seed);
        let written = known.log.batches.iter().flat_map(|(_, records)| records).filter(|record| record.kind == TABLE_WRITTEN);
        let last = written.map(memtable_of).max().unwrap_or(0);
        for hole in 0..known.log.batches.len() {
            let what = format!("seed {seed}, batch {hole} is lost");
            let ground = whole.snapshot(CrashPolicy::KeepAll);
            let open = |epoch| {
                let ground = Arc::new(ground.clone());
                LevelsStore::open(ground, LEVELS, 1, epoch, levels_options(), Default::default(), Access::ReadWrite).unwrap()
            };
            let start = Position(known.log.end().0 + (1 << 20));
            // A repair that was cut short is done again.
            for epoch in [2, 3] {
                let store = open(epoch);
                for (number, (position, records)) in known.log.batches.iter().enumerate() {
                    if number != hole {
                        assert_eq!(store.salvage(*position, records).unwrap(), 0, "{what}");
                    }
                }
                taken += store.leave_log(start).unwrap();
            }
            let store = open(4);
            store.recovered(start, start).unwrap();
            let mut may_be_lost = Vec::new();
            let of_memory = |record: &&Record| record.kind == CHUNKS_HELD && memtable_of(record) > last;
            for record in known.log.batches[hole].1.iter().filter(of_memory) {
                stored_chunks(record, 32, &mut may_be_lost, &mut Vec::new()).unwrap();
            }
            for (number, address) in &known.live {
                let (name, _, data) = chunk(*number);
                let mut slices = Vec::new();
                match store.load(&[(*address, name)], &mut slices) {
                    Ok(()) => assert!(slices[0][..] == data[..], "{what}: chunk {number}"),
                    Err(error) => {
                        assert!(may_be_lost.iter().any(|(held, _)| *held == name), "{what}: chunk {number}: {error}");
                        lost += 1;
                    }
                }
            }
            holes += 1;
            while store.compact(&|| true).unwrap() {}
        }
    }
    assert!(holes > 20 && taken > 0, "{holes} holes, {taken} tables taken, {lost} chunks lost");
}

#[test]
fn m2_7_a_removal_does_not_hide_a_chunk_that_a_lost_record_stored_again() {
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    let mut writer = world.store.clone().new_writer();
    known.next = 50;
    world.append(&mut *writer, &[1, 2]).unwrap();
    world.flush(&mut known).unwrap();
    world.remove(&mut known, &[1], false).unwrap();
    world.append(&mut *writer, &[1, 3]).unwrap();
    let hole = known.log.batches.len();
    world.flush(&mut known).unwrap();
    world.append(&mut *writer, &(4..40).collect::<Vec<_>>()).unwrap();
    let prepared = world.store.prepare(Scope::FullFrames).unwrap();
    world.commit(&mut known, prepared);
    assert!(known.log.batches.iter().flat_map(|(_, records)| records).any(|record| record.kind == TABLE_WRITTEN));
    drop((world, writer));
    known.log.batches.remove(hole);
    let open = |epoch| {
        let ground = Arc::new(ground.clone());
        LevelsStore::open(ground, LEVELS, 1, epoch, levels_options(), Default::default(), Access::ReadWrite).unwrap()
    };
    let (store, start) = (open(2), Position(1 << 20));
    for (position, records) in &known.log.batches {
        store.salvage(*position, records).unwrap();
    }
    store.leave_log(start).unwrap();
    drop(store);
    let store = open(3);
    store.recovered(start, start).unwrap();
    for number in [1, 2, 3] {
        let (name, _, data) = chunk(number);
        let mut slices = Vec::new();
        store.load(&[(known.live[&number], name)], &mut slices).unwrap_or_else(|error| panic!("chunk {number}: {error}"));
        assert!(slices[0][..] == data[..]);
    }
}
