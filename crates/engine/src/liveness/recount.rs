//! What a rebuild of the chunk index leaves for the next opening for writing, because a rebuild cannot write objects:
//! which chunks are counted and nowhere ([`crate::lost::quarantine`]), and the figures of the whole store. A log with a
//! hole has those figures as of another time.

use crate::liveness::dead::{self, DeadSlots};
use crate::lost::quarantine::{Quarantined, now_ns};
use crate::statistics::Totals;
use crate::{Change, Engine, Result, Transaction};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, checksum, parent, read_file, replace_file};
use onefold_oplog::Position;
use onefold_storage::Address;

/// This file exists if the chunk index was rebuilt and the store was not opened for writing since.
pub(crate) const RECOUNTED: &str = "index/recounted";
/// The file has one line of numbers and one with its checksum.
const LIMIT_BYTES: u64 = 4096;

/// What the readable containers hold, as of an end of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recounted {
    /// Where the log ended.
    pub(crate) end: Position,
    /// Bytes of all committed frames before compression.
    pub(crate) raw_bytes: u64,
    /// The same after compression.
    pub(crate) stored_bytes: u64,
    /// Chunks that are not dead.
    pub(crate) chunks: u64,
}

impl Recounted {
    /// Writes the file; durable on return.
    pub(crate) fn write(&self, ground: &dyn Ground) -> Result<()> {
        let line = format!("{:016x} {:016x} {:016x} {:016x}\n", self.end.0, self.raw_bytes, self.stored_bytes, self.chunks);
        Ok(replace_file(ground, RECOUNTED, format!("{line}{:016x}\n", checksum(line.as_bytes())).as_bytes())?)
    }

    /// Reads the file. `None`: its content cannot be read. Its existence says the rest.
    fn read(ground: &dyn Ground) -> Option<Recounted> {
        let bytes = read_file(ground, RECOUNTED, LIMIT_BYTES).ok()?;
        let (line, sum) = std::str::from_utf8(&bytes).ok()?.split_once('\n')?;
        if sum != format!("{:016x}\n", checksum(format!("{line}\n").as_bytes())) {
            return None;
        }
        let mut numbers = line.split(' ').map(|number| u64::from_str_radix(number, 16).ok());
        let mut next = || numbers.next().flatten();
        // Earlier versions wrote three numbers.
        Some(Recounted { end: Position(next()?), raw_bytes: next()?, stored_bytes: next()?, chunks: next().unwrap_or(0) })
    }
}

impl Engine {
    /// Notes what a rebuild of the chunk index found, if there was one. An opening for writing does this first. If it
    /// is cut short, the next opening does it again.
    pub(crate) fn note_recount(&self) -> Result<()> {
        if !self.quarantine.is_recounted() {
            return Ok(());
        }
        // First the figures, as they belong to the current end of the log. Once they are in the log, it may grow.
        self.note_recounted_frames()?;
        let mut is_used = false;
        self.for_each_quarantined_batch(self.lost_in_a_batch(), &mut |batch| {
            is_used = true;
            // Until this is noted, they are read as not counted.
            self.note_changes(batch.iter().map(|chunk| self.quarantine.put(chunk)).collect())
        })?;
        // From now on the quarantine is asked.
        self.quarantine.set_used();
        let index = self.lookup.index();
        let recounted = Recounted::read(&*self.ground).filter(|_| index.is_none());
        let mut stored_chunks = recounted.map_or(0, |found| found.chunks);
        for partition in index.into_iter().flat_map(|index| index.partitions()) {
            let mut next = Some(0);
            while let Some(from) = next {
                let nowhere;
                (nowhere, next) = self.counted_and_nowhere(partition, from, &mut stored_chunks)?;
                let mut changes = Vec::with_capacity(nowhere.len());
                for fingerprint in nowhere {
                    if self.quarantine.get(&fingerprint, Address::from_bits(0))?.is_none() {
                        changes.push(self.quarantine.put(&nothing_known_of(fingerprint)));
                    }
                    is_used = true;
                }
                self.note_changes(changes)?;
            }
        }
        self.note_changes(vec![self.recounted_totals(stored_chunks)?.change(&self.objects)])?;
        self.ground.remove(RECOUNTED)?;
        self.ground.sync_directory(parent(RECOUNTED))?;
        self.quarantine.recount_noted(is_used);
        Ok(())
    }

    /// Returns some chunks of a partition that are counted and nowhere, starting at a prefix, and where to continue.
    /// Counts the chunks on its way that are somewhere.
    fn counted_and_nowhere(&self, partition: u32, from: u64, stored_chunks: &mut u64) -> Result<(Vec<Fingerprint>, Option<u64>)> {
        let (mut found, mut last, mut next): (Vec<Fingerprint>, _, _) = (Vec::new(), from, None);
        let limit = self.lost_in_a_batch();
        let Some(index) = self.lookup.index() else { return Ok((found, next)) };
        index.for_each_from(partition, from, &mut |fingerprint, entry| {
            // Keeps chunks with the same prefix together, so that the next call knows where to begin.
            if found.len() >= limit && last != fingerprint.prefix() {
                next = Some(fingerprint.prefix());
                return false;
            }
            last = fingerprint.prefix();
            *stored_chunks += u64::from(entry.address != 0);
            if entry.address == 0 && entry.count > 0 {
                found.push(*fingerprint);
            }
            true
        })?;
        Ok((found, next))
    }

    fn note_changes(&self, changes: Vec<Change>) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.submit(Transaction { changes, references: Vec::new() })?;
        self.flush()
    }

    /// Sets the figures of frames to what the rebuild found. If an earlier opening noted them and then stopped, they
    /// have grown from there.
    fn note_recounted_frames(&self) -> Result<()> {
        let Some(found) = Recounted::read(&*self.ground).filter(|found| found.end == self.opened_at) else { return Ok(()) };
        let change = {
            let mut totals = self.totals.lock();
            (totals.raw_bytes, totals.stored_bytes) = (found.raw_bytes, found.stored_bytes);
            totals.change(&self.objects)
        };
        self.note_changes(vec![change])
    }

    /// Returns the other figures of the store, computed from what is there.
    fn recounted_totals(&self, chunks: u64) -> Result<Totals> {
        let mut dead_bytes = 0;
        self.for_each_object(dead::PREFIX, &mut |_, value| dead_bytes += DeadSlots::decode(value).map_or(0, |dead| dead.bytes))?;
        let mut totals = self.totals.lock();
        (totals.chunks, totals.dead_bytes) = (chunks, dead_bytes);
        Ok(*totals)
    }
}

fn nothing_known_of(fingerprint: Fingerprint) -> Quarantined {
    Quarantined {
        fingerprint,
        address: Address::from_bits(0),
        kind: None,
        length_bytes: 0,
        is_counted: false,
        is_unreachable: false,
        since_ns: now_ns(),
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
        let found = Recounted { end: Position(512), raw_bytes: 7 << 40, stored_bytes: 3, chunks: 9 };
        found.write(&ground).unwrap();
        assert_eq!(Recounted::read(&ground), Some(found));
        for at in 0..ground.open(RECOUNTED, onefold_ground::Access::Read).unwrap().len().unwrap() {
            let damaged = ground.snapshot(onefold_ground::CrashPolicy::KeepAll);
            damaged.corrupt(RECOUNTED, at, 1).unwrap();
            assert_eq!(Recounted::read(&damaged), None, "byte {at}");
        }
    }
}
