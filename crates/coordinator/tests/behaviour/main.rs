//! What a process relies on, of the coordinator in memory and of an ensemble of ZooKeeper servers, which is also
//! killed, stopped, and emptied.

mod ensemble;
mod gate;
mod node;
mod promises;
mod zookeeper;

use node::{Clock, World};
use onefold_cluster::{NodeNumber, Opening, Present};
use onefold_coordinator::{Coordinator, CoordinatorError, MemoryCoordinator, MemoryData};
use std::sync::Arc;

const SESSION_MS: u64 = 6_000;

impl World for MemoryCoordinator {
    fn coordinator(&self) -> Box<dyn Coordinator> {
        Box::new(self.clone())
    }

    fn clock(&self) -> Clock {
        let memory = self.clone();
        Arc::new(move || memory.now_ms())
    }

    fn wait(&self, what: &str, is_so: &mut dyn FnMut() -> bool) {
        for _ in 0..1000 {
            if is_so() {
                return;
            }
            self.pass(SESSION_MS / 10);
        }
        panic!("{what}: never");
    }

    fn remove_node(&self, node: NodeNumber) {
        MemoryCoordinator::remove_node(self, node);
    }
}

#[test]
fn m4_3_the_coordinator_in_memory_keeps_its_promises() {
    for promise in promises::ALL {
        promise(&MemoryCoordinator::new(SESSION_MS));
    }
}

#[test]
fn m4_3_a_session_that_is_ended_is_over_and_the_next_opening_joins() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let (one, two) = (memory.join_node(1, 1), memory.join_node(2, 1));
    two.wait_for_view("both", |view| view.alive.len() == 2);
    memory.end_session(one.present());
    one.wait_until_over(&CoordinatorError::Ended);
    two.wait_for_view("one of them", |view| view.alive.len() == 1);
    let again = memory.join_node(1, 2);
    two.wait_for_view("the next opening", |view| view.alive.get(&NodeNumber(1)) == Some(&Opening(2)));
    assert_eq!(again.over(), None);
}

#[test]
fn m4_3_who_is_cut_off_hears_nothing_and_its_session_ends() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let (one, two) = (memory.join_node(1, 1), memory.join_node(2, 1));
    two.wait_for_view("both", |view| view.alive.len() == 2);
    let cut_off = Present { node: NodeNumber(1), opening: Opening(1) };
    memory.set_cut_off(cut_off, true);
    let heard = one.heard();
    memory.pass(SESSION_MS - 1);
    two.wait_for_view("still both", |view| view.alive.len() == 2);
    assert_eq!(one.heard(), heard);
    memory.pass(1);
    two.wait_for_view("one of them, which is master", |view| view.alive.len() == 1 && view.is_master);
    assert_eq!((one.heard(), one.over()), (heard, None), "nobody can tell it");
    memory.set_cut_off(cut_off, false);
    one.wait_until_over(&CoordinatorError::Ended);
}

#[test]
fn m4_3_sessions_go_on_when_all_of_the_coordinator_was_away() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let one = memory.join_node(1, 1);
    one.wait_for_view("itself", |view| view.is_master);
    memory.set_away(true);
    let heard = one.heard();
    memory.pass(10 * SESSION_MS);
    assert_eq!(one.heard(), heard);
    memory.set_away(false);
    one.wait_until_heard_again();
    assert_eq!(one.over(), None);
}

#[test]
fn m4_3_lost_and_old_data_end_the_sessions_that_they_do_not_have() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let one = memory.join_node(1, 1);
    one.announce(5);
    one.wait_for_view("the table", |view| view.table == Some(5));
    let old = memory.data();
    one.announce(6);
    one.wait_for_view("the next table", |view| view.table == Some(6));
    memory.restore(old);
    one.wait_until_over(&CoordinatorError::Ended);
    // The session in the old data ends by itself.
    let again = memory.join_node(1, 2);
    memory.pass(SESSION_MS / 2);
    assert_eq!(again.view(), None, "an earlier session has the node");
    again.wait_for_view("the old number", |view| view.alive.get(&NodeNumber(1)) == Some(&Opening(2)) && view.table == Some(5));
    memory.restore(MemoryData::default());
    again.wait_until_over(&CoordinatorError::Ended);
    let third = memory.join_node(1, 3);
    third.wait_for_view("nothing but itself", |view| view.alive.len() == 1 && view.table.is_none());
}
