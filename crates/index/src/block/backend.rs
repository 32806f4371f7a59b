//! A redb storage backend on a file of the ground, so that the database crashes, tears and fills up in tests like every other file.
//!
//! Invariants:
//! * After the first error nothing more is written through a backend. redb gives up a database after an I/O error; the owner then opens the
//!   file anew through a new backend, and readers that still hold the old one cannot disturb the new one.
//! * An [`Overlay`] never writes a byte to its file. redb writes when it opens a database after a crash; those pages stay in memory.

use onefold_ground::{File, GroundError};
use parking_lot::RwLock;
use redb::StorageBackend;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set when a backend has failed: the database above it must be opened anew.
#[derive(Clone, Debug, Default)]
pub(super) struct Fault(Arc<AtomicBool>);

impl Fault {
    /// Whether an operation failed.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// From now on nothing is written.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn watch<T>(&self, result: onefold_ground::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            self.set();
            into_io(error)
        })
    }

    fn check(&self) -> io::Result<()> {
        if self.is_set() { Err(io::Error::other("an operation on this file failed before; it is opened anew")) } else { Ok(()) }
    }
}

/// Keeps kind and text of the ground's error.
fn into_io(error: GroundError) -> io::Error {
    io::Error::new(error.kind(), error)
}

/// Reads and writes a file.
#[derive(Debug)]
pub(super) struct Direct {
    file: Arc<dyn File>,
    fault: Fault,
}

impl Direct {
    pub(super) fn new(file: Arc<dyn File>, fault: Fault) -> Direct {
        Direct { file, fault }
    }
}

impl StorageBackend for Direct {
    fn len(&self) -> io::Result<u64> {
        self.fault.watch(self.file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.fault.watch(self.file.read_at(offset, out))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.fault.check()?;
        let present = self.fault.watch(self.file.len())?;
        if length > present {
            // A full disk shows here, before a transaction is half written.
            self.fault.watch(self.file.allocate(present, length - present))
        } else {
            self.fault.watch(self.file.set_len(length))
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fault.check()?;
        self.fault.watch(self.file.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.fault.check()?;
        self.fault.watch(self.file.write_at(offset, data))
    }
}

/// Granularity of an overlay; a page of redb.
const PAGE_BYTES: u64 = 4096;

/// Reads a file and keeps what is written to it in memory.
#[derive(Debug)]
pub(super) struct Overlay {
    file: Arc<dyn File>,
    fault: Fault,
    written: RwLock<Written>,
}

#[derive(Debug)]
struct Written {
    pages: HashMap<u64, Box<[u8]>>,
    length: u64,
    /// The smallest length so far: what the file holds behind it is gone.
    kept: u64,
}

impl Overlay {
    pub(super) fn new(file: Arc<dyn File>, fault: Fault) -> onefold_ground::Result<Overlay> {
        let length = file.len()?;
        Ok(Overlay { file, fault, written: RwLock::new(Written { pages: HashMap::new(), length, kept: length }) })
    }

    /// Reads what the file still says about `offset ..`; zeros behind its end.
    fn read_below(&self, kept: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let present = (kept.saturating_sub(offset)).min(out.len() as u64) as usize;
        if present > 0 {
            self.fault.watch(self.file.read_at(offset, &mut out[..present]))?;
        }
        out[present..].fill(0);
        Ok(())
    }
}

/// The parts of `offset .. offset + length` by page: page number, first byte within the page, bytes.
fn by_page(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES) as usize;
        let count = (PAGE_BYTES as usize - within).min(length - done);
        done += count;
        Some((at / PAGE_BYTES, within, count))
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.read().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.read();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > written.length) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "read behind the end of the block index"));
        }
        if written.pages.is_empty() {
            return self.read_below(written.kept, offset, out);
        }
        let mut done = 0;
        for (page, within, count) in by_page(offset, out.len()) {
            let part = &mut out[done..done + count];
            match written.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + count]),
                None => self.read_below(written.kept, page * PAGE_BYTES + within as u64, part)?,
            }
            done += count;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut written = self.written.write();
        written.length = length;
        written.kept = written.kept.min(length);
        let (last, within) = (length / PAGE_BYTES, (length % PAGE_BYTES) as usize);
        written.pages.retain(|page, bytes| {
            if *page == last {
                bytes[within..].fill(0);
            }
            *page <= last
        });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written.write();
        let mut done = 0;
        for (page, within, count) in by_page(offset, data.len()) {
            let kept = written.kept;
            let bytes = match written.pages.entry(page) {
                Entry::Occupied(present) => present.into_mut(),
                Entry::Vacant(absent) => {
                    let mut bytes = vec![0; PAGE_BYTES as usize].into_boxed_slice();
                    self.read_below(kept, page * PAGE_BYTES, &mut bytes)?;
                    absent.insert(bytes)
                }
            };
            bytes[within..within + count].copy_from_slice(&data[done..done + count]);
            done += count;
        }
        written.length = written.length.max(offset + data.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::{Access, Ground, LocalGround};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn an_overlay_reads_like_the_file_written_and_leaves_it_alone(
            start in proptest::collection::vec(any::<u8>(), 0..20_000),
            steps in proptest::collection::vec((0u64..30_000, proptest::collection::vec(any::<u8>(), 0..9000), any::<bool>()), 0..8),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let ground = LocalGround::open(directory.path()).unwrap();
            ground.create("file").unwrap().write_at(0, &start).unwrap();
            let overlay = Overlay::new(ground.open("file", Access::Read).unwrap(), Fault::default()).unwrap();
            let mut model = start.clone();
            for (offset, data, truncate) in steps {
                if truncate {
                    overlay.set_len(offset).unwrap();
                    model.resize(offset as usize, 0);
                } else {
                    overlay.write(offset, &data).unwrap();
                    if !data.is_empty() {
                        model.resize(model.len().max(offset as usize + data.len()), 0);
                    } else {
                        model.resize(model.len().max(offset as usize), 0);
                    }
                    model[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
                }
                let mut seen = vec![1; model.len()];
                overlay.read(0, &mut seen).unwrap();
                prop_assert_eq!(&seen, &model);
                prop_assert!(overlay.read(1, &mut seen).is_err() || model.is_empty());
            }
            prop_assert_eq!(onefold_ground::read_file(&ground, "file", 1 << 20).unwrap(), start);
        }
    }

    #[test]
    fn after_an_error_nothing_more_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        ground.create("file").unwrap().write_at(0, b"kept").unwrap();
        let fault = Fault::default();
        let direct = Direct::new(ground.open("file", Access::ReadWrite).unwrap(), fault.clone());
        assert!(direct.read(100, &mut [0; 4]).is_err());
        assert!(fault.is_set());
        assert!(direct.write(0, b"lost").is_err());
        assert!(direct.set_len(0).is_err());
        assert!(direct.sync_data().is_err());
        assert_eq!(onefold_ground::read_file(&ground, "file", 100).unwrap(), b"kept");
    }
}
