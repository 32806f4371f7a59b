//! `onefold fs`: creates, lists, resizes, copies and deletes filesystems.

use crate::cli::{FsClone, FsCreate, FsDelete, FsList, FsRename, FsResize, FsRollback, FsSnapshot, Quota};
use crate::failure::{Exit, Failure, Result};
use crate::output::Table;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, local_time, printable, size, utc_time};
use onefold_fs::{FilesystemInfo, Filesystems, FsError};
use onefold_fuse::is_mounted;
use onefold_ground::words::nearest;
use onefold_upkeep::Monitor;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How long the end of an unmounted filesystem may take.
const WHILE_ENDING: Duration = Duration::from_secs(10);
/// How often somebody looks whether it is over.
const STEP: Duration = Duration::from_millis(20);

/// Returns the filesystem of a name. If there is none, the error suggests the nearest name.
pub(super) fn chosen(all: &Filesystems, name: &str) -> Result<FilesystemInfo> {
    let list = all.list();
    if let Some(info) = list.iter().find(|info| info.name == name) {
        return Ok(info.clone());
    }
    let failure = Failure::failed(format!("there is no filesystem {}", printable(name.as_bytes())));
    Err(match nearest(name, list.iter().map(|info| info.name.as_str())) {
        Some(near) => failure.advise(format!("did you mean {}? `onefold fs list` lists the filesystems", printable(near.as_bytes()))),
        None => failure.advise("`onefold fs list` lists the filesystems, `onefold fs create` makes one"),
    })
}

/// Does something with a filesystem that nobody has open.
fn on_unused<T>(session: &Session<'_>, name: &str, work: impl Fn() -> onefold_fs::Result<T>) -> Result<T> {
    let until = Instant::now() + WHILE_ENDING;
    loop {
        let error = match work() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let FsError::InUse { .. } = &error else { return Err(error.into()) };
        let places = session.daemon().map_or_else(Vec::new, |daemon| daemon.mounts.places_of(name));
        if let Some(place) = places.iter().find(|place| is_mounted(place)) {
            let name = printable(name.as_bytes());
            return Err(Failure::failed(format!("filesystem {name} is mounted at {}", place.display()))
                .advise(format!("unmount it first: `umount {}`", place.display())));
        }
        // It was unmounted, and its end takes a moment.
        if session.daemon().is_none() || Instant::now() > until {
            return Err(error.into());
        }
        std::thread::sleep(STEP);
    }
}

