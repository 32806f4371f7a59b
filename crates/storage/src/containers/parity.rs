//! The parity file of a group of containers (`docs/format.md` section 5.10): names, header, and what its blocks can
//! repair.
//!
//! A group has some containers of one folder, its *members*. Block `b` of the parity is the exclusive or of the
//! blocks `b` of all members. Zeros continue a shorter member. The header has the checksum of every block of every
//! member, so it is known which blocks are rotten. At each place in the file, one member may be lost.

use crate::address::decode_container;
use crate::containers::file;
use crate::containers::group_id::{Folder, MAX_SEQUENCE};
use crate::{ContainerId, GroupId};
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError};

/// The unit of repair.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;
/// Highest number of members in a group. Parity of one member is a copy of it.
pub const MAX_MEMBERS: usize = 16;
/// Highest length of a member: as much as a container's file can have.
const MAX_LENGTH_BYTES: u64 = u32::MAX as u64;
/// The blocks begin at a multiple of this.
const ALIGNMENT_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"1FLDPAR1";
/// In version 1 a group had members of several folders, and was named by partition and number.
const VERSION: u32 = 2;
/// Bytes of the header before its first member.
const START_BYTES: usize = 48;

/// A container in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) container: ContainerId,
    pub(crate) length_bytes: u64,
    /// Checksums of its blocks. The last block is as long as the file has it.
    pub(crate) checksums: Vec<u64>,
}

/// The header of a parity file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParityHeader {
    pub(crate) group: GroupId,
    pub(crate) store: [u8; 16],
    /// In ascending order.
    pub(crate) members: Vec<Member>,
    /// Checksums of the parity's blocks.
    pub(crate) checksums: Vec<u64>,
}

/// Returns the number of blocks in a run of bytes.
pub(crate) fn blocks(length_bytes: u64) -> usize {
    length_bytes.div_ceil(BLOCK_BYTES as u64) as usize
}

/// Returns the length of block `block` of a run of bytes.
pub(crate) fn block_length(length_bytes: u64, block: usize) -> usize {
    length_bytes.saturating_sub(block as u64 * BLOCK_BYTES as u64).min(BLOCK_BYTES as u64) as usize
}

/// Returns where the blocks begin in the parity file of members with these lengths.
pub(crate) fn data_offset(lengths: impl Iterator<Item = u64>) -> u64 {
    let (mut members, mut checksums, mut most) = (0, 0, 0);
    for length in lengths {
        members += 1;
        checksums += blocks(length);
        most = most.max(blocks(length));
    }
    (START_BYTES + 16 * members + 8 * (checksums + most) + 8).next_multiple_of(ALIGNMENT_BYTES) as u64
}

impl ParityHeader {
    /// Returns where the blocks begin.
    pub(crate) fn data_offset(&self) -> u64 {
        data_offset(self.members.iter().map(|member| member.length_bytes))
    }

    /// Returns the length of the whole file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.data_offset() + (self.checksums.len() * BLOCK_BYTES) as u64
    }

    /// Encodes the bytes up to the first block.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.members.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.group.bits().to_le_bytes());
        bytes.extend_from_slice(&self.store);
        bytes.extend_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.checksums.len() as u32).to_le_bytes());
        for member in &self.members {
            bytes.extend_from_slice(&member.container.bits().to_le_bytes());
            bytes.extend_from_slice(&member.length_bytes.to_le_bytes());
        }
        let checksums = self.members.iter().flat_map(|member| &member.checksums).chain(&self.checksums);
        checksums.for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        bytes.resize(self.data_offset() as usize, 0);
        bytes
    }

    /// Returns how many bytes must be read to decode a header, from its first bytes. The error is for people.
    pub(crate) fn length_of(start: &[u8]) -> Result<usize, String> {
        let (header, lengths) = decode_start(start)?;
        let lengths = lengths.ok_or("the file is too short for its members")?;
        Ok(data_offset(lengths.iter().map(|(_, length)| *length)).max(header as u64) as usize)
    }

    /// Reads a header; the error is for people.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ParityHeader, String> {
        let (at, members) = decode_start(bytes)?;
        let members = members.ok_or("the file is too short for its members")?;
        let most = members.iter().map(|(_, length)| blocks(*length)).max().unwrap_or(0);
        let mut reader = Reader::new(bytes.get(at..).ok_or("the file is too short for its header")?);
        let mut sums = |count: usize| (0..count).map(|_| reader.u64().map_err(said)).collect::<Result<Vec<u64>, String>>();
        let members = members
            .into_iter()
            .map(|(container, length_bytes)| Ok(Member { container, length_bytes, checksums: sums(blocks(length_bytes))? }))
            .collect::<Result<Vec<_>, String>>()?;
        let checksums = sums(most)?;
        let end = at + reader.position();
        if reader.u64().map_err(said)? != checksum(&bytes[..end]) {
            return Err("the checksum of the header is wrong".to_owned());
        }
        let mut reader = Reader::new(&bytes[16..]);
        let group = GroupId::from_bits(reader.u64().map_err(said)?);
        let mut store = [0; 16];
        store.copy_from_slice(reader.take(16).map_err(said)?);
        if reader.u32().map_err(said)? as usize != BLOCK_BYTES || reader.u32().map_err(said)? as usize != most {
            return Err("its blocks do not match its members".to_owned());
        }
        if members.iter().any(|member| Folder::of(member.container) != group.folder()) {
            return Err("its members are in different folders".to_owned());
        }
        let header = ParityHeader { group, store, members, checksums };
        if bytes.len() as u64 != header.data_offset() || bytes[end + 8..].iter().any(|byte| *byte != 0) {
            return Err("the reserved bytes of the header are not zero".to_owned());
        }
        Ok(header)
    }
}

