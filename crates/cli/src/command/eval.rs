//! `campanile eval`: a checkpoint judged on a split.

use anyhow::{Context, Result, bail};
use campanile_train::{ranks::Ranks, resume, run::judge};
use serde_json::json;

use crate::{
    args::{EvalArguments, SplitName},
    command::{inspect::newest_checkpoint, prep, write_report},
    format, job_file,
    scores_table::scores_table,
};

/// Runs the command.
pub fn run(arguments: &EvalArguments) -> Result<()> {
    let mut job = job_file::read(&arguments.job)?;
    if let Some(threads) = arguments.threads {
        job.process.threads = threads;
    }
    let place = arguments.checkpoint.clone().unwrap_or_else(|| resume::directory(&job));
    let found = newest_checkpoint(&place)?.with_context(|| {
        format!("{} holds no checkpoint; train first, or name one with --checkpoint", place.display())
    })?;
    let prepared = prep::prepared(&job, false)?;
    let (name, dataset) = match arguments.split {
        SplitName::Train => ("train", Some(&prepared.train)),
        SplitName::Valid => ("valid", prepared.valid.as_ref()),
        SplitName::Test => ("test", prepared.test.as_ref()),
    };
    let Some(dataset) = dataset else {
        bail!("the job has no {name} split; see [run.data.split], or choose another with --split");
    };
    let scores = judge(&job, &prepared, dataset, Ranks::threads_for(&job)?, &found)?;
    println!("{} on {} rows of the {name} split", found.display(), format::count(dataset.row_count()));
    print!("{}", scores_table(&[(name, &scores)]));
    write_report(
        arguments.report.as_deref(),
        &json!({
            "command": "eval",
            "checkpoint": found,
            "split": name,
            "rows": dataset.row_count(),
            "evaluation": { name: { "tasks": scores } },
        }),
    )
}
