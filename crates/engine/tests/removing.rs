//! Chunks are removed, and containers merged, while several nodes have a store in a bucket open (`docs/cluster.md`,
//! unsafe orders 24 to 26 and 53 to 57). What is referred to stays readable, whoever refers to it and whenever; the
//! rest goes.

mod common;
mod nodes;

use nodes::world::{Node, Run, World, begin_run, delete_run, merge_at, remove_at, remove_while, write_run};
use nodes::{BeforeStep, partitions, write};
use onefold_bucket::Failure;
use onefold_engine::{Cursor, DeadSlots, Engine, EngineError, RemovalStep};
use onefold_oplog::{Partition, PartitionClass};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A world of three nodes, with all partitions spread over them.
fn three_nodes(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..2 {
        world.join();
    }
    for (at, partition) in partitions().enumerate() {
        world.move_to(partition, (at % 3) as u32);
    }
    world
}

/// Removes everything unneeded at all nodes, level by level, and merges what is left.
fn remove_all(world: &World) {
    loop {
        let mut chunks = 0;
        for node in world.nodes.values() {
            // A node that has just removed a metadata chunk may release chunks of another one.
            world.nodes.values().for_each(|node| node.engine.deliver().unwrap());
            let (removed, is_all) = remove_at(&node.engine).unwrap();
            assert!(is_all, "nobody is busy");
            chunks += removed;
        }
        if chunks == 0 {
            break;
        }
    }
    for node in world.nodes.values() {
        node.engine.deliver().unwrap();
        merge_at(&node.engine).unwrap();
    }
}

/// Checks that exactly what is needed is stored.
fn check_all(world: &World) {
    world.check();
    assert_eq!(world.counts(), world.expected());
    for node in world.nodes.values() {
        let is_sealed = |container| node.engine.containers().unwrap().is_sealed(container);
        let visit = &mut |container, dead: DeadSlots| assert!(!is_sealed(container), "{container} has {} dead slots", dead.count());
        node.engine.for_each_dead(visit).unwrap();
    }
}

#[test]
fn m0_19_what_nobody_needs_goes_from_all_nodes_and_what_is_needed_stays() {
    let mut world = three_nodes(1);
    for key in 0..24 {
        let data = world.data();
        world.write(key, data);
    }
    let before = world.stored_chunks();
    (0..24).filter(|key| key % 3 != 0).for_each(|key| world.delete(key));
    remove_all(&world);
    check_all(&world);
    assert!(world.stored_chunks() < before);
    assert_eq!(world.stored_chunks(), world.expected().len() as u64);
    // Written again, it is stored again.
    for key in 24..40 {
        let data = world.data();
        world.write(key, data);
    }
    world.check();
    assert_eq!(world.counts(), world.expected());
    world.runs.keys().copied().collect::<Vec<_>>().into_iter().for_each(|key| world.delete(key));
    remove_all(&world);
    check_all(&world);
    assert_eq!(world.stored_chunks(), 0);
}

/// Returns a world with a run that is deleted, and the number of the node with most of its chunks.
fn with_unneeded_chunks(seed: u64) -> (World, u32, Vec<u8>) {
    let mut world = three_nodes(seed);
    let data = world.data();
    world.write(1, data.clone());
    world.delete(1);
    world.nodes.values().for_each(|node| node.engine.deliver().unwrap());
    let count = |node: &Node| node.engine.candidates(Cursor::default(), 1000, &mut Vec::new()).unwrap().0.len();
    world.nodes.values().for_each(|node| node.engine.maintain(true).unwrap());
    let most = world.nodes.iter().max_by_key(|(_, node)| count(node)).map(|(number, _)| *number).unwrap();
    assert!(count(&world.nodes[&most]) > 0);
    (world, most, data)
}

/// A node that has chunks in its caches, which nothing refers to.
struct Cached {
    world: World,
    /// The node, and the key of an object that it has.
    home: u32,
    key: u64,
    data: Vec<u8>,
}

