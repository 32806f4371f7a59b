//! What takes long, each on a thread of its own: it ends with an event, or with the opening.

use crate::context::Context;
use crate::identity::OwnIdentity;
use crate::opening::OpenLog;
use crate::process::Came;
use crate::record::Record;
use crate::{NodeError, Result};
use onefold_cluster::{NodeNumber, Outcome, PutTable, Released, Restated, Table};
use onefold_coordinator::Session;
use onefold_engine::{Adoption, Engine, OtherNodes};
use onefold_interconnect::{CallError, Nodes};
use onefold_oplog::{Partition, Position};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long one node is waited for before the next one is asked.
const COLLECT: Duration = Duration::from_secs(1);
/// The pause before those are asked again that have not answered.
const COLLECT_PAUSE: Duration = Duration::from_millis(20);

/// Finds the number that the node had, if the bucket agrees, or takes a new one above `above`.
pub(crate) fn take_number(context: &Context, above: Option<NodeNumber>) -> Option<Came> {
    let own = context.persist(None, "the node cannot take a number", || {
        if let Some(own) = context.home.load()?.filter(|own| above.is_none_or(|above| own.node > above))
            && is_taken(context, &own)?
        {
            return Ok(own);
        }
        let number = next_number(context, above)?;
        let own = OwnIdentity::make(number, &context.settings.descriptor.store)?;
        // Durable first: a number that was taken is never lost with its key.
        context.home.keep(&own)?;
        match is_taken(context, &own)? {
            true => Ok(own),
            false => Err(NodeError::Taken { number: number.0 }),
        }
    })?;
    Some(Came::Numbered(own))
}

/// Takes the number of an identity. Returns whether it is this node's.
fn is_taken(context: &Context, own: &OwnIdentity) -> Result<bool> {
    let record = Record { name: context.settings.name.clone(), fingerprint: own.parse()?.fingerprint() };
    context.shared.records.take(own.node, &record)
}

/// Returns a number that nobody has. The first node of a store has number 0: its log is there already.
fn next_number(context: &Context, above: Option<NodeNumber>) -> Result<NodeNumber> {
    let known = context.shared.newest().map_or(0, |table| table.number);
    let table = context.tables.newest(known)?;
    let named = table.iter().flat_map(|table| &table.nodes).map(|present| present.node);
    let mut number = named.chain(above).max().map_or(0, |last| last.0.saturating_add(1));
    while context.shared.records.get(NodeNumber(number))?.is_some() {
        number = number.saturating_add(1);
    }
    Ok(NodeNumber(number))
}

/// Finds the newest table.
pub(crate) fn find_table(context: &Context, hint: u64) -> Option<Came> {
    let table = context.persist(None, "the table cannot be found", || {
        let known = context.shared.newest().map_or(0, |table| table.number);
        context.tables.newest(hint.max(known))?.ok_or(NodeError::NoTable)
    })?;
    Some(Came::Found(table))
}

/// Closes the log of a lost node.
pub(crate) fn close_log(context: &Context, engine: &Engine, node: NodeNumber) -> Came {
    let closed = Engine::close_log_of(engine.ground(), node.0);
    let end = closed.map_err(|error| context.shared.set_trouble(Some(format!("the log of node {node} cannot be closed: {error}")))).ok();
    Came::LogClosed { node, end }
}

/// Puts a table.
pub(crate) fn put_table(context: &Context, table: &Table) -> Came {
    let outcome = match context.tables.put(table) {
        Ok(PutTable::Done) => Outcome::Done,
        Ok(PutTable::Taken(winner)) => Outcome::Taken(winner),
        Err(error) => {
            context.shared.set_trouble(Some(format!("table {} cannot be put: {error}", table.number)));
            Outcome::Unknown
        }
    };
    Came::Put { number: table.number, outcome }
}

/// Takes partitions over.
pub(crate) fn adopt(engine: &Engine, adoptions: &[Adoption]) -> Came {
    match engine.adopt(adoptions) {
        Ok(()) => Came::Adopted(adoptions.iter().map(|adoption| (adoption.partition, adoption.epoch)).collect()),
        Err(error) => Came::Broken(format!("partitions cannot be taken over: {error}")),
    }
}

/// Gives a partition away.
pub(crate) fn release(engine: &Engine, partition: Partition, epoch: u64) -> Came {
    match engine.release_partition(partition) {
        Ok(upto) => Came::Released(Released { partition, epoch, upto }),
        Err(error) => Came::Broken(format!("{partition:?} cannot be released: {error}")),
    }
}

/// Lets the log reach a position.
pub(crate) fn jump(engine: &Engine, table: u64, at_least: Position) -> Came {
    match engine.jump_and_cut(at_least) {
        Ok(end) => Came::Jumped { table, at_least, end },
        Err(error) => Came::Broken(format!("the log cannot reach position {}: {error}", at_least.0)),
    }
}

/// Begins to restate a partition: from the position on that is told, the log will say everything of it.
pub(crate) fn begin_restating(engine: &Engine, partition: Partition, epoch: u64) -> Came {
    match engine.begin_restating(partition) {
        Ok(since) => Came::Restating(Restated { partition, epoch, since }),
        Err(error) => {
            tracing::debug!(?partition, %error, "a partition cannot be restated yet");
            Came::NotRestating
        }
    }
}

