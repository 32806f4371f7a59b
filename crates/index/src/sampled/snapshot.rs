//! The snapshot of hooks (decision 0054): what an opening reads instead of all catalogs.
//!
//! Everything in it can be made again from the catalogs. So whatever is wrong with it, the caller gets a sentence that
//! says so, and uses the rest. A block that cannot be read costs its hooks.
//!
//! Writing holds the lock for a block at a time. Hooks that come meanwhile may be missing: they are those of containers
//! numbered after what the snapshot covers, which the next opening reads. A few that move meanwhile may be missing too,
//! but no forced ones: each container that is covered has a hook in the snapshot.

use super::table::{BUCKET_BYTES, Bucket, HOOKS_IN_BUCKET, ONLY_FORCED, WORDS, hook};
use super::{Hooks, Table};
use crate::Result;
use onefold_ground::wire::{Reader, WireError};
use onefold_ground::{File, checksum};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MAGIC: &[u8; 8] = b"1FLDHKS1";
const BLOCK_BYTES: usize = 64 << 10;
/// The rest of a block is one more bucket long: its number, the snapshot's, zeros, and a checksum.
const BUCKETS_IN_BLOCK: usize = BLOCK_BYTES / BUCKET_BYTES - 1;
const SUM_BYTES: usize = 8;
/// Magic, number, buckets, rate, number of partitions.
const HEADER_BYTES: usize = 8 + 8 + 8 + 4 + 4;
const MAX_PARTITIONS: usize = 1 << 16;

/// The beginning of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Names the snapshot in all its blocks.
    serial: u64,
    buckets: u64,
    rate: u8,
    /// For each container partition: containers below this number have their hooks here.
    covered: Vec<u32>,
}

impl Header {
    /// Returns the length of the encoding, in bytes.
    fn length(partitions: usize) -> usize {
        HEADER_BYTES + 4 * partitions + SUM_BYTES
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Header::length(self.covered.len()));
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.serial.to_le_bytes());
        out.extend_from_slice(&self.buckets.to_le_bytes());
        out.extend_from_slice(&u32::from(self.rate).to_le_bytes());
        out.extend_from_slice(&(self.covered.len() as u32).to_le_bytes());
        self.covered.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        let sum = checksum(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }
}

/// Reads the beginning of a snapshot that has at least the header in `bytes`. Errors: a sentence.
pub fn decode_header(bytes: &[u8]) -> std::result::Result<Header, String> {
    let decode = || -> std::result::Result<Header, WireError> {
        let mut reader = Reader::new(bytes);
        reader.take(MAGIC.len())?;
        let (serial, buckets) = (reader.u64()?, reader.u64()?);
        let (rate, partitions) = (reader.u32()?, reader.u32()? as usize);
        if partitions > MAX_PARTITIONS {
            return Err(WireError::OutOfRange { what: "partitions", value: partitions as u64, offset_bytes: HEADER_BYTES - 4 });
        }
        let covered = (0..partitions).map(|_| reader.u32()).collect::<std::result::Result<_, _>>()?;
        Ok(Header { serial, buckets, rate: rate.min(ONLY_FORCED.into()) as u8, covered })
    };
    if !bytes.starts_with(MAGIC) {
        return Err("it does not begin as a snapshot of hooks does".into());
    }
    let header = decode().map_err(|error| error.to_string())?;
    let end = Header::length(header.covered.len());
    match bytes.get(end - SUM_BYTES..end) {
        Some(sum) if sum == checksum(&bytes[..end - SUM_BYTES]).to_le_bytes() => Ok(header),
        _ => Err("the checksum of its beginning is wrong".into()),
    }
}

/// The length of a snapshot's beginning on disk: whole blocks.
fn header_blocks(partitions: usize) -> u64 {
    Header::length(partitions).div_ceil(BLOCK_BYTES) as u64
}

impl Hooks {
    /// Writes a snapshot to an empty file, which is durable on return. `covered` has for each container partition the
    /// number below which all containers have been [added](Hooks::add). `serial` differs from that of any other
    /// snapshot of the store. One at a time. `go_on` is asked before each block of 64 KiB; returns false if it said no.
    pub fn save(&self, file: &dyn File, serial: u64, covered: &[u32], go_on: &dyn Fn() -> bool) -> Result<bool> {
        let saved = self.save_blocks(file, serial, covered, go_on);
        self.saved.store(0, Ordering::Relaxed);
        saved
    }

