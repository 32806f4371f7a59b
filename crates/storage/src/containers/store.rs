//! The container store as a whole: its options, opening and closing it, its figures.

use crate::containers::ahead::Ahead;
use crate::containers::caches::Caches;
use crate::containers::counters::Counters;
use crate::containers::eviction::CachePolicy;
use crate::containers::file;
use crate::containers::flow::Flow;
use crate::containers::forwards::Forwards;
use crate::containers::frame_cache::FrameCache;
use crate::containers::group_id::Folder;
use crate::containers::job::Job;
use crate::containers::log_end::LogEnd;
use crate::containers::merging::Merging;
use crate::containers::mode::Mode;
use crate::containers::open::Seal;
use crate::containers::owner::Owners;
use crate::containers::placement::{CommittedSlots, Placement};
use crate::containers::protection::Protection;
use crate::containers::puts::Puts;
use crate::containers::rehearsal::Rehearsal;
use crate::containers::replay::Replay;
use crate::containers::unsealed::Unsealed;
use crate::containers::void::Void;
use crate::{Compression, ContainerId, ContainerSet, Origin, Result, StorageError};
use crossbeam_channel::Sender;
use onefold_fingerprint::Algorithm;
use onefold_ground::profile::Profile;
use onefold_ground::{File, Ground};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Options for filling containers, and bounds on memory.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// Size of a full container file, 4 KiB to 512 MiB. Filling aims at it with an estimate of how well frames on their
    /// way will compress.
    pub container_bytes: u32,
    /// A frame is closed when it has this many raw bytes, 512 bytes to 16 MiB.
    pub frame_bytes: u32,
    /// How frames are compressed.
    pub compression: Compression,
    /// The same as `frame_bytes`, for the frames of [sequential](crate::Writer::sequential) writers.
    pub sequential_frame_bytes: u32,
    /// The same as `compression`, for the frames of sequential writers.
    pub sequential_compression: Compression,
    /// How chunks are named.
    pub fingerprint: Algorithm,
    /// The store's name.
    pub store: [u8; 16],
    /// Threads that compress and write, at least 1.
    pub workers: usize,
    /// Bytes of full frames that wait to be compressed and written: raw ones, and compressed ones of frames that came
    /// compressed. One frame is always allowed. In addition, each writer has one open frame.
    pub in_flight_bytes: usize,
    /// Bytes of decompressed frames kept for reading.
    pub frame_cache_bytes: usize,
    /// Bytes of catalogs kept, for reading and for finding their chunks by name.
    pub catalog_cache_bytes: usize,
    /// Which of them go first.
    pub catalog_cache_policy: CachePolicy,
    /// Whether frames without metadata chunks have their place and checksum, but no bytes. Then reading them is damage,
    /// and containers are merged only if nothing in them is needed. For experiments; a store that was once filled like
    /// this must always be opened like this.
    pub discards_data: bool,
    /// Container files become durable only as a whole, when they are sealed: decision 0068. Until then a file exists
    /// only in this process, and the log has all that is committed of it.
    ///
    /// The ground puts a file with [`File::sync`], once. If the name is taken by another content, that is an error of
    /// kind `AlreadyExists`, and from then on the name leads to that content. After any other error the sync may be
    /// repeated. A ground serves one opening: it begins without files of its own.
    pub whole_files: bool,
}

impl Default for StorageOptions {
    fn default() -> StorageOptions {
        StorageOptions {
            container_bytes: 4 << 20,
            frame_bytes: 64 << 10,
            compression: Compression::Zstd(1),
            sequential_frame_bytes: 512 << 10,
            sequential_compression: Compression::Zstd(2),
            fingerprint: Algorithm::Blake3,
            store: [0; 16],
            workers: 2,
            in_flight_bytes: 32 << 20,
            frame_cache_bytes: 32 << 20,
            catalog_cache_bytes: 32 << 20,
            catalog_cache_policy: CachePolicy::default(),
            discards_data: false,
            whole_files: false,
        }
    }
}

