//! The fixed chunker: all chunks have the same length.

use crate::cut::cut_all;
use crate::{Chunker, Kind, Limits, Sizes};

/// Cuts every `target` bytes.
#[derive(Debug)]
pub(crate) struct Fixed {
    target: usize,
}

impl Fixed {
    pub(crate) fn new(sizes: Sizes) -> Fixed {
        Fixed { target: sizes.target }
    }
}

impl Chunker for Fixed {
    fn cut(&self, data: &[u8], last: bool, cuts: &mut Vec<usize>) -> usize {
        cut_all(data, last, cuts, |rest| (rest.len() >= self.target).then_some(self.target))
    }

    fn confirms(&self, data: &[u8], length: usize) -> bool {
        length == self.target && data.len() >= length
    }

    fn name(&self) -> &'static str {
        Kind::Fixed.name()
    }

    fn limits(&self) -> Limits {
        Limits { min: self.target, target: self.target, max: self.target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m0_2_a_fixed_chunker_cuts_at_multiples_and_leaves_the_tail() {
        let chunker = Fixed::new(Sizes::around(1000));
        let mut cuts = Vec::new();
        assert_eq!(chunker.cut(&[0; 2500], false, &mut cuts), 2000);
        assert_eq!(cuts, [1000, 2000]);
        assert_eq!(chunker.cut(&[0; 500], false, &mut cuts), 0);
        assert_eq!(chunker.cut(&[0; 500], true, &mut cuts), 500);
        assert_eq!(cuts, [1000, 2000, 500]);
    }
}
