//! Compresses frames: the setting, the codecs on disk, and the quick test for data that will not shrink.
//!
//! * The [`Compression`] is the store's setting, the [`Codec`] what one frame got: data that does not shrink is stored
//!   plain.
//! * Every worker has [`Compressors`], and reuses their contexts and buffers for every frame. A client has a
//!   [`Compressor`].
//! * [`decompress`] allocates what the catalog says the frame has, and refuses a frame that decompresses to more or
//!   less.

use crate::StorageOptions;
use crate::components::COMPRESS;
use onefold_ground::profile::Profile;
use std::cell::RefCell;
use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;

/// How new frames are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4 blocks.
    Lz4,
    /// Zstandard, levels 1 to 19.
    Zstd(u8),
    /// zlib, levels 1 to 9 (M0.12).
    Zlib(u8),
    /// bzip2, levels 1 to 9 (M0.12).
    Bzip2(u8),
}

/// A text that names no compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression {0:?}: use none, lz4, zstd:1..19, zlib:1..9 or bzip2:1..9")]
pub struct UnknownCompression(String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Compression, UnknownCompression> {
        let unknown = || UnknownCompression(text.to_owned());
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level.parse::<u8>().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (name, level) {
            ("none", None) => Ok(Compression::None),
            ("lz4", None) => Ok(Compression::Lz4),
            ("zstd", Some(level @ 1..=19)) => Ok(Compression::Zstd(level)),
            ("zlib", Some(level @ 1..=9)) => Ok(Compression::Zlib(level)),
            ("bzip2", Some(level @ 1..=9)) => Ok(Compression::Bzip2(level)),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => formatter.write_str("none"),
            Compression::Lz4 => formatter.write_str("lz4"),
            Compression::Zstd(level) => write!(formatter, "zstd:{level}"),
            Compression::Zlib(level) => write!(formatter, "zlib:{level}"),
            Compression::Bzip2(level) => write!(formatter, "bzip2:{level}"),
        }
    }
}

/// How to read the bytes of a frame (`docs/format.md` section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    Plain = 0,
    /// LZ4 block without a length.
    Lz4 = 1,
    /// Zstandard.
    Zstd = 2,
    /// zlib.
    Zlib = 3,
    /// bzip2.
    Bzip2 = 4,
}

impl Codec {
    /// Returns the codec with this number.
    pub fn from_number(number: u8) -> Option<Codec> {
        Some(match number {
            0 => Codec::Plain,
            1 => Codec::Lz4,
            2 => Codec::Zstd,
            3 => Codec::Zlib,
            4 => Codec::Bzip2,
            _ => return None,
        })
    }
}

impl Compression {
    /// Returns how to read what it makes, except for data that does not shrink.
    pub fn codec(self) -> Codec {
        match self {
            Compression::None => Codec::Plain,
            Compression::Lz4 => Codec::Lz4,
            Compression::Zstd(_) => Codec::Zstd,
            Compression::Zlib(_) => Codec::Zlib,
            Compression::Bzip2(_) => Codec::Bzip2,
        }
    }
}

/// Compresses frames of both kinds, each by its own option of the store.
pub(crate) struct Compressors {
    random: Compressor,
    sequential: Compressor,
}

impl Compressors {
    pub(crate) fn new(options: &StorageOptions) -> Compressors {
        Compressors { random: Compressor::new(options.compression), sequential: Compressor::new(options.sequential_compression) }
    }

    /// Returns the stored form of a frame. It is plain if compression gains nothing.
    pub(crate) fn compress<'a>(&'a mut self, is_sequential: bool, raw: &'a [u8], profile: &Profile) -> (Codec, &'a [u8]) {
        let compressor = if is_sequential { &mut self.sequential } else { &mut self.random };
        match compressor.compression {
            Compression::None => (Codec::Plain, raw),
            _ => profile.time(&COMPRESS, raw.len() as u64, || compressor.compress(raw)),
        }
    }
}

/// Compresses one frame after the other, and reuses its context and its buffer.
pub struct Compressor {
    compression: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    lz4_table: lz4_flex::block::CompressTable,
    scratch: Vec<u8>,
}

