//! Reads chunks back, from memory or from their blocks.
//!
//! # Why no wrong byte is returned
//! Every chunk that was read from the file is hashed, and compared with the fingerprint that the caller wants. So it
//! does not matter whether the block was the right one: whether its chunk was removed meanwhile, a crash or the device
//! changed its bytes, or the table is wrong.
//!
//! There are no caches here: the page cache of the system is the cache (M1.1).

use crate::arena::block::{Block, block_of_address, container_of_unit, unit_of_block};
use crate::arena::pending::Found;
use crate::arena::store::ArenaStore;
use crate::components::{FINGERPRINT, STORAGE_READ};
use crate::{Address, ChunkKind, Result, Slice, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::GroundError;
use std::ops::Range;
use std::sync::Arc;

/// Neighbouring blocks are read together up to this many bytes,
const RUN_BYTES: u64 = 1 << 20;
/// and over gaps up to this many.
const GAP_BYTES: u64 = 32 << 10;

/// A chunk to read from its block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) block: u64,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) kind: ChunkKind,
    pub(crate) length_bytes: u32,
    /// The caller's number for it.
    pub(crate) at: usize,
}

/// What became of a [`Place`]: its bytes, or why they are damaged.
pub(crate) type Read = std::result::Result<Slice, String>;

impl ArenaStore {
    pub(crate) fn load_all(&self, wanted: &[(Address, Fingerprint)], may_read_gaps: bool, out: &mut Vec<Slice>) -> Result<()> {
        let loaded = self.load_once(wanted, if may_read_gaps { GAP_BYTES } else { 0 });
        if loaded.as_ref().is_err_and(StorageError::is_damage) && self.is_writable() {
            // The system may have lost what was written and is not synced. Then nothing that counts is damaged.
            self.pending.check_written(self)?;
        }
        let loaded = match loaded {
            Err(error) => self.load_by_content(wanted).unwrap_or(Err(error)),
            loaded => loaded,
        };
        out.extend(loaded?);
        Ok(())
    }

    fn load_once(&self, wanted: &[(Address, Fingerprint)], gap_bytes: u64) -> Result<Vec<Slice>> {
        let mut slices: Vec<Option<Slice>> = vec![None; wanted.len()];
        let places = self.locate(wanted, &mut slices)?;
        let mut damaged = None;
        self.read_places(&places, gap_bytes, &mut |place, read| match read {
            Ok(slice) => slices[place.at] = Some(slice),
            Err(why) => {
                damaged.get_or_insert((*place, why));
            }
        })?;
        if let Some((place, why)) = damaged {
            // The chunk may have been removed meanwhile.
            self.locate(&wanted[place.at..=place.at], &mut [None])?;
            return Err(self.damaged(place.block, why));
        }
        Ok(slices.into_iter().map(|slice| slice.expect("every chunk was in memory or is a place")).collect())
    }

    /// Takes the chunks that are in memory, and returns where the others are, by block.
    ///
    /// Pending chunks are looked for first. In the other order a commit between the two would hide a chunk.
    fn locate(&self, wanted: &[(Address, Fingerprint)], slices: &mut [Option<Slice>]) -> Result<Vec<Place>> {
        let mut order = Vec::with_capacity(wanted.len());
        for (at, (address, _)) in wanted.iter().enumerate() {
            order.push((block_of_address(*address).ok_or_else(|| self.no_block(*address))?, at));
        }
        order.sort_unstable();
        let (mut places, mut others) = (Vec::with_capacity(wanted.len()), Vec::new());
        let mut found = Vec::with_capacity(wanted.len());
        self.pending.find(order.iter().map(|(block, _)| *block), |_, pending| found.push(pending));
        for ((block, at), pending) in order.into_iter().zip(found) {
            let (address, fingerprint) = wanted[at];
            let stored = match &pending {
                Some(Found::Bytes(stored, _) | Found::InFile(stored)) => stored,
                None => {
                    others.push((block, at));
                    continue;
                }
            };
            if stored.fingerprint != fingerprint {
                return Err(self.not_there(address, "its block has another chunk"));
            }
            let place = Place { block, fingerprint, kind: stored.kind, length_bytes: stored.length_bytes, at };
            match pending {
                Some(Found::Bytes(_, bytes)) => slices[at] = Some(Slice::from_vec(bytes)),
                _ => places.push(place),
            }
        }
        self.locate_committed(wanted, others, &mut places)?;
        places.sort_unstable_by_key(|place| (place.block, place.at));
        Ok(places)
    }

