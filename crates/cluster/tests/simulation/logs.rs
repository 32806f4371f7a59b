//! What processes do with logs in the bucket, step by step, as `crates/oplog/src/object_log` does: opening with a
//! fence, closing for ever, commits, trims and merges, and reading a lineage.

use super::bucket::{Batch, Manifest, Piece, Record, Reply, Request, Role, UNIT};
use super::counts::Count;
use super::shared::Io;
use onefold_cluster::{Held, Link};
use onefold_oplog::{Partition, Position};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Values of the registers of a partition.
pub type Values = BTreeMap<u8, u64>;

/// What is known of a log.
pub struct Look {
    pub manifest: Rc<Manifest>,
    /// The batches from the manifest's first on.
    pub batches: Vec<(u64, Rc<Batch>)>,
}

impl Look {
    pub fn end(&self) -> Position {
        self.batches.last().map_or(self.manifest.start, |(_, last)| last.end)
    }

    fn next(&self) -> u64 {
        self.batches.last().map_or(self.manifest.first, |(number, _)| number + 1)
    }

    fn epoch(&self) -> u64 {
        self.batches.last().map_or(0, |(_, last)| last.epoch).max(self.manifest.epoch)
    }

    fn is_closed(&self) -> bool {
        self.batches.last().is_some_and(|(_, last)| last.role == Role::Closed)
    }
}

/// A log that is open for writing.
pub struct OpenLog {
    pub node: u32,
    pub epoch: u64,
    pub next: u64,
    pub end: Position,
    pub manifest: Rc<Manifest>,
    pub batches: Vec<(u64, Rc<Batch>)>,
    /// What of it counts.
    pub held: Vec<Held>,
    pub cuts: Vec<Position>,
    /// It takes no more batches.
    pub is_dead: bool,
}

pub type SharedLog = Rc<RefCell<OpenLog>>;

pub enum Opened {
    Log(SharedLog),
    Closed,
    Failed,
}

async fn newest_manifest(io: &Io, node: u32) -> Rc<Manifest> {
    match io.request(Request::NewestManifest(node)).await {
        Reply::Manifest(manifest) => manifest,
        reply => panic!("{reply:?}"),
    }
}

/// Finds the end of a log.
pub async fn look(io: &Io, node: u32) -> Look {
    loop {
        let manifest = newest_manifest(io, node).await;
        let mut look = Look { manifest, batches: Vec::new() };
        loop {
            let from = look.next();
            let Reply::Batches(found) = io.request(Request::GetBatches { node, from }).await else { unreachable!() };
            if found.is_empty() {
                break;
            }
            look.batches.extend((from..).zip(found));
        }
        // Batches are deleted behind a manifest.
        if newest_manifest(io, node).await.number == look.manifest.number {
            return look;
        }
        io.count(Count::Order11ReaderBeganAgain);
    }
}

/// Puts the same until somebody knows what became of it. `None`: it never was known.
async fn put(io: &Io, request: impl Fn() -> Request) -> Option<Reply> {
    for _ in 0..3 {
        match io.request(request()).await {
            Reply::Unknown => {}
            reply => return Some(reply),
        }
    }
    None
}

async fn put_fence(io: &Io, node: u32, look: &Look, role: Role) -> Option<Rc<Batch>> {
    let (start, number) = (look.end(), look.next());
    let end = Position(start.0 + UNIT);
    let batch = Rc::new(Batch { id: io.unique(), epoch: look.epoch() + 1, role, start, end, records: Vec::new() });
    let put = put(io, || Request::PutBatch { node, number, batch: batch.clone() }).await;
    // It counts only if the log was not trimmed since it was looked at.
    let is_outdated = newest_manifest(io, node).await.number != look.manifest.number;
    (matches!(put, Some(Reply::Done)) && !is_outdated).then_some(batch)
}