/// Containers and lengths of members, if there are enough bytes; and where the bytes after them begin.
type Start = (usize, Option<Vec<(ContainerId, u64)>>);

fn decode_start(bytes: &[u8]) -> Result<Start, String> {
    let mut reader = Reader::new(bytes);
    if reader.take(8).map_err(said)? != MAGIC {
        return Err("this is not a parity file".to_owned());
    }
    let version = reader.u32().map_err(said)?;
    if version != VERSION {
        return Err(format!("the file has version {version}; this program reads version {VERSION}"));
    }
    let (count, reserved) = (usize::from(reader.u16().map_err(said)?), reader.u16().map_err(said)?);
    if !(1..=MAX_MEMBERS).contains(&count) || reserved != 0 {
        return Err(format!("it has {count} members; a group has 1 to {MAX_MEMBERS}"));
    }
    let end = START_BYTES + 16 * count;
    let Some(members) = bytes.get(START_BYTES..end) else { return Ok((end, None)) };
    let mut reader = Reader::new(members);
    let mut found: Vec<(ContainerId, u64)> = Vec::with_capacity(count);
    for _ in 0..count {
        let (container, length) = (decode_container(&mut reader).map_err(said)?, reader.u64().map_err(said)?);
        if length == 0 || length > MAX_LENGTH_BYTES || found.last().is_some_and(|(last, _)| *last >= container) {
            return Err(format!("member {container} has the impossible length of {length} bytes"));
        }
        found.push((container, length));
    }
    Ok((end, Some(found)))
}

fn said(error: WireError) -> String {
    error.to_string()
}

/// Returns the directory of the parity files of a partition.
pub(crate) fn parity_directory(directory: &str, partition: u16) -> String {
    format!("{}/parity", file::partition_directory(directory, partition))
}

/// Returns the path of the parity files of a folder.
pub(crate) fn parity_folder(directory: &str, folder: Folder) -> String {
    format!("{}/{folder}", parity_directory(directory, folder.partition()))
}

/// Returns the path of the parity file of a group. Its name has the members, so a list of files tells which containers
/// have parity.
pub(crate) fn parity_path(directory: &str, group: GroupId, members: &[u32]) -> String {
    let mut path = format!("{}/{:07x}", parity_folder(directory, group.folder()), group.sequence());
    members.iter().for_each(|member| path.push_str(&format!("-{member:08x}")));
    path
}

/// Returns the path of the parity file of a group while it is written.
pub(crate) fn new_parity_path(directory: &str, group: GroupId) -> String {
    let folder = group.folder();
    format!("{}/{folder}-{:07x}.new", parity_directory(directory, folder.partition()), group.sequence())
}

