//! A small disk in memory and somebody who uses it, for tests.

use super::{
    Buffers, Caller, Disk, DiskError, Extent, Identity, LogicalUnit, Nexus, Patience, Peers, Port, Reply, Space, Tokens, UnitOptions,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) const MAPPED_BYTES: u64 = 64 << 10;

/// A disk whose blocks of 64 KiB are there or not.
#[derive(Debug)]
pub(crate) struct MemoryDisk {
    blocks: Mutex<Vec<Option<Vec<u8>>>>,
    size: u64,
    pub(crate) read_only: AtomicBool,
    /// What the operations from here on fail with.
    pub(crate) fails: Mutex<Option<DiskError>>,
    /// Bytes that cannot be read.
    pub(crate) damaged: Mutex<std::ops::Range<u64>>,
    pub(crate) space: Mutex<Option<Space>>,
    pub(crate) flushes: AtomicU64,
    /// Held by a test to keep erasures from going on.
    pub(crate) gate: Mutex<()>,
}

impl MemoryDisk {
    pub(crate) fn new(size: u64) -> Arc<MemoryDisk> {
        Arc::new(MemoryDisk {
            blocks: Mutex::new(vec![None; size.div_ceil(MAPPED_BYTES) as usize]),
            size,
            read_only: AtomicBool::new(false),
            fails: Mutex::new(None),
            damaged: Mutex::new(0..0),
            space: Mutex::new(None),
            flushes: AtomicU64::new(0),
            gate: Mutex::new(()),
        })
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        if let Some(error) = &*self.fails.lock() {
            return Err(error.clone());
        }
        if offset + length > self.size { Err(DiskError::OutOfRange) } else { Ok(()) }
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        let mut out = vec![0; self.size as usize];
        copy_out(&self.blocks.lock(), 0, &mut out);
        out
    }

    pub(crate) fn mapped_blocks(&self) -> usize {
        self.blocks.lock().iter().flatten().count()
    }
}

/// The parts of a range by block: its number, where in it, how many bytes, and how many were before.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (block, start) = ((offset + done as u64) / MAPPED_BYTES, (offset + done as u64) % MAPPED_BYTES);
        let count = ((MAPPED_BYTES - start) as usize).min(length - done);
        done += count;
        (count > 0).then_some((block as usize, start as usize, count, done - count))
    })
}

fn copy_out(blocks: &[Option<Vec<u8>>], offset: u64, out: &mut [u8]) {
    for (block, start, count, done) in parts(offset, out.len()) {
        match &blocks[block] {
            Some(bytes) => out[done..done + count].copy_from_slice(&bytes[start..start + count]),
            None => out[done..done + count].fill(0),
        }
    }
}

fn copy_in(blocks: &mut [Option<Vec<u8>>], offset: u64, data: &[u8]) {
    for (block, start, count, done) in parts(offset, data.len()) {
        let bytes = blocks[block].get_or_insert_with(|| vec![0; MAPPED_BYTES as usize]);
        bytes[start..start + count].copy_from_slice(&data[done..done + count]);
    }
}

impl Disk for MemoryDisk {
    fn size(&self) -> u64 {
        self.size
    }
    fn read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }
    fn block_bytes(&self) -> u32 {
        MAPPED_BYTES as u32
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DiskError> {
        self.check(offset, out.len() as u64)?;
        let damaged = self.damaged.lock().clone();
        if damaged.start < offset + out.len() as u64 && offset < damaged.end {
            return Err(DiskError::Damaged("lost".into()));
        }
        copy_out(&self.blocks.lock(), offset, out);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], _fua: bool) -> Result<(), DiskError> {
        self.check(offset, data.len() as u64)?;
        copy_in(&mut self.blocks.lock(), offset, data);
        Ok(())
    }
    fn update(&self, offset: u64, length: usize, _fua: bool, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool, DiskError> {
        self.check(offset, length as u64)?;
        let mut blocks = self.blocks.lock();
        let mut bytes = vec![0; length];
        copy_out(&blocks, offset, &mut bytes);
        let is_wanted = change(&mut bytes);
        if is_wanted {
            copy_in(&mut blocks, offset, &bytes);
        }
        Ok(is_wanted)
    }
    fn flush(&self) -> Result<(), DiskError> {
        self.check(0, 0)?;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        let _gate = self.gate.lock();
        self.check(offset, length)?;
        let mut blocks = self.blocks.lock();
        for (number, place) in (0u64..).zip(blocks.iter_mut()) {
            let (start, end) = (number * MAPPED_BYTES, (number + 1) * MAPPED_BYTES);
            let (from, to) = (start.max(offset), end.min(offset + length));
            if from == start && to == end.min(self.size) {
                *place = None;
            } else if let Some(block) = place.as_mut().filter(|_| from < to) {
                block[(from - start) as usize..(to - start) as usize].fill(0);
            }
        }
        Ok(())
    }
    fn unmap(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.zero(offset, length).or_else(|error| if error == DiskError::NoSpace { Ok(()) } else { Err(error) })
    }
    fn prefetch(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.check(offset, length)
    }
    fn space(&self) -> Option<Space> {
        *self.space.lock()
    }
    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DiskError> {
        self.check(offset, length)?;
        let blocks = self.blocks.lock();
        let mut out: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + length {
            let end = ((at / MAPPED_BYTES + 1) * MAPPED_BYTES).min(offset + length);
            let mapped = blocks[(at / MAPPED_BYTES) as usize].is_some();
            let count = out.len();
            match out.last_mut() {
                Some(last) if last.mapped == mapped => last.length += end - at,
                _ if count == limit => break,
                _ => out.push(Extent { length: end - at, mapped }),
            }
            at = end;
        }
        Ok(out)
    }
}

