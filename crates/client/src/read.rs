//! The readers of a backup: open, read, store, and report.
//!
//! A file's entry has the attributes as of its opening, so a change while it is read shows in its ctime next time. A
//! name that is gone is only a warning. A name that is something else now is an error, as the backup lacks what is
//! there.

use crate::job::Job;
use crate::monitor::{Counter, Watch};
use crate::repository::{Contents, NewFile};
use crate::source::{self, Found};
use crate::state::set_xattrs;
use crate::walk::absolute;
use crate::{ClientError, Result};
use crossbeam_channel::{Receiver, Sender};
use onefold_catalog::{Attributes, Content, Entry};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::time::ClockId;
use std::ops::Range;
use std::time::Duration;

/// Files up to this size are stored many at a time.
const SMALL_BYTES: u64 = 1 << 20;
/// Small files in memory before they are stored.
const GATHER_BYTES: usize = 4 << 20;
/// The same where the stream is told what the files had: the store must still have it in memory when it is asked.
const GATHER_TOLD_BYTES: usize = 512 << 10;
/// Large files go through a buffer of this size.
const BUFFER_BYTES: usize = 4 << 20;
/// The limit to which a buffer grows if it holds no whole chunk.
const MAX_BUFFER_BYTES: usize = 64 << 20;
/// Files of size 0 that have bytes all the same (`/proc`) are read up to this limit.
const UNSIZED_BYTES: u64 = 16 << 20;
/// The smallest file in which holes are searched.
const SPARSE_BYTES: u64 = 64 << 10;
/// Most steps, of a millisecond each, to wait for the clock to leave the moment of a file's last change.
const SETTLE_STEPS: u32 = 20;

/// A reader's answer to a job: the entry. `None`: there is nothing to store, which has been reported.
pub(crate) type Answer = (u64, Option<Entry>);

/// Small files that have been read and wait to be stored together.
#[derive(Debug)]
struct Gathered<'j> {
    bytes: Vec<u8>,
    files: Vec<(&'j Job, Entry, Range<usize>)>,
}

/// One reader, with its own stream of contents.
pub(crate) struct Reader<'a> {
    watch: &'a Watch<'a>,
    contents: Box<dyn Contents + Send + 'a>,
    /// The store is told what files had: it must still have that in memory when it is asked.
    recalls: bool,
    buffer: Vec<u8>,
    /// The memory for small files.
    small: Vec<u8>,
}

