//! `check --repair`: what can be made whole is, what cannot is put in quarantine, nothing is destroyed (`docs/decisions/0020-repair-and-quarantine.md`).
//!
//! Steps, each of which leaves a sound store behind, so that a repair that is cut short is simply run again, and a second one finds nothing to do:
//! 1. what opening needs is salvaged ([`salvage`]), and the chunk index is made anew if it, or a page of it, cannot be read;
//! 2. forwards of merged containers that are missing or damaged are written anew;
//! 3. chunks in quarantine that can be read again are restored;
//! 4. every container is read; what parity gives back and headers that can be known are made anew; chunks that cannot be, or whose bytes are not theirs, go into quarantine;
//! 5. so does what the chunk index has in containers that are missing or whose catalog cannot be read;
//! 6. a check: if it finds counts or places that are wrong, the chunk index is made anew; what is then still missing goes into quarantine, and what
//!    has another copy comes out of it;
//! 7. the check whose findings are reported: what is lost, and who needs it.
//!
//! A dry run takes the same steps on a store that is open for reading, and does none of it.

use crate::Result;
use crate::check::{Check, CheckOptions, CheckReport, Monitor, ProblemKind};
use crate::reading::look_into_all;
use crate::rebuild::rebuild_chunk_index;
use crate::references::of_chunk;
use crate::salvage::salvage;
use crate::suspects::{self, Suspects};
use onefold_engine::{Address, ContainerId, Engine, EngineError, LostChunk, Mode, Piece, Quarantined, Repair as Repaired, Settings};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Ground;
use onefold_index::IndexError;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How to repair.
#[derive(Clone, Copy, Debug)]
pub struct RepairOptions {
    /// Change nothing, only say what would be done.
    pub dry_run: bool,
    /// Bound of the tables of its checks, bytes ([`CheckOptions::memory_bytes`]).
    pub memory_bytes: usize,
}

/// What a repair did, or would do, and what it leaves.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// One sentence for each thing that was done, or would be.
    pub actions: Vec<String>,
    /// Chunks put in quarantine.
    pub quarantined_chunks: u64,
    /// Chunks taken out of quarantine because they can be read again.
    pub restored_chunks: u64,
    /// The check afterwards. After a dry run: of the store as it is, with everything named that is affected by what cannot be read.
    pub check: CheckReport,
}

/// Entries of the index that are looked at before those that are lost are put in quarantine: bounds memory.
const LOST_AT_ONCE: usize = 1 << 16;

/// A repair under way.
struct Repair<'a> {
    ground: Arc<dyn Ground>,
    settings: Settings,
    options: RepairOptions,
    command: &'a str,
    monitor: &'a dyn Monitor,
    report: RepairReport,
    /// What a dry run found to be lost.
    would_be_lost: Vec<Fingerprint>,
}

/// Repairs a store that nobody else has open. Damage that cannot be repaired is in the report; an error is what kept the repair from going on: what
/// was done until then is done. One that the monitor cancels stops between two containers.
pub fn repair(
    ground: Arc<dyn Ground>,
    settings: Settings,
    options: RepairOptions,
    command: &str,
    monitor: &dyn Monitor,
) -> Result<RepairReport> {
    let settings = Settings { background: false, ..settings };
    let report = RepairReport::default();
    let mut repair = Repair { ground, settings, options, command, monitor, report, would_be_lost: Vec::new() };
    repair.run()?;
    Ok(repair.report)
}

