//! The structures around a container's data: file names, header and footer (`docs/format.md` section 5.1).

use crate::ContainerId;
use crate::address::decode_container;
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError};

/// Bytes of the header, the first of the file.
pub const HEADER_BYTES: usize = 64;
/// Bytes of the footer, the last of a sealed file.
pub const FOOTER_BYTES: usize = 48;
/// A device writes this much wholly or not at all. The footer lies in one sector.
const SECTOR_BYTES: u64 = 512;

const HEADER_MAGIC: &[u8; 8] = b"1FLDCON1";
const FOOTER_MAGIC: &[u8; 8] = b"1FLDEND1";
const VERSION: u32 = 1;
/// Header flag: the container was merged from others.
const FLAG_MERGED: u8 = 1;
/// The suffix of a forward's file name, after the name of its container.
const FORWARD_SUFFIX: &str = ".forward";
/// Bits of a number within a folder: containers of one folder share the bits above these.
pub(crate) const FOLDER_BITS: u32 = 12;

/// Returns the directory of a partition, below the directory of all containers.
pub(crate) fn partition_directory(directory: &str, partition: u16) -> String {
    format!("{directory}/{partition:04x}")
}

/// Returns the directory of a container.
pub(crate) fn folder(directory: &str, container: ContainerId) -> String {
    format!("{}/{:05x}", partition_directory(directory, container.partition()), container.number() >> FOLDER_BITS)
}

/// Returns the folder after that of a container; `None`: it is the last.
pub(crate) fn folder_above(directory: &str, container: ContainerId) -> Option<String> {
    let first = ((container.number() >> FOLDER_BITS) + 1).checked_mul(1 << FOLDER_BITS)?;
    Some(folder(directory, ContainerId::new(container.partition(), first)))
}

/// Returns the path of a container's file.
pub(crate) fn path(directory: &str, container: ContainerId) -> String {
    format!("{}/{:08x}", folder(directory, container), container.number())
}

/// Returns the path of the file that stands for a container that was merged into another one.
pub(crate) fn forward_path(directory: &str, container: ContainerId) -> String {
    format!("{}{FORWARD_SUFFIX}", path(directory, container))
}

/// Returns the number of the container whose forward is called `name`; `None`: no forward.
pub(crate) fn forward_number(name: &str) -> Option<u32> {
    name.strip_suffix(FORWARD_SUFFIX).and_then(number)
}

/// Returns the first number that the folder called `name` can hold; `None`: no folder of ours.
pub(crate) fn folder_start(name: &str) -> Option<u32> {
    (name.len() == 5).then(|| hex(name)).flatten().map(|start| start << FOLDER_BITS)
}

/// Returns the number of the container file called `name`; `None`: no container.
pub(crate) fn number(name: &str) -> Option<u32> {
    (name.len() == 8).then(|| hex(name)).flatten().filter(|number| *number > 0)
}

fn hex(name: &str) -> Option<u32> {
    let lower = name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if lower { u32::from_str_radix(name, 16).ok() } else { None }
}

/// The first bytes of a container file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of a fingerprint.
    pub digest_bytes: u8,
    /// The container.
    pub container: ContainerId,
    /// The store's name.
    pub store: [u8; 16],
    /// The owner that created the file.
    pub epoch: u64,
    /// Where the log ended, as far as known, when the file was created.
    pub created: u64,
    /// Whether the container was merged from others: its catalog has the homes of its chunks.
    pub merged: bool,
}

impl Header {
    /// The bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(HEADER_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = self.digest_bytes;
        bytes[13] = if self.merged { FLAG_MERGED } else { 0 };
        bytes[16..24].copy_from_slice(&self.container.bits().to_le_bytes());
        bytes[24..40].copy_from_slice(&self.store);
        bytes[40..48].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.created.to_le_bytes());
        let sum = checksum(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header; the error is for people.
    pub fn decode(bytes: &[u8]) -> Result<Header, String> {
        let mut reader = start(bytes, HEADER_BYTES, HEADER_MAGIC, "header")?;
        let version = reader.u32().map_err(said)?;
        if version != VERSION {
            return Err(format!("the header has version {version}; this program reads version {VERSION}"));
        }
        let (digest_bytes, flags, _) = (reader.u8().map_err(said)?, reader.u8().map_err(said)?, reader.u16().map_err(said)?);
        if flags & !FLAG_MERGED != 0 {
            return Err(format!("the header has unknown flags {flags:#x}"));
        }
        let container = decode_container(&mut reader).map_err(said)?;
        let mut store = [0; 16];
        store.copy_from_slice(reader.take(16).map_err(said)?);
        let (epoch, created) = (reader.u64().map_err(said)?, reader.u64().map_err(said)?);
        Ok(Header { digest_bytes, container, store, epoch, created, merged: flags & FLAG_MERGED != 0 })
    }
}

