//! Reading chunks: from memory, from frames that were read lately, and from tables.
//!
//! A chunk of a table costs a page of keys and a frame. But a frame names its chunks, so most of what is wanted together
//! comes with a few frames. Which table may have a chunk is known from its filter. So a load goes in rounds: it asks
//! each of these tables for one of the chunks that it may have, all at once, and takes all that is in the frames that it
//! gets. If something is left, the next round asks each for twice as many.

use super::LevelsStore;
use crate::components::STORAGE_READ;
use crate::levels::cache::Frame;
use crate::levels::memtable::Found;
use crate::levels::pages::Pages;
use crate::levels::partition::Partition;
use crate::levels::table::{Place, Table};
use crate::levels::version::{At, Version};
use crate::levels::work::Counters;
use crate::{Address, Result, Slice};
use onefold_fingerprint::Fingerprint;
use onefold_ground::ReadRequest;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that are read together.
const READ_BYTES: u64 = 1 << 20;
/// Frames of one table that are read together have no more between them that nobody wants.
const GAP_BYTES: u64 = 32 << 10;
/// Chunks that a round asks for at most.
const PROBES: usize = 32;

/// Wanted chunks that one table may have first, or none.
struct Group {
    version: Arc<Version>,
    missing: Vec<usize>,
}

