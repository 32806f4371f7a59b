//! Counts many numbers in little memory. Each bucket is less than 1 % wide.

/// Bits of a number below its highest one that choose its bucket: 2^7 buckets for each power of two.
const SUB_BITS: u32 = 7;

/// How often each number occurred. It takes 59 KB for any count.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u64,
    minimum: u64,
    maximum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; (65 - SUB_BITS as usize) << SUB_BITS], count: 0, sum: 0, minimum: u64::MAX, maximum: 0 }
    }
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new() -> Histogram {
        Histogram::default()
    }

    fn bucket(number: u64) -> usize {
        let shift = (64 - number.leading_zeros()).saturating_sub(SUB_BITS + 1);
        ((shift as usize) << SUB_BITS) + (number >> shift) as usize
    }

    /// Returns the smallest number in a bucket: the inverse of [`Histogram::bucket`].
    fn least(bucket: usize) -> u64 {
        let shift = (bucket >> SUB_BITS).saturating_sub(1);
        ((bucket - (shift << SUB_BITS)) as u64) << shift
    }

    /// Counts a number.
    pub fn add(&mut self, number: u64) {
        self.buckets[Histogram::bucket(number)] += 1;
        self.count += 1;
        self.sum += number;
        self.minimum = self.minimum.min(number);
        self.maximum = self.maximum.max(number);
    }

    /// Adds all counts of another histogram.
    pub fn add_all(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
        self.sum += other.sum;
        self.minimum = self.minimum.min(other.minimum);
        self.maximum = self.maximum.max(other.maximum);
    }

    /// Returns how many numbers were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns their sum.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the smallest number; `u64::MAX` if the histogram is empty.
    pub fn minimum(&self) -> u64 {
        self.minimum
    }

    /// Returns the largest number; 0 if the histogram is empty.
    pub fn maximum(&self) -> u64 {
        self.maximum
    }

    /// Returns the mean; NaN if the histogram is empty.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    /// Returns the number that this share of them (0 to 1) does not exceed. It is at most 1 % too low.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(self.maximum, Histogram::least).max(self.minimum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        for number in (0..300).chain((8..62).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1, 3 << power >> 1])) {
            let bucket = Histogram::bucket(number);
            let least = Histogram::least(bucket);
            assert!(least <= number && number - least <= number / 100, "{number}: {least}");
        }
        assert!((0..100_000).map(Histogram::bucket).is_sorted());
        assert!(Histogram::bucket(u64::MAX) < Histogram::new().buckets.len());
    }

    #[test]
    fn quantiles_are_those_of_the_numbers() {
        let (mut histogram, mut upper) = (Histogram::new(), Histogram::new());
        (1..=60).for_each(|number| histogram.add(number));
        (61..=100).for_each(|number| upper.add(number));
        histogram.add_all(&upper);
        assert_eq!([0.25, 0.5, 0.99].map(|share| histogram.quantile(share)), [25, 50, 99]);
        assert_eq!((histogram.minimum(), histogram.maximum(), histogram.count(), histogram.sum()), (1, 100, 100, 5050));
        assert_eq!(histogram.mean(), 50.5);
    }
}
