//! The effects of batches that the log no longer has: sorted by key, one effect for each (`docs/format.md` section
//! 11.3).
//!
//! A *run* has the effects of all batches between two positions. It is made of *pieces*: objects of some MiB with the
//! next keys each. Two neighbouring runs are merged into one by composing the effects that they have on the same key.
//! Nobody looks a key up here: a view that has nothing yet reads all of it.

use super::ObjectLog;
use super::holdings::Holdings;
use super::keyed_effects::KeyedEffects;
use crate::log::{Log, damaged};
use crate::{Position, Record, Result};
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use std::cmp::Ordering;
use std::fmt::Debug;
use std::ops::ControlFlow;

const MAGIC: &[u8; 8] = b"1FLDHIS1";
const VERSION: u32 = 1;
/// Bytes of a piece before its effects.
const HEADER_BYTES: usize = 28;
/// Bytes from which a piece is full.
const PIECE_BYTES: usize = 4 << 20;

/// Pieces that are fetched at the same time.
const PIECES_AT_ONCE: usize = 4;

/// What the records mean, as far as a log in a bucket has to know it: it keeps their effects on views in less space.
pub trait Meaning: Send + Sync + Debug {
    /// Appends the effects of a batch. A key may come several times, in the order in which things happen to it. Errors,
    /// for people: a record is damaged or of an unknown kind.
    fn effects(&self, records: &[Record], out: &mut KeyedEffects) -> std::result::Result<(), String>;
    /// Returns one effect that does what two do, one after the other.
    fn compose(&self, key: &[u8], older: &[u8], newer: &[u8]) -> std::result::Result<Vec<u8>, String>;
    /// Returns whether an effect leaves nothing if there was nothing before.
    fn is_nothing(&self, key: &[u8], effect: &[u8]) -> bool;
    /// Returns records that have these effects, for a batch of its own.
    fn records(&self, effects: &KeyedEffects) -> std::result::Result<Vec<Record>, String>;
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
    pub(super) parts: Vec<Part>,
}

/// A piece of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) piece: Piece,
    /// Its first key.
    pub(super) first: Vec<u8>,
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
        self.pieces().map(|piece| piece.length_bytes).sum()
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.parts.iter().map(|part| &part.piece)
    }

    /// Returns the pieces in which something counts.
    fn counting(&self, holdings: &Holdings) -> Vec<Piece> {
        let behind = self.parts.iter().skip(1).map(|next| Some(&next.first[..])).chain([None]);
        let counts = |(part, behind): (&Part, Option<&[u8]>)| holdings.count_between(&part.first, behind, self.to).then_some(part.piece);
        self.parts.iter().zip(behind).filter_map(counts).collect()
    }
}

/// `effects`: so many keys, each with its effect behind it.
fn encode(count: u64, effects: &[u8], store: &[u8; 16]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + effects.len() + 20);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(store);
    put_varint(&mut out, count);
    out.extend_from_slice(effects);
    out.extend_from_slice(&checksum(&out).to_le_bytes());
    out
}

fn decode(bytes: Vec<u8>, store: &[u8; 16]) -> std::result::Result<KeyedEffects, String> {
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
    let (start, end) = (reader.position(), content.len());
    KeyedEffects::decode(bytes, start, end, count)
}

/// Puts a run, piece by piece.
pub(super) struct Writing<'a> {
    log: &'a ObjectLog,
    from: Position,
    to: Position,
    /// Whether nothing comes before it: then effects are dropped that leave nothing.
    is_oldest: bool,
    /// What the next piece has.
    effects: Vec<u8>,
    first: Vec<u8>,
    count: u64,
    parts: Vec<Part>,
}

