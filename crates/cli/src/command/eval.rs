//! `campanile eval`: a checkpoint judged on a split.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use campanile_data::Transforms;
use campanile_serve::Snapshot;
use campanile_spec::config::Job;
use campanile_tables::checkpoint::Checkpoint;
use campanile_train::{resume, run::judge};
use serde_json::json;

use crate::{
    args::{EvalArguments, SplitName},
    command::{gate::check_transforms, inspect::newest_checkpoint, prep, write_report},
    format, job_file,
    place::Place,
    scores_table::scores_table,
};

/// Runs the command.
pub fn run(arguments: &EvalArguments, place: &Place) -> Result<()> {
    let (job, found) = place.together(job_and_checkpoint(arguments, place))?;
    let prepared =
        place.first_then_others(|| prep::prepared_with_pulse(&job, !place.is_first(), place.pulse()))?;
    let (name, dataset) = match arguments.split {
        SplitName::Train => ("train", Some(&prepared.train)),
        SplitName::Valid => ("valid", prepared.valid.as_ref()),
        SplitName::Test => ("test", prepared.test.as_ref()),
    };
    let Some(dataset) = dataset else {
        bail!("the job has no {name} split; see [run.data.split], or choose another with --split");
    };
    place.together(check(&found, &prepared.transforms))?;
    let scores = judge(&job, &prepared, dataset, place.ranks(&job)?, &found)?;
    if !place.is_first() {
        return Ok(());
    }
    println!("{} on {} rows of the {name} split", found.display(), format::count(dataset.row_count()));
    print!("{}", scores_table(&[(name, &scores)]));
    let ids = &prepared.ids[arguments.split as usize];
    if let Some(line) = prep::unknown_ids(name, ids) {
        println!("{line}");
    }
    write_report(
        arguments.report.as_deref(),
        &json!({
            "command": "eval",
            "checkpoint": found,
            "split": name,
            "rows": dataset.row_count(),
            "ids": ids,
            "evaluation": { name: { "tasks": scores } },
        }),
    )
}

/// Fails where the checkpoint was trained with other transforms than the job's.
fn check(checkpoint: &Path, rows: &Transforms) -> Result<()> {
    let trained_with = Checkpoint::open(checkpoint)?.manifest().extra["transforms"].clone();
    if trained_with.is_null() || trained_with.as_str() == Some(&rows.fingerprint()) {
        return Ok(());
    }
    let own = Snapshot::transforms_of(checkpoint)
        .context("the checkpoint was trained with other transforms than the job's")?;
    let advice = "name the job that trained it, with the same columns and training files";
    check_transforms(&own, rows, advice).with_context(|| checkpoint.display().to_string())
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
