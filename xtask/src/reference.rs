//! The generated page `docs/job.md`.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use campanile_spec::config::reference_page;

const PAGE: &str = "docs/job.md";

/// Writes the page.
///
/// # Errors
/// When the file cannot be written.
pub fn write(root: &Path) -> Result<()> {
    fs::write(root.join(PAGE), reference_page()).with_context(|| format!("cannot write {PAGE}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

/// Says whether the page is the one that the code writes.
///
/// # Errors
/// When it is not.
pub fn check(root: &Path) -> Result<()> {
    if fs::read_to_string(root.join(PAGE)).unwrap_or_default() != reference_page() {
        bail!("{PAGE} is out of date: run `cargo xtask reference`");
    }
    Ok(())
}