impl Repair<'_> {
    fn run(&mut self) -> Result<()> {
        let Some(mut engine) = self.open_with_index()? else { return Ok(()) };
        self.lost_containers(&engine)?;
        self.forwards(&engine)?;
        self.restore(&engine)?;
        let unreadable = self.containers(&engine)?;
        self.what_was_in(&engine, &unreadable)?;
        if self.monitor.is_cancelled() {
            return self.close(engine);
        }
        if !self.options.dry_run {
            engine.settle_quarantine()?;
            let wrong = self.wrong_index(&engine)?;
            if self.monitor.is_cancelled() {
                return self.close(engine);
            }
            let may_be_elsewhere = wrong.is_some() || self.report.quarantined_chunks > 0;
            if let Some(why) = wrong {
                self.close(engine)?;
                engine = self.rebuild(&why)?;
                engine.settle_quarantine()?;
            }
            if may_be_elsewhere {
                // Another container may have what the index named in one that cannot be read.
                self.restore(&engine)?;
            }
        }
        self.last_look(&engine)?;
        self.close(engine)
    }

    fn close(&self, engine: Arc<Engine>) -> Result<()> {
        Ok(engine.close()?)
    }

    fn open(&self) -> onefold_engine::Result<Arc<Engine>> {
        let mode = if self.options.dry_run { Mode::ReadOnly } else { Mode::ReadWrite };
        Engine::open(self.ground.clone(), self.settings.clone(), mode, self.command)
    }

    fn did(&mut self, what: String) {
        self.report.actions.push(what);
    }

    /// Step 1. `None`: a dry run can look no further.
    fn open_with_index(&mut self) -> Result<Option<Arc<Engine>>> {
        self.report.actions = salvage(&self.ground, &self.settings, self.options.dry_run, self.command, self.monitor)?;
        let engine = match self.open() {
            Ok(engine) => engine,
            Err(error) if is_of_chunk_index(&error, &*self.ground) => {
                if self.options.dry_run {
                    self.did(format!("the chunk index would be made anew: {error}"));
                    self.report.check = CheckReport::of_opening(&error);
                    return Ok(None);
                }
                return self.rebuild(&error.to_string()).map(Some);
            }
            // What would be salvaged is not.
            Err(error) if self.options.dry_run && error.is_damage() && !self.report.actions.is_empty() => {
                self.report.check = CheckReport::of_opening(&error);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let pages = engine.index().verify()?;
        let Some(first) = pages.first() else { return Ok(Some(engine)) };
        let why = format!("{} pages of it are damaged, one is page {} of {}: {}", pages.len(), first.page, first.path, first.why);
        if self.options.dry_run {
            self.did(format!("the chunk index would be made anew: {why}"));
            // The other steps need it.
            let options = CheckOptions { read_data: true, ..self.check_options() };
            self.report.check = Check::new(&engine, options, self.monitor).run()?.report;
            return Ok(None);
        }
        // Not closed: what is in memory for a page that cannot be read is in the log.
        drop(engine);
        self.rebuild(&why).map(Some)
    }

    fn rebuild(&mut self, why: &str) -> Result<Arc<Engine>> {
        // What cannot be read for it is found by the steps that follow.
        rebuild_chunk_index(self.ground.clone(), self.settings.clone(), self.command, self.monitor)?;
        self.did(format!("the chunk index was made anew: {why}"));
        Ok(self.open()?)
    }

    /// Containers without a file that parity gives back, and containers whose header can be.
    fn lost_containers(&mut self, engine: &Arc<Engine>) -> Result<()> {
        if !self.options.dry_run {
            for container in engine.storage().repair_lost()?.0 {
                self.did(format!("container {container} was made anew from parity"));
            }
            // Before forwards are looked at: these lead to what can be read.
            for container in engine.storage().containers()? {
                if engine.storage().catalog(container).is_err() {
                    self.container_anew(engine, container)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a container anew from parity, or its header; false if neither is possible.
    fn container_anew(&mut self, engine: &Arc<Engine>, container: ContainerId) -> Result<bool> {
        // One that cannot be made anew (the disk is full) keeps nobody from looking at the others.
        match engine.repair_container(container) {
            Ok(Repaired::Repaired) => {
                self.did(format!("container {container} was made anew from parity"));
                return Ok(true);
            }
            Ok(_) => {}
            Err(error) => self.did(format!("container {container} could not be made anew from parity: {error}")),
        }
        let is_written = match engine.storage().repair_header(container, self.options.dry_run) {
            Ok(is_written) => is_written,
            Err(error) => {
                self.did(format!("the header of container {container} could not be written anew: {error}"));
                return Ok(false);
            }
        };
        if is_written {
            let done = if self.options.dry_run { "would be" } else { "was" };
            self.did(format!("the header of container {container} {done} written anew"));
        }
        Ok(is_written)
    }

    /// Step 2. A merged container says itself whose chunks it has; of several the one that was made last counts.
    fn forwards(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let storage = engine.storage();
        let containers = storage.containers()?;
        let mut answers: BTreeMap<ContainerId, ContainerId> = BTreeMap::new();
        for container in &containers {
            let Ok(catalog) = storage.catalog(*container) else { continue };
            if catalog.container == *container && catalog.homes.is_some() {
                answers.extend(catalog.home_containers().iter().map(|home| (*home, *container)));
            }
        }
        answers.retain(|home, _| containers.binary_search(home).is_err() && storage.verify_forward(*home).is_err());
        let mut by_target: BTreeMap<ContainerId, Vec<ContainerId>> = BTreeMap::new();
        answers.into_iter().for_each(|(home, target)| by_target.entry(target).or_default().push(home));
        for (target, homes) in by_target {
            let names = homes.iter().map(ContainerId::to_string).collect::<Vec<_>>().join(", ");
            if self.options.dry_run {
                self.did(format!("the forwards of containers {names} to container {target} would be written anew"));
            } else {
                storage.repair_forwards(&homes, target)?;
                self.did(format!("the forwards of containers {names} to container {target} were written anew"));
            }
        }
        Ok(())
    }

    /// Step 3.
    fn restore(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let mut given_up = Vec::new();
        engine.for_each_dead(&mut |container, dead| given_up.extend(dead.is_given_up().then_some(container)))?;
        if !self.options.dry_run {
            given_up.into_iter().try_for_each(|container| engine.take_up_container(container).map(drop))?;
        }
        let mut all: Vec<Quarantined> = Vec::new();
        engine.for_each_quarantined(&mut |chunk| all.push(chunk))?;
        self.monitor.step("chunks in quarantine", all.len() as u64);
        let before = self.report.restored_chunks;
        let places = self.find_places(engine, &all)?;
        for chunk in &all {
            if self.monitor.is_cancelled() {
                break;
            }
            for address in places.get(&chunk.fingerprint).into_iter().flatten() {
                let copy = Quarantined { address: *address, ..*chunk };
                if let Some(references) = readable(engine, &copy)? {
                    self.report.restored_chunks += u64::from(self.options.dry_run || engine.restore_chunk(&copy, &references)?);
                    break;
                }
            }
            self.monitor.advance(1);
        }
        let count = self.report.restored_chunks - before;
        if count > 0 {
            let done = if self.options.dry_run { "would be restored" } else { "were restored" };
            self.did(format!("{count} chunks in quarantine can be read again and {done}"));
        }
        Ok(())
    }

    /// All places where chunks in quarantine may be: where they were lost, and every copy in a container, which the index may not have known.
    fn find_places(&self, engine: &Arc<Engine>, chunks: &[Quarantined]) -> Result<HashMap<Fingerprint, Vec<Address>>> {
        let known = |chunk: &Quarantined| (chunk.address.bits() != 0).then_some(chunk.address).into_iter().collect();
        let mut places: HashMap<Fingerprint, Vec<Address>> = chunks.iter().map(|chunk| (chunk.fingerprint, known(chunk))).collect();
        if places.is_empty() {
            return Ok(places);
        }
        for container in engine.storage().containers()? {
            if self.monitor.is_cancelled() {
                break;
            }
            for (address, slot) in engine.storage().slots(container).unwrap_or_default() {
                if let Some(known) = places.get_mut(&slot.fingerprint)
                    && !known.contains(&address)
                {
                    known.push(address);
                }
            }
        }
        Ok(places)
    }

    /// Step 4. Returns the container files whose catalog cannot be read, and why.
    fn containers(&mut self, engine: &Arc<Engine>) -> Result<BTreeMap<ContainerId, String>> {
        let containers = engine.storage().containers()?;
        self.monitor.step("containers and data", containers.len() as u64);
        let (mut suspect, monitor) = (Vec::new(), self.monitor);
        look_into_all(engine, &containers, true, &|| !monitor.is_cancelled(), &mut |looked| {
            suspect.extend(suspects::is_suspect(&looked).then_some(looked.container));
            monitor.advance(1);
        });
        suspect.sort_unstable();
        let mut unreadable = BTreeMap::new();
        for container in suspect {
            if self.monitor.is_cancelled() {
                break;
            }
            if self.container_anew(engine, container)? && self.options.dry_run {
                continue;
            }
            match suspects::of(engine, container)? {
                Suspects::None => {}
                Suspects::Chunks { lost, why } => self.lose(engine, &lost, &format!("container {container}: {why}"))?,
                Suspects::All { why } => drop(unreadable.insert(container, why)),
            }
        }
        Ok(unreadable)
    }

    /// Step 5.
    fn what_was_in(&mut self, engine: &Arc<Engine>, unreadable: &BTreeMap<ContainerId, String>) -> Result<()> {
        let mut homes: BTreeMap<ContainerId, Option<String>> = BTreeMap::new();
        // Why the chunks with addresses of a container cannot be had; `None`: they can.
        let ask = |home: ContainerId| -> Result<Option<String>> {
            let file = match suspects::lasting(|| engine.storage().current(home))? {
                Ok(file) => file,
                Err(error) => return Ok(Some(error.to_string())),
            };
            match unreadable.get(&file) {
                Some(why) => Ok(Some(why.clone())),
                None => Ok(suspects::lasting(|| engine.storage().catalog(file))?.err().map(|error| error.to_string())),
            }
        };
        let mut why_not = |home: ContainerId| match homes.entry(home) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(place) => ask(home).map(|why| place.insert(why).clone()),
        };
        self.monitor.step("places of chunks", u64::from(engine.index().partitions()));
        for partition in 0..engine.index().partitions() {
            loop {
                if self.monitor.is_cancelled() {
                    return Ok(());
                }
                let mut lost: BTreeMap<ContainerId, (String, Vec<LostChunk>)> = BTreeMap::new();
                let (mut count, mut failed) = (0, None);
                engine.index().for_each(partition, &mut |fingerprint, entry| {
                    let address = Address::from_bits(entry.address);
                    if entry.address != 0 && count < LOST_AT_ONCE && failed.is_none() {
                        match why_not(address.container()) {
                            Ok(None) => {}
                            Ok(Some(why)) => {
                                let chunk = LostChunk { fingerprint: *fingerprint, address, slot: None };
                                lost.entry(address.container()).or_insert_with(|| (why, Vec::new())).1.push(chunk);
                                count += 1;
                            }
                            Err(error) => failed = Some(error),
                        }
                    }
                    Ok(())
                })?;
                if let Some(error) = failed {
                    return Err(error);
                }
                for (container, (why, lost)) in lost {
                    self.lose(engine, &lost, &format!("container {container} cannot be read: {why}"))?;
                }
                if count < LOST_AT_ONCE || self.options.dry_run {
                    break;
                }
            }
            self.monitor.advance(1);
        }
        if !self.options.dry_run {
            unreadable.keys().try_for_each(|container| engine.give_up_container(*container))?;
            self.give_up_dead_ends(engine)?;
        }
        Ok(())
    }

    /// Forwards that lead nowhere have lost their chunks to the quarantine by now.
    fn give_up_dead_ends(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let storage = engine.storage();
        for id in storage.forwards()? {
            if storage.verify_forward(id).is_err() {
                let target = storage.forward_target(id).filter(|target| storage.catalog(*target).is_err());
                engine.give_up_container(target.unwrap_or(id))?;
            }
        }
        Ok(())
    }

    /// Puts chunks in quarantine.
    fn lose(&mut self, engine: &Arc<Engine>, lost: &[LostChunk], why: &str) -> Result<()> {
        if !self.options.dry_run {
            let count = engine.quarantine(lost)?.len() as u64;
            self.report.quarantined_chunks += count;
            self.did(format!("{count} chunks were put in quarantine: {why}"));
            return Ok(());
        }
        let names: Vec<Fingerprint> = lost.iter().map(|chunk| chunk.fingerprint).collect();
        let mut entries = Vec::with_capacity(names.len());
        engine.index().lookup(&names, &mut entries)?;
        let named = lost.iter().zip(entries).filter(|(chunk, entry)| entry.is_some_and(|entry| entry.address == chunk.address.bits()));
        let named: Vec<Fingerprint> = named.map(|(chunk, _)| chunk.fingerprint).collect();
        self.report.quarantined_chunks += named.len() as u64;
        self.did(format!("{} chunks would be put in quarantine: {why}", named.len()));
        self.would_be_lost.extend(named);
        Ok(())
    }

    fn check_options(&self) -> CheckOptions {
        CheckOptions { read_data: false, memory_bytes: self.options.memory_bytes }
    }

    /// Step 6: puts in quarantine what nobody has; returns why the chunk index must be made anew, if it must.
    fn wrong_index(&mut self, engine: &Arc<Engine>) -> Result<Option<String>> {
        let check = Check::new(engine, self.check_options(), self.monitor).run()?;
        // Without the slots of all containers nobody knows what is in none.
        if let Some(error) = check.unread {
            return Err(error.into());
        }
        let missing: Vec<Fingerprint> = check.missing.iter().copied().collect();
        let mut entries = Vec::with_capacity(missing.len());
        engine.index().lookup(&missing, &mut entries)?;
        let named = missing.iter().zip(&entries).filter_map(|(fingerprint, entry)| {
            let address = Address::from_bits(entry.as_ref()?.address);
            Some(LostChunk { fingerprint: *fingerprint, address, slot: None })
        });
        let named: Vec<LostChunk> = named.collect();
        if !named.is_empty() {
            self.lose(engine, &named, "no container has them")?;
        }
        let is_of_index = |kind| matches!(kind, ProblemKind::WrongCount | ProblemKind::WrongAddress | ProblemKind::IndexPage);
        let problems = &check.report.problems;
        let wrong = problems.iter().find(|problem| is_of_index(problem.kind));
        if let Some(problem) = wrong {
            let count = problems.iter().filter(|problem| is_of_index(problem.kind)).count();
            return Ok(Some(format!("it says what is not so in {count} cases, one is: {}", problem.what)));
        }
        if named.len() < missing.len() {
            return Ok(Some("it lacks chunks that are needed".into()));
        }
        self.counts_too_much(engine)
    }

    /// Counts that are known to be too great can be set right when no lost chunk needs them any more.
    fn counts_too_much(&self, engine: &Arc<Engine>) -> Result<Option<String>> {
        let mut counted = Vec::new();
        engine.for_each_quarantined(&mut |chunk| {
            if chunk.may_refer() && chunk.is_counted {
                counted.push(chunk.fingerprint);
            }
        })?;
        let mut entries = Vec::with_capacity(counted.len());
        engine.index().lookup(&counted, &mut entries)?;
        let is_all_unneeded = !counted.is_empty() && entries.iter().all(Option::is_none);
        Ok(is_all_unneeded.then(|| "it counts references of lost chunks that nobody needs any more".into()))
    }

    /// Step 7.
    fn last_look(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let mut check = Check::new(engine, self.check_options(), self.monitor);
        self.would_be_lost.drain(..).for_each(|fingerprint| check.lost.insert(fingerprint));
        // Whether anything needs these decides whether chunks are removed: they are looked for by name, not only where reading fails.
        let in_doubt = if self.options.dry_run { Vec::new() } else { engine.lost_in_doubt()? };
        in_doubt.iter().for_each(|fingerprint| check.lost.insert(*fingerprint));
        let check = check.run()?;
        let problems = &check.report.problems;
        let is_unreachable = check.lost.is_complete()
            && check.report.problem_count == problems.len() as u64
            && problems.iter().all(|problem| problem.kind == ProblemKind::Quarantined);
        if !in_doubt.is_empty() && is_unreachable && !self.monitor.is_cancelled() && engine.why_nothing_is_removed()?.is_some() {
            engine.note_unreachable()?;
            self.did("no backup and no volume needs what is in quarantine: unused chunks may be removed again".into());
        }
        self.report.check = check.report;
        Ok(())
    }
}

/// Whether making the chunk index anew may help. If it is something else after all, that fails before it changes anything.
fn is_of_chunk_index(error: &EngineError, ground: &dyn Ground) -> bool {
    match error {
        EngineError::Index(IndexError::ChunkIndexDamaged { .. } | IndexError::Mismatch { .. }) => true,
        EngineError::Index(IndexError::Ground(error)) => error.is_not_found(),
        EngineError::Inconsistent { .. } => Engine::is_rebuild_cut_short(ground).unwrap_or(false),
        _ => false,
    }
}

/// What a chunk in quarantine refers to, if it can be read.
fn readable(engine: &Arc<Engine>, chunk: &Quarantined) -> Result<Option<Vec<Fingerprint>>> {
    let Ok(slots) = suspects::lasting(|| engine.storage().slots(chunk.address.container()))? else { return Ok(None) };
    let found = slots.iter().find(|(address, slot)| *address == chunk.address && slot.fingerprint == chunk.fingerprint);
    let Some((_, slot)) = found else { return Ok(None) };
    let Some(content) = suspects::content(engine, chunk.address, &chunk.fingerprint, slot.kind)? else { return Ok(None) };
    let pieces = of_chunk(&content, slot.kind, engine.digest_bytes());
    Ok(pieces.map(|pieces| pieces.iter().filter_map(Piece::fingerprint).collect()))
}
