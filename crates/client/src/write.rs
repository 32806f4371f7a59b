//! The writers of a restore: they read batches of small files from the store at once, and large files in ranges.

use crate::batches::{Adding, Batches, Pieces};
use crate::damage::{Damaged, DoesNotSpell, Lost, Part, Parts, damaged_name, ranges_text, read_around};
use crate::monitor::{Counter, Watch};
use crate::repository::Reading;
use crate::restore::options::{Overwrite, RestoreOptions};
use crate::target::{Directory, Keepout, Place, Powers, give_name, os, set_attributes, temporary_name};
use crate::{ClientError, Result};
use onefold_catalog::{Attributes, Content, Entry};
use onefold_engine::{Piece, Recipe};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Approximate bytes of a batch. Larger files are written in ranges of this size.
const BATCH_BYTES: u64 = 4 << 20;
/// Most files of a batch.
pub(crate) const BATCH_FILES: usize = 128;
/// Most pieces of a range, and approximately of a batch: a bound for files full of tiny chunks and holes.
const RANGE_PIECES: usize = 16 << 10;

/// Work for a writer.
pub(crate) enum Batch {
    Small(Vec<Small>),
    Range(Range),
}

impl Pieces for Batch {
    /// Returns the pieces of each of its files.
    fn pieces(&self) -> impl Iterator<Item = &[Piece]> {
        let (files, range) = match self {
            Batch::Small(files) => (&files[..], None),
            Batch::Range(range) => (&[][..], Some(&range.pieces[..])),
        };
        files.iter().map(|file| &file.pieces[..]).chain(range)
    }
}

/// A file that one writer writes in one go.
pub(crate) struct Small {
    directory: Arc<Directory>,
    entry: Entry,
    path: Vec<u8>,
    /// Zeros are in place of lost bytes.
    pieces: Vec<Piece>,
    lost: Lost,
    length: u64,
    replace: bool,
}

/// A part of a large file. The last part to be done completes the file.
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
    size_bytes: u64,
    attributes: Attributes,
    replace: bool,
    lost: Mutex<Lost>,
    failed: AtomicBool,
}

/// Where the first name of a file with several names was restored.
#[derive(Clone, Debug)]
pub(crate) struct Restored {
    /// Path in the backup, except that a damaged file has another last component.
    pub(crate) path: Vec<u8>,
    pub(crate) is_damaged: bool,
}

/// State shared by the walk and the writers of a restore.
pub(crate) struct Output<'a> {
    pub(crate) reading: &'a Reading,
    pub(crate) watch: &'a Watch<'a>,
    pub(crate) powers: &'a Powers,
    pub(crate) overwrite: Overwrite,
    pub(crate) dry_run: bool,
    pub(crate) store: Keepout,
    damaged: Damaged,
    /// First names by their paths in the backup.
    pub(crate) restored: Mutex<HashMap<Vec<u8>, Restored>>,
}

