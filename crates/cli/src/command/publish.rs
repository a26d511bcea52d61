//! `campanile publish`: a checkpoint becomes the current version of a model.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use campanile_data::Prepared;
use campanile_serve::{Options, Snapshot};
use campanile_spec::{config::Job, data::Split};
use campanile_tables::{
    Registry,
    registry::{Kind, Publication, Release, Shape},
};
use campanile_train::{resume, scores::TaskScores};
use serde_json::{Value, json};

use crate::{
    args::{
        SplitName,
        publishing::{GateArguments, PublishArguments},
    },
    command::{
        gate::{self, Margins, Model},
        inspect::newest_checkpoint,
        prep, write_report,
    },
    format, job_file,
    scores_table::scores_table,
};

/// A model's place in a registry, and what a version must pass to get there.
pub struct Desk<'a> {
    /// The registry.
    pub registry: Registry,
    /// The model's name.
    pub model: &'a str,
    /// The margins and the hold-out; `None` publishes without a gate.
    pub gate: Option<(Margins, gate::HoldOut<'a>)>,
    /// Versions that stay.
    pub keep: usize,
    /// How versions are stored.
    pub shape: Shape,
}

/// What was published, and what the gate saw.
pub struct Outcome {
    /// What was published.
    pub release: Release,
    /// What the gate saw.
    pub judged: Judged,
}

/// What the gate saw.
#[derive(Default)]
pub struct Judged {
    /// The metrics of the version that was current, and of this one.
    pub scores: Vec<(&'static str, Vec<TaskScores>)>,
    /// Why the version that was current was not looked at, if there was one and it was not.
    pub alone: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &PublishArguments) -> Result<()> {
    let job = arguments.job.as_deref().map(job_file::read).transpose()?;
    let place = match (&arguments.checkpoint, &job) {
        (Some(place), _) => place.clone(),
        (None, Some(job)) => resume::directory(job),
        (None, None) => bail!("name a job, or a checkpoint with --checkpoint"),
    };
    let checkpoint = newest_checkpoint(&place)?.with_context(|| {
        format!("{} holds no checkpoint; train first, or name one with --checkpoint", place.display())
    })?;
    let hold_out = HoldOut::of(&arguments.gate, job, &checkpoint)?;
    let desk = Desk {
        registry: Registry::new(&arguments.registry),
        model: &arguments.model,
        gate: hold_out.as_ref().map(HoldOut::gate),
        keep: arguments.keep,
        shape: if arguments.delta { Shape::Smallest } else { Shape::Whole },
    };
    let Outcome { release, judged } = desk.publish(&checkpoint)?;
    judged.alone.iter().for_each(|why| eprintln!("warning: {why}"));
    if !judged.scores.is_empty() {
        let rows: Vec<(&str, &[TaskScores])> =
            judged.scores.iter().map(|(name, scores)| (*name, &scores[..])).collect();
        print!("{}", scores_table(&rows));
    }
    println!("{}", sentence(&release));
    println!("next: campanile inspect {}", arguments.registry.display());
    let report = json!({ "command": "publish", "checkpoint": checkpoint, "release": release });
    write_report(arguments.report.as_deref(), &report)
}

/// What was published, in words.
pub fn sentence(release: &Release) -> String {
    let Release { model, number, step, .. } = release;
    let left = release.not_removed.as_ref();
    let left = left.map_or_else(String::new, |why| format!("; older versions could not be removed: {why}"));
    match &release.kind {
        Kind::Whole => format!("version {number} of `{model}`, trained {step} steps, is current{left}"),
        Kind::Delta { base, .. } => {
            let rows = release.tables.iter().map(|table| table.changed).sum();
            let rows = format::count(rows);
            format!(
                "version {number} of `{model}`, trained {step} steps, is current: {rows} changed rows on version {base}{left}"
            )
        }
    }
}

/// The data of the gate.
struct HoldOut {
    job: Job,
    prepared: Prepared,
    split: Split,
    margins: Margins,
    rows: u64,
}

impl HoldOut {
    /// The hold-out of a job, or of the job that wrote the checkpoint.
    fn of(arguments: &GateArguments, job: Option<Job>, checkpoint: &Path) -> Result<Option<HoldOut>> {
        if arguments.no_gate {
            return Ok(None);
        }
        let job = match job {
            Some(job) => job,
            None => Snapshot::job_of(checkpoint)?,
        };
        let prepared = prep::prepared(&job, false)?;
        let (name, split, there) = match arguments.split {
            SplitName::Train => ("train", Split::Train, true),
            SplitName::Valid => ("valid", Split::Valid, prepared.valid.is_some()),
            SplitName::Test => ("test", Split::Test, prepared.test.is_some()),
        };
        if !there {
            bail!("the job has no {name} split for the gate; choose another with --split, or pass --no-gate");
        }
        let margins = Margins { ne: arguments.ne_margin, calibration: arguments.calibration_margin };
        Ok(Some(HoldOut { job, prepared, split, margins, rows: arguments.rows }))
    }

