//! What a user can type. The doc comments are the help texts.

pub mod learning;
#[cfg(feature = "live")]
pub mod live;
pub mod planning;
pub mod publishing;
#[cfg(feature = "serve")]
mod serve;
pub mod simulate;
pub mod towers;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[cfg(feature = "serve")]
pub use serve::{
    LoggedRequestsName, RowStorageName, ServeArguments, ServeBenchArguments, ServedPrecisionName,
    TransportName,
};

/// Trains click and ranking models with very large embedding tables, with the same bits everywhere.
///
/// Start with:
///
///   campanile train examples/first.toml
///
/// Every command takes --report FILE and exits with 0 (fine), 1 (failed) or 2 (misused).
#[derive(Debug, Parser)]
#[command(name = "campanile", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model; run it again after a stop or a crash, and it goes on with the same bits
    Train(TrainArguments),
    /// Judge a checkpoint on the job's test (or validation) split.
    Eval(EvalArguments),
    /// Turn raw logs into the packed form, in bounded memory; `train` does it by itself when needed.
    Prep(PrepArguments),
    /// Have a teacher score the rows of a student's job, or the impressions of an event log, once.
    Augment(Box<learning::AugmentArguments>),
    /// Measure what a teacher is worth: the tables of docs/results.md.
    Experiment(learning::ExperimentArguments),
    /// Answer over REST and gRPC (KServe v2) from checkpoints, following newer ones.
    #[cfg(feature = "serve")]
    Serve(Box<ServeArguments>),
    /// Show where every table goes and why, what each rank will hold and spend, and what does not fit.
    Plan(Box<planning::PlanArguments>),
    /// Learn which features belong together, and write them as towers, with pictures.
    Towers(towers::TowersArguments),
    /// Say what a step would take on 16 to 4,096 accelerators or CPU ranks, flat against towers.
    Simulate(simulate::SimulateArguments),
    /// Prove on your own job that ranks, placements, pipeline and crashes change no bit.
    Verify(VerifyArguments),
    /// Put a checkpoint into a registry and make it current, if it is not worse than what is there.
    Publish(publishing::PublishArguments),
    /// Make an earlier version of a model current again.
    Rollback(publishing::RollbackArguments),
    /// Write a model for other programs: ONNX, or one safetensors file.
    Export(publishing::ExportArguments),
    /// The whole loop in one process: traffic, answers, late labels, a teacher, students that learn all the time.
    #[cfg(feature = "live")]
    Live(live::LiveArguments),
    /// Join impressions, clicks and conversions of an event log into labelled examples.
    #[cfg(feature = "live")]
    Join(live::JoinArguments),
    /// Write clicks and conversions to an event log, by the ids of the requests that were answered.
    #[cfg(feature = "live")]
    Feedback(live::FeedbackArguments),
    /// Write topics of an event log as Parquet, for other programs and for `train`.
    ///
    /// For pandas, DuckDB, Spark and whatever else reads Parquet: OUT/TOPIC/FIRST-LAST.parquet, named by the records that a
    /// file covers. A file is there only when it is whole, and run again, the command goes on behind the last one: no
    /// record comes twice, and none is left out. Columns and their types are in docs/live.md.
    ///
    ///   campanile export-log dir:runs/log runs/tables --topic examples --stop-at-end
    ///
    ///   python3 -c 'import pyarrow.parquet as p; print(p.read_table("runs/tables/examples"))'
    #[cfg(all(feature = "live", feature = "parquet"))]
    ExportLog(live::ExportLogArguments),
    /// Say what is in a checkpoint, a registry or a packed file.
    Inspect(InspectArguments),
    /// Measure training speed beside this machine's own limits.
    Bench(BenchArguments),
    /// Start a command on many ranks through mpirun, watch them, and end a job that hangs.
    Launch(LaunchArguments),
}

