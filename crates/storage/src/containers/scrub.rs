//! Reads whole container files from the device, to find rotten ones (`onefold scrub`).
//!
//! The reads go past all caches, those of the system too. So no page in memory hides a rotten sector, and nothing in
//! use is evicted from memory. Scrubbing verifies header, catalog, footer and the checksum of every frame. Unlike
//! `check --read-data`, this neither decompresses frames nor fingerprints chunks: the disk is the limit here, not the
//! processor.

use crate::containers::file;
use crate::containers::sealed::Bytes;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Catalog, ContainerId, FORWARD_BYTES, GroupId, Result, ScrubbedParity, StorageError};
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
/// Longer ones are read this many bytes at a time.
const WINDOW_BYTES: usize = 4 << 20;
/// Windows begin at a multiple of this.
const ALIGNMENT_BYTES: u64 = 4096;

/// How often the caller is asked whether to go on.
const WAITING_INTERVAL: Duration = Duration::from_millis(100);

/// The findings of scrubbing one container.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// Bytes read.
    pub read_bytes: u64,
    /// What is wrong: [`StorageError::Damaged`], or an error of the device.
    pub damage: Vec<StorageError>,
}

/// Threads that scrub. Each reads and verifies a file by itself: while one verifies, another waits for the device. Each
/// has memory for one file, at most 16 MiB, and reuses it.
#[derive(Debug)]
pub struct ScrubThreads {
    count: usize,
    buffers: Mutex<Vec<ReadBuffer>>,
}

impl ScrubThreads {
    /// Makes at least one thread.
    pub fn new(count: usize) -> ScrubThreads {
        ScrubThreads { count: count.max(1), buffers: Mutex::default() }
    }

    /// Looks at each of `ids` in some thread, and passes on the findings, in order, in this thread. When `stop` is set,
    /// no other id is begun. Meanwhile it calls `waiting` several times a second. Returns how many were passed on.
    pub(crate) fn in_order<I: Copy + Sync, T: Send>(
        &self,
        ids: &[I],
        stop: &AtomicBool,
        look: &(dyn Fn(I, &mut ReadBuffer) -> T + Sync),
        found: &mut dyn FnMut(I, T),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        let next = AtomicUsize::new(0);
        let work = |sender: std::sync::mpsc::Sender<(usize, T)>| {
            let mut buffer = self.buffers.lock().pop().unwrap_or_default();
            while !stop.load(Relaxed)
                && let at = next.fetch_add(1, Relaxed)
                && let Some(id) = ids.get(at)
            {
                // Nobody takes it if the other thread panics.
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
            // Findings wait for those of earlier ids.
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
    /// Reads all of these containers from the device and passes on the findings, in order. A container that is merged
    /// away meanwhile has no findings. When `stop` is set, no other one is begun. Meanwhile it calls `waiting` several
    /// times a second. Returns how many containers were scrubbed.
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

    /// Does [`scrub_parity`](Self::scrub_parity) for all of these groups, in the way that [`scrub`](Self::scrub) works
    /// for containers.
    pub fn scrub_parities(
        &self,
        groups: &[GroupId],
        threads: &ScrubThreads,
        stop: &AtomicBool,
        found: &mut dyn FnMut(GroupId, Result<ScrubbedParity>),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        threads.in_order(groups, stop, &|group, buffer| self.shared.scrub_parity(group, buffer), found, waiting)
    }

    /// Reads a forward from the device and checks that it leads to a container that has chunks of `container`. A
    /// forward that went meanwhile, because no chunk of it is needed any more, gives no error.
    pub fn scrub_forward(&self, container: ContainerId) -> Result<()> {
        let shared = &self.shared;
        if let Ok(file) = shared.ground.open(&file::forward_path(&shared.directory, container), Access::Read) {
            file.drop_cached(0, FORWARD_BYTES as u64);
        }
        match self.verify_forward(container) {
            Err(_) if !self.has_forward(container)? => Ok(()),
            result => result.map(drop),
        }
    }
}

impl Shared {
    fn scrub_one(&self, container: ContainerId, buffer: &mut ReadBuffer) -> Scrubbed {
        // First: how often chunks have moved, and what an unsealed container has in its file.
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
            // A container without committed frames need not have a file. A sealed one without a file was merged away
            // since it was listed, however long ago. Containers are listed by their files. A lost file is noticed by
            // its users and by its parity.
            Err(error) if error.is_not_found() && open.as_ref().is_none_or(|catalog| catalog.frames.is_empty()) => Ok(()),
            Err(error) => Err(self.read_error(container, None, error)),
        };
        scrubbed.damage.extend(verified.err());
        // After a failed sync the system may have thrown away frames of open containers. The next opening brings them
        // back.
        let is_untold = || is_open && self.flow.check_poison().is_err();
        if !scrubbed.damage.is_empty() && (is_untold() || !self.is_still_there(container, generation)) {
            scrubbed.damage.clear();
        }
        scrubbed
    }

    /// Returns whether the findings are still about this container. They are not if it was merged away since.
    fn is_still_there(&self, container: ContainerId, generation: u64) -> bool {
        if self.forwards.is_unmoved_since(generation) {
            return true;
        }
        if self.forwards.is_logged(container) {
            return false;
        }
        let there = self.ground.exists(&file::path(&self.directory, container)).unwrap_or(true);
        // An error says nothing about a merge.
        there && self.stable(|| self.answering(container)).map_or(true, |answering| answering == container)
    }

    /// Verifies header, catalog, footer and the checksums of all frames. Of an unsealed container it verifies the
    /// frames of `open`. Errors in single frames go to `damage`.
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
    /// The bytes read last, and where they begin.
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