    fn gate(&self) -> (Margins, gate::HoldOut<'_>) {
        (self.margins, gate::HoldOut::rows(&self.job, &self.prepared, self.split, self.rows))
    }
}

impl Desk<'_> {
    /// Checks a checkpoint and publishes it.
    pub fn publish(&self, checkpoint: &Path) -> Result<Outcome> {
        let (registry, model) = (&self.registry, self.model);
        // Opening it reads every byte and compares transforms, shapes and tables: what cannot be served stops here.
        let candidate = Snapshot::open(checkpoint, model, &Options::default())?;
        let judged = match &self.gate {
            Some((margins, hold_out)) => self.judged(&candidate, *margins, hold_out)?,
            None => Judged::default(),
        };
        let measured: serde_json::Map<String, Value> =
            judged.scores.iter().map(|(name, scores)| ((*name).to_owned(), json!(scores))).collect();
        let transforms = candidate.inputs().transforms();
        let release = registry.publish(&Publication {
            model,
            checkpoint,
            transforms: &transforms.to_bytes(),
            fingerprint: candidate.inputs().fingerprint(),
            published_ms: now_ms(),
            judged: if measured.is_empty() { Value::Null } else { Value::Object(measured) },
            keep: self.keep,
            shape: self.shape,
        })?;
        Ok(Outcome { release, judged })
    }

    /// The metrics of the current version, if there is one that can be read, and of a candidate that is no worse.
    fn judged(&self, candidate: &Snapshot, margins: Margins, hold_out: &gate::HoldOut<'_>) -> Result<Judged> {
        let (registry, model) = (&self.registry, self.model);
        let (mut current, mut alone) = (None, None);
        if let Some(number) = registry.current(model)? {
            match Snapshot::of_registry(registry, model, number, None, &Options::default()) {
                Ok(snapshot) => current = Some((number, snapshot)),
                // A version that no server can load must not keep a good one away.
                Err(error) => {
                    alone = Some(format!(
                        "version {number} of `{model}` cannot be compared, because it cannot be read: {error}; the \
                         candidate was judged alone"
                    ));
                }
            }
        }
        let before = current.as_ref().map(|(number, snapshot)| Model {
            name: format!("version {number} of `{model}`, the current one"),
            snapshot,
        });
        let candidate = Model { name: "the candidate".to_owned(), snapshot: candidate };
        let models: Vec<Model<'_>> = before.into_iter().chain([candidate]).collect();
        let mut scores = gate::judge(&models, hold_out)?.into_iter();
        let current = current.and_then(|_| scores.next());
        let candidate = scores.next().unwrap_or_default();
        gate::compare(&candidate, current.as_deref(), margins)?;
        let current = current.map(|scores| ("current", scores));
        Ok(Judged { scores: current.into_iter().chain([("candidate", candidate)]).collect(), alone })
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
