//! Object storage in memory, and a ground whose files exist only in one process until they are synced as a whole.

use onefold_ground::{
    Access, Bucket, DelegatingGround, DirectoryEntry, File, Ground, GroundError, Listing, Put, Requests, Result, SimulatedGround,
};
use onefold_storage::{FOOTER_BYTES, Footer};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

fn failed(operation: &'static str, path: &str, kind: io::ErrorKind) -> GroundError {
    GroundError::Io { operation, path: path.to_owned(), source: kind.into() }
}

/// Objects, shared by all processes.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Arc<Vec<u8>>>,
    /// Puts that failed and have not arrived yet.
    late: Vec<(String, Vec<u8>)>,
    requests: u64,
}

impl Objects {
    /// Returns the names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    pub fn content(&self, name: &str) -> Option<Arc<Vec<u8>>> {
        self.state.lock().objects.get(name).cloned()
    }

    pub fn set(&self, name: &str, content: Vec<u8>) {
        self.state.lock().objects.insert(name.to_owned(), Arc::new(content));
    }

    /// Returns how many requests reached the objects.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// Lets the late puts arrive.
    pub fn deliver_late(&self) {
        let late = std::mem::take(&mut self.state.lock().late);
        for (name, content) in late {
            self.put(&name, &content);
        }
    }

    fn put(&self, name: &str, content: &[u8]) -> Put {
        let mut state = self.state.lock();
        state.requests += 1;
        match state.objects.get(name) {
            Some(present) if present[..] == *content => Put::Done,
            Some(_) => Put::Taken,
            None => {
                state.objects.insert(name.to_owned(), Arc::new(content.to_vec()));
                Put::Done
            }
        }
    }

    fn found(&self, name: &str) -> Result<Arc<Vec<u8>>> {
        self.state.lock().requests += 1;
        self.content(name).ok_or_else(|| failed("get", name, io::ErrorKind::NotFound))
    }
}

impl Bucket for Objects {
    fn put_new(&self, name: &str, content: &[u8]) -> Result<Put> {
        Ok(self.put(name, content))
    }

    fn put_over(&self, name: &str, content: &[u8]) -> Result<()> {
        self.set(name, content.to_vec());
        Ok(())
    }

    fn replace(&self, name: &str, old: &[u8], new: &[u8]) -> Result<Put> {
        let mut state = self.state.lock();
        if state.objects.get(name).is_none_or(|present| present[..] != *old) {
            return Ok(Put::Taken);
        }
        state.objects.insert(name.to_owned(), Arc::new(new.to_vec()));
        Ok(Put::Done)
    }

    fn get(&self, name: &str, _limit_bytes: u64) -> Result<Vec<u8>> {
        self.found(name).map(|content| content.to_vec())
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
        let content = self.found(name)?;
        let range = content.get(offset as usize..offset as usize + length);
        range.map(<[u8]>::to_vec).ok_or_else(|| failed("get", name, io::ErrorKind::UnexpectedEof))
    }

    fn get_end(&self, name: &str, length: usize) -> Result<(Vec<u8>, u64)> {
        let content = self.found(name)?;
        Ok((content[content.len().saturating_sub(length)..].to_vec(), content.len() as u64))
    }

    fn length(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.content(name).map(|content| content.len() as u64))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Listing> {
        let state = self.state.lock();
        let objects = state.objects.iter().filter(|(name, _)| name.starts_with(prefix) && name.as_str() > after);
        Ok(Listing { objects: objects.map(|(name, content)| (name.clone(), content.len() as u64)).collect(), has_more: false })
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        let mut state = self.state.lock();
        names.iter().for_each(|name| drop(state.objects.remove(name)));
        Ok(())
    }

    fn describe(&self, name: &str) -> String {
        name.to_owned()
    }

    fn requests(&self) -> Requests {
        Requests::default()
    }
}

/// What becomes of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not executed, and the caller gets an error.
    Before,
    /// It is executed, and the caller gets an error.
    After,
    /// It is executed later ([`Objects::deliver_late`]), and the caller gets an error.
    Late,
}

/// The files that one process has, beside the objects that all have.
#[derive(Clone, Debug)]
pub struct WholeGround {
    objects: Objects,
    /// For what has nothing to do with files.
    other: SimulatedGround,
    has_bucket: bool,
    /// Whether lists lack all objects: a list is a hint.
    hides_objects: bool,
    process: Arc<Process>,
}

#[derive(Debug, Default)]
struct Process {
    state: Mutex<OfProcess>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OfProcess {
    files: BTreeMap<String, Arc<Local>>,
    faults: VecDeque<Fault>,
    is_dead: bool,
    /// Puts wait meanwhile.
    is_paused: bool,
    puts: u64,
    /// What the store must never do.
    violations: Vec<String>,
    /// Files that it says it will read.
    expected: Vec<String>,
}

#[derive(Debug, Default)]
struct Local {
    bytes: Mutex<Vec<u8>>,
    status: Mutex<Status>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Status {
    /// A put was tried: the object may have this content, now or later.
    is_tried: bool,
    is_sealed: bool,
    /// The name belongs to another content.
    is_nameless: bool,
}

impl WholeGround {
    /// Returns the ground of a new process.
    pub fn new(objects: &Objects, has_bucket: bool) -> WholeGround {
        let other = SimulatedGround::new(1);
        WholeGround { objects: objects.clone(), other, has_bucket, hides_objects: false, process: Arc::default() }
    }

