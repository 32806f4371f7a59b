//! The pages of the linked index, and the records in them (`docs/format.md` section 6.2).
//!
//! Every page begins with its checksum and its own place. So a page that decodes is a page that was written, and it was
//! written there. Then come records of one size, which do not cross pages.
//!
//! A slot of the hash table has 25 bytes as in the paper: block, `next`, `family` and a status. The status has four
//! bits left, and they hold a tag of the fingerprint. The big tag has four bytes more. The paper fills the record up to
//! 32 bytes. With 36 bits one in 2^36 comparisons reads the area in vain, so three bytes more would buy nothing.
//!
//! Blocks and slots have 44 bits. What is left of `block` and `next` holds the *route*: the bits of the fingerprint
//! that become a part of the home when the table doubles. So growth moves a record without a read of the area, which
//! would be one of a page anywhere (M1.13).

use super::{Dia, LinkedShape, Tag};
use crate::paged::{PAGE_BYTES, PageNumber, u32_at, u64_at};
use onefold_fingerprint::Fingerprint;
use onefold_ground::checksum;
use std::fmt;

/// Bytes of a page before its records: checksum and place.
pub const HEAD_BYTES: usize = 16;
/// Units of blocks in a page of counts.
pub const UNITS_PER_PAGE: u64 = ((PAGE_BYTES - HEAD_BYTES) / 4) as u64;

const OCCUPIED: u8 = 1;
const STRANGER: u8 = 2;
const HAS_NEXT: u8 = 4;
const HAS_FAMILY: u8 = 8;
const TAG_SHIFT: u32 = 4;
/// Bytes of a slot without tag, fingerprint, count and note.
const SLOT_BYTES: usize = 25;
/// In the block number: the chunk cannot be read any more.
const LOST: u64 = 1 << 63;
/// In the block number: the sweep has brought this record to its target before its turn.
const EARLY: u64 = 1 << 62;
/// Blocks and slots have so many bits.
const LINK_BITS: u32 = 44;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;
/// The route has the bits of a fingerprint from this one on, up to [`LINK_BITS`].
const ROUTE_FROM: u32 = 6;
/// So many of them are in the block number, the others in `next`.
const ROUTE_IN_BLOCK: u32 = 62 - LINK_BITS;

/// A file of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PagedFile {
    /// The deduplication information area.
    Blocks,
    /// How many blocks of each unit are used.
    Units,
    /// The hash table of a generation.
    Slots(u8),
}

impl fmt::Display for PagedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PagedFile::Blocks => formatter.write_str("blocks"),
            PagedFile::Units => formatter.write_str("units"),
            PagedFile::Slots(generation) => write!(formatter, "slots-{generation:08}"),
        }
    }
}

/// The place of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// Its file.
    pub file: PagedFile,
    /// Its number in the file.
    pub number: u64,
}

impl PageId {
    /// Returns where the page starts in its file.
    pub fn offset(self) -> u64 {
        self.number * PAGE_BYTES as u64
    }

    /// Returns the place as a page and a journal have it: the file in the highest byte, then the number.
    fn to_bits(self) -> u64 {
        let file = match self.file {
            PagedFile::Blocks => 0,
            PagedFile::Units => 1,
            PagedFile::Slots(generation) => 2 + u64::from(generation),
        };
        file << 56 | self.number
    }
}

impl PageNumber for PageId {
    const BYTES: usize = 8;

    fn put(self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_bits().to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Option<PageId> {
        let bits = u64_at(bytes, 0);
        let file = match bits >> 56 {
            0 => PagedFile::Blocks,
            1 => PagedFile::Units,
            file => PagedFile::Slots((file - 2) as u8),
        };
        Some(PageId { file, number: bits & ((1 << 56) - 1) })
    }

    fn is_before(self, next: PageId) -> bool {
        self.file == next.file && self.number + 1 == next.number
    }
}

/// Why bytes are not the expected page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageDamage {
    /// The bytes are not those that were written.
    #[error("its checksum is {stored:016x}, but its bytes have checksum {computed:016x}")]
    Checksum {
        /// The checksum in the page.
        stored: u64,
        /// The checksum of its bytes.
        computed: u64,
    },
    /// An intact page, but another one.
    #[error("it is the page of place {found:016x}, not {expected:016x}")]
    Misplaced {
        /// The place in the page.
        found: u64,
        /// Where it was read.
        expected: u64,
    },
}

