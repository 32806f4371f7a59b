//! `check --repair`: repairs what it can, puts the rest in quarantine, and destroys nothing
//! (`docs/decisions/0020-repair-and-quarantine.md`).
//!
//! Each step leaves a sound store behind. So an interrupted repair is simply run again, and a second repair finds
//! nothing to do:
//! 1. what opening needs is salvaged ([`salvage`]), and the chunk index is rebuilt if it, or a page of it, cannot be
//!    read;
//! 2. missing or damaged forwards of merged containers are rewritten;
//! 3. chunks in quarantine that can be read again are restored;
//! 4. every container is read. Containers that parity can restore, and headers that can be recomputed, are rebuilt.
//!    Chunks that cannot be rebuilt, or have wrong bytes, go into quarantine;
//! 5. so do chunks that the index has in containers that are missing or whose catalog cannot be read;
//! 6. a check. Chunks that are missing go into quarantine;
//! 7. tables of levels that cannot be opened are given up, and those with damage are written again;
//! 8. if the check found wrong counts or places, or tables were given up, the chunk index is rebuilt. Chunks with
//!    another copy come out of quarantine;
//! 9. a second check, whose findings are reported: what is lost, and what needs it.
//!
//! A dry run takes the same steps on a store that is open for reading, and keeps its changes in memory
//! ([`Engine::rehearse`]). So each step, and the check at the end, finds what it would find after the previous steps.
//! Only salvage and rebuilding the chunk index are left out.

mod containers;
mod meaning;
mod opening;
mod rebuild;
mod restore;
mod suspects;

pub use meaning::ObjectMeaning;
pub use opening::{Losses, salvage};
pub use rebuild::rebuild_chunk_index;

use crate::check::{Check, CheckOptions, CheckReport, Needed, Problem, ProblemKind};
use crate::{Monitor, Result};
use onefold_engine::{Address, ChunkStoreKind, Descriptor, Engine, EngineError, LostChunk, Mode, SalvageOptions, Settings};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Ground;
use onefold_index::IndexError;
use std::sync::Arc;

/// The options of a repair.
#[derive(Clone, Copy, Debug)]
pub struct RepairOptions {
    /// Change nothing, only report what would be done.
    pub dry_run: bool,
    /// Repair what opening needs even if that loses some of it for good. Otherwise such a repair is refused
    /// ([`RepairReport::refused`]).
    pub may_lose: bool,
    /// Limit of the tables of the checks, in bytes ([`CheckOptions::memory_bytes`]).
    pub memory_bytes: usize,
}

/// What a repair did, or would do, and what is left.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// Nothing was done, because this would be lost.
    pub refused: Option<Losses>,
    /// One sentence for each action done, or that would be done.
    pub actions: Vec<String>,
    /// Chunks put in quarantine.
    pub quarantined_chunks: u64,
    /// Chunks taken out of quarantine because they can be read again.
    pub restored_chunks: u64,
    /// The check afterwards. For a dry run: what would be left.
    pub check: CheckReport,
}

/// Chunks in quarantine that are looked up together.
const BATCH: usize = 4096;
/// The most memory that a dry run keeps for each chunk that it puts in quarantine or restores.
const REHEARSED_BYTES: usize = 512;

/// A repair under way.
struct Repair<'a> {
    ground: Arc<dyn Ground>,
    settings: Settings,
    options: RepairOptions,
    command: &'a str,
    monitor: &'a dyn Monitor,
    report: RepairReport,
    /// Containers rebuilt from parity.
    repaired: u64,
    /// The number of further chunks for which a dry run has memory. Chunks beyond are only counted.
    room: usize,
    /// Whether there were chunks beyond.
    is_cut: bool,
}

/// Repairs a store that nobody else has open. The report lists damage that cannot be repaired. If the monitor cancels,
/// stops between two containers. Errors: the repair could not go on; its finished work stays.
pub fn repair(
    ground: Arc<dyn Ground>,
    settings: Settings,
    options: RepairOptions,
    command: &str,
    monitor: &dyn Monitor,
) -> Result<RepairReport> {
    let mut settings = Settings { background: false, ..settings };
    if Descriptor::read_any(&*ground).is_ok_and(|descriptor| descriptor.profile.chunk_store() == ChunkStoreKind::Levels) {
        // Tables are written again without what cannot be read: what was read before does not count.
        settings.frame_cache_bytes = 0;
    }
    let report = RepairReport::default();
    let room = if options.dry_run { options.memory_bytes / 4 / REHEARSED_BYTES } else { usize::MAX };
    let mut repair = Repair { ground, settings, options, command, monitor, report, repaired: 0, room, is_cut: false };
    repair.run()?;
    repair.report.check.repaired += repair.repaired;
    Ok(repair.report)
}

