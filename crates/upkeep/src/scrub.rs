//! `scrub`: reads everything that is stored from the device, at a set rate, to find rotten data before it is needed.
//!
//! Reads container files, forwards, parity files and the pages of both indexes, past all caches, and verifies their
//! checksums. A pass goes through all of them in one order, in steps. After each step it records its progress
//! (`state.rs`), so that it continues there after any stop.
//!
//! [`ScrubStatus::covered_since_ns`] is derived from this progress and covers these files. Openings and `check` read
//! the log, the headers of index files, the second copies of the object index and the descriptor. Several scrubs of one
//! store, such as a daemon's and a user's, share the work.
//!
//! A damaged container with parity is rebuilt. Only `check` finds a missing file without parity, because it knows what
//! should exist.

mod pace;
mod reading;
mod state;

pub use pace::ScrubRate;

use crate::Monitor;
use crate::Result;
use crate::clock::{Clock, SystemClock};
use onefold_engine::{ContainerId, Engine, ScrubListing, Transaction};
use onefold_storage::{ContainerSet, GroupId, ScrubThreads, UNIT_BLOCKS};
use pace::Pace;
use state::{Damage, Pass, Phase, Position, State};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The object of the state, and its partition.
const KEY: &[u8] = b"s";
const PARTITION: u16 = 0;
/// The most containers, forwards or parity files in a step,
const STEP_UNITS: usize = 64;
/// but no more containers than have this many bytes. Other scrubs wait for their turn meanwhile, and progress is
/// recorded only at the end of a step.
const STEP_BYTES: u64 = 256 << 20;
/// After this time, files are listed again. A file younger than the list may count as covered for up to this much less
/// time than possible.
const LIST_AGE: Duration = Duration::from_secs(600);
/// Reading threads when the rate is not limited: while one verifies, the device works for the other. Otherwise one file
/// is read at a time, to disturb others little.
const THREADS: usize = 2;

/// The options of a scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// The rate.
    pub rate: ScrubRate,
    /// The longest time to scrub. A partition of the object index is still read to its end once begun.
    pub limit: Option<Duration>,
    /// Whether to begin a new pass even if one is under way.
    pub restart: bool,
}

impl Default for ScrubOptions {
    fn default() -> ScrubOptions {
        ScrubOptions { rate: ScrubRate::Unlimited, limit: None, restart: false }
    }
}

/// The progress of scrubbing, and what it found. Times are nanoseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Everything stored was read from the device, or written, since this time. `None`: not everything was ever read,
    /// or the clock was set back.
    pub covered_since_ns: Option<i64>,
    /// The start of the current pass, and the bytes that it has read. `None`: no pass is under way.
    pub under_way: Option<(i64, u64)>,
    /// The start and end of the last complete pass, and the bytes that it read.
    pub last: Option<(i64, i64, u64)>,
    /// Damage that was found and has not been found repaired since. The first thousand.
    pub damages: Vec<String>,
    /// The number of all damages.
    pub damage_count: u64,
}

/// What one call of [`scrub`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes read by this call.
    pub read_bytes: u64,
    /// Files and partitions of indexes read by this call.
    pub units: u64,
    /// Containers and parity that this call rebuilt, one sentence each.
    pub repaired: Vec<String>,
    /// What failed at the end, perhaps for lack of space. It does not affect what was read and found.
    pub failed: Option<String>,
    /// Whether the pass is complete.
    pub is_complete: bool,
    /// The status at the end.
    pub status: ScrubStatus,
}

/// Continues the current pass, or begins one, until it is complete, the limit is reached or `go_on` returns false.
/// Progress is kept.
pub fn scrub(engine: &Arc<Engine>, options: ScrubOptions, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<ScrubReport> {
    scrub_by(&SystemClock::start(), engine, options, monitor, go_on)
}

/// Does the same by another clock.
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

/// Returns the progress of scrubbing. An unreadable state counts as none.
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
    /// Everything before this was read.
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
    /// Tells the reading threads to stop.
    stop: AtomicBool,
}

