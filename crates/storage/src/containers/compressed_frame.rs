//! Frames that a client of a backup server compressed (`docs/decisions/0059-clients-over-the-network.md`).
//!
//! * Nothing of them is believed. A [`CompressedFrame`] has bytes that were decompressed here.
//! * [`decompress_frame`] allocates what the caller allows, whatever the bytes say, and a constant for the codec.
//! * It takes only what the store's own compressor could have made: one frame, without a dictionary, and nothing behind
//!   it. So a frame that is stored as it came reads back as it read here.

use crate::containers::catalog::MAX_FRAME_BYTES;
use crate::containers::compression::decompress;
use crate::{Codec, NewChunk};
use std::sync::Arc;
use zstd::zstd_safe::{find_frame_compressed_size, get_dict_id_from_frame, get_frame_content_size};

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is to have more raw bytes than any frame has.
    #[error("a frame cannot have {raw_bytes} bytes; the limit is {MAX_FRAME_BYTES} bytes")]
    TooLong {
        /// The raw bytes that were announced.
        raw_bytes: usize,
    },
    /// It is cut short, or something follows it, or it is no frame with data.
    #[error("its {bytes} bytes are not exactly one compressed frame")]
    NotOne {
        /// How many bytes there are.
        bytes: usize,
    },
    /// It can be read only with a dictionary.
    #[error("it needs a dictionary")]
    NeedsDictionary,
    /// It says itself that it has another length.
    #[error("it says that it has {found_bytes} raw bytes instead of {raw_bytes}")]
    WrongLength {
        /// What it says.
        found_bytes: u64,
        /// The raw bytes that were announced.
        raw_bytes: usize,
    },
    /// It cannot be decompressed, or not to this length.
    #[error("it cannot be decompressed: {why}")]
    Unreadable {
        /// What does not fit.
        why: String,
    },
}

/// A frame as somebody compressed it, and the bytes that it has.
#[derive(Debug)]
pub struct CompressedFrame<'a> {
    pub(crate) codec: Codec,
    pub(crate) stored: &'a [u8],
    pub(crate) raw: Arc<Vec<u8>>,
}

impl<'a> CompressedFrame<'a> {
    /// Decompresses a frame. The caller has bounded `raw_bytes`.
    pub fn decompress(codec: Codec, stored: &'a [u8], raw_bytes: usize) -> Result<CompressedFrame<'a>, FrameError> {
        Ok(CompressedFrame { codec, stored, raw: Arc::new(decompress_frame(codec, stored, raw_bytes)?) })
    }

    /// Returns its bytes.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Returns its bytes in memory, as the flow counts them.
    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.raw.len() + self.stored.len()
    }

    /// Returns whether these chunks, one after the other, are all that it has.
    pub(crate) fn has(&self, chunks: &[NewChunk<'_>]) -> bool {
        let mut rest = self.raw();
        let all = chunks.iter().all(|chunk| {
            let Some((found, behind)) = rest.split_at_checked(chunk.data.len()) else { return false };
            rest = behind;
            // Most callers have cut the chunks out of these bytes.
            std::ptr::eq(found, chunk.data) || found == chunk.data
        });
        all && rest.is_empty()
    }
}

/// Returns the raw bytes of a frame from an untrusted source, exactly `raw_bytes` of them. The caller has bounded
/// `raw_bytes`.
pub fn decompress_frame(codec: Codec, stored: &[u8], raw_bytes: usize) -> Result<Vec<u8>, FrameError> {
    if raw_bytes > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong { raw_bytes });
    }
    match codec {
        Codec::Plain if stored.len() != raw_bytes => return Err(FrameError::WrongLength { found_bytes: stored.len() as u64, raw_bytes }),
        Codec::Zstd => check_zstd(stored, raw_bytes)?,
        // They have neither a length nor a dictionary, and their decoders find what follows.
        Codec::Plain | Codec::Lz4 | Codec::Zlib | Codec::Bzip2 => {}
    }
    decompress(codec, stored, raw_bytes).map_err(|why| FrameError::Unreadable { why })
}

