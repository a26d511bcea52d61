//! What a user can type after `campanile simulate`.

use std::path::PathBuf;

use clap::Args;

/// `campanile simulate`.
///
/// Prices a training step on a cluster that is described and not rented: flat, by the ways of towers alone (SPTT), and with
/// tower modules. Prints where the time goes and what fits into which memory. Lists of ranks, ratios or towers make a sweep.
/// What is assumed stands in the files, and in docs/simulator.md.
///
///   campanile simulate examples/simulate/models/dcn_criteo.toml --topology examples/simulate/clusters/h100.toml --ranks 64
#[derive(Debug, Args)]
pub struct SimulateArguments {
    /// What is trained: a description like those in examples/simulate/models; or a job, on measured topologies.
    pub model: PathBuf,
    /// The cluster: a description like those in examples/simulate/clusters. Several are compared. For a job, topologies
    /// that `campanile bench topology` measured.
    #[arg(long, value_name = "FILE", required = true)]
    pub topology: Vec<PathBuf>,
    /// Accelerators or CPU ranks, whole hosts. Without it 64, or for a job as many as were measured.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub ranks: Vec<usize>,
    /// Towers. Without it as many as there are hosts, or as divide them and have features.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub towers: Vec<usize>,
    /// Compression ratios: floats of all vectors over floats of what towers hand on.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "2")]
    pub ratio: Vec<f64>,
    /// Runs of a job, as CSV with the columns hosts, ranks_per_host, variant, cr, link_mbit and step_ms: print predicted
    /// beside measured.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "plots"])]
    pub measured: Option<PathBuf>,
    /// Write every figure as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw the sweep: step-CLUSTER.svg shows where the time goes, speed-up.svg what towers gain.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}
