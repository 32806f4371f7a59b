//! The table: its invariants, its format, and what may follow what.

use super::*;
use proptest::prelude::*;

const STORE: [u8; 16] = [5; 16];

fn counts(chunk_index: u16, objects: u16, containers: u16) -> Counts {
    Counts { chunk_index, objects, containers }
}

fn first() -> Table {
    let mut table = Table::first(counts(3, 2, 1), NodeNumber(4), 9);
    table.nodes[0].opening = Opening(7);
    table
}

fn units(count: u64) -> Position {
    Position(count * ALIGNMENT_BYTES)
}

/// An epoch, links (a node, how far behind the one before it, how long), an owner, and whether it is followed.
type AnyPartition = (u64, Vec<(u32, u64, u64)>, u32, bool);
/// What a wrong table is refused with, and what makes it wrong.
type Wrong = (&'static str, fn(&mut Table));

/// Any right table: nodes and openings, then for each partition its epoch, its lineage (nodes, and how far each goes),
/// and whether the next node follows.
fn any_table() -> impl Strategy<Value = Table> {
    let nodes = proptest::collection::btree_map(0..200u32, any::<u64>(), 1..6);
    let partition = (1..=u64::MAX, proptest::collection::vec((any::<u32>(), 0..900u64, 0..900u64), 0..4), any::<u32>(), any::<bool>());
    (any::<u64>(), nodes, proptest::collection::vec(partition, 0..12)).prop_map(|(number, nodes, partitions)| {
        let nodes: Vec<Present> =
            nodes.into_iter().map(|(node, opening)| Present { node: NodeNumber(node), opening: Opening(opening) }).collect();
        let count = partitions.len();
        let class = |at: usize| CLASSES[at * CLASSES.len() / count];
        let mut numbers = [0; 3];
        let assigned = |(at, (epoch, links, owner, is_followed)): (usize, AnyPartition)| {
            let number = &mut numbers[class(at) as usize - 1];
            let partition = Partition { class: class(at), number: *number };
            *number += 1;
            let (mut lineage, mut end) = (Vec::new(), 0);
            for (node, from, length) in links {
                let since = end + from;
                end = since + length;
                lineage.push(Link { node: NodeNumber(node), since: units(since), upto: Some(units(end)) });
            }
            let owner = owner as usize % nodes.len();
            lineage.push(Link { node: nodes[owner].node, since: units(end), upto: None });
            let follower = (is_followed && nodes.len() > 1).then(|| nodes[(owner + 1) % nodes.len()].node);
            Assigned { partition, epoch, follower, lineage }
        };
        let partitions = partitions.into_iter().enumerate().map(assigned).collect();
        Table { number, nodes, partitions }
    })
}

proptest! {
    #[test]
    fn a_table_is_read_as_written(table in any_table()) {
        table.check().unwrap();
        let bytes = table.encode(&STORE);
        prop_assert_eq!(Table::decode(&bytes, &STORE, table.number), Ok(table.clone()));
        prop_assert!(Table::decode(&bytes, &[6; 16], table.number).is_err());
        prop_assert!(Table::decode(&bytes, &STORE, table.number.wrapping_add(1)).is_err());
        for length in 0..bytes.len() {
            prop_assert!(Table::decode(&bytes[..length], &STORE, table.number).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_is_refused(table in any_table(), bit: prop::sample::Index) {
        let mut bytes = table.encode(&STORE);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Table::decode(&bytes, &STORE, table.number).is_err());
    }

    /// Checksums cannot be guessed, so they are added to changed bytes: what is accepted is a right table, written in
    /// one way.
    #[test]
    fn wrong_content_with_a_right_checksum_never_panics(table in any_table(), at: prop::sample::Index, value: u8, cut: bool) {
        let mut bytes = table.encode(&STORE);
        bytes.truncate(bytes.len() - 8);
        let at = at.index(bytes.len());
        bytes[at] = value;
        if cut { bytes.truncate(at + 1); }
        bytes.extend_from_slice(&onefold_ground::checksum(&bytes).to_le_bytes());
        if let Ok(read) = Table::decode(&bytes, &STORE, table.number) {
            read.check().unwrap();
            prop_assert_eq!(read.encode(&STORE), bytes);
        }
    }
}

#[test]
fn the_first_table_gives_everything_to_one_node_and_nothing_to_an_opening() {
    assert_eq!(Table::first(counts(3, 2, 1), NodeNumber(4), 9).nodes, [Present { node: NodeNumber(4), opening: Opening(0) }]);
    let table = first();
    table.check().unwrap();
    assert_eq!(table.partitions.len(), 6);
    let present = table.nodes[0];
    assert_eq!(table.owned_by(present).count(), 6);
    assert_eq!(table.owned_by(Present { opening: Opening(8), ..present }).count(), 0, "another opening owns nothing");
    assert_eq!(table.held_by(present.node).count(), 6);
    assert!(table.held_by(present.node).all(|held| held.is_first && held.since == Position(0)));
}

#[test]
fn wrong_tables_are_refused() {
    let wrong: [Wrong; 16] = [
        ("do not ascend", |table| table.nodes.push(Present { node: NodeNumber(4), opening: Opening(1) })),
        ("comes behind", |table| drop(table.partitions.remove(0))),
        ("comes behind", |table| drop(table.partitions.remove(1))),
        ("comes behind", |table| table.partitions.swap(2, 3)),
        ("comes behind", |table| table.partitions[0].partition.number = 1),
        ("no lineage", |table| table.partitions[2].lineage.clear()),
        ("epoch is 0", |table| table.partitions[2].epoch = 0),
        ("does not take part", |table| table.partitions[2].lineage[0].node = NodeNumber(5)),
        ("does not take part", |table| table.nodes.clear()),
        ("its follower", |table| table.partitions[2].follower = Some(NodeNumber(4))),
        ("its follower", |table| table.partitions[2].follower = Some(NodeNumber(5))),
        ("lineage ends", |table| table.partitions[5].lineage[0].upto = Some(units(1))),
        ("counts from", |table| table.partitions[5].lineage[0].since = Position(1)),
        ("counts from", |table| {
            let link = table.partitions[5].lineage[0];
            table.partitions[5].lineage.push(link);
        }),
        ("counts from", |table| {
            let link = Link { upto: Some(units(3)), ..table.partitions[5].lineage[0] };
            table.partitions[5].lineage.insert(0, link);
        }),
        ("counts from", |table| {
            let link = Link { since: units(3), upto: Some(units(2)), ..table.partitions[5].lineage[0] };
            table.partitions[5].lineage.insert(0, link);
        }),
    ];
    for (at, (why, change)) in wrong.into_iter().enumerate() {
        let mut table = first();
        change(&mut table);
        let said = table.check().unwrap_err();
        assert!(said.contains(why), "{at}: {said}");
    }
}

#[test]
fn epochs_grow_with_each_ownership_and_openings_never_fall() {
    let table = first();
    let follows = |change: fn(&mut Table)| {
        let mut next = Table { number: 1, ..table.clone() };
        change(&mut next);
        next.follows(&table)
    };
    assert_eq!(follows(|_| {}), Ok(()));
    assert!(follows(|next| next.number = 2).unwrap_err().contains("behind table 0"));
    assert!(follows(|next| drop(next.partitions.pop())).unwrap_err().contains("other partitions"));
    assert!(follows(|next| next.nodes[0].opening = Opening(6)).unwrap_err().contains("earlier opening"));
    assert!(follows(|next| next.partitions[1].epoch = 8).unwrap_err().contains("has epoch 8 after 9"));
    // A new opening is a new ownership.
    assert!(follows(|next| next.nodes[0].opening = Opening(8)).unwrap_err().contains("has epoch 9 after 9"));
    assert_eq!(
        follows(|next| {
            next.nodes[0].opening = Opening(8);
            next.partitions.iter_mut().for_each(|assigned| assigned.epoch += 1);
        }),
        Ok(())
    );
}

#[test]
fn a_log_that_is_twice_in_a_lineage_is_known() {
    let mut table = first();
    assert!(!table.has_twice(NodeNumber(4)));
    let link = |node, since, upto: Option<u64>| Link { node: NodeNumber(node), since: units(since), upto: upto.map(units) };
    table.partitions[1].lineage = vec![link(4, 2, Some(3)), link(6, 3, Some(5)), link(4, 7, None)];
    table.check().unwrap();
    assert!(table.has_twice(NodeNumber(4)) && !table.has_twice(NodeNumber(6)));
    let held: Vec<Held> = table.held_by(NodeNumber(6)).collect();
    assert_eq!(held, [Held { partition: table.partitions[1].partition, since: units(3), upto: Some(units(5)), is_first: false }]);
    assert_eq!(table.held_by(NodeNumber(4)).nth(1).unwrap().since, units(2), "the first of both");
}

#[test]
fn a_large_table_is_small() {
    let nodes: Vec<Present> = (0..64).map(|node| Present { node: NodeNumber(node), opening: Opening(300) }).collect();
    let mut table = Table::first(counts(256, 64, 64), NodeNumber(0), 100);
    table.nodes = nodes;
    for (at, assigned) in (0u32..).zip(&mut table.partitions) {
        assigned.follower = Some(NodeNumber((at + 1) % 64));
        assigned.lineage[0].node = NodeNumber(at % 64);
    }
    let of_a_log_each = table.encode(&STORE).len();
    for (at, assigned) in (0u64..).zip(&mut table.partitions) {
        // Restated at a position of its own in a log of terabytes, and moved since.
        assigned.epoch = 100_000;
        assigned.lineage[0] = Link { since: units((1 << 30) + at), upto: Some(units((1 << 31) + at)), ..assigned.lineage[0] };
        let node = NodeNumber((at as u32 + 9) % 64);
        assigned.lineage.push(Link { node, since: units((1 << 32) + at), upto: None });
    }
    table.check().unwrap();
    let of_two = table.encode(&STORE).len();
    assert!(of_a_log_each < 3 << 10 && of_two < 12 << 10, "{of_a_log_each} and {of_two} bytes");
}

#[test]
fn a_table_of_version_1_is_read_as_it_was_written() {
    let mut table = first();
    table.number = 3;
    table.nodes.push(Present { node: NodeNumber(300), opening: Opening(1) });
    table.partitions[0].follower = Some(NodeNumber(300));
    table.partitions[4].epoch = 12;
    table.partitions[4].lineage = vec![
        Link { node: NodeNumber(4), since: units(0), upto: Some(units(77)) },
        Link { node: NodeNumber(300), since: units(80), upto: None },
    ];
    let frozen = "31464c445441423101000000050505050505050505050505050505050300000000000000\
                  020407ac02010304000004004eac02500003020109ad0201000900010009000100090001\
                  000c000201020900010061cf9d887255beca";
    let hex: String = table.encode(&STORE).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, frozen);
    let bytes: Vec<u8> = (0..frozen.len()).step_by(2).map(|at| u8::from_str_radix(&frozen[at..at + 2], 16).unwrap()).collect();
    assert_eq!(Table::decode(&bytes, &STORE, 3), Ok(table));
}