/// Checks what the headers of zstd say. The codec itself would also read several frames, and pass over others.
fn check_zstd(stored: &[u8], raw_bytes: usize) -> Result<(), FrameError> {
    let not_one = FrameError::NotOne { bytes: stored.len() };
    if !stored.starts_with(&zstd::zstd_safe::MAGICNUMBER.to_le_bytes()) || find_frame_compressed_size(stored) != Ok(stored.len()) {
        return Err(not_one);
    }
    if get_dict_id_from_frame(stored).is_some() {
        return Err(FrameError::NeedsDictionary);
    }
    match get_frame_content_size(stored) {
        Ok(Some(found_bytes)) if found_bytes != raw_bytes as u64 => Err(FrameError::WrongLength { found_bytes, raw_bytes }),
        Ok(_) => Ok(()),
        Err(_) => Err(not_one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compression, Compressor};
    use proptest::prelude::*;
    use std::io::Read;

    const ALL: [Compression; 4] = [Compression::Lz4, Compression::Zstd(2), Compression::Zlib(1), Compression::Bzip2(1)];

    fn text(length: usize) -> Vec<u8> {
        (0..length as u64).map(|at| b'a' + (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as u8).collect()
    }

    fn zstd(raw: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(raw, 1).unwrap()
    }

    fn refused(stored: &[u8], raw_bytes: usize) -> FrameError {
        decompress_frame(Codec::Zstd, stored, raw_bytes).unwrap_err()
    }

    #[test]
    fn only_whole_frames_without_anything_behind_them_are_taken() {
        let raw = text(50_000);
        for compression in ALL {
            let mut compressor = Compressor::new(compression);
            let (codec, stored) = compressor.compress(&raw);
            assert_eq!(codec, compression.codec());
            assert_eq!(decompress_frame(codec, stored, raw.len()).as_ref(), Ok(&raw), "{compression}");
            for changed in [&stored[..stored.len() - 1], &[stored, &[0]].concat(), &[stored, stored].concat(), &[]] {
                assert!(decompress_frame(codec, changed, raw.len()).is_err(), "{compression}, {} bytes", changed.len());
            }
        }
        assert_eq!(decompress_frame(Codec::Plain, &raw, raw.len()).as_ref(), Ok(&raw));
    }

    #[test]
    fn a_frame_of_another_length_is_refused() {
        let raw = text(50_000);
        for compression in ALL {
            let mut compressor = Compressor::new(compression);
            let (codec, stored) = compressor.compress(&raw);
            for length in [0, raw.len() - 1, raw.len() + 1, MAX_FRAME_BYTES] {
                assert!(decompress_frame(codec, stored, length).is_err(), "{compression}, {length}");
            }
        }
        let wrong = FrameError::WrongLength { found_bytes: raw.len() as u64, raw_bytes: 7 };
        assert_eq!((refused(&zstd(&raw), 7), decompress_frame(Codec::Plain, &raw, 7).unwrap_err()), (wrong.clone(), wrong));
    }

    #[test]
    fn a_length_beyond_all_frames_is_refused_before_anything_is_allocated() {
        for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd, Codec::Zlib, Codec::Bzip2] {
            assert_eq!(decompress_frame(codec, &[1, 2, 3], usize::MAX), Err(FrameError::TooLong { raw_bytes: usize::MAX }));
        }
    }

    #[test]
    fn a_frame_that_does_not_say_its_length_is_taken_at_the_right_length_only() {
        let raw = text(300_000);
        let mut compressor = zstd::bulk::Compressor::new(1).unwrap();
        compressor.include_contentsize(false).unwrap();
        let stored = compressor.compress(&raw).unwrap();
        assert_eq!(get_frame_content_size(&stored).ok(), Some(None));
        assert_eq!(decompress_frame(Codec::Zstd, &stored, raw.len()), Ok(raw.clone()));
        for length in [raw.len() - 1, raw.len() + 1] {
            assert!(matches!(refused(&stored, length), FrameError::Unreadable { .. }));
        }
    }

    #[test]
    fn skippable_frames_are_refused() {
        let (raw, skippable) = (text(5000), [&0x184d_2a50_u32.to_le_bytes()[..], &4_u32.to_le_bytes(), b"skip"].concat());
        for bytes in [skippable.clone(), [&skippable[..], &zstd(&raw)].concat(), [&zstd(&raw)[..], &skippable].concat()] {
            assert_eq!(refused(&bytes, raw.len()), FrameError::NotOne { bytes: bytes.len() });
        }
        assert_eq!(refused(&skippable, 0), FrameError::NotOne { bytes: skippable.len() });
    }

    #[test]
    fn several_frames_are_refused_though_their_lengths_add_up() {
        let (first, second) = (text(5000), text(3000));
        let both = [zstd(&first), zstd(&second)].concat();
        assert_eq!(refused(&both, first.len() + second.len()), FrameError::NotOne { bytes: both.len() });
        let with_empty = [zstd(&first), zstd(&[])].concat();
        assert_eq!(refused(&with_empty, first.len()), FrameError::NotOne { bytes: with_empty.len() });
    }

    #[test]
    fn a_frame_with_a_dictionary_is_refused() {
        let raw = text(5000);
        // Magic, a header with an id of one byte and a length of two, the id, the length less 256, and one raw block.
        let mut by_hand = zstd::zstd_safe::MAGICNUMBER.to_le_bytes().to_vec();
        by_hand.extend_from_slice(&[0b0110_0001, 7]);
        by_hand.extend_from_slice(&(raw.len() as u16 - 256).to_le_bytes());
        by_hand.extend_from_slice(&((raw.len() as u32) << 3 | 1).to_le_bytes()[..3]);
        by_hand.extend_from_slice(&raw);
        assert_eq!(refused(&by_hand, raw.len()), FrameError::NeedsDictionary);
    }

    #[test]
    fn a_bomb_is_refused_at_the_length_that_it_is_to_have() {
        let bomb = zstd::stream::encode_all(std::io::repeat(0).take(1 << 30), 1).unwrap();
        assert!(matches!(refused(&bomb, 1000), FrameError::Unreadable { .. } | FrameError::WrongLength { .. }));
        // It says 2 GiB, and has a window of as much.
        let says_much =
            [&zstd::zstd_safe::MAGICNUMBER.to_le_bytes()[..], &[0b1010_0000], &(2_u32 << 30).to_le_bytes(), &[1, 0, 0]].concat();
        assert_eq!(refused(&says_much, 1000), FrameError::WrongLength { found_bytes: 2 << 30, raw_bytes: 1000 });
    }

    proptest! {
        #[test]
        fn what_the_compressor_makes_is_taken(parts in proptest::collection::vec((any::<u8>(), 1..3000usize), 0..20), which in 0..ALL.len()) {
            let raw: Vec<u8> = parts.iter().flat_map(|(byte, length)| std::iter::repeat_n(*byte, *length)).collect();
            let mut compressor = Compressor::new(ALL[which]);
            let (codec, stored) = compressor.compress(&raw);
            prop_assert_eq!(decompress_frame(codec, stored, raw.len()), Ok(raw.clone()));
        }

        #[test]
        fn changed_bytes_give_the_right_length_or_an_error(
            which in 0..ALL.len(), at in any::<prop::sample::Index>(), flip in 1..=255u8, cut in any::<prop::sample::Index>(), length in 0..20_000usize,
        ) {
            let raw = text(8000);
            let mut compressor = Compressor::new(ALL[which]);
            let (codec, stored) = compressor.compress(&raw);
            let mut stored = stored.to_vec();
            let at = at.index(stored.len());
            stored[at] ^= flip;
            for (stored, length) in [(&stored[..], raw.len()), (&stored[..], length), (&stored[..cut.index(stored.len())], raw.len())] {
                if let Ok(raw) = decompress_frame(codec, stored, length) {
                    prop_assert_eq!(raw.len(), length);
                }
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(number in 0..5u8, bytes: Vec<u8>, has_magic: bool, length in 0..10_000usize) {
            let codec = Codec::from_number(number).unwrap();
            let bytes = if has_magic { [&zstd::zstd_safe::MAGICNUMBER.to_le_bytes()[..], &bytes].concat() } else { bytes };
            if let Ok(raw) = decompress_frame(codec, &bytes, length) {
                prop_assert_eq!(raw.len(), length);
            }
        }
    }
}
