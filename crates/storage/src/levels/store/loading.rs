//! Reading chunks: from memory, from frames that were read lately, and from tables.

use super::LevelsStore;
use crate::components::STORAGE_READ;
use crate::levels::cache::Frame;
use crate::levels::memtable::Found;
use crate::levels::partition::Partition;
use crate::levels::table::{Place, Table};
use crate::levels::version::At;
use crate::levels::work::Counters;
use crate::{Address, Result, Slice};
use onefold_fingerprint::Fingerprint;

/// Bytes that are read together.
const READ_BYTES: u64 = 1 << 20;

impl LevelsStore {
    pub(super) fn load_into(&self, wanted: &[(Address, Fingerprint)], reads_on: bool, out: &mut Vec<Slice>) -> Result<()> {
        match self.load_all(wanted, reads_on) {
            Ok(slices) => out.extend(slices),
            Err(error) => {
                // What a failed sync lost is no damage.
                self.partitions.iter().try_for_each(Partition::check_poison)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Loads chunks. With `reads_on`, it reads more than one frame of what is read from its beginning to its end.
    fn load_all(&self, wanted: &[(Address, Fingerprint)], reads_on: bool) -> Result<Vec<Slice>> {
        let (mut page_reads, mut frame_reads) = (0, 0);
        let mut slices = Vec::with_capacity(wanted.len());
        let mut last: Option<Frame> = None;
        for (address, name) in wanted {
            let partition = self.partition_of(*address)?;
            let known = || last.as_ref().and_then(|frame| frame.find(name)).or_else(|| self.frames.get(name));
            let slice = match partition.find_in_memory(name) {
                Some(Found::Chunk(bytes)) => bytes,
                Some(Found::Removed) => return Err(self.not_there(*address, "no table has it")),
                None => match known() {
                    Some(slice) => slice,
                    None => match partition.version().find(name, &mut page_reads)? {
                        Some(At::Memory(bytes)) => bytes,
                        Some(At::Table { table, place }) => {
                            frame_reads += 1;
                            let frame = self.read_frames(&table, &place, reads_on)?;
                            let slice = table.slice(&frame.bytes, &place)?;
                            last = Some(frame);
                            slice
                        }
                        None => return Err(self.not_there(*address, "no table has it")),
                    },
                },
            };
            slices.push(slice);
        }
        Counters::add(&self.counters.gets, wanted.len() as u64);
        Counters::add(&self.counters.page_reads, page_reads);
        Counters::add(&self.counters.frame_reads, frame_reads);
        Ok(slices)
    }

    /// Reads a frame, and those behind it too, if it is of what is read from its beginning to its end, or if somebody
    /// has just read what is before it. All of them are kept.
    fn read_frames(&self, table: &Table, place: &Place, reads_on: bool) -> Result<Frame> {
        let least = u64::from(place.frame_bytes);
        let is_begun = reads_on && place.is_sequential;
        let ahead = if is_begun { READ_BYTES } else { self.runs.ahead(table.id, place.frame, READ_BYTES) };
        let length = least.max(ahead).min(table.length_bytes - place.frame);
        let mut bytes = vec![0; length as usize];
        let read = self.profile.time(&STORAGE_READ, length, || table.frames(place.frame, &mut bytes));
        match read {
            // Damage in the frames behind it is no matter of this one.
            Err(error) if error.is_damage() && length > least => {
                bytes.truncate(least as usize);
                table.frames(place.frame, &mut bytes)?;
            }
            read => read?,
        }
        let whole = || table.damaged("a frame is longer than its keys say");
        let (first, mut at) = table.read_frame(&bytes, place.frame)?.ok_or_else(whole)?;
        self.frames.put(first.clone());
        // Damage in the frames behind it is reported when somebody asks for them.
        while let Ok(Some((frame, length))) = table.read_frame(&bytes[at..], place.frame + at as u64) {
            self.frames.put(frame);
            at += length;
        }
        if !is_begun {
            self.runs.ended(table.id, place.frame + at as u64, length);
        }
        Ok(first)
    }
}
