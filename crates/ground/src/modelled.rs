//! A ground whose parts lie on modelled devices: hard disks, old or new SSDs, fast devices with a limit. For
//! experiments.
//!
//! Each operation first runs on the real files. Then its caller waits as long as the modelled device would take. So the
//! device's time adds to that of the real files, which should be fast. The model caches nothing: each read and each
//! write takes the device's time, as if the file bypassed the page cache.
//!
//! It counts reads and writes for each part of the store, with or without a model.
//!
//! Some operations take no modelled time: names (creating, opening, renaming, removing, listing), lengths, allocation,
//! locks and hints. A sync of a directory takes the time of a sync.

mod clock;
mod device;

use crate::{Access, File, Ground, Result, checksum};
use clock::{Clock, SystemClock};
use device::{Devices, Work};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a modelled device behaves.
///
/// An operation is one contiguous read or write of any length. It waits for one of the `queue` places and until
/// `operations_per_s` lets it start. Then it takes its own time and that of a seek. Then its bytes pass through the
/// device, one operation after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceModel {
    /// What people call it.
    pub name: String,
    /// Time of a read in microseconds. No time may exceed a minute.
    pub read_us: u64,
    /// Time of a write, microseconds.
    pub write_us: u64,
    /// Time of a sync, microseconds. It takes a place in the queue, but does not count towards `operations_per_s`.
    pub sync_us: u64,
    /// Extra time of a read or write that does not start where the device's last one ended: same file, next byte.
    /// Microseconds.
    pub seek_us: u64,
    /// Read throughput of one device, bytes per second; 0: unlimited.
    pub read_bytes_per_s: u64,
    /// Write throughput of one device, bytes per second; 0: unlimited.
    pub write_bytes_per_s: u64,
    /// Limit of reads and writes per second of one device; 0: unlimited.
    pub operations_per_s: u64,
    /// Operations that one device handles at a time: 1 to 1024.
    pub queue: usize,
    /// Devices that share the files: 1 to 1024.
    pub devices: usize,
    /// Bytes of a file on one device before it continues on the next. The file's name decides which device holds the
    /// first stripe. At least 512; 0: a file lies on one device.
    pub stripe_bytes: u64,
}

impl Default for DeviceModel {
    /// Creates a single device that takes no time.
    fn default() -> DeviceModel {
        DeviceModel {
            name: String::new(),
            read_us: 0,
            write_us: 0,
            sync_us: 0,
            seek_us: 0,
            read_bytes_per_s: 0,
            write_bytes_per_s: 0,
            operations_per_s: 0,
            queue: 1,
            devices: 1,
            stripe_bytes: 64 << 10,
        }
    }
}

impl DeviceModel {
    /// Checks that all values are in range. The error names the field and its range.
    pub fn check(&self) -> std::result::Result<(), String> {
        const MINUTE_US: u64 = 60_000_000;
        let times = [("read_us", self.read_us), ("write_us", self.write_us), ("sync_us", self.sync_us), ("seek_us", self.seek_us)];
        if let Some((field, time)) = times.into_iter().find(|(_, time)| *time > MINUTE_US) {
            return Err(format!("`{field}` is {time}; a time is at most {MINUTE_US} microseconds"));
        }
        for (field, number) in [("queue", self.queue), ("devices", self.devices)] {
            if !(1..=1024).contains(&number) {
                return Err(format!("`{field}` is {number}; it must be from 1 to 1024"));
            }
        }
        if (1..512).contains(&self.stripe_bytes) {
            return Err(format!("`stripe_bytes` is {}; it must be 0 or at least 512", self.stripe_bytes));
        }
        Ok(())
    }
}

/// A part of the store: all paths with a common prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelledPart {
    /// What people call it.
    pub name: String,
    /// How its paths begin, such as `index/`. If several prefixes match a path, the longest counts.
    pub prefix: String,
    /// The devices that this part alone uses. `None`: real files, only counted.
    pub model: Option<DeviceModel>,
}

/// Reads and writes of a part since the ground was created. Failed and empty operations do not count; [pretended
/// writes](File::pretend_write) do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounters {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Syncs of files and directories.
    pub syncs: u64,
    /// Time that callers waited for modelled devices, nanoseconds, summed over threads.
    pub waited_ns: u64,
    /// Devices that share the part; 1 without a model.
    pub devices: u32,
}

/// Another ground's files with the timing of modelled devices.
#[derive(Debug)]
pub struct ModelledGround {
    inner: Arc<dyn Ground>,
    /// In the order given.
    parts: Vec<Arc<Part>>,
}

impl ModelledGround {
    /// Puts parts of `inner` on modelled devices. [Check](DeviceModel::check) the models first: values out of range are
    /// clamped.
    pub fn new(inner: Arc<dyn Ground>, parts: Vec<ModelledPart>) -> ModelledGround {
        ModelledGround::with_clock(inner, parts, Arc::new(SystemClock::new()))
    }

