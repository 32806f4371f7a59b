//! Who holds a store (`docs/format.md` section 3).
//!
//! The operating system's lock on the file is what counts. It ends with the process, so a crash leaves nothing to clean
//! up. The line in the file is for people: errors use it to say which process is in the way.

use crate::GroundError;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest line that we read from a lock file.
pub(crate) const LINE_MAX_BYTES: usize = 4096;

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Holder {
    /// Process id on `host`.
    pub pid: u32,
    /// Name of the machine.
    pub host: String,
    /// What the process does: `serve`, `backup`.
    pub command: String,
    /// When it took the lock: UTC, RFC 3339, to the second.
    pub since: String,
}

impl Holder {
    /// Describes this process, as of now.
    pub fn this_process(command: &str) -> Holder {
        Holder { pid: std::process::id(), host: this_host(), command: command.to_owned(), since: utc(SystemTime::now()) }
    }

    /// Returns a process that holds a lock on the file with this device and inode, from Linux's list (proc(5),
    /// `/proc/locks`). Finds none on a file system that shows other device numbers for files than its own.
    pub(crate) fn of_lock_on(device: u64, inode: u64) -> Option<Holder> {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        // "1: FLOCK  ADVISORY  READ 1234 fe:00:5678 0 EOF"
        let file = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
        let pid = locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let is_ours = words.get(1) == Some(&"FLOCK") && *words.get(5)? == file;
            is_ours.then(|| words[4].parse::<u32>().ok()).flatten()
        })?;
        let process = std::path::Path::new("/proc").join(pid.to_string());
        let words = std::fs::read(process.join("cmdline")).ok()?;
        let mut words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        // The program without its directory, and its first argument: `onefold serve`.
        let program = words.next()?.rsplit('/').next()?.to_owned();
        let command = words.next().map_or_else(|| program.clone(), |first| format!("{program} {first}"));
        let since = utc(std::fs::metadata(&process).ok()?.modified().ok()?);
        Some(Holder { pid, host: this_host(), command: command.trim_end().escape_debug().to_string(), since })
    }

    /// Parses the line of a lock file. `None`: the line is empty or not valid.
    pub fn parse(line: &[u8]) -> Option<Holder> {
        serde_json::from_slice(line).ok()
    }

    /// Returns the line for the lock file.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("strings and a number always have a JSON form");
        line.push(b'\n');
        line
    }

    /// Returns whether the process is known to have ended. Then a crash or a departed reader left the line behind.
    pub fn has_ended(&self) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        self.host == this_host() && pid.is_none_or(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, process {} on {}, since {}", self.command, self.pid, self.host, self.since)
    }
}

fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Formats a time as RFC 3339 in UTC, to the second. It converts days to dates as in Howard Hinnant, "chrono-compatible
/// low-level date algorithms".
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years start in March, so that the leap day comes last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("{path} is locked by {}", .holder.as_ref().map_or_else(|| "another process".to_owned(), Holder::to_string))]
    Held {
        /// The lock file.
        path: String,
        /// The holder, as far as the file tells. If several share the lock, the last to come.
        holder: Option<Holder>,
    },
    /// The lock file could not be used.
    #[error(transparent)]
    Ground(#[from] GroundError),
}

/// A system lock, as a ground takes it. Dropping it releases the lock.
pub trait Held: Send + Sync {
    /// Returns whether the lock file's name still leads to the locked file.
    fn is_held(&self) -> crate::Result<bool>;
}

/// Holds a lock until it is dropped.
pub struct LockGuard(Box<dyn Held>);

impl LockGuard {
    /// Wraps a lock that ends when it is dropped.
    pub fn new(held: impl Held + 'static) -> LockGuard {
        LockGuard(Box::new(held))
    }

    /// Returns whether the lock still keeps others out. It does not if somebody removed or replaced the lock file: then
    /// others lock the new file of that name. Errors: the state of the lock is unknown.
    pub fn is_held(&self) -> crate::Result<bool> {
        self.0.is_held()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockGuard")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_line_is_read_as_written_and_garbage_names_nobody() {
        let holder = Holder { pid: 1, host: "h".into(), command: "serve".into(), since: "2026-01-01T00:00:00Z".into() };
        assert_eq!(holder.line(), b"{\"pid\":1,\"host\":\"h\",\"command\":\"serve\",\"since\":\"2026-01-01T00:00:00Z\"}\n");
        assert_eq!(Holder::parse(&holder.line()), Some(holder));
        assert_eq!(Holder::parse(b""), None);
        assert_eq!(Holder::parse(&[0; 100]), None);
    }

    #[test]
    fn this_process_has_not_ended() {
        assert!(!Holder::this_process("test").has_ended());
        assert!(Holder { pid: 0, ..Holder::this_process("test") }.has_ended());
        assert!(!Holder { pid: 0, host: "another".into(), ..Holder::this_process("test") }.has_ended());
    }
}
