//! The project's own chores.
//!
//! ```text
//!   cargo xtask test               everything that must pass, cheapest first; the one command for a newcomer
//!   cargo xtask tidy               the house rules alone
//!   cargo xtask reference [--check]   writes docs/job.md from the code, or says whether it is current
//!   cargo xtask skew FIRST..END    more drawn tables for the test that all channels mean the same by a value
//! ```

use std::process::ExitCode;

use anyhow::{Result, bail};
use xtask::{reference, skew, stages, tidy, workspace_root};

const USAGE: &str = "\
Usage: cargo xtask <chore>

  test                 check and test everything, cheapest first; stops at the first failure
  tidy                 check the house rules alone (layers, lengths, names, links)
  reference [--check]  write docs/job.md from the code, or check that it is current
  skew FIRST..END      compare CSV, Parquet, stream, evaluation and serving on that many tables drawn at random
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["test"] => stages::run_all(&workspace_root()),
        ["tidy"] => run_tidy(),
        ["skew", seeds] => skew::run(&workspace_root(), seeds),
        ["reference"] => reference::write(&workspace_root()),
        ["reference", "--check"] => reference::check(&workspace_root()),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_tidy() -> Result<()> {
    let complaints = tidy::complaints(&workspace_root());
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("{} house rules are broken", complaints.len());
    }
    println!("the house is tidy");
    Ok(())
}