impl StoreCommand for FsCreate {
    store_command!("fs create", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let Quota(quota_bytes) = self.size;
        session.filesystems()?.create(&self.name, quota_bytes, self.owner)?;
        let mut output = session.output();
        if self.format.json {
            output.json(&json!({"name": self.name, "kind": "filesystem", "quota": quota_bytes}))?;
        } else if !session.quiet {
            let most = quota_bytes.map_or_else(String::new, |bytes| format!(" of {}", size(bytes)));
            output.line(format_args!("made filesystem {}{most}", printable(self.name.as_bytes())))?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

impl StoreCommand for FsList {
    store_command!("fs list", reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let all = session.filesystems()?;
        let list = all.list();
        let numbers: HashSet<u32> = list.iter().map(|info| info.number).collect();
        let places = |name: &str| session.daemon().map_or_else(Vec::new, |daemon| daemon.mounts.places_of(name));
        let mut output = session.output();
        if self.format.json {
            let mut items = Vec::new();
            for info in &list {
                // In a daemon, others may delete filesystems meanwhile.
                let usage = all.usage(&info.name).ok();
                items.push(json!({
                    "name": info.name,
                    "kind": info.kind.name(),
                    "read_only": info.is_read_only,
                    "quota": usage.and_then(|used| used.quota_bytes),
                    "used_bytes": usage.map(|used| used.used_bytes),
                    "files": usage.map(|used| used.inodes),
                    "origin": info.origin.as_ref().map(|origin| &origin.name),
                    "origin_exists": info.origin.as_ref().map(|origin| numbers.contains(&origin.number)),
                    "mounted": places(&info.name).iter().map(|place| place.display().to_string()).collect::<Vec<_>>(),
                    "created": utc_time(info.created_ns),
                }));
            }
            output.json(&Value::from(items))?;
        } else if !list.is_empty() {
            let mut table = Table::new(&["name", "kind", ">files", ">used", ">of", "created", "from", "mounted at"]);
            for info in &list {
                let usage = all.usage(&info.name).unwrap_or_default();
                let mounted: Vec<String> = places(&info.name).iter().map(|place| place.display().to_string()).collect();
                table.row(vec![
                    printable(info.name.as_bytes()),
                    kind(info),
                    crate::units::number(usage.inodes),
                    size(usage.used_bytes),
                    usage.quota_bytes.map_or_else(String::new, size),
                    local_time(info.created_ns),
                    info.origin.as_ref().map_or_else(String::new, |origin| {
                        let is_deleted = if numbers.contains(&origin.number) { "" } else { " (deleted)" };
                        format!("{}{is_deleted}", printable(origin.name.as_bytes()))
                    }),
                    mounted.join(" "),
                ]);
            }
            table.print(&mut output)?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

fn kind(info: &FilesystemInfo) -> String {
    let name = info.kind.name();
    if info.is_read_only && info.kind != onefold_blocks::SpaceKind::FilesystemSnapshot {
        format!("{name}, read-only")
    } else {
        name.to_owned()
    }
}

impl StoreCommand for FsResize {
    store_command!("fs resize", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let all = session.filesystems()?;
        chosen(all, &self.name)?;
        let Quota(quota_bytes) = self.size;
        all.set_quota(&self.name, quota_bytes)?;
        if !session.quiet {
            let most = quota_bytes.map_or_else(|| "as much as the store has room for".to_owned(), size);
            session.note(format_args!("the files of {} may have {most}", printable(self.name.as_bytes())));
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for FsRename {
    store_command!("fs rename", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let all = session.filesystems()?;
        chosen(all, &self.name)?;
        all.rename(&self.name, &self.new)?;
        if !session.quiet {
            session.note(format_args!("filesystem {} is now {}", printable(self.name.as_bytes()), printable(self.new.as_bytes())));
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for FsSnapshot {
    store_command!("fs snapshot", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let all = session.filesystems()?;
        chosen(all, &self.filesystem)?;
        all.snapshot(&self.filesystem, &self.name)?;
        made(session, self.format.json, &all.info(&self.name)?)
    }
}

impl StoreCommand for FsClone {
    store_command!("fs clone", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let all = session.filesystems()?;
        chosen(all, &self.source)?;
        all.make_clone(&self.source, &self.name, self.read_only)?;
        made(session, self.format.json, &all.info(&self.name)?)
    }
}

fn made(session: &Session<'_>, json: bool, new: &FilesystemInfo) -> Result<Exit> {
    let origin = new.origin.as_ref().map_or("", |origin| &origin.name);
    let mut output = session.output();
    if json {
        output.json(&json!({"name": new.name, "kind": new.kind.name(), "origin": origin, "read_only": new.is_read_only}))?;
    } else if !session.quiet {
        let (name, origin) = (printable(new.name.as_bytes()), printable(origin.as_bytes()));
        output.line(format_args!("made {} {name} of {origin}", new.kind.name()))?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

impl StoreCommand for FsRollback {
    store_command!("fs rollback", waits, writes, ends_early);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let all = session.filesystems()?;
        let (meant, snapshot) = (chosen(all, &self.filesystem)?, chosen(all, &self.snapshot)?);
        drop(session.store.engine.permit_deletion("roll filesystems back")?);
        on_unused(session, &self.filesystem, || all.check_unused(&self.filesystem))?;
        let (name, of) = (printable(self.filesystem.as_bytes()), printable(self.snapshot.as_bytes()));
        let made = local_time(snapshot.created_ns);
        session.confirm(self.yes, format_args!("all that was changed in filesystem {name} since snapshot {of} of {made} is gone"))?;
        check_still_meant(all, &meant)?;
        check_still_meant(all, &snapshot)?;
        on_unused(session, &self.filesystem, || all.rollback(&self.filesystem, &self.snapshot))?;
        let rest = clean_up(session)?;
        if !session.quiet {
            session.note(format_args!("filesystem {name} is now as snapshot {of} is{rest}"));
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for FsDelete {
    store_command!("fs delete", waits, writes, ends_early);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let all = session.filesystems()?;
        let meant = chosen(all, &self.name)?;
        drop(session.store.engine.permit_deletion("delete filesystems")?);
        on_unused(session, &self.name, || all.check_unused(&self.name))?;
        let derived = all.list().iter().filter(|other| other.origin.as_ref().is_some_and(|origin| origin.number == meant.number)).count();
        let stay = match derived {
            0 => String::new(),
            count => format!("; {} made of it", counted(count as u64, "filesystem stays that was", "filesystems stay that were")),
        };
        // Whoever sees that it is damaged may delete it.
        let used = all.usage(&self.name).unwrap_or_default();
        // A root alone is no loss.
        let is_confirmed = self.yes || used.inodes == 1;
        let (files, bytes) = (counted(used.inodes.saturating_sub(1), "file", "files"), size(used.used_bytes));
        let (name, made) = (printable(self.name.as_bytes()), local_time(meant.created_ns));
        session.confirm(
            is_confirmed,
            format_args!(
                "{} {name}, made {made}, is deleted for good: {files}, {bytes}, as far as nobody else has them{stay}",
                meant.kind.name()
            ),
        )?;
        check_still_meant(all, &meant)?;
        on_unused(session, &self.name, || all.delete(&self.name))?;
        let rest = clean_up(session)?;
        if !session.quiet {
            session.note(format_args!("deleted {} {name}{rest}", meant.kind.name()));
        }
        Ok(Exit::Done)
    }
}

/// Returns an error if a name now means another filesystem: the user was asked about the earlier one.
fn check_still_meant(all: &Filesystems, meant: &FilesystemInfo) -> Result<()> {
    if chosen(all, &meant.name)?.number == meant.number {
        return Ok(());
    }
    let name = printable(meant.name.as_bytes());
    Err(Failure::failed(format!("filesystem {name} was changed or renamed meanwhile; nothing was done"))
        .advise("check the filesystem, then run the command again"))
}

/// Drops unneeded data, unless a daemon does that.
fn clean_up(session: &Session<'_>) -> Result<&'static str> {
    let done = session.is_in_daemon() || session.volumes()?.resume_deletions(&|| !session.is_cancelled())?;
    Ok(if done { "" } else { "; the rest of its data is dropped by the next `onefold serve` or `onefold fs delete`" })
}