/// `campanile train`.
///
/// Reads the job, packs its data if that was not done yet, trains, evaluates, and leaves checkpoints, metrics
/// (metrics.jsonl and TensorBoard events) and the effective job in process.output_dir.
///
/// Ctrl-C and SIGTERM end it after the present step, with a checkpoint; the same command goes on from there.
#[derive(Debug, Args)]
pub struct TrainArguments {
    /// The job file; see docs/job.md, and examples/ for ready ones.
    pub job: PathBuf,
    /// Ranks as threads, instead of process.threads. Results do not depend on it.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Output directory, instead of process.output_dir.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Begin anew: remove this job's earlier checkpoints and metrics first.
    #[arg(long)]
    pub fresh: bool,
    /// Train on the examples of an event log instead, in order, once, for as long as they come.
    #[cfg(feature = "live")]
    #[command(flatten)]
    pub stream: live::StreamArguments,
    /// Write a summary of the run as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

impl TrainArguments {
    /// Whether it trains on an event log.
    pub fn is_on_stream(&self) -> bool {
        #[cfg(feature = "live")]
        return self.stream.stream.is_some();
        #[cfg(not(feature = "live"))]
        false
    }
}

/// `campanile eval`.
///
/// The checkpoint's own model reads the rows with its own columns and transforms, found by name, whichever job has trained it.
#[derive(Debug, Args)]
pub struct EvalArguments {
    /// The job file: where the rows are, and how they are split.
    pub job: PathBuf,
    /// The checkpoint, or a directory of checkpoints, of which the newest is taken. Without it, the job's own.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Which split.
    #[arg(long, value_enum, default_value = "test")]
    pub split: SplitName,
    /// Ranks as threads, instead of process.threads.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Write the metrics as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// A split by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitName {
    /// What was trained on.
    Train,
    /// What was looked at while training.
    Valid,
    /// What is judged at the end.
    Test,
}

/// `campanile prep`.
#[derive(Debug, Args)]
pub struct PrepArguments {
    /// The job file.
    pub job: PathBuf,
    /// Write a summary as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `campanile verify`.
///
/// Trains some steps of the job in every way that must not matter: numbers of ranks, tables whole, by rows, by
/// columns, in a grid or copied, pipelined or not, stopped and resumed, with and without codecs on the wire. Prints
/// a hash of all weights, of all losses and of all metrics for each, and where the first difference is, if any.
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// The job file.
    pub job: PathBuf,
    /// Numbers of ranks to try, powers of two up to the job's grains.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,2,4")]
    pub ranks: Vec<usize>,
    /// Steps to train in each way, or as many as the data has.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub steps: u64,
    /// Leave out the ways whose ranks are processes started by MPI.
    #[arg(long)]
    pub threads_only: bool,
    /// Write the table as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Show no progress of preparing the data.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `campanile inspect`.
#[derive(Debug, Args)]
pub struct InspectArguments {
    /// A checkpoint, a directory of checkpoints, a registry, a packed file, or a directory of packed files.
    pub path: PathBuf,
    /// Read every byte and compare checksums.
    #[arg(long)]
    pub verify: bool,
    /// Write what is printed as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// `campanile launch`.
///
/// Starts `mpirun` with this program and the command that follows, and watches the ranks: MPI itself does not notice
/// a process that was stopped or a host behind a dead link. See docs/cluster.md.
///
///   campanile launch -n 8 --hostfile hosts --restarts 2 train job.toml
#[derive(Debug, Args)]
pub struct LaunchArguments {
    /// Number of processes; each is a rank.
    #[arg(short = 'n', long = "processes", value_name = "N")]
    pub processes: usize,
    /// Hosts, one a line: `name slots=2`. Without it, all processes run here.
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// How often a job that lost a rank is started again, from its last checkpoint.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub restarts: u32,
    /// End the job when a rank has not been heard of for so many seconds.
    #[arg(long, value_name = "S", default_value_t = 15)]
    pub silence: u64,
    /// End the job when no rank has done anything for so many seconds; 0 means never.
    #[arg(long, value_name = "S", default_value_t = 600)]
    pub stall: u64,
    /// The mpirun to use.
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun")]
    pub mpirun: String,
    /// More options for mpirun, as one word: --mpirun-options "--mca btl_tcp_if_include eth0".
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub mpirun_options: Vec<String>,
    /// The command to run on every rank, such as `train job.toml`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `campanile bench`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct BenchArguments {
    /// What to measure.
    #[command(subcommand)]
    pub what: BenchWhat,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchWhat {
    /// Training steps on generated data.
    Train(TrainBenchArguments),
    /// A server under load, beside the bare scorer.
    #[cfg(feature = "serve")]
    Serve(ServeBenchArguments),
    /// Scoring requests on generated data, one thread.
    Score(publishing::ScoreBenchArguments),
    /// Memory, rows, layers and exchanges of this machine or cluster: what plans are priced with.
    Topology(planning::TopologyBenchArguments),
    /// Planning itself: how even, how fast, how near to the best.
    Planner(planning::PlannerBenchArguments),
}

/// `campanile bench train`.
///
/// Trains the standard configurations on generated data and prints samples/s, where the time goes, and how
/// that compares with what this machine can do at best, measured in the same run.
#[derive(Debug, Clone, Args)]
pub struct TrainBenchArguments {
    /// Which model size.
    #[arg(long, value_enum, default_value = "kaggle")]
    pub config: BenchConfig,
    /// Dot interaction (DLRM) or cross net (DCN-v2).
    #[arg(long, value_enum, default_value = "dot")]
    pub arch: BenchArch,
    /// Ids in a bag.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ids: usize,
    /// Samples in a global batch.
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub batch: usize,
    /// Arithmetic of the dense network.
    #[arg(long, value_enum, default_value = "f32")]
    pub precision: BenchPrecision,
    /// Ranks as threads.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub threads: usize,
    /// Grains of a batch; 0 chooses as `train` does.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub grains: usize,
    /// About how long to measure, in seconds.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub seconds: f64,
    /// All standard configurations, one after the other.
    #[arg(long)]
    pub all: bool,
    /// Measure on demand: print `ready`, then for each line `go SECONDS` on standard input train that long and
    /// print a line of JSON. For drivers that interleave several programs, such as bench/peers.
    #[arg(long)]
    pub serve_rounds: bool,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Model sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchConfig {
    /// Dim 16, bottom 512-256-64-16, top 512-256-1.
    Kaggle,
    /// Dim 128, bottom 512-256-128, top 1024-1024-512-256-1.
    Terabyte,
}

/// Interactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchArch {
    /// DLRM.
    Dot,
    /// DCN-v2, three low-rank cross layers of rank 64.
    Dcn,
}

/// Arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchPrecision {
    /// 32-bit floats.
    F32,
    /// Operands in bfloat16.
    Bf16,
}
