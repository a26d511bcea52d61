//! A model that can be asked: tables, dense weights and transforms of one checkpoint, immutable.
//!
//! Everything is read and checked before a snapshot exists: every byte against its checksum, the transforms
//! against the fingerprint that training noted. So a snapshot that is there can be served, and one that cannot
//! be opened leaves the present one in service.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use campanile_data::Transforms;
use campanile_kernels::Isa;
use campanile_model::{ModelError, Network, Parameter};
use campanile_spec::{ModelSpec, Precision, config::Job};
use campanile_tables::{
    Registry,
    checkpoint::{Checkpoint, DenseKind, DenseLayout, Manifest, TensorEntry},
    registry::{Delta, Kind, Link, Release, TRANSFORMS_FILE},
};
use serde::Serialize;

use crate::{Inputs, RowStorage, SnapshotError, rows::ServedTable};

/// How a snapshot is held.
#[derive(Debug, Clone)]
pub struct Options {
    /// How rows are stored.
    pub rows: RowStorage,
    /// The arithmetic of the dense network; without it, that of the training.
    pub precision: Option<Precision>,
    /// The instructions to use.
    pub isa: Isa,
}

impl Default for Options {
    fn default() -> Options {
        Options { rows: RowStorage::default(), precision: None, isa: Isa::detect() }
    }
}

/// Which model this is, and from when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Version {
    /// The model's name.
    pub model: String,
    /// Its number in the registry; for a bare checkpoint, the step.
    pub number: u64,
    /// The checksum of its description in the registry, which tells it from any other; empty for a bare
    /// checkpoint.
    pub id: String,
    /// Steps that were trained.
    pub step: u64,
    /// A hash of all that changed the training's results.
    pub run_hash: String,
    /// The fingerprint of the transforms.
    pub transforms: String,
    /// The time of the newest sample that was trained on, in the unit of the data, if training noted it.
    pub data_time: Option<i64>,
}

/// A model that can be asked; share it in an `Arc`.
#[derive(Debug)]
pub struct Snapshot {
    version: Version,
    job: Job,
    inputs: Arc<Inputs>,
    /// Shared with the snapshot below where a delta left a table as it was.
    tables: Vec<Arc<ServedTable>>,
    network: Network,
    parameters: Vec<f32>,
    isa: Isa,
    pooled_offsets: Vec<usize>,
}

impl Snapshot {
    /// Reads the checkpoint at `path` and checks every byte of it.
    ///
    /// # Errors
    /// When a file is missing, damaged or does not fit; the message names it.
    pub fn open(path: &Path, model: &str, options: &Options) -> Result<Snapshot, SnapshotError> {
        let checkpoint = Checkpoint::open(path)?;
        let manifest = checkpoint.manifest();
        let job = job_in(&checkpoint)?;
        let mut spec = job.run.model.clone();
        spec.precision = options.precision.unwrap_or(spec.precision);
        let transforms = transforms_of(path, &job, manifest)?;
        check_columns(path, &transforms, &spec)?;
        let mut network = Network::new(&spec, options.isa).map_err(no_model(path))?;
        let parameters = checkpoint.dense_values(&dense_layout(&network))?;
        network.prepare(&parameters);
        let mut buffer = Vec::new();
        let mut tables = Vec::with_capacity(spec.tables.len());
        for table in &spec.tables {
            tables.push(Arc::new(ServedTable::load(&checkpoint, table, options.rows, &mut buffer)?));
        }
        let inputs = Arc::new(Inputs::new(transforms, &spec));
        let version = Version {
            model: model.to_owned(),
            number: manifest.step,
            id: String::new(),
            step: manifest.step,
            run_hash: manifest.run_hash.clone(),
            transforms: inputs.fingerprint().to_owned(),
            data_time: manifest.extra["data_time"].as_i64(),
        };
        let mut job = job;
        job.run.model = spec;
        let pooled_offsets = job.run.model.pooled_offsets();
        Ok(Snapshot { version, job, inputs, tables, network, parameters, isa: options.isa, pooled_offsets })
    }

