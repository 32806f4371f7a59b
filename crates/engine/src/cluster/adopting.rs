//! Partitions come to this node (M4.8, `docs/cluster.md`).
//!
//! What a partition's lineage says is applied to a new, empty partition beside the index: log by log, each up to the
//! end of its part, the own log last. Partitions that come together are read together.
//!
//! # Why nothing is lost or counted twice
//! 1. Of each log, only what is in its part of the lineage is applied ([`Holdings`](onefold_oplog::Holdings)). Parts of
//!    a lineage do not overlap, and together they are everything that owners have logged.
//! 2. Of the own log the last piece is applied while nobody commits. From then on the index takes batches itself.
//! 3. What this node has logged of the partition behind the position where its part begins is in the index by 1. So it
//!    is taken out of the outbox. Nobody else has it: the owner before had ended when that position was told.
//! 4. What is before that position, and undelivered, stays in the outbox, and is delivered to this node itself. The
//!    cursors of the owner before, which come along (`notes.rs`), say what of it that one has taken.
//! 5. The log is not trimmed meanwhile: so no batch goes into a run that begins before the piece that is read.

use crate::cluster::notes::OtherNotes;
use crate::cluster::other_logs::{HeldPartition, LogPart, OtherLogs};
use crate::cluster::rights::Right;
use crate::commit::records::{Decoded, encode_objects};
use crate::{Change, Engine, EngineError, Result};
use onefold_index::{ChunkBatch, ChunkIndex, NewObjects, NewPartition};
use onefold_oplog::{Effects, Log, ObjectLog, Owned, Partition, PartitionClass, Position, Record};
use onefold_storage::Prepared;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// A partition that a table gives to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The partition.
    pub partition: Partition,
    /// The number of this ownership.
    pub epoch: u64,
    /// Whose logs say what is true of it, one after the other. The last one is this node's.
    pub lineage: Vec<LogPart>,
}

/// A partition of an index, while it is made.
struct Coming<'a> {
    adoption: &'a Adoption,
    index: NewIndex,
}

enum NewIndex {
    Chunks(NewPartition),
    Objects(NewObjects),
}

impl Coming<'_> {
    /// Applies what a batch says of it.
    fn apply(&self, effects: &Effects<'_>) -> Result<()> {
        match &self.index {
            NewIndex::Chunks(chunks) => {
                let Effects { removals, places, stored, deltas, .. } = *effects;
                Ok(chunks.apply(ChunkBatch { removals, places, inserts: stored, deltas, ..ChunkBatch::default() })?)
            }
            NewIndex::Objects(objects) => Ok(objects.apply(effects.changes)?),
        }
    }

    fn held_since(&self, since: Position) -> HeldPartition {
        HeldPartition { partition: self.adoption.partition, since, upto: None, is_first: false }
    }
}

/// Keeps the log from being trimmed.
pub(crate) struct Untrimmed<'a>(&'a Engine);

