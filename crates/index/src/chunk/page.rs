//! One page of the chunk index: 4096 bytes with a sorted run of entries (`docs/format.md` section 6).
//!
//! Invariants:
//! * Entries ascend strictly by fingerprint.
//! * A page is written only as a whole and with its checksum, so a page that decodes is a page that was written.
//! * Two pages `2j` and `2j + 1` are a *pair*: together they hold the entries of both in order. A full page spills into
//!   the other (largest of the left, smallest of the right). Its flag [`FLAG_SPILLS`] says so.
//! * If one page of a pair spills, both are written together, with the same position. Two pages of such a pair with
//!   different positions are not of one moment.

use super::IndexEntry;
pub use crate::paged::PAGE_BYTES;
use crate::paged::{u32_at, u64_at};
use onefold_fingerprint::Fingerprint;
use onefold_ground::checksum;

/// Bytes of a page before its entries.
pub const PAGE_HEADER_BYTES: usize = 32;
/// Bytes of an entry without its digest: address and count.
const ENTRY_VALUE_BYTES: usize = 12;
/// Page flag: some entries of this page are in its neighbour.
pub const FLAG_SPILLS: u16 = 1;

const CHECKSUM_OFFSET: usize = 24;
/// The processor's memory transfer unit.
const CACHE_LINE_BYTES: usize = 64;

/// Returns how many entries fit into a page.
pub const fn page_capacity(digest_bytes: usize) -> usize {
    (PAGE_BYTES - PAGE_HEADER_BYTES) / (digest_bytes + ENTRY_VALUE_BYTES)
}

/// The identity of a page. A page read from anywhere else does not match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number within the partition.
    pub page: u32,
    /// Generation of the file.
    pub generation: u32,
    /// Bytes of a digest, 16 to 32.
    pub digest_bytes: usize,
}

/// An entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The chunk.
    pub fingerprint: Fingerprint,
    /// Its address and count.
    pub value: IndexEntry,
}

/// Why bytes are not the expected page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageDamage {
    /// They do not have the size of a page.
    #[error("{0} bytes are not a page")]
    Length(usize),
    /// The bytes are not those that were written.
    #[error("its checksum is {stored:016x}, but its bytes have checksum {computed:016x}")]
    Checksum {
        /// The checksum in the page.
        stored: u64,
        /// The checksum of its bytes.
        computed: u64,
    },
    /// An intact page, but another one.
    #[error("it is page {page} of generation {generation} instead")]
    Misplaced {
        /// Its number.
        page: u32,
        /// Its generation.
        generation: u32,
    },
    /// More entries than fit into a page.
    #[error("{0} entries do not fit in a page")]
    Entries(usize),
    /// Entries out of order.
    #[error("entry {0} is not above the previous entry")]
    Order(usize),
    /// An entry that belongs elsewhere.
    #[error("entry {entry} belongs in page {home}")]
    Foreign {
        /// Its number within the page.
        entry: usize,
        /// Its home page.
        home: u32,
    },
    /// The page claims a position that its partition has not reached.
    #[error("it has applied the log up to {position}, but its partition only up to {limit}")]
    Ahead {
        /// The page's position.
        position: u64,
        /// The limit from the header.
        limit: u64,
    },
}

/// A page that was read and found intact.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    bytes: &'a [u8],
    entries: usize,
    entry_bytes: usize,
}

