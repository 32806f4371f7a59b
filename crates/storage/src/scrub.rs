//! Reading container files from the device, whole, to find what has rotted (`onefold scrub`).
//!
//! What is read goes past all caches, those of the system too: neither is a rotten sector hidden by a page that is still in memory, nor is
//! anything driven out of memory that somebody uses. Header, catalog, footer and the checksum of every frame are verified; frames are not
//! decompressed and chunks not fingerprinted, as `check --read-data` does: the disk is the limit here, not the processor.

use crate::sealed::Bytes;
use crate::store::{ContainerStore, Shared};
use crate::{Catalog, ContainerId, FORWARD_BYTES, Result, StorageError, file};
use onefold_ground::{Access, File, checksum};
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{RecvTimeoutError, channel, sync_channel};
use std::time::Duration;

/// Files up to this size are read whole, the next one while one is verified.
pub(crate) const WHOLE_BYTES: u64 = 16 << 20;
/// Longer ones are read so many bytes at a time.
const WINDOW_BYTES: usize = 4 << 20;

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

/// A file on its way from the device to its verification.
enum Read {
    Whole(Vec<u8>),
    /// Too long for that.
    Long(Arc<dyn File>),
}

/// A container about to be verified.
struct Job {
    container: ContainerId,
    /// Moves of chunks between files before it was read.
    generation: u64,
    /// Of one that was not sealed before it was read: what was in its file.
    open: Option<Arc<Catalog>>,
    read: Result<Read>,
}

impl ContainerStore {
    /// Reads all of these containers from the device and passes on what was found, in order. One that is merged away meanwhile has nothing to
    /// show. `pace` is told, in a thread of its own, how many bytes are about to be read, and may wait; `false` ends the scrub early. Meanwhile
    /// `waiting` is called some times a second. Returns how many containers were scrubbed.
    pub fn scrub(
        &self,
        containers: &[ContainerId],
        pace: &mut (dyn FnMut(u64) -> bool + Send),
        found: &mut dyn FnMut(ContainerId, Scrubbed),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(1);
            // Memory goes round: what is new has to be made by the system, page by page, while the device waits.
            let (give_back, given_back) = channel::<Vec<u8>>();
            scope.spawn(move || {
                for container in containers {
                    let memory = given_back.try_recv().unwrap_or_default();
                    let Some(job) = self.shared.read_for_scrub(*container, memory, pace) else { return };
                    if sender.send(job).is_err() {
                        return;
                    }
                }
            });
            let mut count = 0;
            loop {
                match receiver.recv_timeout(WAITING_INTERVAL) {
                    Ok(job) => {
                        let container = job.container;
                        let (scrubbed, memory) = self.shared.scrubbed(job);
                        // Nobody takes it when the last one is read.
                        let _ = give_back.send(memory);
                        found(container, scrubbed);
                        count += 1;
                    }
                    Err(RecvTimeoutError::Timeout) => waiting(),
                    Err(RecvTimeoutError::Disconnected) => return count,
                }
            }
        })
    }

    /// Reads a forward from the device and checks that it leads to a container that has chunks of `container`. One that went meanwhile, because no
    /// chunk of it is needed any more, has nothing to show.
    pub fn scrub_forward(&self, container: ContainerId) -> Result<()> {
        let shared = &self.shared;
        let generation = shared.generation.load(SeqCst);
        if let Ok(file) = shared.ground.open(&file::forward_path(&shared.directory, container), Access::Read) {
            file.drop_cached(0, FORWARD_BYTES as u64);
        }
        match self.verify_forward(container) {
            Err(_) if shared.generation.load(SeqCst) != generation && self.forwards()?.binary_search(&container).is_err() => Ok(()),
            result => result.map(drop),
        }
    }
}

impl Shared {
    /// `None`: the pace said no.
    fn read_for_scrub(&self, container: ContainerId, mut memory: Vec<u8>, pace: &mut dyn FnMut(u64) -> bool) -> Option<Job> {
        let generation = self.generation.load(SeqCst);
        let open = self.open.read().get(&container).map(|open| open.state.lock().catalog.clone());
        let path = file::path(&self.directory, container);
        let read = match self.ground.open_past_cache(&path).and_then(|file| Ok((file.len()?, file))) {
            Ok((length, file)) => {
                if !pace(length) {
                    return None;
                }
                if length > WHOLE_BYTES {
                    Ok(Read::Long(file))
                } else {
                    memory.resize(length as usize, 0);
                    file.read_at(0, &mut memory).map(|()| Read::Whole(memory))
                }
            }
            // One without committed frames need not have a file.
            Err(error) if error.is_not_found() && open.as_ref().is_some_and(|catalog| catalog.frames.is_empty()) => {
                Ok(Read::Whole(Vec::new()))
            }
            Err(error) => Err(error),
        };
        let read = read.map_err(|error| self.read_error(container, None, error));
        Some(Job { container, generation, open, read })
    }

    /// What was found, and the memory to be used again.
    fn scrubbed(&self, job: Job) -> (Scrubbed, Vec<u8>) {
        let Job { container, generation, open, read } = job;
        let (mut scrubbed, mut memory) = (Scrubbed::default(), Vec::new());
        let verify = |bytes: &dyn Bytes| {
            scrubbed.read_bytes = bytes.length()?;
            self.verify_bytes(container, open, bytes, &mut scrubbed.damage)
        };
        let verified = read.and_then(|read| match read {
            Read::Whole(bytes) => {
                let verified = verify(&bytes);
                memory = bytes;
                verified
            }
            Read::Long(file) => verify(&Window::of(file)),
        });
        if let Err(error) = verified {
            scrubbed.damage.push(error);
        }
        if !scrubbed.damage.is_empty() && !self.is_still_there(container, generation) {
            scrubbed.damage.clear();
        }
        (scrubbed, memory)
    }

    /// Whether what was found of a container is about what it is now: not if it was merged away since.
    fn is_still_there(&self, container: ContainerId, generation: u64) -> bool {
        if self.generation.load(SeqCst) == generation {
            return true;
        }
        if self.forwarding.lock().logged().contains_key(&container) {
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
    last: RefCell<(u64, Vec<u8>)>,
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
        let mut last = self.last.borrow_mut();
        let is_inside = |last: &(u64, Vec<u8>)| offset >= last.0 && end <= last.0 + last.1.len() as u64;
        if !is_inside(&last) {
            let room = self.file.len()?.saturating_sub(offset);
            let wanted = (length as u64).max(WINDOW_BYTES as u64).min(room.max(length as u64));
            let mut bytes = std::mem::take(&mut last.1);
            bytes.resize(wanted as usize, 0);
            self.file.read_at(offset, &mut bytes)?;
            *last = (offset, bytes);
        }
        let start = (offset - last.0) as usize;
        Ok(Cow::Owned(last.1[start..start + length].to_vec()))
    }
}
