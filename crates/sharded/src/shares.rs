//! Who updates which part of the flat dense weights.
//!
//! The flat vector is cut into *segments*: one for the module of every tower, and one for the rest. Each segment is cut evenly
//! over some ranks, at blocks of [`BLOCK`] floats counted from the segment's start: over all ranks in the flat exchange, and
//! for a tower's module over the ranks of its group alone where towers have their own ways. Sums over blocks (the gradient's
//! norm) then have the same blocks for every seating.

use std::ops::Range;

use campanile_spec::Seating;

/// Blocks of a segment over which squares are summed before any others: no share begins inside one.
pub const BLOCK: usize = 4096;

/// By rank, the ranges of the flat vector that it updates, rising.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    by_rank: Vec<Vec<Range<usize>>>,
}

/// The slice of a vector that a rank updates.
fn slice_of(count: usize, rank: usize, rank_count: usize) -> Range<usize> {
    let blocks = count.div_ceil(BLOCK);
    let cut = |rank: usize| (blocks * rank / rank_count * BLOCK).min(count);
    cut(rank)..cut(rank + 1)
}

impl Shares {
    /// Every segment over all ranks.
    pub fn even(segments: &[Range<usize>], rank_count: usize) -> Shares {
        let mut shares = Shares { by_rank: vec![Vec::new(); rank_count] };
        segments.iter().for_each(|segment| shares.deal(segment, 0..rank_count));
        shares
    }

    /// The segments of modules over the ranks of their towers' groups; `towers` has the number of each such segment's tower.
    pub fn of_towers(segments: &[Range<usize>], towers: &[usize], seating: &Seating) -> Shares {
        let rank_count = seating.groups * seating.members;
        let mut shares = Shares { by_rank: vec![Vec::new(); rank_count] };
        for (place, segment) in segments.iter().enumerate() {
            let group =
                towers.get(place).and_then(|tower| seating.towers.iter().position(|own| own.contains(tower)));
            let ranks =
                group.map_or(0..rank_count, |group| group * seating.members..(group + 1) * seating.members);
            shares.deal(segment, ranks);
        }
        shares
    }

    fn deal(&mut self, segment: &Range<usize>, ranks: Range<usize>) {
        for (place, rank) in ranks.clone().enumerate() {
            let slice = slice_of(segment.len(), place, ranks.len());
            if !slice.is_empty() {
                self.by_rank[rank].push(segment.start + slice.start..segment.start + slice.end);
            }
        }
    }

    /// The ranges of a rank.
    pub fn of(&self, rank: usize) -> &[Range<usize>] {
        &self.by_rank[rank]
    }

    /// How many ranks.
    pub fn rank_count(&self) -> usize {
        self.by_rank.len()
    }

    /// Floats of a rank's ranges.
    pub fn len_of(&self, rank: usize) -> usize {
        self.by_rank[rank].iter().map(Range::len).sum()
    }

    /// The parts of all ranks that lie within `range`, counted from its start.
    #[must_use]
    pub fn within(&self, range: &Range<usize>) -> Shares {
        let inside = |own: &Vec<Range<usize>>| {
            let inside = own.iter().filter(|own| own.start >= range.start && own.end <= range.end);
            inside.map(|own| own.start - range.start..own.end - range.start).collect()
        };
        Shares { by_rank: self.by_rank.iter().map(inside).collect() }
    }

    /// The shares of some ranks, counted from the first.
    #[must_use]
    pub fn of_ranks(&self, ranks: Range<usize>) -> Shares {
        Shares { by_rank: self.by_rank[ranks].to_vec() }
    }

    /// One value for every block of every rank, rank by rank, in the order of the flat vector.
    pub fn blocks_in_order<T: Copy>(&self, by_rank: &[&[T]]) -> Vec<T> {
        let mut parts: Vec<(usize, &[T])> = Vec::new();
        for (own, mut values) in self.by_rank.iter().zip(by_rank.iter().copied()) {
            for range in own {
                let (first, rest) = values.split_at(range.len().div_ceil(BLOCK));
                parts.push((range.start, first));
                values = rest;
            }
        }
        parts.sort_by_key(|part| part.0);
        parts.iter().flat_map(|part| part.1.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_weight_once() {
        let segments = [0..10, 10..9000, 9000..9000, 9000..60_000];
        for ranks in [1, 2, 4, 8] {
            let shares = Shares::even(&segments, ranks);
            let mut all: Vec<Range<usize>> = (0..ranks).flat_map(|rank| shares.of(rank).to_vec()).collect();
            all.sort_by_key(|range| range.start);
            assert_eq!((all[0].start, all[all.len() - 1].end), (0, 60_000));
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
            let numbers: Vec<Vec<usize>> = (0..ranks)
                .map(|rank| shares.of(rank).iter().flat_map(|r| r.clone().step_by(BLOCK)).collect())
                .collect();
            let slices: Vec<&[usize]> = numbers.iter().map(Vec::as_slice).collect();
            let mut wanted: Vec<usize> = segments.iter().flat_map(|s| s.clone().step_by(BLOCK)).collect();
            wanted.sort_unstable();
            assert_eq!(shares.blocks_in_order(&slices), wanted);
        }
    }
}
