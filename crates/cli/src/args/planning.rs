//! What a user can type to plan, and to measure what plans are made from.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `campanile plan`.
///
/// Shows where every table goes and why, what each rank will hold and spend, and what no plan could beat. When the
/// tables do not fit, says which, by how much, and what would help. The same job, data and topology give the same
/// plan and the same text.
///
///   campanile bench topology --out cluster.toml
///   campanile plan job.toml --topology cluster.toml --out plan.toml
///
/// Then set `plan = "plan.toml"` in `[process]` of the job. See docs/planning.md.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// The job file.
    pub job: PathBuf,
    /// What the cluster can do, as `campanile bench topology` writes it.
    #[arg(long, value_name = "FILE", required_unless_present = "measure")]
    pub topology: Option<PathBuf>,
    /// Measure this machine instead of reading --topology; with --check, in turns with the run, so that what
    /// disturbs one disturbs the other.
    #[arg(long)]
    pub measure: bool,
    /// Plan for so many ranks: fewer or more hosts than the topology has, or a part of one.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Write the plan, for process.plan.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Price this plan instead of making one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["method", "whole", "no_splits"])]
    pub price: Option<PathBuf>,
    /// Place parts by this method only, instead of the best of all.
    #[arg(long, value_enum)]
    pub method: Option<MethodName>,
    /// Tables that stay whole.
    #[arg(long, value_name = "TABLE,...", value_delimiter = ',')]
    pub whole: Vec<String>,
    /// All tables stay whole.
    #[arg(long)]
    pub no_splits: bool,
    /// Rows of the training data that are looked at; 0 means none, and one id a feature is assumed.
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub sample: u64,
    /// Train some steps by the plan on this many ranks, and print the predicted step time and memory beside what was
    /// measured. Ranks are threads, or processes under mpirun.
    #[arg(long)]
    pub check: bool,
    /// Steps of each round of --check.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub steps: u64,
    /// Rounds of --check.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: usize,
    /// Write the plan, its prices and the measurements as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Show no progress of preparing the data.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How parts of tables are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MethodName {
    /// The costliest part to the rank with the least to do.
    Greedy,
    /// Karmarkar and Karp's: merge the partial assignments that differ most.
    Differencing,
    /// The largest part to the rank with the most memory left.
    LargestFirst,
}

/// `campanile bench topology`.
///
/// Measures what plans are priced with, all ranks at once: memory, rows near in the cache and far in memory, layers,
/// and exchanges inside a host and between hosts. Writes TOML that people can read and change. Under mpirun the
/// processes are the ranks, on as many hosts as there are.
///
///   campanile bench topology --out cluster.toml
///   campanile launch -n 8 --hostfile hosts bench topology --out cluster.toml
#[derive(Debug, Args)]
pub struct TopologyBenchArguments {
    /// Where to write the topology; without it, it is printed.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Ranks as threads; without it, one per core.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// How often everything is measured; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: usize,
    /// Write the topology as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `campanile bench planner`.
///
/// Plans many tables with log-normal costs over many ranks, and prints how even the loads are, how long planning took,
/// and how far the plan is from what no plan can beat; then the same with tables that may not be split. With --case or
/// --prices, plans what another program describes, for comparisons such as bench/peers/torchrec_planner.sh.
#[derive(Debug, Args)]
pub struct PlannerBenchArguments {
    /// Tables.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub tables: usize,
    /// Ranks, in hosts of eight.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub ranks: usize,
    /// Different sets of tables.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: u64,
    /// Rates to price with; without it, those of a middling server.
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Plan the tables of this JSON file instead, and print JSON.
    #[arg(long, value_name = "FILE")]
    pub case: Option<PathBuf>,
    /// With --case: also price this plan.
    #[arg(long, value_name = "FILE", requires = "case")]
    pub plan: Option<PathBuf>,
    /// Place parts that somebody else has priced, from this JSON file, and print JSON.
    #[arg(long, value_name = "FILE", conflicts_with = "case")]
    pub prices: Option<PathBuf>,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}
