//! Levelled stores beside a model of what they have.

use super::Log;
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, SimulatedGround};
use onefold_oplog::Effects;
use onefold_storage::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const LEVELS: &str = "levels";

/// Small tables, so that little data has several levels.
pub fn levels_options() -> LevelsOptions {
    LevelsOptions {
        memtable_bytes: 8 << 10,
        ratio: 2,
        tables: 2,
        table_bytes: 40 << 10,
        frame_bytes: 2 << 10,
        sequential_frame_bytes: 6 << 10,
        compression: Compression::Lz4,
        // What is removed has to be gone at once.
        frame_cache_bytes: 0,
        store: [7; 16],
        ..LevelsOptions::default()
    }
}

/// Returns chunk `number`: its name, kind and bytes.
pub fn chunk(number: u64) -> (Fingerprint, ChunkKind, Vec<u8>) {
    let length = match number % 5 {
        0 => 1 + (number * 37 % 300) as usize,
        1 => 3000,
        4 if number % 35 == 34 => 9000,
        _ => 200 + (number * 131 % 1500) as usize,
    };
    let mut data = super::content(number * 3, length);
    let marker = number.to_le_bytes();
    let marked = length.min(8);
    data[..marked].copy_from_slice(&marker[..marked]);
    let algorithm = LevelsOptions::default().fingerprint;
    let kind = ChunkKind::from_number((number % 7 % 3) as u8).unwrap();
    let name = if kind == ChunkKind::Data { algorithm.fingerprint(&data) } else { algorithm.metadata(&data) };
    (name, kind, data)
}

/// What outlives a process.
#[derive(Clone, Debug, Default)]
pub struct KnownLevels {
    pub log: Log,
    /// Committed chunks, with their addresses.
    pub live: BTreeMap<u64, Address>,
    pub removed: BTreeSet<u64>,
    pub next: u64,
    /// The epoch of the last opening for writing.
    pub epoch: Cell<u64>,
}

pub struct LevelsWorld {
    pub store: Arc<LevelsStore>,
    /// Appended, and not committed.
    pub pending: BTreeMap<u64, Address>,
    /// Of calls that failed: some of them may be stored.
    pub doubtful: BTreeSet<Fingerprint>,
}

impl LevelsWorld {
    pub fn open(ground: &SimulatedGround, known: &KnownLevels, partitions: u16) -> Result<LevelsWorld> {
        LevelsWorld::open_for(ground, known, partitions, Access::ReadWrite)
    }

    pub fn open_for(ground: &SimulatedGround, known: &KnownLevels, partitions: u16, access: Access) -> Result<LevelsWorld> {
        let profile = Arc::new(Profile::default());
        known.epoch.set(known.epoch.get() + u64::from(access == Access::ReadWrite));
        let epoch = known.epoch.get();
        let store = LevelsStore::open(Arc::new(ground.clone()), LEVELS, partitions, epoch, levels_options(), profile, access)?;
        assert!(store.required_end() <= known.log.end());
        for (at, (start, records)) in known.log.batches.iter().enumerate() {
            let end = known.log.batches.get(at + 1).map_or(known.log.end(), |(next, _)| *next);
            store.apply(end, &Effects { start: *start, replayed: records, ..Effects::default() })?;
        }
        store.recovered(known.log.start(), known.log.end())?;
        Ok(LevelsWorld { store, pending: BTreeMap::new(), doubtful: BTreeSet::new() })
    }

    pub fn append(&mut self, writer: &mut dyn ChunkWriter, numbers: &[u64]) -> Result<()> {
        let chunks: Vec<_> = numbers.iter().map(|number| chunk(*number)).collect();
        let new: Vec<_> =
            chunks.iter().map(|(fingerprint, kind, data)| NewChunk { fingerprint: *fingerprint, kind: *kind, data }).collect();
        let addresses = writer.append(&new).inspect_err(|_| self.doubtful.extend(chunks.iter().map(|chunk| chunk.0)))?;
        self.pending.extend(numbers.iter().copied().zip(addresses));
        Ok(())
    }

    /// Logs what a prepare returned.
    pub fn commit(&mut self, known: &mut KnownLevels, mut prepared: Prepared) {
        let records = std::mem::take(&mut prepared.records);
        let digest_bytes = LevelsOptions::default().fingerprint.digest_bytes();
        let (mut placed, mut notes) = (Vec::new(), Vec::new());
        records.iter().for_each(|record| stored_chunks(record, digest_bytes, &mut placed, &mut notes).unwrap());
        let named: Vec<_> = prepared.chunks.iter().map(|(name, address, _)| (*name, address.bits())).collect();
        let sorted = |chunks: &[(Fingerprint, u64)]| chunks.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!((sorted(&placed), placed.len()), (sorted(&named), named.len()), "an index learns the same from the records");
        for (name, address, _) in &prepared.chunks {
            // Chunks of a call that failed have no number here. They are found by their names.
            let number = self.pending.keys().copied().find(|number| chunk(*number).0 == *name);
            let number = number.or_else(|| (0..known.next).find(|number| chunk(*number).0 == *name)).expect("a chunk of this test");
            self.pending.remove(&number);
            assert!(known.live.insert(number, *address).is_none(), "chunk {number} was committed twice");
            known.removed.remove(&number);
        }
        if records.is_empty() {
            self.store.abandoned(prepared);
            return;
        }
        let (start, end) = known.log.append(records);
        self.store.committed(prepared, start, end);
    }

