//! How weights move: the formulas of every optimizer, for a row or for all dense weights.

use std::ops::Range;

use campanile_spec::{
    DenseOptimizer, Follow, SparseOptimizer,
    config::{DenseTraining, SparseTraining},
};

use crate::{
    elementary::{rate_after, whole_power},
    oracle::Parameter,
    sums::sum_of_squares,
};

/// The blocks of the whole gradient's norm.
const NORM_BLOCK: usize = 4096;

/// Weights that move together, with the state of their optimizer: a table's row, or all dense weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The weights.
    pub values: Vec<f32>,
    /// The state, in the order in which [`SparseOptimizer`]'s formulas name it.
    pub state: Vec<f32>,
}

/// Zeros, and the optimizer's first state.
pub(crate) fn first_weights(optimizer: DenseOptimizer, parameters: &[Parameter]) -> Row {
    let count = parameters.last().map_or(0, |parameter| parameter.range.end);
    let mut weights = first_row(like_sparse(optimizer), count);
    weights.state.resize(weights.state.len().max(count), 0.0);
    weights
}

/// Some weights, and at which share of the rate they move.
type RateShare = (Range<usize>, f32);

/// Clips the whole gradient, adds L2, and moves every weight, some at a share of the rate.
pub(crate) fn move_dense(
    training: &DenseTraining,
    steps: u64,
    weights: &mut Row,
    gradient: &[f32],
    (segments, rate_shares): (&[Range<usize>], &[RateShare]),
) {
    let square = |block: &[f32]| block.iter().fold(0.0f64, |sum, g| sum + f64::from(*g) * f64::from(*g));
    let blocks = segments.iter().flat_map(|segment| gradient[segment.clone()].chunks(NORM_BLOCK));
    let norm = blocks.fold(0.0f64, |sum, block| sum + square(block)).sqrt();
    let limit = f64::from(training.norm_max);
    let clip = if limit > 0.0 && norm > limit { (limit / norm) as f32 } else { 1.0 };
    let (base, l2) = (rate_after(steps, &training.learning_rate), training.l2);
    let share = |weight: usize| rate_shares.iter().find(|(weights, _)| weights.contains(&weight));
    let rate = |weight: usize| base * share(weight).map_or(1.0, |(_, share)| *share);
    let Row { values, state } = weights;
    let mut gradient: Vec<f32> = gradient.iter().zip(&*values).map(|(g, w)| g * clip + l2 * w).collect();
    if let DenseOptimizer::Sgd { momentum } = training.optimizer {
        for (u, g) in state.iter_mut().zip(&mut gradient) {
            *u = flush(momentum * *u + *g);
            *g = *u;
        }
    }
    if let DenseOptimizer::Adamw { decay, .. } = training.optimizer {
        values.iter_mut().enumerate().for_each(|(i, w)| *w -= rate(i) * decay * *w);
    }
    move_weights(like_sparse(training.optimizer), rate, steps, weights, &gradient);
}

/// Moves one row by its merged gradient: the limit on its norm, L2, then the formula.
pub(crate) fn update_row(training: &SparseTraining, steps: u64, row: &mut Row, mut g: Vec<f32>) {
    let (norm, limit) = (sum_of_squares(&g).sqrt(), training.row_norm_max);
    if limit > 0.0 && norm > limit {
        g.iter_mut().for_each(|g| *g *= limit / norm);
    }
    g.iter_mut().zip(&row.values).for_each(|(g, w)| *g += training.l2 * w);
    let rate = rate_after(steps, &training.learning_rate);
    move_weights(training.optimizer, |_| rate, steps, row, &g);
}

/// Moves one row that follows a teacher: the formula alone, at a rate of its own.
pub(crate) fn follow_row(follow: &Follow, steps: u64, row: &mut Row, g: &[f32]) {
    move_weights(follow.optimizer, |_| follow.learning_rate, steps, row, g);
}

