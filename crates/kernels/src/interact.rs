//! DLRM's dot interaction: the inner products of all pairs of a sample's vectors.
//!
//! A sample has `count` vectors of `width` floats side by side in one row. Its pairs are the lower triangle in
//! row order: (1,0), (2,0), (2,1), (3,0), …
//!
//! Order of sums, the same at every level: a pair sums over the elements in rising order; a vector's gradient sums
//! over the other vectors in rising order, from zero, with fused multiply-add.

use crate::Isa;
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
pub struct Scratch {}

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
    let _ = (isa, scratch);
    for r in 0..vectors.rows() {
        scalar::forward(shape, vectors.row(r), pairs.row(r));
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
    let _ = (isa, scratch);
    for r in 0..vectors.rows() {
        scalar::backward(shape, vectors.row(r), pairs_gradient.row(r), store, vectors_gradient.row(r));
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

    pub fn forward(shape: Vectors, vectors: &[f32], pairs: &mut [f32]) {
        let vector = |i: usize| &vectors[i * shape.width..][..shape.width];
        for i in 1..shape.count {
            for j in 0..i {
                pairs[pair(i, j)] =
                    vector(i).iter().zip(vector(j)).fold(0.0f32, |sum, (a, b)| a.mul_add(*b, sum));
            }
        }
    }

    pub fn backward(shape: Vectors, vectors: &[f32], gradient: &[f32], store: Store, out: &mut [f32]) {
        for i in 0..shape.count {
            for d in 0..shape.width {
                let others = (0..shape.count).filter(|j| *j != i);
                let sum = others
                    .fold(0.0f32, |sum, j| gradient[pair(i, j)].mul_add(vectors[j * shape.width + d], sum));
                let out = &mut out[i * shape.width + d];
                *out = if store == Store::Add { *out + sum } else { sum };
            }
        }
    }
}
