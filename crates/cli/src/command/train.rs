//! `campanile train`: from a job file to a checkpoint, with everything shown on the way.

use std::path::Path;

use anyhow::{Context, Result};
use campanile_data::Prepared;
use campanile_spec::{Bytes, config::Job, data::SourceSpec};
#[cfg(feature = "live")]
use campanile_train::run::train_on_stream;
use campanile_train::{
    observe::{Event, Observer, Started, Wish},
    resume,
    run::{Summary, train},
    scores::TaskScores,
};
use serde_json::json;

use crate::{
    args::TrainArguments,
    claim::Claim,
    command::{prep, write_report},
    format,
    interrupt::{Interrupted, Signal},
    job_file,
    place::Place,
    progress::Progress,
    publisher::Publisher,
    scores_table::scores_table,
};

/// Runs the command.
pub fn run(arguments: &TrainArguments, place: &Place) -> Result<()> {
    let job = place.together(job_of(arguments, place))?;
    // Held to the end: two trainings in one directory would take each other's checkpoints for their own.
    let mut claim = None;
    // Before hours of packing; a stream is not packed.
    if !arguments.is_on_stream() {
        place.together(place.ranks(&job).and_then(|ranks| Ok(ranks.check_memory(&job)?)))?;
    }
    place.only_first(|| {
        claim = Some(Claim::of(&job.process.output_dir, "give this one another directory with `--output`")?);
        make_output(&job, arguments.fresh)
    })?;
    let quiet = arguments.quiet || !place.is_first();
    let prepared = place.first_then_others(|| prepared_for(arguments, &job, quiet, place))?;
    let mut watcher = Watcher::new(&job, quiet, place);
    if place.is_first() {
        watcher.publisher = Publisher::of(&job, &prepared);
    }
    let (summary, passed_over) = trained(arguments, &job, &prepared, place, &mut watcher)?;
    watcher.end();
    if !place.is_first() {
        return stopped(&summary, arguments, place);
    }
    let say = |line: &str| {
        if !arguments.quiet || line.starts_with("not published") {
            println!("{line}");
        }
    };
    let stopped = stopped(&summary, arguments, place);
    let published = match (watcher.publisher.take(), &stopped) {
        (None, _) => Ok(()),
        (Some(publisher), Ok(())) => publisher.finish(say),
        (Some(publisher), Err(_)) => publisher.leave(say),
    };
    if !arguments.quiet {
        print_summary(&summary, &job, &arguments.job);
    }
    write_report(
        arguments.report.as_deref(),
        &json!({
            "command": "train",
            "job": job,
            "run_hash": job.run.hash(),
            "data_fingerprint": prepared.fingerprint,
            "skipped_rows": prepared.skipped.total + passed_over,
            "warnings": prepared.warnings,
            "started": summary.started,
            "steps": summary.steps,
            "interrupted": summary.interrupted,
            "samples": summary.samples,
            "seconds": summary.seconds,
            "samples_per_second": summary.samples as f64 / summary.seconds.max(1e-9),
            "parts_seconds": summary.parts,
            "training": { "tasks": summary.training },
            "second_half": { "tasks": summary.second_half },
            "teacher": summary.teacher.as_ref().map(|tasks| json!({ "tasks": tasks })),
            "evaluation": {
                "valid": summary.valid.as_ref().map(|tasks| json!({ "tasks": tasks })),
                "test": summary.test.as_ref().map(|tasks| json!({ "tasks": tasks })),
            },
            "checkpoint": summary.checkpoint,
        }),
    )?;
    stopped.and(published)
}

/// A run over files that was asked to stop is not done, and says how it goes on; one on a stream ends in no other way.
fn stopped(summary: &Summary, arguments: &TrainArguments, place: &Place) -> Result<()> {
    if !summary.interrupted || arguments.is_on_stream() {
        return Ok(());
    }
    // Another rank may have been asked.
    let signal = place.interrupts().first().unwrap_or(Signal::Terminate);
    let (step, all) = (format::count(summary.steps), format::count(summary.started.steps));
    let words = format!(
        "step {step} of {all} is in the checkpoint {}, and the same command goes on from it",
        summary.checkpoint.display()
    );
    Err(Interrupted { signal, words }.into())
}

