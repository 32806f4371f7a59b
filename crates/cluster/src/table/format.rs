//! The object of a table (`docs/format.md` section 11.5).
//!
//! Many partitions have the same parts of lineages: all that a lost node had name its log, from one position to
//! another. So each link is stored once, and lineages are lists of numbers of links. A store with 256 partitions of the
//! chunk index, 64 of objects and 64 of containers on 64 nodes takes less than 3 KB, and less than 12 KB when each
//! partition has been restated at a position of its own and moved since (a test states both).

use super::{Assigned, CLASSES, Link, NodeNumber, Opening, Present, Table};
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError, put_varint};
use onefold_oplog::{ALIGNMENT_BYTES, Partition, Position};
use std::collections::BTreeMap;

const MAGIC: &[u8; 8] = b"1FLDTAB1";
const VERSION: u32 = 1;
/// A table is never longer.
pub(crate) const LIMIT_BYTES: u64 = 16 << 20;
/// Least bytes of a node, of a link, and of a partition.
const NODE_BYTES: usize = 2;
const LINK_BYTES: usize = 3;
const PARTITION_BYTES: usize = 4;

impl Table {
    /// Returns the object. The table is right ([`Table::check`]).
    pub fn encode(&self, store: &[u8; 16]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(store);
        out.extend_from_slice(&self.number.to_le_bytes());
        put_varint(&mut out, self.nodes.len() as u64);
        for present in &self.nodes {
            put_varint(&mut out, present.node.0.into());
            put_varint(&mut out, present.opening.0);
        }
        let mut numbers: BTreeMap<Link, u64> = BTreeMap::new();
        let mut links = Vec::new();
        for link in self.partitions.iter().flat_map(|assigned| &assigned.lineage) {
            numbers.entry(*link).or_insert_with(|| {
                links.push(*link);
                links.len() as u64 - 1
            });
        }
        put_varint(&mut out, links.len() as u64);
        for link in links {
            put_varint(&mut out, link.node.0.into());
            put_varint(&mut out, link.since.0 / ALIGNMENT_BYTES);
            put_varint(&mut out, link.upto.map_or(0, |upto| upto.0 / ALIGNMENT_BYTES + 1));
        }
        for class in CLASSES {
            put_varint(&mut out, self.partitions.iter().filter(|assigned| assigned.partition.class == class).count() as u64);
        }
        for assigned in &self.partitions {
            put_varint(&mut out, assigned.epoch);
            put_varint(&mut out, assigned.follower.map_or(0, |follower| u64::from(follower.0) + 1));
            put_varint(&mut out, assigned.lineage.len() as u64);
            assigned.lineage.iter().for_each(|link| put_varint(&mut out, numbers[link]));
        }
        out.extend_from_slice(&checksum(&out).to_le_bytes());
        out
    }

    /// Reads a table; the error is for people.
    pub fn decode(bytes: &[u8], store: &[u8; 16], number: u64) -> Result<Table, String> {
        let Some((content, sum)) = bytes.split_last_chunk::<8>() else { return Err("the object is too short".to_owned()) };
        if checksum(content) != u64::from_le_bytes(*sum) {
            return Err("its checksum is wrong".to_owned());
        }
        let mut reader = Reader::new(content);
        let mut head = || Ok::<_, WireError>((reader.take(8)?, reader.u32()?, reader.take(16)?, reader.u64()?));
        let (magic, version, found_store, found) = head().map_err(|error| error.to_string())?;
        if magic != MAGIC {
            return Err("this is no table".to_owned());
        }
        if version != VERSION {
            return Err(format!("it has format version {version}; this program reads version {VERSION}"));
        }
        if found_store != store {
            return Err("it belongs to another store".to_owned());
        }
        if found != number {
            return Err(format!("the table says that it is number {found}"));
        }
        let table = content_of(&mut reader, number).map_err(|error| error.to_string())?;
        table.check()?;
        // One table, one object: whoever puts the same again finds it.
        if table.encode(store) != bytes {
            return Err("it is not written as this program writes it".to_owned());
        }
        Ok(table)
    }
}

fn content_of(reader: &mut Reader<'_>, number: u64) -> Result<Table, WireError> {
    let count = reader.count("nodes", NODE_BYTES)?;
    let present = |reader: &mut Reader<'_>| Ok(Present { node: node(reader, 0)?, opening: Opening(reader.varint()?) });
    let nodes = (0..count).map(|_| present(reader)).collect::<Result<_, WireError>>()?;
    let count = reader.count("links", LINK_BYTES)?;
    let link = |reader: &mut Reader<'_>| {
        let (node, since) = (node(reader, 0)?, position(reader, 0)?);
        let has_end = reader.clone().varint()? > 0;
        let upto = if has_end { Some(position(reader, 1)?) } else { reader.varint().map(|_| None)? };
        Ok(Link { node, since, upto })
    };
    let links = (0..count).map(|_| link(reader)).collect::<Result<Vec<Link>, WireError>>()?;
    let mut partitions = Vec::new();
    let mut counts = [0; CLASSES.len()];
    for count in &mut counts {
        *count = reader.varint_to("partitions", Partition::ANY.into())? as u16;
    }
    let all: usize = counts.iter().map(|count| usize::from(*count)).sum();
    if all > reader.left() / PARTITION_BYTES {
        return Err(WireError::OutOfRange { what: "partitions", value: all as u64, offset_bytes: reader.position() });
    }
    for (class, count) in CLASSES.into_iter().zip(counts) {
        for number in 0..count {
            let epoch = reader.varint()?;
            let has_follower = reader.clone().varint()? > 0;
            let follower = if has_follower { Some(node(reader, 1)?) } else { reader.varint().map(|_| None)? };
            let count = reader.count("links of a lineage", 1)?;
            let last = (links.len() as u64).saturating_sub(1);
            let link = |reader: &mut Reader<'_>| {
                let offset_bytes = reader.position();
                let at = reader.varint_to("link", last)?;
                links.get(at as usize).copied().ok_or(WireError::OutOfRange { what: "link", value: at, offset_bytes })
            };
            let lineage = (0..count).map(|_| link(reader)).collect::<Result<_, WireError>>()?;
            partitions.push(Assigned { partition: Partition { class, number }, epoch, follower, lineage });
        }
    }
    reader.end()?;
    Ok(Table { number, nodes, partitions })
}

/// Reads the number of a node, plus `more`.
fn node(reader: &mut Reader<'_>, more: u64) -> Result<NodeNumber, WireError> {
    Ok(NodeNumber((reader.varint_to("node", u64::from(u32::MAX) + more)? - more) as u32))
}

/// Reads a position in units of the log's alignment, plus `more` of them.
fn position(reader: &mut Reader<'_>, more: u64) -> Result<Position, WireError> {
    Ok(Position((reader.varint_to("position", u64::MAX / ALIGNMENT_BYTES)?.saturating_sub(more)) * ALIGNMENT_BYTES))
}
