//! The content of files: offers, answers to them, supplies.

use super::{MAX_LONG_BYTES, MAX_OFFERED, MAX_QUEUED, Result, bounded, unknown, whole};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};

/// A part of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offered {
    /// A file begins. One that was not ended is dropped.
    Begin {
        /// The number under which the tree takes it.
        ticket: u64,
        /// The path of its version in the earlier backup. Empty: it has none.
        earlier: Vec<u8>,
    },
    /// A chunk of the file.
    Chunk {
        /// Its name.
        fingerprint: Fingerprint,
        /// Its bytes.
        length: u32,
    },
    /// Zeros in the file.
    Zeros {
        /// Their number.
        length: u64,
    },
    /// The file ends.
    End,
}

/// What a client says on a channel for contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentsRequest {
    /// Content in order. The server answers which chunks it wants.
    Offer(Vec<Offered>),
    /// The next wanted chunks, one after the other.
    Supply {
        /// How many.
        chunks: u64,
        /// Their codec ([`onefold_storage::Codec`]). A server refuses one that it cannot decompress, except that an
        /// account whose chunks are opaque names them by what was supplied.
        codec: u8,
        /// Their length without compression, together.
        raw_bytes: u64,
        /// The compressed bytes.
        bytes: Vec<u8>,
    },
}

impl ContentsRequest {
    /// Returns kind and payload. Fingerprints have `digest_bytes`.
    pub fn encode(&self, digest_bytes: usize) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        match self {
            ContentsRequest::Offer(items) => {
                for item in items {
                    match item {
                        Offered::Begin { ticket, earlier } => {
                            out.push(0);
                            put_varint(&mut out, *ticket);
                            put_bytes(&mut out, earlier);
                        }
                        Offered::Chunk { fingerprint, length } => {
                            out.push(1);
                            out.extend_from_slice(fingerprint.digest(digest_bytes));
                            put_varint(&mut out, u64::from(*length));
                        }
                        Offered::Zeros { length } => {
                            out.push(2);
                            put_varint(&mut out, *length);
                        }
                        Offered::End => out.push(3),
                    }
                }
                (1, out)
            }
            ContentsRequest::Supply { chunks, codec, raw_bytes, bytes } => {
                out.reserve(bytes.len() + 24);
                put_varint(&mut out, *chunks);
                out.push(*codec);
                put_varint(&mut out, *raw_bytes);
                out.extend_from_slice(bytes);
                (2, out)
            }
        }
    }

    /// Decodes a message.
    pub fn decode(kind: u8, payload: &[u8], digest_bytes: usize) -> Result<ContentsRequest> {
        let mut reader = Reader::new(payload);
        match kind {
            1 => {
                let (mut items, mut chunks) = (Vec::new(), 0);
                while reader.left() > 0 {
                    let offset_bytes = reader.position();
                    if items.len() == MAX_QUEUED {
                        return Err(WireError::OutOfRange { what: "offered things", value: MAX_QUEUED as u64 + 1, offset_bytes });
                    }
                    items.push(match reader.u8()? {
                        0 => Offered::Begin { ticket: reader.varint()?, earlier: bounded(&mut reader, "path", MAX_LONG_BYTES)?.to_vec() },
                        1 => {
                            chunks += 1;
                            let fingerprint = Fingerprint::from_digest(reader.take(digest_bytes)?);
                            let length = reader.varint_to("chunk length", onefold_storage::MAX_CHUNK_BYTES as u64)? as u32;
                            if length == 0 || chunks > MAX_OFFERED {
                                return Err(WireError::OutOfRange { what: "chunk of an offer", value: chunks as u64, offset_bytes });
                            }
                            Offered::Chunk { fingerprint, length }
                        }
                        2 => Offered::Zeros { length: reader.varint()? },
                        3 => Offered::End,
                        tag => return Err(WireError::OutOfRange { what: "offered thing", value: u64::from(tag), offset_bytes }),
                    });
                }
                Ok(ContentsRequest::Offer(items))
            }
            2 => {
                let (chunks, codec, raw_bytes) = (reader.varint()?, reader.u8()?, reader.varint()?);
                let bytes = reader.take(reader.left())?.to_vec();
                Ok(ContentsRequest::Supply { chunks, codec, raw_bytes, bytes })
            }
            kind => Err(unknown("kind of a message", kind)),
        }
    }
}

/// Which chunks of an offer the server wants, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted(pub Vec<bool>);

impl Wanted {
    /// The kind of the message.
    pub const KIND: u8 = 1;

    /// Encodes the answer: a bit for each chunk, the first in the lowest bit.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 + self.0.len().div_ceil(8));
        put_varint(&mut out, self.0.len() as u64);
        for bits in self.0.chunks(8) {
            out.push(bits.iter().enumerate().fold(0, |byte, (at, bit)| byte | u8::from(*bit) << at));
        }
        out
    }

    /// Decodes the answer.
    pub fn decode(bytes: &[u8]) -> Result<Wanted> {
        whole(bytes, |reader| {
            let count = reader.varint_to("chunks", MAX_OFFERED as u64)? as usize;
            let bits = reader.take(count.div_ceil(8))?;
            Ok(Wanted((0..count).map(|at| bits[at / 8] >> (at % 8) & 1 == 1).collect()))
        })
    }
}