impl<'a> Output<'a> {
    pub(crate) fn new(
        reading: &'a Reading,
        watch: &'a Watch<'a>,
        powers: &'a Powers,
        options: &RestoreOptions,
        store: Keepout,
    ) -> Output<'a> {
        let RestoreOptions { overwrite, dry_run, damaged, .. } = *options;
        Output { reading, watch, powers, overwrite, dry_run, store, damaged, restored: Mutex::default() }
    }

    /// Returns the queue to the writers.
    pub(crate) fn queue(&'a self, batches: Adding<'a, Batch>) -> Queue<'a> {
        Queue { output: self, batches, small: Vec::new(), small_bytes: 0, small_pieces: 0 }
    }

    /// Notes where a file of the backup was restored to, for its further names.
    pub(crate) fn remember(&self, attributes: &Attributes, path: &[u8], to: &[u8], is_damaged: bool) {
        if attributes.links > 1 {
            self.restored.lock().insert(path.to_vec(), Restored { path: to.to_vec(), is_damaged });
        }
    }

    /// Creates a new file under a temporary name. `None`: that failed, which has been reported.
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

    /// Sets attributes and name of a file whose bytes are written, or treats its damage if some are lost.
    fn complete(&self, written: Written<'_>, lost: Lost) -> Result<()> {
        let Written { file, temporary, directory, name, path, size_bytes, attributes, replace } = written;
        let drop_it = || {
            let _ = rustix::fs::unlinkat(&directory.file, os(temporary), AtFlags::empty());
        };
        if lost.is_empty() {
            set_attributes(&Place::Open(file.as_fd()), attributes, directory.inherits_acl(), path, self.powers, self.watch);
            match give_name(&directory.file, temporary, name, replace) {
                Ok(()) => {
                    self.powers.set_flags(file, attributes, false, path, self.watch);
                    self.watch.count(Counter::Files, 1);
                    self.remember(attributes, path, path, false);
                }
                Err(error) => self.watch.error(path, format_args!("cannot give it its name: {error}")),
            }
            return Ok(());
        }
        if let Some(error) = self.reading.chunks.broken() {
            drop_it();
            return Err(error.into());
        }
        let (ranges, why) = lost.into_parts();
        let what = format!("{} cannot be read", ranges_text(&ranges, size_bytes));
        match self.damaged {
            Damaged::Fail => {
                drop_it();
                Err(ClientError::Lost { path: String::from_utf8_lossy(path).into_owned(), reason: format!("{what}: {why}") })
            }
            Damaged::Skip => {
                drop_it();
                self.watch.lost(path, format_args!("{what}; the file is left out: {why}"), ranges);
                Ok(())
            }
            Damaged::Zero => {
                let name = damaged_name(name);
                let shown = String::from_utf8_lossy(&name).into_owned();
                set_attributes(&Place::Open(file.as_fd()), attributes, directory.inherits_acl(), path, self.powers, self.watch);
                // A damaged file never replaces a user's own file, only one with the damaged suffix.
                match give_name(&directory.file, temporary, &name, self.overwrite != Overwrite::Never) {
                    Ok(()) => {
                        self.watch.count(Counter::DamagedFiles, 1);
                        self.watch.lost(path, format_args!("{what}: restored as {shown} with zeros in their place: {why}"), ranges);
                        let above = path.len() - path.iter().rev().take_while(|byte| **byte != b'/').count();
                        self.remember(attributes, path, &[&path[..above], &name].concat(), true);
                    }
                    Err(Errno::EXIST) => self.watch.lost(path, format_args!("{what}: {shown} already exists: {why}"), ranges),
                    Err(error) => self.watch.lost(path, format_args!("{what}: cannot make {shown}: {error}"), ranges),
                }
                Ok(())
            }
        }
    }
}

/// A file whose bytes are written, under its temporary name.
struct Written<'a> {
    file: &'a OwnedFd,
    temporary: &'a [u8],
    directory: &'a Directory,
    name: &'a [u8],
    path: &'a [u8],
    size_bytes: u64,
    attributes: &'a Attributes,
    replace: bool,
}

/// Files on their way to the writers.
pub(crate) struct Queue<'a> {
    output: &'a Output<'a>,
    batches: Adding<'a, Batch>,
    small: Vec<Small>,
    small_bytes: u64,
    small_pieces: usize,
}

