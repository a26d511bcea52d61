//! The gate before a registry: a candidate must not be worse on a hold-out than what is served now.

use std::{error, fmt};

use anyhow::{Context, Result, bail};
use campanile_data::{Dataset, Transforms};
use campanile_serve::{Request, Scorer, Scores, Snapshot};
use campanile_spec::Batch;
use campanile_train::{
    predictions::Predictions,
    scores::{Scores as Metrics, TaskScores},
};

/// Rows that are scored at a time.
const ROWS_AT_ONCE: u64 = 4096;

/// By how much a candidate may be worse.
#[derive(Debug, Clone, Copy)]
pub struct Margins {
    /// NE above the current one's.
    pub ne: f64,
    /// Distance of calibration from 1 above the current one's.
    pub calibration: f64,
}

/// A candidate was judged and is worse: the gate did its work, which is no failure of publishing.
#[derive(Debug)]
pub struct HeldBack(String);

impl fmt::Display for HeldBack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the gate holds it back: {}", self.0)
    }
}

impl error::Error for HeldBack {}

/// What versions are judged on; nobody was trained on it.
pub struct HoldOut<'a> {
    /// The examples.
    pub examples: Examples<'a>,
    /// What made model inputs of them.
    pub transforms: &'a Transforms,
}

/// The examples of a hold-out.
pub enum Examples<'a> {
    /// The first rows of a data set; 0 means all.
    Rows(&'a Dataset, u64),
    /// Examples of a stream that came after the checkpoint.
    #[cfg_attr(not(feature = "live"), expect(dead_code, reason = "only a stream has them"))]
    Batches(&'a [Batch]),
}

/// Columns that differ which are named; the rest is counted.
const NAMED_MAX: usize = 5;

/// Fails where a model was trained with other transforms than the rows it is to be judged on were prepared with: the
/// rows of its tables would be other ids' rows, and every number wrong.
pub fn check_transforms(model: &Transforms, rows: &Transforms, advice: &str) -> Result<()> {
    let mut columns = model.difference(rows);
    if columns.is_empty() {
        return Ok(());
    }
    let more = columns.len().saturating_sub(NAMED_MAX);
    columns.truncate(NAMED_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    bail!(
        "the model (first) was trained with other transforms than these rows (second) were prepared with, so its scores \
         would mean nothing: {}{more}; {advice}",
        columns.join("; ")
    );
}

/// The metrics of a snapshot on a hold-out.
pub fn judge(snapshot: &Snapshot, hold_out: &HoldOut<'_>) -> Result<Vec<TaskScores>> {
    check_transforms(
        snapshot.inputs().transforms(),
        hold_out.transforms,
        "prepare the data with the same transforms, or publish without the gate (`--no-gate`, `gate_rows = 0`)",
    )?;
    let segments = match hold_out.examples {
        Examples::Rows(dataset, _) => dataset.segments(),
        Examples::Batches(_) => &[],
    };
    let mut judge = Judge::of(snapshot, segments);
    match hold_out.examples {
        Examples::Rows(dataset, rows) => {
            let rows = if rows == 0 { dataset.row_count() } else { rows.min(dataset.row_count()) };
            let (mut reader, mut batch) = (dataset.reader()?, Batch::default());
            for start in (0..rows).step_by(ROWS_AT_ONCE as usize) {
                reader.read(0, start..rows.min(start + ROWS_AT_ONCE), &mut batch)?;
                judge.look(&batch).with_context(|| format!("rows {start} and on of the hold-out"))?;
            }
        }
        Examples::Batches(batches) => {
            batches.iter().try_for_each(|batch| judge.look(batch)).context("the newest examples")?;
        }
    }
    Ok(judge.metrics.running())
}

/// Scores batches and keeps the metrics.
struct Judge<'a> {
    snapshot: &'a Snapshot,
    metrics: Metrics,
    request: Request,
    scorer: Scorer,
    scores: Scores,
}

impl Judge<'_> {
    fn of<'a>(snapshot: &'a Snapshot, segments: &[String]) -> Judge<'a> {
        Judge {
            snapshot,
            metrics: Metrics::for_evaluation(&snapshot.job().run).with_segments(segments),
            request: Request::new(),
            scorer: Scorer::new(),
            scores: Scores::default(),
        }
    }

    fn look(&mut self, batch: &Batch) -> Result<()> {
        self.request.prepared(self.snapshot.inputs(), &batch.dense, &batch.bags)?;
        self.scorer.score(self.snapshot, &[&self.request], &mut self.scores)?;
        self.metrics.add(&[predictions(batch, &self.scores)]);
        Ok(())
    }
}

fn predictions(batch: &Batch, scores: &Scores) -> Predictions {
    let by_task = |task: usize| scores.logits.iter().skip(task).step_by(scores.task_count);
    Predictions {
        sample_count: batch.sample_count,
        logits: (0..scores.task_count).flat_map(by_task).copied().collect(),
        labels: batch.labels.clone(),
        weights: batch.weights.clone(),
        groups: batch.groups.clone(),
        segments: batch.segments.clone(),
        true_probabilities: batch.true_probabilities.clone(),
        teacher_logits: Vec::new(),
        newest_time: None,
    }
}

/// Fails, with all reasons, where the candidate is worse than the current version by more than the margins.
/// Without a current version only numbers that are none are refused.
pub fn compare(candidate: &[TaskScores], current: Option<&[TaskScores]>, margins: Margins) -> Result<()> {
    let mut reasons = Vec::new();
    for scores in candidate {
        let task = &scores.task;
        if scores.values.non_finite > 0 {
            reasons.push(format!("task `{task}`: {} scores are no numbers", scores.values.non_finite));
        }
        let Some(before) = current.and_then(|all| all.iter().find(|other| other.task == *task)) else {
            continue;
        };
        let distance = |values: &TaskScores| values.values.calibration.map(|value| (value - 1.0).abs());
        let measures = [
            ("NE", scores.values.ne, before.values.ne, margins.ne),
            ("distance of calibration from 1", distance(scores), distance(before), margins.calibration),
        ];
        for (what, now, then, margin) in measures {
            // A current version without the value, for want of labels, forbids nothing.
            if let (Some(now), Some(then)) = (now, then)
                && now > then + margin
            {
                reasons.push(format!(
                    "task `{task}`: {what} is {now:.5}, the current version has {then:.5} and the margin is {margin}"
                ));
            }
        }
    }
    if !reasons.is_empty() {
        return Err(HeldBack(reasons.join("; ")).into());
    }
    Ok(())
}
