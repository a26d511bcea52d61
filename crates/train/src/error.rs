//! Why a run ended.

use std::path::{Path, PathBuf};

use campanile_comm::CommError;
use campanile_data::DataError;
use campanile_model::ModelError;
use campanile_sharded::ShardedError;
use campanile_spec::{PlanError, PlanFileError};
use campanile_tables::{CheckpointError, TableError};
use thiserror::Error;

/// Why training or evaluation could not go on.
#[derive(Debug, Error)]
pub enum TrainError {
    /// Ranks could not talk, or one of them gave up.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A lookup or update failed.
    #[error(transparent)]
    Sharded(#[from] ShardedError),
    /// The input could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model's shapes do not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The plan is one for another model or another number of ranks.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan file cannot be read.
    #[error(
        "process.plan: cannot read {path}: {source}; write it with `campanile plan --out`, or leave the key out"
    )]
    PlanUnread {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The plan file is not one for this job.
    #[error("process.plan: {path}: {source}")]
    PlanFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PlanFileError,
    },
    /// A table could not do what it was asked.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The number of ranks does not divide the grains.
    #[error(
        "{ranks} ranks do not divide the {grains} grains of a batch; set process.threads, or the number of \
         processes, to one of {options}"
    )]
    RankCount {
        /// Asked for.
        ranks: usize,
        /// Grains of the run.
        grains: usize,
        /// What would do.
        options: String,
    },
    /// Ranks were started with different things.
    #[error("{odd}; {cure}")]
    Different {
        /// Which ranks differ, where they run, and in what.
        odd: String,
        /// What to do.
        cure: &'static str,
    },
    /// A grain does not fit a weight-gradient product.
    #[error(
        "a grain of {samples} samples is above the limit of {limit}; raise run.grains or lower run.batch_size"
    )]
    GrainTooLarge {
        /// Samples of a grain.
        samples: usize,
        /// The most.
        limit: usize,
    },
    /// Tables need more memory than there is.
    #[error("{0}")]
    Memory(crate::memory::DoesNotFit),
    /// The newest checkpoint belongs to another run.
    #[error(
        "{path} was trained with other settings: {difference}; bring these back to go on from it, start afresh with \
         --fresh (which removes the checkpoints), or give this job another directory with --output"
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// Which keys differ.
        difference: String,
    },
    /// The newest checkpoint does not say what it was trained with.
    #[error(
        "{path}: the job in the manifest cannot be read: {reason}; go on with the program that wrote it, or start afresh with \
         --fresh (which removes the checkpoints)"
    )]
    NoJob {
        /// The checkpoint.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The newest checkpoint was trained on other data.
    #[error(
        "{path} was trained on other data (fingerprint {found}, now {wanted}); give this job another \
         process.output_dir, or bring the old input back"
    )]
    OtherData {
        /// The checkpoint.
        path: PathBuf,
        /// In the checkpoint.
        found: String,
        /// Of the data now.
        wanted: String,
    },
    /// A checkpoint's metrics cannot be read.
    #[error("{path}: the metrics in the manifest cannot be read: {reason}")]
    Scores {
        /// The checkpoint.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A stream could not be read.
    #[error("{0}")]
    Stream(String),
    /// A stream is read by threads of one process.
    #[error("a stream is trained on by threads of one process, and mpirun started {ranks}; start it alone")]
    StreamRanks {
        /// How many there are.
        ranks: usize,
    },
    /// A job that trained on a stream goes on without one.
    #[error(
        "the newest checkpoint in {} was trained on a stream; name it again with --stream, or give this job another \
         process.output_dir", path.display()
    )]
    StreamForgotten {
        /// The directory of checkpoints.
        path: PathBuf,
    },
    /// A choice of examples where there is no stream.
    #[error(
        "[run.only] chooses examples of a stream by column `{column}`, and this run trains on files: leave it out, and name \
         the files that are meant"
    )]
    OnlyOnStreams {
        /// The column.
        column: String,
    },
    /// There is nothing to train on.
    #[error("the training split is empty; look at [run.data.split] and process.data.train")]
    NoRows,
    /// Tables are to follow a teacher whose embeddings are not there.
    #[error(
        "tables of this job follow a teacher's embedding of {wanted} floats ([run.follow]), and {}: make the words with \
         `campanile augment JOB`, which then have it, and name them in process.data.teacher",
        followed(.words.as_deref())
    )]
    NothingToFollow {
        /// Floats that the job asks for.
        wanted: usize,
        /// The file of words that it names.
        words: Option<PathBuf>,
    },
    /// The model says things that are not numbers.
    #[error(
        "task `{task}`: a logit of step {step} is not a finite number: the model has diverged; lower \
         run.dense.learning_rate or run.sparse.learning_rate, or set run.dense.norm_max"
    )]
    Diverged {
        /// The task.
        task: String,
        /// The step.
        step: u64,
    },
    /// The model's loss is finite and has no meaning.
    #[error(
        "task `{task}`: the loss over the last steps before step {step} is {logloss:.3e} a sample, and a model that knows \
         nothing has 0.69: the model has diverged; lower run.dense.learning_rate or run.sparse.learning_rate, set \
         run.dense.norm_max, or look for absurd sample weights and teacher logits"
    )]
    Absurd {
        /// The task.
        task: String,
        /// The step.
        step: u64,
        /// Mean loss of a sample.
        logloss: f64,
    },
    /// A file of the run could not be written.
    #[error("{path}: {source}")]
    Output {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The TensorBoard file could not be written.
    #[error(transparent)]
    EventFile(#[from] crate::event_file::EventFileError),
}

/// What there is in place of embeddings.
fn followed(words: Option<&Path>) -> String {
    match words {
        Some(words) => format!("{} has none", words.display()),
        None => "its data has no teacher's words".to_owned(),
    }
}
