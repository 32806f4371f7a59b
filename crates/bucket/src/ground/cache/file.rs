//! The format of a cached piece.
//!
//! ```text
//! content | checksum of each block of 64 KiB, 8 bytes | key | footer, 48 bytes
//! ```
//! * Each read verifies the blocks that it takes. So a file that rots, or that a power cut left torn, gives no wrong
//!   byte: not at its opening, and not later.
//! * The key is in the file. Two keys with one file name do not mix up their content.
//!
//! All numbers are little-endian. Only this program on this machine reads these files: a file of another version is as
//! good as none.

use bytes::Bytes;
use onefold_ground::{File, checksum};
use std::sync::Arc;

/// Bytes that share a checksum.
const BLOCK_BYTES: usize = 64 << 10;
/// Ends with the version.
const MAGIC: [u8; 8] = *b"1FCACHE1";
const FOOTER_BYTES: usize = 48;
/// Longest list of checksums and key that is read, for a damaged footer.
const MOST_TRAILER_BYTES: u64 = 1 << 20;

/// An open file of the cache. If it is evicted meanwhile, it stays readable.
#[derive(Debug)]
pub(in crate::ground) struct CacheFile {
    file: Arc<dyn File>,
    /// Length of the object that the piece is of.
    pub(in crate::ground) object_bytes: u64,
    /// Length of the piece.
    length: u64,
    checksums: Vec<u64>,
}

/// Returns what follows the content in its file.
fn trailer(content_bytes: u64, object_bytes: u64, key: &str, checksums: &[u64]) -> Vec<u8> {
    let mut trailer: Vec<u8> = checksums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    trailer.extend_from_slice(key.as_bytes());
    trailer.extend_from_slice(&MAGIC);
    for number in [object_bytes, content_bytes, checksums.len() as u64, key.len() as u64] {
        trailer.extend_from_slice(&number.to_le_bytes());
    }
    trailer.extend_from_slice(&checksum(&trailer).to_le_bytes());
    trailer
}

impl CacheFile {
    /// Writes a new file. Every part of its content but the last one is whole blocks of [`BLOCK_BYTES`].
    pub(in crate::ground) fn write(
        file: Arc<dyn File>,
        key: &str,
        object_bytes: u64,
        content: &[Bytes],
    ) -> onefold_ground::Result<CacheFile> {
        let (mut checksums, mut length) = (Vec::new(), 0);
        for part in content {
            debug_assert!(length % BLOCK_BYTES as u64 == 0);
            checksums.extend(part.chunks(BLOCK_BYTES).map(checksum));
            file.write_at(length, part)?;
            length += part.len() as u64;
        }
        file.write_at(length, &trailer(length, object_bytes, key, &checksums))?;
        Ok(CacheFile { file, object_bytes, length, checksums })
    }

