//! From volatile to durable: the one place where durability happens.
//!
//! A commit takes these steps in this order. The order is the proof of design rule 1.
//! 1. Take the transactions submitted so far. All chunks that they refer to were appended to containers before.
//! 2. [`prepare`](onefold_storage::ContainerStore::prepare) writes and syncs container data, which covers those chunks.
//!    Chunks of open frames come back as records that carry their bytes.
//! 3. Write container records, usage counts and objects to the log as one batch, and sync it: all of it is durable, or
//!    none.
//! 4. Apply the batch to the chunk index and the object index in memory. Then end the claims and the staged objects.
//!
//! Before 2, before 3 and once more when the batch is durable, it checks that it still owns the store's lock. So
//! whoever takes a lock whose file was removed sees every batch that is acknowledged.
//!
//! A crash before the end of 3 leaves container bytes that no record names: wasted space, not damage. A crash after it
//! replays the batch. If 2 or 3 fails, everything stays volatile and readable, and the next commit retries. One commit
//! runs at a time, so batches are applied in the order of the log.

pub(crate) mod meaning;
pub(crate) mod records;
pub(crate) mod superseded;

use crate::cluster::{DeadElsewhere, Elsewhere};
use crate::commit::records::{encode_objects, encode_removals};
use crate::components::{CHUNK_INDEX, LOG, OBJECT_INDEX};
use crate::liveness::dead::DeadChanges;
use crate::liveness::reference::{Facts, Reference, Stored};
use crate::lost::quarantine::StoredAgain;
use crate::statistics::Totals;
use crate::write::reservation::FingerprintSet;
use crate::{Change, Engine, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_oplog::{Effects, Log, LogError, Position, Record, View};
use onefold_storage::components::STORAGE_WRITE;
use onefold_storage::{ChunkKind, ChunkStore, FileFigures, Prepared, Scope};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Changes that become durable together.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Objects to write or delete.
    pub changes: Vec<Change>,
    /// References that objects gain and lose in this transaction.
    pub references: Vec<Reference>,
}

impl Transaction {
    fn bytes(&self) -> usize {
        let objects: usize = self.changes.iter().map(|(_, key, value)| key.len() + value.as_ref().map_or(0, Vec::len) + 64).sum();
        objects + self.references.len() * size_of::<Reference>()
    }
}

/// Transactions that are visible but not durable yet.
#[derive(Debug, Default)]
struct Queue {
    sequence: u64,
    transactions: Vec<Transaction>,
    bytes: usize,
}

/// The state that commits share.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    queue: Mutex<Queue>,
    /// Held during a commit; the number of the last flush request that was served.
    served: Mutex<u64>,
    requests: AtomicU64,
    /// Why the store accepts no more writes.
    stopped: OnceLock<String>,
    /// Why the log accepts no more batches of this opening.
    log_failed: OnceLock<String>,
}

impl Commits {
    /// Keeps others from committing. [`Engine::log_and_apply`] needs this guard.
    pub(crate) fn alone(&self) -> MutexGuard<'_, u64> {
        self.served.lock()
    }

    /// Stops all writes from now on, for this reason or an earlier one.
    pub(crate) fn stop(&self, why: String) {
        let _ = self.stopped.set(why);
    }

    /// Returns why the store accepts no more writes.
    pub(crate) fn why_stopped(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn lock_queue(&self) -> impl Drop + '_ {
        self.queue.lock()
    }
}

