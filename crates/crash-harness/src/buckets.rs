//! Trials of stores in a bucket: whole stores whose requests fail, whose answers are lost, whose process dies, whose
//! directory is lost, and which somebody else takes over (decision 0068).

use crate::model::Model;
use crate::steps::step;
use crate::verify::{check_clean, check_data};
use crate::world::{Case, Fault, Profile, Random, World, must, policy};
use onefold_bucket::{BucketGround, Failure, MemoryBucket};
use onefold_engine::{Engine, Mode, Transaction};
use onefold_ground::{Ground, SimulatedGround};
use onefold_upkeep::{DedupOptions, NoMonitor, PruneOptions, dedup, prune};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A store in a bucket, and the directory of its state on one machine.
#[derive(Clone, Debug)]
struct Place {
    bucket: MemoryBucket,
    disk: SimulatedGround,
}

impl Place {
    fn ground(&self) -> Arc<dyn Ground> {
        Arc::new(BucketGround::with_kept_bytes(Arc::new(self.disk.clone()), Arc::new(self.bucket.clone()), 64 << 10))
    }

    fn open(&self, case: Case) -> Result<World, Fault> {
        case.open_on(self.ground(), &self.disk, case.settings(), Mode::ReadWrite, |liveness, _| liveness)
    }

    /// Returns the same store as a machine sees it that never had it.
    fn elsewhere(&self, seed: u64) -> Place {
        Place { bucket: self.bucket.clone(), disk: SimulatedGround::new(seed) }
    }

    /// Opens what is left. Panics unless everything is there and a check finds nothing.
    fn reopen(&self, case: Case, model: &mut Model, what: &str) -> World {
        let world = self.open(case).unwrap_or_else(|error| panic!("{case}, {what}: {error}"));
        must(model.verify(&world, false), case, what);
        // Lists may be old for those who work with the store. A check can only tell what it is shown.
        self.bucket.hide_from_lists(0);
        must(check_clean(&world), case, what);
        world
    }
}

fn made(case: Case) -> Place {
    let place = Place { bucket: MemoryBucket::new(), disk: SimulatedGround::new(case.seed) };
    let descriptor = (case.profile.descriptor)(case.seed);
    Engine::create(&place.ground(), &descriptor).unwrap_or_else(|error| panic!("{case}: {error}"));
    // Pages of lists end in the middle of everything.
    place.bucket.set_page([3, 1000][(case.seed % 2) as usize]);
    place
}

/// Takes random steps until the process dies or can write no more.
fn run(place: &Place, world: &mut World, model: &mut Model, random: &mut Random, steps: u64) {
    // A prune can only merge what it is shown, and a step says what it must have merged.
    place.bucket.hide_from_lists(0);
    for _ in 0..steps {
        let failed = step(world, model, random).is_err();
        if place.bucket.is_dead() || place.disk.is_crashed() || failed && world.has_stopped() {
            break;
        }
    }
}

/// Requests fail at random, answers are lost, the process dies, the directory loses what was not synced, or all of it,
/// and lists are old: again and again.
pub fn random_failures(profile: &'static Profile, usual_seeds: u64) {
    let mut met: BTreeMap<&'static str, u64> = BTreeMap::new();
    let seeds = profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let mut place = made(case);
        for round in 0..5 {
            let failure = [Failure::Before, Failure::After, Failure::Dead, Failure::DeadAfter][random.below(4) as usize];
            // Sometimes so early that the opening itself meets it.
            let is_early = random.one_in(2);
            let at = random.below(if is_early { 12 } else { 250 });
            match random.below(3) {
                0 => place.bucket.fail_at(place.bucket.steps() + at, failure),
                1 => place.bucket.fail_at_change(place.bucket.changes() + at / 4, failure),
                _ => place.disk.crash_after_operations(random.below(600)),
            }
            if random.one_in(3) {
                place.bucket.hide_from_lists(random.below(4) as usize);
            }
            match place.open(case) {
                Ok(mut world) => match model.verify(&world, false) {
                    Ok(()) => run(&place, &mut world, &mut model, &mut random, 60),
                    // The model does not know what the process sees.
                    Err(why) => assert!(has_failed(&place, &world), "{case}, round {round}: {why}"),
                },
                Err(_) => *met.entry("failed openings").or_default() += 1,
            }
            place.bucket.calm();
            place.disk = place.disk.restart(policy(seed + round));
            match random.below(3) {
                0 => {
                    *met.entry("lost directories").or_default() += 1;
                    place = place.elsewhere(seed + round);
                }
                1 => place.bucket.hide_from_lists(2),
                _ => {}
            }
            if round % 2 == 1 {
                // Looked at, and left by a crash.
                drop(place.reopen(case, &mut model, &format!("round {round}")));
                place.disk = place.disk.restart(policy(seed * 7 + round));
            }
        }
        drop(place.reopen(case, &mut model, "at the end"));
        drop(place.elsewhere(seed).reopen(case, &mut model, "elsewhere"));
        let names = place.bucket.names();
        let count = |prefix: &str| names.iter().filter(|name| name.starts_with(prefix)).count() as u64;
        for (what, prefix, less) in
            [("trims", "manifests/", 1), ("runs", "history/", 0), ("containers", "containers/", 0), ("batches", "log/", 0)]
        {
            *met.entry(what).or_default() += count(prefix) - less;
        }
        *met.entry("forwards").or_default() += names.iter().filter(|name| name.ends_with(".forward")).count() as u64;
    });
    println!("{} runs: {met:?}", seeds.count());
    if seeds.are_enough() {
        let wanted = ["failed openings", "lost directories", "trims", "runs", "containers", "batches", "forwards"];
        let rare: Vec<_> = wanted.iter().filter(|what| met.get(**what).copied().unwrap_or(0) < 3).collect();
        assert!(rare.is_empty(), "{rare:?} were met less than three times: {met:?}");
    }
}

