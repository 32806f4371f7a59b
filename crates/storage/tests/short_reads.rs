//! Short reads: chunks of plain frames without the rest of their frames, verified by their fingerprints.

mod common;

use common::{DIRECTORY, Log, Named, flush, open, options};
use onefold_fingerprint::{Algorithm, Fingerprint};
use onefold_ground::{Access, SimulatedGround};
use onefold_storage::{Address, ChunkKind, Compression, ContainerStore, NewChunk, Scope, StorageError, StorageOptions};
use std::sync::Arc;

const CHUNK_BYTES: usize = 1 << 10;
const FRAME_CHUNKS: usize = 8;
const FRAMES: usize = 10;

/// A chunk that is stored, with its fingerprint.
struct Chunk {
    address: Address,
    fingerprint: Fingerprint,
    bytes: Vec<u8>,
}

fn plain(fingerprint: Algorithm) -> StorageOptions {
    StorageOptions {
        container_bytes: 1 << 20,
        frame_bytes: (FRAME_CHUNKS * CHUNK_BYTES) as u32,
        compression: Compression::None,
        frame_cache_bytes: 1 << 20,
        catalog_cache_bytes: 1 << 20,
        workers: 1,
        fingerprint,
        ..options()
    }
}

/// Bytes that look like no other chunk's.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(CHUNK_BYTES).collect()
}

/// Fills whole frames with user data.
fn filled(options: &StorageOptions) -> (SimulatedGround, Log, Vec<Chunk>) {
    let ground = SimulatedGround::new(1);
    ContainerStore::create(&ground, DIRECTORY, 1).unwrap();
    let mut log = Log::default();
    let store = open(Arc::new(ground.clone()), &log, 1, options, Access::ReadWrite).unwrap();
    let mut writer = store.writer();
    let mut append = |number: usize| {
        let bytes = noise(number as u64);
        let fingerprint = options.fingerprint.fingerprint(&bytes);
        let address = writer.append(&[NewChunk { fingerprint, kind: ChunkKind::Data, data: &bytes }]).unwrap()[0];
        Chunk { address, fingerprint, bytes }
    };
    let chunks = (0..FRAMES * FRAME_CHUNKS).map(&mut append).collect();
    drop(writer);
    flush(&store, &mut log, Scope::Everything).unwrap();
    (ground, log, chunks)
}

/// Opens the store for reading, with empty caches.
fn read_only(ground: &SimulatedGround, log: &Log, options: &StorageOptions) -> Arc<ContainerStore> {
    open(Arc::new(ground.clone()), log, 1, options, Access::Read).unwrap()
}

fn load(store: &ContainerStore, chunks: &[Chunk]) -> Result<Vec<Vec<u8>>, StorageError> {
    let wanted: Vec<_> = chunks.iter().map(|chunk| (chunk.address, chunk.fingerprint)).collect();
    let mut slices = Vec::new();
    store.load_short(&wanted, &mut slices)?;
    Ok(slices.iter().map(|slice| slice.to_vec()).collect())
}

/// Flips a bit of the first byte of a chunk in its file.
fn damage(ground: &SimulatedGround, store: &ContainerStore, chunk: &Chunk) {
    let container = chunk.address.container();
    let catalog = store.catalog(container).unwrap();
    let slot = catalog.slots[catalog.position(chunk.address).unwrap()];
    let offset = catalog.frames[usize::from(slot.frame)].offset_bytes + slot.offset_bytes;
    let path = format!("{DIRECTORY}/{:04x}/{:05x}/{:08x}", container.partition(), container.number() >> 12, container.number());
    ground.corrupt(&path, u64::from(offset), 1).unwrap();
}

#[test]
fn chunks_that_are_read_alone_are_those_of_their_frame() {
    for algorithm in [Algorithm::Blake3, Algorithm::Sha256, Algorithm::Sha1] {
        let options = plain(algorithm);
        let (ground, log, chunks) = filled(&options);
        for first in 0..FRAME_CHUNKS {
            for count in 1..=FRAME_CHUNKS - first {
                let store = read_only(&ground, &log, &options);
                for frame in chunks.chunks(FRAME_CHUNKS) {
                    let wanted = &frame[first..first + count];
                    for (loaded, chunk) in load(&store, wanted).unwrap().iter().zip(wanted) {
                        assert!(*loaded == chunk.bytes, "{count} chunks from chunk {first} of a frame");
                    }
                }
                // Half of a frame is read alone, and leaves nothing in the cache. More is read with the frame.
                let is_short = count <= FRAME_CHUNKS / 2;
                let cached = if is_short { 0 } else { FRAMES * FRAME_CHUNKS * CHUNK_BYTES };
                assert_eq!(store.statistics().frame_cache_bytes, cached as u64, "{count} chunks");
                assert_eq!(store.statistics().frame_misses, FRAMES as u64);
            }
        }
    }
}

