//! The trees of backups, cached where the client is: comparing with the previous backup then needs nothing from the
//! server.
//!
//! A file has the tree of the newest backup of one group, host and set of paths: names and attributes in the order of
//! the tree. It is advice. It counts only if it is whole and of the very backup that the server compares with, and the
//! server checks the names of all entries that a client keeps. A backup writes the next file beside it, and gives it
//! its name when the server has confirmed the backup. A file that turns out not to be whole is removed.
//!
//! ```text
//! 8   magic "1FLDTRE2"
//! 16  id of the backup
//! 8   XXH3-64 of everything behind
//! ... zstd with a checksum: records
//! ```
//! A record is a length (varint, from 1) and an entry as in `docs/format.md` 8.3, with an empty recipe; or the length
//! 0: the current directory ends. The records of a directory follow its entry. Behind the entry of a file comes its
//! size. The last record ends the root: without it, the tree is not whole.

use crate::repository::Listing;
use onefold_catalog::{Attributes, BackupId, CatalogError, Content, Entry};
use onefold_engine::Recipe;
use onefold_ground::wire::{Reader, WireError, put_varint};
use onefold_ground::{checksum, fill_random};
use onefold_remote::services::messages::{Against, Begin};
use parking_lot::Mutex;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const MAGIC: &[u8; 8] = b"1FLDTRE2";
const HEAD_BYTES: usize = 32;
/// The longest file that is read. A tree of ten million files takes about this much.
const MAX_BYTES: u64 = 1 << 30;
/// The longest tree without compression.
const MAX_RAW_BYTES: u64 = 8 << 30;
/// The longest record.
const MAX_RECORD_BYTES: u64 = 2 << 20;
/// Fast: a tree is written with every backup.
const LEVEL: i32 = 1;
/// The suffix of a file that is being written.
const NEW: &str = "new";
/// Nobody writes such a file any more if it was not written to for so long.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

fn path(directory: &Path, begin: &Begin) -> PathBuf {
    let name = blake3::hash(&Begin { against: Against::Newest, ..begin.clone() }.encode());
    directory.join(format!("{}.tree", &name.to_hex()[..32]))
}

/// The tree of the earlier backup.
#[derive(Debug)]
pub(super) struct CachedTree {
    path: PathBuf,
    cursor: Arc<Mutex<Cursor>>,
}

/// A place in a tree.
struct Cursor {
    path: PathBuf,
    records: Box<dyn Read + Send>,
    offset_bytes: usize,
    /// Directories that the next record is in, without the root.
    depth: usize,
    is_over: bool,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cursor").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl CachedTree {
    /// Returns the tree of a backup. `None`: the cache has not exactly that.
    pub(super) fn open(directory: &Path, begin: &Begin, id: BackupId) -> Option<CachedTree> {
        let path = path(directory, begin);
        let mut bytes = Vec::new();
        let mut file = File::open(&path).ok()?;
        if file.metadata().ok()?.len() > MAX_BYTES {
            return None;
        }
        file.read_to_end(&mut bytes).ok()?;
        let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
        let is_right = head.starts_with(MAGIC) && head[8..24] == *id.as_bytes() && head[24..] == checksum(body).to_le_bytes();
        if !is_right {
            return None;
        }
        bytes.drain(..HEAD_BYTES);
        let records = zstd::Decoder::new(io::Cursor::new(bytes)).ok()?.take(MAX_RAW_BYTES);
        let records = Box::new(io::BufReader::with_capacity(64 << 10, records));
        let cursor = Cursor { path: path.clone(), records, offset_bytes: 0, depth: 0, is_over: false };
        Some(CachedTree { path, cursor: Arc::new(Mutex::new(cursor)) })
    }

    /// Returns the entries of the root.
    pub(super) fn root(&self) -> Listing {
        Box::new(Entries { cursor: self.cursor.clone(), depth: 0, is_over: false })
    }

