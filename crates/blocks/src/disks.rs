//! Spaces as disks and as filesystems, as the tests of this crate use them.

use crate::record::MIN_BLOCK_BYTES;
use crate::{At, NewSpace, Owner, Result, Space, SpaceKind, Spaces, SpacesOptions};
use std::sync::Arc;

pub(crate) const BLOCK: u32 = MIN_BLOCK_BYTES;

pub(crate) fn options() -> SpacesOptions {
    SpacesOptions { dirty_bytes: 3 * BLOCK as usize, mapping_cache_bytes: 4000, streams: 2, verify: true }
}

pub(crate) fn create(spaces: &Spaces, name: &str, end_bytes: u64, block_bytes: u32) -> Result<Arc<Space>> {
    spaces.create(NewSpace { name, kind: SpaceKind::Volume, end_bytes: Some(end_bytes), block_bytes, chain: None })
}

pub(crate) fn create_filesystem(spaces: &Spaces, name: &str) -> Result<Arc<Space>> {
    spaces.create(NewSpace { name, kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: BLOCK, chain: None })
}

pub(crate) fn read(space: &Space, offset: usize, length: usize) -> Vec<u8> {
    let mut out = vec![0xee; length];
    space.read(At::byte(offset as u64), &mut out).unwrap();
    out
}

pub(crate) fn resize(space: &Space, end_bytes: u64) -> Result<()> {
    space.set_end(end_bytes, space.engine().permit_deletion("resize"))
}

pub(crate) fn delete(spaces: &Spaces, name: &str) -> Result<()> {
    spaces.delete(Owner::Volumes, name, spaces.engine().permit_deletion("delete")?)
}

pub(crate) fn roll_back(spaces: &Spaces, name: &str, snapshot: &str) -> Result<()> {
    spaces.rollback(Owner::Volumes, name, snapshot, spaces.engine().permit_deletion("roll back")?)
}
