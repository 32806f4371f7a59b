//! Protocol data units (RFC 7143 section 11): reads and builds the 48 bytes of a basic header segment. No I/O.

use crate::scsi::{Buffers, u16_at, u32_at, u64_at};
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes of a basic header segment.
pub const HEADER_BYTES: usize = 48;
/// "No tag": the PDU belongs to no task, or expects no answer.
pub const NO_TAG: u32 = u32::MAX;

/// Operation codes.
#[allow(missing_docs)] // The names are those of the RFC.
pub mod opcode {
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const TEXT: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// Reasons of a Reject (RFC 7143 section 11.17.1).
#[allow(missing_docs)]
pub mod reason {
    pub const PROTOCOL_ERROR: u8 = 0x04;
    pub const COMMAND_NOT_SUPPORTED: u8 = 0x05;
    pub const IMMEDIATE_COMMAND: u8 = 0x06;
    pub const INVALID_PDU_FIELD: u8 = 0x09;
}

/// A received basic header segment, with the fields that all PDUs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub [u8; HEADER_BYTES]);

impl Header {
    /// The operation code.
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// Returns whether it is for immediate delivery.
    pub fn is_immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The F bit.
    pub fn is_final(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// Bytes of additional header segments.
    pub fn additional_bytes(&self) -> usize {
        usize::from(self.0[4]) * 4
    }

    /// Bytes of the data segment, without padding.
    pub fn data_bytes(&self) -> usize {
        (u32_at(&self.0, 4) & 0x00ff_ffff) as usize
    }

    /// The LUN field.
    pub fn lun(&self) -> u64 {
        u64_at(&self.0, 8)
    }

    /// Initiator task tag.
    pub fn task_tag(&self) -> u32 {
        u32_at(&self.0, 16)
    }

    /// Target transfer tag, or the referenced task tag of a task management request.
    pub fn transfer_tag(&self) -> u32 {
        u32_at(&self.0, 20)
    }

    /// Expected data transfer length of a SCSI command.
    pub fn expected_bytes(&self) -> u32 {
        u32_at(&self.0, 20)
    }

    /// CmdSN.
    pub fn command_number(&self) -> u32 {
        u32_at(&self.0, 24)
    }

    /// ExpStatSN.
    pub fn expected_status_number(&self) -> u32 {
        u32_at(&self.0, 28)
    }

    /// The 16 bytes of a CDB in a SCSI command.
    pub fn cdb(&self) -> &[u8] {
        &self.0[32..48]
    }

    /// DataSN of a Data-Out.
    pub fn data_number(&self) -> u32 {
        u32_at(&self.0, 36)
    }

    /// Buffer offset of a Data-Out.
    pub fn buffer_offset(&self) -> u32 {
        u32_at(&self.0, 40)
    }

    /// ISID of a login request.
    pub fn isid(&self) -> [u8; 6] {
        self.0[8..14].try_into().expect("6 bytes")
    }

    /// TSIH of a login request.
    pub fn tsih(&self) -> u16 {
        u16_at(&self.0, 14)
    }

    /// CID of a login or logout request.
    pub fn connection_id(&self) -> u16 {
        u16_at(&self.0, 20)
    }
}

/// A received PDU: header and data segment. `long_cdb` has the rest of a CDB from additional header segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The header.
    pub header: Header,
    /// Bytes of the CDB beyond 16.
    pub long_cdb: Vec<u8>,
    /// The data segment.
    pub data: Vec<u8>,
}

impl Incoming {
    /// Reads the additional header segments (RFC 7143 section 11.2.2).
    pub fn new(header: Header, additional: &[u8], data: Vec<u8>) -> Result<Incoming, &'static str> {
        let mut incoming = Incoming { header, long_cdb: Vec::new(), data };
        let mut rest = additional;
        while rest.len() >= 4 {
            let length = usize::from(u16_at(rest, 0));
            let whole = (3 + length).div_ceil(4) * 4;
            let segment = rest.get(..whole).ok_or("an additional header segment exceeds the header")?;
            match segment[2] & 0x3f {
                1 if length >= 1 => incoming.long_cdb.extend_from_slice(&segment[4..3 + length]),
                // The read length of a bidirectional command. There are no such commands here.
                2 if length == 5 => {}
                _ => return Err("an additional header segment has an unknown type"),
            }
            rest = &rest[whole..];
        }
        Ok(incoming)
    }

    /// The whole CDB.
    pub fn cdb(&self) -> Vec<u8> {
        [self.header.cdb(), &self.long_cdb].concat()
    }
}

/// Bytes to send, which several PDUs may share, so that the data of a command is split without copying.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// `None` if there are no bytes.
    bytes: Option<Arc<Bytes>>,
    range: Range<usize>,
}

