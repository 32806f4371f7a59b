//! Step 3 of `check`: compares the chunk index's entry of each chunk with the content of containers and with the sum of
//! all references.
//!
//! There is one pass per range of fingerprints, with enough passes that the table of each fits into memory. Nothing is
//! kept between passes: references are counted as they are read, so each pass reads the metadata chunks again.
//!
//! # Why concurrent writes cause no false findings
//! Entries, objects and stored metadata chunks change together, in commits. So a pass compares them as of one moment
//! between two commits ([`Moment`]). Passes may use different moments, because they compare different chunks.
//! * *Entries of the index* in the range of the pass: copied at that moment, or protected from sweeps from then on.
//!   They are read first, so sweeps wait only briefly.
//! * *Objects*: the durable ones. Submitted objects are ignored, because their counts come with their commit.
//! * *Stored metadata chunks*: slots never change once they are durable, so it is enough to know how many each
//!   container had. Whether the index named a copy at the moment is derived from what it names later ([`metadata_of`]).
//!
//! If several nodes have the store open, this node has the objects, and not all of the index. So counts are not
//! compared. What objects refer to, and what this node's part of the index names, must be in a container, whichever
//! node has that.
//!
//! Where each copy of a chunk counts for itself, there are no entries. The reference to an address must lead to a slot
//! there that is alive, or to where the copy was stored again. Each is looked up as it is read (`places.rs`), and the
//! table has a line only for a copy that is not as it should be. So one pass is enough, unless very much is missing.
//! * *Where chunks are*: again the durable slots. The list of containers is read after the moment; newer containers
//!   have no such slots. A reference is looked up among all slots: what it leads to was durable before it.

use super::places::Places;
use super::{Check, Needed, ProblemKind};
use crate::references::{Counts, MetadataChunk, StoreRoots, metadata_of, pieces_of_objects};
use crate::{Result, UpkeepError};
use onefold_engine::{Address, Engine, Moment, Piece};
use onefold_fingerprint::Fingerprint;
use onefold_index::IndexEntry;
use onefold_storage::{ContainerSet, Origin, Slot};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

/// Memory of one chunk in the table of counts. A hash map that has just grown is less than half full.
const CHUNK_BYTES: usize = 208;

/// What one pass knows about a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The address in the index.
    address: u64,
    count: u32,
    is_indexed: bool,
    /// Whether a container has it at that address.
    is_stored_there: bool,
    /// Whether any container has it.
    is_stored: bool,
    /// Its length in the last container found to have it.
    length_bytes: u32,
    references: u64,
    /// Whether it is referred to by a metadata chunk that may or may not count.
    is_uncertain: bool,
    /// The end of the furthest byte that a reference needs.
    wanted_bytes: u64,
    /// The address in a reference to another container than the index names.
    other: u64,
}

/// Runs step 3.
pub(crate) fn compare(check: &mut Check<'_>, containers: usize) -> Result<()> {
    let statistics = check.engine.index().map(|index| index.statistics()).unwrap_or_default();
    let chunks = (statistics.entries + statistics.auxiliary_entries).max(check.report.chunks) as usize;
    let wanted = chunks.saturating_mul(CHUNK_BYTES).div_ceil(check.options.memory_bytes.max(1));
    let is_exact = check.engine.descriptor().profile.is_exact();
    let mut passes = if is_exact { wanted.clamp(1, MAX_PASSES).next_power_of_two() } else { 1 };
    check.monitor.step("references", (passes as u64).saturating_mul(containers as u64 + 1));
    let mut missing = BTreeSet::new();
    let (mut pass, mut is_first) = (0, true);
    while pass < passes as u64 {
        let turn = Turn { range: range(pass, passes), is_first, may_divide: passes < MAX_PASSES };
        match one_pass(check, turn, &mut missing)? {
            Pass::Cancelled => return Ok(()),
            Pass::Done => pass += 1,
            // So much is missing that its table has no room. What was found before stays.
            Pass::NoRoom => (pass, passes) = (pass * MORE_PASSES as u64, passes * MORE_PASSES),
        }
        is_first = false;
        check.report.passes += 1;
    }
    Ok(())
}

/// Returns the fingerprint prefixes of a pass.
fn range(pass: u64, passes: usize) -> RangeInclusive<u64> {
    let shift = 64 - passes.trailing_zeros();
    match shift {
        64 => 0..=u64::MAX,
        shift => pass << shift..=(pass << shift) | (u64::MAX >> (64 - shift)),
    }
}

