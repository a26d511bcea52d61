//! Sums, in the one order that each kind has.

use std::ops::Add;

/// The blocks of a long sum of products, and of a row's sum of squares with its partial sums.
const BLOCK: usize = 512;
const SQUARES: usize = 32;
const LANES: usize = 16;

/// `start` plus a sum of products: blocks of [`BLOCK`] terms, each with one accumulator from zero.
pub(crate) fn add_products(start: f32, count: usize, pair: impl Fn(usize) -> (f32, f32)) -> f32 {
    let block = |first: usize| {
        (first..count.min(first + BLOCK)).map(&pair).fold(0.0f32, |sum, (a, b)| a.mul_add(b, sum))
    };
    (0..count).step_by(BLOCK).fold(start, |sum, first| sum + block(first))
}

/// Sum of squares: blocks of [`SQUARES`], in each [`LANES`] partial sums by element index, halves added to halves.
pub(crate) fn sum_of_squares(values: &[f32]) -> f32 {
    values.chunks(SQUARES).fold(0.0, |sum, block| {
        let mut lanes = [0.0f32; LANES];
        block.iter().enumerate().for_each(|(i, v)| lanes[i % LANES] += v * v);
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|i| lanes[i] += lanes[i + half]);
        }
        sum + lanes[0]
    })
}

/// The binary tree over grains: neighbours first.
pub(crate) fn sum_over_grains<T: Copy + Add<Output = T>>(mut grains: Vec<Vec<T>>) -> Vec<T> {
    let add = |pair: &[Vec<T>]| pair[0].iter().zip(&pair[1]).map(|(a, b)| *a + *b).collect();
    while grains.len() > 1 {
        grains = grains.chunks(2).map(add).collect();
    }
    grains.swap_remove(0)
}
