//! Reads a backup over a connection. Pieces are sealed: they mean something only to this reading.
//!
//! Metadata comes as a stream in the order of the tree, ahead of the reader, and is asked for only when the reader goes
//! another way. Data is asked for in parts; several questions are on their way at once.

use crate::{ClientError, Result};
use onefold_catalog::{Backup, CatalogError, Chunks, DirectoryChunk, Listed, Of};
use onefold_engine::{Piece, decode_pieces};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_remote::services::messages::{Metadata, Open, ReadAnswer, ReadRequest, Sent, services};
use onefold_remote::transport::{Channel, ChannelError, ClientSession, codes};
use onefold_storage::{Codec, decompress_frame};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Metadata that is kept, bytes.
const KEPT_BYTES: usize = 64 << 20;
/// What a chunk of it takes beside its bytes.
const KEPT_HEAD_BYTES: usize = 256;
/// How much of the stream is read in search of a chunk.
const SEARCHED_BYTES: usize = 16 << 20;
/// Readers of data: small files come in batches, and each waits for a round trip.
const READERS: usize = 8;
/// Questions for data on their way at once, of one reader.
const QUESTIONS: usize = 8;
/// The most pieces of these questions together.
const ASKED_PIECES: usize = 1024;
/// A piece takes at most so much of a question beside its digest, and a question so much beside its pieces.
const PIECE_BYTES: usize = 24;
const QUESTION_BYTES: usize = 80;
/// The part of a message that is not data.
const HEAD_BYTES: usize = 64;

type Found<T> = onefold_catalog::Result<T>;

/// A backup at a server.
#[derive(Debug)]
pub(super) struct RemoteChunks {
    session: Arc<ClientSession>,
    number: u64,
    digest_bytes: usize,
    compresses: bool,
    /// Bytes of data that fit an answer.
    answer_bytes: usize,
    metadata: Mutex<MetadataOf>,
    /// The most pieces of questions that are not answered.
    asked_pieces: usize,
    data: Mutex<DataChannels>,
    /// A channel for data came back.
    returned: Condvar,
    broken: Mutex<Option<String>>,
}

/// Channels for data.
#[derive(Debug, Default)]
struct DataChannels {
    idle: Vec<Channel>,
    used: usize,
    /// The server has no room for more.
    is_full: bool,
}

/// A channel for data that a reader uses.
struct Lent<'a> {
    of: &'a RemoteChunks,
    channel: Channel,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut data = self.of.data.lock();
        data.used -= 1;
        // Of a broken reading, questions may be without an answer.
        if self.of.broken.lock().is_none() {
            data.idle.push(self.channel.clone());
        }
        drop(data);
        self.of.returned.notify_one();
    }
}

#[derive(Debug)]
struct MetadataOf {
    channel: Channel,
    stream: Option<Channel>,
    kept: Kept,
}

/// The metadata that came last.
#[derive(Debug, Default)]
struct Kept {
    contents: HashMap<Key, Arc<Vec<u8>>>,
    order: VecDeque<Key>,
    bytes: usize,
}

/// A sealed piece, and the number of what it is.
type Key = (u8, Fingerprint, u64);

fn key(piece: &Piece, what: Metadata) -> Option<Key> {
    match piece {
        Piece::Chunk { fingerprint, address, .. } => Some((what.number(), *fingerprint, address.bits())),
        Piece::Zeros { .. } => None,
    }
}

fn receive(channel: &Channel, digest_bytes: usize) -> Result<Option<ReadAnswer>> {
    match channel.receive()? {
        Some(message) => Ok(Some(ReadAnswer::decode(message.kind, &message.payload, digest_bytes)?)),
        None => Ok(None),
    }
}

fn ask(channel: &Channel, request: &ReadRequest, digest_bytes: usize) -> Result<()> {
    let (kind, payload) = request.encode(digest_bytes);
    Ok(channel.send(kind, payload)?)
}