/// Waits for everything.
#[derive(Debug, Default)]
pub(crate) struct Forever(pub(crate) AtomicBool);

impl Patience for Forever {
    fn begin_to_wait(&self) {}
    fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) fn options() -> UnitOptions {
    let identity = Identity { serial: "0000000000000001".into(), number: 1, product: "test".into() };
    UnitOptions { identity, logical_block_bytes: 512, is_removable: false, ports: vec![1], reservations: Default::default() }
}

pub(crate) fn unit(disk: &Arc<MemoryDisk>) -> LogicalUnit {
    LogicalUnit::new(disk.clone(), options(), Box::new(|_| Ok(())))
}

/// Does a command for the initiator of this name.
pub(crate) fn send_as(unit: &LogicalUnit, name: &str, cdb: &[u8], data: &[u8]) -> Reply {
    send_among(unit, &[], &Tokens::default(), name, cdb, data)
}

/// What others there are, and whose commands were ended.
#[derive(Default)]
pub(crate) struct Others<'a> {
    units: &'a [Arc<LogicalUnit>],
    pub(crate) aborted: Mutex<Vec<Nexus>>,
}

impl<'a> Others<'a> {
    pub(crate) fn among(units: &'a [Arc<LogicalUnit>]) -> Others<'a> {
        Others { units, aborted: Mutex::default() }
    }
}

impl Peers for Others<'_> {
    fn abort(&self, _number: u64, nexuses: &[Nexus], _is_over: &dyn Fn() -> bool) {
        self.aborted.lock().extend_from_slice(nexuses);
    }

    fn unit(&self, number: u64) -> Option<Arc<LogicalUnit>> {
        self.units.iter().find(|unit| unit.identity.number == number).cloned()
    }
}

/// The same with other units and tokens of the server.
pub(crate) fn send_among(unit: &LogicalUnit, peers: &[Arc<LogicalUnit>], tokens: &Tokens, name: &str, cdb: &[u8], data: &[u8]) -> Reply {
    send_to(unit, &Others::among(peers), tokens, name, cdb, data)
}

pub(crate) fn nexus(name: &str) -> Nexus {
    Nexus { initiator: format!("iqn.2026-01.example:{name},i,0x00023d000001"), target_port: 1 }
}

pub(crate) fn send_to(unit: &LogicalUnit, others: &Others<'_>, tokens: &Tokens, name: &str, cdb: &[u8], data: &[u8]) -> Reply {
    send_with(unit, others, tokens, &Forever::default(), name, cdb, data)
}

/// Does a command without data for somebody who waits for its end as long as is said.
pub(crate) fn send_patiently(unit: &LogicalUnit, patience: &dyn Patience, cdb: &[u8]) -> Reply {
    send_with(unit, &Others::default(), &Tokens::default(), patience, "a", cdb, &[])
}

fn send_with(
    unit: &LogicalUnit,
    others: &Others<'_>,
    tokens: &Tokens,
    patience: &dyn Patience,
    name: &str,
    cdb: &[u8],
    data: &[u8],
) -> Reply {
    let nexus = nexus(name);
    let port = Port { target: "iqn.2026-01.example:t".into(), group: 1 };
    let caller = Caller { nexus: &nexus, port: &port, luns: &[0], patience, peers: others, tokens, buffers: &Buffers::default() };
    unit.execute(caller, cdb, data, data.len() as u32)
}

pub(crate) fn send(unit: &LogicalUnit, cdb: &[u8], data: &[u8]) -> Reply {
    send_as(unit, "a", cdb, data)
}

/// Sense key and code of an answer; zeros if it is good.
pub(crate) fn sense_of(reply: &Reply) -> (u8, u8, u8) {
    reply.sense.get(2).map_or((0, 0, 0), |key| (*key, reply.sense[12], reply.sense[13]))
}
