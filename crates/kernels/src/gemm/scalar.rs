//! The specification: plain loops, one accumulator per output element, `k` rising.
//!
//! Every other level must give these bits for `f32` operands. The sum over `k` is cut into blocks of
//! [`BLOCK`](super::BLOCK); each block is summed from zero with fused multiply-add and then added to what is
//! there. The first block of a product that replaces is stored as it is.

use super::{Activation, BLOCK, round_to_bf16};
use crate::matrix::{Matrix, MatrixMut, Store};

/// The blocked sum of `a(k) * b(k)` for `k` in `0..count`, added to `start` where there is one.
pub(crate) fn sum_of_products(
    count: usize,
    a: impl Fn(usize) -> f32,
    b: impl Fn(usize) -> f32,
    start: Option<f32>,
) -> f32 {
    let mut total = start;
    for block in (0..count).step_by(BLOCK) {
        let sum = (block..count.min(block + BLOCK)).fold(0.0, |sum, k| a(k).mul_add(b(k), sum));
        total = Some(total.map_or(sum, |total| total + sum));
    }
    total.unwrap_or(0.0)
}

/// `y = x w^T + bias`, then the activation.
pub fn forward(x: Matrix<'_>, w: &[f32], bias: Option<&[f32]>, activation: Activation, mut y: MatrixMut<'_>) {
    for r in 0..x.rows() {
        let (x, y) = (x.row(r), y.row(r));
        for (c, (w, y)) in w.chunks_exact(x.len()).zip(y).enumerate() {
            let sum = sum_of_products(x.len(), |k| x[k], |k| w[k], None);
            let sum = bias.map_or(sum, |bias| sum + bias[c]);
            *y = activation.apply(sum);
        }
    }
}

/// `dx = dy w`, zero where the mask is not above zero.
pub fn backward_data(
    dy: Matrix<'_>,
    w: &[f32],
    mask: Option<Matrix<'_>>,
    store: Store,
    mut dx: MatrixMut<'_>,
) {
    for r in 0..dy.rows() {
        let dy = dy.row(r);
        let inputs = dx.columns();
        for (c, dx) in dx.row(r).iter_mut().enumerate() {
            let start = (store == Store::Add).then_some(*dx);
            let sum = sum_of_products(dy.len(), |k| dy[k], |k| w[k * inputs + c], start);
            *dx = if mask.is_some_and(|mask| mask.row(r)[c] <= 0.0) { 0.0 } else { sum };
        }
    }
}

/// `dw = dy^T x`, or added.
pub fn backward_weights(dy: Matrix<'_>, x: Matrix<'_>, store: Store, dw: &mut [f32]) {
    for (o, dw) in dw.chunks_exact_mut(x.columns()).enumerate() {
        for (i, dw) in dw.iter_mut().enumerate() {
            let start = (store == Store::Add).then_some(*dw);
            *dw = sum_of_products(x.rows(), |k| dy.row(k)[o], |k| x.row(k)[i], start);
        }
    }
}

/// `db = ` the column sums of `dy`, each from zero in the order of the rows, or added.
pub fn backward_bias(dy: Matrix<'_>, store: Store, db: &mut [f32]) {
    for (o, db) in db.iter_mut().enumerate() {
        let sum = (0..dy.rows()).fold(0.0, |sum, k| sum + dy.row(k)[o]);
        *db = if store == Store::Add { *db + sum } else { sum };
    }
}

/// A matrix rounded to bfloat16, in `room`.
pub fn rounded<'a>(x: Matrix<'_>, room: &'a mut [f32]) -> Matrix<'a> {
    for (to, r) in room.chunks_exact_mut(x.columns()).zip(0..x.rows()) {
        to.iter_mut().zip(x.row(r)).for_each(|(to, from)| *to = round_to_bf16(*from));
    }
    Matrix::new(room, x.rows(), x.columns(), x.columns())
}
