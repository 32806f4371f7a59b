//! Partitions move between nodes that have a store in a bucket open: by plan, and because nodes are lost
//! (`docs/cluster.md`). What was acknowledged is readable at the owner of its object, and counts are the references.

mod common;
mod nodes;

use nodes::partitions;
use nodes::world::{Assigned, World};
use onefold_oplog::Partition;

#[test]
fn m4_2_partitions_that_move_by_plan_keep_what_they_have_and_chunks_are_stored_once() {
    let mut world = World::new(1);
    for _ in 0..2 {
        world.join();
    }
    world.give_containers();
    for key in 0..30 {
        let data = world.data();
        world.write(key, data);
        (0..3).for_each(|_| world.move_one());
        if key % 5 == 4 {
            world.nodes.values().for_each(|node| node.engine.maintain(true).unwrap());
            world.check();
        }
    }
    world.check();
    assert_eq!(world.counts(), world.expected());
    assert_eq!(world.stored_chunks(), world.expected().len() as u64);
    assert!(world.table.values().map(Assigned::owner).collect::<std::collections::BTreeSet<_>>().len() == 3);
}

#[test]
fn m4_8_nodes_are_lost_and_open_again_and_everything_acknowledged_is_there() {
    let seeds = match std::env::var("ONEFOLD_CRASH_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..12).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        eprintln!("seed {seed}");
        let mut world = World::new(seed + 100);
        for _ in 0..2 {
            world.join();
        }
        // Everything is spread first.
        for (at, partition) in partitions().enumerate() {
            world.move_to(partition, (at % 3) as u32);
        }
        let mut key = 0;
        while key < 30 {
            let data = world.data();
            world.write(key, data);
            key += 1;
            match world.random.below(14) {
                0 if world.nodes.len() > 1 => {
                    let node = world.any_node();
                    world.lose(node);
                }
                1 | 2 => {
                    let node = world.any_node();
                    world.restart(node);
                }
                3 if world.nodes.len() < 4 => {
                    world.join();
                }
                4 => world.nodes.values().for_each(|node| node.engine.maintain(true).unwrap()),
                5 => world.nodes.values().for_each(|node| node.engine.deliver().unwrap()),
                6 | 7 => {
                    let long: Vec<Partition> =
                        world.table.iter().filter(|(_, assigned)| assigned.lineage.len() > 1).map(|(partition, _)| *partition).collect();
                    long.into_iter().take(4).for_each(|partition| world.restate(partition, &mut key));
                }
                _ => world.move_one(),
            }
            world.give_containers();
            world.check();
        }
        assert_eq!(world.counts(), world.expected(), "seed {seed}");
    }
}
