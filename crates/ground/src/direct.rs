//! Reads that bypass the page cache (O_DIRECT). They return what the device holds, not what the system remembers, and
//! evict nothing that others use.
//!
//! The device wants aligned offsets, lengths and buffers. Callers need not care: an unaligned read goes through a
//! buffer of at most one mebibyte. A caller that reads much uses a [`ReadBuffer`] and reuses it: the device writes into
//! it directly. The system would make new memory page by page, which takes as long as a fast device needs to fill it.

use crate::error::refused;
use crate::{File, Result};
use rustix::fs::OFlags;
use rustix::io::{Errno, preadv};
use std::fs;
use std::io::{self, IoSliceMut};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Alignment that every device in use accepts.
const ALIGNMENT_BYTES: usize = 4096;
/// Bytes per read when the caller's memory is not aligned.
const BOUNCE_BYTES: usize = 1 << 20;

/// A block that starts where the device wants it.
#[repr(C, align(4096))]
struct Block([u8; ALIGNMENT_BYTES]);

/// A reusable read buffer, as long as the longest read so far. It is aligned as
/// [`Ground::open_past_cache`](crate::Ground::open_past_cache) prefers, and holds the last read.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    memory: Vec<u8>,
    start: usize,
    length_bytes: usize,
}

impl ReadBuffer {
    /// Reads exactly `length_bytes` bytes. After an error the buffer is empty.
    pub fn read(&mut self, file: &dyn File, offset: u64, length_bytes: usize) -> Result<&[u8]> {
        self.length_bytes = 0;
        if self.memory.len() < length_bytes + ALIGNMENT_BYTES {
            // Drop the old contents first: there is no need to copy them.
            self.memory = Vec::new();
            self.memory = vec![0; length_bytes + ALIGNMENT_BYTES];
            self.start = self.memory.as_ptr().align_offset(ALIGNMENT_BYTES).min(ALIGNMENT_BYTES);
        }
        file.read_at(offset, &mut self.memory[self.start..self.start + length_bytes])?;
        self.length_bytes = length_bytes;
        Ok(self)
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length_bytes]
    }
}

/// A file whose reads bypass the page cache.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: fs::File,
    path: PathBuf,
    /// The same file, through the cache. It serves everything but reads, and reads too if the device turns out to want
    /// a larger alignment.
    cached: Arc<dyn File>,
    is_refused: AtomicBool,
}

impl DirectFile {
    /// Returns `None` if the file system does not support it.
    pub(crate) fn open(path: &Path, cached: Arc<dyn File>) -> Option<DirectFile> {
        let flags = (OFlags::DIRECT | OFlags::NONBLOCK).bits() as i32;
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        Some(DirectFile { file, path: path.to_owned(), cached, is_refused: AtomicBool::new(false) })
    }

    /// Returns whether a read from the device gave exactly these bytes.
    pub(crate) fn holds(&self, offset: u64, data: &[u8]) -> bool {
        let mut bytes = vec![0; BOUNCE_BYTES.min(data.len())];
        let mut at = offset;
        data.chunks(BOUNCE_BYTES).all(|expected| {
            let found = &mut bytes[..expected.len()];
            let is_read = self.read_direct(at, found).is_ok();
            at += expected.len() as u64;
            is_read && found == expected
        })
    }

    /// Reads into aligned memory from an aligned offset.
    fn read_aligned(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut tail = Block([0; ALIGNMENT_BYTES]);
        let mut done = 0;
        while done < out.len() {
            // The last bytes do not fill a block. The same read puts them into a separate block.
            let rest = &mut out[done..];
            let wanted = rest.len();
            let (whole, last) = rest.split_at_mut(wanted - wanted % ALIGNMENT_BYTES);
            let whole_bytes = whole.len();
            let mut parts = [IoSliceMut::new(whole), IoSliceMut::new(&mut tail.0)];
            let parts = match (whole_bytes, last.is_empty()) {
                (0, _) => &mut parts[1..],
                (_, true) => &mut parts[..1],
                (_, false) => &mut parts[..],
            };
            let read = match preadv(&self.file, parts, offset + done as u64) {
                Err(Errno::INTR) => continue,
                read => read?,
            };
            if read >= wanted {
                last.copy_from_slice(&tail.0[..last.len()]);
                return Ok(());
            }
            if read == 0 || read % ALIGNMENT_BYTES != 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += read;
        }
        Ok(())
    }

