//! Step 3 of `check`: what the chunk index says of each chunk, compared with what containers hold and with the sum of all references.
//!
//! One pass for each range of fingerprints, so many that the table of a pass fits into its memory. Nothing else is kept: references are
//! counted as they are read, so each pass reads the metadata chunks again.

use crate::Result;
use crate::check::{Check, ProblemKind};
use crate::references::{MetadataChunk, metadata_of, of_objects};
use onefold_engine::{Address, ContainerId, Piece};
use onefold_fingerprint::Fingerprint;
use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

/// Memory of one chunk in the table of counts: a hash map that has just grown is less than half full.
const CHUNK_BYTES: usize = 192;
/// More passes than this are not made: each reads all metadata.
const PASSES: usize = 1 << 12;

/// What is known of a chunk in one pass.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// From the index.
    address: u64,
    count: u32,
    is_indexed: bool,
    /// A container has it at that address.
    is_stored_there: bool,
    /// A container has it somewhere.
    is_stored: bool,
    /// Its length in the last container that has it.
    length_bytes: u32,
    references: u64,
    /// The furthest byte that a reference wants.
    wanted_bytes: u64,
    /// A reference names another container than the index does.
    other: u64,
}

/// Runs step 3.
pub(crate) fn compare(check: &mut Check<'_>, containers: &[ContainerId]) -> Result<()> {
    let statistics = check.engine.index().statistics();
    let chunks = (statistics.entries + statistics.auxiliary_entries).max(check.report.chunks) as usize;
    let wanted = chunks.saturating_mul(CHUNK_BYTES).div_ceil(check.options.memory_bytes.max(1));
    let passes = wanted.clamp(1, PASSES).next_power_of_two();
    check.monitor.step("references", passes as u64 * (containers.len() as u64 + 1));
    let mut missing = BTreeSet::new();
    for pass in 0..passes as u64 {
        if !one_pass(check, containers, range(pass, passes), &mut missing)? {
            return Ok(());
        }
        check.report.passes += 1;
    }
    Ok(())
}

/// The prefixes of fingerprints of a pass.
fn range(pass: u64, passes: usize) -> RangeInclusive<u64> {
    let shift = 64 - passes.trailing_zeros();
    match shift {
        64 => 0..=u64::MAX,
        shift => pass << shift..=(pass << shift) | (u64::MAX >> (64 - shift)),
    }
}

/// Returns false if the check was cancelled.
fn one_pass(
    check: &mut Check<'_>,
    containers: &[ContainerId],
    range: RangeInclusive<u64>,
    missing: &mut BTreeSet<ContainerId>,
) -> Result<bool> {
    let (engine, monitor) = (check.engine, check.monitor);
    let is_first = *range.start() == 0;
    let is_mine = |fingerprint: &Fingerprint| range.contains(&fingerprint.prefix());
    let mut table = Table { known: HashMap::new(), references: 0 };
    read_index(check, &mut table, &range, missing);
    // Where a chunk that refers to others cannot be read, counts may rightly be greater than what is found.
    let mut knows_all = check.knows_all_objects;
    for container in containers {
        if monitor.is_cancelled() {
            return Ok(false);
        }
        monitor.advance(1);
        // Damage of the container itself was reported by step 2.
        let Ok(slots) = engine.storage().slots(*container) else {
            knows_all = false;
            continue;
        };
        for (address, slot) in slots.iter().filter(|(_, slot)| is_mine(&slot.fingerprint)) {
            let chunk = table.known.entry(slot.fingerprint).or_default();
            chunk.is_stored = true;
            chunk.length_bytes = slot.length_bytes;
            chunk.is_stored_there |= chunk.is_indexed && chunk.address == address.bits();
        }
        for chunk in metadata_of(engine, &slots) {
            match chunk.references(engine) {
                Some(pieces) => pieces.iter().for_each(|piece| table.count(piece, is_mine)),
                None => {
                    knows_all = false;
                    if is_first {
                        unreadable(check, &chunk);
                    }
                }
            }
        }
    }
    of_objects(engine, &check.volumes, &mut |piece| table.count(piece, is_mine), &mut |_| {});
    monitor.advance(1);
    check.report.references += table.references;
    table.judge(check, knows_all);
    Ok(true)
}

