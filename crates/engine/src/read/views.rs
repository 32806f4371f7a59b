//! The lock on the persisted views (file `views`): what lets a process read the store as of a moment while another one writes
//! (`docs/decisions/0035-readers-beside-a-writer.md`).
//!
//! A reader shares it from before it looks at the first file until it has found what it reads. A writer takes it alone around whatever changes
//! persisted views in place or gives up a part of the log: opening, sweeps, persisting, trimming, closing. Appending to the log and writing
//! containers need no lock: a reader takes the log up to where it ended when the reader came, and finds containers however they move.

use crate::{Engine, Result};
use onefold_ground::{Ground, Holder, LockError, LockGuard};
use std::time::{Duration, Instant};

/// The lock file.
pub(crate) const VIEWS: &str = "views";
/// A taken lock is tried again after this, and then after twice as long each time, up to [`LOOK_AT_LEAST_EVERY`]. A reader that says what it reads shares
/// it for milliseconds; one that only lists what is in the store, and a sweep, may have it for seconds.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(20);
/// An opening waits so long. Whoever has the lock then has the store in use, and the caller decides whether to go on waiting.
pub(crate) const OPENING_LIMIT: Duration = Duration::from_secs(30);
/// A wait that is longer than this is told.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// Waits for the lock as long as `go_on`; when it says no, the error is that the lock is held.
pub(crate) fn lock_views(
    ground: &dyn Ground,
    exclusive: bool,
    holder: &Holder,
    go_on: &dyn Fn() -> bool,
) -> std::result::Result<LockGuard, LockError> {
    let began = Instant::now();
    let (mut is_told, mut pause) = (false, LOOK_AGAIN_AFTER);
    loop {
        match ground.lock(VIEWS, exclusive, holder) {
            Err(error @ LockError::Held { .. }) => {
                if !is_told && began.elapsed() > TELL_AFTER {
                    tracing::warn!(%error, "waiting for another process that looks at the indexes of the store");
                    is_told = true;
                }
                if !go_on() {
                    return Err(error);
                }
            }
            taken => return taken,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK_AT_LEAST_EVERY);
    }
}

/// Waits for the lock at most so long.
pub(crate) fn lock_views_within(
    ground: &dyn Ground,
    exclusive: bool,
    holder: &Holder,
    limit: Duration,
) -> std::result::Result<LockGuard, LockError> {
    let began = Instant::now();
    lock_views(ground, exclusive, holder, &|| began.elapsed() < limit)
}

impl Engine {
    /// Keeps readers of other processes from the persisted views until the guard is dropped; those that look at them are waited for. During that wait
    /// somebody may have taken the store's lock; whoever has it waits for this lock before reading anything, so one look is enough.
    pub(crate) fn change_views(&self) -> Result<LockGuard> {
        let views = lock_views(&*self.ground, true, &self.holder, &|| true)?;
        self.check_lock()?;
        Ok(views)
    }
}
