//! The commands, one file each.

pub mod augment;
pub mod bench;
pub mod eval;
pub mod experiment;
pub mod export;
#[cfg(all(feature = "live", feature = "parquet"))]
pub mod export_log;
#[cfg(feature = "live")]
pub mod feedback;
pub mod gate;
pub mod inspect;
#[cfg(feature = "live")]
pub mod join;
#[cfg(feature = "mpi")]
mod launch;
#[cfg(feature = "live")]
pub mod live;
pub mod plan;
pub mod prep;
pub mod publish;
pub mod rollback;
#[cfg(feature = "serve")]
pub mod serve;
pub mod simulate;
pub mod towers;
pub mod train;
pub mod verify;

use std::path::Path;

use anyhow::{Context, Result};
use campanile_kernels::Isa;
use campanile_model::Network;
use campanile_spec::config::Job;

/// `campanile launch`, in a program that has MPI.
#[cfg(feature = "mpi")]
pub use self::launch::run as launch;

/// `campanile launch`, in a program that has no MPI.
#[cfg(not(feature = "mpi"))]
pub fn launch(_: &crate::args::LaunchArguments) -> Result<()> {
    anyhow::bail!("this program was built without MPI; build it with `cargo build --release --features mpi`")
}

/// Floating-point operations of a job's dense network for one sample, forward.
pub fn forward_operations(job: &Job) -> Result<u64> {
    Ok(Network::new(&job.run.model, Isa::detect())?.forward_flops_per_sample())
}

/// Writes the report that `--report` asked for.
pub fn write_report(path: Option<&Path>, report: &serde_json::Value) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = format!("{report:#}\n");
    std::fs::write(path, text).with_context(|| format!("cannot write the report {}", path.display()))
}
