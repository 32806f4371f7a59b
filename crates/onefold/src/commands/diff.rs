//! `onefold diff`.

use super::chosen::chosen;
use crate::cli::Diff;
use crate::failure::{Exit, Result};
use crate::output::put_name;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::printable;
use onefold_catalog::{Change, Difference};
use serde_json::{Map, Value};

impl StoreCommand for Diff {
    store_command!("diff", far, reads);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Shows what differs between two backups. Differences are no failure: exit code 0.
fn run(options: &Diff, session: &Session<'_>) -> Result<Exit> {
    let catalog = session.catalog();
    // Backups that are forgotten meanwhile are read to their end: none of their chunks is removed before.
    let _in_flight = session.store.engine.in_flight();
    let find = |asked: &str| chosen(&catalog, asked, &|text| session.advise(text));
    let (older, newer) = (find(&options.older)?, find(&options.newer)?);
    catalog.hold(&[&older, &newer])?;
    session.audit_reads([&older, &newer]);
    let mut output = session.output();
    let mut printed = Ok(());
    onefold_catalog::diff(&catalog, &older, &newer, &mut |difference| {
        printed = if options.format.json { output.json(&to_json(&difference)) } else { output.line(to_line(&difference)) };
        printed.is_ok()
    })?;
    printed?;
    output.finish()?;
    Ok(Exit::Done)
}

fn parts<'a>(difference: &Difference<'a>) -> (char, &'static str, &'a [u8], Vec<&'static str>) {
    match difference {
        Difference::Added { path, .. } => ('+', "added", path, Vec::new()),
        Difference::Removed { path, .. } => ('-', "removed", path, Vec::new()),
        Difference::Changed { path, change, .. } => ('M', "changed", path, what(change)),
    }
}

fn what(change: &Change) -> Vec<&'static str> {
    [
        (change.kind, "type"),
        (change.content, "content"),
        (change.mode, "mode"),
        (change.owner, "owner"),
        (change.mtime, "mtime"),
        (change.xattrs, "xattrs"),
    ]
    .into_iter()
    .filter_map(|(changed, name)| changed.then_some(name))
    .collect()
}

fn to_line(difference: &Difference<'_>) -> String {
    let (sign, _, path, what) = parts(difference);
    let what = if what.is_empty() { String::new() } else { format!("  ({})", what.join(", ")) };
    format!("{sign} /{}{what}", printable(path))
}

fn to_json(difference: &Difference<'_>) -> Value {
    let (_, name, path, what) = parts(difference);
    let mut object = Map::new();
    put_name(&mut object, "path", &[b"/", path].concat());
    object.insert("change".to_owned(), name.into());
    if name == "changed" {
        object.insert("what".to_owned(), what.into());
    }
    Value::Object(object)
}
