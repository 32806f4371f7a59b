//! The header of an arena (`docs/format.md` section 5.12): what its blocks are like, and who owns it.
//!
//! It is a file of its own beside the blocks, replaced by a rename. So no block shares a sector with it, and a crash
//! leaves the old header or the new one.

use crate::arena::device::Device;
use crate::arena::options::ArenaOptions;
use crate::{Result, StorageError};
use onefold_ground::wire::Reader;
use onefold_ground::{Ground, GroundError, checksum, read_file, replace_file};
use onefold_oplog::Position;

const HEADER_MAGIC: &[u8; 8] = b"1FLDARN1";
const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 56;

/// The content of the file, and of its copies on a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) block_bytes: u32,
    pub(crate) digest_bytes: u8,
    pub(crate) store: [u8; 16],
    /// The greatest epoch that has opened the arena for writing.
    pub(crate) epoch: u64,
    /// A random number of that opening, not 0, if the blocks are on a device; else 0. 24 bits.
    pub(crate) nonce: u32,
    /// The number that the device had before that opening. 24 bits.
    pub(crate) previous: u32,
}

/// Returns the path of the header, below the directory of the arena.
pub(crate) fn header_path(directory: &str) -> String {
    format!("{directory}/header")
}

/// Returns the path of the file of blocks.
pub(crate) fn blocks_path(directory: &str) -> String {
    format!("{directory}/blocks")
}

impl Header {
    pub(crate) fn new(options: &ArenaOptions, epoch: u64, nonce: u32) -> Header {
        let digest_bytes = options.fingerprint.digest_bytes() as u8;
        Header { block_bytes: options.block_bytes, digest_bytes, store: options.store, epoch, nonce, previous: nonce }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(HEADER_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.block_bytes.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.store);
        bytes[32..40].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[40] = self.digest_bytes;
        bytes[41..44].copy_from_slice(&self.nonce.to_le_bytes()[..3]);
        bytes[44..47].copy_from_slice(&self.previous.to_le_bytes()[..3]);
        let sum = checksum(&bytes[..48]);
        bytes[48..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns whether these bytes were written as a header.
    pub(crate) fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(HEADER_MAGIC)
    }

    /// Reads a header; the error is for people.
    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Header, String> {
        if bytes.len() != HEADER_BYTES {
            return Err(format!("it has {} bytes instead of {HEADER_BYTES}", bytes.len()));
        }
        let mut reader = Reader::new(bytes);
        let said = |error: onefold_ground::wire::WireError| error.to_string();
        if reader.take(8).map_err(said)? != HEADER_MAGIC {
            return Err("it is no header of an arena".to_owned());
        }
        if Reader::new(&bytes[48..]).u64().map_err(said)? != checksum(&bytes[..48]) {
            return Err("its checksum is wrong".to_owned());
        }
        let version = reader.u32().map_err(said)?;
        if version != VERSION {
            return Err(format!("it has version {version}; this program reads version {VERSION}"));
        }
        let block_bytes = reader.u32().map_err(said)?;
        let mut store = [0; 16];
        store.copy_from_slice(reader.take(16).map_err(said)?);
        let epoch = reader.u64().map_err(said)?;
        let digest_bytes = reader.u8().map_err(said)?;
        let mut u24 = || reader.take(3).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])).map_err(said);
        Ok(Header { block_bytes, digest_bytes, store, epoch, nonce: u24()?, previous: u24()? })
    }

    /// Writes the header. It is durable on return.
    pub(crate) fn write(&self, ground: &dyn Ground, directory: &str) -> Result<()> {
        Ok(replace_file(ground, &header_path(directory), &self.encode())?)
    }

    /// Reads the header, and refuses one that does not fit the options.
    pub(crate) fn read(ground: &dyn Ground, directory: &str, options: &ArenaOptions) -> Result<Header> {
        let path = || ground.describe(&header_path(directory));
        let damaged = |why: String| StorageError::ArenaHeader { path: path(), why, is_damage: true };
        let refused = |why: String| StorageError::ArenaHeader { path: path(), why, is_damage: false };
        let bytes = match read_file(ground, &header_path(directory), HEADER_BYTES as u64) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error, GroundError::TooLong { .. }) || error.is_not_found() => return Err(damaged(error.to_string())),
            // It may be a loose cable. The error says what happened.
            Err(error) => return Err(error.into()),
        };
        let stored = Header::decode(&bytes).map_err(damaged)?;
        stored.check(options).map_err(refused)?;
        Ok(stored)
    }

    /// Refuses a header that does not fit the options; the error is for people.
    pub(crate) fn check(&self, options: &ArenaOptions) -> std::result::Result<(), String> {
        let digest_bytes = options.fingerprint.digest_bytes();
        if self.store != options.store {
            return Err("it belongs to another store".to_owned());
        }
        if (self.block_bytes, usize::from(self.digest_bytes)) != (options.block_bytes, digest_bytes) {
            return Err(format!(
                "its blocks have {} bytes and its fingerprints {}; the store has {} and {digest_bytes}",
                self.block_bytes, self.digest_bytes, options.block_bytes
            ));
        }
        Ok(())
    }

    /// Reads the header for an opening. With `takes` the arena is opened for writing: a greater epoch than this one is
    /// refused, and this epoch is durable from here on. `takes` also says where the log of this directory ends. A
    /// device gets the header after the file. So as long as one directory has the device, its header there is never
    /// newer than in the file.
    pub(crate) fn open(
        ground: &dyn Ground,
        directory: &str,
        options: &ArenaOptions,
        takes: Option<(u64, Position)>,
        device: Option<&Device>,
    ) -> Result<()> {
        // Another process may take the arena meanwhile: the older one of the two is read first.
        let copy = device.map(|device| device.header(options)).transpose()?;
        let stored = Header::read(ground, directory, options)?;
        match (&copy, device) {
            (Some(copy), Some(device)) => device.check_age(copy, &stored, &ground.describe(directory))?,
            _ if stored.nonce != 0 => return Err(no_device(ground, directory)?),
            _ => {}
        }
        let Some((epoch, log_end)) = takes else { return Ok(()) };
        device.map_or(Ok(()), |device| device.check_log_end(log_end, &ground.describe(directory)))?;
        let taken = match stored.epoch {
            later if later > epoch => return Err(StorageError::Fenced { path: ground.describe(directory), stored_epoch: later, epoch }),
            earlier if earlier < epoch => {
                let taken = Header::new(options, epoch, device.map_or(Ok(0), Device::nonce)?);
                // What the device has now, not what the directory has: the last opening may not have reached it.
                let taken = Header { previous: copy.map_or(0, |copy| copy.nonce), ..taken };
                taken.write(ground, directory)?;
                taken
            }
            _ => stored,
        };
        device.map_or(Ok(()), |device| device.write_header(&taken))
    }
}

