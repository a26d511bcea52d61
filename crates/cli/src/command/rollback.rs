//! `campanile rollback`: an earlier version becomes current again.

use anyhow::Result;
use campanile_tables::Registry;
use serde_json::json;

use crate::{args::publishing::RollbackArguments, command::write_report};

/// Runs the command.
pub fn run(arguments: &RollbackArguments) -> Result<()> {
    let registry = Registry::new(&arguments.registry);
    let before = registry.current(&arguments.model)?;
    let number = registry.roll_back(&arguments.model, arguments.to)?;
    let from = before.map_or_else(String::new, |before| format!(", version {before} was before"));
    println!("version {number} of `{}` is current{from}", arguments.model);
    let report = json!({ "command": "rollback", "model": arguments.model, "from": before, "to": number });
    write_report(arguments.report.as_deref(), &report)
}
