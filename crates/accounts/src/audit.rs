//! The access log: what clients did, for people and programs that look for misuse.
//!
//! `access.log` has one JSON object on each line. Only its owner may read it. When it has 64 MiB it becomes
//! `access.log.1`, the former one of that name `access.log.2`, and so on to 5.
//!
//! Nothing of it stops the server. If an entry cannot be written, it is dropped, and a warning counts the dropped ones.
//! The next entry that can be written has an entry of the number dropped before it.

use super::throttle::Peer;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Name of the file.
const NAME: &str = "access.log";
/// Length from which another file is begun.
const FULL_BYTES: u64 = 64 << 20;
/// Former files that are kept.
const KEPT: u32 = 5;
/// Longest text of a field that a client chooses, bytes.
const TEXT_BYTES: usize = 256;
/// Longest details, bytes.
const DETAILS_BYTES: usize = 16 << 10;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A client logged in.
    Login,
    /// A login, or something that a client wanted, was refused. The details have a `reason`.
    Refused,
    /// A session ended.
    Logout,
    /// A backup was begun.
    BackupBegin,
    /// A backup was committed.
    BackupCommit,
    /// A backup was given up.
    BackupAbort,
    /// A backup was read.
    Read,
    /// Backups were forgotten.
    Forget,
    /// Space was freed.
    Prune,
    /// Protection of backups was changed.
    Protect,
    /// An account was created.
    AccountCreate,
    /// Permissions, limits or certificates of an account were changed.
    AccountSet,
    /// An account got a new secret.
    AccountRotate,
    /// An account was locked.
    AccountLock,
    /// An account was unlocked.
    AccountUnlock,
    /// An account was deleted.
    AccountDelete,
    /// Entries are missing here. The details have their number as `entries`.
    Dropped,
}

impl Event {
    /// Returns whether it must be on the disk before it is answered: what it tells of cannot be undone.
    fn is_deletion(self) -> bool {
        matches!(self, Event::Forget | Event::Prune | Event::AccountDelete)
    }
}

/// An entry. Whoever makes one puts no secret into it.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// What happened.
    pub event: Event,
    /// Who did it, as the client says or is known.
    pub account: Option<&'a str>,
    /// From where.
    pub peer: Option<Peer>,
    /// In which session.
    pub session: Option<&'a str>,
    /// With which backup: its name or its id.
    pub backup: Option<&'a str>,
    /// More, as an object; null: nothing.
    pub details: Value,
}

impl Entry<'_> {
    /// Returns an entry of an event and nothing else.
    pub fn of(event: Event) -> Entry<'static> {
        Entry { event, account: None, peer: None, session: None, backup: None, details: Value::Null }
    }
}

/// An entry as it is written.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: Event,
    account: Option<&'a str>,
    peer: Option<String>,
    session: Option<&'a str>,
    backup: Option<&'a str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    details: &'a Value,
}

