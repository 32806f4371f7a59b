//! Keeps what files need on their way to their place:
//! * containers that no other merge may take,
//! * new files that the log does not know yet, and
//! * the part of the log that must stay until files are as it says.
//!
//! Locks: holding files in place ([`Merging::hold_files`]) comes first, then the lock of this state. Under the latter
//! these may be locked: the list of open containers, the state of one of them, forwards, and caches. So victims are
//! looked at, readers are switched, and the log is trimmed, each at one moment.

use crate::{ContainerId, Result, StorageError};
use onefold_oplog::Position;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashSet};

/// The holds of merges, and of everybody else who creates a container file.
#[derive(Debug, Default)]
pub(crate) struct Merging {
    held: Mutex<Held>,
    /// One thread at a time replaces files of merged containers, or puts files of repairs and parity in their place.
    replacing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    /// Old and new containers of merges that are under way, or whose files are not replaced yet.
    claimed: HashSet<ContainerId>,
    /// New containers that the log does not know yet.
    unlogged: HashSet<ContainerId>,
    /// By ticket: from where on the log is needed.
    log: BTreeMap<u64, Position>,
    next_ticket: u64,
    /// How far the log may have been trimmed.
    trimmed: Position,
    /// Merges in the log whose files are not replaced yet.
    pending: Vec<Replacement>,
    /// Merges whose record failed to be written, and where the log ended then: the log may have the record.
    doubtful: Vec<(Claim, Position)>,
}

/// The hold of a merge, or of another creator of a file. It lasts until its files are as the log says, or until it is
/// given up.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    ticket: u64,
    containers: Vec<ContainerId>,
    /// The new container, and whether it has a file that the log does not know yet.
    target: Option<ContainerId>,
    pub(crate) has_file: bool,
}

impl Claim {
    /// Returns the new container.
    pub(crate) fn target(&self) -> Option<ContainerId> {
        self.target
    }

    /// Returns the new container if it has a file that the log does not know yet.
    pub(crate) fn unlogged_file(&self) -> Option<ContainerId> {
        self.target.filter(|_| self.has_file)
    }
}

/// Files that a merge replaces.
#[derive(Clone, Debug)]
pub(crate) struct Replacement {
    pub(crate) claim: Claim,
    pub(crate) target: Option<ContainerId>,
    pub(crate) forwarded: Vec<ContainerId>,
    pub(crate) removed: Vec<ContainerId>,
}

impl Replacement {
    /// Returns all containers whose files go.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &ContainerId> {
        self.forwarded.iter().chain(&self.removed)
    }
}

impl Held {
    fn new_claim(&mut self, containers: Vec<ContainerId>) -> Claim {
        self.claimed.extend(&containers);
        self.next_ticket += 1;
        Claim { ticket: self.next_ticket, containers, target: None, has_file: false }
    }

    fn release(&mut self, claim: &Claim) {
        for container in &claim.containers {
            self.claimed.remove(container);
            self.unlogged.remove(container);
        }
        self.log.remove(&claim.ticket);
    }

    fn oldest_log(&self) -> Option<Position> {
        self.log.values().min().copied()
    }
}

