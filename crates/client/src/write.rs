//! The writers of a restore: batches of small files read from the store at once, large files in ranges.

use crate::Result;
use crate::monitor::{Counter, Watch};
use crate::restore::{Overwrite, Restored};
use crate::source;
use crate::target::{Directory, Place, Powers, give_name, os, set_attributes, temporary_name};
use crossbeam_channel::{Receiver, Sender};
use onefold_catalog::{Attributes, Content, Entry, PieceReader};
use onefold_engine::{Engine, Piece, Recipe};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A batch has about this many bytes; larger files are written in ranges of this size.
const BATCH_BYTES: u64 = 4 << 20;
/// Most files of a batch.
const BATCH_FILES: usize = 128;
/// Most pieces of a range, and about those of a batch: those of files full of tiny chunks and holes.
const RANGE_PIECES: usize = 16 << 10;

/// Work for a writer.
pub(crate) enum Batch {
    Small(Vec<Small>),
    Range(Range),
}

/// A file that is written by one writer in one go.
pub(crate) struct Small {
    directory: Arc<Directory>,
    entry: Entry,
    path: Vec<u8>,
    pieces: Vec<Piece>,
    length: u64,
}

/// A part of a large file; the last to be done completes the file.
pub(crate) struct Range {
    file: Arc<Large>,
    start: u64,
    pieces: Vec<Piece>,
}

/// A large file under its temporary name.
pub(crate) struct Large {
    file: OwnedFd,
    temporary: Vec<u8>,
    directory: Arc<Directory>,
    name: Vec<u8>,
    path: Vec<u8>,
    attributes: Attributes,
    replace: bool,
    failed: AtomicBool,
}

/// What walk and writers of a restore share.
pub(crate) struct Output<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) watch: &'a Watch<'a>,
    pub(crate) powers: &'a Powers,
    pub(crate) overwrite: Overwrite,
    pub(crate) restored: Mutex<Restored>,
}

impl<'a> Output<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, watch: &'a Watch<'a>, powers: &'a Powers, overwrite: Overwrite) -> Output<'a> {
        Output { engine, watch, powers, overwrite, restored: Mutex::default() }
    }

    /// The queue to the writers.
    pub(crate) fn queue(&'a self, batches: Sender<Batch>) -> Queue<'a> {
        Queue { output: self, batches, small: Vec::new(), small_bytes: 0, small_pieces: 0 }
    }

    /// Whether a name may be written: `Some(replace)`, or `None`, which has been reported.
    pub(crate) fn may_write(&self, directory: &Directory, name: &[u8], path: &[u8]) -> Option<bool> {
        if directory.is_new() {
            return Some(false);
        }
        match source::find(&directory.file, name, false) {
            Err(Errno::NOENT) => Some(false),
            Err(error) => {
                self.watch.error(path, format_args!("cannot look at what is in its place: {error}"));
                None
            }
            Ok(found) if found.kind == FileType::Directory => {
                self.watch.error(path, "a directory is in its place");
                None
            }
            Ok(_) if self.overwrite == Overwrite::Never => {
                self.watch.error(path, "exists already");
                None
            }
            Ok(_) => Some(true),
        }
    }

    /// Keeps an existing file that has the size and time of the entry; sets its attributes.
    fn keeps(&self, directory: &Directory, entry: &Entry, path: &[u8]) -> bool {
        let Content::File { size_bytes, .. } = entry.content else { return false };
        if self.overwrite != Overwrite::IfChanged {
            return false;
        }
        let Ok(file) = source::open(&directory.file, &entry.name, OFlags::NOFOLLOW | OFlags::NONBLOCK) else { return false };
        let is_equal = source::find_open(&file).is_ok_and(|found| {
            found.kind == FileType::RegularFile && found.size_bytes == size_bytes && found.attributes.mtime_ns == entry.attributes.mtime_ns
        });
        if is_equal {
            set_attributes(&Place::Open(file.as_fd()), &entry.attributes, false, path, self.powers, self.watch);
            self.watch.count(Counter::KeptFiles, 1);
            self.remember(&entry.attributes, path);
        }
        is_equal
    }

    fn remember(&self, attributes: &Attributes, path: &[u8]) {
        if attributes.links > 1 {
            self.restored.lock().insert(path.to_vec(), path.to_vec());
        }
    }

    /// A new file under a temporary name; `None` if that cannot be, which has been reported.
    fn create(&self, directory: &Directory, path: &[u8]) -> Result<Option<(OwnedFd, Vec<u8>)>> {
        let temporary = temporary_name()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&directory.file, os(&temporary), flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Ok(Some((file, temporary))),
            Err(error) => {
                self.watch.error(path, format_args!("cannot create it: {error}"));
                Ok(None)
            }
        }
    }

    /// Attributes and name of a file whose bytes are there.
    fn complete(&self, file: &OwnedFd, temporary: &[u8], directory: &Directory, entry: (&[u8], &Attributes), replace: bool, path: &[u8]) {
        let (name, attributes) = entry;
        set_attributes(&Place::Open(file.as_fd()), attributes, directory.inherits_acl(), path, self.powers, self.watch);
        match give_name(&directory.file, temporary, name, replace) {
            Ok(()) => {
                self.powers.set_flags(file, attributes, false, path, self.watch);
                self.watch.count(Counter::Files, 1);
                self.remember(attributes, path);
            }
            Err(error) => self.watch.error(path, format_args!("cannot give it its name: {error}")),
        }
    }
}

