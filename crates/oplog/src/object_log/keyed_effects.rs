//! Keys and what happened to them, many in one buffer: a trim has hundreds of thousands of some 40 bytes in memory.

use super::holdings::Holdings;
use crate::Position;
use onefold_ground::wire::{Reader, WireError, put_bytes};

/// Keys with an effect on each, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct KeyedEffects {
    /// Keys and effects as a piece of a history has them, and what else its object has.
    bytes: Vec<u8>,
    /// Where each key begins.
    starts: Vec<usize>,
}

impl KeyedEffects {
    /// Adds an effect on a key.
    pub fn push(&mut self, key: &[u8], effect: &[u8]) {
        self.starts.push(self.bytes.len());
        put_bytes(&mut self.bytes, key);
        put_bytes(&mut self.bytes, effect);
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns each key and its effect.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.starts.iter().map(|start| self.at(*start))
    }

    /// Returns a key and its effect.
    pub(super) fn get(&self, number: usize) -> Option<(&[u8], &[u8])> {
        self.starts.get(number).map(|start| self.at(*start))
    }

    fn at(&self, start: usize) -> (&[u8], &[u8]) {
        let mut reader = Reader::new(&self.bytes[start..]);
        let mut next = || reader.bytes().expect("what is in the buffer was put there or checked");
        (next(), next())
    }

    /// Keeps those that count if they are of a part of the log that ends at `end`.
    pub(super) fn retain(&mut self, holdings: &Holdings, end: Position) {
        self.retain_from(0, holdings, end);
    }

    /// Does the same with those from the one with this number on.
    pub(super) fn retain_from(&mut self, number: usize, holdings: &Holdings, end: Position) {
        if holdings.are_all() {
            return;
        }
        let mut rest = self.starts.split_off(number);
        rest.retain(|start| holdings.counting(self.at(*start).0, end).is_some());
        self.starts.append(&mut rest);
    }

    /// Sorts them by key. Those of one key stay in order.
    pub(super) fn sort(&mut self) {
        let mut starts = std::mem::take(&mut self.starts);
        starts.sort_by_key(|start| self.at(*start).0);
        self.starts = starts;
    }

    /// Takes over the bytes of a piece that has `count` of them from `start` to `end`.
    pub(super) fn decode(bytes: Vec<u8>, start: usize, end: usize, count: usize) -> Result<KeyedEffects, String> {
        let said = |error: WireError| error.to_string();
        let mut reader = Reader::new(&bytes[start..end]);
        let mut starts = Vec::with_capacity(count);
        let mut last = None;
        for _ in 0..count {
            starts.push(start + reader.position());
            let key = reader.bytes().map_err(said)?;
            reader.bytes().map_err(said)?;
            if last.is_some_and(|last| last >= key) {
                return Err("its keys do not ascend".to_owned());
            }
            last = Some(key);
        }
        reader.end().map_err(said)?;
        Ok(KeyedEffects { bytes, starts })
    }
}
