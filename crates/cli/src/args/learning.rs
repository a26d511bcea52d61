//! Arguments of the commands around teachers and students.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `campanile augment`.
///
/// Scores every row of the job's training split once with a teacher, and writes its logits to a file that any number of
/// students read: name it as process.data.teacher. The teacher sees the rows through its own job's columns, so it may
/// have more of them than the student.
///
/// With --follow each row is scored by the newest version whose training ended before the row's time, as it would have
/// been on a live stream; rows before the first version have no word. Without it one version scores all rows, those that
/// it was trained on included, which flatters it.
#[derive(Debug, Args)]
pub struct AugmentArguments {
    /// The student's job file.
    pub job: PathBuf,
    /// The teacher: a checkpoint, a directory of checkpoints, or with --model a registry.
    #[arg(long, value_name = "DIR")]
    pub teacher: PathBuf,
    /// The teacher's name in the registry.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Score each row with the newest version that is older than the row.
    #[arg(long)]
    pub follow: bool,
    /// With --follow: a version speaks only so many seconds after the newest sample that it was trained on.
    #[arg(long, value_name = "S", default_value_t = 0.0, requires = "follow")]
    pub delay: f64,
    /// Seconds in a unit of the data's times. Without it, 0.001 for a synthetic world and 1 for other data.
    #[arg(long, value_name = "S")]
    pub time_unit: Option<f64>,
    /// The file to write. Without it, process.data.teacher of the job.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write what was done as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `campanile experiment`.
///
/// Trains students with and without teachers and prints the tables of docs/results.md, with standard errors over seeds.
/// Every sample is predicted before it is trained on; metrics are of the second half of the stream, and gains are
/// relative to a twin without a teacher on the same stream.
#[derive(Debug, Args)]
pub struct ExperimentArguments {
    /// Which.
    #[arg(value_enum)]
    pub name: ExperimentName,
    /// Seeds: so many different worlds.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: u64,
    /// Samples of a stream.
    #[arg(long, value_name = "N", default_value_t = 400_000)]
    pub samples: u64,
    /// Where models and words are kept while they are needed.
    #[arg(long, value_name = "DIR", default_value = "runs/experiment")]
    pub work: PathBuf,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// The experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExperimentName {
    /// Auxiliary head against one head against none, with biased and unbiased teachers.
    Heads,
    /// Loss weight, label scale and gradient scale, with a fresh and a late teacher.
    Scales,
    /// Adapters under global, segment and item drift.
    Drift,
    /// Teachers of different ages, with and without fading.
    Freshness,
    /// Trained teachers from 1 to 64 times the student's size, and how much of their gain arrives.
    Teachers,
    /// One teacher for 1 to 8 students: what it costs each.
    Students,
}