    /// A model with the first values of its weights and rows, for measuring.
    ///
    /// # Errors
    /// When the shapes do not fit, the memory is not there, or the job's transforms must be measured first.
    pub fn untrained(job: &Job, model: &str, options: &Options) -> Result<Snapshot, SnapshotError> {
        let mut job = job.clone();
        job.run.model.precision = options.precision.unwrap_or(job.run.model.precision);
        let spec = &job.run.model;
        let nowhere = PathBuf::from(model);
        let transforms = Transforms::unmeasured_of(&job.run.data)?.ok_or(SnapshotError::NoTransforms {
            path: nowhere.clone(),
            wanted: nowhere.join(TRANSFORMS_FILE),
        })?;
        check_columns(&nowhere, &transforms, spec)?;
        let network = Network::new(spec, options.isa).map_err(no_model(&nowhere))?;
        let parameters = network.initial_parameters(job.run.seed);
        let tables = spec
            .tables
            .iter()
            .map(|table| ServedTable::first(table, options.rows, job.run.seed).map(Arc::new));
        let no_table = |source| SnapshotError::Table { path: nowhere.clone(), source };
        let tables = tables.collect::<Result<Vec<_>, _>>().map_err(no_table)?;
        let inputs = Arc::new(Inputs::new(transforms, spec));
        let version = Version {
            model: model.to_owned(),
            number: 0,
            id: String::new(),
            step: 0,
            run_hash: job.run.hash(),
            transforms: inputs.fingerprint().to_owned(),
            data_time: None,
        };
        let pooled_offsets = spec.pooled_offsets();
        let isa = options.isa;
        Ok(Snapshot { version, job, inputs, tables, network, parameters, isa, pooled_offsets }.packed())
    }

    /// The job that wrote a checkpoint.
    ///
    /// # Errors
    /// When the checkpoint cannot be opened, or holds no job.
    pub fn job_of(path: &Path) -> Result<Job, SnapshotError> {
        job_in(&Checkpoint::open(path)?)
    }

    /// The transforms that a checkpoint was trained with.
    ///
    /// # Errors
    /// When the checkpoint cannot be opened, or its transforms are gone or others.
    pub fn transforms_of(path: &Path) -> Result<Transforms, SnapshotError> {
        let checkpoint = Checkpoint::open(path)?;
        transforms_of(path, &job_in(&checkpoint)?, checkpoint.manifest())
    }

    /// The version of a model in a registry, whole or put together from a whole one and its deltas. Where
    /// `present` is among the versions below it, only what came after is read.
    ///
    /// # Errors
    /// When anything is missing, damaged, or does not fit; the message names it.
    pub fn of_registry(
        registry: &Registry,
        model: &str,
        number: u64,
        present: Option<&Snapshot>,
        options: &Options,
    ) -> Result<Snapshot, SnapshotError> {
        let chain = registry.chain(model, number)?;
        let is_present = |link: &Link| {
            present.is_some_and(|present| {
                (present.version.number, &present.version.id) == (link.release.number, &link.release.id)
            })
        };
        let start = chain.iter().position(is_present);
        let mut snapshot: Option<Snapshot> = None;
        for link in &chain[start.map_or(0, |start| start + 1)..] {
            let next = match (&snapshot, present.filter(|_| start.is_some()), &link.release.kind) {
                (_, _, Kind::Whole) => {
                    link.release.verify_own_files(&link.path)?;
                    Snapshot::open(&link.path, model, options)?
                }
                (Some(below), _, Kind::Delta { .. }) | (None, Some(below), Kind::Delta { .. }) => {
                    below.with_delta(&link.path)?
                }
                (None, None, Kind::Delta { .. }) => unreachable!("a chain begins with a whole version"),
            };
            snapshot = Some(next.released_as(&link.release));
        }
        match (snapshot, present) {
            (Some(snapshot), _) => Ok(snapshot),
            (None, Some(present)) => Ok(present.same()),
            (None, None) => unreachable!("a chain has at least one version"),
        }
    }

