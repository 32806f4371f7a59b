//! How a client writes data and reads it: a volume over NBD, two files of a mounted filesystem.

use anyhow::{Context, Result, bail};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use onefold_nbd::client::Client;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where a copy of the data goes.
pub trait Face {
    /// Writes a request of a copy at an offset in that copy. The buffer may be used again at once.
    fn write(&mut self, copy: u64, offset: u64, data: &[u8]) -> Result<()>;
    /// Waits until everything is durable.
    fn flush(&mut self) -> Result<()>;
    /// Reads from a copy. Nothing comes from a cache of the client.
    fn read(&mut self, copy: u64, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// A volume with the copies one behind the other.
pub struct Disk {
    client: Client,
    copy_bytes: u64,
    most_in_flight: usize,
    in_flight: usize,
}

impl Disk {
    pub fn connect(socket: &Path, export: &str, copy_bytes: u64, most_in_flight: usize) -> Result<Disk> {
        let client = Client::connect(socket, export).context("no connection to the volume")?;
        Ok(Disk { client, copy_bytes, most_in_flight: most_in_flight.max(1), in_flight: 0 })
    }

    /// Waits until no more than so many requests are in flight.
    fn wait(&mut self, most: usize) -> Result<()> {
        while self.in_flight > most {
            match self.client.receive().context("the connection to the volume failed")? {
                (_, 0) => self.in_flight -= 1,
                (_, error) => bail!("the volume refused a request: error {error} of NBD"),
            }
        }
        Ok(())
    }
}

impl Face for Disk {
    fn write(&mut self, copy: u64, offset: u64, data: &[u8]) -> Result<()> {
        self.wait(self.most_in_flight - 1)?;
        self.client.send_write(offset, copy * self.copy_bytes + offset, data).context("the connection to the volume failed")?;
        self.in_flight += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.wait(0)?;
        self.client.send_flush(0)?;
        self.in_flight = 1;
        self.wait(0)
    }

    fn read(&mut self, copy: u64, offset: u64, into: &mut [u8]) -> Result<()> {
        self.wait(0)?;
        match self.client.read(copy * self.copy_bytes + offset, into).context("the connection to the volume failed")? {
            0 => Ok(()),
            error => bail!("the volume refused a read: error {error} of NBD"),
        }
    }
}

/// A file for each copy.
pub struct Files {
    directory: PathBuf,
    open: Option<(u64, File)>,
}

impl Files {
    pub fn new(directory: &Path) -> Files {
        Files { directory: directory.to_owned(), open: None }
    }

    fn file(&mut self, copy: u64) -> Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != copy) {
            let path = self.directory.join(format!("copy-{copy}"));
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = file.with_context(|| format!("cannot open {}", path.display()))?;
            self.open = Some((copy, file));
        }
        self.open.as_ref().map(|(_, file)| file).context("the file was opened")
    }
}

impl Face for Files {
    fn write(&mut self, copy: u64, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.file(copy)?.write_all_at(data, offset)?)
    }

    fn flush(&mut self) -> Result<()> {
        if let Some((_, file)) = &self.open {
            file.sync_all()?;
        }
        Ok(())
    }

    fn read(&mut self, copy: u64, offset: u64, into: &mut [u8]) -> Result<()> {
        let file = self.file(copy)?;
        // The kernel keeps what was written.
        posix_fadvise(file, i64::try_from(offset)?, i64::try_from(into.len())?, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        Ok(file.read_exact_at(into, offset)?)
    }
}
