//! Parity that a rotten container still needs stays: despite new groups, damage of the parity itself, and merges of its
//! neighbours.

mod common;

use common::merges::*;
use common::parities::*;
use common::*;
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_storage::*;
use std::io;

fn world(ground: &SimulatedGround) -> World {
    World::open(ground, Model::default(), &small(), Access::ReadWrite).unwrap()
}

/// Returns a store where all sealed containers have parity, and in it a group of partition 0 with four members.
fn protected(ground: &SimulatedGround) -> (World, GroupId, Vec<ContainerId>) {
    let mut world = world(ground);
    world.seal(SIZE, 10).unwrap();
    protect(&world, false).unwrap();
    let members: Vec<_> = world.sealed().into_iter().take(SIZE).collect();
    assert!(contents(ground, &members).values().all(|bytes| bytes.len() > 70_000), "each has two blocks");
    let group = groups(&world)[0];
    (world, group, members)
}

fn parity_file_with(ground: &SimulatedGround, id: ContainerId) -> String {
    let partition = format!("/{:04x}/", id.partition());
    let name = format!("-{:08x}", id.number());
    parity_files(ground).into_iter().find(|file| file.contains(&partition) && file.contains(&name)).unwrap()
}

#[test]
fn a_rotten_member_of_a_small_group_is_made_anew_before_it_is_grouped_with_others() {
    let ground = start(1);
    let mut world = world(&ground);
    fill(&mut world, 3).unwrap();
    protect(&world, true).unwrap();
    let rotten = sealed(&world)[0];
    let whole = contents(&ground, &[rotten]);
    ground.corrupt(&path(rotten), 300, 1).unwrap();
    let mut world = reopened(&ground, world);
    fill(&mut world, 3).unwrap();
    protect(&world, true).unwrap();
    assert_eq!(contents(&ground, &[rotten]), whole);
    assert_eq!(world.store.parity_statistics().unwrap().containers as usize, sealed(&world).len());
    check(&world.store, &world.model.needed);
}

#[test]
fn a_read_that_fails_once_leaves_nobody_beyond_repair() {
    let mut failed = 0;
    for read in 0..20 {
        let ground = start(1);
        let (world, _, members) = protected(&ground);
        let whole = contents(&ground, &members);
        ground.remove(&path(members[0])).unwrap();
        ground.fail_read(read, io::ErrorKind::OutOfMemory);
        failed += usize::from(world.store.repair(members[0]).is_err());
        // As if nothing had happened.
        ground.fail_read(u64::MAX / 2, io::ErrorKind::OutOfMemory);
        assert_ne!(world.store.repair(members[0]).unwrap(), Repair::Impossible, "{read}");
        assert_eq!(contents(&ground, &members), whole);
    }
    assert!(failed > 1, "{failed}");
}

#[test]
fn damaged_parity_stays_as_long_as_a_rotten_member_needs_it() {
    for block_of_parity in [0, 1] {
        let ground = start(1);
        let (world, group, members) = protected(&ground);
        let whole = contents(&ground, &members);
        let rotten = members[1];
        let file = parity_file_with(&ground, rotten);
        ground.corrupt(&path(rotten), 300, 1).unwrap();
        ground.corrupt(&file, 4096 + block_of_parity * 65_536 + 9, 1).unwrap();
        let world = reopened(&ground, world);
        assert!(world.store.scrub_parity(group).unwrap().damaged_parity.is_some());
        assert!(ground.exists(&file).unwrap());
        protect(&world, true).unwrap();
        if block_of_parity == 1 {
            // The parity is damaged at another place.
            assert_eq!(contents(&ground, &members), whole);
            assert!(!ground.exists(&file).unwrap());
            continue;
        }
        // The others have new parity. The rest of the old one stays, also after another opening.
        for _ in 0..2 {
            assert!(ground.exists(&file).unwrap());
            assert_eq!(world.store.repair(rotten).unwrap(), Repair::Impossible);
            let groups = groups(&world);
            let damaged = groups.iter().filter(|group| world.store.scrub_parity(**group).unwrap().damaged_parity.is_some());
            assert_eq!(damaged.copied().collect::<Vec<_>>(), [group]);
        }
        let world = reopened(&ground, world);
        for other in members.iter().filter(|id| **id != rotten) {
            ground.remove(&path(*other)).unwrap();
            assert_eq!(world.store.repair(*other).unwrap(), Repair::Repaired);
        }
        // Once repaired, it is grouped again, and the old file goes.
        assert!(ground.exists(&file).unwrap());
        put(&ground, rotten, &whole[&rotten]);
        let world = reopened(&ground, world);
        protect(&world, true).unwrap();
        assert!(!ground.exists(&file).unwrap());
        assert_eq!(world.store.parity_statistics().unwrap().containers as usize, sealed(&world).len());
    }
}

