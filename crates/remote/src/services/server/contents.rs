//! The content of files: offers, what the server wants of them, and supplies.
//!
//! # What "known" may reveal
//! A chunk is looked up only if the account may know of it: it was supplied in this backup, or in another one of the
//! account that is not finished ([`super::unfinished`]), or it is near the same place of the same file in the earlier
//! backup, or the account may read every backup. Every other chunk is wanted,
//! without a look at the store. If the store has it all the same, the copy is dropped on arrival. So the answers to an
//! account are the same whatever others have. In a store without a chunk index, what a look-up finds depends on what
//! lies nearby. So the place that the account's own use of the chunk had is looked at too.
//!
//! A chunk counts only with its length. Otherwise a client could make a recipe that nobody can read.
//!
//! # When answers go out
//! A supply takes longer if its chunks are new to the store. So everything behind it goes out a random time later
//! ([`blur`]), except to those who may know of every chunk.
//!
//! # Order
//! Offered things wait in a queue until everything before them is there; so recipes are built in order, and a supply
//! needs no numbers: it has the chunks that were wanted first.

use super::backup::Running;
use super::blur;
use super::guest::Guest;
use super::{End, Result};
use crate::accounts::Permission;
use crate::services::messages::{ContentsRequest, MAX_OFFERED, MAX_QUEUED, Offered, Wanted, codes};
use crate::transport::{Channel, Message, Received};
use onefold_catalog::{Content, Making, PieceReader, lookup};
use onefold_chunking::Limits;
use onefold_engine::{Address, CompressedFrame, Piece, Recipe, RecipeWriter, WriteStream};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_storage::Codec;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How far around the current place the earlier version of a file is known.
const AROUND_BYTES: u64 = 64 << 20;
/// The most chunks of an earlier version that are known at once.
const AROUND_CHUNKS: usize = 32 << 10;
/// What a chunk costs beside its bytes, for the quota: its entries in an index and a container.
const CHUNK_BYTES: u64 = 64;
/// The most answers that wait for their moment.
const MAX_WAITING: usize = 256;

pub(super) fn serve(guest: &Guest, opening: &[u8], channel: &Channel) -> Result<()> {
    let mut reader = Reader::new(opening);
    let running = guest.running(reader.varint()?)?;
    reader.end()?;
    let making = running.making(channel)?.clone();
    let mut writer = Writer::new(guest, &running, making);
    let clean = Clean::new(&running);
    let mut answers = Answers { channel, is_blurred: !writer.knows_all, waiting: VecDeque::new() };
    // An error is an answer, too.
    let served = take_all(&mut writer, &mut answers);
    answers.end()?;
    served?;
    if !writer.queue.is_empty() {
        return Err(End::malformed("contents end before all wanted chunks were supplied"));
    }
    clean.end();
    Ok(())
}

fn take_all(writer: &mut Writer<'_>, answers: &mut Answers<'_>) -> Result<()> {
    while let Some(message) = answers.receive()? {
        let digest_bytes = writer.making.engine().digest_bytes();
        match ContentsRequest::decode(message.kind, &message.payload, digest_bytes)? {
            ContentsRequest::Offer(items) => {
                // It may have lost permissions meanwhile.
                writer.looks_again()?;
                answers.is_blurred |= !writer.knows_all;
                let wanted = writer.offer(items)?;
                answers.send(wanted)?;
            }
            ContentsRequest::Supply { chunks, codec, raw_bytes, bytes } => {
                writer.supply(chunks, codec, raw_bytes, &bytes, answers.channel)?;
            }
        }
        writer.store_ready()?;
    }
    Ok(())
}

/// Answers to offers, which wait for their moment. Meanwhile more is received, so nothing becomes slower.
struct Answers<'a> {
    channel: &'a Channel,
    is_blurred: bool,
    waiting: VecDeque<(Instant, Wanted)>,
}

