//! Reading a backup: sealed pieces go out and come back.

use super::backup::Running;
use super::guest::Guest;
use super::{End, Result};
use crate::accounts::Permission;
use crate::services::Seal;
use crate::services::messages::{Metadata, Open, ReadAnswer, ReadRequest, Sent, codes};
use crate::transport::Channel;
use onefold_catalog::{Backup, Catalog, CatalogError, Chunks, Content, Of};
use onefold_engine::{Engine, EngineError, InFlight, Piece, Recipe, encode_pieces};
use onefold_storage::{Compression, Compressor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// About how much metadata goes into one message of a stream.
const STREAM_BYTES: usize = 256 << 10;
/// What of a message is not data.
const HEAD_BYTES: usize = 64;
/// The compression of answers, if the client wants one: data is read once, so it should cost little.
const COMPRESSION: Compression = Compression::Zstd(1);

/// A backup that a session reads.
#[derive(Debug)]
pub(super) struct Reading {
    number: u64,
    seal: Seal,
    backup: Backup,
    /// The log has it.
    is_logged: AtomicBool,
    _guard: Guard,
}

/// The metadata chunks that a metadata chunk names, in their order.
type Below = Vec<(Piece, Metadata)>;

/// What keeps the chunks.
#[derive(Debug)]
#[allow(dead_code, reason = "it is held")]
enum Guard {
    Own(InFlight),
    Of(Arc<Running>),
}

pub(super) fn serve(catalog: &Catalog, guest: &Guest, opening: &[u8], channel: &Channel) -> Result<()> {
    let engine = catalog.engine();
    let mut newer_partial = None;
    // The guard comes first.
    let guard = Guard::Own(engine.in_flight());
    let reading = match Open::decode(opening)? {
        Open::Backup(id) => {
            let backup = guest.find(catalog, id)?;
            let reading = begin(engine, guest, backup, guard)?;
            reading.log(guest);
            reading
        }
        Open::Meant(asked) => {
            let found = guest.scope(catalog)?.look_up(&asked).map_err(|error| match error {
                error @ (CatalogError::UnknownBackup { .. } | CatalogError::AmbiguousBackup { .. }) => {
                    End::refused(codes::UNKNOWN, error.to_string())
                }
                error => error.into(),
            })?;
            newer_partial = found.newer_partial.map(|newer| Box::new(guest.shown(&newer)));
            let reading = begin(engine, guest, found.backup, guard)?;
            reading.log(guest);
            reading
        }
        Open::Earlier(number) => {
            let running = guest.running(number)?;
            // Only to compare with. If data is read, the log says so.
            let backup = running.comparison.earlier.clone().ok_or_else(|| End::malformed("the backup is compared with none"))?;
            begin(engine, guest, backup, Guard::Of(running))?
        }
        Open::Beside(number) => guest.reading(number)?,
    };
    let digest_bytes = engine.digest_bytes();
    let backup = Box::new(Backup { root: reading.root(), ..guest.shown(&reading.backup) });
    let opened = ReadAnswer::Opened { number: reading.number, digest_bytes: digest_bytes as u8, backup, newer_partial };
    let send = |answer: &ReadAnswer| {
        let (kind, payload) = answer.encode(digest_bytes);
        channel.send(kind, payload).map_err(End::from)
    };
    send(&opened)?;
    let mut compressor = None;
    while let Some(message) = channel.receive()? {
        // It may have lost the permission meanwhile.
        guest.permit(Permission::Read, &reading.backup.name)?;
        match ReadRequest::decode(message.kind, &message.payload, digest_bytes)? {
            ReadRequest::Metadata { piece, what } => {
                let opened = reading.seal.open_metadata(&piece, what);
                match reading.chunk(engine, &opened, what) {
                    Ok((content, _)) if content.len() + HEAD_BYTES + digest_bytes <= channel.payload_limit() => {
                        send(&ReadAnswer::Metadata(vec![Sent { piece, what, content }]))?;
                    }
                    Ok(_) => send(&ReadAnswer::Failed("a chunk of metadata is too long to be sent".to_owned()))?,
                    Err(error) => send(&failed(&error))?,
                }
            }
            ReadRequest::Data { compresses, pieces } => {
                reading.log(guest);
                let length: u64 = pieces.iter().map(Piece::length).fold(0, u64::saturating_add);
                if length > (channel.payload_limit() - HEAD_BYTES) as u64 {
                    return Err(End::malformed("a question for more bytes than fit an answer"));
                }
                let pieces: Vec<Piece> = pieces.iter().map(|piece| reading.seal.open_data(piece)).collect();
                let mut raw = vec![0; length as usize];
                match engine.read(&pieces, 0, &mut raw, true) {
                    Ok(()) if compresses => {
                        let (codec, bytes) = compressor.get_or_insert_with(|| Compressor::new(COMPRESSION)).compress(&raw);
                        send(&ReadAnswer::Data { codec: codec as u8, bytes: bytes.to_vec() })?;
                    }
                    Ok(()) => send(&ReadAnswer::Data { codec: onefold_storage::Codec::Plain as u8, bytes: raw })?,
                    Err(error) => send(&failed(&error.into()))?,
                }
            }
            ReadRequest::Stream { files } => {
                drop(message);
                return reading.stream(engine, files, &send);
            }
        }
    }
    Ok(())
}

fn begin(engine: &Arc<Engine>, guest: &Guest, backup: Backup, guard: Guard) -> Result<Arc<Reading>> {
    let mut key = [0; 32];
    onefold_ground::fill_random(&mut key).map_err(|error| End::refused(super::codes::STORE, format!("no random numbers: {error}")))?;
    let seal = Seal::new(key, engine.digest_bytes());
    Ok(guest.read(|number| Reading { number, seal, backup, is_logged: AtomicBool::new(false), _guard: guard }))
}

/// The answer to a question that failed: without names and addresses.
fn failed(error: &CatalogError) -> ReadAnswer {
    tracing::warn!(%error, "a client could not read a chunk");
    let what = match error {
        CatalogError::Engine(error) if !error.is_damage() && !matches!(error, EngineError::WrongChunk { .. }) => "it cannot be read now",
        _ => "it is damaged",
    };
    ReadAnswer::Failed(format!("{what}; the server's log says more"))
}

/// What a piece of a recipe is: data, or metadata.
fn what_is(level: u8, of: Of) -> Option<Metadata> {
    match (level, of) {
        (0, Of::File) => None,
        (0, Of::Directory) => Some(Metadata::Directory),
        (level, of) => Some(Metadata::Recipe { level, of }),
    }
}

impl Reading {
    fn log(&self, guest: &Guest) {
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            guest.observer().reads(&self.backup);
        }
    }

    fn root(&self) -> Recipe {
        self.sealed(&self.backup.root, Of::Directory)
    }

    fn sealed(&self, recipe: &Recipe, of: Of) -> Recipe {
        Recipe { pieces: self.seal_all(&recipe.pieces, recipe.level, of), ..recipe.clone() }
    }

    fn seal_all(&self, pieces: &[Piece], level: u8, of: Of) -> Vec<Piece> {
        let seal = |piece: &Piece| match what_is(level, of) {
            None => self.seal.data(piece),
            Some(what) => self.seal.metadata(piece, what),
        };
        pieces.iter().map(seal).collect()
    }

    /// Reads a chunk of metadata. Returns its content, sealed, and the metadata below it, in order, not sealed.
    fn chunk(&self, engine: &Engine, piece: &Piece, what: Metadata) -> onefold_catalog::Result<(Vec<u8>, Below)> {
        let digest_bytes = engine.digest_bytes();
        let mut below = Vec::new();
        match what {
            Metadata::Recipe { level, of } => {
                let pieces = engine.recipe_chunk(piece)?;
                below.extend(what_is(level - 1, of).into_iter().flat_map(|what| pieces.iter().map(move |piece| (*piece, what))));
                let mut content = Vec::new();
                encode_pieces(&self.seal_all(&pieces, level - 1, of), digest_bytes, &mut content);
                Ok((content, below))
            }
            Metadata::Directory => {
                let mut listed = engine.directory_chunk(piece)?;
                for entry in &mut listed.entries {
                    let (recipe, of) = match &mut entry.content {
                        Content::File { recipe, .. } => (recipe, Of::File),
                        Content::Directory { recipe } => (recipe, Of::Directory),
                        _ => continue,
                    };
                    below.extend(
                        what_is(recipe.level, of).into_iter().flat_map(|what| recipe.pieces.iter().map(move |piece| (*piece, what))),
                    );
                    *recipe = self.sealed(recipe, of);
                }
                Ok((listed.encode(digest_bytes), below))
            }
        }
    }

    /// Sends all metadata in the order of the tree. What cannot be read is left out: the client asks for it, and hears
    /// why.
    fn stream(&self, engine: &Engine, files: bool, send: &dyn Fn(&ReadAnswer) -> Result<()>) -> Result<()> {
        let root = &self.backup.root;
        let mut next: Vec<(Piece, Metadata)> = what_is(root.level, Of::Directory)
            .into_iter()
            .flat_map(|what| root.pieces.iter().rev().map(move |piece| (*piece, what)))
            .collect();
        let (mut batch, mut batch_bytes) = (Vec::new(), 0);
        while let Some((piece, what)) = next.pop() {
            if !files && matches!(what, Metadata::Recipe { of: Of::File, .. }) {
                continue;
            }
            let Ok((content, below)) = self.chunk(engine, &piece, what) else { continue };
            next.extend(below.into_iter().rev());
            if batch_bytes + content.len() > STREAM_BYTES && !batch.is_empty() {
                send(&ReadAnswer::Metadata(std::mem::take(&mut batch)))?;
                batch_bytes = 0;
            }
            batch_bytes += content.len() + HEAD_BYTES;
            // A longer chunk than fits a message has to be asked for, which says so.
            if content.len() <= 2 * STREAM_BYTES {
                batch.push(Sent { piece: self.seal.metadata(&piece, what), what, content });
            }
        }
        if batch.is_empty() { Ok(()) } else { send(&ReadAnswer::Metadata(batch)) }
    }
}