#[test]
fn a_merge_leaves_the_neighbours_their_parity() {
    for with_damaged_victim in [false, true] {
        let ground = start(1);
        let (mut world, _, members) = protected(&ground);
        let whole = contents(&ground, &members);
        let (victim, rotten) = (members[0], members[2]);
        ground.corrupt(&path(rotten), 300, 1).unwrap();
        if with_damaged_victim {
            // Nobody needs this block any more. At this place the parity is made of the others: `rotten` is damaged at
            // another one.
            ground.corrupt(&path(victim), 70_000, 1).unwrap();
        }
        world.forget(&world.needed_of(victim));
        world.merge(&[victim]).unwrap();
        assert!(!world.store.has_pending_merges() && !ground.exists(&path(victim)).unwrap());
        let mut world = reopened(&ground, world);
        assert_eq!(world.store.repair(rotten).unwrap(), Repair::Repaired);
        assert_eq!(contents(&ground, &members[1..]), whole.iter().skip(1).map(|(id, bytes)| (*id, bytes.clone())).collect());
        // One after the other, down to a copy of the last one.
        for gone in [members[1], members[2]] {
            world.forget(&world.needed_of(gone));
            world.merge(&[gone]).unwrap();
        }
        ground.remove(&path(members[3])).unwrap();
        let world = reopened(&ground, world);
        assert_eq!(repair_lost(&world).unwrap(), (vec![members[3]], Vec::new()));
        world.check(&ground);
    }
}

#[test]
fn a_place_that_nobody_can_make_anew_does_not_cost_the_others() {
    for is_full in [false, true] {
        let ground = start(1);
        let (mut world, _, members) = protected(&ground);
        let whole = contents(&ground, &members);
        let (victim, rotten) = (members[0], members[2]);
        // The first block of both is gone. The second block is gone only in the neighbour.
        ground.corrupt(&path(victim), 300, 1).unwrap();
        ground.corrupt(&path(rotten), 300, 1).unwrap();
        ground.corrupt(&path(rotten), 66_000, 1).unwrap();
        world.forget(&world.needed_of(victim));
        if is_full {
            ground.set_capacity(ground.used_bytes() + 20_000);
        }
        world.merge(&[victim]).unwrap();
        assert_eq!(world.store.has_pending_merges(), is_full);
        ground.set_capacity(u64::MAX);
        world.store.finish_merges().unwrap();
        assert!(!ground.exists(&path(victim)).unwrap());
        let world = reopened(&ground, world);
        assert_eq!(world.store.repair(rotten).unwrap(), Repair::Impossible);
        // Somebody has the first place elsewhere.
        let mut half = contents(&ground, &[rotten])[&rotten].clone();
        half[..65_536].copy_from_slice(&whole[&rotten][..65_536]);
        put(&ground, rotten, &half);
        let world = reopened(&ground, world);
        assert_eq!(world.store.repair(rotten).unwrap(), Repair::Repaired);
        assert_eq!(contents(&ground, &[rotten])[&rotten], whole[&rotten]);
    }
}

#[test]
fn parity_that_is_marked_takes_nobody_away_from_sound_parity() {
    let ground = start(1);
    let (world, group, members) = protected(&ground);
    let (victim, rotten) = (members[0], members[2]);
    // One place is damaged in a member and in the parity. So the others get parity of their own, and the old one stays.
    ground.corrupt(&path(rotten), 300, 1).unwrap();
    ground.corrupt(&parity_file_with(&ground, rotten), 4096 + 9, 1).unwrap();
    let world = reopened(&ground, world);
    assert!(world.store.scrub_parity(group).unwrap().damaged_parity.is_some());
    protect(&world, true).unwrap();
    let mut world = reopened(&ground, world);
    world.forget(&world.needed_of(victim));
    world.merge(&[victim]).unwrap();
    assert!(!world.store.has_pending_merges());
    let mut world = reopened(&ground, world);
    for member in [members[1], members[3]] {
        let whole = contents(&ground, &[member]);
        ground.remove(&path(member)).unwrap();
        world = reopened(&ground, world);
        assert_eq!(world.store.repair(member).unwrap(), Repair::Repaired);
        assert_eq!(contents(&ground, &[member]), whole);
    }
}

#[test]
fn a_merge_on_a_full_disk_makes_the_neighbours_whole_or_waits() {
    let ground = start(1);
    let (mut world, _, members) = protected(&ground);
    let file = parity_file_with(&ground, members[0]);
    world.forget(&world.needed_of(members[0]));
    // The others are sound: nobody needs the parity.
    ground.set_capacity(ground.used_bytes() + 20_000);
    world.merge(&[members[0]]).unwrap();
    assert!(!world.store.has_pending_merges() && !ground.exists(&file).unwrap());
    ground.set_capacity(u64::MAX);
    // One is not sound: the files stay until it can be rebuilt.
    protect(&world, true).unwrap();
    let whole = contents(&ground, &members[2..3]);
    world.forget(&world.needed_of(members[1]));
    ground.corrupt(&path(members[2]), 300, 1).unwrap();
    ground.set_capacity(ground.used_bytes() + 20_000);
    world.merge(&[members[1]]).unwrap();
    assert!(world.store.has_pending_merges() && ground.exists(&path(members[1])).unwrap());
    ground.set_capacity(u64::MAX);
    world.store.finish_merges().unwrap();
    assert_eq!(world.store.repair(members[2]).unwrap(), Repair::Repaired);
    assert_eq!(contents(&ground, &members[2..3]), whole);
    world.check(&ground);
}
