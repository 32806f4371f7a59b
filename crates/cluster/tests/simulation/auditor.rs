//! Looks at everything at once, and knows what must hold:
//! * registers are linearizable: what was acknowledged, or read, is never older later;
//! * one node at most answers for a partition at any time;
//! * the lineage in the newest table leads to what was written, from the bucket alone;
//! * tables are a chain, and epochs only grow.

use super::bucket::{Record, SimulatedBucket};
use super::logs::{Values, apply_log};
use onefold_cluster::Table;
use onefold_oplog::Partition;
use std::collections::BTreeMap;

#[derive(Default)]
struct Register {
    /// What was written, in the order in which it became durable. It begins with nothing.
    values: Vec<u64>,
    /// The last one that somebody knows of: it was acknowledged, or read.
    floor: usize,
}

#[derive(Default)]
pub struct Auditor {
    registers: BTreeMap<(Partition, u8), Register>,
    /// Writes: their value, and where they are among the values.
    writes: BTreeMap<u64, (u64, Option<usize>)>,
    pub acknowledged: u64,
    pub read: u64,
}

impl Auditor {
    fn register(&mut self, key: (Partition, u8)) -> &mut Register {
        self.registers.entry(key).or_insert_with(|| Register { values: vec![0], floor: 0 })
    }

    /// A request begins. Returns what its answer must not be older than.
    pub fn begin(&mut self, key: (Partition, u8)) -> usize {
        self.register(key).floor
    }

    pub fn begin_write(&mut self, id: u64, value: u64) {
        self.writes.insert(id, (value, None));
    }

    pub fn became_durable(&mut self, record: &Record) {
        let Record::Change { partition, register, write: Some(id), .. } = record else { return };
        let (value, place) = self.writes.get_mut(id).expect("each write was begun");
        assert!(place.is_none(), "write {id} is in two batches");
        let register = self.registers.entry((*partition, *register)).or_insert_with(|| Register { values: vec![0], floor: 0 });
        *place = Some(register.values.len());
        register.values.push(*value);
    }

    pub fn acknowledge_write(&mut self, key: (Partition, u8), id: u64, floor: usize) {
        let place = self.writes[&id].1.unwrap_or_else(|| panic!("write {id} of {key:?} was acknowledged, and no log has it"));
        assert!(place > floor, "write {id} of {key:?} is older than what was known when it began");
        let register = self.register(key);
        register.floor = register.floor.max(place);
        self.acknowledged += 1;
    }

    pub fn answer_read(&mut self, key: (Partition, u8), value: u64, floor: usize) {
        let register = self.register(key);
        let place = (floor..register.values.len()).find(|place| register.values[*place] == value);
        let Some(place) = place else {
            panic!("{key:?} was read as {value}, but {:?} was known before", register.values[floor]);
        };
        register.floor = register.floor.max(place);
        self.read += 1;
    }

    /// What was read of all of a partition, by somebody who does not own it, at some time since `floors` were taken.
    pub fn check_reader(&mut self, partition: Partition, values: &Values, floors: &BTreeMap<u8, usize>) {
        for (register, floor) in floors {
            let value = values.get(register).copied().unwrap_or_default();
            let known = &self.register((partition, *register)).values[*floor..];
            assert!(known.contains(&value), "a reader found {value} in register {register} of {partition:?}, of {known:?}");
        }
    }

    /// Compares what the bucket says of a partition with what became durable.
    pub fn check_replay(&mut self, bucket: &SimulatedBucket, table: &Table, partition: Partition, registers: u8) {
        let assigned = table.get(partition).expect("all partitions are in the table");
        let mut values = Values::new();
        for link in &assigned.lineage {
            let node = link.node.0;
            let manifest = bucket.newest_manifest(node);
            let Some(log) = bucket.logs.get(&node) else { continue };
            let pieces: Vec<_> = manifest.pieces.iter().map(|id| log.pieces[id].clone()).collect();
            let batches = (manifest.first..).map_while(|number| Some((number, log.batches.get(&number)?.clone())));
            apply_log(&mut values, partition, link, &pieces, &batches.collect::<Vec<_>>());
        }
        for register in 0..registers {
            let expected = *self.register((partition, register)).values.last().expect("it begins with nothing");
            let found = values.get(&register).copied().unwrap_or_default();
            assert_eq!(found, expected, "register {register} of {partition:?} as read from {:?}", assigned.lineage);
        }
    }

    pub fn check_table(&self, before: Option<&Table>, table: &Table) {
        let right = before.map_or(Ok(()), |before| table.follows(before)).and_then(|()| table.check());
        right.unwrap_or_else(|why| panic!("{why}: {table:?} after {before:?}"));
    }
}
