//! `campanile experiment`: students with and without teachers, over several seeds, as tables.
//!
//! Every figure is progressive: a sample is predicted, then trained on. Metrics are of the second half of the stream, and
//! a gain compares with a twin without a teacher on the very same stream, so that the luck of a seed cancels out.

mod lab;
mod simulated;
mod table;
mod trained;

use anyhow::Result;
use serde_json::json;

use crate::{
    args::learning::{ExperimentArguments, ExperimentName},
    command::write_report,
};
use lab::Lab;

/// Runs the command.
pub fn run(arguments: &ExperimentArguments) -> Result<()> {
    let lab = Lab::new(arguments)?;
    let tables = match arguments.name {
        ExperimentName::Heads => simulated::heads(&lab)?,
        ExperimentName::Scales => simulated::scales(&lab)?,
        ExperimentName::Drift => simulated::drift(&lab)?,
        ExperimentName::Freshness => simulated::freshness(&lab)?,
        ExperimentName::Teachers => trained::teachers(&lab)?,
        ExperimentName::Students => trained::students(&lab)?,
    };
    lab.clean()?;
    let report = json!({
        "command": "experiment",
        "name": format!("{:?}", arguments.name).to_lowercase(),
        "seeds": arguments.seeds,
        "samples": arguments.samples,
        "tables": tables,
    });
    write_report(arguments.report.as_deref(), &report)
}