/// More passes than any store needs: each would have a chunk or two.
const MAX_PASSES: usize = 1 << 40;

/// Lines for which there is memory in any case.
const LEAST_LINES: usize = 256;

/// How often a pass is restarted because the object index failed during it.
const ATTEMPTS: usize = 3;

/// By how much a pass is divided whose table has no room.
const MORE_PASSES: usize = 16;

/// What became of a pass.
enum Pass {
    Done,
    Cancelled,
    /// Its table had no room: nothing of it was reported. It has to be divided.
    NoRoom,
}

/// What a pass is to do.
struct Turn {
    /// Prefixes of the names that it looks at.
    range: RangeInclusive<u64>,
    /// Whether it also reports what does not depend on the range.
    is_first: bool,
    /// Whether it may be divided. If not, what has no room is left out: names are alike only if somebody chose them.
    may_divide: bool,
}

/// Runs one pass.
fn one_pass(check: &mut Check<'_>, turn: Turn, missing: &mut BTreeSet<Origin>) -> Result<Pass> {
    let Turn { range, is_first, may_divide } = turn;
    let (engine, monitor) = (check.engine, check.monitor);
    let is_mine = |fingerprint: &Fingerprint| range.contains(&fingerprint.prefix());
    let mut attempts = 0;
    let (mut table, moment) = loop {
        let mut moment = engine.moment(Some(range.clone()))?;
        let mut table = Table::of(check);
        read_index(check, &mut table, &mut moment);
        pieces_of_objects(&moment, &mut |piece| table.count(engine, piece, 1, is_mine));
        attempts += 1;
        if !moment.has_moved() || attempts == ATTEMPTS {
            break (table, moment);
        }
    };
    monitor.advance(1);
    // Without counts, only what can be reached is needed: what an unneeded metadata chunk refers to may be gone.
    let mut wrong = Vec::new();
    let go_on = || !monitor.is_cancelled();
    let reached = engine.reached(&moment, &mut StoreRoots::new(engine.digest_bytes()), &go_on, &mut wrong)?;
    if is_first {
        wrong.into_iter().for_each(|what| check.report.add(ProblemKind::Marks, what));
    }
    // Listed after the moment, so it has all containers of that moment.
    let containers = engine.storage().units()?;
    let forwards = engine.storage().forwards()?;
    let answering = engine.storage().answering(&containers, &forwards)?;
    check.report.index_entries += table.known.values().filter(|chunk| chunk.is_indexed).count() as u64;
    // If a chunk with references cannot be read, counts may rightly be greater than the references found.
    let mut knows_all = check.knows_all_objects && !check.counts_more;
    for container in containers.iter() {
        if monitor.is_cancelled() {
            return Ok(Pass::Cancelled);
        }
        let durable = moment.containers().of(container);
        if durable == 0 {
            continue;
        }
        monitor.advance(1);
        // Step 2 reported damage of the container itself. If the dead slots are unknown, all slots may be alive.
        let dead = check.dead_slots(container)?;
        knows_all &= dead.is_some();
        let dead = dead.unwrap_or_default();
        let mut damaged = Vec::new();
        let slots = match engine.storage().known_chunks_of(container, &mut damaged) {
            Ok(slots) => slots,
            Err(error) => {
                knows_all &= dead.is_given_up();
                // The error says nothing about the stored data.
                if !error.is_damage() && !dead.is_given_up() {
                    return Err(error.into());
                }
                continue;
            }
        };
        knows_all &= damaged.is_empty();
        let counting = answering.origins(container, &slots)?;
        // Removed chunks and chunks in quarantine are not stored, whatever the catalog says.
        let alive = slots.iter().enumerate().take(durable).filter(|(number, _)| !dead.contains(*number)).map(|(_, slot)| slot);
        let alive = alive.filter(|(address, _)| counting.contains(&address.origin()));
        let is_noted = |(_, slot): &&(Address, Slot)| engine.descriptor().profile.is_exact() && is_mine(&slot.fingerprint);
        for (address, slot) in alive.filter(is_noted) {
            let chunk = table.known.entry(Needed::stored(engine, &slot.fingerprint, *address)).or_default();
            chunk.is_stored = true;
            chunk.length_bytes = slot.length_bytes;
            chunk.is_stored_there |= chunk.is_indexed && chunk.address == address.bits();
        }
        let metadata = metadata_of(engine, moment.containers(), &counting, container, &slots).into_iter();
        for (chunk, counts) in metadata.filter(|(chunk, _)| reached.as_ref().is_none_or(|reached| reached.contains(chunk.address))) {
            match (chunk.read_references(engine)?, counts) {
                (Some(pieces), Counts::Yes) => pieces.iter().for_each(|piece| table.count(engine, piece, 1, is_mine)),
                (Some(pieces), Counts::Perhaps) => pieces.iter().for_each(|piece| table.count(engine, piece, 0, is_mine)),
                (None, _) => {
                    knows_all = false;
                    if is_first {
                        unreadable(check, &chunk);
                    }
                }
            }
        }
    }
    if let Some(error) = table.failed.take() {
        return Err(error);
    }
    if table.has_no_room && may_divide {
        return Ok(Pass::NoRoom);
    }
    check.report.references += table.references;
    if engine.is_of_cluster() {
        table.look_into_containers_of_others(check, missing)?;
        table.judge(check, false, false)?;
        return Ok(Pass::Done);
    }
    table.missing_containers(check, &containers, &forwards, missing);
    table.judge(check, knows_all, !moment.has_moved())?;
    Ok(Pass::Done)
}

