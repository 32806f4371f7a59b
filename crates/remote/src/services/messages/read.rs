//! Reading a backup: questions with sealed pieces, and their answers.

use super::{MAX_LONG_BYTES, MAX_PIECES, MAX_TEXT_BYTES, Result, flag, id, text, unknown, whole, without_root};
use onefold_catalog::{Backup, BackupId, Of};
use onefold_engine::{MAX_LEVEL, Piece};
use onefold_ground::wire::{Reader, put_bytes, put_varint};

/// Opens a channel for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Open {
    /// A backup, by its id.
    Backup(BackupId),
    /// The backup that a user means ([`onefold_catalog::Catalog::look_up`]).
    Meant(String),
    /// The backup that a new one is compared with, by the number of the new one.
    Earlier(u64),
    /// Another channel of a reading of this session, by its number.
    Beside(u64),
}

impl Open {
    /// Encodes the opening.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Open::Backup(id) => {
                out.push(0);
                out.extend_from_slice(id.as_bytes());
            }
            Open::Meant(asked) => {
                out.push(3);
                put_bytes(&mut out, asked.as_bytes());
            }
            Open::Earlier(number) => {
                out.push(1);
                put_varint(&mut out, *number);
            }
            Open::Beside(number) => {
                out.push(2);
                put_varint(&mut out, *number);
            }
        }
        out
    }

    /// Decodes the opening.
    pub fn decode(bytes: &[u8]) -> Result<Open> {
        whole(bytes, |reader| match reader.u8()? {
            0 => Ok(Open::Backup(id(reader)?)),
            1 => Ok(Open::Earlier(reader.varint()?)),
            2 => Ok(Open::Beside(reader.varint()?)),
            3 => Ok(Open::Meant(text(reader, "backup", MAX_TEXT_BYTES)?)),
            tag => Err(unknown("opening", tag)),
        })
    }
}

/// Reads the pieces of a question. Their number is bounded before memory is allocated for them.
fn pieces(reader: &mut Reader<'_>, payload: &[u8], digest_bytes: usize) -> Result<Vec<Piece>> {
    Reader::new(&payload[reader.position()..]).varint_to("pieces of a question", MAX_PIECES as u64)?;
    onefold_engine::decode_pieces(reader, digest_bytes)
}

/// What a chunk of metadata is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// A piece of a recipe of this level, above 0.
    Recipe {
        /// The level.
        level: u8,
        /// What the recipe describes.
        of: Of,
    },
    /// A directory chunk.
    Directory,
}

impl Metadata {
    /// Returns its number, below 255.
    pub fn number(self) -> u8 {
        match self {
            Metadata::Directory => 0,
            Metadata::Recipe { level, of } => 1 + (level - 1) * 2 + u8::from(of == Of::Directory),
        }
    }

    fn decode(byte: u8) -> Result<Metadata> {
        match byte {
            0 => Ok(Metadata::Directory),
            byte if byte <= 2 * MAX_LEVEL => {
                let of = if (byte - 1) % 2 == 1 { Of::Directory } else { Of::File };
                Ok(Metadata::Recipe { level: (byte - 1) / 2 + 1, of })
            }
            byte => Err(unknown("metadata", byte)),
        }
    }
}

/// What a client asks on a channel for reading. Answers come in the order of the questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRequest {
    /// A chunk of metadata.
    Metadata {
        /// The sealed piece.
        piece: Piece,
        /// What it is.
        what: Metadata,
    },
    /// The bytes of these pieces, sealed or zeros.
    Data {
        /// Whether the answer may be compressed.
        compresses: bool,
        /// The pieces.
        pieces: Vec<Piece>,
    },
    /// All metadata of the backup, in the order of the tree. It is the last question of its channel.
    Stream {
        /// Also the recipes of files.
        files: bool,
    },
}

impl ReadRequest {
    /// Returns kind and payload.
    pub fn encode(&self, digest_bytes: usize) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        match self {
            ReadRequest::Metadata { piece, what } => {
                out.push(what.number());
                onefold_engine::encode_pieces(std::slice::from_ref(piece), digest_bytes, &mut out);
                (1, out)
            }
            ReadRequest::Data { compresses, pieces } => {
                out.push(u8::from(*compresses));
                onefold_engine::encode_pieces(pieces, digest_bytes, &mut out);
                (2, out)
            }
            ReadRequest::Stream { files } => (3, vec![u8::from(*files)]),
        }
    }

    /// Decodes a message.
    pub fn decode(kind: u8, payload: &[u8], digest_bytes: usize) -> Result<ReadRequest> {
        whole(payload, |reader| match kind {
            1 => {
                let what = Metadata::decode(reader.u8()?)?;
                match pieces(reader, payload, digest_bytes)?[..] {
                    [piece @ Piece::Chunk { .. }] => Ok(ReadRequest::Metadata { piece, what }),
                    _ => Err(unknown("pieces", 1)),
                }
            }
            2 => {
                let compresses = flag(reader, "compression")?;
                Ok(ReadRequest::Data { compresses, pieces: pieces(reader, payload, digest_bytes)? })
            }
            3 => Ok(ReadRequest::Stream { files: flag(reader, "files")? }),
            kind => Err(unknown("kind of a message", kind)),
        })
    }
}

