//! Commands that read and change the medium (SBC-3 section 5).

use super::inquiry::{MAX_COMPARE_BLOCKS, MAX_UNMAP_DESCRIPTORS};
use super::opcodes::Operation;
use super::sense::{Code, Key, Sense};
use super::{Buffers, Disk, DiskError, Geometry, MAX_TRANSFER_BYTES, u16_at, u32_at, u64_at};

/// Patterns are written, and data is compared, this many bytes at a time.
const STEP_BYTES: usize = 1 << 20;
/// WRITE SAME zeroes this many bytes at a time.
const ZERO_STEP_BYTES: u64 = 256 << 20;
/// The most extents in one GET LBA STATUS.
const MAX_EXTENTS: usize = 1024;

/// The blocks of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) lba: u64,
    pub(super) blocks: u64,
}

impl Range {
    /// Returns the range of a CDB.
    pub(super) fn of(operation: Operation, cdb: &[u8]) -> Range {
        let (lba, blocks) = match (cdb.len(), operation) {
            (6, _) => {
                let count = u64::from(cdb[4]);
                (u64::from(u32_at(cdb, 0) & 0x1f_ffff), if count == 0 { 256 } else { count })
            }
            (10, _) => (u32_at(cdb, 2).into(), u16_at(cdb, 7).into()),
            (12, _) => (u32_at(cdb, 2).into(), u32_at(cdb, 6).into()),
            (_, Operation::WriteAtomic) => (u64_at(cdb, 2), u16_at(cdb, 12).into()),
            (_, Operation::CompareAndWrite) => (u64_at(cdb, 2), cdb[13].into()),
            _ => (u64_at(cdb, 2), u32_at(cdb, 10).into()),
        };
        Range { lba, blocks }
    }

    pub(super) fn check(self, geometry: &Geometry) -> Result<Range, Sense> {
        let room = geometry.blocks().checked_sub(self.lba);
        match room {
            Some(room) if self.blocks <= room => Ok(self),
            _ => Err(Sense::new(Key::IllegalRequest, Code::LBA_OUT_OF_RANGE)),
        }
    }

    /// Checks that the range is on the disk and not longer than a transfer may be.
    fn check_transfer(self, geometry: &Geometry) -> Result<Range, Sense> {
        self.check(geometry)?;
        if self.blocks > u64::from(geometry.max_transfer_blocks()) {
            return Err(Sense::invalid_field(10, None));
        }
        Ok(self)
    }

    pub(super) fn offset(self, geometry: &Geometry) -> u64 {
        self.lba * u64::from(geometry.logical)
    }

    pub(super) fn bytes(self, geometry: &Geometry) -> usize {
        (self.blocks * u64::from(geometry.logical)) as usize
    }
}

const FUA: u8 = 0x08;

/// Returns the bytes that a command receives, according to its CDB. 0 for a command without data or with errors.
pub(super) fn data_out_bytes(operation: Operation, cdb: &[u8], geometry: &Geometry) -> usize {
    let logical = geometry.logical as usize;
    let range = |factor: usize| {
        let range = Range::of(operation, cdb);
        if range.check_transfer(geometry).is_ok() { range.bytes(geometry) * factor } else { 0 }
    };
    match operation {
        Operation::Write | Operation::WriteAtomic | Operation::WriteAndVerify | Operation::OrWrite => range(1),
        Operation::CompareAndWrite => range(2),
        Operation::Verify => match cdb[1] >> 1 & 3 {
            1 => range(1),
            3 => logical,
            _ => 0,
        },
        Operation::WriteSame => {
            if cdb[0] == 0x93 && cdb[1] & 1 != 0 {
                0
            } else {
                logical
            }
        }
        Operation::Unmap => u16_at(cdb, 7).into(),
        _ => 0,
    }
}

/// Returns the bytes that a command reads from the medium to send them, according to its CDB, even if the initiator
/// wants fewer.
pub(super) fn data_in_bytes(operation: Operation, cdb: &[u8], geometry: &Geometry) -> usize {
    if operation != Operation::Read {
        return 0;
    }
    Range::of(operation, cdb).check_transfer(geometry).map_or(0, |range| range.bytes(geometry))
}

/// Returns whether a command only reads. With FUA it would first write earlier data.
pub(super) fn is_plain_read(operation: Operation, cdb: &[u8]) -> bool {
    operation == Operation::Read && !(cdb.len() > 6 && cdb[1] & FUA != 0)
}

