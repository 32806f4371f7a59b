//! The table: who owns which partition, since when, and whose logs say what is true of it.
//!
//! # Invariants ([`Table::check`])
//! * Nodes ascend. Partitions are complete: of each class, the numbers from 0 on.
//! * The owner of a partition is the node of the last link of its lineage, and takes part. So does its follower, which
//!   is another node.
//! * Positions of a lineage ascend: each link ends before the next one begins, and only the last one has no end.
//! * Epochs are at least 1. From table to table they never fall, and grow with each new ownership ([`Table::follows`]).

mod format;

use onefold_oplog::{ALIGNMENT_BYTES, Partition, PartitionClass, Position};
use std::collections::BTreeSet;
use std::fmt;

pub(crate) use format::LIMIT_BYTES;

/// The number of a node. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNumber(pub u32);

/// An opening of a node's log: the epoch of the fence with which it began, from 1 on. A later opening has a greater
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opening(pub u64);

impl fmt::Display for NodeNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// How many partitions a store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Of the chunk index.
    pub chunk_index: u16,
    /// Of objects.
    pub objects: u16,
    /// Of containers.
    pub containers: u16,
}

/// The classes in the order of the table.
pub(crate) const CLASSES: [PartitionClass; 3] = [PartitionClass::ChunkIndex, PartitionClass::ObjectIndex, PartitionClass::Container];

/// A node that takes part, and the opening of its log that the table speaks of. The table gives nothing to any other
/// opening (unsafe order 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// The node.
    pub node: NodeNumber,
    /// Its opening.
    pub opening: Opening,
}

/// A part of a lineage: what the log of a node says of the partition from one position to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// The node.
    pub node: NodeNumber,
    /// What its log says before does not count.
    pub since: Position,
    /// What its log says behind does not count. `None`: the node is the owner.
    pub upto: Option<Position>,
}

/// A partition in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The partition.
    pub partition: Partition,
    /// The number of this ownership.
    pub epoch: u64,
    /// The node that reads along.
    pub follower: Option<NodeNumber>,
    /// Whose logs say what is true of it, one after the other. Never empty.
    pub lineage: Vec<Link>,
}

/// What a node's log holds of a partition: the arguments of an `onefold_oplog::Holding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The partition.
    pub partition: Partition,
    /// What the log says of it before does not count.
    pub since: Position,
    /// Where its first part in the lineage ends. `None`: the node is the owner, and has no other part.
    pub upto: Option<Position>,
    /// Whether no other log comes before this one.
    pub is_first: bool,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its number in the chain.
    pub number: u64,
    /// The nodes that are `in`, ascending.
    pub nodes: Vec<Present>,
    /// All partitions, by class and number.
    pub partitions: Vec<Assigned>,
}

impl Assigned {
    /// Returns the owner.
    pub fn owner(&self) -> NodeNumber {
        self.lineage.last().expect("a lineage is never empty").node
    }
}

impl Table {
    /// Returns the first table of a store: one node owns everything, from the beginning of its log on. `epoch` is
    /// greater than the epochs that its partitions had.
    ///
    /// It speaks of no opening that there is. So the node serves nothing before a master has seen it alive and put
    /// another table (unsafe order 48).
    pub fn first(counts: Counts, node: NodeNumber, epoch: u64) -> Table {
        let lineage = vec![Link { node, since: Position(0), upto: None }];
        let count = |class| match class {
            PartitionClass::ChunkIndex => counts.chunk_index,
            PartitionClass::ObjectIndex => counts.objects,
            PartitionClass::Container => counts.containers,
        };
        let numbers = CLASSES.into_iter().flat_map(|class| (0..count(class)).map(move |number| Partition { class, number }));
        let partitions = numbers.map(|partition| Assigned { partition, epoch, follower: None, lineage: lineage.clone() }).collect();
        Table { number: 0, nodes: vec![Present { node, opening: Opening(0) }], partitions }
    }

    /// Returns the opening of a node that the table speaks of.
    pub fn opening(&self, node: NodeNumber) -> Option<Opening> {
        self.nodes.binary_search_by_key(&node, |present| present.node).ok().map(|at| self.nodes[at].opening)
    }

    /// Returns a partition.
    pub fn get(&self, partition: Partition) -> Option<&Assigned> {
        self.partitions.binary_search_by_key(&partition, |assigned| assigned.partition).ok().map(|at| &self.partitions[at])
    }

