//! Forwards: which container file answers to an id whose own file went with a merge (M0.20).
//!
//! An id is looked up in this order:
//! 1. what the log says and the disk may not say yet,
//! 2. a file of the container itself,
//! 3. a forward file.
//!
//! A forward names the file that has the chunks, never another forward. When a merged container is merged again, all
//! ids that it answers to get new forwards.
//!
//! # Readers beside a merge
//! A reader that looked an id up may find the file gone, or another catalog than that of the file it reads. No such
//! mixture gives wrong bytes, as catalogs, frames and names of chunks are all checked. It is an error, and
//! [`Shared::stable`] then looks again. Each switch counts a move
//! ([`Forwards::count_move`](crate::containers::forwards::Forwards::count_move)) *after* the new place can be found and
//! *before* the old file goes. For the same reason data read from disk is not cached if something has moved since: it
//! would stay there forever.
//!
//! Beside a writer in another process ([`ContainerStore::follow_writers`], and in partitions that are not opened here)
//! nobody counts the generation. A reader that
//! misses a file forgets what it knows of forwards and asks the disk. The disk always has one of the two, as a forward
//! is durable before its file goes. What the log says of merges is not needed then.

use crate::address::decode_container;
use crate::containers::file;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Catalog, ContainerId, ContainerSet, Origin, Result, StorageError};
use onefold_ground::wire::Reader;
use onefold_ground::{Access, checksum};
use std::sync::Arc;

/// Bytes of a forward file: one sector, so it is written whole or not at all.
pub const FORWARD_BYTES: usize = 512;
/// Bytes of it before the checksum.
const CONTENT_BYTES: usize = 48;
const MAGIC: &[u8; 8] = b"1FLDFWD1";
const VERSION: u32 = 1;

/// The content of a forward file (`docs/format.md` section 5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The container that was merged.
    pub container: ContainerId,
    /// The container that has its chunks now.
    pub target: ContainerId,
    /// The store's name.
    pub store: [u8; 16],
}

