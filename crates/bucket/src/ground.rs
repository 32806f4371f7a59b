//! A ground whose containers, parity and marks are objects in a bucket. All other files are local.
//!
//! * An object is written once. Until then it is a *scratch file*: a local file that only this process knows. Its
//!   [`sync`](File::sync) puts the whole content, and seals it: from then on, writes fail.
//! * A file with a temporary name is put by its rename. So its sync does nothing.
//! * Sealed scratch files stay for a while, as a cache. What is in the bucket never changes under its name, except by a
//!   rename of this process. If another process removes it, whoever hears of that calls [`forget`](Ground::forget).
//! * Objects are fetched in few requests (`object.rs`), and containers are cached on a local disk (`cache`).
//! * Directories in the bucket are parts of names. They need not be created, and an absent one is empty.
//!
//! A file that is removed while it is open can still be read if it is a scratch file. Reads of a remote file fail.

mod cache;
mod fetching;
mod object;
mod objects;
mod remote;
mod scratch;

pub use cache::CacheOptions;

use crate::error::{failed, failed_because};
use bytes::Bytes;
use cache::Cache;
use objects::{HELD_BYTES, Objects, length_of};
use onefold_ground::{Access, Bucket, DirectoryEntry, File, Ground, GroundError, Identity, Put, Result, Space, replace_file};
use parking_lot::{Mutex, RwLockWriteGuard};
use remote::RemoteFile;
use scratch::{Room, Scratch, ScratchFile, Status};
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of sealed scratch files that a ground keeps as a cache unless it is told otherwise.
pub const KEPT_BYTES: u64 = 64 << 20;
/// Each of them is an open file.
const KEPT_FILES: usize = 64;
/// Local directory of the scratch files.
const SCRATCH: &str = "scratch";
/// The place in the local directory for a cache, if it is not elsewhere.
pub const CACHE_DIRECTORY: &str = "cache";
/// Top directories of what is in the bucket.
const IN_BUCKET: [&str; 3] = ["containers", "parity", "marks"];
/// How names of files end that are put by a rename.
const TEMPORARY: [&str; 3] = [".new", ".repair", ".tmp"];
/// Space in a bucket: as good as unlimited.
const SPACE_BYTES: u64 = 1 << 60;
/// How often a rename looks again at what somebody else puts there.
const RENAME_TRIES: usize = 16;

/// Returns whether a path is in the bucket: a name below `containers`, `parity` or `marks`, or one of these.
pub fn is_in_bucket(path: &str) -> bool {
    IN_BUCKET.contains(&path.split_once('/').map_or(path, |(top, _)| top))
}

fn is_temporary(path: &str) -> bool {
    TEMPORARY.iter().any(|suffix| path.ends_with(suffix))
}

/// The ground.
#[derive(Debug)]
pub struct BucketGround {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    local: Arc<dyn Ground>,
    bucket: Arc<dyn Bucket>,
    objects: Arc<Objects>,
    kept_bytes: u64,
    room: Room,
    /// Number of the next scratch file.
    next: AtomicU64,
    /// Never wait for a scratch file's status, nor drop a scratch file, while you hold this.
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// Scratch files by the path that they stand for.
    scratch: BTreeMap<String, Arc<Scratch>>,
    /// The sealed ones of these, in the order of sealing, with their lengths.
    kept: VecDeque<(String, Arc<Scratch>, u64)>,
    kept_bytes: u64,
}

impl BucketGround {
    /// Creates a ground on a bucket and a local directory.
    pub fn new(local: Arc<dyn Ground>, bucket: Arc<dyn Bucket>) -> BucketGround {
        BucketGround::with_kept_bytes(local, bucket, KEPT_BYTES)
    }

    /// Creates a ground that keeps `kept_bytes` of sealed scratch files as a cache.
    pub fn with_kept_bytes(local: Arc<dyn Ground>, bucket: Arc<dyn Bucket>, kept_bytes: u64) -> BucketGround {
        BucketGround::make(local, bucket, kept_bytes, None, HELD_BYTES)
    }