/// Returns group and members of a parity file by its folder and name; `None`: it is not one.
pub(crate) fn parity_name(folder: Folder, name: &str) -> Option<(GroupId, Vec<u32>)> {
    let (sequence, numbers) = name.split_once('-')?;
    // As long as the name of a container when a digit is put before it.
    let sequence = file::number(&format!("0{sequence}")).filter(|sequence| *sequence <= MAX_SEQUENCE)?;
    let number = |name| file::number(name).filter(|number| folder.container(*number).is_some());
    let members = numbers.split('-').map(number).collect::<Option<Vec<u32>>>()?;
    let is_ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
    (is_ascending && members.len() <= MAX_MEMBERS).then_some((GroupId::new(folder, sequence), members))
}

/// Adds a block, by exclusive or, to another one that is at least as long.
pub(crate) fn add(sum: &mut [u8], block: &[u8]) {
    sum.iter_mut().zip(block).for_each(|(sum, byte)| *sum ^= byte);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> ParityHeader {
        let member = |number: u32, length_bytes: u64| Member {
            container: ContainerId::new(3, number),
            length_bytes,
            checksums: (0..blocks(length_bytes) as u64).map(|block| block ^ length_bytes).collect(),
        };
        let members = vec![member(5, 1), member(6, 200_000), member(900, 65_536)];
        let group = GroupId::new(Folder::of(ContainerId::new(3, 5)), 7);
        ParityHeader { group, store: [9; 16], members, checksums: vec![1, 2, 3, 4] }
    }

    #[test]
    fn a_header_is_read_as_written_and_any_flipped_bit_is_found() {
        let header = header();
        let bytes = header.encode();
        assert_eq!(bytes.len() as u64, header.data_offset());
        assert_eq!(ParityHeader::length_of(&bytes[..512]), Ok(bytes.len()));
        assert_eq!(ParityHeader::decode(&bytes), Ok(header.clone()));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(ParityHeader::decode(&bytes).is_err(), "{bit}");
        }
        for length in (0..bytes.len()).step_by(7) {
            assert!(ParityHeader::decode(&bytes[..length]).is_err());
            let _ = ParityHeader::length_of(&bytes[..length]);
        }
    }

    #[test]
    fn members_of_another_folder_are_refused() {
        let mut header = header();
        header.members[2].container = ContainerId::new(3, 0x1000);
        assert_eq!(ParityHeader::decode(&header.encode()), Err("its members are in different folders".to_owned()));
        header.members[2].container = ContainerId::new(3, 0xfff);
        assert!(ParityHeader::decode(&header.encode()).is_ok());
        header.group = GroupId::new(Folder::of(ContainerId::new(4, 5)), 7);
        assert!(ParityHeader::decode(&header.encode()).is_err());
    }

    #[test]
    fn names_of_parity_files_tell_their_members() {
        let folder = Folder::of(ContainerId::new(1, 0x1234));
        let group = GroupId::new(folder, 0x56);
        let path = parity_path("containers", group, &[0x1005, 0x1fff]);
        assert_eq!(path, "containers/0001/parity/00001/0000056-00001005-00001fff");
        assert_eq!(new_parity_path("containers", group), "containers/0001/parity/00001-0000056.new");
        assert_eq!(parity_name(folder, "0000056-00001005-00001fff"), Some((group, vec![0x1005, 0x1fff])));
        let wrong = [
            "0000056",
            "0000056-",
            "0000056-00001006-00001005",
            "000005g-00001005-00001006",
            "0000000-00001005",
            "fffffff-00001005",
            // Another folder, and the names of version 1.
            "0000056-00001005-00002000",
            "00000056-00001005-00001fff",
            "00001-0000056.new",
            "",
        ];
        for wrong in wrong {
            assert_eq!(parity_name(folder, wrong), None, "{wrong}");
        }
        let most = parity_path("c", group, &(0x1000..0x1010).collect::<Vec<_>>());
        let name = most.rsplit_once('/').unwrap().1;
        assert!(parity_name(folder, name).is_some() && name.len() < 255);
        assert_eq!(parity_name(folder, &format!("{name}-00001010")), None);
    }

    #[test]
    fn blocks_of_files_of_any_length() {
        assert_eq!((blocks(1), blocks(65_536), blocks(65_537)), (1, 1, 2));
        assert_eq!((block_length(65_537, 0), block_length(65_537, 1), block_length(65_537, 2)), (65_536, 1, 0));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(ParityHeader::decode(&bytes).is_err());
            if bytes.len() > 20 {
                bytes[..8].copy_from_slice(MAGIC);
                bytes[8..16].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0]);
                let _ = ParityHeader::length_of(&bytes);
                prop_assert!(ParityHeader::decode(&bytes).is_err());
            }
        }
    }
}
