//! The path of a read: recipe, plan, containers, bytes.

pub(crate) mod moment;
pub(crate) mod recipe;
pub(crate) mod snapshot;
pub(crate) mod views;

use crate::cluster::container_of;
use crate::components::FINGERPRINT;
use crate::{Candidate, Contents, Engine, EngineError, Piece, Recipe, Result, decode_pieces};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_storage::{Address, ChunkKind, ContainerStore, Origin, Slice, StorageError};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Chunks loaded in one plan: neighbours share a read.
const BATCH_CHUNKS: usize = 128;
/// Most bytes of frames in memory for one plan, if every chunk lies in a frame of its own. With larger frames, fewer
/// chunks are loaded at once.
const BATCH_BYTES: usize = 64 << 20;

/// Returns how many chunks are loaded at once. A frame takes chunks until it has `frame_bytes`, so it may be longer by
/// nearly the longest chunk.
fn batch_chunks(frame_bytes: usize, longest_chunk_bytes: usize) -> usize {
    (BATCH_BYTES / (frame_bytes + longest_chunk_bytes)).clamp(1, BATCH_CHUNKS)
}

/// Returns where a piece is, and its length; `None`: nowhere.
fn place(piece: &Piece) -> Option<(Address, u32)> {
    match piece {
        Piece::Chunk { address, length, .. } => Some((*address, *length)),
        Piece::Zeros { .. } => None,
    }
}

impl Engine {
    /// Says that all of a backup will be read. Only for a process that does little else.
    pub fn will_read_all(&self) {
        if let Some(containers) = &self.containers {
            containers.will_read_all();
        }
    }

    /// Says that these pieces will be read soon. Does not wait. A store in a bucket then fetches containers of which
    /// much will be read.
    pub fn will_read(&self, pieces: &[Piece]) {
        if let Some(containers) = self.containers_in_bucket() {
            containers.will_read(pieces.iter().filter_map(place));
        }
    }

    /// Returns how many of these pieces, from the first one on, need not wait for a container that [`will_read`] made
    /// be fetched.
    ///
    /// [`will_read`]: Engine::will_read
    pub fn here(&self, pieces: &[Piece]) -> usize {
        let first_coming = self.containers_in_bucket().and_then(|containers| {
            let places = pieces.iter().enumerate().filter_map(|(number, piece)| Some((number, place(piece)?.0)));
            containers.first_coming(places)
        });
        first_coming.unwrap_or(pieces.len())
    }

    fn containers_in_bucket(&self) -> Option<&ContainerStore> {
        self.containers.as_deref().filter(|_| self.ground.bucket().is_some())
    }

    /// Reads bytes `start .. start + out.len()` of the run that level-0 `pieces` spell. Either the checksum of a frame
    /// or the fingerprint of the chunk is verified; with `verify`, both. Damage is an error that names container and
    /// chunk, never wrong bytes.
    pub fn read(&self, pieces: &[Piece], start: u64, out: &mut [u8], verify: bool) -> Result<()> {
        self.check_may_answer()?;
        self.served(out.len());
        let end = start.saturating_add(out.len() as u64);
        let mut wanted = Vec::new();
        // The place in `out` for each wanted chunk, and which of its bytes go there.
        let mut targets = Vec::new();
        let frame_bytes = self.descriptor.frame_bytes.max(self.descriptor.sequential_frame_bytes) as usize;
        let batch_chunks = batch_chunks(frame_bytes, self.chunker.limits().max);
        let mut at = 0u64;
        for piece in pieces {
            // Lengths come from recipe chunks: their sum may overflow.
            let (from, to) = (at.max(start), at.saturating_add(piece.length()).min(end));
            if from < to {
                let target = (from - start) as usize..(to - start) as usize;
                match piece {
                    Piece::Zeros { .. } => out[target].fill(0),
                    Piece::Chunk { fingerprint, address, offset, .. } => {
                        wanted.push((*address, *fingerprint));
                        targets.push((target, *offset as usize + (from - at) as usize));
                        if wanted.len() == batch_chunks {
                            self.fill(&mut wanted, &mut targets, out, verify)?;
                        }
                    }
                }
            }
            at = at.saturating_add(piece.length());
            if at >= end {
                break;
            }
        }
        if at < end {
            return Err(EngineError::PastEnd { start, end, length: at });
        }
        self.fill(&mut wanted, &mut targets, out, verify)
    }

