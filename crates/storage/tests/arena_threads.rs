//! Arenas with many threads: writers, commits, removals and readers at once.

mod common;

use common::arenas::*;
use onefold_ground::SimulatedGround;
use onefold_oplog::Position;
use onefold_storage::*;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What the threads share.
struct Shared {
    world: ArenaWorld,
    /// The numbers of chunks by block: pending ones and committed ones.
    chunks: Mutex<BTreeMap<u64, u64>>,
    /// Blocks whose chunks are committed and needed. Readers hold it while they load: a removal waits for them.
    live: RwLock<BTreeMap<u64, u64>>,
    next_chunk: AtomicU64,
    is_over: AtomicBool,
}

impl Shared {
    /// Returns whether the arena has room for a batch of each writer. A batch that finds it full has stored a part,
    /// which nobody here removes.
    fn has_room(&self) -> bool {
        let figures = self.world.store.figures();
        figures.pending + self.world.table.all().len() as u64 + figures.retired < 250
    }
}

fn write(shared: &Shared, rounds: u64) {
    let mut writer = shared.world.store.writer();
    for round in 0..rounds {
        let count = if shared.has_room() { 1 + round % 7 } else { 1 };
        let first = shared.next_chunk.fetch_add(count, Relaxed);
        let chunks: Vec<_> = (first..first + count).map(|number| (number, arena_chunk(number))).collect();
        let new: Vec<_> = chunks.iter().map(|(_, (name, kind, data))| NewChunk { fingerprint: *name, kind: *kind, data }).collect();
        let addresses = loop {
            // What is not noted by number is not removed. So no block is freed before its number is noted.
            match writer.append(&new) {
                Ok(addresses) => break addresses,
                Err(StorageError::ArenaFull { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
            while count > 1 && !shared.has_room() {
                std::thread::yield_now();
            }
        };
        let wanted: Vec<_> = addresses.iter().zip(&new).map(|(address, new)| (*address, new.fingerprint)).collect();
        let mut slices = Vec::new();
        shared.world.store.load(&wanted, &mut slices).unwrap();
        assert!(slices.iter().zip(&new).all(|(slice, new)| slice[..] == *new.data));
        let mut all = shared.chunks.lock();
        for (address, (number, _)) in addresses.iter().zip(&chunks) {
            let block = block_of_address(*address).unwrap();
            assert!(all.insert(block, *number).is_none(), "block {block} was given out twice");
        }
    }
}

/// Commits, removes and frees, as one thread of an engine does.
fn commit(shared: &Shared) {
    let store = &shared.world.store;
    let mut end = 0;
    let mut turn = 0u64;
    loop {
        let is_last = shared.is_over.load(Relaxed);
        let mut prepared = store.prepare(Scope::Everything).unwrap();
        let records = std::mem::take(&mut prepared.records);
        records.iter().for_each(|record| shared.world.table.apply(record));
        let committed = std::mem::take(&mut prepared.chunks);
        store.committed(prepared, Position(end), Position(end + 512));
        end += 512;
        // Those whose writers have noted them.
        let noted = shared.chunks.lock().clone();
        let table = shared.world.table.all();
        let is_dead = |block: &u64| !is_last && table.contains_key(block) && (block + turn).is_multiple_of(2);
        let dead: Vec<u64> = noted.keys().copied().filter(is_dead).collect();
        shared.live.write().extend(noted.iter().filter(|(block, _)| table.contains_key(block)));
        assert!(committed.iter().all(|(_, address, _)| table.contains_key(&block_of_address(*address).unwrap())));
        turn += 1;
        let addresses: Vec<_> = dead.iter().map(|block| address_of_block(*block)).collect();
        store.retire(&addresses).unwrap();
        dead.iter().for_each(|block| shared.world.table.set(*block, None));
        // Nobody who found them is left.
        let mut live = shared.live.write();
        let mut chunks = shared.chunks.lock();
        dead.iter().for_each(|block| {
            live.remove(block);
            chunks.remove(block);
        });
        drop((live, chunks));
        let (left, right) = addresses.split_at(addresses.len() / 2);
        std::thread::scope(|scope| {
            scope.spawn(|| store.free(left).unwrap());
            store.free(right).unwrap();
        });
        if turn.is_multiple_of(5) {
            store.give_back(0).unwrap();
        }
        if is_last {
            return;
        }
    }
}

fn read(shared: &Shared) {
    while !shared.is_over.load(Relaxed) {
        let live = shared.live.read();
        // Some of them are retired: a removal that waits for this thread has taken them from the table.
        let table = shared.world.table.all();
        let there: BTreeMap<u64, u64> = live.iter().map(|(block, number)| (*block, *number)).collect();
        for (block, number) in there.iter().filter(|(block, _)| table.contains_key(block)).take(20) {
            match shared.world.store.load(&[(address_of_block(*block), arena_chunk(*number).0)], &mut Vec::new()) {
                Ok(()) | Err(StorageError::NotThere { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        drop(live);
        std::thread::yield_now();
    }
}

#[test]
fn m1_11_writers_readers_commits_and_removals_at_once_lose_nothing() {
    let options = ArenaOptions { limit_bytes: 400 * BLOCK, in_flight_bytes: 96 << 10, ..arena_options() };
    let ground = SimulatedGround::new(1);
    create_arena(&ground, &options);
    let known = Known::default();
    let shared = Arc::new(Shared {
        world: ArenaWorld::open(&ground, &known, &options).unwrap(),
        chunks: Mutex::default(),
        live: RwLock::default(),
        next_chunk: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    std::thread::scope(|scope| {
        let commits = scope.spawn(|| commit(&shared));
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| read(&shared))).collect();
        let writers: Vec<_> = (0..4).map(|_| scope.spawn(|| write(&shared, 400))).collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        shared.is_over.store(true, Relaxed);
        let others: Vec<_> = readers.into_iter().chain([commits]).map(|thread| thread.join()).collect();
        assert!(written.iter().chain(&others).all(std::result::Result::is_ok), "a thread panicked");
    });
    let figures = shared.world.store.figures();
    assert_eq!((figures.pending, figures.retired, figures.reserved, figures.buffered_bytes), (0, 0, 0, 0));
    let chunks = shared.chunks.lock();
    assert!(chunks.keys().all(|block| shared.world.table.get(*block).is_some()));
    check_loads(&shared.world.store, chunks.iter());
}
