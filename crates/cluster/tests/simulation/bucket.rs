//! The bucket: requests take effect at one moment each, between being sent and being answered. Some take very long,
//! and some answers never come. Logs are modelled as batches, manifests and pieces; tables are real.

use super::shared::Time;
use onefold_bucket::MemoryBucket;
use onefold_cluster::{PutTable, Table, Tables};
use onefold_oplog::{Partition, Position};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

pub const STORE: [u8; 16] = [7; 16];
/// What each batch takes of the positions.
pub const UNIT: u64 = onefold_oplog::ALIGNMENT_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Ordinary,
    Fence,
    Closed,
}

#[derive(Clone, Debug)]
pub enum Record {
    /// A register changes by `delta`, from nothing if it is restated. `write`: the write of a client.
    Change {
        partition: Partition,
        register: u8,
        is_restated: bool,
        delta: u64,
        write: Option<u64>,
    },
    Adopted,
    Released,
}

/// A batch. `id` stands for its bytes.
#[derive(Debug)]
pub struct Batch {
    pub id: u64,
    pub epoch: u64,
    pub role: Role,
    pub start: Position,
    pub end: Position,
    pub records: Vec<Record>,
}

/// Effects of trimmed batches by key: whether they begin with a restatement, and their sum.
#[derive(Debug)]
pub struct Piece {
    pub from: Position,
    pub to: Position,
    pub effects: BTreeMap<(Partition, u8), (bool, u64)>,
}

#[derive(Clone, Debug, Default)]
pub struct Manifest {
    pub id: u64,
    pub number: u64,
    pub epoch: u64,
    /// The first batch that the log has.
    pub first: u64,
    pub start: Position,
    pub pieces: Vec<u64>,
}

#[derive(Debug)]
pub enum Request {
    PutNode {
        number: u32,
        owner: u64,
    },
    PutBatch {
        node: u32,
        number: u64,
        batch: Rc<Batch>,
    },
    PutManifest {
        node: u32,
        manifest: Rc<Manifest>,
    },
    PutPiece {
        node: u32,
        id: u64,
        piece: Rc<Piece>,
    },
    PutTable(Rc<Table>),
    GetTable(u64),
    /// Some batches from this one on, as of one moment.
    GetBatches {
        node: u32,
        from: u64,
    },
    NewestManifest(u32),
    GetPieces {
        node: u32,
        ids: Vec<u64>,
    },
    Delete {
        node: u32,
        batches: Vec<u64>,
        pieces: Vec<u64>,
    },
    /// No request: time passes.
    Sleep(Time),
}

#[derive(Clone, Debug)]
pub enum Reply {
    Done,
    Taken,
    /// Nobody knows what became of the request.
    Unknown,
    Table(Option<Table>),
    TableTaken(Table),
    Batches(Vec<Rc<Batch>>),
    Manifest(Rc<Manifest>),
    /// `None`: one of them is gone.
    Pieces(Option<Vec<Rc<Piece>>>),
}

#[derive(Default)]
pub struct LogObjects {
    pub batches: BTreeMap<u64, Rc<Batch>>,
    pub manifests: Vec<Rc<Manifest>>,
    pub pieces: BTreeMap<u64, Rc<Piece>>,
}

pub struct SimulatedBucket {
    owners: BTreeMap<u32, u64>,
    pub logs: BTreeMap<u32, LogObjects>,
    pub tables: Tables,
}

/// Batches of one answer.
const BATCHES_AT_ONCE: u64 = 8;

impl SimulatedBucket {
    pub fn new() -> SimulatedBucket {
        SimulatedBucket { owners: BTreeMap::new(), logs: BTreeMap::new(), tables: Tables::new(Arc::new(MemoryBucket::new()), STORE) }
    }

    pub fn newest_manifest(&self, node: u32) -> Rc<Manifest> {
        let newest = self.logs.get(&node).and_then(|log| log.manifests.last().cloned());
        newest.unwrap_or_else(|| Rc::new(Manifest { first: 1, ..Manifest::default() }))
    }

    /// Executes a request. The second value: whether it has put something that was not there.
    pub fn execute(&mut self, request: &Request) -> (Reply, bool) {
        match request {
            Request::PutNode { number, owner } => match *self.owners.entry(*number).or_insert(*owner) == *owner {
                true => (Reply::Done, true),
                false => (Reply::Taken, false),
            },
            Request::PutBatch { node, number, batch } => {
                let batches = &mut self.logs.entry(*node).or_default().batches;
                match batches.get(number) {
                    Some(there) if there.id == batch.id => (Reply::Done, false),
                    Some(_) => (Reply::Taken, false),
                    None => {
                        batches.insert(*number, batch.clone());
                        (Reply::Done, true)
                    }
                }
            }
            Request::PutManifest { node, manifest } => {
                let manifests = &mut self.logs.entry(*node).or_default().manifests;
                match manifests.get(manifest.number as usize - 1) {
                    Some(there) if there.id == manifest.id => (Reply::Done, false),
                    Some(_) => (Reply::Taken, false),
                    None => {
                        assert_eq!(manifests.len() as u64 + 1, manifest.number, "a manifest behind a hole");
                        manifests.push(manifest.clone());
                        (Reply::Done, true)
                    }
                }
            }
            Request::PutPiece { node, id, piece } => {
                self.logs.entry(*node).or_default().pieces.insert(*id, piece.clone());
                (Reply::Done, true)
            }
            Request::PutTable(table) => {
                let is_new = self.tables.get(table.number).expect("tables are whole").is_none();
                match self.tables.put(table) {
                    Ok(PutTable::Done) => (Reply::Done, is_new),
                    Ok(PutTable::Taken(winner)) => (Reply::TableTaken(winner), false),
                    Err(error) => panic!("{error}: {table:?}"),
                }
            }
            Request::GetTable(number) => (Reply::Table(self.tables.get(*number).expect("tables are whole")), false),
            Request::GetBatches { node, from } => {
                let log = self.logs.get(node);
                let batches = (*from..from + BATCHES_AT_ONCE).map_while(|number| log.and_then(|log| log.batches.get(&number)));
                (Reply::Batches(batches.cloned().collect()), false)
            }
            Request::NewestManifest(node) => (Reply::Manifest(self.newest_manifest(*node)), false),
            Request::GetPieces { node, ids } => {
                let log = self.logs.get(node);
                let pieces = ids.iter().map(|id| log.and_then(|log| log.pieces.get(id)).cloned());
                (Reply::Pieces(pieces.collect()), false)
            }
            Request::Delete { node, batches, pieces } => {
                let log = self.logs.entry(*node).or_default();
                batches.iter().for_each(|number| drop(log.batches.remove(number)));
                pieces.iter().for_each(|id| drop(log.pieces.remove(id)));
                (Reply::Done, false)
            }
            Request::Sleep(_) => (Reply::Done, false),
        }
    }
}
