//! Containers in a real directory: appends unique data by codec, and loads it back. For comparison it copies memory and
//! writes a plain file.
//!
//! `cargo bench -p onefold-storage --bench containers [-- DIRECTORY [MIB]]`

use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground, LocalGround};
use onefold_oplog::{Ownership, Position};
use onefold_storage::*;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const CHUNK_BYTES: usize = 8 << 10;
const REQUEST_CHUNKS: usize = 32;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let parent = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let total_bytes = arguments.next().map_or(512, |mib| mib.parse::<usize>().expect("a number of MiB")) << 20;
    let noise = noise(64 << 20);
    let text = text(64 << 20);

    let mut target = vec![0; 64 << 20];
    let copied = seconds(|| (0..8).for_each(|_| black_box(&mut target).copy_from_slice(black_box(&noise))));
    println!("{:<34}{:>8.2} GB/s", "memcpy", (8 * noise.len()) as f64 / copied / 1e9);
    drop(target);
    let raw_write = raw_write(&parent, &noise, total_bytes);
    println!("{:<34}{:>8.2} GB/s", "file write + fdatasync", raw_write);

    println!("\n{:<34}{:>13}{:>13}{:>13}{:>8}", "8 KiB chunks, 64 KiB frames", "append GB/s", "load cold", "load hot", "ratio");
    for (name, data) in [("noise", &noise), ("text", &text)] {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(3), Compression::Zlib(1)] {
            let bytes = if matches!(compression, Compression::Zlib(_)) { total_bytes / 8 } else { total_bytes };
            let (append, cold, hot, ratio) = run(&parent, data, bytes, compression);
            println!("{:<34}{append:>13.2}{cold:>13.2}{hot:>13.2}{ratio:>8.2}", format!("{name}, {compression}"));
        }
    }
}

/// Returns GB/s of appending and syncing, of loading through the page cache, and of loading from the frame cache; and
/// the stored part.
fn run(parent: &std::path::Path, data: &[u8], total_bytes: usize, compression: Compression) -> (f64, f64, f64, f64) {
    let directory = tempfile::tempdir_in(parent).expect("a temporary directory");
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).expect("the directory"));
    ContainerStore::create(&*ground, "containers", 1).expect("create");
    let options = StorageOptions { compression, frame_cache_bytes: 64 << 20, ..StorageOptions::default() };
    let store = ContainerStore::open(ground, "containers", &Ownership::all(1, 1), options, Access::ReadWrite, Arc::new(Profile::default()))
        .expect("open");
    store.recovered(Position(0), Position(0)).expect("an empty store");
    let mut addresses = Vec::with_capacity(total_bytes / CHUNK_BYTES);
    let mut writer = store.writer();
    let mut position = 0;
    let mut commit = |store: &ContainerStore, scope| {
        let prepared = store.prepare(scope).expect("prepare");
        position += 512;
        store.committed(prepared, Position(position - 512), Position(position));
    };
    let append = seconds(|| {
        for number in 0..total_bytes / (CHUNK_BYTES * REQUEST_CHUNKS) {
            let start = number * CHUNK_BYTES * REQUEST_CHUNKS % data.len();
            let chunks: Vec<_> = data[start..start + CHUNK_BYTES * REQUEST_CHUNKS]
                .chunks(CHUNK_BYTES)
                .enumerate()
                .map(|(at, data)| NewChunk { fingerprint: name(number * REQUEST_CHUNKS + at), kind: ChunkKind::Data, data })
                .collect();
            let placed = writer.append(&chunks).expect("append");
            addresses.extend(placed.into_iter().zip(chunks.iter().map(|chunk| chunk.fingerprint)));
            if store.unsynced_bytes() >= 64 << 20 {
                commit(&store, Scope::FullFrames);
            }
        }
        commit(&store, Scope::Everything);
    });
    let mut slices = Vec::new();
    let cold = seconds(|| {
        for wanted in addresses.chunks(128) {
            slices.clear();
            store.load(wanted, &mut slices).expect("load");
            black_box(&slices);
        }
    });
    let few = &addresses[..addresses.len().min((32 << 20) / CHUNK_BYTES)];
    let mut load_few = || {
        for wanted in few.chunks(128) {
            slices.clear();
            store.load(wanted, &mut slices).expect("load");
            black_box(&slices);
        }
    };
    load_few();
    let hot = seconds(load_few);
    let statistics = store.statistics();
    let bytes = (addresses.len() * CHUNK_BYTES) as f64 / 1e9;
    let ratio = statistics.stored_bytes as f64 / statistics.raw_bytes.max(1) as f64;
    (bytes / append, bytes / cold, (few.len() * CHUNK_BYTES) as f64 / 1e9 / hot, ratio)
}

fn raw_write(parent: &std::path::Path, data: &[u8], total_bytes: usize) -> f64 {
    let directory = tempfile::tempdir_in(parent).expect("a temporary directory");
    let ground = LocalGround::open(directory.path()).expect("the directory");
    let file = ground.create("plain").expect("create");
    let time = seconds(|| {
        for at in 0..total_bytes / (1 << 20) {
            let start = (at << 20) % data.len();
            file.write_at((at << 20) as u64, &data[start..start + (1 << 20)]).expect("write");
            if at % 64 == 63 {
                file.sync().expect("sync");
            }
        }
        file.sync().expect("sync");
    });
    total_bytes as f64 / time / 1e9
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn name(number: usize) -> Fingerprint {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    digest[8..16].copy_from_slice(&(number as u64).to_be_bytes());
    Fingerprint::from_digest(&digest)
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

/// Returns words drawn unevenly from a small vocabulary, which shrink about as well as program text does.
fn text(length: usize) -> Vec<u8> {
    let letters = noise(1 << 16);
    let words: Vec<Vec<u8>> =
        letters.chunks(16).map(|word| word[1..3 + usize::from(word[0] % 9)].iter().map(|byte| b'a' + byte % 26).collect()).collect();
    let draws = noise(length);
    let mut bytes = Vec::with_capacity(length + 16);
    for draw in draws.chunks_exact(4) {
        let (a, b) = (usize::from(draw[0]) << 8 | usize::from(draw[1]), usize::from(draw[2]) << 8 | usize::from(draw[3]));
        bytes.extend_from_slice(&words[(((a * b) >> 16) * words.len()) >> 16]);
        bytes.push(b' ');
        if bytes.len() >= length {
            break;
        }
    }
    while bytes.len() < length {
        bytes.extend_from_within(..(length - bytes.len()).min(1 << 20));
    }
    bytes.truncate(length);
    bytes
}
