//! What versions are judged on, and judging: every model reads the raw examples with its own columns and transforms.

use anyhow::{Context, Result, bail};
use campanile_data::{Dataset, Prepared, Reread, Transforms};
use campanile_serve::{Request, Scorer, Scores, Snapshot};
use campanile_spec::{
    Batch,
    config::{DataFiles, Job},
    data::{DataSpec, SourceSpec, Split},
};
use campanile_train::{
    predictions::Predictions,
    scores::{Scores as Metrics, TaskScores},
};

/// Rows that are scored at a time.
const ROWS_AT_ONCE: u64 = 4096;

/// Columns that differ which are named; the rest is counted.
const NAMED_MAX: usize = 5;

/// A model to be judged, and what it is called in errors.
pub struct Model<'a> {
    /// Such as `the candidate`.
    pub name: String,
    /// The model.
    pub snapshot: &'a Snapshot,
}

/// What models are judged on; nobody was trained on it.
pub enum HoldOut<'a> {
    /// Rows of a job's split, evenly spread over it.
    Rows {
        /// Where they come from.
        data: &'a DataSpec,
        /// The files.
        files: &'a DataFiles,
        /// The same, prepared.
        prepared: &'a Prepared,
        /// The split.
        split: Split,
        /// At most so many; 0 means all.
        rows: u64,
    },
    /// Examples of a stream that came after a checkpoint.
    #[cfg(feature = "live")]
    Stream {
        /// The stream.
        recent: &'a campanile_live::recent::Recent,
        /// The first record that the checkpoint was not trained on.
        next: u64,
        /// So many.
        rows: u64,
    },
}

impl<'a> HoldOut<'a> {
    /// A split of a job.
    pub fn rows(job: &'a Job, prepared: &'a Prepared, split: Split, rows: u64) -> HoldOut<'a> {
        HoldOut::Rows { data: &job.run.data, files: &job.process.data, prepared, split, rows }
    }
}

/// The split of prepared data.
fn dataset(prepared: &Prepared, split: Split) -> Option<&Dataset> {
    match split {
        Split::Train => Some(&prepared.train),
        Split::Valid => prepared.valid.as_ref(),
        Split::Test => prepared.test.as_ref(),
    }
}

