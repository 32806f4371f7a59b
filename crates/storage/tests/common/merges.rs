//! A store whose containers are merged, and a model of what must be in it: which chunks, in which files, reached
//! through which forwards.

use super::*;
use onefold_ground::SimulatedGround;
use onefold_storage::ContainerSet;
use std::collections::{BTreeMap, BTreeSet};

pub struct World {
    pub store: Arc<ContainerStore>,
    pub model: Model,
}

/// What is durable.
#[derive(Clone, Default)]
pub struct Model {
    pub log: Log,
    pub next_name: u64,
    /// Committed and needed chunks.
    pub needed: Chunks,
    /// Containers with a file of their own.
    pub files: BTreeSet<ContainerId>,
    /// Containers that live on in others.
    pub forwards: BTreeMap<ContainerId, ContainerId>,
}

impl World {
    pub fn open(ground: &SimulatedGround, model: Model, options: &StorageOptions, access: Access) -> Result<World> {
        let store = open(Arc::new(ground.clone()), &model.log, 2, options, access)?;
        Ok(World { store, model })
    }

    /// Writes new chunks of these lengths, and flushes.
    pub fn write(&mut self, lengths: &[usize]) -> Result<()> {
        self.write_with(|store| store.writer(), lengths)
    }

    /// Does the same with a given kind of writer.
    pub fn write_with(&mut self, writer: impl Fn(&Arc<ContainerStore>) -> Writer, lengths: &[usize]) -> Result<()> {
        let mut written = Chunks::new();
        append(&mut writer(&self.store), &mut self.model.next_name, lengths, &mut written)?;
        self.flush(written)
    }

    /// Does the same with frames that came compressed, each of chunks of these lengths.
    pub fn write_frames(&mut self, count: usize, lengths: &[usize]) -> Result<()> {
        let (mut written, mut writer) = (Chunks::new(), self.store.writer().sequential());
        for _ in 0..count {
            append_frame(&mut writer, Compression::Zstd(1), &mut self.model.next_name, lengths, &mut written)?;
        }
        self.flush(written)
    }

    fn flush(&mut self, written: Chunks) -> Result<()> {
        for (_, address, _) in flush(&self.store, &mut self.model.log, Scope::Everything)? {
            self.model.files.insert(address.container());
            if let Some(chunk) = written.get(&address) {
                self.model.needed.insert(address, chunk.clone());
            }
        }
        Ok(())
    }

    /// Returns the sealed containers of partition 0 with a file of their own.
    pub fn sealed(&self) -> Vec<ContainerId> {
        self.model.files.iter().copied().filter(|id| id.partition() == 0 && self.store.is_sealed(*id)).collect()
    }

    /// Returns those of them that no merge made.
    pub fn unmerged(&self) -> Vec<ContainerId> {
        self.sealed().into_iter().filter(|id| !self.model.forwards.values().any(|target| target == id)).collect()
    }

    /// Writes chunks, with `unit` times the usual lengths, until there are `count` such containers.
    ///
    /// A fixed number of rounds does not work. How much a container takes depends on which of its frames the worker has
    /// placed by then. Its partition depends on how many containers were taken before it. The small writes keep the new
    /// containers from all going to one partition.
    pub fn seal(&mut self, count: usize, unit: usize) -> Result<()> {
        let mut round = 0;
        while self.unmerged().len() < count {
            self.write(&[700, 1900, 40 * (round % 20), 2500, 0, 900, 1200].map(|length| length * unit))?;
            if round % 2 == 1 {
                self.write(&[10])?;
            }
            round += 1;
        }
        Ok(())
    }

    /// Returns the needed chunks in a file.
    pub fn needed_of(&self, file: ContainerId) -> Vec<Address> {
        let answers = |id: ContainerId| self.model.forwards.get(&id).copied().unwrap_or(id);
        self.model.needed.keys().copied().filter(|address| answers(address.container()) == file).collect()
    }

    /// Removes chunks from the needed ones.
    pub fn forget(&mut self, dead: &[Address]) {
        dead.iter().for_each(|address| drop(self.model.needed.remove(address)));
    }