impl Answers<'_> {
    fn send(&mut self, wanted: Wanted) -> Result<()> {
        if !self.is_blurred {
            return Ok(self.channel.send(Wanted::KIND, wanted.encode())?);
        }
        self.waiting.push_back((blur::moment(), wanted));
        if self.waiting.len() > MAX_WAITING {
            blur::wait();
        }
        Ok(())
    }

    /// Receives the next message, and sends the answers that are due until it comes.
    fn receive(&mut self) -> Result<Option<Message>> {
        loop {
            while let Some((at, wanted)) = self.waiting.front()
                && *at <= Instant::now()
            {
                let payload = wanted.encode();
                self.waiting.pop_front();
                self.channel.send(Wanted::KIND, payload)?;
            }
            let Some((at, _)) = self.waiting.front() else { return Ok(self.channel.receive()?) };
            match self.channel.receive_until(*at)? {
                Received::Message(message) => return Ok(Some(message)),
                Received::Finished => return Ok(None),
                Received::Timeout => {}
            }
        }
    }

    /// Sends what is left. The end of the channel waits, too.
    fn end(self) -> Result<()> {
        if self.is_blurred {
            blur::wait();
        }
        for (_, wanted) in self.waiting {
            self.channel.send(Wanted::KIND, wanted.encode())?;
        }
        Ok(())
    }
}

/// Tells the backup how the channel ended.
struct Clean<'a> {
    running: &'a Running,
    is_clean: bool,
}

impl<'a> Clean<'a> {
    fn new(running: &'a Running) -> Clean<'a> {
        running.writer_begins();
        Clean { running, is_clean: false }
    }

    fn end(mut self) {
        self.is_clean = true;
    }
}

impl Drop for Clean<'_> {
    fn drop(&mut self) {
        self.running.writer_ends(self.is_clean);
    }
}

/// Something offered that waits for what is before it.
#[derive(Clone, Copy, Debug)]
enum Item {
    Begin {
        ticket: u64,
    },
    Piece(Piece),
    /// A chunk that was asked for.
    Wanted,
    /// It was asked for before, in this queue.
    Again {
        fingerprint: Fingerprint,
        length: u32,
    },
    End,
}

struct Writer<'a> {
    guest: &'a Guest,
    running: &'a Running,
    making: Arc<Making>,
    stream: WriteStream,
    /// The account may know of every chunk.
    knows_all: bool,
    /// How the store cuts chunks.
    limits: Limits,
    queue: VecDeque<Item>,
    /// The wanted chunks that were not supplied.
    wanted: VecDeque<(Fingerprint, u32)>,
    /// Chunks that were asked for, with their lengths, and how often they came again since.
    asked: HashMap<Fingerprint, (u32, u32)>,
    /// Chunks that were supplied, and items that wait for them.
    held: HashMap<Fingerprint, (Address, u32)>,
    /// Pieces for the wanted items at the front, in their order.
    supplied: VecDeque<Piece>,
    file: Option<(u64, RecipeWriter)>,
    earlier: Option<Around>,
}

