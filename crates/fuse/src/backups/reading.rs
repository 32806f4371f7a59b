//! Open files, and reading ahead.
//!
//! A file that is read in order is read in *segments*, and some segments ahead of its reader on other threads, so that
//! nobody waits for each answer of a connection or a disk. Any other read takes just its bytes. The kernel has its own
//! cache of what was read, so a segment goes when its reader has passed it. Memory is bounded for all files together:
//! beyond it, nothing is read ahead.

use super::held::Opening;
use super::nodes::{Failed, Node};
use crossbeam_channel::{Receiver, Sender};
use onefold_catalog::{Chunks, DataRun, FileReader};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a segment.
const SEGMENT_BYTES: u64 = 512 << 10;
/// Segments that are read ahead for each reader that the store has use for.
const AHEAD: u64 = 2;
/// Requests of one reader come in any order within this many bytes.
const DISORDER_BYTES: u64 = 1 << 20;
/// After so many reads in order, more are expected.
const IN_ORDER: u32 = 2;
/// The most threads that read ahead.
const THREADS: usize = 8;

/// A file, and a segment of it that is to be read.
type Work = (Arc<File>, u64);
/// How a file is read in an opening of its backup.
type Reader = (Arc<Opening>, Arc<FileReader<dyn Chunks>>);

/// Reads ahead for all open files.
#[derive(Debug)]
pub(super) struct Ahead {
    work: Sender<Work>,
    /// Bytes of segments in memory, of all files.
    bytes: Arc<AtomicUsize>,
    limit_bytes: usize,
}

/// An open file.
#[derive(Debug)]
pub(super) struct File {
    node: Arc<Node>,
    reader: Mutex<Option<Reader>>,
    state: Mutex<State>,
    changed: Condvar,
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    /// Where the next read in order begins.
    next: u64,
    in_order: u32,
    segments: HashMap<u64, Segment>,
}

#[derive(Clone, Debug)]
enum Segment {
    Loading,
    Ready(Arc<Vec<u8>>),
}

impl Ahead {
    /// Starts the threads. They end with this.
    pub(super) fn start(limit_bytes: usize) -> std::io::Result<Ahead> {
        let (work, queue): (Sender<Work>, Receiver<Work>) = crossbeam_channel::bounded(4 * THREADS);
        for number in 0..THREADS {
            let queue = queue.clone();
            let read_ahead = move || queue.iter().for_each(|(file, segment)| file.load_ahead(segment));
            std::thread::Builder::new().name(format!("ahead-{number}")).spawn(read_ahead)?;
        }
        Ok(Ahead { work, bytes: Arc::default(), limit_bytes })
    }

    /// Opens a file.
    pub(super) fn open(&self, node: Arc<Node>) -> Arc<File> {
        Arc::new(File { node, reader: Mutex::default(), state: Mutex::default(), changed: Condvar::new(), bytes: self.bytes.clone() })
    }

    /// Reads a part of a file that lies in it.
    pub(super) fn read(&self, file: &Arc<File>, range: Range<u64>) -> Result<Vec<u8>, Failed> {
        let mut out = vec![0; (range.end - range.start) as usize];
        if !file.comes_in_order(&range) {
            file.read(range.start, &mut out)?;
            return Ok(out);
        }
        let (first, last) = (range.start / SEGMENT_BYTES, (range.end - 1) / SEGMENT_BYTES);
        self.read_ahead(file, last + 1)?;
        for segment in first..=last {
            let bytes = file.segment(segment)?;
            let at = segment * SEGMENT_BYTES;
            let (from, to) = (range.start.max(at), range.end.min(at + bytes.len() as u64));
            out[(from - range.start) as usize..(to - range.start) as usize]
                .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
        }
        file.forget_before(first.saturating_sub(DISORDER_BYTES / SEGMENT_BYTES));
        Ok(out)
    }

    fn read_ahead(&self, file: &Arc<File>, first: u64) -> Result<(), Failed> {
        let (_, reader) = file.reader()?;
        let readers = file.readers()?.clamp(1, THREADS) as u64;
        let end = reader.length().div_ceil(SEGMENT_BYTES);
        for segment in first..end.min(first + AHEAD * readers) {
            let is_full = self.bytes.load(Ordering::Relaxed) + SEGMENT_BYTES as usize > self.limit_bytes;
            if is_full || !file.begins_loading(segment) {
                continue;
            }
            if self.work.try_send((file.clone(), segment)).is_err() {
                file.gives_up(segment);
                break;
            }
        }
        Ok(())
    }
}

