//! Why a snapshot cannot be served, and why a request cannot be scored.

use std::path::PathBuf;

use campanile_data::{BadReason, DataError};
use campanile_model::ModelError;
use campanile_tables::{CheckpointError, RegistryError, TableError};

/// Why a snapshot could not be opened; the one before it stays in service.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file is missing, cut short or damaged.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The registry has no such version, or it is damaged.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A teacher without a vector that could be its embedding.
    #[error(
        "model `{model}` has no last hidden vector to make an embedding of: its logits are dots or sums of rows; use a \
         teacher with layers (\"dlrm\", \"dcn\" or \"mlp\"), or ask for no embedding"
    )]
    NoHidden {
        /// The model.
        model: String,
    },
    /// A row with an infinity, or with what is no number.
    #[error(
        "{}: table `{table}`, row {row}: element {element} is not a finite number, so the model cannot be served; take an \
         earlier version, and look for the step at which its training went wrong", path.display()
    )]
    NotFinite {
        /// The checkpoint or delta.
        path: PathBuf,
        /// The table.
        table: String,
        /// The row.
        row: u64,
        /// Its element.
        element: usize,
    },
    /// A delta of another model.
    #[error("{}: the delta has other dense weights or transforms than the version it stands on", path.display())]
    OtherModel {
        /// The delta.
        path: PathBuf,
    },
    /// The transforms cannot be read.
    #[error(transparent)]
    Data(Box<DataError>),
    /// The model's shapes do not fit.
    #[error("{}: {source}", path.display())]
    Model {
        /// The checkpoint, or the name of a model that has none.
        path: PathBuf,
        /// What does not fit.
        source: ModelError,
    },
    /// A table cannot be held.
    #[error("{}: {source}", path.display())]
    Table {
        /// The checkpoint or delta, or the name of a model that has none.
        path: PathBuf,
        /// Why not.
        source: TableError,
    },
    /// The job in the manifest is none.
    #[error("{}: the job in the manifest cannot be read: {problem}", path.display())]
    Job {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The transforms that were measured on the training data are not with the checkpoint.
    #[error(
        "{}: the job's transforms were measured on its training data, and {} is not there; copy it \
         from the directory in which the checkpoint was written", path.display(), wanted.display()
    )]
    NoTransforms {
        /// The checkpoint.
        path: PathBuf,
        /// The file that is missing.
        wanted: PathBuf,
    },
    /// The transforms are not those that the model was trained with.
    #[error(
        "{}: transforms with fingerprint {found}, but the model was trained with {wanted}; put the \
         transforms of the training run there", path.display()
    )]
    OtherTransforms {
        /// Where the transforms came from.
        path: PathBuf,
        /// Their fingerprint.
        found: String,
        /// What the checkpoint names.
        wanted: String,
    },
    /// What should name the transforms is no fingerprint.
    #[error(
        "{}: `extra.transforms` is {found:?}, which is no fingerprint (letters and digits alone); take the checkpoint \
         from where it was written", path.display()
    )]
    NoFingerprint {
        /// The manifest.
        path: PathBuf,
        /// What stands there, cut.
        found: String,
    },
    /// Transforms that give rows which a table does not have.
    #[error(
        "{}: the transforms of column `{column}` give rows below {found}, and its table has {row_count}", path.display()
    )]
    RowsBeyond {
        /// The checkpoint.
        path: PathBuf,
        /// The column.
        column: String,
        /// Rows that the transforms know.
        found: u64,
        /// Rows of the table.
        row_count: u64,
    },
    /// Transforms with more or fewer dense columns than the model has.
    #[error("{}: the transforms have {found} dense columns, the model {wanted}", path.display())]
    DenseColumns {
        /// The checkpoint.
        path: PathBuf,
        /// By the transforms.
        found: usize,
        /// By the model.
        wanted: usize,
    },
    /// Columns and features do not go together.
    #[error("{}: the transforms have column `{column}` where the model has feature `{feature}`", path.display())]
    Columns {
        /// The checkpoint.
        path: PathBuf,
        /// By the transforms.
        column: String,
        /// By the model.
        feature: String,
    },
}

impl From<DataError> for SnapshotError {
    fn from(error: DataError) -> SnapshotError {
        SnapshotError::Data(Box::new(error))
    }
}

/// Why a request cannot be scored; always the client's to mend, but for [`RequestError::OtherInputs`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// No input of that name.
    #[error("the model has no input `{name}`; it has {known}")]
    Unknown {
        /// What was given.
        name: String,
        /// What there is, shortened.
        known: String,
    },
    /// An input was left out.
    #[error("input `{name}` is missing; give it, with null or an empty value where a sample has none")]
    Missing {
        /// Which.
        name: String,
    },
    /// An input was given twice.
    #[error("input `{name}` is given twice")]
    Twice {
        /// Which.
        name: String,
    },
    /// A wrong number of values, lengths or weights.
    #[error("input `{name}`: {found} {what} where {wanted} are needed")]
    Count {
        /// Which input.
        name: String,
        /// `values`, `lengths`, `weights`, ...
        what: &'static str,
        /// What came.
        found: usize,
        /// What must come.
        wanted: usize,
    },
    /// A value that cannot be an input of this kind.
    #[error("input `{name}`, sample {sample}: `{value}`: {reason}")]
    Value {
        /// Which input.
        name: String,
        /// Which sample of the request.
        sample: usize,
        /// The value, shortened.
        value: String,
        /// What is wrong with it.
        reason: BadReason,
    },
    /// Several ids where the feature has one.
    #[error("input `{name}`, sample {sample}: {found} ids, but the feature has one id a sample")]
    SeveralIds {
        /// Which input.
        name: String,
        /// Which sample of the request.
        sample: usize,
        /// How many came.
        found: usize,
    },
    /// A prepared row beyond its table.
    #[error("input `{name}`, sample {sample}: row {row} is beyond its table, which has {row_count} rows")]
    RowOutside {
        /// Which input.
        name: String,
        /// Which sample of the request.
        sample: usize,
        /// The row.
        row: u32,
        /// Rows of the table.
        row_count: u64,
    },
    /// A sparse input was given as a dense one, or the other way round.
    #[error("input `{name}` is {wanted}")]
    Kind {
        /// Which input.
        name: String,
        /// What it is, in words.
        wanted: &'static str,
    },
    /// More samples or ids than a request may have.
    #[error("the request has {found} {what}; at most {limit} are allowed")]
    TooMany {
        /// `samples` or `ids`.
        what: &'static str,
        /// What came.
        found: usize,
        /// The most.
        limit: usize,
    },
    /// The request was prepared for a model with other inputs: prepare it again.
    #[error("the request was prepared for a model with other inputs (transforms {found}, now {wanted})")]
    OtherInputs {
        /// Those of the request.
        found: String,
        /// Those of the snapshot.
        wanted: String,
    },
}
