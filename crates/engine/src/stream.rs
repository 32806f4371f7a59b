//! The way of a write: cut, fingerprint, reserve, filter chain, place; pieces come back (design: engine, write).

use crate::chain::{Candidate, Chain, Request, is_zero};
use crate::reservation::{FingerprintMap, Reservation};
use crate::{Engine, EngineError, Piece, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_storage::{Address, ChunkKind, NewChunk, Writer};
use std::sync::Arc;

/// Chunks handled in one batch: bounds the reservations that a stream holds.
const BATCH_CHUNKS: usize = 1024;

/// What a writer knows that helps the filter chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// The current pieces of what is being overwritten (block-index filter, M0.7).
    pub overwritten: &'a [Piece],
    /// A volume's own filter chain; `None`: the store's.
    pub chain: Option<&'a Chain>,
}

/// Kinds of metadata chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataKind {
    /// Pieces of a recipe.
    Recipe,
    /// Entries of a directory.
    Directory,
}

/// A writing stream: a thread's way into the store. Its new chunks lie together in its own open container.
#[derive(Debug)]
pub struct WriteStream {
    engine: Arc<Engine>,
    writer: Writer,
    added_bytes: u64,
}

/// Frees the reservations of a batch that were not placed, whatever way the batch ends.
struct Held<'a> {
    engine: &'a Engine,
    fingerprints: Vec<Fingerprint>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for fingerprint in &self.fingerprints {
            self.engine.reservations.release(fingerprint);
        }
    }
}

/// Chunks that go through reservations and filter chain together.
#[derive(Clone, Copy)]
struct Batch<'a> {
    chunks: &'a [&'a [u8]],
    /// One for each chunk.
    fingerprints: &'a [Fingerprint],
    kind: ChunkKind,
    /// What a metadata chunk refers to.
    references: &'a [Fingerprint],
    chain: &'a Chain,
    /// The current pieces of what is being overwritten.
    overwritten: &'a [Piece],
}

/// Where a chunk of a batch was found to be.
#[derive(Clone, Copy)]
enum Place {
    Unknown,
    Zeros,
    At(Address),
}

impl WriteStream {
    pub(crate) fn new(engine: Arc<Engine>) -> WriteStream {
        let writer = engine.storage.writer();
        WriteStream { engine, writer, added_bytes: 0 }
    }

    /// Bytes of the chunks that this stream has stored because they were new.
    pub fn added_bytes(&self) -> u64 {
        self.added_bytes
    }

    /// Cuts `data` into chunks, stores the new ones and appends the pieces to `out`. With `last` the end of `data` is the end of a
    /// run and all of it is consumed; without, the tail whose boundary is not known yet is left to the caller, who passes it again at
    /// the front of more data. Returns the number of bytes consumed. Data of at least the chunker's maximum size is never consumed as 0.
    pub fn write(&mut self, data: &[u8], last: bool, hints: Hints<'_>, out: &mut Vec<Piece>) -> Result<usize> {
        let mut cuts = Vec::new();
        let consumed = self.engine.profile.time(Component::Chunking, data.len() as u64, || self.engine.chunker.cut(data, last, &mut cuts));
        let mut chunks = Vec::with_capacity(cuts.len());
        let mut start = 0;
        for cut in cuts {
            chunks.push(&data[start..cut]);
            start = cut;
        }
        for piece in self.store(&chunks, hints)? {
            push_piece(out, piece);
        }
        Ok(consumed)
    }

    /// Stores many whole short runs (small files) in one batch; returns the pieces of each.
    pub fn write_runs(&mut self, runs: &[&[u8]], hints: Hints<'_>) -> Result<Vec<Vec<Piece>>> {
        let bytes = runs.iter().map(|run| run.len() as u64).sum();
        let mut chunks = Vec::with_capacity(runs.len());
        let mut counts = Vec::with_capacity(runs.len());
        let mut cuts = Vec::new();
        self.engine.profile.time(Component::Chunking, bytes, || {
            for run in runs {
                cuts.clear();
                self.engine.chunker.cut(run, true, &mut cuts);
                let mut start = 0;
                for cut in &cuts {
                    chunks.push(&run[start..*cut]);
                    start = *cut;
                }
                counts.push(cuts.len());
            }
        });
        let mut pieces = self.store(&chunks, hints)?.into_iter();
        Ok(counts
            .into_iter()
            .map(|count| {
                let mut run = Vec::with_capacity(count);
                pieces.by_ref().take(count).for_each(|piece| push_piece(&mut run, piece));
                run
            })
            .collect())
    }

