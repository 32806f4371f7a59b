//! The way of a write: cut, fingerprint, filter chain, claim, place; pieces come back (design: engine, write).

use crate::components::{CHUNKING, FINGERPRINT, PREDICTION, RESERVATION};
use crate::write::chain::{Chain, Lookup, Request, Verdict, is_zero};
use crate::write::claims::{Claim, Held, Search, Wanted};
use crate::write::prediction::Prediction;
use crate::write::reservation::FingerprintMap;
use crate::{Engine, EngineError, InFlight, Piece, Result};
use onefold_fingerprint::Fingerprint;
use onefold_storage::{Address, ChunkKind, ChunkWriter, CompressedFrame, NewChunk};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Chunks handled in one batch: bounds the claims that a stream holds.
const BATCH_CHUNKS: usize = 1024;

/// How long a stream waits for a chunk that another stores, before it claims it again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that are cut, named and placed before the next ones are looked at: they stay in the processor's cache
/// meanwhile.
pub(super) const STEP_BYTES: usize = 256 << 10;

/// Bytes of the steps that are cut and named while a stream looks ahead: at 8 KiB a chunk, the reads of 128 chunks are
/// in flight.
const AHEAD_BYTES: usize = 1 << 20;

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

impl Engine {
    /// Returns whether it helps to say what comes next ([`WriteStream::recall`]).
    pub fn recalls(&self) -> bool {
        self.lookup.sampled().is_some()
    }
}

/// A writing stream: a thread's way into the store. Its new chunks lie together in its own open container.
#[derive(Debug)]
pub struct WriteStream {
    pub(super) engine: Arc<Engine>,
    writer: Box<dyn ChunkWriter>,
    prediction: Prediction,
    /// How much is cut before it is placed: little behind a prediction, growing up to [`STEP_BYTES`].
    step_bytes: usize,
    added_bytes: u64,
    /// Of the chunks stored last, those that no cache knew, and reads of the chunk index that they waited for.
    claimed: usize,
    waited: usize,
    /// Most of them waited: the reads of the next steps begin before these are stored.
    looks_ahead: bool,
    /// `None` while it [rests](WriteStream::rest).
    in_flight: Option<InFlight>,
}

/// Chunks that were cut and named together.
#[derive(Default)]
pub(super) struct Step<'d> {
    /// No step is on its way before it.
    is_first: bool,
    /// Its chunks were expected and are stored.
    is_predicted: bool,
    pub(super) bytes: usize,
    pub(super) chunks: Vec<&'d [u8]>,
    /// One for each chunk.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// Chunks of each run, where there are several. `None`: the run is known, and its chunks are left out.
    pub(super) counts: Vec<Option<usize>>,
}

impl Step<'_> {
    fn clear(&mut self, is_first: bool) {
        (self.is_first, self.is_predicted) = (is_first, false);
        self.bytes = 0;
        self.chunks.clear();
        self.fingerprints.clear();
        self.counts.clear();
    }
}

/// Chunks that go through filter chain and claims together.
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
    /// All of the chunks, as somebody compressed them.
    frame: Option<&'a CompressedFrame<'a>>,
}

/// Chunks of a batch that have no place yet.
#[derive(Default)]
struct Todo {
    /// Any filter may answer.
    chunks: Vec<usize>,
    /// No filter before the chunk index may: a removal takes the chunk away, or a filter's copy is no good.
    claimed_only: Vec<(usize, Search)>,
}