#[test]
fn chunks_that_lie_apart_in_a_frame_are_read_alone_too() {
    let options = plain(Algorithm::Blake3);
    let (ground, log, chunks) = filled(&options);
    let store = read_only(&ground, &log, &options);
    let wanted: Vec<_> = [3, 1, 3].iter().map(|at| (chunks[*at].address, chunks[*at].fingerprint)).collect();
    let mut slices = Vec::new();
    store.load_short(&wanted, &mut slices).unwrap();
    assert!(slices.iter().zip([3, 1, 3]).all(|(slice, at)| slice[..] == chunks[at].bytes));
    assert_eq!(store.statistics().frame_cache_bytes, 0);
}

#[test]
fn a_damaged_chunk_is_damage_and_never_wrong_bytes() {
    let options = plain(Algorithm::Blake3);
    let (ground, log, chunks) = filled(&options);
    for at in [0, 3, 13, chunks.len() - 1] {
        damage(&ground, &read_only(&ground, &log, &options), &chunks[at]);
        let store = read_only(&ground, &log, &options);
        // The first read is a short one, the second is not.
        for _ in 0..2 {
            let error = load(&store, &chunks[at..=at]).unwrap_err();
            let frame = (at / FRAME_CHUNKS) as u32;
            assert!(matches!(error, StorageError::Damaged { frame: Some(found), .. } if found == frame), "{error}");
        }
        assert_eq!(store.statistics().frame_cache_bytes, 0, "a damaged frame is not kept");
        // The same byte is right again.
        damage(&ground, &store, &chunks[at]);
        assert!(load(&store, &chunks[at..=at]).unwrap() == [chunks[at].bytes.clone()]);
    }
}

#[test]
fn damage_elsewhere_in_the_frame_does_not_disturb_a_short_read() {
    let options = plain(Algorithm::Blake3);
    let (ground, log, chunks) = filled(&options);
    damage(&ground, &read_only(&ground, &log, &options), &chunks[3]);
    for at in [0, 2, 4, 7] {
        let store = read_only(&ground, &log, &options);
        assert!(load(&store, &chunks[at..=at]).unwrap() == [chunks[at].bytes.clone()], "chunk {at}");
        // Who decides by reading sees it.
        let mut slices = Vec::new();
        let error = read_only(&ground, &log, &options).load(&[(chunks[at].address, chunks[at].fingerprint)], &mut slices).unwrap_err();
        assert!(error.is_damage() && slices.is_empty());
        // The damaged one is not given with its neighbour.
        assert!(load(&read_only(&ground, &log, &options), &chunks[2..4]).unwrap_err().is_damage());
    }
}

#[test]
fn a_read_that_fails_once_is_repeated_with_the_whole_frame() {
    let options = plain(Algorithm::Blake3);
    let (ground, log, chunks) = filled(&options);
    let store = read_only(&ground, &log, &options);
    // The catalog and the file are known from now on.
    load(&store, &chunks[chunks.len() - 1..]).unwrap();
    ground.fail_read(0, std::io::ErrorKind::Other);
    assert!(load(&store, &chunks[..1]).unwrap() == [chunks[0].bytes.clone()]);
    assert_eq!(store.statistics().frame_cache_bytes, (FRAME_CHUNKS * CHUNK_BYTES) as u64);
}

#[test]
fn who_reads_chunk_after_chunk_reads_each_frame_once_as_a_whole() {
    let options = plain(Algorithm::Blake3);
    let (ground, log, chunks) = filled(&options);
    let store = read_only(&ground, &log, &options);
    load(&store, &chunks[chunks.len() - 1..]).unwrap();
    let before = ground.reads();
    for chunk in chunks[..chunks.len() - FRAME_CHUNKS].chunks(1) {
        assert!(load(&store, chunk).unwrap() == [chunk[0].bytes.clone()]);
    }
    // The first chunk of a frame, then the frame.
    assert_eq!(ground.reads() - before, 2 * (FRAMES as u64 - 1));
}

#[test]
fn a_call_for_many_frames_reads_neighbours_together() {
    let options = plain(Algorithm::Blake3);
    let (ground, log, chunks) = filled(&options);
    let store = read_only(&ground, &log, &options);
    load(&store, &chunks[chunks.len() - 1..]).unwrap();
    let before = ground.reads();
    // From the last chunk of the first frame to the first one of the sixth.
    let wanted = &chunks[FRAME_CHUNKS - 1..=5 * FRAME_CHUNKS];
    assert!(load(&store, wanted).unwrap().iter().zip(wanted).all(|(loaded, chunk)| *loaded == chunk.bytes));
    assert_eq!(ground.reads() - before, 1);
}
