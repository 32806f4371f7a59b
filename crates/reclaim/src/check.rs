//! `check`: every reference resolves, every checksum and every count holds.
//!
//! Four steps, reading only; none is left out because an earlier one found something:
//! 1. pages of the chunk index: checksums and order; files of the block index: checksums, trees, position;
//! 2. forwards of merged containers, then containers, one after the other: header, catalog, footer; with `read_data` every frame is read,
//!    decompressed and fingerprinted again;
//! 3. counts: in passes over ranges of fingerprints, so that memory stays within its bound, the entries of the index are compared with what
//!    the containers hold and with the sum of all references;
//! 4. if chunks are missing or damaged: every path of every backup and every range of every volume that needs one, by name.
//!
//! Others may write meanwhile. Step 1 reads what cannot change while it is read; step 2 what never changes once it is written, and a container that is
//! gone when it does not look right was merged into another; for steps 3 and 4 see [`crate::counts`].
//!
//! The operations log, the descriptor and the headers are verified by opening the store ([`CheckReport::of_opening`]).

use crate::reading::{Looked, look_into, look_into_all};
use crate::references;
use crate::{Result, affected, counts, volumes};
use onefold_engine::{DeadSlots, Engine, EngineError, Repair};
use onefold_fingerprint::Fingerprint;
use onefold_ground::ReadBuffer;
use onefold_index::block::Verified;
use onefold_storage::{Catalog, ContainerId, StorageError};
use std::collections::HashSet;
use std::sync::Arc;

/// What to check and how much memory it may take.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Read, decompress and fingerprint every chunk.
    pub read_data: bool,
    /// Bound of the table of counts, bytes; the list of lost chunks may take a quarter of it.
    pub memory_bytes: usize,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { read_data: false, memory_bytes: 256 << 20 }
    }
}

/// More problems than this are counted but not listed.
const LISTED: usize = 10_000;

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProblemKind {
    /// A part that every opening needs: nothing else could be looked at.
    Opening,
    /// Something is damaged that this opening did not need, because there is another copy or because it only read.
    Spare,
    /// A page of the chunk index is damaged.
    IndexPage,
    /// A file of the block index is damaged.
    BlockIndex,
    /// A container or a chunk in it is damaged.
    Container,
    /// A chunk that is referred to is not stored.
    MissingChunk,
    /// A chunk that is referred to is lost, and known to be: it is in quarantine.
    Quarantined,
    /// The index names a place where the chunk is not.
    WrongAddress,
    /// A usage count is not the number of references.
    WrongCount,
    /// An object (mapping, backup, volume) cannot be read.
    Object,
    /// A path of a backup, or a range of a volume, needs a damaged or missing chunk.
    Affected,
}

impl ProblemKind {
    /// The word in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            ProblemKind::Opening => "opening",
            ProblemKind::Spare => "spare",
            ProblemKind::IndexPage => "index_page",
            ProblemKind::BlockIndex => "block_index",
            ProblemKind::Container => "container",
            ProblemKind::MissingChunk => "missing_chunk",
            ProblemKind::Quarantined => "quarantined",
            ProblemKind::WrongAddress => "wrong_address",
            ProblemKind::WrongCount => "wrong_count",
            ProblemKind::Object => "object",
            ProblemKind::Affected => "affected",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// What is wrong and where.
    pub what: String,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Containers looked at.
    pub containers: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Entries of the chunk index.
    pub index_entries: u64,
    /// References counted.
    pub references: u64,
    /// Bytes read and fingerprinted again.
    pub read_bytes: u64,
    /// Damaged or lost containers that were made anew from parity.
    pub repaired: u64,
    /// Passes over the references.
    pub passes: u64,
    /// Chunks that are needed and in quarantine.
    pub quarantined_chunks: u64,
    /// Findings; at most 10,000 are listed.
    pub problems: Vec<Problem>,
    /// All findings, listed or not.
    pub problem_count: u64,
}

impl CheckReport {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    /// What a check of a store finds that does not open for damage.
    pub fn of_opening(damage: &EngineError) -> CheckReport {
        let mut report = CheckReport::default();
        report.add(ProblemKind::Opening, damage.to_string());
        report
    }

    pub(crate) fn add(&mut self, kind: ProblemKind, what: String) {
        self.problem_count += 1;
        if self.problems.len() < LISTED {
            self.problems.push(Problem { kind, what });
        }
    }
}