/// Returns a node that finds all chunks of some data without asking anybody, and nothing refers to them.
fn with_cached_chunks(seed: u64) -> Cached {
    let mut world = three_nodes(seed);
    let data = world.data();
    let keys: Vec<u64> = (1..).step_by(2).filter(|key| world.home_of(*key) == world.home_of(1)).take(4).collect();
    let home = world.home_of(1);
    world.write(keys[0], data.clone());
    let engine = world.engine(home);
    for container in engine.containers().unwrap().containers().unwrap().iter() {
        engine.seal_container(container).unwrap();
    }
    world.nodes.values().for_each(|node| node.engine.deliver().unwrap());
    // The owners say where they are, and the catalogs are opened.
    (1..3).for_each(|at| world.write(keys[at], data.clone()));
    let claims = world.wire.claims.load(Ordering::SeqCst);
    drop(write(&mut engine.stream(), &data).unwrap());
    assert_eq!(world.wire.claims.load(Ordering::SeqCst), claims, "caches answer");
    (0..3).for_each(|at| world.delete(keys[at]));
    world.nodes.values().for_each(|node| node.engine.deliver().unwrap());
    Cached { world, home, key: keys[3], data }
}

/// Removes at all nodes but one, while `go_on`.
fn remove_at_others(world: &World, but: u32, go_on: &dyn Fn() -> bool) {
    for (_, node) in world.nodes.iter().filter(|(number, _)| **number != but) {
        remove_while(&node.engine, go_on).unwrap();
    }
}

#[test]
fn m4_6_a_removal_leaves_what_another_node_takes_from_its_cache_meanwhile() {
    let Cached { mut world, home, key, data } = with_cached_chunks(6);
    let (engine, written): (_, Arc<Mutex<Option<Run>>>) = (world.engine(home), Arc::default());
    let (of_hook, wire) = (written.clone(), world.wire.clone());
    let before = move |step: &RemovalStep| {
        let mut written = of_hook.lock();
        if matches!(step, RemovalStep::Doom { .. }) && written.is_none() {
            // Nobody hears of it before the removal has ended.
            wire.loses_deliveries.store(true, Ordering::SeqCst);
            *written = Some(write_run(&engine, key, data.clone()));
        }
        true
    };
    *world.wire.before_step.lock() = Some(BeforeStep(Arc::new(before)));
    let first = world.nodes.keys().copied().find(|node| *node != home).unwrap();
    remove_at(&world.engine(first)).unwrap();
    *world.wire.before_step.lock() = None;
    world.wire.loses_deliveries.store(false, Ordering::SeqCst);
    world.runs.insert(key, written.lock().take().unwrap());
    check_places(&world);
    remove_all(&world);
    check_all(&world);
}

#[test]
fn m4_6_caches_forget_what_another_node_has_removed() {
    let Cached { mut world, home, key, data } = with_cached_chunks(9);
    remove_at_others(&world, home, &|| false);
    world.write(key, data);
    check_places(&world);
    remove_all(&world);
    check_all(&world);
}

#[test]
fn m4_6_a_removal_waits_for_streams_of_other_nodes_that_began_before() {
    let Cached { mut world, home, key, data } = with_cached_chunks(7);
    let begun = Arc::new(Mutex::new(Some(begin_run(&world.engine(home), key, data))));
    let (written, looks): (Arc<Mutex<Option<Run>>>, _) = (Arc::default(), Arc::new(Mutex::new(0)));
    let (rest, of_hook) = (begun.clone(), written.clone());
    let before = move |step: &RemovalStep| {
        if matches!(step, RemovalStep::Settle { .. }) {
            *looks.lock() += 1;
            // It goes on when the removal has looked some times.
            if *looks.lock() == 5
                && let Some(rest) = rest.lock().take()
            {
                *of_hook.lock() = Some(rest());
            }
        }
        true
    };
    *world.wire.before_step.lock() = Some(BeforeStep(Arc::new(before)));
    remove_at_others(&world, home, &|| true);
    *world.wire.before_step.lock() = None;
    let run = written.lock().take().unwrap_or_else(|| begun.lock().take().unwrap()());
    world.runs.insert(key, run);
    check_places(&world);
    remove_all(&world);
    check_all(&world);
}