/// A chunk of metadata, with sealed pieces in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its sealed piece.
    pub piece: Piece,
    /// What it is.
    pub what: Metadata,
    /// Its content: pieces, or entries, as `docs/format.md` 8.1 and 8.2 have them.
    pub content: Vec<u8>,
}

/// What the server says on a channel for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAnswer {
    /// The answer to the opening.
    Opened {
        /// The number of the reading in this session.
        number: u64,
        /// The length of digests.
        digest_bytes: u8,
        /// The record, with a sealed root.
        backup: Box<Backup>,
        /// A newer backup that was passed over because it is partial, with a root of no pieces.
        newer_partial: Option<Box<Backup>>,
    },
    /// Chunks of metadata.
    Metadata(Vec<Sent>),
    /// Bytes.
    Data {
        /// Their codec.
        codec: u8,
        /// The compressed bytes.
        bytes: Vec<u8>,
    },
    /// What was asked for cannot be read. The channel goes on.
    Failed(String),
}

impl ReadAnswer {
    /// Returns kind and payload.
    pub fn encode(&self, digest_bytes: usize) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        match self {
            ReadAnswer::Opened { number, digest_bytes, backup, newer_partial } => {
                put_varint(&mut out, *number);
                out.push(*digest_bytes);
                put_bytes(&mut out, &backup.encode(usize::from(*digest_bytes)));
                put_bytes(&mut out, &newer_partial.as_ref().map_or_else(Vec::new, |backup| without_root(backup).encode(32)));
                (1, out)
            }
            ReadAnswer::Metadata(chunks) => {
                for chunk in chunks {
                    out.push(chunk.what.number());
                    onefold_engine::encode_pieces(std::slice::from_ref(&chunk.piece), digest_bytes, &mut out);
                    put_bytes(&mut out, &chunk.content);
                }
                (2, out)
            }
            ReadAnswer::Data { codec, bytes } => {
                out.reserve(bytes.len() + 1);
                out.push(*codec);
                out.extend_from_slice(bytes);
                (3, out)
            }
            ReadAnswer::Failed(why) => (4, why.as_bytes()[..why.len().min(MAX_LONG_BYTES)].to_vec()),
        }
    }

    /// Decodes a message.
    pub fn decode(kind: u8, payload: &[u8], digest_bytes: usize) -> Result<ReadAnswer> {
        let mut reader = Reader::new(payload);
        match kind {
            1 => {
                let number = reader.varint()?;
                let digest_bytes = reader.u8()?;
                if !(1..=32).contains(&digest_bytes) {
                    return Err(unknown("length of digests", digest_bytes));
                }
                let backup = Box::new(Backup::decode(reader.bytes()?, usize::from(digest_bytes))?);
                let newer = reader.bytes()?;
                let newer_partial = if newer.is_empty() { None } else { Some(Box::new(Backup::decode(newer, 32)?)) };
                reader.end()?;
                Ok(ReadAnswer::Opened { number, digest_bytes, backup, newer_partial })
            }
            2 => {
                let mut chunks = Vec::new();
                while reader.left() > 0 {
                    let what = Metadata::decode(reader.u8()?)?;
                    let pieces = onefold_engine::decode_pieces(&mut reader, digest_bytes)?;
                    let [piece @ Piece::Chunk { .. }] = pieces[..] else { return Err(unknown("pieces", 2)) };
                    chunks.push(Sent { piece, what, content: reader.bytes()?.to_vec() });
                }
                Ok(ReadAnswer::Metadata(chunks))
            }
            3 => Ok(ReadAnswer::Data { codec: reader.u8()?, bytes: reader.take(reader.left())?.to_vec() }),
            4 => Ok(ReadAnswer::Failed(String::from_utf8_lossy(payload).into_owned())),
            kind => Err(unknown("kind of a message", kind)),
        }
    }
}

/// Records of backups, without roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records(pub Vec<Backup>);

/// What the server says on a channel for a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Backups.
    Records(Records),
    /// Some records are damaged: the list is not complete.
    Missing,
}

impl Listed {
    /// Returns kind and payload.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        match self {
            Listed::Records(records) => {
                records.0.iter().for_each(|backup| put_bytes(&mut out, &without_root(backup).encode(32)));
                (1, out)
            }
            Listed::Missing => (2, out),
        }
    }

    /// Decodes a message.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Listed> {
        let mut reader = Reader::new(payload);
        match kind {
            1 => {
                let mut records = Vec::new();
                while reader.left() > 0 {
                    records.push(Backup::decode(reader.bytes()?, 32)?);
                }
                Ok(Listed::Records(Records(records)))
            }
            2 => reader.end().map(|()| Listed::Missing),
            kind => Err(unknown("answer", kind)),
        }
    }
}