    /// Returns the partitions that an opening owns.
    pub fn owned_by(&self, present: Present) -> impl Iterator<Item = &Assigned> {
        let speaks_of_it = self.opening(present.node) == Some(present.opening);
        self.partitions.iter().filter(move |assigned| speaks_of_it && assigned.owner() == present.node)
    }

    /// Returns what the log of a node holds. It keeps this, whoever owns the partition now: others build on it (unsafe
    /// order 11).
    pub fn held_by(&self, node: NodeNumber) -> impl Iterator<Item = Held> + '_ {
        self.partitions.iter().filter_map(move |assigned| {
            let at = assigned.lineage.iter().position(|link| link.node == node)?;
            let Link { since, upto, .. } = assigned.lineage[at];
            Some(Held { partition: assigned.partition, since, upto, is_first: at == 0 })
        })
    }

    /// Returns whether the log of a node is twice in a lineage. Then it is neither trimmed nor merged.
    pub fn has_twice(&self, node: NodeNumber) -> bool {
        self.partitions.iter().any(|assigned| assigned.lineage.iter().filter(|link| link.node == node).count() > 1)
    }

    /// Checks the invariants; the error is for people.
    pub fn check(&self) -> Result<(), String> {
        if self.nodes.windows(2).any(|pair| pair[0].node >= pair[1].node) {
            return Err("its nodes do not ascend".to_owned());
        }
        for (at, assigned) in self.partitions.iter().enumerate() {
            let Partition { class, number } = assigned.partition;
            let before = at.checked_sub(1).map(|before| self.partitions[before].partition);
            let is_next = match before {
                Some(before) if before.class == class => before.number.checked_add(1) == Some(number),
                Some(before) => before.class < class && number == 0,
                None => number == 0,
            };
            if !is_next || number == Partition::ANY {
                return Err(format!("partition {number} of {class:?} comes behind {before:?}"));
            }
            self.check_partition(assigned).map_err(|why| format!("partition {number} of {class:?}: {why}"))?;
        }
        Ok(())
    }

    fn check_partition(&self, assigned: &Assigned) -> Result<(), String> {
        let Some(last) = assigned.lineage.last() else { return Err("it has no lineage".to_owned()) };
        if assigned.epoch == 0 {
            return Err("its epoch is 0".to_owned());
        }
        let takes_part = |node| self.opening(node).is_some();
        if !takes_part(last.node) {
            return Err(format!("its owner, node {}, does not take part", last.node));
        }
        if let Some(follower) = assigned.follower
            && (!takes_part(follower) || follower == last.node)
        {
            return Err(format!("its follower is node {follower}, and its owner {}", last.node));
        }
        let mut end = Some(Position(0));
        for Link { node, since, upto } in &assigned.lineage {
            let ascends = end.is_some_and(|end| end <= *since) && upto.is_none_or(|upto| *since <= upto);
            let is_aligned = [Some(*since), *upto].into_iter().flatten().all(|position| position.0.is_multiple_of(ALIGNMENT_BYTES));
            if !ascends || !is_aligned {
                return Err(format!("the log of node {node} counts from {since:?} to {upto:?}, and the one before it to {end:?}"));
            }
            end = *upto;
        }
        match end {
            None => Ok(()),
            Some(end) => Err(format!("its lineage ends at {}", end.0)),
        }
    }

    /// Checks that this may come behind `before`; the error is for people.
    pub fn follows(&self, before: &Table) -> Result<(), String> {
        if before.number.checked_add(1) != Some(self.number) {
            return Err(format!("it is behind table {}", before.number));
        }
        let partitions = |table: &Table| table.partitions.iter().map(|assigned| assigned.partition).collect::<Vec<_>>();
        if partitions(self) != partitions(before) {
            return Err("it has other partitions".to_owned());
        }
        let known: BTreeSet<NodeNumber> = before.nodes.iter().map(|present| present.node).collect();
        if let Some(present) = self.nodes.iter().find(|now| known.contains(&now.node) && before.opening(now.node) > Some(now.opening)) {
            return Err(format!("node {} has an earlier opening", present.node));
        }
        for (old, new) in before.partitions.iter().zip(&self.partitions) {
            let ownership = |table: &Table, assigned: &Assigned| (assigned.owner(), table.opening(assigned.owner()));
            let is_new = ownership(before, old) != ownership(self, new);
            if new.epoch < old.epoch || is_new && new.epoch == old.epoch {
                return Err(format!("{:?} has epoch {} after {}", new.partition, new.epoch, old.epoch));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