    /// Lists no objects if `hides`.
    pub fn hiding_objects(self, hides: bool) -> WholeGround {
        WholeGround { hides_objects: hides, ..self }
    }

    /// Kills the process: what is not an object is gone, and it does nothing any more.
    pub fn kill(&self) {
        let mut state = self.process.state.lock();
        (state.is_dead, state.is_paused) = (true, false);
        drop(state);
        self.process.changed.notify_all();
    }

    /// Lets the next puts fail.
    pub fn fail_puts(&self, faults: impl IntoIterator<Item = Fault>) {
        self.process.state.lock().faults.extend(faults);
    }

    pub fn pause_puts(&self, is_paused: bool) {
        self.process.state.lock().is_paused = is_paused;
        self.process.changed.notify_all();
    }

    /// Returns how many puts were begun.
    pub fn puts(&self) -> u64 {
        self.process.state.lock().puts
    }

    /// Returns the files that the store has said it will read since the last call.
    pub fn take_expected(&self) -> Vec<String> {
        std::mem::take(&mut self.process.state.lock().expected)
    }

    /// Checks that the store did nothing that it must not do.
    pub fn check(&self) {
        let violations = &self.process.state.lock().violations;
        assert!(violations.is_empty(), "{violations:?}");
    }

    fn alive(&self, operation: &'static str, path: &str) -> Result<()> {
        if self.process.state.lock().is_dead { Err(failed(operation, path, io::ErrorKind::Other)) } else { Ok(()) }
    }

    fn violate(&self, what: String) {
        self.process.state.lock().violations.push(what);
    }

    fn local(&self, path: &str) -> Option<Arc<Local>> {
        self.process.state.lock().files.get(path).cloned()
    }
}

impl DelegatingGround for WholeGround {
    fn below(&self) -> &dyn Ground {
        &self.other
    }

    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        self.alive("create", path)?;
        let local = Arc::new(Local::default());
        let mut state = self.process.state.lock();
        if state.files.contains_key(path) {
            return Err(failed("create", path, io::ErrorKind::AlreadyExists));
        }
        state.files.insert(path.to_owned(), local.clone());
        Ok(Arc::new(LocalFile { ground: self.clone(), path: path.to_owned(), local, access: Access::ReadWrite }))
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        self.alive("open", path)?;
        match self.local(path) {
            Some(local) => Ok(Arc::new(LocalFile { ground: self.clone(), path: path.to_owned(), local, access })),
            None => Ok(Arc::new(ObjectFile { path: path.to_owned(), content: self.objects.found(path)? })),
        }
    }

    fn will_read(&self, path: &str) {
        self.process.state.lock().expected.push(path.to_owned());
    }

    fn is_coming(&self, path: &str) -> bool {
        self.process.state.lock().expected.iter().any(|expected| expected == path)
    }

    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>> {
        DelegatingGround::open(self, path, Access::Read)
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.alive("remove", path)?;
        let local = self.process.state.lock().files.remove(path);
        match local {
            Some(local) => {
                if local.status.lock().is_tried {
                    self.objects.delete(&[path.to_owned()])?;
                }
                Ok(())
            }
            None if self.objects.content(path).is_some() => self.objects.delete(&[path.to_owned()]),
            None => Err(failed("remove", path, io::ErrorKind::NotFound)),
        }
    }

    /// Puts in place of whatever is there.
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.alive("rename", from)?;
        let local = self.process.state.lock().files.remove(from);
        let content = match local {
            Some(local) => local.bytes.lock().clone(),
            None => {
                let content = self.objects.found(from)?.to_vec();
                self.objects.delete(&[from.to_owned()])?;
                content
            }
        };
        self.process.state.lock().files.remove(to);
        self.objects.set(to, content);
        Ok(())
    }

    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>> {
        self.alive("list", directory)?;
        let prefix = format!("{directory}/");
        let local: Vec<String> = self.process.state.lock().files.keys().cloned().collect();
        let objects = if self.hides_objects { Vec::new() } else { self.objects.names() };
        let names = objects.into_iter().chain(local);
        let entry = |name: String| {
            let rest = name.strip_prefix(&prefix)?;
            let (name, is_directory) = rest.split_once('/').map_or((rest, false), |(name, _)| (name, true));
            Some(DirectoryEntry { name: name.to_owned(), is_directory })
        };
        let mut entries: Vec<_> = names.filter_map(entry).collect();
        entries.sort();
        entries.dedup();
        Ok(entries)
    }

    fn create_directory(&self, directory: &str) -> Result<()> {
        self.alive("create", directory)
    }

    fn sync_directory(&self, directory: &str) -> Result<()> {
        self.alive("sync", directory)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.alive("look for", path)?;
        Ok(self.local(path).is_some() || self.objects.content(path).is_some() || !DelegatingGround::list(self, path)?.is_empty())
    }

