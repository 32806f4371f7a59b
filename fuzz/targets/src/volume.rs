//! Records of volumes (`docs/format.md` 7.1): any bytes are refused, or are a volume that is within its limits and reads the same when
//! it is spelled again from what was read.

use onefold_ground::wire::{put_bytes, put_signed};
use onefold_volume::{MAX_BLOCK_BYTES, MAX_NAME_BYTES, MAX_VOLUME_BYTES, MIN_BLOCK_BYTES, VolumeInfo};

/// The bytes are the record.
pub fn run(data: &[u8]) {
    let Ok(volume) = VolumeInfo::decode(1, data) else { return };
    assert!((1..=MAX_NAME_BYTES).contains(&volume.name.len()));
    assert!((MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&volume.block_size));
    assert!(volume.size <= MAX_VOLUME_BYTES);
    let mut again = vec![1];
    put_bytes(&mut again, volume.name.as_bytes());
    again.extend(volume.size.to_le_bytes());
    again.extend(volume.block_size.to_le_bytes());
    again.push(0);
    put_signed(&mut again, volume.created_ns);
    put_bytes(&mut again, volume.chain.as_deref().unwrap_or_default().as_bytes());
    assert_eq!(VolumeInfo::decode(1, &again).ok(), Some(volume));
}
