//! A ground that reads another ground and keeps all writes in memory. A repair on it changes nothing, and its result
//! can be read.
//!
//! Of a changed file only the changed pages are in memory. Its locks bind only this process: its creator holds the
//! store's locks.

use onefold_ground::{Access, DirectoryEntry, File, Ground, GroundError, Holder, Identity, LockError, LockGuard, Result, lock, parent};
use parking_lot::{Mutex, RwLock};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;

/// The ground. Clones share its state.
#[derive(Clone, Debug)]
pub(crate) struct Overlay {
    inner: Arc<dyn Ground>,
    names: Arc<Mutex<Names>>,
    /// The store's lock, held as long as anybody reads here.
    _lock: Arc<LockGuard>,
}

#[derive(Debug, Default)]
struct Names {
    /// Files that are new, changed or renamed.
    files: BTreeMap<String, Arc<Changed>>,
    /// Names that are removed from the ground below.
    removed: BTreeSet<String>,
    directories: BTreeSet<String>,
    /// Block devices, which names below lead to.
    devices: BTreeMap<String, Arc<Changed>>,
}

/// A file with changes in memory.
#[derive(Debug)]
struct Changed {
    below: Option<Arc<dyn File>>,
    pages: RwLock<Pages>,
}

#[derive(Debug)]
struct Pages {
    pages: BTreeMap<u64, Box<[u8]>>,
    length: u64,
    /// The smallest length so far: bytes of the file below beyond it are gone.
    kept: u64,
}

/// A changed file, or a file of the ground below until somebody changes it.
#[derive(Debug)]
struct Handle {
    ground: Overlay,
    path: String,
    changed: Option<Arc<Changed>>,
    below: Option<Arc<dyn File>>,
}

struct NoLock;

impl lock::Held for NoLock {
    fn is_held(&self) -> Result<bool> {
        Ok(true)
    }
}

fn failed(operation: &'static str, path: &str, kind: ErrorKind) -> GroundError {
    GroundError::Io { operation, path: path.to_owned(), source: kind.into() }
}

impl Overlay {
    /// Returns an overlay without changes. `lock` keeps writers from the ground below.
    pub(crate) fn new(inner: Arc<dyn Ground>, lock: LockGuard) -> Overlay {
        Overlay { inner, names: Arc::default(), _lock: Arc::new(lock) }
    }

    fn is_below(&self, names: &Names, path: &str) -> Result<bool> {
        Ok(!names.removed.contains(path) && self.inner.exists(path)?)
    }

    /// Returns whether the ground below has the same file under this name.
    fn is_untouched(&self, path: &str) -> bool {
        let names = self.names.lock();
        !names.files.contains_key(path) && !names.removed.contains(path)
    }

    /// Returns the file in a form that can be changed.
    fn to_change(&self, names: &mut Names, path: &str) -> Result<Arc<Changed>> {
        if let Some(changed) = names.files.get(path) {
            return Ok(changed.clone());
        }
        if names.removed.contains(path) {
            return Err(failed("open", &self.describe(path), ErrorKind::NotFound));
        }
        let changed = Changed::over(self.inner.open(path, Access::Read)?)?;
        names.files.insert(path.to_owned(), changed.clone());
        Ok(changed)
    }

    fn handle(&self, path: &str, changed: Option<Arc<Changed>>, below: Option<Arc<dyn File>>) -> Arc<dyn File> {
        Arc::new(Handle { ground: self.clone(), path: path.to_owned(), changed, below })
    }
}

impl Changed {
    /// Returns a file without changes yet.
    fn over(below: Arc<dyn File>) -> Result<Arc<Changed>> {
        let length = below.len()?;
        let pages = Pages { pages: BTreeMap::new(), length, kept: length };
        Ok(Arc::new(Changed { below: Some(below), pages: RwLock::new(pages) }))
    }
}