/// A disk and its sizes.
pub(super) struct Medium<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) geometry: Geometry,
}

impl Medium<'_> {
    fn read(&self, range: Range) -> Result<Vec<u8>, Sense> {
        self.read_into(range, &Buffers::default())
    }

    /// Reads into a used buffer, if there is one. A disk that reads without an error fills all of it.
    fn read_into(&self, range: Range, buffers: &Buffers) -> Result<Vec<u8>, Sense> {
        range.check_transfer(&self.geometry)?;
        let mut out = buffers.full(range.bytes(&self.geometry));
        if !out.is_empty() {
            self.disk
                .read(range.offset(&self.geometry), &mut out)
                .map_err(|error| failed_to_read(&error, self.first_unreadable(range, &error)))?;
        }
        Ok(out)
    }

    /// READ. With FUA the data must be on the medium: earlier writes go there first (SBC-3 section 4.15).
    pub(super) fn read_command(&self, cdb: &[u8], buffers: &Buffers) -> Result<Vec<u8>, Sense> {
        let range = Range::of(Operation::Read, cdb).check_transfer(&self.geometry)?;
        if cdb.len() > 6 && cdb[1] & FUA != 0 {
            self.disk.flush().map_err(|error| failed_to_write(&error, range.lba))?;
        }
        self.read_into(range, buffers)
    }

    /// Returns the first block of a range that cannot be read, because initiators want to know what is lost.
    fn first_unreadable(&self, range: Range, error: &DiskError) -> u64 {
        if !matches!(error, DiskError::Damaged(_)) {
            return range.lba;
        }
        // First by units of mapping, then by logical blocks.
        let mut left = range;
        for step in [u64::from(self.geometry.mapped_block_blocks()), 1] {
            while left.blocks > 0 {
                let part = Range { blocks: step.min(left.blocks), ..left };
                if self.disk.read(part.offset(&self.geometry), &mut vec![0; part.bytes(&self.geometry)]).is_err() {
                    left = part;
                    break;
                }
                left = Range { lba: left.lba + part.blocks, blocks: left.blocks - part.blocks };
            }
        }
        // Everything can be read now, so the error was temporary.
        if left.blocks == 0 { range.lba } else { left.lba }
    }

    /// Writes the received data. If the initiator sent less than announced, writes the whole blocks of it.
    pub(super) fn write(&self, range: Range, data: &[u8], fua: bool) -> Result<(), Sense> {
        range.check_transfer(&self.geometry)?;
        let bytes = range.bytes(&self.geometry).min(data.len()) / self.geometry.logical as usize * self.geometry.logical as usize;
        if bytes > 0 {
            self.disk.write(range.offset(&self.geometry), &data[..bytes], fua).map_err(|error| failed_to_write(&error, range.lba))?;
        }
        Ok(())
    }

    pub(super) fn write_command(&self, operation: Operation, cdb: &[u8], data: &[u8]) -> Result<(), Sense> {
        let range = Range::of(operation, cdb);
        match operation {
            Operation::WriteAtomic => {
                let is_bounded = u16_at(cdb, 10) != 0;
                let granule = u64::from(self.geometry.mapped_block_blocks());
                if is_bounded {
                    return Err(Sense::invalid_field(10, None));
                }
                if range.blocks > granule {
                    return Err(Sense::invalid_field(12, None));
                }
                range.check(&self.geometry)?;
                if range.blocks > 0 && range.lba / granule != (range.lba + range.blocks - 1) / granule {
                    return Err(Sense::invalid_field(2, None));
                }
                if data.len() < range.bytes(&self.geometry) {
                    return Err(Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
                }
                self.write(range, data, cdb[1] & FUA != 0)
            }
            Operation::WriteAndVerify => {
                if matches!(cdb[1] >> 1 & 3, 2 | 3) {
                    return Err(Sense::invalid_field(1, Some(2)));
                }
                // Verification is about data on the medium, so it must be there.
                self.write(range, data, true)?;
                self.compare(range, |at, found| {
                    let expected = data.get(at..).unwrap_or_default();
                    let length = found.len().min(expected.len());
                    first_difference(&found[..length], &expected[..length])
                })
            }
            _ => self.write(range, data, cdb.len() > 6 && cdb[1] & FUA != 0),
        }
    }

    pub(super) fn verify(&self, cdb: &[u8], data: &[u8]) -> Result<(), Sense> {
        let range = Range::of(Operation::Verify, cdb).check_transfer(&self.geometry)?;
        let logical = self.geometry.logical as usize;
        let mode = cdb[1] >> 1 & 3;
        if mode == 2 {
            return Err(Sense::invalid_field(1, Some(2)));
        }
        let expected_bytes = if mode == 1 { range.bytes(&self.geometry) } else { logical };
        if mode != 0 && data.len() < expected_bytes && range.blocks > 0 {
            return Err(Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        }
        self.compare(range, |at, found| match mode {
            0 => None,
            1 => first_difference(found, &data[at..]),
            _ => found
                .chunks_exact(logical)
                .enumerate()
                .find_map(|(number, block)| first_difference(block, &data[..logical]).map(|at| number * logical + at)),
        })
    }

    /// Reads a range in steps, to limit memory, and fails where `difference` finds one. `difference` gets the offset of
    /// the step in the range, and returns the first difference in the step.
    fn compare(&self, range: Range, difference: impl Fn(usize, &[u8]) -> Option<usize>) -> Result<(), Sense> {
        let logical = self.geometry.logical as usize;
        let step = (STEP_BYTES / logical) as u64;
        let mut done = 0;
        while done < range.blocks {
            let part = Range { lba: range.lba + done, blocks: step.min(range.blocks - done) };
            let start = done as usize * logical;
            if let Some(at) = difference(start, &self.read(part)?) {
                return Err(miscompare(start + at));
            }
            done += part.blocks;
        }
        Ok(())
    }

    /// ORs the received data into the stored data, as one step (SBC-3 section 5.10).
    pub(super) fn or_write(&self, cdb: &[u8], data: &[u8]) -> Result<(), Sense> {
        let range = Range::of(Operation::OrWrite, cdb).check_transfer(&self.geometry)?;
        let bytes = range.bytes(&self.geometry).min(data.len());
        if bytes == 0 {
            return Ok(());
        }
        let change = &mut |found: &mut [u8]| {
            found.iter_mut().zip(data).for_each(|(found, new)| *found |= new);
            true
        };
        let done = self.disk.update(range.offset(&self.geometry), bytes, cdb[1] & FUA != 0, change);
        done.map(drop).map_err(|error| failed_to_write(&error, range.lba))
    }

    /// Writes the second half of the data if the first half equals the stored data, as one step (SBC-3 section 5.2).
    pub(super) fn compare_and_write(&self, cdb: &[u8], data: &[u8]) -> Result<(), Sense> {
        let range = Range::of(Operation::CompareAndWrite, cdb).check(&self.geometry)?;
        if range.blocks > u64::from(MAX_COMPARE_BLOCKS) {
            return Err(Sense::invalid_field(13, None));
        }
        let bytes = range.bytes(&self.geometry);
        if bytes == 0 {
            return Ok(());
        }
        if data.len() < 2 * bytes {
            return Err(Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        }
        let (expected, new) = data[..2 * bytes].split_at(bytes);
        let mut difference = None;
        let change = &mut |found: &mut [u8]| {
            difference = first_difference(found, expected);
            found.copy_from_slice(new);
            difference.is_none()
        };
        self.disk
            .update(range.offset(&self.geometry), bytes, cdb[1] & FUA != 0, change)
            .map_err(|error| failed_to_write(&error, range.lba))?;
        difference.map_or(Ok(()), |at| Err(miscompare(at)))
    }

    /// WRITE SAME. Zeros always free the space, whether or not the command asks for that. Any other pattern is written
    /// repeatedly.
    pub(super) fn write_same(&self, cdb: &[u8], data: &[u8], is_over: &dyn Fn() -> bool) -> Result<(), Sense> {
        let range = Range::of(Operation::WriteSame, cdb).check(&self.geometry)?;
        // Zero blocks would mean all up to the end, which is not offered (WSNZ).
        if range.blocks == 0 || range.blocks > self.geometry.max_write_same_blocks() {
            return Err(Sense::invalid_field(if cdb.len() == 10 { 7 } else { 10 }, None));
        }
        let has_data = !(cdb[0] == 0x93 && cdb[1] & 1 != 0);
        let logical = self.geometry.logical as usize;
        if has_data && data.len() < logical {
            return Err(Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        }
        // Even with UNMAP, blocks must read as the data sent: unmapped blocks read as zeros.
        if !has_data || data[..logical].iter().all(|byte| *byte == 0) {
            let step = ZERO_STEP_BYTES / logical as u64;
            let mut left = range;
            while left.blocks > 0 {
                go_on(is_over)?;
                let part = Range { blocks: step.min(left.blocks), ..left };
                self.zero_range(part)?;
                left = Range { lba: left.lba + part.blocks, blocks: left.blocks - part.blocks };
            }
            return Ok(());
        }
        self.fill(range, &data[..logical], is_over)
    }

    /// Writes a pattern of whole blocks.
    fn fill(&self, range: Range, block: &[u8], is_over: &dyn Fn() -> bool) -> Result<(), Sense> {
        let pattern = block.repeat(STEP_BYTES / block.len());
        let (mut offset, end) = (range.offset(&self.geometry), (range.lba + range.blocks) * u64::from(self.geometry.logical));
        while offset < end {
            go_on(is_over)?;
            let length = (end - offset).min(pattern.len() as u64);
            let lba = offset / u64::from(self.geometry.logical);
            self.disk.write(offset, &pattern[..length as usize], false).map_err(|error| failed_to_write(&error, lba))?;
            offset += length;
        }
        Ok(())
    }

    /// Zeroes a range, whatever space that needs.
    pub(super) fn zero_range(&self, range: Range) -> Result<(), Sense> {
        let length = range.blocks * u64::from(self.geometry.logical);
        self.disk.zero(range.offset(&self.geometry), length).map_err(|error| failed_to_write(&error, range.lba))
    }

    /// UNMAP (SBC-3 section 5.28). All descriptors are checked before any space is freed.
    pub(super) fn unmap(&self, list: &[u8], is_over: &dyn Fn() -> bool) -> Result<(), Sense> {
        if list.is_empty() {
            return Ok(());
        }
        if list.len() < 8 {
            return Err(Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR));
        }
        let bytes = usize::from(u16_at(list, 2)).min(list.len() - 8);
        let descriptors = list[8..8 + bytes].chunks_exact(16);
        if descriptors.len() > MAX_UNMAP_DESCRIPTORS as usize {
            return Err(Sense::invalid_parameter(2));
        }
        let ranges: Vec<Range> = descriptors
            .map(|descriptor| Range { lba: u64_at(descriptor, 0), blocks: u32_at(descriptor, 8).into() }.check(&self.geometry))
            .collect::<Result<_, _>>()?;
        ranges.into_iter().try_for_each(|range| {
            go_on(is_over)?;
            let length = range.blocks * u64::from(self.geometry.logical);
            self.disk.unmap(range.offset(&self.geometry), length).map_err(|error| failed_to_write(&error, range.lba))
        })
    }

    pub(super) fn prefetch(&self, cdb: &[u8]) -> Result<(), Sense> {
        let mut range = Range::of(Operation::Prefetch, cdb).check(&self.geometry)?;
        if range.blocks == 0 {
            range.blocks = self.geometry.blocks() - range.lba;
        }
        let length = (range.blocks * u64::from(self.geometry.logical)).min(MAX_TRANSFER_BYTES.into());
        self.disk.prefetch(range.offset(&self.geometry), length).map_err(|error| failed_to_read(&error, range.lba))
    }

    pub(super) fn synchronize(&self, cdb: &[u8]) -> Result<(), Sense> {
        let range = Range::of(Operation::SynchronizeCache, cdb).check(&self.geometry)?;
        self.disk.flush().map_err(|error| failed_to_write(&error, range.lba))
    }

    /// GET LBA STATUS (SBC-3 section 5.4): from the LBA on, as many extents as fit.
    pub(super) fn lba_status(&self, cdb: &[u8]) -> Result<Vec<u8>, Sense> {
        let (lba, room) = (u64_at(cdb, 2), u32_at(cdb, 10) as usize);
        let blocks = self.geometry.blocks();
        if lba >= blocks {
            return Err(Sense::new(Key::IllegalRequest, Code::LBA_OUT_OF_RANGE));
        }
        let limit = (room.saturating_sub(8) / 16).clamp(1, MAX_EXTENTS);
        let logical = u64::from(self.geometry.logical);
        let extents = self.disk.extents(lba * logical, (blocks - lba) * logical, limit).map_err(|error| failed_to_read(&error, lba))?;
        let mut out = vec![0; 8];
        let (mut at, mut offset) = (lba, lba * logical);
        for extent in extents {
            offset += extent.length;
            // Extents are whole units of mapping. Only the last may end within a block.
            let count = (offset / logical).min(blocks).saturating_sub(at).min(u32::MAX.into());
            if count == 0 {
                break;
            }
            out.extend_from_slice(&at.to_be_bytes());
            out.extend_from_slice(&(count as u32).to_be_bytes());
            out.extend_from_slice(&[u8::from(!extent.mapped), 0, 0, 0]);
            at += count;
            if at * logical != offset {
                break;
            }
        }
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_be_bytes());
        Ok(out)
    }
}

/// Ends a long command early when nobody waits for it any more, so that it does not delay others. Finished steps stay.
pub(super) fn go_on(is_over: &dyn Fn() -> bool) -> Result<(), Sense> {
    if is_over() { Err(Sense::new(Key::AbortedCommand, Code::NONE)) } else { Ok(()) }
}

/// READ CAPACITY (10) (SBC-3 section 5.15).
pub(super) fn read_capacity_10(cdb: &[u8], geometry: &Geometry) -> Result<Vec<u8>, Sense> {
    if cdb[8] & 1 == 0 && u32_at(cdb, 2) != 0 {
        return Err(Sense::invalid_field(2, None));
    }
    let last = u32::try_from(geometry.blocks().saturating_sub(1)).unwrap_or(u32::MAX);
    Ok([last.to_be_bytes(), geometry.logical.to_be_bytes()].concat())
}

/// READ CAPACITY (16) (SBC-3 section 5.16): thin, and unmapped blocks read as zeros.
pub(super) fn read_capacity_16(geometry: &Geometry) -> Vec<u8> {
    let mut out = vec![0; 32];
    out[..8].copy_from_slice(&geometry.blocks().saturating_sub(1).to_be_bytes());
    out[8..12].copy_from_slice(&geometry.logical.to_be_bytes());
    (out[13], out[14]) = (geometry.physical_exponent(), 0xc0);
    out
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    one.iter().zip(other).position(|(one, other)| one != other)
}

fn miscompare(at: usize) -> Sense {
    Sense::new(Key::Miscompare, Code::MISCOMPARE_DURING_VERIFY).with_information(at as u64)
}

pub(super) fn failed_to_read(error: &DiskError, lba: u64) -> Sense {
    match error {
        DiskError::OutOfRange => Sense::new(Key::IllegalRequest, Code::LBA_OUT_OF_RANGE),
        DiskError::Damaged(_) => Sense::new(Key::MediumError, Code::UNRECOVERED_READ_ERROR).with_information(lba),
        DiskError::NoSpace | DiskError::ReadOnly | DiskError::Io(_) => Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE),
    }
}

