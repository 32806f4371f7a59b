use super::*;
use crate::{Listed, MemoryCoordinator};
use onefold_cluster::{Counts, NodeNumber, Order, Outcome, Report, Table};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

const SESSION_MS: u64 = 8_000;
/// A heartbeat comes in each.
const STEP_MS: u64 = SESSION_MS / 8;
const NODE: NodeNumber = NodeNumber(1);
const OPENING: Opening = Opening(5);

struct Recorder {
    memory: MemoryCoordinator,
    sender: Sender<Event>,
}

impl Process for Recorder {
    fn now_ms(&self) -> u64 {
        self.memory.now_ms()
    }

    fn tell(&self, event: Event) {
        let _ = self.sender.send(event);
    }
}

struct Node {
    memory: MemoryCoordinator,
    member: Arc<Mutex<Member>>,
    seat: Seat,
    events: Receiver<Event>,
    view: Option<View>,
    nodes: BTreeMap<NodeNumber, Listed>,
}

/// Returns a member and its seat.
fn seat(memory: &MemoryCoordinator, sender: Sender<Event>, address: &str) -> Result<(Arc<Mutex<Member>>, Seat)> {
    let member = Arc::new(Mutex::new(Member::new(SESSION_MS)));
    let process = Arc::new(Recorder { memory: memory.clone(), sender });
    let seat = Seat::new(Arc::new(memory.clone()), process, member.clone(), address.to_owned(), Faces::new())?;
    Ok((member, seat))
}

impl Node {
    /// Begins with an opening that has joined.
    fn begin(memory: &MemoryCoordinator, node: NodeNumber, opening: Opening) -> Node {
        let (sender, events) = channel();
        let (member, mut seat) = seat(memory, sender, "one.example:7420").unwrap();
        assert_eq!(seat.tell_member(MemberEvent::Numbered(node)), [Effect::Member(MemberEffect::OpenLog(node))]);
        assert_eq!(seat.joined(), None);
        let effects = seat.tell_member(MemberEvent::Opened(opening));
        assert_eq!(effects, [Effect::Member(MemberEffect::FindTable { hint: 0 })], "joining is done by the seat");
        assert_eq!(seat.joined(), Some(opening));
        Node { memory: memory.clone(), member, seat, events, view: None, nodes: BTreeMap::new() }
    }

    fn hear(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            if let Event::View { view, nodes, .. } = &event {
                (self.view, self.nodes) = (Some(view.clone()), nodes.clone());
            }
            effects.extend(self.seat.told(event));
        }
        effects
    }

    fn pass(&mut self, steps: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for _ in 0..steps {
            self.memory.pass(STEP_MS);
            effects.extend(self.hear());
            effects.extend(self.seat.tick());
            effects.extend(self.hear());
        }
        effects
    }

    /// Both have found the first table: it speaks of no opening.
    fn find_first_table(&mut self) {
        let table = Table::first(Counts { chunk_index: 2, objects: 1, containers: 1 }, NODE, 1);
        self.seat.tell_member(MemberEvent::Table(Arc::new(table.clone())));
        self.seat.tell_master(MasterEvent::Table(table));
    }

    fn hears(&self) -> bool {
        self.member.lock().hears(self.memory.now_ms())
    }

    fn set_cut_off(&self, is_cut_off: bool) {
        self.memory.set_cut_off(Present { node: NODE, opening: OPENING }, is_cut_off);
    }
}

fn puts(effects: &[Effect]) -> Vec<u64> {
    let number = |effect: &Effect| match effect {
        Effect::Master(MasterEffect::Put(table)) => Some(table.number),
        _ => None,
    };
    effects.iter().filter_map(number).collect()
}

fn put_is_done(number: u64) -> MasterEvent {
    MasterEvent::Put { number, outcome: Outcome::Done }
}

#[test]
fn m4_3_a_seat_puts_a_table_that_speaks_of_its_opening_and_announces_it() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let mut node = Node::begin(&memory, NODE, OPENING);
    node.hear();
    node.find_first_table();
    let effects = node.pass(9);
    assert_eq!(puts(&effects), [1], "after a whole session the one that nobody saw has ended");
    node.seat.tell_master(put_is_done(1));
    node.pass(1);
    assert_eq!(node.view.unwrap().table, Some(1));
    assert_eq!(node.nodes[&NODE].table, Some(0), "the table that the member knows");
}

