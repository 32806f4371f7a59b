//! A node's process, as far as it has a coordinator: it writes down what it is told.

use onefold_cluster::{NodeNumber, Opening, Present, View};
use onefold_coordinator::{Coordinator, CoordinatorError, Event, Faces, Joining, Listed, Process, Session};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A coordinator, and how a test waits for it.
pub trait World {
    fn coordinator(&self) -> Box<dyn Coordinator>;

    /// The clock of all processes.
    fn clock(&self) -> Clock;

    /// Lets time pass until something is so. Panics if it takes too long.
    fn wait(&self, what: &str, is_so: &mut dyn FnMut() -> bool);

    /// Removes an ephemeral node. Its session goes on.
    fn remove_node(&self, node: NodeNumber);

    fn join_node(&self, node: u32, opening: u64) -> Node<'_>
    where
        Self: Sized,
    {
        Node::join(self, node, opening)
    }
}

pub struct Node<'a> {
    world: &'a dyn World,
    present: Present,
    recorder: Arc<Recorder>,
    session: Box<dyn Session>,
}

struct Recorder {
    clock: Clock,
    events: Mutex<Vec<Event>>,
}

impl Process for Recorder {
    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    fn tell(&self, event: Event) {
        self.events.lock().push(event);
    }
}

impl<'a> Node<'a> {
    pub fn join(world: &'a dyn World, node: u32, opening: u64) -> Node<'a> {
        Node::join_with(world, &*world.coordinator(), node, opening)
    }

    pub fn join_with(world: &'a dyn World, coordinator: &dyn Coordinator, node: u32, opening: u64) -> Node<'a> {
        let present = Present { node: NodeNumber(node), opening: Opening(opening) };
        let recorder = Arc::new(Recorder { clock: world.clock(), events: Mutex::default() });
        let joining = Joining { present, address: format!("node-{node}:7420"), faces: Faces::new(), table: None };
        let session = coordinator.join(joining, recorder.clone()).unwrap();
        Node { world, present, recorder, session }
    }

    pub fn present(&self) -> Present {
        self.present
    }

    pub fn announce(&self, number: u64) {
        self.session.announce(number);
    }

    pub fn knows(&self, table: u64) {
        self.session.knows(table);
    }

    /// Leaves. Returns what it was told.
    pub fn leave(self) -> Vec<Event> {
        self.session.leave();
        self.recorder.events.lock().clone()
    }

    pub fn events(&self) -> Vec<Event> {
        self.recorder.events.lock().clone()
    }

    /// Returns the newest view, and the nodes in it.
    pub fn view(&self) -> Option<(View, BTreeMap<NodeNumber, Listed>)> {
        let events = self.recorder.events.lock();
        events.iter().rev().find_map(|event| match event {
            Event::View { view, nodes, .. } => Some((view.clone(), nodes.clone())),
            _ => None,
        })
    }

    /// Returns how often it has heard.
    pub fn heard(&self) -> usize {
        self.recorder.events.lock().iter().filter(|event| matches!(event, Event::Heard { .. })).count()
    }

    /// Returns what it heard last: from when on its session has its whole time.
    pub fn heard_ms(&self) -> Option<u64> {
        let events = self.recorder.events.lock();
        events.iter().rev().find_map(|event| match event {
            Event::Heard { asked_ms, .. } => Some(*asked_ms),
            _ => None,
        })
    }

    pub fn over(&self) -> Option<CoordinatorError> {
        let events = self.recorder.events.lock();
        events.iter().find_map(|event| match event {
            Event::Over { error, .. } => Some(error.clone()),
            _ => None,
        })
    }

    pub fn wait_for_view(&self, what: &str, is_it: impl Fn(&View) -> bool) {
        let what = format!("{:?} sees {what}", self.present);
        self.world.wait(&what, &mut || self.view().is_some_and(|(view, _)| is_it(&view)));
    }

    pub fn wait_for_nodes(&self, what: &str, is_it: impl Fn(&BTreeMap<NodeNumber, Listed>) -> bool) {
        let what = format!("{:?} sees {what}", self.present);
        self.world.wait(&what, &mut || self.view().is_some_and(|(_, nodes)| is_it(&nodes)));
    }

    pub fn wait_for_event(&self, what: &str, is_it: impl Fn(&Event) -> bool) {
        let what = format!("{:?} is told of {what}", self.present);
        self.world.wait(&what, &mut || self.recorder.events.lock().iter().any(&is_it));
    }

    pub fn wait_until_heard_again(&self) {
        let before = self.heard();
        self.world.wait("an answer to a heartbeat", &mut || self.heard() > before + 1);
    }

    pub fn wait_until_over(&self, error: &CoordinatorError) {
        self.world.wait("the end of the session", &mut || self.over().is_some());
        assert_eq!(self.over().as_ref(), Some(error));
        assert!(matches!(self.events().last(), Some(Event::Over { .. })), "nothing is told afterwards");
    }
}