/// A file being read, and its attributes as of its opening.
struct Open<'a> {
    job: &'a Job,
    file: OwnedFd,
    found: Found,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(contents: Box<dyn Contents + Send + 'a>, recalls: bool, watch: &'a Watch<'a>) -> Reader<'a> {
        Reader { watch, contents, recalls, buffer: Vec::new(), small: Vec::new() }
    }

    /// Works until there are no more jobs.
    pub(crate) fn run(mut self, jobs: &Receiver<Vec<Job>>, answers: &Sender<Answer>) -> Result<()> {
        for batch in jobs {
            let before = self.contents.added_bytes();
            let done = self.batch(&batch, answers);
            self.watch.count(Counter::AddedBytes, self.contents.added_bytes() - before);
            if let Err(error) = done {
                self.watch.stop();
                return Err(error);
            }
        }
        if self.watch.should_stop() {
            return Ok(());
        }
        self.close()
    }

    /// Ends the writer of contents: everything is on its way to the store.
    pub(crate) fn close(self) -> Result<()> {
        let closed = self.contents.close();
        if closed.is_err() {
            self.watch.stop();
        }
        closed
    }

    fn batch(&mut self, batch: &[Job], answers: &Sender<Answer>) -> Result<()> {
        let most_bytes = if self.recalls { GATHER_TOLD_BYTES } else { GATHER_BYTES };
        let mut gathered = Gathered { bytes: std::mem::take(&mut self.small), files: Vec::new() };
        for job in batch {
            if self.watch.should_stop() {
                return Ok(());
            }
            let path = absolute(&job.path);
            self.watch.current(&path);
            if job.is_special {
                self.store_gathered(&mut gathered, answers)?;
                let entry = self.special(job, &path)?;
                answer(answers, job.ticket, entry);
                continue;
            }
            let Some(open) = self.open(job, &path) else {
                self.watch.count(Counter::DoneBytes, job.size_bytes);
                answer(answers, job.ticket, None);
                continue;
            };
            let is_sparse = open.found.size_bytes >= SPARSE_BYTES && open.found.allocated_bytes < open.found.size_bytes;
            if open.found.size_bytes > SMALL_BYTES || open.found.size_bytes == 0 || is_sparse {
                self.store_gathered(&mut gathered, answers)?;
                let entry = self.large(&open, &path, is_sparse)?;
                answer(answers, job.ticket, entry);
            } else if !self.small(&open, &path, &mut gathered) {
                self.watch.count(Counter::DoneBytes, job.size_bytes);
                answer(answers, job.ticket, None);
            } else if gathered.bytes.len() >= most_bytes {
                self.store_gathered(&mut gathered, answers)?;
            }
        }
        self.store_gathered(&mut gathered, answers)?;
        self.small = gathered.bytes;
        Ok(())
    }

    fn open<'j>(&self, job: &'j Job, path: &[u8]) -> Option<Open<'j>> {
        let opened = source::open(&*job.directory, &job.name, OFlags::NOFOLLOW | OFlags::NONBLOCK).and_then(|file| {
            let found = settled(&file)?;
            Ok((file, found))
        });
        let (file, mut found) = match opened {
            Ok(opened) => opened,
            Err(Errno::NOENT) => {
                self.watch.warn(path, "vanished before it was read");
                return None;
            }
            Err(Errno::LOOP) => {
                self.watch.error(path, "its type changed before it was read");
                return None;
            }
            Err(error) => {
                self.watch.error(path, format_args!("cannot open it: {error}"));
                return None;
            }
        };
        if found.kind != FileType::RegularFile {
            self.watch.error(path, "its type changed before it was read");
            return None;
        }
        set_xattrs(&mut found.attributes, source::xattrs_of(&file), self.watch, path);
        found.attributes.flags = source::flags_of(&file);
        Some(Open { job, file, found })
    }

    /// Reads a small file into the common buffer. Returns false if it cannot be read, which has been reported.
    fn small<'j>(&self, open: &Open<'j>, path: &[u8], gathered: &mut Gathered<'j>) -> bool {
        let start = gathered.bytes.len();
        let wanted = open.found.size_bytes as usize;
        gathered.bytes.resize(start + wanted, 0);
        match From::At(&open.file).fill(0, &mut gathered.bytes[start..]) {
            Ok(length) => {
                gathered.bytes.truncate(start + length);
                self.watch.count(Counter::DataBytes, length as u64);
                self.watch.count(Counter::DoneBytes, length as u64);
                self.report_change(open, path);
                let content = Content::File { size_bytes: length as u64, recipe: Default::default() };
                let entry = Entry { name: open.job.name.clone(), attributes: open.found.attributes.clone(), content };
                gathered.files.push((open.job, entry, start..start + length));
                true
            }
            Err(error) => {
                gathered.bytes.truncate(start);
                self.watch.error(path, format_args!("cannot read it: {error}"));
                false
            }
        }
    }

    fn store_gathered(&mut self, gathered: &mut Gathered<'_>, answers: &Sender<Answer>) -> Result<()> {
        let Gathered { bytes, files } = gathered;
        if files.is_empty() {
            return Ok(());
        }
        let runs: Vec<(NewFile<'_>, &[u8])> = files.iter().map(|(job, _, range)| (job.new_file(), &bytes[range.clone()])).collect();
        let stored = self.contents.small(&runs)?;
        for ((job, mut entry, range), stored) in files.drain(..).zip(stored) {
            if stored.was_taken {
                self.watch.count(Counter::TakenFiles, 1);
            }
            entry.content = Content::File { size_bytes: range.len() as u64, recipe: stored.recipe };
            answer(answers, job.ticket, Some(entry));
        }
        bytes.clear();
        Ok(())
    }

    /// Reads and stores a file piece by piece. `None`: it cannot be read, which has been reported.
    fn large(&mut self, open: &Open<'_>, path: &[u8], is_sparse: bool) -> Result<Option<Entry>> {
        let end = if open.found.size_bytes == 0 { UNSIZED_BYTES } else { open.found.size_bytes };
        let _ = rustix::fs::fadvise(&open.file, 0, None, rustix::fs::Advice::Sequential);
        self.contents.begin(open.job.new_file())?;
        let mut at = 0;
        while at < end {
            let data = if is_sparse { next_data(&open.file, at, end) } else { Ok(at..end) };
            let data = match data {
                Ok(data) => data,
                Err(error) => {
                    self.watch.error(path, format_args!("cannot find its holes: {error}"));
                    return Ok(None);
                }
            };
            if data.start > at {
                self.watch.count(Counter::DoneBytes, data.start - at);
                self.contents.zeros(data.start - at)?;
            }
            match self.run_of_data(&From::At(&open.file), data.clone())? {
                Ok(read) if read < data.end - data.start => break,
                Ok(_) => at = data.end,
                Err(error) => {
                    self.watch.error(path, format_args!("cannot read it: {error}"));
                    return Ok(None);
                }
            }
            if self.watch.should_stop() {
                return Ok(None);
            }
        }
        self.report_change(open, path);
        let content = self.finish()?;
        Ok(Some(Entry { name: open.job.name.clone(), attributes: open.found.attributes.clone(), content }))
    }

    /// Stores the bytes of a range. Returns how many there were, or why they cannot be read.
    fn run_of_data(&mut self, file: &From<'_>, range: Range<u64>) -> Result<rustix::io::Result<u64>> {
        let mut at = range.start;
        // The first `kept` bytes of the buffer are the tail without a known boundary.
        let mut kept = 0;
        self.buffer.resize(BUFFER_BYTES, 0);
        loop {
            let wanted = (self.buffer.len() - kept).min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
            let read = match file.fill(at, &mut self.buffer[kept..kept + wanted]) {
                Ok(read) => read,
                Err(error) => return Ok(Err(error)),
            };
            at += read as u64;
            let filled = kept + read;
            let last = at == range.end || read < wanted;
            self.watch.count(Counter::DataBytes, read as u64);
            self.watch.count(Counter::DoneBytes, read as u64);
            let consumed = self.contents.write(&self.buffer[..filled], last)?;
            if last || self.watch.should_stop() {
                return Ok(Ok(at - range.start));
            }
            self.buffer.copy_within(consumed..filled, 0);
            kept = filled - consumed;
            if kept == self.buffer.len() {
                if kept >= MAX_BUFFER_BYTES {
                    let source = std::io::Error::other("a chunk is longer than the largest buffer");
                    return Err(ClientError::io("cut", "a file", source));
                }
                self.buffer.resize(kept * 2, 0);
            }
        }
    }

    /// Reads the content of a block device or FIFO and stores it as a regular file. `None`: it cannot be read, which
    /// has been reported.
    fn special(&mut self, job: &Job, path: &[u8]) -> Result<Option<Entry>> {
        // Opening a FIFO waits until somebody writes to it, as requested.
        let opened = source::open(&*job.directory, &job.name, OFlags::empty()).and_then(|file| Ok((source::find_open(&file)?, file)));
        let (found, file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.watch.error(path, format_args!("cannot open it: {error}"));
                return Ok(None);
            }
        };
        let (file, end) = match found.kind {
            FileType::BlockDevice => (From::At(&file), job.size_bytes),
            FileType::Fifo => (From::Here(&file), u64::MAX),
            _ => {
                self.watch.error(path, "its type changed before it was read");
                return Ok(None);
            }
        };
        self.contents.begin(NewFile { earlier: None, ..job.new_file() })?;
        if let Err(error) = self.run_of_data(&file, 0..end)? {
            self.watch.error(path, format_args!("cannot read it: {error}"));
            return Ok(None);
        }
        let content = self.finish()?;
        let attributes = Attributes { links: 1, ..found.attributes };
        Ok(Some(Entry { name: job.name.clone(), attributes, content }))
    }

    /// Stores everything that comes from an open file of any kind. `Err` inside: it cannot be read.
    pub(crate) fn everything_from(&mut self, file: &OwnedFd, new: NewFile<'_>) -> Result<rustix::io::Result<Content>> {
        self.contents.begin(new)?;
        if let Err(error) = self.run_of_data(&From::Here(file), 0..u64::MAX)? {
            return Ok(Err(error));
        }
        let content = self.finish()?;
        self.watch.count(Counter::AddedBytes, self.contents.added_bytes());
        Ok(Ok(content))
    }

    /// Ends a file that came in parts.
    fn finish(&mut self) -> Result<Content> {
        let recipe = self.contents.finish()?;
        Ok(Content::File { size_bytes: recipe.length, recipe })
    }

    fn report_change(&self, open: &Open<'_>, path: &[u8]) {
        let Ok(now) = source::find_open(&open.file) else { return };
        let (before, after) = (&open.found, &now);
        if before.size_bytes != after.size_bytes {
            let reason = format!("changed from {} to {} bytes while it was read", before.size_bytes, after.size_bytes);
            self.watch.warn(path, reason);
        } else if before.attributes.mtime_ns != after.attributes.mtime_ns {
            self.watch.warn(path, "changed while it was read");
        }
    }
}

