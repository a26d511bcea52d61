//! `campanile inspect`: what is in a checkpoint, a registry or a packed file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use campanile_serve::Snapshot;
use campanile_spec::Bytes;
use campanile_tables::{
    Registry,
    checkpoint::{self, Checkpoint},
    registry::Kind,
};
use serde_json::{Value, json};

use crate::{args::InspectArguments, command::write_report, format};

/// Runs the command.
pub fn run(arguments: &InspectArguments) -> Result<()> {
    let path = &arguments.path;
    if !path.exists() {
        bail!("{} does not exist", path.display());
    }
    let registry = Registry::new(path);
    let report = match newest_checkpoint(path)? {
        Some(found) => inspect_checkpoint(&found, arguments.verify)?,
        None if path.is_dir() && !registry.models()?.is_empty() => {
            inspect_registry(&registry, arguments.verify)?
        }
        None => inspect_packed(path)?,
    };
    write_report(arguments.report.as_deref(), &report)
}

/// The checkpoint at `path`, or the newest one below it.
pub fn newest_checkpoint(path: &Path) -> Result<Option<PathBuf>> {
    if path.join("manifest.json").exists() {
        return Ok(Some(path.to_owned()));
    }
    if !path.is_dir() {
        return Ok(None);
    }
    if let Some(found) = checkpoint::latest(path)? {
        return Ok(Some(found));
    }
    let below = path.join("checkpoints");
    if below.is_dir() { Ok(checkpoint::latest(&below)?) } else { Ok(None) }
}

fn inspect_checkpoint(path: &Path, verify: bool) -> Result<Value> {
    let summary = checkpoint::describe(path)?;
    print!("{summary}");
    let model = Snapshot::job_of(path).map(|job| job.run.model);
    if let Some(towers) = model.as_ref().ok().and_then(format::towers) {
        println!("  {towers}");
    }
    let compression_ratio = model.map_or(1.0, |model| model.compression_ratio());
    if verify {
        let bytes = Checkpoint::open(path)?.verify_all()?;
        println!("all {} match their checksums", Bytes(bytes));
    }
    Ok(
        json!({ "command": "inspect", "kind": "checkpoint", "path": path, "summary": summary, "verified": verify,
            "compression_ratio": compression_ratio }),
    )
}

/// One line a version, the current one marked.
fn inspect_registry(registry: &Registry, verify: bool) -> Result<Value> {
    println!("registry {}", registry.root().display());
    let mut models = Vec::new();
    for model in registry.models()? {
        let current = registry.current(&model)?;
        println!("  {model}");
        let mut versions = Vec::new();
        for number in registry.versions(&model)? {
            let release = registry.release(&model, number)?;
            let mark = if current == Some(number) { "*" } else { " " };
            let what = match &release.kind {
                Kind::Whole => "whole".to_owned(),
                Kind::Delta { base, .. } => {
                    let rows: u64 = release.tables.iter().map(|table| table.changed).sum();
                    format!("{} rows changed since {base}", format::count(rows))
                }
            };
            let checked = match verify {
                true => {
                    format!(", {} match their checksums", Bytes(registry.verify(&model, number)?))
                }
                false => String::new(),
            };
            println!("   {mark} {number:>6}  step {:>9}  {what}{checked}", format::count(release.step));
            versions.push(json!(release));
        }
        models.push(json!({ "model": model, "current": current, "versions": versions }));
    }
    Ok(
        json!({ "command": "inspect", "kind": "registry", "path": registry.root(), "models": models, "verified": verify }),
    )
}

fn inspect_packed(path: &Path) -> Result<Value> {
    let files = packed_files(path)?;
    if files.is_empty() {
        bail!(
            "{} holds neither a checkpoint (manifest.json, step-…) nor a registry (MODEL/versions) nor packed data (*.pack)",
            path.display()
        );
    }
    let mut summaries = Vec::new();
    for file in &files {
        // A packed file is always read whole, and every block checked: that is quick.
        let summary = campanile_data::inspect(file)?;
        println!("{}", file.display());
        println!(
            "  {} rows, {} in {} blocks of {} rows",
            format::count(summary.row_count),
            Bytes(summary.bytes),
            summary.blocks.len(),
            format::count(summary.block_rows as u64)
        );
        println!("  labels    {}", summary.tasks.join(", "));
        println!("  dense     {}", summary.dense.join(", "));
        let features =
            summary.features.iter().map(|(name, rows)| format!("{name} ({})", format::count(*rows)));
        println!("  features  {}", features.collect::<Vec<_>>().join(", "));
        println!("  contents  {}, transforms {}", summary.fingerprint, summary.transforms);
        summaries.push(json!({ "path": file, "summary": summary }));
    }
    println!("every block matches its checksum");
    Ok(json!({ "command": "inspect", "kind": "packed", "files": summaries, "verified": true }))
}

/// The packed files at `path`, in it, or one directory below.
fn packed_files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = |directory: &Path| -> Result<Vec<PathBuf>> {
        let found =
            std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
        Ok(found.filter_map(|entry| Some(entry.ok()?.path())).collect())
    };
    let mut files = Vec::new();
    for entry in entries(path)? {
        files.extend(if entry.is_dir() { entries(&entry)? } else { vec![entry] });
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pack"));
    files.sort();
    Ok(files)
}
