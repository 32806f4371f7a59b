//! What every coordinator promises. Each one begins with a coordinator that knows nothing of the store.

use crate::node::{Node, World};
use onefold_cluster::{NodeNumber, Opening};
use onefold_coordinator::{CoordinatorError, Event, Faces, Joining, Listed};
use std::sync::Arc;

pub const ALL: [fn(&dyn World); 8] = [
    nodes_see_each_other_as_they_describe_themselves,
    what_is_heard_was_asked_before_and_comes_behind_a_view,
    the_next_opening_waits_for_the_end_of_the_session_before,
    there_is_one_master_and_another_one_when_it_leaves,
    the_number_of_the_table_never_falls,
    whoever_leaves_is_told_nothing_more,
    a_node_whose_ephemeral_node_is_removed_is_over,
    an_address_that_cannot_be_written_down_is_refused,
];

fn nodes_see_each_other_as_they_describe_themselves(world: &dyn World) {
    let (one, two) = (Node::join(world, 1, 11), Node::join(world, 2, 22));
    let listed =
        |node, opening, table| Listed { opening: Opening(opening), address: format!("node-{node}:7420"), faces: Faces::new(), table };
    for node in [&one, &two] {
        node.wait_for_nodes("both", |nodes| {
            nodes.len() == 2 && nodes[&NodeNumber(1)] == listed(1, 11, None) && nodes[&NodeNumber(2)] == listed(2, 22, None)
        });
        let (view, _) = node.view().unwrap();
        assert_eq!(view.alive, [(NodeNumber(1), Opening(11)), (NodeNumber(2), Opening(22))].into());
        assert_eq!(view.table, None);
    }
    one.knows(7);
    two.wait_for_nodes("what the other one knows", |nodes| nodes[&NodeNumber(1)] == listed(1, 11, Some(7)));
}

fn what_is_heard_was_asked_before_and_comes_behind_a_view(world: &dyn World) {
    let before_ms = world.clock()();
    let node = Node::join(world, 1, 1);
    node.wait_for_view("itself", |view| view.is_master);
    for _ in 0..10 {
        node.wait_until_heard_again();
    }
    let now_ms = world.clock()();
    let session_ms = world.coordinator().session_ms();
    let mut last_ms = 0;
    let mut has_view = false;
    for event in node.events() {
        match event {
            Event::View { opening, ref view, .. } => {
                assert_eq!(opening, Opening(1));
                assert_eq!(view.alive.get(&NodeNumber(1)), Some(&Opening(1)), "a view of a session that is not there");
                has_view = true;
            }
            Event::Heard { opening, asked_ms } => {
                assert_eq!(opening, Opening(1));
                assert!(last_ms <= asked_ms && asked_ms <= now_ms && asked_ms + session_ms >= before_ms, "{asked_ms}");
                assert!(has_view, "it hears, and has no view");
                last_ms = asked_ms;
            }
            other => panic!("{other:?}"),
        }
    }
}

fn the_next_opening_waits_for_the_end_of_the_session_before(world: &dyn World) {
    let (before, watcher) = (Node::join(world, 1, 1), Node::join(world, 2, 1));
    watcher.wait_for_view("the first opening", |view| view.alive.get(&NodeNumber(1)) == Some(&Opening(1)));
    let next = Node::join(world, 1, 2);
    next.wait_until_heard_again();
    assert_eq!(next.view(), None, "views come only when it is there");
    before.wait_until_heard_again();
    assert_eq!(before.over(), None);
    assert_eq!(watcher.view().unwrap().0.alive[&NodeNumber(1)], Opening(1));
    before.leave();
    for node in [&watcher, &next] {
        node.wait_for_view("the next opening", |view| view.alive.get(&NodeNumber(1)) == Some(&Opening(2)));
    }
}

fn there_is_one_master_and_another_one_when_it_leaves(world: &dyn World) {
    let first = Node::join(world, 1, 1);
    first.wait_for_view("that it is master", |view| view.is_master);
    let second = Node::join(world, 2, 1);
    second.wait_for_view("both", |view| view.alive.len() == 2);
    for node in [&first, &second] {
        node.wait_until_heard_again();
    }
    assert!(first.view().unwrap().0.is_master && !second.view().unwrap().0.is_master);
    first.leave();
    second.wait_for_view("that it is master", |view| view.is_master && view.alive.len() == 1);
}

fn the_number_of_the_table_never_falls(world: &dyn World) {
    let (one, two) = (Node::join(world, 1, 1), Node::join(world, 2, 1));
    one.announce(0);
    two.wait_for_view("the first table", |view| view.table == Some(0));
    one.announce(12);
    two.wait_for_view("the table", |view| view.table == Some(12));
    two.announce(11);
    let ahead = Event::Ahead { opening: Opening(1), announced: 11, found: 12 };
    two.wait_for_event("the higher number", |event| *event == ahead);
    two.announce(11);
    two.announce(12);
    two.wait_until_heard_again();
    assert_eq!(two.events().iter().filter(|event| matches!(event, Event::Ahead { .. })).count(), 1, "told once");
    assert_eq!(two.view().unwrap().0.table, Some(12));
    two.announce(13);
    one.wait_for_view("the next table", |view| view.table == Some(13));
    // It outlives its sessions.
    one.leave();
    two.leave();
    Node::join(world, 3, 1).wait_for_view("the table", |view| view.table == Some(13) && view.alive.len() == 1);
}

fn whoever_leaves_is_told_nothing_more(world: &dyn World) {
    let (one, two) = (Node::join(world, 1, 1), Node::join(world, 2, 1));
    two.wait_for_view("both", |view| view.alive.len() == 2);
    let told = one.leave();
    assert!(!told.iter().any(|event| matches!(event, Event::Over { .. })), "{told:?}");
    two.wait_for_view("that one is gone", |view| view.alive.len() == 1);
}

fn a_node_whose_ephemeral_node_is_removed_is_over(world: &dyn World) {
    let (one, two) = (Node::join(world, 1, 1), Node::join(world, 2, 1));
    two.wait_for_view("both", |view| view.alive.len() == 2);
    world.remove_node(NodeNumber(1));
    world.wait("the end of the session", &mut || one.over().is_some());
    let error = one.over().unwrap();
    assert!(matches!(error, CoordinatorError::Lost { .. }) && !error.is_final(), "{error}");
    two.wait_for_view("that one is gone", |view| view.alive.len() == 1 && view.is_master);
}

fn an_address_that_cannot_be_written_down_is_refused(world: &dyn World) {
    struct Nobody;
    impl onefold_coordinator::Process for Nobody {
        fn now_ms(&self) -> u64 {
            0
        }

        fn tell(&self, event: Event) {
            panic!("{event:?}");
        }
    }
    let present = onefold_cluster::Present { node: NodeNumber(1), opening: Opening(1) };
    for address in ["", "a b:1", "a:1\ntable 7"] {
        let joining = Joining { present, address: address.to_owned(), faces: Faces::new(), table: None };
        let error = world.coordinator().join(joining, Arc::new(Nobody)).err().unwrap();
        assert!(matches!(error, CoordinatorError::Setting { .. }), "{address:?}: {error}");
    }
}
