//! `onefold target list`.

use super::sessions;
use crate::cli::TargetList;
use crate::failure::{Exit, Result};
use crate::iscsi::{Iscsi, as_known};
use crate::output::Output;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, printable, size, utc_time};
use onefold_targets::{Account, DEFAULT_TARGET, FILE_TARGET, Target, known};
use onefold_volume::VolumeInfo;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl StoreCommand for TargetList {
    store_command!("target list", reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let mut known = known(&session.store.engine)?;
        known.damaged.iter().for_each(|problem| session.note(format_args!("left out: {problem}")));
        let list = session.volumes()?.list();
        let volumes: BTreeMap<u32, VolumeInfo> = list.into_iter().map(|info| (info.number, info)).collect();
        known.targets.extend(session.store.settings.targets.iter().map(|target| as_known(target, &volumes)));
        if known.made().next().is_some() || !known.damaged.is_empty() {
            known.targets.retain(|target| target.number != DEFAULT_TARGET);
        } else {
            known.default_target().name = Iscsi::default_name(&session.store.engine);
        }
        let mut output = session.output();
        if self.format.json {
            output.json(&known.targets.iter().map(|target| to_json(target, &volumes, session)).collect::<Value>())?;
        } else {
            known.targets.iter().try_for_each(|target| print(&mut output, target, &volumes, session))?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

fn to_json(target: &Target, volumes: &BTreeMap<u32, VolumeInfo>, session: &Session<'_>) -> Value {
    let account = |account: &Account| json!({"user": account.name, "secret_file": account.secret_file.to_string_lossy()});
    let luns = target.units.iter().map(|(lun, unit)| {
        // A deleted or damaged volume has no name.
        let volume = volumes.get(&unit.volume);
        let is_read_only = target.is_read_only || unit.is_read_only || volume.is_some_and(|volume| volume.is_read_only);
        json!({
            "lun": lun,
            "volume": volume.map(|volume| &volume.name),
            "size": volume.map(|volume| volume.size),
            "block_size": unit.block_bytes,
            "read_only": is_read_only,
            "removable": unit.is_removable,
        })
    });
    json!({
        "name": target.name,
        "is_default": target.number == DEFAULT_TARGET,
        "is_of_settings": target.number == FILE_TARGET,
        "luns": luns.collect::<Vec<_>>(),
        "initiators": target.initiators,
        "networks": target.networks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "chap": target.accounts.iter().map(account).collect::<Vec<_>>(),
        "chap_mutual": target.own_account.as_ref().map(account),
        "header_digest": target.header_digest.name(),
        "data_digest": target.data_digest.name(),
        "max_sessions": target.max_sessions,
        "read_only": target.is_read_only,
        "created": (target.created_ns != 0).then(|| utc_time(target.created_ns)),
        "sessions": sessions(session, &target.name),
    })
}

fn print(output: &mut Output<'_>, target: &Target, volumes: &BTreeMap<u32, VolumeInfo>, session: &Session<'_>) -> Result<()> {
    let mut notes = Vec::new();
    if target.number == DEFAULT_TARGET {
        notes.push("all volumes, while there is no other target".to_owned());
    }
    if target.number == FILE_TARGET {
        notes.push("from the settings file".to_owned());
    }
    if target.is_read_only {
        notes.push("read-only".to_owned());
    }
    for (what, digest) in [("header", target.header_digest), ("data", target.data_digest)] {
        if digest != Default::default() {
            notes.push(format!("{what} digest {}", digest.name()));
        }
    }
    if target.max_sessions > 0 {
        notes.push(format!("at most {}", counted(target.max_sessions.into(), "session", "sessions")));
    }
    if session.is_in_daemon() {
        notes.push(counted(sessions(session, &target.name), "session", "sessions"));
    }
    let notes = if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) };
    output.line(format_args!("{}{notes}", target.name))?;
    for (lun, unit) in &target.units {
        let Some(volume) = volumes.get(&unit.volume) else {
            output.line(format_args!(
                "  LUN {lun}  a volume that was deleted or cannot be read: `onefold target detach {} --lun {lun}` frees it",
                target.name
            ))?;
            continue;
        };
        let is_read_only = unit.is_read_only || volume.is_read_only;
        output.line(format_args!(
            "  LUN {lun}  {}  {}{}{}{}",
            printable(volume.name.as_bytes()),
            size(volume.size),
            if unit.block_bytes == 512 { String::new() } else { format!("  blocks of {}", size(unit.block_bytes.into())) },
            if is_read_only { "  read-only" } else { "" },
            if unit.is_removable { "  removable" } else { "" }
        ))?;
    }
    for pattern in &target.initiators {
        output.line(format_args!("  initiator  {}", printable(pattern.as_bytes())))?;
    }
    for network in &target.networks {
        output.line(format_args!("  network    {network}"))?;
    }
    for account in &target.accounts {
        output.line(format_args!("  CHAP       {}  {}", printable(account.name.as_bytes()), account.secret_file.display()))?;
    }
    if let Some(account) = &target.own_account {
        output.line(format_args!("  own CHAP   {}  {}", printable(account.name.as_bytes()), account.secret_file.display()))?;
    }
    if target.is_open() {
        output.line("  for everybody who can reach it")?;
    }
    Ok(())
}
