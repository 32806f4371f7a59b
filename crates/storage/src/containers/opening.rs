//! Makes and opens the containers of a store.

use crate::containers::ahead::Ahead;
use crate::containers::caches::Caches;
use crate::containers::counters::Counters;
use crate::containers::file;
use crate::containers::flow::Flow;
use crate::containers::forwards::Forwards;
use crate::containers::frame_cache::FrameCache;
use crate::containers::log_end::LogEnd;
use crate::containers::merging::Merging;
use crate::containers::mode::Mode;
use crate::containers::owner::{self, Owners};
use crate::containers::placement::Placement;
use crate::containers::protection::Protection;
use crate::containers::puts::{Puts, put_all, puts_at_once};
use crate::containers::rehearsal::Rehearsal;
use crate::containers::replay::{Recovery, Replay};
use crate::containers::store::{ContainerStore, Shared, StorageOptions};
use crate::containers::unsealed::Unsealed;
use crate::containers::void::Void;
use crate::containers::workers::work;
use crate::{Result, StorageError};
use crossbeam_channel::unbounded;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground};
use onefold_oplog::{Owned, Ownership};
use std::sync::Arc;
use std::thread::JoinHandle;

impl ContainerStore {
    /// Makes the directories of a new store. Durable on return.
    pub fn create(ground: &dyn Ground, directory: &str, partitions: u16) -> Result<()> {
        for partition in 0..partitions {
            ground.create_directory(&file::partition_directory(directory, partition))?;
            owner::create(ground, directory, partition)?;
        }
        Ok(())
    }

    /// Opens partitions of the containers below `directory`. The caller then [replays](Self::replay) what the log knows
    /// of them, before anything is written.
    ///
    /// With [`Access::Read`] nothing on disk changes, and the epochs do not matter. Otherwise a partition that a later
    /// owner has opened is refused. Sealed containers of partitions that are not opened can be read.
    pub fn open(
        ground: Arc<dyn Ground>,
        directory: &str,
        ownership: &Ownership,
        options: StorageOptions,
        access: Access,
        profile: Arc<Profile>,
    ) -> Result<Arc<ContainerStore>> {
        options.check()?;
        // In a bucket, partitions may come later.
        if ownership.owned().is_empty() && !options.whole_files {
            return Err(StorageError::Option { option: "partitions", value: "0".to_owned(), allowed: "at least 1" });
        }
        // In a bucket the log says all that these lists say.
        let recovery = match ground.bucket() {
            Some(_) => Recovery::of_log(ownership.numbers()),
            None => {
                let mut recovery = Recovery::start(&*ground, directory, ownership.numbers())?;
                if options.whole_files {
                    // The log says which numbers are used. Files come and go.
                    recovery.highest.values_mut().for_each(|highest| *highest = 0);
                }
                recovery
            }
        };
        let owners = match options.whole_files {
            // All containers belong to the owners of one log, which fences earlier ones.
            true => Owners::of_log(ownership),
            false => Owners::open(&*ground, directory, ownership, access == Access::ReadWrite)?,
        };
        let shared = Arc::new(Shared {
            ground,
            directory: directory.to_owned(),
            owners,
            profile,
            mode: Mode::new(access),
            replay: Replay::new(recovery),
            unsealed: Unsealed::default(),
            log_end: LogEnd::default(),
            forwards: Forwards::new(),
            merging: Merging::default(),
            protection: Protection::default(),
            rehearsal: Rehearsal::default(),
            placement: Placement::new(ownership),
            void: Void::default(),
            flow: Flow::new(options.in_flight_bytes),
            puts: Puts::default(),
            frames: FrameCache::new(options.frame_cache_bytes),
            caches: Caches::new(options.catalog_cache_bytes, options.catalog_cache_policy),
            ahead: Ahead::default(),
            counters: Counters::default(),
            options,
        });
        let (jobs, queue) = unbounded();
        let mut store = ContainerStore { shared, jobs: Some(jobs), workers: Vec::new(), putters: Vec::new() };
        let shared = store.shared.clone();
        let is_for_writing = access == Access::ReadWrite;
        for number in 0..if is_for_writing { shared.options.workers } else { 0 } {
            let (shared, queue) = (shared.clone(), queue.clone());
            store.workers.push(start(directory, format!("storage-{number}"), move || work(&shared, &queue))?);
        }
        if is_for_writing && shared.options.whole_files {
            let full = shared.puts.open();
            for number in 0..puts_at_once(shared.options.container_bytes) {
                let (shared, full) = (shared.clone(), full.clone());
                store.putters.push(start(directory, format!("storage-put-{number}"), move || put_all(&shared, &full))?);
            }
        }
        Ok(Arc::new(store))
    }

    /// Makes a partition of another owner the partition of `owned`. Nothing that is in it now is the new owner's.
    /// Durable on return. The head of `owner.rs` says what must come before. Errors: the partition was opened with this
    /// epoch or a greater one.
    pub fn adopt(ground: &dyn Ground, directory: &str, owned: Owned) -> Result<()> {
        owner::adopt(ground, directory, owned, || {
            let recovery = Recovery::start(ground, directory, std::iter::once(owned.number))?;
            Ok(recovery.next_number(owned.number as u16))
        })
    }

    /// Returns what is wrong with the files that say who owns the opened partitions. The next opening for writing
    /// rebuilds them.
    pub fn damaged_owners(&self) -> Result<Vec<String>> {
        self.shared.owners.damaged(&*self.shared.ground, &self.shared.directory)
    }
}

/// Starts a thread of a store.
fn start(directory: &str, name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(work).map_err(|source| {
        StorageError::Ground(onefold_ground::GroundError::Io { operation: "start a thread for", path: directory.to_owned(), source })
    })
}