    /// This model with the changes of a delta; tables that it does not touch are shared.
    fn with_delta(&self, path: &Path) -> Result<Snapshot, SnapshotError> {
        let delta = Delta::open(path)?;
        let release = delta.release();
        let wanted = dense_layout(&self.network).tensors;
        if release.dense != wanted || release.transforms != self.inputs.fingerprint() {
            return Err(SnapshotError::OtherModel { path: path.to_owned() });
        }
        let parameters = delta.dense_values()?;
        let mut tables = Vec::with_capacity(self.tables.len());
        for table in &self.tables {
            tables.push(table.with_delta(&delta, path)?.map_or_else(|| Arc::clone(table), Arc::new));
        }
        Ok(Snapshot { parameters, tables, ..self.same() }.packed())
    }

    /// Another snapshot of the same contents, which shares the tables.
    fn same(&self) -> Snapshot {
        let network = Network::new(self.model(), self.isa);
        Snapshot {
            version: self.version.clone(),
            job: self.job.clone(),
            inputs: Arc::clone(&self.inputs),
            tables: self.tables.clone(),
            network: network.unwrap_or_else(|error| unreachable!("it was made before: {error}")),
            parameters: self.parameters.clone(),
            isa: self.isa,
            pooled_offsets: self.pooled_offsets.clone(),
        }
        .packed()
    }

    fn packed(mut self) -> Snapshot {
        self.network.prepare(&self.parameters);
        self
    }

    fn released_as(mut self, release: &Release) -> Snapshot {
        self.version.number = release.number;
        self.version.id = release.id.clone();
        self.version.step = release.step;
        self.version.run_hash = release.run_hash.clone();
        self.version.data_time = release.data_time;
        self
    }

    /// Which model this is, and from when.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// The job that trained it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The model; its precision is the one that is served.
    pub fn model(&self) -> &ModelSpec {
        &self.job.run.model
    }

    /// What it takes; a [`crate::Request`] is begun with it.
    pub fn inputs(&self) -> &Arc<Inputs> {
        &self.inputs
    }

    /// The names of the tasks, in the order of the scores.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        self.model().tasks.iter().map(|task| task.name.as_str())
    }

    /// Bytes of rows and dense weights.
    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.bytes()).sum::<u64>() + (self.parameters.len() * 4) as u64
    }

    /// Floating-point operations of one sample in the dense network.
    pub fn forward_flops_per_sample(&self) -> u64 {
        self.network.forward_flops_per_sample()
    }

    /// Floats of the last hidden vector, what the logits are linear in; 0 for models whose logits are no such sums.
    pub fn hidden_width(&self) -> usize {
        self.network.hidden_width()
    }

    /// The dense weights by name.
    pub fn dense_weights(&self) -> impl Iterator<Item = (&Parameter, &[f32])> {
        self.network
            .parameters()
            .iter()
            .map(|parameter| (parameter, &self.parameters[parameter.range.clone()]))
    }

    /// All rows of a table, if they are held as `f32`.
    pub fn table_floats(&self, table: usize) -> Option<&[f32]> {
        self.tables[table].floats()
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    pub(crate) fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The table of a feature and where the feature's vector starts among the pooled ones.
    pub(crate) fn feature(&self, feature: usize) -> (&ServedTable, usize) {
        let table = self.model().features[feature].table;
        (&self.tables[table.0 as usize], self.pooled_offsets[feature])
    }

    /// Floats of all pooled vectors of a sample.
    pub(crate) fn pooled_width(&self) -> usize {
        self.pooled_offsets[self.pooled_offsets.len() - 1]
    }
}

/// The job in a manifest, which anybody may have written who may write there.
fn job_in(checkpoint: &Checkpoint) -> Result<Job, SnapshotError> {
    let failed =
        |problem: String| SnapshotError::Job { path: checkpoint.path().join("manifest.json"), problem };
    let job: Job = serde_json::from_value(checkpoint.manifest().job.clone())
        .map_err(|error| failed(error.to_string()))?;
    job.recheck().map_err(failed)?;
    Ok(job)
}

