//! The same, of ZooKeeper, and what happens to sessions when its servers are killed, stopped and emptied.

use super::SESSION_MS;
use crate::ensemble::{Ensemble, LEADER_WAIT, PATIENCE};
use crate::gate::{Gate, Hold};
use crate::node::{Clock, Node, World};
use crate::promises;
use onefold_cluster::{NodeNumber, Opening};
use onefold_coordinator::{Coordinator, CoordinatorError, Credentials, Event, ZooKeeper, ZooKeeperOptions};
use onefold_ground::time::Reading;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zookeeper_client::{Acls, Client, CreateMode, Error};

/// Eight ticks.
const SHORT_SESSION_MS: u64 = 4_000;

/// Two ensembles at a time: each has three JVMs.
static SLOTS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];

fn slot() -> MutexGuard<'static, ()> {
    loop {
        if let Some(slot) = SLOTS.iter().find_map(|slot| slot.try_lock()) {
            return slot;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A store of an ensemble.
struct Store {
    servers: String,
    /// How operators reach it.
    all_servers: String,
    store: [u8; 16],
    session_ms: u64,
    root: &'static str,
    credentials: Option<Credentials>,
}

impl Store {
    fn new(ensemble: &Ensemble, number: u8) -> Store {
        let servers = ensemble.servers();
        let all_servers = servers.clone();
        Store { servers, all_servers, store: [number; 16], session_ms: SESSION_MS, root: "/onefold", credentials: None }
    }

    /// Returns the same store as seen through other servers.
    fn through(&self, servers: String) -> Store {
        let (all_servers, credentials) = (self.all_servers.clone(), self.credentials.clone());
        Store { servers, all_servers, credentials, ..*self }
    }

    fn options(&self) -> ZooKeeperOptions {
        let credentials = self.credentials.clone();
        ZooKeeperOptions { root: self.root.to_owned(), credentials, ..ZooKeeperOptions::new(&*self.servers, self.session_ms) }
    }

    fn path(&self, name: &str) -> String {
        let store = format!("{}/{:032x}", self.root, u128::from_be_bytes(self.store));
        if name.is_empty() { store } else { format!("{store}/{name}") }
    }

    /// Does something as an operator does.
    fn operate<T>(&self, operate: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(&self.all_servers).await.unwrap();
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
        Box::new(ZooKeeper::new(self.options(), self.store).unwrap())
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
    let _slot = slot();
    let Some(ensemble) = Ensemble::start() else { return };
    let of_stores: [fn(&Store); 9] = [
        damaged_nodes_never_look_absent,
        a_damaged_number_of_the_table_is_written_again,
        names_that_are_no_numbers_hide_nobody,
        a_node_of_no_session_is_told,
        sessions_of_two_lengths_are_refused,
        a_damaged_store_is_refused,
        stores_and_roots_do_not_see_each_other,
        only_the_same_user_reaches_a_store_with_credentials,
        whoever_is_cut_off_hears_nothing_and_its_writes_are_refused,
    ];
    std::thread::scope(|scope| {
        for (number, promise) in (0..).zip(promises::ALL) {
            let store = Store::new(&ensemble, number);
            scope.spawn(move || promise(&store));
        }
        for (number, test) in (100..).zip(of_stores) {
            let store = Store::new(&ensemble, number);
            scope.spawn(move || test(&store));
        }
        let store = Store::new(&ensemble, 200);
        scope.spawn(move || a_late_write_does_not_lower_the_number_of_the_table(&store));
    });
}

fn stores_and_roots_do_not_see_each_other(store: &Store) {
    let other = Store { store: [0xee; 16], ..store.through(store.servers.clone()) };
    let deep = Store { root: "/deep/er/onefold", ..store.through(store.servers.clone()) };
    let nodes = [store.join_node(1, 1), other.join_node(1, 2), deep.join_node(1, 3)];
    for (node, table) in nodes.iter().zip([11, 7, 3]) {
        node.announce(table);
    }
    for ((node, opening), table) in nodes.iter().zip([1, 2, 3]).zip([11, 7, 3]) {
        node.wait_for_view("its table", |view| view.table == Some(table));
        node.wait_until_heard_again();
        let (view, _) = node.view().unwrap();
        assert_eq!((view.alive, view.is_master), ([(NodeNumber(1), Opening(opening))].into(), true));
    }
}

fn only_the_same_user_reaches_a_store_with_credentials(open: &Store) {
    let user = |user: &str, password: &str| Some(Credentials { user: user.to_owned(), password: password.to_owned() });
    let store = Store { credentials: user("alice", "secret:1"), root: "/guarded", ..open.through(open.servers.clone()) };
    let (one, two) = (store.join_node(1, 1), store.join_node(2, 1));
    one.announce(5);
    two.wait_for_view("both, and the table", |view| view.alive.len() == 2 && view.table == Some(5));
    for other in [None, user("alice", "secret"), user("bob", "secret:1")] {
        let of_other = Store { credentials: other, ..store.through(store.servers.clone()) };
        let third = of_other.join_node(3, 1);
        store.wait("a refusal", &mut || third.over().is_some());
        let error = third.over().unwrap();
        assert!(matches!(error, CoordinatorError::Refused { .. }) && error.is_final(), "{error}");
    }
    let is_refused = store.operate(async |client| {
        let mut refused = Vec::new();
        for path in [store.path(""), store.path("nodes/1"), store.path("master"), store.path("table")] {
            refused.push(matches!(client.get_data(&path).await, Err(Error::NoAuth)));
            refused.push(matches!(client.set_data(&path, b"", None).await, Err(Error::NoAuth)));
            refused.push(matches!(client.delete(&path, None).await, Err(Error::NoAuth)));
        }
        Ok(refused)
    });
    assert_eq!(is_refused, [true; 12]);
    one.wait_until_heard_again();
    assert_eq!((one.over(), two.over()), (None, None));
}

/// A write that is compared and set: between the look of one master and its write, another one writes a newer number.
fn a_late_write_does_not_lower_the_number_of_the_table(store: &Store) {
    let gate = Gate::new(store.servers.rsplit_once(':').unwrap().1.parse().unwrap());
    let behind_gate = store.through(gate.servers());
    let (one, two) = (behind_gate.join_node(1, 1), store.join_node(2, 1));
    one.announce(1);
    two.wait_for_view("the table", |view| view.table == Some(1));
    gate.hold(Hold::TableWrites);
    one.announce(11);
    store.wait("a write that is held", &mut || gate.holds_a_write());
    two.announce(12);
    two.wait_for_view("the newer table", |view| view.table == Some(12));
    gate.hold(Hold::Nothing);
    one.wait_for_event("the higher number", |event| matches!(event, Event::Ahead { announced: 11, found: 12, .. }));
    two.wait_until_heard_again();
    assert!(!two.events().iter().any(|event| matches!(event, Event::View { view, .. } if view.table == Some(11))));
    assert_eq!(two.view().unwrap().0.table, Some(12));
}

/// The master is cut off, with a write under way. It arrives when another one is master.
fn whoever_is_cut_off_hears_nothing_and_its_writes_are_refused(store: &Store) {
    let gate = Gate::new(store.servers.rsplit_once(':').unwrap().1.parse().unwrap());
    let behind_gate = store.through(gate.servers());
    let one = behind_gate.join_node(1, 1);
    one.announce(1);
    one.wait_for_view("that it is master", |view| view.is_master && view.table == Some(1));
    let two = store.join_node(2, 1);
    two.wait_for_view("both", |view| view.alive.len() == 2 && !view.is_master);
    gate.hold(Hold::TableWrites);
    one.announce(30);
    store.wait("a write that is held", &mut || gate.holds_a_write());
    gate.hold(Hold::Everything);
    let heard_ms = one.heard_ms();
    two.wait_for_view("that one is gone", |view| view.alive.len() == 1 && view.is_master);
    let ended_ms = store.clock()();
    assert!(one.heard_ms().unwrap() + SESSION_MS <= ended_ms, "the session ended too early");
    assert!(one.heard_ms() == heard_ms || one.heard_ms() < heard_ms.map(|heard_ms| heard_ms + SESSION_MS / 2));
    assert_eq!(one.over(), None, "nobody can tell it");
    two.announce(20);
    two.wait_for_view("its table", |view| view.table == Some(20));
    gate.hold(Hold::Nothing);
    one.wait_until_over(&CoordinatorError::Ended);
    two.wait_until_heard_again();
    assert_eq!(two.view().unwrap().0.table, Some(20), "a session that has ended writes nothing");
    let again = behind_gate.join_node(1, 2);
    again.wait_for_view("that another one is master", |view| !view.is_master && view.alive.len() == 2);
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
    let process = Node::join_with(
        store,
        &ZooKeeper::new(ZooKeeperOptions { session_ms: SESSION_MS + 500, ..store.options() }, store.store).unwrap(),
        2,
        1,
    );
    process.wait_until_over(&CoordinatorError::SessionLength { session_ms: SESSION_MS + 500, found_ms: SESSION_MS });
    assert!(process.over().unwrap().is_final());
    // ZooKeeper makes a session of twenty ticks at most.
    let long = Store { store: [0xff; 16], session_ms: 60_000, ..store.through(store.servers.clone()) };
    let process = long.join_node(2, 1);
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
fn m4_3_sessions_go_on_when_the_leader_is_killed_and_nobody_hears_while_it_hangs() {
    let _slot = slot();
    let Some(mut ensemble) = Ensemble::start() else { return };
    let store = Store::new(&ensemble, 1);
    let (one, two) = (store.join_node(1, 1), store.join_node(2, 1));
    one.wait_for_view("both", |view| view.alive.len() == 2);
    ensemble.kill_leader();
    one.announce(7);
    two.wait_for_view("the table", |view| view.table == Some(7));
    one.wait_until_heard_again();
    two.wait_until_heard_again();
    assert_eq!((one.over(), two.over()), (None, None));
    assert_eq!(one.view().unwrap().0.alive, [(NodeNumber(1), Opening(1)), (NodeNumber(2), Opening(1))].into());
    ensemble.start_all();
    assert!(ensemble.wait_for_leader());
    nobody_hears_while_the_leader_hangs(&ensemble);
}

/// Unsafe order 51: a server that has no leader answers reads for some time.
fn nobody_hears_while_the_leader_hangs(ensemble: &Ensemble) {
    let store = Store::new(ensemble, 2);
    let behind_follower = store.through(format!("127.0.0.1:{}", ensemble.follower_port()));
    let one = behind_follower.join_node(1, 1);
    one.announce(3);
    one.wait_for_view("the table", |view| view.table == Some(3));
    one.wait_until_heard_again();
    let begun = Instant::now();
    let stopped = ensemble.stop_leader();
    let heard = one.heard();
    std::thread::sleep(Duration::from_millis(SESSION_MS / 2));
    let heard_meanwhile = one.heard() - heard;
    // On a machine that is slow enough there may be another leader by now.
    if begun.elapsed() < LEADER_WAIT {
        assert!(heard_meanwhile <= 1, "one answer may have been under way, but there were {heard_meanwhile}");
    }
    // The others elect another leader.
    let node = again_if_over(&behind_follower, one);
    drop(stopped);
    node.announce(4);
    node.wait_for_view("the next table", |view| view.table == Some(4) && view.is_master);
    node.wait_until_heard_again();
}

/// Waits until a node hears again. If its session has ended meanwhile, it joins again.
fn again_if_over<'a>(store: &'a Store, node: Node<'a>) -> Node<'a> {
    let heard = node.heard();
    store.wait("an answer", &mut || node.heard() > heard || node.over().is_some());
    match node.over() {
        None => node,
        Some(error) => {
            assert_eq!(error, CoordinatorError::Ended);
            store.join_node(1, 2)
        }
    }
}

#[test]
fn m4_3_all_of_zookeeper_is_away_for_longer_than_a_session_or_loses_its_data() {
    let _slot = slot();
    let Some(mut ensemble) = Ensemble::start() else { return };
    let store = Store { session_ms: SHORT_SESSION_MS, ..Store::new(&ensemble, 1) };
    let one = store.join_node(1, 1);
    one.announce(3);
    one.wait_for_view("the table", |view| view.table == Some(3));
    ensemble.kill_all();
    let heard = one.heard();
    // Longer than the library waits, too.
    std::thread::sleep(Duration::from_millis(SHORT_SESSION_MS * 8 / 5));
    assert!(one.heard() <= heard + 1, "an answer may have been under way");
    assert_eq!(one.over(), None, "nobody has said so");
    ensemble.start_all();
    assert!(ensemble.wait_for_leader());
    // ZooKeeper gives every session its whole time again. A slow machine may need longer to ask.
    let node = again_if_over(&store, one);
    node.wait_for_view("the table", |view| view.table == Some(3) && view.is_master);
    node.wait_until_heard_again();

    ensemble.kill_all();
    ensemble.empty();
    ensemble.start_all();
    assert!(ensemble.wait_for_leader());
    node.wait_until_over(&CoordinatorError::Ended);
    let again = store.join_node(1, 3);
    again.wait_for_view("nothing but itself", |view| view.alive.len() == 1 && view.is_master && view.table.is_none());
    again.announce(4);
    again.wait_for_view("the table", |view| view.table == Some(4));
}
