//! Step 2 of a check: forwards of merged containers, containers, and the chunks that are lost with damaged ones.

use super::Check;
use super::Needed;
use super::report::ProblemKind;
use crate::Result;
use crate::reading::{Looked, look_into, look_into_all};
use onefold_engine::{DeadSlots, Repair};
use onefold_fingerprint::Fingerprint;
use onefold_ground::ReadBuffer;
use onefold_storage::{Address, Catalog, ContainerId, ContainerSet, ContainerStore, Origin, StorageError, block_of_address};
use std::collections::HashSet;

/// Returns the block that is damaged.
fn block_of_damage(damage: &StorageError) -> Option<u64> {
    match damage {
        StorageError::BlockDamaged { block, .. } => Some(*block),
        _ => None,
    }
}

impl Check<'_> {
    /// Runs step 2: all containers, then those added meanwhile, because merging may have moved chunks into them that
    /// were not read in their old place. Later containers are only checked by their writers. Returns the number of
    /// containers.
    pub(super) fn all_containers(&mut self, storage: &ContainerStore) -> Result<usize> {
        if self.engine.is_writable() {
            self.report.repaired += storage.repair_lost(&|| !self.monitor.is_cancelled())?.0.len() as u64;
        }
        self.forwards(storage)?;
        let before = storage.containers()?;
        let mut suspects = Vec::new();
        self.see_present(storage, &before)?;
        self.containers(&before, &mut suspects);
        let all = storage.containers()?;
        let mut newer = all.clone();
        newer.retain(|container| !before.contains(container));
        if !newer.is_empty() {
            self.containers(&newer, &mut suspects);
        }
        // A container that is gone was merged while it was read. Its chunks are in another one.
        if !suspects.is_empty() {
            let now = storage.containers()?;
            self.see_present(storage, &now)?;
            suspects.retain(|container| now.contains(*container));
            // Damage that a store open for writing can repair from parity is not a finding.
            suspects.retain(|container| !self.is_repaired(*container));
            suspects.into_iter().try_for_each(|container| self.report_container(storage, container))?;
        }
        if !self.dead_ends.is_empty() {
            all.iter().for_each(|container| self.lose_dead_ends(storage, container));
        }
        Ok(all.len())
    }

    /// Does the same in a store without containers. Returns the number of units.
    pub(super) fn all_units(&mut self) -> Result<usize> {
        let units = self.engine.storage().units()?;
        let mut suspects = Vec::new();
        self.present = units.clone();
        self.containers(&units, &mut suspects);
        let mut seen = HashSet::new();
        for unit in suspects {
            let Looked { found, wrong, .. } = look_into(self.engine, unit, self.options.read_data, &mut ReadBuffer::default());
            // The error says nothing about the stored data. Damage is in the report.
            let mut damage = found?.damage;
            let mut of_table = Vec::new();
            let chunks = if damage.is_empty() { Vec::new() } else { self.engine.storage().known_chunks_of(unit, &mut of_table)? };
            damage.extend(of_table);
            for damage in &damage {
                match damage {
                    StorageError::Table { why, .. } => self.index_damage(why),
                    // Several units may have it.
                    StorageError::SortedTable { .. } if !seen.insert(damage.to_string()) => {}
                    // What is in quarantine was given up there.
                    StorageError::ChunkDamaged { address, fingerprint, .. } if !self.is_placed(fingerprint, *address)? => {}
                    StorageError::ChunkDamaged { address, fingerprint, .. } => {
                        self.report.add(ProblemKind::Container, damage.to_string());
                        self.lost.insert(Needed::stored(self.engine, fingerprint, *address));
                    }
                    other => self.report.add(ProblemKind::Container, other.to_string()),
                }
            }
            let damaged: HashSet<u64> = damage.iter().filter_map(block_of_damage).collect();
            let lost = chunks.iter().filter(|(address, _)| block_of_address(*address).is_some_and(|block| damaged.contains(&block)));
            lost.for_each(|(address, slot)| self.lost.insert(Needed::stored(self.engine, &slot.fingerprint, *address)));
            for (address, fingerprint) in wrong {
                if self.engine.levels().is_some() && !self.is_placed(&fingerprint, address)? {
                    continue;
                }
                self.report
                    .add(ProblemKind::Container, format!("the bytes of chunk {fingerprint} at {address} do not match its fingerprint"));
                self.lost.insert(Needed::stored(self.engine, &fingerprint, address));
            }
        }
        Ok(units.len())
    }

    /// Returns whether the index places a chunk there, or cannot tell.
    fn is_placed(&self, fingerprint: &Fingerprint, address: Address) -> Result<bool> {
        match self.engine.places(&[*fingerprint]) {
            Ok(places) => Ok(places.is_none_or(|places| places == [Some(address)])),
            Err(error) if error.is_damage() => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn is_repaired(&mut self, container: ContainerId) -> bool {
        let is_repaired = match self.engine.repair_container(container) {
            Ok(repaired) => repaired == Repair::Repaired,
            Err(error) => {
                self.report.add(ProblemKind::Container, format!("container {container} could not be rebuilt from parity: {error}"));
                false
            }
        };
        self.report.repaired += u64::from(is_repaired);
        is_repaired
    }

    /// Notes the existing containers and forwards. Forwards are listed after `containers`, so a container merged in
    /// between is not missed.
    fn see_present(&mut self, storage: &ContainerStore, containers: &ContainerSet) -> Result<()> {
        self.present = storage.forwards()?;
        self.present.extend(containers.iter());
        Ok(())
    }

    fn forwards(&mut self, storage: &ContainerStore) -> Result<()> {
        let forwards = storage.forwards()?;
        self.monitor.step("forwards", forwards.len() as u64);
        let mut suspects = Vec::new();
        for id in forwards.iter() {
            if self.monitor.is_cancelled() {
                break;
            }
            if storage.verify_forward(id).is_err() {
                suspects.push(id);
            }
            self.monitor.advance(1);
        }
        // A forward that is gone has no chunks any more.
        if !suspects.is_empty() {
            let now = storage.forwards()?;
            for id in suspects.into_iter().filter(|id| now.contains(*id)) {
                let error = match storage.verify_forward(id) {
                    Ok(_) => continue,
                    Err(error) if error.is_damage() => error,
                    Err(error) => return Err(error.into()),
                };
                let mut is_given_up = false;
                for id in [Some(id), storage.forward_target(id)].into_iter().flatten() {
                    is_given_up |= self.dead_slots(id)?.is_some_and(|dead| dead.is_given_up());
                }
                if !is_given_up {
                    self.report.add(ProblemKind::Container, error.to_string());
                    self.dead_ends.insert(Origin::from(id));
                }
            }
        }
        Ok(())
    }

    /// Checks containers and adds those with problems to `suspects`.
    fn containers(&mut self, containers: &ContainerSet, suspects: &mut Vec<ContainerId>) {
        let what = if self.options.read_data { "containers and data" } else { "containers" };
        self.monitor.step(what, containers.len() as u64);
        let (engine, monitor) = (self.engine, self.monitor);
        look_into_all(engine, containers, self.options.read_data, &|| !monitor.is_cancelled(), &mut |looked| {
            let Looked { container, found, wrong, read_bytes } = looked;
            self.report.containers += u64::from(self.engine.containers().is_some());
            self.report.read_bytes += read_bytes;
            self.report.chunks += found.as_ref().map_or(0, |found| found.chunks);
            let is_whole = found.is_ok_and(|found| found.damage.is_empty() && found.homes.iter().all(|home| self.present.contains(*home)));
            if !wrong.is_empty() || !is_whole {
                suspects.push(container);
            }
            monitor.advance(1);
        });
        suspects.sort_unstable();
    }

    fn report_container(&mut self, storage: &ContainerStore, container: ContainerId) -> Result<()> {
        let Looked { found, wrong, .. } = look_into(self.engine, container, self.options.read_data, &mut ReadBuffer::default());
        let dead = self.dead_slots(container)?.unwrap_or_default();
        let catalog = storage.catalog(container).ok();
        for (address, fingerprint) in wrong {
            let is_dead = catalog.as_ref().and_then(|catalog| catalog.position(address)).is_some_and(|slot| dead.contains(slot));
            if !is_dead {
                self.report
                    .add(ProblemKind::Container, format!("the bytes of chunk {fingerprint} at {address} do not match its fingerprint"));
                self.lost.insert(Needed::stored(self.engine, &fingerprint, address));
            }
        }
        let is_damaged = found.as_ref().map_or_else(StorageError::is_damage, |found| !found.damage.is_empty());
        // Readers can read it through parity, so nothing is lost.
        if is_damaged && !self.engine.is_writable() && storage.is_repairable(container).unwrap_or(false) {
            found.iter().for_each(|found| self.homes(container, &found.homes));
            let why = found.map_or_else(Some, |found| found.damage.into_iter().next()).map_or_else(String::new, |error| error.to_string());
            let what = format!("{why}; a scrub can rebuild the container from parity");
            self.report.add(ProblemKind::Container, what);
            return Ok(());
        }
        match found {
            Ok(found) => {
                self.homes(container, &found.homes);
                found.damage.iter().for_each(|damage| self.container_damage(catalog.as_deref(), &dead, damage));
            }
            // The error says nothing about the stored data. Damage is in the report.
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reports homes of a merged container whose addresses no longer lead to it.
    fn homes(&mut self, container: ContainerId, homes: &[ContainerId]) {
        for home in homes.iter().filter(|home| !self.present.contains(**home)) {
            let what = format!("container {container} has chunks of container {home}, whose forward is missing");
            self.report.add(ProblemKind::Container, what);
            self.dead_ends.insert(Origin::from(*home));
        }
    }

    /// Marks the chunks of a merged container as lost if their addresses no longer lead to it.
    fn lose_dead_ends(&mut self, storage: &ContainerStore, container: ContainerId) {
        let slots = storage.slots(container).unwrap_or_default();
        let lost = slots.iter().filter(|(address, _)| self.dead_ends.contains(&address.origin()));
        lost.for_each(|(address, slot)| self.lost.insert(Needed::stored(self.engine, &slot.fingerprint, *address)));
    }

    /// Marks the chunks that a container's damage affects as lost. Without a catalog it is unknown what the container
    /// held; the counts will show what is missing. If none of its chunks counts any more, nothing is lost.
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
                    self.lost.insert(Needed::stored(self.engine, &found.fingerprint, catalog.address(slot)));
                }
            }
        }
        if is_felt {
            self.report.add(ProblemKind::Container, damage.to_string());
        }
    }
}
