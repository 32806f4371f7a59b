//! The effects of batches that the log no longer has: sorted by key, one effect for each (`docs/format.md` section
//! 11.3).
//!
//! A *run* has the effects of all batches between two positions. It is made of *pieces*: objects of some MiB with the
//! next keys each. Two neighbouring runs are merged into one by composing the effects that they have on the same key.
//! Nobody looks a key up here: a view that has nothing yet reads all of it.

use super::ObjectLog;
use crate::log::damaged;
use crate::{Position, Record, Result};
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use std::fmt::Debug;

const MAGIC: &[u8; 8] = b"1FLDHIS1";
const VERSION: u32 = 1;
/// Bytes of a piece before its effects.
const HEADER_BYTES: usize = 28;
/// Bytes from which a piece is full.
const PIECE_BYTES: usize = 4 << 20;

/// A key and what happened to it.
pub type Effect = (Vec<u8>, Vec<u8>);

/// What the records mean, as far as a log in a bucket has to know it: it keeps their effects on views in less space.
pub trait Meaning: Send + Sync + Debug {
    /// Appends the effects of a batch. A key may come several times, in the order in which things happen to it. Errors,
    /// for people: a record is damaged or of an unknown kind.
    fn effects(&self, records: &[Record], out: &mut Vec<Effect>) -> std::result::Result<(), String>;
    /// Returns one effect that does what two do, one after the other.
    fn compose(&self, key: &[u8], older: &[u8], newer: &[u8]) -> std::result::Result<Vec<u8>, String>;
    /// Returns whether an effect leaves nothing if there was nothing before.
    fn is_nothing(&self, key: &[u8], effect: &[u8]) -> bool;
    /// Returns records that have these effects, for a batch of its own.
    fn records(&self, effects: &[Effect]) -> std::result::Result<Vec<Record>, String>;
}

/// An object with a part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The opening that put it, and its count there: its name.
    pub(super) epoch: u64,
    pub(super) count: u64,
    pub(super) length_bytes: u64,
    /// How many keys it has.
    pub(super) effects: u64,
    /// Of the whole object.
    pub(super) checksum: u64,
}

/// The effects of all batches between two positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) from: Position,
    pub(super) to: Position,
    /// By key, ascending.
    pub(super) pieces: Vec<Piece>,
}

impl Piece {
    pub(super) fn name(&self) -> String {
        format!("history/{:016x}-{:08x}", self.epoch, self.count)
    }
}

/// Returns the epoch in the name of a piece; `None`: no piece.
pub(super) fn epoch(name: &str) -> Option<u64> {
    let (epoch, _) = name.strip_prefix("history/")?.split_once('-')?;
    u64::from_str_radix(epoch, 16).ok()
}

impl Run {
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.length_bytes).sum()
    }
}

/// Sorts effects by key, and composes those of one key. Drops what leaves nothing if `is_oldest`.
pub(super) fn settle(meaning: &dyn Meaning, mut effects: Vec<Effect>, is_oldest: bool) -> std::result::Result<Vec<Effect>, String> {
    // Stable: what happens to one key stays in order.
    effects.sort_by(|a, b| a.0.cmp(&b.0));
    let mut settled: Vec<Effect> = Vec::new();
    for (key, effect) in effects {
        match settled.last_mut() {
            Some((last, older)) if *last == key => *older = meaning.compose(&key, older, &effect)?,
            _ => settled.push((key, effect)),
        }
    }
    if is_oldest {
        settled.retain(|(key, effect)| !meaning.is_nothing(key, effect));
    }
    Ok(settled)
}

fn encode(effects: &[Effect], store: &[u8; 16]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 8);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(store);
    put_varint(&mut out, effects.len() as u64);
    for (key, effect) in effects {
        put_bytes(&mut out, key);
        put_bytes(&mut out, effect);
    }
    out.extend_from_slice(&checksum(&out).to_le_bytes());
    out
}

fn decode(bytes: &[u8], store: &[u8; 16]) -> std::result::Result<Vec<Effect>, String> {
    let Some((content, sum)) = bytes.split_last_chunk::<8>() else { return Err("the object is too short".to_owned()) };
    if checksum(content) != u64::from_le_bytes(*sum) {
        return Err("its checksum is wrong".to_owned());
    }
    let said = |error: WireError| error.to_string();
    let mut reader = Reader::new(content);
    let (magic, version) = (reader.take(8).map_err(said)?, reader.u32().map_err(said)?);
    if magic != MAGIC || version != VERSION {
        return Err("this is not a piece of a history that this program can read".to_owned());
    }
    if reader.take(16).map_err(said)? != store {
        return Err("it belongs to another store".to_owned());
    }
    let count = reader.count("effects", 2).map_err(said)?;
    let mut effects: Vec<Effect> = Vec::with_capacity(count);
    for _ in 0..count {
        let (key, effect) = (reader.bytes().map_err(said)?.to_vec(), reader.bytes().map_err(said)?.to_vec());
        if effects.last().is_some_and(|(last, _)| *last >= key) {
            return Err("its keys do not ascend".to_owned());
        }
        effects.push((key, effect));
    }
    reader.end().map_err(said)?;
    Ok(effects)
}

