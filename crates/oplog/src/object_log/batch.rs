//! The object of a batch (`docs/format.md` section 11.1): who put it, what it follows, and the batch.

use crate::batch::{BatchHeader, encode_batch};
use crate::{Batch, Position, Record, parse_batch};
use bytes::Bytes;
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError};

const MAGIC: &[u8; 8] = b"1FLDLGO1";
const VERSION: u32 = 1;
/// Bytes before the batch.
const HEADER_BYTES: usize = 72;
/// The part of them that their checksum covers.
const CHECKED_BYTES: usize = 64;

/// What a batch's object says besides the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The store that it belongs to.
    pub(super) store: [u8; 16],
    /// The number in its name.
    pub(super) number: u64,
    /// The checksum of the whole object before it; 0 before the first.
    pub(super) follows: u64,
    /// The same for all objects of one opening, and of no other: its owner, and 8 random bytes.
    pub(super) nonce: [u8; 16],
    /// What it is to its opening.
    pub(super) role: Role,
}

/// What a batch is to its opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// One of many.
    Ordinary,
    /// The first one, with which it became the owner. It is never deleted.
    Fence,
    /// The last one: the opening has ended its work.
    Last,
    /// A fence behind which nobody opens this log any more.
    Closed,
}

impl Role {
    const ALL: [Role; 4] = [Role::Ordinary, Role::Fence, Role::Last, Role::Closed];

    /// Returns whether a batch goes when its effects are kept elsewhere. Those that stop a former owner stay.
    pub(super) fn is_dropped(self) -> bool {
        matches!(self, Role::Ordinary | Role::Last)
    }
}

/// Returns the name of a batch's object.
pub(super) fn name(number: u64) -> String {
    format!("log/{number:016x}")
}

/// Returns the number in a name; `None`: no batch.
pub(super) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("log/")?;
    let is_ours = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_ours { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// Returns an object, and how many positions its batch takes.
pub(super) fn encode(link: &Link, records: &[Record], position: Position, epoch: u64) -> (Bytes, u64) {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(link.role as u32).to_le_bytes());
    out.extend_from_slice(&link.store);
    out.extend_from_slice(&link.number.to_le_bytes());
    out.extend_from_slice(&link.follows.to_le_bytes());
    out.extend_from_slice(&link.nonce);
    let sum = checksum(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    encode_batch(&mut out, records, position, &link.store, epoch);
    let length_bytes = (out.len() - HEADER_BYTES) as u64;
    // A batch in an object needs no padding.
    let unpadded = BatchHeader::parse(&out[HEADER_BYTES..]).map_or(length_bytes, |header| header.unpadded_bytes());
    out.truncate(HEADER_BYTES + unpadded as usize);
    (out.into(), length_bytes)
}

/// Reads an object; the error is for people.
pub(super) fn decode(bytes: &[u8], store: &[u8; 16], number: u64) -> Result<(Link, Batch), String> {
    let link = decode_link(bytes)?;
    if link.store != *store {
        return Err("the batch belongs to another store".to_owned());
    }
    if link.number != number {
        return Err(format!("the batch's header says that it is number {}", link.number));
    }
    let batch = parse_batch(&bytes[HEADER_BYTES..]).map_err(|error| error.to_string())?;
    if batch.store != *store {
        return Err("the batch belongs to another store".to_owned());
    }
    Ok((link, batch))
}

fn decode_link(bytes: &[u8]) -> Result<Link, String> {
    let mut reader = Reader::new(bytes);
    let mut fields = || {
        let (magic, version, role) = (reader.take(8)?, reader.u32()?, reader.u32()?);
        let store = reader.take(16)?;
        let (number, follows) = (reader.u64()?, reader.u64()?);
        let nonce = reader.take(16)?;
        Ok::<_, WireError>((magic, version, role, store, number, follows, nonce, reader.u64()?))
    };
    let (magic, version, role, store, number, follows, nonce, sum) = fields().map_err(|error| error.to_string())?;
    if magic != MAGIC {
        return Err("this is not a batch of a log".to_owned());
    }
    if sum != checksum(&bytes[..CHECKED_BYTES]) {
        return Err("the checksum of the batch's header is wrong".to_owned());
    }
    if version != VERSION {
        return Err(format!("the batch has format version {version}; this program reads version {VERSION}"));
    }
    let known = Role::ALL.into_iter().find(|known| *known as u32 == role);
    let role = known.ok_or_else(|| format!("the batch has role {role}, which this program does not know"))?;
    let array = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).map_err(|_| "the header is too short".to_owned());
    Ok(Link { store: array(store)?, number, follows, nonce: array(nonce)?, role })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Partition, PartitionClass};

    const LINK: Link = Link { store: [7; 16], number: 5, follows: 11, nonce: [9; 16], role: Role::Last };

    #[test]
    fn a_batch_is_read_as_written_and_every_flipped_bit_is_found() {
        let record = Record { kind: 3, partition: Partition { class: PartitionClass::Container, number: 1 }, payload: vec![1; 50] };
        for records in [vec![], vec![record]] {
            let (bytes, length_bytes) = encode(&LINK, &records, Position(8192), 4);
            let mut bytes = bytes.to_vec();
            let (link, batch) = decode(&bytes, &[7; 16], 5).unwrap();
            assert_eq!((link, batch.position, batch.epoch, batch.length_bytes), (LINK, Position(8192), 4, length_bytes));
            assert_eq!(batch.records, records);
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                // The reserved bytes are covered too.
                assert!(decode(&bytes, &[7; 16], 5).is_err(), "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for length in 0..bytes.len() {
                assert!(decode(&bytes[..length], &[7; 16], 5).is_err());
            }
        }
    }

    #[test]
    fn names_lead_to_numbers_and_other_names_to_none() {
        assert_eq!(number(&name(0x1a)), Some(0x1a));
        for wrong in ["log/1a", "log/000000000000001A", "manifests/000000000000001a", "log/000000000000001a.new"] {
            assert_eq!(number(wrong), None);
        }
    }
}
