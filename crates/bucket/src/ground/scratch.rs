//! Files that are not in the bucket yet, or that were put there by this process.

use crate::error::failed;
use crate::ground::Shared;
use bytes::Bytes;
use onefold_ground::{Access, File, Ground, Result};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use std::io::ErrorKind;
use std::sync::Arc;

/// Contents are read in pieces: the allocator of a program may keep as much as the largest that was freed, for each of
/// its heaps. A divisor of [`PIECE_BYTES`](crate::ground::object::PIECE_BYTES).
const READ_BYTES: u64 = 1 << 20;
/// Contents are in memory while they are put. Together they have so many bytes, or there is one: two containers, which
/// have some 20 % more than their nominal 32 MiB.
const PUT_BYTES: u64 = 80 << 20;

/// A local file that stands for an object. It goes when nobody has it open and the ground does not keep it.
#[derive(Debug)]
pub(super) struct Scratch {
    local: Arc<dyn Ground>,
    local_path: String,
    pub(super) file: Arc<dyn File>,
    /// Shared by writes. Exclusive while the content is put: what is put is what was written.
    pub(super) status: RwLock<Status>,
}

#[derive(Debug)]
pub(super) struct Status {
    /// The path that it stands for. `None`: it was removed or replaced.
    pub(super) name: Option<String>,
    /// Whether the object has this content. It does not change any more.
    pub(super) is_sealed: bool,
    /// Whether there may be an object under its name: a put was tried.
    pub(super) is_put: bool,
    /// Whether somebody else's object has its name. Then it stands for nothing any more.
    pub(super) is_taken: bool,
}

impl Scratch {
    pub(super) fn new(local: Arc<dyn Ground>, local_path: String, file: Arc<dyn File>, path: &str) -> Scratch {
        let status = Status { name: Some(path.to_owned()), is_sealed: false, is_put: false, is_taken: false };
        Scratch { local, local_path, file, status: RwLock::new(status) }
    }

    /// Reads all of it, in pieces of [`READ_BYTES`].
    pub(super) fn content(&self) -> Result<Vec<Bytes>> {
        let length = self.file.len()?;
        let starts = (0..length).step_by(READ_BYTES as usize);
        starts
            .map(|start| {
                let mut piece = vec![0; READ_BYTES.min(length - start) as usize];
                self.file.read_at(start, &mut piece).map(|()| Bytes::from(piece))
            })
            .collect()
    }
}

/// Bounds the contents that are in memory for a put.
#[derive(Debug, Default)]
pub(super) struct Room {
    taken_bytes: Mutex<u64>,
    returned: Condvar,
}

/// Room for a content.
#[derive(Debug)]
pub(super) struct Place<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Room {
    /// Waits for room. Its holder must not wait for another put.
    pub(super) fn take(&self, bytes: u64) -> Place<'_> {
        let mut taken = self.taken_bytes.lock();
        while *taken > 0 && *taken + bytes > PUT_BYTES {
            self.returned.wait(&mut taken);
        }
        *taken += bytes;
        Place { room: self, bytes }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.room.taken_bytes.lock() -= self.bytes;
        self.room.returned.notify_all();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whoever opens the store next wipes what stays.
        let _ = self.local.remove(&self.local_path);
    }
}

/// An open scratch file.
#[derive(Debug)]
pub(super) struct ScratchFile {
    shared: Arc<Shared>,
    scratch: Arc<Scratch>,
    access: Access,
}

impl ScratchFile {
    pub(super) fn new(shared: Arc<Shared>, scratch: Arc<Scratch>, access: Access) -> ScratchFile {
        ScratchFile { shared, scratch, access }
    }

    /// Checks that the content may change. It may as long as the guard lives.
    fn changeable(&self, operation: &'static str) -> Result<RwLockReadGuard<'_, Status>> {
        let status = self.scratch.status.read();
        if status.is_sealed || self.access == Access::Read {
            let path = status.name.as_ref().map_or_else(|| self.scratch.local_path.clone(), |name| self.shared.bucket.describe(name));
            return Err(failed(operation, &path, ErrorKind::PermissionDenied));
        }
        Ok(status)
    }
}

impl onefold_ground::DelegatingFile for ScratchFile {
    fn below(&self) -> &dyn File {
        &*self.scratch.file
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _status = self.changeable("write")?;
        self.scratch.file.write_at(offset, data)
    }

    fn pretend_write(&self, offset: u64, length: u64) -> Result<()> {
        let _status = self.changeable("write")?;
        self.scratch.file.pretend_write(offset, length)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let is_sealed = self.scratch.status.read().is_sealed;
        if is_sealed { self.scratch.file.len() } else { self.scratch.file.allocated_bytes() }
    }

    fn set_len(&self, length: u64) -> Result<()> {
        let _status = self.changeable("truncate")?;
        self.scratch.file.set_len(length)
    }

    fn sync(&self) -> Result<()> {
        self.shared.sync(&self.scratch)
    }

    /// Reserves nothing: the file is for the bucket.
    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        let _status = self.changeable("allocate space for")?;
        let end = offset.saturating_add(length);
        if self.scratch.file.len()? < end { self.scratch.file.set_len(end) } else { Ok(()) }
    }

    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()> {
        onefold_ground::DelegatingFile::allocate(self, offset, length)
    }

    fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        let _status = self.changeable("punch a hole into")?;
        self.scratch.file.punch_hole(offset, length)
    }

    /// The file need not reach the device.
    fn start_writeback(&self, _offset: u64, _length: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_containers_are_in_memory_or_one_large_content() {
        let room = Room::default();
        let container = 39 << 20;
        let first = room.take(container);
        let second = room.take(container);
        let has = |wanted: u64| *room.taken_bytes.lock() == wanted;
        std::thread::scope(|scope| {
            let third = scope.spawn(|| room.take(1 << 30));
            drop(first);
            assert!(has(container) && !third.is_finished());
            drop(second);
            let third = third.join().unwrap();
            assert!(has(1 << 30));
            drop(third);
        });
        assert!(has(0));
    }
}
