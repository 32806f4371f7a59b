//! Files that are objects in a bucket.

use crate::error::failed;
use crate::ground::object::Object;
use crate::ground::objects::{Objects, TAIL_BYTES};
use onefold_ground::{Bucket, File, Result};
use std::io::ErrorKind;
use std::sync::Arc;

/// An open object. It never changes.
#[derive(Debug)]
pub(super) struct RemoteFile {
    bucket: Arc<dyn Bucket>,
    path: String,
    length: u64,
    from: From,
}

/// Where its bytes come from.
#[derive(Debug)]
enum From {
    Object(Arc<Objects>, Arc<Object>),
    /// The bucket, at each read. Only its last bytes are here.
    Bucket(Vec<u8>),
}

impl RemoteFile {
    /// Opens an object with one request, or with none if it is here.
    pub(super) fn open(objects: &Arc<Objects>, bucket: &Arc<dyn Bucket>, path: &str) -> Result<RemoteFile> {
        let object = objects.open(path)?;
        let (length, from) = (object.len(), From::Object(objects.clone(), object));
        Ok(RemoteFile { bucket: bucket.clone(), path: path.to_owned(), length, from })
    }

    /// Opens an object with one request for reads that ask the bucket, whatever is here.
    pub(super) fn open_past_cache(bucket: &Arc<dyn Bucket>, path: &str) -> Result<RemoteFile> {
        let (tail, length) = bucket.get_end(path, TAIL_BYTES)?;
        Ok(RemoteFile { bucket: bucket.clone(), path: path.to_owned(), length, from: From::Bucket(tail) })
    }

    fn check_range(&self, offset: u64, length: usize) -> Result<()> {
        let end = offset.checked_add(length as u64);
        if length > 0 && end.is_none_or(|end| end > self.length) {
            return Err(failed("read", &self.bucket.describe(&self.path), ErrorKind::UnexpectedEof));
        }
        Ok(())
    }

    /// Copies what the last bytes have of a range: its end. Returns how many bytes before it are missing.
    fn copy_from_tail(&self, tail: &[u8], offset: u64, buffer: &mut [u8]) -> usize {
        let tail_offset = self.length - tail.len() as u64;
        let missing = usize::try_from(tail_offset.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let rest = &mut buffer[missing..];
        if !rest.is_empty() {
            let start = (offset + missing as u64 - tail_offset) as usize;
            rest.copy_from_slice(&tail[start..start + rest.len()]);
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
        match &self.from {
            From::Object(objects, object) => object.read(objects, offset, buffer),
            From::Bucket(tail) => {
                let missing = self.copy_from_tail(tail, offset, buffer);
                if missing > 0 {
                    buffer[..missing].copy_from_slice(&self.bucket.get_range(&self.path, offset, missing)?);
                }
                Ok(())
            }
        }
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        self.check_range(offset, buffer.len())?;
        match &self.from {
            From::Object(_, object) => Ok(object.try_read(offset, buffer)),
            From::Bucket(tail) => Ok(self.copy_from_tail(tail, offset, buffer) == 0),
        }
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

    fn read_ahead(&self, offset: u64, length: u64) {
        if let From::Object(objects, object) = &self.from {
            object.read_ahead(objects, offset, length);
        }
    }

    /// Drops all of the object, from memory and disk. So a reader who found damage can ask the bucket.
    fn drop_cached(&self, _offset: u64, _length: u64) {
        if let From::Object(objects, object) = &self.from {
            object.spoil(objects);
            objects.forget(&self.path);
        }
    }
}