fn answer(answers: &Sender<Answer>, ticket: u64, entry: Option<Entry>) {
    // If the assembler is gone, it has said why, and the jobs end soon.
    let _ = answers.send((ticket, entry));
}

/// A source of bytes.
enum From<'a> {
    /// A file with offsets.
    At(&'a OwnedFd),
    /// A pipe, or whatever standard input is: read from its current position.
    Here(&'a OwnedFd),
}

impl From<'_> {
    /// Reads until the buffer is full or the file ends.
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let read = match self {
                From::At(file) => rustix::io::pread(file, &mut buffer[filled..], offset + filled as u64),
                From::Here(file) => rustix::io::read(file, &mut buffer[filled..]),
            };
            match read {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Returns the next range at or after `at` that is not a hole; empty at `end` if there is none.
fn next_data(file: &OwnedFd, at: u64, end: u64) -> rustix::io::Result<Range<u64>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start.min(end),
        Err(Errno::NXIO) => end,
        // This file system cannot report holes.
        Err(Errno::INVAL | Errno::NOTSUP) => return Ok(at..end),
        Err(error) => return Err(error),
    };
    if start == end {
        return Ok(end..end);
    }
    // A file that shrinks meanwhile has no hole after its data: the read will find its end.
    let hole = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(end);
    Ok(start..hole.clamp(start, end))
}

/// Returns the attributes of an open file after the clock has left the moment of its last change. A further change then
/// gets another ctime, and the next backup will see it. File systems take their times from a clock with a step of a few
/// milliseconds.
fn settled(file: &OwnedFd) -> rustix::io::Result<Found> {
    let mut found = source::find_open(file)?;
    for _ in 0..SETTLE_STEPS {
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        let age_ns = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec) - i128::from(found.attributes.ctime_ns);
        // A time far in the future comes from another clock. Waiting would not help.
        if !(-20_000_000..=0).contains(&age_ns) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        found = source::find_open(file)?;
    }
    Ok(found)
}
