//! The disk behind the targets that speak SCSI.

use onefold_iscsi::scsi::{Disk, DiskError, Extent};
use parking_lot::Mutex;

/// A disk in memory. All of it is mapped.
pub(crate) struct Memory {
    pub(crate) bytes: Mutex<Vec<u8>>,
    block_bytes: u32,
    read_only: bool,
}

impl Memory {
    /// A disk with these bytes, and the blocks that it tells initiators of.
    pub(crate) fn new(bytes: Vec<u8>, block_bytes: u32, read_only: bool) -> Memory {
        Memory { bytes: Mutex::new(bytes), block_bytes, read_only }
    }

    fn with<T>(&self, offset: u64, length: u64, work: impl FnOnce(&mut [u8]) -> T) -> Result<T, DiskError> {
        let mut bytes = self.bytes.lock();
        let end = offset.checked_add(length).filter(|end| *end <= bytes.len() as u64).expect("a unit stays within its disk");
        Ok(work(&mut bytes[offset as usize..end as usize]))
    }
}

impl Disk for Memory {
    fn size(&self) -> u64 {
        self.bytes.lock().len() as u64
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DiskError> {
        self.with(offset, out.len() as u64, |own| out.copy_from_slice(own))
    }
    fn write(&self, offset: u64, data: &[u8], _fua: bool) -> Result<(), DiskError> {
        self.with(offset, data.len() as u64, |own| own.copy_from_slice(data))
    }
    fn update(&self, offset: u64, length: usize, _fua: bool, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool, DiskError> {
        self.with(offset, length as u64, |own| {
            let mut bytes = own.to_vec();
            let is_wanted = change(&mut bytes);
            if is_wanted {
                own.copy_from_slice(&bytes);
            }
            is_wanted
        })
    }
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.with(offset, length, |own| own.fill(0))
    }
    fn prefetch(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.with(offset, length, |_| ())
    }
    fn extents(&self, offset: u64, length: u64, _limit: usize) -> Result<Vec<Extent>, DiskError> {
        self.with(offset, length, |_| vec![Extent { length, mapped: true }])
    }
}
