//! The same, of ZooKeeper, and what happens to sessions when its servers are killed, stopped and emptied.

use super::SESSION_MS;
use crate::ensemble::{Ensemble, PATIENCE};
use crate::node::{Clock, Node, World};
use crate::promises;
use onefold_cluster::{NodeNumber, Opening};
use onefold_coordinator::{Coordinator, CoordinatorError, Event, ZooKeeper};
use onefold_ground::time::Reading;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zookeeper_client::{Acls, Client, CreateMode, Error};

/// One ensemble at a time: three JVMs fill a small computer.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A store of an ensemble.
struct Store {
    servers: String,
    store: [u8; 16],
}

impl Store {
    fn new(ensemble: &Ensemble, number: u8) -> Store {
        Store { servers: ensemble.servers(), store: [number; 16] }
    }

    fn path(&self, name: &str) -> String {
        let store = format!("/onefold/{:032x}", u128::from_be_bytes(self.store));
        if name.is_empty() { store } else { format!("{store}/{name}") }
    }

    /// Does something as an operator does.
    fn operate<T>(&self, operate: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(&self.servers).await.unwrap();
            operate(&client).await.unwrap()
        })
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        self.operate(async |client| client.set_data(&path, content.as_bytes(), None).await.map(drop));
    }

    fn create(&self, name: &str, content: &str) {
        let path = self.path(name);
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        self.operate(async |client| client.create(&path, content.as_bytes(), &options).await.map(drop));
    }

    fn delete(&self, name: &str) {
        let path = self.path(name);
        self.operate(async |client| client.delete(&path, None).await);
    }
}

impl World for Store {
    fn coordinator(&self) -> Box<dyn Coordinator> {
        Box::new(ZooKeeper::new(&self.servers, self.store, SESSION_MS).unwrap())
    }

    fn clock(&self) -> Clock {
        Arc::new(|| Reading::now().boot_ns / 1_000_000)
    }

    fn wait(&self, what: &str, is_so: &mut dyn FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "{what}: never");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn remove_node(&self, node: NodeNumber) {
        self.delete(&format!("nodes/{node}"));
    }
}

#[test]
fn m4_3_zookeeper_keeps_the_promises_and_hostile_contents_do_no_harm() {
    let _one = ONE_AT_A_TIME.lock();
    let Some(ensemble) = Ensemble::start() else { return };
    for (number, promise) in (0..).zip(promises::ALL) {
        promise(&Store::new(&ensemble, number));
    }
    damaged_nodes_never_look_absent(&Store::new(&ensemble, 100));
    a_damaged_number_of_the_table_is_written_again(&Store::new(&ensemble, 101));
    names_that_are_no_numbers_hide_nobody(&Store::new(&ensemble, 102));
    a_node_of_no_session_is_told(&Store::new(&ensemble, 103));
    sessions_of_two_lengths_are_refused(&Store::new(&ensemble, 104));
    a_damaged_store_is_refused(&Store::new(&ensemble, 105));
}

fn damaged_nodes_never_look_absent(store: &Store) {
    let (one, two) = (store.join_node(1, 1), store.join_node(2, 1));
    one.wait_for_view("both", |view| view.alive.len() == 2);
    for content in ["", "onefold-node 2\nopening 1\naddress a:1\n", &*"x".repeat(100_000)] {
        store.write("nodes/2", content);
        one.wait_for_event(
            "the damage",
            |event| matches!(event, Event::Damaged { error: CoordinatorError::Damaged { path, .. }, .. } if path.ends_with("/nodes/2")),
        );
        one.wait_until_heard_again();
        assert_eq!(one.view().unwrap().0.alive.len(), 2);
    }
    two.knows(3);
    one.wait_for_nodes("it again", |nodes| nodes.len() == 2 && nodes[&NodeNumber(2)].table == Some(3));
    assert_eq!((one.over(), two.over()), (None, None));
}

fn a_damaged_number_of_the_table_is_written_again(store: &Store) {
    let one = store.join_node(1, 1);
    one.announce(4);
    one.wait_for_view("the table", |view| view.table == Some(4));
    store.write("table", "onefold-table 1\nnumber 99999999999999999999\n");
    one.wait_for_view("no table", |view| view.table.is_none());
    one.wait_for_event("the damage", |event| matches!(event, Event::Damaged { .. }));
    one.announce(4);
    one.wait_for_view("the table", |view| view.table == Some(4));
}

fn names_that_are_no_numbers_hide_nobody(store: &Store) {
    let one = store.join_node(1, 1);
    one.wait_for_view("itself", |view| view.is_master);
    store.create("nodes/01", "");
    one.wait_for_event("the damage", |event| matches!(event, Event::Damaged { .. }));
    let two = store.join_node(2, 1);
    for node in [&one, &two] {
        node.wait_for_view("both", |view| view.alive.len() == 2);
    }
}

