//! Which node gets which partition: with few moves, and the same whoever computes it.
//!
//! Partitions of the chunk index and of containers are spread evenly. Those of objects stay together, at the *home* of
//! the objects, which has a partition of containers too: whoever lists or serves what is in the store needs all of
//! them. (The paper spreads them, M4.2. A volume, or a series of backups, will be served by the node that has it once
//! those who list or remove something can ask all nodes.)

use crate::table::CLASSES;
use crate::{Assigned, NodeNumber};
use onefold_oplog::{Partition, PartitionClass};
use std::collections::{BTreeMap, BTreeSet};

/// How many partitions of a class each node has.
type Loads = BTreeMap<NodeNumber, usize>;

/// A partition without an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Homeless {
    /// Its place in the table.
    pub(crate) at: usize,
    /// Its owner is gone: whoever followed it takes over at once.
    pub(crate) is_lost: bool,
}

/// Chooses an owner for each homeless partition. Returns nothing if there is no node.
pub(crate) fn owners_of(partitions: &[Assigned], homeless: &[Homeless], nodes: &BTreeSet<NodeNumber>) -> BTreeMap<usize, NodeNumber> {
    let mut chosen = BTreeMap::new();
    let home = home_of_objects(partitions, homeless, nodes);
    if let Some(home) = home {
        chosen.extend(homeless.iter().filter(|homeless| is_object(&partitions[homeless.at])).map(|homeless| (homeless.at, home)));
    }
    for class in CLASSES.into_iter().filter(|class| *class != PartitionClass::ObjectIndex) {
        let mut loads: Loads = nodes.iter().map(|node| (*node, 0)).collect();
        let is_homeless = |at: usize| homeless.iter().any(|homeless| homeless.at == at);
        for (at, assigned) in partitions.iter().enumerate().filter(|(_, assigned)| assigned.partition.class == class) {
            if !is_homeless(at) {
                loads.entry(assigned.owner()).and_modify(|load| *load += 1);
            }
        }
        for Homeless { at, is_lost } in homeless.iter().filter(|homeless| partitions[homeless.at].partition.class == class) {
            let follower = partitions[*at].follower.filter(|follower| nodes.contains(follower));
            let Some((least, load)) = least(&loads) else { continue };
            let needs_one = |home: &NodeNumber| class == PartitionClass::Container && loads.get(home) == Some(&0);
            let node = match follower.or(home.filter(needs_one)) {
                // It stores what is in the objects.
                Some(home) if needs_one(&home) => home,
                Some(follower) if *is_lost || loads[&follower] == load => follower,
                _ => least,
            };
            loads.entry(node).and_modify(|load| *load += 1);
            chosen.insert(*at, node);
        }
    }
    chosen
}

fn is_object(assigned: &Assigned) -> bool {
    assigned.partition.class == PartitionClass::ObjectIndex
}

/// Returns the node where all objects should be: it has most of them already, or followed those that were lost, or has
/// fewest partitions.
fn home_of_objects(partitions: &[Assigned], homeless: &[Homeless], nodes: &BTreeSet<NodeNumber>) -> Option<NodeNumber> {
    let mut objects: Loads = BTreeMap::new();
    let mut loads: Loads = nodes.iter().map(|node| (*node, 0)).collect();
    for (at, assigned) in partitions.iter().enumerate() {
        if nodes.contains(&assigned.owner()) && !homeless.iter().any(|homeless| homeless.at == at) {
            *loads.entry(assigned.owner()).or_default() += 1;
            if is_object(assigned) {
                *objects.entry(assigned.owner()).or_default() += 1;
            }
        }
    }
    let most = objects.iter().max_by_key(|(node, load)| (**load, std::cmp::Reverse(**node))).map(|(node, _)| *node);
    let lost = || homeless.iter().filter(|homeless| homeless.is_lost).map(|homeless| &partitions[homeless.at]);
    let follower =
        || lost().filter(|assigned| is_object(assigned)).find_map(|assigned| assigned.follower.filter(|node| nodes.contains(node)));
    most.or_else(follower).or_else(|| least(&loads).map(|(node, _)| node))
}

