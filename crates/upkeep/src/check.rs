//! `check`: every reference resolves, every checksum and every count holds.
//!
//! Four steps that only read. Every step runs, whatever an earlier one found:
//! 1. pages of the chunk index: checksums and order; files of the object index: checksums, trees, position;
//! 2. forwards of merged containers, then all containers, one after the other: header, catalog, footer. With
//!    `read_data` every frame is read, decompressed and fingerprinted again;
//! 3. counts: the entries of the index are compared with the content of the containers and with the sum of all
//!    references. This takes several passes over ranges of fingerprints, so that memory stays bounded. Where each copy
//!    counts for itself, one pass looks up each reference;
//! 4. if chunks are missing or damaged: the name of every path of every backup and every range of every volume that
//!    needs one.
//!
//! Others may write meanwhile. Step 1 reads data that cannot change while it is read. Step 2 reads files that never
//! change once written; a container that looks wrong and is then gone was merged into another. For steps 3 and 4 see
//! [`counts`].
//!
//! Opening the store verifies the operations log, the descriptor and the headers ([`CheckReport::of_opening`]).

mod affected;
mod containers;
mod counts;
mod keeping;
mod lost;
mod places;
mod report;

use crate::references;
use crate::{Monitor, Result, UpkeepError};
use lost::Kinds;
use onefold_engine::{DeadSlots, Engine};
use onefold_index::objects::Verified;
use onefold_storage::{ContainerId, ContainerSet, Origin};
use report::LISTED;
use std::collections::HashSet;
use std::sync::Arc;

pub(crate) use lost::{Lost, Needed};
pub use report::{CheckReport, Problem, ProblemKind};

/// What to check, and how much memory to use.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Read, decompress and fingerprint every chunk.
    pub read_data: bool,
    /// Limit of the table of counts, in bytes. The list of lost chunks may take a quarter of it.
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
    /// Those of the lost chunks that are in no container and not in quarantine.
    pub(crate) missing: Lost,
    /// Lost chunks whose kind is still to be found out.
    pub(crate) kinds: Kinds,
    /// Whether a chunk is lost that is needed and that other chunks depend on.
    pub(crate) meets_lost_metadata: bool,
    /// All containers that addresses can name: those with a file, and those merged into others.
    present: ContainerSet,
    /// Merged containers whose forwards are lost, so that their addresses lead nowhere.
    dead_ends: HashSet<Origin>,
    /// Whether all references of the objects are known. If not, counts may rightly be greater than the references
    /// found.
    pub(crate) knows_all_objects: bool,
    /// Whether lost metadata chunks have references that are counted but cannot be seen.
    pub(crate) counts_more: bool,
    /// Whether all pages of the chunk index are sound.
    pub(crate) knows_all_entries: bool,
    /// Why the dead slots of a container are unknown. Chunks that seem to be missing may then exist.
    pub(crate) unread: Option<UpkeepError>,
}

/// Checks a store. The report says what is wrong with it. If the monitor cancels, the report has what was found so far.
/// Errors: the check itself could not run.
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
            present: ContainerSet::default(),
            dead_ends: HashSet::new(),
            knows_all_objects: true,
            counts_more: false,
            knows_all_entries: true,
            unread: None,
        }
    }

    /// Returns the dead slots of a container, or `None` if the object index is damaged there, which is reported
    /// elsewhere. Errors: anything else, which says nothing about the store.
    pub(crate) fn dead_slots(&mut self, container: ContainerId) -> Result<Option<DeadSlots>> {
        match self.engine.dead_slots(container) {
            Ok(dead) => Ok(Some(dead)),
            // A repair could not recover them.
            Err(error) if error.is_lost() => Ok(Some(DeadSlots::default())),
            Err(error) if error.is_damage() => {
                self.unread.get_or_insert(error.into());
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Runs all steps.
    pub(crate) fn run(mut self) -> Result<Check<'a>> {
        let counted = self.engine.for_each_quarantined(&mut |chunk| self.counts_more |= chunk.may_refer() && chunk.is_counted);
        if let Err(error) = counted {
            self.counts_more = true;
            self.report.add(ProblemKind::Object, format!("the list of chunks in quarantine cannot be read: {error}"));
        }
        self.indexes()?;
        let containers = match self.engine.containers() {
            Some(containers) => self.all_containers(containers)?,
            None => self.all_units()?,
        };
        self.objects()?;
        self.keeping();
        counts::compare(&mut self, containers)?;
        if !self.lost.is_empty() && !self.monitor.is_cancelled() {
            affected::name(&mut self)?;
            if self.lost.left_out > 0 {
                let what = format!(
                    "{} more chunks are lost; the memory limit is reached, so files and volumes that need only these \
                    chunks are not named",
                    self.lost.left_out
                );
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
        let index = self.engine.index();
        for damage in index.into_iter().flat_map(|index| index.verify_while(&mut || !self.monitor.is_cancelled())) {
            self.report.add(ProblemKind::IndexPage, format!("{}: page {}: {}", damage.path, damage.page, damage.why));
            self.knows_all_entries = false;
        }
        self.monitor.advance(1);
        for partition in 0..self.engine.all_object_partitions() {
            match self.engine.object_index().verify_partition(partition, &|| !self.monitor.is_cancelled()) {
                Verified::Whole => {}
                Verified::Damaged(damage) => self.report.add(ProblemKind::ObjectIndex, format!("{}: {}", damage.path, damage.why)),
                Verified::Stopped => return Ok(()),
            }
        }
        self.monitor.advance(1);
        Ok(())
    }

    /// Reports damage of the chunk index that a later step meets. Step 1 reported damaged pages one by one, but not an
    /// error of the device.
    fn index_damage(&mut self, why: &str) {
        if self.knows_all_entries {
            self.report.add(ProblemKind::IndexPage, why.to_owned());
            self.knows_all_entries = false;
        }
    }

    /// Reports objects that cannot be read. Step 3 counts their references.
    fn objects(&mut self) -> Result<()> {
        let mut problems = Vec::new();
        // Volumes and mappings as of one moment, because others create and delete them meanwhile.
        let moment = self.engine.moment(None)?;
        let volumes = references::volumes(&moment, &mut |what| problems.push(what));
        references::of_objects(&moment, &volumes, &mut |_| {}, &mut |what| {
            if problems.len() < LISTED {
                problems.push(what);
            }
        });
        self.knows_all_objects = problems.is_empty();
        // If the totals cannot be read, or are of a later moment, nothing is wrong with them.
        if let Ok(Some(what)) = moment.wrong_totals()
            && !moment.has_moved()
        {
            self.report.add(ProblemKind::WrongCount, what);
        }
        problems.into_iter().for_each(|what| self.report.add(ProblemKind::Object, what));
        Ok(())
    }
}
