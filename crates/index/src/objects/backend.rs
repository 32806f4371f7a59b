//! A redb storage backend on [`Blocks`] of a file of the ground. So every byte that redb sees is verified. In tests the
//! database crashes, tears and fills up like every other file.
//!
//! Invariants:
//! * After the first error a backend writes nothing more. redb gives up a database after an I/O error, and the owner
//!   then reopens the file through a new backend. Readers that still hold the old backend cannot disturb the new one.
//! * An [`Overlay`] never writes to its file. redb writes when it opens a database after a crash; those pages stay in
//!   memory.

use super::blocks::{Blocks, PAGE_BYTES, by_page};
use parking_lot::RwLock;
use redb::StorageBackend;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set when a backend has failed: its database must be reopened.
#[derive(Clone, Debug, Default)]
pub(super) struct Fault(Arc<AtomicBool>);

impl Fault {
    /// Returns whether an operation failed.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Stops all writes from now on.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn watch<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|_| self.set())
    }

    fn check(&self) -> io::Result<()> {
        if self.is_set() { Err(io::Error::other("an earlier operation on this file failed; the file is being reopened")) } else { Ok(()) }
    }
}

/// Reads and writes a file.
#[derive(Debug)]
pub(super) struct Direct {
    blocks: Blocks,
    fault: Fault,
}

impl Direct {
    pub(super) fn new(blocks: Blocks, fault: Fault) -> Direct {
        Direct { blocks, fault }
    }
}

impl StorageBackend for Direct {
    fn len(&self) -> io::Result<u64> {
        Ok(self.blocks.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.fault.watch(self.blocks.read(offset, out))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.fault.check()?;
        self.fault.watch(self.blocks.set_len(length))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fault.check()?;
        self.fault.watch(self.blocks.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.fault.check()?;
        self.fault.watch(self.blocks.write(offset, data))
    }
}

/// Reads a file and keeps writes in memory.
#[derive(Debug)]
pub(super) struct Overlay {
    blocks: Blocks,
    fault: Fault,
    written: RwLock<Written>,
}

#[derive(Debug)]
struct Written {
    pages: HashMap<u64, Box<[u8]>>,
    length: u64,
    /// The smallest length so far: the file's content past it is gone.
    kept: u64,
}

impl Overlay {
    pub(super) fn new(blocks: Blocks, fault: Fault) -> Overlay {
        let length = blocks.len();
        Overlay { blocks, fault, written: RwLock::new(Written { pages: HashMap::new(), length, kept: length }) }
    }

    /// Reads the file's content from `offset` on; zeros past its end.
    fn read_below(&self, kept: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let present = (kept.saturating_sub(offset)).min(out.len() as u64) as usize;
        if present > 0 {
            self.fault.watch(self.blocks.read(offset, &mut out[..present]))?;
        }
        out[present..].fill(0);
        Ok(())
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.read().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.fault.check()?;
        let written = self.written.read();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > written.length) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "read past the end of the object index"));
        }
        if written.pages.is_empty() {
            return self.read_below(written.kept, offset, out);
        }
        let mut done = 0;
        for (page, within, count) in by_page(offset, out.len()) {
            let part = &mut out[done..done + count];
            match written.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + count]),
                None => self.read_below(written.kept, page * PAGE_BYTES as u64 + within as u64, part)?,
            }
            done += count;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut written = self.written.write();
        written.length = length;
        written.kept = written.kept.min(length);
        let (last, within) = (length / PAGE_BYTES as u64, (length % PAGE_BYTES as u64) as usize);
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
                    let mut bytes = vec![0; PAGE_BYTES].into_boxed_slice();
                    // A page that is written whole is not read: it may never have been written before.
                    if count < PAGE_BYTES {
                        self.read_below(kept, page * PAGE_BYTES as u64, &mut bytes)?;
                    }
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
            start in proptest::collection::vec(any::<u8>(), 2..6),
            steps in proptest::collection::vec((0u64..30_000, proptest::collection::vec(any::<u8>(), 0..9000), any::<bool>()), 0..8),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let ground = LocalGround::open(directory.path()).unwrap();
            let blocks = Blocks::create(ground.create("file").unwrap());
            let mut model: Vec<u8> = start.iter().flat_map(|value| vec![*value; PAGE_BYTES]).collect();
            blocks.write(0, &model[..PAGE_BYTES]).unwrap();
            blocks.write(PAGE_BYTES as u64, &model[PAGE_BYTES..]).unwrap();
            blocks.sync().unwrap();
            let before = onefold_ground::read_file(&ground, "file", 1 << 20).unwrap();
            let blocks = Blocks::open(ground.open("file", Access::Read).unwrap(), Access::Read).unwrap();
            let overlay = Overlay::new(blocks, Fault::default());
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
            prop_assert_eq!(onefold_ground::read_file(&ground, "file", 1 << 20).unwrap(), before);
        }
    }

    #[test]
    fn after_an_error_nothing_more_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        let blocks = Blocks::create(ground.create("file").unwrap());
        blocks.write(0, b"kept").unwrap();
        blocks.sync().unwrap();
        let before = onefold_ground::read_file(&ground, "file", 1 << 20).unwrap();
        let fault = Fault::default();
        let direct = Direct::new(blocks, fault.clone());
        assert!(direct.read(100, &mut [0; 4]).is_err());
        assert!(fault.is_set());
        assert!(direct.write(0, b"lost").is_err());
        assert!(direct.set_len(0).is_err());
        assert!(direct.sync_data().is_err());
        assert_eq!(onefold_ground::read_file(&ground, "file", 1 << 20).unwrap(), before);
    }
}
