//! `onefold backup`.

mod filesystem;

use super::place::{self, Place, Wanted};
use crate::cli::{Backup, BackupFs};
use crate::console::Terminal;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};
use crate::progress::{Shown, Watch, problems_json, summary};
use crate::talk::Talk;
use crate::units::{counted, duration, number, printable, rate, size, times_less, utc_time};
use onefold_catalog::{BackupId, CatalogError, Statistics};
use onefold_client::{BackupOptions, BackupOutcome, ClientError, Parent, Problem, Rehearsal, Severity};
use onefold_engine::Mode;
use onefold_remote::transport::{ChannelError, codes};
use rustix::fd::AsFd;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most bytes of a list of names or patterns.
const LIST_BYTES: u64 = 256 << 20;
/// Most paths that an error names.
const NAMED: usize = 5;

/// The first pause before a backup begins again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Returns the request that backs up a filesystem of the store.
pub fn of_filesystem(options: &Backup, name: &str) -> BackupFs {
    BackupFs {
        store: options.store.clone(),
        fs: name.to_owned(),
        name: options.name().to_owned(),
        tags: sorted(options.tags.clone()),
        host: host(),
        user: user(),
        format: options.format,
    }
}

/// Backs up.
pub fn run(options: &Backup, talk: Talk) -> Result<Exit> {
    let client_options = client_options(options)?;
    refuse_only_missing(&[&client_options.paths[..], &client_options.listed_paths].concat(), options.stdin.is_some())?;
    let interrupt = Interrupt::watch()?;
    let mut server = place::server(&options.store.directory, &options.store.connection)?;
    let mut place = match &mut server {
        Some(server) => Place::There(server.connect(&Terminal::stopped_by(talk, interrupt.clone()))?),
        None => {
            let mode = if options.dry_run { Mode::ReadOnly } else { Mode::ReadWrite };
            let wanted = Wanted { directory: &options.store.directory, mode, command: "backup", wait: options.store.wait };
            Place::open(&wanted, &interrupt, talk, &|text| note(text))?
        }
    };
    let began = Instant::now();
    let mut pause = PAUSES.0;
    let (outcome, watch) = loop {
        let (made, watch) = attempt(options, client_options.clone(), &place, &interrupt, talk);
        watch.finish();
        let error = match made {
            Ok(outcome) => break (outcome, watch),
            Err(error) => error,
        };
        // Keeps what was stored so far, whatever happened: a repeated backup is then quick.
        let closed = place.close();
        let Some(server) = server.as_mut().filter(|server| error.is_lost && options.stdin.is_none() && !server.retry().is_zero()) else {
            closed?;
            return Err(error.failure);
        };
        // The time counts from the loss of the connection: a long backup has as much of it as a short one.
        let until = Instant::now() + server.retry();
        if !talk.quiet {
            note(format_args!("{}; beginning again", error.failure.message));
        }
        if interrupt.sleep(pause) {
            return Err(stopped());
        }
        pause = (pause * 2).min(PAUSES.1);
        tracing::debug!("the first attempt began {} s ago", began.elapsed().as_secs());
        place = Place::There(server.connect_again(until, &interrupt)?);
    };
    place.close()?;
    let mut output = Output::new();
    let problems = watch.problems();
    let told = Told { name: options.name(), tags: sorted(options.tags.clone()), problems: &problems };
    if options.format.json {
        output.json(&to_json(&told, &outcome))?;
    } else if !talk.quiet {
        print(&mut output, &told, &outcome)?;
    }
    output.finish()?;
    Ok(if outcome.statistics().errors == 0 { Exit::Done } else { Exit::Partial })
}

/// Why an attempt failed.
struct Failed {
    failure: Failure,
    /// The session with the server is lost.
    is_lost: bool,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed { failure, is_lost: false }
    }
}

fn stopped() -> Failure {
    Failure::interrupted("stopped by a signal: no backup was made").advise("run it again: the data stored so far makes it faster")
}

fn attempt(
    options: &Backup,
    mut client_options: BackupOptions,
    place: &Place,
    interrupt: &Interrupt,
    talk: Talk,
) -> (std::result::Result<Outcome, Failed>, Watch) {
    let shown = Shown::of(talk, options.progress, options.format.json);
    let watch = Watch::new(talk, interrupt.clone(), shown);
    let _watching = place.watch(interrupt, "stopped by a signal: no backup was made");
    let made = make(options, &mut client_options, place, &watch, talk);
    (made, watch)
}