/// Is told how far a check is.
pub trait Monitor {
    /// A new step with `total` units begins.
    fn step(&self, what: &str, total: u64);
    /// So many units of the step are done.
    fn advance(&self, units: u64);
    /// Whether to stop early.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody is told.
#[derive(Clone, Copy, Debug)]
pub struct NoMonitor;

impl Monitor for NoMonitor {
    fn step(&self, _what: &str, _total: u64) {}
    fn advance(&self, _units: u64) {}
}

/// Chunks that cannot be read, as many as memory allows.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    chunks: HashSet<Fingerprint>,
    limit: usize,
    left_out: u64,
}

impl Lost {
    /// Memory of one chunk in a hash set that has just grown.
    const CHUNK_BYTES: usize = 80;

    fn within(memory_bytes: usize) -> Lost {
        Lost { limit: (memory_bytes / Lost::CHUNK_BYTES).max(1), ..Lost::default() }
    }

    pub(crate) fn insert(&mut self, fingerprint: Fingerprint) {
        if self.chunks.len() < self.limit {
            self.chunks.insert(fingerprint);
        } else if !self.chunks.contains(&fingerprint) {
            self.left_out += 1;
        }
    }

    pub(crate) fn contains(&self, fingerprint: &Fingerprint) -> bool {
        self.chunks.contains(fingerprint)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Fingerprint> {
        self.chunks.iter()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.left_out == 0
    }
}

/// A check under way.
pub(crate) struct Check<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) options: CheckOptions,
    pub(crate) monitor: &'a dyn Monitor,
    pub(crate) report: CheckReport,
    pub(crate) lost: Lost,
    /// Of these, the ones that no container has and that are not in quarantine.
    pub(crate) missing: Lost,
    /// All that addresses can name: containers with a file, and those that live on in others.
    present: HashSet<ContainerId>,
    /// Containers whose addresses should lead to others and do not.
    dead_ends: HashSet<ContainerId>,
    /// Whether the references of the objects are all known: else counts may rightly be greater than what is found.
    pub(crate) knows_all_objects: bool,
    /// Lost metadata chunks have references that are counted and that nobody can see.
    pub(crate) counts_more: bool,
    /// Whether the pages of the chunk index are whole.
    pub(crate) knows_all_entries: bool,
    /// Why the slots of a container are not known, if that is no damage: what seems to be missing may be there.
    pub(crate) unread: Option<StorageError>,
}

/// Checks a store. What is wrong with it is in the report; an error is what kept the check from being made. A check that the monitor
/// cancelled reports what it found until then.
pub fn check(engine: &Arc<Engine>, options: CheckOptions, monitor: &dyn Monitor) -> Result<CheckReport> {
    Ok(Check::new(engine, options, monitor).run()?.report)
}