    /// Stores a metadata chunk that refers to `references` (one each time it names a chunk); they are counted if the chunk is new.
    pub fn write_metadata(&mut self, kind: MetadataKind, content: &[u8], references: &[Fingerprint]) -> Result<Piece> {
        let engine = self.engine.clone();
        engine.admit()?;
        let kind = match kind {
            MetadataKind::Recipe => ChunkKind::Recipe,
            MetadataKind::Directory => ChunkKind::Directory,
        };
        let bytes = content.len() as u64;
        let fingerprint = engine.profile.time(Component::Fingerprint, bytes, || engine.descriptor.fingerprint.metadata(content));
        let mut places = [Place::Unknown];
        let chain = &engine.metadata_chain;
        let batch = Batch { chunks: &[content], fingerprints: &[fingerprint], kind, references, chain, overwritten: &[] };
        self.place(&batch, &mut places)?;
        match places[0] {
            Place::At(address) => Ok(Piece::Chunk { fingerprint, address, offset: 0, length: content.len() as u32 }),
            Place::Zeros | Place::Unknown => Err(EngineError::Inconsistent { why: "a metadata chunk was found without an address".into() }),
        }
    }

    /// Stores data chunks; one piece for each.
    fn store(&mut self, chunks: &[&[u8]], hints: Hints<'_>) -> Result<Vec<Piece>> {
        let engine = self.engine.clone();
        let chain = hints.chain.unwrap_or(&engine.chain);
        let zero_first = chain.zero_first();
        let mut pieces = Vec::with_capacity(chunks.len());
        let mut fingerprints = Vec::new();
        let mut wanted = Vec::new();
        for batch in chunks.chunks(BATCH_CHUNKS) {
            engine.admit()?;
            // Chunks of zeros need no name when the first filter recognises them by their bytes.
            let bytes = batch.iter().map(|chunk| chunk.len() as u64).sum();
            engine.profile.time(Component::Fingerprint, bytes, || {
                wanted.clear();
                wanted.extend(batch.iter().filter(|chunk| !(zero_first && is_zero(chunk))));
                fingerprints.clear();
                engine.descriptor.fingerprint.fingerprint_many(&wanted, &mut fingerprints);
                if wanted.len() < batch.len() {
                    let mut hashed = fingerprints.iter().copied();
                    let spread = batch.iter().map(|chunk| {
                        if is_zero(chunk) { Fingerprint::from_digest(&[]) } else { hashed.next().expect("one for each other chunk") }
                    });
                    fingerprints = spread.collect();
                }
            });
            let mut places = vec![Place::Unknown; batch.len()];
            let batch = Batch {
                chunks: batch,
                fingerprints: &fingerprints,
                kind: ChunkKind::Data,
                references: &[],
                chain,
                overwritten: hints.overwritten,
            };
            self.place(&batch, &mut places)?;
            for ((chunk, fingerprint), place) in batch.chunks.iter().zip(&fingerprints).zip(places) {
                pieces.push(match place {
                    Place::At(address) => Piece::Chunk { fingerprint: *fingerprint, address, offset: 0, length: chunk.len() as u32 },
                    Place::Zeros => Piece::Zeros { length: chunk.len() as u64 },
                    Place::Unknown => return Err(EngineError::Inconsistent { why: "a chunk was left without a place".into() }),
                });
            }
        }
        Ok(pieces)
    }

