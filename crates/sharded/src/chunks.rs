//! A rank's samples in a few runs, so that one travels while another computes.

use std::ops::Range;

use campanile_spec::Grains;

/// The cut of every rank's samples into chunks of whole grains.
///
/// Where towers have their own ways, a rank sees the samples of all its peers: ranks are then the members of a group, and the
/// chunks are those of one peer after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks {
    grains: Grains,
    rank_count: usize,
    /// Whose samples a rank sees: 1 means its own.
    peers: usize,
    /// Chunks of each peer's samples.
    parts: usize,
}

impl Chunks {
    /// At most `wanted` chunks: as many as divide a rank's grains.
    pub fn new(grains: Grains, rank_count: usize, wanted: usize) -> Chunks {
        let wanted = if rank_count == 1 { 1 } else { wanted };
        Chunks::of_peers(grains, (1, rank_count), wanted)
    }

    /// At most `wanted` chunks for each peer of a group's members (`spec::seating`).
    pub fn of_peers(grains: Grains, (peers, members): (usize, usize), wanted: usize) -> Chunks {
        let grains_each = grains.count() / (peers * members);
        Chunks { grains, rank_count: members, peers, parts: 1 << wanted.clamp(1, grains_each).ilog2() }
    }

    /// All ranks' chunks in the order of the global batch.
    pub fn in_order(&self) -> Vec<(usize, usize)> {
        let of_peer = |peer: usize| peer * self.parts..(peer + 1) * self.parts;
        let of_rank = |peer, rank| of_peer(peer).map(move |chunk| (rank, chunk));
        (0..self.peers)
            .flat_map(|peer| (0..self.rank_count).flat_map(move |rank| of_rank(peer, rank)))
            .collect()
    }

    pub fn count(&self) -> usize {
        self.peers * self.parts
    }

    /// How many chunks the samples of one peer have.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Where the samples of a peer have their home, and how many homes there are.
    fn home(&self, rank: usize, peer: usize) -> (usize, usize) {
        (peer * self.rank_count + rank, self.peers * self.rank_count)
    }

    /// The grains of a rank's chunk.
    pub fn grains_of(&self, rank: usize, chunk: usize) -> Range<usize> {
        let (home, homes) = self.home(rank, chunk / self.parts);
        let grains = self.grains.of_rank(home, homes);
        let (each, part) = (grains.len() / self.parts, chunk % self.parts);
        grains.start + part * each..grains.start + (part + 1) * each
    }

    /// The samples of a rank's chunk in a batch of `global_count`, counted from the rank's first.
    pub fn samples(&self, global_count: usize, rank: usize, chunk: usize) -> Range<usize> {
        let of_peer = |peer: usize| {
            let (home, homes) = self.home(rank, peer);
            self.grains.samples_of_rank(global_count, home, homes)
        };
        let peer = chunk / self.parts;
        let before: usize = (0..peer).map(|peer| of_peer(peer).len()).sum();
        let (first, grains) = (of_peer(peer).start, self.grains_of(rank, chunk));
        let start = self.grains.samples(global_count, grains.start).start;
        let end = self.grains.samples(global_count, grains.end - 1).end;
        before + start - first..before + end - first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_in_order_are_the_global_batch() {
        let grains = Grains::new(16);
        for (groups, members) in [(2, 2), (4, 2), (2, 4), (8, 1), (1, 8), (16, 1)] {
            for (global, wanted) in [(0, 1), (5, 2), (37, 1), (37, 4), (1000, 3)] {
                let chunks = Chunks::of_peers(grains, (groups, members), wanted);
                let parts = chunks.parts();
                assert!(parts <= wanted && chunks.count() == groups * parts);
                let mut next = 0;
                for (member, chunk) in chunks.in_order() {
                    let own = chunks.grains_of(member, chunk);
                    assert_eq!(own.len(), 16 / (groups * members * parts));
                    assert_eq!(grains.samples(global, own.start).start, next);
                    let samples = chunks.samples(global, member, chunk);
                    next += samples.len();
                    assert_eq!(grains.samples(global, own.end - 1).end, next);
                    if chunk + 1 < chunks.count() {
                        assert_eq!(samples.end, chunks.samples(global, member, chunk + 1).start);
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