/// Bytes, and the pool to which their buffer returns after use.
#[derive(Debug)]
struct Bytes {
    bytes: Vec<u8>,
    buffers: Option<Arc<Buffers>>,
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(buffers) = &self.buffers {
            buffers.give_back(std::mem::take(&mut self.bytes));
        }
    }
}

impl Segment {
    /// Returns a segment of all bytes of a buffer. The buffer returns to its pool after it is sent.
    pub fn of_buffer(buffer: Vec<u8>, buffers: &Arc<Buffers>) -> Segment {
        if buffer.is_empty() {
            return Segment::default();
        }
        let range = 0..buffer.len();
        Segment { bytes: Some(Arc::new(Bytes { bytes: buffer, buffers: Some(buffers.clone()) })), range }
    }

    /// Returns a part of the segment. Panics: the segment is shorter than the range.
    pub fn part(&self, range: Range<usize>) -> Segment {
        assert!(range.start <= range.end && range.end <= self.len(), "a part is within the whole");
        Segment { bytes: self.bytes.clone(), range: self.range.start + range.start..self.range.start + range.end }
    }
}

impl From<Vec<u8>> for Segment {
    fn from(bytes: Vec<u8>) -> Segment {
        let range = 0..bytes.len();
        Segment { bytes: (!bytes.is_empty()).then(|| Arc::new(Bytes { bytes, buffers: None })), range }
    }
}

impl Deref for Segment {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_ref().map_or(&[], |bytes| &bytes.bytes[self.range.clone()])
    }
}

/// A PDU to send. Sequence numbers are filled in just before sending.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The header, without its length fields.
    pub header: [u8; HEADER_BYTES],
    /// The data segment.
    pub data: Segment,
    /// How StatSN is handled.
    pub status: StatusNumber,
}

/// How a PDU handles StatSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusNumber {
    /// It has a StatSN of its own, and the next PDU gets another.
    Own,
    /// It shows the next StatSN without using it up.
    Next,
    /// It has none: Data-In without status.
    None,
}

impl Outgoing {
    /// Returns a PDU with these first two bytes and this task tag. The LUN is zero.
    pub fn new(opcode: u8, flags: u8, task_tag: u32, status: StatusNumber) -> Outgoing {
        let mut header = [0; HEADER_BYTES];
        (header[0], header[1]) = (opcode, flags);
        header[16..20].copy_from_slice(&task_tag.to_be_bytes());
        Outgoing { header, data: Segment::default(), status }
    }

    /// Writes a 32-bit field.
    pub fn put_u32(&mut self, at: usize, value: u32) {
        self.header[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Writes bytes.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.header[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the PDU with this data segment.
    pub fn with_data(mut self, data: impl Into<Segment>) -> Outgoing {
        self.data = data.into();
        self
    }

    /// Fills in lengths and sequence numbers (StatSN, ExpCmdSN, MaxCmdSN).
    pub fn finish(&mut self, status_number: &mut u32, expected_command: u32, last_command: u32) {
        let length = (self.data.len() as u32).to_be_bytes();
        self.header[5..8].copy_from_slice(&length[1..]);
        if self.status != StatusNumber::None {
            self.put_u32(24, *status_number);
        }
        if self.status == StatusNumber::Own {
            *status_number = status_number.wrapping_add(1);
        }
        self.put_u32(28, expected_command);
        self.put_u32(32, last_command);
    }
}

/// Returns the CRC32C of a digest, as the four bytes that are sent.
pub fn digest(parts: &[&[u8]]) -> [u8; 4] {
    parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part)).to_le_bytes()
}

/// Returns the number of zeros that pad a segment to whole words.
pub fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn additional_segments_are_taken_apart() {
        let header = Header([0; HEADER_BYTES]);
        let segments = [0, 5, 2, 0, 0, 0, 2, 0, 0, 5, 1, 0, 9, 8, 7, 6];
        let incoming = Incoming::new(header, &segments, Vec::new()).unwrap();
        assert_eq!(incoming.long_cdb, [9, 8, 7, 6]);
        assert_eq!(incoming.cdb().len(), 20);
        assert!(Incoming::new(header, &[0, 50, 1, 0], Vec::new()).is_err());
    }

    #[test]
    fn m0_1_the_digest_is_that_of_the_rfc() {
        // RFC 7143 appendix A.
        assert_eq!(digest(&[&[0; 32]]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[&[0xff; 32]]), [0x43, 0xab, 0xa8, 0x62]);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(digest(&[&up[..10], &up[10..]]), [0x4e, 0x79, 0xdd, 0x46]);
    }

    #[test]
    fn parts_of_parts_are_of_the_same_bytes() {
        let whole = Segment::from((0..100).collect::<Vec<u8>>());
        let part = whole.part(10..90).part(5..10);
        assert_eq!(&part[..], [15, 16, 17, 18, 19]);
        assert!(Segment::from(Vec::new()).part(0..0).is_empty());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(segments in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Incoming::new(Header([1; HEADER_BYTES]), &segments, Vec::new());
        }
    }
}