impl<'a> Writing<'a> {
    pub(super) fn new(log: &'a ObjectLog, from: Position, to: Position, is_oldest: bool) -> Writing<'a> {
        Writing { log, from, to, is_oldest, effects: Vec::new(), first: Vec::new(), count: 0, parts: Vec::new() }
    }

    /// Adds the effect on the next key. It counts.
    fn add(&mut self, key: &[u8], effect: &[u8], holdings: &Holdings) -> Result<()> {
        // Another log may have something before it that the effect takes away.
        let is_first = || holdings.counting(key, self.to).is_some_and(|holding| holding.is_first);
        if self.is_oldest && self.log.meaning.is_nothing(key, effect) && is_first() {
            return Ok(());
        }
        if self.count == 0 {
            self.first = key.to_vec();
        }
        put_bytes(&mut self.effects, key);
        put_bytes(&mut self.effects, effect);
        self.count += 1;
        if self.effects.len() + HEADER_BYTES >= self.log.piece_bytes { self.put() } else { Ok(()) }
    }

    /// Adds effects that count, on keys after those that were added. Composes those of one key.
    pub(super) fn add_unsorted(&mut self, mut effects: KeyedEffects, holdings: &Holdings) -> Result<()> {
        effects.sort();
        let mut settled: Option<(&[u8], Vec<u8>)> = None;
        for (key, effect) in effects.iter() {
            settled = Some(match settled.take() {
                Some((last, older)) if last == key => (key, self.log.compose(key, &older, effect)?),
                last => {
                    if let Some((last, older)) = last {
                        self.add(last, &older, holdings)?;
                    }
                    (key, effect.to_vec())
                }
            });
        }
        settled.map_or(Ok(()), |(key, effect)| self.add(key, &effect, holdings))
    }

    fn put(&mut self) -> Result<()> {
        let bytes = encode(self.count, &self.effects, &self.log.place.store);
        let piece = self.log.put_object(&bytes, self.count)?;
        self.parts.push(Part { piece, first: std::mem::take(&mut self.first) });
        self.effects.clear();
        self.count = 0;
        Ok(())
    }

    /// Puts the rest.
    pub(super) fn finish(mut self) -> Result<Run> {
        if !self.effects.is_empty() {
            self.put()?;
        }
        Ok(Run { from: self.from, to: self.to, parts: self.parts })
    }
}

/// Bytes from which a piece is full.
pub(super) const fn piece_bytes() -> usize {
    PIECE_BYTES
}

/// The effects of a run that count, in order, one piece in memory at a time.
struct Reading<'a> {
    log: &'a ObjectLog,
    holdings: &'a Holdings,
    end: Position,
    rest: std::vec::IntoIter<Piece>,
    effects: KeyedEffects,
    /// How many of these were taken.
    taken: usize,
}

impl<'a> Reading<'a> {
    fn new(log: &'a ObjectLog, run: &Run, holdings: &'a Holdings) -> Reading<'a> {
        let rest = run.counting(holdings).into_iter();
        Reading { log, holdings, end: run.to, rest, effects: KeyedEffects::default(), taken: 0 }
    }

    /// Reads the next piece if it is time. Then [`first`](Reading::first) returns `None` only at the end.
    fn fill(&mut self) -> Result<()> {
        while self.taken == self.effects.len()
            && let Some(piece) = self.rest.next()
        {
            (self.effects, self.taken) = (self.log.read_piece(&piece, self.holdings, self.end)?, 0);
        }
        Ok(())
    }

    fn first(&self) -> Option<(&[u8], &[u8])> {
        self.effects.get(self.taken)
    }
}

impl ObjectLog {
    /// Reads what counts in a piece of a run that ends at `end`.
    fn read_piece(&self, piece: &Piece, holdings: &Holdings, end: Position) -> Result<KeyedEffects> {
        let bytes = self.read_object(piece)?;
        let mut effects = decode(bytes, &self.place.store).map_err(|why| damaged(self.place.bucket.describe(&piece.name()), why))?;
        effects.retain(holdings, end);
        Ok(effects)
    }