/// The job's data; where it trains on a stream and has no files, only its transforms.
fn prepared_for(arguments: &TrainArguments, job: &Job, quiet: bool, place: &Place) -> Result<Prepared> {
    let has_files =
        matches!(job.run.data.source, SourceSpec::Synthetic(_)) || !job.process.data.train.is_empty();
    if arguments.is_on_stream() && !has_files {
        return Ok(Prepared::without_rows(&job.run.data)?);
    }
    let prepared = prep::prepared_with_pulse(job, quiet, place.pulse())?;
    if !arguments.is_on_stream() {
        prepared.check_labels(&job.run.data, &job.process.data)?;
    }
    Ok(prepared)
}

/// Trains, on the data or on a stream; also says how many examples of a stream were passed over.
fn trained(
    arguments: &TrainArguments,
    job: &Job,
    prepared: &Prepared,
    place: &Place,
    watcher: &mut Watcher<'_>,
) -> Result<(Summary, u64)> {
    #[cfg(feature = "live")]
    if let Some(address) = &arguments.stream.stream {
        let stream = &arguments.stream;
        let log = crate::stage::open_log(address, &stream.entry)?;
        let ending = crate::args::live::EndArguments { stop_at_end: stream.stop_at_end };
        let stop = crate::stage::stop_without_signals(&ending);
        let asked = std::sync::Arc::clone(&stop);
        place.together(place.interrupts().listen_for_a_run(move || asked.ask(campanile_live::End::Now)))?;
        if place.is_first() {
            let (log, stop) = (std::sync::Arc::clone(&log), std::sync::Arc::clone(&stop));
            let recent = campanile_live::recent::Recent::new(log, &job.run, &prepared.transforms, stop);
            watcher.publisher = Publisher::on_stream(job, prepared, recent);
        }
        let examples = campanile_live::examples::Examples::new(log, &job.run, &prepared.transforms, stop);
        let summary = train_on_stream(job, prepared, &examples, place.ranks(job)?, watcher)?;
        let (count, first) = examples.skipped().told();
        if let Some(first) = first {
            eprintln!("{count} examples were passed over, which the job cannot take; the first: {first}");
        }
        return Ok((summary, count));
    }
    let _ = arguments;
    place.together(place.interrupts().listen_for_a_run(|| {}))?;
    Ok((train(job, prepared, place.ranks(job)?, watcher)?, 0))
}

/// The job with what the flags change.
fn job_of(arguments: &TrainArguments, place: &Place) -> Result<Job> {
    let mut job = job_file::read(&arguments.job)?;
    if let Some(threads) = arguments.threads {
        place.refuse_threads()?;
        job.process.threads = threads;
    }
    if let Some(output) = &arguments.output {
        job.process.output_dir.clone_from(output);
    }
    Ok(job)
}

/// Makes the output directory, with the effective job in it.
pub fn make_output(job: &Job, is_fresh: bool) -> Result<()> {
    let output = &job.process.output_dir;
    if is_fresh {
        remove_earlier(job)?;
    }
    std::fs::create_dir_all(output)
        .with_context(|| format!("cannot make the directory {}", output.display()))?;
    let effective = output.join("job.toml");
    std::fs::write(&effective, job.effective_toml())
        .with_context(|| format!("cannot write {}", effective.display()))
}

fn remove_earlier(job: &Job) -> Result<()> {
    let output = &job.process.output_dir;
    for (path, is_directory) in
        [(resume::directory(job), true), (output.join("events"), true), (output.join("metrics.jsonl"), false)]
    {
        if path.exists() {
            let removed =
                if is_directory { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Shows the run while it goes on.
struct Watcher<'a> {
    publisher: Option<Publisher>,
    progress: Option<Progress>,
    quiet: bool,
    place: &'a Place,
    started: Started,
    output: String,
    /// What there is to say of the model's towers.
    towers: Option<String>,
}

impl Watcher<'_> {
    fn new<'a>(job: &Job, quiet: bool, place: &'a Place) -> Watcher<'a> {
        let output = job.process.output_dir.display().to_string();
        let towers = format::towers(&job.run.model);
        Watcher { publisher: None, progress: None, quiet, place, started: Started::default(), output, towers }
    }

    fn end(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.end();
        }
    }

    fn start(&mut self, started: &Started) {
        let progress = Progress::new("train", started.steps, self.quiet);
        let all = match started.steps {
            u64::MAX => "a stream".to_owned(),
            steps => format!("{} rows, {} steps", format::count(started.train_rows), format::count(steps)),
        };
        progress.line(&format!(
            "{all}; {} floats in tables ({}), {} in the network; {} {}, {}",
            format::rate(started.table_parameters as f64),
            Bytes(started.table_bytes),
            format::count(started.dense_parameters as u64),
            started.rank_count,
            self.place.rank_noun(started.rank_count),
            started.level,
        ));
        started.warnings.iter().for_each(|warning| progress.line(&format!("warning: {warning}")));
        if let Some(towers) = &self.towers {
            progress.line(&format!("{towers}; ways of the vectors: {}", started.route));
        }
        if started.first_step > 0 {
            let step = format::count(started.first_step);
            progress.line(&format!("going on from the checkpoint of step {step} in {}", self.output));
        }
        self.progress = Some(progress);
        self.started = started.clone();
    }
}

