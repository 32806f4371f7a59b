//! Where reads of frames ended lately. Who goes on there reads a stream, so more is read at once: first two frames,
//! then four, and so on. Without that, each frame costs a read of a page of keys and one of the frame.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Reads that are remembered: those of so many streams and tables.
const REMEMBERED: usize = 256;
/// Frames that are passed over: the stream has these chunks elsewhere.
const GAP_BYTES: u64 = 512 << 10;

#[derive(Debug)]
struct Run {
    /// The numbers of the partition and of the table.
    table: (u16, u64),
    end: u64,
    bytes: u64,
}

/// The ends of the last reads.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<VecDeque<Run>>);

impl Runs {
    /// Returns how much to read from this place on, at least. 0: nobody has read just before it.
    pub(crate) fn ahead(&self, table: (u16, u64), at: u64, most_bytes: u64) -> u64 {
        let mut runs = self.0.lock();
        let goes_on = |run: &Run| run.table == table && (run.end..=run.end + GAP_BYTES).contains(&at);
        let found = runs.iter().rposition(goes_on).and_then(|found| runs.remove(found));
        found.map_or(0, |run| (2 * run.bytes).min(most_bytes))
    }

    /// Notes a read that ended here, of so many bytes.
    pub(crate) fn ended(&self, table: (u16, u64), end: u64, bytes: u64) {
        let mut runs = self.0.lock();
        if runs.len() >= REMEMBERED {
            runs.pop_front();
        }
        runs.push_back(Run { table, end, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_on_reads_twice_as_much_and_nobody_else_does() {
        let (runs, one, other) = (Runs::default(), (0, 1), (1, 1));
        assert_eq!(runs.ahead(one, 0, 4000), 0);
        runs.ended(one, 1000, 1000);
        assert_eq!(runs.ahead(other, 1000, 4000), 0);
        assert_eq!(runs.ahead(one, 999, 4000), 0);
        assert_eq!(runs.ahead(one, 1000, 4000), 2000);
        assert_eq!(runs.ahead(one, 1000, 4000), 0, "one reads on, not two");
        runs.ended(one, 3000, 2000);
        assert_eq!(runs.ahead(one, 3000 + GAP_BYTES, 3000), 3000);
        (0..1000).for_each(|table| runs.ended((0, table), 0, 1));
        assert_eq!(runs.ahead((0, 0), 0, 10), 0, "the oldest are forgotten");
    }
}