pub async fn open(io: Io, node: u32) -> Opened {
    for _ in 0..8 {
        let mut look = look(&io, node).await;
        if look.is_closed() {
            return Opened::Closed;
        }
        if let Some(fence) = put_fence(&io, node, &look, Role::Fence).await {
            look.batches.push((look.next(), fence.clone()));
            let log = OpenLog {
                node,
                epoch: fence.epoch,
                next: look.next(),
                end: fence.end,
                manifest: look.manifest,
                batches: look.batches,
                held: Vec::new(),
                cuts: Vec::new(),
                is_dead: false,
            };
            return Opened::Log(Rc::new(RefCell::new(log)));
        }
    }
    Opened::Failed
}

pub async fn close(io: Io, node: u32) -> Option<Position> {
    for _ in 0..1 + io.below(4) {
        let look = look(&io, node).await;
        let closed = match look.batches.last() {
            Some((_, last)) if last.role == Role::Closed => {
                io.count(Count::Order7ClosedByTwo);
                Some(last.clone())
            }
            _ => put_fence(&io, node, &look, Role::Closed).await,
        };
        let Some(closed) = closed else { continue };
        if io.is_rough() && io.below(30) == 0 {
            // The log is closed, and nobody here knows it.
            io.count(Count::Order7HalfClosed);
            return None;
        }
        loop {
            let manifest = newest_manifest(&io, node).await;
            if manifest.epoch >= closed.epoch {
                return Some(closed.end);
            }
            let last = Manifest { id: io.unique(), number: manifest.number + 1, epoch: closed.epoch, ..(*manifest).clone() };
            let last = Rc::new(last);
            put(&io, || Request::PutManifest { node, manifest: last.clone() }).await?;
        }
    }
    None
}

/// Puts a batch at `start`, the end of the log or later. False: the log takes no more.
pub async fn commit(io: Io, log: SharedLog, start: Position, records: Vec<Record>) -> bool {
    let (node, number, batch) = {
        let log = log.borrow();
        if log.is_dead {
            return false;
        }
        let end = Position(start.0 + UNIT);
        let batch = Batch { id: io.unique(), epoch: log.epoch, role: Role::Ordinary, start, end, records };
        (log.node, log.next, Rc::new(batch))
    };
    let done = matches!(put(&io, || Request::PutBatch { node, number, batch: batch.clone() }).await, Some(Reply::Done));
    let log = &mut *log.borrow_mut();
    if done {
        (log.next, log.end) = (number + 1, batch.end);
        log.batches.push((number, batch));
    } else {
        log.is_dead = true;
    }
    done
}