/// A wanted chunk that was found in a table.
struct Hit {
    table: Arc<Table>,
    place: Place,
    group: usize,
    at: usize,
}

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
        let mut slices = Vec::with_capacity(wanted.len());
        for (address, name) in wanted {
            slices.push(match self.partition_of(*address)?.find_in_memory(name) {
                Some(Found::Chunk(bytes)) => Some(bytes),
                Some(Found::Removed) => return Err(self.not_there(*address, "no table has it")),
                None => self.frames.get(name),
            });
        }
        Counters::add(&self.counters.gets, wanted.len() as u64);
        self.load_from_tables(wanted, reads_on, &mut slices)?;
        let found = slices.into_iter().zip(wanted);
        found.map(|(slice, (address, _))| slice.ok_or_else(|| self.not_there(*address, "no table has it"))).collect()
    }

    /// Loads those that no open memtable has.
    fn load_from_tables(&self, wanted: &[(Address, Fingerprint)], reads_on: bool, slices: &mut [Option<Slice>]) -> Result<()> {
        let mut groups = self.groups(wanted, slices)?;
        let mut width = 1;
        while !groups.is_empty() {
            let hits = self.probe(wanted, &groups, width, slices)?;
            let mut read = self.read_frames(&hits, reads_on, slices)?;
            for (number, group) in groups.iter_mut().enumerate() {
                // The cache may have dropped it again.
                let frames: Vec<Frame> = read.extract_if(.., |(of, _)| *of == number).map(|(_, frame)| frame).collect();
                group.missing.retain(|at| {
                    let name = &wanted[*at].1;
                    if slices[*at].is_none() {
                        slices[*at] = self.frames.get(name).or_else(|| frames.iter().find_map(|frame| frame.find(name)));
                    }
                    slices[*at].is_none()
                });
            }
            groups.retain(|group| !group.missing.is_empty());
            width *= 2;
        }
        Ok(())
    }

    /// Divides what is missing by the tables that may have it.
    fn groups(&self, wanted: &[(Address, Fingerprint)], slices: &[Option<Slice>]) -> Result<Vec<Group>> {
        let mut versions: BTreeMap<u16, Arc<Version>> = BTreeMap::new();
        let mut groups: BTreeMap<(u16, Option<u64>), Group> = BTreeMap::new();
        for (at, (address, name)) in wanted.iter().enumerate().filter(|(at, _)| slices[*at].is_none()) {
            let partition = self.partition_of(*address)?;
            // After a look into the open memtable: what it had then is in what is below it now.
            let version = versions.entry(partition.number).or_insert_with(|| partition.version());
            let table = version.first_page(name).map(|(table, _)| table.id);
            let group = || Group { version: version.clone(), missing: Vec::new() };
            groups.entry((partition.number, table)).or_insert_with(group).missing.push(at);
        }
        Ok(groups.into_values().collect())
    }

    /// Looks for so many chunks of each group.
    fn probe(&self, wanted: &[(Address, Fingerprint)], groups: &[Group], width: usize, slices: &mut [Option<Slice>]) -> Result<Vec<Hit>> {
        let spread = |missing: &[usize]| {
            let count = width.min(missing.len());
            (0..count).map(|probe| missing[probe * missing.len() / count]).collect::<Vec<_>>()
        };
        let of_group = |(group, of): (usize, &Group)| spread(&of.missing).into_iter().map(move |at| (group, at));
        let probes: Vec<(usize, usize)> = groups.iter().enumerate().flat_map(of_group).take(PROBES).collect();
        let first_page = |(group, at): &(usize, usize)| groups[*group].version.first_page(&wanted[*at].1);
        let first = probes.iter().map(|probe| first_page(probe).map(|(table, page)| (table.clone(), page))).collect();
        let mut hits = Vec::with_capacity(probes.len());
        for ((group, at), mut pages) in probes.into_iter().zip(Pages::read_ahead(&self.readers, first)) {
            let (address, name) = &wanted[at];
            match groups[group].version.find(name, &mut pages)? {
                Some(At::Memory(bytes)) => slices[at] = Some(bytes),
                Some(At::Table { table, place }) => hits.push(Hit { table, place, group, at }),
                None => return Err(self.not_there(*address, "no table has it")),
            }
            Counters::add(&self.counters.page_reads, pages.reads);
        }
        // Those that lie in one table together.
        hits.sort_by_key(|hit| (Arc::as_ptr(&hit.table), hit.place.frame));
        Ok(hits)
    }

    /// Reads the frames of chunks, and those behind them too, if they are of what is read from its beginning to its end,
    /// or if somebody has just read what is before them. All of them are kept in the cache. Returns the frames of these
    /// chunks, with their groups.
    fn read_frames(&self, hits: &[Hit], reads_on: bool, slices: &mut [Option<Slice>]) -> Result<Vec<(usize, Frame)>> {
        let mut runs: Vec<Run<'_>> = Vec::new();
        for hit in hits {
            if runs.last_mut().is_some_and(|run| run.takes(hit)) {
                continue;
            }
            let (table, place) = (&hit.table, &hit.place);
            let is_begun = reads_on && place.is_sequential;
            let ahead = if is_begun { READ_BYTES } else { self.runs.ahead(table.id, place.frame, READ_BYTES) };
            let length = u64::from(place.frame_bytes).max(ahead).min(table.length_bytes - place.frame);
            runs.push(Run { hits: vec![hit], end: place.frame + length, is_begun });
        }
        Counters::add(&self.counters.frame_reads, runs.len() as u64);
        let mut read = Vec::with_capacity(hits.len());
        let mut failed = None;
        let mut take = |run: &Run<'_>, bytes: &[u8]| -> Result<()> {
            for (hit, frame) in self.take_frames(run, bytes)? {
                slices[hit.at] = Some(hit.table.slice(&frame.bytes, &hit.place)?);
                read.push((hit.group, frame));
            }
            Ok(())
        };
        let length_bytes = runs.iter().map(Run::length).sum();
        self.profile.time(&STORAGE_READ, length_bytes, || {
            self.readers.read_each(&mut runs.iter().map(Run::request), &mut |number, bytes, result| {
                let run = &runs[number];
                let taken = match result.map_err(|error| run.table().lasting(error)) {
                    Ok(()) => take(run, bytes),
                    // Damage beside the frames is no matter of theirs.
                    Err(error) if error.is_damage() => run.hits.iter().try_for_each(|hit| {
                        let mut bytes = vec![0; hit.place.frame_bytes as usize];
                        hit.table.frames(hit.place.frame, &mut bytes)?;
                        take(&Run { hits: vec![hit], end: hit.place.frame + bytes.len() as u64, is_begun: true }, &bytes)
                    }),
                    Err(error) => Err(error),
                };
                if let Err(error) = taken {
                    failed.get_or_insert(error);
                }
            });
        });
        failed.map_or(Ok(read), Err)
    }

    /// Keeps the frames of a run that was read. Returns those of its chunks.
    fn take_frames<'a>(&self, run: &Run<'a>, bytes: &[u8]) -> Result<Vec<(&'a Hit, Frame)>> {
        let (table, start) = (run.table(), run.start());
        let mut taken: Vec<(&Hit, Frame)> = Vec::with_capacity(run.hits.len());
        let mut at = start;
        for hits in run.hits.chunk_by(|one, other| one.place.frame == other.place.frame) {
            let begin = hits[0].place.frame;
            self.keep_frames(table, bytes, start, at, begin);
            let whole = || table.damaged("a frame is longer than its keys say");
            let (frame, length) = table.read_frame(&bytes[(begin - start) as usize..], begin)?.ok_or_else(whole)?;
            self.frames.put(frame.clone());
            taken.extend(hits.iter().map(|hit| (*hit, frame.clone())));
            at = begin + length as u64;
        }
        at = self.keep_frames(table, bytes, start, at, run.end);
        if !run.is_begun {
            self.runs.ended(table.id, at, run.length());
        }
        Ok(taken)
    }

    /// Keeps the whole frames from `at` on that begin before `end`. Returns where they end. Damage in them is reported
    /// when somebody asks for them.
    fn keep_frames(&self, table: &Table, bytes: &[u8], start: u64, mut at: u64, end: u64) -> u64 {
        while at < end
            && let Ok(Some((frame, length))) = table.read_frame(&bytes[(at - start) as usize..], at)
        {
            self.frames.put(frame);
            at += length as u64;
        }
        at
    }
}

/// Frames that are read together.
struct Run<'a> {
    /// By their places.
    hits: Vec<&'a Hit>,
    end: u64,
    /// Whoever goes on behind it reads as much again anyway.
    is_begun: bool,
}

impl<'a> Run<'a> {
    fn table(&self) -> &'a Table {
        &self.hits[0].table
    }

    fn start(&self) -> u64 {
        self.hits[0].place.frame
    }

    fn length(&self) -> u64 {
        self.end - self.start()
    }

    fn request(&self) -> ReadRequest {
        self.table().request(self.start(), self.length() as usize)
    }

    /// Takes a chunk behind the others, if its frame is near enough.
    fn takes(&mut self, hit: &'a Hit) -> bool {
        let end = hit.place.frame + u64::from(hit.place.frame_bytes);
        let is_near = std::ptr::eq(self.table(), &*hit.table)
            && hit.place.frame <= self.end + GAP_BYTES
            && end <= self.end.max(self.start() + READ_BYTES);
        if is_near {
            self.hits.push(hit);
            self.end = self.end.max(end);
        }
        is_near
    }
}