impl StorageOptions {
    /// Bytes of a fingerprint.
    pub(crate) fn digest_bytes(&self) -> usize {
        self.fingerprint.digest_bytes()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let refused = |option, value: usize, allowed| Err(StorageError::Option { option, value: value.to_string(), allowed });
        if !(4 << 10..=512 << 20).contains(&self.container_bytes) {
            return refused("container_bytes", self.container_bytes as usize, "4 KiB to 512 MiB");
        }
        for (option, bytes) in [("frame_bytes", self.frame_bytes), ("sequential_frame_bytes", self.sequential_frame_bytes)] {
            if !(512..=16 << 20).contains(&bytes) {
                return refused(option, bytes as usize, "512 bytes to 16 MiB");
            }
        }
        if self.workers == 0 {
            return refused("workers", 0, "at least 1");
        }
        if self.discards_data && self.whole_files {
            return Err(StorageError::Option {
                option: "discards_data",
                value: "true".to_owned(),
                allowed: "false in a store with whole files",
            });
        }
        Ok(())
    }
}

/// Open containers of one or more partitions.
#[derive(Debug)]
pub struct ContainerStore {
    pub(crate) shared: Arc<Shared>,
    /// `None` only while the store is dropped.
    pub(crate) jobs: Option<Sender<Job>>,
    pub(crate) workers: Vec<JoinHandle<()>>,
    /// Threads that put full containers, in a store with whole files.
    pub(crate) putters: Vec<JoinHandle<()>>,
}

/// The state that the workers share with the store.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ground: Arc<dyn Ground>,
    pub(crate) directory: String,
    pub(crate) options: StorageOptions,
    /// The opened partitions, and what in them is their owner's.
    pub(crate) owners: Owners,
    pub(crate) profile: Arc<Profile>,
    /// What this opening may do.
    pub(crate) mode: Mode,
    pub(crate) replay: Replay,
    /// All containers that the log does not know as sealed.
    pub(crate) unsealed: Unsealed,
    pub(crate) log_end: LogEnd,
    /// Where the chunks of merged containers are.
    pub(crate) forwards: Forwards,
    /// The holds of merges.
    pub(crate) merging: Merging,
    /// Which containers have parity.
    pub(crate) protection: Protection,
    pub(crate) rehearsal: Rehearsal,
    pub(crate) placement: Placement,
    pub(crate) void: Void,
    pub(crate) flow: Flow,
    /// Full containers to put, in a store with whole files.
    pub(crate) puts: Puts,
    pub(crate) frames: FrameCache,
    pub(crate) caches: Caches,
    pub(crate) ahead: Ahead,
    pub(crate) counters: Counters,
}

impl ContainerStore {
    /// From now on another process may write to the containers: a file that is not in its place is looked for on disk
    /// again. Call only before replay, in a store that is open for reading.
    pub fn follow_writers(&self) {
        self.shared.mode.follow_writers();
    }

    /// Frees the space reserved for containers that are not full. For a store that is closed: the next opening reserves
    /// the space again. A failure harms nothing but the free space.
    pub fn release_room(&self) {
        if self.shared.options.whole_files {
            return; // nothing is reserved
        }
        for container in self.shared.unsealed.all() {
            let state = container.state.lock();
            let kept = state.page_end_bytes();
            let cut = |file: &Arc<dyn File>| if file.len()? > kept { file.set_len(kept) } else { Ok(()) };
            // A container that is being sealed has its catalog behind the frames.
            if let (Some(file), true, Seal::None) = (&state.file, state.pending.is_empty(), state.seal)
                && let Err(error) = cut(file)
            {
                tracing::debug!(%error, "unused space of a container could not be released");
            }
        }
    }

    /// Returns whether a container is sealed: its catalog will not change any more.
    pub fn is_sealed(&self, container: ContainerId) -> bool {
        !self.shared.unsealed.contains(container)
    }

    /// Returns whether there is a file, or a forward, for the chunks of an origin. No: they were all removed, or there
    /// never were any, or they are lost.
    pub fn has_file(&self, origin: Origin) -> Result<bool> {
        let (shared, container) = (&self.shared, origin.container());
        let is_file = || Ok::<_, StorageError>(shared.ground.exists(&file::path(&shared.directory, container))?);
        Ok(shared.unsealed.contains(container) || shared.is_forwarded(container)? || !shared.replay.is_leftover(container) && is_file()?)
    }

