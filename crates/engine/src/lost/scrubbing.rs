//! State that scrubs of one opening share, and the moments that a scrub may rely on.

use crate::{Engine, Result};
use onefold_storage::ContainerSet;
use parking_lot::Mutex;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a waiter checks whether to continue.
const INTERVAL: Duration = Duration::from_millis(100);

/// Files that scrubs go through, as of one moment. The holder of the turn continues with the same list: a new list
/// would be older or newer than what another scrub has noted.
#[derive(Debug)]
pub struct ScrubListing {
    /// Which files: a number that the scrub chooses.
    pub phase: u8,
    /// The files.
    pub ids: ContainerSet,
    /// Everything that existed at this moment, by the clock of the scrub, is in the list. `None`: nothing can be said
    /// of that.
    pub time_ns: Option<i64>,
    /// When the list was made.
    pub made: Instant,
}

/// What scrubs share.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    /// Held by a scrub while it reads on and notes its progress.
    turn: Mutex<Option<ScrubListing>>,
    /// Number of scrubs that somebody waits for.
    waited_for: AtomicU64,
}

impl Engine {
    /// Returns a guard for a scrub that somebody waits for. A background scrub [gives way](Self::is_scrub_waited_for).
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

    /// Returns whether somebody waits for a scrub.
    pub fn is_scrub_waited_for(&self) -> bool {
        self.scrubs.waited_for.load(Ordering::Relaxed) > 0
    }

    /// Returns the guard for one step of a scrub: with it, several scrubs of a store share the work of one. `None`:
    /// another scrub held it for a tenth of a second.
    pub fn scrub_turn(&self) -> Option<impl DerefMut<Target = Option<ScrubListing>> + '_> {
        self.scrubs.turn.try_lock_for(INTERVAL)
    }

    /// Returns T: every write before T is visible in listings of files and in the known content of containers. So a
    /// scrub sees everything written before T. T is the result of `clock` at that moment. `None`: `go_on` said no, or
    /// the disk is full, so that nothing can be made durable.
    pub fn settled_moment(&self, clock: &dyn Fn() -> i64, go_on: &dyn Fn() -> bool) -> Result<Option<i64>> {
        let moment = loop {
            if !go_on() {
                return Ok(None);
            }
            // No merge is under way whose file the log does not know.
            if let Some(_no_merge) = self.reclaiming.alone_within(INTERVAL) {
                break match &self.containers {
                    Some(containers) => containers.between_placements(clock),
                    None => clock(),
                };
            }
        };
        // Frames written before go into the log, if some are not in it. No commit is under way while they are counted.
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
