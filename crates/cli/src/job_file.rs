//! Reading the job, with the name of the file in every error.

use std::path::Path;

use anyhow::{Context, Result};
use campanile_spec::config::Job;

/// Reads and checks a job file.
pub fn read(path: &Path) -> Result<Job> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the job {}", path.display()))?;
    Job::parse(&text).with_context(|| format!("{}", path.display()))
}