/// A function that writes a batch to the log.
pub(crate) type Write = fn(&(dyn Log + 'static), &[Record]) -> onefold_oplog::Result<(Position, Position)>;

/// The highest limit of queued transactions, bytes.
const QUEUE_BYTES: usize = 32 << 20;
/// A larger transaction is refused: with those that wait, it would not fit a batch, and no flush would succeed again.
const MAX_TRANSACTION_BYTES: usize = 96 << 20;
/// On a full disk, the log is trimmed once it exceeds its limit divided by this.
const SHORT_LOG_SHARE: u64 = 64;
/// How often a commit that finds the log full frees space and retries.
const FULL_LOG_ATTEMPTS: usize = 8;

impl Engine {
    /// Makes a transaction visible at once, and durable with the next [`Engine::flush`]. Transactions become durable in
    /// the order of their submission. All chunks that its values refer to must have been written before (their pieces
    /// returned). Errors: nothing of the transaction was taken.
    pub fn submit(&self, transaction: Transaction) -> Result<()> {
        self.submit_if(&[], transaction).map(drop)
    }

    /// Submits a transaction if all objects in `expected` have these values when it becomes visible. Returns whether
    /// they had. If not, nothing was taken, and the caller must decide again from the new values.
    pub fn submit_if(&self, expected: &[Change], transaction: Transaction) -> Result<bool> {
        let bytes = transaction.bytes();
        if bytes > MAX_TRANSACTION_BYTES {
            let why = format!("it has {bytes} bytes; the limit is {MAX_TRANSACTION_BYTES} bytes");
            return Err(EngineError::Invalid { what: "transaction".into(), why });
        }
        self.admit()?;
        self.reclaiming.watch().touch(transaction.references.iter().map(|reference| &reference.fingerprint));
        // A batch must fit into the log several times. Queued transactions go first: if a flush failed after the
        // staging, this transaction would be taken and answered with an error.
        if self.commits.queue.lock().bytes > self.queue_limit_bytes() {
            self.flush()?;
        }
        let mut queue = self.commits.queue.lock();
        // While the queue is locked, nobody else makes anything visible.
        for (partition, key, value) in expected {
            if self.objects.get(*partition, key)? != *value {
                return Ok(false);
            }
        }
        // This fails only before it stages.
        self.objects.stage(queue.sequence + 1, &transaction.changes)?;
        queue.sequence += 1;
        queue.bytes += bytes;
        queue.transactions.push(transaction);
        Ok(true)
    }

    /// Returns the bytes of queued transactions from which the next submitter flushes first. A commit of them holds
    /// several times as much for its records and counts, so small settings bound them as well.
    fn queue_limit_bytes(&self) -> usize {
        QUEUE_BYTES.min(self.settings.log_limit_bytes as usize / 4).min(self.settings.object_index_pending_bytes)
    }

    /// Submits objects that are only advice. Drops them where the object index or the log is behind, the disk is full,
    /// or a repair could not read some objects: nobody waits for advice, and nobody misses it.
    pub fn submit_advice(&self, changes: Vec<Change>) {
        if self.objects.is_over_limit() || self.log.is_over_limit() || self.is_reserve_in_use() || self.has_lost() {
            return;
        }
        if let Err(error) = self.submit(Transaction { changes, references: Vec::new() }) {
            tracing::debug!(%error, "advice is dropped");
        }
    }

    /// Makes everything durable that was written and submitted before the call. Concurrent callers share one commit.
    pub fn flush(&self) -> Result<()> {
        self.writable()?;
        self.make_room_in_log();
        let mine = self.commits.requests.fetch_add(1, Ordering::SeqCst) + 1;
        self.with_room_in_the_log(|write| {
            let mut served = self.commits.alone();
            if *served >= mine {
                return Ok(());
            }
            // The data of all requests up to here is in memory already: this commit serves them too.
            let reached = self.commits.requests.load(Ordering::SeqCst);
            self.commit(Scope::Everything, write)?;
            *served = reached;
            Ok(())
        })?;
        self.hook_sealed();
        self.deliver_soon();
        Ok(())
    }

    /// Has the background deliver what was logged for other nodes. Without one, does it now: it may fail, and comes
    /// again with a later commit.
    fn deliver_soon(&self) {
        if self.has_to_deliver() {
            if self.settings.background {
                self.background.wake();
            } else if let Err(error) = self.deliver() {
                tracing::debug!(%error, "not everything is delivered to other nodes");
            }
        }
    }

    /// Makes everything durable, and says in the log that this opening has ended its work.
    pub(crate) fn end_in_log(&self) -> Result<()> {
        self.writable()?;
        {
            let _committing = self.commits.alone();
            if self.containers.as_ref().is_some_and(|containers| !containers.has_settled()) {
                // A put failed, and may still arrive. The next opening looks for it.
                self.commit(Scope::Everything, <dyn Log>::commit_beyond_limit)?;
            } else {
                let end = self.log.end();
                self.commit(Scope::Everything, <dyn Log>::commit_last)?;
                if self.log.end() == end {
                    // There was nothing to write.
                    self.check_lock()?;
                    self.log.commit_last(&[])?;
                }
            }
        }
        self.hook_sealed();
        Ok(())
    }

    /// Makes everything durable like [`Engine::flush`]. Call it when all is written that will be for now: a store in a
    /// bucket then seals containers with much that is new, instead of sending it twice.
    pub fn flush_all(&self) -> Result<()> {
        if let Some(containers) = &self.containers {
            containers.close_worthy();
        }
        self.flush()
    }

    /// Empties a log that is near its limit before a commit. If that fails, the commit still gets as much log as is
    /// left.
    pub(crate) fn make_room_in_log(&self) {
        // On a full disk the log is trimmed while there is still space to do so. Otherwise it would use up the reserve.
        let is_too_long = self.is_reserve_in_use() && self.log.used_bytes() > self.settings.log_limit_bytes / SHORT_LOG_SHARE;
        if is_too_long || self.log.is_over_limit() {
            self.try_to_trim_log();
        }
    }

    fn try_to_trim_log(&self) {
        if let Err(error) = self.maintain(true) {
            tracing::warn!(%error, "the operations log could not be trimmed");
        }
    }

    /// Runs a commit, and frees log space when it needs some.
    ///
    /// Others may fill the log after it was checked. A commit that finds it full has written nothing, and is retried
    /// after a trim. If the trim frees nothing, containers or transactions that only a commit releases may hold the
    /// log: then it goes beyond the limit. Writers are admitted by the limit, so it stays bounded. On a full disk,
    /// merge files that cannot be replaced hold the log, whatever is committed.
    pub(crate) fn with_room_in_the_log<T>(&self, mut commit: impl FnMut(Write) -> Result<T>) -> Result<T> {
        let mut is_disk_full = false;
        for _ in 0..FULL_LOG_ATTEMPTS {
            match commit(<dyn Log>::commit) {
                Err(EngineError::Log(LogError::Full { .. })) => self.try_to_trim_log(),
                // On a full disk the log itself is space: the part that the indexes have is freed, once.
                Err(EngineError::Log(error)) if error.is_full() && !is_disk_full => {
                    is_disk_full = true;
                    self.try_to_trim_log();
                }
                result => return result,
            }
        }
        commit(if self.containers.as_ref().is_some_and(|containers| containers.has_pending_merges()) {
            <dyn Log>::commit
        } else {
            <dyn Log>::commit_beyond_limit
        })
    }

    /// Calls `then` if no transaction waits that changes objects of a partition. Nobody submits one meanwhile.
    pub(crate) fn unless_queued<T>(&self, partition: u16, then: impl FnOnce() -> T) -> Option<T> {
        let queue = self.commits.queue.lock();
        let mut changes = queue.transactions.iter().flat_map(|transaction| &transaction.changes);
        (!changes.any(|change| change.0 == partition)).then(then)
    }

    /// Returns whether transactions wait for a flush.
    pub(crate) fn has_queued(&self) -> bool {
        !self.commits.queue.lock().transactions.is_empty()
    }

    /// Makes full frames durable, without open frames and transactions. Bounds how much of a long backup a crash can
    /// take.
    pub(crate) fn commit_full_frames(&self) -> Result<()> {
        self.make_room_in_log();
        self.with_room_in_the_log(|write| {
            let _guard = self.commits.alone();
            self.commit(Scope::FullFrames, write)
        })?;
        self.hook_sealed();
        self.deliver_soon();
        Ok(())
    }

    /// Gives containers that are sealed their hooks. Not under the lock of commits, as nobody has to wait for it.
    fn hook_sealed(&self) {
        if let Some(sampled) = self.lookup.sampled() {
            sampled.hook_sealed();
        }
    }

    /// Commits. The caller holds [`Commits::alone`].
    fn commit(&self, scope: Scope, write: Write) -> Result<()> {
        self.check_lock()?;
        let (taken, sequence) = match scope {
            Scope::FullFrames => (Vec::new(), 0),
            Scope::Everything => {
                let mut queue = self.commits.queue.lock();
                queue.bytes = 0;
                (std::mem::take(&mut queue.transactions), queue.sequence)
            }
        };
        let result = self.prepare(scope).and_then(|prepared| self.commit_prepared(&self.storage, prepared, &taken, sequence, write));
        if result.is_err() {
            // Put them back at the front of the queue: they are older than transactions submitted meanwhile.
            let mut queue = self.commits.queue.lock();
            queue.bytes += taken.iter().map(Transaction::bytes).sum::<usize>();
            queue.transactions.splice(0..0, taken);
        }
        result
    }

    /// Returns what the containers write to the log. A metadata chunk in a full frame may refer to chunks that another
    /// stream has in an open frame. Those must not become durable later than the metadata chunk.
    fn prepare(&self, scope: Scope) -> Result<Prepared> {
        let prepared = self.storage.prepare(scope)?;
        if scope == Scope::Everything || !self.refers_to_volatile(&prepared) {
            return Ok(prepared);
        }
        self.storage.abandoned(prepared);
        Ok(self.storage.prepare(Scope::Everything)?)
    }

    /// Returns whether a metadata chunk of `prepared` refers to a chunk that is neither in the index nor in `prepared`.
    fn refers_to_volatile(&self, prepared: &Prepared) -> bool {
        let mut references = Vec::new();
        for (fingerprint, _, _) in prepared.chunks.iter().filter(|(_, _, kind)| *kind != ChunkKind::Data) {
            self.claims.references(fingerprint, &mut references);
        }
        references.retain(|fingerprint| self.claims.address(fingerprint).is_some());
        if references.is_empty() {
            return false;
        }
        let known: FingerprintSet = prepared.chunks.iter().map(|(fingerprint, _, _)| *fingerprint).collect();
        references.iter().any(|fingerprint| !known.contains(fingerprint))
    }

    /// Commits what `of` has prepared: the chunk store, or one that takes a partition over. The caller holds
    /// [`Commits::alone`].
    pub(crate) fn commit_prepared(
        &self,
        of: &Arc<dyn ChunkStore>,
        prepared: Prepared,
        transactions: &[Transaction],
        sequence: u64,
        write: Write,
    ) -> Result<()> {
        let StoredAgain { changes: stored_again, mut redirects, counted, may_have_moved } = self.quarantine.stored(&prepared);
        let references: Vec<&[Reference]> = transactions.iter().map(|transaction| &transaction.references[..]).collect();
        let stored = self.stored_metadata(&prepared, &counted);
        let mut superseded = self.superseded_by(&prepared);
        for (fingerprint, address, _) in &prepared.surplus {
            self.mark_dead(fingerprint, *address, &mut superseded);
        }
        let has_moved = !superseded.noted.is_empty() || may_have_moved;
        let end = self.log.end();
        let noted = self.liveness.note(&Facts { references: &references, stored: &stored, has_moved, end, ..Facts::default() })?;
        let mut changes = latest_changes(transactions);
        changes.extend(noted.changes);
        let (mut dead, mut dead_bytes, _) = match superseded.dead.changes(&self.objects) {
            // Dead slots cannot be read: the old copies then count as stored, which only costs space.
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "cannot mark older copies of chunks that were stored again as dead");
                superseded.chunks.clear();
                superseded.redirects.clear();
                <_>::default()
            }
            changes => changes?,
        };
        redirects.append(std::mem::take(&mut superseded.redirects));
        match redirects.changes(&self.redirects) {
            Ok(redirected) => {
                changes.extend(stored_again);
                changes.extend(redirected);
            }
            // Nobody could tell then where the new copies are: the old ones stay as they are, lost or bad.
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "cannot note where chunks were stored again");
                superseded.chunks.clear();
                (dead, dead_bytes) = <_>::default();
            }
            Err(error) => return Err(error),
        }
        changes.extend(dead);
        let totals = self.totals_with(&prepared).map(|totals| Totals {
            chunks: totals.chunks.saturating_sub(superseded.chunks.len() as u64),
            dead_bytes: totals.dead_bytes.saturating_add_signed(dead_bytes),
            ..totals.without(superseded.freed_bytes)
        });
        changes.extend(totals.map(|totals| totals.change(&self.objects)));
        let mut records = prepared.records.clone();
        records.extend(noted.records);
        records.extend(encode_objects(&changes));
        if records.is_empty() {
            of.abandoned(prepared);
            self.liveness.committed();
            return Ok(());
        }
        let effects = Effects { deltas: &noted.deltas, changes: &changes, sequence, ..Effects::default() };
        // A reader who still goes to one of these places finds by the name that the chunk is not there any more.
        records.extend(self.storage.begin_removal(&superseded.freed)?);
        if let Err(error) = self.log_and_apply_of(of, write, prepared, &records, effects) {
            self.storage.abandon_removal(&superseded.freed);
            return Err(error);
        }
        self.storage.removed(&superseded.freed);
        self.liveness.committed();
        if let Some(totals) = totals {
            *self.totals.lock() = totals;
        }
        self.superseded.settled(&superseded);
        if !self.descriptor.profile.is_exact() && !superseded.chunks.is_empty() {
            // A catalog that was loaded meanwhile has the dead copies. From now on nobody is led to them.
            self.filters.removed(&superseded.chunks);
        }
        Ok(())
    }

    /// Returns the totals after this commit, if it changes them.
    fn totals_with(&self, prepared: &Prepared) -> Option<Totals> {
        if prepared.chunks.is_empty() && prepared.raw_bytes == 0 && prepared.sealed.containers == 0 {
            return None;
        }
        let totals = *self.totals.lock();
        Some(Totals {
            chunks: totals.chunks + prepared.chunks.len() as u64,
            raw_bytes: totals.raw_bytes + prepared.raw_bytes,
            stored_bytes: totals.stored_bytes + prepared.stored_bytes,
            files: totals.files.map(|files| files.changed(&FileFigures::default(), &prepared.sealed)),
            ..totals
        })
    }

    /// Logs what the chunk store needs so that it does not need the log before `position`.
    pub(crate) fn checkpoint_before(&self, position: Position) -> Result<()> {
        let _committing = self.commits.alone();
        let prepared = self.storage.checkpoint_before(position)?;
        if self.levels.is_some() || self.log.has_history() {
            // What the chunks of its tables refer to is counted with them. And containers of a store in a bucket are
            // sealed, also with chunks that are new.
            return self.commit(Scope::FullFrames, <dyn Log>::commit_beyond_limit);
        }
        if prepared.is_empty() {
            self.storage.abandoned(prepared);
            return Ok(());
        }
        let records = prepared.records.clone();
        self.log_and_apply(<dyn Log>::commit_beyond_limit, prepared, &records, Effects::default()).map(drop)
    }

    /// Logs the removal of chunks and its consequences. `of_storage` are the records of
    /// [`begin_removal`](onefold_storage::ChunkStore::begin_removal). Durable on return. After an error, the log may
    /// have it all the same, if that is not known; then this opening commits nothing any more.
    pub(crate) fn commit_removals(
        &self,
        removed: &[Stored],
        of_storage: &[Record],
        dead: &DeadChanges,
        elsewhere: &DeadElsewhere,
        others: Option<&Elsewhere<'_>>,
        removed_bytes: u64,
    ) -> Result<()> {
        let removals: Vec<Fingerprint> = removed.iter().map(|chunk| chunk.fingerprint).collect();
        self.make_room_in_log();
        self.with_room_in_the_log(|write| {
            let _guard = self.commits.alone();
            self.writable()?;
            // One of the partitions may have gone to another node since, and may have come back with other counts.
            self.check_owned(removals.iter())?;
            if let Some(first) = removals.first().filter(|_| others.is_some_and(Elsewhere::has_moved)) {
                return Err(EngineError::NotOwned { partition: self.partition_of(first) });
            }
            if !dead.are_all(|container| self.has_containers_of(container.partition())) {
                return Err(EngineError::OtherNode { why: "a partition of containers has gone to another node".to_owned() });
            }
            let mut totals = *self.totals.lock();
            // The others are counted where their containers are.
            totals.chunks = totals.chunks.saturating_sub((removals.len() - elsewhere.count()) as u64);
            let (mut changes, dead_bytes, _) = dead.changes(&self.objects)?;
            totals.dead_bytes = totals.dead_bytes.saturating_add_signed(dead_bytes);
            if self.containers.is_none() {
                // Merging counts them elsewhere.
                totals = totals.without(removed_bytes);
            }
            changes.push(totals.change(&self.objects));
            changes.extend(elsewhere.changes(self.objects.own_partition(), self.log.end(), self.digest_bytes()));
            let noted = self.liveness.note(&Facts { removed, end: self.log.end(), ..Facts::default() })?;
            changes.extend(noted.changes);
            let mut records = noted.records;
            // Where each copy counts for itself, dead slots say it all.
            if self.lookup.index().is_some() {
                records.insert(0, encode_removals(&removals, self.digest_bytes()));
            }
            records.extend_from_slice(of_storage);
            records.extend(encode_objects(&changes));
            let effects = Effects { removals: &removals, deltas: &noted.deltas, changes: &changes, ..Effects::default() };
            self.log_and_apply(write, Prepared::default(), &records, effects)?;
            self.liveness.committed();
            *self.totals.lock() = totals;
            if elsewhere.count() > 0 {
                self.removing.must_tell();
            }
            Ok(())
        })
    }

    /// Returns the views that learn from the log about containers and transactions, in the order in which a batch is
    /// applied.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = (&'static Component, &dyn View<EngineError>)> {
        let chunks = self.lookup.view().map(|index| (&CHUNK_INDEX, index as &dyn View<EngineError>));
        chunks.into_iter().chain([(&OBJECT_INDEX, &*self.objects as &dyn View<EngineError>)])
    }

    /// Returns all views.
    pub(crate) fn views(&self) -> impl Iterator<Item = (&'static Component, &dyn View<EngineError>)> {
        let containers: (&'static Component, &dyn View<EngineError>) = (&STORAGE_WRITE, &self.storage_view);
        std::iter::once(containers).chain(self.indexes())
    }

    /// Returns why the log of a store in a bucket took a batch for lost, so that only another opening can write. The
    /// service was away for too long, or refused; or the log of a node was fenced.
    pub fn has_lost_its_log(&self) -> Option<&str> {
        self.commits.log_failed.get().filter(|_| self.log.has_history()).map(String::as_str)
    }

    /// Writes the batch to the log and applies it. `effects` belongs to the records that are not in `prepared`, which
    /// the chunk store made. The caller holds [`Commits::alone`].
    pub(crate) fn log_and_apply(
        &self,
        write: Write,
        prepared: Prepared,
        records: &[Record],
        effects: Effects<'_>,
    ) -> Result<(Position, Position)> {
        self.log_and_apply_of(&self.storage, write, prepared, records, effects)
    }

    /// Does the same with what `of` has prepared.
    fn log_and_apply_of(
        &self,
        of: &Arc<dyn ChunkStore>,
        write: Write,
        prepared: Prepared,
        records: &[Record],
        effects: Effects<'_>,
    ) -> Result<(Position, Position)> {
        let bytes = records.iter().map(|record| record.payload.len() as u64).sum();
        let logged = self.check_lock().and_then(|()| Ok(self.profile.time(&LOG, bytes, || write(&*self.log, records))?));
        let (start, end) = match logged {
            Ok(range) => range,
            Err(error) => {
                of.abandoned(prepared);
                let why = match &error {
                    EngineError::Log(LogError::NotSynced(why)) => Some(why.to_string()),
                    // Nobody else has the number of a node: it opens its log again, or finds it closed.
                    error if error.is_fenced() && self.cluster.is_some() => Some(error.to_string()),
                    _ => None,
                };
                if let Some(why) = why {
                    let _ = self.commits.log_failed.set(why);
                }
                return Err(error);
            }
        };
        // Another writer may have opened the store before it could see this batch. If that is in doubt, the batch is
        // not acknowledged either.
        if let Err(error) = self.check_lock() {
            self.commits.stop(error.to_string());
            return Err(error);
        }
        let stored: Vec<_> = prepared.chunks.iter().map(|(fingerprint, address, _)| (*fingerprint, address.bits())).collect();
        let effects = Effects { start, stored: &stored, notes: &prepared.notes, ..effects };
        if let Some(cluster) = &self.cluster {
            self.outbox.add(end, &effects, |name| cluster.foreign_partition(name));
            self.touch(&effects);
        }
        for (component, view) in self.indexes() {
            if let Err(error) = self.profile.time(component, bytes, || view.apply(end, &effects)) {
                // The log has the batch, memory does not: only a replay brings them together again.
                self.commits.stop(error.to_string());
                return Err(error);
            }
        }
        // Look-ups find those of other nodes' partitions when they are delivered.
        let is_known = |fingerprint: &Fingerprint| self.foreign_partition(fingerprint).is_none();
        let known: Vec<_> = prepared.chunks.iter().map(|(fingerprint, _, _)| *fingerprint).filter(is_known).collect();
        if let Some(sampled) = self.lookup.sampled() {
            sampled.durable(prepared.chunks.iter().map(|(fingerprint, address, _)| (*fingerprint, *address)));
        }
        self.claims.durable(&known);
        of.committed(prepared, start, end);
        Ok((start, end))
    }

    /// Returns the metadata chunks that become known with this commit, except those whose references are known already.
    fn stored_metadata(&self, prepared: &Prepared, known: &HashSet<Fingerprint>) -> Vec<Stored> {
        let metadata = prepared.chunks.iter().filter(|(fingerprint, _, kind)| *kind != ChunkKind::Data && !known.contains(fingerprint));
        metadata
            .map(|(fingerprint, _, _)| {
                let mut references = Vec::new();
                self.claims.references(fingerprint, &mut references);
                Stored { fingerprint: *fingerprint, references }
            })
            .collect()
    }
}

/// Returns the changes of objects. Of several changes of one object only the last counts.
fn latest_changes(transactions: &[Transaction]) -> Vec<Change> {
    let mut seen = HashSet::new();
    let mut changes: Vec<Change> = Vec::new();
    for change in transactions.iter().rev().flat_map(|transaction| transaction.changes.iter().rev()) {
        if seen.insert((change.0, &change.1)) {
            changes.push(change.clone());
        }
    }
    changes.reverse();
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_changes_of_an_object_the_last_counts() {
        let change = |key: u8, value: Option<u8>| (0, vec![key], value.map(|value| vec![value]));
        let one = Transaction { changes: vec![change(1, Some(1)), change(2, Some(2))], references: vec![] };
        let two = Transaction { changes: vec![change(1, None), change(3, Some(3)), change(3, Some(4))], references: vec![] };
        assert_eq!(latest_changes(&[one, two]), [change(2, Some(2)), change(1, None), change(3, Some(4))]);
    }
}