    /// Loads the wanted chunks, copies their parts to their targets, and empties both lists.
    fn fill(
        &self,
        wanted: &mut Vec<(Address, Fingerprint)>,
        targets: &mut Vec<(std::ops::Range<usize>, usize)>,
        out: &mut [u8],
        verify: bool,
    ) -> Result<()> {
        let slices = self.load_chunks(wanted, ChunkKind::Data, verify)?;
        for ((slice, (address, fingerprint)), (target, from)) in slices.iter().zip(wanted.iter()).zip(targets.iter()) {
            let source = slice.get(*from..*from + target.len()).ok_or_else(|| EngineError::Inconsistent {
                why: format!(
                    "a recipe needs the first {} bytes of chunk {fingerprint} at {address}, which has {}",
                    from + target.len(),
                    slice.len()
                ),
            })?;
            out[target.clone()].copy_from_slice(source);
        }
        wanted.clear();
        targets.clear();
        Ok(())
    }

    /// Loads chunks. If a chunk cannot be read where its recipe says, asks the chunk index for another copy.
    fn load_chunks(&self, wanted: &[(Address, Fingerprint)], kind: ChunkKind, verify: bool) -> Result<Vec<Slice>> {
        let load = |wanted: &[(Address, Fingerprint)]| {
            let mut slices = Vec::with_capacity(wanted.len());
            if verify {
                self.storage.load(wanted, &mut slices).map_err(EngineError::from).and_then(|()| self.verify(wanted, &slices, kind))?;
            } else {
                self.storage.load_short(wanted, &mut slices)?;
            }
            Ok(slices)
        };
        match load(wanted) {
            Err(error) if can_be_elsewhere(&error) => {}
            loaded => return loaded,
        }
        // Neighbours are often joined with other copies together.
        if self.redirects.is_used() {
            let end = |address: Address| self.redirects.follow(address, &mut |_| {}).unwrap_or(address);
            let elsewhere: Vec<(Address, Fingerprint)> = wanted.iter().map(|(address, chunk)| (end(*address), *chunk)).collect();
            if elsewhere != wanted
                && let Ok(slices) = load(&elsewhere)
            {
                return Ok(slices);
            }
        }
        wanted.iter().map(|one| self.load_or_other_copy(*one, kind, verify)).collect()
    }

    fn load_or_other_copy(&self, wanted: (Address, Fingerprint), kind: ChunkKind, verify: bool) -> Result<Slice> {
        let load = |address: Address| -> Result<Slice> {
            let mut slices = Vec::new();
            let wanted = [(address, wanted.1)];
            self.storage.load(&wanted, &mut slices)?;
            if verify {
                self.verify(&wanted, &slices, kind)?;
            }
            slices.pop().ok_or_else(|| EngineError::Inconsistent { why: "a loaded chunk was not returned".into() })
        };
        let error = match load(wanted.0) {
            Ok(slice) => return Ok(slice),
            Err(error) => error,
        };
        // Another node may not have put it into the bucket yet.
        let container = container_of(wanted.0);
        if let Some(cluster) = &self.cluster
            && self.containers.as_ref().is_some_and(|containers| !containers.has_partition(container.partition()))
            && cluster.others.seal(container).is_ok()
            && let Ok(slice) = load(wanted.0)
        {
            return Ok(slice);
        }
        // First try to rebuild the container from parity.
        if self.repair_after(&error, wanted.0)
            && let Ok(slice) = load(wanted.0)
        {
            return Ok(slice);
        }
        let mut others = Vec::new();
        if let Err(error) = self.redirects.follow(wanted.0, &mut |next| others.push(next)) {
            tracing::warn!(%error, "cannot look up where a copy is now");
        }
        others.reverse();
        others.extend(self.locate(&wanted.1).ok().flatten());
        others.retain(|address| *address != wanted.0);
        others.into_iter().find_map(|address| load(address).ok()).ok_or(error)
    }

