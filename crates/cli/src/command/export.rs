//! `campanile export`: a model for other programs.

use anyhow::{Context, Result};
use campanile_serve::{
    Options, RowStorage, Snapshot,
    export::{write_onnx, write_safetensors},
};
use campanile_spec::{Bytes, Precision};
use serde_json::json;

use crate::{
    args::publishing::ExportArguments,
    command::{inspect::newest_checkpoint, write_report},
};

/// Runs the command.
pub fn run(arguments: &ExportArguments) -> Result<()> {
    let place = &arguments.checkpoint;
    let checkpoint =
        newest_checkpoint(place)?.with_context(|| format!("{} holds no checkpoint", place.display()))?;
    let options = Options { rows: RowStorage::F32, precision: Some(Precision::F32), ..Options::default() };
    let snapshot = Snapshot::open(&checkpoint, "campanile", &options)?;
    let mut written = Vec::new();
    if let Some(path) = &arguments.onnx {
        write_onnx(&snapshot, path)?;
        written.push(path);
    }
    if let Some(path) = &arguments.safetensors {
        write_safetensors(&snapshot, path)?;
        written.push(path);
    }
    for path in &written {
        println!(
            "{}: {} of weights, step {}",
            path.display(),
            Bytes(snapshot.bytes()),
            snapshot.version().step
        );
    }
    let report = json!({
        "command": "export",
        "checkpoint": checkpoint,
        "files": written,
        "step": snapshot.version().step,
        "transforms": snapshot.version().transforms,
    });
    write_report(arguments.report.as_deref(), &report)
}