impl<'a> Writer<'a> {
    fn new(guest: &'a Guest, running: &'a Running, making: Arc<Making>) -> Writer<'a> {
        let stream = making.engine().stream().sequential();
        let limits = making.engine().chunk_limits();
        Writer {
            guest,
            running,
            making,
            stream,
            knows_all: guest.reads_everything(),
            limits,
            queue: VecDeque::new(),
            wanted: VecDeque::new(),
            asked: HashMap::new(),
            held: HashMap::new(),
            supplied: VecDeque::new(),
            file: None,
            earlier: None,
        }
    }

    /// Asks again what the account may do.
    fn looks_again(&mut self) -> Result<()> {
        let account = self.guest.permit(Permission::Backup, &self.running.name)?;
        self.knows_all = self.guest.reads_all(account.as_ref());
        Ok(())
    }

    /// Queues what is offered. Returns which of the chunks are wanted.
    fn offer(&mut self, items: Vec<Offered>) -> Result<Wanted> {
        if self.queue.len() + items.len() > MAX_QUEUED {
            return Err(End::malformed(format!("more than {MAX_QUEUED} things are offered and not supplied")));
        }
        self.check_lengths(&items)?;
        let chunks: Vec<(Fingerprint, u32)> = items
            .iter()
            .filter_map(|item| match item {
                Offered::Chunk { fingerprint, length } => Some((*fingerprint, *length)),
                _ => None,
            })
            .collect();
        let mut known = Vec::with_capacity(chunks.len());
        self.running.recall(&chunks, &mut known);
        self.look_up(&items, &chunks, &mut known)?;
        let (mut known, mut wanted) = (known.into_iter(), Vec::with_capacity(chunks.len()));
        for item in items {
            match item {
                Offered::Begin { ticket, .. } => self.queue.push_back(Item::Begin { ticket }),
                Offered::Zeros { length } => {
                    if length == 0 {
                        return Err(End::malformed("no zeros were offered"));
                    }
                    self.queue.push_back(Item::Piece(Piece::Zeros { length }));
                }
                Offered::End => self.queue.push_back(Item::End),
                Offered::Chunk { fingerprint, length } => {
                    let is_wanted = match (known.next().flatten(), self.asked.get_mut(&fingerprint)) {
                        (_, Some((asked, _))) if *asked != length => {
                            return Err(End::malformed("a chunk was offered with two lengths"));
                        }
                        (_, Some((_, again))) => {
                            *again += 1;
                            self.queue.push_back(Item::Again { fingerprint, length });
                            false
                        }
                        (Some(address), None) => {
                            self.queue.push_back(Item::Piece(Piece::Chunk { fingerprint, address, offset: 0, length }));
                            false
                        }
                        (None, None) => {
                            self.asked.insert(fingerprint, (length, 0));
                            self.wanted.push_back((fingerprint, length));
                            self.queue.push_back(Item::Wanted);
                            true
                        }
                    };
                    wanted.push(is_wanted);
                }
            }
        }
        Ok(Wanted(wanted))
    }

    /// Checks that chunks are no longer than the store cuts them.
    fn check_lengths(&self, items: &[Offered]) -> Result<()> {
        let too_long = |item: &Offered| matches!(item, Offered::Chunk { length, .. } if *length as usize > self.limits.max);
        if items.iter().any(too_long) {
            return Err(End::malformed(format!("a chunk is longer than those of this store: {} bytes", self.limits.max)));
        }
        Ok(())
    }

    /// Looks up the chunks that the account may know of.
    fn look_up(&mut self, items: &[Offered], chunks: &[(Fingerprint, u32)], known: &mut [Option<Address>]) -> Result<()> {
        // Where the account's own use of a chunk had it.
        let mut places = vec![None; chunks.len()];
        let mut at = 0;
        for item in items {
            match item {
                Offered::Begin { earlier, .. } => {
                    self.earlier = if earlier.is_empty() { None } else { self.around(earlier) };
                }
                Offered::Chunk { fingerprint, length } => {
                    if let Some(around) = &mut self.earlier {
                        around.reach(&self.stream);
                        if known[at].is_none() {
                            places[at] = around.place(fingerprint, *length);
                        }
                        around.advance(u64::from(*length));
                    }
                    at += 1;
                }
                Offered::Zeros { length } => {
                    if let Some(around) = &mut self.earlier {
                        around.advance(*length);
                    }
                }
                Offered::End => self.earlier = None,
            }
        }
        for ((place, (chunk, length)), known) in places.iter_mut().zip(chunks).zip(&*known) {
            if place.is_none() && known.is_none() {
                *place = self.running.earlier_supplies.iter().find_map(|supplies| supplies.place(chunk, *length));
            }
        }
        let may_know = |at: &usize| self.knows_all || places[*at].is_some();
        let asks: Vec<usize> = (0..chunks.len()).filter(|at| may_know(at) && known[*at].is_none()).collect();
        let names: Vec<Fingerprint> = asks.iter().map(|at| chunks[*at].0).collect();
        let mut found = Vec::with_capacity(names.len());
        self.stream.find(&names, &mut found)?;
        let engine = self.making.engine();
        // What cannot be looked at is supplied again.
        let is_stored = |at: usize, place| engine.is_stored(&chunks[at].0, place).unwrap_or(false);
        for (at, found) in asks.into_iter().zip(found) {
            known[at] = match (found, places[at]) {
                // Hooks may miss it. And nobody shall see that somebody else is storing it just now.
                (None, Some(place)) if is_stored(at, place) => Some(place),
                (found, _) => found,
            };
        }
        Ok(())
    }

    /// Returns the earlier version of a file. `None`: there is none. It only helps.
    fn around(&self, path: &[u8]) -> Option<Around> {
        let engine = self.making.engine();
        let entry = lookup(engine, &self.making.earlier()?.root, path).ok().flatten()?;
        match entry.content {
            Content::File { recipe, .. } => Some(Around::new(engine, &recipe)),
            _ => None,
        }
    }

    /// Stores the chunks that were wanted first.
    fn supply(&mut self, chunks: u64, codec: u8, raw_bytes: u64, bytes: &[u8], channel: &Channel) -> Result<()> {
        let count = usize::try_from(chunks).unwrap_or(usize::MAX);
        if count == 0 || count > MAX_OFFERED || count > self.wanted.len() {
            return Err(End::malformed(format!("a supply of {chunks} chunks, and {} are wanted", self.wanted.len())));
        }
        let wanted: Vec<(Fingerprint, u32)> = self.wanted.drain(..count).collect();
        let length: u64 = wanted.iter().map(|(_, length)| u64::from(*length)).sum();
        let descriptor = self.making.engine().descriptor();
        let most = 2 * u64::from(descriptor.sequential_frame_bytes).max(descriptor.chunk_sizes.max as u64);
        if length != raw_bytes || (length > most && count > 1) {
            return Err(End::malformed(format!("a supply of {raw_bytes} bytes for chunks of {length}; it has at most {most}")));
        }
        // Asked for each supply: an account that is locked stops at once.
        let account = self.guest.permit(Permission::Backup, &self.running.name)?;
        let counted_bytes = raw_bytes.saturating_add(chunks.saturating_mul(CHUNK_BYTES));
        self.guest.supplied(counted_bytes, bytes.len() as u64, account.as_ref(), channel)?;
        let codec = Codec::from_number(codec).ok_or_else(|| End::malformed(format!("there is no codec {codec}")))?;
        let frame = CompressedFrame::decompress(codec, bytes, length as usize).map_err(|error| End::malformed(error.to_string()))?;
        let (mut rest, mut parts) = (frame.raw(), Vec::with_capacity(count));
        for (_, length) in &wanted {
            let (part, behind) = rest.split_at(*length as usize);
            parts.push(part);
            rest = behind;
        }
        let names: Vec<Fingerprint> = wanted.iter().map(|(name, _)| *name).collect();
        let pieces = self.stream.write_frame(&parts, &names, Some(&frame)).inspect_err(|error| {
            if matches!(error, onefold_engine::EngineError::Misnamed { .. }) {
                self.guest.observer().refused("backup", "a chunk has another name than its bytes");
            }
        })?;
        self.running.raw_bytes.fetch_add(raw_bytes, Ordering::Relaxed);
        self.running.wire_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let placed = pieces.iter().filter_map(|piece| match piece {
            Piece::Chunk { fingerprint, address, length, .. } => Some((*fingerprint, *address, *length)),
            Piece::Zeros { .. } => None,
        });
        let placed: Vec<(Fingerprint, Address, u32)> = placed.collect();
        self.running.remember(&placed);
        for (fingerprint, address, _) in placed {
            match self.asked.remove(&fingerprint) {
                Some((_, 0)) | None => {}
                Some((_, again)) => drop(self.held.insert(fingerprint, (address, again))),
            }
        }
        // Chunks of zeros came back as zeros.
        for name in &names {
            self.asked.remove(name);
        }
        self.supplied.extend(pieces);
        Ok(())
    }

    /// Puts everything at the front of the queue that is there into recipes.
    fn store_ready(&mut self) -> Result<()> {
        while let Some(item) = self.queue.front().copied() {
            let piece = match item {
                Item::Begin { ticket } => {
                    self.file = Some((ticket, RecipeWriter::new(self.making.engine())));
                    None
                }
                Item::End => {
                    let (ticket, recipe) = self.file.take().ok_or_else(|| End::malformed("a file ends that did not begin"))?;
                    let recipe: Recipe = recipe.finish(&mut self.making.metadata())?;
                    self.running.complete(ticket, recipe)?;
                    None
                }
                Item::Piece(piece) => Some(piece),
                Item::Wanted => match self.supplied.pop_front() {
                    Some(piece) => Some(piece),
                    None => return Ok(()),
                },
                Item::Again { fingerprint, length } => {
                    let Some((address, again)) = self.held.get_mut(&fingerprint) else {
                        // It was a chunk of zeros, or is not there yet.
                        return Err(End::refused(codes::MALFORMED, "a chunk of zeros was offered as a chunk"));
                    };
                    let piece = Piece::Chunk { fingerprint, address: *address, offset: 0, length };
                    *again -= 1;
                    if *again == 0 {
                        self.held.remove(&fingerprint);
                    }
                    Some(piece)
                }
            };
            self.queue.pop_front();
            if let Some(piece) = piece {
                let (_, recipe) = self.file.as_mut().ok_or_else(|| End::malformed("content without a file"))?;
                recipe.push(&mut self.making.metadata(), piece)?;
            }
        }
        Ok(())
    }
}

