//! The steps of copies that read or write a unit, and who waits for the end of those that were admitted before.
//!
//! A step holds the lock of the current epoch. Who waits begins the next epoch, so that steps which come later are of no concern to him: copies that go on keep nobody
//! waiting, however many there are.

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

/// How often one who waits looks whether that is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// Steps under way.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Shared by steps of even and of odd epochs.
    locks: [RwLock<()>; 2],
    epoch: AtomicUsize,
    /// One waits at a time: there are never steps of more than two epochs.
    waiting: Mutex<()>,
}

impl Steps {
    /// A step begins; it ends with the guard. Whoever waits holds nothing that a step waits for.
    pub(super) fn share(&self) -> RwLockReadGuard<'_, ()> {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            // A copy within a unit has it twice.
            let guard = self.locks[epoch % 2].read_recursive();
            // Either this sees the epoch that one who waits has begun, or he sees the guard.
            fence(Ordering::SeqCst);
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return guard;
            }
        }
    }

    /// Returns when the steps that began before are over, or when `is_over`.
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
        // One who has given up may have left steps of the epoch before; none begins there.
        if until_free(epoch + 1) {
            self.epoch.store(epoch + 1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            until_free(epoch);
        }
    }

    /// Whether a step is under way.
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
