//! Measurements of the operating system: processor time, memory, disk space, the machine.

use crate::results::{Machine, Taken};
use crate::spec::RESERVE_FILE;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the seconds of a processor-time clock.
fn cpu_s(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the processor time of this process.
pub(super) fn process_cpu_s() -> f64 {
    cpu_s(ClockId::ProcessCPUTime)
}

/// Returns the processor time of this thread.
pub(super) fn thread_cpu_s() -> f64 {
    cpu_s(ClockId::ThreadCPUTime)
}

/// Resets the peak of resident memory. If the system does not allow that, [`peak_memory_bytes`] covers the whole life
/// of the process.
pub(super) fn forget_peak_memory() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the peak of resident memory; 0 if the system does not report it.
pub(super) fn peak_memory_bytes() -> u64 {
    kib_of("/proc/self/status", "VmHWM:").unwrap_or(0) << 10
}

/// Returns the memory available without swapping. `None`: the system does not report it.
pub(super) fn available_memory_bytes() -> Option<u64> {
    Some(kib_of("/proc/meminfo", "MemAvailable:")? << 10)
}

/// Returns the number after a word at the beginning of a line.
fn kib_of(path: &str, word: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the disk space of the files below a directory: blocks, not lengths. Files that vanish meanwhile are left
/// out.
pub(super) fn disk_bytes(directory: &Path) -> u64 {
    taken(directory).bytes
}

/// Returns the disk space of a store, in the same way, without its reserve: that is there for deleting on a full disk.
pub(super) fn store_bytes(directory: &Path) -> u64 {
    entries(directory).filter(|entry| entry.file_name() != RESERVE_FILE).map(|entry| of_entry(&entry).bytes).sum()
}

/// Returns what the files below a directory take, in the same way.
pub(super) fn taken(directory: &Path) -> Taken {
    let all = entries(directory).map(|entry| of_entry(&entry));
    all.fold(Taken::default(), |sum, one| Taken { files: sum.files + one.files, bytes: sum.bytes + one.bytes })
}

fn entries(directory: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(directory).into_iter().flatten().flatten()
}

fn of_entry(entry: &fs::DirEntry) -> Taken {
    match entry.metadata() {
        Ok(found) if found.is_dir() => taken(&entry.path()),
        Ok(found) => Taken { files: 1, bytes: found.blocks() * 512 },
        Err(_) => Taken::default(),
    }
}

/// Returns the machine, and the file system of a directory.
pub(super) fn machine(directory: &Path) -> Machine {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let system = rustix::system::uname();
    let words = [system.sysname(), system.release(), system.machine()].map(|word| word.to_string_lossy().into_owned());
    Machine {
        processor: processor.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: kib_of("/proc/meminfo", "MemTotal:").unwrap_or(0) << 10,
        system: words.join(" "),
        file_system: file_system(directory),
    }
}

/// Returns the kind of file system of a directory, such as `ext4`.
pub(super) fn file_system(directory: &Path) -> String {
    let unknown = || "unknown".to_owned();
    let Ok(directory) = fs::canonicalize(directory) else { return unknown() };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        // Blanks in mount points are written as octal numbers.
        let place = place.split(' ').nth(4)?.replace("\\040", " ");
        directory.starts_with(&place).then(|| (place.len(), kind.split(' ').next().unwrap_or_default().to_owned()))
    };
    // If several file systems are mounted at one place, the last one counts.
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map_or_else(unknown, |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_what_is_asked_for() {
        let (process, thread) = (process_cpu_s(), thread_cpu_s());
        assert!(thread > 0.0 && process >= thread, "{process} {thread}");
        forget_peak_memory();
        assert!(peak_memory_bytes() > 1 << 20);
        assert!(available_memory_bytes() > Some(1 << 20));
        let machine = machine(Path::new("/proc"));
        assert!(machine.processors > 0 && machine.memory_bytes > 1 << 20);
        assert_eq!((machine.file_system.as_str(), machine.system.starts_with("Linux ")), ("proc", true));
    }

    #[test]
    fn room_on_disk_is_counted_in_blocks() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        let before = disk_bytes(directory.path());
        fs::write(directory.path().join("below/full"), vec![7; 1 << 20]).unwrap();
        fs::File::create(directory.path().join("hole")).unwrap().set_len(1 << 30).unwrap();
        let grown = disk_bytes(directory.path()) - before;
        assert!((1 << 20..2 << 20).contains(&grown), "{grown}");
    }
}
