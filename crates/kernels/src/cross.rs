//! The elementwise half of DCN-v2's cross layer: `y = x0 * u + x`, where `u = W x + b` is a linear layer.
//!
//! Backwards, with `g` the gradient of `y`: `du = g * x0`, `dx0 += g * u`, and `dx = g + W^T du`, where the last
//! product is [`Linear::backward_data`](crate::gemm::Linear::backward_data) with `Store::Add` onto `g`.

use crate::elementwise;
use crate::isa::Isa;
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
    for r in 0..y.rows() {
        elementwise::multiply_add(isa, y.row(r), x0.row(r), u.row(r), x.row(r));
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
    for r in 0..g.rows() {
        elementwise::multiply(isa, du.row(r), g.row(r), saved.x0.row(r));
        elementwise::add_product(isa, dx0.row(r), g.row(r), saved.u.row(r));
    }
}

fn check(a: Matrix<'_>, b: Matrix<'_>) {
    assert_eq!((a.rows(), a.columns()), (b.rows(), b.columns()), "shapes of a cross layer's matrices");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{Kind, bits, values};

    /// Rows with gaps at every level; the gaps stay.
    #[test]
    fn every_level_follows_the_formulas() {
        let (rows, columns, stride) = (3, 37, 40);
        let [x0, u, x, g, old] = [1, 2, 3, 4, 5].map(|seed| values(seed, Kind::Plain, rows * stride));
        let view = |data| Matrix::new(data, rows, columns, stride);
        for isa in Isa::all() {
            let [mut y, mut du, mut dx0] = [vec![7.0; rows * stride], vec![7.0; rows * stride], old.clone()];
            forward(isa, view(&x0), view(&u), view(&x), MatrixMut::new(&mut y, rows, columns, stride));
            let saved = Saved { x0: view(&x0), u: view(&u) };
            let to = MatrixMut::new(&mut du, rows, columns, stride);
            backward(isa, saved, view(&g), to, MatrixMut::new(&mut dx0, rows, columns, stride));
            for i in 0..rows * stride {
                let inside = i % stride < columns;
                let want = if inside {
                    [x0[i].mul_add(u[i], x[i]), g[i] * x0[i], g[i].mul_add(u[i], old[i])]
                } else {
                    [7.0, 7.0, old[i]]
                };
                assert_eq!(bits(&[y[i], du[i], dx0[i]]), bits(&want), "{isa:?}, place {i}");
            }
        }
    }
}