    /// Opens a file that somebody wrote. `None`: it is damaged, or has another key.
    pub(in crate::ground) fn open(file: Arc<dyn File>, key: &str) -> Option<CacheFile> {
        let all = file.len().ok()?;
        let mut footer = [0; FOOTER_BYTES];
        file.read_at(all.checked_sub(FOOTER_BYTES as u64)?, &mut footer).ok()?;
        let number = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().expect("eight bytes"));
        let (object_bytes, length, blocks, key_bytes) = (number(8), number(16), number(24), number(32));
        let trailer_bytes = all.checked_sub(length)?;
        if footer[..8] != MAGIC || trailer_bytes > MOST_TRAILER_BYTES || blocks != length.div_ceil(BLOCK_BYTES as u64) {
            return None;
        }
        if blocks.checked_mul(8)?.checked_add(key_bytes)?.checked_add(FOOTER_BYTES as u64)? != trailer_bytes {
            return None;
        }
        let mut trailer = vec![0; trailer_bytes as usize];
        file.read_at(length, &mut trailer).ok()?;
        let (covered, sum) = trailer.split_at(trailer.len() - 8);
        let (sums, rest) = covered.split_at(8 * blocks as usize);
        if sum != checksum(covered).to_le_bytes() || rest[..rest.len() - (FOOTER_BYTES - 8)] != *key.as_bytes() {
            return None;
        }
        let checksums = sums.chunks_exact(8).map(|sum| u64::from_le_bytes(sum.try_into().expect("eight bytes"))).collect();
        Some(CacheFile { file, object_bytes, length, checksums })
    }

    /// Returns the length of the piece.
    pub(in crate::ground) fn len(&self) -> u64 {
        self.length
    }

    /// Returns the length of the file.
    pub(in crate::ground) fn file_bytes(&self) -> u64 {
        self.file.len().unwrap_or(self.length)
    }

    /// Reads a range of the piece. Returns false if the file cannot be read, or is damaged there.
    pub(in crate::ground) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.read_by(offset, buffer, |file, offset, blocks| file.read_at(offset, blocks).is_ok())
    }

    /// Does the same if that needs no wait for a device.
    pub(in crate::ground) fn try_read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.read_by(offset, buffer, |file, offset, blocks| matches!(file.try_read_at(offset, blocks), Ok(true)))
    }

    fn read_by(&self, offset: u64, buffer: &mut [u8], read: impl FnOnce(&dyn File, u64, &mut [u8]) -> bool) -> bool {
        let end = offset + buffer.len() as u64;
        if end > self.length {
            return false;
        }
        let block = BLOCK_BYTES as u64;
        let first = (offset / block) as usize;
        let start = first as u64 * block;
        let mut blocks = vec![0; (end.next_multiple_of(block).min(self.length) - start) as usize];
        if !read(&*self.file, start, &mut blocks) {
            return false;
        }
        let is_sound = blocks.chunks(BLOCK_BYTES).zip(&self.checksums[first..]).all(|(block, sum)| checksum(block) == *sum);
        if is_sound {
            let from = (offset - start) as usize;
            buffer.copy_from_slice(&blocks[from..from + buffer.len()]);
        }
        is_sound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::{Ground, SimulatedGround};
    use proptest::prelude::*;

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    fn written(length: usize) -> (SimulatedGround, Vec<u8>) {
        let ground = SimulatedGround::new(1);
        let content = content(length);
        let file = Ground::create(&ground, "x").unwrap();
        let cut = content.len() / 2 / BLOCK_BYTES * BLOCK_BYTES;
        let parts = [&content[..cut], &content[cut..]].map(Bytes::copy_from_slice);
        CacheFile::write(file, "key", 1 << 40, &parts).unwrap();
        (ground, content)
    }

    fn open(ground: &SimulatedGround, key: &str) -> Option<CacheFile> {
        CacheFile::open(Ground::open(ground, "x", onefold_ground::Access::ReadWrite).unwrap(), key)
    }

    #[test]
    fn what_is_written_is_read_under_its_key_only() {
        for length in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 17] {
            let (ground, content) = written(length);
            let file = open(&ground, "key").unwrap();
            assert_eq!((file.len(), file.object_bytes), (length as u64, 1 << 40));
            for (from, to) in [(0, length), (length / 2, length), (length / 3, length / 2), (length, length)] {
                let mut buffer = vec![0; to - from];
                assert!(file.read(from as u64, &mut buffer) && buffer == content[from..to]);
            }
            assert!(!file.read(length as u64, &mut [0]));
            assert!(open(&ground, "kez").is_none() && open(&ground, "ke").is_none() && open(&ground, "").is_none());
        }
    }

    proptest! {
        #[test]
        fn damage_gives_no_wrong_byte(
            length in 0..3 * BLOCK_BYTES,
            damage in prop_oneof![
                (any::<prop::sample::Index>(), 1..=255_u8).prop_map(|(at, flip)| (at, Some(flip))),
                any::<prop::sample::Index>().prop_map(|at| (at, None)),
            ],
            is_open in any::<bool>(),
        ) {
            let (ground, content) = written(length);
            let early = is_open.then(|| open(&ground, "key").unwrap());
            let raw = Ground::open(&ground, "x", onefold_ground::Access::ReadWrite).unwrap();
            let at = damage.0.index(raw.len().unwrap() as usize) as u64;
            match damage.1 {
                Some(flip) => {
                    let mut byte = [0];
                    raw.read_at(at, &mut byte).unwrap();
                    raw.write_at(at, &[byte[0] ^ flip]).unwrap();
                }
                None => raw.set_len(at).unwrap(),
            }
            for file in [early, open(&ground, "key")].into_iter().flatten() {
                for from in (0..length).step_by(BLOCK_BYTES / 3) {
                    let mut buffer = vec![0; (length - from).min(BLOCK_BYTES / 2)];
                    prop_assert!(!file.read(from as u64, &mut buffer) || buffer == content[from..from + buffer.len()]);
                }
            }
        }
    }
}
