//! Records of volumes and of layers (`docs/format.md` 7.1, 7.3): any bytes are refused, or are a volume or a layer that
//! is within its limits and reads the same when it is spelled again from what was read.

use onefold_ground::wire::{put_bytes, put_signed};
use onefold_volume::{Layer, MAX_BLOCK_BYTES, MAX_NAME_BYTES, MAX_VOLUME_BYTES, MIN_BLOCK_BYTES, VolumeInfo, VolumeKind};

/// The bytes are the record.
pub fn run(data: &[u8]) {
    layer(data);
    volume(data);
}

fn layer(data: &[u8]) {
    const NUMBER: u32 = 1000;
    let Ok(layer) = Layer::decode(NUMBER, data) else { return };
    assert!((MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&layer.block_bytes));
    assert!(layer.parent < NUMBER && layer.map != 0);
    assert_eq!(layer.encode(), data);
}

fn volume(data: &[u8]) {
    let Ok(volume) = VolumeInfo::decode(1, data) else { return };
    assert!((1..=MAX_NAME_BYTES).contains(&volume.name.len()));
    assert!((MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&volume.block_size));
    assert!(volume.size <= MAX_VOLUME_BYTES);
    let mut again = vec![1];
    put_bytes(&mut again, volume.name.as_bytes());
    again.extend(volume.size.to_le_bytes());
    again.extend(volume.block_size.to_le_bytes());
    again.extend(volume.layer.to_le_bytes());
    again.push([VolumeKind::Volume, VolumeKind::Snapshot, VolumeKind::Clone].iter().position(|kind| *kind == volume.kind).unwrap() as u8);
    again.push(u8::from(volume.is_read_only));
    if let Some(origin) = &volume.origin {
        again.extend(origin.number.to_le_bytes());
        put_bytes(&mut again, origin.name.as_bytes());
    }
    put_signed(&mut again, volume.created_ns);
    put_bytes(&mut again, volume.chain.as_deref().unwrap_or_default().as_bytes());
    assert_eq!(VolumeInfo::decode(1, &again).ok(), Some(volume));
}
