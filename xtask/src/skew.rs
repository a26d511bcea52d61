//! More tables for the test of skew: the one that compares every channel in which a value may come.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// Draws the tables of `seeds`, written `1..500`.
///
/// # Errors
/// When a table is read differently in two channels; it is told by its seed.
pub fn run(root: &Path, seeds: &str) -> Result<()> {
    let status = Command::new("cargo")
        .args(["test", "--quiet", "--package", "campanile-server", "--test", "skew", "--", "--nocapture"])
        .env("CAMPANILE_SKEW_SEEDS", seeds)
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    if status.success() { Ok(()) } else { bail!("channels differ on a table of the seeds {seeds}") }
}
