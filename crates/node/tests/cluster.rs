//! Nodes of one process over sockets: they come, share the store, die, leave, and are cut off.

mod cluster {
    pub mod scene;
}

use cluster::scene::{ALL, PATIENCE, SESSION_MS, Scene, object_partition, until};
use onefold_bucket::Failure;
use onefold_cluster::{NodeNumber, Phase, Right};
use onefold_coordinator::{Coordinator, CoordinatorError, Event, Joining, Process, Session};
use onefold_crash_harness::Random;
use onefold_engine::Engine;
use onefold_node::{Node, NodeError, NodeSettings};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Says how long something took, for people who look for what is slow.
fn step(begin: &mut Instant, what: &str) {
    println!("{what}: {} ms", begin.elapsed().as_millis());
    *begin = Instant::now();
}

/// Data of which much is in others, too.
fn data(run: u64) -> Vec<u8> {
    (0..3).flat_map(|at| Random(run / 3 + at * 7 % 5).fresh(20_000)).collect()
}

#[test]
fn m4_2_nodes_that_come_share_the_store_and_store_the_same_data_once() {
    let mut scene = Scene::new(1);
    let status = scene.status(0);
    assert_eq!((status.node, status.phase, status.served.len()), (Some(NodeNumber(0)), Phase::In, ALL));
    assert!(status.is_master && status.hears);
    (0..6).for_each(|key| scene.write(0, key, &data(key)));
    let chunks = scene.check_counts();
    for at in [1, 2] {
        scene.add();
        scene.shared_by(&(0..=at).collect::<Vec<_>>());
        assert_eq!(scene.status(at).node, Some(NodeNumber(at as u32)));
        scene.check_data();
        // What came with the partitions is known where it is now.
        (0..6).for_each(|key| scene.write(at, at as u64 * 10 + key, &data(key)));
        assert_eq!(scene.check_counts(), chunks, "nothing of it is new");
    }
    // New data at all nodes at once.
    for round in 0..2 {
        let new = Random(900 + round).fresh(150_000);
        std::thread::scope(|threads| {
            for at in 0..3 {
                let (scene, new) = (&scene, &new);
                threads.spawn(move || scene.write(at, 100 + round * 10 + at as u64, new));
            }
        });
    }
    assert!(scene.check_counts() > chunks);
    scene.check_data();
    // Faces ask any node who has what.
    for number in 0..4 {
        let owners: Vec<_> = (0..3).map(|at| scene.node(at).owner_of(object_partition(number)).unwrap()).collect();
        assert!(owners.windows(2).all(|pair| pair[0] == pair[1]));
        let (owner, address) = &owners[0];
        let owner = owner.0 as usize;
        assert_eq!(address.as_deref(), Some(scene.node(owner).address()));
        assert_eq!(scene.node(owner).may_serve(object_partition(number)), Right::All);
        assert_eq!(scene.node((owner + 1) % 3).may_serve(object_partition(number)), Right::Refuse);
    }
}

#[test]
fn m4_8_others_take_over_what_a_killed_node_had_and_it_comes_back_with_a_new_number() {
    let mut begin = Instant::now();
    let mut scene = Scene::new(3);
    step(&mut begin, "three nodes share the store");
    for key in 0..9 {
        scene.write(key as usize % 3, key, &data(key));
    }
    step(&mut begin, "data are written");
    scene.kill(1);
    scene.served_by(&[0, 2]);
    step(&mut begin, "others have taken over");
    scene.check_data();
    scene.check_counts();
    step(&mut begin, "data and counts are checked");
    for key in 10..16 {
        scene.write(key as usize % 2 * 2, key, &data(key));
    }
    scene.check_counts();
    step(&mut begin, "data are written, counts are checked");
    // Its log is closed.
    scene.start(1);
    scene.takes_part(1, NodeNumber(3));
    scene.served_by(&[0, 1, 2]);
    scene.check_data();
    scene.check_counts();
    step(&mut begin, "it is back, everything is checked");
    // The first node, and the master, is no exception.
    let master = (0..3).find(|at| scene.status(*at).is_master).unwrap();
    scene.kill(master);
    scene.served_by(&(0..3).filter(|at| *at != master).collect::<Vec<_>>());
    step(&mut begin, "others have taken over from the master");
    scene.check_data();
    scene.check_counts();
    step(&mut begin, "everything is checked");
}