fn no_model(path: &Path) -> impl Fn(ModelError) -> SnapshotError {
    move |source| SnapshotError::Model { path: path.to_owned(), source }
}

/// The transforms of a checkpoint: beside its files when it was published, beside the checkpoints where it was
/// written, or from the job alone when nothing had to be measured.
fn transforms_of(path: &Path, job: &Job, manifest: &Manifest) -> Result<Transforms, SnapshotError> {
    let wanted = manifest.extra["transforms"].as_str();
    let own = path.join(TRANSFORMS_FILE);
    let beside = wanted.map(|fingerprint| beside(path, fingerprint)).transpose()?.flatten();
    let found = [Some(own.clone()), beside].into_iter().flatten().find(|file| file.exists());
    let (transforms, from) = match found {
        Some(file) => (Transforms::load(&file)?, file),
        None => match Transforms::unmeasured_of(&job.run.data)? {
            Some(transforms) => (transforms, path.join("manifest.json")),
            None => return Err(SnapshotError::NoTransforms { path: path.to_owned(), wanted: own }),
        },
    };
    let found = transforms.fingerprint();
    match wanted {
        Some(wanted) if wanted != found => {
            Err(SnapshotError::OtherTransforms { path: from, found, wanted: wanted.to_owned() })
        }
        _ => Ok(transforms),
    }
}

/// The file with these transforms beside a checkpoint. A fingerprint becomes part of its name, so it is checked:
/// whoever wrote the manifest must not choose the directory.
fn beside(checkpoint: &Path, fingerprint: &str) -> Result<Option<PathBuf>, SnapshotError> {
    if !fingerprint.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        let found = fingerprint.chars().take(80).collect();
        return Err(SnapshotError::NoFingerprint { path: checkpoint.join("manifest.json"), found });
    }
    Ok(checkpoint.parent().map(|folder| folder.join(Transforms::file_name(fingerprint))))
}

fn check_columns(path: &Path, transforms: &Transforms, model: &ModelSpec) -> Result<(), SnapshotError> {
    let column = |place: usize| {
        if place < transforms.sparse_count() { transforms.sparse_name(place) } else { "(none)" }
    };
    let own = &model.features[..model.data_features()];
    let feature = |place: usize| own.get(place).map_or("(none)", |feature| feature.name.as_str());
    let count = transforms.sparse_count().max(own.len());
    if let Some(place) = (0..count).find(|&place| column(place) != feature(place)) {
        let (column, feature) = (column(place).to_owned(), feature(place).to_owned());
        return Err(SnapshotError::Columns { path: path.to_owned(), column, feature });
    }
    let (found, wanted) = (transforms.dense_count(), model.dense_count);
    if found != wanted {
        return Err(SnapshotError::DenseColumns { path: path.to_owned(), found, wanted });
    }
    // What the transforms give is looked up without another check.
    for place in 0..own.len() {
        let (found, row_count) = (transforms.row_count(place), model.table_of(place).row_count);
        if found > row_count {
            let column = column(place).to_owned();
            return Err(SnapshotError::RowsBeyond { path: path.to_owned(), column, found, row_count });
        }
    }
    Ok(())
}

fn dense_layout(network: &Network) -> DenseLayout {
    let entry =
        |parameter: &Parameter| TensorEntry { name: parameter.name.clone(), shape: parameter.shape.clone() };
    DenseLayout { kind: DenseKind::Weights, tensors: network.parameters().iter().map(entry).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_does_not_choose_where_transforms_are_read() {
        let checkpoint = Path::new("run/step-1");
        let file = beside(checkpoint, "00ff").unwrap();
        assert_eq!(file, Some(PathBuf::from("run/transforms-00ff.bin")));
        for text in ["/../../elsewhere", "..", "a/b", "a\0"] {
            let error = beside(checkpoint, text).unwrap_err().to_string();
            assert!(error.contains("manifest.json: `extra.transforms` is"), "{error}");
        }
    }
}
