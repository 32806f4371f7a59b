//! The journal of a partition: the pages of the current sweep batch, or the last pages that growth moves
//! (`docs/format.md` section 6).

use crate::paged::{self, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"1FLDJRN1";
const VERSION: u32 = 2;
/// Highest number of pages in a journal: their numbers fill one block.
pub const MAX_JOURNAL_PAGES: usize = 1024;

/// What a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// Generation of the pages.
    pub generation: u32,
    /// Which of them had moved to the next generation. A journal is stale once more have moved.
    pub moved_from: u32,
    /// Whether these are the last pages that move, rather than those of a sweep.
    pub is_growth: bool,
    /// How many more entries these pages have than those they replace; may be negative.
    pub added_entries: i32,
    /// Target of the sweep.
    pub target: u64,
    /// Once this journal is applied, pages before this one are.
    pub progress: u64,
}

impl paged::JournalHead for JournalHead {
    type Number = u32;
    const MAGIC: &'static [u8; 8] = MAGIC;
    const VERSION: u32 = VERSION;
    const MOST_PAGES: usize = MAX_JOURNAL_PAGES;

    fn put(&self, block: &mut [u8]) {
        block[16..20].copy_from_slice(&self.generation.to_le_bytes());
        block[20..24].copy_from_slice(&self.added_entries.to_le_bytes());
        block[24..32].copy_from_slice(&self.target.to_le_bytes());
        block[32..40].copy_from_slice(&self.progress.to_le_bytes());
        block[48..52].copy_from_slice(&self.moved_from.to_le_bytes());
        block[52..56].copy_from_slice(&u32::from(self.is_growth).to_le_bytes());
    }

    fn get(block: &[u8]) -> JournalHead {
        JournalHead {
            generation: u32_at(block, 16),
            added_entries: u32_at(block, 20) as i32,
            target: u64_at(block, 24),
            progress: u64_at(block, 32),
            moved_from: u32_at(block, 48),
            is_growth: u32_at(block, 52) != 0,
        }
    }
}

/// A journal in memory.
pub type Journal = paged::Journal<JournalHead>;

/// Creates an empty journal.
pub(super) fn new_journal(generation: u32, moved_from: u32, target: u64) -> Journal {
    let head = JournalHead { generation, moved_from, is_growth: false, added_entries: 0, target, progress: 0 };
    Journal::with_room(head, MAX_JOURNAL_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paged::PAGE_BYTES;
    use proptest::prelude::*;

    fn journal(numbers: &[u32]) -> Journal {
        let mut journal = new_journal(3, 16, 900);
        journal.head.progress = 40;
        journal.head.added_entries = 7;
        for number in numbers {
            journal.push(*number, |out| out.resize(out.len() + PAGE_BYTES, *number as u8));
        }
        journal
    }

    #[test]
    fn a_journal_is_read_as_written() {
        let mut written = journal(&[2, 3, 4, 9, 11, 12]);
        let bytes = written.seal().to_vec();
        let read = Journal::decode(&bytes).unwrap();
        assert_eq!(read, written);
        let runs: Vec<_> = read.runs().map(|(first, bytes)| (first, bytes.len() / PAGE_BYTES, bytes[0])).collect();
        assert_eq!(runs, [(2, 3, 2), (9, 1, 9), (11, 2, 11)]);
        assert_eq!(read.pages().map(|(number, _)| number).collect::<Vec<_>>(), [2, 3, 4, 9, 11, 12]);
    }

    #[test]
    fn a_torn_journal_is_refused() {
        let bytes = journal(&[1, 2]).seal().to_vec();
        let other = journal(&[5, 6, 7]).seal().to_vec();
        for sector in 0..bytes.len() / 512 {
            let mut torn = bytes.clone();
            torn[sector * 512..].copy_from_slice(&other[sector * 512..bytes.len()]);
            assert!(Journal::decode(&torn).is_none() || torn == bytes || torn == other[..bytes.len()]);
            let mut torn = bytes.clone();
            torn.truncate(sector * 512);
            assert!(Journal::decode(&torn).is_none());
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert!(Journal::decode(&bytes).is_none());
            let mut likely = bytes;
            if likely.len() >= 16 {
                likely[..8].copy_from_slice(MAGIC);
                likely[8..12].copy_from_slice(&VERSION.to_le_bytes());
                prop_assert!(Journal::decode(&likely).is_none());
            }
        }
    }
}