fn make(
    options: &Backup,
    client_options: &mut BackupOptions,
    place: &Place,
    watch: &Watch,
    talk: Talk,
) -> std::result::Result<Outcome, Failed> {
    if let Some(doubt) = place.doubt(talk) {
        watch.warn(&doubt);
    }
    let say = |text: &str| {
        if !talk.quiet {
            note(text)
        }
    };
    let parent = options.parent.as_ref().filter(|parent| *parent != "none");
    // Found before, and kept until it is compared.
    let parent = parent.map(|parent| place.find(parent, &say)).transpose()?;
    if let Some(parent) = &parent {
        client_options.parent = Parent::This(parent.backup.id);
    }
    let repository = place.repository();
    let made = if options.dry_run {
        onefold_client::rehearse(&*repository, client_options, watch).map(Outcome::Rehearsed)
    } else if let Some(path) = &options.stdin {
        let input = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))?;
        onefold_client::backup_stream(&*repository, client_options, &input, path, watch).map(|made| Outcome::Made(Box::new(made)))
    } else {
        onefold_client::backup(&*repository, client_options, watch).map(|made| Outcome::Made(Box::new(made)))
    };
    made.map_err(|error| match error {
        ClientError::Cancelled => stopped().into(),
        error => Failed { is_lost: is_lost(&error), failure: Failure::from(error) },
    })
}

/// Returns whether the session with a server ended, so that another one may do.
fn is_lost(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Connection(
            ChannelError::SessionLost
                | ChannelError::LinkLost { .. }
                | ChannelError::Ended { code: codes::SHUTDOWN, .. }
                | ChannelError::Cancelled { code: codes::SHUTDOWN, .. }
        ) | ClientError::Catalog(CatalogError::Unreachable { .. })
            | ClientError::Stale
    )
}

/// The result, or what it would be.
enum Outcome {
    Made(Box<BackupOutcome>),
    Rehearsed(Rehearsal),
}

impl Outcome {
    fn statistics(&self) -> &Statistics {
        match self {
            Outcome::Made(made) => &made.backup.statistics,
            Outcome::Rehearsed(rehearsed) => &rehearsed.statistics,
        }
    }

    fn backup(&self) -> Option<&onefold_catalog::Backup> {
        match self {
            Outcome::Made(made) => Some(&made.backup),
            Outcome::Rehearsed(_) => None,
        }
    }

    fn parent(&self) -> Option<BackupId> {
        match self {
            Outcome::Made(made) => made.parent,
            Outcome::Rehearsed(rehearsed) => rehearsed.parent,
        }
    }

    fn warnings(&self) -> u64 {
        match self {
            Outcome::Made(made) => made.warnings,
            Outcome::Rehearsed(rehearsed) => rehearsed.warnings,
        }
    }
}

fn client_options(options: &Backup) -> Result<BackupOptions> {
    let mut excludes = options.exclude.clone();
    for file in &options.exclude_from {
        let text = read_list(file, "--exclude-from")?;
        let text =
            String::from_utf8(text).map_err(|_| Failure::cannot_run(format!("--exclude-from {}: it is not UTF-8", file.display())))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        excludes.extend(lines.map(str::to_owned));
    }
    let mut listed_paths = Vec::new();
    for file in &options.files_from {
        let text = read_list(file, "--files-from")?;
        let names = text.split(|byte| *byte == if options.null { 0 } else { b'\n' }).filter(|name| !name.is_empty());
        listed_paths.extend(names.map(|name| PathBuf::from(OsStr::from_bytes(name))));
    }
    if !options.files_from.is_empty() && listed_paths.is_empty() && options.paths.is_empty() {
        return Err(Failure::cannot_run("nothing to back up: --files-from lists nothing"));
    }
    Ok(BackupOptions {
        name: options.name().to_owned(),
        host: host(),
        user: user(),
        paths: options.paths.clone(),
        listed_paths,
        tags: sorted(options.tags.clone()),
        excludes,
        exclude_caches: options.exclude_caches,
        exclude_if_present: options.exclude_if_present.iter().map(|name| name.as_bytes().to_vec()).collect(),
        one_file_system: options.one_file_system,
        force_read: options.force_read,
        read_special: options.read_special,
        parent: if options.parent.is_some() { Parent::None } else { Parent::Newest },
        store_directory: place::local_directory(&options.store.directory),
    })
}

/// Reads a file of names or patterns; `-` is standard input.
fn read_list(path: &Path, option: &str) -> Result<Vec<u8>> {
    let wrong = |why: String| Failure::cannot_run(format!("{option} {}: {why}", path.display()));
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(path).map_err(|error| wrong(error.to_string()))?)
    };
    let mut text = Vec::new();
    let read = input.take(LIST_BYTES + 1).read_to_end(&mut text).map_err(|error| wrong(error.to_string()))?;
    if read as u64 > LIST_BYTES {
        return Err(wrong(format!("it is longer than {}", size(LIST_BYTES))));
    }
    Ok(text)
}

fn sorted(mut tags: Vec<String>) -> Vec<String> {
    tags.sort();
    tags.dedup();
    tags
}

/// Reports missing paths and lets the rest be backed up. If all are missing, this is an error: nobody wants an empty
/// backup.
fn refuse_only_missing(paths: &[PathBuf], has_input: bool) -> Result<()> {
    let missing = |path: &PathBuf| std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    if has_input || !paths.iter().all(missing) {
        return Ok(());
    }
    let names: Vec<String> = paths.iter().take(NAMED).map(|path| printable(path.as_os_str().as_bytes())).collect();
    let more = if paths.len() > NAMED { format!(", and so on ({} paths)", number(paths.len() as u64)) } else { String::new() };
    Err(Failure::cannot_run(format!("nothing to back up: there is no {}{more}", names.join(", no ")))
        .advise("check the spelling of the paths"))
}

