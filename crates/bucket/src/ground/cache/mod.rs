//! Pieces of objects on a local disk, so that the next process need not fetch them again.
//!
//! * The cache is never trusted more than the bucket. A file that is damaged, short, unreadable or of another key is
//!   removed, and the bucket is asked. To lose the cache costs requests and nothing else.
//! * One file for each piece (`file.rs`), written under a temporary name and renamed. No file is synced.
//! * Its size is bounded. The least recently used files go first, by their times of modification: whoever opens a file
//!   sets it.
//! * Processes share a directory without talking. One that evicts a file of another one does no harm: an open file
//!   stays readable. Each knows what it adds and looks at the directory now and then, so together they exceed the bound
//!   by a fraction.
//! * If one process replaces an object while another one fetches it, the other one may cache the former content. Only
//!   repairs replace containers: whoever then finds damage drops it (`File::drop_cached`) and asks the bucket.
//! * The key of a piece has the name of its object, and when the state of the store was made. So a new state, which may
//!   belong to a bucket of older content, begins with an empty cache.
//!
//! The crate `foyer` was considered. It keeps entries in preallocated files that belong to one process, but several
//! commands use a store at the same time. It reads an entry as a whole, asynchronously: for 4 KiB, 4 MiB. What is left
//! without it is this module.

mod file;

pub(in crate::ground) use file::CacheFile;

use crate::ground::objects::length_of;
use bytes::Bytes;
use onefold_ground::{Access, Ground, LocalGround, checksum};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// Pieces of one object that can be in the cache: the first ones. The largest container has 32.
pub(super) const MOST_PIECES: usize = 64;
/// How temporary names end.
const TEMPORARY: &str = ".new";
/// Temporary files older than this were left by dead processes.
const LEFT_AFTER: Duration = Duration::from_secs(3600);
/// Space on disk comes in units of this many bytes.
const UNIT_BYTES: u64 = 4 << 10;

/// A cache of a [`BucketGround`](crate::BucketGround) on a local disk.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Its directory: of this store alone. It is made when it is needed.
    pub directory: PathBuf,
    /// Most bytes in it. 0: there is no cache, and what an earlier one left is removed.
    pub bytes: u64,
    /// A file in the local directory. When it is replaced, everything cached is stale. While there is none, nothing is
    /// cached.
    pub stamp: String,
}

/// The cache of one store in this process.
#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
    /// The ground of the directory. `None`: it was not needed yet, or cannot be used.
    opened: Mutex<Option<Arc<LocalGround>>>,
    /// The ground that has the stamp.
    state: Arc<dyn Ground>,
    stamp: String,
    limit_bytes: u64,
    index: Mutex<Index>,
    next: AtomicU64,
    /// Whether the last piece could not be written.
    has_failed: AtomicBool,
}

/// What is in the directory, as far as this process knows.
#[derive(Debug, Default)]
struct Index {
    /// Use and bytes of each file.
    files: HashMap<String, (u64, u64)>,
    /// Names in the order of their last use.
    order: BTreeMap<u64, String>,
    clock: u64,
    bytes: u64,
    /// Bytes that this process may add before it looks at the directory again. At first it has to.
    until_scan_bytes: u64,
}

/// A file that is written but has no name yet.
#[derive(Debug)]
pub(super) struct Written {
    file: CacheFile,
    temporary: String,
    name: String,
    bytes: u64,
}

fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT_BYTES)
}

/// Returns whether a name is one of the cache's: of a file, or a temporary one.
fn is_ours(name: &str) -> bool {
    let hex = |part: &str| part.len() == 16 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex(name.split_once('.').map_or(name, |(first, _)| first)) && (!name.contains('.') || name.ends_with(TEMPORARY))
}

