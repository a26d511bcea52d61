//! Arguments of the commands that put models into service.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use super::{BenchConfig, BenchPrecision, SplitName};

/// `campanile publish`.
///
/// Puts a checkpoint into a registry and makes it current, after two checks: every byte matches its checksum,
/// and on a hold-out split neither NE nor calibration is worse than the current version's by more than the
/// margins (the gate). What fails a check changes nothing.
#[derive(Debug, Args)]
pub struct PublishArguments {
    /// The job file; its newest checkpoint is published. Without it, --checkpoint must be given.
    #[arg(required_unless_present = "checkpoint")]
    pub job: Option<PathBuf>,
    /// The checkpoint, or a directory of checkpoints, of which the newest is taken.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// The registry; it is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub registry: PathBuf,
    /// The model's name in the registry.
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// The gate, or none.
    #[command(flatten)]
    pub gate: GateArguments,
    /// Versions that stay in the registry, the newest ones.
    #[arg(long, value_name = "K", default_value_t = 5)]
    pub keep: usize,
    /// Publish only the rows that changed since the newest version, where that is less than half of all.
    #[arg(long)]
    pub delta: bool,
    /// Write what was published as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// The gate of `campanile publish`.
#[derive(Debug, Clone, Args)]
pub struct GateArguments {
    /// Publish without looking at any hold-out.
    #[arg(long)]
    pub no_gate: bool,
    /// NE may be above the current version's by this much.
    #[arg(long, value_name = "X", default_value_t = 0.002)]
    pub ne_margin: f64,
    /// Calibration may be further from 1 than the current version's by this much.
    #[arg(long, value_name = "X", default_value_t = 0.05)]
    pub calibration_margin: f64,
    /// The hold-out.
    #[arg(long, value_enum, default_value = "valid")]
    pub split: SplitName,
    /// Rows of the hold-out to look at, evenly spread over it; 0 means all.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub rows: u64,
}

/// `campanile rollback`.
///
/// Makes an earlier version current again, after reading every byte of it. Nothing is removed.
#[derive(Debug, Args)]
pub struct RollbackArguments {
    /// The registry.
    pub registry: PathBuf,
    /// The model.
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// The version; without it, the newest one before the current one.
    #[arg(long, value_name = "N")]
    pub to: Option<u64>,
    /// Write what was done as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// `campanile export`.
///
/// Writes a model for other programs. Both forms take dense inputs after their transforms and row numbers, and
/// compute in f32; see docs/serving.md.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("form").required(true).args(["onnx", "safetensors"])))]
pub struct ExportArguments {
    /// The checkpoint, or a directory of checkpoints, of which the newest is taken.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Write an ONNX model; one of more than 1 GiB keeps its weights in FILE.data beside it.
    #[arg(long, value_name = "FILE")]
    pub onnx: Option<PathBuf>,
    /// Write every weight into one safetensors file.
    #[arg(long, value_name = "FILE")]
    pub safetensors: Option<PathBuf>,
    /// Write what was done as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// `campanile bench score`.
///
/// Scores requests of the standard models on one thread and prints latency by percentile and samples/s. Requests
/// are filled before the clock starts; a score is a lookup of 26 rows and the whole network, per sample.
#[derive(Debug, Clone, Args)]
pub struct ScoreBenchArguments {
    /// Which model size.
    #[arg(long, value_enum, default_value = "kaggle")]
    pub config: BenchConfig,
    /// Arithmetic of the dense network.
    #[arg(long, value_enum, default_value = "f32")]
    pub precision: BenchPrecision,
    /// How rows are held.
    #[arg(long, value_enum, default_value = "f32")]
    pub rows: BenchRows,
    /// Samples of a request; several values make several lines.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64,512")]
    pub batch: Vec<usize>,
    /// Divide the rows of every table by this, for a machine that must hold a peer's tables too.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shrink: u64,
    /// Give the dense inputs and half of the features once a request: a user and candidates.
    #[arg(long)]
    pub user_once: bool,
    /// About how long to measure each, in seconds.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub seconds: f64,
    /// Measure on demand: print `ready`, then answer each line `go SECONDS BATCH` with a line of JSON.
    #[arg(long)]
    pub serve_rounds: bool,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// How rows are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchRows {
    /// 32-bit floats.
    F32,
    /// IEEE halves.
    F16,
    /// One byte an element.
    Int8,
}
