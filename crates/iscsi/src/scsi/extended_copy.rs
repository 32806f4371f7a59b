//! EXTENDED COPY (LID1) (SPC-4 section 6.5): copies segments of blocks between units that the initiator may use. It
//! copies what [`Disk::capture`] returns, so disks of one store move no data.

use super::caller::Caller;
use super::inquiry::Identity;
use super::opcodes::Access;
use super::reservation::Refusal;
use super::sense::{Code, Key, Sense};
use super::third_party::{
    BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION, ListId, MAX_DESCRIPTOR_BYTES, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MAX_TARGETS,
    Outcome, TARGET_BYTES,
};
use super::unit::LogicalUnit;
use super::{block, u16_at, u32_at, u64_at};
use std::sync::Arc;

/// Bytes captured at a time.
const STEP_BYTES: u64 = 16 << 20;
const HEAD_BYTES: usize = 16;

/// A parameter list.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    list_id: u8,
    /// Whether the initiator may ask for the result later.
    is_kept: bool,
    has_list_id: bool,
    /// Designators of the targets, each with its block length.
    targets: Vec<Target>,
    segments: Vec<Segment>,
}

#[derive(Debug, PartialEq, Eq)]
struct Target {
    /// Code set, type and length are bytes 0, 1 and 3; the designator begins at byte 4.
    designator: [u8; 24],
    logical: u32,
}

/// The source and the destination of a copy.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    source: usize,
    destination: usize,
    length: Length,
    source_lba: u64,
    destination_lba: u64,
    source_byte: u64,
    destination_byte: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Length {
    /// Blocks of the destination, or else of the source.
    Blocks {
        count: u64,
        of_destination: bool,
    },
    Bytes(u64),
}

fn aborted(code: Code) -> Sense {
    Sense::new(Key::CopyAborted, code)
}

impl Request {
    fn parse(list: &[u8], announced: u32) -> Result<Request, Sense> {
        let short = Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR);
        let illegal = |code| Sense::new(Key::IllegalRequest, code);
        if list.len() < HEAD_BYTES || (list.len() as u64) < u64::from(announced) {
            return Err(short);
        }
        let (target_bytes, segment_bytes) = (usize::from(u16_at(list, 2)), u32_at(list, 8) as usize);
        if target_bytes.saturating_add(segment_bytes) > MAX_DESCRIPTOR_BYTES || !target_bytes.is_multiple_of(TARGET_BYTES) {
            return Err(short);
        }
        if u32_at(list, 12) > 0 {
            return Err(illegal(Code::INLINE_DATA_LENGTH_EXCEEDED));
        }
        let targets = list.get(HEAD_BYTES..HEAD_BYTES + target_bytes).ok_or(short)?;
        let rest = list.get(HEAD_BYTES + target_bytes..HEAD_BYTES + target_bytes + segment_bytes).ok_or(short)?;
        let usage = list[1] >> 3 & 3;
        if usage == 3 && list[0] != 0 {
            return Err(Sense::invalid_parameter(0));
        }
        if targets.len() / TARGET_BYTES > MAX_TARGETS {
            return Err(illegal(Code::TOO_MANY_TARGET_DESCRIPTORS));
        }
        let targets = targets
            .chunks_exact(TARGET_BYTES)
            .map(|target| {
                // Peripheral device type 0, a block device.
                if target[0] != IDENTIFICATION || target[1] & 0x1f != 0 {
                    return Err(illegal(Code::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE));
                }
                Ok(Target { designator: target[4..28].try_into().expect("24 bytes"), logical: u32_at(target, 28) & 0xff_ffff })
            })
            .collect::<Result<_, _>>()?;
        let (mut segments, mut at) = (Vec::new(), 0);
        while at < rest.len() {
            if segments.len() == MAX_SEGMENTS {
                return Err(illegal(Code::TOO_MANY_SEGMENT_DESCRIPTORS));
            }
            let (segment, bytes) = Segment::parse(&rest[at..], HEAD_BYTES + target_bytes + at)?;
            segments.push(segment);
            at += bytes;
        }
        Ok(Request { list_id: list[0], is_kept: usage == 0, has_list_id: usage != 3, targets, segments })
    }
}

