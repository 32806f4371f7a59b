//! Steps 2, 4 and 5 of a repair: container files, the forwards to them, and the chunks in them that cannot be read.

use super::Repair;
use super::suspects::{self, Suspects};
use crate::Result;
use crate::check::Check;
use crate::reading::look_into_all;
use onefold_engine::{Address, ContainerId, Engine, LostChunk, Repair as Repaired};
use onefold_storage::{ContainerStore, Origin};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Lost chunks collected from the index before they are put in quarantine. Limits memory.
const LOST_AT_ONCE: usize = 1 << 16;

/// Lost chunks by the container of their addresses, with the reason why it cannot be read.
type LostByOrigin = BTreeMap<Origin, (Arc<str>, Vec<LostChunk>)>;

/// Returns why the chunks of an origin cannot be read, or `None` if they can.
type WhyNot<'a> = dyn FnMut(Origin) -> Result<Option<Arc<str>>> + 'a;

impl Repair<'_> {
    /// Rebuilds containers without a file from parity, and headers that can be recomputed. This comes before the
    /// forwards, which must lead to readable containers. A failed rebuild (the disk is full) does not stop the others.
    pub(super) fn lost_containers(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let Some(storage) = engine.containers() else { return Ok(()) };
        match storage.repair_lost(&|| self.go_on()) {
            Ok((repaired, lost)) => {
                repaired.into_iter().for_each(|container| self.made_anew(container));
                lost.into_iter().filter_map(|(container, why)| Some((container, why?))).for_each(|(container, why)| {
                    self.did(format!("container {container} could not be rebuilt from parity: {why}"));
                });
            }
            Err(error) => self.did(format!("lost containers could not be rebuilt from parity: {error}")),
        }
        let containers = storage.containers()?;
        self.monitor.step("catalogs of containers", containers.len() as u64);
        for container in containers.iter() {
            if !self.go_on() {
                break;
            }
            if storage.catalog(container).is_err() {
                self.container_anew(engine, container)?;
            }
            self.monitor.advance(1);
        }
        Ok(())
    }

    fn made_anew(&mut self, container: ContainerId) {
        self.repaired += 1;
        let done = self.done();
        self.did(format!("container {container} {done} rebuilt from parity"));
    }

    fn done(&self) -> &'static str {
        if self.options.dry_run { "would be" } else { "was" }
    }

    /// Rebuilds a container, or its header, from parity. Notes whatever is not possible.
    fn container_anew(&mut self, engine: &Arc<Engine>, container: ContainerId) -> Result<()> {
        match engine.repair_container(container) {
            Ok(Repaired::Repaired) => {
                self.made_anew(container);
                return Ok(());
            }
            Ok(_) => {}
            Err(error) => self.did(format!("container {container} could not be rebuilt from parity: {error}")),
        }
        let Some(storage) = engine.containers() else { return Ok(()) };
        let done = self.done();
        match storage.repair_header(container) {
            Ok(true) => self.did(format!("the header of container {container} {done} rewritten")),
            Ok(false) => {}
            Err(error) => self.did(format!("the header of container {container} could not be rewritten: {error}")),
        }
        Ok(())
    }

    /// Runs step 2. A merged container itself says whose chunks it has. Of several such containers, the newest counts.
    pub(super) fn forwards(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let Some(storage) = engine.containers() else { return Ok(()) };
        let containers = storage.containers()?;
        let mut answers: BTreeMap<ContainerId, ContainerId> = BTreeMap::new();
        for container in containers.iter() {
            if !self.go_on() {
                return Ok(());
            }
            let Ok(catalog) = storage.catalog(container) else { continue };
            if catalog.container == container && catalog.homes.is_some() {
                answers.extend(catalog.home_containers().iter().map(|home| (*home, container)));
            }
        }
        answers.retain(|home, _| !containers.contains(*home) && self.go_on() && storage.verify_forward(*home).is_err());
        let mut by_target: BTreeMap<ContainerId, Vec<ContainerId>> = BTreeMap::new();
        answers.into_iter().for_each(|(home, target)| by_target.entry(target).or_default().push(home));
        for (target, homes) in by_target {
            if !self.go_on() {
                break;
            }
            let names = homes.iter().map(ContainerId::to_string).collect::<Vec<_>>().join(", ");
            storage.repair_forwards(&homes, target)?;
            let done = if self.options.dry_run { "would be" } else { "were" };
            self.did(format!("the forwards of containers {names} to container {target} {done} rewritten"));
        }
        Ok(())
    }

    /// Runs step 4. Returns the container files whose catalog cannot be read, and why.
    pub(super) fn containers(&mut self, engine: &Arc<Engine>) -> Result<BTreeMap<ContainerId, Arc<str>>> {
        let containers = engine.storage().units()?;
        self.monitor.step("containers and data", containers.len() as u64);
        let (mut suspect, monitor) = (Vec::new(), self.monitor);
        look_into_all(engine, &containers, true, &|| !monitor.is_cancelled(), &mut |looked| {
            suspect.extend(suspects::is_suspect(&looked).then_some(looked.container));
            monitor.advance(1);
        });
        suspect.sort_unstable();
        let mut unreadable = BTreeMap::new();
        for container in suspect {
            if !self.go_on() {
                break;
            }
            self.container_anew(engine, container)?;
            match suspects::of(engine, container)? {
                Suspects::None => {}
                Suspects::Chunks { lost, why } => self.lose(engine, &lost, &format!("container {container}: {why}"))?,
                Suspects::All { why } => drop(unreadable.insert(container, why.into())),
            }
        }
        Ok(unreadable)
    }

    /// Runs step 5: chunks that the index has in files that are missing or whose catalog cannot be read.
    pub(super) fn what_was_in(&mut self, engine: &Arc<Engine>, unreadable: &BTreeMap<ContainerId, Arc<str>>) -> Result<()> {
        // Blocks were read one by one.
        let Some(storage) = engine.containers() else { return Ok(()) };
        let ask = |origin: Origin| -> Result<Option<Arc<str>>> {
            let file = match suspects::lasting(|| engine.storage().unit_of(origin))? {
                Ok(file) => file,
                Err(error) => return Ok(Some(error.to_string().into())),
            };
            match unreadable.get(&file) {
                Some(why) => Ok(Some(why.clone())),
                None => Ok(suspects::lasting(|| engine.storage().chunks_of(file))?.err().map(|error| error.to_string().into())),
            }
        };
        let mut asked: HashMap<Origin, Option<Arc<str>>> = HashMap::new();
        let mut why_not = |origin: Origin| {
            if let Some(known) = asked.get(&origin) {
                return Ok(known.clone());
            }
            ask(origin).inspect(|why| drop(asked.insert(origin, why.clone())))
        };
        self.monitor.step("places of chunks", engine.index_partitions());
        if engine.index().is_none() {
            self.lost_copies(engine, &mut why_not)?;
        }
        for partition in 0..engine.index_partitions() as u32 {
            let mut next = Some(0);
            while let Some(from) = next {
                if !self.go_on() {
                    return Ok(());
                }
                let lost;
                (lost, next) = self.lost_places(engine, partition, from, &mut why_not)?;
                for (origin, (why, lost)) in lost {
                    self.lose(engine, &lost, &format!("container {origin} cannot be read: {why}"))?;
                }
            }
            self.monitor.advance(1);
        }
        // If a file comes back, only those of its chunks count that are restored.
        let missing = asked.into_iter().filter(|(_, why)| why.is_some()).map(|(origin, _)| origin);
        let missing = missing.filter_map(|origin| storage.possible_containers(origin).last());
        let given_up: BTreeSet<ContainerId> = unreadable.keys().copied().chain(missing).collect();
        for container in given_up {
            if !self.go_on() {
                return Ok(());
            }
            engine.give_up_container(container)?;
        }
        self.give_up_dead_ends(engine, storage)
    }

    /// Puts copies in quarantine that are needed and whose container cannot be read. Without a chunk index, only
    /// references know of them.
    fn lost_copies(&mut self, engine: &Arc<Engine>, why_not: &mut WhyNot<'_>) -> Result<()> {
        loop {
            let check = Check::new(engine, self.check_options(), self.monitor).run()?;
            if let Some(error) = check.unread {
                return Err(error);
            }
            let mut lost = LostByOrigin::new();
            for (needed, _) in check.missing.iter() {
                let origin = needed.copy.origin();
                if let Some(why) = why_not(origin)? {
                    let chunk = LostChunk { fingerprint: needed.fingerprint, address: needed.copy, slot: None, is_needed: true };
                    lost.entry(origin).or_insert_with(|| (why, Vec::new())).1.push(chunk);
                }
            }
            let is_all = lost.is_empty() || check.missing.is_complete();
            for (origin, (why, lost)) in lost {
                self.lose(engine, &lost, &format!("container {origin} cannot be read: {why}"))?;
            }
            if self.is_cut && !is_all {
                // A dry run has no memory for them.
                self.report.quarantined_chunks += check.missing.left_out();
                self.did(self.say(check.missing.left_out(), "more chunk", "more chunks", "put in quarantine"));
            }
            if is_all || self.is_cut || !self.go_on() {
                return Ok(());
            }
        }
    }

    /// Returns some chunks of a partition whose place in the index cannot be read, from a prefix on, and where to
    /// continue.
    fn lost_places(
        &self,
        engine: &Arc<Engine>,
        partition: u32,
        from: u64,
        why_not: &mut WhyNot<'_>,
    ) -> Result<(LostByOrigin, Option<u64>)> {
        let mut lost = LostByOrigin::new();
        let (mut count, mut last, mut next, mut failed) = (0, 0, None, None);
        let Some(index) = engine.index() else { return Ok((lost, next)) };
        index.for_each_from(partition, from, &mut |fingerprint, entry| {
            if entry.address == 0 {
                return true;
            }
            let address = Address::from_bits(entry.address);
            match why_not(address.origin()) {
                Ok(None) => {}
                // All chunks with one prefix together, so that the next call knows where to begin.
                Ok(Some(_)) if count >= LOST_AT_ONCE && last != fingerprint.prefix() => next = Some(fingerprint.prefix()),
                Ok(Some(why)) => {
                    let chunk = LostChunk { fingerprint: *fingerprint, address, slot: None, is_needed: false };
                    lost.entry(address.origin()).or_insert_with(|| (why, Vec::new())).1.push(chunk);
                    (count, last) = (count + 1, fingerprint.prefix());
                }
                Err(error) => failed = Some(error),
            }
            next.is_none() && failed.is_none()
        })?;
        failed.map_or(Ok((lost, next)), Err)
    }

    /// Gives up forwards that lead nowhere. By now their chunks are in quarantine.
    fn give_up_dead_ends(&mut self, engine: &Arc<Engine>, storage: &ContainerStore) -> Result<()> {
        for id in storage.forwards()?.iter() {
            if !self.go_on() {
                break;
            }
            if storage.verify_forward(id).is_err() {
                let target = storage.forward_target(id).filter(|target| storage.catalog(*target).is_err());
                engine.give_up_container(target.unwrap_or(id))?;
            }
        }
        Ok(())
    }
}
