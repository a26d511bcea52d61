//! Where snapshots come from.
//!
//! The server asks by model name, and only for names that the source itself listed: what a client writes is
//! compared with the list, and never becomes a path.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use campanile_serve::{Options, Snapshot, SnapshotError};
use campanile_tables::{CheckpointError, checkpoint};
use thiserror::Error;

/// Why there is no snapshot.
#[derive(Debug, Error)]
pub enum SourceError {
    /// It cannot be served.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The directory cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nothing was published yet.
    #[error("model `{model}`: there is no checkpoint in {} yet", path.display())]
    Empty {
        /// The model.
        model: String,
        /// Where it was looked for.
        path: PathBuf,
    },
}

/// Where snapshots come from. Calls may take long and are made from threads that may wait.
pub trait Source: Send + Sync {
    /// The names of all models.
    ///
    /// # Errors
    /// When the source cannot be read.
    fn models(&self) -> Result<Vec<String>, SourceError>;

    /// The number of the version that ought to be served.
    ///
    /// # Errors
    /// When the source cannot be read, or has no version of it yet.
    fn current(&self, model: &str) -> Result<u64, SourceError>;

    /// Opens the version that ought to be served; its number is what [`Source::current`] says at that moment.
    ///
    /// # Errors
    /// When it is not there or damaged.
    fn open(&self, model: &str) -> Result<Snapshot, SourceError>;
}

/// Checkpoints of training runs, by model name: one checkpoint, or a directory of them, whose newest is followed.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    /// Where each model is.
    pub directories: BTreeMap<String, PathBuf>,
    /// How snapshots are held.
    pub options: Options,
}

impl Checkpoints {
    /// The checkpoint to serve, and its step.
    fn newest(&self, model: &str) -> Result<(u64, PathBuf), SourceError> {
        let missing = |path: &Path| SourceError::Empty { model: model.to_owned(), path: path.to_owned() };
        let path = self.directories.get(model).ok_or_else(|| missing(Path::new("any --model")))?;
        if path.join("manifest.json").exists() {
            let step = checkpoint::Checkpoint::open(path)?.manifest().step;
            return Ok((step, path.clone()));
        }
        let below = path.join("checkpoints");
        let mut all = checkpoint::list(if below.is_dir() { &below } else { path })?;
        all.pop().ok_or_else(|| missing(path))
    }
}

impl Source for Checkpoints {
    fn models(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.directories.keys().cloned().collect())
    }

    fn current(&self, model: &str) -> Result<u64, SourceError> {
        Ok(self.newest(model)?.0)
    }

    fn open(&self, model: &str) -> Result<Snapshot, SourceError> {
        let (_, path) = self.newest(model)?;
        Ok(Snapshot::open(&path, model, &self.options)?)
    }
}