/// Says why a store whose blocks are on a device cannot be opened without one.
fn no_device(ground: &dyn Ground, directory: &str) -> Result<StorageError> {
    let path = blocks_path(directory);
    if !ground.exists(&path)? {
        return Ok(StorageError::ArenaMissing { path: ground.describe(&path) });
    }
    let why = "the store has its blocks on a block device, and this is none. Let it lead to that device. If the device is gone for \
               good, remove `arena/header` too, make an empty file of this name, and run `onefold check --repair`"
        .to_owned();
    Ok(StorageError::Device { path: ground.describe(&path), why, is_damage: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::SimulatedGround;
    use proptest::prelude::*;

    #[test]
    fn any_flipped_bit_of_a_header_is_found() {
        let header = Header { block_bytes: 8192, digest_bytes: 20, store: [7; 16], epoch: 3, nonce: 9, previous: 0x0012_3456 };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_header_that_does_not_fit_is_refused_and_a_later_owner_fences() {
        let ground = SimulatedGround::new(1);
        ground.create_directory("arena").unwrap();
        let options = ArenaOptions::default();
        Header::new(&options, 0, 0).write(&ground, "arena").unwrap();
        let open = |options: &ArenaOptions, epoch: Option<u64>| {
            Header::open(&ground, "arena", options, epoch.map(|epoch| (epoch, Position(0))), None)
        };
        open(&options, Some(5)).unwrap();
        open(&options, Some(5)).unwrap();
        open(&options, None).unwrap();
        let refusal = |options: &ArenaOptions, epoch| open(options, epoch).unwrap_err().to_string();
        assert_eq!(refusal(&options, Some(4)), "arena belongs to owner epoch 5; this process has epoch 4");
        let other = ArenaOptions { store: [1; 16], ..options.clone() };
        assert_eq!(refusal(&other, None), "arena/header: the header of the arena cannot be used: it belongs to another store");
        let other = ArenaOptions { block_bytes: 8192, ..options.clone() };
        assert!(refusal(&other, Some(6)).ends_with("its blocks have 4096 bytes and its fingerprints 32; the store has 8192 and 32"));
        // None of the refused ones has changed it.
        open(&options, Some(5)).unwrap();
        ground.corrupt("arena/header", 33, 1).unwrap();
        assert!(refusal(&options, Some(9)).ends_with("its checksum is wrong"));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(Header::decode(&bytes).is_err());
        }
    }
}