/// The dense formulas are the sparse ones, element by element; momentum and decay come before.
fn like_sparse(optimizer: DenseOptimizer) -> SparseOptimizer {
    match optimizer {
        DenseOptimizer::Sgd { .. } => SparseOptimizer::Sgd,
        DenseOptimizer::Adagrad { epsilon, initial } => SparseOptimizer::Adagrad { epsilon, initial },
        DenseOptimizer::Adam { beta1, beta2, epsilon }
        | DenseOptimizer::Adamw { beta1, beta2, epsilon, .. } => {
            SparseOptimizer::Adam { beta1, beta2, epsilon }
        }
    }
}

pub(crate) fn first_row(optimizer: SparseOptimizer, dim: usize) -> Row {
    let first = match optimizer {
        SparseOptimizer::Adagrad { initial, .. } | SparseOptimizer::RowwiseAdagrad { initial, .. } => initial,
        _ => 0.0,
    };
    Row { values: vec![0.0; dim], state: vec![first; optimizer.state_floats(dim)] }
}

/// The formulas of [`SparseOptimizer`], in the step after `steps` steps, with the rate of every element.
fn move_weights(
    optimizer: SparseOptimizer,
    rate: impl Fn(usize) -> f32,
    steps: u64,
    row: &mut Row,
    g: &[f32],
) {
    let Row { values, state } = row;
    let (dim, mean) = (values.len(), sum_of_squares(g) / values.len() as f32);
    let left = |beta: f32| (1.0 - whole_power(f64::from(beta), steps + 1)) as f32;
    for (i, (w, &g)) in values.iter_mut().zip(g).enumerate() {
        let rate = rate(i);
        match optimizer {
            SparseOptimizer::Sgd => *w -= rate * g,
            SparseOptimizer::Adagrad { epsilon, .. } => {
                state[i] = flush(state[i] + g * g);
                *w -= rate * g / (state[i].sqrt() + epsilon);
            }
            SparseOptimizer::RowwiseAdagrad { epsilon, .. } => {
                state[0] = if i == 0 { flush(state[0] + mean) } else { state[0] };
                *w -= rate / (state[0].sqrt() + epsilon) * g;
            }
            SparseOptimizer::Adam { beta1, beta2, epsilon } => {
                let (m, v) = state.split_at_mut(dim);
                m[i] = flush(beta1 * m[i] + (1.0 - beta1) * g);
                v[i] = flush(beta2 * v[i] + (1.0 - beta2) * g * g);
                *w -= rate / left(beta1) * m[i] / ((v[i] / left(beta2)).sqrt() + epsilon);
            }
            SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon } => {
                let (m, v) = state.split_at_mut(dim);
                m[i] = flush(beta1 * m[i] + (1.0 - beta1) * g);
                v[0] = if i == 0 { flush(beta2 * v[0] + (1.0 - beta2) * mean) } else { v[0] };
                *w -= rate / left(beta1) / ((v[0] / left(beta2)).sqrt() + epsilon) * m[i];
            }
            SparseOptimizer::Ftrl { .. } if rate == 0.0 || flush(g * g) == 0.0 => {}
            SparseOptimizer::Ftrl { beta, l1, l2 } => {
                let (z, n) = state.split_at_mut(dim);
                let sign = if *w == 0.0 { 0.0 } else { w.signum() };
                let left = if n[i] == 0.0 { -(sign * l1 + l2 * *w) } else { z[i] };
                n[i] += g * g;
                let slope = (beta + n[i].sqrt()) / rate;
                let pull = left + (g - slope * *w);
                let moved = -(pull - pull.signum() * l1) / (slope + l2);
                *w = if pull.abs() <= l1 { 0.0 } else { moved };
                z[i] = flush(pull + slope * *w);
            }
        }
    }
}

/// Zero in place of what is below the normal numbers.
fn flush(state: f32) -> f32 {
    if state.abs() < f32::from_bits(0x0080_0000) { 0.0 } else { state }
}