    /// Creates a ground with a cache of containers and parity on a local disk.
    pub fn with_cache(local: Arc<dyn Ground>, bucket: Arc<dyn Bucket>, options: CacheOptions) -> BucketGround {
        if options.bytes == 0 {
            cache::clear(&options.directory);
            return BucketGround::new(local, bucket);
        }
        let cache = Cache::new(options, local.clone());
        BucketGround::make(local, bucket, KEPT_BYTES, Some(cache), HELD_BYTES)
    }

    fn make(local: Arc<dyn Ground>, bucket: Arc<dyn Bucket>, kept_bytes: u64, cache: Option<Cache>, held_bytes: usize) -> BucketGround {
        let objects = Arc::new(Objects::new(bucket.clone(), cache, held_bytes));
        let shared = Shared { local, bucket, objects, kept_bytes, room: Room::default(), next: AtomicU64::new(1), names: Mutex::default() };
        BucketGround { shared: Arc::new(shared) }
    }

    /// Removes the scratch files that dead processes left. Call only with the lock of the local directory, and before
    /// the first file is created.
    pub fn wipe_scratch(&self) -> Result<()> {
        let local = &self.shared.local;
        if local.exists(SCRATCH)? {
            for entry in local.list(SCRATCH)?.into_iter().filter(|entry| !entry.is_directory) {
                local.remove(&format!("{SCRATCH}/{}", entry.name))?;
            }
        }
        Ok(())
    }
}

impl Shared {
    fn scratch(&self, path: &str) -> Option<Arc<Scratch>> {
        self.names.lock().scratch.get(path).cloned()
    }

