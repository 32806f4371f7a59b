//! Reading past the page cache (O_DIRECT): what the device has, whatever the system remembers, and without driving out of memory what others
//! use.
//!
//! The device wants offsets, lengths and buffers aligned; callers need not care: reads go through an aligned buffer of the thread.

use crate::local::error;
use crate::{File, Result};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What every device in use is content with.
const ALIGNMENT_BYTES: usize = 4096;
/// Read at once: the buffer of a thread.
const BUFFER_BYTES: usize = 4 << 20;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A file that is read past the page cache.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: fs::File,
    path: PathBuf,
    /// The same file, through the cache: for all but reading, and where the device turns out to want a greater alignment.
    cached: Arc<dyn File>,
    is_refused: AtomicBool,
}

impl DirectFile {
    /// `None` where the file system cannot do it.
    pub(crate) fn open(path: &Path, cached: Arc<dyn File>) -> Option<DirectFile> {
        let flags = (OFlags::DIRECT | OFlags::NONBLOCK).bits() as i32;
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        Some(DirectFile { file, path: path.to_owned(), cached, is_refused: AtomicBool::new(false) })
    }

    fn read_aligned(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        BUFFER.with_borrow_mut(|memory| {
            memory.resize(BUFFER_BYTES + ALIGNMENT_BYTES, 0);
            let shift = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
            let buffer = &mut memory[shift..shift + BUFFER_BYTES];
            let mut done = 0;
            while done < out.len() {
                let at = offset + done as u64;
                let before = (at % ALIGNMENT_BYTES as u64) as usize;
                let wanted = (before + out.len() - done).next_multiple_of(ALIGNMENT_BYTES).min(BUFFER_BYTES);
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
        })
    }
}

impl File for DirectFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if !self.is_refused.load(Ordering::Relaxed) {
            match self.read_aligned(offset, buffer) {
                Err(refused) if refused.kind() == io::ErrorKind::InvalidInput => self.is_refused.store(true, Ordering::Relaxed),
                read => return read.map_err(|source| error("read", &self.path, source)),
            }
        }
        self.cached.drop_cached(offset, buffer.len() as u64);
        self.cached.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.cached.write_at(offset, data)
    }

    fn len(&self) -> Result<u64> {
        self.cached.len()
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.cached.set_len(length)
    }

    fn sync(&self) -> Result<()> {
        self.cached.sync()
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.cached.allocate(offset, length)
    }

    fn start_writeback(&self, _offset: u64, _length: u64) {}

    fn read_ahead(&self, _offset: u64, _length: u64) {}
}

#[cfg(test)]
mod tests {
    use crate::{Ground, LocalGround};

    #[test]
    fn any_range_of_a_file_is_read_past_the_cache_as_it_was_written() {
        // Where temporary files lie in memory the ground falls back; then this shows that it does so.
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
        assert!(direct.read_at(9_499_999, &mut [0; 2]).is_err());
        assert!(direct.read_at(20_000_000, &mut [0; 2]).is_err());
        assert!(direct.write_at(0, b"x").is_err());
        assert!(ground.open_past_cache("absent").is_err());
    }
}
