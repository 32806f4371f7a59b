//! `check`: every reference resolves, every checksum and every count holds.
//!
//! Four steps, reading only; none is left out because an earlier one found something:
//! 1. pages of the chunk index: checksums and order; files of the object index: checksums, trees, position;
//! 2. forwards of merged containers, then containers, one after the other: header, catalog, footer; with `read_data` every frame is read,
//!    decompressed and fingerprinted again;
//! 3. counts: in passes over ranges of fingerprints, so that memory stays within its bound, the entries of the index are compared with what
//!    the containers hold and with the sum of all references;
//! 4. if chunks are missing or damaged: every path of every backup and every range of every volume that needs one, by name.
//!
//! Others may write meanwhile. Step 1 reads what cannot change while it is read; step 2 what never changes once it is written, and a container that is
//! gone when it does not look right was merged into another; for steps 3 and 4 see [`counts`].
//!
//! The operations log, the descriptor and the headers are verified by opening the store ([`CheckReport::of_opening`]).

mod affected;
mod containers;
mod counts;
mod keeping;
mod lost;
mod report;

use crate::references;
use crate::{Monitor, Result, UpkeepError};
use lost::Kinds;
use onefold_engine::{DeadSlots, Engine};
use onefold_index::objects::Verified;
use onefold_storage::ContainerId;
use report::LISTED;
use std::collections::HashSet;
use std::sync::Arc;

pub(crate) use lost::Lost;
pub use report::{CheckReport, Problem, ProblemKind};

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

/// A check under way.
pub(crate) struct Check<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) options: CheckOptions,
    pub(crate) monitor: &'a dyn Monitor,
    pub(crate) report: CheckReport,
    pub(crate) lost: Lost,
    /// Of these, the ones that no container has and that are not in quarantine.
    pub(crate) missing: Lost,
    /// Lost chunks whose kind is wanted.
    pub(crate) kinds: Kinds,
    /// Something that is needed and others hang on is lost.
    pub(crate) meets_lost_metadata: bool,
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
    /// Why it is not known what of a container is dead: what seems to be missing may be there.
    pub(crate) unread: Option<UpkeepError>,
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
            kinds: Kinds::within(options.memory_bytes / 16),
            meets_lost_metadata: false,
            present: HashSet::new(),
            dead_ends: HashSet::new(),
            knows_all_objects: true,
            counts_more: false,
            knows_all_entries: true,
            unread: None,
        }
    }

    /// What is dead in a container; `None` if the object index is damaged there, of which it is told elsewhere. Any other error is passed on: it says
    /// nothing of the store.
    pub(crate) fn dead_slots(&mut self, container: ContainerId) -> Result<Option<DeadSlots>> {
        match self.engine.dead_slots(container) {
            Ok(dead) => Ok(Some(dead)),
            // A repair has been there and could not find it out.
            Err(error) if error.is_lost() => Ok(Some(DeadSlots::default())),
            Err(error) if error.is_damage() => {
                self.unread.get_or_insert(error.into());
                Ok(None)
            }
            Err(error) => Err(error.into()),
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
        if !self.lost.is_empty() && !self.monitor.is_cancelled() {
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
        for damage in self.engine.index().verify_while(&mut || !self.monitor.is_cancelled()) {
            self.report.add(ProblemKind::IndexPage, format!("{}: page {}: {}", damage.path, damage.page, damage.why));
            self.knows_all_entries = false;
        }
        self.monitor.advance(1);
        for partition in 0..self.engine.object_partitions() {
            match self.engine.object_index().verify_partition(partition, &|| !self.monitor.is_cancelled()) {
                Verified::Whole => {}
                Verified::Damaged(damage) => self.report.add(ProblemKind::ObjectIndex, format!("{}: {}", damage.path, damage.why)),
                Verified::Stopped => return Ok(()),
            }
        }
        self.monitor.advance(1);
        Ok(())
    }

    /// What of the objects cannot be read. Their references are counted in step 3.
    fn objects(&mut self) -> Result<()> {
        let mut problems = Vec::new();
        // Volumes and mappings as of one moment, for others make and delete them meanwhile.
        let moment = self.engine.moment(None)?;
        let volumes = references::volumes(&moment, &mut |what| problems.push(what));
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
