//! What a sampled index finds in backups (M3.4, M3.5): two generations of the corpus in a store that finds every
//! duplicate, and in one with a hook for one chunk of a hundred. Then `dedup` joins what was missed.

use crate::backups::text;
use crate::process::run;
use crate::report::{Aim, Report};
use crate::{Options, corpus};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The paper's sample is one of 101. Ours are powers of two.
const ONE_OF: u64 = 128;
/// Bytes of a hook.
const HOOK_BYTES: f64 = 7.1;
/// Share of the duplicates that are in the store once after `dedup`: recipes that name copies stay as they are.
const JOINED: f64 = 0.999;
/// Share of the duplicates that are to be found.
const FOUND: f64 = 0.99;

/// What a store holds, in bytes before compression.
#[derive(Clone, Copy)]
struct Held {
    logical: f64,
    unique: f64,
}

pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir_in(&options.memory).context("no temporary directory in memory")?;
    let (data, exact, sampled) = (place.path().join("data"), place.path().join("exact"), place.path().join("sampled"));
    corpus::create(&data, options.size, options.seed)?;
    let binary = options.binary()?;
    let onefold = |store: &Path, command: &str, rest: &[&str]| run(&binary, &[&[command, "--store", text(store)], rest].concat());
    let backup = |store: &Path| onefold(store, "backup", &["--name", "corpus", text(&data)]).map(drop);
    let held = |store: &Path| -> Result<(Held, Value)> {
        let value = onefold(store, "stats", &["--json"])?.json()?;
        let figure = |name: &str| value[name].as_f64().with_context(|| format!("`stats` has no {name}"));
        let held = Held { logical: figure("logical_bytes")?, unique: figure("unique_bytes")? };
        Ok((held, value))
    };
    run(&binary, &["init", text(&exact)])?;
    backup(&exact)?;
    let (_, first) = held(&exact)?;
    let figure = |name: &str| first[name].as_f64().unwrap_or_default();
    let memory_bytes = (figure("chunks") / ONE_OF as f64 + figure("containers")) * HOOK_BYTES;
    let index = format!("{}KiB", (memory_bytes / 1024.0).ceil().max(4.0));
    run(&binary, &["init", text(&sampled), "--profile", "sampled", "--sampled-index", &index])?;
    // Catalogs in memory are as few, beside those of the store, as they are in a large one.
    let settings = sampled.join("onefold.toml");
    let with_less = fs::read_to_string(&settings)?.replace("# catalog_cache = \"32MiB\"", "catalog_cache = \"1MiB\"");
    fs::write(&settings, with_less)?;
    backup(&sampled)?;
    report.group(format!("Duplicates that a sampled index finds, corpus of {:.2} GB", options.size as f64 / 1e9));
    let (between, _) = held(&sampled)?;
    let (exact_first, _) = held(&exact)?;
    // What is there twice within the first generation.
    let within = |of: Held, floor: Held| (of.logical - of.unique) / (floor.logical - floor.unique);
    report.add("found within the first backup, of what there is", 100.0 * within(between, exact_first), "%");
    corpus::change(&data, options.seed)?;
    backup(&exact)?;
    backup(&sampled)?;
    let (all, _) = held(&exact)?;
    let (found, figures) = held(&sampled)?;
    report.add("one chunk of so many has a hook", figures["sampled_rate"].as_f64().unwrap_or_default(), "");
    let index_bytes = figures["sampled_index_bytes"].as_f64().unwrap_or_default();
    report.add("memory of hooks, of what is unique", index_bytes / 1e6 / (found.unique / 1e12), "MB/TB");
    let share = |of: Held| 100.0 * (of.logical - of.unique) / (all.logical - all.unique);
    report.add_beside("found in both backups, of what there is", share(found), "%", Some(Aim::Above(100.0 * FOUND)), None);
    onefold(&sampled, "dedup", &[])?;
    onefold(&sampled, "prune", &["--max-unused", "0"])?;
    let (joined, _) = held(&sampled)?;
    report.add_beside("after dedup and prune", share(joined), "%", Some(Aim::Above(100.0 * JOINED)), None);
    Ok(())
}
