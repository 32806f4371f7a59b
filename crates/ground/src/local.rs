//! A directory of the local file system.

use crate::{Access, DirectoryEntry, File, Ground, GroundError, Result, Space};
use rustix::fs::{Advice, FallocateFlags};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A local directory as the ground of a store.
#[derive(Debug)]
pub struct LocalGround {
    root: PathBuf,
}

impl LocalGround {
    /// Stands on an existing directory.
    pub fn open(root: impl AsRef<Path>) -> Result<LocalGround> {
        let root = root.as_ref();
        let found = fs::metadata(root).map_err(|source| error("open", root, source))?;
        if !found.is_dir() {
            return Err(error("open", root, io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let root = fs::canonicalize(root).map_err(|source| error("open", root, source))?;
        Ok(LocalGround { root })
    }

    /// The absolute path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, path: &str) -> PathBuf {
        debug_assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."), "paths are relative: {path}");
        self.root.join(path)
    }
}

fn error(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> GroundError {
    GroundError::Io { operation, path: path.display().to_string(), source: source.into() }
}

impl Ground for LocalGround {
    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        let path = self.path(path);
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|source| error("create", &path, source))?;
        Ok(Arc::new(LocalFile { file, path }))
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        let path = self.path(path);
        let file = fs::OpenOptions::new()
            .read(true)
            .write(access == Access::ReadWrite)
            .open(&path)
            .map_err(|source| error("open", &path, source))?;
        Ok(Arc::new(LocalFile { file, path }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let path = self.path(path);
        fs::remove_file(&path).map_err(|source| error("remove", &path, source))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let from = self.path(from);
        fs::rename(&from, self.path(to)).map_err(|source| error("rename", &from, source))
    }

    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>> {
        let path = self.path(directory);
        let mut entries = Vec::new();
        for entry in fs::read_dir(&path).map_err(|source| error("list", &path, source))? {
            let entry = entry.map_err(|source| error("list", &path, source))?;
            let is_directory = entry.file_type().map_err(|source| error("list", &path, source))?.is_dir();
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(DirectoryEntry { name, is_directory });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn create_directory(&self, directory: &str) -> Result<()> {
        let mut made = PathBuf::new();
        for part in Path::new(directory) {
            let above = self.root.join(&made);
            made.push(part);
            let path = self.root.join(&made);
            match fs::create_dir(&path) {
                Ok(()) => sync_directory(&above)?,
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                Err(source) => return Err(error("create directory", &path, source)),
            }
        }
        Ok(())
    }

    fn sync_directory(&self, directory: &str) -> Result<()> {
        sync_directory(&self.path(directory))
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let path = self.path(path);
        path.try_exists().map_err(|source| error("look for", &path, source))
    }

    fn space(&self) -> Result<Space> {
        let found = rustix::fs::statvfs(&self.root).map_err(|source| error("ask the free space of", &self.root, source))?;
        Ok(Space { free_bytes: found.f_bavail * found.f_frsize, total_bytes: found.f_blocks * found.f_frsize })
    }

    fn describe(&self, path: &str) -> String {
        self.path(path).display().to_string()
    }
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory = fs::File::open(path).map_err(|source| error("open", path, source))?;
    directory.sync_all().map_err(|source| error("sync", path, source))
}

#[derive(Debug)]
struct LocalFile {
    file: fs::File,
    path: PathBuf,
}

impl File for LocalFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|source| error("read", &self.path, source))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, offset).map_err(|source| error("write", &self.path, source))
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|source| error("ask the length of", &self.path, source))?.len())
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.file.set_len(length).map_err(|source| error("set the length of", &self.path, source))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| error("sync", &self.path, source))
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, length) {
            Ok(()) => Ok(()),
            // A file system without fallocate: zeros written now keep the promise that later writes have room.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                let present = self.len()?;
                let zeros = vec![0; 1 << 16];
                let mut at = present.max(offset);
                while at < offset + length {
                    let step = zeros.len().min((offset + length - at) as usize);
                    self.write_at(at, &zeros[..step])?;
                    at += step as u64;
                }
                Ok(())
            }
            Err(source) => Err(error("reserve room in", &self.path, source)),
        }
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        // rustix has no sync_file_range; fadvise(DONTNEED) starts writeback of dirty pages on Linux without waiting.
        let _ = (offset, length);
    }

    fn read_ahead(&self, offset: u64, length: u64) {
        if let Some(length) = std::num::NonZeroU64::new(length) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(length), Advice::WillNeed);
        }
    }
}
