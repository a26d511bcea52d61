//! Counts of times by logarithmic buckets, cheap to add to from many threads.
//!
//! Each power of two is cut into 32 equal parts, so a percentile is right to 3 %, from one microsecond to over an
//! hour, in 8 KiB. Adding is two relaxed increments; nobody waits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a power of two, as a power of two.
const PART_BITS: u32 = 5;
const PARTS: usize = 1 << PART_BITS;
/// Powers of two above the exact ones.
const POWERS: usize = 27;
const BUCKETS: usize = PARTS * (POWERS + 1);

/// Microseconds, counted.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// What a histogram held at some moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    counts: Box<[u64]>,
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one time.
    pub fn add(&self, value: u64) {
        self.counts[bucket(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// What it holds now.
    pub fn counts(&self) -> Counts {
        Counts {
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { counts: vec![0; BUCKETS].into(), sum: 0 }
    }
}

impl Counts {
    /// Counts one time.
    pub fn add(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.sum += value;
    }

    /// What came since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Counts) -> Counts {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now - then).collect();
        Counts { counts, sum: self.sum - earlier.sum }
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: &Counts) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.sum += other.sum;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them added up.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The value that a share of all does not exceed, to 3 %; 0 when there are none.
    pub fn percentile(&self, share: f64) -> u64 {
        let total = self.count();
        let wanted = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, largest_of)
    }

    /// How many are at most `value`, up to the width of a bucket.
    pub fn at_most(&self, value: u64) -> u64 {
        self.counts[..=bucket(value)].iter().sum()
    }
}

/// The bucket of a value. Values below [`PARTS`] have one each.
fn bucket(value: u64) -> usize {
    let power = value.max(1).ilog2();
    if power < PART_BITS {
        return value as usize;
    }
    let part = (value >> (power - PART_BITS)) as usize - PARTS;
    ((power - PART_BITS + 1) as usize * PARTS + part).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn largest_of(bucket: usize) -> u64 {
    let (power, part) = (bucket / PARTS, bucket % PARTS);
    match power {
        0 => part as u64,
        _ => ((PARTS + part + 1) as u64 * (1 << (power - 1))) - 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Percentiles are those of the sorted values, to 1/32, and never below them.
        #[test]
        fn percentiles_are_right_to_three_percent(
            values in prop::collection::vec(0u64..1 << 31, 1..300), share in 0.0f64..=1.0,
        ) {
            let histogram = Histogram::default();
            let mut sorted = values.clone();
            sorted.sort_unstable();
            values.iter().for_each(|&value| histogram.add(value));
            let exact = sorted[((values.len() as f64 * share).ceil() as usize).max(1) - 1];
            let found = histogram.counts().percentile(share);
            prop_assert!(found >= exact && found <= exact + exact / 32, "{found} for {exact}");
        }
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let histogram = Histogram::default();
        histogram.add(5);
        let before = histogram.counts();
        histogram.add(70);
        let since = histogram.counts().since(&before);
        assert_eq!((since.count(), since.sum()), (1, 70));
        assert_eq!(Counts::default().percentile(0.5), 0);
    }
}
