//! How rows move: the kernel's formula and numbers for one step of a table.

use campanile_kernels::update::{Rule, Step};
use campanile_spec::optimizer::SparseOptimizer;

use super::{Table, UpdateStep};

impl Table {
    /// A table with a rate of its own takes the step's number and seed, and nothing else.
    pub(super) fn kernel_step(&self, step: &UpdateStep) -> Step {
        let (learning_rate, l2, norm_max) = match self.own_rate {
            Some(rate) => (rate, 0.0, 0.0),
            None => (step.learning_rate, step.l2, step.row_norm_max),
        };
        Step {
            rule: rule(&self.optimizer),
            learning_rate,
            step: step.step,
            l2,
            norm_max,
            seed: step.seed,
            table: self.key,
            first_row: self.rows.start,
            first_column: self.columns.start,
        }
    }

    /// Whether the formula needs a sum over the whole row.
    pub(super) fn is_rowwise(&self) -> bool {
        rule(&self.optimizer).is_rowwise()
    }
}

fn rule(optimizer: &SparseOptimizer) -> Rule {
    match *optimizer {
        SparseOptimizer::Sgd => Rule::Sgd,
        SparseOptimizer::Adagrad { epsilon, .. } => Rule::Adagrad { epsilon },
        SparseOptimizer::RowwiseAdagrad { epsilon, .. } => Rule::RowwiseAdagrad { epsilon },
        SparseOptimizer::Adam { beta1, beta2, epsilon } => Rule::Adam { beta1, beta2, epsilon },
        SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon } => Rule::RowwiseAdam { beta1, beta2, epsilon },
        SparseOptimizer::Ftrl { beta, l1, l2 } => Rule::Ftrl { beta, l1, l2 },
    }
}
