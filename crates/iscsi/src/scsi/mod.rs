//! SCSI: how a logical unit executes commands (SPC-4, SBC-3). The only I/O is that of the [`Disk`]. No transport.
//!
//! - `unit` checks commands in order, and has the state of a unit; `execute` executes them.
//! - `caller` is who sends a command, and what is around the unit.
//! - `block` has the commands that read and change the medium.
//! - `sanitize` erases all of it; `removable` ejects and loads it.
//! - `extended_copy` and `token` copy between disks; `third_party` has what both share.
//! - `provisioning` reports the free space.
//! - `buffers` is reusable memory.
//! - `persistent` and `report` have the commands about reservations and about what exists.
//! - [`opcodes`] is the table of commands.

mod block;
mod buffers;
mod caller;
mod disk;
mod execute;
mod extended_copy;
mod inquiry;
mod keep;
mod mode;
#[cfg(test)]
mod model_tests;
pub mod opcodes;
mod patience;
mod persistent;
mod provisioning;
mod removable;
mod reply;
mod report;
pub mod reservation;
mod sanitize;
pub mod sense;
mod steps;
mod succession;
#[cfg(test)]
mod testing;
mod third_party;
mod token;
mod tokens;
mod tray;
mod unit;

pub use buffers::Buffers;
pub use caller::{Caller, Peers};
pub use disk::{Content, Disk, DiskError, Extent, Space, place_bytes};
pub use inquiry::{Identity, Port};
pub use keep::{Keep, NotKept};
pub use patience::Patience;
pub use reply::{Reply, Status, bidirectional, failed, lost_data, without_unit};
pub use reservation::Nexus;
pub use sanitize::{KeepSanitize, Sanitize};
pub use tokens::Tokens;
pub use unit::{LogicalUnit, UnitOptions};

/// The most bytes that one command moves. Limits the memory of a command.
pub const MAX_TRANSFER_BYTES: u32 = 32 << 20;

/// The most bytes that one WRITE SAME writes.
const MAX_WRITE_SAME_BYTES: u64 = 4 << 30;

/// The sizes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of a logical block: 512 or 4096.
    pub logical: u32,
    /// The unit of mapping, bytes.
    pub mapped: u32,
}

impl Geometry {
    /// Returns the number of logical blocks. A partial block at the end does not count.
    pub fn blocks(&self) -> u64 {
        self.size / u64::from(self.logical)
    }

    /// Returns the number of logical blocks in a unit of mapping.
    pub fn mapped_block_blocks(&self) -> u32 {
        (self.mapped / self.logical).max(1)
    }

    /// Returns the most blocks of one WRITE SAME. Limits the time of a command.
    pub fn max_write_same_blocks(&self) -> u64 {
        MAX_WRITE_SAME_BYTES / u64::from(self.logical)
    }

    /// Returns the most blocks of one transfer.
    pub fn max_transfer_blocks(&self) -> u32 {
        MAX_TRANSFER_BYTES / self.logical
    }

    /// Returns the logical blocks per physical block, as a power of two. A physical block is 4 KiB, because systems
    /// ignore or refuse larger ones.
    pub fn physical_exponent(&self) -> u8 {
        (4096 / self.logical).max(1).ilog2() as u8
    }
}

/// Big-endian fields.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