#[test]
fn m4_2_a_node_that_leaves_gives_everything_away_first() {
    let mut scene = Scene::new(2);
    for key in 0..8 {
        scene.write(key as usize % 2, key, &data(key));
    }
    // The first node, whose partitions have short lineages.
    assert!(scene.node(0).leave(PATIENCE), "{}", scene.describe());
    assert_eq!((scene.status(0).phase, scene.node(0).engine().is_none()), (Phase::Out, true));
    scene.machines[0].node = None;
    scene.served_by(&[1]);
    scene.check_data();
    scene.check_counts();
    // Nobody could take what the last one has.
    assert!(!scene.node(1).leave(Duration::from_millis(100)));
    assert_eq!(scene.status(1).served.len(), ALL);
    // Its number is gone. Now the other one can leave: what it took over, it has restated.
    scene.start(0);
    scene.takes_part(0, NodeNumber(2));
    assert!(scene.node(1).leave(PATIENCE), "{}", scene.describe());
    scene.machines[1].node = None;
    scene.served_by(&[0]);
    scene.check_data();
    scene.check_counts();
}

#[test]
fn m4_3_a_node_that_is_cut_off_stops_answering_before_others_take_over() {
    let scene = Scene::new(2);
    for key in 0..4 {
        scene.write(key as usize % 2, key, &data(key));
    }
    let cut_off = scene.present(1);
    let (other, begin) = (scene.status(0).served, Instant::now());
    scene.coordinator.set_cut_off(cut_off, true);
    until("it stops", || scene.describe(), || scene.status(1).served.is_empty());
    assert!(!scene.status(1).hears && begin.elapsed() < Duration::from_millis(SESSION_MS));
    assert_eq!(scene.node(1).may_serve(object_partition(0)), Right::Stopped);
    assert_eq!(scene.status(0).served, other, "nobody has taken anything yet");
    scene.served_by(&[0]);
    scene.check_counts_of(&[0]);
    // It hears again, finds its log closed, and takes part with a new number.
    scene.coordinator.set_cut_off(cut_off, false);
    scene.takes_part(1, NodeNumber(2));
    scene.check_data();
}

#[test]
fn m4_3_without_a_coordinator_all_stop_and_go_on_with_the_same_table() {
    let scene = Scene::new(2);
    scene.write(0, 1, &data(1));
    let before: Vec<_> = (0..2).map(|at| (scene.status(at).table, scene.present(at))).collect();
    scene.coordinator.set_away(true);
    until("all stop", || scene.describe(), || (0..2).all(|at| scene.status(at).served.is_empty()));
    scene.coordinator.set_away(false);
    scene.served_by(&[0, 1]);
    assert_eq!(before, (0..2).map(|at| (scene.status(at).table, scene.present(at))).collect::<Vec<_>>());
    scene.check_data();
}

#[test]
fn m4_2_a_node_alone_comes_back_with_its_number_and_among_others_it_has_been_replaced() {
    let mut scene = Scene::new(1);
    (0..3).for_each(|key| scene.write(0, key, &data(key)));
    let before = scene.present(0);
    scene.machines[0].node.take().unwrap().stop();
    scene.start(0);
    scene.served_by(&[0]);
    let after = scene.present(0);
    assert!(after.node == before.node && after.opening > before.opening, "{before:?} {after:?}");
    scene.add();
    scene.shared_by(&[0, 1]);
    scene.write(1, 3, &data(3));
    let begin = Instant::now();
    scene.machines[1].node.take().unwrap().stop();
    scene.served_by(&[0]);
    println!("what a node had that ended orderly is served after {} ms", begin.elapsed().as_millis());
    scene.start(1);
    scene.takes_part(1, NodeNumber(2));
    scene.served_by(&[0, 1]);
    scene.check_data();
    scene.check_counts();
}

