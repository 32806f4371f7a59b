//! Finds the duplicates that sampling missed, and joins them: after that, and a prune, the store is as small as one
//! with an exact index.
//!
//! # How duplicates are found in bounded memory
//! Every live chunk gives an entry of 16 bytes: the first 8 bytes of its name, and its address. Entries are put into
//! parts by their first bits, each of which fits into memory. A part is sorted. Neighbours with the same 8 bytes are
//! looked at in their catalogs: there the whole names are.
//!
//! If there is more than one part, parts are written to files, at most [`FILES`] at a time. If that is not enough, the
//! catalogs are read several times. The files have no names: the system drops them with the process.
//!
//! The copy with the lowest address stays. The engine compares the copies and makes the redirects
//! ([`Engine::join_copies`]).

use crate::{Monitor, Result};
use onefold_engine::{Address, ContainerId, Contents, Copies, DeadSlots, Engine, EngineError, Joined};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{File, Ground};
use onefold_storage::{ChunkKind, ContainerSet};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The name of a file of a part, until it is open.
const NAME: &str = "dedup";
/// The most files that are written at once.
const FILES: usize = 256;
/// Bytes of an entry, in memory and in files.
const ENTRY_BYTES: usize = 16;
/// Memory of a copy that is looked at in its catalog, about.
const SUSPECT_BYTES: usize = 128;
/// Pairs of copies between two questions whether to go on.
const JOINED_TOGETHER: usize = 1024;
/// The least memory that makes sense.
const LEAST_BYTES: usize = 64 << 10;
/// Sentences about damage.
const LISTED: usize = 100;

/// How to look for duplicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupOptions {
    /// Memory for the search, bytes.
    pub memory_bytes: usize,
    /// Only report what would be done.
    pub dry_run: bool,
}

impl Default for DedupOptions {
    fn default() -> DedupOptions {
        DedupOptions { memory_bytes: 256 << 20, dry_run: false }
    }
}

/// What the search found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupReport {
    /// Chunks looked at.
    pub chunks: u64,
    /// Copies that are not needed, as there is another one.
    pub duplicate_chunks: u64,
    /// Their bytes before compression.
    pub duplicate_bytes: u64,
    /// What could not be looked at or joined, with the reason, one sentence each.
    pub problems: Vec<String>,
    /// Whether all chunks were looked at.
    pub is_complete: bool,
}

/// The beginning of a name, and where a copy is.
type Entry = (u64, u64);

/// A copy of which another one may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Suspect {
    fingerprint: Fingerprint,
    address: Address,
    length_bytes: u32,
    is_data: bool,
}

/// Finds chunks that are stored more than once, and has the superfluous copies lead to the others. A prune frees their
/// space. Calls `go_on` between steps; finished steps are durable. With `dry_run` nothing is changed. A store with a
/// chunk index has no such chunks.
pub fn dedup(engine: &Arc<Engine>, options: DedupOptions, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<DedupReport> {
    let go_on = || go_on() && !monitor.is_cancelled();
    let mut report = DedupReport::default();
    if engine.descriptor().profile.is_exact() {
        report.is_complete = true;
        return Ok(report);
    }
    if !options.dry_run {
        // Chunks in open frames count as soon as they are durable.
        engine.flush()?;
    }
    let memory_bytes = options.memory_bytes.max(LEAST_BYTES);
    let mut search = Search { engine, options, memory_bytes, monitor, report };
    let found = search.run(&go_on);
    if !options.dry_run && search.report.is_complete && found.is_ok() {
        engine.note_no_duplicates();
    }
    found.map(|()| search.report)
}

struct Search<'a> {
    engine: &'a Arc<Engine>,
    options: DedupOptions,
    memory_bytes: usize,
    monitor: &'a dyn Monitor,
    report: DedupReport,
}