/// Adds the index entries of the moment's range to the table.
fn read_index(check: &mut Check<'_>, table: &mut Table, moment: &mut Moment<'_>) {
    let Some(chunks) = moment.take_chunks() else { return };
    let mut failed = Vec::new();
    let visit = &mut |fingerprint: &Fingerprint, entry: IndexEntry| {
        let known = Known { address: entry.address, count: entry.count, is_indexed: true, ..Known::default() };
        table.known.insert(Needed { fingerprint: *fingerprint, copy: Address::from_bits(0) }, known);
    };
    chunks.for_each(visit, &mut |error| failed.push(error));
    for error in failed {
        check.index_damage(&error.to_string());
    }
}

/// Reports a metadata chunk that cannot be read. Everything below it is lost with it.
fn unreadable(check: &mut Check<'_>, chunk: &MetadataChunk) {
    let what = format!("metadata chunk {} at {} cannot be read", chunk.fingerprint, chunk.address);
    check.report.add(ProblemKind::Container, what);
    check.lost.insert(Needed::stored(check.engine, &chunk.fingerprint, chunk.address));
}

#[derive(Debug)]
struct Table<'a> {
    known: HashMap<Needed, Known>,
    references: u64,
    /// Where each copy counts for itself.
    places: Option<Places<'a>>,
    /// The most lines, there.
    most: usize,
    has_no_room: bool,
    /// Why some reference could not be looked up, which says nothing about the store.
    failed: Option<UpkeepError>,
}

