//! `onefold volume snapshot`, `clone`, `rollback` and `diff`.

use super::{check_still_meant, clean_up};
use crate::cli::{VolumeClone, VolumeDiff, VolumeRollback, VolumeSnapshot};
use crate::commands::chosen::chosen_volume;
use crate::erasure::check_not_being_erased;
use crate::failure::{Exit, Result};
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, local_time, printable, size};
use onefold_engine::Mode;
use onefold_upkeep::Monitor;
use onefold_volume::{Volume, Volumes};
use serde_json::json;

impl StoreCommand for VolumeSnapshot {
    store_command!("volume snapshot", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let volumes = session.volumes()?;
        chosen_volume(volumes, &self.volume)?;
        let snapshot = volumes.snapshot(&self.volume, &self.name)?;
        made(session, self.format.json, "snapshot", &snapshot, &self.volume)
    }
}

impl StoreCommand for VolumeClone {
    store_command!("volume clone", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let volumes = session.volumes()?;
        chosen_volume(volumes, &self.source)?;
        let clone = volumes.make_clone(&self.source, &self.name, self.read_only)?;
        made(session, self.format.json, "clone", &clone, &self.source)
    }
}

fn made(session: &Session<'_>, json: bool, kind: &str, new: &Volume, origin: &str) -> Result<Exit> {
    let mut output = session.output();
    if json {
        let read_only = new.is_read_only();
        output.json(&json!({"name": new.name(), "kind": kind, "origin": origin, "read_only": read_only, "size": new.size()}))?;
    } else if !session.quiet {
        let (name, origin) = (new.name(), printable(origin.as_bytes()));
        output.line(format_args!("made {kind} {} of {origin}, {}", printable(name.as_bytes()), size(new.size())))?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

impl StoreCommand for VolumeRollback {
    store_command!("volume rollback", waits, writes, ends_early);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let volumes = session.volumes()?;
        let (number, of_snapshot) =
            (chosen_volume(volumes, &self.volume)?.info().number, chosen_volume(volumes, &self.snapshot)?.info().number);
        check_not_being_erased(&session.store.engine, volumes, &self.volume)?;
        drop(session.store.engine.permit_deletion("roll volumes back")?);
        let is_open = session.on_unused_volume(&self.volume, |_| Ok(()));
        if !self.force {
            is_open.clone()?;
        }
        if !self.yes {
            self.confirm(session, is_open.is_err())?;
        }
        let rollback = |volumes: &Volumes| {
            check_still_meant(volumes, &self.volume, number)?;
            check_still_meant(volumes, &self.snapshot, of_snapshot)?;
            check_not_being_erased(&session.store.engine, volumes, &self.volume)?;
            Ok(volumes.rollback(&self.volume, &self.snapshot)?)
        };
        if self.force { rollback(volumes) } else { session.on_unused_volume(&self.volume, rollback) }?;
        let rest = clean_up(session)?;
        if !session.quiet {
            let (volume, snapshot) = (printable(self.volume.as_bytes()), printable(self.snapshot.as_bytes()));
            session.note(format_args!("volume {volume} is now as snapshot {snapshot} is{rest}"));
        }
        Ok(Exit::Done)
    }
}

impl VolumeRollback {
    /// Shows what was written since the snapshot. If that is nothing, there is no question.
    fn confirm(&self, session: &Session<'_>, is_open: bool) -> Result<()> {
        let volumes = session.volumes()?;
        let (from, to) = (volumes.get(&self.volume)?, volumes.get(&self.snapshot)?);
        // Data that is not written out yet counts too. The rollback itself refuses a volume that cannot be rolled back.
        let is_possible = !from.is_read_only() && to.is_read_only();
        let mut bytes = 0;
        if is_possible {
            from.flush()?;
            volumes.diff(&from, &to, &mut |range| {
                bytes += range.end - range.start;
                true
            })?;
        }
        if bytes == 0 && from.size() == to.size() {
            return Ok(());
        }
        let (volume, snapshot) = (printable(self.volume.as_bytes()), printable(self.snapshot.as_bytes()));
        let made = volumes.list().into_iter().find(|info| info.name == self.snapshot).map(|info| local_time(info.created_ns));
        let clients = if is_open { ", under the clients that have it open" } else { "" };
        session.confirm(
            false,
            format_args!(
                "all that was written to volume {volume} since snapshot {snapshot} of {} is gone: {} differ{clients}",
                made.unwrap_or_default(),
                size(bytes)
            ),
        )
    }
}

impl StoreCommand for VolumeDiff {
    store_command!("volume diff", waits, ends_early);

    fn mode(&self) -> Mode {
        Mode::ReadOnly
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        diff(self, session)
    }
}

/// Differences are no failure: exit code 0.
fn diff(options: &VolumeDiff, session: &Session<'_>) -> Result<Exit> {
    let volumes = session.volumes()?;
    let (first, second) = (chosen_volume(volumes, &options.first)?, chosen_volume(volumes, &options.second)?);
    let mut output = session.output();
    let mut printed = Ok(());
    let (mut ranges, mut bytes) = (0, 0);
    volumes.diff(&first, &second, &mut |range| {
        let length = range.end - range.start;
        printed = if options.format.json {
            output.json(&json!({"offset": range.start, "length": length}))
        } else {
            output.line(format_args!("{}..{}  {}", range.start, range.end, size(length)))
        };
        ranges += 1;
        bytes += length;
        printed.is_ok() && !session.is_cancelled()
    })?;
    printed?;
    output.finish()?;
    if session.is_cancelled() {
        return Err(crate::failure::Failure::interrupted("stopped: the list of differences is not complete"));
    }
    if !session.quiet && !options.format.json {
        session.note(format_args!("{} of together {}", counted(ranges, "range differs", "ranges differ"), size(bytes)));
    }
    Ok(Exit::Done)
}