    fn bucket(&self) -> Option<Arc<dyn Bucket>> {
        self.has_bucket.then(|| -> Arc<dyn Bucket> { Arc::new(self.objects.clone()) })
    }
}

/// A file of one process.
#[derive(Debug)]
struct LocalFile {
    ground: WholeGround,
    path: String,
    local: Arc<Local>,
    access: Access,
}

impl LocalFile {
    fn change(&self, operation: &'static str, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.ground.alive(operation, &self.path)?;
        let status = *self.local.status.lock();
        if status.is_tried || self.access == Access::Read {
            self.ground.violate(format!("{operation} {}: {status:?}", self.path));
            return Err(failed(operation, &self.path, io::ErrorKind::PermissionDenied));
        }
        change(&mut self.local.bytes.lock());
        Ok(())
    }
}

impl File for LocalFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.ground.alive("read", &self.path)?;
        let bytes = self.local.bytes.lock();
        let range = bytes.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(range.ok_or_else(|| failed("read", &self.path, io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        self.read_at(offset, buffer).map(|()| true)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change("write", |bytes| {
            let end = offset as usize + data.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[offset as usize..end].copy_from_slice(data);
        })
    }

    fn pretend_write(&self, _offset: u64, _length: u64) -> Result<()> {
        self.change("pretend to write", |_| ())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.local.bytes.lock().len() as u64)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.len()
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.change("truncate", |bytes| bytes.resize(length as usize, 0))
    }

    fn sync(&self) -> Result<()> {
        let fault = {
            let mut state = self.ground.process.state.lock();
            state.puts += 1;
            while state.is_paused {
                self.ground.process.changed.wait(&mut state);
            }
            state.faults.pop_front()
        };
        self.ground.alive("sync", &self.path)?;
        if self.path.ends_with(".new") {
            return Ok(());
        }
        let status = *self.local.status.lock();
        if status.is_sealed || status.is_nameless {
            self.ground.violate(format!("sync {}: {status:?}", self.path));
            return Ok(());
        }
        let content = self.local.bytes.lock().clone();
        let footer = content.len().checked_sub(FOOTER_BYTES).map(|at| Footer::decode(&content[at..]));
        if !matches!(footer, Some(Ok(_))) {
            self.ground.violate(format!("sync {} which is not sealed", self.path));
        }
        self.local.status.lock().is_tried = true;
        let error = || Err(failed("sync", &self.path, io::ErrorKind::TimedOut));
        match fault {
            Some(Fault::Before) => return error(),
            Some(Fault::Late) => {
                self.ground.objects.state.lock().late.push((self.path.clone(), content));
                return error();
            }
            Some(Fault::After) => {
                self.ground.objects.put(&self.path, &content);
                return error();
            }
            None => {}
        }
        if self.ground.objects.put(&self.path, &content) == Put::Taken {
            self.local.status.lock().is_nameless = true;
            self.ground.process.state.lock().files.remove(&self.path);
            return Err(failed("sync", &self.path, io::ErrorKind::AlreadyExists));
        }
        self.local.status.lock().is_sealed = true;
        Ok(())
    }

    fn allocate(&self, _offset: u64, _length: u64) -> Result<()> {
        self.ground.violate(format!("allocate in {}", self.path));
        Ok(())
    }

    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()> {
        self.allocate(offset, length)
    }

    fn punch_hole(&self, _offset: u64, _length: u64) -> Result<()> {
        self.change("punch a hole into", |_| ())
    }

    fn start_writeback(&self, _offset: u64, _length: u64) {}

    fn read_ahead(&self, _offset: u64, _length: u64) {}

    fn drop_cached(&self, _offset: u64, _length: u64) {}
}

/// An object. It never changes.
#[derive(Debug)]
struct ObjectFile {
    path: String,
    content: Arc<Vec<u8>>,
}

impl ObjectFile {
    fn refused(&self, operation: &'static str) -> Result<()> {
        Err(failed(operation, &self.path, io::ErrorKind::PermissionDenied))
    }
}

impl File for ObjectFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let range = self.content.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(range.ok_or_else(|| failed("read", &self.path, io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        self.read_at(offset, buffer).map(|()| true)
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> Result<()> {
        self.refused("write")
    }

    fn pretend_write(&self, _offset: u64, _length: u64) -> Result<()> {
        self.refused("write")
    }

    fn len(&self) -> Result<u64> {
        Ok(self.content.len() as u64)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.len()
    }

    fn set_len(&self, _length: u64) -> Result<()> {
        self.refused("truncate")
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _length: u64) -> Result<()> {
        self.refused("allocate")
    }

    fn allocate_from_reserve(&self, _offset: u64, _length: u64) -> Result<()> {
        self.refused("allocate")
    }

    fn punch_hole(&self, _offset: u64, _length: u64) -> Result<()> {
        self.refused("punch a hole into")
    }

    fn start_writeback(&self, _offset: u64, _length: u64) {}

    fn read_ahead(&self, _offset: u64, _length: u64) {}

    fn drop_cached(&self, _offset: u64, _length: u64) {}
}
