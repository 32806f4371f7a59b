//! Merges containers (M0.20): copies the chunks that are still needed into a new container, and removes the old files.
//!
//! 1. [`ContainerStore::merge`] copies. The new file is whole and synced, and nothing that was there is touched.
//! 2. The caller logs [`Merge::record`]. With that the merge has happened.
//! 3. [`ContainerStore::merged`] replaces the files (`replace.rs`). A crash before its end, or a full disk, only delays
//!    that.
//!
//! Addresses do not change: the new catalog has the homes of the chunks, and forwards lead there. This module must
//! never decide which chunks are needed. The caller knows it, and ensures that none of the others becomes needed again.

mod output;

use crate::containers::catalog::MAX_SLOTS;
use crate::containers::file;
use crate::containers::merging::Claim;
use crate::containers::records::ContainerRecord;
use crate::containers::statistics::FileFigures;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Address, Catalog, ContainerId, Frame, HEADER_BYTES, Homes, Result, Slot, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::parent;
use onefold_oplog::{Position, Record};
use output::Output;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Highest number of bytes that a frame, a slot and its home take in a catalog, besides the fingerprint.
const FRAME_ENTRY_BYTES: u64 = 48;
const SLOT_ENTRY_BYTES: u64 = 16;

/// Containers that were merged, for the log. It is either [merged](ContainerStore::merged) or
/// [abandoned](ContainerStore::abandon_merge). If it is unknown whether the log has the record (its sync failed), it is
/// [in doubt](ContainerStore::doubt_merge). If it is dropped instead, its containers stay as they are, and take part in
/// no other merge, until the store is opened again.
#[derive(Debug)]
#[must_use]
pub struct Merge {
    pub(crate) claim: Claim,
    pub(crate) target: Option<ContainerId>,
    pub(crate) forwarded: Vec<ContainerId>,
    pub(crate) removed: Vec<ContainerId>,
    finished: Position,
    digest_bytes: usize,
    /// How it changes the figures of the store.
    pub statistics: MergeStatistics,
}

/// How a merge changes the figures of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeStatistics {
    /// The container files that go, and the forwards to them.
    pub files_before: FileFigures,
    /// The container file that comes, if any, and the forwards to it.
    pub files_after: FileFigures,
    /// Chunks in the files that go.
    pub chunks_before: u64,
    /// Chunks in the file that comes.
    pub chunks_after: u64,
    /// Raw bytes of the frames that go.
    pub raw_bytes_before: u64,
    /// Raw bytes of the frames that come.
    pub raw_bytes_after: u64,
    /// Stored bytes of the frames that go.
    pub stored_bytes_before: u64,
    /// Stored bytes of the frames that come.
    pub stored_bytes_after: u64,
}

impl Merge {
    /// Returns the record for the log: ContainersMerged.
    pub fn record(&self) -> Record {
        let (target, finished) = (self.target, self.finished);
        let (forwarded, removed) = (self.forwarded.clone(), self.removed.clone());
        ContainerRecord::ContainersMerged { target, finished, forwarded, removed }.encode(self.digest_bytes)
    }

    /// Returns the new container; `None`: no chunk was left.
    pub fn container(&self) -> Option<ContainerId> {
        self.target
    }
}

impl ContainerStore {
    /// Copies the chunks `live` of the containers `victims` into a new container, where they lie in the order given
    /// here. With no such chunks there is no new container. The new file is durable on return. Until the log has
    /// [`Merge::record`], nothing refers to the new file, and nothing else has changed.
    ///
    /// * `victims` are sealed containers with a file of their own (of [`containers`](Self::containers)), all of one
    ///   partition, none of them in another merge.
    /// * `live` are all their chunks that anybody needs, each once, at most 65,535, by the addresses that they are
    ///   known by.
    ///
    /// Errors:
    /// * [`StorageError::Merge`] if the arguments do not fit, before anything is written.
    /// * [`StorageError::Damaged`] if a chunk of `live` or a catalog cannot be read. Then the containers stay as they
    ///   are.
    ///
    /// The calling thread does all the work. It reads past the frame cache.
    pub fn merge(&self, victims: &[ContainerId], live: &[(Address, Fingerprint)]) -> Result<Merge> {
        let shared = &self.shared;
        shared.check_writable()?;
        let first = victims.first().ok_or_else(|| refused("no container was given"))?;
        if shared.options.discards_data && !live.is_empty() {
            return Err(refused("this store keeps no data, so it cannot copy their live chunks"));
        }
        if let Some(other) = victims.iter().find(|victim| victim.partition() != first.partition()) {
            return Err(refused(format!("{first} and {other} are in different partitions")));
        }
        let mut claim = shared.claim(victims)?;
        let created = shared.hold_log(&claim);
        let merged = shared.plan(victims, live).and_then(|plan| {
            let mut write = || shared.write_merged(first.partition(), created, &mut claim, &plan);
            let written = if live.is_empty() { None } else { Some(write()?) };
            Ok((plan, written))
        });
        let (plan, written) = match merged {
            Ok(merged) => merged,
            Err(error) => {
                shared.give_up(claim);
                return Err(error);
            }
        };
        let mut statistics = plan.statistics;
        let catalog = written.as_ref().map(|(catalog, _)| catalog);
        if let Some((_, length_bytes)) = written {
            statistics.files_after.add(length_bytes);
        }
        statistics.files_after.forwards = plan.forwarded.len() as u64;
        statistics.chunks_after = catalog.map_or(0, |catalog| catalog.slots.len() as u64);
        statistics.raw_bytes_after = catalog.map_or(0, raw_bytes);
        statistics.stored_bytes_after = catalog.map_or(0, stored_bytes);
        Ok(Merge {
            claim,
            target: written.map(|(catalog, _)| catalog.container),
            forwarded: plan.forwarded,
            removed: plan.removed,
            finished: shared.merging.oldest_log().unwrap_or_default(),
            digest_bytes: shared.options.digest_bytes(),
            statistics,
        })
    }
}

