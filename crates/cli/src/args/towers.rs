//! What a user can type after `campanile towers`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `campanile towers`.
///
/// Trains a small flat probe on the job's data (or takes a given checkpoint, flat as well), measures on its vectors which features
/// interact, and cuts the features into towers of bounded size. Writes towers.toml, the section to add to the job;
/// affinity.svg, a heat map; and map.svg, the features in the plane coloured by tower. A job that has towers already
/// gets them scored beside those that were learned.
#[derive(Debug, Args)]
pub struct TowersArguments {
    /// The job file.
    pub job: PathBuf,
    /// How many towers; normally one for each host.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub towers: usize,
    /// Features that interact together, or spread.
    #[arg(long, value_enum, default_value = "coherent")]
    pub strategy: StrategyName,
    /// What towers are balanced by.
    #[arg(long, value_enum, default_value = "features")]
    pub balance: BalanceName,
    /// A tower may be heavier than the mean by this share of it.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub tolerance: f64,
    /// What is measured of two features' vectors.
    #[arg(long, value_enum, default_value = "cosine")]
    pub affinity: AffinityName,
    /// A trained checkpoint of a flat model whose tables have one dim, instead of a probe.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["probe", "probe_steps", "probe_dim"])]
    pub checkpoint: Option<PathBuf>,
    /// What is trained on the job's data, so that its vectors show which features interact.
    #[arg(long, value_enum, default_value = "machine")]
    pub probe: ProbeName,
    /// Steps of the probe's training, or as many as the job's data has.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub probe_steps: u64,
    /// Floats in a vector of the probe.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub probe_dim: usize,
    /// Rows of the training data on which affinities are measured.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub samples: u64,
    /// Decides the beginnings of the search.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Hosts, for the bytes that are expected to cross the network. Without it, one for each tower.
    #[arg(long, value_name = "N")]
    pub hosts: Option<usize>,
    /// Floats of each vector that a tower would hand on, for what is expected and for the written module.
    #[arg(long, value_name = "N")]
    pub width: Option<usize>,
    /// A measured topology: say what a step would take there, flat, by the ways of towers, and with modules.
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// With --topology: as many ranks instead of the file's.
    #[arg(long, value_name = "N", requires = "topology")]
    pub ranks: Option<usize>,
    /// Where files go, and the probe. Without it, `towers` in the job's process.output_dir.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Write a summary as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Say only what went wrong.
    #[arg(long, short)]
    pub quiet: bool,
}

/// What towers should be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StrategyName {
    /// Features that interact strongly end up together.
    Coherent,
    /// Similar features are spread.
    Diverse,
}

/// What towers are balanced by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BalanceName {
    /// The number of features.
    Features,
    /// Ids looked up times floats of a row.
    Lookups,
    /// Floats of the vectors.
    Width,
}

/// What is trained on the job's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProbeName {
    /// A factorization machine: effects of single ids have weights of their own, so its vectors show interactions alone.
    Machine,
    /// A small DLRM; wants a larger --probe-dim, such as 48, and more time.
    Dlrm,
}

/// What is measured of two features' vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AffinityName {
    /// The mean absolute cosine.
    Cosine,
    /// The mean absolute inner product.
    Dot,
}