impl Observer for Watcher<'_> {
    fn wish(&self) -> Wish {
        self.place.interrupts().first().map_or(Wish::Nothing, |_| Wish::Stop)
    }

    fn observe(&mut self, event: &Event<'_>) {
        if let Event::Started(started) = event {
            return self.start(started);
        }
        let Some(progress) = &mut self.progress else { return };
        match event {
            Event::Started(_) => {}
            Event::Step(step) => progress.update(step.step, self.started.steps, || {
                let done = (step.step - self.started.first_step) as f64;
                let left = (self.started.steps - step.step) as f64 * step.seconds / done.max(1.0);
                let left = match self.started.steps {
                    u64::MAX => String::new(),
                    _ => format!("  ETA {}", format::duration(left)),
                };
                format!(
                    "{} samples/s  {}{left}",
                    format::rate(step.samples as f64 / step.seconds.max(1e-9)),
                    short_scores(&(step.window)())
                )
            }),
            Event::Evaluated { step, split, scores } => {
                progress.line(&format!("step {}: {split} {}", format::count(*step), short_scores(scores)));
            }
            Event::Checkpoint { step, path } => {
                progress.line(&format!("step {}: checkpoint {}", format::count(*step), path.display()));
                let said = self.publisher.as_mut().and_then(|publisher| publisher.checkpoint(*step, path));
                said.iter().for_each(|line| progress.line(line));
            }
        }
    }
}

fn short_scores(scores: &[TaskScores]) -> String {
    let several = scores.len() > 1;
    let one = |score: &TaskScores| {
        let name = if several { format!("{} ", score.task) } else { String::new() };
        let value = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.4}"));
        format!("{name}loss {} NE {}", value(score.values.logloss), value(score.values.ne))
    };
    scores.iter().map(one).collect::<Vec<_>>().join("  ")
}

/// Above this NE a model is worth a warning: one that always answers the mean rate has 1.
const NE_WORTH_A_WORD: f64 = 1.1;

/// What to say of a model that is worse than none, on the last split that was looked at.
fn worse_than_nothing(splits: &[(&str, &[TaskScores])]) -> Vec<String> {
    let Some((split, scores)) = splits.last() else { return Vec::new() };
    let one = |score: &TaskScores| {
        let (task, ne) = (&score.task, score.values.ne.filter(|ne| *ne > NE_WORTH_A_WORD)?);
        Some(format!(
            "task `{task}`: NE is {ne:.4} ({split}), worse than always answering the mean rate, which has 1"
        ))
    };
    scores.iter().filter_map(one).collect()
}

fn print_summary(summary: &Summary, job: &Job, job_path: &Path) {
    let trained = summary.steps - summary.started.first_step.min(summary.steps);
    if trained == 0 {
        println!("all {} steps were trained before", format::count(summary.steps));
    } else {
        println!(
            "trained {} steps, {} samples in {} ({} samples/s)",
            format::count(trained),
            format::count(summary.samples),
            format::duration(summary.seconds),
            format::rate(summary.samples as f64 / summary.seconds.max(1e-9))
        );
    }
    println!();
    let mut splits: Vec<(&str, &[TaskScores])> = vec![("training", &summary.training)];
    splits.extend(summary.valid.as_deref().map(|scores| ("valid", scores)));
    splits.extend(summary.test.as_deref().map(|scores| ("test", scores)));
    print!("{}", scores_table(&splits));
    println!();
    println!("checkpoint   {}", summary.checkpoint.display());
    if summary.interrupted {
        return;
    }
    worse_than_nothing(&splits).iter().for_each(|line| println!("warning: {line}"));
    println!("metrics      {}", job.process.output_dir.join("metrics.jsonl").display());
    println!("TensorBoard  tensorboard --logdir {}", job.process.output_dir.join("events").display());
    println!();
    let inspect = format!("campanile inspect {}", summary.checkpoint.display());
    match summary.test {
        Some(_) => println!("next: campanile eval {} --split test\n      {inspect}", job_path.display()),
        None => println!("next: {inspect}"),
    }
}