/// Returns whether the server, or this end, has no room for another channel.
fn is_full(error: &ClientError) -> bool {
    matches!(error, ClientError::Connection(ChannelError::Cancelled { code: codes::BUSY | codes::CHANNELS, .. }))
}

impl RemoteChunks {
    /// Opens a backup. Returns it with its record, and a newer partial one.
    pub(super) fn open(session: &Arc<ClientSession>, open: &Open, compresses: bool) -> Result<(RemoteChunks, Backup, Option<Backup>)> {
        let channel = session.open(services::READ, open.encode())?;
        let Some(ReadAnswer::Opened { number, digest_bytes, backup, newer_partial }) = receive(&channel, 32)? else {
            return Err(ClientError::Protocol("a reading begins otherwise".to_owned()));
        };
        let answer_bytes = channel.payload_limit().min(1 << 20) - HEAD_BYTES;
        // A server gives a part of its window back only when a quarter of it is consumed.
        let room = channel.least_window_bytes() / 4 * 3 - QUESTIONS * QUESTION_BYTES;
        let asked_pieces = (room / (usize::from(digest_bytes) + PIECE_BYTES)).min(ASKED_PIECES);
        let metadata = MetadataOf { channel, stream: None, kept: Kept::default() };
        let chunks = RemoteChunks {
            session: session.clone(),
            number,
            digest_bytes: usize::from(digest_bytes),
            compresses,
            answer_bytes,
            asked_pieces,
            metadata: Mutex::new(metadata),
            data: Mutex::default(),
            returned: Condvar::new(),
            broken: Mutex::default(),
        };
        Ok((chunks, *backup, newer_partial.map(|newer| *newer)))
    }

    /// Has all metadata sent, in the order of the tree. `files`: also the recipes of files. It only helps.
    pub(super) fn stream(&self, files: bool) {
        let begin = || {
            let channel = self.beside()?;
            ask(&channel, &ReadRequest::Stream { files }, self.digest_bytes)?;
            channel.finish();
            Ok::<_, ClientError>(channel)
        };
        self.metadata.lock().stream = begin().ok();
    }

    fn beside(&self) -> Result<Channel> {
        let channel = self.session.open(services::READ, Open::Beside(self.number).encode())?;
        match receive(&channel, self.digest_bytes)? {
            Some(ReadAnswer::Opened { .. }) => Ok(channel),
            _ => Err(ClientError::Protocol("a reading begins otherwise".to_owned())),
        }
    }

    /// Turns an error of the connection into one that no chunk is to blame for.
    fn breaks(&self, error: ClientError) -> CatalogError {
        let why = error.to_string();
        self.broken.lock().get_or_insert_with(|| why.clone());
        CatalogError::Unreachable { why }
    }

    fn metadata(&self, piece: &Piece, what: Metadata) -> Found<Arc<Vec<u8>>> {
        let zeros = || CatalogError::Remote { why: "zeros are in place of a metadata chunk".to_owned() };
        let key = key(piece, what).ok_or_else(zeros)?;
        let mut metadata = self.metadata.lock();
        if let Some(content) = metadata.kept.contents.get(&key) {
            return Ok(content.clone());
        }
        let mut searched = 0;
        while searched < SEARCHED_BYTES
            && let Some(stream) = metadata.stream.clone()
        {
            match receive(&stream, self.digest_bytes) {
                Ok(Some(ReadAnswer::Metadata(chunks))) => {
                    searched += KEPT_HEAD_BYTES + chunks.iter().map(|chunk| memory_bytes(&chunk.content)).sum::<usize>();
                    metadata.kept.keep(chunks);
                }
                Ok(Some(_)) => return Err(self.breaks(ClientError::Protocol("a stream of something else".to_owned()))),
                Ok(None) => metadata.stream = None,
                Err(error) => {
                    metadata.stream = None;
                    return Err(self.breaks(error));
                }
            }
            if let Some(content) = metadata.kept.contents.get(&key) {
                return Ok(content.clone());
            }
        }
        let asked = ask(&metadata.channel, &ReadRequest::Metadata { piece: *piece, what }, self.digest_bytes);
        let answer = asked.and_then(|()| receive(&metadata.channel, self.digest_bytes)).map_err(|error| self.breaks(error))?;
        match answer {
            Some(ReadAnswer::Metadata(mut chunks)) if chunks.len() == 1 => {
                let content = chunks.pop().map(|chunk| Arc::new(chunk.content)).unwrap_or_default();
                metadata.kept.keep(vec![Sent { piece: *piece, what, content: content.to_vec() }]);
                Ok(content)
            }
            Some(ReadAnswer::Failed(why)) => Err(CatalogError::Remote { why }),
            _ => Err(self.breaks(ClientError::Protocol("an answer to another question".to_owned()))),
        }
    }

