//! How weights move: optimizers and learning-rate schedules, with their formulas.
//!
//! `g` is the gradient of the mean loss over the global batch, merged over duplicates of a row, with
//! `g += l2 * w` first. All formulas are applied exactly once per row and step. `t` counts steps from 1. State whose
//! magnitude is below the smallest normal number, 2^-126, is kept as zero.

use serde::{Deserialize, Serialize};

use crate::{
    config::keys::choice,
    elementary::{cos_of_half_turn, power as power_of},
};

choice! {
    /// How a table's rows move. The state kept per row follows from the choice.
    #[derive(Copy)]
    pub enum SparseOptimizer {
        /// `w -= lr * g`. No state.
        Sgd,
        /// `s += g*g; w -= lr * g / (sqrt(s) + epsilon)`. One float per element.
        Adagrad {
            /// Added to the root.
            epsilon: f32 = 1e-8,
            /// First value of `s`.
            initial: f32 = 0.0,
        },
        /// `s += mean(g*g); w -= lr / (sqrt(s) + epsilon) * g`. One float per row.
        RowwiseAdagrad {
            /// Added to the root.
            epsilon: f32 = 1e-8,
            /// First value of `s`.
            initial: f32 = 0.0,
        },
        /// `m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; w -= lr * m/(1-b1^t) / (sqrt(v/(1-b2^t)) + epsilon)`.
        /// Two floats per element; rows that a step does not touch keep their state.
        Adam {
            /// Decay of `m`.
            beta1: f32 = 0.9,
            /// Decay of `v`.
            beta2: f32 = 0.999,
            /// Added to the root.
            epsilon: f32 = 1e-8,
        },
        /// Adam with one `v` per row, fed with `mean(g*g)`.
        RowwiseAdam {
            /// Decay of `m`.
            beta1: f32 = 0.9,
            /// Decay of `v`.
            beta2: f32 = 0.999,
            /// Added to the root.
            epsilon: f32 = 1e-8,
        },
        /// FTRL-proximal with `alpha = lr`, whose rate may change: `z = -(sign(w)*l1 + l2*w) where n = 0; n += g*g;`
        /// `d = (beta + sqrt(n)) / lr; u = z + g - d*w; w = 0 where |u| <= l1, else -(u - sign(u)*l1) / (d + l2);`
        /// `z = u + d*w`. Two floats per element. `u` is the `z` of the literature. What is kept is free of the rate, so
        /// a rate that changes moves no weight by itself, and a first value stays until gradients move it. Its own
        /// `l2` is proximal; the general `l2` must be 0.
        Ftrl {
            /// Smooths the first steps.
            beta: f32 = 1.0,
            /// Drives small weights to exact zero.
            l1: f32 = 0.0,
            /// Shrinks weights.
            l2: f32 = 0.0,
        },
    }
}

choice! {
    /// How dense weights move.
    #[derive(Copy)]
    pub enum DenseOptimizer {
        /// `u = momentum*u + g; w -= lr * u`.
        Sgd {
            /// 0 keeps no state.
            momentum: f32 = 0.0,
        },
        /// `s += g*g; w -= lr * g / (sqrt(s) + epsilon)`.
        Adagrad {
            /// Added to the root.
            epsilon: f32 = 1e-8,
            /// First value of `s`.
            initial: f32 = 0.0,
        },
        /// As the sparse Adam.
        Adam {
            /// Decay of `m`.
            beta1: f32 = 0.9,
            /// Decay of `v`.
            beta2: f32 = 0.999,
            /// Added to the root.
            epsilon: f32 = 1e-8,
        },
        /// Adam with decoupled decay: `w -= lr * decay * w` first.
        Adamw {
            /// Decay of `m`.
            beta1: f32 = 0.9,
            /// Decay of `v`.
            beta2: f32 = 0.999,
            /// Added to the root.
            epsilon: f32 = 1e-8,
            /// Decoupled decay.
            decay: f32 = 0.01,
        },
    }
}

/// A learning rate and how it changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    /// The peak.
    pub base: f32,
    /// The course.
    pub schedule: Schedule,
}

choice! {
    /// The course of a learning rate over steps.
    #[derive(Copy)]
    pub enum Schedule {
        /// Always the base.
        Constant,
        /// MLPerf DLRM: linear up over `warmup_steps`, flat, then from `decay_start` over `decay_steps` down with
        /// the given power, and `end_factor` of the base at the end and after.
        WarmupPolynomial {
            /// Steps up to the base.
            warmup_steps: u64 = 0,
            /// First step of the decay.
            decay_start: u64,
            /// Length of the decay.
            decay_steps: u64,
            /// 2 in MLPerf.
            power: f32 = 2.0,
            /// What is left at the end, as a share of the base.
            end_factor: f32 = 0.0,
        },
        /// Linear up over `warmup_steps`, then half a cosine down to `end_factor` at `total_steps`.
        Cosine {
            /// Steps up to the base.
            warmup_steps: u64 = 0,
            /// Where the cosine ends.
            total_steps: u64,
            /// What is left at the end, as a share of the base.
            end_factor: f32 = 0.0,
        },
    }
}

impl LearningRate {
    /// The first step from which on the rate is 0 and stays so; none where it always moves something.
    pub fn ends_at(&self) -> Option<u64> {
        let (end, left) = match self.schedule {
            Schedule::Constant => return None,
            Schedule::WarmupPolynomial { decay_start, decay_steps, end_factor, .. } => {
                (decay_start.saturating_add(decay_steps), end_factor)
            }
            Schedule::Cosine { total_steps, end_factor, .. } => (total_steps, end_factor),
        };
        (left == 0.0).then_some(end)
    }

    /// The rate of step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f32 {
        let warm = |warmup: u64| if step < warmup { (step + 1) as f64 / warmup as f64 } else { 1.0 };
        let share = |from: u64, length: u64| {
            if step < from {
                0.0
            } else if length == 0 {
                1.0
            } else {
                ((step - from) as f64 / length as f64).min(1.0)
            }
        };
        let factor = match self.schedule {
            Schedule::Constant => 1.0,
            Schedule::WarmupPolynomial { warmup_steps, decay_start, decay_steps, power, end_factor } => {
                let left = power_of(1.0 - share(decay_start, decay_steps), f64::from(power));
                warm(warmup_steps) * (f64::from(end_factor) + (1.0 - f64::from(end_factor)) * left)
            }
            Schedule::Cosine { warmup_steps, total_steps, end_factor } => {
                let done = share(warmup_steps, total_steps.saturating_sub(warmup_steps));
                let left = 0.5 * (1.0 + cos_of_half_turn(done));
                warm(warmup_steps) * (f64::from(end_factor) + (1.0 - f64::from(end_factor)) * left)
            }
        };
        (f64::from(self.base) * factor) as f32
    }
}

impl SparseOptimizer {
    /// Floats of state per row of `dim` elements.
    pub fn state_floats(&self, dim: usize) -> usize {
        match self {
            SparseOptimizer::Sgd => 0,
            SparseOptimizer::Adagrad { .. } => dim,
            SparseOptimizer::RowwiseAdagrad { .. } => 1,
            SparseOptimizer::Adam { .. } | SparseOptimizer::Ftrl { .. } => 2 * dim,
            SparseOptimizer::RowwiseAdam { .. } => dim + 1,
        }
    }
}
