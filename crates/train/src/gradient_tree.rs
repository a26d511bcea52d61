//! The sum of a rank's grains along the fixed tree.
//!
//! The left grain of a pair writes its gradient into a buffer, and the right one simply adds to it. Only from
//! four grains on does a second buffer, and an addition over all parameters, come in:
//!
//! ```text
//!   grains   0 1   2 3   4 5   6 7        after a pair, every node that it completes is added to its left neighbour
//!   buffer    0     1     1     2         the right turns on the way from the root to the pair
//! ```

use std::ops::Range;

/// What a grain does with the buffer that it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// The buffer holds anything; the grain's gradient replaces it.
    Anything,
    /// The buffer holds the left neighbour's gradient; the grain's is added to it.
    LeftNeighbour,
}

/// The flat gradient of a rank, with the buffers that its tree needs.
#[derive(Debug, Default)]
pub struct GradientTree {
    /// One per level; the first has the sum in the end.
    levels: Vec<Vec<f32>>,
}

impl GradientTree {
    /// For `parameter_count` floats and a rank with `grain_count` grains.
    pub fn new(parameter_count: usize, grain_count: usize) -> GradientTree {
        assert!(grain_count.is_power_of_two());
        let depth = grain_count.ilog2().max(1) as usize;
        GradientTree { levels: vec![vec![0.0; parameter_count]; depth] }
    }

    /// Runs `grain(number, onto, gradient)` for every grain in order, and forms the sum.
    pub fn sum_grains(&mut self, grains: Range<usize>, grain: &mut dyn FnMut(usize, Onto, &mut [f32])) {
        let (first, count) = (grains.start, grains.len());
        for place in 0..count {
            self.add_grain((place, count), |onto, gradient| grain(first + place, onto, gradient));
        }
    }

    /// Runs `grain(onto, gradient)` for one of the grains, which must come in order; with the last one the sum is there.
    pub fn add_grain(&mut self, (place, count): (usize, usize), grain: impl FnOnce(Onto, &mut [f32])) {
        let (pair, is_right) = (place / 2, place % 2 == 1);
        let mut level = pair.count_ones() as usize;
        grain(if is_right { Onto::LeftNeighbour } else { Onto::Anything }, &mut self.levels[level]);
        if !is_right && count > 1 {
            return;
        }
        for _ in 0..pair.trailing_ones() {
            let (left, right) = self.levels.split_at_mut(level);
            level -= 1;
            left[level].iter_mut().zip(&right[0]).for_each(|(sum, value)| *sum += value);
        }
    }

    /// The sum.
    pub fn sum(&self) -> &[f32] {
        &self.levels[0]
    }

    /// The sum, to be reduced over ranks.
    pub fn sum_mut(&mut self) -> &mut [f32] {
        &mut self.levels[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grains_are_visited_in_order_and_added_pairwise() {
        for count in [1usize, 2, 4, 8, 16] {
            let value = |grain: usize| if grain % 3 == 1 { 1e8 } else { 0.1 * (grain as f32 + 1.0) };
            let mut tree = GradientTree::new(1, count);
            tree.levels.iter_mut().for_each(|level| level.fill(f32::NAN));
            let mut visited = Vec::new();
            tree.sum_grains(count..2 * count, &mut |grain, onto, gradient| {
                visited.push(grain);
                gradient[0] = if onto == Onto::Anything { value(grain) } else { gradient[0] + value(grain) };
            });
            assert_eq!(visited, (count..2 * count).collect::<Vec<_>>());
            let mut nodes: Vec<f32> = (count..2 * count).map(value).collect();
            while nodes.len() > 1 {
                nodes = nodes.chunks(2).map(|pair| pair[0] + pair[1]).collect();
            }
            assert_eq!(tree.sum()[0].to_bits(), nodes[0].to_bits(), "{count} grains");
        }
    }
}