    /// Returns the entries of the directory whose entry was read last.
    pub(super) fn directory(&self) -> Listing {
        let depth = self.cursor.lock().depth;
        Box::new(Entries { cursor: self.cursor.clone(), depth, is_over: false })
    }

    /// Removes the file: the server has another tree. Returns whether it is gone.
    pub(super) fn remove(&self) -> bool {
        std::fs::remove_file(&self.path).is_ok() || !self.path.exists()
    }
}

struct Entries {
    cursor: Arc<Mutex<Cursor>>,
    depth: usize,
    is_over: bool,
}

impl Iterator for Entries {
    type Item = onefold_catalog::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut cursor = self.cursor.lock();
        while !self.is_over {
            let is_below = cursor.depth > self.depth;
            match cursor.next() {
                Some(Ok(Record::Entry(entry))) if !is_below => return Some(Ok(*entry)),
                Some(Ok(Record::Entry(_))) => {}
                Some(Ok(Record::End)) => self.is_over = !is_below,
                Some(Err(source)) => {
                    self.is_over = true;
                    return Some(Err(CatalogError::Damaged { what: "the cached tree of the earlier backup", source }));
                }
                None => self.is_over = true,
            }
        }
        None
    }
}

enum Record {
    Entry(Box<Entry>),
    End,
}

impl Cursor {
    /// Returns the next record. An error comes once: the directory that is being read misses entries, so neither it nor
    /// one above it is kept as a whole. The file is removed, so that the next backup does without it.
    fn next(&mut self) -> Option<Result<Record, WireError>> {
        if self.is_over {
            return None;
        }
        let record = self.read();
        match &record {
            Ok(Record::Entry(entry)) if matches!(entry.content, Content::Directory { .. }) => self.depth += 1,
            Ok(Record::Entry(_)) => {}
            Ok(Record::End) if self.depth > 0 => self.depth -= 1,
            Ok(Record::End) => self.is_over = true,
            Err(_) => {
                self.is_over = true;
                let _ = std::fs::remove_file(&self.path);
            }
        }
        Some(record)
    }

