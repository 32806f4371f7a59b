//! What making the chunk index anew leaves for the next opening for writing, as it cannot write objects itself: which chunks are counted and nowhere
//! ([`crate::quarantine`]), and the figures of the whole store, which a log with a hole has of another time.

use crate::dead::{self, DeadSlots};
use crate::quarantine::{Quarantined, now_ns};
use crate::statistics::Totals;
use crate::{Change, Engine, Result, Transaction};
use onefold_ground::{Ground, checksum, parent, read_file, replace_file};
use onefold_oplog::Position;
use onefold_storage::Address;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// There when the chunk index was made anew and no opening for writing came since.
pub(crate) const RECOUNTED: &str = "index/recounted";
/// The file has one line of numbers and one with its checksum.
const LIMIT_BYTES: u64 = 4096;

/// What the containers hold that can be read, as of an end of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recounted {
    /// Where the log ended.
    pub(crate) end: Position,
    /// Bytes of all committed frames before compression.
    pub(crate) raw_bytes: u64,
    /// The same after compression.
    pub(crate) stored_bytes: u64,
}

impl Recounted {
    /// Writes the file; durable on return.
    pub(crate) fn write(&self, ground: &dyn Ground) -> Result<()> {
        let line = format!("{:016x} {:016x} {:016x}\n", self.end.0, self.raw_bytes, self.stored_bytes);
        Ok(replace_file(ground, RECOUNTED, format!("{line}{:016x}\n", checksum(line.as_bytes())).as_bytes())?)
    }

    /// Reads the file; `None`: what it says cannot be read. That it is there says the rest.
    fn read(ground: &dyn Ground) -> Option<Recounted> {
        let bytes = read_file(ground, RECOUNTED, LIMIT_BYTES).ok()?;
        let (line, sum) = std::str::from_utf8(&bytes).ok()?.split_once('\n')?;
        if sum != format!("{:016x}\n", checksum(format!("{line}\n").as_bytes())) {
            return None;
        }
        let mut numbers = line.split(' ').map(|number| u64::from_str_radix(number, 16).ok());
        let mut next = || numbers.next().flatten();
        Some(Recounted { end: Position(next()?), raw_bytes: next()?, stored_bytes: next()? })
    }
}

impl Engine {
    /// Notes what making the chunk index anew found, if it was: the first thing that an opening for writing does.
    pub(crate) fn note_recount(&self) -> Result<()> {
        if !self.quarantine.is_recounted.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut known = HashMap::new();
        self.for_each_quarantined(&mut |chunk| {
            known.insert(chunk.fingerprint, chunk);
        })?;
        let mut stored_chunks = 0;
        for partition in 0..self.index.partitions() {
            self.index.for_each(partition, &mut |fingerprint, entry| {
                stored_chunks += u64::from(entry.address != 0);
                if entry.address == 0 && entry.count > 0 {
                    let nowhere = Address::from_bits(0);
                    let (fingerprint, since_ns) = (*fingerprint, now_ns());
                    let lost = Quarantined {
                        fingerprint,
                        address: nowhere,
                        kind: None,
                        length_bytes: 0,
                        is_counted: false,
                        is_unreachable: false,
                        since_ns,
                    };
                    known.entry(fingerprint).or_insert(lost);
                }
                Ok(())
            })?;
        }
        self.quarantine.set_used_if(!known.is_empty());
        let mut changes: Vec<Change> = known.values().map(|chunk| self.quarantine.put(chunk)).collect();
        changes.push(self.recounted_totals(stored_chunks)?.change());
        for batch in changes.chunks(self.lost_in_a_batch()) {
            self.submit(Transaction { changes: batch.to_vec(), deltas: Vec::new() })?;
            self.flush()?;
        }
        self.ground.remove(RECOUNTED)?;
        self.ground.sync_directory(parent(RECOUNTED))?;
        self.quarantine.is_recounted.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Sets the figures of the store to what is there.
    fn recounted_totals(&self, chunks: u64) -> Result<Totals> {
        let mut dead_bytes = 0;
        self.for_each_object(dead::PREFIX, &mut |_, value| dead_bytes += DeadSlots::decode(value).map_or(0, |dead| dead.bytes))?;
        let mut totals = self.totals.lock();
        // After an opening that had no room to note it, the figures of frames went on from there.
        if let Some(found) = Recounted::read(&*self.ground).filter(|found| found.end == self.opened_at) {
            (totals.raw_bytes, totals.stored_bytes) = (found.raw_bytes, found.stored_bytes);
        }
        (totals.chunks, totals.dead_bytes) = (chunks, dead_bytes);
        Ok(*totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::SimulatedGround;

    #[test]
    fn what_was_found_is_read_as_written_and_a_damaged_file_says_nothing() {
        let ground = SimulatedGround::new(1);
        ground.create_directory("index").unwrap();
        let found = Recounted { end: Position(512), raw_bytes: 7 << 40, stored_bytes: 3 };
        found.write(&ground).unwrap();
        assert_eq!(Recounted::read(&ground), Some(found));
        for at in 0..ground.open(RECOUNTED, onefold_ground::Access::Read).unwrap().len().unwrap() {
            let damaged = ground.snapshot(onefold_ground::CrashPolicy::KeepAll);
            damaged.corrupt(RECOUNTED, at, 1).unwrap();
            assert_eq!(Recounted::read(&damaged), None, "byte {at}");
        }
    }
}
