//! `onefold volume`: creates, lists, resizes and deletes volumes. `snapshots` has more commands; `copy` moves content
//! in and out.

pub(super) mod copy;
mod destination;
mod facts;
mod snapshots;

use super::chosen::chosen_volume;
use crate::cli::{VolumeCreate, VolumeDelete, VolumeList, VolumeResize};
use crate::erasure::check_not_being_erased;
use crate::failure::{Exit, Failure, Result};
use crate::output::Table;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, local_time, printable, size, utc_time};
use onefold_upkeep::Monitor;
use onefold_volume::{MAX_NAME_BYTES, Volume, VolumeInfo, Volumes};
use serde_json::{Value, json};
use std::collections::HashSet;

impl StoreCommand for VolumeCreate {
    store_command!("volume create", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        create(self, session)
    }
}

fn create(options: &VolumeCreate, session: &Session<'_>) -> Result<Exit> {
    let block_bytes = u32::try_from(options.block_size).unwrap_or(u32::MAX);
    session.volumes()?.create(&options.name, options.size, block_bytes, options.filter_chain.clone())?;
    let mut output = session.output();
    if options.format.json {
        output.json(&json!({"name": options.name, "size": options.size, "block_size": options.block_size}))?;
    } else if !session.quiet {
        output.line(format_args!("made volume {} of {}", printable(options.name.as_bytes()), size(options.size)))?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

impl StoreCommand for VolumeList {
    store_command!("volume list", reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        list(self, session)
    }
}

fn list(options: &VolumeList, session: &Session<'_>) -> Result<Exit> {
    let volumes = session.volumes()?;
    let list = volumes.list();
    let numbers: HashSet<u32> = list.iter().map(|info| info.number).collect();
    // In a daemon, others may delete volumes meanwhile.
    let own_bytes = |info: &VolumeInfo| volumes.get(&info.name).map_or(0, |volume| volume.own_bytes());
    let mut output = session.output();
    if options.format.json {
        let items = list.iter().map(|info| {
            json!({
                "name": info.name,
                "size": info.size,
                "block_size": info.block_size,
                "kind": info.kind.name(),
                "read_only": info.is_read_only,
                "origin": info.origin.as_ref().map(|origin| &origin.name),
                "origin_exists": info.origin.as_ref().map(|origin| numbers.contains(&origin.number)),
                "own_bytes": own_bytes(info),
                "filter_chain": info.chain,
                "created": utc_time(info.created_ns),
            })
        });
        output.json(&items.collect::<Value>())?;
    } else if !list.is_empty() {
        let mut table = Table::new(&["name", "kind", ">size", ">own", ">block", "created", "of", "filters"]);
        for info in &list {
            table.row(vec![
                printable(info.name.as_bytes()),
                kind(info),
                size(info.size),
                size(own_bytes(info)),
                size(u64::from(info.block_size)),
                local_time(info.created_ns),
                info.origin.as_ref().map_or_else(String::new, |origin| {
                    let is_deleted = if numbers.contains(&origin.number) { "" } else { " (deleted)" };
                    format!("{}{is_deleted}", printable(origin.name.as_bytes()))
                }),
                info.chain.clone().unwrap_or_default(),
            ]);
        }
        table.print(&mut output)?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

impl StoreCommand for VolumeResize {
    store_command!("volume resize", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        resize(self, session)
    }
}

fn resize(options: &VolumeResize, session: &Session<'_>) -> Result<Exit> {
    let volume = chosen_volume(session.volumes()?, &options.name)?;
    let (old, number) = (volume.size(), volume.info().number);
    let mut snapshot = None;
    if options.size < old {
        // Data beyond the new size is lost, so no client may have the volume open: it may have a file system on it.
        session.on_unused_volume(&options.name, |volumes| check_not_being_erased(&session.store.engine, volumes, &options.name))?;
        snapshot = before_shrinking(options, session, &volume)?;
        session.on_unused_volume(&options.name, |volumes| {
            check_still_meant(volumes, &options.name, number)?;
            check_not_being_erased(&session.store.engine, volumes, &options.name)?;
            if let Some(snapshot) = &snapshot {
                volumes.snapshot(&options.name, snapshot)?;
            } else if !options.no_snapshot && !volume.is_read_only() && data_bytes_from(&volume, options.size)? > 0 {
                return Err(changed_meanwhile(&options.name));
            }
            Ok(volume.resize(options.size)?)
        })?;
    } else {
        check_not_being_erased(&session.store.engine, session.volumes()?, &options.name)?;
        volume.resize(options.size)?;
    }
    if !session.quiet {
        session.note(format_args!("volume {} had {}, now has {}", printable(options.name.as_bytes()), size(old), size(options.size)));
        if let Some(snapshot) = snapshot {
            session.note(format_args!("snapshot {} keeps what was cut off, until it is deleted", printable(snapshot.as_bytes())));
        }
    }
    Ok(Exit::Done)
}

/// Asks before data is cut off, and returns the name of the snapshot to make first. Without data there, it asks nothing
/// and makes none.
fn before_shrinking(options: &VolumeResize, session: &Session<'_>, volume: &Volume) -> Result<Option<String>> {
    if volume.is_read_only() {
        return Ok(None);
    }
    drop(session.store.engine.permit_deletion("make volumes smaller")?);
    let cut = data_bytes_from(volume, options.size)?;
    if cut == 0 {
        return Ok(None);
    }
    let time = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%SZ");
    let ending = format!(".before-shrink-{time}");
    let room = MAX_NAME_BYTES - ending.len();
    let end = (0..=options.name.len().min(room)).rev().find(|end| options.name.is_char_boundary(*end)).unwrap_or(0);
    let snapshot = (!options.no_snapshot).then(|| format!("{}{ending}", &options.name[..end]));
    let name = printable(options.name.as_bytes());
    let kept = match &snapshot {
        Some(snapshot) => format!("a snapshot, {}, keeps them", printable(snapshot.as_bytes())),
        None => "they are gone for good".to_owned(),
    };
    let (old, new) = (size(volume.size()), size(options.size));
    session
        .confirm(options.yes, format_args!("volume {name} of {old} is cut off at {new}, with {} of data after it: {kept}", size(cut)))?;
    Ok(snapshot)
}

impl StoreCommand for VolumeDelete {
    store_command!("volume delete", waits, writes, ends_early);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        delete(self, session)
    }
}

fn delete(options: &VolumeDelete, session: &Session<'_>) -> Result<Exit> {
    let number = chosen_volume(session.volumes()?, &options.name)?.info().number;
    check_not_attached(session.volumes()?, &onefold_targets::known(&session.store.engine)?, &options.name)?;
    super::target::check_not_attached_by_settings(session, &options.name)?;
    drop(session.store.engine.permit_deletion("delete volumes")?);
    if !options.yes {
        session.on_unused_volume(&options.name, |_| Ok(()))?;
        confirm_deletion(options, session)?;
    }
    session.on_unused_volume(&options.name, |volumes| {
        check_still_meant(volumes, &options.name, number)?;
        // Meanwhile nobody can give the volume to a target, and no target may show a deleted one.
        onefold_targets::change(&session.store.engine, |targets| {
            check_not_attached(volumes, targets, &options.name)?;
            Ok(volumes.delete(&options.name)?)
        })
    })?;
    let rest = clean_up(session)?;
    if !session.quiet {
        session.note(format_args!("deleted volume {}{rest}", printable(options.name.as_bytes())));
    }
    Ok(Exit::Done)
}

/// Says what is lost with a volume. If it never held data, there is no question.
fn confirm_deletion(options: &VolumeDelete, session: &Session<'_>) -> Result<()> {
    let volumes = session.volumes()?;
    let volume = chosen_volume(volumes, &options.name)?;
    if !volume.is_read_only() {
        // Data that is not written out yet counts too.
        volume.flush()?;
    }
    // Without `held_alone`, a clone that holds all data of deleted volumes would be deleted without a question.
    let own = volume.own_bytes().max(volumes.held_alone(&volume));
    let list = volumes.list();
    let Some(info) = list.iter().find(|info| info.name == options.name).filter(|_| own > 0) else { return Ok(()) };
    let derived = list.iter().filter(|other| other.origin.as_ref().is_some_and(|origin| origin.number == info.number)).count() as u64;
    let stay = if derived > 0 {
        format!("; {} made of it", counted(derived, "volume stays that was", "volumes stay that were"))
    } else {
        String::new()
    };
    session.confirm(
        false,
        format_args!(
            "{} {} of {}, made {}, is deleted for good: {} of data, as far as nobody else has it{stay}",
            info.kind.name(),
            printable(info.name.as_bytes()),
            size(info.size),
            local_time(info.created_ns),
            size(own)
        ),
    )
}

fn check_not_attached(volumes: &Volumes, targets: &onefold_targets::Known, name: &str) -> Result<()> {
    let number = volumes.list().into_iter().find(|info| info.name == name).map(|info| info.number);
    let Some((lun, target)) = number.and_then(|number| targets.attached(number)) else { return Ok(()) };
    let name = printable(name.as_bytes());
    Err(Failure::failed(format!("volume {name} is LUN {lun} of target {target}"))
        .advise(format!("take it out first: `onefold target detach {target} {name}`")))
}

/// Drops unneeded data, unless a daemon does that. The deletion itself is durable already. If the user stops this, the
/// next deletion or daemon continues, and the returned text says so.
fn clean_up(session: &Session<'_>) -> Result<&'static str> {
    let done = session.is_in_daemon() || session.volumes()?.resume_deletions(&|| !session.is_cancelled())?;
    Ok(if done { "" } else { "; the rest of its data is dropped by the next `onefold serve` or `onefold volume delete`" })
}

/// Returns an error if a name now means another volume: the user was asked about the earlier one, and may have taken
/// hours to answer.
pub(super) fn check_still_meant(volumes: &Volumes, name: &str, number: u32) -> Result<()> {
    if chosen_volume(volumes, name)?.info().number == number { Ok(()) } else { Err(changed_meanwhile(name)) }
}

fn changed_meanwhile(name: &str) -> Failure {
    Failure::failed(format!("volume {} was changed or renamed meanwhile; nothing was done", printable(name.as_bytes())))
        .advise("check the volume, then run the command again")
}

fn kind(info: &VolumeInfo) -> String {
    let name = info.kind.name();
    if info.is_read_only && info.kind != onefold_volume::VolumeKind::Snapshot { format!("{name}, read-only") } else { name.to_owned() }
}

/// Extents asked for at a time.
const EXTENTS: usize = 1024;

/// Passes every extent of a volume from `at` on to `visit`, in order: offset, length, whether it is a hole.
fn extents(volume: &Volume, mut at: u64, visit: &mut dyn FnMut(u64, u64, bool) -> Result<()>) -> Result<()> {
    let end = volume.size();
    while at < end {
        let before = at;
        for extent in volume.status(at, end - at, EXTENTS)? {
            let length = extent.length.min(end - at);
            visit(at, length, extent.is_hole)?;
            at += length;
        }
        if at == before {
            // An answer without an extent would make this loop endless.
            return Err(Failure::failed(format!("volume {}: no extent at offset {at}", printable(volume.name().as_bytes()))));
        }
    }
    Ok(())
}

/// Returns the bytes of a volume that are not holes.
pub(super) fn data_bytes(volume: &Volume) -> Result<u64> {
    data_bytes_from(volume, 0)
}

/// Returns the bytes of a volume, from an offset on, that are not holes.
fn data_bytes_from(volume: &Volume, offset: u64) -> Result<u64> {
    let mut sum = 0;
    extents(volume, offset, &mut |_, length, hole| {
        sum += if hole { 0 } else { length };
        Ok(())
    })?;
    Ok(sum)
}