    /// Loads whole data chunks and compares them with their fingerprints.
    pub fn load(&self, wanted: &[(Address, Fingerprint)]) -> Result<Vec<Slice>> {
        let slices = self.load_chunks(wanted, ChunkKind::Data, true)?;
        self.served(slices.iter().map(|slice| slice.len()).sum());
        Ok(slices)
    }

    /// Returns where the indexes have a chunk. Where each copy counts for itself, it is advice: some copy, as far as
    /// anybody knows one.
    pub fn locate(&self, fingerprint: &Fingerprint) -> Result<Option<Address>> {
        if let Some(address) = self.claims.address(fingerprint) {
            return Ok(Some(address));
        }
        if let Some(partition) = self.foreign_partition(fingerprint) {
            return Err(EngineError::NotOwned { partition });
        }
        let mut found = Vec::with_capacity(1);
        self.lookup.find(std::slice::from_ref(fingerprint), &mut found)?;
        Ok(found.pop().flatten())
    }

    /// Returns where the chunk index has these chunks, one answer for each. `None`: nowhere. A stored chunk that is not
    /// durable yet is nowhere, and so is one whose partition of the index another node has. No answers: there is no
    /// chunk index, and each copy counts for itself.
    pub fn places(&self, chunks: &[Fingerprint]) -> Result<Option<Vec<Option<Address>>>> {
        if self.lookup.index().is_none() {
            return Ok(None);
        }
        if !self.is_of_cluster() {
            let mut places = Vec::with_capacity(chunks.len());
            self.lookup.find(chunks, &mut places)?;
            return Ok(Some(places));
        }
        let is_here = |chunk: &&Fingerprint| self.foreign_partition(chunk).is_none();
        let here: Vec<Fingerprint> = chunks.iter().filter(is_here).copied().collect();
        let mut places = Vec::with_capacity(here.len());
        self.lookup.find(&here, &mut places)?;
        let mut places = places.into_iter();
        Ok(Some(chunks.iter().map(|chunk| if is_here(&chunk) { places.next().flatten() } else { None }).collect()))
    }