    fn compose(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Result<Vec<u8>> {
        self.meaning.compose(key, older, newer).map_err(|why| damaged(self.place.bucket.describe("history"), why))
    }

    /// Merges two neighbouring runs. What does not count is dropped.
    pub(super) fn merge(&self, older: &Run, newer: &Run, is_oldest: bool, holdings: &Holdings) -> Result<Run> {
        let (mut a, mut b) = (Reading::new(self, older, holdings), Reading::new(self, newer, holdings));
        let mut writing = Writing::new(self, older.from, newer.to, is_oldest);
        loop {
            a.fill()?;
            b.fill()?;
            let order = match (a.first(), b.first()) {
                (None, None) => return writing.finish(),
                (Some((key, effect)), None) => {
                    writing.add(key, effect, holdings)?;
                    Ordering::Less
                }
                (None, Some((key, effect))) => {
                    writing.add(key, effect, holdings)?;
                    Ordering::Greater
                }
                (Some((key, older)), Some((other, newer))) => {
                    let order = key.cmp(other);
                    match order {
                        Ordering::Less => writing.add(key, older, holdings)?,
                        Ordering::Equal => writing.add(key, &self.compose(key, older, newer)?, holdings)?,
                        Ordering::Greater => writing.add(other, newer, holdings)?,
                    }
                    order
                }
            };
            a.taken += usize::from(order.is_le());
            b.taken += usize::from(order.is_ge());
        }
    }

    /// Passes what counts in the history on as batches.
    pub(super) fn visit_history(&self, runs: &[Run], holdings: &Holdings, visit: &mut crate::Visit<'_>) -> Result<()> {
        for run in runs {
            let pieces = run.counting(holdings);
            let steps = pieces.len() as u64;
            if (run.to.0 - run.from.0) / crate::ALIGNMENT_BYTES < steps {
                return Err(damaged(self.place.bucket.describe("history"), "a run has more pieces than its batches had positions"));
            }
            let (mut start, mut goes_on) = (run.from, true);
            if pieces.is_empty() {
                // Whoever applies it must get to its end all the same.
                goes_on = visit(run.from, run.to, &[]).is_continue();
            }
            self.each_ahead(
                PIECES_AT_ONCE,
                &pieces,
                |log, piece: &Piece| log.read_piece(piece, holdings, run.to),
                &mut |number, effects: KeyedEffects| {
                    let is_last = number as u64 + 1 == steps;
                    let end = if is_last { run.to } else { Position(start.0 + crate::ALIGNMENT_BYTES) };
                    let records = self.meaning.records(&effects).map_err(|why| damaged(self.place.bucket.describe("history"), why))?;
                    let flow = visit(start, end, &records);
                    start = end;
                    goes_on = flow.is_continue();
                    Ok(goes_on)
                },
            )?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Passes on what this log says of some keys in batches that start before `upto`, in order. A node that takes them
    /// over begins with that. Errors: the log was trimmed meanwhile. Then open it again, and begin again.
    pub fn replay_holdings(&self, holdings: &Holdings, upto: Position, visit: &mut dyn FnMut(&[Record]) -> ControlFlow<()>) -> Result<()> {
        let manifest = self.state.lock().manifest;
        let read = self.visit_holdings(holdings, upto, visit);
        self.unless_replaced(&manifest, read, "log")
    }

    fn visit_holdings(&self, holdings: &Holdings, upto: Position, visit: &mut dyn FnMut(&[Record]) -> ControlFlow<()>) -> Result<()> {
        // A run of which some is behind `upto` has nothing of these keys there.
        let runs: Vec<Run> = self.runs()?.runs.into_iter().filter(|run| run.from < upto).collect();
        let mut goes_on = true;
        self.visit_history(&runs, holdings, &mut |_, _, records| {
            let flow = visit(records);
            goes_on = flow.is_continue();
            flow
        })?;
        if !goes_on {
            return Ok(());
        }
        let mut failed = None;
        self.replay(self.start(), &mut |start, end, records| {
            if start >= upto {
                return ControlFlow::Break(());
            }
            let mut effects = KeyedEffects::default();
            let counting = self.meaning.effects(records, &mut effects).and_then(|()| {
                effects.retain(holdings, end);
                self.meaning.records(&effects)
            });
            match counting {
                Ok(records) => visit(&records),
                Err(why) => {
                    failed = Some(damaged(self.place.bucket.describe("log"), why));
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_read_as_written_and_every_flipped_bit_is_found() {
        let mut bytes = encode(2, &[2, 1, 2, 1, 3, 2, 1, 3, 0], &[5; 16]);
        let read = decode(bytes.clone(), &[5; 16]).unwrap();
        let found: Vec<_> = read.iter().map(|(key, effect)| (key.to_vec(), effect.to_vec())).collect();
        assert_eq!(found, [(vec![1, 2], vec![3]), (vec![1, 3], vec![])]);
        assert!(decode(bytes.clone(), &[6; 16]).is_err());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(bytes.clone(), &[5; 16]).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