    pub fn live_of(&self, victims: &[ContainerId]) -> Vec<(Address, Fingerprint)> {
        let live = victims.iter().flat_map(|victim| self.needed_of(*victim));
        let mut live: Vec<_> = live.map(|address| (address, self.model.needed[&address].0)).collect();
        // Half of the containers in the order of the files, so that whole frames can be copied, and half in no order.
        live.sort_by_key(|(address, fingerprint)| match address.container().number() % 2 {
            0 => (None, address.bits()),
            _ => (Some(*fingerprint), 0),
        });
        live
    }

    /// Merges, logs the merge, and replaces the files.
    pub fn merge(&mut self, victims: &[ContainerId]) -> Result<MergeStatistics> {
        let live = self.live_of(victims);
        let merge = self.store.merge(victims, &live)?;
        Ok(self.log_merge(victims, &live, merge))
    }

    pub fn log_merge(&mut self, victims: &[ContainerId], live: &[(Address, Fingerprint)], merge: Merge) -> MergeStatistics {
        let (statistics, target) = (merge.statistics, merge.container());
        let (start, end) = self.model.log.append(vec![merge.record()]);
        self.model.files.retain(|id| !victims.contains(id));
        self.model.forwards.retain(|_, answers| !victims.contains(answers));
        if let Some(target) = target {
            self.model.files.insert(target);
            self.model.forwards.extend(live.iter().map(|(address, _)| (address.container(), target)));
        }
        self.store.merged(merge, start, end);
        statistics
    }

    pub fn trim(&mut self) {
        let point = self.store.trim_point(self.model.log.end());
        assert!(self.store.oldest_needed().is_none_or(|oldest| oldest >= point));
        self.model.log.trim(Some(point));
    }

    /// Checks that everything needed is there, byte for byte. Once merges are finished, no other file may be there.
    pub fn check(&self, ground: &SimulatedGround) {
        check(&self.store, &self.model.needed);
        for (id, target) in &self.model.forwards {
            assert_eq!(self.store.container_of(*id).unwrap(), *target);
            assert_eq!(self.store.verify_forward(*id).unwrap(), *target);
        }
        assert_eq!(self.store.forwards().unwrap(), self.model.forwards.keys().copied().collect());
        let listed = self.store.containers().unwrap();
        for id in listed.iter() {
            assert!(self.model.files.contains(&id) || !self.store.is_sealed(id), "{id} should not be there");
            let report = self.store.verify_container(id, true, None).unwrap();
            assert!(report.damage.is_empty(), "{:?}", report.damage);
            for (address, slot) in self.store.slots(id).unwrap() {
                assert!(self.model.needed.get(&address).is_none_or(|(fingerprint, _)| *fingerprint == slot.fingerprint));
            }
        }
        assert!(self.model.files.iter().all(|id| listed.contains(*id)));
        if !self.store.has_pending_merges() {
            self.no_other_files(ground, &listed);
        }
    }

    fn no_other_files(&self, ground: &SimulatedGround, listed: &ContainerSet) {
        for (path, id, suffix) in files(ground) {
            // A file that a crash left without any bytes may be a sealed container that lost them.
            if suffix.is_empty() && ground.open(&path, Access::Read).unwrap().is_empty().unwrap() {
                continue;
            }
            let is_known = match suffix.as_str() {
                "" => listed.contains(id),
                ".forward" => self.model.forwards.contains_key(&id),
                _ => false,
            };
            assert!(is_known, "{path} should not be there");
        }
    }
}

/// Returns all files of containers, except those of parity: path, container, and what follows its name.
pub fn files(ground: &SimulatedGround) -> Vec<(String, ContainerId, String)> {
    let mut found = Vec::new();
    for partition in ground.list(DIRECTORY).unwrap() {
        for folder in ground.list(&format!("{DIRECTORY}/{}", partition.name)).unwrap() {
            if folder.name == "parity" {
                continue;
            }
            let folder = format!("{DIRECTORY}/{}/{}", partition.name, folder.name);
            for entry in ground.list(&folder).unwrap() {
                let number = u32::from_str_radix(&entry.name[..8], 16).unwrap();
                let id = ContainerId::new(u16::from_str_radix(&partition.name, 16).unwrap(), number);
                found.push((format!("{folder}/{}", entry.name), id, entry.name[8..].to_owned()));
            }
        }
    }
    found
}

pub fn path(id: ContainerId) -> String {
    format!("{DIRECTORY}/{:04x}/{:05x}/{:08x}", id.partition(), id.number() >> 12, id.number())
}