    /// Returns a channel for data: an idle one, or a new one, or else the next that comes back.
    fn lend(&self) -> Result<Lent<'_>> {
        let mut data = self.data.lock();
        loop {
            if let Some(channel) = data.idle.pop() {
                data.used += 1;
                return Ok(Lent { of: self, channel });
            }
            if data.is_full && data.used > 0 {
                self.returned.wait(&mut data);
                continue;
            }
            data.used += 1;
            drop(data);
            let opened = self.beside();
            data = self.data.lock();
            match opened {
                Ok(channel) => return Ok(Lent { of: self, channel }),
                Err(error) => {
                    data.used -= 1;
                    let has_others = data.used > 0 || !data.idle.is_empty();
                    if !has_others || !is_full(&error) {
                        // Somebody may wait for this one.
                        self.returned.notify_all();
                        return Err(error);
                    }
                    data.is_full = true;
                }
            }
        }
    }

    /// Reads pieces that are not zeros. The questions that are not answered fit the window together: so they never wait
    /// for a server that waits for its answers to be taken.
    fn read(&self, channel: &Channel, pieces: &[Piece], out: &mut [u8]) -> Found<()> {
        let parts = self.parts(pieces);
        let (mut asked, mut pieces, mut at, mut failed) = (0, 0, 0, None);
        for answered in 0..parts.len() {
            while asked < parts.len() && asked < answered + QUESTIONS && pieces + parts[asked].len() <= self.asked_pieces {
                pieces += parts[asked].len();
                let request = ReadRequest::Data { compresses: self.compresses, pieces: parts[asked].clone() };
                ask(channel, &request, self.digest_bytes).map_err(|error| self.breaks(error))?;
                asked += 1;
            }
            pieces -= parts[answered].len();
            let length = parts[answered].iter().map(Piece::length).sum::<u64>() as usize;
            match receive(channel, self.digest_bytes).map_err(|error| self.breaks(error))? {
                Some(ReadAnswer::Data { codec, bytes }) => {
                    let raw = Codec::from_number(codec).ok_or_else(|| format!("codec {codec}"));
                    let raw = raw.and_then(|codec| match codec {
                        Codec::Plain if bytes.len() == length => Ok(bytes),
                        codec => decompress_frame(codec, &bytes, length).map_err(|error| error.to_string()),
                    });
                    let raw = raw.map_err(|why| self.breaks(ClientError::Protocol(why)))?;
                    out[at..at + length].copy_from_slice(&raw);
                }
                Some(ReadAnswer::Failed(why)) => failed = Some(CatalogError::Remote { why }),
                _ => return Err(self.breaks(ClientError::Protocol("an answer to another question".to_owned()))),
            }
            at += length;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Divides pieces so that the bytes of each part fit an answer, and that two parts may be asked for at once.
    fn parts(&self, pieces: &[Piece]) -> Vec<Vec<Piece>> {
        let (mut parts, mut part, mut part_bytes) = (Vec::new(), Vec::new(), 0);
        for piece in pieces {
            let Piece::Chunk { fingerprint, address, mut offset, length: mut left } = *piece else { continue };
            while left > 0 {
                let room = (self.answer_bytes - part_bytes) as u32;
                let length = left.min(room);
                if length > 0 {
                    part.push(Piece::Chunk { fingerprint, address, offset, length });
                    part_bytes += length as usize;
                    offset += length;
                    left -= length;
                }
                if part_bytes == self.answer_bytes || part.len() >= self.asked_pieces / 2 {
                    parts.push(std::mem::take(&mut part));
                    part_bytes = 0;
                }
            }
        }
        if !part.is_empty() {
            parts.push(part);
        }
        parts
    }
}

impl Kept {
    fn keep(&mut self, chunks: Vec<Sent>) {
        for Sent { piece, what, content } in chunks {
            let Some(key) = key(&piece, what) else { continue };
            self.bytes += memory_bytes(&content);
            match self.contents.insert(key, Arc::new(content)) {
                None => self.order.push_back(key),
                Some(before) => self.bytes -= memory_bytes(&before),
            }
        }
        while self.bytes > KEPT_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(content) = self.contents.remove(&oldest) {
                self.bytes -= memory_bytes(&content);
            }
        }
    }
}