    pub fn flush(&mut self, known: &mut KnownLevels) -> Result<()> {
        let prepared = self.store.prepare(Scope::Everything)?;
        self.commit(known, prepared);
        assert!(self.pending.is_empty());
        Ok(())
    }

    /// Removes committed chunks, or gives the removal up.
    pub fn remove(&mut self, known: &mut KnownLevels, numbers: &[u64], gives_up: bool) -> Result<()> {
        let chunks: Vec<(Address, Fingerprint)> = numbers.iter().map(|number| (known.live[number], chunk(*number).0)).collect();
        let records = self.store.begin_removal(&chunks)?;
        if gives_up {
            self.store.abandon_removal(&chunks);
            return Ok(());
        }
        let (start, end) = known.log.append(records);
        for number in numbers {
            known.live.remove(number);
            known.removed.insert(*number);
        }
        self.store.committed(Prepared::default(), start, end);
        self.store.removed(&chunks);
        Ok(())
    }

    /// Gives up the log as far as possible: with `lets_go` all of it, else what nobody needs.
    pub fn trim(&mut self, known: &mut KnownLevels, lets_go: bool) -> Result<()> {
        let target = known.log.end();
        if lets_go {
            assert!(self.store.checkpoint_before(target)?.is_empty());
            let prepared = self.store.prepare(Scope::FullFrames)?;
            self.commit(known, prepared);
        }
        let upto = self.store.trim_point(target);
        known.log.trim(Some(upto));
        Ok(())
    }

    /// Checks that just these chunks are there, byte for byte.
    pub fn check(&self, known: &KnownLevels) {
        let all: BTreeMap<u64, Address> = known.live.iter().chain(&self.pending).map(|(number, address)| (*number, *address)).collect();
        let chunks: BTreeMap<u64, _> = all.keys().map(|number| (*number, chunk(*number))).collect();
        let wanted: Vec<_> = all.iter().rev().map(|(number, address)| (*address, chunks[number].0)).collect();
        let mut slices = Vec::new();
        self.store.load(&wanted, &mut slices).unwrap();
        for (slice, (number, (_, _, data))) in slices.iter().zip(chunks.iter().rev()) {
            assert!(slice[..] == data[..], "chunk {number}");
        }
        for number in &known.removed {
            let name = chunk(*number).0;
            if self.doubtful.contains(&name) || self.pending.contains_key(number) {
                continue;
            }
            let address = self.address_of(&name, known);
            let Err(error) = self.store.load(&[(address, name)], &mut Vec::new()) else { panic!("chunk {number} is back") };
            assert!(matches!(error, StorageError::NotThere { .. }), "chunk {number} is back: {error}");
        }
        let expected: BTreeSet<(Address, Fingerprint)> = all.iter().map(|(number, address)| (*address, chunks[number].0)).collect();
        let (mut found, mut read) = (BTreeSet::new(), Vec::new());
        for unit in self.store.units().unwrap().iter() {
            for (address, slot) in self.store.chunks_of(unit).unwrap() {
                assert!(found.insert((address, slot.fingerprint)));
                assert_eq!(self.store.unit_of(address.origin()).unwrap(), unit);
            }
            let visit = &mut |chunks: &[ChunkRead<'_>]| read.extend(chunks.iter().map(|chunk| (chunk.address, chunk.fingerprint)));
            let report = self.store.verify(unit, true, &mut Default::default(), visit).unwrap();
            assert!(report.damage.is_empty(), "{:?}", report.damage);
        }
        let extra = found.difference(&expected).filter(|(_, name)| !self.doubtful.contains(name)).count();
        let lost = expected.difference(&found).count();
        assert!((extra, lost) == (0, 0), "{} chunks, {extra} too many, {lost} lost", found.len());
        let count = read.len();
        let read: BTreeSet<_> = read.into_iter().collect();
        assert!(read.len() == count && read.is_subset(&found), "each chunk is verified once");
    }

    /// Any address that a chunk had: the partition is not known any more.
    fn address_of(&self, name: &Fingerprint, known: &KnownLevels) -> Address {
        let bits = name.prefix() >> 17 | 1 << 47;
        let partition = known.live.values().next().map_or(0, |address| address.bits() >> 48);
        Address::from_bits(bits | partition << 48)
    }
}
