//! Claims that nodes have from an earlier owner, and what lost nodes have left (unsafe orders 13 to 16, 22).

use crate::cluster::other_logs::OtherLogs;
use crate::cluster::outbox::Outbox;
use crate::cluster::owner::cursor_change;
use crate::cluster::rights::Right;
use crate::cluster::{Delivery, part_of_node};
use crate::commit::records::Decoded;
use crate::{Engine, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::{Log, LogError, ObjectLog, Position};
use std::ops::ControlFlow;

/// Makes the log of a node, if it has taken its number and not come any further.
fn make_log_of(engine: &Engine, node: u32) -> Result<()> {
    let Some(bucket) = engine.ground.bucket().filter(|_| node > 0) else { return Ok(()) };
    match ObjectLog::create(&*part_of_node(bucket, node), engine.descriptor.store) {
        Ok(()) | Err(LogError::Exists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The cursor of a node that is gone: its log is closed, and everything in it was taken.
const EVERYTHING: Position = Position(u64::MAX);

impl Engine {
    /// Returns the chunks of another node's partition that this node has claimed, or stored and not delivered. A new
    /// owner asks for them. What this node is asking the owner before at the moment is among them, and is asked again.
    pub fn claims_of(&self, partition: u32) -> Vec<Fingerprint> {
        if let Some(cluster) = &self.cluster {
            cluster.moved();
        }
        self.claims.held(&|name| self.partition_of(name) == partition)
    }

    /// Takes in what a node has claimed from earlier owners of a partition. What is stored or claimed here stays so.
    /// Errors: the partition is not owned here.
    pub fn collected(&self, node: u32, partition: u32, names: &[Fingerprint]) -> Result<()> {
        if names.iter().any(|name| self.partition_of(name) != partition) {
            let why = format!("some are of other partitions than {partition}");
            return Err(EngineError::Invalid { what: "claims that were collected".into(), why });
        }
        self.check_owned(names.iter())?;
        let claimed = self.claims.take_in(names)?;
        self.guests.take_in(node, &claimed);
        Ok(())
    }

    /// Gives claims for a partition from now on: what others have of it is known.
    pub fn serve_chunks(&self, partition: u32) {
        if let Some(cluster) = self.cluster.as_ref().filter(|cluster| cluster.has(partition)) {
            cluster.set(partition, Right::All);
        }
    }

    /// Takes what a lost node has logged for this node's partitions of the chunk index and not delivered, and ends its
    /// claims, if its log is closed. It is in no table, or not yet. Durable on return. May be repeated: when the log is
    /// closed, a cursor at the end says that it is done.
    pub fn take_rest_of(&self, node: u32) -> Result<()> {
        let Some(cluster) = self.cluster.as_ref().filter(|cluster| cluster.node != node) else { return Ok(()) };
        let mut open = Vec::new();
        for partition in (0..self.descriptor.index_partitions).filter(|partition| cluster.has(*partition)) {
            if self.cursor(partition, node)? != EVERYTHING {
                open.push(partition);
            }
        }
        if open.is_empty() {
            self.end_claims_of(node);
            return Ok(());
        }
        make_log_of(self, node)?;
        let log = OtherLogs::new(self).get(node)?;
        let rest = Outbox::default();
        let digest_bytes = self.digest_bytes();
        let mut failed = None;
        log.replay(log.start(), &mut |start, end, records| match Decoded::read(records, digest_bytes) {
            Ok(decoded) => {
                let effects = decoded.effects(start, records);
                rest.add(end, &effects, |name| {
                    let partition = self.partition_of(name);
                    open.contains(&partition).then_some(partition)
                });
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        rest.deliver(|partition, delivery: &Delivery| -> Result<Position> { self.take_delivery(node, partition, delivery) }, |_| {})?;
        if log.is_closed() {
            let committing = self.commits.alone();
            self.writable()?;
            let own = self.objects.own_partition();
            let is_here = |partition: &&u32| cluster.has(**partition);
            let ends: Vec<_> = open.iter().filter(is_here).map(|partition| cursor_change(own, *partition, node, EVERYTHING)).collect();
            self.log_changes(&ends)?;
            drop(committing);
            // One whose log goes on may be about to join.
            self.end_claims_of(node);
        }
        Ok(())
    }
}
