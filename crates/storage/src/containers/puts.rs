//! Puts full containers of a store with whole files (decision 0068): as they fill, several at once.
//!
//! A container is *complete* when it takes no more chunks and all its frames are in its file, which only this process
//! has. Then it gets its catalog and footer, and the file becomes durable as a whole: it is *put*. From then on its
//! content does not change, even if the put fails: it may still arrive.
//!
//! A failed put loses nothing. The next [`ContainerStore::prepare`](crate::ContainerStore::prepare) tries again and
//! reports the error. What no batch names when the process ends is a leftover.
//!
//! Locks: the queue is locked last and alone. Whoever puts a container holds no lock meanwhile.

use crate::components::STORAGE_WRITE;
use crate::containers::open::{OpenContainer, Seal};
use crate::containers::store::Shared;
use crate::containers::workers::PoisonOnPanic;
use crate::{Result, StorageError};
use crossbeam_channel::{Receiver, Sender, unbounded};
use onefold_ground::File;
use onefold_oplog::Position;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// At most this many containers are put at the same time as they fill,
const PUTS_AT_ONCE: u32 = 4;
/// and about so many bytes: each is in memory meanwhile. Two are begun at once whatever they have; the ground of a
/// bucket puts those above 40 MiB one after the other.
const PUT_BYTES: u32 = 32 << 20;

/// Returns how many containers are put at the same time.
pub(crate) fn puts_at_once(container_bytes: u32) -> u32 {
    (PUT_BYTES / container_bytes.max(1)).clamp(2, PUTS_AT_ONCE)
}

/// Complete containers on their way to the threads that put them. `None`: nobody takes them.
#[derive(Debug, Default)]
pub(crate) struct Puts(Mutex<Option<Sender<Arc<OpenContainer>>>>);

impl Puts {
    /// Opens the queue.
    pub(crate) fn open(&self) -> Receiver<Arc<OpenContainer>> {
        let (sender, receiver) = unbounded();
        *self.0.lock() = Some(sender);
        receiver
    }

    /// Closes the queue: its threads end.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }

    /// Hands a complete container over. If nobody takes it, the next commit puts it.
    pub(crate) fn add(&self, container: &Arc<OpenContainer>) {
        if let Some(queue) = &*self.0.lock() {
            let _ = queue.send(container.clone());
        }
    }
}

/// Puts containers until the store is closed.
pub(crate) fn put_all(shared: &Shared, full: &Receiver<Arc<OpenContainer>>) {
    let guard = PoisonOnPanic { shared };
    for container in full {
        if shared.flow.is_closing() || shared.flow.check_poison().is_err() {
            continue;
        }
        if let Err(error) = shared.put(&container) {
            tracing::warn!(container = %container.id, %error, "a full container could not be put; the next commit tries again");
        }
    }
    drop(guard);
}

/// The right to put a container. Ends when it is dropped.
struct Turn<'a> {
    shared: &'a Shared,
    container: &'a OpenContainer,
    file: Arc<dyn File>,
    /// Whether an earlier put found the name taken.
    is_taken: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.container.state.lock().is_putting = false;
        self.shared.flow.put_ended();
    }
}

/// Whose turn it is to put a container.
enum Begun<'a> {
    Mine(Turn<'a>),
    AnotherThreads,
    /// It is durable already.
    Nobodys,
}

impl Shared {
    /// Makes a complete container durable, and waits for another thread that is doing it. Errors: it was not put, as
    /// far as known. Nothing is lost, and the call may be repeated.
    pub(crate) fn put_or_wait(&self, container: &Arc<OpenContainer>) -> Result<()> {
        while !self.put(container)? {
            self.flow.wait_until(|| !container.state.lock().is_putting, || self.write_failed_frames())?;
        }
        Ok(())
    }

    /// Does the same without waiting. Returns false if another thread is doing it.
    fn put(&self, container: &Arc<OpenContainer>) -> Result<bool> {
        {
            // Whoever asks again does not hold the log.
            let state = container.state.lock();
            if state.seal == Seal::Synced || state.is_putting {
                return Ok(state.seal == Seal::Synced);
            }
        }
        // Until the container itself holds the log from there.
        let claim = self.merging.claim_nothing();
        let created = self.hold_log(&claim);
        let begun = self.begin_put(container, created);
        self.merging.release(&claim);
        let mut turn = match begun? {
            Begun::Mine(turn) => turn,
            Begun::AnotherThreads => return Ok(false),
            Begun::Nobodys => return Ok(true),
        };
        if !turn.is_taken {
            match self.profile.time(&STORAGE_WRITE, 0, || turn.file.sync()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    turn.is_taken = true;
                    container.state.lock().is_taken = true;
                }
                Err(error) => return Err(StorageError::cannot_write(error)),
            }
        }
        if turn.is_taken {
            self.adopt_taken(container)?;
        }
        container.state.lock().seal = Seal::Synced;
        Ok(true)
    }

    /// Writes what seals the file, unless it is there. The log is held from `created` on.
    fn begin_put<'a>(&'a self, container: &'a OpenContainer, created: Position) -> Result<Begun<'a>> {
        let mut state = container.state.lock();
        if state.seal == Seal::Synced {
            return Ok(Begun::Nobodys);
        }
        if state.is_putting {
            return Ok(Begun::AnotherThreads);
        }
        debug_assert!(state.is_complete());
        let file = state.file.clone().expect("a full container has its file open");
        if state.seal == Seal::None {
            // The header says where the log ends now. A batch that seals the container comes behind that. So the log
            // need not be held for a container that may stay open for long.
            state.created = Some(created);
            let written = self.profile.time(&STORAGE_WRITE, 0, || {
                file.write_at(0, &self.header(container.id, created).encode())?;
                state.write_footer(self.options.digest_bytes())
            });
            if let Err(error) = written {
                state.created = None;
                return Err(StorageError::cannot_write(error));
            }
        }
        state.is_putting = true;
        Ok(Begun::Mine(Turn { shared: self, container, file, is_taken: state.is_taken }))
    }
}
