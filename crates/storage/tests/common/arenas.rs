//! An arena beside the log and the index that an engine would have, and a model of what must be in it.

use super::Log;
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, File, SimulatedGround};
use onefold_storage::*;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

pub const ARENA: &str = "arena";
pub const BLOCK: u64 = 4096;
/// The smallest device that an arena takes.
pub const DEVICE_BYTES: u64 = 18 << 20;

/// A block table in memory. It takes batches as the index does.
#[derive(Debug, Default)]
pub struct Table {
    pub blocks: Mutex<BTreeMap<u64, Block>>,
    /// Units below this are used as a whole, beside what the map has: for large arenas in small tests.
    pub full_units: u32,
    /// What it holds of these blocks cannot be read, nor how many of their units are used.
    pub damaged: Mutex<BTreeSet<u64>>,
    /// Runs once, behind the next look at blocks.
    pub after_look: Hook,
}

/// Something that happens once, when it is set.
#[derive(Default)]
pub struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Hook")
    }
}

impl Hook {
    pub fn set(&self, happens: impl FnOnce() + Send + 'static) {
        *self.0.lock() = Some(Box::new(happens));
    }

    pub fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }

    fn run(&self) {
        let happens = self.0.lock().take();
        happens.into_iter().for_each(|happens| happens());
    }
}

impl Table {
    pub fn set(&self, block: u64, held: Option<Block>) {
        match held {
            Some(held) => self.blocks.lock().insert(block, held),
            None => self.blocks.lock().remove(&block),
        };
    }

    pub fn get(&self, block: u64) -> Option<Block> {
        self.blocks.lock().get(&block).copied()
    }

    pub fn all(&self) -> BTreeMap<u64, Block> {
        self.blocks.lock().clone()
    }

    /// Errors: one of these blocks is in a damaged part.
    fn check(&self, blocks: Range<u64>) -> Result<()> {
        match self.damaged.lock().range(blocks).next() {
            Some(block) => Err(StorageError::Table { why: format!("page {}", block / 8), is_damage: true, is_full: false }),
            None => Ok(()),
        }
    }

    pub fn apply(&self, record: &onefold_oplog::Record) {
        let (mut stored, mut notes) = (Vec::new(), Vec::new());
        stored_chunks(record, 32, &mut stored, &mut notes).unwrap();
        for ((fingerprint, address), note) in stored.into_iter().zip(notes) {
            let (kind, length_bytes) = decode_note(note).unwrap();
            let block = block_of_address(Address::from_bits(address)).unwrap();
            self.set(block, Some(Block { fingerprint, kind, length_bytes, is_lost: false }));
        }
    }
}

impl BlockTable for Table {
    fn blocks(&self, wanted: &[u64], out: &mut Vec<Option<Block>>) -> Result<()> {
        assert!(wanted.windows(2).all(|pair| pair[0] < pair[1]), "{wanted:?}");
        wanted.iter().try_for_each(|block| self.check(*block..*block + 1))?;
        let blocks = self.blocks.lock();
        out.extend(wanted.iter().map(|block| blocks.get(block).copied()));
        drop(blocks);
        self.after_look.run();
        Ok(())
    }

    fn run(&self, first: u64, count: usize, out: &mut Vec<Option<Block>>) -> Result<()> {
        self.check(first..first + count as u64)?;
        let blocks = self.blocks.lock();
        let other = Block { fingerprint: Fingerprint::from_digest(&[9; 32]), kind: ChunkKind::Data, length_bytes: 1, is_lost: false };
        let filled = |block: u64| (block < u64::from(self.full_units) * UNIT_BLOCKS).then_some(other);
        out.extend((first..first + count as u64).map(|block| blocks.get(&block).copied().or(filled(block))));
        drop(blocks);
        self.after_look.run();
        Ok(())
    }

    fn used(&self, unit: u32) -> Result<u32> {
        let first = u64::from(unit) * UNIT_BLOCKS;
        self.check(first..first + UNIT_BLOCKS)?;
        let counted = self.blocks.lock().range(first..first + UNIT_BLOCKS).count() as u32;
        Ok(if unit < self.full_units { UNIT_BLOCKS as u32 } else { counted })
    }

