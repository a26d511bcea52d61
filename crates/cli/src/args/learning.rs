//! Arguments of the commands around teachers and students.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `campanile augment`.
///
/// Has a teacher score every row of a student's job, or every impression of an event log, once; any number of students
/// learn from what it says. The teacher sees the rows through its own job's columns, so it may have more of them than a
/// student.
///
///   campanile augment student.toml --teacher runs/teacher --follow
///   campanile augment dir:runs/log --teacher registry --model teacher --window 30m
///
/// For a job its logits go to a file: name it as process.data.teacher. With --follow each row is scored by the newest
/// version whose training ended before the row's time, as it would have been on a live stream; rows before the first
/// version have no word. Without it one version scores all rows, those that it was trained on included, which flatters
/// it. Where tables of the job follow the teacher ([run.follow]), the words have its embedding too.
///
/// For an event log they go to the topic `words`, from where `join` takes them. The registry's current version scores
/// impressions while their labels are awaited; those whose windows have closed are passed over. Never more than one
/// version scores one turn; a newer one is taken up with the next.
#[derive(Debug, Args)]
pub struct AugmentArguments {
    /// The student's job file, or an event log: dir:PATH or nats://HOST:PORT/PREFIX (also tls://, and USER:PASSWORD@ before
    /// the host).
    #[arg(value_name = "JOB|LOG")]
    pub source: String,
    /// The teacher: a checkpoint, a directory of checkpoints, or with --model a registry.
    #[arg(long, value_name = "DIR")]
    pub teacher: PathBuf,
    /// The teacher's name in the registry.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Floats of the teacher's embedding to write beside its logits, for tables that follow it ([run.follow]). Without it,
    /// what the job asks for; on an event log, none.
    #[arg(long, value_name = "FLOATS", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub embedding: Option<u16>,
    #[command(flatten)]
    pub rows: RowsArguments,
    #[cfg(feature = "live")]
    #[command(flatten)]
    pub stream: super::live::AugmentStreamArguments,
    /// Write what was done as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How the rows of a job are scored.
#[derive(Debug, Args)]
#[command(next_help_heading = "For a job")]
pub struct RowsArguments {
    /// Score each row with the newest version that is older than the row.
    #[arg(long)]
    pub follow: bool,
    /// With --follow: a version speaks only so many seconds after the newest sample that it was trained on.
    #[arg(long, value_name = "S", requires = "follow")]
    pub delay: Option<f64>,
    /// Seconds in a unit of the data's times. Without it, 0.001 for a synthetic world and 1 for other data.
    #[arg(long, value_name = "S")]
    pub time_unit: Option<f64>,
    /// The file to write. Without it, process.data.teacher of the job.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `campanile experiment`.
///
/// Trains students with and without teachers and prints the tables of docs/results.md, with standard errors over seeds.
/// Every sample is predicted before it is trained on; metrics are of the second half of the stream, and gains are
/// relative to a twin without a teacher on the same stream.
///
/// All run on a synthetic world but `real`, which reads logs in the order of their time: its file names them, the teacher
/// and the students. docs/distillation.md tells what stands in it; ready ones are in examples/real.
#[derive(Debug, Args)]
pub struct ExperimentArguments {
    /// Which.
    #[arg(value_enum)]
    pub name: ExperimentName,
    /// For `real`: the file that says what is compared on which data.
    #[arg(required_if_eq("name", "real"))]
    pub file: Option<PathBuf>,
    /// Seeds: so many different worlds; for `real`, so many different first weights.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: u64,
    /// Samples of a stream; for `real`, all rows of its files are read.
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
    /// A student of a twentieth of the traffic, and trained teachers of 1 to 64 times its size on all of it.
    Union,
    /// The same student, with tables that follow the teacher's embedding, beside a head that learns from its words.
    Follow,
    /// How a trained teacher's words get worse with the age of its snapshot.
    Delay,
    /// One teacher for 1 to 8 students: what it costs each.
    Students,
    /// Students of real logs, one for each domain or behaviour, and one teacher for all.
    Real,
}
