//! `onefold volume info` and `rename`.

use super::data_bytes;
use crate::cli::{VolumeFacts, VolumeRename};
use crate::commands::chosen::chosen_volume;
use crate::failure::{Exit, Result};
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{local_time, printable, size, utc_time};
use onefold_volume::VolumeError;
use serde_json::json;

impl StoreCommand for VolumeRename {
    store_command!("volume rename", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        chosen_volume(session.volumes()?, &self.name)?;
        // Clients and the settings file know the volume by its name.
        crate::commands::target::check_not_attached_by_settings(session, &self.name)?;
        session.on_unused_volume(&self.name, |volumes| Ok(volumes.rename(&self.name, &self.new)?))?;
        if !session.quiet {
            session.note(format_args!("volume {} is now {}", printable(self.name.as_bytes()), printable(self.new.as_bytes())));
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for VolumeFacts {
    store_command!("volume info", reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let volumes = session.volumes()?;
        let volume = chosen_volume(volumes, &self.name)?;
        let list = volumes.list();
        let info = list.iter().find(|info| info.name == self.name);
        let info = info.ok_or_else(|| VolumeError::NotFound { name: self.name.clone() })?;
        let derived: Vec<_> =
            list.iter().filter(|other| other.origin.as_ref().is_some_and(|origin| origin.number == info.number)).collect();
        let targets = onefold_targets::known(&session.store.engine)?;
        let attached = targets.attached(info.number);
        let (data, own) = (data_bytes(&volume)?, volume.own_bytes());
        let mut output = session.output();
        if self.format.json {
            output.json(&json!({
                "name": info.name,
                "kind": info.kind.name(),
                "read_only": info.is_read_only,
                "size": info.size,
                "block_size": info.block_size,
                "data_bytes": data,
                "own_bytes": own,
                "created": utc_time(info.created_ns),
                "origin": info.origin.as_ref().map(|origin| &origin.name),
                "filter_chain": info.chain,
                "derived": derived.iter().map(|other| json!({"name": other.name, "kind": other.kind.name()})).collect::<Vec<_>>(),
                "target": attached.map(|(_, target)| target),
                "lun": attached.map(|(lun, _)| lun),
            }))?;
        } else {
            let read_only = if info.is_read_only { ", read-only" } else { "" };
            output.line(format_args!("{} {}{read_only}", info.kind.name(), printable(info.name.as_bytes())))?;
            output.line(format_args!("  size     {}, in blocks of {}", size(info.size), size(u64::from(info.block_size))))?;
            output.line(format_args!("  data     {}, {} of it not shared with what it was made of", size(data), size(own)))?;
            output.line(format_args!("  created  {}", local_time(info.created_ns)))?;
            if let Some(origin) = &info.origin {
                output.line(format_args!("  made of  {}", printable(origin.name.as_bytes())))?;
            }
            for other in &derived {
                let (name, time) = (printable(other.name.as_bytes()), local_time(other.created_ns));
                output.line(format_args!("  {:<8} {name}, {time}", other.kind.name()))?;
            }
            if let Some((lun, target)) = attached {
                output.line(format_args!("  target   LUN {lun} of {target}"))?;
            }
            if let Some(chain) = &info.chain {
                output.line(format_args!("  filters  {chain}"))?;
            }
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}
