//! `scrub`: reading all that is stored from the device, at a set rate, to find what has rotted before somebody needs it.
//!
//! Container files, forwards, parity files and the pages of both indexes are read, past all caches, and their checksums verified. A pass goes through all of them in
//! one order, by steps; after each step it is written down how far it is (`state.rs`), so that it goes on there after any stop. From that
//! the claim of [`ScrubStatus::covered_since_ns`] is made. Several scrubs of one store, as that of a daemon and that of a person, share the work.
//!
//! A damaged container that has parity is made anew. What is missing altogether, and has none, is not found here but by `check`, which knows what
//! should be there.

mod pace;
mod state;

pub use pace::ScrubRate;

use crate::Result;
use crate::check::Monitor;
use onefold_engine::{ContainerId, Engine, Repair, Transaction};
use onefold_index::block::Verified;
use onefold_storage::{FORWARD_BYTES, ScrubbedParity, StorageError};
use pace::Pace;
use state::{Damage, Pass, Phase, Position, State};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The object of the state, and its partition.
const KEY: &[u8] = b"s";
const PARTITION: u16 = 0;
/// Containers, forwards or parity files of a step, at most;
const STEP_UNITS: usize = 64;
/// but no more containers than have so many bytes: others wait for their turn meanwhile, and what a step read is not written down before its end.
const STEP_BYTES: u64 = 64 << 20;
/// Files are listed anew after this time: what is younger than the list may count as covered by so much less than it could.
const LIST_AGE: Duration = Duration::from_secs(600);
/// Of the damaged pages of a partition of the chunk index so many are named, the others counted.
const NAMED_PAGES: usize = 10;

/// How to scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// How fast.
    pub rate: ScrubRate,
    /// For how long at most.
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
    Scrub { engine, clock: &now_ns }.run(options, monitor, go_on)
}

/// How far scrubbing is. A state that cannot be read counts as none.
pub fn scrub_status(engine: &Engine) -> Result<ScrubStatus> {
    Ok(status_of(&read_state(engine)?, now_ns()))
}

