//! The catalog of a container: which chunks it has, and where (`docs/format.md` sections 5.2 and 5.3).
//!
//! Invariants, kept by [`Catalog::push`] and checked by every decoder:
//! * Frames are numbered from 0, and their slots follow one another from 0, without holes.
//! * A frame's raw length is the sum of the lengths of its chunks. Its stored length is at most that, and equal to it
//!   if the frame is plain.
//! * Frames lie behind the file's header, end below 4 GiB, and have at most [`MAX_FRAME_BYTES`].

use crate::address::decode_container;
use crate::containers::file::HEADER_BYTES;
use crate::{Address, ChunkKind, Codec, ContainerId, Homes, MAX_CHUNK_BYTES, Origin};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_varint};

/// Highest number of raw bytes in a frame: a frame that is one byte short of the largest `frame_bytes` takes one more
/// chunk.
pub const MAX_FRAME_BYTES: usize = 32 << 20;
/// Highest number of slots in a container.
pub const MAX_SLOTS: usize = 65_535;
/// Highest number of frames in a container.
pub const MAX_FRAMES: usize = 65_535;

/// One chunk of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The chunk's name.
    pub fingerprint: Fingerprint,
    /// What it holds.
    pub kind: ChunkKind,
    /// The frame that it lies in.
    pub frame: u16,
    /// Where it begins in the raw frame.
    pub offset_bytes: u32,
    /// Its length.
    pub length_bytes: u32,
}

/// A run of chunks that are compressed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number in the container.
    pub number: u32,
    /// Its first slot.
    pub first_slot: u32,
    /// How many slots it has.
    pub slots: u32,
    /// Where it begins in the file.
    pub offset_bytes: u32,
    /// Bytes in the file.
    pub stored_bytes: u32,
    /// Bytes when decompressed.
    pub raw_bytes: u32,
    /// How it is compressed.
    pub codec: Codec,
    /// Checksum of the stored bytes.
    pub checksum: u64,
}

impl Frame {
    /// Returns where it ends in the file.
    pub fn end_bytes(&self) -> u64 {
        u64::from(self.offset_bytes) + u64::from(self.stored_bytes)
    }
}

/// The catalog of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// The container.
    pub container: ContainerId,
    /// Its frames, by number.
    pub frames: Vec<Frame>,
    /// Its chunks, by slot.
    pub slots: Vec<Slot>,
    /// Of a merged container: the addresses that its chunks are known by. One for each slot.
    pub homes: Option<Homes>,
}

/// Smallest encoding of a frame without its slots, and of a slot without its fingerprint.
const FRAME_MIN_BYTES: usize = 25;
const SLOT_MIN_BYTES: usize = 2;

impl Catalog {
    /// Returns the catalog of a container without chunks.
    pub fn new(container: ContainerId) -> Catalog {
        Catalog { container, frames: Vec::new(), slots: Vec::new(), homes: None }
    }

    /// Appends the next frame.
    pub(crate) fn push(&mut self, frame: Frame, slots: &[Slot]) {
        debug_assert_eq!((frame.number as usize, frame.first_slot as usize), (self.frames.len(), self.slots.len()));
        self.frames.push(frame);
        self.slots.extend_from_slice(slots);
    }

    /// Returns the chunks of a frame of this catalog.
    pub fn slots_of(&self, frame: &Frame) -> &[Slot] {
        let first = (frame.first_slot as usize).min(self.slots.len());
        let end = (first + frame.slots as usize).min(self.slots.len());
        &self.slots[first..end]
    }

    /// Returns where the last frame ends in the file.
    pub fn end_bytes(&self) -> u64 {
        self.frames.iter().map(Frame::end_bytes).max().unwrap_or(HEADER_BYTES as u64)
    }

    /// Returns the address of the chunk in a slot of this catalog: its home.
    pub fn address(&self, slot: usize) -> Address {
        let home = self.homes.as_ref().and_then(|homes| homes.address(slot));
        home.unwrap_or_else(|| Address::new(self.container, slot as u16))
    }

    /// Returns the slot of the chunk with this address: its place in this catalog.
    pub fn position(&self, address: Address) -> Option<usize> {
        match &self.homes {
            Some(homes) => homes.position(address),
            None => Some(usize::from(address.slot())).filter(|slot| address.container() == self.container && *slot < self.slots.len()),
        }
    }

    /// Returns the origins of the chunks.
    pub fn origins(&self) -> impl Iterator<Item = Origin> {
        self.home_containers().iter().map(|home| Origin::from(*home))
    }

    /// Returns the containers that the addresses of the chunks name, ascending. For a merged container they are those
    /// of the homes.
    pub fn home_containers(&self) -> &[ContainerId] {
        self.homes.as_ref().map_or(std::slice::from_ref(&self.container), Homes::containers)
    }

    /// Returns its bytes in memory, for caches.
    pub fn memory_bytes(&self) -> usize {
        let homes = self.homes.as_ref().map_or(0, Homes::memory_bytes);
        size_of::<Catalog>() + self.frames.capacity() * size_of::<Frame>() + self.slots.capacity() * size_of::<Slot>() + homes
    }