    /// Returns the scratch file that a path stands for, with its status locked.
    fn with_scratch<T>(
        &self,
        path: &str,
        work: impl FnOnce(&Arc<Scratch>, &mut RwLockWriteGuard<'_, Status>) -> Result<T>,
    ) -> Result<Option<T>> {
        while let Some(scratch) = self.scratch(path) {
            let mut status = scratch.status.write();
            // Somebody may have renamed or removed it meanwhile.
            if status.name.as_deref() == Some(path) {
                return work(&scratch, &mut status).map(Some);
            }
            drop(status);
            self.forget(path, &scratch);
        }
        Ok(None)
    }

    /// Makes a new scratch file for a path.
    fn create(self: &Arc<Shared>, path: &str) -> Result<Arc<Scratch>> {
        let taken = || failed("create", &self.bucket.describe(path), ErrorKind::AlreadyExists);
        if self.names.lock().scratch.contains_key(path) {
            return Err(taken());
        }
        let (file, local_path) = loop {
            let local_path = format!("{SCRATCH}/{}", self.next.fetch_add(1, Relaxed));
            match self.local.create(&local_path) {
                Ok(file) => break (file, local_path),
                Err(error) if error.is_not_found() => self.local.create_directory(SCRATCH)?,
                // Of a dead process.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        let scratch = Arc::new(Scratch::new(self.local.clone(), local_path, file, path));
        let mut names = self.names.lock();
        if names.scratch.contains_key(path) {
            drop(names);
            return Err(taken());
        }
        names.scratch.insert(path.to_owned(), scratch.clone());
        Ok(scratch)
    }

    /// Takes a scratch file out of the map.
    fn forget(&self, path: &str, scratch: &Arc<Scratch>) {
        let mut names = self.names.lock();
        let is_same = |found: &Arc<Scratch>| Arc::ptr_eq(found, scratch);
        let entry = names.scratch.get(path).is_some_and(is_same).then(|| names.scratch.remove(path));
        let place = names.kept.iter().position(|(_, kept, _)| is_same(kept));
        let kept = place.and_then(|place| names.kept.remove(place));
        if let Some((_, _, bytes)) = &kept {
            names.kept_bytes -= bytes;
        }
        drop(names);
        drop((entry, kept));
    }

    /// Keeps a scratch file that was just sealed under `path` as a cache, and drops the oldest ones.
    fn keep(&self, path: &str, scratch: &Arc<Scratch>, bytes: u64) {
        let mut dropped = Vec::new();
        let mut names = self.names.lock();
        dropped.extend(names.scratch.insert(path.to_owned(), scratch.clone()));
        names.kept.push_back((path.to_owned(), scratch.clone(), bytes));
        names.kept_bytes += bytes;
        while names.kept_bytes > self.kept_bytes || names.kept.len() > KEPT_FILES {
            let Some((path, oldest, bytes)) = names.kept.pop_front() else { break };
            names.kept_bytes -= bytes;
            if names.scratch.get(&path).is_some_and(|found| Arc::ptr_eq(found, &oldest)) {
                dropped.extend(names.scratch.remove(&path));
            }
            dropped.push(oldest);
        }
        drop(names);
        drop(dropped);
    }

    /// Seals a scratch file and puts it, unless it has a name that is put by a rename, or none.
    fn sync(&self, scratch: &Arc<Scratch>) -> Result<()> {
        // Before the lock: readers go on meanwhile.
        let is_put = {
            let status = scratch.status.read();
            !status.is_sealed && status.name.as_deref().is_some_and(|path| !is_temporary(path))
        };
        let _place = if is_put { Some(self.room.take(scratch.file.len()?)) } else { None };
        let mut status = scratch.status.write();
        if status.is_taken {
            return Err(failed("write", "a file whose name another process has taken", ErrorKind::AlreadyExists));
        }
        let Some(path) = status.name.clone().filter(|path| !status.is_sealed && !is_temporary(path)) else {
            return Ok(());
        };
        let content = scratch.content()?;
        status.is_put = true;
        match self.bucket.put_new_in_pieces(&path, &content)? {
            Put::Done => {}
            Put::Taken => {
                // From now on the path leads to the object, which is not ours to remove.
                *status = Status { name: None, is_sealed: false, is_put: false, is_taken: true };
                drop(status);
                self.forget(&path, scratch);
                return Err(self.taken("write", &path));
            }
        }
        status.is_sealed = true;
        self.objects.put(&path, &content);
        self.keep(&path, scratch, length_of(&content));
        Ok(())
    }

    fn taken(&self, operation: &'static str, path: &str) -> GroundError {
        let why = "another owner wrote this object";
        failed_because(operation, &self.bucket.describe(path), ErrorKind::AlreadyExists, why)
    }

    /// Puts an object, in place of whatever is there.
    fn put_in_place(&self, path: &str, content: &[Bytes]) -> Result<()> {
        let put = self.try_put_in_place(path, content);
        match put {
            Ok(()) => self.objects.put(path, content),
            // It may have been put.
            Err(_) => self.objects.forget(path),
        }
        put
    }

    fn try_put_in_place(&self, path: &str, content: &[Bytes]) -> Result<()> {
        for _ in 0..RENAME_TRIES {
            if self.bucket.put_new_in_pieces(path, content)? == Put::Done {
                return Ok(());
            }
            let present = match self.bucket.get(path, u64::MAX) {
                Ok(present) => present,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            if self.bucket.replace(path, &present, &content.concat())? == Put::Done {
                return Ok(());
            }
        }
        Err(self.taken("rename", path))
    }

    fn delete(&self, path: &str) -> Result<()> {
        let deleted = self.bucket.delete(&[path.to_owned()]);
        self.objects.forget(path);
        deleted
    }

    /// Puts a scratch file under another name and seals it.
    fn rename_scratch(&self, scratch: &Arc<Scratch>, status: &mut Status, from: &str, to: &str) -> Result<()> {
        let content = scratch.content()?;
        self.put_in_place(to, &content)?;
        if status.is_put {
            self.delete(from)?;
        }
        self.forget(from, scratch);
        *status = Status { name: Some(to.to_owned()), is_sealed: true, is_put: true, is_taken: false };
        self.keep(to, scratch, length_of(&content));
        Ok(())
    }

    /// Reads all of a file in the bucket.
    fn whole(&self, path: &str) -> Result<Vec<u8>> {
        match self.scratch(path) {
            Some(scratch) => Ok(scratch.content()?.concat()),
            None => self.bucket.get(path, u64::MAX),
        }
    }

    fn remove(&self, path: &str) -> Result<()> {
        let removed = self.with_scratch(path, |scratch, status| {
            if status.is_put {
                self.delete(path)?;
            }
            status.name = None;
            self.forget(path, scratch);
            Ok(())
        })?;
        if removed.is_some() {
            return Ok(());
        }
        if self.bucket.length(path)?.is_none() {
            return Err(failed("remove", &self.bucket.describe(path), ErrorKind::NotFound));
        }
        self.delete(path)
    }

    /// Removes the entry of a file that another one replaced by a rename.
    fn replaced(&self, path: &str, old: Option<Arc<Scratch>>) {
        if let Some(old) = old {
            old.status.write().name = None;
            self.forget(path, &old);
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        if from == to {
            return Ok(());
        }
        match (is_in_bucket(from), is_in_bucket(to)) {
            (false, false) => return self.local.rename(from, to),
            (true, false) => {
                replace_file(&*self.local, to, &self.whole(from)?)?;
                return self.remove(from);
            }
            _ => {}
        }
        let old = self.scratch(to);
        if is_in_bucket(from) {
            let renamed = self.with_scratch(from, |scratch, status| self.rename_scratch(scratch, status, from, to))?;
            if renamed.is_none() {
                self.put_in_place(to, &[self.bucket.get(from, u64::MAX)?.into()])?;
                self.delete(from)?;
            }
        } else {
            let content = onefold_ground::read_file(&*self.local, from, u64::MAX)?;
            self.put_in_place(to, &[content.into()])?;
            self.local.remove(from)?;
        }
        self.replaced(to, old);
        Ok(())
    }

    /// Lists what is in a directory in the bucket. Of a directory below it, one page of names at most is read.
    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>> {
        let prefix = format!("{directory}/");
        let mut found: BTreeMap<String, bool> = BTreeMap::new();
        let mut add = |path: &str| {
            let name = path.strip_prefix(&prefix)?;
            let (name, is_directory) = name.split_once('/').map_or((name, false), |(name, _)| (name, true));
            found.insert(name.to_owned(), is_directory);
            is_directory.then(|| name.to_owned())
        };
        let mut after = String::new();
        loop {
            let listing = self.bucket.list(&prefix, &after)?;
            let mut last = None;
            for (path, _) in &listing.objects {
                last = Some((path, add(path)));
            }
            match last {
                // No name has a greater character, so this is behind all names in the directory of the last one.
                Some((path, Some(child))) if listing.has_more => after = format!("{prefix}{child}/{}", char::MAX).max(path.clone()),
                Some((path, None)) if listing.has_more => after = path.clone(),
                _ => break,
            }
        }
        for path in self.names.lock().scratch.range(prefix.clone()..).map(|(path, _)| path).take_while(|path| path.starts_with(&prefix)) {
            add(path);
        }
        Ok(found.into_iter().map(|(name, is_directory)| DirectoryEntry { name, is_directory }).collect())
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let prefix = format!("{path}/");
        let is_below = |names: &Names| names.scratch.range(prefix.clone()..).next().is_some_and(|(path, _)| path.starts_with(&prefix));
        {
            let names = self.names.lock();
            if names.scratch.contains_key(path) || is_below(&names) {
                return Ok(true);
            }
        }
        // A top directory is no object.
        if path.contains('/') && self.bucket.length(path)?.is_some() {
            return Ok(true);
        }
        Ok(!self.bucket.list(&prefix, "")?.objects.is_empty())
    }
}

impl onefold_ground::DelegatingGround for BucketGround {
    fn below(&self) -> &dyn Ground {
        &*self.shared.local
    }

    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        if !is_in_bucket(path) {
            return self.shared.local.create(path);
        }
        let scratch = self.shared.create(path)?;
        Ok(Arc::new(ScratchFile::new(self.shared.clone(), scratch, Access::ReadWrite)))
    }

    /// A remote file takes one request, or none if it is here. It opens for writing too, as a sealed scratch file does,
    /// but writes fail.
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        if !is_in_bucket(path) {
            return self.shared.local.open(path, access);
        }
        match self.shared.scratch(path) {
            Some(scratch) => Ok(Arc::new(ScratchFile::new(self.shared.clone(), scratch, access))),
            None => Ok(Arc::new(RemoteFile::open(&self.shared.objects, &self.shared.bucket, path)?)),
        }
    }

    fn will_read(&self, path: &str) {
        if is_in_bucket(path) {
            self.shared.objects.expect(path);
        }
    }

    fn is_coming(&self, path: &str) -> bool {
        is_in_bucket(path) && self.shared.objects.is_coming(path)
    }

    fn forget(&self, path: &str) {
        if is_in_bucket(path) {
            if let Some(scratch) = self.shared.scratch(path).filter(|scratch| scratch.status.read().is_sealed) {
                self.shared.forget(path, &scratch);
            }
            self.shared.objects.forget(path);
        }
    }

    /// Reads the object, even if its content is here too.
    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>> {
        if !is_in_bucket(path) {
            return self.shared.local.open_past_cache(path);
        }
        match self.shared.scratch(path) {
            Some(scratch) if !scratch.status.read().is_sealed => Ok(Arc::new(ScratchFile::new(self.shared.clone(), scratch, Access::Read))),
            _ => Ok(Arc::new(RemoteFile::open_past_cache(&self.shared.bucket, path)?)),
        }
    }

    fn open_device(&self, path: &str, access: Access) -> Result<Option<Arc<dyn File>>> {
        if is_in_bucket(path) { Ok(None) } else { self.shared.local.open_device(path, access) }
    }

    fn link_device(&self, path: &str, device: &Path) -> Result<()> {
        self.refuse("create", path)?;
        self.shared.local.link_device(path, device)
    }

    fn link_directory(&self, path: &str, directory: &Path) -> Result<()> {
        self.refuse("create", path)?;
        self.shared.local.link_directory(path, directory)
    }

    fn unlink_directory(&self, path: &str) -> Result<()> {
        self.refuse("remove", path)?;
        self.shared.local.unlink_directory(path)
    }

    fn linked_directory(&self, path: &str) -> Result<Option<PathBuf>> {
        if is_in_bucket(path) { Ok(None) } else { self.shared.local.linked_directory(path) }
    }

    fn device_holds(&self, path: &str, offset: u64, data: &[u8]) -> Result<bool> {
        if is_in_bucket(path) { Ok(false) } else { self.shared.local.device_holds(path, offset, data) }
    }

    fn remove(&self, path: &str) -> Result<()> {
        if is_in_bucket(path) { self.shared.remove(path) } else { self.shared.local.remove(path) }
    }

    /// Within the bucket this puts the object: durable on return. Between the bucket and the local directory it copies
    /// and then removes.
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.shared.rename(from, to)
    }

    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>> {
        if is_in_bucket(directory) {
            return self.shared.list(directory);
        }
        let mut entries = self.shared.local.list(directory)?;
        if directory.is_empty() {
            entries.retain(|entry| ![SCRATCH, CACHE_DIRECTORY].contains(&&*entry.name));
        }
        Ok(entries)
    }

    fn create_directory(&self, directory: &str) -> Result<()> {
        if is_in_bucket(directory) { Ok(()) } else { self.shared.local.create_directory(directory) }
    }

    fn sync_directory(&self, directory: &str) -> Result<()> {
        if is_in_bucket(directory) { Ok(()) } else { self.shared.local.sync_directory(directory) }
    }

    /// A directory in the bucket exists if anything is in it.
    fn exists(&self, path: &str) -> Result<bool> {
        if is_in_bucket(path) { self.shared.exists(path) } else { self.shared.local.exists(path) }
    }

    fn space_in(&self, directory: &str) -> Result<Space> {
        if is_in_bucket(directory) {
            return Ok(Space { free_bytes: SPACE_BYTES, total_bytes: SPACE_BYTES });
        }
        self.shared.local.space_in(directory)
    }

    fn identity(&self, path: &str) -> Result<Option<Identity>> {
        if is_in_bucket(path) { Ok(None) } else { self.shared.local.identity(path) }
    }

    fn describe(&self, path: &str) -> String {
        // For people, the store is where its data is.
        if path.is_empty() || is_in_bucket(path) { self.shared.bucket.describe(path) } else { self.shared.local.describe(path) }
    }

    fn bucket(&self) -> Option<Arc<dyn Bucket>> {
        Some(self.shared.bucket.clone())
    }
}

impl BucketGround {
    /// Refuses what a bucket cannot do.
    fn refuse(&self, operation: &'static str, path: &str) -> Result<()> {
        if is_in_bucket(path) {
            return Err(failed(operation, &self.shared.bucket.describe(path), ErrorKind::Unsupported));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