    fn save_blocks(&self, file: &dyn File, serial: u64, covered: &[u32], go_on: &dyn Fn() -> bool) -> Result<bool> {
        let (buckets, rate) = {
            let table = self.table.read();
            (table.buckets(), table.rate())
        };
        let mut block = Header { serial, buckets: buckets as u64, rate, covered: covered.to_vec() }.encode();
        let first = header_blocks(covered.len());
        block.resize(first as usize * BLOCK_BYTES, 0);
        file.write_at(0, &block)?;
        for (number, start) in (0..buckets).step_by(BUCKETS_IN_BLOCK).enumerate() {
            if !go_on() {
                return Ok(false);
            }
            block.clear();
            {
                let table = self.table.read();
                let count = BUCKETS_IN_BLOCK.min(buckets - start);
                table.words(start, count).iter().for_each(|word| block.extend_from_slice(&word.to_le_bytes()));
                // No hook moves while this lock is held.
                self.saved.store(start + count, Ordering::Relaxed);
            }
            block.resize(BUCKETS_IN_BLOCK * BUCKET_BYTES, 0);
            block.extend_from_slice(&(number as u64).to_le_bytes());
            block.extend_from_slice(&serial.to_le_bytes());
            block.resize(BLOCK_BYTES - SUM_BYTES, 0);
            let sum = checksum(&block);
            block.extend_from_slice(&sum.to_le_bytes());
            file.write_at((first + number as u64) * BLOCK_BYTES as u64, &block)?;
        }
        file.sync()?;
        Ok(true)
    }

    /// Begins to read a snapshot. From now on the sample is at most that of the snapshot. Errors: a sentence that says
    /// why the snapshot is of no use: it is damaged, or made for another amount of memory or another number of
    /// partitions.
    pub fn read_snapshot(&self, file: Arc<dyn File>, partitions: usize) -> std::result::Result<HooksRead<'_>, String> {
        let length = file.len().map_err(|error| error.to_string())?;
        let mut bytes = vec![0; Header::length(partitions.min(MAX_PARTITIONS))];
        if length < bytes.len() as u64 {
            return Err(format!("it has only {length} bytes"));
        }
        file.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
        let header = decode_header(&bytes)?;
        let mut table = self.table.write();
        if header.covered.len() != partitions {
            return Err(format!("it is of a store with {} container partitions", header.covered.len()));
        }
        if header.buckets != table.buckets() as u64 {
            return Err(format!("it was made with {} bytes of memory for hooks", header.buckets.saturating_mul(BUCKET_BYTES as u64)));
        }
        table.lower_rate_to(header.rate);
        Ok(HooksRead { hooks: self, file, header, block: 0 })
    }
}

/// A snapshot that is being read.
#[derive(Debug)]
pub struct HooksRead<'a> {
    hooks: &'a Hooks,
    file: Arc<dyn File>,
    header: Header,
    block: usize,
}

impl HooksRead<'_> {
    /// For each container partition: the snapshot has the hooks of all containers below this number. Those of others
    /// have to be added from their catalogs.
    pub fn covered(&self) -> &[u32] {
        &self.header.covered
    }

    /// Adds the hooks of the next block to those that are there. Returns false at the end. Errors: a sentence. The
    /// block is left out, and the next call goes on after it.
    pub fn step(&mut self) -> std::result::Result<bool, String> {
        let (number, start) = (self.block, self.block * BUCKETS_IN_BLOCK);
        if start as u64 >= self.header.buckets {
            return Ok(false);
        }
        self.block += 1;
        let mut block = vec![0; BLOCK_BYTES];
        let place = (header_blocks(self.header.covered.len()) + number as u64) * BLOCK_BYTES as u64;
        let wrong = |why: &str| format!("the hooks at byte {place} are lost: {why}");
        self.file.read_at(place, &mut block).map_err(|error| wrong(&error.to_string()))?;
        let (content, sum) = block.split_at(BLOCK_BYTES - SUM_BYTES);
        let name = &content[BUCKETS_IN_BLOCK * BUCKET_BYTES..][..16];
        if sum != checksum(content).to_le_bytes() {
            return Err(wrong("the checksum is wrong"));
        }
        if name[..8] != (number as u64).to_le_bytes() || name[8..] != self.header.serial.to_le_bytes() {
            return Err(wrong("they are those of another snapshot"));
        }
        let mut table = self.hooks.table.write();
        let saved = self.hooks.saved.load(Ordering::Relaxed);
        let count = BUCKETS_IN_BLOCK.min(table.buckets() - start);
        for (at, bytes) in content[..count * BUCKET_BYTES].chunks_exact(BUCKET_BYTES).enumerate() {
            table.take_in(start + at, &bucket(bytes), saved);
        }
        Ok(true)
    }
}

fn bucket(bytes: &[u8]) -> Bucket {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

impl Table {
    /// Adds the hooks of a bucket of a snapshot, as far as there is room. The rate stays: these hooks are older than
    /// those that are here. A hook that is in its other bucket already may be there twice then.
    fn take_in(&mut self, bucket: usize, read: &Bucket, saved: usize) {
        if self.fill(bucket, read) {
            return;
        }
        for at in 0..HOOKS_IN_BUCKET {
            let hook = hook(read, at);
            if hook.container != 0 {
                // Where it was, if it can be: then all others have room where they were.
                let _ = self.put_at(bucket, hook) || self.put_now(bucket, hook, saved);
            }
        }
    }
}