/// A coordinator whose sessions have another length.
struct Other(Arc<dyn Coordinator>);

fn another_length() -> CoordinatorError {
    CoordinatorError::SessionLength { session_ms: SESSION_MS, found_ms: 9000 }
}

impl Coordinator for Other {
    fn session_ms(&self) -> u64 {
        self.0.session_ms()
    }

    fn join(&self, joining: Joining, process: Arc<dyn Process>) -> Result<Box<dyn Session>, CoordinatorError> {
        let opening = joining.present.opening;
        let session = self.0.join(joining, process.clone())?;
        process.tell(Event::Over { opening, error: another_length() });
        Ok(session)
    }
}

#[test]
fn m4_3_a_node_ends_and_says_why_when_no_session_can_begin() {
    let mut scene = Scene::new(1);
    scene.write(0, 1, &data(1));
    assert_eq!(scene.node(0).failure(), None);
    scene.add_machine();
    let settings = scene.settings(1);
    let coordinator = Arc::new(Other(settings.coordinator.clone()));
    let node = Node::start(NodeSettings { coordinator, ..settings }).unwrap();
    until("it has ended", || format!("{:?}", node.status()), || node.failure().is_some());
    assert_eq!(node.failure(), Some(another_length()));
    assert!(node.engine().is_none() && node.may_serve(object_partition(0)) == Right::Stopped);
    assert!(!node.status().hears && node.status().trouble.is_some_and(|trouble| trouble.contains("9000 ms")));
    node.stop();
    // The others go on.
    scene.served_by(&[0]);
    scene.check_data();
    // What can be seen at once is said at once.
    let settings = NodeSettings { address: Some("one two:1".to_owned()), ..scene.settings(1) };
    assert!(matches!(Node::start(settings), Err(NodeError::Coordinator(CoordinatorError::Setting { .. }))));
}

/// Unsafe order 58.
#[test]
fn m4_2_others_begin_without_a_first_node_that_was_lost_before_it_had_put_a_table() {
    let mut scene = Scene::empty();
    (0..4).for_each(|key| scene.write_alone(key, &data(key)).unwrap());
    // It is lost when it has its number, and has not opened its log.
    let bucket = scene.bucket.clone();
    let has = |name: &str| bucket.content(name).is_some();
    scene.bucket.fail_at_change(scene.bucket.changes(), Failure::DeadAfter);
    scene.add();
    until("it has its number", || scene.describe(), || has("nodes/0/node") && scene.status(0).trouble.is_some());
    scene.machines[0].node = None;
    scene.bucket.calm();
    assert!(!has("tables/0000000000000000"));
    scene.write_alone(4, &data(4)).unwrap();
    for _ in 0..2 {
        scene.add();
    }
    scene.served_by(&[1, 2]);
    let numbers = [1, 2].map(|at| scene.status(at).node.unwrap());
    assert!(numbers == [1, 2].map(NodeNumber) || numbers == [2, 1].map(NodeNumber));
    scene.check_data();
    scene.check_counts();
    assert!(scene.write_alone(5, &data(5)).is_err(), "nodes only");
    scene.write(1, 5, &data(5));
    // Its log is closed by now.
    scene.start(0);
    scene.takes_part(0, NodeNumber(3));
    scene.check_data();
    scene.check_counts();
}

/// Unsafe order 58.
#[test]
fn m4_2_a_first_node_goes_on_when_another_one_has_put_the_table_for_it() {
    for is_served in [false, true] {
        let mut scene = Scene::empty();
        scene.add();
        if is_served {
            scene.served_by(&[0]);
            scene.write(0, 0, &data(0));
        }
        let before = scene.status(0).opening;
        // As a node does that has looked before there was a table.
        Engine::share_log_of(&(scene.settings(0).grounds)(NodeNumber(9)).unwrap(), 0).unwrap();
        scene.write(0, 1, &data(1));
        scene.served_by(&[0]);
        assert!(!is_served || scene.status(0).opening > before);
        assert_eq!(scene.status(0).node, Some(NodeNumber(0)));
        scene.check_data();
        scene.check_counts();
    }
}
