//! Ways to files: a client's volume is a directory with files of one size, which it writes one after the other.

use super::face::{Service, Way, WayError};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How written files become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// All of the filesystem at once.
    Whole,
    /// Each file: the system does not tell a FUSE filesystem that all of it is to be durable.
    Each,
}

/// Directories below a root.
#[derive(Clone, Debug)]
pub struct Trees {
    root: PathBuf,
    file_bytes: u64,
    sync: Durable,
}

impl Trees {
    /// Files of this size below `root`, which exists.
    pub fn new(root: &Path, file_bytes: u64, sync: Durable) -> Trees {
        Trees { root: root.to_owned(), file_bytes, sync }
    }
}

impl Service for Trees {
    fn connect(&self, volume: &str) -> Result<Box<dyn Way>, WayError> {
        let directory = self.root.join(volume);
        fs::create_dir_all(&directory).map_err(cannot("make", &directory))?;
        Ok(Box::new(Tree { directory, of: self.clone(), open: None, written: 0, answered: VecDeque::new() }))
    }
}

fn cannot<'a>(operation: &'static str, path: &'a Path) -> impl Fn(io::Error) -> WayError + 'a {
    move |source| WayError::Io { operation, path: path.to_owned(), source }
}

/// What is done with a part of a request: the file, the place in it, and the part.
type OfPart<'a> = dyn FnMut(&File, u64, Range<usize>) -> io::Result<()> + 'a;

struct Tree {
    directory: PathBuf,
    of: Trees,
    /// The file that was used last, and its number.
    open: Option<(u64, File)>,
    /// Files with smaller numbers were written since the last flush.
    written: u64,
    answered: VecDeque<(u64, Vec<u8>)>,
}

impl Tree {
    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(number.to_string())
    }

    /// Passes the parts of `length` bytes from an offset on to `work`. Returns the number of the last file.
    fn parts(&mut self, offset: u64, length: usize, operation: &'static str, work: &mut OfPart<'_>) -> Result<u64, WayError> {
        let mut done = 0;
        let mut number = offset / self.of.file_bytes;
        while done < length {
            number = (offset + done as u64) / self.of.file_bytes;
            let at = (offset + done as u64) % self.of.file_bytes;
            let part = done..length.min(done + (self.of.file_bytes - at) as usize);
            let path = self.path(number);
            let file = match self.open.take() {
                Some((other, file)) if other == number => file,
                _ => {
                    let opened = File::options().read(true).write(true).create(operation == "write").truncate(false).open(&path);
                    opened.map_err(cannot("open", &path))?
                }
            };
            done = part.end;
            work(&file, at, part).map_err(cannot(operation, &path))?;
            self.open = Some((number, file));
        }
        Ok(number)
    }
}

impl Way for Tree {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), WayError> {
        let length = into.len();
        self.parts(offset, length, "read", &mut |file, at, part| file.read_exact_at(&mut into[part], at))?;
        Ok(())
    }

    fn submit(&mut self, tag: u64, offset: u64, data: Vec<u8>) -> Result<(), WayError> {
        let last = self.parts(offset, data.len(), "write", &mut |file, at, part| file.write_all_at(&data[part], at))?;
        self.written = self.written.max(last + 1);
        self.answered.push_back((tag, data));
        Ok(())
    }

    fn wait(&mut self) -> Result<(u64, Vec<u8>), WayError> {
        let none = || WayError::Broken { volume: self.directory.display().to_string(), why: "nothing is in flight".to_owned() };
        self.answered.pop_front().ok_or_else(none)
    }

    fn flush(&mut self) -> Result<(), WayError> {
        let directory = File::open(&self.directory).map_err(cannot("open", &self.directory))?;
        self.open = None;
        let written = std::mem::take(&mut self.written);
        if self.of.sync == Durable::Whole {
            return rustix::fs::syncfs(&directory).map_err(|error| cannot("sync", &self.directory)(error.into()));
        }
        for number in 0..written {
            let path = self.path(number);
            File::open(&path).and_then(|file| file.sync_all()).map_err(cannot("sync", &path))?;
        }
        directory.sync_all().map_err(cannot("sync", &self.directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_over_the_ends_of_files() {
        let place = tempfile::tempdir().unwrap();
        for sync in [Durable::Whole, Durable::Each] {
            let mut way = Trees::new(place.path(), 10, sync).connect(&format!("{sync:?}")).unwrap();
            let bytes: Vec<u8> = (0..35).collect();
            way.submit(0, 0, bytes[..25].to_vec()).unwrap();
            way.submit(1, 25, bytes[25..].to_vec()).unwrap();
            assert_eq!((way.wait().unwrap().0, way.wait().unwrap().0), (0, 1));
            assert!(way.wait().is_err());
            way.flush().unwrap();
            let mut read = vec![0; 30];
            way.read(3, &mut read).unwrap();
            assert_eq!(read, bytes[3..33]);
            assert!(way.read(30, &mut read).is_err(), "beyond the end");
            let lengths: Vec<u64> =
                (0..4).map(|number| place.path().join(format!("{sync:?}")).join(number.to_string()).metadata().unwrap().len()).collect();
            assert_eq!(lengths, [10, 10, 10, 5]);
        }
    }
}