fn has_failed(place: &Place, world: &World) -> bool {
    place.bucket.is_dead() || place.disk.is_crashed() || world.has_stopped()
}

/// Somebody else takes the store over while a process writes to it: that one loses nothing that it was told, and
/// changes nothing any more.
pub fn taken_over(profile: &'static Profile, usual_seeds: u64) {
    let seeds = profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let first = made(case);
        let mut world = first.open(case).unwrap_or_else(|error| panic!("{case}: {error}"));
        run(&first, &mut world, &mut model, &mut random, 40);
        for round in 0..4 {
            let next = first.elsewhere(seed + round);
            // What the former owner believes.
            let mut unknown = model.clone();
            // It sees what was acknowledged, and perhaps more that was written but not acknowledged. No more comes.
            let what = format!("taken over in round {round}");
            let mut successor = next.open(case).unwrap_or_else(|error| panic!("{case}, {what}: {error}"));
            must(model.verify(&successor, false), case, &what);
            // What the former owner puts from here on lies beside the files that count.
            must(check_data(&successor), case, &what);
            for _ in 0..30 {
                drop(step(&mut world, &mut unknown, &mut random));
            }
            let change = (0, b"zz".to_vec(), Some(vec![round as u8]));
            let submitted = world.engine.submit(Transaction { changes: vec![change], references: Vec::new() });
            assert!(submitted.is_err() || world.engine.flush().is_err(), "{case}, round {round}: the former owner still writes");
            drop(world);
            must(model.verify(&successor, false), case, "after the former owner went on");
            run(&next, &mut successor, &mut model, &mut random, 40);
            world = successor;
        }
        drop(world);
        let last = first.elsewhere(seed).open(case).unwrap_or_else(|error| panic!("{case}, at the end: {error}"));
        must(model.verify(&last, false), case, "at the end");
        must(check_data(&last), case, "at the end");
    });
    println!("{} runs", seeds.count());
}

/// The requests of a prune and of a search for duplicates follow what is there. Each opening leaves out a thousand
/// numbers of containers, and nobody asks for these.
pub fn requests_follow_what_is_there(profile: &'static Profile, usual_seeds: u64) {
    let seeds = profile.each_case(usual_seeds, |case| {
        let (mut random, mut model) = (Random(case.seed), Model::new("m"));
        let mut place = made(case);
        place.bucket.set_page(1000);
        for round in 0..8 {
            let mut world = place.open(case).unwrap_or_else(|error| panic!("{case}: {error}"));
            must(model.verify(&world, false), case, "at the beginning of a round");
            run(&place, &mut world, &mut model, &mut random, 12);
            drop(world);
            place = place.elsewhere(case.seed + round);
        }
        let world = place.open(case).unwrap_or_else(|error| panic!("{case}: {error}"));
        must(model.verify(&world, false), case, "before upkeep");
        let count = || place.bucket.names().iter().filter(|name| name.starts_with("containers/")).count() as u64;
        let counted = |what: &str, work: &dyn Fn() -> Result<(), Fault>| {
            let (files, before) = (count(), place.bucket.steps());
            work().unwrap_or_else(|error| panic!("{case}, {what}: {error}"));
            let requests = place.bucket.steps() - before;
            println!("{case}: {what}: {requests} requests beside {files} files");
            // Marks are a file for each group. Numbers that were left out are more than ten thousand.
            assert!(requests < 200 + 6 * files, "{case}: {what} takes {requests} requests, and there are {files} files");
        };
        // Lists that lack what is there: then some of it is left for the next time.
        place.bucket.hide_from_lists(if case.seed % 3 == 0 { 6 } else { 0 });
        let options = PruneOptions { max_unused: 0.0, ..PruneOptions::default() };
        let said = std::cell::Cell::new(0);
        let pruned = |options| {
            let report = prune(&world.engine, options, &NoMonitor, &|| true)?;
            said.set(said.get() + report.requests.map_or(0, |of| of.puts + of.gets + of.lists + of.deletions));
            Ok(())
        };
        counted("a dry run", &|| pruned(PruneOptions { dry_run: true, ..options }));
        counted("a search for duplicates", &|| {
            dedup(&world.engine, DedupOptions::default(), &NoMonitor, &|| true)?;
            Ok(())
        });
        let before = place.bucket.steps();
        counted("a prune", &|| pruned(options));
        // Parity and many small marks are more than the estimate knows of. Nor does it know what earlier openings left
        // unsealed, which the first commit seals (a put for each container), and whether that trims the log.
        let (said, done) = (said.get(), place.bucket.steps() - before);
        let is_plain = profile.name == "exact" && case.settings().parity_group == 0;
        assert!(!is_plain || (said <= 2 * done && done <= 2 * said + 50), "{case}: {done} requests, and a dry run said {said}");
        counted("a second prune", &|| pruned(options));
        drop(world);
        drop(place.reopen(case, &mut model, "at the end"));
    });
    println!("{} runs", seeds.count());
}
