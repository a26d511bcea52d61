//! Logistic regression and factorization machine: what rows say on their own and in pairs.
//!
//! ```text
//!   logit[task] = linear[task] + Σ_f w_f + ½ Σ_k ((Σ_f v_fk)² - Σ_f v_fk²)
//! ```
//!
//! A row has one block of floats per task: its weight `w`, then its factors `v` (none in logistic regression).
//! `linear` is the dense inputs' part with the bias; without dense inputs the layer adds the bias itself. Sums
//! run over the features in order, every operation rounded on its own, so the compiler may use any vectors.

use std::ops::Range;

use campanile_kernels::matrix::Store;

use super::{Backward, Forward, Read};
use crate::workspace::Place;

/// A factorization machine's last layer.
#[derive(Debug)]
pub(crate) struct Factorization {
    /// The dense inputs' part; none without dense inputs.
    pub linear: Option<Read>,
    /// The bias, if there is no dense part to hold it.
    pub bias: Option<Range<usize>>,
    /// All features' rows side by side.
    pub rows: Read,
    pub logits: Place,
    /// Floats of one feature's row: a block per task.
    pub dim: usize,
}

impl Factorization {
    pub fn forward(&self, pass: &mut Forward<'_>) {
        let Forward { values, scratch, parameters, .. } = pass;
        let tasks = self.logits.width;
        let block = self.dim / tasks;
        scratch.sums.resize(2 * self.dim, 0.0);
        let (sums, squares) = scratch.sums.split_at_mut(self.dim);
        values.write(self.logits, |values, mut logits| {
            let rows = values.read(self.rows.place);
            let linear = self.linear.map(|linear| values.read(linear.place));
            for sample in 0..values.samples {
                sum_rows(rows.row(sample), sums, squares);
                for (task, logit) in logits.row(sample).iter_mut().enumerate() {
                    let own = match (&linear, &self.bias) {
                        (Some(linear), _) => linear.row(sample)[task],
                        (None, Some(bias)) => parameters[bias.start + task],
                        (None, None) => 0.0,
                    };
                    let first = task * block;
                    let factors = sums[first..first + block].iter().zip(&squares[first..]).skip(1);
                    let pairs = factors.fold(0.0, |pairs, (sum, square)| pairs + (sum * sum - square));
                    *logit = own + sums[first] + 0.5 * pairs;
                }
            }
        });
    }

    pub fn backward(&self, pass: &mut Backward<'_>) {
        let Backward { values, gradients, gradient, store, scratch, .. } = pass;
        let tasks = self.logits.width;
        let block = self.dim / tasks;
        if let Some(linear) = self.linear {
            gradients.write(linear.place, |gradients, mut out| {
                let logits = gradients.read(self.logits);
                (0..gradients.samples).for_each(|n| out.row(n).copy_from_slice(logits.row(n)));
            });
        }
        if let Some(bias) = &self.bias {
            let logits = gradients.read(self.logits);
            for (task, sum) in gradient[bias.clone()].iter_mut().enumerate() {
                let own = (0..gradients.samples).fold(0.0, |sum, n| sum + logits.row(n)[task]);
                *sum = if *store == Store::Add { *sum + own } else { own };
            }
        }
        scratch.sums.resize(2 * self.dim, 0.0);
        let (sums, squares) = scratch.sums.split_at_mut(self.dim);
        gradients.write(self.rows.place, |gradients, mut out| {
            let (rows, logits) = (values.read(self.rows.place), gradients.read(self.logits));
            for sample in 0..gradients.samples {
                match *logits.row(sample) {
                    [logit] if block == 1 => {
                        out.row(sample).fill(logit);
                        continue;
                    }
                    ref logits if block == 1 => {
                        out.row(sample).chunks_exact_mut(tasks).for_each(|out| out.copy_from_slice(logits));
                        continue;
                    }
                    _ => {}
                }
                let row = rows.row(sample);
                sum_rows(row, sums, squares);
                let features = out.row(sample).chunks_exact_mut(self.dim).zip(row.chunks_exact(self.dim));
                for (out, row) in features {
                    let blocks = out.chunks_exact_mut(block).zip(row.chunks_exact(block));
                    for ((out, row), (g, sums)) in
                        blocks.zip(logits.row(sample).iter().zip(sums.chunks(block)))
                    {
                        out[0] = *g;
                        for ((out, value), sum) in out.iter_mut().zip(row).zip(sums).skip(1) {
                            *out = g * (sum - value);
                        }
                    }
                }
            }
        });
    }
}

/// The sums of the features' rows and of their squares, element by element. Short rows are summed in registers.
fn sum_rows(rows: &[f32], sums: &mut [f32], squares: &mut [f32]) {
    match sums.len() {
        1 => sum_short_rows::<1>(rows, sums, squares),
        4 => sum_short_rows::<4>(rows, sums, squares),
        8 => sum_short_rows::<8>(rows, sums, squares),
        16 => sum_short_rows::<16>(rows, sums, squares),
        _ => {
            sums.fill(0.0);
            squares.fill(0.0);
            rows.chunks_exact(sums.len()).for_each(|row| add_row(row, sums, squares));
        }
    }
}

fn sum_short_rows<const DIM: usize>(rows: &[f32], sums: &mut [f32], squares: &mut [f32]) {
    let (mut short_sums, mut short_squares) = ([0.0; DIM], [0.0; DIM]);
    for row in rows.as_chunks::<DIM>().0 {
        add_row(row, &mut short_sums, &mut short_squares);
    }
    sums.copy_from_slice(&short_sums);
    squares.copy_from_slice(&short_squares);
}

#[inline(always)]
fn add_row(row: &[f32], sums: &mut [f32], squares: &mut [f32]) {
    for ((sum, square), value) in sums.iter_mut().zip(squares).zip(row) {
        *sum += value;
        *square += value * value;
    }
}