/// Restates a partition.
pub(crate) fn restate(context: &Context, life: u64, engine: &Engine, restated: Restated) -> Option<Came> {
    let Restated { partition, since, .. } = restated;
    match engine.restate(partition, since, &|| !context.is_over(Some(life))) {
        Ok(true) => Some(Came::Restated(restated)),
        Ok(false) => None,
        Err(error) => Some(Came::Broken(format!("{partition:?} cannot be restated: {error}"))),
    }
}

/// Asks all nodes of the newest table what they have claimed of partitions, and reads what those have left that are no
/// longer in it. What is not collected when the opening ends is collected by the next owner.
pub(crate) fn collect(
    context: &Context,
    life: u64,
    engine: &Engine,
    nodes: &Nodes,
    own: NodeNumber,
    mut wanted: Vec<(Partition, u64)>,
) -> Option<Came> {
    let mut told: BTreeSet<(NodeNumber, Partition)> = BTreeSet::new();
    let mut read: BTreeSet<NodeNumber> = BTreeSet::new();
    while !context.is_over(Some(life)) {
        let table = context.shared.newest()?;
        // What has another ownership by now, nobody collects for this one.
        wanted.retain(|(partition, epoch)| table.get(*partition).is_some_and(|assigned| assigned.epoch == *epoch));
        let mut is_complete = true;
        for node in table.nodes.iter().map(|present| present.node).filter(|node| *node != own) {
            let open: Vec<_> = wanted.iter().copied().filter(|(partition, _)| !told.contains(&(node, *partition))).collect();
            let mut tell = |partition| {
                told.insert((node, partition));
            };
            if let Err(error) = ask(engine, nodes, node, &open, &mut tell) {
                tracing::debug!(%node, %error, "claims are not collected yet");
                is_complete = false;
            }
        }
        if is_complete {
            for node in context.persist(Some(life), "earlier tables cannot be read", || context.gone_lately(&table, own))? {
                if read.insert(node) {
                    take_rest(context, life, engine, node)?;
                }
            }
            // An owner before may have died before it had taken what those have left that are gone for longer.
            context.persist(Some(life), "what nodes have left cannot be read", || {
                let mut gone = nodes.everybody()?.gone.into_iter().filter(|node| !read.contains(&NodeNumber(*node)));
                gone.try_for_each(|node| Ok(engine.take_rest_of(node)?))
            })?;
            // Somebody may have come or gone meanwhile.
            if context.shared.newest()?.number == table.number {
                return Some(Came::Collected(wanted));
            }
        } else {
            std::thread::sleep(COLLECT_PAUSE);
        }
    }
    None
}

/// Asks a node what it has claimed of partitions.
fn ask(
    engine: &Engine,
    nodes: &Nodes,
    node: NodeNumber,
    wanted: &[(Partition, u64)],
    told: &mut dyn FnMut(Partition),
) -> Result<(), CallError> {
    for (partition, epoch) in wanted {
        let names = nodes.collect(node.0, partition.number, *epoch, COLLECT)?;
        engine.collected(node.0, partition.number.into(), &names).map_err(|error| CallError::Lost(error.to_string()))?;
        told(*partition);
    }
    Ok(())
}

/// Takes what a node has left that is in no table any more. Its log is closed first: it may be leaving, and whatever it
/// has not delivered is in it.
pub(crate) fn take_rest(context: &Context, life: u64, engine: &Engine, node: NodeNumber) -> Option<()> {
    // One that leaves ends in its own way, and delivers what it can.
    let until = Instant::now() + Duration::from_millis(context.settings.coordinator.session_ms());
    while context.shared.state.lock().alive.contains_key(&node) && Instant::now() < until && !context.is_over(Some(life)) {
        std::thread::sleep(COLLECT_PAUSE);
    }
    let what = format!("what node {node} has left cannot be read");
    context.persist(Some(life), &what, || {
        if context.shared.newest().is_none_or(|table| table.opening(node).is_none()) {
            Engine::close_log_of(engine.ground(), node.0)?;
            engine.take_rest_of(node.0)?;
        }
        Ok(())
    })
}

/// Takes what all those have left that a new table no longer names.
pub(crate) fn take_rests(context: &Context, life: u64, engine: &Engine, table: &Table, since: u64, own: NodeNumber) -> Option<Came> {
    for node in context.persist(Some(life), "earlier tables cannot be read", || context.gone(table, since, own))? {
        take_rest(context, life, engine, node)?;
    }
    None
}

/// Ends a node that has left: what it has logged for others is delivered, then its session ends, and its number is
/// forgotten.
pub(crate) fn leave(context: &Context, life: u64, log: Option<OpenLog>, session: Option<Box<dyn Session>>) -> Came {
    if let Some(log) = log {
        // What cannot be delivered in time, the owners read in the log. Without a view, as when the node has just
        // opened its log again, nobody can be reached.
        let is_alone = context.shared.state.lock().alive.is_empty();
        let until = Instant::now() + Duration::from_millis(context.settings.coordinator.session_ms());
        while let Err(error) = log.engine.flush().and_then(|()| if is_alone { Ok(()) } else { log.engine.deliver() }) {
            if Instant::now() >= until || context.is_over(Some(life)) || log.engine.has_lost_its_log().is_some() {
                tracing::warn!(%error, "not everything was delivered before the node left");
                break;
            }
            std::thread::sleep(COLLECT_PAUSE);
        }
        if let Err(error) = log.close() {
            tracing::debug!(%error, "the store was not closed when the node left");
        }
    }
    if let Some(session) = session {
        session.leave();
    }
    if let Err(error) = context.home.forget() {
        tracing::warn!(%error, "the number of a node that has left is still there");
    }
    Came::Left
}