/// Decides whether a scrub goes on.
struct GoOn<'a> {
    /// Returns whether it may go on: it was not cancelled.
    may: &'a dyn Fn() -> bool,
    /// Returns whether it has time left.
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
        // The pass to complete. Another scrub may complete it too.
        let mut wanted: Option<i64> = None;
        let mut is_new = options.restart;
        let mut phase = None;
        // A stop of the threads is final, whatever `go_on` says later.
        while !self.is_stopped() && go_on.asks() {
            let Some(mut listing) = self.engine.scrub_turn() else { continue };
            let mut state = read_state(self.engine)?;
            if state.latest_ns() > self.clock.wall_ns() {
                // The clock was set back, so these times prove nothing.
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
        // Groups without parity, or whose parity was lost, get it again. On a full disk the findings are still
        // reported.
        if let Err(error) = self.engine.make_parity(true, &|| go_on.asks()).and_then(|_| self.engine.flush()) {
            report.failed = Some(format!("parity or the progress of the scrub could not be written; the next scrub retries: {error}"));
        }
        report.status = status_of(&read_state(self.engine)?, self.clock.wall_ns());
        Ok(report)
    }

    fn announce(&self, phase: Phase, monitor: &dyn Monitor) {
        let (what, total) = match phase {
            Phase::Containers => ("containers", self.count_units()),
            Phase::Forwards => ("forwards", 0),
            Phase::Parity => (
                "parity",
                self.engine.containers().map_or(0, |containers| containers.parity_statistics().map_or(0, |parity| parity.groups)),
            ),
            Phase::ChunkIndex => ("chunk index", self.engine.index_partitions()),
            Phase::ObjectIndex => ("object index", u64::from(self.engine.all_object_partitions())),
            Phase::End => return,
        };
        monitor.step(what, total);
    }

    /// Returns about how many units there are.
    fn count_units(&self) -> u64 {
        match self.engine.containers() {
            Some(containers) => containers.statistics().containers,
            None => self.engine.storage().units().map_or(0, |units| units.len() as u64),
        }
    }

    fn write(&self, state: &State) -> Result<()> {
        let changes = vec![(PARTITION, KEY.to_vec(), Some(state.encode()))];
        Ok(self.engine.submit(Transaction { changes, references: Vec::new() })?)
    }

    /// Returns a moment at which a sample may be taken, or `None` if there is none now. See [`Engine::settled_moment`].
    fn settled_moment(&self, go_on: &GoOn<'_>) -> Result<Option<i64>> {
        Ok(self.engine.settled_moment(&|| self.clock.wall_ns(), &|| go_on.asks())?)
    }

    /// Begins a pass. Returns `None` if the scrub must stop.
    fn new_pass(&self, go_on: &GoOn<'_>) -> Result<Option<Pass>> {
        Ok(match self.settled_moment(go_on)? {
            Some(moment) => Some(Pass::new(moment)),
            None => go_on.asks().then(|| Pass::without_claim(self.clock.wall_ns())),
        })
    }

    /// Continues reading at the position of a pass.
    fn step(&self, pass: &mut Pass, listing: &mut Option<ScrubListing>, pace: &mut Pace<'_>, go_on: &GoOn<'_>) -> Result<Step> {
        let from = pass.position;
        let (step, behind) = (Step::at(from), Step::at(from.phase.end()));
        match from.phase {
            Phase::Containers | Phase::Forwards => {
                let Some(ids) = self.next_files(pass, listing, go_on)? else { return Ok(step) };
                match from.phase {
                    _ if ids.is_empty() => Ok(behind),
                    Phase::Containers => Ok(self.containers(&ids, step, pace, go_on)),
                    _ => match self.engine.containers() {
                        Some(containers) => self.forwards(containers, &ids, step, pace, go_on),
                        None => Ok(behind),
                    },
                }
            }
            Phase::Parity => {
                // Only a sample, for up to the age of a list: parity files are listed by folder, when they are read.
                if self.next_files(pass, listing, go_on)?.is_none() {
                    return Ok(step);
                }
                let Some(containers) = self.engine.containers() else { return Ok(behind) };
                let groups = containers.parity_groups_from(GroupId::from_bits(from.unit), self.units_of_a_step())?;
                if groups.is_empty() { Ok(behind) } else { self.parity(containers, &groups, step, pace, go_on) }
            }
            Phase::ChunkIndex => {
                pass.sample(self.clock.wall_ns());
                if from.unit >> u32::BITS >= self.engine.index_partitions() {
                    return Ok(behind);
                }
                Ok(self.chunk_index(step, pace, go_on))
            }
            Phase::ObjectIndex => {
                pass.sample(self.clock.wall_ns());
                if from.unit >= u64::from(self.engine.all_object_partitions()) {
                    return Ok(behind);
                }
                Ok(self.object_index(step, pace, go_on))
            }
            Phase::End => Ok(step),
        }
    }

    /// Returns the next files. Adds the time of their list to the pass as a sample, because files not in the list came
    /// later. So the list must not be older than the last sample, which an earlier scrub may have taken. Returns `None`
    /// if the scrub must stop.
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
                Phase::Containers => storage.units()?,
                Phase::Forwards => storage.forwards()?,
                _ => ContainerSet::default(),
            };
            *listing = Some(ScrubListing { phase: phase as u8, ids, time_ns, made });
        }
        let Some(listing) = listing else { return Ok(None) };
        if let Some(time_ns) = listing.time_ns {
            pass.sample(time_ns);
        }
        let units = if phase == Phase::Forwards { STEP_UNITS } else { self.units_of_a_step() };
        Ok(Some(listing.ids.iter_from(ContainerId::from_bits(unit)).take(units).collect()))
    }

    /// Returns how many containers or parity files a step reads.
    fn units_of_a_step(&self) -> usize {
        let descriptor = self.engine.descriptor();
        let unit_bytes = match descriptor.block_bytes() {
            Some(block_bytes) => u64::from(block_bytes) * UNIT_BLOCKS,
            None => u64::from(descriptor.container_bytes),
        };
        STEP_UNITS.min((STEP_BYTES / unit_bytes.max(1)).max(1) as usize)
    }
}

#[cfg(test)]
mod tests;
