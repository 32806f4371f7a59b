//! Holes in the arena's file: room of free blocks that goes back to the device.

use onefold_ground::{File, Result};
use std::fmt::Debug;

/// Makes holes in a file. The length of the file stays, and a hole reads as zeros. Tests bring their own.
pub trait Holes: Debug + Send + Sync {
    /// Gives the room of a range back to the device. The range consists of whole blocks and lies within the file. An
    /// error costs only the room.
    fn punch(&self, file: &dyn File, offset: u64, length: u64) -> Result<()>;
}

/// Has the file make its holes.
#[derive(Debug, Default)]
pub struct FileHoles;

impl Holes for FileHoles {
    fn punch(&self, file: &dyn File, offset: u64, length: u64) -> Result<()> {
        file.punch_hole(offset, length)
    }
}

/// Makes no holes: free blocks keep their room on the device, for the next chunks.
#[derive(Debug, Default)]
pub struct NoHoles;

impl Holes for NoHoles {
    fn punch(&self, _file: &dyn File, _offset: u64, _length: u64) -> Result<()> {
        Ok(())
    }
}
