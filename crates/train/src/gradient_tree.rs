//! The sum of a rank's grains along the fixed tree.
//!
//! The left grain of a pair writes its gradient into a buffer, and the right one simply adds to it. Only from
//! four grains on does a second buffer, and an addition over all parameters, come in.

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
        sum(&mut self.levels, grains, grain);
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

fn sum(levels: &mut [Vec<f32>], grains: Range<usize>, grain: &mut dyn FnMut(usize, Onto, &mut [f32])) {
    if grains.len() <= 2 {
        for (number, onto) in grains.zip([Onto::Anything, Onto::LeftNeighbour]) {
            grain(number, onto, &mut levels[0]);
        }
        return;
    }
    let middle = grains.start + grains.len() / 2;
    sum(levels, grains.start..middle, grain);
    sum(&mut levels[1..], middle..grains.end, grain);
    let (left, right) = levels.split_at_mut(1);
    for (sum, value) in left[0].iter_mut().zip(&right[0]) {
        *sum += value;
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
