//! `onefold forget`.

use super::backups::{State, to_json};
use super::chosen::chosen;
use crate::cli::Forget;
use crate::clocks;
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, Table};
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, local_time, local_zone, number, printable, size};
use onefold_catalog::retention::{GroupPlan, Policy, Reason, plan};
use onefold_catalog::{Backup, BackupId, Catalog, CatalogError};
use onefold_engine::Mode;
use onefold_fs_backup::{is_of_filesystem, tidy};
use onefold_ground::words::nearest;
use onefold_remote::accounts::Event;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

impl StoreCommand for Forget {
    store_command!("forget", far, waits);

    fn mode(&self) -> Mode {
        if self.dry_run { Mode::Snapshot } else { Mode::ReadWrite }
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// The plan for each group of backups.
type Plans = BTreeMap<String, GroupPlan>;

/// Forgets backups, then reports what it did.
fn run(options: &Forget, session: &Session<'_>) -> Result<Exit> {
    let policy = policy(options)?;
    let catalog = session.catalog();
    if !options.dry_run {
        // Checked again when backups are forgotten. Here it comes before all other errors, and also if there is nothing
        // to forget.
        drop(session.store.engine.permit_deletion("forget backups")?);
    }
    let protected = catalog.protected()?;
    let plans = match policy {
        Some(policy) => {
            if let Some(doubt) = clocks::doubt(&session.store.engine) {
                session.advise(format!("warning: {doubt}"));
            }
            plan(selected(options, catalog.list()?)?, &protected, &policy, catalog.now(), &local_zone())
        }
        None => named(options, &catalog, &protected, session)?,
    };
    let removed: Vec<Backup> = plans.values().flat_map(|plan| plan.remove.iter().cloned()).collect();
    if !options.dry_run && policy.is_none() {
        session.confirm(options.yes, losses(&removed))?;
    }
    if !options.dry_run && !removed.is_empty() {
        catalog.remove_backups(&removed)?;
        for backup in &removed {
            session.audit(Event::Forget, Some(&backup.name), json!({"id": backup.id.to_string()}));
        }
        if removed.iter().any(is_of_filesystem) {
            // The backups are gone whatever happens here.
            let tidied = session.volumes().and_then(|volumes| Ok(tidy(volumes.spaces())?));
            if let Err(error) = tidied {
                session.note(format_args!("some of their space is still held; the next prune retries: {}", error.message));
            }
        }
    }
    let mut output = session.output();
    if options.format.json {
        output.json(&report(&plans, &protected, options.dry_run))?;
    } else if !session.quiet {
        print(&mut output, &plans, policy.as_ref(), options.dry_run)?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

/// Lists the backups that will be forgotten, for the question to the user.
fn losses(removed: &[Backup]) -> String {
    const NAMED: usize = 20;
    let fact = |backup: &Backup| {
        let (id, name, time) = (backup.id.short(), printable(backup.name.as_bytes()), local_time(backup.started_ns));
        format!("  {id}  {name}  {time}  {}", size(backup.statistics.logical_bytes))
    };
    let mut lines: Vec<String> = removed.iter().take(NAMED).map(fact).collect();
    if removed.len() > NAMED {
        lines.push(format!("  and {} more", number((removed.len() - NAMED) as u64)));
    }
    let backups = counted(removed.len() as u64, "backup is", "backups are");
    format!("{backups} forgotten for good:\n{}\nTheir files cannot be restored then, unless another backup has them", lines.join("\n"))
}

/// Returns the policy. `None`: backups were named. An error if there is neither, or if the policy would keep nothing:
/// both may be mistakes.
fn policy(options: &Forget) -> Result<Option<Policy>> {
    let Some(policy) = options.keep.policy() else {
        if options.backups.is_empty() {
            return Err(Failure::cannot_run("nothing to forget: no ids and no policy were given").advise(
                "give the ids of backups, or what to keep, as in `--keep-daily 7 --keep-monthly 12`; with --dry-run nothing is changed",
            ));
        }
        return Ok(None);
    };
    let is_meant = options.keep.says_none() && (!options.names.is_empty() || !options.hosts.is_empty() || !options.tags.is_empty());
    if policy.keeps_nothing() && !is_meant {
        return Err(Failure::cannot_run("this policy keeps no backup at all")
            .advise("if that is what you want, say it for one name: `--name NAME --keep-last 0`"));
    }
    Ok(Some(policy))
}

/// Returns the backups of the given names and machines.
fn selected(options: &Forget, mut backups: Vec<Backup>) -> Result<Vec<Backup>> {
    let unknown = |what: &str, wanted: &str, known: &mut dyn Iterator<Item = &str>| {
        let failure = Failure::failed(format!("there are no backups of the {what} `{}`", printable(wanted.as_bytes())));
        match nearest(wanted, known) {
            Some(near) => failure.advise(format!("did you mean `{}`?", printable(near.as_bytes()))),
            None => failure.advise("`onefold backups` lists the backups"),
        }
    };
    if let Some(wanted) = options.names.iter().find(|wanted| !backups.iter().any(|backup| backup.name == **wanted)) {
        return Err(unknown("name", wanted, &mut backups.iter().map(|backup| backup.name.as_str())));
    }
    if let Some(wanted) = options.hosts.iter().find(|wanted| !backups.iter().any(|backup| backup.host == **wanted)) {
        return Err(unknown("machine", wanted, &mut backups.iter().map(|backup| backup.host.as_str())));
    }
    if let Some(wanted) = options.tags.iter().find(|wanted| !backups.iter().any(|backup| backup.tags.contains(wanted))) {
        return Err(unknown("tag", wanted, &mut backups.iter().flat_map(|backup| backup.tags.iter().map(String::as_str))));
    }
    let wanted = |list: &[String], value: &String| list.is_empty() || list.contains(value);
    let has_tag = |backup: &Backup| options.tags.is_empty() || options.tags.iter().any(|tag| backup.tags.contains(tag));
    backups.retain(|backup| wanted(&options.names, &backup.name) && wanted(&options.hosts, &backup.host) && has_tag(backup));
    Ok(backups)
}

/// Returns the named backups, each once. A protected one is an error, because no policy would keep it here.
fn named(options: &Forget, catalog: &Catalog, protected: &HashMap<BackupId, i64>, session: &Session<'_>) -> Result<Plans> {
    let mut plans = Plans::new();
    for asked in &options.backups {
        let backup = chosen(catalog, asked, &|text| session.advise(text))?;
        if let Some(until_ns) = protected.get(&backup.id) {
            return Err(CatalogError::Protected { id: backup.id, name: backup.name, until_ns: *until_ns }.into());
        }
        let remove = &mut plans.entry(backup.name.clone()).or_default().remove;
        if !remove.contains(&backup) {
            remove.push(backup);
        }
    }
    Ok(plans)
}

fn report(plans: &Plans, protected: &HashMap<BackupId, i64>, dry_run: bool) -> Value {
    let item = |backup: &Backup| to_json(backup, protected.get(&backup.id).copied());
    let kept = |(backup, reasons): &(Backup, Vec<Reason>)| {
        let mut item = item(backup);
        item["reasons"] = reasons.iter().map(|reason| word(*reason)).collect();
        item
    };
    let groups = plans.iter().map(|(name, plan)| {
        let (keep, remove): (Value, Value) = (plan.keep.iter().map(kept).collect(), plan.remove.iter().map(item).collect());
        json!({"name": name, "keep": keep, "remove": remove})
    });
    json!({"dry_run": dry_run, "kept": kept_of(plans), "removed": removed_of(plans), "groups": groups.collect::<Value>()})
}

fn kept_of(plans: &Plans) -> u64 {
    plans.values().map(|plan| plan.keep.len() as u64).sum()
}

fn removed_of(plans: &Plans) -> u64 {
    plans.values().map(|plan| plan.remove.len() as u64).sum()
}

fn word(reason: Reason) -> String {
    match reason {
        Reason::Rule(rule) => rule.to_string(),
        Reason::Oldest(rule) => format!("oldest {rule}"),
        Reason::Within(period) => format!("within {period}"),
        Reason::NewestPartial => "newest, partial".to_owned(),
        Reason::Doubtful => "date in doubt".to_owned(),
        Reason::Protected(_) => "protected".to_owned(),
    }
}

fn print(output: &mut Output<'_>, plans: &Plans, policy: Option<&Policy>, dry_run: bool) -> Result<()> {
    if let Some(policy) = policy {
        output.line(format_args!("policy: keep {policy}\n"))?;
    }
    let reasons = |reasons: &[Reason]| {
        let reason = |reason: &Reason| match reason {
            Reason::Protected(until_ns) => format!("protected until {}", local_time(*until_ns)),
            reason => word(*reason),
        };
        reasons.iter().map(reason).collect::<Vec<_>>().join(", ")
    };
    for (name, plan) in plans {
        let name = printable(name.as_bytes());
        if !plan.keep.is_empty() {
            output.line(format_args!("{name}: keep {}", counted(plan.keep.len() as u64, "backup", "backups")))?;
            let mut table = Table::new(&["id", "time", "state", "host", "paths", ">size", "reasons"]);
            plan.keep.iter().for_each(|(backup, why)| table.row([facts(backup), vec![reasons(why)]].concat()));
            table.print(output)?;
            output.line("")?;
        }
        if !plan.remove.is_empty() {
            output.line(format_args!("{name}: remove {}", counted(plan.remove.len() as u64, "backup", "backups")))?;
            let mut table = Table::new(&["id", "time", "state", "host", "paths", ">size"]);
            plan.remove.iter().for_each(|backup| table.row(facts(backup)));
            table.print(output)?;
            output.line("")?;
        }
    }
    let (kept, removed) = (kept_of(plans), removed_of(plans));
    let of = if policy.is_some() { format!(" of {}", number(kept + removed)) } else { String::new() };
    let backups = if removed == 1 && (of.is_empty() || kept == 0) { "backup" } else { "backups" };
    match (removed, dry_run) {
        (0, _) => output.line("nothing to forget"),
        (_, true) => output.line(format_args!("{}{of} {backups} would be forgotten; nothing was changed", number(removed))),
        (_, false) => output.line(format_args!("forgot {}{of} {backups}; `onefold prune` frees their space", number(removed))),
    }
}

/// The columns that both tables have for a backup.
fn facts(backup: &Backup) -> Vec<String> {
    let paths: Vec<String> = backup.paths.iter().map(|path| printable(path)).collect();
    let (time, host) = (local_time(backup.started_ns), printable(backup.host.as_bytes()));
    vec![backup.id.short(), time, State(backup).to_string(), host, paths.join(" "), size(backup.statistics.logical_bytes)]
}
