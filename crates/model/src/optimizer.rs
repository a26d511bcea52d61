//! How dense weights move: plain loops over slices of the flat vector.
//!
//! Every element moves by itself, each operation rounded on its own, so a rank may move any slice and the
//! bits are the same; the compiler vectorises the loops. The formulas stand in
//! [`DenseOptimizer`]; the gradient is first scaled by the clip factor, then `l2 * w` is added.
//!
//! The norm of the whole gradient must not depend on who computes which part: squares are summed in `f64`
//! inside fixed blocks of [`NORM_BLOCK`] elements, and the blocks' sums are added in order.

use campanile_spec::{DenseOptimizer, config::DenseTraining, elementary::whole_power};

/// Elements whose squares are summed before any other's; slices of ranks begin at multiples of it.
pub const NORM_BLOCK: usize = 4096;

/// The names of the state that an optimizer keeps, one float of each per weight.
pub fn state_names(optimizer: &DenseOptimizer) -> &'static [&'static str] {
    match optimizer {
        DenseOptimizer::Sgd { momentum } if *momentum == 0.0 => &[],
        DenseOptimizer::Sgd { .. } => &["momentum"],
        DenseOptimizer::Adagrad { .. } => &["sum"],
        DenseOptimizer::Adam { .. } | DenseOptimizer::Adamw { .. } => &["m", "v"],
    }
}

/// The state of `count` weights before the first step: one vector per name of [`state_names`].
pub fn first_state(optimizer: &DenseOptimizer, count: usize) -> Vec<Vec<f32>> {
    let first = match optimizer {
        DenseOptimizer::Adagrad { initial, .. } => *initial,
        _ => 0.0,
    };
    vec![vec![first; count]; state_names(optimizer).len()]
}

/// The sums of squares of each block of a gradient, or of a part of it that begins at a block.
pub fn block_squares(gradient: &[f32]) -> impl Iterator<Item = f64> {
    gradient
        .chunks(NORM_BLOCK)
        .map(|block| block.iter().fold(0.0, |sum, g| sum + f64::from(*g) * f64::from(*g)))
}

/// What the whole gradient is multiplied with so that its norm is at most `norm_max` (0: no limit), from the
/// block sums of all parts, in order.
pub fn clip_factor(norm_max: f32, block_squares: impl Iterator<Item = f64>) -> f32 {
    let (limit, norm) = (f64::from(norm_max), block_squares.fold(0.0, |sum, block| sum + block).sqrt());
    if limit > 0.0 && norm > limit { (limit / norm) as f32 } else { 1.0 }
}

/// One step's move, the same for all weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    optimizer: DenseOptimizer,
    rate: f32,
    l2: f32,
    clip: f32,
    /// Adam: `1 - beta1^t` and `1 - beta2^t`.
    left: [f32; 2],
}

impl Update {
    /// The move of step `step`, counted from 0; `clip` is [`clip_factor`]'s.
    pub fn new(training: &DenseTraining, step: u64, clip: f32) -> Update {
        let left = |beta: f32| (1.0 - whole_power(f64::from(beta), step + 1)) as f32;
        let left = match training.optimizer {
            DenseOptimizer::Adam { beta1, beta2, .. } | DenseOptimizer::Adamw { beta1, beta2, .. } => {
                [left(beta1), left(beta2)]
            }
            DenseOptimizer::Sgd { .. } | DenseOptimizer::Adagrad { .. } => [1.0; 2],
        };
        let rate = training.learning_rate.at(step);
        Update { optimizer: training.optimizer, rate, l2: training.l2, clip, left }
    }

    /// The same at a share of the rate.
    pub fn at_share(self, share: f32) -> Update {
        Update { rate: self.rate * share, ..self }
    }

    /// Moves a slice of the weights; `state` are the same slices of the state's vectors.
    ///
    /// # Panics
    /// If lengths differ, or the state is not what the optimizer keeps.
    pub fn apply(&self, weights: &mut [f32], state: &mut [&mut [f32]], gradient: &[f32]) {
        assert_eq!(weights.len(), gradient.len(), "weights and gradient");
        assert_eq!(state.len(), state_names(&self.optimizer).len(), "state of {:?}", self.optimizer);
        assert!(state.iter().all(|state| state.len() == weights.len()), "weights and state");
        let Update { rate, l2, clip, left, .. } = *self;
        let pairs = weights.iter_mut().zip(gradient).map(move |(w, g)| {
            let g = g * clip + l2 * *w;
            (w, g)
        });
        match (self.optimizer, state) {
            (DenseOptimizer::Sgd { momentum }, [momenta]) => {
                for ((w, g), u) in pairs.zip(momenta.iter_mut()) {
                    *u = flush(momentum * *u + g);
                    *w -= rate * *u;
                }
            }
            (DenseOptimizer::Sgd { .. }, _) => pairs.for_each(|(w, g)| *w -= rate * g),
            (DenseOptimizer::Adagrad { epsilon, .. }, [sums]) => {
                for ((w, g), s) in pairs.zip(sums.iter_mut()) {
                    *s = flush(*s + g * g);
                    *w -= rate * g / (s.sqrt() + epsilon);
                }
            }
            (
                DenseOptimizer::Adam { beta1, beta2, epsilon }
                | DenseOptimizer::Adamw { beta1, beta2, epsilon, .. },
                [means, squares],
            ) => {
                let decay = match self.optimizer {
                    DenseOptimizer::Adamw { decay, .. } => rate * decay,
                    _ => 0.0,
                };
                for (((w, g), m), v) in pairs.zip(means.iter_mut()).zip(squares.iter_mut()) {
                    *w -= decay * *w;
                    *m = flush(beta1 * *m + (1.0 - beta1) * g);
                    *v = flush(beta2 * *v + (1.0 - beta2) * g * g);
                    *w -= rate / left[0] * *m / ((*v / left[1]).sqrt() + epsilon);
                }
            }
            (optimizer, _) => unreachable!("the state of {optimizer:?} was checked above"),
        }
    }
}

/// Zero in place of state that is too small for a normal number: fading by a factor each step, it would end at a value that
/// never changes again, and processors take a hundred times longer over such numbers.
#[inline(always)]
fn flush(state: f32) -> f32 {
    if state.abs() < f32::MIN_POSITIVE { 0.0 } else { state }
}