/// Checks that bytes are this page.
pub fn check_page(bytes: &[u8; PAGE_BYTES], id: PageId) -> Result<(), PageDamage> {
    let (stored, computed) = (u64_at(bytes, 0), checksum(&bytes[8..]));
    if stored != computed {
        return Err(PageDamage::Checksum { stored, computed });
    }
    let (found, expected) = (u64_at(bytes, 8), id.to_bits());
    if found == expected { Ok(()) } else { Err(PageDamage::Misplaced { found, expected }) }
}

/// Completes the head of a page.
pub fn seal_page(bytes: &mut [u8], id: PageId) {
    bytes[8..16].copy_from_slice(&id.to_bits().to_le_bytes());
    let sum = checksum(&bytes[8..PAGE_BYTES]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
}

/// What occupies a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occupant {
    /// Nothing.
    #[default]
    Free,
    /// A record whose home the slot is.
    Own,
    /// A record of another family.
    Stranger,
}

/// A slot of the hash table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What occupies it. If nothing does, only `family` means anything.
    pub occupant: Occupant,
    /// The block of the record.
    pub block: u64,
    /// The chunk cannot be read any more. Its block and count stay.
    pub is_lost: bool,
    /// The sweep under way has already brought the record to its target, before its turn.
    pub is_early: bool,
    /// The next record of the same family.
    pub next: Option<u64>,
    /// The first record of the family whose home this slot is, if that record is elsewhere.
    pub family: Option<u64>,
    /// Bits of the fingerprint that the home does not use.
    pub tag: u64,
    /// Bits of the fingerprint that the homes of greater tables use.
    pub route: u64,
    /// The record's entry, if the area is slim.
    pub inside: Named,
}

/// A record is in a family that its fingerprint does not belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnotherHome;

/// A fingerprint and what is counted and noted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The fingerprint.
    pub fingerprint: Fingerprint,
    /// Number of references.
    pub count: u32,
    /// The caller's 24 bits.
    pub note: u32,
}

impl Default for Named {
    fn default() -> Named {
        Named { fingerprint: Fingerprint::from_digest(&[]), count: 0, note: 0 }
    }
}

impl Slot {
    /// Returns a free slot.
    pub fn free(family: Option<u64>) -> Slot {
        let inside = Named::default();
        Slot { occupant: Occupant::Free, block: 0, is_lost: false, is_early: false, next: None, family, tag: 0, route: 0, inside }
    }

    /// Returns the home of the record in a table with one bit more than `bits`, where its home is `home`. `None`: only
    /// the fingerprint says it, as the table is so small. Errors: the record has another home.
    pub fn next_home(&self, bits: u32, home: u64) -> Result<Option<u64>, AnotherHome> {
        if !(ROUTE_FROM..LINK_BITS).contains(&bits) {
            return Ok(None);
        }
        let taken = bits - ROUTE_FROM;
        if self.route >> (LINK_BITS - bits) != home & ((1 << taken) - 1) {
            return Err(AnotherHome);
        }
        Ok(Some(home << 1 | self.route >> (LINK_BITS - bits - 1) & 1))
    }
}

/// Where a record of the hash table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlink {
    /// The generation of its table.
    pub generation: u8,
    /// Its slot.
    pub slot: u64,
}

/// A record of the area: one of two kinds (M1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaRecord {
    /// *Large*: the entry itself.
    Named(Named),
    /// *Slim*: where the entry is.
    Backlink(Backlink),
}

/// The sizes of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a digest.
    pub digest_bytes: usize,
    /// The kind of tag.
    pub tag: Tag,
    /// The kind of area.
    pub dia: Dia,
}

impl Layout {
    /// Returns the layout of an index.
    pub fn of(shape: &LinkedShape) -> Layout {
        Layout { digest_bytes: shape.digest_bytes, tag: shape.tag, dia: shape.dia }
    }

