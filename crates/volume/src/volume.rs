//! One volume: its size, and requests within it (M0.16).
//!
//! A request is checked as a whole before anything is done. The space checks each part again when it gets to it, so a
//! volume that shrinks meanwhile is neither read nor written behind its end.

use crate::error::{Result, VolumeError};
use crate::info::VolumeInfo;
use onefold_blocks::{At, Extent};
use onefold_ground::Space;
use std::sync::Arc;

/// An open volume. Many threads may call all methods at once.
#[derive(Debug)]
pub struct Volume {
    pub(crate) blocks: Arc<onefold_blocks::Space>,
}

impl Volume {
    /// The name.
    pub fn name(&self) -> String {
        self.blocks.name()
    }

    /// The size, bytes.
    pub fn size(&self) -> u64 {
        self.blocks.end_bytes().unwrap_or_default()
    }

    /// Returns the block size in bytes. Writes of whole aligned blocks are the fastest.
    pub fn block_size(&self) -> u32 {
        self.blocks.block_size()
    }

    /// Returns whether it never changes: a snapshot or a read-only clone.
    pub fn is_read_only(&self) -> bool {
        self.blocks.is_read_only()
    }

    /// Returns the bytes of the blocks in the volume's own layer: its data that it does not share with its origin. For
    /// a snapshot: what changed since the previous snapshot.
    pub fn own_bytes(&self) -> u64 {
        self.blocks.own_bytes()
    }

    /// Returns the space on the store's device.
    pub fn space(&self) -> Result<Space> {
        Ok(self.blocks.engine().space()?)
    }

    /// Returns the memory of writes that are not stored yet, in bytes.
    pub fn dirty_bytes(&self) -> usize {
        self.blocks.dirty_bytes()
    }

    /// Returns the info of the volume.
    pub fn info(&self) -> VolumeInfo {
        let info = self.blocks.info();
        VolumeInfo::of(info.number, &info.record)
    }

    /// Refuses requests that reach beyond the volume, and all requests while another node may have it.
    pub(crate) fn check(&self, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        let size_bytes = self.blocks.live_end_bytes()?.unwrap_or_default();
        if offset_bytes.checked_add(length_bytes).is_none_or(|end| end > size_bytes) {
            return Err(VolumeError::OutOfRange { name: self.name(), offset_bytes, length_bytes, size_bytes });
        }
        Ok(self.blocks.engine().check_may_answer()?)
    }

    /// Refuses changes of a read-only volume, and beyond the volume.
    pub(crate) fn check_change(&self, offset: u64, length: u64) -> Result<()> {
        self.blocks.check_writable()?;
        self.check(offset, length)
    }

    /// Fills `out` from `offset` on.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len() as u64)?;
        Ok(self.blocks.read(At::byte(offset), out)?)
    }

    /// Writes `data` at `offset`. Visible at once, durable after [`Volume::flush`]. If the buffers are full, writes out
    /// other blocks first. Errors: writing out failed (a full disk); earlier writes are kept. A write across blocks
    /// that fails may have been taken in part.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_change(offset, data.len() as u64)?;
        Ok(self.blocks.write(At::byte(offset), data)?)
    }

    /// Like [`Volume::write`], but durable on return (FUA).
    pub fn write_durable(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write(offset, data)?;
        self.blocks.write_out_range(At::byte(offset), data.len() as u64)?;
        Ok(self.blocks.engine().flush()?)
    }

    /// Reads a range and lets `change` modify it: the base of COMPARE AND WRITE and ORWRITE of disks. If `change`
    /// returns true, takes the result like a [write](Volume::write). Nobody reads or writes the range in between.
    /// Returns what `change` returned. Errors: nothing was taken. The whole range is in the buffers at once, so it
    /// should be smaller than their limit.
    pub fn update(&self, offset: u64, length: usize, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool> {
        self.check_change(offset, length as u64)?;
        Ok(self.blocks.update(At::byte(offset), length, change)?)
    }

    /// Zeroes a range and frees its stored data. The cost of whole blocks follows their stored data.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.check_change(offset, length)?;
        Ok(self.blocks.write_zeroes(At::byte(offset), length)?)
    }

    /// Discards a range, which reads as zeros from now on. On a full disk this may hold only for the whole blocks in
    /// it, because partial blocks would have to be stored again.
    pub fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.check_change(offset, length)?;
        Ok(self.blocks.discard(At::byte(offset), length)?)
    }

    /// Returns up to `limit` extents from `offset` on, within `length` bytes. They may cover less than `length` if
    /// there are more extents, or very many blocks to examine.
    pub fn status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.check(offset, length)?;
        Ok(self.blocks.extents(At::byte(offset), length, limit)?)
    }

    /// Brings the first 32 MiB of a range into the caches, so that reading it soon is fast.
    pub fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        self.check(offset, length)?;
        Ok(self.blocks.prefetch(At::byte(offset), length)?)
    }

    /// Makes every earlier write durable. After an error (a full disk), the writes are kept and readable, and a later
    /// flush makes them durable. Discards become durable even on a full disk, because they free room.
    ///
    /// Errors, too, if another node may have the volume: a client may have written there over another connection.
    pub fn flush(&self) -> Result<()> {
        self.blocks.engine().check_may_answer()?;
        Ok(self.blocks.flush()?)
    }

    /// Changes the size. Durable on return. Data beyond the new end is gone: if the volume grows again, it shows zeros
    /// there. In append-only mode a volume can only grow.
    pub fn resize(&self, size_bytes: u64) -> Result<()> {
        Ok(self.blocks.set_end(size_bytes, self.blocks.engine().permit_deletion("make volumes smaller"))?)
    }
}