impl Forward {
    /// The bytes.
    pub fn encode(&self) -> [u8; FORWARD_BYTES] {
        let mut bytes = [0; FORWARD_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.container.bits().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.target.bits().to_le_bytes());
        bytes[32..CONTENT_BYTES].copy_from_slice(&self.store);
        let sum = checksum(&bytes[..CONTENT_BYTES]);
        bytes[CONTENT_BYTES..CONTENT_BYTES + 8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a forward; the error is for people.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Forward, String> {
        if bytes.len() != FORWARD_BYTES {
            return Err(format!("the file has {} bytes; a forward has {FORWARD_BYTES}", bytes.len()));
        }
        let said = |error: onefold_ground::wire::WireError| error.to_string();
        let mut reader = Reader::new(bytes);
        if reader.take(8).map_err(said)? != MAGIC {
            return Err("this is not a forward".to_owned());
        }
        let (version, reserved) = (reader.u32().map_err(said)?, reader.u32().map_err(said)?);
        let (container, target) = (decode_container(&mut reader), decode_container(&mut reader));
        let mut store = [0; 16];
        store.copy_from_slice(reader.take(16).map_err(said)?);
        if reader.u64().map_err(said)? != checksum(&bytes[..CONTENT_BYTES]) {
            return Err("the checksum of the forward is wrong".to_owned());
        }
        if version != VERSION {
            return Err(format!("the forward has version {version}; this program reads version {VERSION}"));
        }
        let (container, target) = (container.map_err(said)?, target.map_err(said)?);
        if container == target || container.partition() != target.partition() {
            return Err(format!("a forward of container {container} cannot lead to {target}"));
        }
        if reserved != 0 || bytes[CONTENT_BYTES + 8..].iter().any(|byte| *byte != 0) {
            return Err("the reserved bytes of the forward are not zero".to_owned());
        }
        Ok(Forward { container, target, store })
    }
}

impl ContainerStore {
    /// Returns the container whose file has the chunk at an address, or the chunks of an origin: the one where they
    /// were stored first, or what it was merged into.
    pub fn container_of(&self, at: impl Into<Origin>) -> Result<ContainerId> {
        let container = at.into().container();
        if !self.is_sealed(container) {
            return Ok(container);
        }
        self.shared.stable(|| self.shared.answering(container))
    }

    /// Returns the containers whose files may have the chunks of an origin, even if the right one cannot be read.
    pub fn possible_containers(&self, origin: Origin) -> impl Iterator<Item = ContainerId> {
        [Some(origin.container()), self.container_of(origin).ok()].into_iter().flatten()
    }

    /// Returns the containers that live on in others: all ids that have a forward.
    pub fn forwards(&self) -> Result<ContainerSet> {
        self.forwards_from(&|_| 0)
    }

    /// Returns the [`forwards`](Self::forwards) of containers that are numbered from `first(partition)` on. Reads no
    /// folder with smaller numbers only.
    pub fn forwards_from(&self, first: &dyn Fn(u16) -> u32) -> Result<ContainerSet> {
        let mut found = self.shared.list(file::forward_number, first)?;
        self.shared.forwards.correct(&mut found);
        found.retain(|id| id.number() >= first(id.partition()));
        Ok(found)
    }

    /// Returns whether a container has a forward.
    pub fn has_forward(&self, container: ContainerId) -> Result<bool> {
        let logged = self.shared.forwards.logged(container);
        logged.map_or_else(|| self.shared.is_forwarded(container), |fate| Ok(fate.is_some()))
    }

    /// Returns where the forward of `container` leads, whether or not the target can be read. Returns `None` if it has
    /// no forward, or a damaged one.
    pub fn forward_target(&self, container: ContainerId) -> Option<ContainerId> {
        let logged = self.shared.forwards.logged(container);
        logged.unwrap_or_else(|| self.shared.read_forward(container).ok().flatten())
    }

    /// Reads the forward of `container` from disk, and checks that the container it names has chunks of `container`.
    /// Returns that container. Errors: [`StorageError::Damaged`] if the forward is damaged or leads nowhere.
    pub fn verify_forward(&self, container: ContainerId) -> Result<ContainerId> {
        self.shared.stable(|| {
            let target = match self.shared.forwards.logged(container).flatten() {
                Some(target) => target,
                None => self.shared.read_forward(container)?.ok_or_else(|| self.shared.missing(container))?,
            };
            let leads_nowhere = |error: StorageError| match error.is_damage() {
                true => self.shared.damaged_forward(container, format!("it leads to container {target}, which cannot be read: {error}")),
                false => error,
            };
            let catalog = self.shared.file_catalog(target).map_err(leads_nowhere)?;
            self.shared.check_answers(&catalog, container)?;
            Ok(target)
        })
    }
}

impl Shared {
    /// Retries a read that failed because a merge, in this process or another, moved chunks meanwhile.
    pub(crate) fn stable<T>(&self, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        let mut missed = None;
        loop {
            let before = self.forwards.generation();
            match read() {
                Err(StorageError::Damaged { container, .. }) if missed != Some(container) && self.is_gone(container)? => {
                    missed = Some(container);
                    self.look_again(container)?;
                }
                Err(error) if error.is_damage() && !self.forwards.is_unmoved_since(before) => {}
                result => return result,
            }
        }
    }

    /// Returns whether another process may have merged a container away.
    fn is_gone(&self, container: ContainerId) -> Result<bool> {
        let has_other_writer = self.mode.follows_writers() || !self.owners.has(container.partition());
        Ok(has_other_writer && !self.ground.exists(&file::path(&self.directory, container))?)
    }

    /// Handles a file that was there and is gone: only the disk knows where its chunks are now. The file of an open
    /// container goes with a merge too, and then the merged file has all its chunks. Without a forward the file is
    /// lost, and what the log has of it is in memory only. Each merge makes a container with a greater number, so this
    /// comes to an end. The same file is missed once.
    fn look_again(&self, container: ContainerId) -> Result<()> {
        if self.ground.exists(&file::forward_path(&self.directory, container))? {
            self.unsealed.remove(container);
        }
        self.forwards.forget_partition(container.partition());
        self.retire([container].iter());
        Ok(())
    }

    /// Returns the container file that answers to a sealed container.
    pub(crate) fn answering(&self, id: ContainerId) -> Result<ContainerId> {
        let generation = self.forwards.generation();
        if let Some(fate) = self.forwards.get(id) {
            return fate.ok_or_else(|| self.missing(id));
        }
        if self.open_file(id)?.is_some() {
            return Ok(id);
        }
        let target = self.read_forward(id)?.ok_or_else(|| self.missing(id))?;
        self.forwards.set_read(id, target, generation);
        Ok(target)
    }

    /// Returns the catalog of the container file that answers to a sealed container.
    pub(crate) fn sealed_catalog(&self, id: ContainerId) -> Result<Arc<Catalog>> {
        let known = self.forwards.get(id).flatten();
        let catalog = match self.caches.catalog(known.unwrap_or(id)) {
            Some(catalog) => catalog,
            None => self.answering(id).and_then(|container| self.file_catalog(container))?,
        };
        if id != catalog.container {
            self.check_answers(&catalog, id)?;
        }
        Ok(catalog)
    }

    /// Returns the catalog in a container file.
    fn file_catalog(&self, container: ContainerId) -> Result<Arc<Catalog>> {
        if let Some(catalog) = self.caches.catalog(container) {
            return Ok(catalog);
        }
        self.caches.miss_catalog();
        let generation = self.forwards.generation();
        let catalog = Arc::new(self.read_catalog(container)?);
        self.caches.keep_catalog_if(&catalog, || self.forwards.is_unmoved_since(generation));
        Ok(catalog)
    }

    fn check_answers(&self, catalog: &Catalog, id: ContainerId) -> Result<()> {
        if catalog.home_containers().binary_search(&id).is_ok() {
            return Ok(());
        }
        let why = format!("its forward leads to container {}, which has none of its chunks", catalog.container);
        Err(self.damaged_forward(id, why))
    }

    /// Returns where the forward of `id` leads; `None`: there is no forward.
    pub(crate) fn read_forward(&self, id: ContainerId) -> Result<Option<ContainerId>> {
        let read = || {
            let forward = self.ground.open(&file::forward_path(&self.directory, id), Access::Read)?;
            let mut bytes = vec![0; forward.len()?.min(FORWARD_BYTES as u64 + 1) as usize];
            forward.read_at(0, &mut bytes).map(|()| bytes)
        };
        let bytes = match read() {
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) if error.is_lasting() => return Err(self.damaged_forward(id, error.to_string())),
            read => read?,
        };
        let forward = Forward::decode(&bytes).map_err(|why| self.damaged_forward(id, why))?;
        if forward.container != id || forward.store != self.options.store {
            let why = if forward.container == id { "it belongs to another store" } else { "it belongs to another container" };
            return Err(self.damaged_forward(id, why.to_owned()));
        }
        Ok(Some(forward.target))
    }

    /// Removes everything of merged containers, which no longer have these files, from memory. Readers that were about
    /// to cache some of it cannot do so any more.
    pub(crate) fn retire<'a>(&self, containers: impl Iterator<Item = &'a ContainerId>) {
        self.forwards.count_move();
        containers.for_each(|container| self.caches.forget(*container));
    }

    pub(crate) fn missing(&self, container: ContainerId) -> StorageError {
        self.damaged(container, None, None, "the file is missing")
    }

    fn damaged_forward(&self, container: ContainerId, why: String) -> StorageError {
        let path = self.ground.describe(&file::forward_path(&self.directory, container));
        StorageError::Damaged { path, container, frame: None, slot: None, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn m0_20_any_flipped_bit_of_a_forward_is_found() {
        let forward = Forward { container: ContainerId::new(2, 7), target: ContainerId::new(2, 900), store: [3; 16] };
        assert_eq!(Forward::decode(&forward.encode()), Ok(forward));
        for bit in 0..FORWARD_BYTES * 8 {
            let mut bytes = forward.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Forward::decode(&bytes).is_err());
        }
        for target in [ContainerId::new(2, 7), ContainerId::new(1, 900), ContainerId::new(2, 0)] {
            assert!(Forward::decode(&Forward { target, ..forward }.encode()).is_err(), "{target}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(Forward::decode(&bytes).is_err());
        }
    }
}