impl<'a> Check<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, options: CheckOptions, monitor: &'a dyn Monitor) -> Check<'a> {
        Check {
            engine,
            options,
            monitor,
            report: CheckReport::default(),
            lost: Lost::within(options.memory_bytes / 4),
            missing: Lost::within(options.memory_bytes / 16),
            present: HashSet::new(),
            dead_ends: HashSet::new(),
            knows_all_objects: true,
            counts_more: false,
            knows_all_entries: true,
            unread: None,
        }
    }

    /// All steps.
    pub(crate) fn run(mut self) -> Result<Check<'a>> {
        let counted = self.engine.for_each_quarantined(&mut |chunk| self.counts_more |= chunk.may_refer() && chunk.is_counted);
        if let Err(error) = counted {
            self.counts_more = true;
            self.report.add(ProblemKind::Object, format!("what is in quarantine cannot be read: {error}"));
        }
        self.indexes()?;
        let containers = self.all_containers()?;
        self.objects()?;
        self.keeping();
        counts::compare(&mut self, containers)?;
        if !self.lost.chunks.is_empty() && !self.monitor.is_cancelled() {
            affected::name(&mut self)?;
            if self.lost.left_out > 0 {
                let what = format!("{} more chunks are lost; what needs only these is not named, for want of memory", self.lost.left_out);
                self.report.add(ProblemKind::Affected, what);
            }
        }
        Ok(self)
    }

    /// Step 1.
    fn indexes(&mut self) -> Result<()> {
        self.monitor.step("indexes", 2);
        for what in self.engine.damaged_spares() {
            self.report.add(ProblemKind::Spare, what);
        }
        for damage in self.engine.index().verify()? {
            self.report.add(ProblemKind::IndexPage, format!("{}: page {}: {}", damage.path, damage.page, damage.why));
            self.knows_all_entries = false;
        }
        self.monitor.advance(1);
        for partition in 0..self.engine.block_partitions() {
            match self.engine.block_index().verify_partition(partition, &|| !self.monitor.is_cancelled()) {
                Verified::Whole => {}
                Verified::Damaged(damage) => self.report.add(ProblemKind::BlockIndex, format!("{}: {}", damage.path, damage.why)),
                Verified::Stopped => return Ok(()),
            }
        }
        self.monitor.advance(1);
        Ok(())
    }

    /// Step 2: all containers, then those that came meanwhile: merging may have brought chunks into them that were not read where they were. What is
    /// written later has been checked by its writer only. Returns how many there are.
    fn all_containers(&mut self) -> Result<usize> {
        if self.engine.is_writable() {
            self.report.repaired += self.engine.storage().repair_lost()?.0.len() as u64;
        }
        self.forwards()?;
        let before = self.engine.storage().containers()?;
        self.see_present(&before)?;
        let mut suspects = Vec::new();
        self.containers(&before, &mut suspects);
        let all = self.engine.storage().containers()?;
        let newer: Vec<_> = all.iter().copied().filter(|container| before.binary_search(container).is_err()).collect();
        if !newer.is_empty() {
            self.containers(&newer, &mut suspects);
        }
        // One that is gone was merged away while it was read: what it had is in another one.
        if !suspects.is_empty() {
            let now = self.engine.storage().containers()?;
            self.see_present(&now)?;
            suspects.retain(|container| now.binary_search(container).is_ok());
            // What a store that is open for writing can make anew from parity is no finding.
            suspects.retain(|container| !self.is_repaired(*container));
            suspects.into_iter().for_each(|container| self.report_container(container));
        }
        if !self.dead_ends.is_empty() {
            all.iter().for_each(|container| self.lose_dead_ends(*container));
        }
        Ok(all.len())
    }

    fn is_repaired(&mut self, container: ContainerId) -> bool {
        let is_repaired = match self.engine.repair_container(container) {
            Ok(repaired) => repaired == Repair::Repaired,
            Err(error) => {
                self.report.add(ProblemKind::Container, format!("container {container} could not be made anew from parity: {error}"));
                false
            }
        };
        self.report.repaired += u64::from(is_repaired);
        is_repaired
    }

    /// Notes what there is, after `containers` were listed: one that was merged since is in neither list otherwise.
    fn see_present(&mut self, containers: &[ContainerId]) -> Result<()> {
        let forwards = self.engine.storage().forwards()?;
        self.present = containers.iter().chain(&forwards).copied().collect();
        Ok(())
    }

    fn forwards(&mut self) -> Result<()> {
        let storage = self.engine.storage();
        let forwards = storage.forwards()?;
        self.monitor.step("forwards", forwards.len() as u64);
        let mut suspects = Vec::new();
        for id in forwards {
            if self.monitor.is_cancelled() {
                break;
            }
            if storage.verify_forward(id).is_err() {
                suspects.push(id);
            }
            self.monitor.advance(1);
        }
        // One that is gone has no chunks any more.
        if !suspects.is_empty() {
            let now = storage.forwards()?;
            for id in suspects.into_iter().filter(|id| now.binary_search(id).is_ok()) {
                let is_given_up = |id| self.engine.dead_slots(id).is_ok_and(|dead| dead.is_given_up());
                if let Err(error) = storage.verify_forward(id)
                    && !is_given_up(id)
                    && !storage.forward_target(id).is_some_and(is_given_up)
                {
                    self.report.add(ProblemKind::Container, error.to_string());
                    self.dead_ends.insert(id);
                }
            }
        }
        Ok(())
    }

    /// Looks at containers; those in which something is wrong go to `suspects`.
    fn containers(&mut self, containers: &[ContainerId], suspects: &mut Vec<ContainerId>) {
        let what = if self.options.read_data { "containers and data" } else { "containers" };
        self.monitor.step(what, containers.len() as u64);
        let (engine, monitor) = (self.engine, self.monitor);
        look_into_all(engine, containers, self.options.read_data, &|| !monitor.is_cancelled(), &mut |looked| {
            let Looked { container, found, wrong, read_bytes } = looked;
            self.report.containers += 1;
            self.report.read_bytes += read_bytes;
            self.report.chunks += found.as_ref().map_or(0, |found| found.chunks);
            let is_whole = found.is_ok_and(|found| found.damage.is_empty() && found.homes.iter().all(|home| self.present.contains(home)));
            if !wrong.is_empty() || !is_whole {
                suspects.push(container);
            }
            monitor.advance(1);
        });
        suspects.sort_unstable();
    }

    fn report_container(&mut self, container: ContainerId) {
        let Looked { found, wrong, .. } = look_into(self.engine, container, self.options.read_data, &mut ReadBuffer::default());
        let dead = self.engine.dead_slots(container).unwrap_or_default();
        let catalog = self.engine.storage().catalog(container).ok();
        for (address, fingerprint) in wrong {
            let is_dead = catalog.as_ref().and_then(|catalog| catalog.position(address)).is_some_and(|slot| dead.contains(slot));
            if !is_dead {
                self.report.add(ProblemKind::Container, format!("chunk {fingerprint} at {address} has bytes of another fingerprint"));
                self.lost.insert(fingerprint);
            }
        }
        let is_damaged = found.as_ref().map_or_else(onefold_storage::StorageError::is_damage, |found| !found.damage.is_empty());
        // Readers have it through parity: nothing is lost.
        if is_damaged && !self.engine.is_writable() && self.engine.storage().is_repairable(container).unwrap_or(false) {
            found.iter().for_each(|found| self.homes(container, &found.homes));
            let why = found.map_or_else(Some, |found| found.damage.into_iter().next()).map_or_else(String::new, |error| error.to_string());
            let what = format!("{why}; parity has what is missing: `onefold scrub` makes the container anew");
            self.report.add(ProblemKind::Container, what);
            return;
        }
        match found {
            Ok(found) => {
                self.homes(container, &found.homes);
                found.damage.iter().for_each(|damage| self.container_damage(catalog.as_deref(), &dead, damage));
            }
            // The file is not there, or the device cannot read it.
            Err(error) => self.container_damage(catalog.as_deref(), &dead, &error),
        }
    }

    /// Notes that addresses of chunks of a merged container do not lead there any more.
    fn homes(&mut self, container: ContainerId, homes: &[ContainerId]) {
        for home in homes.iter().filter(|home| !self.present.contains(home)) {
            let what = format!("container {container} has chunks of container {home}, whose forward is missing");
            self.report.add(ProblemKind::Container, what);
            self.dead_ends.insert(*home);
        }
    }

    /// Chunks that are in a merged container, but whose addresses do not lead there any more.
    fn lose_dead_ends(&mut self, container: ContainerId) {
        let slots = self.engine.storage().slots(container).unwrap_or_default();
        let lost = slots.iter().filter(|(address, _)| self.dead_ends.contains(&address.container()));
        lost.for_each(|(_, slot)| self.lost.insert(slot.fingerprint));
    }

    /// Notes what a damage of a container takes with it. Without a catalog nobody knows what the container held; the counts will show
    /// what is missing. Where nothing counts any more, nothing is lost.
    fn container_damage(&mut self, catalog: Option<&Catalog>, dead: &DeadSlots, damage: &StorageError) {
        let Some(catalog) = catalog else {
            if !dead.is_given_up() {
                self.report.add(ProblemKind::Container, damage.to_string());
            }
            return;
        };
        let frame = if let StorageError::Damaged { frame, .. } = damage { *frame } else { None };
        let mut is_felt = catalog.slots.is_empty();
        for of in catalog.frames.iter().filter(|of| frame.is_none_or(|frame| frame == of.number)) {
            for (slot, found) in (of.first_slot as usize..).zip(catalog.slots_of(of)) {
                if !dead.contains(slot) {
                    is_felt = true;
                    self.lost.insert(found.fingerprint);
                }
            }
        }
        if is_felt {
            self.report.add(ProblemKind::Container, damage.to_string());
        }
    }

    /// What of the objects cannot be read. Their references are counted in step 3.
    fn objects(&mut self) -> Result<()> {
        let mut problems = Vec::new();
        // Volumes and mappings as of one moment, for others make and delete them meanwhile.
        let moment = self.engine.moment(None)?;
        let volumes = volumes::volumes(&moment, &mut |what| problems.push(what));
        references::of_objects(&moment, &volumes, &mut |_| {}, &mut |what| {
            if problems.len() < LISTED {
                problems.push(what);
            }
        });
        self.knows_all_objects = problems.is_empty();
        // Where they cannot be read, or are of a later moment, nothing is wrong with them.
        if let Ok(Some(what)) = moment.wrong_totals()
            && !moment.has_moved()
        {
            self.report.add(ProblemKind::WrongCount, what);
        }
        problems.into_iter().for_each(|what| self.report.add(ProblemKind::Object, what));
        Ok(())
    }
}
