//! `onefold target`: which volumes initiators see, and who may use them. `access` has the rules.

mod access;
mod list;

use crate::cli::{TargetAttach, TargetCreate, TargetDelete, TargetDetach, TargetSet, TargetSettings};
use crate::failure::{Exit, Failure, Result};
use crate::iscsi::Iscsi;
use crate::session::{Session, StoreCommand, store_command};
use crate::settings::FileUnit;
use crate::units::{counted, printable, size};
use onefold_ground::words::nearest;
use onefold_targets::{Known, Target, TargetError, Unit, change};
use onefold_volume::VolumeInfo;
use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) use access::check_secret_file;

/// Returns the number of sessions of a target, if a daemon runs this.
fn sessions(session: &Session<'_>, target: &str) -> u64 {
    let server = session.daemon().and_then(|daemon| daemon.iscsi.as_deref()).and_then(Iscsi::server);
    server.map_or(0, |server| server.count_of(target) as u64)
}

/// Refuses a change that logged-in initiators would not survive.
fn check_unused(session: &Session<'_>, target: &str, force: bool) -> Result<()> {
    match sessions(session, target) {
        0 => Ok(()),
        _ if force => Ok(()),
        count => Err(Failure::failed(format!("target {target} is in use: {}", counted(count, "session is open", "sessions are open")))
            .advise("log the initiators out first (`onefold session list` shows them), or give --force")),
    }
}

fn unknown(error: TargetError, known: &Known, name: &str) -> Failure {
    match nearest(name, known.made().map(|target| target.name.as_str())) {
        Some(near) if matches!(error, TargetError::NotFound { .. }) => {
            Failure::failed(error).advise(format!("did you mean {near}? `onefold target list` lists the targets"))
        }
        _ => Failure::from(error),
    }
}

/// Refuses to change a target of the settings file here.
fn check_not_of_settings(session: &Session<'_>, name: &str) -> Result<()> {
    if session.store.settings.targets.iter().all(|target| target.target.name != name) {
        return Ok(());
    }
    Err(Failure::failed(format!("target {name} comes from the settings file"))
        .advise("change it there (onefold.toml in the store, or the file of `serve --config`), and restart the daemon"))
}

/// Checks that the settings file gives the volume to no target. The error names the target.
pub(super) fn check_not_attached_by_settings(session: &Session<'_>, volume: &str) -> Result<()> {
    let shows = |(_, unit): &(&u16, &FileUnit)| unit.volume == volume;
    match session.store.settings.targets.iter().find_map(|target| target.luns.iter().find(shows).map(|(lun, _)| (target, lun))) {
        None => Ok(()),
        Some((target, lun)) => {
            let name = printable(volume.as_bytes());
            Err(Failure::failed(format!("volume {name} is LUN {lun} of target {}", target.target.name))
                .advise("change this first in the settings file (onefold.toml in the store, or the file of `serve --config`)"))
        }
    }
}

/// Changes one target in one step.
fn change_target<T>(session: &Session<'_>, name: &str, work: impl FnOnce(&mut Target) -> Result<T>) -> Result<T> {
    check_not_of_settings(session, name)?;
    change(&session.store.engine, |known| {
        if let Err(error) = known.find(name) {
            return Err(unknown(error, known, name));
        }
        work(known.find_mut(name)?)
    })
}

/// Returns the facts about a volume.
fn volume(session: &Session<'_>, name: &str) -> Result<VolumeInfo> {
    let volumes = session.volumes()?;
    super::chosen::chosen_volume(volumes, name)?;
    let info = volumes.list().into_iter().find(|info| info.name == name);
    info.ok_or_else(|| Failure::failed(format!("volume {} was just deleted", printable(name.as_bytes()))))
}

fn apply(settings: &TargetSettings, target: &mut Target) {
    if let Some(is_read_only) = settings.read_only {
        target.is_read_only = is_read_only;
    }
    if let Some(max_sessions) = settings.max_sessions {
        target.max_sessions = max_sessions;
    }
    if let Some(digest) = settings.header_digest {
        target.header_digest = digest.into();
    }
    if let Some(digest) = settings.data_digest {
        target.data_digest = digest.into();
    }
}