impl File {
    /// Returns its reader. If the backup was opened again, finds the file again.
    fn reader(&self) -> Result<Reader, Failed> {
        let there = || self.reader.lock().clone().filter(|(opening, _)| opening.opened.chunks.broken().is_none());
        if let Some(reader) = there() {
            return Ok(reader);
        }
        // Without the lock: an attempt to connect fails for all who wait for it.
        let held = self.node.held().ok_or("it is in no backup")?;
        let opening = held.opening()?;
        let recipe = self.node.file(&opening)?.ok_or("it is no file")?;
        if let Some(reader) = there().filter(|(other, _)| other.number == opening.number) {
            return Ok(reader);
        }
        let new = (opening.clone(), Arc::new(FileReader::new(&opening.opened.chunks, &recipe)));
        *self.reader.lock() = Some(new.clone());
        Ok(new)
    }

    fn readers(&self) -> Result<usize, Failed> {
        Ok(self.reader()?.0.opened.chunks.readers())
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn length(&self) -> Result<u64, Failed> {
        Ok(self.reader()?.1.length())
    }

    /// Returns the run of data or zeros at a place ([`FileReader::run`]).
    pub(super) fn run(&self, offset: u64) -> Result<Option<DataRun>, Failed> {
        let (opening, reader) = self.reader()?;
        match reader.run(offset) {
            Err(_) if opening.opened.chunks.broken().is_some() => Ok(self.reader()?.1.run(offset)?),
            run => Ok(run?),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Failed> {
        let (opening, reader) = self.reader()?;
        match reader.read(offset, out) {
            // The connection is lost: once more over another one.
            Err(_) if opening.opened.chunks.broken().is_some() => Ok(self.reader()?.1.read(offset, out)?),
            read => Ok(read?),
        }
    }

    /// Notes a read. Returns whether it is one of several in order.
    fn comes_in_order(&self, range: &Range<u64>) -> bool {
        let mut state = self.state.lock();
        if range.start.abs_diff(state.next) <= DISORDER_BYTES {
            state.in_order = state.in_order.saturating_add(1);
            state.next = state.next.max(range.end);
        } else {
            state.in_order = 0;
            state.next = range.end;
            self.forget(&mut state, |_| false);
        }
        state.in_order > IN_ORDER
    }

    /// Returns whether the caller is to load a segment.
    fn begins_loading(&self, segment: u64) -> bool {
        let mut state = self.state.lock();
        if state.segments.contains_key(&segment) {
            return false;
        }
        state.segments.insert(segment, Segment::Loading);
        self.bytes.fetch_add(SEGMENT_BYTES as usize, Ordering::Relaxed);
        true
    }

    fn gives_up(&self, segment: u64) {
        self.state.lock().segments.remove(&segment);
        self.bytes.fetch_sub(SEGMENT_BYTES as usize, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Loads a segment that this thread began. After an error, whoever needs it tries again.
    fn load(&self, segment: u64) -> Result<Arc<Vec<u8>>, Failed> {
        let loaded = self.reader().and_then(|(_, reader)| {
            let at = segment * SEGMENT_BYTES;
            let mut bytes = vec![0; reader.length().saturating_sub(at).min(SEGMENT_BYTES) as usize];
            self.read(at, &mut bytes).map(|()| Arc::new(bytes))
        });
        match loaded {
            Ok(bytes) => {
                self.state.lock().segments.insert(segment, Segment::Ready(bytes.clone()));
                self.changed.notify_all();
                Ok(bytes)
            }
            Err(error) => {
                self.gives_up(segment);
                Err(error)
            }
        }
    }

    fn load_ahead(&self, segment: u64) {
        // Whoever reads it hears of an error.
        let _ = self.load(segment);
    }

    fn segment(&self, segment: u64) -> Result<Arc<Vec<u8>>, Failed> {
        loop {
            if self.begins_loading(segment) {
                return self.load(segment);
            }
            let mut state = self.state.lock();
            match state.segments.get(&segment) {
                Some(Segment::Ready(bytes)) => return Ok(bytes.clone()),
                Some(Segment::Loading) => self.changed.wait(&mut state),
                None => {}
            }
        }
    }

    fn forget_before(&self, first: u64) {
        self.forget(&mut self.state.lock(), |segment| segment >= first);
    }

    /// Forgets segments that are not kept, and that nobody is loading.
    fn forget(&self, state: &mut State, is_kept: impl Fn(u64) -> bool) {
        let before = state.segments.len();
        state.segments.retain(|segment, loaded| is_kept(*segment) || matches!(loaded, Segment::Loading));
        self.bytes.fetch_sub((before - state.segments.len()) * SEGMENT_BYTES as usize, Ordering::Relaxed);
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let segments = self.state.get_mut().segments.len();
        self.bytes.fetch_sub(segments * SEGMENT_BYTES as usize, Ordering::Relaxed);
    }
}
