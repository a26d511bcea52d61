//! `campanile augment`: a teacher's words on the rows of a student's training split, or on an event log's impressions.

#[cfg(feature = "live")]
pub mod stream;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use campanile_data::{
    Dataset, Prepared,
    teacher::{TeacherHeader, TeacherVersion, TeacherWriter},
};
use campanile_serve::{Options, Projection, Request, Scorer, Scores, Snapshot};
use campanile_spec::{Batch, config::Job, data::SourceSpec};
use campanile_tables::{
    Registry,
    checkpoint::{self, Checkpoint},
};
use serde_json::json;

use crate::{
    args::learning::AugmentArguments,
    command::{inspect::newest_checkpoint, prep, write_report},
    format, job_file,
    progress::Progress,
};

/// Rows that are scored at a time.
const ROWS_AT_ONCE: u64 = 4096;

/// The versions of a teacher.
pub struct Versions {
    registry: Option<(Registry, String)>,
    /// The oldest first: its number, the newest time that it was trained on, and where it is.
    all: Vec<(u64, Option<i64>, PathBuf)>,
}

/// How rows find the version that scores them.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// The newest version older than the row, or the newest of all.
    pub follow: bool,
    /// Seconds from a version's newest sample until it speaks.
    pub delay_seconds: f64,
    /// Seconds in a unit of the data's times.
    pub time_unit: f64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Coverage {
    /// Rows of the split.
    pub rows: u64,
    /// Rows with a word.
    pub scored: u64,
    /// Scored rows that are not newer than what their version was trained on.
    pub known: u64,
    /// Versions that spoke.
    pub versions: usize,
}

/// Runs the command.
pub fn run(arguments: &AugmentArguments) -> Result<()> {
    let source = arguments.source.as_str();
    if ["dir:", "nats:", "tls:"].iter().any(|scheme| source.starts_with(scheme)) {
        refuse_rows(arguments)?;
        #[cfg(feature = "live")]
        return stream::run(arguments);
        #[cfg(not(feature = "live"))]
        bail!(
            "{source} is an event log, and this program was built without them; build it with `--features live`"
        );
    }
    #[cfg(feature = "live")]
    stream::refuse(arguments)?;
    run_on_rows(arguments)
}

