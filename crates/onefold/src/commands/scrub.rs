//! `onefold scrub`, and the daemon's own scrub.

use crate::cli::Scrub;
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::session::{Session, StoreCommand, store_command};
use crate::settings::Settings;
use crate::store::Store;
use crate::units::{counted, local_time, rate, size, utc_time};
use onefold_engine::{Engine, Mode};
use onefold_upkeep::{
    Clock, Monitor, NoMonitor, ScrubOptions, ScrubRate, ScrubReport, ScrubStatus, SystemClock, scrub, scrub_by, scrub_status,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

impl StoreCommand for Scrub {
    store_command!("scrub", far, waits, asks, ends_early);

    fn mode(&self) -> Mode {
        if self.status { Mode::Snapshot } else { Mode::ReadWrite }
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Continues the scrub, or only shows how far it is. Damage is a result with exit code 1.
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
        return Err(Failure::interrupted("stopped before the end; the next scrub continues from here"));
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

/// Returns in a sentence what the scrub guarantees.
pub fn coverage(status: &ScrubStatus) -> String {
    match status.covered_since_ns {
        Some(since) => format!("everything was read from the disk, or written, since {}", local_time(since)),
        None => "not everything was read from the disk yet".to_owned(),
    }
}

/// Returns the status as JSON.
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

/// How often the daemon's thread checks whether the daemon stops and whether a scrub is due.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a new daemon does other things first.
const FIRST_AFTER: Duration = Duration::from_secs(60);
/// How long it waits after an error.
const RETRY_AFTER: Duration = Duration::from_secs(600);

/// Scrubs in the background of a daemon. Continues an unfinished pass, and begins a new one when the last began long
/// enough ago.
pub fn beside_the_serving(store: &Store, stopping: &Arc<AtomicBool>) -> Result<Option<JoinHandle<()>>> {
    let Settings { scrub: settings, .. } = store.settings;
    if settings.interval_days == 0 {
        return Ok(None);
    }
    let beside = Beside {
        engine: store.engine.clone(),
        options: ScrubOptions {
            rate: settings.bytes_per_second.map_or(ScrubRate::Quarter, ScrubRate::BytesPerSecond),
            ..ScrubOptions::default()
        },
        interval_ns: i64::try_from(settings.interval_days * 86_400 * 1_000_000_000).unwrap_or(i64::MAX),
        clock: Box::new(SystemClock::start()),
    };
    let stopping = Arc::clone(stopping);
    let work = move || beside.work(&|| stopping.load(Ordering::Relaxed));
    let thread = std::thread::Builder::new().name("scrub".to_owned());
    thread.spawn(work).map(Some).map_err(|error| Failure::cannot_run(format!("cannot start a thread: {error}")))
}

/// The state of the daemon's thread.
struct Beside {
    engine: Arc<Engine>,
    options: ScrubOptions,
    interval_ns: i64,
    clock: Box<dyn Clock>,
}

impl Beside {
    /// Runs until the daemon stops.
    fn work(&self, is_stopping: &dyn Fn() -> bool) {
        let mut look_at = self.clock.elapsed() + FIRST_AFTER;
        while !is_stopping() {
            if self.clock.elapsed() < look_at {
                self.clock.sleep(LOOK_INTERVAL);
                continue;
            }
            look_at = self.clock.elapsed() + FIRST_AFTER;
            if let Err(error) = self.look(is_stopping) {
                tracing::warn!("the scrub failed; will retry: {error}");
                look_at = self.clock.elapsed() + RETRY_AFTER;
            }
        }
    }

    /// Scrubs if it is due. Continues where a user's scrub stopped.
    fn look(&self, is_stopping: &dyn Fn() -> bool) -> onefold_upkeep::Result<()> {
        let before = scrub_status(&self.engine)?;
        if !is_due(&before, self.interval_ns, self.clock.wall_ns()) {
            return Ok(());
        }
        let go_on = || !is_stopping() && !self.engine.is_scrub_waited_for();
        let ScrubReport { status, failed, .. } = scrub_by(&*self.clock, &self.engine, self.options, &NoMonitor, &go_on)?;
        failed.iter().for_each(|failed| tracing::warn!("{failed}"));
        let new = status.damages.iter().filter(|damage| !before.damages.contains(damage));
        new.for_each(|damage| tracing::error!("the scrub found damage: {damage}"));
        if status.under_way.is_none() {
            tracing::info!("scrubbed: {}; damaged: {}", coverage(&status), counted(status.damage_count, "thing", "things"));
        }
        Ok(())
    }
}

/// Returns whether a scrub is due: a pass has begun, or the last one began too long ago. A beginning in the future
/// counts too: the clock was set back.
fn is_due(status: &ScrubStatus, interval_ns: i64, now_ns: i64) -> bool {
    status.under_way.is_some() || status.last.is_none_or(|(started, ..)| now_ns.saturating_sub(started) >= interval_ns || started > now_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_engine::{Descriptor, Hints, Settings as EngineSettings};
    use onefold_ground::{Ground, SimulatedGround};
    use std::sync::Mutex;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);

    /// A clock that stands still until somebody sleeps.
    #[derive(Clone, Debug, Default)]
    struct Still(Arc<Mutex<Duration>>);

    impl Clock for Still {
        fn wall_ns(&self) -> i64 {
            SECOND.as_nanos() as i64 + self.elapsed().as_nanos() as i64
        }

        fn elapsed(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn sleep(&self, time: Duration) {
            *self.0.lock().unwrap() += time;
        }
    }

    fn beside(rate: ScrubRate, clock: &Still) -> Beside {
        let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
        let descriptor = Descriptor {
            index_partitions: 1,
            object_partitions: 1,
            container_bytes: 64 << 10,
            frame_bytes: 16 << 10,
            sequential_frame_bytes: 16 << 10,
            ..Descriptor::new().unwrap()
        };
        Engine::create(&ground, &descriptor).unwrap();
        let settings = EngineSettings { workers: 1, background: false, ..EngineSettings::default() };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "test").unwrap();
        let data: Vec<u8> = (0..1_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 ^ (at >> 12) as u8).collect();
        let mut stream = engine.stream();
        stream.write(&data, true, Hints::default(), &mut Vec::new()).unwrap();
        drop(stream);
        engine.flush().unwrap();
        let options = ScrubOptions { rate, ..ScrubOptions::default() };
        Beside { engine, options, interval_ns: 30 * DAY.as_nanos() as i64, clock: Box::new(clock.clone()) }
    }

    #[test]
    fn a_daemon_scrubs_a_minute_after_it_began_and_again_when_the_interval_is_over() {
        let clock = Still::default();
        let beside = beside(ScrubRate::Quarter, &clock);
        let passes = |until: Duration| {
            beside.work(&|| clock.elapsed() >= until);
            scrub_status(&beside.engine).unwrap().last.map(|(started, ..)| Duration::from_nanos(started as u64) - SECOND)
        };
        assert_eq!(passes(FIRST_AFTER - SECOND), None);
        // The thread restarts here, as in a restarted daemon.
        let first = passes(FIRST_AFTER * 3).unwrap();
        assert!(first >= FIRST_AFTER && first < FIRST_AFTER * 3, "{first:?}");
        clock.sleep(29 * DAY);
        assert_eq!(passes(clock.elapsed() + FIRST_AFTER * 3), Some(first));
        clock.sleep(DAY);
        let second = passes(clock.elapsed() + FIRST_AFTER * 3).unwrap();
        assert!(second > first + 30 * DAY, "{second:?}");
    }

    #[test]
    fn a_scrub_of_a_daemon_keeps_to_its_rate_and_stops_in_the_middle_of_a_wait() {
        let clock = Still::default();
        let beside = beside(ScrubRate::BytesPerSecond(100), &clock);
        // The first file takes minutes at this rate: the daemon stops long before.
        let end = FIRST_AFTER + 10 * SECOND;
        beside.work(&|| clock.elapsed() >= end);
        assert!(clock.elapsed() < end + LOOK_INTERVAL, "{:?}", clock.elapsed());
        let (_, read_bytes) = scrub_status(&beside.engine).unwrap().under_way.unwrap();
        let whole = beside.engine.descriptor().container_bytes as u64 * 2;
        assert!(read_bytes > 0 && read_bytes < whole, "{read_bytes}");
        // It continues there, at the set rate. The object index is read last: its bytes count, but nothing waits for
        // them.
        beside.work(&|| scrub_status(&beside.engine).unwrap().last.is_some());
        let (.., read_bytes) = scrub_status(&beside.engine).unwrap().last.unwrap();
        let took = (clock.elapsed() - end).as_secs_f64();
        let waited_for = (read_bytes - beside.engine.object_index().file_bytes(0)) as f64 / 100.0;
        let (least, most) = (waited_for - whole as f64 / 100.0, waited_for + 2.0 * FIRST_AFTER.as_secs_f64());
        assert!(took > least && took < most, "{read_bytes} bytes took {took} s, not {least} to {most}");
    }

    #[test]
    fn a_scrub_of_a_daemon_gives_way_to_one_that_somebody_waits_for() {
        let clock = Still::default();
        let beside = beside(ScrubRate::Unlimited, &clock);
        let waited_for = beside.engine.waited_for_scrub();
        beside.work(&|| clock.elapsed() >= FIRST_AFTER * 3);
        assert_eq!(scrub_status(&beside.engine).unwrap().last, None);
        drop(waited_for);
        beside.work(&|| clock.elapsed() >= FIRST_AFTER * 6);
        assert!(scrub_status(&beside.engine).unwrap().last.is_some());
    }

    #[test]
    fn a_daemon_goes_on_with_a_pass_and_begins_one_when_it_is_time() {
        let last = |started| ScrubStatus { last: Some((started, started + 5, 1)), ..ScrubStatus::default() };
        assert!(is_due(&ScrubStatus::default(), 100, 1000), "nothing was ever read");
        assert!(!is_due(&last(950), 100, 1000));
        assert!(is_due(&last(900), 100, 1000) && is_due(&last(1001), 100, 1000));
        assert!(is_due(&ScrubStatus { under_way: Some((999, 3)), ..last(950) }, 100, 1000));
    }
}
