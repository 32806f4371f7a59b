//! Reads a damaged or lost container where nothing may be written. Blocks of its file that are not right are computed
//! at each read. Each is the exclusive or of the parity's block and those of the other members.
//!
//! Returned bytes have the checksum that the parity file knows; otherwise the read is an error. Nobody merges or
//! replaces files meanwhile, as a writer has the store alone.

use crate::containers::group_id::Folder;
use crate::containers::parity::{BLOCK_BYTES, Member, block_length};
use crate::containers::repair::{Parity, Unusable, member_file, read_block};
use crate::containers::scrub::Window;
use crate::containers::store::{ContainerStore, Shared};
use crate::{ContainerId, Result, StorageError};
use onefold_ground::{File, Ground, GroundError};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The file of a container as it was when parity was made of it. It takes the memory of its group's checksums: 8 bytes
/// for each block of 64 KiB of each member.
struct StandIn {
    ground: Arc<dyn Ground>,
    directory: String,
    parity: Parity,
    /// Index of the member that it is.
    at: usize,
    /// Its own file, if there is one.
    own: Option<Arc<dyn File>>,
    /// Files of members as a rehearsed repair would have made them.
    rehearsed: HashMap<ContainerId, Arc<dyn File>>,
}

impl fmt::Debug for StandIn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "container {} through its parity", self.parity.header.members[self.at].container)
    }
}

impl ContainerStore {
    /// From now on damaged parts of a container are read from the parity of its group, if it is in one. Nothing is
    /// written. Only for a store that is open for reading. Returns whether to retry the read, which may still fail if
    /// more of the group is damaged.
    pub fn read_through_parity(&self, container: ContainerId) -> Result<bool> {
        let shared = &self.shared;
        if shared.may_repair() {
            return Ok(false);
        }
        let Some(stand_in) = shared.stand_in(container)? else { return Ok(false) };
        tracing::warn!(%container, "a container is damaged or missing and is read through parity; a scrub rebuilds it");
        shared.retire([container].iter());
        shared.caches.keep_file(container, stand_in);
        Ok(true)
    }

    /// Returns whether a damaged or lost container could be rebuilt from parity. Reads all of it.
    pub fn is_repairable(&self, container: ContainerId) -> Result<bool> {
        let Some(stand_in) = self.shared.stand_in(container)? else { return Ok(false) };
        let mut damage = Vec::new();
        match self.shared.verify_bytes(container, None, &Window::of(stand_in), &mut damage) {
            Ok(()) => Ok(damage.is_empty()),
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Shared {
    /// Returns `None` if it has no parity that can be read.
    pub(crate) fn stand_in(&self, container: ContainerId) -> Result<Option<Arc<dyn File>>> {
        let is_merged = self.forwards.is_logged(container);
        let group = self.with_groups(Folder::of(container), |groups| Ok(groups.group_of(container)))?;
        let Some(group) = group.filter(|_| !is_merged && !self.unsealed.contains(container)) else { return Ok(None) };
        let parity = match self.open_parity(group) {
            Ok(parity) => parity,
            Err(Unusable::Failed(error)) => return Err(error),
            Err(Unusable::Damaged(why)) => {
                tracing::warn!(%container, %why, "the parity of a damaged container cannot be read");
                return Ok(None);
            }
        };
        let Some(at) = parity.header.members.iter().position(|member| member.container == container) else { return Ok(None) };
        let member = |member: &Member| Some((member.container, self.rehearsed(member.container)?));
        let rehearsed: HashMap<_, _> = parity.header.members.iter().filter_map(member).collect();
        let own = match rehearsed.get(&container) {
            Some(file) => Some(file.clone()),
            None => member_file(&*self.ground, &self.directory, &parity.header.members[at])?,
        };
        Ok(Some(Arc::new(StandIn { ground: self.ground.clone(), directory: self.directory.clone(), parity, at, own, rehearsed })))
    }
}

impl StandIn {
    fn error(&self, operation: &'static str, source: io::Error) -> GroundError {
        GroundError::Io { operation, path: format!("{self:?}"), source }
    }

    /// Reads block `number` into the beginning of `out`. Returns its length.
    fn block(&self, number: usize, out: &mut [u8]) -> Result<usize> {
        let members = &self.parity.header.members;
        let member = &members[self.at];
        let length = block_length(member.length_bytes, number);
        if let Some(own) = &self.own
            && read_block(member, own, number, out)?
        {
            return Ok(length);
        }
        let file_of = |at: usize| match self.rehearsed.get(&members[at].container) {
            Some(file) => Ok(Some(file.clone())),
            None => member_file(&*self.ground, &self.directory, &members[at]),
        };
        if !self.parity.lost_block(self.at, number, &file_of, out)? {
            let why = format!("block {number} is damaged, and parity cannot rebuild it: its group has more damage");
            return Err(StorageError::Ground(self.error("read", io::Error::new(io::ErrorKind::InvalidData, why))));
        }
        Ok(length)
    }
}

impl File for StandIn {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> onefold_ground::Result<()> {
        let length = self.len()?;
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > length) {
            return Err(self.error("read", io::ErrorKind::UnexpectedEof.into()));
        }
        let mut block = vec![0; BLOCK_BYTES];
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let read = self.block((at / BLOCK_BYTES as u64) as usize, &mut block).map_err(|error| match error {
                StorageError::Ground(error) => error,
                error => self.error("read", io::Error::other(error.to_string())),
            })?;
            let from = (at % BLOCK_BYTES as u64) as usize;
            let count = (read - from).min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&block[from..from + count]);
            done += count;
        }
        Ok(())
    }

    /// Never tries: this takes reads of a whole group.
    fn try_read_at(&self, _offset: u64, _buffer: &mut [u8]) -> onefold_ground::Result<bool> {
        Ok(false)
    }

    fn len(&self) -> onefold_ground::Result<u64> {
        Ok(self.parity.header.members[self.at].length_bytes)
    }

    fn allocated_bytes(&self) -> onefold_ground::Result<u64> {
        self.len()
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> onefold_ground::Result<()> {
        Err(self.error("write", io::ErrorKind::PermissionDenied.into()))
    }

    fn set_len(&self, _length: u64) -> onefold_ground::Result<()> {
        Err(self.error("truncate", io::ErrorKind::PermissionDenied.into()))
    }

    fn sync(&self) -> onefold_ground::Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _length: u64) -> onefold_ground::Result<()> {
        Err(self.error("allocate space in", io::ErrorKind::PermissionDenied.into()))
    }

    fn pretend_write(&self, _offset: u64, _length: u64) -> onefold_ground::Result<()> {
        Ok(())
    }

    fn allocate_from_reserve(&self, offset: u64, length: u64) -> onefold_ground::Result<()> {
        self.allocate(offset, length)
    }

    fn punch_hole(&self, _offset: u64, _length: u64) -> onefold_ground::Result<()> {
        Err(self.error("make a hole in", io::ErrorKind::PermissionDenied.into()))
    }

    fn start_writeback(&self, _offset: u64, _length: u64) {}

    fn read_ahead(&self, _offset: u64, _length: u64) {}

    fn drop_cached(&self, _offset: u64, _length: u64) {}
}
