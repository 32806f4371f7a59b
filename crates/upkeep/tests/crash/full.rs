//! A disk that is full to the last block is emptied with nothing but deleting, discarding and pruning, whatever kind of
//! write found it full (`docs/decisions/0033-a-reserve-for-freeing-room.md`).

use onefold_crash_harness::{
    BLOCK_BYTES, Case, EXACT, LEVELED, Model, Profile, Random, SLOTS, World, check_clean, must, policy, step, steps,
};
use onefold_engine::{Mode, Settings};
use onefold_ground::{Ground, SimulatedGround};
use onefold_upkeep::{NoMonitor, PruneOptions};

const DISK_BYTES: u64 = 1 << 30;
const RESERVE_BYTES: u64 = 768 << 10;
/// A volume that the model does not know: what room is made of.
const BIG_BYTES: u64 = 6 << 20;

/// Others take the disk, all but `room` bytes of it.
fn take_all_but(ground: &SimulatedGround, room: u64) {
    let others =
        if ground.exists("others").unwrap() { ground.open("others", onefold_ground::Access::ReadWrite) } else { ground.create("others") };
    let (others, free) = (others.unwrap(), ground.space().unwrap().free_bytes);
    let length = others.len().unwrap();
    if free > room {
        others.allocate(length, free - room).unwrap();
    }
}

fn with_reserve(case: Case) -> Settings {
    Settings { reserve_bytes: RESERVE_BYTES, ..case.settings() }
}

fn fill(world: &mut World, random: &mut Random) {
    world.volumes.create("big", BIG_BYTES, BLOCK_BYTES as u32, None).unwrap();
    let volume = world.volumes.get("big").unwrap();
    for at in (0..BIG_BYTES).step_by(BLOCK_BYTES as usize) {
        volume.write(at, &random.fresh(BLOCK_BYTES as usize)).unwrap();
    }
    volume.flush().unwrap();
}

/// Discards and deletes volumes, then prunes. Returns whether this took the reserve.
fn empty(world: &mut World, model: &mut Model) -> bool {
    let (case, seed) = (world.case, world.case.seed);
    let volume = world.volumes.get("big").unwrap();
    if seed.is_multiple_of(2) {
        volume.discard(0, BIG_BYTES).unwrap_or_else(|error| panic!("{case}: discard: {error}"));
        volume.flush().unwrap_or_else(|error| panic!("{case}: flush of what was discarded: {error}"));
    } else {
        drop(volume);
        world.volumes.delete("big").unwrap_or_else(|error| panic!("{case}: delete: {error}"));
    }
    for slot in (0..SLOTS).filter(|slot| (*slot as u64 + seed).is_multiple_of(3)) {
        steps::delete(world, model, slot).unwrap_or_else(|error| panic!("{case}: delete volume {slot}: {error}"));
    }
    while !world.volumes.resume_deletions(&|| true).unwrap_or_else(|error| panic!("{case}: deletion: {error}")) {}
    let was_used = world.engine.is_reserve_in_use();
    let options = PruneOptions { max_unused: 0.0, ..PruneOptions::default() };
    let report = onefold_upkeep::prune(&world.engine, options, &NoMonitor, &|| true);
    let report = report.unwrap_or_else(|error| panic!("{case}: prune: {error}"));
    assert!(report.is_complete && report.freed_bytes > 0, "{case}: {report:?}");
    was_used
}

#[test]
fn a_disk_full_to_the_last_block_is_emptied_whatever_found_it_full() {
    is_emptied(&EXACT);
}

#[test]
fn m2_8_a_disk_full_to_the_last_block_is_emptied_without_room_for_a_compaction() {
    is_emptied(&LEVELED);
}

fn is_emptied(profile: &'static Profile) {
    let (mut refused, mut used) = (0, 0);
    let seeds = profile.each_case(20, |case| {
        let seed = case.seed;
        let mut random = Random(seed ^ 0xf011);
        let mut model = Model::new("m");
        let ground = case.create();
        ground.set_capacity(DISK_BYTES);
        let mut world = case.open_with(&ground, with_reserve(case), Mode::ReadWrite).unwrap();
        fill(&mut world, &mut random);
        for _ in 0..20 {
            step(&mut world, &mut model, &mut random).unwrap();
        }
        // With another room each time, another write is the first that finds none: containers, log, pages of the
        // indexes, forwards, copies.
        let turn = seed % 20;
        take_all_but(&ground, turn * turn * 2700);
        for _ in 0..40 {
            refused += u64::from(step(&mut world, &mut model, &mut random).is_err());
        }
        let mut was_used = world.engine.is_reserve_in_use();
        must(model.verify(&world, true), case, "on a full disk");
        take_all_but(&ground, 0);
        if seed % 4 == 3 {
            // It is opened on the full disk, too.
            world.die();
            let restarted = ground.restart(policy(seed));
            world = case
                .open_with(&restarted, with_reserve(case), Mode::ReadWrite)
                .unwrap_or_else(|error| panic!("{case}: opening on a full disk: {error}"));
            must(model.verify(&world, false), case, "opened on a full disk");
        }
        was_used |= empty(&mut world, &mut model);
        used += u64::from(was_used);

        assert!(!world.engine.is_reserve_in_use(), "{case}: the reserve is whole again");
        world.volumes.flush().unwrap_or_else(|error| panic!("{case}: there is room, but: {error}"));
        model.all_flushed();
        for _ in 0..20 {
            step(&mut world, &mut model, &mut random).unwrap_or_else(|error| panic!("{case}: a step with room again: {error}"));
        }
        must(model.verify(&world, true), case, "with room again");
        must(check_clean(&world), case, "with room again");
        let ground = world.ground.clone();
        drop(world);
        case.reopen(&ground.restart(policy(seed)), &mut model, "with room again");
    });
    let runs = seeds.count();
    println!("{refused} steps refused, reserve used in {used} of {runs} runs");
    let are_many = refused > runs && used * 2 > runs;
    assert!(are_many || !seeds.are_enough(), "{refused} steps were refused, and the reserve was used in {used} runs");
}
