//! Options of an arena.

use crate::arena::block::{MAX_BLOCK_BYTES, MAX_BLOCKS};
use crate::{Result, StorageError};
use onefold_fingerprint::Algorithm;

/// Options for filling an arena, and bounds on memory and space.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// Size of a block: a power of two from 4 KiB to 64 KiB. A store keeps it for ever.
    pub block_bytes: u32,
    /// How chunks are named.
    pub fingerprint: Algorithm,
    /// The store's name.
    pub store: [u8; 16],
    /// Bytes of chunks that wait to be written, at least four blocks. Of all writers together.
    pub in_flight_bytes: usize,
    /// The file grows in steps of this many bytes, at least a block.
    pub grow_bytes: u64,
    /// The greatest length of the file, at least a block; 0: no limit but the device.
    pub limit_bytes: u64,
}

impl Default for ArenaOptions {
    fn default() -> ArenaOptions {
        ArenaOptions {
            block_bytes: 4 << 10,
            fingerprint: Algorithm::Blake3,
            store: [0; 16],
            in_flight_bytes: 8 << 20,
            grow_bytes: 64 << 20,
            limit_bytes: 0,
        }
    }
}

impl ArenaOptions {
    /// Lowers the limit: a device has no more room.
    pub(crate) fn limit_to(&mut self, room_bytes: u64) {
        let limit_bytes = if self.limit_bytes == 0 { room_bytes } else { self.limit_bytes.min(room_bytes) };
        // 0 would be no limit.
        self.limit_bytes = limit_bytes.max(1);
    }

    /// Returns the most blocks that the file may have.
    pub(crate) fn limit_blocks(&self) -> u64 {
        match self.limit_bytes {
            0 => MAX_BLOCKS,
            limit_bytes => (limit_bytes / u64::from(self.block_bytes)).min(MAX_BLOCKS),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let refused = |option, value: u64, allowed| Err(StorageError::Option { option, value: value.to_string(), allowed });
        let block_bytes = u64::from(self.block_bytes);
        if !self.block_bytes.is_power_of_two() || !(4 << 10..=MAX_BLOCK_BYTES).contains(&self.block_bytes) {
            return refused("block_bytes", block_bytes, "a power of two from 4 KiB to 64 KiB");
        }
        if (self.in_flight_bytes as u64) < 4 * block_bytes {
            return refused("in_flight_bytes", self.in_flight_bytes as u64, "at least four blocks");
        }
        if self.grow_bytes < block_bytes {
            return refused("grow_bytes", self.grow_bytes, "at least a block");
        }
        if (1..block_bytes).contains(&self.limit_bytes) {
            return refused("limit_bytes", self.limit_bytes, "0 (no limit) or at least a block");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        ArenaOptions::default().check().unwrap();
        let with = |change: fn(&mut ArenaOptions)| {
            let mut options = ArenaOptions::default();
            change(&mut options);
            options.check().unwrap_err().to_string()
        };
        for block_bytes in [0, 1, 2048, 4095, 4097, 12 << 10, 128 << 10, u32::MAX] {
            let options = ArenaOptions { block_bytes, ..ArenaOptions::default() };
            assert_eq!(
                options.check().unwrap_err().to_string(),
                format!("block_bytes is {block_bytes}; it must be a power of two from 4 KiB to 64 KiB")
            );
        }
        assert!(with(|options| options.in_flight_bytes = (16 << 10) - 1).starts_with("in_flight_bytes is 16383; "));
        assert!(with(|options| options.grow_bytes = 0).starts_with("grow_bytes is 0; "));
        assert!(with(|options| options.limit_bytes = 4095).starts_with("limit_bytes is 4095; "));
        assert_eq!(ArenaOptions { limit_bytes: 40_961, ..ArenaOptions::default() }.limit_blocks(), 10);
    }
}