impl Segment {
    /// Reads the first of the segment descriptors, which begin at byte `at` of the list. Also returns its length.
    fn parse(list: &[u8], at: usize) -> Result<(Segment, usize), Sense> {
        let bytes = match list[0] {
            BLOCK_TO_BLOCK => 28,
            BLOCK_TO_BLOCK_BYTES => 32,
            _ => return Err(Sense::new(Key::IllegalRequest, Code::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE)),
        };
        let list = list.get(..bytes).ok_or(Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR))?;
        if usize::from(u16_at(list, 2)) + 4 != bytes {
            return Err(Sense::invalid_parameter(at as u16 + 2));
        }
        let in_bytes = list[0] == BLOCK_TO_BLOCK_BYTES;
        let length = if in_bytes {
            Length::Bytes(u32_at(list, 8).into())
        } else {
            Length::Blocks { count: u16_at(list, 10).into(), of_destination: list[1] & 0x02 != 0 }
        };
        let byte = |at| if in_bytes { u64::from(u16_at(list, at)) } else { 0 };
        let segment = Segment {
            source: u16_at(list, 4).into(),
            destination: u16_at(list, 6).into(),
            length,
            source_lba: u64_at(list, 12),
            destination_lba: u64_at(list, 20),
            source_byte: byte(28),
            destination_byte: byte(30),
        };
        Ok((segment, bytes))
    }
}

/// Returns whether a designator belongs to a unit.
fn names(designator: &[u8; 24], identity: &Identity) -> bool {
    let length = usize::from(designator[3]).min(20);
    let (kind, bytes) = ([designator[0] & 0x0f, designator[1] & 0x0f], &designator[4..4 + length]);
    kind == [1, 3] && bytes == identity.naa()
}

impl LogicalUnit {
    pub(super) fn extended_copy(&self, caller: Caller<'_>, cdb: &[u8], list: &[u8]) -> Result<Vec<u8>, Refusal> {
        let announced = u32_at(cdb, 10);
        if announced == 0 {
            return Ok(Vec::new());
        }
        let request = Request::parse(list, announced)?;
        let id = ListId { nexus: caller.nexus.clone(), is_token: false, number: request.list_id.into() };
        if request.has_list_id {
            self.copies.lock().begin(&id)?;
        }
        let mut outcome = Outcome::default();
        let done = self.copy_segments(caller, &request, &mut outcome);
        outcome.failure = done.err();
        if request.has_list_id {
            self.copies.lock().end(id, outcome, request.is_kept);
        }
        Ok(done.map(|()| Vec::new())?)
    }

    fn copy_segments(&self, caller: Caller<'_>, request: &Request, outcome: &mut Outcome) -> Result<(), Sense> {
        for segment in &request.segments {
            let find = |at: usize| {
                let target = request.targets.get(at).ok_or(aborted(Code::UNREACHABLE_COPY_TARGET))?;
                let peer = if names(&target.designator, &self.identity) { Peer::Own } else { Peer::other(caller, &target.designator)? };
                if target.logical != peer.unit(self).geometry().logical {
                    return Err(Sense::invalid_parameter((HEAD_BYTES + at * TARGET_BYTES + 29) as u16));
                }
                Ok(peer)
            };
            let (source, destination) = (find(segment.source)?, find(segment.destination)?);
            outcome.transferred += self.copy_segment(caller, segment, &source, &destination)?;
            outcome.segments += 1;
        }
        Ok(())
    }

