//! The work of each step of a scrub.

use super::pace::Pace;
use super::state::{Damage, Phase, Position};
use super::{GoOn, STEP_BYTES, Scrub, Step};
use crate::Result;
use onefold_engine::{ContainerId, Repair};
use onefold_index::objects::Verified;
use onefold_storage::{ContainerStore, FORWARD_BYTES, GroupId, Scrubbed, ScrubbedParity, StorageError};
use std::sync::atomic::Ordering;

/// A step names this many damaged pages of the chunk index and counts the others.
const NAMED_PAGES: usize = 10;

impl Scrub<'_> {
    /// Stops the reading threads if the scrub must stop.
    fn look(&self, go_on: &GoOn<'_>) {
        if !go_on.asks() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn containers(&self, ids: &[ContainerId], mut step: Step, pace: &mut Pace<'_>, go_on: &GoOn<'_>) -> Step {
        for ids in ids.chunks(pace.files_at_once()) {
            if self.is_stopped() || !pace.wait(&|| go_on.asks()) {
                break;
            }
            let before = step.read_bytes;
            self.containers_at_once(ids, &mut step, go_on);
            pace.charge(step.read_bytes - before);
        }
        step
    }

    fn containers_at_once(&self, ids: &[ContainerId], step: &mut Step, go_on: &GoOn<'_>) {
        let mut found = |container: ContainerId, scrubbed: Scrubbed| {
            let position = Position { phase: Phase::Containers, unit: container.bits() };
            // A damaged container with parity is rebuilt.
            let repaired = if scrubbed.damage.is_empty() { Ok(Repair::Whole) } else { self.engine.repair_container(container) };
            match repaired {
                Ok(Repair::Repaired) => step.repaired.push(format!("container {container} was damaged and is rebuilt from parity")),
                Ok(Repair::Whole) => {}
                Ok(Repair::Impossible) => {
                    step.found.extend(scrubbed.damage.iter().map(|damage| Damage { position, what: damage.to_string() }))
                }
                Err(error) => {
                    let what = |damage: &StorageError| format!("{damage}; it could not be rebuilt from parity: {error}");
                    step.found.extend(scrubbed.damage.iter().map(|damage| Damage { position, what: what(damage) }));
                }
            }
            step.read_bytes += scrubbed.read_bytes;
            step.units += 1;
            step.position = position.next();
            self.look(go_on);
        };
        self.engine.storage().scrub(ids, &self.threads, &self.stop, &mut found, &mut || self.look(go_on));
    }

    pub(super) fn forwards(
        &self,
        storage: &ContainerStore,
        ids: &[ContainerId],
        mut step: Step,
        pace: &mut Pace<'_>,
        go_on: &GoOn<'_>,
    ) -> Result<Step> {
        for id in ids {
            if !pace.wait(&|| go_on.asks()) {
                break;
            }
            pace.charge(FORWARD_BYTES as u64);
            let position = Position { phase: Phase::Forwards, unit: id.bits() };
            match storage.scrub_forward(*id) {
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

    /// Reads parity files, and rebuilds members that were lost.
    pub(super) fn parity(
        &self,
        storage: &ContainerStore,
        groups: &[GroupId],
        mut step: Step,
        pace: &mut Pace<'_>,
        go_on: &GoOn<'_>,
    ) -> Result<Step> {
        for groups in groups.chunks(pace.files_at_once()) {
            if self.is_stopped() || !pace.wait(&|| go_on.asks()) {
                break;
            }
            let before = step.read_bytes;
            self.parity_at_once(storage, groups, &mut step, go_on)?;
            pace.charge(step.read_bytes - before);
        }
        Ok(step)
    }

    fn parity_at_once(&self, storage: &ContainerStore, groups: &[GroupId], step: &mut Step, go_on: &GoOn<'_>) -> Result<()> {
        let mut all = Vec::with_capacity(groups.len());
        let mut found = |group: GroupId, scrubbed: onefold_storage::Result<ScrubbedParity>| {
            all.push((group, scrubbed));
            self.look(go_on);
        };
        storage.scrub_parities(groups, &self.threads, &self.stop, &mut found, &mut || self.look(go_on));
        for (group, scrubbed) in all {
            let position = Position { phase: Phase::Parity, unit: group.bits() };
            let scrubbed = scrubbed.unwrap_or_else(|error| ScrubbedParity {
                damaged_parity: Some(format!("the parity of group {group} cannot be read: {error}")),
                ..ScrubbedParity::default()
            });
            let made_anew = |container: ContainerId| format!("container {container} was lost and is rebuilt from parity");
            step.repaired.extend(scrubbed.repaired.into_iter().map(made_anew));
            let of_members = scrubbed.damage.iter().map(|damage| Damage { position, what: damage.to_string() });
            step.found.extend(of_members);
            if let Some(what) = scrubbed.damaged_parity {
                // Its members get new parity. Members that cannot be read still need the old one.
                let made = self.engine.make_parity(true, &|| go_on.asks());
                let is_there = storage.has_parity_file(group)?;
                if is_there && !go_on.asks() {
                    break;
                }
                match made {
                    Ok(_) if !is_there => step.repaired.push(format!("parity was damaged and is rebuilt: {what}")),
                    Ok(_) => step.found.push(Damage { position, what }),
                    Err(error) => step.found.push(Damage { position, what: format!("{what}; it could not be rebuilt: {error}") }),
                }
            }
            step.read_bytes += scrubbed.read_bytes;
            step.units += 1;
            step.position = position.next();
        }
        Ok(())
    }

    /// Reads pages of one partition of the chunk index, as many as a step takes.
    pub(super) fn chunk_index(&self, mut step: Step, pace: &mut Pace<'_>, go_on: &GoOn<'_>) -> Step {
        let (partition, mut place) = ((step.position.unit >> u32::BITS) as u32, step.position.unit as u32);
        let (mut named, mut others) = (0, None);
        let Some(index) = self.engine.index() else { return step };
        while step.read_bytes < STEP_BYTES && pace.wait(&|| go_on.asks()) {
            let run = index.verify_run(partition, place);
            pace.charge(run.read_bytes);
            step.read_bytes += run.read_bytes;
            for (place, page) in run.damaged {
                let position = Position::in_chunk_index(partition, place);
                if named < NAMED_PAGES {
                    step.found.push(Damage { position, what: format!("{}: page {}: {}", page.path, page.page, page.why) });
                    named += 1;
                } else {
                    others.get_or_insert((position, 0)).1 += 1;
                }
            }
            match run.next {
                Some(next) => (place, step.position) = (next, Position::in_chunk_index(partition, next)),
                None => {
                    (step.position, step.units) = (Position::in_chunk_index(partition + 1, 0), 1);
                    break;
                }
            }
        }
        if let Some((position, others)) = others {
            step.found.push(Damage { position, what: format!("{others} more pages of chunk-index partition {partition} are damaged") });
        }
        step
    }

    /// Reads a partition of the object index. It is read as a whole: once begun, it is read to its end even if the time
    /// is up, unless the scrub was cancelled. Otherwise short scrubs would never get past a long partition.
    pub(super) fn object_index(&self, mut step: Step, pace: &mut Pace<'_>, go_on: &GoOn<'_>) -> Step {
        let partition = step.position.unit as u16;
        let bytes = self.engine.object_index().file_bytes(partition);
        if !pace.wait(&|| go_on.asks()) {
            return step;
        }
        pace.charge(bytes);
        let position = step.position;
        match self.engine.object_index().verify_partition(partition, go_on.may) {
            Verified::Whole => {}
            Verified::Damaged(damage) => step.found.push(Damage { position, what: format!("{}: {}", damage.path, damage.why) }),
            Verified::Stopped => return step,
        }
        (step.read_bytes, step.position, step.units) = (bytes, position.next(), 1);
        step
    }
}