/// The last bytes of a sealed container file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Where the catalog begins.
    pub catalog_offset_bytes: u32,
    /// Its length.
    pub catalog_bytes: u32,
    /// Frames in it.
    pub frames: u32,
    /// Slots in it.
    pub slots: u32,
    /// Its checksum.
    pub catalog_checksum: u64,
    /// The same as in the header, in case a crash destroyed that one. 0 if a later opening continued the file, which
    /// proves that it was committed.
    pub created: u64,
}

impl Footer {
    /// The bytes.
    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(FOOTER_MAGIC);
        for (place, value) in [self.catalog_offset_bytes, self.catalog_bytes, self.frames, self.slots].into_iter().enumerate() {
            bytes[8 + 4 * place..12 + 4 * place].copy_from_slice(&value.to_le_bytes());
        }
        bytes[24..32].copy_from_slice(&self.catalog_checksum.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.created.to_le_bytes());
        let sum = checksum(&bytes[..40]);
        bytes[40..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a footer; the error is for people.
    pub fn decode(bytes: &[u8]) -> Result<Footer, String> {
        let mut reader = start(bytes, FOOTER_BYTES, FOOTER_MAGIC, "footer")?;
        let mut next = || reader.u32().map_err(said);
        let (catalog_offset_bytes, catalog_bytes, frames, slots) = (next()?, next()?, next()?, next()?);
        let (catalog_checksum, created) = (reader.u64().map_err(said)?, reader.u64().map_err(said)?);
        Ok(Footer { catalog_offset_bytes, catalog_bytes, frames, slots, catalog_checksum, created })
    }

    /// Returns where the footer begins after a catalog that ends at `catalog_end`: at once, unless it would cross into
    /// a second sector.
    pub fn place(catalog_end: u64) -> u64 {
        let is_in_one = catalog_end / SECTOR_BYTES == (catalog_end + FOOTER_BYTES as u64 - 1) / SECTOR_BYTES;
        if is_in_one { catalog_end } else { catalog_end.next_multiple_of(SECTOR_BYTES) }
    }
}

/// Returns whether these bytes can be a footer with some bytes changed.
pub(crate) fn resembles_footer(bytes: &[u8; FOOTER_BYTES]) -> bool {
    bytes.iter().zip(FOOTER_MAGIC).filter(|(found, expected)| found == expected).count() >= FOOTER_MAGIC.len() / 2
}

/// Returns a reader behind the magic of a structure whose last eight bytes are its checksum.
fn start<'a>(bytes: &'a [u8], length: usize, magic: &[u8; 8], what: &str) -> Result<Reader<'a>, String> {
    if bytes.len() != length {
        return Err(format!("the {what} has {} bytes instead of {length}", bytes.len()));
    }
    let mut reader = Reader::new(bytes);
    if reader.take(8).map_err(said)? != magic {
        return Err(format!("the {what} is missing"));
    }
    let sum = Reader::new(&bytes[length - 8..]).u64().map_err(said)?;
    if sum != checksum(&bytes[..length - 8]) {
        return Err(format!("the checksum of the {what} is wrong"));
    }
    Ok(reader)
}

fn said(error: WireError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn m0_12_files_lie_in_folders_of_4096() {
        let container = ContainerId::new(0x12, 0x0000_1abc);
        assert_eq!(path("containers", container), "containers/0012/00001/00001abc");
        assert_eq!((folder_start("00001"), number("00001abc")), (Some(0x1000), Some(0x1abc)));
        assert_eq!(folder_above("containers", container), Some("containers/0012/00002".to_owned()));
        assert_eq!(folder_above("containers", ContainerId::new(0, u32::MAX)), None);
        assert_eq!(forward_path("containers", container), "containers/0012/00001/00001abc.forward");
        assert_eq!(
            (forward_number("00001abc.forward"), number("00001abc.forward"), forward_number("00001abc")),
            (Some(0x1abc), None, None)
        );
        assert_eq!((folder_start("1"), number("00001ABC"), number("00000000"), number("0001abc")), (None, None, None, None));
    }

    #[test]
    fn any_flipped_bit_of_header_and_footer_is_found() {
        let header = Header { digest_bytes: 32, container: ContainerId::new(1, 2), store: [9; 16], epoch: 4, created: 5, merged: true };
        let footer = Footer { catalog_offset_bytes: 100, catalog_bytes: 50, frames: 1, slots: 2, catalog_checksum: 77, created: 5 };
        assert_eq!(Header::decode(&header.encode()), Ok(header.clone()));
        assert_eq!(Footer::decode(&footer.encode()), Ok(footer.clone()));
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes).is_err());
        }
        for bit in 0..FOOTER_BYTES * 8 {
            let mut bytes = footer.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_footer_lies_in_one_sector() {
        for end in 64..2000 {
            let place = Footer::place(end);
            assert!(place >= end && place < end + FOOTER_BYTES as u64 && place / 512 == (place + FOOTER_BYTES as u64 - 1) / 512, "{end}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(Header::decode(&bytes).is_err() && Footer::decode(&bytes).is_err());
        }
    }
}