    /// Copies a segment. Returns the number of bytes.
    fn copy_segment(&self, caller: Caller<'_>, segment: &Segment, source: &Peer, destination: &Peer) -> Result<u64, Sense> {
        let (from, to) = (source.unit(self), destination.unit(self));
        // Copies from other units, however many, must not delay a command that waits for exclusive use of a unit.
        if [(source, from), (destination, to)].iter().any(|(peer, unit)| matches!(peer, Peer::Other(_)) && unit.is_medium_wanted()) {
            return Err(Sense::new(Key::NotReady, Code::NOT_READY));
        }
        // This command uses its own unit's medium already. A command that waits for exclusive use waits for no other
        // medium, so there is no circular wait.
        let _media = [(source, from), (destination, to)].map(|(peer, unit)| matches!(peer, Peer::Other(_)).then(|| unit.share_medium()));
        let admit = || from.admit_copy(caller.nexus, Access::Read).and_then(|()| to.admit_copy(caller.nexus, Access::Write));
        admit()?;
        let (source_block, destination_block) = (u64::from(from.geometry().logical), u64::from(to.geometry().logical));
        let length = match segment.length {
            Length::Bytes(bytes) => bytes,
            Length::Blocks { count, of_destination } => count * if of_destination { destination_block } else { source_block },
        };
        if length > u64::from(MAX_SEGMENT_BYTES) {
            return Err(Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_PARAMETER_LIST));
        }
        let in_blocks = matches!(segment.length, Length::Blocks { .. });
        if in_blocks && !(length.is_multiple_of(destination_block) && length.is_multiple_of(source_block)) {
            return Err(aborted(Code::UNEXPECTED_INEXACT_SEGMENT));
        }
        let place = |unit: &LogicalUnit, lba: u64, byte: u64| {
            let geometry = unit.geometry();
            let logical = u64::from(geometry.logical);
            let start = lba.checked_mul(logical).and_then(|start| start.checked_add(byte));
            let is_inside = |start: &u64| start.checked_add(length).is_some_and(|end| end <= geometry.blocks() * logical);
            start.filter(is_inside).ok_or(aborted(Code::COPY_TARGET_DEVICE_NOT_REACHABLE))
        };
        let source_offset = place(from, segment.source_lba, segment.source_byte)?;
        let offset = place(to, segment.destination_lba, segment.destination_byte)?;
        let steps = length.div_ceil(STEP_BYTES);
        // Source bytes that are still to be copied must not be overwritten.
        let is_backward = std::ptr::eq(from, to) && source_offset < offset;
        for step in 0..steps {
            block::go_on(&|| caller.patience.is_over())?;
            // Reservations may have changed. A command that excludes others by that waits for the steps admitted
            // before.
            let _steps = [from, to].map(LogicalUnit::share_step);
            admit()?;
            let start = if is_backward { steps - 1 - step } else { step } * STEP_BYTES;
            let failed_to_read = |error| block::failed_to_read(&error, (source_offset + start) / source_block);
            let content = from.disk().capture(source_offset + start, STEP_BYTES.min(length - start)).map_err(failed_to_read);
            let content = content.map_err(|sense| Sense { key: Key::CopyAborted, ..sense })?;
            let failed_to_write = |error| block::failed_to_write(&error, (offset + start) / destination_block);
            let placed = to.disk().place(offset + start, &*content, 0, content.length()).map_err(failed_to_write);
            placed.map_err(|sense| Sense { key: Key::CopyAborted, ..sense })?;
        }
        Ok(length)
    }
}

/// A unit of a segment.
enum Peer {
    Own,
    Other(Arc<LogicalUnit>),
}

impl Peer {
    fn other(caller: Caller<'_>, designator: &[u8; 24]) -> Result<Peer, Sense> {
        let number = u64_at(designator, 4) & (u64::MAX >> 4);
        let unit = caller.peers.unit(number).filter(|unit| names(designator, &unit.identity));
        unit.map(Peer::Other).ok_or(aborted(Code::COPY_TARGET_DEVICE_NOT_REACHABLE))
    }