fn refused(why: impl Into<String>) -> StorageError {
    StorageError::Merge { why: why.into() }
}

fn raw_bytes(catalog: &Catalog) -> u64 {
    catalog.frames.iter().map(|frame| u64::from(frame.raw_bytes)).sum()
}

fn stored_bytes(catalog: &Catalog) -> u64 {
    catalog.frames.iter().map(|frame| u64::from(frame.stored_bytes)).sum()
}

/// What to copy from where, and what becomes of the ids.
struct Plan {
    chunks: Vec<Planned>,
    homes: Homes,
    forwarded: Vec<ContainerId>,
    removed: Vec<ContainerId>,
    /// The figures of what goes.
    statistics: MergeStatistics,
}

/// A chunk to copy.
struct Planned {
    home: Address,
    catalog: Arc<Catalog>,
    /// Its place in that catalog.
    position: usize,
    slot: Slot,
}

impl Planned {
    fn frame(&self) -> &Frame {
        &self.catalog.frames[usize::from(self.slot.frame)]
    }
}

impl Shared {
    fn plan(&self, victims: &[ContainerId], live: &[(Address, Fingerprint)]) -> Result<Plan> {
        if live.len() > MAX_SLOTS {
            return Err(refused(format!("{} chunks are live; a container has at most {MAX_SLOTS}", live.len())));
        }
        let live_homes: BTreeSet<ContainerId> = live.iter().map(|(address, _)| address.container()).collect();
        let mut statistics = MergeStatistics::default();
        let mut catalogs: HashMap<ContainerId, Arc<Catalog>> = HashMap::new();
        let (mut forwarded, mut removed) = (BTreeSet::new(), BTreeSet::new());
        for victim in victims {
            let catalog = self.catalog_for_once(*victim)?;
            statistics.files_before.add(self.file_for_reading(*victim)?.len()?);
            statistics.chunks_before += catalog.slots.len() as u64;
            statistics.raw_bytes_before += raw_bytes(&catalog);
            statistics.stored_bytes_before += stored_bytes(&catalog);
            for home in catalog.home_containers() {
                // Happens only if a merged container was damaged once. Then its old files stayed, and this file is not
                // the one that counts.
                if self.stable(|| self.answering(*home))? != *victim {
                    continue;
                }
                statistics.files_before.forwards += u64::from(home != victim);
                if live_homes.contains(home) {
                    catalogs.insert(*home, catalog.clone());
                    forwarded.insert(*home);
                } else {
                    removed.insert(*home);
                }
            }
            if catalog.homes.is_some() {
                removed.insert(*victim);
            }
        }
        let mut chunks = Vec::with_capacity(live.len());
        for (home, fingerprint) in live {
            let catalog = catalogs.get(&home.container());
            let catalog = catalog.ok_or_else(|| refused(format!("the chunk with the address {home} is in none of them")))?;
            catalog.find(*home, fingerprint).map_err(|why| self.not_found(catalog.container, *home, why))?;
            let position = catalog.position(*home).expect("it was found just now");
            chunks.push(Planned { home: *home, catalog: catalog.clone(), position, slot: catalog.slots[position] });
        }
        let homes = Homes::new(live.iter().map(|(home, _)| *home).collect());
        let homes = homes.map_err(|twice| refused(format!("the chunk with the address {twice} is live twice")))?;
        let raw_bytes: u64 = chunks.iter().map(|chunk| u64::from(chunk.slot.length_bytes)).sum();
        let entry_bytes = FRAME_ENTRY_BYTES + SLOT_ENTRY_BYTES + self.options.digest_bytes() as u64;
        if HEADER_BYTES as u64 + raw_bytes + (chunks.len() as u64 + 64) * entry_bytes > u64::from(u32::MAX) {
            return Err(refused(format!("their live chunks have {raw_bytes} bytes; a container has less than 4 GiB")));
        }
        let (forwarded, removed) = (forwarded.into_iter().collect(), removed.into_iter().collect());
        Ok(Plan { chunks, homes, forwarded, removed, statistics })
    }

    /// Returns the catalog of a container without keeping it: nobody will ask for it again.
    fn catalog_for_once(&self, container: ContainerId) -> Result<Arc<Catalog>> {
        self.caches.catalog_for_once(container).map_or_else(|| self.read_catalog(container).map(Arc::new), Ok)
    }

    /// Writes the new container and makes it durable. Returns its catalog and the length of its file. On an error the
    /// claim says whether there is a file.
    fn write_merged(&self, partition: u16, created: Position, claim: &mut Claim, plan: &Plan) -> Result<(Catalog, u64)> {
        let id = self.placement.give_out(partition)?;
        let path = file::path(&self.directory, id);
        self.merging.claim_target(claim, id);
        self.ground.create_directory(parent(&path)).map_err(StorageError::cannot_write)?;
        let file = self.ground.create(&path).map_err(StorageError::cannot_write)?;
        claim.has_file = true;
        let mut output = Output::begin(self, file, id, created)?;
        output.copy_all(&plan.chunks)?;
        output.finish(plan.homes.clone(), created)
    }
}
