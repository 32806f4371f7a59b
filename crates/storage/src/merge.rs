//! Merging containers (M0.20): the chunks that are still needed are copied into a new container, and the files of the old ones go.
//!
//! 1. [`ContainerStore::merge`] copies: the new file is whole and synced, nothing that was there is touched.
//! 2. The caller logs [`Merge::record`]. With that the merge has happened.
//! 3. [`ContainerStore::merged`] replaces the files (`replace.rs`). A crash before it is done, or a disk that is full, delays that only.
//!
//! Addresses do not change: the new catalog has the homes of the chunks, and forwards lead there. This module must never decide which
//! chunks are needed: whoever calls knows it, and sees to it that none of the others comes to be needed again.

use crate::catalog::MAX_SLOTS;
use crate::compression::Compressor;
use crate::open::catalog_and_footer;
use crate::reader::{Needed, is_near};
use crate::records::ContainerRecord;
use crate::replace::Claim;
use crate::store::{ContainerStore, Shared};
use crate::{Address, Catalog, Codec, ContainerId, Frame, HEADER_BYTES, Header, Homes, Result, Slot, StorageError, file};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_ground::{File, checksum, parent};
use onefold_oplog::{Position, Record};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Raw bytes copied at a time: with the frames read for them, what a merge needs of memory besides catalogs.
const WINDOW_BYTES: usize = 16 << 20;
/// Most bytes that a frame, a slot and its home take in a catalog, besides the fingerprint.
const FRAME_ENTRY_BYTES: u64 = 48;
const SLOT_ENTRY_BYTES: u64 = 16;

/// Containers that were merged, for the log. It is either [merged](ContainerStore::merged) or [abandoned](ContainerStore::abandon_merge).
/// When nobody knows whether the log has the record (its sync failed), it is dropped: its containers then stay as they are, and take part in
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
    /// What it does to the figures of the store.
    pub statistics: MergeStatistics,
}

/// What a merge does to the figures of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeStatistics {
    /// Container files that go.
    pub containers_before: u64,
    /// Container files that come: 1 or 0.
    pub containers_after: u64,
    /// Chunks in those that go.
    pub chunks_before: u64,
    /// Chunks in the one that comes.
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
    /// For the log: ContainersMerged.
    pub fn record(&self) -> Record {
        let (target, finished) = (self.target, self.finished);
        let (forwarded, removed) = (self.forwarded.clone(), self.removed.clone());
        ContainerRecord::ContainersMerged { target, finished, forwarded, removed }.encode(self.digest_bytes)
    }

    /// The new container; `None`: no chunk was left.
    pub fn container(&self) -> Option<ContainerId> {
        self.target
    }
}