    fn read(&mut self) -> Result<Record, WireError> {
        let length = self.varint()?;
        if length == 0 {
            return Ok(Record::End);
        }
        if length > MAX_RECORD_BYTES {
            return Err(WireError::OutOfRange { what: "length of a record", value: length, offset_bytes: self.offset_bytes });
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        Ok(Record::Entry(Box::new(decode(&bytes)?)))
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let (mut value, mut shift) = (0, 0);
        // A record has fewer bytes than four groups of seven bits can say.
        while shift < 28 {
            let mut byte = [0];
            self.fill(&mut byte)?;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
        }
        Err(WireError::OutOfRange { what: "length of a record", value, offset_bytes: self.offset_bytes })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), WireError> {
        if let Err(error) = self.records.read_exact(bytes) {
            tracing::debug!(%error, "a cached tree cannot be read on");
            return Err(WireError::Truncated { offset_bytes: self.offset_bytes, wanted_bytes: bytes.len() as u64, left_bytes: 0 });
        }
        self.offset_bytes += bytes.len();
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Result<Entry, WireError> {
    let mut reader = Reader::new(bytes);
    let mut entry = Entry::decode(&mut reader, 0)?;
    if let Content::File { size_bytes, recipe } = &mut entry.content {
        *size_bytes = reader.varint()?;
        *recipe = Recipe { level: 0, length: *size_bytes, pieces: Vec::new() };
    }
    reader.end()?;
    Ok(entry)
}

/// Writes the tree of a backup that is being made. It only helps: after an error, and for a tree beyond the bounds of a
/// reader, it writes nothing more.
pub(super) struct CacheWriter {
    path: PathBuf,
    temporary: PathBuf,
    out: Option<zstd::Encoder<'static, BufWriter<File>>>,
    record: Vec<u8>,
    /// Bytes that may still be written, without compression.
    left_bytes: u64,
}

impl CacheWriter {
    pub(super) fn create(directory: &Path, begin: &Begin) -> Option<CacheWriter> {
        Self::bounded(directory, begin, MAX_RAW_BYTES)
    }

    fn bounded(directory: &Path, begin: &Begin, left_bytes: u64) -> Option<CacheWriter> {
        let create = || {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            // Names of files are nobody else's business.
            std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
            remove_abandoned(directory)?;
            let path = path(directory, begin);
            let mut random = [0; 8];
            fill_random(&mut random)?;
            let temporary = path.with_extension(format!("{:016x}.{NEW}", u64::from_le_bytes(random)));
            let file = OpenOptions::new().write(true).read(true).create_new(true).mode(0o600).open(&temporary)?;
            let mut writer = CacheWriter { path, temporary, out: None, record: Vec::new(), left_bytes };
            let mut file = BufWriter::new(file);
            file.write_all(&[0; HEAD_BYTES])?;
            let mut out = zstd::Encoder::new(file, LEVEL)?;
            out.include_checksum(true)?;
            writer.out = Some(out);
            Ok::<_, io::Error>(writer)
        };
        create().inspect_err(|error| tracing::debug!(%error, "no tree is cached")).ok()
    }

    pub(super) fn enter(&mut self, name: &[u8], attributes: &Attributes) {
        let content = Content::Directory { recipe: Recipe::default() };
        self.entry(&Entry { name: name.to_vec(), attributes: attributes.clone(), content });
    }

    pub(super) fn leave(&mut self) {
        self.write(&[0]);
    }

    pub(super) fn entry(&mut self, entry: &Entry) {
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        match &entry.content {
            Content::File { size_bytes, .. } => {
                let content = Content::File { size_bytes: 0, recipe: Recipe::default() };
                Entry { content, ..entry.clone() }.encode(0, &mut record);
                put_varint(&mut record, *size_bytes);
            }
            Content::Directory { .. } => {
                Entry { content: Content::Directory { recipe: Recipe::default() }, ..entry.clone() }.encode(0, &mut record);
            }
            _ => entry.encode(0, &mut record),
        }
        if record.len() as u64 > MAX_RECORD_BYTES {
            self.out = None;
        }
        let mut length = Vec::with_capacity(4);
        put_varint(&mut length, record.len() as u64);
        self.write(&length);
        self.write(&record);
        self.record = record;
    }

    fn write(&mut self, bytes: &[u8]) {
        let Some(out) = &mut self.out else { return };
        match self.left_bytes.checked_sub(bytes.len() as u64) {
            Some(left) if out.write_all(bytes).is_ok() => self.left_bytes = left,
            _ => self.out = None,
        }
    }

    /// Ends the root, and gives the file its name.
    pub(super) fn commit(mut self, id: BackupId) {
        self.leave();
        let Some(out) = self.out.take() else { return };
        let finish = || {
            let mut file = out.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.flush()?;
            if file.metadata()?.len() > MAX_BYTES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let bytes = std::fs::read(&self.temporary)?;
            let body = bytes.get(HEAD_BYTES..).unwrap_or_default();
            let head = [&MAGIC[..], id.as_bytes(), &checksum(body).to_le_bytes()].concat();
            rustix::io::pwrite(&file, &head, 0)?;
            std::fs::rename(&self.temporary, &self.path)
        };
        if let Err(error) = finish() {
            tracing::debug!(%error, "no tree is cached");
        }
    }
}

impl Drop for CacheWriter {
    fn drop(&mut self) {
        // It has another name if it was committed.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// Removes what killed backups left.
fn remove_abandoned(directory: &Path) -> io::Result<()> {
    for file in std::fs::read_dir(directory)? {
        let file = file?;
        let is_new = file.path().extension().is_some_and(|extension| extension == NEW);
        let is_old = || file.metadata().and_then(|found| found.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED));
        if is_new && is_old() {
            let _ = std::fs::remove_file(file.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> BackupId {
        BackupId::from_bytes([3; 16])
    }

    fn begin() -> Begin {
        Begin { name: "group".into(), host: "host".into(), paths: vec![b"/home".to_vec()], against: Against::Newest }
    }

    fn entry(name: &str) -> Entry {
        let content = Content::File { size_bytes: 5, recipe: Recipe { level: 0, length: 5, pieces: Vec::new() } };
        Entry { name: name.into(), attributes: Attributes::default(), content }
    }

    /// Writes a tree of one directory between two files.
    fn write(writer: &mut CacheWriter) {
        writer.entry(&entry("a"));
        writer.enter(b"b", &Attributes::default());
        writer.entry(&entry("inside"));
        writer.leave();
        writer.entry(&entry("c"));
    }

    /// Returns the names in the root, and what of them are errors.
    fn names(tree: &CachedTree) -> (Vec<String>, usize) {
        let (mut names, mut errors) = (Vec::new(), 0);
        for entry in tree.root() {
            match entry {
                Ok(entry) => names.push(String::from_utf8(entry.name).unwrap()),
                Err(_) => errors += 1,
            }
        }
        (names, errors)
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect()
    }

    #[test]
    fn a_tree_comes_back_and_is_private() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("deep/cache");
        let mut writer = CacheWriter::create(&directory, &begin()).unwrap();
        write(&mut writer);
        writer.commit(id());
        assert_eq!(names(&CachedTree::open(&directory, &begin(), id()).unwrap()), (vec!["a".into(), "b".into(), "c".into()], 0));
        assert!(CachedTree::open(&directory, &begin(), BackupId::from_bytes([4; 16])).is_none());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(files(&directory).iter().map(|file| mode(file)).collect::<Vec<_>>(), [0o600]);
    }

    #[test]
    fn a_tree_that_is_not_whole_is_an_error_and_no_cache_any_more() {
        let place = tempfile::tempdir().unwrap();
        let mut writer = CacheWriter::create(place.path(), &begin()).unwrap();
        write(&mut writer);
        // As if the file had the right checksum, and no end.
        let path = writer.path.clone();
        writer.commit(id());
        let bytes = std::fs::read(&path).unwrap();
        let records = zstd::decode_all(&bytes[HEAD_BYTES..]).unwrap();
        for (cut, expected) in [(1, vec!["a", "b", "c"]), (2, vec!["a", "b"]), (records.len(), vec![])] {
            let body = zstd::encode_all(&records[..records.len() - cut], LEVEL).unwrap();
            std::fs::write(&path, [&MAGIC[..], id().as_bytes(), &checksum(&body).to_le_bytes(), &body].concat()).unwrap();
            let tree = CachedTree::open(place.path(), &begin(), id()).unwrap();
            let (found, errors) = names(&tree);
            assert_eq!((found, errors), (expected.into_iter().map(str::to_owned).collect(), 1));
            assert_eq!(files(place.path()), [] as [PathBuf; 0]);
        }
    }

    #[test]
    fn a_tree_beyond_the_bounds_of_a_reader_is_not_cached() {
        let place = tempfile::tempdir().unwrap();
        let mut writer = CacheWriter::bounded(place.path(), &begin(), 50).unwrap();
        write(&mut writer);
        writer.commit(id());
        assert_eq!(files(place.path()), [] as [PathBuf; 0]);
    }

    #[test]
    fn what_killed_backups_left_is_removed_and_what_others_write_is_not() {
        let place = tempfile::tempdir().unwrap();
        let (old, young) = (place.path().join("x.1.new"), place.path().join("x.2.new"));
        for file in [&old, &young] {
            std::fs::write(file, "").unwrap();
        }
        let then = std::time::SystemTime::now() - 2 * ABANDONED;
        File::options().write(true).open(&old).unwrap().set_modified(then).unwrap();
        drop(CacheWriter::create(place.path(), &begin()).unwrap());
        assert_eq!(files(place.path()), [young]);
    }
}
