//! The blocks of an arena on a block device of its own (`docs/format.md` section 5.12).
//!
//! The first MiB of the device is not for blocks. It has two copies of the arena's header. One is at its beginning. The
//! other is at its end, where a partition table that somebody writes by mistake does not reach.
//!
//! # Copies of the store's directory
//! A directory can be copied, and its copy leads to the same device. If both wrote, each would take the blocks of the
//! other for free. So every opening for writing puts its epoch and a random number into the header of the directory
//! first and then into those of the device. A directory takes only a device that has its own pair, or the one that the
//! device had before its last opening: a crash came between the two. Otherwise somebody else has written since, or this
//! is an older copy of the device. Two that are open at once on one machine are impossible, as the system lets only one
//! open the device for writing. What this does not see is in decision 0066, "Limits".

use crate::arena::header::{HEADER_BYTES, Header};
use crate::arena::options::ArenaOptions;
use crate::{Result, StorageError};
use onefold_ground::{Access, File, Ground, fill_random};
use std::sync::Arc;

/// Where the blocks begin.
const START_BYTES: u64 = 1 << 20;
/// Where the headers are. Each has 4 KiB for itself, so that a write to one that is cut short spares the other.
const HEADERS: [u64; 2] = [0, START_BYTES - (4 << 10)];
/// The least room for blocks.
const LEAST_BYTES: u64 = 16 << 20;

/// A block device, without its first MiB.
#[derive(Debug)]
pub(crate) struct Device {
    file: Arc<dyn File>,
    /// Its name, for people.
    path: String,
}

impl Device {
    /// Opens the device that a name leads to. `None`: it does not lead to a device.
    pub(crate) fn open(ground: &dyn Ground, path: &str, access: Access) -> Result<Option<Device>> {
        let file = ground.open_device(path, access)?;
        Ok(file.map(|file| Device { file, path: ground.describe(path) }))
    }

    fn refused(&self, why: String) -> StorageError {
        StorageError::Device { path: self.path.clone(), why, is_damage: false }
    }

    /// Makes the random number of an opening.
    pub(crate) fn nonce(&self) -> Result<u32> {
        let mut nonce = [0; 4];
        fill_random(&mut nonce[..3]).map_err(|error| self.refused(format!("the system has no random numbers: {error}")))?;
        Ok(u32::from_le_bytes(nonce).max(1))
    }

    /// Refuses a device that somebody may need, or that is too small.
    pub(crate) fn check_unused(&self) -> Result<()> {
        let length = self.file.len()?;
        if length < START_BYTES + LEAST_BYTES {
            return Err(self.refused(format!("it has {length} bytes; it needs at least {}", START_BYTES + LEAST_BYTES)));
        }
        let mut first = vec![0; START_BYTES as usize];
        self.file.read_at(0, &mut first)?;
        if Header::is_one(&first) {
            return Err(self.refused(format!("it has the blocks of a store. If nobody needs them: `blkdiscard -z -l 1MiB {}`", self.path)));
        }
        if first.iter().any(|byte| *byte != 0) {
            return Err(self.refused(format!(
                "its first MiB is not empty: it may have a file system or partitions. If nobody needs them: `blkdiscard -z -l 1MiB {}`",
                self.path
            )));
        }
        Ok(())
    }

    /// Returns the header on the device: the newer one of the copies that can be read.
    pub(crate) fn header(&self, options: &ArenaOptions) -> Result<Header> {
        let (mut newest, mut has_damaged, mut unreadable) = (None::<Header>, None, None);
        for at in HEADERS {
            let mut bytes = [0; HEADER_BYTES];
            match self.file.read_at(at, &mut bytes) {
                Ok(()) => {}
                Err(error) if error.is_lasting() => {
                    unreadable = Some(error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            match Header::decode(&bytes) {
                Ok(header) if newest.is_none_or(|newest| newest.epoch <= header.epoch) => newest = Some(header),
                Ok(_) => {}
                Err(why) if Header::is_one(&bytes) => has_damaged = Some(why),
                Err(_) => {}
            }
        }
        let header = newest.ok_or_else(|| match (unreadable, has_damaged) {
            // It may be a loose cable. A repair must not write something else meanwhile.
            (Some(error), _) => error.into(),
            (None, Some(why)) => {
                StorageError::Device { path: self.path.clone(), why: format!("its headers are damaged: {why}"), is_damage: true }
            }
            (None, None) => self.refused("it is another device: it has no blocks of a store".to_owned()),
        })?;
        header.check(options).map_err(|why| self.refused(why))?;
        Ok(header)
    }

    /// Refuses a directory of the store that is older than what is on the device, and the other way round.
    pub(crate) fn check_age(&self, on_device: &Header, in_directory: &Header, directory: &str) -> Result<()> {
        let is_own = (on_device.epoch, on_device.nonce) == (in_directory.epoch, in_directory.nonce);
        if is_own || (on_device.epoch < in_directory.epoch && on_device.nonce == in_directory.previous) {
            return Ok(());
        }
        Err(self.refused(match on_device.epoch < in_directory.epoch {
            true => format!(
                "it is an older copy of the device (opening {}; {directory} knows {}). Let the name lead to the newer one",
                on_device.epoch, in_directory.epoch
            ),
            false => format!(
                "another copy of {directory} has written to it since (opening {}; this directory knows {}). Use that copy, and only that one",
                on_device.epoch, in_directory.epoch
            ),
        }))
    }

    /// Writes the copies of the header that are not so already. They are durable on return.
    pub(crate) fn write_header(&self, header: &Header) -> Result<()> {
        let wanted = header.encode();
        for at in HEADERS {
            let mut bytes = [0; HEADER_BYTES];
            if self.file.read_at(at, &mut bytes).is_ok() && bytes == wanted {
                continue;
            }
            let mut page = [0; 4 << 10];
            page[..HEADER_BYTES].copy_from_slice(&wanted);
            // One after the other: a crash leaves one that is whole.
            self.file.write_at(at, &page).map_err(StorageError::cannot_write)?;
            self.file.sync().map_err(StorageError::cannot_write)?;
        }
        Ok(())
    }
}

impl onefold_ground::DelegatingFile for Device {
    fn below(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> onefold_ground::Result<()> {
        self.file.read_at(START_BYTES + offset, buffer)
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> onefold_ground::Result<bool> {
        self.file.try_read_at(START_BYTES + offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> onefold_ground::Result<()> {
        self.file.write_at(START_BYTES + offset, data)
    }

    fn len(&self) -> onefold_ground::Result<u64> {
        Ok(self.file.len()?.saturating_sub(START_BYTES))
    }

    fn punch_hole(&self, offset: u64, length: u64) -> onefold_ground::Result<()> {
        self.file.punch_hole(START_BYTES + offset, length)
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        self.file.start_writeback(START_BYTES + offset, length);
    }

    fn read_ahead(&self, offset: u64, length: u64) {
        self.file.read_ahead(START_BYTES + offset, length);
    }

    fn drop_cached(&self, offset: u64, length: u64) {
        self.file.drop_cached(START_BYTES + offset, length);
    }
}
