//! The probe: a small flat model, trained briefly, on whose vectors affinities are measured.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use campanile_data::Prepared;
use campanile_planner::towers::affinity::{Affinity, Measure, Meter};
use campanile_serve::{Options, RowStorage, Snapshot};
use campanile_spec::{
    Batch, DenseOptimizer, Heads, LearningRate, ModelSpec, NetworkSpec, Pooling, RowFormat, RowInit,
    Schedule, SparseOptimizer, Towers,
    config::{DenseTraining, ExchangeFormat, Job, SparseTraining},
};
use campanile_train::{
    observe::{Event, Observer},
    ranks::Ranks,
    run::train,
};

use crate::{
    args::towers::{AffinityName, ProbeName, TowersArguments},
    command::inspect::newest_checkpoint,
    progress::Progress,
};

/// Rows that are read at once.
const READ_ROWS: u64 = 1024;

/// What was measured.
pub struct Measured {
    /// Of all pairs of features.
    pub affinity: Affinity,
    /// Mean ids of each feature in a sample.
    pub ids_per_sample: Vec<f64>,
    /// Whose vectors they are.
    pub checkpoint: PathBuf,
}

/// Trains the probe, or opens the given checkpoint, and measures.
pub fn measure(
    job: &Job,
    prepared: &Prepared,
    arguments: &TowersArguments,
    output: &Path,
) -> Result<Measured> {
    let checkpoint = match &arguments.checkpoint {
        Some(given) => newest_checkpoint(given)?
            .with_context(|| format!("{} holds no checkpoint; train first", given.display()))?,
        None => train_probe(job, prepared, arguments, output)?,
    };
    let options = Options { rows: RowStorage::F32, ..Options::default() };
    let snapshot = Snapshot::open(&checkpoint, "probe", &options)?;
    let names = |job: &Job| job.run.model.features.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
    if names(snapshot.job()) != names(job) {
        bail!("{} has other features than the job", checkpoint.display());
    }
    let dim = snapshot.model().tables.first().map_or(0, |table| table.dim);
    if let Some(other) = snapshot.model().tables.iter().find(|table| table.dim != dim) {
        bail!(
            "{}: table `{}` has rows of {} floats and others of {dim}; directions can be compared where all have one \
             dim, as in a probe (leave out --checkpoint)",
            checkpoint.display(),
            other.name,
            other.dim
        );
    }
    let measure = match arguments.affinity {
        AffinityName::Cosine => Measure::Cosine,
        AffinityName::Dot => Measure::Dot,
    };
    let features = job.run.model.features.len();
    let width = dim - linear_floats(snapshot.model());
    let mut meter = Meter::new(features, measure);
    let mut ids = vec![0u64; features];
    let rows = arguments.samples.clamp(1, prepared.train.row_count().max(1));
    let (mut reader, mut batch) = (prepared.train.reader()?, Batch::default());
    let mut vectors = vec![0.0; features * width];
    for start in (0..rows).step_by(READ_ROWS as usize) {
        reader.read(0, start..rows.min(start + READ_ROWS), &mut batch)?;
        for sample in 0..batch.sample_count {
            pool(&snapshot, &batch, sample, &mut vectors)?;
            meter.add(&vectors, width);
        }
        for (feature, ids) in ids.iter_mut().enumerate() {
            *ids += batch.bags.feature(feature).rows.len() as u64;
        }
    }
    let ids_per_sample = ids.into_iter().map(|ids| ids as f64 / rows as f64).collect();
    Ok(Measured { affinity: meter.finish(), ids_per_sample, checkpoint })
}

/// Floats at the start of a row that take no part in interactions: a machine's linear weight.
fn linear_floats(model: &ModelSpec) -> usize {
    usize::from(model.network == NetworkSpec::FactorizationMachine)
}