impl onefold_ground::DelegatingGround for Overlay {
    fn below(&self) -> &dyn Ground {
        &*self.inner
    }

    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        let mut names = self.names.lock();
        if names.files.contains_key(path) || self.is_below(&names, path)? {
            return Err(failed("create", &self.inner.describe(path), ErrorKind::AlreadyExists));
        }
        let pages = Pages { pages: BTreeMap::new(), length: 0, kept: 0 };
        let changed = Arc::new(Changed { below: None, pages: RwLock::new(pages) });
        names.files.insert(path.to_owned(), changed.clone());
        Ok(self.handle(path, Some(changed), None))
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        let mut names = self.names.lock();
        if access == Access::ReadWrite || names.files.contains_key(path) || names.removed.contains(path) {
            let changed = self.to_change(&mut names, path)?;
            return Ok(self.handle(path, Some(changed), None));
        }
        let below = self.inner.open(path, access)?;
        Ok(self.handle(path, None, Some(below)))
    }

    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>> {
        if self.is_untouched(path) {
            Ok(self.handle(path, None, Some(self.inner.open_past_cache(path)?)))
        } else {
            Ground::open(self, path, Access::Read)
        }
    }

    fn open_device(&self, path: &str, _access: Access) -> Result<Option<Arc<dyn File>>> {
        let mut names = self.names.lock();
        if names.files.contains_key(path) || names.removed.contains(path) {
            return Ok(None);
        }
        let known = names.devices.get(path).cloned();
        let changed = match known {
            Some(changed) => changed,
            None => {
                let Some(below) = self.inner.open_device(path, Access::Read)? else { return Ok(None) };
                let changed = Changed::over(below)?;
                names.devices.insert(path.to_owned(), changed.clone());
                changed
            }
        };
        Ok(Some(self.handle(path, Some(changed), None)))
    }

    fn link_device(&self, path: &str, _device: &Path) -> Result<()> {
        Err(failed("create", &self.inner.describe(path), ErrorKind::Unsupported))
    }

    fn link_directory(&self, path: &str, _directory: &Path) -> Result<()> {
        Err(failed("create", &self.inner.describe(path), ErrorKind::Unsupported))
    }

    fn unlink_directory(&self, path: &str) -> Result<()> {
        Err(failed("remove", &self.inner.describe(path), ErrorKind::Unsupported))
    }

    fn device_holds(&self, path: &str, offset: u64, data: &[u8]) -> Result<bool> {
        Ok(self.is_untouched(path) && self.inner.device_holds(path, offset, data)?)
    }

    fn identity(&self, path: &str) -> Result<Option<Identity>> {
        if self.is_untouched(path) { self.inner.identity(path) } else { Ok(None) }
    }

    fn remove(&self, path: &str) -> Result<()> {
        let mut names = self.names.lock();
        let is_below = self.is_below(&names, path)?;
        if names.files.remove(path).is_none() && !is_below {
            return Err(failed("remove", &self.inner.describe(path), ErrorKind::NotFound));
        }
        names.removed.insert(path.to_owned());
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut names = self.names.lock();
        let changed = self.to_change(&mut names, from)?;
        names.files.remove(from);
        names.removed.insert(from.to_owned());
        names.files.insert(to.to_owned(), changed);
        Ok(())
    }

    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>> {
        let names = self.names.lock();
        let path = |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        let mut found: BTreeSet<DirectoryEntry> = match self.inner.list(directory) {
            Err(error) if error.is_not_found() && names.directories.contains(directory) => BTreeSet::new(),
            listed => listed?.into_iter().filter(|entry| !names.removed.contains(&path(&entry.name))).collect(),
        };
        let own = |all: &mut dyn Iterator<Item = &String>, is_directory: bool| -> Vec<DirectoryEntry> {
            let here = all.filter(|path| parent(path) == directory && !path.is_empty());
            here.map(|path| DirectoryEntry { name: path.rsplit('/').next().unwrap_or(path).to_owned(), is_directory }).collect()
        };
        found.extend(own(&mut names.files.keys(), false));
        found.extend(own(&mut names.directories.iter(), true));
        Ok(found.into_iter().collect())
    }

    fn create_directory(&self, directory: &str) -> Result<()> {
        let mut names = self.names.lock();
        let mut path = directory;
        while !path.is_empty() {
            names.directories.insert(path.to_owned());
            path = parent(path);
        }
        Ok(())
    }

    fn sync_directory(&self, _directory: &str) -> Result<()> {
        Ok(())
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let names = self.names.lock();
        Ok(names.files.contains_key(path) || names.directories.contains(path) || self.is_below(&names, path)?)
    }

    fn lock(&self, _path: &str, _exclusive: bool, _holder: &Holder) -> std::result::Result<LockGuard, LockError> {
        Ok(LockGuard::new(NoLock))
    }
}