fn now_ns() -> i64 {
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
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

/// Files of a phase, as of one moment.
struct Listing {
    phase: Phase,
    ids: Vec<ContainerId>,
    time_ns: i64,
    made: Instant,
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

struct Scrub<'a> {
    engine: &'a Arc<Engine>,
    clock: &'a dyn Fn() -> i64,
}

impl Scrub<'_> {
    fn run(&self, options: ScrubOptions, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<ScrubReport> {
        let begun = Instant::now();
        let go_on = || go_on() && !monitor.is_cancelled() && options.limit.is_none_or(|limit| begun.elapsed() < limit);
        let mut report = ScrubReport::default();
        let stop = AtomicBool::new(false);
        let mut pace = Pace::new(options.rate, &stop);
        let mut listing = None;
        // The pass that is to be completed; another scrub may complete it too.
        let mut wanted: Option<i64> = None;
        let mut is_new = options.restart;
        let mut phase = None;
        while go_on() {
            let Some(_turn) = self.engine.scrub_turn() else { continue };
            let mut state = read_state(self.engine)?;
            let now = (self.clock)();
            if state.latest_ns() > now {
                // The clock was set back: nothing can be told from these times.
                (state.current, state.last) = (None, None);
                (wanted, listing) = (None, None);
            }
            if wanted.is_some() && state.current.as_ref().map(|pass| pass.started_ns) != wanted {
                report.is_complete = state.last.as_ref().map(|pass| pass.started_ns) == wanted;
                break;
            }
            if is_new {
                state.current = None;
                is_new = false;
            }
            let pass = state.current.get_or_insert_with(|| Pass::new(now));
            wanted = Some(pass.started_ns);
            let from = pass.position;
            if phase != Some(from.phase) {
                phase = Some(from.phase);
                self.announce(from.phase, monitor);
            }
            let step = self.step(pass, &mut listing, &mut pace, &stop, &go_on)?;
            (pass.position, pass.ended_ns) = (step.position, (self.clock)());
            pass.read_bytes += step.read_bytes;
            report.read_bytes += step.read_bytes;
            report.units += step.units;
            report.repaired.extend(step.repaired);
            monitor.advance(step.units);
            state.replace_damages(from, step.found);
            report.is_complete = step.position.is_end();
            if report.is_complete {
                state.complete();
            }
            self.write(&state)?;
            if report.is_complete {
                break;
            }
        }
        // What had none, or lost it, has parity again. On a full disk what was found is said all the same.
        if let Err(error) = self.engine.make_parity(true, &go_on).and_then(|_| self.engine.flush()) {
            report.failed =
                Some(format!("parity is not made, or it is not written down how far the scrub is; the next one tries it again: {error}"));
        }
        report.status = status_of(&read_state(self.engine)?, (self.clock)());
        Ok(report)
    }

    fn announce(&self, phase: Phase, monitor: &dyn Monitor) {
        let (what, total) = match phase {
            Phase::Containers => ("containers", self.engine.storage().statistics().containers),
            Phase::Forwards => ("forwards", 0),
            Phase::Parity => ("parity", self.engine.storage().parity_statistics().map_or(0, |parity| parity.groups)),
            Phase::ChunkIndex => ("chunk index", u64::from(self.engine.index().partitions())),
            Phase::BlockIndex => ("block index", u64::from(self.engine.block_partitions())),
            Phase::End => return,
        };
        monitor.step(what, total);
    }

    fn write(&self, state: &State) -> Result<()> {
        let changes = vec![(PARTITION, KEY.to_vec(), Some(state.encode()))];
        Ok(self.engine.submit(Transaction { changes, deltas: Vec::new() })?)
    }

    /// Reads on from the position of a pass.
    fn step(
        &self,
        pass: &mut Pass,
        listing: &mut Option<Listing>,
        pace: &mut Pace<'_>,
        stop: &AtomicBool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Step> {
        let from = pass.position;
        let step = Step { position: from, read_bytes: 0, units: 0, found: Vec::new(), repaired: Vec::new() };
        match from.phase {
            Phase::Containers | Phase::Forwards | Phase::Parity => {
                let ids = self.next_files(pass, listing)?;
                match ids.last() {
                    None => Ok(Step { position: from.phase.end(), ..step }),
                    Some(_) if from.phase == Phase::Containers => Ok(self.containers(&ids, step, pace, stop, go_on)),
                    Some(_) if from.phase == Phase::Forwards => self.forwards(&ids, step, pace, go_on),
                    Some(_) => self.parity(&ids, step, pace, go_on),
                }
            }
            Phase::ChunkIndex => {
                pass.sample((self.clock)());
                if from.unit >= u64::from(self.engine.index().partitions()) {
                    return Ok(Step { position: from.phase.end(), ..step });
                }
                self.chunk_index(step, pace, go_on)
            }
            Phase::BlockIndex => {
                pass.sample((self.clock)());
                if from.unit >= u64::from(self.engine.block_partitions()) {
                    return Ok(Step { position: from.phase.end(), ..step });
                }
                Ok(self.block_index(step, pace, go_on))
            }
            Phase::End => Ok(step),
        }
    }

    /// The files that come next, and when they were listed as a sample of the pass: what is not among them came later. So a list must not be
    /// older than the last sample, which another scrub may have taken.
    fn next_files(&self, pass: &mut Pass, listing: &mut Option<Listing>) -> Result<Vec<ContainerId>> {
        let Position { phase, unit } = pass.position;
        let is_usable =
            |listing: &Listing| listing.phase == phase && listing.time_ns >= pass.last_sample_ns() && listing.made.elapsed() < LIST_AGE;
        if !listing.as_ref().is_some_and(is_usable) {
            let (time_ns, made) = ((self.clock)(), Instant::now());
            let storage = self.engine.storage();
            let ids = match phase {
                Phase::Containers => storage.containers()?,
                Phase::Forwards => storage.forwards()?,
                _ => storage.parity_groups()?,
            };
            *listing = Some(Listing { phase, ids, time_ns, made });
        }
        let Some(listing) = listing else { return Ok(Vec::new()) };
        pass.sample(listing.time_ns);
        let first = listing.ids.partition_point(|id| id.bits() < unit);
        let of_containers = (STEP_BYTES / u64::from(self.engine.descriptor().container_bytes).max(1)).max(1) as usize;
        let units = if phase == Phase::Forwards { STEP_UNITS } else { STEP_UNITS.min(of_containers) };
        Ok(listing.ids[first..].iter().copied().take(units).collect())
    }

    fn containers(&self, ids: &[ContainerId], mut step: Step, pace: &mut Pace<'_>, stop: &AtomicBool, go_on: &dyn Fn() -> bool) -> Step {
        let look = || {
            if !go_on() {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let mut found = |container: ContainerId, scrubbed: onefold_storage::Scrubbed| {
            let position = Position { phase: Phase::Containers, unit: container.bits() };
            // Where it has parity, a damaged one is made anew.
            let repaired = if scrubbed.damage.is_empty() { Ok(Repair::Whole) } else { self.engine.repair_container(container) };
            match repaired {
                Ok(Repair::Repaired) => step.repaired.push(format!("container {container} was damaged and is made anew from parity")),
                Ok(Repair::Whole) => {}
                Ok(Repair::Impossible) => {
                    step.found.extend(scrubbed.damage.iter().map(|damage| Damage { position, what: damage.to_string() }))
                }
                Err(error) => {
                    let what = |damage: &StorageError| format!("{damage}; it could not be made anew from parity: {error}");
                    step.found.extend(scrubbed.damage.iter().map(|damage| Damage { position, what: what(damage) }));
                }
            }
            step.read_bytes += scrubbed.read_bytes;
            step.units += 1;
            step.position = position.next();
            look();
        };
        self.engine.storage().scrub(ids, &mut |bytes| pace.wait(bytes), &mut found, &mut || look());
        step
    }

    fn forwards(&self, ids: &[ContainerId], mut step: Step, pace: &mut Pace<'_>, go_on: &dyn Fn() -> bool) -> Result<Step> {
        for id in ids {
            if !pace.wait_while(FORWARD_BYTES as u64, go_on) {
                break;
            }
            let position = Position { phase: Phase::Forwards, unit: id.bits() };
            match self.engine.storage().scrub_forward(*id) {
                Ok(()) => {}
                Err(error @ (StorageError::Damaged { .. } | StorageError::Ground(_))) => {
                    step.found.push(Damage { position, what: error.to_string() });
                }
                Err(error) => return Err(error.into()),
            }
            step.read_bytes += FORWARD_BYTES as u64;
            step.units += 1;
            step.position = position.next();
        }
        Ok(step)
    }

    /// Parity files; and members that have lost theirs.
    fn parity(&self, groups: &[ContainerId], mut step: Step, pace: &mut Pace<'_>, go_on: &dyn Fn() -> bool) -> Result<Step> {
        for group in groups {
            // About as long as a container.
            if !pace.wait_while(u64::from(self.engine.descriptor().container_bytes), go_on) {
                break;
            }
            let position = Position { phase: Phase::Parity, unit: group.bits() };
            let scrubbed = self.engine.storage().scrub_parity(*group).unwrap_or_else(|error| ScrubbedParity {
                damaged_parity: Some(format!("the parity of group {group} cannot be read: {error}")),
                ..ScrubbedParity::default()
            });
            let made_anew = |container: ContainerId| format!("container {container} was lost and is made anew from parity");
            step.repaired.extend(scrubbed.repaired.into_iter().map(made_anew));
            let of_members = scrubbed.damage.iter().map(|damage| Damage { position, what: damage.to_string() });
            step.found.extend(of_members);
            if let Some(what) = scrubbed.damaged_parity {
                // Its members get parity anew; those that cannot be read still need it.
                let made = self.engine.make_parity(true, go_on);
                let is_there = self.engine.storage().parity_groups()?.binary_search(group).is_ok();
                if is_there && !go_on() {
                    break;
                }
                match made {
                    Ok(_) if !is_there => step.repaired.push(format!("parity was damaged and is made anew: {what}")),
                    Ok(_) => step.found.push(Damage { position, what }),
                    Err(error) => step.found.push(Damage { position, what: format!("{what}; it could not be made anew: {error}") }),
                }
            }
            step.read_bytes += scrubbed.read_bytes;
            step.units += 1;
            step.position = position.next();
        }
        Ok(step)
    }

    /// One partition of the chunk index. One of which not all was read is read again.
    fn chunk_index(&self, mut step: Step, pace: &mut Pace<'_>, go_on: &dyn Fn() -> bool) -> Result<Step> {
        let (read_bytes, was_stopped) = (Cell::new(0), Cell::new(false));
        let partition = step.position.unit as u32;
        let damaged = self.engine.index().verify_partition(partition, &mut |bytes| {
            if !pace.wait_while(bytes, go_on) {
                was_stopped.set(true);
                return false;
            }
            read_bytes.set(read_bytes.get() + bytes);
            true
        })?;
        step.read_bytes = read_bytes.get();
        if was_stopped.get() {
            return Ok(step);
        }
        let position = step.position;
        let named = damaged.iter().take(NAMED_PAGES).map(|page| format!("{}: page {}: {}", page.path, page.page, page.why));
        step.found.extend(named.map(|what| Damage { position, what }));
        if let Some(others) = damaged.len().checked_sub(NAMED_PAGES).filter(|others| *others > 0) {
            step.found
                .push(Damage { position, what: format!("{others} more pages of partition {partition} of the chunk index are damaged") });
        }
        (step.position, step.units) = (position.next(), 1);
        Ok(step)
    }

    fn block_index(&self, mut step: Step, pace: &mut Pace<'_>, go_on: &dyn Fn() -> bool) -> Step {
        let partition = step.position.unit as u16;
        let bytes = self.engine.block_index().file_bytes(partition);
        if !pace.wait_while(bytes, go_on) {
            return step;
        }
        let position = step.position;
        match self.engine.block_index().verify_partition(partition, go_on) {
            Verified::Whole => {}
            Verified::Damaged(damage) => step.found.push(Damage { position, what: format!("{}: {}", damage.path, damage.why) }),
            Verified::Stopped => return step,
        }
        (step.read_bytes, step.position, step.units) = (bytes, position.next(), 1);
        step
    }
}

#[cfg(test)]
mod tests;
