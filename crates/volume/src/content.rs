//! Copies ranges without moving data.

use crate::error::Result;
use crate::volume::Volume;
use onefold_blocks::At;

/// The content of a range of a volume at one moment. It holds back the removal of all unused chunks, so do not keep it
/// for long.
#[derive(Debug)]
pub struct Content(onefold_blocks::Content);

impl Content {
    /// Its length, bytes.
    pub fn length(&self) -> u64 {
        self.0.length()
    }

    /// Returns the memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// Fills `out` from byte `from` on.
    pub fn read(&self, from: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.0.read(from, out)?)
    }
}

impl Volume {
    /// Captures the content of a range. Every write that returned before the call is in it. A concurrent write is in it
    /// or not, block by block.
    pub fn capture(&self, offset: u64, length: u64) -> Result<Content> {
        self.check(offset, length)?;
        Ok(Content(self.blocks.capture(At::byte(offset), length)?))
    }

    /// Gives `length` bytes at `offset` the content from byte `from` on, like a [write](Volume::write) of these bytes.
    /// Copies only block mappings, except for parts of blocks at the two ends.
    pub fn place(&self, offset: u64, content: &Content, from: u64, length: u64) -> Result<()> {
        self.check_change(offset, length)?;
        Ok(self.blocks.place(At::byte(offset), &content.0, from, length)?)
    }

    /// Copies `length` bytes of `source`, which may be this volume, from `source_offset` to `offset`. The result is the
    /// same as if all bytes were read before any is written, unless either volume is written to meanwhile. Errors: a
    /// part may have been copied.
    pub fn copy_from(&self, offset: u64, source: &Volume, source_offset: u64, length: u64) -> Result<()> {
        self.check_change(offset, length)?;
        source.check(source_offset, length)?;
        Ok(self.blocks.copy_from(At::byte(offset), &source.blocks, At::byte(source_offset), length)?)
    }
}