    /// Appends the encoding (5.2; with homes 5.7).
    pub fn encode(&self, digest_bytes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.container.bits().to_le_bytes());
        put_varint(out, self.frames.len() as u64);
        for frame in &self.frames {
            encode_frame(frame, self.slots_of(frame), digest_bytes, out);
        }
        if let Some(homes) = &self.homes {
            homes.encode(out);
        }
    }

    /// Reads a catalog (5.2). Leaves what follows it in the reader.
    pub fn decode(reader: &mut Reader<'_>, digest_bytes: usize) -> Result<Catalog, WireError> {
        let mut catalog = Catalog::new(decode_container(reader)?);
        let offset_bytes = reader.position();
        let count = reader.count("frames", FRAME_MIN_BYTES)?;
        if count > MAX_FRAMES {
            return Err(WireError::OutOfRange { what: "frames", value: count as u64, offset_bytes });
        }
        catalog.frames.reserve_exact(count);
        for number in 0..count {
            let offset_bytes = reader.position();
            let (frame, slots) = decode_frame(reader, digest_bytes)?;
            if frame.number as usize != number || frame.first_slot as usize != catalog.slots.len() {
                return Err(WireError::OutOfRange { what: "frame number", value: u64::from(frame.number), offset_bytes });
            }
            catalog.push(frame, &slots);
        }
        // It may be kept for long.
        catalog.slots.shrink_to_fit();
        Ok(catalog)
    }

    /// Reads the catalog of a merged container (5.7).
    pub fn decode_merged(reader: &mut Reader<'_>, digest_bytes: usize) -> Result<Catalog, WireError> {
        let mut catalog = Catalog::decode(reader, digest_bytes)?;
        catalog.homes = Some(Homes::decode(reader, catalog.container, catalog.slots.len())?);
        Ok(catalog)
    }
}

/// Appends a frame with its slots (5.3, without the container).
pub(crate) fn encode_frame(frame: &Frame, slots: &[Slot], digest_bytes: usize, out: &mut Vec<u8>) {
    put_varint(out, u64::from(frame.number));
    put_varint(out, u64::from(frame.first_slot));
    out.extend_from_slice(&frame.offset_bytes.to_le_bytes());
    out.extend_from_slice(&frame.stored_bytes.to_le_bytes());
    out.extend_from_slice(&frame.raw_bytes.to_le_bytes());
    out.push(frame.codec as u8);
    out.push(0);
    out.extend_from_slice(&frame.checksum.to_le_bytes());
    encode_slots(slots, digest_bytes, out);
}

/// Reads a frame with its slots (5.3, without the container).
pub(crate) fn decode_frame(reader: &mut Reader<'_>, digest_bytes: usize) -> Result<(Frame, Vec<Slot>), WireError> {
    let start = reader.position();
    let out_of_range = |what, value: u64| WireError::OutOfRange { what, value, offset_bytes: start };
    let number = reader.varint_to("frame number", MAX_FRAMES as u64 - 1)? as u32;
    let first_slot = reader.varint_to("first slot", MAX_SLOTS as u64)? as u32;
    let (offset_bytes, stored_bytes, raw_bytes) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let (codec, flags, checksum) = (reader.u8()?, reader.u8()?, reader.u64()?);
    let codec = Codec::from_number(codec).ok_or(out_of_range("codec", u64::from(codec)))?;
    if flags != 0 {
        // Encrypted frames (flag 1) do not exist in version 1.
        return Err(out_of_range("frame flags", u64::from(flags)));
    }
    let slots = decode_slots(reader, number, first_slot, 0, digest_bytes)?;
    let sum: u64 = slots.iter().map(|slot| u64::from(slot.length_bytes)).sum();
    if u64::from(raw_bytes) != sum || sum > MAX_FRAME_BYTES as u64 {
        return Err(out_of_range("raw length", u64::from(raw_bytes)));
    }
    if stored_bytes > raw_bytes || (codec == Codec::Plain && stored_bytes != raw_bytes) {
        return Err(out_of_range("stored length", u64::from(stored_bytes)));
    }
    let frame = Frame { number, first_slot, slots: slots.len() as u32, offset_bytes, stored_bytes, raw_bytes, codec, checksum };
    if (offset_bytes as usize) < HEADER_BYTES || frame.end_bytes() > u64::from(u32::MAX) {
        return Err(out_of_range("frame offset", u64::from(offset_bytes)));
    }
    Ok((frame, slots))
}

/// Appends a count and the slots.
pub(crate) fn encode_slots(slots: &[Slot], digest_bytes: usize, out: &mut Vec<u8>) {
    put_varint(out, slots.len() as u64);
    for slot in slots {
        out.extend_from_slice(slot.fingerprint.digest(digest_bytes));
        out.push(slot.kind as u8);
        put_varint(out, u64::from(slot.length_bytes));
    }
}