/// The metrics of models on the same examples of a hold-out, in their order.
pub fn judge(models: &[Model<'_>], hold_out: &HoldOut<'_>) -> Result<Vec<Vec<TaskScores>>> {
    let judges = match hold_out {
        HoldOut::Rows { data, files, prepared, split, rows } => {
            let labels: Vec<&str> = data.columns.labels.iter().map(|label| label.name.as_str()).collect();
            let segments = dataset(prepared, *split).map_or(&[][..], Dataset::segments);
            let mut judges =
                models.iter().map(|model| Judge::of(model, &labels, segments)).collect::<Result<Vec<_>>>()?;
            let own = &prepared.transforms;
            let foreign: Vec<&Model<'_>> = models
                .iter()
                .filter(|model| model.snapshot.inputs().fingerprint() != own.fingerprint())
                .collect();
            if foreign.is_empty() {
                let rows = dataset(prepared, *split).map_or_else(Dataset::none, |all| all.evenly(*rows));
                judge_packed(&mut judges, &rows)?;
            } else if matches!(data.source, SourceSpec::Synthetic(_)) {
                foreign.iter().try_for_each(|model| refuse_world(model, own))?;
            } else {
                let models: Vec<&Transforms> =
                    models.iter().map(|model| model.snapshot.inputs().transforms()).collect();
                let threads = std::thread::available_parallelism().map_or(1, usize::from);
                let (split, rows) = (*split, *rows);
                let reread = Reread { data, files, prepared, split, rows, threads, models: &models };
                judge_raw(&mut judges, &reread).with_context(|| names_of(&foreign, own))?;
            }
            judges
        }
        #[cfg(feature = "live")]
        HoldOut::Stream { recent, next, rows } => judge_stream(models, recent, *next, *rows)?,
    };
    Ok(judges.into_iter().map(|judge| judge.metrics.running()).collect())
}

fn judge_packed(judges: &mut [Judge<'_>], dataset: &Dataset) -> Result<()> {
    let rows = dataset.row_count();
    let (mut reader, mut batch) = (dataset.reader()?, Batch::default());
    for start in (0..rows).step_by(ROWS_AT_ONCE as usize) {
        reader.read(0, start..rows.min(start + ROWS_AT_ONCE), &mut batch)?;
        for judge in &mut *judges {
            judge.look(&batch).with_context(|| format!("rows {start} and on of the hold-out"))?;
        }
    }
    Ok(())
}

fn judge_raw(judges: &mut [Judge<'_>], reread: &Reread<'_>) -> Result<()> {
    reread.each(|batches| judges.iter_mut().zip(batches).try_for_each(|(judge, batch)| judge.look(batch)))
}

#[cfg(feature = "live")]
fn judge_stream<'a>(
    models: &[Model<'a>],
    recent: &campanile_live::recent::Recent,
    next: u64,
    rows: u64,
) -> Result<Vec<Judge<'a>>> {
    let start = recent.start(next, rows)?;
    let own = recent.transforms().fingerprint();
    let mut judges: Vec<Judge<'a>> = Vec::new();
    for model in models {
        let Model { name, snapshot } = model;
        let run = &snapshot.job().run;
        let tasks: Vec<&str> = snapshot.tasks().collect();
        let mut judge = Judge::of(model, &tasks, &[])?;
        // Labels stand in the order of the job that reads: the same columns with other tasks are read anew.
        let is_own = snapshot.inputs().fingerprint() == own && recent.tasks().eq(snapshot.tasks());
        let read = match is_own {
            true => recent.batches(start, rows),
            false => recent.as_read_by(run, snapshot.inputs().transforms()).batches(start, rows),
        };
        let batches = read.with_context(|| format!("the newest examples, read for {name}"))?;
        batches.iter().try_for_each(|batch| judge.look(batch)).context("the newest examples")?;
        if let Some(first) = judges.first()
            && first.samples != judge.samples
        {
            bail!(
                "{name} can read {} of the newest examples, and {} can read {}: they cannot be compared; publish without \
                 the gate (`gate_rows = 0`)",
                judge.samples,
                models[0].name,
                first.samples
            );
        }
        judges.push(judge);
    }
    Ok(judges)
}

/// Which models are read for, and what they read that the job does not.
fn names_of(foreign: &[&Model<'_>], own: &Transforms) -> String {
    let columns = |all: &Transforms| -> Vec<String> {
        let dense = (0..all.dense_count()).map(|column| all.dense_name(column).to_owned());
        let sparse = (0..all.sparse_count()).flat_map(|column| {
            [Some(all.sparse_name(column)), all.weights_name(column)].into_iter().flatten().map(str::to_owned)
        });
        dense.chain(sparse).collect()
    };
    let known = columns(own);
    let one = |model: &&Model<'_>| {
        let mut more = columns(model.snapshot.inputs().transforms());
        more.retain(|column| !known.contains(column));
        let more: Vec<String> = more.iter().take(NAMED_MAX).map(|column| format!("`{column}`")).collect();
        match more.is_empty() {
            true => model.name.clone(),
            false => format!("{}, which has column {} and the job has not", model.name, more.join(", ")),
        }
    };
    let names: Vec<String> = foreign.iter().map(one).collect();
    format!("the hold-out cannot be read for {}", names.join(" and "))
}

/// A synthetic world gives rows of its own tables; they are no other model's.
fn refuse_world(model: &Model<'_>, own: &Transforms) -> Result<()> {
    let mut columns = model.snapshot.inputs().transforms().difference(own);
    let more = columns.len().saturating_sub(NAMED_MAX);
    columns.truncate(NAMED_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    bail!(
        "{} cannot be judged on this synthetic world, because it was trained (first) on another one (second): {}{more}; \
         name the job that trained it, or publish without the gate (`--no-gate`, `gate_rows = 0`)",
        model.name,
        columns.join("; ")
    );
}

/// Scores batches and keeps the metrics.
struct Judge<'a> {
    snapshot: &'a Snapshot,
    /// By task of the model: its place among the labels.
    labels: Vec<Option<usize>>,
    metrics: Metrics,
    request: Request,
    scorer: Scorer,
    scores: Scores,
    samples: usize,
}

impl<'a> Judge<'a> {
    /// For examples with these labels. A task without one, which the present job has given up, is not judged.
    fn of(model: &Model<'a>, names: &[&str], segments: &[String]) -> Result<Judge<'a>> {
        let Model { name, snapshot } = model;
        let labels: Vec<Option<usize>> =
            snapshot.tasks().map(|task| names.iter().position(|name| *name == task)).collect();
        if labels.iter().all(Option::is_none) {
            bail!(
                "{name} has task `{}`, and the hold-out has label `{}`: it cannot be judged; name the job that trained it, \
                 or publish without the gate (`--no-gate`, `gate_rows = 0`)",
                snapshot.tasks().collect::<Vec<_>>().join("`, `"),
                names.join("`, `")
            );
        }
        Ok(Judge {
            snapshot,
            labels,
            metrics: Metrics::for_evaluation(&snapshot.job().run).with_segments(segments),
            request: Request::new(),
            scorer: Scorer::new(),
            scores: Scores::default(),
            samples: 0,
        })
    }

    fn look(&mut self, batch: &Batch) -> Result<()> {
        self.request.prepared(self.snapshot.inputs(), &batch.dense, &batch.bags)?;
        self.scorer.score(self.snapshot, &[&self.request], &mut self.scores)?;
        self.metrics.add(&[self.predictions(batch)]);
        self.samples += batch.sample_count;
        Ok(())
    }

    fn predictions(&self, batch: &Batch) -> Predictions {
        let (scores, count) = (&self.scores, batch.sample_count);
        let by_task = |task: usize| scores.logits.iter().skip(task).step_by(scores.task_count);
        // In the order of the model's tasks, NaN where there is no label.
        let placed = |column: &[f32]| -> Vec<f32> {
            let of = |place: &Option<usize>| match *place {
                Some(place) if !column.is_empty() => column[place * count..][..count].to_vec(),
                _ => vec![f32::NAN; count],
            };
            if column.is_empty() { Vec::new() } else { self.labels.iter().flat_map(of).collect() }
        };
        Predictions {
            sample_count: count,
            logits: (0..scores.task_count).flat_map(by_task).copied().collect(),
            labels: placed(&batch.labels),
            weights: batch.weights.clone(),
            groups: batch.groups.clone(),
            segments: batch.segments.clone(),
            true_probabilities: placed(&batch.true_probabilities),
            teacher_logits: Vec::new(),
            newest_time: None,
        }
    }
}