impl<'a> Page<'a> {
    /// Checks length, checksum, place and number of entries. It does not check the order, since the checksum vouches
    /// for it ([`Page::check_order`]).
    pub fn decode(bytes: &'a [u8], place: Place) -> Result<Page<'a>, PageDamage> {
        if bytes.len() != PAGE_BYTES || !(16..=32).contains(&place.digest_bytes) {
            return Err(PageDamage::Length(bytes.len()));
        }
        let (stored, computed) = (u64_at(bytes, CHECKSUM_OFFSET), page_checksum(bytes));
        if stored != computed {
            return Err(PageDamage::Checksum { stored, computed });
        }
        let (page, generation) = (u32_at(bytes, 8), u32_at(bytes, 16));
        if page != place.page || generation != place.generation {
            return Err(PageDamage::Misplaced { page, generation });
        }
        let entries = usize::from(u16_at(bytes, 12));
        if entries > page_capacity(place.digest_bytes) {
            return Err(PageDamage::Entries(entries));
        }
        Ok(Page { bytes, entries, entry_bytes: place.digest_bytes + ENTRY_VALUE_BYTES })
    }

    /// Wraps bytes that [`Page::decode`] has already verified.
    pub fn of_verified(bytes: &'a [u8; PAGE_BYTES], digest_bytes: usize) -> Page<'a> {
        let entries = usize::from(u16_at(bytes, 12)).min(page_capacity(digest_bytes));
        Page { bytes, entries, entry_bytes: digest_bytes + ENTRY_VALUE_BYTES }
    }

    /// Returns its generation.
    pub fn generation(&self) -> u32 {
        u32_at(self.bytes, 16)
    }

    /// Returns the log position up to which the page is applied.
    pub fn position(&self) -> u64 {
        u64_at(self.bytes, 0)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Returns whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns whether some entries of this page are in its neighbour.
    pub fn spills(&self) -> bool {
        u16_at(self.bytes, 14) & FLAG_SPILLS != 0
    }

    /// Returns the digest of entry `number`, which is below [`Page::len`].
    pub fn digest(&self, number: usize) -> &'a [u8] {
        let start = PAGE_HEADER_BYTES + number * self.entry_bytes;
        &self.bytes[start..start + self.entry_bytes - ENTRY_VALUE_BYTES]
    }

    /// Returns entry `number`, which is below [`Page::len`].
    pub fn entry(&self, number: usize) -> Entry {
        Entry { fingerprint: Fingerprint::from_digest(self.digest(number)), value: self.value(number) }
    }

    /// Returns all entries, ascending.
    pub fn entries(self) -> impl Iterator<Item = Entry> + 'a {
        (0..self.entries).map(move |number| self.entry(number))
    }

    /// Finds an entry in place. `fraction` says where among the page's entries it should be, in units of 2^-64.
    /// Fingerprints are uniform, so the search starts only a few entries away from it.
    pub fn find(&self, fingerprint: &Fingerprint, fraction: u64) -> Option<IndexEntry> {
        let wanted = fingerprint.prefix();
        let mut at = self.likely(fraction);
        while at > 0 && self.prefix(at - 1) >= wanted {
            at -= 1;
        }
        while at < self.entries && self.prefix(at) < wanted {
            at += 1;
        }
        let digest = fingerprint.digest(self.entry_bytes - ENTRY_VALUE_BYTES);
        while at < self.entries && self.prefix(at) == wanted {
            if self.digest(at) == digest {
                return Some(self.value(at));
            }
            at += 1;
        }
        None
    }

    /// Reads a byte of each part of the page that [`Page::find`] needs first. A caller touches many pages this way, so
    /// that the processor waits for all of their memory at once.
    pub fn touch(&self, fraction: u64) -> u8 {
        let likely = PAGE_HEADER_BYTES + self.likely(fraction) * self.entry_bytes;
        let places = [likely.saturating_sub(CACHE_LINE_BYTES), likely, likely + CACHE_LINE_BYTES, likely + 2 * CACHE_LINE_BYTES];
        places.into_iter().fold(0, |sum, place| sum ^ self.bytes[place.min(PAGE_BYTES - 1)])
    }

    /// Returns where the search for a fingerprint at this fraction of the page starts.
    fn likely(&self, fraction: u64) -> usize {
        ((u128::from(fraction) * self.entries as u128) >> 64) as usize
    }

    /// Returns the first 64 bits of entry `number`'s digest, like [`Fingerprint::prefix`].
    fn prefix(&self, number: usize) -> u64 {
        let start = PAGE_HEADER_BYTES + number * self.entry_bytes;
        u64::from_be_bytes(self.bytes[start..start + 8].try_into().expect("eight bytes"))
    }

    /// Checks that entries ascend.
    pub fn check_order(&self) -> Result<(), PageDamage> {
        match (1..self.entries).find(|number| self.digest(number - 1) >= self.digest(*number)) {
            Some(number) => Err(PageDamage::Order(number)),
            None => Ok(()),
        }
    }

    /// Returns the count of entry `number`, which is below [`Page::len`].
    pub fn count(&self, number: usize) -> u32 {
        u32_at(self.bytes, PAGE_HEADER_BYTES + (number + 1) * self.entry_bytes - 4)
    }

    fn value(&self, number: usize) -> IndexEntry {
        let start = PAGE_HEADER_BYTES + number * self.entry_bytes + self.entry_bytes - ENTRY_VALUE_BYTES;
        IndexEntry { address: u64_at(self.bytes, start), count: u32_at(self.bytes, start + 8) }
    }
}

/// Appends the page of `entries`. They ascend, and there are at most [`page_capacity`].
pub fn encode_page(out: &mut Vec<u8>, place: Place, position: u64, flags: u16, entries: &[Entry]) {
    assert!(entries.len() <= page_capacity(place.digest_bytes), "the caller lays out pages that fit");
    debug_assert!(entries.windows(2).all(|two| two[0].fingerprint < two[1].fingerprint));
    let start = out.len();
    out.extend_from_slice(&position.to_le_bytes());
    out.extend_from_slice(&place.page.to_le_bytes());
    out.extend_from_slice(&(entries.len() as u16).to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&place.generation.to_le_bytes());
    out.extend_from_slice(&[0; PAGE_HEADER_BYTES - 20]);
    for entry in entries {
        out.extend_from_slice(entry.fingerprint.digest(place.digest_bytes));
        out.extend_from_slice(&entry.value.address.to_le_bytes());
        out.extend_from_slice(&entry.value.count.to_le_bytes());
    }
    out.resize(start + PAGE_BYTES, 0);
    let checksum = page_checksum(&out[start..]);
    out[start + CHECKSUM_OFFSET..start + CHECKSUM_OFFSET + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// How the sorted entries of a pair are split over its two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLayout {
    /// Number of entries in the left page. The rest are in the right one.
    pub left_entries: usize,
    /// Flags of the left page.
    pub left_flags: u16,
    /// Flags of the right page.
    pub right_flags: u16,
}

impl PairLayout {
    /// Lays out `left` entries with the left page as home and `right` with the right one. `None`: they do not fit.
    pub fn of(left: usize, right: usize, capacity: usize) -> Option<PairLayout> {
        if left + right > 2 * capacity {
            None
        } else if left > capacity {
            Some(PairLayout { left_entries: capacity, left_flags: FLAG_SPILLS, right_flags: 0 })
        } else if right > capacity {
            Some(PairLayout { left_entries: left + right - capacity, left_flags: 0, right_flags: FLAG_SPILLS })
        } else {
            Some(PairLayout { left_entries: left, left_flags: 0, right_flags: 0 })
        }
    }
}

/// Computes the checksum of the page, with the checksum field zero.
fn page_checksum(bytes: &[u8]) -> u64 {
    let mut copy = [0; PAGE_BYTES];
    copy.copy_from_slice(bytes);
    copy[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 8].fill(0);
    checksum(&copy)
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes[offset..offset + 2].try_into().expect("two bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place { page: 7, generation: 3, digest_bytes: 32 };

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        proptest::collection::btree_map(any::<[u8; 32]>(), any::<(u64, u32)>(), 0..=page_capacity(32)).prop_map(|map| {
            map.into_iter()
                .map(|(digest, (address, count))| Entry {
                    fingerprint: Fingerprint::from_digest(&digest),
                    value: IndexEntry { address, count },
                })
                .collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn m0_13_a_page_is_read_as_written(entries in entries(), position: u64, flags in 0..2u16, anywhere: u64) {
            let mut bytes = Vec::new();
            encode_page(&mut bytes, PLACE, position, flags, &entries);
            prop_assert_eq!(bytes.len(), PAGE_BYTES);
            let page = Page::decode(&bytes, PLACE).unwrap();
            page.check_order().unwrap();
            prop_assert_eq!((page.position(), page.spills()), (position, flags == 1));
            prop_assert_eq!(page.entries().collect::<Vec<_>>(), entries.clone());
            for entry in &entries {
                for fraction in [0, entry.fingerprint.prefix(), anywhere, u64::MAX] {
                    prop_assert_eq!(page.find(&entry.fingerprint, fraction), Some(entry.value));
                    page.touch(fraction);
                }
            }
            for fraction in [0, anywhere, u64::MAX] {
                prop_assert_eq!(page.find(&Fingerprint::from_digest(&[0x55; 32]), fraction), None);
            }
            prop_assert_eq!(Page::of_verified(bytes.as_slice().try_into().unwrap(), 32).len(), page.len());
        }

        #[test]
        fn a_page_with_any_byte_changed_is_refused(entries in entries(), at in 0..PAGE_BYTES, change in 1..=255u8) {
            let mut bytes = Vec::new();
            encode_page(&mut bytes, PLACE, 5, 0, &entries);
            bytes[at] ^= change;
            prop_assert!(Page::decode(&bytes, PLACE).is_err());
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>, digest_bytes in 0..64usize) {
            let place = Place { digest_bytes, ..PLACE };
            prop_assert!(Page::decode(&bytes, place).is_err());
        }

        #[test]
        fn a_pair_holds_all_of_its_entries(left in 0..300usize, right in 0..300usize) {
            let capacity = page_capacity(20);
            match PairLayout::of(left, right, capacity) {
                None => prop_assert!(left + right > 2 * capacity),
                Some(layout) => {
                    prop_assert!(layout.left_entries <= capacity && left + right - layout.left_entries <= capacity);
                    prop_assert_eq!(layout.left_flags == FLAG_SPILLS, layout.left_entries < left);
                    prop_assert_eq!(layout.right_flags == FLAG_SPILLS, layout.left_entries > left);
                }
            }
        }
    }

    #[test]
    fn entries_that_begin_alike_are_told_apart() {
        let entries: Vec<Entry> = (0..page_capacity(32) as u8)
            .map(|number| {
                let mut digest = [7; 32];
                digest[31] = number;
                Entry { fingerprint: Fingerprint::from_digest(&digest), value: IndexEntry { address: number.into(), count: 1 } }
            })
            .collect();
        let mut bytes = Vec::new();
        encode_page(&mut bytes, PLACE, 5, 0, &entries);
        let page = Page::decode(&bytes, PLACE).unwrap();
        for entry in &entries {
            assert_eq!(page.find(&entry.fingerprint, 1 << 63), Some(entry.value));
        }
    }

    #[test]
    fn another_page_is_not_taken_for_this_one() {
        let mut bytes = Vec::new();
        encode_page(&mut bytes, PLACE, 5, 0, &[]);
        assert_eq!(Page::decode(&bytes, Place { page: 8, ..PLACE }).unwrap_err(), PageDamage::Misplaced { page: 7, generation: 3 });
        assert!(Page::decode(&bytes, Place { generation: 4, ..PLACE }).is_err());
    }
}
