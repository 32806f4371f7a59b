//! Reading container files from the device, whole, to find what has rotted (`onefold scrub`).
//!
//! What is read goes past all caches, those of the system too: neither is a rotten sector hidden by a page that is still in memory, nor is
//! anything driven out of memory that somebody uses. Header, catalog, footer and the checksum of every frame are verified; frames are not
//! decompressed and chunks not fingerprinted, as `check --read-data` does: the disk is the limit here, not the processor.

use crate::sealed::Bytes;
use crate::store::{ContainerStore, Shared};
use crate::{Catalog, ContainerId, FORWARD_BYTES, Result, ScrubbedParity, StorageError, file};
use onefold_ground::{Access, File, ReadBuffer, checksum};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Files up to this size are read whole.
pub(crate) const WHOLE_BYTES: u64 = 16 << 20;
/// Longer ones are read so many bytes at a time.
const WINDOW_BYTES: usize = 4 << 20;
/// Windows begin at a multiple of this.
const ALIGNMENT_BYTES: u64 = 4096;

/// Whoever scrubs is asked so often whether to go on.
const WAITING_INTERVAL: Duration = Duration::from_millis(100);

/// What scrubbing one container found.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// Bytes read.
    pub read_bytes: u64,
    /// What is wrong: [`StorageError::Damaged`], or what the device said.
    pub damage: Vec<StorageError>,
}

/// Threads that scrub, each reading and verifying a file by itself: while one verifies, another one waits for the device. Each has the memory of a file, at most
/// 16 MiB, which it uses again and again.
#[derive(Debug)]
pub struct ScrubThreads {
    count: usize,
    buffers: Mutex<Vec<ReadBuffer>>,
}

impl ScrubThreads {
    /// At least one.
    pub fn new(count: usize) -> ScrubThreads {
        ScrubThreads { count: count.max(1), buffers: Mutex::default() }
    }

    /// Looks at each of `ids` in some thread, and passes on what was found, in order, in this one. When `stop` is set no other one is begun. Meanwhile `waiting` is called
    /// some times a second. Returns how many were passed on.
    fn in_order<T: Send>(
        &self,
        ids: &[ContainerId],
        stop: &AtomicBool,
        look: &(dyn Fn(ContainerId, &mut ReadBuffer) -> T + Sync),
        found: &mut dyn FnMut(ContainerId, T),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        let next = AtomicUsize::new(0);
        let work = |sender: std::sync::mpsc::Sender<(usize, T)>| {
            let mut buffer = self.buffers.lock().pop().unwrap_or_default();
            while !stop.load(Relaxed)
                && let at = next.fetch_add(1, Relaxed)
                && let Some(id) = ids.get(at)
            {
                // Nobody takes it where the other thread panics.
                let _ = sender.send((at, look(*id, &mut buffer)));
            }
            self.buffers.lock().push(buffer);
        };
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            for _ in 0..self.count.min(ids.len()) {
                let sender = sender.clone();
                scope.spawn(|| work(sender));
            }
            drop(sender);
            // What comes behind one that is still looked at waits for it.
            let (mut early, mut count) = (BTreeMap::new(), 0);
            loop {
                match receiver.recv_timeout(WAITING_INTERVAL) {
                    Ok((at, result)) => {
                        early.insert(at, result);
                        while let Some(result) = early.remove(&count) {
                            found(ids[count], result);
                            count += 1;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => waiting(),
                    Err(RecvTimeoutError::Disconnected) => return count,
                }
            }
        })
    }
}

impl ContainerStore {
    /// Reads all of these containers from the device and passes on what was found, in order. One that is merged away meanwhile has nothing to
    /// show. When `stop` is set no other one is begun. Meanwhile `waiting` is called some times a second. Returns how many containers were scrubbed.
    pub fn scrub(
        &self,
        containers: &[ContainerId],
        threads: &ScrubThreads,
        stop: &AtomicBool,
        found: &mut dyn FnMut(ContainerId, Scrubbed),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        threads.in_order(containers, stop, &|container, buffer| self.shared.scrub_one(container, buffer), found, waiting)
    }

    /// Does [`scrub_parity`](Self::scrub_parity) for all of these groups, as [`scrub`](Self::scrub) does it for containers.
    pub fn scrub_parities(
        &self,
        groups: &[ContainerId],
        threads: &ScrubThreads,
        stop: &AtomicBool,
        found: &mut dyn FnMut(ContainerId, Result<ScrubbedParity>),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        threads.in_order(groups, stop, &|group, buffer| self.shared.scrub_parity(group, buffer), found, waiting)
    }