/// Unsafe order 52.
#[test]
fn m4_3_a_master_does_nothing_while_its_member_hears_nothing() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let mut node = Node::begin(&memory, NODE, OPENING);
    node.hear();
    node.find_first_table();
    assert_eq!(puts(&node.pass(2)), [0; 0], "a session may have a node that is not seen");
    node.set_cut_off(true);
    assert_eq!(puts(&node.pass(7)), [0; 0]);
    assert!(memory.now_ms() > SESSION_MS, "a master that hears would put a table");
    assert!(!node.hears());
    node.set_cut_off(false);
    assert_eq!(puts(&node.pass(1)), [1], "the session has not ended");
    // What comes of it while it hears nothing is not lost.
    node.set_cut_off(true);
    node.pass(6);
    assert!(!node.hears());
    assert_eq!(node.seat.tell_master(put_is_done(1)), []);
    node.set_cut_off(false);
    node.pass(1);
    assert_eq!(node.view.unwrap().table, Some(1));
}

#[test]
fn m4_3_a_log_that_is_opened_again_ends_the_session_and_its_master() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let mut node = Node::begin(&memory, NODE, OPENING);
    let mut other = Node::begin(&memory, NodeNumber(2), Opening(1));
    node.hear();
    other.hear();
    assert_eq!(other.view.as_ref().unwrap().alive.len(), 2);
    let again = MemberEvent::Order(Order::OpenAgain { opening: OPENING });
    assert_eq!(node.seat.tell_member(again), [Effect::Member(MemberEffect::OpenLog(NODE))]);
    other.hear();
    assert_eq!(other.view.as_ref().unwrap().alive, [(NodeNumber(2), Opening(1))].into());
    assert!(other.view.as_ref().unwrap().is_master);
    assert_eq!(node.seat.tell_master(put_is_done(1)), [], "that master is gone");
    let late = Event::Heard { opening: OPENING, asked_ms: memory.now_ms() };
    assert_eq!(node.seat.told(late), []);
    // The coordinator ends a session.
    node.seat.tell_member(MemberEvent::Opened(Opening(6)));
    node.hear();
    other.hear();
    assert_eq!(other.view.as_ref().unwrap().alive[&NODE], Opening(6));
    memory.end_session(Present { node: NODE, opening: Opening(6) });
    assert_eq!(node.hear(), [Effect::Member(MemberEffect::OpenLog(NODE))]);
}

/// What members say comes again. If it were held, a node that hears nothing for long would hold ever more.
#[test]
fn a_deaf_master_holds_ends_of_what_it_began_and_tables_only() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let mut node = Node::begin(&memory, NODE, OPENING);
    node.hear();
    node.set_cut_off(true);
    node.pass(7);
    let report = Report { node: NODE, opening: OPENING, table: None, is_leaving: false, released: Vec::new(), restated: Vec::new() };
    for event in [MasterEvent::Report(report), put_is_done(1), MasterEvent::Tick] {
        assert_eq!(node.seat.tell_master(event), []);
    }
    assert_eq!(node.seat.joined.unwrap().held, [put_is_done(1)]);
}

#[test]
fn m4_3_a_session_that_is_given_away_goes_on_until_it_is_dropped() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let mut node = Node::begin(&memory, NODE, OPENING);
    let mut other = Node::begin(&memory, NodeNumber(2), Opening(1));
    node.hear();
    let session = node.seat.take_session();
    node.pass(9);
    other.hear();
    assert_eq!((node.seat.joined(), other.view.as_ref().unwrap().alive.len()), (None, 2));
    drop(session);
    other.hear();
    assert_eq!(other.view.unwrap().alive.len(), 1);
}

/// Else it would open its log again and again.
#[test]
fn m4_3_a_node_ends_when_no_session_can_begin() {
    let memory = MemoryCoordinator::new(SESSION_MS);
    let mut node = Node::begin(&memory, NODE, OPENING);
    node.hear();
    assert!(node.hears());
    let error = CoordinatorError::SessionLength { session_ms: SESSION_MS, found_ms: 6_000 };
    let effects = node.seat.told(Event::Over { opening: OPENING, error: error.clone() });
    assert_eq!(effects, [Effect::End(error)]);
    assert!(node.seat.joined().is_none() && !node.hears(), "its right to answer has ended");
}

#[test]
fn m4_3_a_seat_without_a_usable_address_is_refused() {
    let (sender, _events) = channel();
    let refused = seat(&MemoryCoordinator::new(SESSION_MS), sender, "one two:1");
    assert!(matches!(refused.err(), Some(CoordinatorError::Setting { .. })));
}