/// The open log.
#[derive(Debug)]
pub struct AccessLog {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None`: it could not be opened.
    file: Option<File>,
    length_bytes: u64,
    dropped: u64,
    full_bytes: u64,
}

impl AccessLog {
    /// Opens or creates the log in a directory, which must exist. Errors: the file cannot be opened, or is no file.
    pub fn open(directory: &Path) -> io::Result<AccessLog> {
        let path = directory.join(NAME);
        let (file, length_bytes) = open(&path)?;
        let state = State { file: Some(file), length_bytes, dropped: 0, full_bytes: FULL_BYTES };
        Ok(AccessLog { path, state: Mutex::new(state) })
    }

    /// Writes an entry. An entry of a deletion is on the disk on return.
    pub fn write(&self, entry: &Entry<'_>) {
        let line = encode(entry);
        let mut state = self.state.lock();
        if let Err(error) = state.put(&self.path, &line, entry.event.is_deletion()) {
            state.dropped += 1;
            // Not for each: the log of the server would fill the same disk.
            if state.dropped.is_power_of_two() {
                tracing::warn!(path = %self.path.display(), dropped = state.dropped, %error, "entries of the access log are dropped");
            }
        }
    }
}

impl State {
    fn put(&mut self, path: &Path, line: &[u8], is_synced: bool) -> io::Result<()> {
        if (self.file.is_none() || self.length_bytes >= self.full_bytes)
            && let Err(error) = self.begin_another(path)
            // If a full one cannot be moved, it grows: better than to lose entries.
            && (self.file.is_none() || self.length_bytes >= 2 * self.full_bytes)
        {
            return Err(error);
        }
        if self.dropped > 0 {
            let note = Entry { details: serde_json::json!({"entries": self.dropped}), ..Entry::of(Event::Dropped) };
            self.append(&encode(&note))?;
            self.dropped = 0;
        }
        self.append(line)?;
        match &self.file {
            Some(file) if is_synced => file.sync_data(),
            _ => Ok(()),
        }
    }

    /// Appends a line, or nothing.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let done = file.write_all(line);
        if done.is_err() {
            // No half of a line: the next one would be joined to it.
            if file.set_len(self.length_bytes).is_err() {
                self.file = None;
            }
            return done;
        }
        self.length_bytes += line.len() as u64;
        Ok(())
    }

    /// Opens the file, after a move of a full one.
    fn begin_another(&mut self, path: &Path) -> io::Result<()> {
        if self.length_bytes >= self.full_bytes {
            let name = |number: u32| match number {
                0 => path.to_owned(),
                number => path.with_file_name(format!("{NAME}.{number}")),
            };
            for number in (0..KEPT).rev() {
                match std::fs::rename(name(number), name(number + 1)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        // Whatever comes of the next one, the full one is closed.
        (self.file, self.length_bytes) = (None, 0);
        let (file, length_bytes) = open(path)?;
        (self.file, self.length_bytes) = (Some(file), length_bytes);
        Ok(())
    }
}

/// Opens a log for appending, and ends a line that a crash cut short.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    // Neither a link nor a pipe in its place is followed or waited for.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut file = options.read(true).append(true).create(true).mode(0o600).custom_flags(flags.bits() as i32).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    if rustix::process::geteuid().is_root()
        && let Some(directory) = path.parent()
    {
        // Another user may run the server next time.
        let owner = directory.metadata()?;
        if owner.uid() != found.uid() {
            std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
    }
    if found.permissions().mode() & 0o7777 != 0o600 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    let mut length_bytes = found.len();
    let mut last = [b'\n'];
    if length_bytes > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
        length_bytes += 1;
    }
    Ok((file, length_bytes))
}

fn encode(entry: &Entry<'_>) -> Vec<u8> {
    let too_long = serde_json::json!({"left_out": "too long"});
    let is_short = entry.details.is_null() || serde_json::to_string(&entry.details).is_ok_and(|text| text.len() <= DETAILS_BYTES);
    let line = Line {
        time: utc(SystemTime::now()),
        event: entry.event,
        account: entry.account.map(short),
        peer: entry.peer.map(|peer| peer.to_string()),
        session: entry.session.map(short),
        backup: entry.backup.map(short),
        details: if is_short { &entry.details } else { &too_long },
    };
    // A value of texts and numbers always has JSON.
    let mut out = serde_json::to_vec(&line).unwrap_or_default();
    out.push(b'\n');
    out
}

/// Returns the beginning of a text.
fn short(text: &str) -> &str {
    let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Formats a time in UTC as in RFC 3339.
fn utc(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "1970-01-01T00:00:00Z".to_owned(), |time| format!("{time:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn log() -> (tempfile::TempDir, AccessLog) {
        let directory = tempfile::tempdir().unwrap();
        let log = AccessLog::open(directory.path()).unwrap();
        (directory, log)
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
    }

    #[test]
    fn an_entry_is_one_line_with_its_fields_and_control_characters_are_escaped() {
        let (directory, log) = log();
        let peer = Some(Peer::Address([10, 0, 0, 1].into()));
        log.write(&Entry {
            account: Some("ann\n\x1b[31m"),
            peer,
            session: Some("7"),
            backup: Some("ann/x"),
            ..Entry::of(Event::BackupCommit)
        });
        log.write(&Entry { details: json!({"reason": "locked"}), ..Entry::of(Event::Refused) });
        let path = directory.path().join(NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains('\x1b') && text.contains(r#""account":"ann\n\u001b[31m""#), "{text}");
        let lines = lines(&path);
        assert_eq!(
            (&lines[0]["event"], &lines[0]["peer"], &lines[0]["backup"]),
            (&json!("backup-commit"), &json!("10.0.0.1"), &json!("ann/x"))
        );
        assert_eq!((&lines[1]["details"]["reason"], &lines[1]["account"]), (&json!("locked"), &Value::Null));
        let time = lines[0]["time"].as_str().unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok() && time.ends_with('Z') && time.len() == 27, "{time}");
    }

    #[test]
    fn nobody_else_can_read_the_log_and_it_goes_on_where_it_ended() {
        let (directory, log) = log();
        let path = directory.path().join(NAME);
        log.write(&Entry::of(Event::Login));
        drop(log);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"time\":\"2026").unwrap();
        let log = AccessLog::open(directory.path()).unwrap();
        log.write(&Entry::of(Event::Forget));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        let whole: Vec<bool> = text.lines().map(|line| serde_json::from_str::<Value>(line).is_ok()).collect();
        assert_eq!(whole, [true, false, true], "what a crash cut short spoils no other line");
    }

    #[test]
    fn a_full_log_becomes_the_first_of_five_former_ones() {
        let (directory, log) = log();
        log.state.lock().full_bytes = 300;
        for number in 0..40 {
            log.write(&Entry { details: json!({"number": number}), ..Entry::of(Event::Login) });
        }
        let mut names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["access.log", "access.log.1", "access.log.2", "access.log.3", "access.log.4", "access.log.5"]);
        let numbers = |name: &str| {
            lines(&directory.path().join(name)).iter().map(|line| line["details"]["number"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        let all: Vec<u64> = ["access.log.5", "access.log.4", "access.log.3", "access.log.2", "access.log.1", "access.log"]
            .into_iter()
            .flat_map(numbers)
            .collect();
        assert_eq!(all, (40 - all.len() as u64..40).collect::<Vec<_>>(), "in order, and none is missing in between");
    }

    #[test]
    fn a_full_log_that_cannot_be_moved_grows_to_twice_its_length() {
        let (directory, log) = log();
        log.state.lock().full_bytes = 300;
        (4..=5).for_each(|number| std::fs::create_dir_all(directory.path().join(format!("access.log.{number}/x"))).unwrap());
        (0..40).for_each(|_| log.write(&Entry::of(Event::Login)));
        let (written, dropped) = (lines(&directory.path().join(NAME)).len() as u64, log.state.lock().dropped);
        assert!(dropped > 0 && written + dropped == 40, "{written}");
        assert!((600..800).contains(&directory.path().join(NAME).metadata().unwrap().len()));
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_the_log_says_so_later() {
        let (directory, log) = log();
        log.write(&Entry::of(Event::Login));
        for _ in 0..3 {
            log.state.lock().file = Some(OpenOptions::new().write(true).open("/dev/full").unwrap());
            log.write(&Entry::of(Event::Read));
        }
        assert_eq!(log.state.lock().dropped, 3);
        log.write(&Entry::of(Event::Logout));
        let lines = lines(&directory.path().join(NAME));
        let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
        assert_eq!((events, &lines[1]["details"]["entries"]), (vec!["login", "dropped", "logout"], &json!(3)));
    }

    #[test]
    fn a_link_or_a_pipe_in_its_place_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", directory.path().join(NAME)).unwrap();
        assert!(AccessLog::open(directory.path()).is_err());
        std::fs::remove_file(directory.path().join(NAME)).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, directory.path().join(NAME), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(AccessLog::open(directory.path()).is_err());
    }

    #[test]
    fn long_texts_of_clients_are_cut() {
        let (directory, log) = log();
        let long = "ä".repeat(100_000);
        log.write(&Entry { account: Some(&long), details: json!({"x": long}), ..Entry::of(Event::Refused) });
        let lines = lines(&directory.path().join(NAME));
        assert_eq!(lines[0]["account"].as_str().unwrap().len(), TEXT_BYTES);
        assert_eq!(lines[0]["details"]["left_out"], "too long");
    }
}