    /// Reads a forward from the device and checks that it leads to a container that has chunks of `container`. One that went meanwhile, because no
    /// chunk of it is needed any more, has nothing to show.
    pub fn scrub_forward(&self, container: ContainerId) -> Result<()> {
        let shared = &self.shared;
        if let Ok(file) = shared.ground.open(&file::forward_path(&shared.directory, container), Access::Read) {
            file.drop_cached(0, FORWARD_BYTES as u64);
        }
        match self.verify_forward(container) {
            Err(_) if self.forwards()?.binary_search(&container).is_err() => Ok(()),
            result => result.map(drop),
        }
    }
}

impl Shared {
    fn scrub_one(&self, container: ContainerId, buffer: &mut ReadBuffer) -> Scrubbed {
        // Moves of chunks between files before it is read; and of one that is not sealed, what is in its file.
        let generation = self.forwards.generation();
        let open = self.unsealed.get(container).map(|open| open.state.lock().catalog.clone());
        let is_open = open.is_some();
        let mut scrubbed = Scrubbed::default();
        let verified = match self.ground.open_past_cache(&file::path(&self.directory, container)).and_then(|file| Ok((file.len()?, file))) {
            Ok((length, file)) => {
                scrubbed.read_bytes = length;
                let damage = &mut scrubbed.damage;
                if length > WHOLE_BYTES {
                    self.verify_bytes(container, open, &Window::of(file), damage)
                } else {
                    let read = buffer.read(&*file, 0, length as usize).map(drop).map_err(|error| self.read_error(container, None, error));
                    read.and_then(|()| self.verify_bytes(container, open, buffer, damage))
                }
            }
            // One without committed frames need not have a file. One that is sealed and has none was merged away since it was listed, however
            // long ago: containers are listed by their files, and what is lost with a file is found by who needs it and by its parity.
            Err(error) if error.is_not_found() && open.as_ref().is_none_or(|catalog| catalog.frames.is_empty()) => Ok(()),
            Err(error) => Err(self.read_error(container, None, error)),
        };
        scrubbed.damage.extend(verified.err());
        // After a failed sync the system may have thrown away frames of open containers that the next opening brings back.
        let is_untold = || is_open && self.flow.check_poison().is_err();
        if !scrubbed.damage.is_empty() && (is_untold() || !self.is_still_there(container, generation)) {
            scrubbed.damage.clear();
        }
        scrubbed
    }

    /// Whether what was found of a container is about what it is now: not if it was merged away since.
    fn is_still_there(&self, container: ContainerId, generation: u64) -> bool {
        if self.forwards.is_unmoved_since(generation) {
            return true;
        }
        if self.forwards.is_logged(container) {
            return false;
        }
        let there = self.ground.exists(&file::path(&self.directory, container)).unwrap_or(true);
        // An error says nothing of a merge.
        there && self.stable(|| self.answering(container)).map_or(true, |answering| answering == container)
    }

    /// Verifies header, catalog, footer and the checksums of all frames; of a container that is not sealed, the frames of `open`. What is
    /// wrong with single frames goes to `damage`.
    pub(crate) fn verify_bytes(
        &self,
        container: ContainerId,
        open: Option<Arc<Catalog>>,
        bytes: &dyn Bytes,
        damage: &mut Vec<StorageError>,
    ) -> Result<()> {
        let catalog = match open {
            Some(catalog) => {
                if !catalog.frames.is_empty() {
                    self.header_in(container, bytes)?;
                }
                catalog
            }
            None => Arc::new(self.catalog_in(container, bytes)?),
        };
        for frame in &catalog.frames {
            let stored = self.read_from(bytes, container, Some(frame.number), u64::from(frame.offset_bytes), frame.stored_bytes as usize);
            match stored {
                Ok(stored) if checksum(&stored) == frame.checksum => {}
                Ok(_) => damage.push(self.damaged(container, Some(frame.number), None, "the checksum of the frame is wrong")),
                Err(error) => damage.push(error),
            }
        }
        Ok(())
    }
}

/// A long file, read by windows.
pub(crate) struct Window {
    file: Arc<dyn File>,
    /// What was read last, and from where on.
    last: RefCell<(u64, ReadBuffer)>,
}

impl Window {
    pub(crate) fn of(file: Arc<dyn File>) -> Window {
        Window { file, last: RefCell::default() }
    }
}

impl Bytes for Window {
    fn length(&self) -> onefold_ground::Result<u64> {
        self.file.len()
    }

    fn range(&self, offset: u64, length: usize) -> onefold_ground::Result<Cow<'_, [u8]>> {
        let end = offset.saturating_add(length as u64);
        let (start, window) = &mut *self.last.borrow_mut();
        if offset < *start || end > *start + window.len() as u64 {
            let first = offset - offset % ALIGNMENT_BYTES;
            let room = self.file.len()?.saturating_sub(first);
            let needed = end - first;
            window.read(&*self.file, first, needed.max(WINDOW_BYTES as u64).min(room.max(needed)) as usize)?;
            *start = first;
        }
        let from = (offset - *start) as usize;
        Ok(Cow::Owned(window[from..from + length].to_vec()))
    }
}
