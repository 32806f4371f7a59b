//! A store of containers beside the log that an engine would write, and a model of what must be in it.

#![allow(dead_code)] // Each test file uses a part.

pub mod arenas;
pub mod levels;
pub mod merges;
pub mod parities;
pub mod whole;

use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground};
use onefold_oplog::{Ownership, Position, Record};
use onefold_storage::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Numbers for decisions.
pub struct Dice(u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    pub fn of(seed: u64) -> Dice {
        Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
}

/// What the bits of an address say (`docs/format.md` section 5.6).
pub trait Named {
    /// Returns the container that the chunk was stored in first.
    fn container(self) -> ContainerId;
}

impl Named for Address {
    fn container(self) -> ContainerId {
        ContainerId::from_bits(self.bits() >> 16)
    }
}

pub const DIRECTORY: &str = "containers";

/// The log: everything in it is durable.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub batches: Vec<(Position, Vec<Record>)>,
    end: u64,
}

impl Log {
    pub fn append(&mut self, records: Vec<Record>) -> (Position, Position) {
        let start = Position(self.end);
        self.end += 512;
        self.batches.push((start, records));
        (start, Position(self.end))
    }

    /// Goes on behind the end of another log.
    pub fn jump_to(&mut self, position: Position) {
        self.end = self.end.max(position.0);
    }

    pub fn trim(&mut self, start: Option<Position>) {
        let start = start.unwrap_or(Position(self.end));
        self.batches.retain(|(position, _)| *position >= start);
    }

    pub fn start(&self) -> Position {
        self.batches.first().map_or(Position(self.end), |(start, _)| *start)
    }

    pub fn end(&self) -> Position {
        Position(self.end)
    }
}

pub fn options() -> StorageOptions {
    StorageOptions {
        container_bytes: 32 << 10,
        frame_bytes: 2 << 10,
        compression: Compression::Lz4,
        sequential_frame_bytes: 6 << 10,
        sequential_compression: Compression::Zstd(1),
        store: [7; 16],
        in_flight_bytes: 16 << 10,
        frame_cache_bytes: 8 << 10,
        catalog_cache_bytes: 8 << 10,
        ..StorageOptions::default()
    }
}

/// Opens and replays.
pub fn open(ground: Arc<dyn Ground>, log: &Log, partitions: u16, options: &StorageOptions, access: Access) -> Result<Arc<ContainerStore>> {
    open_owned(ground, log, &Ownership::all(u32::from(partitions), 1), options, access)
}

/// Does the same for some partitions.
pub fn open_owned(
    ground: Arc<dyn Ground>,
    log: &Log,
    ownership: &Ownership,
    options: &StorageOptions,
    access: Access,
) -> Result<Arc<ContainerStore>> {
    open_behind(ground, log, ownership, options, access, false)
}

/// Does the same behind an owner that has ended its work if `is_complete`.
pub fn open_behind(
    ground: Arc<dyn Ground>,
    log: &Log,
    ownership: &Ownership,
    options: &StorageOptions,
    access: Access,
    is_complete: bool,
) -> Result<Arc<ContainerStore>> {
    let store = ContainerStore::open(ground, DIRECTORY, ownership, options.clone(), access, Arc::new(Profile::default()))?;
    if is_complete {
        store.expect_no_leftovers();
    }
    for (start, records) in &log.batches {
        for record in records {
            store.replay(*start, record)?;
        }
    }
    store.recovered(log.start(), log.end())?;
    Ok(store)
}

/// Does what an engine does for a flush.
pub fn flush(store: &ContainerStore, log: &mut Log, scope: Scope) -> Result<Vec<(Fingerprint, Address, ChunkKind)>> {
    let mut prepared = store.prepare(scope)?;
    let chunks = std::mem::take(&mut prepared.chunks);
    let records = std::mem::take(&mut prepared.records);
    if !records.is_empty() {
        let (start, end) = log.append(records);
        store.committed(prepared, start, end);
    }
    Ok(chunks)
}

/// Returns the bytes of chunk `name`: `length` of them, from noise to text.
pub fn content(name: u64, length: usize) -> Vec<u8> {
    let mut state = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match name % 3 {
            0 => bytes.extend_from_slice(&state.to_le_bytes()),
            1 => bytes.extend_from_slice(b"onefold "),
            _ => bytes.extend((0..8).map(|at| b'a' + (state >> (8 * at)) as u8 % 8)),
        }
    }
    bytes.truncate(length);
    bytes
}

