//! The job, checked and filled in.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    Grains,
    data::DataSpec,
    model::ModelSpec,
    optimizer::{DenseOptimizer, LearningRate, SparseOptimizer},
};

/// What `job.toml` says, checked and filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Changes results: equal on every rank, hashed, stored in checkpoints.
    pub run: Run,
    /// Changes none.
    pub process: Process,
}

/// Everything that changes results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Seeds initial weights, rounding, shuffling and the synthetic world.
    pub seed: u64,
    /// Samples of a global batch.
    pub batch_size: usize,
    /// Grains of a batch, a power of two; the number of ranks must divide it.
    pub grain_count: usize,
    /// Passes over the training data.
    pub epochs: u64,
    /// Stop after this many steps; 0 means at the end of the data.
    pub steps_max: u64,
    /// The input.
    pub data: DataSpec,
    /// The model.
    pub model: ModelSpec,
    /// How rows move.
    pub sparse: SparseTraining,
    /// How dense weights move.
    pub dense: DenseTraining,
    /// Evaluation while training.
    pub evaluate: Evaluate,
}

/// How rows move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseTraining {
    /// The formula.
    pub optimizer: SparseOptimizer,
    /// The rate.
    pub learning_rate: LearningRate,
    /// L2 on touched rows.
    pub l2: f32,
    /// A merged row gradient is scaled down to this norm; 0 means no limit.
    pub row_norm_max: f32,
}

/// How dense weights move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseTraining {
    /// The formula.
    pub optimizer: DenseOptimizer,
    /// The rate.
    pub learning_rate: LearningRate,
    /// L2 on all dense weights.
    pub l2: f32,
    /// The whole dense gradient is scaled down to this norm; 0 means no limit.
    pub norm_max: f32,
}

/// Evaluation while training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluate {
    /// Evaluate on the validation split every so many steps; 0 means only at the end.
    pub every_steps: u64,
    /// At most this many samples each time; 0 means all. The final evaluation always takes all.
    pub samples_max: u64,
    /// Steps of the window over which the windowed metrics run.
    pub window_steps: u64,
}

/// What changes no result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Ranks as threads; 0 means one per core, rounded down to a divisor of the grains.
    pub threads: usize,
    /// Input files by split; globs allowed.
    pub data: DataFiles,
    /// Where packed data is kept.
    pub cache_dir: PathBuf,
    /// Memory that `prep` may use.
    pub prep_memory_mib: u64,
    /// Memory that tables and their state may use; 0 means what the machine has free.
    pub table_memory_mib: u64,
    /// Where the run's output goes: checkpoints, metrics, events.
    pub output_dir: PathBuf,
    /// A checkpoint every so many steps; 0 means only at the end.
    pub checkpoint_every_steps: u64,
    /// How many checkpoints are kept.
    pub checkpoints_kept: usize,
    /// Batches prepared ahead of the step.
    pub batches_ahead: usize,
}

/// Input files by split; globs allowed. Only `train` is needed unless the split is by file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DataFiles {
    /// Training files, in order.
    pub train: Vec<String>,
    /// Validation files.
    pub valid: Vec<String>,
    /// Test files.
    pub test: Vec<String>,
}

impl Run {
    /// The cut of a batch.
    pub fn grains(&self) -> Grains {
        Grains::new(self.grain_count)
    }
}
