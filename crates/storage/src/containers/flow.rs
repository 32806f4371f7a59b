//! Bounds the unwritten data of writers, and says why nothing may be written.
//!
//! A frame is in flight from the moment it is handed over until its bytes are in its file. Writers wait while too much
//! is in flight. A failed write stops all of them until it is retried. A *poison* (a failed sync) stops them until the
//! store is opened again.
//!
//! Locks: `settling` comes before the flow. The flow comes before the list of open containers and the state of one.
//! [`Flow::wait_until`] asks its question under the lock, so it misses no change. Callers hold no state of a container.

use crate::{Result, StorageError};
use onefold_ground::GroundError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// What is on the way to container files.
#[derive(Debug)]
pub(crate) struct Flow {
    state: Mutex<State>,
    changed: Condvar,
    /// One thread at a time writes footers and syncs.
    settling: Mutex<()>,
    /// The bound on the bytes in flight. One frame is always allowed.
    limit_bytes: usize,
    /// Recent stored bytes of 1024 raw bytes.
    stored_per_1024: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of frames handed over and not in their file.
    in_flight_bytes: usize,
    /// The last write that failed, until it is retried.
    failed: Option<Arc<GroundError>>,
    /// Why nothing is written any more.
    poisoned: Option<Arc<str>>,
    /// Whether the store is being closed: waiting frames are dropped.
    is_closing: bool,
}

impl State {
    fn check_poison(&self) -> Result<()> {
        match &self.poisoned {
            Some(why) => Err(StorageError::Poisoned { why: why.clone() }),
            None => Ok(()),
        }
    }
}

impl Flow {
    pub(crate) fn new(limit_bytes: usize) -> Flow {
        Flow {
            state: Mutex::default(),
            changed: Condvar::new(),
            settling: Mutex::new(()),
            limit_bytes,
            stored_per_1024: AtomicU64::new(1024),
        }
    }