impl StoreCommand for TargetCreate {
    store_command!("target create", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let created_ns =
            SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0);
        let mut target = Target { name: self.name.clone(), created_ns, ..Target::default() };
        apply(&self.settings, &mut target);
        let default_name = Iscsi::default_name(&session.store.engine);
        check_not_of_settings(session, &self.name)?;
        change(&session.store.engine, |known| {
            if self.name == default_name {
                return Err(
                    Failure::failed(format!("{default_name} is the name of the target with all volumes")).advise("choose another name")
                );
            }
            if known.made().next().is_none() {
                check_unused(session, &default_name, self.force)?;
            }
            Ok(known.add(target)?)
        })?;
        let mut output = session.output();
        if self.format.json {
            output.json(&json!({"name": self.name}))?;
        } else if !session.quiet {
            output.line(format_args!("made target {}; `onefold target attach` gives it volumes", self.name))?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

impl StoreCommand for TargetDelete {
    store_command!("target delete", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        check_not_of_settings(session, &self.name)?;
        if !self.yes {
            let known = onefold_targets::known(&session.store.engine)?;
            let target = known.find(&self.name).map_err(|error| unknown(error, &known, &self.name))?;
            let luns = counted(target.units.len() as u64, "LUN", "LUNs");
            check_unused(session, &self.name, self.force)?;
            session
                .confirm(false, format_args!("target {} with {luns} and its rules of access is deleted; the volumes stay", self.name))?;
        }
        let is_last = change(&session.store.engine, |known| {
            if let Err(error) = known.find(&self.name) {
                return Err(unknown(error, known, &self.name));
            }
            check_unused(session, &self.name, self.force)?;
            known.remove(&self.name)?;
            Ok(known.made().next().is_none())
        })?;
        if !session.quiet {
            let rest = if is_last { "; it was the last one: where iSCSI is served, there is a target with all volumes again" } else { "" };
            session.note(format_args!("deleted target {}{rest}", self.name));
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for TargetSet {
    store_command!("target set", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let TargetSettings { read_only, max_sessions, header_digest, data_digest } = self.settings;
        if read_only.is_none() && max_sessions.is_none() && header_digest.is_none() && data_digest.is_none() {
            return Err(Failure::cannot_run("nothing to set: no option was given").advise("`onefold target set --help` lists what can be"));
        }
        change_target(session, &self.name, |target| {
            apply(&self.settings, target);
            Ok(())
        })?;
        note_sessions(session, &self.name, header_digest.is_some() || data_digest.is_some() || max_sessions.is_some());
        Ok(Exit::Done)
    }
}

/// Notes that a rule for logins does not affect sessions that are logged in.
fn note_sessions(session: &Session<'_>, target: &str, is_of_logins: bool) {
    let count = sessions(session, target);
    if is_of_logins && count > 0 && !session.quiet {
        let open = counted(count, "session that is open stays", "sessions that are open stay");
        session.note(format_args!(
            "this applies to new logins; {open} as it is: `onefold session drop --target {target}` closes open sessions"
        ));
    }
}

impl StoreCommand for TargetAttach {
    store_command!("target attach", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        check_not_of_settings(session, &self.target)?;
        check_not_attached_by_settings(session, &self.volume)?;
        let (lun, name) = change(&session.store.engine, |known| {
            if let Err(error) = known.find(&self.target) {
                return Err(unknown(error, known, &self.target));
            }
            // While targets change, nobody can delete a volume.
            let info = volume(session, &self.volume)?;
            if info.size < u64::from(self.block_size) {
                let why = format!("volume {} of {} is smaller than a logical block", printable(info.name.as_bytes()), size(info.size));
                return Err(Failure::failed(why).advise("`onefold volume resize` makes it larger"));
            }
            if let Some((lun, name)) = known.attached(info.number) {
                let advice = format!("a volume is in one target at a time: `onefold target detach {name} {}` takes it out", self.volume);
                return Err(Failure::failed(TargetError::Attached { lun, name: name.to_owned() }).advise(advice));
            }
            let target = known.find_mut(&self.target)?;
            let lun = self.lun.or_else(|| target.free_lun());
            let lun = lun.ok_or_else(|| Failure::failed(format!("target {} has no free LUN", target.name)))?;
            if target.units.contains_key(&lun) {
                let reason = "is taken";
                return Err(TargetError::Lun { lun: lun.into(), name: target.name.clone(), reason }.into());
            }
            let unit =
                Unit { volume: info.number, block_bytes: self.block_size, is_read_only: self.read_only, is_removable: self.removable };
            target.units.insert(lun, unit);
            Ok((lun, info.name))
        })?;
        if !session.quiet {
            session.note(format_args!("volume {} is LUN {lun} of {}", printable(name.as_bytes()), self.target));
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for TargetDetach {
    store_command!("target detach", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let info = self.volume.as_ref().map(|name| volume(session, name)).transpose()?;
        change_target(session, &self.target, |target| {
            let (lun, what) = match &info {
                Some(info) => (target.lun_of(info.number), format!("volume {}", printable(info.name.as_bytes()))),
                None => (self.lun.filter(|lun| target.units.contains_key(lun)), format!("LUN {}", self.lun.unwrap_or_default())),
            };
            let lun = lun.ok_or_else(|| {
                Failure::failed(format!("{what} is not in target {}", target.name)).advise("`onefold target list` shows what is")
            })?;
            check_unused(session, &self.target, self.force)?;
            target.units.remove(&lun);
            Ok(())
        })?;
        Ok(Exit::Done)
    }
}
