//! Training one student of an experiment, and what is measured.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use campanile_spec::{Distil, DistilMethod, config::Job, world::SimulatedTeacher};
use campanile_train::{
    observe::{Event, Observer},
    ranks::Ranks,
    run::train,
    scores::TaskScores,
};
use serde::Serialize;

use crate::{args::learning::ExperimentArguments, claim::Claim, command::prep};

/// The world of the simulated teachers: few positives, users and items with long tails, as in an ad stream.
const WORLD: &str = r#"
[run]
batch_size = 512
[run.data]
kind = "synthetic"
[run.data.world]
valid_samples = 0
test_samples = 0
samples_per_second = 1000.0
dense_count = 4
sparse_count = 6
vocabulary = [50000, 5000, 500, 100, 50, 20]
click_rate = 0.04
hidden_groups = 2
across_pairs = 2
[run.data.world.signal]
main = 1.2
inside = 0.4
[[run.data.world.domains]]
name = "feed"
share = 5.0
[[run.data.world.domains]]
name = "search"
share = 3.0
[[run.data.world.domains]]
name = "video"
share = 2.0
[run.tables]
dim = 8
init = { kind = "normal", deviation = 0.05 }
[run.model]
kind = "mlp"
hidden = [32]
[run.sparse]
optimizer = "adagrad"
learning_rate = 0.04
[run.dense]
optimizer = "adagrad"
learning_rate = 0.04
[process]
threads = 1
"#;

/// Where experiments are made.
pub struct Lab {
    /// Two experiments in one directory would overwrite each other's models.
    _claim: Claim,
    work: PathBuf,
    /// Seeds of the worlds.
    pub seeds: Vec<u64>,
    /// Samples of a stream.
    pub samples: u64,
}

/// What is measured of a student, over the second half of its stream.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Normalised entropy.
    pub ne: f64,
    /// Area under the ROC curve, from a histogram.
    pub auc: f64,
    /// Mean prediction over mean label.
    pub calibration: f64,
    /// NE of the teacher's own logits; NaN without one.
    pub teacher_ne: f64,
    /// Its AUC.
    pub teacher_auc: f64,
    /// Its calibration.
    pub teacher_calibration: f64,
    /// The NE of who knows the truth.
    pub best_ne: f64,
    /// NE by domain.
    pub domains: Vec<f64>,
}

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

impl Lab {
    pub fn new(arguments: &ExperimentArguments) -> Result<Lab> {
        let claim = Claim::of(&arguments.work, "name another directory with --work")?;
        Ok(Lab {
            _claim: claim,
            work: arguments.work.clone(),
            seeds: (1..=arguments.seeds.max(1)).collect(),
            samples: arguments.samples.max(10_000),
        })
    }

    /// Removes what was only needed meanwhile.
    pub fn clean(&self) -> Result<()> {
        std::fs::remove_dir_all(&self.work).with_context(|| format!("cannot remove {}", self.work.display()))
    }

    /// A directory for something that stays until the end.
    pub fn place(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// Seconds of the stream.
    pub fn stream_seconds(&self) -> f64 {
        self.samples as f64 / 1000.0
    }

    /// A student without a teacher, on the world of a seed, with changes to the job.
    pub fn job(&self, seed: u64, change: impl Fn(&mut Job)) -> Result<Job> {
        let mut job = Job::parse(WORLD).context("the experiment's own job")?;
        job.run.seed = seed;
        job.process.cache_dir = self.place("cache");
        if let campanile_spec::data::SourceSpec::Synthetic(world) = &mut job.run.data.source {
            world.train_samples = self.samples;
        }
        change(&mut job);
        Ok(job)
    }

    /// Trains a job to its end and forgets the model.
    pub fn train(&self, job: &Job) -> Result<Measured> {
        let place = self.place("student");
        let measured = self.train_at(job, &place)?;
        std::fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
        Ok(measured)
    }

    /// Trains a job and leaves its checkpoints.
    pub fn train_at(&self, job: &Job, place: &Path) -> Result<Measured> {
        self.train_watched(job, place, &mut Silent)
    }

    /// The same, with somebody who watches.
    pub fn train_watched(&self, job: &Job, place: &Path, observer: &mut dyn Observer) -> Result<Measured> {
        let mut job = job.clone();
        job.process.output_dir = place.to_owned();
        std::fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
        let prepared = prep::prepared(&job, true)?;
        let summary = train(&job, &prepared, Ranks::Threads(job.process.threads.max(1)), observer)?;
        let own = &summary.second_half[0].values;
        let teacher = summary.teacher.as_ref().map(|tasks: &Vec<TaskScores>| &tasks[0].values);
        let or_none = |value: Option<f64>| value.unwrap_or(f64::NAN);
        Ok(Measured {
            ne: or_none(own.ne),
            auc: or_none(own.auc),
            calibration: or_none(own.calibration),
            teacher_ne: or_none(teacher.and_then(|values| values.ne)),
            teacher_auc: or_none(teacher.and_then(|values| values.auc)),
            teacher_calibration: or_none(teacher.and_then(|values| values.calibration)),
            best_ne: or_none(own.best_ne),
            domains: own.segments.iter().map(|segment| or_none(segment.ne)).collect(),
        })
    }
}

/// Gives a job's world a simulated teacher.
pub fn taught_by(job: &mut Job, teacher: SimulatedTeacher) {
    if let campanile_spec::data::SourceSpec::Synthetic(world) = &mut job.run.data.source {
        world.teacher = Some(teacher);
    }
}

/// A way to listen with weight `w`, label scale `alpha` and gradient scale `beta`.
pub fn listening(method: DistilMethod, [w, alpha, beta]: [f32; 3]) -> Distil {
    let mut distil =
        Distil { method, weight: w, label_scale: alpha, gradient_scale: beta, ..Distil::default() };
    distil.adapter.weight = w;
    distil
}