fn a_node_of_no_session_is_told(store: &Store) {
    let one = store.join_node(1, 1);
    one.wait_for_view("itself", |view| view.is_master);
    store.create("nodes/2", "onefold-node 1\nopening 1\naddress a:1\n");
    let two = store.join_node(2, 1);
    for node in [&one, &two] {
        node.wait_for_event("the damage", |event| matches!(event, Event::Damaged { .. }));
    }
    assert_eq!(two.view(), None);
    store.delete("nodes/2");
    one.wait_for_view("both", |view| view.alive.len() == 2);
}

fn sessions_of_two_lengths_are_refused(store: &Store) {
    let one = store.join_node(1, 1);
    one.wait_for_view("itself", |view| view.is_master);
    let process = Node::join_with(store, &ZooKeeper::new(&store.servers, store.store, SESSION_MS + 500).unwrap(), 2, 1);
    process.wait_until_over(&CoordinatorError::SessionLength { session_ms: SESSION_MS + 500, found_ms: SESSION_MS });
    assert!(process.over().unwrap().is_final());
    // ZooKeeper makes a session of twenty ticks at most.
    let long = Store { store: [200; 16], servers: store.servers.clone() };
    let process = Node::join_with(&long, &ZooKeeper::new(&long.servers, long.store, 60_000).unwrap(), 2, 1);
    process.wait_until_over(&CoordinatorError::SessionLength { session_ms: 60_000, found_ms: 10_000 });
}

fn a_damaged_store_is_refused(store: &Store) {
    let one = store.join_node(1, 1);
    one.wait_for_view("itself", |view| view.is_master);
    one.leave();
    store.write("", "onefold-store 2\n");
    let one = store.join_node(1, 2);
    store.wait("a refusal", &mut || one.over().is_some_and(|error| error.is_final()));
}

#[test]
fn m4_3_sessions_go_on_when_the_leader_is_killed() {
    let _one = ONE_AT_A_TIME.lock();
    let Some(mut ensemble) = Ensemble::start() else { return };
    let store = Store::new(&ensemble, 1);
    let (one, two) = (store.join_node(1, 1), store.join_node(2, 1));
    one.wait_for_view("both", |view| view.alive.len() == 2);
    for number in 1..4 {
        ensemble.kill_leader();
        one.announce(number);
        two.wait_for_view("the table", |view| view.table == Some(number));
        one.wait_until_heard_again();
        two.wait_until_heard_again();
        ensemble.start_all();
        assert!(ensemble.wait_for_leader());
    }
    assert_eq!((one.over(), two.over()), (None, None));
    assert_eq!(one.view().unwrap().0.alive, [(NodeNumber(1), Opening(1)), (NodeNumber(2), Opening(1))].into());
}

#[test]
fn m4_3_all_of_zookeeper_is_away_for_longer_than_a_session() {
    let _one = ONE_AT_A_TIME.lock();
    let Some(mut ensemble) = Ensemble::start() else { return };
    let store = Store::new(&ensemble, 1);
    let one = store.join_node(1, 1);
    one.announce(3);
    one.wait_for_view("the table", |view| view.table == Some(3));
    ensemble.kill_all();
    let heard = one.heard();
    // Longer than the library waits, too.
    std::thread::sleep(Duration::from_millis(SESSION_MS * 2));
    assert!(one.heard() <= heard + 1, "an answer may have been under way");
    assert_eq!(one.over(), None, "nobody has said so");
    ensemble.start_all();
    assert!(ensemble.wait_for_leader());
    // ZooKeeper gives every session its whole time again. A slow machine may need longer to ask.
    let heard = one.heard();
    store.wait("an answer", &mut || one.heard() > heard || one.over().is_some());
    let node = match one.over() {
        None => one,
        Some(error) => {
            assert_eq!(error, CoordinatorError::Ended);
            store.join_node(1, 2)
        }
    };
    node.wait_for_view("the table", |view| view.table == Some(3) && view.is_master);
    node.wait_until_heard_again();
}

#[test]
fn m4_3_sessions_are_over_when_zookeeper_has_lost_its_data() {
    let _one = ONE_AT_A_TIME.lock();
    let Some(mut ensemble) = Ensemble::start() else { return };
    let store = Store::new(&ensemble, 1);
    let one = store.join_node(1, 1);
    one.announce(3);
    one.wait_for_view("the table", |view| view.table == Some(3));
    ensemble.kill_all();
    ensemble.empty();
    ensemble.start_all();
    assert!(ensemble.wait_for_leader());
    one.wait_until_over(&CoordinatorError::Ended);
    let again = store.join_node(1, 2);
    again.wait_for_view("nothing but itself", |view| view.alive.len() == 1 && view.is_master && view.table.is_none());
    again.announce(4);
    again.wait_for_view("the table", |view| view.table == Some(4));
}
