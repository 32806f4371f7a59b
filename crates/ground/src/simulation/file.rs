//! An open file of a simulated disk.

use super::content::{PAGE_BYTES, SECTOR_BYTES};
use super::state::Fault;
use super::{SharedInode, SimulatedGround, failure};
use crate::{File, GroundError, Result};
use std::fmt;
use std::io;
use std::ops::Range;

/// The device cannot read or write (I/O error).
pub(super) const EIO: i32 = 5;

pub(super) struct SimulatedFile {
    pub(super) ground: SimulatedGround,
    pub(super) path: String,
    pub(super) inode: SharedInode,
    pub(super) is_writable: bool,
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SimulatedFile {
    fn fail(&self, operation: &'static str, source: io::Error) -> GroundError {
        failure(operation, &self.path, source)
    }

    fn check_writable(&self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        if !self.is_writable {
            return Err(self.fail(operation, io::ErrorKind::PermissionDenied.into()));
        }
        if offset.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
            return Err(self.fail(operation, io::ErrorKind::FileTooLarge.into()));
        }
        Ok(())
    }

    /// Does the first of the two steps of a write. Returns the part of the data that is left for the second.
    fn begin_write(&self, offset: u64, data: &[u8]) -> Result<Range<usize>> {
        let mut state = self.ground.state.lock();
        let fault = state.begin(false, "write", &self.path).err();
        let mut inode = self.inode.lock();
        if fault.is_none() && !inode.is_writable(offset, data.len() as u64) {
            return Err(self.fail("write", io::Error::from_raw_os_error(EIO)));
        }
        let middle = middle(offset, data.len(), |limit| state.random.below(limit));
        // Only an overwrite can go backwards: the length of a file follows the data written.
        let is_backwards = middle < data.len() && inode.is_inside(offset, data.len() as u64) && state.random.below(2) == 0;
        let (first, second) = match fault {
            None if is_backwards => (middle..data.len(), 0..middle),
            None => (0..middle, middle..data.len()),
            Some(Fault::Crash) => (0..0, 0..0),
            Some(_) => (0..state.random.below(data.len() as u64 + 1) as usize, 0..0),
        };
        let free_pages = state.free_pages(&inode);
        let written = state.change(&mut inode, |inode| inode.write(offset + first.start as u64, &data[first.clone()], free_pages));
        match fault {
            Some(fault) => Err(self.fail("write", fault.source())),
            None if written < first.len() => Err(self.fail("write", io::ErrorKind::StorageFull.into())),
            None => Ok(second),
        }
    }

    fn end_write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.ground.state.lock();
        state.check_crash().map_err(|fault| self.fail("write", fault.source()))?;
        let mut inode = self.inode.lock();
        let free_pages = state.free_pages(&inode);
        let written = state.change(&mut inode, |inode| inode.write(offset, data, free_pages));
        if state.is_writeback_failing() {
            inode.fail_writeback(&mut state.random);
        }
        if written < data.len() { Err(self.fail("write", io::ErrorKind::StorageFull.into())) } else { Ok(()) }
    }
}

/// Returns where a write of `length` bytes at `offset` splits: at the end of a sector. A write within one sector splits
/// at its own end.
fn middle(offset: u64, length: usize, below: impl FnOnce(u64) -> u64) -> usize {
    let first = SECTOR_BYTES - offset % SECTOR_BYTES;
    match (length as u64).checked_sub(first + 1) {
        None => length,
        Some(rest) => (first + below(rest / SECTOR_BYTES + 1) * SECTOR_BYTES) as usize,
    }
}

impl File for SimulatedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut state = self.ground.state.lock();
        state.begin_read().map_err(|fault| self.fail("read", fault.source()))?;
        let inode = self.inode.lock();
        if !inode.is_inside(offset, buffer.len() as u64) {
            return Err(self.fail("read", io::ErrorKind::UnexpectedEof.into()));
        }
        if !inode.is_readable(offset, buffer.len() as u64) {
            return Err(self.fail("read", io::Error::from_raw_os_error(EIO)));
        }
        inode.read(offset, buffer);
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        self.read_at(offset, buffer).map(|()| true)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable("write", offset, data.len() as u64)?;
        let second = self.begin_write(offset, data)?;
        if !second.is_empty() {
            let during_writes = self.ground.state.lock().during_writes.clone();
            if let Some(look) = during_writes {
                look(&self.path);
            }
        }
        self.end_write(offset + second.start as u64, &data[second])
    }

    fn len(&self) -> Result<u64> {
        let mut state = self.ground.state.lock();
        state.begin_query().map_err(|fault| self.fail("read the length of", fault.source()))?;
        Ok(self.inode.lock().length())
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let mut state = self.ground.state.lock();
        state.begin_query().map_err(|fault| self.fail("read the block count of", fault.source()))?;
        Ok(self.inode.lock().room() * PAGE_BYTES)
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.check_writable("set the length of", 0, length)?;
        let mut state = self.ground.state.lock();
        state.begin(false, "set the length of", &self.path).map_err(|fault| self.fail("set the length of", fault.source()))?;
        state.change(&mut self.inode.lock(), |inode| inode.set_len(length));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.ground.state.lock();
        let source = match state.begin(true, "sync", &self.path) {
            Ok(()) if self.inode.lock().sync() => return Ok(()),
            Ok(()) => io::Error::from_raw_os_error(EIO),
            Err(Fault::Crash) => Fault::Crash.source(),
            Err(fault) => {
                self.inode.lock().fail_sync(&mut state.random);
                fault.source()
            }
        };
        Err(self.fail("sync", source))
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.check_writable("reserve space in", offset, length)?;
        let mut state = self.ground.state.lock();
        state.begin(false, "reserve space in", &self.path).map_err(|fault| self.fail("reserve space in", fault.source()))?;
        let mut inode = self.inode.lock();
        let free_pages = state.free_pages(&inode);
        let reserved = state.change(&mut inode, |inode| inode.allocate(offset, length, free_pages));
        if reserved < length { Err(self.fail("reserve space in", io::ErrorKind::StorageFull.into())) } else { Ok(()) }
    }

    fn pretend_write(&self, _offset: u64, _length: u64) -> Result<()> {
        Ok(())
    }

    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()> {
        self.allocate(offset, length)
    }

    fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        assert!(offset.is_multiple_of(PAGE_BYTES) && length.is_multiple_of(PAGE_BYTES), "holes are whole pages");
        self.check_writable("make a hole in", offset, length)?;
        let mut state = self.ground.state.lock();
        state.begin(false, "make a hole in", &self.path).map_err(|fault| self.fail("make a hole in", fault.source()))?;
        state.change(&mut self.inode.lock(), |inode| inode.punch_hole(offset, length));
        Ok(())
    }

    fn start_writeback(&self, _offset: u64, _length: u64) {}

    fn read_ahead(&self, _offset: u64, _length: u64) {}

    fn drop_cached(&self, _offset: u64, _length: u64) {}
}