impl Drop for Untrimmed<'_> {
    fn drop(&mut self) {
        self.0.adopting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine {
    /// Takes partitions over that the newest table gives to this opening: applies what their lineages say, then logs
    /// that they are adopted. Durable on return. It may take long; others use the engine meanwhile. Claims for
    /// partitions of the chunk index are not given before [`Engine::serve_chunks`].
    ///
    /// Errors: some may be adopted, and others not. Open the store again.
    pub fn adopt(&self, adoptions: &[Adoption]) -> Result<()> {
        self.writable()?;
        let cluster = self.cluster.as_ref().ok_or_else(|| EngineError::Invalid {
            what: "partition".into(),
            why: "the store was not opened by a node of a cluster".into(),
        })?;
        for adoption in adoptions {
            let is_own = adoption.lineage.last().is_some_and(|last| last.node == cluster.node && last.upto.is_none());
            let rest = adoption.lineage.len().saturating_sub(1);
            if !is_own || adoption.lineage.iter().take(rest).any(|part| part.upto.is_none()) {
                let why = "its lineage does not end with this node, or another part of it has no end".into();
                return Err(EngineError::Invalid { what: format!("{:?}", adoption.partition), why });
            }
        }
        let _untrimmed = self.keep_untrimmed();
        let (mut logs, mut notes) = (OtherLogs::new(self), OtherNotes::new());
        let (containers, indexes): (Vec<&Adoption>, Vec<&Adoption>) =
            adoptions.iter().partition(|adoption| adoption.partition.class == PartitionClass::Container);
        if !indexes.is_empty() {
            self.adopt_indexes(&indexes, &mut logs, &mut notes)?;
        }
        for adoption in containers {
            self.adopt_containers(adoption, &mut logs, &mut notes)?;
        }
        Ok(())
    }

    /// From the return on, the log is not trimmed until the result is dropped.
    pub(crate) fn keep_untrimmed(&self) -> Untrimmed<'_> {
        self.adopting.fetch_add(1, Ordering::SeqCst);
        // One that is under way ends first.
        self.background.await_maintenance();
        Untrimmed(self)
    }

    /// Says whether the log may be trimmed: a table speaks of this opening, and what it gives is adopted.
    pub fn allow_trim(&self, is_allowed: bool) {
        self.may_trim.store(is_allowed, Ordering::SeqCst);
    }

    /// Returns whether the log must stay as it is.
    pub(crate) fn is_untrimmed(&self) -> bool {
        self.adopting.load(Ordering::SeqCst) > 0 || !self.may_trim.load(Ordering::SeqCst)
    }

    /// Returns the chunk index, whose partitions come and go.
    pub(crate) fn movable_index(&self) -> Result<&ChunkIndex> {
        let none = || EngineError::Inconsistent { why: "its chunk index has no partitions that could move".to_owned() };
        self.lookup.index().and_then(|index| index.movable()).ok_or_else(none)
    }

    fn adopt_indexes(&self, adoptions: &[&Adoption], logs: &mut OtherLogs<'_>, notes: &mut OtherNotes) -> Result<()> {
        let mut coming: BTreeMap<Partition, Coming<'_>> = BTreeMap::new();
        for adoption in adoptions {
            let owned = Owned { number: adoption.partition.number.into(), epoch: adoption.epoch };
            let index = match adoption.partition.class {
                PartitionClass::ChunkIndex => NewIndex::Chunks(self.movable_index()?.make_partition(owned)?),
                _ => NewIndex::Objects(self.objects.make_partition(owned)?),
            };
            coming.insert(adoption.partition, Coming { adoption, index });
        }
        // Other logs, those that come first in a lineage first.
        for round in 0.. {
            let mut parts: BTreeMap<(u32, Position), Vec<&Coming<'_>>> = BTreeMap::new();
            let mut is_over = true;
            for one in coming.values() {
                let Some(part) = one.adoption.lineage.get(round).filter(|part| part.upto.is_some()) else { continue };
                is_over = false;
                parts.entry((part.node, part.upto.unwrap_or_default())).or_default().push(one);
            }
            if is_over {
                break;
            }
            for ((node, upto), these) in parts {
                let held: Vec<HeldPartition> = these.iter().map(|one| one.held_since(one.adoption.lineage[round].since)).collect();
                match self.cluster.as_ref().is_some_and(|cluster| cluster.node == node) {
                    true => self.replay_into(self.log_in_bucket()?, &held, upto, &these)?,
                    false => self.replay_into(&*logs.get(node)?, &held, upto, &these)?,
                }
            }
        }
        let own = self.log_in_bucket()?;
        let these: Vec<&Coming<'_>> = coming.values().collect();
        let since = |one: &&Coming<'_>| one.adoption.lineage.last().map_or(Position(0), |last| last.since);
        let held: Vec<HeldPartition> = these.iter().map(|one| one.held_since(since(one))).collect();
        let end = self.log.end();
        self.replay_into(own, &held, end, &these)?;

        let _committing = self.commits.alone();
        self.writable()?;
        let held: Vec<HeldPartition> = these.iter().map(|one| one.held_since(since(one).max(end))).collect();
        self.replay_into(own, &held, self.log.end(), &these)?;
        let mut changes: Vec<Change> = Vec::new();
        for adoption in adoptions {
            changes.extend(self.notes_to_adopt(adoption.partition, &adoption.lineage, logs, notes)?.into_iter().flatten());
        }
        self.log_changes(&changes)?;
        // What the owner before had to tell.
        self.removing.must_tell();
        let at = self.log.end();
        for Coming { adoption, index } in coming.into_values() {
            let number = u32::from(adoption.partition.number);
            match index {
                NewIndex::Objects(new) => self.objects.add_partition(new, at)?,
                NewIndex::Chunks(new) => {
                    self.movable_index()?.add_partition(new, at)?;
                    if let Some(cluster) = &self.cluster {
                        cluster.set(number, Right::Log);
                    }
                    let since = adoption.lineage.last().map_or(Position(0), |last| last.since);
                    self.claims.durable(&self.outbox.came(number, since));
                }
            }
        }
        Ok(())
    }

    /// Logs changes of the own notes, without anything else. The caller holds [`crate::commit::Commits::alone`].
    pub(crate) fn log_changes(&self, changes: &[Change]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let records: Vec<Record> = encode_objects(changes).collect();
        let effects = Effects { changes, ..Effects::default() };
        // It cannot wait for a trim: there is none now.
        self.log_and_apply(<dyn Log>::commit_beyond_limit, Prepared::default(), &records, effects).map(drop)
    }

    fn replay_into(&self, log: &ObjectLog, held: &[HeldPartition], upto: Position, these: &[&Coming<'_>]) -> Result<()> {
        let holdings = self.holdings(held.iter().copied())?;
        let mut failed = None;
        log.replay_holdings(&holdings, upto, &mut |records| {
            let apply = || -> Result<()> {
                let decoded = Decoded::read(records, self.digest_bytes())?;
                let effects = decoded.effects(Position(0), records);
                these.iter().try_for_each(|one| one.apply(&effects))
            };
            match apply() {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }
}
