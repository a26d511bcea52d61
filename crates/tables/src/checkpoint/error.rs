//! Why a checkpoint could not be written or read, with the file and what to do.

use std::{io, path::PathBuf};

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk is full, or read-only, or gone.
    #[error("{} could not be written: {source}; {}", path.display(), advice(source))]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is there but cannot be read.
    #[error("{} could not be read: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that the manifest names is not there, or the directory is no checkpoint.
    #[error("{} is missing; without it this checkpoint cannot be used: take an earlier one", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file is shorter or longer than the manifest says.
    #[error("{} is damaged: it has {found} bytes, the manifest says {wanted}; take an earlier checkpoint", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length it was written with.
        wanted: u64,
    },
    /// A file's bytes have changed since they were written.
    #[error("{} is damaged: its checksum is {found}, it was written with {wanted}; take an earlier checkpoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The CRC-32C of its bytes.
        found: String,
        /// The CRC-32C that is recorded.
        wanted: String,
    },
    /// A file is whole but does not say what it should.
    #[error("{}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A number of the state is none.
    #[error(
        "{}: {place} is not a finite number: the model has diverged, and this state is none to go on from or to serve; lower \
         the learning rates, set run.dense.norm_max and run.sparse.row_norm_max, look for absurd sample weights and teacher \
         logits, and go on from an earlier checkpoint",
        path.display()
    )]
    NotFinite {
        /// The file, or the checkpoint that was to be written.
        path: PathBuf,
        /// The tensor or table, and the place in it.
        place: String,
    },
    /// The checkpoint comes from a newer program.
    #[error("{} has format version {found}, this program reads up to {supported}: use a newer campanile", path.display())]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest known here.
        supported: u32,
    },
    /// The job has a table that the checkpoint has not.
    #[error("checkpoint {} has no table `{table}`; it has {known}", path.display())]
    NoTable {
        /// The checkpoint.
        path: PathBuf,
        /// The table.
        table: String,
        /// The tables it has.
        known: String,
    },
    /// The job has a dense tensor that the checkpoint has not.
    #[error("{} has no tensor `{tensor}`; the model of the checkpoint is another than the job's", path.display())]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// The checkpoint has a dense tensor that the job has not.
    #[error("{} has a tensor `{tensor}` that the job's model has not", path.display())]
    ExtraTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A dense tensor has another shape in the job.
    #[error("{}: tensor `{tensor}` has shape {found:?}, the job's model asks for {wanted:?}", path.display())]
    ShapeChanged {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// In the checkpoint.
        found: Vec<usize>,
        /// In the job.
        wanted: Vec<usize>,
    },
    /// The job's rows have another width.
    #[error(
        "{}: table `{table}`: the checkpoint has rows of {found} floats, the job asks for {wanted}", path.display()
    )]
    DimChanged {
        /// The checkpoint.
        path: PathBuf,
        /// The table.
        table: String,
        /// In the checkpoint.
        found: usize,
        /// In the job.
        wanted: usize,
    },
    /// The job's table has another number of rows.
    #[error("{}: table `{table}`: the checkpoint has {found} rows, the job asks for {wanted}", path.display())]
    RowCountChanged {
        /// The checkpoint.
        path: PathBuf,
        /// The table.
        table: String,
        /// In the checkpoint.
        found: u64,
        /// In the job.
        wanted: u64,
    },
    /// The job's optimizer keeps other state.
    #[error(
        "{}: table `{table}`: the checkpoint keeps {found} beside its rows, the job's optimizer keeps {wanted}; \
         go on with the optimizer of the checkpoint, or load rows only", path.display()
    )]
    StateChanged {
        /// The checkpoint.
        path: PathBuf,
        /// The table.
        table: String,
        /// In the checkpoint.
        found: String,
        /// In the job.
        wanted: String,
    },
    /// The state of FTRL had another meaning.
    #[error(
        "{}: table `{table}` has state of FTRL as format version 1 kept it, from which training cannot go on: begin anew \
         with --fresh; its rows can be evaluated and served as they are", path.display()
    )]
    FtrlOfVersion1 {
        /// The checkpoint.
        path: PathBuf,
        /// The table.
        table: String,
    },
    /// What the ranks wrote does not add up to whole files.
    #[error("checkpoint of step {step}: {file} is not whole: {problem}")]
    Incomplete {
        /// The step.
        step: u64,
        /// The file.
        file: String,
        /// What is missing or double.
        problem: String,
    },
}

/// What the user can do about a failed write.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space or lower `checkpoints_kept`, then run the same command again: \
             earlier checkpoints are intact"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "choose an `output_dir` that this user may write to"
        }
        _ => "earlier checkpoints are intact; run the same command again when this is mended",
    }
}
