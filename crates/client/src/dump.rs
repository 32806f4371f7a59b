//! Streams files of a backup, verified.

use crate::damage::{Damaged, Lost, Part, Parts, ranges_text};
use crate::monitor::{Monitor, Watch};
use crate::repository::Repository;
use crate::{ClientError, Result};
use onefold_catalog::{Backup, Chunks, Content};
use onefold_engine::{Piece, Recipe};
use std::io::Write;
use std::sync::Arc;

/// Bytes read at a time.
const STEP_BYTES: u64 = 4 << 20;
/// Zeros are written from a buffer of this size.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Writes the bytes of one file of a backup, verified. Returns how many. If the file is damaged, it writes the bytes
/// before the damage and then returns an error. With [`Damaged::Zero`] zeros replace the lost bytes, and the monitor is
/// told.
pub fn dump(
    repository: &dyn Repository,
    backup: &Backup,
    path: &[u8],
    damaged: Damaged,
    monitor: &dyn Monitor,
    out: &mut dyn Write,
) -> Result<u64> {
    let reading = repository.read(backup)?;
    let not_a_file = |kind| ClientError::NotAFile { path: String::from_utf8_lossy(path).into_owned(), kind };
    let mut entry = reading.lookup(path)?.ok_or_else(|| not_a_file("directory"))?;
    if let Content::HardLink { path: first } = &entry.content {
        entry = reading.lookup(first)?.ok_or_else(|| not_a_file("directory"))?;
    }
    let Content::File { recipe, size_bytes } = &entry.content else { return Err(not_a_file(entry.content.kind())) };
    let watch = Watch::new(monitor);
    write_file(&reading.chunks, recipe, *size_bytes, (path, damaged), &watch, &mut |run| match run {
        Run::Bytes(bytes) => out.write_all(bytes).map_err(|error| ClientError::io("write", path, error)),
        Run::Zeros(length) => write_zeros(out, length).map_err(|error| ClientError::io("write", path, error)),
    })?;
    Ok(*size_bytes)
}

/// Consecutive bytes of a file.
pub(crate) enum Run<'a> {
    Bytes(&'a [u8]),
    Zeros(u64),
}

pub(crate) fn write_zeros(out: &mut dyn Write, mut length: u64) -> std::io::Result<()> {
    while length > 0 {
        let step = length.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..step as usize])?;
        length -= step;
    }
    Ok(())
}

/// Passes the bytes of a file to `write`, in order and without a buffer for zeros.
pub(crate) fn write_file(
    chunks: &Arc<dyn Chunks>,
    recipe: &Recipe,
    size_bytes: u64,
    (path, damaged): (&[u8], Damaged),
    watch: &Watch<'_>,
    write: &mut dyn FnMut(Run<'_>) -> Result<()>,
) -> Result<()> {
    let mut file =
        Stream { chunks, size_bytes, path, damaged, write, pieces: Vec::new(), at: 0, held: 0, lost: Lost::default(), buffer: Vec::new() };
    for part in Parts::new(chunks, recipe, size_bytes) {
        match part.map_err(|error| file.damage(&error.to_string()))? {
            Part::Piece(Piece::Zeros { length }) => file.zeros(length)?,
            Part::Piece(piece) => file.piece(piece)?,
            Part::Lost { length, why } => file.lose(length, &why)?,
        }
    }
    file.flush()?;
    if !file.lost.is_empty() {
        let (ranges, why) = file.lost.into_parts();
        watch.lost(path, format_args!("{} cannot be read and are replaced by zeros: {why}", ranges_text(&ranges, size_bytes)), ranges);
    }
    Ok(())
}

struct Stream<'a> {
    chunks: &'a Arc<dyn Chunks>,
    size_bytes: u64,
    path: &'a [u8],
    damaged: Damaged,
    write: &'a mut dyn FnMut(Run<'_>) -> Result<()>,
    /// Chunks that wait for a common read.
    pieces: Vec<Piece>,
    held: u64,
    /// Bytes written.
    at: u64,
    lost: Lost,
    buffer: Vec<u8>,
}

impl Stream<'_> {
    fn damage(&self, why: &str) -> ClientError {
        ClientError::Lost { path: format!("/{}", String::from_utf8_lossy(self.path)), reason: why.to_owned() }
    }

    fn piece(&mut self, piece: Piece) -> Result<()> {
        if self.held + piece.length() > STEP_BYTES {
            self.flush()?;
        }
        self.held += piece.length();
        self.pieces.push(piece);
        Ok(())
    }

    fn zeros(&mut self, length: u64) -> Result<()> {
        self.flush()?;
        self.at += length;
        (self.write)(Run::Zeros(length))
    }

    /// Reports lost bytes, or ends.
    fn lose(&mut self, length: u64, why: &str) -> Result<()> {
        self.flush()?;
        if let Some(error) = self.chunks.broken() {
            return Err(error.into());
        }
        let range = self.at..self.at + length;
        if self.damaged != Damaged::Zero {
            let what = ranges_text(std::slice::from_ref(&range), self.size_bytes);
            return Err(self.damage(&format!("{what} cannot be read, so the output ends after {} bytes: {why}", self.at)));
        }
        self.lost.add(range, || why.to_owned());
        self.at += length;
        (self.write)(Run::Zeros(length))
    }

    fn flush(&mut self) -> Result<()> {
        let (pieces, length) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.held) as usize);
        if length == 0 {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(length.max(buffer.len()), 0);
        if self.chunks.data(&pieces, &mut buffer[..length]).is_ok() {
            self.at += length as u64;
            (self.write)(Run::Bytes(&buffer[..length]))?;
        } else {
            // Piece by piece: sound pieces before and after the damage are written.
            for piece in &pieces {
                let bytes = &mut buffer[..piece.length() as usize];
                match self.chunks.data(std::slice::from_ref(piece), bytes) {
                    Ok(()) => {
                        self.at += piece.length();
                        (self.write)(Run::Bytes(bytes))?;
                    }
                    Err(error) => self.lose(piece.length(), &error.to_string())?,
                }
            }
        }
        self.buffer = buffer;
        Ok(())
    }
}