/// Returns what a chunk of metadata takes: also a server that sends empty ones fills no memory.
fn memory_bytes(content: &[u8]) -> usize {
    content.len() + KEPT_HEAD_BYTES
}

impl Chunks for RemoteChunks {
    fn recipe_chunk(&self, piece: &Piece, level: u8, of: Of) -> Found<Vec<Piece>> {
        let content = self.metadata(piece, Metadata::Recipe { level, of })?;
        let mut reader = Reader::new(&content);
        let pieces = decode_pieces(&mut reader, self.digest_bytes).and_then(|pieces| reader.end().map(|()| pieces));
        pieces.map_err(|source| CatalogError::Damaged { what: "recipe chunk", source })
    }

    fn directory_chunk(&self, piece: &Piece) -> Found<Listed> {
        let content = self.metadata(piece, Metadata::Directory)?;
        let chunk = DirectoryChunk::decode(&content, self.digest_bytes).and_then(DirectoryChunk::sent);
        chunk.map_err(|source| CatalogError::Damaged { what: "directory chunk", source })
    }

    fn data(&self, pieces: &[Piece], out: &mut [u8]) -> Found<()> {
        if let Some(error) = self.broken() {
            return Err(error);
        }
        let lent = self.lend().map_err(|error| self.breaks(error))?;
        let mut at = 0;
        for run in pieces.chunk_by(|a, b| a.fingerprint().is_some() == b.fingerprint().is_some()) {
            let length = run.iter().map(Piece::length).sum::<u64>() as usize;
            let bytes = &mut out[at..at + length];
            at += length;
            if run[0].fingerprint().is_none() {
                bytes.fill(0);
            } else {
                self.read(&lent.channel, run, bytes)?;
            }
        }
        Ok(())
    }

    fn readers(&self) -> usize {
        READERS
    }

    fn reads_all(&self) {
        self.stream(true);
    }

    fn broken(&self) -> Option<CatalogError> {
        self.broken.lock().clone().map(|why| CatalogError::Unreachable { why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_engine::Address;

    #[test]
    fn metadata_that_comes_again_counts_once() {
        let sent = |at: u64, length: usize| {
            let fingerprint = Fingerprint::from_digest(&[1; 32]);
            let piece = Piece::Chunk { fingerprint, address: Address::from_bits(at), offset: 0, length: 1 };
            Sent { piece, what: Metadata::Directory, content: vec![0; length] }
        };
        let mut kept = Kept::default();
        kept.keep(vec![sent(0, 10), sent(1, 5), sent(0, 7)]);
        assert_eq!((kept.bytes, kept.contents.len(), kept.order.len()), (12 + 2 * KEPT_HEAD_BYTES, 2, 2));
        kept.keep((2..100).map(|at| sent(at, 1 << 20)).collect());
        assert!(kept.bytes <= KEPT_BYTES && kept.contents.len() == kept.order.len());
        assert_eq!(kept.bytes, kept.contents.values().map(|content| memory_bytes(content)).sum::<usize>());
    }
}
