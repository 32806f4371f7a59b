//! What members and their master say to each other. Each message may be lost, repeated, or come late.

use crate::{NodeNumber, Opening};
use onefold_oplog::{Partition, Position};

/// What a member tells the master, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The node.
    pub node: NodeNumber,
    /// The opening that says this.
    pub opening: Opening,
    /// The newest table that it knows. The master looks for newer ones than its own.
    pub table: Option<u64>,
    /// It wants to leave.
    pub is_leaving: bool,
    /// Partitions that it answers for no longer, since the master asked.
    pub released: Vec<Released>,
    /// Partitions that it has restated.
    pub restated: Vec<Restated>,
}

/// A partition that its owner has released. Its log has nothing of it behind `upto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The partition.
    pub partition: Partition,
    /// The ownership that ended.
    pub epoch: u64,
    /// Where the log ended for it.
    pub upto: Position,
}

/// A partition of which the owner's log says everything from a position on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restated {
    /// The partition.
    pub partition: Partition,
    /// The ownership.
    pub epoch: u64,
    /// Where restating began.
    pub since: Position,
}

/// What the master asks of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Let your log reach this position, and tell where it ends: a table after this one will give you partitions.
    Prepare {
        /// The newest table.
        table: u64,
        /// No former owner's log says anything behind it.
        at_least: Position,
    },
    /// Open the log again: others have closed it. So it does not wait for a table that will never speak of it.
    OpenAgain {
        /// The opening that is over.
        opening: Opening,
    },
    /// Release a partition.
    Release {
        /// The partition.
        partition: Partition,
        /// The ownership that shall end.
        epoch: u64,
    },
}

/// The answer to [`Order::Prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The node.
    pub node: NodeNumber,
    /// The opening that says this.
    pub opening: Opening,
    /// The table that the order named.
    pub table: u64,
    /// The end of the log, at the asked position or behind it.
    pub end: Position,
}