/// Takes over what the index says of a range. Containers that it names and that are not there go to `missing`, each once into the report.
fn read_index(check: &mut Check<'_>, table: &mut Table, range: &RangeInclusive<u64>, missing: &mut BTreeSet<ContainerId>) {
    let partitions = check.engine.descriptor().index_partitions;
    let first_of = |partition: u32| if partitions == 1 { 0 } else { u64::from(partition) << (64 - partitions.trailing_zeros()) };
    for partition in 0..partitions {
        let last = if partition + 1 == partitions { u64::MAX } else { first_of(partition + 1) - 1 };
        if first_of(partition) > *range.end() || last < *range.start() {
            continue;
        }
        let read = check.engine.index().for_each(partition, &mut |fingerprint, entry| {
            if !range.contains(&fingerprint.prefix()) {
                return Ok(());
            }
            let known = Known { address: entry.address, count: entry.count, is_indexed: true, ..Known::default() };
            table.known.insert(*fingerprint, known);
            let container = Address::from_bits(entry.address).container();
            if entry.address != 0 && !check.present.contains(&container) && missing.insert(container) {
                let why = check.engine.storage().slots(container).map_or_else(|error| error.to_string(), |_| "its file is gone".into());
                check.report.add(ProblemKind::Container, format!("container {container} is missing: {why}"));
            }
            Ok(())
        });
        if let Err(error) = read {
            // The damaged pages were named one by one; an error of the device was not.
            if check.knows_all_entries {
                check.report.add(ProblemKind::IndexPage, error.to_string());
                check.knows_all_entries = false;
            }
        }
    }
    check.report.index_entries += table.known.len() as u64;
}

/// A metadata chunk that cannot be read takes everything below it with it.
fn unreadable(check: &mut Check<'_>, chunk: &MetadataChunk) {
    let what = format!("metadata chunk {} at {} cannot be read", chunk.fingerprint, chunk.address);
    check.report.add(ProblemKind::Container, what);
    check.lost.insert(chunk.fingerprint);
}

#[derive(Debug, Default)]
struct Table {
    known: HashMap<Fingerprint, Known>,
    references: u64,
}

impl Table {
    fn count(&mut self, piece: &Piece, is_mine: impl Fn(&Fingerprint) -> bool) {
        let Piece::Chunk { fingerprint, address, offset, length } = piece else { return };
        if !is_mine(fingerprint) {
            return;
        }
        self.references += 1;
        let chunk = self.known.entry(*fingerprint).or_default();
        chunk.references += 1;
        chunk.wanted_bytes = chunk.wanted_bytes.max(u64::from(*offset) + u64::from(*length));
        if Address::from_bits(chunk.address).container() != address.container() {
            chunk.other = address.bits();
        }
    }

    /// Compares what is known of each chunk. Without `knows_all` references a count may be too great, but never too small.
    fn judge(self, check: &mut Check<'_>, knows_all: bool) {
        for (fingerprint, chunk) in self.known {
            let address = Address::from_bits(chunk.address);
            let mut problem = |kind, what: String| check.report.add(kind, format!("chunk {fingerprint}{what}"));
            if chunk.references > 0 && !chunk.is_stored {
                problem(ProblemKind::MissingChunk, format!(" has {} references but is in no container that can be read", chunk.references));
                check.lost.insert(fingerprint);
            } else if chunk.references > 0 && chunk.wanted_bytes > u64::from(chunk.length_bytes) {
                let what = format!(" has {} bytes, a reference wants the first {}", chunk.length_bytes, chunk.wanted_bytes);
                problem(ProblemKind::MissingChunk, what);
                check.lost.insert(fingerprint);
            } else if chunk.is_indexed && chunk.address != 0 && !chunk.is_stored_there {
                problem(ProblemKind::WrongAddress, format!(": the index says that it is at {address}, where it is not"));
            } else if !chunk.is_indexed && chunk.references > 0 && check.knows_all_entries {
                problem(ProblemKind::WrongCount, format!(" has {} references but no entry in the index", chunk.references));
            }
            // A count that has reached its end stays there; the true one is not known any more.
            let count = u64::from(chunk.count);
            let is_wrong = count < chunk.references || (count > chunk.references && knows_all);
            if chunk.is_indexed && chunk.count != u32::MAX && is_wrong {
                let what = format!(" at {address}: the index counts {count} references, there are {}", chunk.references);
                check.report.add(ProblemKind::WrongCount, format!("chunk {fingerprint}{what}"));
            }
            if chunk.other != 0 && chunk.is_stored {
                other_place(check, &fingerprint, Address::from_bits(chunk.other));
            }
        }
    }
}

/// A reference names another container than the index does. That is right if this one has the chunk too.
fn other_place(check: &mut Check<'_>, fingerprint: &Fingerprint, address: Address) {
    let slots = check.engine.storage().slots(address.container());
    if !slots.is_ok_and(|slots| slots.iter().any(|(_, slot)| slot.fingerprint == *fingerprint)) {
        let what = format!("chunk {fingerprint}: a reference says that it is at {address}, where it is not");
        check.report.add(ProblemKind::WrongAddress, what);
        check.lost.insert(*fingerprint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_the_passes_follow_each_other() {
        for passes in [1, 2, 64, PASSES] {
            let mut next = Some(0);
            for pass in 0..passes as u64 {
                let range = range(pass, passes);
                assert_eq!(Some(*range.start()), next);
                next = range.end().checked_add(1);
            }
            assert_eq!(next, None);
        }
    }
}