    fn units(&self) -> Result<u32> {
        let last = self.blocks.lock().last_key_value().map_or(0, |(block, _)| (block / UNIT_BLOCKS) as u32 + 1);
        Ok(last.max(self.full_units))
    }
}

/// Notes the holes, and writes zeros where they are: a hole in a wrong place takes somebody's bytes.
#[derive(Debug, Default)]
pub struct ZeroedHoles {
    pub blocks: Mutex<BTreeSet<u64>>,
    pub calls: Mutex<Vec<(u64, u64)>>,
    /// Runs once, before the next hole.
    pub before_hole: Hook,
}

impl Holes for ZeroedHoles {
    fn punch(&self, file: &dyn File, offset: u64, length: u64) -> onefold_ground::Result<()> {
        self.before_hole.run();
        assert!(offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK) && length > 0);
        assert!(offset + length <= file.len()?, "a hole lies within the file");
        self.calls.lock().push((offset / BLOCK, length / BLOCK));
        self.blocks.lock().extend(offset / BLOCK..(offset + length) / BLOCK);
        file.write_at(offset, &vec![0; length as usize])
    }
}

pub fn arena_options() -> ArenaOptions {
    ArenaOptions { store: [7; 16], in_flight_bytes: 64 << 10, grow_bytes: 64 << 10, ..ArenaOptions::default() }
}

/// A chunk by its number: its name, kind and bytes.
pub fn arena_chunk(number: u64) -> (Fingerprint, ChunkKind, Vec<u8>) {
    let length = match number % 5 {
        0 | 1 => 4096,
        2 => 1 + (number * 37 % 4096) as usize,
        3 => 1,
        _ => 4095,
    };
    let mut data = super::content(number * 3, length);
    let marker = number.to_le_bytes();
    let marked = length.min(8);
    data[..marked].copy_from_slice(&marker[..marked]);
    let algorithm = ArenaOptions::default().fingerprint;
    let kind = ChunkKind::from_number((number % 7 % 3) as u8).unwrap();
    let name = if kind == ChunkKind::Data { algorithm.fingerprint(&data) } else { algorithm.metadata(&data) };
    (name, kind, data)
}

/// What outlives a process: the log and the index that it makes, and what was committed.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub log: Log,
    pub committed: BTreeMap<u64, u64>,
    pub next_chunk: u64,
}

/// An open arena with its table.
pub struct ArenaWorld {
    pub store: Arc<ArenaStore>,
    pub table: Arc<Table>,
    pub holes: Arc<ZeroedHoles>,
    /// The chunk numbers of blocks that are pending.
    pub pending: BTreeMap<u64, u64>,
    /// Blocks whose chunks were removed and that are not freed.
    pub retired: Vec<u64>,
}

pub fn create_arena(ground: &SimulatedGround, options: &ArenaOptions) {
    ArenaStore::create(ground, ARENA, options).unwrap();
}

/// Creates it on a block device.
pub fn create_arena_on_device(ground: &SimulatedGround, options: &ArenaOptions) {
    onefold_ground::Ground::create_directory(ground, ARENA).unwrap();
    ground.make_device("arena/blocks", DEVICE_BYTES).unwrap();
    create_arena(ground, options);
}

impl ArenaWorld {
    /// Opens the arena with the table as the log and the removals make it.
    pub fn open(ground: &SimulatedGround, known: &Known, options: &ArenaOptions) -> Result<ArenaWorld> {
        let table = Table::default();
        for (block, number) in &known.committed {
            let (fingerprint, kind, data) = arena_chunk(*number);
            table.set(*block, Some(Block { fingerprint, kind, length_bytes: data.len() as u32, is_lost: false }));
        }
        ArenaWorld::open_with(ground, Arc::new(table), known, options)
    }

    pub fn open_with(ground: &SimulatedGround, table: Arc<Table>, known: &Known, options: &ArenaOptions) -> Result<ArenaWorld> {
        let holes = Arc::new(ZeroedHoles::default());
        let log_end = known.log.end();
        let parts = ArenaParts { table: table.clone(), holes: holes.clone(), profile: Arc::new(Profile::default()), log_end };
        let store = ArenaStore::open(Arc::new(ground.clone()), ARENA, 1, options.clone(), parts, Access::ReadWrite)?;
        ChunkStore::recovered(&*store, known.log.start(), known.log.end())?;
        Ok(ArenaWorld { store, table, holes, pending: BTreeMap::new(), retired: Vec::new() })
    }

