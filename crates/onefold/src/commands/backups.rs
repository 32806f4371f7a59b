//! `onefold backups`.

use crate::cli::Backups;
use crate::failure::{Exit, Result};
use crate::output::Table;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{local_time, printable, size, utc_time};
use onefold_catalog::Backup;
use serde_json::{Map, Value, json};
use std::fmt;

impl StoreCommand for Backups {
    store_command!("backups", far, reads);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Lists the backups.
fn run(options: &Backups, session: &Session<'_>) -> Result<Exit> {
    let catalog = session.catalog();
    let mut backups = catalog.list()?;
    let protected = catalog.protected()?;
    backups.retain(|backup| options.name.as_ref().is_none_or(|name| *name == backup.name));
    backups.retain(|backup| options.tags.is_empty() || options.tags.iter().any(|tag| backup.tags.contains(tag)));
    let mut output = session.output();
    if options.format.json {
        output.json(&Value::Array(backups.iter().map(|backup| to_json(backup, protected.get(&backup.id).copied())).collect()))?;
    } else if !backups.is_empty() {
        let mut table = Table::new(&["id", "name", "time", "state", "host", "paths", ">size", ">added", "tags", "protected until"]);
        for backup in &backups {
            let paths: Vec<String> = backup.paths.iter().map(|path| printable(path)).collect();
            table.row(vec![
                backup.id.short(),
                printable(backup.name.as_bytes()),
                local_time(backup.started_ns),
                State(backup).to_string(),
                printable(backup.host.as_bytes()),
                paths.join(" "),
                size(backup.statistics.logical_bytes),
                size(backup.statistics.added_bytes),
                backup.tags.iter().map(|tag| printable(tag.as_bytes())).collect::<Vec<_>>().join(","),
                protected.get(&backup.id).map_or_else(String::new, |until_ns| local_time(*until_ns)),
            ]);
        }
        table.print(&mut output)?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

/// Whether a backup is complete, in a word.
pub(super) struct State<'a>(pub &'a Backup);

impl fmt::Display for State<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_partial() { "PARTIAL" } else { "complete" })
    }
}

/// Returns the facts about a backup, and until when it is protected, if it is.
pub(super) fn to_json(backup: &Backup, protected_until_ns: Option<i64>) -> Value {
    let statistics = &backup.statistics;
    let paths = backup.paths.iter().map(|path| String::from_utf8_lossy(path).into_owned());
    let mut object = Map::new();
    if backup.paths.iter().any(|path| std::str::from_utf8(path).is_err()) {
        let hex = |path: &Vec<u8>| path.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        object.insert("paths_hex".to_owned(), backup.paths.iter().map(hex).collect());
    }
    let rest = json!({
        "id": backup.id.to_string(),
        "sequence": backup.sequence,
        "name": backup.name,
        "time": utc_time(backup.started_ns),
        "finished": utc_time(backup.finished_ns),
        "host": backup.host,
        "user": backup.user,
        "paths": paths.collect::<Vec<_>>(),
        "files": statistics.files,
        "directories": statistics.directories,
        "logical_bytes": statistics.logical_bytes,
        "read_bytes": statistics.read_bytes,
        "added_bytes": statistics.added_bytes,
        "stored_bytes": statistics.stored_bytes,
        "errors": statistics.errors,
        "partial": backup.is_partial(),
        "tags": backup.tags,
        "protected_until": protected_until_ns.map(utc_time),
    });
    if let Value::Object(rest) = rest {
        object.extend(rest);
    }
    Value::Object(object)
}