impl Compressor {
    /// Returns a compressor.
    pub fn new(compression: Compression) -> Compressor {
        // Without memory for a context, frames are stored plain. That is right, only larger.
        let zstd = match compression {
            Compression::Zstd(level) => zstd::bulk::Compressor::new(i32::from(level)).ok(),
            _ => None,
        };
        Compressor { compression, zstd, lz4_table: lz4_flex::block::CompressTable::large(), scratch: Vec::new() }
    }

    /// Returns the stored form of a frame. It is plain if compression gains nothing.
    pub fn compress<'a>(&'a mut self, raw: &'a [u8]) -> (Codec, &'a [u8]) {
        match self.squeeze(raw) {
            Some((codec, length)) if length < raw.len() => (codec, &self.scratch[..length]),
            _ => (Codec::Plain, raw),
        }
    }

    /// Compresses into `scratch`. Returns `None` if that fails or cannot pay.
    fn squeeze(&mut self, raw: &[u8]) -> Option<(Codec, usize)> {
        match self.compression {
            Compression::None => None,
            Compression::Lz4 => Some((Codec::Lz4, self.lz4(raw)?)),
            Compression::Zstd(_) => {
                if self.is_incompressible(raw) {
                    return None;
                }
                grow(&mut self.scratch, zstd::zstd_safe::compress_bound(raw.len()));
                let length = self.zstd.as_mut()?.compress_to_buffer(raw, &mut self.scratch[..]).ok()?;
                Some((Codec::Zstd, length))
            }
            Compression::Zlib(level) => {
                if self.is_incompressible(raw) {
                    return None;
                }
                self.scratch.clear();
                let mut encoder = flate2::write::ZlibEncoder::new(&mut self.scratch, flate2::Compression::new(u32::from(level)));
                encoder.write_all(raw).ok()?;
                encoder.finish().ok()?;
                Some((Codec::Zlib, self.scratch.len()))
            }
            Compression::Bzip2(level) => {
                if self.is_incompressible(raw) {
                    return None;
                }
                self.scratch.clear();
                let mut encoder = bzip2::write::BzEncoder::new(&mut self.scratch, bzip2::Compression::new(u32::from(level)));
                encoder.write_all(raw).ok()?;
                encoder.finish().ok()?;
                Some((Codec::Bzip2, self.scratch.len()))
            }
        }
    }

    fn lz4(&mut self, raw: &[u8]) -> Option<usize> {
        grow(&mut self.scratch, lz4_flex::block::get_maximum_output_size(raw.len()));
        lz4_flex::block::compress_into_with_table(raw, &mut self.scratch, &mut self.lz4_table).ok()
    }

    /// Returns whether a slow codec would waste its time. Unevenly distributed bytes go to the codec. Evenly
    /// distributed ones may still repeat, which LZ4 finds at some GB/s.
    fn is_incompressible(&mut self, raw: &[u8]) -> bool {
        raw.len() >= SAMPLE_BYTES && looks_random(raw) && self.lz4(raw).is_none_or(|length| length + raw.len() / 64 > raw.len())
    }
}

/// Bytes that [`looks_random`] counts.
const SAMPLE_BYTES: usize = 4096;
const SAMPLE_RUNS: usize = 16;

/// Returns whether the bytes of a sample are about evenly distributed. The sum of the squares of their counts is then
/// that of noise (n + n^2 / 256), or at most an eighth more. Text has ten times as much.
fn looks_random(raw: &[u8]) -> bool {
    let mut counts = [0u32; 256];
    let run = SAMPLE_BYTES / SAMPLE_RUNS;
    let stride = (raw.len() - run) / (SAMPLE_RUNS - 1);
    for at in 0..SAMPLE_RUNS {
        for byte in &raw[at * stride..at * stride + run] {
            counts[usize::from(*byte)] += 1;
        }
    }
    let squares: u64 = counts.iter().map(|count| u64::from(*count) * u64::from(*count)).sum();
    let noise = SAMPLE_BYTES as u64 + (SAMPLE_BYTES * SAMPLE_BYTES / 256) as u64;
    squares <= noise + noise / 8
}

fn grow(buffer: &mut Vec<u8>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
}

