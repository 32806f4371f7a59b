//! What scrubs of one opening of a store share, and the moments that they may claim something of.

use crate::{Engine, Result};
use onefold_storage::ContainerId;
use parking_lot::Mutex;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Whoever waits for something of others asks so often whether to go on.
const INTERVAL: Duration = Duration::from_millis(100);

/// Files that scrubs go through, as of one moment. Whoever has the turn goes on with the same list: one of its own would be older or newer than what another one
/// has written down.
#[derive(Debug)]
pub struct ScrubListing {
    /// Which files: a number of the scrub's own.
    pub phase: u8,
    /// Ascending.
    pub ids: Vec<ContainerId>,
    /// When, by the clock of the scrub: all that was there then is in the list. `None`: nothing can be said of that.
    pub time_ns: Option<i64>,
    /// When the list was made.
    pub made: Instant,
}

/// What scrubs share.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    /// Held by a scrub while it reads on and writes down how far it is.
    turn: Mutex<Option<ScrubListing>>,
    /// Scrubs that somebody waits for.
    waited_for: AtomicU64,
}

impl Engine {
    /// To be held by a scrub that somebody waits for; one in the background [gives way](Self::is_scrub_waited_for).
    pub fn waited_for_scrub(&self) -> impl Drop + '_ {
        struct Waiting<'a>(&'a AtomicU64);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.scrubs.waited_for.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.scrubs.waited_for)
    }

    /// Whether somebody waits for a scrub.
    pub fn is_scrub_waited_for(&self) -> bool {
        self.scrubs.waited_for.load(Ordering::Relaxed) > 0
    }

    /// To be held while a step of a scrub is made: several scrubs of a store then share the work of one. `None`: another one has it, and still does
    /// after a tenth of a second.
    pub fn scrub_turn(&self) -> Option<impl DerefMut<Target = Option<ScrubListing>> + '_> {
        self.scrubs.turn.try_lock_for(INTERVAL)
    }

    /// What `clock` says at a moment of which this holds on return: what was written before it is what lists of files show from now on, and what containers are known to
    /// have. So nothing that a scrub does not see was written before. `None`: `go_on` said no, or the disk is full, so that nothing can be made durable.
    pub fn settled_moment(&self, clock: &dyn Fn() -> i64, go_on: &dyn Fn() -> bool) -> Result<Option<i64>> {
        let moment = loop {
            if !go_on() {
                return Ok(None);
            }
            // No merge is under way whose file the log does not know.
            if let Some(_no_merge) = self.reclaiming.alone_within(INTERVAL) {
                break self.storage.between_placements(clock);
            }
        };
        // Frames that were written before go into the log, if there are any that are not in it. No commit is under way when they are counted.
        let is_unlogged = {
            let _no_commit = self.commits.alone();
            self.storage.unsynced_bytes() > 0
        };
        match if is_unlogged { self.flush() } else { Ok(()) } {
            Err(error) if error.is_full() => Ok(None),
            flushed => flushed.map(|()| Some(moment)),
        }
    }
}
