//! Fetches in the background, and bounds on fetches and on what they leave in memory.

use crate::ground::object::Object;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Whole pieces, or objects, that are on their way at a time. Each has a piece in memory.
const FETCHES: usize = 4;
/// Threads for hints. Those who need something at once find a permit.
const THREADS: usize = FETCHES - 1;
/// Fetches that wait for a thread. More are ignored.
const QUEUED: usize = 64;
/// Hints that do: each is only a name.
const HINTS: usize = 1024;

/// Bounds how many pieces are on their way.
#[derive(Debug, Default)]
pub(super) struct Permits {
    taken: Mutex<usize>,
    returned: Condvar,
}

/// The right to fetch a piece.
#[derive(Debug)]
pub(super) struct Permit<'a>(&'a Permits);

impl Permits {
    /// Waits for a permit. Its holder must not wait for another fetch.
    pub(super) fn take(&self) -> Permit<'_> {
        let mut taken = self.taken.lock();
        while *taken == FETCHES {
            self.returned.wait(&mut taken);
        }
        *taken += 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() -= 1;
        self.0.returned.notify_one();
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that work on hints. They end when there is nothing to do.
#[derive(Default)]
pub(super) struct Background {
    state: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    threads: usize,
    queue: VecDeque<Job>,
}

impl std::fmt::Debug for Background {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let jobs = self.state.lock();
        formatter.debug_struct("Background").field("threads", &jobs.threads).field("queued", &jobs.queue.len()).finish()
    }
}

impl Background {
    /// Does a job soon, or drops it.
    pub(super) fn start(self: &Arc<Background>, job: Job) {
        self.start_if(QUEUED, job);
    }

    /// Does the same for a hint.
    pub(super) fn start_hint(self: &Arc<Background>, job: Job) {
        self.start_if(HINTS, job);
    }

    fn start_if(self: &Arc<Background>, most_queued: usize, job: Job) {
        let mut jobs = self.state.lock();
        if jobs.threads == THREADS && jobs.queue.len() >= most_queued {
            drop(jobs);
            drop(job);
            return;
        }
        jobs.queue.push_back(job);
        if jobs.threads == THREADS {
            return;
        }
        jobs.threads += 1;
        drop(jobs);
        let background = self.clone();
        if std::thread::Builder::new().name("fetch".to_owned()).spawn(move || background.work()).is_err() {
            let mut jobs = self.state.lock();
            jobs.threads -= 1;
            let dropped = if jobs.threads == 0 { std::mem::take(&mut jobs.queue) } else { VecDeque::new() };
            drop(jobs);
            drop(dropped);
        }
    }

    /// Drops what nobody has begun: the service does not answer.
    pub(super) fn forget_queued(&self) {
        let dropped = std::mem::take(&mut self.state.lock().queue);
        drop(dropped);
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().threads == 0
    }

    fn work(&self) {
        let _ended = Ended(self);
        loop {
            let mut jobs = self.state.lock();
            let Some(job) = jobs.queue.pop_front() else {
                jobs.threads -= 1;
                return;
            };
            drop(jobs);
            job();
        }
    }
}

/// Takes a thread out that panicked, and drops the queue: so nobody waits for it.
struct Ended<'a>(&'a Background);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().threads -= 1;
            self.0.forget_queued();
        }
    }
}

/// What a part counts on top of its bytes. So it also bounds how many there are.
const PART_BYTES: usize = 4 << 10;

/// Bounds the bytes of objects in memory. Those that came first go first, but a piece that was read since then is
/// spared once.
#[derive(Debug)]
pub(super) struct Held {
    limit_bytes: usize,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    queue: VecDeque<Part>,
    bytes: usize,
}

/// Bytes of an object, which has them under `start`.
#[derive(Debug)]
struct Part {
    object: Weak<Object>,
    start: u64,
    bytes: usize,
}

impl Held {
    pub(super) fn new(limit_bytes: usize) -> Held {
        Held { limit_bytes, parts: Mutex::default() }
    }

    /// Notes what an object has in memory, and lets others drop theirs. Call without the lock of any object.
    pub(super) fn add(&self, object: &Arc<Object>, start: u64, bytes: usize) {
        let bytes = bytes + PART_BYTES;
        let mut parts = self.parts.lock();
        parts.queue.push_back(Part { object: Arc::downgrade(object), start, bytes });
        parts.bytes += bytes;
        if parts.bytes > self.limit_bytes {
            parts.retain(|part| part.object.strong_count() > 0);
        }
        let mut may_spare = parts.queue.len();
        while parts.bytes > self.limit_bytes {
            let Some(part) = parts.queue.pop_front() else { break };
            parts.bytes -= part.bytes;
            let Some(object) = part.object.upgrade() else { continue };
            drop(parts);
            let is_dropped = object.drop_part(part.start, may_spare > 0);
            may_spare = may_spare.saturating_sub(1);
            parts = self.parts.lock();
            if !is_dropped {
                parts.bytes += part.bytes;
                parts.queue.push_back(part);
            }
        }
    }

    /// Notes that an object has dropped everything from `start` up to `end`.
    pub(super) fn forget(&self, object: &Arc<Object>, start: u64, end: u64) {
        let is_it = |part: &Part| std::ptr::eq(part.object.as_ptr(), Arc::as_ptr(object)) && (start..end).contains(&part.start);
        self.parts.lock().retain(|part| !is_it(part));
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.parts.lock().bytes
    }
}

impl Parts {
    fn retain(&mut self, keep: impl Fn(&Part) -> bool) {
        self.queue.retain(|part| keep(part));
        self.bytes = self.queue.iter().map(|part| part.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_panic_keep_nobody_waiting() {
        let background = Arc::new(Background::default());
        for _ in 0..2 * THREADS {
            background.start(Box::new(|| std::panic::resume_unwind(Box::new("a job fails"))));
        }
        let (sender, done) = std::sync::mpsc::channel();
        while done.try_recv().is_err() {
            let sender = sender.clone();
            background.start_hint(Box::new(move || {
                let _ = sender.send(());
            }));
            std::thread::yield_now();
        }
        while !background.is_idle() {}
    }
}
