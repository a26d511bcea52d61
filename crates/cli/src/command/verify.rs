//! `campanile verify`: the contract of same bits, proved on the user's own job.

mod processes;

use std::path::Path;

use anyhow::{Context, Result, bail};
use campanile_spec::{
    Plan,
    config::{ExchangeFormat, Job},
};
use campanile_train::verify::{Proof, Way, first_difference, prove, ways};
use serde_json::json;

use crate::{
    args::VerifyArguments,
    command::{prep, write_report},
    job_file,
};

/// Runs the command.
pub fn run(arguments: &VerifyArguments) -> Result<()> {
    let job = job_file::read(&arguments.job)?;
    check_ranks(&job, &arguments.ranks)?;
    let prepared = prep::prepared(&job, arguments.quiet)?;
    let rows = prepared.train.row_count();
    let all = rows.div_ceil(job.run.batch_size as u64) * job.run.epochs;
    let steps = arguments.steps.min(all).max(1);
    let home = job.process.output_dir.join("verify");
    remove(&home)?;
    println!("{steps} steps of {} samples, in every way:", job.run.batch_size);
    let (mut lines, mut failed) = (Vec::new(), 0);
    let processes = !arguments.threads_only && processes::can_start()?;
    for (number, group) in ways(&job, &arguments.ranks, processes).into_iter().enumerate() {
        println!();
        println!("{}", heading(&job, group.first().map_or(job.run.exchange, |way| way.exchange)));
        println!("  ranks  {:<47} {:<16}  {:<16}  metrics", "way", "weights", "losses");
        let mut first: Option<Proof> = None;
        for (place, way) in group.iter().enumerate() {
            let directory = home.join(format!("{number}-{place}"));
            let start = |job: &Job, plan: &Plan| processes::start(job, plan, &directory);
            let proof = prove(&job, &prepared, way, (steps, &directory), &start)?;
            let difference = first.as_ref().and_then(|first| first_difference(first, &proof));
            print_line(way, &proof, difference.as_deref(), first.is_none());
            failed += usize::from(difference.is_some());
            lines.push(json!({
                "group": number, "ranks": way.ranks, "way": way.words(), "exchange": way.exchange,
                "proof": proof, "difference": difference,
            }));
            if first.is_none() {
                first = Some(proof);
            } else if difference.is_none() {
                remove(&directory)?;
            }
        }
    }
    write_report(
        arguments.report.as_deref(),
        &json!({ "command": "verify", "steps": steps, "run_hash": job.run.hash(), "ways": lines, "different": failed }),
    )?;
    println!();
    if failed > 0 {
        bail!(
            "{failed} of {} ways differ; what they left is in {}, please report it with the job file",
            lines.len(),
            home.display()
        );
    }
    println!("all {} ways agree in every bit", lines.len());
    remove(&home)
}

fn check_ranks(job: &Job, ranks: &[usize]) -> Result<()> {
    let grains = job.run.grain_count;
    for &count in ranks {
        if !count.is_power_of_two() || !grains.is_multiple_of(count) {
            bail!(
                "--ranks {count}: the job's {grains} grains can be spread over powers of two up to {grains} only; \
                 change --ranks, or set run.grains"
            );
        }
    }
    Ok(())
}

fn heading(job: &Job, exchange: ExchangeFormat) -> String {
    let name = |format| format!("{format:?}").to_lowercase();
    let words = format!("vectors as {}, gradients as {}", name(exchange.forward), name(exchange.backward));
    if exchange == job.run.exchange { format!("as the job says: {words}") } else { words }
}

fn print_line(way: &Way, proof: &Proof, difference: Option<&str>, is_first: bool) {
    let mark = match difference {
        _ if is_first => "",
        None => "same",
        Some(_) => "DIFFERENT",
    };
    let Proof { weights, losses, metrics, .. } = proof;
    let line = format!("  {:>5}  {:<47} {weights}  {losses}  {metrics}  {mark}", way.ranks, way.words());
    println!("{}", line.trim_end());
    if let Some(difference) = difference {
        println!("         {difference}");
    }
}

fn remove(directory: &Path) -> Result<()> {
    if directory.exists() {
        std::fs::remove_dir_all(directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    Ok(())
}
