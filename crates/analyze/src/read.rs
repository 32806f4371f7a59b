//! Reading: files become batches of bytes, in the order of the walk, however many threads read.
//!
//! ```text
//! walk --jobs--> readers --batches of each job--> caller, job after job
//!    \--------the order of the jobs-------------->/
//! ```
//! Small files come many to a batch, a large one in several batches. Every queue is bounded. The caller waits for the
//! first job that is not done; jobs are taken in their order, so a reader has it in hand.

use crate::scan::Scan;
use crate::walk::{Counts, Walk};
use crossbeam_channel::{Receiver, Sender, bounded};
use onefold_client::Counter;
use rustix::fs::{Advice, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a batch beside what it repeats.
pub const BATCH_BYTES: usize = 2 << 20;
/// Files of a batch.
const BATCH_FILES: usize = 256;
/// Files above this size are read alone.
const SMALL_BYTES: u64 = 1 << 20;
/// Holes are looked for in files of at least this size, as a backup does.
const SPARSE_BYTES: u64 = 64 << 10;

/// Bytes of files of one root.
#[derive(Debug)]
pub struct Batch {
    /// The number of the root.
    pub root: u32,
    /// The bytes of all runs, one behind the other.
    pub data: Vec<u8>,
    /// What the bytes are.
    pub runs: Vec<Run>,
}

/// Bytes of one file without a hole between them, or a part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where they are in the batch. The bytes before `new_at` were in the batch before: whoever has not used them up
    /// finds them here again.
    pub data: Range<usize>,
    /// Where those begin that were not in the batch before.
    pub new_at: usize,
    /// Length of the hole before the run.
    pub hole_bytes: u64,
    /// Nothing of this run follows: what follows is a hole, or another file.
    pub is_end: bool,
    /// Nothing of this file follows.
    pub is_end_of_file: bool,
}

/// Files to read, and where their batches go.
struct Job {
    root: u32,
    files: Vec<Source>,
    batches: Sender<Batch>,
}

struct Source {
    path: PathBuf,
    size_bytes: u64,
    is_sparse: bool,
}

/// What comes from all jobs, in their order.
pub struct Jobs {
    order: Receiver<Receiver<Batch>>,
}

impl Jobs {
    /// Gives the next batch to `take`, until there is none.
    pub fn for_each(self, mut take: impl FnMut(Batch)) {
        for batches in self.order {
            batches.into_iter().for_each(&mut take);
        }
    }
}

/// The walk's end of the queues, and the readers'.
pub struct Feed {
    order: Sender<Receiver<Batch>>,
    jobs: Sender<Job>,
}

/// A reader's end of its queue.
#[derive(Clone)]
pub struct Work {
    jobs: Receiver<Job>,
}

/// The queues of a walk with so many readers.
pub fn queues(readers: usize) -> (Feed, Work, Jobs) {
    let (order_sender, order) = bounded(2 * readers);
    let (job_sender, jobs) = bounded(readers);
    (Feed { order: order_sender, jobs: job_sender }, Work { jobs }, Jobs { order })
}

impl Feed {
    /// Walks, and hands the files over as jobs.
    pub fn run(self, walk: &Walk<'_>) -> Counts {
        let mut files: Vec<Source> = Vec::new();
        let (mut bytes, mut current) = (0, 0);
        let counts = walk.run(false, &mut |root, path, metadata| {
            walk.scan.monitor.count(Counter::Files, 1);
            let file = Source::new(path, metadata);
            if file.size_bytes == 0 {
                return ControlFlow::Continue(());
            }
            let is_alone = file.size_bytes > SMALL_BYTES || file.is_sparse;
            let is_full = bytes + file.size_bytes > BATCH_BYTES as u64 || files.len() >= BATCH_FILES;
            if !files.is_empty() && (is_alone || is_full || root != current) {
                self.hand_over(current, std::mem::take(&mut files))?;
                bytes = 0;
            }
            current = root;
            if is_alone {
                return self.hand_over(root, vec![file]);
            }
            bytes += file.size_bytes;
            files.push(file);
            ControlFlow::Continue(())
        });
        if !files.is_empty() {
            // When the caller has gone, it knows why.
            let _ = self.hand_over(current, files);
        }
        counts
    }