/// Returns the fingerprint of chunk `name`. It is as good as a hash for what containers do with it.
pub fn fingerprint(name: u64) -> Fingerprint {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&name.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    digest[8..16].copy_from_slice(&name.to_le_bytes());
    Fingerprint::from_digest(&digest)
}

/// Chunks by address: fingerprint and bytes.
pub type Chunks = BTreeMap<Address, (Fingerprint, Vec<u8>)>;

/// Appends new chunks of the given lengths. Those that were taken go into `chunks`.
pub fn append(writer: &mut Writer, next_name: &mut u64, lengths: &[usize], chunks: &mut Chunks) -> Result<()> {
    let names: Vec<u64> = lengths.iter().map(|_| std::mem::replace(next_name, *next_name + 1)).collect();
    let data: Vec<Vec<u8>> = names.iter().zip(lengths).map(|(name, length)| content(*name, *length)).collect();
    let kind = |name: u64| ChunkKind::from_number((name % 3) as u8).unwrap();
    let new = names.iter().zip(&data).map(|(name, data)| NewChunk { fingerprint: fingerprint(*name), kind: kind(*name), data });
    append_all(writer, new.collect(), chunks)
}

/// Appends chunks of noise by their fingerprints, which short reads compare.
pub fn append_noise(writer: &mut Writer, next_name: &mut u64, lengths: &[usize], chunks: &mut Chunks) -> Result<()> {
    let names = lengths.iter().map(|_| std::mem::replace(next_name, *next_name + 1));
    let data: Vec<Vec<u8>> = names.zip(lengths).map(|(name, length)| content(3 * name, *length)).collect();
    let name = |data: &[u8]| StorageOptions::default().fingerprint.fingerprint(data);
    let new = data.iter().map(|data| NewChunk { fingerprint: name(data), kind: ChunkKind::Data, data });
    append_all(writer, new.collect(), chunks)
}

/// Appends new chunks of text as a frame that came compressed. Returns its bytes.
pub fn append_frame(
    writer: &mut Writer,
    compression: Compression,
    next_name: &mut u64,
    lengths: &[usize],
    chunks: &mut Chunks,
) -> Result<Vec<u8>> {
    let names: Vec<u64> = lengths.iter().map(|_| std::mem::replace(next_name, *next_name + 1)).collect();
    let data: Vec<Vec<u8>> = names.iter().zip(lengths).map(|(name, length)| content(3 * name + 1 + name % 2, *length)).collect();
    let (mut compressor, raw) = (Compressor::new(compression), data.concat());
    let (codec, stored) = compressor.compress(&raw);
    let frame = CompressedFrame::decompress(codec, stored, raw.len()).unwrap();
    let new = names.iter().zip(&data).map(|(name, data)| NewChunk { fingerprint: fingerprint(*name), kind: ChunkKind::Data, data });
    let new: Vec<_> = new.collect();
    let addresses = writer.append_frame(&new, &frame)?;
    note(addresses, new, chunks);
    Ok(stored.to_vec())
}

fn append_all(writer: &mut Writer, new: Vec<NewChunk<'_>>, chunks: &mut Chunks) -> Result<()> {
    note(writer.append(&new)?, new, chunks);
    Ok(())
}

fn note(addresses: Vec<Address>, new: Vec<NewChunk<'_>>, chunks: &mut Chunks) {
    assert_eq!(addresses.len(), new.len());
    for (address, chunk) in addresses.into_iter().zip(new) {
        assert!(chunks.insert(address, (chunk.fingerprint, chunk.data.to_vec())).is_none(), "{address} was given out twice");
    }
}

/// Checks that all these chunks are there, byte for byte.
pub fn check(store: &ContainerStore, chunks: &Chunks) {
    let wanted: Vec<_> = chunks.iter().map(|(address, (fingerprint, _))| (*address, *fingerprint)).collect();
    let mut slices = Vec::new();
    store.load(&wanted, &mut slices).unwrap();
    assert_eq!(slices.len(), wanted.len());
    for (slice, (address, (_, bytes))) in slices.iter().zip(chunks) {
        assert_eq!(&slice[..], &bytes[..], "{address}");
    }
}

/// Checks that no present container is damaged, and that each chunk that a check sees is right.
pub fn check_all(store: &ContainerStore, chunks: &Chunks) {
    for container in store.containers().unwrap().iter() {
        let mut visit = |address: Address, name: Fingerprint, _: ChunkKind, bytes: &[u8]| {
            if let Some((fingerprint, expected)) = chunks.get(&address) {
                assert_eq!((name, bytes), (*fingerprint, &expected[..]));
            }
        };
        let report = store.verify_container(container, true, Some(&mut visit)).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    }
}