    fn with_clock(inner: Arc<dyn Ground>, parts: Vec<ModelledPart>, clock: Arc<dyn Clock>) -> ModelledGround {
        let part = |ModelledPart { name, prefix, model }| {
            let devices = model.map(|model| Mutex::new(Devices::new(model)));
            Arc::new(Part { name, prefix, devices, clock: clock.clone(), counters: Counters::default() })
        };
        ModelledGround { inner, parts: parts.into_iter().map(part).collect() }
    }

    /// Returns the reads and writes so far, by part.
    pub fn traffic(&self) -> Vec<(String, PartCounters)> {
        self.parts.iter().map(|part| (part.name.clone(), part.counters())).collect()
    }

    fn part_of(&self, path: &str) -> Option<&Arc<Part>> {
        self.parts.iter().filter(|part| path.starts_with(&part.prefix)).max_by_key(|part| part.prefix.len())
    }

    /// Wraps a file if its path belongs to a part.
    fn file(&self, path: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        match self.part_of(path) {
            Some(part) => Arc::new(ModelledFile { file, part: part.clone(), name: checksum(path.as_bytes()) }),
            None => file,
        }
    }
}

impl crate::DelegatingGround for ModelledGround {
    fn below(&self) -> &dyn Ground {
        &*self.inner
    }

    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.inner.create(path)?))
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.inner.open(path, access)?))
    }

    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.inner.open_past_cache(path)?))
    }

    fn sync_directory(&self, directory: &str) -> Result<()> {
        self.inner.sync_directory(directory)?;
        // The directory `index` itself belongs to what begins with `index/`.
        if let Some(part) = self.part_of(&format!("{directory}/")) {
            part.done(Work::Sync, checksum(directory.as_bytes()), 0, 0);
        }
        Ok(())
    }
}

/// A part in use.
#[derive(Debug)]
struct Part {
    name: String,
    prefix: String,
    devices: Option<Mutex<Devices>>,
    clock: Arc<dyn Clock>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    syncs: AtomicU64,
    waited_ns: AtomicU64,
}

impl Part {
    /// Counts an operation on the real file of this name, then waits until the modelled devices would have finished it.
    fn done(&self, work: Work, name: u64, offset: u64, length_bytes: u64) {
        let counters = &self.counters;
        match work {
            Work::Read => {
                counters.reads.fetch_add(1, Relaxed);
                counters.read_bytes.fetch_add(length_bytes, Relaxed);
            }
            Work::Write => {
                counters.writes.fetch_add(1, Relaxed);
                counters.written_bytes.fetch_add(length_bytes, Relaxed);
            }
            Work::Sync => drop(counters.syncs.fetch_add(1, Relaxed)),
        }
        let Some(devices) = &self.devices else { return };
        let (now_ns, end_ns) = {
            // Holding the lock keeps the operations of a device in the order of their times.
            let mut devices = devices.lock();
            let now_ns = self.clock.now_ns();
            (now_ns, devices.end_of(now_ns, work, name, offset, length_bytes))
        };
        if end_ns > now_ns {
            counters.waited_ns.fetch_add(end_ns - now_ns, Relaxed);
            self.clock.sleep_until(end_ns);
        }
    }

    fn counters(&self) -> PartCounters {
        let counters = &self.counters;
        PartCounters {
            reads: counters.reads.load(Relaxed),
            read_bytes: counters.read_bytes.load(Relaxed),
            writes: counters.writes.load(Relaxed),
            written_bytes: counters.written_bytes.load(Relaxed),
            syncs: counters.syncs.load(Relaxed),
            waited_ns: counters.waited_ns.load(Relaxed),
            devices: self.devices.as_ref().map_or(1, |devices| devices.lock().count() as u32),
        }
    }
}

#[derive(Debug)]
struct ModelledFile {
    file: Arc<dyn File>,
    part: Arc<Part>,
    /// The name by which the devices know the file.
    name: u64,
}

impl crate::DelegatingFile for ModelledFile {
    fn below(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, buffer)?;
        if !buffer.is_empty() {
            self.part.done(Work::Read, self.name, offset, buffer.len() as u64);
        }
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        if self.part.devices.is_some() || !self.file.try_read_at(offset, buffer)? {
            return Ok(false);
        }
        if !buffer.is_empty() {
            self.part.done(Work::Read, self.name, offset, buffer.len() as u64);
        }
        Ok(true)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write_at(offset, data)?;
        if !data.is_empty() {
            self.part.done(Work::Write, self.name, offset, data.len() as u64);
        }
        Ok(())
    }

    fn pretend_write(&self, offset: u64, length: u64) -> Result<()> {
        self.file.pretend_write(offset, length)?;
        if length > 0 {
            self.part.done(Work::Write, self.name, offset, length);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        self.part.done(Work::Sync, self.name, 0, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