pub(super) fn failed_to_write(error: &DiskError, lba: u64) -> Sense {
    match error {
        DiskError::NoSpace => Sense::new(Key::DataProtect, Code::SPACE_ALLOCATION_FAILED_WRITE_PROTECT),
        DiskError::ReadOnly => Sense::new(Key::DataProtect, Code::WRITE_PROTECTED),
        DiskError::OutOfRange => Sense::new(Key::IllegalRequest, Code::LBA_OUT_OF_RANGE),
        DiskError::Damaged(_) => Sense::new(Key::MediumError, Code::WRITE_ERROR).with_information(lba),
        DiskError::Io(_) => Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MAPPED_BYTES, MemoryDisk, send, sense_of, unit};
    use super::*;

    const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 3, 0, 0, 1, 0];

    #[test]
    fn a_read_with_fua_makes_durable_what_was_written() {
        let disk = MemoryDisk::new(4 * MAPPED_BYTES);
        let unit = unit(&disk);
        let flushes = || disk.flushes.load(std::sync::atomic::Ordering::Relaxed);
        send(&unit, &READ, &[]);
        assert_eq!(flushes(), 0);
        let mut with_fua = READ;
        with_fua[1] = FUA;
        assert_eq!((send(&unit, &with_fua, &[]).data.len(), flushes()), (256 * 512, 1));
    }

    #[test]
    fn the_first_block_that_is_lost_is_named() {
        let disk = MemoryDisk::new(4 * MAPPED_BYTES);
        let unit = unit(&disk);
        *disk.damaged.lock() = 200 * 512 + 7..220 * 512;
        let reply = send(&unit, &READ, &[]);
        assert_eq!(sense_of(&reply), (3, 0x11, 0));
        assert_eq!((reply.sense[0], reply.sense[3..7].to_vec()), (0xf0, 200u32.to_be_bytes().to_vec()));
    }

    #[test]
    fn a_difference_is_found_wherever_it_is_and_long_commands_end_when_nobody_waits() {
        let disk = MemoryDisk::new(8 * MAPPED_BYTES.max(1 << 20));
        let unit = unit(&disk);
        // 3 MiB, of which the third differs.
        let mut data = vec![0; 6144 * 512];
        data[(2 << 20) + 5] = 1;
        for flags in [0x02, 0x00] {
            let reply = send(&unit, &[0x2f, flags, 0, 0, 0, 0, 0, 0x18, 0, 0], if flags == 0 { &[] } else { &data });
            let expected = if flags == 0 { (0, 0, 0) } else { (0x0e, 0x1d, 0) };
            assert_eq!(sense_of(&reply), expected);
            assert!(flags == 0 || reply.sense[3..7] == ((2 << 20) + 5u32).to_be_bytes());
        }
        let medium = unit.medium_of(unit.geometry());
        let write_same = [0x41, 0, 0, 0, 0, 0, 0, 0, 200, 0];
        assert!(medium.write_same(&write_same, &[5; 512], &|| true).is_err());
        assert!(medium.read(Range { lba: 0, blocks: 1 }).unwrap() == [0; 512], "it had ended before it began");
        assert_eq!(unit.data_in_bytes(&[0x28, 0, 0, 0, 0, 0, 0, 0x18, 0, 0]), 3 << 20);
    }

    #[test]
    fn each_failure_of_the_store_has_its_sense() {
        let disk = MemoryDisk::new(4 * MAPPED_BYTES);
        let unit = unit(&disk);
        let damaged = || DiskError::Damaged(String::new());
        for (error, of_read, of_write) in [
            (DiskError::NoSpace, (4, 0x44, 0), (7, 0x27, 0x07)),
            (DiskError::ReadOnly, (4, 0x44, 0), (7, 0x27, 0x00)),
            (DiskError::OutOfRange, (5, 0x21, 0), (5, 0x21, 0)),
            (DiskError::Io(String::new()), (4, 0x44, 0), (4, 0x44, 0)),
            (damaged(), (3, 0x11, 0), (3, 0x0c, 0)),
        ] {
            *disk.fails.lock() = Some(error);
            assert_eq!(sense_of(&send(&unit, &READ, &[])), of_read);
            assert_eq!(sense_of(&send(&unit, &WRITE, &[1; 512])), of_write);
        }
        *disk.fails.lock() = Some(damaged());
        assert_eq!(send(&unit, &WRITE, &[1; 512]).sense[3..7], [0, 0, 0, 3]);
    }

    #[test]
    fn what_is_written_over_and_over_with_unmap_reads_as_it_was_sent() {
        let disk = MemoryDisk::new(4 * MAPPED_BYTES);
        let unit = unit(&disk);
        let write_same = [0x41, 0x08, 0, 0, 0, 0, 0, 0, 200, 0];
        send(&unit, &write_same, &[5; 512]);
        assert_eq!((disk.content()[200 * 512 - 1], disk.mapped_blocks()), (5, 2));
        send(&unit, &write_same, &[0; 512]);
        assert_eq!((disk.content()[200 * 512 - 1], disk.mapped_blocks()), (0, 1));
    }

    #[test]
    fn zeros_that_a_full_store_cannot_take_are_an_error_and_unmapping_is_none() {
        let disk = MemoryDisk::new(4 * MAPPED_BYTES);
        let unit = unit(&disk);
        send(&unit, &WRITE, &[5; 512]);
        *disk.fails.lock() = Some(DiskError::NoSpace);
        let write_same = [0x93, 0x08, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0];
        assert_eq!(sense_of(&send(&unit, &write_same, &[0; 512])), (7, 0x27, 0x07));
        let mut list = [0; 24];
        (list[1], list[3], list[15], list[19]) = (22, 16, 3, 1);
        assert_eq!(sense_of(&send(&unit, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list)), (0, 0, 0));
        assert_eq!(disk.content()[3 * 512], 5);
    }
}
