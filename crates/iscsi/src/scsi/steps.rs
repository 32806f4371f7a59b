//! The steps of copies that read or write a unit, and waiting for the end of earlier steps.
//!
//! A step holds the lock of the current epoch. A waiter begins the next epoch, so it need not wait for later steps. So
//! it is not delayed by copies that go on, however many there are.

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

/// How often a waiter checks whether waiting is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// Steps under way.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Shared by the steps of even and odd epochs.
    locks: [RwLock<()>; 2],
    epoch: AtomicUsize,
    /// Only one waits at a time, so there are never steps of more than two epochs.
    waiting: Mutex<()>,
}

impl Steps {
    /// Begins a step, which ends with the guard. A waiter holds nothing that a step waits for.
    pub(super) fn share(&self) -> RwLockReadGuard<'_, ()> {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            // A copy within a unit takes it twice.
            let guard = self.locks[epoch % 2].read_recursive();
            // Either this step sees the waiter's new epoch, or the waiter sees the guard.
            fence(Ordering::SeqCst);
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return guard;
            }
        }
    }

    /// Returns when all earlier steps are over, or when `is_over`.
    pub(super) fn wait(&self, is_over: &dyn Fn() -> bool) {
        let until_free = |epoch: usize| loop {
            if self.locks[epoch % 2].try_write_for(LOOK).is_some() {
                return true;
            }
            if is_over() {
                return false;
            }
        };
        let _waiting = loop {
            match self.waiting.try_lock_for(LOOK) {
                Some(waiting) => break waiting,
                None if is_over() => return,
                None => {}
            }
        };
        let epoch = self.epoch.load(Ordering::SeqCst);
        // A waiter that gave up may have left steps of the previous epoch. No new ones begin there.
        if until_free(epoch + 1) {
            self.epoch.store(epoch + 1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            until_free(epoch);
        }
    }

    /// Returns whether any step is under way.
    pub(super) fn is_any(&self) -> bool {
        self.locks.iter().any(|lock| lock.try_write().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn who_waits_waits_for_the_steps_before_and_for_no_later_ones() {
        let steps = Steps::default();
        let before = [steps.share(), steps.share()];
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| steps.wait(&|| false));
            while steps.epoch.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let _later = [steps.share(), steps.share()];
            assert!(!waiting.is_finished());
            drop(before);
            waiting.join().unwrap();
            assert!(steps.is_any());
        });
        assert!(!steps.is_any());
        steps.wait(&|| false);
    }

    #[test]
    fn steps_that_somebody_has_given_up_to_wait_for_are_waited_for_by_the_next() {
        let steps = Steps::default();
        let first = steps.share();
        steps.wait(&|| true);
        let second = steps.share();
        let (is_over, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                steps.wait(&|| is_over.load(Ordering::SeqCst));
                has_ended.store(true, Ordering::SeqCst);
            });
            drop(second);
            assert!(!has_ended.load(Ordering::SeqCst), "the first is not over");
            drop(first);
        });
        assert!(has_ended.load(Ordering::SeqCst) && !steps.is_any());
    }
}
