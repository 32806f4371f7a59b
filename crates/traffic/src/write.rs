//! Writes a stream: to anything that takes bytes, or to a named file, block device or pipe.
//!
//! - Nothing that exists is overwritten unless the caller says so.
//! - Half a stream must not be taken for a whole one: a file that was not written to its end is removed.
//! - A file or device that was written to its end is durable.

use crate::stream::Stream;
use onefold_ground::size::size;
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Bytes generated and written at a time.
const STEP: usize = 1 << 20;

/// Follows the writing of a stream, and may stop it.
pub trait Watcher {
    /// This many more bytes are written.
    fn advance(&self, bytes: u64);
    /// Returns whether to stop.
    fn is_cancelled(&self) -> bool;
}

/// The reason why a stream was not written, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The place is a directory.
    #[error("cannot write {}: it is a directory", .path.display())]
    Directory {
        /// The place.
        path: PathBuf,
    },
    /// The file exists, and may not be overwritten.
    #[error("cannot write {}: it already exists", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The place is a block device, and may not be overwritten.
    #[error("cannot write {}: it is a block device; its content would be lost", .path.display())]
    Device {
        /// The device.
        path: PathBuf,
    },
    /// The stream is longer than the block device.
    #[error("cannot write {}: the stream has {}, the device {}", .path.display(), size(*.length_bytes), size(*.room_bytes))]
    TooLong {
        /// The device.
        path: PathBuf,
        /// Length of the stream.
        length_bytes: u64,
        /// Length of the device.
        room_bytes: u64,
    },
    /// The operating system refused something.
    #[error("cannot {operation} {}: {source}", .path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The output has no name, or its reader has gone.
    #[error("cannot write the stream: {0}")]
    Output(io::Error),
    /// The watcher stopped it.
    #[error("stopped after {}: the stream is not complete", size(*.written_bytes))]
    Cancelled {
        /// Bytes that were written before.
        written_bytes: u64,
    },
}

type Result<T> = std::result::Result<T, WriteError>;

/// Writes all of a stream.
pub fn write(stream: &mut Stream, out: &mut dyn Write, watcher: &dyn Watcher) -> Result<()> {
    copy(stream, out, watcher, &WriteError::Output)
}

/// Writes all of a stream of `length_bytes` to a path. With `force`, overwrites a file or a block device.
pub fn write_file(stream: &mut Stream, length_bytes: u64, path: &Path, force: bool, watcher: &dyn Watcher) -> Result<()> {
    let place = place(path)?;
    match place {
        Place::File if !force => return Err(WriteError::Exists { path: path.to_owned() }),
        Place::Device if !force => return Err(WriteError::Device { path: path.to_owned() }),
        _ => {}
    }
    let mut options = File::options();
    options.write(true).create_new(place == Place::Nothing).truncate(place == Place::File);
    let mut file = options.open(path).map_err(refused(if place == Place::Nothing { "create" } else { "open" }, path))?;
    if place == Place::Device {
        // The length of a device shows only in its end.
        let room_bytes = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(refused("read the length of", path))?;
        if length_bytes > room_bytes {
            return Err(WriteError::TooLong { path: path.to_owned(), length_bytes, room_bytes });
        }
        rustix::fs::seek(&file, SeekFrom::Start(0)).map_err(refused("find the beginning of", path))?;
    }
    let mut done = copy(stream, &mut file, watcher, &|error| match error.kind() {
        ErrorKind::BrokenPipe => WriteError::Output(error),
        _ => refused("write", path)(error),
    });
    if done.is_ok() && place != Place::Sink {
        done = file.sync_all().map_err(refused("sync", path));
    }
    if done.is_err() && matches!(place, Place::Nothing | Place::File) {
        let _ = std::fs::remove_file(path);
    }
    done
}

fn copy(stream: &mut Stream, out: &mut dyn Write, watcher: &dyn Watcher, fail: &dyn Fn(io::Error) -> WriteError) -> Result<()> {
    let mut buffer = vec![0; STEP];
    let mut written_bytes = 0;
    loop {
        if watcher.is_cancelled() {
            return Err(WriteError::Cancelled { written_bytes });
        }
        let filled = stream.fill(&mut buffer);
        if filled == 0 {
            return out.flush().map_err(fail);
        }
        out.write_all(&buffer[..filled]).map_err(fail)?;
        written_bytes += filled as u64;
        watcher.advance(filled as u64);
    }
}

fn refused<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> WriteError {
    let path = path.to_owned();
    move |error| WriteError::Io { operation, path, source: error.into() }
}

/// What stands at the place that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nothing,
    File,
    Device,
    /// A pipe, or a device that keeps nothing: there is nothing to overwrite, and nothing to remove.
    Sink,
}

fn place(path: &Path) -> Result<Place> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Place::Nothing),
        Err(error) => return Err(refused("ask for", path)(error)),
    };
    if found.is_dir() {
        return Err(WriteError::Directory { path: path.to_owned() });
    }
    Ok(match found {
        found if found.is_file() => Place::File,
        found if found.is_block_device() => Place::Device,
        _ => Place::Sink,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Set, Workload};
    use std::cell::Cell;

    const SIZE_BYTES: u64 = 3 << 20;

    fn stream() -> Stream {
        Workload { set: Set::UniqueFiles, seed: 1, client: 0, generation: 1, size_bytes: SIZE_BYTES }.stream().expect("it is valid")
    }

    /// Stops after this many bytes.
    struct StopAfter(u64, Cell<u64>);

    impl Watcher for StopAfter {
        fn advance(&self, bytes: u64) {
            self.1.set(self.1.get() + bytes);
        }

        fn is_cancelled(&self) -> bool {
            self.1.get() >= self.0
        }
    }

    fn file(path: &Path, force: bool, stop_after: u64) -> Result<()> {
        write_file(&mut stream(), SIZE_BYTES, path, force, &StopAfter(stop_after, Cell::default()))
    }

    #[test]
    fn a_file_is_whole_or_removed_and_overwritten_only_with_force() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        let stopped = file(&path, false, 1);
        assert!(matches!(stopped, Err(WriteError::Cancelled { written_bytes: 1_048_576 })), "{stopped:?}");
        assert!(!path.exists());
        file(&path, false, u64::MAX).expect("nothing is in the way");
        let mut expected = Vec::new();
        write(&mut stream(), &mut expected, &StopAfter(u64::MAX, Cell::default())).expect("memory takes all");
        assert!(expected.len() as u64 == SIZE_BYTES && std::fs::read(&path).expect("it is there") == expected);
        assert!(matches!(file(&path, false, u64::MAX), Err(WriteError::Exists { .. })));
        assert!(matches!(file(directory.path(), true, u64::MAX), Err(WriteError::Directory { .. })));
        assert!(matches!(file(&path, true, 1), Err(WriteError::Cancelled { .. })));
        assert!(!path.exists());
    }
}