/// Removes the files of a cache that is switched off.
pub(super) fn clear(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_ours) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Cache {
    pub(super) fn new(options: CacheOptions, state: Arc<dyn Ground>) -> Cache {
        let CacheOptions { directory, bytes, stamp } = options;
        let (opened, index, next) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Cache { directory, opened, state, stamp, limit_bytes: bytes, index, next, has_failed: AtomicBool::new(false) }
    }

    /// Returns whether it is expected to keep so many bytes for a while.
    pub(super) fn keeps(&self, bytes: u64) -> bool {
        self.limit_bytes >= bytes && !self.has_failed.load(Relaxed)
    }

    /// Returns the key of a piece. `None`: there is no stamp.
    fn key(&self, path: &str, number: usize) -> Option<String> {
        let born_ns = self.state.identity(&self.stamp).ok()?.map_or(0, |identity| identity.born_ns);
        Some(format!("{born_ns} {number} {path}"))
    }

    fn name(key: &str) -> String {
        format!("{:016x}", checksum(key.as_bytes()))
    }

    /// Returns the ground of the directory.
    fn ground(&self, makes: bool) -> Option<Arc<LocalGround>> {
        let mut opened = self.opened.lock();
        if opened.is_none() {
            if makes && !self.directory.is_dir() {
                self.make().inspect_err(|error| tracing::warn!(%error, "nothing is cached")).ok()?;
            }
            *opened = LocalGround::open(&self.directory).ok().map(Arc::new);
        }
        opened.clone()
    }

    /// Makes the directory with the modes and the owner of the one above.
    fn make(&self) -> onefold_ground::Result<()> {
        let (Some(above), Some(name)) = (self.directory.parent(), self.directory.file_name().and_then(|name| name.to_str())) else {
            return Ok(());
        };
        LocalGround::open(above)?.create_directory(name)
    }

    /// Opens the file of a piece. `None`: there is none that can be used.
    pub(super) fn open(&self, path: &str, number: usize) -> Option<CacheFile> {
        if number >= MOST_PIECES {
            return None;
        }
        let (ground, key) = (self.ground(false)?, self.key(path, number)?);
        let name = Cache::name(&key);
        let opened = match ground.open(&name, Access::Read) {
            Ok(file) => CacheFile::open(file, &key),
            Err(error) if error.is_not_found() => return None,
            Err(_) => None,
        };
        if opened.is_none() {
            self.remove_file(&name);
            return None;
        }
        // The next process sees it too. If that fails, the file goes earlier.
        let _ = std::fs::File::open(self.directory.join(&name)).and_then(|file| file.set_modified(SystemTime::now()));
        self.index.lock().touch(&name);
        opened
    }

    /// Writes a piece to a file without a name. Its content may be in parts (see [`CacheFile::write`]). `None`: it
    /// cannot be cached.
    pub(super) fn write(&self, path: &str, number: usize, object_bytes: u64, content: &[Bytes]) -> Option<Written> {
        if number >= MOST_PIECES || length_of(content) > self.limit_bytes {
            return None;
        }
        let (key, ground) = (self.key(path, number)?, self.ground(true)?);
        let name = Cache::name(&key);
        let temporary = format!("{name}.{}-{}{TEMPORARY}", std::process::id(), self.next.fetch_add(1, Relaxed));
        let written = ground.create(&temporary).and_then(|file| CacheFile::write(file, &key, object_bytes, content));
        self.has_failed.store(written.is_err(), Relaxed);
        match written {
            Ok(file) => Some(Written { bytes: on_disk(file.file_bytes()), file, temporary, name }),
            Err(error) => {
                tracing::debug!(%error, "this is not cached");
                let _ = ground.remove(&temporary);
                None
            }
        }
    }

    /// Gives a file its name. Returns it if that succeeds.
    pub(super) fn keep(&self, written: Written) -> Option<CacheFile> {
        let ground = self.ground(true)?;
        if ground.rename(&written.temporary, &written.name).is_err() {
            let _ = ground.remove(&written.temporary);
            return None;
        }
        let mut evicted = Vec::new();
        {
            let mut index = self.index.lock();
            if index.until_scan_bytes < written.bytes {
                index.scan(&self.directory);
                index.until_scan_bytes = self.limit_bytes / 4;
            }
            index.until_scan_bytes = index.until_scan_bytes.saturating_sub(written.bytes);
            index.add(written.name, written.bytes);
            while index.bytes > self.limit_bytes {
                let Some(oldest) = index.oldest() else { break };
                index.forget(&oldest);
                evicted.push(oldest);
            }
        }
        for name in evicted {
            let _ = ground.remove(&name);
        }
        Some(written.file)
    }

    /// Removes a file that was written for nothing.
    pub(super) fn abandon(&self, written: Written) {
        if let Some(ground) = self.ground(false) {
            let _ = ground.remove(&written.temporary);
        }
    }

    /// Removes all pieces of an object.
    pub(super) fn remove(&self, path: &str) {
        for number in 0..MOST_PIECES {
            self.remove_piece(path, number);
        }
    }

    /// Removes a piece.
    pub(super) fn remove_piece(&self, path: &str, number: usize) {
        if let Some(key) = self.key(path, number) {
            self.remove_file(&Cache::name(&key));
        }
    }

    fn remove_file(&self, name: &str) {
        if let Some(ground) = self.ground(false) {
            let _ = ground.remove(name);
            self.index.lock().forget(name);
        }
    }
}