/// Returns the name of the machine.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns who makes the backup, for the list of backups: the user's name from the environment or the system, else the
/// number.
fn user() -> String {
    let number = rustix::process::getuid().as_raw().to_string();
    let named = ["USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok().filter(|name| !name.is_empty()));
    let known = || name_of_user(&std::fs::read_to_string("/etc/passwd").ok()?, &number);
    named.or_else(known).unwrap_or(number)
}

/// The name of a user in the text of `/etc/passwd`.
fn name_of_user(users: &str, number: &str) -> Option<String> {
    let mut lines = users.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1) == Some(number)).then(|| name.to_owned())
    })
}

fn time(backup: &onefold_catalog::Backup) -> Duration {
    let spent = backup.finished_ns.saturating_sub(backup.started_ns);
    Duration::from_nanos(u64::try_from(spent).unwrap_or(0))
}

/// What to say of a backup beside its outcome.
struct Told<'a> {
    name: &'a str,
    tags: Vec<String>,
    problems: &'a [Problem],
}

fn to_json(told: &Told<'_>, outcome: &Outcome) -> Value {
    let (backup, statistics) = (outcome.backup(), outcome.statistics());
    json!({
        "dry_run": matches!(outcome, Outcome::Rehearsed(_)),
        "id": backup.map(|backup| backup.id.to_string()),
        "name": told.name,
        "sequence": backup.map(|backup| backup.sequence),
        "tags": told.tags,
        "parent": outcome.parent().map(|id| id.to_string()),
        "started": backup.map(|backup| utc_time(backup.started_ns)),
        "finished": backup.map(|backup| utc_time(backup.finished_ns)),
        "seconds": backup.map(|backup| time(backup).as_secs_f64()),
        "files": statistics.files,
        "files_new": statistics.new_files,
        "files_changed": statistics.changed_files,
        "files_unmodified": statistics.unmodified_files,
        "directories": statistics.directories,
        "others": statistics.others,
        "logical_bytes": statistics.logical_bytes,
        "read_bytes": statistics.read_bytes,
        "added_bytes": statistics.added_bytes,
        "stored_bytes": statistics.stored_bytes,
        "errors": statistics.errors,
        "warnings": outcome.warnings(),
        "problems": problems_json(told.problems),
        "partial": statistics.errors > 0,
    })
}

fn print(output: &mut Output<'_>, told: &Told<'_>, outcome: &Outcome) -> Result<()> {
    let statistics = outcome.statistics();
    let name = printable(told.name.as_bytes());
    match outcome.backup() {
        Some(backup) => output.line(format_args!("backup {} of {name}", backup.id))?,
        None => output.line(format_args!("dry run of a backup of {name}: nothing was read or changed"))?,
    }
    output.line(format_args!(
        "  files    {} new, {} changed, {} unmodified, in {}",
        number(statistics.new_files),
        number(statistics.changed_files),
        number(statistics.unmodified_files),
        counted(statistics.directories, "directory", "directories"),
    ))?;
    match outcome.backup() {
        None => output.line(format_args!("  to read  {} of {}", size(statistics.read_bytes), size(statistics.logical_bytes)))?,
        Some(backup) => {
            let time = time(backup);
            output.line(format_args!(
                "  read     {} of {} in {}, {}",
                size(statistics.read_bytes),
                size(statistics.logical_bytes),
                duration(time),
                rate(statistics.read_bytes, time)
            ))?;
            let compressed = match statistics.added_bytes {
                0 => String::new(),
                _ => format!(", {} compressed", size(statistics.stored_bytes)),
            };
            // The tree of tiny files may take more space than their content. Then there is no saving to show.
            let ratio = times_less(statistics.logical_bytes, statistics.added_bytes).map_or_else(String::new, |times| format!(", {times}"));
            output.line(format_args!("  added    {}{compressed}{ratio}", size(statistics.added_bytes)))?;
        }
    }
    summary(told.problems, Severity::Warning).iter().try_for_each(|line| output.line(format_args!("  warning  {line}")))?;
    summary(told.problems, Severity::Error).iter().try_for_each(|line| output.line(format_args!("  error    {line}")))?;
    if statistics.errors > 0 {
        let what = counted(statistics.errors, "file or directory is missing", "files or directories are missing");
        output.line(format_args!("  PARTIAL  {what} from this backup"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name() {
        let users = "root:x:0:0:root:/root:/bin/bash\n:x:7::\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_of_user(users, "1000"), Some("ann".to_owned()));
        assert_eq!(name_of_user(users, "0"), Some("root".to_owned()));
        assert_eq!([name_of_user(users, "7"), name_of_user(users, "100")], [None, None]);
    }
}
