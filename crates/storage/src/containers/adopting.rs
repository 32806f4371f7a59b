//! Partitions of containers that come and go while a store in a bucket is open (M4.8, `docs/cluster.md`).
//!
//! A partition that changes its owner has only sealed containers, no merge whose files are not replaced, and an entry
//! in a log that all its numbers up to a last one are used and settled. So its next owner needs to know this number,
//! and which of the numbers before it are void. Everything else is in the bucket.
//!
//! # How a partition goes
//! 1. [`leave_partition`](ContainerStore::leave_partition): no writer gets a container in it any more, no merge begins.
//!    Its containers are closed.
//! 2. Commits seal them. [`remove_partition`](ContainerStore::remove_partition) says when it is over. Until then it
//!    makes the next batch say what is settled. Call it alone among commits.
//! 3. The log says so from [`LeftPartition::since`] on. It must be kept from there on until no lineage names this log
//!    for the partition: the next owner reads it.
//!
//! # How it comes
//! 1. The new owner's log has NumbersReserved of the partition, in the batch in which it adopts it. So the new owner
//!    gives out no number that an earlier one may have given out (`numbers.rs`).
//! 2. It opens the partition alone in a second [`ContainerStore`], and replays there what the logs of its lineage say
//!    of it: that of the owner before, up to its end, then its own. This is what every opening does. So a lost owner's
//!    unsealed containers, merges and leftovers are what they are after a crash on one machine. The start of the log
//!    ([`recovered`](ContainerStore::recovered)) is that of the lineage's first log: of the others nothing is trimmed
//!    yet.
//! 3. The second store leaves the partition, as above. Its batches go into the new owner's log, which is not trimmed
//!    past what the second store needs.
//! 4. [`add_partition`](ContainerStore::add_partition) with what step 3 returned. Until then the second store is kept,
//!    and its [trim point](ContainerStore::trim_point) is asked for.
//!
//! If the new owner dies in between, the next one does the same with a lineage that is longer by its log. If an owner
//! opens its log again, it has the partition from the position on at which it adopted it. What its log says of the
//! partition before that is of an earlier time, and must not be [replayed](ContainerStore::replay).
//!
//! # Readers
//! Containers of all partitions can be read, whoever owns them. Their owners merge them meanwhile. So a reader of a
//! partition that is not opened here asks the bucket again when it misses a file (`forward.rs`).

use crate::containers::file;
use crate::containers::void::VoidNumbers;
use crate::{Address, ContainerStore, Origin, Result, StorageError};
use onefold_oplog::{Owned, Position};

/// A partition that its owner has left: what its next owner must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftPartition {
    number: u16,
    /// All numbers up to this one are used, and all containers up to it are in the bucket or gone.
    last: u32,
    /// The log says so from here on.
    since: Position,
    /// Numbers of which no container came that anybody may use.
    void: Vec<VoidNumbers>,
}

impl LeftPartition {
    /// Returns the partition.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns from where on the log says that its numbers are used.
    pub fn since(&self) -> Position {
        self.since
    }

    /// Returns its void numbers, as far as the store knew that left it.
    pub fn void(&self) -> &[VoidNumbers] {
        &self.void
    }
}

impl ContainerStore {
    /// Returns whether a partition is opened.
    pub fn has_partition(&self, number: u16) -> bool {
        self.shared.owners.has(number)
    }

    /// Returns whether the partition is opened that an address is in.
    pub fn has_partition_of(&self, address: Address) -> bool {
        self.shared.owners.has(address.container().partition())
    }

    /// Returns whether this opening has begun the container of an origin, or may begin it, in a store whose
    /// files are put as a whole.
    pub fn is_of_this_opening(&self, origin: Origin) -> bool {
        self.shared.placement.is_own(origin.container())
    }

    /// Begins to leave a partition: it takes no new containers, and those that it has are closed. The next commits seal
    /// them. May be repeated. Errors: the partition is not opened, or the store is not in a bucket.
    pub fn leave_partition(&self, number: u16) -> Result<()> {
        if !self.shared.options.whole_files {
            let allowed = "in a store in a bucket only";
            return Err(StorageError::Option { option: "leave_partition", value: number.to_string(), allowed });
        }
        if !self.shared.placement.begin_leaving(number) {
            return Err(StorageError::NotOpened { partition: number });
        }
        self.close_partition(number);
        Ok(())
    }

    fn close_partition(&self, number: u16) {
        let containers = self.shared.unsealed.all();
        containers.iter().filter(|container| container.id.partition() == number).for_each(|container| self.close(container));
    }

    /// Removes a partition that was [left](Self::leave_partition), if it is over there. `None`: commit, finish merges,
    /// and ask again. The batch of that commit has records, or the [scope](crate::Scope) was `Everything`.
    pub fn remove_partition(&self, number: u16) -> Result<Option<LeftPartition>> {
        let shared = &self.shared;
        if shared.placement.takes(number) || !shared.owners.has(number) {
            return Err(StorageError::NotOpened { partition: number });
        }
        // Parity is put in its place under this lock.
        let _files = shared.merging.hold_files();
        // One that was being made when the leaving began.
        self.close_partition(number);
        if shared.merging.has_some_of(number) || shared.unsealed.all().iter().any(|container| container.id.partition() == number) {
            return Ok(None);
        }
        let Some((last, since)) = shared.placement.ended(number) else { return Ok(None) };
        let void = shared.void.of_partition(number);
        shared.owners.remove(number);
        shared.placement.remove(number);
        shared.void.forget(number);
        shared.forwards.forget_partition(number);
        Ok(Some(LeftPartition { number, last, since, void }))
    }

    /// Adds a partition. New containers come to it from now on. The head of this file says what must come before.
    /// Errors: it is opened already, or there is no partition of this number.
    pub fn add_partition(&self, owned: Owned, left: LeftPartition) -> Result<()> {
        let shared = &self.shared;
        let LeftPartition { number, last, since, void } = left;
        if u32::from(number) != owned.number || owned.number >= shared.owners.total() || shared.owners.has(number) {
            return Err(StorageError::Option {
                option: "add_partition",
                value: owned.number.to_string(),
                allowed: "a partition that was left and is not opened",
            });
        }
        shared.check_writable()?;
        shared.void.add(void);
        // What was read of it while it was another owner's may be out of date: that one has merged containers.
        shared.forwards.forget_partition(number);
        shared.caches.forget_partition(number);
        for merged in shared.list_partition(number, file::forward_number, 0)? {
            shared.ground.forget(&file::path(&shared.directory, merged));
        }
        shared.owners.add(owned);
        shared.placement.add(number, last, since);
        Ok(())
    }
}
