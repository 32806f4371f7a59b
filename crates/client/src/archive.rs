//! Streams a file or directory of a backup as a tar archive: POSIX.1-2001 (pax), as GNU tar and bsdtar read it.
//!
//! Records in front of the old header carry what it cannot hold: long names, times to the nanosecond, large numbers,
//! extended attributes (`SCHILY.xattr.`), ACLs (`SCHILY.acl.`), holes (GNU's sparse format 1.0).

mod header;

use crate::damage::{Damaged, Part, Parts};
use crate::dump::{Run, write_file, write_zeros};
use crate::monitor::{Counter, Monitor, Watch};
use crate::repository::{Reading, Repository};
use crate::{ClientError, Result};
use header::{Header, records};
use onefold_catalog::{Backup, Content, Entry, TreeWalk, components};
use onefold_engine::{Piece, Recipe};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;

/// Archives are made of blocks of this size.
const BLOCK_BYTES: u64 = 512;
/// Holes of at least this many bytes in total are worth a map.
const SPARSE_BYTES: u64 = 64 << 10;
/// A file with more pieces of data between holes is written with its zeros: the map is kept in memory.
const MAX_SEGMENTS: usize = 64 << 10;

/// Writes the entry at `path` of a backup, with everything below it, as a tar archive. Names in it begin with the last
/// component of the path. If a file is damaged, `damaged` decides: the archive ends there with an error, or it has
/// zeros, which the monitor is told.
pub fn archive(
    repository: &dyn Repository,
    backup: &Backup,
    path: &[u8],
    damaged: Damaged,
    monitor: &dyn Monitor,
    out: &mut dyn Write,
) -> Result<()> {
    let reading = repository.read(backup)?;
    let watch = Watch::new(monitor);
    let path: Vec<u8> = components(path).collect::<Vec<_>>().join(&b'/');
    let top = reading.lookup(&path)?;
    let above = path.len() - path.rsplit(|byte| *byte == b'/').next().map_or(0, <[u8]>::len);
    let mut archiver = Archiver { reading: &reading, watch: &watch, damaged, out, above, first_names: HashMap::new() };
    let recipe = match &top {
        None => Some(backup.root.clone()),
        Some(entry) => {
            archiver.entry(&path, entry)?;
            match &entry.content {
                Content::Directory { recipe } => Some(recipe.clone()),
                _ => None,
            }
        }
    };
    for item in recipe.iter().flat_map(|recipe| TreeWalk::new(&reading.chunks, &path, recipe)) {
        if watch.cancelled() {
            return Err(ClientError::Cancelled);
        }
        watch.current(&item.path);
        if let Some(error) = reading.chunks.broken() {
            return Err(error.into());
        }
        match item.entry {
            Ok(entry) => archiver.entry(&item.path, &entry)?,
            Err(error) if damaged == Damaged::Zero => {
                watch.error(&item.path, format_args!("a part of this directory cannot be read: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    // What came last may be what is missing.
    if let Some(error) = reading.chunks.broken() {
        return Err(error.into());
    }
    archiver.bytes(&[0; 2 * BLOCK_BYTES as usize])
}

struct Archiver<'a> {
    reading: &'a Reading,
    watch: &'a Watch<'a>,
    damaged: Damaged,
    out: &'a mut dyn Write,
    /// This many bytes at the front of each path are not in the archive's names.
    above: usize,
    /// Archive names of files with several names, by the paths of their first names in the backup.
    first_names: HashMap<Vec<u8>, Vec<u8>>,
}

impl Archiver<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| ClientError::io("write", "the archive", error))
    }

    fn zeros(&mut self, length: u64) -> Result<()> {
        write_zeros(self.out, length).map_err(|error| ClientError::io("write", "the archive", error))
    }

    fn entry(&mut self, path: &[u8], entry: &Entry) -> Result<()> {
        let name = &path[self.above.min(path.len())..];
        if !path.split(|byte| *byte == b'/').all(onefold_catalog::is_valid_name) {
            self.watch.error(path, "refused: its name in the backup is not a valid file name");
            return Ok(());
        }
        let mut header = Header::new(name, &entry.attributes);
        match &entry.content {
            Content::File { recipe, size_bytes } => return self.file(path, header, (recipe, *size_bytes), entry.attributes.links > 1),
            Content::HardLink { path: first } => return self.hard_link(path, header, first),
            Content::Directory { .. } => header.kind = b'5',
            Content::Symlink { target } => (header.kind, header.target) = (b'2', target.clone()),
            Content::CharacterDevice { major, minor } => (header.kind, header.device) = (b'3', (*major, *minor)),
            Content::BlockDevice { major, minor } => (header.kind, header.device) = (b'4', (*major, *minor)),
            Content::Fifo => header.kind = b'6',
            Content::Socket => {
                self.watch.warn(path, "left out: an archive cannot contain sockets");
                return Ok(());
            }
        }
        let what = if header.kind == b'5' { Counter::Directories } else { Counter::Others };
        self.watch.count(what, 1);
        self.bytes(&header.encode(&[]))
    }

    fn hard_link(&mut self, path: &[u8], mut header: Header<'_>, first: &[u8]) -> Result<()> {
        if let Some(known) = self.first_names.get(first) {
            (header.kind, header.target) = (b'1', known.clone());
            self.watch.count(Counter::Files, 1);
            return self.bytes(&header.encode(&[]));
        }
        // The first name is not in the archive: this one becomes the first.
        match self.reading.lookup(first) {
            Ok(Some(Entry { content: Content::File { recipe, size_bytes }, .. })) => {
                self.file(path, header, (&recipe, size_bytes), false)?;
                self.first_names.insert(first.to_vec(), path[self.above..].to_vec());
            }
            Ok(Some(mut entry)) if !matches!(entry.content, Content::HardLink { .. } | Content::Directory { .. }) => {
                entry.attributes = header.attributes.clone();
                self.entry(path, &entry)?;
            }
            Ok(_) => self.watch.error(path, "the backup lacks the first name of this file"),
            Err(error) if self.damaged == Damaged::Zero => self.watch.error(path, error),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8], mut header: Header<'_>, (recipe, size_bytes): (&Recipe, u64), has_names: bool) -> Result<()> {
        let segments = match self.segments(recipe, size_bytes) {
            Ok(segments) => segments,
            Err(reason) if self.damaged == Damaged::Zero => {
                self.watch.error(path, reason);
                return Ok(());
            }
            Err(reason) => return Err(ClientError::Lost { path: format!("/{}", String::from_utf8_lossy(path)), reason }),
        };
        if has_names {
            self.first_names.insert(path.to_vec(), header.name.to_vec());
        }
        let stored: u64;
        match &segments {
            Some(segments) => {
                let map = sparse_map(segments, size_bytes);
                stored = map.len() as u64 + segments.iter().map(|data| data.end - data.start).sum::<u64>();
                header.size_bytes = stored;
                let sparse = [
                    (&b"GNU.sparse.major"[..], b"1".to_vec()),
                    (b"GNU.sparse.minor", b"0".to_vec()),
                    (b"GNU.sparse.name", header.name.to_vec()),
                    (b"GNU.sparse.realsize", size_bytes.to_string().into_bytes()),
                ];
                self.bytes(&header.encode(&records(&sparse)))?;
                self.bytes(&map)?;
            }
            None => {
                stored = size_bytes;
                header.size_bytes = stored;
                self.bytes(&header.encode(&[]))?;
            }
        }
        let (chunks, watch, damaged) = (&self.reading.chunks, self.watch, self.damaged);
        let mut at = 0;
        write_file(chunks, recipe, size_bytes, (path, damaged), watch, &mut |run| match run {
            Run::Bytes(bytes) => {
                at += bytes.len() as u64;
                self.bytes(bytes)
            }
            Run::Zeros(length) => {
                let start = at;
                at += length;
                // Holes are in the map; zeros in place of lost bytes are data.
                let is_data = segments.as_ref().is_none_or(|segments| {
                    let next = segments.partition_point(|data| data.end <= start);
                    segments.get(next).is_some_and(|data| data.start <= start)
                });
                if is_data { self.zeros(length) } else { Ok(()) }
            }
        })?;
        self.watch.count(Counter::Files, 1);
        self.watch.count(Counter::LogicalBytes, size_bytes);
        self.zeros(stored.next_multiple_of(BLOCK_BYTES) - stored)
    }

    /// Returns where a file has data, if its holes are worth a map; or what is wrong with its recipe.
    fn segments(&self, recipe: &Recipe, size_bytes: u64) -> std::result::Result<Option<Vec<Range<u64>>>, String> {
        let (mut segments, mut at, mut holes): (Vec<Range<u64>>, u64, u64) = (Vec::new(), 0, 0);
        for part in Parts::new(&self.reading.chunks, recipe, size_bytes) {
            let part = part.map_err(|error| error.to_string())?;
            let length = part.length();
            if matches!(part, Part::Piece(Piece::Zeros { .. })) {
                holes += length;
            } else {
                match segments.last_mut() {
                    Some(last) if last.end == at => last.end += length,
                    _ => segments.push(at..at + length),
                }
                // Once too many, always too many. The rest is only checked for the file's size.
                segments.truncate(MAX_SEGMENTS + 1);
            }
            at += length;
        }
        Ok((holes >= SPARSE_BYTES && segments.len() <= MAX_SEGMENTS).then_some(segments))
    }
}

/// Returns the map in front of the data of a file with holes: the number of pieces of data, then the offset and length
/// of each.
fn sparse_map(segments: &[Range<u64>], size_bytes: u64) -> Vec<u8> {
    let ends_with_hole = segments.last().is_none_or(|last| last.end < size_bytes);
    let mut map = format!("{}\n", segments.len() + usize::from(ends_with_hole));
    for data in segments.iter().cloned().chain(ends_with_hole.then_some(size_bytes..size_bytes)) {
        map.push_str(&format!("{}\n{}\n", data.start, data.end - data.start));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK_BYTES as usize), 0);
    map
}