impl Todo {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.claimed_only.is_empty()
    }
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
        let writer = engine.storage.clone().new_writer();
        let in_flight = Some(engine.in_flight());
        WriteStream {
            engine,
            writer,
            prediction: Prediction::default(),
            step_bytes: STEP_BYTES,
            added_bytes: 0,
            claimed: 0,
            waited: 0,
            looks_ahead: false,
            in_flight,
        }
    }

    /// What it writes will be read from its beginning to its end, as backups are: it goes into large frames, which
    /// compress better ([`Descriptor::sequential_frame_bytes`](crate::Descriptor::sequential_frame_bytes)).
    pub fn sequential(mut self) -> WriteStream {
        self.writer.be_sequential();
        self
    }

    /// Bytes of the chunks that this stream has stored because they were new.
    pub fn added_bytes(&self) -> u64 {
        self.added_bytes
    }

    /// Nothing that the stream returned so far needs it any more: all of it is part of submitted transactions, or under
    /// another [`InFlight`] guard. A stream that is kept for later must rest meanwhile, or no unused chunk could be
    /// removed. The next write ends the rest.
    pub fn rest(&mut self) {
        self.in_flight = None;
    }

    pub(super) fn wake(&mut self) {
        if self.in_flight.is_none() {
            self.in_flight = Some(self.engine.in_flight());
        }
    }

    /// Returns the store that it writes to.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Cuts `data` into chunks, stores the new ones and appends the pieces to `out`. With `last` the end of `data` is
    /// the end of a run and all of it is consumed; without, the tail whose boundary is not known yet is left to the
    /// caller, who passes it again at the front of more data. Returns the number of bytes consumed. Data of at least
    /// the chunker's maximum size is never consumed as 0.
    pub fn write<'d>(&mut self, data: &'d [u8], last: bool, hints: Hints<'_>, out: &mut Vec<Piece>) -> Result<usize> {
        let engine = self.engine.clone();
        let chain = hints.chain.unwrap_or(engine.filters.data());
        engine.served(data.len());
        self.wake();
        let mut at = 0;
        let cut = |stream: &mut WriteStream, step: &mut Step<'d>| {
            if at == data.len() {
                return false;
            }
            step.bytes = stream.cut(&data[at..], last, chain, step);
            at += step.bytes;
            step.bytes > 0
        };
        self.store_steps(hints, cut, |_, pieces| pieces.for_each(|piece| push_piece(out, piece)))?;
        Ok(at)
    }

    /// Cuts and names the next step of `data`: predicted chunks if there are some and nothing is on its way before
    /// them. Returns the number of bytes.
    fn cut<'d>(&mut self, data: &'d [u8], last: bool, chain: &Chain, step: &mut Step<'d>) -> usize {
        let engine = self.engine.clone();
        let (most_bytes, least_bytes) = (STEP_BYTES.max(engine.chunker.limits().max), 2 * engine.chunker.limits().max);
        if step.is_first && Prediction::suits(chain) {
            let (chunker, algorithm) = (&*engine.chunker, engine.descriptor.fingerprint);
            let begun = Instant::now();
            let consumed = self.prediction.take(data, last, chunker, algorithm, &mut step.chunks, &mut step.fingerprints);
            if consumed > 0 {
                // The end of a container, or of what is known: a few chunks tell where it goes on.
                self.step_bytes = least_bytes;
                step.is_predicted = true;
                engine.profile.add(&PREDICTION, begun.elapsed().as_nanos() as u64, consumed as u64);
                return consumed;
            }
        }
        self.step_bytes = self.step_bytes.clamp(least_bytes.min(most_bytes), most_bytes);
        let all = data;
        let data = &all[..all.len().min(self.step_bytes)];
        self.step_bytes *= 2;
        let last = last && data.len() == all.len();
        let mut cuts = Vec::new();
        let consumed = engine.profile.time(&CHUNKING, data.len() as u64, || engine.chunker.cut(data, last, &mut cuts));
        push_chunks(&mut step.chunks, data, &cuts);
        engine.name(&step.chunks, chain, &mut step.fingerprints);
        consumed
    }

    /// Stores steps in their order. `cut` makes the next one, or returns false at the end; `stored` gets each with its
    /// pieces.
    ///
    /// While most chunks wait for reads of the chunk index, the stream cuts and names later steps and begins their
    /// reads before it stores the first one. It does the same while nobody knows some chunk and a hook of a later one
    /// may lead to the container of both. It claims nothing of a later step: it only
    /// [expects](crate::write::claims::Claims::expect) it.
    pub(super) fn store_steps<'d>(
        &mut self,
        hints: Hints<'_>,
        mut cut: impl FnMut(&mut WriteStream, &mut Step<'d>) -> bool,
        mut stored: impl FnMut(&Step<'d>, &mut dyn Iterator<Item = Piece>),
    ) -> Result<()> {
        let unnamed = Fingerprint::from_digest(&[]);
        let (mut steps, mut spare): (VecDeque<Step<'d>>, Option<Step<'d>>) = Default::default();
        let (mut ahead_bytes, mut is_over) = (0, false);
        let mut pieces = Vec::new();
        let has_hooks = self.engine.lookup.sampled().is_some();
        loop {
            while !is_over && (steps.is_empty() || self.looks_ahead && ahead_bytes < AHEAD_BYTES) {
                let mut step = spare.take().unwrap_or_default();
                step.clear(steps.is_empty());
                if !cut(self, &mut step) {
                    is_over = true;
                    break;
                }
                let mut unknown = 0;
                if !step.is_predicted && (self.looks_ahead || has_hooks) {
                    let names: Vec<_> = step.fingerprints.iter().filter(|name| **name != unnamed).copied().collect();
                    unknown = self.engine.claims.expect(&names);
                }
                if has_hooks {
                    self.looks_ahead = unknown > 0;
                }
                ahead_bytes += step.bytes;
                steps.push_back(step);
            }
            let Some(step) = steps.pop_front() else { return Ok(()) };
            ahead_bytes -= step.bytes;
            pieces.clear();
            self.store(&step.chunks, &step.fingerprints, hints, None, &mut pieces)?;
            stored(&step, &mut pieces.drain(..));
            spare = Some(step);
        }
    }

    /// Says where the data that comes next may be stored already: what lies there is then found (M3.6). Advice, for
    /// stores in which it helps ([`Engine::recalls`]).
    pub fn recall(&self, addresses: &[Address]) {
        if let Some(sampled) = self.engine.lookup.sampled() {
            let now = addresses.iter().map(|address| self.engine.copy_of(*address).origin());
            sampled.recall(now);
        }
    }

    /// Looks for chunks without having their bytes, for those who would have to fetch them: where each is, or `None`
    /// where it has to be [written](WriteStream::write_chunks). What was found stays as long as the stream does not
    /// rest.
    pub fn find(&mut self, fingerprints: &[Fingerprint], out: &mut Vec<Option<Address>>) -> Result<()> {
        let engine = self.engine.clone();
        self.wake();
        for fingerprints in fingerprints.chunks(BATCH_CHUNKS) {
            // As in `place`: touched, then claimed. A removal is over before, or sees that the chunk is wanted.
            engine.reclaiming.watch().touch(fingerprints);
            let wanted: Vec<_> =
                fingerprints.iter().map(|fingerprint| Wanted { fingerprint: *fingerprint, search: Search::Stored }).collect();
            let mut claims = Vec::with_capacity(wanted.len());
            engine.claims.claim(&wanted, &mut claims)?;
            let mut held = Held::new(&*engine.claims);
            for (fingerprint, claim) in fingerprints.iter().zip(claims) {
                out.push(match claim {
                    Claim::Known(address) | Claim::Placed(address) => Some(address),
                    Claim::Mine => {
                        held.names.push(*fingerprint);
                        None
                    }
                    // Somebody stores or removes it just now: writing it finds out.
                    Claim::Theirs => None,
                });
            }
        }
        Ok(())
    }

    /// Stores chunks as they are, without cutting them again; returns one piece for each.
    pub fn write_chunks(&mut self, chunks: &[&[u8]]) -> Result<Vec<Piece>> {
        let engine = self.engine.clone();
        engine.served(chunks.iter().map(|chunk| chunk.len()).sum());
        self.wake();
        let mut fingerprints = Vec::with_capacity(chunks.len());
        engine.name(chunks, engine.filters.data(), &mut fingerprints);
        let mut pieces = Vec::with_capacity(chunks.len());
        self.store(chunks, &fingerprints, Hints::default(), None, &mut pieces)?;
        Ok(pieces)
    }

    /// Does the same with chunks that an untrusted client named, and compressed together. They are named again, and
    /// nothing is stored unless all names are right. If all chunks are new and a [sequential](Self::sequential) stream
    /// can use the frame, it is stored as it came; otherwise the new chunks are stored without it.
    ///
    /// Errors: [`EngineError::Misnamed`] for the first chunk with another name.
    pub fn write_frame(&mut self, chunks: &[&[u8]], expected: &[Fingerprint], frame: Option<&CompressedFrame<'_>>) -> Result<Vec<Piece>> {
        let engine = self.engine.clone();
        let bytes = chunks.iter().map(|chunk| chunk.len()).sum();
        engine.served(bytes);
        self.wake();
        let mut fingerprints = Vec::with_capacity(chunks.len());
        // Zeros too: their names were given.
        engine.profile.time(&FINGERPRINT, bytes as u64, || engine.descriptor.fingerprint.fingerprint_many(chunks, &mut fingerprints));
        if expected.len() != chunks.len() {
            let why = format!("there are {} names for {} chunks", expected.len(), chunks.len());
            return Err(EngineError::Invalid { what: "chunks with names".to_owned(), why });
        }
        if let Some(index) = fingerprints.iter().zip(expected).position(|(found, expected)| found != expected) {
            return Err(EngineError::Misnamed { index, expected: expected[index], found: fingerprints[index] });
        }
        let mut pieces = Vec::with_capacity(chunks.len());
        self.store(chunks, &fingerprints, Hints::default(), frame, &mut pieces)?;
        Ok(pieces)
    }

    /// Stores chunks of which only names and lengths are known, as if their bytes had been written: known ones are
    /// found, unknown ones get a place. Appends a piece for each to `out`. For experiments. Errors: the store keeps
    /// data, and nobody could read these chunks.
    pub fn write_named(&mut self, chunks: &[(Fingerprint, u32)], out: &mut Vec<Piece>) -> Result<()> {
        let engine = self.engine.clone();
        if !engine.descriptor.discards_data {
            let why = "this store keeps data; only one that discards it takes them".to_owned();
            return Err(EngineError::Invalid { what: "chunks without data".to_owned(), why });
        }
        engine.served(chunks.iter().map(|(_, length)| *length as usize).sum());
        self.wake();
        let zeros = vec![0; chunks.iter().map(|(_, length)| *length as usize).max().unwrap_or(0)];
        // The chain for data may have a filter that looks at the bytes.
        let hints = Hints { chain: Some(engine.filters.metadata()), ..Hints::default() };
        let mut chunks = chunks.iter();
        self.store_steps(
            hints,
            |_, step| {
                for (name, length) in chunks.by_ref() {
                    step.chunks.push(&zeros[..*length as usize]);
                    step.fingerprints.push(*name);
                    step.bytes += *length as usize;
                    if step.bytes >= STEP_BYTES {
                        break;
                    }
                }
                !step.chunks.is_empty()
            },
            |_, pieces| out.extend(pieces),
        )
    }

    /// Stores a metadata chunk that refers to `references` (one each time it names a chunk); they are counted if the
    /// chunk is new.
    pub fn write_metadata(&mut self, kind: MetadataKind, content: &[u8], references: &[Fingerprint]) -> Result<Piece> {
        let engine = self.engine.clone();
        engine.admit_data()?;
        self.wake();
        engine.reclaiming.watch().touch(references);
        let kind = match kind {
            MetadataKind::Recipe => ChunkKind::Recipe,
            MetadataKind::Directory => ChunkKind::Directory,
        };
        let bytes = content.len() as u64;
        let fingerprint = engine.profile.time(&FINGERPRINT, bytes, || engine.descriptor.fingerprint.metadata(content));
        let mut places = [Place::Unknown];
        let chain = engine.filters.metadata();
        let batch = Batch { chunks: &[content], fingerprints: &[fingerprint], kind, references, chain, overwritten: &[], frame: None };
        self.place(&batch, &mut places)?;
        match places[0] {
            Place::At(address) => Ok(Piece::Chunk { fingerprint, address, offset: 0, length: content.len() as u32 }),
            Place::Zeros | Place::Unknown => Err(EngineError::Inconsistent { why: "a metadata chunk was found without an address".into() }),
        }
    }

    /// Stores data chunks, which have their names already, and appends the piece of each to `out`. `frame` has all of
    /// them.
    fn store(
        &mut self,
        chunks: &[&[u8]],
        fingerprints: &[Fingerprint],
        hints: Hints<'_>,
        frame: Option<&CompressedFrame<'_>>,
        out: &mut Vec<Piece>,
    ) -> Result<()> {
        (self.claimed, self.waited) = (0, 0);
        let engine = self.engine.clone();
        let chain = hints.chain.unwrap_or(engine.filters.data());
        let frame = frame.filter(|_| chunks.len() <= BATCH_CHUNKS);
        for (chunks, fingerprints) in chunks.chunks(BATCH_CHUNKS).zip(fingerprints.chunks(BATCH_CHUNKS)) {
            engine.admit_data()?;
            let mut places = vec![Place::Unknown; chunks.len()];
            let kind = ChunkKind::Data;
            let batch = Batch { chunks, fingerprints, kind, references: &[], chain, overwritten: hints.overwritten, frame };
            self.place(&batch, &mut places)?;
            for ((chunk, fingerprint), place) in chunks.iter().zip(fingerprints).zip(&places) {
                out.push(match *place {
                    Place::At(address) => Piece::Chunk { fingerprint: *fingerprint, address, offset: 0, length: chunk.len() as u32 },
                    Place::Zeros => Piece::Zeros { length: chunk.len() as u64 },
                    Place::Unknown => return Err(EngineError::Inconsistent { why: "a chunk was left without a place".into() }),
                });
            }
            if Prediction::suits(chain) {
                let last = places.last().and_then(|place| if let Place::At(address) = place { Some(*address) } else { None });
                self.prediction.learn(last, engine.containers.as_deref());
            }
        }
        if engine.lookup.index().is_some() {
            // Not where caches know much: what they know would be read in vain.
            self.looks_ahead = 4 * self.claimed >= 3 * chunks.len() && 8 * self.waited > chunks.len();
        }
        Ok(())
    }

    /// Finds or makes the place of each chunk of a batch.
    fn place(&mut self, batch: &Batch<'_>, places: &mut [Place]) -> Result<()> {
        let engine = self.engine.clone();
        let fingerprints = batch.fingerprints;
        let unnamed = Fingerprint::from_digest(&[]);
        // Before anybody is asked for them: `claims.rs` says why.
        let doomed = engine.reclaiming.watch().touch(fingerprints);
        // A chunk that stands in the batch more than once is handled once.
        let mut first: FingerprintMap<usize> = FingerprintMap::default();
        let mut todo = Todo { chunks: Vec::with_capacity(fingerprints.len()), claimed_only: Vec::new() };
        for (at, fingerprint) in fingerprints.iter().enumerate() {
            if *fingerprint == unnamed || *first.entry(*fingerprint).or_insert(at) == at {
                let is_doomed = !doomed.is_empty() && doomed.contains(fingerprint);
                if is_doomed { todo.claimed_only.push((at, Search::Stored)) } else { todo.chunks.push(at) }
            }
        }
        while !todo.is_empty() {
            let mut taken = Vec::new();
            todo = match self.decide(batch, todo, places, &mut taken) {
                Ok(todo) => todo,
                Err(error) => {
                    let failed = fingerprints.iter().zip(&*places).filter(|(_, place)| matches!(place, Place::Unknown));
                    batch.chain.abort(&failed.map(|(fingerprint, _)| *fingerprint).collect::<Vec<_>>());
                    return Err(error);
                }
            };
            if taken.is_empty() {
                continue;
            }
            // All that this stream claimed is placed or released: it holds no claim while it waits.
            let names: Vec<_> = taken.iter().map(|at| fingerprints[*at]).collect();
            let mut found = Vec::with_capacity(names.len());
            engine.profile.time(&RESERVATION, 0, || engine.claims.wait(&names, Instant::now() + PATIENCE, &mut found));
            for (at, found) in taken.into_iter().zip(found) {
                match found {
                    Some(address) => places[at] = Place::At(address),
                    // The other found it known, failed, or removed it: ask again, and not a cache, as it may be doomed
                    // still.
                    None => todo.claimed_only.push((at, Search::Stored)),
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

    /// Asks the caches, claims what they cannot answer, and stores what is new. Chunks that others hold go to `taken`.
    /// Returns the chunks that must be claimed again, because the copy that was found is no good.
    fn decide(&mut self, batch: &Batch<'_>, todo: Todo, places: &mut [Place], taken: &mut Vec<usize>) -> Result<Todo> {
        let engine = self.engine.clone();
        let request = Request { overwritten: batch.overwritten };
        let asked = todo.chunks.len();
        let chunks: Vec<_> = todo.chunks.into_iter().map(|at| (at, Search::Stored)).chain(todo.claimed_only).collect();
        let mut lookups: Vec<_> = chunks.iter().map(|(at, _)| Lookup::new(batch.fingerprints[*at], batch.chunks[*at])).collect();
        batch.chain.ask(&request, &mut lookups[..asked])?;
        let unanswered: Vec<_> = (0..lookups.len()).filter(|number| !lookups[*number].is_known()).collect();
        let wanted: Vec<_> = unanswered
            .iter()
            .map(|number| Wanted {
                fingerprint: lookups[*number].fingerprint,
                search: match (lookups[*number].bad, lookups[*number].verdict) {
                    (Some(address), _) => Search::Not(address),
                    (None, Verdict::NonExisting) => Search::Denied,
                    (None, _) => chunks[*number].1,
                },
            })
            .collect();
        let mut claims = Vec::with_capacity(wanted.len());
        if !wanted.is_empty() {
            let bytes = unanswered.iter().map(|number| lookups[*number].data.len() as u64).sum();
            self.claimed += wanted.len();
            self.waited += batch.chain.claim(&*engine.claims, &wanted, bytes, &mut claims)?;
        }
        let mut held = Held::new(&*engine.claims);
        let mut mine = Vec::new();
        for ((number, wanted), claim) in unanswered.into_iter().zip(wanted).zip(claims) {
            let lookup = &mut lookups[number];
            // Whatever follows is decided: the filters behind the chunk index look only at chunks that were found.
            lookup.verdict = Verdict::NonExisting;
            match claim {
                Claim::Mine => {
                    held.names.push(wanted.fingerprint);
                    mine.push((number, wanted.search));
                }
                Claim::Known(address) => lookup.found(Verdict::StrongMaybe, address),
                Claim::Placed(address) => places[chunks[number].0] = Place::At(address),
                Claim::Theirs => taken.push(chunks[number].0),
            }
            // A copy that an earlier filter called bad is dealt with by the claim.
            lookup.bad = None;
        }
        batch.chain.confirm(&request, &mut lookups)?;
        let mut again = Todo::default();
        for (lookup, (at, _)) in lookups.iter().zip(&chunks) {
            match (lookup.is_known(), lookup.address, lookup.bad) {
                (true, Some(address), _) => places[*at] = Place::At(address),
                (true, None, _) => places[*at] = Place::Zeros,
                (false, _, Some(bad)) => again.claimed_only.push((*at, Search::Not(bad))),
                (false, _, None) => {}
            }
        }
        if let (Some(sampled), ChunkKind::Data) = (engine.lookup.sampled(), batch.kind) {
            // Zeros have no address.
            let known = lookups.iter().filter(|lookup| lookup.is_known() && lookup.address.is_some()).map(|lookup| lookup.fingerprint);
            sampled.tally(&known.collect::<Vec<_>>());
        }
        let new: Vec<_> = mine.iter().map(|(number, search)| (chunks[*number].0, *search)).collect();
        self.add(batch, &new, places)?;
        // All of them are placed, and after the next commit others may claim them.
        held.names.clear();
        drop(held);
        Ok(again)
    }

    /// Stores new chunks, whose claims this stream holds.
    fn add(&mut self, batch: &Batch<'_>, chunks: &[(usize, Search)], places: &mut [Place]) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        let new: Vec<_> = chunks
            .iter()
            .map(|(at, _)| NewChunk { fingerprint: batch.fingerprints[*at], kind: batch.kind, data: batch.chunks[*at] })
            .collect();
        for (chunk, (_, search)) in new.iter().zip(chunks) {
            if let Search::Not(bad) = search {
                // Before the new copy can become durable.
                self.engine.superseded.note(chunk.fingerprint, *bad);
            }
        }
        let bytes: u64 = new.iter().map(|chunk| chunk.data.len() as u64).sum();
        if !batch.references.is_empty() {
            // Before the chunk can become durable: a commit may run as soon as it is appended. Metadata chunks come one
            // at a time, and a single chunk is appended or not; so a failure never leaves one stored whose references
            // nobody counts.
            new.iter().for_each(|chunk| self.engine.claims.announce(&chunk.fingerprint, batch.references));
        }
        let addresses = match batch.frame {
            Some(frame) if new.len() == batch.chunks.len() => self.writer.append_frame(&new, frame)?,
            _ => self.writer.append(&new)?,
        };
        let stored: Vec<_> = new.iter().map(|chunk| chunk.fingerprint).zip(addresses).collect();
        // Every filter of the store hears of it, also those that this chain does not have; and before the chunks are
        // placed, as a commit may end the claims at once, and then whoever comes next relies on the filters.
        self.engine.filters.update(&stored);
        self.engine.claims.placed(&stored);
        for ((at, _), (_, address)) in chunks.iter().zip(stored) {
            places[*at] = Place::At(address);
        }
        self.added_bytes += bytes;
        self.engine.written(bytes);
        Ok(())
    }
}

impl Engine {
    /// Appends the names of data chunks. Chunks of zeros need none when the first filter recognises them by their
    /// bytes: they get the empty one.
    pub(super) fn name(&self, chunks: &[&[u8]], chain: &Chain, out: &mut Vec<Fingerprint>) {
        let algorithm = self.descriptor.fingerprint;
        let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        self.profile.time(&FINGERPRINT, bytes, || {
            let is_unnamed: Vec<bool> = chunks.iter().map(|chunk| chain.zero_first() && is_zero(chunk)).collect();
            if !is_unnamed.contains(&true) {
                return algorithm.fingerprint_many(chunks, out);
            }
            let wanted: Vec<&[u8]> =
                chunks.iter().zip(&is_unnamed).filter(|(_, is_unnamed)| !**is_unnamed).map(|(chunk, _)| *chunk).collect();
            let mut names = Vec::with_capacity(wanted.len());
            algorithm.fingerprint_many(&wanted, &mut names);
            let mut names = names.into_iter();
            out.extend(is_unnamed.iter().map(|is_unnamed| {
                if *is_unnamed { Fingerprint::from_digest(&[]) } else { names.next().expect("one for each other chunk") }
            }));
        });
    }
}

/// Appends the parts of `data` between `cuts`.
pub(super) fn push_chunks<'a>(chunks: &mut Vec<&'a [u8]>, data: &'a [u8], cuts: &[usize]) {
    let mut start = 0;
    for cut in cuts {
        chunks.push(&data[start..*cut]);
        start = *cut;
    }
}

/// Appends a piece; zeros behind zeros become one piece.
pub(super) fn push_piece(pieces: &mut Vec<Piece>, piece: Piece) {
    if let (Some(Piece::Zeros { length: before }), Piece::Zeros { length }) = (pieces.last_mut(), piece) {
        *before += length;
    } else {
        pieces.push(piece);
    }
}
