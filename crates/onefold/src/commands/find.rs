//! `onefold find`.

use super::chosen::chosen;
use super::ls::{absolute, kind, permissions, to_json};
use crate::cli::Find;
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{local_time, number, printable, utc_time};
use onefold_catalog::{Backup, CatalogError, Content, Entry, SideBySide, Version, components, side_by_side};
use onefold_client::Pattern;
use serde_json::{Value, json};
use std::ops::ControlFlow;

/// How many backups a line for people names. JSON names all.
const NAMED_BACKUPS: usize = 6;

impl StoreCommand for Find {
    store_command!("find", far, reads, ends_early);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Looks for files in many backups at once. Finding nothing is no failure.
fn run(options: &Find, session: &Session<'_>) -> Result<Exit> {
    let patterns = options.patterns.iter().map(|pattern| Ok(Pattern::new(pattern)?)).collect::<Result<Vec<_>>>()?;
    let catalog = session.catalog();
    // Backups that are forgotten meanwhile are read to their end: none of their chunks is removed before.
    let _in_flight = session.store.engine.in_flight();
    let (mut backups, damage) = catalog.list_sound()?;
    if !options.backup.is_empty() {
        let wanted =
            options.backup.iter().map(|asked| Ok(chosen(&catalog, asked, &|text| session.advise(text))?.id)).collect::<Result<Vec<_>>>()?;
        backups.retain(|backup| wanted.contains(&backup.id));
    }
    backups.retain(|backup| options.name.as_ref().is_none_or(|name| *name == backup.name));
    if let (true, Some(name)) = (backups.is_empty(), &options.name) {
        return Err(Failure::failed(format!("no backups have the name `{}`", printable(name.as_bytes())))
            .advise("`onefold backups` lists the backups"));
    }
    catalog.hold(&backups.iter().collect::<Vec<_>>())?;
    session.audit_reads(&backups);
    backups.reverse();
    let mut finder = Finder { options, session, patterns, backups: &backups, output: session.output(), printed: Ok(()), damaged: 0 };
    // The backups named on the command line were found.
    if let Some(error) = damage.filter(|_| options.backup.is_empty()) {
        session.note(format_args!("onefold: a backup is left out: {error}"));
        finder.damaged += 1;
    }
    side_by_side(&session.store.engine, &backups, &mut finder);
    let Finder { output, printed, damaged, .. } = finder;
    printed?;
    output.finish()?;
    if session.console().is_cancelled() {
        return Err(Failure::interrupted("stopped by a signal: not everything was searched"));
    }
    Ok(if damaged > 0 { Exit::Partial } else { Exit::Done })
}

struct Finder<'a> {
    options: &'a Find,
    session: &'a Session<'a>,
    patterns: Vec<Pattern>,
    /// The newest first.
    backups: &'a [Backup],
    output: Output<'a>,
    printed: Result<()>,
    damaged: u64,
}

impl SideBySide for Finder<'_> {
    fn path(&mut self, path: &[u8], versions: &[Version]) -> ControlFlow<()> {
        let names: Vec<&[u8]> = components(path).collect();
        if self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(&names)) {
            let versions: Vec<&Version> = versions.iter().filter(|version| self.passes(&version.entry)).collect();
            self.printed = if versions.is_empty() { Ok(()) } else { self.print(path, &versions) };
        }
        if self.printed.is_err() || self.session.console().is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn enters(&mut self, path: &[u8]) -> bool {
        let names: Vec<&[u8]> = components(path).collect();
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.leads_to(&names))
    }

    fn damaged(&mut self, path: &[u8], error: CatalogError) {
        self.session.note(format_args!("onefold: /{}: {error}", printable(path)));
        self.damaged += 1;
    }
}

impl Finder<'_> {
    fn passes(&self, entry: &Entry) -> bool {
        let options = self.options;
        let size = match entry.content {
            Content::File { size_bytes, .. } => Some(size_bytes),
            _ => None,
        };
        let has_size = |passes: &dyn Fn(u64) -> bool| size.is_some_and(passes);
        (options.kinds.is_empty() || options.kinds.iter().any(|wanted| wanted.name() == kind(&entry.content).0))
            && options.min_size.is_none_or(|least| has_size(&|size| size >= least))
            && options.max_size.is_none_or(|most| has_size(&|size| size <= most))
            && options.newer.is_none_or(|time_ns| entry.attributes.mtime_ns >= time_ns)
            && options.older.is_none_or(|time_ns| entry.attributes.mtime_ns < time_ns)
    }

    fn print(&mut self, path: &[u8], versions: &[&Version]) -> Result<()> {
        if !self.options.format.json {
            self.output.line(printable(&absolute(path)))?;
        }
        for version in versions {
            let backups: Vec<&Backup> = version.backups.iter().map(|place| &self.backups[*place]).collect();
            if self.options.format.json {
                let mut object = to_json(path, &version.entry);
                let backups = backups
                    .iter()
                    .map(|backup| json!({ "id": backup.id.to_string(), "name": backup.name, "time": utc_time(backup.started_ns) }));
                object.insert("backups".to_owned(), backups.collect());
                self.output.json(&Value::Object(object))?;
            } else {
                self.output.line(to_line(&version.entry, &backups))?;
            }
        }
        Ok(())
    }
}

fn to_line(entry: &Entry, backups: &[&Backup]) -> String {
    let size = match &entry.content {
        Content::File { size_bytes, .. } => number(*size_bytes),
        _ => "-".to_owned(),
    };
    let named =
        |backup: &&Backup| format!("{} ({} {})", backup.id.short(), printable(backup.name.as_bytes()), local_time(backup.started_ns));
    let mut list: Vec<String> = backups.iter().take(NAMED_BACKUPS).map(named).collect();
    if let [_, .., oldest] = backups.get(NAMED_BACKUPS..).unwrap_or_default() {
        list.push(format!("{} more, the oldest {}", backups.len() - NAMED_BACKUPS, named(oldest)));
    } else {
        list.extend(backups.iter().skip(NAMED_BACKUPS).map(named));
    }
    format!(
        "  {}{}  {size:>13}  {}  in {}",
        kind(&entry.content).1,
        permissions(entry.attributes.mode),
        local_time(entry.attributes.mtime_ns),
        list.join(", ")
    )
}