    fn hand_over(&self, root: u32, files: Vec<Source>) -> ControlFlow<()> {
        let (batches, ordered) = bounded(1);
        if self.order.send(ordered).is_err() || self.jobs.send(Job { root, files, batches }).is_err() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl Source {
    fn new(path: PathBuf, metadata: &Metadata) -> Source {
        let size_bytes = metadata.len();
        let is_sparse = size_bytes >= SPARSE_BYTES && metadata.blocks().saturating_mul(512) < size_bytes;
        Source { path, size_bytes, is_sparse }
    }
}

/// The caller has gone: it knows why.
struct Gone;

impl Work {
    /// Reads until there are no more jobs. Every batch of a file repeats up to `repeated_bytes` of the one before.
    pub fn run(self, scan: &Scan<'_>, repeated_bytes: usize) {
        for job in self.jobs {
            if scan.should_stop() {
                return;
            }
            let done = match job.files.as_slice() {
                [file] if file.size_bytes > SMALL_BYTES || file.is_sparse => large(scan, &job, file, repeated_bytes),
                _ => small(scan, &job),
            };
            if done.is_err() {
                return;
            }
        }
    }
}

/// Reads small files into one batch.
fn small(scan: &Scan<'_>, job: &Job) -> Result<(), Gone> {
    let mut batch = Batch { root: job.root, data: Vec::with_capacity(BATCH_BYTES), runs: Vec::with_capacity(job.files.len()) };
    for source in &job.files {
        scan.current(&source.path);
        let start = batch.data.len();
        batch.data.resize(start + source.size_bytes as usize, 0);
        let read = open(scan, &source.path).map(|file| fill(&file, 0, &mut batch.data[start..]));
        let length = match read {
            Some(Ok(length)) => length,
            Some(Err(error)) => {
                scan.error(&source.path, format_args!("cannot read it: {error}"));
                0
            }
            None => 0,
        };
        batch.data.truncate(start + length);
        let data = start..batch.data.len();
        batch.runs.push(Run { new_at: start, data, hole_bytes: 0, is_end: true, is_end_of_file: true });
    }
    job.batches.send(batch).map_err(|_| Gone)
}

/// Reads a file piece by piece, its holes not at all.
fn large(scan: &Scan<'_>, job: &Job, source: &Source, repeated_bytes: usize) -> Result<(), Gone> {
    scan.current(&source.path);
    let Some(file) = open(scan, &source.path) else { return Ok(()) };
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
    let send = |data: Vec<u8>, run: Run| job.batches.send(Batch { root: job.root, data, runs: vec![run] }).map_err(|_| Gone);
    // The end of the batch before, as far as the next one repeats it.
    let mut tail: Vec<u8> = Vec::new();
    let (mut at, mut hole_bytes) = (0, 0);
    let mut extent = 0..0;
    while at < source.size_bytes && !scan.should_stop() {
        if at >= extent.end {
            extent = if source.is_sparse {
                next_data(&file, at, source.size_bytes).unwrap_or_else(|error| {
                    scan.warn(&source.path, format_args!("its holes are read, as they cannot be found: {error}"));
                    at..source.size_bytes
                })
            } else {
                at..source.size_bytes
            };
            hole_bytes = extent.start - at;
            at = extent.start;
        }
        let wanted = usize::try_from(extent.end - at).unwrap_or(usize::MAX).min(BATCH_BYTES);
        let new_at = tail.len();
        let mut data = std::mem::take(&mut tail);
        data.reserve_exact(wanted);
        data.resize(new_at + wanted, 0);
        let read = fill(&file, at, &mut data[new_at..]).unwrap_or_else(|error| {
            scan.error(&source.path, format_args!("cannot read it: {error}"));
            0
        });
        data.truncate(new_at + read);
        at += read as u64;
        // A file that has become shorter ends where it ends now, one that cannot be read where it could be read.
        let is_end_of_file = read < wanted || at >= source.size_bytes;
        let is_end = is_end_of_file || at == extent.end;
        if !is_end {
            tail = data[data.len().saturating_sub(repeated_bytes)..].to_vec();
        }
        let run = Run { data: 0..new_at + read, new_at, hole_bytes, is_end, is_end_of_file };
        send(data, run)?;
        hole_bytes = 0;
        if is_end_of_file {
            return Ok(());
        }
    }
    Ok(())
}

/// Opens a regular file without changing its access time where that is allowed; `None` if it cannot be read, which has
/// been reported.
fn open(scan: &Scan<'_>, path: &Path) -> Option<File> {
    let open = |flags: OFlags| OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    // What is no regular file any more must not make us wait.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = open(flags | OFlags::NOATIME).or_else(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        // Only the owner and root may leave the access time alone.
        Some(Errno::PERM) => open(flags),
        _ => Err(error),
    });
    let looked = opened.and_then(|file| Ok((file.metadata()?.is_file(), file)));
    match looked {
        Ok((true, file)) => return Some(file),
        Ok((false, _)) => scan.warn(path, "became something else before it was read"),
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => scan.warn(path, "vanished before it was read"),
            Some(Errno::LOOP) => scan.warn(path, "became something else before it was read"),
            _ => scan.error(path, format_args!("cannot open it: {error}")),
        },
    }
    None
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The next range at or after `at` that is not a hole; empty at `end` if there is none.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<Range<u64>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start.clamp(at, end),
        Err(Errno::NXIO) => return Ok(end..end),
        // A file system that does not know its holes.
        Err(Errno::INVAL | Errno::NOTSUP) => return Ok(at..end),
        Err(error) => return Err(error.into()),
    };
    // A file that shrinks meanwhile has no hole behind its data: the reading will find its end.
    let hole = rustix::fs::seek(file, SeekFrom::Hole(start)).ok().filter(|hole| *hole > start);
    Ok(start..hole.map_or(end, |hole| hole.min(end)))
}