    fn unit<'a>(&'a self, own: &'a LogicalUnit) -> &'a LogicalUnit {
        match self {
            Peer::Own => own,
            Peer::Other(unit) => unit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MAPPED_BYTES, MemoryDisk, options, send, send_among, sense_of, unit};
    use super::super::{Disk, Reply, Status, Tokens, UnitOptions};
    use super::*;

    const SIZE: u64 = 4 * MAPPED_BYTES;

    fn target(unit: &LogicalUnit) -> [u8; 32] {
        let mut out = [0; 32];
        (out[0], out[4], out[5], out[7]) = (0xe4, 1, 3, 8);
        out[8..16].copy_from_slice(&unit.identity.naa());
        out[28..].copy_from_slice(&unit.geometry().logical.to_be_bytes());
        out
    }

    fn blocks(indexes: [u8; 2], count: u16, from: u64, to: u64) -> Vec<u8> {
        [&[2, 0, 0, 24, 0, indexes[0], 0, indexes[1], 0, 0][..], &count.to_be_bytes(), &from.to_be_bytes(), &to.to_be_bytes()].concat()
    }

    fn list(id: u8, usage: u8, targets: &[[u8; 32]], segments: &[Vec<u8>]) -> Vec<u8> {
        let segments = segments.concat();
        let mut head = vec![id, usage << 3, 0, (targets.len() * 32) as u8, 0, 0, 0, 0];
        head.extend_from_slice(&(segments.len() as u32).to_be_bytes());
        head.extend_from_slice(&[0; 4]);
        [head, targets.concat(), segments].concat()
    }

    fn cdb(length: usize) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        cdb[10..14].copy_from_slice(&(length as u32).to_be_bytes());
        cdb
    }

    fn copy(unit: &LogicalUnit, list: &[u8]) -> Reply {
        send(unit, &cdb(list.len()), list)
    }

    fn status(unit: &LogicalUnit, id: u8) -> Reply {
        send(unit, &[0x84, 0, id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[])
    }

    #[test]
    fn blocks_are_copied_within_a_unit_and_it_can_be_asked_how() {
        let disk = MemoryDisk::new(SIZE);
        let unit = unit(&disk);
        let data: Vec<u8> = (0..SIZE).map(|at| (at / 512) as u8 ^ (at % 251) as u8).collect();
        disk.write(0, &data, false).unwrap();
        assert_eq!(sense_of(&status(&unit, 7)), (5, 0x24, 0));
        // It overlaps itself.
        let segments = [blocks([0, 0], 100, 10, 40)];
        assert_eq!(copy(&unit, &list(7, 0, &[target(&unit)], &segments)).status, Status::Good);
        let mut expected = data.clone();
        expected.copy_within(10 * 512..110 * 512, 40 * 512);
        assert!(disk.content() == expected);
        assert_eq!(status(&unit, 7).data, [0, 0, 0, 8, 1, 0, 1, 0, 0, 0, 200, 0]);
        // Bytes, from within a block to within a block; nobody asks how it went.
        let bytes = [&[10, 0, 0, 28, 0, 0, 0, 0, 0, 0, 3, 0][..], &1u64.to_be_bytes(), &200u64.to_be_bytes(), &[0, 5, 1, 0]].concat();
        assert_eq!(copy(&unit, &list(9, 2, &[target(&unit)], &[bytes])).status, Status::Good);
        expected.copy_within(512 + 5..512 + 5 + 768, 200 * 512 + 256);
        assert!(disk.content() == expected);
        assert_eq!(sense_of(&status(&unit, 9)), (5, 0x24, 0));
    }

    #[test]
    fn another_unit_is_copied_to_if_the_initiator_may() {
        let (one, other) = (MemoryDisk::new(SIZE), MemoryDisk::new(SIZE));
        one.write(0, &[7; 4096], false).unwrap();
        let (source, options) = (unit(&one), options());
        let identity = super::super::Identity { number: 2, ..options.identity.clone() };
        let options = UnitOptions { identity, logical_block_bytes: 4096, ..options };
        let destination = Arc::new(LogicalUnit::new(other.clone(), options, Box::new(|_| Ok(()))));
        let peers = [destination.clone()];
        let list = list(1, 0, &[target(&source), target(&destination)], &[blocks([0, 1], 8, 0, 3)]);
        let copy = |peers: &[Arc<LogicalUnit>]| send_among(&source, peers, &Tokens::default(), "a", &cdb(list.len()), &list);
        assert_eq!(sense_of(&copy(&[])), (0xa, 0x0d, 0x02));
        assert_eq!(status(&source, 1).data[4..7], [2, 0, 0]);
        assert_eq!(copy(&peers).status, Status::Good);
        assert_eq!(other.content()[3 * 4096..4 * 4096], [7; 4096]);
        other.read_only.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(sense_of(&copy(&peers)), (7, 0x27, 0));
        other.read_only.store(false, std::sync::atomic::Ordering::Relaxed);
        super::super::testing::send_as(&destination, "b", &[0x16, 0, 0, 0, 0, 0], &[]);
        assert_eq!(sense_of(&copy(&peers)), (0xa, 0x0d, 0x02), "it is reserved");
    }

    #[test]
    fn nothing_is_copied_to_a_unit_whose_medium_somebody_waits_for() {
        let (one, other) = (MemoryDisk::new(SIZE), MemoryDisk::new(SIZE));
        one.write(0, &[7; 4096], false).unwrap();
        let source = unit(&one);
        let identity = super::super::Identity { number: 2, ..options().identity };
        let destination = Arc::new(LogicalUnit::new(other.clone(), UnitOptions { identity, ..options() }, Box::new(|_| Ok(()))));
        let list = list(1, 0, &[target(&source), target(&destination)], &[blocks([0, 1], 8, 0, 0)]);
        let copy = || send_among(&source, std::slice::from_ref(&destination), &Tokens::default(), "a", &cdb(list.len()), &list);
        let before = destination.share_medium();
        std::thread::scope(|scope| {
            let erasing = scope.spawn(|| send(&destination, &[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0], &[]));
            while !destination.is_medium_wanted() {
                std::thread::yield_now();
            }
            assert_eq!(sense_of(&copy()), (2, 0x04, 0));
            drop(before);
            assert_eq!(erasing.join().unwrap().status, Status::Good);
        });
        assert_eq!(other.mapped_blocks(), 0);
        assert_eq!(copy().status, Status::Good);
    }

    /// Lets somebody do something when a command looks whether anybody waits for it for the second time: between two
    /// steps.
    struct Between<F>(std::sync::atomic::AtomicU32, F);

    impl<F: Fn() + Send + Sync> super::super::Patience for Between<F> {
        fn begin_to_wait(&self) {}
        fn is_over(&self) -> bool {
            if self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
                (self.1)();
            }
            false
        }
    }

