//! DLRM's dot interaction: the inner products of all pairs of a sample's vectors.
//!
//! A sample has `count` vectors of `width` floats side by side in one row. Its pairs are the lower triangle in
//! row order: (1,0), (2,0), (2,1), (3,0), …
//!
//! Both directions are small matrix products per sample, `P = V V^T` and `dV = S V`, where `S` holds the pairs'
//! gradients on both sides of a diagonal of zeros; so they run on the tile loops of [`crate::gemm`], and the order
//! of sums is the one stated there: rising, fused, from zero. It is the same at every level.

#![allow(unsafe_code)]

mod tiles;

use crate::Isa;
use crate::buffer::Buffer;
use crate::gemm::tile::loops_of;
use crate::matrix::{Matrix, MatrixMut, Store};

/// What one sample's row holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vectors {
    /// How many vectors a sample has.
    pub count: usize,
    /// How many floats a vector has.
    pub width: usize,
}

impl Vectors {
    /// How many floats the vectors of a sample have together.
    pub fn floats(self) -> usize {
        self.count * self.width
    }

    /// How many pairs a sample has.
    pub fn pairs(self) -> usize {
        self.count * self.count.saturating_sub(1) / 2
    }
}

/// Room for one sample's rearranged vectors; kept between calls so that no call allocates. One a thread.
#[derive(Debug, Default)]
pub struct Scratch {
    square: Buffer,
    panels: Buffer,
}

/// Writes each sample's pairs.
///
/// # Panics
///
/// If a shape does not fit `shape`.
pub fn forward(
    isa: Isa,
    scratch: &mut Scratch,
    shape: Vectors,
    vectors: Matrix<'_>,
    mut pairs: MatrixMut<'_>,
) {
    check(shape, vectors, pairs.view());
    for r in 0..vectors.rows() {
        let (vectors, pairs) = (vectors.row(r), pairs.row(r));
        match loops_of(isa) {
            // SAFETY: `isa` proves the level of its loops.
            Some(loops) => unsafe { tiles::forward(loops, scratch, shape, vectors, pairs) },
            None => scalar::forward(shape, vectors, pairs),
        }
    }
}

/// Writes or adds the gradient of each sample's vectors, from the gradient of its pairs.
///
/// # Panics
///
/// If a shape does not fit `shape`.
pub fn backward(
    isa: Isa,
    scratch: &mut Scratch,
    shape: Vectors,
    vectors: Matrix<'_>,
    pairs_gradient: Matrix<'_>,
    store: Store,
    mut vectors_gradient: MatrixMut<'_>,
) {
    check(shape, vectors, pairs_gradient);
    check(shape, vectors_gradient.view(), pairs_gradient);
    for r in 0..vectors.rows() {
        let (vectors, gradient, out) = (vectors.row(r), pairs_gradient.row(r), vectors_gradient.row(r));
        match loops_of(isa) {
            // SAFETY: `isa` proves the level of its loops.
            Some(loops) => unsafe { tiles::backward(loops, scratch, (shape, store), vectors, gradient, out) },
            None => scalar::backward(shape, vectors, gradient, store, out),
        }
    }
}

fn check(shape: Vectors, vectors: Matrix<'_>, pairs: Matrix<'_>) {
    assert_eq!(vectors.columns(), shape.floats(), "columns of the vectors of {shape:?}");
    assert_eq!(pairs.columns(), shape.pairs(), "columns of the pairs of {shape:?}");
    assert_eq!(vectors.rows(), pairs.rows(), "samples of vectors and pairs");
}

/// The place of the pair of `i` and `j` among a sample's pairs.
fn pair(i: usize, j: usize) -> usize {
    let (low, high) = (i.min(j), i.max(j));
    high * (high - 1) / 2 + low
}

mod scalar {
    use super::{Store, Vectors, pair};
    use crate::gemm::scalar::sum_of_products;

    pub fn forward(shape: Vectors, vectors: &[f32], pairs: &mut [f32]) {
        let vector = |i: usize| &vectors[i * shape.width..][..shape.width];
        for i in 1..shape.count {
            for j in 0..i {
                pairs[pair(i, j)] = sum_of_products(shape.width, |d| vector(i)[d], |d| vector(j)[d], None);
            }
        }
    }

    pub fn backward(shape: Vectors, vectors: &[f32], gradient: &[f32], store: Store, out: &mut [f32]) {
        let with = |i: usize, j: usize| if i == j { 0.0 } else { gradient[pair(i, j)] };
        for (place, out) in out.iter_mut().enumerate() {
            let (i, d) = (place / shape.width, place % shape.width);
            let start = (store == Store::Add).then_some(*out);
            *out = sum_of_products(shape.count, |j| with(i, j), |j| vectors[j * shape.width + d], start);
        }
    }
}

#[cfg(test)]
mod tests;
