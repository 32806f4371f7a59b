//! The memory for the data of commands: one limit for all sessions, one for each, and a reserve that belongs to each
//! session alone.
//!
//! A short command takes its room from the session's reserve. If that is used up, and for longer commands, it takes
//! room from the session's own limit, and then from what all sessions share. Neither other sessions nor longer commands
//! can use the reserve, so short commands always proceed.
//!
//! A command that holds memory never waits for one that needs memory. It only waits for a disk, a thread or its
//! initiator. An initiator that makes no progress is disconnected after a while ([`Progress`]).

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per permit of memory.
const PERMIT_BYTES: u32 = 4096;
/// The reserve of a session in bytes.
pub(crate) const RESERVE_BYTES: u32 = 256 << 10;
/// Bytes per second that an initiator must send or take while it delays others.
const LEAST_RATE: u64 = 256 << 10;

/// The memory shared by all sessions.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    permits: Arc<Semaphore>,
    /// The number of waiters for it.
    waiting: Mutex<usize>,
}

impl SharedMemory {
    pub(crate) fn new(bytes: u64) -> SharedMemory {
        SharedMemory { permits: Arc::new(Semaphore::new((bytes / u64::from(PERMIT_BYTES)) as usize)), waiting: Mutex::new(0) }
    }
}

/// The memory of one session.
#[derive(Debug)]
pub(crate) struct Memory {
    own: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    shared: Arc<SharedMemory>,
    /// This session's share of the waiters for shared memory. Changed together with the total.
    waiting: AtomicUsize,
    /// The number of rooms in shared memory that the session holds.
    held: Arc<AtomicUsize>,
}

/// Room for data. Dropping it returns the room.
#[derive(Debug)]
pub(crate) struct Room {
    /// From the session's reserve or its own limit.
    _own: OwnedSemaphorePermit,
    /// With the latter, also from the shared memory.
    _shared: Option<(OwnedSemaphorePermit, Held)>,
}