/// Files on their way to the writers.
pub(crate) struct Queue<'a> {
    output: &'a Output<'a>,
    batches: Sender<Batch>,
    small: Vec<Small>,
    small_bytes: u64,
    small_pieces: usize,
}

impl Queue<'_> {
    /// Queues a file.
    pub(crate) fn file(&mut self, directory: &Arc<Directory>, entry: Entry, path: Vec<u8>) -> Result<()> {
        let output = self.output;
        let Content::File { recipe, size_bytes } = &entry.content else { return Ok(()) };
        if recipe.length != *size_bytes {
            // The length decides what is read into memory as a whole, and a recipe of recipe chunks only claims its own.
            output.watch.error(&path, does_not_spell(*size_bytes));
            return Ok(());
        }
        let Some(replace) = output.may_write(directory, &entry.name, &path) else { return Ok(()) };
        if replace && output.keeps(directory, &entry, &path) {
            return Ok(());
        }
        let pieces = if recipe.length > BATCH_BYTES { None } else { pieces_of(output, recipe, *size_bytes) };
        let (pieces, length) = match pieces {
            Some(Ok(pieces)) => pieces,
            Some(Err(problem)) => {
                output.watch.error(&path, problem);
                return Ok(());
            }
            None => {
                self.hand_over();
                return self.large(directory.clone(), entry, path, replace);
            }
        };
        self.small_bytes += length;
        self.small_pieces += pieces.len();
        self.small.push(Small { directory: directory.clone(), entry, path, pieces, length });
        if self.small_bytes >= BATCH_BYTES || self.small_pieces >= RANGE_PIECES || self.small.len() >= BATCH_FILES {
            self.hand_over();
        }
        Ok(())
    }

    /// Queues what is left.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.hand_over();
        Ok(())
    }

    fn hand_over(&mut self) {
        self.small_bytes = 0;
        self.small_pieces = 0;
        let small = std::mem::take(&mut self.small);
        if !small.is_empty() {
            self.send(Batch::Small(small));
        }
    }

    fn send(&self, batch: Batch) {
        // When the writers have gone, one of them has said why and has asked all to stop.
        let _ = self.batches.send(batch);
    }

    fn large(&mut self, directory: Arc<Directory>, entry: Entry, path: Vec<u8>, replace: bool) -> Result<()> {
        let Content::File { recipe, size_bytes } = entry.content else { return Ok(()) };
        let Some((file, temporary)) = self.output.create(&directory, &path)? else { return Ok(()) };
        let (name, attributes) = (entry.name, entry.attributes);
        let large = Arc::new(Large { file, temporary, directory, name, path, attributes, replace, failed: AtomicBool::new(false) });
        let (mut pieces, mut start, mut length) = (Vec::new(), 0u64, 0u64);
        for piece in PieceReader::new(self.output.engine, &recipe) {
            match piece {
                // A recipe that spells more than the file has is found out below.
                Ok(piece) if piece.length() > size_bytes.saturating_sub(start + length) => {
                    length = u64::MAX - start;
                    break;
                }
                Ok(piece) => {
                    length += piece.length();
                    pieces.push(piece);
                }
                Err(error) => {
                    large.fail(self.output, error);
                    break;
                }
            }
            if length >= BATCH_BYTES || pieces.len() >= RANGE_PIECES {
                self.send(Batch::Range(Range { file: large.clone(), start, pieces: std::mem::take(&mut pieces) }));
                start += length;
                length = 0;
            }
            if large.failed.load(Ordering::Relaxed) || self.output.watch.should_stop() {
                break;
            }
        }
        let spelled = start + length;
        if self.output.watch.should_stop() {
            large.failed.store(true, Ordering::Relaxed);
        } else if spelled != size_bytes {
            large.fail(self.output, does_not_spell(size_bytes));
        } else if let Err(error) = rustix::fs::ftruncate(&large.file, size_bytes) {
            large.fail(self.output, format_args!("cannot make it {size_bytes} bytes long: {error}"));
        }
        self.send(Batch::Range(Range { file: large, start, pieces }));
        Ok(())
    }
}

