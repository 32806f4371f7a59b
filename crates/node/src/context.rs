//! What the event loop and its workers have in common.

use crate::identity::Home;
use crate::process::{Came, Event};
use crate::shared::Shared;
use crate::{NodeSettings, Result};
use onefold_cluster::{NodeNumber, Table, Tables};
use onefold_engine::Engine;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The first pause after a failure, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// How many tables back a new owner looks for nodes that have left: their logs may not be closed yet.
const TABLES_BACK: u64 = 16;

pub(crate) struct Context {
    pub(crate) settings: NodeSettings,
    pub(crate) shared: Arc<Shared>,
    pub(crate) tables: Tables,
    pub(crate) home: Home,
    pub(crate) listener: TcpListener,
    /// Where others reach this node.
    pub(crate) address: String,
    /// The engine of the present opening.
    pub(crate) engine: Mutex<Option<Arc<Engine>>>,
    pub(crate) has_left: Mutex<bool>,
    pub(crate) left: Condvar,
    /// Which nodes tables named, by the number of the table.
    named: Mutex<BTreeMap<u64, Vec<NodeNumber>>>,
}

impl Context {
    pub(crate) fn new(settings: NodeSettings, shared: Arc<Shared>, home: Home, listener: TcpListener, address: String) -> Context {
        let tables = Tables::new(settings.bucket.clone(), settings.descriptor.store);
        Context {
            settings,
            shared,
            tables,
            home,
            listener,
            address,
            engine: Mutex::new(None),
            has_left: Mutex::new(false),
            left: Condvar::new(),
            named: Mutex::default(),
        }
    }

    /// Returns whether an opening is over, or, without one, whether the node is.
    pub(crate) fn is_over(&self, life: Option<u64>) -> bool {
        life.map_or_else(|| self.shared.has_ended(), |life| self.shared.life() != life)
    }

    /// Does something as often as it takes. `None`: the opening, or the node, is over.
    pub(crate) fn persist<T>(&self, life: Option<u64>, what: &str, mut attempt: impl FnMut() -> Result<T>) -> Option<T> {
        let mut pause = PAUSES.0;
        let mut has_failed = false;
        while !self.is_over(life) {
            match attempt() {
                Ok(done) => {
                    if has_failed {
                        self.shared.set_trouble(None);
                    }
                    return Some(done);
                }
                Err(error) => {
                    has_failed = true;
                    self.shared.set_trouble(Some(format!("{what}: {error}")));
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
        None
    }

    /// Does something on a thread of its own. What comes of it is told to the event loop.
    pub(crate) fn spawn(self: &Arc<Self>, life: u64, work: impl FnOnce(&Arc<Context>) -> Option<Came> + Send + 'static) {
        let work = Arc::new(Mutex::new(Some(work)));
        loop {
            let (context, work) = (self.clone(), work.clone());
            let run = move || {
                let Some(work) = work.lock().take() else { return };
                // A defect must not leave the event loop waiting for ever.
                let came = catch_unwind(AssertUnwindSafe(|| work(&context)));
                let came = came.unwrap_or_else(|_| Some(Came::Broken("a thread of the node has panicked".to_owned())));
                if let Some(came) = came {
                    context.shared.send(Event::Came { life, came });
                }
            };
            match std::thread::Builder::new().name("node-work".to_owned()).spawn(run) {
                Ok(_) => return,
                // Meanwhile the node hears nothing, and stops in time.
                Err(error) => {
                    tracing::error!(%error, "the node cannot start a thread");
                    std::thread::sleep(PAUSES.1);
                }
            }
        }
    }

    /// Returns the nodes that a table before `table` named, since the one with number `since`, and it does not. The
    /// node `own` is not among them.
    pub(crate) fn gone(&self, table: &Table, since: u64, own: NodeNumber) -> Result<BTreeSet<NodeNumber>> {
        let mut gone = BTreeSet::new();
        for number in since..table.number {
            let known = self.named.lock().get(&number).cloned();
            let named = match known {
                Some(named) => named,
                // No table is ever deleted.
                None => self.tables.get(number)?.map(|table| self.note_named(&table)).unwrap_or_default(),
            };
            gone.extend(named);
        }
        gone.retain(|node| *node != own && table.opening(*node).is_none());
        Ok(gone)
    }

    /// Returns those that may have left something for a new owner.
    pub(crate) fn gone_lately(&self, table: &Table, own: NodeNumber) -> Result<BTreeSet<NodeNumber>> {
        self.gone(table, table.number.saturating_sub(TABLES_BACK), own)
    }

    /// Notes which nodes a table names.
    pub(crate) fn note_named(&self, table: &Table) -> Vec<NodeNumber> {
        let nodes: Vec<NodeNumber> = table.nodes.iter().map(|present| present.node).collect();
        let mut named = self.named.lock();
        named.insert(table.number, nodes.clone());
        let oldest = table.number.saturating_sub(2 * TABLES_BACK);
        named.retain(|number, _| *number >= oldest);
        nodes
    }
}