    /// Appends the next chunks. After an error nothing is known of them.
    pub fn append(&mut self, writer: &mut dyn ChunkWriter, known: &mut Known, count: u64) -> Result<Vec<Address>> {
        let numbers: Vec<u64> = (known.next_chunk..known.next_chunk + count).collect();
        known.next_chunk += count;
        let chunks: Vec<_> = numbers.iter().map(|number| arena_chunk(*number)).collect();
        let new: Vec<_> =
            chunks.iter().map(|(fingerprint, kind, data)| NewChunk { fingerprint: *fingerprint, kind: *kind, data }).collect();
        let addresses = writer.append(&new)?;
        assert_eq!(addresses.len(), numbers.len());
        for (address, number) in addresses.iter().zip(&numbers) {
            let block = block_of_address(*address).unwrap();
            assert!(!known.committed.contains_key(&block), "block {block} is used");
            assert!(self.pending.insert(block, *number).is_none(), "block {block} was given out twice");
        }
        Ok(addresses)
    }

    /// Logs what a prepare returned, applies it and tells the store, as an engine does.
    pub fn commit(&mut self, known: &mut Known, mut prepared: Prepared) {
        let records = std::mem::take(&mut prepared.records);
        for (name, address, _) in &prepared.chunks {
            let block = block_of_address(*address).unwrap();
            // Chunks of a call that failed have no number here. They are found by their names.
            let number = self.pending.remove(&block).or_else(|| (0..known.next_chunk).find(|number| arena_chunk(*number).0 == *name));
            known.committed.insert(block, number.expect("a chunk of this test"));
        }
        let (start, end) = known.log.append(records.clone());
        records.iter().for_each(|record| self.table.apply(record));
        self.store.committed(prepared, start, end);
    }

    pub fn flush(&mut self, known: &mut Known) -> Result<()> {
        let prepared = self.store.prepare(Scope::Everything)?;
        self.commit(known, prepared);
        Ok(())
    }

    /// Removes committed chunks: retires their blocks, logs and applies the removal.
    pub fn remove(&mut self, known: &mut Known, blocks: &[u64]) -> Result<()> {
        let addresses: Vec<Address> = blocks.iter().map(|block| address_of_block(*block)).collect();
        self.store.retire(&addresses)?;
        for block in blocks {
            known.committed.remove(block).unwrap();
            self.table.set(*block, None);
        }
        self.retired.extend(blocks);
        Ok(())
    }

    pub fn free_retired(&mut self) -> Result<()> {
        self.free(&self.retired)?;
        self.retired.clear();
        Ok(())
    }

    pub fn free(&self, blocks: &[u64]) -> Result<()> {
        self.store.free(&blocks.iter().map(|block| address_of_block(*block)).collect::<Vec<_>>())
    }

    /// Checks that every chunk is there, byte for byte, and that the table says what the model says.
    pub fn check(&self, known: &Known) {
        let table = self.table.all();
        let blocks: Vec<u64> = table.keys().copied().collect();
        assert_eq!(blocks, known.committed.keys().copied().collect::<Vec<_>>());
        check_loads(&self.store, known.committed.iter().chain(&self.pending));
        let mut sound = Vec::new();
        self.store
            .verify_blocks(0, self.store.figures().blocks + 10, &mut |block, _, bytes| {
                assert!(bytes.is_ok(), "block {block}: {bytes:?}");
                sound.push(block);
            })
            .unwrap();
        assert_eq!(sound, blocks);
    }
}

/// Checks that these chunks are in these blocks.
pub fn check_loads<'a>(store: &ArenaStore, chunks: impl Iterator<Item = (&'a u64, &'a u64)>) {
    let chunks: Vec<_> = chunks.map(|(block, number)| (address_of_block(*block), arena_chunk(*number))).collect();
    let wanted: Vec<_> = chunks.iter().rev().map(|(address, (name, ..))| (*address, *name)).collect();
    let mut slices = Vec::new();
    store.load(&wanted, &mut slices).unwrap();
    assert_eq!(slices.len(), chunks.len());
    for (slice, (address, (_, _, data))) in slices.iter().zip(chunks.iter().rev()) {
        assert!(slice[..] == data[..], "{address}");
    }
}