impl Merging {
    /// Keeps container and parity files in place while the guard lives: none is replaced, removed or renamed into its
    /// place.
    pub(crate) fn hold_files(&self) -> MutexGuard<'_, ()> {
        self.replacing.lock()
    }

    /// Takes containers for a merge. Asks `why_not` about each; meanwhile nobody else takes one.
    pub(crate) fn claim(&self, victims: &[ContainerId], why_not: impl Fn(ContainerId) -> Result<Option<&'static str>>) -> Result<Claim> {
        let refused = |victim: &ContainerId, why| StorageError::Merge { why: format!("{victim} {why}") };
        let mut held = self.held.lock();
        let mut different = HashSet::new();
        for victim in victims {
            if !different.insert(*victim) {
                return Err(refused(victim, "is named twice"));
            }
            if held.claimed.contains(victim) {
                return Err(refused(victim, "is already being merged"));
            }
            if let Some(why) = why_not(*victim)? {
                return Err(refused(victim, why));
            }
        }
        Ok(held.new_claim(victims.to_vec()))
    }

    /// Makes a claim that takes no container and serves to hold the log.
    pub(crate) fn claim_nothing(&self) -> Claim {
        self.held.lock().new_claim(Vec::new())
    }

    /// Adds the new container to the claim.
    pub(crate) fn claim_target(&self, claim: &mut Claim, target: ContainerId) {
        claim.containers.push(target);
        claim.target = Some(target);
        let mut held = self.held.lock();
        held.claimed.insert(target);
        held.unlogged.insert(target);
    }

    /// Returns a position at or before the end of the log, for the header of a new file. The log is not trimmed past it
    /// until the claim is released.
    pub(crate) fn hold_log(&self, claim: &Claim, log_end: impl FnOnce() -> Position) -> Position {
        let mut held = self.held.lock();
        let created = log_end().max(held.trimmed);
        held.log.insert(claim.ticket, created);
        created
    }

    /// Call when the log has the merge, in the batch that begins at `start`. From now on the log says what the new file
    /// is.
    pub(crate) fn logged(&self, claim: &mut Claim, start: Position) {
        claim.has_file = false;
        let mut held = self.held.lock();
        held.log.insert(claim.ticket, start);
        claim.target.iter().for_each(|target| {
            held.unlogged.remove(target);
        });
    }

    /// Takes over a merge that the log has from before this opening. Calls `switch` before anybody else can ask for the
    /// merge. With `log_start`, its files will be replaced, and the log is needed from there. With `None`, nothing may
    /// be written.
    pub(crate) fn resume(
        &self,
        log_start: Option<Position>,
        target: Option<ContainerId>,
        [forwarded, removed]: [Vec<ContainerId>; 2],
        switch: impl FnOnce(&Replacement),
    ) {
        let mut held = self.held.lock();
        let claim = held.new_claim(target.iter().chain(&forwarded).chain(&removed).copied().collect());
        let replacement = Replacement { claim, target, forwarded, removed };
        switch(&replacement);
        if let Some(log_start) = log_start {
            held.log.insert(replacement.claim.ticket, log_start);
            held.pending.push(replacement);
        }
    }

    /// Returns whether a merge has containers of a partition: one that is under way, in doubt, or whose files are not
    /// replaced yet.
    pub(crate) fn has_some_of(&self, partition: u16) -> bool {
        self.held.lock().claimed.iter().any(|container| container.partition() == partition)
    }

    /// Adds a merge whose files wait to be replaced.
    pub(crate) fn add_pending(&self, replacement: Replacement) {
        self.held.lock().pending.push(replacement);
    }

    /// Returns the merges whose files wait to be replaced.
    pub(crate) fn pending(&self) -> Vec<Replacement> {
        self.held.lock().pending.clone()
    }

    /// Notes a merge whose record failed to be written while the log ended at `end`.
    pub(crate) fn add_doubtful(&self, claim: Claim, end: Position) {
        self.held.lock().doubtful.push((claim, end));
    }

    /// Returns whether some merges are in doubt while the log ends at `end`: it has taken no batch since.
    pub(crate) fn has_doubtful(&self, end: Position) -> bool {
        self.held.lock().doubtful.iter().any(|(_, at)| *at >= end)
    }

    /// Removes and returns the merges that are no longer in doubt: the log, which ends at `end`, has taken another
    /// batch.
    pub(crate) fn settled(&self, end: Position) -> Vec<Claim> {
        self.held.lock().doubtful.extract_if(.., |(_, at)| *at < end).map(|(claim, _)| claim).collect()
    }

    /// Returns whether files wait to be replaced, or to be given up, while the log ends at `end`.
    pub(crate) fn has_pending(&self, end: Position) -> bool {
        let held = self.held.lock();
        !held.pending.is_empty() || held.doubtful.iter().any(|(_, at)| *at < end)
    }

    /// Releases what a merge held. Call when its files are as the log says.
    pub(crate) fn replaced(&self, replacement: &Replacement) {
        let mut held = self.held.lock();
        held.pending.retain(|pending| pending.claim.ticket != replacement.claim.ticket);
        held.release(&replacement.claim);
    }

    /// Releases what a claim holds.
    pub(crate) fn release(&self, claim: &Claim) {
        self.held.lock().release(claim);
    }

    /// Returns from where on the log is needed here; `None`: none of it is. Every merge holds the log from before its
    /// record until its files are replaced. So all merges with records before this position have their files replaced.
    pub(crate) fn oldest_log(&self) -> Option<Position> {
        self.held.lock().oldest_log()
    }

    /// Returns up to where the log may be trimmed, at most to `target`, and notes that it may be. `others` says from
    /// where on others need it.
    pub(crate) fn trim(&self, target: Position, others: impl FnOnce() -> Option<Position>) -> Position {
        let mut held = self.held.lock();
        let point = held.oldest_log().into_iter().chain(others()).fold(target, Position::min);
        held.trimmed = held.trimmed.max(point);
        point
    }

    /// Returns whether a file belongs to a merge that the log does not know yet.
    pub(crate) fn is_unlogged(&self, container: ContainerId) -> bool {
        self.held.lock().unlogged.contains(&container)
    }
}
