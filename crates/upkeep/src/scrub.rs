//! `scrub`: reading all that is stored from the device, at a set rate, to find what has rotted before somebody needs it.
//!
//! Container files, forwards, parity files and the pages of both indexes are read, past all caches, and their checksums verified. A pass goes through all of them in
//! one order, by steps; after each step it is written down how far it is (`state.rs`), so that it goes on there after any stop. From that
//! the claim of [`ScrubStatus::covered_since_ns`] is made. It is about these; the log, the headers of index files, second copies of the object index and the descriptor are read
//! by openings and by `check`. Several scrubs of one store, as that of a daemon and that of a person, share the work.
//!
//! A damaged container that has parity is made anew. What is missing altogether, and has none, is not found here but by `check`, which knows what
//! should be there.

mod pace;
mod reading;
mod state;

pub use pace::ScrubRate;

use crate::Monitor;
use crate::Result;
use crate::clock::{Clock, SystemClock};
use onefold_engine::{ContainerId, Engine, ScrubListing, Transaction};
use onefold_storage::ScrubThreads;
use pace::Pace;
use state::{Damage, Pass, Phase, Position, State};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The object of the state, and its partition.
const KEY: &[u8] = b"s";
const PARTITION: u16 = 0;
/// Containers, forwards or parity files of a step, at most;
const STEP_UNITS: usize = 64;
/// but no more containers than have so many bytes: others wait for their turn meanwhile, and what a step read is not written down before its end.
const STEP_BYTES: u64 = 256 << 20;
/// Files are listed anew after this time: what is younger than the list may count as covered by so much less than it could.
const LIST_AGE: Duration = Duration::from_secs(600);
/// Threads that read when the rate is not limited: while one verifies, the device works for the other. Else one file is read at a time: others are to notice little of it.
const THREADS: usize = 2;

/// How to scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// How fast.
    pub rate: ScrubRate,
    /// For how long at most. A partition of the object index that was begun is read to its end.
    pub limit: Option<Duration>,
    /// Whether to begin a new pass where one is under way.
    pub restart: bool,
}

impl Default for ScrubOptions {
    fn default() -> ScrubOptions {
        ScrubOptions { rate: ScrubRate::Unlimited, limit: None, restart: false }
    }
}

/// How far scrubbing is, and what it found. Times are nanoseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Everything that is stored was read from the device, or written, since then; `None`: not everything was ever read, or the clock was set back.
    pub covered_since_ns: Option<i64>,
    /// When the pass under way began, and the bytes that it has read; `None`: there is none.
    pub under_way: Option<(i64, u64)>,
    /// When the last complete pass began and ended, and the bytes that it read.
    pub last: Option<(i64, i64, u64)>,
    /// What was found damaged and not whole since; the first thousand.
    pub damages: Vec<String>,
    /// How many there are.
    pub damage_count: u64,
}

/// What one call of [`scrub`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes read by this call.
    pub read_bytes: u64,
    /// Files and partitions of indexes looked at by this call.
    pub units: u64,
    /// What this call made anew, containers and parity: one sentence each.
    pub repaired: Vec<String>,
    /// What could not be done at the end, for want of room perhaps: what was read and found is not concerned.
    pub failed: Option<String>,
    /// Whether the pass came to its end.
    pub is_complete: bool,
    /// How things are at the end.
    pub status: ScrubStatus,
}

/// Goes on with the pass under way, or begins one, until it is complete, the limit is reached or `go_on` says no. What was read until then stays read.
pub fn scrub(engine: &Arc<Engine>, options: ScrubOptions, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<ScrubReport> {
    scrub_by(&SystemClock::start(), engine, options, monitor, go_on)
}

/// The same by another clock.
pub fn scrub_by(
    clock: &dyn Clock,
    engine: &Arc<Engine>,
    options: ScrubOptions,
    monitor: &dyn Monitor,
    go_on: &dyn Fn() -> bool,
) -> Result<ScrubReport> {
    let threads = ScrubThreads::new(THREADS);
    Scrub { engine, clock, threads, stop: AtomicBool::new(false) }.run(options, monitor, go_on)
}

/// How far scrubbing is. A state that cannot be read counts as none.
pub fn scrub_status(engine: &Engine) -> Result<ScrubStatus> {
    Ok(status_of(&read_state(engine)?, SystemClock::start().wall_ns()))
}

fn read_state(engine: &Engine) -> Result<State> {
    let value = engine.get(PARTITION, KEY)?;
    Ok(value.and_then(|value| State::decode(&value).ok()).unwrap_or_default())
}

fn status_of(state: &State, now_ns: i64) -> ScrubStatus {
    ScrubStatus {
        covered_since_ns: state.covered_since(now_ns),
        under_way: state.current.as_ref().map(|pass| (pass.started_ns, pass.read_bytes)),
        last: state.last.as_ref().map(|pass| (pass.started_ns, pass.ended_ns, pass.read_bytes)),
        damages: state.damages.iter().map(|damage| damage.what.clone()).collect(),
        damage_count: state.damage_count(),
    }
}

/// What a step found.
struct Step {
    /// All before it was read.
    position: Position,
    read_bytes: u64,
    units: u64,
    found: Vec<Damage>,
    repaired: Vec<String>,
}

impl Step {
    fn at(position: Position) -> Step {
        Step { position, read_bytes: 0, units: 0, found: Vec::new(), repaired: Vec::new() }
    }
}

struct Scrub<'a> {
    engine: &'a Arc<Engine>,
    clock: &'a dyn Clock,
    threads: ScrubThreads,
    /// Tells the threads that read to stop.
    stop: AtomicBool,
}

