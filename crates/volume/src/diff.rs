//! Finds the differences between two volumes.

use crate::error::Result;
use crate::volume::Volume;
use crate::volumes::Volumes;
use onefold_blocks::At;
use std::ops::Range;

impl Volumes {
    /// Passes the ranges of bytes in which two volumes differ to `visit`, in order, until it returns false. Ranges with
    /// the same mappings are equal. A reported range may still be equal, if the same bytes are cut into other chunks.
    /// The part that only the larger volume has is one range. If a volume is written to meanwhile, each block is
    /// compared at a moment of its own.
    pub fn diff(&self, first: &Volume, second: &Volume, visit: &mut dyn FnMut(Range<u64>) -> bool) -> Result<()> {
        let sizes = [first.size(), second.size()];
        let (end, furthest) = (sizes[0].min(sizes[1]), sizes[0].max(sizes[1]));
        let mut found = Joined { visit, range: 0..0 };
        let goes_on = self.spaces().diff(&first.blocks, &second.blocks, At::byte(0), end, &mut |range| found.add(range))?;
        if goes_on && found.add(end..furthest) {
            found.finish();
        }
        Ok(())
    }
}

/// Joins ranges that touch.
struct Joined<'v> {
    visit: &'v mut dyn FnMut(Range<u64>) -> bool,
    range: Range<u64>,
}

impl Joined<'_> {
    fn add(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        if self.range.end == range.start && !self.range.is_empty() {
            self.range.end = range.end;
            return true;
        }
        let before = std::mem::replace(&mut self.range, range);
        before.is_empty() || (self.visit)(before)
    }

    fn finish(self) {
        if !self.range.is_empty() {
            (self.visit)(self.range);
        }
    }
}