    /// Reads into any memory from any offset.
    fn read_through_buffer(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let before = (offset % ALIGNMENT_BYTES as u64) as usize;
        let most = (before + out.len()).next_multiple_of(ALIGNMENT_BYTES).min(BOUNCE_BYTES);
        let mut memory = vec![0; most + ALIGNMENT_BYTES];
        let shift = memory.as_ptr().align_offset(ALIGNMENT_BYTES).min(ALIGNMENT_BYTES);
        let buffer = &mut memory[shift..shift + most];
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let before = (at % ALIGNMENT_BYTES as u64) as usize;
            let wanted = (before + out.len() - done).next_multiple_of(ALIGNMENT_BYTES).min(most);
            let read = match self.file.read_at(&mut buffer[..wanted], at - before as u64) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read <= before {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let count = (read - before).min(out.len() - done);
            out[done..done + count].copy_from_slice(&buffer[before..before + count]);
            done += count;
        }
        Ok(())
    }

    fn read_direct(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset.is_multiple_of(ALIGNMENT_BYTES as u64) && out.as_ptr().align_offset(ALIGNMENT_BYTES) == 0 {
            return self.read_aligned(offset, out);
        }
        self.read_through_buffer(offset, out)
    }
}

impl crate::DelegatingFile for DirectFile {
    fn below(&self) -> &dyn File {
        &*self.cached
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if !self.is_refused.load(Ordering::Relaxed) {
            match self.read_direct(offset, buffer) {
                Err(refused) if refused.kind() == io::ErrorKind::InvalidInput => self.is_refused.store(true, Ordering::Relaxed),
                read => return read.map_err(|source| refused("read", &self.path, source)),
            }
        }
        self.cached.drop_cached(offset, buffer.len() as u64);
        self.cached.read_at(offset, buffer)
    }

    fn try_read_at(&self, _offset: u64, _buffer: &mut [u8]) -> Result<bool> {
        Ok(false)
    }

    /// Does nothing: read-ahead would fill the cache.
    fn read_ahead(&self, _offset: u64, _length: u64) {}
}

#[cfg(test)]
mod tests {
    use super::ReadBuffer;
    use crate::{Ground, LocalGround};

    #[test]
    fn any_range_of_a_file_is_read_past_the_cache_as_it_was_written() {
        // If temporary files live in memory, the ground falls back. Then this test covers the fallback.
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        let content: Vec<u8> = (0..9_500_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let file = ground.create("file").unwrap();
        file.write_at(0, &content).unwrap();
        file.sync().unwrap();
        let direct = ground.open_past_cache("file").unwrap();
        assert_eq!(direct.len().unwrap(), content.len() as u64);
        for (start, length) in [(0, 9_500_000), (0, 1), (4095, 2), (4096, 4096), (9_499_999, 1), (17, 4 << 20), (8192, 5 << 20), (3, 0)] {
            let mut bytes = vec![0; length];
            direct.read_at(start as u64, &mut bytes).unwrap();
            assert!(bytes == content[start..start + length], "{start} {length}");
        }
        let mut buffer = ReadBuffer::default();
        for (start, length) in
            [(0, 100), (0, 9_500_000), (4096, 4096), (8192, 5 << 20), (9_498_624, 1376), (9_498_624, 1), (1, 5000), (4096, 0)]
        {
            assert!(buffer.read(&*direct, start as u64, length).unwrap() == &content[start..start + length], "{start} {length}");
        }
        for (start, length) in [(9_498_624, 1377), (9_494_528, 8192), (9_502_720, 1), (0, 9_500_001)] {
            assert!(buffer.read(&*direct, start, length).is_err() && buffer.is_empty(), "{start} {length}");
        }
        assert!(direct.read_at(9_499_999, &mut [0; 2]).is_err());
        assert!(direct.read_at(20_000_000, &mut [0; 2]).is_err());
        assert!(direct.write_at(0, b"x").is_err());
        assert!(ground.open_past_cache("absent").is_err());
    }
}