    #[test]
    fn who_is_preempted_writes_no_further_step_of_a_copy() {
        use super::super::testing::{Others, nexus, send_as};
        let size = 2 * STEP_BYTES;
        let (one, other) = (MemoryDisk::new(size), MemoryDisk::new(size));
        one.write(0, &vec![7; size as usize], false).unwrap();
        let source = unit(&one);
        let identity = super::super::Identity { number: 2, ..options().identity };
        let options = UnitOptions { identity, ..options() };
        let destination = Arc::new(LogicalUnit::new(other.clone(), options, Box::new(|_| Ok(()))));
        let out = |name: &str, action: u8, kind: u8, key: u64, new_key: u64| {
            let list = [&key.to_be_bytes()[..], &new_key.to_be_bytes(), &[0; 8]].concat();
            send_as(&destination, name, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list).status
        };
        assert_eq!([out("a", 0, 0, 0, 1), out("b", 0, 0, 0, 2), out("a", 1, 5, 1, 0)], [Status::Good; 3]);
        let segment = blocks([0, 1], (size / 512 - 1) as u16, 0, 0);
        let list = list(1, 0, &[target(&source), target(&destination)], &[segment]);
        let patience = Between(Default::default(), || assert_eq!(out("b", 5, 1, 2, 1), Status::Good));
        let port = super::super::Port { target: "iqn.2026-01.example:t".into(), group: 1 };
        let (nexus, tokens) = (nexus("a"), Tokens::default());
        let peers = Others::among(std::slice::from_ref(&destination));
        let buffers = crate::scsi::Buffers::default();
        let caller =
            Caller { nexus: &nexus, port: &port, luns: &[0], patience: &patience, peers: &peers, tokens: &tokens, buffers: &buffers };
        let reply = source.execute(caller, &cdb(list.len()), &list, list.len() as u32);
        assert_eq!(sense_of(&reply), (0xa, 0x0d, 0x02));
        let content = other.content();
        assert!(
            content[..STEP_BYTES as usize].iter().all(|byte| *byte == 7) && content[STEP_BYTES as usize..].iter().all(|byte| *byte == 0)
        );
    }

