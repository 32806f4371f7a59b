//! An arena in a real directory: appends unique chunks of a block, commits them, and loads them back. For comparison it
//! writes and reads the same bytes without an arena.
//!
//! `cargo bench -p onefold-storage --bench arena [-- DIRECTORY [MIB]]`

use onefold_fingerprint::Algorithm;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground, LocalGround};
use onefold_oplog::Position;
use onefold_storage::*;
use parking_lot::Mutex;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const BLOCK_BYTES: usize = 4 << 10;
const REQUEST_CHUNKS: usize = 64;
const LOAD_CHUNKS: usize = 256;
const SYNC_BYTES: usize = 64 << 20;

/// What blocks hold, as a vector.
#[derive(Debug, Default)]
struct Table(Mutex<Vec<Option<Block>>>);

impl BlockTable for Table {
    fn blocks(&self, wanted: &[u64], out: &mut Vec<Option<Block>>) -> Result<()> {
        let blocks = self.0.lock();
        out.extend(wanted.iter().map(|block| blocks.get(*block as usize).copied().flatten()));
        Ok(())
    }

    fn run(&self, first: u64, count: usize, out: &mut Vec<Option<Block>>) -> Result<()> {
        let wanted: Vec<u64> = (first..first + count as u64).collect();
        self.blocks(&wanted, out)
    }

    fn used(&self, unit: u32) -> Result<u32> {
        let blocks = self.0.lock();
        let first = (unit as usize * UNIT_BLOCKS as usize).min(blocks.len());
        Ok(blocks[first..].iter().take(UNIT_BLOCKS as usize).flatten().count() as u32)
    }

    fn units(&self) -> Result<u32> {
        Ok(self.0.lock().len().div_ceil(UNIT_BLOCKS as usize) as u32)
    }
}

impl Table {
    fn apply(&self, record: &onefold_oplog::Record) {
        let (mut stored, mut notes) = (Vec::new(), Vec::new());
        stored_chunks(record, 32, &mut stored, &mut notes).expect("a record of the arena");
        let mut blocks = self.0.lock();
        for ((fingerprint, address), note) in stored.into_iter().zip(notes) {
            let block = block_of_address(Address::from_bits(address)).expect("an address of a block") as usize;
            let (kind, length_bytes) = decode_note(note).expect("a note");
            if blocks.len() <= block {
                blocks.resize(block + 1, None);
            }
            blocks[block] = Some(Block { fingerprint, kind, length_bytes, is_lost: false });
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let parent = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let total_bytes = arguments.next().map_or(1024, |mib| mib.parse::<usize>().expect("a number of MiB")) << 20;
    let mut data = noise(64 << 20);
    let mut print = |what: &str, seconds: f64| println!("{what:<44}{:>8.0} MB/s", total_bytes as f64 / seconds / 1e6);

    plain(&parent, &data, total_bytes, &mut print);
    let directory = tempfile::tempdir_in(&parent).expect("a temporary directory");
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).expect("the directory"));
    let options = ArenaOptions::default();
    ArenaStore::create(&*ground, "arena", &options).expect("create");
    let table = Arc::new(Table::default());
    let parts = ArenaParts { table: table.clone(), holes: Arc::new(NoHoles), profile: Arc::new(Profile::default()), log_end: Position(0) };
    let store = ArenaStore::open(ground.clone(), "arena", 1, options, parts, Access::ReadWrite).expect("open");
    ChunkStore::recovered(&*store, Position(0), Position(0)).expect("an empty store");

    let mut writer = store.writer();
    let mut end = 0;
    let mut commit = || {
        let mut prepared = store.prepare(Scope::Everything).expect("prepare");
        std::mem::take(&mut prepared.records).iter().for_each(|record| table.apply(record));
        end += 512;
        store.committed(prepared, Position(end - 512), Position(end));
    };
    // Naming the chunks is not the arena's work.
    let mut wanted = Vec::with_capacity(total_bytes / BLOCK_BYTES);
    let mut spent = 0.0;
    for number in 0..total_bytes / (BLOCK_BYTES * REQUEST_CHUNKS) {
        let start = number * BLOCK_BYTES * REQUEST_CHUNKS % data.len();
        data[start..start + 8].copy_from_slice(&(number as u64).to_le_bytes());
        let chunks: Vec<&[u8]> = data[start..start + BLOCK_BYTES * REQUEST_CHUNKS].chunks(BLOCK_BYTES).collect();
        let mut names = Vec::new();
        Algorithm::Blake3.fingerprint_many(&chunks, &mut names);
        let new: Vec<_> =
            names.iter().zip(&chunks).map(|(name, data)| NewChunk { fingerprint: *name, kind: ChunkKind::Data, data }).collect();
        spent += seconds(|| {
            wanted.extend(writer.append(&new).expect("append").into_iter().zip(names.iter().copied()));
            if store.unsynced_bytes() >= SYNC_BYTES as u64 {
                commit();
            }
        });
    }
    spent += seconds(&mut commit);
    print("append, a commit every 64 MiB", spent);
    let file = ground.open("arena/blocks", Access::Read).expect("the blocks");
    for (what, is_cold) in [("load from the device", true), ("load from the page cache", false)] {
        if is_cold {
            file.drop_cached(0, total_bytes as u64);
        }
        let mut slices = Vec::new();
        let time = seconds(|| {
            for wanted in wanted.chunks(LOAD_CHUNKS) {
                slices.clear();
                store.load(wanted, &mut slices).expect("load");
                black_box(&slices);
            }
        });
        print(what, time);
    }
}

/// Writes and reads the same bytes without an arena.
fn plain(parent: &std::path::Path, data: &[u8], total_bytes: usize, print: &mut impl FnMut(&str, f64)) {
    let directory = tempfile::tempdir_in(parent).expect("a temporary directory");
    let ground = LocalGround::open(directory.path()).expect("the directory");
    let file = ground.create("plain").expect("create");
    let run_bytes = REQUEST_CHUNKS * BLOCK_BYTES;
    let written = seconds(|| {
        for at in (0..total_bytes).step_by(run_bytes) {
            let start = at % data.len();
            file.write_at(at as u64, &data[start..start + run_bytes]).expect("write");
            file.start_writeback(at as u64, run_bytes as u64);
            if (at + run_bytes).is_multiple_of(SYNC_BYTES) {
                file.sync().expect("sync");
            }
        }
        file.sync().expect("sync");
    });
    print("plain write of 256 KiB, a sync every 64 MiB", written);
    for (what, is_cold) in [("plain read of 1 MiB from the device", true), ("plain read of 1 MiB from the page cache", false)] {
        if is_cold {
            file.drop_cached(0, total_bytes as u64);
        }
        let mut buffer = vec![0; 1 << 20];
        let read = seconds(|| {
            for at in (0..total_bytes).step_by(buffer.len()) {
                file.read_at(at as u64, &mut buffer).expect("read");
                black_box(&buffer);
            }
        });
        print(what, read);
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