impl Large {
    fn fail(&self, output: &Output<'_>, reason: impl std::fmt::Display) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            output.watch.error(&self.path, reason);
        }
    }

    /// One range less; after the last the file gets attributes and name, or goes away.
    fn release(self: Arc<Large>, output: &Output<'_>) {
        let Some(large) = Arc::into_inner(self) else { return };
        if large.failed.load(Ordering::Relaxed) {
            let _ = rustix::fs::unlinkat(&large.directory.file, os(&large.temporary), AtFlags::empty());
        } else {
            let entry = (&large.name[..], &large.attributes);
            output.complete(&large.file, &large.temporary, &large.directory, entry, large.replace, &large.path);
        }
        large.directory.release(output.powers, output.watch);
    }
}

/// The pieces of a file that is read into memory as a whole, and their length; or what is wrong. `None`: they are too many for that.
fn pieces_of(output: &Output<'_>, recipe: &Recipe, size_bytes: u64) -> Option<std::result::Result<(Vec<Piece>, u64), String>> {
    let mut pieces = Vec::new();
    let mut length = 0u64;
    for piece in PieceReader::new(output.engine, recipe) {
        match piece {
            Ok(piece) => {
                length = length.saturating_add(piece.length());
                pieces.push(piece);
            }
            Err(error) => return Some(Err(error.to_string())),
        }
        if length > size_bytes {
            break;
        }
        if pieces.len() > RANGE_PIECES {
            return None;
        }
    }
    Some(if length == size_bytes { Ok((pieces, length)) } else { Err(does_not_spell(size_bytes)) })
}

