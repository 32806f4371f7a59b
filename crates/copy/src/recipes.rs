//! Moves runs of bytes from store to store: chunk by chunk if both stores chunk and fingerprint alike, otherwise as
//! bytes that are chunked again.

use crate::error::{Result, source};
use crate::{CopyError, Monitor};
use onefold_catalog::PieceReader;
use onefold_engine::{Engine, EngineError, Hints, Piece, Recipe, RecipeWriter, WriteStream};
use onefold_fingerprint::Fingerprint;
use onefold_storage::Address;
use std::collections::HashMap;
use std::sync::Arc;

/// The most chunks looked up together.
const BATCH_CHUNKS: usize = 256;
/// The most bytes of chunks in memory, if all chunks have the maximum length.
const BATCH_BYTES: usize = 32 << 20;
/// Bytes chunked again at a time. More than the longest chunk.
const RUN_BYTES: usize = 4 << 20;
/// Zeros of this length stay zeros when a run is chunked again. Shorter ones are chunked with the other data.
const LONG_ZEROS: u64 = 1 << 20;
/// Recipes remembered per generation of the memory, so at most twice as many in total.
const REMEMBERED: usize = 50_000;

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes read from the source.
    pub read_bytes: u64,
    /// Bytes that were not read because the destination already had them.
    pub known_bytes: u64,
    /// Bytes of chunks that were new to the destination.
    pub added_bytes: u64,
}

/// Moves recipes.
pub(crate) struct Mover {
    pub(crate) source: Arc<Engine>,
    pub(crate) destination: Arc<Engine>,
    /// Never idle, so that nothing it returned is removed before the copy is done.
    pub(crate) stream: WriteStream,
    is_alike: bool,
    moved: Moved,
    done: Memory,
}

impl Mover {
    pub(crate) fn new(source: &Arc<Engine>, destination: &Arc<Engine>) -> Mover {
        let [one, other] = [source, destination].map(|engine| engine.descriptor());
        Mover {
            is_alike: one.fingerprint == other.fingerprint && one.chunker == other.chunker && one.chunk_sizes == other.chunk_sizes,
            source: source.clone(),
            destination: destination.clone(),
            stream: destination.stream().sequential(),
            moved: Moved::default(),
            done: Memory::default(),
        }
    }

    pub(crate) fn moved(&self) -> Moved {
        Moved { added_bytes: self.stream.added_bytes(), ..self.moved }
    }

    /// Returns the destination's recipe for a recipe of the source that was moved before.
    pub(crate) fn remembered(&mut self, recipe: &Recipe) -> Option<Recipe> {
        self.done.get(&self.key(recipe))
    }

    /// Remembers the destination's recipe for a recipe of the source. Call only when nothing of it is missing.
    pub(crate) fn remember(&mut self, recipe: &Recipe, made: &Recipe) {
        let key = self.key(recipe);
        self.done.insert(key, made.clone());
    }

    fn key(&self, recipe: &Recipe) -> Vec<u8> {
        let mut key = Vec::new();
        recipe.encode(self.source.digest_bytes(), &mut key);
        key
    }

    /// Moves the bytes of a recipe of the source, and returns the recipe in the destination.
    pub(crate) fn file(&mut self, recipe: &Recipe, monitor: &dyn Monitor) -> Result<Recipe> {
        if let Some(made) = self.remembered(recipe) {
            self.moved.known_bytes += recipe.length;
            monitor.advance(recipe.length);
            return Ok(made);
        }
        let mut writer = RecipeWriter::new(&self.destination);
        let mut run = Run::default();
        let limit = if self.is_alike {
            (BATCH_BYTES / self.source.descriptor().chunk_sizes.max.max(1)).clamp(1, BATCH_CHUNKS)
        } else {
            BATCH_CHUNKS
        };
        let (mut batch, mut batch_bytes) = (Vec::with_capacity(limit), 0);
        let mut pieces = PieceReader::new(&self.source.clone(), recipe);
        loop {
            let piece = pieces.next().transpose().map_err(source)?;
            let is_over = piece.is_none();
            if let Some(piece) = piece {
                batch_bytes += if matches!(piece, Piece::Zeros { .. }) { 0 } else { piece.length() };
                batch.push(piece);
            }
            if batch.len() >= limit || batch_bytes >= RUN_BYTES as u64 || is_over {
                if monitor.is_cancelled() {
                    return Err(CopyError::Cancelled);
                }
                if self.is_alike {
                    self.chunks(&batch, &mut writer)?;
                } else {
                    self.bytes(&batch, &mut run, is_over, &mut writer)?;
                }
                monitor.advance(batch.iter().map(Piece::length).sum());
                batch.clear();
                batch_bytes = 0;
            }
            if is_over {
                break;
            }
        }
        if writer.length_bytes() != recipe.length {
            return Err(source(format!("a recipe for {} bytes describes {} bytes", recipe.length, writer.length_bytes())));
        }
        let made = writer.finish(&mut self.stream)?;
        self.remember(recipe, &made);
        Ok(made)
    }