impl Repair<'_> {
    fn run(&mut self) -> Result<()> {
        let Some(mut engine) = self.open_with_index()? else { return Ok(()) };
        engine.forget_file_figures()?;
        self.lost_containers(&engine)?;
        self.forwards(&engine)?;
        self.restore(&engine)?;
        let unreadable = self.containers(&engine)?;
        self.what_was_in(&engine, &unreadable)?;
        if self.monitor.is_cancelled() {
            engine.recount()?;
            return self.close(engine);
        }
        engine.settle_quarantine()?;
        // The check would report chunks that a dry run only counted as missing.
        let wrong = if self.is_cut { None } else { self.wrong_index(&engine)? };
        if self.monitor.is_cancelled() {
            engine.recount()?;
            return self.close(engine);
        }
        // Before a new index takes what they have for stored.
        let came_back = self.tables(&engine)?;
        let wrong = wrong.or_else(|| came_back.then(|| "chunks that were removed may be back".to_owned()));
        let may_be_elsewhere = wrong.is_some() || self.report.quarantined_chunks > 0;
        if let Some(why) = wrong {
            if self.options.dry_run {
                self.did(format!("the chunk index would be rebuilt: {why}"));
            } else {
                self.close(engine)?;
                engine = self.rebuild(&why)?;
                engine.settle_quarantine()?;
            }
        }
        if may_be_elsewhere {
            // Another container may have a chunk that the index named in an unreadable one.
            self.restore(&engine)?;
        }
        if may_be_elsewhere && !engine.descriptor().profile.counts() {
            // The index does not say what restored chunks need. Each round finds one more level of that.
            loop {
                let known = self.report.quarantined_chunks;
                if self.is_cut || !self.go_on() {
                    break;
                }
                self.wrong_index(&engine)?;
                if self.report.quarantined_chunks == known {
                    break;
                }
                self.restore(&engine)?;
            }
        }
        engine.recount()?;
        self.last_look(&engine)?;
        self.close(engine)
    }

    /// Runs step 7: tables of levels, when their losses are noted. Returns whether there were any: their tombstones are
    /// lost too.
    fn tables(&mut self, engine: &Arc<Engine>) -> Result<bool> {
        let Some(levels) = engine.levels() else { return Ok(false) };
        let lost: Vec<String> = levels.lost_tables().into_iter().map(|lost| format!("{}: {}", lost.path, lost.why)).collect();
        let damaged = levels.damaged_tables();
        let is_any = !lost.is_empty() || !damaged.is_empty();
        if is_any && !self.options.dry_run {
            engine.repair_tables()?;
        }
        let done = if self.options.dry_run { "would be" } else { "was" };
        lost.into_iter().for_each(|lost| self.did(format!("a table {done} given up: {lost}")));
        for path in damaged {
            self.did(format!("table {path} {done} written again, without the chunks that cannot be read"));
        }
        Ok(is_any)
    }

    fn close(&self, engine: Arc<Engine>) -> Result<()> {
        Ok(engine.close()?)
    }

    fn open(&self) -> onefold_engine::Result<Arc<Engine>> {
        let mode = if self.options.dry_run { Mode::ReadOnly } else { Mode::ReadWrite };
        let engine = Engine::open(self.ground.clone(), self.settings.clone(), mode, self.command)?;
        if self.options.dry_run {
            engine.rehearse();
        }
        Ok(engine)
    }

    fn go_on(&self) -> bool {
        !self.monitor.is_cancelled()
    }

    /// Returns the sentence that something was done, or would be done, to `count` items.
    fn say(&self, count: u64, one: &str, many: &str, what: &str) -> String {
        let of = if count == 1 { one } else { many };
        let done = match (self.options.dry_run, count) {
            (true, _) => "would be",
            (false, 1) => "was",
            (false, _) => "were",
        };
        format!("{count} {of} {done} {what}")
    }

    fn did(&mut self, what: String) {
        self.report.actions.push(what);
    }

    /// Runs step 1. Returns `None` if a dry run cannot continue, or if the repair is refused.
    fn open_with_index(&mut self) -> Result<Option<Arc<Engine>>> {
        let options = SalvageOptions { dry_run: self.options.dry_run, may_lose: self.options.may_lose };
        let salvaged = salvage(&self.ground, &self.settings, options, self.command, self.monitor)?;
        if salvaged.is_refused {
            let digest_bytes = Descriptor::read_any(&*self.ground)?.fingerprint.digest_bytes();
            self.report.refused = Some(Losses::of(salvaged, digest_bytes));
            return Ok(None);
        }
        let has_damaged_pages = options.dry_run && salvaged.needs_index;
        self.report.actions = salvaged.sentences;
        let engine = match self.open() {
            Ok(engine) => engine,
            Err(error) if is_of_chunk_index(&error, &*self.ground) => {
                if self.options.dry_run {
                    self.did(format!("the chunk index would be rebuilt: {error}"));
                    self.report.check = CheckReport::of_opening(&error);
                    return Ok(None);
                }
                return self.rebuild(&error.to_string()).map(Some);
            }
            // A dry run does not salvage, so the store stays closed.
            Err(error)
                if self.options.dry_run
                    && (error.is_damage() || matches!(error, EngineError::Copied { .. }))
                    && !self.report.actions.is_empty() =>
            {
                self.report.check = CheckReport::of_opening(&error);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        if !self.go_on() {
            return self.close(engine).map(|()| None);
        }
        if has_damaged_pages {
            // The other steps need a sound chunk index.
            let options = CheckOptions { read_data: true, ..self.check_options() };
            self.report.check = Check::new(&engine, options, self.monitor).run()?.report;
            return Ok(None);
        }
        Ok(Some(engine))
    }

    fn rebuild(&mut self, why: &str) -> Result<Arc<Engine>> {
        // The following steps find what the rebuild cannot read.
        rebuild_chunk_index(self.ground.clone(), self.settings.clone(), self.command, self.monitor)?;
        self.did(format!("the chunk index was rebuilt: {why}"));
        Ok(self.open()?)
    }

    fn check_options(&self) -> CheckOptions {
        CheckOptions { read_data: false, memory_bytes: self.options.memory_bytes }
    }

    /// Puts chunks in quarantine.
    fn lose(&mut self, engine: &Arc<Engine>, lost: &[LostChunk], why: &str) -> Result<()> {
        let (fitting, others) = lost.split_at(lost.len().min(self.room));
        if self.options.dry_run {
            self.room -= fitting.len();
        }
        let mut count = engine.quarantine(fitting)?.len() as u64;
        if !others.is_empty() {
            self.is_cut = true;
            let names: Vec<Fingerprint> = others.iter().map(|chunk| chunk.fingerprint).collect();
            let places = engine.places(&names)?;
            // Each copy counts for itself where there are no answers.
            let places = places.unwrap_or_else(|| others.iter().map(|chunk| Some(chunk.address)).collect());
            count += others.iter().zip(places).filter(|(chunk, place)| *place == Some(chunk.address)).count() as u64;
        }
        self.report.quarantined_chunks += count;
        let what = match count {
            0 => self.say(lost.len() as u64, "unneeded copy", "unneeded copies", "given up"),
            _ => self.say(count, "chunk", "chunks", "put in quarantine"),
        };
        self.did(format!("{what}: {why}"));
        Ok(())
    }

    /// Runs step 6: puts missing chunks in quarantine. Returns why the chunk index must be rebuilt, if it must.
    fn wrong_index(&mut self, engine: &Arc<Engine>) -> Result<Option<String>> {
        let check = Check::new(engine, self.check_options(), self.monitor).run()?;
        self.repaired += check.report.repaired;
        // Unless the slots of all containers are known, it is unknown which chunks are in none.
        if let Some(error) = check.unread {
            return Err(error);
        }
        let missing: Vec<(Needed, u64)> = check.missing.iter().collect();
        let names: Vec<Fingerprint> = missing.iter().map(|(needed, _)| needed.fingerprint).collect();
        let mut entries = Vec::with_capacity(names.len());
        match engine.index() {
            Some(index) => drop(index.lookup(&names, &mut entries)?),
            None => entries.resize(names.len(), None),
        }
        let counts = engine.descriptor().profile.counts();
        let named = missing.iter().zip(&entries).filter_map(|((needed, elsewhere), entry)| {
            // Without counts, the index has nothing of a chunk that is nowhere. Marks find it by an address that is
            // named.
            let address = entry.map(|entry| entry.address).or((!counts).then_some(*elsewhere))?;
            Some(LostChunk { fingerprint: needed.fingerprint, address: Address::from_bits(address), slot: None, is_needed: true })
        });
        let named: Vec<LostChunk> = named.collect();
        if !named.is_empty() {
            self.lose(engine, &named, "no container has the needed bytes")?;
            if !check.missing.is_complete() && !self.is_cut && self.go_on() {
                // There was no memory for all of them.
                return self.wrong_index(engine);
            }
        }
        // The counts of chunks that turn out to be data are never too great.
        engine.note_kinds(&|chunk| check.kinds.of(&Needed::lost(engine, chunk)))?;
        if let Some(problem) = check.report.problems.iter().find(|problem| problem.kind == ProblemKind::Marks) {
            self.marks(engine, &problem.what)?;
        }
        // In a bucket the log says what is in the index, and a new one would say the same.
        let is_in_bucket = engine.ground().bucket().is_some();
        let is_of_index = |kind| match kind {
            ProblemKind::IndexPage => true,
            ProblemKind::WrongCount | ProblemKind::WrongAddress => !is_in_bucket,
            _ => false,
        };
        let problems = &check.report.problems;
        let wrong = problems.iter().find(|problem| is_of_index(problem.kind));
        if let Some(problem) = wrong {
            let count = problems.iter().filter(|problem| is_of_index(problem.kind)).count();
            return Ok(Some(format!("it is wrong in {count} cases; one is: {}", problem.what)));
        }
        if is_in_bucket {
            return Ok(None);
        }
        if named.len() < missing.len() {
            return Ok(Some("it lacks chunks that are needed".into()));
        }
        self.counts_too_much(engine)
    }

    /// Removes marks that lack something or cannot be read. The next removal makes them again.
    fn marks(&mut self, engine: &Arc<Engine>, why: &str) -> Result<()> {
        if !self.options.dry_run {
            engine.forget_marks()?;
        }
        let done = if self.options.dry_run { "would be" } else { "were" };
        self.did(format!("the marks of what is needed {done} removed, and the next `prune` makes them again: {why}"));
        Ok(())
    }

    /// Returns the reason for correcting counts that are known to be too great. That is possible once no lost chunk
    /// needs them any more.
    fn counts_too_much(&self, engine: &Arc<Engine>) -> Result<Option<String>> {
        if !engine.descriptor().profile.counts() {
            return Ok(None);
        }
        let (mut is_any, mut is_needed) = (false, false);
        engine.for_each_quarantined_batch(BATCH, &mut |batch| -> Result<()> {
            let counted = batch.iter().filter(|chunk| chunk.may_refer() && chunk.is_counted);
            let counted: Vec<Fingerprint> = counted.map(|chunk| chunk.fingerprint).collect();
            let mut entries = Vec::with_capacity(counted.len());
            if let Some(index) = engine.index() {
                index.lookup(&counted, &mut entries)?;
            }
            is_any |= !counted.is_empty();
            is_needed |= entries.iter().any(Option::is_some);
            Ok(())
        })?;
        Ok((is_any && !is_needed).then(|| "it counts references from lost chunks that are no longer needed".into()))
    }

    /// Runs step 9. Chunks are removed only if nothing needs a lost chunk that others may depend on. So such chunks are
    /// searched by name, not only where reading fails.
    fn last_look(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let mut check = Check::new(engine, self.check_options(), self.monitor);
        let was_held = engine.why_nothing_is_removed()?.is_some();
        engine.for_each_lost_in_doubt(&mut |chunk| check.lost.insert(Needed::lost(engine, chunk)))?;
        let check = check.run()?;
        let is_known = |problem: &Problem| matches!(problem.kind, ProblemKind::Quarantined | ProblemKind::Affected);
        let problems = &check.report.problems;
        let is_unreachable = check.lost.is_complete()
            && !check.meets_lost_metadata
            && check.report.problem_count == problems.len() as u64
            && problems.iter().all(is_known);
        if self.go_on() {
            engine.note_kinds(&|chunk| check.kinds.of(&Needed::lost(engine, chunk)))?;
            if was_held && is_unreachable {
                engine.note_unreachable()?;
            }
            if was_held && engine.why_nothing_is_removed()?.is_none() {
                let may = if self.options.dry_run { "could" } else { "may" };
                self.did(format!("no backup or volume needs a lost directory or recipe: unused chunks {may} be removed again"));
            }
        }
        if self.is_cut {
            self.did(
                "more chunks are lost than a dry run keeps in memory: files and volumes that need only these chunks are not named".into(),
            );
        }
        self.report.check = check.report;
        Ok(())
    }
}

/// Returns whether rebuilding the chunk index may help. If the cause is something else, the rebuild fails before it
/// changes anything.
fn is_of_chunk_index(error: &EngineError, ground: &dyn Ground) -> bool {
    match error {
        EngineError::Index(error) if error.is_damaged_page() || matches!(error, IndexError::Mismatch { .. }) => true,
        EngineError::Index(IndexError::Ground(error)) => error.is_not_found(),
        EngineError::Inconsistent { .. } => Engine::is_rebuild_cut_short(ground).unwrap_or(false),
        _ => false,
    }
}