/// Reads a count and the slots of frame `frame`. The first of them is `first_slot`, and begins at `start_bytes` of the
/// raw frame.
pub(crate) fn decode_slots(
    reader: &mut Reader<'_>,
    frame: u32,
    first_slot: u32,
    start_bytes: u32,
    digest_bytes: usize,
) -> Result<Vec<Slot>, WireError> {
    let offset_bytes = reader.position();
    let count = reader.count("slots", digest_bytes + SLOT_MIN_BYTES)?;
    if first_slot as usize + count > MAX_SLOTS {
        return Err(WireError::OutOfRange { what: "slots", value: count as u64, offset_bytes });
    }
    let mut slots = Vec::with_capacity(count);
    let mut at = start_bytes;
    for _ in 0..count {
        let offset_bytes = reader.position();
        let fingerprint = Fingerprint::from_digest(reader.take(digest_bytes)?);
        let kind = reader.u8()?;
        let kind =
            ChunkKind::from_number(kind).ok_or(WireError::OutOfRange { what: "chunk kind", value: u64::from(kind), offset_bytes })?;
        let length = reader.varint_to("chunk length", MAX_CHUNK_BYTES as u64)? as u32;
        slots.push(Slot { fingerprint, kind, frame: frame as u16, offset_bytes: at, length_bytes: length });
        at += length;
        if at as usize > MAX_FRAME_BYTES {
            return Err(WireError::OutOfRange { what: "frame length", value: u64::from(at), offset_bytes });
        }
    }
    Ok(slots)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn catalog() -> impl Strategy<Value = Catalog> {
        let chunk = (any::<[u8; 32]>(), 0..3u8, 0..20_000u32);
        let frame = (proptest::collection::vec(chunk, 0..6), any::<u64>(), 0..5u8, 64..1u32 << 30);
        proptest::collection::vec(frame, 0..6).prop_map(|frames| {
            let mut catalog = Catalog::new(ContainerId::new(3, 77));
            for (number, (chunks, checksum, codec, offset_bytes)) in frames.into_iter().enumerate() {
                let mut slots = Vec::new();
                let mut raw_bytes = 0;
                for (digest, kind, length_bytes) in chunks {
                    slots.push(Slot {
                        fingerprint: Fingerprint::from_digest(&digest),
                        kind: ChunkKind::from_number(kind).unwrap(),
                        frame: number as u16,
                        offset_bytes: raw_bytes,
                        length_bytes,
                    });
                    raw_bytes += length_bytes;
                }
                let codec = Codec::from_number(codec).unwrap();
                let frame = Frame {
                    number: number as u32,
                    first_slot: catalog.slots.len() as u32,
                    slots: slots.len() as u32,
                    offset_bytes,
                    stored_bytes: if codec == Codec::Plain { raw_bytes } else { raw_bytes / 2 },
                    raw_bytes,
                    codec,
                    checksum,
                };
                catalog.push(frame, &slots);
            }
            catalog
        })
    }

    proptest! {
        #[test]
        fn m0_12_a_catalog_is_read_as_written(catalog in catalog()) {
            let mut bytes = Vec::new();
            catalog.encode(32, &mut bytes);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(Catalog::decode(&mut reader, 32).unwrap(), catalog);
            reader.end().unwrap();
        }

        #[test]
        fn m0_20_a_merged_catalog_is_read_as_written(
            (mut catalog, homes) in catalog().prop_flat_map(|catalog| {
                let slots = catalog.slots.len();
                (Just(catalog), crate::containers::homes::tests::homes(slots))
            }),
            damage: (usize, u8),
        ) {
            catalog.homes = Some(homes);
            let mut bytes = Vec::new();
            catalog.encode(32, &mut bytes);
            let mut reader = Reader::new(&bytes);
            let read = Catalog::decode_merged(&mut reader, 32).unwrap();
            reader.end().unwrap();
            prop_assert_eq!(&read, &catalog);
            for slot in 0..read.slots.len() {
                prop_assert_eq!(read.position(read.address(slot)), Some(slot));
                prop_assert!(read.find(read.address(slot), &read.slots[slot].fingerprint).is_ok());
                prop_assert!(read.find(Address::new(read.container, slot as u16), &read.slots[slot].fingerprint).is_err());
            }
            let at = damage.0 % bytes.len();
            bytes[at] = damage.1;
            if let Ok(read) = Catalog::decode_merged(&mut Reader::new(&bytes), 32) {
                prop_assert!((0..read.slots.len()).all(|slot| read.position(read.address(slot)) == Some(slot)));
            }
        }

        #[test]
        fn a_damaged_catalog_is_refused_or_keeps_its_invariants(catalog in catalog(), at: usize, bit in 0..8u8) {
            let mut bytes = Vec::new();
            catalog.encode(20, &mut bytes);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            if let Ok(read) = Catalog::decode(&mut Reader::new(&bytes), 20) {
                for frame in &read.frames {
                    prop_assert_eq!(read.slots_of(frame).len(), frame.slots as usize);
                }
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Catalog::decode(&mut Reader::new(&bytes), 32);
        }
    }
}
