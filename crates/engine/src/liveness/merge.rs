//! Merging containers with little live data (M0.20). This file decides which chunks move; `onefold_storage` moves them.
//!
//! # Why no chunk is left behind that somebody needs
//! A slot is left behind only if it is dead: its chunk was removed from the chunk index in the batch that marked it,
//! and the index does not name it. Nothing is removed meanwhile, and no other merge runs, as both hold `reclaiming`. A
//! copy that a write supersedes meanwhile ends the merge. A chunk that is needed again after it died was stored again.
//!
//! A copy that is not dead is taken along even if the index does not name it. References that name it may mean other
//! bytes with the same fingerprint (a collision that `byte-compare` detected).

use crate::liveness::dead::{self, DeadSlots};
use crate::liveness::reference::Facts;
use crate::{Change, Engine, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::{Effects, LogError};
use onefold_storage::{Address, ContainerId, Merge, MergeStatistics, Origin, Prepared, StorageError};
use std::collections::BTreeSet;

/// The slots of a container, sorted into live and dead.
struct Sorted {
    live: Vec<(Address, Fingerprint)>,
    dead: DeadSlots,
    /// Of all its slots.
    origins: BTreeSet<Origin>,
}

/// How often a merge is tried, if a chunk in it dies each time while it is copied.
const ATTEMPTS: usize = 3;

/// The result of a merge.
enum Attempt {
    Merged(MergeStatistics),
    NothingToDo,
    /// A write found a chunk damaged and stored it again while the containers were copied.
    MoreDied,
}

impl Engine {
    /// Merges container files, all of one partition, into one. Durable on return. The needed chunks lie in the new file
    /// by ascending `rank`. Containers that have no dead slots (any more), or chunks in quarantine, are left alone.
    ///
    /// `None`: all of them were. Errors: everything stays as it is; damage means that a container cannot be merged.
    pub fn merge_containers(&self, victims: &[ContainerId], rank: &dyn Fn(Address) -> u64) -> Result<Option<MergeStatistics>> {
        self.writable()?;
        drop(self.permit_deletion("merge containers")?);
        self.ask_for_permission()?;
        let _one = self.reclaiming.alone();
        self.settle_merges()?;
        for _ in 0..ATTEMPTS {
            match self.try_merge(victims, rank)? {
                Attempt::MoreDied => {}
                Attempt::NothingToDo => return Ok(None),
                Attempt::Merged(statistics) => return Ok(Some(statistics)),
            }
        }
        let why = "their chunks are repeatedly found damaged and stored again".into();
        Err(EngineError::Storage(StorageError::Merge { why }))
    }

    /// Settles what earlier merges left: they hold their containers until then.
    fn settle_merges(&self) -> Result<()> {
        if self.need_containers()?.has_doubtful_merges() {
            // Any batch decides that the log does not have their records.
            self.make_room_in_log();
            self.with_room_in_the_log(|write| {
                let _guard = self.commits.alone();
                self.writable()?;
                let changes = [self.totals.lock().change(&self.objects)];
                let records: Vec<_> = crate::commit::records::encode_objects(&changes).collect();
                let effects = Effects { changes: &changes, ..Effects::default() };
                self.log_and_apply(write, Prepared::default(), &records, effects)
            })?;
        }
        self.finish_merges();
        Ok(())
    }

    fn finish_merges(&self) {
        if let Some(containers) = &self.containers
            && let Err(error) = containers.finish_merges()
        {
            tracing::warn!(%error, "files of merged containers could not be replaced; will retry");
        }
    }

    fn try_merge(&self, victims: &[ContainerId], rank: &dyn Fn(Address) -> u64) -> Result<Attempt> {
        let mut live = Vec::new();
        let mut own = Vec::with_capacity(victims.len());
        let mut origins: BTreeSet<Origin> = BTreeSet::new();
        let mut dead = Vec::with_capacity(victims.len());
        let quarantined = self.quarantined_containers()?;
        for victim in victims {
            // Somebody else may have merged it since the caller looked.
            if self.dead_slots(*victim)?.count() == 0 || quarantined.contains(victim) {
                continue;
            }
            own.push(*victim);
            let sorted = self.sort_slots(*victim)?;
            live.extend(sorted.live);
            origins.extend(sorted.origins);
            dead.push((*victim, sorted.dead));
        }
        live.sort_by_cached_key(|(address, _)| (rank(*address), *address));
        if own.is_empty() {
            return Ok(Attempt::NothingToDo);
        }
        let merge = self.need_containers()?.merge(&own, &live)?;
        let statistics = merge.statistics;
        live.iter().for_each(|(address, _)| {
            origins.remove(&address.origin());
        });
        let emptied: Vec<Origin> = origins.into_iter().collect();
        Ok(if self.commit_merge(merge, &dead, &emptied)? { Attempt::Merged(statistics) } else { Attempt::MoreDied })
    }

    fn sort_slots(&self, container: ContainerId) -> Result<Sorted> {
        let slots = self.storage.chunks_of(container)?;
        let dead = self.dead_slots(container)?;
        let names: Vec<Fingerprint> = slots.iter().map(|(_, slot)| slot.fingerprint).collect();
        let places = self.places(&names)?.unwrap_or_else(|| vec![None; names.len()]);
        let mut live = Vec::new();
        for (number, ((address, slot), place)) in slots.iter().zip(places).enumerate() {
            let is_indexed = place == Some(*address);
            if is_indexed || !dead.contains(number) {
                live.push((*address, slot.fingerprint));
            }
        }
        let origins = slots.iter().map(|(address, _)| address.origin()).collect();
        Ok(Sorted { live, dead, origins })
    }

    /// Commits a merge. `dead` lists the slots that it left behind, by container, and `emptied` the origins of which it
    /// left all chunks behind. Returns false, and merges nothing, if
    /// there are more by now.
    fn commit_merge(&self, merge: Merge, dead: &[(ContainerId, DeadSlots)], emptied: &[Origin]) -> Result<bool> {
        let containers = self.need_containers()?;
        self.make_room_in_log();
        let record = merge.record();
        let of = merge.statistics;
        let merging = self.filters.merging();
        let committed = self.with_room_in_the_log(|write| {
            let _permit = self.permit_deletion("merge containers")?;
            let guard = self.commits.alone();
            self.writable()?;
            for (container, known) in dead {
                // A write found a chunk damaged and stored it again: the next merge leaves the old copy behind.
                if self.dead_slots(*container)? != *known {
                    return Ok(None);
                }
            }
            let mut changes: Vec<Change> =
                dead.iter().map(|(victim, _)| (self.objects.own_partition(), dead::key(*victim), None)).collect();
            let dead_bytes = dead.iter().map(|(_, dead)| dead.bytes).sum();
            let mut totals = *self.totals.lock();
            totals.raw_bytes = (totals.raw_bytes + of.raw_bytes_after).saturating_sub(of.raw_bytes_before);
            totals.stored_bytes = (totals.stored_bytes + of.stored_bytes_after).saturating_sub(of.stored_bytes_before);
            totals.dead_bytes = totals.dead_bytes.saturating_sub(dead_bytes);
            totals.files = totals.files.map(|files| files.changed(&of.files_before, &of.files_after));
            changes.push(totals.change(&self.objects));
            let noted = self.liveness.note(&Facts { emptied, end: self.log.end(), ..Facts::default() })?;
            changes.extend(noted.changes);
            let mut records = vec![record.clone()];
            records.extend(noted.records);
            records.extend(crate::commit::records::encode_objects(&changes));
            let effects = Effects { deltas: &noted.deltas, changes: &changes, ..Effects::default() };
            let range = self.log_and_apply(write, Prepared::default(), &records, effects)?;
            self.liveness.committed();
            *self.totals.lock() = totals;
            Ok(Some((range, guard)))
        });
        match committed {
            Ok(Some(((start, end), guard))) => {
                // The next committer finds chunks where the log says that they are.
                containers.merge_logged(merge, start, end);
                drop(merging);
                drop(guard);
                self.finish_merges();
                Ok(true)
            }
            Ok(None) => {
                containers.abandon_merge(merge);
                Ok(false)
            }
            Err(error) => {
                // If the log's file fails, it is unknown whether the log has the record, until it takes another batch.
                // If the space ran out before the log synced, the log does not have it. If the engine stopped, the log
                // has it: then the merge stays as it is until the next opening.
                let is_log = matches!(&error, EngineError::Log(LogError::Ground(_) | LogError::NotSynced(_) | LogError::Poisoned));
                let is_unknown = is_log && !error.is_full();
                match self.commits.why_stopped() {
                    Some(_) => {}
                    None if is_unknown => containers.doubt_merge(merge),
                    None => containers.abandon_merge(merge),
                }
                Err(error)
            }
        }
    }
}