impl Changed {
    fn read(&self, path: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let pages = self.pages.read();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > pages.length) {
            return Err(failed("read", path, ErrorKind::UnexpectedEof));
        }
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let count = (PAGE_BYTES as usize - within).min(out.len() - done);
            let part = &mut out[done..done + count];
            match pages.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + count]),
                None => self.read_below(pages.kept, at, part)?,
            }
            done += count;
        }
        Ok(())
    }

    /// Reads the bytes of the file below, with zeros after its end.
    fn read_below(&self, kept: u64, offset: u64, out: &mut [u8]) -> Result<()> {
        let present = kept.saturating_sub(offset).min(out.len() as u64) as usize;
        out[present..].fill(0);
        match &self.below {
            Some(below) if present > 0 => below.read_at(offset, &mut out[..present]),
            _ => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut pages = self.pages.write();
        let kept = pages.kept;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let count = (PAGE_BYTES as usize - within).min(data.len() - done);
            let bytes = match pages.pages.entry(page) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(vacant) => {
                    let mut bytes = vec![0; PAGE_BYTES as usize].into_boxed_slice();
                    // A page that is written completely is not read: it may be damaged.
                    if count < PAGE_BYTES as usize {
                        self.read_below(kept, page * PAGE_BYTES, &mut bytes)?;
                    }
                    vacant.insert(bytes)
                }
            };
            bytes[within..within + count].copy_from_slice(&data[done..done + count]);
            done += count;
        }
        pages.length = pages.length.max(offset + data.len() as u64);
        Ok(())
    }

    fn set_len(&self, length: u64) {
        let mut pages = self.pages.write();
        pages.length = length;
        pages.kept = pages.kept.min(length);
        let (last, within) = (length / PAGE_BYTES, (length % PAGE_BYTES) as usize);
        pages.pages.retain(|page, bytes| {
            if *page == last {
                bytes[within..].fill(0);
            }
            *page < last || (*page == last && within > 0)
        });
    }
}

impl Handle {
    fn changed(&self) -> Option<Arc<Changed>> {
        self.changed.clone().or_else(|| self.ground.names.lock().files.get(&self.path).cloned())
    }

    fn to_change(&self, operation: &'static str) -> Result<&Changed> {
        self.changed.as_deref().ok_or_else(|| failed(operation, &self.path, ErrorKind::PermissionDenied))
    }
}

impl File for Handle {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match (self.changed(), &self.below) {
            (Some(changed), _) => changed.read(&self.path, offset, buffer),
            (None, Some(below)) => below.read_at(offset, buffer),
            (None, None) => Err(failed("read", &self.path, ErrorKind::NotFound)),
        }
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        match (self.changed(), &self.below) {
            (None, Some(below)) => below.try_read_at(offset, buffer),
            // A changed file may still have its other bytes below.
            _ => Ok(false),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.to_change("write")?.write(offset, data)
    }

    fn len(&self) -> Result<u64> {
        match (self.changed(), &self.below) {
            (Some(changed), _) => Ok(changed.pages.read().length),
            (None, Some(below)) => below.len(),
            (None, None) => Err(failed("read the length of", &self.path, ErrorKind::NotFound)),
        }
    }

    fn allocated_bytes(&self) -> Result<u64> {
        match (self.changed(), &self.below) {
            (None, Some(below)) => below.allocated_bytes(),
            // Memory is large enough for all of it.
            _ => self.len(),
        }
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.to_change("set the length of")?.set_len(length);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        let changed = self.to_change("reserve space in")?;
        let mut pages = changed.pages.write();
        pages.length = pages.length.max(offset + length);
        Ok(())
    }

    fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        let changed = self.to_change("make a hole in")?;
        let end = (offset + length).min(changed.pages.read().length);
        let zeros = [0; PAGE_BYTES as usize];
        (offset..end).step_by(zeros.len()).try_for_each(|at| changed.write(at, &zeros[..PAGE_BYTES.min(end - at) as usize]))
    }

    fn pretend_write(&self, _offset: u64, _length: u64) -> Result<()> {
        Ok(())
    }

    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()> {
        self.allocate(offset, length)
    }

    fn start_writeback(&self, _offset: u64, _length: u64) {}

    fn read_ahead(&self, offset: u64, length: u64) {
        if let Some(below) = &self.below {
            below.read_ahead(offset, length);
        }
    }

    fn drop_cached(&self, offset: u64, length: u64) {
        if let Some(below) = &self.below {
            below.drop_cached(offset, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::{SimulatedGround, read_file, replace_file};

    #[test]
    fn a_file_that_is_not_changed_is_the_one_below() {
        let directory = tempfile::tempdir().unwrap();
        let below = Arc::new(onefold_ground::LocalGround::open(directory.path()).unwrap());
        for name in ["one", "two", "three"] {
            below.create(name).unwrap().write_at(0, &[7; 4096]).unwrap();
        }
        let lock = below.lock("lock", false, &Holder::this_process("test")).unwrap();
        let overlay = Overlay::new(below.clone(), lock);
        assert_eq!(overlay.exposure().unwrap(), below.exposure().unwrap());
        assert_eq!(overlay.identity("one").unwrap(), below.identity("one").unwrap());
        overlay.open("two", Access::ReadWrite).unwrap().write_at(0, &[1]).unwrap();
        overlay.rename("three", "four").unwrap();
        for name in ["two", "three", "four"] {
            assert_eq!(overlay.identity(name).unwrap(), None);
        }
        let mut seen = [0; 2];
        overlay.open_past_cache("two").unwrap().read_at(0, &mut seen).unwrap();
        assert_eq!(seen, [1, 7]);
        overlay.open_past_cache("one").unwrap().read_at(0, &mut seen).unwrap();
        assert_eq!(seen, [7, 7]);
        assert!(!overlay.device_holds("two", 0, &[7]).unwrap());
        assert!(overlay.open_past_cache("three").unwrap_err().is_not_found());
    }

    #[test]
    fn a_block_device_is_changed_in_memory_too() {
        let below = SimulatedGround::new(1);
        below.create_directory("d").unwrap();
        below.make_device("d/device", 3 * PAGE_BYTES).unwrap();
        let lock = below.lock("lock", false, &Holder::this_process("test")).unwrap();
        let overlay = Overlay::new(Arc::new(below.clone()), lock);
        let open = || overlay.open_device("d/device", Access::ReadWrite).unwrap().unwrap();
        open().write_at(4000, &[1; 200]).unwrap();
        open().sync().unwrap();
        let mut seen = [0; 202];
        open().read_at(3999, &mut seen).unwrap();
        assert_eq!((seen[0], seen[1], seen[200], seen[201]), (0, 1, 1, 0));
        assert_eq!(open().len().unwrap(), 3 * PAGE_BYTES);
        below.open_device("d/device", Access::Read).unwrap().unwrap().read_at(3999, &mut seen).unwrap();
        assert_eq!(seen, [0; 202]);
        assert!(overlay.open_device("d/nothing", Access::Read).unwrap().is_none());
        assert!(overlay.link_device("d/other", Path::new("/dev/null")).is_err());
    }

    #[test]
    fn what_is_changed_is_in_memory_and_the_ground_below_stays_as_it_is() {
        let below = SimulatedGround::new(1);
        below.create_directory("d").unwrap();
        for (name, length) in [("d/one", 10_000), ("d/two", 5000), ("d/three", 10)] {
            below.create(name).unwrap().write_at(0, &vec![7; length]).unwrap();
        }
        let lock = below.lock("lock", false, &Holder::this_process("test")).unwrap();
        let overlay = Overlay::new(Arc::new(below.clone()), lock);
        let reader = overlay.open("d/one", Access::Read).unwrap();
        let one = overlay.open("d/one", Access::ReadWrite).unwrap();
        one.write_at(4090, &[1; 20]).unwrap();
        one.set_len(4100).unwrap();
        one.write_at(9000, &[2]).unwrap();
        let mut expected = vec![7; 4090];
        expected.extend([1; 10]);
        expected.resize(9000, 0);
        expected.push(2);
        assert_eq!(read_file(&overlay, "d/one", 1 << 20).unwrap(), expected);
        let mut seen = vec![0; 9001];
        reader.read_at(0, &mut seen).unwrap();
        assert_eq!(seen, expected, "one that was opened before sees it too");
        assert!(reader.read_at(1, &mut seen).is_err() && reader.write_at(0, &[1]).is_err());
        overlay.rename("d/two", "e").unwrap();
        overlay.remove("d/three").unwrap();
        replace_file(&overlay, "d/three", b"new").unwrap();
        overlay.create_directory("d/new/deep").unwrap();
        overlay.create("d/new/deep/file").unwrap();
        let names = |directory| overlay.list(directory).unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        assert_eq!(
            (names("d"), names("d/new"), names("d/new/deep")),
            (vec!["new".to_owned(), "one".to_owned(), "three".to_owned()], vec!["deep".to_owned()], vec!["file".to_owned()],)
        );
        assert_eq!(read_file(&overlay, "e", 1 << 20).unwrap(), vec![7; 5000]);
        assert_eq!(read_file(&overlay, "d/three", 1 << 20).unwrap(), b"new");
        assert!(overlay.open("d/two", Access::Read).unwrap_err().is_not_found() && !overlay.exists("d/two").unwrap());
        assert!(overlay.remove("d/two").is_err() && overlay.create("e").is_err());
        for (name, length) in [("d/one", 10_000), ("d/two", 5000), ("d/three", 10)] {
            assert_eq!(read_file(&below, name, 1 << 20).unwrap(), vec![7; length], "{name}");
        }
    }
}
