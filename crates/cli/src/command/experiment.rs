//! `campanile experiment`: students with and without teachers, over several seeds, as tables.
//!
//! Every figure is progressive: a sample is predicted, then trained on. Metrics are of the second half of the stream, and
//! a gain compares with a twin without a teacher on the very same stream, so that the luck of a seed cancels out.

mod cotrained;
mod delay;
mod file;
mod lab;
mod real;
mod simulated;
mod table;
mod trained;
mod union;

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    args::learning::{ExperimentArguments, ExperimentName},
    command::write_report,
};
use file::ExperimentFile;
use lab::Lab;

/// Runs the command.
pub fn run(arguments: &ExperimentArguments) -> Result<()> {
    let lab = Lab::new(arguments)?;
    let (tables, ages) = match arguments.name {
        ExperimentName::Heads => (simulated::heads(&lab)?, Vec::new()),
        ExperimentName::Scales => (simulated::scales(&lab)?, Vec::new()),
        ExperimentName::Drift => (simulated::drift(&lab)?, Vec::new()),
        ExperimentName::Freshness => (simulated::freshness(&lab)?, Vec::new()),
        ExperimentName::Teachers => (trained::teachers(&lab)?, Vec::new()),
        ExperimentName::Delay => (Vec::new(), trained::delay(&lab)?),
        ExperimentName::Students => (trained::students(&lab)?, Vec::new()),
        ExperimentName::Union => (union::union(&lab)?, Vec::new()),
        ExperimentName::Follow => (union::follow(&lab)?, Vec::new()),
        ExperimentName::Real => real::run(&lab, &experiment_file(arguments)?)?,
    };
    lab.clean()?;
    let report = json!({
        "command": "experiment",
        "name": format!("{:?}", arguments.name).to_lowercase(),
        "seeds": arguments.seeds,
        "samples": arguments.samples,
        "tables": tables,
        "teacher_by_age": ages,
    });
    write_report(arguments.report.as_deref(), &report)
}

fn experiment_file(arguments: &ExperimentArguments) -> Result<ExperimentFile> {
    let path = arguments.file.as_ref().context("`experiment real` needs a file; see examples/real")?;
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    ExperimentFile::parse(&text).with_context(|| path.display().to_string())
}
