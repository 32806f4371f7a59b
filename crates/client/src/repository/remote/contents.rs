//! The content of files over a connection: cut and named here, offered, and supplied if the server wants it.
//!
//! # Invariants
//! * Offers are answered in their order, and supplies have the wanted chunks in that order. So neither has numbers.
//! * The bytes of an offered chunk stay in memory until it is known or was supplied. Their sum is bounded
//!   ([`WINDOW_BYTES`]): a writer waits when it is reached, never the thread that supplies (the *pump*).
//! * All answers that are outstanding fit the window together. So the server never waits for room to answer, and always
//!   takes what the pump sends.
//! * Things that are offered and not resolved are fewer than the server keeps ([`MAX_QUEUED`],
//!   [`MAX_WANTED`]).
//! * The pump sends a frame that is not full only when no answer is outstanding: so a server that waits for a file
//!   always gets what it waits for.
//! * The tree takes a file only after its content was supplied ([`Supplied`]), and the walk is a bounded way ahead of
//!   the tree. So few files are complete at the server that its tree has not taken.

use crate::repository::{Contents, NewFile};
use crate::{ClientError, Result};
use onefold_catalog::SmallFile;
use onefold_chunking::{Chunker, Kind, Sizes};
use onefold_engine::Recipe;
use onefold_fingerprint::{Algorithm, Fingerprint};
use onefold_ground::wire::put_varint;
use onefold_remote::services::messages::{
    ContentsRequest, MAX_LONG_BYTES, MAX_OFFERED, MAX_QUEUED, MAX_WANTED, Method, Offered, Wanted, services,
};
use onefold_remote::transport::{Channel, ClientSession};
use onefold_storage::{Compression, Compressor};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of offered chunks of one writer: enough for 300 MB/s at a round trip of 50 ms, twice.
const WINDOW_BYTES: usize = 32 << 20;
/// An offer is sent when its chunks have this many bytes.
const OFFER_BYTES: usize = 2 << 20;
/// The most bytes of paths in an offer, unless it has only one.
const PATH_BYTES: usize = 256 << 10;
/// The most offers that are not answered.
const MAX_UNANSWERED: usize = 256;
/// What an answer costs beside a bit for each chunk.
const ANSWER_BYTES: usize = 72;
/// Memory for a supply beside its bytes.
const HEAD_BYTES: usize = 64;

/// How chunks are cut, named and compressed for a store.
#[derive(Clone, Debug)]
pub(super) struct Cutter {
    chunker: Arc<dyn Chunker>,
    algorithm: Algorithm,
    compression: Compression,
    frame_bytes: usize,
}

impl Cutter {
    pub(super) fn new(method: &Method) -> Result<Cutter> {
        let unknown = |what: &str, name: &str| ClientError::Protocol(format!("this version knows no {what} {name:?}: update it"));
        if !method.chunker_key.is_empty() || !method.fingerprint_key.is_empty() {
            return Err(unknown("keyed chunks of account", "encrypted"));
        }
        let kind = Kind::from_str(&method.chunker).map_err(|_| unknown("chunker", &method.chunker))?;
        let [min, target, max] = method.chunk_sizes.map(|size| size as usize);
        let chunker =
            onefold_chunking::chunker(kind, Sizes { min, target, max }).map_err(|error| ClientError::Protocol(error.to_string()))?;
        let algorithm = Algorithm::from_str(&method.fingerprint).map_err(|_| unknown("fingerprint", &method.fingerprint))?;
        let compression = Compression::from_str(&method.compression).map_err(|_| unknown("compression", &method.compression))?;
        let frame_bytes = method.frame_bytes as usize;
        if !(4 << 10..=4 << 20).contains(&frame_bytes) {
            return Err(ClientError::Protocol(format!("supplies of {frame_bytes} bytes")));
        }
        Ok(Cutter { chunker, algorithm, compression, frame_bytes })
    }
}

/// Stores the content of files at a server.
pub(super) struct RemoteContents<'a> {
    session: &'a ClientSession,
    /// The number of the backup.
    number: u64,
    cutter: Cutter,
    supplied: Arc<Supplied>,
    offer: Offer,
    /// The current file, and its bytes.
    ticket: u64,
    length: u64,
    /// `None`: nothing was offered yet. A writer may have nothing to do at all.
    supplies: Option<Supplies>,
}