    #[test]
    fn what_is_wrong_with_a_list_is_said_and_nothing_is_done() {
        let disk = MemoryDisk::new(SIZE);
        let unit = unit(&disk);
        disk.write(0, &[7; 512], false).unwrap();
        let before = disk.content();
        let good = list(1, 0, &[target(&unit)], &[blocks([0, 0], 1, 0, 9)]);
        for length in 1..good.len() {
            assert_eq!(sense_of(&copy(&unit, &good[..length])), (5, 0x1a, 0), "{length}");
        }
        let check = |list: &[u8], sense| assert_eq!(sense_of(&copy(&unit, list)), sense);
        check(&list(1, 0, &[target(&unit); 3], &[blocks([0, 0], 1, 0, 9)]), (5, 0x26, 0x06));
        check(&list(1, 0, &[target(&unit)], &vec![blocks([0, 0], 1, 0, 9); 17]), (5, 0x26, 0x08));
        check(&list(1, 0, &[target(&unit); 3], &vec![blocks([0, 0], 1, 0, 9); 18]), (5, 0x1a, 0));
        check(&list(1, 3, &[target(&unit)], &[]), (5, 0x26, 0));
        check(&list(1, 0, &[target(&unit)], &[blocks([0, 1], 1, 0, 9)]), (0xa, 0x08, 0x04));
        check(&list(1, 0, &[target(&unit)], &[blocks([0, 0], 2, 0, SIZE / 512 - 1)]), (0xa, 0x0d, 0x02));
        check(&list(1, 0, &[target(&unit)], &[blocks([0, 0], 2, u64::MAX - 1, 0)]), (0xa, 0x0d, 0x02));
        let mut wrong = good.clone();
        wrong[16] = 0xe0;
        check(&wrong, (5, 0x26, 0x07));
        wrong = good.clone();
        wrong[48] = 3;
        check(&wrong, (5, 0x26, 0x09));
        wrong = good.clone();
        wrong[15] = 1;
        check(&wrong, (5, 0x26, 0x0b));
        assert!(disk.content() == before);
        *disk.fails.lock() = Some(super::super::DiskError::NoSpace);
        check(&good, (0xa, 0x44, 0));
    }

    #[test]
    fn any_byte_of_a_list_may_be_wrong() {
        let disk = MemoryDisk::new(SIZE);
        let unit = unit(&disk);
        let good = list(1, 0, &[target(&unit); 2], &[blocks([0, 1], 1, 0, 9), blocks([1, 0], 2, 7, 3)]);
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut list = good.clone();
                list[at] = value;
                let reply = copy(&unit, &list);
                assert_eq!(reply.status == Status::Good, reply.sense.is_empty());
            }
        }
        assert_eq!(disk.content().len() as u64, SIZE);
    }

    #[test]
    fn what_can_be_done_is_said() {
        let unit = unit(&MemoryDisk::new(SIZE));
        let reply = send(&unit, &[0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]);
        assert_eq!(u32_at(&reply.data, 0) as usize, reply.data.len() - 4);
        assert_eq!((u16_at(&reply.data, 8), u16_at(&reply.data, 10), u32_at(&reply.data, 12)), (2, 16, 576));
        assert_eq!(reply.data[36..], [64, 9, 0, 0, 0, 0, 0, 3, 0x02, 0x0a, 0xe4]);
        let page = send(&unit, &[0x12, 1, 0x8f, 1, 0, 0], &[]).data;
        let (mut at, mut kinds) = (4, Vec::new());
        while at < page.len() {
            kinds.push(u16_at(&page, at));
            assert!(page.len().is_multiple_of(4));
            at += 4 + usize::from(u16_at(&page, at + 2));
        }
        assert_eq!((at, kinds), (page.len(), vec![0x0000, 0x0001, 0x0004, 0x0008, 0x8001]));
    }
}
