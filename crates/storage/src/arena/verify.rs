//! Looks at blocks themselves: for scrub, check and repair.

use crate::arena::block::{Block, MAX_BLOCKS, UNIT_BLOCKS, address_of_block, first_block, unit_of_origin};
use crate::arena::reader::Place;
use crate::arena::store::ArenaStore;
use crate::{ChunkRead, ContainerId, ContainerReport, FrameVisitor, Origin, Result, Scrubbed, StorageError};

/// Takes a used block, what it holds, and its bytes, or why they are damaged.
pub type BlockVisitor<'a> = dyn FnMut(u64, &Block, std::result::Result<&[u8], &str>) + 'a;

/// Bytes that are looked at at once.
const PIECE_BYTES: u64 = 1 << 20;

impl ArenaStore {
    /// Reads the committed chunks of `count` blocks from `first` on, and says for each whether it is sound. Skips a
    /// chunk that is removed meanwhile. Chunks that are known to be lost are read too. Returns where the block table
    /// is damaged: blocks there are skipped.
    pub fn verify_blocks(&self, first: u64, count: u64, visit: &mut BlockVisitor<'_>) -> Result<Vec<StorageError>> {
        let end = first.saturating_add(count).min(MAX_BLOCKS);
        let (mut next, mut damaged) = (first, Vec::new());
        while next < end {
            let blocks = (PIECE_BYTES / self.block_bytes()).min(end - next);
            self.verify_piece(next, blocks as usize, visit, &mut damaged)?;
            next += blocks;
        }
        Ok(damaged)
    }

    /// Appends what `count` blocks from `first` on hold. Where the block table is damaged they count as free, and each
    /// error is appended to `damaged` once. Other errors end it.
    pub(crate) fn run_in_parts(
        &self,
        first: u64,
        count: usize,
        held: &mut Vec<Option<Block>>,
        damaged: &mut Vec<StorageError>,
    ) -> Result<()> {
        let before = held.len();
        let error = match self.table.run(first, count, held) {
            Err(error) if error.is_damage() => error,
            result => return result,
        };
        held.truncate(before);
        if count > 1 {
            let half = count / 2;
            self.run_in_parts(first, half, held, damaged)?;
            return self.run_in_parts(first + half as u64, count - half, held, damaged);
        }
        held.push(None);
        // A damaged page has many blocks.
        if damaged.last().is_none_or(|last| last.to_string() != error.to_string()) {
            damaged.push(error);
        }
        Ok(())
    }

    /// Checks a unit. With `read_data` it reads all of its chunks and passes the sound ones on.
    pub(crate) fn verify_unit(&self, unit: ContainerId, read_data: bool, visit: &mut FrameVisitor<'_>) -> Result<ContainerReport> {
        let number = unit_of_origin(unit.into()).ok_or_else(|| self.no_block(Origin::from(unit).address(0)))?;
        let mut report = ContainerReport {
            container: unit,
            sealed: true,
            homes: Vec::new(),
            frames: 0,
            chunks: 0,
            raw_bytes: 0,
            stored_bytes: 0,
            damage: Vec::new(),
        };
        if !read_data {
            match self.table.used(number) {
                Ok(used) => report.chunks = used.into(),
                Err(error) if error.is_damage() => report.damage.push(error),
                Err(error) => return Err(error),
            }
            return Ok(report);
        }
        let path = self.describe();
        let damaged = self.verify_blocks(first_block(number), UNIT_BLOCKS, &mut |block, held, read| {
            report.chunks += 1;
            report.raw_bytes += u64::from(held.length_bytes);
            match read {
                Ok(bytes) => {
                    let (address, fingerprint) = (address_of_block(block), held.fingerprint);
                    visit(&[ChunkRead { address, fingerprint, kind: held.kind, bytes }]);
                }
                // A lost chunk is in quarantine.
                Err(_) if held.is_lost => {}
                Err(why) => report.damage.push(StorageError::BlockDamaged { path: path.clone(), block, why: why.to_owned() }),
            }
        })?;
        report.damage.extend(damaged);
        report.stored_bytes = report.raw_bytes;
        Ok(report)
    }

    /// Reads a unit from the device.
    pub(crate) fn scrub_unit(&self, unit: ContainerId) -> Scrubbed {
        if let Some(number) = unit_of_origin(unit.into()) {
            self.file.drop_cached(first_block(number) * self.block_bytes(), UNIT_BLOCKS * self.block_bytes());
        }
        let mut read_bytes = 0;
        let verified =
            self.verify_unit(unit, true, &mut |chunks| read_bytes += chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>());
        Scrubbed { read_bytes, damage: verified.map_or_else(|error| vec![error], |report| report.damage) }
    }

    fn verify_piece(&self, first: u64, count: usize, visit: &mut BlockVisitor<'_>, damaged: &mut Vec<StorageError>) -> Result<()> {
        let mut held = Vec::with_capacity(count);
        self.run_in_parts(first, count, &mut held, damaged)?;
        let (mut places, mut misfits) = (Vec::new(), Vec::new());
        for (block, held) in (first..).zip(&held).filter_map(|(block, held)| Some((block, held.as_ref()?))) {
            let Block { fingerprint, kind, length_bytes, .. } = *held;
            if length_bytes == 0 || u64::from(length_bytes) > self.block_bytes() {
                misfits.push((block, *held));
                continue;
            }
            places.push(Place { block, fingerprint, kind, length_bytes, at: (block - first) as usize });
        }
        for (block, held) in misfits {
            visit(block, &held, Err(&format!("the index says that its chunk has {} bytes", held.length_bytes)));
        }
        let mut unsound = Vec::new();
        self.read_places(&places, PIECE_BYTES, &mut |place, read| match (read, &held[place.at]) {
            (Ok(slice), Some(block)) => visit(place.block, block, Ok(&slice)),
            (Err(why), Some(block)) => unsound.push((place.block, *block, why)),
            (_, None) => {}
        })?;
        for (block, before, why) in unsound {
            let mut now = Vec::new();
            self.run_in_parts(block, 1, &mut now, damaged)?;
            let is_same = |now: &Block| Block { is_lost: before.is_lost, ..*now } == before;
            if now.first().is_some_and(|now| now.as_ref().is_some_and(is_same)) {
                visit(block, &before, Err(&why));
            }
        }
        Ok(())
    }
}