/// A channel with its pump.
struct Supplies {
    shared: Arc<Shared>,
    pump: Option<JoinHandle<()>>,
}

/// Things offered together, and the bytes of their chunks.
#[derive(Default)]
struct Offer {
    items: Vec<Offered>,
    bytes: Vec<u8>,
    chunks: Vec<Range<usize>>,
    /// The files that end in it.
    ended: Vec<u64>,
    /// Bytes of paths.
    path_bytes: usize,
}

/// An offer that was sent.
struct Sent {
    bytes: Vec<u8>,
    chunks: Vec<Range<usize>>,
    things: Things,
}

impl Sent {
    /// Returns what the answer takes of the window.
    fn answer_bytes(&self) -> usize {
        ANSWER_BYTES + self.chunks.len() / 8
    }
}

/// Things that the server keeps until everything before them and in them is supplied.
#[derive(Default)]
struct Things {
    count: usize,
    /// Chunks among them.
    chunks: usize,
    /// The files that end there.
    ended: Vec<u64>,
}

/// The files whose content was supplied completely, by ticket. All writers of a backup share it with the tree.
#[derive(Debug, Default)]
pub(super) struct Supplied {
    state: Mutex<SuppliedState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SuppliedState {
    tickets: HashSet<u64>,
    /// Why a writer supplies nothing more.
    broken: Option<Arc<ClientError>>,
}

impl Supplied {
    fn add(&self, tickets: &mut Vec<u64>) {
        self.state.lock().tickets.extend(tickets.drain(..));
        self.changed.notify_all();
    }

