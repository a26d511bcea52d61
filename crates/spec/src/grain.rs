//! Grains: how a batch is cut so that no result depends on the number of ranks.
//!
//! The global batch is cut into a power-of-two number of grains of nearly equal size. Dense work runs grain
//! by grain, and sums over samples are formed inside a grain in sample order, then over grains along a fixed
//! binary tree. A rank owns an aligned run of grains, so what it sums alone is a node of that tree:
//!
//! ```text
//!   grains   0   1   2   3   4   5   6   7          one rank: the whole tree
//!            └─┬─┘   └─┬─┘   └─┬─┘   └─┬─┘          two ranks: {0..4} and {4..8}, each a subtree,
//!              └───┬───┘       └───┬───┘                       and one addition between them
//!                  └───────┬───────┘
//! ```
//!
//! A grain holds at most [`GRAIN_SAMPLES_MAX`] samples: the inner dimension of a weight-gradient product then
//! fits in registers and cache, and adding a grain to its left neighbour costs no extra pass over memory.

use std::ops::Range;

/// The most samples that a grain holds when the number of grains is chosen for the user.
pub const GRAIN_SAMPLES_MAX: usize = 256;

/// The fewest grains chosen for the user, and so the most ranks a batch can always be spread over.
pub const GRAIN_COUNT_MIN: usize = 4;

/// Chunks of a rank's samples in a pipeline: the first one's vectors and the last one's gradients travel while
/// nothing computes, so more are better, until messages become too small to fill the line.
pub const PIPELINE_CHUNKS: usize = 8;

/// As many grains are chosen, where they hold [`GRAIN_SAMPLES_MIN`] samples each: a rank for each of eight cores.
pub const GRAIN_COUNT_WANTED: usize = 8;

/// Below this a grain's weight gradients cost more in passes over the weights than in arithmetic.
pub const GRAIN_SAMPLES_MIN: usize = 32;

/// The cut of a batch into grains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grains {
    count: usize,
}

impl Grains {
    /// `count` grains.
    ///
    /// # Panics
    /// If `count` is not a power of two.
    pub fn new(count: usize) -> Grains {
        assert!(count.is_power_of_two(), "{count} grains are not a power of two");
        Grains { count }
    }

    /// The number of grains for a batch when the job does not say.
    pub fn for_batch(batch_size: usize) -> Grains {
        let small = if batch_size >= GRAIN_COUNT_WANTED * GRAIN_SAMPLES_MIN {
            GRAIN_COUNT_WANTED
        } else {
            GRAIN_COUNT_MIN
        };
        Grains::new(batch_size.div_ceil(GRAIN_SAMPLES_MAX).next_power_of_two().max(small))
    }

    /// How many grains.
    pub fn count(self) -> usize {
        self.count
    }

    /// The samples of one grain in a batch of `sample_count` (which may be short at the end of the data).
    pub fn samples(self, sample_count: usize, grain: usize) -> Range<usize> {
        sample_count * grain / self.count..sample_count * (grain + 1) / self.count
    }

    /// The grains of a rank.
    ///
    /// # Panics
    /// If `rank_count` does not divide the number of grains.
    pub fn of_rank(self, rank: usize, rank_count: usize) -> Range<usize> {
        assert!(
            self.count.is_multiple_of(rank_count),
            "{rank_count} ranks do not divide {} grains",
            self.count
        );
        let each = self.count / rank_count;
        rank * each..(rank + 1) * each
    }

    /// The samples of a rank.
    pub fn samples_of_rank(self, sample_count: usize, rank: usize, rank_count: usize) -> Range<usize> {
        let grains = self.of_rank(rank, rank_count);
        sample_count * grains.start / self.count..sample_count * grains.end / self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grains_are_neither_too_few_nor_too_small() {
        let chosen = [1, 128, 255, 256, 2048, 2049, 8192].map(|batch| Grains::for_batch(batch).count());
        assert_eq!(chosen, [4, 4, 4, 8, 8, 16, 32]);
    }

    #[test]
    fn ranks_own_aligned_runs_that_cover_the_batch() {
        let grains = Grains::new(8);
        for samples in [0, 5, 37, 2048] {
            for ranks in [1, 2, 4, 8] {
                let ends: Vec<_> =
                    (0..ranks).map(|rank| grains.samples_of_rank(samples, rank, ranks)).collect();
                assert_eq!((ends[0].start, ends[ranks - 1].end), (0, samples));
                assert!(ends.windows(2).all(|pair| pair[0].end == pair[1].start));
                let first = grains.of_rank(ranks - 1, ranks).start;
                assert_eq!(grains.samples(samples, first).start, ends[ranks - 1].start);
            }
        }
    }
}