    /// Returns for each of these copies whether it counts: the chunk index names it, or, where each copy counts for
    /// itself, it is alive. Errors: a sentence.
    pub(crate) fn are_current(&self, copies: &[Candidate]) -> std::result::Result<Vec<bool>, String> {
        let names: Vec<Fingerprint> = copies.iter().map(|copy| copy.fingerprint).collect();
        match self.places(&names) {
            Ok(Some(places)) => Ok(copies.iter().zip(places).map(|(copy, place)| place == Some(copy.address)).collect()),
            Ok(None) => {
                let mut alive: HashMap<Origin, Vec<Candidate>> = HashMap::new();
                for copy in copies {
                    if let Entry::Vacant(of_origin) = alive.entry(copy.address.origin()) {
                        of_origin.insert(self.alive_in(copy.address.origin()).map_err(|error| error.to_string())?);
                    }
                }
                Ok(copies.iter().map(|copy| alive[&copy.address.origin()].binary_search(copy).is_ok()).collect())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the chunks of an origin that are alive, sorted. If nothing of it is left, there are none.
    pub(crate) fn alive_in(&self, origin: Origin) -> Result<Vec<Candidate>> {
        let Some(Contents { slots, dead, .. }) = self.contents(origin)? else { return Ok(Vec::new()) };
        let alive = slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number)).map(|(_, slot)| slot);
        let of_origin = alive.filter(|(address, _)| address.origin() == origin);
        let mut alive: Vec<_> = of_origin.map(|(address, slot)| Candidate { address: *address, fingerprint: slot.fingerprint }).collect();
        alive.sort_unstable();
        Ok(alive)
    }

    /// Returns whether the copy of a chunk that an address leads to is stored.
    pub fn is_stored(&self, fingerprint: &Fingerprint, address: Address) -> Result<bool> {
        let address = self.redirects.follow(address, &mut |_| {})?;
        Ok(self.alive_in(address.origin())?.binary_search(&Candidate { address, fingerprint: *fingerprint }).is_ok())
    }

    /// Compares bytes with their fingerprints.
    fn verify(&self, wanted: &[(Address, Fingerprint)], slices: &[Slice], kind: ChunkKind) -> Result<()> {
        let bytes = slices.iter().map(|slice| slice.len() as u64).sum();
        let algorithm = self.descriptor.fingerprint;
        let found: Vec<Fingerprint> = self.profile.time(&FINGERPRINT, bytes, || {
            if kind == ChunkKind::Data {
                let chunks: Vec<&[u8]> = slices.iter().map(|slice| &slice[..]).collect();
                let mut found = Vec::with_capacity(chunks.len());
                algorithm.fingerprint_many(&chunks, &mut found);
                found
            } else {
                slices.iter().map(|slice| algorithm.metadata(slice)).collect()
            }
        });
        for ((address, expected), found) in wanted.iter().zip(found) {
            if *expected != found {
                return Err(EngineError::WrongChunk { fingerprint: expected.to_string(), address: *address });
            }
        }
        Ok(())
    }

    /// Returns the content of a metadata chunk, verified against its fingerprint.
    pub fn read_metadata(&self, piece: &Piece) -> Result<Slice> {
        let Piece::Chunk { fingerprint, address, .. } = piece else {
            return Err(EngineError::Inconsistent { why: "zeros are in place of a metadata chunk".into() });
        };
        let mut slices = self.load_chunks(&[(*address, *fingerprint)], ChunkKind::Recipe, true)?;
        slices.pop().ok_or_else(|| EngineError::Inconsistent { why: "a loaded chunk was not returned".into() })
    }

    /// Passes the level-0 pieces of a recipe, read level by level, to `visit` in order. `visit` returns false to stop.
    pub fn expand(&self, recipe: &Recipe, visit: &mut dyn FnMut(&Piece) -> bool) -> Result<()> {
        self.expand_level(&recipe.pieces, recipe.level, visit).map(|_| ())
    }

    /// Depth is bounded by [`crate::MAX_LEVEL`], which decoding enforces.
    fn expand_level(&self, pieces: &[Piece], level: u8, visit: &mut dyn FnMut(&Piece) -> bool) -> Result<bool> {
        for piece in pieces {
            let go_on = if level == 0 {
                visit(piece)
            } else {
                let below = self.recipe_chunk(piece)?;
                self.expand_level(&below, level - 1, visit)?
            };
            if !go_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the pieces in a recipe chunk.
    pub fn recipe_chunk(&self, piece: &Piece) -> Result<Vec<Piece>> {
        let content = self.read_metadata(piece)?;
        let mut reader = Reader::new(&content);
        decode_pieces(&mut reader, self.digest_bytes())
            .and_then(|pieces| reader.end().map(|()| pieces))
            .map_err(|source| EngineError::Wire { what: "recipe chunk".into(), source })
    }
}

/// Returns whether another copy of the chunk may help: it is damaged, or the device cannot read it.
fn can_be_elsewhere(error: &EngineError) -> bool {
    error.is_damage() || matches!(error, EngineError::Storage(StorageError::Ground(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_chunks_are_loaded_at_once_where_frames_or_chunks_are_long() {
        assert_eq!(batch_chunks(64 << 10, 32 << 10), BATCH_CHUNKS);
        for (frame_bytes, longest_chunk_bytes) in [(4 << 20, 32 << 10), (64 << 10, 16 << 20), (4 << 20, 16 << 20)] {
            let chunks = batch_chunks(frame_bytes, longest_chunk_bytes);
            assert!(chunks >= 1 && chunks * (frame_bytes + longest_chunk_bytes) <= BATCH_BYTES);
        }
        assert_eq!(batch_chunks(BATCH_BYTES, BATCH_BYTES), 1);
    }
}
