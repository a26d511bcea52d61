//! A rank's samples in a few runs, so that one travels while another computes.

use std::ops::Range;

use campanile_spec::Grains;

/// The cut of every rank's samples into chunks of whole grains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks {
    grains: Grains,
    rank_count: usize,
    count: usize,
}

impl Chunks {
    /// At most `wanted` chunks: as many as divide a rank's grains.
    pub fn new(grains: Grains, rank_count: usize, wanted: usize) -> Chunks {
        let grains_each = grains.count() / rank_count;
        let count = if rank_count == 1 { 1 } else { 1 << wanted.clamp(1, grains_each).ilog2() };
        Chunks { grains, rank_count, count }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The grains of a rank's chunk.
    pub fn grains_of(&self, rank: usize, chunk: usize) -> Range<usize> {
        let grains = self.grains.of_rank(rank, self.rank_count);
        let each = grains.len() / self.count;
        grains.start + chunk * each..grains.start + (chunk + 1) * each
    }

    /// The samples of a rank's chunk in a batch of `global_count`, counted from the rank's first.
    pub fn samples(&self, global_count: usize, rank: usize, chunk: usize) -> Range<usize> {
        let first = self.grains.samples_of_rank(global_count, rank, self.rank_count).start;
        let grains = self.grains_of(rank, chunk);
        let start = self.grains.samples(global_count, grains.start).start;
        let end = self.grains.samples(global_count, grains.end - 1).end;
        start - first..end - first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_ranks_samples_in_order() {
        let grains = Grains::new(16);
        for global in [0, 5, 37, 1000] {
            for ranks in [1, 2, 8, 16] {
                for wanted in [1, 2, 3, 8] {
                    let chunks = Chunks::new(grains, ranks, wanted);
                    assert!(chunks.count() <= wanted && 16 / ranks % chunks.count() == 0);
                    for rank in 0..ranks {
                        let own = grains.samples_of_rank(global, rank, ranks).len();
                        let mut next = 0;
                        for chunk in 0..chunks.count() {
                            let samples = chunks.samples(global, rank, chunk);
                            assert_eq!(samples.start, next);
                            next = samples.end;
                        }
                        assert_eq!(next, own);
                    }
                }
            }
        }
    }
}