    /// Returns the bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        SLOT_BYTES + self.tag_bytes() + if self.dia == Dia::Slim { self.named_bytes() } else { 0 }
    }

    /// Returns the bytes of a record of the area.
    pub fn area_bytes(&self) -> usize {
        if self.dia == Dia::Slim { 8 } else { self.named_bytes() }
    }

    /// Returns how many slots a page has.
    pub fn slots_per_page(&self) -> u64 {
        ((PAGE_BYTES - HEAD_BYTES) / self.slot_bytes()) as u64
    }

    /// Returns how many blocks a page of the area has.
    pub fn blocks_per_page(&self) -> u64 {
        ((PAGE_BYTES - HEAD_BYTES) / self.area_bytes()) as u64
    }

    fn tag_bytes(&self) -> usize {
        if self.tag == Tag::Big { 4 } else { 0 }
    }

    fn named_bytes(&self) -> usize {
        self.digest_bytes + 7
    }

    /// Returns the tag of a fingerprint. No home depends on these bits, so the tag stays when the table doubles.
    pub fn tag_of(&self, fingerprint: &Fingerprint) -> u64 {
        let bits = fingerprint.hash_bits();
        if self.tag == Tag::Big { bits & 0xf_ffff_ffff } else { bits & 0xf }
    }

    /// Returns the route of a fingerprint.
    pub fn route_of(fingerprint: &Fingerprint) -> u64 {
        fingerprint.prefix() << ROUTE_FROM >> (64 - LINK_BITS + ROUTE_FROM)
    }

    /// Returns the page of a slot, and the slot's place in it.
    pub fn slot_place(&self, generation: u8, slot: u64) -> (PageId, usize) {
        let (number, at) = (slot / self.slots_per_page(), slot % self.slots_per_page());
        (PageId { file: PagedFile::Slots(generation), number }, HEAD_BYTES + at as usize * self.slot_bytes())
    }

    /// Returns the page of a block's record, and the record's place in it.
    pub fn area_place(&self, block: u64) -> (PageId, usize) {
        let (number, at) = (block / self.blocks_per_page(), block % self.blocks_per_page());
        (PageId { file: PagedFile::Blocks, number }, HEAD_BYTES + at as usize * self.area_bytes())
    }

    /// Reads the slot at `place` of a page.
    pub fn slot(&self, page: &[u8], place: usize) -> Slot {
        let bytes = &page[place..place + self.slot_bytes()];
        let (block, status) = (u64_at(bytes, 0), bytes[24]);
        let link = |offset: usize, bit: u8| (status & bit != 0).then(|| u64_at(bytes, offset) & LINK_MASK);
        if status & OCCUPIED == 0 {
            return Slot::free(link(16, HAS_FAMILY));
        }
        let big = if self.tag == Tag::Big { u64::from(u32_at(bytes, SLOT_BYTES)) } else { 0 };
        Slot {
            occupant: if status & STRANGER == 0 { Occupant::Own } else { Occupant::Stranger },
            block: block & LINK_MASK,
            is_lost: block & LOST != 0,
            is_early: block & EARLY != 0,
            next: link(8, HAS_NEXT),
            family: link(16, HAS_FAMILY),
            tag: u64::from(status >> TAG_SHIFT) | big << 4,
            route: (u64_at(bytes, 8) >> LINK_BITS) << ROUTE_IN_BLOCK | (block & (EARLY - 1)) >> LINK_BITS,
            inside: if self.dia == Dia::Slim { self.named(&bytes[SLOT_BYTES + self.tag_bytes()..]) } else { Named::default() },
        }
    }

    /// Writes a slot to `place` of a page.
    pub fn put_slot(&self, page: &mut [u8], place: usize, slot: &Slot) {
        let bytes = &mut page[place..place + self.slot_bytes()];
        bytes.fill(0);
        let mut status = match slot.occupant {
            Occupant::Free => 0,
            Occupant::Own => OCCUPIED,
            Occupant::Stranger => OCCUPIED | STRANGER,
        };
        let links = [(8, HAS_NEXT, slot.next), (16, HAS_FAMILY, slot.family)];
        for (offset, bit, link) in links {
            if let Some(link) = link {
                status |= bit;
                bytes[offset..offset + 8].copy_from_slice(&link.to_le_bytes());
            }
        }
        if slot.occupant != Occupant::Free {
            let flags = if slot.is_lost { LOST } else { 0 } | if slot.is_early { EARLY } else { 0 };
            let in_block = (slot.route & ((1 << ROUTE_IN_BLOCK) - 1)) << LINK_BITS;
            bytes[..8].copy_from_slice(&(slot.block | flags | in_block).to_le_bytes());
            let next = slot.next.unwrap_or(0) | (slot.route >> ROUTE_IN_BLOCK) << LINK_BITS;
            bytes[8..16].copy_from_slice(&next.to_le_bytes());
            status |= (slot.tag as u8) << TAG_SHIFT;
            if self.tag == Tag::Big {
                bytes[SLOT_BYTES..SLOT_BYTES + 4].copy_from_slice(&((slot.tag >> 4) as u32).to_le_bytes());
            }
            if self.dia == Dia::Slim {
                self.put_named(&mut bytes[SLOT_BYTES + self.tag_bytes()..], &slot.inside);
            }
        }
        bytes[24] = status;
    }

    /// Reads the record at `place` of a page of the area. `None`: the block is free.
    pub fn area(&self, page: &[u8], place: usize) -> Option<AreaRecord> {
        let bytes = &page[place..place + self.area_bytes()];
        if bytes.iter().all(|byte| *byte == 0) {
            return None;
        }
        Some(match self.dia {
            Dia::Large => AreaRecord::Named(self.named(bytes)),
            Dia::Slim => {
                let bits = u64_at(bytes, 0);
                AreaRecord::Backlink(Backlink { generation: (bits >> 56) as u8, slot: (bits & ((1 << 56) - 1)).saturating_sub(1) })
            }
        })
    }

    /// Writes a record to `place` of a page of the area; `None`: the block is free.
    pub fn put_area(&self, page: &mut [u8], place: usize, record: Option<AreaRecord>) {
        let bytes = &mut page[place..place + self.area_bytes()];
        match record {
            None => bytes.fill(0),
            Some(AreaRecord::Named(named)) => self.put_named(bytes, &named),
            Some(AreaRecord::Backlink(Backlink { generation, slot })) => {
                bytes.copy_from_slice(&(u64::from(generation) << 56 | (slot + 1)).to_le_bytes());
            }
        }
    }

    fn named(&self, bytes: &[u8]) -> Named {
        let rest = &bytes[self.digest_bytes..];
        let note = u32::from_le_bytes([rest[4], rest[5], rest[6], 0]);
        Named { fingerprint: Fingerprint::from_digest(&bytes[..self.digest_bytes]), count: u32_at(rest, 0), note }
    }

    fn put_named(&self, bytes: &mut [u8], named: &Named) {
        let (digest, rest) = bytes.split_at_mut(self.digest_bytes);
        digest.copy_from_slice(named.fingerprint.digest(self.digest_bytes));
        rest[..4].copy_from_slice(&named.count.to_le_bytes());
        rest[4..7].copy_from_slice(&named.note.to_le_bytes()[..3]);
    }
}