/// Returns the partitions that their owners should release next: at most one of each class, and all objects that are
/// not at their home. `nodes` can take some,
/// `leaving` have to get rid of all. A partition moves only if its lineage is short: a log that is twice in a lineage
/// cannot be trimmed.
pub(crate) fn moves(
    partitions: &[Assigned],
    nodes: &BTreeSet<NodeNumber>,
    leaving: &BTreeSet<NodeNumber>,
) -> Vec<(Partition, u64, NodeNumber)> {
    let home = home_of_objects(partitions, &[], nodes);
    let is_away = |assigned: &&Assigned| is_object(assigned) && assigned.lineage.len() == 1 && Some(assigned.owner()) != home;
    let objects = partitions.iter().filter(|_| home.is_some()).filter(is_away);
    let objects = objects.map(|assigned| (assigned.partition, assigned.epoch, assigned.owner()));
    let others = CLASSES.into_iter().filter(|class| *class != PartitionClass::ObjectIndex);
    others.filter_map(|class| move_of(class, partitions, nodes, leaving)).chain(objects).collect()
}

fn move_of(
    class: PartitionClass,
    partitions: &[Assigned],
    nodes: &BTreeSet<NodeNumber>,
    leaving: &BTreeSet<NodeNumber>,
) -> Option<(Partition, u64, NodeNumber)> {
    let of_class = || partitions.iter().filter(|assigned| assigned.partition.class == class && assigned.lineage.len() == 1);
    let mut loads: Loads = nodes.iter().map(|node| (*node, 0)).collect();
    for assigned in partitions.iter().filter(|assigned| assigned.partition.class == class) {
        loads.entry(assigned.owner()).and_modify(|load| *load += 1);
    }
    let (_, fewest) = least(&loads)?;
    let is_too_much = |node: NodeNumber| leaving.contains(&node) || loads.get(&node).is_some_and(|load| *load > fewest + 1);
    // Those that leave first, then those that have most; then the lowest number.
    let weight = |node: NodeNumber| if leaving.contains(&node) { usize::MAX } else { loads.get(&node).copied().unwrap_or(0) };
    let best = of_class().filter(|assigned| is_too_much(assigned.owner())).min_by_key(|assigned| {
        let owner = assigned.owner();
        (std::cmp::Reverse(weight(owner)), owner, assigned.partition)
    })?;
    Some((best.partition, best.epoch, best.owner()))
}

/// Chooses followers: nodes other than the owners, evenly; one for all objects. Whoever follows goes on, unless there
/// is a reason.
pub(crate) fn set_followers(partitions: &mut [Assigned], nodes: &BTreeSet<NodeNumber>) {
    set_follower_of_objects(partitions, nodes);
    let is_chunks = |at: &usize| partitions[*at].partition.class == PartitionClass::ChunkIndex;
    let of_class: Vec<usize> = (0..partitions.len()).filter(is_chunks).collect();
    let mut loads: Loads = nodes.iter().map(|node| (*node, 0)).collect();
    for at in &of_class {
        let assigned = &mut partitions[*at];
        let owner = assigned.owner();
        assigned.follower = assigned.follower.filter(|follower| *follower != owner && nodes.contains(follower));
        if let Some(follower) = assigned.follower {
            loads.entry(follower).and_modify(|load| *load += 1);
        }
    }
    for at in &of_class {
        let assigned = &mut partitions[*at];
        if assigned.follower.is_none() {
            let owner = assigned.owner();
            assigned.follower =
                least(&loads.iter().filter(|(node, _)| **node != owner).map(|(node, load)| (*node, *load)).collect()).map(|(node, _)| node);
            assigned.follower.iter().for_each(|follower| *loads.entry(*follower).or_default() += 1);
        }
    }
    // One at a time from a node that follows two more than another one could.
    while let Some((at, to)) = of_class.iter().find_map(|at| {
        let follower = partitions[*at].follower?;
        let to = loads.iter().find(|(node, load)| **node != partitions[*at].owner() && **load + 1 < loads[&follower])?;
        Some((*at, *to.0))
    }) {
        let from = partitions[at].follower.replace(to);
        from.iter().for_each(|from| *loads.entry(*from).or_default() -= 1);
        *loads.entry(to).or_default() += 1;
    }
}

