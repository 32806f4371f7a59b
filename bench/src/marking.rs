//! Finding out what is needed, in profile `sampled` (M3.7): what it costs after a change, in stores of different size.
//!
//! A store has a hundred groups: series of backups. One of them changes, and is as large in every store. The others do
//! not change, and are so many times larger. Before each measurement the store's files leave the page cache.

use crate::Options;
use crate::backups::text;
use crate::corpus;
use crate::process::{own_cpu_s, run};
use crate::random::Random;
use crate::reclamation::cold;
use crate::report::{Aim, Report, median};
use anyhow::{Context, Result, bail};
use onefold_engine::{Engine, Mode, Settings};
use onefold_ground::LocalGround;
use onefold_upkeep::StoreRoots;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const GROUPS: u64 = 100;
/// How many times larger the groups are that do not change.
const TIMES: [u64; 2] = [1, 20];
/// Marking the same beside more data may take so much longer.
const TOLERANCE: f64 = 1.25;

/// One look at what is needed.
struct Marking {
    wall_ms: f64,
    cpu_ms: f64,
}

/// Marking after one group of a hundred has changed.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let group_bytes = options.size / GROUPS;
    report.group(format!(
        "Marking what is needed after one group of {GROUPS} changed, {:.1} MB, profile sampled, store on disk, cold",
        group_bytes as f64 / 1e6
    ));
    let mut beside: Option<[f64; 2]> = None;
    for times in TIMES {
        let place = tempfile::tempdir_in(&options.disk).context("no temporary directory on disk")?;
        let found = one_store(options, place.path(), group_bytes, times)?;
        let of = |figure: fn(&Marking) -> f64, which: &[Marking]| median(which.iter().map(figure).collect());
        let first = &found.first[..];
        report.add(format!("others {times} times as large: first marking of everything: wall"), of(|one| one.wall_ms, first), "ms");
        report.add(format!("others {times} times as large: nothing changed: wall"), of(|one| one.wall_ms, &found.idle), "ms");
        let figures = [of(|one| one.wall_ms, &found.changed), of(|one| one.cpu_ms, &found.changed)];
        for (at, what) in ["wall", "CPU"].into_iter().enumerate() {
            let floor = beside.map(|beside| ("others as large", beside[at]));
            let aim = beside.map(|beside| Aim::Below(beside[at] * TOLERANCE));
            report.add_beside(format!("others {times} times as large: one group changed: {what}"), figures[at], "ms", aim, floor);
        }
        beside.get_or_insert(figures);
    }
    Ok(())
}

#[derive(Default)]
struct Found {
    first: Vec<Marking>,
    idle: Vec<Marking>,
    changed: Vec<Marking>,
}

fn one_store(options: &Options, place: &Path, group_bytes: u64, times: u64) -> Result<Found> {
    let binary = options.binary()?;
    let store = place.join("store");
    run(&binary, &["init", text(&store), "--profile", "sampled", "--compression", "none"])?;
    let mut random = Random::new(options.seed);
    let data = place.join("data");
    let backup = |name: &str| run(&binary, &["backup", "--store", text(&store), "--name", name, text(&data)]).map(drop);
    for group in 0..GROUPS {
        let bytes = if group == 0 { group_bytes } else { group_bytes * times };
        corpus::write_random(&data, bytes, &mut random)?;
        backup(&format!("group-{group}"))?;
    }
    let mut found = Found { first: vec![marking(&store)?], ..Found::default() };
    // One run more: the first one sweeps what was written before it.
    for number in 0..=options.runs {
        let idle = marking(&store)?;
        corpus::write_random(&data, group_bytes, &mut random)?;
        backup("group-0")?;
        run(&binary, &["forget", "--store", text(&store), "--name", "group-0", "--keep-last", "1"])?;
        let changed = marking(&store)?;
        if number > 0 {
            found.idle.push(idle);
            found.changed.push(changed);
        }
        run(&binary, &["prune", "--store", text(&store)])?;
    }
    fs::remove_dir_all(&store)?;
    Ok(found)
}

/// Looks at what is needed, as `prune` does before it removes anything.
fn marking(store: &Path) -> Result<Marking> {
    // What was written before does not keep the disk busy.
    Command::new("sync").status().context("cannot start `sync`")?;
    cold(store)?;
    let settings = Settings { background: false, ..Settings::default() };
    let engine = Engine::open(Arc::new(LocalGround::open(store)?), settings, Mode::ReadWrite, "bench")?;
    let (start, cpu_s) = (Instant::now(), own_cpu_s()?);
    let mut damaged = Vec::new();
    let survey = engine.survey(&mut StoreRoots::new(engine.digest_bytes()), &|| true, &mut damaged)?;
    let marking = Marking { wall_ms: start.elapsed().as_secs_f64() * 1e3, cpu_ms: (own_cpu_s()? - cpu_s) * 1e3 };
    if let Some(why) = survey.held.or(damaged.pop()) {
        bail!("marking was held up: {why}");
    }
    engine.close()?;
    Ok(marking)
}