    /// Returns all containers: those with a file of their own, and those that only the log knows yet. Containers that
    /// live on in others are the [`forwards`](Self::forwards). A container that is being made is not listed.
    ///
    /// Reads the names of all files, so call it only for work that looks at all of them anyway.
    pub fn containers(&self) -> Result<ContainerSet> {
        self.containers_from(&|_| 0)
    }

    /// Returns the [`containers`](Self::containers) that are numbered from `first(partition)` on. Reads no folder with
    /// smaller numbers only.
    pub fn containers_from(&self, first: &dyn Fn(u16) -> u32) -> Result<ContainerSet> {
        let shared = &self.shared;
        let before = shared.placement.given_out();
        let mut found: ContainerSet = shared.unsealed.with_all(|open| open.map(|container| container.id).collect());
        found.extend(shared.list(file::number, first)?.iter());
        found.extend(shared.all_rehearsed());
        found.retain(|container| {
            let is_there = !shared.merging.is_unlogged(container) && !shared.replay.is_leftover(container) && !shared.void.has(container);
            is_there && !before.is_not_made(container) && container.number() >= first(container.partition())
        });
        shared.forwards.retain_unlogged(&mut found);
        Ok(found)
    }
}

impl ContainerStore {
    /// Returns which slots are durable now. They are of one moment if no batch is committed during the call.
    pub fn committed_slots(&self) -> CommittedSlots {
        // The numbers first: a container that is opened in between is in the second, and has no slot that counts.
        let mut committed = self.shared.placement.given_out();
        self.shared.unsealed.with_all(|open| committed.extend(open.map(|container| (container.id, container.state.lock().logged.slots))));
        committed
    }
}

impl Drop for ContainerStore {
    fn drop(&mut self) {
        self.shared.flow.close();
        self.jobs = None;
        for worker in self.workers.drain(..) {
            // A worker that panicked has poisoned the store; there is nothing left to save.
            let _ = worker.join();
        }
        // Workers add to these.
        self.shared.puts.close();
        for putter in self.putters.drain(..) {
            let _ = putter.join();
        }
    }
}

impl Shared {
    /// Returns the containers whose files have names of one kind, in folders that can have numbers from
    /// `first(partition)` on.
    pub(crate) fn list(&self, number: fn(&str) -> Option<u32>, first: &dyn Fn(u16) -> u32) -> Result<ContainerSet> {
        let mut found = ContainerSet::default();
        for partition in self.owners.partitions() {
            found.extend(self.list_partition(partition, number, first(partition))?);
        }
        Ok(found)
    }

    /// Does the same for one partition.
    pub(crate) fn list_partition(&self, partition: u16, number: fn(&str) -> Option<u32>, first: u32) -> Result<Vec<ContainerId>> {
        let directory = file::partition_directory(&self.directory, partition);
        let lowest = Folder::of(ContainerId::new(partition, first));
        let mut found = Vec::new();
        let folders = self.ground.list(&directory)?.into_iter().filter(|entry| entry.is_directory);
        for folder in folders.filter_map(|entry| Folder::named(partition, &entry.name)).filter(|folder| *folder >= lowest) {
            found.extend(self.list_folder(folder, number)?);
        }
        Ok(found)
    }

    /// Returns the containers whose files in a folder have names of one kind.
    pub(crate) fn list_folder(&self, folder: Folder, number: fn(&str) -> Option<u32>) -> Result<Vec<ContainerId>> {
        let path = folder.path(&self.directory);
        if !self.ground.exists(&path)? {
            return Ok(Vec::new());
        }
        let files = self.ground.list(&path)?;
        Ok(files.iter().filter_map(|entry| folder.container(number(&entry.name)?)).collect())
    }

    /// Checks that appending is allowed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if !self.mode.is_writable() {
            return Err(StorageError::ReadOnly);
        }
        self.flow.check(|| self.write_failed_frames())
    }

    pub(crate) fn damaged(&self, container: ContainerId, frame: Option<u32>, slot: Option<u16>, why: impl Into<String>) -> StorageError {
        let path = self.ground.describe(&file::path(&self.directory, container));
        StorageError::Damaged { path, container, frame, slot, why: why.into() }
    }
}
