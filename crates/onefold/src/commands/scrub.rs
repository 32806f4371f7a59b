//! `onefold scrub`, and the scrub that a daemon makes by itself.

use crate::cli::Scrub;
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::session::{Session, StoreCommand};
use crate::settings::Settings;
use crate::store::Store;
use crate::units::{counted, local_time, rate, size, utc_time};
use onefold_engine::Mode;
use onefold_reclaim::{Monitor, NoMonitor, ScrubOptions, ScrubRate, ScrubReport, ScrubStatus, scrub, scrub_status};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

impl StoreCommand for Scrub {
    fn name(&self) -> &'static str {
        "scrub"
    }

    fn directory(&self) -> &Path {
        &self.store.directory
    }

    fn mode(&self) -> Mode {
        if self.status { Mode::ReadOnly } else { Mode::ReadWrite }
    }

    fn ends_early(&self) -> bool {
        true
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Reads on, or only says how far it is. Damage is a result with exit code 1.
fn run(options: &Scrub, session: &Session<'_>) -> Result<Exit> {
    let begun = Instant::now();
    let report = if options.status {
        ScrubReport { status: scrub_status(&session.store.engine)?, ..ScrubReport::default() }
    } else {
        let scrub_options = ScrubOptions {
            rate: options.rate.map_or(ScrubRate::Unlimited, |rate| ScrubRate::BytesPerSecond(rate.0)),
            limit: options.time.map(|time| Duration::from_secs(time.0)),
            restart: options.restart,
        };
        let _waited_for = session.store.engine.waited_for_scrub();
        let scrubbed = scrub(&session.store.engine, scrub_options, session, &|| true);
        session.end_progress();
        scrubbed?
    };
    if session.is_cancelled() {
        return Err(Failure::interrupted("stopped before the end; the next scrub goes on from here"));
    }
    if let Some(failed) = &report.failed {
        session.note(failed);
    }
    let mut output = session.output();
    if options.format.json {
        let mut facts = to_json(&report.status);
        if !options.status {
            facts["complete"] = report.is_complete.into();
            facts["read_bytes"] = report.read_bytes.into();
            facts["repaired"] = report.repaired.clone().into();
        }
        output.json(&facts)?;
    } else {
        for repaired in &report.repaired {
            session.note(repaired);
        }
        for damage in &report.status.damages {
            output.line(damage)?;
        }
        if !session.quiet {
            if !options.status {
                let what = counted(report.units, "file or part of an index", "files and parts of indexes");
                output.line(format_args!(
                    "{:<9} {} in {what}, {}",
                    "read",
                    size(report.read_bytes),
                    rate(report.read_bytes, begun.elapsed())
                ))?;
            }
            print(&mut output, &report.status)?;
        }
    }
    output.finish()?;
    Ok(if report.status.damage_count == 0 { Exit::Done } else { Exit::Failed })
}

fn print(output: &mut Output<'_>, status: &ScrubStatus) -> Result<()> {
    if let Some((started, bytes)) = status.under_way {
        output.line(format_args!("{:<9} under way since {}, {} read so far", "pass", local_time(started), size(bytes)))?;
    }
    if let Some((started, ended, bytes)) = status.last {
        output.line(format_args!("{:<9} from {} to {}, {} read", "last pass", local_time(started), local_time(ended), size(bytes)))?;
    }
    output.line(format_args!("{:<9} {}", "coverage", coverage(status)))?;
    output.line(format_args!("{:<9} {}", "damaged", counted(status.damage_count, "thing", "things")))
}

/// What can be claimed, in a sentence.
pub fn coverage(status: &ScrubStatus) -> String {
    match status.covered_since_ns {
        Some(since) => format!("everything was read from the disk, or written, since {}", local_time(since)),
        None => "not everything was read from the disk yet".to_owned(),
    }
}

/// The status as JSON.
pub fn to_json(status: &ScrubStatus) -> Value {
    let time = |time: Option<i64>| time.map(utc_time);
    json!({
        "covered_since": time(status.covered_since_ns),
        "pass_started": time(status.under_way.map(|(started, _)| started)),
        "pass_read_bytes": status.under_way.map(|(_, bytes)| bytes),
        "last_started": time(status.last.map(|(started, ..)| started)),
        "last_finished": time(status.last.map(|(_, ended, _)| ended)),
        "last_read_bytes": status.last.map(|(.., bytes)| bytes),
        "damage_count": status.damage_count,
        "damages": status.damages,
    })
}

/// How often the daemon's thread looks whether the daemon stops, and whether it is time.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A daemon that has just begun has other things to do.
const FIRST_AFTER: Duration = Duration::from_secs(60);
/// When it is tried again after an error.
const RETRY_AFTER: Duration = Duration::from_secs(600);

/// Scrubs beside the serving: goes on with a pass that is under way, and begins one when the last began long enough ago.
pub fn beside_the_serving(store: &Store, stopping: &Arc<AtomicBool>) -> Result<Option<JoinHandle<()>>> {
    let Settings { scrub: settings, .. } = store.settings;
    if settings.interval_days == 0 {
        return Ok(None);
    }
    let options =
        ScrubOptions { rate: settings.bytes_per_second.map_or(ScrubRate::Quarter, ScrubRate::BytesPerSecond), ..ScrubOptions::default() };
    let (engine, stopping) = (store.engine.clone(), Arc::clone(stopping));
    let interval_ns = i64::try_from(settings.interval_days * 86_400 * 1_000_000_000).unwrap_or(i64::MAX);
    let work = move || {
        let mut look_at = Instant::now() + FIRST_AFTER;
        let is_stopping = || stopping.load(Ordering::Relaxed);
        while !is_stopping() {
            if Instant::now() < look_at {
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
            look_at = Instant::now() + FIRST_AFTER;
            // It goes on from where that of a person stopped.
            let scrubbed = scrub_status(&engine).and_then(|before| {
                let is_due = is_due(&before, interval_ns, now_ns());
                let report = if is_due {
                    Some(scrub(&engine, options, &NoMonitor, &|| !is_stopping() && !engine.is_scrub_waited_for())?)
                } else {
                    None
                };
                Ok((before, report))
            });
            match scrubbed {
                Ok((before, Some(ScrubReport { status, failed, .. }))) => {
                    failed.iter().for_each(|failed| tracing::warn!("{failed}"));
                    let new = status.damages.iter().filter(|damage| !before.damages.contains(damage));
                    new.for_each(|damage| tracing::error!("the scrub found damage: {damage}"));
                    if status.under_way.is_none() {
                        tracing::info!("scrubbed: {}; damaged: {}", coverage(&status), counted(status.damage_count, "thing", "things"));
                    }
                }
                Ok((_, None)) => {}
                Err(error) => {
                    tracing::warn!("the scrub could not go on, it is tried again later: {error}");
                    look_at = Instant::now() + RETRY_AFTER;
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("scrub".to_owned());
    thread.spawn(work).map(Some).map_err(|error| Failure::cannot_run(format!("cannot start a thread: {error}")))
}

/// Whether the daemon is to scrub: a pass is under way, or the last one began so long ago (or in the future: the clock was set back).
fn is_due(status: &ScrubStatus, interval_ns: i64, now_ns: i64) -> bool {
    status.under_way.is_some() || status.last.is_none_or(|(started, ..)| now_ns.saturating_sub(started) >= interval_ns || started > now_ns)
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_goes_on_with_a_pass_and_begins_one_when_it_is_time() {
        let last = |started| ScrubStatus { last: Some((started, started + 5, 1)), ..ScrubStatus::default() };
        assert!(is_due(&ScrubStatus::default(), 100, 1000), "nothing was ever read");
        assert!(!is_due(&last(950), 100, 1000));
        assert!(is_due(&last(900), 100, 1000) && is_due(&last(1001), 100, 1000));
        assert!(is_due(&ScrubStatus { under_way: Some((999, 3)), ..last(950) }, 100, 1000));
    }
}
