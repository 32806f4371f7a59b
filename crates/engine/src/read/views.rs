//! The lock on the persisted views (file `views`): it lets a process read the store as of a moment while another one
//! writes (`docs/decisions/0035-readers-beside-a-writer.md`).
//!
//! A reader shares it from before it looks at the first file until it has found what it reads. A writer takes it alone
//! around everything that changes persisted views in place or drops a part of the log: opening, sweeps, persisting,
//! trimming, closing. Appending to the log and writing containers need no lock. A reader takes the log up to where it
//! ended when the reader came, and finds containers however they move.

use crate::{Engine, Result};
use onefold_ground::{Ground, Holder, LockError, LockGuard};
use std::time::{Duration, Instant};

/// The lock file.
pub(crate) const VIEWS: &str = "views";
/// First pause before retrying a taken lock. It doubles each time, up to [`LOOK_AT_LEAST_EVERY`]. A reader that says
/// what it reads shares the lock for milliseconds. A reader that only lists the store, or a sweep, may hold it for
/// seconds.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(20);
/// How long an opening waits. After that, the lock's holder has the store in use, and the caller decides whether to
/// keep waiting.
pub(crate) const OPENING_LIMIT: Duration = Duration::from_secs(30);
/// A longer wait than this is reported.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// Waits for the lock while `go_on` returns true. When it returns false, the error is that the lock is held.
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
                    tracing::warn!(%error, "waiting for another process that reads the indexes of the store");
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

/// Waits for the lock, at most for `limit`.
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
    /// Keeps readers of other processes from the persisted views until the guard is dropped. Waits for those that look
    /// at them now. During that wait somebody may have taken the store's lock. Its new holder waits for this lock
    /// before it reads anything, so one check is enough.
    pub(crate) fn change_views(&self) -> Result<LockGuard> {
        let views = lock_views(&*self.ground, true, &self.holder, &|| true)?;
        self.check_lock()?;
        Ok(views)
    }
}