/// Puts a run, piece by piece.
pub(super) struct Writing<'a> {
    log: &'a ObjectLog,
    from: Position,
    to: Position,
    effects: Vec<Effect>,
    bytes: usize,
    pieces: Vec<Piece>,
}

impl<'a> Writing<'a> {
    pub(super) fn new(log: &'a ObjectLog, from: Position, to: Position) -> Writing<'a> {
        Writing { log, from, to, effects: Vec::new(), bytes: HEADER_BYTES, pieces: Vec::new() }
    }

    /// Adds the effect on the next key.
    pub(super) fn add(&mut self, effect: Effect) -> Result<()> {
        self.bytes += effect.0.len() + effect.1.len() + 4;
        self.effects.push(effect);
        if self.bytes >= self.log.piece_bytes { self.put() } else { Ok(()) }
    }

    fn put(&mut self) -> Result<()> {
        let bytes = encode(&self.effects, &self.log.place.store);
        self.pieces.push(self.log.put_object(&bytes, self.effects.len() as u64)?);
        self.effects.clear();
        self.bytes = HEADER_BYTES;
        Ok(())
    }

    /// Puts the rest.
    pub(super) fn finish(mut self) -> Result<Run> {
        if !self.effects.is_empty() {
            self.put()?;
        }
        Ok(Run { from: self.from, to: self.to, pieces: self.pieces })
    }
}

/// Bytes from which a piece is full.
pub(super) const fn piece_bytes() -> usize {
    PIECE_BYTES
}

/// The effects of a run in order, one piece in memory at a time.
struct Reading<'a> {
    log: &'a ObjectLog,
    rest: std::slice::Iter<'a, Piece>,
    effects: std::vec::IntoIter<Effect>,
}

impl Reading<'_> {
    fn next(&mut self) -> Result<Option<Effect>> {
        loop {
            if let Some(effect) = self.effects.next() {
                return Ok(Some(effect));
            }
            match self.rest.next() {
                Some(piece) => self.effects = self.log.read_piece(piece)?.into_iter(),
                None => return Ok(None),
            }
        }
    }
}

impl ObjectLog {
    /// Reads a piece of a run.
    fn read_piece(&self, piece: &Piece) -> Result<Vec<Effect>> {
        let bytes = self.read_object(piece)?;
        decode(&bytes, &self.place.store).map_err(|why| damaged(self.place.bucket.describe(&piece.name()), why))
    }

    /// Merges two neighbouring runs.
    pub(super) fn merge<'a>(&'a self, older: &'a Run, newer: &'a Run, is_oldest: bool) -> Result<Run> {
        let reading = |run: &'a Run| Reading { log: self, rest: run.pieces.iter(), effects: Vec::new().into_iter() };
        let (mut a, mut b) = (reading(older), reading(newer));
        let mut writing = Writing::new(self, older.from, newer.to);
        let refused = |why: String| damaged(self.place.bucket.describe("history"), why);
        let (mut left, mut right) = (a.next()?, b.next()?);
        loop {
            let effect = match (left.take(), right.take()) {
                (None, None) => return writing.finish(),
                (Some(first), Some(second)) if first.0 == second.0 => {
                    let composed = self.meaning.compose(&first.0, &first.1, &second.1).map_err(refused)?;
                    (left, right) = (a.next()?, b.next()?);
                    (first.0, composed)
                }
                (Some(first), second) if second.as_ref().is_none_or(|second| first.0 < second.0) => {
                    (left, right) = (a.next()?, second);
                    first
                }
                (first, Some(second)) => {
                    (left, right) = (first, b.next()?);
                    second
                }
                (Some(_), None) => unreachable!("a key is smaller than none"),
            };
            if !(is_oldest && self.meaning.is_nothing(&effect.0, &effect.1)) {
                writing.add(effect)?;
            }
        }
    }

    /// Passes the history on as batches.
    pub(super) fn visit_history(&self, runs: &[Run], visit: &mut crate::Visit<'_>) -> Result<()> {
        for run in runs {
            let steps = run.pieces.len() as u64;
            if (run.to.0 - run.from.0) / crate::ALIGNMENT_BYTES < steps {
                return Err(damaged(self.place.bucket.describe("history"), "a run has more pieces than its batches had positions"));
            }
            let (mut start, mut goes_on) = (run.from, true);
            self.each_ahead(&run.pieces, |log, piece: &Piece| log.read_piece(piece), &mut |number, effects: Vec<Effect>| {
                let is_last = number as u64 + 1 == steps;
                let end = if is_last { run.to } else { Position(start.0 + crate::ALIGNMENT_BYTES) };
                let records = self.meaning.records(&effects).map_err(|why| damaged(self.place.bucket.describe("history"), why))?;
                let flow = visit(start, end, &records);
                start = end;
                goes_on = flow.is_continue();
                Ok(goes_on)
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_read_as_written_and_every_flipped_bit_is_found() {
        let effects = vec![(vec![1, 2], vec![3]), (vec![1, 3], vec![])];
        let mut bytes = encode(&effects, &[5; 16]);
        assert_eq!(decode(&bytes, &[5; 16]), Ok(effects));
        assert!(decode(&bytes, &[6; 16]).is_err());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes, &[5; 16]).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