impl ContainerStore {
    /// Copies the chunks `live` of the containers `victims` into a new container, in which they lie in the order given here; with no such
    /// chunks there is none. The new file is durable on return. Nothing refers to it, and nothing else has changed, before the log has
    /// [`Merge::record`].
    ///
    /// `victims` are sealed containers with a file of their own (of [`containers`](Self::containers)), all of one partition, none of
    /// them in another merge. `live` are all chunks of theirs that anybody needs, each once, at most 65,535, by the addresses that they are
    /// known by. What does not fit is [`StorageError::Merge`], before anything is written.
    ///
    /// [`StorageError::Damaged`] if a chunk of `live` or a catalog cannot be read; then the containers stay as they are. The calling
    /// thread does all the work; reading goes past the frame cache.
    pub fn merge(&self, victims: &[ContainerId], live: &[(Address, Fingerprint)]) -> Result<Merge> {
        let shared = &self.shared;
        shared.check_writable()?;
        let first = victims.first().ok_or_else(|| refused("there is none"))?;
        if shared.options.discards_data && !live.is_empty() {
            return Err(refused("this store keeps no data, so what is needed of them cannot be copied"));
        }
        if let Some(other) = victims.iter().find(|victim| victim.partition() != first.partition()) {
            return Err(refused(format!("{first} and {other} are in two partitions")));
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
        let catalog = written.as_ref();
        statistics.containers_after = u64::from(catalog.is_some());
        statistics.chunks_after = catalog.map_or(0, |catalog| catalog.slots.len() as u64);
        statistics.raw_bytes_after = catalog.map_or(0, raw_bytes);
        statistics.stored_bytes_after = catalog.map_or(0, stored_bytes);
        Ok(Merge {
            claim,
            target: written.map(|catalog| catalog.container),
            forwarded: plan.forwarded,
            removed: plan.removed,
            finished: shared.merges_finished(),
            digest_bytes: shared.options.digest_bytes,
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

/// What is copied from where, and what becomes of the ids.
struct Plan {
    chunks: Vec<Planned>,
    homes: Homes,
    forwarded: Vec<ContainerId>,
    removed: Vec<ContainerId>,
    /// Of what goes.
    statistics: MergeStatistics,
}

/// A chunk to be copied.
struct Planned {
    home: Address,
    catalog: Arc<Catalog>,
    /// Its place in that catalog.
    position: usize,
    slot: Slot,
}

/// Chunks that are copied in one way.
struct Part {
    chunks: Range<usize>,
    /// All chunks of one frame, in its order, and nothing else: copied as it is, without being compressed again.
    is_whole_frame: bool,
}

impl Planned {
    fn frame(&self) -> &Frame {
        &self.catalog.frames[usize::from(self.slot.frame)]
    }
}

impl Shared {
    fn plan(&self, victims: &[ContainerId], live: &[(Address, Fingerprint)]) -> Result<Plan> {
        if live.len() > MAX_SLOTS {
            return Err(refused(format!("{} chunks are live, a container has at most {MAX_SLOTS}", live.len())));
        }
        let live_homes: BTreeSet<ContainerId> = live.iter().map(|(address, _)| address.container()).collect();
        let mut statistics = MergeStatistics { containers_before: victims.len() as u64, ..MergeStatistics::default() };
        let mut catalogs: HashMap<ContainerId, Arc<Catalog>> = HashMap::new();
        let (mut forwarded, mut removed) = (BTreeSet::new(), BTreeSet::new());
        for victim in victims {
            let catalog = self.catalog_for_once(*victim)?;
            statistics.chunks_before += catalog.slots.len() as u64;
            statistics.raw_bytes_before += raw_bytes(&catalog);
            statistics.stored_bytes_before += stored_bytes(&catalog);
            for home in catalog.home_containers() {
                // Never so, unless a merged container was damaged once: then its old files stayed, and this is not the one that counts.
                if self.stable(|| self.answering(*home))? != *victim {
                    continue;
                }
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
        let entry_bytes = FRAME_ENTRY_BYTES + SLOT_ENTRY_BYTES + self.options.digest_bytes as u64;
        if HEADER_BYTES as u64 + raw_bytes + (chunks.len() as u64 + 64) * entry_bytes > u64::from(u32::MAX) {
            return Err(refused(format!("their live chunks have {raw_bytes} bytes, a container has less than 4 GiB")));
        }
        let (forwarded, removed) = (forwarded.into_iter().collect(), removed.into_iter().collect());
        Ok(Plan { chunks, homes, forwarded, removed, statistics })
    }

    /// The catalog of a container, without keeping it: it will not be asked for again.
    fn catalog_for_once(&self, container: ContainerId) -> Result<Arc<Catalog>> {
        let cached = self.catalogs.lock().get(&container);
        cached.map_or_else(|| self.read_catalog(container).map(Arc::new), Ok)
    }

    /// Writes the new container and makes it durable. On an error the claim says whether there is a file.
    fn write_merged(&self, partition: u16, created: Position, claim: &mut Claim, plan: &Plan) -> Result<Catalog> {
        let id = self.next_container(partition)?;
        let path = file::path(&self.directory, id);
        self.claim_target(claim, id);
        self.ground.create_directory(parent(&path)).map_err(StorageError::cannot_write)?;
        let file = self.ground.create(&path).map_err(StorageError::cannot_write)?;
        claim.has_file = true;
        let mut output = Output {
            shared: self,
            file,
            compressor: Compressor::new(self.options.compression),
            catalog: Catalog::new(id),
            slots: Vec::new(),
            raw: Vec::new(),
            end_bytes: HEADER_BYTES as u64,
        };
        output.header(created)?;
        let parts = parts(&plan.chunks, self.options.frame_bytes / 2);
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |part: &&Part| {
                bytes += plan.chunks[part.chunks.clone()].iter().map(|chunk| chunk.slot.length_bytes as usize).sum::<usize>();
                bytes <= WINDOW_BYTES
            };
            let (window, behind) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = behind;
            output.copy(&plan.chunks, window)?;
        }
        output.finish(plan.homes.clone(), created)
    }
}

/// How chunks are copied. Frames of less than `least_bytes` are not kept as they are.
fn parts(chunks: &[Planned], least_bytes: u32) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = 0;
    while let Some(first) = chunks.get(at) {
        let frame = first.frame();
        let of_frame = chunks[at..].iter().zip(frame.first_slot as usize..);
        let there = of_frame.take_while(|(chunk, slot)| chunk.catalog.container == first.catalog.container && chunk.position == *slot);
        let is_whole_frame = frame.raw_bytes >= least_bytes && there.take(frame.slots as usize).count() == frame.slots as usize;
        let end = if is_whole_frame { at + frame.slots as usize } else { at + 1 };
        parts.push(Part { chunks: at..end, is_whole_frame });
        at = end;
    }
    parts
}

/// The new container while it is written.
struct Output<'a> {
    shared: &'a Shared,
    file: Arc<dyn File>,
    compressor: Compressor,
    catalog: Catalog,
    /// Chunks and bytes of the frame that is being filled.
    slots: Vec<Slot>,
    raw: Vec<u8>,
    /// Where the frames end.
    end_bytes: u64,
}

impl Output<'_> {
    fn header(&self, created: Position) -> Result<()> {
        let options = &self.shared.options;
        let header = Header {
            digest_bytes: options.digest_bytes as u8,
            container: self.catalog.container,
            store: options.store,
            epoch: self.shared.epoch,
            created: created.0,
            merged: true,
        };
        self.file.write_at(0, &header.encode()).map_err(StorageError::cannot_write)
    }

    /// Appends the chunks of some parts. Each frame that has some of them is read once, in the order of the files.
    fn copy(&mut self, all: &[Planned], parts: &[Part]) -> Result<()> {
        let base = parts[0].chunks.start;
        let chunks = &all[base..parts[parts.len() - 1].chunks.end];
        // Where each chunk that does not come with its frame will be.
        let mut starts = vec![None; chunks.len()];
        let mut raw_bytes = 0;
        for at in parts.iter().filter(|part| !part.is_whole_frame).flat_map(|part| part.chunks.clone()) {
            starts[at - base] = Some(raw_bytes);
            raw_bytes += all[at].slot.length_bytes as usize;
        }
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by_key(|at| (chunks[*at].catalog.container, chunks[*at].frame().offset_bytes, chunks[*at].slot.frame));
        let is_same_frame = |a: &usize, b: &usize| {
            let (a, b) = (&chunks[*a], &chunks[*b]);
            (a.catalog.container, a.slot.frame) == (b.catalog.container, b.slot.frame)
        };
        let needed: Vec<Needed> = order
            .chunk_by(is_same_frame)
            .map(|of_frame| {
                let first = &chunks[of_frame[0]];
                let range = |at: usize| {
                    let start = chunks[at].slot.offset_bytes as usize;
                    start..start + chunks[at].slot.length_bytes as usize
                };
                let users = of_frame.iter().map(|at| (*at, range(*at))).collect();
                Needed { container: first.catalog.container, frame: first.frame().clone(), users }
            })
            .collect();
        let mut bytes = vec![0; raw_bytes];
        // Whole frames, by their first chunk.
        let mut frames: HashMap<usize, Vec<u8>> = HashMap::new();
        for run in needed.chunk_by(is_near) {
            let copied = self.shared.read_stored_run(run, |needed, stored| {
                let (first, _) = needed.users[0];
                if starts[first].is_none() {
                    self.shared.check_stored(needed.container, &needed.frame, stored)?;
                    frames.insert(first, stored.to_vec());
                    return Ok(());
                }
                let frame = self.shared.unpack(needed.container, &needed.frame, stored)?;
                for (at, range) in &needed.users {
                    let start = starts[*at].expect("of a frame that does not come as it is, no chunk does");
                    bytes[start..][..range.len()].copy_from_slice(&frame[range.clone()]);
                }
                Ok(())
            });
            copied.map_err(|error| name_chunk(error, chunks))?;
        }
        for part in parts {
            let first = part.chunks.start - base;
            match frames.remove(&first) {
                Some(stored) => self.append_frame(&all[part.chunks.clone()], &stored).map_err(|error| name_chunk(error, chunks))?,
                None => {
                    let (slot, start) = (&chunks[first].slot, starts[first].expect("it does not come with its frame"));
                    self.append(slot, &bytes[start..][..slot.length_bytes as usize]);
                    if self.raw.len() >= self.shared.options.frame_bytes as usize {
                        self.close_frame()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends a frame as it is, or what is in it where too little is before it to be a frame of its own.
    fn append_frame(&mut self, chunks: &[Planned], stored: &[u8]) -> Result<()> {
        let first = &chunks[0];
        let frame = first.frame();
        if !self.slots.is_empty() && self.raw.len() < self.shared.options.frame_bytes as usize / 4 {
            let raw = self.shared.unpack(first.catalog.container, frame, stored)?;
            for Planned { slot, .. } in chunks {
                self.append(slot, &raw[slot.offset_bytes as usize..][..slot.length_bytes as usize]);
            }
            // So that the frame behind it can come as it is.
            return self.close_frame();
        }
        if !self.slots.is_empty() {
            self.close_frame()?;
        }
        let number = self.catalog.frames.len() as u16;
        self.slots.extend(chunks.iter().map(|chunk| Slot { frame: number, ..chunk.slot }));
        self.write_frame(frame.codec, frame.raw_bytes, frame.checksum, stored)
    }

    fn append(&mut self, slot: &Slot, bytes: &[u8]) {
        let (frame, offset_bytes) = (self.catalog.frames.len() as u16, self.raw.len() as u32);
        self.slots.push(Slot { frame, offset_bytes, ..*slot });
        self.raw.extend_from_slice(bytes);
    }

    /// Compresses the frame and writes it.
    fn close_frame(&mut self) -> Result<()> {
        let raw = std::mem::take(&mut self.raw);
        let compressor = &mut self.compressor;
        let (codec, stored) = self.shared.profile.time(Component::Compress, raw.len() as u64, || compressor.compress(&raw));
        let stored = stored.to_vec();
        self.write_frame(codec, raw.len() as u32, checksum(&stored), &stored)?;
        self.raw = raw;
        self.raw.clear();
        Ok(())
    }

    /// Writes a frame that has the chunks of `slots`.
    fn write_frame(&mut self, codec: Codec, raw_bytes: u32, checksum: u64, stored: &[u8]) -> Result<()> {
        let shared = self.shared;
        let frame = Frame {
            number: self.catalog.frames.len() as u32,
            first_slot: self.catalog.slots.len() as u32,
            slots: self.slots.len() as u32,
            offset_bytes: self.end_bytes as u32,
            stored_bytes: stored.len() as u32,
            raw_bytes,
            codec,
            checksum,
        };
        shared
            .profile
            .time(Component::StorageWrite, stored.len() as u64, || self.file.write_at(self.end_bytes, stored))
            .map_err(StorageError::cannot_write)?;
        self.file.start_writeback(self.end_bytes, stored.len() as u64);
        self.end_bytes = frame.end_bytes();
        self.catalog.push(frame, &self.slots);
        self.slots.clear();
        Ok(())
    }

    /// Writes catalog and footer, and makes the file durable.
    fn finish(mut self, homes: Homes, created: Position) -> Result<Catalog> {
        if !self.slots.is_empty() {
            self.close_frame()?;
        }
        let Output { shared, file, mut catalog, end_bytes, .. } = self;
        catalog.homes = Some(homes);
        let tail = catalog_and_footer(&catalog, end_bytes, Some(created), shared.options.digest_bytes);
        file.write_at(end_bytes, &tail).and_then(|()| file.sync()).map_err(StorageError::cannot_write)?;
        // Other files may have their names in that directory: after a failed sync nobody knows which are there.
        shared.sync_folders(&BTreeSet::from([file::folder(&shared.directory, catalog.container)]))?;
        // Old files go because this one is right: it is read as anybody else will read it.
        let read = shared.read_catalog(catalog.container)?;
        if read != catalog {
            return Err(shared.damaged(catalog.container, None, None, "it is not what was just written"));
        }
        Ok(catalog)
    }
}

/// Names a chunk that is lost with a frame.
fn name_chunk(error: StorageError, chunks: &[Planned]) -> StorageError {
    let StorageError::Damaged { path, container, frame: Some(frame), slot: None, why } = error else { return error };
    let is_in_it = |chunk: &&Planned| chunk.catalog.container == container && u32::from(chunk.slot.frame) == frame;
    let chunk = chunks.iter().find(is_in_it).map(|chunk| format!("chunk {} at {}: ", chunk.slot.fingerprint, chunk.home));
    StorageError::Damaged { path, container, frame: Some(frame), slot: None, why: format!("{}{why}", chunk.unwrap_or_default()) }
}