    /// Waits until so many bytes may be handed over, and counts them as in flight. `retry` writes failed frames again,
    /// so that an error is a current one.
    pub(crate) fn reserve(&self, bytes: usize, retry: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            let mut state = self.sound(&retry)?;
            if state.in_flight_bytes == 0 || state.in_flight_bytes + bytes <= self.limit_bytes {
                state.in_flight_bytes += bytes;
                return Ok(());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Counts a frame as in flight, whatever the bound.
    pub(crate) fn add(&self, raw_bytes: usize) {
        self.state.lock().in_flight_bytes += raw_bytes;
    }

    /// Releases bytes that were reserved or are written.
    pub(crate) fn release(&self, raw_bytes: usize) {
        if raw_bytes > 0 {
            self.state.lock().in_flight_bytes -= raw_bytes;
            self.changed.notify_all();
        }
    }

    /// Notes that a frame was written, or failed: `released_bytes` are no longer in flight.
    pub(crate) fn settle_frame(&self, released_bytes: usize, failed: Option<GroundError>) {
        let mut state = self.state.lock();
        state.in_flight_bytes -= released_bytes;
        if let Some(error) = failed {
            state.failed = Some(Arc::new(error));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that a put of a container has ended.
    pub(crate) fn put_ended(&self) {
        // Whoever has asked whether it has waits by now.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until `is_done`, which may change with each settled frame and each put. `retry` is as in
    /// [`reserve`](Self::reserve).
    pub(crate) fn wait_until(&self, is_done: impl Fn() -> bool, retry: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            let mut state = self.sound(&retry)?;
            if is_done() {
                return Ok(());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Returns an error if nothing may be written. `retry` is as in [`reserve`](Self::reserve).
    pub(crate) fn check(&self, retry: impl Fn() -> Result<()>) -> Result<()> {
        self.sound(&retry).map(drop)
    }

    /// Locks a state without a failed write. First retries a failure, which may be from before there was space again.
    fn sound(&self, retry: &impl Fn() -> Result<()>) -> Result<MutexGuard<'_, State>> {
        loop {
            let state = self.state.lock();
            state.check_poison()?;
            if state.failed.is_none() {
                return Ok(state);
            }
            drop(state);
            retry()?;
        }
    }

    /// Takes the last failure, for the caller to retry. Returns whether there was one.
    pub(crate) fn take_failure(&self) -> Result<bool> {
        let mut state = self.state.lock();
        state.check_poison()?;
        Ok(state.failed.take().is_some())
    }

    /// Notes that the retry failed too.
    pub(crate) fn fail(&self, error: Arc<GroundError>) {
        self.state.lock().failed = Some(error);
        self.changed.notify_all();
    }

    /// Notes that the retry succeeded: writers may go on.
    pub(crate) fn retried(&self) {
        self.changed.notify_all();
    }

    /// Stops all writing until the store is opened again.
    pub(crate) fn poison(&self, why: &str) {
        tracing::error!(why, "the store writes no more containers");
        self.state.lock().poisoned.get_or_insert_with(|| why.into());
        self.changed.notify_all();
    }

    pub(crate) fn check_poison(&self) -> Result<()> {
        self.state.lock().check_poison()
    }

    /// Notes that the store is being closed: workers drop the frames that still wait.
    pub(crate) fn close(&self) {
        self.state.lock().is_closing = true;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().is_closing
    }

    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.state.lock().in_flight_bytes
    }

    /// Lets one thread at a time write footers and sync.
    pub(crate) fn settle_alone(&self) -> MutexGuard<'_, ()> {
        self.settling.lock()
    }

    /// Notes how well a frame compressed.
    pub(crate) fn note_compressed(&self, raw_bytes: u32, stored_bytes: u32) {
        if raw_bytes > 0 {
            // A moving average over about eight frames; a lost update of another worker does no harm.
            let now = u64::from(stored_bytes) * 1024 / u64::from(raw_bytes);
            let before = self.stored_per_1024.load(Relaxed);
            self.stored_per_1024.store((before * 7 + now).div_ceil(8), Relaxed);
        }
    }

    /// Returns the stored bytes expected of 1024 raw bytes, from the frames compressed lately.
    pub(crate) fn stored_per_1024(&self) -> u64 {
        self.stored_per_1024.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn failure() -> GroundError {
        GroundError::Io { operation: "write", path: "container".to_owned(), source: io::ErrorKind::StorageFull.into() }
    }

    fn never() -> Result<()> {
        panic!("nothing has failed")
    }

    #[test]
    fn a_writer_waits_for_room_and_one_frame_is_always_allowed() {
        let flow = Flow::new(100);
        flow.reserve(1000, never).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| flow.reserve(10, never));
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!((second.is_finished(), flow.in_flight_bytes()), (false, 1000));
            flow.settle_frame(1000, None);
            second.join().unwrap().unwrap();
        });
        assert_eq!(flow.in_flight_bytes(), 10);
    }

    #[test]
    fn a_failed_write_is_retried_by_the_next_caller_and_its_error_is_one_of_now() {
        let flow = Flow::new(100);
        flow.settle_frame(0, Some(failure()));
        let is_full = AtomicBool::new(true);
        let retry = || {
            assert!(flow.take_failure()?);
            if is_full.load(Relaxed) {
                let source = Arc::new(failure());
                flow.fail(source.clone());
                return Err(StorageError::CannotWrite { source });
            }
            flow.retried();
            Ok(())
        };
        assert!(matches!(flow.check(retry), Err(StorageError::CannotWrite { .. })));
        is_full.store(false, Relaxed);
        flow.check(retry).unwrap();
        flow.check(never).unwrap();
    }

    #[test]
    fn a_poison_is_never_lifted() {
        let flow = Flow::new(100);
        flow.poison("a sync failed");
        flow.poison("another one did");
        for checked in [flow.check(never), flow.reserve(10, never), flow.check_poison(), flow.take_failure().map(drop)] {
            assert!(matches!(checked, Err(StorageError::Poisoned { why }) if &*why == "a sync failed"));
        }
    }

    #[test]
    fn a_poison_ends_waiting() {
        let flow = Flow::new(100);
        flow.add(100);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| flow.reserve(10, never));
            let commit = scope.spawn(|| flow.wait_until(|| false, never));
            std::thread::sleep(Duration::from_millis(20));
            flow.poison("a sync failed");
            assert!(writer.join().unwrap().is_err() && commit.join().unwrap().is_err());
        });
    }
}
