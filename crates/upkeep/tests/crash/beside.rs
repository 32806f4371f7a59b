//! Checks beside writers: they find nothing where nothing is wrong, whatever is written, swept, persisted and sealed
//! meanwhile, and they find what is.

use onefold_crash_harness::{Case, EXACT, Model, Profile, Random, SAMPLED, World, step};
use onefold_engine::{Address, Group, Mode, Reference, Settings, Transaction};
use onefold_fingerprint::Fingerprint;
use onefold_ground::SimulatedGround;
use onefold_upkeep::{CheckOptions, CheckReport, NoMonitor, ProblemKind, check};
use std::sync::atomic::{AtomicBool, Ordering};

/// So little memory that a check takes several passes, each of another moment.
const OPTIONS: CheckOptions = CheckOptions { read_data: true, memory_bytes: 16 << 10 };
const WRITERS: u64 = 2;

fn open(case: Case, ground: &SimulatedGround) -> World {
    // Without parity: what rots here is to be found, not repaired.
    let settings = Settings { background: true, workers: 2, log_limit_bytes: 2 << 20, parity_group: 0, ..case.settings() };
    case.open_with(ground, settings, Mode::ReadWrite).unwrap()
}

fn checked(world: &World) -> CheckReport {
    check(&world.engine, OPTIONS, &NoMonitor).unwrap()
}

#[test]
fn a_check_beside_writers_finds_nothing_that_is_not_there() {
    let (checks, passes) = finds_nothing(&EXACT, 24);
    assert!(passes > checks, "some take several passes");
}

#[test]
fn m3_8_a_check_beside_writers_of_a_store_with_copies_finds_nothing_that_is_not_there() {
    finds_nothing(&SAMPLED, 24);
}

/// Returns how many checks there were, and how many passes they took.
fn finds_nothing(profile: &'static Profile, usual_seeds: u64) -> (u64, u64) {
    let (mut checks, mut passes) = (0, 0);
    profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let ground = case.create();
        let world = open(case, &ground);
        let working = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let mut own = world.another();
                    scope.spawn(move || {
                        let mut model = Model::new(&format!("w{number}-"));
                        let mut random = Random(seed * 31 + number);
                        (0..60).for_each(|_| step(&mut own, &mut model, &mut random).unwrap_or_else(|error| panic!("{case}: {error}")));
                    })
                })
                .collect();
            let checker = scope.spawn(|| {
                let mut found = (0, 0);
                // At least one check from beginning to end while nothing goes on, and as many as there is time for
                // before.
                loop {
                    let is_last = !working.load(Ordering::Relaxed);
                    let report = checked(&world);
                    assert!(report.is_clean(), "{case}: {:#?}", report.problems);
                    found = (found.0 + 1, found.1 + report.passes);
                    if is_last {
                        return found;
                    }
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            working.store(false, Ordering::Relaxed);
            let found = checker.join().unwrap();
            (checks, passes) = (checks + found.0, passes + found.1);
        });
    });
    println!("{checks} checks, {passes} passes");
    (checks, passes)
}

/// A chunk of a sealed container, the file and a byte of its first frame.
fn sealed(world: &World) -> (Fingerprint, String, u64) {
    let storage = world.engine.containers().unwrap();
    let container = storage.containers().unwrap().iter().find(|container| storage.is_sealed(*container)).expect("a full container");
    let catalog = storage.catalog(container).unwrap();
    let folder = |number: u32| format!("{:05x}/{number:08x}", number >> 12);
    let path = format!("containers/{:04x}/{}", container.partition(), folder(container.number()));
    (catalog.slots[0].fingerprint, path, u64::from(catalog.frames[0].offset_bytes) + 1)
}

#[test]
fn a_check_beside_writers_finds_what_is_wrong() {
    EXACT.each_case(12, |case| {
        let seed = case.seed;
        let ground = case.create();
        let world = open(case, &ground);
        let volume = world.volumes.create("old", 4 << 20, 64 << 10, None).unwrap();
        (0..8).for_each(|part| volume.write(part << 18, &Random(seed * 100 + part).fresh(100_000)).unwrap());
        volume.flush().unwrap();
        let (chunk, path, at) = sealed(&world);
        let working = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let volume = world.volumes.create("new", 4 << 20, 64 << 10, None).unwrap();
                let mut random = Random(seed);
                while working.load(Ordering::Relaxed) {
                    let data = random.fresh(20_000);
                    volume.write(random.below(4 << 20) / 32768 * 32768, &data).unwrap();
                    volume.flush().unwrap();
                }
            });
            assert!(checked(&world).is_clean(), "{case}");
            let (group, address) = (Group::new(b'x', 0), Address::from_bits(0));
            let reference = |change| vec![Reference { group, fingerprint: chunk, address, change }];
            // A count that nothing stands for.
            world.engine.submit(Transaction { changes: Vec::new(), references: reference(1) }).unwrap();
            world.engine.flush().unwrap();
            for _ in 0..3 {
                let report = checked(&world);
                assert_eq!(report.problem_count, 1, "{case}: {:#?}", report.problems);
                assert!(report.problems[0].kind == ProblemKind::WrongCount && report.problems[0].what.contains(&chunk.to_string()));
            }
            world.engine.submit(Transaction { changes: Vec::new(), references: reference(-1) }).unwrap();
            world.engine.flush().unwrap();
            assert!(checked(&world).is_clean(), "{case}");
            // A byte that rots.
            ground.corrupt(&path, at, 0x20).unwrap();
            let report = checked(&world);
            let kinds: Vec<_> = report.problems.iter().map(|problem| problem.kind).collect();
            assert!(kinds.contains(&ProblemKind::Container) && kinds.contains(&ProblemKind::Affected), "{case}: {:#?}", report.problems);
            assert!(report.problems.iter().all(|problem| !problem.what.contains("\"new\"")), "{case}: {:#?}", report.problems);
            working.store(false, Ordering::Relaxed);
        });
    });
}