/// The pooled vectors of one sample, side by side.
fn pool(snapshot: &Snapshot, batch: &Batch, sample: usize, vectors: &mut [f32]) -> Result<()> {
    let model = snapshot.model();
    vectors.fill(0.0);
    let width = vectors.len() / model.features.len().max(1);
    let skipped = linear_floats(model);
    for ((feature, spec), out) in
        model.features.iter().enumerate().zip(vectors.chunks_exact_mut(width.max(1)))
    {
        let table = spec.table.0 as usize;
        let rows = snapshot.table_floats(table).context("the rows of the probe are not held as floats")?;
        let bags = batch.bags.feature(feature);
        for (place, &row) in bags.range(sample).zip(bags.bag(sample)) {
            let end = (row as usize + 1) * (width + skipped);
            let row = rows.get(end - width..end).with_context(|| {
                format!(
                    "table `{}` has no row {row}: the checkpoint is of other data",
                    model.tables[table].name
                )
            })?;
            let weighted = spec.pooling == Pooling::Weighted;
            let weight = bags.weights.get(place).copied().filter(|_| weighted).unwrap_or(1.0);
            out.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
        }
        // A mean has the direction of its sum, but a dot sees the size.
        if spec.pooling == Pooling::Mean {
            let count = bags.bag(sample).len().max(1) as f32;
            out.iter_mut().for_each(|sum| *sum /= count);
        }
    }
    Ok(())
}

fn train_probe(
    job: &Job,
    prepared: &Prepared,
    arguments: &TowersArguments,
    output: &Path,
) -> Result<PathBuf> {
    let job = probe_of(job, arguments, output);
    let directory = &job.process.output_dir;
    // A probe of another call may be there; this one begins anew.
    if directory.exists() {
        std::fs::remove_dir_all(directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut watcher = Watcher { progress: None, quiet: arguments.quiet, steps: 0 };
    Ok(train(&job, prepared, Ranks::threads_for(&job)?, &mut watcher)?.checkpoint)
}

/// A flat model on the job's data whose rows have one dim and meet in dots: what affinities are measured on.
///
/// A machine adds up the dots of all pairs and can weigh none of them, so vectors of features that do not interact must
/// become orthogonal; and an id's own effect has a weight of its own. In a DLRM all features share a direction for such
/// effects, and its top layers may ignore a dot that is not zero: vectors then say less about who interacts.
fn probe_of(job: &Job, arguments: &TowersArguments, output: &Path) -> Job {
    let mut probe = job.clone();
    let width = arguments.probe_dim.max(1);
    let rate = |base| LearningRate { base, schedule: Schedule::Constant };
    let run = &mut probe.run;
    run.steps_max = arguments.probe_steps;
    run.exchange = ExchangeFormat::default();
    run.evaluate.every_steps = 0;
    run.model.towers = Towers::default();
    run.model.heads = Heads::Shared;
    run.model.network = match (arguments.probe, run.model.features.len(), run.model.dense_count) {
        (ProbeName::Machine, ..) => NetworkSpec::FactorizationMachine,
        (ProbeName::Dlrm, 0 | 1, 0) => NetworkSpec::Mlp { hidden: vec![32] },
        (ProbeName::Dlrm, ..) => NetworkSpec::Dlrm { bottom: vec![32, width], top: vec![64, 32] },
    };
    let dim = width + linear_floats(&run.model);
    for table in &mut run.model.tables {
        table.dim = dim;
        table.format = RowFormat::F32;
        table.init = RowInit::Uniform { bound: PROBE_ROW_BOUND };
    }
    let optimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };
    run.sparse =
        SparseTraining { optimizer, learning_rate: rate(PROBE_ROW_RATE), l2: 0.0, row_norm_max: 0.0 };
    let optimizer = DenseOptimizer::Adagrad { epsilon: 1e-8, initial: 0.0 };
    run.dense = DenseTraining { optimizer, learning_rate: rate(0.02), l2: 0.0, norm_max: 0.0 };
    probe.process.output_dir = output.join("probe");
    probe.process.checkpoint_every_steps = 0;
    probe.process.publish.registry = None;
    probe.process.plan = None; // A plan of the job is for its own dims.
    probe
}

/// First values so small that what a probe's rows show after training is what they have learned.
const PROBE_ROW_BOUND: f32 = 0.01;

/// Brisk: a probe is trained briefly, and directions are all that is read from it.
const PROBE_ROW_RATE: f32 = 0.1;

/// Shows how far the probe is.
struct Watcher {
    progress: Option<Progress>,
    quiet: bool,
    steps: u64,
}

impl Observer for Watcher {
    fn observe(&mut self, event: &Event<'_>) {
        match (event, &mut self.progress) {
            (Event::Started(started), progress) => {
                *progress = Some(Progress::new("probe", started.steps, self.quiet));
                self.steps = started.steps;
            }
            (Event::Step(step), Some(progress)) => {
                progress.update(step.step, self.steps, || format!("step {} of {}", step.step, self.steps));
            }
            _ => {}
        }
    }
}
