//! `campanile prep`: raw logs to the packed form.

use anyhow::Result;
use campanile_data::{
    IdCounts, Observed, PrepOptions, PrepPhase, PrepProgress, Prepared, SkippedRows, prepare,
};
use campanile_spec::{Bytes, config::Job};
use campanile_train::ranks::Pulse;
use serde_json::json;

use crate::{args::PrepArguments, command::write_report, format, job_file, progress::Progress};

/// Runs the command.
pub fn run(arguments: &PrepArguments) -> Result<()> {
    let job = job_file::read(&arguments.job)?;
    let prepared = prepared(&job, arguments.quiet)?;
    let rows =
        |dataset: Option<&campanile_data::Dataset>| dataset.map_or(0, campanile_data::Dataset::row_count);
    let (train, valid, test) =
        (prepared.train.row_count(), rows(prepared.valid.as_ref()), rows(prepared.test.as_ref()));
    println!(
        "{} rows to train on, {} for validation, {} for the test; packed in {}",
        format::count(train),
        format::count(valid),
        format::count(test),
        job.process.cache_dir.display()
    );
    for (split, counts) in ["train", "valid", "test"].into_iter().zip(&prepared.ids) {
        if let Some(line) = unknown_ids(split, counts) {
            println!("{line}");
        }
    }
    if !arguments.quiet {
        tell_observed(&prepared.observed, &job);
    }
    println!("next: campanile train {}", arguments.job.display());
    write_report(
        arguments.report.as_deref(),
        &json!({
            "command": "prep",
            "rows": { "train": train, "valid": valid, "test": test },
            "skipped_rows": prepared.skipped.total,
            "warnings": prepared.warnings,
            "ids": { "train": prepared.ids[0], "valid": prepared.ids[1], "test": prepared.ids[2] },
            "observed": prepared.observed,
            "fingerprint": prepared.fingerprint,
        }),
    )
}

/// Says which share of a split's ids has no row of its own; nothing where all have.
pub fn unknown_ids(split: &str, counts: &[IdCounts]) -> Option<String> {
    let unknown = counts.iter().filter(|counts| counts.unknown > 0);
    let told: Vec<String> =
        unknown.map(|counts| format!("`{}` {:.2} %", counts.column, 100.0 * counts.share())).collect();
    (!told.is_empty()).then(|| format!("ids of {split} that have no row of their own: {}", told.join(", ")))
}

/// Says what is missing in the rows that are kept: a column that is mostly missing, or labels that are, may be a mistake.
fn tell_observed(observed: &Observed, job: &Job) {
    let share = |count: u64| {
        let share = 100.0 * count as f64 / observed.rows.max(1) as f64;
        format!("{} of {} rows ({share:.1} %)", format::count(count), format::count(observed.rows))
    };
    for (name, counts) in observed.labels.iter().filter(|(_, counts)| counts.absent > 0) {
        println!("label `{name}`: absent in {}", share(counts.absent));
    }
    for (name, count) in &observed.missing {
        println!("column `{name}`: missing in {}", share(*count));
    }
    for (name, count) in &observed.cut_lists {
        let columns = &job.run.data.columns.sparse;
        let Some(column) = columns.iter().find(|column| column.name == *name) else { continue };
        let which = if column.keep.is_first() { "first" } else { "last" };
        println!("list `{name}`: cut to its {which} {} ids in {}", column.bag_max, share(*count));
    }
}

/// Packs the job's data, or finds it packed, and says what was left out.
pub fn prepared(job: &Job, quiet: bool) -> Result<Prepared> {
    prepared_with_pulse(job, quiet, &Pulse::default())
}

/// The same, with somebody who watches whether it moves.
pub fn prepared_with_pulse(job: &Job, quiet: bool, pulse: &Pulse) -> Result<Prepared> {
    pulse.enter("prep");
    let options = PrepOptions {
        memory_mib: job.process.prep_memory_mib,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        embedding_floats: job.run.follow.floats_wanted(),
        ..PrepOptions::new(&job.process.cache_dir, job.run.seed)
    };
    let mut progress: Option<(u32, Progress)> = None;
    let mut show = |state: PrepProgress| {
        pulse.beat();
        if progress.as_ref().is_none_or(|(pass, _)| *pass != state.pass) {
            let task = match state.phase {
                PrepPhase::Count => "count",
                PrepPhase::Measure => "measure",
                PrepPhase::Pack => "pack",
            };
            if let Some((_, mut ended)) = progress.take() {
                ended.end();
            }
            progress = Some((state.pass, Progress::new(task, state.bytes_total, quiet)));
        }
        let Some((_, progress)) = &mut progress else { return };
        progress.update(state.bytes_done, state.bytes_total, || {
            let (done, total) = (Bytes(state.bytes_done), Bytes(state.bytes_total));
            format!(
                "{done} of {total}, {} rows (pass {} of {})",
                format::count(state.rows),
                state.pass,
                state.pass_count
            )
        });
    };
    let prepared = prepare(&job.run.data, &job.process.data, &options, &mut show)?;
    if let Some((_, mut progress)) = progress {
        progress.end();
    }
    if !quiet && prepared.skipped.total > 0 {
        tell_skipped(&prepared.skipped);
    }
    if !quiet {
        prepared.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    }
    Ok(prepared)
}

fn tell_skipped(skipped: &SkippedRows) {
    let reasons: Vec<String> = skipped
        .by_reason
        .iter()
        .map(|(reason, count)| format!("{} {reason}", format::count(*count)))
        .collect();
    eprintln!("left out {} bad rows: {}", format::count(skipped.total), reasons.join(", "));
    for example in &skipped.examples {
        eprintln!("  for example {example}");
    }
}
