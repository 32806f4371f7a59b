//! An opening of the node's log: its engine, what it asks of other nodes, and what answers them.

use crate::context::Context;
use crate::identity::OwnIdentity;
use crate::shared::OfOpening;
use crate::{NodeError, Result};
use onefold_cluster::{Counts, NodeNumber, Opening, PutTable, Table};
use onefold_engine::{Engine, EngineError, Mode, Settings, Share};
use onefold_ground::Ground;
use onefold_interconnect::{EngineOwner, Interconnect, Nodes, Server, Setup};
use onefold_oplog::LogError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it looks whether the former opening has ended.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(5);

/// The parts of an opening. Dropping it ends it.
pub(crate) struct OpenLog {
    // Dropped in this order.
    server: Server,
    interconnect: Interconnect,
    pub(crate) engine: Arc<Engine>,
}

/// What came of opening a log.
pub(crate) enum Opened {
    /// It is open. The newest table, as of before.
    Log(OpenLog, Option<Arc<Table>>),
    /// It is closed for ever.
    Closed,
}

impl OpenLog {
    /// Returns the number of the opening.
    pub(crate) fn opening(&self) -> Opening {
        Opening(self.engine.opening())
    }

    /// Returns the others.
    pub(crate) fn nodes(&self) -> Arc<Nodes> {
        self.interconnect.others()
    }

    /// Ends it orderly. Nobody is asked any more: the engine would wait for those that do not answer.
    pub(crate) fn close(self) -> Result<()> {
        let OpenLog { server, interconnect, engine } = self;
        drop((server, interconnect));
        Ok(engine.close()?)
    }

    /// Ends it without writing anything.
    pub(crate) fn end(self) {
        let OpenLog { server, interconnect, engine } = self;
        drop((server, interconnect));
        drop(engine);
    }
}

/// Opens the log of a node with a fence, as often as it takes, and begins to answer other nodes. `None`: it was told to
/// end.
pub(crate) fn open(context: &Context, life: u64, own: &OwnIdentity) -> Option<Opened> {
    // How long node 0 has to put the first table.
    let until = Instant::now() + Duration::from_millis(context.settings.coordinator.session_ms());
    context.persist(Some(life), "the log cannot be opened", || match try_open(context, life, own, until) {
        Err(NodeError::Engine(EngineError::Log(LogError::Closed { .. }))) => Ok(Opened::Closed),
        opened => opened,
    })
}

fn try_open(context: &Context, life: u64, own: &OwnIdentity, until: Instant) -> Result<Opened> {
    let (settings, shared) = (&context.settings, &context.shared);
    // Before the engine begins, it is known who may have claims of it: all of them are told.
    let known = shared.newest().map_or(0, |table| table.number);
    let ground = (settings.grounds)(own.node)?;
    let table = match context.tables.newest(known)?.map(Arc::new) {
        // Its log has to be open first.
        None if own.node == NodeNumber(0) => None,
        None if Instant::now() < until => return Err(NodeError::NoTable),
        None => Some(first_table_for_another(context, &ground)?),
        table => table,
    };
    if let Some(table) = &table {
        shared.learn(table);
    }
    let of_opening = Arc::new(OfOpening { shared: shared.clone(), tables: context.tables.clone(), life });
    let setup = Setup {
        store: settings.descriptor.store,
        digest_bytes: settings.descriptor.fingerprint.digest_bytes(),
        node: own.node.0,
        identity: own.parse()?,
        directory: of_opening.clone(),
        options: settings.interconnect.clone(),
    };
    let interconnect = Interconnect::new(setup, settings.descriptor.index_partitions)?;
    let share = Share::of_nothing(own.node.0, &settings.descriptor, interconnect.others());
    let of_engine = Settings { share: Some(share), ..settings.engine.clone() };
    let engine = loop {
        match Engine::open(ground.clone(), of_engine.clone(), Mode::ReadWrite, "node") {
            // Something still uses the engine of the former opening, or another process has the store.
            Err(EngineError::Lock(error)) if shared.life() == life => {
                shared.set_trouble(Some(format!("the store's local state is in use: {error}")));
                std::thread::sleep(LOOKED_AT_EVERY);
            }
            opened => break opened?,
        }
    };
    interconnect.opened(engine.opening());
    let table = match table {
        None => Some(first_table(context, engine.opening())?),
        table => table,
    };
    let owner = Arc::new(EngineOwner::new(engine.clone(), of_opening, settings.reclaim.clone()));
    let listening = |source| NodeError::Io { action: "cannot listen", source };
    let server = interconnect.serve(context.listener.try_clone().map_err(listening)?, owner)?;
    Ok(Opened::Log(OpenLog { server, interconnect, engine }, table))
}

/// Does for node 0 what it has not done: marks its log, and puts the first table. It may have been lost, or be slow
/// (unsafe order 58).
fn first_table_for_another(context: &Context, ground: &Arc<dyn Ground>) -> Result<Arc<Table>> {
    match Engine::share_log_of(ground, 0) {
        Ok(opening) => first_table(context, opening),
        // Meanwhile there is a table, and node 0 is gone.
        Err(EngineError::Log(LogError::Closed { .. })) => Err(NodeError::NoTable),
        Err(error) => Err(error.into()),
    }
}

/// Puts the first table of the store, or finds it: everything is node 0's. The log of node 0 is marked as one of
/// several by now: ordinary openings are refused. `opening` is the epoch of the fence before that mark. So the epoch of
/// the partitions is greater than all before.
fn first_table(context: &Context, opening: u64) -> Result<Arc<Table>> {
    let descriptor = &context.settings.descriptor;
    let counts = Counts {
        chunk_index: u16::try_from(descriptor.index_partitions).map_err(|_| NodeError::Setting {
            what: "the store",
            why: format!("it has {} partitions of the chunk index", descriptor.index_partitions),
        })?,
        objects: descriptor.object_partitions,
        containers: descriptor.container_partitions,
    };
    let first = Table::first(counts, NodeNumber(0), opening + 1);
    let table = Arc::new(match context.tables.put(&first)? {
        PutTable::Done => first,
        PutTable::Taken(winner) => winner,
    });
    context.shared.learn(&table);
    Ok(table)
}