#[test]
fn m4_6_a_removal_counts_what_another_node_has_not_delivered() {
    let Cached { mut world, home, key, data } = with_cached_chunks(8);
    world.wire.loses_deliveries.store(true, Ordering::SeqCst);
    world.write(key, data);
    world.wire.loses_deliveries.store(false, Ordering::SeqCst);
    remove_at_others(&world, home, &|| false);
    check_places(&world);
    remove_all(&world);
    check_all(&world);
}

/// Returns how many chunks are in containers, and not dead.
fn alive(world: &World) -> usize {
    let of_node = |engine: &Arc<Engine>| {
        let containers = engine.containers().unwrap().containers().unwrap();
        let alive = |container| {
            let slots = engine.storage().chunks_of(container).unwrap().len();
            slots - engine.dead_slots(container).unwrap().count()
        };
        containers.iter().map(alive).sum::<usize>()
    };
    world.nodes.values().map(|node| of_node(&node.engine)).sum()
}

#[test]
fn m0_20_an_owner_that_gets_containers_back_merges_what_another_one_has_merged() {
    let mut world = World::new(11);
    let other = world.join();
    for key in [1, 3, 5] {
        let data = world.data();
        world.write(key, data);
    }
    let containers = world.engine(0).containers().unwrap().containers().unwrap();
    containers.iter().for_each(|container| world.engine(0).seal_container(container).unwrap());
    let numbers: BTreeSet<u16> = containers.iter().map(|container| container.partition()).collect();
    let all: Vec<Partition> = numbers.into_iter().map(|number| Partition { class: PartitionClass::Container, number }).collect();
    all.iter().for_each(|partition| world.move_to(*partition, other));
    world.delete(1);
    remove_all(&world);
    assert!(!world.engine(other).containers().unwrap().forwards().unwrap().is_empty(), "it has merged some");
    all.iter().for_each(|partition| world.move_to(*partition, 0));
    world.delete(3);
    remove_all(&world);
    check_all(&world);
    assert_eq!(alive(&world), world.expected().len());
}

#[test]
fn m4_8_what_a_lost_owner_had_to_tell_of_dead_copies_its_successor_tells() {
    let (mut world, node, _) = with_unneeded_chunks(12);
    world.wire.loses_dead.store(true, Ordering::SeqCst);
    let (removed, _) = remove_at(&world.engine(node)).unwrap();
    assert!(removed > 0);
    world.lose(node);
    world.give_containers();
    world.wire.loses_dead.store(false, Ordering::SeqCst);
    remove_all(&world);
    check_all(&world);
    assert_eq!(alive(&world), 0);
}

#[test]
fn m4_8_nothing_is_removed_if_nodes_came_or_went_meanwhile() {
    let (world, node, _) = with_unneeded_chunks(2);
    let wire = world.wire.clone();
    let before = move |step: &RemovalStep| {
        if matches!(step, RemovalStep::Doom { .. }) {
            wire.table.fetch_add(1, Ordering::SeqCst);
        }
        true
    };
    *world.wire.before_step.lock() = Some(BeforeStep(Arc::new(before)));
    assert_eq!(remove_at(&world.engine(node)).unwrap(), (0, false));
    *world.wire.before_step.lock() = None;
    let (removed, is_all) = remove_at(&world.engine(node)).unwrap();
    assert!(removed > 0 && is_all);
}

#[test]
fn m4_8_nothing_is_removed_if_a_partition_moved_meanwhile() {
    let (world, node, _) = with_unneeded_chunks(2);
    let engine = world.engine(node);
    let before = move |step: &RemovalStep| {
        if matches!(step, RemovalStep::Doom { .. }) {
            // A new owner of a partition asks for the claims of this node.
            engine.claims_of(0);
        }
        true
    };
    *world.wire.before_step.lock() = Some(BeforeStep(Arc::new(before)));
    assert_eq!(remove_at(&world.engine(node)).unwrap(), (0, false));
    *world.wire.before_step.lock() = None;
    let (removed, is_all) = remove_at(&world.engine(node)).unwrap();
    assert!(removed > 0 && is_all);
}

