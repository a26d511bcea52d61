//! A rank's samples in a few runs, so that one travels while another computes.

use std::ops::Range;

use campanile_spec::Grains;

/// The cut of every rank's samples into chunks of whole grains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks {
    grains: Grains,
    rank_count: usize,
    count: usize,
    /// Whether a chunk is the samples of a peer: then ranks are members of a group, and chunks are the groups.
    are_peers: bool,
}

impl Chunks {
    /// At most `wanted` chunks: as many as divide a rank's grains.
    pub fn new(grains: Grains, rank_count: usize, wanted: usize) -> Chunks {
        let grains_each = grains.count() / rank_count;
        let count = if rank_count == 1 { 1 } else { 1 << wanted.clamp(1, grains_each).ilog2() };
        Chunks { grains, rank_count, count, are_peers: false }
    }

    /// One chunk for each peer of a group's members (`spec::seating`).
    pub fn of_peers(grains: Grains, groups: usize, members: usize) -> Chunks {
        Chunks { grains, rank_count: members, count: groups, are_peers: true }
    }

    /// All ranks' chunks in the order of the global batch.
    pub fn in_order(&self) -> Vec<(usize, usize)> {
        let (ranks, chunks) = (0..self.rank_count, 0..self.count);
        if self.are_peers {
            return chunks.flat_map(|chunk| ranks.clone().map(move |rank| (rank, chunk))).collect();
        }
        ranks.flat_map(|rank| chunks.clone().map(move |chunk| (rank, chunk))).collect()
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The grains of a rank's chunk.
    pub fn grains_of(&self, rank: usize, chunk: usize) -> Range<usize> {
        if self.are_peers {
            return self.grains.of_rank(chunk * self.rank_count + rank, self.count * self.rank_count);
        }
        let grains = self.grains.of_rank(rank, self.rank_count);
        let each = grains.len() / self.count;
        grains.start + chunk * each..grains.start + (chunk + 1) * each
    }

    /// The samples of a rank's chunk in a batch of `global_count`, counted from the rank's first.
    pub fn samples(&self, global_count: usize, rank: usize, chunk: usize) -> Range<usize> {
        if self.are_peers {
            let ranks = self.count * self.rank_count;
            let home = |chunk: usize| chunk * self.rank_count + rank;
            let count = |chunk: usize| self.grains.samples_of_rank(global_count, home(chunk), ranks).len();
            let start = (0..chunk).map(count).sum();
            return start..start + count(chunk);
        }
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
    fn peers_in_order_are_the_global_batch() {
        let grains = Grains::new(16);
        for (groups, members) in [(2, 2), (4, 2), (2, 4), (8, 1), (1, 8), (16, 1)] {
            for global in [0, 5, 37, 1000] {
                let chunks = Chunks::of_peers(grains, groups, members);
                let mut next = 0;
                for (member, chunk) in chunks.in_order() {
                    let home = grains.samples_of_rank(global, chunk * members + member, groups * members);
                    assert_eq!(home.start, next);
                    next = home.end;
                    assert_eq!(chunks.samples(global, member, chunk).len(), home.len());
                    assert_eq!(chunks.grains_of(member, chunk).len(), 16 / (groups * members));
                    if chunk + 1 < groups {
                        let after = chunks.samples(global, member, chunk + 1).start;
                        assert_eq!(chunks.samples(global, member, chunk).end, after);
                    }
                }
                assert_eq!(next, global);
            }
        }
    }

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
