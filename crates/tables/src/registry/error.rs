//! Why a registry could not do what it was asked.

use std::{io, path::PathBuf};

use crate::CheckpointError;

/// Why a registry could not do what it was asked; what was current before still is.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A file of a whole version is missing, cut short or damaged.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A name that cannot be a model's.
    #[error(
        "`{model}` cannot be a model's name: use 1 to 100 letters, digits, `_`, `-` or `.`, no dot first"
    )]
    Name {
        /// The name.
        model: String,
    },
    /// Nothing was ever published under that name.
    #[error("{} has no model `{model}`; {}", root.display(), models_known(known))]
    NoModel {
        /// The registry.
        root: PathBuf,
        /// The name.
        model: String,
        /// The models it has.
        known: String,
    },
    /// No such version.
    #[error("model `{model}` has no version {number}; it has {known}")]
    NoVersion {
        /// The model.
        model: String,
        /// What was asked for.
        number: u64,
        /// What there is.
        known: String,
    },
    /// There is nothing to roll back to.
    #[error("model `{model}`: there is no version before {number} to roll back to")]
    NothingBefore {
        /// The model.
        model: String,
        /// The current one.
        number: u64,
    },
    /// Somebody else is publishing.
    #[error("{} is held by another publisher; try again when it is done", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
    },
    /// A file is not there.
    #[error("{} is missing", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file is not what was written.
    #[error("{} is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A delta that stands on something else than its base.
    #[error("{}: the delta stands on version {base} with checksum {wanted}, which now has {found}", path.display())]
    OtherBase {
        /// The delta.
        path: PathBuf,
        /// The version it names.
        base: u64,
        /// The checksum it names.
        wanted: String,
        /// The checksum there.
        found: String,
    },
    /// The disk would not read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The disk would not write.
    #[error("cannot write {}: {source}; what was current before still is", path.display())]
    Write {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn models_known(known: &str) -> String {
    if known.is_empty() { "publish it first".to_owned() } else { format!("it has {known}") }
}