#[test]
fn m4_8_a_late_watch_does_not_end_what_a_later_removal_has_doomed() {
    let (world, node, _) = with_unneeded_chunks(2);
    let (wire, first): (_, Arc<Mutex<Option<RemovalStep>>>) = (world.wire.clone(), Arc::default());
    let tries = Arc::new(AtomicU64::new(0));
    let (of_hook, refused) = (first.clone(), tries.clone());
    let before = move |step: &RemovalStep| {
        let mut first = of_hook.lock();
        match step {
            RemovalStep::Watch { .. } if first.is_none() => {
                // It does not arrive yet.
                *first = Some(step.clone());
                return false;
            }
            RemovalStep::Doom { .. } => {
                for other in (0..3).filter(|other| *other != node) {
                    let late = wire.node(other).unwrap().remove_for(node, first.as_ref().unwrap());
                    assert!(late.is_err(), "node {other} has begun an earlier removal");
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            }
            _ => {}
        }
        true
    };
    *world.wire.before_step.lock() = Some(BeforeStep(Arc::new(before)));
    remove_at(&world.engine(node)).unwrap_err();
    let (removed, is_all) = remove_at(&world.engine(node)).unwrap();
    assert!(removed > 0 && is_all && tries.load(Ordering::SeqCst) > 0);
}

#[test]
fn m4_8_a_node_that_does_not_know_whether_it_has_removed_chunks_tells_nobody_that_they_are_stored() {
    let (mut world, node, data) = with_unneeded_chunks(5);
    let bucket = world.bucket.clone();
    let before = move |step: &RemovalStep| {
        if matches!(step, RemovalStep::Doom { .. }) {
            // The batch arrives, and nothing is heard of it.
            bucket.fail_at_change(bucket.changes(), Failure::DeadAfter);
        }
        true
    };
    *world.wire.before_step.lock() = Some(BeforeStep(Arc::new(before)));
    let error = remove_at(&world.engine(node)).unwrap_err();
    assert!(world.bucket.is_dead(), "{error}");
    *world.wire.before_step.lock() = None;
    world.bucket.calm();
    assert!(world.engine(node).has_lost_its_log().is_some());
    let other = (3..).step_by(2).find(|key| world.home_of(*key) != node).unwrap();
    let written = write(&mut world.engine(world.home_of(other)).stream(), &data);
    assert!(written.is_err(), "it refers to chunks that are gone");
    world.restart(node);
    world.write(other, data);
    check_places(&world);
    remove_all(&world);
    check_all(&world);
}

#[test]
fn m4_8_what_a_node_that_is_gone_has_not_delivered_is_taken_before_anything_is_removed() {
    let mut world = three_nodes(3);
    world.takes_rests = false;
    let data = world.data();
    // Two objects at two nodes refer to the same chunks. The second node dies before it has told anybody.
    let home = world.home_of(1);
    let other = (2..).find(|key| world.home_of(*key) != home && key % 2 == 1).unwrap();
    let dies = world.home_of(other);
    world.write(1, data.clone());
    world.nodes.values().for_each(|node| node.engine.deliver().unwrap());
    world.wire.loses_deliveries.store(true, Ordering::SeqCst);
    world.write(other, data);
    world.lose(dies);
    world.wire.loses_deliveries.store(false, Ordering::SeqCst);
    world.delete(1);
    remove_all(&world);
    check_places(&world);
    check_all(&world);
}

#[test]
fn m4_8_append_only_mode_keeps_other_nodes_from_removing_and_is_not_switched_on_in_the_middle() {
    let (world, _, _) = with_unneeded_chunks(4);
    let first = world.table[&Partition { class: PartitionClass::ObjectIndex, number: 0 }].owner();
    let knows = world.engine(first);
    let others = || world.nodes.iter().filter(|(number, _)| **number != first).map(|(_, node)| &node.engine);
    knows.switch_append_only_on(b"open sesame").unwrap();
    let before = world.stored_chunks();
    for engine in others() {
        // One that finds nothing unneeded does not ask.
        match remove_at(engine) {
            Err(error) => assert!(error.to_string().contains("append-only"), "{error}"),
            Ok(removed) => assert_eq!(removed, (0, true)),
        }
        let refused = engine.merge_containers(&[], &|_| 0).unwrap_err();
        assert!(refused.to_string().contains("append-only"), "{refused}");
    }
    assert_eq!((world.counts().len() as u64, world.stored_chunks()), (before, before), "nothing has gone");
    knows.switch_append_only_off(b"open sesame").unwrap();
    let switching: Arc<Mutex<Option<JoinHandle<()>>>> = Arc::default();
    let (of_hook, switches) = (switching.clone(), knows.clone());
    let before = move |step: &RemovalStep| {
        if matches!(step, RemovalStep::End { .. }) && of_hook.lock().is_none() {
            let switches = switches.clone();
            let thread = std::thread::spawn(move || switches.switch_append_only_on(b"open sesame").unwrap());
            std::thread::sleep(Duration::from_millis(300));
            assert!(!thread.is_finished(), "chunks are doomed");
            *of_hook.lock() = Some(thread);
        }
        true
    };
    *world.wire.before_step.lock() = Some(BeforeStep(Arc::new(before)));
    let removed: Vec<_> = others().map(remove_at).collect();
    *world.wire.before_step.lock() = None;
    assert!(removed[0].as_ref().is_ok_and(|(chunks, _)| *chunks > 0) || switching.lock().is_some());
    switching.lock().take().unwrap().join().unwrap();
    assert!(knows.append_only_since().unwrap().is_some());
}

/// What streams do while a removal takes its steps.
#[derive(Default)]
struct Meanwhile {
    written: Mutex<Vec<(u64, Run)>>,
    deleted: Mutex<BTreeSet<u64>>,
    waiting: Mutex<Vec<JoinHandle<()>>>,
}

#[test]
fn m4_8_removals_while_others_write_delete_move_and_die() {
    let seeds = match std::env::var("ONEFOLD_CRASH_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        // The last two once found a container that another owner had merged away.
        Err(_) => (0..8).chain([54, 72]).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        eprintln!("seed {seed}");
        let mut world = three_nodes(seed + 500);
        let mut key = 0;
        while key < 60 {
            let data = world.data();
            world.write(key, data);
            key += 1;
            match world.random.below(16) {
                0 if world.nodes.len() > 1 => {
                    let node = world.any_node();
                    world.lose(node);
                }
                1 => {
                    let node = world.any_node();
                    world.restart(node);
                }
                2 if world.nodes.len() < 4 => {
                    world.join();
                }
                3 => world.nodes.values().for_each(|node| node.engine.maintain(true).unwrap()),
                4 => {
                    let long: Vec<Partition> =
                        world.table.iter().filter(|(_, assigned)| assigned.lineage.len() > 1).map(|(partition, _)| *partition).collect();
                    long.into_iter().take(4).for_each(|partition| world.restate(partition, &mut key));
                }
                5 | 6 => world.move_one(),
                7..10 => {
                    let node = world.any_node();
                    remove_among_others(&mut world, node, &mut key);
                }
                10 => {
                    let node = world.any_node();
                    merge_at(&world.engine(node)).unwrap();
                }
                _ if !world.runs.is_empty() => {
                    let at = world.random.below(world.runs.len() as u64) as usize;
                    let old = *world.runs.keys().nth(at).unwrap();
                    world.delete(old);
                }
                _ => {}
            }
            world.give_containers();
            world.check();
            check_places(&world);
        }
        remove_all(&world);
        check_all(&world);
    }
}

/// Checks that the owner of each chunk of each run says where it is.
fn check_places(world: &World) {
    for (key, run) in &world.runs {
        for piece in run.pieces.iter().chain(&run.recipe) {
            let Some(name) = piece.fingerprint() else { continue };
            let is_here = |engine: &Arc<Engine>| matches!(engine.locate(&name), Ok(Some(_)));
            assert!(world.nodes.values().any(|node| is_here(&node.engine)), "a chunk of run {key} is stored nowhere");
        }
    }
}

/// Removes at a node, while other nodes write what may be removed, delete, and cannot be reached, at each step.
fn remove_among_others(world: &mut World, node: u32, key: &mut u64) {
    let meanwhile = Arc::new(Meanwhile::default());
    let homes: BTreeMap<u64, Arc<Engine>> = (0..16).map(|next| (*key + next, world.engine(world.home_of(*key + next)))).collect();
    let old: Vec<(u64, Run, Arc<Engine>)> =
        world.runs.iter().take(4).map(|(key, run)| (*key, run.clone(), world.engine(world.home_of(*key)))).collect();
    let plan: Vec<u64> = (0..64).map(|_| world.random.number()).collect();
    let data: Vec<Vec<u8>> = (0..16).map(|_| world.data()).collect();
    let (steps, first, wire) = (Mutex::new(0), *key, world.wire.clone());
    // Somebody has stored chunks, or found them, and goes on during the removal.
    let begun = *key + 16;
    let half = begin_run(&world.engine(world.home_of(begun)), begun, world.data());
    let half = Arc::new(Mutex::new(Some(half)));
    let of_writer = half.clone();
    let (of_hook, table) = (meanwhile.clone(), world.wire.clone());
    let another = world.any_node();
    let another = world.engine(another);
    let is_another = !Arc::ptr_eq(&another, &world.engine(node));
    let is_nested = AtomicBool::new(false);
    let before = move |step: &RemovalStep| {
        let at = {
            let mut steps = steps.lock();
            *steps += 1;
            *steps - 1
        };
        let random = plan[at % plan.len()];
        if matches!(step, RemovalStep::Settle { .. })
            && let Some(rest) = of_writer.lock().take()
        {
            of_hook.written.lock().push((begun, rest()));
        }
        match random % 6 {
            // Somebody writes. Chunks that are doomed make him wait until the removal is over.
            0 | 1 => {
                let next = first + (at % 16) as u64;
                if of_hook.written.lock().iter().any(|(written, _)| *written == next) || of_hook.deleted.lock().contains(&next) {
                    return true;
                }
                of_hook.deleted.lock().insert(next);
                let (engine, data, meanwhile) = (homes[&next].clone(), data[at % 16].clone(), of_hook.clone());
                let writing = std::thread::spawn(move || {
                    let run = write_run(&engine, next, data);
                    meanwhile.written.lock().push((next, run));
                });
                match step {
                    RemovalStep::Doom { .. } | RemovalStep::End { .. } => of_hook.waiting.lock().push(writing),
                    _ => writing.join().unwrap(),
                }
            }
            2 if (random / 6).is_multiple_of(4) => {
                if let Some((key, run, engine)) = old.get(at % 4)
                    && of_hook.deleted.lock().insert(*key)
                {
                    delete_run(engine, *key, run);
                }
            }
            3 if (random / 6).is_multiple_of(8) => return false,
            // Another node removes chunks, too.
            5 if is_another
                && matches!(step, RemovalStep::Watch { .. } | RemovalStep::Settle { .. })
                && !is_nested.swap(true, Ordering::SeqCst) =>
            {
                let _ = remove_at(&another);
                is_nested.store(false, Ordering::SeqCst);
            }
            4 if (random / 6).is_multiple_of(8) => drop(wire.table.fetch_add(1 << 32, Ordering::SeqCst)),
            _ => {}
        }
        true
    };
    *world.wire.before_step.lock() = Some(BeforeStep(Arc::new(before)));
    match remove_at(&world.engine(node)) {
        Ok(_) | Err(EngineError::OtherNode { .. } | EngineError::NotOwned { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    *table.before_step.lock() = None;
    if let Some(rest) = half.lock().take() {
        meanwhile.written.lock().push((begun, rest()));
    }
    for waiting in std::mem::take(&mut *meanwhile.waiting.lock()) {
        waiting.join().unwrap();
    }
    let old: BTreeSet<u64> = meanwhile.deleted.lock().iter().copied().filter(|deleted| *deleted < first).collect();
    old.into_iter().for_each(|deleted| drop(world.runs.remove(&deleted)));
    for (next, run) in std::mem::take(&mut *meanwhile.written.lock()) {
        world.runs.insert(next, run);
        *key = (*key).max(next + 1);
    }
}
