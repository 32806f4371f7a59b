//! `onefold volume`: makes, lists, resizes and deletes volumes; `copy` brings their content in and out.

mod copy;

use super::Talk;
use crate::cli::{Volume as Command, VolumeCreate, VolumeList, VolumeName, VolumeResize};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, Table, note};
use crate::store::Store;
use crate::units::{local_time, printable, size, utc_time};
use onefold_engine::Mode;
use onefold_volume::{Volume, Volumes};
use serde_json::{Value, json};

/// Does what is asked of a volume.
pub fn run(command: &Command, talk: Talk) -> Result<Exit> {
    match command {
        Command::Create(options) => create(options, talk),
        Command::List(options) => list(options),
        Command::Resize(options) => resize(options, talk),
        Command::Delete(options) => delete(options, talk),
        Command::Import(options) => copy::import(options, talk),
        Command::Export(options) => copy::export(options, talk),
    }
}

/// Opens the store and its volumes, works with them, closes both. An error of the work comes before one of closing.
fn with_volumes<T>(store: &crate::cli::Store, mode: Mode, command: &str, work: impl FnOnce(&Volumes) -> Result<T>) -> Result<T> {
    let store = Store::open(&store.directory, mode, command)?;
    let volumes = Volumes::open(store.engine.clone(), store.volumes_options())?;
    let done = work(&volumes);
    drop(volumes);
    let closed = store.close();
    let done = done?;
    closed?;
    Ok(done)
}

fn create(options: &VolumeCreate, talk: Talk) -> Result<Exit> {
    with_volumes(&options.store, Mode::ReadWrite, "volume create", |volumes| {
        let block_bytes = u32::try_from(options.block_size).unwrap_or(u32::MAX);
        volumes.create(&options.name, options.size, block_bytes, options.filter_chain.clone())?;
        Ok(())
    })?;
    let mut output = Output::new();
    if options.format.json {
        output.json(&json!({"name": options.name, "size": options.size, "block_size": options.block_size}))?;
    } else if !talk.quiet {
        output.line(format_args!("made volume {} of {}", printable(options.name.as_bytes()), size(options.size)))?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

fn list(options: &VolumeList) -> Result<Exit> {
    let list = with_volumes(&options.store, Mode::ReadOnly, "volume list", |volumes| Ok(volumes.list()))?;
    let mut output = Output::new();
    if options.format.json {
        let items = list.iter().map(|info| {
            json!({
                "name": info.name,
                "size": info.size,
                "block_size": info.block_size,
                "filter_chain": info.chain,
                "created": utc_time(info.created_ns),
            })
        });
        output.json(&items.collect::<Value>())?;
    } else if !list.is_empty() {
        let mut table = Table::new(&["name", ">size", ">block", "created", "filters"]);
        for info in &list {
            table.row(vec![
                printable(info.name.as_bytes()),
                size(info.size),
                size(u64::from(info.block_size)),
                local_time(info.created_ns),
                info.chain.clone().unwrap_or_default(),
            ]);
        }
        table.print(&mut output)?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

fn resize(options: &VolumeResize, talk: Talk) -> Result<Exit> {
    let old = with_volumes(&options.store, Mode::ReadWrite, "volume resize", |volumes| {
        let volume = volumes.get(&options.name)?;
        let old = volume.size();
        volume.resize(options.size)?;
        Ok(old)
    })?;
    if !talk.quiet {
        note(format_args!("volume {} had {}, now has {}", printable(options.name.as_bytes()), size(old), size(options.size)));
    }
    Ok(Exit::Done)
}

fn delete(options: &VolumeName, talk: Talk) -> Result<Exit> {
    let interrupt = Interrupt::watch()?;
    let done = with_volumes(&options.store, Mode::ReadWrite, "volume delete", |volumes| {
        volumes.delete(&options.name)?;
        // It is gone already, durably; a signal only leaves the rest of giving its space back to the next one who deletes or serves.
        Ok(volumes.resume_deletions(&|| !interrupt.came())?)
    })?;
    if !talk.quiet {
        let rest = if done { "" } else { "; the rest of its data is dropped by the next `onefold serve` or `onefold volume delete`" };
        note(format_args!("deleted volume {}{rest}", printable(options.name.as_bytes())));
    }
    Ok(Exit::Done)
}

/// Extents asked for at a time.
const EXTENTS: usize = 1024;

/// Passes every extent of a volume to `visit`, in order: offset, length, whether it is a hole.
fn extents(volume: &Volume, visit: &mut dyn FnMut(u64, u64, bool) -> Result<()>) -> Result<()> {
    let end = volume.size();
    let mut at = 0;
    while at < end {
        let before = at;
        for extent in volume.status(at, end - at, EXTENTS)? {
            let length = extent.length.min(end - at);
            visit(at, length, extent.is_hole)?;
            at += length;
        }
        if at == before {
            // An answer without an extent would repeat for ever.
            return Err(Failure::failed(format!("volume {}: no extent at offset {at}", printable(volume.name().as_bytes()))));
        }
    }
    Ok(())
}

/// Bytes of a volume that are not holes.
pub(super) fn data_bytes(volume: &Volume) -> Result<u64> {
    let mut sum = 0;
    extents(volume, &mut |_, length, hole| {
        sum += if hole { 0 } else { length };
        Ok(())
    })?;
    Ok(sum)
}