/// The chunks of the earlier version of a file around the current place.
struct Around {
    pieces: PieceReader,
    /// Where the pieces that were read end, and where the file is that is being stored.
    read_bytes: u64,
    at: u64,
    has_ended: bool,
    chunks: HashMap<(Fingerprint, u32), (u32, Address)>,
    order: VecDeque<(Fingerprint, u32)>,
}

impl Around {
    fn new(engine: &Arc<onefold_engine::Engine>, recipe: &Recipe) -> Around {
        let pieces = PieceReader::new(engine, recipe);
        Around { pieces, read_bytes: 0, at: 0, has_ended: false, chunks: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns where a chunk of this length is, if it is near.
    fn place(&self, chunk: &Fingerprint, length: u32) -> Option<Address> {
        self.chunks.get(&(*chunk, length)).map(|(_, address)| *address)
    }

    fn advance(&mut self, bytes: u64) {
        self.at = self.at.saturating_add(bytes);
    }

    /// Reads pieces up to some way behind the current place if few of those are left, and forgets the oldest.
    fn reach(&mut self, stream: &WriteStream) {
        if self.has_ended || self.read_bytes >= self.at.saturating_add(AROUND_BYTES / 2) {
            return;
        }
        let mut addresses: Vec<Address> = Vec::new();
        // Pieces may be short: their number is bounded too.
        for _ in 0..AROUND_CHUNKS {
            if self.read_bytes >= self.at.saturating_add(AROUND_BYTES) {
                break;
            }
            let Some(piece) = self.pieces.next() else {
                self.has_ended = true;
                break;
            };
            let Ok(piece) = piece else { continue };
            self.read_bytes = self.read_bytes.saturating_add(piece.length());
            if let Piece::Chunk { fingerprint, address, offset: 0, length } = piece {
                self.chunks.entry((fingerprint, length)).or_insert((0, address)).0 += 1;
                self.order.push_back((fingerprint, length));
                if addresses.last().is_none_or(|last| last.origin() != address.origin()) {
                    addresses.push(address);
                }
            }
        }
        while self.order.len() > AROUND_CHUNKS {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some((count, _)) = self.chunks.get_mut(&oldest) {
                *count -= 1;
                if *count == 0 {
                    self.chunks.remove(&oldest);
                }
            }
        }
        stream.recall(&addresses);
    }
}