/// Returns the page that counts the used blocks of a unit, and the count's place in it.
pub fn unit_place(unit: u64) -> (PageId, usize) {
    (PageId { file: PagedFile::Units, number: unit / UNITS_PER_PAGE }, HEAD_BYTES + (unit % UNITS_PER_PAGE) as usize * 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        (16..=32usize, any::<bool>(), any::<bool>()).prop_map(|(digest_bytes, big, slim)| Layout {
            digest_bytes,
            tag: if big { Tag::Big } else { Tag::Status },
            dia: if slim { Dia::Slim } else { Dia::Large },
        })
    }

    proptest! {
        #[test]
        fn m1_13_the_route_leads_to_the_home_in_the_next_table_and_to_no_other(prefix: u64, bits in 4..44u32, wrong: u64) {
            let mut digest = [7; 32];
            digest[..8].copy_from_slice(&prefix.to_be_bytes());
            let slot = Slot { route: Layout::route_of(&Fingerprint::from_digest(&digest)), ..Slot::free(None) };
            let home = |bits: u32| prefix >> (64 - bits);
            let expected = if bits < ROUTE_FROM { None } else { Some(home(bits + 1)) };
            prop_assert_eq!(slot.next_home(bits, home(bits)), Ok(expected));
            // The first bits are those of the home alone.
            let other = home(bits) ^ wrong & ((1 << bits.saturating_sub(ROUTE_FROM)) - 1);
            if other != home(bits) {
                prop_assert_eq!(slot.next_home(bits, other), Err(AnotherHome));
            }
        }
    }

    proptest! {
        #[test]
        fn m1_2_m1_5_records_are_read_as_written_and_touch_no_others(
            layout in layouts(), digest: [u8; 32], block in 0..1u64 << 44, flags: [bool; 2], links: [Option<u64>; 2],
            kind in 0..3, count: u32, note in 0..1u32 << 24, at in 0..50u64,
        ) {
            let fingerprint = Fingerprint::from_digest(&digest[..layout.digest_bytes]);
            let named = Named { fingerprint, count, note };
            let links = links.map(|link| link.map(|slot| slot & LINK_MASK));
            let occupied = Slot {
                occupant: if kind == 0 { Occupant::Own } else { Occupant::Stranger },
                block, is_lost: flags[0], is_early: flags[1], next: links[0], family: links[1], tag: layout.tag_of(&fingerprint),
                route: Layout::route_of(&fingerprint),
                inside: if layout.dia == Dia::Slim { named } else { Named::default() },
            };
            let slot = if kind == 2 { Slot::free(links[1]) } else { occupied };
            let mut page = vec![0x55; PAGE_BYTES];
            let (id, place) = layout.slot_place(3, at + 1000 * layout.slots_per_page());
            prop_assert_eq!(id.number, 1000 + at / layout.slots_per_page());
            layout.put_slot(&mut page, place, &slot);
            prop_assert_eq!(layout.slot(&page, place), slot);
            let is_within = |byte: usize| (place..place + layout.slot_bytes()).contains(&byte);
            prop_assert!((0..PAGE_BYTES).all(|byte| is_within(byte) || page[byte] == 0x55));
            let record = match layout.dia {
                Dia::Large => AreaRecord::Named(named),
                Dia::Slim => AreaRecord::Backlink(Backlink { generation: 7, slot: block }),
            };
            let (_, place) = layout.area_place(at);
            for record in [Some(record), None] {
                layout.put_area(&mut page, place, record);
                prop_assert_eq!(layout.area(&page, place), record);
            }
        }

        #[test]
        fn a_page_with_any_byte_changed_or_from_elsewhere_is_refused(at in 0..PAGE_BYTES, change in 1..=255u8, number in 0..1000u64) {
            let id = PageId { file: PagedFile::Slots(4), number };
            let mut page = [9; PAGE_BYTES];
            seal_page(&mut page, id);
            check_page(&page, id).unwrap();
            for other in [PageId { number: number + 1, ..id }, PageId { file: PagedFile::Blocks, number }] {
                prop_assert!(matches!(check_page(&page, other), Err(PageDamage::Misplaced { .. })), "{other:?}");
            }
            page[at] ^= change;
            prop_assert!(check_page(&page, id).is_err());
        }
    }

    #[test]
    fn m1_14_a_block_takes_52_bytes_with_the_status_tag_and_56_with_the_big_tag() {
        let bytes = |tag, dia| {
            let layout = Layout { digest_bytes: 20, tag, dia };
            layout.slot_bytes() + layout.area_bytes()
        };
        assert_eq!((bytes(Tag::Status, Dia::Large), bytes(Tag::Big, Dia::Large)), (52, 56));
        assert_eq!(bytes(Tag::Status, Dia::Slim), 60, "the paper says that it takes more");
    }
}
