//! Chunk-index partitions (`docs/format.md` section 6): page, header and journal. Any bytes are refused, or are a
//! structure that is the same when written and read again, and every entry of a page is found in it.

use onefold_ground::checksum;
use onefold_index::chunk::header::Header;
use onefold_index::chunk::journal::Journal;
use onefold_index::chunk::page::{Entry, PAGE_BYTES, Page, Place, encode_page};

const HEADER_CHECKED_BYTES: usize = 88;
const PAGE_CHECKSUM: usize = 24;
const JOURNAL_HEAD_BYTES: usize = 40;

/// The first byte chooses structure and length of digests; what follows is read as it.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let digest_bytes = if choice & 1 == 0 { 32 } else { 20 };
    match choice >> 1 & 3 {
        0 => header(bytes),
        1 => journal(bytes),
        _ => page(bytes, digest_bytes),
    }
}

fn page(bytes: &[u8], digest_bytes: usize) {
    let mut bytes = bytes.to_vec();
    bytes.resize(PAGE_BYTES, 0);
    // It is looked for where it says that it is.
    let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let place = Place { page: number(8), generation: number(16), digest_bytes };
    assert!(Page::decode(&bytes[..PAGE_BYTES - 1], place).is_err());
    let _ = Page::decode(&bytes, place);
    put_checksum(&mut bytes, PAGE_CHECKSUM);
    let elsewhere = Place { page: place.page ^ 1, ..place };
    assert!(Page::decode(&bytes, elsewhere).is_err());
    let Ok(page) = Page::decode(&bytes, place) else { return };
    let entries: Vec<Entry> = page.entries().collect();
    assert_eq!(entries.len(), page.len());
    if page.check_order().is_err() {
        // What is out of order may not be found, but is not invented either.
        entries.iter().for_each(|entry| {
            assert!(
                page.find(&entry.fingerprint, entry.fingerprint.hash_bits())
                    .is_none_or(|value| entries.iter().any(|other| other.value == value))
            )
        });
        return;
    }
    for entry in &entries {
        for fraction in [0, entry.fingerprint.prefix(), u64::MAX] {
            assert_eq!(page.find(&entry.fingerprint, fraction), Some(entry.value));
            page.touch(fraction);
        }
    }
    let mut again = Vec::new();
    encode_page(&mut again, place, page.position(), u16::from(page.spills()), &entries);
    let again = Page::decode(&again, place).expect("a page is read as written");
    assert_eq!((again.position(), again.spills()), (page.position(), page.spills()));
    assert!(again.entries().eq(entries));
}

fn header(bytes: &[u8]) {
    let mut repaired = bytes.to_vec();
    repaired.resize(HEADER_CHECKED_BYTES + 8, 0);
    let sum = checksum(&repaired[..HEADER_CHECKED_BYTES]);
    repaired[HEADER_CHECKED_BYTES..].copy_from_slice(&sum.to_le_bytes());
    for bytes in [bytes, &repaired] {
        if let Ok(header) = Header::decode(bytes) {
            assert!(header.end().is_power_of_two() && header.progress <= header.end() && header.moved_from <= header.end());
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
}

/// The bytes themselves, then a journal that they describe: its head, how many pages, their numbers and content.
fn journal(bytes: &[u8]) {
    let _ = Journal::decode(bytes);
    let Some((head, rest)) = bytes.split_at_checked(JOURNAL_HEAD_BYTES) else { return };
    let pages = usize::from(head[12]) % 4;
    let (numbers, content) = rest.split_at((4 * pages).min(rest.len()));
    let mut bytes = vec![0; PAGE_BYTES * (2 + pages)];
    bytes[..head.len()].copy_from_slice(head);
    bytes[PAGE_BYTES..PAGE_BYTES + numbers.len()].copy_from_slice(numbers);
    for (place, byte) in bytes[2 * PAGE_BYTES..].iter_mut().zip(content) {
        *place = *byte;
    }
    put_checksum(&mut bytes, JOURNAL_HEAD_BYTES);
    let Some(journal) = Journal::decode(&bytes) else { return };
    assert!(journal.pages().map(|(number, _)| number).is_sorted());
    let runs: Vec<u8> = journal.runs().flat_map(|(_, pages)| pages.to_vec()).collect();
    assert!(journal.pages().flat_map(|(_, page)| page).eq(&runs));
    let mut again = journal.clone();
    let again = Journal::decode(again.seal()).expect("a journal is read as written");
    assert_eq!(again.head, journal.head);
    assert!(again.pages().eq(journal.pages()));
}

/// Writes the checksum of all bytes, its own field zero, into this field.
fn put_checksum(bytes: &mut [u8], at: usize) {
    bytes[at..at + 8].fill(0);
    let sum = checksum(bytes);
    bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
}
