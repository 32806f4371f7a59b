//! Files that are objects in a bucket.

use crate::error::failed;
use onefold_ground::{Bucket, File, Result};
use std::io::ErrorKind;
use std::sync::Arc;

/// Bytes at the end of an object that its opening reads: footer and catalog are there.
pub(super) const TAIL_BYTES: usize = 64 << 10;

/// An open object. It never changes.
#[derive(Debug)]
pub(super) struct RemoteFile {
    bucket: Arc<dyn Bucket>,
    path: String,
    length: u64,
    /// The last bytes.
    tail: Vec<u8>,
}

impl RemoteFile {
    /// Opens an object with one request.
    pub(super) fn open(bucket: Arc<dyn Bucket>, path: &str) -> Result<RemoteFile> {
        let (tail, length) = bucket.get_end(path, TAIL_BYTES)?;
        Ok(RemoteFile { bucket, path: path.to_owned(), length, tail })
    }

    fn tail_offset(&self) -> u64 {
        self.length - self.tail.len() as u64
    }

    fn check_range(&self, offset: u64, length: usize) -> Result<()> {
        let end = offset.checked_add(length as u64);
        if length > 0 && end.is_none_or(|end| end > self.length) {
            return Err(failed("read", &self.bucket.describe(&self.path), ErrorKind::UnexpectedEof));
        }
        Ok(())
    }

    /// Copies what is in memory of a range: its end. Returns how many bytes before it are missing.
    fn copy_from_tail(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let missing = usize::try_from(self.tail_offset().saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let rest = &mut buffer[missing..];
        if !rest.is_empty() {
            let start = (offset + missing as u64 - self.tail_offset()) as usize;
            rest.copy_from_slice(&self.tail[start..start + rest.len()]);
        }
        missing
    }

    fn refused(&self, operation: &'static str) -> Result<()> {
        Err(failed(operation, &self.bucket.describe(&self.path), ErrorKind::PermissionDenied))
    }
}

impl File for RemoteFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_range(offset, buffer.len())?;
        let missing = self.copy_from_tail(offset, buffer);
        if missing > 0 {
            buffer[..missing].copy_from_slice(&self.bucket.get_range(&self.path, offset, missing)?);
        }
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        self.check_range(offset, buffer.len())?;
        Ok(self.copy_from_tail(offset, buffer) == 0)
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> Result<()> {
        self.refused("write")
    }

    fn pretend_write(&self, _offset: u64, _length: u64) -> Result<()> {
        self.refused("write")
    }

    fn len(&self) -> Result<u64> {
        Ok(self.length)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.length)
    }

    fn set_len(&self, _length: u64) -> Result<()> {
        self.refused("truncate")
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _length: u64) -> Result<()> {
        self.refused("allocate space for")
    }

    fn allocate_from_reserve(&self, _offset: u64, _length: u64) -> Result<()> {
        self.refused("allocate space for")
    }

    fn punch_hole(&self, _offset: u64, _length: u64) -> Result<()> {
        self.refused("punch a hole into")
    }

    fn start_writeback(&self, _offset: u64, _length: u64) {}

    fn read_ahead(&self, _offset: u64, _length: u64) {}

    fn drop_cached(&self, _offset: u64, _length: u64) {}
}
