//! `campanile eval`: a checkpoint judged on a split.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use campanile_data::Prepared;
use campanile_serve::{Options, Snapshot};
use campanile_spec::{
    config::{Job, Run},
    data::Split,
};
use campanile_tables::checkpoint::Checkpoint;
use campanile_train::{resume, run, scores::TaskScores};
use serde_json::json;

use crate::{
    args::{EvalArguments, SplitName},
    command::{
        gate::{HoldOut, Model, judge},
        inspect::newest_checkpoint,
        prep, write_report,
    },
    format, job_file,
    place::Place,
    scores_table::scores_table,
};

/// Runs the command.
pub fn run(arguments: &EvalArguments, place: &Place) -> Result<()> {
    let (job, found) = place.together(job_and_checkpoint(arguments, place))?;
    let prepared =
        place.first_then_others(|| prep::prepared_with_pulse(&job, !place.is_first(), place.pulse()))?;
    let (name, split, dataset) = match arguments.split {
        SplitName::Train => ("train", Split::Train, Some(&prepared.train)),
        SplitName::Valid => ("valid", Split::Valid, prepared.valid.as_ref()),
        SplitName::Test => ("test", Split::Test, prepared.test.as_ref()),
    };
    let Some(dataset) = dataset else {
        bail!("the job has no {name} split; see [run.data.split], or choose another with --split");
    };
    let trained = place.together(Trained::of(&found))?;
    let is_other_data = trained.data != prepared.fingerprint;
    // Which ids are unknown is known of the job's own vocabularies.
    let own_run = trained.reads_as(&job, &prepared);
    let ids = own_run.is_some().then(|| &prepared.ids[arguments.split as usize]);
    let scores = match own_run {
        Some(run) => {
            let job = Job { run, ..job };
            run::judge(&job, &prepared, dataset, place.ranks(&job)?, &found)?
        }
        None => {
            let mut scores = Vec::new();
            place.only_first(|| {
                scores = judge_with_own_transforms(&job, &prepared, split, &found)?;
                Ok(())
            })?;
            scores
        }
    };
    if !place.is_first() {
        return Ok(());
    }
    if is_other_data {
        eprintln!(
            "warning: {} was trained on other data (fingerprint {}, now {}): other files, columns or transforms, or files \
             that have changed since; some of these rows may be among those that it was trained on",
            found.display(),
            trained.data,
            prepared.fingerprint
        );
    }
    println!("{} on {} rows of the {name} split", found.display(), format::count(dataset.row_count()));
    print!("{}", scores_table(&[(name, &scores)]));
    if let Some(line) = ids.and_then(|ids| prep::unknown_ids(name, ids)) {
        println!("{line}");
    }
    write_report(
        arguments.report.as_deref(),
        &json!({
            "command": "eval",
            "checkpoint": found,
            "split": name,
            "rows": dataset.row_count(),
            "trained_on_other_data": is_other_data,
            "ids": ids,
            "evaluation": { name: { "tasks": scores } },
        }),
    )
}

/// What a checkpoint says of its training.
struct Trained {
    job: Job,
    /// The fingerprint of its transforms; checkpoints from before it was noted have none.
    transforms: Option<String>,
    /// The fingerprint of its data.
    data: String,
}

impl Trained {
    fn of(path: &Path) -> Result<Trained> {
        let job = Snapshot::job_of(path)?;
        let manifest = Checkpoint::open(path)?.manifest().clone();
        let transforms = manifest.extra["transforms"].as_str().map(str::to_owned);
        Ok(Trained { job, transforms, data: manifest.transforms })
    }

    /// The run that judges the job's packed rows with this checkpoint's model, if these rows are what it was trained to
    /// read.
    fn reads_as(&self, job: &Job, prepared: &Prepared) -> Option<Run> {
        let transforms = self.transforms.as_ref().is_none_or(|own| *own == prepared.transforms.fingerprint());
        let tasks =
            |job: &Job| job.run.data.columns.labels.iter().map(|l| l.name.clone()).collect::<Vec<_>>();
        let same = transforms && tasks(&self.job) == tasks(job);
        same.then(|| Run { data: job.run.data.clone(), ..self.job.run.clone() })
    }
}

/// The metrics of a checkpoint that was trained with other transforms than the job's: it reads the raw rows with its own.
fn judge_with_own_transforms(
    job: &Job,
    prepared: &Prepared,
    split: Split,
    path: &Path,
) -> Result<Vec<TaskScores>> {
    let snapshot = Snapshot::open(path, "model", &Options::default())?;
    let model = Model { name: path.display().to_string(), snapshot: &snapshot };
    let scores = judge(&[model], &HoldOut::rows(job, prepared, split, 0))?;
    Ok(scores.into_iter().next().unwrap_or_default())
}

/// The job with what the flags change, and the checkpoint to judge.
fn job_and_checkpoint(arguments: &EvalArguments, place: &Place) -> Result<(Job, PathBuf)> {
    let mut job = job_file::read(&arguments.job)?;
    if let Some(threads) = arguments.threads {
        place.refuse_threads()?;
        job.process.threads = threads;
    }
    let directory = arguments.checkpoint.clone().unwrap_or_else(|| resume::directory(&job));
    let found = newest_checkpoint(&directory)?.with_context(|| {
        format!("{} holds no checkpoint; train first, or name one with --checkpoint", directory.display())
    })?;
    Ok((job, found))
}