impl<'a> Table<'a> {
    fn of(check: &Check<'a>) -> Table<'a> {
        let is_exact = check.engine.descriptor().profile.is_exact();
        let places = (!is_exact).then(|| Places::within(check.engine, check.options.memory_bytes / 2));
        let most = (check.options.memory_bytes / 2 / CHUNK_BYTES).max(LEAST_LINES);
        Table { known: HashMap::new(), references: 0, places, most, has_no_room: false, failed: None }
    }

    /// Finds chunks in containers of other nodes, which step 2 has not looked at. Adds those that cannot be read to
    /// `missing`, and reports each once.
    fn look_into_containers_of_others(&mut self, check: &mut Check<'_>, missing: &mut BTreeSet<Origin>) -> Result<()> {
        let engine = check.engine;
        let is_elsewhere = |bits: &u64| *bits != 0 && !engine.has_containers_at(Address::from_bits(*bits));
        let mut wanted: BTreeMap<Origin, Vec<(Needed, Address)>> = BTreeMap::new();
        for (needed, chunk) in &self.known {
            let address = if chunk.address != 0 { chunk.address } else { chunk.other };
            if is_elsewhere(&address) {
                let address = Address::from_bits(address);
                wanted.entry(address.origin()).or_default().push((*needed, address));
            }
        }
        for (origin, chunks) in wanted {
            if check.monitor.is_cancelled() {
                return Ok(());
            }
            let slots: HashMap<(Address, Fingerprint), u32> = match engine.chunks_beside(chunks[0].1) {
                Ok((_, slots)) => slots.into_iter().map(|(address, slot)| ((address, slot.fingerprint), slot.length_bytes)).collect(),
                Err(error) if error.is_damage() => {
                    if missing.insert(origin) {
                        check.report.add(ProblemKind::Container, format!("container {origin} of another node cannot be read: {error}"));
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for (needed, address) in chunks {
                if let (Some(length_bytes), Some(chunk)) = (slots.get(&(address, needed.fingerprint)), self.known.get_mut(&needed)) {
                    (chunk.is_stored, chunk.length_bytes) = (true, *length_bytes);
                    chunk.is_stored_there |= chunk.address == address.bits();
                }
            }
        }
        Ok(())
    }

    /// Adds containers that the index names and that do not exist to `missing`, and reports each once.
    fn missing_containers(
        &self,
        check: &mut Check<'_>,
        containers: &ContainerSet,
        forwards: &ContainerSet,
        missing: &mut BTreeSet<Origin>,
    ) {
        let storage = check.engine.storage();
        let is_present = |origin: Origin| storage.is_present(origin, containers, forwards);
        let indexed = self.known.values().map(|chunk| Address::from_bits(chunk.address));
        let engine = check.engine;
        let is_new = |needed: &Needed| !matches!(engine.quarantined(&needed.fingerprint, needed.copy), Ok(Some(_)));
        let needed = self.known.iter().filter(|(_, chunk)| chunk.references > 0 && !chunk.is_indexed).map(|(needed, _)| needed);
        let needed = needed.filter(|needed| !is_present(needed.copy.origin()) && is_new(needed)).map(|needed| needed.copy);
        for address in indexed.chain(needed).filter(|address| address.bits() != 0) {
            let origin = address.origin();
            if !is_present(origin) && missing.insert(origin) {
                let found = check.engine.storage().chunks_beside(origin);
                let why = found.map_or_else(|error| error.to_string(), |_| "its file is missing".into());
                check.report.add(ProblemKind::Container, format!("container {origin} is missing: {why}"));
            }
        }
    }

    /// Adds a reference that counts once (`times` is 1), or may count (0).
    fn count(&mut self, engine: &Engine, piece: &Piece, times: u64, is_mine: impl Fn(&Fingerprint) -> bool) {
        let Piece::Chunk { fingerprint, address, offset, length: length_bytes } = piece else { return };
        if !is_mine(fingerprint) {
            return;
        }
        let mut needed = Needed::by(engine, fingerprint, *address);
        let mut stored = None;
        if let Some(places) = &mut self.places {
            let mut found = places.length_of(&needed);
            if matches!(found, Ok(None)) && !self.known.contains_key(&needed) {
                // A writer may have stored it again since, elsewhere or where it was looked for before.
                needed = Needed::by(engine, fingerprint, *address);
                places.forget(&needed);
                found = places.length_of(&needed);
            }
            stored = found.unwrap_or_else(|error| {
                self.failed = Some(error);
                None
            });
            if stored.is_some_and(|length| u64::from(*offset) + u64::from(*length_bytes) <= u64::from(length)) {
                self.references += times;
                return;
            }
        }
        if self.places.is_some() && self.known.len() >= self.most && !self.known.contains_key(&needed) {
            self.has_no_room = true;
            return;
        }
        let chunk = self.known.entry(needed).or_default();
        if let Some(length_bytes) = stored {
            (chunk.is_stored, chunk.length_bytes) = (true, length_bytes);
        }
        if times == 0 {
            chunk.is_uncertain = true;
            return;
        }
        self.references += times;
        chunk.references += times;
        chunk.wanted_bytes = chunk.wanted_bytes.max(u64::from(*offset) + u64::from(*length_bytes));
        if needed.copy.bits() != 0 {
            chunk.other = needed.copy.bits();
        } else if Address::from_bits(chunk.address).origin() != address.origin() {
            chunk.other = address.bits();
        }
    }

    /// Compares what is known of each chunk. Without `knows_all`, a count may be too great, but never too small.
    /// Without `is_one_moment`, counts and references are of different times, so counts are not compared.
    fn judge(self, check: &mut Check<'_>, knows_all: bool, is_one_moment: bool) -> Result<()> {
        let counts = check.engine.descriptor().profile.counts();
        let is_exact = check.engine.descriptor().profile.is_exact();
        for (needed, chunk) in self.known {
            let fingerprint = needed.fingerprint;
            let address = Address::from_bits(chunk.address);
            let mut problem = |kind, what: String| check.report.add(kind, format!("chunk {fingerprint}{what}"));
            // A copy that the index does not name is of no use: reads and writes ask the index.
            let is_nowhere = is_one_moment && chunk.is_indexed && chunk.address == 0;
            let is_missing = chunk.references > 0 && (!chunk.is_stored || is_nowhere);
            if !is_exact && check.dead_ends.contains(&needed.copy.origin()) && check.lost.contains(&needed) {
                // Its address leads nowhere, although a container has it. That was reported.
                continue;
            }
            if is_missing {
                missing(check, needed, &chunk);
            } else if chunk.references > 0 && chunk.wanted_bytes > u64::from(chunk.length_bytes) {
                let what = format!(" has {} bytes, but a reference needs the first {}", chunk.length_bytes, chunk.wanted_bytes);
                problem(ProblemKind::MissingChunk, what);
                check.lost.insert(needed);
            } else if chunk.is_indexed && chunk.address != 0 && !chunk.is_stored_there {
                problem(ProblemKind::WrongAddress, format!(" is not at {address}, where the index places it"));
            } else if is_exact && is_one_moment && !chunk.is_indexed && chunk.references > 0 && check.knows_all_entries {
                problem(ProblemKind::WrongCount, format!(" has {} but no entry in the index", referred(chunk.references)));
            }
            // A count that has reached its maximum stays there. The true count is unknown.
            let count = u64::from(chunk.count);
            let counted = if counts { chunk.references } else { 0 };
            let is_wrong = count < counted || (count > counted && (knows_all || !counts) && !chunk.is_uncertain);
            if is_one_moment && chunk.is_indexed && chunk.count != u32::MAX && is_wrong {
                let what = format!(" at {address}: the index counts {} instead of {counted}", referred(count));
                check.report.add(ProblemKind::WrongCount, format!("chunk {fingerprint}{what}"));
            }
            // A read looks where the index says if the chunk is not where its recipe says.
            if is_exact && chunk.other != 0 && !is_missing && chunk.is_stored && !chunk.is_stored_there {
                other_place(check, &fingerprint, Address::from_bits(chunk.other))?;
            }
        }
        Ok(())
    }
}

/// Formats a number of references: `1 reference`, `2 references`.
fn referred(count: u64) -> String {
    if count == 1 { "1 reference".to_owned() } else { format!("{count} references") }
}

/// Reports a chunk that has references and cannot be read.
fn missing(check: &mut Check<'_>, needed: Needed, chunk: &Known) {
    let fingerprint = needed.fingerprint;
    let references = referred(chunk.references);
    match check.engine.quarantined(&fingerprint, needed.copy) {
        Ok(Some(known)) => {
            let length = if known.length_bytes > 0 { format!(" ({} bytes)", known.length_bytes) } else { String::new() };
            let what =
                format!("chunk {fingerprint}{length} has {references} and is lost: it stays in quarantine until it is written again");
            check.report.quarantined_chunks += 1;
            if known.kind.is_none() {
                check.kinds.want(needed);
            }
            check.report.add(ProblemKind::Quarantined, what);
        }
        Ok(None) | Err(_) => {
            let where_not = if chunk.is_stored { "the index does not say where it is" } else { "is in no readable container" };
            let at = if needed.copy.bits() != 0 { format!(" at {}", needed.copy) } else { String::new() };
            let what = format!("chunk {fingerprint}{at} has {references} but {where_not}");
            check.report.add(ProblemKind::MissingChunk, what);
            check.missing.insert_at(needed, if chunk.address == 0 { chunk.other } else { chunk.address });
            check.kinds.want(needed);
        }
    }
    check.lost.insert(needed);
}

/// Checks a reference to another container than the index names. That is correct if this container has the chunk too.
fn other_place(check: &mut Check<'_>, fingerprint: &Fingerprint, address: Address) -> Result<()> {
    let storage = check.engine.storage();
    let slots = match storage.chunks_beside(address.origin()) {
        Ok((container, mut slots)) => {
            // A slot in quarantine cannot be read.
            let dead = check.dead_slots(container)?.unwrap_or_default();
            let mut number = 0..;
            slots.retain(|_| number.next().is_some_and(|number| !dead.contains(number)));
            slots
        }
        Err(error) if error.is_damage() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    if !slots.iter().any(|(_, slot)| slot.fingerprint == *fingerprint) {
        let what = format!("chunk {fingerprint} is not at {address}, where a reference places it");
        check.report.add(ProblemKind::WrongAddress, what);
        check.lost.insert(Needed::stored(check.engine, fingerprint, address));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_the_passes_follow_each_other() {
        for passes in [1, 2, 64, 1 << 16] {
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