    /// Finds or makes the place of each chunk of a batch.
    fn place(&mut self, batch: &Batch<'_>, places: &mut [Place]) -> Result<()> {
        let engine = self.engine.clone();
        let fingerprints = batch.fingerprints;
        let unnamed = Fingerprint::from_digest(&[]);
        // A chunk that stands in the batch more than once is handled once.
        let mut first: FingerprintMap<usize> = FingerprintMap::default();
        let mut todo = Vec::with_capacity(fingerprints.len());
        for (at, fingerprint) in fingerprints.iter().enumerate() {
            if *fingerprint == unnamed || *first.entry(*fingerprint).or_insert(at) == at {
                todo.push(at);
            }
        }
        while !todo.is_empty() {
            let mut held = Held { engine: &engine, fingerprints: Vec::new() };
            let mut owned = Vec::with_capacity(todo.len());
            let mut taken = Vec::new();
            for at in todo.drain(..) {
                if fingerprints[at] == unnamed {
                    owned.push(at);
                    continue;
                }
                match engine.reservations.reserve(&fingerprints[at]) {
                    Reservation::Owned => {
                        held.fingerprints.push(fingerprints[at]);
                        owned.push(at);
                    }
                    Reservation::Placed(address) => places[at] = Place::At(address),
                    Reservation::Taken => taken.push(at),
                }
            }
            if let Err(error) = self.decide(batch, &owned, places) {
                batch.chain.abort(&held.fingerprints);
                return Err(error);
            }
            drop(held);
            for at in taken {
                let found = engine.profile.time(Component::Reservation, 0, || engine.reservations.wait(&fingerprints[at]));
                match found {
                    Some(address) => places[at] = Place::At(address),
                    // The other stream found it known, or failed: ask again.
                    None => todo.push(at),
                }
            }
        }
        for (at, fingerprint) in fingerprints.iter().enumerate() {
            if let Some(first) = first.get(fingerprint) {
                places[at] = places[*first];
            }
        }
        Ok(())
    }

    /// Runs the chain over chunks whose reservations this stream holds, and stores those that are new.
    fn decide(&mut self, batch: &Batch<'_>, owned: &[usize], places: &mut [Place]) -> Result<()> {
        if owned.is_empty() {
            return Ok(());
        }
        let mut candidates: Vec<_> = owned.iter().map(|at| Candidate::new(batch.fingerprints[*at], batch.chunks[*at])).collect();
        batch.chain.check(&Request { overwritten: batch.overwritten }, &mut candidates)?;
        let mut new = Vec::new();
        let mut new_at = Vec::new();
        for (at, candidate) in owned.iter().zip(&candidates) {
            match (candidate.is_known(), candidate.address) {
                (true, Some(address)) => places[*at] = Place::At(address),
                (true, None) => places[*at] = Place::Zeros,
                (false, _) => {
                    new.push(NewChunk { fingerprint: candidate.fingerprint, kind: batch.kind, data: candidate.data });
                    new_at.push(*at);
                }
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let bytes: u64 = new.iter().map(|chunk| chunk.data.len() as u64).sum();
        if !batch.references.is_empty() {
            // Before the chunk can become durable: a commit may run as soon as it is appended. Metadata chunks come one at a time,
            // and a single chunk is appended or not; so a failure never leaves one stored whose references nobody counts.
            new.iter().for_each(|chunk| self.engine.reservations.announce(&chunk.fingerprint, batch.references));
        }
        let addresses = self.writer.append(&new)?;
        let stored: Vec<_> = new.iter().map(|chunk| chunk.fingerprint).zip(addresses).collect();
        // Every filter of the store hears of it, also those that this chain does not have; and before the reservations are placed, as a
        // commit may end them at once, and then whoever comes next relies on the filters.
        self.engine.filters.update(&stored);
        for (at, (fingerprint, address)) in new_at.iter().zip(stored) {
            self.engine.reservations.place(&fingerprint, address);
            places[*at] = Place::At(address);
        }
        self.added_bytes += bytes;
        self.engine.written(bytes);
        Ok(())
    }
}

/// Appends a piece; zeros behind zeros become one piece.
fn push_piece(pieces: &mut Vec<Piece>, piece: Piece) {
    if let (Some(Piece::Zeros { length: before }), Piece::Zeros { length }) = (pieces.last_mut(), piece) {
        *before += length;
    } else {
        pieces.push(piece);
    }
}