impl Index {
    /// Looks at the directory: other processes add and remove files.
    fn scan(&mut self, directory: &Path) {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let (Some(name), Ok(metadata)) = (entry.file_name().to_str().filter(|name| is_ours(name)).map(str::to_owned), entry.metadata())
            else {
                continue;
            };
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if !name.ends_with(TEMPORARY) {
                found.push((modified, name, on_disk(metadata.len())));
            } else if modified.elapsed().is_ok_and(|age| age > LEFT_AFTER) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        found.sort();
        *self = Index::default();
        for (_, name, bytes) in found {
            self.add(name, bytes);
        }
    }

    fn add(&mut self, name: String, bytes: u64) {
        self.forget(&name);
        self.clock += 1;
        self.bytes += bytes;
        self.order.insert(self.clock, name.clone());
        self.files.insert(name, (self.clock, bytes));
    }

    fn touch(&mut self, name: &str) {
        if let Some((_, bytes)) = self.files.get(name).copied() {
            self.add(name.to_owned(), bytes);
        }
    }

    fn forget(&mut self, name: &str) {
        if let Some((used, bytes)) = self.files.remove(name) {
            self.order.remove(&used);
            self.bytes -= bytes;
        }
    }

    fn oldest(&self) -> Option<String> {
        self.order.first_key_value().map(|(_, name)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::replace_file;

    fn cache(directory: &Path, bytes: u64) -> Cache {
        let state = Arc::new(LocalGround::open(directory).unwrap());
        if !state.exists("stamp").unwrap() {
            replace_file(&*state, "stamp", b"").unwrap();
        }
        Cache::new(CacheOptions { directory: directory.join("cache"), bytes, stamp: "stamp".to_owned() }, state)
    }

    fn put(cache: &Cache, path: &str, content: &[u8]) -> bool {
        cache.write(path, 0, content.len() as u64, &[Bytes::copy_from_slice(content)]).and_then(|written| cache.keep(written)).is_some()
    }

    fn get(cache: &Cache, path: &str) -> Option<Vec<u8>> {
        let file = cache.open(path, 0)?;
        let mut content = vec![0; file.len() as usize];
        file.read(0, &mut content).then_some(content)
    }

    fn files(cache: &Cache) -> usize {
        std::fs::read_dir(&cache.directory).unwrap().count()
    }

    #[test]
    fn another_process_finds_what_one_has_kept() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (cache(place.path(), 1 << 20), cache(place.path(), 1 << 20));
        assert_eq!(get(&first, "a"), None);
        assert!(!place.path().join("cache").exists());
        assert!(put(&first, "a", b"one") && put(&second, "b", b"two"));
        assert_eq!((get(&first, "b").unwrap(), get(&second, "a").unwrap()), (b"two".to_vec(), b"one".to_vec()));
        second.remove("a");
        assert_eq!((get(&first, "a"), files(&first)), (None, 1));
        let written = first.write("c", 0, 1, &[Bytes::from_static(b"x")]).unwrap();
        assert_eq!((get(&first, "c"), files(&first)), (None, 2));
        first.abandon(written);
        assert_eq!(files(&first), 1);
    }

    #[test]
    fn the_least_recently_used_file_goes_and_an_open_one_stays_readable() {
        let place = tempfile::tempdir().unwrap();
        let first = cache(place.path(), 26_000);
        for path in ["a", "b", "c"] {
            assert!(put(&first, path, &[7; 8000]));
        }
        let open = first.open("a", 0).unwrap();
        let oldest = first.open("b", 0).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        drop(first.open("c", 0));
        drop(first.open("a", 0));
        // A later process knows the order.
        let second = cache(place.path(), 26_000);
        assert!(put(&second, "d", &[7; 8000]));
        assert_eq!(["a", "b", "c", "d"].map(|path| get(&second, path).is_some()), [true, false, true, true]);
        let mut buffer = [0; 8000];
        assert!(oldest.read(0, &mut buffer) && open.read(0, &mut buffer) && buffer == [7; 8000]);
        assert!(!put(&second, "large", &[0; 40_000]));
        assert_eq!(files(&second), 3);
    }

    #[test]
    fn processes_that_share_a_directory_keep_its_bound_nearly() {
        let place = tempfile::tempdir().unwrap();
        let both = [cache(place.path(), 1 << 20), cache(place.path(), 1 << 20)];
        for number in 0..400 {
            assert!(put(&both[number % 2], &format!("{number}"), &[1; 8000]));
        }
        let bytes: u64 =
            std::fs::read_dir(&both[0].directory).unwrap().map(|entry| on_disk(entry.unwrap().metadata().unwrap().len())).sum();
        assert!((1 << 19..(1 << 20) * 3 / 2).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_new_stamp_makes_all_files_stale_and_without_one_nothing_is_cached() {
        let place = tempfile::tempdir().unwrap();
        let cache = cache(place.path(), 1 << 20);
        assert!(put(&cache, "a", b"one"));
        std::thread::sleep(Duration::from_millis(20));
        std::fs::remove_file(place.path().join("stamp")).unwrap();
        assert!(get(&cache, "a").is_none() && !put(&cache, "b", b"two"));
        std::fs::write(place.path().join("stamp"), "").unwrap();
        if cache.state.identity("stamp").unwrap().is_some() {
            assert!(get(&cache, "a").is_none());
        }
        assert!(put(&cache, "b", b"two") && get(&cache, "b").is_some());
    }

    #[test]
    fn only_its_own_files_are_evicted_and_cleared() {
        let place = tempfile::tempdir().unwrap();
        let cache = cache(place.path(), 1 << 20);
        assert!(put(&cache, "a", b"one"));
        let named = |name: &str| cache.directory.join(name);
        let old = "0123456789abcdef.77-1.new";
        for name in ["notes", "0123", "0123456789abcdef.txt", old] {
            std::fs::write(named(name), "x").unwrap();
        }
        cache.index.lock().scan(&cache.directory);
        assert_eq!(cache.index.lock().files.len(), 1);
        assert!(named(old).exists());
        let long_ago = SystemTime::now() - 2 * LEFT_AFTER;
        std::fs::File::options().write(true).open(named(old)).unwrap().set_modified(long_ago).unwrap();
        cache.index.lock().scan(&cache.directory);
        assert!(!named(old).exists());
        clear(&cache.directory);
        assert_eq!(files(&cache), 3);
        assert!(get(&cache, "a").is_none());
    }

    #[test]
    fn an_unusable_directory_is_no_error() {
        let place = tempfile::tempdir().unwrap();
        let cache = cache(place.path(), 1 << 20);
        std::fs::write(place.path().join("cache"), "a file").unwrap();
        assert!(!put(&cache, "a", b"one") && get(&cache, "a").is_none());
        cache.remove("a");
        assert_eq!(std::fs::read(place.path().join("cache")).unwrap(), b"a file");
    }
}