/// What a scrub asks whether to go on.
struct GoOn<'a> {
    /// Whether it may: it was not cancelled.
    may: &'a dyn Fn() -> bool,
    /// And has time left.
    has_time: &'a dyn Fn() -> bool,
}

impl GoOn<'_> {
    fn asks(&self) -> bool {
        (self.may)() && (self.has_time)()
    }
}

impl Scrub<'_> {
    fn run(&self, options: ScrubOptions, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<ScrubReport> {
        let begun = self.clock.elapsed();
        let may = || go_on() && !monitor.is_cancelled();
        let has_time = || options.limit.is_none_or(|limit| self.clock.elapsed().saturating_sub(begun) < limit);
        let go_on = GoOn { may: &may, has_time: &has_time };
        let mut report = ScrubReport::default();
        let mut pace = Pace::new(options.rate, self.clock);
        // The pass that is to be completed; another scrub may complete it too.
        let mut wanted: Option<i64> = None;
        let mut is_new = options.restart;
        let mut phase = None;
        // Who once told the threads to stop has said no, whatever is said later.
        while !self.is_stopped() && go_on.asks() {
            let Some(mut listing) = self.engine.scrub_turn() else { continue };
            let mut state = read_state(self.engine)?;
            if state.latest_ns() > self.clock.wall_ns() {
                // The clock was set back: nothing can be told from these times.
                (state.current, state.last) = (None, None);
                (wanted, *listing) = (None, None);
            }
            if wanted.is_some() && state.current.as_ref().map(|pass| pass.started_ns) != wanted {
                report.is_complete = state.last.as_ref().map(|pass| pass.started_ns) == wanted;
                break;
            }
            if is_new {
                state.current = None;
                is_new = false;
            }
            let mut pass = match state.current.take() {
                Some(pass) => pass,
                None => {
                    *listing = None;
                    let Some(pass) = self.new_pass(&go_on)? else { break };
                    pass
                }
            };
            wanted = Some(pass.started_ns);
            let from = pass.position;
            if phase != Some(from.phase) {
                phase = Some(from.phase);
                self.announce(from.phase, monitor);
            }
            let step = self.step(&mut pass, &mut listing, &mut pace, &go_on)?;
            (pass.position, pass.ended_ns) = (step.position, self.clock.wall_ns());
            pass.read_bytes += step.read_bytes;
            state.current = Some(pass);
            report.read_bytes += step.read_bytes;
            report.units += step.units;
            report.repaired.extend(step.repaired);
            monitor.advance(step.units);
            state.replace_damages(from, step.found);
            report.is_complete = step.position.is_end();
            if report.is_complete {
                state.complete();
                *listing = None;
            }
            self.write(&state)?;
            if report.is_complete {
                break;
            }
        }
        // What had none, or lost it, has parity again. On a full disk what was found is said all the same.
        if let Err(error) = self.engine.make_parity(true, &|| go_on.asks()).and_then(|_| self.engine.flush()) {
            report.failed =
                Some(format!("parity is not made, or it is not written down how far the scrub is; the next one tries it again: {error}"));
        }
        report.status = status_of(&read_state(self.engine)?, self.clock.wall_ns());
        Ok(report)
    }

    fn announce(&self, phase: Phase, monitor: &dyn Monitor) {
        let (what, total) = match phase {
            Phase::Containers => ("containers", self.engine.storage().statistics().containers),
            Phase::Forwards => ("forwards", 0),
            Phase::Parity => ("parity", self.engine.storage().parity_statistics().map_or(0, |parity| parity.groups)),
            Phase::ChunkIndex => ("chunk index", u64::from(self.engine.descriptor().index_partitions)),
            Phase::ObjectIndex => ("object index", u64::from(self.engine.object_partitions())),
            Phase::End => return,
        };
        monitor.step(what, total);
    }

    fn write(&self, state: &State) -> Result<()> {
        let changes = vec![(PARTITION, KEY.to_vec(), Some(state.encode()))];
        Ok(self.engine.submit(Transaction { changes, references: Vec::new() })?)
    }

    /// A moment that a sample may be taken of; `None` where there is none now: see [`Engine::settled_moment`].
    fn settled_moment(&self, go_on: &GoOn<'_>) -> Result<Option<i64>> {
        Ok(self.engine.settled_moment(&|| self.clock.wall_ns(), &|| go_on.asks())?)
    }

    /// `None`: it is not begun, for the scrub is to stop.
    fn new_pass(&self, go_on: &GoOn<'_>) -> Result<Option<Pass>> {
        Ok(match self.settled_moment(go_on)? {
            Some(moment) => Some(Pass::new(moment)),
            None => go_on.asks().then(|| Pass::without_claim(self.clock.wall_ns())),
        })
    }

    /// Reads on from the position of a pass.
    fn step(&self, pass: &mut Pass, listing: &mut Option<ScrubListing>, pace: &mut Pace<'_>, go_on: &GoOn<'_>) -> Result<Step> {
        let from = pass.position;
        let (step, behind) = (Step::at(from), Step::at(from.phase.end()));
        match from.phase {
            Phase::Containers | Phase::Forwards | Phase::Parity => {
                let Some(ids) = self.next_files(pass, listing, go_on)? else { return Ok(step) };
                match from.phase {
                    _ if ids.is_empty() => Ok(behind),
                    Phase::Containers => Ok(self.containers(&ids, step, pace, go_on)),
                    Phase::Forwards => self.forwards(&ids, step, pace, go_on),
                    _ => self.parity(&ids, step, pace, go_on),
                }
            }
            Phase::ChunkIndex => {
                pass.sample(self.clock.wall_ns());
                if from.unit >> u32::BITS >= u64::from(self.engine.descriptor().index_partitions) {
                    return Ok(behind);
                }
                Ok(self.chunk_index(step, pace, go_on))
            }
            Phase::ObjectIndex => {
                pass.sample(self.clock.wall_ns());
                if from.unit >= u64::from(self.engine.object_partitions()) {
                    return Ok(behind);
                }
                Ok(self.object_index(step, pace, go_on))
            }
            Phase::End => Ok(step),
        }
    }

    /// The files that come next, and when they were listed as a sample of the pass: what is not among them came later. So a list must not be
    /// older than the last sample, which an earlier scrub may have taken. `None`: the scrub is to stop.
    fn next_files(&self, pass: &mut Pass, listing: &mut Option<ScrubListing>, go_on: &GoOn<'_>) -> Result<Option<Vec<ContainerId>>> {
        let Position { phase, unit } = pass.position;
        let is_usable = |listing: &ScrubListing| {
            let is_young = listing.made.elapsed() < LIST_AGE && listing.time_ns.is_none_or(|time_ns| time_ns >= pass.last_sample_ns());
            listing.phase == phase as u8 && is_young
        };
        if !listing.as_ref().is_some_and(is_usable) {
            let time_ns = self.settled_moment(go_on)?;
            if time_ns.is_none() && !go_on.asks() {
                return Ok(None);
            }
            let storage = self.engine.storage();
            let made = Instant::now();
            let ids = match phase {
                Phase::Containers => storage.containers()?,
                Phase::Forwards => storage.forwards()?,
                _ => storage.parity_groups()?,
            };
            *listing = Some(ScrubListing { phase: phase as u8, ids, time_ns, made });
        }
        let Some(listing) = listing else { return Ok(None) };
        if let Some(time_ns) = listing.time_ns {
            pass.sample(time_ns);
        }
        let first = listing.ids.partition_point(|id| id.bits() < unit);
        let of_containers = (STEP_BYTES / u64::from(self.engine.descriptor().container_bytes).max(1)).max(1) as usize;
        let units = if phase == Phase::Forwards { STEP_UNITS } else { STEP_UNITS.min(of_containers) };
        Ok(Some(listing.ids[first..].iter().copied().take(units).collect()))
    }
}

#[cfg(test)]
mod tests;
