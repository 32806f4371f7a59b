//! The threads on which disk servers work. This crate must never know disks or networks.
//!
//! Tokio's blocking pool wakes a sleeping thread for every job. Sixteen 4 KiB requests that arrive together would wake
//! sixteen threads for a few microseconds of work each. Here at most one thread is being woken at a time, and it wakes
//! the next one if it finds more than one job. So a few threads that stay awake do short jobs, and long jobs get as
//! many threads as they need.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads up to a limit, each started when first needed. They end when the pool is dropped and all jobs are
/// done.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    limit: usize,
    name: &'static str,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// A thread was told to look for jobs and has not looked yet. Always true while there are jobs and idle threads.
    waking: bool,
    closed: bool,
}

impl Pool {
    /// Creates a pool of up to `limit` threads with this name.
    pub fn new(name: &'static str, limit: usize) -> Pool {
        Pool { shared: Arc::new(Shared { state: Mutex::default(), wake: Condvar::new(), limit, name }) }
    }

    /// Queues a job for another thread. If no thread can be started, runs it here.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        state.jobs.push_back(Box::new(job));
        self.shared.wake_one(&mut state);
        // No thread could be started. Running the job here is slow but better than never.
        let alone = if state.threads == 0 { state.jobs.pop_front() } else { None };
        drop(state);
        if let Some(job) = alone {
            job();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs run without the lock, so nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_one(self: &Arc<Self>, state: &mut State) {
        if state.waking {
            return;
        }
        if state.idle > 0 {
            state.waking = true;
            self.wake.notify_one();
        } else if state.threads < self.limit {
            let shared = Arc::clone(self);
            match std::thread::Builder::new().name(self.name.into()).spawn(move || shared.work()) {
                Ok(_) => {
                    state.threads += 1;
                    state.waking = true;
                }
                Err(error) => tracing::warn!("cannot start a thread for requests ({}): {error}", self.name),
            }
        }
    }

    fn work(self: Arc<Self>) {
        let mut state = self.lock();
        state.waking = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                if !state.jobs.is_empty() {
                    self.wake_one(&mut state);
                }
                drop(state);
                // A job that panics is lost, but the thread goes on.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                state.waking = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn every_job_is_done_once() {
        let pool = Arc::new(Pool::new("test", 4));
        let (done, finished) = channel();
        for thread in 0..3 {
            let (pool, done) = (Arc::clone(&pool), done.clone());
            std::thread::spawn(move || {
                for job in 0..2000 {
                    let done = done.clone();
                    pool.run(move || done.send((thread, job)).unwrap());
                }
            });
        }
        let mut seen: Vec<_> = (0..6000).map(|_| finished.recv_timeout(LONG).unwrap()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 6000);
    }

    #[test]
    fn jobs_that_wait_for_each_other_all_get_threads() {
        let pool = Pool::new("test", 8);
        let barrier = Arc::new(Barrier::new(8));
        let (done, finished) = channel();
        for round in 0..50 {
            for _ in 0..8 {
                let (barrier, done) = (Arc::clone(&barrier), done.clone());
                pool.run(move || {
                    barrier.wait();
                    done.send(round).unwrap();
                });
            }
            (0..8).for_each(|_| assert_eq!(finished.recv_timeout(LONG), Ok(round)));
        }
    }

    #[test]
    fn no_more_threads_than_the_limit_and_panics_cost_none() {
        let pool = Pool::new("test", 3);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (done, finished) = channel();
        for job in 0..60 {
            let (running, most, done) = (Arc::clone(&running), Arc::clone(&most), done.clone());
            pool.run(move || {
                most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                running.fetch_sub(1, SeqCst);
                done.send(()).unwrap();
                assert!(job % 7 != 0, "some jobs panic");
            });
        }
        (0..60).for_each(|_| finished.recv_timeout(LONG).unwrap());
        assert_eq!(most.load(SeqCst), 3);
    }

    #[test]
    fn jobs_given_before_the_end_are_done() {
        let (done, finished) = channel();
        let pool = Pool::new("test", 1);
        for job in 0..100 {
            let done = done.clone();
            pool.run(move || done.send(job).unwrap());
        }
        drop(pool);
        (0..100).for_each(|job| assert_eq!(finished.recv_timeout(LONG), Ok(job)));
    }
}
