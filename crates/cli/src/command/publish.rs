//! `campanile publish`: a checkpoint becomes the current version of a model.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use campanile_data::{Dataset, Prepared, Transforms};
use campanile_serve::{Options, Snapshot};
use campanile_spec::config::Job;
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
        gate::{self, Margins},
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
    /// The metrics of the version that was current, and of this one.
    pub judged: Vec<(&'static str, Vec<TaskScores>)>,
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
    if !judged.is_empty() {
        let rows: Vec<(&str, &[TaskScores])> =
            judged.iter().map(|(name, scores)| (*name, &scores[..])).collect();
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
    dataset: Dataset,
    transforms: Transforms,
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
        let Prepared { train, valid, test, transforms, .. } = prep::prepared(&job, false)?;
        let (name, dataset) = match arguments.split {
            SplitName::Train => ("train", Some(train)),
            SplitName::Valid => ("valid", valid),
            SplitName::Test => ("test", test),
        };
        let Some(dataset) = dataset else {
            bail!("the job has no {name} split for the gate; choose another with --split, or pass --no-gate");
        };
        let margins = Margins { ne: arguments.ne_margin, calibration: arguments.calibration_margin };
        Ok(Some(HoldOut { dataset, transforms, margins, rows: arguments.rows }))
    }

    fn gate(&self) -> (Margins, gate::HoldOut<'_>) {
        let examples = gate::Examples::Rows(&self.dataset, self.rows);
        (self.margins, gate::HoldOut { examples, transforms: &self.transforms })
    }
}

impl Desk<'_> {
    /// Checks a checkpoint and publishes it.
    pub fn publish(&self, checkpoint: &Path) -> Result<Outcome> {
        let (registry, model) = (&self.registry, self.model);
        // Opening it reads every byte and compares transforms, shapes and tables: what cannot be served stops here.
        let candidate = Snapshot::open(checkpoint, model, &Options::default())?;
        let mut judged = Vec::new();
        if let Some((margins, hold_out)) = &self.gate {
            if let Some(number) = registry.current(model)? {
                let current = Snapshot::of_registry(registry, model, number, None, &Options::default())?;
                let scores = gate::judge(&current, hold_out);
                let named = || format!("version {number} of `{model}`, the current one, cannot be compared");
                judged.push(("current", scores.with_context(named)?));
            }
            let scores = gate::judge(&candidate, hold_out).context("the candidate")?;
            let before = judged.first().map(|(_, scores)| &scores[..]);
            gate::compare(&scores, before, *margins)?;
            judged.push(("candidate", scores));
        }
        let measured: serde_json::Map<String, Value> =
            judged.iter().map(|(name, scores)| ((*name).to_owned(), json!(scores))).collect();
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
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
