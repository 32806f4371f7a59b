//! Reading chunks: from memory, from frames that were read lately, and from tables.
//!
//! A chunk of a table costs a page of keys and a frame. But a frame names its chunks, so most of what is wanted
//! together comes with a few frames. Which table may have a chunk is known from its filter. So a load goes in rounds.
//! It asks each of these tables for one of the chunks that it may have, all at once, and takes all that is in the
//! frames that it gets. If something is left, the next round asks each for twice as many.
//!
//! All rounds look into one version of the levels. Compactions replace it meanwhile, but tables stay open, and what is
//! in them never changes.

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
use onefold_ground::{GroundError, ReadRequest};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that one read has at most, if its frames are shorter.
const READ_BYTES: u64 = 1 << 20;
/// Bytes that a round reads ahead at most.
const ROUND_BYTES: u64 = 16 << 20;
/// Frames of one table are read together if there is no more between them that nobody wants.
const WASTE_BYTES: u64 = 32 << 10;
/// Chunks that a round asks for at most.
const MOST_PROBES: usize = 32;

/// Wanted chunks of which one table may be the first to have them.
struct Group {
    partition: u16,
    version: Arc<Version>,
    /// Their numbers among the wanted ones.
    missing: Vec<usize>,
}

/// A wanted chunk that was found in a table.
struct Hit {
    table: Arc<Table>,
    place: Place,
    partition: u16,
    group: usize,
    /// Its number among the wanted ones.
    number: usize,
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
                Some(Found::Removed) => return Err(self.not_in_a_table(*address)),
                None => self.frames.get(name),
            });
        }
        Counters::add(&self.counters.gets, wanted.len() as u64);
        let mut groups = self.groups(wanted, &mut slices)?;
        let mut width = 1;
        while !groups.is_empty() {
            let hits = self.probe(wanted, &groups, width)?;
            let mut read = self.read_frames(&hits, reads_on, &mut slices)?;
            for (number, group) in groups.iter_mut().enumerate() {
                // The cache may have dropped it again.
                let frames: Vec<Frame> = read.extract_if(.., |(of, _)| *of == number).map(|(_, frame)| frame).collect();
                group.missing.retain(|number| {
                    let name = &wanted[*number].1;
                    if slices[*number].is_none() {
                        slices[*number] = self.frames.get(name).or_else(|| frames.iter().find_map(|frame| frame.find(name)));
                    }
                    slices[*number].is_none()
                });
            }
            groups.retain(|group| !group.missing.is_empty());
            width = (2 * width).min(MOST_PROBES);
        }
        let found = slices.into_iter().zip(wanted);
        found.map(|(slice, (address, _))| slice.ok_or_else(|| self.not_in_a_table(*address))).collect()
    }

    fn not_in_a_table(&self, address: Address) -> crate::StorageError {
        self.not_there(address, "no table has it")
    }

    /// Divides what is missing by the tables that may be the first to have it. What is in none is in a sealed memtable.
    fn groups(&self, wanted: &[(Address, Fingerprint)], slices: &mut [Option<Slice>]) -> Result<Vec<Group>> {
        let mut versions: BTreeMap<u16, Arc<Version>> = BTreeMap::new();
        let mut groups: BTreeMap<(u16, u64), Group> = BTreeMap::new();
        for ((number, (address, name)), slice) in wanted.iter().enumerate().zip(slices).filter(|(_, slice)| slice.is_none()) {
            let partition = self.partition_of(*address)?;
            // Taken after the look into the open memtable: this version has what had left it by then.
            let version = versions.entry(partition.number).or_insert_with(|| partition.version());
            let Some(table) = version.first(name) else {
                match version.find(name, &mut Pages::default())? {
                    Some(At::Memory(bytes)) => *slice = Some(bytes),
                    _ => return Err(self.not_in_a_table(*address)),
                }
                continue;
            };
            let group = || Group { partition: partition.number, version: version.clone(), missing: Vec::new() };
            groups.entry((partition.number, table.id)).or_insert_with(group).missing.push(number);
        }
        Ok(groups.into_values().collect())
    }

    /// Looks for so many chunks of each group: first for one of each, then for the next.
    fn probe(&self, wanted: &[(Address, Fingerprint)], groups: &[Group], width: usize) -> Result<Vec<Hit>> {
        let probe = |(group, of): (usize, &Group), probe: usize| {
            let count = width.min(of.missing.len());
            (probe < count).then(|| (group, of.missing[probe * of.missing.len() / count]))
        };
        let all = (0..width).flat_map(|number| groups.iter().enumerate().filter_map(move |group| probe(group, number)));
        let probes: Vec<(usize, usize)> = all.take(MOST_PROBES).collect();
        let searches = probes.iter().map(|(group, number)| groups[*group].version.pages(&wanted[*number].1));
        let mut hits = Vec::with_capacity(probes.len());
        for ((group, number), mut pages) in probes.iter().copied().zip(Pages::read_ahead(&self.readers, searches)) {
            let (address, name) = &wanted[number];
            let Group { partition, version, .. } = &groups[group];
            match version.find(name, &mut pages)? {
                Some(At::Table { table, place }) => hits.push(Hit { table, place, partition: *partition, group, number }),
                _ => return Err(self.not_in_a_table(*address)),
            }
            Counters::add(&self.counters.page_reads, pages.reads);
        }
        // Those that lie in one table together.
        hits.sort_by_key(|hit| (Arc::as_ptr(&hit.table), hit.place.frame));
        Ok(hits)
    }

    /// Reads the frames of chunks, and those behind them too, if they are of what is read from its beginning to its
    /// end, or if somebody has just read what is before them. All of them are kept in the cache. Returns the frames of
    /// these chunks, with their groups.
    fn read_frames(&self, hits: &[Hit], reads_on: bool, slices: &mut [Option<Slice>]) -> Result<Vec<(usize, Frame)>> {
        let stretches = self.stretches(hits, reads_on);
        Counters::add(&self.counters.frame_reads, stretches.len() as u64);
        let (begin, mut decoding) = (Instant::now(), Duration::ZERO);
        let (mut frames, mut failed) = (Vec::with_capacity(hits.len()), None);
        self.readers.read_each(&mut stretches.iter().map(Stretch::request), &mut |number, bytes, read| {
            let begin = Instant::now();
            match self.take_stretch(&stretches[number], bytes, read) {
                Ok(taken) => frames.extend(taken),
                Err(error) => drop(failed.get_or_insert(error)),
            }
            decoding += begin.elapsed();
        });
        let read_bytes = stretches.iter().map(Stretch::length).sum();
        self.profile.add(&STORAGE_READ, begin.elapsed().saturating_sub(decoding).as_nanos() as u64, read_bytes);
        if let Some(error) = failed {
            return Err(error);
        }
        let mut of_groups = Vec::with_capacity(frames.len());
        for (hit, frame) in frames {
            slices[hit.number] = Some(hit.table.slice(&frame.bytes, &hit.place)?);
            of_groups.push((hit.group, frame));
        }
        Ok(of_groups)
    }

    /// Returns what to read for these chunks, which are sorted by their places.
    fn stretches<'a>(&self, hits: &'a [Hit], reads_on: bool) -> Vec<Stretch<'a>> {
        let most_bytes = READ_BYTES.min(ROUND_BYTES / hits.len().max(1) as u64);
        let mut stretches: Vec<Stretch<'_>> = Vec::new();
        for hit in hits {
            if stretches.last_mut().is_some_and(|last| last.takes(hit)) {
                continue;
            }
            let place = &hit.place;
            let reads_on = reads_on && place.is_sequential;
            let ahead = if reads_on { most_bytes } else { self.runs.ahead((hit.partition, hit.table.id), place.frame, most_bytes) };
            let length = u64::from(place.frame_bytes).max(ahead).min(hit.table.length_bytes - place.frame);
            stretches.push(Stretch { hits: vec![hit], end: place.frame + length, is_noted: !reads_on });
        }
        stretches
    }

    /// Keeps the frames of a stretch that was read. Returns those of its chunks.
    fn take_stretch<'a>(
        &self,
        stretch: &Stretch<'a>,
        bytes: &[u8],
        read: std::result::Result<(), GroundError>,
    ) -> Result<Vec<(&'a Hit, Frame)>> {
        let (table, start) = (stretch.table(), stretch.start());
        let error = match read.map_err(|error| table.lasting(error)) {
            Ok(()) => None,
            // Damage beside the frames is no matter of theirs.
            Err(error) if error.is_damage() && stretch.length() > u64::from(stretch.hits[0].place.frame_bytes) => Some(error),
            Err(error) => return Err(error),
        };
        let mut alone = Vec::new();
        let mut taken: Vec<(&Hit, Frame)> = Vec::with_capacity(stretch.hits.len());
        let mut at = start;
        for hits in stretch.hits.chunk_by(|one, other| one.place.frame == other.place.frame) {
            let place = &hits[0].place;
            let begin = match &error {
                None => {
                    self.keep_frames(stretch, bytes, at, place.frame);
                    &bytes[(place.frame - start) as usize..]
                }
                Some(_) => {
                    alone.resize(place.frame_bytes as usize, 0);
                    table.frames(place.frame, &mut alone)?;
                    &alone[..]
                }
            };
            let whole = || table.damaged("a frame is longer than its keys say");
            let (mut frame, length) = table.read_frame(begin, place.frame)?.ok_or_else(whole)?;
            self.keep(hits[0].partition, table, &mut frame);
            taken.extend(hits.iter().map(|hit| (*hit, frame.clone())));
            at = place.frame + length as u64;
        }
        if error.is_none() {
            at = self.keep_frames(stretch, bytes, at, stretch.end);
        }
        if stretch.is_noted {
            self.runs.ended((stretch.hits[0].partition, table.id), at, stretch.length());
        }
        Ok(taken)
    }

    /// Keeps the whole frames from `at` on that begin before `end`. Returns where they end. Damage in them is reported
    /// when somebody asks for them.
    fn keep_frames(&self, stretch: &Stretch<'_>, bytes: &[u8], mut at: u64, end: u64) -> u64 {
        while at < end
            && let Ok(Some((mut frame, length))) = stretch.table().read_frame(&bytes[(at - stretch.start()) as usize..], at)
        {
            self.keep(stretch.hits[0].partition, stretch.table(), &mut frame);
            at += length as u64;
        }
        at
    }

    /// Keeps a frame in the cache. If something younger than the table may have one of its chunks, that may have been
    /// stored again because this copy is bad. So it is looked at, and taken out of the frame if it is.
    fn keep(&self, partition: u16, table: &Table, frame: &mut Frame) {
        self.frames.put(frame);
        // Whoever stores one first stores it and then forgets it here. So either that comes later, or it is seen now.
        let doubtful = self.partitions[usize::from(partition)].in_something_younger(table, &frame.chunks);
        let is_bad = |name: &Fingerprint| frame.find(name).is_none_or(|slice| self.options.fingerprint.fingerprint(&slice) != *name);
        let bad: HashSet<Fingerprint> = doubtful.into_iter().filter(is_bad).collect();
        if !bad.is_empty() {
            self.frames.forget(bad.iter());
            frame.chunks.retain(|(name, ..)| !bad.contains(name));
        }
    }
}

/// A part of a table that is read at once, for some chunks.
struct Stretch<'a> {
    /// By their places.
    hits: Vec<&'a Hit>,
    end: u64,
    /// Whether it is noted where it ends: who goes on there may read more.
    is_noted: bool,
}

impl<'a> Stretch<'a> {
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
            && hit.place.frame <= self.end + WASTE_BYTES
            && end <= self.end.max(self.start() + READ_BYTES);
        if is_near {
            self.hits.push(hit);
            self.end = self.end.max(end);
        }
        is_near
    }
}
