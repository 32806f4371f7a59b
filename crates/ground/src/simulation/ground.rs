//! The names and the lock of a simulated disk, as users of a ground see them.

use super::content::{FileBytes, PAGE_BYTES};
use super::inode::Inode;
use super::names::Entry;
use super::state::State;
use super::{SimulatedGround, failure};
use crate::lock::Held;
use crate::{Access, Bucket, DirectoryEntry, Exposure, File, Ground, Holder, Identity, LockError, LockGuard, Result, Space, parent};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl SimulatedGround {
    /// Returns the state for a change of names.
    fn begin(&self, is_sync: bool, operation: &'static str, path: &str) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        state.begin(is_sync, operation, path).map_err(|fault| failure(operation, path, fault.source()))?;
        Ok(state)
    }

    /// Returns the state for a query about names.
    fn query(&self, operation: &'static str, path: &str) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        state.begin_query().map_err(|fault| failure(operation, path, fault.source()))?;
        Ok(state)
    }
}

impl Ground for SimulatedGround {
    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        let fail = |kind: io::ErrorKind| failure("create", path, kind.into());
        let mut state = self.begin(false, "create", path)?;
        if !state.names.is_directory(parent(path)) {
            return Err(fail(io::ErrorKind::NotFound));
        }
        if state.names.exists(path) {
            return Err(fail(io::ErrorKind::AlreadyExists));
        }
        let inode = Arc::new(Mutex::new(Inode::with(FileBytes::default())));
        state.names.create(path, Entry::File(Arc::clone(&inode)));
        Ok(self.file(path, inode, Access::ReadWrite))
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        let state = self.query("open", path)?;
        let inode = state.names.file(path).ok_or_else(|| failure("open", path, io::ErrorKind::NotFound.into()))?;
        Ok(self.file(path, Arc::clone(inode), access))
    }

    fn open_device(&self, path: &str, access: Access) -> Result<Option<Arc<dyn File>>> {
        let is_device = self.state.lock().devices.contains(path);
        is_device.then(|| self.open(path, access)).transpose()
    }

    fn link_device(&self, path: &str, _device: &Path) -> Result<()> {
        Err(failure("create", path, io::ErrorKind::Unsupported.into()))
    }

    fn link_directory(&self, path: &str, _directory: &Path) -> Result<()> {
        if self.query("create", path)?.names.exists(path) {
            return Err(failure("create", path, io::ErrorKind::AlreadyExists.into()));
        }
        self.begin(false, "create", path)?.names.create(path, Entry::Directory);
        self.sync_directory(parent(path))
    }

    fn unlink_directory(&self, path: &str) -> Result<()> {
        let mut state = self.begin(false, "remove", path)?;
        if !state.names.is_directory(path) {
            return Err(failure("remove", path, io::ErrorKind::NotFound.into()));
        }
        // There is no other place where its content would be.
        if state.names.inside(path).next().is_some() {
            return Err(failure("remove", path, io::ErrorKind::DirectoryNotEmpty.into()));
        }
        state.names.remove(path);
        Ok(())
    }

    fn linked_directory(&self, path: &str) -> Result<Option<PathBuf>> {
        self.query("read", path).map(|_| None)
    }

    fn device_holds(&self, path: &str, offset: u64, data: &[u8]) -> Result<bool> {
        let state = self.query("read", path)?;
        let inode = state.names.file(path).ok_or_else(|| failure("open", path, io::ErrorKind::NotFound.into()))?;
        Ok(inode.lock().device_holds(offset, data))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let mut state = self.begin(false, "remove", path)?;
        let inode = state.names.file(path).cloned().ok_or_else(|| failure("remove", path, io::ErrorKind::NotFound.into()))?;
        state.forget(&inode);
        state.names.remove(path);
        state.devices.remove(path);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let fail = |kind: io::ErrorKind| failure("rename", from, kind.into());
        let mut state = self.begin(false, "rename", from)?;
        let inode = state.names.file(from).cloned().ok_or_else(|| fail(io::ErrorKind::NotFound))?;
        if !state.names.is_directory(parent(to)) {
            return Err(fail(io::ErrorKind::NotFound));
        }
        if state.names.is_directory(to) {
            return Err(fail(io::ErrorKind::IsADirectory));
        }
        if from == to {
            return Ok(());
        }
        if let Some(replaced) = state.names.file(to).cloned() {
            state.forget(&replaced);
        }
        state.names.rename(from, to, inode);
        if state.devices.remove(from) {
            state.devices.insert(to.to_owned());
        } else {
            state.devices.remove(to);
        }
        Ok(())
    }

    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>> {
        let state = self.query("list", directory)?;
        if !state.names.is_directory(directory) {
            return Err(failure("list", directory, io::ErrorKind::NotFound.into()));
        }
        let entry = |(path, is_directory): (&str, bool)| {
            let name = path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned();
            DirectoryEntry { name, is_directory }
        };
        let mut entries: Vec<DirectoryEntry> = state.names.inside(directory).map(entry).collect();
        entries.sort();
        Ok(entries)
    }

    fn create_directory(&self, directory: &str) -> Result<()> {
        const OPERATION: &str = "create directory";
        drop(self.query(OPERATION, directory)?);
        let ends = directory.match_indices('/').map(|(end, _)| end).chain([directory.len()]);
        for made in ends.map(|end| &directory[..end]) {
            if self.state.lock().names.file(made).is_some() {
                return Err(failure(OPERATION, directory, io::ErrorKind::AlreadyExists.into()));
            }
            if !self.state.lock().names.exists(made) {
                self.begin(false, OPERATION, directory)?.names.create(made, Entry::Directory);
            }
            // Its creator may have died before the name was durable.
            if self.state.lock().names.is_pending(made) {
                self.begin(true, OPERATION, directory)?.names.sync(parent(made));
            }
        }
        Ok(())
    }

    fn sync_directory(&self, directory: &str) -> Result<()> {
        let mut state = self.begin(true, "sync", directory)?;
        if !state.names.is_directory(directory) {
            return Err(failure("sync", directory, io::ErrorKind::NotFound.into()));
        }
        state.names.sync(directory);
        Ok(())
    }

    fn exists(&self, path: &str) -> Result<bool> {
        Ok(self.query("look for", path)?.names.exists(path))
    }

    fn space(&self) -> Result<Space> {
        let state = self.query("read the free space of", "")?;
        let free_pages = state.capacity_pages.saturating_sub(state.used_pages);
        Ok(Space { free_bytes: free_pages.saturating_mul(PAGE_BYTES), total_bytes: state.capacity_pages.saturating_mul(PAGE_BYTES) })
    }

    /// All directories are on one disk.
    fn space_in(&self, _directory: &str) -> Result<Space> {
        self.space()
    }

    fn lock(&self, path: &str, exclusive: bool, holder: &Holder) -> std::result::Result<LockGuard, LockError> {
        let mut state = self.query("lock", path)?;
        let number = state.next_lock;
        state.next_lock += 1;
        let held = state.locks.entry(path.to_owned()).or_default();
        if let Some((_, _, holder)) = held.iter().rev().find(|(_, is_exclusive, _)| exclusive || *is_exclusive) {
            return Err(LockError::Held { path: path.to_owned(), holder: Some(holder.clone()) });
        }
        held.push((number, exclusive, holder.clone()));
        Ok(LockGuard::new(SimulatedLock { ground: self.clone(), path: path.to_owned(), number }))
    }

    fn describe(&self, path: &str) -> String {
        path.to_owned()
    }

    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>> {
        self.open(path, Access::Read)
    }

    fn identity(&self, _path: &str) -> Result<Option<Identity>> {
        Ok(None)
    }

    fn exposure(&self) -> Result<Option<Exposure>> {
        Ok(None)
    }

    fn bucket(&self) -> Option<Arc<dyn Bucket>> {
        None
    }
}

struct SimulatedLock {
    ground: SimulatedGround,
    path: String,
    number: u64,
}

impl Held for SimulatedLock {
    fn is_held(&self) -> Result<bool> {
        let state = self.ground.query("look for", &self.path)?;
        Ok(state.locks.get(&self.path).is_some_and(|held| held.iter().any(|(number, ..)| *number == self.number)))
    }
}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        if let Some(held) = self.ground.state.lock().locks.get_mut(&self.path) {
            held.retain(|(number, ..)| *number != self.number);
        }
    }
}