impl Search<'_> {
    fn run(&mut self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let in_memory = (self.memory_bytes / 2 / ENTRY_BYTES) as u64;
        let parts = usize::try_from(self.engine.chunks() / in_memory + 1).unwrap_or(usize::MAX);
        // A dry run writes nothing: it reads the catalogs once for each part.
        let at_once = if self.options.dry_run { 1 } else { FILES.min(self.memory_bytes / 2 / BUFFER_BYTES).max(1) };
        let passes = parts.div_ceil(at_once);
        let containers = self.engine.storage().units()?;
        self.monitor.step("containers", (containers.len() * passes) as u64);
        for pass in 0..passes {
            let first = pass * at_once;
            let count = at_once.min(parts - first);
            let mut sorted = Parts::new(&**self.engine.ground(), first, count, parts, self.options.dry_run).map_err(EngineError::from)?;
            if !self.gather(&containers, pass == 0, &mut sorted, go_on)? {
                return Ok(());
            }
            for part in sorted.finish().map_err(EngineError::from)? {
                // Names are evenly spread, unless somebody chose them.
                let pieces = (part.length / in_memory + 1).min(u64::from(u16::MAX));
                for range in split(part.range.clone(), pieces) {
                    if !go_on() || !self.judge(part.read(&range).map_err(EngineError::from)?, go_on)? {
                        return Ok(());
                    }
                }
            }
        }
        self.report.is_complete = self.report.problems.is_empty();
        Ok(())
    }

    /// Puts the live chunks of all containers into their parts. Returns false if it was cut short.
    fn gather(&mut self, containers: &ContainerSet, is_first: bool, parts: &mut Parts, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let committed = self.engine.storage().committed_slots();
        for container in containers.iter() {
            if !go_on() {
                return Ok(false);
            }
            self.monitor.advance(1);
            let Contents { slots, dead, .. } = match self.engine.contents_of(container) {
                // It was merged into another one: that one is on the list too, or is newer than the list.
                Ok(Some(found)) if found.container != container => continue,
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) if error.is_damage() => {
                    if is_first {
                        self.note(error.to_string());
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for (number, (address, slot)) in slots.iter().enumerate() {
                if !dead.contains(number) && committed.includes(*address) {
                    self.report.chunks += u64::from(is_first);
                    parts.push((beginning(&slot.fingerprint), address.bits())).map_err(EngineError::from)?;
                }
            }
        }
        Ok(true)
    }

    /// Joins the duplicates among these entries. Returns false if it was cut short.
    fn judge(&mut self, mut entries: Vec<Entry>, go_on: &dyn Fn() -> bool) -> Result<bool> {
        entries.sort_unstable();
        entries.dedup();
        let limit = (self.memory_bytes / 2 / SUSPECT_BYTES).max(2);
        let mut suspects: Vec<Address> = Vec::new();
        for run in entries.chunk_by(|one, next| one.0 == next.0).filter(|run| run.len() > 1) {
            suspects.extend(run.iter().map(|(_, bits)| Address::from_bits(*bits)));
            if suspects.len() >= limit && !self.join(std::mem::take(&mut suspects), go_on)? {
                return Ok(false);
            }
        }
        self.join(suspects, go_on)
    }

    /// Joins the duplicates among these copies. Returns false if it was cut short.
    fn join(&mut self, mut addresses: Vec<Address>, go_on: &dyn Fn() -> bool) -> Result<bool> {
        addresses.sort_unstable();
        let mut suspects = Vec::with_capacity(addresses.len());
        for run in addresses.chunk_by(|one, next| one.origin() == next.origin()) {
            // Damage was reported when it was met first. What was removed since is no duplicate.
            let container = ContainerId::from_bits(run[0].origin().bits());
            let Ok(Some(Contents { slots, dead, .. })) = self.engine.contents_of(container) else { continue };
            suspects.extend(alive(run, &slots, &dead));
        }
        suspects.retain(|suspect| self.engine.copy_of(suspect.address) == suspect.address);
        suspects.sort_unstable();
        let mut pairs = Vec::new();
        for copies in suspects.chunk_by(|one, next| (one.fingerprint, one.is_data) == (next.fingerprint, next.is_data)) {
            let (kept, superfluous) = copies.split_first().expect("a run has at least one");
            for one in superfluous {
                if self.options.dry_run {
                    self.report.duplicate_chunks += 1;
                    self.report.duplicate_bytes += u64::from(one.length_bytes);
                }
                pairs.push(Copies { fingerprint: one.fingerprint, superfluous: one.address, kept: kept.address });
            }
        }
        if self.options.dry_run {
            return Ok(true);
        }
        pairs.sort_unstable_by_key(|pair| pair.superfluous);
        for pairs in pairs.chunks(JOINED_TOGETHER) {
            if !go_on() {
                return Ok(false);
            }
            let Joined { chunks, bytes, damaged } = self.engine.join_copies(pairs)?;
            self.report.duplicate_chunks += chunks;
            self.report.duplicate_bytes += bytes;
            damaged.into_iter().for_each(|what| self.note(what));
        }
        Ok(true)
    }

    fn note(&mut self, what: String) {
        if self.report.problems.len() < LISTED {
            self.report.problems.push(what);
        }
    }
}

/// Returns those of these addresses of one origin that are alive, with what they are.
fn alive(addresses: &[Address], slots: &[(Address, onefold_storage::Slot)], dead: &DeadSlots) -> Vec<Suspect> {
    let places: BTreeMap<Address, usize> = slots.iter().enumerate().map(|(number, (address, _))| (*address, number)).collect();
    let number = |address: &Address| places.get(address).copied().filter(|number| !dead.contains(*number));
    let suspect = |(address, number): (&Address, usize)| {
        let slot = &slots[number].1;
        let is_data = slot.kind == ChunkKind::Data;
        Suspect { fingerprint: slot.fingerprint, address: *address, length_bytes: slot.length_bytes, is_data }
    };
    addresses.iter().filter_map(|address| Some((address, number(address)?))).map(suspect).collect()
}

/// Returns the first 8 bytes of a name.
fn beginning(fingerprint: &Fingerprint) -> u64 {
    u64::from_be_bytes(fingerprint.as_bytes()[..8].try_into().expect("a fingerprint has more"))
}

/// Returns `count` ranges that are all of `range`, one behind the other.
fn split(range: RangeInclusive<u64>, count: u64) -> impl Iterator<Item = RangeInclusive<u64>> {
    let (start, end) = range.into_inner();
    let width = u128::from(end - start) + 1;
    let bound = move |number: u64| u128::from(start) + width * u128::from(number) / u128::from(count.max(1));
    (0..count.max(1)).map(move |number| (bound(number), bound(number + 1))).filter(|(from, to)| from < to).map(|(from, to)| {
        #[allow(clippy::cast_possible_truncation, reason = "both lie in the range")]
        let (from, last) = (from as u64, (to - 1) as u64);
        from..=last
    })
}

/// Bytes of entries that are written at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Some neighbouring parts of all entries.
struct Parts {
    parts: Vec<Part>,
    /// Of all parts.
    count: usize,
    first: usize,
    in_memory: bool,
}

/// Entries whose names begin in a range.
struct Part {
    range: RangeInclusive<u64>,
    file: Option<Arc<dyn File>>,
    /// Entries that are not in the file.
    entries: Vec<Entry>,
    /// Number of all entries.
    length: u64,
}

/// Returns a new file without a name.
fn nameless(ground: &dyn Ground) -> onefold_ground::Result<Arc<dyn File>> {
    if ground.exists(NAME)? {
        // A process was killed in between.
        ground.remove(NAME)?;
    }
    let file = ground.create(NAME)?;
    ground.remove(NAME)?;
    Ok(file)
}

impl Parts {
    /// Begins with parts `first .. first + here` of `count`. A single part, or with `in_memory` any, needs no file.
    fn new(ground: &dyn Ground, first: usize, here: usize, count: usize, in_memory: bool) -> onefold_ground::Result<Parts> {
        let in_memory = in_memory || count == 1;
        let ranges = split(0..=u64::MAX, count as u64).skip(first).take(here);
        let parts = ranges.map(|range| {
            let file = if in_memory { None } else { Some(nameless(ground)?) };
            Ok(Part { range, file, entries: Vec::new(), length: 0 })
        });
        let parts = parts.collect::<onefold_ground::Result<_>>()?;
        Ok(Parts { parts, count, first, in_memory })
    }

    /// Adds an entry, if its part is here.
    fn push(&mut self, entry: Entry) -> onefold_ground::Result<()> {
        // The inverse of `split`, but for rounding.
        let about = ((u128::from(entry.0) * self.count as u128) >> 64) as usize;
        let near = [about, about + 1, about.wrapping_sub(1)].into_iter().map(|number| number.wrapping_sub(self.first));
        let mut near = near.filter(|number| self.parts.get(*number).is_some_and(|part| part.range.contains(&entry.0)));
        let Some(number) = near.next() else { return Ok(()) };
        let part = &mut self.parts[number];
        part.entries.push(entry);
        part.length += 1;
        if !self.in_memory && part.entries.len() * ENTRY_BYTES >= BUFFER_BYTES { part.write() } else { Ok(()) }
    }

    /// Returns the parts, ready to be read.
    fn finish(mut self) -> onefold_ground::Result<Vec<Part>> {
        if !self.in_memory {
            self.parts.iter_mut().try_for_each(Part::write)?;
        }
        Ok(self.parts)
    }
}

impl Part {
    fn write(&mut self) -> onefold_ground::Result<()> {
        if let Some(file) = &self.file {
            let written = self.length - self.entries.len() as u64;
            let bytes: Vec<u8> = self.entries.iter().flat_map(|entry| [entry.0.to_le_bytes(), entry.1.to_le_bytes()]).flatten().collect();
            file.write_at(written * ENTRY_BYTES as u64, &bytes)?;
            self.entries.clear();
        }
        Ok(())
    }

    /// Returns the entries whose names begin in a range.
    fn read(&self, range: &RangeInclusive<u64>) -> onefold_ground::Result<Vec<Entry>> {
        let mut found: Vec<Entry> = self.entries.iter().filter(|entry| range.contains(&entry.0)).copied().collect();
        if let Some(file) = &self.file {
            let (mut at, end) = (0, self.length * ENTRY_BYTES as u64);
            let mut buffer = vec![0; BUFFER_BYTES];
            while at < end {
                let bytes = &mut buffer[..(end - at).min(BUFFER_BYTES as u64) as usize];
                file.read_at(at, bytes)?;
                at += bytes.len() as u64;
                let (words, _) = bytes.as_chunks::<8>();
                let (entries, _) = words.as_chunks::<2>();
                let entries = entries.iter().map(|[name, address]| (u64::from_le_bytes(*name), u64::from_le_bytes(*address)));
                found.extend(entries.filter(|entry| range.contains(&entry.0)));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::SimulatedGround;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_split_without_gaps() {
        for (range, count) in [(0..=u64::MAX, 1), (0..=u64::MAX, 7), (5..=9, 3), (5..=5, 4), (0..=2, 100)] {
            let mut next = Some(*range.start());
            for piece in split(range.clone(), count) {
                assert_eq!(next, Some(*piece.start()));
                next = piece.end().checked_add(1);
            }
            assert_eq!(next, range.end().checked_add(1));
        }
    }

    proptest! {
        #[test]
        fn every_entry_is_in_one_part(entries: Vec<Entry>, count in 1..9usize, at_once in 1..9usize, dry_run: bool) {
            let ground = SimulatedGround::new(1);
            let mut found = Vec::new();
            for first in (0..count).step_by(at_once) {
                let mut parts = Parts::new(&ground, first, at_once.min(count - first), count, dry_run).unwrap();
                for entry in entries.iter().chain(&[(0, 1), (u64::MAX, 2)]) {
                    parts.push(*entry).unwrap();
                }
                for part in parts.finish().unwrap() {
                    for range in split(part.range.clone(), 3) {
                        found.extend(part.read(&range).unwrap());
                    }
                }
            }
            let mut all = [&entries[..], &[(0, 1), (u64::MAX, 2)]].concat();
            all.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, all);
        }
    }
}