    /// Asks the block table where chunks are. They are sorted by block.
    fn locate_committed(&self, wanted: &[(Address, Fingerprint)], others: Vec<(u64, usize)>, places: &mut Vec<Place>) -> Result<()> {
        let mut blocks: Vec<u64> = others.iter().map(|(block, _)| *block).collect();
        blocks.dedup();
        let mut held = Vec::with_capacity(blocks.len());
        self.table.blocks(&blocks, &mut held)?;
        for (block, at) in others {
            let (address, fingerprint) = wanted[at];
            let held = blocks.binary_search(&block).ok().and_then(|place| held.get(place).copied().flatten());
            // A chunk that is known to be lost may be readable again.
            let Some(Block { fingerprint: stored, kind, length_bytes, .. }) = held else {
                return Err(self.not_there(address, "its block is free"));
            };
            if stored != fingerprint {
                return Err(self.not_there(address, "its block has another chunk"));
            }
            if length_bytes == 0 || u64::from(length_bytes) > self.block_bytes() {
                return Err(self.damaged(block, format!("the index says that its chunk has {length_bytes} bytes")));
            }
            places.push(Place { block, fingerprint, kind, length_bytes, at });
        }
        Ok(())
    }

    /// Reads and verifies chunks, and gives each of them once. Their blocks ascend. An error is one of this moment, and
    /// says nothing about the chunks.
    pub(crate) fn read_places(&self, places: &[Place], gap_bytes: u64, each: &mut dyn FnMut(&Place, Read)) -> Result<()> {
        let mut rest = places;
        while let Some(first) = rest.first() {
            let near = |pair: &[Place]| {
                let (left, right) = (self.range(&pair[0]), self.range(&pair[1]));
                right.start <= left.end.next_multiple_of(self.block_bytes()) + gap_bytes && right.end <= self.range(first).start + RUN_BYTES
            };
            let count = 1 + rest.windows(2).take_while(|pair| near(pair)).count();
            let (run, others) = rest.split_at(count);
            self.read_run(run, each)?;
            rest = others;
        }
        Ok(())
    }

    /// Returns where a chunk is in the file.
    fn range(&self, place: &Place) -> Range<u64> {
        let start = place.block * self.block_bytes();
        start..start + u64::from(place.length_bytes)
    }

    fn read_run(&self, run: &[Place], each: &mut dyn FnMut(&Place, Read)) -> Result<()> {
        let start = self.range(&run[0]).start;
        // The same block may be wanted twice.
        let end = run.iter().map(|place| self.range(place).end).max().unwrap_or(start);
        match self.read_bytes(start..end) {
            Ok(bytes) => self.verify(run, start, &Arc::new(bytes), each),
            // Others of the run may be readable.
            Err(_) if run.len() > 1 => {
                for place in run {
                    self.read_run(std::slice::from_ref(place), each)?;
                }
            }
            Err(error) => each(&run[0], Err(lasting(error)?)),
        }
        Ok(())
    }

    /// Reads a range of the file.
    pub(crate) fn read_bytes(&self, range: Range<u64>) -> onefold_ground::Result<Vec<u8>> {
        let length = range.end - range.start;
        let mut bytes = vec![0; length as usize];
        self.profile.time(&STORAGE_READ, length, || self.file.read_at(range.start, &mut bytes))?;
        Ok(bytes)
    }

    /// Compares chunks with their fingerprints. `bytes` are those of the file from `start` on.
    fn verify(&self, run: &[Place], start: u64, bytes: &Arc<Vec<u8>>, each: &mut dyn FnMut(&Place, Read)) {
        let within = |place: &Place| {
            let range = self.range(place);
            (range.start - start) as usize..(range.end - start) as usize
        };
        let algorithm = self.options.fingerprint;
        let data: Vec<&[u8]> = run.iter().filter(|place| place.kind == ChunkKind::Data).map(|place| &bytes[within(place)]).collect();
        let mut names = Vec::with_capacity(data.len());
        self.profile.time(&FINGERPRINT, bytes.len() as u64, || algorithm.fingerprint_many(&data, &mut names));
        let mut names = names.into_iter();
        for place in run {
            let name = match place.kind {
                ChunkKind::Data => names.next().expect("every data chunk has got a name"),
                ChunkKind::Recipe | ChunkKind::Directory => algorithm.metadata(&bytes[within(place)]),
            };
            let is_right = name == place.fingerprint;
            each(place, if is_right { Ok(Slice::new(bytes.clone(), within(place))) } else { Err("its bytes have changed".to_owned()) });
        }
    }

    pub(crate) fn damaged(&self, block: u64, why: String) -> StorageError {
        StorageError::BlockDamaged { path: self.describe(), block, why }
    }

    fn not_there(&self, address: Address, why: &str) -> StorageError {
        let container = block_of_address(address).map_or(address.container(), |block| container_of_unit(unit_of_block(block)));
        StorageError::NotThere { path: self.describe(), container, address, why: why.to_owned() }
    }

    /// Returns the error for an address that no block can have.
    pub(crate) fn no_block(&self, address: Address) -> StorageError {
        self.not_there(address, "it is no address of a block")
    }
}

/// Returns what an error says about stored bytes. Errors: it says nothing, and the next try may succeed.
pub(crate) fn lasting(error: GroundError) -> Result<String> {
    if error.is_lasting() { Ok(error.to_string()) } else { Err(error.into()) }
}