/// Where objects are not together, each has a follower all the same: the same one, if it is not the owner.
fn set_follower_of_objects(partitions: &mut [Assigned], nodes: &BTreeSet<NodeNumber>) {
    let owners: BTreeSet<NodeNumber> = partitions.iter().filter(|assigned| is_object(assigned)).map(Assigned::owner).collect();
    let may_follow = |owner: NodeNumber, node: &NodeNumber| *node != owner && nodes.contains(node);
    let goes_on = |node: &NodeNumber| nodes.contains(node) && !owners.contains(node);
    let followers = partitions.iter().filter(|assigned| is_object(assigned)).filter_map(|assigned| assigned.follower);
    let follower = followers.min().filter(goes_on).or_else(|| nodes.iter().copied().find(|node| !owners.contains(node)));
    for assigned in partitions.iter_mut().filter(|assigned| is_object(assigned)) {
        let owner = assigned.owner();
        let any = || nodes.iter().copied().find(|node| may_follow(owner, node));
        assigned.follower = follower.filter(|node| may_follow(owner, node)).or_else(any);
    }
}

/// Returns the node that has least; the lowest number of those.
fn least(loads: &Loads) -> Option<(NodeNumber, usize)> {
    loads.iter().min_by_key(|(node, load)| (**load, **node)).map(|(node, load)| (*node, *load))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counts, Link, Table};
    use onefold_oplog::Position;

    fn table(count: u16) -> Table {
        let counts = Counts { chunk_index: count, objects: 2, containers: 1 };
        Table::first(counts, NodeNumber(0), 1)
    }

    fn nodes(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<NodeNumber> {
        numbers.into_iter().map(NodeNumber).collect()
    }

    /// Moves as a master does, until nothing has to move; returns how many moves that took.
    fn settle(partitions: &mut [Assigned], there: &BTreeSet<NodeNumber>, leaving: &BTreeSet<NodeNumber>) -> usize {
        let mut count = 0;
        loop {
            let moves = moves(partitions, there, leaving);
            if moves.is_empty() {
                return count;
            }
            let at = |partition| partitions.iter().position(|assigned| assigned.partition == partition).unwrap();
            let homeless: Vec<Homeless> = moves.iter().map(|(partition, ..)| Homeless { at: at(*partition), is_lost: false }).collect();
            for (at, node) in owners_of(partitions, &homeless, there) {
                partitions[at].lineage = vec![Link { node, since: Position(0), upto: None }];
                count += 1;
            }
            assert!(count < 10_000);
        }
    }

    fn loads(partitions: &[Assigned], class: PartitionClass) -> BTreeMap<u32, usize> {
        let mut loads = BTreeMap::new();
        partitions.iter().filter(|assigned| assigned.partition.class == class).for_each(|assigned| {
            *loads.entry(assigned.owner().0).or_default() += 1;
        });
        loads
    }

    #[test]
    fn m4_2_partitions_are_spread_evenly_with_as_few_moves_as_possible() {
        for count in [1, 7, 64] {
            for there in 1..9u32 {
                let mut partitions = table(count).partitions;
                let moved = settle(&mut partitions, &nodes(0..there), &nodes([]));
                let loads = loads(&partitions, PartitionClass::ChunkIndex);
                let (most, fewest) = (*loads.values().max().unwrap(), usize::from(count) / there as usize);
                assert!(most <= usize::from(count).div_ceil(there as usize).max(1), "{count} {there} {loads:?}");
                // Node 0 keeps its share; of the two others classes, all but one each move.
                let others = loads.iter().filter(|(node, _)| **node != 0).map(|(_, load)| load).sum::<usize>();
                assert!(moved <= others + 1 && loads[&0] >= fewest, "{count} {there}: {moved} moves, {loads:?}");
                // A node leaves: only what it had moves.
                if there > 1 {
                    let before = partitions.clone();
                    settle(&mut partitions, &nodes(0..there - 1), &nodes([there - 1]));
                    for (before, now) in before.iter().zip(&partitions) {
                        assert!(before.owner() == now.owner() || before.owner() == NodeNumber(there - 1));
                    }
                }
            }
        }
    }

    #[test]
    fn followers_are_other_nodes_and_take_over_what_is_lost() {
        let mut partitions = table(16).partitions;
        let there = nodes(0..4);
        settle(&mut partitions, &there, &nodes([]));
        set_followers(&mut partitions, &there);
        let follows =
            |partitions: &[Assigned], node| partitions.iter().filter(|assigned| assigned.follower == Some(NodeNumber(node))).count();
        // The objects have one follower.
        assert!((0..4).all(|node| (4..=6).contains(&follows(&partitions, node))), "{partitions:?}");
        let again = partitions.clone();
        set_followers(&mut partitions, &there);
        assert_eq!(again, partitions);
        let lost = |at: &usize| partitions[*at].owner() == NodeNumber(2);
        let homeless: Vec<Homeless> = (0..19).filter(lost).map(|at| Homeless { at, is_lost: true }).collect();
        for (at, node) in owners_of(&partitions, &homeless, &nodes([0, 1, 3])) {
            assert!(node != NodeNumber(2) && partitions[at].follower.is_none_or(|follower| follower == node));
        }
        set_followers(&mut partitions, &nodes([2]));
        assert!(partitions.iter().all(|assigned| assigned.follower.is_none_or(|follower| follower != assigned.owner())));
    }

    #[test]
    fn all_objects_are_at_one_node_and_go_to_one_node() {
        let home = |partitions: &[Assigned]| {
            let homes: BTreeSet<NodeNumber> = partitions.iter().filter(|assigned| is_object(assigned)).map(Assigned::owner).collect();
            assert_eq!(homes.len(), 1, "{partitions:?}");
            homes.first().copied().unwrap()
        };
        let counts = Counts { chunk_index: 8, objects: 5, containers: 8 };
        let mut partitions = Table::first(counts, NodeNumber(0), 1).partitions;
        settle(&mut partitions, &nodes(0..4), &nodes([]));
        assert_eq!(home(&partitions), NodeNumber(0));
        set_followers(&mut partitions, &nodes(0..4));
        let follower = partitions.iter().find(|assigned| is_object(assigned)).and_then(|assigned| assigned.follower).unwrap();
        // It is lost: whoever followed has all of them.
        let is_lost = |at: &usize| partitions[*at].owner() == NodeNumber(0);
        let homeless: Vec<Homeless> = (0..partitions.len()).filter(is_lost).map(|at| Homeless { at, is_lost: true }).collect();
        for (at, node) in owners_of(&partitions, &homeless, &nodes(1..4)) {
            partitions[at].lineage = vec![Link { node, since: Position(0), upto: None }];
        }
        assert_eq!(home(&partitions), follower);
        // With one partition of containers, it is where data is stored.
        let mut few = Table::first(Counts { containers: 1, ..counts }, NodeNumber(0), 1).partitions;
        settle(&mut few, &nodes(0..4), &nodes([]));
        set_followers(&mut few, &nodes(0..4));
        let is_lost = |at: &usize| few[*at].owner() == NodeNumber(0);
        let homeless: Vec<Homeless> = (0..few.len()).filter(is_lost).map(|at| Homeless { at, is_lost: true }).collect();
        for (at, node) in owners_of(&few, &homeless, &nodes(1..4)) {
            few[at].lineage = vec![Link { node, since: Position(0), upto: None }];
        }
        assert_eq!(few.last().unwrap().owner(), home(&few));
        // It leaves: they go together.
        settle(&mut partitions, &nodes((1..4).filter(|node| *node != follower.0)), &nodes([follower.0]));
        assert_ne!(home(&partitions), follower);
        // Somebody else has one: it goes to the others.
        let at = partitions.iter().position(is_object).unwrap();
        let elsewhere = (1..4).map(NodeNumber).find(|node| *node != home(&partitions)).unwrap();
        partitions[at].lineage = vec![Link { node: elsewhere, since: Position(0), upto: None }];
        settle(&mut partitions, &nodes(1..4), &nodes([]));
        home(&partitions);
    }

    #[test]
    fn a_partition_with_a_long_lineage_stays_until_it_is_restated() {
        let mut partitions = table(4).partitions;
        for assigned in &mut partitions {
            assigned.lineage.insert(0, Link { node: NodeNumber(7), since: Position(0), upto: Some(Position(0)) });
        }
        assert_eq!(moves(&partitions, &nodes([0, 1]), &nodes([])), []);
        partitions[2].lineage.remove(0);
        assert_eq!(moves(&partitions, &nodes([0, 1]), &nodes([])), [(partitions[2].partition, 1, NodeNumber(0))]);
        assert_eq!(moves(&partitions, &nodes([]), &nodes([0])), [], "there is nobody to take it");
    }
}