thread_local! {
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Returns the raw bytes of a frame, exactly `raw_bytes` of them. The caller has bounded `raw_bytes`.
pub(crate) fn decompress(codec: Codec, stored: &[u8], raw_bytes: usize) -> Result<Vec<u8>, String> {
    let raw = match codec {
        Codec::Plain => stored.to_vec(),
        Codec::Lz4 => {
            let mut raw = vec![0; raw_bytes];
            let length = lz4_flex::block::decompress_into(stored, &mut raw).map_err(|error| format!("lz4: {error}"))?;
            raw.truncate(length);
            raw
        }
        Codec::Zstd => ZSTD.with(|context| {
            let mut context = context.borrow_mut();
            if context.is_none() {
                *context = Some(zstd::bulk::Decompressor::new().map_err(|error| format!("zstd: {error}"))?);
            }
            let mut raw = Vec::with_capacity(raw_bytes);
            let decompressor = context.as_mut().expect("made above");
            decompressor.decompress_to_buffer(stored, &mut raw).map_err(|error| format!("zstd: {error}"))?;
            Ok::<_, String>(raw)
        })?,
        Codec::Zlib => {
            let mut decoder = flate2::bufread::ZlibDecoder::new(stored);
            let raw = read_to(&mut decoder, raw_bytes)?;
            check_end(decoder.total_in(), stored)?;
            raw
        }
        Codec::Bzip2 => {
            let mut decoder = bzip2::bufread::BzDecoder::new(stored);
            let raw = read_to(&mut decoder, raw_bytes)?;
            check_end(decoder.total_in(), stored)?;
            raw
        }
    };
    if raw.len() != raw_bytes {
        return Err(format!("it has {} raw bytes instead of {raw_bytes}", raw.len()));
    }
    Ok(raw)
}

fn read_to(decoder: impl Read, raw_bytes: usize) -> Result<Vec<u8>, String> {
    let mut raw = Vec::with_capacity(raw_bytes);
    // One byte more than allowed, to notice a longer frame.
    decoder.take(raw_bytes as u64 + 1).read_to_end(&mut raw).map_err(|error| error.to_string())?;
    Ok(raw)
}

fn check_end(read_bytes: u64, stored: &[u8]) -> Result<(), String> {
    let rest_bytes = stored.len() as u64 - read_bytes;
    if rest_bytes == 0 { Ok(()) } else { Err(format!("{rest_bytes} bytes follow it")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Compression; 6] =
        [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(9), Compression::Zlib(6), Compression::Bzip2(9)];

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        (0..length)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect()
    }

    #[test]
    fn m0_12_every_codec_gives_back_what_it_took() {
        for compression in ALL {
            let mut compressor = Compressor::new(compression);
            for raw in [vec![], vec![7], vec![0; 100_000], noise(70_000), b"onefold ".repeat(9000)] {
                let (codec, stored) = compressor.compress(&raw);
                let stored = stored.to_vec();
                assert!(stored.len() <= raw.len());
                assert_eq!(decompress(codec, &stored, raw.len()), Ok(raw), "{compression}");
            }
        }
    }

    #[test]
    fn noise_is_stored_plain_and_repeated_noise_is_not() {
        for compression in &ALL[1..] {
            let mut compressor = Compressor::new(*compression);
            assert_eq!(compressor.compress(&noise(65536)).0, Codec::Plain);
            if !matches!(compression, Compression::Bzip2(_)) {
                assert_ne!(compressor.compress(&noise(16384).repeat(4)).0, Codec::Plain, "{compression}");
            }
        }
    }

    #[test]
    fn a_compression_is_read_as_it_is_shown() {
        for compression in ALL {
            assert_eq!(compression.to_string().parse(), Ok(compression));
        }
        for wrong in ["", "zstd:0", "zstd:20", "zlib:10", "bzip2:0", "lz4:1", "zstd", "gzip", "zstd:1:1"] {
            assert!(wrong.parse::<Compression>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(number in 0..5u8, stored: Vec<u8>, raw_bytes in 0..10_000usize) {
            let codec = Codec::from_number(number).unwrap();
            if let Ok(raw) = decompress(codec, &stored, raw_bytes) {
                prop_assert_eq!(raw.len(), raw_bytes);
            }
        }
    }
}