/// One writer.
pub(crate) struct Writer<'a> {
    output: &'a Output<'a>,
    buffer: Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(output: &'a Output<'a>) -> Writer<'a> {
        Writer { output, buffer: Vec::new() }
    }

    /// Works until there are no more batches.
    pub(crate) fn run(&mut self, batches: &Receiver<Batch>) -> Result<()> {
        for batch in batches {
            let done = match batch {
                Batch::Small(files) => self.small(files),
                Batch::Range(range) => {
                    self.range(range);
                    Ok(())
                }
            };
            if let Err(error) = done {
                self.output.watch.stop();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes one file of any size.
    pub(crate) fn one(&mut self, directory: &Arc<Directory>, entry: Entry, path: Vec<u8>) -> Result<()> {
        let (sender, batches) = crossbeam_channel::unbounded();
        let mut queue = self.output.queue(sender);
        queue.file(directory, entry, path)?;
        queue.finish()?;
        self.run(&batches)
    }

    fn small(&mut self, files: Vec<Small>) -> Result<()> {
        let pieces: Vec<Piece> = files.iter().flat_map(|file| &file.pieces).copied().collect();
        let total: u64 = files.iter().map(|file| file.length).sum();
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        self.buffer.resize(total.max(self.buffer.len()), 0);
        let all_read = self.output.engine.read(&pieces, 0, &mut self.buffer[..total], true).is_ok();
        let mut at = 0;
        for file in files {
            let range = at..at + file.length as usize;
            at = range.end;
            if self.output.watch.should_stop() {
                file.directory.release(self.output.powers, self.output.watch);
                continue;
            }
            // One damaged chunk must not take the other files with it.
            let read = if all_read { Ok(()) } else { self.output.engine.read(&file.pieces, 0, &mut self.buffer[range.clone()], true) };
            match read {
                Ok(()) => self.write_small(&file, &self.buffer[range])?,
                Err(error) => self.output.watch.error(&file.path, error),
            }
            file.directory.release(self.output.powers, self.output.watch);
        }
        Ok(())
    }

    fn write_small(&self, file: &Small, bytes: &[u8]) -> Result<()> {
        let output = self.output;
        let Some((opened, temporary)) = output.create(&file.directory, &file.path)? else { return Ok(()) };
        let mut at = 0u64;
        let mut written = Ok(());
        for (is_hole, length) in runs(&file.pieces) {
            if !is_hole && written.is_ok() {
                written = write_at(&opened, at, &bytes[at as usize..(at + length) as usize]);
                output.watch.count(Counter::DataBytes, length);
            }
            at += length;
        }
        if file.pieces.last().is_some_and(|piece| matches!(piece, Piece::Zeros { .. })) {
            written = written.and_then(|()| rustix::fs::ftruncate(&opened, at));
        }
        match written {
            Ok(()) => {
                let entry = (&file.entry.name[..], &file.entry.attributes);
                let replace = output.overwrite != Overwrite::Never;
                output.complete(&opened, &temporary, &file.directory, entry, replace, &file.path);
            }
            Err(error) => {
                output.watch.error(&file.path, format_args!("cannot write it: {error}"));
                let _ = rustix::fs::unlinkat(&file.directory.file, os(&temporary), AtFlags::empty());
            }
        }
        Ok(())
    }

    fn range(&mut self, range: Range) {
        let Range { file, start, pieces } = range;
        if !file.failed.load(Ordering::Relaxed)
            && let Err(reason) = self.write_range(&file, start, &pieces)
        {
            file.fail(self.output, reason);
        }
        if self.output.watch.should_stop() {
            file.failed.store(true, Ordering::Relaxed);
        }
        file.release(self.output);
    }

    fn write_range(&mut self, file: &Large, start: u64, pieces: &[Piece]) -> std::result::Result<(), String> {
        let mut at = start;
        for run in pieces.chunk_by(|a, b| is_zeros(a) == is_zeros(b)) {
            let length = run.iter().map(Piece::length).sum::<u64>();
            if !is_zeros(&run[0]) {
                let length_bytes = usize::try_from(length).map_err(|error| error.to_string())?;
                self.buffer.resize(length_bytes.max(self.buffer.len()), 0);
                let bytes = &mut self.buffer[..length_bytes];
                self.output.engine.read(run, 0, bytes, true).map_err(|error| error.to_string())?;
                write_at(&file.file, at, bytes).map_err(|error| format!("cannot write it: {error}"))?;
                self.output.watch.count(Counter::DataBytes, length);
            }
            at += length;
        }
        Ok(())
    }
}

fn does_not_spell(size_bytes: u64) -> String {
    format!("its recipe does not spell {size_bytes} bytes")
}

fn is_zeros(piece: &Piece) -> bool {
    matches!(piece, Piece::Zeros { .. })
}

/// Neighbouring pieces of a kind together: whether they are a hole, and their length.
fn runs(pieces: &[Piece]) -> impl Iterator<Item = (bool, u64)> + '_ {
    pieces.chunk_by(|a, b| is_zeros(a) == is_zeros(b)).map(|run| (is_zeros(&run[0]), run.iter().map(Piece::length).sum()))
}

fn write_at(file: &OwnedFd, mut at: u64, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
