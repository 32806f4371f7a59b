//! How long the chunks are: their number and percentiles, in a few kilobytes for any number of them.

/// Buckets for each doubling of the length, as a power of two: a percentile is at most 1/64 too small.
const PRECISION_BITS: u32 = 6;

/// A distribution of lengths in bytes.
#[derive(Clone, Debug, Default)]
pub struct Lengths {
    /// How many lengths lie in each bucket. The first 64 buckets are of one byte each, then 64 for each doubling.
    counts: Vec<u64>,
    chunks: u64,
    bytes: u64,
}

impl Lengths {
    /// Adds a chunk.
    pub fn add(&mut self, length_bytes: usize) {
        let length = length_bytes as u64;
        let bucket = bucket(length);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.chunks += 1;
        self.bytes += length;
    }

    /// How many there are.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// All lengths together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The mean; 0 of none.
    pub fn mean(&self) -> u64 {
        self.bytes.checked_div(self.chunks).unwrap_or(0)
    }

    /// The length that `percent` of the chunks do not exceed, rounded down by up to 1/64; 0 of none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.chunks) * u128::from(percent)).div_ceil(100).max(1);
        let mut met = 0u128;
        for (bucket, count) in self.counts.iter().enumerate() {
            met += u128::from(*count);
            if met >= wanted {
                return least(bucket);
            }
        }
        0
    }
}

fn bucket(length: u64) -> usize {
    let first = 1 << PRECISION_BITS;
    if length < first {
        return length as usize;
    }
    let doublings = length.ilog2() - PRECISION_BITS;
    ((u64::from(doublings) << PRECISION_BITS) + (length >> doublings)) as usize
}

/// The least length in a bucket.
fn least(bucket: usize) -> u64 {
    let (bucket, first) = (bucket as u64, 1 << PRECISION_BITS);
    if bucket < 2 * first {
        return bucket;
    }
    let doublings = (bucket >> PRECISION_BITS) - 1;
    (first + (bucket & (first - 1))) << doublings
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_sorted_lengths(mut lengths in proptest::collection::vec(1..20_000_000usize, 1..300), percent in 1..=100u64) {
            let mut distribution = Lengths::default();
            lengths.iter().for_each(|length| distribution.add(*length));
            lengths.sort_unstable();
            let exact = lengths[(lengths.len() * percent as usize).div_ceil(100) - 1] as u64;
            let found = distribution.percentile(percent);
            prop_assert!(found <= exact && exact - found <= exact / 64, "{} for {}", found, exact);
            prop_assert_eq!(distribution.mean(), lengths.iter().sum::<usize>() as u64 / lengths.len() as u64);
        }
    }

    #[test]
    fn powers_of_two_are_exact() {
        for bits in 0..24 {
            let mut lengths = Lengths::default();
            lengths.add(1 << bits);
            assert_eq!([5, 50, 95].map(|percent| lengths.percentile(percent)), [1 << bits; 3]);
        }
        assert_eq!((Lengths::default().percentile(50), Lengths::default().mean()), (0, 0));
    }
}