/// Refuses what only makes sense for a job.
fn refuse_rows(arguments: &AugmentArguments) -> Result<()> {
    let rows = &arguments.rows;
    let given = [
        ("--follow", rows.follow),
        ("--time-unit", rows.time_unit.is_some()),
        ("--output", rows.output.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => bail!("{flag} is for a job file, and an event log is named"),
        None => Ok(()),
    }
}

fn run_on_rows(arguments: &AugmentArguments) -> Result<()> {
    let mut job = job_file::read(Path::new(&arguments.source))?;
    let named = job.process.data.teacher.take();
    let Some(output) = arguments.rows.output.clone().or(named) else {
        bail!("say where the words go: --output FILE, or process.data.teacher in the job");
    };
    let versions = match &arguments.model {
        Some(model) => Versions::of_registry(&arguments.teacher, model)?,
        None => Versions::of_checkpoints(&arguments.teacher)?,
    };
    let usual = if matches!(job.run.data.source, SourceSpec::Synthetic(_)) { 0.001 } else { 1.0 };
    let manner = Manner {
        follow: arguments.rows.follow,
        delay_seconds: arguments.rows.delay.unwrap_or(0.0),
        time_unit: arguments.rows.time_unit.unwrap_or(usual),
    };
    let floats = arguments.embedding.map_or(job.run.follow.floats_wanted(), usize::from);
    let coverage = augment((&job, floats), &versions, manner, &output, arguments.quiet)?;
    if !arguments.quiet {
        println!(
            "{} of {} rows have a word from {} version(s) of the teacher; written to {}",
            format::count(coverage.scored),
            format::count(coverage.rows),
            coverage.versions,
            output.display()
        );
        if coverage.known > 0 {
            println!(
                "{} of them may have been trained on by the version that scored them: --follow avoids that",
                format::count(coverage.known)
            );
        }
        println!(
            "next: set process.data.teacher = {:?} and run.distil.method in a job",
            output.display().to_string()
        );
    }
    let Coverage { rows, scored, known, versions } = coverage;
    write_report(
        arguments.report.as_deref(),
        &json!({
            "command": "augment", "output": output, "rows": rows, "scored": scored, "known_to_the_teacher": known,
            "versions": versions,
        }),
    )
}

impl Versions {
    /// All versions of a model in a registry.
    pub fn of_registry(root: &Path, model: &str) -> Result<Versions> {
        let registry = Registry::new(root);
        let mut all = Vec::new();
        for number in registry.versions(model)? {
            let release = registry.release(model, number)?;
            all.push((number, release.data_time, registry.path(model, number)));
        }
        if all.is_empty() {
            bail!("{} has no version of `{model}`; `campanile inspect` shows what it has", root.display());
        }
        Ok(Versions { registry: Some((registry, model.to_owned())), all })
    }

    /// A checkpoint, or all checkpoints of a directory.
    pub fn of_checkpoints(path: &Path) -> Result<Versions> {
        let below = path.join("checkpoints");
        let directory = if below.is_dir() { &below } else { path };
        let mut found: Vec<PathBuf> =
            checkpoint::list(directory)?.into_iter().map(|(_, path)| path).collect();
        if found.is_empty() {
            found.extend(newest_checkpoint(path)?);
        }
        let mut all = Vec::new();
        for path in found {
            let manifest = Checkpoint::open(&path)?.manifest().clone();
            all.push((manifest.step, manifest.extra["data_time"].as_i64(), path));
        }
        if all.is_empty() {
            bail!("{} holds no checkpoint; name a registry's model with --model", path.display());
        }
        Ok(Versions { registry: None, all })
    }

    fn open(&self, place: usize, present: Option<&Snapshot>) -> Result<Snapshot> {
        let (number, _, path) = &self.all[place];
        let options = Options::default();
        Ok(match &self.registry {
            Some((registry, model)) => Snapshot::of_registry(registry, model, *number, present, &options)?,
            None => Snapshot::open(path, "teacher", &options)?,
        })
    }

    fn headers(&self) -> Vec<TeacherVersion> {
        let model = self.registry.as_ref().map_or("teacher", |(_, model)| model);
        let version = |(number, data_time, path): &(u64, Option<i64>, PathBuf)| TeacherVersion {
            model: model.to_owned(),
            number: *number,
            id: path.display().to_string(),
            data_time: *data_time,
        };
        self.all.iter().map(version).collect()
    }

    /// The version that scores a row of this time.
    fn at(&self, time: Option<i64>, manner: Manner) -> Option<usize> {
        if !manner.follow {
            return Some(self.all.len() - 1);
        }
        let wait = (manner.delay_seconds / manner.time_unit) as i64;
        let speaks = |(_, newest, _): &(u64, Option<i64>, PathBuf)| matches!((newest, time), (Some(newest), Some(time)) if *newest + wait < time);
        self.all.iter().rposition(speaks)
    }
}

/// Scores the rows of a student's training split and writes the words to `output`, with embeddings of so many floats;
/// 0 for none.
///
/// # Errors
/// When the teacher cannot be read, or its job does not fit the student's files.
pub fn augment(
    (job, floats): (&Job, usize),
    versions: &Versions,
    manner: Manner,
    output: &Path,
    quiet: bool,
) -> Result<Coverage> {
    let newest = versions.open(versions.all.len() - 1, None)?;
    let student = in_file_order(job, quiet)?;
    let teacher = in_file_order(&seen_by(&newest, job), quiet)?;
    check_same_rows(&student.train, &teacher.train)?;
    if teacher.transforms.fingerprint() != newest.inputs().fingerprint() {
        bail!(
            "the teacher's ids or scales were measured on other data than this job's: use hashed ids and no `standardise`"
        );
    }
    let rows = student.train.row_count();
    let tasks: Vec<String> = newest.tasks().map(str::to_owned).collect();
    let mut writer = writer(output, &student, (&tasks, floats), (versions, manner))?;
    let (mut reader, mut batch) = (teacher.train.reader()?, Batch::default());
    let (mut scorer, mut scores, mut request) = (Scorer::new(), Scores::default(), Request::new());
    let mut embeddings = Vec::new();
    let mut present: Option<(usize, Snapshot)> = None;
    let mut coverage = Coverage { rows, ..Coverage::default() };
    let mut progress = Progress::new("augment", rows, quiet);
    for start in (0..rows).step_by(ROWS_AT_ONCE as usize) {
        reader.read(0, start..rows.min(start + ROWS_AT_ONCE), &mut batch)?;
        let mut first = 0;
        // Rows of one version at a time; on a stream, versions change seldom.
        while first < batch.sample_count {
            let at = |sample: usize| versions.at(batch.times.get(sample).copied(), manner);
            let version = at(first);
            let end = (first..batch.sample_count)
                .find(|&sample| at(sample) != version)
                .unwrap_or(batch.sample_count);
            let Some(place) = version else {
                writer.add(&vec![f32::NAN; (end - first) * tasks.len()], None)?;
                first = end;
                continue;
            };
            if present.as_ref().is_none_or(|(present, _)| *present != place) {
                let before = present.take();
                present = Some((place, versions.open(place, before.as_ref().map(|(_, snapshot)| snapshot))?));
                coverage.versions += 1;
            }
            let Some((_, snapshot)) = &present else { unreachable!("the version was just opened") };
            let part = batch.slice(first..end);
            request
                .prepared(snapshot.inputs(), &part.dense, &part.bags)
                .context("the teacher's view of the rows")?;
            match floats {
                0 => scorer.score(snapshot, &[&request], &mut scores)?,
                floats => {
                    scorer.score_and_keep_hidden(snapshot, &[&request], &mut scores)?;
                    Projection::of(snapshot, floats)?.write(&scores, &mut embeddings);
                }
            }
            writer.add_embedded(&scores.logits, &embeddings, Some(place))?;
            coverage.scored += (end - first) as u64;
            let trained_until = versions.all[place].1;
            let is_known = |time: &&i64| trained_until.is_none_or(|until| **time <= until);
            coverage.known += match part.times.is_empty() {
                true => part.sample_count as u64,
                false => part.times.iter().filter(is_known).count() as u64,
            };
            first = end;
        }
        progress.update(start, rows, || format!("{} of {} rows", format::count(start), format::count(rows)));
    }
    progress.end();
    writer.finish()?;
    Ok(coverage)
}

/// The file of words, begun.
fn writer(
    output: &Path,
    student: &Prepared,
    (tasks, embedding): (&[String], usize),
    (versions, manner): (&Versions, Manner),
) -> Result<TeacherWriter> {
    let header = TeacherHeader {
        version: 0,
        tasks: tasks.to_vec(),
        embedding,
        rows: student.train.row_count(),
        data: student.fingerprint.clone(),
        seconds_per_time_unit: manner.time_unit,
        teachers: versions.headers(),
    };
    if let Some(parent) = output.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    Ok(TeacherWriter::create(output, header)?)
}

/// The student's files, or its world, through the teacher's columns.
fn seen_by(teacher: &Snapshot, student: &Job) -> Job {
    let mut job = student.clone();
    job.run.data = teacher.job().run.data.clone();
    job.run.data.split = student.run.data.split.clone();
    if let (SourceSpec::Synthetic(own), SourceSpec::Synthetic(world)) =
        (&student.run.data.source, &mut job.run.data.source)
    {
        let view = world.view;
        *world = own.clone();
        world.view = view;
        world.teacher = None;
    }
    job
}

/// A job's rows without shuffling and without any teacher's words.
fn in_file_order(job: &Job, quiet: bool) -> Result<Prepared> {
    let mut job = job.clone();
    job.run.data.shuffle = false;
    job.process.data.teacher = None;
    prep::prepared(&job, quiet)
}

/// Compares row counts, and the times and first labels of the first and the last rows.
fn check_same_rows(student: &Dataset, teacher: &Dataset) -> Result<()> {
    let rows = student.row_count();
    if teacher.row_count() != rows {
        bail!(
            "the student's job has {rows} rows, and through the teacher's columns there are {}: rows that are bad for one \
             and good for the other are left out on one side only",
            teacher.row_count()
        );
    }
    let (mut own, mut theirs) = (Batch::default(), Batch::default());
    let (mut student, mut teacher) = (student.reader()?, teacher.reader()?);
    for start in [0, rows.saturating_sub(ROWS_AT_ONCE)] {
        let range = start..rows.min(start + ROWS_AT_ONCE);
        student.read(0, range.clone(), &mut own)?;
        teacher.read(0, range, &mut theirs)?;
        if !own.times.is_empty() && !theirs.times.is_empty() && own.times != theirs.times {
            bail!(
                "from row {start} on the teacher's and the student's rows have different times: they are not the same rows"
            );
        }
    }
    Ok(())
}
