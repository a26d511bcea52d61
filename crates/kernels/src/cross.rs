//! The elementwise half of DCN-v2's cross layer: `y = x0 * u + x`, where `u = W x + b` is a linear layer.
//!
//! Backwards, with `g` the gradient of `y`: `du = g * x0`, `dx0 += g * u`, and `dx = g + W^T du`, where the last
//! product is [`Linear::backward_data`](crate::gemm::Linear::backward_data) with `Store::Add` onto `g`.

use crate::Isa;
use crate::matrix::{Matrix, MatrixMut};

/// `y = x0 * u + x`, fused.
///
/// # Panics
///
/// If the shapes differ.
pub fn forward(isa: Isa, x0: Matrix<'_>, u: Matrix<'_>, x: Matrix<'_>, mut y: MatrixMut<'_>) {
    for other in [x0, u, x] {
        check(y.view(), other);
    }
    let _ = isa;
    for r in 0..y.rows() {
        let (x0, u, x) = (x0.row(r), u.row(r), x.row(r));
        for (i, y) in y.row(r).iter_mut().enumerate() {
            *y = x0[i].mul_add(u[i], x[i]);
        }
    }
}

/// What the backward pass of a cross layer reads.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// The input of the first cross layer.
    pub x0: Matrix<'a>,
    /// This layer's `W x + b`.
    pub u: Matrix<'a>,
}

/// `du = g * x0` and `dx0 += g * u`, the latter fused.
///
/// # Panics
///
/// If the shapes differ.
pub fn backward(isa: Isa, saved: Saved<'_>, g: Matrix<'_>, mut du: MatrixMut<'_>, mut dx0: MatrixMut<'_>) {
    for other in [saved.x0, saved.u, du.view(), dx0.view()] {
        check(g, other);
    }
    let _ = isa;
    for r in 0..g.rows() {
        let (x0, u, g) = (saved.x0.row(r), saved.u.row(r), g.row(r));
        let (du, dx0) = (du.row(r), dx0.row(r));
        for i in 0..g.len() {
            du[i] = g[i] * x0[i];
            dx0[i] = g[i].mul_add(u[i], dx0[i]);
        }
    }
}

fn check(a: Matrix<'_>, b: Matrix<'_>) {
    assert_eq!((a.rows(), a.columns()), (b.rows(), b.columns()), "shapes of a cross layer's matrices");
}