    fn breaks(&self, error: &Arc<ClientError>) {
        self.state.lock().broken.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    /// Waits a while until the content of a file was supplied. Returns whether it was, or a writer has failed.
    pub(super) fn has(&self, ticket: u64, patience: Duration) -> bool {
        let mut state = self.state.lock();
        let is_there = |state: &SuppliedState| state.tickets.contains(&ticket) || state.broken.is_some();
        if !is_there(&state) {
            self.changed.wait_for(&mut state, patience);
        }
        is_there(&state)
    }

    /// Waits until the content of a file was supplied.
    ///
    /// Errors: a writer has failed.
    pub(super) fn take(&self, ticket: u64) -> Result<()> {
        let mut state = self.state.lock();
        while !state.tickets.remove(&ticket) {
            if let Some(error) = &state.broken {
                return Err(again(error));
            }
            self.changed.wait(&mut state);
        }
        Ok(())
    }
}

/// What writer and pump share.
struct Shared {
    channel: Channel,
    digest_bytes: usize,
    supplied: Arc<Supplied>,
    state: Mutex<State>,
    changed: Condvar,
    supplied_bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Offers that were not answered, and what their answers take of the window.
    unanswered: VecDeque<Sent>,
    answer_bytes: usize,
    /// Bytes of their chunks, and of those that are wanted and not supplied.
    bytes: usize,
    /// Things that are offered and not resolved, and chunks among them.
    things: usize,
    chunks: usize,
    /// The pump deals with an answer.
    is_supplying: bool,
    /// The writer offers nothing more.
    is_over: bool,
    /// The pump has ended. `Err`: why.
    ended: Option<std::result::Result<(), Arc<ClientError>>>,
}

impl Supplies {
    fn open(session: &ClientSession, number: u64, cutter: &Cutter, supplied: &Arc<Supplied>) -> Result<Supplies> {
        let mut opening = Vec::new();
        put_varint(&mut opening, number);
        let channel = session.open(services::CONTENTS, opening)?;
        let digest_bytes = cutter.algorithm.digest_bytes();
        let shared = Arc::new(Shared {
            channel,
            digest_bytes,
            supplied: supplied.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
            supplied_bytes: AtomicU64::new(0),
        });
        let compressor = Compressor::new(cutter.compression);
        let pump = Pump { shared: shared.clone(), compressor, raw: Vec::new(), chunks: 0, things: Things::default() };
        let (frame_bytes, of_pump) = (cutter.frame_bytes, shared.clone());
        let run = move || {
            let ended = pump.run(frame_bytes).map_err(Arc::new);
            if let Err(error) = &ended {
                of_pump.channel.cancel();
                of_pump.supplied.breaks(error);
            }
            of_pump.state.lock().ended = Some(ended);
            of_pump.changed.notify_all();
        };
        let pump = std::thread::Builder::new().name("supplies".to_owned()).spawn(run);
        let pump = pump.map_err(|error| ClientError::io("start", "a thread", error))?;
        Ok(Supplies { shared, pump: Some(pump) })
    }
}

impl<'a> RemoteContents<'a> {
    pub(super) fn new(session: &'a ClientSession, number: u64, cutter: &Cutter, supplied: &Arc<Supplied>) -> RemoteContents<'a> {
        let (cutter, supplied) = (cutter.clone(), supplied.clone());
        RemoteContents { session, number, cutter, supplied, offer: Offer::default(), ticket: 0, length: 0, supplies: None }
    }

    /// Offers chunks, which lie one after the other in `data`.
    fn chunks(&mut self, data: &[u8], cuts: &[usize]) -> Result<()> {
        let mut chunks = Vec::with_capacity(cuts.len());
        let mut start = 0;
        for cut in cuts {
            chunks.push(&data[start..*cut]);
            start = *cut;
        }
        let is_data: Vec<bool> = chunks.iter().map(|chunk| !onefold_engine::chain::is_zero(chunk)).collect();
        let named: Vec<&[u8]> = chunks.iter().zip(&is_data).filter(|(_, is_data)| **is_data).map(|(chunk, _)| *chunk).collect();
        let mut names: Vec<Fingerprint> = Vec::with_capacity(named.len());
        self.cutter.algorithm.fingerprint_many(&named, &mut names);
        let mut names = names.into_iter();
        let mut left_bytes = start;
        for (chunk, is_data) in chunks.into_iter().zip(is_data) {
            if self.offer.bytes.is_empty() {
                self.offer.bytes.reserve(left_bytes.min(OFFER_BYTES));
            }
            left_bytes -= chunk.len();
            self.length += chunk.len() as u64;
            let Some(fingerprint) = is_data.then(|| names.next()).flatten() else {
                self.offer.zeros(chunk.len() as u64);
                continue;
            };
            let start = self.offer.bytes.len();
            self.offer.bytes.extend_from_slice(chunk);
            self.offer.chunks.push(start..start + chunk.len());
            self.offer.items.push(Offered::Chunk { fingerprint, length: chunk.len() as u32 });
            if self.offer.chunks.len() >= MAX_OFFERED || self.offer.bytes.len() >= OFFER_BYTES {
                self.send()?;
            }
        }
        Ok(())
    }

    fn begin_file(&mut self, file: NewFile<'_>) -> Result<()> {
        (self.ticket, self.length) = (file.ticket, 0);
        // Of a longer path the server hears nothing, and wants what it has.
        let is_told = file.earlier.is_some() && file.path.len() <= MAX_LONG_BYTES;
        let earlier = if is_told { file.path.to_vec() } else { Vec::new() };
        // It must fit a message.
        if self.offer.path_bytes + earlier.len() > PATH_BYTES {
            self.send()?;
        }
        self.offer.path_bytes += earlier.len();
        self.offer.items.push(Offered::Begin { ticket: file.ticket, earlier });
        Ok(())
    }

    /// Sends the offer, once the window has room for it.
    fn send(&mut self) -> Result<()> {
        let Offer { items, bytes, chunks, ended, .. } = std::mem::take(&mut self.offer);
        if items.is_empty() {
            return Ok(());
        }
        if self.supplies.is_none() {
            self.supplies = Some(Supplies::open(self.session, self.number, &self.cutter, &self.supplied)?);
        }
        let Some(Supplies { shared, .. }) = &self.supplies else { return Ok(()) };
        let things = Things { count: items.len(), chunks: chunks.len(), ended };
        let sent = Sent { bytes, chunks, things };
        // A server gives a part of its window back only when a quarter of it is consumed.
        let answers_bytes = shared.channel.least_window_bytes() / 4 * 3;
        {
            let mut state = shared.state.lock();
            while !state.has_room(&sent, answers_bytes) && state.ended.is_none() {
                shared.changed.wait(&mut state);
            }
            if let Some(ended) = &state.ended {
                return Err(ended_early(ended));
            }
            state.bytes += sent.bytes.len();
            state.things += sent.things.count;
            state.chunks += sent.things.chunks;
            state.answer_bytes += sent.answer_bytes();
            state.unanswered.push_back(sent);
        }
        let (kind, payload) = ContentsRequest::Offer(items).encode(shared.digest_bytes);
        Ok(shared.channel.send(kind, payload)?)
    }
}

impl State {
    /// Returns whether another offer may be sent. One alone always may.
    fn has_room(&self, sent: &Sent, answers_bytes: usize) -> bool {
        let fits = |used: usize, more: usize, limit: usize| used == 0 || used + more <= limit;
        fits(self.bytes, sent.bytes.len(), WINDOW_BYTES)
            && fits(self.things, sent.things.count, MAX_QUEUED)
            && fits(self.chunks, sent.things.chunks, MAX_WANTED)
            && fits(self.unanswered.len(), 1, MAX_UNANSWERED)
            && fits(self.answer_bytes, sent.answer_bytes(), answers_bytes)
    }
}

fn ended_early(ended: &std::result::Result<(), Arc<ClientError>>) -> ClientError {
    match ended {
        Err(error) => again(error),
        Ok(()) => ClientError::Protocol("the server takes no more content".to_owned()),
    }
}

/// Returns an error that somebody else got, too.
fn again(error: &ClientError) -> ClientError {
    match error {
        ClientError::Connection(error) => ClientError::Connection(error.clone()),
        ClientError::Protocol(why) => ClientError::Protocol(why.clone()),
        error => ClientError::Protocol(error.to_string()),
    }
}

impl Offer {
    fn zeros(&mut self, length: u64) {
        match self.items.last_mut() {
            Some(Offered::Zeros { length: before }) => *before += length,
            _ => self.items.push(Offered::Zeros { length }),
        }
    }
}

impl Contents for RemoteContents<'_> {
    fn added_bytes(&self) -> u64 {
        self.supplies.as_ref().map_or(0, |supplies| supplies.shared.supplied_bytes.load(Ordering::Relaxed))
    }