    /// Copies chunks as they are. Does not read chunks that the destination has.
    fn chunks(&mut self, pieces: &[Piece], writer: &mut RecipeWriter) -> Result<()> {
        let mut at: HashMap<Fingerprint, Address> = HashMap::new();
        for piece in pieces {
            if let Piece::Chunk { fingerprint, address, .. } = piece {
                at.entry(*fingerprint).or_insert(*address);
            }
        }
        let names: Vec<Fingerprint> = at.keys().copied().collect();
        let mut found = Vec::new();
        self.stream.find(&names, &mut found)?;
        let mut places: HashMap<Fingerprint, Piece> = HashMap::new();
        let mut missing = Vec::new();
        for (name, found) in names.iter().zip(found) {
            match found {
                Some(address) => drop(places.insert(*name, Piece::Chunk { fingerprint: *name, address, offset: 0, length: 0 })),
                None => missing.push((at[name], *name)),
            }
        }
        // Reads in the order of the source.
        missing.sort_by_key(|(address, _)| address.bits());
        let slices = self.source.load(&missing).map_err(source)?;
        let data: Vec<&[u8]> = slices.iter().map(|slice| &slice[..]).collect();
        self.moved.read_bytes += data.iter().map(|data| data.len() as u64).sum::<u64>();
        let stored = self.stream.write_chunks(&data)?;
        for ((_, name), piece) in missing.iter().zip(stored) {
            if piece.fingerprint().is_some_and(|stored| stored != *name) {
                return Err(EngineError::Inconsistent { why: format!("chunk {name} has another fingerprint in the destination") }.into());
            }
            places.insert(*name, piece);
        }
        let read: std::collections::HashSet<Fingerprint> = missing.iter().map(|(_, name)| *name).collect();
        for piece in pieces {
            let made = match *piece {
                Piece::Zeros { .. } => *piece,
                Piece::Chunk { fingerprint, offset, length, .. } => {
                    if !read.contains(&fingerprint) {
                        self.moved.known_bytes += u64::from(length);
                    }
                    match places[&fingerprint] {
                        Piece::Zeros { .. } => Piece::Zeros { length: u64::from(length) },
                        Piece::Chunk { address, .. } => Piece::Chunk { fingerprint, address, offset, length },
                    }
                }
            };
            writer.push(&mut self.stream, made)?;
        }
        Ok(())
    }

    /// Chunks the bytes of the pieces again.
    fn bytes(&mut self, pieces: &[Piece], run: &mut Run, is_over: bool, writer: &mut RecipeWriter) -> Result<()> {
        for piece in pieces {
            match *piece {
                Piece::Zeros { length } if length >= LONG_ZEROS => {
                    self.cut(run, true, writer)?;
                    writer.push(&mut self.stream, *piece)?;
                }
                Piece::Zeros { length } => run.0.resize(run.0.len() + length as usize, 0),
                Piece::Chunk { length, .. } => {
                    let begin = run.0.len();
                    run.0.resize(begin + length as usize, 0);
                    self.source.read(&[*piece], 0, &mut run.0[begin..], true).map_err(source)?;
                    self.moved.read_bytes += u64::from(length);
                }
            }
            if run.0.len() >= RUN_BYTES.max(self.destination.descriptor().chunk_sizes.max) {
                self.cut(run, false, writer)?;
            }
        }
        if is_over { self.cut(run, true, writer) } else { Ok(()) }
    }

    fn cut(&mut self, run: &mut Run, is_last: bool, writer: &mut RecipeWriter) -> Result<()> {
        if run.0.is_empty() {
            return Ok(());
        }
        let mut pieces = Vec::new();
        let consumed = self.stream.write(&run.0, is_last, Hints::default(), &mut pieces)?;
        run.0.drain(..consumed);
        pieces.into_iter().try_for_each(|piece| writer.push(&mut self.stream, piece))?;
        Ok(())
    }
}

/// Bytes that are not chunked yet.
#[derive(Default)]
struct Run(Vec<u8>);

/// Recipes of the source with their recipes in the destination, in bounded memory. Backups share most of their
/// directories.
#[derive(Default)]
struct Memory {
    young: HashMap<Vec<u8>, Recipe>,
    old: HashMap<Vec<u8>, Recipe>,
}

impl Memory {
    fn get(&mut self, key: &[u8]) -> Option<Recipe> {
        if let Some(made) = self.young.get(key) {
            return Some(made.clone());
        }
        let (key, made) = self.old.remove_entry(key)?;
        self.insert(key, made.clone());
        Some(made)
    }

    fn insert(&mut self, key: Vec<u8>, made: Recipe) {
        if self.young.len() >= REMEMBERED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, made);
    }
}
