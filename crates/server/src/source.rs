//! Where snapshots come from.
//!
//! The server asks by model name, and only for names that the source itself listed: what a client writes is
//! compared with the list, and never becomes a path.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use campanile_serve::{Options, Snapshot, SnapshotError};
use campanile_tables::{CheckpointError, Registry, RegistryError, checkpoint};
use serde_json::Value;
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
    /// The registry cannot be read.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A mistake of ours while it was read.
    #[error("model `{model}`: an internal error while it was read: {problem}")]
    Panicked {
        /// The model.
        model: String,
        /// What was said.
        problem: String,
    },
    /// Nothing was published yet.
    #[error("model `{model}`: there is nothing to serve in {} yet", path.display())]
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

    /// Versions before this one that are still there, newest first.
    ///
    /// # Errors
    /// When the source cannot be read.
    fn before(&self, _model: &str, _number: u64) -> Result<Vec<u64>, SourceError> {
        Ok(Vec::new())
    }

    /// Opens a version. What the snapshot in service has in common with it need not be read again.
    ///
    /// # Errors
    /// When it is not there or damaged.
    fn open(&self, model: &str, number: u64, present: Option<&Snapshot>) -> Result<Opened, SourceError>;
}

/// A snapshot, and what its publisher noted about it.
#[derive(Debug)]
pub struct Opened {
    /// What answers.
    pub snapshot: Snapshot,
    /// When it was published, in milliseconds since 1970, if that is known.
    pub published_ms: Option<u64>,
    /// What the gate measured on a hold-out; `null` without a gate.
    pub judged: Value,
}

impl From<Snapshot> for Opened {
    fn from(snapshot: Snapshot) -> Opened {
        Opened { snapshot, published_ms: None, judged: Value::Null }
    }
}

/// Every model of a registry, in its current version; deltas are put on what is in service.
#[derive(Debug, Clone)]
pub struct Published {
    /// Where.
    pub registry: Registry,
    /// How snapshots are held.
    pub options: Options,
}

impl Source for Published {
    fn models(&self) -> Result<Vec<String>, SourceError> {
        let mut models = self.registry.models()?;
        models.sort();
        Ok(models)
    }

    fn current(&self, model: &str) -> Result<u64, SourceError> {
        let empty = || SourceError::Empty { model: model.to_owned(), path: self.registry.root().to_owned() };
        self.registry.current(model)?.ok_or_else(empty)
    }

    fn before(&self, model: &str, number: u64) -> Result<Vec<u64>, SourceError> {
        let versions = self.registry.versions(model)?;
        Ok(versions.into_iter().rev().filter(|&version| version < number).collect())
    }

    fn open(&self, model: &str, number: u64, present: Option<&Snapshot>) -> Result<Opened, SourceError> {
        let snapshot = Snapshot::of_registry(&self.registry, model, number, present, &self.options)?;
        let release = self.registry.release(model, number)?;
        Ok(Opened { snapshot, published_ms: Some(release.published_ms), judged: release.judged })
    }
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
    /// Checkpoints of a model by their steps, oldest first; at least one.
    fn all(&self, model: &str) -> Result<Vec<(u64, PathBuf)>, SourceError> {
        let missing = |path: &Path| SourceError::Empty { model: model.to_owned(), path: path.to_owned() };
        let path = self.directories.get(model).ok_or_else(|| missing(Path::new("any --model")))?;
        if path.join("manifest.json").exists() {
            let step = checkpoint::Checkpoint::open(path)?.manifest().step;
            return Ok(vec![(step, path.clone())]);
        }
        let below = path.join("checkpoints");
        let all = checkpoint::list(if below.is_dir() { &below } else { path })?;
        if all.is_empty() { Err(missing(path)) } else { Ok(all) }
    }
}

impl Source for Checkpoints {
    fn models(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.directories.keys().cloned().collect())
    }

    fn current(&self, model: &str) -> Result<u64, SourceError> {
        Ok(self.all(model)?.last().map_or(0, |(step, _)| *step))
    }

    fn before(&self, model: &str, number: u64) -> Result<Vec<u64>, SourceError> {
        let steps = self.all(model)?.into_iter().rev().map(|(step, _)| step);
        Ok(steps.filter(|&step| step < number).collect())
    }

    fn open(&self, model: &str, number: u64, _: Option<&Snapshot>) -> Result<Opened, SourceError> {
        let found = self.all(model)?.into_iter().find(|(step, _)| *step == number);
        let gone = || SourceError::Empty { model: model.to_owned(), path: format!("step {number}").into() };
        let (_, path) = found.ok_or_else(gone)?;
        Ok(Snapshot::open(&path, model, &self.options)?.into())
    }
}