    fn small(&mut self, files: &[(NewFile<'_>, &[u8])]) -> Result<Vec<SmallFile>> {
        let (mut cuts, mut out) = (Vec::new(), Vec::with_capacity(files.len()));
        for (file, bytes) in files {
            self.begin_file(*file)?;
            cuts.clear();
            self.cutter.chunker.cut(bytes, true, &mut cuts);
            self.chunks(bytes, &cuts)?;
            out.push(SmallFile { recipe: self.end_file(), was_taken: false });
        }
        self.send()?;
        Ok(out)
    }

    fn begin(&mut self, file: NewFile<'_>) -> Result<()> {
        self.begin_file(file)?;
        Ok(())
    }

    fn write(&mut self, data: &[u8], last: bool) -> Result<usize> {
        let mut cuts = Vec::new();
        let consumed = self.cutter.chunker.cut(data, last, &mut cuts);
        self.chunks(data, &cuts)?;
        Ok(consumed)
    }

    fn zeros(&mut self, length: u64) -> Result<()> {
        self.length += length;
        self.offer.zeros(length);
        Ok(())
    }

    fn finish(&mut self) -> Result<Recipe> {
        let recipe = self.end_file();
        self.send()?;
        Ok(recipe)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.send()?;
        self.supplies.take().map_or(Ok(()), Supplies::close)
    }
}

impl RemoteContents<'_> {
    /// Ends a file. Returns its length as a recipe without pieces.
    fn end_file(&mut self) -> Recipe {
        self.offer.items.push(Offered::End);
        self.offer.ended.push(self.ticket);
        Recipe { level: 0, length: self.length, pieces: Vec::new() }
    }
}

impl Supplies {
    /// Waits until everything that is wanted was supplied.
    fn close(mut self) -> Result<()> {
        let has_all_answers = {
            let mut state = self.shared.state.lock();
            state.is_over = true;
            state.unanswered.is_empty() && !state.is_supplying
        };
        if has_all_answers {
            // Otherwise the pump does it.
            self.shared.channel.finish();
        }
        if let Some(pump) = self.pump.take() {
            let _ = pump.join();
        }
        match &self.shared.state.lock().ended {
            Some(Ok(())) => Ok(()),
            Some(ended) => Err(ended_early(ended)),
            None => Err(ClientError::Protocol("the supplies ended without a word".to_owned())),
        }
    }
}

impl Drop for Supplies {
    fn drop(&mut self) {
        if let Some(pump) = self.pump.take() {
            // It was not closed: nobody needs what is on its way.
            self.shared.channel.cancel();
            let _ = pump.join();
        }
    }
}

/// Supplies what the server wants.
struct Pump {
    shared: Arc<Shared>,
    compressor: Compressor,
    /// Wanted chunks that were not supplied, and how many.
    raw: Vec<u8>,
    chunks: u64,
    /// Of offers that were answered, those that `raw` has chunks of, or of one before them.
    things: Things,
}

impl Pump {
    fn run(mut self, frame_bytes: usize) -> Result<()> {
        while let Some(message) = self.shared.channel.receive()? {
            if message.kind != Wanted::KIND {
                return Err(ClientError::Protocol(format!("an answer of kind {}", message.kind)));
            }
            let Wanted(wanted) = Wanted::decode(&message.payload)?;
            let answered = {
                let mut state = self.shared.state.lock();
                state.is_supplying = true;
                let answered = state.unanswered.pop_front();
                state.answer_bytes -= answered.as_ref().map_or(0, Sent::answer_bytes);
                answered
            };
            self.shared.changed.notify_all();
            let Sent { bytes, chunks, mut things } =
                answered.ok_or_else(|| ClientError::Protocol("an answer without an offer".to_owned()))?;
            if wanted.len() != chunks.len() {
                return Err(ClientError::Protocol("an answer for another number of chunks".to_owned()));
            }
            let mut known_bytes = 0;
            for (chunk, is_wanted) in chunks.into_iter().zip(wanted) {
                let chunk = &bytes[chunk];
                if !is_wanted {
                    known_bytes += chunk.len();
                    continue;
                }
                if !self.raw.is_empty() && (self.raw.len() + chunk.len() > frame_bytes || self.chunks as usize >= MAX_OFFERED) {
                    self.supply()?;
                }
                self.raw.extend_from_slice(chunk);
                self.chunks += 1;
            }
            self.release(known_bytes);
            self.things.count += things.count;
            self.things.chunks += things.chunks;
            self.things.ended.append(&mut things.ended);
            if self.raw.is_empty() {
                self.resolve();
            } else if self.shared.state.lock().unanswered.is_empty() {
                self.supply()?;
            }
            let mut state = self.shared.state.lock();
            state.is_supplying = false;
            if state.is_over && state.unanswered.is_empty() {
                drop(state);
                self.shared.channel.finish();
            }
        }
        let state = self.shared.state.lock();
        if state.is_over && state.unanswered.is_empty() {
            Ok(())
        } else {
            Err(ClientError::Protocol("the server takes no more content".to_owned()))
        }
    }

