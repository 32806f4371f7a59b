//! `onefold cluster`: what the bucket says of the nodes that share a store.

use crate::bucket;
use crate::cli::ClusterStatus;
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, Table};
use crate::units::{counted, printable};
use onefold_cluster::{Assigned, NodeNumber};
use onefold_engine::Engine;
use onefold_node::Overview;
use onefold_oplog::PartitionClass;
use serde_json::json;
use std::collections::BTreeMap;

/// How many partitions a node has, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owned {
    chunk_index: usize,
    objects: usize,
    containers: usize,
    /// Of these, those that are still read from the logs of former owners when they move.
    unrestated: usize,
}

/// Shows the nodes and what they have.
pub fn status(options: &ClusterStatus) -> Result<Exit> {
    let bucket = bucket::open_store(&options.cluster)?;
    let descriptor = Engine::descriptor_in(&*bucket)?;
    let overview = Overview::read(&bucket, descriptor.store).map_err(Failure::cannot_run)?;
    let Some(Overview { table, names }) = overview else {
        return Err(Failure::cannot_run("no node has ever opened this store").advise("onefold node; docs/three-nodes.md"));
    };
    let owned = owned(&table.partitions);
    let nodes: Vec<NodeNumber> = table.nodes.iter().map(|present| present.node).collect();
    // Whoever owns partitions without being there is about to be replaced.
    let others = owned.keys().copied().filter(|node| !nodes.contains(node));
    let all: Vec<NodeNumber> = nodes.iter().copied().chain(others).collect();
    let objects = table.partitions.iter().filter(|assigned| assigned.partition.class == PartitionClass::ObjectIndex).count();
    let of = |node: &NodeNumber| owned.get(node).copied().unwrap_or_default();
    let home = all.iter().copied().find(|node| of(node).objects == objects);
    let name = |node: &NodeNumber| names.get(node).map(|name| printable(name.as_bytes()));
    let mut output = Output::new();
    if options.format.json {
        let node = |node: &NodeNumber| {
            let Owned { chunk_index, objects, containers, unrestated } = of(node);
            json!({
                "number": node.0,
                "name": names.get(node),
                "is_in": nodes.contains(node),
                "chunk_index_partitions": chunk_index,
                "object_partitions": objects,
                "container_partitions": containers,
                "unrestated_partitions": unrestated,
            })
        };
        output.json(&json!({
            "table": table.number,
            "home": home.map(|home| home.0),
            "nodes": all.iter().map(node).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut rows = Table::new(&[">node", "name", ">chunk index", ">objects", ">containers", ">to restate", "role"]);
        for node in &all {
            let Owned { chunk_index, objects, containers, unrestated } = of(node);
            let role = match (home == Some(*node), nodes.contains(node)) {
                (_, false) => "gone",
                (true, true) => "home",
                (false, true) => "",
            };
            let numbers = [chunk_index, objects, containers, unrestated].map(|number| number.to_string());
            let [chunk_index, objects, containers, unrestated] = numbers;
            let name = name(node).unwrap_or_default();
            rows.row(vec![node.to_string(), name, chunk_index, objects, containers, unrestated, role.to_owned()]);
        }
        rows.print(&mut output)?;
        output.line(format_args!("{} in table {}", counted(nodes.len() as u64, "node", "nodes"), table.number))?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

fn owned(partitions: &[Assigned]) -> BTreeMap<NodeNumber, Owned> {
    let mut owned: BTreeMap<NodeNumber, Owned> = BTreeMap::new();
    for assigned in partitions {
        let of_node = owned.entry(assigned.owner()).or_default();
        match assigned.partition.class {
            PartitionClass::ChunkIndex => of_node.chunk_index += 1,
            PartitionClass::ObjectIndex => of_node.objects += 1,
            PartitionClass::Container => of_node.containers += 1,
        }
        of_node.unrestated += usize::from(assigned.lineage.len() > 1);
    }
    owned
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_cluster::{Counts, Link, Table as ClusterTable};
    use onefold_oplog::Position;

    #[test]
    fn partitions_are_counted_by_owner_and_class() {
        let mut table = ClusterTable::first(Counts { chunk_index: 2, objects: 3, containers: 1 }, NodeNumber(0), 5);
        let first = &mut table.partitions[0];
        first.lineage[0].upto = Some(Position(64));
        first.lineage.push(Link { node: NodeNumber(4), since: Position(128), upto: None });
        let owned = owned(&table.partitions);
        assert_eq!(owned[&NodeNumber(0)], Owned { chunk_index: 1, objects: 3, containers: 1, unrestated: 0 });
        assert_eq!(owned[&NodeNumber(4)], Owned { chunk_index: 1, unrestated: 1, ..Owned::default() });
    }
}
