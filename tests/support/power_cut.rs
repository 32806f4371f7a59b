//! What a power cut leaves of a device that recorded what happened to it.
//!
//! Everything before the last flush is there. Of later writes each sector holds either what it held then, or any of
//! what was written to it since: so writes are lost, torn and reordered in every way that a device with a volatile
//! cache is free to choose.

use crate::recording::Entry;
use crate::{Random, RecordingDevice};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What a device writes whole or not at all, bytes.
const SECTOR_BYTES: u64 = 512;
/// Pieces of the image that are either holes or written, bytes.
const PIECE_BYTES: usize = 64 << 10;
const PIECE: &[u8] = &[0; PIECE_BYTES];

/// What of the writes since the last flush survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// None.
    None,
    /// All.
    All,
    /// The first ones, whole.
    First,
    /// Any, whole.
    Some,
    /// Any sectors of any.
    Torn,
    /// All but sectors of the last few.
    TornTail,
}

impl Survivors {
    /// One of them.
    pub fn choose(random: &mut Random) -> Survivors {
        use Survivors::{All, First, None, Some, Torn, TornTail};
        [None, All, First, Some, Torn, Torn, Torn, TornTail][random.below(8) as usize]
    }
}

/// The recording of a device, cut at moments that do not go back.
#[derive(Debug)]
pub struct PowerCuts {
    entries: Vec<Entry>,
    /// What is durable after the first `durable_entries`.
    durable: Vec<u8>,
    durable_entries: usize,
    /// What is written whole or not at all: the sector, or what the file system needs.
    unit_bytes: u64,
}

impl PowerCuts {
    /// Takes what the device has recorded. A file system that is not made for sectors of 512 bytes says what it needs
    /// to be written whole.
    pub fn of(device: &RecordingDevice, unit_bytes: u64) -> PowerCuts {
        assert!(unit_bytes.is_multiple_of(SECTOR_BYTES));
        PowerCuts { entries: device.entries(), durable: vec![0; device.size() as usize], durable_entries: 0, unit_bytes }
    }

    /// How many entries the last flush before `moment` covers, with itself.
    fn flushed(&self, moment: usize) -> usize {
        self.entries[..moment].iter().rposition(|entry| matches!(entry, Entry::Flushed)).map_or(0, |flush| flush + 1)
    }

    /// How many writes are not durable at `moment`.
    pub fn volatile(&self, moment: usize) -> usize {
        moment - self.flushed(moment)
    }

    /// Writes into `image` (a new file) what the device holds after a power cut at `moment`.
    pub fn write(&mut self, moment: usize, survivors: Survivors, random: &mut Random, image: &Path) -> io::Result<()> {
        let flushed = self.flushed(moment);
        while self.durable_entries < flushed {
            apply(&self.entries[self.durable_entries], &mut self.durable);
            self.durable_entries += 1;
        }
        let file = File::create_new(image)?;
        file.set_len(self.durable.len() as u64)?;
        for (number, piece) in self.durable.chunks(PIECE_BYTES).enumerate() {
            if piece != &PIECE[..piece.len()] {
                file.write_all_at(piece, (number * PIECE_BYTES) as u64)?;
            }
        }
        let volatile = &self.entries[flushed..moment];
        let first = random.below(volatile.len() as u64 + 1) as usize;
        let tail = volatile.len().saturating_sub(1 + random.below(4) as usize);
        for (number, entry) in volatile.iter().enumerate() {
            let is_durable = matches!(entry, Entry::Written { is_durable: true, .. });
            let mut survives = |_| match survivors {
                _ if is_durable => true,
                Survivors::None => false,
                Survivors::All => true,
                Survivors::First => number < first,
                Survivors::TornTail if number < tail => true,
                Survivors::Some | Survivors::Torn | Survivors::TornTail => random.below(2) == 0,
            };
            let is_torn = matches!(survivors, Survivors::Torn) || (survivors == Survivors::TornTail && number >= tail);
            if is_torn {
                units(entry, self.unit_bytes)
                    .into_iter()
                    .filter(|range| survives(*range))
                    .try_for_each(|range| put(entry, range, &file))?;
            } else if survives((0, 0)) {
                put(entry, whole(entry), &file)?;
            }
        }
        Ok(())
    }
}

/// Where an entry writes, and how far.
fn whole(entry: &Entry) -> (u64, u64) {
    match entry {
        Entry::Written { offset, bytes, .. } => (*offset, offset + bytes.len() as u64),
        Entry::Trimmed { offset, length } => (*offset, offset + length),
        Entry::Flushed => (0, 0),
    }
}

/// The ranges of an entry that are written whole or not at all.
fn units(entry: &Entry, unit_bytes: u64) -> Vec<(u64, u64)> {
    let (mut at, end) = whole(entry);
    let mut units = Vec::new();
    while at < end {
        let next = (at / unit_bytes + 1) * unit_bytes;
        units.push((at, next.min(end)));
        at = next.min(end);
    }
    units
}

/// Writes a range of what the entry wrote.
fn put(entry: &Entry, (from, to): (u64, u64), file: &File) -> io::Result<()> {
    match entry {
        Entry::Written { offset, bytes, .. } => file.write_all_at(&bytes[(from - offset) as usize..(to - offset) as usize], from),
        Entry::Trimmed { .. } => file.write_all_at(&vec![0; (to - from) as usize], from),
        Entry::Flushed => Ok(()),
    }
}

fn apply(entry: &Entry, content: &mut [u8]) {
    let (from, to) = whole(entry);
    let place = &mut content[from as usize..to as usize];
    match entry {
        Entry::Written { bytes, .. } => place.copy_from_slice(bytes),
        Entry::Trimmed { .. } => place.fill(0),
        Entry::Flushed => {}
    }
}