    fn supply(&mut self) -> Result<()> {
        let (codec, bytes) = self.compressor.compress(&self.raw);
        let raw_bytes = self.raw.len();
        let mut stored = Vec::with_capacity(bytes.len() + HEAD_BYTES);
        stored.extend_from_slice(bytes);
        let supply = ContentsRequest::Supply { chunks: self.chunks, codec: codec as u8, raw_bytes: raw_bytes as u64, bytes: stored };
        let (kind, payload) = supply.encode(self.shared.digest_bytes);
        self.shared.channel.send(kind, payload)?;
        self.shared.supplied_bytes.fetch_add(raw_bytes as u64, Ordering::Relaxed);
        self.raw.clear();
        self.chunks = 0;
        self.release(raw_bytes);
        self.resolve();
        Ok(())
    }

    /// Notes that everything that was wanted so far is supplied.
    fn resolve(&mut self) {
        self.shared.supplied.add(&mut self.things.ended);
        {
            let mut state = self.shared.state.lock();
            state.things -= std::mem::take(&mut self.things.count);
            state.chunks -= std::mem::take(&mut self.things.chunks);
        }
        self.shared.changed.notify_all();
    }

    fn release(&self, bytes: usize) {
        self.shared.state.lock().bytes -= bytes;
        self.shared.changed.notify_all();
    }
}
