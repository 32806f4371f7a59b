//! Closing the log of a node that is gone, for ever (unsafe orders 1, 2, 7 and 8 of `docs/cluster.md`).
//!
//! Others take over what the node had. They read its log long after, and build on it. So it must be the same for all of
//! them: no batch comes to it, and nothing that it names is deleted.
//! 1. *No batch.* The last one is a fence with the role `Closed`. The node finds its next number taken
//!    ([`LogError::Fenced`]). Later openings are refused ([`LogError::Closed`]): a node that comes back gets a new
//!    number, and a log of its own.
//! 2. *No deletion.* A trim and a merge delete what the manifest before them named, and only behind a manifest of their
//!    own. The next number of manifests is taken by one that says the same as the one before it, with the epoch of the
//!    last batch. So the node, which may be in the middle of a merge, finds it taken by a later epoch, and stops. What
//!    it deletes until then, no manifest names any more.
//!
//! Both steps may be done by several, and done again: whoever comes second finds what the first one has put.
//!
//! When nobody builds on it any longer, the log is [emptied](ObjectLog::empty). Its fences and manifests stay for ever,
//! as those of every log do: if the numbers that stop the node were free again, it could acknowledge batches that
//! nobody reads.

use super::history::Run;
use super::manifest::{self, Manifest, Runs, Useless};
use super::{FENCES, LogPlace, Meaning, ObjectLog, Role};
use crate::{LogError, LogOptions, Position, Result};
use onefold_ground::Put;
use std::sync::Arc;

impl ObjectLog {
    /// Closes the log of an owner that is gone, or finds it closed. Returns it for reading: it never changes again. The
    /// owner may be alive after all. It has acknowledged nothing behind the end, and never will.
    pub fn close(place: LogPlace, options: LogOptions, meaning: Arc<dyn Meaning>) -> Result<ObjectLog> {
        ObjectLog::look_for_taking(LogPlace { keeps_copies: false, ..place }, options, meaning)?.closed()
    }

    /// Does the second half of it.
    pub(super) fn closed(mut self) -> Result<ObjectLog> {
        let log = &mut self;
        let nonce = log.new_nonce()?;
        for _ in 0..FENCES {
            log.go_on_reading()?;
            let manifest = log.state.get_mut().manifest;
            if log.is_outdated(&manifest)? {
                // What was read last may stand where a batch was deleted.
                *log.state.get_mut() = log.find_from_manifest(true)?;
                continue;
            }
            if log.is_closed() || log.put_fence(Role::Closed, 0, nonce, &[])? {
                log.state.get_mut().nonce = None;
                log.close_history()?;
                return Ok(self);
            }
        }
        Err(LogError::Fenced { path: log.place.bucket.describe("log") })
    }

    /// Deletes what a closed log has. It stays, and stays closed. Call it when no other log builds on it.
    pub fn empty(mut self) -> Result<()> {
        let manifest = self.state.get_mut().manifest;
        let newest = self.newest_after(manifest)?;
        if newest != manifest {
            self.adopt(newest, None);
        }
        let state = self.state.get_mut();
        let Some(closed) = state.batches.back().copied().filter(|last| last.role == Role::Closed) else {
            return Err(LogError::ReadOnly);
        };
        let before = state.batches.len().checked_sub(2).and_then(|at| state.batches.get(at)).map(|entry| entry.checksum);
        let follows = before.unwrap_or(state.manifest.follows);
        let mut batches: Vec<u64> = state.batches.iter().filter(|entry| entry.role.is_dropped()).map(|entry| entry.number).collect();
        let manifest = state.manifest;
        let Runs { runs, useless } = self.runs()?;
        let has_some = manifest.first < closed.number || runs.iter().any(|run| !run.parts.is_empty());
        if has_some && closed.start > Position(0) {
            batches.extend(useless.batches);
            let mut pieces = useless.pieces;
            pieces.extend(runs.iter().flat_map(Run::pieces));
            pieces.extend(manifest.runs);
            let runs = vec![Run { from: Position(0), to: closed.start, parts: Vec::new() }];
            let runs = Runs { runs, useless: Useless { batches, pieces } };
            let object = self.put_object(&runs.encode(&self.place.store), 1)?;
            let number = manifest.number + 1;
            let emptied = Manifest { number, first: closed.number, start: closed.start, follows, runs: Some(object), ..manifest };
            // If it is taken, somebody else has emptied the log.
            self.place.bucket.put_new(&manifest::name(number), &emptied.encode(&self.place.store))?;
            self.adopt(self.newest_after(manifest)?, None);
        }
        let (manifest, runs) = (self.state.get_mut().manifest, self.runs()?);
        self.sweep(&manifest, &runs)
    }

    /// Returns whether nobody can write to this log any more, as far as it was read.
    pub fn is_closed(&self) -> bool {
        self.state.lock().batches.back().is_some_and(|last| last.role == Role::Closed)
    }

    /// Makes the newest manifest the last one.
    fn close_history(&mut self) -> Result<()> {
        loop {
            let state = self.state.get_mut();
            let (manifest, epoch) = (state.manifest, state.epoch);
            if manifest.epoch >= epoch {
                return Ok(());
            }
            let last = Manifest { number: manifest.number + 1, epoch, ..manifest };
            let newest = match self.place.bucket.put_new(&manifest::name(last.number), &last.encode(&self.place.store))? {
                Put::Done => last,
                Put::Taken => self.newest_after(manifest)?,
            };
            self.adopt(newest, None);
        }
    }
}
