//! Step 3 of a repair: takes chunks out of quarantine that can be read again, container by container: where they were
//! lost, or where there is another copy.

use super::Repair;
use super::suspects;
use crate::Result;
use crate::references::of_chunk;
use onefold_engine::{Address, ContainerId, Engine, LostChunk, Piece, Quarantined, Readable};
use onefold_fingerprint::Fingerprint;
use onefold_storage::ChunkKind;
use std::collections::HashMap;
use std::sync::Arc;

/// Memory of a chunk that is searched for.
const WANTED_BYTES: usize = 256;
/// The most chunks, and the most references of them, restored together.
const TOGETHER: usize = 4096;
const REFERENCES_TOGETHER: usize = 1 << 16;

/// A place where a chunk may be: the file, its address there, its index in the list of wanted chunks.
type Place = (ContainerId, Address, usize);

impl Repair<'_> {
    /// Searches for all chunks in quarantine, as many at a time as memory allows.
    pub(super) fn restore(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let mut given_up = Vec::new();
        engine.for_each_dead(&mut |container, dead| given_up.extend(dead.is_given_up().then_some(container)))?;
        for container in given_up {
            if !self.go_on() {
                return Ok(());
            }
            engine.take_up_container(container)?;
        }
        let mut total = 0;
        engine.for_each_quarantined(&mut |_| total += 1)?;
        self.monitor.step("chunks in quarantine", total);
        let before = self.report.restored_chunks;
        let limit = (self.options.memory_bytes / 4 / WANTED_BYTES).max(TOGETHER);
        // Restored chunks may need others that are nowhere, which was not known before. Each round finds one more level
        // of these.
        loop {
            let known = self.report.quarantined_chunks;
            engine.for_each_quarantined_batch(limit, &mut |batch| self.restore_some(engine, batch))?;
            if self.report.quarantined_chunks == known || !self.go_on() {
                break;
            }
        }
        let count = self.report.restored_chunks - before;
        if count > 0 {
            let what = self.say(count, "chunk in quarantine", "chunks in quarantine", "restored");
            self.did(format!("{what}: readable again"));
        }
        Ok(())
    }

    fn restore_some(&mut self, engine: &Arc<Engine>, chunks: &[Quarantined]) -> Result<()> {
        let mut is_found = vec![false; chunks.len()];
        let known = chunks.iter().enumerate().filter(|(_, chunk)| chunk.address.bits() != 0);
        let places =
            known.filter_map(|(number, chunk)| Some((engine.storage().unit_of(chunk.address.origin()).ok()?, chunk.address, number)));
        self.restore_at(engine, chunks, places.collect(), &mut is_found)?;
        if is_found.contains(&false) {
            let others = self.other_places(engine, chunks, &is_found)?;
            self.restore_at(engine, chunks, others, &mut is_found)?;
        }
        self.monitor.advance(chunks.len() as u64);
        Ok(())
    }

    /// Returns every copy, in any container, of chunks that were not found, including copies that the index never knew.
    fn other_places(&self, engine: &Arc<Engine>, chunks: &[Quarantined], is_found: &[bool]) -> Result<Vec<Place>> {
        let wanted = chunks.iter().enumerate().filter(|(number, _)| !is_found[*number]);
        let mut by_name: HashMap<Fingerprint, Vec<usize>> = HashMap::new();
        wanted.for_each(|(number, chunk)| by_name.entry(chunk.fingerprint).or_default().push(number));
        let mut places = Vec::new();
        for container in engine.storage().units()?.iter() {
            if !self.go_on() {
                break;
            }
            for (address, slot) in engine.storage().chunks_of(container).unwrap_or_default() {
                let numbers = by_name.get(&slot.fingerprint).into_iter().flatten().filter(|number| chunks[**number].address != address);
                places.extend(numbers.map(|number| (container, address, *number)));
            }
        }
        Ok(places)
    }

    /// Restores the chunks that can be read at one of these places.
    fn restore_at(&mut self, engine: &Arc<Engine>, chunks: &[Quarantined], mut places: Vec<Place>, is_found: &mut [bool]) -> Result<()> {
        places.sort_unstable();
        for of_file in places.chunk_by(|one, next| one.0 == next.0) {
            if !self.go_on() {
                break;
            }
            let Ok(slots) = suspects::lasting(|| engine.storage().chunks_of(of_file[0].0))? else { continue };
            let kinds: HashMap<(Address, Fingerprint), ChunkKind> =
                slots.into_iter().map(|(address, slot)| ((address, slot.fingerprint), slot.kind)).collect();
            let (mut readable, mut references) = (Vec::new(), 0);
            for (_, address, number) in of_file.iter().filter(|(_, _, number)| !is_found[*number]).copied().collect::<Vec<_>>() {
                let fingerprint = chunks[number].fingerprint;
                let Some(kind) = kinds.get(&(address, fingerprint)).filter(|_| !is_found[number]) else { continue };
                let Some(found) = references_of(engine, address, &fingerprint, *kind)? else { continue };
                references += found.len();
                readable.push(Readable { fingerprint, address, lost: chunks[number].address, references: found });
                is_found[number] = true;
                if readable.len() >= TOGETHER || references >= REFERENCES_TOGETHER {
                    self.restored(engine, &readable)?;
                    readable.clear();
                    references = 0;
                }
            }
            self.restored(engine, &readable)?;
        }
        Ok(())
    }

    fn restored(&mut self, engine: &Arc<Engine>, readable: &[Readable]) -> Result<()> {
        let (fitting, others) = readable.split_at(readable.len().min(self.room));
        if self.options.dry_run {
            self.room -= fitting.len();
        }
        self.is_cut |= !others.is_empty();
        self.report.restored_chunks += engine.restore_chunks(fitting)? + others.len() as u64;
        self.lose_needed(engine, fitting)
    }

    /// Loses chunks that restored ones need and that are nowhere. If the chunk index was rebuilt without a chunk, its
    /// references may be new to the index.
    fn lose_needed(&mut self, engine: &Arc<Engine>, restored: &[Readable]) -> Result<()> {
        let mut needed: Vec<Fingerprint> = restored.iter().flat_map(|chunk| &chunk.references).copied().collect();
        needed.sort_unstable();
        needed.dedup();
        let mut entries = Vec::with_capacity(needed.len());
        // Without an index, the next check finds them.
        let Some(index) = engine.index() else { return Ok(()) };
        index.lookup(&needed, &mut entries)?;
        let mut lost = Vec::new();
        for (fingerprint, entry) in needed.iter().zip(entries) {
            if entry.is_some_and(|entry| entry.address == 0) && engine.quarantined(fingerprint, Address::from_bits(0))?.is_none() {
                lost.push(LostChunk { fingerprint: *fingerprint, address: Address::from_bits(0), slot: None, is_needed: true });
            }
        }
        if lost.is_empty() { Ok(()) } else { self.lose(engine, &lost, "restored chunks need them, and no container has them") }
    }
}

/// Returns what a chunk refers to, if it can be read.
fn references_of(engine: &Arc<Engine>, address: Address, fingerprint: &Fingerprint, kind: ChunkKind) -> Result<Option<Vec<Fingerprint>>> {
    let Some(content) = suspects::content(engine, address, fingerprint, kind)? else { return Ok(None) };
    let pieces = of_chunk(&content, kind, engine.digest_bytes());
    Ok(pieces.map(|pieces| pieces.iter().filter_map(Piece::fingerprint).collect()))
}
