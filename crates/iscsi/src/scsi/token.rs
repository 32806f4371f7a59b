//! Copies by token (SBC-3 sections 4.28, 5.12 and 5.59). Windows calls this offloaded data transfer.
//!
//! POPULATE TOKEN captures ranges of a disk at that moment and gives the initiator a token for them. Any holder of the
//! token can have that data written to any unit of the server by WRITE USING TOKEN. A token always stands for the data
//! at the moment of its creation, whatever happens to the disk.
//!
//! A token has 32 bytes that cannot be guessed. It expires when it was not used for a while, when it is too old, when
//! its disk is sanitized, and with the process.

use super::block::{self, Range};
use super::caller::Caller;
use super::opcodes::Operation;
use super::reservation::Refusal;
use super::sense::{Code, Key, Sense};
use super::third_party::{DEFAULT_INACTIVITY, ListId, MAX_INACTIVITY, MAX_RANGES, MAX_TOKEN_BYTES, Outcome, max_range_blocks};
use super::tokens::Held;
use super::unit::LogicalUnit;
use super::{Geometry, u16_at, u32_at, u64_at};
use onefold_ground::fill_random;
use std::time::{Duration, Instant};

/// Bytes of a token.
const TOKEN_BYTES: usize = 512;
/// Kinds of tokens: a copy of a point in time (there are three such kinds, all treated alike), or zeros, which need not
/// be created first.
const POINT_IN_TIME: u32 = 0x0080_0000;
const CHANGE_VULNERABLE: u32 = 0x0080_0001;
const ANY_POINT_IN_TIME: u32 = 0x0080_ffff;
const ZEROS: u32 = 0xffff_0001;
/// The place of the secret bytes in a token.
const SECRET: std::ops::Range<usize> = 128..160;
/// The longest life of a token. While there are tokens, no unused space is reclaimed.
const MAX_LIFETIME: Duration = Duration::from_secs(600);
/// Reads the ranges of a parameter list, whose length is at byte `at`.
fn ranges(list: &[u8], at: usize, geometry: &Geometry) -> Result<Vec<Range>, Sense> {
    let short = Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR);
    if list.len() < at + 2 || usize::from(u16_at(list, 0)) + 2 > list.len() {
        return Err(short);
    }
    let bytes = usize::from(u16_at(list, at));
    let list = list.get(at + 2..at + 2 + bytes).ok_or(short)?;
    if list.is_empty() || !bytes.is_multiple_of(16) {
        return Err(Sense::invalid_parameter(at as u16));
    }
    if bytes / 16 > MAX_RANGES {
        return Err(Sense::new(Key::IllegalRequest, Code::TOO_MANY_SEGMENT_DESCRIPTORS));
    }
    let ranges = list
        .chunks_exact(16)
        .enumerate()
        .map(|(number, descriptor)| {
            let range = Range { lba: u64_at(descriptor, 0), blocks: u32_at(descriptor, 8).into() };
            if range.blocks > max_range_blocks(geometry) {
                return Err(Sense::invalid_parameter((at + 2 + number * 16 + 8) as u16));
            }
            range.check(geometry)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let overlap = |one: &Range, other: &Range| one.lba < other.lba + other.blocks && other.lba < one.lba + one.blocks;
    let is_twice = ranges.iter().enumerate().any(|(number, one)| ranges[..number].iter().any(|other| overlap(one, other)));
    let blocks: u64 = ranges.iter().map(|range| range.blocks).sum();
    if is_twice || blocks * u64::from(geometry.logical) > MAX_TOKEN_BYTES {
        return Err(Sense::invalid_parameter(at as u16 + 2));
    }
    Ok(ranges)
}

impl LogicalUnit {
    /// POPULATE TOKEN and WRITE USING TOKEN. Both are done when their status is sent, even if the initiator would let
    /// them go on after it (IMMED).
    pub(super) fn use_token(&self, operation: Operation, caller: Caller<'_>, cdb: &[u8], list: &[u8]) -> Result<Vec<u8>, Refusal> {
        let announced = u32_at(cdb, 10);
        if announced == 0 {
            return Ok(Vec::new());
        }
        if (list.len() as u64) < u64::from(announced) {
            return Err(Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        let id = ListId { nexus: caller.nexus.clone(), is_token: true, number: u32_at(cdb, 6) };
        self.copies.lock().begin(&id)?;
        let mut outcome = Outcome { action: cdb[1] & 0x1f, ..Outcome::default() };
        let done = match operation {
            Operation::PopulateToken => self.populate(caller, list, &mut outcome),
            _ => self.write_using(caller, list, &mut outcome),
        };
        outcome.failure = done.err();
        self.copies.lock().end(id, outcome, true);
        Ok(done.map(|()| Vec::new())?)
    }

    fn populate(&self, caller: Caller<'_>, list: &[u8], outcome: &mut Outcome) -> Result<(), Sense> {
        let geometry = self.geometry();
        let ranges = ranges(list, 14, &geometry)?;
        let kind = if list[2] & 0x02 != 0 { u32_at(list, 8) } else { POINT_IN_TIME };
        if !matches!(kind, POINT_IN_TIME | CHANGE_VULNERABLE | ANY_POINT_IN_TIME) {
            return Err(Sense::new(Key::IllegalRequest, Code::UNSUPPORTED_TOKEN_TYPE));
        }
        let seconds = match u32_at(list, 4) {
            0 => DEFAULT_INACTIVITY,
            seconds if seconds > MAX_INACTIVITY => return Err(Sense::invalid_parameter(4)),
            seconds => seconds,
        };
        let mut contents = Vec::with_capacity(ranges.len());
        for range in &ranges {
            let (offset, length) = (range.offset(&geometry), range.bytes(&geometry) as u64);
            contents.push(self.disk().capture(offset, length).map_err(|error| block::failed_to_read(&error, range.lba))?);
            outcome.segments += 1;
            outcome.transferred += range.blocks;
        }
        let length = outcome.transferred * u64::from(geometry.logical);
        let timeout = Duration::from_secs(seconds.into());
        let token = self.new_token(length, &geometry)?;
        let now = Instant::now();
        let held = Held { token, creator: self.identity.number, contents, timeout, expires: now + timeout, ends: now + MAX_LIFETIME };
        outcome.token = Some(caller.tokens.add(held)?);
        Ok(())
    }

    /// Returns a token (SPC-4 section 5.17.6). Its identifier is set when it is added to the others.
    fn new_token(&self, length: u64, geometry: &Geometry) -> Result<Vec<u8>, Sense> {
        let mut token = vec![0; TOKEN_BYTES];
        token[..4].copy_from_slice(&POINT_IN_TIME.to_be_bytes());
        token[6..8].copy_from_slice(&(TOKEN_BYTES as u16 - 8).to_be_bytes());
        // The unit that created it, in the same form as targets of EXTENDED COPY.
        (token[16], token[20], token[21], token[23]) = (0xe4, 1, 3, 8);
        token[24..32].copy_from_slice(&self.identity.naa());
        token[44..48].copy_from_slice(&geometry.logical.to_be_bytes());
        token[56..64].copy_from_slice(&length.to_be_bytes());
        token[96..100].copy_from_slice(&geometry.logical.to_be_bytes());
        token[100] = geometry.physical_exponent();
        fill_random(&mut token[SECRET]).map_err(|error| {
            tracing::error!(%error, "cannot make a token: the system has no random numbers");
            Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE)
        })?;
        Ok(token)
    }

    fn write_using(&self, caller: Caller<'_>, list: &[u8], outcome: &mut Outcome) -> Result<(), Sense> {
        let geometry = self.geometry();
        let ranges = ranges(list, 534, &geometry)?;
        let token = &list[16..16 + TOKEN_BYTES];
        if usize::from(u16_at(token, 6)) != TOKEN_BYTES - 8 {
            return Err(Sense::new(Key::IllegalRequest, Code::INVALID_TOKEN_LENGTH));
        }
        if u32_at(token, 0) == ZEROS {
            for range in ranges {
                self.medium_of(geometry).zero_range(range)?;
                outcome.segments += 1;
                outcome.transferred += range.blocks;
            }
            return Ok(());
        }
        let is_last_use = list[2] & 0x02 != 0;
        let held = caller.tokens.find(token, is_last_use).ok_or(Sense::new(Key::IllegalRequest, Code::TOKEN_UNKNOWN))?;
        let logical = u64::from(geometry.logical);
        let blocks: u64 = ranges.iter().map(|range| range.blocks).sum();
        let start = u64_at(list, 8).checked_mul(logical);
        let mut at = start
            .filter(|start| start.checked_add(blocks * logical).is_some_and(|end| end <= held.length()))
            .ok_or(Sense::invalid_parameter(8))?;
        for range in ranges {
            let (mut offset, mut left) = (range.offset(&geometry), range.blocks * logical);
            let mut before = 0;
            for content in &held.contents {
                let (first, end) = (before, before + content.length());
                before = end;
                if left > 0 && (first..end).contains(&at) {
                    let length = left.min(end - at);
                    let failed = |error| block::failed_to_write(&error, offset / logical);
                    self.disk().place(offset, &**content, at - first, length).map_err(failed)?;
                    (offset, at, left) = (offset + length, at + length, left - length);
                }
            }
            outcome.segments += 1;
            outcome.transferred += range.blocks;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MAPPED_BYTES, MemoryDisk, options, send_among, sense_of, unit};
    use super::super::{Disk, Identity, Reply, Status, Tokens, UnitOptions};
    use super::*;
    use std::sync::Arc;

    const SIZE: u64 = 4 * MAPPED_BYTES;

    struct Scene {
        disk: Arc<MemoryDisk>,
        unit: LogicalUnit,
        tokens: Tokens,
    }

    fn scene(tokens: Tokens, number: u64) -> Scene {
        let disk = MemoryDisk::new(SIZE);
        let identity = Identity { number, ..options().identity };
        let unit = LogicalUnit::new(disk.clone(), UnitOptions { identity, ..options() }, Box::new(|_| Ok(())));
        Scene { disk, unit, tokens }
    }

    fn descriptors(ranges: &[(u64, u32)]) -> Vec<u8> {
        let mut out = ((ranges.len() * 16) as u16).to_be_bytes().to_vec();
        for (lba, blocks) in ranges {
            out.extend_from_slice(&[&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat());
        }
        out
    }

    fn with_length(mut list: Vec<u8>) -> Vec<u8> {
        let length = (list.len() - 2) as u16;
        list[..2].copy_from_slice(&length.to_be_bytes());
        list
    }

    fn populating(ranges: &[(u64, u32)], seconds: u32, kind: Option<u32>) -> Vec<u8> {
        let mut list = vec![0, 0, u8::from(kind.is_some()) << 1, 0];
        list.extend_from_slice(&seconds.to_be_bytes());
        list.extend_from_slice(&kind.unwrap_or_default().to_be_bytes());
        list.extend_from_slice(&[0; 2]);
        list.extend_from_slice(&descriptors(ranges));
        with_length(list)
    }

    fn writing(token: &[u8], offset: u64, is_last: bool, ranges: &[(u64, u32)]) -> Vec<u8> {
        let mut list = vec![0, 0, u8::from(is_last) << 1, 0, 0, 0, 0, 0];
        list.extend_from_slice(&offset.to_be_bytes());
        list.extend_from_slice(token);
        list.extend_from_slice(&[0; 6]);
        list.extend_from_slice(&descriptors(ranges));
        with_length(list)
    }

    impl Scene {
        fn send(&self, tokens: &Tokens, action: u8, id: u8, list: &[u8]) -> Reply {
            let [high, low] = (list.len() as u16).to_be_bytes();
            let cdb = [0x83, action, 0, 0, 0, 0, 0, 0, 0, id, 0, 0, high, low, 0, 0];
            send_among(&self.unit, &[], tokens, "a", &cdb, list)
        }

        fn information(&self, id: u8) -> Reply {
            send_among(&self.unit, &[], &self.tokens, "a", &[0x84, 7, 0, 0, 0, id, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[])
        }

        fn token(&self, ranges: &[(u64, u32)]) -> Vec<u8> {
            assert_eq!(self.send(&self.tokens, 0x10, 1, &populating(ranges, 0, None)).status, Status::Good);
            let data = self.information(1).data;
            assert_eq!((data[4], data[5], data[15]), (0x10, 0x01, 0xf1));
            assert_eq!(u32_at(&data, 0) as usize, data.len() - 4);
            assert_eq!(u32_at(&data, 32), 514);
            data[38..].to_vec()
        }
    }

    #[test]
    fn a_token_stands_for_the_data_of_its_moment_on_any_unit() {
        let one = scene(Tokens::default(), 1);
        let data: Vec<u8> = (0..SIZE).map(|at| (at / 512) as u8 ^ (at % 251) as u8).collect();
        one.disk.write(0, &data, false).unwrap();
        let token = one.token(&[(100, 50), (10, 20)]);
        one.disk.write(0, &[0; SIZE as usize], false).unwrap();
        let other = scene(Tokens::default(), 2);
        assert_eq!(other.send(&one.tokens, 0x11, 5, &writing(&token, 40, false, &[(0, 15), (30, 15)])).status, Status::Good);
        let content = other.disk.content();
        let spelled = [&data[100 * 512..150 * 512], &data[10 * 512..30 * 512]].concat();
        assert!(content[..15 * 512] == spelled[40 * 512..55 * 512]);
        assert!(content[30 * 512..45 * 512] == spelled[55 * 512..]);
        let data = other.information(5).data;
        assert_eq!((data[4], data[5], u64_at(&data, 16), u32_at(&data, 32)), (0x11, 0x01, 30, 0));
        assert_eq!(
            sense_of(&other.send(&one.tokens, 0x11, 5, &writing(&token, 41, false, &[(0, 30)]))),
            (5, 0x26, 0),
            "more than there is"
        );
        let data = other.information(5).data;
        assert_eq!((data[5], data[13] > 0), (0x02, true));
    }

    #[test]
    fn a_token_is_gone_after_its_last_use_its_time_and_a_sanitize() {
        let scene = scene(Tokens::default(), 1);
        let token = scene.token(&[(0, 8)]);
        assert_eq!(scene.send(&scene.tokens, 0x11, 2, &writing(&token, 0, true, &[(8, 8)])).status, Status::Good);
        let unknown = |token: &[u8]| {
            assert_eq!(sense_of(&scene.send(&scene.tokens, 0x11, 2, &writing(token, 0, false, &[(8, 8)]))), (5, 0x23, 0x04));
        };
        unknown(&token);
        let token = scene.token(&[(0, 8)]);
        let late = Instant::now() + Duration::from_secs(u64::from(DEFAULT_INACTIVITY) + 60);
        scene.tokens.expire(late);
        unknown(&token);
        let token = scene.token(&[(0, 8)]);
        let erase = [0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(send_among(&scene.unit, &[], &scene.tokens, "a", &erase, &[]).status, Status::Good);
        unknown(&token);
        let mut guessed = scene.token(&[(0, 8)]);
        guessed[SECRET.start] ^= 1;
        unknown(&guessed);
    }

    #[test]
    fn zeros_have_a_token_that_nobody_makes() {
        let scene = scene(Tokens::default(), 1);
        scene.disk.write(0, &[1; SIZE as usize], false).unwrap();
        let mut token = vec![0; TOKEN_BYTES];
        token[..8].copy_from_slice(&[0xff, 0xff, 0, 1, 0, 0, 1, 0xf8]);
        assert_eq!(scene.send(&scene.tokens, 0x11, 2, &writing(&token, 0, false, &[(0, 128)])).status, Status::Good);
        assert_eq!(scene.disk.mapped_blocks(), 3);
    }

    #[test]
    fn any_byte_of_a_list_may_be_wrong() {
        let scene = scene(Tokens::default(), 1);
        let token = scene.token(&[(0, 8), (20, 4)]);
        let lists = [(0x10, populating(&[(0, 8), (20, 4)], 1, None)), (0x11, writing(&token, 2, false, &[(30, 4), (50, 3)]))];
        for (action, good) in lists {
            for at in 0..good.len() {
                for value in [0, 1, 2, 3, 0x0f, 0x10, 0x7f, 0x80, 0xff] {
                    let mut list = good.clone();
                    list[at] = value;
                    let reply = scene.send(&scene.tokens, action, 3, &list);
                    assert_eq!(reply.status == Status::Good, reply.sense.is_empty());
                    assert_eq!(scene.information(3).status, Status::Good);
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_list_is_said() {
        let scene = scene(Tokens::default(), 1);
        let check = |list: &[u8], sense| assert_eq!(sense_of(&scene.send(&scene.tokens, 0x10, 1, list)), sense);
        let good = populating(&[(0, 1)], 0, Some(POINT_IN_TIME));
        for length in 1..good.len() {
            check(&good[..length], (5, 0x1a, 0));
        }
        check(&populating(&[(0, 1); 17], 0, None), (5, 0x26, 0x08));
        check(&populating(&[(0, 9), (8, 1)], 0, None), (5, 0x26, 0));
        check(&populating(&[(0, 1)], MAX_INACTIVITY + 1, None), (5, 0x26, 0));
        check(&populating(&[(0, 1)], 0, Some(0x0001_0000)), (5, 0x23, 0x01));
        check(&populating(&[(SIZE / 512, 1)], 0, None), (5, 0x21, 0));
        check(&populating(&[], 0, None), (5, 0x26, 0));
        let unknown = unit(&MemoryDisk::new(SIZE));
        let reply = send_among(&unknown, &[], &scene.tokens, "a", &[0x84, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[]);
        assert_eq!(sense_of(&reply), (5, 0x24, 0));
    }
}