impl Queue<'_> {
    /// Queues a file.
    pub(crate) fn file(&mut self, directory: &Arc<Directory>, entry: Entry, path: Vec<u8>) -> Result<()> {
        let output = self.output;
        let Content::File { recipe, size_bytes } = &entry.content else { return Ok(()) };
        let length = *size_bytes;
        if recipe.length != length {
            // The length decides what is read into memory completely, and a recipe of recipe chunks only claims its own
            // length.
            output.watch.error(&path, DoesNotSpell(length));
            return Ok(());
        }
        let Some(replace) = output.may_write(directory, &entry, &path) else { return Ok(()) };
        let pieces = if length > BATCH_BYTES { None } else { pieces_of(output, recipe, length) };
        let (pieces, lost) = match pieces {
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
        self.small.push(Small { directory: directory.clone(), entry, path, pieces, lost, length, replace });
        if self.small_bytes >= BATCH_BYTES || self.small_pieces >= RANGE_PIECES || self.small.len() >= BATCH_FILES {
            self.hand_over();
        }
        Ok(())
    }

    /// Queues the rest.
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
        batch.pieces().for_each(|pieces| self.output.reading.chunks.will_read(pieces));
        self.batches.add(batch);
    }

    fn large(&mut self, directory: Arc<Directory>, entry: Entry, path: Vec<u8>, replace: bool) -> Result<()> {
        let Content::File { recipe, size_bytes } = entry.content else { return Ok(()) };
        let Some((file, temporary)) = self.output.create(&directory, &path)? else { return Ok(()) };
        let (name, attributes) = (entry.name, entry.attributes);
        let (lost, failed) = (Mutex::default(), AtomicBool::new(false));
        let large = Arc::new(Large { file, temporary, directory, name, path, size_bytes, attributes, replace, lost, failed });
        let (mut pieces, mut start, mut length) = (Vec::new(), 0u64, 0u64);
        for part in Parts::new(&self.output.reading.chunks, &recipe, size_bytes) {
            match part {
                Ok(part) => {
                    if let Part::Lost { length: lost, why } = &part {
                        large.lost.lock().add(start + length..start + length + lost, || why.clone());
                    }
                    length += part.length();
                    pieces.push(part.into_piece());
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
        if self.output.watch.should_stop() {
            large.failed.store(true, Ordering::Relaxed);
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

    /// Drops one range. After the last range, the file gets its attributes and name, or is removed.
    fn release(self: Arc<Large>, output: &Output<'_>) -> Result<()> {
        let Some(large) = Arc::into_inner(self) else { return Ok(()) };
        // It has its full size already. If it had its name, a power cut could leave a file that looks equal to the next
        // restore and lacks bytes.
        if !large.failed.load(Ordering::Relaxed)
            && let Err(error) = rustix::fs::fdatasync(&large.file)
        {
            large.fail(output, format_args!("cannot sync it: {error}"));
        }
        let Large { file, temporary, directory, name, path, size_bytes, attributes, replace, lost, failed } = large;
        let completed = if failed.into_inner() {
            let _ = rustix::fs::unlinkat(&directory.file, os(&temporary), AtFlags::empty());
            Ok(())
        } else {
            let written = Written {
                file: &file,
                temporary: &temporary,
                directory: &directory,
                name: &name,
                path: &path,
                size_bytes,
                attributes: &attributes,
                replace,
            };
            output.complete(written, lost.into_inner())
        };
        directory.release(output.powers, output.watch);
        completed
    }
}

/// Returns the pieces of a file that is read into memory completely, and what is lost of it; or what is wrong. `None`:
/// there are too many pieces.
#[allow(clippy::type_complexity, reason = "said in the line above")]
fn pieces_of(output: &Output<'_>, recipe: &Recipe, size_bytes: u64) -> Option<std::result::Result<(Vec<Piece>, Lost), DoesNotSpell>> {
    let (mut pieces, mut lost) = (Vec::new(), Lost::default());
    let mut at = 0u64;
    for part in Parts::new(&output.reading.chunks, recipe, size_bytes) {
        let part = match part {
            Ok(part) => part,
            Err(error) => return Some(Err(error)),
        };
        if let Part::Lost { length, why } = &part {
            lost.add(at..at + length, || why.clone());
        }
        at += part.length();
        pieces.push(part.into_piece());
        if pieces.len() > RANGE_PIECES {
            return None;
        }
    }
    Some(Ok((pieces, lost)))
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

    /// Works until there are no more batches. After an error the rest is only cleaned up: no temporary file stays
    /// behind.
    pub(crate) fn run(&mut self, batches: &Batches<'_, Batch>) -> Result<()> {
        let _ends_them = Adding::new(batches);
        let mut ended = Ok(());
        while let Some(batch) = batches.take() {
            let done = match batch {
                Batch::Small(files) => self.small(files),
                Batch::Range(range) => self.range(range),
            };
            if done.is_err() {
                self.output.watch.stop();
            }
            ended = ended.and(done);
        }
        ended
    }

    /// Writes one file of any size.
    pub(crate) fn one(&mut self, directory: &Arc<Directory>, entry: Entry, path: Vec<u8>) -> Result<()> {
        let should_stop = || self.output.watch.should_stop();
        let batches = Batches::new(&*self.output.reading.chunks, &should_stop, 1);
        let mut queue = self.output.queue(Adding::new(&batches));
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| self.run(&batches));
            let queued = queue.file(directory, entry, path).and_then(|()| queue.finish());
            queued.and(writing.join().expect("the threads of a restore do not panic"))
        })
    }

    fn small(&mut self, files: Vec<Small>) -> Result<()> {
        let pieces: Vec<Piece> = files.iter().flat_map(|file| &file.pieces).copied().collect();
        let total: u64 = files.iter().map(|file| file.length).sum();
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        self.buffer.resize(total.max(self.buffer.len()), 0);
        let all_read = !self.output.watch.should_stop() && self.output.reading.chunks.data(&pieces, &mut self.buffer[..total]).is_ok();
        let mut at = 0;
        let mut ended = Ok(());
        for mut file in files {
            let range = at..at + file.length as usize;
            at = range.end;
            if !self.output.watch.should_stop() {
                // One damaged chunk must not take the other files with it, nor the rest of its own.
                if !all_read {
                    file.lost.append(read_around(&*self.output.reading.chunks, &file.pieces, 0, &mut self.buffer[range.clone()]));
                }
                let lost = std::mem::take(&mut file.lost);
                let written = self.write_small(&file, &self.buffer[range], lost);
                if written.is_err() {
                    self.output.watch.stop();
                }
                ended = ended.and(written);
                self.output.watch.count(Counter::LogicalBytes, file.length);
            }
            file.directory.release(self.output.powers, self.output.watch);
        }
        ended
    }

    fn write_small(&self, file: &Small, bytes: &[u8], lost: Lost) -> Result<()> {
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
        if file.pieces.iter().any(is_zeros) {
            written = written.and_then(|()| rustix::fs::ftruncate(&opened, at));
            if !file.pieces.iter().all(is_zeros) {
                // Its size says nothing about the bytes before a hole, which the system may write last: see
                // `Large::release`.
                written = written.and_then(|()| rustix::fs::fdatasync(&opened));
            }
        }
        if let Err(error) = written {
            output.watch.error(&file.path, format_args!("cannot write it: {error}"));
            let _ = rustix::fs::unlinkat(&file.directory.file, os(&temporary), AtFlags::empty());
            return Ok(());
        }
        let written = Written {
            file: &opened,
            temporary: &temporary,
            directory: &file.directory,
            name: &file.entry.name,
            path: &file.path,
            size_bytes: file.length,
            attributes: &file.entry.attributes,
            replace: file.replace,
        };
        output.complete(written, lost)
    }

    fn range(&mut self, range: Range) -> Result<()> {
        let Range { file, start, pieces } = range;
        if !self.output.watch.should_stop()
            && !file.failed.load(Ordering::Relaxed)
            && let Err(reason) = self.write_range(&file, start, &pieces)
        {
            file.fail(self.output, reason);
        }
        if self.output.watch.should_stop() {
            file.failed.store(true, Ordering::Relaxed);
        }
        self.output.watch.count(Counter::LogicalBytes, pieces.iter().map(Piece::length).sum());
        file.release(self.output)
    }

    fn write_range(&mut self, file: &Large, start: u64, pieces: &[Piece]) -> std::result::Result<(), String> {
        let mut at = start;
        for run in pieces.chunk_by(|a, b| is_zeros(a) == is_zeros(b)) {
            let length = run.iter().map(Piece::length).sum::<u64>();
            if !is_zeros(&run[0]) {
                let length_bytes = usize::try_from(length).map_err(|error| error.to_string())?;
                self.buffer.resize(length_bytes.max(self.buffer.len()), 0);
                let bytes = &mut self.buffer[..length_bytes];
                let lost = read_around(&*self.output.reading.chunks, run, at, bytes);
                if !lost.is_empty() {
                    file.lost.lock().append(lost);
                }
                write_at(&file.file, at, bytes).map_err(|error| format!("cannot write it: {error}"))?;
                self.output.watch.count(Counter::DataBytes, length);
            }
            at += length;
        }
        Ok(())
    }
}

fn is_zeros(piece: &Piece) -> bool {
    matches!(piece, Piece::Zeros { .. })
}

/// Joins neighbouring pieces of the same kind. Returns whether each run is a hole, and its length.
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