/// A room in shared memory, counted.
#[derive(Debug)]
struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(count: &Arc<AtomicUsize>) -> Held {
        count.fetch_add(1, Ordering::Relaxed);
        Held(count.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A waiter for shared memory, counted.
struct Queued<'a>(&'a Memory);

impl<'a> Queued<'a> {
    fn new(memory: &'a Memory) -> Queued<'a> {
        let mut all = memory.shared.waiting.lock();
        *all += 1;
        memory.waiting.fetch_add(1, Ordering::Relaxed);
        Queued(memory)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut all = self.0.shared.waiting.lock();
        *all -= 1;
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn permits(bytes: u32) -> u32 {
    bytes.div_ceil(PERMIT_BYTES)
}

impl Memory {
    /// Returns the memory of a session with a limit of `own_bytes`. Both limits must be at least as large as the
    /// longest command.
    pub(crate) fn new(own_bytes: u32, shared: &Arc<SharedMemory>) -> Memory {
        Memory {
            own: Arc::new(Semaphore::new(permits(own_bytes) as usize)),
            reserve: Arc::new(Semaphore::new(permits(RESERVE_BYTES) as usize)),
            shared: shared.clone(),
            waiting: AtomicUsize::new(0),
            held: Arc::default(),
        }
    }

    /// Takes room if it is available at once. Never overtakes a waiter: while anyone waits for some memory, none of it
    /// is free.
    pub(crate) fn try_take(&self, bytes: u32) -> Option<Room> {
        let take = |semaphore: &Arc<Semaphore>| semaphore.clone().try_acquire_many_owned(permits(bytes)).ok();
        let reserve = if bytes <= RESERVE_BYTES { take(&self.reserve) } else { None };
        reserve.map(|own| Room { _own: own, _shared: None }).or_else(|| {
            let own = take(&self.own)?;
            Some(self.shared_room(own, take(&self.shared.permits)?))
        })
    }

    /// Waits for room of at most [`MAX_TRANSFER_BYTES`](crate::scsi::MAX_TRANSFER_BYTES). No limit is below that.
    pub(crate) async fn take(&self, bytes: u32) -> Room {
        let permits = permits(bytes);
        let take = |semaphore: &Arc<Semaphore>| semaphore.clone().acquire_many_owned(permits);
        let shared = async {
            let own = take(&self.own).await.expect("nobody closes it");
            let _queued = Queued::new(self);
            self.shared_room(own, take(&self.shared.permits).await.expect("nobody closes it"))
        };
        if bytes > RESERVE_BYTES {
            return shared.await;
        }
        tokio::select! {
            biased;
            permit = take(&self.reserve) => Room { _own: permit.expect("nobody closes it"), _shared: None },
            room = shared => room,
        }
    }

    fn shared_room(&self, own: OwnedSemaphorePermit, shared: OwnedSemaphorePermit) -> Room {
        Room { _own: own, _shared: Some((shared, Held::new(&self.held))) }
    }

    /// Returns whether other sessions wait for shared memory.
    pub(crate) fn others_wait(&self) -> bool {
        let all = self.shared.waiting.lock();
        *all > self.waiting.load(Ordering::Relaxed)
    }

    /// Returns whether the session holds memory that others could use.
    pub(crate) fn is_used(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }
}

/// Measures whether an initiator makes progress with the room it holds: whether it sends requested data, and takes data
/// it has requested.
///
/// A stalled initiator does no harm as long as there is room for others. When others wait, it must move at least
/// [`LEAST_RATE`] over each [`patience`](Progress::patience) in which some room waits for it. No room may wait longer
/// than the session's whole memory takes at that rate.
#[derive(Debug)]
pub(crate) struct Progress {
    patience: Duration,
    longest: Duration,
    /// The bytes moved at the last two checks, the older one first.
    looks: [(Instant, u64); 2],
}

impl Progress {
    pub(crate) fn new(patience: Duration, session_bytes: u32, now: Instant) -> Progress {
        let longest = patience + Duration::from_millis(u64::from(session_bytes) * 1000 / LEAST_RATE);
        Progress { patience, longest, looks: [(now, 0); 2] }
    }

    /// Returns the time between two checks.
    pub(crate) fn interval(&self) -> Duration {
        (self.patience / 2).max(Duration::from_millis(1))
    }

    /// Checks the progress. The initiator has sent and taken `moved_bytes` of data in total, and some room has been
    /// waiting for it since `waiting_since`. Returns whether it is too slow.
    pub(crate) fn is_too_slow(&mut self, now: Instant, moved_bytes: u64, waiting_since: Option<Instant>) -> bool {
        let [(then, before), last] = self.looks;
        self.looks = [last, (now, moved_bytes)];
        let span = now.saturating_duration_since(then);
        let Some(waits) = waiting_since.map(|since| now.saturating_duration_since(since)) else { return false };
        let is_slow = u128::from(moved_bytes - before) * 1000 < u128::from(LEAST_RATE) * span.as_millis();
        waits >= self.longest || (waits >= self.patience && is_slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const MIB: u32 = 1 << 20;

    /// What a future has come to, without waiting.
    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn short_commands_get_on_while_others_hold_all_that_is_shared() {
        let shared = Arc::new(SharedMemory::new(4 << 20));
        let (greedy, modest) = (Memory::new(8 * MIB, &shared), Memory::new(8 * MIB, &shared));
        let all = greedy.try_take(4 * MIB).unwrap();
        let short = modest.try_take(RESERVE_BYTES).expect("the reserve is its own");
        assert!(greedy.is_used() && !modest.is_used(), "nobody waits for a reserve");
        assert!(modest.try_take(1).is_none(), "the reserve is used and what is shared too");
        let mut long = pin!(modest.take(MIB));
        assert!(poll(long.as_mut()).is_none() && greedy.others_wait() && !modest.others_wait());
        let mut own = pin!(greedy.take(MIB));
        assert!(poll(own.as_mut()).is_none() && modest.others_wait());
        drop(short);
        assert!(modest.try_take(1).is_some());
        drop(all);
        assert!(poll(long.as_mut()).is_some() && poll(own.as_mut()).is_some());
        assert!(!greedy.others_wait() && !modest.others_wait() && !greedy.is_used());
    }

    #[test]
    fn one_session_does_not_take_more_than_its_own_bound() {
        let shared = Arc::new(SharedMemory::new(64 << 20));
        let memory = Memory::new(2 * MIB, &shared);
        let held = memory.try_take(2 * MIB).unwrap();
        assert!(memory.try_take(MIB).is_none());
        let mut waiting = pin!(memory.take(MIB));
        assert!(poll(waiting.as_mut()).is_none() && !Memory::new(MIB, &shared).others_wait(), "it waits for itself");
        drop(held);
        assert!(poll(waiting.as_mut()).is_some());
    }

    #[test]
    fn short_commands_get_on_while_longer_ones_of_the_session_wait_for_what_is_shared() {
        let shared = Arc::new(SharedMemory::new(4 << 20));
        let (greedy, modest) = (Memory::new(8 * MIB, &shared), Memory::new(2 * MIB, &shared));
        let all = greedy.try_take(4 * MIB).unwrap();
        let mut long = pin!(modest.take(2 * MIB));
        assert!(poll(long.as_mut()).is_none(), "all that the session may have waits");
        let short = modest.try_take(RESERVE_BYTES).expect("the reserve is beside that");
        let mut next = pin!(modest.take(RESERVE_BYTES));
        assert!(poll(next.as_mut()).is_none());
        drop(short);
        assert!(poll(next.as_mut()).is_some());
        drop(all);
        assert!(poll(long.as_mut()).is_some());
    }

    #[test]
    fn patience_ends_with_those_who_do_not_go_on() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut progress = Progress::new(Duration::from_secs(10), 10 * LEAST_RATE as u32, begin);
        assert_eq!(progress.interval(), Duration::from_secs(5));
        assert!(!progress.is_too_slow(at(5), 0, Some(at(0))), "not yet");
        assert!(progress.is_too_slow(at(10), 0, Some(at(0))));
        assert!(!progress.is_too_slow(at(15), 0, None), "nothing waits for it");
        assert!(!progress.is_too_slow(at(20), 0, Some(at(11))), "another command than before");
        let slow = 4 << 20;
        assert!(!progress.is_too_slow(at(25), slow, Some(at(11))), "it is slow, but goes on");
        assert!(!progress.is_too_slow(at(30), slow, Some(at(11))));
        assert!(progress.is_too_slow(at(35), slow + 1000, Some(at(21))), "a few bytes now and then are not enough");
        assert!(!progress.is_too_slow(at(40), 9 * slow, Some(at(21))));
        assert!(progress.is_too_slow(at(45), 99 * slow, Some(at(25))), "whatever else is moved, this is not");
    }
}
