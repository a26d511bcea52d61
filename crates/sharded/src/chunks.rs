//! A rank's samples in a few runs, so that one travels while another computes.

use std::ops::Range;

use campanile_spec::Grains;

/// The cut of every rank's samples into chunks of whole grains.
///
/// Where towers have their own ways, a rank sees the samples of all its peers, and ranks are then the members of a group. A
/// chunk has a *run* of every peer's samples, so that one message brings what all of them wait for:
///
/// ```text
///   a rank's samples    p0 p1 p2 p3 | p0 p1 p2 p3 | ...        runs; between the bars a chunk
///   the global batch    p0 of all members, chunk by chunk; then p1 ...
/// ```
///
/// In the flat exchange a chunk is one run of a rank's own samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks {
    grains: Grains,
    rank_count: usize,
    /// Whose samples a rank sees: 1 means its own.
    peers: usize,
    count: usize,
}

impl Chunks {
    /// At most `wanted` chunks: as many as divide a rank's grains.
    pub fn new(grains: Grains, rank_count: usize, wanted: usize) -> Chunks {
        let wanted = if rank_count == 1 { 1 } else { wanted };
        Chunks::of_peers(grains, (1, rank_count), wanted)
    }

    /// At most `wanted` chunks of the samples that a group's members see (`spec::seating`).
    pub fn of_peers(grains: Grains, (peers, members): (usize, usize), wanted: usize) -> Chunks {
        let grains_each = grains.count() / (peers * members);
        Chunks { grains, rank_count: members, peers, count: 1 << wanted.clamp(1, grains_each).ilog2() }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// How many ranks there are.
    pub fn rank_count(&self) -> usize {
        self.rank_count
    }

    /// The runs of all chunks.
    pub fn run_count(&self) -> usize {
        self.peers * self.count
    }

    /// The runs of a chunk.
    pub fn runs_of(&self, chunk: usize) -> Range<usize> {
        chunk * self.peers..(chunk + 1) * self.peers
    }

    /// The chunk of a run.
    pub fn chunk_of(&self, run: usize) -> usize {
        run / self.peers
    }

    /// A peer's run in a chunk.
    pub fn run(&self, peer: usize, chunk: usize) -> usize {
        self.runs_of(chunk).start + peer
    }

    /// All ranks' runs in the order of the global batch.
    pub fn in_order(&self) -> Vec<(usize, usize)> {
        let of_rank = |peer, rank| (0..self.count).map(move |chunk| (rank, self.run(peer, chunk)));
        (0..self.peers)
            .flat_map(|peer| (0..self.rank_count).flat_map(move |rank| of_rank(peer, rank)))
            .collect()
    }

    /// The grains of a rank's run.
    pub fn grains_of(&self, rank: usize, run: usize) -> Range<usize> {
        let (chunk, peer) = (self.chunk_of(run), run % self.peers);
        let home = peer * self.rank_count + rank;
        let grains = self.grains.of_rank(home, self.peers * self.rank_count);
        let each = grains.len() / self.count;
        grains.start + chunk * each..grains.start + (chunk + 1) * each
    }

    /// How many samples a rank's run has in a batch of `global_count`.
    fn run_length(&self, global_count: usize, rank: usize, run: usize) -> usize {
        let grains = self.grains_of(rank, run);
        let start = self.grains.samples(global_count, grains.start).start;
        self.grains.samples(global_count, grains.end - 1).end - start
    }

    /// Where each of a rank's runs ends, among the samples that it sees.
    pub fn run_ends(&self, global_count: usize, rank: usize) -> impl Iterator<Item = usize> {
        let lengths = (0..self.run_count()).map(move |run| self.run_length(global_count, rank, run));
        lengths.scan(0, |end, length| {
            *end += length;
            Some(*end)
        })
    }

    /// The samples of some of a rank's runs, one after the other.
    pub fn samples_of_runs(&self, global_count: usize, rank: usize, runs: Range<usize>) -> Range<usize> {
        let length =
            |runs: Range<usize>| -> usize { runs.map(|run| self.run_length(global_count, rank, run)).sum() };
        let start = length(0..runs.start);
        start..start + length(runs)
    }

    /// The samples of a rank's chunk, counted from the first that it sees.
    pub fn samples(&self, global_count: usize, rank: usize, chunk: usize) -> Range<usize> {
        self.samples_of_runs(global_count, rank, self.runs_of(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_in_order_are_the_global_batch_and_side_by_side_what_a_rank_sees() {
        let grains = Grains::new(16);
        for (groups, members) in [(2, 2), (4, 2), (2, 4), (8, 1), (1, 8), (16, 1)] {
            for (global, wanted) in [(0, 1), (5, 2), (37, 1), (37, 4), (1000, 3)] {
                let chunks = Chunks::of_peers(grains, (groups, members), wanted);
                assert!(chunks.count() <= wanted && chunks.run_count() == groups * chunks.count());
                let mut next = 0;
                for (member, run) in chunks.in_order() {
                    let own = chunks.grains_of(member, run);
                    assert_eq!(own.len(), 16 / (groups * members * chunks.count()));
                    assert_eq!(grains.samples(global, own.start).start, next);
                    next += chunks.samples_of_runs(global, member, run..run + 1).len();
                    assert_eq!(grains.samples(global, own.end - 1).end, next);
                }
                assert_eq!(next, global);
                for member in 0..members {
                    let ends: Vec<usize> = chunks.run_ends(global, member).collect();
                    let starts = std::iter::once(&0).chain(&ends);
                    for (run, (start, end)) in starts.zip(&ends).enumerate() {
                        assert_eq!(chunks.samples_of_runs(global, member, run..run + 1), *start..*end);
                    }
                    let of_chunks =
                        (0..chunks.count()).flat_map(|chunk| chunks.samples(global, member, chunk));
                    assert!(of_chunks.eq(0..ends[ends.len() - 1]));
                }
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
