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
/// How often a taken lock is tried again. Those who share it hold it for milliseconds, mostly.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// A wait that is longer than this is told.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// Waits for the lock as long as `go_on`; `None`: it said no.
pub(crate) fn lock_views(
    ground: &dyn Ground,
    exclusive: bool,
    holder: &Holder,
    go_on: &dyn Fn() -> bool,
) -> std::result::Result<Option<LockGuard>, LockError> {
    let began = Instant::now();
    let mut is_told = false;
    loop {
        match ground.lock(VIEWS, exclusive, holder) {
            Err(error @ LockError::Held { .. }) => {
                if !is_told && began.elapsed() > TELL_AFTER {
                    tracing::warn!(%error, "waiting for another process that looks at the indexes of the store");
                    is_told = true;
                }
                if !go_on() {
                    return Ok(None);
                }
            }
            taken => return taken.map(Some),
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

impl Engine {
    /// Keeps readers of other processes from the persisted views until the guard is dropped; those that look at them are waited for.
    pub(crate) fn change_views(&self) -> Result<Option<LockGuard>> {
        Ok(lock_views(&*self.ground, true, &self.holder, &|| true)?)
    }
}