/// Trims the log: its older batches become a piece. Sometimes merges the two newest pieces instead.
pub async fn trim(io: Io, log: SharedLog, merges: bool) {
    let (node, epoch, manifest, held, cuts) = {
        let log = log.borrow();
        (log.node, log.epoch, log.manifest.clone(), log.held.clone(), log.cuts.clone())
    };
    let counts = |partition: Partition, end: Position| held.iter().any(|held| held.partition == partition && end > held.since);
    let id = io.unique();
    let mut useless = (Vec::new(), Vec::new());
    let mut pieces = manifest.pieces.clone();
    let mut next = Manifest { id, number: manifest.number + 1, epoch, ..(*manifest).clone() };
    let piece = if merges {
        let Some(two) = pieces.len().checked_sub(2).map(|from| pieces.split_off(from)) else { return };
        let Reply::Pieces(Some(read)) = io.request(Request::GetPieces { node, ids: two.clone() }).await else { return };
        if cuts.contains(&read[1].from) {
            return;
        }
        let mut effects = BTreeMap::new();
        for piece in &read {
            let counting = piece.effects.iter().filter(|((partition, _), _)| counts(*partition, piece.to));
            counting.for_each(|(key, effect)| compose(effects.entry(*key).or_default(), *effect));
        }
        useless.1 = two;
        Piece { from: read[0].from, to: read[1].to, effects }
    } else {
        let log = log.borrow();
        let before_cut = |batch: &Batch| cuts.iter().all(|cut| *cut <= manifest.start || batch.start < *cut);
        let older = 1 + io.below(log.batches.len() as u64) as usize;
        let taken: Vec<_> = log.batches.iter().take(older).take_while(|(_, batch)| before_cut(batch)).cloned().collect();
        let Some((last, end)) = taken.last().map(|(number, batch)| (*number, batch.end)) else { return };
        let mut effects = BTreeMap::new();
        for (number, batch) in &taken {
            for record in &batch.records {
                if let Record::Change { partition, register, is_restated, delta, .. } = record
                    && counts(*partition, batch.end)
                {
                    compose(effects.entry((*partition, *register)).or_default(), (*is_restated, *delta));
                }
            }
            if batch.role == Role::Ordinary {
                useless.0.push(*number);
            }
        }
        (next.first, next.start) = (last + 1, end);
        Piece { from: manifest.start, to: end, effects }
    };
    pieces.push(id);
    next.pieces = pieces;
    let (piece, next) = (Rc::new(piece), Rc::new(next));
    let put_it = put(&io, || Request::PutPiece { node, id, piece: piece.clone() }).await;
    if !matches!(put_it, Some(Reply::Done)) {
        return;
    }
    let adopt = |manifest: &Rc<Manifest>| {
        let log = &mut *log.borrow_mut();
        log.batches.retain(|(number, _)| *number >= manifest.first);
        log.manifest = manifest.clone();
    };
    match put(&io, || Request::PutManifest { node, manifest: next.clone() }).await {
        Some(Reply::Done) => {
            adopt(&next);
            io.count(Count::Trimmed);
            io.request(Request::Delete { node, batches: useless.0, pieces: useless.1 }).await;
        }
        Some(_) => {
            let newest = newest_manifest(&io, node).await;
            if newest.epoch > epoch {
                log.borrow_mut().is_dead = true;
                io.count(Count::Order37MergeFenced);
            } else {
                adopt(&newest);
            }
        }
        None => {}
    }
}

fn compose(before: &mut (bool, u64), (is_restated, delta): (bool, u64)) {
    *before = if is_restated { (true, delta) } else { (before.0, before.1.wrapping_add(delta)) };
}

pub fn apply(values: &mut Values, register: u8, is_restated: bool, delta: u64) {
    let value = values.entry(register).or_default();
    *value = if is_restated { delta } else { value.wrapping_add(delta) };
}

/// Adds what a log says of a partition in its part of a lineage.
pub fn apply_log(values: &mut Values, partition: Partition, link: &Link, pieces: &[Rc<Piece>], batches: &[(u64, Rc<Batch>)]) {
    let upto = link.upto.unwrap_or(Position(u64::MAX));
    for piece in pieces.iter().filter(|piece| piece.to > link.since && piece.from < upto) {
        let of_it = piece.effects.iter().filter(|((of, _), _)| *of == partition);
        of_it.for_each(|((_, register), (is_restated, delta))| apply(values, *register, *is_restated, *delta));
    }
    for (_, batch) in batches.iter().filter(|(_, batch)| batch.end > link.since && batch.end <= upto) {
        for record in &batch.records {
            if let Record::Change { partition: of, register, is_restated, delta, .. } = record
                && *of == partition
            {
                apply(values, *register, *is_restated, *delta);
            }
        }
    }
}

/// Reads what a lineage says, from the bucket alone.
pub async fn replay(io: &Io, partition: Partition, lineage: &[Link]) -> Values {
    let mut values = Values::new();
    for link in lineage {
        loop {
            let look = look(io, link.node.0).await;
            let ids = look.manifest.pieces.clone();
            match io.request(Request::GetPieces { node: link.node.0, ids }).await {
                Reply::Pieces(Some(pieces)) => {
                    apply_log(&mut values, partition, link, &pieces, &look.batches);
                    break;
                }
                // A piece is gone: there is a newer manifest.
                _ => io.count(Count::Order11ReaderBeganAgain),
            }
        }
    }
    let nodes: BTreeSet<u32> = lineage.iter().map(|link| link.node.0).collect();
    if lineage.len() > 2 {
        io.count(Count::Order10LongLineage);
    }
    if nodes.len() < lineage.len() {
        io.count(Count::Order36CameBack);
    }
    values
}
